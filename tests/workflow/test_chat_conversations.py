"""S-90: conversations that a front end names, over HTTP with a real worker: sessions, branches, people, tasks."""

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, cast

import openai
import pytest
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletion

from perdure import Agent, ask_user, tool
from perdure.client.views import SessionView
from perdure.contracts.turns import StopReason
from perdure.gateway.doors.chat.carrying import ChatCarrier
from perdure.testing import ChatRequest, Script, ScriptedProvider, call, say
from perdure.testing.script import Reply
from tests.gateway import gateway, token_lines
from tests.house import House, eventually
from tests.workflow.test_chat_door import LOOK, USER, sessions, text_of

pytestmark = pytest.mark.judged("OpenAI Chat Completions", "openai")

HEADERS = {"chat_conversation_header": "X-Chat", "chat_person_header": "X-Person", "chat_task_header": "X-Task"}
EFFECTS: list[int] = []


@tool
def count(number: int) -> str:
    """Count."""
    EFFECTS.append(number)
    return f"secret {number}"


@tool(requires_approval=True)
def pay(amount: int) -> str:
    """Pay an amount."""
    EFFECTS.append(amount)
    return f"paid {amount}"


@tool(requires_approval=True)
def note(text: str) -> str:
    """Note a text."""
    EFFECTS.append(len(text))
    return "noted"


HELD, LET_GO = threading.Event(), threading.Event()


@tool
def hold() -> str:
    """Hold the turn."""
    HELD.set()
    return "let go" if LET_GO.wait(60) else "not let go"


LINGERING = threading.Event()  # tools run beside the test's event loop


@tool
async def linger() -> str:
    """Linger, the first time."""
    if not LINGERING.is_set():
        LINGERING.set()
        await asyncio.Event().wait()
    return "done"


AGENT = Agent(name="tester", model="openai/scripted", tools=[count, pay, note, hold, linger, ask_user])
TITLER = Agent(name="titler", model="openai/scripted")
STOPPER = Agent(name="stopper", model="openai/scripted", tools=[pay], interactive="stop")


class FrontEnd:
    """A chat of a front end: it keeps the messages, and sends the branch that its user looks at."""

    def __init__(self, client: AsyncOpenAI, chat: str = "chat 1", person: str = "ann", agent: str = "tester") -> None:
        self.agent = agent
        self.client = client.with_options(default_headers={"X-Chat": chat, "X-Person": person})
        self.messages: list[Any] = []

    async def say(self, text: str, *, at: int | None = None, **more: Any) -> str:
        """Say something, in place of the message ``at`` and all behind it if that is given."""
        del self.messages[len(self.messages) if at is None else at :]
        self.messages.append({"role": "user", "content": text})
        return await self.answer(**more)

    async def answer(self, **more: Any) -> str:
        made = await self.client.chat.completions.create(model=self.agent, messages=self.messages, **more)
        text = text_of(made) if isinstance(made, ChatCompletion) else await joined(made)
        self.messages.append({"role": "assistant", "content": text})
        return str(text)

    async def regenerate(self) -> str:
        self.messages.pop()
        return await self.answer()


async def joined(stream: Any) -> str:
    return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])


@asynccontextmanager
async def opened(
    house: House, *replies: Reply | Callable[[ChatRequest], Reply], **settings: Any
) -> AsyncIterator[AsyncOpenAI]:
    EFFECTS.clear()
    (first, *_) = replies
    script: Any = first if callable(first) else Script(replies=cast("tuple[Reply, ...]", replies))
    async with (
        ScriptedProvider(script) as provider,
        house.worker(AGENT, TITLER, STOPPER),
        gateway(house, doors=("chat",), **{**HEADERS, **settings}) as door,
        AsyncOpenAI(base_url=f"{door.url}/openai/v1", api_key="any", max_retries=0, timeout=60) as client,
    ):
        house.use(provider)
        yield client


def answer_to(request: ChatRequest, calls: list[Reply]) -> Reply:
    """The first call, to a message that says pay, and else an answer with the message."""
    said = str(request.messages[-1]["content"])
    return calls[0] if said == "pay" else say(f"{said} to you")


async def transcript(house: House, session: str) -> list[str]:
    return [f"{one.role}: {one.content}" for one in await house.client.transcript(session) if one.content]


async def test_a_conversation_is_one_session_with_all_that_its_tools_have_done(house: House) -> None:
    """S-90: the model reads what tools gave it before, and an edit or another answer goes on from where it says."""
    async with opened(house, call(("count", {"number": 1})), say("one"), say("two"), say("three")) as client:
        chat = FrontEnd(client)
        assert [await chat.say("count"), await chat.say("again"), await chat.say("more")] == ["one", "two", "three"]
        (session,) = await sessions(house)
        assert session.startswith("chat-chat-1-")
        line = ["user: count", "tool: secret 1", "assistant: one", "user: again", "assistant: two", "user: more"]
        assert await transcript(house, session) == [*line, "assistant: three"]
        assert await chat.regenerate() == "three"
        assert await transcript(house, session) == [*line, "assistant: three"]
        assert await chat.say("otherwise", at=2) == "two"
        assert await transcript(house, session) == [*line[:3], "user: otherwise", "assistant: two"]
        assert await chat.say("and?") == "three"
        assert await transcript(house, session) == [
            *(*line[:3], "user: otherwise", "assistant: two"),
            *("user: and?", "assistant: three"),
        ]
        assert EFFECTS == [1]
        assert await chat.say("count anew", at=0) == "one"
        assert EFFECTS == [1, 1]
        assert [view.turn for view in await house.client.turn_views(session)] == [1, 2, 3, 4, 5, 6, 7]
    assert await sessions(house) == [session]


async def test_an_edited_answer_and_a_window_are_taken_as_they_are_shown(house: House) -> None:
    """S-90: words that no turn has said begin anew, as the history; the end of what was said goes on."""
    async with opened(house, say("one"), say("two"), say("three"), say("four")) as client:
        chat = FrontEnd(client)
        for words in ("a", "b", "c"):
            await chat.say(words)
        (session,) = await sessions(house)
        del chat.messages[:2]
        assert await chat.say("d") == "four"
        whole = await transcript(house, session)
        assert whole[:2] == ["user: a", "assistant: one"]
        chat.messages[1] = {"role": "assistant", "content": "TWO"}
        assert await chat.say("c", at=2) == "two"
        assert await transcript(house, session) == ["user: b", "assistant: TWO", "user: c", "assistant: two"]
        assert await chat.say("e") == "three"
        assert (await transcript(house, session))[0] == "user: b"
    assert await sessions(house) == [session]


async def test_people_and_tenants_have_conversations_of_their_own(house: House) -> None:
    """S-90, T-01: the same id of another person, or in another tenant, is another session; the log says who asked."""
    lines, tokens = token_lines(web=("acme", "run,read"), eve=("evil", "admin"))
    async with opened(house, say("Hi!"), say("you"), gateway_tokens=lines) as client:
        web, eve = (client.with_options(api_key=tokens[name]) for name in ("web", "eve"))
        for owner, person in ((web, "ann"), (web, "bob"), (eve, "ann")):
            chat = FrontEnd(owner, person=person)
            assert [await chat.say("hello"), await chat.say("and?")] == ["Hi!", "you"]
        found = await sessions(house)
        starts = [(await house.store.events(session, after=0, limit=1))[0].line() for session in found]
    assert len(found) == 3
    assert sorted(f"{start['tenant']} {start['by']}" for start in starts) == [
        "acme web:ann",
        "acme web:bob",
        "evil eve:ann",
    ]


async def test_what_is_asked_beside_a_chat_begins_no_job_in_it(house: House) -> None:
    """S-90: a title goes to the agent that is for it, or is refused by name."""
    async with opened(house, say("Hi!")) as client:
        chat = FrontEnd(client)
        await chat.say("hello")
        with pytest.raises(openai.BadRequestError, match="X-Task: this gateway answers no 'title'"):
            await chat.say("Name this.", extra_headers={"X-Task": "title"})
        assert len(await sessions(house)) == 1
    async with opened(house, say("A greeting"), chat_task_agent="titler") as client:
        chat = FrontEnd(client)
        for more in ({"extra_headers": {"X-Task": "title"}}, {"extra_body": {"model": "titler"}}):
            assert await chat.say("Name this.", at=0, **more) == "A greeting"
    names = sorted(name.partition("-")[0] for name in await sessions(house))
    assert names == ["chat", "titler", "titler"]


async def test_words_decide_where_the_operator_lets_them(house: House) -> None:
    """S-90: yes approves what the chat has been asked, once, and no denies; nothing else does."""
    replies = call(("pay", {"amount": 7})), say("paid"), call(("pay", {"amount": 8})), say("not paid"), say("fine")
    async with opened(house, *replies, chat_decisions="words") as client:
        chat = FrontEnd(client)
        asked = await chat.say("pay 7")
        assert asked.splitlines()[0] == 'pay waits for an approval: {"amount": 7}'
        assert asked.splitlines()[1].startswith("Answer yes or no, or decide at http://")
        assert await chat.say("hm, what for?") == asked
        assert await chat.say("Yes") == "paid"
        chat.messages.pop()
        assert await chat.answer() == "paid"  # the same request again
        assert EFFECTS == [7]
        assert "pay waits" in await chat.say("pay 8")
        assert await chat.say("no, too much") == "not paid"
        assert await chat.say("thanks") == "fine"
        assert EFFECTS == [7]
        (session,) = await sessions(house)
        assert [view.turn for view in await house.client.turn_views(session)] == [1, 2, 3]
        lines = [envelope.line() for envelope in await house.store.events(session, after=0, limit=500)]
        assert [line["by"] for line in lines if line["type"] == "user_input_received"] == ["local:ann", "local:ann"]


async def test_what_others_say_in_the_session_stays_in_the_conversation(house: House) -> None:
    """S-90: a message of an operator belongs to the turn before it, whichever token the front end has."""
    lines, tokens = token_lines(old=("acme", "admin"), new=("acme", "admin"))
    async with opened(house, *map(say, ("one", "two", "three", "four")), gateway_tokens=lines) as client:
        chat = FrontEnd(client.with_options(api_key=tokens["old"]))
        assert await chat.say("a") == "one"
        (session,) = await sessions(house)
        turn = await house.client.send(session, "mind the gap", by="olga")
        assert (await turn.result()).output == "two"
        chat.client = chat.client.with_options(api_key=tokens["new"])
        assert await chat.say("b") == "three"
        line = ["user: a", "assistant: one", "user: mind the gap", "assistant: two"]
        assert await transcript(house, session) == [*line, "user: b", "assistant: three"]
        assert await chat.regenerate() == "three"
        assert await transcript(house, session) == [*line, "user: b", "assistant: three"]
        assert await chat.say("c") == "four"
    assert await sessions(house) == [session]


async def test_words_decide_about_what_is_shown_whole(house: House) -> None:
    """S-90: one word decides about all calls of a message; about none if a part of the arguments is not shown."""
    long = "x" * 1_000
    replies = (
        call(("pay", {"amount": 7}), ("pay", {"amount": 8})),
        say("paid"),
        call(("note", {"text": long})),
        say("no"),
    )
    async with opened(house, *replies, chat_decisions="words") as client:
        chat = FrontEnd(client)
        asked = await chat.say("pay 7 and 8")
        assert asked.count("waits for an approval") == 2
        before = [*chat.messages]
        chat.messages[-1] = {"role": "assistant", "content": asked.partition("\n\n")[2]}
        assert await chat.say("yes") == asked  # one of them is not shown
        chat.messages = before
        assert await chat.say("yes") == "paid"
        assert sorted(EFFECTS) == [7, 8]
        asked = await chat.say("note it")
        assert "Answer" not in asked
        assert await chat.say("yes") == asked
    assert sorted(EFFECTS) == [7, 8]


async def test_a_token_that_may_not_approve_decides_nothing(house: House) -> None:
    """S-90: its chats are not told that words decide, and are told again what is waited for."""
    lines, tokens = token_lines(web=("acme", "run,read"))
    more: dict[str, Any] = {"chat_decisions": "words", "gateway_tokens": lines}
    async with opened(house, call(("pay", {"amount": 7})), **more) as client:
        chat = FrontEnd(client.with_options(api_key=tokens["web"]))
        asked = await chat.say("pay 7")
        assert "Answer" not in asked
        assert await chat.say("yes") == asked
    assert EFFECTS == []


async def test_an_edit_withdraws_what_its_message_waits_for(house: House) -> None:
    """S-90: the edited message is done, and nobody can approve the call of the one before any more."""
    replies = [call(("pay", {"amount": 7}))]
    async with opened(house, lambda request: answer_to(request, replies)) as client:
        chat = FrontEnd(client)
        assert "pay waits" in await chat.say("pay")
        (session,) = await sessions(house)
        assert await chat.say("hello", at=0) == "hello to you"
        assert (await house.client.session_view(session)).requests == ()
        assert await transcript(house, session) == ["user: hello", "assistant: hello to you"]
    assert EFFECTS == []


async def test_a_message_behind_a_turn_that_comes_to_wait_is_told_so(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-90: somebody who has pressed "Stop" learns what the job waits for, and it goes on with the message."""
    monkeypatch.setattr("perdure.gateway.hub.PING_EVERY", timedelta(milliseconds=50))
    async with opened(house, call(("hold", {})), call(("pay", {"amount": 7})), say("paid"), say("hurried")) as client:
        chat = FrontEnd(client)
        for event in (HELD, LET_GO):
            event.clear()
        going = asyncio.create_task(chat.say("go"))
        assert await asyncio.to_thread(HELD.wait, 60)
        going.cancel()
        await asyncio.gather(going, return_exceptions=True)
        said: Any = [{"role": "user", "content": "go"}, {"role": "user", "content": "hurry up"}]
        stream = await chat.client.chat.completions.create(model="tester", messages=said, stream=True)
        begun = await anext(stream)  # the message is sent
        assert begun.choices[0].delta.role == "assistant"
        LET_GO.set()
        assert "pay waits for an approval" in await joined(stream)
        (session,) = await sessions(house)
        (request,) = (await house.client.session_view(session)).requests
        await house.client.approve(session, request.request_id, by="ann")

        async def has_ended() -> bool:
            view = await house.client.session_view(session)
            return view.open_turn is None and view.opened is not None and view.opened[1].turn == 2

        await eventually(has_ended)


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        ({"X-Chat": "{{CHAT_ID}}", "X-Person": "ann"}, "X-Chat: '{{CHAT_ID}}' is no value but a placeholder"),
        ({"X-Chat": "c1"}, "X-Person: is missing"),
        ({"X-Chat": "c1", "X-Person": "undefined"}, "X-Person: is missing"),
        ({"X-Chat": "c" * 501, "X-Person": "ann"}, "X-Chat: has 501 characters"),
    ],
)
async def test_headers_that_say_nothing_are_refused(house: House, headers: dict[str, str], why: str) -> None:
    """S-90: no two people are one for want of a header."""
    async with opened(house, say("Hi!")) as client:
        with pytest.raises(openai.BadRequestError, match=re.escape(why)):
            await client.chat.completions.create(model="tester", messages=[USER], extra_headers=headers)
    assert await sessions(house) == []


async def test_agents_have_conversations_of_their_own(house: House) -> None:
    """S-90: a front end asks several at once, and shows each its own answers."""
    async with opened(house, say("Hi!"), say("you")) as client:
        chats = [FrontEnd(client), FrontEnd(client)]
        for words, said in (("hello", "Hi!"), ("and?", "you")):
            told = await asyncio.gather(
                *(
                    chat.say(words, extra_body={"model": agent})
                    for chat, agent in zip(chats, ("tester", "titler"), strict=True)
                )
            )
            assert told == [said, said]
    assert len(await sessions(house)) == 2


async def test_words_are_no_decision_by_default(house: House) -> None:
    """S-90: a yes is told again what is waited for; who has decided at the page goes on with the chat."""
    async with opened(house, call(("pay", {"amount": 7})), say("paid"), say("fine")) as client:
        chat = FrontEnd(client)
        asked = await chat.say("pay 7")
        assert await chat.say("yes") == asked
        (session,) = await sessions(house)
        (request,) = (await house.client.session_view(session)).requests
        await house.client.approve(session, request.request_id, by="ann")

        async def has_ended() -> bool:
            return (await house.client.session_view(session)).open_turn is None

        await eventually(has_ended)
        assert await chat.say("thanks") == "fine"
    assert EFFECTS == [7]
    assert await sessions(house) == [session]


async def test_calls_of_a_front_end_and_those_it_has_lost(house: House) -> None:
    """S-90: results go to the turn that asked; a chat that does not show a call goes on without it."""
    replies = call(("look", {"id": 7})), say("Ann"), say("on"), call(("look", {"id": 8})), say("without")
    async with opened(house, *replies) as client:
        chat = FrontEnd(client)
        chat.messages = [{"role": "user", "content": "who?"}]
        made = await chat.client.chat.completions.create(model="tester", messages=chat.messages, tools=[LOOK])
        (found,) = made.choices[0].message.tool_calls or []
        chat.messages += [made.choices[0].message, {"role": "tool", "tool_call_id": found.id, "content": "Ann"}]
        assert await chat.answer(tools=[LOOK]) == "Ann"
        assert await chat.say("on", tools=[LOOK]) == "on"
        assert await chat.regenerate() == "on"
        made = await chat.client.chat.completions.create(
            model="tester", messages=[*chat.messages, {"role": "user", "content": "and 8?"}], tools=[LOOK]
        )
        assert made.choices[0].finish_reason == "tool_calls"
        chat.messages.append({"role": "user", "content": "and 8?"})
        assert await chat.say("never mind") == "without"
        (session,) = await sessions(house)
        copy = FrontEnd(client, "a copy")
        copy.messages = [*chat.messages]
        assert await copy.say("go on") == "without"
        assert len(await sessions(house)) == 2
        assert [view.turn for view in await house.client.turn_views(session)][-1] == 6


async def test_a_message_beside_calls_waits_for_the_turn_that_stops_for_them(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-90: a front end has the calls a moment before the turn has ended, and may go on without them at once."""
    async with opened(house, call(("look", {"id": 7})), say("without")) as client:
        held, wait = house.hold("commit_turn"), ChatCarrier._wait_for_end

        async def let_go(carrier: ChatCarrier, view: SessionView) -> SessionView:
            held.go_on.set()
            return await wait(carrier, view)

        monkeypatch.setattr(ChatCarrier, "_wait_for_end", let_go)
        chat = FrontEnd(client)
        chat.messages = [{"role": "user", "content": "who?"}]
        made = await chat.client.chat.completions.create(model="tester", messages=chat.messages, tools=[LOOK])
        assert made.choices[0].finish_reason == "tool_calls"
        assert await chat.say("never mind") == "without"
    assert len(await sessions(house)) == 1


@pytest.mark.parametrize("streams", [True, False])
async def test_a_closed_connection_cancels_where_the_operator_says_so(house: House, streams: bool) -> None:
    """S-90: a button "Stop" ends the turn; another answer begins in its place."""
    async with opened(house, call(("linger", {})), say("after"), chat_closed="cancel") as client:
        chat = FrontEnd(client)
        LINGERING.clear()
        going = asyncio.create_task(chat.say("go", stream=streams))
        assert await asyncio.to_thread(LINGERING.wait, 60)
        going.cancel()
        await asyncio.gather(going, return_exceptions=True)
        chat.messages = [{"role": "user", "content": "go"}]
        assert await chat.answer() == "after"
        (session,) = await sessions(house)
        first, second = await house.client.turn_views(session)
        assert first.result is not None
        assert second.result is not None
        assert (first.result.stop_reason, second.result.stop_reason) == (StopReason.CANCELLED, StopReason.FINISHED)


async def test_a_retry_of_another_answer_is_the_same_job(house: House) -> None:
    """S-90, S-22: a key says which requests are one, whatever has become of the session since."""
    async with opened(house, say("one"), say("two")) as client:
        chat = FrontEnd(client)
        await chat.say("a")
        await chat.say("b")
        for key in ("first", "first", "second"):
            chat.messages = chat.messages[:3]
            assert await chat.answer(extra_headers={"Idempotency-Key": key}) == "two"
        (session,) = await sessions(house)
        views = await house.client.turn_views(session)
        assert [view.turn for view in views] == [1, 2, 3, 4]
        assert {view.result.stop_reason for view in views if view.result} == {StopReason.FINISHED}


async def test_two_tabs_say_something_at_once(house: House) -> None:
    """S-90: one of them is answered, and the other waits, or is told that the conversation answers another message."""
    async with opened(house, say("one"), say("two")) as client:
        chat = FrontEnd(client)
        await chat.say("a")
        tabs = [FrontEnd(client), FrontEnd(client)]
        for tab in tabs:
            tab.messages = [*chat.messages]
        told = await asyncio.gather(*(tab.say(f"tab {at}") for at, tab in enumerate(tabs)), return_exceptions=True)
        assert all(one == "two" or isinstance(one, openai.ConflictError) for one in told)
        assert "two" in told
    assert len(await sessions(house)) == 1
