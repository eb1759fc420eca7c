"""The promises of docs/promises.md and docs/security.md, and the tests that name them in their docstrings.

``python -m tests.contract.promises [S-14 …]`` lists the tests of all promises, or of these.
"""

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping

from tests.contract.repository import ROOT, sources

PAGES = {"S": ROOT / "docs" / "promises.md", "T": ROOT / "docs" / "security.md"}
"""The pages with promises, by the letter of their numbers."""

NOT_BUILT = "*Not built yet.*"

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


def named() -> Mapping[str, list[str]]:
    """The tests that name each promise in their docstrings."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for path in sources("tests"):
        if path.name.startswith("test_"):
            tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
            for test in functions_of(tree):
                for number in sorted(set(numbers(ast.get_docstring(test) or ""))):
                    found[number].append(f"{path}::{test.name}")
    return found


def functions_of(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """The test functions of a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield node


def gaps(sentences: Mapping[str, str], tests: Mapping[str, list[str]]) -> Iterator[str]:
    """Where promises and tests disagree, a line each."""
    for number, sentence in sentences.items():
        if NOT_BUILT not in sentence and number not in tests:
            yield f"{number} has no test"
        if NOT_BUILT in sentence and number in tests:
            yield f"{number} is not built, and {tests[number][0]} names it"
    for number in sorted(set(tests) - set(sentences)):
        yield f"{number} is no promise, and {tests[number][0]} names it"


def listing(*wanted: str) -> Iterator[str]:
    """Lines with all promises, or these, and their tests."""
    tests = named()
    for number, sentence in promises().items():
        if not wanted or number in wanted:
            yield f"{number}  {sentence}"
            yield from (f"      {test}" for test in tests.get(number, []))


if __name__ == "__main__":
    sys.stdout.write("\n".join(listing(*sys.argv[1:])) + "\n")
