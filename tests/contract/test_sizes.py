"""A file holds one subject and a function tells one story: how long each may be, counted."""

import ast
from collections.abc import Iterator

import pytest

from tests.contract.repository import PACKAGES, ROOT, sources

LONGEST_FILE = 600
LONG_FILE = 450
REASON = "Long, because"
"""Starts the sentence in the module docstring of a longer file that says why it is not two."""
LONGEST_FUNCTION = 90


def oversized(name: str, text: str) -> Iterator[str]:
    """What is too long in a file, one line each."""
    lines, tree = len(text.splitlines()), ast.parse(text)
    if lines > LONGEST_FILE:
        yield f"{name}: {lines} lines"
    elif lines > LONG_FILE and REASON not in (ast.get_docstring(tree) or ""):
        yield f"{name}: {lines} lines, and no sentence {REASON!r} in its docstring"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
            length = node.end_lineno - node.lineno + 1
            if length > LONGEST_FUNCTION:
                yield f"{name}: {node.name} has {length} lines"


def test_no_file_and_no_function_is_too_long() -> None:
    found = [
        line for path in sources(*PACKAGES) for line in oversized(str(path), (ROOT / path).read_text(encoding="utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("pass\n" * (LONGEST_FILE + 1), f"planted.py: {LONGEST_FILE + 1} lines"),
        (
            "pass\n" * (LONG_FILE + 1),
            f"planted.py: {LONG_FILE + 1} lines, and no sentence {REASON!r} in its docstring",
        ),
        ("def f():\n" + "    pass\n" * LONGEST_FUNCTION, f"planted.py: f has {LONGEST_FUNCTION + 1} lines"),
    ],
)
def test_what_is_too_long_is_named(text: str, named: str) -> None:
    assert list(oversized("planted.py", text)) == [named]


def test_a_long_file_with_its_reason_is_accepted() -> None:
    assert list(oversized("planted.py", f'"""One subject. {REASON} it is a table."""\n' + "pass\n" * LONG_FILE)) == []
