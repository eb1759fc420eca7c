"""Bug reports of other servers that speak OpenAI's Responses, A2A and AG-UI, tried against the doors (S-83).

- langgenius/dify#39008, florimondmanca/httpx-sse#34: U+2028 in a streamed text ends a line for many clients
- a2aproject/a2a-rs#248: a message for an unknown task makes one of that id
- a2aproject/a2a-java#723: a message for a task names another context, and is taken
- a2aproject/a2a-java#741, a2a-python#1205: a task that has ended takes a message, or is refused as wrong parameters
- BerriAI/litellm#39559: ``previous_response_id`` opens another tenant's conversation
- praxis-proxy/ai#840: a response before this one and a conversation are both named, and one is ignored
- microsoft/agent-framework#4682: the second "yes" of a thread is dropped as a duplicate
- agentscope-ai/agentscope#2555, microsoft/agent-framework#7980: results of parallel calls share an id, and one is lost
- ag-ui-protocol/ag-ui#2306: a front-end tool that failed is a success to the model
- ag-ui-protocol/ag-ui#1074, #643: a result that is sent twice is stored twice, or its tool is called again
- ag-ui-protocol/ag-ui#2145: the words of a provider's failure are shown as the agent's answer
"""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import openai
import pytest

from perdure import Agent, RetryPolicy, tool
from perdure.contracts.events import ToolEnd
from perdure.testing import ChatRequest, Reply, ScriptedProvider, call, faults, say
from tests.gateway import Door, gateway, token_lines
from tests.house import House
from tests.workflow.test_a2a_door import Peer
from tests.workflow.test_agui_door import LOOK, asked, events_of, run, text_of, user
from tests.workflow.test_responses_door import client_of

BREAKS = "a\x0bb\x0cc\x1cd\x1de\x1ef\x85g\u2028h\u2029i"
"""A text that ``str.splitlines`` takes for nine lines, and the standard of server-sent events for one."""


@tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


AGENT = Agent(
    name="tester", model="openai/scripted", description="Tests.", tools=[add], retry=RetryPolicy(max_retries=0)
)


def answer(request: ChatRequest) -> Reply:
    """The answer that the last message asks for."""
    last = request.messages[-1]
    if last["role"] == "tool":
        return say(f"read {len([message for message in request.messages if message['role'] == 'tool'])}")
    match str(last["content"]):
        case "breaks":
            return say(BREAKS)
        case "add twice":
            return call(("add", {"a": 1, "b": 2}), ("add", {"a": 3, "b": 4}))
        case "look":
            return call(("look", {"id": 7}))
        case said if said.startswith("fail"):
            return say("never").after(faults.error(400, "a wish of the provider"))
        case said:
            return say(f"heard {said}")


@asynccontextmanager
async def opened(house: House, agent: Agent = AGENT, **settings: Any) -> AsyncIterator[tuple[Door, ScriptedProvider]]:
    async with (
        ScriptedProvider(answer) as provider,
        house.worker(agent),
        gateway(house, doors=("responses", "a2a", "agui"), **settings) as door,
    ):
        house.use(provider)
        yield door, provider


async def items_of(door: Door, path: str, body: Any) -> list[dict[str, Any]]:
    """What a client reads that takes every line break of Unicode for one, as httpx does."""
    async with door.http.stream("POST", path, json=body, headers={"A2A-Version": "1.0"}) as read:
        assert read.status_code == 200, await read.aread()
        return [json.loads(line[6:]) async for line in read.aiter_lines() if line.startswith("data: {")]


@pytest.mark.parametrize("stream", ["always", "off"])
async def test_no_line_break_of_unicode_breaks_a_stream(house: House, stream: Any) -> None:
    async with opened(house, AGENT.clone(stream=stream)) as (door, _):
        told = await items_of(door, "/openai/v1/responses", {"model": "tester", "input": "breaks", "stream": True})
        assert "".join(item["delta"] for item in told if item["type"] == "response.output_text.delta") == BREAKS
        assert told[-1]["response"]["output"][-1]["content"][0]["text"] == BREAKS
        told = await items_of(door, "/agui/tester", asked("r1", user("breaks")))
        assert text_of(told) == BREAKS
        message = {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": "breaks"}]}
        told = await items_of(door, "/a2a/tester/message:stream", {"message": message})
        assert json.dumps(BREAKS)[1:-1] in json.dumps(told)
        started = await door.http.post("/v1/sessions", json={"agent": "tester", "prompt": "breaks", "session": "n1"})
        assert started.status_code in {200, 201, 202}, started.text
        async with door.http.stream("GET", "/v1/sessions/n1/events", headers={"Accept": "text/event-stream"}) as read:
            events = [json.loads(line[6:]) async for line in read.aiter_lines() if line.startswith("data: {")]
        assert any(json.dumps(BREAKS)[1:-1] in json.dumps(event) for event in events)


async def test_a_message_reaches_the_task_that_it_names_or_none(house: House) -> None:
    async with opened(house) as (door, provider):
        peer = Peer(door.http)
        task = await peer.send("one")
        unknown = task["id"][:-4] + "0000"
        for fields, code in (
            ({"taskId": unknown}, -32001),
            ({"taskId": "mine"}, -32001),
            ({"taskId": task["id"], "contextId": "another"}, -32602),
            ({"taskId": task["id"]}, -32004),
            ({"taskId": task["id"], "contextId": task["contextId"]}, -32004),
        ):
            assert (await peer.error("SendMessage", message=peer.message("two", **fields)))[0] == code, fields
        assert (await peer.error("SubscribeToTask", id=task["id"]))[0] == -32004
        assert [one["id"] for one in (await peer.result("ListTasks"))["tasks"]] == [task["id"]]
        assert provider.request_count == 1
        again = await peer.send("two", contextId=task["contextId"])
        assert (again["contextId"], again["id"] != task["id"]) == (task["contextId"], True)


async def test_a_response_goes_on_for_its_tenant_and_from_one_place(house: House) -> None:
    lines, tokens = token_lines(ann=("acme", "read,run"), eve=("evil", "read,run"))
    async with (
        opened(house, gateway_tokens=lines) as (door, provider),
        client_of(door, tokens["ann"]) as ann,
        client_of(door, tokens["eve"]) as eve,
    ):
        made = await ann.responses.create(model="tester", input="the word is swordfish", conversation="talk")
        count = provider.request_count
        for named in ({"previous_response_id": made.id}, {"conversation": "talk", "previous_response_id": made.id}):
            with pytest.raises(openai.NotFoundError if len(named) == 1 else openai.BadRequestError) as refused:
                await eve.responses.create(model="tester", input="which word?", **named)  # type: ignore[call-overload]
            assert "swordfish" not in str(refused.value)
        theirs = await eve.responses.create(model="tester", input="which word?", conversation="evils")
        with pytest.raises(openai.NotFoundError):
            await eve.responses.create(model="tester", input="which word?", conversation="talk")
        with pytest.raises(openai.BadRequestError):
            await ann.responses.create(model="tester", input="more", conversation="talk", previous_response_id=made.id)
        for reading in (eve.responses.retrieve(made.id), eve.responses.cancel(made.id)):
            with pytest.raises(openai.NotFoundError):
                await reading
        assert provider.request_count == count + 1
        assert "swordfish" not in json.dumps(provider.requests[-1].request.messages)
        assert theirs.output_text == "heard which word?"


async def test_the_same_words_twice_are_two_messages(house: House) -> None:
    async with opened(house) as (door, provider):
        first = await run(door, asked("r1", user("yes")))
        assert text_of(first) == "heard yes"
        said = {"id": "a1", "role": "assistant", "content": "heard yes"}
        assert text_of(await run(door, asked("r2", user("yes"), said, user("yes", "m2")))) == "heard yes"
        roles = [message["role"] for message in provider.requests[-1].request.messages]
        assert roles.count("user") == 2
        async with client_of(door) as client:
            for _ in range(2):
                await client.responses.create(model="tester", input="yes", conversation="talk")
        assert [message["content"] for message in provider.requests[-1].request.messages][-3::2] == ["yes", "yes"]


async def test_each_of_two_calls_has_its_result(house: House) -> None:
    async with opened(house) as (door, _):
        told = await run(door, asked("r1", user("add twice")))
        results = [event for event in told if event["type"] == "TOOL_CALL_RESULT"]
        assert sorted(event["content"] for event in results) == ["3", "7"]
        assert len({event["messageId"] for event in results}) == len({event["toolCallId"] for event in results}) == 2
        async with client_of(door) as client:
            made = await client.responses.create(model="tester", input="add twice")
        calls = [item for item in made.output if item.type == "mcp_call"]
        assert (sorted(str(item.output) for item in calls), len({item.id for item in calls})) == (["3", "7"], 2)


async def test_a_result_is_what_the_front_end_says_once(house: House) -> None:
    async with opened(house) as (door, provider):
        first = await run(door, asked("r1", user("look"), tools=[LOOK]))
        (call_id,) = first[-1]["outcome"]["pendingToolCallIds"]
        called = {"id": call_id, "type": "function", "function": {"name": "look", "arguments": '{"id": 7}'}}
        history = [user("look"), {"id": "a1", "role": "assistant", "toolCalls": [called]}]
        failed = {"id": "x1", "role": "tool", "toolCallId": call_id, "content": "", "error": "the camera is off"}
        for number in (2, 3):  # posted again under another run, as a front end that renders twice
            told = await run(door, asked(f"r{number}", *history, failed, tools=[LOOK]))
            assert text_of(told) == "read 1"
        assert provider.request_count == 2
        (read,) = [message for message in provider.requests[-1].request.messages if message["role"] == "tool"]
        assert "the camera is off" in str(read["content"])
        log = [envelope.event for envelope in await (await house.client.store()).events("t1")]
        ends = [event for event in log if isinstance(event, ToolEnd)]
        assert [event.error and event.error.code for event in ends] == ["tool.execution_error"]


async def test_a_failure_is_no_answer(house: House) -> None:
    async with opened(house) as (door, _):
        told = events_of(await door.http.post("/agui/tester", json=asked("r1", user("fail here"))))
        assert told[-1]["type"] == "RUN_ERROR"
        assert not [event for event in told if event["type"].startswith("TEXT_MESSAGE")]
        async with client_of(door) as client:
            made = await client.responses.create(model="tester", input="fail there")
        assert (made.status, made.output_text) == ("failed", "")
        assert made.error is not None
        task = await Peer(door.http).send("fail elsewhere")
        assert task["status"]["state"] == "TASK_STATE_FAILED"
        assert not task.get("artifacts")


async def test_a_client_that_goes_at_once_leaves_a_job_that_ends(house: House) -> None:
    """The connection is closed before the first event, at each door: the same request finds the job at its end."""
    async with opened(house) as (door, provider):
        body = {"model": "tester", "input": "go", "conversation": "c1", "stream": True}
        message = {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": "go"}], "contextId": "c2"}
        starts: list[tuple[str, Any, dict[str, str]]] = [
            ("/openai/v1/responses", body, {"Idempotency-Key": "k1"}),
            ("/a2a/tester/message:stream", {"message": message}, {"A2A-Version": "1.0"}),
            ("/agui/tester", asked("r1", user("go"), thread="c3"), {}),
        ]
        for path, sent, headers in starts:
            async with door.http.stream("POST", path, json=sent, headers=headers) as cut:
                assert cut.status_code == 200
        for path, sent, headers in starts:
            read: httpx.Response = await door.http.post(path, json=sent, headers=headers)
            assert "heard go" in read.text, path
        assert provider.request_count == 3
