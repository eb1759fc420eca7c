"""Push notifications of A2A: webhooks of one turn, whose messages have the form of A2A, and how any webhook is made."""

import base64
import contextlib
import secrets
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

from temporalio.client import WorkflowHandle
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError

from perdure.client.connect import rpc_errors
from perdure.client.deliveries import find_message
from perdure.client.errors import RequestRefusedError
from perdure.client.requests import validate
from perdure.client.sessions import Sessions
from perdure.contracts.a2a import MEDIA_TYPE
from perdure.contracts.webhooks import EgressError, Notify, PushConfig, Webhook, WebhookRequest
from perdure.store.errors import NotFoundError

MOST = 10
"""Configurations of one task."""


class Start(Protocol):
    """Starts a delivery."""

    async def __call__(self, notify: Notify, *, reuse: WorkflowIDReusePolicy) -> WorkflowHandle[Any, int]:
        """Start it, unless ``reuse`` forbids."""
        ...


class Pushes:
    """Push notifications of a tenant's turns; made by :attr:`Webhooks.pushes`."""

    def __init__(self, sessions: Sessions, tenant: str, start: Start) -> None:
        self._sessions = sessions
        self._tenant = tenant
        self._start = start

    def check(self, url: str) -> None:
        """Check an address.

        Raises:
            RequestRefusedError: It is none, or ``PERDURE_WEBHOOK_ALLOW`` does not allow it.
        """
        validate(WebhookRequest, {"url": url})
        check_address(self._sessions, url)

    async def add(self, session: str, turn: int, url: str, push: PushConfig, headers: Mapping[str, str]) -> Webhook:
        """Send the waits and the end of a turn to an address, in place of the configuration with that id.

        What the turn waits for, or its end, is sent also if it has come before. The same call again sends nothing more.

        Args:
            session: The turn's session, which has begun.
            turn: The turn's number.
            url: An address that ``PERDURE_WEBHOOK_ALLOW`` allows.
            push: Id of the configuration, and the scheme of the authentication.
            headers: Headers by which the receiver knows the sender; they are kept as the secrets of webhooks are.

        Raises:
            RequestRefusedError: The address may not be used, or the turn has :data:`MOST` configurations.
            ServerUnreachableError: The server does not answer. The configuration is there, and the same call goes on.
        """
        self.check(url)
        headers = {"content-type": MEDIA_TYPE, **headers}
        store, known = await self._sessions.store(), await self.list(session, turn)
        others = [webhook for webhook in known if webhook.push is not None and webhook.push.id == push.id]
        if len(known) - len(others) >= MOST:
            raise RequestRefusedError(f"the task has {MOST} configurations of push notifications; delete one first")
        for other in others:
            target = await store.webhook_target(other.id)
            if target is not None and (other.url, other.push, target.headers) == (url, push, headers):
                await self._tell_of_now(other, turn)
                return other
        webhook, secret = new_webhook(
            WebhookRequest(url=url, session=session, tenant=self._tenant), turn=turn, push=push
        )
        await store.add_webhook(webhook, secret, headers)
        await self._remove(others)
        await self._tell_of_now(webhook, turn)
        return webhook

    async def list(self, session: str, turn: int) -> tuple[Webhook, ...]:
        """The configurations of a turn, the oldest first."""
        store = await self._sessions.store()
        found = await store.webhooks(tenant=self._tenant, turn=(session, turn))
        return tuple(webhook for webhook in found if webhook.push is not None)

    async def remove(self, session: str, turn: int, push: str) -> None:
        """Remove the configuration of that id, if there is one; messages on their way fail at their next attempt."""
        known = await self.list(session, turn)
        await self._remove(webhook for webhook in known if webhook.push is not None and webhook.push.id == push)

    async def _remove(self, found: Iterable[Webhook]) -> None:
        store = await self._sessions.store()
        for webhook in found:
            with contextlib.suppress(NotFoundError):  # somebody else has removed it
                await store.remove_webhook(webhook.id)

    async def _tell_of_now(self, webhook: Webhook, turn: int) -> None:
        """Start the delivery of what came before the webhook. A worker that sees both starts the same workflow."""
        store = await self._sessions.store()
        message = await find_message(store, webhook.session or "", turn)
        notify = None if message is None else message.to(webhook, store.id)
        if notify is not None:
            with contextlib.suppress(WorkflowAlreadyStartedError), rpc_errors():
                await self._start(notify, reuse=WorkflowIDReusePolicy.REJECT_DUPLICATE)


def check_address(sessions: Sessions, url: str) -> None:
    """Check that messages may be sent to an address.

    Raises:
        RequestRefusedError: They may not.
    """
    try:
        sessions.settings.egress.check(url, whose="this process's and the workers'")
    except EgressError as error:
        raise RequestRefusedError(f"url: {error}") from None


def new_webhook(
    request: WebhookRequest, *, turn: int | None = None, push: PushConfig | None = None
) -> tuple[Webhook, str]:
    """A webhook with an id of its own, and its secret."""
    made = datetime.now(UTC)
    webhook = Webhook(id=f"wh_{secrets.token_hex(8)}", created_at=made, **dict(request), turn=turn, push=push)
    return webhook, new_secret()


def new_secret() -> str:
    """A key of signatures, in the form of Standard Webhooks."""
    return "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()
