"""Problems in OpenAI's form, for its doors."""

import re
from collections.abc import Mapping

from starlette.responses import JSONResponse, Response

from perdure.contracts.errors import ReasonCode
from perdure.gateway.doors.responses.objects import Item
from perdure.gateway.problems import Problem, ProblemCode

CLIENT_CLOSED_REQUEST = 499
"""Status of a request whose client has gone before the end: nginx's, for logs and metrics."""

_STATUSES: Mapping[int, int] = {422: 400}
"""Statuses of problems that OpenAI has as others."""

_FINAL = frozenset({409})
"""Statuses that OpenAI's clients retry, and that stay as they are unless the session is busy."""

_FIELD = re.compile(r"([a-z_]+(?:\[\d+\])?(?:\.[a-z_0-9]+)*): ")


def write_error(problem: Problem, headers: Mapping[str, str] | None) -> Response:
    """The problem in OpenAI's form; ``code`` is ours."""
    status = _STATUSES.get(problem.status, problem.status)
    if problem.code == ReasonCode.REQUEST_UNKNOWN_AGENT:
        status = 404
    error = describe_error(status, problem.code, problem.detail)
    more = dict(headers or {})
    if status in _FINAL and problem.code != ProblemCode.SESSION_BUSY:
        more["x-should-retry"] = "false"
    return JSONResponse({"error": error}, status, headers=more)


def describe_error(status: int, code: str, detail: str) -> Item:
    """The error that a body or an event has, with our code."""
    kinds = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
    kind = kinds.get(status, "server_error" if status >= 500 else "invalid_request_error")
    named = _FIELD.match(detail)
    param = named[1] if named is not None and status == 400 else None
    return {"message": detail, "type": kind, "param": param, "code": str(code)}
