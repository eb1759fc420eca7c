"""S-83: the door of A2A 1.0, over HTTP with a real worker, judged by the protocol's own rules."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from perdure import Agent, ask_user, tool
from perdure.settings import SettingsError
from perdure.testing import Script, ScriptedProvider, call, faults, say
from perdure.testing.script import Reply
from tests.gateway import Door, gateway, token_lines
from tests.house import House, eventually
from tests.unit.gateway.a2a_rules import judge, judge_update, shown
from tests.unit.gateway.test_a2a_signing import check, pem_of


@tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@tool(requires_approval=True)
def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


AGENT = Agent(name="tester", model="openai/scripted", description="Tests.", tools=[add, pay, ask_user])
OTHER = Agent(name="other", model="openai/scripted")


class Peer:
    """A client of one agent."""

    def __init__(self, http: httpx.AsyncClient, agent: str = "tester") -> None:
        self.http = http
        self.base = f"/a2a/{agent}"
        self.sent = 0

    def message(self, *parts: Any, **fields: Any) -> dict[str, Any]:
        self.sent += 1
        told = [{"text": part} if isinstance(part, str) else {"data": part} for part in parts]
        return {"messageId": f"m-{self.sent}", "role": "ROLE_USER", "parts": told, **fields}

    async def rpc(self, method: str, **params: Any) -> dict[str, Any]:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        answered = await self.http.post(self.base, json=body, headers={"A2A-Version": "1.0"})
        found: dict[str, Any] = answered.json()
        assert (found["jsonrpc"], found["id"]) == ("2.0", 1)
        assert answered.status_code < 500
        return found

    async def result(self, method: str, **params: Any) -> dict[str, Any]:
        found = await self.rpc(method, **params)
        assert "result" in found, found
        result: dict[str, Any] = found["result"]
        return result

    async def error(self, method: str, **params: Any) -> tuple[int, str]:
        error = (await self.rpc(method, **params))["error"]
        return error["code"], error["data"][0]["metadata"]["code"]

    async def send(self, *parts: Any, later: bool = False, **fields: Any) -> dict[str, Any]:
        """The task that takes a message."""
        sent = self.message(*parts, **fields)
        task: dict[str, Any] = (
            await self.result("SendMessage", message=sent, configuration={"returnImmediately": later})
        )["task"]
        judge("Task", task)
        return task

    async def rest(self, method: str, path: str, **more: Any) -> httpx.Response:
        return await self.http.request(method, f"{self.base}{path}", headers={"A2A-Version": "1.0"}, **more)

    @asynccontextmanager
    async def stream(self, path: str, body: Any = None) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        """The items of a stream of the REST binding, each judged."""
        asked = self.http.stream("POST", f"{self.base}{path}", json=body, headers={"A2A-Version": "1.0"})
        async with asked as answered:
            assert answered.headers["content-type"].startswith("text/event-stream"), await answered.aread()
            yield _items(answered)


async def _items(answered: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in answered.aiter_lines():
        if line.startswith("data: "):
            item: dict[str, Any] = json.loads(line[6:])
            judge_update(item)
            yield item


@asynccontextmanager
async def opened(
    house: House, *replies: Reply, agent: Agent = AGENT, **settings: Any
) -> AsyncIterator[tuple[Peer, Door]]:
    async with (
        ScriptedProvider(Script(replies=replies)) as provider,
        house.worker(agent, OTHER),
        gateway(house, doors=("a2a",), **settings) as door,
    ):
        house.use(provider)
        yield Peer(door.http), door


def state_of(task: dict[str, Any]) -> str:
    return str(task["status"]["state"]).removeprefix("TASK_STATE_")


async def card_of(door: Door) -> dict[str, Any]:
    card: dict[str, Any] = (await door.http.get("/a2a/tester/.well-known/agent-card.json")).json()
    judge("AgentCard", card)
    return card


PUSH: dict[str, Any] = {"url": "https://example.com/"}


async def test_what_the_operator_has_switched_off_is_refused_as_the_card_says(house: House) -> None:
    """S-83: streams and push notifications; nothing begins of a message that wants one."""
    async with opened(house, say("hi"), a2a_capabilities=()) as (peer, door):
        capabilities = (await card_of(door))["capabilities"]
        assert capabilities == {"streaming": False, "pushNotifications": False, "extendedAgentCard": False}
        wanted = {"taskPushNotificationConfig": PUSH}
        of_task = {"taskId": "t", "id": "p"}
        refused: list[tuple[str, dict[str, Any], int]] = [
            ("SendStreamingMessage", {"message": peer.message("go")}, -32004),
            ("SubscribeToTask", {"id": "t"}, -32004),
            ("GetExtendedAgentCard", {}, -32004),
            ("SendMessage", {"message": peer.message("go"), "configuration": wanted}, -32003),
            ("CreateTaskPushNotificationConfig", {"taskId": "t", **PUSH}, -32003),
            ("GetTaskPushNotificationConfig", of_task, -32003),
            ("ListTaskPushNotificationConfigs", {"taskId": "t"}, -32003),
            ("DeleteTaskPushNotificationConfig", of_task, -32003),
        ]
        for method, params, code in refused:
            assert (await peer.rpc(method, **params))["error"]["code"] == code, method
        streamed = await peer.rest("POST", "/message:stream", json={"message": peer.message("go")})
        pushed = await peer.rest("GET", "/tasks/t/pushNotificationConfigs")
        assert (streamed.status_code, pushed.status_code) == (400, 400)
        assert "PUSH_NOTIFICATION_NOT_SUPPORTED" in pushed.text
        assert (await peer.result("ListTasks"))["totalSize"] == 0
        assert state_of(await peer.send("go")) == "COMPLETED"


async def test_an_extension_that_the_operator_wants_is_declared_or_refused(house: House) -> None:
    """S-83."""
    uris = "https://example.com/policy/v1", "urn:acme:other"
    async with opened(house, say("hi"), a2a_extensions=uris) as (peer, door):
        told = (await card_of(door))["capabilities"]["extensions"]
        assert told == [{"uri": uri, "required": True} for uri in uris]
        body = {"message": peer.message("go")}
        for declared in ({}, {"A2A-Extensions": uris[0]}):
            refused = await door.http.post(
                f"{peer.base}/message:send", json=body, headers={"A2A-Version": "1.0", **declared}
            )
            assert (refused.status_code, "EXTENSION_SUPPORT_REQUIRED" in refused.text) == (400, True)
        assert (await peer.rpc("ListTasks"))["error"]["code"] == -32008
        peer.http.headers["A2A-Extensions"] = ", ".join(uris)
        assert (await peer.result("ListTasks"))["totalSize"] == 0
        assert state_of(await peer.send("go")) == "COMPLETED"


async def test_the_tools_of_an_agent_are_in_its_extended_card_if_it_has_one(house: House) -> None:
    """S-83."""
    async with opened(house, a2a_capabilities=("extended-card",)) as (peer, door):
        card = await card_of(door)
        assert (card["capabilities"]["extendedAgentCard"], [skill["id"] for skill in card["skills"]]) == (
            True,
            ["tester"],
        )
        extended = await peer.result("GetExtendedAgentCard")
        judge("AgentCard", extended)
        assert [skill["id"] for skill in extended["skills"]] == ["tester", "tool:add", "tool:pay", "tool:ask_user"]
        assert {**extended, "skills": card["skills"]} == card
        assert (await peer.rest("GET", "/extendedAgentCard")).json() == extended


async def test_a_task_is_done_read_and_listed_by_both_bindings(house: House) -> None:
    async with opened(house, call(("add", {"a": 1, "b": 2})), say("three"), say("four")) as (peer, door):
        card = (await door.http.get("/a2a/tester/.well-known/agent-card.json")).json()
        judge("AgentCard", card)
        assert {one["url"] for one in card["supportedInterfaces"]} == {f"{door.url}/a2a/tester"}
        assert [skill["id"] for skill in card["skills"]] == ["tester", "tool:add", "tool:pay", "tool:ask_user"]
        assert card["capabilities"]["pushNotifications"] is True
        task = await peer.send("1 + 2")
        assert (state_of(task), task["artifacts"][-1]["parts"][0]["text"]) == ("COMPLETED", "three")
        assert task["history"][0]["messageId"] == "m-1"
        found = await peer.rest("GET", f"/tasks/{task['id']}?historyLength=0")
        assert found.headers["content-type"] == "application/a2a+json"
        assert found.json() == {name: value for name, value in task.items() if name != "history"}
        assert await peer.result("GetTask", id=task["id"]) == task
        same = peer.message("and 4?", contextId=task["contextId"])
        second, again = [(await peer.rest("POST", "/message:send", json={"message": same})).json() for _ in range(2)]
        assert (state_of(second["task"]), second["task"]["contextId"]) == ("COMPLETED", task["contextId"])
        assert again == second
        listed = await peer.result("ListTasks", contextId=task["contextId"])
        judge("ListTasksResponse", listed)
        assert [one["id"] for one in listed["tasks"]] == [second["task"]["id"], task["id"]]
        assert "artifacts" not in listed["tasks"][0]
        page = (await peer.rest("GET", "/tasks?pageSize=1&includeArtifacts=true&status=TASK_STATE_COMPLETED")).json()
        assert (page["totalSize"], page["tasks"][0]["artifacts"]) == (2, second["task"]["artifacts"])
        rest = await peer.result("ListTasks", pageSize=1, pageToken=page["nextPageToken"])
        assert ([one["id"] for one in rest["tasks"]], rest["nextPageToken"]) == ([task["id"]], "")
        assert (await peer.result("ListTasks", status="TASK_STATE_WORKING"))["totalSize"] == 0
        other = Peer(door.http, "other")
        assert (await other.result("ListTasks"))["totalSize"] == 0
        assert await other.error("GetTask", id=task["id"]) == (-32001, "request.unknown_turn")


async def test_an_answer_comes_as_it_is_written_and_a_lost_stream_is_joined_again(house: House) -> None:
    """S-83: a closed connection ends nothing, and who comes later has the same in the end."""
    text = "The quick brown fox jumps over the lazy dog"
    agent = AGENT.clone(stream="always")
    async with (
        ScriptedProvider(Script(replies=(say(text),))) as provider,
        house.worker(agent),
        gateway(house, doors=("a2a",)) as door,
    ):
        house.use(provider)
        provider.hold_streams(after=4)
        peer = Peer(door.http)
        async with peer.stream("/message:stream", {"message": peer.message("go")}) as items:
            first = await anext(items)
            task = first["task"]["id"]
            async for item in items:
                if "artifactUpdate" in item:
                    break
        assert state_of((await peer.rest("GET", f"/tasks/{task}")).json()) == "WORKING"
        async with peer.stream(f"/tasks/{task}:subscribe") as again:
            seen = [await anext(again)]
            await provider.release_streams()
            seen += [item async for item in again]
        assert shown(seen) == {"state": "TASK_STATE_COMPLETED", "artifacts": {"answer-1-1": text}}
        assert await peer.error("SubscribeToTask", id=task) == (-32004, "request.conflict")
        assert await peer.error("CancelTask", id=task) == (-32002, "request.session_idle")
        assert await peer.error("SendMessage", message=peer.message("x", taskId=task)) == (-32004, "request.conflict")


async def test_people_approve_and_answer_at_this_door(house: House) -> None:
    both = call(("pay", {"amount": 7}), ("ask_user", {"question": "Which colour?"}))
    async with opened(house, both, say("done"), call(("ask_user", {"question": "Why?"})), say("so")) as (peer, _):
        task = await peer.send("go")
        assert state_of(task) == "INPUT_REQUIRED"
        asked = [part["data"] for part in task["status"]["message"]["parts"] if "data" in part]
        assert [one["needs"] for one in asked] == ["approval", "answer"]
        wrong = [
            peer.message("yes", taskId=task["id"]),
            peer.message({"request": "call_else", "approve": True}, taskId=task["id"]),
            peer.message({"request": asked[0]["request"], "answer": "yes"}, taskId=task["id"]),
            peer.message({"request": asked[1]["request"], "answer": "x" * 1_000_000}, taskId=task["id"]),
            peer.message({"request": asked[0]["request"], "approve": True}),
            peer.message({"request": asked[0]["request"], "approve": True}, taskId=task["id"], contextId="else"),
        ]
        for message in wrong:
            assert await peer.error("SendMessage", message=message) == (-32602, "request.invalid"), str(message)[:200]
        half = await peer.send({"request": asked[1]["request"], "answer": "blue"}, taskId=task["id"])
        assert state_of(half) == "INPUT_REQUIRED"
        approval = {"request": asked[0]["request"], "approve": True, "digest": asked[0]["digest"]}
        async with peer.stream("/message:stream", {"message": peer.message(approval, taskId=task["id"])}) as items:
            seen = [item async for item in items]
        assert shown(seen) == {"state": "TASK_STATE_COMPLETED", "artifacts": {"answer-2-1": "done"}}
        assert "paid 7" in str(await house.client.transcript(task["contextId"]))
        again = await peer.send(approval, taskId=task["id"])
        assert (state_of(again), again["id"]) == ("COMPLETED", task["id"])
        denial = {"request": asked[0]["request"], "approve": False}
        assert await peer.error("SendMessage", message=peer.message(denial, taskId=task["id"])) == (
            -32000,
            "request.conflict",
        )
        question = await peer.send("again", contextId=task["contextId"])
        assert state_of(question) == "INPUT_REQUIRED"
        waiting = await peer.result("ListTasks", status="TASK_STATE_INPUT_REQUIRED")
        assert [one["id"] for one in waiting["tasks"]] == [question["id"]]
        answered = await peer.send("because", taskId=question["id"])
        assert (state_of(answered), answered["artifacts"][-1]["parts"][0]["text"]) == ("COMPLETED", "so")


async def test_a_message_steers_a_task_that_works_and_a_new_one_waits_for_its_turn(house: House) -> None:
    async with (
        ScriptedProvider(Script(replies=(call(("add", {"a": 1, "b": 2})), say("first"), say("second")))) as provider,
        house.worker(AGENT.clone(stream="always")),
        gateway(house, doors=("a2a",)) as door,
    ):
        house.use(provider)
        provider.hold_streams(after=1)
        peer = Peer(door.http)
        async with peer.stream("/message:stream", {"message": peer.message("go")}) as items:
            task = (await anext(items))["task"]

            async def works() -> bool:
                return state_of(await peer.result("GetTask", id=task["id"])) == "WORKING"

            await eventually(works)
            steered = await peer.send("faster", later=True, taskId=task["id"])
            assert steered["id"] == task["id"]
            queued = await peer.send("and then?", later=True, contextId=task["contextId"])
            assert (queued["id"] != task["id"], state_of(queued)) == (True, "SUBMITTED")
            await provider.release_streams()
            seen = [item async for item in items]
            assert seen[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
        said = (await peer.result("GetTask", id=task["id"]))["history"]
        assert [message["parts"][0]["text"] for message in said] == ["go", "faster"]

        async def ended() -> bool:
            return state_of(await peer.result("GetTask", id=queued["id"])) == "COMPLETED"

        await eventually(ended)


async def test_a_task_is_cancelled_and_one_that_temporal_ends_has_failed(house: House) -> None:
    async with opened(house, say("never").after(faults.hang(), faults.hang())) as (peer, _):
        task = await peer.send("go", later=True)
        cancelled = await peer.result("CancelTask", id=task["id"])
        judge("Task", cancelled)
        assert state_of(cancelled) == "CANCELED"
        more = await peer.send("go on", later=True, contextId=task["contextId"])

        async def works() -> bool:
            return state_of(await peer.result("GetTask", id=more["id"])) == "WORKING"

        await eventually(works)
        async with peer.stream(f"/tasks/{more['id']}:subscribe") as items:
            seen = [await anext(items)]
            await house.temporal.get_workflow_handle(task["contextId"]).terminate("by an operator")
            seen += [item async for item in items]
        assert shown(seen)["state"] == "TASK_STATE_FAILED"
        assert "terminated" in str(seen[-1])
        assert state_of(await peer.result("GetTask", id=more["id"])) == "FAILED"


async def test_refusals_have_the_protocols_form_and_our_codes(house: House) -> None:
    lines, tokens = token_lines(ann=("acme", "read,run"), eve=("evil", "admin"), run=("acme", "run"))
    async with (
        ScriptedProvider(Script(replies=(call(("pay", {"amount": 7})), say("one")))) as provider,
        house.worker(AGENT),
        gateway(house, doors=("a2a",), gateway_tokens=lines) as door,
        door.holder(tokens["ann"]) as ann,
        door.holder(tokens["eve"]) as eve,
        door.holder(tokens["run"]) as blind,
    ):
        house.use(provider)
        peer, thief = Peer(ann), Peer(eve)
        assert (await door.http.get("/a2a/tester/.well-known/agent-card.json")).status_code == 401
        card = (await ann.get("/a2a/tester/.well-known/agent-card.json")).json()
        judge("AgentCard", card)
        assert "httpAuthSecurityScheme" in card["securitySchemes"]["bearer"]
        task = await peer.send("go", contextId="desk-1")
        (request,) = [part["data"]["request"] for part in task["status"]["message"]["parts"] if "data" in part]
        reply = {"request": request, "approve": True}
        assert await peer.error("SendMessage", message=peer.message(reply, taskId=task["id"])) == (
            -32000,
            "request.forbidden",
        )
        for name in (task["id"], "nobody"):
            for method in ("GetTask", "CancelTask", "SubscribeToTask"):
                assert await thief.error(method, id=name) == (-32001, "request.unknown_turn")
            sent = thief.message(reply, taskId=name)
            assert await thief.error("SendMessage", message=sent) == (-32001, "request.unknown_turn")
        assert await thief.error("SendMessage", message=thief.message("x", contextId="desk-1")) == (
            -32602,
            "request.unknown_session",
        )
        assert (await thief.result("ListTasks"))["totalSize"] == 0
        assert (await Peer(blind).error("SendMessage", message=peer.message("x")))[1] == "request.forbidden"
        assert (await peer.error("GetTask", id=task["id"], tenant="evil"))[1] == "request.invalid"
        assert (await Peer(ann, "nobody").error("SendMessage", message=peer.message("x")))[1] == "request.unknown_agent"
        assert (await peer.rpc("message/send"))["error"]["code"] == -32601
        assert (await peer.error("GetExtendedAgentCard"))[0] == -32004
        assert (await peer.error("SendMessage", message=peer.message("x" * 1_000_000)))[1] == "request.too_large"
        told = {"A2A-Version": "1.0", "Content-Type": "application/json"}
        for content, code in (
            (b"{", -32700),
            (b"\xff", -32700),
            (b"[]", -32600),
            (b"7", -32600),
            (b"[" * 5_000, -32600),
            (b'{"id": 1, "method": "GetTask"}', -32600),
            (b'{"jsonrpc": "2.0", "id": [1], "method": "GetTask"}', -32600),
        ):
            odd = await ann.post("/a2a/tester", content=content, headers=told)
            assert (odd.status_code, odd.json()["error"]["code"]) == (200, code), (content[:50], odd.text)
        for version in ("", "0.3", "2.0"):
            old = await ann.get(f"/a2a/tester/tasks/{task['id']}", headers={"A2A-Version": version})
            assert old.json()["error"]["details"][0]["reason"] == "VERSION_NOT_SUPPORTED"
        assert (await ann.get(f"/a2a/tester/tasks/{task['id']}?A2A-Version=1.0")).status_code == 200
        for method, path, status in (
            ("GET", "/tasks/nobody", 404),
            ("GET", "/tasks/%00", 404),
            ("GET", f"/tasks/{'x' * 600}", 400),
            ("GET", "/tasks?pageToken=x", 400),
            ("GET", "/tasks?pageSize=0", 400),
            ("GET", f"/tasks/{task['id']}/pushNotificationConfigs/nobody", 404),
            ("POST", f"/tasks/{task['id']}/pushNotificationConfigs", 400),
            ("POST", "/message:send", 400),
            ("PUT", "/message:send", 405),
            ("GET", "/nothing", 404),
            ("POST", "/tasks/nobody:cancel", 404),
        ):
            odd = await peer.rest(method, path)
            assert (odd.status_code, odd.json()["error"]["code"]) == (status, status), (path, odd.text)
        assert state_of(await peer.result("GetTask", id=task["id"])) == "INPUT_REQUIRED"


async def test_a_signed_card_vouches_for_the_address_of_the_settings(house: House) -> None:
    """S-83: not for one that whoever asks may choose; and a gateway with a key that cannot sign does not start."""
    key = ec.generate_private_key(ec.SECP256R1())
    lines, tokens = token_lines(ann=("acme", "read"))
    known: dict[str, Any] = {"doors": ("a2a",), "gateway_tokens": lines, "gateway_url": "https://agents.example.com"}
    async with (
        house.worker(AGENT),
        gateway(house, a2a_signing_key=pem_of(key), **known) as door,
        door.holder(tokens["ann"]) as ann,
    ):
        path = "/a2a/tester/.well-known/agent-card.json"
        card = (await ann.get(path, headers={"Host": "evil.example.com"})).json()
    judge("AgentCard", card)
    check(card, key, "ES256")
    assert {one["url"] for one in card["supportedInterfaces"]} == {"https://agents.example.com/a2a/tester"}
    with pytest.raises(SettingsError, match="PERDURE_A2A_SIGNING_KEY is no private key"):
        async with gateway(house, a2a_signing_key="no key", **known):
            pass
