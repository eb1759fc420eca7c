"""The one dynamic activity behind every Python tool; its type in Temporal is the tool's name.

A call is claimed before the body runs (``activities.effects``). So a second attempt never runs the body again, unless
the tool is idempotent or its reconciler says that it did not happen: it returns the result that is recorded or that the
reconciler found, or tells the model that the effect is unknown. Only if this very process still carries the call out,
the second attempt waits for its end (``perdure.activities.tool_claims``).
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from temporalio import activity
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from perdure.activities.agents import Definitions, Roster, TurnContexts, skill_tool
from perdure.activities.conditions import matches
from perdure.activities.errors import behind, missing_version, permanent, store_failures
from perdure.activities.heartbeat import beating
from perdure.activities.mcp.servers import McpServers, is_remote, server_name
from perdure.activities.mcp.session_state import Caller
from perdure.activities.metrics import Metrics
from perdure.activities.recordings import FixtureMissingError, Recordings
from perdure.activities.store_writes import write_until_stored
from perdure.activities.tool_claims import Body, Effects, RunningCalls, Verdict, hidden_of
from perdure.activities.tool_output import (
    CallResult,
    artifacts_in_store,
    artifacts_of,
    finder,
    output_id,
    read,
    reading_tool,
    recorded,
    shown_images,
    whole_output,
)
from perdure.activities.tool_results import (
    Attempt,
    ToolTimeoutError,
    check_approval,
    checked_arguments,
    error_detail,
    failed,
    is_caught,
    outcome,
    parsed_arguments,
    stop_request,
    told,
    traceback_of,
)
from perdure.activities.tool_runner import Bodies, CallContext, Progress, masked, within
from perdure.agents.agent import Agent
from perdure.agents.data import InlineAgents
from perdure.agents.parameters import takes_the_same
from perdure.agents.skills import is_skill_tool
from perdure.agents.tool import Tool
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.errors import REASONS, ErrorDetail, ReasonCode
from perdure.contracts.events import NewEvent
from perdure.contracts.messages import ToolMessage
from perdure.contracts.tools import CallTool, ToolDeclaration, ToolOutcome
from perdure.contracts.waits import MissingVersion
from perdure.llm.tool_output import OFFLOAD_CHARACTERS, head_and_tail, offloaded
from perdure.security.redaction import Hidden, without_hidden, without_known
from perdure.store import Artifact, Store
from perdure.store.errors import StoreError

MISSING_TOOL_RETRY = timedelta(seconds=5)
"""Wait before another worker is asked for a tool this one lacks."""


class ToolActivities:
    """Tool calls of one worker."""

    def __init__(  # noqa: PLR0913 - the parts of a worker, all by keyword
        self,
        *,
        store: Store,
        agents: Mapping[str, Agent],
        inline: InlineAgents | None,
        definitions: Definitions,
        bodies: Bodies,
        mcp: McpServers,
        metrics: Metrics,
        recordings: Recordings,
        contexts: TurnContexts,
        secrets: frozenset[str],
    ) -> None:
        self._store = store
        self._running = RunningCalls()
        self._effects = Effects(store=store, bodies=bodies, running=self._running, contexts=contexts, secrets=secrets)
        self._roster = Roster(agents, inline)
        self._definitions = definitions
        self._bodies = bodies
        self._mcp = mcp
        self._metrics = metrics
        self._recordings = recordings
        self._secrets = secrets

    @activity.defn(dynamic=True)
    async def call_tool(self, args: Sequence[RawValue]) -> ToolOutcome:
        """Run one tool call and store its result under its call id."""
        call: CallTool = activity.payload_converter().from_payload(args[0].payload, CallTool)
        info = activity.info()
        # By the server's time and not by its count, which an operator may reset.
        claimant = f"{info.workflow_run_id}/{info.activity_id}/{info.started_time.timestamp():020.6f}"

        async def holds() -> bool:
            try:
                return await self._store.holds_call(call.session, call.turn, call.call_id, claimant)
            except StoreError:
                return True  # nobody else can have claimed it while the store is away

        async with beating(is_bounded=False):
            async with store_failures():
                await self._store.require(call.store)
            return await self._running.carry_out(claimant, self._carried_out(call, claimant), holds)

    async def _carried_out(self, call: CallTool, claimant: str) -> ToolOutcome:
        definition = await self._definitions.get(call.definition)
        tool, declaration = self._tool(definition, activity.info().activity_type)
        recording = await self._recordings.tool_call(definition, call, declaration.name)
        progress = Progress(store=self._store, call=call, claimant=claimant)
        attempt = Attempt(call, declaration, claimant, recording, progress)
        claim, verdict = await self._effects.claimed(tool, attempt)
        if claim.message is not None:
            await self._keep(attempt, claim.message, ended_turn=claim.aborted, seconds=None)
            if claim.aborted and claim.message.error is not None:  # by an attempt that was lost before it could say so
                raise _abort(attempt, claim.message.error)
            return outcome(claim.message)
        if verdict is not None and verdict.decision == "given_up":
            return await self._given_up(attempt, verdict)
        if (replayed := await self._replayed(definition, attempt)) is not None:
            return replayed
        hidden = await hidden_of(attempt, claim.arguments)
        unspoken = hidden.named | hidden.guessed
        masked.set(unspoken)
        began = time.monotonic()
        try:
            await check_approval(definition, attempt, claim.arguments)
            with progress.taken(self._secrets | unspoken):
                result = await self._result(tool, attempt, claim.arguments, verdict)
        except Exception as error:  # noqa: BLE001 - the edge: whatever a tool raises becomes a reason code
            detail = error_detail(declaration, error, self._secrets | unspoken)
            return await self._failed(definition, attempt, error, detail, time.monotonic() - began)
        return await self._succeeded(definition, attempt, result, hidden, time.monotonic() - began)

    def _tool(self, definition: AgentDefinition, name: str) -> tuple[Body, ToolDeclaration]:
        """The body for a frozen declaration; a worker of another version leaves the call to one that has it."""
        declaration = definition.tool(name)
        agent = self._roster.of(definition)
        if declaration is not None and is_skill_tool(declaration):
            return skill_tool(definition.skills, agent.skills if agent is not None else ()), declaration
        if declaration is not None and agent is not None and is_remote(declaration):
            server = agent.mcp_server(server_name(declaration))
            if server is not None:
                return server, declaration
        tool = agent.tool(name) if agent is not None else None
        if declaration is None or tool is None or not takes_the_same(tool.declaration, declaration):
            missing = MissingVersion(
                agent=definition.name,
                what="tool",
                name=name,
                definition=definition.digest(),
                changed=tool is not None and declaration is not None,
            )
            raise missing_version(missing, MISSING_TOOL_RETRY)
        return tool, declaration

    async def _given_up(self, attempt: Attempt, verdict: Verdict) -> ToolOutcome:
        """Tell the model that nobody knows what became of the call."""
        message = attempt.given_up(verdict.code, verdict.told)
        await self._finish(attempt, message, attempt.ended(message, (), 0.0), ())
        await self._keep(attempt, message, ended_turn=False, seconds=None)
        return outcome(message)

    async def _result(self, tool: Body, attempt: Attempt, raw: str, verdict: Verdict | None) -> CallResult:
        """What the body gives, or has given to an attempt that was lost."""
        if verdict is not None and verdict.decision == "result_found":
            return await read(verdict.found, attempt.call.call_id)
        return await self._run(tool, attempt, raw)

    async def _run(self, tool: Body, attempt: Attempt, raw: str) -> CallResult:
        """Check the arguments, run the body within its time-out, and write its result as text."""
        if not isinstance(tool, Tool):
            return await self._mcp.call(
                tool,
                attempt.declaration,
                parsed_arguments(raw),
                caller=Caller(attempt.call.session, attempt.call.call_id),
                unspoken=masked.get(),
                on_progress=attempt.progress.report,
            )
        limit = attempt.declaration.timeout.total_seconds()
        arguments = checked_arguments(tool, raw)
        context = await self._effects.context_of(attempt.call)
        context.report, context.find = attempt.progress.report, finder(self._store, attempt.call.session)
        late = ToolTimeoutError(f"{tool.name} ran longer than its time-out of {limit:g} s; its effect is unknown")
        body = self._bodies.start(tool, arguments, context)
        result = await within(body, limit, who=tool.name, late=late, give_up=lambda: self._stop(tool, context))
        return replace(await read(result, context.call_id, tool.returns), stop=context.stop_reason)

    def _stop(self, tool: Tool[..., Any], context: CallContext) -> None:
        """Tell the body to end: an async one is cancelled besides, a blocking one has its flag and may run on."""
        context.stop.set()
        if not tool.is_async:
            self._metrics.tools_abandoned.labels(tool.name).inc()

    async def _succeeded(
        self, definition: AgentDefinition, attempt: Attempt, result: CallResult, hidden: Hidden, seconds: float
    ) -> ToolOutcome:
        declaration, call = attempt.declaration, attempt.call
        text = content = without_known(without_hidden(result.text, hidden), self._secrets)
        artifacts = await artifacts_of(call, result.attachments, self._secrets)
        if declaration.truncate is not None:
            content = head_and_tail(text, declaration.truncate)
        elif declaration.offload and len(text) > OFFLOAD_CHARACTERS:
            whole = whole_output(call, text)
            content = offloaded(text, whole.id, reading_tool(definition))
            artifacts = [whole, *artifacts]
        stop = stop_request(result.stop, self._secrets | hidden.named | hidden.guessed)
        matched, problem = await matches(definition, declaration.name, text)
        message = ToolMessage(
            call_id=call.call_id,
            name=declaration.name,
            content=content,
            decided=call.approval,
            stop=stop,
            matched=matched,
            parts=shown_images(artifacts),
        )
        await self._finish(attempt, message, attempt.ended(message, artifacts, seconds), artifacts)
        await self._keep(attempt, message, ended_turn=False, seconds=seconds)
        self._metrics.tool_seconds.labels(declaration.name).observe(seconds)
        if problem is not None:
            raise permanent(problem)
        return outcome(message)

    async def _failed(
        self, definition: AgentDefinition, attempt: Attempt, error: Exception, detail: ErrorDetail, seconds: float
    ) -> ToolOutcome:
        """A caught error is told to the model; any other follows the agent's ``on_tool_error``."""
        message = failed(attempt.call, detail, told(error, self._secrets | masked.get()))
        aborts = definition.on_tool_error == "abort" and not is_caught(attempt.declaration, error)
        trace = None
        if detail.exception is not None:  # the tool's own, and no failure that its sentence explains
            trace = traceback_of(error, self._secrets | masked.get())
            activity.logger.warning("tool %s raised %s", detail.title, detail.type, extra={"exception": trace})
        events = (
            attempt.aborted(_aborting(attempt, detail), trace) if aborts else attempt.ended(message, (), seconds, trace)
        )
        await self._finish(attempt, message, events, ())
        await self._keep(attempt, message, ended_turn=aborts, seconds=seconds)
        self._metrics.tool_seconds.labels(detail.title).observe(seconds)
        if aborts:
            raise _abort(attempt, detail) from behind(detail, error)
        return outcome(message)

    async def _finish(
        self, attempt: Attempt, message: ToolMessage, events: Sequence[NewEvent], artifacts: Sequence[Artifact]
    ) -> None:
        """Store the result with all that belongs to it; that of an attempt which has lost its claim is dropped."""
        call, events = attempt.call, [*attempt.progress.last(), *events]
        kept = await write_until_stored(
            lambda: self._store.finish_call(
                session=call.session,
                turn=call.turn,
                call_id=call.call_id,
                claimant=attempt.claimant,
                message=message,
                events=events,
                artifacts=artifacts,
            )
        )
        if not kept:
            activity.logger.warning("the result of %s came too late and was dropped", call.call_id)

    async def _replayed(self, definition: AgentDefinition, attempt: Attempt) -> ToolOutcome | None:
        """What the call came to when it was recorded; None if it is to be carried out.

        A call that was never recorded ends the turn, whatever the tool's ``catch`` says: the body does not run.
        """
        call, name = attempt.call, attempt.declaration.name
        try:
            fixture = await attempt.recording.outcome()
        except FixtureMissingError as error:
            code = ReasonCode.TOOL_FIXTURE_MISSING
            text = f"{REASONS[code].cause}: {error}; {REASONS[code].advice}"
            message = failed(call, ErrorDetail(code=code, title=name, message=text, type=type(error).__name__))
            artifacts, aborts, problem = [], True, None
        else:
            if fixture is None:
                return None
            artifacts, aborts = recorded(call, fixture), fixture.ended_turn
            whole = next((one.text for one in artifacts if one.id == output_id(call.call_id)), fixture.content)
            matched, problem = ((), None) if fixture.error else await matches(definition, name, whole)
            message = ToolMessage(
                call_id=call.call_id,
                name=name,
                content=fixture.content,
                error=fixture.error,
                decided=call.approval,
                stop=fixture.stop,
                matched=matched,
                parts=shown_images(artifacts),
            )
        if aborts and message.error is not None:
            await self._finish(attempt, message, attempt.aborted(_aborting(attempt, message.error)), artifacts)
            raise _abort(attempt, message.error)
        await self._finish(attempt, message, attempt.ended(message, artifacts, 0.0), artifacts)
        if problem is not None:
            raise permanent(problem)
        return outcome(message)

    async def _keep(self, attempt: Attempt, message: ToolMessage, *, ended_turn: bool, seconds: float | None) -> None:
        """Have the result recorded as the store has it: that of a second attempt is the first one's."""
        if attempt.recording.file is None or attempt.recording.replays:
            return
        async with store_failures():
            stored = await self._store.result_of_call(attempt.call.session, attempt.call.turn, message.call_id)
            artifacts = await artifacts_in_store(self._store, attempt.call)
        if stored == message:
            await attempt.recording.keep(message, artifacts=artifacts, ended_turn=ended_turn, seconds=seconds)


def _abort(attempt: Attempt, detail: ErrorDetail) -> ApplicationError:
    """The failure of a call that ends the turn."""
    return permanent(_aborting(attempt, detail))


def _aborting(attempt: Attempt, detail: ErrorDetail) -> ErrorDetail:
    """The failure as people read it, in its row and as the turn's error: the model needs less."""
    why = (
        "a replay ends where it parts from its recording"
        if detail.code == ReasonCode.TOOL_FIXTURE_MISSING
        else "it ended the turn, because the tool's catch does not list it and the agent's on_tool_error is 'abort'"
    )
    sentence = f"step {attempt.call.step}, tool {detail.title}: {detail.type}: {detail.message.rstrip('.')}; {why}"
    return detail.model_copy(update={"message": sentence})
