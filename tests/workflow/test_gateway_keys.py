"""Requests over HTTP that come twice: the same key starts one job, whatever happens in between."""

import asyncio
from typing import Any

import httpx
import pytest

from perdure import Agent, RetryPolicy
from perdure.testing import Script, ScriptedProvider, say
from perdure.testing.faults import hang
from tests.gateway import gateway
from tests.house import House, eventually

AGENT = Agent(name="tester", model="openai/scripted", instructions="Add.", retry=RetryPolicy(max_retries=0))

BODY = {"agent": "tester", "prompt": "1 + 1"}


async def send(http: httpx.AsyncClient, path: str, key: str, body: dict[str, Any]) -> httpx.Response:
    return await http.post(path, json=body, headers={"Idempotency-Key": key})


async def test_the_same_key_and_body_get_the_same_answer_and_another_body_none(house: House) -> None:
    async with ScriptedProvider(Script(replies=(say("2"), say("4")))) as provider, house.worker(AGENT):
        house.use(provider)
        async with gateway(house) as one, gateway(house) as other:
            first = await send(one.http, "/v1/sessions", "k1", BODY)
            again = await send(other.http, "/v1/sessions", "k1", BODY)
            assert (first.status_code, again.status_code) == (202, 202)
            assert first.json() == again.json()
            changed = await send(other.http, "/v1/sessions", "k1", {**BODY, "prompt": "2 + 2"})
            assert (changed.status_code, changed.json()["code"]) == (409, "request.key_reused")
            session = first.json()["session"]
            await (await house.client.attach(session, 1)).result()
            path = f"/v1/sessions/{session}/messages"
            sent = [await send(door.http, path, "k2", {"prompt": "2 + 2"}) for door in (one, other, one)]
            assert {(answer.status_code, answer.text) for answer in sent} == {(202, sent[0].text)}
            await (await house.client.attach(session, 2)).result()
            assert (await send(other.http, path, "k2", {"prompt": "2 + 2"})).json()["turn"] == 2
            assert len(await house.client.turns(session)) == 2
            elsewhere = await send(one.http, f"/v1/sessions/{session}/compact", "k2", {})
            assert (elsewhere.status_code, elsewhere.json()["code"]) == (409, "request.key_reused")


async def test_a_start_that_was_lost_between_its_note_and_temporal_is_made_up_for(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a kill does: the key is noted and the session claimed, and nothing is in Temporal."""
    async with ScriptedProvider(Script(replies=(say("2"),))) as provider, house.worker(AGENT), gateway(house) as door:
        house.use(provider)

        async def die(*_: Any, **__: Any) -> None:
            raise ConnectionError

        with monkeypatch.context() as patched:
            patched.setattr("perdure.client.sessions.Sessions.start", die)
            lost = await send(door.http, "/v1/sessions", "k1", BODY)
        assert (lost.status_code, lost.json()["code"]) == (500, "runtime.internal")
        assert "ConnectionError" not in lost.text
        ticket = (await send(door.http, "/v1/sessions", "k1", BODY)).json()
        result = await (await house.client.attach(ticket["session"], 1)).result()
        assert result.output == "2"
        assert (await send(door.http, "/v1/sessions", "k1", BODY)).json() == ticket
        assert len(await house.client.sessions()) == 1


async def test_an_answer_that_was_lost_after_the_start_is_given_again(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job runs, and its note has no answer: by its request the retry finds it, also when it has ended."""
    hangs = say("never").after(hang())
    async with ScriptedProvider(Script(replies=(hangs,))) as provider, house.worker(AGENT), gateway(house) as door:
        house.use(provider)

        async def die(*_: Any, **__: Any) -> None:
            raise ConnectionError

        with monkeypatch.context() as patched:
            patched.setattr("perdure.store.Store.note_outcome", die)
            assert (await send(door.http, "/v1/sessions", "k1", BODY)).status_code == 500
            running = (await send(door.http, "/v1/sessions", "k1", BODY)).status_code
            assert running == 500
        ticket = (await send(door.http, "/v1/sessions", "k1", BODY)).json()
        assert (await door.http.post(f"/v1/sessions/{ticket['session']}/cancel")).json()["stops"]
        await (await house.client.attach(ticket["session"], 1)).result()
        assert len(await house.client.turns(ticket["session"])) == 1


@pytest.mark.parametrize("jobs", [30, pytest.param(200, marks=pytest.mark.deep)])
async def test_so_many_starts_at_once_each_sent_twice_are_so_many_jobs(house: House, jobs: int) -> None:
    """No worker is needed: a start is answered once Temporal has it."""
    async with gateway(house) as one, gateway(house) as other:
        await house.store.register_agents([AGENT.definition])
        sends = [
            send(door.http, "/v1/sessions", f"job-{number}", {**BODY, "prompt": f"{number} + 1"})
            for number in range(jobs)
            for door in (one, other)
        ]
        answers = await asyncio.gather(*sends)
        assert {answer.status_code for answer in answers} == {202}, [a.text for a in answers if a.status_code != 202][
            :3
        ]
        tickets = {tuple(sorted(answer.json().items())) for answer in answers}
        assert len(tickets) == jobs
        queue = house.settings.task_queue

        async def counted() -> bool:
            found = await house.temporal.count_workflows(f'TaskQueue = "{queue}"')
            return found.count >= jobs

        await eventually(counted)
        found = await house.temporal.count_workflows(f'TaskQueue = "{queue}"')
        assert found.count == jobs
        for ticket in tickets:
            await house.temporal.get_workflow_handle(str(dict(ticket)["session"])).terminate()
