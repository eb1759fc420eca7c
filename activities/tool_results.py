"""What becomes of a tool's body: its result as text, its exception as an error for the model and a reason code."""

import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from perdure.activities import tool_runner
from perdure.activities.failures import redact
from perdure.activities.mcp.failures import McpError, in_full, shortened
from perdure.activities.recordings import CallRecording
from perdure.activities.schema_checks import off_the_loop
from perdure.activities.tool_output import approved, call_event, ended, step_ended
from perdure.activities.tool_runner import Progress
from perdure.agents.context import InvalidOutputError, ToolUnavailableError
from perdure.agents.tool import InvalidInputError, Tool
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.errors import ErrorDetail, ReasonCode, named
from perdure.contracts.events import RESULT_CHARACTERS, NewEvent, ToolError, ToolStart
from perdure.contracts.messages import ToolMessage
from perdure.contracts.tools import CallTool, ToolDeclaration, ToolOutcome
from perdure.contracts.values import JsonValue, json_object
from perdure.security.approvals import is_approved
from perdure.security.redaction import Hidden, hidden_values
from perdure.store import Artifact

ERROR_CHARACTERS = 1_500
"""Longest error text the model reads."""

TRACEBACK_CHARACTERS = 4_000
"""Longest traceback in the log of events; people need its end. Temporal's history has none of it."""

STOP_CHARACTERS = 500
"""Longest reason for which a tool asks the turn to end."""

_NETWORK = frozenset(
    {"ConnectionError", "gaierror", "TransportError", "ClientConnectionError", "RequestException", "URLError"}
)
"""Base classes of network faults in the standard library, httpx, aiohttp and requests."""


class NotApprovedError(Exception):
    """The call needs an approval and has none that is for these arguments; always told to the model."""


class ToolTimeoutError(TimeoutError):
    """The body ran longer than the tool's time-out."""


@dataclass(frozen=True)
class Attempt:
    """One attempt at a call: its claim, its recording, its progress, and the events it writes, each once by its key."""

    call: CallTool
    declaration: ToolDeclaration
    claimant: str
    recording: CallRecording
    progress: Progress

    def started(self) -> list[NewEvent]:
        """The body is about to run; somebody has allowed it, if that was needed."""
        name = self.declaration.name
        start = ToolStart(call_id=self.call.call_id, tool=name, arguments=self.call.arguments)
        return [*approved(self.call, name), call_event(self.call, start)]

    def ended(
        self, message: ToolMessage, artifacts: Sequence[Artifact], seconds: float, trace: str | None = None
    ) -> list[NewEvent]:
        """The call has a result for the model."""
        replays = self.recording.replays
        return ended(self.call, message, artifacts, seconds, recorded=replays, traceback=trace)

    def aborted(self, error: ErrorDetail, trace: str | None = None) -> list[NewEvent]:
        """The call failed outside its ``catch``, and the turn ends."""
        name = self.declaration.name
        failure = ToolError(call_id=self.call.call_id, tool=name, error=error, traceback=trace)
        return [call_event(self.call, failure), step_ended(self.call, self.declaration.name)]

    def given_up(self, code: ReasonCode, told: str) -> ToolMessage:
        """What the model is told when an earlier attempt was lost in the body and it does not run again."""
        return failed(self.call, ErrorDetail(code=code, title=self.declaration.name, message=told))


def failed(call: CallTool, error: ErrorDetail, said: str = "") -> ToolMessage:
    """An error as the model reads it: type and text, structured; ``said`` is the text if the detail's is shorter."""
    return ToolMessage(
        call_id=call.call_id,
        name=error.title,
        content=error.as_result(said),
        error=error,
        decided=call.approval,
    )


def outcome(message: ToolMessage) -> ToolOutcome:
    """What the workflow is told of a result."""
    preview = message.content[:RESULT_CHARACTERS]
    return ToolOutcome(
        call_id=message.call_id, preview=preview, error=message.error, stop=message.stop, matched=message.matched
    ).sparse()


def stop_request(reason: str | None, secrets: "frozenset[str]") -> str | None:
    """Why a tool asked the turn to end, as people read it; None if it did not."""
    return None if reason is None else redact(" ".join(reason.split()), secrets)[:STOP_CHARACTERS]


def parsed_arguments(raw: str) -> dict[str, JsonValue]:
    """The model's arguments as JSON.

    Raises:
        InvalidInputError: They are no JSON object.
    """
    try:
        return json_object(raw or "{}")
    except ValueError as error:
        msg = f"the arguments are no JSON object: {error}"
        raise InvalidInputError(msg) from error


def checked_arguments(tool: Tool[..., Any], raw: str) -> dict[str, Any]:
    """The model's arguments as the body takes them.

    Raises:
        InvalidInputError: They are no JSON object, or do not fit the schema.
    """
    return tool.checked(parsed_arguments(raw))


async def check_approval(definition: AgentDefinition, attempt: Attempt, raw: str) -> None:
    """Hold the call to the agent's rules once more, where it is about to run.

    Raises:
        NotApprovedError: A rule denies it, or it is not what somebody approved.
    """
    digest = attempt.call.approval.digest if attempt.call.approval is not None else None
    if definition.approvals.rules:
        agreed = await off_the_loop(lambda: is_approved(definition, attempt.declaration, raw, digest))
    else:
        agreed = is_approved(definition, attempt.declaration, raw, digest)
    if not agreed:
        msg = f"{attempt.declaration.name} with these arguments is not approved; it did not run"
        raise NotApprovedError(msg)


def masked_values(declaration: ToolDeclaration, raw: str) -> Hidden:
    """What nobody but the body may see of the arguments; an exception likes to repeat it."""
    try:
        return hidden_values(json_object(raw), declaration.masked)
    except ValueError:
        return Hidden()


_OURS = (InvalidInputError, InvalidOutputError, McpError, NotApprovedError, ToolTimeoutError, ToolUnavailableError)
"""What perdure itself raises of a call; everything else is a plain exception of the tool."""


def is_caught(declaration: ToolDeclaration, error: Exception) -> bool:
    """Whether the model is told, and the turn goes on."""
    ours = isinstance(error, InvalidInputError | NotApprovedError | ToolUnavailableError | McpError)
    return ours or declaration.catches(error)


def error_detail(declaration: ToolDeclaration, error: Exception, secrets: "frozenset[str]") -> ErrorDetail:
    """The exception of a body as facts: code, class, redacted text."""
    text = shortened(redact(str(error), secrets), ERROR_CHARACTERS) or "no message"
    kind = type(error).__name__
    exception = None if isinstance(error, _OURS) else named(kind)
    return ErrorDetail(code=_code(error), title=declaration.name, message=text, type=kind, exception=exception)


def traceback_of(error: Exception, secrets: "frozenset[str]") -> str:
    """Where a body raised its exception, for people: its own frames and causes, without secrets, the end if it is long.

    Redaction comes before the cut, which may not part a secret.
    """
    frames = list(traceback.walk_tb(error.__traceback__))
    ours = [place for place, (frame, _) in enumerate(frames) if frame.f_code.co_filename == tool_runner.__file__]
    own, last = error.__traceback__, ours[-1] if ours else -1
    for _ in range(last + 1):
        own = own.tb_next if own is not None else None
    lines = traceback.format_exception(type(error), error, own or error.__traceback__)
    text = redact("".join(lines), secrets).rstrip()
    return text if len(text) <= TRACEBACK_CHARACTERS else f"…{text[1 - TRACEBACK_CHARACTERS :]}"


def told(error: Exception, secrets: "frozenset[str]") -> str:
    """The exception's text for the model, with all the last lines of an MCP server that broke."""
    text = redact(str(error), secrets)
    return in_full(text, ERROR_CHARACTERS) if isinstance(error, McpError) else text[:ERROR_CHARACTERS]


def _code(error: Exception) -> ReasonCode:
    if isinstance(error, McpError):
        return error.code
    if isinstance(error, InvalidInputError):
        return ReasonCode.TOOL_INVALID_INPUT
    if isinstance(error, NotApprovedError):
        return ReasonCode.TOOL_DENIED
    if isinstance(error, InvalidOutputError):
        return ReasonCode.TOOL_INVALID_OUTPUT
    if isinstance(error, ToolTimeoutError):
        return ReasonCode.TOOL_TIMEOUT
    if any(base.__name__ in _NETWORK for base in type(error).__mro__):
        return ReasonCode.TOOL_NETWORK_ERROR
    return ReasonCode.TOOL_EXECUTION_ERROR
