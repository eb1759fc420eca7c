"""What is left of a session when it has ended, without what may differ between two runs: times, ids, hashes."""

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perdure.contracts.messages import ToolMessage
from perdure.store import Store
from perdure.store.records import StepRecord
from tests.chaos.agents import EFFECTS
from tests.chaos.counted import Sums, read_counted, read_stored
from tests.chaos.trace import Line

Json = Any

TIMES = ("seq", "at", "session", "seconds", "wait_seconds", "failed_at")
"""Fields of an event that say when, or that are checked by themselves."""


@dataclass(frozen=True)
class Asked:
    """A request to the model.

    Attributes:
        index: The number of the answer that it asks for, counted from 0 over all turns.
        at: When it arrived.
    """

    index: int
    at: float


APART = frozenset({"generation_retry", "tool_recovery"})
"""Events that a fault adds."""


@dataclass(frozen=True)
class Outcome:
    """A session that has ended.

    Attributes:
        results: Of each turn: the stop record, with usage, cost and steps.
        result: Of the last workflow run, as Temporal has it.
        events: The log, by turn, step and call; retries and recoveries stand apart.
        recoveries: Of each call that a lost attempt held: its id and what was decided.
        retries: The number of the try in each recorded retry, in order.
        answered: When each of the model's answers was stored.
        effects: How often each tool's body ran, by tool and idempotency key.
        numbers: Sequence numbers of the log.
        kinds: Types of the events of each turn, in order.
        steps: How many steps the store has, also unreachable ones.
        trace: The boundaries that were reached, with the places of their calls.
        counted: The counters of all workers, summed up.
        stored: The same sums by the store.
    """

    results: list[Json]
    result: Json
    transcript: list[Json]
    events: list[Json]
    recoveries: list[tuple[str, str]]
    retries: list[int]
    answered: list[float]
    asked: tuple[Asked, ...]
    effects: Counter[str]
    numbers: list[int]
    kinds: dict[int, list[str]]
    steps: int
    trace: list[Line]
    counted: Sums = field(default_factory=dict)
    stored: Sums = field(default_factory=dict)


@dataclass(frozen=True)
class Heard:
    """What others than the store know of a session."""

    result: Json
    asked: tuple[Asked, ...]
    trace: list[Line]


async def outcome_of(store: Store, session: str, folder: Path, heard: Heard) -> Outcome:
    """Read everything there is of a session."""
    envelopes = await store.events(session, limit=10_000)
    steps = await store.steps(session)
    neutral = Neutral(session, steps)
    lines = [envelope.line() for envelope in envelopes]
    kinds: dict[int, list[str]] = {}
    for envelope in envelopes:
        kinds.setdefault(envelope.turn, []).append(envelope.event.type)
    effects = (folder / EFFECTS).read_text(encoding="utf-8").splitlines() if (folder / EFFECTS).exists() else []
    results = [turn.result for turn in await store.turns(session)]
    transcript = await store.transcript(session)
    return Outcome(
        results=[neutral(result.model_dump(mode="json") if result else None) for result in results],
        result=neutral(heard.result),
        transcript=[neutral(message.model_dump(mode="json")) for message in transcript],
        events=sorted((neutral(_timeless(line)) for line in lines if line["type"] not in APART), key=_place),
        recoveries=[
            (neutral(line["call_id"]), str(line["decision"])) for line in lines if line["type"] == "tool_recovery"
        ],
        retries=[int(str(line["attempt"])) for line in lines if line["type"] == "generation_retry"],
        answered=[envelope.at.timestamp() for envelope in envelopes if envelope.event.type == "generation_end"],
        asked=heard.asked,
        effects=Counter(neutral(line) for line in effects),
        numbers=[envelope.seq for envelope in envelopes],
        kinds=kinds,
        steps=len(steps),
        trace=[line.model_copy(update={"call_id": neutral(line.call_id)}) for line in heard.trace],
        counted=read_counted(folder),
        stored=read_stored(
            envelopes,
            [result for result in results if result is not None],
            [message for message in transcript if isinstance(message, ToolMessage)],
        ),
    )


class Neutral:
    """Puts the place of a step or a call where its hash stands, and a word for the session."""

    def __init__(self, session: str, steps: tuple[StepRecord, ...]) -> None:
        self._words = {session: "SESSION"}
        for step in steps:
            place = f"{step.turn}.{step.step}"
            self._words |= {step.id: f"<step {place}>", f"call_{step.id[:16]}": f"<call {place}>"}
        self._pattern = re.compile("|".join(map(re.escape, self._words)))

    def __call__(self, value: Json) -> Json:
        return json.loads(self._pattern.sub(lambda found: self._words[found[0]], json.dumps(value)))


def _timeless(line: dict[str, Json]) -> dict[str, Json]:
    return {name: value for name, value in line.items() if name not in TIMES}


def _place(line: dict[str, Json]) -> tuple[int, int, str]:
    # Stable: of one call, and of one generation, the log's own order stays. Calls of a step may end in any order.
    return line["turn"], line["step"] + (10_000 if line["type"].startswith("agent_e") else 0), line.get("call_id", "")


def calls_and_results(outcome: Outcome) -> tuple[list[str], list[str]]:
    """The calls of the model in the transcript, and the calls that have a result there."""
    said = [message for message in outcome.transcript if message["role"] == "assistant"]
    calls = [call["id"] for message in said for call in message["tool_calls"]]
    results = [message["call_id"] for message in outcome.transcript if message["role"] == "tool"]
    return calls, results
