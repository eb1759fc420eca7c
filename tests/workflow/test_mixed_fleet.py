"""Workers of the release before this one and of this one at the same queue and store: a rollout with jobs that run.

The old worker is that release's wheel in a process of its own; only what a newer litellm gives it is kept from it.
"""

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import temporalio.client
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowHandle
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner

from perdure.cli.server import EmbeddedServer, ServerOptions
from perdure.client.connect import DATA_CONVERTER
from perdure.contracts.ids import DELEGATE_IDS
from perdure.local_ports import find_free_port
from perdure.store import migrate
from perdure.store.schema import KNOWN_REVISIONS
from perdure.testing import ScriptedProvider
from perdure.workflows.agent_turn import AgentTurn
from perdure.workflows.errands import KnockAtSession, NotifyWebhook
from tests.conftest import FAST
from tests.house import House, WorkerProcess, become_a_user, eventually
from tests.releases import AGENTS, answers, unpack, worker_of
from tests.workflow.asking import waiting
from tests.workflow.killing import read, result_of

pytestmark = pytest.mark.deep

ROTATES_AFTER = 60
"""Events after which the server suggests a fresh history: about five steps."""

LONG = "walk 6, ask, walk 6"
"""Rotates on either side of its question."""

MIXED = (("walker", LONG), ("lead", "delegate 6"), ("walker", LONG), ("lead", "delegate 6"))
MOST_ROUNDS = 4
"""Rounds of these jobs until each release has run a step: which one takes a step is the server's choice."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the release before this one is imported from."""
    return unpack(tmp_path_factory.mktemp("release"))


@pytest.fixture(scope="module")
async def server() -> AsyncIterator[EmbeddedServer]:
    """A server that suggests a fresh history early."""
    limits = {**FAST, "limit.historyCount.suggestContinueAsNew": str(ROTATES_AFTER)}
    async with EmbeddedServer(ServerOptions(port=find_free_port(), dynamic_config=limits)) as running:
        yield running


@pytest.fixture(scope="module")
async def temporal(server: EmbeddedServer) -> temporalio.client.Client:
    """A client of that server."""
    return await temporalio.client.Client.connect(server.address, data_converter=DATA_CONVERTER)


class Fleet:
    """A house with workers of both releases; the old one is there first, and makes the store."""

    def __init__(self, house: House, place: Path, lines: Path, first: WorkerProcess) -> None:
        self.house = house
        self.place = place
        self.lines = lines
        self.first = first
        self.jobs: list[WorkflowHandle[Any, Any]] = []

    async def old(self) -> WorkerProcess:
        """A worker of the release before."""
        worker = worker_of(self.place, self.house.folder)
        self.house.processes.append(worker.process)
        await worker.polling()
        return worker

    async def new(self, **changes: str) -> WorkerProcess:
        """A worker of this release."""
        worker = self.house.spawn_worker(str(AGENTS), **changes)
        await worker.polling()
        return worker

    async def start(self, prompt: str, agent: str = "walker") -> WorkflowHandle[Any, Any]:
        """A job in a session of its own."""
        self.house.session = f"{self.house.settings.task_queue}-{len(self.jobs):02}"
        self.jobs.append(await self.house.start(agent, prompt))
        return self.jobs[-1]

    async def answer(self, job: WorkflowHandle[Any, Any]) -> None:
        """Answer the job's question."""
        self.house.session = job.id
        (request,) = await waiting(self.house)
        await self.house.client.answer(job.id, request["request_id"], "left")

    def walkers(self, *jobs: WorkflowHandle[Any, Any]) -> Counter[str]:
        """Which release ran how many steps, of these jobs and their delegates or of all."""
        ids = tuple(job.id for job in jobs or self.jobs)
        rows = [row.split() for row in read(self.lines)]
        return Counter(
            "old" if release == self.place.name else "new" for release, session, _ in rows if session.startswith(ids)
        )

    async def runs(self, job: WorkflowHandle[Any, Any]) -> list[temporalio.client.WorkflowHistory]:
        """The history of each run of the job."""

        async def closed() -> list[Any] | None:
            found = [run async for run in self.house.temporal.list_workflows(f'WorkflowId = "{job.id}"')]
            return found if found and all(run.close_time for run in found) else None

        runs = await eventually(closed)
        return [
            await self.house.temporal.get_workflow_handle(run.id, run_id=run.run_id).fetch_history() for run in runs
        ]


@pytest.fixture
async def fleet(
    monkeypatch: pytest.MonkeyPatch,
    server: EmbeddedServer,
    temporal: temporalio.client.Client,
    tmp_path: Path,
    place: Path,
    request: pytest.FixtureRequest,
) -> AsyncIterator[Fleet]:
    """A fleet whose store was made by the release before."""
    become_a_user(monkeypatch, server.address)
    lines = tmp_path / "lines"
    lines.touch()
    monkeypatch.setenv("EFFECTS_FILE", str(lines))
    queue = f"mixed-{tmp_path.name}"
    store_url = f"sqlite:///{tmp_path / 'store.db'}"
    async with ScriptedProvider(answers) as provider:
        settings = {"PERDURE_STORE_URL": store_url, "PERDURE_METRICS_ADDRESS": "", "PERDURE_TASK_QUEUE": queue}
        first = worker_of(place, tmp_path, OPENAI_BASE_URL=provider.url, OPENAI_API_BASE=provider.url, **settings)
        try:
            await first.polling()
            assert migrate.read_schema(store_url).applied == "0001"
            built = House.built(
                name=request.node.name,
                server=server,
                temporal=temporal,
                environment=monkeypatch,
                folder=tmp_path,
                task_queue=queue,
            )
            async with built as house:
                house.use(provider)
                yield Fleet(house, place, lines, first)
        finally:
            first.kill()


async def is_as_if_one_release_ran_it(fleet: Fleet, job: WorkflowHandle[Any, Any]) -> int:
    """No error, no task that failed, no gap in the log, and each history replays; how many runs there were.

    A task may have failed because the machine held its process up for the SDK's two seconds.
    """
    events = await fleet.house.store.events(job.id, limit=500)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert not [event.event.type for event in events if event.event.type.endswith("error")]
    histories = await fleet.runs(job)
    failures = [
        event.workflow_task_failed_event_attributes.failure
        for history in histories
        for event in history.events
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED
    ]
    assert not [failure for failure in failures if failure.application_failure_info.type != "_DeadlockError"]
    replayer = Replayer(
        workflows=[AgentTurn, NotifyWebhook, KnockAtSession],
        data_converter=DATA_CONVERTER,
        workflow_runner=UnsandboxedWorkflowRunner(),
    )
    for history in histories:
        await replayer.replay_workflow(history)
    return len(histories)


async def test_jobs_go_on_from_one_release_to_the_other_and_back(fleet: Fleet) -> None:
    """S-80: begun on the old release and ended on the new one, the other way round, and by both at once."""
    assert migrate.read_schema(fleet.house.settings.store_url).applied == KNOWN_REVISIONS[-1]
    upward = await fleet.start(LONG)
    await waiting(fleet.house)
    assert fleet.walkers() == {"old": 6}

    new = await fleet.new()
    both: list[WorkflowHandle[Any, Any]] = []
    while set(fleet.walkers(*both)) != {"old", "new"}:
        assert len(both) < MOST_ROUNDS * len(MIXED), fleet.walkers(*both)
        started = [(await fleet.start(prompt, agent), prompt) for agent, prompt in MIXED]
        for job, prompt in started:
            if prompt is LONG:
                await fleet.answer(job)
        for job, _ in started:
            result = await result_of(job)
            assert result["stop_reason"] == "finished", result
            both.append(job)

    assert await fleet.first.stop() == 0
    await fleet.answer(upward)
    assert (await result_of(upward))["steps"] == 14
    assert fleet.walkers(upward) == {"old": 6, "new": 6}

    downward = await fleet.start(LONG)
    await waiting(fleet.house)
    await fleet.old()
    assert await new.stop() == 0
    await fleet.answer(downward)
    assert (await result_of(downward))["steps"] == 14
    assert fleet.walkers(downward) == {"new": 6, "old": 6}

    for job in fleet.jobs:
        rotated = await is_as_if_one_release_ran_it(fleet, job)
        assert rotated > 1 or job in both
    assert len(read(fleet.lines)) == len(set(read(fleet.lines)))


async def test_a_caller_of_delegates_goes_back_if_their_ids_are_held_back(fleet: Fleet) -> None:
    """S-80: else the release before, which makes the ids in another way, could not replay it."""
    new = await fleet.new(PERDURE_HELD_PATCHES=DELEGATE_IDS)
    assert await fleet.first.stop() == 0
    job = await fleet.start("delegate 2, ask", "lead")
    await waiting(fleet.house)
    assert fleet.walkers(job) == {"new": 2}
    await fleet.old()
    assert await new.stop() == 0
    await fleet.answer(job)
    assert (await result_of(job))["stop_reason"] == "finished"
    assert await is_as_if_one_release_ran_it(fleet, job) == 1
