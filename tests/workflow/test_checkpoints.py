"""Every status of a checkpoint and of a job is reached by a real turn, and can be asked for."""

from typing import Any

import pytest

from perdure.client import RequestRefusedError
from perdure.testing import Reply, ScriptedProvider, faults, say
from tests.house import House, eventually
from tests.workflow.asking import COLOUR, DONE, asker
from tests.workflow.delegating import agent, asks, children, in_order, played

pytestmark = pytest.mark.deep

LOOP = asks("again", tool="look")


async def reaches(house: House, status: str) -> None:
    """Wait until the session's last checkpoint has the status."""

    async def there() -> bool:
        found = await house.store.checkpoints(house.session)
        return bool(found) and found[-1].status == status

    await eventually(there)


async def job(house: House) -> str:
    return (await house.store.turns(house.session))[-1].job_status


@pytest.mark.parametrize(
    ("replies", "settings", "checkpoint", "status"),
    [
        ([DONE], {}, "completed", "completed"),
        ([COLOUR], {"max_steps": 1, "interactive": "stop"}, "stoppedByInteractiveTool", "stoppedByInteractiveTool"),
        ([DONE.after(faults.bad_key())], {}, "stoppedByError", "stoppedByError"),
        ([LOOP, LOOP], {"max_steps": 2}, "stoppedByExceededMaxSteps", "stoppedByMaxSteps"),
    ],
)
async def test_an_ended_turn_has_the_status_of_its_stop_reason(
    house: House, replies: list[Reply], settings: dict[str, Any], checkpoint: str, status: str
) -> None:
    """S-66."""
    async with ScriptedProvider(in_order(*replies)) as provider, house.worker(asker(**settings)):
        house.use(provider)
        await house.run()

    found = await house.client.checkpoints(house.session)
    assert (found[-1].status, await job(house)) == (checkpoint, status)
    assert {earlier.status for earlier in found[:-1]} <= {"init", "proceeding"}
    assert (found[-1].error is not None) == (checkpoint == "stoppedByError")


async def test_a_turn_that_runs_is_at_its_prompt_then_waits_for_a_person_then_goes_on(house: House) -> None:
    """S-66: init, stoppedByInteractiveTool, proceeding, completed; and the job runs until then."""
    replies = in_order(COLOUR.after(faults.hang()), DONE)
    async with ScriptedProvider(replies) as provider, house.worker(asker(generation_timeout=2)):
        house.use(provider)
        handle = await house.start()
        await provider.wait_for_requests(1)
        await reaches(house, "init")
        await reaches(house, "stoppedByInteractiveTool")
        waiting = (await house.client.checkpoints(house.session))[-1]
        assert (await job(house), waiting.retries) == ("running", 1)
        await house.client.answer(house.session, waiting.pending_calls[0].call_id, "red")
        await handle.result()
    assert [checkpoint.status for checkpoint in await house.client.checkpoints(house.session)] == [
        "init",
        "proceeding",
        "completed",
    ]


async def test_a_turn_waits_for_its_delegate_whose_session_is_nobodys_to_resume(house: House) -> None:
    """S-66: stoppedByDelegate. S-67: refused for delegate checkpoints, while it runs and after."""
    lead, helper = agent("tester", delegates=["helper"]), agent("helper")
    slow = say("found").after(faults.hang())
    answers = played(tester=in_order(asks("look"), say("all done")), helper=lambda _: slow)
    async with ScriptedProvider(answers) as provider, house.worker(lead, helper):
        house.use(provider)
        handle = await house.start()
        await provider.wait_for_requests(2)
        await reaches(house, "stoppedByDelegate")
        ((child, _),) = await children(house)
        turn = await house.client.fork(child.session, at=0)
        refused = await turn.result()
        await handle.signal("cancel", {})
        await handle.result()
        again = await (await house.client.resume(child.session, "go on")).result()
        with pytest.raises(RequestRefusedError, match="is a delegate's"):
            await house.client.send(child.session, "and more")

    for result in (refused, again):
        assert (result.turn, result.reason_code) == (None, "request.invalid")
        assert result.error == (
            f"session {child.session!r} is a delegate's; send to, resume or fork {house.session!r}, which called it"
        )


async def test_a_session_is_not_forked_into_itself(house: House) -> None:
    with pytest.raises(RequestRefusedError, match="cannot be forked into itself"):
        await house.client.fork(house.session, "hello", into=house.session)
