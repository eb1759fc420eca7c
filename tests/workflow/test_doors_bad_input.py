"""S-83: what no client should send to a door of another protocol is refused in its form, and nothing is half-done.

Each door's own test of refusals has more; here are those that are the same for all doors, on one gateway.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx

from perdure import Agent, tool
from perdure.contracts.a2a import TaskId
from perdure.gateway.doors.responses.places import ResponseId
from perdure.testing import ChatRequest, Reply, ScriptedProvider, call, say
from tests.gateway import gateway, token_lines
from tests.house import House, eventually

BIG = "x" * 1_000_000
SCHEMA: dict[str, Any] = {"type": "object", "properties": {}}
NO_SCHEMA: dict[str, Any] = {"type": "nothing"}


@tool(requires_approval=True)
def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


AGENT = Agent(name="tester", model="openai/scripted", tools=[pay])
OTHER = Agent(name="other", model="openai/scripted")


def answer(request: ChatRequest) -> Reply:
    return call(("pay", {"amount": 7})) if request.messages[-1]["content"] == "pay" else say("done")


class Row(NamedTuple):
    """A request and its refusal."""

    method: str
    path: str
    body: Any
    status: int
    code: str


def of_responses(call_id: str) -> Iterator[Row]:
    """Rows of the Responses API; a job waits for the call's approval."""
    waits, ended, hers = (str(ResponseId(session, 1)) for session in ("waits", "ended", "hers"))

    def made(status: int = 400, code: str = "request.invalid", **fields: Any) -> Row:
        return Row("POST", "/openai/v1/responses", {"model": "tester", **fields}, status, code)

    def approval(name: str = call_id, approve: bool = True) -> list[dict[str, Any]]:
        return [{"type": "mcp_approval_response", "approval_request_id": f"mcpr_{name}", "approve": approve}]

    def tools(*names: str, parameters: Any = SCHEMA) -> list[dict[str, Any]]:
        return [{"type": "function", "name": name, "parameters": parameters} for name in names]

    yield made(413, "request.too_large", input=BIG)
    yield made(input=7)
    yield made(input="x", conversation="a b")
    yield made(input="x", conversation="x" * 1_000)
    yield made(404, "request.unknown_session", input="x", conversation="hers")
    yield made(404, "request.unknown_turn", input="x", previous_response_id=hers)
    yield made(404, "request.unknown_turn", input="x", previous_response_id=BIG[:400])
    yield made(input="x", previous_response_id=waits)
    yield made(input=approval("call_else"), previous_response_id=waits)
    yield made(input=approval() * 2, previous_response_id=waits)
    yield made(input=[*approval(), *approval("call_else")], previous_response_id=waits)
    yield made(input=[{"type": "function_call_output", "call_id": call_id, "output": "x"}], previous_response_id=waits)
    yield made(input=approval(), previous_response_id=ended)
    yield made(404, "request.unknown_session", input=approval(), conversation="nowhere")
    yield made(input="x", tools=tools("t", parameters=NO_SCHEMA))
    yield made(input="x", tools=tools("t", "t"))
    yield made(input="x", tools=tools("a b"))
    yield made(input="x", tools=tools(*(f"t{n}" for n in range(500))))
    yield made(input="x", tools=tools("t", parameters={**SCHEMA, "description": BIG}))
    yield made(input="x", metadata={"a": BIG})
    yield made(input="x", metadata={"a": 7})
    for path in ("", "/input_items", "?stream=true", "?stream=true&starting_after=0"):
        yield Row("GET", f"/openai/v1/responses/{hers}{path}", None, 404, "request.unknown_turn")
    for number in (2**40, 2**52):
        path = f"/openai/v1/responses/{ended}?stream=true&starting_after={number}"
        yield Row("GET", path, None, 400, "request.invalid")
    for later in (ResponseId("ended", 2), ResponseId("ended", 1, 2), ResponseId("ended", 9_999_999, 9_999_999)):
        yield Row("GET", f"/openai/v1/responses/{later}", None, 404, "request.unknown_turn")
        yield Row("POST", f"/openai/v1/responses/{later}/cancel", None, 404, "request.unknown_turn")
    yield Row("GET", "/openai/v1/conversations/hers", None, 404, "request.unknown_session")
    yield Row("DELETE", f"/openai/v1/responses/{waits}", None, 405, "request.method_not_allowed")
    yield Row("POST", f"/openai/v1/responses/{hers}/cancel", None, 404, "request.unknown_turn")


def of_a2a(call_id: str) -> Iterator[Row]:
    """Rows of A2A's REST binding."""
    waits, ended, hers = (str(TaskId(session, 1)) for session in ("waits", "ended", "hers"))
    approve = {"request": call_id, "approve": True}

    def sent(*parts: Any, status: int = 400, code: str = "request.invalid", agent: str = "tester", **more: Any) -> Row:
        message = {"messageId": f"bad-{more.pop('n', 0)}", "role": "ROLE_USER", "parts": [*parts], **more}
        return Row("POST", f"/a2a/{agent}/message:send", {"message": message}, status, code)

    yield sent({"text": BIG}, status=413, code="request.too_large")
    yield sent()
    yield sent({"text": 7})
    yield sent({"text": "x"}, messageId="")
    yield sent({"text": "x"}, messageId=BIG)
    yield sent({"text": "x"}, role="ROLE_AGENT")
    yield sent({"text": "x"}, contextId="a b")
    yield sent({"text": "x"}, contextId="hers", status=404, code="request.unknown_session")
    yield sent({"text": "x"}, contextId="ended", agent="other")
    yield sent({"text": "x"}, taskId=hers, status=404, code="request.unknown_turn")
    yield sent({"text": "x"}, taskId=BIG[:400], status=404, code="request.unknown_turn")
    yield sent({"text": "x"}, taskId=waits, agent="other", status=404, code="request.unknown_turn")
    yield sent({"text": "x"}, taskId=ended, code="request.conflict")
    yield sent({"data": approve}, taskId=ended, code="request.conflict")
    yield sent({"data": approve}, {"data": {**approve, "request": "call_else"}}, taskId=waits)
    yield sent({"data": approve}, {"data": {**approve, "approve": False}}, taskId=waits)
    yield sent({"data": {"request": call_id, "result": "x"}}, taskId=waits)
    yield sent({"data": {**approve, "digest": "0" * 64}}, taskId=waits, status=409, code="request.conflict")
    yield sent({"data": {**approve, "approve": "yes"}}, taskId=waits)
    yield sent({"data": {**approve, "approve": False, "reason": BIG}}, taskId=waits)
    yield sent({"url": "http://127.0.0.1:1/x"})
    for task in (hers, str(TaskId("ended", 2)), str(TaskId("ended", 9_999_999))):
        yield Row("GET", f"/a2a/tester/tasks/{task}", None, 404, "request.unknown_turn")
        for verb in ("cancel", "subscribe"):
            yield Row("POST", f"/a2a/tester/tasks/{task}:{verb}", None, 404, "request.unknown_turn")
    yield Row("GET", f"/a2a/other/tasks/{ended}", None, 404, "request.unknown_turn")
    yield Row("GET", f"/a2a/tester/tasks/{ended}?historyLength=-1", None, 400, "request.invalid")
    yield Row("GET", "/a2a/tester/tasks?pageSize=1000000", None, 400, "request.invalid")
    yield Row("GET", "/a2a/tester/tasks?status=TASK_STATE_NONE", None, 400, "request.invalid")
    yield Row("DELETE", f"/a2a/tester/tasks/{ended}", None, 405, "request.method_not_allowed")


def of_agui(call_id: str) -> Iterator[Row]:
    """Rows of AG-UI."""
    user = {"id": "m", "role": "user", "content": "x"}

    def run(
        thread: str,
        *messages: Any,
        status: int = 422,
        code: str = "request.invalid",
        agent: str = "tester",
        **more: Any,
    ) -> Row:
        body = {"threadId": thread, "runId": "bad", "messages": [*messages], **more}
        return Row("POST", f"/agui/{agent}", body, status, code)

    def resumed(name: str = call_id, **more: Any) -> dict[str, Any]:
        return {"interruptId": name, "status": "resolved", "payload": {"approved": True}, **more}

    def tools(*names: str, parameters: Any = SCHEMA) -> list[dict[str, Any]]:
        return [{"name": name, "description": "", "parameters": parameters} for name in names]

    yield run("free", {**user, "content": BIG}, status=413, code="request.too_large")
    yield run("free", {**user, "content": 7})
    yield run("free", {**user, "role": "nobody"})
    yield run("free", user, runId=BIG)
    yield run("x" * 1_000, user)
    yield run("hers", user, status=404, code="request.unknown_session")
    yield run("hers", status=404, code="request.unknown_session", resume=[resumed()])
    yield run("free", status=404, code="request.unknown_session", resume=[resumed()])
    yield run("ended", resume=[resumed()])
    yield run("ended", user, {"id": "t", "role": "tool", "toolCallId": "call_else", "content": "x"})
    yield run("waits", user)
    yield run("waits", resume=[resumed("call_else")])
    yield run("waits", resume=[resumed(), resumed("call_else")])
    yield run("waits", resume=[resumed(), resumed()])
    yield run("waits", resume=[resumed(payload={"approved": "yes"})])
    yield run("waits", resume=[resumed(payload={"approved": False, "reason": BIG})])
    yield run("waits", resume=[resumed(status="maybe")])
    yield run("free", user, tools=tools("t", parameters=NO_SCHEMA))
    yield run("free", user, tools=tools("t", "t"))
    yield run("free", user, tools=tools(*(f"t{n}" for n in range(500))))
    yield run("free", user, tools=tools("t", parameters={**SCHEMA, "description": BIG}))
    for method in ("GET", "DELETE"):
        for where in (
            "hers/runs/1.1",
            "ended/runs/2.1",
            "ended/runs/1.2",
            "ended/runs/9999999.9999999",
            "ended/runs/0.1",
        ):
            yield Row(method, f"/agui/tester/threads/{where}", None, 404, "request.unknown_turn")
        yield Row(method, "/agui/other/threads/ended/runs/1.1", None, 404, "request.unknown_turn")
    yield Row("PATCH", "/agui/tester", None, 405, "request.method_not_allowed")


def code_of(answered: httpx.Response) -> object:
    """Our code, where the protocol of the address has it."""
    body, path = answered.json(), answered.request.url.path
    if path.startswith("/openai/"):
        return body["error"]["code"]
    if path.startswith("/a2a/"):
        return body["error"]["details"][0]["metadata"]["code"]
    assert body["type"] == "RUN_ERROR"
    return body["code"]


async def state_of(house: House) -> dict[str, int]:
    """How far the log of every session is."""
    sessions = [record.session for record, _ in await house.client.sessions()]
    return dict(await house.store.last_seqs(sessions))


async def test_what_no_client_should_send_is_refused_and_leaves_nothing_behind(house: House) -> None:
    """S-83: the job that waits has its approval afterwards, and goes on as if nothing had been."""
    lines, tokens = token_lines(ann=("acme", "admin"), eve=("evil", "admin"))
    settings = {"doors": ("responses", "a2a", "agui"), "gateway_tokens": lines}
    async with (
        ScriptedProvider(answer) as provider,
        house.worker(AGENT, OTHER),
        gateway(house, **settings) as door,
        door.holder(tokens["ann"]) as ann,
        door.holder(tokens["eve"]) as eve,
    ):
        house.use(provider)
        for http, session, prompt in ((ann, "waits", "pay"), (ann, "ended", "x"), (eve, "hers", "x")):
            body = {"agent": "tester", "prompt": prompt, "session": session}
            assert (await http.post("/v1/sessions", json=body)).status_code == 202
        for session in ("ended", "hers"):
            await (await house.client.attach(session, 1)).result()
        (request,) = await eventually(lambda: house.client.inbox("waits"))
        before = await state_of(house)
        wrong = []
        for rows in (of_responses, of_a2a, of_agui):
            for row in rows(request.request_id):
                headers = {"A2A-Version": "1.0"} if row.path.startswith("/a2a/") else {}
                answered = await ann.request(row.method, row.path, json=row.body, headers=headers)
                found = (answered.status_code, code_of(answered) if answered.status_code >= 400 else "")
                if found != (row.status, row.code):
                    wrong.append(
                        (row.method, row.path[:120], str(row.body)[:250], answered.text[:300], row.status, row.code)
                    )
        assert not wrong, "\n".join(map(str, wrong))
        assert await state_of(house) == before
        assert (await house.temporal.count_workflows(f'TaskQueue = "{house.settings.task_queue}"')).count == len(before)
        await house.client.approve("waits", request.request_id, by="ann")
        assert (await (await house.client.attach("waits", 1)).result()).output == "done"
        assert provider.request_count == len(before) + 1
