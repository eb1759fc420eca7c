"""The kinds of faults, and which one a seed stands for."""

import json
from collections.abc import Mapping
from enum import StrEnum
from random import Random
from typing import Literal

from pydantic import BaseModel, ConfigDict


class Kind(StrEnum):
    """What happens at the boundary."""

    KILL = "kill"
    """kill -9 of the worker."""
    KILL_TWICE = "kill-twice"
    """kill -9 of the worker, and of the one that comes to the same boundary next."""
    TERM = "term"
    """SIGTERM: the worker drains."""
    TERM_NOW = "term-now"
    """SIGTERM without any grace: what runs is handed over."""
    FREEZE = "freeze"
    """The worker stops (SIGSTOP), another one takes its work over, and then it goes on as if nothing had been."""
    SERVER = "server"
    """kill -9 of the Temporal server, which is started again on its file."""
    POWER = "power"
    """kill -9 of the server and of every worker."""
    LOCK = "lock"
    """Another process holds the SQLite file for a second: shorter than a transaction waits."""
    LONG_LOCK = "long-lock"
    """Another process holds the SQLite file for seven seconds: longer than a transaction waits."""
    AWAY = "away"
    """PostgreSQL cuts every connection and takes none for three seconds."""


WEIGHTS: Mapping[Kind, int] = {
    Kind.KILL: 34,
    Kind.KILL_TWICE: 8,
    Kind.TERM: 10,
    Kind.TERM_NOW: 8,
    Kind.FREEZE: 10,
    Kind.SERVER: 8,
    Kind.POWER: 6,
    Kind.LOCK: 4,
    Kind.LONG_LOCK: 5,
    Kind.AWAY: 7,
}
"""How many of a hundred faults are of a kind."""

FROM_OUTSIDE = frozenset({Kind.SERVER, Kind.POWER, Kind.LOCK, Kind.LONG_LOCK, Kind.AWAY})
"""What the runner does while the worker waits at the boundary, so not where waiting itself would be a fault."""

NO_WAITING = frozenset({"committing", "before activation", "after activation"})
"""Labels whose thread may not wait: it holds the store's lock, or a workflow."""

NO_WORKER = frozenset({"at model", "in retry wait", "cancel sent", "message sent"})
"""Labels that the runner reaches: what strikes there strikes every worker, so there must be nobody left to freeze."""

Store = Literal["sqlite", "postgresql"]


class Point(BaseModel):
    """A boundary: the n-th time that a label is reached in a session."""

    model_config = ConfigDict(frozen=True)

    label: str
    n: int

    def __str__(self) -> str:
        return f"{self.label} #{self.n}"


class Fault(BaseModel):
    """One fault in one scenario.

    Attributes:
        workers: 1: the worker is alone, and a new one is started when it is gone. 2: another one is up already.
    """

    model_config = ConfigDict(frozen=True)

    scenario: str
    kind: Kind
    point: Point
    workers: int = 1
    store: Store = "sqlite"

    @property
    def last(self) -> int:
        """The fault strikes from ``point.n`` to here."""
        return self.point.n + (1 if self.kind is Kind.KILL_TWICE else 0)

    def __str__(self) -> str:
        return f"{self.scenario}:{self.kind}:{self.point.label}:{self.point.n}:{self.workers}:{self.store}"

    @classmethod
    def parse(cls, text: str) -> "Fault":
        """The fault that prints itself so."""
        scenario, kind, label, n, workers, store = text.split(":")
        found: dict[str, object] = {"scenario": scenario, "kind": kind, "workers": int(workers), "store": store}
        return cls.model_validate({**found, "point": {"label": label, "n": int(n)}})


def planned(seed: int, reached: Mapping[str, Mapping[str, int]]) -> Fault:
    """The fault of a seed, given how often each label is reached in a calm run of each scenario."""
    random = Random(seed)
    scenario = random.choice(sorted(reached))
    kind = random.choices(list(WEIGHTS), weights=list(WEIGHTS.values()))[0]
    label = random.choice(sorted(_labels(kind, reached[scenario])))
    # By a fraction and not by a choice: how often a workflow is activated differs a little from run to run.
    n = 1 + int(random.random() * reached[scenario][label])
    workers = 2 if kind is Kind.FREEZE else random.choice([1, 2])
    store: Store = "postgresql" if kind is Kind.AWAY or random.random() < 0.15 else "sqlite"
    if kind in {Kind.LOCK, Kind.LONG_LOCK}:
        store = "sqlite"
    return Fault(scenario=scenario, kind=kind, point=Point(label=label, n=n), workers=workers, store=store)


def everywhere(kind: Kind, reached: Mapping[str, Mapping[str, int]]) -> list[Fault]:
    """The fault at each boundary of each scenario."""
    return [
        Fault(
            scenario=scenario,
            kind=kind,
            point=Point(label=label, n=n),
            workers=2 if kind is Kind.FREEZE else 1,
            store="postgresql" if kind is Kind.AWAY else "sqlite",
        )
        for scenario, labels in reached.items()
        for label in sorted(_labels(kind, labels))
        for n in range(1, labels[label] + 1)
    ]


def _labels(kind: Kind, reached: Mapping[str, int]) -> set[str]:
    """Where a fault of this kind may strike."""
    excluded = NO_WAITING if kind in FROM_OUTSIDE else NO_WORKER if kind is Kind.FREEZE else frozenset[str]()
    return set(reached) - excluded


def dumps(fault: Fault | None) -> str:
    """The fault for a worker's environment; empty if there is none."""
    return "" if fault is None else json.dumps(fault.model_dump(mode="json"))
