"""The waterfall's layout: an axis, the names of tools, and long waits folded so that steps beside them can be read."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.ui.node import called

pytestmark = pytest.mark.deep

BEGAN = datetime(2026, 11, 23, 10, 0, tzinfo=UTC)
NOW = int((BEGAN + timedelta(hours=3)).timestamp() * 1000)


def part(kind: str, start: float, end: float | None, label: str = "", **more: Any) -> dict[str, Any]:
    times = [None if at is None else (BEGAN + timedelta(seconds=at)).isoformat() for at in (start, end)]
    return {"kind": kind, "from": times[0], "to": times[1], "label": label, **more}


def step(number: int, *parts: dict[str, Any]) -> dict[str, Any]:
    return {"key": f"1/{number}", "turn": 1, "step": number, "segments": list(parts)}


def layout(*steps: dict[str, Any], now: int = NOW) -> dict[str, Any]:
    found: dict[str, Any] = called("timeline", "layout", list(steps), now)
    return found


def quick(number: int) -> dict[str, Any]:
    return step(number, part("model", 0, 2, "openai/m"), part("tool", 2, 3, "search"))


PERSON = step(41, part("model", 0, 2, "openai/m"), part("people", 2, 962, "pay"), part("tool", 962, 963, "pay"))
"""A step with a wait of 16 minutes."""


def test_forty_steps_beside_a_wait_of_minutes_stay_readable() -> None:
    found = layout(*map(quick, range(1, 41)), PERSON)
    *steps, waited = found["rows"]
    assert {row["width"] for row in steps} == {3}
    assert found["scale"] < 4, "a third of a second has the room of ten pixels"
    assert waited["seconds"] == 963
    model, people, tool = waited["parts"]
    assert (model["x"], model["width"], people["x"]) == (0, 2, 2)
    assert (people["folded"], people["width"] < 1) == (960, True)
    assert tool["x"] == pytest.approx(people["x"] + people["width"])
    assert tool["width"] == 1


def test_a_wait_that_is_no_longer_than_the_steps_is_drawn_as_it_is() -> None:
    (row,) = layout(step(1, part("worker", 0, 0.2), part("model", 0.2, 2)))["rows"]
    assert [found.get("folded") for found in row["parts"]] == [None, None]
    (row,) = layout(step(1, part("people", 0, 90)))["rows"]
    assert (row["width"], row["parts"][0].get("folded")) == (90, None)


def test_what_goes_on_during_a_wait_is_not_folded() -> None:
    (row,) = layout(step(1, part("people", 0, 100), part("delegate", 0, 60, "helper"), part("model", 100, 101)))["rows"]
    people, delegate, model = row["parts"]
    assert (delegate["width"], people["folded"]) == (60, 100)
    assert model["x"] == pytest.approx(people["width"])
    assert 60 < people["width"] < 100
    assert people["lane"] != delegate["lane"]


def test_a_row_has_the_names_of_its_tools() -> None:
    parts = (part("tool", 0, 1, "search"), part("tool", 0, 1, "search"), part("delegate", 0, 2, "helper"))
    again = part("tool", 1, 2, "look", attempt=2, call="c")
    (row,) = layout(step(1, part("model", 0, 1, "openai/m"), *parts, part("tool", 0, 1, "look", call="c"), again))[
        "rows"
    ]
    assert row["names"] == "search x2, helper, look"
    assert layout(PERSON)["rows"][0]["names"] == "pay"


@pytest.mark.parametrize(
    ("seconds", "ticks"),
    [(0.004, [0, 1, 2, 3, 4]), (3.9, [0, 1000, 2000, 3000]), (50, [0, 10, 20, 30, 40, 50]), (400, [0, 120, 240, 360])],
)
def test_the_axis_has_a_few_round_times(seconds: float, ticks: list[float]) -> None:
    unit = 1000 if seconds < 10 else 1
    assert [round(tick * unit, 6) for tick in layout(step(1, part("model", 0, seconds)))["ticks"]] == ticks


def test_what_is_under_way_ends_now_and_what_is_planned_is_not_drawn() -> None:
    now = int((BEGAN + timedelta(seconds=5)).timestamp() * 1000)
    later = part("model", 9, None, planned=True)
    (row,) = layout(step(1, part("model", 0, 1), part("retry", 1, 9, planned=True), later), now=now)["rows"]
    assert [(found["kind"], found["x"], found["width"]) for found in row["parts"]] == [
        ("model", 0, 1),
        ("retry", 1, row["parts"][1]["width"]),
    ]
    assert row["seconds"] == 5
