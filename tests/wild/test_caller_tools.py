"""Reports about other systems in which callers run tools or people decide: what broke there has to hold here."""

import json
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from perdure import Agent, StdioServerConfig, ask_user, caller_tool, todo, tool
from perdure.client import RequestRefusedError
from perdure.contracts.events import UserInputRequired
from perdure.contracts.input_requests import InputRequest
from perdure.contracts.values import JsonValue
from perdure.testing import InMemoryError, Reply, Said, Script, ScriptedProvider, answer, approve, call, result, say
from tests.house import House
from tests.memory import Run
from tests.workflow.asking import results

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
lookup = caller_tool("lookup", "Look a customer up.", SCHEMA, timeout=timedelta(hours=1))
GIVEN: dict[str, Any] = {"name": "lookup", "description": "Look a customer up.", "parameters": SCHEMA}
LOOK = call(("lookup", {"id": 7}))
DONE = say("done")


@tool(requires_approval=True)
def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


@tool
def note(text: str) -> str:
    """Note something."""
    return f"noted {text}"


def agent(**settings: Any) -> Agent:
    fields: dict[str, Any] = {
        "name": "tester",
        "model": "openai/scripted",
        "tools": [lookup, pay, note, ask_user, todo],
    }
    return Agent(**{**fields, **settings})


def read(run: Run) -> list[str]:
    """What the model read as results of its calls, with its last request."""
    return [text for role, text in run.read() if role == "tool"]


@pytest.mark.parametrize("said", [approve(by="ann"), answer("Ada")])
async def test_a_reply_of_another_kind_settles_no_call_of_a_caller(run: Run, said: Said) -> None:
    """https://github.com/pydantic/pydantic-ai/issues/7624: results in the wrong category settled pending calls."""
    await run(agent(), LOOK, DONE, people=[said])
    assert ("sent no result in time" in read(run)[0], run.last.seconds) == (True, 3_600.0)


@pytest.mark.parametrize("asked", [call(("pay", {"amount": 1})), call(("ask_user", {"question": "?"}))])
async def test_a_result_settles_no_approval_and_no_question(run: Run, asked: Reply) -> None:
    """https://github.com/pydantic/pydantic-ai/issues/7624."""
    with pytest.raises(InMemoryError, match="the turn waits for"):
        await run(agent(), asked, DONE, people=[result("blue")])


async def test_calls_to_which_a_provider_gave_one_id_have_each_their_own_result(run: Run) -> None:
    """https://github.com/pydantic/pydantic-ai/pull/6241: one approval bound to both calls, and ran the wrong tool."""
    both = call(("lookup", {"id": 7}), ("pay", {"amount": 3})).model_copy(update={"call_ids": ("dup", "dup")})
    seen: list[str] = []

    def decide(request: InputRequest) -> Said:
        seen.append(request.request_id)
        return result("Ada") if request.needs == "result" else approve(by="ann")

    await run(agent(), both, DONE, people=decide)
    assert (read(run), len(set(seen))) == (["Ada", "paid 3"], 2)


async def test_calls_with_the_same_arguments_get_their_results_in_any_order(run: Run) -> None:
    """https://github.com/langchain-ai/langgraph/issues/6533: resume values went to another of the parallel tools."""
    asked: list[str] = []

    def decide(request: InputRequest) -> Said:
        asked.append(request.request_id)
        return result(request.request_id, seconds=100.0 - 10 * len(asked))

    same: list[tuple[str, JsonValue]] = [("lookup", {"id": 7})] * 4
    await run(agent(), call(*same), DONE, people=decide)
    assert read(run) == sorted(asked)


async def test_one_call_is_not_resumed_with_two_values(house: House) -> None:
    """https://github.com/langchain-ai/langgraph/issues/6663: an interrupt was resumed twice."""
    async with (
        ScriptedProvider(Script(replies=(LOOK, DONE, DONE))) as provider,
        house.worker(agent(interactive="stop")),
    ):
        house.use(provider)
        (request,) = (await house.run())["requests"]
        await house.client.submit_result(house.session, request["request_id"], "Ada")
        assert (await (await house.client.attach(house.session, 2)).result()).output == "done"
        with pytest.raises(RequestRefusedError):
            await house.client.submit_result(house.session, request["request_id"], "Eve")
        assert (await house.client.submit_result(house.session, request["request_id"], "Ada")).decision == "returned"
    assert provider.request_count == 2


async def test_a_message_in_place_of_a_result_leaves_no_call_without_one(run: Run) -> None:
    """https://github.com/vercel/ai/issues/12093: the provider refused the next message, as a call had no result."""
    stops = agent(interactive="stop")
    both = call(("lookup", {"id": 7}), ("note", {"text": "x"}))
    assert (await run(stops, both))["stop_reason"] == "waiting_for_input"
    assert (await run(stops, both, DONE, prompt="forget it"))["output"] == "done"
    roles = [role for role, _ in run.read()]
    assert (roles[-3:], "another message came" in read(run)[0], read(run)[1]) == (
        ["tool", "tool", "user"],
        True,
        "noted x",
    )


async def test_the_tools_of_a_start_are_there_after_the_worker_went(house: House) -> None:
    """https://github.com/cloudflare/agents/pull/897: after a restart the model had no client tools any more."""
    bare = agent(tools=[note], interactive="stop")
    async with ScriptedProvider(Script(replies=(LOOK, LOOK, DONE))) as provider:
        house.use(provider)
        async with house.worker(bare):
            (request,) = (await house.run(tools=[GIVEN]))["requests"]
        async with house.worker(bare):
            await house.client.submit_result(house.session, request["request_id"], "Ada")
            (again,) = (await (await house.client.attach(house.session, 2)).result()).requests
            await house.client.submit_result(house.session, again.request_id, "Bob")
            assert (await (await house.client.attach(house.session, 3)).result()).output == "done"
    sent: list[Any] = [request.request.tools for request in provider.requests]
    assert [[tool["function"]["name"] for tool in tools] for tools in sent] == [["note", "lookup"]] * 3


async def test_a_message_can_be_sent_while_a_call_is_open(run: Run) -> None:
    """https://github.com/CopilotKit/CopilotKit/issues/3154: a message meanwhile ended the run."""

    def chats(event: Any, turn: Any) -> None:
        if isinstance(event, UserInputRequired):
            turn.send("can I add more later?", when_busy="steer")
            turn.send("and now?", when_busy="queue")

    await run(agent(), LOOK, DONE, say("later"), people=[result("Ada", seconds=60.0)], on_event=chats)
    assert [one.output for one in run.last.results] == ["done", "later"]
    assert run.read(1)[-2:] == [("tool", "Ada"), ("user", "can I add more later?")]


@pytest.mark.parametrize("value", [False, 0, "", None, [], {}])
async def test_a_falsy_result_is_a_result(run: Run, value: JsonValue) -> None:
    """https://github.com/assistant-ui/assistant-ui/pull/5569: false, 0, an empty text and null counted as missing."""
    ended = await run(agent(), LOOK, DONE, people=[result(value)])
    assert (ended["output"], read(run)) == ("done", ["(no output)" if value == "" else json.dumps(value)])
    decided = await run.events("user_input_received")
    assert [event["decision"] for event in decided] == ["returned"]


async def test_an_error_without_a_value_tells_the_model_why_and_is_a_result(run: Run) -> None:
    """https://github.com/microsoft/vscode/pull/330709: the model got an empty result, and not the error's text.

    And https://github.com/vercel/ai/pull/12011: an error was no result, so that the model was called at once again.
    """
    await run(agent(), LOOK, DONE, people=[result(error="net::ERR_EMPTY_RESPONSE at http://localhost:5173/")])
    assert ("net::ERR_EMPTY_RESPONSE" in read(run)[0], len(run.requests)) == (True, 2)


PEER = Path(__file__).parent.parent / "mcp_peer.py"


@pytest.mark.deep
@pytest.mark.parametrize("name", ["note", "ask_user", "todo", "helper", "peer__echo", "generate"])
async def test_a_tool_of_a_caller_shadows_none_of_the_agent_and_is_shadowed_by_none(run: Run, name: str) -> None:
    """https://github.com/openclaw/openclaw/pull/57255: a built-in tool won silently over the caller's of that name."""
    helper = Agent(name="helper", model="openai/helper", description="Helps.")
    peer = StdioServerConfig(name="peer", command=sys.executable, args=(str(PEER), ""))
    tools = [{**GIVEN, "name": name}]
    using = agent(tools=[note, ask_user, todo], delegates=[helper], mcp_servers=[peer])
    try:
        ended = await run(using, DONE, tools=tools)
    except RequestRefusedError as error:
        told, code = str(error), "request.invalid"
    else:
        told, code = str(ended["error"]), str(ended["reason_code"])
    assert (code, f"tool '{name}'" in told, "rename yours" in told) == ("request.invalid", True, True), told


@pytest.mark.deep
async def test_tools_that_give_way_to_those_of_a_server_are_left_out(run: Run) -> None:
    """Open WebUI 0.12.4 offers 36 tools of its own to every model, of which no person can rename one."""
    peer = StdioServerConfig(name="peer", command=sys.executable, args=(str(PEER), ""))
    tools = [{**GIVEN, "name": name, "gives_way": True} for name in ("peer__echo", "ask_user", "generate", "other")]
    ended = await run(
        agent(tools=[ask_user], mcp_servers=[peer]), call(("peer__echo", {"text": "hi"})), DONE, tools=tools
    )
    functions: list[Any] = [tool["function"] for tool in run.requests[0].request.tools]
    offered = [function["name"] for function in functions]
    assert len(offered) == len({*offered}), offered
    assert {"ask_user", "peer__echo", "other"} <= {*offered}
    assert (ended["output"], "generate" in offered) == ("done", False)
    assert "hi" in read(run)[0]


async def test_every_call_of_a_mixed_answer_has_one_result(run: Run) -> None:
    """https://github.com/pydantic/pydantic-ai/issues/6486 and https://github.com/atuinsh/atuin/pull/3893.

    A call that was settled at once, beside one that waited, made the resumption fail; an unknown tool had no result.
    """
    mixed = call(
        ("nope", {}),
        ("lookup", {"id": "x"}),
        ("lookup", {"id": 7}),
        ("pay", {"amount": 3}),
        ("todo", {"new_titles": ["a"]}),
        ("note", {"text": "x"}),
        ("lookup", "{broken"),
    )
    await run(agent(), mixed, DONE, people=lambda request: result("Ada") if request.needs == "result" else approve())
    unknown, wrong, found, paid, todos, noted, broken = read(run)
    assert ("there is no tool" in unknown, "do not fit" in wrong, "no JSON object" in broken) == (True, True, True)
    assert (found, paid, "a" in todos, noted) == ("Ada", "paid 3", True, "noted x")


async def test_a_result_after_the_time_out_is_refused_and_said_so(house: House) -> None:
    """https://github.com/aplisay/llm-agent/pull/176: a late result was dropped unsaid, and the booking made twice."""
    hasty = agent(tools=[lookup.with_(timeout=timedelta(seconds=1))])
    async with ScriptedProvider(Script(replies=(LOOK, DONE))) as provider, house.worker(hasty):
        house.use(provider)
        await house.run()
        (asked,) = await house.events("user_input_required")
        with pytest.raises(RequestRefusedError, match="expired"):
            await house.client.submit_result(house.session, str(asked["request_id"]), "booked")
    assert "whether it ran is unknown" in results(provider.requests[-1].request.messages)[0]
