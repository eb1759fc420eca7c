"""How long outputs are cut for the model."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.contracts.values import replace_surrogates
from perdure.llm.tool_output import OFFLOAD_CHARACTERS, head_and_tail, shorten_output


@given(st.text(max_size=400), st.integers(1, 300))
def test_a_truncated_text_is_never_longer_than_its_limit(text: str, limit: int) -> None:
    """S-26: truncate N keeps at most N."""
    assert len(head_and_tail(text, limit)) <= limit


@given(st.text(max_size=200))
def test_a_text_within_the_limit_stays_as_it_is(text: str) -> None:
    assert head_and_tail(text, max(1, len(text))) == text


@given(st.integers(100, 5_000), st.integers(1, 5_000))
def test_a_truncated_text_keeps_its_beginning_and_its_end_and_says_so(limit: int, more: int) -> None:
    text = "a" * (limit // 2) + "b" * (limit - limit // 2 + more)
    cut = head_and_tail(text, limit)
    assert (cut[0], cut[-1]) == ("a", "b")
    assert f"… {more:,} characters left out …" in cut
    assert len(cut) == limit


def test_a_limit_too_short_for_a_note_keeps_the_beginning() -> None:
    assert head_and_tail("abcdefghij" * 10, 5) == "abcde"


def test_an_offloaded_output_keeps_15_000_characters_at_each_end_and_a_handle() -> None:
    """S-26: over 30,000 characters."""
    text = "h" * 15_000 + "m\n" * 2_000 + "t" * 15_000
    assert len(text) > OFFLOAD_CHARACTERS
    kept = shorten_output(text, "art_1")
    assert kept.startswith("h" * 15_000 + "\n\n…")
    assert kept.endswith("…\n\n" + "t" * 15_000)
    assert "4,000 characters (2,000 lines) left out; the whole output is artifact art_1" in kept


def test_the_note_in_an_offloaded_output_says_how_to_read_on_if_the_agent_can() -> None:
    """S-26: from where the head ends."""
    text = "x" * (OFFLOAD_CHARACTERS + 1)
    assert "the whole output is artifact art_1 (read on with read_output, start=15000) …" in shorten_output(
        text, "art_1", "read_output"
    )
    assert "the whole output is artifact art_1 …" in shorten_output(text, "art_1")


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("", ""),
        ("plain", "plain"),
        ("grüße 😀", "grüße 😀"),
        ("half \ud83d", "half \ufffd"),
        ("\ude00 other half", "\ufffd other half"),
        ("two halves \ud83d\ude00", "two halves 😀"),
    ],
)
def test_halves_of_characters_are_replaced_and_pairs_joined(text: str, whole: str) -> None:
    assert replace_surrogates(text) == whole
