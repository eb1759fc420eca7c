"""The one dynamic activity behind every Python tool; its type in Temporal is the tool's name.

A call is claimed by its row in the ledger before the body runs. So a second attempt never runs the body again, unless
the tool is idempotent: it returns the recorded result, or tells the model that the effect is unknown.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from temporalio import activity
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from activities.bodies import Bodies, CallContext, masked
from activities.definitions import Definitions
from activities.errors import behind, permanent, runtime_error, store_failures, transient
from activities.heartbeat import beating, reporter
from activities.mcp.servers import McpServers, is_remote, server_name
from activities.metrics import Metrics
from activities.recordings import FixtureMissingError, Recordings
from activities.storing import until_stored
from activities.tool_results import (
    Attachment,
    Attempt,
    CallResult,
    ToolTimeoutError,
    as_text,
    attachment_id,
    check_approval,
    checked_arguments,
    error_detail,
    failed,
    is_caught,
    masked_values,
    outcome,
    parsed_arguments,
)
from perdure.agents.agent import Agent
from perdure.agents.tool import Tool
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.errors import REASONS, ErrorDetail, ReasonCode
from perdure.contracts.events import NewEvent
from perdure.contracts.mcp import AnyServerConfig
from perdure.contracts.messages import ToolMessage
from perdure.contracts.tools import CallTool, ToolDeclaration, ToolOutcome
from perdure.engine.outputs import OFFLOAD_CHARACTERS, head_and_tail, offloaded
from perdure.engine.redaction import Hidden, without_hidden, without_known
from perdure.store import Artifact, Claim, NotFoundError, Store

MAX_RERUNS = 5
"""An idempotent tool whose worker is lost so many times is given up: it may be what kills them."""

MISSING_TOOL_RETRY = timedelta(seconds=5)
"""Wait before another worker is asked for a tool this one lacks."""


Body = Tool[..., Any] | AnyServerConfig
"""What carries a call out: a Python function, or an MCP server."""


class ToolActivities:
    """Tool calls of one worker."""

    def __init__(  # noqa: PLR0913 - the parts of a worker, all by keyword
        self,
        *,
        store: Store,
        agents: Mapping[str, Agent],
        definitions: Definitions,
        bodies: Bodies,
        mcp: McpServers,
        metrics: Metrics,
        recordings: Recordings,
        secrets: frozenset[str],
    ) -> None:
        self._store = store
        self._agents = agents
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
        async with beating():
            return await self._carried_out(call)

    async def _carried_out(self, call: CallTool) -> ToolOutcome:
        info = activity.info()
        definition = await self._definitions.get(call.definition)
        tool, declaration = self._tool(definition, info.activity_type)
        # By the server's time and not by its count, which an operator may reset.
        claimant = f"{info.workflow_run_id}/{info.activity_id}/{info.started_time.timestamp():020.6f}"
        recording = await self._recordings.tool_call(definition, call, declaration.name)
        attempt = Attempt(call, declaration, claimant, recording)
        claim = await self._claim(attempt, rerun=declaration.idempotent and info.attempt <= MAX_RERUNS)
        if claim.message is not None:
            await self._keep(attempt, claim.message, ended_turn=claim.aborted, seconds=None)
            if claim.aborted and claim.message.error is not None:  # by an attempt that was lost before it could say so
                raise _abort(attempt, claim.message.error)
            return outcome(claim.message)
        if (replayed := await self._replayed(attempt)) is not None:
            return replayed
        hidden = await _hidden(attempt, claim.arguments)
        unspoken = hidden.named | hidden.guessed
        masked.set(unspoken)
        began = time.monotonic()
        try:
            check_approval(definition, attempt, claim.arguments)
            result = await self._run(tool, attempt, claim.arguments)
        except Exception as error:  # noqa: BLE001 - the edge: whatever a tool raises becomes a reason code
            detail = error_detail(declaration, error, self._secrets | unspoken)
            return await self._failed(definition, attempt, error, detail, time.monotonic() - began)
        seconds = time.monotonic() - began
        if result.attachments:
            await self._attach(attempt, result.attachments)
        return await self._succeeded(attempt, without_hidden(result.text, hidden), seconds)

    def _tool(self, definition: AgentDefinition, name: str) -> tuple[Body, ToolDeclaration]:
        """The body for a frozen declaration; a worker of another version leaves the call to one that has it."""
        declaration = definition.tool(name)
        agent = self._agents.get(definition.name)
        if declaration is not None and agent is not None and is_remote(declaration):
            server = agent.mcp_server(server_name(declaration))
            if server is not None:
                return server, declaration
        tool = agent.tool(name) if agent is not None else None
        if declaration is None or tool is None or tool.declaration.parameters != declaration.parameters:
            message = (
                f"this worker has no tool {name!r} of agent {definition.name!r} with the schema the turn began with; "
                "keep a worker of that version until its turns have ended"
            )
            raise transient(runtime_error(ReasonCode.RUNTIME_TOOL_MISSING, message), MISSING_TOOL_RETRY)
        return tool, declaration

    async def _claim(self, attempt: Attempt, *, rerun: bool) -> Claim:
        call = attempt.call
        return await until_stored(
            lambda: self._store.claim_call(
                session=call.session,
                turn=call.turn,
                step=call.step,
                call_id=call.call_id,
                claimant=attempt.claimant,
                rerun=rerun,
                start=attempt.started(),
                approved=attempt.approved(),
                lost=attempt.lost,
            )
        )

    async def _run(self, tool: Body, attempt: Attempt, raw: str) -> CallResult:
        """Check the arguments, run the body within its time-out, and write its result as text."""
        if not isinstance(tool, Tool):
            return await self._mcp.call(
                tool,
                attempt.declaration,
                parsed_arguments(raw),
                call_id=attempt.call.call_id,
                on_progress=reporter(),
            )
        call, limit = attempt.call, attempt.declaration.timeout.total_seconds()
        arguments = checked_arguments(tool, raw)
        context = CallContext(call.session, call.turn, call.call_id, f"{call.session}/{call.turn}/{call.call_id}")
        body = asyncio.wrap_future(self._bodies.start(tool, arguments, context))
        try:
            done, _ = await asyncio.wait([body], timeout=limit)
        except asyncio.CancelledError:
            self._stop(tool, context, body)
            raise
        if not done:
            self._stop(tool, context, body)
            msg = f"{tool.name} ran longer than its time-out of {limit:g} s; its effect is unknown"
            raise ToolTimeoutError(msg)
        if body.cancelled():
            msg = f"{tool.name} cancelled itself"
            raise RuntimeError(msg)
        return CallResult(as_text(body.result()))

    async def _attach(self, attempt: Attempt, attachments: Sequence[Attachment]) -> None:
        call = attempt.call
        artifacts = [
            Artifact(
                id=attachment_id(call.call_id, number), session=call.session, media_type=one.media_type, text=one.data
            )
            for number, one in enumerate(attachments, 1)
        ]
        await until_stored(lambda: self._store.keep_artifacts(call.turn, call.call_id, artifacts))

    def _stop(self, tool: Tool[..., Any], context: CallContext, body: "asyncio.Future[Any]") -> None:
        """Tell the body to end: an async one is cancelled, a blocking one has its flag and may run on."""
        context.stop.set()
        body.cancel()
        if not tool.is_async:
            self._metrics.tools_abandoned.labels(tool.name).inc()

    async def _succeeded(self, attempt: Attempt, text: str, seconds: float) -> ToolOutcome:
        declaration, call = attempt.declaration, attempt.call
        text = without_known(text, self._secrets)
        content, artifact = text, None
        if declaration.truncate is not None:
            content = head_and_tail(text, declaration.truncate)
        elif declaration.offload and len(text) > OFFLOAD_CHARACTERS:
            artifact = _artifact(call, text)
            content = offloaded(text, artifact.id)
        message = ToolMessage(call_id=call.call_id, name=declaration.name, content=content, decided=call.approval)
        await self._finish(attempt, message, attempt.ended(message, artifact, seconds), artifact)
        await self._keep(attempt, message, ended_turn=False, seconds=seconds)
        self._count(declaration.name, "ok", seconds)
        return outcome(message)

    async def _failed(
        self, definition: AgentDefinition, attempt: Attempt, error: Exception, detail: ErrorDetail, seconds: float
    ) -> ToolOutcome:
        """A caught error is told to the model; any other follows the agent's ``on_tool_error``."""
        message = failed(attempt.call, detail)
        aborts = definition.on_tool_error == "abort" and not is_caught(attempt.declaration, error)
        events = attempt.aborted(_aborting(attempt, detail)) if aborts else attempt.ended(message, None, seconds)
        await self._finish(attempt, message, events, None)
        await self._keep(attempt, message, ended_turn=aborts, seconds=seconds)
        self._count(detail.title, detail.code, seconds)
        if aborts:
            raise _abort(attempt, detail) from behind(detail, error)
        return outcome(message)

    async def _finish(
        self, attempt: Attempt, message: ToolMessage, events: list[NewEvent], artifact: Artifact | None
    ) -> None:
        """Store the result; that of an attempt which has lost its claim is dropped."""
        call = attempt.call
        kept = await until_stored(
            lambda: self._store.finish_call(
                session=call.session,
                turn=call.turn,
                call_id=call.call_id,
                claimant=attempt.claimant,
                message=message,
                events=events,
                artifact=artifact,
            )
        )
        if not kept:
            activity.logger.warning("the result of %s came too late and was dropped", call.call_id)

    async def _replayed(self, attempt: Attempt) -> ToolOutcome | None:
        """What the call came to when it was recorded; None if it is to be carried out.

        A call that was never recorded ends the turn, whatever the tool's ``catch`` says: the body does not run.
        """
        call, name = attempt.call, attempt.declaration.name
        try:
            fixture = await attempt.recording.outcome()
        except FixtureMissingError as error:
            code = ReasonCode.TOOL_FIXTURE_MISSING
            text = f"{REASONS[code].text}: {error}"
            message = failed(call, ErrorDetail(code=code, title=name, message=text, type=type(error).__name__))
            artifact, aborts = None, True
        else:
            if fixture is None:
                return None
            message = ToolMessage(
                call_id=call.call_id,
                name=name,
                content=fixture.content,
                error=fixture.error,
                decided=call.approval,
            )
            artifact = None if fixture.artifact is None else _artifact(call, fixture.artifact)
            aborts = fixture.ended_turn
        if aborts and message.error is not None:
            await self._finish(attempt, message, attempt.aborted(_aborting(attempt, message.error)), artifact)
            raise _abort(attempt, message.error)
        await self._finish(attempt, message, attempt.ended(message, artifact, 0.0), artifact)
        return outcome(message)

    async def _keep(self, attempt: Attempt, message: ToolMessage, *, ended_turn: bool, seconds: float | None) -> None:
        """Have the result recorded as the store has it: that of a second attempt is the first one's."""
        if attempt.recording.file is None or attempt.recording.replays:
            return
        async with store_failures():
            stored = await self._store.result_of_call(attempt.call.session, attempt.call.turn, message.call_id)
            try:
                artifact = (await self._store.artifact(f"art_{message.call_id}")).text
            except NotFoundError:
                artifact = None
        if stored == message:
            await attempt.recording.keep(message, artifact=artifact, ended_turn=ended_turn, seconds=seconds)

    def _count(self, tool: str, result: str, seconds: float) -> None:
        self._metrics.tool_calls.labels(tool, result).inc()
        self._metrics.tool_seconds.labels(tool).observe(seconds)


def _artifact(call: CallTool, text: str) -> Artifact:
    """A whole output, to be stored apart from the conversation."""
    return Artifact(id=f"art_{call.call_id}", session=call.session, media_type="text/plain", text=text)


async def _hidden(attempt: Attempt, raw: str) -> Hidden:
    """What of the raw arguments nobody but the body may see."""
    if raw == attempt.call.arguments:
        return Hidden()
    return await asyncio.to_thread(masked_values, attempt.declaration, raw)  # slow for large ones


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
