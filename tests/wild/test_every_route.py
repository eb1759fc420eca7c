"""Every route, and every place of it that holds an id: another tenant's is no other than one that does not exist.

Routes and places come from the application itself. A place whose name is not in the tables below fails the test, and so
does a route whose body nobody has said: so none is forgotten.
"""

import asyncio
import base64
import re
import sqlite3
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import product
from typing import Any, cast

import httpx
import pytest
from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute

from perdure import Agent, tool
from perdure.contracts.a2a import TaskId
from perdure.gateway.access import GatewayOf, Reader, SessionId
from perdure.gateway.bodies import Body, Router
from perdure.gateway.doors import DOORS, open_doors
from perdure.gateway.doors.a2a.routes import METHODS
from perdure.gateway.doors.responses.places import ResponseId
from perdure.testing import ChatRequest, Reply, ScriptedProvider, call, say
from tests.gateway import Door, gateway, token_lines
from tests.house import House, eventually
from tests.pictures import png_of

MARKER = "waterfall"
"""A word that stands wherever acme may write one, and in no answer to anybody else."""

ANSWER_SECONDS = 60.0
"""Bound of one answer; a stranger is refused at once."""

SESSION, REQUEST, ARTIFACT, SCHEDULE = "session", "request", "artifact", "schedule"
WEBHOOK, MESSAGE, BLOCK, KEY, TENANT, FREE = "webhook", "message", "block", "key", "tenant", "free"

PLACES: Mapping[str, str] = {
    "session": SESSION,
    "caller": SESSION,
    "request": REQUEST,
    "approval": REQUEST,
    "artifact": ARTIFACT,
    "schedule": SCHEDULE,
    "webhook": WEBHOOK,
    "message": MESSAGE,
    "block": BLOCK,
    "Idempotency-Key": KEY,
    "into": SESSION,
    "text": SESSION,
    "agent": FREE,
    "id": SCHEDULE,
    "tenant": TENANT,
}
"""What may be of another tenant, by the name of the parameter or field; agents are the whole fleet's."""

HARMLESS = frozenset(
    (
        *("after", "types", "gap_policy", "tree", "deltas", "last-event-id", "state", "stop_reason", "reason_code"),
        *("since", "delegates", "limit", "cursor", "histories", "turn", "prefer", "format", "lifted", "ended"),
        *(
            "action",
            "value",
            "reason",
            "digest",
            "always",
            "until",
            "model",
            "everything",
            "dry_run",
            "keep_running",
            "drop_queue",
        ),
        *("guidance", "request_id", "end", "max_steps", "cost_usd", "llm_calls", "tool_calls", "behavior_calls"),
        *("events", "seconds", "patches", "depth", "budgets", "priority", "context", "recording", "definition"),
        *("prompt", "at", "when_busy", "note", "cron", "timezone", "jitter", "catchup", "paused", "overlap"),
        *("history", "tools", "error", "url", "agents", "payloads", "x-namespace", "force", "per_second"),
        *("output_schema", "tool_choice", "generate_params", "stop_for_results"),
    )
)
"""Names of places that hold no id, or one that counts within a session or a token only."""

ID_LIKE = re.compile(r"(?:^|_)(?:session|artifact|schedule|webhook|block|tenant|into|caller|handle)s?(?:_id)?$")
"""Names of fields deeper in a body that look like places."""

DEEPER = frozenset({"artifact", "artifacts"})
"""Such fields that hold nothing of a store: parts of a message that is sent along."""

CRON = {"cron": "@yearly", "agent": "tester", "prompt": "x"}
BODIES: Mapping[str, Mapping[str, Any]] = {
    "start_session": {"agent": "tester", "prompt": "x"},
    "fork_session": {"prompt": "x"},
    "send_message": {"prompt": "x"},
    "resume_sessions": {"dry_run": False},
    "resume_session": {"prompt": "x"},
    "compact_session": {},
    "cancel_session": {},
    "extend_turn": {"max_steps": 9},
    "reply_to_request": {"action": "approve"},
    "submit_result": {"value": "x"},
    "pause_session": {},
    "cancel_sessions": {"dry_run": False},
    "block_turns": {"agent": "nobody"},
    "add_schedule": {"id": "mine", **CRON},
    "update_schedule": {"note": "x"},
    "pause_schedule": {},
    "unpause_schedule": {},
    "add_webhook": {"url": "https://example.com/hook"},
    "exchange_webhook_secret": {},
    "redrive_webhook": {},
}
"""A body that each route takes."""

KEYS = tuple(f"key-{number}" for number in range(8))

TENANTLESS = frozenset({"decode_payloads", "encode_payloads"})
"""Routes that look into every tenant, which is why their scope is no part of ``admin``."""


@tool(requires_approval=True)
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


HELPER = Agent(name="helper", model="openai/scripted", description="Helps.")
AGENTS = (
    Agent(name="tester", model="openai/scripted"),
    Agent(name="payer", model="openai/scripted", tools=[pay]),
    Agent(name="lead", model="openai/scripted", delegates=[HELPER]),
    HELPER,
)


def answer(request: ChatRequest) -> Reply:
    names = {str(offered["function"]["name"]) for offered in request.tools}  # type: ignore[index, call-overload]
    if request.messages[-1]["role"] == "user":
        if "pay" in names:
            return call(("pay", {"amount": 5}))
        if "helper" in names:
            return call(("helper", {"query": MARKER}))
    return say(f"a {MARKER}")


@dataclass(frozen=True)
class Place:
    """A parameter or a field of a route."""

    method: str
    path: str
    operation: str
    name: str
    where: str
    others: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return f"{self.method.upper()} {self.path} {self.where} {self.name}"


@dataclass
class Acme:
    """What a tenant has: ids by their kinds; of those of one form, one of them stands for all where ids are tried."""

    ids: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    of_one_form: frozenset[str] = frozenset()

    def every(self) -> list[str]:
        return [known for kind in (SESSION, REQUEST, ARTIFACT, BLOCK) for known in self.ids[kind]]


def resolve(document: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The model of a body, without a null beside it."""
    for one in (schema, *schema.get("anyOf", ())):
        if "$ref" in one:
            found: Mapping[str, Any] = document["components"]["schemas"][one["$ref"].rpartition("/")[2]]
            return found
    return schema


def fields_below(document: Mapping[str, Any], schema: Any, seen: frozenset[str] = frozenset()) -> Iterator[str]:
    """The names of all fields in a body, however deep."""
    if isinstance(schema, list):
        for part in schema:  # pyright: ignore[reportUnknownVariableType]
            yield from fields_below(document, part, seen)
    elif isinstance(schema, dict):
        schema = cast("dict[str, Any]", schema)
        if (ref := schema.get("$ref")) is not None and ref not in seen:
            yield from fields_below(document, document["components"]["schemas"][ref.rpartition("/")[2]], seen | {ref})
        properties = schema.get("properties", {})
        yield from properties
        yield from fields_below(document, [part for name, part in schema.items() if name != "properties"], seen)
        yield from fields_below(document, list(properties.values()), seen)


def places(document: Mapping[str, Any]) -> list[Place]:
    """Every place of every route below ``/v1`` that may hold another tenant's id.

    Raises:
        AssertionError: The tables above do not know a name, or a body.
    """
    found: list[Place] = []
    for path, operations in document["paths"].items():
        if not path.startswith(("/v1/", "/codec/")):
            continue
        for method, operation in operations.items():
            route = operation["operationId"]
            if route in TENANTLESS:
                continue
            schema = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
            fields = list(resolve(document, schema).get("properties", {})) if schema is not None else []
            assert schema is None or route in BODIES, f"{route}: say in BODIES what body it takes"
            deeper = {name for name in fields_below(document, schema) if ID_LIKE.search(name)} - {*fields} - DEEPER
            assert not deeper, f"{route}: {deeper} look like ids; try them, or say in DEEPER that they are none"
            told = [(one["name"], one["in"]) for one in operation.get("parameters", [])]
            for place, where in (*told, *((name, "body") for name in fields)):
                assert place in PLACES or place in HARMLESS, f"{route}: put {place!r} into PLACES or HARMLESS"
                if place in PLACES and PLACES[place] != FREE:
                    found.append(Place(method, path, route, place, where, frozenset(fields)))
    return found


def alike(known: str, number: int) -> str:
    """An id of the same form that nobody has, another for each number."""
    other = re.sub(r"(~[a-z])?([0-9a-f]{8,})", lambda found: f"{found[1] or ''}{number:0{len(found[2])}x}", known)
    if other != known:
        return other
    return f"{known}{number}" if ":" in known or "-" in known else f"x{number}"


def outcome(answered: httpx.Response, tried: str) -> tuple[object, ...]:
    """What an answer tells: of a refusal every word but the id, of a success what fields and how many items it has."""
    headers = {name for name in answered.headers if name not in {"content-length", "date"}}
    if answered.status_code >= 400:
        return answered.status_code, answered.text.replace(tried, "…"), headers
    is_json = "json" in answered.headers.get("content-type", "")
    told: dict[str, Any] = answered.json() if answered.content and is_json else {}
    items = told.get("items")
    return answered.status_code, sorted(told), None if items is None else len(items), headers


class Stranger:
    """Another tenant's admin, who tries ids."""

    def __init__(self, http: httpx.AsyncClient, own: str) -> None:
        self.http = http
        self.own = own
        self.told: list[str] = []

    async def send(self, place: Place, tried: str, beside: Mapping[str, str]) -> httpx.Response:
        """A request with this id in the place, and what fits beside it in the others."""
        path = place.path
        if place.where == "path":
            path = path.replace(f"{{{place.name}}}", tried)
        in_session = self.own if place.where != "path" or place.name != "session" else tried
        for name, value in {**beside, "session": in_session, "turn": "1"}.items():
            path = path.replace(f"{{{name}}}", value)
        query = {place.name: tried} if place.where == "query" else {}
        headers = {place.name: tried} if place.where == "header" else {}
        body: dict[str, Any] | None = None
        if place.operation in BODIES:
            body = {**BODIES[place.operation]}
            if place.where == "body":
                body[place.name] = tried
                if place.name == "session" and "cron" in place.others:
                    body["agent"] = None
        if place.method == "delete" and place.where == "path" and place.name == "session":
            query["histories"] = "true"
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                found = await self.http.request(place.method.upper(), path, params=query, headers=headers, json=body)
        except TimeoutError:
            msg = f"{place}: the answer to a stranger does not end, as the stream of an open session does not"
            raise AssertionError(msg) from None
        self.told.append(found.text.replace(tried, "…"))
        if found.status_code == 201:  # which is one's own now, and would be listed with what was tried
            await self.http.delete(f"{place.path}/{found.json()['id']}")
        if found.status_code == 202 and "turn" in (begun := found.json()):  # the next request finds it idle again
            ended = f"/v1/sessions/{begun['session']}/turns/{begun['turn']}"
            await self.http.get(ended, headers={"Prefer": "wait=60"})
        return found

    async def compare(self, place: Place, theirs: str, beside: Mapping[str, str]) -> None:
        """Try an id of theirs, and one that nobody has.

        Raises:
            AssertionError: The answers differ, but for a new session's id, which somebody may have.
        """
        unknown = alike(theirs, len(self.told))
        seen = outcome(await self.send(place, theirs, beside), theirs)
        missing = outcome(await self.send(place, unknown, beside), unknown)
        if place.where == "body" and place.operation in {"start_session", "fork_session"} and missing[0] == 202:
            assert (seen[0], '"request.unknown_session"' in str(seen[1])) == (404, True), (str(place), theirs, seen)
            return
        assert seen == missing, (str(place), theirs, seen, missing)


@asynccontextmanager
async def two_tenants(house: House) -> AsyncIterator[tuple[Door, httpx.AsyncClient, httpx.AsyncClient]]:
    lines, tokens = token_lines(ann=("acme", "admin"), eve=("evil", "admin"))
    async with (
        ScriptedProvider(answer) as provider,
        house.worker(*AGENTS),
        gateway(house, gateway_tokens=lines, gateway_max_requests=0, doors=("a2a", "agui", "responses")) as door,
        door.holder(tokens["ann"]) as ann,
        door.holder(tokens["eve"]) as eve,
    ):
        house.use(provider)
        yield door, ann, eve


async def post(http: httpx.AsyncClient, path: str, **body: object) -> dict[str, Any]:
    answered = await http.post(f"/v1{path}", json=body)
    assert answered.is_success, answered.text
    told: dict[str, Any] = answered.json()
    return told


async def settle(house: House, acme: httpx.AsyncClient, name: str) -> Acme:
    """Let a tenant have one of everything."""
    image = {"url": f"data:image/png;base64,{base64.b64encode(png_of()).decode()}"}
    prompt = [{"type": "text", "text": MARKER}, {"type": "image_url", "image_url": image}]
    await post(acme, "/sessions", agent="tester", prompt=prompt, session="hers", context={"note": MARKER})
    await (await house.client.attach("hers", 1)).result()
    await post(acme, "/sessions", agent="payer", prompt=MARKER, session="asks")

    async def waits() -> list[Any]:
        return list((await acme.get("/v1/inbox")).json()["items"])

    (request,) = await eventually(waits)
    await post(acme, "/sessions", agent="payer", prompt=MARKER, session="stands")

    async def asks_too() -> list[Any]:
        return [each for each in await waits() if each["session"] == "stands"]

    (given,) = await eventually(asks_too)
    always = {"action": "approve", "always": "tool", "reason": MARKER}
    await post(acme, f"/sessions/stands/answers/{given['request_id']}", **always)
    await (await house.client.attach("stands", 1)).result()
    await post(acme, "/sessions", agent="lead", prompt=MARKER, session="leads")
    await (await house.client.attach("leads", 1)).result()
    keyed: list[str] = []
    for key in KEYS:
        body = {"agent": "tester", "prompt": MARKER}
        begun = await acme.post("/v1/sessions", json=body, headers={"Idempotency-Key": key})
        keyed.append(begun.json()["session"])
        await (await house.client.attach(keyed[-1], 1)).result()
    await post(acme, "/schedules", id=name, **{**CRON, "prompt": MARKER})
    await post(acme, f"/schedules/{name}/trigger")

    async def ended() -> list[Any]:
        runs = (await acme.get(f"/v1/schedules/{name}/runs")).json()["items"]
        return [run for run in runs if run["state"] == "ended"]

    (run,) = await eventually(ended)
    webhook = await post(acme, "/webhooks", url=f"https://{MARKER}.example/hook")
    await post(acme, f"/webhooks/{webhook['id']}/pause")
    block = await post(acme, "/blocks", agent="somebody", reason=MARKER)
    sessions = [row["session"] for row in (await acme.get("/v1/sessions?limit=500")).json()["items"]]
    assert run["session"] in sessions
    assert any(".helper~d" in session for session in sessions)
    steps = (await acme.get("/v1/sessions/hers/steps")).text
    artifact = next(iter(re.findall(r'"artifact":"([^"]+)"', steps)))
    derived = [f"knock:{name}", "perdure-retention", f"temporal-sys-scheduler:perdure:acme:{name}"]
    return Acme(
        {
            SESSION: [*sessions, *derived],
            REQUEST: [request["request_id"], given["request_id"]],
            ARTIFACT: [artifact],
            SCHEDULE: [name],
            WEBHOOK: [webhook["id"]],
            MESSAGE: [f"{webhook['id']}:hers:1:ended"],
            BLOCK: [block["block"]["id"]],
            KEY: [*KEYS],
            TENANT: ["acme"],
        },
        frozenset(keyed[1:]),
    )


async def state_of(house: House, acme: Acme, http: httpx.AsyncClient) -> dict[str, object]:
    """All that is kept of a tenant: its rows, its runs, and what it is told."""
    told: dict[str, object] = {}
    with sqlite3.connect(house.folder / "store.db") as store:
        for (table,) in store.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            rows = [repr(row) for row in store.execute(f'SELECT * FROM "{table}"').fetchall()]
            told[table] = sorted(row for row in rows if "acme" in row or any(known in row for known in acme.every()))
    for session in acme.ids[SESSION]:
        runs = [run async for run in house.temporal.list_workflows(f'WorkflowId = "{session}"')]
        told[f"runs of {session}"] = sorted((run.run_id, str(run.status)) for run in runs)
    for path in (f"/schedules/{acme.ids[SCHEDULE][0]}", "/schedules", "/webhooks", "/blocks", "/inbox", "/sessions"):
        told[path] = (await http.get(f"/v1{path}")).json()
    return told


async def strike(house: House, door: Door, acme: Acme, eve: httpx.AsyncClient) -> Stranger:
    """Try every id of the tenant at every place."""
    await post(eve, "/sessions", agent="tester", prompt="x", session="own")
    await (await house.client.attach("own", 1)).result()
    stranger = Stranger(eve, "own")
    own = await post(eve, "/webhooks", url="https://example.com/hook")
    beside = {"webhook": own["id"], "schedule": "none", "block": "none", "request": "none", "artifact": "none"}
    beside |= {REQUEST: acme.ids[REQUEST][0], "approval": acme.ids[REQUEST][1], ARTIFACT: acme.ids[ARTIFACT][0]}
    for place in places(door.app.openapi()):
        kind = PLACES[place.name]
        for theirs in [acme.ids[KEY].pop()] if kind == KEY else acme.ids[kind]:  # a key is one's own once it was sent
            if theirs not in acme.of_one_form:
                await stranger.compare(place, theirs, beside)
    return stranger


async def test_no_route_tells_or_changes_anything_of_another_tenant(house: House) -> None:
    """T-01 T-02."""
    name = f"nightly-{house.session[-6:]}"
    async with two_tenants(house) as (door, ann, eve):
        acme = await settle(house, ann, name)
        before = await state_of(house, acme, ann)
        try:
            stranger = await strike(house, door, acme, eve)
            for path, operations in door.app.openapi()["paths"].items():
                if "get" in operations and path.startswith("/v1/") and "{" not in path:
                    stranger.told.append((await eve.get(path)).text)
            for path in ("/cancel", "/resume"):
                await post(eve, path, dry_run=False)
                named = await eve.post(f"/v1{path}", json={"tenant": "acme", "dry_run": False})
                assert (named.status_code, named.json()["code"]) == (403, "request.forbidden")
            await post(eve, "/blocks", everything=True, reason="x")
            for told in stranger.told:
                assert MARKER not in told
                assert not any(known in told for known in acme.every() if len(known) > 6), told
            assert await state_of(house, acme, ann) == before
        finally:
            for http in (ann, eve):
                for schedule in (await http.get("/v1/schedules")).json()["items"]:
                    await http.delete(f"/v1/schedules/{schedule['id']}")
        await post(eve, "/webhooks", url="https://example.com/hook", session="hers")
        assert (await ann.post("/v1/sessions/hers/messages", json={"prompt": "on"})).status_code == 202
        await (await house.client.attach("hers", 2)).result()
        for webhook in (await eve.get("/v1/webhooks")).json()["items"]:
            deliveries = (await eve.get(f"/v1/webhooks/{webhook['id']}/deliveries")).text
            assert "hers" not in deliveries


AT_DOORS: Mapping[str, Mapping[str, Any]] = {
    "create_response": {"model": "tester", "input": "x"},
    "create_conversation": {},
    "create_chat_completion": {"model": "tester", "messages": [{"role": "user", "content": "x"}]},
    "run_agent": {"runId": "r2", "messages": [{"id": "m1", "role": "user", "content": "x"}]},
    "call_a2a_method": {"jsonrpc": "2.0", "id": 1},
    "send_a2a_message": {},
    "stream_a2a_message": {},
    "cancel_a2a_task": {},
    "create_a2a_push": {},
}
"""A body of each route of a door, which no document has."""

PLACES_AT_DOORS: Mapping[str, frozenset[str]] = {
    "responses": frozenset({"response", "session", "previous_response_id", "conversation"}),
    "a2a": frozenset({"task"}),
    "chat": frozenset(),
    "agui": frozenset({"session", "run"}),
}
"""What may be of another tenant there, by door; a model is an agent of the fleet."""

FREE_AT_DOORS = {"model", "agent", "config", "item"}
"""What is of no tenant by itself; an item is one of its session."""


def places_at_doors(name: str) -> Iterator[tuple[str, str, str]]:
    """The method, the path and the place of each id at a door.

    Raises:
        AssertionError: The tables do not know a route or a name.
    """
    (door,) = open_doors([name])
    for route in door.router.routes:
        assert isinstance(route, APIRoute)
        method = min(route.methods or {""})
        named = set(re.findall(r"\{(\w+)", route.path))
        assert named <= PLACES_AT_DOORS[name] | FREE_AT_DOORS, route.path
        if name == "agui":  # a run is one of its thread: see the test below
            continue
        assert route.body_field is None or route.operation_id in AT_DOORS, f"{route.operation_id}: say its body"
        for place in named - FREE_AT_DOORS:
            yield method, route.path, place
        if route.operation_id == "create_response":
            yield from ((method, route.path, place) for place in ("previous_response_id", "conversation"))


def test_the_tables_have_every_door_of_the_gateway() -> None:
    assert PLACES_AT_DOORS.keys() == DOORS.keys()
    assert not [*places_at_doors("chat")]  # ids of calls alone, in messages: see the tests of the door


async def test_no_route_of_a_door_tells_or_changes_anything_of_another_tenant(house: House) -> None:
    """T-01."""
    async with two_tenants(house) as (_, ann, eve):
        asked: dict[str, Any] = {"model": "tester", "input": MARKER, "conversation": "hers"}
        hers = (await ann.post("/openai/v1/responses", json=asked)).json()
        waits = (
            await ann.post("/openai/v1/responses", json={**asked, "model": "payer", "conversation": "asks"})
        ).json()
        assert (hers["status"], waits["output"][-1]["type"]) == ("completed", "mcp_approval_request")
        approval = {"type": "mcp_approval_response", "approval_request_id": waits["output"][-1]["id"], "approve": True}
        tried = [*places_at_doors("responses")]
        assert len(tried) == 12
        for number, (theirs, said, (method, path, place)) in enumerate(
            product((hers, waits), ("x", [approval]), tried)
        ):
            is_session = place in {"session", "conversation"}
            known = theirs["conversation"]["id"] if is_session else theirs["id"]
            unknown = f"nobody-{number}" if is_session else str(ResponseId(f"nobody-{number}", 1))
            told: list[tuple[int, str]] = []
            for one in (known, unknown):
                body = {**AT_DOORS["create_response"], place: one, "input": said} if "{" not in path else None
                item = theirs["output"][-1]["id"]
                answered = await eve.request(
                    method, path.replace(f"{{{place}}}", one).replace("{item}", item), json=body
                )
                told.append((answered.status_code, answered.text.replace(one, "…")))
            if (place, said) == ("conversation", "x"):  # a new one, which somebody may have
                assert [status for status, _ in told] == [404, 200]
            else:
                assert told[0] == told[1], (method, path, place)
        assert [len((await ann.get(f"/v1/sessions/{name}/turns")).json()["items"]) for name in ("hers", "asks")] == [
            1,
            1,
        ]
        assert len((await ann.get("/v1/inbox")).json()["items"]) == 1


async def test_no_thread_of_agui_tells_or_changes_anything_of_another_tenant(house: House) -> None:
    """T-01."""
    async with two_tenants(house) as (_, ann, eve):
        mine = {**AT_DOORS["run_agent"], "runId": "r1"}
        for agent, thread in (("tester", "hers"), ("payer", "asks")):
            begun = await ann.post(f"/agui/{agent}", json={**mine, "threadId": thread})
            assert "RUN_FINISHED" in begun.text
        (request,) = (await ann.get("/v1/inbox")).json()["items"]
        resume = [{"interruptId": request["request_id"], "status": "resolved", "payload": {"approved": True}}]
        (door,) = open_doors(["agui"])
        for route in door.router.routes:
            assert isinstance(route, APIRoute)
            method = min(route.methods or {""})
            for agent, thread in (("tester", "hers"), ("payer", "asks")):
                for run in ("r1", "1.1") if "{run}" in route.path else ("r1",):
                    told: list[tuple[int, str]] = []
                    for one in (thread, "nobody"):
                        path = route.path.format(agent=agent, session=one, run=run)
                        run_body = {**AT_DOORS["run_agent"], "threadId": one, "resume": resume}
                        body = {"runId": run} if "/stop/" in route.path else run_body
                        answered = await eve.request(method, path, json=body if method == "POST" else None)
                        told.append((answered.status_code, answered.text.replace(one, "…")))
                    assert told[0] == told[1], (method, route.path)
                    assert MARKER not in told[0][1]
                    is_new = route.path.endswith(("/info", "/connect"))  # as a thread that nobody has begun
                    assert told[0][0] == (200 if is_new else 404), (method, route.path)
        taken = await eve.post("/agui/tester", json={**mine, "threadId": "hers"})
        assert taken.status_code == 404
        assert MARKER not in taken.text
        assert len((await ann.get("/v1/inbox")).json()["items"]) == 1
        assert len((await ann.get("/v1/sessions/hers/turns")).json()["items"]) == 1


async def test_no_task_of_an_agent_tells_or_changes_anything_of_another_tenant(house: House) -> None:
    """T-01."""
    version = {"A2A-Version": "1.0"}

    def message(**fields: str) -> dict[str, Any]:
        parts = [{"data": {"request": "call_x", "approve": True}}] if "taskId" in fields else [{"text": MARKER}]
        return {"message": {"messageId": "m-1", "role": "ROLE_USER", "parts": parts, **fields}}

    async with two_tenants(house) as (_, ann, eve):
        sent = await ann.post("/a2a/payer/message:send", json=message(contextId="asks"), headers=version)
        task, tried = sent.json()["task"], [*places_at_doors("a2a")]
        assert (task["status"]["state"], len(tried)) == ("TASK_STATE_INPUT_REQUIRED", 8)
        unknown = str(TaskId("nobody", 1))
        seen: list[list[tuple[int, str]]] = []
        for one in (task["id"], unknown):
            paths = [(method, path.replace("{task}", one), None) for method, path, _ in tried]
            told = [
                await eve.request(method, path.format(agent="payer", config="c"), json=body, headers=version)
                for method, path, body in paths
            ]
            asked: list[dict[str, Any]] = [
                *({"method": name, "params": {"id": one, "taskId": one}} for name in METHODS if name != "ListTasks"),
                *({"method": name, "params": message(taskId=one)} for name in ("SendMessage", "SendStreamingMessage")),
            ]
            for call_of in asked:
                body = {**AT_DOORS["call_a2a_method"], **call_of}
                told.append(await eve.post("/a2a/payer", json=body, headers=version))
            told += [
                await eve.post(f"/a2a/payer/message:{route}", json=message(taskId=one), headers=version)
                for route in ("send", "stream")
            ]
            seen.append([(answered.status_code, answered.text.replace(one, "…")) for answered in told])
        assert seen[0] == seen[1]
        assert all("error" in text for _, text in seen[0])
        for route in ("send", "stream"):
            taken = await eve.post(f"/a2a/payer/message:{route}", json=message(contextId="asks"), headers=version)
            assert (taken.status_code, "request.unknown_session" in taken.text) == (404, True)
        listed = await eve.get("/a2a/payer/tasks?contextId=asks&historyLength=9&includeArtifacts=true", headers=version)
        assert (listed.json()["totalSize"], MARKER in listed.text) == (0, False)
        assert len((await ann.get("/v1/sessions/asks/turns")).json()["items"]) == 1
        assert len((await ann.get("/v1/inbox")).json()["items"]) == 1


planted = APIRouter(prefix="/v1")


@planted.get("/peek/{session}")
async def peek(_: Reader, session: SessionId, gateway: GatewayOf) -> dict[str, object]:
    """A route that forgets whose session it is."""
    store = await gateway.client.store()
    return {"agent": (await store.session(session)).agent}


async def test_every_tenant_sees_the_agents_of_the_fleet(house: House) -> None:
    """T-14."""
    async with two_tenants(house) as (_, ann, eve):
        seen = [(await http.get("/v1/agents")).json() for http in (ann, eve)]
        assert seen[0] == seen[1]
        assert len(seen[0]["items"]) == len(AGENTS)


async def test_a_route_without_the_check_is_found(house: House) -> None:
    async with two_tenants(house) as (door, ann, eve):
        await post(ann, "/sessions", agent="tester", prompt=MARKER, session="hers")
        await (await house.client.attach("hers", 1)).result()
        door.app.include_router(planted)
        (place,) = [found for found in places(door.app.openapi()) if found.path.startswith("/v1/peek/")]
        with pytest.raises(AssertionError, match=r"GET /v1/peek/\{session\} path session"):
            await Stranger(eve, "own").compare(place, "hers", {})


class PlantedBody(Body):
    """A body that nobody has thought of."""

    tenant_session: str = ""


@pytest.mark.parametrize(("said", "path"), [("put 'folder' into PLACES", "/{folder}"), ("say in BODIES what body", "")])
def test_a_place_or_a_body_that_nobody_has_thought_of_is_found(said: str, path: str) -> None:
    router = Router(prefix="/v1")
    if path:

        async def look(folder: str) -> None:
            del folder

        router.add_api_route(f"/planted{path}", look)
    else:

        async def plant(body: PlantedBody) -> None:
            del body

        router.add_api_route("/planted", plant, methods=["POST"], operation_id="plant")
    app = FastAPI()
    app.include_router(router)
    with pytest.raises(AssertionError, match=re.escape(said)):
        places(app.openapi())
