"""The HTTP door: start a job, see where it stands, send to it and stop it, over real HTTP."""

from collections.abc import AsyncIterator
from unittest.mock import ANY

from perdure import Agent, RetryPolicy
from perdure.testing import Script, ScriptedProvider, faults, say
from tests.gateway import gateway
from tests.house import House, eventually

AGENT = Agent(name="tester", model="openai/scripted", instructions="Add.", retry=RetryPolicy(max_retries=0))


async def test_a_service_starts_a_job_sees_its_end_and_sends_the_next_message(house: House) -> None:
    async with (
        ScriptedProvider(Script(replies=(say("2"), say("4")))) as provider,
        house.worker(AGENT),
        gateway(house) as door,
    ):
        house.use(provider)
        started = await door.http.post("/v1/sessions", json={"agent": "tester", "prompt": "1 + 1"})
        assert started.status_code == 202, started.text
        ticket = started.json()
        assert ticket == {"session": ANY, "turn": 1, "request_id": ANY, "notice": ""}

        async def ended() -> dict[str, object] | None:
            found = (await door.http.get(f"/v1/sessions/{ticket['session']}")).json()
            return found if found["state"] == "ended" else None

        stood = await eventually(ended)
        assert (stood["stop_reason"], stood["turn"], stood["agent"]) == ("finished", 1, "tester")
        sent = await door.http.post(f"/v1/sessions/{ticket['session']}/messages", json={"prompt": "2 + 2"})
        assert (sent.status_code, sent.json()["turn"]) == (202, 2)
        result = await (await house.client.attach(ticket["session"], 2)).result()
        assert result.output == "4"


async def test_a_running_turn_is_cancelled_and_an_idle_session_stays_as_it_is(house: House) -> None:
    hangs = say("never").after(faults.hang())
    async with ScriptedProvider(Script(replies=(hangs,))) as provider, house.worker(AGENT), gateway(house) as door:
        house.use(provider)
        await door.http.post("/v1/sessions", json={"agent": "tester", "prompt": "go", "session": house.session})
        await house.wait_for_event("generation_start")
        path = f"/v1/sessions/{house.session}/cancel"
        wrong = await door.http.post(path, json={"turn": 9})
        assert (wrong.status_code, wrong.json()["code"]) == (409, "request.turn_mismatch")
        cancelled = await door.http.post(path, json={"reason": "no longer needed"})
        assert (cancelled.status_code, cancelled.json()) == (202, {"session": house.session, "stops": True})
        result = await (await house.client.attach(house.session, 1)).result()
        assert (result.stop_reason, "no longer needed" in str(result.error)) == ("cancelled", True)
        await house.temporal.get_workflow_handle(house.session).result()  # the result is stored a moment before
        idle = await door.http.post(path)
        assert (idle.status_code, idle.json()["stops"]) == (202, False)


async def test_probes_metrics_agents_and_the_openapi_document_answer(house: House) -> None:
    async with house.worker(AGENT), gateway(house, build_id="b7") as door:
        for path in ("/healthz", "/readyz", "/metrics", "/openapi.json", "/v1/agents"):
            found = await door.http.get(path)
            assert found.status_code == 200, (path, found.text)
            assert found.headers["x-content-type-options"] == "nosniff"
        agents = (await door.http.get("/v1/agents")).json()
        assert [agent["name"] for agent in agents["items"]] == ["tester"]
        metrics = (await door.http.get("/metrics")).text
        assert 'perdure_http_requests_total{method="GET",route="/v1/agents",status="200"}' in metrics
        assert 'perdure_build_info{build_id="b7",version=' in metrics


async def chunks() -> AsyncIterator[bytes]:
    """A body that does not say how long it is."""
    for _ in range(200):
        yield b" " * 1000


async def test_what_is_wrong_is_a_problem_document(house: House) -> None:
    async with gateway(house, gateway_max_body_bytes=100_000) as door:
        http = door.http
        sessions = "/v1/sessions"
        json_type = {"Content-Type": "application/json"}
        answers = {
            "json": await http.post(sessions, content=b'{"agent": ', headers=json_type),
            "utf8": await http.post(sessions, content=b"\xff\xfe", headers=json_type),
            "field": await http.post(sessions, json={"agent": "a", "prompt": "p", "tenant": "other"}),
            "missing": await http.post(sessions, json={"agent": "a"}),
            "empty": await http.post(sessions, json={"agent": "a", "prompt": ""}),
            "array": await http.post(sessions, json=[]),
            "huge": await http.post(sessions, json={"agent": "a", "prompt": "x" * 200_000}),
            "chunks": await http.post(sessions, content=chunks(), headers=json_type),
            "session": await http.get("/v1/sessions/none-of-that-name"),
            "id": await http.get("/v1/sessions/%00%2f"),
            "route": await http.get("/v1/nothing"),
            "method": await http.put(sessions, json={}),
        }
    found = {name: (answer.status_code, answer.json()["code"]) for name, answer in answers.items()}
    assert found == {
        "json": (400, "request.bad_json"),
        "utf8": (400, "request.bad_json"),
        "field": (422, "request.invalid"),
        "missing": (422, "request.invalid"),
        "empty": (422, "request.invalid"),
        "array": (422, "request.invalid"),
        "huge": (413, "request.too_large"),
        "chunks": (413, "request.too_large"),
        "session": (404, "request.unknown_session"),
        "id": (404, "request.not_found"),
        "route": (404, "request.not_found"),
        "method": (405, "request.method_not_allowed"),
    }
    assert {answer.headers["content-type"] for answer in answers.values()} == {"application/problem+json"}
    said = {name: answers[name].json()["detail"] for name in ("field", "missing", "empty", "array")}
    assert said == {
        "field": "tenant: there is no such field; leave it out (who asks and for which tenant is the token's to say)",
        "missing": "prompt: is needed",
        "empty": "prompt: is empty",
        "array": "body: is no object",
    }
