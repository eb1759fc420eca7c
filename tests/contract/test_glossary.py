"""The code says a thing by the word that the glossary has for it."""

import ast
import re
from collections.abc import Iterable, Iterator

import pytest

from tests.contract.repository import PACKAGES, ROOT, sources

ELSEWHERE = {
    "action": "OAuth and shells have actions",
    "assistant": "the role of a message",
    "attachment": "a part of a tool's output before it is stored as an artifact",
    "completion": "the criterion of a complete turn, and the name of a provider's endpoint",
    "config": "the settings of an MCP server",
    "conversation": "the messages of a session",
    "function": "Python's",
    "history": "Temporal's, and the messages that a request brings",
    "idempotency key": "of a tool call",
    "interrupt": "Ctrl+C",
    "prompt": "the message that starts a turn",
    "queue": "Temporal's task queue, and queues in memory",
    "replay": "of a recording, and of a history",
    "skill": "a word of the glossary",
    "status": "of HTTP, and of a running turn",
    "stuck": "a wait that does not end by itself",
    "task": "asyncio's, and Temporal's task queue",
    "thread": "the operating system's",
    "trace": "of an exception",
}
"""Words that the glossary forbids for one thing and that are right for another."""

ALLOWED = {
    "truncation": "a parameter of OpenAI's Responses API",
    "Jobs": "a job is what people call a durable turn from outside: the tools of `perdure mcp`",
    "JobStatus": "Perstack's word, in its export",
    "job_status": "Perstack's word, in its export",
    "jobs": "the tools of `perdure mcp`",
    "OnChildError": "a public setting",
    "on_child_error": "a public setting",
    "ChildTurn": "Temporal's child workflows",
    "_ChildTurn": "Temporal's child workflows",
    "_start_child": "Temporal's child workflows",
    "child": "Temporal's child workflow",
    "_kill_children": "an operating system's processes",
    "PR_SET_CHILD_SUBREAPER": "a constant of Linux",
    "CALLBACK": "OAuth's",
    "callback": "OAuth's, and what an asyncio task calls when it is done",
    "_Callback": "OAuth's",
    "LLM_QUOTA_EXHAUSTED": "a provider's quota",
    "quota_exhausted": "a provider's quota",
    "HEARTBEAT_THROTTLE": "a setting of Temporal's worker",
}
"""Names with a forbidden word, and why."""


def forbidden_words() -> set[str]:
    """The last column of the glossary."""
    rows = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8").splitlines()
    cells = [row.split("|")[3] for row in rows if row.startswith("| **")]
    return {word.strip() for cell in cells for word in cell.split(",") if word.strip()}


def words_of(name: str) -> str:
    """``SubAgent`` and ``sub_agents`` as `` sub agent ``."""
    parts = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().split("_")
    return f" {' '.join(part.removesuffix('s') for part in parts)} "


def names_in(source: str) -> Iterator[str]:
    """The names that a module binds: functions, classes, arguments, variables and attributes."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name
            case ast.arg():
                yield node.arg
            case ast.Name(ctx=ast.Store()):
                yield node.id
            case ast.Attribute(ctx=ast.Store()):
                yield node.attr
            case _:
                pass


def names_with(words: Iterable[str], source: str) -> list[str]:
    """The names of a module that hold one of these words and are not allowed."""
    wanted = [words_of(re.sub(r"\W", "_", word)) for word in words]
    names = sorted({name for name in names_in(source) if any(word in words_of(name) for word in wanted)})
    return [name for name in names if name not in ALLOWED]


def test_no_name_says_a_thing_by_another_word() -> None:
    words = forbidden_words() - ELSEWHERE.keys()
    found = {str(path): names_with(words, (ROOT / path).read_text(encoding="utf-8")) for path in sources(*PACKAGES)}
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize("source", ["def run_sub_agent(): ...", "class SubAgents: ...", "x.quotas = 1", "bot = 1"])
def test_a_forbidden_word_in_a_name_is_found(source: str) -> None:
    assert names_with({"sub-agent", "quota", "bot"}, source)


def test_every_exception_is_used() -> None:
    bound = {name for path in sources(*PACKAGES) for name in names_in((ROOT / path).read_text(encoding="utf-8"))}
    assert set(ALLOWED) - bound == set()
    assert ELSEWHERE.keys() - forbidden_words() == set()
