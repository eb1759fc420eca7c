"""The activities ``open_turn`` and ``commit_turn``, with which every turn begins and ends. Both are safe to run twice.

Long, because all that a request may ask of a turn is checked where it opens.
"""

import contextlib
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

from pydantic import ValidationError
from temporalio import activity
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from perdure.activities.agents import Definitions, Instructions, Roster, TurnContexts
from perdure.activities.delegates import Delegations, trim_for_caller, with_grants
from perdure.activities.errors import MAX_MESSAGE, permanent, refusal, runtime_error
from perdure.activities.heartbeat import keep_beating, note
from perdure.activities.litellm_call import context_window
from perdure.activities.mcp.failures import McpError, last_lines, shorten
from perdure.activities.mcp.servers import McpServers
from perdure.activities.metrics import Metrics
from perdure.activities.notifications import Notifications
from perdure.activities.recordings import RecordedTurns, RecordingError, Recordings
from perdure.activities.slots import Slots, error_of
from perdure.activities.store_access import store_failures
from perdure.activities.tool_runner import Bodies
from perdure.activities.traces import Traces
from perdure.agents.agent import Agent
from perdure.agents.data import InlineAgents
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.budgets import Budgets
from perdure.contracts.errors import ReasonCode
from perdure.contracts.files import ContentError, check_parts, part_of
from perdure.contracts.hooks import HookDeclaration
from perdure.contracts.messages import ToolMessage
from perdure.contracts.names import TURN_CANCELLED, Activity
from perdure.contracts.queues import Routing
from perdure.contracts.tools import ToolDeclaration
from perdure.contracts.traces import TurnTrace
from perdure.contracts.turn_context import TurnContext
from perdure.contracts.turns import (
    SESSION_ID_PATTERN,
    CommitTurn,
    Continuation,
    OpenedTurn,
    OpenTurn,
    Refusal,
    TurnResult,
)
from perdure.contracts.values import replace
from perdure.contracts.waits import WAITS_FOR_SERVERS
from perdure.engine.input_requests import ReplyError, check_time, validate_reply
from perdure.schema_checks import run_off_the_loop
from perdure.store import NotFoundError, SessionErasedError, Store, StoreError
from perdure.store.errors import TurnBlockedError
from perdure.store.records import SessionBefore, TurnBefore, artifact_of
from perdure.store.slots import NoSlotError, SlotLimit

LONGEST_OPENING_RETRY = timedelta(minutes=1)
"""Longest wait between attempts while the store is away. Many earlier attempts may only have waited for a slot."""

SHOWN_ID = 200
"""Characters of a refused id that its refusal shows."""

MOVED = "Note: this server was started anew for this turn. Nothing is left of what it held after earlier calls."
"""Added to the descriptions of a stateful server's tools if the session used the server on another worker before."""


def _say_who_is_silent(servers: Sequence[str]) -> None:
    note(f"{WAITS_FOR_SERVERS}: {', '.join(servers)}" if servers else "")


@dataclass(frozen=True)
class _Opening:
    """A turn that is about to open.

    Attributes:
        goes_on: Whether the turn keeps an existing definition: a reply that of the turn before, a clone its own.
    """

    opening: OpenTurn
    before: SessionBefore
    definition: AgentDefinition
    context: TurnContext
    goes_on: bool


class TurnActivities:
    """The store's side of a turn's beginning and end."""

    def __init__(  # noqa: PLR0913 - the parts of a worker, all by keyword
        self,
        *,
        store: Store,
        agents: Mapping[str, Agent],
        inline: InlineAgents | None,
        definitions: Definitions,
        recordings: Recordings,
        mcp: McpServers,
        metrics: Metrics,
        search_attributes: bool,
        fail_workflows: bool,
        moves: bool = False,
        bodies: Bodies,
        contexts: TurnContexts,
        notifications: Notifications,
        secrets: frozenset[str],
        routing: Routing,
        traces: Traces,
        tenant_max_running: Mapping[str, int] | None = None,
    ) -> None:
        self._store = store
        self._slots = Slots(store, tenant_max_running or {}, notifications)
        self._traces = traces
        self._notifications = notifications
        self._instructions = Instructions(bodies, secrets)
        self._contexts = contexts
        self._roster = Roster(agents, inline, definitions)
        self._definitions = definitions
        self._recordings = recordings
        self._recorded = RecordedTurns(recordings)
        self._mcp = mcp
        self.delegations = Delegations(store=store, agents=agents, definitions=definitions, secrets=secrets)
        self._metrics = metrics
        self._search_attributes = search_attributes
        self._fail_workflows = fail_workflows
        self._routing = routing
        self._moves = moves

    @activity.defn(name=Activity.OPEN_TURN)
    async def open_turn(self, opening: OpenTurn) -> OpenedTurn:
        """Freeze the agent's definition, claim the turn's number, store the prompt.

        Safe to run twice: the request id names the turn, and a second attempt finds it.
        """
        try:
            return await self._open_turn(opening)
        except ApplicationError as error:
            if error.non_retryable:
                self._metrics.note_refused(opening.request.agent or "", error.type or "", opening.request.tenant)
                self._traces.refuse_turn(self._store, opening, error)
                with contextlib.suppress(StoreError):
                    await self._slots.leave(opening.session)
            if error.non_retryable and self._fail_workflows:  # only this tells the workflow to close as Failed
                raise refusal(error, Refusal(fails_workflow=True)) from error.__cause__
            raise

    async def _open_turn(self, opening: OpenTurn) -> OpenedTurn:
        _check_session(opening.session)
        async with keep_beating(), store_failures(longest=LONGEST_OPENING_RETRY), _refuse_missing(opening):
            await self._store.require(opening.request.store)
            before = await self._store.session_before(opening)
            trace = await self._traces.open_turn(self._store, opening, before.number - 1)
            with self._traces.within(trace):
                resolved = await self._resolve(opening, before)
                limits = self._slots.limits_of(resolved.opening, resolved.definition)
                if before.begun is None:
                    await self._slots.require_slot(resolved.opening, resolved.definition, limits)
                frozen = await self._freeze(resolved)
                return await self._claim(frozen, limits, trace)

    async def _resolve(self, opening: OpenTurn, before: SessionBefore) -> "_Opening":
        """Resolve the turn's agent, apply what the request and its caller ask for, and find the turn's context."""
        opening = await self._with_files(opening)
        goes_on = await self._load_definition_of_reply(opening, before)
        opening, clone = await self.delegations.claim_call(opening, before.begun)
        goes_on = goes_on or clone
        definition = _with_overrides(goes_on or await self._agent(opening, before), opening.request)
        context = await self._contexts.resolve_context(opening, before.source)
        return _Opening(_with(opening, context), before, with_grants(definition, opening), context, goes_on is not None)

    async def _freeze(self, resolved: "_Opening") -> "_Opening":
        """Complete the definition for the turn: with instructions, recording, and the tools of its MCP servers."""
        definition, before = resolved.definition, resolved.before
        if not resolved.goes_on:
            definition = await self._instructions.fill_instructions(
                definition, self._roster.find_agent(definition), resolved.context
            )
        recording = await self._recording(resolved.opening, definition, before)
        definition = replace(definition, recording=recording)
        if not resolved.goes_on:
            definition = await self._with_remote_tools(resolved.opening, definition, before)
        return replace(resolved, definition=definition)

    async def _claim(self, frozen: "_Opening", limits: Sequence[SlotLimit], trace: TurnTrace | None) -> OpenedTurn:
        """Begin the turn in the store, or find the one that an earlier attempt has begun."""
        opening, before, definition = frozen.opening, frozen.before, frozen.definition
        window = definition.compaction.window or context_window(definition.model)
        try:
            opened = await self._store.open_turn(opening, definition, context_window=window, trace=trace, limits=limits)
        except NoSlotError as error:  # another turn has taken the slot meanwhile
            raise error_of(error.wait) from None
        except TurnBlockedError:
            if limits:  # it has joined the queue, and would hold up others
                await self._store.leave_queue(opening.session)
            raise
        if opened.definition != definition.digest():  # an attempt on a worker of another version has opened the turn
            definition = await self._definitions.get(opened.definition)
        self._definitions.keep(opened.definition, definition)
        if opened.first:
            self._contexts.keep(opening.session, opened.turn, frozen.context)
            _warn_of_idle_rules(definition)
        await self._notifications.tell_ended(opening.session, before.cut_off)
        if opened.first and before.cut_off is not None:
            await self._traces.end_turn(self._store, opening.session, before.cut_off)
        fallbacks = [context_window(fallback.model) for fallback in definition.fallback_models]
        policy = self._routing.route(definition.policy(context_window(definition.model), fallbacks), definition)
        times = (request.expires_at for request in before.requests if request.expires_at is not None)
        return OpenedTurn(
            turn=opened.turn,
            tip=opened.tip,
            definition=opened.definition,
            policy=self.delegations.with_first_calls(definition, policy),
            search_attributes=self._search_attributes,
            fails_workflow=self._fail_workflows,
            moves=self._moves,
            ended=_trim_result(opened.ended),
            last_turn=max(opened.turn, before.last.turn if before.last is not None else 0),
            asking=tuple(call for call in before.calls if call.call_id in before.waiting),
            call_ids=tuple(call.call_id for call in before.calls),
            expires_at=next(times, None),  # a new turn gives no more time
            todos=opened.todos,
            earlier=opened.earlier,
            said=opened.said,
            store=opened.store,
            tenant=frozen.context.tenant,
            trace="" if trace is None else trace.span,
        )

    async def _with_files(self, opening: OpenTurn) -> OpenTurn:
        """Store the files that the request brings. Refused if it names files that the store does not have."""
        request, session = opening.request, opening.session
        for part in request.parts:
            try:
                await self._store.artifact(part.artifact, session=session)
            except NotFoundError:
                message = (
                    f"parts: session {session!r} has no artifact {part.artifact!r} in this worker's store; start the "
                    "turn with perdure's client or with 'perdure run … --attach FILE', which put files there, or send "
                    "their bytes in 'files'"
                )
                raise permanent(runtime_error(ReasonCode.REQUEST_INVALID, message)) from None
        if not request.files:
            return opening
        given = [(file.name, file.decoded) for file in request.files]
        try:
            parts = check_parts((*request.parts, *(part_of(session, name, data) for name, data in given)))
        except ContentError as error:
            raise permanent(runtime_error(ReasonCode.REQUEST_INVALID, f"files: {error}")) from None
        added = zip(parts[len(request.parts) :], given, strict=True)
        await self._store.keep_artifacts([artifact_of(session, part, data) for part, (_, data) in added])
        return replace(opening, request=replace(request, parts=parts, files=()))

    async def _load_definition_of_reply(self, opening: OpenTurn, before: SessionBefore) -> AgentDefinition | None:
        """The frozen definition of the turn that a reply continues; None without a reply."""
        reply, session = opening.request.reply, opening.session
        if reply is None:
            return None
        if opening.request.compact:
            message = (
                "compact: a request with a reply goes on with the turn and compacts nothing; send the one or the other"
            )
            raise permanent(runtime_error(ReasonCode.REQUEST_INVALID, message))
        if before.last is None:
            message = f"there is no session {session!r}"
            raise permanent(runtime_error(ReasonCode.REQUEST_UNKNOWN_SESSION, message))
        if before.begun is not None:  # an earlier attempt has checked the reply
            return await self._definitions.get(before.begun.definition)
        definition = await self._definitions.get(before.last.definition)
        waiting = (call for call in before.calls if call.call_id in before.waiting)
        call = next((call for call in waiting if call.call_id == reply.request), None)
        tool = definition.tool(call.tool) if call is not None else None
        asked = {request.request_id: request for request in before.requests}
        if call is None or call.call_id not in asked:
            message = f"session {session!r} does not wait for {reply.request!r}"
            raise permanent(runtime_error(ReasonCode.REQUEST_INVALID, message))
        try:
            await run_off_the_loop(lambda: validate_reply(call, reply, tool.answer if tool is not None else None))
            check_time(asked[call.call_id], opening.run_started_at)
        except ReplyError as error:
            raise permanent(runtime_error(ReasonCode.REQUEST_INVALID, str(error))) from None
        return definition

    async def _agent(self, opening: OpenTurn, before: SessionBefore) -> AgentDefinition:
        """The definition that the request brings, or of the agent that it names, or of the session's agent so far."""
        described = self._roster.read_definition(opening.request)
        if described is not None:
            return described
        if opening.request.agent is not None:
            return await self._roster.find_definition(opening.request.agent, before.source)
        if before.source is not None:
            return await self._roster.find_definition(before.source.agent, before.source)
        origin, session = opening.request.resume_from, _conversation_of(opening)
        try:
            await self._store.session(session)
        except SessionErasedError:
            raise
        except NotFoundError as error:
            hint = "; name an agent to start one" if origin is None else ""
            message = f"there is no session {session!r}{hint}"
            raise permanent(runtime_error(ReasonCode.REQUEST_UNKNOWN_SESSION, message)) from error
        number = origin.turn if origin is not None else None
        raise permanent(runtime_error(ReasonCode.REQUEST_INVALID, f"session {session!r} has no turn {number}"))

    async def _with_remote_tools(
        self, opening: OpenTurn, definition: AgentDefinition, before: SessionBefore
    ) -> AgentDefinition:
        """The definition with the tools that its MCP servers offer now; no later call lists them again.

        In a replay these are the recorded tools, and no server is needed.
        """
        agent = self._roster.find_agent(definition)
        if agent is None or not agent.mcp_servers:
            return definition
        self._mcp.carry_over(opening.session, _conversation_of(opening))
        try:
            if self._recorded.replays:
                remote = await self._recorded.tools(definition, before.number)
            else:
                remote = await self._with_notes(await self._mcp.declarations(agent, _say_who_is_silent), before.source)
                await self._recorded.keep_tools(definition, before.number, remote)
        except McpError as error:
            told = runtime_error(ReasonCode.RUNTIME_MCP_UNAVAILABLE, shorten(str(error), MAX_MESSAGE))
            raise permanent(told, last_lines(str(error))) from None
        except RecordingError as error:
            raise permanent(runtime_error(ReasonCode.REQUEST_INVALID, str(error))) from None
        try:
            return AgentDefinition.model_validate({**dict(definition), "tools": (*definition.tools, *remote)})
        except ValidationError as error:
            message = f"the tools of its MCP servers cannot be used: {error.errors()[0]['msg']}"
            raise permanent(runtime_error(ReasonCode.RUNTIME_MCP_UNAVAILABLE, message)) from None

    async def _with_notes(
        self, tools: tuple[ToolDeclaration, ...], source: TurnBefore | None
    ) -> tuple[ToolDeclaration, ...]:
        """The tools, with a note on those of a stateful server that the session used on another worker before."""
        pinned = {tool.name: tool for tool in tools if tool.pinned}
        if not pinned or source is None:
            return tools
        before = await self._definitions.get(source.definition)
        transcript = await self._store.transcript(source.session)
        elsewhere = {tool.name for tool in before.tools if tool.pinned and tool.task_queue != self._mcp.queue}
        used = {message.name for message in transcript if isinstance(message, ToolMessage)} & elsewhere
        servers = {
            tool.remote.server for name in used if (tool := pinned.get(name)) is not None and tool.remote is not None
        }
        return tuple(
            replace(tool, description=f"{tool.description}\n\n{MOVED}".strip())
            if tool.pinned and tool.remote is not None and tool.remote.server in servers
            else tool
            for tool in tools
        )

    async def _recording(self, opening: OpenTurn, definition: AgentDefinition, before: SessionBefore) -> str:
        """The name of the turn's recording: the one it names, the session's so far, or the agent's name."""
        name = opening.request.recording
        if name is None and self._recordings.mode == "off":
            return ""
        if opening.request.delegated is not None:
            name = await self._recorded.recording_of_delegate(opening.request.delegated)
        name = name or await self._recording_of_last(before.last, definition.name) or definition.name
        try:
            await self._recordings.open(name, definition.name)
        except RecordingError as error:
            raise permanent(runtime_error(ReasonCode.REQUEST_INVALID, str(error))) from error
        return name

    async def _recording_of_last(self, last: TurnBefore | None, agent: str) -> str:
        if last is None or last.agent != agent:
            return ""
        return (await self._definitions.get(last.definition)).recording

    @activity.defn(name=Activity.COMMIT_TURN)
    async def commit_turn(self, commit: CommitTurn) -> TurnResult:
        """Close the turn: last results, the head moved, its result recorded.

        Safe to run twice: a turn that has ended keeps the result it has.
        """
        async with keep_beating(is_bounded=False), store_failures():  # a commit that gives up leaves the turn open
            await self._store.require(commit.store)
            committed = await self._store.commit_turn(commit)
            await self._recorded.keep_decisions(commit.session, commit.turn)
            result = await self.delegations.record_result(commit, committed)
        await self._traces.end_turn(self._store, commit.session, commit.turn, commit.delegated)
        if committed.first:
            took = committed.ended_at - committed.started_at
            agent = self._metrics.agent(result.agent)
            self._metrics.turn_seconds.labels(agent).observe(took.total_seconds())
            if not commit.abandoned:
                self._metrics.history_bytes.labels(agent).observe(commit.history_bytes)
            if commit.cancel_requested_at is not None:
                self._metrics.note_cancel(committed.ended_at - commit.cancel_requested_at)
        async with keep_beating(is_bounded=False), store_failures():
            await self._notifications.tell_ended(commit.session, commit.turn)
        # Set every field explicitly, so that the JSON result names each, also those that are null.
        return TurnResult.model_validate(result.model_dump())


@activity.defn(name=Activity.CLOSE_AS_CANCELED)
async def close_as_canceled() -> None:
    """Request Temporal's cancel of the calling workflow: without one it cannot close as Canceled.

    Safe to run twice. The request names the run, so a late attempt finds it closed and cancels no other.
    """
    info = activity.info()
    run = activity.client().get_workflow_handle(info.workflow_id or "", run_id=info.workflow_run_id)
    async with keep_beating(is_bounded=False):
        try:
            await run.cancel(reason=TURN_CANCELLED)
        except RPCError as error:
            if error.status is RPCStatusCode.PERMISSION_DENIED:  # the workflow then closes as Failed
                message = f"Temporal does not let this worker cancel workflows: {error.message}"
                raise permanent(runtime_error(ReasonCode.RUNTIME_ABORTED, message)) from None
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise


@asynccontextmanager
async def _refuse_missing(opening: OpenTurn) -> AsyncIterator[None]:
    """Refuse a request that names something the store does not have. A delegate's request is written by its caller."""
    try:
        yield
    except NotFoundError as error:
        if opening.request.delegated is not None or isinstance(error, SessionErasedError):
            raise
        raise permanent(runtime_error(ReasonCode.REQUEST_INVALID, str(error))) from None


def _check_session(session: str) -> None:
    """Refuse a workflow id that is no session id: ids are used in file names and URLs, and shown on terminals."""
    if re.fullmatch(SESSION_ID_PATTERN, session) is None:
        message = (
            f"the workflow id {session[:SHOWN_ID]!r} cannot be a session id; start the workflow under an id of up to "
            "200 letters, digits and any of . _ : @ = + -, which begins with a letter or a digit"
        )
        raise permanent(runtime_error(ReasonCode.REQUEST_INVALID, message))


def _with(opening: OpenTurn, context: TurnContext) -> OpenTurn:
    """The opening with the context that the turn begins with."""
    request = replace(opening.request, context=context.data, tenant=context.tenant, by=context.by)
    return replace(opening, request=request)


def _conversation_of(opening: OpenTurn) -> str:
    """The session whose conversation the turn continues: the checkpoint's, if it resumes from one."""
    origin = opening.request.resume_from
    return (origin.session if origin is not None else None) or opening.session


def _trim_result(ended: TurnResult | None) -> TurnResult | None:
    """The result of a turn that was carried out before; a delegate's is cut to what its caller's history keeps."""
    return ended if ended is None or ended.report is None else trim_for_caller(ended, ended.report)


def _warn_of_idle_rules(definition: AgentDefinition) -> None:
    """Warn of approval rules that match no tool: the name may be misspelt."""
    names = [tool.name for tool in definition.tools]
    for rule in definition.approvals.idle_rules_of(names):
        activity.logger.warning(
            "agent %r: the rule that says %r of %r fits no tool of this turn; the tools are %s",
            *(definition.name, rule.decision, rule.tool, ", ".join(names) or "none"),
        )


def _with_overrides(definition: AgentDefinition, request: Continuation) -> AgentDefinition:
    """The definition with the settings that the request has for this one turn."""
    changes: dict[str, object] = {}
    if request.model is not None:
        try:
            changes |= definition.changes_of_model(request.model)
        except ValueError as error:
            raise permanent(runtime_error(ReasonCode.REQUEST_INVALID, str(error))) from None
    if request.max_steps is not None and request.delegated is None:
        changes["max_steps"] = request.max_steps
    if request.stop_conditions is not None:
        changes["stop_conditions"] = request.stop_conditions
    if request.rules is not None:
        functions = (hook for hook in definition.hooks if isinstance(hook, HookDeclaration))
        changes["hooks"] = (*functions, *request.rules)
    if request.budgets is not None and request.delegated is None:
        asked = request.budgets.model_dump(exclude_none=True, exclude_defaults=True)
        changes["budgets"] = Budgets.model_validate({**definition.budgets.model_dump(), **asked})
    if not changes:
        return definition
    try:
        return AgentDefinition.model_validate({**definition.model_dump(), **changes})
    except ValidationError as error:
        message = f"the request's settings do not fit the agent: {error.errors()[0]['msg']}"
        raise permanent(runtime_error(ReasonCode.REQUEST_INVALID, message)) from error
