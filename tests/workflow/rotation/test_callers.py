"""A workflow of a user's is cancelled while its turn has gone on in fresh histories (S-82)."""

import pytest
import temporalio.client
from temporalio.exceptions import CancelledError

from perdure import Agent, tool
from perdure.testing import Script, ScriptedProvider, call, faults, say
from tests.house import House, eventually
from tests.workflow.rotation.rotations import rotated
from tests.workflow.test_from_workflows import failure_of, started, their_worker
from tests.workflow.workflows_of_users import Single

pytestmark = pytest.mark.deep


@tool
def count(number: int) -> str:
    """Say the number."""
    return f"number {number}"


@pytest.mark.parametrize("steps", [1, 8, 16])
async def test_a_cancel_reaches_a_turn_that_the_server_has_given_fresh_histories(house: House, steps: int) -> None:
    """S-82: in the first, the second and the third of them."""
    theirs = await temporalio.client.Client.connect(house.server.address)
    agent = Agent(name="tester", model="openai/scripted", tools=[count])
    counting = [call(("count", {"number": number})) for number in range(1, steps + 1)]
    script = Script(replies=(*counting, say("late").after(faults.hang())))
    async with ScriptedProvider(script) as provider, house.worker(agent), their_worker(theirs, house):
        house.use(provider)
        handle = await started(theirs, house, Single, agent="tester", prompt="go", session=house.session)
        await provider.wait_for_requests(steps + 1)
        if steps > 1:
            await rotated(house, house.session)
        await handle.cancel()
        assert isinstance(await failure_of(handle), CancelledError)
        await provider.wait_for_disconnect()

    async def ended() -> str | None:
        result = (await house.store.turn(house.session, 1)).result
        return result.stop_reason if result else None

    assert await eventually(ended) == "cancelled"
