"""``perdure export``: a transcript or an event log for other programs."""

from collections.abc import AsyncIterator, Callable, Collection, Mapping
from functools import partial

import click

from perdure.cli.connection import open_store, run
from perdure.cli.live import only_types, print_json, refuse_types
from perdure.client.read import read_events, read_trajectory
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.events import is_called
from perdure.contracts.messages import Message
from perdure.contracts.values import JsonValue
from perdure.llm.openai_format import openai_messages, openai_tools
from perdure.store import Store, TurnRecord
from perdure.store.records import StepRecord
from perdure.trajectory import DatasetFormat, rows

Exported = dict[str, JsonValue] | list[dict[str, JsonValue]]
"""What one line of the output holds."""

_ENDED = ("stop_reason", "reason_code", "error", "stopped_by", "steps", "usage", "cost_usd", "unpriced_calls")
"""What a record says of a turn's end; null while the turn runs."""

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


async def _rows(store: Store, session: str, turn: int | None, form: DatasetFormat) -> AsyncIterator[Exported]:
    """Rows of a dataset."""
    record = (await read_trajectory(store, session, turn)).to_record()
    for row in rows([record], form):
        yield row


def _chat(store: Store, session: str, turn: int | None) -> AsyncIterator[Exported]:
    return _rows(store, session, turn, "chat")


def _turns(store: Store, session: str, turn: int | None) -> AsyncIterator[Exported]:
    return _rows(store, session, turn, "turns")


async def _events(store: Store, session: str, turn: int | None, types: Collection[str] = ()) -> AsyncIterator[Exported]:
    """The event log, all or some types."""
    async for envelope in read_events(store, session):
        if turn in {None, envelope.turn} and (not types or is_called(envelope.event, types)):
            yield envelope.line()


FORMATS: dict[str, Export] = {
    "openai": _conversation,
    "jsonl": _records,
    "chat": _chat,
    "turns": _turns,
    "events": _events,
}


@click.command("export")
@click.argument("session")
@click.option(
    "--format", "to", type=click.Choice(list(FORMATS)), required=True, help="What to write; see above for each."
)
@click.option("--turn", type=click.IntRange(min=1), metavar="N", help="Only turn N; for openai, up to its end.")
@only_types
def export_command(*, session: str, to: str, turn: int | None, types: tuple[str, ...]) -> None:
    """Write the transcript of SESSION to standard output, as JSON.

    \b
    openai  the conversation as one array of OpenAI chat messages, system prompt first
    jsonl   a line for each turn: its messages after the system prompt, its tools, how it ended
    chat    the conversation as one row for training: only who said what
    turns   a row for training for each answer: system prompt, what came before it, answer, calls
    events  the event log, a line for each event

    Arguments that are masked in the transcript stay masked.
    """  # noqa: D301  # \b is click's mark of lines that stay as they are
    if to != "events":
        refuse_types(types, f"--format {to}")

    async def main() -> None:
        async with open_store() as store:
            await store.session(session)
            if turn is not None:
                await store.turn(session, turn)
            export = partial(_events, types=types) if types else FORMATS[to]
            async for line in export(store, session, turn):
                print_json(line)

    run(main())


def added_messages_of(steps: Mapping[str, StepRecord], turn: int, tip: str | None) -> list[Message]:
    """The messages that a turn has added up to the step at its end, also if the conversation went on elsewhere."""
    return [message for step in chain(steps, tip, turn) for message in step.added]


def chain(steps: Mapping[str, StepRecord], tip: str | None, turn: int | None = None) -> list[StepRecord]:
    """The steps that lead to ``tip``, by their ids, in order; all of the session's own, or only that turn's."""
    backwards: list[StepRecord] = []
    while tip is not None and tip in steps and turn in {None, steps[tip].turn}:
        backwards.append(steps[tip])
        tip = steps[tip].parent
    return backwards[::-1]


def turn_record(turn: TurnRecord, definition: AgentDefinition, messages: list[Message]) -> dict[str, JsonValue]:
    """A turn as one record: a conversation that begins with the system prompt, its tools, and how it ended."""
    about = turn.model_dump(mode="json", include={"session", "turn", "agent", "definition", "started_at", "ended_at"})
    ended: dict[str, JsonValue] = dict.fromkeys(_ENDED)
    if turn.result is not None:
        ended |= turn.result.model_dump(mode="json", include=set(_ENDED))
    return {
        "messages": [*openai_messages(messages, definition.instructions)],
        "tools": openai_tools(definition.tools),
        "metadata": {**about, "model": definition.model, **ended},
    }
