"""A file holds one subject and a function tells one story: how long each may be, and how short a file, counted."""

import ast
from collections import Counter
from collections.abc import Iterator, Mapping

import pytest

from tests.contract.repository import PACKAGES, ROOT, in_the_package, modules, sources

LONGEST_FILE = 600
LONG_FILE = 450
REASON = "Long, because"
"""Starts the sentence in the module docstring of a longer file that says why it is not two."""
LONGEST_FUNCTION = 90
SHORT_FILE = 40
"""A shorter module is part of the one that imports it, if only one does."""


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


def imported(text: str) -> set[str]:
    """Every dotted name that a file may mean by its imports: of modules, and of what is in them."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def undersized(texts: Mapping[str, str]) -> list[str]:
    """The short modules that only one other imports, given the text of each module."""
    importers = Counter(name for text in texts.values() for name in imported(text))
    return [name for name, text in texts.items() if len(text.splitlines()) < SHORT_FILE and importers[name] == 1]


def test_no_module_is_too_short_to_stand_alone() -> None:
    known = set(modules(*PACKAGES))
    texts = {
        ".".join(in_the_package(path).with_suffix("").parts): (ROOT / path).read_text(encoding="utf-8")
        for path in sources(*PACKAGES)
    }
    found = undersized(texts)
    assert not {name for name in found if name in known}


def test_a_short_module_with_one_importer_is_named() -> None:
    texts = {
        "a": "from pkg import short\n",
        "b": "import pkg.shared\n",
        "c": "from pkg.shared import x\n",
        "pkg.short": "X = 1\n",
        "pkg.shared": "x = 1\n",
        "pkg.long": "pass\n" * SHORT_FILE,
        "d": "import pkg.long\n",
    }
    assert undersized(texts) == ["pkg.short"]


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
