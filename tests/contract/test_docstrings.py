"""A docstring names the thing: it begins with a noun or a verb, and says what the thing is."""

import ast
import inspect
import re
from collections.abc import Iterator
from textwrap import dedent

import pytest

from perdure import Agent, tool
from perdure.client import Client
from perdure.testing import call, say
from perdure.testing.in_memory import run_in_memory
from tests.contract.repository import PACKAGES, ROOT, sources

QUESTION = re.compile(r"\s*(?:What|Why|How|Where)\b")
"""First word of a docstring that asks for the thing in place of naming it."""
NEGATION = re.compile(r"(?<!\bthere )\bis no (?!longer\b|more than\b)", re.IGNORECASE)
"""Statement of what a thing is not; ``There is no such session`` is plain English, and stays."""


def docstrings_of(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and text of each docstring: of the module, of a class or function, and below an attribute."""
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, text


def oddities(name: str, text: str) -> Iterator[str]:
    """Docstrings of a file that do not name their thing, a line each."""
    for line, docstring in docstrings_of(ast.parse(text)):
        words = " ".join(docstring.split())
        if asked := QUESTION.match(words):
            yield f"{name}:{line}: begins with {asked[0]!r}; begin with a noun or a verb that names the thing"
        if NEGATION.search(words):
            yield f"{name}:{line}: says 'is no …'; say what it is, or write 'is not a …'"


def test_the_docstrings_of_the_product_name_their_things() -> None:
    found = [
        line for path in sources(*PACKAGES) for line in oddities(str(path), (ROOT / path).read_text(encoding="utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('"""What is planted."""\n', "planted.py:1: begins with 'What'"),
        ('class A:\n    """Where it is."""\n', "planted.py:2: begins with 'Where'"),
        ('async def f() -> None:\n    """How it goes."""\n', "planted.py:2: begins with 'How'"),
        ('if X:\n    def f() -> None:\n        """Why."""\n', "planted.py:3: begins with 'Why'"),
        ('X = 1\n"""What it is."""\n', "planted.py:2: begins with 'What'"),
        ('class A:\n    x: int\n    """Why it is."""\n', "planted.py:3: begins with 'Why'"),
        ('"""A reply that is\nno answer."""\n', "planted.py:1: says 'is no …'"),
        ('"""Parse it.\n\nRaises:\n    ValueError: It is no JSON.\n"""\n', "planted.py:1: says 'is no …'"),
    ],
)
def test_a_docstring_that_does_not_name_its_thing_is_found(text: str, named: str) -> None:
    (found,) = oddities("planted.py", text)
    assert found.startswith(named)


@pytest.mark.parametrize(
    "text",
    [
        '"""Whatever is planted; it says what it is, and why."""\n',
        '"""The step; None if there is no such step, or it is no longer kept, or is no more than a note."""\n',
        '"""A step."""\nX = "What is no docstring."\n',
    ],
)
def test_a_docstring_that_names_its_thing_is_accepted(text: str) -> None:
    assert list(oddities("planted.py", text)) == []


DOORS = (tool, Agent, run_in_memory, Client.start)
"""Functions and classes that a reader of the product calls first."""


def example_of(door: object) -> str:
    """The code below ``Example::`` in a docstring."""
    _, _, below = (inspect.getdoc(door) or "").partition("Example::\n")
    return dedent(re.split(r"\n(?=\S)", below, maxsplit=1)[0]).strip()


@pytest.mark.parametrize("door", DOORS)
def test_a_door_shows_an_example(door: object) -> None:
    code = compile(example_of(door), "<example>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    assert getattr(door, "__name__", "") in code.co_names


async def test_the_examples_of_tool_agent_and_run_in_memory_run() -> None:
    names: dict[str, object] = {"tool": tool, "Agent": Agent, "run_in_memory": run_in_memory, "call": call, "say": say}
    for door in (tool, Agent, run_in_memory):
        code = compile(example_of(door), "<example>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        if (waiting := eval(code, names)) is not None:
            await waiting
    assert names["run"].result.output == "three"  # type: ignore[attr-defined]
