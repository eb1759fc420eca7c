"""Values of output types that programs take for none at all, or that JSON lacks: as they were, or refused by name.

Seen in public trackers of agent frameworks: a right answer of `false`, `0`, `[]` or `null` is asked for again, since
somebody wrote `if value`; money comes back as a binary fraction; NaN is stored, and no reader can parse it.
"""

import enum
import uuid
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from pydantic import TypeAdapter

from perdure import Agent
from perdure.testing import say
from tests.memory import Run


class Colour(enum.Enum):
    RED = "red"


KEPT: dict[str, tuple[Any, str, Any]] = {
    "false": (bool, "false", False),
    "nought": (int, "0", 0),
    "an empty text": (str, '""', ""),
    "an empty list": (list[int], "[]", []),
    "an empty object": (dict[str, int], "{}", {}),
    "null": (int | None, "null", None),
    "a long number": (int, "12345678901234567890123", 12345678901234567890123),
    "a decimal": (Decimal, '"0.10"', Decimal("0.10")),
    "a date": (date, '"2026-11-28"', date(2026, 11, 28)),
    "a time": (datetime, '"2026-11-28T01:02:03Z"', datetime(2026, 11, 28, 1, 2, 3, tzinfo=UTC)),
    "a duration": (timedelta, '"P1D"', timedelta(days=1)),
    "an enumeration": (Colour, '"red"', Colour.RED),
    "an id": (uuid.UUID, '"00000000-0000-0000-0000-000000000001"', uuid.UUID(int=1)),
    "bytes": (bytes, '"abc"', b"abc"),
    "a set": (set[int], "[1, 2]", {1, 2}),
    "a pair": (tuple[int, str], '[1, "a"]', (1, "a")),
    "keys of numbers": (dict[int, str], '{"1": "a"}', {1: "a"}),
}


@pytest.mark.parametrize("name", KEPT)
async def test_an_answer_comes_back_as_it_was(run: Run, name: str) -> None:
    """S-24: with one answer of the model."""
    wanted, answer, value = KEPT[name]
    result = await run(Agent(name="tester", model="openai/scripted", output_schema=wanted), say(answer))
    assert (result["stop_reason"], len(run.requests)) == ("finished", 1), result["error"]
    read = run.last.result.value_as(TypeAdapter(wanted))
    assert (read, type(read)) == (value, type(value))


NO_JSON = "is not the JSON that the agent's output asks for"

REFUSED: dict[str, tuple[Any, str, str, str]] = {
    "NaN": (float, "NaN", "llm.parse_error", NO_JSON),
    "infinity": (float, "-Infinity", "llm.parse_error", NO_JSON),
    "too large a number": (float, "1e999", "llm.parse_error", "a number in it is too large"),
    "a decimal that is none": (Decimal, '"NaN"', "llm.schema_violation", "Input should be a finite number"),
    "twice in a set": (set[int], "[1, 1]", "llm.schema_violation", "has non-unique elements"),
    "half a character": (str, '"\\ud83d"', "llm.parse_error", NO_JSON),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_an_answer_that_is_no_value_is_refused_by_name(run: Run, name: str) -> None:
    """S-24."""
    wanted, answer, code, why = REFUSED[name]
    agent = Agent(name="tester", model="openai/scripted", output_schema=wanted, output_corrections=0)
    result = await run(agent, say(answer))
    assert (result["reason_code"], result["value"]) == (code, None)
    assert why in result["error"]
