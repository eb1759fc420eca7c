"""A search in windows finds what one search of the whole text finds."""

import re

import hypothesis
import hypothesis.strategies as st
import pytest

from perdure.security import credentials, windows
from perdure.security.credentials import MASK

PATTERNS = [(shape, MASK) for shape in credentials._SHAPES] + list(credentials._CONTEXTS)
WORDS = (
    *("sk-live-0123456789abcdefABCDEF", "eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM0.c2ln", "-----BEGIN PRIVATE KEY-----"),
    *("-----END PRIVATE KEY-----", "https://ann:s3cret@host/", "Authorization: Bearer abc123def456", "password"),
    *('"api_key": "', "0123456789", "=", ": ", " ", "\n", "'", '"', "&token=", "--password ", "export TOKEN=", "x"),
)


@hypothesis.given(st.lists(st.sampled_from(WORDS), max_size=30), st.integers(1, 40))
def test_every_pattern_replaces_and_finds_as_without_windows(words: list[str], window: int) -> None:
    text = "".join(words)
    for pattern, template in PATTERNS:
        assert windows.replace(pattern, template, text, window) == pattern.sub(template, text)
        found = [match.span() for match in windows.find(pattern, text, window)]
        assert found == [match.span() for match in pattern.finditer(text)]


@pytest.mark.parametrize("text", ["ab" * 40, "b" + "a" * 90, "a" * 90 + "b", "c" * 30 + "a" * 60 + "c"])
def test_a_match_that_passes_what_a_search_sees_is_looked_at_whole(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "AHEAD", 10)
    for pattern in (re.compile(r"a+"), re.compile(r"a+(?!b)"), re.compile(r"(?<=c)a+"), re.compile(r"c|a{5,}")):
        assert windows.replace(pattern, "<>", text, 7) == pattern.sub("<>", text)


def test_nothing_is_found_in_nothing() -> None:
    assert list(windows.find(re.compile("a?"), "")) == []
    assert windows.replace(re.compile("a"), "b", "") == ""
