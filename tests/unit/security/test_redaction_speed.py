"""No text makes redaction slow: it runs beside the heartbeats of a worker."""

import time

import pytest

from perdure.security.redaction import redact_text

pytestmark = pytest.mark.deep

SHORT, FACTOR, TRIES = 8_000, 16, 4
PARTS = (
    *(
        "a.",
        "sk-",
        "sk_",
        "sk-a-",
        "sk-****",
        "pk_live_",
        "://",
        "a://b:",
        "https://a:",
        "password",
        "bearer ",
        "basic ",
    ),
    *("eyJa.", "eyJ-", "-eyJ", "eyJaaaaaaaaaa.", "eyJaaaaaaaaaa.aaaaaaaaaaa", "ghp_", "xoxb-", "AIza", "-AIza", "hf_"),
    *("gsk_", "gsk_a", "xai-", "nvapi-", "nvapi-a", "tgp_v1_", "jina_a", "ya29.", "ya29.-", "fw_a", "npm_", "pypi-AgE"),
    *("SG.", "SG.a", "SG.aaaaaaaaaaaaaaaa", "SG.aaaaaaaaaaaaaaaa.", "lsv2_pt_", "lsv2_pt_a", "pdr_", "whsec_a"),
    *("*", "a*", "a***-", "TOKEN", "TOKEN=", "TOKEN=PASSWORD=", "TOKEN=1", "A_", "x-key: ", "x-a-", "-----BEGIN "),
    *("authorization:", "authorization: basic ", "cookie: ", "cookie: a=", "set-", "--token ", "--a-", "-u a:", "-u "),
    *('"password":"', '\\"password\\":\\"', '"', '\\"', "\\", '"password"  ', "password ", "password=}", "{]"),
    *("?key=", "&a-", "?a_key", "?token=", "&amp;", "export ", "export a", "set token=1", "Basic aA", "Bearer a1 "),
)


def seconds(text: str) -> float:
    """Processor time, which other processes do not take away."""
    began = time.thread_time()
    redact_text(text)
    return time.thread_time() - began


def in_proportion(text: str, longer: str) -> bool:
    """Whether sixteen times the length takes at most four times its share, in the best of a few tries."""
    allowed = FACTOR * 4 * max(min(seconds(text) for _ in range(TRIES)), 0.0005)
    return any(seconds(longer) < allowed for _ in range(TRIES))


@pytest.mark.parametrize("part", PARTS)
def test_a_longer_text_takes_longer_in_proportion(part: str) -> None:
    """S-52: of 16 times the length 16 times as long, and not 256 times."""
    many = SHORT // len(part)
    assert in_proportion(part * many, part * many * FACTOR)


@pytest.mark.parametrize("behind", [" ", "a", "a-", "1", "\\"])
@pytest.mark.parametrize("word", ["bearer", "password", '"password"', "--token", "?", "sk-", "eyJ", "http://a:", "x-"])
def test_what_stands_behind_one_word_makes_no_difference(word: str, behind: str) -> None:
    """S-52."""
    assert in_proportion(word + behind * SHORT, word + behind * SHORT * FACTOR)
