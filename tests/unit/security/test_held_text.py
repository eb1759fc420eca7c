"""A text that is shown piece by piece never shows a secret, wherever it is cut (S-52)."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from perdure.security.credentials import MASK
from perdure.security.held_text import HeldText
from perdure.security.redaction import spellings, without_known

KEY = "sk-live-0123456789abcdef"
ODD = 'pa"ss/wörd\\with%all'
SHORT = "hunter"
OVERLAPPING = ("abcabcabc-12", "12xxxxxxxx-9", "2xxxxxxxx-9abcabc")
SETS = [OVERLAPPING, (KEY, KEY[8:]), (KEY, ODD, SHORT), ("aaaaaaaa", "aaaaaaaab")]


def show(pieces: list[str], secrets: tuple[str, ...]) -> tuple[list[str], str]:
    """What is shown after each piece, and all of it."""
    held = HeldText(secrets)
    shown = [held.add(piece) for piece in pieces]
    shown.append(held.close())
    return shown, "".join(shown)


@pytest.mark.parametrize("secret", [KEY, ODD, SHORT])
def test_a_secret_split_at_every_position_never_shows(secret: str) -> None:
    """S-52: as it is, and as JSON, Python and URLs write it."""
    for spelling in spellings(secret):
        text = f"the key is {spelling} and nothing else"
        for first in range(len(text)):
            for second in range(first, len(text)):
                _, all_of_it = show([text[:first], text[first:second], text[second:]], (secret,))
                assert all_of_it == f"the key is {MASK} and nothing else"


def test_no_prefix_of_what_was_shown_holds_a_part_of_a_secret_that_is_not_clear_yet() -> None:
    """S-52: character by character, nothing of the key is shown before it is masked."""
    held = HeldText((KEY,))
    shown = ""
    for character in f"key {KEY}.":
        shown += held.add(character)
        assert "sk-" not in shown
    assert shown + held.close() == f"key {MASK}."


def test_what_only_looks_like_the_beginning_is_shown_as_soon_as_it_is_clear() -> None:
    held = HeldText((KEY,))
    assert [held.add(piece) for piece in ("say sk-", "li", "on", " ok")] == ["say ", "", "sk-lion", " ok"]


def test_without_secrets_nothing_is_held_back() -> None:
    assert show(["a", "bc"], ()) == (["a", "bc", ""], "abc")


def test_a_short_secret_is_looked_for_as_a_whole_word() -> None:
    """As in all other texts: it would match everywhere."""
    assert show(["xhun", "ter hunt", "er hunters"], (SHORT,))[1] == f"xhunter {MASK} hunters"


@pytest.mark.parametrize("text", [KEY + SHORT, SHORT + KEY, f"{SHORT}{KEY[:-1]}x", SHORT + SHORT])
def test_a_short_secret_beside_a_long_one_is_shown_as_in_the_whole_text(text: str) -> None:
    """S-52: a mask ends a word, and the half of a secret does not."""
    assert show(list(text), (KEY, SHORT))[1] == without_known(text, (KEY, SHORT))


def test_a_character_that_two_pieces_share_is_shown_whole() -> None:
    shown, all_of_it = show(["a\ud83d", "\ude00b"], (KEY,))
    assert (shown[0], all_of_it) == ("a", "a\ud83d\ude00b")


@given(data=st.data())
@example(data=None)
def test_however_a_text_is_cut_the_same_is_shown_as_of_the_whole(data: st.DataObject | None) -> None:
    """S-52: also of secrets that overlap or contain one another."""
    if data is None:
        text, sizes = "abcabcabc-12xxxxxxxx-9abcabc", [1] * 40
        secrets: tuple[str, ...] = OVERLAPPING
    else:
        secrets = data.draw(st.sampled_from(SETS))
        parts = [*secrets, *(secret[: len(secret) // 2] for secret in secrets), "a", " ", "x", "12", "aaa"]
        text = "".join(data.draw(st.lists(st.sampled_from(parts), max_size=8)))
        sizes = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=60))
    pieces, rest = [], text
    for size in sizes:
        pieces.append(rest[:size])
        rest = rest[size:]
    pieces.append(rest)
    _, shown = show(pieces, secrets)
    for secret in secrets:
        if len(secret) >= 8:
            assert secret not in shown
    if secrets != OVERLAPPING:
        assert shown == without_known(text, secrets)
