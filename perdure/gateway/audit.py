"""The logs of a gateway: one JSON line a request, and one for each action, with who did it. No secrets, no prompts."""

import json
import logging
import re
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from http import HTTPStatus

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.routing import BaseRoute, Match
from starlette.types import Scope

from perdure import tracing
from perdure.contracts.ids import SESSION_ID_PATTERN
from perdure.gateway.callers import Caller
from perdure.log_levels import quiet_libraries
from perdure.security.redaction import redact_text

audit_log = logging.getLogger("perdure.audit")
"""Who started, steered, approved, cancelled and read what: records with the fields below, at level INFO."""

access_log = logging.getLogger("perdure.access")
"""Requests: method, path of the route, status, milliseconds, who."""

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
"""Methods that logs and metrics name."""

OTHER_METHOD, NO_ROUTE = "other", "none"
"""Words for a method and a path that no route has: what a caller writes there stands nowhere."""

_LOGGED_PLACES: Mapping[str, str] = {"session": SESSION_ID_PATTERN, "turn": r"^[0-9]{1,9}$"}
"""Parameters of paths that the logs name, and the form that they must have."""

_PLACE = re.compile(r"\{(\w+)(?::\w+)?\}")

_FIELDS = (
    "who",
    "tenant",
    "action",
    "session",
    "outcome",
    "method",
    "path",
    "status",
    "milliseconds",
    "payloads",
    "keys",
    "block",
    "address",
)


def audit(caller: Caller, action: str, session: str, outcome: str, **more: object) -> None:
    """Note what somebody did, or tried to.

    Args:
        caller: Who.
        action: The name of the route in the OpenAPI document, such as ``start_session``.
        session: Which session; empty for a list.
        outcome: ``done``, or the code of the problem.
        more: What else there is to say: ``payloads``, a count, ``keys``, the ids of their keys, ``block``, and
            the ``address`` of a log-in.
    """
    fields = {
        "who": caller.name,
        "tenant": caller.tenant,
        "action": action,
        "session": session,
        "outcome": outcome,
        **more,
    }
    audit_log.info("%s %s: %s", action, session, outcome, extra=fields)


def audit_login(caller: Caller | None, address: str, outcome: str) -> None:
    """Note a log-in: whose token it was, None for an unknown one, and where it came from."""
    audit(caller or Caller(name=""), "login", "", outcome, address=address[:100])


def audit_request(scope: Scope, status: int) -> None:
    """Note a request as its answer begins; the guard calls it, so that no route can forget it."""
    state: Mapping[str, object] = scope.get("state", {})
    caller, route = state.get("caller"), scope.get("route")
    if isinstance(caller, Caller) and isinstance(route, APIRoute):
        session = state.get("session") or _logged(scope, "session")
        outcome = "done" if status < HTTPStatus.BAD_REQUEST else state.get("problem") or status
        more = {name: state[name] for name in ("payloads", "keys", "block") if name in state}
        audit(caller, route.operation_id or route.name, str(session), str(outcome), **more)


def method_of(scope: Scope) -> str:
    """The method of a request for logs and metrics."""
    return scope["method"] if scope["method"] in METHODS else OTHER_METHOD


def path_of(scope: Scope) -> str:
    """The path of the request's route, with session and turn where they have the form of one; no other word of it."""
    route = scope.get("route") or _find_route(scope)
    path = getattr(route, "path", "") or NO_ROUTE
    return _PLACE.sub(lambda place: _logged(scope, place[1]) or f"{{{place[1]}}}", path)


def _find_route(scope: Scope) -> BaseRoute | None:
    """The route of a request that was refused before any route saw it; None if there is none."""
    state = getattr(scope.get("app"), "state", None)
    return next((route for route in getattr(state, "known_routes", ()) if route.matches(scope)[0] != Match.NONE), None)


def _logged(scope: Scope, place: str) -> str:
    said = str(scope.get("path_params", {}).get(place, ""))
    return said if place in _LOGGED_PLACES and re.fullmatch(_LOGGED_PLACES[place], said) else ""


def note_payloads(request: Request, count: int, keys: Sequence[str]) -> None:
    """Have the audit line of a request say how many payloads it was about, and by which keys they are encrypted."""
    request.state.payloads, request.state.keys = count, list(keys)


class JsonLines(logging.Formatter):
    """One JSON object a line; secrets are cut out of messages and tracebacks."""

    def __init__(self, secrets: frozenset[str]) -> None:
        super().__init__()
        self._secrets = secrets

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line."""
        line: dict[str, object] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redact_text(record.getMessage(), self._secrets),
            **tracing.current(),
        }
        fields = {name: getattr(record, name) for name in _FIELDS if hasattr(record, name)}
        line |= {
            name: redact_text(told, self._secrets) if isinstance(told, str) else told for name, told in fields.items()
        }
        if record.exc_info:
            line["exception"] = redact_text(self.formatException(record.exc_info), self._secrets)
        return json.dumps(line, ensure_ascii=False, default=str)


def configure_logging(level: str, secrets: frozenset[str]) -> None:
    """Send every log record of this process to stderr as JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(secrets))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    audit_log.setLevel(logging.INFO)
    logging.captureWarnings(True)
    quiet_libraries()
