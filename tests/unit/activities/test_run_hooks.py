"""Hooks that the worker at hand does not have, and what those that it has are called with."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from perdure import Agent, hook
from perdure.activities.errors import LONGEST_MISSING_RETRY
from perdure.activities.hooks import PAGE
from perdure.contracts.budgets import Spent, Usage
from perdure.contracts.events import AgentEnd, DelegateEnd, ToolProgress
from perdure.contracts.hooks import Boundary, RunHooks
from perdure.contracts.turns import StopReason
from perdure.lanes.bodies import Bodies
from perdure.store import Store
from perdure.workflows import options
from tests.unit.activities.composed import activities_over
from tests.unit.store.given import SESSION, new_event, opening


@hook("agent_end")
def log(_: AgentEnd) -> None:
    """Note the end."""


@pytest.mark.parametrize(("boundary", "longest"), [("end", timedelta(seconds=10)), ("step", LONGEST_MISSING_RETRY)])
async def test_a_result_waits_seconds_for_a_worker_that_has_the_hooks_for_its_end(
    boundary: Boundary, longest: timedelta
) -> None:
    """S-36: all attempts together; hooks within the turn are waited for as long as it takes."""
    agent = Agent(name="tester", model="openai/scripted", hooks=[log])
    bodies = Bodies(1)
    async with await Store.open("sqlite:///:memory:", upgrade=True) as store:
        await store.register_agents([agent.definition])
        reacting = activities_over(store, {}, bodies)
        asked = RunHooks(
            session="s",
            turn=1,
            step=1,
            tip="t",
            definition=agent.definition.digest(),
            boundary=boundary,
            calling=("log",),
            spent=Spent(),
        )
        environment = ActivityEnvironment()
        environment.info = replace(environment.info, scheduled_time=datetime.now(UTC))
        with pytest.raises(ApplicationError, match="has no hook 'log'") as raised:
            await environment.run(reacting.run_hooks, asked)
    bodies.close()
    delay = raised.value.next_retry_delay
    assert delay is not None
    assert delay * (options.AT_THE_END - 1 if boundary == "end" else 1) <= longest


@pytest.mark.parametrize("late", range(PAGE - 1, PAGE + 2))
async def test_a_hook_hears_of_a_long_step_in_whose_middle_an_earlier_one_was_told_of(late: int) -> None:
    """S-36: the end of a delegate in the background is of the step that called it; the log is read in pages."""
    heard: list[float] = []

    @hook("tool_progress")
    def note(event: ToolProgress) -> None:
        heard.append(event.progress)

    agent = Agent(name="helper", model="test/model", hooks=[note])
    bodies = Bodies(1)
    async with await Store.open("sqlite:///:memory:", upgrade=True) as store:
        await store.register_agents([agent.definition])
        await store.open_turn(opening(), agent.definition)
        ended = DelegateEnd(
            call_id="c0",
            tool="other",
            agent="other",
            delegate="s.other",
            stop_reason=StopReason.FINISHED,
            steps=1,
            usage=Usage(),
            cost_usd=Decimal(0),
        )
        steps = [ToolProgress(call_id="c1", tool="dig", progress=number) for number in range(2 * PAGE)]
        events = [new_event(f"{step.progress}", step, step=2) for step in steps]
        events.insert(len(events) + 1 - late, new_event("1/c0/delegate_end", ended))
        await store.append_events(SESSION, [new_event("first"), *events])
        reacting = activities_over(store, {"helper": agent}, bodies)
        asked = RunHooks(
            session=SESSION,
            turn=1,
            step=2,
            tip="t",
            definition=agent.definition.digest(),
            boundary="step",
            calling=("note",),
        )
        reacted = await ActivityEnvironment().run(reacting.run_hooks, asked)
    bodies.close()
    assert (heard, reacted.calls) == ([float(number) for number in range(2 * PAGE)], 2 * PAGE)
