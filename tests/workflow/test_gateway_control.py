"""Pause, erasure and the cancel of many sessions over HTTP, each within its scope and tenant."""

from perdure.testing import ScriptedProvider
from tests.gateway import gateway, token_lines
from tests.house import House, eventually
from tests.workflow.bodies import Body, happened
from tests.workflow.test_when_busy import HELD, agent


async def test_a_message_interrupts_and_a_session_is_paused_goes_on_and_is_erased(house: House) -> None:
    body, at = Body(), f"/v1/sessions/{house.session}"
    async with ScriptedProvider(HELD) as provider, house.worker(agent(body)), gateway(house) as door:
        house.use(provider)
        http = door.http
        await http.post("/v1/sessions", json={"agent": "tester", "prompt": "go", "session": house.session})
        await happened(body.started)
        refused = await http.post(f"{at}/messages", json={"prompt": "x", "when_busy": "reject"})
        assert (refused.status_code, refused.json()["code"]) == (409, "request.session_busy")
        odd = await http.post(f"{at}/messages", json={"prompt": "x", "when_busy": "later"})
        assert (odd.status_code, odd.json()["code"]) == (422, "request.invalid")
        busy = await http.delete(at)
        assert (busy.status_code, busy.json()["code"]) == (409, "request.session_busy")
        paused = await http.post(f"{at}/pause", json={"reason": "a move"})
        assert (paused.status_code, paused.json()["changed"]) == (200, True)
        body.released.set()

        async def stands_still() -> bool:
            wait = (await http.get(at)).json()["waits_for"]
            return wait is not None and wait["text"] == "the session is paused by local: a move"

        await eventually(stands_still)
        ticket = await http.post(f"{at}/messages", json={"prompt": "now this", "when_busy": "interrupt"})
        assert (ticket.status_code, ticket.json()["turn"]) == (202, 2)
        assert (await http.post(f"{at}/unpause")).json() == {
            "session": house.session,
            "paused": False,
            "changed": True,
        }
        joined = await http.get(f"{at}/turns/2", headers={"Prefer": "wait=30"})
        assert joined.json()["result"]["output"] == "answer 1"

        async def closed() -> bool:
            idle = await http.post(f"{at}/pause")
            return (idle.status_code, idle.json().get("code")) == (409, "request.session_idle")

        await eventually(closed)
        assert (await http.delete(at)).status_code == 204
        for answer in (
            await http.get(at),
            await http.delete(at),
            await http.post("/v1/sessions", json={"agent": "tester", "prompt": "anew", "session": house.session}),
        ):
            assert (answer.status_code, answer.json()["code"]) == (410, "session.erased")
            assert "was erased on request by local" in answer.json()["detail"]


async def test_many_are_cancelled_within_a_tenant_by_an_admin_alone(house: House) -> None:
    """Another tenant's sessions are neither counted nor stopped."""
    body = Body()
    lines, tokens = token_lines(ann=("acme", "read,run"), boss=("acme", "admin"), eve=("evil", "admin"))
    async with (
        ScriptedProvider(HELD) as provider,
        house.worker(agent(body)),
        gateway(house, gateway_tokens=lines) as door,
        door.holder(tokens["ann"]) as ann,
        door.holder(tokens["boss"]) as boss,
        door.holder(tokens["eve"]) as eve,
    ):
        house.use(provider)
        at = f"/v1/sessions/{house.session}"
        await ann.post("/v1/sessions", json={"agent": "tester", "prompt": "go", "session": house.session})
        await happened(body.started)
        for path, method in (("/v1/cancel", "POST"), (at, "DELETE")):
            refused = await ann.request(method, path, json={})
            assert (refused.status_code, refused.json()["code"]) == (403, "request.forbidden"), path
        assert (await eve.post("/v1/cancel", json={"dry_run": False})).json() == {"items": []}
        assert [
            (await eve.request(method, path)).status_code for method, path in (("DELETE", at), ("POST", f"{at}/pause"))
        ] == [404, 404]
        (found,) = (await boss.post("/v1/cancel", json={"agent": "tester"})).json()["items"]
        assert (found["session"], found["outcome"]) == (house.session, "would_cancel")
        for odd in ({"state": "ended"}, {"since": "2026-01-01"}, {"tenant": 1}, {"agent": 1}):
            answer = await boss.post("/v1/cancel", json=odd)
            assert (answer.status_code, answer.json()["code"]) == (422, "request.invalid"), odd
        foreign = await boss.post("/v1/cancel", json={"tenant": "evil"})
        assert (foreign.status_code, foreign.json()["code"]) == (403, "request.forbidden")
        (done,) = (await boss.post("/v1/cancel", json={"tenant": "acme", "dry_run": False, "reason": "night"})).json()[
            "items"
        ]
        assert done["outcome"] == "cancelled"
        joined = await ann.get(f"{at}/turns/1", headers={"Prefer": "wait=30"})
        assert joined.json()["result"]["error"] == "Operation aborted: night"
