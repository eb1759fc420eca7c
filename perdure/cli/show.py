"""``perdure show``, ``export`` and ``artifact``: print what the store has of a session, for people and for programs.

Long, because the lines of a transcript and its formats for other programs are made of the same steps.
"""

import asyncio
import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import click

from perdure.cli.asking import request_lines
from perdure.cli.connection import open_store, views_of, with_store
from perdure.cli.errors import CliError, ExitCode, MistakeError
from perdure.cli.options import only_types, refuse_types
from perdure.cli.output import print_json, show, show_paged
from perdure.cli.render import (
    Line,
    Tone,
    clean,
    cut,
    duration,
    format_count,
    format_used,
    part_lines,
    tally,
    title_of,
    to_one_line,
    todo_lines,
)
from perdure.cli.waits import read_known_waits
from perdure.client import ClientError, TurnWait
from perdure.client.export import EXPORTS, export, path_to
from perdure.client.read import ToolMetrics, read_events, read_tool_metrics
from perdure.client.views import PATIENCE, TurnView, Views
from perdure.contracts.checkpoints import Checkpoint, CheckpointStatus
from perdure.contracts.events import GenerationEnd, ToolEnd, ToolError
from perdure.contracts.input_requests import InputRequest
from perdure.contracts.messages import AssistantMessage, Message, ToolMessage, UserMessage
from perdure.contracts.turns import RunState, StopReason
from perdure.store import Artifact, NotFoundError, StepRecord, Store


@click.command("export")
@click.argument("session")
@click.option("--format", "to", type=click.Choice(EXPORTS), required=True, help="Format to write; explained above.")
@click.option(
    "--turn", type=click.IntRange(min=1), metavar="N", help="Only turn N; with openai, everything up to its end."
)
@only_types
def export_command(*, session: str, to: str, turn: int | None, types: tuple[str, ...]) -> None:
    """Write the transcript of SESSION to standard output, as JSON.

    \b
    openai  the conversation as one array of OpenAI chat messages, system prompt first
    jsonl   one line for each turn: its messages after the system prompt, its tools, how it ended
    chat    the conversation as one training row: roles and texts only
    turns   one training row for each answer: system prompt, messages before it, answer, tool calls
    events  the event log, one line for each event

    Arguments that are masked in the transcript stay masked.
    """  # noqa: D301  # \b is click's mark of lines that stay as they are
    if to != "events":
        refuse_types(types, f"--format {to}")

    async def main(store: Store) -> None:
        async for line in export(store, session, to, turn, types):
            print_json(line)

    with_store(main)


SHORT = 100
"""Columns of a message that ``--short`` shows."""

_OF_TURN = {"session", "turn", "request_id", "agent", "definition", "started_at", "ended_at", "result", "closure"}
"""Fields of a turn in the JSON object."""


@click.command("show")
@click.argument("session")
@click.option("--turn", type=click.IntRange(min=1), metavar="N", help="Only turn N.")
@click.option(
    "--checkpoints",
    "as_checkpoints",
    is_flag=True,
    help="List the steps that you can resume or fork from, including those that a rewind left behind.",
)
@click.option("--short", is_flag=True, help="Show each message in one line.")
@click.option("--traceback", "tracebacks", is_flag=True, help="Show the traceback below each error of a tool.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def show_command(
    *, session: str, turn: int | None, as_checkpoints: bool, short: bool, tracebacks: bool, as_json: bool
) -> None:
    """Show the turns of SESSION: messages, tokens and cost of each step, how each turn ended, what waits for a person.

    On a terminal, output longer than the screen goes through the pager ($PAGER).

    With --json the object has session, turns (each with its request, times, result, job_status and trace_id), steps
    (turn, step, finish_reason, usage, cost_usd, and the step's new messages), messages (those of all steps, in order),
    requests (open input requests), waits_for (why the open turn stands still, or null) and tool_metrics (count, errors,
    seconds and success_rate of the tool calls, in all and for each tool). --traceback adds tracebacks, by call id.
    With --checkpoints the object has session and checkpoints.
    """
    if as_checkpoints:
        _show_checkpoints(session, turn, as_json=as_json)
        return
    shown = asyncio.run(_read(session, turn, as_json=as_json, tracebacks=tracebacks))
    if as_json:
        about = {"turn", "step", "finish_reason", "usage", "cost_usd", "messages", "summarised"}
        print_json(
            {
                "session": session,
                "turns": [
                    {
                        **view.model_dump(mode="json", include=_OF_TURN),
                        "job_status": view.job_status,
                        "trace_id": view.trace_id,
                    }
                    for view in shown.turns
                ],
                "steps": [step.model_dump(mode="json", include=about) for step in shown.steps],
                "messages": [message.model_dump(mode="json") for step in shown.steps for message in step.added],
                "requests": [request.model_dump(mode="json") for request in shown.requests],
                "waits_for": shown.wait.model_dump(mode="json") if shown.wait is not None else None,
                "tool_metrics": shown.metrics.model_dump(mode="json"),
                **({"tracebacks": dict(shown.tracebacks)} if tracebacks else {}),
            }
        )
        return
    show_paged(list(session_lines(shown, short=short)))


class Shown(NamedTuple):
    """Contents of a session to show.

    Attributes:
        origin: The step of another session that this one was forked from.
        wait: Why the open turn stands still, if it does, or the next one, which waits for a slot.
        seconds: How long tool calls took, by their ids, and model calls, by turn and step.
        tracebacks: Where tools raised exceptions, by the ids of their calls; as far as they are asked for.
    """

    session: str
    turns: Sequence[TurnView]
    steps: Sequence[StepRecord]
    origin: StepRecord | None = None
    requests: Sequence[InputRequest] = ()
    wait: TurnWait | None = None
    metrics: ToolMetrics = ToolMetrics()
    seconds: Mapping[object, float] = {}
    tracebacks: Mapping[str, str] = {}


async def _read(session: str, turn: int | None, *, as_json: bool, tracebacks: bool) -> Shown:
    async with open_store() as store:
        views = views_of(store)
        try:
            await views.check_opened(session)
        except NotFoundError as error:
            # A turn that no worker has opened yet is in Temporal alone.
            with contextlib.suppress(ClientError, TimeoutError):
                return await _read_unopened(views, session, turn, error)
            raise
        # In this order: a turn that begins meanwhile is left out whole.
        if turn is None:
            turns = await views.stored_turn_views(session, traces=True)
        else:
            turns = [await views.stored_turn_view(session, turn)]
        now = await views.stored_session_view(session)
        conversation = path_to({step.id: step for step in await store.steps(session)}, now.tip)
        parent = conversation[0].parent if conversation else None
        numbers = {view.turn for view in turns}
        is_open, is_queued = now.open_turn in numbers, turn is None and now.queued is not None
        is_last = turn is None or now.open_turn == turn
        return Shown(
            session=session,
            turns=turns,
            steps=[step for step in conversation if step.turn in numbers],
            origin=await store.step(parent) if parent is not None and turn is None else None,
            requests=[request for request in now.requests if request.turn in numbers],
            wait=await _wait(views, session, is_open=is_open or is_queued) if is_last else None,
            metrics=await read_tool_metrics(store, session, turn, detailed=True) if as_json else ToolMetrics(),
            seconds={} if as_json else await _seconds(store, session),
            tracebacks=await _tracebacks(store, session, conversation) if tracebacks else {},
        )


async def _wait(views: Views, session: str, *, is_open: bool) -> TurnWait | None:
    """Reason the open turn stands still, or the next one, which no worker may have opened."""
    if is_open:
        return (await read_known_waits(views, [session])).get(session)
    with contextlib.suppress(ClientError):
        return (await views.waits_in_time([session])).get(session)
    return None


async def _read_unopened(views: Views, session: str, turn: int | None, missing: NotFoundError) -> Shown:
    """View of a session without turns, by Temporal: why its first one stands still, or was refused.

    Raises:
        CliError: A worker refused its request.
        NotFoundError: The first turn goes on.
        ClientError: There is none, or the server does not answer.
    """
    async with asyncio.timeout(PATIENCE.total_seconds()):
        view = await views.unopened_session_view(session, missing)
    if turn is None and view.waits_for is not None:
        return Shown(session=session, turns=(), steps=(), wait=view.waits_for)
    if view.refusal is not None and view.refusal.error:
        raise CliError(clean(f"no turn of session {session!r} was opened: {view.refusal.error}"), ExitCode.ERROR)
    raise missing


async def _tracebacks(store: Store, session: str, steps: Sequence[StepRecord]) -> dict[str, str]:
    failed = [
        (step.turn, message.call_id)
        for step in steps
        for message in step.added
        if isinstance(message, ToolMessage) and message.error is not None
    ]
    keys = [f"{turn}/{call_id}/{kind}" for turn, call_id in failed for kind in ("tool_end", "tool_error")]
    found = [envelope.event for envelope in await store.events_by_key(session, keys)] if keys else []
    ended = [event for event in found if isinstance(event, ToolEnd | ToolError)]
    return {event.call_id: event.traceback for event in ended if event.traceback is not None}


async def _seconds(store: Store, session: str) -> dict[object, float]:
    found: dict[object, float] = {}
    async for envelope in read_events(store, session):
        if isinstance(envelope.event, ToolEnd):
            found[envelope.event.call_id] = envelope.event.seconds
        elif isinstance(envelope.event, GenerationEnd):
            found[envelope.turn, envelope.step] = envelope.event.seconds
    return found


def session_lines(shown: Shown, *, short: bool = False) -> Iterator[Line]:
    """The turns with their steps, todos and what waits for a person; ``short`` has a line for each message."""
    if shown.origin is not None:
        where = f"{shown.origin.session}, turn {shown.origin.turn}, step {shown.origin.step}"
        yield Line(f"forked from {where}", Tone.HEAD)
    for view in shown.turns:
        of_turn = [step for step in shown.steps if step.turn == view.turn]
        waiting = [request for request in shown.requests if view is shown.turns[-1]]
        yield turn_line(view, left_behind=not of_turn, waits=bool(waiting))
        if view.trace_id is not None:
            yield Line(f"trace {view.trace_id}", Tone.QUIET)
        for step in of_turn:
            yield from step_lines(step, shown.seconds, short=short, tracebacks=shown.tracebacks)
        yield from todo_lines(view.result.todos if view.result is not None else ())
        for request in waiting:
            yield from request_lines(shown.session, request)
    if shown.wait is not None and (shown.wait.is_stuck or not shown.requests):
        begun = "" if shown.turns else f"{shown.session} · not opened yet · "
        yield Line(f"{begun}{shown.wait.sentence(datetime.now(UTC))}", Tone.WARNING)


def _show_checkpoints(session: str, turn: int | None, *, as_json: bool) -> None:
    async def main(store: Store) -> list[Checkpoint]:
        if turn is not None:
            await views_of(store).check_opened(session, turn)
        return [checkpoint for checkpoint in await store.checkpoints(session) if turn in {None, checkpoint.turn}]

    found = with_store(main)
    if as_json:
        print_json({"session": session, "checkpoints": [checkpoint.model_dump(mode="json") for checkpoint in found]})
        return
    for checkpoint in found:
        show(checkpoint_line(checkpoint))


def checkpoint_line(checkpoint: Checkpoint) -> Line:
    """One line on a checkpoint: where it is, how it stands, and how full the context is."""
    used = f" · {checkpoint.context_used:.1%} of the context" if checkpoint.context_used is not None else ""
    pending = f" · {len(checkpoint.pending_calls)} calls pending" if checkpoint.pending_calls else ""
    why = f" ({checkpoint.error.code})" if checkpoint.error is not None else ""
    tone = Tone.BAD if checkpoint.status is CheckpointStatus.STOPPED_BY_ERROR else Tone.PLAIN
    where = f"turn {checkpoint.turn} · step {checkpoint.step} · {checkpoint.status}{why}"
    size = f"{format_count(checkpoint.messages, 'message')} · {checkpoint.context_tokens:,} tokens{used}"
    return Line(f"{where} · {size}{pending}", tone)


def turn_line(view: TurnView, *, left_behind: bool = False, waits: bool = False) -> Line:
    """One line on a turn and how it ended; one that a rewind left behind has no place in the conversation."""
    head = f"turn {view.turn} · {view.agent}"
    if view.started_at is not None:
        head = f"{head} · {view.started_at.astimezone():%Y-%m-%d %H:%M:%S}"
        if view.ended_at is not None:
            head = f"{head} · {duration((view.ended_at - view.started_at).total_seconds())}"
    result = view.result
    if result is None:
        return Line(f"{head} · {RunState.WAITING_FOR_INPUT if waits else RunState.RUNNING}", Tone.HEAD)
    why = f" ({result.reason_code}: {to_one_line(result.error)})" if result.error else ""
    if result.stopped_by is not None:
        why = f" (stopped by {to_one_line(result.stopped_by)})"
    tone = Tone.BAD if result.stop_reason == StopReason.ERROR else Tone.HEAD
    behind = " · left behind by a rewind" if left_behind else ""
    return Line(f"{head} · {result.stop_reason}{why} · {tally(result)}{behind}", tone)


def step_lines(
    step: StepRecord,
    seconds: Mapping[object, float],
    *,
    short: bool = False,
    tracebacks: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Line]:
    """The messages of a step, and what its model call used if it was one."""
    for message in step.added:
        yield from message_lines(message, seconds, short=short)
        if isinstance(message, ToolMessage) and (trace := tracebacks.get(message.call_id)) is not None:
            yield from (Line(f"  {line}", Tone.QUIET) for line in clean(trace).splitlines())
    used = format_used(step.usage, step.cost_usd)
    if step.summarised is not None:
        yield Line(f"compacted · {step.summarised} messages · {used}", Tone.QUIET)
        yield from (Line(f"  {line}", Tone.QUIET) for line in _rows(step.messages[0].content, short=short))
    elif step.messages and isinstance(step.messages[-1], AssistantMessage):
        yield Line(f"step {step.step}{_format_seconds(seconds, (step.turn, step.step))} · {used}", Tone.QUIET)


def message_lines(message: Message, seconds: Mapping[object, float], *, short: bool = False) -> Iterator[Line]:
    """A message of the conversation as lines; one for each text and each call if it is to be ``short``."""
    if isinstance(message, UserMessage):
        yield from (Line(f"> {line}", Tone.HEAD) for line in _rows(message.content, short=short))
        yield from part_lines(message.parts)
    elif isinstance(message, AssistantMessage):
        yield from (Line(line) for line in _rows(message.content.strip(), short=short))
        for call in message.tool_calls:
            (row,) = _rows(" ".join(call.arguments.split()) or "{}", short=short)
            yield Line(clean(f"→ {call.name} {row}"))
    else:
        mark, tone = ("✗", Tone.BAD) if message.error is not None else ("✓", Tone.GOOD)
        where = f" · {message.delegate}" if message.delegate is not None else ""
        name = message.name if message.error is None else title_of(message.error)
        head = f"{mark} {name}{where}{_format_seconds(seconds, message.call_id)}"
        if short:
            yield Line(" · ".join([head, *_rows(message.content, short=True)]), tone)
            return
        yield Line(head, tone)
        yield from (Line(f"  {line}", Tone.QUIET) for line in _rows(message.content, short=False))


def _format_seconds(seconds: Mapping[object, float], key: object) -> str:
    return f" · {duration(seconds[key])}" if key in seconds else ""


def _rows(text: str, *, short: bool) -> list[str]:
    rows = clean(text).splitlines()
    return [cut(" ".join(text.split()), SHORT)] if short and rows else rows


@click.command("artifact")
@click.argument("session")
@click.argument("handle", metavar="ID")
@click.option(
    "--output",
    "-o",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write to this file instead.",
)
def artifact_command(*, session: str, handle: str, output: Path | None) -> None:
    """Write artifact ID of SESSION to standard output, byte for byte; on a terminal, without control characters.

    Artifacts are images, files, and tool outputs that are too long for the conversation. 'perdure show SESSION' and the
    tool_end events name their ids.
    """

    async def main(store: Store) -> Artifact:
        await views_of(store).check_opened(session)
        try:
            return await store.artifact(handle, session=session)
        except NotFoundError as error:
            raise MistakeError(f"{error}; 'perdure show {session}' lists the ids") from None

    found = with_store(main)
    if output is None:
        # A terminal gets text only, without the characters that steer it.
        if not is_terminal():
            click.echo(found.data, nl=False)
        elif found.is_binary:
            what = f"{found.id} is {found.content_type}, {len(found.data):,} bytes"
            raise MistakeError(f"{what}; name a file with --output, or redirect it")
        else:
            click.echo(clean(found.data.decode(errors="replace")), nl=False)
        return
    try:
        output.write_bytes(found.data)
    except OSError as error:
        raise MistakeError(f"{output} cannot be written: {error.strerror}; name another file") from error


def is_terminal() -> bool:
    """Whether somebody would look at the bytes."""
    return sys.stdout.isatty()
