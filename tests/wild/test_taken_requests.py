"""A request that was taken (202) is never one that cannot run: whatever the document allows, its turn ends in a result.

Seen: a context of two hundred levels was taken, and then the workflow's task failed for ever. And whatever hypothesis
makes of the document, at whatever route, is no bug of the gateway (500).
"""

import asyncio
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings

from perdure import Agent, RetryPolicy
from perdure.testing import ScriptedProvider, say
from tests.gateway import Door, gateway, token_lines
from tests.house import WAIT_SECONDS, House, eventually

AGENT = Agent(name="tester", model="openai/scripted", retry=RetryPolicy(max_retries=0))
SESSION, SCHEDULE, GONE = "known", "nightly", "gone"

LEFT_OUT = frozenset({"healthz", "readyz", "metrics"})
"""Routes that read nothing of a request."""

HELD = frozenset({"block_turns", "cancel_sessions", "pause_session", "unpause_session"})
"""Routes that may keep turns from beginning or ending: they come last."""

BESIDE: Mapping[str, Mapping[str, Any]] = {
    "start_session": {"agent": "tester", "definition": None, "session": None},
    "add_schedule": {"cron": "@yearly", "at": None, "agent": "tester", "session": None},
}
"""Fields without which a body would be refused for one reason alone: no such agent, no such session."""


@dataclass(frozen=True)
class Asked:
    """A request that the document allows, or one beside it."""

    method: str
    path: str
    operation: str
    query: Mapping[str, Any] = field(default_factory=dict[str, Any])
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    body: object = None

    async def send(self, http: httpx.AsyncClient) -> httpx.Response:
        content = None if self.body is None else json.dumps(self.body).encode()
        headers = {**self.headers, "Content-Type": "application/json"}
        return await http.request(
            self.method.upper(), self.path, params=dict(self.query), content=content, headers=headers
        )


def cases_of(declared: Any, examples: int) -> Iterator[Asked]:
    """Requests of one operation, the same at each run: each with ids that it has, and with the ids that there are."""
    made: list[Any] = []
    path, method, operation = declared.path, declared.method, declared.definition.raw["operationId"]

    @settings(
        max_examples=examples,
        database=None,
        derandomize=True,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(declared.as_strategy())
    def make(case: Any) -> None:
        made.append(case)

    make()
    known = {"session": GONE if operation == "delete_session" else SESSION, "schedule": SCHEDULE}
    for case in made:
        headers = {name: str(told) for name, told in (case.headers or {}).items() if is_sendable(name, str(told))}
        body = case.body if isinstance(case.body, dict | list | str | int | float) else None
        for ids, more in (({}, {}), (known, BESIDE.get(operation, {}))):
            there = {name: quote(str(ids.get(name, told)), safe="") for name, told in case.path_parameters.items()}
            sent = {**body, **more} if isinstance(body, dict) else body
            yield Asked(method, path.format(**there), operation, case.query or {}, headers, sent)


def is_sendable(name: str, told: str) -> bool:
    """Whether it can be a header that says something; the token is the test's own."""
    return name.lower() != "authorization" and told.isascii() and told.isprintable()


def operations_of(document: Any) -> list[tuple[str, str]]:
    """Each operation, those first whose requests become turns, and those last that hold turns up."""
    found = [
        (path, method, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if operation["operationId"] not in LEFT_OUT
    ]
    found.sort(
        key=lambda one: (one[2]["operationId"] in HELD, str(HTTPStatus.ACCEPTED.value) not in one[2]["responses"])
    )
    return [(path, method) for path, method, _ in found]


async def ask_everything(house: House, door: Door, http: httpx.AsyncClient, examples: int, of_turns: int) -> list[str]:
    """Send what the document allows to every route; the requests that were taken, each with its turn's end."""
    document: Any = door.app.openapi()
    schema, taken = schemathesis.openapi.from_dict(document), list[str]()
    for path, method in operations_of(document):
        is_taken = str(HTTPStatus.ACCEPTED.value) in document["paths"][path][method]["responses"]
        declared, count = schema[path][method.upper()], of_turns if is_taken else examples
        cases = await asyncio.to_thread(list, cases_of(declared, count))
        for asked in cases:
            answer = await asked.send(http)
            assert answer.status_code < HTTPStatus.INTERNAL_SERVER_ERROR, (asked, answer.text)
            if answer.status_code != HTTPStatus.ACCEPTED:
                continue
            told = answer.json()
            if "turn" in told:
                result = await (await house.client.attach(told["session"], told["turn"])).result()
                taken.append(f"{asked.operation}: {result.stop_reason}")
            elif asked.operation == "trigger_schedule":
                await eventually(lambda: all_have_ended(http))
                taken.append(f"{asked.operation}: ended")
    return taken


async def all_have_ended(http: httpx.AsyncClient) -> bool:
    """Whether no run of the schedule is left that has not ended."""
    runs = (await http.get(f"/v1/schedules/{SCHEDULE}/runs")).json()["items"]
    return bool(runs) and all(run["state"] != "running" for run in runs)


@pytest.mark.parametrize(
    ("examples", "of_turns"), [(1, 4), pytest.param(20, 60, marks=[pytest.mark.deep, pytest.mark.timeout(600)])]
)
async def test_whatever_the_document_allows_is_no_bug_and_what_was_taken_ends(
    house: House, examples: int, of_turns: int
) -> None:
    lines, tokens = token_lines(ann=("acme", "admin,decrypt"))
    options: dict[str, Any] = {"gateway_tokens": lines, "gateway_max_requests": 0, "gateway_max_schedules": 0}
    async with (
        ScriptedProvider(lambda _: say("done")) as provider,
        house.worker(AGENT),
        gateway(house, **options) as door,
        door.holder(tokens["ann"]) as http,
    ):
        house.use(provider)
        for session in (SESSION, GONE):
            begun = await http.post("/v1/sessions", json={"agent": "tester", "prompt": "go", "session": session})
            await (await house.client.attach(session, begun.json()["turn"])).result()
        nightly = {"id": SCHEDULE, "cron": "@yearly", "agent": "tester", "prompt": "go"}
        assert (await http.post("/v1/schedules", json=nightly)).status_code == 201
        try:
            async with asyncio.timeout(5 * WAIT_SECONDS):
                taken = await ask_everything(house, door, http, examples, of_turns)
        finally:
            for schedule in await house.client.schedules.of("acme").names():
                await house.client.schedules.of("acme").remove(schedule)
    by_operation = {line.partition(":")[0] for line in taken}
    assert by_operation >= {"start_session", "send_message", "fork_session", "resume_session", "trigger_schedule"}
    assert len(taken) > of_turns, "too few were taken to say anything"
