"""S-85: conversations that clients of OpenAI send again: whole or by reference, with ids of this door or without."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from openai.types.responses import Response

from perdure import Agent, tool
from perdure.contracts.values import JsonValue
from perdure.gateway.doors.responses.places import ResponseId
from perdure.testing import Reply, ScriptedProvider, call, say
from perdure.testing.script import ChatRequest
from tests.gateway import Door, gateway, token_lines
from tests.house import House

EFFECTS: list[str] = []


@tool
def effect(name: str) -> str:
    """Do something that cannot be undone."""
    EFFECTS.append(name)
    return f"{name} is done"


@tool(requires_approval=True)
def pay(amount: int) -> str:
    """Pay an amount."""
    EFFECTS.append(f"pay {amount}")
    return f"paid {amount}"


AGENT = Agent(name="tester", model="openai/scripted", tools=[effect, pay])
LOOK: Any = {
    "type": "function",
    "name": "look",
    "description": "Look.",
    "parameters": {"type": "object", "properties": {}},
}
CALLS: dict[str, tuple[str, JsonValue]] = {
    "effect": ("effect", {"name": "it"}),
    "look": ("look", {}),
    "seek": ("look", {}),
    "pay": ("pay", {"amount": 7}),
}


def brain(request: ChatRequest) -> Reply:
    """Calls what the last message names, and says what it has read otherwise."""
    last = request.messages[-1]
    words = str(last["content"]).split()
    asked = [CALLS[word] for word in words if word in CALLS]
    if last["role"] == "user" and asked:
        return call(*asked)
    read = [str(message["content"]) for message in request.messages if message["role"] in {"user", "tool"}]
    return say("read " + " | ".join(read))


@asynccontextmanager
async def opened(house: House, agent: Agent = AGENT) -> AsyncIterator[tuple[AsyncOpenAI, Door]]:
    EFFECTS.clear()
    async with (
        ScriptedProvider(brain) as provider,
        house.worker(agent),
        gateway(house, doors=("responses",)) as door,
        AsyncOpenAI(base_url=f"{door.url}/openai/v1", api_key="anything", max_retries=0, timeout=60) as client,
    ):
        house.use(provider)
        yield client, door


def user(text: str) -> Any:
    return {"role": "user", "content": text}


def whole(response: Response) -> list[Any]:
    return [item.model_dump(exclude_none=True) for item in response.output]


def references(response: Response) -> list[Any]:
    return [{"type": "item_reference", "id": item.id} for item in response.output]


def words(response: Response) -> list[Any]:
    """As a chat front end keeps it, without ids; calls and their outcomes with ids of its own."""
    kept: list[Any] = []
    for item in whole(response):
        if item["type"] == "message":
            kept.append({"role": "assistant", "content": item["content"][0]["text"]})
        elif item["type"] == "mcp_call":
            kept.append({**item, "id": f"mcp_{len(kept)}"})
    return kept


def place_of(response: Response) -> ResponseId:
    place = ResponseId.parse(response.id)
    assert place is not None
    return place


def output(response: Response, text: str, nth: int = 0) -> Any:
    calls = [item for item in response.output if item.type == "function_call"]
    return {"type": "function_call_output", "call_id": getattr(calls[nth], "call_id"), "output": text}  # noqa: B009


def decision(response: Response, *, approve: bool = True) -> Any:
    (asked,) = [item for item in response.output if item.type == "mcp_approval_request"]
    return {"type": "mcp_approval_response", "approval_request_id": asked.id, "approve": approve}


@pytest.mark.parametrize("show", [whole, references, words])
async def test_a_chat_of_five_turns_makes_a_call_once(house: House, show: Any) -> None:
    """The session goes on that the ids name; without ids each request is a session, which knows what was done."""
    async with opened(house) as (client, _):
        shown, places, text = list[Any](), list[ResponseId](), ""
        for asked in ("effect", "two", "three", "four", "five"):
            shown.append(user(asked))
            made = await client.responses.create(model="tester", input=shown, instructions="Be kind.")
            places.append(place_of(made))
            shown += show(made)
            text = made.output_text
        assert EFFECTS == ["it"]
        assert text.count("effect") == text.count("it is done") == 1
        assert [word in text for word in ("two", "three", "four", "five")] == [True] * 4
        if show is words:
            assert [place.turn for place in places] == [1] * 5
        else:
            assert [place.turn for place in places] == [1, 2, 3, 4, 5]
            assert len({place.session for place in places}) == 1


@pytest.mark.parametrize("show", [whole, references])
async def test_what_was_edited_is_a_fork_and_what_contradicts_the_log_a_new_session(house: House, show: Any) -> None:
    async with opened(house) as (client, _):

        async def ask(*items: Any, **more: Any) -> Response:
            made: Response = await client.responses.create(model="tester", input=[*items], tools=[LOOK], **more)
            return made

        one = await ask(user("effect"))
        two = await ask(user("effect"), *show(one), user("two"))
        other = await ask(user("effect"), *show(one), user("other"))
        assert (place_of(two), place_of(other).turn) == (ResponseId(place_of(one).session, 2), 1)
        assert other.output_text == "read effect | it is done | other"
        further = await ask(user("effect"), *show(one), user("other"), *show(other), user("more"))
        assert (place_of(further), further.output_text[-12:]) == (
            ResponseId(place_of(other).session, 2),
            "other | more",
        )
        trimmed = await ask(*show(two), user("three"))
        assert place_of(trimmed) == ResponseId(place_of(one).session, 3)
        edited = await ask(user("edited"), *show(one), user("four"))
        assert (place_of(edited).turn, edited.output_text) == (1, "read edited | it is done | four")
        with pytest.raises(openai.BadRequestError, match=r"input\[1\]: is not what previous_response_id has"):
            await ask(user("edited"), *show(one), user("four"), previous_response_id=one.id)
        told = await ask(user("effect"), *show(one), user("again"), previous_response_id=trimmed.id)
        assert told.output_text.endswith("three | again")
        with pytest.raises(openai.BadRequestError, match="is not what previous_response_id has"):
            await ask({"role": "assistant", "content": "never said"}, user("x"), previous_response_id=one.id)
        with pytest.raises(openai.BadRequestError, match="no message of the user behind"):
            await ask(user("effect"), *show(one))
        named = await ask(user("effect"), *show(one), user("five"), conversation="desk")
        assert (place_of(named), named.output_text) == (ResponseId("desk", 1), "read effect | it is done | five")
        assert EFFECTS == ["it"]


@pytest.mark.parametrize("before", ["nothing", "whole", "references", "previous"])
async def test_replies_find_their_turn(house: House, before: str) -> None:
    async with opened(house) as (client, _):

        async def ask(first: Response, *items: Any, text: str) -> Response:
            shown = {"whole": [user(text), *whole(first)], "references": [user(text), *references(first)]}.get(
                before, []
            )
            more: Any = {"previous_response_id": first.id} if before == "previous" else {}
            made: Response = await client.responses.create(model="tester", input=[*shown, *items], tools=[LOOK], **more)
            return made

        first = await client.responses.create(model="tester", input="look seek", tools=[LOOK])
        one, two = output(first, "seven"), output(first, "eight", 1)
        with pytest.raises(openai.BadRequestError, match="no output found"):
            await ask(first, one, user("never mind"), text="look seek")
        some = await ask(first, one, text="look seek")
        assert (some.status, [item.type for item in some.output]) == ("completed", ["function_call"])
        assert place_of(some) == ResponseId(place_of(first).session, 2)
        done = await ask(first, one, two, text="look seek")
        assert (place_of(done).turn, done.output_text) == (3, "read look seek | seven | eight")
        assert (await ask(first, two, text="look seek")).id == done.id
        with pytest.raises(openai.ConflictError, match=r"was returned by .* that stands"):
            await ask(first, output(first, "nine"), two, text="look seek")
        shown = [user("look seek"), *whole(first), output(first, "nine"), two, user("go on")]
        edited = await client.responses.create(model="tester", input=shown, tools=[LOOK])
        assert (place_of(edited).turn, edited.output_text) == (1, "read look seek | nine | eight | go on")
        both = await client.responses.create(model="tester", input="look pay", tools=[LOOK])
        replies = [output(both, "seven"), decision(both)]
        with pytest.raises(openai.BadRequestError, match="model: the turn that waits is of 'tester'"):
            await client.responses.create(model="other", input=replies)
        heard = await ask(both, *replies, user("and more"), text="look pay")
        assert (place_of(heard).turn, place_of(heard).segment) == (1, 2)
        assert heard.output_text == "read look pay | seven | paid 7 | and more"
        assert (await ask(both, *replies, text="look pay")).id == heard.id
        assert EFFECTS == ["pay 7"]
        if before in {"whole", "references"}:
            show: Any = whole if before == "whole" else references
            shown = [user("look pay"), *show(both), *replies, user("and more"), *show(heard)]
            last = await client.responses.create(model="tester", input=[*shown, user("bye")], tools=[LOOK])
            assert place_of(last) == ResponseId(place_of(both).session, 2)
            shown[-len(heard.output) - 1] = user("and less")
            last = await client.responses.create(model="tester", input=[*shown, user("bye")], tools=[LOOK])
            assert (place_of(last).turn, last.output_text) == (1, "read look pay | seven | and less | paid 7 | bye")


async def test_a_reply_to_what_is_over_says_so_and_a_message_behind_it_goes_on(house: House) -> None:
    async with opened(house) as (client, _):
        first = await client.responses.create(model="tester", input="look", tools=[LOOK])
        session = place_of(first).session
        await (await house.client.send(session, "never mind")).result()
        shown = [user("look"), *whole(first), output(first, "seven")]
        for items in (shown, shown[-1:]):
            with pytest.raises(openai.ConflictError, match="the session went on without a reply; send a message"):
                await client.responses.create(model="tester", input=items, tools=[LOOK])
        last = await client.responses.create(model="tester", input=[*shown, user("go on")], tools=[LOOK])
        assert (place_of(last).session != session, last.output_text) == (True, "read look | seven | go on")


async def test_a_session_that_stops_for_its_requests_hears_a_message_with_the_reply(house: House) -> None:
    async with opened(house, AGENT.clone(interactive="stop")) as (client, _):
        first = await client.responses.create(model="tester", input="pay")
        shown = [user("pay"), *whole(first), decision(first), user("quickly")]
        made = await client.responses.create(model="tester", input=shown)
        assert place_of(made).session == place_of(first).session
        assert (EFFECTS, "paid 7" in made.output_text, "quickly" in made.output_text) == (["pay 7"], True, True)
        last = await client.responses.create(model="tester", input=[*shown, *whole(made), user("bye")])
        assert place_of(last).session == place_of(first).session
        assert EFFECTS == ["pay 7"]


async def test_another_tenants_ids_are_ids_that_nobody_has(house: House) -> None:
    EFFECTS.clear()
    lines, tokens = token_lines(ann=("acme", "read,run,approve"), eve=("evil", "read,run,approve"))
    async with (
        ScriptedProvider(brain) as provider,
        house.worker(AGENT),
        gateway(house, doors=("responses",), gateway_tokens=lines) as door,
        AsyncOpenAI(base_url=f"{door.url}/openai/v1", api_key=tokens["ann"], max_retries=0) as ann,
        AsyncOpenAI(base_url=f"{door.url}/openai/v1", api_key=tokens["eve"], max_retries=0) as eve,
    ):
        house.use(provider)
        first = await ann.responses.create(model="tester", input="effect look pay", tools=[LOOK])
        session = place_of(first).session

        def nobodys(wire: str) -> str:
            return wire.replace(wire.partition("-")[2], str(ResponseId("x", 1)).removeprefix("resp_"))

        async def refusals(client: AsyncOpenAI, change: Any) -> list[Any]:
            told: list[Any] = []
            for item in whole(first):
                names = [item["id"], *([item["call_id"]] if "call_id" in item else [])]
                for wire in map(change, names):
                    asked: list[Any] = [
                        [{"type": "item_reference", "id": wire}, user("x")],
                        [{"type": "function_call_output", "call_id": wire, "output": "x"}],
                        [{"type": "mcp_approval_response", "approval_request_id": wire, "approve": True}],
                        [user("effect look pay"), {"type": "function_call_output", "call_id": wire, "output": "x"}],
                    ]
                    for items in asked:
                        with pytest.raises(openai.APIStatusError) as refused:
                            await client.responses.create(model="tester", input=items)
                        told.append((refused.value.status_code, refused.value.message.replace(wire, "ID")))
            return told

        assert await refusals(eve, str) == await refusals(eve, nobodys) == await refusals(ann, nobodys)
        stolen = await eve.responses.create(model="tester", input=[*[user("hi")], *whole(first)[:1], user("x")])
        assert place_of(stolen).session != session
        assert len(await house.client.turns(session)) == 1
        assert {request.request_id for request in await house.client.inbox(session)} != set()
        assert EFFECTS == ["it"]


async def test_what_was_erased_is_told_as_erased_and_is_the_history_of_a_new_session_if_it_is_sent_whole(
    house: House,
) -> None:
    """S-85: the tenant's own, whatever names it; an id alone brings nothing of it back."""
    async with opened(house) as (client, _):
        first = await client.responses.create(model="tester", input="effect")
        session = place_of(first).session
        await house.client.delete(session)
        asks: list[Any] = [
            {"input": [*references(first), user("x")]},
            {"input": "x", "previous_response_id": first.id},
            {"input": "x", "conversation": session},
        ]
        for asked in asks:
            with pytest.raises(openai.APIStatusError) as refused:
                await client.responses.create(model="tester", **asked)
            assert (refused.value.status_code, refused.value.code) == (410, "session.erased"), asked
        with pytest.raises(openai.APIStatusError) as gone:
            await client.responses.retrieve(first.id)
        assert gone.value.status_code == 410
        last = await client.responses.create(model="tester", input=[user("effect"), *whole(first), user("x")])
        assert (place_of(last).session != session, EFFECTS) == (True, ["it"])


async def test_nothing_is_lost_of_a_conversation_whose_calls_alone_have_ids(house: House) -> None:
    """As pydantic-ai, LangChain's JS v1 and litellm's bridge send it: messages of the agent without ids."""
    async with opened(house) as (client, _):

        def nameless(response: Response) -> Any:
            return {"role": "assistant", "content": response.output_text}

        async def ask(*items: Any) -> Response:
            made: Response = await client.responses.create(model="tester", input=[*items], tools=[LOOK])
            return made

        first = await ask(user("look"))
        shown = [user("look"), *whole(first), output(first, "seven")]
        one = await ask(*shown)
        shown.append(nameless(one))
        places = [place_of(one)]
        for text in ("two", "three", "four"):
            shown.append(user(text))
            made = await ask(*shown)
            places.append(place_of(made))
            shown.append(nameless(made))
        assert [place.turn for place in places] == [2, 3, 4, 5]
        assert len({place.session for place in places}) == 1
        assert shown[-1]["content"] == "read look | seven | two | three | four"
        for change in (user("edited"), {"role": "assistant", "content": "never said"}):
            at = -4 if change["role"] == "user" else -3
            edited = await ask(*shown[:at], change, *shown[at + 1 :], user("five"))
            assert place_of(edited).turn == 1
            assert edited.output_text.startswith("read look | seven | two | ")
            assert edited.output_text.endswith(" | four | five")
            assert ("edited" in edited.output_text) is (change["role"] == "user")
        dropped = await ask(*shown[:-2], user("other"))
        assert (place_of(dropped).turn, dropped.output_text) == (1, "read look | seven | two | three | other")


async def test_the_turns_own_message_before_a_reply_is_not_heard_twice(house: House) -> None:
    """As the AI SDK sends it beside a conversation: without the call, and with all messages of the user."""
    async with opened(house) as (client, _):

        async def ask(*items: Any, **more: Any) -> Response:
            made: Response = await client.responses.create(
                model="tester", input=[*items], tools=[LOOK], conversation="desk", instructions="Be kind.", **more
            )
            return made

        first = await ask(user("effect look"))
        done = await ask(user("effect look"), output(first, "seven"))
        assert (place_of(done).turn, EFFECTS) == (2, ["it"])
        second = await ask(user("effect look"), user("pay"))
        paid = await ask(user("effect look"), user("pay"), decision(second), user("thanks"))
        assert (place_of(paid).turn, EFFECTS) == (3, ["it", "pay 7"])
        assert paid.output_text.count("thanks") == 1
        again = await ask(user("effect look"), user("pay"), decision(second), user("thanks"))
        assert (again.id, EFFECTS) == (paid.id, ["it", "pay 7"])
        third = await ask(user("effect look"), user("pay"), user("bye"))
        assert (place_of(third).turn, EFFECTS) == (4, ["it", "pay 7"])


@pytest.mark.parametrize("hollow", [{"output": None}, {}])
async def test_what_came_of_a_call_is_known_though_its_client_leaves_it_out(
    house: House, hollow: dict[str, Any]
) -> None:
    """As openai-agents in JS and pydantic-ai send calls that a server has run."""
    async with opened(house) as (client, _):
        first = await client.responses.create(model="tester", input="effect")
        shown: list[Any] = [
            {**{name: value for name, value in item.items() if name != "output"}, **hollow}
            if item["type"] == "mcp_call"
            else item
            for item in whole(first)
        ]
        made = await client.responses.create(model="tester", input=[user("edited"), *shown, user("go on")])
        assert made.output_text == "read edited | it is done | go on"


async def test_a_client_may_say_that_it_takes_requests_for_approvals(house: House) -> None:
    """As HostedMCPTool of openai-agents, and the AI SDK's, which refuse requests of a server that they do not know."""
    server: Any = {
        "type": "mcp",
        "server_label": "perdure",
        "server_url": "https://example.org/mcp",
        "require_approval": "always",
    }
    restricted: Any = [{**server, "allowed_tools": ["pay"]}]
    strange: Any = [{**server, "server_label": "other"}]
    unknown: Any = [{**LOOK, "name": "else"}]
    async with opened(house) as (client, _):
        first = await client.responses.create(model="tester", input="pay", tools=[server])
        made = await client.responses.create(model="tester", input=[decision(first)], tools=[server])
        assert (made.output_text, EFFECTS) == ("read pay | paid 7", ["pay 7"])
        with pytest.raises(openai.BadRequestError, match="allowed_tools would restrict"):
            await client.responses.create(model="tester", input="x", tools=restricted)
        with pytest.raises(openai.BadRequestError, match="is of type 'mcp'"):
            await client.responses.create(model="tester", input="x", tools=strange)
        open_request = await client.responses.create(model="tester", input="pay")
        shown = [user("pay"), *whole(open_request), user("hello?")]
        with pytest.raises(openai.BadRequestError, match=f"no decision found for {open_request.output[-1].id}"):
            await client.responses.create(model="tester", input=shown)
        with pytest.raises(openai.BadRequestError, match="tools: the turn that waits began without 'else'"):
            await client.responses.create(model="tester", input=[decision(open_request)], tools=unknown)
