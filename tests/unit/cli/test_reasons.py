import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from perdure.cli.main import cli
from perdure.contracts.errors import REASONS, ReasonCode
from perdure.llm.failures import ROWS, Row
from tests.contract.repository import ROOT


def shown(*args: str) -> list[str]:
    result = CliRunner().invoke(cli, ["errors", *args], prog_name="perdure")
    assert result.exit_code == 0
    return result.stdout.splitlines()


def test_every_code_of_the_table_has_its_line_in_the_order_of_the_tree() -> None:
    codes = [line.split()[0] for line in shown()]
    assert codes == sorted(codes)
    assert set(codes) == set(REASONS)


def test_a_line_says_whether_the_call_is_retried_and_what_the_code_means() -> None:
    lines = {line.split()[0]: line.split(maxsplit=2)[1:] for line in shown()}
    for code, reason in REASONS.items():
        assert lines[code][0] == ("reserved" if reason.reserved else "retried" if reason.transient else "final")
        assert lines[code][1] == reason.text


def test_json_is_one_code_a_line() -> None:
    rows = [json.loads(line) for line in shown("--json")]
    by_code = {row.pop("code"): row for row in rows}
    assert by_code == {code: reason.model_dump() for code, reason in REASONS.items()}
    assert by_code[ReasonCode.LLM_RATE_LIMITED]["transient"] is True


@pytest.mark.parametrize("code", REASONS)
def test_a_code_is_shown_in_full(code: ReasonCode) -> None:
    """S-68: the cause, the fix, whether it is retried, what the model reads and what the code is chosen by."""
    reason, text = REASONS[code], " ".join(" ".join(shown(code)).split())
    cause, _, fix = reason.text.partition("; ")
    assert text.startswith(f"{code} cause {cause}")
    assert f"retry-after {reason.retry_after} model reads {reason.model}" in text
    assert (f"fix {fix}" in text) is bool(fix)
    assert ("nothing raises it yet" in text) is reason.reserved
    assert ("chosen by" in text) is any(row.code == code for row in ROWS)


def test_a_code_in_full_names_the_statuses_and_classes_that_it_is_chosen_by() -> None:
    text = "\n".join(shown("llm.timeout"))
    assert "status: 408, 504" in text
    assert "cause: ConnectTimeout, TimeoutException" in text


def test_one_code_as_json_is_its_line_of_all() -> None:
    (line,) = shown("llm.timeout", "--json")
    assert line in shown("--json")


@pytest.mark.parametrize(("code", "said"), [("exception.KeyError", "a bug"), ("llm.moderated", "an agent's own")])
def test_a_code_that_is_made_at_run_time_is_explained(code: str, said: str) -> None:
    """S-68 S-69."""
    first, cause, *_ = shown(code)
    assert first == code
    assert said in cause


def test_a_misspelt_code_is_pointed_to_the_nearest() -> None:
    assert "near          llm.timeout" in "\n".join(shown("llm.timeuot"))


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        ("llm", "there is no reason code 'llm'; the list is in 'perdure errors'"),
        ("tool.timeuot", "there is no reason code 'tool.timeuot'; tool.timeout is in 'perdure errors'"),
    ],
)
def test_what_is_no_code_is_refused(code: str, cause: str) -> None:
    result = CliRunner().invoke(cli, ["errors", code], prog_name="perdure")
    assert result.exit_code == 2
    assert result.stderr == f"perdure: {cause}; see 'perdure errors --help'\n"


def test_the_faults_are_the_rows_that_codes_are_chosen_by() -> None:
    """S-68: every one, in the order in which they are asked."""
    lines = shown("--faults")
    assert [line.split("  ")[0] for line in lines] == [row.seen for row in ROWS]
    assert all(row.match in line and row.code in line for row, line in zip(ROWS, lines, strict=True))
    rows = [Row.model_validate_json(line) for line in shown("--faults", "--json")]
    assert tuple(rows) == ROWS


def test_the_faults_of_one_code_are_shown_alone() -> None:
    rows = [Row.model_validate_json(line) for line in shown("llm.auth_error", "--faults", "--json")]
    assert rows == [row for row in ROWS if row.code == "llm.auth_error"]


@pytest.mark.parametrize(("code", "nearest"), [("llm.tiemout", "llm.timeout"), ("nonsense", "the list")])
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_the_faults_of_a_code_that_the_table_has_not_are_refused_with_the_nearest(
    code: str, nearest: str, form: list[str]
) -> None:
    """S-68: also of one that could be an agent's own, as no row chooses that."""
    result = CliRunner().invoke(cli, ["errors", code, "--faults", *form], prog_name="perdure")
    assert (result.exit_code, result.stdout) == (2, "")
    said = f"there is no reason code {code!r} in the table; {nearest} is in 'perdure errors'"
    assert result.stderr == f"perdure: {said}; see 'perdure errors --help'\n"


@pytest.mark.parametrize("form", [[], ["--json"]])
@pytest.mark.parametrize("code", ["tool.timeout", "exception.KeyError"])
def test_a_code_that_no_row_chooses_is_told_so(code: str, form: list[str]) -> None:
    """S-68: beside the data, so that JSON stays JSON."""
    result = CliRunner().invoke(cli, ["errors", code, "--faults", *form], prog_name="perdure")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == f"no fault of the table leads to {code}\n"


@pytest.mark.deep
def test_the_table_needs_neither_temporal_nor_a_database() -> None:
    code = "import sys, perdure.cli.reasons\nprint(*{'temporalio', 'sqlalchemy'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(ROOT)},
    )
    assert done.stdout.strip() == ""
