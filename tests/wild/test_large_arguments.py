"""One call with very many keys in a worker that knows many secrets."""

import pytest

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
