"""AG-UI's own types, and the rules of ag-ui-validate, as the judges of what the door of AG-UI sends."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ag_ui.core import Event, RunAgentInput
from ag_ui_validate import Report
from ag_ui_validate.pytest_plugin import validate_agui
from pydantic import TypeAdapter

_EVENTS: TypeAdapter[Any] = TypeAdapter(Event)


def judge_run(events: Sequence[dict[str, Any]], earlier: Sequence[str] = ()) -> Report:
    """Judge one run, event by event and as a whole.

    Args:
        events: The bodies of its events.
        earlier: Calls of the thread's earlier runs: the validator knows one run alone, and takes a result of such a
            call for one of nowhere (AGUI207).

    Raises:
        AssertionError: A rule is broken, be it one that only warns.
        ValidationError: AG-UI's types refuse an event.
    """
    for event in events:
        known = _EVENTS.validate_python(event)
        unknown = event.keys() - {field.alias or name for name, field in type(known).model_fields.items()}
        assert not unknown, (event["type"], unknown)
        assert known.model_dump(by_alias=True, mode="json").keys() >= event.keys()
    report = validate_agui(list(events))
    assert not report.internal_errors
    found = [
        one for one in report.diagnostics if not (one.rule == "AGUI207" and _is_of(events[one.event_index], earlier))
    ]
    assert not found, [(one.rule, one.message) for one in found]
    return report


def _is_of(event: dict[str, Any], calls: Sequence[str]) -> bool:
    return event.get("toolCallId") in calls


def write_report(report: Report, path: Path) -> dict[str, Any]:
    """Keep a report of the validator as a file, and return what it holds."""
    told: dict[str, Any] = asdict(report)
    path.write_text(json.dumps(told, indent=1), encoding="utf-8")
    return told


def judge_input(body: dict[str, Any]) -> dict[str, Any]:
    """A request as AG-UI's types write it."""
    written: dict[str, Any] = RunAgentInput.model_validate(body).model_dump(by_alias=True, mode="json")
    return written
