"""Reasoning that a server leaves in the text is taken out of it, on every wire, whole and streamed."""

import json
from typing import Any

import pytest

from perdure.activities.models.wires import CHAT
from perdure.activities.models.wires.reply import Answered
from perdure.activities.models.wires.thoughts import split_thoughts
from tests.wires.corpus import chunks, completion
from tests.wires.playing import BEGUN, answer_in, play

TEXTS: dict[str, tuple[str, str]] = {
    # A text, and the reasoning in it; what is left is "The answer.".
    "DeepSeek": ("<think>hm</think>The answer.", "hm"),
    "Qwen": ("<think>\nhm\n</think>The answer.", "\nhm\n"),
    "nothing thought": ("<think></think>The answer.", ""),
    "behind white space": ("\n <think>hm</think>The answer.", "hm"),
    "Nova": ("<thinking>hm</thinking>The answer.", "hm"),
    "Gemma": ("<thought>hm</thought>The answer.", "hm"),
    "Seed-OSS": ("<seed:think>hm</seed:think>The answer.", "hm"),
    "Magistral": ("[THINK]hm[/THINK]The answer.", "hm"),
    "Kimi": ("◁think▷hm◁/think▷The answer.", "hm"),
    "twice": ("<think>h</think>\n<think>m</think>The answer.", "hm"),
    "JSON in it": ('<think>{"a": 1}</think>The answer.', '{"a": 1}'),
    "another tag in it": ("<think>a <thinking> b</think>The answer.", "a <thinking> b"),
}


def thoughts_of(answered: Answered) -> str:
    """The reasoning of an answer."""
    return "".join(str(block.get("text", "")) for block in answered.reasoning)


async def both(name: str, text: str) -> list[Answered]:
    """The answer with a text, whole and streamed."""
    wire, whole, frames = answer_in(name, text)
    told = [await play(wire, whole), await play(wire, frames)]
    assert all(isinstance(answered, Answered) for answered in told), told
    return [answered for answered in told if isinstance(answered, Answered)]


@pytest.mark.parametrize("wire", BEGUN)
@pytest.mark.parametrize("name", TEXTS)
async def test_reasoning_in_the_text_is_taken_out_of_it(wire: str, name: str) -> None:
    text, thought = TEXTS[name]
    whole, streamed = await both(wire, text)
    assert whole == streamed
    assert (whole.text, thoughts_of(whole)) == ("The answer.", thought)


@pytest.mark.parametrize("wire", BEGUN)
@pytest.mark.parametrize("text", ["<think>hm</think>", "<think>\nhm, and no end", "hm\n</think>"])
async def test_an_answer_of_nothing_but_reasoning_has_no_text(wire: str, text: str) -> None:
    """An answer without a text is asked for again, however it came."""
    for answered in await both(wire, text):
        assert answered.text == ""
        assert "hm" in thoughts_of(answered)


@pytest.mark.parametrize("wire", BEGUN)
@pytest.mark.parametrize(
    "text",
    [
        "The tag <think>hm</think> begins it.",
        "It ends with </think>, always.",
        "<think> is the first tag.",
        "Write\n<think>\nhm\n</think>\nfirst.",
        "<thinker>hm</thinker>",
        "The answer.",
    ],
)
async def test_an_answer_that_speaks_of_the_tags_keeps_its_text(wire: str, text: str) -> None:
    for answered in await both(wire, text):
        assert (answered.text, thoughts_of(answered)) == (text, "")


@pytest.mark.parametrize("wire", BEGUN)
async def test_the_first_tag_may_stand_in_the_prompt(wire: str) -> None:
    """Templates of DeepSeek-R1, QwQ and others write it, so that the answer has the last one alone."""
    for answered in await both(wire, "let me see\n</think>\n\nThe answer."):
        assert (answered.text.strip(), thoughts_of(answered)) == ("The answer.", "let me see")


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning", "thinking"])
async def test_reasoning_that_came_beside_the_text_is_kept_once(field: str) -> None:
    message: dict[str, Any] = {field: "hm", "content": "<think>hm</think>The answer."}
    for sent in (json.dumps(completion(message)).encode(), chunks(message)):
        answered = await play(CHAT, sent)
        assert isinstance(answered, Answered)
        assert (answered.text, thoughts_of(answered)) == ("The answer.", "hm")


def test_a_long_text_is_split_at_once() -> None:
    """Each tag is looked for once, wherever it is."""
    for text in ("<think>" * 100_000, "x\n</think>" * 100_000, "<think>a</think>" * 100_000, " " * 1_000_000):
        rest, thought = split_thoughts(text)
        assert len(rest) + len(thought) <= len(text)
