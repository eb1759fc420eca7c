"""The client: what another service needs to run agents.

Start, send, cancel and status need the store only for files, for a ``request_id`` of send, and for sessions that
Temporal has forgotten. (A start also looks there whether the agent is known; a store that cannot be read is not asked.)

Long, because each public method says what it takes, gives and raises, and a client is one thing to its callers.
"""

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Self, Unpack, overload

import temporalio.client

from perdure.client.asks import Ask, Compact, Fork, Resume, Send, Start, carry_out
from perdure.client.blocks import BlockOutcome, Blocks, Only
from perdure.client.cancels import CancelOutcome, OpenFilter, cancel_listed, cancel_one, list_open, outcome_of
from perdure.client.connect import ConnectOptions
from perdure.client.deltas import with_deltas
from perdure.client.erasures import Erased
from perdure.client.errors import NoWorkerError, SessionIdleError, UnknownArtifactError
from perdure.client.read import ask_of, list_sessions, read_trajectory
from perdure.client.replies import Replied, Replies, refuse_attached
from perdure.client.requests import Admit, Content, ReplyOptions, ResultMore, SendOptions, validate
from perdure.client.resumes import MOST, PER_SECOND, EndedFilter, Pace, ResumeOutcome, resume_ended
from perdure.client.schedules import Schedules
from perdure.client.sessions import Sessions, found_in_store
from perdure.client.standing_approvals import ApproveMore, StandingApprovals
from perdure.client.stream import Every, Types, filter_events, heartbeat_at
from perdure.client.tasks import Task
from perdure.client.texts import refuse_odd_texts, refuses_odd_texts
from perdure.client.turn import Turn
from perdure.client.updates import extend_request, send_limits
from perdure.client.views import SessionView, Sources, TurnView, Views
from perdure.client.waits import Waits
from perdure.client.webhooks import Webhooks
from perdure.client.worker_stores import connect_to_fleet
from perdure.contracts.blocks import Block
from perdure.contracts.budgets import Limits
from perdure.contracts.checkpoints import Checkpoint
from perdure.contracts.deltas import Delta
from perdure.contracts.events import Envelope
from perdure.contracts.input_requests import InputReceipt, OpenRequest, ReplyBody
from perdure.contracts.messages import Message
from perdure.contracts.names import Update
from perdure.contracts.sends import WhenBusy
from perdure.contracts.turn_options import ResumeOptions, TaskOptions, TurnOptions
from perdure.contracts.turns import BudgetStatus, CancelRequest, TurnStatus
from perdure.contracts.values import JsonValue
from perdure.contracts.waits import TurnWait
from perdure.settings import Settings, load_settings
from perdure.store import Store
from perdure.store.admission import Fresh
from perdure.store.errors import NotFoundError
from perdure.store.records import Artifact, RegisteredAgent, SessionFilter, SessionRecord, TurnRecord
from perdure.trajectory import Trajectory


@refuses_odd_texts
class Client:
    """A connection to Temporal and, from the first use that needs it, to the transcript store."""

    def __init__(self, temporal: temporalio.client.Client, settings: Settings) -> None:
        self.temporal = temporal
        self.settings = settings
        self._sessions = Sessions(temporal, settings)
        self._runs = self._sessions.runs
        self.replies = Replies(self._sessions)
        self._waits = Waits(self._runs)
        self._blocks = Blocks(self._sessions)
        self.webhooks = Webhooks(self._sessions)
        self.schedules = Schedules(self._sessions)
        self.approvals = StandingApprovals(self._sessions)
        self.views = Views(Sources(store=self.store, temporal=self._sessions.reach, queue=settings.task_queue))

    @classmethod
    async def connect(cls, settings: Settings | None = None, **options: Unpack[ConnectOptions]) -> Self:
        """Connect by the environment: Temporal's own configuration, and ``PERDURE_*`` unless ``settings`` are given.

        Args:
            settings: Used instead of the ``PERDURE_*`` variables.
            options: ``address``, ``namespace``, ``tls`` and ``api_key`` of the Temporal server, ``store_url`` and
                ``task_queue``; each overrides the environment and ``settings``.

        Raises:
            ServerUnreachableError: Nothing answers at the address.
            ServerRefusedError: The server does not accept the credentials.
            TemporalConfigError, SettingsError: Temporal's configuration or a variable of perdure's cannot be used.
            KeysMismatchError: This process and a worker cannot decrypt what the other encrypts.
        """
        ours = {name: value for name, value in options.items() if name in Settings.model_fields}
        settings = (settings or load_settings()).model_copy(update=ours)
        return cls(await connect_to_fleet(settings, **options), settings)

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
            StoreUnavailableError: The store cannot be reached.
            StoreVersionError: A release with another schema wrote the store.
            StoreMismatchError: The workers of the task queue use another store.
        """
        return await self._sessions.store()

    async def start(
        self, agent: str, prompt: Content, *, session: str | None = None, **options: Unpack[TurnOptions]
    ) -> Turn:
        """Start a turn; with a ``request_id`` that was used before, return the turn that it started.

        A prompt may be a list of texts, ``perdure.Image`` and ``perdure.File``, which are put into the store first.

        Example::

            async with await Client.connect() as client:
                turn = await client.start("writer", "Summarise the report.")
                print((await turn.result()).output)

        Raises:
            RequestRefusedError: The request is not valid; nothing was sent.
            UnknownAgentError: Workers poll the task queue, and none has registered the agent. (If no worker polls, the
                turn waits for one.)
            SessionBusyError: Another turn of the session runs, or hooks of its last turn still run after 30 s.
            ServerUnreachableError: The server does not answer.
        """
        return await self.carry_out(Start(agent=agent, prompt=prompt, session=session, options=options))

    async def carry_out(self, ask: Ask, admitted: Fresh | None = None) -> Turn:
        """Begin the turn that a value asks for, as its method does; ``admitted`` is what the store has said of it."""
        refuse_odd_texts(ask)
        return await carry_out(self._sessions, ask, admitted)

    async def compact(self, session: str, guidance: str = "", *, request_id: str | None = None) -> Turn:
        """Summarise the conversation of an idle session, in a turn that does nothing else.

        From then on models read the summary and the last messages; ``transcript`` still gives every message.
        ``guidance`` tells the summarising model what to keep.

        Raises:
            UnknownSessionError: There is no session of that id.
            SessionBusyError: A turn of the session runs.
            ServerUnreachableError: The server does not answer.
        """
        return await self.carry_out(Compact(session=session, guidance=guidance, request_id=request_id))

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

        Going on from an earlier step is a rewind: later steps stay stored, but leave the conversation. Without a
        prompt no message is added, and the model goes on from the last message or the last results of calls.

        Args:
            session: The session's id.
            prompt: The next message; as for :meth:`Client.start`, it may hold images and files.
            at: Number of the step to go on from, after the results of its calls; its calls never run again.
            turn: Number of the turn of that step; None is the last turn, 0 is before the first message.
            options: As for :meth:`Client.start`.

        Raises:
            UnknownSessionError: There is no session of that id.
            SessionBusyError: A turn of the session runs.
            ServerUnreachableError: The server does not answer.
        """
        return await self.carry_out(Resume(session=session, prompt=prompt, at=at, turn=turn, options=options))

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
        """Start a new session from a step of another one, which stays as it is and may even be running.

        Nothing is copied, so a fork costs the same wherever it begins. ``into`` is the new session's id; the other
        arguments are those of :meth:`resume`.

        Raises:
            UnknownSessionError: There is no session of that id.
            RequestRefusedError: ``into`` is the id of the old session.
            SessionBusyError: The new session exists, and a turn of it runs.
            ServerUnreachableError: The server does not answer.
        """
        ask = Fork(session=session, into=into, prompt=prompt, at=at, turn=turn, options=options)
        return await self.carry_out(ask)

    async def send(
        self, session: str, prompt: Content, *, when_busy: WhenBusy = "queue", **options: Unpack[SendOptions]
    ) -> Turn:
        """Send a message to a session, and return the turn that takes it. An idle session starts the turn at once.

        The message may hold images and files, as for :meth:`start`.

        Args:
            session: The session's id.
            prompt: The message.
            when_busy: What to do while a turn runs. ``reject``: refuse the message. ``queue``: keep it for the next
                turn. ``steer``: the running turn reads it before its next generation. ``interrupt``: cancel the running
                turn and all queued ones, then start with this message. ``rollback``: the same, from where the
                cancelled turn began.
            options: See :class:`~perdure.client.requests.SendOptions`; ``request_id`` makes sending twice harmless.

        Raises:
            UnknownSessionError: There is no session of that id; nothing was sent.
            SessionBusyError: A turn runs and ``when_busy`` is ``reject``; or turns end as fast as it is sent.
            RequestRefusedError: The message is not valid, or too many messages are queued already.
            NoWorkerError: No worker took the message.
        """
        return await self.carry_out(Send(session=session, prompt=prompt, when_busy=when_busy, options=options))

    async def answer(self, session: str, request: str, value: JsonValue, *, by: str = "") -> InputReceipt:
        """Answer a question: the value becomes the result of the tool call that asks.

        Text that does not fit the answer's type is read as JSON. A session that has stopped for the question goes on
        with its next turn.

        Raises:
            RequestRefusedError: No turn waits for this answer, it has the wrong type, or another one came first.
            UnknownSessionError: There is no session of that id.
            NoWorkerError: No worker took the answer.
        """
        refuse_attached(value)
        return await self.replies.reply(session, Update.ANSWER, {"request": request, "value": value, "by": by})

    async def approve(self, session: str, request: str, *, by: str, **more: Unpack[ApproveMore]) -> InputReceipt:
        """Approve a tool call; with the request's ``digest``, only if its arguments are still those that were shown.

        With ``always`` it stands for further calls too (:attr:`approvals`). Raises what :meth:`answer` does, also if
        the request expired or was denied before.
        """
        return await self.replies.reply(session, Update.APPROVE, {"request": request, "by": by, **more})

    async def deny(self, session: str, request: str, *, by: str, reason: str = "") -> InputReceipt:
        """Deny a tool call, or decline a question: the model gets an error result with the reason.

        Raises what :meth:`answer` does, also if somebody has decided otherwise before.
        """
        return await self.replies.reply(session, Update.DENY, {"request": request, "by": by, "reason": reason})

    async def submit_result(
        self, session: str, request: str, value: JsonValue = None, **more: Unpack[ResultMore]
    ) -> InputReceipt:
        """Submit the result of a tool call that the caller runs, or its ``error``, which the model reads as one.

        With the request's ``digest``, only if its arguments still are what was shown. Raises what :meth:`answer` does.
        """
        what = {} if value is None and more.get("error") is not None else {"value": value}
        return await self.replies.reply(session, Update.SUBMIT_RESULT, {"request": request, **what, **more})

    async def reply(self, session: str, replies: Sequence[ReplyBody], **options: Unpack[ReplyOptions]) -> Replied:
        """Give several replies: a session that has stopped goes on with all of them in one turn, with these options.

        What they leave out is as in the turn before; ``prompt`` is read last. Raises what :meth:`answer` does.
        """
        return await self.replies.reply_to_all(session, replies, options)

    async def inbox(
        self, session: str | None = None, *, agent: str | None = None, tenant: str | None = None
    ) -> list[OpenRequest]:
        """List the open input requests, the oldest first: of all sessions, or of one.

        Turns whose workflow Temporal has ended and expired approvals are left out.

        Args:
            session: Only what this session waits for.
            agent: Only turns of this agent.
            tenant: Only sessions of this tenant; empty is the default tenant.

        Raises ServerUnreachableError or StoreError if the server or the store does not answer.
        """
        return await self.replies.open_requests(session, agent=agent, tenant=tenant)

    async def attach(self, session: str, turn: int | None = None) -> Turn:
        """A turn of a session by its number; without one, the turn that runs or else the last.

        Raises UnknownSessionError if there is no such session or turn, and StoreError if the store cannot be read.
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
        """Yield the events of a session as they come, through all its turns, until no turn runs or is queued.

        To go on after a break without missing an event, pass the ``seq`` of the last event seen as ``after``. Events
        that were written before have ``replayed=True``.

        Args:
            session: The session's id.
            after: A sequence number; 0 begins with the first event, None with the running turn, or else the last.
            types: Only events of these types, as for :meth:`perdure.client.Turn.events`.
            heartbeat: After this long without an event comes a heartbeat; None sends none.
            deltas: Whether pieces of answers come too, while models write them.

        Raises:
            UnknownSessionError: There is no session of that id.
            RequestRefusedError: The log ends before ``after``, a type is unknown, or the heartbeat is too short.
        """
        before = heartbeat_at(session, 0, after or 0)
        plain = self._sessions.read_from(session, after)
        log = with_deltas(plain, await self.store(), session, after or 0) if deltas else plain
        async with aclosing(filter_events(log, types, heartbeat=heartbeat, before=before)) as events:
            async for item in events:
                yield item

    async def cancel(
        self, session: str, reason: str = "", turn: int | None = None, *, drop_queue: bool = False, force: bool = False
    ) -> bool:
        """Cancel the running turn, or turn number ``turn``, running or queued. False if there is nothing to cancel.

        Without a worker the request waits for one, which ignores it if that turn is no longer running or queued.

        Args:
            session: The session's id.
            reason: Why; kept in the turn's result.
            turn: Number of the turn to cancel; None is the running one.
            drop_queue: Whether to cancel all queued messages too: each gets a turn, which ends as cancelled.
            force: Whether to terminate the workflow, its queue too, and end the turn in the store, unasked.

        Raises:
            WrongTurnError: The turn is neither running nor queued; the message says which are.
            UnknownSessionError: There is no session of that id.
        """
        request = validate(CancelRequest, {"reason": reason, "turn": turn, "drop_queue": drop_queue})
        if await cancel_one(self._sessions, session, request, force=force):
            return True
        await self._sessions.find_run(session)
        return False

    async def cancel_all(
        self,
        reason: str = "",
        *,
        dry_run: bool = True,
        drop_queue: bool = True,
        force: bool = False,
        **wanted: Unpack[OpenFilter],
    ) -> list[CancelOutcome]:
        """Cancel the running turns of all sessions that match, 5,000 at most; what begins meanwhile goes on.

        Args:
            reason: As for :meth:`cancel`.
            drop_queue: As for :meth:`cancel`.
            dry_run: Whether to only return what would be cancelled.
            force: Whether to end those by force whose own code fails: they take no cancel.
            wanted: The filters.

        Raises ServerUnreachableError, and RequestRefusedError if the filter wants sessions that have ended.
        """
        listed = await list_open(self._sessions, wanted)
        if dry_run:
            return [outcome_of(target, "would_cancel") for target in listed]
        return await cancel_listed(self._sessions, listed, reason, drop_queue=drop_queue, force=force)

    async def resume_all(
        self,
        *,
        dry_run: bool = True,
        per_second: float = PER_SECOND,
        limit: int = MOST,
        by: str = "",
        admit: Admit | None = None,
        **wanted: Unpack[EndedFilter],
    ) -> list[ResumeOutcome]:
        """Resume the sessions whose last turns have ended as the filters say, at most 5,000 in one call.

        Each goes on as by :meth:`resume` without a prompt; asking twice is harmless. May raise ServerUnreachableError.

        Args:
            dry_run: Whether to resume nothing, and only return what would be resumed.
            per_second: How many turns begin in a second at most.
            limit: How many are resumed at most, those that began first at the head.
            by: Who starts the turns.
            admit: Gives what each resume is done in; a ClientError of it refuses that session.
            wanted: The filters: ``reason_code``, or any error; ``agent``, ``tenant``, ``since``.
        """
        return await resume_ended(self._sessions, wanted, Pace(per_second, limit), dry_run=dry_run, by=by, admit=admit)

    async def block(
        self, reason: str = "", *, by: str = "", dry_run: bool = False, keep_running: bool = False, **only: Unpack[Only]
    ) -> BlockOutcome:
        """Refuse all matching new turns until the block is lifted, and cancel matching open ones: the kill switch.

        A turn matches if ``agent``, ``tenant`` and ``model``, as far as given, match; ``everything=True`` matches all.
        ``keep_running`` lets open turns go on; ``dry_run`` changes nothing. May raise RequestRefusedError.
        """
        return await self._blocks.block(reason, by=by, dry_run=dry_run, keep_running=keep_running, only=only)

    async def unblock(self, block: str, *, by: str = "", tenant: str | None = None) -> bool:
        """Lift a block; False if it was lifted before. Raises UnknownBlockError if ``tenant`` has no such block."""
        return await self._blocks.unblock(block, by=by, tenant=tenant)

    async def blocks(self, *, lifted: bool = False, tenant: str | None = None) -> list[Block]:
        """List the blocks in force, the oldest first; with ``lifted`` lifted ones too, with ``tenant`` only its own."""
        return list(await (await self.store()).blocks(lifted=lifted, tenant=tenant))

    async def pause(self, session: str, reason: str = "", *, by: str = "") -> bool:
        """Pause a session: running calls finish, and no new one begins until it is unpaused. False if it was paused.

        Its delegates are paused too. Paused time counts against no limit. Queued messages begin their turns paused.

        Raises:
            SessionIdleError: No turn of the session runs.
            UnknownSessionError: There is no session of that id.
            NoWorkerError: No worker took the request.
        """
        return await self._sessions.pause(session, Update.PAUSE, reason, by)

    async def unpause(self, session: str, *, by: str = "") -> bool:
        """Let a paused session and its delegates go on; False if it was not paused. Raises what :meth:`pause` does."""
        return await self._sessions.pause(session, Update.UNPAUSE, "", by)

    async def delete(self, session: str, *, histories: bool = False, by: str = "") -> Erased:
        """Erase an idle session and its delegates' from the store; tombstones stay, and the ids are not used again.

        Also finishes a cut-off erasure, and what an earlier one had to leave. Steps that forks need stay. Waits up to
        30 s for a turn's last hooks. ``histories``: what Temporal has, too.

        Raises:
            SessionBusyError: A turn of the session runs.
            SessionErasedError, UnknownSessionError: There is no such session any more, or none.
        """
        return await self.schedules.delete_session(session, histories=histories, by=by)

    async def budget(self, session: str) -> BudgetStatus | None:
        """The limits of the running turn and what counts against them; None if no turn runs or nobody answers."""
        return await self._runs.budget(session)

    async def extend(
        self, session: str, *, turn: int | None = None, end: bool = False, **limits: Unpack[Limits]
    ) -> BudgetStatus:
        """Change limits of the running turn; the others stay. Each is the limit of the whole turn, not an increment.

        Args:
            session: The session's id.
            turn: Refuse unless this turn is the one that runs.
            end: Whether to accept a limit that is used up already, which ends the turn.
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
        await self._sessions.find_run(session)
        try:
            return await send_limits(self.temporal, session, request)
        except NoWorkerError:
            await self.check_worker()
            raise

    async def status(self, session: str) -> TurnStatus:
        """Ask the worker of the running turn how it stands; ``waits_for`` of the answer says why it stands still.

        Raises:
            SessionIdleError: No turn runs, or no worker answers, which :meth:`waits_for` explains.
            UnknownSessionError: There is no session of that id.
        """
        newest = await self._sessions.find_run(session)
        if newest is None or not newest.running:
            why = f"'perdure show {session}' tells what its last turn did"
            raise SessionIdleError(f"no turn of session {session!r} runs; {why}")
        status = await self._runs.status(session)
        if status is None:
            wait = (await self._waits.waits_of([session])).get(session)
            why = f": it {wait.sentence(datetime.now(UTC))}" if wait is not None else " yet; ask again in a moment"
            raise SessionIdleError(f"the turn of session {session!r} is not held by any worker{why}")
        return await self._waits.with_wait(status)

    async def waits_for(self, session: str) -> TurnWait | None:
        """Reason the running turn stands still, since when, and what to do; None if it goes on, or none runs.

        Temporal is asked, so that the answer needs no worker and no store. Raises ServerUnreachableError.
        """
        return await self._waits.wait_of(session)

    async def waits(self, sessions: Collection[str]) -> dict[str, TurnWait]:
        """Reasons running turns stand still, by session; without turns that go on or that Temporal cannot tell."""
        return await self._waits.waits_of(sessions)

    async def sessions(
        self, *, limit: int = 50, **wanted: Unpack[SessionFilter]
    ) -> list[tuple[SessionRecord, TurnRecord]]:
        """List sessions with their last turns, the newest first. Raises ServerUnreachableError.

        An open turn whose workflow Temporal has ended is listed as ended, with a ``closure``.
        """
        return await list_sessions(await self.store(), ask_of(self.temporal), limit=limit, **wanted)

    async def turns(self, session: str) -> list[TurnRecord]:
        """All turns of a session, the open one included. Raises UnknownSessionError if the store has none such."""
        await self._sessions.check_known(session)
        return list(await (await self.store()).turns(session))

    async def turn_view(self, session: str, turn: int) -> TurnView:
        """View of a turn, also a queued, unopened or refused one. Raises UnknownSessionError if there is none."""
        return await self.views.turn_view(session, turn)

    async def turn_views(self, session: str) -> list[TurnView]:
        """Views of the turns that workers have opened, in order. Raises UnknownSessionError if there is no session."""
        if not (views := await self.views.turn_views(session)):
            await self._sessions.find_run(session)
        return views

    async def session_view(self, session: str) -> SessionView:
        """View of a session and its open or last turn. Raises what :meth:`turn_view` does, and TurnClosedError."""
        return await self.views.session_view(session)

    async def transcript(self, session: str, turn: int | None = None) -> list[Message]:
        """The conversation as it is now, or as it was at the end of a turn. Raises what :meth:`trajectory` does."""
        with found_in_store():
            return list(await (await self.store()).transcript(session, turn=turn))

    async def trajectory(self, session: str, turn: int | None = None) -> Trajectory:
        """A session so far, or one turn of it, as one value: messages, steps, events and usage.

        Raises UnknownSessionError if the store has no session of that id, or no such turn.
        """
        with found_in_store():
            return await read_trajectory(await self.store(), session, turn)

    async def checkpoints(self, session: str) -> list[Checkpoint]:
        """Every step of the session as a place to go on from, in order; also those that a rewind left behind.

        Raises UnknownSessionError if the store has no session of that id.
        """
        with found_in_store():
            return list(await (await self.store()).checkpoints(session))

    async def artifact(self, session: str, artifact: str) -> Artifact:
        """A long output, an image or a file of the session, with its ``data``. May raise UnknownArtifactError."""
        try:
            return await (await self.store()).artifact(artifact, session=session)
        except NotFoundError as error:
            raise UnknownArtifactError(f"{error}; 'perdure show {session}' lists its handles") from None

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

    async def runs(self, session: str) -> bool:
        """Whether Temporal runs a turn of the session, also one that no worker has opened."""
        return await self._runs.is_running(session)

    async def check_worker(self) -> None:
        """Raise NoWorkerError if no worker has polled the task queue for a minute; a turn would wait for one."""
        await self._sessions.check_worker()
