"""The start of deliveries at a turn's end, without a server: in one go, and never for longer than a while."""

import asyncio
import dataclasses
import logging
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
import temporalio.client
from temporalio.exceptions import ApplicationError, WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import ActivityEnvironment

from perdure.activities.telling import notifications
from perdure.activities.telling.notifications import AT_ONCE, LONGEST, START_RETRY, Notifications
from perdure.contracts.values import replace
from perdure.contracts.webhooks import Webhook, WebhookEvent
from perdure.store import Store
from tests.unit.store.given import HELPER, commit, opening

MANY = 3 * AT_ONCE


class Server:
    """Takes starts of workflows, or not, in place of Temporal."""

    def __init__(self, refuses: dict[str, RPCStatusCode] | None = None) -> None:
        self.refuses = refuses or {}
        self.started: list[str] = []
        self.at_once = self.most_at_once = 0
        self.keys: set[str | None] = set()
        self.hangs = False

    async def start_workflow(self, *_: object, priority: Any, **named: Any) -> None:
        name = str(named["id"])
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        self.keys.add(priority.fairness_key)
        try:
            await asyncio.sleep(0)
            if self.hangs:
                await asyncio.Event().wait()
            if name in self.started:
                raise WorkflowAlreadyStartedError(name, "Notify")
            webhook = name.partition(" ")[0]
            if (status := self.refuses.get(webhook) or self.refuses.get("")) is not None:
                raise RPCError("no", status, b"")
            self.started.append(name)
        finally:
            self.at_once -= 1


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    """A store with the end of a turn and its tenant's webhooks."""
    async with await Store.open("sqlite://", upgrade=True) as opened:
        asked = opening(session="s")
        turn = await opened.open_turn(replace(asked, request=replace(asked.request, tenant="acme")), HELPER)
        await opened.commit_turn(replace(commit(turn.tip), session="s"))
        for number in range(MANY):
            hook = Webhook(
                id=f"wh_{number:016x}",
                url="https://example.com/hook",
                events=tuple(WebhookEvent),
                tenant="acme",
                created_at=datetime.now(UTC),
            )
            await opened.add_webhook(hook, "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=")
        yield opened


class Teller:
    """Tells of the turn's end, as the activity that commits it does."""

    def __init__(self, store: Store, server: Server) -> None:
        self.server, self.refused = server, 0

        async def find_delivery(_: object, __: object, webhook: str, message: str) -> str:
            return f"{webhook} {message}"

        def note() -> None:
            self.refused += 1

        self._told = Notifications(store, find_delivery, note_refused=note)

    async def tell(self) -> ApplicationError | None:
        environment = ActivityEnvironment(client=cast("temporalio.client.Client", self.server))
        environment.info = dataclasses.replace(environment.info, task_queue="q")
        try:
            await environment.run(self._told.tell_ended, "s", 1)
        except ApplicationError as error:
            return error
        return None


def grow_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """The event is longer ago than a turn waits."""
    later = datetime.now(UTC) + LONGEST

    class Later(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return later.astimezone(tz)

    monkeypatch.setattr(notifications, "datetime", Later)


async def test_the_deliveries_of_an_end_are_begun_in_one_go_and_each_once(store: Store) -> None:
    """S-95: many at once; under the tenant's key, so that Temporal shares the workers out."""
    teller = Teller(store, Server())
    assert await teller.tell() is None
    assert await teller.tell() is None  # the attempt after a lost one
    assert len(teller.server.started) == len(set(teller.server.started)) == MANY
    assert teller.server.most_at_once == AT_ONCE
    assert (teller.server.keys, teller.refused) == ({"acme"}, 0)


@pytest.mark.parametrize("status", [RPCStatusCode.UNAVAILABLE, RPCStatusCode.RESOURCE_EXHAUSTED])
async def test_a_server_that_takes_no_starts_is_asked_again_for_those_that_are_missing(
    store: Store, status: RPCStatusCode
) -> None:
    server = Server({f"wh_{7:016x}": status, f"wh_{9:016x}": status})
    teller = Teller(store, server)
    failure = await teller.tell()
    assert failure is not None
    assert (failure.non_retryable, failure.next_retry_delay) == (False, START_RETRY)
    assert failure.message.startswith("2 deliveries of s:1:ended could not be started, such as to webhook wh_")
    assert len(server.started) == MANY - 2
    server.refuses.clear()
    assert await teller.tell() is None
    assert (len(server.started), teller.refused) == (MANY, 0)


@pytest.mark.parametrize("hangs", [False, True])
async def test_a_turn_ends_though_deliveries_cannot_begin(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, hangs: bool
) -> None:
    """S-95: they count as failed, and the log says how each is sent."""
    server = Server({"": RPCStatusCode.UNAVAILABLE})
    server.hangs = hangs
    monkeypatch.setattr(notifications, "ONE_GO", timedelta(seconds=0.1))
    teller = Teller(store, server)
    failure = await teller.tell()
    assert failure is not None
    assert f"{MANY} deliveries" in failure.message
    grow_old(monkeypatch)
    with caplog.at_level(logging.ERROR):
        assert await teller.tell() is None
    assert teller.refused == MANY
    assert f"'perdure webhooks redrive wh_{5:016x} s:1:ended' sends it" in caplog.text


async def test_a_refusal_for_good_holds_nothing_up(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    teller = Teller(store, Server({f"wh_{7:016x}": RPCStatusCode.PERMISSION_DENIED}))
    assert await teller.tell() is None
    assert (len(teller.server.started), teller.refused) == (MANY - 1, 1)
    assert f"webhook wh_{7:016x} is not told of s:1:ended (no)" in caplog.text
