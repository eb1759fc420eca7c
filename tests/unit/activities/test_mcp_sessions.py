"""Sessions that share a server with state: each that relied on it is told of its loss, and none ends it for another."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from perdure.activities.mcp import server, session_state
from perdure.activities.mcp.failures import ConnectionLostError, McpError, McpUnavailableError
from perdure.activities.mcp.session_state import Caller, SessionStakes, Use
from perdure.contracts.errors import ReasonCode
from tests.house import eventually
from tests.unit.activities.mcp_peers import Connected, peer, worker_of

pytestmark = pytest.mark.deep

SHORT = timedelta(seconds=0.3)


class Shared:
    """A worker with one server, and what sessions read of it."""

    def __init__(self, worker: Connected, journal: Path) -> None:
        self.worker = worker
        self.journal = journal
        self._answers = 0

    async def says(self, session: str, tool: str = "whoami") -> str:
        """What the model of a session reads, of a call that is an answer of its own: the result, or the code."""
        self._answers += 1
        return await self.read(session, tool, f"call_{self._answers}_0")

    async def read(self, session: str, tool: str, call_id: str) -> str:
        try:
            return (await self.worker.call(f"peer__{tool}", session=session, call_id=call_id)).text
        except McpError as error:
            return error.code

    def tell(self, what: str, *, off: bool = False) -> None:
        sign = Path(f"{self.journal}.{what}")
        sign.unlink() if off else sign.touch()

    async def noted(self, text: str, times: int = 1) -> None:
        async def there() -> bool:
            return self.journal.read_text().count(text) >= times

        await eventually(there)

    def limit(self, *tools: str) -> None:
        """From now on, calls of these tools end soon."""
        for name in tools:
            declared = self.worker.tools[f"peer__{name}"]
            self.worker.tools[declared.name] = declared.model_copy(update={"timeout": SHORT})

    @contextmanager
    def silence(self) -> Iterator[None]:
        """The server lists nothing, and nobody waits long for it."""
        (of,) = self.worker.servers._servers.values()
        before, of.config = of.config, of.config.model_copy(update={"init_timeout": SHORT})
        self.tell("be silent")
        yield
        self.tell("be silent", off=True)
        of.config = before

    async def settled(self) -> None:
        """Wait until what a time-out brought about is over."""
        (of,) = self.worker.servers._servers.values()
        while of._background:
            await asyncio.wait(of._background)

    @property
    def lives(self) -> int:
        return self.journal.read_text().count("started")


@asynccontextmanager
async def sharing(folder: Path, fault: str = "", *, stateful: bool = True) -> AsyncIterator[Shared]:
    journal = folder / "journal"
    config = peer(fault, stateful=stateful, env={"MCP_JOURNAL": str(journal)})
    async with worker_of(config, folder=folder) as worker:
        await worker.open()
        yield Shared(worker, journal)


LOST = ReasonCode.TOOL_STATE_LOST


async def test_every_session_that_relied_on_it_is_told_once_and_no_other(tmp_path: Path) -> None:
    """S-77: also one that is opened after the loss, before the others call again."""
    async with sharing(tmp_path) as shared:
        first = {await shared.says(session) for session in ("a", "b")}
        await shared.says("other", "die")
        await shared.worker.open()
        second = await shared.says("new")
        assert {second}.isdisjoint(first)
        for session in ("b", "a", "other"):
            assert [await shared.says(session), await shared.says(session)] == [LOST, second]
        assert await shared.says("new") == second
        assert shared.journal.read_text().count("call whoami") == 7


async def test_no_call_of_an_answer_is_carried_out_if_one_is_refused(tmp_path: Path) -> None:
    """S-77: neither a parallel one, nor one that somebody approves later."""
    async with sharing(tmp_path) as shared:
        await shared.says("a")
        await shared.says("b", "die")
        parallel = [shared.read("a", "echo", f"call_x_{place}") for place in range(3)]
        assert await asyncio.gather(*parallel) == [LOST] * 3
        assert await shared.says("b") == LOST
        assert await shared.read("a", "echo", "call_x_3") == LOST
        assert "call echo" not in shared.journal.read_text()
        assert await shared.read("a", "echo", "call_y_0") == "echo: {}"


async def test_a_session_is_not_told_of_a_process_that_it_never_used(tmp_path: Path) -> None:
    """S-77: it was told of the one before, and its next call came when that was over as well."""
    async with sharing(tmp_path) as shared:
        await shared.says("a")
        await shared.says("b", "die")
        assert await shared.says("a") == LOST
        await shared.says("c", "die")
        assert (await shared.says("a")).isdigit()


async def test_a_conversation_that_goes_on_in_another_session_is_told_there_too(tmp_path: Path) -> None:
    """S-77: its model has read what the first one built up."""
    async with sharing(tmp_path) as shared:
        await shared.says("a")
        shared.worker.servers.carry_over("fork", "a")
        await shared.says("b", "die")
        assert [await shared.says(session) for session in ("fork", "a")] == [LOST, LOST]
        assert (await shared.says("fork")).isdigit()


async def test_a_listing_that_takes_too_long_does_not_end_what_others_use(tmp_path: Path) -> None:
    """S-77: the session whose opening fails is refused, and the other's process stays."""
    async with sharing(tmp_path, "moody") as shared:
        first = await shared.says("a")
        with shared.silence(), pytest.raises(McpUnavailableError, match=r"did not list its tools within 0\.3 s"):
            await shared.worker.open()
        assert await shared.says("a") == first


async def test_a_listing_that_takes_too_long_ends_what_nobody_has_used_for_long_and_its_users_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-77: else no turn could be opened again."""
    monkeypatch.setattr(session_state, "IN_USE", 0.0)
    async with sharing(tmp_path, "moody") as shared:
        await shared.says("a")
        with shared.silence(), pytest.raises(McpUnavailableError):
            await shared.worker.open()
        await shared.worker.open()
        assert [await shared.says("new") != LOST, await shared.says("a")] == [True, LOST]
        assert shared.lives == 2


async def test_a_call_that_takes_too_long_does_not_end_what_another_session_uses_until_it_hangs_for_that_one_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-77: it is ended by the time-out of the last session that has no sign of it."""
    monkeypatch.setattr(server, "PROBE_SECONDS", 0.1)
    async with sharing(tmp_path, "hangs") as shared:
        shared.limit("slow", "echo")
        await shared.says("a")
        assert await shared.says("b", "slow") == ReasonCode.TOOL_TIMEOUT  # from here on it reads nothing
        await shared.settled()
        assert shared.worker.status == "connected"
        assert await shared.says("a", "echo") == ReasonCode.TOOL_TIMEOUT
        await eventually(lambda: has_status(shared.worker, "disconnected"))
        assert [await shared.says(session) for session in ("a", "b")] == [LOST, LOST]
        assert (await shared.says("a")).isdigit()


async def test_a_time_out_does_not_end_a_server_that_is_busy_with_another_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-77: one that does one thing at a time cannot answer a question beside it."""
    monkeypatch.setattr(server, "PROBE_SECONDS", 0.1)
    async with sharing(tmp_path, "one at a time", stateful=False) as shared:
        held = asyncio.create_task(shared.says("a", "hold"))
        await shared.noted("call hold")
        shared.limit("echo")
        assert await shared.says("b", "echo") == ReasonCode.TOOL_TIMEOUT
        await shared.settled()
        shared.tell("go on")
        assert await held == "hold: {}"
        assert shared.lives == 1


def test_a_call_that_was_certainly_not_carried_out_leaves_nothing_to_rely_on() -> None:
    """S-77: the server did not know the session of the protocol, or no byte of the call was sent."""
    memory = SessionStakes()
    breaks(memory, "a", unsent=True)
    breaks(memory, "b", unsent=False)
    memory.note_loss()
    assert [begins(memory, session) for session in ("a", "b")] == [True, False]


def test_what_is_remembered_of_sessions_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that has not called for longest goes first."""
    monkeypatch.setattr(session_state, "MOST_SESSIONS", 3)
    memory = SessionStakes()
    assert all(begins(memory, name) for name in ("a", "b", "c", "a", "d"))
    memory.note_loss()
    assert {name: begins(memory, name, "later") for name in ("a", "c", "d")} == {"a": False, "c": False, "d": False}
    assert begins(memory, "b", "later")
    assert len(memory._stakes) == 3


def begins(memory: SessionStakes, session: str, answer: str = "x") -> bool:
    with Use(memory, Caller(session, f"call_{answer}_0")) as use:
        return use.begin()


def breaks(memory: SessionStakes, session: str, *, unsent: bool) -> None:
    with contextlib.suppress(ConnectionLostError), Use(memory, Caller(session, "call_before_0")) as use:
        assert use.begin()
        raise ConnectionLostError("it broke", unsent=unsent)


async def has_status(worker: Connected, status: str) -> bool:
    return worker.status == status
