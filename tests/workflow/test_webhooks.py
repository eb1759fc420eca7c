"""Webhooks end to end: who is told of what, signed and to the byte, also by a receiver that is away."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpcore
import openai
import pytest
from standardwebhooks import WebhookVerificationError
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.testing import WorkflowEnvironment

from perdure import Agent
from perdure.activities import places, webhooks
from perdure.client import Client, RequestRefusedError, UnknownWebhookError
from perdure.client.deliveries import find_delivery_id
from perdure.contracts.names import AGENT_TURN, NOTIFY
from perdure.contracts.webhooks import EgressError, NewWebhook, Notify, Webhook, WebhookEvent
from perdure.settings import Settings
from perdure.testing import Script, ScriptedProvider, say
from tests.house import House, eventually
from tests.receiver import Received, Receiver
from tests.refusing_server import certificate, with_tls
from tests.workflow.asking import COLOUR, DONE, asker, waiting
from tests.workflow.delegating import agent, asks, in_order, played
from tests.workflow.resetting import completed_tasks, reset
from tests.workflow.test_people_doors import perdure

pytestmark = pytest.mark.deep

SAYS = Script(replies=(say("done"),))


@pytest.fixture
async def receiver(house: House) -> AsyncIterator[Receiver]:
    """A receiver that workers may send to, although it is on loopback and has no TLS."""
    async with Receiver.listening() as listening:
        house.environment.setenv("PERDURE_WEBHOOK_ALLOW", f"*,{listening.origin}")
        house.settings = Settings()
        await house.client.close()
        house.client = await Client.connect(house.settings)
        yield listening


async def delivery_of(house: House, webhook: Webhook, message: str) -> str:
    """The id of the workflow that delivers a message."""
    return await find_delivery_id(house.temporal, house.store, webhook.id, message)


async def arrived(receiver: Receiver, count: int = 1) -> list[Received]:
    """So many messages, once they are there."""

    async def there() -> bool:
        return len(receiver.got) >= count

    await eventually(there)
    return receiver.got


async def ends(house: House, *agents: Agent, answers: Any = SAYS, **request: Any) -> dict[str, Any]:
    """A turn from its start to its end, on a worker of its own."""
    agents = agents or (agent("tester"),)
    async with ScriptedProvider(answers) as provider, house.worker(*agents):
        house.use(provider)
        return await house.run(**request)


@pytest.mark.judged("Standard Webhooks 1.0", "standardwebhooks")
async def test_an_end_is_told_once_signed_and_without_content(house: House, receiver: Receiver) -> None:
    """The body says where to look, and nothing that was said; the signature is Standard Webhooks'."""
    added = await house.client.webhooks.add(receiver.url)
    async with ScriptedProvider(SAYS) as provider, house.worker(agent("tester")):
        house.use(provider)
        await house.run(prompt="a prompt of its own")
        (got,) = await arrived(receiver)
        told = got.verified(added.secret)
        (end,) = await house.events("agent_end")
        assert got.message == f"{house.session}:1:ended"
        assert told == {
            "type": "turn.ended",
            "timestamp": told["timestamp"],
            "data": {
                "session": house.session,
                "turn": 1,
                "agent": "tester",
                "seq": end["seq"],
                "state": "ended",
                "stop_reason": "finished",
                "reason_code": None,
            },
        }
        assert b"prompt" not in got.body
        assert b"done" not in got.body
        event = openai.OpenAI(api_key="none").webhooks.unwrap(got.body, dict(got.headers), secret=added.secret)
        assert str(event.type) == "turn.ended"
        with pytest.raises(WebhookVerificationError):
            got.verified("whsec_" + added.secret[-8:] * 4)
        (delivery,) = await eventually(lambda: house.client.webhooks.deliveries(added.id, state="delivered"))
    assert (delivery.message, delivery.attempts, delivery.error) == (got.message, 1, None)
    history = await house.temporal.get_workflow_handle(await delivery_of(house, added, got.message)).fetch_history()
    assert added.secret[6:] not in history.to_json()
    assert "/hook" not in history.to_json()


async def test_a_turn_costs_no_event_more_without_a_webhook_and_none_with_one(house: House, receiver: Receiver) -> None:
    await ends(house)
    without = await house.temporal.get_workflow_handle(house.session).fetch_history()
    await house.client.webhooks.add(receiver.url)
    house.session += "-2"
    async with ScriptedProvider(SAYS) as provider, house.worker(agent("tester")):
        house.use(provider)
        await house.run()
        await arrived(receiver)
    with_one = await house.temporal.get_workflow_handle(house.session).fetch_history()
    assert len(without.events) == len(with_one.events)


async def test_a_wait_for_a_person_is_told_with_its_requests_and_the_end_behind_it(
    house: House, receiver: Receiver
) -> None:
    added = await house.client.webhooks.add(receiver.url)
    async with ScriptedProvider(Script(replies=(COLOUR, DONE))) as provider, house.worker(asker()):
        house.use(provider)
        handle = await house.start()
        (request,) = await waiting(house, 1)
        (asked,) = await arrived(receiver)
        told: Any = asked.verified(added.secret)
        assert told["type"] == "turn.waiting"
        assert asked.message == f"{house.session}:1:waiting:{told['data']['seq']}"
        assert (told["data"]["state"], told["data"]["requests"]) == ("waiting_for_input", [request["request_id"]])
        assert told["data"]["needs"] == ["answer"]
        assert b"colour" not in asked.body
        await house.client.answer(house.session, request["request_id"], "red")
        await handle.result()
        _, ended = await arrived(receiver, 2)
    assert ended.message == f"{house.session}:1:ended"


async def test_only_what_is_subscribed_to_is_told(house: House, receiver: Receiver) -> None:
    """Another tenant's subscription hears nothing; a delegate's end is not its caller's."""
    hooks = house.client.webhooks
    wanted = await hooks.add(receiver.url, [WebhookEvent.ENDED], agents=["tester", "helper"], tenant="acme")
    for other in (
        {"tenant": "other"},
        {"tenant": ""},
        {"tenant": "acme", "agents": ["another"]},
        {"tenant": "acme", "session": "another"},
        {"tenant": "acme", "events": ["waiting"]},
    ):
        await hooks.add(receiver.url, **other)
    paused = await hooks.add(receiver.url, tenant="acme")
    await hooks.pause(paused.id)
    answers = played(tester=in_order(asks("one"), DONE), helper=lambda _: say("1"))
    async with (
        ScriptedProvider(answers) as provider,
        house.worker(agent("tester", delegates=["helper"]), agent("helper")),
    ):
        house.use(provider)
        await house.run(tenant="acme")
        await arrived(receiver)

        async def deliveries() -> set[str]:  # a list of Temporal's shows a start a moment later
            started = [run async for run in house.temporal.list_workflows(f'WorkflowType = "{NOTIFY}"')]
            return {run.id for run in started if house.session in run.id}

        assert await eventually(deliveries) == {await delivery_of(house, wanted, f"{house.session}:1:ended")}


async def ends_again(house: House) -> None:
    """The commit of the session's turn runs once more, as after a worker that was lost behind it."""
    first = house.temporal.get_workflow_handle(house.session)
    run = await reset(house, (await completed_tasks(first))[-2], uuid.uuid4().hex)
    async with ScriptedProvider(SAYS) as provider, house.worker(agent("tester")):
        house.use(provider)
        assert (await run.result())["stop_reason"] == "finished"


async def test_a_delivery_that_was_lost_with_its_worker_is_started_by_the_next_attempt_and_never_twice(
    house: House, receiver: Receiver
) -> None:
    """The activity tells before it returns; the attempt after a lost one finds the end in the store and tells it."""
    await ends(house)
    added = await house.client.webhooks.add(receiver.url)
    await ends_again(house)
    delivery: Any = house.temporal.get_workflow_handle(await delivery_of(house, added, f"{house.session}:1:ended"))
    async with house.worker(agent("tester")):
        await delivery.result()
    started = await delivery.describe()
    await ends_again(house)
    assert (await delivery.describe()).run_id == started.run_id
    assert [got.message for got in receiver.got] == [f"{house.session}:1:ended"]


async def test_a_turn_that_temporal_has_ended_is_told_of_when_the_next_one_closes_it(
    house: House, receiver: Receiver
) -> None:
    await house.client.webhooks.add(receiver.url, ["ended"])
    replies = (COLOUR, DONE)
    async with ScriptedProvider(Script(replies=replies)) as provider, house.worker(asker()):
        house.use(provider)
        handle = await house.start()
        await waiting(house, 1)
        await handle.terminate()
        await house.run(agent=None)
        first, second = await arrived(receiver, 2)
    told = {got.message: json.loads(got.body)["data"]["reason_code"] for got in (first, second)}
    assert told == {f"{house.session}:1:ended": "runtime.turn_closed", f"{house.session}:2:ended": None}


async def test_a_receiver_that_is_down_for_two_hours_gets_each_message_once(
    house: House, receiver: Receiver, skipping: WorkflowEnvironment
) -> None:
    """The same id and the same bytes at every attempt, and one of them is taken."""
    added = await house.client.webhooks.add(receiver.url)
    taken: list[Received] = []
    down_until = await skipping.get_current_time() + timedelta(hours=2)

    async def answer(received: Received) -> str:
        if await skipping.get_current_time() < down_until:
            return "503 Service Unavailable"
        taken.append(received)
        return "204 No Content"

    receiver.answer = answer
    script = Script(replies=(say("done"),) * 3)
    async with ScriptedProvider(script) as provider, house.worker(agent("tester"), client=skipping.client):
        house.use(provider)
        sessions = [f"{house.session}-{number}" for number in range(3)]
        for session in sessions:
            request = {"agent": "tester", "prompt": "go"}
            turn: Any = await skipping.client.start_workflow(
                AGENT_TURN, request, id=session, task_queue=house.settings.task_queue
            )
            await turn.result()
        await skipping.sleep(timedelta(hours=5))
        for session in sessions:
            delivery: Any = skipping.client.get_workflow_handle(await delivery_of(house, added, f"{session}:1:ended"))
            assert (await delivery.describe()).status is WorkflowExecutionStatus.COMPLETED
    assert sorted(got.message for got in taken) == sorted(f"{session}:1:ended" for session in sessions)
    for got in taken:
        attempts = [other for other in receiver.got if other.message == got.message]
        assert len(attempts) > 7
        assert {attempt.body for attempt in attempts} == {got.body}
        got.verified(added.secret)


async def test_a_delivery_is_given_up_after_three_days_is_visible_and_can_be_sent_again(
    house: House, receiver: Receiver, skipping: WorkflowEnvironment
) -> None:
    added = await house.client.webhooks.add(receiver.url)

    async def answer(_: Received) -> str:
        return "500 Internal Server Error"

    receiver.answer = answer
    notify = Notify(webhook=added.id, message="s:1:ended", body="{}", store=house.store.id)
    queue = house.settings.task_queue
    async with house.worker(agent("tester"), client=skipping.client):
        given_up: Any = await skipping.client.start_workflow(NOTIFY, notify, id="given-up", task_queue=queue)
        with pytest.raises(WorkflowFailureError) as failed:
            await given_up.result()
        described = await given_up.describe()
    assert isinstance(failed.value.cause, ApplicationError)
    assert (failed.value.cause.type, failed.value.cause.message) == ("webhook.undelivered", "127.0.0.1 answered 500")
    assert described.close_time - described.start_time <= timedelta(days=3, minutes=1)
    # 14 on a real server; this one tells the time of the failure before as that of the attempt, so waits grow slower.
    assert 14 <= len(receiver.got) <= 19
    assert len({got.body for got in receiver.got}) == 1


async def test_a_failed_delivery_is_listed_and_redriven_with_the_same_bytes(house: House, receiver: Receiver) -> None:
    """410 pauses the webhook, as Standard Webhooks asks for; what was not taken can be sent again."""
    hooks = house.client.webhooks
    added = await hooks.add(receiver.url)
    answers = iter(["410 Gone", "200 OK"])

    async def answer(_: Received) -> str:
        return next(answers)

    receiver.answer = answer
    async with ScriptedProvider(SAYS) as provider, house.worker(agent("tester")):
        house.use(provider)
        await house.run()
        (failed,) = await eventually(lambda: hooks.deliveries(added.id, state="failed"))
        assert (failed.attempts, failed.message) == (1, f"{house.session}:1:ended")
        assert "answered 410" in failed.error
        paused = await hooks.get(added.id)
        assert (paused.paused, "410" in paused.pause_reason) == (True, True)
        await hooks.unpause(added.id)
        assert await hooks.redrive(added.id) == (failed.message,)
        first, second = await arrived(receiver, 2)
        (delivered,) = await eventually(lambda: hooks.deliveries(added.id, state="delivered"))
        assert await hooks.redrive(added.id) == ()
    assert (first.message, first.body) == (second.message, second.body)
    assert delivered.message == failed.message
    with pytest.raises(RequestRefusedError, match="has no delivery of 'nothing'"):
        await hooks.redrive(added.id, "nothing")


async def test_a_message_whose_delivery_was_never_begun_is_made_from_the_log(house: House, receiver: Receiver) -> None:
    """S-95: as when Temporal took no starts; for webhooks that are told of such a turn, and of nothing else."""
    await ends(house, tenant="acme")
    message = f"{house.session}:1:ended"
    added = await house.client.webhooks.of("acme").add(receiver.url)
    other = await house.client.webhooks.of("other").add(receiver.url)
    async with house.worker(agent("tester")):
        assert await house.client.webhooks.of("acme").redrive(added.id, message) == (message,)
        (got,) = await arrived(receiver)
        for webhook, wrong in ((other, message), (added, f"{house.session}:2:ended"), (added, "none:1:ended")):
            with pytest.raises(RequestRefusedError, match="has no delivery of"):
                await house.client.webhooks.redrive(webhook.id, wrong)
    assert got.verified(added.secret)["type"] == "turn.ended"
    assert [one.message for one in receiver.got] == [message]


async def test_a_delivery_is_listed_while_the_index_knows_only_the_run_before(
    house: House, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Temporal's index is behind, on a busy machine by seconds; a message that was just sent again is no less there."""
    hooks = house.client.webhooks
    added = await hooks.add(receiver.url)
    async with ScriptedProvider(SAYS) as provider, house.worker(agent("tester")):
        house.use(provider)
        await house.run()
        (first,) = await eventually(lambda: hooks.deliveries(added.id, state="delivered"))
        known = [run async for run in house.client.temporal.list_workflows(f'WorkflowType = "{NOTIFY}"')]

        async def behind(*_: object, **__: object) -> AsyncIterator[Any]:
            for run in known:
                if added.id in run.id:
                    yield run

        monkeypatch.setattr(house.client.temporal, "list_workflows", behind)
        await hooks.redrive(added.id, first.message)
        (again,) = await hooks.deliveries(added.id)
        assert (again.message, again.started_at > first.started_at) == (first.message, True)
        (delivered,) = await eventually(lambda: hooks.deliveries(added.id, state="delivered"))
        assert delivered.started_at == again.started_at
        assert await hooks.deliveries(added.id, state="failed") == ()
    assert len(receiver.got) == 2


@pytest.mark.parametrize(
    ("answered", "said"),
    [
        ("302 Found\r\nlocation: http://127.0.0.1:1/", "answered 302; redirects are not followed"),
        ("404 Not Found", "127.0.0.1 answered 404"),
        ("", "could not be reached"),
    ],
)
async def test_a_test_message_says_what_the_receiver_did(
    house: House, receiver: Receiver, answered: str, said: str
) -> None:
    added = await house.client.webhooks.add(receiver.url)

    async def answer(_: Received) -> str:
        return answered

    async with house.worker(agent("tester")):
        taken = await house.client.webhooks.test(added.id)
        receiver.answer = answer
        refused = await house.client.webhooks.test(added.id)
    assert (taken.state, taken.error) == ("delivered", None)
    assert receiver.got[0].verified(added.secret)["type"] == "webhook.test"
    assert refused.state == "failed"
    assert said in str(refused.error)
    assert len(receiver.got) == 2


async def test_both_secrets_sign_while_they_overlap_and_the_new_one_alone_after_that(
    house: House, receiver: Receiver
) -> None:
    hooks = house.client.webhooks
    first = await hooks.add(receiver.url)
    async with house.worker(agent("tester")):
        second = await hooks.exchange_secret(first.id)
        await hooks.test(first.id)
        third = await hooks.exchange_secret(first.id, overlap=timedelta(0))
        await hooks.test(first.id)
    both, alone = receiver.got
    assert both.verified(first.secret) == both.verified(second.secret)
    alone.verified(third.secret)
    for old in (first, second):
        with pytest.raises(WebhookVerificationError):
            alone.verified(old.secret)
    shown = [webhook.model_dump_json() for webhook in await hooks.list()]
    assert not any(secret in text for text in shown for secret in (first.secret, second.secret, third.secret))
    assert third.secret not in repr(third)


async def test_a_worker_sends_to_no_private_address_whoever_has_added_it(house: House) -> None:
    """The address is looked at where the connection is made: a public name for a private address changes nothing."""
    async with Receiver.listening() as receiver:
        url = receiver.url.replace("http://127.0.0.1", "https://localhost")
        added = await house.client.webhooks.add(url)
        async with house.worker(agent("tester")):
            refused = await house.client.webhooks.test(added.id)
        assert "localhost leads to" in str(refused.error)
        assert "127.0.0.1" not in str(refused.error)
        assert "::1" not in str(refused.error)
        assert "not a public address" in str(refused.error)
        assert "PERDURE_WEBHOOK_ALLOW" in str(refused.error)
        assert receiver.got == []


async def test_a_tenant_sees_and_changes_its_own_webhooks_only(house: House) -> None:
    ours, theirs = house.client.webhooks.of("ours"), house.client.webhooks.of("theirs")
    added = await ours.add("https://example.com/hook", tenant="theirs")
    assert added.tenant == "ours"
    assert [webhook.id for webhook in await ours.list()] == [added.id]
    assert await theirs.list() == ()
    for call in (theirs.get, theirs.pause, theirs.unpause, theirs.remove, theirs.test, theirs.exchange_secret):
        with pytest.raises(UnknownWebhookError):
            await call(added.id)
    for read in (theirs.deliveries, theirs.redrive):
        with pytest.raises(UnknownWebhookError):
            await read(added.id)
    await ours.remove(added.id)
    with pytest.raises(UnknownWebhookError, match="'perdure webhooks list'"):
        await ours.get(added.id)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"url": "http://example.com/hook"}, "has no TLS; use https"),
        (
            {"url": "https://10.0.0.1/hook"},
            "is not a public address; have this process's and the workers' PERDURE_WEBHOOK_ALLOW",
        ),
        ({"url": "https://user:secret@example.com/hook"}, "leave it out"),
        ({"url": "ftp://example.com"}, "none of http or https"),
        ({"url": ""}, "url: "),
        ({"events": ["begun"]}, "events.0: "),
        ({"events": []}, "events: "),
        ({"session": "no session"}, "session: "),
    ],
)
async def test_what_cannot_be_a_webhook_is_refused_in_one_line_and_nothing_is_kept(
    house: House, wrong: dict[str, Any], said: str
) -> None:
    with pytest.raises(RequestRefusedError) as refused:
        await house.client.webhooks.add(**{"url": "https://example.com/hook", **wrong})
    assert said in str(refused.value)
    assert "secret" not in str(refused.value)
    assert "\n" not in str(refused.value)
    assert await house.client.webhooks.list() == ()


async def test_the_command_line_does_it_all(house: House, receiver: Receiver) -> None:
    code, output, errors = await perdure("webhooks", "add", receiver.url, "--event", "ended", "--json")
    assert (code, errors) == (0, "")
    added = NewWebhook.model_validate_json(output)
    async with ScriptedProvider(SAYS) as provider, house.worker(agent("tester")):
        house.use(provider)
        await house.run()
        (got,) = await arrived(receiver)
        assert (await perdure("webhooks", "test", added.id))[0] == 0
        await eventually(lambda: house.client.webhooks.deliveries(added.id, state="delivered"))
        code, output, _ = await perdure("webhooks", "deliveries", added.id)
        assert (code, got.message in output, "delivered" in output) == (0, True, True)
        assert (await perdure("webhooks", "redrive", added.id, got.message))[1] == f"{got.message}\n"
        await arrived(receiver, 3)
        assert (await perdure("webhooks", "redrive", added.id))[1] == "no delivery has failed\n"
        await perdure("webhooks", "pause", added.id)
        assert "paused" in (await perdure("webhooks", "list"))[1]
        await perdure("webhooks", "unpause", added.id)
        assert added.secret not in (await perdure("webhooks", "list", "--json"))[1]
        assert "whsec_" in (await perdure("webhooks", "secret", added.id))[1]

        async def answer(_: Received) -> str:
            return "500 Internal Server Error"

        receiver.answer = answer
        code, _, errors = await perdure("webhooks", "test", added.id)
        assert (code, errors) == (1, "perdure: not delivered: 127.0.0.1 answered 500\n")
        assert (await perdure("webhooks", "remove", added.id))[0] == 0
    code, _, errors = await perdure("webhooks", "remove", added.id)
    assert (code, errors.count("\n")) == (2, 1)
    assert "there are no webhooks" in (await perdure("webhooks", "list"))[1]


async def test_a_receiver_that_hangs_or_never_stops_talking_holds_nothing_up(
    house: House, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attempt has its time, and of an answer nothing is read but its status."""
    added = await house.client.webhooks.add(receiver.url)
    for_ever = asyncio.Event()

    async def hang(_: Received) -> str:
        await for_ever.wait()
        return ""

    async def talk(_: Received) -> str:
        return "200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + "ffffff\r\n" + "x" * 10_000_000

    async with house.worker(agent("tester")):
        receiver.answer = talk
        assert (await house.client.webhooks.test(added.id)).state == "delivered"
        monkeypatch.setattr(places, "PATIENCE", timedelta(seconds=0.2))
        receiver.answer = hang
        hung = await house.client.webhooks.test(added.id)
    for_ever.set()
    assert hung.error == "127.0.0.1 did not answer within 0 s"


async def test_tls_is_verified_for_the_name_although_the_connection_goes_to_an_address(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = certificate(tmp_path, "localhost")
    async with Receiver.listening(with_tls(path)) as receiver:
        url = receiver.url.replace("127.0.0.1", "localhost")
        other = receiver.url
        allowed = tuple(address.removesuffix("/hook") for address in (url, other))
        house.settings = house.settings.model_copy(update={"webhook_allow": allowed})
        async with await Client.connect(house.settings) as client, house.worker(agent("tester")):
            added, wrong = await client.webhooks.add(url), await client.webhooks.add(other)
            webhooks._tls.cache_clear()
            untrusted = await client.webhooks.test(added.id)
            monkeypatch.setenv("SSL_CERT_FILE", str(path))
            webhooks._tls.cache_clear()
            trusted = await client.webhooks.test(added.id)
            not_its_name = await client.webhooks.test(wrong.id)
    webhooks._tls.cache_clear()
    assert "CERTIFICATE_VERIFY_FAILED" in str(untrusted.error)
    assert trusted.state == "delivered"
    assert "CERTIFICATE_VERIFY_FAILED" in str(not_its_name.error)
    assert len(receiver.got) == 1


async def test_a_name_that_stands_for_a_private_address_among_others_is_refused(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also one that answers a public address first, and a private one to whoever asks again."""

    async def both(host: str, port: int) -> list[str]:
        assert (host, port) == ("example.com", 443)
        return ["93.184.216.34", "10.0.0.1"]

    monkeypatch.setattr(webhooks, "_resolve", both)
    with pytest.raises(EgressError, match=r"example.com leads to an address that is not a public address") as refused:
        await webhooks._Guard(trusted=False).connect_tcp("example.com", 443)
    assert "10.0.0.1" not in str(refused.value)
    assert "10.0.0.1" in caplog.text


@pytest.mark.parametrize("address", ["10.0.0.1", "127.0.0.1", "fd00::17", "::1", "::ffff:10.0.0.1", "fe80::1%eth0"])
async def test_a_receiver_that_cannot_be_reached_is_told_without_the_number_of_its_address(
    house: House, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    """T-02: As the system says it, and as the message of a certificate says it."""

    async def resolve(_: str, __: int) -> list[str]:
        return [address]

    async def connect_tcp(*_: object) -> None:
        said = f"('{address}', 443), '{address}:443', {address}: no, valid for [{address}]:443, not for {address}."
        raise OSError(f"[Errno 111] at 0x7f.1: {said}")

    monkeypatch.setattr(webhooks, "_resolve", resolve)
    monkeypatch.setattr(httpcore.AnyIOBackend, "connect_tcp", connect_tcp)
    allowed = ("https://inside.example:443",)
    house.settings = house.settings.model_copy(update={"webhook_allow": allowed})
    async with await Client.connect(house.settings) as client, house.worker(agent("tester")):
        added = await client.webhooks.add("https://inside.example:443/hook")
        refused = await client.webhooks.test(added.id)
    assert refused.error is not None
    assert refused.error.startswith("inside.example could not be reached ([Errno 111] at 0x7f.1: ('its address', 443)")
    assert refused.error.count("its address") == 5
    assert address not in refused.error
