"""In CI a skipped test fails the run; elsewhere it does not."""

from pathlib import Path

import pytest

from tests.contract.repository import ROOT, run

SKIPPED = "import pytest\n\ndef test_never() -> None:\n    pytest.skip('not here')\n"
EXPECTED = "import pytest\n\n@pytest.mark.xfail(strict=True)\ndef test_fails() -> None:\n    assert False\n"


@pytest.mark.parametrize(("ci", "text", "code"), [("true", SKIPPED, 1), ("", SKIPPED, 0), ("true", EXPECTED, 0)])
def test_a_skipped_test_fails_the_run_in_ci_only(ci: str, text: str, code: int, tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    (tmp_path / "test_it.py").write_text(text, encoding="utf-8")
    done = run(
        "-m",
        "pytest",
        "-p",
        "tests.plugins.no_skips",
        "-p",
        "no:cacheprovider",
        cwd=tmp_path,
        CI=ci,
        PYTHONPATH=str(ROOT),
        PYTEST_ADDOPTS="",
    )
    assert done.returncode == code, done.stdout
    assert ("SKIPPED IN CI" in done.stdout) == bool(code)
    assert done.stdout.rstrip().splitlines()[-1].startswith("=")
