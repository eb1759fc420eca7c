"""What the tests with workers of their own share: agents whose tools leave lines in the world outside."""

import asyncio
from pathlib import Path
from typing import Any

from perdure.testing import Script, ScriptedProvider, call, say
from tests.house import WAIT_SECONDS, House, WorkerProcess, eventually

AGENTS = "tests.workflow.agents_for_kill"

PAY = Script(replies=(call(("pay", {})), say("done")))
PUT = Script(replies=(call(("put", {})), say("done")))


def lines_of(house: House) -> Path:
    """The file in which each run of a tool's body leaves a line; workers started from now on know it."""
    file = house.folder / "lines"
    file.touch()
    house.environment.setenv("EFFECTS_FILE", str(file))
    return file


def read(file: Path) -> list[str]:
    """The lines so far."""
    return file.read_text(encoding="utf-8").splitlines()


async def has_lines(file: Path, count: int) -> None:
    """Wait until so many lines are there."""

    async def there() -> bool:
        return len(read(file)) >= count

    await eventually(there)


async def worker(house: House, **environment: str) -> WorkerProcess:
    """A worker that polls."""
    spawned = house.spawn_worker(AGENTS, **environment)
    await spawned.polling()
    return spawned


async def result_of(handle: Any) -> dict[str, Any]:
    """The workflow's result, however long the lost worker takes to be noticed."""
    async with asyncio.timeout(WAIT_SECONDS):
        result: dict[str, Any] = await handle.result()
    return result


def read_by_the_model(provider: ScriptedProvider) -> list[Any]:
    """The tool results in the last request."""
    return [m["content"] for m in provider.requests[-1].request.messages if m["role"] == "tool"]
