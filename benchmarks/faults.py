"""The worst that a mistake in an agent's code costs: bodies run, requests paid, and the time until the turn goes on.

Each mistake of ``benchmarks.faulty`` runs in one turn, on a worker that is started again when it ends. The time
is that from the answer with the call, or from the start, to the request that tells the model, or to the turn's end.
Beside it stands how long a turn of another agent takes that begins in the middle of it, with a tool of each form.
"""

import argparse
import asyncio
import json
import re
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.faulty import MISTAKES, Mistake
from benchmarks.stage import Process, Stage, staged
from perdure.client import Turn
from perdure.contracts.turns import TurnResult
from perdure.contracts.values import JsonValue
from perdure.local_ports import find_free_port
from perdure.testing import ChatRequest, Reply, ScriptedProvider, call, say

PATIENCE_SECONDS = 420.0
PROBE_PERIOD_SECONDS, PROBE_SECONDS, PROBE_FAILURES = 10.0, 3.0, 6
"""Of the chart's liveness probe."""

Figures = dict[str, Any]


class Model:
    """The scripted model: a call of each tool, and then an answer; it notes who asked when."""

    def __init__(self) -> None:
        self.times: dict[str, list[float]] = {}
        self.read: dict[str, str] = {}

    def answer(self, request: ChatRequest) -> Reply:
        """The answer to a request of an agent, which its prompt names."""
        (name,) = [str(message["content"]) for message in request.messages if message["role"] == "user"][:1]
        self.times.setdefault(name, []).append(time.monotonic())
        results = [str(message["content"]) for message in request.messages if message["role"] == "tool"]
        if results:
            self.read[name] = results[0]
        tools: list[Any] = [tool["function"] for tool in request.tools]
        asked: list[tuple[str, JsonValue]] = [
            (tool["name"], {"count": 1} if tool["parameters"].get("properties") else {}) for tool in tools
        ]
        return call(*asked) if asked and not results else say('{"count": 3}')


class Kept:
    """A worker that is started again when it ends, or when its probe fails as often as the chart's may."""

    def __init__(self, stage: Stage) -> None:
        self.lost = 0
        self._stage = stage
        self._port = find_free_port()
        self._asked, self._failures = 0.0, 0
        self._worker: Process | None = None
        self._keeping: asyncio.Task[None] | None = None

    async def renew(self) -> None:
        """Have a new one."""
        self.end()
        await self._start()
        self._keeping = asyncio.create_task(self._keep())

    def end(self) -> None:
        """Have none."""
        if self._keeping is not None:
            self._keeping.cancel()
        if self._worker is not None:
            self._worker.kill()

    async def _start(self) -> None:
        address = f"127.0.0.1:{self._port}"
        self._worker = self._stage.start(
            "perdure.worker", "--agents", "benchmarks.faulty", PERDURE_METRICS_ADDRESS=address
        )
        self._failures = 0
        with suppress(RuntimeError):  # it was killed as it started
            await self._worker.says('"polling"')

    async def _keep(self) -> None:
        while self._worker is not None:
            if self._worker.process.poll() is not None:
                self.lost += 1
                await self._start()
            if time.monotonic() - self._asked >= PROBE_PERIOD_SECONDS:
                self._failures = 0 if await self._lives() else self._failures + 1
                self._asked = time.monotonic()
            if self._failures >= PROBE_FAILURES:
                self._worker.kill()
            await asyncio.sleep(0.1)

    async def _lives(self) -> bool:
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
                writer.write(b"GET /healthz HTTP/1.0\r\n\r\n")
                answer = await reader.readline()
                writer.close()
        except (OSError, TimeoutError):
            return False
        return b" 200 " in answer


async def ended(turn: Turn) -> tuple[TurnResult | None, float]:
    """The turn's result and when it came; None if it took too long."""
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            result = await turn.result()
    except TimeoutError:
        return None, time.monotonic()
    return result, time.monotonic()


async def measured(stage: Stage, worker: Kept, model: Model, mistake: Mistake, runs: Path) -> Figures:
    """The figures of one mistake."""
    name = mistake.agent.name
    lost, began = worker.lost, time.monotonic()
    ending = asyncio.create_task(ended(await stage.client.start(name, name, session=f"faults-{name}")))
    while not ending.done() and not count(runs, name):
        await asyncio.sleep(0.02)
    other, since = f"beside {name}", time.monotonic()
    beside = await stage.client.start("bystander", other, session=f"faults-beside-{name}")
    beside_ending = asyncio.create_task(ended(beside))
    result, at = await ending
    beside_result, beside_at = await beside_ending
    times = model.times.get(name, [])
    told = times[1] if mistake.agent.tools and len(times) > 1 else at
    return {
        "what": mistake.what,
        "runs": count(runs, name),
        "requests": len(times),
        "seconds": told - (times[0] if times else began),
        "end": "none" if result is None else result.stop_reason,
        "code": "" if result is None else result.reason_code or code_in(model.read.get(name, "")),
        "workers_lost": worker.lost - lost,
        "beside_s": beside_at - since,
        "beside": "none" if beside_result is None else beside_result.stop_reason,
        "beside_read": model.read.get(other, "")[:300],
        "read": model.read.get(name, "")[:300],
        "error": "" if result is None else (result.error or "")[:300],
    }


def count(runs: Path, name: str) -> int:
    """How often the agent's code has run."""
    return runs.read_text(encoding="utf-8").split().count(name)


def code_in(read: str) -> str:
    """The code of an error that the model read."""
    found = re.search(r"\b(?:tool|runtime)\.[a-z_]+", read)
    return found[0] if found else ""


async def measure(names: list[str]) -> list[Figures]:
    """The figures of these mistakes or of all."""
    figures: list[Figures] = []
    model = Model()
    with tempfile.TemporaryDirectory(prefix="perdure-faults-") as folder:
        runs = Path(folder) / "runs"
        runs.touch()
        async with staged(Path(folder)) as stage, ScriptedProvider(model.answer) as provider:
            stage.environment |= {"OPENAI_BASE_URL": provider.url, "OPENAI_API_BASE": provider.url}
            stage.environment |= {"FAULTY_RUNS": str(runs)}
            worker = Kept(stage)
            await worker.renew()
            for mistake in MISTAKES:
                if names and mistake.agent.name not in names:
                    continue
                figures.append(await measured(stage, worker, model, mistake, runs))
                sys.stdout.write(row(figures[-1]) + "\n")
                sys.stdout.flush()
                provider.requests.clear()
                if mistake.stays:
                    await worker.renew()
            worker.end()
    return figures


def row(figures: Figures) -> str:
    """A row of the table."""
    end = f"`{figures['end']}`" + (f", `{figures['code']}`" if figures["code"] else "")
    cells = (figures["what"], figures["runs"], figures["requests"], f"{figures['seconds']:.1f} s", end)
    return " | ".join(("", *map(str, cells), f"{figures['beside_s']:.1f} s", "")).strip()


def main() -> None:
    """Measure, print, and write the JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="agents of benchmarks.faulty; all by default")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    given = parser.parse_args()
    known = [mistake.agent.name for mistake in MISTAKES]
    if unknown := sorted({*given.names} - {*known}):
        parser.error(f"no agent {', '.join(unknown)}; there are {', '.join(known)}")
    sys.stdout.write("| mistake | runs | requests | time | the turn | a turn beside it |\n|---|---|---|---|---|---|\n")
    figures = asyncio.run(measure(given.names))
    if given.json:
        given.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
