"""What a release needs is checked before it is tagged."""

from pathlib import Path

import pytest

from tests.contract.release import faults

COMMIT = "0123456789abcdef"
SECTION = "## [1.2.0] - 2026-11-22\n\nReplay compatibility: turns of 1.1 go on.\n"


@pytest.fixture
def ready(tmp_path: Path) -> Path:
    """A checkout that may be released."""
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2.0"\n', encoding="utf-8")
    (tmp_path / "CHANGELOG.md").write_text(f"<!--\n## [X]\n-->\n\n# Changelog\n\n{SECTION}", encoding="utf-8")
    (tmp_path / "tests/replay/histories/1.2.0").mkdir(parents=True)
    (tmp_path / "tests/replay/histories/1.2.0/text.json").touch()
    (tmp_path / "build").mkdir()
    (tmp_path / "build/deep.json").write_text(f'{{"commit": "{COMMIT}", "passed": true}}', encoding="utf-8")
    return tmp_path


def test_a_checkout_with_all_of_it_is_ready(ready: Path) -> None:
    assert list(faults(ready, COMMIT)) == []


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("[1.2.0] - 2026-11-22", "[Unreleased]", "its first section has to be '## [1.2.0] - YYYY-MM-DD'"),
        ("[1.2.0]", "[1.1.0]", "its first section has to be '## [1.2.0] - YYYY-MM-DD'"),
        ("Replay compatibility: turns of 1.1 go on.", "", "no line 'Replay compatibility: …'"),
    ],
)
def test_a_changelog_that_does_not_fit_is_named(ready: Path, old: str, new: str, named: str) -> None:
    page = ready / "CHANGELOG.md"
    page.write_text(page.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
    (found,) = faults(ready, COMMIT)
    assert named in found


def test_a_release_without_histories_of_its_own_is_named(ready: Path) -> None:
    (ready / "tests/replay/histories/1.2.0/text.json").unlink()
    assert list(faults(ready, COMMIT)) == ["no history of 1.2.0 is recorded; run `make histories`"]


@pytest.mark.parametrize(
    "text", ["", '{"commit": "fedcba", "passed": true}', f'{{"commit": "{COMMIT}", "passed": false}}']
)
def test_a_commit_on_which_the_deep_lane_has_not_passed_is_named(ready: Path, text: str) -> None:
    file = ready / "build/deep.json"
    file.write_text(text, encoding="utf-8") if text else file.unlink()
    (found,) = faults(ready, COMMIT)
    assert found.startswith("the deep lane has not passed on the commit 012345678")
