"""Contents of a session: its transcript, steps, checkpoints, artifacts, and all of it in other programs' formats."""

import json
from collections.abc import AsyncIterator
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any

from fastapi import Path, Query
from pydantic import BaseModel
from starlette.responses import Response, StreamingResponse

from perdure.client.export import Exported, ExportFormat, export
from perdure.contracts.budgets import Usage
from perdure.contracts.checkpoints import Checkpoint
from perdure.contracts.messages import Message
from perdure.gateway.access import GatewayOf, OwnSession, Reader
from perdure.gateway.bodies import Router
from perdure.gateway.problems import CutAnswerError
from perdure.gateway.views import LIMIT, Cursor, Limit, Page, page_of

router = Router(prefix="/v1", tags=["contents"])

TurnNumber = Annotated[int | None, Query(alias="turn", ge=1, le=1_000_000)]


class Transcript(Page[Message]):
    """A part of a conversation."""


@router.get("/sessions/{session}/transcript", operation_id="get_transcript")
async def get_transcript(
    _: Reader,
    session: OwnSession,
    gateway: GatewayOf,
    turn: TurnNumber = None,
    limit: Limit = LIMIT,
    cursor: Cursor = None,
) -> Transcript:
    """The conversation as it is now, or as it was at the end of a turn. Masked arguments stay masked."""
    page = page_of(await gateway.client.transcript(session, turn), cursor, limit)
    return Transcript(items=page.items, next=page.next)


class StepView(BaseModel):
    """A step: what it adds to the conversation, and what its model call used.

    A compaction has ``summarised``, how many messages its summary stands for; its messages are what models read then.
    """

    id: str
    turn: int
    step: int
    parent: str | None
    messages: tuple[Message, ...]
    finish_reason: str
    usage: Usage
    cost_usd: Decimal | None
    summarised: int | None


@router.get("/sessions/{session}/steps", operation_id="list_steps")
async def list_steps(
    _: Reader, session: OwnSession, gateway: GatewayOf, limit: Limit = LIMIT, cursor: Cursor = None
) -> Page[StepView]:
    """The steps of a session, also those that no conversation reaches any more."""
    store = await gateway.client.store()
    page = page_of(await store.steps(session), cursor, limit)
    return Page(items=[StepView(**step.model_dump()) for step in page.items], next=page.next)


@router.get("/sessions/{session}/checkpoints", operation_id="list_checkpoints")
async def list_checkpoints(
    _: Reader, session: OwnSession, gateway: GatewayOf, limit: Limit = LIMIT, cursor: Cursor = None
) -> Page[Checkpoint]:
    """Every step as a place to resume or fork from."""
    return page_of(await gateway.client.checkpoints(session), cursor, limit)


_BYTES: dict[int | str, dict[str, Any]] = {
    200: {"description": "The bytes", "content": {"*/*": {"schema": {"type": "string", "format": "binary"}}}}
}


@router.get(
    "/sessions/{session}/artifacts/{artifact}",
    operation_id="get_artifact",
    response_class=Response,
    responses=_BYTES,
)
async def get_artifact(
    _: Reader,
    session: OwnSession,
    artifact: Annotated[str, Path(pattern=r"^[A-Za-z0-9._:@=+-]{1,200}$")],
    gateway: GatewayOf,
) -> Response:
    """The bytes of a long output, an image or a file, with its media type; a browser saves them and runs nothing."""
    found = await gateway.client.artifact(session, artifact)
    headers = {"Content-Disposition": f'attachment; filename="{artifact}"'}
    return Response(found.data, media_type=found.content_type, headers=headers)


_LINES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "A line of JSON for each record, turn or event",
        "content": {"application/x-ndjson": {"schema": {"type": "string"}}},
    }
}


@router.get(
    "/sessions/{session}/export",
    operation_id="export_session",
    response_class=StreamingResponse,
    responses=_LINES,
)
async def export_session(
    caller: Reader,
    session: OwnSession,
    gateway: GatewayOf,
    to: Annotated[ExportFormat, Query(alias="format")],
    turn: TurnNumber = None,
) -> Response:
    """The session in a format that other programs read, a line of JSON each."""
    lines = export(await gateway.client.store(), session, to, turn)
    first = await anext(lines, None)  # what is wrong is known before the answer begins

    async def write() -> AsyncIterator[bytes]:
        if first is not None:
            yield _line(first)
        with gateway.hold(caller) as gone:
            async for line in lines:
                if gone.is_set():
                    raise CutAnswerError("the token was taken out while the answer was sent")
                yield _line(line)

    return StreamingResponse(write(), media_type="application/x-ndjson")


def _line(exported: Exported) -> bytes:
    return json.dumps(exported, ensure_ascii=False, default=_to_text).encode() + b"\n"


def _to_text(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
