"""How a worker is told to record or to replay, and what it says when it cannot."""

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from pydantic import ValidationError

from perdure.cli import worker
from perdure.cli.main import cli
from perdure.contracts.turns import TurnRequest
from perdure.settings import Settings, SettingsError, load_settings, prepare_recordings


@pytest.fixture(autouse=True)
def _somewhere_empty(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith(("PERDURE_", "TEMPORAL_")):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """In place of the worker: writes its settings down."""
    root = tmp_path / "root"
    root.mkdir()
    (root / "stand_in.py").write_text(
        "import json, os, pathlib\n"
        "seen = [os.environ.get('PERDURE_RECORDINGS'), os.environ.get('PERDURE_RECORDING_MODE')]\n"
        "pathlib.Path('seen.json').write_text(json.dumps(seen))\n"
    )
    monkeypatch.setattr(worker, "WORKER", "stand_in")
    monkeypatch.setenv("PYTHONPATH", str(root))
    monkeypatch.syspath_prepend(str(root))
    return tmp_path / "seen.json"


def perdure(*args: str) -> Result:
    return CliRunner().invoke(cli, list(args), prog_name="perdure")


def line(result: Result) -> str:
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    (only,) = result.stderr.splitlines()
    return only


@pytest.mark.deep
@pytest.mark.parametrize(
    ("args", "seen"),
    [
        ([], ["here", "record"]),
        (["--record", "there"], ["there", "record"]),
        (["--replay", "there"], ["there", "replay"]),
    ],
)
def test_the_options_go_before_the_environment(
    args: list[str], seen: list[str], stand_in: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERDURE_RECORDINGS", "here")
    monkeypatch.setenv("PERDURE_RECORDING_MODE", "record")
    assert perdure("worker", *args).exit_code == 0
    assert json.loads(stand_in.read_text()) == seen


@pytest.mark.parametrize("verb", ["worker", "dev"])
def test_a_worker_does_not_record_and_replay(verb: str) -> None:
    said = line(perdure(verb, "--record", "a", "--replay", "b"))
    assert said == "perdure: a worker records or replays, not both; leave --record or --replay out"


MISSING = "perdure: there is no folder 'none' of recordings to replay; make one with --record none"


def test_dev_looks_for_the_recordings_before_it_starts_anything(tmp_path: Path) -> None:
    assert line(perdure("dev", "--replay", "none")) == MISSING
    assert list(tmp_path.iterdir()) == []


@pytest.mark.deep
def test_a_worker_without_the_folder_it_is_to_replay_ends_with_2_and_one_line(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Bad input."""
    assert perdure("worker", "--agents", "any", "--replay", "none").exit_code == 2
    assert capfd.readouterr() == ("", f"{MISSING}\n")


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    settings = Settings(recordings=tmp_path / "file" / "below", recording_mode="record")
    with pytest.raises(
        SettingsError, match=r"file/below' cannot hold recordings: .*; choose another with --record DIR"
    ):
        prepare_recordings(settings)


def test_a_folder_to_record_into_is_made(tmp_path: Path) -> None:
    prepare_recordings(Settings(recordings=tmp_path / "new" / "below", recording_mode="record"))
    assert (tmp_path / "new" / "below").is_dir()


def test_a_mode_without_a_folder_says_which_variable_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_RECORDING_MODE", "replay")
    with pytest.raises(SettingsError, match=r"PERDURE_RECORDING_MODE='replay': .*set PERDURE_RECORDINGS too"):
        load_settings()


@pytest.mark.parametrize("name", ["../other", "a/b", "", ".hidden", "..", "a b", "x" * 101])
def test_a_request_names_a_recording_and_no_path(name: str) -> None:
    """Bad input: whoever may start a turn may not choose the worker's files."""
    with pytest.raises(ValidationError, match="recording"):
        TurnRequest(prompt="go", recording=name)


@pytest.mark.parametrize("name", ["demo", "a.b-c_2", "9", "x" * 100])
def test_letters_digits_and_a_few_signs_are_a_name(name: str) -> None:
    assert TurnRequest(prompt="go", recording=name).recording == name
