"""Compose a worker from its parts, run it until it is told to stop, and take it down in order."""

import asyncio
import dataclasses
import gc
import logging
import os
import signal
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import temporalio.api.operatorservice.v1 as operator
import temporalio.client
from temporalio import activity
from temporalio.common import RawValue
from temporalio.service import RPCError
from temporalio.worker import Worker, WorkflowRunner

from perdure.activities.agents import Definitions, TurnContexts
from perdure.activities.compact import CompactActivity
from perdure.activities.conversations import Conversations
from perdure.activities.delegates import CollectActivity
from perdure.activities.generate import GenerateActivity
from perdure.activities.hooks import HooksActivity
from perdure.activities.input_requests import PeopleActivity
from perdure.activities.litellm_call import warm_up
from perdure.activities.mcp.servers import McpServers
from perdure.activities.metrics import Metrics, PeopleCollector
from perdure.activities.model_attempt import Attempts
from perdure.activities.notifications import Notifications
from perdure.activities.pace import Gates
from perdure.activities.recordings import Recordings
from perdure.activities.schedules import ScheduleActivity, Send
from perdure.activities.secrets import secret_values
from perdure.activities.tool_runner import Bodies
from perdure.activities.tools import ToolActivities
from perdure.activities.turns import TurnActivities, close_as_canceled
from perdure.activities.webhooks import WebhookActivity
from perdure.agents.agent import Agent
from perdure.agents.data import InlineAgents, Registered
from perdure.client.connect import connect
from perdure.client.errors import ClientError
from perdure.client.read import closures, people_waited_for
from perdure.client.worker_stores import WorkerStore, store_queue, worker_stores
from perdure.contracts.generations import Compact, Compacted, Generate, Generation
from perdure.contracts.hooks import HookResults, RunHooks
from perdure.contracts.input_requests import AskPeople
from perdure.contracts.names import SearchAttribute
from perdure.contracts.recordings import RecordedDecisions
from perdure.contracts.schedules import Knock, Knocked
from perdure.contracts.tools import CollectDelegates, ToolOutcome
from perdure.contracts.turns import CommitTurn, OpenedTurn, OpenTurn, TurnResult
from perdure.contracts.webhooks import Egress, Notify
from perdure.settings import Settings
from perdure.store import Store
from perdure.store.records import Closure, PeopleWaitedFor
from perdure.worker.knocks import sender
from perdure.worker.sandbox import production_runner
from perdure.worker.telemetry import Health, SdkMetrics, bind, metrics_page, registry, serve_pages
from perdure.workflows.agent_turn import AgentTurn
from perdure.workflows.errands import KnockAtSession, NotifyWebhook

STICKY = timedelta(seconds=2)
"""How long a turn's next task waits for the worker that has it in memory before any worker may take it."""

HEARTBEAT_THROTTLE = timedelta(milliseconds=500)
"""Beats are sent at most so often; the SDK's default, a share of the time-out, would delay every cancel."""

WAITING_SHARE = 2
"""One in this many activities of a worker may be a call that waits for its turn at a limited key."""

VISIBILITY_PATIENCE = 2.0
"""Seconds that a scrape waits for what Temporal's visibility says."""

logger = logging.getLogger("perdure.worker")


class SearchAttributesError(Exception):
    """The cluster does not know our search attributes, so turns that set them would hang."""


@dataclass(frozen=True)
class Parts:
    """What the activities of one worker share."""

    store: Store
    agents: Mapping[str, Agent]
    metrics: Metrics
    bodies: Bodies
    secrets: frozenset[str]
    search_attributes: bool
    fail_workflows: bool = False
    mcp: McpServers = field(default_factory=lambda: McpServers((), frozenset()))
    inline: InlineAgents | None = None
    """What is made of agents in start requests; None refuses them."""
    egress: Egress = field(default_factory=Egress)
    """Which addresses webhooks may have."""
    send: Send | None = None
    """Sends what schedules say to sessions; None where no turn is on a server."""


@dataclass(frozen=True)
class Activities:
    """The activities of one worker, by their names in :class:`perdure.contracts.names.Activity`."""

    open_turn: Callable[[OpenTurn], Awaitable[OpenedTurn]]
    commit_turn: Callable[[CommitTurn], Awaitable[TurnResult]]
    generate: Callable[[Generate], Awaitable[Generation]]
    compact: Callable[[Compact], Awaitable[Compacted]]
    run_hooks: Callable[[RunHooks], Awaitable[HookResults]]
    ask: Callable[[AskPeople], Awaitable[RecordedDecisions | None]]
    collect_delegates: Callable[[CollectDelegates], Awaitable[ToolOutcome]]
    deliver_webhook: Callable[[Notify], Awaitable[int]]
    send_scheduled: Callable[[Knock], Awaitable[Knocked]]
    call_tool: Callable[[Sequence[RawValue]], Awaitable[ToolOutcome]]


def make_activities(
    parts: Parts, recordings: Recordings, gates: Gates, monotonic: Callable[[], float] = time.monotonic
) -> Activities:
    """The activities over these parts; the one place that composes them."""
    definitions, contexts = Definitions(parts.store), TurnContexts(parts.store, os.environ)
    notifications = Notifications(parts.store, on=recordings.mode != "replay")
    turns = TurnActivities(
        store=parts.store,
        agents=parts.agents,
        inline=parts.inline,
        definitions=definitions,
        recordings=recordings,
        mcp=parts.mcp,
        metrics=parts.metrics,
        search_attributes=parts.search_attributes,
        fail_workflows=parts.fail_workflows,
        bodies=parts.bodies,
        contexts=contexts,
        notifications=notifications,
        secrets=parts.secrets,
    )
    attempts = Attempts(
        store=parts.store,
        metrics=parts.metrics,
        recordings=recordings,
        gates=gates,
        secrets=parts.secrets,
        monotonic=monotonic,
    )
    generate = GenerateActivity(
        store=parts.store,
        agents=parts.agents,
        definitions=definitions,
        conversations=Conversations(parts.store),
        attempts=attempts,
        metrics=parts.metrics,
        secrets=parts.secrets,
    )
    reacting = HooksActivity(
        store=parts.store,
        agents=parts.agents,
        definitions=definitions,
        bodies=parts.bodies,
        contexts=contexts,
        secrets=parts.secrets,
    )
    collecting = CollectActivity(store=parts.store, definitions=definitions, delegations=turns.delegations)
    return Activities(
        open_turn=turns.open_turn,
        commit_turn=turns.commit_turn,
        generate=generate.generate,
        compact=CompactActivity(store=parts.store, definitions=definitions, attempts=attempts).compact,
        run_hooks=reacting.run_hooks,
        ask=PeopleActivity(parts.store, recordings, notifications).ask,
        collect_delegates=collecting.collect_delegates,
        deliver_webhook=WebhookActivity(parts.store, parts.egress).deliver_webhook,
        send_scheduled=ScheduleActivity(parts.store, parts.send).send_scheduled,
        call_tool=_tools(parts, definitions, recordings, contexts).call_tool,
    )


def build_worker(
    client: temporalio.client.Client, settings: Settings, parts: Parts, runner: WorkflowRunner | None = None
) -> Worker:
    """A worker with the workflow and every activity registered."""
    if settings.recording_mode != "replay":  # then no tool runs
        parts.store.listen(parts.metrics.count_outcomes)
    # Other keys' calls, tools and bookkeeping need room beside the calls that wait.
    gates = Gates(parts.metrics, room=settings.max_activities // WAITING_SHARE)
    activities = make_activities(dataclasses.replace(parts, send=sender(settings)), _recordings(settings, parts), gates)
    return Worker(
        client,
        task_queue=settings.task_queue,
        workflows=[AgentTurn, NotifyWebhook, KnockAtSession],
        activities=[close_as_canceled, *(getattr(activities, field.name) for field in dataclasses.fields(activities))],
        workflow_runner=runner or production_runner(),
        workflow_task_executor=ThreadPoolExecutor(max_workers=8, thread_name_prefix="perdure-workflow"),
        max_cached_workflows=settings.max_cached_workflows,
        max_concurrent_activities=settings.max_activities,
        sticky_queue_schedule_to_start_timeout=STICKY,
        max_heartbeat_throttle_interval=HEARTBEAT_THROTTLE,
        default_heartbeat_throttle_interval=HEARTBEAT_THROTTLE,
        graceful_shutdown_timeout=settings.shutdown_grace,
    )


def build_pinned_worker(client: temporalio.client.Client, settings: Settings, parts: Parts) -> Worker | None:
    """A worker for calls of MCP servers whose state only this process holds; None if its agents have none.

    Its task queue is its own, and is named in the definitions of the turns that this process opens.
    """
    if not any(server.stateful for agent in parts.agents.values() for server in agent.mcp_servers):
        return None
    parts.mcp.queue = f"{settings.task_queue}-{uuid.uuid4().hex}"
    contexts = TurnContexts(parts.store, os.environ)
    tools = _tools(parts, Definitions(parts.store), _recordings(settings, parts), contexts)
    return Worker(
        client,
        task_queue=parts.mcp.queue,
        activities=[tools.call_tool],
        max_concurrent_activities=settings.max_activities,
        max_heartbeat_throttle_interval=HEARTBEAT_THROTTLE,
        default_heartbeat_throttle_interval=HEARTBEAT_THROTTLE,
        graceful_shutdown_timeout=settings.shutdown_grace,
    )


@activity.defn(name="store")
async def _do_nothing() -> None:
    """Nothing: a worker needs an activity, and the queue of this one never gets any."""


def build_store_worker(client: temporalio.client.Client, settings: Settings, store: Store) -> Worker:
    """A worker that only tells, as a poller's identity, which store this process uses."""
    return Worker(
        client,
        task_queue=store_queue(settings.task_queue),
        activities=[_do_nothing],
        identity=WorkerStore.worker_store_of(store).identity,
        max_concurrent_activities=1,
        max_concurrent_activity_task_polls=1,
    )


async def _warn_of_other_stores(client: temporalio.client.Client, settings: Settings, store: Store) -> None:
    own = WorkerStore.worker_store_of(store)
    for told in await worker_stores(client, settings.task_queue):
        if told.store != own.store:
            logger.warning(
                "another worker of this task queue uses another store: turns wait for workers of their own store",
                extra={"worker": told.worker, "its_store": str(told), "store": str(own)},
            )


def _recordings(settings: Settings, parts: Parts) -> Recordings:
    return Recordings(
        mode=settings.recording_mode, folder=settings.recordings, store=parts.store, secrets=parts.secrets
    )


def _tools(parts: Parts, definitions: Definitions, recordings: Recordings, contexts: TurnContexts) -> ToolActivities:
    return ToolActivities(
        store=parts.store,
        agents=parts.agents,
        inline=parts.inline,
        definitions=definitions,
        bodies=parts.bodies,
        mcp=parts.mcp,
        metrics=parts.metrics,
        recordings=recordings,
        contexts=contexts,
        secrets=parts.secrets,
    )


async def check_search_attributes(client: temporalio.client.Client) -> None:
    """Refuse a cluster that lacks our search attributes."""
    request = operator.ListSearchAttributesRequest(namespace=client.namespace)
    try:
        known = await client.operator_service.list_search_attributes(request)
    except RPCError as error:
        raise SearchAttributesError(
            f"the cluster's search attributes cannot be read ({error}); set PERDURE_SEARCH_ATTRIBUTES=off without them"
        ) from error
    missing = sorted(set(SearchAttribute) - set(known.custom_attributes))
    if missing:
        raise SearchAttributesError(
            f"the cluster lacks the search attributes {', '.join(missing)}; run 'perdure setup' once, "
            "or set PERDURE_SEARCH_ATTRIBUTES=off"
        )


async def run(settings: Settings, agents: Mapping[str, Agent], registered: Registered) -> None:
    """Run a worker until SIGTERM or SIGINT, then drain it: running calls get their grace, the rest is handed over."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    async with AsyncExitStack() as stack:
        listener = stack.enter_context(bind(settings.metrics_address)) if settings.metrics_address else None
        sdk, own, health = SdkMetrics(), registry(), Health()
        if listener is not None:
            await stack.enter_async_context(serve_pages(listener, health, lambda: metrics_page(own, sdk)))
        client = await connect(runtime=sdk.runtime)
        if settings.recording_mode != "replay":
            await warm_up(model for agent in agents.values() for model in agent.models)
        if settings.search_attributes == "on":
            await check_search_attributes(client)
        metrics = Metrics(own)
        store = await Store.open(settings.store_url, upgrade=True, observe=metrics.store_operation)
        await stack.enter_async_context(store)
        own.register(people := PeopleCollector(lambda: _people_waited_for(store, client)))
        stack.callback(own.unregister, people)
        await store.register_agents([agent.definition for agent in agents.values()])
        bodies = Bodies(settings.tool_threads)
        stack.callback(bodies.close)
        secrets = secret_values(agents.values(), os.environ)
        mcp = McpServers(agents.values(), secrets)
        stack.push_async_callback(mcp.close)
        health.notes = mcp.troubles
        parts = Parts(
            store=store,
            agents=agents,
            metrics=metrics,
            bodies=bodies,
            secrets=secrets,
            search_attributes=settings.search_attributes == "on",
            fail_workflows=settings.fail_workflows,
            mcp=mcp,
            inline=InlineAgents(registered, agents) if settings.allow_inline_agents else None,
            egress=settings.egress,
        )
        pinned = build_pinned_worker(client, settings, parts)
        worker = build_worker(client, settings, parts)
        settle_heap()
        if pinned is not None:
            await stack.enter_async_context(pinned)
        await _warn_of_other_stores(client, settings, store)
        await stack.enter_async_context(build_store_worker(client, settings, store))
        await _poll(worker, health, stopping)
    logger.info("stopped", extra={"pid": os.getpid()})


async def _people_waited_for(store: Store, client: temporalio.client.Client) -> PeopleWaitedFor:
    """What the metric says: without turns that Temporal has ended, as long as it can be asked."""

    async def ask(begun: Mapping[str, datetime]) -> Mapping[str, Closure]:
        try:
            async with asyncio.timeout(VISIBILITY_PATIENCE):
                return await closures(client, begun)
        except (ClientError, TimeoutError):
            return {}

    return await people_waited_for(store, ask)


def settle_heap() -> None:
    """Keep what is loaded by now from the garbage collector: 400,000 objects of libraries, which live on anyway.

    Going through them again and again would be a tenth of a worker's CPU.
    """
    gc.collect()
    gc.freeze()


async def _poll(worker: Worker, health: Health, stopping: asyncio.Event) -> None:
    running = asyncio.create_task(worker.run())
    asked = asyncio.create_task(stopping.wait())
    health.ready, health.reason = True, "ready"
    logger.info("polling", extra={"task_queue": worker.task_queue, "pid": os.getpid()})
    await asyncio.wait([running, asked], return_when=asyncio.FIRST_COMPLETED)
    health.ready, health.reason = False, "draining"
    if running.done():
        asked.cancel()
    else:
        logger.info("draining", extra={"pid": os.getpid()})
        await worker.shutdown()
    await running
