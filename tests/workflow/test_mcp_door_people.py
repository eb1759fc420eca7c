"""``perdure mcp`` and people: an MCP host reads what a job waits for, and replies to it."""

import pytest

from perdure.testing import Script, ScriptedProvider
from tests.house import House
from tests.workflow.asking import COLOUR, DONE, PAID, PAY, asker, results, several
from tests.workflow.test_mcp_door import did, host, refused, waiting

pytestmark = pytest.mark.deep


@pytest.fixture(autouse=True)
def _nothing_is_paid() -> None:
    PAID.clear()


async def test_a_host_reads_what_a_job_waits_for_replies_and_gets_its_result(house: House) -> None:
    """S-78: ``wait`` returns when a person is needed, and goes on when everything is decided."""
    script = Script(replies=(several(COLOUR, PAY), PAY, DONE))
    async with ScriptedProvider(script) as provider, house.worker(asker()), host() as client:
        house.use(provider)
        where = {"session": house.session}
        await did(client, "start", agent="tester", prompt="go", **where)
        asked = (await waiting(client, house.session)).structured_content
        assert (asked["state"], asked["turn"]) == ("waiting_for_input", 1)
        question, approval = asked["requests"]
        assert (question["needs"], question["question"]) == ("answer", "Which colour?")
        assert question["options"] == ["red", "blue"]
        assert (approval["needs"], approval["tool"], approval["arguments"]) == ("approval", "pay", '{"amount": 7}')
        assert await did(client, "status", **where) == asked

        answered = await did(client, "answer", request=question["request_id"], value="red", by="ann", **where)
        assert (answered["decision"], answered["by"], answered["session"]) == ("answered", "ann", house.session)
        assert [request["request_id"] for request in (await did(client, "wait", **where))["requests"]] == [
            approval["request_id"]
        ]
        approve = {"request": approval["request_id"], "by": "ann", "digest": approval["digest"], **where}
        approved = await did(client, "approve", **approve)
        assert approved["decision"] == "approved"
        (again,) = (await did(client, "wait", **where))["requests"]
        await did(client, "deny", request=again["request_id"], by="bob", reason="once is enough", **where)
        ended = await did(client, "wait", **where)
        assert (ended["state"], ended["result"]["output"]) == ("ended", "done")
        assert await did(client, "approve", **approve) == approved
    assert PAID == [7]
    read = results(provider.requests[-1].request.messages)
    assert read == ["red", "paid 7", "pay was denied by bob: once is enough"]


async def test_a_job_that_stopped_for_people_goes_on_with_the_reply(house: House) -> None:
    script = Script(replies=(COLOUR, DONE))
    async with ScriptedProvider(script) as provider, house.worker(asker(interactive="stop")), host() as client:
        house.use(provider)
        where = {"session": house.session}
        await did(client, "start", agent="tester", prompt="go", **where)
        stopped = await did(client, "wait", **where)
        assert (stopped["state"], stopped["result"]["stop_reason"]) == ("ended", "waiting_for_input")
        (request,) = stopped["result"]["requests"]
        await did(client, "answer", request=request["request_id"], value="blue", by="ann", **where)
        ended = await did(client, "wait", turn=2, **where)
        assert ended["result"]["output"] == "done"
    assert results(provider.requests[-1].request.messages) == ["blue"]


async def test_a_reply_that_cannot_be_taken_is_a_sentence_with_its_fix(house: House) -> None:
    async with ScriptedProvider(Script(replies=(COLOUR, DONE))) as provider, house.worker(asker()):
        house.use(provider)
        async with host() as client:
            where = {"session": house.session}
            await did(client, "start", agent="tester", prompt="go", **where)
            (request,) = (await did(client, "wait", **where))["requests"]
            decided = {"request": request["request_id"], **where}
            said = await refused(client, "answer", value="green", by="ann", **decided)
            assert "the answer has to be one of: red, blue" in said
            assert "is a question and needs an answer" in await refused(client, "approve", by="ann", **decided)
            assert "by" in await refused(client, "deny", **decided)
            assert "nothing waits for 'x'" in await refused(client, "deny", request="x", by="ann", **where)
            elsewhere = {"request": "x", "session": "nowhere", "by": "ann"}
            assert "no session 'nowhere'" in await refused(client, "approve", **elsewhere)
            assert (await did(client, "status", **where))["requests"] == [request]
            await did(client, "cancel", **where)
            await did(client, "wait", **where)
