"""Failures of an MCP server, each with a reason code and a sentence; vendor exceptions end here.

The text of a failure may end with the last lines of the server's standard error.
"""

import contextlib
import re
from collections.abc import Iterator
from typing import cast

from mcp import MCPError
from mcp_types import CONNECTION_CLOSED, INVALID_PARAMS, METHOD_NOT_FOUND, REQUEST_TIMEOUT
from pydantic import ValidationError

from perdure.contracts.errors import ReasonCode
from perdure.contracts.mcp import ServerStatus
from perdure.contracts.values import describe_mistake

_CLOSED = re.compile(r"connection closed$|sse stream (?:ended|failed)", re.IGNORECASE)
"""What the SDK says of a connection that broke; servers use its codes for errors of their own."""


class McpError(Exception):
    """A call that came to nothing; the model is told."""

    def __init__(self, code: ReasonCode, message: str, said: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.said = said
        """What the server said, if it answered with an error of the protocol."""


class McpUnavailableError(McpError):
    """The server cannot be used now; ``status`` is what operators see of it."""

    def __init__(self, message: str, status: ServerStatus = ServerStatus.FAILED, *, again: bool = False) -> None:
        super().__init__(ReasonCode.TOOL_NETWORK_ERROR, message)
        self.status = status
        self.again = again
        """Whether connecting once more may help."""


class ConnectionLostError(Exception):
    """The connection broke; ``unsent`` says that the server certainly did not carry out the call."""

    def __init__(self, message: str, *, unsent: bool) -> None:
        super().__init__(message)
        self.unsent = unsent


def leaf(error: BaseException) -> BaseException:
    """The failure inside the groups of failures that task groups raise."""
    while isinstance(error, BaseExceptionGroup):
        parts = cast("tuple[BaseException, ...]", error.exceptions)
        error = next((part for part in parts if isinstance(part, Exception)), parts[0])
    return error


def describe_failure(error: BaseException) -> str:
    """What a failure says, after its kind: some say nothing of themselves."""
    text = str(error)
    if isinstance(error, ConnectionLostError | McpError):
        return text
    kind = type(error).__name__
    return f"{kind}: {text}" if text else kind


@contextlib.contextmanager
def call_failures(server: str, tool: str, limit: float) -> Iterator[None]:
    """Turn what the SDK raises for a call into errors of ours."""
    who = f"MCP server {server!r}"
    try:
        yield
    except MCPError as error:
        raise _protocol_failure(error, who, tool, limit) from None
    except ValidationError as error:
        msg = f"{who}: the result of {tool!r} is not what the protocol allows: {describe_mistake(error)}"
        raise McpError(ReasonCode.TOOL_INVALID_OUTPUT, msg) from None
    except RuntimeError as error:  # the SDK's word for a result outside the tool's own output schema
        raise McpError(ReasonCode.TOOL_INVALID_OUTPUT, f"{who}: {error}") from None


def _protocol_failure(error: MCPError, who: str, tool: str, limit: float) -> Exception:
    text = " ".join(error.message.split()) or "it did not say why"
    if error.code == CONNECTION_CLOSED and _CLOSED.match(text):
        return ConnectionLostError(text, unsent=False)
    if error.code == REQUEST_TIMEOUT and "timed out" in text:
        msg = f"{tool} of {who} ran longer than its time-out of {limit:g} s; its effect is unknown"
        return McpError(ReasonCode.TOOL_TIMEOUT, msg, text)
    if error.code == INVALID_PARAMS:
        return McpError(ReasonCode.TOOL_INVALID_INPUT, f"{who}: {text}", text)
    if error.code == METHOD_NOT_FOUND:
        return McpError(ReasonCode.TOOL_EXECUTION_ERROR, f"{who} does not offer {tool!r}: {text}", text)
    return McpError(ReasonCode.TOOL_EXECUTION_ERROR, f"{who}: {text} (code {error.code})", text)


RECENT_LINES = 50
"""Lines of standard error that a failure has. Source: Dreadnode's MCP client."""

LONGEST_RECENT_LINE = 160
"""More of such a line stands in the log only."""

ENDS_WITH = "; its standard error ends with: "
"""What stands before them."""


def shorten(text: str, limit: int) -> str:
    """A failure's text within a limit: of its last lines as many of the newest as fit whole."""
    head, mark, lines = text.partition(ENDS_WITH)
    room = limit - len(head) - len(mark)
    if len(text) <= limit or not lines or room <= 0:
        return text[:limit]
    fitting = lines[-room:]
    return head + mark + (fitting.partition("\n")[2] or fitting)


def with_last_lines(text: str, limit: int) -> str:
    """A failure's text with all its last lines; the limit is for what stands before them."""
    head, mark, lines = text.partition(ENDS_WITH)
    return head[:limit] + mark + lines[-RECENT_LINES * (LONGEST_RECENT_LINE + 1) :]


def last_lines(text: str) -> list[str]:
    """The last lines in a failure's text."""
    return text.partition(ENDS_WITH)[2].splitlines()
