"""Webhooks of the caller's tenant: who is told when turns end or wait, and what became of each message."""

from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, Field
from starlette.status import HTTP_201_CREATED, HTTP_204_NO_CONTENT

from perdure.client.webhooks import State, Webhooks
from perdure.contracts.turns import Label
from perdure.contracts.webhooks import LONGEST_URL, WEBHOOK_ID_PATTERN, Delivery, NewWebhook, Webhook, WebhookEvent
from perdure.gateway.access import Admin, Caller, Gateway, GatewayOf
from perdure.gateway.views import Body, Page, SessionName

router = APIRouter(prefix="/v1", tags=["webhooks"])

WebhookId = Annotated[str, Path(pattern=WEBHOOK_ID_PATTERN, description="The webhook's id")]


class WebhookBody(Body):
    """An address that is to be told of the tenant's turns."""

    url: str = Field(min_length=1, max_length=LONGEST_URL, description="https, and a host that the gateway allows")
    events: list[WebhookEvent] = Field(default=[*WebhookEvent], min_length=1, max_length=10)
    agents: list[Label] = Field(default=[], max_length=100, description="Only turns of these agents; empty for all")
    session: SessionName | None = Field(default=None, description="Only turns of this session")


class SecretBody(Body):
    """A secret to be exchanged."""

    overlap: float = Field(default=86_400, ge=0, le=2_592_000, description="Seconds that the old secret signs, too")


class RedriveBody(Body):
    """Messages to be sent again."""

    message: str | None = Field(default=None, max_length=300, description="One message; else all that have failed")


class Redriven(BaseModel):
    """The messages that are sent again."""

    messages: tuple[str, ...]


def _own(gateway: Gateway, caller: Caller) -> Webhooks:
    return gateway.client.webhooks.of(caller.tenant)


@router.post("/webhooks", status_code=HTTP_201_CREATED, operation_id="add_webhook")
async def add_webhook(caller: Admin, body: WebhookBody, gateway: GatewayOf) -> NewWebhook:
    """Have an address told of turns from now on. The answer has the secret, which nothing else ever will."""
    return await _own(gateway, caller).add(body.url, body.events, agents=body.agents, session=body.session)


@router.get("/webhooks", operation_id="list_webhooks")
async def list_webhooks(caller: Admin, gateway: GatewayOf) -> Page[Webhook]:
    """The tenant's webhooks, the oldest first."""
    return Page(items=await _own(gateway, caller).list())


@router.get("/webhooks/{webhook}", operation_id="get_webhook")
async def get_webhook(caller: Admin, webhook: WebhookId, gateway: GatewayOf) -> Webhook:
    """A webhook."""
    return await _own(gateway, caller).get(webhook)


@router.delete("/webhooks/{webhook}", status_code=HTTP_204_NO_CONTENT, operation_id="remove_webhook")
async def remove_webhook(caller: Admin, webhook: WebhookId, gateway: GatewayOf) -> None:
    """Forget a webhook; what is being delivered fails at its next attempt."""
    await _own(gateway, caller).remove(webhook)


@router.post("/webhooks/{webhook}/pause", operation_id="pause_webhook")
async def pause_webhook(caller: Admin, webhook: WebhookId, gateway: GatewayOf) -> Webhook:
    """Tell a webhook nothing for now; what happens meanwhile is not told later."""
    return await _own(gateway, caller).pause(webhook)


@router.post("/webhooks/{webhook}/unpause", operation_id="unpause_webhook")
async def unpause_webhook(caller: Admin, webhook: WebhookId, gateway: GatewayOf) -> Webhook:
    """Tell a webhook what happens from now on."""
    return await _own(gateway, caller).unpause(webhook)


@router.post("/webhooks/{webhook}/secret", operation_id="exchange_webhook_secret")
async def exchange_webhook_secret(
    caller: Admin, webhook: WebhookId, gateway: GatewayOf, body: SecretBody | None = None
) -> NewWebhook:
    """Exchange the secret; the answer has the new one, which nothing else ever will."""
    overlap = timedelta(seconds=(body or SecretBody()).overlap)
    return await _own(gateway, caller).exchange_secret(webhook, overlap=overlap)


@router.post("/webhooks/{webhook}/test", operation_id="test_webhook")
async def test_webhook(caller: Admin, webhook: WebhookId, gateway: GatewayOf) -> Delivery:
    """Send a message of the type webhook.test, once, and say what came of it."""
    return await _own(gateway, caller).test(webhook)


@router.get("/webhooks/{webhook}/deliveries", operation_id="list_webhook_deliveries")
async def list_webhook_deliveries(
    caller: Admin,
    webhook: WebhookId,
    gateway: GatewayOf,
    state: State | None = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> Page[Delivery]:
    """What was sent, the newest first, as long as Temporal keeps it."""
    return Page(items=await _own(gateway, caller).deliveries(webhook, state=state, limit=limit))


@router.post("/webhooks/{webhook}/redrive", operation_id="redrive_webhook")
async def redrive_webhook(
    caller: Admin, webhook: WebhookId, gateway: GatewayOf, body: RedriveBody | None = None
) -> Redriven:
    """Send a message again, or all whose delivery has failed: same ids, same bytes."""
    message = body.message if body is not None else None
    return Redriven(messages=await _own(gateway, caller).redrive(webhook, message))
