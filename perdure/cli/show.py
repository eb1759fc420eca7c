"""``perdure show``: what a session did."""

from collections.abc import Iterator, Sequence

import click

from perdure.cli.connection import opened_store, run
from perdure.cli.export import chain
from perdure.cli.live import print_json, show
from perdure.cli.render import Line, Tone, clean, money, tally, todo_lines
from perdure.client.tool_metrics import ToolMetrics, read_tool_metrics
from perdure.contracts.checkpoints import Checkpoint, CheckpointStatus
from perdure.contracts.messages import AssistantMessage, Message, UserMessage
from perdure.contracts.turns import StopReason
from perdure.store import StepRecord, TurnRecord


@click.command("show")
@click.argument("session")
@click.option("--turn", type=click.IntRange(min=1), metavar="N", help="Only turn N.")
@click.option(
    "--checkpoints",
    "as_checkpoints",
    is_flag=True,
    help="The steps as places to resume or fork from, also those that a rewind left behind.",
)
@click.option("--json", "as_json", is_flag=True, help="One object, as JSON.")
def command(*, session: str, turn: int | None, as_checkpoints: bool, as_json: bool) -> None:
    """Show the turns of SESSION: how each ended, its messages, and what each step used.

    With --json the object has session, turns (each with its request, times, result and job_status), steps (turn, step,
    finish_reason, usage, cost_usd, and the messages that were new), messages (those of the steps, in order) and
    tool_metrics (count, errors, seconds and success_rate of the tool calls, and the same of each tool).
    With --checkpoints it has session and checkpoints.
    """
    if as_checkpoints:
        _show_checkpoints(session, turn, as_json=as_json)
        return

    async def main() -> tuple[Sequence[TurnRecord], Sequence[StepRecord], StepRecord | None, ToolMetrics]:
        async with opened_store() as store:
            await store.session(session)
            # In this order: a turn that begins meanwhile is left out whole.
            turns = await store.turns(session) if turn is None else [await store.turn(session, turn)]
            now = await store.session(session)
            conversation = chain({step.id: step for step in await store.steps(session)}, now.tip or now.head)
            parent = conversation[0].parent if conversation else None
            origin = None if parent is None else await store.step(parent)
            metrics = await read_tool_metrics(store, session, turn, detailed=True) if as_json else ToolMetrics()
            return turns, conversation, origin, metrics

    turns, conversation, origin, metrics = run(main())
    steps = [step for step in conversation if step.turn in {record.turn for record in turns}]
    if as_json:
        about = {"turn", "step", "finish_reason", "usage", "cost_usd", "messages", "summarised"}
        print_json(
            {
                "session": session,
                "turns": [
                    {**record.model_dump(mode="json", exclude={"last_step"}), "job_status": record.job_status}
                    for record in turns
                ],
                "steps": [step.model_dump(mode="json", include=about) for step in steps],
                "messages": [message.model_dump(mode="json") for step in steps for message in step.added],
                "tool_metrics": metrics.model_dump(mode="json"),
            }
        )
        return
    if origin is not None and turn is None:
        show(Line(f"forked from {origin.session}, turn {origin.turn}, step {origin.step}", Tone.HEAD))
    for record in turns:
        of_turn = [step for step in steps if step.turn == record.turn]
        show(turn_line(record, left_behind=not of_turn))
        for step in of_turn:
            for line in step_lines(step):
                show(line)
        for line in todo_lines(record.result.todos if record.result is not None else ()):
            show(line)


def _show_checkpoints(session: str, turn: int | None, *, as_json: bool) -> None:
    async def main() -> list[Checkpoint]:
        async with opened_store() as store:
            if turn is not None:
                await store.turn(session, turn)
            return [one for one in await store.checkpoints(session) if turn in {None, one.turn}]

    found = run(main())
    if as_json:
        print_json({"session": session, "checkpoints": [one.model_dump(mode="json") for one in found]})
        return
    for one in found:
        show(checkpoint_line(one))


def checkpoint_line(one: Checkpoint) -> Line:
    """One line on a checkpoint: where it is, how it stands, and how full the context is."""
    used = f" · {one.context_used:.1%} of the context" if one.context_used is not None else ""
    pending = f" · {len(one.pending_calls)} calls pending" if one.pending_calls else ""
    why = f" ({one.error.code})" if one.error is not None else ""
    tone = Tone.BAD if one.status is CheckpointStatus.STOPPED_BY_ERROR else Tone.PLAIN
    where = f"turn {one.turn} · step {one.step} · {one.status}{why}"
    messages = f"{one.messages} message{'' if one.messages == 1 else 's'}"
    return Line(f"{where} · {messages} · {one.context_tokens:,} tokens{used}{pending}", tone)


def turn_line(record: TurnRecord, *, left_behind: bool = False) -> Line:
    """One line on a turn and how it ended; one that a rewind left behind has no place in the conversation."""
    head = f"turn {record.turn} · {record.agent} · {record.started_at.astimezone():%Y-%m-%d %H:%M:%S}"
    result = record.result
    if result is None:
        return Line(f"{head} · running", Tone.HEAD)
    why = f" ({result.reason_code}: {clean(' '.join(result.error.split()))})" if result.error else ""
    if result.stopped_by is not None:
        why = f" (stopped by {clean(' '.join(result.stopped_by.split()))})"
    tone = Tone.BAD if result.stop_reason == StopReason.ERROR else Tone.HEAD
    behind = " · left behind by a rewind" if left_behind else ""
    return Line(f"{head} · {result.stop_reason}{why} · {tally(result)}{behind}", tone)


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
        where = f" · {message.delegate}" if message.delegate is not None else ""
        yield Line(f"{mark} {message.name}{where}", tone)
        yield from (Line(f"  {line}", Tone.QUIET) for line in text.splitlines())
