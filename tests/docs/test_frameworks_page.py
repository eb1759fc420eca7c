"""The page of frameworks: its table says what the strangers' lane expects, and every program has its lines."""

import pytest

from tests.strangers import environments, pages
from tests.strangers.test_strangers import ALL, EXPECTED, Told


def is_right(case: str, told: Told) -> bool:
    """Whether a case goes as it should; an error is of whichever class."""
    return told == ALL[case] or (case == "unknown_model" and told.said.endswith(" 404") and told[1:] == (0, 0))


def test_the_table_is_what_the_lane_expects() -> None:
    table = pages.table()
    assert table.keys() == EXPECTED.keys() == environments.NEEDS.keys()
    for program, cells in table.items():
        for case, cell in cells.items():
            assert (cell == "✓") == is_right(case, EXPECTED[program][case]), f"{program}: {case}"
            assert cell == "✓" or f"- **{cell}** " in pages.PAGE


@pytest.mark.parametrize("program", EXPECTED)
def test_each_program_has_its_lines(program: str) -> None:
    assert {"http://127.0.0.1:8234/openai/v1", "writer", "Name a river."} <= {
        part for part in pages.lines_for(program).replace('openai/writer"', 'writer"').split('"') if part
    }
