"""A tool call: the one dynamic activity behind every tool; its type in Temporal is the tool's name.

Long, because all that happens to one call stands here in order.

An attempt goes through five steps: *claim* the call in the ledger, *check* that it is approved, *run* the body,
*redact* its result, *record* that. If the worker replays a recording, the recorded outcome stands in for the run.

A second attempt runs the body again only if the tool is idempotent, or its reconciler says that it did not happen.
Otherwise it returns the result that is recorded or that the reconciler found, or tells the model that the effect is
unknown. If this very process still runs the call, the second attempt waits for its end (``toolbox/claims``).
"""

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import cast

from temporalio import activity
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from perdure.activities.agents import skill_tool
from perdure.activities.conditions import matches
from perdure.activities.errors import cause_of, permanent, runtime_error, transient
from perdure.activities.faults import faults_are_final
from perdure.activities.heartbeat import keep_beating, note_spent, note_wait
from perdure.activities.mcp.questions import AskedByServer, InputNeededError
from perdure.activities.mcp.session_state import Caller
from perdure.activities.parts import ActivityParts
from perdure.activities.recordings import FixtureMissingError
from perdure.activities.store_access import store_failures, write_until_stored
from perdure.activities.telling.traces import ToolSpan
from perdure.activities.toolbox.claims import Attempt, Body, Claims, RunningCalls, hidden_of
from perdure.activities.toolbox.output import (
    NotApprovedError,
    artifact_of_output,
    artifacts_in_store,
    artifacts_of,
    copy_recorded_artifacts,
    error_detail,
    events_of_abort,
    events_of_end,
    is_caught,
    make_finder,
    message_of_error,
    outcome,
    read,
    reading_tool_of,
    show_images,
    stop_request,
    text_of_exception,
    traceback_of,
)
from perdure.activities.toolbox.runner import Progress, check_arguments, masked, parse_arguments
from perdure.agents.parameters import takes_the_same
from perdure.agents.skills import is_skill_tool
from perdure.agents.tool import Tool
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.errors import REASONS, ErrorDetail, ReasonCode
from perdure.contracts.exceptions import value_of
from perdure.contracts.messages import ToolMessage
from perdure.contracts.tools import CallTool, ToolDeclaration, ToolOutcome
from perdure.contracts.values import replace
from perdure.contracts.waits import MissingVersion
from perdure.lanes.lanes import wait_within
from perdure.llm.tool_output import (
    OFFLOAD_CHARACTERS,
    CallResult,
    ToolTimeoutError,
    head_and_tail,
    output_id,
    shorten_output,
)
from perdure.schema_checks import run_off_the_loop
from perdure.security.approvals import is_approved
from perdure.security.redaction import without_hidden, without_known
from perdure.store import Artifact
from perdure.store.errors import StoreError

PLACE_RETRY = timedelta(seconds=1)
"""Wait before a worker without a free thread may take the call again."""


@dataclass(frozen=True)
class Ran:
    """The raw outcome of a body: its result or exception, and how long it ran."""

    result: CallResult | Exception
    seconds: float


@dataclass(frozen=True)
class CallEnd:
    """The outcome of a call to record. Nothing in it shows a secret or a masked argument.

    Attributes:
        message: What the model reads.
        artifacts: The whole text of a long output, and images and files.
        seconds: How long the body ran; None if it did not.
        trace: The traceback of the body's exception, for people.
        abort: The error that ends the turn with this call, if one does.
        cause: The exception behind ``abort``, as history and log may show it.
        problem: Why the result could not be searched for stop conditions; it ends the turn.
    """

    message: ToolMessage
    artifacts: Sequence[Artifact] = ()
    seconds: float | None = None
    trace: str | None = None
    abort: ErrorDetail | None = None
    cause: ApplicationError | None = None
    problem: ErrorDetail | None = None


class ToolActivities:
    """Tool calls of one worker."""

    def __init__(self, parts: ActivityParts) -> None:
        self._parts = parts
        self._store = parts.store
        self._secrets = parts.secrets
        self._running = RunningCalls()
        self._claims = Claims(
            store=parts.store,
            bodies=parts.bodies,
            running=self._running,
            contexts=parts.contexts,
            secrets=parts.secrets,
        )

    @activity.defn(dynamic=True)
    async def call_tool(self, args: Sequence[RawValue]) -> ToolOutcome:
        """Run one tool call and store its result under its call id."""
        call: CallTool = activity.payload_converter().from_payload(args[0].payload, CallTool)
        info = activity.info()
        # Named by the attempt's start time, since an operator may reset the attempt's number.
        claimant = f"{info.workflow_run_id}/{info.activity_id}/{info.started_time.timestamp():020.6f}"

        async def holds() -> bool:
            try:
                return await self._store.holds_call(call.session, call.turn, call.call_id, claimant)
            except StoreError:
                return True  # nobody else can have claimed it while the store is away

        async with keep_beating(is_bounded=False), faults_are_final(self._secrets):
            async with store_failures():
                await self._store.require(call.store)
            return await self._running.carry_out(claimant, self._carry_out(call, claimant), holds)

    async def _carry_out(self, call: CallTool, claimant: str) -> ToolOutcome:
        """Claim, check, run, redact, record, in the call's span. The attempt that records the result ends the span."""
        with self._parts.traces.tool_call(call) as span:
            return await self._carry_out_in(span, call, claimant)

    async def _carry_out_in(self, span: ToolSpan, call: CallTool, claimant: str) -> ToolOutcome:
        attempt = await self._begin(call, claimant)
        async with self._place(attempt):
            return await self._carry_out_at(attempt, span)

    @asynccontextmanager
    async def _place(self, attempt: Attempt) -> AsyncIterator[None]:
        """Have a thread for a sync body, before the call is claimed: else another worker may take it."""
        body = attempt.body
        if not isinstance(body, Tool) or attempt.recording.replays or self._running.has_other(attempt.claimant):
            yield
            return
        async with AsyncExitStack() as stack:
            note_wait(
                f"waits for a thread: {self._parts.bodies.describe_threads()}"
                if self._parts.bodies.is_full(body)
                else ""
            )
            try:
                await stack.enter_async_context(self._parts.bodies.place(body))
            except TimeoutError:
                message = f"{body.name} has not begun: {self._parts.bodies.describe_threads()} of this worker"
                detail = runtime_error(ReasonCode.RUNTIME_QUEUED, message)
                raise transient(detail, PLACE_RETRY, benign=True) from None
            finally:
                note_wait("")
            yield

    async def _carry_out_at(self, attempt: Attempt, span: ToolSpan) -> ToolOutcome:
        attempt, before = await self._claim(attempt)
        if before is not None:
            return await self._return_recorded(attempt, before)
        await span.claim(self._store, attempt.declaration, attempt.recovery.decision if attempt.recovery else None)
        if attempt.recovery is not None and attempt.recovery.decision == "given_up":
            end = CallEnd(attempt.message_of_loss(attempt.recovery))
        elif attempt.recording.replays:
            end = await self._replay(attempt)
        elif attempt.asked is not None and attempt.answering.number < attempt.asked.question.number:
            # An attempt was lost once it had kept the question.
            return await self._park(attempt, attempt.asked)
        else:
            ran = await self._run(attempt)
            if isinstance(ran.result, InputNeededError):
                return await self._park(attempt, ran.result.asked)
            end = await self._end_of(attempt, ran)
        if (error := end.abort or end.message.error) is not None:
            span.fail(error.code)
        return await self._record(attempt, end)

    async def _begin(self, call: CallTool, claimant: str) -> Attempt:
        """The attempt, with the definition that the turn froze and this worker's body of the tool."""
        definition = await self._parts.definitions.get(call.definition)
        declaration = definition.tool(activity.info().activity_type)
        body = self._body(definition, declaration)
        if declaration is None or body is None:
            raise await self._describe_missing_tool(definition, declaration)
        recording = await self._parts.recordings.tool_call(definition, call, declaration.name)
        progress = Progress(store=self._store, call=call, claimant=claimant)
        return Attempt(call, definition, declaration, body, claimant, recording, progress)

    def _body(self, definition: AgentDefinition, declaration: ToolDeclaration | None) -> Body | None:
        """The body for a frozen declaration; None if this worker has none with the same schema."""
        agent = self._parts.roster.find_agent(definition)
        if declaration is None:
            return None
        if definition.skills and is_skill_tool(declaration):
            return skill_tool(definition.skills, agent.skills if agent is not None else ())
        if agent is None:
            return None
        if declaration.remote is not None and (server := agent.mcp_server(declaration.remote.server)) is not None:
            return server
        tool = agent.tool(declaration.name)
        return tool if tool is not None and takes_the_same(tool.declaration, declaration) else None

    async def _describe_missing_tool(
        self, definition: AgentDefinition, declaration: ToolDeclaration | None
    ) -> ApplicationError:
        """The failure with which a worker of another version leaves the call to one that has the tool."""
        info, agent = activity.info(), self._parts.roster.find_agent(definition)
        name, remote = info.activity_type, declaration.remote if declaration is not None else None
        self._parts.metrics.refused_versions.note(info.workflow_id or "")
        missing = MissingVersion(
            agent=definition.name,
            what="tool" if remote is None else "server",
            name=name if remote is None else remote.server,
            definition=definition.digest(),
            changed=remote is None and declaration is not None and agent is not None and agent.tool(name) is not None,
        )
        return await self._parts.roster.offer(missing, inline=definition.inline is not None)

    async def _claim(self, attempt: Attempt) -> tuple[Attempt, CallEnd | None]:
        """The attempt with the call's raw arguments, and the recorded end if the call has ended before."""
        claim, recovery = await self._claims.claim(attempt)
        if claim.message is not None:
            error = claim.message.error if claim.aborted else None
            return attempt, CallEnd(claim.message, abort=None if error is None else _detail_of_abort(attempt, error))
        hidden = await hidden_of(attempt, claim.arguments)
        asked = AskedByServer.model_validate_json(claim.asked) if claim.asked else None
        attempt = replace(attempt, raw_arguments=claim.arguments, hidden=hidden, recovery=recovery, asked=asked)
        masked.set(attempt.unspoken)
        return attempt, None

    async def _return_recorded(self, attempt: Attempt, end: CallEnd) -> ToolOutcome:
        """Return or raise the end that a lost attempt has recorded."""
        await self._keep(attempt, end)
        if end.abort is not None:
            raise permanent(end.abort)
        return outcome(end.message)

    async def _check(self, attempt: Attempt) -> None:
        """Check the call against the agent's approvals once more, by its raw arguments, just before it runs."""
        if attempt.asked is not None:  # it was checked before its MCP server asked
            return
        definition, declaration, raw = attempt.definition, attempt.declaration, attempt.raw_arguments
        digest = attempt.call.approval.digest if attempt.call.approval is not None else None
        if definition.approvals.rules:
            agreed = await run_off_the_loop(lambda: is_approved(definition, declaration, raw, digest))
        else:
            agreed = is_approved(definition, declaration, raw, digest)
        if not agreed:
            msg = f"{declaration.name} with these arguments is not approved; it did not run"
            raise NotApprovedError(msg)

    async def _run(self, attempt: Attempt) -> Ran:
        """Check the call, and run the body on the raw arguments. A result found by the reconciler replaces the run."""
        began = time.monotonic()
        try:
            await self._check(attempt)
            note_spent()
            with attempt.progress.take_reports(self._secrets | attempt.unspoken):
                if attempt.recovery is not None and attempt.recovery.decision == "result_found":
                    result = cast("CallResult", value_of(attempt.recovery.found))
                elif isinstance(attempt.body, Tool):
                    result = await self._run_here(attempt, attempt.body)
                else:
                    result = await self._parts.mcp.call(
                        attempt.body,
                        attempt.declaration,
                        parse_arguments(attempt.raw_arguments),
                        caller=Caller(attempt.call.session, attempt.call.call_id, attempt.answering),
                        unspoken=attempt.unspoken,
                        on_progress=attempt.progress.report,
                    )
        except Exception as error:  # noqa: BLE001 - the edge: whatever a tool raises becomes a reason code
            return Ran(error, time.monotonic() - began)
        return Ran(result, time.monotonic() - began)

    async def _run_here(self, attempt: Attempt, tool: Tool[..., object]) -> CallResult:
        """Check the arguments, run the Python body, and read its result, all within its timeout."""
        limit = attempt.declaration.timeout.total_seconds()
        context = await self._parts.contexts.load_call_context(attempt.call)
        context.report, context.find = attempt.progress.report, make_finder(self._store, attempt.call.session)
        late = ToolTimeoutError(f"{tool.name} ran longer than its time-out of {limit:g} s; its effect is unknown")

        def stop() -> None:
            context.stop.set()
            if not tool.is_async:  # a thread cannot be cancelled: it sees the flag, or runs on
                self._parts.metrics.tools_abandoned.labels(tool.name).inc()

        body = self._parts.bodies.start(
            tool,
            lambda: check_arguments(tool, attempt.raw_arguments),
            context,
            lambda returned: read(returned, context.call_id, tool.returns),
        )
        result: CallResult = await wait_within(body, limit, who=tool.name, late=late, give_up=stop)
        return replace(result, stop=context.stop_reason)

    async def _replay(self, attempt: Attempt) -> CallEnd:
        """The recorded end of the call; the body does not run.

        A call that the recording lacks ends the turn, whatever the tool's ``catch`` says.
        """
        call, name = attempt.call, attempt.declaration.name
        try:
            fixture = await attempt.recording.outcome()
        except FixtureMissingError as error:
            code = ReasonCode.TOOL_FIXTURE_MISSING
            text = f"{REASONS[code].cause}: {error}; {REASONS[code].advice}"
            detail = ErrorDetail(code=code, title=name, message=text, type=type(error).__name__)
            return CallEnd(message_of_error(call, detail), abort=_detail_of_abort(attempt, detail))
        artifacts = copy_recorded_artifacts(call, fixture)
        whole = next(
            (artifact.text for artifact in artifacts if artifact.id == output_id(call.call_id)), fixture.content
        )
        matched, problem = ((), None) if fixture.error else await matches(attempt.definition, name, whole)
        message = ToolMessage(
            call_id=call.call_id,
            name=name,
            content=fixture.content,
            error=fixture.error,
            decided=call.approval,
            stop=fixture.stop,
            matched=matched,
            parts=show_images(artifacts),
        )
        ending = fixture.error if fixture.ended_turn else None
        abort = None if ending is None else _detail_of_abort(attempt, ending)
        return CallEnd(message, artifacts, abort=abort, problem=problem)

    async def _end_of(self, attempt: Attempt, ran: Ran) -> CallEnd:
        """The end of a call that has run. What fails here is its error too, as the body would run again otherwise."""
        try:
            return await self._redact(attempt, ran)
        except Exception as error:  # noqa: BLE001 - the edge: whatever it is, the body has run
            return self._judge_error(attempt, error, ran.seconds)

    async def _redact(self, attempt: Attempt, ran: Ran) -> CallEnd:
        """Mask a result, and cut it to what the model and people read."""
        if isinstance(ran.result, Exception):
            return self._judge_error(attempt, ran.result, ran.seconds)
        definition, declaration, call = attempt.definition, attempt.declaration, attempt.call
        text = content = without_known(without_hidden(ran.result.text, attempt.hidden), self._secrets)
        artifacts = await artifacts_of(call, ran.result.attachments, self._secrets)
        if declaration.truncate is not None:
            content = head_and_tail(text, declaration.truncate)
        elif declaration.offload and len(text) > OFFLOAD_CHARACTERS:
            whole = artifact_of_output(call, text)
            content = shorten_output(text, whole.id, reading_tool_of(definition))
            artifacts = [whole, *artifacts]
        matched, problem = await matches(definition, declaration.name, text) if definition.conditions else ((), None)
        message = ToolMessage(
            call_id=call.call_id,
            name=declaration.name,
            content=content,
            decided=call.approval,
            stop=stop_request(ran.result.stop, self._secrets | attempt.unspoken),
            matched=matched,
            parts=show_images(artifacts),
        )
        return CallEnd(message, artifacts, ran.seconds, problem=problem)

    def _judge_error(self, attempt: Attempt, error: Exception, seconds: float) -> CallEnd:
        """The end of a call that failed: a caught error is told to the model, any other follows ``on_tool_error``."""
        declaration, secrets = attempt.declaration, self._secrets | attempt.unspoken
        detail, trace = error_detail(declaration, error, secrets), None
        if detail.exception is not None:  # the tool's own exception: perdure's are explained by their text
            trace = traceback_of(error, secrets)
            activity.logger.warning("tool %s raised %s", detail.title, detail.type, extra={"exception": trace})
        end = CallEnd(
            message_of_error(attempt.call, detail, text_of_exception(error, secrets)), seconds=seconds, trace=trace
        )
        if attempt.definition.on_tool_error != "abort" or is_caught(declaration, error):
            return end
        return replace(end, abort=_detail_of_abort(attempt, detail), cause=cause_of(detail, error))

    async def _record(self, attempt: Attempt, end: CallEnd) -> ToolOutcome:
        """Store the result with its artifacts and events. It is dropped if the attempt has lost its claim."""
        call, name, message = attempt.call, attempt.declaration.name, end.message
        if end.abort is not None:
            events = events_of_abort(call, name, end.abort, end.trace)
        else:
            seconds = end.seconds or 0.0
            events = events_of_end(
                call, message, end.artifacts, seconds, recorded=attempt.recording.replays, traceback=end.trace
            )
        events = [*attempt.progress.take_last(), *events]
        kept = await write_until_stored(
            lambda: self._store.finish_call(
                session=call.session,
                turn=call.turn,
                call_id=call.call_id,
                claimant=attempt.claimant,
                message=message,
                events=events,
                artifacts=end.artifacts,
            )
        )
        if not kept:
            activity.logger.warning("the result of %s came too late and was dropped", call.call_id)
        await self._keep(attempt, end)
        if end.seconds is not None:
            self._parts.metrics.tool_seconds.labels(name).observe(end.seconds)
        if end.abort is not None:
            raise permanent(end.abort) from end.cause
        if end.problem is not None:
            raise permanent(end.problem)
        return outcome(message)

    async def _park(self, attempt: Attempt, asked: AskedByServer) -> ToolOutcome:
        """Keep what the call's MCP server asks with the call, which is sent again with the answer."""
        call = attempt.call
        kept = await write_until_stored(
            lambda: self._store.park_call(
                session=call.session,
                turn=call.turn,
                call_id=call.call_id,
                claimant=attempt.claimant,
                asked=asked.model_dump_json(),
            )
        )
        if not kept:
            activity.logger.warning("the question of %s came too late and was dropped", call.call_id)
        return ToolOutcome(call_id=call.call_id, recorded=False, asks=asked.question)

    async def _keep(self, attempt: Attempt, end: CallEnd) -> None:
        """Add the call to the turn's recording, if this worker records and the store holds this very result."""
        recording, call = attempt.recording, attempt.call
        if recording.file is None or recording.replays:
            return
        async with store_failures():
            stored = await self._store.result_of_call(call.session, call.turn, call.call_id)
            artifacts = await artifacts_in_store(self._store, call)
        if stored == end.message:
            names = {artifact.id: artifact.name for artifact in end.artifacts}  # the store has none
            artifacts = [replace(artifact, name=names.get(artifact.id, "")) for artifact in artifacts]
            ended_turn = end.abort is not None
            await recording.keep(end.message, artifacts=artifacts, ended_turn=ended_turn, seconds=end.seconds)


def _detail_of_abort(attempt: Attempt, detail: ErrorDetail) -> ErrorDetail:
    """The failure as people read it, in the UI's row and as the turn's error; longer than the model's."""
    why = (
        "a replay ends where it parts from its recording"
        if detail.code == ReasonCode.TOOL_FIXTURE_MISSING
        else "it ended the turn, because the tool's catch does not list it and the agent's on_tool_error is 'abort'"
    )
    sentence = f"step {attempt.call.step}, tool {detail.title}: {detail.type}: {detail.message.rstrip('.')}; {why}"
    return replace(detail, message=sentence)
