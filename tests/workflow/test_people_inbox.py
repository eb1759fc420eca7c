"""What waits for people, over all sessions, and replies that need no id."""

import json

import pytest

from perdure.testing import Script, ScriptedProvider
from tests.house import House, eventually
from tests.workflow.asking import COLOUR, DONE, PAID, PAY, asker, results, several, waiting
from tests.workflow.test_people_doors import perdure

pytestmark = pytest.mark.deep


@pytest.fixture(autouse=True)
def _nothing_is_paid() -> None:
    PAID.clear()


async def test_the_only_request_needs_no_id_and_several_are_listed(house: House) -> None:
    """S-60: approve, answer and deny take what is unambiguous; nothing is decided otherwise."""
    async with ScriptedProvider(Script(replies=(several(COLOUR, PAY, PAY), DONE))) as provider, house.worker(asker()):
        house.use(provider)
        handle = await house.start()
        question, first, second = await waiting(house, 3)
        code, _, errors = await perdure("approve", house.session)
        assert (code, errors.count("\n")) == (2, 3)
        assert f'{first["request_id"]}  approve pay {{"amount": 7}}' in errors
        assert "waits for 2 replies; add the id of the one you mean" in errors
        assert (await perdure("deny", house.session))[0] == 2
        code, _, errors = await perdure("answer", house.session, question["request_id"])
        assert (code, "add the VALUE behind it" in errors) == (2, True)
        code, output, errors = await perdure("answer", house.session, "red", "--by", "ann")
        assert (code, errors) == (0, "")
        assert f"{question['request_id']} answered by ann · Which colour? (red / blue)" in output
        await house.wait_for_event("user_input_received")
        code, shown, _ = await perdure("show", house.session)
        assert "· waiting_for_input" in shown
        assert question["request_id"] not in shown
        assert f"  perdure approve {house.session} {second['request_id']}" in shown
        assert (await perdure("deny", house.session, first["request_id"]))[0] == 0
        await house.wait_for_event("user_input_received", 2)
        code, output, errors = await perdure("approve", house.session)
        assert (code, errors, f"{second['request_id']} approved by" in output) == (0, "", True)
        assert (await handle.result())["stop_reason"] == "finished"
        code, _, errors = await perdure("approve", house.session)
        assert (code, "waits for no approval; 'perdure inbox' lists what waits" in errors) == (2, True)
    assert PAID == [7]
    assert results(provider.requests[-1].request.messages)[0] == "red"


@pytest.mark.parametrize("interactive", ["wait", "stop"])
async def test_the_inbox_has_what_nobody_has_decided(house: House, interactive: str) -> None:
    """S-60: of turns that wait and of those that stopped, by agent and tenant; a turn that is gone is not in it."""
    agent = asker(interactive=interactive, name=f"tester-{interactive}")
    async with ScriptedProvider(Script(replies=(PAY, DONE))) as provider, house.worker(agent):
        house.use(provider)
        turn = await house.client.start(agent.name, "go", session=house.session, tenant="acme")
        if interactive == "stop":
            await turn.result()
        else:
            await waiting(house)
        (request,) = await house.client.inbox(agent=agent.name)
        assert (request.session, request.turn, request.agent, request.tool) == (house.session, 1, agent.name, "pay")
        assert await house.client.inbox(agent="another") == []
        assert await house.client.inbox(tenant='none" OR "') == []
        code, output, _ = await perdure("inbox", "--agent", agent.name, "--json")
        line = json.loads(output)
        assert (code, line["request_id"], line["digest"]) == (0, request.request_id, request.digest)
        code, output, _ = await perdure("inbox", "--agent", agent.name)
        head, row, empty, command = output.splitlines()
        assert head.split() == ["WAITS", "SESSION", "AGENT", "FOR"]
        assert row.endswith(f'{house.session}  {agent.name}  approve pay {{"amount": 7}}')
        assert (empty, command) == ("", f"perdure approve {house.session} {request.request_id}")

        async def has_tenant() -> bool:
            return len(await house.client.inbox(tenant="acme", session=house.session)) == 1

        async def is_gone() -> bool:
            return not await house.client.inbox(session=house.session)

        await eventually(has_tenant)  # visibility may be a moment behind
        if interactive == "wait":
            await house.temporal.get_workflow_handle(house.session).terminate()
        else:
            await house.client.approve(house.session, request.request_id, by="ann")
            assert (await (await house.client.attach(house.session)).result()).turn == 2
        await eventually(is_gone)
