"""Lines that a wait repeats: once, then at growing distances, in JSON, and no other line is left out."""

import io
import json
import logging
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from temporalio.exceptions import ApplicationError

from perdure.worker import telemetry
from perdure.worker.repeats import CORE, MOST_KINDS, Repeats
from perdure.worker.telemetry import configure_logging

AWAY = "runtime.store_unavailable: the store does not answer (connection 4711 refused); check PERDURE_STORE_URL"


def line(at: float, message: str = AWAY, reason: str = "runtime.store_unavailable") -> logging.LogRecord:
    """A line of an activity, so many seconds after the first one."""
    record = logging.LogRecord("temporalio.activity", logging.WARNING, "x.py", 1, message, (), None)
    record.created, record.reason_code = at, reason
    return record


def core(at: float, message: str) -> logging.LogRecord:
    """A line of the SDK's core."""
    record = logging.LogRecord(CORE, logging.WARNING, "(sdk-core)", 0, message, (), None)
    record.created = at
    return record


def written(repeats: Repeats, *records: logging.LogRecord) -> list[tuple[float, int]]:
    """When lines are written, and how many each says were left out before it."""
    return [(record.created, getattr(record, "left_out", 0)) for record in records if repeats.filter(record)]


def test_a_wait_of_half_an_hour_is_a_few_lines_at_growing_distances() -> None:
    assert written(Repeats(), *(line(tenth / 10) for tenth in range(18_000))) == [
        (0, 0),
        (10, 99),
        (30, 199),
        (70, 399),
        (150, 799),
        (310, 1599),
        (630, 3199),
        (1230, 5999),
    ]


def test_numbers_make_no_other_line() -> None:
    assert written(Repeats(), line(0), line(1, AWAY.replace("4711", "12"))) == [(0, 0)]


def test_another_cause_is_told_at_once() -> None:
    full = line(1, "runtime.store_unavailable: its disk is full")
    assert written(Repeats(), line(0), full, line(2)) == [(0, 0), (1, 0)]


def test_the_next_wait_begins_with_a_line_of_its_own() -> None:
    assert written(Repeats(), line(0), line(5), line(26), line(27)) == [(0, 0), (26, 0)]


@pytest.mark.parametrize("reason", ["tool.execution_error", "llm.timeout", ""])
def test_what_is_no_wait_is_always_written(reason: str) -> None:
    assert len(written(Repeats(), *(line(at / 10, "it broke", reason) for at in range(50)))) == 50


def test_each_call_of_the_sdk_that_fails_again_and_again_is_told_like_that() -> None:
    polls = [core(at, f"gRPC call {call} retried {at} times") for at in range(9) for call in ("poll", "beat")]
    assert written(Repeats(), *polls) == [(0, 0), (0, 0)]


def test_kinds_of_lines_that_are_kept_are_bounded() -> None:
    repeats = Repeats()
    names = ["".join(chr(ord("a") + int(digit)) for digit in str(number)) for number in range(3 * MOST_KINDS)]
    assert len(written(repeats, *(line(0, name) for name in names))) == len(names)
    assert len(repeats._kinds) == MOST_KINDS


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """What a worker's logging writes; it is taken back afterwards."""
    root, names = logging.getLogger(), ("temporalio.activity", CORE)
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", root.level)
    filters = {name: list(logging.getLogger(name).filters) for name in names}
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    configure_logging("info", frozenset({"hunter2-hunter2"}))
    yield stream
    logging.captureWarnings(False)
    for name, before in filters.items():
        logging.getLogger(name).filters[:] = before


def test_what_the_sdks_core_says_is_json_without_secrets(log: io.StringIO) -> None:
    """As the SDK hands a line over, in the form that the worker asks it for."""
    told = SimpleNamespace(
        target="temporalio_client::retry",
        message="gRPC call poll retried",
        time=5.0,
        level=logging.WARNING,
        fields={"error": "refused: hunter2-hunter2" + "x" * 5_000, "attempt": 5},
    )
    telemetry._FORWARDING._on_logs([told] * 3)
    (only,) = log.getvalue().splitlines()
    said = json.loads(only)
    assert (said["logger"], said["target"], said["level"]) == (CORE, told.target, "warning")
    assert (said["message"], said["fields"]["attempt"]) == ("gRPC call poll retried", "5")
    assert said["fields"]["error"].startswith("refused: ***x")
    assert len(only) < 1_500


def test_attempts_that_fail_since_the_store_is_away_are_one_line(log: io.StringIO) -> None:
    for _ in range(20):
        error = ApplicationError("the store is away", type="runtime.store_unavailable")
        logging.getLogger("temporalio.activity").warning("Completing activity as failed", exc_info=error)
    (only,) = log.getvalue().splitlines()
    assert json.loads(only)["reason_code"] == "runtime.store_unavailable"
