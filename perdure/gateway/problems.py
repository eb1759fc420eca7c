"""Problem documents (RFC 9457): each refusal and failure of the gateway, with a code that stays the same."""

import logging
import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from perdure.client import errors
from perdure.contracts.errors import KeyringError, PerdureError, ReasonCode
from perdure.store.errors import NotFoundError, SessionErasedError, StoreError, StoreUnavailableError

logger = logging.getLogger("perdure.gateway")

MEDIA_TYPE = "application/problem+json"


class ProblemCode(StrEnum):
    """Codes of problems that no turn ends with; the others are reason codes."""

    BAD_JSON = "request.bad_json"
    """The body is not JSON, or not in UTF-8."""
    UNAUTHENTICATED = "request.unauthenticated"
    """The token is missing or unknown."""
    FORBIDDEN = "request.forbidden"
    """The token lacks the scope that the route needs."""
    FOREIGN_ORIGIN = "request.foreign_origin"
    """A page of another site sends the request, or its Host is not a name of the gateway."""
    NOT_FOUND = "request.not_found"
    """There is no such route."""
    METHOD_NOT_ALLOWED = "request.method_not_allowed"
    """The route does not take the method."""
    UNKNOWN_ARTIFACT = "request.unknown_artifact"
    """The session has no artifact of that id."""
    UNKNOWN_WEBHOOK = "request.unknown_webhook"
    """The tenant has no webhook of that id."""
    UNKNOWN_SCHEDULE = "request.unknown_schedule"
    """The tenant has no schedule of that id."""
    UNKNOWN_BLOCK = "request.unknown_block"
    """The tenant has no block of that id."""
    UNKNOWN_APPROVAL = "request.unknown_approval"
    """The session has no such standing approval."""
    UNKNOWN_TURN = "request.unknown_turn"
    """The session has no turn of that number."""
    SESSION_BUSY = "request.session_busy"
    """Another turn of the session runs."""
    SESSION_IDLE = "request.session_idle"
    """No turn of the session runs."""
    CONFLICT = "request.conflict"
    """The request conflicts with what has happened, such as an answer that no turn waits for."""
    KEY_REUSED = "request.key_reused"
    """The Idempotency-Key came before, with another body."""
    RATE_LIMITED = "request.rate_limited"
    """The tenant sends too many requests."""
    TOO_MANY_RUNNING = "request.too_many_running"
    """The tenant has too many running jobs."""
    TOO_MANY_STREAMS = "request.too_many_streams"
    """The tenant has too many open streams."""
    TOO_MANY_SCHEDULES = "request.too_many_schedules"
    """The tenant has too many schedules."""
    TOO_MANY_WEBHOOKS = "request.too_many_webhooks"
    """The tenant has too many webhooks."""
    TOO_MANY_PUSHES = "request.too_many_pushes"
    """The tenant's open tasks of A2A have too many configurations of push notifications."""
    TOO_MANY_BLOCKS = "request.too_many_blocks"
    """The tenant has too many blocks in force."""
    READER_STALLED = "request.reader_stalled"
    """The reader of a stream took nothing for too long."""
    EVENTS_GONE = "request.events_gone"
    """The events were deleted by the retention of the session's agent."""
    NO_WORKER = "runtime.no_worker"
    """No worker took the request."""
    SERVER_UNAVAILABLE = "runtime.server_unavailable"
    """The Temporal server does not answer."""
    SERVER_REFUSED = "runtime.server_refused"
    """The Temporal server refused what the gateway asked."""
    KEY_MISSING = "runtime.key_missing"
    """Content is encrypted with a key that the gateway does not have."""
    GATEWAY_STOPS = "runtime.gateway_stops"
    """The gateway stops before what the request waits for has ended; the job goes on."""
    INTERNAL = "runtime.internal"
    """A bug of the gateway; its log has the traceback."""


class Problem(BaseModel):
    """A problem document."""

    type: str = Field(description="A URN with the code")
    title: str = Field(description="The status in words")
    status: int
    code: str = Field(description="What programs decide by")
    detail: str = Field(description="One sentence for people: the cause, and the next thing to try")


Form = Callable[[Problem, Mapping[str, str] | None], Response]
"""Makes the answer of a problem, with these headers."""


class ProblemError(Exception):
    """Error that a route raises to answer with a problem document."""

    def __init__(self, status: int, code: str, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.headers = headers


class CutAnswerError(Exception):
    """An answer that could not be sent to its end."""


def gateway_stops(what: str, then: str) -> ProblemError:
    """The error of a gateway that stops before what somebody waits for has ended."""
    msg = f"the gateway stops, and {what} goes on without it; {then}"
    return ProblemError(503, ProblemCode.GATEWAY_STOPS, msg, {"Retry-After": "1"})


def unauthenticated(why: str) -> ProblemError:
    """The refusal of a token."""
    return ProblemError(401, ProblemCode.UNAUTHENTICATED, why, {"WWW-Authenticate": "Bearer"})


MOST_CAUSES, MOST_FRAMES = 5, 12
"""Causes of a failure that the log names, and places of each."""

RETRY_LATER = {"Retry-After": "5"}

_OF_ERRORS: tuple[tuple[type[Exception], int, str], ...] = (
    (errors.EventsGoneError, HTTPStatus.GONE, ProblemCode.EVENTS_GONE),
    (errors.SessionErasedError, HTTPStatus.GONE, ReasonCode.SESSION_ERASED),
    (SessionErasedError, HTTPStatus.GONE, ReasonCode.SESSION_ERASED),
    (errors.UnknownSessionError, HTTPStatus.NOT_FOUND, ReasonCode.REQUEST_UNKNOWN_SESSION),
    (errors.UnknownArtifactError, HTTPStatus.NOT_FOUND, ProblemCode.UNKNOWN_ARTIFACT),
    (errors.UnknownWebhookError, HTTPStatus.NOT_FOUND, ProblemCode.UNKNOWN_WEBHOOK),
    (errors.UnknownScheduleError, HTTPStatus.NOT_FOUND, ProblemCode.UNKNOWN_SCHEDULE),
    (errors.UnknownBlockError, HTTPStatus.NOT_FOUND, ProblemCode.UNKNOWN_BLOCK),
    (errors.UnknownApprovalError, HTTPStatus.NOT_FOUND, ProblemCode.UNKNOWN_APPROVAL),
    (errors.ScheduleExistsError, HTTPStatus.CONFLICT, ProblemCode.CONFLICT),
    (NotFoundError, HTTPStatus.NOT_FOUND, ReasonCode.REQUEST_UNKNOWN_SESSION),
    (errors.UnknownAgentError, HTTPStatus.UNPROCESSABLE_ENTITY, ReasonCode.REQUEST_UNKNOWN_AGENT),
    (errors.SessionBusyError, HTTPStatus.CONFLICT, ProblemCode.SESSION_BUSY),
    (errors.SessionIdleError, HTTPStatus.CONFLICT, ProblemCode.SESSION_IDLE),
    (errors.WrongTurnError, HTTPStatus.CONFLICT, ReasonCode.REQUEST_TURN_MISMATCH),
    (errors.TurnClosedError, HTTPStatus.CONFLICT, ReasonCode.RUNTIME_TURN_CLOSED),
    (errors.ReservedIdError, HTTPStatus.UNPROCESSABLE_ENTITY, ReasonCode.REQUEST_RESERVED_ID),
    (errors.BlockedError, HTTPStatus.FORBIDDEN, ReasonCode.REQUEST_BLOCKED),
    (errors.RequestRefusedError, HTTPStatus.UNPROCESSABLE_ENTITY, ReasonCode.REQUEST_INVALID),
    (errors.NoWorkerError, HTTPStatus.SERVICE_UNAVAILABLE, ProblemCode.NO_WORKER),
    (errors.ServerUnreachableError, HTTPStatus.SERVICE_UNAVAILABLE, ProblemCode.SERVER_UNAVAILABLE),
    (errors.ServerRefusedError, HTTPStatus.SERVICE_UNAVAILABLE, ProblemCode.SERVER_REFUSED),
    (errors.KeysMismatchError, HTTPStatus.SERVICE_UNAVAILABLE, ProblemCode.KEY_MISSING),
    (KeyringError, HTTPStatus.SERVICE_UNAVAILABLE, ProblemCode.KEY_MISSING),
    (errors.StoreMismatchError, HTTPStatus.SERVICE_UNAVAILABLE, ReasonCode.RUNTIME_STORE_MISMATCH),
    (StoreError, HTTPStatus.SERVICE_UNAVAILABLE, ReasonCode.RUNTIME_STORE_UNAVAILABLE),
    (PerdureError, HTTPStatus.SERVICE_UNAVAILABLE, ProblemCode.INTERNAL),
)
"""The status and the code of what the client and the store raise; the first class that fits."""

_OF_STATUSES: Mapping[int, str] = {
    400: ProblemCode.BAD_JSON,
    404: ProblemCode.NOT_FOUND,
    405: ProblemCode.METHOD_NOT_ALLOWED,
    413: ReasonCode.REQUEST_TOO_LARGE,
    429: ProblemCode.RATE_LIMITED,
}


def problem_response(
    status: int,
    code: str,
    detail: str,
    headers: Mapping[str, str] | None = None,
    *,
    request: Request | None = None,
) -> Response:
    """The problem as a response, in the form of the request's door; the audit log gets its code by the request."""
    if request is not None:
        request.state.problem = str(code)
    problem = Problem(
        type=f"urn:perdure:problem:{code}",
        title=HTTPStatus(status).phrase,
        status=status,
        code=code,
        detail=" ".join(detail.split()),
    )
    return _form_of(request)(problem, headers)


def _write_document(problem: Problem, headers: Mapping[str, str] | None) -> Response:
    return JSONResponse(problem.model_dump(), problem.status, headers=headers, media_type=MEDIA_TYPE)


def _form_of(request: Request | None) -> Form:
    """The form of the door whose path the request has; a problem document for all others."""
    doors: Mapping[str, Form] = {} if request is None else getattr(request.app.state, "forms", {})
    path = "" if request is None else request.scope["path"]
    return next((form for prefix, form in doors.items() if path.startswith(prefix)), _write_document)


def problem_of(error: Exception) -> ProblemError | None:
    """Problem for a caller from an error of the client or the store; None from any other."""
    if isinstance(error, ProblemError):
        return error
    for kind, status, code in _OF_ERRORS:
        if isinstance(error, kind):
            headers = RETRY_LATER if status == HTTPStatus.SERVICE_UNAVAILABLE else None
            return ProblemError(status, code, str(error), headers)
    return None


async def _answer_expected(request: Request, error: Exception) -> Response:
    problem = problem_of(error)
    if isinstance(error, StoreUnavailableError):
        request.app.state.metrics.note_store_refusal(error.cause)
    if problem is None:
        return answer_unexpected(request, error)
    return problem_response(problem.status, problem.code, problem.detail, problem.headers, request=request)


def answer_unexpected(request: Request, error: Exception) -> Response:
    """The answer to a failure that nobody foresaw, which the log has."""
    logger.error("a request failed: %s", describe_failure(error))
    detail = "the gateway failed in a way nobody foresaw; its log has the traceback, so tell who runs it"
    return problem_response(500, ProblemCode.INTERNAL, detail, request=request)


def describe_failure(error: BaseException) -> str:
    """Classes and places of a failure and its causes, without their texts, which may hold a part of the request."""
    told: list[str] = []
    cause: BaseException | None = error
    while cause is not None and len(told) < MOST_CAUSES:
        frames = traceback.extract_tb(cause.__traceback__)[-MOST_FRAMES:]
        places = ", ".join(f"{frame.name} ({frame.filename}:{frame.lineno})" for frame in frames)
        told.append(f"{type(cause).__module__}.{type(cause).__qualname__} in {places or 'no frame'}")
        cause = cause.__cause__ or cause.__context__
    return "; because of ".join(told)


_IS_FIELD = re.compile(r"\w+")

_SAID: Mapping[str, str] = {
    "unknown_field": "there is no such field; leave it out (who asks and for which tenant is the token's to say)",
    "extra_forbidden": "there is no such field; leave it out (who asks and for which tenant is the token's to say)",
    "missing": "is needed",
    "model_attributes_type": "is no object",
    "model_type": "is no object",
    "string_too_short": "is empty",
}
"""Pydantic's words for what callers get wrong most, in ours."""


async def _answer_invalid(request: Request, error: Exception) -> Response:
    """The first mistake, without the value, which may be a secret."""
    found: list[Mapping[str, Any]] = list(error.errors()) if isinstance(error, RequestValidationError) else []
    place, *fields = (found[0]["loc"] if found else ()) or ("request",)
    refused: ProblemError | None = getattr(request.state, "refused_body", None)
    if place == "body" and refused is not None:
        return await _answer_expected(request, refused)
    return await _answer_expected(request, problem_of_mistakes([{**found[0], "loc": fields}] if found else [], place))


def problem_of_mistakes(found: Sequence[Mapping[str, Any]], place: str) -> ProblemError:
    """The first of pydantic's mistakes as a problem; ``place`` is where they are: the body, the query, the path."""
    first: Mapping[str, Any] = found[0] if found else {"loc": (), "msg": "cannot be read", "type": ""}
    fields = [*first["loc"], *([first["ctx"]["field"]] if first["type"] == "unknown_field" else [])]
    # Of a union, pydantic names the member that it tried too: prompt.constrained-str
    field = ".".join(str(part) for part in fields if _IS_FIELD.fullmatch(str(part))) or place
    said = _SAID.get(str(first["type"])) or str(first["msg"]).removeprefix("Value error, ")
    where = "" if place == "body" else f" ({place})"
    return ProblemError(422, ReasonCode.REQUEST_INVALID, f"{field}: {said}{where}")


async def _answer_http(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    detail = str(error.detail) if isinstance(error, HTTPException) else ""
    headers = error.headers if isinstance(error, HTTPException) else None
    return problem_response(
        status, _OF_STATUSES.get(status, ReasonCode.REQUEST_INVALID), detail, headers, request=request
    )


def handle_errors(app: FastAPI) -> None:
    """Have the application answer what is foreseen with problem documents; the guard answers everything else."""
    app.add_exception_handler(RequestValidationError, _answer_invalid)
    app.add_exception_handler(HTTPException, _answer_http)
    app.add_exception_handler(PerdureError, _answer_expected)
    app.add_exception_handler(ProblemError, _answer_expected)


_MEANINGS: Mapping[int, str] = {
    400: "The body is not valid JSON",
    401: "The token is missing or unknown",
    403: "The token lacks the scope, a page of another site asks, or an operator has blocked such turns",
    404: "There is no such session, turn, artifact, schedule, webhook or block for this tenant",
    409: "The request conflicts with what runs or has happened, for example because another turn runs",
    410: "The session was erased, or its agent's retention has deleted the events",
    413: "The request is too large",
    422: "The request is not valid; nothing was done",
    429: "Too many requests, large bodies, streams or running turns; retry after Retry-After seconds",
    500: "A bug of the gateway; its log has the traceback",
    503: "The Temporal server, a worker or the store does not answer",
}

DOCUMENTED: dict[int | str, dict[str, Any]] = {
    status: {"description": text, "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}}
    for status, text in _MEANINGS.items()
}
"""Problem responses of every route, by status, for the OpenAPI document."""
