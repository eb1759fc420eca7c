"""``python -m tests.releases.record COMMIT``: keep what a release leaves behind, for the tests of the next one.

Of the commit: its wheel, a store that its worker has written, what its command line shows of each session, and the
histories of its turns. Run it when a release is made, and name its folder in ``tests/releases/__init__.py``.
"""

import asyncio
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import click
import pytest
import temporalio.client

from perdure.cli.server import EmbeddedServer, ServerOptions
from perdure.client.connect import DATA_CONVERTER
from perdure.contracts.names import AGENT_TURN, DEFAULT_TASK_QUEUE
from perdure.local_ports import find_free_port
from perdure.testing import ChatRequest, Reply, ScriptedProvider, faults
from tests.conftest import FAST
from tests.house import ROOT, become_a_user, eventually
from tests.releases import answers, environment_of, unpack, worker_of
from tests.replay.record import written

SESSIONS = {
    "walked": ("walker", "walk 3"),
    "asked": ("walker", "ask, pay"),
    "waiting": ("walker", "walk 1, ask"),
    "long": ("walker", "read 600"),
    "delegated": ("lead", "delegate 2"),
    "rotated": ("walker", "walk 12"),
    "failed": ("walker", "fail"),
}
"""Each session of the store: its agent, and the prompt that says what happens."""

ROTATES_AFTER = 60
IDENTITY = re.compile(r"\b[0-9]+@[\w.-]+")
"""Of a worker, in the names of sticky task queues."""

SHOWN = (("show", "--json"), ("export", "--format", "events"), ("export", "--format", "openai"))
"""The verbs whose output for each session is kept."""


def build_wheel(commit: str, folder: Path) -> None:
    """The wheel of a commit, whose bytes depend on nothing but the commit."""
    packed = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True).stdout
    with tempfile.TemporaryDirectory() as tree:
        with tarfile.open(fileobj=BytesIO(packed)) as archive:
            archive.extractall(tree, filter="data")
        build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
        subprocess.run(build, cwd=tree, check=True, capture_output=True)


async def write_store(place: Path, scratch: Path, server: EmbeddedServer) -> dict[str, str]:
    """Have the release's worker run the sessions; their histories by file name."""
    temporal = await temporalio.client.Client.connect(
        server.address, data_converter=DATA_CONVERTER, identity="recorder"
    )
    worker = worker_of(place, scratch)
    try:
        await worker.polling()
        for session, (agent, prompt) in SESSIONS.items():
            request = {"agent": agent, "prompt": prompt}
            await temporal.start_workflow(AGENT_TURN, request, id=session, task_queue=DEFAULT_TASK_QUEUE)
        for reply in ("answer", "approve"):
            await asked(temporal, "asked", "answer" if reply == "answer" else "approval")
            value = ["left"] if reply == "answer" else []
            await asyncio.to_thread(perdure, place, reply, "asked", *value, "--by", "ann")
        await asked(temporal, "waiting", "answer")
        for session in SESSIONS.keys() - {"waiting"}:
            await temporal.get_workflow_handle(session).result()
        return {
            f"{session}-{number}.json": IDENTITY.sub(
                "recorder", written(await temporal.get_workflow_handle(session, run_id=run).fetch_history())
            )
            for session in SESSIONS
            for number, run in enumerate(await runs(temporal, session), start=1)
        }
    finally:
        await worker.stop()


async def asked(temporal: temporalio.client.Client, session: str, needs: str) -> None:
    """Wait until the session waits for it."""

    async def there() -> bool:
        try:
            status: dict[str, Any] = await temporal.get_workflow_handle(session).query("status")
        except temporalio.client.WorkflowQueryFailedError:
            return False
        waits = status["state"] == "waiting_for_input"
        return waits and [request["needs"] for request in status["requests"]] == [needs]

    await eventually(there)


async def runs(temporal: temporalio.client.Client, session: str) -> list[str]:
    """The session's runs, the oldest first, once visibility knows the one that is the newest."""
    newest = (await temporal.get_workflow_handle(session).describe()).run_id

    async def known() -> list[str] | None:
        found = [run async for run in temporal.list_workflows(f'WorkflowId = "{session}"')]
        ordered = [run.run_id for run in sorted(found, key=lambda run: run.start_time)]
        return ordered if newest in ordered else None

    found: list[str] = await eventually(known)
    return found


def perdure(place: Path, *arguments: str, changes: Mapping[str, str] | None = None) -> str:
    """What the release's command line prints."""
    command = [sys.executable, "-P", "-m", "perdure.cli", *arguments]
    return subprocess.run(
        command, cwd=place, env=environment_of(place, changes), check=True, capture_output=True, text=True
    ).stdout


def shown_by(place: Path, sessions: list[str], store_url: str) -> dict[str, str]:
    """What the release's command line shows of the store, by verb and session."""
    changes = {"PERDURE_STORE_URL": store_url}
    shown = {
        " ".join((*verb[:1], session, *verb[1:])): perdure(place, verb[0], session, *verb[1:], changes=changes)
        for session in sessions
        for verb in SHOWN
    }
    return {"list --json": perdure(place, "list", "--json", changes=changes), **shown}


def answers_or_fails(request: ChatRequest) -> Reply:
    """What the model says; the prompt ``fail`` gets a refusal."""
    reply = answers(request)
    return reply.after(faults.bad_key()) if reply.text == "fail: done" else reply


async def record(commit: str) -> None:
    """Make the folder of the commit's release."""
    with tempfile.TemporaryDirectory() as scratch, pytest.MonkeyPatch.context() as environment:
        work = Path(scratch)
        build_wheel(commit, work)
        (wheel,) = work.glob("*.whl")
        folder = Path(__file__).parent / wheel.name.split("-")[1]
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        shutil.copy(wheel, folder)
        place = unpack(work)
        file = work / "store.db"
        limits = {**FAST, "limit.historyCount.suggestContinueAsNew": str(ROTATES_AFTER)}
        async with (
            EmbeddedServer(ServerOptions(port=find_free_port(), dynamic_config=limits)) as server,
            ScriptedProvider(answers_or_fails) as provider,
        ):
            become_a_user(environment, server.address)
            environment.setenv("PERDURE_STORE_URL", f"sqlite:///{file}")
            environment.setenv("PERDURE_METRICS_ADDRESS", "")
            environment.setenv("EFFECTS_FILE", os.devnull)
            environment.setenv("OPENAI_BASE_URL", provider.url)
            environment.setenv("OPENAI_API_BASE", provider.url)
            histories = await write_store(place, work, server)
            with sqlite3.connect(file) as connection:
                sessions = [row[0] for row in connection.execute("SELECT session FROM sessions ORDER BY session")]
                connection.execute("VACUUM")
                connection.execute("PRAGMA journal_mode=DELETE")
            connection.close()
            shown = shown_by(place, sessions, f"sqlite:///{file}")
        shutil.copy(file, folder / "store.db")
        (folder / "shown.json").write_text(json.dumps(shown, indent=1) + "\n", encoding="utf-8")
        (folder / "histories").mkdir()
        for name, text in histories.items():
            (folder / "histories" / name).write_text(text, encoding="utf-8")


@click.command()
@click.argument("commit")
def main(commit: str) -> None:
    """Keep what the release of COMMIT leaves behind."""
    asyncio.run(record(commit))


if __name__ == "__main__":
    main()
