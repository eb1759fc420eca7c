"""Tools in plain text: what the prompt says, what a model's answer holds, and how the conversation reads."""

import json
from collections.abc import Sequence
from typing import Any, get_args

import hypothesis.strategies as st
import pytest
from hypothesis import example, given

from perdure.contracts.agents import ToolMode
from perdure.contracts.tools import RawCall, ToolDeclaration
from perdure.contracts.values import json_object
from perdure.llm.openai_format import WireMessage
from perdure.llm.text_tools import calls_in, describe_tools, to_text, write_calls

MODES: list[Any] = [mode for mode in get_args(ToolMode) if mode not in {"auto", "api"}]
TAGGED: list[Any] = ["xml", "json-in-xml", "json-with-tag"]


def declared(name: str, **properties: dict[str, Any]) -> ToolDeclaration:
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    return ToolDeclaration(name=name, description=f"The {name}.", parameters=schema, reference="m:f")


PAY = declared("pay", amount={"type": "integer"}, note={"type": "string"})
LOOK = declared("git-look", at={"anyOf": [{"type": "string"}, {"type": "null"}]})
TOOLS = (PAY, LOOK)

TWO: dict[Any, str] = {
    "xml": '<tool-call name="pay"><parameter name="amount">7</parameter>\n<parameter name="note">a &lt; b</parameter>'
    '</tool-call>\n<tool-call name="git-look"><parameter name="at">null</parameter></tool-call>',
    "json": '{"name": "pay", "arguments": {"amount": 7, "note": "a < b"}}\n'
    '{"name": "git-look", "arguments": {"at": null}}',
    "json-in-xml": '<tool-call name="pay">\n{"amount": 7, "note": "a < b"}\n</tool-call>\n'
    "<tool-call name='git-look'>{\"at\": null}</tool-call>",
    "json-with-tag": '<tool-call>{"name": "pay", "arguments": {"amount": 7, "note": "a < b"}}</tool-call>\n'
    '<tool-call>\n{"name": "git-look", "arguments": {"at": null}}\n</tool-call>',
    "pythonic": '[pay(amount=7, note="a < b"), git-look(at=None)]',
}
"""The same two calls in each mode."""

WANTED = [("pay", {"amount": 7, "note": "a < b"}), ("git-look", {"at": None})]


def read(mode: Any, text: str, tools: Sequence[ToolDeclaration] = TOOLS) -> tuple[str, list[tuple[str, Any]]]:
    left, calls = calls_in(mode, text, tools)
    return left, [(call.name, json_object(call.arguments)) for call in calls]


def broken(mode: Any, text: str) -> tuple[str, RawCall]:
    """The one call of a text, whose arguments must be no JSON object."""
    left, (call,) = calls_in(mode, text, TOOLS)
    with pytest.raises(ValueError, match=r"."):
        json_object(call.arguments)
    return left, call


@pytest.mark.parametrize("mode", MODES)
def test_the_sample_of_each_mode_is_read(mode: Any) -> None:
    """S-27"""
    assert read(mode, TWO[mode]) == ("", WANTED)


@pytest.mark.parametrize("mode", MODES)
def test_text_before_and_behind_is_what_is_left(mode: Any) -> None:
    """S-27"""
    left, calls = read(mode, f"Ich zähle “so”: 1 < 2 & {{x}} [y].\n\n{TWO[mode]}\n\nThat is it.")
    assert (left, calls) == ("Ich zähle “so”: 1 < 2 & {x} [y].\n\nThat is it.", WANTED)


@pytest.mark.parametrize("label", ["", "json", "xml", "python", "tool_code"])
@pytest.mark.parametrize("mode", MODES)
def test_a_code_block_that_holds_nothing_else_is_a_call(mode: Any, label: str) -> None:
    assert read(mode, f"Now:\n```{label}\n{TWO[mode]}\n```\n") == ("Now:", WANTED)
    assert read(mode, f"Now: ```{label}\n{TWO[mode]}\n```") == ("Now:", WANTED)


@pytest.mark.parametrize("mode", MODES)
def test_a_quotation_is_no_call(mode: Any) -> None:
    """S-27: in a code block with other text, and in back ticks."""
    for text in (f"So:\n```\nFor example:\n{TWO[mode]}\n```\nDone.", f"Write `{TWO[mode].splitlines()[0]}` for it."):
        assert calls_in(mode, text, TOOLS) == (text, ())


@pytest.mark.parametrize("mode", MODES)
def test_behind_a_quotation_calls_are_read_again(mode: Any) -> None:
    quoted = f"```\nas in\n{TWO[mode]}\n```\nso `a` it's:"
    assert read(mode, f"{quoted}\n{TWO[mode]}") == (quoted, WANTED)
    assert read(mode, f"```python\nnever closed\n{TWO[mode]}")[1] == WANTED


@pytest.mark.parametrize("mode", MODES)
def test_a_result_that_the_model_made_up_ends_the_answer(mode: Any) -> None:
    """What it goes on to do rests on nothing."""
    made_up = f'{TWO[mode]}\n<tool-result id="1">paid</tool-result>\n{TWO[mode]}\nPaid.'
    assert read(mode, made_up) == ("", WANTED)
    only_spoken_of = "A <tool-result> holds what came of it."
    assert calls_in(mode, only_spoken_of, TOOLS) == (only_spoken_of, ())


@pytest.mark.parametrize("mode", MODES)
def test_an_unknown_tool_is_a_call_too(mode: Any) -> None:
    """The model is then told that there is none."""
    text = write_calls(mode, [("serch", {"q": "x"})], {})
    assert read(mode, text) == ("", [("serch", {"q": "x"})])


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>\n{"name": "pay", "arguments": {"amount": 7}}\n</tool_call>',
        '<tool_call>{"name": "pay", "parameters": {"amount": 7}}',
        '<TOOL-CALL>{"type": "function", "function": {"name": "pay", "arguments": "{\\"amount\\": 7}"}}</TOOL-CALL>',
        '<tool-call id="call_1" name="pay">\n```json\n{"amount": 7}\n```\n</tool-call>',
        '<tool-call name=pay>{"amount": 7}',
        '<tool-call name="pay"><amount>7</amount></tool-call>',
        '<tool-call name="pay">\n  <param name="amount">\n    7\n  </param>\n</tool-call>',
        '<tool-call name="pay"><parameter name="amount" type="integer"><![CDATA[7]]></parameter></tool-call>',
    ],
)
@pytest.mark.parametrize("mode", TAGGED)
def test_each_mode_with_tags_takes_what_models_make_of_it(mode: Any, text: str) -> None:
    assert read(mode, text) == ("", [("pay", {"amount": 7})])


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('<tool-call name="pay"></tool-call>', {}),
        ('<tool-call name="pay"/>', {}),
        ('<tool-call name="pay"><note/></tool-call>', {"note": ""}),
        ('<tool-call name="pay"><note>\nif a < b && c:\n    &copy;\n</note></tool-call>',
         {"note": "if a < b && c:\n    &copy;"}),
        ('<tool-call name="pay"><note><![CDATA[</note> &lt;]]></note></tool-call>', {"note": "</note> &lt;"}),
        ('<tool-call name="pay"><note>&#x1F600;&#65;&#0;&#xD800;&foo;</note></tool-call>',
         {"note": "😀A&#0;&#xD800;&foo;"}),
        ('<tool-call name="pay"><note>7</note><more>{"a": [-1.5, true]}</more></tool-call>',
         {"note": "7", "more": {"a": [-1.5, True]}}),
        ('<tool-call name="pay"><amount>seven</amount></tool-call>', {"amount": "seven"}),
        ('<tool-call name="git-look"><at>7</at></tool-call>', {"at": "7"}),
    ],
)  # fmt: skip
def test_elements_are_read_as_the_schema_says(text: str, arguments: Any) -> None:
    ((_, given),) = read("xml", text)[1]
    assert given == arguments


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("[pay(amount=-7, x=[1, (2.5, +3)], y={'a': true, 'b': None}, z=null, w=False)]",
         {"amount": -7, "x": [1, [2.5, 3]], "y": {"a": True, "b": None}, "z": None, "w": False}),
        ("pay(7, 'it\\'s')", {"amount": 7, "note": "it's"}),
        ('[pay(note="two\nlines", )]', {"note": "two\nlines"}),
        ('[pay(note=r"\\d", more="\\d \\u00e9 )]", long="""a "b"\n)""")]',
         {"note": "\\d", "more": "\\d é )]", "long": 'a "b"\n)'}),
        ("[pay(**{'from': 1}, amount=2)]", {"from": 1, "amount": 2}),
        ("[\n  pay(\n    amount=7,\n  ),\n]", {"amount": 7}),
        ("pay()", {}),
    ],
)  # fmt: skip
def test_literals_are_read_as_python_and_json_write_them(text: str, arguments: Any) -> None:
    assert read("pythonic", text) == ("", [("pay", arguments)])


@pytest.mark.parametrize(
    ("mode", "text", "name"),
    [
        ("json", '{"name": "pay", "arguments": {"amount": 7}', "pay"),
        ("json", "{'name': 'pay', 'arguments': {'amount': 7}}", "pay"),
        ("json", '{"name": "pay", "arguments": "seven"}', "pay"),
        ("json", '{"name": "serch", "arguments": {"q": 7', "serch"),
        ("json-in-xml", '<tool-call name="pay">{"amount": 7</tool-call>', "pay"),
        ("json-in-xml", '<tool-call name="pay">{"amount": 7}}</tool-call>', "pay"),
        ("json-in-xml", '<tool-call name="pay">amount is 7</tool-call>', "pay"),
        ("json-in-xml", '<tool-call name="pay" {"amount": 7}', "pay"),
        ("json-with-tag", '<tool-call>{"name": "pay", "arguments": {</tool-call>', "pay"),
        ("xml", '<tool-call name="pay"><parameter name="amount">7</tool-call>', "pay"),
        ("xml", '<tool-call name="pay"><note><![CDATA[7</note></tool-call>', "pay"),
        ("pythonic", "[pay(amount=)]", "pay"),
        ("pythonic", "[pay(amount=seven)]", "pay"),
        ("pythonic", "[pay(amount=__import__('os').getpid())]", "pay"),
        ("pythonic", "[pay(amount=1 + 1)]", "pay"),
        ("pythonic", "[pay(*[1])]", "pay"),
        ("pythonic", "[pay(**1)]", "pay"),
        ("pythonic", "[pay(x={1: 2})]", "pay"),
        ("pythonic", "[pay(1, 2, 3)]", "pay"),
        ("pythonic", "[pay(x for x in y)]", "pay"),
        ("pythonic", "[pay(amount=7", "pay"),
        ("pythonic", "[pay(note='never closed)]", "pay"),
        ("pythonic", "[pay(amount=7) and pay(amount=8)]", "pay"),
        ("pythonic", "pay(f'{amount}')", "pay"),
    ],
)
def test_a_call_that_was_begun_and_is_broken_is_not_lost(mode: Any, text: str, name: str) -> None:
    """S-22 S-27: it never runs, and the model is told of it."""
    left, call = broken(mode, f"Now.\n\n{text}\n\nDone.")
    assert call.name == name
    assert left.startswith("Now.")
    assert broken(mode, text)[1].name == name


@pytest.mark.parametrize("mode", TAGGED)
def test_an_object_in_tags_that_names_no_tool_is_a_call_of_none(mode: Any) -> None:
    (call,) = calls_in(mode, '<tool-call>{"amount": 7}</tool-call>', TOOLS)[1]
    assert call.name == ""


@pytest.mark.parametrize(
    ("mode", "text"),
    [
        ("json", 'The answer is {"name": "Ann", "age": 3}, or {"name": "pay", "rank": 1}.'),
        ("json", 'It is {"a": {"name": "pay", "arguments": {}}}.'),
        ("json", '{"name": "pay", "description": "The pay.", "parameters": {"type": "object"}}'),
        ("json", '{"type": "function", "function": {"name": "pay", "description": "", "parameters": {}}}'),
        ("json", '{"function": "pay"} {"name": 7, "arguments": {}} {"name": "Ann", age: 3}'),
        ("json-in-xml", "Write <tool-call> around it, or <tool-call to call."),
        ("json-in-xml", "A <tool-call/> and <tool-called> are none."),
        ("pythonic", "See [the page](http://example.org/pay(7)) and [see(here)](http://example.org)."),
        ("pythonic", "pay(amount=7) is how one pays, and so is\n  pay(amount=8), or pay(9"),
        ("pythonic", "I [serch(q=1)] it.\n[serch(there)]\n[serch(q=1"),
    ],
)  # fmt: skip
def test_what_only_speaks_of_calls_is_text(mode: Any, text: str) -> None:
    assert calls_in(mode, text, TOOLS) == (text, ())


def test_a_list_of_objects_is_a_list_of_calls() -> None:
    calls = '[{"name": "pay", "arguments": {}}, {"name": "pay", "arguments": {"amount": 2}}]'
    wanted = [("pay", {}), ("pay", {"amount": 2})]
    assert read("json", calls) == read("json", f"```json\n{calls}\n```") == ("", wanted)


def test_where_the_provider_does_it_nothing_is_read_or_said() -> None:
    for mode in ("api", "auto"):
        assert calls_in(mode, TWO["json"], TOOLS) == (TWO["json"], ())
        assert describe_tools(mode, TOOLS) == ""


@pytest.mark.parametrize("mode", MODES)
def test_the_prompt_names_every_tool_and_shows_a_call_that_is_one(mode: Any) -> None:
    text = describe_tools(mode, TOOLS)
    for tool in TOOLS:
        line = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
        assert line in [
            json.loads(row) for row in text.splitlines() if row.startswith('{"name"') and "description" in row
        ]
    other = declared("TOOL"), declared("OTHER_TOOL")
    shown = text.partition("in no code block:\n\n")[2]
    left, calls = calls_in(mode, shown.partition("\n\n")[0], other)
    assert left == ""
    assert (calls[0].name, json.loads(calls[0].arguments)) == ("TOOL", {"FIRST": "a text", "SECOND": [1, True]})
    assert describe_tools(mode, ()) == ""


CONVERSATION: list[WireMessage] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "go"},
    {
        "role": "assistant",
        "content": "Let me see.",
        "reasoning": [{"type": "thinking"}],
        "tool_calls": [
            {"id": "a_0", "function": {"name": "pay", "arguments": '{"amount": 7, "note": "a < b"}'}},
            {"id": "a_1", "function": {"name": "git-look", "arguments": '{"at": null}'}},
        ],
    },
    {"role": "tool", "tool_call_id": "a_0", "content": "</tool-result> paid"},
    {"role": "tool", "tool_call_id": "a_1", "content": "seen"},
    {"role": "user", "content": "and now?"},
    {"role": "assistant", "content": None, "tool_calls": [{"id": "b_0", "function": {"name": "pay", "arguments": ""}}]},
    {"role": "tool", "tool_call_id": "b_0", "content": ""},
    {"role": "assistant", "content": "done"},
    {"role": "user", "content": "more"},
    {"role": "user", "content": "and more"},
]  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
def test_a_conversation_in_text_has_no_calls_and_reads_like_one_in_this_mode(mode: Any) -> None:
    """S-27: providers without tools take it, and the model sees calls in the form it is asked for."""
    told = to_text(mode, CONVERSATION, TOOLS)
    roles = "system user assistant user assistant user assistant user user"
    assert [message["role"] for message in told] == roles.split()
    assert all("tool_calls" not in message and "tool_call_id" not in message for message in told)
    assert told[2]["reasoning"] == [{"type": "thinking"}]
    assert read(mode, str(told[2]["content"])) == ("Let me see.", WANTED)
    assert read(mode, str(told[4]["content"])) == ("", [("pay", {})])
    assert told[3]["content"] == (
        '<tool-result id="a_0" name="pay">\n&lt;/tool-result> paid\n</tool-result>\n\n'
        '<tool-result id="a_1" name="git-look">\nseen\n</tool-result>\n\nand now?'
    )
    assert told[0:2] + told[6:] == CONVERSATION[0:2] + CONVERSATION[8:]


TEXTS = st.text(max_size=20) | st.sampled_from(
    [
        "</tool-call>",
        '<tool-call name="pay">',
        "```\n",
        "]]>",
        "&amp;",
        "7",
        "null",
        "\n",
        " a\n ",
        '"""',
        "{",
        "\r",
        "\\",
    ]
)
LEAVES = st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    LEAVES | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
CALLS = st.lists(
    st.tuples(
        st.sampled_from(["pay", "git-look", "other"]),
        st.dictionaries(TEXTS | st.sampled_from(["amount", "note", "at", "from"]), JSON, max_size=4),
    ),
    min_size=1,
    max_size=3,
)


@pytest.mark.parametrize("mode", MODES)
@given(calls=CALLS)
@example(calls=[("pay", {"": "a\n", "x y": "\n", '"': "<![CDATA[", "class": "\r\n", "ﬁ": {"": -0.0}})])
def test_what_is_written_is_read_as_the_same(mode: Any, calls: list[tuple[str, dict[str, Any]]]) -> None:
    """S-27"""
    for _, arguments in calls:
        for name in ("note", "at"):  # their type, text, would not let other values through
            arguments.pop(name, None)
    tools = {tool.name: tool.parameters for tool in TOOLS}
    text = write_calls(mode, calls, tools)
    assert read(mode, text) == ("", calls)
    assert read(mode, f"It's `so`.\n\n{text}") == ("It's `so`.", calls)


@pytest.mark.parametrize("mode", MODES)
@given(note=TEXTS, at=TEXTS | st.none())
def test_texts_for_arguments_that_are_texts_are_read_as_the_same(mode: Any, note: str, at: str | None) -> None:
    calls: list[tuple[str, dict[str, Any]]] = [("pay", {"note": note}), ("git-look", {"at": at})]
    tools = {tool.name: tool.parameters for tool in TOOLS}
    assert read(mode, write_calls(mode, calls, tools)) == ("", calls)


PIECES = st.sampled_from(
    [*'{}[]()<>"\'`,:=&;/\\\n ', '"name"', "pay", "git-look", '"arguments"', "```", "<tool-call", ' name="pay">',
     "</tool-call>", "<parameter name=\"note\">", "</parameter>", "<![CDATA[", "<note>", "pay(", "amount=", "7", "-",
     "**", "<tool-result>", "lambda", "0x", "\\N{", "\x00", "é", '"""', "[pay(", "1_", "else", '{"name":"pay",']
)  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
@given(text=st.lists(PIECES, max_size=30).map("".join) | st.text())
def test_no_text_is_too_much(mode: Any, text: str) -> None:
    """S-27: nothing raises, and without calls the text is what it was."""
    left, calls = calls_in(mode, text, TOOLS)
    assert calls or left == text
