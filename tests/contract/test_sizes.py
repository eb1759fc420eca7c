"""Files and functions stay small enough to be read: the targets of the house style, counted."""

import ast
from collections.abc import Iterator

import pytest

from tests.contract.repository import PACKAGES, ROOT, sources

LONGEST_FILE = 400
LONGEST_FUNCTION = 80


def oversized(name: str, text: str) -> Iterator[str]:
    """What is too long in a file, one line each."""
    lines = len(text.splitlines())
    if lines > LONGEST_FILE:
        yield f"{name}: {lines} lines"
    for node in ast.walk(ast.parse(text)):
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
        ("def f():\n" + "    pass\n" * LONGEST_FUNCTION, f"planted.py: f has {LONGEST_FUNCTION + 1} lines"),
    ],
)
def test_what_is_too_long_is_named(text: str, named: str) -> None:
    assert list(oversized("planted.py", text)) == [named]
