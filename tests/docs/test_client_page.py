"""The page on the client names all there is, and what it shows is run; its service is the one in examples/."""

import ast
import asyncio
import inspect
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

import perdure.client
from examples.service import app as service
from perdure import Agent, Compaction, Image, TurnResult, ask_user, tool
from perdure.client import Client, ConnectOptions, PerdureError, Turn, TurnOptions
from perdure.contracts.events import Envelope
from perdure.contracts.messages import UserMessage
from perdure.store.records import SessionFilter
from perdure.testing import ChatRequest, Reply, Script, ScriptedProvider, call, say
from tests.house import House, eventually
from tests.workflow.test_content import PNG

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "client.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
SERVICE = (ROOT / "examples" / "service" / "app.py").read_text(encoding="utf-8")
CODE = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`\n]+)`", PAGE))))


@tool(requires_approval=True)
def pay(amount: int) -> str:
    """Pay an amount in dollars."""
    return f"paid {amount}"


WRITER = Agent(name="writer", model="openai/scripted", tools=[pay])
ASKING = Agent(name="writer", model="openai/scripted", tools=[ask_user], compaction=Compaction(keep=2))


def test_the_page_names_all_of_the_client_the_turn_the_result_and_the_events() -> None:
    for prefix, owner in (("client", Client), ("turn", Turn)):
        names = {name for name, _ in inspect.getmembers(owner) if name[0] != "_"} - {"connect"}
        signed = {name: inspect.signature(getattr(owner, name)) for name in names if callable(getattr(owner, name))}
        for name in names - signed.keys():
            assert f"`{prefix}.{name}`" in PAGE, name
        for name, signature in signed.items():
            assert f"`{prefix}.{name}{shown(signature)}" in PAGE, f"{prefix}.{name}{shown(signature)}"
    fields = {
        *TurnResult.model_fields,
        *Envelope.model_fields,
        "checkpoint_status",
        "job_status",
        "to_json",
        "from_json",
    }
    options = {*ConnectOptions.__annotations__, *TurnOptions.__annotations__, *SessionFilter.__annotations__}
    assert (fields | options) - CODE == set()


def test_each_method_has_an_example_and_each_example_a_method() -> None:
    """What the blocks call of ``client`` and ``turn``; the checkers see that they call it rightly."""
    calls = {"client": set[str](), "turn": set[str](), "Client": set[str]()}
    for node in ast.walk(ast.parse("\n".join(BLOCKS))):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in calls:
            calls[node.value.id].add(node.attr)
    assert calls["client"] | calls["Client"] == {name for name, _ in inspect.getmembers(Client) if name[0] != "_"}
    assert calls["turn"] == {name for name, _ in inspect.getmembers(Turn) if name[0] != "_"}


def shown(signature: inspect.Signature) -> str:
    """The parameters as the page writes them."""
    parts: list[str] = []
    for name, parameter in list(signature.parameters.items())[1:]:
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in parts:
            parts.append("*")
        if parameter.kind is parameter.VAR_KEYWORD:
            parts = [part for part in parts if part != "*"] if parts[-1] == "*" else parts
            parts.append(f"**{name}")
        elif parameter.default is parameter.empty:
            parts.append(name)
        else:
            parts.append(f"{name}={parameter.default!r}".replace("'", '"'))
    return f"({', '.join(parts)})`"


def test_the_page_explains_each_error() -> None:
    values = {name: getattr(perdure.client, name) for name in perdure.client.__all__}
    errors = {name for name, value in values.items() if isinstance(value, type) and issubclass(value, PerdureError)}
    assert set(re.findall(r"^\| `(\w+Error)` \|", PAGE, re.MULTILINE)) == errors


def test_the_page_names_each_route_of_the_service() -> None:
    written = re.findall(r'^@app\.(get|post)\("([^"]+)"', SERVICE, re.MULTILINE)
    assert re.findall(r"^\| `(GET|POST) ([^`]+)` \|", PAGE, re.MULTILINE) == [
        (verb.upper(), path) for verb, path in written
    ]


async def run_page(house: House) -> dict[str, Any]:
    """The functions of the page, which connect to the test's server and store."""
    names: dict[str, Any] = {}
    text = "\n".join(BLOCKS).replace("temporal.example.org:7233", house.server.address).replace("tls=True", "tls=False")
    exec(text.replace("postgresql://perdure@db.example.org/perdure", house.settings.store_url), names)
    return names


async def test_what_the_page_shows_runs(house: House, capsys: pytest.CaptureFixture[str]) -> None:
    names = await run_page(house)
    replies = (say("A river."), say("The sea."), call(("pay", {"amount": 5})), say("Paid."))
    async with ScriptedProvider(Script(replies=replies)) as provider, house.worker(WRITER):
        house.use(provider)
        assert await names["list_agents"]() == ["writer"]
        assert await names["count_definitions"]() == 1
        result = await names["run_two_turns"](house.client)
        assert (result.turn, result.output) == (2, "The sea.")
        last = await names["follow"](house.client, "job-1")
        printed = capsys.readouterr().out.splitlines()
        assert [Envelope.from_json(line).event.type for line in printed][-1] == "agent_end"
        assert Envelope.from_json(printed[-1]).seq == last
        assert await names["watch_session"](house.client, "job-1") == ["agent_start", "agent_end"] * 2
        paying = await house.client.send("job-1", "Pay 5 dollars.")
        await asks(paying)
        assert await names["list_questions"](paying) == ['pay {"amount": 5}']
        told = await names["tell_progress"](paying)
        assert told.startswith('an approval of pay {"amount": 5}; perdure approve job-1')
        assert list(await names["name_waits"](house.client, ["job-1", "job-2"])) == ["job-1"]
        assert await names["approve_all"](house.client, "job-1") == ["approved"]
        assert (await paying.result()).output == "Paid."
        assert await names["time_tools"](paying) >= 0
        failed = await house.client.send("job-1", "Go on.")  # the script has no more
        assert (await failed.result()).stop_reason == "error"
        await names["print_errors"](house.client)
    assert "script exhausted" in capsys.readouterr().out


async def asks(turn: Turn) -> None:
    """Wait until the turn waits for a person."""

    async def waits() -> bool:
        return bool(await turn.requests())

    await eventually(waits)


async def test_the_other_methods_of_the_page_run_too(
    house: House, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    names = await run_page(house)

    def answer(request: ChatRequest) -> Reply:
        content: Any = request.messages[-1]["content"]
        text = content if isinstance(content, str) else content[-1]["text"]
        return call(("ask_user", {"question": "Which colour?"})) if text == "Ask." else say(f"{text[:20]} Yes.")

    client = house.client
    async with ScriptedProvider(answer) as provider, house.worker(ASKING):
        house.use(provider)
        first = await client.start("writer", ["Look.", Image(PNG)], session=house.session)
        assert await names["is_first"](first)
        await names["listen"](first)
        assert capsys.readouterr().out == f"{house.session} {first.request_id} 1 agent_end\n"
        assert await names["go_on"](client, house.session) == "Now in one word. Yes."
        assert (await (await names["try_another_model"](client, house.session)).result()).output == "Look. Yes."
        await names["shorten"](client, house.session)
        assert (await names["pick_turn"](client, house.session)).turn == 1
        assert all(tokens > 0 for tokens in await names["evaluate"](client, ["one", "two"]))
        assert await names["count_tokens"](client, house.session) > 0
        assert (1, 1) in await names["list_places"](client, house.session)
        (message, *_) = await client.transcript(house.session, turn=1)
        assert isinstance(message, UserMessage)
        await names["save"](client, house.session, message.parts[0].artifact, tmp_path / "dot.png")
        assert (tmp_path / "dot.png").read_bytes() == PNG

        asking = await client.send(house.session, "Ask.")
        await asks(asking)
        assert await names["allow_more"](asking) == 50
        assert await names["allow_steps"](client, house.session) == 11
        await names["steer"](client, house.session)
        assert await names["reply_to_all"](client, "ann") == 1
        assert (await asking.result()).output == "Mind the tides. Yes."
        assert await names["list_ends"](client, house.session) == ["finished"] * 4
        asking = await client.send(house.session, "Ask.")
        await asks(asking)
        assert await names["stop_all"](client, "writer") == [house.session]
        assert (await asking.result()).stop_reason == "cancelled"
        asking = await client.send(house.session, "Ask.")
        await asks(asking)
        assert not await names["stop_if_stuck"](client, house.session)
        assert await names["give_up"](asking)
        assert (await asking.result()).stop_reason == "cancelled"


@asynccontextmanager
async def serving() -> AsyncIterator[httpx.AsyncClient]:
    """The service of the page behind real HTTP."""
    server = uvicorn.Server(uvicorn.Config(service.app, port=0, log_level="error"))
    running = asyncio.create_task(server.serve())

    async def started() -> bool:
        return server.started or running.done()

    await eventually(started)
    (listener,) = server.servers[0].sockets
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{listener.getsockname()[1]}", timeout=60) as http:
            yield http
    finally:
        server.should_exit = True
        await running


async def read_stream(http: httpx.AsyncClient, path: str, **headers: str) -> AsyncIterator[dict[str, str]]:
    """The server-sent events of an address, each as its fields."""
    async with http.stream("GET", path, headers=headers) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        fields: dict[str, str] = {}
        async for line in response.aiter_lines():
            name, _, value = line.partition(": ")
            if line and name:
                fields[name] = value
            elif fields:
                yield fields
                fields = {}


async def test_the_service_starts_streams_approves_and_cancels_over_http(house: House) -> None:
    script = Script(replies=(call(("pay", {"amount": 5})), say("Paid.")))
    async with ScriptedProvider(script) as provider, house.worker(WRITER), serving() as http:
        house.use(provider)
        job = {"agent": "writer", "prompt": "Pay 5 dollars.", "session": "job-1", "request_id": "order-1"}
        first, again = await http.post("/jobs", json=job), await http.post("/jobs", json=job)
        assert (first.status_code, first.json()) == (202, {"session": "job-1", "request_id": "order-1"})
        assert again.json() == first.json()
        seen: list[dict[str, str]] = []
        async for event in read_stream(http, "/jobs/job-1/events"):
            seen.append(event)
            if event["event"] == "user_input_required":
                request = json.loads(event["data"])["request_id"]
                decision = {"decision": "approve", "by": "ann"}
                decided = await http.post(f"/jobs/job-1/requests/{request}", json=decision)
                assert decided.json() == {"decision": "approved", "by": "ann"}
        assert [int(event["id"]) for event in seen] == list(range(1, len(seen) + 1))
        assert [Envelope.from_json(event["data"]).line() for event in seen] == await house_lines(house, "job-1")
        later = [event["id"] async for event in read_stream(http, "/jobs/job-1/events", **{"last-event-id": "3"})]
        assert later == [event["id"] for event in seen[3:]]
        assert (await http.get("/jobs/job-1/result")).json()["output"] == "Paid."

        await http.post("/jobs", json={**job, "session": "job-2", "request_id": "order-2"})
        busy = await http.post("/jobs", json={**job, "session": "job-2", "request_id": "order-3"})
        assert (busy.status_code, "is running" in busy.json()["error"]) == (409, True)
        assert (await http.post("/jobs/job-2/cancel", params={"reason": "no longer"})).json() == {"stops": True}
        assert (await http.get("/jobs/job-2/result")).json()["stop_reason"] == "cancelled"
        missing = await http.get("/jobs/job-3/events")
        assert missing.status_code == 404
        assert missing.json()["error"].startswith("there is no session 'job-3';")
        refused = await http.post("/jobs", json={**job, "session": "no id"})
        assert (refused.status_code, "is no session id" in refused.json()["error"]) == (422, True)


async def house_lines(house: House, session: str) -> list[dict[str, Any]]:
    return [envelope.line() for envelope in await house.store.events(session, after=0, limit=500)]
