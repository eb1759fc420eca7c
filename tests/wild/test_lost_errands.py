"""A message of a schedule, a delivery or a sweep that failed, and sweeps that are missing, are counted."""

import math
from datetime import UTC, datetime, timedelta

from perdure import Agent
from perdure.client.retention import Sweeps, schedule_sweeps
from perdure.contracts.names import KNOCK, NOTIFY, SWEEP
from perdure.contracts.retention import Retention
from perdure.worker.fleet_figures import FleetFigures
from tests.house import House, eventually

KEPT = Agent(name="tester", model="openai/scripted", retention=Retention(events=timedelta(days=1)))


async def test_what_failed_of_late_and_what_is_missing_is_counted(house: House) -> None:
    queue = house.settings.task_queue
    figures = await FleetFigures(house.store, house.temporal, house.settings).read()
    assert figures.failed_errands == {"schedule": 0, "webhook": 0, "sweep": 0}
    assert figures.sweeps_missing is None
    await house.store.register_agents([KEPT.definition])
    figures = await FleetFigures(house.store, house.temporal, house.settings).read()
    assert figures.sweeps_missing == math.inf
    await schedule_sweeps(house.temporal, queue, house.store, timedelta(days=1))
    for number, name in enumerate((KNOCK, NOTIFY, NOTIFY, SWEEP)):
        handle = await house.temporal.start_workflow(name, {}, id=f"{house.session}-{number}", task_queue=queue)
        await handle.terminate("lost")

    async def counted() -> bool:
        figures = await FleetFigures(house.store, house.temporal, house.settings).read()
        missing = figures.sweeps_missing
        assert missing is not None
        return figures.failed_errands == {"schedule": 1, "webhook": 2, "sweep": 1} and 0 <= missing < 1

    await eventually(counted)
    await schedule_sweeps(house.temporal, queue, house.store, None)


def test_sweeps_are_late_when_several_are_missing() -> None:
    now, every = datetime.now(UTC), timedelta(hours=1)
    assert Sweeps(every=every, since=now - 9 * every, last=now - 2 * every).count_missing(now) == 2
    assert not Sweeps(every=every, since=now - 3 * every).is_late(now)
    assert Sweeps(every=every, since=now - 4 * every).is_late(now)
    assert Sweeps().is_late(now)
