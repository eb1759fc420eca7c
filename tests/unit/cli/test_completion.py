"""Completion at a shell's prompt: verbs and options at once, names from the store, and silence where it fails."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from perdure.cli.main import VARIABLE, cli
from perdure.store import Store
from tests.unit.store.given import SESSION, open_turn


def completed(*words: str) -> list[str]:
    """What bash is offered for the last of the words."""
    environment = {
        VARIABLE: "bash_complete",
        "COMP_WORDS": " ".join(("perdure", *words)),
        "COMP_CWORD": str(len(words)),
    }
    result = CliRunner().invoke(cli, [], prog_name="perdure", env=environment)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return [line.partition(",")[2] for line in result.stdout.splitlines() if line]


@pytest.mark.deep
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell_asks_by_our_variable(shell: str) -> None:
    result = CliRunner().invoke(cli, ["completion", shell])
    assert result.exit_code == 0
    assert VARIABLE in result.stdout


def test_verbs_and_options_are_completed() -> None:
    assert completed("unp") == ["unpause"]
    assert "--when-busy" in completed("send", "--wh")
    assert completed("send", "--when-busy", "i") == ["interrupt"]


async def test_sessions_are_completed_from_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    async with await Store.open(url, upgrade=True) as store:
        await open_turn(store)
    monkeypatch.setenv("PERDURE_STORE_URL", url)
    assert completed("show", SESSION[:1]) == [SESSION]
    assert completed("show", "zz") == []
    assert completed("webhooks", "add", "--session", SESSION[:1]) == [SESSION]  # also below a verb
    assert completed("fork", SESSION, "--as", SESSION[:1]) == []  # a new name


def test_a_store_that_fails_is_passed_over_in_silence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_STORE_URL", f"sqlite:///{tmp_path}/none/store.db")
    assert completed("show", "") == []
