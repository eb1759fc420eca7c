"""A conversation that outgrows its model goes on from a summary, and nothing of it is lost to people."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from perdure import Agent, Compaction, RetryPolicy, tool
from perdure.activities import compact
from perdure.client import SessionBusyError
from perdure.contracts.generations import Compacted
from perdure.contracts.messages import UserMessage
from perdure.contracts.turns import StopReason
from perdure.contracts.values import JsonValue
from perdure.llm.compaction import INSTRUCTIONS
from perdure.store import StepRecord
from perdure.testing import ChatRequest, Fault, Reply, ScriptedProvider, call, faults, say
from tests.house import House
from tests.memory import Run
from tests.workflow.bodies import Body, happened

pytestmark = pytest.mark.deep

WINDOW = 4_000
"""Tokens of the scripted model, at four characters a token."""

QUICK = RetryPolicy(base=timedelta(milliseconds=10), jitter=timedelta(0))


@tool
def look(number: int) -> str:
    """Look at a page of about 500 tokens."""
    return f"page {number}: " + "x" * 2_000


def is_summary(request: ChatRequest) -> bool:
    return str(request.messages[0].get("content")).startswith(INSTRUCTIONS[:50])


class Reader:
    """A model that looks at one page after the other, and says how many it was told about when it is done.

    It knows the page from the last result alone, as everything before may be summarised.
    """

    def __init__(self, pages: int, *faults_of_summary: Fault) -> None:
        self.pages = pages
        self.faults_of_summary = faults_of_summary

    def __call__(self, request: ChatRequest) -> Reply:
        if is_summary(request):
            reply = say("<analysis>pages</analysis><summary>Some pages were looked at.</summary>")
            return reply.after(*self.faults_of_summary)
        last = request.messages[-1]
        if last["content"] == "and?":
            return say("no more")
        seen = int(str(last["content"]).split(":")[0].removeprefix("page ")) if last["role"] == "tool" else 0
        return call(("look", {"number": seen + 1})) if seen < self.pages else say(f"{self.pages} pages")


def reader(**settings: Any) -> Agent:
    fields = {"name": "tester", "model": "openai/scripted", "tools": [look], "retry": QUICK, **settings}
    return Agent(**fields)


def summaries(of: ScriptedProvider | Run) -> list[ChatRequest]:
    return [made.request for made in of.requests if is_summary(made.request)]


async def compactions(of: House | Run, status: str = "completed") -> Sequence[Any]:
    return [line for line in await of.events("compaction_event") if line["compaction_status"] == status]


@pytest.mark.parametrize("policy", [Compaction(), Compaction(window=WINDOW)], ids=["refusals", "threshold"])
@pytest.mark.parametrize("wire", ["openai", "anthropic"])
async def test_a_conversation_outgrows_its_window_ten_times_over(house: House, policy: Compaction, wire: str) -> None:
    """S-41 S-43: it finishes; a provider as strict as a real one takes each input; people can read it all."""
    pages = 90
    async with ScriptedProvider(Reader(pages), window=WINDOW) as provider:
        house.use(provider)
        agent = reader(model=f"{wire}/scripted", compaction=policy)
        async with house.worker(agent):
            result = await house.run()
    assert (result["stop_reason"], result["output"], result["steps"]) == ("finished", f"{pages} pages", pages + 1)

    transcript = await house.store.transcript(house.session)
    texts = [message.content for message in transcript if message.role == "tool"]
    assert [text.split(":")[0] for text in texts] == [f"page {number}" for number in range(1, pages + 1)]
    assert sum(map(len, texts)) // 4 > 10 * WINDOW

    done = await compactions(house)
    triggers = {line["trigger"] for line in done}
    assert triggers == {"threshold" if policy.window else "overflow_recovery"}
    assert len(done) >= 10
    assert all(line["messages_after"] < line["messages_before"] for line in done)
    refused = [made for made in provider.requests if made.fault == "refused"]
    assert len(refused) == (0 if policy.window else len(done))
    assert await house.events("generation_retry", "generation_error") == []


async def test_an_overflow_is_recovered_without_using_a_step_by_one_summary(run: Run) -> None:
    """S-41: one event with the counts; the model then reads the summary and the last ten messages."""
    result = await run(reader(), script=Reader(9), window=WINDOW)
    assert (result["steps"], result["stop_reason"]) == (10, "finished")
    (done,) = await compactions(run)
    assert (done["trigger"], done["messages_before"], done["messages_after"]) == ("overflow_recovery", 16, 12)
    assert done["summary"].endswith("Some pages were looked at.")
    (asked,) = summaries(run)
    assert "[result of look]\npage 1:" in str(asked.messages[1]["content"])
    after = run.requests[-1].request
    assert str(after.messages[0]["content"]).startswith("[Summary of the 5 messages before")
    # The call that wrote the summary is paid for like any other.
    calls = [made.request for made in run.requests if made.fault is None]
    assert result["usage"]["input_tokens"] == sum(made.tokens for made in calls)
    assert result["unpriced_calls"] == len(calls) == 11


async def test_a_later_turn_goes_on_from_the_summary(run: Run) -> None:
    """S-43: the next turn starts from the compacted conversation."""
    await run(reader(), script=Reader(9), window=WINDOW)
    await run(reader(), script=Reader(9), window=WINDOW, prompt="and?")
    last = run.requests[-1].request
    assert len(summaries(run)) == 1
    assert "[Summary of the 5 messages before" in str(last.messages[0]["content"])
    assert len(await run.store.transcript(run.session)) > len(last.messages)


async def test_a_context_in_which_nothing_can_be_summarised_ends_the_turn_with_the_refusal(run: Run) -> None:
    """S-42: no message parts from its call, and a refused input is never sent again as it is."""
    result = await run(reader(), script=Reader(9), window=1)
    assert (result["stop_reason"], result["reason_code"]) == ("error", "llm.context_overflow")
    assert sum(made.fault == "refused" for made in run.requests) == 1
    assert summaries(run) == []
    (skipped,) = await run.events("compaction_event")
    assert skipped["compaction_status"] == "skipped"
    types = [line["type"] for line in await run.events()]
    assert types[-4:] == ["compaction_event", "generation_error", "agent_error", "agent_end"]


async def test_after_a_refusal_fewer_messages_are_kept_than_the_agent_asks_for(run: Run) -> None:
    """S-42: keeping them would end the session."""
    result = await run(reader(compaction=Compaction(keep=100)), script=Reader(9), window=WINDOW)
    assert result["stop_reason"] == "finished"
    assert summaries(run)


async def test_a_context_that_is_still_too_long_ends_the_turn(run: Run) -> None:
    """S-41: once for each step."""
    result = await run(reader(), always=faults.context_overflow())
    assert result["reason_code"] == "llm.context_overflow"
    assert len(run.requests) == 1


async def test_a_summary_that_is_itself_too_long_is_asked_of_half_as_much(house: House) -> None:
    """The estimate of three characters a token is wrong for some languages; the provider's refusal corrects it."""

    def model(request: ChatRequest) -> Reply:
        text = str(request.messages[-1]["content"])
        long = is_summary(request) and "page 1:" in text and "page 2:" in text
        return say("never").after(faults.context_overflow()) if long else Reader(9)(request)

    async with ScriptedProvider(model, window=WINDOW) as provider, house.worker(reader()):
        house.use(provider)
        result = await house.run()
    assert result["stop_reason"] == "finished"
    first, second = (len(str(asked.messages[1]["content"])) for asked in summaries(provider)[:2])
    assert second < first


async def test_a_summary_is_retried_like_any_model_call_and_uses_up_no_retry_of_the_generation(run: Run) -> None:
    down = faults.status(503)

    def model(request: ChatRequest) -> Reply:
        reply = Reader(9, down)(request)
        return reply.after(down) if "[Summary" in str(request.messages[0]["content"]) else reply

    agent = reader(retry=QUICK.model_copy(update={"max_retries": 1}))
    result = await run(agent, script=model, window=WINDOW)
    assert result["stop_reason"] == "finished"
    retries = await run.events("generation_retry")
    first = [(retry["compaction"], retry["attempt"], retry["code"]) for retry in retries if retry["step"] == 9]
    assert first == [(True, 1, "llm.network_error"), (False, 1, "llm.network_error")]


async def test_without_its_summary_a_turn_goes_on_as_long_as_there_is_room(run: Run) -> None:
    """A compaction ahead of need that fails is reported, and is no end."""
    agent = reader(compaction=Compaction(window=WINDOW, threshold=0.7, keep=2))
    result = await run(agent, script=Reader(7, faults.bad_key()), window=WINDOW)
    assert result["stop_reason"] == "finished"
    failed = await compactions(run, "failed")
    assert failed
    assert "key" in failed[0]["reason"]


async def test_a_cheaper_model_may_write_the_summary(run: Run) -> None:
    agent = reader(compaction=Compaction(model="openai/cheap", guidance="keep the page numbers"))
    await run(agent, script=Reader(9), window=WINDOW)
    (asked,) = summaries(run)
    assert asked.model == "cheap"
    assert asked.tools == ()
    assert "Keep in mind: keep the page numbers" in str(asked.messages[1]["content"])
    assert {made.request.model for made in run.requests} == {"scripted", "cheap"}


async def test_a_worker_that_comes_back_finds_the_summary_and_does_not_pay_again(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-80: the summary is stored under the key of its input; the first attempt is lost right after that."""
    lost = iter([True])

    def lost_once(step: StepRecord) -> Compacted:
        if next(lost, False):
            raise MemoryError
        return reported(step)

    reported = compact._to_compacted
    monkeypatch.setattr(compact, "_to_compacted", lost_once)
    async with ScriptedProvider(Reader(9), window=WINDOW) as provider, house.worker(reader()):
        house.use(provider)
        result = await house.run()
    assert result["stop_reason"] == "finished"
    assert next(lost, None) is None
    assert len(summaries(provider)) == len(await compactions(house)) == 1


async def test_a_person_asks_for_a_compaction_between_turns(house: House) -> None:
    """S-44"""
    async with ScriptedProvider(Reader(9)) as provider, house.worker(reader()):
        house.use(provider)
        await house.run()
        turn = await house.client.compact(house.session, "keep the page numbers")
        result = await turn.result()
    assert (turn.session, result.turn, result.stop_reason, result.steps) == (
        house.session,
        2,
        StopReason.FINISHED,
        0,
    )
    (done,) = await compactions(house)
    assert (done["trigger"], done["turn"]) == ("manual", 2)
    (asked,) = summaries(provider)
    assert "Keep in mind: keep the page numbers" in str(asked.messages[1]["content"])
    session = await house.store.session(house.session)
    read = await house.store.conversation(session.head or "")
    assert isinstance(read[0], UserMessage)
    assert read[0].summary_of == 9
    assert all("keep the page numbers" not in message.content for message in read[1:])


def test_the_writer_of_summaries_is_called_with_what_says_where_and_nothing_of_the_agents_model() -> None:
    params: dict[str, JsonValue] = {"api_base": "http://gateway", "reasoning_effort": "high", "tool_choice": "required"}
    own = reader(generate_params=params).definition
    cheap = reader(generate_params=params, compaction=Compaction(model="openai/cheap")).definition
    other = reader(generate_params=params, compaction=Compaction(model="anthropic/cheap")).definition
    assert [compact._writer(each).generate_params for each in (own, cheap, other)] == [
        {"api_base": "http://gateway"},
        {"api_base": "http://gateway"},
        {},
    ]


async def test_a_message_steered_into_a_compaction_waits_for_the_next_turn(house: House) -> None:
    """A turn that was to generate nothing does not."""

    def model(request: ChatRequest) -> Reply:
        return Reader(9, *[faults.hang()] * 9)(request)

    async with ScriptedProvider(model) as provider, house.worker(reader()):
        house.use(provider)
        await house.run()
        turn = await house.client.compact(house.session)
        await provider.wait_for_requests(11)
        steered = await house.client.send(house.session, "and?", when_busy="steer")
        assert await steered.number() == 3
        await turn.cancel()
        result = await turn.result()
        assert (result.stop_reason, result.steps) == (StopReason.CANCELLED, 0)
        assert (await steered.result()).output == "no more"


async def test_a_compaction_is_refused_while_a_turn_runs(house: House) -> None:
    """S-44"""
    body = Body()
    agent = reader(tools=[body.held()])
    async with ScriptedProvider(lambda _: call(("held", {}))) as provider, house.worker(agent):
        house.use(provider)
        await house.start()
        await happened(body.started)
        with pytest.raises(SessionBusyError, match="is running turn 1"):
            await house.client.compact(house.session)
        await house.client.cancel(house.session)
        body.released.set()
