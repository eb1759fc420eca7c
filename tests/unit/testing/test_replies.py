"""Replies that begin a turn together: of an agent that stops for everything, or a turn that stops for results."""

from typing import Any

import pytest

from perdure import Agent, Delegate, ask_user, caller_tool, tool
from perdure.client import RequestRefusedError
from perdure.client.requests import turn_request
from perdure.contracts.turns import Continuation
from perdure.testing import InMemoryRun, Said, answer, approve, call, deny, result, run_in_memory, say

PLACE: dict[str, Any] = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}
BOTH = call(("weather", {"place": "Rome"}), ("weather", {"place": "Oslo"}))


def function(name: str) -> dict[str, Any]:
    """A tool that a request brings."""
    return {"name": name, "description": "Look it up.", "parameters": PLACE}


def reply_of(request: str, value: str) -> dict[str, Any]:
    """A reply, as the request has it."""
    return {"request": request, "decision": "returned", "value": value}


@tool(requires_approval=True)
def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


@tool
def note(text: str) -> str:
    """Note something."""
    return f"noted {text}"


def agent(**settings: Any) -> Agent:
    fields: dict[str, Any] = {"name": "tester", "model": "openai/scripted", "tools": [note, pay, ask_user]}
    return Agent(**{**fields, **settings})


def names_of(run: InMemoryRun, number: int = 0) -> set[str]:
    """Names of the tools that a request to the model has."""
    tools: Any = run.requests[number].request.tools
    return {tool["function"]["name"] for tool in tools}


def read(run: InMemoryRun) -> list[tuple[str, str]]:
    """What the model read last, behind its own answer."""
    messages = run.requests[-1].request.messages
    last = max(place for place, message in enumerate(messages) if message["role"] == "assistant")
    return [(str(message["role"]), str(message["content"])) for message in messages[last + 1 :]]


async def stopped(**settings: Any) -> InMemoryRun:
    """A turn with a function of the request's, which has stopped for two calls of it."""
    run = await run_in_memory(
        agent(**settings), "go", [BOTH], tools=[function("weather")], stop_for_results=True, by="app"
    )
    assert (run.result.stop_reason, len(run.result.requests)) == ("waiting_for_input", 2)
    return run


async def test_a_turn_that_needs_results_alone_stops_and_all_of_them_begin_the_next() -> None:
    first = await stopped()
    second = await run_in_memory(agent(), "", [BOTH, say("done")], after=first, reply=[result("sunny"), result("snow")])
    assert (second.result.stop_reason, second.result.turn, len(second.requests)) == ("finished", 2, 1)
    assert read(second) == [("tool", "sunny"), ("tool", "snow")]
    starts = [one.event.prompt for one in await second.events() if one.event.type == "agent_start"]
    asked = [one.event.stops for one in await second.events() if one.event.type == "user_input_required"]
    assert (starts, asked) == (["go", ""], [True, True])
    received = [one.turn for one in await second.events() if one.event.type == "user_input_received"]
    assert received == [2, 2]


async def test_a_message_beside_replies_is_read_behind_their_results() -> None:
    first = await stopped()
    said = [result("sunny"), result(error="no such town")]
    second = await run_in_memory(agent(), "And now?", [BOTH, say("done")], after=first, reply=said)
    kinds = [(role, text if role == "user" else "") for role, text in read(second)]
    assert kinds == [("tool", ""), ("tool", ""), ("user", "And now?")]
    heard = [one.event for one in await second.events() if one.event.type == "user_message"]
    assert [one.content for one in heard] == ["And now?"]
    assert [str(message.content) for message in await second.transcript()].count("And now?") == 1


async def test_replies_bring_functions_a_form_and_a_choice_for_the_turn_that_they_begin() -> None:
    """The functions stand in place of those before them, under other names too; the agent's own tools stay."""
    first = await stopped()
    form: dict[str, Any] = {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]}
    second = await run_in_memory(
        agent(),
        "",
        [BOTH, say('{"town": "Rome"}')],
        after=first,
        reply=[result("sunny"), result("snow")],
        tools=[function("extract-2")],
        output_schema=form,
        tool_choice="none",
    )
    assert second.result.value == {"town": "Rome"}
    (asked,) = second.requests
    body: Any = asked.body
    assert (names_of(second), body["tool_choice"]) == ({"note", "pay", "ask_user", "extract-2"}, "none")
    third = await run_in_memory(agent(), "again", [BOTH, say("x"), say("so")], after=second)
    assert names_of(third) == {"note", "pay", "ask_user"}


async def test_functions_stay_for_replies_that_bring_none() -> None:
    first = await stopped()
    second = await run_in_memory(agent(), "", [BOTH, say("done")], after=first, reply=[result("a"), result("b")])
    assert "weather" in names_of(second)


async def test_a_part_of_the_replies_asks_for_the_rest_once_more() -> None:
    first = await stopped()
    second = await run_in_memory(agent(), "", [], after=first, reply=result("sunny"), stop_for_results=True)
    assert (second.result.stop_reason, second.requests) == ("waiting_for_input", ())
    assert [one.request_id for one in second.result.requests] == [first.result.requests[1].request_id]
    third = await run_in_memory(agent(), "", [BOTH, say("done")], after=second, reply=result("snow"))
    assert (third.result.output, read(third)) == ("done", [("tool", "sunny"), ("tool", "snow")])


async def test_any_other_message_withdraws_the_calls() -> None:
    first = await stopped()
    second = await run_in_memory(agent(), "never mind", [BOTH, say("done")], after=first)
    assert [role for role, _ in read(second)] == ["tool", "tool", "user"]
    told = "Operation aborted: no result of weather came, another message came; whether it ran is unknown"
    assert [text for role, text in read(second) if role == "tool"] == [told] * 2


@pytest.mark.parametrize("interactive", ["stop", "wait"])
async def test_a_message_beside_a_part_of_the_replies_is_refused(interactive: Any) -> None:
    """A turn that stopped for the rest would have nobody read it."""
    first = await stopped(interactive=interactive)
    second = await run_in_memory(agent(), "And?", [], after=first, reply=result("sunny"))
    assert (second.result.reason_code, second.requests) == ("request.invalid", ())
    assert "prompt: is read behind the replies to all requests" in str(second.result.error)


async def test_a_turn_ends_with_its_requests_as_it_has_told_whatever_comes_meanwhile() -> None:
    """Readers go by that: their replies bring what a turn that waits could not take."""
    said: list[str] = []

    def send(event: Any, turn: Any) -> None:
        if event.type == "user_input_required" and not said:
            said.append(event.request_id)
            turn.send("Meanwhile.", when_busy="steer")

    run = await run_in_memory(
        agent(), "go", [BOTH, say("done")], tools=[function("weather")], stop_for_results=True, on_event=send
    )
    assert [one.stop_reason for one in run.results] == ["waiting_for_input", "finished"]
    assert read(run)[-1] == ("user", "Meanwhile.")


async def test_a_turn_stops_once_the_last_delegate_beside_it_has_ended() -> None:
    """S-88: not a day later, when its calls have timed out."""
    helper = Agent(name="helper", model="openai/helper", description="Helps.", tools=[ask_user])
    lead = agent(tools=[], delegates=[Delegate(helper, interactive=True, background=True)])
    both = call(("helper", {"query": "which?", "run_in_background": True}), ("weather", {"place": "Rome"}))

    def colour(request: Any) -> Said | None:
        return answer("blue", seconds=60.0) if request.needs == "answer" else None

    run = await run_in_memory(
        lead,
        "go",
        [both],
        models={"helper": [call(("ask_user", {"question": "Which colour?"})), say("blue")]},
        tools=[function("weather")],
        stop_for_results=True,
        people=colour,
    )
    assert (run.result.stop_reason, run.seconds) == ("waiting_for_input", 60.0)


async def test_who_stops_for_everything_goes_on_with_all_replies_at_once() -> None:
    asks = call(("pay", {"amount": 7}), ("ask_user", {"question": "Which colour?"}))
    first = await run_in_memory(agent(interactive="stop"), "go", [asks])
    second = await run_in_memory(
        agent(interactive="stop"), "", [asks, say("done")], after=first, reply=[approve(by="ada"), answer("blue")]
    )
    assert (second.result.output, read(second)) == ("done", [("tool", "paid 7"), ("tool", "blue")])


async def test_a_turn_waits_as_long_as_a_person_has_to_decide() -> None:
    """Nobody else sees to an approval that expires."""
    asks = call(("pay", {"amount": 7}), ("weather", {"place": "Rome"}))
    run = await run_in_memory(
        agent(),
        "go",
        [asks, say("done")],
        tools=[function("weather")],
        stop_for_results=True,
        people=[deny("too much", by="ada"), result("sunny")],
    )
    assert run.result.output == "done"
    assert [text for _, text in read(run)] == ["pay was denied by ada: too much", "sunny"]
    assert not any(one.event.stops for one in await run.events() if one.event.type == "user_input_required")


async def test_what_waits_for_nobody_else_stops_once_the_approval_is_there() -> None:
    asks = call(("pay", {"amount": 7}), ("weather", {"place": "Rome"}))
    first = await run_in_memory(
        agent(), "go", [asks], tools=[function("weather")], stop_for_results=True, people=[approve(by="ada")]
    )
    assert [one.tool for one in first.result.requests] == ["weather"]
    second = await run_in_memory(agent(), "", [BOTH, say("done")], after=first, reply=result("sunny"))
    assert [text for _, text in read(second)] == ["paid 7", "sunny"]


@pytest.mark.parametrize("interactive", ["stop", "refuse"])
async def test_an_agent_that_never_waits_stays_as_it_is(interactive: Any) -> None:
    run = await run_in_memory(
        agent(interactive=interactive),
        "go",
        [call(("weather", {"place": "Rome"})), say("done")],
        tools=[function("weather")],
        stop_for_results=True,
    )
    assert run.result.stop_reason == ("waiting_for_input" if interactive == "stop" else "finished")
    asked = [one.event.stops for one in await run.events() if one.event.type == "user_input_required"]
    assert asked == ([True] if interactive == "stop" else [])


async def test_another_agent_goes_on_once_all_results_are_there() -> None:
    """A hand-over: the call that names the next agent is answered, and that agent's turn reads it."""
    other = agent(name="other", tools=[caller_tool("look", "Look.", PLACE)])
    first = await stopped()
    half = await run_in_memory(other, "", [BOTH, say("no")], after=first, reply=result("half"))
    assert (half.result.reason_code, half.requests) == ("request.invalid", ())
    assert "the calls that wait are of 'tester'; give the results of all of them" in str(half.result.error)
    second = await run_in_memory(
        other, "", [BOTH, say("mine now")], after=first, reply=[result("yours"), result("yours")]
    )
    assert (second.result.agent, second.result.output) == ("other", "mine now")
    assert names_of(second) == {"look"}
    assert read(second) == [("tool", "yours")] * 2


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"context": {"a": 1}}, "context: is that of the turn that the replies go on with"),
        ({"definition": {"name": "x"}}, "replies: go on with the turn that asked"),
        ({"history": [{"role": "user", "content": "x"}]}, "replies: go on with the turn that asked"),
        ({"resume_from": {}}, "replies: cannot be asked together with resume_from"),
        ({"replies": [{"request": "c", "decision": "denied", "by": "x"}] * 2}, "c is replied to twice"),
        ({"replies": [reply_of(f"c{n}", "x" * 32_000) for n in range(20)]}, "are 641,"),
    ],
)
def test_a_request_with_replies_says_what_it_cannot_have(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(RequestRefusedError, match=says):
        turn_request("s", {"replies": [reply_of("c", "x")], **fields})


def test_a_reply_of_an_older_run_is_read_as_one_of_several() -> None:
    """Its prompt was for people alone."""
    old = Continuation.model_validate({"prompt": "blue", "reply": reply_of("c", "blue")})
    assert ([one.request for one in old.replies], old.prompt) == (["c"], "")
