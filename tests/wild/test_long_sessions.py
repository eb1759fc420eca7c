"""Sessions of many short turns, whose conversation nears the window between the turns and not within one.

Seen in the public trackers of chat agents: a context meter that begins at zero with each message lets a conversation
grow until the provider refuses it.
"""

from typing import Any

from perdure import Agent, tool
from perdure.contracts.agents import Compaction
from perdure.llm.compaction import INSTRUCTIONS
from perdure.testing import Reply, call, faults, say
from perdure.testing.script import ChatRequest
from tests.memory import Run

LONG = "so it goes on. " * 60


def answers(request: ChatRequest) -> Reply:
    system = str(request.messages[0].get("content"))
    return say("<summary>the gist</summary>") if system == INSTRUCTIONS else say(f"noted: {LONG}")


def answers_shortly(request: ChatRequest) -> Reply:
    reply = answers(request)
    return say("ok") if str(reply.text).startswith("noted") else reply


def chatty(**settings: Any) -> Agent:
    return Agent(name="chatty", model="openai/m", compaction=Compaction(window=1_000, keep=2), **settings)


async def test_a_session_of_one_answer_a_turn_is_compacted_above_its_threshold(run: Run) -> None:
    """S-44: the count begins with what the session's last answer counted."""
    triggers: list[list[str]] = []
    for _ in range(4):
        result = await run(chatty(), script=answers, prompt=LONG)
        assert result["stop_reason"] == "finished"
        done = [event for event in await run.events("compaction_event") if event["compaction_status"] == "completed"]
        triggers.append([event["trigger"] for event in done if event["turn"] == result["turn"]])
    assert triggers[:2] == [[], []]
    assert triggers[2] == ["threshold"]


async def test_a_session_that_no_summary_makes_small_is_not_summarised_again_with_each_turn(run: Run) -> None:
    """Each summary is paid for: the next is due when the context has grown by a tenth since the last one."""
    counts: list[int] = []
    for _ in range(8):
        await run(chatty(instructions=LONG * 4), script=answers_shortly, prompt="on")
        done = [event for event in await run.events("compaction_event") if event["compaction_status"] == "completed"]
        counts.append(len(done))
    assert counts[-1] == 1


def windowed(limit: int, refusals: list[int]) -> Any:
    """A model that calls ``fetch`` once and then answers, whose provider takes so many characters of text."""

    def answer(request: ChatRequest) -> Reply:
        texts = [str(message.get("content") or "") for message in request.messages if message["role"] != "system"]
        system = str(request.messages[0].get("content"))
        if system == INSTRUCTIONS:
            reply = say("<summary>the gist</summary>")
        else:
            fetches = "fetch it" in texts[0][:100] and not any(
                message["role"] == "tool" for message in request.messages
            )
            reply = call(("fetch", {})) if fetches else say("done")
        if sum(map(len, texts)) <= limit:
            return reply
        refusals.append(sum(map(len, texts)))
        return reply.model_copy(update={"faults": (faults.context_overflow(),) * 30})

    return answer


@tool(offload=False)
def fetch() -> str:
    """Fetch the page."""
    return f"begin {LONG * 400} end"


async def test_a_result_longer_than_the_window_is_cut_to_its_ends(run: Run) -> None:
    """S-41: offloading is off, so nothing else makes it shorter."""
    refusals: list[int] = []
    agent = Agent(name="reader", model="openai/m", tools=[fetch])
    result = await run(agent, script=windowed(60_000, refusals), prompt="fetch it")
    assert (result["stop_reason"], result["output"]) == ("finished", "done")
    read = run.read()[-1][1]
    assert read.startswith("begin")
    assert read.endswith("end")
    assert "characters left out" in read
    again = await run(agent, script=windowed(60_000, refusals), prompt="and now?")
    assert again["stop_reason"] == "finished"


async def test_a_prompt_longer_than_the_window_is_cut_to_its_ends_and_the_transcript_keeps_it(run: Run) -> None:
    refusals: list[int] = []
    agent = Agent(name="reader", model="openai/m", tools=[fetch])
    prompt = f"Read this. {LONG * 100} That was it."
    result = await run(agent, script=windowed(30_000, refusals), prompt=prompt)
    assert result["stop_reason"] == "finished"
    assert run.read()[-1][1].endswith("That was it.")
    assert (await run.transcript())[0].content == prompt
    (done,) = [event for event in await run.events("compaction_event") if event["compaction_status"] == "completed"]
    assert "1 of 1 messages were cut to their ends" in done["reason"]
    assert (await run(agent, script=windowed(30_000, refusals), prompt="and now?"))["stop_reason"] == "finished"


async def test_a_forced_compaction_goes_below_keep(run: Run) -> None:
    """S-41: ten messages that are kept may be more than the window."""
    refusals: list[int] = []
    agent = Agent(name="reader", model="openai/m", tools=[fetch])
    for _ in range(4):
        result = await run(agent, script=windowed(6_000, refusals), prompt=f"Read this. {LONG}{LONG}")
        assert result["stop_reason"] == "finished"
    summaries = [event for event in await run.events("compaction_event") if event["summary"]]
    assert summaries
    assert all(event["messages_before"] <= 10 for event in summaries)


async def test_what_no_cut_makes_fit_ends_with_the_two_ways_on(run: Run) -> None:
    agent = Agent(name="reader", model="openai/m")
    result = await run(agent, script=windowed(0, []), prompt="hello")
    assert result["reason_code"] == "llm.context_overflow"
    assert f"'perdure resume {run.session} PROMPT --at STEP'" in result["error"]
    assert f"'perdure send {run.session} PROMPT --when-busy rollback'" in result["error"]
