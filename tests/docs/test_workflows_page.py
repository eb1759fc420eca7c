"""The page on agents in users' workflows: its Python and its TypeScript run as they stand there (S-82)."""

import asyncio
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import temporalio.client
from temporalio.api.history.v1 import History
from temporalio.client import WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import CancelledError
from temporalio.worker import Replayer, Worker

from perdure import Agent
from perdure.testing import ChatRequest, Reply, ScriptedProvider, call, faults, say
from tests import npm_servers
from tests.house import WAIT_SECONDS, House, eventually
from tests.workflow.bodies import Body, happened

pytestmark = pytest.mark.deep

PAGE = (Path(__file__).parents[2] / "docs" / "workflows.md").read_text(encoding="utf-8")
(PYTHON,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
(TYPESCRIPT,) = re.findall(r"```typescript\n(.*?)```", PAGE, re.DOTALL)

WRITER = Agent(name="writer", model="openai/scripted")

TOPICS = ["rivers", "seas", "lakes"]
REPORT = "\n\n".join(f"Write about {topic}. Done." for topic in TOPICS)


def write(request: ChatRequest) -> Reply:
    return say(f"{request.messages[-1]['content']} Done.")


async def ended(handle: WorkflowHandle[Any, Any]) -> Any:
    async with asyncio.timeout(WAIT_SECONDS):
        return await handle.result()


def report_of(folder: Path, queue: str) -> ModuleType:
    """The page's module, which a sandbox can import."""
    (folder / "report_of_the_page.py").write_text(
        PYTHON.replace("shared=shared)", f"shared=shared, task_queue={queue!r})"), encoding="utf-8"
    )
    sys.path.insert(0, str(folder))
    import report_of_the_page  # type: ignore[import-not-found] # noqa: PLC0415

    module: ModuleType = report_of_the_page
    return module


async def test_the_python_of_the_page_runs_and_its_history_replays(house: House, tmp_path: Path) -> None:
    """S-82."""
    theirs = await temporalio.client.Client.connect(house.server.address)
    module = report_of(tmp_path, house.settings.task_queue)
    try:
        async with (
            ScriptedProvider(write) as provider,
            house.worker(WRITER),
            Worker(theirs, task_queue="users", workflows=[module.Report]),
        ):
            house.use(provider)
            handle = await theirs.start_workflow("Report", TOPICS, id=f"user-{house.session}", task_queue="users")
            assert await ended(handle) == REPORT
        await Replayer(workflows=[module.Report]).replay_workflow(await handle.fetch_history())
    finally:
        sys.path.remove(str(tmp_path))


@asynccontextmanager
async def node_worker(house: House, folder: Path, queue: str) -> AsyncIterator[subprocess.Popen[bytes]]:
    process = await asyncio.to_thread(
        subprocess.Popen, ["node", "typescript_worker.cjs", "run", house.server.address, queue], cwd=folder
    )
    try:
        yield process
    finally:
        process.kill()
        await asyncio.to_thread(process.wait)


@pytest.mark.judged("Temporal child workflows", "@temporalio/worker 1.24.0 (npm)")
@npm_servers.workers_installed
async def test_the_typescript_of_the_page_runs_is_killed_is_cancelled_and_replays(house: House, tmp_path: Path) -> None:
    """S-82: its worker is killed while three agents work; a second run is cancelled, and its turn is first.

    That turn has gone on in a fresh history with a message that waited.
    """
    queue = f"node-{house.settings.task_queue}"
    text = TYPESCRIPT.replace('taskQueue: "perdure"', f'taskQueue: "{house.settings.task_queue}"')
    (tmp_path / "report.ts").write_text(text, encoding="utf-8")
    shutil.copy(Path(__file__).parent / "typescript_worker.cjs", tmp_path)
    (tmp_path / "node_modules").symlink_to(npm_servers.FOLDER / "node_modules")
    theirs = await temporalio.client.Client.connect(house.server.address)

    body = Body()
    writer = WRITER.clone(tools=[body.held()])

    def answers(request: ChatRequest) -> Reply:
        last = request.messages[-1]
        if last["role"] == "user" and "holding" in str(last["content"]):
            return call(("held", {}))
        late = faults.hang() if "never" in str(last) else faults.status(503)
        return write(request).after(late)

    async with ScriptedProvider(answers) as provider, house.worker(writer):
        house.use(provider)
        handle = await theirs.start_workflow("report", args=[TOPICS], id=f"user-{house.session}", task_queue=queue)
        async with node_worker(house, tmp_path, queue) as killed:
            await provider.wait_for_requests(3)
            killed.kill()
        async with node_worker(house, tmp_path, queue):
            assert await ended(handle) == REPORT
            second = await theirs.start_workflow("report", args=[["holding"]], id="second", task_queue=queue)
            await happened(body.started)
            (child,) = [
                event.child_workflow_execution_started_event_attributes.workflow_execution.workflow_id
                for event in (await second.fetch_history()).events
                if event.HasField("child_workflow_execution_started_event_attributes")
            ]
            await house.client.send(child, "never")
            body.released.set()

            async def is_asked() -> bool:
                return "never" in str(provider.requests[-1].request.messages[-1])

            await eventually(is_asked)
            await second.cancel()
            with pytest.raises(WorkflowFailureError) as failed:
                await ended(second)
            assert isinstance(failed.value.cause, CancelledError)
        ends = [turn.result.stop_reason if turn.result else None for turn in await house.store.turns(child)]
        assert ends == ["finished", "cancelled"]
    history = tmp_path / "history"
    history.write_bytes(History(events=(await handle.fetch_history()).events).SerializeToString())
    command = ["node", "typescript_worker.cjs", "replay", str(history)]
    replayed = await asyncio.to_thread(subprocess.run, command, cwd=tmp_path, capture_output=True)
    assert replayed.returncode == 0, replayed.stderr.decode()
