"""What the wheel delivers: one top-level name, typed, with its migrations, and importable as it is."""

import hashlib
import zipfile
from pathlib import Path

import pytest

from tests.contract.repository import ROOT, run, sources


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    done = run("-m", "hatchling", "build", "-t", "wheel", "-d", str(folder), cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.glob("*.whl")
    return built


def contents(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_the_wheel_has_one_top_level_name(wheel: Path) -> None:
    top = {name.partition("/")[0] for name in contents(wheel)}
    assert {name for name in top if not name.endswith(".dist-info")} == {"perdure"}


def test_the_wheel_carries_every_module_of_the_library_and_says_it_is_typed(wheel: Path) -> None:
    wanted = {path.as_posix() for path in sources("perdure")} | {"perdure/py.typed"}
    assert wanted - contents(wheel) == set()


def test_the_wheel_carries_the_page(wheel: Path) -> None:
    wanted = {path.relative_to(ROOT).as_posix() for path in (ROOT / "perdure/gateway/ui").rglob("*") if path.is_file()}
    assert {"perdure/gateway/ui/fold.js", "perdure/gateway/ui/vendor/README"} <= wanted
    assert wanted - contents(wheel) == set()


def test_vendored_files_are_those_of_their_release() -> None:
    vendor = ROOT / "perdure/gateway/ui/vendor"
    digest = hashlib.sha256((vendor / "htm-preact-standalone.module.js").read_bytes()).hexdigest()
    assert f"sha256 {digest}" in (vendor / "README").read_text(encoding="utf-8")


def test_the_wheel_carries_no_development_files(wheel: Path) -> None:
    assert [name for name in contents(wheel) if name.endswith(("ruff.toml", ".pyc", ".pth"))] == []


def test_the_library_is_imported_from_the_wheel(wheel: Path, tmp_path: Path) -> None:
    tell = "import perdure; print(perdure.__file__)"
    done = run("-c", tell, cwd=tmp_path, PYTHONPATH=str(wheel))
    assert done.stdout.startswith(str(wheel)), done.stderr
