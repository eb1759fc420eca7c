"""Where a tool raised its exception, as people read it."""

import pytest

from perdure.activities.errors import LONGEST_RAW_TEXT
from perdure.activities.toolbox.output import TRACEBACK_CHARACTERS, traceback_of

SECRET = "hunter2-hunter2-hunter2"


def fail(text: str) -> None:
    raise ValueError(text)


def raised(text: str) -> Exception:
    with pytest.raises(ValueError, match="the end") as raised:
        fail(text)
    return raised.value


def test_a_long_traceback_ends_with_its_last_line_and_parts_no_secret() -> None:
    """Wherever the secret stands, also at the cut of a text that is too long to be searched."""
    for before in range(LONGEST_RAW_TEXT - 200, LONGEST_RAW_TEXT + 1, 7):
        for after in (0, TRACEBACK_CHARACTERS - 10, LONGEST_RAW_TEXT - 10):
            shown = traceback_of(raised("a" * before + SECRET + "b" * after + "the end"), frozenset({SECRET}))
            assert shown.endswith("the end")
            assert not any(SECRET[:length] in shown or SECRET[-length:] in shown for length in range(6, len(SECRET)))
            assert len(shown) <= TRACEBACK_CHARACTERS
