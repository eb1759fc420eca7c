"""What only a turn in memory has: somebody who acts at an event, a run after a run, and clear refusals."""

import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from perdure import Agent, Image, RetryPolicy, StdioServerConfig, ask_user, tool
from perdure.client import RequestRefusedError
from perdure.contracts.events import DelegateStart, Event
from perdure.testing import (
    InMemoryError,
    InMemoryRun,
    Reply,
    Script,
    answer,
    approve,
    call,
    deny,
    faults,
    run_in_memory,
    say,
)
from perdure.testing.memory_runtime import RunningTurn
from perdure.testing.script import ChatRequest, Fault
from tests.pictures import PNG

PEER = Path(__file__).parent.parent.parent / "mcp_peer.py"
paid: list[int] = []


@tool
def look(at: str = "it") -> str:
    """Look at something."""
    return f"{at} looks good"


@tool(requires_approval=True)
def pay(amount: int) -> str:
    """Pay an amount."""
    paid.append(amount)
    return f"paid {amount}"


def agent(*tools: Any, **settings: Any) -> Agent:
    return Agent(**{"name": "tester", "model": "openai/scripted", "tools": tools, **settings})


def script(*replies: Reply) -> Script:
    return Script(replies=replies)


def at_first(wanted: str, act: Any) -> Any:
    """Somebody who acts at the first event of that type."""
    seen: list[Event] = []

    def on_event(event: Event, turn: RunningTurn) -> None:
        if event.type == wanted:
            seen.append(event)
            if len(seen) == 1:
                act(turn)

    return on_event


def asked(run: InMemoryRun, request: int) -> list[tuple[str, str]]:
    """Who said what in a request to the model, without the system prompt."""
    messages = run.requests[request].request.messages
    return [
        (str(message["role"]), str(message.get("content") or "")) for message in messages if message["role"] != "system"
    ]


async def test_steering_is_read_by_the_model_before_its_next_answer() -> None:
    steer = at_first("tool_start", lambda turn: turn.send("Be brief.", when_busy="steer"))
    run = await run_in_memory(agent(look), "go", script(call(("look", {})), say("ok")), on_event=steer)
    assert [result.output for result in run.results] == ["ok"]
    assert asked(run, 1) == [("user", "go"), ("assistant", ""), ("tool", "it looks good"), ("user", "Be brief.")]


async def test_steering_during_the_last_answer_has_the_turn_go_on() -> None:
    steer = at_first("generation_end", lambda turn: turn.send("And in French?", when_busy="steer"))
    run = await run_in_memory(agent(), "go", script(say("hello"), say("bonjour")), on_event=steer)
    assert (run.result.output, run.result.steps, len(run.results)) == ("bonjour", 2, 1)
    assert asked(run, 1)[-1] == ("user", "And in French?")


async def test_messages_for_later_begin_a_turn_each_in_their_order() -> None:
    def send(turn: RunningTurn) -> None:
        turn.send("Second.")
        turn.send("Third.")

    answers = script(call(("look", {})), say("one"), say("two"), say("three"))
    run = await run_in_memory(agent(look), "First.", answers, on_event=at_first("tool_start", send))
    assert [(result.turn, result.output) for result in run.results] == [(1, "one"), (2, "two"), (3, "three")]
    assert asked(run, 1)[-1][0] == "tool"  # the first turn has not read them
    assert [said for role, said in asked(run, 3) if role == "user"] == ["First.", "Second.", "Third."]
    assert run.result == run.results[0]


async def test_a_run_after_a_run_goes_on_with_its_session() -> None:
    first = await run_in_memory(agent(), "I am Ada.", script(say("Hello Ada.")))
    then = await run_in_memory(agent(), "Who am I?", script(say("Hello Ada."), say("Ada.")), after=first)
    other = await run_in_memory(agent(), "Who am I?", script(say("I do not know.")))
    assert (then.session, then.result.turn, then.result.output) == (first.session, 2, "Ada.")
    assert asked(then, 0) == [("user", "I am Ada."), ("assistant", "Hello Ada."), ("user", "Who am I?")]
    assert (other.session != first.session, asked(other, 0)) == (True, [("user", "Who am I?")])
    assert [message.role for message in await then.transcript()] == ["user", "assistant"] * 2


@pytest.mark.parametrize(("said", "did", "reads"), [(approve(by="ada"), [7], "paid 7"), (deny("no"), [], "denied")])
async def test_a_reply_goes_on_with_the_run_that_stopped_for_it(said: Any, did: list[int], reads: str) -> None:
    paid.clear()
    payer = agent(pay, interactive="stop")
    answers = script(call(("pay", {"amount": 7})), say("done"))
    first = await run_in_memory(payer, "Pay.", answers)
    assert (first.result.stop_reason, paid) == ("waiting_for_input", [])
    then = await run_in_memory(payer, "", answers, after=first, reply=said)
    assert (then.result.stop_reason, then.result.output, paid) == ("finished", "done", did)
    role, text = asked(then, 0)[-1]
    assert (role, reads in text) == ("tool", True)


async def test_an_answer_goes_on_with_the_run_that_asked() -> None:
    asking = agent(ask_user, interactive="stop")
    answers = script(call(("ask_user", {"question": "Which?", "options": ["red", "blue"]})), say("done"))
    first = await run_in_memory(asking, "go", answers)
    then = await run_in_memory(asking, "", answers, after=first, reply=answer("red", by="ada"))
    assert (then.result.output, "red" in asked(then, 0)[-1][1]) == ("done", True)


@pytest.mark.parametrize("ended", [False, True])
async def test_a_reply_that_nobody_waits_for_is_refused(ended: bool) -> None:
    before: Any = {"after": await run_in_memory(agent(), "go", script(say("ok")))} if ended else {}
    with pytest.raises(InMemoryError, match="the run before waits for nobody; give after= a run that ended"):
        await run_in_memory(agent(), "", script(say("ok")), reply=approve(), **before)


async def test_a_prompt_over_the_window_is_refused_as_a_context_overflow() -> None:
    fits = await run_in_memory(agent(), "Go.", script(say("short")), window=100)
    over = await run_in_memory(agent(), "word " * 100, script(say("short")), window=100)
    assert (fits.result.output, over.result.reason_code) == ("short", "llm.context_overflow")


@pytest.mark.deep
async def test_tools_of_an_mcp_server_are_called() -> None:
    server = StdioServerConfig(name="peer", command=sys.executable, args=(str(PEER), ""))
    answers = script(call(("peer__echo", {"text": "hi"})), say("done"))
    run = await run_in_memory(agent(mcp_servers=[server]), "go", answers)
    assert (run.result.stop_reason, run.result.output) == ("finished", "done")
    assert asked(run, 1)[-1] == ("tool", 'echo: {"text": "hi"}')


@pytest.mark.parametrize("event", ["agent_start", "generation_start", "tool_start", "agent_end"])
async def test_what_on_event_raises_comes_out_of_the_run(event: str) -> None:
    """An assertion of a test is none of the agent's errors, which it may feed back or try again."""

    def complain(_: RunningTurn) -> None:
        raise AssertionError(event)

    answers = script(call(("look", {})), say("done"))
    with pytest.raises(AssertionError, match=event):
        await run_in_memory(agent(look, on_tool_error="feed_back"), "go", answers, on_event=at_first(event, complain))


async def test_a_recording_is_refused_for_there_is_no_worker() -> None:
    with pytest.raises(InMemoryError, match="recording: a turn in memory neither writes nor replays one"):
        await run_in_memory(agent(), "go", script(say("ok")), recording="yesterday")


async def test_a_prompt_beside_a_reply_is_read_behind_it() -> None:
    answers = script(call(("pay", {"amount": 1})), say("done"))
    first = await run_in_memory(agent(pay, interactive="stop"), "Pay.", answers)
    then = await run_in_memory(agent(pay, interactive="stop"), "And greet.", answers, after=first, reply=approve())
    assert asked(then, 0)[-1] == ("user", "And greet.")


async def test_more_replies_than_requests_are_refused() -> None:
    first = await run_in_memory(agent(pay, interactive="stop"), "Pay.", script(call(("pay", {"amount": 1}))))
    with pytest.raises(InMemoryError, match="reply: the run before waits for 1, and not for 2 replies"):
        await run_in_memory(agent(pay), "", script(), after=first, reply=[approve(), approve()])


async def test_a_turn_for_which_nobody_speaks_says_who_is_waited_for() -> None:
    answers = script(call(("ask_user", {"question": "Which colour?"}), ("pay", {"amount": 1})))
    with pytest.raises(InMemoryError, match=r"waits for .*Which colour\?, approval of pay, and nobody says anything"):
        await run_in_memory(agent(ask_user, pay), "go", answers)


async def test_a_request_that_is_not_valid_is_refused() -> None:
    with pytest.raises(RequestRefusedError, match="max_steps"):
        await run_in_memory(agent(), "go", script(say("ok")), max_steps=-1)


async def test_a_picture_reaches_the_model() -> None:
    picture = Image(data=PNG)
    run = await run_in_memory(agent(), ["What is it?", picture], script(say("a dot")))
    assert "image_url" in asked(run, 0)[0][1]


@pytest.mark.parametrize(
    ("idle", "seconds"), [(None, 3_600), (timedelta(minutes=10), 600), (timedelta(hours=2), 3_600)]
)
@pytest.mark.parametrize("wire", ["openai", "anthropic"])
async def test_a_silent_provider_is_waited_for_in_virtual_time_on_both_wires(
    wire: str, idle: timedelta | None, seconds: int
) -> None:
    """As long as the shorter of idle_timeout and generation_timeout says."""
    answers = script(say("ok").after(faults.hang()))
    once = agent(
        model=f"{wire}/scripted",
        retry=RetryPolicy(max_retries=0),
        generation_timeout=timedelta(hours=1),
        idle_timeout=idle,
    )
    run = await run_in_memory(once, "go", answers)
    assert (run.result.reason_code, run.seconds) == ("llm.timeout", seconds)


async def test_a_scripted_refusal_holds_no_later_call_of_the_key() -> None:
    helper = agent(name="helper", model="openai/helper", description="Helps.")
    limited = faults.rate_limited(headers={"retry-after": "30"})
    helping = script(*(say("done").after(limited, limited) for _ in range(3)))
    asking = call(("helper", {"query": "1"}), ("helper", {"query": "2"}), ("helper", {"query": "3"}))
    run = await run_in_memory(agent(delegates=[helper]), "go", script(asking, say("ok")), models={"helper": helping})
    started = [envelope.event for envelope in await run.events() if isinstance(envelope.event, DelegateStart)]
    written = [envelope.event.type for start in started for envelope in await run.events(start.delegate)]
    assert (run.result.stop_reason, len(started)) == ("finished", 3)
    assert written.count("generation_retry") == 6
    assert "generation_wait" not in written


def look_until_told(request: ChatRequest) -> Reply:
    return say("ok") if request.messages[-1].get("content") == "This." else call(("look", {}))


@pytest.mark.parametrize(("when_busy", "said"), [("interrupt", ["go", "This."]), ("rollback", ["This."])])
async def test_a_message_may_interrupt_a_turn_in_memory(when_busy: Any, said: list[str]) -> None:
    interrupt = at_first("tool_start", lambda turn: turn.send("This.", when_busy=when_busy))
    run = await run_in_memory(agent(look), "go", look_until_told, on_event=interrupt)
    assert [result.stop_reason for result in run.results] == ["cancelled", "finished"]
    assert [message.content for message in await run.transcript() if message.role == "user"] == said


@pytest.mark.parametrize(
    "model",
    [
        *("openai/x", "anthropic/x", "gemini/x", "bedrock/anthropic.claude-v2"),
        *("azure/x", "vertex_ai/gemini-x", "ollama/x", "cohere/x"),
    ],
)
@pytest.mark.parametrize("fault", [faults.rate_limited(), faults.close_before_reply(), faults.garbage()], ids=str)
async def test_a_fault_is_met_whatever_the_model_is(model: str, fault: Fault) -> None:
    """S-14: nobody is asked over the network, and no key is wanted."""
    tester = Agent(name="tester", model=model)
    run = await run_in_memory(tester, "go", script(say("ok").after(fault)), plays=None)
    assert (run.result.output, run.result.stop_reason, len(run.requests)) == ("ok", "finished", 2)
