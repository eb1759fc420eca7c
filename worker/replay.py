"""``python -m perdure.worker.replay``: replay turns of a cluster against the code that is installed here.

It is what ``perdure replay`` runs, before a rollout: a turn whose history does not replay would stand still on the new
code. Nothing on the cluster is changed. A few histories are held at a time, however many there are.
"""

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import NoReturn

import click
import temporalio.client
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner
from temporalio.workflow import NondeterminismError

from perdure.client.connect import connect, rpc_errors
from perdure.client.errors import ClientError, ServerUnreachableError, TemporalConfigError
from perdure.contracts.errors import PerdureError
from perdure.contracts.names import AGENT_TURN, KNOCK, NOTIFY, SWEEP
from perdure.settings import SettingsError, load_settings
from perdure.workflows.agent_turn import AgentTurn
from perdure.workflows.errands import KnockAtSession, NotifyWebhook, SweepRetention

AT_ONCE = 4
"""Histories that are held and replayed at a time; one may have 50 MB."""

_SAID = re.compile(r'message: "((?:[^"\\]|\\.)*)"')
"""Message of a failure within the SDK's text."""

_EVENT = re.compile(r"\b(?:id|event_id): ?(\d+)|\bevent (?:id )?(\d+)\b")

CHANGED = (
    "the installed code would not go on as this turn has begun; keep the turn on its version, or put the change "
    "behind workflow.patched: see docs/upgrades.md"
)
UNREADABLE = "the history cannot be read here; give this process the settings of the workers, their keys among them"


@dataclass(frozen=True)
class Failed:
    """A history that does not replay.

    Attributes:
        event: The event at which the code parts from the history, where the SDK names it.
        fix: What to do.
    """

    workflow: str
    run: str
    event: int | None
    error: str
    fix: str

    def __str__(self) -> str:
        where = f" at event {self.event}" if self.event is not None else ""
        return f"{self.workflow} (run {self.run}){where}: {self.error}; {self.fix}"


async def executions(
    client: temporalio.client.Client, queue: str, since: datetime, query: str, limit: int
) -> AsyncIterator[temporalio.client.WorkflowExecution]:
    """Turns and errands of the task queue: those that run, then those that have closed since, newest first."""
    types = ", ".join(f'"{name}"' for name in (AGENT_TURN, NOTIFY, KNOCK, SWEEP))
    ours = f'TaskQueue = "{queue}" AND WorkflowType IN ({types})' + (f" AND ({query})" if query else "")
    left = limit
    for state in ('ExecutionStatus = "Running"', f'CloseTime >= "{since.isoformat()}"'):
        if left <= 0:
            return
        with rpc_errors():
            async for execution in client.list_workflows(f"{ours} AND {state}", limit=left):
                left -= 1
                yield execution


async def replay(
    client: temporalio.client.Client,
    found: AsyncIterator[temporalio.client.WorkflowExecution],
    tell: Callable[[Failed], None],
) -> tuple[int, list[Failed]]:
    """Replay each; how many did, and those that did not, each of which is told at once."""
    replayer = Replayer(
        workflows=[AgentTurn, NotifyWebhook, KnockAtSession, SweepRetention],
        namespace=client.namespace,
        data_converter=client.data_converter,
        workflow_runner=UnsandboxedWorkflowRunner(),
        runtime=client.service_client.config.runtime,  # which writes nothing of its own beside our lines
    )
    passed, failed, taking = 0, list[Failed](), asyncio.Lock()

    async def work() -> None:
        nonlocal passed
        while True:
            async with taking:
                execution = await anext(found, None)
            if execution is None:
                return
            outcome = await _replay_execution(client, replayer, execution)
            if isinstance(outcome, Failed):
                failed.append(outcome)
                tell(outcome)
            else:
                passed += outcome

    await asyncio.gather(*(work() for _ in range(AT_ONCE)))
    return passed, failed


async def _replay_execution(
    client: temporalio.client.Client, replayer: Replayer, execution: temporalio.client.WorkflowExecution
) -> Failed | bool:
    """Whether there was a history, which replays; or why it does not."""
    handle = client.get_workflow_handle(execution.id, run_id=execution.run_id)
    try:
        history = await handle.fetch_history()
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:  # its retention has ended since it was listed
            return False
        with rpc_errors():
            raise
    result = await replayer.replay_workflow(history, raise_on_replay_failure=False)
    if result.replay_failure is None:
        return True
    text = str(result.replay_failure)
    said = _SAID.search(text)
    words = " ".join((said[1].replace('\\"', '"') if said else text).split())[:500].rstrip(".")
    event = _EVENT.search(text)
    changed = isinstance(result.replay_failure, NondeterminismError)
    return Failed(
        workflow=execution.id,
        run=execution.run_id,
        event=int(event[1] or event[2]) if event else None,
        error=words,
        fix=CHANGED if changed else UNREADABLE,
    )


async def _run(query: str, limit: int, since: timedelta, *, as_json: bool) -> int:
    settings = load_settings()
    client = await connect()
    found = executions(client, settings.task_queue, datetime.now(UTC) - since, query, limit)
    tell: Callable[[Failed], None] = (lambda _: None) if as_json else click.echo
    passed, failed = await replay(client, found, tell)
    if as_json:
        click.echo(json.dumps({"replayed": passed, "failed": [asdict(failure) for failure in failed]}))
    else:
        click.echo(f"{passed} histories replay, {len(failed)} do not")
    return 1 if failed else 0


@click.command()
@click.option("--query", default="")
@click.option("--limit", type=int, default=1000)
@click.option("--since", type=float, default=24.0)
@click.option("--json", "as_json", is_flag=True)
def main(*, query: str, limit: int, since: float, as_json: bool) -> None:
    """Replay, and exit with 1 if a history does not."""
    try:
        code = asyncio.run(_run(query, limit, timedelta(hours=since), as_json=as_json))
    except (SettingsError, TemporalConfigError) as error:
        _fail(error, 2)
    except ServerUnreachableError as error:
        _fail(error, 8)
    except (ClientError, PerdureError) as error:
        _fail(error, 1)
    else:
        _leave(code)


def _fail(error: Exception, code: int) -> NoReturn:
    click.echo(f"perdure: {error}", err=True)
    _leave(code)


def _leave(code: int) -> NoReturn:
    """End at once: threads of the SDK that call into an interpreter which is ending abort one process of ten."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
