"""A body that costs more than it weighs: 200,000 unknown fields, deep lists, and megabytes that are parsed on the loop.

Seen in an attack on a running gateway: one request without a token held the event loop for up to a minute and took
over a gigabyte, because each unknown field became an error of its own.
"""

import asyncio
import contextlib
import gc
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError

from perdure import Agent
from perdure.client.errors import RequestRefusedError
from perdure.client.texts import refuses_odd_texts
from perdure.contracts import texts
from perdure.contracts.json_bounds import MOST_DEPTH, MOST_VALUES, BoundsError, check_text, check_value, read_json
from perdure.gateway import bodies
from perdure.gateway.bodies import MEDIUM, ON_THE_LOOP, SMALL, TINY, Body, BodyRoute, Reader
from perdure.gateway.doors import DOORS, open_doors
from perdure.gateway.doors.a2a.requests import Message
from perdure.gateway.problems import ProblemError, problem_of_mistakes
from perdure.gateway.routes import CODEC_ROUTER, OPEN_ROUTERS, ROUTERS
from perdure.gateway.routes.control import BlockBody
from perdure.gateway.routes.ui import LoginBody
from perdure.gateway.views import StartBody
from tests.gateway import gateway, token_lines
from tests.house import WAIT_SECONDS, House

AGENT = Agent(name="tester", model="openai/scripted")
JSON = {"Content-Type": "application/json"}
UNKNOWN = 200_000


def unknown_fields(count: int, **known: str) -> bytes:
    """A body with so many fields that no route has."""
    return json.dumps({**known, **{f"k{number}": 0 for number in range(count)}}).encode()


def body_routes() -> list[APIRoute]:
    """Every route of the gateway that takes a body."""
    doors = [door.router for door in open_doors([*DOORS])]
    every = [route for router in (*ROUTERS, *OPEN_ROUTERS, CODEC_ROUTER, *doors) for route in router.routes]
    return [route for route in every if isinstance(route, APIRoute) and route.body_field is not None]


def test_every_route_with_a_body_reads_it_in_the_one_way_and_the_small_ones_are_small() -> None:
    """A new route cannot be forgotten: a router that is none of ours, or a model without a limit, is seen here."""
    found = {route.path: Reader(route.body_field.field_info.annotation).longest for route in body_routes()}  # type: ignore[union-attr]
    assert all(isinstance(route, BodyRoute) and not route._embed_body_fields for route in body_routes())
    large = {f"/v1/sessions{path}" for path in ("", "/{session}/fork", "/{session}/messages", "/{session}/resume")}
    assert {path for path, limit in found.items() if limit is None} == {
        *large,
        *("/codec/decode", "/codec/encode", "/openai/v1/responses", "/agui/{agent}"),
        "/openai/v1/chat/completions",
        *("/agui/agent/{agent}/run", "/agui/agent/{agent}/connect"),
        *("/a2a/{agent}", "/a2a/{agent}/", "/a2a/{agent}/message:send", "/a2a/{agent}/message:stream"),
    }
    assert {path for path, limit in found.items() if limit == MEDIUM} == {
        "/v1/sessions/{session}/compact",
        "/v1/sessions/{session}/answers/{request}",
        "/v1/sessions/{session}/results/{request}",
        "/v1/schedules",
        "/v1/schedules/{schedule}",
    }
    assert {path for path, limit in found.items() if limit == TINY} == {"/ui/login"}
    assert set(found.values()) == {None, MEDIUM, SMALL, TINY}


class Counted(dict[str, int]):
    """Fields that count how many of them were looked at."""

    seen = 0

    def __iter__(self) -> Iterator[str]:
        for name in super().__iter__():
            Counted.seen += 1
            yield name


def test_the_first_unknown_field_refuses_and_no_other_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """One mistake is built, whatever the number of fields."""
    for model in (LoginBody, StartBody, BlockBody):
        Counted.seen = 0
        built = [*_mistakes(model, Counted(json.loads(unknown_fields(1_000))))]
        assert (Counted.seen, len(built), built[0]["type"]) == (1, 1, "unknown_field")
    monkeypatch.setattr(bodies, "read_json", lambda _: {"agent": "a", "prompt": "p", "x" * 5_000: 1})
    with pytest.raises(ProblemError, match=r"^x{100}: there is no such field") as refused:
        Reader(StartBody).parse(b"")
    assert (refused.value.status, refused.value.code) == (422, "request.invalid")


def _mistakes(model: type[Body], fields: dict[str, Any]) -> Iterator[Any]:
    with pytest.raises(ValueError, match="no such field") as refused:
        model.model_validate(fields)
    yield from refused.value.errors()  # type: ignore[attr-defined]


MANY = 300

FILLS: dict[str, Any] = {
    "numbers": [1] * MANY,
    "texts": ["x y"] * MANY,
    "objects": [{}] * MANY,
    "nulls": [None] * MANY,
    "lists": [[[1] * 10] * 10] * (MANY // 100),
    "names": {f"k{number}": number for number in range(MANY)},
    "lists by name": {f"k{number}": [{}] for number in range(MANY)},
    "long texts by name": {f"k{number}": "x" * 600 for number in range(MANY)},
}
"""Values of so many parts that hardly a field takes."""


@pytest.mark.parametrize("fill", FILLS.values(), ids=FILLS)
def test_whatever_a_field_of_a_body_holds_few_mistakes_are_built(fill: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """99,000 numbers in place of tools were 99,000 errors, half a second of every tenant's time."""
    built: list[int] = []

    def tell(found: Sequence[Any], place: str) -> ProblemError:
        built.append(len(found))
        return problem_of_mistakes(found, place)

    monkeypatch.setattr(bodies, "problem_of_mistakes", tell)
    for route in body_routes():
        reader = Reader(route.body_field.field_info.annotation)  # type: ignore[union-attr]
        for name in _fields_of(route):
            with contextlib.suppress(ProblemError):
                reader.parse(json.dumps({name: fill}).encode())
    assert built
    assert max(built) <= 4, built


def _fields_of(route: APIRoute) -> set[str]:
    """The fields of a route's body, by the names that callers use."""
    kind: Any = route.body_field.field_info.annotation  # type: ignore[union-attr]
    schema = TypeAdapter(kind).json_schema()
    models = [schema, *schema.get("$defs", {}).values()]
    return {name for model in models for name in model.get("properties", {})}


def test_parts_of_a_message_of_the_a2a_door_are_read_up_to_the_first_mistake() -> None:
    """Its parameters are read by the route, which JSON-RPC and REST share."""
    for parts in FILLS.values():
        with pytest.raises(ValidationError) as refused:
            Message.model_validate({"messageId": "m", "role": "ROLE_USER", "parts": parts})
        assert refused.value.error_count() <= 4


async def test_texts_of_a_large_value_are_not_looked_at_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a value with half a character is searched for it; the walk over 98,000 parts held the loop for 300 ms."""
    walked: list[object] = []
    walk = texts.texts_in

    def watched(value: object) -> Iterator[str]:
        walked.append(value)
        return walk(value)

    monkeypatch.setattr(texts, "texts_in", watched)

    @refuses_odd_texts
    class Verbs:
        async def start(self, context: object) -> None:
            """Do nothing."""

    for whole in ({"a": [{"b": "c\u00e9\0"}]}, [["x"] * 10], ("x",)):
        await Verbs().start(context=whole)
    assert [type(value) for value in walked] == [Verbs] * 3
    for half in ({"a": [{"b": "\ud800"}]}, {"\udfff": 1}, ["\ud800"], "\ud800"):
        with pytest.raises(RequestRefusedError, match=r"^context: holds half a character"):
            await Verbs().start(context=half)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"[" * 100_000, "levels deep"),
        (b'{"a":' * (MOST_DEPTH + 1) + b"1" + b"}" * (MOST_DEPTH + 1), "levels deep"),
        (b"[" + b"0," * MOST_VALUES + b"0]", "values"),
        (b"[" + b"[]," * (MOST_VALUES // 2) + b"[]]", "values"),
        (b'["' + b'","' * (5 * MOST_VALUES) + b'"]', "values"),
        (b"[NaN]", "not finite"),
        (b'{"a": 1e999}', "not finite"),
        (b'{"a": -Infinity}', "not finite"),
        (b"9" * 5_000, "too many digits"),
    ],
)
def test_json_that_passes_a_bound_is_refused_and_too_much_of_it_before_it_is_parsed(
    text: bytes, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Depth and number of values are measured on the text; numbers are looked at as they are read."""
    if said in {"levels deep", "values"}:
        monkeypatch.setattr(json, "loads", lambda *_, **__: pytest.fail("it was parsed"))
    with pytest.raises(BoundsError, match=said):
        read_json(text)


@pytest.mark.parametrize(
    "value",
    [
        {"text": '[[[[{{{{,,,,\\"[[' * 1_000},
        {"backslashes": "\\" * 5_001 + '"[' * 100, '"': ["\\"]},
        [[[[{"a": [1, 2.5, -1e300, None, True, 10**400]}]]]],
        "\u00e9\N{GRINNING FACE}",
        [0] * (MOST_VALUES - 1),
    ],
)
def test_json_within_the_bounds_is_read_as_it_is_whatever_its_texts_hold(value: Any) -> None:
    for ascii_only in (True, False):
        assert read_json(json.dumps(value, ensure_ascii=ascii_only).encode()) == value
    check_value(value)


def nested(levels: int) -> Any:
    """So many lists inside each other."""
    value: Any = 0
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("check", [lambda value: check_text(json.dumps(value).encode()), check_value])
def test_a_text_and_its_value_have_the_same_bounds(check: Callable[[Any], None]) -> None:
    check(nested(MOST_DEPTH))
    for levels in (MOST_DEPTH + 1, 900):
        with pytest.raises(BoundsError, match="levels deep"):
            check(nested(levels))
    with pytest.raises(BoundsError, match="not finite"):
        check_value({"a": [float("nan")]})


async def test_heavy_bodies_are_refused_by_every_route_before_they_are_parsed(house: House) -> None:
    """T-11: The log-in needs no token; its body is over the limit of the route, with and without its length."""
    lines, tokens = token_lines(ann=("acme", "admin"))
    heavy = unknown_fields(UNKNOWN)

    async def in_chunks() -> Any:
        for at in range(0, len(heavy), 10_000):
            yield heavy[at : at + 10_000]

    async with gateway(house, gateway_tokens=lines) as door, door.holder(tokens["ann"]) as ann:
        for content in (heavy, in_chunks()):
            refused = await door.http.post("/ui/login", content=content, headers=JSON)
            assert (refused.status_code, refused.json()["code"]) == (413, "request.too_large")
        for route in body_routes():
            if route.path.startswith("/codec/"):
                continue
            path = route.path
            for name in ("{session}", "{request}", "{schedule}"):
                path = path.replace(name, "x")
            path = path.replace("{webhook}", "wh_" + "0" * 16)
            method = next(iter(route.methods or ()))
            answer = await ann.request(method, path, content=heavy, headers=JSON)
            assert answer.status_code in {404, 413, 422}, (path, answer.text)
        few = await ann.post("/v1/sessions", content=unknown_fields(9_000, agent="a", prompt="p"), headers=JSON)
        assert (few.status_code, few.json()["detail"].partition(";")[0]) == (422, "k0: there is no such field")
        deep = await ann.post("/v1/sessions", content=b'{"agent":' + b"[" * 5_000, headers=JSON)
        assert (deep.status_code, deep.json()["code"]) == (422, "request.invalid")
        odd = await ann.post(
            "/v1/sessions", content=b'{"agent": "a", "prompt": "p", "context": {"a": NaN}}', headers=JSON
        )
        assert (odd.status_code, odd.json()["code"]) == (422, "request.invalid")


async def test_while_a_large_body_is_parsed_the_gateway_answers_others(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parser is held until the other request has its answer: on the loop it would never get it."""
    entered, answered, parse = threading.Event(), threading.Event(), json.loads
    threads: list[str] = []

    def held(text: str, *args: Any, **options: Any) -> Any:
        if len(text) > ON_THE_LOOP:
            threads.append(threading.current_thread().name)
            entered.set()
            assert answered.wait(WAIT_SECONDS), "nobody else was answered"
        return parse(text, *args, **options)

    await house.store.register_agents([AGENT.definition])
    async with gateway(house) as door:
        monkeypatch.setattr(json, "loads", held)
        large = asyncio.create_task(
            door.http.post("/v1/sessions", json={"agent": "tester", "prompt": "x" * 100_000, "turn": 0})
        )
        assert await asyncio.to_thread(entered.wait, WAIT_SECONDS)
        async with httpx.AsyncClient(base_url=door.url, timeout=WAIT_SECONDS) as other:
            assert (await other.get("/healthz")).status_code == 200
        assert not large.done()
        answered.set()
        assert (await large).status_code == 422
    assert threads[0].startswith("perdure-bodies")


async def test_a_refused_body_is_gone_with_its_answer(house: House) -> None:
    """The refusal that a request kept held the frames that held the body: 30 MB of each stayed for minutes."""
    heavy = unknown_fields(20_000, agent="a", prompt="p")
    async with gateway(house) as door:
        await door.http.post("/v1/sessions", content=heavy, headers=JSON)
        gc.collect()
        gc.disable()
        try:
            for content in (heavy, heavy[:-1], b'{"context":' + b"[" * 100_000):
                answer = await door.http.post("/v1/sessions", content=content, headers=JSON)
                assert answer.status_code in {400, 422}
            assert not [kept for kept in gc.get_objects() if type(kept) is bodies.BodyRequest]
        finally:
            gc.enable()


async def test_bodies_in_memory_are_bounded_for_a_tenant_and_for_all(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first body is held in its parser; what comes beside it passes the bound and is to come again."""
    entered, answered, parse = threading.Event(), threading.Event(), json.loads

    def held(text: str, *args: Any, **options: Any) -> Any:
        if len(text) > ON_THE_LOOP:
            entered.set()
            assert answered.wait(WAIT_SECONDS), "nobody else was answered"
        return parse(text, *args, **options)

    lines, tokens = token_lines(ann=("acme", "run"), bob=("birch", "run"), cat=("cedar", "run"))
    body = {"agent": "nobody", "prompt": "x" * 90_000, "turn": 0}
    async with AsyncExitStack() as stack:
        door = await stack.enter_async_context(gateway(house, gateway_tokens=lines, gateway_max_body_bytes=100_000))
        ann, bob, cat = [await stack.enter_async_context(door.holder(tokens[name])) for name in ("ann", "bob", "cat")]
        monkeypatch.setattr(json, "loads", held)
        first = [asyncio.create_task(ann.post("/v1/sessions", json=body))]
        assert await asyncio.to_thread(entered.wait, WAIT_SECONDS)
        entered.clear()
        refused = await ann.post("/v1/sessions", json=body)
        assert (refused.status_code, refused.json()["code"]) == (429, "request.rate_limited")
        assert refused.headers["retry-after"] == "1"
        first.append(asyncio.create_task(bob.post("/v1/sessions", json=body)))
        assert await asyncio.to_thread(entered.wait, WAIT_SECONDS)
        assert (await cat.post("/v1/sessions", json=body)).status_code == 429
        assert (await cat.post("/v1/sessions", json={**body, "prompt": "short"})).status_code == 422
        answered.set()
        assert [(await answer).status_code for answer in first] == [422, 422]
        assert (await cat.post("/v1/sessions", json=body)).status_code == 422
