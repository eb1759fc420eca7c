"""Places in lists as texts that callers hand back: opaque to them, checked when they return, worth nothing to others.

A cursor only says where a list goes on; whose sessions are in the list is the token's to say, so a forged one shows
nothing that a filter would not.
"""

import base64
import binascii
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, TypeVar, cast

from fastapi import Query

from perdure.contracts.errors import ReasonCode
from perdure.gateway.problems import ProblemError
from perdure.gateway.views import Page

Item = TypeVar("Item")

Cursor = Annotated[str | None, Query(min_length=1, max_length=500, description="The next of the page before")]
Limit = Annotated[int, Query(ge=1, le=500, description="Items of a page")]
LIMIT = 100


def write_cursor(*place: object) -> str:
    """The cursor of a place."""
    return base64.urlsafe_b64encode(json.dumps(place, default=str).encode()).decode().rstrip("=")


def _read(cursor: str) -> list[object]:
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
    match _read(cursor):
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


def page_of(items: Sequence[Item], cursor: str | None, limit: int) -> Page[Item]:
    """A part of a list that only grows at its end: the cursor is how many items came before.

    Raises:
        ProblemError: The cursor is none of such a list, or of one that is longer.
    """
    begin = 0
    if cursor is not None:
        match _read(cursor):
            case [int(place)] if 0 <= place <= len(items):
                begin = place
            case _:
                raise _no_cursor()
    end = begin + limit
    return Page(items=list(items[begin:end]), next=write_cursor(end) if end < len(items) else None)
