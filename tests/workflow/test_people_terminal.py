"""The person at a terminal, and scripts without one, when a turn asks: whatever the order in which things happen."""

import pytest

from perdure.contracts.values import JsonValue
from perdure.testing import Script, ScriptedProvider, call
from tests.house import House
from tests.workflow.asking import COLOUR, DONE, PAID, PAY, asker, results, waiting
from tests.workflow.test_people_doors import Terminal, perdure

pytestmark = pytest.mark.deep


@pytest.fixture(autouse=True)
def _nothing_is_paid() -> None:
    PAID.clear()


async def test_a_second_question_is_told_of_to_who_follows_later(house: House) -> None:
    """S-60: the first one and its answer are read together with it; without a terminal following exits with 7."""
    async with ScriptedProvider(Script(replies=(COLOUR, PAY, DONE))) as provider, house.worker(asker()):
        house.use(provider)
        handle = await house.start()
        (first,) = await waiting(house)
        await house.client.answer(house.session, first["request_id"], "red", by="ann")
        await house.wait_for_event("user_input_required", 2)
        (second,) = await waiting(house)
        code, _, errors = await perdure("follow", house.session)
        assert (code, errors.splitlines()[-1].split("; ")[-1]) == (
            7,
            f"perdure approve {house.session} {second['request_id']}",
        )
        after = (await house.events())[-1]["seq"]
        code, output, errors = await perdure("follow", house.session, "--after", str(after))
        assert (code, output, second["request_id"] in errors) == (7, "", True)
        async with Terminal("follow", house.session, "--after", str(after)) as terminal:
            await terminal.shows('? approve pay {"amount": 7} [y/n/always] ')
            terminal.types("y")
            assert await terminal.ends() == 0
        await handle.result()
    assert PAID == [7]


async def test_what_was_typed_before_the_question_is_no_answer_to_it(house: House) -> None:
    """A person who presses keys while the agent works approves nothing."""
    async with ScriptedProvider(Script(replies=(PAY, DONE))) as provider:
        house.use(provider)
        await house.start()
        async with Terminal("follow", house.session) as terminal:
            terminal.types("y")
            await terminal.shows("y")  # the terminal has it
            async with house.worker(asker()):
                await terminal.shows("[y/n/always] ")
                terminal.types("n")
                assert await terminal.ends() == 0
    assert PAID == []
    assert "was denied by" in results(provider.requests[-1].request.messages)[0]


async def test_a_line_that_is_sent_without_its_end_blocks_nothing(house: House) -> None:
    """Ctrl+D in the middle of a line; somebody else decides meanwhile."""
    async with ScriptedProvider(Script(replies=(COLOUR, DONE))) as provider, house.worker(asker()):
        house.use(provider)
        await house.start()
        (request,) = await waiting(house)
        async with Terminal("follow", house.session) as terminal:
            await terminal.shows("> ")
            terminal.types("re\x04", end="")
            await terminal.shows("> re")
            await house.client.answer(house.session, request["request_id"], "blue", by="ann")
            assert await terminal.ends() == 0
    assert results(provider.requests[-1].request.messages) == ["blue"]


async def test_nothing_that_a_model_writes_steers_a_terminal(house: House) -> None:
    """S-52: neither by a question, nor by an option, nor by a name that a refusal repeats."""
    options: list[JsonValue] = ["\x1b]0;owned\x07yes", "no"]
    asked = call(("ask_user", {"question": "Sure?\x1b[2J", "options": options}))
    async with ScriptedProvider(Script(replies=(asked, DONE))) as provider, house.worker(asker(interactive="stop")):
        house.use(provider)
        code, output, errors = await perdure("run", "tester", "go", "--session", house.session)
        assert (code, "\x1b" in output + errors) == (7, False)
        (request,) = await (await house.client.attach(house.session)).requests()
        assert f"perdure answer {house.session} {request.request_id} VALUE" in errors
        code, output, errors = await perdure("answer", house.session, request.request_id, "green")
        assert (code, "\x1b" in output + errors, "yes, no" in errors) == (2, False, True)
        answer = ("answer", house.session, request.request_id, "no", "--by", "ann\x1b[2Jbob")
        code, output, errors = await perdure(*answer)
        assert (code, "\x1b" in output + errors, "by ann[2Jbob" in output) == (0, False, True)
