"""Work that a test lets end, turn by turn, and that knows how many turns are at it."""

import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from perdure import Agent, ToolContext, tool
from perdure.client import Turn
from perdure.testing import Script, ScriptedProvider, call, say
from tests.house import WAIT_SECONDS, House, eventually

SCRIPT = Script(replies=(call(("work", {})), say("done")), repeat=True)


class Work:
    """A tool whose call of a session lasts until the test lets it end."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.most = 0
        self._running = 0
        self._changed = threading.Condition()
        self._ended: set[str] = set()

        @tool
        def work(ctx: ToolContext) -> str:
            """Work."""
            self._work(ctx.session)
            return "worked"

        self.tool = work

    def _work(self, session: str) -> None:
        with self._changed:
            self.begun.append(session)
            self._running += 1
            self.most = max(self.most, self._running)
            self._changed.wait_for(lambda: session in self._ended, WAIT_SECONDS)
            self._running -= 1

    def end(self, *sessions: str) -> None:
        """Let the work of these sessions end, also if it has not begun."""
        with self._changed:
            self._ended.update(sessions)
            self._changed.notify_all()

    async def wait_for(self, *sessions: str) -> None:
        """Wait until the work of these sessions has begun."""

        async def begun() -> bool:
            return set(sessions) <= set(self.begun)

        await eventually(begun)

    def agent(self, name: str = "tester", **settings: Any) -> Agent:
        """An agent that calls the tool once."""
        return Agent(name=name, model="openai/scripted", tools=[self.tool], **settings)


@dataclass(frozen=True)
class Taken:
    """A worker whose one slot a turn holds, until the test ends its work."""

    holder: str
    work: Work
    provider: ScriptedProvider


@asynccontextmanager
async def take_slot(house: House) -> AsyncIterator[Taken]:
    """Run a worker with one slot, and have a turn of another session than the test's hold it."""
    work, holder = Work(), f"{house.session}-holder"
    async with ScriptedProvider(SCRIPT) as provider, house.worker(work.agent(max_running=1)):
        house.use(provider)
        await house.client.start("tester", "go", session=holder)
        await work.wait_for(holder)
        yield Taken(holder, work, provider)


async def start_queued(
    house: House, session: str, *, behind: Sequence[str] = (), agent: str = "tester", **options: Any
) -> Turn:
    """Start a turn, and wait until it is queued behind these sessions' turns."""
    turn = await house.client.start(agent, "go", session=session, **options)
    await queued(house, *behind, session)
    return turn


async def queued(house: House, *sessions: str) -> None:
    """Wait until exactly these sessions' turns wait for a slot, in this order."""

    async def waiting() -> bool:
        return [turn.session for turn in reversed(await house.store.queued_turns())] == list(sessions)

    await eventually(waiting)
