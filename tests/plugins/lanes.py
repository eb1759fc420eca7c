"""Two processes more than cores, which run in the time that the others leave.

The processes of a test run wait a third of their time: for a lost worker to be noticed, for a timer, for a process that
starts. A further process of the same kind would compete for the cores until workers starve and Temporal counts them as
lost. So one runs the files that mostly wait, and one, at the lowest priority, files that start no server.
"""

import os

import pytest
from xdist.remote import Producer  # type: ignore[import-untyped]
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]
from xdist.workermanage import WorkerController  # type: ignore[import-untyped]

WAITING = (
    "tests/workflow/test_lost_attempts.py",
    "tests/workflow/test_kill.py",
    "tests/workflow/test_sleep.py",
    "tests/workflow/test_completion.py",
    "tests/workflow/test_effects.py",
    "tests/workflow/test_drain.py",
    "tests/workflow/test_outage.py",
    "tests/workflow/test_hooks_stopped.py",
    "tests/workflow/test_mcp_processes.py",
    "tests/workflow/test_people_deployed.py",
    "tests/workflow/rotation/test_background_survives.py",
    "tests/workflow/rotation/test_delegates_survive.py",
    "tests/workflow/rotation/test_followers_cut.py",
    "tests/workflow/test_gateway_deltas_cut.py",
    "tests/faults/test_postgresql_failover.py",
    "tests/faults/test_store_behind.py",
)
"""Files whose tests mostly wait, most of them for a killed worker's heartbeat to be missed."""

PURE = (
    "tests/typing/",
    *("tests/unit/agents/", "tests/unit/engine/", "tests/unit/llm/", "tests/unit/security/", "tests/unit/workflows/"),
    *("tests/unit/store/", "tests/unit/worker/"),
)
"""Where the files stand that start no Temporal server, as beginnings of their paths."""

STARTING = ("tests/unit/store/test_opening.py", "tests/unit/worker/test_agents.py", "tests/unit/worker/test_needs.py")
"""Files among them that start processes and wait for these: at the lowest priority they take over a minute."""

LANES = (WAITING, PURE)
"""What the last two processes run, in their order."""

LOWEST_PRIORITY = 19

MOST_PROCESSES = 8
"""Without the lanes. Each has a Temporal server, and workers forked from a process of its own: up to 1.5 GB."""


def lane_of(worker: str, count: int) -> tuple[str, ...]:
    """The files of a process of the test run; empty if it runs whatever is left."""
    place = int(worker.removeprefix("gw")) - (count - len(LANES))
    return LANES[place] if place >= 0 and count > len(LANES) else ()


def is_of(file: str, lane: tuple[str, ...]) -> bool:
    """Whether a process of the lane runs the file."""
    return not lane or (file.startswith(lane) and file not in STARTING)


def pytest_xdist_auto_num_workers() -> int:
    """A process for each core, and one for each lane."""
    return min(max(os.cpu_count() or 1, 2), MOST_PROCESSES) + len(LANES)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Lower the priority only now: nobody begins before the last process has collected."""
    given = getattr(session.config, "workerinput", None)
    if given is not None and lane_of(given["workerid"], given["workercount"]) == PURE:
        os.nice(LOWEST_PRIORITY)


class LaneScheduling(LoadFileScheduling):  # type: ignore[misc] # xdist has no types
    """Each process of a lane gets the files of its lane only; the others get these when nothing else is left."""

    def _assign_work_unit(self, node: WorkerController) -> None:
        lane = lane_of(node.gateway.id, self.numnodes)
        fitting = [file for file in self.workqueue if is_of(file, lane)]
        if lane and not fitting:
            node.shutdown()
            return
        others = [file for file in fitting if not any(is_of(file, other) for other in LANES)]
        self.workqueue.move_to_end((fitting if lane else others or fitting)[0], last=False)
        super()._assign_work_unit(node)


@pytest.hookimpl
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LaneScheduling | None:
    return LaneScheduling(config, log) if config.getvalue("dist") == "loadfile" else None
