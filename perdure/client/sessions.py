"""Sessions as the client uses them: start turns, send messages, and find turns and their store.

Long, because starting, sending and finding share the same races with a turn that ends meanwhile.
"""

import asyncio
import contextlib
import functools
from collections.abc import AsyncGenerator, Collection, Iterator
from contextlib import aclosing
from datetime import timedelta
from typing import Unpack

import temporalio.client
from temporalio.client import WithStartWorkflowOperation, WorkflowUpdateRPCTimeoutOrCancelledError, WorkflowUpdateStage
from temporalio.common import Priority, WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from perdure import tracing
from perdure.client import requests
from perdure.client.connect import rpc_errors
from perdure.client.encryption import open_store
from perdure.client.errors import (
    BlockedError,
    NoWorkerError,
    RequestRefusedError,
    SessionBusyError,
    SessionErasedError,
    SessionIdleError,
    TurnClosedError,
    UnknownAgentError,
    UnknownSessionError,
)
from perdure.client.executions import Run, Runs
from perdure.client.requests import (
    Content,
    Files,
    SendOptions,
    keep_files,
    read_content,
    turn_request,
    validate,
)
from perdure.client.stream import EventReader, events_of_turns
from perdure.client.turn import Place, Turn
from perdure.client.updates import (
    NotTakenError,
    UpdateRefusedError,
    no_worker_took,
    send_again,
    send_pause,
    sending_update,
)
from perdure.client.waits import Waits
from perdure.client.worker_stores import WorkerStore, check_stores, worker_stores
from perdure.contracts.errors import ReasonCode
from perdure.contracts.events import Envelope
from perdure.contracts.files import FilePart
from perdure.contracts.names import AGENT_TURN, Update
from perdure.contracts.sends import SendReceipt, SendRequest, WhenBusy
from perdure.contracts.turns import TurnRequest
from perdure.contracts.values import replace
from perdure.contracts.waits import Cause, PauseRequest
from perdure.settings import Settings
from perdure.store import Store
from perdure.store.errors import NotFoundError, StoreError
from perdure.store.errors import SessionErasedError as StoreErasedError
from perdure.store.keys.tombstones import describe_erased
from perdure.store.records import TurnRecord

CLOSING_TIMEOUT = timedelta(seconds=30)
"""Longest time that the start of a turn and an erasure wait for hooks of the turn before, which has ended, until that
counts as running.
"""


class Sessions:
    """Sessions of the client, for all of its methods."""

    def __init__(self, temporal: temporalio.client.Client, settings: Settings) -> None:
        self.temporal = temporal
        self.settings = settings
        self.runs = Runs(temporal)
        self._store: Store | None = None
        self._opening = asyncio.Lock()
        self._known_agents: set[str] = set()

    async def store(self) -> Store:
        """The transcript store, opened at the first call: sessions, turns, events and transcripts, also old ones.

        Raises:
            StoreUnavailableError: It cannot be reached.
            StoreVersionError: It was written by a release with another schema.
            StoreMismatchError: The workers of the task queue use another one.
        """
        async with self._opening:
            if self._store is None:
                queue = self.settings.task_queue
                store = await open_store(self.settings)
                try:
                    check_stores(WorkerStore.worker_store_of(store), await worker_stores(self.temporal, queue), queue)
                except BaseException:
                    await store.close()
                    raise
                self._store = store
            return self._store

    async def reach(self) -> temporalio.client.Client:
        """The connection to Temporal, as views ask for it."""
        return self.temporal

    async def close(self) -> None:
        """Close the store. The connection to Temporal needs no closing."""
        store, self._store = self._store, None
        if store is not None:
            await store.close()

    async def read_from(self, session: str, after: int | None) -> AsyncGenerator[Envelope, None]:
        """The events after a number, or from the turn that runs, or else the last, on; see :meth:`Client.events`."""
        running = await self.attach(session, None)
        store = await self.store()
        with store.doorbell.follow(session) as bell:
            reader = EventReader(store, session, after or 0, bell)
            first = 1
            if after is None:
                number = await running.number()
                if number is None:  # refused: nothing of it stands in the log
                    return
                first = number
                await reader.skip_to(first)
            async with aclosing(self.read_log(session, reader, first)) as events:
                async for envelope in events:
                    yield envelope

    async def read_log(self, session: str, reader: EventReader, first: int) -> AsyncGenerator[Envelope, None]:
        """The events of that turn and of all after it, until no turn of the session runs or waits."""
        is_open = functools.partial(self.runs.is_running_patiently, session)
        while True:
            async for envelope in events_of_turns(reader, first, is_open):
                yield envelope
            newest = await self.runs.find_newest(session)
            if newest is None or not newest.running:
                try:
                    await (await self._last_turn_of(session, newest)).result()
                except TurnClosedError:
                    if not await is_open():
                        raise
                else:
                    return

    async def _last_turn_of(self, session: str, newest: Run | None) -> Turn:
        """The turn of a run that has closed, even if another one is started meanwhile."""
        number: int | None = None
        with contextlib.suppress(NotFoundError):
            number = (await (await self.store()).session(session)).turn
        return self.turn(session, newest.request_id if newest else "", newest.run_id if newest else None, number)

    async def check_agent(self, agent: str, session: str | None) -> None:
        """See that the agent is registered or the session's own; a store that cannot be read is not asked."""
        if session is not None:
            await self._refuse_erased(session)
        if agent in self._known_agents:
            return
        try:
            self._known_agents.update(registered.name for registered in await (await self.store()).agents())
            if session is not None:
                with contextlib.suppress(NotFoundError):
                    self._known_agents.add((await (await self.store()).session(session)).agent)
        except StoreError:
            return
        if self._known_agents and agent not in self._known_agents:
            await self.refuse_agent(agent, self._known_agents)

    async def refuse_agent(self, agent: str, known: Collection[str]) -> None:
        """Refuse an agent that is none of the known ones, unless no worker polls: one that has it may come."""
        if await self.runs.has_worker(self.settings.task_queue):
            raise UnknownAgentError(
                f"no worker has an agent {agent!r}; there are: {', '.join(sorted(known))}; correct the name, "
                "or start a worker that has it first: 'perdure worker --agents MODULE'"
            )

    async def _refuse_erased(self, session: str) -> None:
        """Refuse to start a session of an id that was erased; a store that cannot be read is not asked."""
        with contextlib.suppress(StoreError):
            found = await (await self.store()).tombstone(session)
            if found is not None:
                raise SessionErasedError(describe_erased(found))

    async def start(
        self,
        session: str,
        request: TurnRequest,
        files: Files = (),
        priority: int | None = None,
        *,
        is_claimed: bool = False,
        tenant: str | None = None,
    ) -> Turn:
        """Start a turn of the session; with the request of the turn that runs, give that turn.

        Nobody is asked whether the request may have an id that ``is_claimed`` for it, nor for the session's ``tenant``
        if it is given.
        """
        if not is_claimed:
            await requests.check_name(session, request.tenant, self.store)
        parts, traceparent = await self.keep_files(session, files), request.traceparent or tracing.caller()
        request = replace(request, parts=parts, traceparent=traceparent)
        share = await self.share_of(session, request, priority, tenant)
        try:
            return await send_again(lambda: self._start(session, request, share))
        except NotTakenError as error:
            msg = f"session {session!r} could not be started: its turns end as fast as this one is asked for; try again"
            raise SessionBusyError(msg) from error

    async def share_of(
        self, session: str, request: TurnRequest, priority: int | None, tenant: str | None = None
    ) -> Priority:
        """Priority of a turn; its share is that of the tenant that it names, or else of the session that it goes on."""
        origin = request.resume_from
        tenant = request.tenant or tenant
        if tenant is None:
            source = (origin and origin.session) or session
            with contextlib.suppress(StoreError):
                tenant = await (await self.store()).tenant_of(source)
        return requests.priority_of(priority, tenant or "", self.settings.tenant_weights)

    async def _start(self, session: str, request: TurnRequest, share: Priority) -> Turn:
        with rpc_errors():
            try:
                options = requests.workflow_options(session, request, share, self.settings)
                handle = await self.temporal.start_workflow(AGENT_TURN, request, **options)
            except WorkflowAlreadyStartedError as error:
                newest = await self.runs.find_newest(session)
                if newest is None or not newest.running:
                    raise NotTakenError("closed") from error
                running = await self._running(session, newest, request.request_id)
                return running if running is not None else await self._start(session, request, share)
            except RPCError as error:
                # A server may refuse a second run of one id within a second of the first.
                if error.status != RPCStatusCode.RESOURCE_EXHAUSTED:
                    raise
                raise NotTakenError("lost") from error
            return self.turn(session, request.request_id, handle.result_run_id)

    async def _running(self, session: str, run: Run, request_id: str) -> Turn | None:
        """The running turn if it is the one asked for; None if its turn had ended, and the run has closed by now."""
        if run.request_id == request_id:
            return self.turn(session, request_id, run.run_id)
        turn = None
        with contextlib.suppress(StoreError):
            turn = await self.turn_asked_before(session, run.request_id)
        if turn is not None and turn.result is not None and await self._closes(session, run):
            return None
        status = await self.runs.status(session)
        # The store knows the number a moment before the workflow does.
        number = (status.turn if status is not None else None) or (turn.turn if turn is not None else None)
        raise SessionBusyError(
            f"session {session!r} is running {f'turn {number}' if number else 'another turn'}; "
            f"send to it with client.send or 'perdure send {session} …', or cancel it first"
        )

    async def _closes(self, session: str, run: Run) -> bool:
        """Wait for the close of a run whose turn has ended: its last hooks may run. False if they do not end."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSING_TIMEOUT.total_seconds()):
                await self.runs.close(session, run.run_id)
            return True
        return False

    async def wait_until_idle(self, session: str) -> None:
        """Wait for the close of a run whose turn has ended.

        Raises:
            SessionBusyError: A turn of the session runs, or its last hooks do not end.
        """
        while (newest := await self.runs.find_newest(session)) is not None and newest.running:
            turn = await self.turn_asked_before(session, newest.request_id)
            if turn is None or turn.result is None:
                msg = f"a turn of session {session!r} runs; end it with 'perdure cancel {session} --drop-queue' first"
                raise SessionBusyError(msg)
            if not await self._closes(session, newest):
                raise SessionBusyError(
                    f"turn {turn.turn} of session {session!r} has ended, and its last hooks run; wait for them"
                )

    async def send(
        self,
        session: str,
        prompt: Content,
        when_busy: WhenBusy,
        *,
        is_known: bool = False,
        tenant: str | None = None,
        **options: Unpack[SendOptions],
    ) -> Turn:
        """Send a message; the turn that takes it. ``is_known``: a store has the session, and no turn of the request."""
        text, files = await read_content(prompt)
        priority = options.get("priority")
        request, request_id = turn_request(session, {"prompt": text, **options}), options.get("request_id")
        request = replace(request, traceparent=request.traceparent or tracing.caller())
        said = {"request_id": request.request_id, "when_busy": when_busy, "context": request.context, "by": request.by}
        if when_busy != "steer":
            said |= {name: value for name in ("traceparent", "stop_for_results") if (value := getattr(request, name))}
        message = validate(SendRequest, {"prompt": text, **said})
        if not is_known:
            newest = await self.find_run(session)
            if request_id is not None and (earlier := await self.turn_asked_before(session, request_id)) is not None:
                return self.turn(session, request_id, newest.run_id if newest else None, earlier.turn)
        if when_busy == "reject":
            return await self.start(session, request, files, priority, is_claimed=is_known, tenant=tenant)
        parts = await self.keep_files(session, files)
        request, message = replace(request, parts=parts), replace(message, parts=parts)
        share = await self.share_of(session, request, priority, tenant)
        try:
            return await send_again(lambda: self.hand_over(session, request, message, share))
        except UpdateRefusedError as error:
            return await self.turn_of_refused(session, message.request_id, error)
        except NotTakenError as error:
            msg = f"session {session!r} did not take the message: its turns end as fast as it is sent; try again"
            raise SessionBusyError(msg) from error
        except TimeoutError:
            await self.check_worker()
            wait = await Waits(self.runs).wait_of(session)
            if wait is not None and wait.cause is Cause.QUEUED:
                msg = (
                    f"the turn of session {session!r} is {wait.text}; it takes the message when it opens: send no other"
                )
                raise SessionBusyError(msg) from None
            raise no_worker_took("message", session) from None

    async def pause(self, session: str, update: Update, reason: str, by: str) -> bool:
        """Pause a session or have it go on, then the delegates that work for it; whether that changed anything."""
        request = validate(PauseRequest, {"reason": reason, "by": by})
        await self.find_run(session)
        # The caller is first: it begins no delegate once it is paused.
        receipt = await send_pause(self.temporal, session, update, request)
        for delegate in await (await self.store()).running_delegates(session):
            with contextlib.suppress(SessionIdleError):  # it has ended meanwhile
                await self.pause(delegate, update, reason, by)
        return receipt.changed

    async def attach(self, session: str, turn: int | None) -> Turn:
        """A turn by its number; without one, the turn that runs or else the last."""
        newest = await self.runs.find_newest(session)
        if turn is None and newest is not None and newest.running:
            return self.turn(session, newest.request_id, newest.run_id)
        try:
            store = await self.store()
            record = await store.session(session)
        except NotFoundError as error:
            if newest is None or isinstance(error, StoreErasedError):
                raise unknown_session_of(error) from None
            return self.turn(session, newest.request_id, newest.run_id, turn)
        run_id = newest.run_id if newest is not None else None
        if turn is not None and turn > record.turn and newest is not None and not newest.running:
            result = (await self.runs.close(session, newest.run_id)).result
            if turn == record.turn + 1 and result is not None and result.turn is None:  # a worker has refused it
                return self.turn(session, newest.request_id, newest.run_id)
        ahead = newest is not None and newest.running
        if turn is not None and (turn < 1 or (turn > record.turn and not ahead)):
            raise missing_turn(session, turn, record.turn)
        return self.turn(session, "", run_id, turn or record.turn)

    async def keep_files(self, session: str, files: Files) -> tuple[FilePart, ...]:
        """Store a prompt's images and files, and return their parts; without any the store is not opened."""
        return await keep_files(await self.store(), session, files) if files else ()

    async def hand_over(self, session: str, request: TurnRequest, message: SendRequest, share: Priority) -> Turn:
        """Give the message to the running turn, or start the turn that takes it."""
        start: WithStartWorkflowOperation[object, object] = WithStartWorkflowOperation(
            AGENT_TURN,
            request,
            id=session,
            task_queue=self.settings.task_queue,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            priority=share,
            static_summary=requests.summary(request),
            static_details=requests.details(session),
        )
        async with sending_update():
            try:
                update = await self.temporal.start_update_with_start_workflow(
                    Update.SEND,
                    message,
                    start_workflow_operation=start,
                    wait_for_stage=WorkflowUpdateStage.COMPLETED,
                    id=message.request_id,
                    result_type=SendReceipt,
                )
            except (RPCError, WorkflowUpdateRPCTimeoutOrCancelledError):
                # The SDK has put the error into the handle's future too, and asyncio prints what nobody looks at.
                with contextlib.suppress(RPCError, asyncio.CancelledError):
                    await start.workflow_handle()
                raise
            receipt: SendReceipt = await update.result()
        return self.turn(session, message.request_id, update.workflow_run_id, receipt.turn)

    async def turn_of_refused(self, session: str, request_id: str, refused: UpdateRefusedError) -> Turn:
        """The turn of a message that was carried out before."""
        if refused.code == ReasonCode.REQUEST_UNKNOWN_SESSION:
            raise UnknownSessionError(describe_missing_session(session)) from refused
        if refused.code == ReasonCode.REQUEST_BLOCKED:
            raise BlockedError(f"session {session!r}: {refused}") from refused
        if refused.code == ReasonCode.REQUEST_INVALID:
            with contextlib.suppress(StoreError):
                if (earlier := await self.turn_asked_before(session, request_id)) is not None:
                    return self.turn(session, request_id, None, earlier.turn)
        raise RequestRefusedError(f"session {session!r} refused the message: {refused}") from refused

    async def check_worker(self) -> None:
        """See that a worker polls the task queue."""
        queue = self.settings.task_queue
        if not await self.runs.has_worker(queue):
            raise NoWorkerError(
                f"no worker polls the task queue {queue!r}; start one with 'perdure worker --agents MODULE', "
                "or set PERDURE_TASK_QUEUE to your workers' queue"
            )

    async def find_run(self, session: str) -> Run | None:
        """The newest run; None if Temporal has none any more, and the store has the session.

        Raises:
            UnknownSessionError: Neither has it.
        """
        newest = await self.runs.find_newest(session)
        if newest is None:
            await self.check_known(session)
        return newest

    async def check_known(self, session: str) -> None:
        """See that the store has the session."""
        store = await self.store()
        try:
            await store.session(session)
        except NotFoundError as error:
            raise unknown_session_of(error) from None

    async def turn_asked_before(self, session: str, request_id: str) -> TurnRecord | None:
        """The turn that a request has started before."""
        store = await self.store()
        try:
            return await store.turn_by_request(session, request_id)
        except NotFoundError:
            return None

    def turn(self, session: str, request_id: str, run_id: str | None, turn: int | None = None) -> Turn:
        """A turn of the session, by its request or its number."""
        place = Place(session=session, request_id=request_id, run_id=run_id, turn=turn)
        return Turn(place, self.runs, self.store)


def unknown_session_of(error: NotFoundError) -> UnknownSessionError:
    """The client's error for what the store does not have: the session was erased, or there never was one."""
    if isinstance(error, StoreErasedError):
        return SessionErasedError(str(error))
    return UnknownSessionError(f"{error}; 'perdure list' names the sessions there are")


@contextlib.contextmanager
def found_in_store() -> Iterator[None]:
    """Raise the client's error for what the store does not have."""
    try:
        yield
    except NotFoundError as error:
        raise unknown_session_of(error) from error


def missing_turn(session: str, turn: int, last: int) -> UnknownSessionError:
    """The client's error for a turn beyond the last one."""
    return UnknownSessionError(f"session {session!r} has no turn {turn}; its last is {last}")


def describe_missing_session(session: str) -> str:
    """The line for a session that is nowhere."""
    return f"there is no session {session!r}; 'perdure list' names those there are"
