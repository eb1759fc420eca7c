"""Regular expressions of stop conditions: what may be searched for is decided without compiling it for the search."""

import pytest

from perdure import stop
from perdure.contracts.conditions import CONDITIONS

TAKEN = [
    r"^done\b",
    r"a{2000}",
    r"(?:a{100}){19}",
    r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(?:\.\d{1,6})?Z",
    r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}",
    r"\{\s*\"done\"\s*:\s*true",
    r"[{}]{2}",
    r"[^()\]]+\)",
    r"a{,3}b{2,}c{0,10000}",
    r"\\{2}",
    r"\N{EM DASH}",
    r"(?i:done)|(?P<x>y)(?P=x)",
    "(" * 50 + "a" + ")" * 50,
]


@pytest.mark.parametrize("pattern", TAKEN)
def test_an_expression_is_taken(pattern: str) -> None:
    """S-34."""
    stop.output(pattern, regex=True)


REFUSED = [
    ("a{4000000000}", "2,000"),
    ("a{0,9999999999}", "is no regular expression"),
    ("a{2001}", "2,000"),
    ("(?:a{1000}){1000}", "2,000"),
    ("(?:(?:a|b[)({]{100}){100}){100}", "2,000"),
    (r"[\]](?:[^]]{200}){200}", "2,000"),
    (r"\\(?:a{200}){200}", "2,000"),
    ("(" + "|".join("a" * 200) + "){100}", "2,000"),
    ("(?x)a{1 000 000}", "leave"),
    ("(?x)# [\na{1000000}", "leave"),
    ("(?i-x:a)", "leave"),
    ("(?#[)a{1000000}", "leave"),
    ("[[:alpha:]{9}]{9}", "[:"),
    ("(" * 450 + "a" + ")" * 450, "50 brackets"),
    ("a{i<=}", r"\{"),
    ("done{s}", r"\{"),
    ("(?:x){e}", r"\{"),
    ("{{name}}", r"\{"),
    ("a{}", r"\{"),
    ("(", "is no regular expression"),
    (")a{2}", "is no regular expression"),
]


@pytest.mark.parametrize(("pattern", "words"), REFUSED)
def test_an_expression_that_would_cost_too_much_or_mean_something_else_is_refused(pattern: str, words: str) -> None:
    """S-34: where it is written and in a request: ``regex`` writes repeats out, and reads more into braces."""
    with pytest.raises(ValueError, match="pattern") as caught:
        stop.output(pattern, regex=True)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="pattern") as caught:
        CONDITIONS.validate_python([{"type": "tool_output", "pattern": pattern, "regex": True}])
    assert words in str(caught.value)


def test_a_text_that_is_no_expression_may_hold_anything() -> None:
    """S-34."""
    stop.output("a{4000000000}{e}" + "(" * 500)
