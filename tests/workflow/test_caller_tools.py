"""S-81: tools that the caller runs, on the server: every door takes a result once, races come to one result."""

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest

from perdure import Agent, caller_tool, tool
from perdure.client import Client, RequestRefusedError, ResultRequest, UnknownSessionError
from perdure.testing import Script, ScriptedProvider, call, say
from tests.gateway import gateway
from tests.house import House
from tests.workflow.asking import refusal, results, update, waiting
from tests.workflow.test_mcp_door import did, host
from tests.workflow.test_people_doors import perdure

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
lookup = caller_tool("lookup", "Look a customer up.", SCHEMA)
LOOK = call(("lookup", {"id": 7}))
BOTH = call(("lookup", {"id": 7}), ("lookup", {"id": 8}))
DONE = say("done")


@tool(requires_approval=True)
def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


def agent(**settings: Any) -> Agent:
    fields: dict[str, Any] = {"name": "tester", "model": "openai/scripted", "tools": [lookup, pay]}
    return Agent(**{**fields, **settings})


async def test_the_client_gives_each_parallel_call_its_result_once(house: House) -> None:
    """S-81: the same result twice is harmless, and another one is refused."""
    script = Script(replies=(BOTH, DONE))
    async with ScriptedProvider(script) as provider, house.worker(agent()), await Client.connect() as client:
        house.use(provider)
        turn = await client.start("tester", "go", session=house.session)
        first, second = await waiting(house, 2)
        assert (first["needs"], first["tool"], json.loads(first["arguments"])) == ("result", "lookup", {"id": 7})
        listed = await client.inbox(house.session)
        assert [(request.request_id, request.needs) for request in listed] == [
            (asked["request_id"], "result") for asked in (first, second)
        ]
        given = {"digest": second["digest"], "by": "app"}
        receipt = await client.submit_result(house.session, second["request_id"], {"name": "Bob"}, **given)
        assert (receipt.decision, receipt.by) == ("returned", "app")
        assert await client.submit_result(house.session, second["request_id"], {"name": "Bob"}) == receipt
        with pytest.raises(RequestRefusedError, match="that stands"):
            await client.submit_result(house.session, second["request_id"], {"name": "Eve"})
        with pytest.raises(RequestRefusedError, match="the limit is 32,768"):
            await client.submit_result(house.session, first["request_id"], "x" * 1_000_000)
        with pytest.raises(RequestRefusedError, match="are not those of this result"):
            await client.submit_result(house.session, first["request_id"], 1, digest="0" * 32)
        with pytest.raises(RequestRefusedError, match="nothing waits for"):
            await client.submit_result(house.session, "call_else", 1)
        with pytest.raises(UnknownSessionError):
            await client.submit_result("nowhere", first["request_id"], 1)
        failed = await client.submit_result(house.session, first["request_id"], error="no such customer")
        assert (await turn.result()).output == "done"
        assert await client.submit_result(house.session, first["request_id"], error="no such customer") == failed
        lates: list[dict[str, Any]] = [{"value": "Ada"}, {"error": "another"}]
        for late in lates:
            with pytest.raises(RequestRefusedError, match="that stands"):
                await client.submit_result(house.session, first["request_id"], **late)
        with pytest.raises(RequestRefusedError, match="does not wait for"):
            await client.submit_result(house.session, "call_else", 1)
    read = results(provider.requests[-1].request.messages)
    assert ("no such customer" in read[0], read[1]) == (True, '{"name": "Bob"}')


async def test_a_message_beside_the_last_reply_is_read_together_with_all(house: House) -> None:
    """S-88: also by a turn that waits, and once if it is sent twice; other services send it in the update itself."""
    script = Script(replies=(BOTH, LOOK, DONE))
    async with ScriptedProvider(script) as provider, house.worker(agent()), await Client.connect() as client:
        house.use(provider)
        turn = await client.start("tester", "go", session=house.session)
        asked = await waiting(house, 2)
        said = [ResultRequest(request=one["request_id"], value=one["request_id"][-1]) for one in asked]
        given = [await client.reply(house.session, said, prompt="quickly") for _ in range(2)]
        assert ([*map(len, (one.receipts for one in given))], given[0]) == ([2, 2], given[1])
        assert given[0].turn is None
        (third,) = await waiting(house)
        result = {"request": third["request_id"], "value": "Bob"}
        refused = await refusal(house, "submit_result", **result, message={"prompt": "no steering"})
        assert '"when_busy": "steer"' in str(refused)
        assert await update(house, "submit_result", **result, message={"prompt": "now", "steer": True})
        assert (await turn.result()).turn == 1
        await client.reply(house.session, said, prompt="quickly")
        assert [one.turn for one in await client.turns(house.session)] == [1]
    users = [one["content"] for one in provider.requests[-1].request.messages if one["role"] == "user"]
    assert users == ["go", "quickly", "now"]


async def test_of_two_results_at_once_one_counts_and_the_other_learns_which(house: House) -> None:
    script = Script(replies=(LOOK, DONE))
    async with ScriptedProvider(script) as provider, house.worker(agent()), await Client.connect() as client:
        house.use(provider)
        turn = await client.start("tester", "go", session=house.session)
        (request,) = await waiting(house)
        given = (client.submit_result(house.session, request["request_id"], value) for value in ("one", "two"))
        said = await asyncio.gather(*given, return_exceptions=True)
        assert sorted(type(outcome).__name__ for outcome in said) == ["InputReceipt", "RequestRefusedError"]
        await turn.result()
    taken = "one" if not isinstance(said[0], Exception) else "two"
    assert results(provider.requests[-1].request.messages) == [taken]


async def test_a_session_that_stopped_goes_on_with_the_result(house: House) -> None:
    script = Script(replies=(LOOK, DONE))
    stops = agent(interactive="stop")
    async with ScriptedProvider(script) as provider, house.worker(stops), await Client.connect() as client:
        house.use(provider)
        turn = await client.start("tester", "go", session=house.session)
        (request,) = (await turn.result()).requests
        receipt = await client.submit_result(house.session, request.request_id, ["Ada"])
        assert (await (await client.attach(house.session, 2)).result()).output == "done"
        again = await client.submit_result(house.session, request.request_id, ["Ada"])
        assert (again.decision, again.request_id) == (receipt.decision, receipt.request_id)
    assert results(provider.requests[-1].request.messages) == ['["Ada"]']


async def test_a_result_that_does_not_come_in_time_is_an_error_result(house: House) -> None:
    """S-81."""
    hasty = agent(tools=[lookup.with_(timeout=timedelta(seconds=1))])
    async with ScriptedProvider(Script(replies=(LOOK, DONE))) as provider, house.worker(hasty):
        house.use(provider)
        assert (await house.run())["output"] == "done"
    assert "sent no result in time" in results(provider.requests[-1].request.messages)[0]


async def test_a_cancel_withdraws_the_call_and_a_result_after_it_is_refused(house: House) -> None:
    async with ScriptedProvider(Script(replies=(LOOK, DONE))) as provider, house.worker(agent()):
        house.use(provider)
        handle = await house.start()
        (request,) = await waiting(house)
        await update(house, "cancel")
        assert (await handle.result())["stop_reason"] == "cancelled"
        async with await Client.connect() as client:
            with pytest.raises(RequestRefusedError, match="does not wait for"):
                await client.submit_result(house.session, request["request_id"], "Ada")


async def test_plain_temporal_is_told_what_a_result_must_be(house: House) -> None:
    replies = (call(("pay", {"amount": 7}), ("lookup", {"id": 7})), DONE)
    async with ScriptedProvider(Script(replies=replies)) as provider, house.worker(agent()):
        house.use(provider)
        handle = await house.start()
        asked = {request["needs"]: request["request_id"] for request in await waiting(house, 2)}
        assert "is no question" in await refusal(house, "submit_result", request=asked["approval"], value=1)
        assert "needs the result of lookup" in await refusal(house, "answer", request=asked["result"], value=1)
        assert "give a value or an error" in await refusal(house, "submit_result", request=asked["result"])
        both: dict[str, Any] = {"value": 1, "error": "x"}
        assert "not both" in await refusal(house, "submit_result", request=asked["result"], **both)
        await update(house, "submit_result", request=asked["result"], value=None)
        await update(house, "deny", request=asked["approval"], by="ann")
        await handle.result()
    assert results(provider.requests[-1].request.messages)[1] == "null"


@pytest.mark.deep
async def test_the_command_line_submits_results_and_errors(house: House) -> None:
    async with ScriptedProvider(Script(replies=(BOTH, DONE))) as provider, house.worker(agent()):
        house.use(provider)
        code, output, errors = await perdure("run", "tester", "go", "--session", house.session)
        first, second = await waiting(house, 2)
        command = f"perdure submit {house.session} {first['request_id']} VALUE"
        assert (code, command in errors, "? result of lookup" in output) == (7, True, True)
        code, output, errors = await perdure("submit", house.session, first["request_id"], "Ada", "--by", "app")
        assert (code, errors, "returned by app" in output) == (0, "", True)
        code, _, errors = await perdure("submit", house.session)
        assert (code, "give a VALUE or --error TEXT" in errors) == (2, True)
        code, output, _ = await perdure("submit", house.session, "--error", "it is away", "--json")
        assert (code, json.loads(output)["decision"]) == (0, "failed")
        code, output, errors = await perdure("follow", house.session)
        assert (code, errors) == (0, "")
        code, _, errors = await perdure("submit", house.session, second["request_id"], "Bob")
        assert (code, errors.count("\n"), "that stands" in errors) == (2, 1, True)


ODD = (
    (b'{"value": NaN}', 422, "not finite"),
    (b'{"value": 1e999}', 422, "not finite"),
    (b'{"value": ' + b"9" * 5_000 + b"}", 422, "too many digits"),
    (b'{"value": "\\ud800"}', 422, "half a character"),
    (b'{"value": ' + b"[" * 100 + b"]" * 100 + b"}", 422, "64 levels deep"),
    (b'{"value": "' + b"x" * 10_000_000 + b'"}', 413, ""),
    (b'{"value": "' + b"x" * 33_000 + b'"}', 409, "the limit is 32,768"),
    (b'{"value": [' + b"0," * 20_000 + b"0]}", 409, "the limit is 32,768"),
    (b'{"error": "' + b"x" * 33_000 + b'"}', 409, "the limit is 32,768"),
)
"""Bodies that are no result, the status, and the reason."""


async def test_the_gateway_takes_results_and_refuses_what_is_none(house: House) -> None:
    script = Script(replies=(BOTH, DONE))
    async with ScriptedProvider(script) as provider, house.worker(agent()), gateway(house) as door:
        house.use(provider)
        at = f"/v1/sessions/{house.session}"
        await door.http.post("/v1/sessions", json={"agent": "tester", "prompt": "go", "session": house.session})
        first, second = await waiting(house, 2)
        where = f"{at}/results/{first['request_id']}"
        for wrong in ({}, {"value": 1, "error": "x"}, {"error": ""}, {"value": 1, "reason": "x"}):
            answer = await door.http.post(where, json=wrong)
            assert (answer.status_code, answer.json()["code"]) == (422, "request.invalid")
        for odd, status, why in ODD:
            answer = await door.http.post(where, content=odd, headers={"content-type": "application/json"})
            assert (answer.status_code, why in answer.text) == (status, True), (odd[:40], answer.text)
        given = {"value": {"name": "Ada"}, "digest": first["digest"]}
        taken = await door.http.post(where, json=given)
        assert (taken.status_code, taken.json()["decision"], taken.json()["by"]) == (200, "returned", "local")
        assert (await door.http.post(where, json=given)).json() == taken.json()
        other = await door.http.post(where, json={"value": "Eve"})
        assert (other.status_code, other.json()["code"]) == (409, "request.conflict")
        there = await door.http.post(f"{at}/results/{second['request_id']}", json={"error": "it is away"})
        assert (there.status_code, there.json()["decision"]) == (200, "failed")


@pytest.mark.deep
async def test_an_mcp_host_runs_a_call_and_gives_its_result(house: House) -> None:
    script = Script(replies=(LOOK, LOOK, DONE))
    async with ScriptedProvider(script) as provider, house.worker(agent()), host() as client:
        house.use(provider)
        where = {"session": house.session}
        await did(client, "start", agent="tester", prompt="go", **where)
        (asked,) = (await did(client, "wait", **where))["requests"]
        assert (asked["needs"], asked["tool"], asked["arguments"]) == ("result", "lookup", '{"id": 7}')
        given = {"request": asked["request_id"], "digest": asked["digest"], "by": "host", **where}
        assert (await did(client, "submit_result", value="Ada", **given))["decision"] == "returned"
        (again,) = (await did(client, "wait", **where))["requests"]
        failed = await did(client, "submit_result", request=again["request_id"], error="away", by="host", **where)
        assert failed["decision"] == "failed"
        assert (await did(client, "wait", **where))["result"]["output"] == "done"


async def test_a_start_brings_tools_for_its_turn_and_the_next_turn_has_none_of_them(house: House) -> None:
    bare = agent(tools=[pay])
    given = {"name": "lookup", "description": "Look a customer up.", "parameters": SCHEMA}
    script = Script(replies=(LOOK, DONE, LOOK, DONE))
    async with ScriptedProvider(script) as provider, house.worker(bare), gateway(house) as door:
        house.use(provider)
        start = {"agent": "tester", "prompt": "go", "session": house.session}
        for wrong, why in (
            ({"name": "no spaces"}, "name"),
            ({**given, "parameters": {"type": "array"}}, "schema of an object"),
            ({**given, "parameters": {"type": "object", "properties": {"a": {"type": "int"}}}}, "no JSON schema"),
            ({**given, "body": "import os"}, "body"),
        ):
            refused = await door.http.post("/v1/sessions", json={**start, "tools": [wrong]})
            assert (refused.status_code, why in refused.text) == (422, True), refused.text
        many = [{**given, "name": f"lookup{number}"} for number in range(65)]
        assert (await door.http.post("/v1/sessions", json={**start, "tools": many})).status_code == 422
        taken = await door.http.post("/v1/sessions", json={**start, "tools": [given]})
        assert taken.status_code == 202
        (request,) = await waiting(house)
        assert (request["needs"], request["tool"], request["arguments"]) == ("result", "lookup", '{"id": 7}')
        where = f"/v1/sessions/{house.session}/results/{request['request_id']}"
        assert (await door.http.post(where, json={"value": "Ada"})).status_code == 200
        async with await Client.connect() as client:
            await (await client.attach(house.session, 1)).result()
            second = await client.send(house.session, "again")
            assert (await second.result()).output == "done"
            clash = await client.start("tester", "go", tools=[{**given, "name": "pay"}])
            assert "the agent has a tool of that name" in ((await clash.result()).error or "")
    assert names_of_tools(provider, 0) == ["pay", "lookup"]
    assert names_of_tools(provider, -1) == ["pay"]


def names_of_tools(provider: ScriptedProvider, request: int) -> list[str]:
    """The tools that a model was sent with a request."""
    sent: Any = provider.requests[request].request.tools
    return [tool["function"]["name"] for tool in sent]
