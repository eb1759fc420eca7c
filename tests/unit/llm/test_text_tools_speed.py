"""No text makes the search for calls slow: it runs beside the heartbeats of a worker."""

import time
from typing import Any

import pytest

from perdure.contracts.tools import ToolDeclaration
from perdure.llm.text_tools import calls_in, write_calls

pytestmark = pytest.mark.deep

MODES: list[Any] = ["xml", "json", "pythonic"]
"""The modes with tags are read alike."""
TOOLS = (ToolDeclaration(name="pay", description="", parameters={}, reference="m:f"),)

SHORT, FACTOR, TRIES = 8_000, 16, 4
PARTS = (
    *("`", "``` ", "```\n", "```a\n", "```\n```\n", "`a\n", "` `", "\n", " ", "\n ", "\n \n", "```\n[", "```\n{"),
    *("<tool-call", "<tool-call ", "<tool-call>", "</tool-call>", '<tool-call name="', '<tool-call name="pay">', "<"),
    *('<tool-call name="pay"><a>', '<tool-call name="pay">{', '<tool-call>{"name": "pay"', "<tool-call name=pay "),
    *("<parameter name=x ", "name ", "name=", 'name="', '<tool-call name="pay"><![CDATA[', "<tool-result>", "&#"),
    *('```\n<tool-call name="pay"><a>', "```\n<tool-call name=pay>", '<tool-call name="pay"><a></a>', "<a>"),
    *("{", "[", "{[", '{"', '{"a', '{"a"', '{"a":', '{"a":[', '{"name"', '{"name":', '{"name":"pay"', '{"name":"pay",'),
    *('{"name": "pay", "arguments": {', '{"a":"\\', '{"\\"', '{"a": 1', '{"a":{},', "{'name': 'pay'", "{1", '\\"{"'),
    *("[pay(", "pay(", "\npay(", "[a(", "[a([", "\n[a(", "[a('", "[pay('", "[pay(),", "[a(),", "\npay() ", "\npay()x"),
    *("[pay(')", '[pay("""', "[pay(1,", "[pay(-", "[pay((", "[pay(a=1 + ", "[pay(a.", "\\", "'\\", "[pay('\\", "a"),
    *(
        "[a(b)](c) ",
        "[a(1)]",
        "[ ",
        "[ a",
        "```\n[pay(",
        "```\n[a(),",
        "```\npay()\n",
        "```\npay() \n```\n",
        "[pay(1),)",
    ),
)


def seconds(mode: Any, text: str) -> float:
    """Processor time, which other processes do not take away."""
    began = time.thread_time()
    calls_in(mode, text, TOOLS)
    return time.thread_time() - began


def in_proportion(mode: Any, text: str, longer: str) -> bool:
    """Whether sixteen times the length takes at most four times its share, in the best of a few tries."""
    allowed = FACTOR * 4 * max(min(seconds(mode, text) for _ in range(TRIES)), 0.0005)
    return any(seconds(mode, longer) < allowed for _ in range(TRIES))


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("mode", MODES)
def test_a_longer_text_takes_longer_in_proportion(mode: Any, part: str) -> None:
    """S-27: of 16 times the length 16 times as long, and not 256 times."""
    many = SHORT // len(part)
    assert in_proportion(mode, part * many, part * many * FACTOR)


@pytest.mark.parametrize("mode", MODES)
def test_a_megabyte_takes_less_than_a_second(mode: Any) -> None:
    """S-27: one long argument, and a long text around calls."""
    call = write_calls(mode, [("pay", {"note": 'a "b"\n' * 170_000})], {})
    short = write_calls(mode, [("pay", {"note": "x"})], {})
    for text in (call, f"{'word {1} [2] <3> `4` ' * 25_000}\n{short}\n{'word {1} [2] <3> `4` ' * 25_000}"):
        assert len(calls_in(mode, text, TOOLS)[1]) == 1
        assert any(seconds(mode, text) < 1 for _ in range(TRIES))
