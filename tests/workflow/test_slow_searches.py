"""A stop condition whose search takes too long ends the turn, wherever the text comes from."""

import pytest

from perdure import stop, tool
from perdure.activities import conditions
from perdure.testing import ScriptedProvider, call, say
from tests.house import House
from tests.workflow.backgrounds import awaiting, lead, starts, steps
from tests.workflow.delegating import DONE, agent, asks, in_order, played
from tests.workflow.recording import recorded, replaying

SLOW, TEXT = stop.tool_output(r"^(a|a)*$", regex=True), "a" * 60 + "b"

SAID = "the stop condition tool_output(pattern='^(a|a)*$', regex=True) took longer than 0.05 s on a text"


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditions, "SEARCH_SECONDS", 0.05)


@pytest.mark.parametrize("background", [False, True])
async def test_what_a_delegate_has_said_is_no_exception(house: House, *, background: bool) -> None:
    """S-34 S-35: also where it worked in the background, and is read later."""
    mine = steps(starts("one"), awaiting(0), DONE) if background else in_order(asks("one"), DONE)
    async with (
        ScriptedProvider(played(tester=mine, helper=in_order(say(TEXT)))) as provider,
        house.worker(lead(stop_conditions=[SLOW]), agent("helper")),
    ):
        house.use(provider)
        result = await house.run()
    assert (result["stop_reason"], result["reason_code"]) == ("error", "runtime.hook_failed")
    assert SAID in result["error"]


async def test_nor_is_a_result_out_of_a_recording(house: House) -> None:
    """S-73: the replay ends as the run did."""

    @tool
    def look() -> str:
        """Look."""
        return TEXT

    tester = agent("tester", tools=[look], stop_conditions=[SLOW])
    first = await recorded(house, in_order(call(("look", {})), DONE), tester)
    async with replaying(house, tester) as again:
        second = await again.run()
    assert (first["reason_code"], second["reason_code"]) == ("runtime.hook_failed", "runtime.hook_failed")
    assert SAID in second["error"]
