"""Schedules as the client sees them: Temporal's own, which start turns or send messages."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

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
)
from temporalio.service import RPCError, RPCStatusCode

from perdure.client import requests
from perdure.client.connect import is_missing, rpc_errors
from perdure.client.encryption import EncryptionCodec, codec_of
from perdure.client.erasures import Erased, erase
from perdure.client.errors import RequestRefusedError, ScheduleExistsError, UnknownScheduleError, UnknownSessionError
from perdure.client.requests import turn_request, validate
from perdure.client.schedule_runs import describe_run, lost_run
from perdure.client.sessions import Sessions, describe_missing_session
from perdure.client.texts import refuses_odd_texts
from perdure.client.triggers import trigger
from perdure.client.unstarted import list_unstarted
from perdure.contracts.ids import KNOCK_PREFIX, SCHEDULE_PREFIX, TEMPORAL_SCHEDULES, Signed
from perdure.contracts.names import AGENT_TURN, KNOCK, SCHEDULE_MEMO
from perdure.contracts.schedules import Knock, Schedule, ScheduleRequest, ScheduleRun
from perdure.contracts.turns import Continuation
from perdure.contracts.values import is_visible, replace
from perdure.store import Store

AT_ONCE = 20
"""Schedules that are described at a time, for a list."""

_PAUSED, _UNPAUSED = _NO_REASON = "paused", "unpaused"
"""Texts for Temporal of a change whose reason nobody gave; it takes no empty ones."""

_NOT_PLAIN = re.compile(r"[^\w./:@+=~ -]", re.ASCII)
"""Characters that a query of the server must not hold as they stand."""


@refuses_odd_texts
class Schedules:
    """Turns that the clock starts; made by :attr:`Client.schedules`. Each tenant has its own ids."""

    def __init__(self, sessions: Sessions, tenant: str = "") -> None:
        self._sessions, self._tenant = sessions, tenant

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
        request = _said(validate(ScheduleRequest, _given({"id": schedule, **fields})))
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

    async def names(self) -> tuple[str, ...]:
        """The ids of the tenant's schedules, in order.

        Raises:
            ServerUnreachableError: The server does not answer.
        """
        # The server is told no part of a tenant's name that its queries could read as anything but letters.
        mine = f'ScheduleId STARTS_WITH "{_NOT_PLAIN.split(self._name(""))[0]}"'
        with rpc_errors():
            listed = [found async for found in await self._sessions.temporal.list_schedules(mine)]
        names = [await self._own_name(found) for found in listed if found.id.startswith(SCHEDULE_PREFIX)]
        return tuple(sorted(name for name in names if name is not None))

    async def list(self) -> tuple[Schedule, ...]:
        """The tenant's schedules, by their ids.

        Raises:
            ServerUnreachableError: The server does not answer.
        """
        return await self.describe(await self.names())

    async def describe(self, names: Sequence[str]) -> tuple[Schedule, ...]:
        """The schedules of these ids as they stand, without those that are gone.

        Raises:
            ServerUnreachableError: The server does not answer.
        """
        found: tuple[Schedule | None, ...] = ()
        for place in range(0, len(names), AT_ONCE):
            found += tuple(await asyncio.gather(*map(self._find, names[place : place + AT_ONCE])))
        return tuple(known for known in found if known is not None)

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

        A field that is taken away is what it is in a schedule that was made without it.

        Raises:
            UnknownScheduleError: The tenant has none of that id.
            RequestRefusedError: A field is wrong; nothing was changed.
        """
        described = await self._describe(schedule)
        request = await self._request(described)
        kept = request.model_dump(exclude_unset=True)
        changed = _said(validate(ScheduleRequest, _given({**kept, **fields, "id": schedule})))
        if "at" in fields and changed.once is not None and changed.once <= datetime.now(UTC):
            raise RequestRefusedError(f"at: {changed.once.isoformat()} is in the past; write a time in the future")
        made = await self._made(changed, reason=self._reason(described, request))

        async def exchange(_: ScheduleUpdateInput) -> ScheduleUpdate:
            return ScheduleUpdate(schedule=made)

        await self._change(schedule, self._handle(schedule).update(exchange))
        return await self.get(schedule)

    async def pause(self, schedule: str, note: str = "") -> Schedule:
        """Pause a schedule: it starts no run until :meth:`unpause`. ``note`` says why, as its ``reason``.

        Raises:
            UnknownScheduleError: The tenant has none of that id.
        """
        handle = self._handle(schedule)
        await self._change(schedule, handle.pause(note=await self._text(schedule, note) or _PAUSED))
        return await self.get(schedule)

    async def unpause(self, schedule: str, note: str = "") -> Schedule:
        """Let a paused schedule start runs again. ``note`` says why, as its ``reason``.

        Raises:
            UnknownScheduleError: The tenant has none of that id.
        """
        handle = self._handle(schedule)
        await self._change(schedule, handle.unpause(note=await self._text(schedule, note) or _UNPAUSED))
        return await self.get(schedule)

    async def _text(self, schedule: str, note: str) -> str:
        """Text that Temporal shows from now on, sealed: the note of a change, or else the schedule's own."""
        return self._codec.seal_text(note or (await self._request(await self._describe(schedule))).note)

    async def trigger(self, schedule: str) -> None:
        """Start a run now, even while the schedule is paused or another run of it works.

        Raises:
            UnknownScheduleError: The tenant has none of that id.
            RequestRefusedError: It was triggered about once a second for many seconds.
        """
        action = (await self._describe(schedule)).schedule.action
        store, name = await self._sessions.store(), self._name(schedule)
        await self._change(schedule, trigger(self._sessions.temporal, store, name, self._tenant, action))

    async def remove(self, schedule: str) -> None:
        """Remove a schedule; turns that it has started go on.

        Raises:
            UnknownScheduleError: The tenant has none of that id.
        """
        await self._change(schedule, self._handle(schedule).delete())

    async def runs(self, schedule: str, *, limit: int = 50) -> tuple[ScheduleRun, ...]:
        """List the runs of a schedule, the newest first, as long as Temporal keeps them.

        Those that Temporal refused to start are among them, with the reason.

        Raises:
            UnknownScheduleError: The tenant has none of that id.
            ServerUnreachableError: The server does not answer.
        """
        described = await self._request(await self._describe(schedule))
        store, found = await self._sessions.store(), dict[tuple[str, object], ScheduleRun]()
        with rpc_errors():
            async for run in self._started(schedule):
                if run.status == WorkflowExecutionStatus.CONTINUED_AS_NEW:  # which is listed as the run that it became
                    continue
                told = await describe_run(self._sessions.runs, store, self._tenant, schedule, run)
                found.setdefault((run.id, told.turn or run.run_id), told)
                if len(found) >= limit:
                    break
            refused = await list_unstarted(self._sessions.temporal, self._name(schedule))
        lost = [lost_run(schedule, described.session, run) for run in refused[:limit]]
        return tuple(sorted((*found.values(), *lost), key=lambda run: run.started_at, reverse=True)[:limit])

    async def delete_session(self, session: str, *, histories: bool, by: str) -> Erased:
        """Erase a session as :meth:`Client.delete`, and remove the schedules that send messages to it or its delegates.

        Their runs hold the messages; with ``histories`` they are deleted too, also of such that were removed before.
        """
        erased = await erase(self._sessions, session, histories=histories, by=by)
        own, gone = self.of(erased.tombstone.tenant), {session, *erased.delegates}
        senders = [schedule.id for schedule in await own.list() if schedule.session in gone]
        for schedule in senders:
            with contextlib.suppress(UnknownScheduleError):  # somebody else has just removed it
                await own.remove(schedule)
                if histories:  # in which the server itself has the message
                    await self._sessions.runs.delete_history(f"{TEMPORAL_SCHEDULES}{own._name(schedule)}", "")  # noqa: SLF001
        count = await self._delete_knocks(gone) if histories else 0
        return replace(erased, schedules=tuple(senders), histories=erased.histories + count)

    async def _delete_knocks(self, sessions: Collection[str]) -> int:
        """Have the server delete the runs that have sent messages to these sessions; how many."""
        count, queue = 0, self._sessions.settings.task_queue
        with rpc_errors():
            sent = f'WorkflowType = "{KNOCK}" AND TaskQueue = "{queue}"'
            async for run in self._sessions.temporal.list_workflows(sent):
                memo: Mapping[str, Any] = await run.memo_value(SCHEDULE_MEMO, {})
                if memo.get("session") in sessions:
                    await self._sessions.runs.delete_history(run.id, run.run_id)
                    count += 1
        return count

    def _name(self, schedule: str) -> str:
        """The id in Temporal. Another tenant's schedule of the same id has another."""
        return f"{SCHEDULE_PREFIX}{self._tenant}/{schedule}"

    async def _prefix(self, store: Store, schedule: str) -> str:
        """Prefix of the ids of its sessions, which nobody else can know; Temporal puts a time behind it."""
        return await store.sign_id(Signed.RUN, self._tenant, schedule)

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

    async def _made(self, request: ScheduleRequest, *, reason: str = "") -> TemporalSchedule:
        """The schedule in Temporal's form; whom it is for is there. It has one text: the reason hides the note."""
        store, overlap = await self._sessions.store(), ScheduleOverlapPolicy.BUFFER_ONE
        if request.agent is not None:
            if request.when_busy == "reject":
                overlap = ScheduleOverlapPolicy.SKIP
            await self._sessions.check_agent(request.agent, None)
            action = await self._action_of_turn(request, request.agent, store)
        else:
            if await store.tenant_of(str(request.session)) != self._tenant:
                raise UnknownSessionError(describe_missing_session(str(request.session)))
            action = await self._action_of_knock(request, str(request.session), store)
        return TemporalSchedule(
            action=action,
            spec=_spec(request),
            policy=SchedulePolicy(
                overlap=overlap,
                catchup_window=request.catchup_window,
                pause_on_failure=request.session is not None,  # a session that is gone does not come back
            ),
            state=ScheduleState(note=self._codec.seal_text(reason or request.note), paused=request.paused),
        )

    async def _action_of_turn(self, request: ScheduleRequest, agent: str, store: Store) -> ScheduleActionStartWorkflow:
        options = request.model_dump(include={"prompt", "model", "max_steps", "by"})
        about = {"agent": agent, "tenant": self._tenant, "store": store.id, "context": request.context}
        turn = turn_request(request.id, {**options, **about, "budgets": request.budgets})
        turn = turn.model_copy(
            update={"request_id": ""}
        )  # each run is a request of its own, named by its workflow's run
        return ScheduleActionStartWorkflow(
            AGENT_TURN,
            turn,
            id=await self._prefix(store, request.id),
            task_queue=self._sessions.settings.task_queue,
            memo=_memo(request),
            priority=requests.priority_of(request.priority, self._tenant, self._sessions.settings.tenant_weights),
            static_summary=requests.summary(turn),
        )

    async def _action_of_knock(
        self, request: ScheduleRequest, session: str, store: Store
    ) -> ScheduleActionStartWorkflow:
        said = request.model_dump(include={"prompt", "when_busy", "context", "by", "priority"})
        knock = Knock(session=session, tenant=self._tenant, store=store.id, **said)
        return ScheduleActionStartWorkflow(
            KNOCK,
            knock,
            id=f"{KNOCK_PREFIX}{await self._prefix(store, request.id)}",
            task_queue=self._sessions.settings.task_queue,
            memo=_memo(request),
            priority=requests.priority_of(request.priority, self._tenant, self._sessions.settings.tenant_weights),
            static_summary=session[:120],
        )

    async def _request(self, description: ScheduleDescription) -> ScheduleRequest:
        """Request of the schedule, as the schedule itself holds it."""
        action, converter = description.schedule.action, self._sessions.temporal.data_converter
        if not isinstance(action, ScheduleActionStartWorkflow) or not action.memo or not action.args:
            raise _missing(description.id)
        kind = Continuation if action.workflow == AGENT_TURN else Knock
        (told,) = await converter.decode([action.args[0]], [kind])
        (asked,) = await converter.decode([action.memo[SCHEDULE_MEMO]], [dict])
        state = {"paused": description.schedule.state.paused, "note": asked.get("note", self._shown(description))}
        return ScheduleRequest.model_validate({**asked, "prompt": told.prompt, **state})

    def _shown(self, description: ScheduleDescription) -> str:
        """Text that Temporal shows of the schedule, opened."""
        return self._codec.open_text(description.schedule.state.note or "")

    def _reason(self, description: ScheduleDescription, request: ScheduleRequest) -> str:
        """Reason of the last pause or unpause: what Temporal shows, unless that is the schedule's own note."""
        shown = self._shown(description)
        return "" if shown in {request.note, *_NO_REASON} else shown

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
            reason=self._reason(description, request),
            next_at=tuple(moment.astimezone(ZoneInfo(request.timezone)) for moment in info.next_action_times),
            runs=info.num_actions,
            left_out=info.num_actions_skipped_overlap,
            missed=info.num_actions_missed_catchup_window,
        )

    async def _started(self, schedule: str) -> AsyncIterator[WorkflowExecution]:
        name = self._name(schedule).replace("\\", "\\\\").replace('"', '\\"')
        async for run in self._sessions.temporal.list_workflows(f'TemporalScheduledById = "{name}"'):
            yield run


def _said(request: ScheduleRequest) -> ScheduleRequest:
    """The schedule, whose message says something. One that is read again may be older than this rule."""
    if not is_visible(request.prompt):
        raise RequestRefusedError("prompt: has no visible character; say what is to be done")
    return request


def _given(fields: Mapping[str, object]) -> dict[str, object]:
    """The fields without those that None takes away: one that has another default than None cannot hold it."""
    optional = {name for name, field in ScheduleRequest.model_fields.items() if not field.is_required()}
    return {name: value for name, value in fields.items() if value is not None or name not in optional}


def _memo(request: ScheduleRequest) -> dict[str, Any]:
    """Memo with the request, without its prompt: Temporal's own form of a schedule does not tell it."""
    said = request.model_dump(mode="json", exclude_unset=True, exclude={"prompt", "paused"})
    return {SCHEDULE_MEMO: said | {"note": request.note}}


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
