"""One call with very many keys in a worker that knows many secrets."""

import sys
from types import FrameType

import pytest

from perdure.contracts.values import JsonValue
from perdure.security import redaction
from perdure.security.redaction import mask_arguments


def test_the_spellings_of_each_secret_are_computed_once_for_all_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """S-52."""
    computed: list[str] = []
    genuine = redaction.spellings

    def spellings(secret: str) -> tuple[str, ...]:
        computed.append(secret)
        return genuine(secret)

    monkeypatch.setattr(redaction, "spellings", spellings)
    secrets = frozenset(f"key/of the worker {number}" for number in range(50))
    shown = mask_arguments(
        {f"a key with a name {number}": "key/of the worker 7" for number in range(2_000)}, (), secrets
    )
    assert set(shown.values()) == {"***"}
    assert len(computed) == 50


def test_names_that_masking_makes_equal_are_numbered_in_order() -> None:
    shown = mask_arguments(
        {f"key/of the worker {number}": number for number in range(3_000)}, (), {"key/of the worker"}
    )
    assert len(shown) == 3_000
    same = mask_arguments(dict.fromkeys(("secret/one", "secret/two", "***2"), 1), (), {"secret/one", "secret/two"})
    assert list(same) == ["***", "***2", "***22"]


def count_calls(keys: int, secrets: int) -> int:
    """Calls of functions, Python's own among them, that masking so many keys makes in a worker with so many secrets."""
    known = frozenset(f"key/of the worker {number:05}" for number in range(secrets))
    arguments: dict[str, JsonValue] = {
        f"a key {number:04}": f"a value {number:04}, with words" for number in range(keys)
    }
    made = 0

    def note(_frame: FrameType, event: str, _function: object) -> None:
        nonlocal made
        made += event in {"call", "c_call"}

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        mask_arguments(arguments, (), known)
    finally:
        sys.setprofile(before)
    return made


def test_masking_takes_so_many_steps_as_there_are_keys_and_secrets() -> None:
    """S-52: twice the keys are twice the work and no more, and so are twice the secrets, also with one key only."""
    count = count_calls(200, 20)
    assert count_calls(400, 20) < 2.1 * count
    assert count_calls(800, 20) < 4.2 * count
    assert count_calls(200, 40) < 2.1 * count
    assert count_calls(200, 80) < 4.2 * count
    assert count_calls(1, 2_000) < 2.1 * count_calls(1, 1_000)
