"""Each promise has a test that names it, and no test names a promise that nobody made."""

import ast

from tests.contract.promises import NOT_BUILT, PAGES, functions_of, gaps, named, numbers, promises

TEST = '''
async def test_a() -> None:
    """S-01 S-04 to S-06: all of them."""

def helper() -> None:
    """S-09."""
'''


def test_promises_and_tests_agree_in_both_directions() -> None:
    assert list(gaps(promises(), named())) == []


def test_each_way_to_disagree_is_told() -> None:
    """Proves that the test above can fail."""
    sentences = {"S-01": "One.", "S-02": f"Two. {NOT_BUILT}", "S-03": "Three."}
    assert list(gaps(sentences, {"S-01": ["a"], "S-02": ["b"], "S-81": ["c"]})) == [
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
