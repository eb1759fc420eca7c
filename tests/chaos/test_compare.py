"""The comparison itself: what a fault may change, and that everything else is noticed."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.compare import differences
from tests.chaos.faults import Fault, Kind, Point
from tests.chaos.outcome import Asked, Outcome
from tests.chaos.trace import BLOW_BEGINS, BLOW_ENDS, Line, Trace

STRUCK_AT = 5.0


def line(label: str, at: float, *, call: str = "", struck: bool = False, pid: int = 1) -> Line:
    return Line(pid=pid, at=at, label=label, n=1, call_id=call, struck=struck)


def result(call: str, *, unknown: bool = False) -> dict[str, Any]:
    told = (
        {"content": "lost", "error": {"code": "tool.effect_unknown"}} if unknown else {"content": "ok", "error": None}
    )
    return {"role": "tool", "call_id": call, "name": call.split("-")[0], **told}


def outcome(*, unknown: str = "") -> Outcome:
    """A turn with a call of ``pay`` and one of ``put``."""
    calls = ("pay-1", "put-2")
    results = [result(call, unknown=call == unknown) for call in calls]
    ends = [
        {"type": "tool_end", "call_id": ended["call_id"], "result": ended["content"], "error": ended["error"]}
        for ended in results
    ]
    return Outcome(
        results=[{"stop_reason": "finished"}],
        result={"stop_reason": "finished"},
        transcript=[{"role": "assistant", "tool_calls": [{"id": call} for call in calls]}, *results],
        events=ends,
        recoveries=[],
        retries=[1],
        answered=[1.0, 9.0],
        asked=(Asked(0, 0.5), Asked(1, 8.0)),
        effects=Counter(f"{call.split('-')[0]} SESSION/1/{call}" for call in calls),
        numbers=[1, 2],
        kinds={1: ["agent_start", "agent_end"]},
        steps=3,
        trace=[line("before claim_call", 4.0, call=call) for call in calls]
        + [line("before effect", STRUCK_AT, struck=True)],
    )


def broken(found: Outcome, kind: Kind = Kind.KILL) -> list[str]:
    fault = Fault(scenario="tools", kind=kind, point=Point(label="before effect", n=1))
    return differences(outcome(), found, fault)


def test_the_same_outcome_breaks_no_rule() -> None:
    assert broken(outcome()) == []


def test_the_effect_of_an_unsafe_tool_that_was_interrupted_may_be_unknown() -> None:
    found = outcome(unknown="pay-1")
    assert broken(found) == []
    assert broken(replace(found, effects=Counter({"put SESSION/1/put-2": 2}))) == []


def test_a_call_that_a_lost_attempt_held_is_recovered_as_its_tool_allows() -> None:
    given_up = replace(outcome(unknown="pay-1"), recoveries=[("pay-1", "given_up"), ("put-2", "run_again")])
    assert broken(given_up) == []
    assert "pay-1: was given up, and the model was not told so" in broken(
        replace(outcome(), recoveries=[("pay-1", "given_up")])
    )
    assert "pay-1: pay was run again" in broken(replace(outcome(), recoveries=[("pay-1", "run_again")]))


def _claimed_after_the_mark(*blow: Line, by: int = 0) -> Outcome:
    """The call is claimed at 5.5, half a second after the fault struck."""
    calls = [line("before claim_call", 4.0, call="put-2"), line("before claim_call", 5.5, call="pay-1")]
    mark = line("message sent", STRUCK_AT, struck=True, pid=by)
    return replace(outcome(unknown="pay-1"), trace=[*calls, mark, *blow])


def test_a_blow_of_the_runner_lasts_from_the_mark_until_it_was_carried_out() -> None:
    """Until then its workers go on: they may claim what the blow then interrupts."""
    found = _claimed_after_the_mark(line(BLOW_BEGINS, 5.6, pid=0), line(BLOW_ENDS, 6.0, pid=0))
    assert broken(found, Kind.POWER) == []
    assert broken(found, Kind.KILL) == []


@pytest.mark.parametrize(
    "found",
    [
        _claimed_after_the_mark(),
        _claimed_after_the_mark(by=1),
        _claimed_after_the_mark(line(BLOW_BEGINS, 5.6, pid=0), by=0),
        _claimed_after_the_mark(line(BLOW_BEGINS, 5.1, pid=0), line(BLOW_ENDS, 5.4, pid=0)),
        _claimed_after_the_mark(line(BLOW_BEGINS, 4.1, pid=0), line(BLOW_ENDS, 4.4, pid=0)),
    ],
)
def test_a_call_that_is_claimed_after_the_blow_was_not_interrupted_by_it(found: Outcome) -> None:
    """A worker's own blow is carried out where it is marked."""
    said = "pay-1: the effect is unknown, although the fault did not strike while it ran"
    assert said in broken(found, Kind.POWER)


def test_a_request_may_be_repeated_while_its_answer_is_not_stored() -> None:
    assert broken(replace(outcome(), asked=(Asked(0, 0.5), Asked(1, 8.0), Asked(1, 8.5)))) == []


def _ended_before_the_fault(found: Outcome) -> Outcome:
    return replace(found, trace=[*found.trace, line("after finish_call", 4.5, call="pay-1")])


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (replace(outcome(), results=[{"stop_reason": "error"}]), "stop record of turn 1"),
        (replace(outcome(), result=None), "the workflow's result"),
        (replace(outcome(), transcript=outcome().transcript[:-1]), "message 3"),
        (replace(outcome(), events=outcome().events[:-1]), "event 2"),
        (replace(outcome(), steps=4), "the store has 4 steps"),
        (replace(outcome(), numbers=[1, 3]), "the log is numbered [1, 3]"),
        (replace(outcome(), kinds={1: ["agent_start", "agent_end", "agent_end"]}), "ends 2 times"),
        (replace(outcome(), effects=outcome().effects + Counter({"pay SESSION/1/pay-1": 1})), "2 effects of an unsafe"),
        (replace(outcome(), effects=Counter({"put SESSION/1/put-2": 1})), "effects are missing"),
        (replace(outcome(), effects=outcome().effects + Counter({"pay SESSION/1/other": 1})), "the calm run has not"),
        (replace(outcome(), asked=(*outcome().asked, Asked(0, 1.5))), "answer 0 was stored, and paid again"),
        (replace(outcome(), asked=outcome().asked[:1]), "requests of the calm run that are missing"),
        (replace(outcome(), asked=outcome().asked * 4), "requests beyond the calm run's"),
        (replace(outcome(), retries=[1, 1]), "the retries are numbered [1, 1]"),
        (replace(outcome(), retries=[1, 2]), "2 retries are recorded"),
        (outcome(unknown="put-2"), "although it may run again"),
        (_ended_before_the_fault(outcome(unknown="pay-1")), "although the fault did not strike while it ran"),
    ],
)
def test_any_other_difference_is_named(found: Outcome, said: str) -> None:
    assert any(said in rule for rule in broken(found))


@pytest.mark.parametrize(
    "lose",
    [
        lambda found: outcome(unknown="pay-1"),
        lambda found: replace(found, asked=(*found.asked, Asked(1, 8.5))),
    ],
)
def test_a_worker_that_drains_or_waits_for_its_store_loses_nothing(lose: Callable[[Outcome], Outcome]) -> None:
    assert broken(lose(outcome()), Kind.TERM) != []
    assert broken(lose(outcome()), Kind.AWAY) != []
    assert broken(lose(outcome()), Kind.KILL) == []


def test_a_blow_is_in_the_trace_with_its_begin_and_its_end(tmp_path: Path) -> None:
    trace = Trace(tmp_path, Fault(scenario="tools", kind=Kind.POWER, point=Point(label="message sent", n=1)))
    assert trace.reached("message sent", pid=0)
    with trace.blow():
        trace.reached("before claim_call", "pay-1")
    assert [moment.label for moment in trace.lines()] == ["message sent", BLOW_BEGINS, "before claim_call", BLOW_ENDS]
    assert [moment.label for moment in trace.struck()] == ["message sent"]


@pytest.mark.parametrize(
    ("counted", "kind", "expected"),
    [
        (2.0, Kind.TERM, []),
        (3.0, Kind.KILL, ["calls: the workers counted 3, the store has 2"]),
        (1.0, Kind.KILL, []),
        (1.0, Kind.FREEZE, ["calls: the workers counted 1, the store has 2"]),
    ],
)
def test_nothing_is_counted_twice_and_only_a_kill_may_lose_a_count(
    counted: float, kind: Kind, expected: list[str]
) -> None:
    found = replace(outcome(), counted={"calls": counted}, stored={"calls": 2.0})
    assert [text for text in broken(found, kind) if "counted" in text] == expected
