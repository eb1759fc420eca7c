"""Run scenarios calmly and under faults, several at once, and hold the outcomes against each other."""

import asyncio
import shutil
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from multiprocessing.forkserver import ensure_running
from pathlib import Path

from temporalio.worker import Replayer, UnsandboxedWorkflowRunner

from perdure.cli.server import EmbeddedServer, ServerOptions
from perdure.client.connect import DATA_CONVERTER
from perdure.local_ports import find_free_port
from perdure.store import Store
from perdure.workflows.agent_turn import AgentTurn
from tests.chaos.compare import differences
from tests.chaos.databases import Databases
from tests.chaos.faults import Fault, Kind, planned
from tests.chaos.outcome import Outcome
from tests.chaos.scenarios import SCENARIOS
from tests.chaos.stage import Stage
from tests.conftest import FAST

ROTATES_AFTER = 60
"""Events of a history after which the servers of chaos runs suggest a fresh one."""

AT_ONCE = 8
"""Sessions that run at the same time."""

EMPTY = "empty.db"
"""A store without any session, to begin with: setting one up costs more than most sessions."""

LIMITS = {**FAST, "limit.historyCount.suggestContinueAsNew": str(ROTATES_AFTER)}


@dataclass(frozen=True)
class Verdict:
    """What came of one fault.

    Attributes:
        name: What reproduces it: its seed, or the fault itself.
        struck: Whether the session came to the fault's point.
        broken: The rules that were broken; empty if all is well.
    """

    name: str
    fault: Fault
    struck: bool
    broken: list[str]
    seconds: float
    unknown_effects: int = 0
    repeated_requests: int = 0

    def line(self) -> str:
        """For the terminal."""
        state = "DIFFERS" if self.broken else "same" if self.struck else "missed"
        where = f"{self.fault.scenario}: {self.fault.kind} at '{self.fault.point}'"
        with_what = f"{self.fault.workers} worker{'s' * (self.fault.workers > 1)}, {self.fault.store}"
        return f"{self.name:>12}  {state:<8}{self.seconds:5.1f} s  {where}, {with_what}"


@dataclass
class Chaos:
    """A server for calm and chaos, databases, and what the calm runs came to."""

    folder: Path
    server: EmbeddedServer
    databases: Databases
    calm: dict[str, Outcome] = field(default_factory=dict)
    _slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))
    _sessions: int = 0

    @classmethod
    @asynccontextmanager
    async def set_up(cls, folder: Path) -> AsyncIterator["Chaos"]:
        """With its server running."""
        ensure_running()  # loads what the workers need meanwhile
        async with await Store.open(f"sqlite:///{folder / EMPTY}", upgrade=True):
            pass
        with Databases() as databases:
            async with EmbeddedServer(ServerOptions(port=find_free_port(), dynamic_config=LIMITS)) as server:
                yield cls(folder, server, databases)

    async def calm_down(self, names: Iterable[str]) -> None:
        """Play scenarios without any fault."""
        wanted = sorted(set(names) - set(self.calm))
        outcomes = await asyncio.gather(*(self._calm(name) for name in wanted))
        self.calm |= dict(zip(wanted, outcomes, strict=True))

    def reached(self) -> dict[str, Counter[str]]:
        """How often each boundary is reached in the calm runs."""
        return {name: Counter(line.label for line in outcome.trace) for name, outcome in self.calm.items()}

    def fault_of(self, seed: int) -> Fault:
        """The fault that a seed stands for; every scenario must have been played."""
        return planned(seed, self.reached())

    async def _calm(self, name: str) -> Outcome:
        async with self._slots:
            stage = self._stage(name, None)
            async with stage.set_up(self.server, self.databases):
                return await stage.play()

    async def strike(self, name: str, fault: Fault) -> Verdict:
        """Play the fault's scenario with the fault, and compare."""
        async with self._slots:
            began = time.monotonic()
            stage = self._stage(fault.scenario, fault)
            broken: list[str] = []
            found = None
            async with self._server_for(fault, stage.folder) as server, stage.set_up(server, self.databases):
                try:
                    found = await stage.play()
                    broken = [
                        *differences(self.calm[fault.scenario], found, fault),
                        *stage.deserters(),
                        *await _replayed(stage),
                    ]
                except TimeoutError:
                    broken = [f"lost: the session did not end; see {stage.folder}"]
                struck = bool(stage.trace.struck())
        if not broken:
            shutil.rmtree(stage.folder)
        seconds = time.monotonic() - began
        unknown = repeated = 0
        if found is not None:
            unknown = sum(
                (message.get("error") or {}).get("code") == "tool.effect_unknown" for message in found.transcript
            )
            repeated = len(found.asked) - len(self.calm[fault.scenario].asked)
        return Verdict(name, fault, struck, broken, seconds, unknown, max(0, repeated))

    async def storm(
        self, named: Mapping[str, Fault], tell: Callable[[Verdict], None] = lambda _: None
    ) -> list[Verdict]:
        """Strike with each fault, several at once."""

        async def strike(name: str, fault: Fault) -> Verdict:
            verdict = await self.strike(name, fault)
            tell(verdict)
            return verdict

        return await asyncio.gather(*(strike(name, fault) for name, fault in named.items()))

    def _stage(self, name: str, fault: Fault | None) -> Stage:
        self._sessions += 1
        session = f"chaos-{self._sessions:04}-{name}"
        folder = self.folder / session
        folder.mkdir()
        shutil.copy(self.folder / EMPTY, folder / "store.db")
        return Stage(SCENARIOS[name], fault, session, folder)

    @asynccontextmanager
    async def _server_for(self, fault: Fault, folder: Path) -> AsyncIterator[EmbeddedServer]:
        if fault.kind not in {Kind.SERVER, Kind.POWER}:
            yield self.server
            return
        options = ServerOptions(port=find_free_port(), dynamic_config=LIMITS, db=folder / "temporal.db")
        async with EmbeddedServer(options) as own:
            yield own


async def _replayed(stage: Stage) -> list[str]:
    """Replay every history of the session against the code as it is."""
    replayer = Replayer(
        workflows=[AgentTurn], data_converter=DATA_CONVERTER, workflow_runner=UnsandboxedWorkflowRunner()
    )
    results = [
        await replayer.replay_workflow(history, raise_on_replay_failure=False) for history in await stage.histories()
    ]
    return [f"a history does not replay: {result.replay_failure}" for result in results if result.replay_failure]


def summary(verdicts: list[Verdict], seconds: float) -> str:
    """A table by kind of fault, and what all came to."""
    lines = [f"{'fault':<12}{'runs':>6}{'struck':>8}{'unknown':>9}{'asked again':>13}{'differ':>8}"]
    for kind in Kind:
        mine = [verdict for verdict in verdicts if verdict.fault.kind is kind]
        if mine:
            lines.append(
                f"{kind:<12}{len(mine):>6}{sum(verdict.struck for verdict in mine):>8}"
                f"{sum(verdict.unknown_effects for verdict in mine):>9}"
                f"{sum(verdict.repeated_requests for verdict in mine):>13}"
                f"{sum(bool(verdict.broken) for verdict in mine):>8}"
            )
    boundaries = len({(verdict.fault.scenario, verdict.fault.point) for verdict in verdicts if verdict.struck})
    broken = sum(bool(verdict.broken) for verdict in verdicts)
    lines.append(
        f"{len(verdicts)} faults at {boundaries} boundaries in {seconds:.0f} s: "
        + (f"{broken} DIFFER from the calm run" if broken else "every outcome is that of the calm run")
    )
    return "\n".join(lines)
