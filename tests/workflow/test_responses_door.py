"""S-83: the door of OpenAI's Responses API, to the unmodified ``openai`` client, over HTTP with a real worker."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from openai.types.responses import Response

from perdure import Agent, ask_user, tool
from perdure.gateway.doors.responses.places import ResponseId, item_id
from perdure.testing import Script, ScriptedProvider, call, faults, say
from perdure.testing.script import Reply
from tests.gateway import Door, gateway, token_lines
from tests.house import House, eventually
from tests.unit.gateway.openai_types import judge_event, judge_response

pytestmark = pytest.mark.judged("OpenAI Responses", "openai")

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}


@tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@tool(requires_approval=True)
def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


AGENT = Agent(name="tester", model="openai/scripted", tools=[add, pay, ask_user])


def client_of(door: Door, key: str = "anything") -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{door.url}/openai/v1", api_key=key, max_retries=0, timeout=60)


@asynccontextmanager
async def opened(house: House, *replies: Reply, agent: Agent = AGENT) -> AsyncIterator[tuple[AsyncOpenAI, Door]]:
    async with (
        ScriptedProvider(Script(replies=replies)) as provider,
        house.worker(agent),
        gateway(house, doors=("responses",)) as door,
        client_of(door) as client,
    ):
        house.use(provider)
        yield client, door


def strictly(response: Response) -> Response:
    judge_response(response.model_dump(by_alias=True, exclude_unset=True))
    return response


async def test_a_response_comes_whole_and_can_be_read_again(house: House) -> None:
    async with opened(house, call(("add", {"a": 1, "b": 2})), say("three")) as (client, _):
        made = strictly(await client.responses.create(model="tester", input="1 + 2", metadata={"team": "sums"}))
        assert (made.status, made.output_text, made.model) == ("completed", "three", "tester")
        assert [item.type for item in made.output] == ["mcp_call", "message"]
        assert made.metadata == {"team": "sums", "stop_reason": "finished"}
        assert made.usage is not None
        assert made.usage.total_tokens > 0
        assert await client.responses.retrieve(made.id) == made
        (asked,) = [item async for item in client.responses.input_items.list(made.id)]
        assert (asked.type, getattr(asked, "content")[0].text) == ("message", "1 + 2")  # noqa: B009
        assert (await client.models.retrieve("tester")).id == "tester"
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("some/other")
        assert [model.id async for model in client.models.list()] == ["tester"]


async def test_a_stream_is_cut_behind_each_of_its_events_and_goes_on_there(house: House) -> None:
    """S-83: for every n, what came up to n and what comes after n is the whole."""
    async with opened(house, call(("add", {"a": 1, "b": 2})), say("The sum is three.")) as (client, _):
        live = [event async for event in await client.responses.create(model="tester", input="1 + 2", stream=True)]
        for event in live:
            judge_event(event.model_dump(by_alias=True, exclude_unset=True))
        made = live[-1]
        assert made.type == "response.completed"
        whole = [event async for event in await client.responses.retrieve(made.response.id, stream=True)]
        assert whole[-1] == made
        for cut, last in enumerate(whole, start=1):
            number = last.sequence_number
            rest = await client.responses.retrieve(made.response.id, stream=True, starting_after=number)
            assert [event async for event in rest] == whole[cut:]
        async with client.responses.stream(response_id=made.response.id) as stream:
            final = await stream.get_final_response()
        assert final.output_text == "The sum is three."


async def test_a_job_outlives_its_stream_and_is_polled_to_its_end(house: House) -> None:
    """S-83: a closed connection ends nothing; an answer that is being written goes on where the reader was cut off."""
    text = "The quick brown fox jumps over the lazy dog"
    agent = Agent(name="tester", model="openai/scripted", stream="always")
    async with (
        ScriptedProvider(Script(replies=(say(text),))) as provider,
        house.worker(agent),
        gateway(house, doors=("responses",)) as door,
        client_of(door) as client,
    ):
        house.use(provider)
        provider.hold_streams(after=4)
        stream = await client.responses.create(model="tester", input="go", stream=True)
        seen: list[Any] = []
        async for event in stream:
            seen.append(event)
            if event.type == "response.output_text.delta":
                break
        await stream.close()
        polled = await client.responses.retrieve(seen[0].response.id)
        assert polled.status == "in_progress"
        number = seen[-1].sequence_number
        again = await client.responses.retrieve(polled.id, stream=True, starting_after=number)
        await provider.release_streams()
        seen += [event async for event in again]
        shown = "".join(event.delta for event in seen if event.type == "response.output_text.delta")
        assert shown == text
        assert len([event for event in seen if event.type == "response.output_item.added"]) == 1
        numbers = [event.sequence_number for event in seen]
        assert numbers == sorted(set(numbers))


async def test_a_background_job_is_cancelled(house: House) -> None:
    async with opened(house, say("never").after(faults.hang())) as (client, _):
        made = strictly(await client.responses.create(model="tester", input="go", background=True))
        assert made.status in {"queued", "in_progress"}

        async def runs() -> bool:
            return (await client.responses.retrieve(made.id)).status == "in_progress"

        await eventually(runs)
        cancelled = strictly(await client.responses.cancel(made.id))
        assert (cancelled.status, (cancelled.metadata or {})["stop_reason"]) == ("cancelled", "cancelled")
        assert (await client.responses.cancel(made.id)).status == "cancelled"


async def test_the_callers_functions_run_in_the_caller(house: House) -> None:
    """S-81, S-83: a turn parks for its calls, and the next response goes on with their outputs."""
    look: Any = {"type": "function", "name": "look", "parameters": SCHEMA, "description": "Look up.", "strict": False}
    async with opened(house, call(("look", {"id": 7}), ("look", {"id": 8})), say("done")) as (client, _):
        first = strictly(await client.responses.create(model="tester", input="go", tools=[look]))
        calls = [item for item in first.output if item.type == "function_call"]
        assert (first.status, [found.arguments for found in calls]) == ("completed", ['{"id": 7}', '{"id": 8}'])
        assert [getattr(found, "name", "") for found in first.tools] == ["look"]
        outputs: Any = [
            {"type": "function_call_output", "call_id": found.call_id, "output": f"customer {found.arguments}"}
            for found in calls
        ]
        with pytest.raises(openai.BadRequestError, match="no output found"):
            await client.responses.create(model="tester", input="hello?", previous_response_id=first.id)
        unknown: Any = [{**outputs[0], "call_id": "call_else"}]
        with pytest.raises(openai.BadRequestError, match="asks for no 'call_else'"):
            await client.responses.create(model="tester", input=unknown, previous_response_id=first.id)
        huge: Any = [{**outputs[0], "output": "x" * 1_000_000}, outputs[1]]
        with pytest.raises(openai.BadRequestError, match="the limit is 32,768"):
            await client.responses.create(model="tester", input=huge, previous_response_id=first.id)
        second = strictly(await client.responses.create(input=outputs, previous_response_id=first.id, tools=[look]))
        assert (second.status, second.output_text, second.previous_response_id) == ("completed", "done", first.id)
        again = await client.responses.create(input=outputs, previous_response_id=first.id)
        assert again.id == second.id
        said = [item async for item in client.responses.input_items.list(second.id, order="asc")]
        assert [getattr(item, "output", "") for item in said] == [given["output"] for given in outputs]
        other: Any = [{**outputs[0], "output": "else"}, outputs[1]]
        with pytest.raises(openai.ConflictError, match="that stands"):
            await client.responses.create(input=other, previous_response_id=first.id)


async def test_people_approve_and_answer_at_this_door(house: House) -> None:
    both = call(("pay", {"amount": 7}), ("ask_user", {"question": "Which colour?"}))
    async with opened(house, both, say("done")) as (client, _):
        first = strictly(await client.responses.create(model="tester", input="go"))
        note, wanted, asked = first.output
        assert note.type == "message"
        assert first.output_text == 'pay waits for an approval: {"amount": 7}'
        assert (wanted.type, asked.type) == ("mcp_approval_request", "function_call")
        replies: Any = [
            {"type": "mcp_approval_response", "approval_request_id": wanted.id, "approve": True},
            {"type": "function_call_output", "call_id": getattr(asked, "call_id"), "output": "blue"},  # noqa: B009
        ]
        stream = await client.responses.create(input=replies, previous_response_id=first.id, stream=True)
        events = [event async for event in stream]
        made = events[-1]
        assert made.type == "response.completed"
        paid = made.response.output[0]
        assert (paid.type, getattr(paid, "output", ""), made.response.output_text) == ("mcp_call", "paid 7", "done")


async def test_a_conversation_goes_on_by_its_last_response_or_by_its_name(house: House) -> None:
    async with opened(house, say("one"), say("two"), say("three")) as (client, _):
        first = await client.responses.create(model="tester", input="1", conversation="desk-1")
        assert first.conversation is not None
        assert first.conversation.id == "desk-1"
        second = await client.responses.create(model="tester", input="2", previous_response_id=first.id)
        third = await client.responses.create(model="tester", input="3", conversation="desk-1")
        assert [made.output_text for made in (first, second, third)] == ["one", "two", "three"]
        assert (third.conversation, second.conversation) == (first.conversation, first.conversation)
        named = await client.conversations.create()
        fourth = await client.responses.create(model="tester", input="4", conversation=named.id)
        assert (fourth.conversation is not None, fourth.output_text) == (True, "one")
        assert (await client.conversations.retrieve(named.id)).id == named.id
        forked = await client.responses.create(model="tester", input="other", previous_response_id=first.id)
        assert (forked.output_text, forked.conversation == first.conversation) == ("two", False)


async def test_a_conversation_lists_its_items_and_is_erased(house: House) -> None:
    """S-83: page by page, backwards and forwards; ids are those that the responses had."""
    replies = (call(("add", {"a": 1, "b": 2})), say("three"), call(("pay", {"amount": 7})), say("paid"), say("last"))
    async with opened(house, *replies) as (client, _):
        made = [await client.responses.create(model="tester", input="1 + 2", conversation="desk-9")]
        made.append(await client.responses.create(model="tester", input="pay", conversation="desk-9"))
        asked = made[-1].output[-1]
        reply: Any = [{"type": "mcp_approval_response", "approval_request_id": asked.id, "approve": True}]
        made.append(await client.responses.create(model="tester", input=reply))
        made.append(await client.responses.create(model="tester", input="and?", conversation="desk-9"))
        given = [str(item.id) for response in made for item in response.output]
        listed = [item async for item in client.conversations.items.list("desk-9", order="asc", limit=2)]
        assert [str(item.id) for item in listed if str(item.id) in {*given}] == given
        kinds = ["message", "mcp_call", "message", "message", "message", "mcp_approval_request"]
        kinds.append("mcp_approval_response")
        assert [item.type for item in listed] == [*kinds, "mcp_call", "message", "message", "message"]
        back = [item async for item in client.conversations.items.list("desk-9", limit=3)]
        assert back == listed[::-1]
        one = await client.conversations.items.retrieve(given[1], conversation_id="desk-9")
        assert one == listed[2]
        for unknown in ("msg_1", str(item_id("msg", "desk-9", 1, "never")), made[0].id):
            with pytest.raises(openai.NotFoundError):
                await client.conversations.items.retrieve(unknown, conversation_id="desk-9")
            with pytest.raises(openai.NotFoundError):
                await client.conversations.items.list("desk-9", after=unknown)
        more: Any = [{"type": "message", "role": "user", "content": "x"}]
        refused = [
            (client.conversations.items.create("desk-9", items=more), "come by responses alone"),
            (client.conversations.items.delete(given[0], conversation_id="desk-9"), "come by responses alone"),
            (client.responses.delete(made[0].id), "DELETE /conversations"),
            (client.responses.compact(model="tester", input="x"), "compaction of its definition"),
            (client.responses.input_tokens.count(model="tester", input="x"), "the usage of a response"),
            (client.get("/responses", cast_to=object), "the WebSocket form of this API is not here"),
        ]
        for act, words in refused:
            with pytest.raises(openai.APIStatusError, match=words) as error:
                await act
            assert error.value.status_code == 405
        assert (await client.conversations.delete("desk-9")).deleted
        with pytest.raises(openai.APIStatusError) as gone:
            await client.conversations.retrieve("desk-9")
        assert gone.value.status_code == 410


async def test_a_message_waits_for_the_turn_that_runs_and_a_decision_may_come_from_elsewhere(house: House) -> None:
    async with (
        ScriptedProvider(
            Script(replies=(call(("pay", {"amount": 7})), say("It is paid now"), say("next")))
        ) as provider,
        house.worker(AGENT.clone(stream="always")),
        gateway(house, doors=("responses",)) as door,
        client_of(door) as client,
    ):
        house.use(provider)
        first = await client.responses.create(model="tester", input="go", conversation="desk-2")
        with pytest.raises(openai.BadRequestError, match="no decision found"):
            await client.responses.create(input=[], previous_response_id=first.id)
        (request,) = await house.client.inbox("desk-2")
        provider.hold_streams(after=1)
        await house.client.approve("desk-2", request.request_id, by="ann")
        second = await client.responses.create(input=[], previous_response_id=first.id, background=True)
        assert second.status in {"queued", "in_progress"}
        third = await client.responses.create(input="and then?", previous_response_id=second.id, background=True)
        assert (third.status, third.id != second.id) == ("queued", True)
        await provider.release_streams()
        ended = [event async for event in await client.responses.retrieve(third.id, stream=True)][-1]
        assert ended.type == "response.completed"
        assert ended.response.output_text == "next"
        assert (await client.responses.retrieve(second.id)).output_text == "It is paid now"
        with pytest.raises(openai.BadRequestError, match="waits for nothing"):
            await client.responses.create(input=[], previous_response_id=third.id)


async def test_the_same_key_starts_one_job(house: House) -> None:
    async with opened(house, say("one"), say("two")) as (client, _):
        keyed: Any = {"extra_headers": {"Idempotency-Key": "k1"}}
        first, again = await asyncio.gather(
            *(client.responses.create(model="tester", input="go", **keyed) for _ in range(2))
        )
        assert (first.id, first.output_text) == (again.id, "one")
        with pytest.raises(openai.ConflictError, match="another body"):
            await client.responses.create(model="tester", input="else", **keyed)


@pytest.mark.parametrize("key", [None, "k1"])
async def test_a_gateway_that_stops_answers_no_create_with_a_response_that_has_not_ended(
    house: House, key: str | None
) -> None:
    """S-83: frameworks take any response for the whole answer. They ask again, for the same job (S-86)."""
    headers: Any = {} if key is None else {"extra_headers": {"Idempotency-Key": key}}
    async with (
        ScriptedProvider(Script(replies=(say("late").after(faults.hang()),))) as provider,
        house.worker(AGENT),
        gateway(house, doors=("responses",)) as door,
        client_of(door) as client,
    ):
        house.use(provider)
        made: Any = client.responses.create(model="tester", input="go", conversation="desk-7", **headers)
        creating = asyncio.ensure_future(made)
        await provider.wait_for_requests(1)
        door.server.stop()
        with pytest.raises(openai.InternalServerError, match="goes on without it") as refused:
            await creating
        assert (refused.value.status_code, refused.value.code) == (503, "runtime.gateway_stops")
        told = refused.value.response.headers
        assert (told["retry-after"], told.get("x-should-retry")) == ("1", None)
        assert len(await house.store.turns("desk-7")) == 1
        assert str(ResponseId("desk-7", 1)) in refused.value.message
        await house.client.cancel("desk-7")
        await provider.wait_for_disconnect()


async def test_the_same_key_finds_its_response_whatever_the_session_does_by_then(house: House) -> None:
    """S-83: who lost the first answer asks again while the turn waits, and after it has ended."""
    look: Any = {"type": "function", "name": "look", "parameters": SCHEMA, "description": "Look up.", "strict": False}
    async with opened(house, call(("look", {"id": 7})), say("done"), call(("look", {"id": 8}))) as (client, _):

        async def ask(key: str, **more: Any) -> Response:
            asked: Any = {"input": "go", "tools": [look], "extra_headers": {"Idempotency-Key": key}, **more}
            made: Response = await client.responses.create(model="tester", **asked)
            return made

        first = await ask("k1", conversation="desk-3")
        assert (await ask("k1", conversation="desk-3")).id == first.id
        with pytest.raises(openai.ConflictError, match="another body"):
            await ask("k1", conversation="desk-3", input="else")
        with pytest.raises(openai.BadRequestError, match="no output found"):
            await ask("k2", conversation="desk-3")
        (asked,) = first.output
        output: Any = [{"type": "function_call_output", "call_id": getattr(asked, "call_id"), "output": "x"}]  # noqa: B009
        last = await client.responses.create(input=output, previous_response_id=first.id)
        assert (await ask("k1", conversation="desk-3")).id == first.id
        more = await ask("k3", previous_response_id=last.id)
        assert (await ask("k3", previous_response_id=last.id)).id == more.id
        assert len(await house.client.turns("desk-3")) == 3
        assert len(await house.client.sessions()) == 1


async def test_refusals_are_openais_exceptions_with_our_codes(house: House) -> None:
    lines, tokens = token_lines(ann=("acme", "read,run"), eve=("evil", "admin"), run=("acme", "run"))
    async with (
        ScriptedProvider(Script(replies=(say("one"),))) as provider,
        house.worker(AGENT),
        gateway(house, doors=("responses",), gateway_tokens=lines) as door,
        client_of(door, tokens["ann"]) as ann,
        client_of(door, tokens["eve"]) as eve,
        client_of(door, "wrong") as nobody,
        client_of(door, tokens["run"]) as blind,
    ):
        house.use(provider)
        made = await ann.responses.create(model="tester", input="go")
        with pytest.raises(openai.AuthenticationError) as unknown:
            await nobody.models.list()
        assert (unknown.value.code, unknown.value.type) == ("request.unauthenticated", "authentication_error")
        for asked in (made.id, "resp_nothing"):
            for ask in (eve.responses.retrieve, eve.responses.cancel):
                with pytest.raises(openai.NotFoundError) as missing:
                    await ask(asked)
                assert missing.value.code == "request.unknown_turn"
            with pytest.raises(openai.NotFoundError):
                await eve.responses.create(input="x", previous_response_id=asked)
        for act in (blind.responses.create(model="tester", input="x"), blind.responses.cancel(made.id)):
            with pytest.raises(openai.PermissionDeniedError, match="lacks the scope 'read'"):
                await act
        none: Any = [{"type": "function", "name": "t", "parameters": {"type": "object", "properties": 7}}]
        with pytest.raises(openai.BadRequestError, match="tools"):
            await ann.responses.create(model="tester", input="x", tools=none, conversation="free")
        with pytest.raises(openai.NotFoundError):
            await ann.conversations.retrieve("free")
        taken: Any = [{"type": "function", "name": "add", "parameters": SCHEMA}]
        refused = strictly(await ann.responses.create(model="tester", input="x", tools=taken))
        assert (refused.status, refused.error is not None and "add" in refused.error.message) == ("failed", True)
        with pytest.raises(openai.NotFoundError) as agent:
            await ann.responses.create(model="nobody", input="x")
        assert agent.value.code == "request.unknown_agent"
        with pytest.raises(openai.BadRequestError) as field:
            await ann.responses.create(model="tester", input="x", top_logprobs=3)
        assert (field.value.param, field.value.code) == ("top_logprobs", "request.invalid")
        with pytest.raises(openai.BadRequestError, match="no event of this response has that number"):
            await ann.responses.retrieve(made.id, stream=True, starting_after=2**50)
        tools: Any = [{"type": "function", "name": f"t{n}", "parameters": SCHEMA} for n in range(500)]
        with pytest.raises(openai.BadRequestError, match="the limit is 64"):
            await ann.responses.create(model="tester", input="x", tools=tools)
        bearer = {"Authorization": f"Bearer {tokens['ann']}"}
        for content in (b"{", b"[]", b"\xff", b'{"input": "x", "model": "a\\u0000"}', b'{"input": [{"role": ["x"]}]}'):
            odd = await door.http.post("/openai/v1/responses", content=content, headers=bearer)
            assert (odd.status_code, odd.json().keys()) == (400, {"error"}), (content, odd.text)
        for path in ("?stream=true&starting_after=-1", "?stream=maybe", "/input_items?after=x", "/input_items?limit=0"):
            odd = await door.http.get(f"/openai/v1/responses/{made.id}{path}", headers=bearer)
            assert (odd.status_code, odd.json().keys()) == (400, {"error"}), (path, odd.text)
        for path in ("responses/%00", f"responses/{'x' * 600}", "conversations/a%20b", "nothing", "responses/"):
            odd = await door.http.get(f"/openai/v1/{path}", headers=bearer)
            assert (odd.status_code // 100, odd.json().keys()) == (4, {"error"}), (path, odd.text)
        deep = b'{"input": ' + b"[" * 5_000 + b"]" * 5_000 + b"}"
        assert (await door.http.post("/openai/v1/responses", content=deep, headers=bearer)).status_code == 400
        broken = await door.http.put("/openai/v1/responses", headers={"Authorization": f"Bearer {tokens['ann']}"})
        assert (broken.status_code, broken.json()["error"]["code"]) == (405, "request.method_not_allowed")


async def test_a_session_that_stops_for_its_requests_goes_on_in_a_turn_of_its_own(house: House) -> None:
    agent = AGENT.clone(interactive="stop")
    lines, tokens = token_lines(ann=("acme", "read,run"), bob=("acme", "read,run,approve"))
    async with (
        ScriptedProvider(Script(replies=(call(("pay", {"amount": 7})), say("done")))) as provider,
        house.worker(agent),
        gateway(house, doors=("responses",), gateway_tokens=lines) as door,
        client_of(door, tokens["ann"]) as ann,
        client_of(door, tokens["bob"]) as bob,
    ):
        house.use(provider)
        first = strictly(await ann.responses.create(model="tester", input="go"))
        replies: Any = [{"type": "mcp_approval_response", "approval_request_id": first.output[-1].id, "approve": True}]
        with pytest.raises(openai.PermissionDeniedError, match="lacks the scope 'approve'"):
            await ann.responses.create(input=replies, previous_response_id=first.id)
        second = strictly(await bob.responses.create(input=replies, previous_response_id=first.id))
        assert (first.status, second.status, second.output_text) == ("completed", "completed", "done")
        assert (await bob.responses.create(input=replies, previous_response_id=first.id)).id == second.id


async def test_a_client_knows_its_response_before_a_worker_comes_and_of_one_that_temporal_ends(house: House) -> None:
    """S-83."""
    await house.store.register_agents([AGENT.definition])
    async with (
        ScriptedProvider(Script(replies=(say("one"), say("never").after(faults.hang())))) as provider,
        gateway(house, doors=("responses",)) as door,
        client_of(door) as client,
    ):
        house.use(provider)
        stream = await client.responses.create(model="tester", input="go", stream=True, conversation="late")
        told = aiter(stream)
        early = await anext(told)
        assert early.type == "response.created"
        assert early.response.status == "queued"
        assert (await client.responses.retrieve(early.response.id)).status == "queued"
        number = early.sequence_number
        again = await client.responses.retrieve(early.response.id, stream=True, starting_after=number)
        async with house.worker(AGENT):
            events = [event async for event in told]
            assert [event.type for event in events][:1] == ["response.in_progress"]
            assert (events[-1].type, "response.created" in {event.type for event in events}) == (
                "response.completed",
                False,
            )
            assert [event async for event in again] == events
            stream = await client.responses.create(model="tester", input="go on", stream=True, conversation="late")
            told = aiter(stream)
            begun = await anext(told)
            assert begun.type == "response.created"
            await house.temporal.get_workflow_handle("late").terminate("by an operator")
            events = [event async for event in told]
            made = events[-1]
            assert made.type == "response.failed"
            strictly(made.response)
            assert made.response.error is not None
            assert "terminated" in made.response.error.message
            found = await client.responses.retrieve(made.response.id)
            assert (found.status, found.error) == ("failed", made.response.error)
