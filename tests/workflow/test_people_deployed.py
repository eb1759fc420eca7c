"""Approvals around a new deployment: what was decided is shown at once, also while no worker can carry it out."""

from typing import Annotated

import pytest

from perdure import ask_user, tool
from perdure.testing import Script, ScriptedProvider
from tests.house import House
from tests.workflow.asking import COLOUR, DONE, PAID, PAY, asker, results, several, waiting
from tests.workflow.test_people_doors import perdure


@pytest.fixture(autouse=True)
def _nothing_is_paid() -> None:
    PAID.clear()


@tool(name="pay", requires_approval=True)
def pay_in_euros(amount: int, currency: str = "EUR") -> str:
    """Pay an amount."""
    raise NotImplementedError


@pytest.mark.deep
async def test_an_approval_is_shown_while_no_worker_has_the_tools_version(house: House) -> None:
    """S-60: the question is gone from log, list and inbox, although the call cannot run yet; it then runs once."""
    async with ScriptedProvider(Script(replies=(PAY, DONE))) as provider:
        house.use(provider)
        async with house.worker(asker()):
            handle = await house.start()
            (request,) = await waiting(house)
        async with house.worker(asker(tools=[ask_user, pay_in_euros])):
            await house.client.approve(house.session, request["request_id"], by="ann")
            (received,) = await house.wait_for_event("user_input_received")
            assert (received["decision"], received["by"], received["tool"]) == ("approved", "ann", "pay")
            assert await house.events("tool_start") == []
            _, listed, _ = await perdure("list", "--state", "waiting_for_input")
            assert house.session not in listed
        async with house.worker(asker()):
            assert (await handle.result())["stop_reason"] == "finished"
    assert PAID == [7]
    assert len(await house.events("user_input_received")) == 1


async def test_an_answer_is_shown_while_another_request_waits(house: House) -> None:
    """S-60: of two requests, whoever looks sees the one that is left."""
    async with ScriptedProvider(Script(replies=(several(COLOUR, PAY), DONE))) as provider, house.worker(asker()):
        house.use(provider)
        handle = await house.start()
        question, approval = await waiting(house, 2)
        await house.client.answer(house.session, question["request_id"], "red", by="ann")
        (received,) = await house.wait_for_event("user_input_received")
        assert (received["decision"], received["request_id"]) == ("answered", question["request_id"])
        await house.client.deny(house.session, approval["request_id"], by="ann")
        assert (await handle.result())["stop_reason"] == "finished"
    assert [event["decision"] for event in await house.events("user_input_received")] == ["answered", "denied"]


@tool(name="pay", requires_approval=True)
def pay_with_other_texts(
    amount: Annotated[int, "In whole dollars"], password: Annotated[str, "Of the account"] = ""
) -> str:
    """Pay some money from an account."""
    PAID.append(amount)
    return f"paid {amount} by the new body"


async def test_other_texts_of_a_tool_need_no_old_worker(house: House) -> None:
    """A turn keeps the texts it began with; the call runs where the tool takes the same arguments."""
    async with ScriptedProvider(Script(replies=(PAY, DONE))) as provider:
        house.use(provider)
        async with house.worker(asker()):
            handle = await house.start()
            (request,) = await waiting(house)
        async with house.worker(asker(tools=[ask_user, pay_with_other_texts])):
            await house.client.approve(house.session, request["request_id"], by="ann")
            assert (await handle.result())["stop_reason"] == "finished"
    assert results(provider.requests[-1].request.messages) == ["paid 7 by the new body"]
    texts = [str(asked.request.tools) for asked in provider.requests]
    assert "Pay an amount." in texts[1]
    assert "Pay some money" not in texts[1]
