"""Opening a turn asks the store as little as it can: what stands there once, then the claim."""

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

from temporalio.testing import ActivityEnvironment

from perdure import Agent
from perdure.contracts.openings import OpenedTurn
from perdure.contracts.turns import Continuation, OpenTurn
from perdure.lanes.bodies import Bodies
from perdure.store import Store
from perdure.worker.app import Activities
from tests.unit.activities.composed import activities_over

NOW = datetime(2026, 1, 1, tzinfo=UTC)
AGENT = Agent(name="helper", model="openai/scripted", instructions="Help.")


async def test_a_turn_opens_with_one_read_and_one_write(tmp_path: Path) -> None:
    asked: Counter[str] = Counter()
    bodies = Bodies(1)

    async def opened(turns: Activities, request_id: str, agent: str | None) -> OpenedTurn:
        asked.clear()
        request = OpenTurn(
            session="s", request=Continuation(agent=agent, prompt="go"), request_id=request_id, run_started_at=NOW
        )
        result = await ActivityEnvironment().run(turns.open_turn, request)
        assert isinstance(result, OpenedTurn)
        return result

    url = f"sqlite:///{tmp_path / 'store.db'}"
    async with await Store.open(url, upgrade=True, observe=lambda name, _: asked.update([name])) as store:
        turns = activities_over(store, {"helper": AGENT}, bodies)
        for number, (request_id, agent) in enumerate([("r1", "helper"), ("r2", "helper"), ("r3", None)], start=1):
            assert (await opened(turns, request_id, agent)).turn == number
            closes = {"webhooks": 1} if number > 1 else {}  # the turn before, which nobody has ended
            assert asked == {"session_before": 1, "open_turn": 1, **closes}
        assert (await opened(turns, "r2", "helper")).turn == 2
        assert asked == {"session_before": 1, "open_turn": 1, "webhooks": 1}

        elsewhere = activities_over(
            store, {"helper": AGENT}, bodies
        )  # a worker that has opened none of the session's turns
        assert (await opened(elsewhere, "r4", None)).turn == 4
        assert asked == {"session_before": 1, "events_by_key": 1, "open_turn": 1, "webhooks": 1}
    bodies.close()


async def test_only_a_turn_with_a_limit_asks_for_a_slot_and_one_that_is_stopped_asks_for_none(tmp_path: Path) -> None:
    asked: Counter[str] = Counter()
    bodies, limited = Bodies(1), AGENT.clone(max_running=1)
    assert "max_running" not in AGENT.definition.canonical(), "definitions without a limit keep their names"

    def opening(session: str, *, stopped: bool = False) -> OpenTurn:
        asked.clear()
        request = Continuation(agent="helper", prompt="go")
        return OpenTurn(session=session, request=request, request_id="r", run_started_at=NOW, stopped=stopped)

    url = f"sqlite:///{tmp_path / 'store.db'}"
    async with await Store.open(url, upgrade=True, observe=lambda name, _: asked.update([name])) as store:
        turns, environment = activities_over(store, {"helper": limited}, bodies), ActivityEnvironment()
        await environment.run(turns.open_turn, opening("s"))
        assert asked == {"session_before": 1, "ask_for_slot": 1, "open_turn": 1}
        await environment.run(turns.open_turn, opening("t", stopped=True))
        assert asked == {"session_before": 1, "leave_queue": 1, "open_turn": 1}
    bodies.close()
