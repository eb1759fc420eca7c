"""The client: what another service needs to run agents. Start, signal, cancel and status need only Temporal.

Long, because each public method says what it takes, gives and raises, and a client is one thing to its callers.
"""

import contextlib
import functools
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterator
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Self, Unpack, overload

import temporalio.client

from perdure.agents.files import File, Image
from perdure.client.cancels import CancelOutcome, OpenFilter, cancel_listed, list_open, outcome_of
from perdure.client.connect import ConnectOptions, connect
from perdure.client.deltas import with_deltas
from perdure.client.errors import (
    NoWorkerError,
    RequestRefusedError,
    SessionIdleError,
    UnknownArtifactError,
    UnknownSessionError,
)
from perdure.client.read import closures, list_sessions, read_trajectory
from perdure.client.replies import Replies
from perdure.client.requests import (
    Content,
    ResumeOptions,
    SendOptions,
    TaskOptions,
    TurnOptions,
    read_content,
    session_id,
    turn_request,
    validate,
)
from perdure.client.schedules import Schedules
from perdure.client.sessions import Erased, Sessions
from perdure.client.stream import EventReader, Every, Types, filter_events, heartbeat_at
from perdure.client.tasks import Task
from perdure.client.turn import Turn
from perdure.client.updates import extend_request, send_limits
from perdure.client.waits import Waits
from perdure.client.webhooks import Webhooks
from perdure.contracts.budgets import Limits
from perdure.contracts.checkpoints import Checkpoint, ResumeFrom
from perdure.contracts.deltas import Delta
from perdure.contracts.events import Envelope
from perdure.contracts.input_requests import AnswerRequest, ApproveRequest, DenyRequest, InputReceipt, OpenRequest
from perdure.contracts.messages import Message
from perdure.contracts.names import Update
from perdure.contracts.turns import BudgetStatus, CancelRequest, TurnStatus, WhenBusy
from perdure.contracts.values import JsonValue
from perdure.contracts.waits import TurnWait
from perdure.settings import Settings, load_settings
from perdure.store import Store
from perdure.store.errors import NotFoundError
from perdure.store.records import Artifact, RegisteredAgent, SessionFilter, SessionRecord, TurnRecord
from perdure.trajectory import Trajectory

GUIDANCE = "what matters for the work ahead"
"""What a summary keeps in mind when the person who asks for it names nothing."""


@contextlib.contextmanager
def _found_in_store() -> Iterator[None]:
    try:
        yield
    except NotFoundError as error:
        raise UnknownSessionError(f"{error}; 'perdure list' names the sessions there are") from error


class Client:
    """A connection to Temporal and, from the first use that needs it, to the transcript store."""

    def __init__(self, temporal: temporalio.client.Client, settings: Settings) -> None:
        self.temporal = temporal
        self.settings = settings
        self._sessions = Sessions(temporal, settings)
        self._runs = self._sessions.runs
        self._replies = Replies(self._sessions)
        self._waits = Waits(self._runs)
        self.webhooks = Webhooks(self._sessions)
        self.schedules = Schedules(self._sessions)

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
        await self._sessions.close()

    async def store(self) -> Store:
        """The transcript store, opened at the first call: sessions, turns, events and transcripts, also old ones.

        Raises:
            StoreUnavailableError: It cannot be reached.
            StoreVersionError: It was written by a release with another schema.
            StoreMismatchError: The workers of the task queue use another one.
        """
        return await self._sessions.store()

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
            await self._sessions.check_agent(agent, None if new else session)
        return await self._sessions.start(session, request, files)

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
        if await self._runs.find_newest(session) is None:
            await self._sessions.check_known(session)
        return await self._sessions.start(session, request)

    async def resume(
        self,
        session: str,
        prompt: Content = "",
        *,
        at: int | None = None,
        turn: int | None = None,
        **options: Unpack[ResumeOptions],
    ) -> Turn:
        """Go on with an idle session: from its end, from the end of a turn, or from step ``at`` of a turn.

        From an earlier place it is a rewind: what came after stays stored, and leaves the conversation. Without a
        prompt nothing is added, and the model answers what stands at the end: a message, or results of calls.

        Args:
            session: The session.
            prompt: What to go on with; as for :meth:`Client.start`, it may hold images and files.
            at: The step, by its number; its calls have their results, and never run again.
            turn: The turn of the step; None is the last. 0 is before the first message.
            options: As for a turn that is started.

        Raises:
            UnknownSessionError: There is no session of that id.
            SessionBusyError: A turn of the session runs.
            ServerUnreachableError: The server does not answer.
        """
        origin = validate(ResumeFrom, {"turn": turn, "step": at})
        text, files = await read_content(prompt)
        request = turn_request(session, {"resume_from": origin, "prompt": text, **options})
        await self._sessions.check_known(session)
        return await self._sessions.start(session, request, files)

    async def fork(
        self,
        session: str,
        prompt: Content = "",
        *,
        at: int | None = None,
        turn: int | None = None,
        into: str | None = None,
        **options: Unpack[ResumeOptions],
    ) -> Turn:
        """Begin a new session from a step of another one, which stays as it is and may even run.

        Nothing is copied, so a fork costs the same wherever it begins. ``into`` is the new session's id; the other
        arguments are those of :meth:`resume`.

        Raises:
            UnknownSessionError: There is no session of that id.
            RequestRefusedError: The new session is to have the name of the old one.
            SessionBusyError: The new session exists, and a turn of it runs.
            ServerUnreachableError: The server does not answer.
        """
        if into == session:
            msg = f"session {session!r} cannot be forked into itself; resume it there, or name another id"
            raise RequestRefusedError(msg)
        origin = validate(ResumeFrom, {"session": session, "turn": turn, "step": at})
        new = session_id(session) if into is None else into
        text, files = await read_content(prompt)
        request = turn_request(new, {"resume_from": origin, "prompt": text, **options})
        await self._sessions.check_known(session)
        return await self._sessions.start(new, request, files)

    async def send(
        self, session: str, prompt: Content, *, when_busy: WhenBusy = "queue", **options: Unpack[SendOptions]
    ) -> Turn:
        """Send a message to a session: an idle one starts the turn at once. The turn that takes it is returned.

        The message may hold images and files, as for :meth:`start`.

        Args:
            session: The session.
            prompt: The message.
            when_busy: What becomes of it while a turn runs. ``reject``: it is refused. ``queue``: it waits for a turn.
                ``steer``: the running turn reads it before its next generation. ``interrupt``: the running turn and
                those that wait are cancelled, and it is the next. ``rollback``: the same, and its turn begins where
                the running one began.
            options: ``request_id``, with which sending twice is harmless, and ``context`` and ``by`` for the turn.

        Raises:
            UnknownSessionError: There is no session of that id; nothing was sent.
            SessionBusyError: A turn runs, and ``when_busy`` is ``reject``; or turns end as fast as it is sent.
            RequestRefusedError: The message is not valid, or too many wait already.
            NoWorkerError: No worker took the message.
        """
        return await self._sessions.send(session, prompt, when_busy, **options)

    async def answer(self, session: str, request: str, value: JsonValue, *, by: str = "") -> InputReceipt:
        """Answer a question: the value becomes the result of the call that asks.

        Text that does not fit is taken for JSON if that does. A session that has stopped for the question goes on with
        its next turn.

        Raises:
            RequestRefusedError: Nothing waits for this answer, it does not fit, or another one was given before.
            UnknownSessionError: There is no session of that id.
            NoWorkerError: No worker took the answer.
        """
        if any(isinstance(part, Image | File) for part in (value if isinstance(value, list) else [value])):
            raise RequestRefusedError(
                "an answer is text or JSON; send images and files before it, with "
                'client.send(session, […], when_busy="steer")'
            )
        return await self._replies.reply(
            session, Update.ANSWER, AnswerRequest, {"request": request, "value": value, "by": by}
        )

    async def approve(self, session: str, request: str, *, by: str, digest: str = "") -> InputReceipt:
        """Let a tool call run; with the request's ``digest``, only if its arguments are what it was made of.

        Raises:
            RequestRefusedError: Nothing waits for it, it expired, is for other arguments, or was denied before.
            UnknownSessionError: There is no session of that id.
            NoWorkerError: No worker took the approval.
        """
        return await self._replies.reply(
            session, Update.APPROVE, ApproveRequest, {"request": request, "by": by, "digest": digest}
        )

    async def deny(self, session: str, request: str, *, by: str, reason: str = "") -> InputReceipt:
        """Refuse a tool call, or to answer a question: the model gets an error result with the reason.

        Raises:
            RequestRefusedError: Nothing waits for it, or something else was decided before.
            UnknownSessionError: There is no session of that id.
            NoWorkerError: No worker took the denial.
        """
        return await self._replies.reply(
            session, Update.DENY, DenyRequest, {"request": request, "by": by, "reason": reason}
        )

    async def inbox(
        self, session: str | None = None, *, agent: str | None = None, tenant: str | None = None
    ) -> list[OpenRequest]:
        """What waits for people now, the oldest request first: over all sessions, or of one.

        Left out are turns whose workflow Temporal has ended, and approvals whose time is over.

        Args:
            session: Only what this session waits for.
            agent: Only turns of this agent.
            tenant: Only sessions of this tenant; empty is the default tenant.

        Raises:
            ServerUnreachableError: The server does not answer.
            StoreError: The store does not answer.
        """
        return await self._replies.open_requests(session, agent=agent, tenant=tenant)

    async def attach(self, session: str, turn: int | None = None) -> Turn:
        """A turn of a session by its number; without one, the turn that runs or else the last.

        Raises:
            UnknownSessionError: There is no such session, or no such turn of it.
            StoreError: The store is needed and cannot be read.
        """
        return await self._sessions.attach(session, turn)

    @overload
    def events(
        self, session: str, after: int | None = ..., types: Types = ..., *, heartbeat: Every = ...
    ) -> AsyncIterator[Envelope]: ...

    @overload
    def events(
        self, session: str, after: int | None = ..., types: Types = ..., *, heartbeat: Every = ..., deltas: bool
    ) -> AsyncIterator[Envelope | Delta]: ...

    async def events(
        self,
        session: str,
        after: int | None = None,
        types: Types = (),
        *,
        heartbeat: Every = None,
        deltas: bool = False,
    ) -> AsyncIterator[Envelope | Delta]:
        """The events of a session as they come, through all its turns, until no turn of it runs or waits.

        Who was away names the ``seq`` of the last event seen and misses nothing; what was written meanwhile is marked
        as ``replayed``.

        Args:
            session: The session.
            after: A sequence number; 0 begins with the first event, None with the turn that runs, or else the last.
            types: As for :meth:`perdure.client.Turn.events`; so are ``heartbeat`` and ``deltas``.
            heartbeat: The longest silence.
            deltas: Whether pieces of answers come too.

        Raises:
            UnknownSessionError: There is no session of that id.
            RequestRefusedError: The log ends before ``after``, there is no such type, or the heartbeat is too short.
        """
        before = heartbeat_at(session, 0, after or 0)
        plain = self._events(session, after)
        log = with_deltas(plain, await self.store(), session, after or 0) if deltas else plain
        async with aclosing(filter_events(log, types, heartbeat=heartbeat, before=before)) as events:
            async for item in events:
                yield item

    async def _events(self, session: str, after: int | None) -> AsyncGenerator[Envelope, None]:
        running = await self.attach(session)
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
            async with aclosing(self._sessions.read_log(session, reader, first)) as events:
                async for envelope in events:
                    yield envelope

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
        if await self._runs.find_newest(session) is None:
            await self._sessions.check_known(session)
        return False

    async def cancel_all(
        self, reason: str = "", *, dry_run: bool = True, drop_queue: bool = True, **wanted: Unpack[OpenFilter]
    ) -> list[CancelOutcome]:
        """Have the running turns of all sessions stopped that a filter means, at most 5,000 at once.

        What begins after the sessions were listed is left alone.

        Args:
            reason: As for :meth:`cancel`.
            dry_run: Whether nothing is cancelled, and the answer says what would be.
            drop_queue: As there.
            wanted: ``tenant``, ``agent``, ``state``, ``since``, ``caller``, ``delegates``.

        Raises:
            RequestRefusedError: The filter wants sessions that have ended.
            ServerUnreachableError: The server does not answer.
        """
        listed = await list_open(await self.store(), functools.partial(closures, self.temporal), wanted)
        if dry_run:
            return [outcome_of(row, "would_cancel") for row in listed]
        return await cancel_listed(self._runs, listed, reason, drop_queue=drop_queue)

    async def pause(self, session: str, reason: str = "", *, by: str = "") -> bool:
        """Have a session stand still: what runs finishes, and nothing begins until it is unpaused. False if it does so.

        Delegates are paused too. The time counts against no limit. Messages that wait begin their turns paused.

        Raises:
            SessionIdleError: No turn of the session runs.
            UnknownSessionError: There is no session of that id.
            NoWorkerError: No worker took the request.
        """
        return await self._sessions.pause(session, Update.PAUSE, reason, by)

    async def unpause(self, session: str, *, by: str = "") -> bool:
        """Have a paused session and its delegates go on; False if it was not paused. Raises what :meth:`pause` does."""
        return await self._sessions.pause(session, Update.UNPAUSE, "", by)

    async def delete(self, session: str, *, histories: bool = False) -> Erased:
        """Erase an idle session and its delegates' from the store; the id may be used anew. What was cut off goes on.

        Steps that forks stand on stay. Temporal keeps histories until its retention, unless ``histories`` is set.
        It raises SessionBusyError and UnknownSessionError.
        """
        return await self._sessions.delete(session, histories=histories)

    async def budget(self, session: str) -> BudgetStatus | None:
        """The limits of the running turn and what counts against them; None if no turn runs or nobody answers."""
        return await self._runs.budget(session)

    async def extend(
        self, session: str, *, turn: int | None = None, end: bool = False, **limits: Unpack[Limits]
    ) -> BudgetStatus:
        """Set limits of the running turn, each as a whole; those that are not named stay. The same twice is harmless.

        Args:
            session: The session.
            turn: Only if this turn is the one that runs.
            end: Whether a limit may be one that is used up already, so that the turn ends.
            limits: ``max_steps``, ``cost_usd``, ``llm_calls``, ``tool_calls``, ``behavior_calls``, ``events``,
                ``seconds``, ``patches``, ``depth``.

        Returns:
            All limits of the turn, and what counts against them.

        Raises:
            RequestRefusedError: A limit cannot be set; the message says why.
            SessionIdleError: No turn of the session runs.
            UnknownSessionError: There is no session of that id.
            NoWorkerError: No worker took the limits.
        """
        request = extend_request(turn=turn, end=end, **limits)
        if await self._runs.find_newest(session) is None:
            await self._sessions.check_known(session)
        try:
            return await send_limits(self.temporal, session, request)
        except NoWorkerError:
            await self.check_worker()
            raise

    async def status(self, session: str) -> TurnStatus:
        """Where the running turn stands, asked of the worker that runs it; ``waits_for`` says why if it stands still.

        Raises:
            SessionIdleError: No turn runs, or no worker answers, which :meth:`waits_for` explains.
            UnknownSessionError: There is no session of that id.
        """
        newest = await self._runs.find_newest(session)
        if newest is None:
            await self._sessions.check_known(session)
        if newest is None or not newest.running:
            msg = f"no turn of session {session!r} runs; 'perdure show {session}' tells what its last turn did"
            raise SessionIdleError(msg)
        status = await self._runs.status(session)
        if status is None:
            wait = (await self._waits.waits_of([session])).get(session)
            why = f": it {wait.sentence(datetime.now(UTC))}" if wait is not None else " yet; ask again in a moment"
            raise SessionIdleError(f"the turn of session {session!r} is not held by any worker{why}")
        return await self._waits.with_wait(status)

    async def waits_for(self, session: str) -> TurnWait | None:
        """Why the running turn stands still, since when, and what to do; None if it goes on, or none runs.

        Temporal is asked, so that the answer needs no worker and no store.

        Raises:
            ServerUnreachableError: The server does not answer.
        """
        return await self._waits.wait_of(session)

    async def waits(self, sessions: Collection[str]) -> dict[str, TurnWait]:
        """The same for several sessions, five at a time; those that go on, or cannot be asked about, are left out."""
        return await self._waits.waits_of(sessions)

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
        await self._sessions.check_known(session)
        return list(await (await self.store()).turns(session))

    async def transcript(self, session: str, turn: int | None = None) -> list[Message]:
        """The conversation as it is now, or as it was at the end of a turn.

        Raises:
            UnknownSessionError: There is no session of that id in the store, or no such turn.
        """
        with _found_in_store():
            return list(await (await self.store()).transcript(session, turn=turn))

    async def trajectory(self, session: str, turn: int | None = None) -> Trajectory:
        """What a session came to so far, or what one turn of it did, as one value.

        Raises:
            UnknownSessionError: There is no session of that id in the store, or no such turn.
        """
        with _found_in_store():
            return await read_trajectory(await self.store(), session, turn)

    async def checkpoints(self, session: str) -> list[Checkpoint]:
        """Every step of the session as a place to go on from, in order; also those that a rewind left behind.

        Raises:
            UnknownSessionError: There is no session of that id in the store.
        """
        with _found_in_store():
            return list(await (await self.store()).checkpoints(session))

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

    def task(self, agent: str, *, name: str | None = None, **options: Unpack[TaskOptions]) -> "Task":
        """The agent as a function: ``await client.task("clerk")("goal")`` gives a trajectory.

        Args:
            agent: Its name.
            name: What an evaluation calls it; by default the agent's name.
            options: As for a turn that is started, the same for each goal.
        """
        return Task(client=self, agent=agent, name=name or agent, options=options)

    async def check_worker(self) -> None:
        """See that a worker polls the task queue.

        Raises:
            NoWorkerError: None has for a minute; what is started now waits until one does.
        """
        await self._sessions.check_worker()
