"""The README's table of judges is the one of the reports that are kept, and what fails there has a reason."""

import json
from pathlib import Path

import pytest

from tests.conformance.report import Report, in_readme, read_reports, report_of_frameworks, table

pytest_plugins = ["pytester"]


def test_the_readme_has_the_figures_of_the_reports() -> None:
    assert in_readme() == table(read_reports()), "python -m tests.conformance.report writes it"
    assert report_of_frameworks() in read_reports(), "python -m tests.conformance.report writes it"


@pytest.mark.parametrize("report", read_reports(), ids=lambda report: f"{report.judge}: {report.standard}")
def test_a_check_that_fails_has_a_reason(report: Report) -> None:
    assert 0 < report.passed <= report.of
    assert report.passed == report.of or report.waived


def test_a_run_keeps_a_report_of_each_judge(pytester: pytest.Pytester, tmp_path: Path) -> None:
    pytester.makepyfile(
        """
        import pytest

        pytestmark = pytest.mark.judged("Pages 1.0", "reader 2")


        def test_passes(): ...


        def test_fails():
            assert False


        @pytest.mark.skip
        def test_is_skipped(): ...
        """
    )
    pytester.runpytest("-p", "no:asyncio", "-p", "tests.plugins.judges", "--judges", str(tmp_path))
    (kept,) = tmp_path.glob("*.json")
    told = json.loads(kept.read_text(encoding="utf-8"))
    assert (kept.name, told["passed"], told["of"]) == ("reader-pages-1-0.json", 1, 2)
