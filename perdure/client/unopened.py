"""Turns that run in Temporal and that the store does not show: not opened yet, or failing in their own code.

A turn whose own code fails reads no signal and answers no update: whatever caused that, the server tries it again for
ever. From some failures on it says so in a search attribute; a server before 1.31 has none, so turns are described too.
"""

import asyncio
import contextlib
import json
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, cast

import temporalio.client
from temporalio.api.common.v1 import WorkflowExecution as Execution
from temporalio.api.workflowservice.v1 import (
    DescribeWorkflowExecutionResponse,
    GetWorkflowExecutionHistoryRequest,
)
from temporalio.client import WorkflowExecution, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from perdure.client.connect import rpc_errors, unless_missing
from perdure.contracts.names import AGENT_TURN
from perdure.contracts.values import Value
from perdure.store import Store
from perdure.store.errors import NotFoundError
from perdure.store.records import SessionFilter

REPORTED = "TemporalReportedProblems"
"""The server's own search attribute of a workflow whose tasks fail."""

LOOKED_AT = 200
"""Running turns that Temporal is asked about, those that began last; those that it reports come before."""

FAILING = 3
"""An attempt of a workflow's task that shows that others failed: one may have been lost with its worker."""

AT_ONCE = 20
"""Turns that are read at the same time."""


Reported = list[WorkflowExecution] | None
"""The turns whose own code fails, as the server reports them; None if it reports none ever, or was not asked."""


class UnopenedTurn(Value):
    """A turn that runs, and that the store does not know of.

    Attributes:
        turn: The number that it is about to have.
        agent: Empty if its input does not say, or cannot be read; ``tenant`` is None then.
        caller: The session that called it, of a delegate.
        fails: Whether its own code fails.
    """

    session: str
    turn: int
    began: datetime
    request_id: str
    agent: str = ""
    model: str | None = None
    tenant: str | None = None
    caller: str | None = None
    fails: bool = False


async def list_running_turns(
    temporal: temporalio.client.Client, queue: str, *, limit: int = LOOKED_AT, reported: Reported = None
) -> list[WorkflowExecution]:
    """The running turns of a queue, also those that no worker has opened yet: first those that the server reports.

    Args:
        temporal: The client.
        queue: The task queue.
        limit: How many at most of either kind.
        reported: What :func:`list_reported_turns` has just said; without it the server is asked.

    Raises:
        ClientError: The server does not answer.
    """
    if reported is None:
        reported = await list_reported_turns(temporal, queue, limit=limit)
    found = {run.id: run for run in (reported or [])[:limit]}
    with rpc_errors():
        async for run in temporal.list_workflows(_running(queue), limit=limit):
            found.setdefault(run.id, run)
    return list(found.values())


async def list_reported_turns(temporal: temporalio.client.Client, queue: str, *, limit: int = LOOKED_AT) -> Reported:
    """The running turns of a queue whose own code fails, as the server reports them; None if it reports none ever.

    Raises:
        ClientError: The server does not answer.
    """
    with rpc_errors():
        try:
            reported = f"{_running(queue)} AND {REPORTED} IS NOT NULL"
            return [run async for run in temporal.list_workflows(reported, limit=limit)]
        except RPCError as error:
            if error.status is RPCStatusCode.INVALID_ARGUMENT:  # before 1.31 it knows no such attribute
                return None
            raise


def _running(queue: str) -> str:
    return f'WorkflowType = "{AGENT_TURN}" AND ExecutionStatus = "Running" AND TaskQueue = {json.dumps(queue)}'


async def find_unopened(
    temporal: temporalio.client.Client,
    store: Store,
    queue: str,
    *,
    limit: int = LOOKED_AT,
    reported: Reported = None,
) -> list[UnopenedTurn]:
    """The turns of the queue that run and are not open in the store, nor wait for a slot.

    The arguments are those of :func:`list_running_turns`.

    Raises:
        ClientError: The server does not answer.
    """
    running = await list_running_turns(temporal, queue, limit=limit, reported=reported)
    known = {*await store.open_runs(), *(turn.session for turn in await store.queued_turns())}
    runs = [run for run in running if run.id not in known]
    if not runs:
        return []
    names = [run.id for run in runs]
    last = {session.session: session.turn for session, _ in await store.sessions(limit=len(names), only=names)}
    gate = asyncio.Semaphore(AT_ONCE)

    async def read(run: WorkflowExecution) -> UnopenedTurn | None:
        async with gate:
            # Visibility may be behind, and a turn that has ended may still close.
            described = await unless_missing(temporal.get_workflow_handle(run.id, run_id=run.run_id).describe())
            if described is None or described.status != WorkflowExecutionStatus.RUNNING:
                return None
            fails = is_failing(described.raw_description)
            asked = await _read_input(temporal, run.id, run.run_id)
            request_id = _text(asked, "request_id") or run.run_id
            if not fails and await _is_opened(store, run.id, request_id):
                return None
            tenant = asked.get("tenant", "") if asked else await store.tenant_of(run.id)
        delegated = asked.get("delegated")
        return UnopenedTurn(
            session=run.id,
            turn=last.get(run.id, 0) + 1,
            began=run.start_time,
            fails=fails,
            request_id=request_id,
            agent=_text(asked, "agent"),
            model=_text(asked, "model") or None,
            tenant=tenant if isinstance(tenant, str) else None,
            caller=_text(cast("Mapping[str, Any]", delegated), "session") if isinstance(delegated, Mapping) else None,
        )

    return [turn for turn in await asyncio.gather(*map(read, runs)) if turn is not None]


async def tenant_of_unopened(temporal: temporalio.client.Client, session: str) -> str | None:
    """The tenant of a turn that runs, as its input says; for a session that the store does not know.

    Raises:
        ClientError: The server does not answer.
    """
    described = await unless_missing(temporal.get_workflow_handle(session).describe())
    if described is None or described.status != WorkflowExecutionStatus.RUNNING:
        return None
    asked = await _read_input(temporal, session, described.run_id)
    tenant = asked.get("tenant", "") if asked and described.workflow_type == AGENT_TURN else None
    return tenant if isinstance(tenant, str) else None


def is_failing(described: DescribeWorkflowExecutionResponse) -> bool:
    """Whether the workflow's own code fails in each worker that takes it, or ends in none.

    Each signal and update has the server count the attempts anew, but what it has reported stays until a task succeeds.
    """
    reported = described.workflow_execution_info.search_attributes.indexed_fields
    return REPORTED in reported or described.pending_workflow_task.attempt >= FAILING


def is_meant(turn: UnopenedTurn, wanted: SessionFilter, *, states: Collection[object]) -> bool:
    """Whether a filter of sessions means the turn; ``states`` are those that it counts as."""
    for name in ("agent", "tenant", "caller"):
        if wanted.get(name) is not None and wanted.get(name) != getattr(turn, name):
            return False
    if wanted.get("state") is not None and wanted.get("state") not in states:
        return False
    if turn.caller is not None and not wanted.get("delegates", True):
        return False
    if (text := wanted.get("text")) and text.lower() not in turn.session.lower():
        return False
    before = wanted.get("before")
    if before is not None and (turn.began, turn.session) >= before:
        return False
    since = wanted.get("since")
    if since is not None and turn.began < since:
        return False
    return not (wanted.get("stop_reason") or wanted.get("reason_code"))


async def _is_opened(store: Store, session: str, request_id: str) -> bool:
    try:
        return await store.turn_by_request(session, request_id) is not None
    except NotFoundError:
        return False


async def _read_input(temporal: temporalio.client.Client, session: str, run_id: str) -> Mapping[str, Any]:
    """Request of the turn, as it stands in the input; nothing if that cannot be read."""
    request = GetWorkflowExecutionHistoryRequest(
        namespace=temporal.namespace,
        execution=Execution(workflow_id=session, run_id=run_id),
        maximum_page_size=1,
    )
    page = await unless_missing(temporal.workflow_service.get_workflow_execution_history(request, retry=True))
    if page is None or not page.history.events:
        return {}
    started = page.history.events[0].workflow_execution_started_event_attributes
    with contextlib.suppress(Exception):  # whatever is wrong with it is why the turn is looked for
        payloads, codec = list(started.input.payloads), temporal.data_converter.payload_codec
        asked = json.loads((payloads if codec is None else await codec.decode(payloads))[0].data)
        if isinstance(asked, Mapping):
            return cast("Mapping[str, Any]", asked)
    return {}


def _text(asked: Mapping[str, Any], name: str) -> str:
    value = asked.get(name)
    return value if isinstance(value, str) else ""
