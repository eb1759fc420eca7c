"""The opening of a turn by a worker that lacks its agent: left to another one, or refused for good."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from perdure import Agent, tool
from perdure.activities.agents import Definitions, Roster
from perdure.agents.data import InlineAgents, Registered
from perdure.contracts.openings import OpenedTurn
from perdure.contracts.turns import Continuation, OpenTurn
from perdure.contracts.values import replace as replace_fields
from perdure.contracts.waits import MissingVersion
from perdure.lanes.bodies import Bodies
from perdure.store import Store
from tests.unit.activities.composed import activities_over

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NEW, OLD = (Agent(name=name, model="openai/scripted") for name in ("newcomer", "old"))


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    async with await Store.open("sqlite:///:memory:", upgrade=True) as opened:
        yield opened


@dataclass
class Others:
    """So much is known of the other workers."""

    known: bool | None

    async def has(self, agent: str) -> bool | None:
        del agent
        return self.known

    async def takes(self, missing: MissingVersion) -> bool:
        del missing
        return self.known is True

    async def differ(self, mark: str) -> bool | None:
        assert mark.startswith("agents of requests: ")
        return self.known


async def opened(store: Store, known: bool | None, agents: list[Agent], **asked: Any) -> OpenedTurn:
    """Open a turn of the new agent at a worker with these agents, where so much is known of the others."""
    bodies = Bodies(1)
    turns = activities_over(
        store, {agent.name: agent for agent in agents}, bodies, Others(known), asked.pop("inline", None)
    )
    request = Continuation(agent=asked.pop("agent", "newcomer"), definition=asked.pop("definition", None), prompt="go")
    opening = OpenTurn(session="s", request=request, request_id=asked.pop("id", "r"), run_started_at=NOW, **asked)
    try:
        result: OpenedTurn = await ActivityEnvironment().run(turns.open_turn, opening)
        return result
    finally:
        bodies.close()


@pytest.mark.parametrize("known", [True, None])
@pytest.mark.parametrize("goes_on", [True, False], ids=["a message", "a start"])
async def test_a_turn_is_left_to_a_worker_that_has_or_may_have_its_agent(
    store: Store, known: bool | None, goes_on: bool
) -> None:
    if goes_on:
        await opened(store, known, [NEW], id="first")
    with pytest.raises(ApplicationError, match="this worker has no agent 'newcomer'; start a worker") as raised:
        await opened(store, known, [OLD], agent=None if goes_on else "newcomer")
    assert (raised.value.non_retryable, raised.value.type) == (False, "runtime.tool_missing")
    assert raised.value.next_retry_delay is not None
    assert raised.value.details[1] == MissingVersion(
        agent="newcomer", what="agent", name="newcomer", elsewhere=known is True
    )
    assert (await opened(store, known, [NEW], agent=None if goes_on else "newcomer")).turn == 1 + goes_on


async def test_an_agent_that_no_worker_that_polls_has_is_refused_for_good(store: Store) -> None:
    with pytest.raises(
        ApplicationError, match="no worker that polls has an agent 'newcomer'; this worker has: old"
    ) as raised:
        await opened(store, False, [OLD])
    assert (raised.value.non_retryable, raised.value.type) == (True, "request.unknown_agent")


async def test_a_turn_that_is_stopped_meanwhile_waits_no_longer(store: Store) -> None:
    with pytest.raises(ApplicationError, match="stopped before a worker that has an agent 'newcomer'") as raised:
        await opened(store, True, [OLD], stopped=True)
    assert (raised.value.non_retryable, raised.value.type) == (True, "runtime.aborted")


@pytest.mark.parametrize(
    ("known", "pauses"), [(True, [0.5, 0.5, 0.5, 2]), (None, [0.5, 4, 10, 233.3]), (False, [0.5, 4, 10, 233.3])]
)
@pytest.mark.parametrize("what", ["tool", "hook", "server", "agent", "delegate"])
async def test_what_a_worker_that_polls_has_is_offered_again_after_half_a_second(
    store: Store, what: Any, known: bool | None, pauses: list[float]
) -> None:
    """Chance decides which worker is asked: with one of four that has it, a call would else wait for half a minute."""
    missing = MissingVersion(agent="old", what=what, name="newcomer", definition="" if what == "agent" else "d")
    roster = Roster({}, None, Definitions(store), Others(known))

    async def offer() -> timedelta:
        return (await roster.offer(missing)).next_retry_delay or timedelta(0)

    told = []
    for waited in (0, 4, 29, 7_000):
        environment = ActivityEnvironment()
        began = datetime.now(UTC) - timedelta(seconds=waited)
        environment.info = replace(environment.info, scheduled_time=began)
        told.append((await environment.run(offer)).total_seconds())
    assert told == pytest.approx(pauses, rel=0.25)  # the test takes its time, too


@tool
def two() -> str:
    """Two."""
    return "two"


MAKES_MORE, MAKES_LESS = (InlineAgents(Registered([], tools), []) for tools in ([two], []))


@pytest.mark.parametrize("known", [True, None, False])
@pytest.mark.parametrize(
    ("maker", "missing", "said"),
    [
        (None, MissingVersion(agent="newcomer", what="agent", name="newcomer"), "PERDURE_ALLOW_INLINE_AGENTS"),
        (
            MAKES_LESS,
            MissingVersion(agent="newcomer", what="tool", name="two"),
            "tools.0: this worker has no tool 'two'",
        ),
    ],
)
async def test_an_agent_of_a_request_is_left_to_a_worker_that_may_make_it_and_else_refused(
    store: Store, maker: InlineAgents | None, missing: MissingVersion, said: str, known: bool | None
) -> None:
    """A rollout that adds a tool, or allows such agents, refuses none of the starts that come meanwhile."""
    asked: dict[str, Any] = {"definition": {"model": "openai/scripted", "tools": ["two"]}}
    with pytest.raises(ApplicationError) as raised:
        await opened(store, known, [], inline=maker, **asked)
    if known is False:
        assert (raised.value.non_retryable, raised.value.type) == (True, "request.invalid")
        assert said in raised.value.message
    else:
        assert (raised.value.non_retryable, raised.value.type) == (False, "runtime.tool_missing")
        assert raised.value.details[1] == replace_fields(missing, elsewhere=known is True)
    with pytest.raises(ApplicationError, match="the turn was stopped before"):
        await opened(store, known, [], inline=maker, stopped=True, **asked)
    assert (await opened(store, known, [], inline=MAKES_MORE, **asked)).turn == 1


async def test_an_agent_of_a_request_that_no_worker_can_make_is_refused_whoever_else_polls(store: Store) -> None:
    with pytest.raises(ApplicationError, match="there is no such setting") as raised:
        await opened(store, True, [], inline=MAKES_MORE, definition={"model": "openai/scripted", "tolls": []})
    assert raised.value.non_retryable
