"""Queries that no caller means: the ends of time, NUL, numbers that are none. Each was a 500, a 503 or silently null.

Seen in an attack on a running gateway: ``since`` in the year 1 with an offset, NUL in a filter on PostgreSQL. A filter
that was not in UTF-8 was looked for with other characters in its place.
"""

import asyncio
import base64
import json
import logging
import re
from collections.abc import Iterator
from typing import Any

import pytest

from perdure import Agent
from perdure.gateway.audit import JsonLines
from perdure.store import Store
from perdure.testing import ScriptedProvider, say
from tests.gateway import Door, gateway, token_lines
from tests.house import House
from tests.wild.test_every_route import BODIES as BODIES_OF_ROUTES

AGENT = Agent(name="tester", model="openai/scripted")
JSON = {"Content-Type": "application/json"}

ODD = (
    "/v1/sessions?since=0001-01-01T00:00:00%2B14:00",
    "/v1/sessions?since=9999-12-31T23:59:59-14:00",
    "/v1/sessions?since=0001-01-01",
    "/v1/sessions?since=NaN",
    "/v1/sessions?agent=%00",
    "/v1/sessions?text=a%00b",
    "/v1/sessions?reason_code=%00",
    "/v1/sessions?caller=%00",
    "/v1/sessions?no%00such=1",
    "/v1/inbox?agent=a%00",
    "/v1/sessions?limit=1e999",
    "/v1/sessions?limit=%00",
    "/v1/sessions?state=%00&since=x",
    "/v1/agents?odd=%00",
    "/v1/sessions?agent=%ff",
    "/v1/sessions?text=%ed%a0%80",
    "/v1/inbox?agent=a%C3",
    "/v1/agents?%fe=1",
    "/v1/sessions?agnet=tester",
    "/v1/sessions?agent=a&agent=b",
    "/v1/sessions/s/turns?limit=5&limit=5",
    "/v1/sessions?=1",
    "/v1/whoami?x=1",
)


async def test_an_odd_query_is_refused_and_says_which_part(house: House) -> None:
    async with gateway(house) as door:
        for path in ODD:
            refused = await door.http.get(path)
            assert (refused.status_code, refused.json()["code"]) == (422, "request.invalid"), (path, refused.text)
        named = (await door.http.get("/v1/sessions?agnet=tester")).json()["detail"]
        assert named == "agnet: there is no such parameter; did you mean 'agent'? (query)"
        for since in ("0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z", "2026-01-01T00:00:00%2B02:00"):
            assert (await door.http.get(f"/v1/sessions?since={since}")).status_code == 200


async def test_an_odd_value_in_a_body_is_refused(house: House) -> None:
    await house.store.register_agents([AGENT.definition])
    start = {"agent": "tester", "prompt": "go"}
    bodies = [
        json.dumps({**start, "agent": "a\0b"}),
        json.dumps({**start, "context": {"a": float("nan")}}),
        json.dumps({**start, "context": {"a": float("-inf")}}),
        '{"agent": "tester", "prompt": "go", "context": {"a": 1e999}}',
        '{"agent": "tester", "prompt": "go", "max_steps": 1e999}',
        json.dumps({**start, "request_id": "a\0"}),
        json.dumps({**start, "model": "\0"}),
        json.dumps({**start, "agent": "\ud800"}),
        json.dumps({**start, "recording": "\0"}),
        json.dumps({**start, "turn": 10**30}),
        '{"agent": "a", "max_steps": ' + "9" * 5_000 + "}",
    ]
    async with gateway(house) as door:
        for body in bodies:
            refused = await door.http.post("/v1/sessions", content=body, headers=JSON)
            assert (refused.status_code, refused.json()["code"]) == (422, "request.invalid"), (body, refused.text)
        for since in ("0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "2026-01-01T00:00:00"):
            refused = await door.http.post("/v1/cancel", json={"since": since})
            assert (refused.status_code, refused.json()["code"]) == (422, "request.invalid"), refused.text


async def test_the_log_of_a_failure_nobody_foresaw_holds_no_part_of_the_request(
    house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """T-13: Where it happened stands there, also of its cause, and no text: it may be the caller's."""

    async def fails(*_: object, **__: object) -> None:
        try:
            int("canary-4711")
        except ValueError as error:
            raise OverflowError("canary-4711 failed") from error

    monkeypatch.setattr(Store, "agents", fails)
    async with gateway(house) as door:
        with caplog.at_level(logging.INFO):
            answer = await door.http.get("/v1/agents")
    assert (answer.status_code, answer.json()["code"]) == (500, "runtime.internal")
    (line,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert line.getMessage().startswith("a request failed: builtins.OverflowError in ")
    assert "builtins.ValueError in fails" in line.getMessage()
    assert "canary-4711" not in caplog.text


CANARY = "canary-4711"
_NAMES = ["X-Odd", "User-Agent", "Referer", "Idempotency-Key", "Last-Event-ID", "Prefer", "traceparent", "A2A-Version"]
HEADERS = dict.fromkeys([*_NAMES, f"X-{CANARY}"], CANARY) | {"Cookie": f"other={CANARY}", **JSON}
BODIES = (
    json.dumps({CANARY: CANARY}),
    "{" + CANARY,
    json.dumps({"agent": CANARY, "prompt": CANARY, "session": f"{CANARY}!"}),
)
QUERY = "&".join(f"{name}={CANARY}" for name in (CANARY, "limit", "agent", "since", "cursor", "text", "after"))
RAW = (
    f"GET /{CANARY} HTTP/9\r\n\r\n",
    f"{CANARY}\r\n\r\n",
    f"GET / HTTP/1.1\r\nHost: {CANARY}\r\n{CANARY}\r\n\r\n",
    f"POST /v1/sessions HTTP/1.1\r\nHost: a\r\nContent-Length: {CANARY}\r\n\r\n",
)
PATHS = (
    f"/{CANARY}",
    f"/v1/{CANARY}",
    f"/ui/static/{CANARY}",
    f"/ui/sessions/{CANARY}!",
    f"/agui/{CANARY}",
    f"/a2a/{CANARY}",
)


async def send_raw(door: Door, text: str) -> None:
    """Send bytes that are no request of HTTP, and read what is said to them."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(door.url.rpartition(":")[2]))
    writer.write(text.encode())
    writer.write_eof()
    await reader.read()
    writer.close()


async def test_no_log_holds_a_part_of_a_request(house: House, caplog: pytest.LogCaptureFixture) -> None:
    """T-13: Nor of its path, its method or its headers, whichever route refuses it; ids of sessions are no secret."""
    lines, tokens = token_lines(ann=("acme", "admin"))
    for library in ("httpx", "httpcore", "asyncio"):  # the test's own client
        caplog.set_level(logging.CRITICAL, library)
    caplog.set_level(logging.DEBUG)
    doors = ("responses", "agui", "a2a")
    async with gateway(house, gateway_tokens=lines, doors=doors) as door, door.holder(tokens["ann"]) as ann:
        documented = door.app.openapi()["paths"]
        operations = [(path, method) for path, methods in documented.items() for method in methods]
        for number, (path, method) in enumerate(operations):
            odd = re.sub(r"\{\w+\}", f"{CANARY}!%0A", path)
            for asked in (odd, f"{odd}?{QUERY}"):
                body = BODIES[number % len(BODIES)] if method != "get" else None
                answer = await ann.request(method.upper(), asked, content=body, headers=HEADERS)
                assert answer.status_code < 500, answer.text
        for path in PATHS:
            for method in ("GET", "POST", CANARY):
                assert (await ann.request(method, path, content=BODIES[0], headers=HEADERS)).status_code < 500
        for headers in ({"Authorization": f"Bearer {CANARY}"}, {"Host": CANARY}, {"Origin": f"http://{CANARY}"}):
            assert (await door.http.post(f"/v1/{CANARY}", headers=headers)).status_code in {401, 403}
        assert (await door.http.post("/ui/login", json={"token": CANARY})).status_code == 401
        for text in RAW:
            await send_raw(door, text)
        await ann.post("/v1/sessions/none/turns/7?x=1")
        await door.http.get("/v1/sessions/hers/steps")
    written = [JsonLines(frozenset()).format(record) for record in caplog.records]
    assert len(written) > 2 * len(operations)
    assert [line for line in written if CANARY in line.lower()] == []
    seen = {(line["method"], line["path"], line["status"]) for line in map(json.loads, written) if "path" in line}
    assert {
        ("POST", "/v1/sessions/none/turns/7", 405),
        ("GET", "/v1/sessions/{session}/steps", 401),
        ("other", "none", 404),
        ("POST", "/ui/static/{path}", 405),
    } <= seen


def test_a_token_that_was_taken_for_an_id_is_cut_out_of_the_log() -> None:
    token = "pdr_" + "A1b2C3d4" * 5
    record = logging.makeLogRecord(
        {"msg": f"GET /v1/sessions/{token} 404", "path": f"/v1/sessions/{token}", "session": token}
    )
    assert token not in JsonLines(frozenset({token})).format(record)
    assert token not in JsonLines(frozenset()).format(record)


NUMBERS = (-(2**63) - 1, -1, 0, 2**31, 2**53 + 1, 2**63, 10**30)
CURSORS = [
    base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")
    for text in (
        *("[1e999]", "[NaN]", "[-1]", f"[{10**30}]", "[true]", "[null]", "[[]]", "[{}]", "{}", '"x"', "[]", "[1, 2]"),
        *(
            '["x"]',
            '["\\\\u0000"]',
            '["\\\\ud800"]',
            '["2026", "\\\\u0000"]',
            '["2026-01-01T00:00:00", "x"]',
            "[" * 2_000,
        ),
        *(
            '["0001-01-01T00:00:00+14:00", "x"]',
            f'["2026-01-01T00:00:00+00:00", {10**30}]',
            '["9999-12-31T23:59:59-14:00", "x"]',
        ),
    )
]


def numbers_in(document: Any) -> Iterator[tuple[str, str, str, str]]:
    """Method, path, name and place of each number that a request may have."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            for one in operation.get("parameters", ()):
                if one["name"] == "turn" or '"integer"' in json.dumps(one["schema"]):
                    yield method, path, one["name"], one["in"]
            content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            for ref in re.findall(r'"#/components/schemas/(\\w+)"', json.dumps(content)):
                for name, field in document["components"]["schemas"][ref].get("properties", {}).items():
                    if re.search('"(?:integer|number)"', json.dumps(field)):
                        yield method, path, name, "body"


async def test_a_number_or_a_cursor_beyond_all_bounds_is_no_bug(house: House) -> None:
    """At every route, in its path, its query, its headers and its body, of a session that there is."""
    tried = 0
    async with ScriptedProvider(lambda _: say("done")) as provider, house.worker(AGENT), gateway(house) as door:
        house.use(provider)
        await (await house.client.start("tester", "go", session="hers")).result()
        document = door.app.openapi()
        for method, path, name, where in numbers_in(document):
            if method == "delete":
                continue
            operation = document["paths"][path][method]["operationId"]
            for number in NUMBERS:
                there = re.sub(r"\{(\w+)\}", lambda place: str(number) if place[1] == name else "hers", path)  # noqa: B023
                body = {**BODIES_OF_ROUTES.get(operation, {}), **({name: number} if where == "body" else {})}
                answer = await door.http.request(
                    method.upper(),
                    there,
                    params={name: number} if where == "query" else None,
                    headers={name: str(number)} if where == "header" else None,
                    json=None if method == "get" else body,
                )
                assert answer.status_code < 500, (method, there, body, answer.text)
                tried += 1
        for path, methods in document["paths"].items():
            named = [one["name"] for one in methods.get("get", {}).get("parameters", ())]
            for cursor in CURSORS if "cursor" in named else ():
                answer = await door.http.get(path.replace("{session}", "hers"), params={"cursor": cursor})
                assert answer.status_code < 500, (path, cursor, answer.text)
                tried += 1
        await house.client.cancel_all("over", dry_run=False)
        for schedule in await house.client.schedules.names():
            await house.client.schedules.remove(schedule)
    assert tried > 150
