"""The exports of a session: its conversation, turns or events in the forms that other programs read."""

from collections.abc import AsyncIterator, Callable, Collection, Mapping
from functools import partial
from typing import Literal, get_args

from perdure.client.read import end_of, read_events, read_trajectory
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.events import is_called
from perdure.contracts.messages import Message
from perdure.contracts.values import JsonValue
from perdure.llm.openai_format import openai_messages, openai_tools
from perdure.store import StepRecord, Store, TurnRecord
from perdure.trajectory import DatasetFormat, rows

ExportFormat = Literal["openai", "jsonl", "chat", "turns", "events"]
"""``openai``: one array of chat messages. ``jsonl``: a record a turn. ``chat``, ``turns``: rows of a dataset.
``events``: the event log, a line for each."""

EXPORTS: tuple[ExportFormat, ...] = get_args(ExportFormat)

Exported = dict[str, JsonValue] | list[dict[str, JsonValue]]
"""Contents of one line of the output."""

_ENDED = ("stop_reason", "reason_code", "error", "stopped_by", "steps", "usage", "cost_usd", "unpriced_calls")
"""Fields of a record about a turn's end; null while the turn runs."""

Export = Callable[[Store, str, int | None], AsyncIterator[Exported]]


async def _conversation(store: Store, session: str, turn: int | None) -> AsyncIterator[Exported]:
    """The conversation as it is now, or as it was at the end of the turn, as one array."""
    last = turn or (await store.session(session)).turn
    definition = await store.definition((await store.turn(session, last)).definition)
    yield openai_messages(await store.transcript(session, turn=turn), definition.instructions)


async def _records(store: Store, session: str, turn: int | None) -> AsyncIterator[Exported]:
    """A record for each turn."""
    # In this order: a turn that begins meanwhile is left out whole.
    turns = await store.turns(session)
    now = await store.session(session)
    steps = {step.id: step for step in await store.steps(session)}
    for record in turns:
        if turn in {None, record.turn}:
            definition = await store.definition(record.definition)
            yield turn_record(
                record, definition, added_messages_of(steps, record.turn, record.last_step or now.tip or now.head)
            )


async def _dataset(store: Store, session: str, turn: int | None, form: DatasetFormat) -> AsyncIterator[Exported]:
    """Rows of a dataset."""
    record = (await read_trajectory(store, session, turn)).to_record()
    for row in rows([record], form):
        yield row


async def _events(store: Store, session: str, turn: int | None, types: Collection[str] = ()) -> AsyncIterator[Exported]:
    """The event log, all or some types."""
    async for envelope in read_events(store, session):
        if turn in {None, envelope.turn} and (not types or is_called(envelope.event, types)):
            yield envelope.line()


_FORMATS: dict[str, Export] = {
    "openai": _conversation,
    "jsonl": _records,
    "chat": partial(_dataset, form="chat"),
    "turns": partial(_dataset, form="turns"),
    "events": _events,
}


async def export(
    store: Store, session: str, to: str, turn: int | None = None, types: Collection[str] = ()
) -> AsyncIterator[Exported]:
    """Yield each line of an export.

    Args:
        store: Where the session is.
        session: Its id.
        to: The format.
        turn: Only this turn; for ``openai``, up to its end.
        types: For ``events``: only these.

    Raises:
        NotFoundError: There is no such session or turn.
    """
    await store.session(session)
    if turn is not None:
        await store.turn(session, turn)
    write = partial(_events, types=types) if types else _FORMATS[to]
    async for line in write(store, session, turn):
        yield line


def added_messages_of(steps: Mapping[str, StepRecord], turn: int, tip: str | None) -> list[Message]:
    """The messages that a turn has added up to the step at its end, also if the conversation went on elsewhere."""
    return [message for step in path_to(steps, tip, turn) for message in step.added]


def path_to(steps: Mapping[str, StepRecord], tip: str | None, turn: int | None = None) -> list[StepRecord]:
    """The steps that lead to ``tip``, by their ids, in order; all of the session's own, or only that turn's."""
    backwards: list[StepRecord] = []
    while tip is not None and tip in steps and turn in {None, steps[tip].turn}:
        backwards.append(steps[tip])
        tip = steps[tip].parent
    return backwards[::-1]


def turn_record(turn: TurnRecord, definition: AgentDefinition, messages: list[Message]) -> dict[str, JsonValue]:
    """A turn as one record: a conversation that begins with the system prompt, its tools, and how it ended."""
    about = turn.model_dump(mode="json", include={"session", "turn", "agent", "definition", "started_at", "ended_at"})
    return {
        "messages": [*openai_messages(messages, definition.instructions)],
        "tools": openai_tools(definition.tools),
        "metadata": {**about, "model": definition.model, **end_of(turn.result, _ENDED)},
    }
