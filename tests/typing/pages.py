"""The Python of README and docs, a module per page: each line has the number that it has on the page.

The blocks of a page are read one after another, as a reader does. What a fragment needs and the page does not show
stands before it in a comment of the page, which starts with ``<!-- python``. A page that awaits outside of a function
is the body of one.
"""

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

from tests.contract.repository import ROOT

FOLDERS = ("docs", "deploy", "examples")

_PYTHON = re.compile(r"^(?:```python|<!-- python)\n(.*?)^(?:```|-->)", re.DOTALL | re.MULTILINE)


def pages() -> Iterator[Path]:
    """Every page of the repository, relative to it."""
    for path in (*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))):
        yield path.relative_to(ROOT)


def module_of(page: str) -> str:
    """The Python of a page; empty if it has none."""
    lines = [""] * len(page.splitlines())
    for block in _PYTHON.finditer(page):
        first = page.count("\n", 0, block.start(1))
        for place, line in enumerate(block[1].splitlines(), start=first):
            lines[place] = line
    code = "\n".join(lines)
    if not code.strip():
        return ""
    if not _awaits(code):
        return code
    begin = next(place for place, line in enumerate(lines) if line) - 1  # the line that opens the block
    body = [f"    {line}" if line else "" for line in lines]
    return "\n".join([*body[:begin], "async def page() -> None:", *body[begin + 1 :]])


def _awaits(code: str) -> bool:
    made = compile(code, "page", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    return bool(made.co_flags & inspect.CO_COROUTINE)
