"""Deliveries of webhooks against a store and a real receiver, without a server."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from perdure.activities.places import SOONEST, Places
from perdure.activities.webhooks import WebhookActivity
from perdure.contracts.webhooks import Egress, Notify, Webhook, WebhookEvent
from perdure.store import Store
from tests.receiver import Received, Receiver

ID = "wh_0123456789abcdef"


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with Receiver.listening() as listening:
        yield listening


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    async with await Store.open("sqlite://", upgrade=True) as opened:
        yield opened


async def deliver(store: Store, receiver: Receiver, places: Places, elapsed: timedelta = timedelta(0)) -> Any:
    """One attempt, so long after the first; its failure, or the status of the answer."""
    environment, now = ActivityEnvironment(), datetime.now(UTC)
    environment.info = dataclasses.replace(
        environment.info, scheduled_time=now - elapsed, current_attempt_scheduled_time=now
    )
    activity = WebhookActivity(store, Egress((receiver.origin,)), places)
    notify = Notify(webhook=ID, message="s:1:ended", body="{}", store=store.id)
    try:
        return await environment.run(activity.deliver_webhook, notify)
    except ApplicationError as error:
        return error


async def subscribed(store: Store, receiver: Receiver, tenant: str = "wild") -> None:
    made = datetime.now(UTC)
    hook = Webhook(id=ID, url=receiver.url, events=tuple(WebhookEvent), tenant=tenant, created_at=made)
    await store.add_webhook(hook, "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=")


@pytest.mark.parametrize(
    ("elapsed", "wait"),
    [(0, 30), (30, 60), (90, 120), (210, 240), (3 * 3_600, 3 * 3_600 + 30), (60 * 3_600, 24 * 3_600)],
)
async def test_waits_double_up_to_a_day_however_many_attempts_found_no_place(
    store: Store, receiver: Receiver, elapsed: int, wait: int
) -> None:
    """S-95: they follow the time since the first attempt."""

    async def answer(_: Received) -> str:
        return "500 Internal Server Error"

    receiver.answer = answer
    await subscribed(store, receiver)
    failure = await deliver(store, receiver, Places(100), timedelta(seconds=elapsed))
    assert failure.next_retry_delay == timedelta(seconds=wait)


async def test_a_receiver_that_is_busy_may_ask_for_another_wait(store: Store, receiver: Receiver) -> None:
    async def answer(_: Received) -> str:
        return "429 Too Many Requests\r\nretry-after: 7"

    receiver.answer = answer
    await subscribed(store, receiver)
    failure = await deliver(store, receiver, Places(100), timedelta(hours=2))
    assert failure.next_retry_delay == timedelta(seconds=7)


async def test_a_delivery_that_finds_no_place_connects_to_nobody_and_comes_again_soon(
    store: Store, receiver: Receiver
) -> None:
    """S-95."""
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def answer(_: Received) -> str:
        asked.set()
        await go_on.wait()
        return "200 OK"

    receiver.answer = answer
    await subscribed(store, receiver)
    places = Places(10)  # one for a receiver
    first = asyncio.create_task(deliver(store, receiver, places))
    await asyncio.wait_for(asked.wait(), 30)
    second = await deliver(store, receiver, places, timedelta(hours=2))
    assert (second.type, second.non_retryable) == ("webhook.undelivered", False)
    assert second.message == "127.0.0.1 has as many messages under way as it may at once (1)"
    assert second.next_retry_delay == SOONEST
    go_on.set()
    assert await first == 200
    assert len(receiver.got) == 1
    assert await deliver(store, receiver, places) == 200
