"""The reports of judges, kept as files, and the table of them in the README.

    python -m tests.conformance.report

writes the table anew from the files; ``make judges`` runs the judges of the test suite and of MCP first.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.strangers import pages
from tests.strangers.pages import NAMES

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
REPORTS = Path(__file__).parent / "reports"

_TABLE = re.compile(r"\| standard \| judge \|.*?(?=\n\n)", re.DOTALL)


@dataclass(frozen=True)
class Report:
    """What a judge found.

    Attributes:
        standard: What is judged, with its version: ``A2A 1.0``.
        judge: Who judges, with the version: ``ag-ui-validate 0.4.0``.
        passed: How many of its checks pass.
        of: How many it makes.
        unit: The name of a check: ``scenarios``.
        command: What repeats it.
        waived: Checks that fail or are not asked for, each with the reason.
    """

    standard: str
    judge: str
    passed: int
    of: int
    unit: str
    command: str
    waived: Mapping[str, str] = field(default_factory=dict[str, str])

    def write(self, folder: Path = REPORTS) -> Path:
        """Keep it as a file, named after the judge and the standard."""
        judge, npm = self.judge.partition(" ")[0], " npm" * self.judge.endswith("(npm)")
        name = re.sub(r"[^a-z0-9]+", "-", f"{judge}{npm} {self.standard}".lower()).strip("-")
        path = folder / f"{name}.json"
        path.write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        return path


def read_reports(folder: Path = REPORTS) -> list[Report]:
    """All that are kept, in the order of their standards."""
    reports = [Report(**json.loads(path.read_text(encoding="utf-8"))) for path in folder.glob("*.json")]
    return sorted(reports, key=lambda report: (report.standard, report.judge))


def table(reports: list[Report]) -> str:
    """A row for each report, in Markdown."""
    rows = [
        f"| {report.standard} | {report.judge} | {report.passed} of {report.of} {report.unit} |" for report in reports
    ]
    return "\n".join(["| standard | judge | passes |", "|---|---|---|", *rows])


def in_readme() -> str:
    """The table that the README has now."""
    found = _TABLE.search(README.read_text(encoding="utf-8"))
    return found.group() if found else ""


def report_of_frameworks() -> Report:
    """What the newest frameworks find, by the table of docs/frameworks.md, which their deep test compares with them."""
    cells = [
        (f"{NAMES[program]}, {case}", cell) for program, row in pages.table().items() for case, cell in row.items()
    ]
    notes = pages.notes()
    waived = {name: notes[cell] for name, cell in cells if cell != "✓"}
    judge = "[nine clients and frameworks](docs/frameworks.md#how-each-does)"
    command = "pytest -m deep tests/strangers"
    return Report("OpenAI Responses", judge, len(cells) - len(waived), len(cells), "cases", command, waived)


def main() -> None:
    """Write the README's table anew."""
    report_of_frameworks().write()
    text, new = README.read_text(encoding="utf-8"), table(read_reports())
    README.write_text(_TABLE.sub(lambda _: new, text, count=1), encoding="utf-8")


if __name__ == "__main__":
    main()
