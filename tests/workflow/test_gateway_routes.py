"""What each route of the gateway does, and that routes and verbs are the same set."""

import inspect
from typing import Any

import httpx
import pytest

from perdure import Agent, RetryPolicy, ask_user, tool
from perdure.client import Client
from perdure.contracts.values import replace
from perdure.store import Store
from perdure.store.records import SessionRecord
from perdure.testing import Script, ScriptedProvider, call, faults, say
from tests.gateway import Door, gateway
from tests.house import House, eventually

pytestmark = pytest.mark.deep


@tool(requires_approval=True)
def launch(place: str) -> str:
    """Launch it."""
    return f"launched {place}"


AGENT = Agent(name="tester", model="openai/scripted", instructions="Add.", retry=RetryPolicy(max_retries=0))
ASKS = Agent(
    name="asks",
    model="openai/scripted",
    instructions="Ask.",
    tools=[launch, ask_user],
    retry=RetryPolicy(max_retries=0),
)

VERBS = {
    "start": "POST /v1/sessions",
    "sessions": "GET /v1/sessions",
    "attach": "GET /v1/sessions/{session}/turns/{turn}",
    "waits_for": "GET /v1/sessions/{session}",
    "status": "GET /v1/sessions/{session}/status",
    "budget": "GET /v1/sessions/{session}/budget",
    "extend": "POST /v1/sessions/{session}/extend",
    "send": "POST /v1/sessions/{session}/messages",
    "cancel": "POST /v1/sessions/{session}/cancel",
    "cancel_all": "POST /v1/cancel",
    "resume_all": "POST /v1/resume",
    "pause": "POST /v1/sessions/{session}/pause",
    "unpause": "POST /v1/sessions/{session}/unpause",
    "delete": "DELETE /v1/sessions/{session}",
    "resume": "POST /v1/sessions/{session}/resume",
    "fork": "POST /v1/sessions/{session}/fork",
    "compact": "POST /v1/sessions/{session}/compact",
    "answer": "POST /v1/sessions/{session}/answers/{request}",
    "approve": "POST /v1/sessions/{session}/answers/{request}",
    "deny": "POST /v1/sessions/{session}/answers/{request}",
    "submit_result": "POST /v1/sessions/{session}/results/{request}",
    "inbox": "GET /v1/inbox",
    "turns": "GET /v1/sessions/{session}/turns",
    "turn_views": "GET /v1/sessions/{session}/turns",
    "turn_view": "GET /v1/sessions/{session}/turns/{turn}",
    "session_view": "GET /v1/sessions/{session}",
    "transcript": "GET /v1/sessions/{session}/transcript",
    "trajectory": "GET /v1/sessions/{session}/export",
    "checkpoints": "GET /v1/sessions/{session}/checkpoints",
    "artifact": "GET /v1/sessions/{session}/artifacts/{artifact}",
    "agents": "GET /v1/agents",
}
"""The route of each method of the client."""

NO_ROUTE = {"connect", "close", "store", "task", "check_worker", "waits"}
"""Methods that are a caller's own business, or of a list: GET /v1/sessions/{session} tells each wait."""

NO_METHOD = {"GET /v1/sessions/{session}/steps", "GET /healthz", "GET /readyz", "GET /metrics"}
"""Routes that read what the client's store has, and those for operators."""


def routes_of(document: dict[str, Any]) -> set[str]:
    return {f"{method.upper()} {path}" for path, methods in document["paths"].items() for method in methods}


async def test_every_verb_of_the_client_has_a_route_and_every_route_a_verb(house: House) -> None:
    """Those of streams, schedules, webhooks and of many sessions at once come with their own tests."""
    async with gateway(house) as door:
        document = (await door.http.get("/openapi.json")).json()
    routes = routes_of(document)
    assert set(VERBS.values()) | NO_METHOD <= routes
    methods = {name for name, _ in inspect.getmembers(Client, inspect.isfunction) if not name.startswith("_")}
    assert VERBS.keys() | NO_ROUTE <= methods | {"connect"}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            if path.startswith("/v1/"):
                assert operation["security"] == [{"HTTPBearer": []}], (method, path)
                assert {"401", "404", "422", "500", "503"} <= operation["responses"].keys(), (method, path)


async def ended(http: httpx.AsyncClient, session: str, turn: int) -> dict[str, Any]:
    """The turn, once it has ended: joined without a stream."""

    async def joined() -> dict[str, Any] | None:
        found = await http.get(f"/v1/sessions/{session}/turns/{turn}", headers={"Prefer": "wait=20"})
        assert found.status_code == 200, found.text
        assert found.headers["preference-applied"] == "wait=20"
        body: dict[str, Any] = found.json()
        return body if body["state"] == "ended" else None

    turn_view: dict[str, Any] = await eventually(joined)
    return turn_view


async def test_a_turn_is_joined_and_all_that_a_session_holds_is_read(house: House) -> None:
    async with ScriptedProvider(Script(replies=(say("2"), say("4"), say("6"), say("8")))) as provider:
        house.use(provider)
        async with house.worker(AGENT), gateway(house) as door:
            http, at = door.http, f"/v1/sessions/{house.session}"
            await http.post("/v1/sessions", json={"agent": "tester", "prompt": "1 + 1", "session": house.session})
            turn = await ended(http, house.session, 1)
            assert (turn["result"]["output"], turn["agent"], turn["job_status"]) == ("2", "tester", "completed")
            transcript = (await http.get(f"{at}/transcript")).json()
            assert [message["content"] for message in transcript["items"]] == ["1 + 1", "2"]
            first = (await http.get(f"{at}/transcript", params={"limit": 1})).json()
            rest = (await http.get(f"{at}/transcript", params={"limit": 1, "cursor": first["next"]})).json()
            assert [first["items"] + rest["items"], rest["next"]] == [transcript["items"], None]
            assert [step["step"] for step in (await http.get(f"{at}/steps")).json()["items"]] == [0, 1]
            assert len((await http.get(f"{at}/checkpoints")).json()["items"]) == 2
            assert [row["turn"] for row in (await http.get(f"{at}/turns")).json()["items"]] == [1]
            lines = (await http.get(f"{at}/export", params={"format": "events"})).text.splitlines()
            assert len(lines) == len(await house.events())
            resumed = await http.post(f"{at}/resume", json={"prompt": "2 + 2", "at": 1})
            assert (resumed.status_code, resumed.json()["turn"]) == (202, 2)
            assert (await ended(http, house.session, 2))["result"]["output"] == "4"
            forked = (await http.post(f"{at}/fork", json={"prompt": "3 + 3", "turn": 1, "into": "forked"})).json()
            assert (forked["session"], forked["turn"]) == ("forked", 1)
            assert (await ended(http, "forked", 1))["result"]["output"] == "4"
            compacted = await http.post(f"{at}/compact")
            assert (compacted.status_code, (await ended(http, house.session, 3))["state"]) == (202, "ended")
            await check_lists(door, house)


async def test_a_turn_that_ends_while_its_session_is_read_has_ended(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ScriptedProvider(Script(replies=(say("2"),))) as provider:
        house.use(provider)
        async with house.worker(AGENT), gateway(house) as door:
            await house.run()
            read = Store.session

            async def read_before(store: Store, session: str) -> SessionRecord:
                record = await read(store, session)
                return replace(record, open_turn=record.turn)

            monkeypatch.setattr(Store, "session", read_before)
            detail = (await door.http.get(f"/v1/sessions/{house.session}")).json()
    assert (detail["state"], detail["waits_for"]) == ("ended", None)


async def check_lists(door: Door, house: House) -> None:
    """Pages of one session each come to the end and hold each once; cursors that are none are refused."""
    seen, cursor = [], None
    while True:
        params: dict[str, str | int] = {"limit": 1, **({"cursor": cursor} if cursor else {})}
        page = (await door.http.get("/v1/sessions", params=params)).json()
        seen += [row["session"] for row in page["items"]]
        if (cursor := page["next"]) is None:
            break
    assert seen == [house.session, "forked"]
    wrong = {"": 422, "x": 422, "WzFd": 422, "WyIyMDI2IiwgIngiXQ": 422, "bnVsbA": 422}
    for cursor, status in wrong.items():
        for path in ("/v1/sessions", "/v1/sessions/forked/turns"):
            found = await door.http.get(path, params={"cursor": cursor})
            if (cursor, path) != ("WzFd", "/v1/sessions/forked/turns"):  # [1]: the end of one turn
                assert (found.status_code, found.json()["code"]) == (status, "request.invalid"), (cursor, path)


async def test_people_answer_approve_and_deny_in_their_own_names(house: House) -> None:
    """S-60: who decides is who asks the gateway, and cannot be sent."""
    replies = (call(("launch", {"place": "moon"})), call(("ask_user", {"question": "Where?"})), say("done"))
    async with ScriptedProvider(Script(replies=replies)) as provider, house.worker(ASKS), gateway(house) as door:
        house.use(provider)
        at = f"/v1/sessions/{house.session}"
        await door.http.post("/v1/sessions", json={"agent": "asks", "prompt": "go", "session": house.session})
        (first,) = await waiting(door)
        where = f"{at}/answers/{first['request_id']}"
        forged = await door.http.post(where, json={"action": "approve", "by": "the boss"})
        assert (forged.status_code, forged.json()["code"]) == (422, "request.invalid")
        other = await door.http.post(where, json={"action": "approve", "digest": "0" * 32})
        assert (other.status_code, other.json()["code"]) == (409, "request.conflict")
        approved = await door.http.post(where, json={"action": "approve", "digest": first["digest"]})
        assert (approved.status_code, approved.json()["by"], approved.json()["decision"]) == (200, "local", "approved")
        again = await door.http.post(where, json={"action": "deny", "reason": "no"})
        assert again.status_code == 409
        (second,) = await waiting(door)
        standing = (await door.http.get(at)).json()
        assert (standing["state"], [r["question"] for r in standing["requests"]]) == ("waiting_for_input", ["Where?"])
        answered = await door.http.post(
            f"{at}/answers/{second['request_id']}", json={"action": "answer", "value": "here"}
        )
        assert (answered.status_code, answered.json()["by"]) == (200, "local")
        assert (await ended(door.http, house.session, 1))["result"]["output"] == "done"


async def waiting(door: Door) -> list[dict[str, Any]]:
    """The inbox, once there is something in it."""

    async def found() -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = (await door.http.get("/v1/inbox")).json()["items"]
        return items

    items: list[dict[str, Any]] = await eventually(found)
    return items


async def test_a_running_turn_gets_other_limits_and_says_where_it_stands(house: House) -> None:
    hangs = say("never").after(faults.hang())
    async with ScriptedProvider(Script(replies=(hangs,))) as provider, house.worker(AGENT), gateway(house) as door:
        house.use(provider)
        at = f"/v1/sessions/{house.session}"
        body = {
            "agent": "tester",
            "prompt": "go",
            "session": house.session,
            "max_steps": 7,
            "budgets": {"llm_calls": 9},
        }
        await door.http.post("/v1/sessions", json=body)
        await house.wait_for_event("generation_start")
        status = (await door.http.get(f"{at}/status")).json()
        assert (status["turn"], status["max_steps"], status["state"]) == (1, 7, "running")
        assert (await door.http.get(f"{at}/budget")).json()["limits"]["llm_calls"] == 9
        extended = await door.http.post(f"{at}/extend", json={"max_steps": 20, "turn": 1})
        assert (extended.status_code, extended.json()["max_steps"]) == (200, 20)
        refused = await door.http.post(f"{at}/extend", json={"max_steps": 20, "turn": 2})
        assert refused.status_code in {409, 422}
        busy = await door.http.post("/v1/sessions", json=body)
        assert (busy.status_code, busy.json()["code"]) == (409, "request.session_busy")
        running = (await door.http.get(f"{at}/turns/1", headers={"Prefer": "wait=1"})).json()
        assert (running["state"], running["result"]) == ("running", None)
        await door.http.post(f"{at}/cancel")
        assert (await ended(door.http, house.session, 1))["result"]["stop_reason"] == "cancelled"

        async def is_idle() -> bool:
            told = await door.http.get(f"{at}/status")
            if told.status_code == 200:  # the turn is in the store, and its workflow has not closed yet
                assert told.json()["state"] == "ended"
                return False
            assert (told.status_code, told.json()["code"]) == (409, "request.session_idle")
            return True

        await eventually(is_idle)


async def test_a_turn_that_its_worker_refuses_says_why(house: House) -> None:
    """It was accepted, so the answer had its number; it has no row, and its run tells what became of it."""
    async with ScriptedProvider(Script(replies=(say("2"),))) as provider, house.worker(AGENT), gateway(house) as door:
        house.use(provider)
        at = f"/v1/sessions/{house.session}"
        inline = {"name": "own", "model": "openai/scripted", "instructions": "Add."}
        body = {"agent": "own", "prompt": "go", "session": house.session, "definition": inline}
        ticket = (await door.http.post("/v1/sessions", json=body)).json()
        refused = await ended(door.http, house.session, ticket["turn"])
        assert (refused["result"]["stop_reason"], refused["result"]["turn"]) == ("error", None)
        assert (await door.http.get(f"{at}/turns/1")).json() == refused
        assert (await door.http.get(at)).json()["error"] == refused["result"]["error"]
        await door.http.post("/v1/sessions", json={"agent": "tester", "prompt": "go", "session": house.session})
        assert (await ended(door.http, house.session, 1))["result"]["output"] == "2"
        far = (await door.http.post(f"{at}/resume", json={"at": 99, "prompt": "go"})).json()
        assert "no step 99" in (await ended(door.http, house.session, far["turn"]))["result"]["error"]
        joined = await house.client.attach(house.session, far["turn"])  # as one who looked before it was refused
        assert "no step 99" in ((await joined.result()).error or "")
        assert (await door.http.get(f"{at}/turns/3")).json()["code"] == "request.unknown_turn"
