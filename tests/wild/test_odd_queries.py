"""Queries that no caller means: the ends of time, NUL, numbers that are none. Each was a 500, a 503 or silently null.

Seen in an attack on a running gateway: ``since`` in the year 1 with an offset, NUL in a filter on PostgreSQL.
"""

import json
import logging

import pytest

from perdure import Agent
from perdure.store import Store
from tests.gateway import gateway
from tests.house import House

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
)


async def test_an_odd_query_is_refused_and_says_which_part(house: House) -> None:
    async with gateway(house) as door:
        for path in ODD:
            refused = await door.http.get(path)
            assert (refused.status_code, refused.json()["code"]) == (422, "request.invalid"), (path, refused.text)
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
