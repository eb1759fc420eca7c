"""Each promise has a test that names it, and no test names a promise that nobody made."""

import ast

import pytest

from tests.contract.promises import (
    NOT_BUILT,
    PAGES,
    Test,
    functions_of,
    gaps,
    is_deep,
    named,
    numbers,
    promises,
)

TEST = '''
async def test_a() -> None:
    """S-01 S-04 to S-06: all of them."""

def helper() -> None:
    """S-09."""
'''


ONLY_DEEP: dict[str, str] = {}
"""Promises without a test in the fast lane, and why only a killed process shows that they hold."""


def test_each_promise_has_a_fast_test_or_a_reason_why_not() -> None:
    """Who lands a change has run the fast lane only."""
    tests = named()
    found = {number for number in promises() if tests.get(number) and all(test.deep for test in tests[number])}
    assert found == set(ONLY_DEEP)


def test_promises_and_tests_agree_in_both_directions() -> None:
    assert list(gaps(promises(), named())) == []


def test_each_way_to_disagree_is_told() -> None:
    """Proves that the test above can fail."""
    sentences = {"S-01": "One.", "S-02": f"Two. {NOT_BUILT}", "S-03": "Three."}
    assert list(gaps(sentences, {"S-01": [Test("a")], "S-02": [Test("b")], "S-81": [Test("c")]})) == [
        "S-02 is not built, and b names it",
        "S-03 has no test",
        "S-81 is no promise, and c names it",
    ]


def test_a_test_names_promises_in_its_docstring() -> None:
    (test,) = functions_of(ast.parse(TEST))
    assert list(numbers(ast.get_docstring(test) or "")) == ["S-01", "S-04", "S-05", "S-06"]


def test_the_numbers_of_the_page_have_no_gap() -> None:
    for letter in PAGES:
        told = [number for number in promises() if number.startswith(letter)]
        assert told == [f"{letter}-{number:02}" for number in range(1, len(told) + 1)]
        assert told


@pytest.mark.parametrize(
    ("text", "deep"),
    [
        ("@pytest.mark.deep\ndef test_a(): ...", True),
        ("pytestmark = pytest.mark.deep\ndef test_a(): ...", True),
        ("pytestmark = [pytest.mark.usefixtures('x'), pytest.mark.deep]\ndef test_a(): ...", True),
        ("@pytest.mark.parametrize('a', [1, pytest.param(2, marks=pytest.mark.deep)])\ndef test_a(a): ...", False),
        ("@pytest.mark.xfail\ndef test_a(): ...", False),
    ],
)
def test_the_lane_of_a_test_is_read_from_its_marks(text: str, *, deep: bool) -> None:
    tree = ast.parse(text)
    (test,) = functions_of(tree)
    assert is_deep(tree, test) == deep
