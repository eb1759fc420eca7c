"""Subscriptions in the store, on both databases: what is kept, and who reads the secret."""

from datetime import UTC, datetime, timedelta

import pytest

from perdure.contracts.blocks import Block
from perdure.contracts.values import replace
from perdure.contracts.webhooks import PushConfig, Webhook, WebhookEvent
from perdure.store import NotFoundError, Store
from perdure.store.records import ClaimedTurn
from tests.unit.store.given import HELPER, commit, opening

WEBHOOK = Webhook(
    id="wh_0123456789abcdef",
    url="https://example.com/hook",
    events=(WebhookEvent.ENDED,),
    tenant="acme",
    agents=("a", "b"),
    session="s",
    created_at=datetime(2026, 1, 1, tzinfo=UTC),
)


async def open_turn(store: Store, session: str, tenant: str) -> ClaimedTurn:
    asked = opening(session=session)
    return await store.open_turn(replace(asked, request=replace(asked.request, tenant=tenant)), HELPER)


async def test_what_a_tenant_has_is_counted_without_others_and_pushes_while_their_turns_are_open(store: Store) -> None:
    """S-95."""
    made = 0

    async def add(tenant: str, session: str | None = None, turn: int | None = None) -> None:
        nonlocal made
        made += 1
        about = {"id": f"wh_{made:016x}", "tenant": tenant, "session": session, "turn": turn}
        await store.add_webhook(WEBHOOK.model_copy(update=about), "whsec_one")

    opened = await open_turn(store, "s", "acme")
    await open_turn(store, "t", "acme")
    await open_turn(store, "of-beta", "beta")
    for session, turn in (("s", 1), ("s", 1), ("t", 1), ("t", 2)):
        await add("acme", session, turn)
    for tenant in ("acme", "beta", "beta"):
        await add(tenant)
    await add("beta", "of-beta", 1)
    counts = [(await store.count_webhooks(tenant), await store.count_pushes(tenant)) for tenant in ("acme", "beta", "")]
    assert counts == [(1, 3), (2, 1), (0, 0)]
    await store.commit_turn(replace(commit(opened.tip), session="s"))
    assert await store.count_pushes("acme") == 1
    for whose in ("acme", "acme", "beta", None):
        block = Block(id=f"bl_{made:016x}", created_at=WEBHOOK.created_at, tenant=whose, agent=f"a{made}", reason="r")
        await store.add_block(block)
        made += 1
    assert [await store.count_blocks(tenant) for tenant in ("acme", "beta", "")] == [2, 1, 0]
    await store.lift_block((await store.blocks(tenant="acme"))[0].id, by="ann")
    assert await store.count_blocks("acme") == 1


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
    for session in ("s", "other"):
        await open_turn(store, session, "acme")
    await store.add_webhook(WEBHOOK, "whsec_one")
    await store.add_webhook(one, "whsec_two", {"authorization": "Bearer of-the-receiver"})
    assert await store.webhooks() == (WEBHOOK,)
    assert await store.webhooks(WebhookEvent.ENDED, turn=("s", 2)) == (WEBHOOK, one)
    assert await store.webhooks(WebhookEvent.ENDED, turn=("s", 1)) == (WEBHOOK,)
    assert await store.webhooks(WebhookEvent.ENDED, turn=("other", 2)) == (WEBHOOK,)
    await open_turn(store, "of-beta", "beta")
    assert await store.webhooks(WebhookEvent.ENDED, turn=("of-beta", 2)) == ()  # other tenants' cost it nothing
    assert await store.webhooks(one=one.id) == (one,)
    target = await store.webhook_target(one.id)
    assert target is not None
    assert target.headers == {"authorization": "Bearer of-the-receiver"}
    assert "of-the-receiver" not in repr(target)
