"""How often Temporal tries an activity."""

import pytest

from perdure.contracts.agents import TurnPolicy
from perdure.contracts.budgets import Spent
from perdure.contracts.hooks import Boundary, RunHooks
from perdure.workflows import options


@pytest.mark.parametrize(("boundary", "patient"), [("end", False), ("step", True)])
def test_a_result_does_not_wait_long_for_a_worker_with_the_hooks_for_its_end(
    boundary: Boundary, *, patient: bool
) -> None:
    """They change nothing; hooks within the turn do, and are waited for like any lost worker."""
    action = RunHooks(
        session="s",
        turn=1,
        step=1,
        tip="t",
        definition="d",
        boundary=boundary,
        calling=("log",),
        spent=Spent(),
    )
    retry = options.run_hooks(TurnPolicy(agent="a", model="p/m"), action)["retry_policy"]
    assert retry is not None
    assert (retry.maximum_attempts > options.AT_THE_END) is patient
