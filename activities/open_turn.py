"""The activity ``open_turn``: from a request to a turn that the store has begun, in five values.

``Asked``, ``Resolved``, ``Admitted``, ``Frozen`` and ``Opened`` are each made from the one before, and never changed.

Long, because all that a request may ask of a turn is checked where it opens.
"""

import contextlib
import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

from pydantic import ValidationError
from temporalio import activity
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from perdure.activities.agents import Instructions
from perdure.activities.delegates import Delegations, trim_for_caller, with_grants
from perdure.activities.errors import MAX_MESSAGE, permanent, runtime_error, with_more
from perdure.activities.first_replies import check_first_replies
from perdure.activities.heartbeat import keep_beating, note
from perdure.activities.mcp.failures import McpError, last_lines, shorten
from perdure.activities.models.facts import context_window
from perdure.activities.parts import ActivityParts
from perdure.activities.recordings import RecordedTurns, RecordingError
from perdure.activities.slots import Slots, error_of
from perdure.activities.store_access import store_failures
from perdure.agents.caller_tools import check_output_schema, declare_caller_tools
from perdure.agents.tool import ToolDefinitionError
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.budgets import Budgets
from perdure.contracts.errors import ReasonCode
from perdure.contracts.files import ContentError, FilePart, check_parts, part_of
from perdure.contracts.hooks import HookDeclaration
from perdure.contracts.ids import SESSION_ID_PATTERN
from perdure.contracts.messages import ToolMessage
from perdure.contracts.names import AGENT_TURN, Activity
from perdure.contracts.openings import OpenedTurn, Refusal
from perdure.contracts.queues import Routing
from perdure.contracts.tool_choice import NamedTool, ToolChoice
from perdure.contracts.tools import REQUEST_REFERENCE, ToolDeclaration
from perdure.contracts.traces import TurnTrace
from perdure.contracts.turn_context import TurnContext
from perdure.contracts.turns import Continuation, OpenTurn, TurnResult
from perdure.contracts.values import is_visible, replace
from perdure.contracts.waits import WAITS_FOR_SERVERS
from perdure.engine.input_requests import ReplyError
from perdure.schema_checks import run_off_the_loop
from perdure.store import NotFoundError, SessionErasedError, StoreError
from perdure.store.commit_turn import close_behind
from perdure.store.errors import TurnBlockedError
from perdure.store.records import ClaimedTurn, SessionBefore, TurnBefore, artifact_of
from perdure.store.slots import NoSlotError, SlotLimit

LONGEST_OPENING_RETRY = timedelta(minutes=1)
"""Longest wait between attempts while the store is away. Many earlier attempts may only have waited for a slot."""

LAST_RUNS = 3
"""Newest runs of a session among which the end of its last turn is looked for: some were refused."""

SHOWN_ID = 200
"""Characters of a refused id that its refusal shows."""

MOVED = "Note: this server was started anew for this turn. Nothing is left of what it held after earlier calls."
"""Added to the descriptions of a stateful server's tools if the session used the server on another worker before."""


def _say_who_is_silent(servers: Sequence[str]) -> None:
    note(f"{WAITS_FOR_SERVERS}: {', '.join(servers)}" if servers else "")


@dataclass(frozen=True)
class Asked:
    """Request for a turn, with the store's record of the session."""

    opening: OpenTurn
    before: SessionBefore
    trace: TurnTrace | None


@dataclass(frozen=True)
class Resolved:
    """The turn that is meant: its agent as the request and the caller of a delegate want it, its prompt and context.

    Attributes:
        opening: The request with its files stored, the query of a delegate's call, and the turn's context.
        agent: The agent's definition with the settings of the request, within the grant of a delegate's caller.
        goes_on: Whether the turn keeps an existing definition: a reply that of the turn before, a clone its own.
    """

    asked: Asked
    opening: OpenTurn
    agent: AgentDefinition
    context: TurnContext
    goes_on: bool


@dataclass(frozen=True)
class Admitted:
    """A turn that may begin: nothing that limits the turns which run at once stands in its way."""

    resolved: Resolved
    limits: tuple[SlotLimit, ...]


@dataclass(frozen=True)
class Frozen:
    """A turn with the definition that all its steps use."""

    admitted: Admitted
    definition: AgentDefinition


@dataclass(frozen=True)
class Opened:
    """A turn that the store has begun, at this attempt or an earlier one.

    Attributes:
        definition: The definition that the store has: that of the attempt which began the turn.
    """

    frozen: Frozen
    claimed: ClaimedTurn
    definition: AgentDefinition


class OpenTurnActivity:
    """Opens the turns of one worker."""

    def __init__(
        self,
        parts: ActivityParts,
        *,
        search_attributes: bool,
        fail_workflows: bool,
        moves: bool,
        routing: Routing,
        tenant_max_running: Mapping[str, int],
    ) -> None:
        self._parts = parts
        self._store = parts.store
        self._slots = Slots(parts.store, tenant_max_running, parts.notifications)
        self._instructions = Instructions(parts.bodies, parts.secrets)
        self._recorded = RecordedTurns(parts.recordings)
        self._delegations = Delegations(parts)
        self._search_attributes = search_attributes
        self._fail_workflows = fail_workflows
        self._routing = routing
        self._moves = moves
        self._freezing = (self._freeze_instructions, self._freeze_recording, self._freeze_remote_tools)
        """Steps that complete the definition of a turn, in this order: a recording keeps the remote tools."""

    @activity.defn(name=Activity.OPEN_TURN)
    async def open_turn(self, opening: OpenTurn) -> OpenedTurn:
        """Freeze the agent's definition, claim the turn's number, store the prompt.

        Safe to run twice: the request id names the turn, and a second attempt finds it.
        """
        try:
            return await self._open_turn(opening)
        except ApplicationError as error:
            if error.type == ReasonCode.RUNTIME_TOOL_MISSING:
                self._parts.metrics.refused_versions.note(opening.session)
            if error.non_retryable:
                self._parts.metrics.note_refused(opening.request.agent or "", error.type or "", opening.request.tenant)
                self._parts.traces.refuse_turn(self._store, opening, error)
                with contextlib.suppress(StoreError):
                    await self._slots.leave(opening.session)
            if error.non_retryable and self._fail_workflows:  # only this tells the workflow to close as Failed
                raise with_more(error, Refusal(fails_workflow=True)) from error.__cause__
            raise

    async def _open_turn(self, opening: OpenTurn) -> OpenedTurn:
        _check_session(opening.session)
        async with keep_beating(), store_failures(longest=LONGEST_OPENING_RETRY), _refuse_missing(opening):
            asked = await self._ask(opening)
            with self._parts.traces.within(asked.trace):
                resolved = await self._resolve(asked)
                admitted = await self._admit(resolved)
                frozen = await self._freeze(admitted)
                opened = await self._open(frozen)
                return await self._tell(opened)

    async def _ask(self, opening: OpenTurn) -> Asked:
        """Read the session once."""
        await self._store.require(opening.request.store)
        before = await self._store.session_before(opening)
        return Asked(opening, before, await self._parts.traces.open_turn(self._store, opening, before.number - 1))

    async def _resolve(self, asked: Asked) -> Resolved:
        """Resolve the turn's agent, apply what the request and its caller ask for, and find the turn's context."""
        request, before = asked.opening.request, asked.before
        parts = await self._store_files(asked.opening)
        replied = await self._load_replied_definition(asked)
        prompt, clone = await self._delegations.claim_call(asked.opening, before.begun)
        if before.begun is None:
            _require_visible(prompt)
        kept = replied or clone
        wanted = _with_overrides(kept or await self._find_agent(asked), request)
        if request.tools or request.output_schema is not None:
            wanted = await run_off_the_loop(lambda: _with_schemas(wanted, request))
        context = await self._parts.contexts.resolve_context(asked.opening, before.source)
        if before.begun is None:
            self._parts.contexts.refuse_strange_variables(context)
        meant = replace(
            request,
            prompt=prompt,
            parts=parts,
            files=(),
            context=context.data,
            tenant=context.tenant,
            by=context.by,
        )
        opening = replace(asked.opening, request=meant)
        return Resolved(asked, opening, with_grants(wanted, asked.opening), context, kept is not None)

    async def _admit(self, resolved: Resolved) -> Admitted:
        """Fail without a slot, so that Temporal asks again. A turn that an earlier attempt has begun has its slot."""
        limits = self._slots.limits_of(resolved.opening, resolved.agent)
        if resolved.asked.before.begun is None:
            await self._slots.require_slot(resolved.opening, resolved.agent, limits)
        return Admitted(resolved, limits)

    async def _freeze(self, admitted: Admitted) -> Frozen:
        """Complete the definition for the turn; one that the turn keeps only gets its recording."""
        resolved = admitted.resolved
        definition = resolved.agent
        for freeze in (self._freeze_recording,) if resolved.goes_on else self._freezing:
            definition = await freeze(resolved, definition)
        _require_choice(definition, resolved.opening.request.tool_choice)
        return Frozen(admitted, definition)

    async def _open(self, frozen: Frozen) -> Opened:
        """Begin the turn in the store, or find the one that an earlier attempt has begun."""
        resolved, limits = frozen.admitted.resolved, frozen.admitted.limits
        opening, own = resolved.opening, frozen.definition
        window = own.compaction.window or context_window(own.model)
        try:
            if (known := await _find_end(resolved.asked)) is not None:
                turn = resolved.asked.before.cut_off or 0
                await self._store.write("close_behind", lambda rows: close_behind(rows, opening.session, turn, known))
            claimed = await self._store.open_turn(
                opening, own, context_window=window, trace=resolved.asked.trace, limits=limits
            )
        except NoSlotError as error:  # another turn has taken the slot meanwhile
            raise error_of(error.wait) from None
        except TurnBlockedError:
            if limits:  # it has joined the queue, and would hold up others
                await self._store.leave_queue(opening.session)
            raise
        is_own = claimed.definition == own.digest()  # or else a worker of another version has opened the turn
        opened = Opened(frozen, claimed, own if is_own else await self._parts.definitions.get(claimed.definition))
        self._parts.definitions.keep(claimed.definition, opened.definition)
        if claimed.first:
            self._parts.contexts.keep(opening.session, claimed.turn, resolved.context)
            _warn_of_idle_rules(opened.definition)
        return opened

    async def _tell(self, opened: Opened) -> OpenedTurn:
        """Tell of a turn before that Temporal has ended, and return what the workflow decides by."""
        resolved, claimed, definition = opened.frozen.admitted.resolved, opened.claimed, opened.definition
        before, session, trace = resolved.asked.before, resolved.opening.session, resolved.asked.trace
        await self._parts.notifications.tell_ended(session, before.cut_off)
        if claimed.first and before.cut_off is not None:
            await self._parts.traces.end_turn(self._store, session, before.cut_off)
        fallbacks = [context_window(fallback.model) for fallback in definition.fallback_models]
        policy = self._routing.route(definition.policy(context_window(definition.model), fallbacks), definition)
        if resolved.opening.request.stop_for_results and definition.interactive == "wait":
            policy = replace(policy, stop_for_results=True)
        times = {request.request_id: request.expires_at for request in before.requests}
        of_approvals = (request.expires_at for request in before.requests if request.needs == "approval")
        return OpenedTurn(
            turn=claimed.turn,
            tip=claimed.tip,
            definition=claimed.definition,
            policy=self._delegations.with_first_calls(definition, policy),
            search_attributes=self._search_attributes,
            fails_workflow=self._fail_workflows,
            moves=self._moves,
            ended=_trim_result(claimed.ended),
            last_turn=max(claimed.turn, before.last.turn if before.last is not None else 0),
            asking=tuple(
                replace(call, expires_at=times.get(call.call_id)) if call.needs == "result" else call
                for call in before.waiting_calls
            ),
            call_ids=tuple(call.call_id for call in before.calls),
            expires_at=next(of_approvals, None),  # a new turn gives no more time
            todos=claimed.todos,
            earlier=claimed.earlier,
            said=claimed.said,
            store=claimed.store,
            seed=claimed.seed if self._parts.seeds else "",
            tenant=resolved.context.tenant,
            trace="" if trace is None else trace.span,
            tokens=claimed.tokens,
            tokens_left=claimed.tokens_left,
        )

    async def _store_files(self, opening: OpenTurn) -> tuple[FilePart, ...]:
        """Store the files that the request brings, and return all that it names. The store must have the others."""
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
            return request.parts
        given = [(file.name, file.decoded) for file in request.files]
        try:
            parts = check_parts((*request.parts, *(part_of(session, name, data) for name, data in given)))
        except ContentError as error:
            raise permanent(runtime_error(ReasonCode.REQUEST_INVALID, f"files: {error}")) from None
        added = zip(parts[len(request.parts) :], given, strict=True)
        await self._store.keep_artifacts([artifact_of(session, part, data) for part, (_, data) in added])
        return parts

    async def _load_replied_definition(self, asked: Asked) -> AgentDefinition | None:
        """The frozen definition of the turn that replies continue; None without any, or where another agent goes on."""
        opening, before = asked.opening, asked.before
        request, session = opening.request, opening.session
        if not request.replies:
            return None
        if request.compact:
            message = (
                "compact: a request with replies goes on with the turn and compacts nothing; send the one or the other"
            )
            raise permanent(runtime_error(ReasonCode.REQUEST_INVALID, message))
        if before.last is None:
            message = f"there is no session {session!r}"
            raise permanent(runtime_error(ReasonCode.REQUEST_UNKNOWN_SESSION, message))
        if before.begun is not None:  # an earlier attempt has checked the replies
            return await self._parts.definitions.get(before.begun.definition)
        definition = await self._parts.definitions.get(before.last.definition)
        try:
            await run_off_the_loop(lambda: check_first_replies(opening, before, definition))
        except ReplyError as error:
            raise permanent(runtime_error(ReasonCode.REQUEST_INVALID, str(error))) from None
        return definition if request.agent in {None, definition.name} else None

    async def _find_agent(self, asked: Asked) -> AgentDefinition:
        """The definition that the request brings, or of the agent that it names, or of the session's agent so far."""
        opening, before = asked.opening, asked.before
        described = await self._parts.roster.read_definition(opening)
        if described is not None:
            return described
        if opening.request.agent is not None:
            return await self._parts.roster.find_definition(opening.request.agent, before.source, opening)
        if before.source is not None:
            return await self._parts.roster.find_definition(before.source.agent, before.source, opening)
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

    async def _freeze_instructions(self, resolved: Resolved, definition: AgentDefinition) -> AgentDefinition:
        """The definition with the instructions for the turn's context."""
        agent = self._parts.roster.find_agent(definition)
        return await self._instructions.fill_instructions(definition, agent, resolved.context)

    async def _freeze_recording(self, resolved: Resolved, definition: AgentDefinition) -> AgentDefinition:
        """The definition with the name of the turn's recording."""
        return replace(definition, recording=await self._find_recording(resolved, definition))

    async def _freeze_remote_tools(self, resolved: Resolved, definition: AgentDefinition) -> AgentDefinition:
        """The definition with the tools that its MCP servers offer now; no later call lists them again.

        In a replay these are the recorded tools, and no server is needed.
        """
        opening, before = resolved.opening, resolved.asked.before
        agent = self._parts.roster.find_agent(definition)
        if agent is None or not agent.mcp_servers:
            return definition
        self._parts.mcp.carry_over(opening.session, _conversation_of(opening))
        try:
            if self._recorded.replays:
                remote = await self._recorded.tools(definition, before.number)
            else:
                listed = await self._parts.mcp.declarations(agent, _say_who_is_silent, session=opening.session)
                remote = await self._with_notes(listed, before.source)
                await self._recorded.keep_tools(definition, before.number, remote)
        except McpError as error:
            told = runtime_error(ReasonCode.RUNTIME_MCP_UNAVAILABLE, shorten(str(error), MAX_MESSAGE))
            raise permanent(told, last_lines(str(error))) from None
        except RecordingError as error:
            raise permanent(runtime_error(ReasonCode.REQUEST_INVALID, str(error))) from None
        brought = {tool.name: tool.gives_way for tool in opening.request.tools}
        taken = {tool.name for tool in remote if tool.name in brought}
        if (name := next((name for name in brought if name in taken and not brought[name]), None)) is not None:
            message = f"tools: tool {name!r}: the agent has a tool of that name, of an MCP server; rename yours"
            raise permanent(runtime_error(ReasonCode.REQUEST_INVALID, message))
        kept = (tool for tool in definition.tools if tool.reference != REQUEST_REFERENCE or tool.name not in taken)
        try:
            return AgentDefinition.model_validate({**dict(definition), "tools": (*kept, *remote)})
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
        before = await self._parts.definitions.get(source.definition)
        transcript = await self._store.transcript(source.session)
        elsewhere = {tool.name for tool in before.tools if tool.pinned and tool.task_queue != self._parts.mcp.queue}
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

    async def _find_recording(self, resolved: Resolved, definition: AgentDefinition) -> str:
        """The name of the turn's recording: the one it names, the session's so far, or the agent's name."""
        request, last = resolved.opening.request, resolved.asked.before.last
        name = request.recording
        if name is None and self._parts.recordings.mode == "off":
            return ""
        if request.delegated is not None:
            name = await self._recorded.recording_of_delegate(request.delegated)
        name = name or await self._recording_of_last(last, definition.name) or definition.name
        try:
            await self._parts.recordings.open(name, definition.name)
        except RecordingError as error:
            raise permanent(runtime_error(ReasonCode.REQUEST_INVALID, str(error))) from error
        return name

    async def _recording_of_last(self, last: TurnBefore | None, agent: str) -> str:
        if last is None or last.agent != agent:
            return ""
        return (await self._parts.definitions.get(last.definition)).recording


async def _find_end(asked: Asked) -> TurnResult | None:
    """Result of the turn before, if only Temporal knows that it has ended by itself: the store is an older copy."""
    before, session = asked.before, asked.opening.session
    if before.begun is not None or before.cut_off is None:
        return None
    ended = f'WorkflowId = {json.dumps(session)} AND WorkflowType = "{AGENT_TURN}" AND ExecutionStatus = "Completed"'
    with contextlib.suppress(RPCError, WorkflowFailureError, ValidationError, RuntimeError):  # or there is no server
        client = activity.client()
        async for run in client.list_workflows(ended, limit=LAST_RUNS):
            handle = client.get_workflow_handle(run.id, run_id=run.run_id, result_type=TurnResult)
            result: TurnResult = await handle.result(follow_runs=False)
            if result.turn is not None and result.turn >= before.cut_off:
                return result
    return None


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
    """Refuse a workflow id that cannot be a session id: ids are used in file names and URLs, and shown on terminals."""
    if re.fullmatch(SESSION_ID_PATTERN, session) is None:
        message = (
            f"the workflow id {session[:SHOWN_ID]!r} cannot be a session id; start the workflow under an id of up to "
            "200 letters, digits and any of . _ : @ = + -, which begins with a letter or a digit"
        )
        raise permanent(runtime_error(ReasonCode.REQUEST_INVALID, message))


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


def _require_visible(prompt: str) -> None:
    """Refuse a prompt that providers would refuse, and with it every later message of the session."""
    if prompt and not is_visible(prompt):
        message = "prompt: has no visible character; say what is to be done"
        raise permanent(runtime_error(ReasonCode.REQUEST_INVALID, message))


def _require_choice(definition: AgentDefinition, choice: ToolChoice | None) -> None:
    """Refuse the choice of a tool that the turn does not have."""
    if isinstance(choice, NamedTool) and definition.tool(choice.name) is None:
        known = ", ".join(tool.name for tool in definition.tools) or "none"
        message = f"tool_choice: there is no tool named {choice.name!r}; the tools are: {known}"[:MAX_MESSAGE]
        raise permanent(runtime_error(ReasonCode.REQUEST_INVALID, message))


def _with_schemas(definition: AgentDefinition, request: Continuation) -> AgentDefinition:
    """The definition with the tools and the form of the answer that the request brings for this one turn.

    A turn that goes on with replies has those of the request before it, if this one brings none.
    """
    own = [tool for tool in definition.tools if not request.tools or tool.reference != REQUEST_REFERENCE]
    try:
        added = declare_caller_tools(request.tools, {tool.name for tool in own})
    except ToolDefinitionError as error:
        raise permanent(runtime_error(ReasonCode.REQUEST_INVALID, f"tools: {error}")) from None
    definition = replace(definition, tools=(*own, *added))
    if request.output_schema is None:
        return definition
    try:
        check_output_schema(request.output_schema)
        return definition.with_output(request.output_schema)
    except ValueError as error:
        raise permanent(runtime_error(ReasonCode.REQUEST_INVALID, f"output_schema: {error}")) from None


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
    if changes:
        try:
            definition = AgentDefinition.model_validate({**definition.model_dump(), **changes})
        except ValidationError as error:
            message = f"the request's settings do not fit the agent: {error.errors()[0]['msg']}"
            raise permanent(runtime_error(ReasonCode.REQUEST_INVALID, message)) from error
    return definition if request.generate_params is None else definition.with_wishes(request.generate_params)
