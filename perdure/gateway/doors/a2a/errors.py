"""Refusals in the two forms of this door: errors of JSON-RPC, and ``google.rpc.Status`` for the REST routes.

Each names the protocol's own reason where there is one, and always our code.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from starlette.responses import JSONResponse, Response

from perdure.contracts.a2a import MEDIA_TYPE
from perdure.contracts.errors import ReasonCode
from perdure.contracts.values import JsonValue
from perdure.gateway.doors.a2a.objects import Object
from perdure.gateway.problems import Problem, ProblemCode, ProblemError

PROTOCOL, OURS = "a2a-protocol.org", "perdure"
"""Domains of reasons: those of the protocol, and our codes."""


@dataclass(frozen=True)
class _Kind:
    """Kind of an error of the protocol.

    Attributes:
        code: JSON-RPC's.
        http: The status of a REST route.
        rpc: The status in words of ``google.rpc.Code``.
        ours: Our code.
    """

    code: int
    http: int
    rpc: str
    ours: str


class Reason(Enum):
    """Errors of the protocol that this door has."""

    TASK_NOT_FOUND = _Kind(-32001, 404, "NOT_FOUND", ProblemCode.UNKNOWN_TURN)
    TASK_NOT_CANCELABLE = _Kind(-32002, 400, "FAILED_PRECONDITION", ProblemCode.SESSION_IDLE)
    PUSH_NOTIFICATION_NOT_SUPPORTED = _Kind(-32003, 400, "FAILED_PRECONDITION", ProblemCode.CONFLICT)
    UNSUPPORTED_OPERATION = _Kind(-32004, 400, "FAILED_PRECONDITION", ProblemCode.CONFLICT)
    CONTENT_TYPE_NOT_SUPPORTED = _Kind(-32005, 400, "INVALID_ARGUMENT", ReasonCode.REQUEST_INVALID)
    EXTENSION_SUPPORT_REQUIRED = _Kind(-32008, 400, "FAILED_PRECONDITION", ReasonCode.REQUEST_INVALID)
    VERSION_NOT_SUPPORTED = _Kind(-32009, 400, "FAILED_PRECONDITION", ReasonCode.REQUEST_INVALID)


class A2AError(ProblemError):
    """A refusal for which the protocol has a word."""

    def __init__(self, reason: Reason, detail: str, code: str | None = None) -> None:
        super().__init__(reason.value.http, code or reason.value.ours, detail)
        self.reason = reason


INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, INTERNAL, BAD_JSON, REFUSED = (
    *(-32600, -32601, -32602, -32603, -32700),
    -32000,
)
"""JSON-RPC's codes; the last one is for refusals that the protocol has no word for."""

_STATUSES: Mapping[int, int] = {422: 400}
"""Statuses of problems that the protocol has as others."""

_WORDS: Mapping[int, str] = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    405: "UNIMPLEMENTED",
    408: "DEADLINE_EXCEEDED",
    409: "ABORTED",
    413: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
}

_KEPT = frozenset({401, 403, 429, 500, 503})
"""Statuses that an answer of JSON-RPC has too, for those who read no bodies: others are 200."""


def write_error(problem: Problem, headers: Mapping[str, str] | None) -> Response:
    """The problem in the form of the REST routes."""
    return write_rest(ProblemError(problem.status, problem.code, problem.detail, headers))


def write_rest(error: ProblemError) -> Response:
    """The refusal in the form of the REST routes."""
    body, status = describe_rest_error(error), _status_of(error)
    return JSONResponse(body, status, headers=dict(error.headers or {}), media_type=MEDIA_TYPE)


def describe_rest_error(error: ProblemError) -> Object:
    """The body of an answer that is an error, in the form of the REST routes."""
    status = _status_of(error)
    word = error.reason.value.rpc if isinstance(error, A2AError) else _WORDS.get(status, "FAILED_PRECONDITION")
    return {"error": {"code": status, "status": word, "message": error.detail, "details": [*_details_of(error)]}}


def write_rpc(error: ProblemError, request: JsonValue, code: int | None = None) -> Response:
    """The refusal as an error of JSON-RPC, to the request of that id."""
    status = error.status if error.status in _KEPT else 200
    body = {"jsonrpc": "2.0", "id": request, "error": describe_rpc_error(error, code)}
    return JSONResponse(body, status, headers=dict(error.headers or {}))


def describe_rpc_error(error: ProblemError, code: int | None = None) -> Object:
    """The error object of JSON-RPC."""
    return {"code": code or _code_of(error), "message": error.detail, "data": [*_details_of(error)]}


def _status_of(error: ProblemError) -> int:
    if error.code == ReasonCode.REQUEST_UNKNOWN_AGENT:
        return 404
    return _STATUSES.get(error.status, error.status) if not isinstance(error, A2AError) else error.status


def _code_of(error: ProblemError) -> int:
    if isinstance(error, A2AError):
        return error.reason.value.code
    if error.code == ProblemCode.BAD_JSON:
        return BAD_JSON
    if error.status >= 500:
        return INTERNAL
    return INVALID_PARAMS if error.status in {400, 404, 413, 422} else REFUSED


def _details_of(error: ProblemError) -> list[Object]:
    is_theirs = isinstance(error, A2AError)
    reason = error.reason.name if isinstance(error, A2AError) else str(error.code).replace(".", "_").upper()
    info: Object = {
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": reason,
        "domain": PROTOCOL if is_theirs else OURS,
        "metadata": {"code": str(error.code)},
    }
    field, _, said = error.detail.partition(": ")
    if is_theirs or error.status not in {400, 422} or not said or " " in field:
        return [info]
    violation: Object = {"field": field, "description": said}
    return [info, {"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": [violation]}]
