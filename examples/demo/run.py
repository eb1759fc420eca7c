"""What ``make demo`` runs: server, worker, scripted model and one job, with a worker killed in the middle of it.

The model is always scripted, also when a provider's key is set: the worker gets an address and a key of the demo's own.
The exit code is 0 only if the demo has shown all it promises.
"""

import argparse
import asyncio
import os
import signal
import sys
import uuid
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from examples.demo.agent import JOURNAL, agent, relative
from examples.demo.stage import DemoError, Stage, own_folder, say, started
from perdure.cli.connection import describe
from perdure.cli.live import Printer
from perdure.cli.render import Tone
from perdure.client import Turn
from perdure.contracts.events import AgentEnd, Envelope, GenerationRetry, GenerationStart, ToolEnd, ToolStart
from perdure.contracts.turns import StopReason

PROMPT = "Look around in this project and write a report."

JOB_SECONDS = 120.0
"""How long the job may take; usually it takes 20 seconds, 8 of them until the lost worker is missed."""

STEP_OF_THE_KILL = 3
REQUESTS_BEFORE_THE_KILL = 4
"""Three answers were asked for, and the second one twice: its first request got a 429."""

REQUESTS = 7
TOOL_CALLS = 5
RETRY_AFTER = 2

INTERRUPTED = 130
"""The exit code after Ctrl+C or SIGTERM before the demo was over, as shells write it."""


async def demo(*, stays: bool) -> None:
    """Run the job, check what it has shown, and keep the UI open for a person at a terminal.

    Raises:
        DemoError: Something that had to be seen was not.
    """
    session = f"demo-{uuid.uuid4().hex[:6]}"
    say("perdure demo: an agent looks around in this checkout with real tools and writes a report.", Tone.HEAD)
    with own_folder(session) as folder:
        async with started(folder) as stage:
            page = f"{stage.server.ui_url}/namespaces/default/workflows/{session}"
            say(f"\nThe job, live, as 'perdure run' shows it; its page in the UI is {page}", Tone.HEAD)
            turn = await stage.client.start(agent.name, PROMPT, session=session)
            try:
                async with asyncio.timeout(JOB_SECONDS):
                    seen = await watch(turn, stage)
            except TimeoutError:
                raise DemoError(f"the job did not end within {JOB_SECONDS:.0f} s; see the logs in {folder}") from None
            say(f"\nThe report, made of what the tools returned: {relative(folder / 'report.md')}", Tone.HEAD)
            for line in lines_of(folder / "report.md"):
                say(f"  {line}".rstrip())
            say("\nWhat this has shown:", Tone.HEAD)
            check(await results(turn, stage, seen, folder))
            say(f"\nThe job in the UI: {page}")
            if stays:
                say("The UI stays until you press Ctrl+C.", Tone.HEAD)
                with suppress(asyncio.CancelledError):  # this is how Ctrl+C ends the demo in good order
                    await asyncio.Event().wait()
                say("\nstopping")
            else:
                say("The UI ends now, with the demo; in a terminal it stays until Ctrl+C.")
    say(how_to_look_back(folder, session))


def how_to_look_back(folder: Path, session: str) -> str:
    """The command that shows the transcript once all has ended."""
    store, perdure = (os.path.relpath(path) for path in (folder / "store.db", Path(sys.executable).parent / "perdure"))
    return f"The transcript remains: PERDURE_STORE_URL=sqlite:///{store} {perdure} show {session}"


def lines_of(path: Path) -> list[str]:
    """The lines of a file; none if it was never written."""
    return path.read_text(encoding="utf-8").strip().splitlines() if path.exists() else []


@dataclass
class Seen:
    """What the events have shown, to be checked at the end."""

    retries: list[GenerationRetry] = field(default_factory=list[GenerationRetry])
    started: list[str] = field(default_factory=list[str])
    errors: list[str] = field(default_factory=list[str])
    end: AgentEnd | None = None

    def note(self, envelope: Envelope) -> None:
        """Take one event into account."""
        match envelope.event:
            case GenerationRetry() as retry:
                self.retries.append(retry)
            case ToolStart() as start:
                self.started.append(start.call_id)
            case ToolEnd(error=error) if error is not None:
                self.errors.append(error.type)
            case AgentEnd() as end:
                self.end = end
            case _:
                pass


async def watch(turn: Turn, stage: Stage) -> Seen:
    """Print the turn as it happens, and replace the worker while the model is asked for its third answer."""
    printer, seen = Printer(as_json=False), Seen()
    async for envelope in turn.events():
        printer.event(envelope)
        sys.stdout.flush()
        seen.note(envelope)
        if isinstance(envelope.event, GenerationStart) and envelope.step == STEP_OF_THE_KILL:
            await stage.provider.wait_for_requests(REQUESTS_BEFORE_THE_KILL)
            say(
                f"\n  … kill -9 {stage.workers.kill()}: the worker is gone, in the middle of a model call", Tone.WARNING
            )
            say("  … starting another", Tone.WARNING)
            say(f"  … worker {await stage.workers.start()} is ready; it gets the call as soon as the lost worker")
            say("    has missed its heartbeats for 8 s\n")
    return seen


class Shown(NamedTuple):
    """One promise of the demo."""

    kept: bool
    text: str


async def results(turn: Turn, stage: Stage, seen: Seen, folder: Path) -> list[Shown]:
    """What the demo promises, checked against the events, the history, the provider and the tools' own journal."""
    together: Counter[int] = Counter()
    workers: set[str] = set()
    async for event in stage.client.temporal.get_workflow_handle(turn.session).fetch_history_events():
        if event.HasField("activity_task_scheduled_event_attributes"):
            together[event.activity_task_scheduled_event_attributes.workflow_task_completed_event_id] += 1
        if event.HasField("activity_task_started_event_attributes"):
            workers.add(event.activity_task_started_event_attributes.identity)
    bodies = [line.split()[0] for line in lines_of(folder / JOURNAL)]
    waits = [retry.wait_seconds for retry in seen.retries if retry.code == "llm.rate_limited"]
    requests = stage.provider.request_count
    result = await turn.result()
    tokens = f"{result.usage.total_tokens:,} tokens"
    return [
        Shown(
            max(together.values(), default=0) == 2, "two tool calls of one answer ran as two activities, in parallel"
        ),
        Shown(
            len(seen.retries) == len(waits) == 1 and min(waits, default=0.0) >= RETRY_AFTER,
            f"the 429 was waited out: {sum(waits):.1f} s, and its Retry-After asked for {RETRY_AFTER} s",
        ),
        Shown(seen.errors == ["FileNotFoundError"], "the missing file was told to the model, which went on without it"),
        Shown(
            len(workers) == len(stage.workers.started) == 2,
            f"worker {stage.workers.started[0]} was killed in a model call, {stage.workers.started[-1]} went on",
        ),
        Shown(
            requests == REQUESTS,
            f"the model got {requests} requests: 5 answered, one refused with the 429, one lost with its worker",
        ),
        Shown(
            len(bodies) == len(set(bodies)) == len(seen.started) == TOOL_CALLS,
            f"no tool ran twice: {len(seen.started)} calls, {len(bodies)} bodies, {len(set(bodies))} of them different",
        ),
        Shown(
            seen.end is not None and result.stop_reason == StopReason.FINISHED,
            f"{result.stop_reason}: {result.steps} steps, {tokens}, and the answer: {result.output}",
        ),
    ]


def check(shown: list[Shown]) -> None:
    """Print what was shown.

    Raises:
        DemoError: Some of it was not.
    """
    for kept, text in shown:
        say(f"{'✓' if kept else '✗'} {text}", Tone.GOOD if kept else Tone.BAD)
    if not all(kept for kept, _ in shown):
        raise DemoError(
            "the demo has not shown all it promises; this is a fault, please report it with the lines above"
        )


async def main(*, stays: bool) -> int:
    """Run the demo until it ends or is asked to stop; whatever it started ends with it."""
    task = asyncio.create_task(demo(stays=stays))

    def stop() -> None:
        if not task.cancelling():  # a second Ctrl+C may not interrupt the cleaning up
            task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    try:
        await task
    except asyncio.CancelledError:
        say("\nstopped before the demo was over")
        return INTERRUPTED
    except Exception as error:
        known = error if isinstance(error, DemoError) else describe(error)
        if known is None:
            raise
        sys.stderr.write(f"demo: {known}\n")
        return 1
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Show a durable job whose worker is killed on the way.")
    parser.add_argument("--exit", action="store_true", help="end at once instead of keeping the UI open")
    at_a_terminal = sys.stdin.isatty() and not os.environ.get("CI")
    sys.exit(asyncio.run(main(stays=at_a_terminal and not parser.parse_args().exit)))
