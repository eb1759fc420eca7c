"""The client: what another service needs to run agents. Start, signal, cancel and status need only Temporal.

Long, because each public method says what it takes, gives and raises, and a client is one thing to its callers.
"""

import asyncio
import contextlib
import functools
from collections.abc import AsyncGenerator, AsyncIterator, Collection
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Self, Unpack

import temporalio.client
from temporalio.client import (
    WithStartWorkflowOperation,
    WorkflowUpdateRPCTimeoutOrCancelledError,
    WorkflowUpdateStage,
)
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from perdure.client import requests
from perdure.client.checkpoints import Checkpoints
from perdure.client.connect import ConnectOptions, connect, rpc_errors
from perdure.client.errors import (
    NoWorkerError,
    RequestRefusedError,
    SessionBusyError,
    SessionIdleError,
    TurnClosedError,
    UnknownAgentError,
    UnknownArtifactError,
    UnknownSessionError,
)
from perdure.client.executions import Run, Runs
from perdure.client.extending import Extending
from perdure.client.patience import PAUSE
from perdure.client.read import closures, list_sessions
from perdure.client.requests import (
    Content,
    Files,
    SendOptions,
    TurnOptions,
    keep_files,
    read_content,
    session_id,
    turn_request,
    validate,
)
from perdure.client.stream import EventReader, chosen, events_of_turns, heartbeat_at
from perdure.client.tasks import Tasks
from perdure.client.turn import Place, Turn
from perdure.client.updates import ATTEMPTS, TIMEOUT, NotTakenError, UpdateRefusedError, deliver, update_errors
from perdure.client.waits import Waits
from perdure.client.worker_stores import WorkerStore, check_stores, worker_stores
from perdure.contracts.errors import ReasonCode
from perdure.contracts.events import Envelope
from perdure.contracts.files import FilePart
from perdure.contracts.names import AGENT_TURN, Update
from perdure.contracts.turns import (
    CancelRequest,
    SendReceipt,
    SendRequest,
    TurnRequest,
    TurnStatus,
)
from perdure.contracts.waits import TurnWait
from perdure.settings import Settings, load_settings
from perdure.store import Store
from perdure.store.errors import NotFoundError, StoreError
from perdure.store.records import Artifact, RegisteredAgent, SessionFilter, SessionRecord, TurnRecord

CLOSING_TIMEOUT = timedelta(seconds=30)
"""How long the start of a turn waits for hooks of the one before, which has ended, until that counts as running."""

GUIDANCE = "what matters for the work ahead"
"""What a summary keeps in mind when the person who asks for it names nothing."""


class Client(Extending, Checkpoints, Tasks):
    """A connection to Temporal and, from the first use that needs it, to the transcript store."""

    def __init__(self, temporal: temporalio.client.Client, settings: Settings) -> None:
        self.temporal = temporal
        self.settings = settings
        self._runs = Runs(temporal)
        self._waits = Waits(self._runs)
        self._store: Store | None = None
        self._opening = asyncio.Lock()
        self._known_agents: set[str] = set()

    @classmethod
    async def connect(cls, settings: Settings | None = None, **options: Unpack[ConnectOptions]) -> Self:
        """Connect by the environment: Temporal's own configuration, and ``PERDURE_*`` unless ``settings`` are given.

        Args:
            settings: In place of ``PERDURE_*``.
            options: Each in place of what the environment and ``settings`` say: ``address``, ``namespace``, ``tls``
                and ``api_key`` of the Temporal server, ``store_url`` and ``task_queue``.

        Raises:
            ServerUnreachableError: Nothing answers at the address.
            ServerRefusedError: The server does not accept the credentials.
            TemporalConfigError: Temporal's configuration cannot be read, or the address is not HOST:PORT.
            SettingsError: An environment variable has a value that cannot be used.
        """
        ours = {name: value for name, value in options.items() if name in Settings.model_fields}
        return cls(await connect(**options), (settings or load_settings()).model_copy(update=ours))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the store. The connection to Temporal needs no closing."""
        store, self._store = self._store, None
        if store is not None:
            await store.close()

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
                store = await Store.open(self.settings.store_url)
                try:
                    check_stores(WorkerStore.of(store), await worker_stores(self.temporal, queue), queue)
                except BaseException:
                    await store.close()
                    raise
                self._store = store
            return self._store

    async def start(
        self, agent: str, prompt: Content, *, session: str | None = None, **options: Unpack[TurnOptions]
    ) -> Turn:
        """Start a turn; with a ``request_id`` that was used before, give the turn that it started.

        A prompt may be a list of texts, ``perdure.Image`` and ``perdure.File``, which are put into the store first.

        Raises:
            RequestRefusedError: The request is not valid; nothing was sent.
            UnknownAgentError: Workers poll the queue, and none has registered the agent: the turn would be refused.
                Without any worker it waits for one, which may have the agent.
            SessionBusyError: Another turn of the session runs, or its last hooks do for over 30 s.
            ServerUnreachableError: The server does not answer.
        """
        new = session is None
        session = session_id(agent) if session is None else session
        text, files = await read_content(prompt)
        request = turn_request(session, {"agent": agent, "prompt": text, **options})
        if request.definition is None:
            await self._check_agent(agent, None if new else session)
        return await self._start(session, request, files)

    async def _check_agent(self, agent: str, session: str | None) -> None:
        """See that the agent is registered or the session's own; a store that cannot be read is not asked."""
        if agent in self._known_agents:
            return
        try:
            self._known_agents.update(registered.name for registered in await self.agents())
            if session is not None:
                with contextlib.suppress(NotFoundError):
                    self._known_agents.add((await (await self.store()).session(session)).agent)
        except StoreError:
            return
        known, queue = self._known_agents, self.settings.task_queue
        if known and agent not in known and await self._runs.has_worker(queue):
            msg = (
                f"no worker has an agent {agent!r}; there are: {', '.join(sorted(known))}; correct the name, "
                "or start a worker that has it first: 'perdure worker --agents MODULE'"
            )
            raise UnknownAgentError(msg)

    async def compact(self, session: str, guidance: str = "", *, request_id: str | None = None) -> Turn:
        """Have an idle session's conversation summarised: a turn that generates nothing else.

        Models then read the summary and the last messages; ``transcript`` goes on giving every message. ``guidance``
        says what the summary must keep in mind.

        Raises:
            UnknownSessionError: There is no session of that id.
            SessionBusyError: A turn of the session runs.
            ServerUnreachableError: The server does not answer.
        """
        request = turn_request(session, {"prompt": guidance or GUIDANCE, "request_id": request_id, "compact": True})
        if await self._runs.newest(session) is None:
            await self._known_to_the_store(session)
        return await self._start(session, request)

    async def _start(self, session: str, request: TurnRequest, files: Files = ()) -> Turn:
        request = request.model_copy(update=await self._kept(session, files))
        for _ in range(ATTEMPTS):
            with rpc_errors():
                try:
                    handle = await self.temporal.start_workflow(
                        AGENT_TURN,
                        request,
                        id=session,
                        task_queue=self.settings.task_queue,
                        id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
                        id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
                        static_summary=requests.summary(request),
                        static_details=requests.details(session),
                    )
                    return self._turn(session, request.request_id, handle.result_run_id)
                except WorkflowAlreadyStartedError:
                    newest = await self._runs.newest(session)
                    if newest is not None and newest.running:
                        running = await self._running(session, newest, request.request_id)
                        if running is None:
                            continue
                        return running
                except RPCError as error:
                    # A server may refuse a second run of one id within a second of the first.
                    if error.status != RPCStatusCode.RESOURCE_EXHAUSTED:
                        raise
            await asyncio.sleep(PAUSE.total_seconds())
        msg = f"session {session!r} could not be started: its turns end as fast as this one is asked for; try again"
        raise SessionBusyError(msg)

    async def _running(self, session: str, run: Run, request_id: str) -> Turn | None:
        """The running turn if it is the one asked for; None if its turn had ended, and the run has closed by now."""
        if run.request_id == request_id:
            return self._turn(session, request_id, run.run_id)
        with contextlib.suppress(StoreError, TimeoutError):
            turn = await self._asked_before(session, run.request_id)
            if turn is not None and turn.result is not None:
                async with asyncio.timeout(CLOSING_TIMEOUT.total_seconds()):
                    await self._runs.close(session, run.run_id)
                return None
        status = await self._runs.status(session)
        number = f"turn {status.turn}" if status is not None else "another turn"
        msg = (
            f"session {session!r} is running {number}; "
            f"send to it with client.send or 'perdure send {session} …', or cancel it first"
        )
        raise SessionBusyError(msg)

    async def send(self, session: str, prompt: Content, *, steer: bool = False, **options: Unpack[SendOptions]) -> Turn:
        """Send a message to a session: into the next turn, or with ``steer`` into the one that runs.

        A busy session queues the message; an idle one starts the turn at once. The turn that takes it is returned.
        The message may hold images and files, as for :meth:`start`.

        Raises:
            UnknownSessionError: There is no session of that id; nothing was sent.
            RequestRefusedError: The message is not valid, or too many wait already.
            NoWorkerError: No worker took the message.
        """
        text, files = await read_content(prompt)
        request, request_id = turn_request(session, {"prompt": text, **options}), options.get("request_id")
        newest = await self._runs.newest(session)
        if newest is None:
            await self._known_to_the_store(session)
        if request_id is not None and (earlier := await self._asked_before(session, request_id)) is not None:
            return self._turn(session, request_id, newest.run_id if newest else None, earlier.turn)
        parts = await self._kept(session, files)
        request = request.model_copy(update=parts)
        said = {"request_id": request.request_id, "steer": steer, "context": request.context, "by": request.by}
        message = validate(SendRequest, {"prompt": text, **said}).model_copy(update=parts)
        try:
            return await deliver(lambda: self._hand_over(session, request, message))
        except UpdateRefusedError as error:
            return await self._refused(session, message.request_id, error)
        except NotTakenError as error:
            msg = f"session {session!r} did not take the message: its turns end as fast as it is sent; try again"
            raise SessionBusyError(msg) from error
        except TimeoutError:
            await self.check_worker()
            msg = f"no worker took the message for session {session!r} within {TIMEOUT.total_seconds():.0f} s"
            raise NoWorkerError(msg) from None

    async def _kept(self, session: str, files: Files) -> dict[str, tuple[FilePart, ...]]:
        """The field of a request with what stands for its images and files; no field without any."""
        return {"parts": await keep_files(await self.store(), session, files)} if files else {}

    async def _hand_over(self, session: str, request: TurnRequest, message: SendRequest) -> Turn:
        """Give the message to the running turn, or start the turn that takes it."""
        start: WithStartWorkflowOperation[object, object] = WithStartWorkflowOperation(
            AGENT_TURN,
            request,
            id=session,
            task_queue=self.settings.task_queue,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            static_summary=requests.summary(request),
            static_details=requests.details(session),
        )
        with update_errors():
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
        return self._turn(session, message.request_id, update.workflow_run_id, receipt.turn)

    async def _refused(self, session: str, request_id: str, refused: UpdateRefusedError) -> Turn:
        """The turn of a message that was carried out before.

        Raises:
            UnknownSessionError: There is no session of that id.
            RequestRefusedError: The workflow refused the message for another reason.
        """
        if refused.code == ReasonCode.REQUEST_UNKNOWN_SESSION:
            raise UnknownSessionError(_no_session(session)) from refused
        if refused.code == ReasonCode.REQUEST_INVALID:
            with contextlib.suppress(StoreError):
                if (earlier := await self._asked_before(session, request_id)) is not None:
                    return self._turn(session, request_id, None, earlier.turn)
        raise RequestRefusedError(f"session {session!r} refused the message: {refused}") from refused

    async def attach(self, session: str, turn: int | None = None) -> Turn:
        """A turn of a session by its number; without one, the turn that runs or else the last.

        Raises:
            UnknownSessionError: There is no such session, or no such turn of it.
            StoreError: The store is needed and cannot be read.
        """
        newest = await self._runs.newest(session)
        if turn is None and newest is not None and newest.running:
            return self._turn(session, newest.request_id, newest.run_id)
        try:
            store = await self.store()
            record = await store.session(session)
        except NotFoundError:
            if newest is None:
                raise UnknownSessionError(_no_session(session)) from None
            return self._turn(session, newest.request_id, newest.run_id, turn)
        run_id = newest.run_id if newest is not None else None
        ahead = newest is not None and newest.running
        if turn is not None and (turn < 1 or (turn > record.turn and not ahead)):
            msg = f"session {session!r} has no turn {turn}; its last is {record.turn}"
            raise UnknownSessionError(msg)
        return self._turn(session, "", run_id, turn or record.turn)

    async def events(
        self,
        session: str,
        after: int | None = None,
        types: Collection[str] = (),
        *,
        heartbeat: timedelta | None = None,
    ) -> AsyncIterator[Envelope]:
        """The events of a session as they come, through all its turns, until no turn of it runs or waits.

        Who was away names the ``seq`` of the last event seen and misses nothing; what was written meanwhile is marked
        as ``replayed``.

        Args:
            session: The session.
            after: A sequence number; 0 begins with the first event, None with the turn that runs, or else the last.
            types: As for :meth:`perdure.client.Turn.events`.
            heartbeat: Likewise.

        Raises:
            UnknownSessionError: There is no session of that id.
            RequestRefusedError: The log of the session ends before ``after``, there is no such type, or the heartbeat
                is too short.
            TurnClosedError: The workflow closed and its turn will never end.
            StoreError: The store did not answer for a minute.
        """
        before = heartbeat_at(session, 0, after or 0)
        async with aclosing(chosen(self._events(session, after), types, heartbeat=heartbeat, before=before)) as events:
            async for envelope in events:
                yield envelope

    async def _events(self, session: str, after: int | None) -> AsyncGenerator[Envelope, None]:
        running = await self.attach(session)
        store = await self.store()
        reader = EventReader(store, session, after or 0)
        first = 1
        if after is None:
            number = await running.number()
            if number is None:  # refused: nothing of it stands in the log
                return
            first = number
            await reader.skip_to(first)
        is_open = functools.partial(self._runs.patiently_running, session)
        while True:
            async for envelope in events_of_turns(reader, first, is_open):
                yield envelope
            newest = await self._runs.newest(session)
            if newest is None or not newest.running:
                try:
                    await (await self._last(session, newest)).result()
                except TurnClosedError:
                    if not await is_open():
                        raise
                else:
                    return

    async def _last(self, session: str, newest: Run | None) -> Turn:
        """The turn of a run that has closed, even if another one is started meanwhile."""
        number: int | None = None
        with contextlib.suppress(NotFoundError):
            number = (await (await self.store()).session(session)).turn
        return self._turn(session, newest.request_id if newest else "", newest.run_id if newest else None, number)

    async def cancel(
        self, session: str, reason: str = "", turn: int | None = None, *, drop_queue: bool = False
    ) -> bool:
        """Have the running turn stopped, or ``turn``, which may be one whose message waits; False if none is to stop.

        Without a worker the request waits for the next one, which ignores it if that turn neither runs nor waits then.

        Args:
            session: The session.
            reason: Why; it is kept with the turn.
            turn: The number of the turn to stop.
            drop_queue: Whether all messages that wait are dropped too: each gets its turn, which ends as cancelled.

        Raises:
            WrongTurnError: That turn neither runs nor waits; the message says which do.
            UnknownSessionError: There is no session of that id.
        """
        request = validate(CancelRequest, {"reason": reason, "turn": turn, "drop_queue": drop_queue})
        if await self._runs.cancel(session, request):
            return True
        if await self._runs.newest(session) is None:
            await self._known_to_the_store(session)
        return False

    async def status(self, session: str) -> TurnStatus:
        """Where the running turn stands, asked of the worker that runs it; ``waits_for`` says why if it stands still.

        Raises:
            SessionIdleError: No turn runs, or no worker answers, which :meth:`waits_for` explains.
            UnknownSessionError: There is no session of that id.
        """
        newest = await self._runs.newest(session)
        if newest is None:
            await self._known_to_the_store(session)
        if newest is None or not newest.running:
            msg = f"no turn of session {session!r} runs; 'perdure show {session}' tells what its last turn did"
            raise SessionIdleError(msg)
        status = await self._runs.status(session)
        if status is None:
            wait = (await self._waits.of_several([session])).get(session)
            why = f": it {wait.sentence(datetime.now(UTC))}" if wait is not None else " yet; ask again in a moment"
            msg = f"the turn of session {session!r} is not held by any worker{why}"
            raise SessionIdleError(msg)
        return await self._waits.told(status)

    async def waits_for(self, session: str) -> TurnWait | None:
        """Why the running turn stands still, since when, and what to do; None if it goes on, or none runs.

        Temporal is asked, so that the answer needs no worker and no store.

        Raises:
            ServerUnreachableError: The server does not answer.
        """
        return await self._waits.of(session)

    async def waits(self, sessions: Collection[str]) -> dict[str, TurnWait]:
        """The same for several sessions, five at a time; those that go on, or cannot be asked about, are left out."""
        return await self._waits.of_several(sessions)

    async def sessions(
        self, *, limit: int = 50, **wanted: Unpack[SessionFilter]
    ) -> list[tuple[SessionRecord, TurnRecord]]:
        """Sessions with their last turns, those that began last first.

        An open turn whose workflow Temporal has ended is listed as ended, with a ``closure``.

        Raises:
            ServerUnreachableError: The server does not answer.
        """
        ask = functools.partial(closures, self.temporal)
        return await list_sessions(await self.store(), ask, limit=limit, **wanted)

    async def turns(self, session: str) -> list[TurnRecord]:
        """All turns of a session, the open one included.

        Raises:
            UnknownSessionError: There is no session of that id in the store.
        """
        await self._known_to_the_store(session)
        return list(await (await self.store()).turns(session))

    async def artifact(self, session: str, artifact: str) -> Artifact:
        """A long output, an image or a file that a tool of the session gave; ``data`` are its bytes.

        Raises:
            UnknownArtifactError: The session has none of that handle.
        """
        try:
            return await (await self.store()).artifact(artifact, session=session)
        except NotFoundError as error:
            raise UnknownArtifactError(f"{error}; 'perdure show {session}' tells its handles") from None

    async def agents(self) -> list[RegisteredAgent]:
        """The agents that workers have registered."""
        return list(await (await self.store()).agents())

    async def check_worker(self) -> None:
        """See that a worker polls the task queue.

        Raises:
            NoWorkerError: None has for a minute; what is started now waits until one does.
        """
        queue = self.settings.task_queue
        if not await self._runs.has_worker(queue):
            msg = (
                f"no worker polls the task queue {queue!r}; start one with 'perdure worker --agents MODULE', "
                "or set PERDURE_TASK_QUEUE to the queue of yours"
            )
            raise NoWorkerError(msg)

    async def _known_to_the_store(self, session: str) -> None:
        store = await self.store()
        try:
            await store.session(session)
        except NotFoundError:
            raise UnknownSessionError(_no_session(session)) from None

    async def _asked_before(self, session: str, request_id: str) -> TurnRecord | None:
        store = await self.store()
        try:
            return await store.turn_by_request(session, request_id)
        except NotFoundError:
            return None

    def _turn(self, session: str, request_id: str, run_id: str | None, turn: int | None = None) -> Turn:
        place = Place(session=session, request_id=request_id, run_id=run_id, turn=turn)
        return Turn(place, self._runs, self.store)


def _no_session(session: str) -> str:
    return f"there is no session {session!r}; 'perdure list' names those there are"
