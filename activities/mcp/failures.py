"""Failures of an MCP server, each with a reason code and a sentence; vendor exceptions end here.

The text of a failure may end with the last lines of the server's standard error.
"""

import contextlib
import re
from collections.abc import Iterator
from typing import cast

from mcp import MCPError
from mcp_types import CONNECTION_CLOSED, INVALID_PARAMS, METHOD_NOT_FOUND, PARSE_ERROR, REQUEST_TIMEOUT
from pydantic import ValidationError
from pydantic_core import to_json

from perdure.contracts.errors import ReasonCode
from perdure.contracts.mcp import ServerStatus
from perdure.contracts.values import describe_mistake

DATA_CHARACTERS = 2_000
"""Longest details of a protocol error that a failure's text has."""

_CLOSED = re.compile(r"connection closed$|sse stream (?:ended|failed)", re.IGNORECASE)
"""The SDK's messages about a broken connection. Its error codes say nothing: servers use them for their own errors."""


class McpError(Exception):
    """A call failed; the model reads why."""

    def __init__(self, code: ReasonCode, message: str, said: str = "", number: int = 0) -> None:
        super().__init__(message)
        self.code = code
        self.number = number
        """The number of a protocol error."""
        self.said = said
        """The server's message, if it answered with a protocol error."""


class McpUnavailableError(McpError):
    """The server cannot be used now; ``status`` is what operators see."""

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
    """The first plain exception inside nested exception groups, which task groups raise."""
    while isinstance(error, BaseExceptionGroup):
        parts = cast("tuple[BaseException, ...]", error.exceptions)
        error = next((part for part in parts if isinstance(part, Exception)), parts[0])
    return error


def describe_failure(error: BaseException) -> str:
    """The text of a failure with its class before it, since some have no text."""
    text = str(error)
    if isinstance(error, ConnectionLostError | McpError):
        return text
    kind = type(error).__name__
    return f"{kind}: {text}" if text else kind


@contextlib.contextmanager
def call_failures(server: str, tool: str, limit: float) -> Iterator[None]:
    """Turn what the SDK raises for a call into perdure's errors. ``limit`` is the call's timeout in seconds."""
    who = f"MCP server {server!r}"
    try:
        yield
    except MCPError as error:
        raise _protocol_failure(error, who, tool, limit) from None
    except ValidationError as error:
        msg = f"{who}: the result of {tool!r} is not what the protocol allows: {describe_mistake(error)}"
        raise McpError(ReasonCode.TOOL_INVALID_OUTPUT, msg) from None
    except RuntimeError as error:  # the SDK raises this for a result that asks for something in return
        raise McpError(ReasonCode.TOOL_INVALID_OUTPUT, f"{who}: {error}") from None


def _describe_data(data: object) -> str:
    """The details of a protocol error, cut; servers put the cause there."""
    if data is None or data in ("", [], {}):
        return ""
    text = data if isinstance(data, str) else to_json(data, inf_nan_mode="strings").decode()
    return f" ({text if len(text) <= DATA_CHARACTERS else text[:DATA_CHARACTERS] + '…'})"


def _protocol_failure(error: MCPError, who: str, tool: str, limit: float) -> Exception:
    text = " ".join(f"{error.message}{_describe_data(error.data)}".split()) or "it did not say why"
    if error.code == PARSE_ERROR and text.startswith("Failed to parse "):  # the SDK's own, about what came
        text = "its answer cannot be read as a message of the protocol; the effect of the call is unknown"
    if error.code == CONNECTION_CLOSED and _CLOSED.match(text):
        return ConnectionLostError(text, unsent=False)
    if error.code == REQUEST_TIMEOUT and "timed out" in text:
        msg = f"{tool} of {who} ran longer than its time-out of {limit:g} s; its effect is unknown"
        return McpError(ReasonCode.TOOL_TIMEOUT, msg, text)
    code, said = ReasonCode.TOOL_EXECUTION_ERROR, f"{who}: {text} (code {error.code})"
    if error.code == INVALID_PARAMS:
        code, said = ReasonCode.TOOL_INVALID_INPUT, f"{who}: {text}"
    elif error.code == METHOD_NOT_FOUND:
        said = f"{who} does not offer {tool!r}: {text}"
    return McpError(code, said, text, error.code)


RECENT_LINES = 50
"""Last lines of standard error that a failure's text has. Source: Dreadnode's MCP client."""

LONGEST_RECENT_LINE = 160
"""Characters of such a line; the rest stands in the server's log only."""

ENDS_WITH = "; its standard error ends with: "
"""The words before the last lines of standard error."""


def shorten(text: str, limit: int) -> str:
    """A failure's text, cut to a limit in characters. Of its last lines the newest are kept that fit as a whole."""
    head, mark, lines = text.partition(ENDS_WITH)
    room = limit - len(head) - len(mark)
    if len(text) <= limit or not lines or room <= 0:
        return text[:limit]
    fitting = lines[-room:]
    return head + mark + (fitting.partition("\n")[2] or fitting)


def with_last_lines(text: str, limit: int) -> str:
    """A failure's text with all its last lines; only the text before them is cut to the limit."""
    head, mark, lines = text.partition(ENDS_WITH)
    return head[:limit] + mark + lines[-RECENT_LINES * (LONGEST_RECENT_LINE + 1) :]


def last_lines(text: str) -> list[str]:
    """The last lines in a failure's text."""
    return text.partition(ENDS_WITH)[2].splitlines()
