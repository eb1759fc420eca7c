"""Hooks that the worker at hand does not have."""

from datetime import timedelta

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.bodies import Bodies
from activities.definitions import Definitions
from activities.reacting import MISSING_HOOK_RETRY, ReactActivity
from perdure import Agent, hook
from perdure.contracts.budgets import Spent
from perdure.contracts.events import AgentEnd
from perdure.contracts.reactions import Boundary, React
from perdure.store import Store
from workflows import options


@hook("agent_end")
def log(_: AgentEnd) -> None:
    """Note the end."""


@pytest.mark.parametrize(("boundary", "longest"), [("end", timedelta(seconds=10)), ("step", MISSING_HOOK_RETRY)])
async def test_a_result_waits_seconds_for_a_worker_that_has_the_hooks_for_its_end(
    boundary: Boundary, longest: timedelta
) -> None:
    """S-36: all attempts together; hooks within the turn are waited for as long as it takes."""
    agent = Agent(name="tester", model="openai/scripted", hooks=[log])
    bodies = Bodies(1)
    async with await Store.open("sqlite:///:memory:", upgrade=True) as store:
        await store.register_agents([agent.definition])
        reacting = ReactActivity(
            store=store, agents={}, definitions=Definitions(store), bodies=bodies, secrets=frozenset()
        )
        asked = React(
            session="s",
            turn=1,
            step=1,
            tip="t",
            definition=agent.definition.digest(),
            boundary=boundary,
            calling=("log",),
            spent=Spent(),
        )
        with pytest.raises(ApplicationError, match="has no hook 'log'") as raised:
            await ActivityEnvironment().run(reacting.react, asked)
    bodies.close()
    delay = raised.value.next_retry_delay
    assert delay is not None
    assert delay * (options.AT_THE_END - 1 if boundary == "end" else 1) <= longest
