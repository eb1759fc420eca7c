"""The routes of conversations: names for sessions, and their items. Items come by responses alone."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from fastapi import Query
from pydantic import Field
from starlette.responses import JSONResponse, Response

from perdure.client import EventsGoneError
from perdure.client.requests import session_id
from perdure.contracts.values import JsonValue
from perdure.gateway.access import Admin, Gateway, GatewayOf, OwnSession, Reader, Runner
from perdure.gateway.bodies import Body, Router
from perdure.gateway.doors.responses.following import find_turn, inputs_of, read_turn
from perdure.gateway.doors.responses.objects import APPROVAL, Item, describe_list
from perdure.gateway.doors.responses.places import PATHS, Origin, ResponseId
from perdure.gateway.problems import ProblemCode, ProblemError

router = Router(prefix=f"{PATHS}/conversations", include_in_schema=False)

Order = Annotated[Literal["asc", "desc"], Query()]
Limit = Annotated[int, Query(ge=1, le=100)]
After = Annotated[str | None, Query(max_length=500)]


class ConversationBody(Body):
    """The body of a new conversation, which nothing is kept of: a session begins with its first turn."""

    metadata: dict[str, str] | None = Field(default=None, max_length=0)
    items: list[dict[str, JsonValue]] | None = Field(default=None, max_length=0)


@router.post("", operation_id="create_conversation")
async def create_conversation(_: Runner, body: ConversationBody | None = None) -> Response:
    """A name for a conversation; its session begins with the first response that names it."""
    return JSONResponse(_describe_conversation(session_id("conv"), datetime.now(UTC)))


@router.get("/{session}", operation_id="get_conversation")
async def get_conversation(_: Reader, session: OwnSession, gateway: GatewayOf) -> Response:
    """A conversation: a session that has begun."""
    view = await gateway.client.session_view(session)
    created_at = datetime.now(UTC) if view.opened is None else view.opened[0].created_at
    return JSONResponse(_describe_conversation(session, created_at))


@router.delete("/{session}", operation_id="delete_conversation")
async def delete_conversation(caller: Admin, session: OwnSession, gateway: GatewayOf) -> Response:
    """Erase the session of a conversation, which is idle."""
    await gateway.client.delete(session, by=caller.name)
    return JSONResponse({"id": session, "object": "conversation.deleted", "deleted": True})


@router.get("/{session}/items", operation_id="list_conversation_items")
async def list_items(
    _: Reader,
    session: OwnSession,
    gateway: GatewayOf,
    *,
    order: Order = "desc",
    limit: Limit = 20,
    after: After = None,
) -> Response:
    """List what was said and done in a conversation, without reading more turns than the page has items of."""
    begin = await _find_turn_of(gateway, session, after) if after is not None else None
    page: list[Item] = []
    passed = after is None
    async for items in _turns(gateway, session, begin, backwards=order == "desc"):
        for item in items:
            if passed:
                page.append(item)
            passed = passed or item["id"] == after
        if len(page) > limit:
            break
    if not passed:
        raise _unknown_item(after or "")
    return JSONResponse(describe_list(page[:limit], has_more=len(page) > limit))


@router.get("/{session}/items/{item}", operation_id="get_conversation_item")
async def get_item(_: Reader, session: OwnSession, item: str, gateway: GatewayOf) -> Response:
    """One item of a conversation."""
    turn = await _find_turn_of(gateway, session, item)
    found = next((one for one in await _items_of(gateway, session, turn) if one["id"] == item), None)
    if found is None:
        raise _unknown_item(item)
    return JSONResponse(found)


@router.post("/{session}/items", operation_id="create_conversation_items")
@router.delete("/{session}/items/{item}", operation_id="delete_conversation_item")
async def refuse_items(_: Runner, session: OwnSession) -> Response:
    """Refuse to change a log."""
    msg = (
        f"items of {session!r} come by responses alone: name the conversation in 'responses.create', "
        "in the Agents SDK by conversation_id in place of a session"
    )
    raise ProblemError(405, ProblemCode.METHOD_NOT_ALLOWED, msg)


def _describe_conversation(session: str, created_at: datetime) -> Item:
    return {"id": session, "object": "conversation", "created_at": int(created_at.timestamp()), "metadata": {}}


async def _find_turn_of(gateway: Gateway, session: str, item: str) -> int:
    origin = Origin.parse(item.removeprefix(APPROVAL))
    if origin is None or origin.session != session:
        raise _unknown_item(item)
    return origin.turn


async def _turns(gateway: Gateway, session: str, begin: int | None, *, backwards: bool) -> AsyncIterator[list[Item]]:
    """The items of each turn in order, from one turn on."""
    view = await gateway.client.session_view(session)
    last = 0 if view.opened is None else view.opened[1].turn
    first = begin or (last if backwards else 1)
    for turn in range(first, 0, -1) if backwards else range(first, last + 1):
        try:
            items = await _items_of(gateway, session, turn)
        except EventsGoneError:  # the retention has deleted them
            continue
        yield items[::-1] if backwards else items


async def _items_of(gateway: Gateway, session: str, turn: int) -> list[Item]:
    place = ResponseId(session, turn)
    fold = await read_turn(gateway, place, await find_turn(gateway, place))
    found: list[Any] = []
    for segment in fold.segments:
        found += [*inputs_of(fold, segment.number), *segment.items]
    return found


def _unknown_item(item: str) -> ProblemError:
    return ProblemError(404, ProblemCode.UNKNOWN_TURN, f"the conversation has no item {item[:200]!r}")
