"""Compose a worker from its parts, run it until it is told to stop, and take it down in order.

Long, because the parts are many, and one place composes them.
"""

import asyncio
import dataclasses
import logging
import os
import signal
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NotRequired, TypedDict, Unpack

import temporalio.client
from temporalio import activity
from temporalio.common import RawValue
from temporalio.worker import Interceptor, UnsandboxedWorkflowRunner, Worker, WorkflowRunner

from perdure.activities.agents import Definitions, Elsewhere, Nowhere, TurnContexts
from perdure.activities.commit_turn import CommitTurnActivity, close_as_canceled
from perdure.activities.compact import CompactActivity
from perdure.activities.delegates import CollectActivity, find_parent
from perdure.activities.generate import GenerateActivity
from perdure.activities.heartbeat import LostAttempts
from perdure.activities.hooks import HooksActivity
from perdure.activities.input_requests import PeopleActivity
from perdure.activities.mcp.servers import McpServers, McpTold
from perdure.activities.models.model_call import warm_up
from perdure.activities.models.pace import Gates
from perdure.activities.open_turn import OpenTurnActivity
from perdure.activities.parts import ActivityParts
from perdure.activities.places import Places
from perdure.activities.recordings import Recordings
from perdure.activities.retention import RetentionActivity
from perdure.activities.schedules import ScheduleActivity, Send
from perdure.activities.secrets import secret_values
from perdure.activities.telling.log_counters import LogCounters
from perdure.activities.telling.metrics import Metrics
from perdure.activities.telling.notifications import Notifications
from perdure.activities.telling.store_gauges import McpCollector, StoreCollector
from perdure.activities.telling.traces import Traces
from perdure.activities.tools import ToolActivities
from perdure.activities.webhooks import WebhookActivity
from perdure.agents.agent import Agent
from perdure.agents.data import NO_INLINE, InlineAgents, Registered
from perdure.client.connect import connect, make_converter
from perdure.client.deliveries import find_delivery_id
from perdure.client.encryption import codec_of, load_keyring, open_store
from perdure.client.retention import ensure_sweeps
from perdure.client.worker_stores import WorkerStore, check_keys, marks_of, store_queue, worker_stores
from perdure.contracts.generations import Compact, Compacted, Generate, Generation
from perdure.contracts.hooks import HookResults, RunHooks
from perdure.contracts.ids import DELEGATE_IDS
from perdure.contracts.input_requests import AskPeople
from perdure.contracts.names import DEFAULT_TASK_QUEUE, NEXUS_DOOR
from perdure.contracts.openings import OpenedTurn
from perdure.contracts.queues import Role, Routing, deliveries_queue, models_queue, tools_queue
from perdure.contracts.recordings import RecordedDecisions
from perdure.contracts.retention import SweepSlice, Swept
from perdure.contracts.schedules import Knock, Knocked
from perdure.contracts.tools import CollectDelegates, ToolOutcome
from perdure.contracts.turns import CommitTurn, OpenTurn, TurnResult
from perdure.contracts.webhooks import Egress, Notify
from perdure.lanes.bodies import Bodies
from perdure.libraries import settle_heap
from perdure.security.redaction import redact_text
from perdure.settings import Settings
from perdure.store import Store
from perdure.store.fill import filling
from perdure.tracing import Tracing
from perdure.worker.agents import Loaded, tell_long_tools
from perdure.worker.fleet_figures import FleetFigures
from perdure.worker.nexus import NexusService
from perdure.worker.polling import Polling
from perdure.worker.schedules import sender
from perdure.worker.search_attributes import check_search_attributes
from perdure.worker.telemetry import Health, LackingKeys, SdkMetrics, bind, metrics_page, registry, serve_pages
from perdure.worker.versions import build_of, deployment_config, patch_activation, tell_version
from perdure.workflows.agent_turn import AgentTurn
from perdure.workflows.errands import KnockAtSession, NotifyWebhook, SweepRetention

STICKY = timedelta(seconds=2)
"""Time that a turn's next task waits for the worker that has it in memory before any worker may take it."""

HEARTBEAT_THROTTLE = timedelta(milliseconds=500)
"""Beats are sent at most so often; the SDK's default, a share of the time-out, would delay every cancel."""

WAITING_SHARE = 2
"""One in this many activities of a worker may be a call that waits for its turn at a limited key."""

logger = logging.getLogger("perdure.worker")


@dataclass(frozen=True)
class Parts:
    """Parts that the activities of one worker share."""

    store: Store
    agents: Mapping[str, Agent]
    metrics: Metrics
    bodies: Bodies
    secrets: frozenset[str]
    search_attributes: bool
    fail_workflows: bool = False
    moves: bool = False
    """Whether turns move to another version of the workers by a rotation."""
    seeds: bool = True
    """Whether the turns that this worker opens have a seed."""
    mcp: McpServers = field(default_factory=lambda: McpServers((), frozenset()))
    inline: InlineAgents | None = None
    """Agents of start requests; None refuses them."""
    egress: Egress = field(default_factory=Egress)
    """Which addresses webhooks may have."""
    max_deliveries: int = 100
    """Number of messages of webhooks and schedules that are under way at once."""
    routing: Routing = field(default_factory=lambda: Routing(DEFAULT_TASK_QUEUE))
    """Division of the fleet's work: the queues of the turns that this worker opens."""
    tenant_max_running: Mapping[str, int] = field(default_factory=dict[str, int])
    """Number of turns of a tenant that run at once."""
    tenant_variables: Mapping[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    """The tenants whose turns may name a variable of this worker."""
    send: Send | None = None
    """Sends what schedules say to sessions; None where no turn is on a server."""
    traces: Traces = field(default_factory=Traces)
    elsewhere: Elsewhere = field(default_factory=Nowhere)
    """Says whether another worker that polls has an agent."""


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
    sweep_retention: Callable[[SweepSlice], Awaitable[Swept]]
    call_tool: Callable[[Sequence[RawValue]], Awaitable[ToolOutcome]]


@asynccontextmanager
async def open_parts(
    settings: Settings,
    store: Store,
    loaded: Loaded,
    metrics: Metrics,
    *,
    secrets: frozenset[str],
    bodies: Bodies | None = None,
) -> AsyncIterator[Parts]:
    """Make the parts of a worker with these agents, and close them at the end; a turn in memory has the same ones.

    Args:
        settings: The settings.
        store: The store.
        loaded: The agents.
        metrics: The metrics, which also count calls of MCP servers and connections after broken ones.
        secrets: Secret values that no text may show.
        bodies: Where authors' code runs, if not on threads and loops of this worker's own.
    """
    agents = loaded.agents
    bodies = Bodies(settings.tool_threads) if bodies is None else bodies
    mcp = McpServers(agents.values(), secrets, told=McpTold(metrics.note_mcp_call, metrics.note_mcp_reconnect))
    try:
        yield Parts(
            store=store,
            agents=agents,
            metrics=metrics,
            bodies=bodies,
            secrets=secrets,
            search_attributes=settings.search_attributes == "on",
            mcp=mcp,
            inline=InlineAgents(loaded.registered, agents) if settings.allow_inline_agents else None,
        )
    finally:
        await mcp.close()
        bodies.close()


def make_activities(
    parts: Parts, recordings: Recordings, gates: Gates, monotonic: Callable[[], float] = time.monotonic
) -> Activities:
    """The activities over these parts; the one place that composes them."""
    notifications = Notifications(
        parts.store,
        find_delivery_id,
        on=recordings.mode != "replay",
        note_refused=parts.metrics.unstarted_deliveries.note,
    )
    shared = ActivityParts(
        store=parts.store,
        agents=parts.agents,
        inline=parts.inline,
        definitions=Definitions(parts.store),
        contexts=TurnContexts(parts.store, os.environ, parts.tenant_variables),
        bodies=parts.bodies,
        mcp=parts.mcp,
        metrics=parts.metrics,
        recordings=recordings,
        gates=gates,
        notifications=notifications,
        traces=parts.traces,
        secrets=parts.secrets,
        seeds=parts.seeds,
        elsewhere=parts.elsewhere,
        monotonic=monotonic,
    )
    opening = OpenTurnActivity(
        shared,
        search_attributes=parts.search_attributes,
        fail_workflows=parts.fail_workflows,
        moves=parts.moves,
        routing=parts.routing,
        tenant_max_running=parts.tenant_max_running,
    )
    places = Places(parts.max_deliveries)
    return Activities(
        open_turn=opening.open_turn,
        commit_turn=CommitTurnActivity(shared).commit_turn,
        generate=GenerateActivity(shared).generate,
        compact=CompactActivity(shared).compact,
        run_hooks=HooksActivity(shared).run_hooks,
        ask=PeopleActivity(shared).ask,
        collect_delegates=CollectActivity(shared).collect_delegates,
        deliver_webhook=WebhookActivity(parts.store, parts.egress, places).deliver_webhook,
        send_scheduled=ScheduleActivity(parts.store, parts.send, places).send_scheduled,
        sweep_retention=RetentionActivity(parts.store).sweep_retention,
        call_tool=ToolActivities(shared).call_tool,
    )


def build_workers(
    client: temporalio.client.Client, settings: Settings, parts: Parts, runner: WorkflowRunner | None = None
) -> tuple[Worker, ...]:
    """A worker for each task queue of this process: one with everything, unless roles or rate limits divide the work.

    The worker of the turns is the first. It takes calls of models and tools too: those of turns that were opened
    before the fleet was split.
    """
    parts = dataclasses.replace(parts, elsewhere=Polling(client, settings))
    parts.store.listen(LogCounters(parts.metrics, replays=settings.recording_mode == "replay").count)
    activities = _make_activities(settings, parts)
    queue, routing, interceptors = settings.task_queue, settings.routing, _interceptors(parts)
    built: list[Worker] = []
    if routing.has(Role.TURNS):
        every = [getattr(activities, field.name) for field in dataclasses.fields(activities)]
        every += [close_as_canceled, find_parent]
        built.append(_build_turns_worker(client, settings, every, runner, interceptors))
        errands: list[Callable[..., Any]] = [activities.deliver_webhook, activities.send_scheduled]
        deliveries, most = deliveries_queue(queue), settings.max_deliveries
        built.append(_build_calls_worker(client, settings, deliveries, errands, interceptors, most=most))
    if routing.has(Role.MODELS):
        calls: list[Callable[..., Any]] = [activities.generate, activities.compact]
        if routing.roles:
            built.append(_build_calls_worker(client, settings, models_queue(queue), calls, interceptors))
        # The server shares the rate out among all that poll the queue; whoever polls tells it, always the same.
        built += [
            _build_calls_worker(
                client,
                settings,
                models_queue(queue, limit.key),
                calls,
                interceptors,
                per_second=limit.per_second,
            )
            for limit in routing.limits
        ]
    if routing.roles and routing.has(Role.TOOLS):
        built.append(_build_calls_worker(client, settings, tools_queue(queue), [activities.call_tool], interceptors))
    return tuple(built)


def _make_activities(settings: Settings, parts: Parts) -> Activities:
    """The activities of a worker with these settings."""
    # Other keys' calls, tools and bookkeeping need room beside the calls that wait.
    gates = Gates(parts.metrics, room=settings.max_activities // WAITING_SHARE, store=parts.store)
    recordings = Recordings(
        mode=settings.recording_mode, folder=settings.recordings, store=parts.store, secrets=parts.secrets
    )
    return make_activities(settle(settings, parts), recordings, gates)


def settle(settings: Settings, parts: Parts) -> Parts:
    """The parts with what follows from the settings alone, whoever made the parts."""
    return dataclasses.replace(
        parts,
        send=sender(settings),
        egress=settings.egress,
        max_deliveries=settings.max_deliveries,
        fail_workflows=parts.fail_workflows or settings.fail_workflows,
        moves=settings.versioning == "rotate",
        routing=settings.routing,
        tenant_max_running=settings.tenant_max_running,
        tenant_variables=settings.tenant_variables,
        seeds=DELEGATE_IDS not in settings.held_patches,
    )


def _interceptors(parts: Parts) -> Sequence[Interceptor]:
    """Interceptors of each activity: the count of lost attempts, and spans if they are exported."""
    return [LostAttempts(parts.metrics.note_recovery), *parts.traces.interceptors]


def _build_turns_worker(
    client: temporalio.client.Client,
    settings: Settings,
    activities: Sequence[Callable[..., Any]],
    runner: WorkflowRunner | None,
    interceptors: Sequence[Interceptor],
) -> Worker:
    operations = [NexusService(settings)] if NEXUS_DOOR in settings.doors else []
    return Worker(
        client,
        task_queue=settings.task_queue,
        nexus_service_handlers=operations,
        workflows=[AgentTurn, NotifyWebhook, KnockAtSession, SweepRetention],
        activities=activities,
        workflow_runner=runner or UnsandboxedWorkflowRunner(),  # docs/decisions/0005
        workflow_task_executor=ThreadPoolExecutor(max_workers=8, thread_name_prefix="perdure-workflow"),
        max_cached_workflows=settings.max_cached_workflows,
        max_concurrent_activities=settings.max_activities,
        sticky_queue_schedule_to_start_timeout=STICKY,
        max_heartbeat_throttle_interval=HEARTBEAT_THROTTLE,
        default_heartbeat_throttle_interval=HEARTBEAT_THROTTLE,
        graceful_shutdown_timeout=settings.shutdown_grace,
        interceptors=interceptors,
        deployment_config=deployment_config(settings),
        patch_activation_callback=patch_activation(settings.held_patches),
    )


class _Bounds(TypedDict):
    """Bounds of a worker of calls: how many at once, and how many a second the server gives out over all workers."""

    most: NotRequired[int]
    per_second: NotRequired[float]


def _build_calls_worker(
    client: temporalio.client.Client,
    settings: Settings,
    queue: str,
    activities: Sequence[Callable[..., Any]],
    interceptors: Sequence[Interceptor],
    **bounds: Unpack[_Bounds],
) -> Worker:
    """A worker of calls alone."""
    return Worker(
        client,
        task_queue=queue,
        activities=activities,
        max_concurrent_activities=bounds.get("most", settings.max_activities),
        max_task_queue_activities_per_second=bounds.get("per_second"),
        max_heartbeat_throttle_interval=HEARTBEAT_THROTTLE,
        default_heartbeat_throttle_interval=HEARTBEAT_THROTTLE,
        graceful_shutdown_timeout=settings.shutdown_grace,
        interceptors=interceptors,
    )


def build_pinned_worker(client: temporalio.client.Client, settings: Settings, parts: Parts) -> Worker | None:
    """A worker for calls of MCP servers whose state only this process holds; None if its agents have none.

    Its task queue is its own, and is named in the definitions of the turns that this process opens.
    """
    stateful = any(server.stateful for agent in parts.agents.values() for server in agent.mcp_servers)
    if not stateful or not settings.routing.has(Role.TURNS):
        return None
    parts.mcp.queue = f"{settings.task_queue}-{uuid.uuid4().hex}"
    calls = [_make_activities(settings, parts).call_tool]
    return _build_calls_worker(client, settings, parts.mcp.queue, calls, _interceptors(parts))


@activity.defn(name="store")
async def _do_nothing() -> None:
    """Nothing: a worker needs an activity, and the queue of this one never gets any."""


def build_store_worker(
    client: temporalio.client.Client,
    settings: Settings,
    store: Store,
    agents: Iterable[str] = (),
    definitions: Iterable[str] | None = None,
) -> Worker:
    """A worker that only tells, as a poller's identity, the store, keys, build, agents and roles of this process."""
    told = WorkerStore.worker_store_of(store, settings.roles, codec_of(client.data_converter).keyring)
    told = told.with_agents(agents, build_of(settings), definitions)
    return Worker(
        client,
        task_queue=store_queue(settings.task_queue),
        activities=[_do_nothing],
        identity=told.identity,
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
        metrics, keyring, lacking = (
            Metrics(own, tenants=settings.metrics_tenants, build_id=settings.build_id),
            load_keyring(settings),
            LackingKeys(),
        )
        converter = make_converter(keyring, failed=lambda error: lacking.note(error, metrics))
        client = await connect(converter, runtime=sdk.runtime)
        check_keys(marks_of(keyring), await worker_stores(client, settings.task_queue), settings.task_queue)
        if settings.recording_mode != "replay" and set(settings.roles) != {Role.TOOLS}:
            await warm_up(model for agent in agents.values() for model in agent.models)
        if settings.search_attributes == "on":
            await check_search_attributes(client)
        store = await open_store(settings, upgrade=settings.migrate == "auto", observe=metrics.store_operation)
        await stack.enter_async_context(store)
        store.tell_refusals(metrics.store_refused)
        own.register(
            fleet := StoreCollector(
                FleetFigures(
                    store,
                    client,
                    settings,
                    metrics.unstarted_deliveries.count,
                    refused_versions=metrics.refused_versions.names,
                ).read
            )
        )
        stack.callback(own.unregister, fleet)
        await stack.enter_async_context(filling(store))
        await store.register_agents([agent.definition for agent in agents.values()])
        await ensure_sweeps(client, settings.task_queue, agents.values(), store)
        secrets = secret_values(agents.values(), os.environ)
        loaded = Loaded(dict(agents), registered)
        parts = await stack.enter_async_context(open_parts(settings, store, loaded, metrics, secrets=secrets))
        if (tracing := Tracing.started("perdure-worker", lambda text: redact_text(text, secrets))) is not None:
            stack.push_async_callback(asyncio.to_thread, tracing.close)
        mcp, parts = parts.mcp, dataclasses.replace(parts, traces=Traces(tracing))
        own.register(McpCollector(mcp.usable))
        health.notes = lambda: [*mcp.troubles(), *lacking.troubles()]
        pinned = build_pinned_worker(client, settings, parts)
        workers = build_workers(client, settings, parts)
        settle_heap()
        if pinned is not None:
            await stack.enter_async_context(pinned)
        await _warn_of_other_stores(client, settings, store)
        if settings.routing.has(Role.TURNS):
            await tell_version(client, settings)
        if settings.routing.has(Role.TURNS) or settings.routing.has(Role.TOOLS):
            tell_long_tools(agents.values(), settings.shutdown_grace, settings.task_queue)
        digests = [agent.definition.digest() for agent in agents.values()]
        told = [*agents, NO_INLINE if parts.inline is None else parts.inline.mark]
        await stack.enter_async_context(build_store_worker(client, settings, store, told, digests))
        await _poll(workers, health, stopping)
    logger.info("stopped", extra={"pid": os.getpid()})


async def _poll(workers: Sequence[Worker], health: Health, stopping: asyncio.Event) -> None:
    running = [asyncio.create_task(worker.run()) for worker in workers]
    asked = asyncio.create_task(stopping.wait())
    health.ready, health.reason = True, "ready"
    for worker in workers:
        logger.info("polling", extra={"task_queue": worker.task_queue, "pid": os.getpid()})
    await asyncio.wait([*running, asked], return_when=asyncio.FIRST_COMPLETED)
    health.ready, health.reason = False, "draining"
    if any(task.done() for task in running):  # a worker ends by itself only when it fails
        asked.cancel()
    else:
        logger.info("draining", extra={"pid": os.getpid()})
    await asyncio.gather(*(worker.shutdown() for worker in workers))
    await asyncio.gather(*running)
