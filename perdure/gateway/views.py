"""Answers and requests of the gateway: the values of its OpenAPI document, in the words of ``perdure --json``.

A list comes in pages. The cursor of the next page is an opaque text, checked when a caller hands it back. It says only
where the list goes on; whose sessions are in the list is the token's to say, so a forged cursor shows nothing that a
filter would not.
"""

import base64
import binascii
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, ClassVar, Generic, Literal, TypeVar, cast

from fastapi import Query
from pydantic import AfterValidator, BaseModel, Field

from perdure.contracts.budgets import Budgets
from perdure.contracts.caller_tools import CallerTools
from perdure.contracts.checkpoints import JobStatus
from perdure.contracts.errors import ReasonCode
from perdure.contracts.ids import SESSION_ID_PATTERN
from perdure.contracts.input_requests import OpenRequest
from perdure.contracts.queues import TurnPriority
from perdure.contracts.recordings import RECORDING_PATTERN
from perdure.contracts.tool_choice import ToolChoice
from perdure.contracts.turns import RunState, StopReason
from perdure.contracts.values import Label, read_moment
from perdure.contracts.waits import TurnWait
from perdure.gateway.bodies import Body, Json
from perdure.gateway.problems import ProblemError

Item = TypeVar("Item")

Cursor = Annotated[str | None, Query(min_length=1, max_length=500, description="The next of the page before")]
Limit = Annotated[int, Query(ge=1, le=500, description="Items of a page")]
OfTenant = Annotated[
    Label | None, Query(description="Only this tenant's, empty is the default tenant; a token names none but its own")
]
LIMIT = 100


Moment = Annotated[datetime, AfterValidator(read_moment)]
"""A moment of a filter, in UTC."""


class Page(BaseModel, Generic[Item]):
    """A part of a list."""

    items: Sequence[Item]
    next: str | None = Field(default=None, description="The cursor of the next page; null at the end")


class PromptText(Body):
    """A text of a prompt."""

    type: Literal["text"]
    text: str = Field(min_length=1)


class ImageUrl(Body):
    """An image's bytes."""

    url: str = Field(pattern=r"^data:", description="data:image/png;base64,…; the gateway fetches nothing")


class PromptImage(Body):
    """An image of a prompt, in OpenAI's form."""

    type: Literal["image_url"]
    image_url: ImageUrl


class FileData(Body):
    """A file's name and bytes."""

    filename: str = Field(default="", max_length=200)
    file_data: str = Field(pattern=r"^data:", description="data:application/pdf;base64,…")


class PromptFile(Body):
    """A file of a prompt, in OpenAI's form."""

    type: Literal["file"]
    file: FileData


Part = Annotated[PromptText | PromptImage | PromptFile, Field(discriminator="type")]

Prompt = (
    Annotated[str, Field(min_length=1, description="At most 128 KiB")]
    | Annotated[list[Part], Field(min_length=1, max_length=100)]
)
"""A text, or texts, images and files."""

SessionName = Annotated[str, Field(pattern=SESSION_ID_PATTERN, max_length=200)]


class TurnBody(Body):
    """Settings of any turn; tenant and ``by`` come from the token."""

    longest: ClassVar[int | None] = None  # images and files come in base64

    request_id: Label | None = Field(
        default=None, description="Id of the request: sending it twice to a session starts one turn"
    )
    model: Label | None = Field(default=None, description="provider/model of this turn, instead of the agent's")
    max_steps: int | None = Field(default=None, ge=1, le=1_000_000)
    budgets: Budgets | None = None
    priority: TurnPriority | None = Field(
        default=None, description="From 1, the most urgent, to 5, where work waits for workers; null is 3"
    )
    context: dict[str, Json] | None = Field(
        default=None, description="For tools, hooks and instructions, at most 16 KiB; no model reads it"
    )
    recording: str | None = Field(default=None, pattern=RECORDING_PATTERN)
    definition: dict[str, Json] | None = Field(
        default=None, description="An agent of the request's own; only workers that allow it take one"
    )
    output_schema: dict[str, Json] | None = Field(
        default=None, description="JSON schema of this turn's answer, instead of the agent's; 64 KiB at most"
    )
    tool_choice: ToolChoice | None = Field(
        default=None, description="What the model has to call, until it has; none: nothing"
    )
    generate_params: dict[str, Json] | None = Field(
        default=None, description="Parameters of this turn's model calls, such as temperature; needs the scope tune"
    )
    stop_for_results: bool | None = Field(
        default=None, description="Whether the turn ends, and does not wait, where it needs results of its caller alone"
    )


class StartBody(TurnBody):
    """A turn to start, of a new session or of one that is idle."""

    agent: Label = Field(min_length=1)
    prompt: Prompt
    session: SessionName | None = Field(default=None, description="Id of the session; null makes a new one")
    turn: int | None = Field(default=None, ge=1, le=1_000_000, description="The number that the turn must get")
    history: list[dict[str, Json]] | None = Field(
        default=None, max_length=10_000, description="A conversation in OpenAI's chat format for a new session"
    )
    tools: CallerTools = Field(default=(), description="Tools of this turn that the caller runs, 64 at most")


class ResumeBody(TurnBody):
    """Point from which a turn goes on: the end of a session, or a step of one of its turns."""

    prompt: Prompt | None = Field(default=None, description="Next message; null adds none, and the model goes on")
    turn: int | None = Field(default=None, ge=0, le=1_000_000, description="Number of the turn; null is the last")
    at: int | None = Field(
        default=None, ge=0, le=1_000_000, description="Number of the step; null is the turn's last step"
    )


class TurnTicket(BaseModel):
    """The turn that takes the request; Temporal has accepted it."""

    session: str
    turn: int | None = Field(description="Its number; of a session that is idle, the one it is about to have")
    request_id: str
    notice: str = Field(
        default="", description="Not empty if work was done that the session, restored from a copy, does not show"
    )


class SessionView(BaseModel):
    """A session with its last turn; how it ended is null while it runs."""

    session: str
    tenant: str = Field(default="", description="Whose it is; empty is the default tenant")
    agent: str | None = Field(default=None, description="Null, as turn, before a worker has opened the first turn")
    turn: int | None = Field(default=None, description="The number of its last turn")
    prompt: str = Field(default="", description="The first line of that turn's prompt, at most 200 characters")
    created_at: datetime | None = None
    updated_at: datetime | None = None
    state: RunState
    job_status: JobStatus | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    stop_reason: StopReason | None = None
    reason_code: str | None = None
    error: str | None = None
    stopped_by: str | None = None
    steps: int | None = Field(default=None, description="Of a turn that runs: its last stored step")
    cost_usd: Decimal | None = Field(default=None, description="Of a turn that runs: what its own steps have cost")
    waits_for: TurnWait | None = Field(
        default=None, description="Why the turn stands still; in a list only if its own code fails or no worker has it"
    )


class SessionDetail(SessionView):
    """A session: where it stands, what waits for people, and why it stands still if it does."""

    requests: list[OpenRequest] = Field(default_factory=list)


def write_cursor(*place: object) -> str:
    """The cursor of a place."""
    return base64.urlsafe_b64encode(json.dumps(place, default=str).encode()).decode().rstrip("=")


def read_items(cursor: str) -> list[object]:
    """Items of a cursor, which anybody may have written.

    Raises:
        ProblemError: It cannot be read.
    """
    try:
        told: object = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (binascii.Error, ValueError):
        raise _no_cursor() from None
    if not isinstance(told, list):
        raise _no_cursor()
    return cast("list[object]", told)


def _no_cursor() -> ProblemError:
    msg = "cursor: does not belong to this list; send the next of its last page, or leave it out to start over"
    return ProblemError(422, ReasonCode.REQUEST_INVALID, msg)


def read_place(cursor: str | None) -> tuple[datetime, str] | None:
    """The place of a list of sessions; None is its beginning.

    Raises:
        ProblemError: The cursor is none of such a list.
    """
    if cursor is None:
        return None
    match read_items(cursor):
        case [str(at), str(session)]:
            try:
                moment = datetime.fromisoformat(at)
            except ValueError:
                raise _no_cursor() from None
            if moment.tzinfo is None or "\0" in session:
                raise _no_cursor()
            try:
                return moment.astimezone(UTC), session
            except OverflowError:
                raise _no_cursor() from None
        case _:
            raise _no_cursor()


def read_name(cursor: str | None) -> str:
    """The name that a list by names goes on behind; empty is its beginning.

    Raises:
        ProblemError: The cursor is none of such a list.
    """
    match None if cursor is None else read_items(cursor):
        case None:
            return ""
        case [str(name)]:
            return name
        case _:
            raise _no_cursor()


def page_of(items: Sequence[Item], cursor: str | None, limit: int) -> Page[Item]:
    """A part of a list that only grows at its end: the cursor is how many items came before.

    Raises:
        ProblemError: The cursor is none of such a list, or of one that is longer.
    """
    begin = 0
    if cursor is not None:
        match read_items(cursor):
            case [int(place)] if 0 <= place <= len(items):
                begin = place
            case _:
                raise _no_cursor()
    end = begin + limit
    return Page(items=list(items[begin:end]), next=write_cursor(end) if end < len(items) else None)
