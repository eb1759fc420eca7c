"""The page on the fields of an agent has each field of the code, with its default and its choices."""

import re
from datetime import timedelta
from typing import Literal, get_args, get_origin

import pytest
from pydantic.fields import FieldInfo

from perdure import Agent
from perdure.contracts.values import Value
from tests.docs.sections import DOCS, section

PAGE = section("agents", "Fields of `Agent`")


def rows_of(page: str) -> list[tuple[str, str, str, str]]:
    """The rows of the page's tables: name, type, default and meaning of a field."""
    return re.findall(r"^\| `(\w+)` \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", page, re.MULTILINE)


def problems_of(page: str) -> set[str]:
    """The fields that the page leaves out, invents, has twice, or shows with another default or other choices."""
    rows, fields = rows_of(page), Agent.model_fields
    names = [name for name, *_ in rows]
    wrong = {name for name in names if names.count(name) > 1} | (set(names) ^ set(fields))
    for name, kind, default, _ in rows:
        if name in fields and (default != default_of(fields[name]) or set(choices_of(fields[name])) - words_in(kind)):
            wrong.add(name)
    return wrong


def words_in(cell: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", cell))


def default_of(field: FieldInfo) -> str:
    """The default as the page writes it."""
    if field.is_required():
        return "required"
    match field.default:
        case None | "" | () | {}:
            return "none"
        case timedelta() as time:
            return f"{time.total_seconds():g} s"
        case Value() as value:
            assert value == type(value)()
            return f"`{type(value).__name__}()`"
        case str() | bool() as value:
            return f"`{value}`"
        case value:
            return str(value)


def choices_of(field: FieldInfo) -> tuple[str, ...]:
    """The words that a field of choices takes; none of any other field."""
    kinds = (field.annotation, *get_args(field.annotation))
    return next((get_args(kind) for kind in kinds if get_origin(kind) is Literal), ())


def test_the_tables_have_every_field_with_its_default_and_its_choices() -> None:
    assert problems_of(PAGE) == set()


def test_every_field_has_one_sentence_and_a_page_that_explains_it() -> None:
    for name, _, _, meaning in rows_of(PAGE):
        (page,) = re.findall(r" \(\[[^]]+\]\(((?:[\w-]+\.md)?)(?:#[\w-]+)?\)\)\.$", meaning) or ["none"]
        assert (DOCS / (page or "agents.md")).is_file(), name


@pytest.mark.parametrize(
    ("shown", "instead", "found"),
    [
        (r"\| `max_running` .*\n", "", "max_running"),
        (r"\| `cache` ", "| `caches` ", "caches"),
        (r"(`generation_timeout` .*\|) 600 s \|", r"\1 300 s |", "generation_timeout"),
        (r"\| `latest` \|", "| `off` |", "cache"),
        (r"`wait`, `stop`, `refuse`", "`wait`, `stop`", "interactive"),
        (r"(\| `hooks` .*\n)", r"\1\1", "hooks"),
    ],
)
def test_a_page_that_differs_is_found(shown: str, instead: str, found: str) -> None:
    planted, changes = re.subn(shown, instead, PAGE)
    assert changes == 1
    assert found in problems_of(planted)
