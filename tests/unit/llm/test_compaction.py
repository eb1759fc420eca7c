"""Where a conversation is cut: never between a call and its result, never more than is kept, as much as fits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.contracts.agents import Compaction
from perdure.contracts.errors import ErrorDetail
from perdure.contracts.messages import AssistantMessage, Message, ToolCall, ToolMessage, UserMessage
from perdure.llm.compaction import (
    SHOWN_CHARACTERS,
    characters_of_one_summary,
    find_boundary,
    plan_summary,
    render_message,
    replace_beginning,
    summary_in,
    to_summarise,
)


def asked(text: str = "go") -> UserMessage:
    return UserMessage(content=text)


def said(text: str = "done") -> AssistantMessage:
    return AssistantMessage(content=text)


def called(*ids: str) -> AssistantMessage:
    return AssistantMessage(tool_calls=tuple(ToolCall(id=call_id, name="work") for call_id in ids))


def result(call_id: str, text: str = "ok") -> ToolMessage:
    return ToolMessage(call_id=call_id, name="work", content=text)


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    """Prompts, answers, and answers with calls whose results follow; the last calls may still wait for theirs."""
    messages: list[Message] = []
    for group in range(draw(st.integers(0, 30))):
        kind = draw(st.sampled_from(["user", "text", "calls"]))
        if kind == "user":
            messages.append(asked("u" * draw(st.integers(0, 50))))
        elif kind == "text":
            messages.append(said("a" * draw(st.integers(1, 50))))
        else:
            ids = [f"{group}/{number}" for number in range(draw(st.integers(1, 4)))]
            messages.append(called(*ids))
            messages.extend(result(call_id, "r" * draw(st.integers(0, 50))) for call_id in ids)
            if draw(st.booleans()):
                messages.append(asked("steered"))
    if draw(st.booleans()):
        messages.append(called("open/0", "open/1"))
    return messages


def orphans(messages: list[Message]) -> set[str]:
    """Results whose call is not in the messages, and calls without a result, the last answer's excepted."""
    calls: set[str] = set()
    results: set[str] = set()
    for message in messages:
        if isinstance(message, AssistantMessage):
            calls |= {call.id for call in message.tool_calls}
        elif isinstance(message, ToolMessage):
            results.add(message.call_id)
    return (calls ^ results) - {"open/0", "open/1"}


@given(conversations(), st.integers(2, 15), st.none() | st.integers(0, 3_000))
def test_no_cut_parts_a_call_from_its_result(messages: list[Message], keep: int, room: int | None) -> None:
    """S-42: on either side, for any conversation; so many as asked are kept, and no more is cut than fits."""
    boundary = find_boundary(messages, keep=keep, max_characters=room)
    assert not orphans(messages[:boundary])
    assert not orphans(messages[boundary:])
    assert not any(call_id.startswith("open") for call_id in _ids(messages[:boundary]))
    if boundary:
        assert len(messages) - boundary >= keep
        assert not isinstance(messages[boundary - 1], UserMessage)
        assert not isinstance(messages[boundary : boundary + 1][0], ToolMessage)
    if room is not None:
        assert sum(len(render_message(message)) for message in messages[:boundary]) <= room


@given(conversations(), st.integers(2, 15))
def test_the_cut_is_the_largest_safe_one(messages: list[Message], keep: int) -> None:
    boundary = find_boundary(messages, keep=keep)
    for later in range(boundary + 1, len(messages) - keep + 1):
        unsafe = orphans(messages[:later]) or isinstance(messages[later - 1], UserMessage)
        assert unsafe or any(call_id.startswith("open") for call_id in _ids(messages[:later]))


def _ids(messages: list[Message]) -> set[str]:
    return {call.id for message in messages if isinstance(message, AssistantMessage) for call in message.tool_calls}


@pytest.mark.parametrize(
    ("messages", "keep", "boundary"),
    [
        ([], 2, 0),
        ([asked(), said()], 2, 0),
        ([asked(), said(), asked(), said()], 2, 2),
        ([asked(), said(), asked(), said()], 3, 0),
        ([asked(), called("a", "b"), result("a"), result("b"), said(), asked()], 3, 0),
        ([asked(), called("a", "b"), result("a"), result("b"), said(), asked()], 2, 4),
        ([asked(), called("a"), result("a"), asked("steered"), said()], 2, 3),
        ([asked(), asked(), asked(), asked()], 2, 0),
    ],
)
def test_a_cut_stands_behind_an_answer_or_its_last_result(messages: list[Message], keep: int, boundary: int) -> None:
    """S-42: fewer than are to be kept means no cut."""
    assert find_boundary(messages, keep=keep) == boundary


def test_a_long_message_is_shown_by_its_head_and_its_tail() -> None:
    """A boundary is found even when one output alone is longer than what may be summarised."""
    messages: list[Message] = [asked("start"), called("a"), result("a", "x" * 1_000_000), said("end"), asked(), said()]
    assert find_boundary(messages, keep=2, max_characters=SHOWN_CHARACTERS + 200) == 4
    text = to_summarise(messages[:4])
    assert len(text) < SHOWN_CHARACTERS + 500
    assert "characters left out" in text


def test_of_one_large_answer_with_many_calls_less_of_each_message_is_shown() -> None:
    ids = [f"c{number}" for number in range(30)]
    messages: list[Message] = [
        asked(),
        called(*ids),
        *(result(call_id, "x" * 9_000) for call_id in ids),
        said(),
        asked(),
        said(),
    ]
    assert find_boundary(messages, keep=2, max_characters=100_000) == 0
    boundary, each = plan_summary(messages, keep=2, room=100_000)
    assert boundary == 32
    assert len(to_summarise(messages[:boundary], (), each)) < 102_000
    assert plan_summary(messages, keep=2, room=1_000) == (0, 0)
    assert plan_summary(messages, keep=100, room=100_000) == (0, 0)
    assert plan_summary(messages, keep=2, room=1_000_000) == (33, SHOWN_CHARACTERS)


def test_what_is_summarised_names_who_spoke_and_what_to_keep_in_mind() -> None:
    error = ErrorDetail(code="tool.timeout", title="work", message="no")
    failed = ToolMessage(call_id="a", name="work", content="no", error=error)
    text = to_summarise([asked("find it"), called("a"), failed, said("not found")], ("the names", ""))
    for part in ("[user]\nfind it", "[calls work]", "[error of work]\nno", "[assistant]\nnot found"):
        assert part in text
    assert "Keep in mind: the names" in text
    assert text.count("Keep in mind") == 1


@pytest.mark.parametrize(
    ("answer", "summary"),
    [
        ("<analysis>think</analysis>\n<summary>\nthe gist\n</summary>", "the gist"),
        ("<analysis>think</analysis>the gist", "the gist"),
        ("the gist", "the gist"),
        ("<summary>cut of", "cut of"),
        ("<analysis>only this</analysis>", ""),
        ("<summary></summary>", ""),
        ("<analysis>a <summary>Title</summary> was wrong</analysis>\n<summary>real</summary>", "real"),
        (
            "<summary>in <details><summary>Title</summary></details> it stands</summary>",
            "in <details><summary>Title</summary></details> it stands",
        ),
        ("<SUMMARY>the gist</SUMMARY> and more", "the gist"),
    ],
)
def test_the_summary_is_what_stands_between_its_tags(answer: str, summary: str) -> None:
    assert summary_in(answer) == summary


def test_a_summary_of_a_summary_counts_every_message_it_stands_for() -> None:
    first = replace_beginning([asked(), said(), asked(), said()], 2, "one")
    assert first[1:] == (asked(), said())
    second = replace_beginning([*first, asked(), said()], 3, "two")
    marker = second[0]
    assert isinstance(marker, UserMessage)
    assert (marker.summary_of, len(second)) == (4, 3)
    assert marker.content.startswith("[Summary of the 4 messages before")
    assert marker.content.endswith("two")


@pytest.mark.parametrize(
    ("compaction", "window", "characters"),
    [
        (Compaction(), None, 180_000),  # 100,000 tokens when nothing is known
        (Compaction(), 128_000, 172_800),  # 60 % of 75 % at 3 characters a token
        (Compaction(window=64_000), 128_000, 86_400),
        (Compaction(window=64_000, threshold=0.5), None, 57_600),
        (Compaction(window=64_000, threshold=None), None, 86_400),
    ],
)
def test_one_summary_covers_what_its_own_call_can_read(
    compaction: Compaction, window: int | None, characters: int
) -> None:
    assert characters_of_one_summary(compaction, window) == characters
