"""S-91: a front end asks to go on with an answer, without a message: it gets what is behind the words that it shows."""

import asyncio
from typing import Any

import openai
import pytest

from perdure.client import Client
from perdure.testing import call, say
from tests.house import House
from tests.workflow.test_chat_conversations import EFFECTS, HELD, LET_GO, FrontEnd, joined, opened, transcript
from tests.workflow.test_chat_door import sessions, text_of

pytestmark = pytest.mark.judged("OpenAI Chat Completions", "openai")


class Continuing(FrontEnd):
    """A chat with a button that asks for the rest of the last answer, and adds it to that."""

    async def go_on(self, *, streams: bool = False) -> str:
        made: Any = await self.client.chat.completions.create(model=self.agent, messages=self.messages, stream=streams)
        text = await joined(made) if streams else str(text_of(made))
        shown = self.messages[-1]["content"]
        self.messages[-1] = {"role": "assistant", "content": f"{shown}{text}".strip()}
        return text

    def show(self, text: str) -> None:
        """Have the last answer be shown so."""
        self.messages[-1] = {"role": "assistant", "content": text}


async def approve(client: Client, session: str) -> None:
    (request,) = (await client.session_view(session)).requests
    await client.approve(session, request.request_id, digest=request.digest, by="ann")


@pytest.mark.parametrize("streams", [False, True])
async def test_what_comes_behind_a_decision_is_fetched(house: House, streams: bool) -> None:
    """S-91: the chat shows it, and goes on from there."""
    async with opened(house, call(("pay", {"amount": 7})), say("paid"), say("fine")) as client:
        chat = Continuing(client)
        asked = await chat.say("pay 7")
        (session,) = await sessions(house)
        await approve(house.client, session)
        assert await chat.go_on(streams=streams) == "\n\npaid"
        assert chat.messages[-1]["content"] == f"{asked}\n\npaid"
        assert await chat.say("thanks") == "fine"
        assert "tool: paid 7" in await transcript(house, session)
    assert EFFECTS == [7]


async def test_before_a_decision_it_waits_for_that(house: House) -> None:
    """S-91."""
    async with opened(house, call(("pay", {"amount": 7})), say("paid")) as client:
        chat = Continuing(client)
        await chat.say("pay 7")
        (session,) = await sessions(house)
        stream = await chat.client.chat.completions.create(model="tester", messages=chat.messages, stream=True)
        await anext(stream)
        await approve(house.client, session)
        assert await joined(stream) == "\n\npaid"
    assert EFFECTS == [7]


@pytest.mark.parametrize("streams", [False, True])
async def test_the_rest_of_an_answer_that_was_cut_is_fetched(house: House, streams: bool) -> None:
    """S-91: a lost answer is no new job; whitespace at the cut is the front end's."""
    replies = call(("count", {"number": 1}), text="One moment."), say("The Rhine is long."), say("The Elbe.")
    async with opened(house, *replies) as client:
        chat = Continuing(client)
        whole = await chat.say("count")
        assert whole == "One moment.\n\nThe Rhine is long."
        for shown, rest in [
            ("One mom", "ent.\n\nThe Rhine is long."),
            ("One moment.\n\n", "\n\nThe Rhine is long."),
            ("One moment.\n\nThe ", " Rhine is long."),
        ]:
            chat.show(shown)
            assert await chat.go_on(streams=streams) == rest
        chat.show(whole)
        with pytest.raises(openai.BadRequestError, match="no message of the user behind all others"):
            await chat.go_on(streams=streams)
        chat.show("The Rhine is short.")
        with pytest.raises(openai.BadRequestError, match="no message of the user behind all others"):
            await chat.go_on(streams=streams)
        chat.show("One moment.\n\nThe")
        assert await chat.say("more") == "The Elbe."
        (session,) = await sessions(house)
        assert [view.turn for view in await house.client.turn_views(session)] == [1, 2]
    assert EFFECTS == [1]


async def test_an_answer_that_is_being_made_goes_on(house: House) -> None:
    """S-91: the turn whose connection was lost runs, and is no other one."""
    HELD.clear()
    LET_GO.clear()
    async with opened(house, call(("hold", {}), text="I hold."), say("It is let go.")) as client:
        chat = Continuing(client)
        stream = await chat.client.chat.completions.create(
            model="tester", messages=[{"role": "user", "content": "hold"}], stream=True
        )
        assert await asyncio.to_thread(HELD.wait, 60)
        await stream.close()
        chat.messages = [{"role": "user", "content": "hold"}, {"role": "assistant", "content": "I hold."}]
        rest = asyncio.create_task(chat.go_on(streams=True))
        LET_GO.set()
        assert await rest == "\n\nIt is let go."
        (session,) = await sessions(house)
        assert [view.turn for view in await house.client.turn_views(session)] == [1]


async def test_what_a_turn_that_stopped_waits_for_is_told_again_until_somebody_decides(house: House) -> None:
    """S-91: the decision begins the next turn, whose answer is the rest."""
    async with opened(house, call(("pay", {"amount": 7})), say("paid"), say("fine")) as client:
        chat = Continuing(client, agent="stopper")
        asked = await chat.say("pay 7")
        (session,) = await sessions(house)
        assert await chat.go_on() == asked
        chat.show(asked)
        (request,) = (await house.client.session_view(session)).requests
        turn = await house.client.approve(session, request.request_id, digest=request.digest, by="ann")
        assert turn is not None
        assert await chat.go_on() == "\n\npaid"
        assert await chat.say("thanks") == "fine"
        assert "tool: paid 7" in await transcript(house, session)
    assert EFFECTS == [7]


async def test_who_goes_on_with_what_was_cancelled_is_told_so(house: House) -> None:
    """S-91."""
    async with opened(house, call(("pay", {"amount": 7}))) as client:
        chat = Continuing(client)
        await chat.say("pay 7")
        (session,) = await sessions(house)
        await house.client.cancel(session, "enough")
        await (await house.client.attach(session, 1)).result()
        with pytest.raises(openai.BadRequestError, match="cancelled"):
            await chat.go_on()
    assert EFFECTS == []
