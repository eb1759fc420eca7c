"""Webhooks of the caller's tenant: addresses that are notified when turns end or wait, and each delivery's state."""

from datetime import timedelta
from typing import Annotated

from fastapi import Path, Query
from pydantic import BaseModel, Field
from starlette.status import HTTP_201_CREATED, HTTP_204_NO_CONTENT

from perdure.client.webhooks import State, Webhooks
from perdure.contracts.values import Label
from perdure.contracts.webhooks import LONGEST_URL, WEBHOOK_ID_PATTERN, Delivery, NewWebhook, Webhook, WebhookEvent
from perdure.gateway.access import Admin, Gateway, GatewayOf
from perdure.gateway.bodies import Body, Router
from perdure.gateway.callers import Caller
from perdure.gateway.views import Page, SessionName

router = Router(prefix="/v1", tags=["webhooks"])

WebhookId = Annotated[str, Path(pattern=WEBHOOK_ID_PATTERN, description="The webhook's id")]


class WebhookBody(Body):
    """An address to notify of the tenant's turns."""

    url: str = Field(
        min_length=1, max_length=LONGEST_URL, description="An https address whose host PERDURE_WEBHOOK_ALLOW allows"
    )
    events: list[WebhookEvent] = Field(default=[*WebhookEvent], min_length=1, max_length=10)
    agents: list[Label] = Field(default=[], max_length=100, description="Only turns of these agents; empty for all")
    session: SessionName | None = Field(default=None, description="Only turns of this session")


class SecretBody(Body):
    """Time for which the old secret stays valid."""

    overlap: float = Field(
        default=86_400, ge=0, le=2_592_000, description="Seconds for which messages are signed with the old secret too"
    )


class RedriveBody(Body):
    """Messages to send again."""

    message: str | None = Field(
        default=None, max_length=300, description="Id of one message; null sends every message whose delivery failed"
    )


class Redriven(BaseModel):
    """The messages that are sent again."""

    messages: tuple[str, ...]


def _own(gateway: Gateway, caller: Caller) -> Webhooks:
    return gateway.client.webhooks.of(caller.tenant)


@router.post("/webhooks", status_code=HTTP_201_CREATED, operation_id="add_webhook")
async def add_webhook(caller: Admin, body: WebhookBody, gateway: GatewayOf) -> NewWebhook:
    """Send turns' events to an address from now on. Only this response has the secret of the signatures."""
    await gateway.limits.check_webhooks(gateway.client, caller.tenant)
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
    """Remove a webhook; messages that are on their way fail at their next attempt."""
    await _own(gateway, caller).remove(webhook)


@router.post("/webhooks/{webhook}/pause", operation_id="pause_webhook")
async def pause_webhook(caller: Admin, webhook: WebhookId, gateway: GatewayOf) -> Webhook:
    """Pause a webhook; events that happen meanwhile are never sent."""
    return await _own(gateway, caller).pause(webhook)


@router.post("/webhooks/{webhook}/unpause", operation_id="unpause_webhook")
async def unpause_webhook(caller: Admin, webhook: WebhookId, gateway: GatewayOf) -> Webhook:
    """Send events to a webhook again, from now on."""
    return await _own(gateway, caller).unpause(webhook)


@router.post("/webhooks/{webhook}/secret", operation_id="exchange_webhook_secret")
async def exchange_webhook_secret(
    caller: Admin, webhook: WebhookId, gateway: GatewayOf, body: SecretBody | None = None
) -> NewWebhook:
    """Replace the secret of a webhook; only this response has the new one."""
    overlap = timedelta(seconds=(body or SecretBody()).overlap)
    return await _own(gateway, caller).exchange_secret(webhook, overlap=overlap)


@router.post("/webhooks/{webhook}/test", operation_id="test_webhook")
async def test_webhook(caller: Admin, webhook: WebhookId, gateway: GatewayOf) -> Delivery:
    """Send one message of type webhook.test, without retries, and return its delivery."""
    return await _own(gateway, caller).test(webhook)


@router.get("/webhooks/{webhook}/deliveries", operation_id="list_webhook_deliveries")
async def list_webhook_deliveries(
    caller: Admin,
    webhook: WebhookId,
    gateway: GatewayOf,
    state: State | None = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> Page[Delivery]:
    """List the deliveries of a webhook, the newest first, as long as Temporal keeps them."""
    return Page(items=await _own(gateway, caller).deliveries(webhook, state=state, limit=limit))


@router.post("/webhooks/{webhook}/redrive", operation_id="redrive_webhook")
async def redrive_webhook(
    caller: Admin, webhook: WebhookId, gateway: GatewayOf, body: RedriveBody | None = None
) -> Redriven:
    """Send one message again, or every message whose delivery failed, under the same ids and with the same bytes."""
    message = body.message if body is not None else None
    return Redriven(messages=await _own(gateway, caller).redrive(webhook, message))
