"""S-83: the fold of the AG-UI door, over recorded logs and made ones, judged by AG-UI's types and by ag-ui-validate."""

from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from perdure.client import RequestRefusedError
from perdure.contracts import events as log
from perdure.contracts.budgets import Usage
from perdure.contracts.deltas import Delta
from perdure.contracts.errors import ErrorDetail
from perdure.contracts.events import Envelope
from perdure.contracts.hooks import TodosChanged
from perdure.contracts.input_requests import Decision, Need
from perdure.contracts.tools import MaskedCall, Todo
from perdure.contracts.turns import StopReason
from perdure.gateway.doors.agui.events import RunFold, arguments_of, run_started
from perdure.gateway.doors.agui.held import Held
from perdure.gateway.doors.agui.places import Seen, name_events
from perdure.gateway.doors.responses.events import WireEvent
from perdure.gateway.doors.responses.objects import Shape
from perdure.gateway.doors.responses.places import ResponseId
from tests.unit.gateway.agui_types import judge_run, write_report
from tests.unit.gateway.test_responses_fold import NAMES, live_log, piece, recorded

pytestmark = pytest.mark.judged("AG-UI 1.0", "ag-ui-validate")

Log = Sequence[Envelope | Delta]


def runs_of(taken: Log, turn: int = 1) -> list[list[dict[str, Any]]]:
    """The events of the runs of a turn."""
    fold = RunFold("s", turn, run="r")
    found: list[WireEvent] = []
    for item in taken:
        found += fold.take(item) if isinstance(item, Envelope) else fold.take_delta(item)
    found += fold.settle()
    runs: list[list[dict[str, Any]]] = []
    for segment in fold.segments:
        own: list[dict[str, Any]] = [dict(event.body) for event in found if event.segment == segment.number]
        for body in own:
            del body["sequence_number"]
        runs.append([run_started("s", "r", ResponseId("s", turn, segment.number)), *own])
    return runs


def judged(taken: Log, turn: int = 1, earlier: Sequence[str] = ()) -> list[list[dict[str, Any]]]:
    """The same, judged; ``earlier`` are calls of turns before."""
    runs = runs_of(taken, turn)
    earlier = [*earlier]
    for run in runs:
        judge_run(run, earlier)
        earlier += [event["toolCallId"] for event in run if event["type"] == "TOOL_CALL_START"]
    return runs


def kinds(run: Sequence[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in run]


def made(*events: log.Event) -> list[Envelope]:
    """A log of these events, all of step 1."""
    at = datetime(2026, 11, 27, tzinfo=UTC)
    first = recorded("text")[0]
    rest = [
        Envelope(seq=seq, session="s", turn=1, step=1, at=at, event=event) for seq, event in enumerate(events, start=2)
    ]
    return [first, *rest]


def ended(reason: StopReason = StopReason.FINISHED, **more: Any) -> log.AgentEnd:
    fields: dict[str, Any] = {"reason_code": None, "error": None, "output": "", "steps": 1, **more}
    return log.AgentEnd(stop_reason=reason, usage=Usage(), cost_usd=Decimal(0), **fields)


START = log.GenerationStart(model="m", messages=1)


def called(*calls: str, tool: str = "look") -> log.GenerationContent:
    """An answer that makes these calls."""
    made_calls = [MaskedCall(call_id=call, tool=tool, arguments="{}") for call in calls]
    return log.GenerationContent(content="", tool_calls=tuple(made_calls))


def required(request: str, needs: Need = "result", tool: str = "look") -> log.UserInputRequired:
    return log.UserInputRequired(request_id=request, needs=needs, tool=tool)


def received(request: str, decision: Decision = "returned") -> log.UserInputReceived:
    return log.UserInputReceived(
        request_id=request, decision=decision, tool="look", at=datetime(2026, 11, 27, tzinfo=UTC)
    )


def over(call: str) -> log.ToolEnd:
    return log.ToolEnd(call_id=call, tool="look", result="seven", seconds=1)


def lost(call: str) -> log.ToolError:
    error = ErrorDetail(code="tool.cancelled", title="look", message="another message came")
    return log.ToolError(call_id=call, tool="look", error=error)


MADE = called("c1", "c2")

CALLS: dict[str, tuple[list[log.Event], dict[str, int], dict[str, str]]] = {
    "a result that begins a turn, which asks for the other one": ([received("c1"), over("c1"), required("c2")], {}, {}),
    "an answer that begins a turn": ([received("c1", "answered"), over("c1"), START], {}, {"c1": "seven"}),
    "a call that a message has withdrawn": ([lost("c1"), START], {}, {"c1": "another message came"}),
    "a call that was refused before it was told": ([START, MADE, lost("c1"), lost("c2")], {}, {}),
    "a question of a tool's server": (
        [
            *(START, called("c3"), log.ToolStart(call_id="c3", tool="tell", arguments="{}")),
            *(required("c3~1", "answer", "tell"), received("c3~1", "answered"), over("c3")),
        ],
        {"c3": 1},
        {"c3": "seven"},
    ),
    "an approval that begins a turn": (
        [received("c1", "approved"), log.ToolStart(call_id="c1", tool="look", arguments="{}"), over("c1")],
        {},
        {"c1": "seven"},
    ),
    "a result that comes late": ([START, MADE, required("c1"), required("c2"), received("c1")], {"c1": 1, "c2": 1}, {}),
}


@pytest.mark.parametrize(("events", "starts", "results"), CALLS.values(), ids=CALLS)
def test_streams_tell_of_a_call_once_whatever_turn_made_it(
    events: list[log.Event], starts: dict[str, int], results: dict[str, str]
) -> None:
    """S-83: arguments that are told twice are no JSON any more, and a call without a result runs for ever."""
    fold, told = RunFold("s", 1, Shape(tools=[{"name": "look"}]), run="r"), list[dict[str, Any]]()
    for envelope in made(*events):
        told += [event.body for event in fold.take(envelope)]
    told += [event.body for event in fold.settle()]
    begun = [event["toolCallId"] for event in told if event["type"] == "TOOL_CALL_START"]
    assert {call: begun.count(call) for call in begun} == starts
    assert {event["toolCallId"]: event["content"] for event in told if event["type"] == "TOOL_CALL_RESULT"} == results


def test_an_interrupt_of_a_server_names_the_call_that_asks() -> None:
    begun = log.ToolStart(call_id="c3", tool="tell", arguments="{}")
    (run,) = judged(made(START, called("c3"), begun, required("c3~1", "answer", "tell")))
    (interrupt,) = run[-1]["outcome"]["interrupts"]
    assert (interrupt["id"], interrupt["toolCallId"]) == ("c3~1", "c3")


@pytest.mark.parametrize("name", NAMES)
def test_every_run_of_a_recorded_turn_is_agui(name: str) -> None:
    taken, earlier = recorded(name), list[str]()
    for turn in sorted({envelope.turn for envelope in taken}):
        runs = judged(taken, turn, earlier)
        assert runs
        earlier += [event["toolCallId"] for run in runs for event in run if event["type"] == "TOOL_CALL_START"]
        assert all(run[-1]["type"] in {"RUN_FINISHED", "RUN_ERROR"} for run in runs)


def test_the_validators_report_is_kept(tmp_path: Path) -> None:
    """S-83: every recorded turn and a streamed one in one report, without a finding but for results of earlier runs."""
    events = [event for name in NAMES for turn in (1, 2) for run in runs_of(recorded(name), turn) for event in run]
    events += [event for run in runs_of(live_log()) for event in run]
    calls = {event["toolCallId"] for event in events if event["type"] == "TOOL_CALL_START"}
    told = write_report(judge_run(events, [*calls]), tmp_path / "ag-ui-validate.json")
    assert told["event_count"] == len(events)
    assert {found["rule"] for found in told["diagnostics"]} <= {"AGUI207"}
    assert told["features"]["human-in-the-loop"] == "exercised"


def test_an_answer_is_streamed_and_ends_with_the_stored_one() -> None:
    (run,) = judged(live_log())
    shown = [event["delta"] for event in run if event["type"] == "TEXT_MESSAGE_CONTENT"]
    assert shown == ["hel", "lo ", "wor", "ld"]
    (stored,) = judged(recorded("text"))
    assert [event["delta"] for event in stored if event["type"] == "TEXT_MESSAGE_CONTENT"] == ["hello world"]
    assert kinds(stored)[:2] == ["RUN_STARTED", "STEP_STARTED"]
    assert stored[-1]["outcome"] == {"type": "success"}
    assert stored[-1]["result"] == {"stop_reason": "finished"}


@pytest.mark.parametrize("calls", [1, 2])
def test_text_of_a_lost_attempt_ends_as_superseded(calls: int) -> None:
    """Another attempt of the same call, and another call of the same step by another worker."""
    taken = recorded("text")
    lost: Log = [piece("He", 0, 0), piece("hello", 0, 0, attempt=2)] if calls == 1 else [piece("He", 0, 0)]
    again: Log = [] if calls == 1 else [taken[1], piece("hel", 0, 0, attempt=2)]
    (run,) = judged([*taken[:2], *lost, *again, *taken[2:]])
    ends = [event for event in run if event["type"] == "TEXT_MESSAGE_END"]
    assert ["metadata" in event for event in ends] == [True, False]
    assert ends[0]["messageId"] != ends[1]["messageId"]


def test_a_turn_that_waits_is_a_run_for_each_wait() -> None:
    first, second = judged(recorded("mixed"))
    outcome = first[-1]["outcome"]
    approval, question = outcome["interrupts"]
    assert (outcome["type"], approval["reason"], question["reason"]) == ("interrupt", "tool_call", "input_required")
    assert approval["responseSchema"]["required"] == ["approved"]
    assert question["message"] == "color?"
    called = [event["toolCallName"] for event in first if event["type"] == "TOOL_CALL_START"]
    assert called == ["add", "lookup", "pay", "ask_user"]
    results = {event["toolCallId"]: event["content"] for event in second if event["type"] == "TOOL_CALL_RESULT"}
    assert results == {approval["id"]: "pay was denied by ann: no", question["id"]: "blue"}
    assert "TOOL_CALL_START" not in kinds(second)


def test_a_call_that_the_caller_runs_is_pending() -> None:
    asked = log.UserInputRequired(request_id="c1", needs="result", tool="look", arguments='{"id": 7}')
    (run,) = judged(made(START, called("c1"), asked))
    assert run[-1]["outcome"] == {"type": "success", "pendingToolCallIds": ["c1"]}
    assert [event["delta"] for event in run if event["type"] == "TOOL_CALL_ARGS"] == ['{"id": 7}']


@pytest.mark.parametrize(
    ("name", "outcome", "reason"), [("max", "success", "max_steps_reached"), ("cancel", "cancelled", "cancelled")]
)
def test_the_end_of_a_turn_is_an_outcome_with_our_word_beside_it(name: str, outcome: str, reason: str) -> None:
    last = judged(recorded(name))[-1][-1]
    assert (last["outcome"]["type"], last["result"]["stop_reason"]) == (outcome, reason)


def test_a_spent_budget_is_a_success_with_its_reason() -> None:
    (run,) = judged(made(START, ended(StopReason.BUDGET_EXHAUSTED, exhausted_by="cost")))
    assert (run[-1]["outcome"], run[-1]["result"]) == ({"type": "success"}, {"stop_reason": "budget_exhausted"})


def test_a_turn_that_fails_is_an_error_with_our_code() -> None:
    last = judged(recorded("error"))[-1][-1]
    assert (last["type"], last["code"]) == ("RUN_ERROR", "llm.auth_error")
    assert "refused the key" in last["message"]


def test_tools_and_their_failures_have_results() -> None:
    (run,) = judged(recorded("tools"))
    results = [event["content"] for event in run if event["type"] == "TOOL_CALL_RESULT"]
    assert len(results) == 3
    assert "tool.unknown_tool" in results[0]


def test_todos_are_the_state_and_progress_is_an_activity() -> None:
    call: Any = {"call_id": "c1", "tool": "read"}
    taken = made(
        START,
        called("c1", tool="read"),
        log.ToolStart(**call, arguments="{}"),
        log.ToolProgress(**call, progress=3, total=10, message="pages"),
        log.ToolEnd(**call, result="done", seconds=1),
        TodosChanged(todos=(Todo(title="one", completed=True),)),
        ended(value={"answer": 7}),
    )
    (run,) = judged(taken)
    found = {event["type"]: event for event in run}
    assert found["STATE_SNAPSHOT"]["snapshot"] == {"todos": [{"title": "one", "completed": True}]}
    assert found["ACTIVITY_SNAPSHOT"]["content"] == {
        "toolCallId": "c1",
        "progress": 3,
        "total": 10,
        "message": "pages",
    }
    assert run[-1]["result"]["value"] == {"answer": 7}


@pytest.mark.parametrize("reason", [StopReason.FINISHED, StopReason.ERROR, None])
def test_a_delegate_is_a_subagent(reason: StopReason | None) -> None:
    """It ends with its own end, or with the run."""
    call: Any = {"call_id": "c1", "tool": "helper", "agent": "helper", "delegate": "s.1"}
    spent: Any = {"steps": 1, "usage": Usage(), "cost_usd": Decimal(0)}
    begun = [log.DelegateStart(**call)]
    done = [] if reason is None else [log.DelegateEnd(**call, stop_reason=reason, **spent)]
    end = ended(StopReason.CANCELLED if reason is None else StopReason.FINISHED)
    (run,) = judged(made(START, called("c1", tool="helper"), *begun, *done, end))
    told = [event for event in run if event["type"].startswith("SUBAGENT")]
    last = "SUBAGENT_FINISHED" if reason is StopReason.FINISHED else "SUBAGENT_ERROR"
    assert kinds(told) == ["SUBAGENT_STARTED", last]
    assert told[0]["parentToolCallId"] == "c1"


def test_arguments_are_json_also_where_the_log_has_shortened_them() -> None:
    assert (arguments_of(""), arguments_of('{"a": 1}')) == ("{}", '{"a": 1}')
    assert arguments_of('{"a": "x…') == '{"shortened": "{\\"a\\": \\"x\\u2026"}'


@pytest.mark.parametrize("taken", [*map(recorded, NAMES), live_log()], ids=[*NAMES, "live"])
def test_a_reader_goes_on_behind_every_event(taken: Log) -> None:
    """S-83: cut behind each event, the joined streams are the whole one."""

    def read(seen: Seen | None = None) -> list[tuple[str, dict[str, Any]]]:
        fold = RunFold("s", 1, place=None if seen is None else seen.place, run="r")
        told: list[tuple[str, WireEvent]] = []
        for item in taken:
            found = fold.take(item) if isinstance(item, Envelope) else fold.take_delta(item)
            told += name_events(found, seen)
        told += name_events(fold.settle(), seen)
        return [(name, dict(event.body)) for name, event in told]

    whole = read()
    assert len({name for name, _ in whole}) == len(whole)
    for cut, (name, _) in enumerate(whole, start=1):
        assert [*whole[:cut], *read(Seen.parse(name))] == whole
    assert read(Seen.parse("0")) == whole


@pytest.mark.parametrize("text", ["", "x", "-1", "1.0", "1.2.3", "²"])
def test_no_id_of_an_event_is_refused(text: str) -> None:
    """S-83: what is no id is a mistake of the request."""
    with pytest.raises(RequestRefusedError, match="Last-Event-ID"):
        Seen.parse(text)


def test_a_run_that_is_read_again_tells_what_the_client_does_not_have() -> None:
    """S-83: clients append pieces to the message or the call of that id, and results to the conversation."""
    messages: list[dict[str, Any]] = [
        {"id": "m1", "role": "assistant", "content": "hello w"},
        {"id": "m2", "role": "assistant", "content": "other"},
        {"id": "c1", "role": "assistant", "toolCalls": [{"id": "c1", "function": {"arguments": '{"a": 1}'}}]},
        {"id": "c2", "role": "assistant", "toolCalls": [{"id": "c2", "function": {"arguments": ""}}, {"id": "c3"}, 7]},
        {"id": "result-c1", "role": "tool", "toolCallId": "c1", "content": "one"},
    ]
    held = Held(messages)
    events: list[Any] = [
        *({"type": "TEXT_MESSAGE_CONTENT", "messageId": "m1", "delta": text} for text in ("hel", "lo ", "world", "!")),
        *({"type": "TEXT_MESSAGE_CONTENT", "messageId": "m2", "delta": text} for text in ("stored", " answer")),
        *({"type": "TOOL_CALL_ARGS", "toolCallId": name, "delta": '{"a": 1}'} for name in ("c1", "c2", "c3")),
        *({"type": "TOOL_CALL_RESULT", "messageId": f"result-{name}", "content": "one"} for name in ("c1", "c2")),
        {"type": "RUN_FINISHED"},
    ]
    rest = [told for event in events if (told := held.rest_of(event)) is not None]
    assert [event.get("delta") for event in rest] == ["orld", "!", "stored", " answer", *['{"a": 1}'] * 2, None, None]
    assert [event["type"] for event in rest[-2:]] == ["TOOL_CALL_RESULT", "RUN_FINISHED"]
