"""S-83: at each door a reply to an agent that stops for its requests goes on in the next turn, whenever that stops."""

import asyncio
import base64
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI

from perdure import Agent, HookContext, ask_user, caller_tool, hook, tool
from perdure.gateway.doors.a2a import carrying as a2a
from perdure.gateway.doors.agui import carrying as agui
from perdure.gateway.doors.responses import lookup as responses
from perdure.testing import Reply, Script, ScriptedProvider, call, say
from tests.gateway import gateway
from tests.house import WAIT_SECONDS, House
from tests.pictures import PNG


@tool(requires_approval=True)
def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


AGENT = Agent(name="tester", model="openai/scripted", tools=[pay], interactive="stop")


async def post(http: httpx.AsyncClient, path: str, body: dict[str, Any]) -> httpx.Response:
    answered = await http.post(path, json=body, headers={"A2A-Version": "1.0"})
    assert answered.status_code == 200, answered.text
    return answered


async def through_responses(http: httpx.AsyncClient, *words: Any) -> str:
    first = (await post(http, "/openai/v1/responses", {"model": "tester", "input": "go"})).json()
    reply = {"type": "mcp_approval_response", "approval_request_id": first["output"][-1]["id"], "approve": True}
    body = {"input": [reply, *words], "previous_response_id": first["id"]}
    return (await post(http, "/openai/v1/responses", body)).text


async def with_words(http: httpx.AsyncClient) -> str:
    """The message would begin a turn of its own, which withdraws the request, if the reply did not come first."""
    return await through_responses(http, {"role": "user", "content": "quickly"})


async def through_agui(http: httpx.AsyncClient) -> str:
    user = {"id": "m1", "role": "user", "content": "go"}
    body = {"threadId": "t1", "messages": [user], "state": {}, "tools": [], "context": [], "forwardedProps": {}}
    lines = (await post(http, "/agui/tester", {**body, "runId": "r1"})).text
    request = next(part for part in lines.split('"') if part.startswith("call_"))
    resume = {"interruptId": request, "status": "resolved", "payload": {"approved": True}}
    return (await post(http, "/agui/tester", {**body, "runId": "r2", "resume": [resume]})).text


async def through_a2a(http: httpx.AsyncClient) -> str:
    asked = {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": "go"}]}
    first = (await post(http, "/a2a/tester/message:send", {"message": asked})).json()["task"]
    (request,) = [part["data"] for part in first["status"]["message"]["parts"] if "data" in part]
    approval = {"data": {"request": request["request"], "approve": True, "digest": request["digest"]}}
    reply = {"messageId": "m2", "role": "ROLE_USER", "taskId": first["id"], "parts": [approval]}
    return (await post(http, "/a2a/tester/message:send", {"message": reply})).text


def read_too_early(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> None:
    """Have the door's first reading of the log end before the turn does."""
    read = getattr(module, name)

    async def early(*args: Any) -> Any:
        monkeypatch.setattr(module, name, read)
        fold = await read(*args)
        fold.has_ended = fold.has_stopped = False  # of the two, each door reads one
        return fold

    monkeypatch.setattr(module, name, early)


@pytest.mark.parametrize(
    ("ask", "module", "reading"),
    [
        (through_responses, responses, "read_turn"),
        (with_words, responses, "read_turn"),
        (through_agui, agui, "read_turn"),
        (through_a2a, a2a, "read_task"),
    ],
    ids=["responses", "responses with a message", "agui", "a2a"],
)
async def test_a_reply_is_answered_by_the_turn_that_takes_it(
    house: House,
    monkeypatch: pytest.MonkeyPatch,
    ask: Callable[[httpx.AsyncClient], Awaitable[str]],
    module: Any,
    reading: str,
) -> None:
    async with (
        ScriptedProvider(Script(replies=(call(("pay", {"amount": 7})), say("all done")))) as provider,
        house.worker(AGENT),
        gateway(house, doors=("responses", "agui", "a2a")) as door,
    ):
        house.use(provider)
        read_too_early(monkeypatch, module, reading)
        assert "all done" in await ask(door.http)


LOOK: Any = {
    "type": "function",
    "name": "look",
    "parameters": {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]},
}
RED_DOT = base64.b64encode(PNG).decode()
TWO = call(("look", {"id": 7}), ("look", {"id": 8}))


@asynccontextmanager
async def opened(house: House, *replies: Reply, **settings: Any) -> AsyncIterator[AsyncOpenAI]:
    fields: dict[str, Any] = {"name": "tester", "model": "openai/scripted", "tools": [pay, ask_user]}
    async with (
        ScriptedProvider(Script(replies=replies)) as provider,
        house.worker(Agent(**{**fields, **settings}), Agent(name="other", model="openai/scripted")),
        gateway(house, doors=("responses",)) as door,
        AsyncOpenAI(base_url=f"{door.url}/openai/v1", api_key="x", max_retries=0, timeout=60) as client,
    ):
        house.use(provider)
        yield client


def outputs(response: Any, *texts: str) -> Any:
    """Outputs of the response's functions, in their order; fewer texts for a part of them."""
    calls = [item for item in response.output if item.type == "function_call"]
    return [
        {"type": "function_call_output", "call_id": made.call_id, "output": text}
        for made, text in zip(calls, texts, strict=False)
    ]


async def test_a_turn_of_functions_stops_and_runs_nowhere_until_their_outputs_come(house: House) -> None:
    """S-88: a typed answer is such a call, which nobody ever answers; a turn that waits counts as a running job."""
    async with opened(house, TWO, say("done"), say("and more")) as client:
        first = await client.responses.create(model="tester", input="go", tools=[LOOK])
        result = await (await house.client.attach(first.conversation.id, 1)).result()  # type: ignore[union-attr]
        assert (first.status, result.stop_reason) == ("completed", "waiting_for_input")
        last = await client.responses.create(
            model="tester", input=outputs(first, "Ada", "Bob"), previous_response_id=first.id, tools=[LOOK]
        )
        assert [item.type for item in last.output] == ["message"]
        assert (last.output_text, last.conversation) == ("done", first.conversation)
        shown: Any = [*outputs(first, "Ada", "Bob"), {"role": "user", "content": "and?"}]
        more = await client.responses.create(model="tester", input=shown, previous_response_id=last.id, tools=[LOOK])
        assert (more.output_text, more.conversation) == ("and more", first.conversation)


async def test_outputs_and_a_message_begin_one_turn(house: House) -> None:
    """S-88: as pydantic-ai goes on after a typed answer: its call gets an output, and the user says something."""
    async with opened(house, call(("look", {"id": 7})), say("done")) as client:
        first = await client.responses.create(model="tester", input="go", tools=[LOOK])
        shown: Any = [
            {"role": "user", "content": "go"},
            *(item.to_dict() for item in first.output),
            *outputs(first, "Final result processed."),
            {"role": "user", "content": "And the longest?"},
        ]
        last = await client.responses.create(model="tester", input=shown, tools=[LOOK])
        assert (last.output_text, last.conversation) == ("done", first.conversation)
        assert last.conversation is not None
        turns = await house.client.turns(last.conversation.id)
        assert [turn.turn for turn in turns] == [1, 2]
        said = [(message.role, message.content) for message in await house.client.transcript(last.conversation.id)]
        assert said[-3:-1] == [("tool", "Final result processed."), ("user", "And the longest?")]
        listed = (await client.responses.input_items.list(last.id, order="asc")).data
        assert [item.type for item in listed] == ["function_call_output", "message"]
        text: Any = listed[1]
        assert text.content[0].text == "And the longest?"
        again = await client.responses.create(model="tester", input=shown, tools=[LOOK])
        assert again.id == last.id


@pytest.mark.parametrize("beside", [[], [{"role": "user", "content": "And?"}]], ids=["outputs", "a message too"])
async def test_a_chat_whose_answers_have_no_ids_stays_one_session(house: House, beside: Any) -> None:
    """S-85: pydantic-ai sends ids of calls alone; what the outputs began is found by its words."""
    async with opened(house, call(("look", {"id": 7})), say("done"), say("more"), say("last")) as client:
        first = await client.responses.create(model="tester", input="go", tools=[LOOK])
        calls = [{**item.to_dict(), "id": None} for item in first.output]
        shown: Any = [{"role": "user", "content": "go"}, *calls, *outputs(first, "Ada"), *beside]
        for said in ("done", "more", "last"):
            last = await client.responses.create(model="tester", input=shown, tools=[LOOK])
            assert (last.output_text, last.conversation) == (said, first.conversation)
            shown += [{"role": "assistant", "content": said}, {"role": "user", "content": f"behind {said}"}]


async def test_an_image_comes_beside_outputs_too(house: House) -> None:
    async with opened(house, call(("look", {"id": 7})), say("a red dot")) as client:
        first = await client.responses.create(model="tester", input="go", tools=[LOOK])
        image: Any = {"type": "input_image", "image_url": f"data:image/png;base64,{RED_DOT}", "detail": "auto"}
        content: Any = [{"type": "input_text", "text": "What is this?"}, image]
        shown: Any = [*outputs(first, "Ada"), {"role": "user", "content": content}]
        last = await client.responses.create(model="tester", input=shown, previous_response_id=first.id)
        assert last.output_text == "a red dot"
        assert last.conversation is not None
        (heard,) = [
            one for one in await house.client.transcript(last.conversation.id) if one.content == "What is this?"
        ]
        assert len(getattr(heard, "parts", ())) == 1


@pytest.mark.parametrize("named", [True, False])
async def test_a_part_of_the_outputs_is_asked_on_for_the_rest(house: House, *, named: bool) -> None:
    """S-88: by the call of the first response, or of the one that asked again; sent twice, it is the same."""
    async with opened(house, TWO, say("done")) as client:
        first = await client.responses.create(model="tester", input="go", tools=[LOOK])

        async def reply(output: Any, to: Any) -> Any:
            more: Any = {"previous_response_id": to.id} if named else {}
            return await client.responses.create(model="tester", input=output, tools=[LOOK], **more)

        one, two = outputs(first, "Ada", "Bob")
        second = await reply([one], first)
        assert [getattr(item, "arguments", "") for item in second.output] == ['{"id": 8}']
        assert (await reply([one], first)).id == second.id
        to_either = [two] if named else outputs(second, "Bob")
        last = await reply(to_either, first if named else second)
        assert last.output_text == "done"
        assert (await reply(to_either, first if named else second)).id == last.id
        with pytest.raises(openai.ConflictError, match="that stands"):
            await reply([{**two, "output": "else"}], first)


async def test_another_agent_takes_the_conversation_over_with_the_outputs(house: House) -> None:
    """S-88: a handoff of openai-agents: the call's output says so, and the next request names the next agent."""
    async with opened(house, call(("look", {"id": 7})), say("other here")) as client:
        first = await client.responses.create(model="tester", input="go", tools=[LOOK])
        handed = outputs(first, '{"assistant": "other"}')
        with pytest.raises(openai.NotFoundError):
            await client.responses.create(model="nobody", input=handed, previous_response_id=first.id)
        last = await client.responses.create(model="other", input=handed, previous_response_id=first.id)
        assert (last.model, last.output_text, last.conversation) == ("other", "other here", first.conversation)


async def test_who_is_asked_two_things_by_an_agent_that_stops_answers_both_at_once(house: House) -> None:
    both = call(("pay", {"amount": 7}), ("ask_user", {"question": "Which colour?"}))
    async with opened(house, both, say("done"), interactive="stop") as client:
        first = await client.responses.create(model="tester", input="go")
        wanted = next(item for item in first.output if item.type == "mcp_approval_request")
        approval: Any = {"type": "mcp_approval_response", "approval_request_id": wanted.id, "approve": True}
        last = await client.responses.create(
            model="tester", input=[approval, *outputs(first, "blue")], previous_response_id=first.id
        )
        assert last.output_text == "done"


async def test_an_approval_beside_a_function_is_waited_for(house: House) -> None:
    """S-88: whichever is decided first, nothing is asked twice."""
    both = call(("pay", {"amount": 7}), ("look", {"id": 7}))
    async with opened(house, both, say("done")) as client:
        for order in (1, -1):
            first = await client.responses.create(model="tester", input=f"go {order}", tools=[LOOK])
            wanted = next(item for item in first.output if item.type == "mcp_approval_request")
            approval = {"type": "mcp_approval_response", "approval_request_id": wanted.id, "approve": True}
            replies: Any = [approval, *outputs(first, "Ada")][::order]
            last: Any = None
            for one in replies:
                last = await client.responses.create(
                    model="tester", input=[one], previous_response_id=first.id, tools=[LOOK]
                )
            assert last.output_text == "done"


AND: Any = {"role": "user", "content": "And?"}


@pytest.mark.parametrize("beside", [[], [AND]], ids=["outputs", "a message too"])
async def test_outputs_sent_twice_are_one_request_before_their_turn_has_told_of_them(house: House, beside: Any) -> None:
    """S-88: its log says so with the first generation, which a hook, a summary or a lost worker holds up."""
    entered, goes_on = threading.Event(), threading.Event()

    @hook("agent_start")
    def hold(_: Any, context: HookContext) -> None:
        if context.turn == 2:
            entered.set()
            goes_on.wait(WAIT_SECONDS)

    async with opened(house, call(("look", {"id": 7})), say("done"), hooks=[hold]) as client:
        first = await client.responses.create(model="tester", input="go", tools=[LOOK])
        shown: Any = [*outputs(first, "Ada"), *beside]
        asked: Any = {"model": "tester", "input": shown, "tools": [LOOK], "background": True}
        made = [await client.responses.create(**asked)]
        assert await asyncio.to_thread(entered.wait, WAIT_SECONDS)
        made += [await client.responses.create(**asked) for _ in range(2)]
        goes_on.set()
        assert {one.id for one in made} == {made[0].id}
        assert first.conversation is not None
        session = first.conversation.id
        assert (await (await house.client.attach(session, 2)).result()).output == "done"
        users = [one.content for one in await house.client.transcript(session) if one.role == "user"]
        assert (users, len(await house.client.turns(session))) == (["go", *(one["content"] for one in beside)], 2)


async def test_an_approval_and_a_message_sent_twice_are_read_once_while_the_tool_works(house: House) -> None:
    """S-88: the log has the approval before the tool runs, and the message behind it."""
    begun, goes_on = threading.Event(), threading.Event()

    @tool(requires_approval=True)
    def pay_slowly() -> str:
        """Pay."""
        begun.set()
        goes_on.wait(WAIT_SECONDS)
        return "paid"

    async with opened(house, call(("pay_slowly", {})), say("done"), tools=[pay_slowly]) as client:
        first = await client.responses.create(model="tester", input="go", tools=[LOOK])
        (wanted,) = [item for item in first.output if item.type == "mcp_approval_request"]
        approval = {"type": "mcp_approval_response", "approval_request_id": wanted.id, "approve": True}
        asked: Any = {"model": "tester", "input": [approval, AND], "tools": [LOOK], "background": True}
        made = [await client.responses.create(**asked)]
        assert await asyncio.to_thread(begun.wait, WAIT_SECONDS)
        made += [await client.responses.create(**asked) for _ in range(2)]
        goes_on.set()
        assert {one.id for one in made} == {made[0].id}
        assert first.conversation is not None
        session = first.conversation.id
        assert (await (await house.client.attach(session, 1)).result()).output == "done"
        users = [one.content for one in await house.client.transcript(session) if one.role == "user"]
        assert (users, len(await house.client.turns(session))) == (["go", "And?"], 1)


@pytest.mark.parametrize(
    ("given", "beside", "read"),
    [
        (2, [], ["Ada", "Bob"]),
        (2, [AND], ["Ada", "Bob"]),
        (1, [], ["Ada", "the caller, who runs seek, sent no result in time; whether it ran is unknown"]),
        (1, [AND], ["Ada", "the caller, who runs seek, sent no result in time; whether it ran is unknown"]),
        (0, [AND], ["Operation aborted: no result of seek came, another message came; whether it ran is unknown"] * 2),
    ],
)
async def test_outputs_are_late_once_a_turn_has_told_its_model_so(
    house: House, given: int, beside: Any, read: list[str]
) -> None:
    """S-88: a turn that has stopped tells nobody; what lacks then is withdrawn, and no message is refused for it."""
    seek = caller_tool("seek", "Seek.", LOOK["parameters"], timeout=timedelta(milliseconds=1))
    two = call(("seek", {"id": 7}), ("seek", {"id": 8}))
    async with opened(house, two, say("done"), tools=[seek]) as client:
        first = await client.responses.create(model="tester", input="go")
        shown: Any = [*outputs(first, *["Ada", "Bob"][:given]), *beside]
        last = await client.responses.create(model="tester", input=shown, previous_response_id=first.id)
        assert (last.output_text, last.conversation) == ("done", first.conversation)
        assert last.conversation is not None
        transcript = await house.client.transcript(last.conversation.id)
        assert [str(one.content) for one in transcript if one.role == "tool"] == read
        assert [one.content for one in transcript if one.role == "user"] == [
            "go",
            *(one["content"] for one in beside),
        ]
