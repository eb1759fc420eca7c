"""``python -m benchmarks.rooms``: how far a reader has to walk, counted from one turn that runs.

For the loop (``Story.run``), ``open_turn``, ``generate`` and a tool call: perdure's functions in the order of their
first call, as somebody reads who follows the code. A *room* is a module with such a function, a *return* is a change to
a room that was left before, a *name* is such a function. The turn is the second one of its session, has one tool call,
and runs in a worker of its own; what the turn before has imported and cached is not walked again.

*Values* are the rooms of ``perdure.contracts``, and *shared* are those that all three activities walk through: the way
to the store, the heartbeat. Both are read once, and not again for each flow; the *rest* is a flow's own.

The script needs ``benchmarks.stage`` and the names of the four functions only: it can be copied into an older commit.
"""

import argparse
import asyncio
import dis
import json
import os
import sys
import tempfile
import threading
from inspect import CO_COROUTINE
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks.agents import agent

ROOT = Path(__file__).resolve().parent.parent
LOG = "ROOMS_LOG"
"""The variable that makes a worker, which loads this module as its agents, write its walks to a file."""

FLOWS = {"run": "the loop", "open_turn": "open_turn", "generate": "generate", "call_tool": "a tool call"}
"""What a walk begins with, and what it is called."""

PLACES = {"run": "perdure.engine"} | dict.fromkeys(("open_turn", "generate", "call_tool"), "perdure.activities")
"""The package in which the function stands that a walk begins with."""

PRODUCT = ("perdure", "activities", "workflows", "worker")
VALUES = "perdure.contracts."

__all__ = ["agent"]


def module_of(path: str) -> str | None:
    """The module of perdure that a file is, however the file was reached; None of any other file."""
    file = Path(path)
    if not file.is_relative_to(ROOT):
        return None
    parts = file.relative_to(ROOT).with_suffix("").parts
    parts = parts[1:] if parts[0] == "perdure" and parts[1:2] and parts[1] in PRODUCT else parts
    if parts[0] not in PRODUCT:
        return None
    return ".".join(parts if parts[0] == "perdure" else ("perdure", *parts)).removesuffix(".__init__")


class Walk:
    """Writes the functions that each flow calls, in the order of their first call."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._modules: dict[str, str | None] = {}
        self._open: dict[str, tuple[FrameType, dict[tuple[str, str], None]]] = {}
        self._pool = ""

    def __call__(self, frame: FrameType, event: str, _argument: Any) -> None:
        """Take note of a call or of the end of a flow, as a profiler."""
        if event not in {"call", "return"}:
            return
        path = frame.f_code.co_filename
        if path not in self._modules:
            self._modules[path] = module_of(path)
        module = self._modules[path]
        if module is None:
            return
        name = frame.f_code.co_name
        is_entry = name in FLOWS and module.startswith(PLACES[name]) and bool(frame.f_code.co_flags & CO_COROUTINE)
        if event == "call":
            self._called(frame, module, name, is_entry=is_entry)
        elif name in self._open and self._open[name][0] is frame and _is_over(frame):
            _, walked = self._open.pop(name)
            with self._log.open("a") as file:
                file.write(json.dumps([name, list(walked)]) + "\n")

    def _called(self, frame: FrameType, module: str, name: str, *, is_entry: bool) -> None:
        pool = threading.current_thread().name.rstrip("0123456789")
        if is_entry and name not in self._open:
            self._open[name] = (frame, {})
            if name == "run":
                self._pool = pool
        if name.startswith("<") or not self._open:
            return
        in_workflow = pool == self._pool
        for flow, (_, walked) in self._open.items():
            if (flow == "run") is in_workflow:
                walked.setdefault((module, frame.f_code.co_qualname))


def _is_over(frame: FrameType) -> bool:
    """Whether a coroutine returns, and does not only wait."""
    return dis.opname[frame.f_code.co_code[frame.f_lasti]].startswith("RETURN")


def rooms_of(walked: list[tuple[str, str]]) -> set[str]:
    """The modules of a walk."""
    return {module for module, _ in walked}


def returns_of(walked: list[tuple[str, str]]) -> int:
    """How often a walk comes back to a module that it has left."""
    seen: set[str] = set()
    here, returns = "", 0
    for module, _ in walked:
        if module != here:
            returns += module in seen
            seen.add(module)
            here = module
    return returns


async def walks() -> dict[str, list[tuple[str, str]]]:
    """The walks of the second turn of a session."""
    from benchmarks.bench import turn  # noqa: PLC0415 - a worker that loads this module needs no benchmark
    from benchmarks.stage import staged  # noqa: PLC0415
    from perdure.testing import ScriptedProvider, call, say  # noqa: PLC0415

    def answer(request: Any) -> Any:
        read = request.messages[-1]["role"] == "tool"
        return say("done") if read else call(("read_page", {"page": 0}))

    with tempfile.TemporaryDirectory(prefix="perdure-rooms-") as folder:
        log = Path(folder) / "walks.jsonl"
        async with staged(Path(folder)) as stage, ScriptedProvider(answer) as provider:
            stage.environment |= {"OPENAI_BASE_URL": provider.url, "OPENAI_API_BASE": provider.url}
            worker = stage.start("perdure.worker", "--agents", "benchmarks.rooms", **{LOG: str(log)})
            await worker.says('"polling"')
            await turn(stage, "rooms", "Read.")
            log.unlink()
            await turn(stage, "rooms", "Read.")
            found: dict[str, list[tuple[str, str]]] = {}
            for line in log.read_text().splitlines():
                flow, walked = json.loads(line)
                found.setdefault(flow, [(module, name) for module, name in walked])
            return found


def table(found: dict[str, list[tuple[str, str]]]) -> str:
    """The figures of every flow; ``values`` and ``shared`` rooms are counted in ``rooms`` too."""
    activities = [rooms_of(found[flow]) for flow in FLOWS if flow != "run"]
    shared = {room for room in set[str].intersection(*activities) if not room.startswith(VALUES)}
    lines = ["flow          rooms  values  shared   rest  returns  names"]
    for flow, title in FLOWS.items():
        rooms = rooms_of(found[flow])
        values = sum(room.startswith(VALUES) for room in rooms)
        common = len(rooms & shared)
        rest = len(rooms) - values - common
        figures = f"{len(rooms):6} {values:7} {common:7} {rest:6} {returns_of(found[flow]):8} {len(found[flow]):6}"
        lines.append(f"{title:12} {figures}")
    lines += ["", "shared by the three activities: " + ", ".join(sorted(shared))]
    return "\n".join(lines)


def main() -> None:
    """Count and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--walk", choices=FLOWS, nargs="+", default=[], help="print the functions of these, in order")
    given = parser.parse_args()
    found = asyncio.run(walks())
    sys.stdout.write(table(found) + "\n")
    for flow in given.walk:
        sys.stdout.write(f"\n{FLOWS[flow]}\n")
        for module, name in found[flow]:
            sys.stdout.write(f"{module}  {name}\n")


if LOG in os.environ:
    walk = Walk(Path(os.environ[LOG]))
    threading.setprofile(walk)
    sys.setprofile(walk)

if __name__ == "__main__":
    main()
