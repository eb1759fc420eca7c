"""Schedules and webhooks over HTTP: each verb has a route, and each tenant its own."""

import inspect
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from perdure import Agent
from perdure.client.schedules import Schedules
from perdure.client.webhooks import Webhooks
from perdure.testing import Script, ScriptedProvider, say
from tests.gateway import Door, gateway, token_lines
from tests.house import House, eventually
from tests.receiver import Receiver

AGENT = Agent(name="tester", model="openai/scripted")

NIGHTLY = {"id": "nightly", "cron": "0 7 * * 1-5", "agent": "tester", "prompt": "Summarise the day."}

ROUTES: dict[type, dict[str, str]] = {
    Schedules: {
        "add": "POST /v1/schedules",
        "list": "GET /v1/schedules",
        "get": "GET /v1/schedules/{schedule}",
        "update": "PATCH /v1/schedules/{schedule}",
        "remove": "DELETE /v1/schedules/{schedule}",
        "pause": "POST /v1/schedules/{schedule}/pause",
        "unpause": "POST /v1/schedules/{schedule}/unpause",
        "trigger": "POST /v1/schedules/{schedule}/trigger",
        "runs": "GET /v1/schedules/{schedule}/runs",
    },
    Webhooks: {
        "add": "POST /v1/webhooks",
        "list": "GET /v1/webhooks",
        "get": "GET /v1/webhooks/{webhook}",
        "remove": "DELETE /v1/webhooks/{webhook}",
        "pause": "POST /v1/webhooks/{webhook}/pause",
        "unpause": "POST /v1/webhooks/{webhook}/unpause",
        "exchange_secret": "POST /v1/webhooks/{webhook}/secret",
        "test": "POST /v1/webhooks/{webhook}/test",
        "deliveries": "GET /v1/webhooks/{webhook}/deliveries",
        "redrive": "POST /v1/webhooks/{webhook}/redrive",
    },
}
"""The route of each method of the client."""


@pytest.fixture
async def receiver(house: House) -> AsyncIterator[Receiver]:
    """A receiver that workers and the gateway allow."""
    async with Receiver.listening() as listening:
        house.settings = house.settings.model_copy(update={"webhook_allow": ("*", listening.origin)})
        yield listening


async def test_every_verb_has_a_route_and_every_route_a_verb(house: House) -> None:
    async with gateway(house) as door:
        document = (await door.http.get("/openapi.json")).json()
    for kind, routes in ROUTES.items():
        methods = {name for name, _ in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")}
        parts = {"of", "names", "describe", "delete_session"}  # of the routes of lists, and of that of a session
        assert methods - parts == routes.keys()
        below = f"/v1/{kind.__name__.lower()}"
        found = {
            f"{method.upper()} {path}"
            for path, operations in document["paths"].items()
            for method in operations
            if path.startswith(below)
        }
        assert found == set(routes.values())


async def test_a_webhook_is_made_tried_told_and_removed(house: House, receiver: Receiver) -> None:
    async with ScriptedProvider(Script(replies=(say("done"),))) as provider, house.worker(AGENT):
        house.use(provider)
        async with gateway(house) as door:
            made = await door.http.post("/v1/webhooks", json={"url": receiver.url, "events": ["ended"]})
            assert made.status_code == 201, made.text
            added = made.json()
            at = f"/v1/webhooks/{added['id']}"
            assert (await door.http.post(f"{at}/test")).json()["state"] == "delivered"
            assert receiver.got[0].verified(added["secret"])["type"] == "webhook.test"
            await door.http.post("/v1/sessions", json={"agent": "tester", "prompt": "go", "session": house.session})

            async def delivered() -> list[dict[str, Any]]:
                found = await door.http.get(f"{at}/deliveries", params={"state": "delivered"})
                return [item for item in found.json()["items"] if item["message"] == f"{house.session}:1:ended"]

            (delivery,) = await eventually(delivered)
            again = await door.http.post(f"{at}/redrive", json={"message": delivery["message"]})
            assert again.json() == {"messages": [delivery["message"]]}
            assert (await door.http.post(f"{at}/pause")).json()["paused"]
            assert not (await door.http.post(f"{at}/unpause")).json()["paused"]
            changed = (await door.http.post(f"{at}/secret", json={"overlap": 0})).json()
            assert changed["secret"] not in {"", added["secret"]}
            shown = (await door.http.get("/v1/webhooks")).text + (await door.http.get(at)).text
            assert not any(secret in shown for secret in (added["secret"], changed["secret"]))
            assert (await door.http.delete(at)).status_code == 204
            gone = await door.http.get(at)
            assert (gone.status_code, gone.json()["code"]) == (404, "request.unknown_webhook")


async def test_a_schedule_is_made_changed_triggered_and_removed(house: House) -> None:
    name = f"nightly-{house.session[-6:]}"
    async with ScriptedProvider(Script(replies=(say("done"),))) as provider, house.worker(AGENT):
        house.use(provider)
        async with gateway(house) as door:
            made = await door.http.post("/v1/schedules", json={**NIGHTLY, "id": name, "budgets": {"cost_usd": 1}})
            assert (made.status_code, made.json()["by"]) == (201, "local"), made.text
            twice = await door.http.post("/v1/schedules", json={**NIGHTLY, "id": name})
            assert (twice.status_code, twice.json()["code"]) == (409, "request.conflict")
            at = f"/v1/schedules/{name}"
            changed = await door.http.patch(at, json={"timezone": "Europe/Berlin", "catchup": 60})
            body = changed.json()
            assert (body["timezone"], body["catchup"], body["prompt"]) == ("Europe/Berlin", 60, NIGHTLY["prompt"])
            assert (await door.http.post(f"{at}/pause", json={"note": "holidays"})).json()["reason"] == "holidays"
            assert not (await door.http.post(f"{at}/unpause")).json()["paused"]
            assert (await door.http.post(f"{at}/trigger")).status_code == 202

            async def ended() -> list[dict[str, Any]]:
                found: list[dict[str, Any]] = (await door.http.get(f"{at}/runs")).json()["items"]
                return [run for run in found if run["state"] == "ended"]

            (run,) = await eventually(ended)
            assert (await door.http.get(f"/v1/sessions/{run['session']}")).json()["agent"] == "tester"

            async def listed() -> bool:
                return name in (await door.http.get("/v1/schedules")).text

            await eventually(listed)
            assert (await door.http.delete(at)).status_code == 204
            gone = await door.http.get(at)
            assert (gone.status_code, gone.json()["code"]) == (404, "request.unknown_schedule")


async def test_another_tenants_schedules_and_webhooks_are_not_there(house: House) -> None:
    lines, tokens = token_lines(ann=("acme", "admin"), eve=("evil", "admin"), reads=("acme", "read"))
    await house.store.register_agents([AGENT.definition])
    async with (
        gateway(house, gateway_tokens=lines) as door,
        door.holder(tokens["ann"]) as ann,
        door.holder(tokens["eve"]) as eve,
        door.holder(tokens["reads"]) as reads,
    ):
        webhook = (await ann.post("/v1/webhooks", json={"url": "https://example.com/hook"})).json()
        assert webhook["tenant"] == "acme"
        assert (await ann.post("/v1/schedules", json=NIGHTLY)).status_code == 201
        await check_foreign(door, eve, webhook["id"])
        for scoped in (reads.get("/v1/webhooks"), reads.post("/v1/schedules", json=NIGHTLY)):
            assert (await scoped).status_code == 403
        assert (await ann.get(f"/v1/webhooks/{webhook['id']}")).json()["paused"] is False
        assert (await ann.delete("/v1/schedules/nightly")).status_code == 204


async def check_foreign(door: Door, eve: httpx.AsyncClient, webhook: str) -> None:
    """No route that names one answers for another tenant's, and lists have none."""
    document = (await door.http.get("/openapi.json")).json()
    for path, operations in document["paths"].items():
        for method in operations:
            if "{webhook}" in path or "{schedule}" in path:
                named = path.replace("{webhook}", webhook).replace("{schedule}", "nightly")
                found = await eve.request(method.upper(), named, json={} if method in {"post", "patch"} else None)
                assert found.status_code == 404, (method, path, found.text)
    for path in ("/v1/webhooks", "/v1/schedules"):
        assert (await eve.get(path)).json()["items"] == []


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/v1/webhooks", {"url": "http://10.0.0.1/"}, "has no TLS"),
        ("/v1/webhooks", {"url": "https://10.0.0.1/"}, "not a public address"),
        ("/v1/webhooks", {"url": "https://example.com", "secret": "mine"}, "secret: "),
        ("/v1/webhooks", {"url": "https://example.com", "tenant": "other"}, "tenant: "),
        ("/v1/webhooks", {"url": "https://example.com", "events": []}, "events: "),
        ("/v1/schedules", {**NIGHTLY, "cron": "99 7 * * *"}, "cron: "),
        ("/v1/schedules", {**NIGHTLY, "cron": None, "at": "9999-12-31T23:59:59"}, "at: "),
        ("/v1/schedules", {**NIGHTLY, "cron": None, "at": "2099-12-31T23:59:59-14:00"}, ""),
        ("/v1/schedules", {**NIGHTLY, "cron": None, "at": "2001-01-01T00:00:00"}, "at: "),
        ("/v1/schedules", {**NIGHTLY, "session": "s"}, "say for whom"),
        ("/v1/schedules", {**NIGHTLY, "id": "../x"}, "id: "),
        ("/v1/schedules", {**NIGHTLY, "tenant": "other"}, "tenant: "),
        ("/v1/schedules", {**NIGHTLY, "by": "the boss"}, "by: "),
        ("/v1/schedules", {**NIGHTLY, "timezone": "../../etc/passwd"}, "there is no time zone"),
        ("/v1/schedules", {**NIGHTLY, "agent": None, "session": "nowhere"}, "there is no session"),
    ],
)
async def test_what_is_wrong_is_a_problem_document_and_nothing_is_made(
    house: House, path: str, body: dict[str, Any], said: str
) -> None:
    lines, tokens = token_lines(ann=(house.session, "admin"))
    async with gateway(house, gateway_tokens=lines) as door, door.holder(tokens["ann"]) as ann:
        found = await ann.post(path, json=body)
        problem = found.json()
        if said:
            assert found.status_code in {404, 422}, found.text
            assert said in problem["detail"]
            assert (await ann.get(f"{path}/nightly")).status_code in {404, 422}
        else:
            assert found.status_code == 201
            await ann.delete(f"{path}/nightly")
