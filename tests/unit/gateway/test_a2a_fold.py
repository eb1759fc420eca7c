"""S-83: the fold of the A2A door, over recorded logs and every place where a reader may join, judged by A2A's rules."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from perdure.contracts.a2a import TaskId, TaskState
from perdure.contracts.deltas import Delta
from perdure.contracts.events import (
    CONTENT_CHARACTERS,
    AgentEnd,
    Envelope,
    GenerationContent,
    GenerationRetry,
    ToolEnd,
)
from perdure.contracts.files import ToolFile
from perdure.contracts.values import replace
from perdure.gateway.doors.a2a.events import TaskFold, fold_task, is_last
from perdure.gateway.doors.a2a.objects import Object
from tests.unit.gateway.a2a_rules import judge, judge_update, shown

TURNS = Path(__file__).parent / "turns"
NAMES = sorted(path.stem for path in TURNS.glob("*.jsonl"))

Log = Sequence[Envelope | Delta]


def recorded(name: str) -> list[Envelope]:
    lines = (TURNS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [Envelope.from_json(line) for line in lines]


def task_in(log: Log, turn: int = 1) -> TaskId:
    return TaskId(log[0].session, turn)


def read(fold: TaskFold, log: Log) -> list[Object]:
    """The updates of a part of a log, as they come one by one."""
    found: list[Object] = []
    for item in log:
        found += fold.take(item) if isinstance(item, Envelope) else fold.take_delta(item)
    return [*found, *fold.settle()]


def folded(log: Log, turn: int = 1) -> TaskFold:
    return fold_task(task_in(log, turn), [item for item in log if isinstance(item, Envelope)], "m-1")


@pytest.mark.parametrize("name", NAMES)
def test_every_task_and_every_update_is_one_of_the_protocol(name: str) -> None:
    log = recorded(name)
    for turn in {envelope.turn for envelope in log}:
        fold = TaskFold(task_in(log, turn), "m-1")
        updates = read(fold, log)
        for update in updates:
            judge_update(update)
        whole: Any = fold.describe()
        judge("Task", whole)
        assert {"state": whole["status"]["state"], "artifacts": {}} | {
            "artifacts": shown([{"task": whole}])["artifacts"]
        } == shown(updates)
        assert fold.describe() == folded(log, turn).describe()


@pytest.mark.parametrize("name", NAMES)
def test_a_reader_who_joins_anywhere_has_the_same_task_in_the_end(name: str) -> None:
    """S-83: the task as it is, and the updates behind it, are the whole, behind every event."""
    log = recorded(name)
    for turn in {envelope.turn for envelope in log}:
        end: Any = folded(log, turn).describe()
        for cut in range(len(log) + 1):
            fold = fold_task(task_in(log, turn), log[:cut], "m-1")
            joined: list[Object] = [{"task": fold.describe()}, *read(fold, log[cut:])]
            assert shown(joined) == shown([{"task": end}]), cut


@pytest.mark.parametrize("address", ["", "https://perdure.example"])
def test_images_and_files_of_a_tool_are_artifacts(address: str) -> None:
    """S-83: in the order of the calls, and where a client may read them."""
    files = (
        ToolFile(artifact="art_1_1", media_type="image/png"),
        ToolFile(artifact="art_1_2", media_type="text/csv", name="data.csv"),
    )
    log = [
        replace(item, event=replace(item.event, attachments=files)) if isinstance(item.event, ToolEnd) else item
        for item in recorded("tools")
    ]
    fold = TaskFold(task_in(log), "m-1", address)
    updates = read(fold, log)
    for update in updates:
        judge_update(update)
    whole: Any = fold.describe()
    judge("Task", whole)
    assert shown([{"task": whole}]) == shown(updates)
    of_tools = [one for one in whole["artifacts"] if one["artifactId"].startswith("files-")]
    ends = [item.event for item in log if isinstance(item.event, ToolEnd)]
    assert [(one["artifactId"], one["name"]) for one in of_tools] == [
        (f"files-{end.call_id}", end.tool) for end in ends
    ]
    place = f"{address}/v1/sessions/{log[0].session}/artifacts"
    assert of_tools[0]["parts"] == [
        {"url": f"{place}/art_1_1", "mediaType": "image/png"},
        {"url": f"{place}/art_1_2", "mediaType": "text/csv", "filename": "data.csv"},
    ]


@pytest.mark.parametrize(
    ("name", "state", "reason"),
    [
        ("text", "COMPLETED", "finished"),
        ("max", "FAILED", "max_steps_reached"),
        ("error", "FAILED", "error"),
        ("cancel", "CANCELED", "cancelled"),
    ],
)
def test_the_end_of_a_turn_is_a_state_with_our_words_beside_it(name: str, state: str, reason: str) -> None:
    found: Any = folded(recorded(name)).describe()
    assert (found["status"]["state"], found["metadata"]["stopReason"]) == (f"TASK_STATE_{state}", reason)
    assert found["metadata"].get("resumable", False) == (name == "max")
    if name == "error":
        assert found["metadata"]["reasonCode"] == "llm.auth_error"
        assert "refused the key" in found["status"]["message"]["parts"][0]["text"]


def test_a_task_says_at_once_all_that_it_waits_for_and_goes_on_when_all_is_decided() -> None:
    log = recorded("mixed")
    fold = TaskFold(task_in(log))
    updates: list[Any] = read(fold, log)
    (waits,) = [one["statusUpdate"] for one in updates if "INPUT_REQUIRED" in str(one)]
    asked = [part["data"] for part in waits["status"]["message"]["parts"] if "data" in part]
    assert [(one["tool"], one["needs"]) for one in asked] == [
        ("lookup", "result"),
        ("pay", "approval"),
        ("ask_user", "answer"),
    ]
    assert (asked[1]["arguments"], len(asked[1]["digest"])) == ({"amount": 3}, 32)
    assert "color?" in [part.get("text") for part in waits["status"]["message"]["parts"]]
    assert [one.decision for one in fold.decided.values()] == ["returned", "denied", "answered"]
    place = next(number for number, one in enumerate(updates) if one.get("statusUpdate") == waits)
    states = [one["statusUpdate"]["status"]["state"] for one in updates[place + 1 :] if "statusUpdate" in one]
    assert (states[0], states[-1]) == ("TASK_STATE_WORKING", "TASK_STATE_COMPLETED")


def test_a_stream_ends_where_the_task_waits_unless_that_is_what_the_reader_has_replied_to() -> None:
    log = recorded("mixed")
    fold, ends = TaskFold(task_in(log)), list[str]()
    for envelope in log:
        ends += [fold.state for update in fold.take(envelope) if is_last(update, (), fold)]
    assert ends == ["TASK_STATE_INPUT_REQUIRED", "TASK_STATE_COMPLETED"]
    asking = next(number for number, one in enumerate(log) if one.event.type == "user_input_received")
    fold = fold_task(task_in(log), log[:asking])
    beyond, ends = tuple(fold.asked), []
    assert len(beyond) == 3
    for envelope in log[asking:]:
        ends += [fold.state for update in fold.take(envelope) if is_last(update, beyond, fold)]
    assert ends == ["TASK_STATE_COMPLETED"]


def test_a_turn_that_stops_for_its_requests_waits_until_a_later_one_has_taken_them() -> None:
    log = recorded("stop")
    first, second = folded(log, 1), folded(log, 2)
    assert (first.state, first.has_stopped, len(first.asked)) == (TaskState.INPUT_REQUIRED, True, 1)
    first.go_on()
    assert (first.state, second.state) == (TaskState.COMPLETED, TaskState.COMPLETED)
    assert first.asked.keys() == second.decided.keys()


def test_the_history_is_what_was_said_and_as_long_as_was_asked_for() -> None:
    fold = folded(recorded("mixed"))
    whole: Any = fold.describe()
    assert [message["role"] for message in whole["history"]] == ["ROLE_USER", "ROLE_AGENT", *["ROLE_USER"] * 3]
    assert whole["history"][0]["messageId"] == "m-1"
    assert len({message["messageId"] for message in whole["history"]}) == 5
    answers = [part["text"] for message in whole["history"][2:] for part in message["parts"] if "text" in part]
    assert answers == [event.result for event in results_of("ask_user")]
    assert fold.describe(2)["history"] == whole["history"][-2:]
    assert "history" not in fold.describe(0)
    assert "artifacts" not in fold.describe(artifacts=False)


def results_of(tool: str) -> list[ToolEnd]:
    ends = (one.event for one in recorded("mixed"))
    return [event for event in ends if isinstance(event, ToolEnd) and event.tool == tool]


def piece(text: str, n: int, offset: int, attempt: int = 1) -> Delta:
    return Delta(session="s", turn=1, step=1, attempt=attempt, n=n, offset=offset, text=text)


def live_log(*pieces: Delta) -> list[Envelope | Delta]:
    log = recorded("text")
    return [*log[:2], *pieces, *log[2:]]


def told_of(updates: Sequence[Any]) -> list[tuple[str, bool, bool]]:
    found = [one["artifactUpdate"] for one in updates if "artifactUpdate" in one]
    return [(one["artifact"]["parts"][0]["text"], one["append"], one["lastChunk"]) for one in found]


def test_an_answer_is_shown_while_it_is_written_and_ends_with_the_stored_one() -> None:
    log = live_log(piece("hel", 0, 0), piece("lo ", 1, 3), piece("wor", 2, 6))
    fold = TaskFold(task_in(log))
    updates = read(fold, log)
    for update in updates:
        judge_update(update)
    assert told_of(updates) == [("hel", False, False), ("lo ", True, False), ("wor", True, False), ("ld", True, True)]
    assert shown(updates)["artifacts"] == {"answer-1-1": "hello world"}
    for cut in range(2, len(log)):
        joined = fold_task(task_in(log), [one for one in log[:cut] if isinstance(one, Envelope)])
        seen = [{"task": joined.describe()}, *read(joined, [log[0], *log[2:]][1:] if cut == 2 else log[cut:])]
        assert shown(seen) == shown(updates)


def test_what_another_attempt_wrote_is_replaced_by_the_stored_answer() -> None:
    for pieces in (
        (piece("other", 0, 0),),
        (piece("hel", 0, 0), piece("bye", 0, 0, attempt=2)),
        (piece("hello world", 0, 0),),
    ):
        log = live_log(*pieces)
        updates = read(TaskFold(task_in(log)), log)
        assert shown(updates)["artifacts"] == {"answer-1-1": "hello world"}, pieces


def test_an_answer_whose_call_failed_is_superseded() -> None:
    log = recorded("text")
    failed = GenerationRetry(
        attempt=1,
        max_attempts=3,
        wait_seconds=1,
        code="llm.stream_cut",
        error_type="E",
        error_message="cut",
        failed_at=log[1].at,
    )
    retry = Envelope(seq=2, session=log[0].session, turn=1, step=1, at=log[1].at, event=failed)
    whole: list[Envelope | Delta] = [*log[:2], piece("he", 0, 0), retry, piece("late", 1, 2), *log[2:]]
    updates: list[Any] = read(TaskFold(task_in(log)), whole)
    assert told_of(updates) == [("he", False, False), ("", True, True), ("hello world", False, True)]
    assert shown(updates)["artifacts"] == {"answer-1-2": "hello world"}


def test_an_end_that_the_log_does_not_have_ends_the_task() -> None:
    log = recorded("text")
    fold = fold_task(task_in(log), log[:2])
    (update,) = fold.close(TaskState.FAILED, log[1].at, "terminated by an operator", "runtime.turn_closed")
    judge_update(update)
    found: Any = fold.describe()
    judge("Task", found)
    assert (found["status"]["state"], found["metadata"]) == (
        "TASK_STATE_FAILED",
        {"reasonCode": "runtime.turn_closed"},
    )
    assert fold.close(TaskState.FAILED, None, "again", "") == []


def test_an_id_is_read_back_and_no_other_text_is_one() -> None:
    task = TaskId("desk-1.a:b@c", 12)
    assert TaskId.parse(str(task)) == task
    for text in ("", "x", "task_1", f"{task}=", f"{task}A", "MC54", "é", "resp_MS4xLnM", "A" * 5_000):
        assert TaskId.parse(text) is None, text


def test_a_long_answer_is_one_artifact_and_whole() -> None:
    """Its event has the beginning only; the end of the turn has the rest."""
    beginning = "x" * CONTENT_CHARACTERS
    log = [
        replace(line, event=replace(line.event, content=beginning))
        if isinstance(line.event, GenerationContent)
        else replace(line, event=replace(line.event, output=f"{beginning} and more"))
        if isinstance(line.event, AgentEnd)
        else line
        for line in recorded("text")
    ]
    whole: Any = folded(log).describe()
    (artifact,) = whole["artifacts"]
    assert [part["text"] for part in artifact["parts"]] == [f"{beginning} and more"]
    assert shown([{"task": whole}])["artifacts"] == shown(read(TaskFold(task_in(log), "m-1"), log))["artifacts"]
