"""What was said in a session, and what a session or a turn came to, read from the store."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator

from perdure.client.errors import UnknownSessionError
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.events import Envelope
from perdure.contracts.messages import Message
from perdure.contracts.turns import TurnResult
from perdure.contracts.values import JsonValue
from perdure.llm.openai_format import openai_tools
from perdure.store import Store
from perdure.store.errors import NotFoundError
from perdure.store.records import StepRecord
from perdure.trajectory import Trajectory, TrajectoryStep

PAGE = 500
"""Events read at once."""

ENDED = ("stop_reason", "reason_code", "error", "stopped_by")
"""What is known of how a turn ended."""


class Trajectories(ABC):
    """The part of the client that reads conversations."""

    @abstractmethod
    async def store(self) -> Store:
        """The transcript store."""

    async def transcript(self, session: str, turn: int | None = None) -> list[Message]:
        """The conversation as it is now, or as it was at the end of a turn.

        Raises:
            UnknownSessionError: There is no session of that id in the store, or no such turn.
        """
        store = await self.store()
        try:
            return list(await store.transcript(session, turn=turn))
        except NotFoundError as error:
            raise UnknownSessionError(f"{error}; 'perdure list' names the sessions there are") from error

    async def trajectory(self, session: str, turn: int | None = None) -> Trajectory:
        """What a session came to so far, or what one turn of it did, as one value.

        Raises:
            UnknownSessionError: There is no session of that id in the store, or no such turn.
        """
        try:
            return await read_trajectory(await self.store(), session, turn)
        except NotFoundError as error:
            raise UnknownSessionError(f"{error}; 'perdure list' names the sessions there are") from error


async def read_trajectory(store: Store, session: str, turn: int | None = None) -> Trajectory:
    """What the session came to so far, or what one turn of it did.

    Raises:
        NotFoundError: There is no such session or turn.
    """
    now = await store.session(session)
    last = await store.turn(session, turn or now.turn)
    definition = await store.definition(last.definition)
    end = (last.last_step if turn is not None else None) or now.tip or now.head
    steps = [step for step in await _path(store, session, end) if _is_of(step, session, turn)]
    events = [one async for one in read_events(store, session) if turn in {None, one.turn}]
    return Trajectory(
        session=session,
        turn=turn,
        agent=last.agent,
        model=definition.model,
        system_prompt=definition.instructions,
        tools=tuple(openai_tools(definition.tools)),
        steps=tuple(
            TrajectoryStep(
                turn=step.turn,
                step=step.step,
                messages=step.added,
                finish_reason=step.finish_reason,
                usage=step.usage,
                cost_usd=step.cost_usd,
                session="" if step.session == session else step.session,
            )
            for step in steps
        ),
        events=tuple(events),
        metadata={**_called(definition), **end_of(last.result)},
        result=last.result,
    )


def _called(definition: AgentDefinition) -> dict[str, JsonValue]:
    """What the author calls the agent beside its name."""
    called: dict[str, JsonValue] = {"label": definition.label, "tags": [*definition.tags]}
    return {name: value for name, value in called.items() if value}


async def read_events(store: Store, session: str) -> AsyncIterator[Envelope]:
    """The event log from its beginning."""
    after = 0
    while page := await store.events(session, after=after, limit=PAGE):
        for envelope in page:
            yield envelope
        after = page[-1].seq


async def _path(store: Store, session: str, tip: str | None) -> list[StepRecord]:
    """The steps from the root to the tip; the first ones may be another session's, of which this one is a fork."""
    known = {step.id: step for step in await store.steps(session)}
    backwards: list[StepRecord] = []
    while tip is not None:
        if tip not in known:
            step = await store.step(tip)
            if step is None:
                break
            known |= {one.id: one for one in await store.steps(step.session)}
        backwards.append(known[tip])
        tip = known[tip].parent
    return backwards[::-1]


def _is_of(step: StepRecord, session: str, turn: int | None) -> bool:
    return turn is None or (step.session, step.turn) == (session, turn)


def end_of(result: TurnResult | None) -> dict[str, JsonValue]:
    """What is known of how a turn ended, as a trajectory's metadata."""
    if result is None:
        return dict.fromkeys(ENDED)
    known: dict[str, JsonValue] = result.model_dump(mode="json", include=set(ENDED))
    return {name: known[name] for name in ENDED}
