"""All that is left of a job anywhere, byte for byte, by the place where it stands."""

import asyncio
import re
import sqlite3
import subprocess
import sys
import urllib.request
from collections.abc import Iterable, Mapping, Sequence

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionRequest

from tests.house import House

VIEWS = (
    ("show", "{}"),
    ("show", "{}", "--json"),
    ("follow", "{}"),
    *(("export", "{}", "--format", form) for form in ("openai", "jsonl", "events")),
)


async def temporal(house: House, session: str) -> dict[str, bytes]:
    """The history with stack traces, and what describing says: pending activities, details, attributes, memo."""
    handle = house.temporal.get_workflow_handle(session)
    history = [event.SerializeToString() for event in (await handle.fetch_history()).events]
    request = DescribeWorkflowExecutionRequest(
        namespace=house.temporal.namespace, execution=WorkflowExecution(workflow_id=session)
    )
    described = await house.temporal.workflow_service.describe_workflow_execution(request, retry=True)
    return {"history": b"\n".join(history), "description": described.SerializeToString()}


def rows(house: House) -> dict[str, bytes]:
    """Each table of the store, as SQL gives it."""
    found: dict[str, bytes] = {}
    with sqlite3.connect(house.folder / "store.db") as connection:
        for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            found[f"table {table}"] = repr(connection.execute(f'SELECT * FROM "{table}"').fetchall()).encode()
    connection.close()
    return found


def files(house: House) -> dict[str, bytes]:
    """Every file of the store and every log, in whatever folder: also free pages, and what waits for its place."""
    paths = [path for path in house.folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(house.folder)): path.read_bytes() for path in paths}


async def views(sessions: Iterable[str]) -> dict[str, bytes]:
    """What the command line prints of ended turns; all verbs at once, as each takes a second to start."""
    asked = [[word.format(session) for word in view] for session in sessions for view in VIEWS]
    return dict(zip(map(" ".join, asked), await asyncio.gather(*map(_printed, asked)), strict=True))


async def _printed(args: Sequence[str]) -> bytes:
    command = [sys.executable, "-m", "perdure.cli", *args]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, check=False)
    assert done.stdout, done.stderr
    return done.stdout + done.stderr


async def page(address: str) -> dict[str, bytes]:
    """The metrics."""

    def read() -> bytes:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as reply:
            return bytes(reply.read())

    return {"metrics": await asyncio.to_thread(read)}


def found(secrets: Mapping[str, str], places: Mapping[str, bytes]) -> list[tuple[str, str]]:
    """Which secret stands where."""
    return [
        (name, place)
        for place, content in places.items()
        for name, secret in secrets.items()
        if _stands_in(secret, content)
    ]


def _stands_in(secret: str, content: bytes) -> bool:
    """Whether the text holds the secret; of digits as a number of its own, since metrics and times have any digits."""
    if not secret.isdecimal():
        return secret.encode() in content
    return re.search(rb"(?<![\d.])%b(?![\d.])" % secret.encode(), content) is not None
