"""Subscriptions in the store, on both databases: what is kept, and who reads the secret."""

from datetime import UTC, datetime, timedelta

import pytest

from perdure.contracts.webhooks import PushConfig, Webhook, WebhookEvent
from perdure.store import NotFoundError, Store

WEBHOOK = Webhook(
    id="wh_0123456789abcdef",
    url="https://example.com/hook",
    events=(WebhookEvent.ENDED,),
    tenant="acme",
    agents=("a", "b"),
    session="s",
    created_at=datetime(2026, 1, 1, tzinfo=UTC),
)


async def test_a_subscription_is_kept_as_it_is_and_read_without_its_secret(store: Store) -> None:
    await store.add_webhook(WEBHOOK, "whsec_one")
    assert await store.webhooks() == (WEBHOOK,)
    assert await store.webhooks(tenant="acme") == (WEBHOOK,)
    assert await store.webhooks(tenant="") == ()
    assert await store.webhooks(WebhookEvent.ENDED) == (WEBHOOK,)
    assert await store.webhooks(WebhookEvent.WAITING) == ()


async def test_a_paused_subscription_is_listed_and_told_nothing(store: Store) -> None:
    await store.add_webhook(WEBHOOK, "whsec_one")
    paused = await store.pause_webhook(WEBHOOK.id, paused=True, reason="410")
    assert (paused.paused, paused.pause_reason) == (True, "410")
    assert await store.webhooks() == (paused,)
    assert await store.webhooks(WebhookEvent.ENDED) == ()
    assert await store.pause_webhook(WEBHOOK.id, paused=False) == WEBHOOK


async def test_an_exchanged_secret_signs_beside_the_new_one_until_its_time_is_over(store: Store) -> None:
    await store.add_webhook(WEBHOOK, "whsec_one")
    await store.exchange_secret(WEBHOOK.id, "whsec_two", datetime.now(UTC) + timedelta(hours=1))
    target = await store.webhook_target(WEBHOOK.id)
    assert target is not None
    assert target.secrets == ("whsec_two", "whsec_one")
    assert "whsec" not in repr(target)
    await store.exchange_secret(WEBHOOK.id, "whsec_three", datetime.now(UTC))
    target = await store.webhook_target(WEBHOOK.id)
    assert target is not None
    assert target.secrets == ("whsec_three",)


async def test_a_subscription_that_was_removed_is_nowhere(store: Store) -> None:
    await store.add_webhook(WEBHOOK, "whsec_one")
    await store.remove_webhook(WEBHOOK.id)
    assert await store.webhooks() == ()
    assert await store.webhook_target(WEBHOOK.id) is None
    until = datetime.now(UTC)
    for gone in (
        store.remove_webhook(WEBHOOK.id),
        store.pause_webhook(WEBHOOK.id, paused=True),
        store.exchange_secret(WEBHOOK.id, "whsec_two", until),
    ):
        with pytest.raises(NotFoundError, match="no webhook"):
            await gone


async def test_a_turns_webhook_is_told_of_that_turn_alone_with_headers_that_no_list_has(store: Store) -> None:
    """S-83: the webhooks of single turns, which may be many, are not read for other turns."""
    push = PushConfig(id="mine", scheme="Bearer")
    one = WEBHOOK.model_copy(update={"id": "wh_1123456789abcdef", "session": "s", "turn": 2, "push": push})
    await store.add_webhook(WEBHOOK, "whsec_one")
    await store.add_webhook(one, "whsec_two", {"authorization": "Bearer of-the-receiver"})
    assert await store.webhooks() == (WEBHOOK,)
    assert await store.webhooks(WebhookEvent.ENDED, turn=("s", 2)) == (WEBHOOK, one)
    assert await store.webhooks(WebhookEvent.ENDED, turn=("s", 1)) == (WEBHOOK,)
    assert await store.webhooks(WebhookEvent.ENDED, turn=("other", 2)) == (WEBHOOK,)
    assert await store.webhooks(one=one.id) == (one,)
    target = await store.webhook_target(one.id)
    assert target is not None
    assert target.headers == {"authorization": "Bearer of-the-receiver"}
    assert "of-the-receiver" not in repr(target)
