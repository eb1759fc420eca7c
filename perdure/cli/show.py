"""``perdure show``: what a session did."""

from collections.abc import Iterator, Sequence

import click

from perdure.cli.connection import opened_store, run
from perdure.cli.live import print_json, show
from perdure.cli.render import Line, Tone, clean, tally
from perdure.contracts.messages import AssistantMessage, Message, UserMessage
from perdure.contracts.turns import StopReason
from perdure.store import TurnRecord


@click.command("show")
@click.argument("session")
@click.option("--turn", type=click.IntRange(min=1), metavar="N", help="Only turn N.")
@click.option("--json", "as_json", is_flag=True, help="One object, as JSON.")
def command(*, session: str, turn: int | None, as_json: bool) -> None:
    """Show the turns of SESSION with their results, and the conversation."""

    async def main() -> tuple[Sequence[TurnRecord], Sequence[Message]]:
        async with opened_store() as store:
            await store.session(session)
            turns = await store.turns(session) if turn is None else [await store.turn(session, turn)]
            return turns, await store.transcript(session, turn=turn)

    turns, messages = run(main())
    if as_json:
        print_json(
            {
                "session": session,
                "turns": [record.model_dump(mode="json") for record in turns],
                "messages": [message.model_dump(mode="json") for message in messages],
            }
        )
        return
    for record in turns:
        show(turn_line(record))
    for message in messages:
        for line in message_lines(message):
            show(line)


def turn_line(record: TurnRecord) -> Line:
    """One line on a turn and how it ended."""
    head = f"turn {record.turn} · {record.agent} · {record.started_at:%Y-%m-%d %H:%M:%S}"
    result = record.result
    if result is None:
        return Line(f"{head} · running", Tone.HEAD)
    why = f" ({result.reason_code}: {clean(' '.join(result.error.split()))})" if result.error else ""
    tone = Tone.BAD if result.stop_reason == StopReason.ERROR else Tone.HEAD
    return Line(f"{head} · {result.stop_reason}{why} · {tally(result)}", tone)


def message_lines(message: Message) -> Iterator[Line]:
    """A message of the conversation as lines."""
    text = clean(message.content)
    if isinstance(message, UserMessage):
        yield from (Line(f"> {line}", Tone.HEAD) for line in text.splitlines())
    elif isinstance(message, AssistantMessage):
        yield from (Line(line) for line in text.strip().splitlines())
        for call in message.tool_calls:
            yield Line(clean(f"→ {call.name} {' '.join(call.arguments.split())}"))
    else:
        mark, tone = ("✗", Tone.BAD) if message.error is not None else ("✓", Tone.GOOD)
        yield Line(f"{mark} {message.name}", tone)
        yield from (Line(f"  {line}", Tone.QUIET) for line in text.splitlines())
