"""What an environment variable that cannot be used is answered with."""

import pytest

from perdure.settings import SettingsError, load_settings


@pytest.mark.parametrize("name", ["PERDURE_FAIL_WORKFLOWS", "PERDURE_ALLOW_INLINE_AGENTS"])
def test_a_switch_that_is_neither_on_nor_off_is_refused_and_says_what_to_choose(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "failed")
    with pytest.raises(SettingsError) as refused:
        load_settings()
    assert str(refused.value) == f"{name}='failed': choose 1 or 0"
    for value, means in {"1": True, "on": True, "0": False, "off": False}.items():
        monkeypatch.setenv(name, value)
        assert getattr(load_settings(), name.removeprefix("PERDURE_").lower()) is means
