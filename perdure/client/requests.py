"""What is asked of a session, checked before it is sent."""

import re
import uuid
from collections.abc import Mapping, Sequence
from typing import TypedDict, TypeVar

from pydantic import BaseModel, ValidationError

from perdure.client.errors import RequestRefusedError
from perdure.contracts.budgets import Budgets
from perdure.contracts.turns import SESSION_ID_PATTERN, TurnRequest
from perdure.contracts.values import JsonValue

Model = TypeVar("Model", bound=BaseModel)


class TaskOptions(TypedDict, total=False):
    """What several turns may be told alike beside their prompts; see :class:`perdure.contracts.turns.TurnRequest`.

    ``context``, ``tenant`` and ``by`` reach tools, hooks and instructions, and no model.
    """

    model: str | None
    max_steps: int | None
    budgets: Budgets | None
    tenant: str
    context: Mapping[str, object] | None
    by: str
    recording: str | None
    definition: dict[str, JsonValue] | None


class SendOptions(TypedDict, total=False):
    """What a message may be told; ``context`` and ``by`` are for the turn that takes it."""

    request_id: str | None
    context: Mapping[str, object] | None
    by: str


class ResumeOptions(TaskOptions, total=False):
    """What any turn may be told beside its prompt; ``request_id`` makes asking twice harmless."""

    request_id: str | None


class TurnOptions(ResumeOptions, total=False):
    """What a turn that is started may be told.

    ``turn`` is the number it is expected to have, ``history`` a conversation in OpenAI's chat format with which a new
    session begins.
    """

    turn: int | None
    history: Sequence[Mapping[str, JsonValue]]


def session_id(agent: str) -> str:
    """A new session's id, which begins with the agent's name."""
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", agent).strip("-._")[:100] or "session"
    return f"{slug}-{uuid.uuid4().hex[:8]}"


def validate(model: type[Model], fields: Mapping[str, object]) -> Model:
    """The value of these fields.

    Raises:
        RequestRefusedError: One of them is not valid; the message names it.
    """
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "request"
        raise RequestRefusedError(f"{field}: {first['msg'].removeprefix('Value error, ')}") from error


def turn_request(session: str, fields: dict[str, object]) -> TurnRequest:
    """The request with an id of its own, checked before anything is sent.

    Raises:
        RequestRefusedError: It is not valid; the message names the field.
    """
    if not re.fullmatch(SESSION_ID_PATTERN, session):
        msg = f"{session!r} is no session id; use up to 200 letters, digits and any of . _ : @ = + -"
        raise RequestRefusedError(msg)
    given = {name: value for name, value in fields.items() if value is not None and value != ""}
    return validate(TurnRequest, {"prompt": "", "request_id": uuid.uuid4().hex, **given})
