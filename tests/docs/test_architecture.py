"""What the architecture page says of the cost of a turn, counted in recorded histories."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HISTORIES = ROOT / "tests" / "replay" / "histories" / "0.1.0"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")

TURN, ACTIVITY = 19, 6


def events(name: str) -> list[str]:
    history = json.loads((HISTORIES / f"{name}.json").read_text(encoding="utf-8"))
    return [event["eventType"].removeprefix("EVENT_TYPE_") for event in history["events"]]


@pytest.mark.parametrize("name", ["repeated-request-1", "finish-tool", "tool-error", "max-steps", "stalled", "retry"])
def test_a_turn_costs_19_events_and_each_activity_six(name: str) -> None:
    """The calls of these turns come one after the other; ``retry`` has a generation that was sent again."""
    written = events(name)
    calls = written.count("ACTIVITY_TASK_SCHEDULED") - 2
    assert len(written) == TURN + ACTIVITY * calls


def test_parallel_calls_share_workflow_tasks() -> None:
    written = events("parallel-tools")
    calls = written.count("ACTIVITY_TASK_SCHEDULED") - 2
    assert TURN + 3 * calls <= len(written) <= TURN + ACTIVITY * calls


def test_a_steered_message_costs_two_events_and_a_workflow_task() -> None:
    written = events("steered")
    calls = written.count("ACTIVITY_TASK_SCHEDULED") - 2
    assert len(written) == TURN + ACTIVITY * calls + 2 + 3


def test_a_rotation_costs_five_events() -> None:
    """The turn has a time budget in both of its runs, and took one message for the turn after it."""
    written = [*events("rotated-1"), *events("rotated-2")]
    calls = written.count("ACTIVITY_TASK_SCHEDULED") - 2
    timers, message, rotation = 2 * 2, 2 + 3, 5
    assert len(written) == TURN + ACTIVITY * calls + timers + message + rotation


def test_the_page_says_so() -> None:
    assert f"two upserts of search attributes | {TURN} |" in PAGE
    assert f"| `generate` | {ACTIVITY}: three of the activity" in PAGE
    assert f"| one tool call | {ACTIVITY} |" in PAGE


def test_a_wait_for_people_costs_an_activity_and_two_upserts() -> None:
    """Of the approval that expires also a timer, and the workflow task that it brings."""
    written = events("approval-expired")
    calls = written.count("ACTIVITY_TASK_SCHEDULED") - 2
    assert written.count("TIMER_STARTED") == 1
    assert len(written) == TURN + ACTIVITY * calls + 2 + 2 + 3
    assert "the activity `ask`, two upserts | 8;" in PAGE


def test_a_close_as_failed_costs_nothing_and_one_as_canceled_an_activity_a_request_and_a_memo() -> None:
    """The request has a workflow task of its own unless the activity ends before a worker takes that."""
    assert len(events("closed-as-failed")) == len(events("model-error"))
    written = events("closed-as-canceled")
    behind = written[written.index("UPSERT_WORKFLOW_SEARCH_ATTRIBUTES", 20) + 1 : -1]
    assert len(behind) in {8, 11}
    assert set(behind) - {"WORKFLOW_TASK_SCHEDULED", "WORKFLOW_TASK_STARTED", "WORKFLOW_TASK_COMPLETED"} == {
        *("ACTIVITY_TASK_SCHEDULED", "ACTIVITY_TASK_STARTED", "ACTIVITY_TASK_COMPLETED"),
        *("WORKFLOW_EXECUTION_CANCEL_REQUESTED", "WORKFLOW_PROPERTIES_MODIFIED"),
    }
    assert "| 0; 8 to 11: the activity `close_as_canceled`" in PAGE


LAYERS = PAGE.split("## Layers")[1].split("\n## ")[0]
NAMED = set(re.findall(r"`([\w/]+(?:/|\.py))`", "\n".join(re.findall(r"^\| ([^|]+) \|", LAYERS, re.MULTILINE))))


def test_the_page_names_each_folder_of_the_code() -> None:
    roots = [ROOT / name for name in ("activities", "workflows", "worker")]
    packages = [path for path in (ROOT / "perdure").iterdir() if path.is_dir() and not path.is_symlink()]
    inner = [
        path for root in (*roots, *packages) for path in (root, *root.rglob("*")) if (path / "__init__.py").is_file()
    ]
    folders = {f"{path.relative_to(ROOT)}/" for path in inner} - {"perdure/gateway/routes/"}
    assert {name for name in NAMED if name.endswith("/")} == folders
    assert all((ROOT / name).exists() for name in NAMED)
