"""What a run with a fault owes to the calm one, rule by rule. Each rule yields a sentence when it is broken."""

import copy
import json
import math
from collections import Counter
from collections.abc import Iterator
from itertools import zip_longest

from perdure.contracts.errors import ReasonCode
from tests.chaos.counted import differences_of
from tests.chaos.faults import Fault, Kind
from tests.chaos.outcome import Json, Outcome, calls_and_results
from tests.chaos.trace import BLOW_ENDS, Line

IDEMPOTENT = frozenset({"put", "fail"})
"""Tools whose body may run again after its worker was lost."""

NOTHING_LOST = frozenset({Kind.TERM, Kind.LOCK, Kind.LONG_LOCK, Kind.AWAY})
"""Kinds after which no answer is asked for again and no effect unknown: a worker that drains finishes what it has
begun, and one without a store keeps what it has done until it can be stored. Only a failure of the model that cannot be
stored is met again."""

LOSES_COUNTS = frozenset({Kind.KILL, Kind.KILL_TWICE, Kind.POWER, Kind.AWAY})
"""Kinds that can strike between a commit and its count: what was counted may then be less than what is stored."""

OUTLASTS_THE_GRACE = frozenset({"cancel"})
"""Scenarios with a model call that never ends by itself: a worker that drains hands it over after all."""


def differences(calm: Outcome, found: Outcome, fault: Fault) -> list[str]:
    """What is wrong with the run; empty if it ended as it had to."""
    unknown = _effects_unknown(found)
    return [
        *_unjustified(unknown, fault, found.trace),
        *_recovered(unknown, found),
        *_records(_with_unknown(calm, found, unknown), found),
        *_log(found),
        *_calls(found),
        *_effects(calm, found, unknown),
        *_requests(calm, found, fault),
        *_retries(calm, found, fault),
        *differences_of(found.counted, found.stored, may_lose=fault.kind in LOSES_COUNTS),
    ]


def _effects_unknown(found: Outcome) -> dict[str, str]:
    """The calls of which the model was told that nobody knows their effect, with their tools."""
    return {
        message["call_id"]: message["name"]
        for message in found.transcript
        if message["role"] == "tool" and (message["error"] or {}).get("code") == ReasonCode.TOOL_EFFECT_UNKNOWN
    }


def _unjustified(unknown: dict[str, str], fault: Fault, trace: list[Line]) -> Iterator[str]:
    """An effect may be unknown only of an unsafe tool whose claim was written and whose result was not.

    Exactly: the fault struck after an attempt had begun to claim the call, and before the store had committed the
    result of that attempt; what the runner carries out strikes from its mark until it is done. Or the call was in the
    hands of a worker that was frozen or had to leave at once, which may claim it after the blow.
    """
    if unknown and fault.kind in NOTHING_LOST:
        yield f"{sorted(unknown)}: the effect is unknown, although nothing was lost"
    strikes = [line for line in trace if line.struck]
    lingering = {line.pid for line in strikes if fault.kind in {Kind.FREEZE, Kind.TERM_NOW}}
    for call, tool in unknown.items():
        if tool in IDEMPOTENT:
            yield f"{call}: the effect of {tool} is unknown, although it may run again"
        claims = [line for line in trace if line.call_id == call and line.label == "before claim_call"]
        stored = [line for line in trace if line.call_id == call and line.label == "after finish_call"]
        ended = next((line.at for line in stored if line.pid == claims[0].pid), math.inf)
        interrupted = any(claims[0].at <= _carried_out(strike, trace) and strike.at < ended for strike in strikes)
        if not interrupted and not any(line.pid in lingering for line in claims):
            yield f"{call}: the effect is unknown, although the fault did not strike while it ran"


def _recovered(unknown: dict[str, str], found: Outcome) -> Iterator[str]:
    """Calls that a lost attempt held are given up if their effect is unknown, and only the idempotent run again."""
    tools = {message["call_id"]: message["name"] for message in found.transcript if message["role"] == "tool"}
    for call, decision in found.recoveries:
        if decision == "given_up" and call not in unknown:
            yield f"{call}: was given up, and the model was not told so"
        if decision == "run_again" and tools.get(call) not in IDEMPOTENT:
            yield f"{call}: {tools.get(call)} was run again"


def _carried_out(strike: Line, trace: list[Line]) -> float:
    """When a blow of the runner had been carried out; a worker's own is where it is marked."""
    return next((line.at for line in trace if line.label == BLOW_ENDS and line.at >= strike.at), strike.at)


def _with_unknown(calm: Outcome, found: Outcome, unknown: dict[str, str]) -> Outcome:
    """The calm outcome as it must be when the effects of these calls are unknown: their results and nothing else."""
    if not unknown:
        return calm
    changed = copy.deepcopy(calm)
    results = {message["call_id"]: message for message in found.transcript if message["role"] == "tool"}
    for message in changed.transcript:
        if message["role"] == "tool" and message["call_id"] in unknown:
            message.update({name: results[message["call_id"]][name] for name in ("content", "error")})
    for event in changed.events:
        if event["type"] == "tool_end" and event["call_id"] in unknown:
            told = results[event["call_id"]]
            event.update({"result": told["content"], "error": told["error"]})
    return changed


def _records(calm: Outcome, found: Outcome) -> Iterator[str]:
    yield from _unequal("stop record of turn", calm.results, found.results)
    yield from _unequal("message", calm.transcript, found.transcript)
    yield from _unequal("event", calm.events, found.events)
    if found.result != found.results[-1]:
        yield f"the workflow's result is {found.result}, the store's {found.results[-1]}"
    if found.steps != calm.steps:
        yield f"the store has {found.steps} steps, after the calm run {calm.steps}"


def _unequal(what: str, wanted: list[Json], got: list[Json]) -> Iterator[str]:
    for number, (expected, other) in enumerate(zip_longest(wanted, got), start=1):
        if expected != other:
            yield f"{what} {number}: {_short(other)} in place of {_short(expected)}"
            return


def _short(value: Json) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) < 500 else text[:500] + "…"


def _log(found: Outcome) -> Iterator[str]:
    """The log has no gap; a turn begins once, and ends once, with its last event."""
    if found.numbers != list(range(1, len(found.numbers) + 1)):
        yield f"the log is numbered {found.numbers}"
    for turn, kinds in found.kinds.items():
        if kinds[0] != "agent_start" or kinds[-1] != "agent_end":
            yield f"turn {turn} begins with {kinds[0]} and ends with {kinds[-1]}"
        if (kinds.count("agent_start"), kinds.count("agent_end")) != (1, 1):
            yield f"turn {turn} begins {kinds.count('agent_start')} times and ends {kinds.count('agent_end')} times"


def _calls(found: Outcome) -> Iterator[str]:
    """One result for each call, in the model's order."""
    calls, results = calls_and_results(found)
    if calls != results:
        yield f"the model called {calls}, and results are there of {results}"


def _effects(calm: Outcome, found: Outcome, unknown: dict[str, str]) -> Iterator[str]:
    """No unsafe effect twice, none missing whose result says that it happened, none that nobody asked for."""
    for effect, times in found.effects.items():
        if times > 1 and effect.split()[0] not in IDEMPOTENT:
            yield f"{effect}: {times} effects of an unsafe call"
    if alien := set(found.effects) - set(calm.effects):
        yield f"{sorted(alien)}: effects that the calm run has not"
    missing = {effect for effect in calm.effects if effect not in found.effects}
    if unexplained := [effect for effect in missing if effect.rpartition("/")[2] not in unknown]:
        yield f"{sorted(unexplained)}: effects are missing"


def _requests(calm: Outcome, found: Outcome, fault: Fault) -> Iterator[str]:
    """A request may be repeated while its answer is not stored, once for each blow; never after.

    The one exception: a worker that was frozen with calls in hand, or that was handed calls while it was frozen, sends
    their requests when it goes on, whoever has answered meanwhile. Nobody can keep it from that.
    """
    frozen = {line.pid for line in found.trace if line.struck and fault.kind is Kind.FREEZE}
    zombies = sum(line.label == "before model" and line.pid in frozen for line in found.trace)
    late = [
        f"answer {asked.index} was stored, and paid again {asked.at - found.answered[asked.index]:.3f} s later"
        for asked in found.asked
        if asked.index < len(found.answered) and asked.at > found.answered[asked.index]
    ]
    if len(late) > zombies:
        yield from late
    extra = _times(found) - _times(calm)
    if fault.kind in NOTHING_LOST and fault.scenario not in OUTLASTS_THE_GRACE:
        again = {index: times for index, times in extra.items() if index < len(found.answered)}
        if again:
            yield f"answers asked for again, although nothing was lost: {again}"
    if extra.total() > zombies + 2:
        yield f"requests beyond the calm run's: {dict(extra)}, allowed are {zombies + 2}"
    if missing := _times(calm) - _times(found):
        # A failed request that died with its worker is not made up for, and one that was cancelled may never be sent.
        yield f"requests of the calm run that are missing: {dict(missing)}"


def _times(outcome: Outcome) -> Counter[int]:
    return Counter(asked.index for asked in outcome.asked)


def _retries(calm: Outcome, found: Outcome, fault: Fault) -> Iterator[str]:
    """Tries are numbered from 1; one that was lost with its worker is not counted, one that was repeated is."""
    if found.retries != list(range(1, len(found.retries) + 1)):
        yield f"the retries are numbered {found.retries}"
    lost = len(calm.retries) - len(found.retries)
    repeated = (_times(found) - _times(calm)).total()
    most = 0 if fault.kind is Kind.TERM else fault.last - fault.point.n + 1
    if not -repeated <= lost <= most:
        yield f"{len(found.retries)} retries are recorded, in the calm run {len(calm.retries)}"
