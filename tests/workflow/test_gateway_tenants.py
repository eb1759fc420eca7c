"""Tokens: what each may do, and that a tenant sees, stops and counts its own sessions only."""

import asyncio
import json
import logging
import socket
from typing import Any

import httpx
import pytest

from perdure import Agent, RetryPolicy, tool
from perdure.client import SettingsError
from perdure.contracts.events import AgentStart
from perdure.gateway.serve import bind
from perdure.gateway.tokens import load_tokens
from perdure.testing import Script, ScriptedProvider, call, say
from tests.gateway import gateway, token_lines
from tests.house import House, eventually

pytestmark = pytest.mark.deep

AGENT = Agent(name="tester", model="openai/scripted", instructions="Add.", retry=RetryPolicy(max_retries=0))


@tool(requires_approval=True)
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


BODY = {"agent": "tester", "prompt": "1 + 1"}

ON_A_SESSION: tuple[tuple[str, str, dict[str, Any] | None], ...] = (
    ("GET", "", None),
    ("GET", "/status", None),
    ("GET", "/budget", None),
    ("GET", "/turns", None),
    ("GET", "/turns/1", None),
    ("GET", "/transcript", None),
    ("GET", "/steps", None),
    ("GET", "/checkpoints", None),
    ("GET", "/artifacts/abc", None),
    ("GET", "/export?format=events", None),
    ("POST", "/messages", {"prompt": "x"}),
    ("POST", "/cancel", {}),
    ("POST", "/resume", {"prompt": "x"}),
    ("POST", "/fork", {"prompt": "x"}),
    ("POST", "/compact", {}),
    ("POST", "/extend", {"max_steps": 9}),
    ("POST", "/answers/abc", {"action": "approve"}),
    ("POST", "/results/abc", {"value": "x"}),
    ("GET", "/standing-approvals", None),
    ("DELETE", "/standing-approvals/abc", None),
)
"""Every route below a session that this file's owner has; those of others are asked for by the OpenAPI document."""


async def test_another_tenants_session_is_missing_in_every_route_and_in_the_same_words(house: House) -> None:
    lines, tokens = token_lines(ann=("acme", "admin"), eve=("evil", "admin"))
    async with ScriptedProvider(Script(replies=(say("2"),))) as provider, house.worker(AGENT):
        house.use(provider)
        async with (
            gateway(house, gateway_tokens=lines) as door,
            door.holder(tokens["ann"]) as ann,
            door.holder(tokens["eve"]) as eve,
        ):
            await ann.post("/v1/sessions", json={**BODY, "session": "hers"})
            await (await house.client.attach("hers", 1)).result()
            for method, path, body in ON_A_SESSION:
                seen, missing = [
                    await eve.request(method, f"/v1/sessions/{session}{path}", json=body)
                    for session in ("hers", "none")
                ]
                assert (seen.status_code, missing.status_code) == (404, 404), (method, path, seen.text)
                assert seen.text.replace("hers", "none") == missing.text
                assert seen.headers.keys() == missing.headers.keys()
            taken = await eve.post("/v1/sessions", json={**BODY, "session": "hers"})
            assert (taken.status_code, taken.json()["code"]) == (404, "request.unknown_session")
            into = await eve.post("/v1/sessions", json={**BODY, "session": "mine"})
            assert into.status_code == 202
            await (await house.client.attach("mine", 1)).result()
            forked = await eve.post("/v1/sessions/mine/fork", json={"prompt": "x", "into": "hers"})
            assert forked.status_code == 404
            for lister, name in ((ann, "hers"), (eve, "mine")):
                listed = (await lister.get("/v1/sessions")).json()["items"]
                assert [row["session"] for row in listed] == [name]
            assert len(await house.client.turns("hers")) == 1
            document = (await door.http.get("/openapi.json")).json()
            await check_foreign(eve, document)
            labels = {"agent": "tester", "stop_reason": "finished", "reason_code": "", "tenant": "acme"}
            assert house.registry.get_sample_value("perdure_turns_ended_total", labels) == 1
            started = {"agent": "tester", "tenant": "evil"}
            assert house.registry.get_sample_value("perdure_turns_started_total", started) == 1
    record = await house.store.session("hers")
    assert record.tenant == "acme"
    start = (await house.client.trajectory("hers")).events[0].event
    assert (getattr(start, "tenant", ""), getattr(start, "by", "")) == ("acme", "ann")


async def check_foreign(eve: httpx.AsyncClient, document: dict[str, Any]) -> None:
    """No route that names a session answers for another tenant's, whoever has written the route."""
    for path, operations in document["paths"].items():
        for method in operations:
            if "{session}" in path:
                named = path.replace("{session}", "hers").replace("{turn}", "1")
                for name in ("{artifact}", "{request}"):
                    named = named.replace(name, "abc")
                found = await eve.request(method.upper(), named, json={} if method == "post" else None)
                assert found.status_code in {404, 422}, (method, path, found.text)


async def test_of_two_tenants_that_start_one_session_at_once_one_gets_it(house: House) -> None:
    lines, tokens = token_lines(ann=("acme", "run,read"), eve=("evil", "run,read"))
    await house.store.register_agents([AGENT.definition])
    async with (
        gateway(house, gateway_tokens=lines) as door,
        gateway(house, gateway_tokens=lines) as other,
        door.holder(tokens["ann"]) as ann,
        other.holder(tokens["eve"]) as eve,
    ):
        for number in range(10):
            body = {**BODY, "session": f"{house.session}-{number}"}
            answers = await asyncio.gather(*(http.post("/v1/sessions", json=body) for http in (ann, eve)))
            assert sorted(answer.status_code for answer in answers) == [202, 404]
            seen = await asyncio.gather(*(http.get(f"/v1/sessions/{body['session']}") for http in (ann, eve)))
            assert [found.status_code == 200 for found in seen] == [answer.status_code == 202 for answer in answers]
            await house.temporal.get_workflow_handle(str(body["session"])).terminate()


async def test_a_job_that_was_started_past_the_gateway_is_nobody_elses_before_it_opens(house: House) -> None:
    """No worker has opened it, so the store knows nothing of it; another tenant can neither claim nor stop it."""
    lines, tokens = token_lines(eve=("evil", "admin"))
    await house.store.register_agents([AGENT.definition])
    await house.client.start("tester", "1 + 1", session=house.session, tenant="acme")
    async with gateway(house, gateway_tokens=lines) as door, door.holder(tokens["eve"]) as eve:
        taken = await eve.post("/v1/sessions", json={**BODY, "session": house.session})
        assert (taken.status_code, taken.json()["code"]) == (404, "request.unknown_session")
        for method, path in (("GET", ""), ("POST", "/cancel"), ("GET", "/turns/1")):
            assert (await eve.request(method, f"/v1/sessions/{house.session}{path}")).status_code == 404
    assert await house.store.tenant_of(house.session) is None
    await house.temporal.get_workflow_handle(house.session).terminate()


async def test_a_token_does_what_its_scopes_say(house: House) -> None:
    """T-06."""
    lines, tokens = token_lines(reads=("", "read"), runs=("", "run"), approves=("", "approve"))
    await house.store.register_agents([AGENT.definition])
    async with gateway(house, gateway_tokens=lines) as door:
        allowed = {
            "reads": {"read"},
            "runs": {"run"},
            "approves": {"approve"},
        }
        for name, scopes in allowed.items():
            async with door.holder(tokens[name]) as http:
                found = {
                    "read": await http.get("/v1/sessions"),
                    "run": await http.post("/v1/sessions", json={**BODY, "agent": "nobody"}),
                    "approve": await http.post("/v1/sessions/none/answers/r", json={"action": "approve"}),
                }
            forbidden = {scope for scope, answer in found.items() if answer.status_code == 403}
            assert forbidden == found.keys() - scopes, {scope: answer.text for scope, answer in found.items()}
        for headers in ({}, {"Authorization": "Bearer nonsense"}, {"Authorization": "Basic x"}, {"Cookie": "a=b"}):
            answer = await door.http.get("/v1/sessions", headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (401, "request.unauthenticated")
            assert answer.headers["www-authenticate"] == "Bearer"


async def test_a_tenant_takes_no_more_than_its_limits(house: House) -> None:
    """T-08."""
    lines, tokens = token_lines(ann=("acme", "admin"), eve=("evil", "admin"))
    await house.store.register_agents([AGENT.definition])
    limits = {"gateway_tokens": lines, "gateway_max_running": 2, "gateway_max_requests": 20}
    async with gateway(house, **limits) as door, door.holder(tokens["ann"]) as ann, door.holder(tokens["eve"]) as eve:
        started = [await ann.post("/v1/sessions", json={**BODY, "session": f"{house.session}-{n}"}) for n in range(3)]
        assert [answer.status_code for answer in started] == [202, 202, 429]
        assert started[2].json()["code"] == "request.too_many_running"
        assert (await ann.get(f"/v1/sessions/{house.session}-2")).status_code == 404
        assert (await eve.post("/v1/sessions", json={**BODY, "session": house.session})).status_code == 202
        many = await asyncio.gather(*(ann.get("/v1/agents") for _ in range(60)))
        limited = [answer for answer in many if answer.status_code == 429]
        assert limited
        assert limited[0].headers["retry-after"] == "1"
        assert (await eve.get("/v1/agents")).status_code == 200
        big = await eve.post("/v1/sessions", json={**BODY, "prompt": "x" * 200_000})
        assert (big.status_code, big.json()["code"]) == (413, "request.too_large")
        for name in ("-0", "-1", ""):
            await house.temporal.get_workflow_handle(house.session + name).terminate()


async def test_a_reply_that_begins_a_turn_counts_as_one_more_job(house: House) -> None:
    """T-08: a session that has stopped for a person counts no longer, and is one more job when it goes on."""
    lines, tokens = token_lines(ann=("acme", "admin"))
    waits = Agent(name="waits", model="openai/scripted", tools=[pay])
    stops = Agent(name="stops", model="openai/scripted", tools=[pay], interactive="stop")
    script = Script(replies=(call(("pay", {"amount": 2})), say("paid")))
    async with ScriptedProvider(script) as provider, house.worker(stops, waits):
        house.use(provider)
        async with (
            gateway(house, gateway_tokens=lines, gateway_max_running=1) as door,
            door.holder(tokens["ann"]) as ann,
        ):
            stopped, running = f"{house.session}-stops", f"{house.session}-waits"
            await ann.post("/v1/sessions", json={"agent": "stops", "prompt": "pay", "session": stopped})
            result = await (await house.client.attach(stopped)).result()
            await ann.post("/v1/sessions", json={"agent": "waits", "prompt": "pay", "session": running})
            (request,) = await eventually(lambda: house.client.inbox(running))
            path = f"/v1/sessions/{stopped}/answers/{result.requests[0].request_id}"
            refused = await ann.post(path, json={"action": "approve"})
            assert (refused.status_code, refused.json()["code"]) == (429, "request.too_many_running")
            await house.client.deny(running, request.request_id, by="ann")
            await (await house.client.attach(running)).result()
            taken = await ann.post(path, json={"action": "approve"})
            assert taken.status_code == 200, taken.text
            assert (await (await house.client.attach(stopped, 2)).result()).output == "paid"
            await ann.post("/v1/sessions", json={"agent": "waits", "prompt": "pay", "session": f"{running}-2"})
            await eventually(lambda: house.client.inbox(f"{running}-2"))
            repeated = await ann.post(path, json={"action": "approve"})
            assert (repeated.status_code, repeated.json()["decision"]) == (200, "approved")
            await house.client.cancel(f"{running}-2")


async def test_logs_say_who_did_what_and_hold_no_secrets(house: House, caplog: pytest.LogCaptureFixture) -> None:
    """T-13."""
    lines, tokens = token_lines(ann=("acme", "admin"))
    caplog.set_level(logging.INFO, "perdure")
    await house.store.register_agents([AGENT.definition])
    async with gateway(house, gateway_tokens=lines) as door, door.holder(tokens["ann"]) as ann:
        await ann.post("/v1/sessions", json={**BODY, "prompt": "a-secret-prompt", "session": house.session})
        await ann.get("/v1/sessions", params={"agent": "a-secret-filter"})
        await ann.post("/v1/sessions/none/cancel")
        await house.temporal.get_workflow_handle(house.session).terminate()
    audited = [
        (record.who, record.tenant, record.action, record.session, record.outcome)  # type: ignore[attr-defined]
        for record in caplog.records
        if record.name == "perdure.audit"
    ]
    assert audited == [
        ("ann", "acme", "start_session", house.session, "done"),
        ("ann", "acme", "list_sessions", "", "done"),
        ("ann", "acme", "cancel_session", "none", "request.unknown_session"),
    ]
    text = json.dumps([vars(record) for record in caplog.records if record.name.startswith("perdure.a")], default=str)
    assert '"path": "/v1/sessions"' in text
    for secret in ("a-secret", tokens["ann"]):
        assert secret not in text


async def test_a_page_of_another_site_starts_nothing_through_a_browser(house: House) -> None:
    await house.store.register_agents([AGENT.definition])
    async with gateway(house) as door:
        foreign = await door.http.post("/v1/sessions", json=BODY, headers={"Origin": "https://evil.example"})
        rebound = await door.http.get("/v1/agents", headers={"Host": "evil.example"})
        simple = await door.http.post("/v1/sessions", content=json.dumps(BODY), headers={"Content-Type": "text/plain"})
    assert (foreign.status_code, foreign.json()["code"]) == (403, "request.foreign_origin")
    assert (rebound.status_code, rebound.json()["code"]) == (403, "request.foreign_origin")
    assert simple.status_code == 422


def test_other_machines_reach_no_gateway_without_tokens(house: House) -> None:
    with pytest.raises(SettingsError, match="no tokens are configured"):
        bind("0.0.0.0:0", has_tokens=False)
    bind("127.0.0.1:0", has_tokens=False).close()
    listener = bind("0.0.0.0:0", has_tokens=True)
    assert listener.proto == socket.IPPROTO_TCP  # by which asyncio knows that answers are not to be held back
    listener.close()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "no JSON"),
        ('{"name": "a"}', "Field required"),
        ('{"name": "a", "scopes": ["fly"], "sha256": "' + "0" * 64 + '"}', "'read', 'run'"),
        ('{"name": "a", "scopes": ["run"], "sha256": "hunter2"}', "sha256"),
        ("# a comment", "has no tokens"),
        ('{"name": "", "scopes": ["run"], "sha256": ""}', "name"),
    ],
)
def test_tokens_that_cannot_be_read_are_refused_in_one_line(house: House, text: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said) as refused:
        load_tokens(house.settings.model_copy(update={"gateway_tokens": text}))
    assert "hunter2" not in str(refused.value)


async def test_without_tokens_every_tenants_sessions_are_seen_and_answered_and_stay_their_tenants(house: House) -> None:
    payer = Agent(name="payer", model="openai/payer", tools=[pay])
    scripts = {
        "payer": Script(replies=(call(("pay", {"amount": 5})), say("Paid.")), repeat=True),
        "scripted": Script(replies=(say("2"),), repeat=True),
    }
    async with ScriptedProvider(models=scripts) as provider, house.worker(AGENT, payer), gateway(house) as door:
        house.use(provider)
        await house.client.start("payer", "Pay.", session="hers", tenant="acme")
        plain = await house.client.start("tester", "1 + 1", session="plain")
        await plain.result()

        async def asked() -> Any:
            return (await door.http.get("/v1/inbox")).json()["items"]

        (request,) = await eventually(asked)
        assert request["session"] == "hers"
        items = (await door.http.get("/v1/sessions")).json()["items"]
        assert {item["session"]: item["tenant"] for item in items} == {"hers": "acme", "plain": ""}
        for tenant, expected in (("acme", ["hers"]), ("", ["plain"]), ("none", [])):
            for route in ("/v1/sessions", "/v1/inbox"):
                found = (await door.http.get(route, params={"tenant": tenant})).json()["items"]
                kept = expected if route == "/v1/sessions" else [name for name in expected if name == "hers"]
                assert [item["session"] for item in found] == kept, (route, tenant)
        detail = (await door.http.get("/v1/sessions/hers")).json()
        assert (detail["tenant"], len(detail["requests"])) == ("acme", 1)
        answer = await door.http.post(f"/v1/sessions/hers/answers/{request['request_id']}", json={"action": "approve"})
        assert answer.status_code == 200, answer.text
        await (await house.client.attach("hers", 1)).result()
        for path, body in (("/messages", {}), ("/resume", {}), ("/fork", {"into": "copy"})):
            begun = await door.http.post(f"/v1/sessions/hers{path}", json={"prompt": "Again.", **body})
            assert begun.status_code == 202, (path, begun.text)
            await (await house.client.attach(begun.json()["session"], begun.json()["turn"])).result()
        store = await house.client.store()
        assert [await store.tenant_of(name) for name in ("hers", "copy", "plain")] == ["acme", "acme", ""]
        starts = [line for line in await store.events("copy", after=0, limit=9) if isinstance(line.event, AgentStart)]
        assert [line.event.tenant for line in starts if isinstance(line.event, AgentStart)] == ["acme"]
        more = await door.http.post("/v1/sessions", json={**BODY, "session": "hers"})
        assert more.status_code == 202, more.text
        await (await house.client.attach("hers", more.json()["turn"])).result()
        assert (await door.http.delete("/v1/sessions/hers")).status_code == 204
        assert (await door.http.get("/v1/sessions/hers")).status_code == 410


async def test_a_token_may_not_ask_for_another_tenant(house: House) -> None:
    lines, tokens = token_lines(ann=("acme", "admin"))
    async with gateway(house, gateway_tokens=lines) as door, door.holder(tokens["ann"]) as ann:
        for route in ("/v1/sessions", "/v1/inbox"):
            assert (await ann.get(route, params={"tenant": "acme"})).status_code == 200
            refused = await ann.get(route, params={"tenant": "evil"})
            assert (refused.status_code, refused.json()["code"]) == (403, "request.forbidden")
        refused = await ann.post("/v1/cancel", json={"tenant": "evil"})
        assert (refused.status_code, refused.json()["code"]) == (403, "request.forbidden")
