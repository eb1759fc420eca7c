"""S-87: settings that frameworks send to OpenAI's API, and what becomes of them at the Responses door.

Bodies are those that the frameworks send by default: LangChain's ``with_structured_output`` and ``create_agent``,
pydantic-ai's ``output_type``, ``NativeOutput`` and ``PromptedOutput``, ``client.responses.parse``, the AI SDK's
``Output.object``, LlamaIndex.
"""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from openai.types.responses import Response
from pydantic import BaseModel

from perdure import Agent, ask_user, tool
from perdure.testing import Reply, ScriptedProvider, call, say
from perdure.testing.script import ChatRequest
from tests.gateway import Door, gateway, token_lines
from tests.house import House


class River(BaseModel):
    name: str
    length: int


RHINE = River(name="Rhine", length=1_233)
SCHEMA: Any = {**River.model_json_schema(), "additionalProperties": False}
FORM: Any = {"type": "json_schema", "name": "river", "schema": SCHEMA, "strict": True}


@tool
def lookup() -> str:
    """Look up rivers."""
    return "Rhine 1233"


def function(name: str) -> Any:
    return {"type": "function", "name": name, "parameters": {"type": "object", "properties": {}}}


class Provider:
    """A provider that plays replies in their order, whoever asks, and keeps the requests."""

    def __init__(self, *replies: Reply) -> None:
        self.requests: list[ChatRequest] = []
        self._replies: Sequence[Reply] = replies

    def __call__(self, request: ChatRequest) -> Reply:
        self.requests.append(request)
        return self._replies[min(len(self.requests), len(self._replies)) - 1]


@asynccontextmanager
async def opened(house: House, brain: Provider, **settings: Any) -> AsyncIterator[tuple[AsyncOpenAI, Door]]:
    key = settings.pop("key", "anything")
    async with (
        ScriptedProvider(brain) as provider,
        house.worker(Agent(name="tester", model="openai/scripted", tools=[lookup, ask_user])),
        gateway(house, doors=("responses",), **settings) as door,
        AsyncOpenAI(base_url=f"{door.url}/openai/v1", api_key=key, max_retries=0, timeout=60) as client,
    ):
        house.use(provider)
        yield client, door


FENCED = say(f"Here it is:\n```json\n{RHINE.model_dump_json()}\n```")
ASKS = call(("ask_user", {"question": "Which one?"}))
WRONG = say('{"name": "Rhine"}')


@pytest.mark.parametrize("streams", [False, True])
async def test_an_answer_is_the_json_that_the_request_asks_for(house: House, *, streams: bool) -> None:
    """Words beside a call, fences and an answer that misses are no message: each client reads them all as JSON."""
    brain = Provider(call(("lookup", {}), text="I look it up."), WRONG, FENCED, say("Nothing."))
    async with opened(house, brain) as (client, _):
        if streams:
            async with client.responses.stream(model="tester", input="which?", text_format=River) as stream:
                async for _ in stream:
                    pass
                parsed: Any = await stream.get_final_response()
        else:
            parsed = await client.responses.parse(model="tester", input="which?", text_format=River)
        assert parsed.output_parsed == RHINE
        assert [item.type for item in parsed.output] == ["mcp_call", "message"]
        assert "must fit this JSON schema" in brain.requests[0].system
        read = await client.responses.retrieve(parsed.id)
        assert read.text is not None
        assert read.text.format is not None
        assert (read.text.format.type, json.loads(read.output_text)) == ("json_schema", RHINE.model_dump())
        shown: list[Any] = [item.to_dict() for item in read.output]
        again = [{"role": "user", "content": "which?"}, *shown, {"role": "user", "content": "and?"}]
        after = await client.responses.create(model="tester", input=again)
        assert after.conversation == read.conversation
        assert (after.output_text, "JSON schema" in brain.requests[-1].system) == ("Nothing.", False)


async def test_json_without_a_schema_is_any_object(house: House) -> None:
    brain = Provider(say('{"anything": [1]}'))
    async with opened(house, brain) as (client, _):
        form: Any = {"format": {"type": "json_object"}}
        response = await client.responses.create(model="tester", input="which?", text=form)
        assert json.loads(response.output_text) == {"anything": [1]}


async def test_an_answer_that_never_fits_fails_and_says_so(house: House) -> None:
    async with opened(house, Provider(WRONG)) as (client, _):
        response = await client.responses.create(model="tester", input="which?", text={"format": FORM})
        assert (response.status, response.output) == ("failed", [])
        assert response.error is not None
        assert "'length' is a required property" in response.error.message or "length" in response.error.message


async def test_a_function_that_has_to_be_called_ends_the_response(house: House) -> None:
    """As pydantic-ai and LangChain ask for an answer: perdure's tools may run on the way, and text is no end."""
    brain = Provider(call(("lookup", {})), call(("final_result", {})), say("Done."))
    choice: Any = "required"
    async with opened(house, brain) as (client, _):
        response = await client.responses.create(
            model="tester", input="which?", tools=[function("final_result")], tool_choice=choice
        )
        assert [item.type for item in response.output] == ["mcp_call", "function_call"]
        assert response.tool_choice == "required"
        assert [request.tool_choice for request in brain.requests] == ["required", "required"]
        await _give(client, response)
        assert brain.requests[-1].tool_choice is None


async def test_the_request_with_a_result_says_what_has_to_be_called_next(house: House) -> None:
    brain = Provider(call(("look", {})), call(("final_result", {})), say("Done."))
    tools = [function("look"), function("final_result")]
    async with opened(house, brain) as (client, _):
        first = await client.responses.create(model="tester", input="which?", tools=tools, tool_choice="required")
        second = await _give(client, first, tools=tools, tool_choice="required")
        assert [getattr(item, "name", "") for item in second.output] == ["final_result"]
        assert [request.tool_choice for request in brain.requests] == ["required", "required"]


async def _give(client: AsyncOpenAI, response: Response, **more: Any) -> Response:
    call_id = getattr(response.output[-1], "call_id")  # noqa: B009 - of a union
    output: Any = {"type": "function_call_output", "call_id": call_id, "output": "ok"}
    asked: Any = {"model": "tester", "input": [output], "previous_response_id": response.id, **more}
    again: Response = await client.responses.create(**asked)
    return again


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        ({"type": "function", "name": "final_result"}, {"type": "function", "function": {"name": "final_result"}}),
        (
            {"type": "mcp", "server_label": "perdure", "name": "lookup"},
            {"type": "function", "function": {"name": "lookup"}},
        ),
        ("none", "none"),
    ],
)
async def test_one_tool_or_none_has_to_be_called(house: House, choice: Any, sent: Any) -> None:
    brain = Provider(say("Done."))
    async with opened(house, brain) as (client, _):
        await client.responses.create(
            model="tester",
            input="which?",
            tools=[function("final_result")],
            tool_choice=choice,
            parallel_tool_calls=False,
        )
        assert (brain.requests[0].tool_choice, brain.requests[0].parallel_tool_calls) == (sent, False)


async def test_a_tool_that_there_is_not_is_refused(house: House) -> None:
    async with opened(house, Provider(say("x"))) as (client, _):
        choice: Any = {"type": "function", "name": "nothing"}
        response = await client.responses.create(model="tester", input="which?", tool_choice=choice)
        assert response.error is not None
        assert "there is no tool named 'nothing'; the tools are: lookup" in response.error.message


async def test_what_every_framework_sends_is_told_and_not_refused(house: House) -> None:
    """LlamaIndex's defaults, and what the AI SDK and LangChain send; a token with the scope ``tune`` may set them."""
    lines, tokens = token_lines(plain=("", "run,read"), tuner=("", "run,read,tune"))
    brain = Provider(say("x"))
    async with opened(house, brain, gateway_tokens=lines, key=tokens["plain"]) as (client, door):
        asked: Any = {"store": False, "temperature": 0.1, "truncation": "disabled", "max_output_tokens": 100}
        response = await client.responses.create(model="tester", input="which?", **asked)
        assert response.metadata is not None
        assert response.metadata["left_alone"] == "max_output_tokens, store, temperature"
        assert (response.store, response.temperature, brain.requests[-1].temperature) == (True, None, None)
        stream = await client.responses.create(model="tester", input="which?", stream=True, **asked)
        told = [event.response.metadata async for event in stream if event.type == "response.completed"]
        assert [metadata["left_alone"] for metadata in told if metadata] == ["max_output_tokens, store, temperature"]
        tuner = client.with_options(api_key=tokens["tuner"])
        tuned = await tuner.responses.create(model="tester", input="which?", **asked)
        assert tuned.metadata is not None
        assert (tuned.temperature, brain.requests[-1].temperature) == (0.1, 0.1)
        assert tuned.metadata["left_alone"] == "max_output_tokens, store"
        body = {"agent": "tester", "prompt": "x", "generate_params": {"temperature": 0}}
        async with door.holder(tokens["plain"]) as http:
            assert (await http.post("/v1/sessions", json=body)).status_code == 403
        async with door.holder(tokens["tuner"]) as http:
            assert (await http.post("/v1/sessions", json=body)).status_code == 202


async def test_an_answer_to_a_person_keeps_the_form_of_its_turn(house: House) -> None:
    brain = Provider(ASKS, ASKS, say(RHINE.model_dump_json()))
    form: Any = {"format": FORM}
    async with opened(house, brain) as (client, _):
        first = await client.responses.create(model="tester", input="which?")
        with pytest.raises(openai.BadRequestError, match="text: the turn that waits began without this format"):
            await _give(client, first, text=form)
        other = await client.responses.create(model="tester", input="which?", text=form)
        assert (await _give(client, other, text=form)).status == "completed"


async def test_outputs_of_functions_bring_the_settings_of_the_turn_that_they_begin(house: House) -> None:
    """Programs send all of them with each request, and name functions anew."""
    brain = Provider(call(("extract-1", {})), say(RHINE.model_dump_json()), call(("extract-3", {})), say("so"))
    form: Any = {"format": FORM}
    async with opened(house, brain) as (client, _):
        first = await client.responses.create(model="tester", input="which?", tools=[function("extract-1")])
        more: Any = {"tools": [function("extract-2")], "text": form, "temperature": 0.3}
        second = await _give(client, first, **more)
        assert (RHINE.model_validate_json(second.output_text), second.previous_response_id) == (RHINE, first.id)
        asked = brain.requests[-1]
        tools: Any = asked.tools
        names = {tool["function"]["name"] for tool in tools}
        assert (asked.temperature, names & {"extract-1", "extract-2"}) == (0.3, {"extract-2"})
        third = await client.responses.create(model="tester", input="and?", tools=[function("extract-3")])
        assert (await _give(client, third)).output_text == "so"


async def test_the_doors_of_perdures_own_take_the_same(house: House) -> None:
    brain = Provider(call(("lookup", {})), say(RHINE.model_dump_json()))
    async with opened(house, brain) as (_, door):
        body = {
            "agent": "tester",
            "prompt": "which?",
            "session": "own",
            "output_schema": SCHEMA,
            "tool_choice": {"name": "lookup"},
        }
        started = await door.http.post("/v1/sessions", json=body)
        assert started.status_code == 202, started.text
        ended = await door.http.get("/v1/sessions/own/turns/1", headers={"Prefer": "wait=30"})
        assert ended.json()["result"]["value"] == RHINE.model_dump()
        named = {"type": "function", "function": {"name": "lookup"}}
        assert [request.tool_choice for request in brain.requests] == [named, None]
        wrong = await door.http.post("/v1/sessions", json={**body, "output_schema": {"type": 7}})
        assert (wrong.status_code, "output_schema" in wrong.text) == (422, True)


@pytest.mark.parametrize(
    ("settings", "ran"),
    [({"tool_choice": "none"}, 0), ({"parallel_tool_calls": False}, 1)],
    ids=["no call", "one call at a time"],
)
async def test_calls_that_a_request_does_not_want_do_not_run(house: House, settings: Any, ran: int) -> None:
    """Whatever the provider makes of it: the model is told, and answers."""
    brain = Provider(call(("lookup", {}), ("lookup", {})), say("Done."))
    async with opened(house, brain) as (client, _):
        response = await client.responses.create(model="tester", input="which?", **settings)
        calls = [item.status for item in response.output if item.type == "mcp_call"]
        assert (calls.count("completed"), calls.count("failed"), response.output_text) == (ran, 2 - ran, "Done.")


async def test_a_choice_or_parameters_beside_a_reply_cost_the_turn_nothing(house: House) -> None:
    brain = Provider(ASKS, say("Done."))
    choice: Any = {"type": "function", "name": "nothing"}
    async with opened(house, brain) as (client, _):
        first = await client.responses.create(model="tester", input="which?")
        with pytest.raises(openai.BadRequestError, match="tool_choice: the turn that waits has no tool 'nothing'"):
            await _give(client, first, tool_choice=choice)
        done = await _give(client, first, temperature=0.3, parallel_tool_calls=False)
        assert (done.output_text, brain.requests[-1].temperature) == ("Done.", None)
        assert (done.metadata or {})["left_alone"] == "parallel_tool_calls, temperature"
        given_back = await client.responses.create(model="tester", input="more", metadata=done.metadata)
        assert "left_alone" not in (given_back.metadata or {})


async def test_json_that_is_too_long_to_be_whole_is_refused(house: House) -> None:
    """It would end in the middle: clients could not read it."""
    long = json.dumps({"name": "x" * 100_000, "length": 1})
    async with opened(house, Provider(say(long))) as (client, _):
        response = await client.responses.create(model="tester", input="which?", text={"format": FORM})
        assert response.error is not None
        assert (response.status, "the limit is 100,000" in response.error.message) == ("failed", True)


async def test_an_answer_of_any_length_is_one_message(house: House) -> None:
    text = "word " * 7_000
    async with opened(house, Provider(say(text))) as (client, _):
        response = await client.responses.create(model="tester", input="which?")
        assert (len(response.output), response.output_text) == (1, text)
        stream = await client.responses.create(model="tester", input="which?", stream=True)
        assert "".join([event.delta async for event in stream if event.type == "response.output_text.delta"]) == text


async def test_json_without_its_id_is_found_by_what_it_says(house: House) -> None:
    """The stored answer has words around it; what the door gave is the JSON alone."""
    brain = Provider(say("first"), FENCED, say("third"))
    async with opened(house, brain) as (client, _):
        first = await client.responses.create(model="tester", input="one")
        shown: list[Any] = [{"role": "user", "content": "one"}, *(item.to_dict() for item in first.output)]
        shown.append({"role": "user", "content": "two"})
        second = await client.responses.create(model="tester", input=shown, text={"format": FORM})
        shown += [{"role": "assistant", "content": second.output_text}, {"role": "user", "content": "three"}]
        third = await client.responses.create(model="tester", input=shown)
        assert (third.output_text, third.conversation) == ("third", first.conversation)
