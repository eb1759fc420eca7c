"""The caller's side of a delegate's turn: a call in the caller's ledger has the query, and gets the result.

The activity ``collect_delegates`` writes the results of background delegates as the result of a call.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from temporalio import activity
from temporalio.client import WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from perdure.activities.conditions import matches
from perdure.activities.errors import permanent, runtime_error
from perdure.activities.heartbeat import keep_beating
from perdure.activities.models.cost_ceiling import estimate_first_call
from perdure.activities.parts import ActivityParts
from perdure.activities.store_access import store_failures, write_until_stored
from perdure.activities.toolbox.output import (
    artifact_of_output,
    call_event,
    events_of_approval,
    events_of_end,
    reading_tool_of,
)
from perdure.agents.delegates import clone_agent
from perdure.contracts.agents import AgentDefinition, TurnPolicy
from perdure.contracts.errors import ErrorDetail, ReasonCode
from perdure.contracts.events import DelegateEnd, DelegateStart, NewEvent
from perdure.contracts.ids import DELEGATED
from perdure.contracts.messages import ToolMessage
from perdure.contracts.names import Activity
from perdure.contracts.tools import (
    DELEGATE_OUTPUT,
    AwaitedDelegate,
    CallSite,
    CollectDelegates,
    Delegated,
    DelegateReport,
    ToolDeclaration,
    ToolOutcome,
)
from perdure.contracts.turns import CommitTurn, OpenTurn, StopReason, TurnResult
from perdure.contracts.values import JsonValue, json_object, replace
from perdure.engine.delegates import failure_of, tightest
from perdure.llm.tool_output import OFFLOAD_CHARACTERS, head_and_tail, shorten_output
from perdure.schema_checks import run_off_the_loop
from perdure.security.approvals import is_approved
from perdure.security.redaction import without_known
from perdure.store import Artifact, Committed, NotFoundError
from perdure.store.records import TurnBefore

PARTIAL_CHARACTERS = 4_000
"""Characters of its last text that the caller's model reads of a delegate that did not finish."""


@dataclass(frozen=True)
class Said:
    """Report of an ended delegate to the caller's model.

    Attributes:
        error: Why the delegate did not finish; None if it did.
        matched: Places of the caller's text conditions that hold for the delegate's text.
        problem: Why that text could not be searched.
    """

    text: str
    error: ErrorDetail | None
    matched: tuple[int, ...] = ()
    problem: ErrorDetail | None = None


class Delegations:
    """The calls that the delegates of one worker carry out."""

    def __init__(self, parts: ActivityParts) -> None:
        self._secrets = parts.secrets
        self._store = parts.store
        self._agents = parts.agents
        self._definitions = parts.definitions

    def with_first_calls(self, definition: AgentDefinition, policy: TurnPolicy) -> TurnPolicy:
        """The policy with the estimated cost of each delegate's first model call, without tools of its MCP servers."""
        tools = dict(policy.tools)
        for tool in definition.tools:
            cost = (
                estimate_first_call(called) if (called := self._definition_of(definition, tool)) is not None else None
            )
            if cost is not None:
                tools[tool.name] = replace(tools[tool.name], first_call_usd=cost)
        return replace(policy, tools=tools)

    def _definition_of(self, caller: AgentDefinition, tool: ToolDeclaration) -> AgentDefinition | None:
        if tool.delegate is None:
            return None
        if tool.delegate.spawns:
            return clone_agent(caller, {})
        agent = self._agents.get(tool.delegate.agent)
        return agent.definition if agent is not None else None

    async def claim_call(self, opening: OpenTurn, begun: TurnBefore | None) -> tuple[str, AgentDefinition | None]:
        """Claim the caller's call for a delegate's turn.

        Returns:
            The turn's prompt, which is the call's query or else that of the request, and the definition of a clone.

        Raises:
            ApplicationError: The call has its result already, is not approved, or its arguments do not fit.
        """
        delegated = opening.request.delegated
        if delegated is None:
            return opening.request.prompt, None
        if begun is not None:  # an earlier attempt, or a run before a reset, has claimed the call
            return opening.request.prompt, await self._definitions.get(begun.definition)
        caller = await self._definitions.get(delegated.definition)
        declaration = _declaration(caller, delegated.tool)
        claim = await self._store.claim_call(
            session=delegated.session,
            turn=delegated.turn,
            call_id=delegated.call_id,
            claimant=delegated.claimant,
            events=self._starts(opening, delegated),
        )
        if claim.state != "free":
            message = f"call {delegated.call_id} of session {delegated.session!r} has its result already"
            raise permanent(runtime_error(ReasonCode.RUNTIME_TURN_ENDED, message))
        digest = delegated.approval.digest if delegated.approval is not None else None
        if not await run_off_the_loop(lambda: is_approved(caller, declaration, claim.arguments, digest)):
            message = f"{declaration.name} with these arguments is not approved; it did not run"
            raise permanent(ErrorDetail(code=ReasonCode.TOOL_DENIED, title=declaration.name, message=message))
        return self._read_call(delegated, caller, claim.arguments)

    def _starts(self, opening: OpenTurn, delegated: Delegated) -> list[NewEvent]:
        agent = opening.request.agent or ""
        start = DelegateStart(call_id=delegated.call_id, tool=delegated.tool, agent=agent, delegate=opening.session)
        return [*events_of_approval(delegated, delegated.tool), call_event(delegated, start)]

    def _read_call(self, delegated: Delegated, caller: AgentDefinition, raw: str) -> tuple[str, AgentDefinition | None]:
        try:
            arguments = self._without_secrets(json_object(raw or "{}"))
            query = str(arguments["task" if delegated.spawns else "query"])
            clone = clone_agent(caller, arguments) if delegated.spawns else None
        except (ValueError, KeyError) as error:
            message = f"the arguments of call {delegated.call_id} hold no query: {error}"
            raise permanent(runtime_error(ReasonCode.REQUEST_INVALID, message)) from None
        return query, clone

    def _without_secrets(self, arguments: dict[str, JsonValue]) -> dict[str, JsonValue]:
        """The arguments without the worker's secrets, since they go into the delegate's log and transcript."""
        texts = {name: without_known(text, self._secrets) for name, text in arguments.items() if isinstance(text, str)}
        return {**arguments, **texts}

    async def record_result(self, commit: CommitTurn, committed: Committed) -> TurnResult:
        """Write a delegate's result into the caller's ledger, and return the part of it that histories keep."""
        delegated, result = commit.delegated, committed.result
        if delegated is None or result.report is None:
            return result
        end = call_event(delegated, _end(delegated, result))
        if delegated.background:  # the result stays in the delegate's session until a call collects it
            await self._finish(delegated, None, [end])
            return trim_for_caller(result, result.report)
        caller = await self._definitions.get(delegated.definition)
        declaration = _declaration(caller, delegated.tool)
        said = await self.render_result(caller, declaration, result)
        content, artifacts = trim_for_model(delegated, caller, declaration.truncate, said.text)
        message = ToolMessage(
            call_id=delegated.call_id,
            name=delegated.tool,
            content=content,
            error=said.error,
            decided=delegated.approval,
            matched=said.matched,
            delegate=result.session,
        )
        seconds = (committed.ended_at - committed.started_at).total_seconds()
        await self._finish(delegated, message, [end, *events_of_end(delegated, message, artifacts, seconds)], artifacts)
        report = replace(result.report, matched=said.matched, problem=said.problem)
        return trim_for_caller(result, report)

    async def _finish(
        self,
        delegated: Delegated,
        message: ToolMessage | None,
        events: Sequence[NewEvent],
        artifacts: Sequence[Artifact] = (),
    ) -> None:
        await write_until_stored(
            lambda: self._store.finish_call(
                session=delegated.session,
                turn=delegated.turn,
                call_id=delegated.call_id,
                claimant=delegated.claimant,
                message=message,
                events=events,
                artifacts=artifacts,
            )
        )

    async def render_result(self, caller: AgentDefinition, declaration: ToolDeclaration, result: TurnResult) -> Said:
        """The text that the caller's model reads of a delegate's result."""
        error, text = failure_of(declaration.name, result), await self._text(declaration, result)
        if error is not None:
            return Said(text, error)
        matched, problem = await matches(caller, declaration.name, text)
        return Said(text, None, matched, problem)

    async def _text(self, declaration: ToolDeclaration, result: TurnResult) -> str:
        error, tool = failure_of(declaration.name, result), declaration.name
        if error is not None:
            body: dict[str, JsonValue] = {"code": error.code, "type": error.type, "message": error.message}
            if result.output:
                body["last_output"] = head_and_tail(result.output, PARTIAL_CHARACTERS)
            return json.dumps({"error": {**body, "session": result.session}}, ensure_ascii=False)
        if declaration.delegate is None or not declaration.delegate.spawns:
            return result.output
        task = (await self._store.transcript(result.session))[0].content
        about: dict[str, JsonValue] = {"name": tool, "task": task, "steps": result.steps}
        return json.dumps({**about, "tokens": result.usage.total_tokens, "result": result.output}, ensure_ascii=False)


def with_grants(definition: AgentDefinition, opening: OpenTurn) -> AgentDefinition:
    """The definition within its caller's grant: the tighter budgets, and people asked only if the caller allows it."""
    request, delegated = opening.request, opening.request.delegated
    if delegated is None:
        return definition
    return replace(
        definition,
        budgets=definition.budgets if request.budgets is None else tightest(definition.budgets, request.budgets),
        max_steps=min(definition.max_steps, request.max_steps or definition.max_steps),
        interactive="wait" if delegated.interactive else "refuse",
    )


def _declaration(caller: AgentDefinition, tool: str) -> ToolDeclaration:
    declaration = caller.tool(tool)
    if declaration is None or declaration.delegate is None:
        message = f"agent {caller.name!r} has no delegate {tool!r}"
        raise permanent(runtime_error(ReasonCode.REQUEST_INVALID, message))
    return declaration


def trim_for_caller(result: TurnResult, report: DelegateReport) -> TurnResult:
    """The result, cut to what the caller's history keeps."""
    return replace(result, report=report, output=result.output[:DELEGATE_OUTPUT], value=None, requests=())


def trim_for_model(
    call: CallSite, caller: AgentDefinition, truncate: int | None, text: str
) -> tuple[str, list[Artifact]]:
    """The text, cut for the caller's conversation; a long one also becomes an artifact of the caller."""
    if truncate is not None:
        return head_and_tail(text, truncate), []
    if len(text) <= OFFLOAD_CHARACTERS:
        return text, []
    whole = artifact_of_output(call, text)
    return shorten_output(text, whole.id, reading_tool_of(caller)), [whole]


def _end(delegated: Delegated, result: TurnResult) -> DelegateEnd:
    return DelegateEnd(
        call_id=delegated.call_id,
        tool=delegated.tool,
        agent=result.agent,
        delegate=result.session,
        stop_reason=StopReason(result.stop_reason),
        reason_code=result.reason_code,
        error=result.error,
        steps=result.steps + result.delegated_steps,
        usage=result.usage,
        cost_usd=result.cost_usd,
    )


@dataclass(frozen=True)
class _Came:
    """The end of one delegate, for the caller's model."""

    session: str
    tool: str
    said: Said


class CollectActivity:
    """Collects the results of background delegates, for one worker's turns."""

    def __init__(self, parts: ActivityParts) -> None:
        self._store = parts.store
        self._definitions = parts.definitions
        self._delegations = Delegations(parts)

    @activity.defn(name=Activity.COLLECT_DELEGATES)
    async def collect_delegates(self, asked: CollectDelegates) -> ToolOutcome:
        """Write the results of delegates as the result of the call. Safe to run twice: the first result stays."""
        async with keep_beating(), store_failures():
            await self._store.require(asked.store)
            claimant = f"collect/{asked.call_id}"
            claim = await self._store.claim_call(
                session=asked.session,
                turn=asked.turn,
                call_id=asked.call_id,
                claimant=claimant,
                events=events_of_approval(asked, asked.tool),
            )
            if claim.message is not None:
                message, problem = claim.message, None
            else:
                message, problem = await self._collect(asked, claimant)
        return ToolOutcome(
            call_id=asked.call_id,
            preview=message.content[:DELEGATE_OUTPUT],
            error=message.error,
            matched=message.matched,
            problem=problem,
        )

    async def _collect(self, asked: CollectDelegates, claimant: str) -> tuple[ToolMessage, ErrorDetail | None]:
        """Write the result of the call; return it, and why its text could not be searched for stop conditions."""
        caller = await self._definitions.get(asked.definition)
        came = [await self._load_delegate(caller, delegate) for delegate in asked.delegates]
        content, artifacts = trim_for_model(asked, caller, None, _join_texts(came))
        message = ToolMessage(
            call_id=asked.call_id,
            name=asked.tool,
            content=content,
            error=_error(asked, came),
            decided=asked.approval,
            matched=tuple(sorted({place for delegate in came for place in delegate.said.matched})),
            delegate=came[0].session if len(came) == 1 else None,
        )
        await self._store.finish_call(
            session=asked.session,
            turn=asked.turn,
            call_id=asked.call_id,
            claimant=claimant,
            message=message,
            events=events_of_end(asked, message, artifacts, seconds=0),
            artifacts=artifacts,
        )
        return message, next((delegate.said.problem for delegate in came if delegate.said.problem is not None), None)

    async def _load_delegate(self, caller: AgentDefinition, delegate: AwaitedDelegate) -> _Came:
        declaration = caller.tool(delegate.tool)
        try:
            turn = await self._store.turn_by_request(delegate.session, f"{DELEGATED}{delegate.call_id}")
        except NotFoundError:
            turn = None
        if turn is None or turn.result is None or declaration is None:
            code = ReasonCode.TOOL_DELEGATE_FAILED
            lost = delegate.lost or ErrorDetail(
                code=code, title=delegate.tool, message=f"{delegate.tool} was lost ({delegate.session})"
            )
            return _Came(delegate.session, delegate.tool, Said(lost.message, lost))
        return _Came(
            delegate.session, delegate.tool, await self._delegations.render_result(caller, declaration, turn.result)
        )


def _join_texts(came: list[_Came]) -> str:
    """The result text: that of a single delegate as it is, those of several as one JSON list."""
    if len(came) == 1:
        return came[0].said.text
    results: list[JsonValue] = [
        {
            "session": delegate.session,
            "agent": delegate.tool,
            **(
                {"result": delegate.said.text}
                if delegate.said.error is None
                else {"error": _body(delegate.said, delegate.said.error)}
            ),
        }
        for delegate in came
    ]
    return json.dumps({"results": results}, ensure_ascii=False)


def _body(said: Said, error: ErrorDetail) -> JsonValue:
    try:
        body: JsonValue = json.loads(said.text)["error"]
    except ValueError:  # a lost delegate has no JSON, only the error
        return {"code": error.code, "message": error.message}
    return body


def _error(asked: CollectDelegates, came: list[_Came]) -> ErrorDetail | None:
    """The error of the call: it fails only if every delegate that it waited for has failed."""
    errors = [delegate.said.error for delegate in came if delegate.said.error is not None]
    if len(errors) < len(came):
        return None
    if len(errors) == 1:
        return errors[0]
    message = f"none of {len(errors)} agents finished; the first one: {errors[0].message}"[:2_000]
    return replace(errors[0], title=asked.tool, message=message)


@activity.defn(name=Activity.FIND_PARENT)
async def find_parent(session: str) -> str | None:
    """Find the workflow that started another one as its child: empty without one, None if the other has ended.

    Safe to run twice: it only looks.
    """
    async with keep_beating():
        try:
            found = await activity.client().get_workflow_handle(session).describe()
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return None
            raise
    return (found.parent_id or "") if found.status is WorkflowExecutionStatus.RUNNING else None
