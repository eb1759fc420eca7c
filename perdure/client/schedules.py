"""Schedules as the client sees them: Temporal's own, which start turns or send messages."""

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from typing import Any

from temporalio.client import (
    Schedule as TemporalSchedule,
)
from temporalio.client import (
    ScheduleActionStartWorkflow,
    ScheduleAlreadyRunningError,
    ScheduleCalendarSpec,
    ScheduleDescription,
    ScheduleHandle,
    ScheduleListDescription,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleRange,
    ScheduleSpec,
    ScheduleState,
    ScheduleUpdate,
    ScheduleUpdateInput,
    WorkflowExecution,
    WorkflowExecutionStatus,
    WorkflowFailureError,
)
from temporalio.exceptions import FailureError
from temporalio.service import RPCError, RPCStatusCode

from perdure.client import requests
from perdure.client.connect import is_missing, rpc_errors
from perdure.client.encryption import EncryptionCodec, codec_of
from perdure.client.errors import RequestRefusedError, ScheduleExistsError, UnknownScheduleError, UnknownSessionError
from perdure.client.requests import turn_request, validate
from perdure.client.sessions import Sessions, describe_missing_session
from perdure.contracts.names import AGENT_TURN, KNOCK, SCHEDULE_MEMO, SCHEDULE_PREFIX
from perdure.contracts.schedules import Knock, Knocked, Schedule, ScheduleRequest, ScheduleRun
from perdure.contracts.turns import TurnRequest
from perdure.store import Store, TurnRecord
from perdure.store.errors import NotFoundError

AT_ONCE = 20
"""Schedules that are described at a time, for a list."""

_KNOCKS = "knock:"


class Schedules:
    """Turns that the clock starts; made by :attr:`Client.schedules`. Each tenant has its own ids."""

    def __init__(self, sessions: Sessions, tenant: str = "") -> None:
        self._sessions = sessions
        self._tenant = tenant

    def of(self, tenant: str) -> "Schedules":
        """The same for another tenant; without this, for the turns that have none."""
        return Schedules(self._sessions, tenant)

    @property
    def _codec(self) -> EncryptionCodec:
        return codec_of(self._sessions.temporal.data_converter)

    async def add(self, schedule: str, **fields: object) -> Schedule:
        """Have the clock start turns from now on.

        Args:
            schedule: Its id, with which the ids of its sessions begin.
            fields: Those of :class:`perdure.contracts.schedules.ScheduleRequest`: ``cron`` or ``at``, ``timezone``,
                ``agent`` or ``session``, ``prompt``, ``when_busy`` and others.

        Raises:
            RequestRefusedError: A field is wrong; nothing was made.
            ScheduleExistsError: There is a schedule of that id.
            UnknownAgentError: Workers poll the queue, and none has the agent.
            UnknownSessionError: There is no session of that id.
            ServerUnreachableError: The server does not answer.
        """
        request = validate(ScheduleRequest, {"id": schedule, **fields})
        if request.once is not None and request.once <= datetime.now(UTC):
            raise RequestRefusedError(f"at: {request.once.isoformat()} is in the past; write a time in the future")
        made = await self._made(request)
        with rpc_errors():
            try:
                await self._sessions.temporal.create_schedule(
                    self._name(schedule), made, memo={SCHEDULE_MEMO: {"tenant": self._tenant, "id": schedule}}
                )
            except ScheduleAlreadyRunningError as error:
                msg = f"there is a schedule {schedule!r}; change it with 'perdure schedule update {schedule} …'"
                raise ScheduleExistsError(msg) from error
            except RPCError as error:
                raise _refused(error) from error
        return await self.get(schedule)

    async def list(self) -> tuple[Schedule, ...]:
        """The tenant's schedules, by their ids.

        Raises:
            ServerUnreachableError: The server does not answer.
        """
        names: tuple[str, ...] = ()
        with rpc_errors():
            async for listed in await self._sessions.temporal.list_schedules():
                if listed.id.startswith(SCHEDULE_PREFIX) and (name := await self._own_name(listed)) is not None:
                    names += (name,)
        found: tuple[Schedule | None, ...] = ()
        for place in range(0, len(names), AT_ONCE):
            found += tuple(await asyncio.gather(*map(self._find, names[place : place + AT_ONCE])))
        return tuple(sorted((known for known in found if known is not None), key=lambda known: known.id))

    async def get(self, schedule: str) -> Schedule:
        """A schedule as it stands.

        Raises:
            UnknownScheduleError: The tenant has none of that id.
        """
        found = await self._find(schedule)
        if found is None:
            raise _missing(schedule)
        return found

    async def update(self, schedule: str, **fields: object) -> Schedule:
        """Change some fields of a schedule, and leave the others as they are; None takes a field away.

        Raises:
            UnknownScheduleError: The tenant has none of that id.
            RequestRefusedError: A field is wrong; nothing was changed.
        """
        request = await self._request(await self._describe(schedule))
        changed = validate(ScheduleRequest, {**request.model_dump(exclude_unset=True), **fields, "id": schedule})
        if "at" in fields and changed.once is not None and changed.once <= datetime.now(UTC):
            raise RequestRefusedError(f"at: {changed.once.isoformat()} is in the past; write a time in the future")
        made = await self._made(changed)

        async def exchange(_: ScheduleUpdateInput) -> ScheduleUpdate:
            return ScheduleUpdate(schedule=made)

        await self._change(schedule, self._handle(schedule).update(exchange))
        return await self.get(schedule)

    async def pause(self, schedule: str, note: str = "") -> Schedule:
        """Pause a schedule: it starts no run until :meth:`unpause`.

        Raises:
            UnknownScheduleError: The tenant has none of that id.
        """
        await self._change(schedule, self._handle(schedule).pause(note=self._codec.seal_text(note) or "paused"))
        return await self.get(schedule)

    async def unpause(self, schedule: str, note: str = "") -> Schedule:
        """Let a paused schedule start runs again.

        Raises:
            UnknownScheduleError: The tenant has none of that id.
        """
        await self._change(schedule, self._handle(schedule).unpause(note=self._codec.seal_text(note) or "unpaused"))
        return await self.get(schedule)

    async def trigger(self, schedule: str) -> None:
        """Start a run now, even while the schedule is paused or another run of it works.

        Raises:
            UnknownScheduleError: The tenant has none of that id.
        """
        request = await self._request(await self._describe(schedule))
        # Temporal does not look at the ends of runs that may overlap, and a knock that fails is to pause the schedule.
        overlap = ScheduleOverlapPolicy.ALLOW_ALL if request.agent is not None else None
        await self._change(schedule, self._handle(schedule).trigger(overlap=overlap))

    async def remove(self, schedule: str) -> None:
        """Remove a schedule; turns that it has started go on.

        Raises:
            UnknownScheduleError: The tenant has none of that id.
        """
        await self._change(schedule, self._handle(schedule).delete())

    async def runs(self, schedule: str, *, limit: int = 50) -> tuple[ScheduleRun, ...]:
        """List the runs of a schedule, the newest first, as long as Temporal keeps them.

        Raises:
            UnknownScheduleError: The tenant has none of that id.
            ServerUnreachableError: The server does not answer.
        """
        await self._describe(schedule)
        store, found = await self._sessions.store(), dict[str, ScheduleRun]()
        with rpc_errors():
            async for run in self._started(schedule):
                if run.id not in found and len(found) < limit:
                    found[run.id] = await self._run(schedule, store, run)
        return tuple(sorted(found.values(), key=lambda run: run.started_at, reverse=True))

    def _name(self, schedule: str) -> str:
        """The id in Temporal. Another tenant's schedule of the same id has another."""
        return f"{SCHEDULE_PREFIX}{self._tenant}/{schedule}"

    def _prefix(self, schedule: str) -> str:
        """How the ids of its sessions begin; Temporal puts a time behind it."""
        digest = hashlib.sha256(self._tenant.encode()).hexdigest()[:8]
        return f"{schedule}-{digest}" if self._tenant else schedule

    def _handle(self, schedule: str) -> ScheduleHandle:
        return self._sessions.temporal.get_schedule_handle(self._name(schedule))

    async def _change(self, schedule: str, change: Any) -> None:  # noqa: ANN401 - a coroutine of whatever result
        with rpc_errors():
            try:
                await change
            except RPCError as error:
                raise (_missing(schedule) if is_missing(error) else _refused(error)) from error

    async def _describe(self, schedule: str) -> ScheduleDescription:
        with rpc_errors():
            try:
                return await self._handle(schedule).describe()
            except RPCError as error:
                if is_missing(error):
                    raise _missing(schedule) from error
                raise

    async def _own_name(self, listed: ScheduleListDescription) -> str | None:
        memo: Mapping[str, Any] = await listed.memo_value(SCHEDULE_MEMO, {})
        return str(memo["id"]) if memo.get("tenant") == self._tenant and "id" in memo else None

    async def _made(self, request: ScheduleRequest) -> TemporalSchedule:
        """The schedule in Temporal's form; whom it is for is there."""
        store, overlap = await self._sessions.store(), ScheduleOverlapPolicy.BUFFER_ONE
        if request.agent is not None:
            if request.when_busy == "reject":
                overlap = ScheduleOverlapPolicy.SKIP
            await self._sessions.check_agent(request.agent, None)
            action = self._action_of_turn(request, request.agent, store)
        else:
            if await store.tenant_of(str(request.session)) != self._tenant:
                raise UnknownSessionError(describe_missing_session(str(request.session)))
            action = self._action_of_knock(request, str(request.session), store)
        return TemporalSchedule(
            action=action,
            spec=_spec(request),
            policy=SchedulePolicy(
                overlap=overlap,
                catchup_window=request.catchup_window,
                pause_on_failure=request.session is not None,  # a session that is gone does not come back
            ),
            state=ScheduleState(note=self._codec.seal_text(request.note), paused=request.paused),
        )

    def _action_of_turn(self, request: ScheduleRequest, agent: str, store: Store) -> ScheduleActionStartWorkflow:
        options = request.model_dump(include={"prompt", "model", "max_steps", "by"})
        about = {"agent": agent, "tenant": self._tenant, "store": store.id, "context": request.context}
        turn = turn_request(request.id, {**options, **about, "budgets": request.budgets})
        turn = turn.model_copy(
            update={"request_id": ""}
        )  # each run is a request of its own, named by its workflow's run
        return ScheduleActionStartWorkflow(
            AGENT_TURN,
            turn,
            id=self._prefix(request.id),
            task_queue=self._sessions.settings.task_queue,
            memo=_memo(request),
            priority=requests.priority_of(request.priority, self._tenant, self._sessions.settings.tenant_weights),
            static_summary=requests.summary(turn),
        )

    def _action_of_knock(self, request: ScheduleRequest, session: str, store: Store) -> ScheduleActionStartWorkflow:
        said = request.model_dump(include={"prompt", "when_busy", "context", "by", "priority"})
        knock = Knock(session=session, tenant=self._tenant, store=store.id, **said)
        return ScheduleActionStartWorkflow(
            KNOCK,
            knock,
            id=f"{_KNOCKS}{self._prefix(request.id)}",
            task_queue=self._sessions.settings.task_queue,
            memo=_memo(request),
            priority=requests.priority_of(request.priority, self._tenant, self._sessions.settings.tenant_weights),
            static_summary=session[:120],
        )

    async def _request(self, description: ScheduleDescription) -> ScheduleRequest:
        """What was asked for, as the schedule itself holds it."""
        action, converter = description.schedule.action, self._sessions.temporal.data_converter
        if not isinstance(action, ScheduleActionStartWorkflow) or not action.memo or not action.args:
            raise _missing(description.id)
        kind = TurnRequest if action.workflow == AGENT_TURN else Knock
        (told,) = await converter.decode([action.args[0]], [kind])
        (asked,) = await converter.decode([action.memo[SCHEDULE_MEMO]], [dict])
        state = description.schedule.state
        return ScheduleRequest.model_validate(
            {**asked, "prompt": told.prompt, "paused": state.paused, "note": self._codec.open_text(state.note or "")}
        )

    async def _find(self, schedule: str) -> Schedule | None:
        try:
            description = await self._describe(schedule)
        except UnknownScheduleError:
            return None
        request, info = await self._request(description), description.info
        return Schedule(
            **request.model_dump(exclude={"jitter", "catchup"}),
            tenant=self._tenant,
            jitter=request.jitter.total_seconds(),
            catchup=request.catchup_window.total_seconds(),
            next_at=tuple(info.next_action_times),
            runs=info.num_actions,
            left_out=info.num_actions_skipped_overlap,
            missed=info.num_actions_missed_catchup_window,
        )

    async def _started(self, schedule: str) -> AsyncIterator[WorkflowExecution]:
        name = self._name(schedule).replace("\\", "\\\\").replace('"', '\\"')
        async for run in self._sessions.temporal.list_workflows(f'TemporalScheduledById = "{name}"'):
            yield run

    async def _run(self, schedule: str, store: Store, run: WorkflowExecution) -> ScheduleRun:
        if run.workflow_type == KNOCK:
            return await self._run_of_knock(schedule, store, run)
        return await _run_of_turn(schedule, store, run)

    async def _run_of_knock(self, schedule: str, store: Store, run: WorkflowExecution) -> ScheduleRun:
        handle = self._sessions.temporal.get_workflow_handle(run.id, run_id=run.run_id, result_type=Knocked)
        asked: Mapping[str, Any] = await run.memo_value(SCHEDULE_MEMO, {})
        session = str(asked.get("session", ""))
        told = ScheduleRun(schedule=schedule, session=session, state="running", started_at=run.start_time)
        if run.status == WorkflowExecutionStatus.RUNNING:
            return told
        try:
            knocked = await handle.result()
        except WorkflowFailureError as error:
            said = error.cause.message if isinstance(error.cause, FailureError) else str(error.cause)
            return told.model_copy(update={"state": "failed", "error": said, "ended_at": run.close_time})
        turn = await store.turn_by_request(session, run.id)
        if turn is None and knocked.turn is None:
            return told.model_copy(update={"state": "rejected", "ended_at": run.close_time})
        if turn is None and knocked.turn is not None:  # which reads the message, or is not open yet
            told = told.model_copy(update={"turn": knocked.turn})
            with contextlib.suppress(NotFoundError):
                turn = await store.turn(session, knocked.turn)
        return told.model_copy(update=_end_of(turn))


async def _run_of_turn(schedule: str, store: Store, run: WorkflowExecution) -> ScheduleRun:
    told = ScheduleRun(schedule=schedule, session=run.id, state="running", started_at=run.start_time)
    try:
        return told.model_copy(update=_end_of(await store.turn(run.id, 1)))
    except NotFoundError:
        if run.status == WorkflowExecutionStatus.RUNNING:
            return told
    error = f"the turn was refused; 'temporal workflow show --workflow-id {run.id}' says why"
    return told.model_copy(update={"state": "failed", "ended_at": run.close_time, "error": error})


def _end_of(turn: TurnRecord | None) -> dict[str, object]:
    if turn is None:
        return {}
    if turn.result is None:
        return {"turn": turn.turn}
    ended = turn.result
    return {
        "turn": turn.turn,
        "state": "ended",
        "ended_at": turn.ended_at,
        "stop_reason": ended.stop_reason.value,
        "reason_code": ended.reason_code,
        "error": ended.error,
    }


def _memo(request: ScheduleRequest) -> dict[str, Any]:
    """What was asked for, but the prompt: what Temporal makes of it does not tell."""
    return {SCHEDULE_MEMO: request.model_dump(mode="json", exclude_unset=True, exclude={"prompt", "paused", "note"})}


def _spec(request: ScheduleRequest) -> ScheduleSpec:
    once = request.once
    if once is None:
        return ScheduleSpec(
            cron_expressions=[str(request.cron)], time_zone_name=request.timezone, jitter=request.jitter or None
        )
    calendar = ScheduleCalendarSpec(
        year=[ScheduleRange(once.year)],
        month=[ScheduleRange(once.month)],
        day_of_month=[ScheduleRange(once.day)],
        hour=[ScheduleRange(once.hour)],
        minute=[ScheduleRange(once.minute)],
        second=[ScheduleRange(once.second)],
    )
    return ScheduleSpec(calendars=[calendar], jitter=request.jitter or None)


def _missing(schedule: str) -> UnknownScheduleError:
    return UnknownScheduleError(f"there is no schedule {schedule!r}; 'perdure schedule list' names those there are")


def _refused(error: RPCError) -> Exception:
    """The server's word on a cron expression or a time zone; another failure is what it is."""
    if error.status is not RPCStatusCode.INVALID_ARGUMENT:
        return error
    return RequestRefusedError(f"cron: the Temporal server takes no such time ({error.message}); write another")
