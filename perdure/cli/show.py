"""``perdure show``: what a session did."""

from collections.abc import Iterator, Sequence

import click

from perdure.cli.connection import opened_store, run
from perdure.cli.export import chain
from perdure.cli.live import print_json, show
from perdure.cli.render import Line, Tone, clean, money, tally
from perdure.contracts.messages import AssistantMessage, Message, UserMessage
from perdure.contracts.turns import StopReason
from perdure.store import StepRecord, TurnRecord


@click.command("show")
@click.argument("session")
@click.option("--turn", type=click.IntRange(min=1), metavar="N", help="Only turn N.")
@click.option("--json", "as_json", is_flag=True, help="One object, as JSON.")
def command(*, session: str, turn: int | None, as_json: bool) -> None:
    """Show the turns of SESSION: how each ended, its messages, and what each step used.

    With --json the object has session, turns (each with its request, times and result), steps (turn, step,
    finish_reason, usage, cost_usd, and the messages that were new) and messages (those of the steps, in order).
    """

    async def main() -> tuple[Sequence[TurnRecord], Sequence[StepRecord]]:
        async with opened_store() as store:
            await store.session(session)
            # In this order: a turn that begins meanwhile is left out whole.
            turns = await store.turns(session) if turn is None else [await store.turn(session, turn)]
            now = await store.session(session)
            return turns, chain(await store.steps(session), now.tip or now.head)

    turns, conversation = run(main())
    steps = [step for step in conversation if step.turn in {record.turn for record in turns}]
    if as_json:
        about = {"turn", "step", "finish_reason", "usage", "cost_usd", "messages", "summarised"}
        print_json(
            {
                "session": session,
                "turns": [record.model_dump(mode="json") for record in turns],
                "steps": [step.model_dump(mode="json", include=about) for step in steps],
                "messages": [message.model_dump(mode="json") for step in steps for message in step.added],
            }
        )
        return
    for record in turns:
        show(turn_line(record))
        for step in steps:
            if step.turn == record.turn:
                for line in step_lines(step):
                    show(line)


def turn_line(record: TurnRecord) -> Line:
    """One line on a turn and how it ended."""
    head = f"turn {record.turn} · {record.agent} · {record.started_at.astimezone():%Y-%m-%d %H:%M:%S}"
    result = record.result
    if result is None:
        return Line(f"{head} · running", Tone.HEAD)
    why = f" ({result.reason_code}: {clean(' '.join(result.error.split()))})" if result.error else ""
    if result.stopped_by is not None:
        why = f" (stopped by {clean(' '.join(result.stopped_by.split()))})"
    tone = Tone.BAD if result.stop_reason == StopReason.ERROR else Tone.HEAD
    return Line(f"{head} · {result.stop_reason}{why} · {tally(result)}", tone)


def step_lines(step: StepRecord) -> Iterator[Line]:
    """The messages of a step, and what its model call used if it was one."""
    for message in step.added:
        yield from message_lines(message)
    cost = "price unknown" if step.cost_usd is None else money(step.cost_usd)
    used = f"{step.usage.total_tokens:,} tokens · {cost}"
    if step.summarised is not None:
        yield Line(f"compacted · {step.summarised} messages · {used}", Tone.QUIET)
        yield from (Line(f"  {line}", Tone.QUIET) for line in clean(step.messages[0].content).splitlines())
    elif step.messages and isinstance(step.messages[-1], AssistantMessage):
        yield Line(f"step {step.step} · {used}", Tone.QUIET)


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
