"""The warning of a worker that starts: plain tools that a drain may cut off."""

import logging
from datetime import timedelta

import pytest

from perdure import Agent, DidNotHappen, ask_user, tool
from perdure.worker.agents import tell_long_tools

MINUTE = timedelta(minutes=1)


def _nothing() -> DidNotHappen:
    return DidNotHappen()


@tool(timeout=MINUTE)
def pay() -> str:
    """Pay."""
    return "paid"


@tool(timeout=MINUTE, idempotent=True)
def put() -> str:
    """Put."""
    return "put"


@tool(timeout=MINUTE, reconcile=_nothing)
def book() -> str:
    """Book."""
    return "booked"


@tool(timeout=MINUTE, task_queue="elsewhere")
def press() -> str:
    """Press."""
    return "pressed"


@tool(timeout=timedelta(seconds=20))
def look() -> str:
    """Look."""
    return "seen"


@pytest.mark.parametrize(
    ("grace", "named"), [(timedelta(seconds=20), ["pay"]), (MINUTE, []), (timedelta(seconds=19), ["pay", "look"])]
)
def test_a_worker_names_the_plain_tools_that_may_run_longer_than_its_grace(
    caplog: pytest.LogCaptureFixture, grace: timedelta, named: list[str]
) -> None:
    agent = Agent(name="clerk", model="openai/scripted", tools=[pay, put, book, press, look, ask_user])
    with caplog.at_level(logging.WARNING, "perdure.worker"):
        tell_long_tools([agent], grace, "q")
    said = "".join(caplog.messages)
    assert [
        name for name in ("pay", "put", "book", "press", "look", "ask_user") if f"{name!r} of 'clerk'" in said
    ] == named
    assert len(caplog.messages) == bool(named)
    if named:
        assert f"after {grace.total_seconds():g} s" in said
        assert "'pay' of 'clerk' (60 s)" in said
        assert "or raise PERDURE_SHUTDOWN_GRACE" in said


def test_of_many_tools_five_are_named(caplog: pytest.LogCaptureFixture) -> None:
    agents = [Agent(name=f"clerk-{number}", model="openai/scripted", tools=[pay]) for number in range(7)]
    with caplog.at_level(logging.WARNING, "perdure.worker"):
        tell_long_tools(agents, timedelta(seconds=20), "q")
    assert "of 'clerk-4' (60 s) and 2 more; " in caplog.messages[0]
