"""A real worker, forked from a process that has paid for the imports, with a door at each boundary of its work.

It is the worker an operator starts (``perdure.worker.__main__``); only what stands at the doors is ours.
"""

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, event
from temporalio.worker import WorkflowInstance, WorkflowInstanceDetails, WorkflowRunner

from perdure.activities.models import attempt
from perdure.worker import app
from perdure.worker.__main__ import main
from tests.chaos import agents
from tests.chaos.counted import write_down
from tests.chaos.faults import FROM_OUTSIDE, Fault, Kind
from tests.chaos.trace import Trace
from tests.forked import as_a_child
from tests.workflow.worker_that_dies import at_each_write

GO_ON = "go-on"
"""The file that lets a worker go on which waits for the runner to carry out its fault."""

PAUSE = 0.01

HELD = 60.0
"""Seconds, at most, that a worker waits at a boundary."""

attempts_module: Any = attempt
app_module: Any = app

OF_THE_DEVELOPER = ("PERDURE_", "TEMPORAL_", "OPENAI_", "ANTHROPIC_")

SIGNALS = {
    Kind.KILL: signal.SIGKILL,
    Kind.KILL_TWICE: signal.SIGKILL,
    Kind.TERM: signal.SIGTERM,
    Kind.TERM_NOW: signal.SIGTERM,
    Kind.FREEZE: signal.SIGSTOP,
}
"""What a worker does to itself; every other fault is the runner's."""


class Doors:
    """Where the trace is written, and the fault let in."""

    def __init__(self, folder: Path, fault: Fault | None) -> None:
        self._trace = Trace(folder, fault)
        self._go_on = folder / GO_ON
        self._working = False

    async def reached(self, label: str, call_id: str | None = None) -> None:
        """On the event loop, in an activity."""
        if self._strikes(label, call_id):
            deadline = time.monotonic() + HELD
            while not self._go_on.exists() and time.monotonic() < deadline:
                await asyncio.sleep(PAUSE)

    def reached_in_a_body(self, label: str, call_id: str) -> None:
        """On a thread that may wait."""
        if self._strikes(label, call_id):
            deadline = time.monotonic() + HELD
            while not self._go_on.exists() and time.monotonic() < deadline:
                time.sleep(PAUSE)

    def passed(self, label: str) -> None:
        """On a thread that may not wait."""
        self._strikes(label, None)

    def _strikes(self, label: str, call_id: str | None) -> bool:
        """Carry out the fault if it strikes here; whether the boundary is held until the runner or a cancel ends it.

        A worker that may not finish what runs is held until the call is cancelled, so that it is handed over here.
        """
        fault, self._working = self._trace.fault, True
        if not self._trace.reached(label, call_id or "") or fault is None:
            return False
        if fault.kind in SIGNALS:
            os.kill(os.getpid(), SIGNALS[fault.kind])
        return fault.kind in FROM_OUTSIDE or fault.kind is Kind.TERM_NOW

    def open(self) -> None:
        """Put a door at each boundary of this process."""
        at_each_write(self.reached)
        agents.at_boundary.append(self.reached_in_a_body)
        event.listen(Engine, "commit", self._committing)
        complete, make_runner = attempts_module.complete, app_module.UnsandboxedWorkflowRunner

        async def told(*arguments: Any, **named: Any) -> Any:
            await self.reached("before model")
            answer = await complete(*arguments, **named)
            await self.reached("after model")
            return answer

        attempts_module.complete = told
        app_module.UnsandboxedWorkflowRunner = lambda: _Doored(make_runner(), self)

    def _committing(self, _: Connection) -> None:
        """In a transaction that has done its work, as only one that writes is committed; a start is no turn."""
        if self._working:
            self.passed("committing")


class _Doored(WorkflowRunner):
    """A runner with a door before and after each activation."""

    def __init__(self, inner: WorkflowRunner, doors: Doors) -> None:
        self._inner = inner
        self._doors = doors

    def prepare_workflow(self, defn: Any) -> None:
        self._inner.prepare_workflow(defn)

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        instance = self._inner.create_instance(det)
        activate = instance.activate

        def told(act: Any) -> Any:
            if any(job.HasField("remove_from_cache") for job in act.jobs):
                return activate(act)
            self._doors.passed("before activation")
            completion = activate(act)
            self._doors.passed("after activation")
            return completion

        instance.activate = told  # type: ignore[method-assign]
        return instance


def run(environment: dict[str, str], fault: str, log: str) -> None:
    """The main function of a forked worker."""
    as_a_child(log)
    for name in [name for name in os.environ if name.startswith(OF_THE_DEVELOPER)]:
        del os.environ[name]
    os.environ.update(environment)
    write_down(Path(environment["CHAOS_FOLDER"]))
    Doors(Path(environment["CHAOS_FOLDER"]), Fault.model_validate_json(fault) if fault else None).open()
    try:
        main(["--agents", agents.__name__], standalone_mode=False)
    except SystemExit as ended:
        os._exit(ended.code if isinstance(ended.code, int) else 1)  # as the worker's own last line does it
