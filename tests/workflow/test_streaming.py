"""Answers are shown while they are written, to those who ask for it; what is stored is the same as ever (S-15)."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from perdure import Agent, Tool, tool
from perdure.contracts.deltas import Delta, LiveAnswer
from perdure.contracts.events import Envelope, GenerationContent
from perdure.contracts.retries import RetryPolicy
from perdure.store import live
from perdure.testing import Fault, Reply, Script, ScriptedProvider, call, faults, say
from tests.house import WAIT_SECONDS, House, eventually

pytestmark = pytest.mark.deep

TEXT = "The quick brown fox jumps over the lazy dog, twice if it must."
KEY = "sk-planted-0123456789abcdef"
AT_ONCE = RetryPolicy(max_retries=2, base=timedelta(milliseconds=10), jitter=timedelta(0))


@tool
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


def agent(*tools: Tool[..., Any], model: str = "openai/scripted", **settings: Any) -> Agent:
    return Agent(name="tester", model=model, tools=tools, **{"retry": AT_ONCE, **settings})


class Follower:
    """Somebody who follows with deltas, and shows what comes by the rules of the contract.

    Attributes:
        shown: Everything that stood on the screen at some time, in order.
        stored: The answers that the log gave in the end.
    """

    def __init__(self) -> None:
        self.answer = LiveAnswer()
        self.shown: list[str] = []
        self.stored: list[str] = []
        self.deltas: list[Delta] = []
        self.ended = False
        self.follows = asyncio.Event()

    async def follow(self, house: House) -> None:
        async for item in house.client.events(house.session, 0, deltas=True):
            self.follows.set()
            if isinstance(item, Delta):
                self.deltas.append(item)
                self.answer.add(item)
                self.shown.append(self.answer.text)
            else:
                self._take(item)

    def _take(self, envelope: Envelope) -> None:
        event = envelope.event
        if isinstance(event, GenerationContent):
            self.answer.clear()
            self.stored.append(event.content)
        self.ended = self.ended or event.type == "agent_end"

    async def has(self, text: str) -> None:
        """Wait until this stands on the screen."""

        async def there() -> bool:
            return text in self.shown

        await eventually(there)


@asynccontextmanager
async def followers(house: House, count: int = 1) -> AsyncIterator[list[Follower]]:
    """Followers of the session, which are there when the turn begins; left when they have seen its end."""
    await house.store.watch(house.session)
    following = [Follower() for _ in range(count)]
    tasks: list[asyncio.Task[None]] = []
    try:
        yield following
        tasks += [asyncio.create_task(follower.follow(house)) for follower in following]
        async with asyncio.timeout(WAIT_SECONDS):
            await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def streams_of(provider: ScriptedProvider) -> list[bool]:
    return [request.request.stream for request in provider.requests]


@pytest.mark.parametrize("model", ["openai/scripted", "anthropic/scripted"])
async def test_three_followers_see_the_text_as_it_comes_and_end_with_the_stored_answer(
    house: House, model: str
) -> None:
    """S-15: what is shown is a beginning of the answer, always."""
    async with ScriptedProvider(Script(replies=(say(TEXT),))) as provider, house.worker(agent(model=model)):
        house.use(provider)
        provider.hold_streams(after=5)
        await house.store.watch(house.session)
        handle = await house.start()
        await provider.wait_for_held_streams()
        following = [Follower() for _ in range(3)]
        tasks = [asyncio.create_task(follower.follow(house)) for follower in following]
        for follower in following:
            await follower.has("The quick brown fox jumps ")
        await provider.release_streams()
        result = await handle.result()
        await asyncio.gather(*tasks)
        assert await streams_of(provider) == [True]
    assert result["output"] == TEXT
    for follower in following:
        assert all(TEXT.startswith(text) for text in follower.shown)
        assert (follower.stored, follower.answer.text, follower.ended) == ([TEXT], "", True)


async def test_who_comes_while_a_later_turn_is_answered_gets_what_was_before_first(house: House) -> None:
    """A piece that came before the stored answers of earlier turns would be wiped out by them."""
    script = Script(replies=(say("Before."), say(TEXT)))
    async with ScriptedProvider(script) as provider, house.worker(agent()):
        house.use(provider)
        await house.run()
        provider.hold_streams(after=5)
        await house.store.watch(house.session)
        handle = await house.start(prompt="again")
        await provider.wait_for_held_streams()
        follower = Follower()
        following = asyncio.create_task(follower.follow(house))
        await follower.has("The quick brown fox jumps ")
        assert (follower.stored, follower.answer.text) == (["Before."], "The quick brown fox jumps ")
        await provider.release_streams()
        await handle.result()
        await following
    assert follower.stored == ["Before.", TEXT]


async def test_a_worker_killed_in_mid_stream_leaves_no_mixed_text(house: House) -> None:
    """S-15, S-17: three followers; the second attempt begins anew on every screen, and each ends with its answer."""

    def answers(_: Any) -> Reply:
        return say(first if provider.request_count == 0 else second)

    first, second = "aaaa bbbb cccc dddd eeee", "1111 2222 3333 4444 5555"
    async with ScriptedProvider(answers) as provider:
        house.use(provider)
        killed = house.spawn_worker("tests.workflow.agents_that_stream")
        await killed.polling()
        provider.hold_streams(after=3)
        await house.store.watch(house.session)
        handle = await house.start()
        await provider.wait_for_held_streams()
        following = [Follower() for _ in range(3)]
        tasks = [asyncio.create_task(follower.follow(house)) for follower in following]
        for follower in following:
            await follower.has("aaaa bbbb cccc ")
        killed.kill()
        await provider.release_streams()
        other = house.spawn_worker("tests.workflow.agents_that_stream")
        await other.polling()
        async with asyncio.timeout(WAIT_SECONDS):
            result = await handle.result()
            await asyncio.gather(*tasks)
        assert await streams_of(provider) == [True, True]
    assert (result["stop_reason"], result["output"]) == ("finished", second)
    for follower in following:
        assert follower.stored == [second]
        assert all(first.startswith(text) or second.startswith(text) for text in follower.shown)
        assert {delta.attempt for delta in follower.deltas} <= {1, 2}
    assert await eventually(lambda: _is_empty(house))


async def _is_empty(house: House) -> bool:
    return await house.store.live.since(house.session) == ()


async def test_an_unwatched_job_sends_what_it_sends_with_streams_off(house: House) -> None:
    """Only who watches pays for a stream: requests are the same, byte for byte."""
    bodies: list[Any] = []
    script = Script(replies=(call(("pay", {"amount": 1})), say(TEXT)))
    for mode in ("off", "watched"):
        async with ScriptedProvider(script) as provider, house.worker(agent(pay, stream=mode)):
            house.use(provider)
            house.session = f"{house.session}-{mode}"
            await house.run()
            bodies.append([json.dumps(request.body) for request in provider.requests])
            assert await streams_of(provider) == [False, False]
    unwatched, off = ([re.sub("call_[0-9a-f]{16}", "call", body) for body in sent] for sent in bodies)
    assert unwatched == off


async def test_always_streams_without_a_follower_and_off_never(house: House) -> None:
    for mode, streamed in (("always", True), ("off", False)):
        async with ScriptedProvider(Script(replies=(say(TEXT),))) as provider, house.worker(agent(stream=mode)):
            house.use(provider)
            house.session = f"{house.session}-{mode}"
            await house.store.watch(house.session)
            assert (await house.run())["output"] == TEXT
            assert await streams_of(provider) == [streamed]


async def test_nothing_of_a_stream_stands_in_the_history_or_in_the_log(house: House) -> None:
    """Deltas are beside the log: no event of it, of the history, and no row that stays."""
    counts: list[tuple[int, int]] = []
    for mode in ("off", "always"):
        async with ScriptedProvider(Script(replies=(say(TEXT),))) as provider, house.worker(agent(stream=mode)):
            house.use(provider)
            house.session = f"{house.session}-{mode}"
            handle = await house.start()
            await handle.result()
            history = await handle.fetch_history()
            counts.append((len(history.events), len(await house.events())))
            assert await house.store.live.since(house.session) == ()
    assert counts[0] == counts[1]


FAULTS: dict[str, Fault] = {
    "cut before the first delta": faults.stream_cut(0),
    "cut in the middle": faults.stream_cut(4),
    "without finish reason": faults.stream_without_end(),
    "stalled": faults.stream_stall(3),
}


@pytest.mark.parametrize("model", ["openai/scripted", "anthropic/scripted"])
@pytest.mark.parametrize("name", FAULTS)
async def test_a_broken_stream_is_sent_again_and_never_a_short_answer(house: House, name: str, model: str) -> None:
    """S-15: by default the call is sent again, and the failure stands in the log under its own code."""
    script = Script(replies=(say(TEXT).after(FAULTS[name]),))
    using = agent(model=model, stream_idle_timeout=0.5)
    async with ScriptedProvider(script) as provider, house.worker(using):
        house.use(provider)
        async with followers(house) as (follower,):
            result = await house.run()
    assert (result["stop_reason"], result["output"], follower.stored) == ("finished", TEXT, [TEXT])
    assert [line["code"] for line in await house.events("generation_retry")] == ["llm.stream_cut"]


NO_EVENT = faults.status(200, headers={"content-type": "text/event-stream"}, body="\n\n")


@pytest.mark.parametrize("cuts", [(faults.stream_cut(1), faults.stream_cut(2)), (NO_EVENT, NO_EVENT)])
async def test_after_two_cut_streams_the_answer_is_asked_for_whole(house: House, cuts: tuple[Fault, Fault]) -> None:
    """Nobody's watching may end a job: a provider that cannot stream answers all the same."""
    script = Script(replies=(say(TEXT).after(*cuts),))
    async with ScriptedProvider(script) as provider, house.worker(agent(stream="always")):
        house.use(provider)
        result = await house.run()
        assert await streams_of(provider) == [True, True, False]
    assert result["output"] == TEXT


@pytest.mark.parametrize(("after", "ends"), [(0, "finished"), (3, "error")])
async def test_in_the_strict_form_only_what_was_not_shown_is_sent_again(house: House, after: int, ends: str) -> None:
    """S-15: before the first piece without anybody noticing; after it the error is delivered, and not retried."""
    strict = RetryPolicy.dawn().model_copy(update={"base": timedelta(milliseconds=10), "jitter": timedelta(0)})
    assert strict.stream_retry == "never_after_first_delta"
    script = Script(replies=(say(TEXT).after(faults.stream_cut(after)),))
    async with ScriptedProvider(script) as provider, house.worker(agent(stream="always", retry=strict)):
        house.use(provider)
        result = await house.run()
    assert result["stop_reason"] == ends
    if ends == "error":
        assert result["reason_code"] == "llm.stream_cut"
        assert "stream_retry='never_after_first_delta'" in result["error"]
        assert await house.events("generation_retry") == []


async def test_a_key_that_two_pieces_share_is_never_shown(house: House) -> None:
    """S-52: split at every position, it shows on no screen, in no event and in no row."""
    house.environment.setenv("PLANTED_API_KEY", KEY)
    parts = [(KEY[:at], KEY[at:]) for at in range(1, len(KEY))]
    pieces = [piece for first, second in parts for piece in (f"key {first}", f"{second} end. ")]
    reply = say("".join(pieces), pieces=pieces)
    keyed = agent(stream="always", generate_params={"api_key": "${PLANTED_API_KEY}"})
    async with ScriptedProvider(Script(replies=(reply,))) as provider, house.worker(keyed):
        house.use(provider)
        provider.hold_streams(after=len(pieces))
        async with followers(house) as (follower,):
            result = await house.run()
    seen = [*follower.shown, *follower.stored, *(delta.text for delta in follower.deltas), result["output"]]
    assert follower.stored[0].count("***") == len(parts)
    assert not any(KEY in text or KEY[:12] in text for text in seen)


async def test_arguments_are_shown_by_their_size_only(house: House) -> None:
    """Tool calls that are being written show their tool and size."""
    secret = 987_654_321
    script = Script(replies=(call(("pay", {"amount": secret}), text="paying"), say("done")))
    async with ScriptedProvider(script) as provider, house.worker(agent(pay, stream="always")):
        house.use(provider)
        provider.hold_streams(after=3)
        handle = await house.start()
        await provider.wait_for_held_streams()
        follower = Follower()
        following = asyncio.create_task(follower.follow(house))
        await follower.has("paying")
        await provider.release_streams()
        await handle.result()
        await following
    calls = [delta for delta in follower.deltas if delta.kind == "tool_call"]
    assert {delta.tool for delta in calls} == {"pay"}
    assert calls[-1].characters > 0
    assert not any(str(secret) in delta.text for delta in follower.deltas)


@pytest.mark.parametrize("thinks", [False, True])
async def test_reasoning_is_shown_only_if_the_agent_says_so(house: House, thinks: bool) -> None:
    reply = Reply(text="done", message={"reasoning_content": "let me see"})
    async with (
        ScriptedProvider(Script(replies=(reply,))) as provider,
        house.worker(agent(stream="always", stream_thinking=thinks)),
    ):
        house.use(provider)
        provider.hold_streams(after=3)
        handle = await house.start()
        await provider.wait_for_held_streams()
        follower = Follower()
        following = asyncio.create_task(follower.follow(house))
        if thinks:
            await eventually(lambda: _is_true(follower.answer.thinking == "let me see"))
        await provider.release_streams()
        await handle.result()
        await following
    assert any(delta.kind == "thinking" for delta in follower.deltas) is thinks


async def _is_true(value: bool) -> bool:
    return value


async def test_a_cancel_stops_a_stream(house: House) -> None:
    """S-57: the connection is closed, and the turn ends."""
    async with ScriptedProvider(Script(replies=(say(TEXT),))) as provider, house.worker(agent(stream="always")):
        house.use(provider)
        provider.hold_streams(after=2)
        handle = await house.start()
        await provider.wait_for_held_streams()
        await handle.signal("cancel", {})
        result = await handle.result()
        await provider.wait_for_disconnect()
    assert result["stop_reason"] == "cancelled"


async def test_a_lease_ends_when_nobody_renews_it(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has gone is not streamed to any more."""
    monkeypatch.setattr(live, "LEASE", timedelta(seconds=-1))
    async with ScriptedProvider(Script(replies=(say(TEXT),))) as provider, house.worker(agent()):
        house.use(provider)
        await house.store.watch(house.session)
        await house.run()
        assert await streams_of(provider) == [False]
