"""The promises of docs/promises.md and docs/security.md, and the tests that name them in their docstrings.

``python -m tests.contract.promises [S-14 …]`` lists the tests of all promises, or of these: how many the fast and the
deep lane have, and which.
"""

import ast
import functools
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tests.contract.repository import ROOT, sources

PAGES = {"S": ROOT / "docs" / "promises.md", "T": ROOT / "docs" / "security.md"}
"""The pages with promises, by the letter of their numbers."""

NOT_BUILT = "*Not built yet.*"

DEEP = "pytest.mark.deep"

_LINE = re.compile(r"^- \*\*([ST]-\d+)\*\* (.+)$", re.MULTILINE)
_NAMED = re.compile(r"\b([ST])-(\d+)(?: to \1-(\d+))?")


def promises() -> dict[str, str]:
    """The sentence of each promise, by its number."""
    found = [line for page in PAGES.values() for line in _LINE.findall(page.read_text(encoding="utf-8"))]
    numbers = [number for number, _ in found]
    assert len(numbers) == len(set(numbers)), "a number stands twice on the page"
    return dict(found)


def numbers(text: str) -> Iterator[str]:
    """The promises that a text names; ``S-32 to S-34`` names three."""
    for match in _NAMED.finditer(text):
        first, last = int(match[2]), int(match[3] or match[2])
        yield from (f"{match[1]}-{number:02}" for number in range(first, last + 1))


@dataclass(frozen=True)
class Test:
    """A test that names a promise."""

    __test__ = False

    name: str
    deep: bool = False

    def __str__(self) -> str:
        """Its id, and its lane if that is the deep one."""
        return f"{self.name} (deep)" if self.deep else self.name


@functools.cache
def named() -> Mapping[str, list[Test]]:
    """The tests that name each promise in their docstrings."""
    found: defaultdict[str, list[Test]] = defaultdict(list)
    for path in sources("tests"):
        if path.name.startswith("test_"):
            tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
            for test in functions_of(tree):
                for number in sorted(set(numbers(ast.get_docstring(test) or ""))):
                    found[number].append(Test(f"{path}::{test.name}", is_deep(tree, test)))
    return found


def is_deep(tree: ast.Module, test: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a test is of the deep lane: it is marked, or its file is."""
    of_file = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and any(ast.unparse(target) == "pytestmark" for target in node.targets)
    ]
    return any(DEEP in ast.unparse(mark) for mark in [*of_file, *test.decorator_list] if is_whole(mark))


def is_whole(mark: ast.expr) -> bool:
    """Whether a mark holds for all cases of a test; one within ``parametrize`` is of some."""
    return not ast.unparse(mark).startswith("pytest.mark.parametrize")


def functions_of(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """The test functions of a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield node


def gaps(sentences: Mapping[str, str], tests: Mapping[str, list[Test]]) -> Iterator[str]:
    """Where promises and tests disagree, a line each."""
    for number, sentence in sentences.items():
        if NOT_BUILT not in sentence and number not in tests:
            yield f"{number} has no test"
        if NOT_BUILT in sentence and number in tests:
            yield f"{number} is not built, and {tests[number][0].name} names it"
    for number in sorted(set(tests) - set(sentences)):
        yield f"{number} is no promise, and {tests[number][0].name} names it"


def listing(*wanted: str) -> Iterator[str]:
    """Lines with all promises, or these, and their tests."""
    tests = named()
    for number, sentence in promises().items():
        if not wanted or number in wanted:
            mine = tests.get(number, [])
            deep = sum(test.deep for test in mine)
            yield f"{number}  fast {len(mine) - deep:2}  deep {deep:2}  {sentence}"
            yield from (f"      {test}" for test in mine)


if __name__ == "__main__":
    sys.stdout.write("\n".join(listing(*sys.argv[1:])) + "\n")
