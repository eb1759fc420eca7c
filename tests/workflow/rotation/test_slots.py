"""A turn that goes on in a fresh history keeps its slot."""

import pytest

from perdure import Agent, tool
from perdure.testing import Script, ScriptedProvider, call, say
from tests.house import House
from tests.workflow.rotation.rotations import rotated
from tests.workflow.slots import Work, queued

pytestmark = pytest.mark.deep


@tool
def count(number: int) -> str:
    """Say the number."""
    return f"number {number}"


async def test_a_turn_that_rotates_keeps_its_slot_and_no_history_grows_with_the_wait(house: House) -> None:
    work, other = Work(), f"{house.session}-other"
    steps = [call(("count", {"number": number})) for number in range(12)]
    script = Script(replies=(*steps, call(("work", {})), say("done")))
    tester = Agent(name="tester", model="openai/scripted", tools=[count, work.tool], max_running=1)
    async with ScriptedProvider(script) as provider, house.worker(tester):
        house.use(provider)
        turn = await house.client.start("tester", "go", session=house.session)
        assert await turn.number() == 1  # it has the slot
        waits = await house.client.start("tester", "go", session=other)
        await rotated(house, house.session)
        await work.wait_for(house.session)
        assert work.begun == [house.session]
        await queued(house, other)
        description = await house.temporal.get_workflow_handle(other).describe()
        assert description.history_length <= 6
        work.end(house.session, other)
        assert (await turn.result()).stop_reason == "finished"
        assert (await waits.result()).stop_reason == "finished"
    assert work.most == 1
