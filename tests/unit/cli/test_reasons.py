import json
import subprocess
import sys

from click.testing import CliRunner

from perdure.cli import child
from perdure.cli.main import cli
from perdure.contracts.errors import REASONS, ReasonCode


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
        assert lines[code] == ["retried" if reason.transient else "final", reason.text]


def test_json_is_one_code_a_line() -> None:
    rows = [json.loads(line) for line in shown("--json")]
    by_code = {row.pop("code"): row for row in rows}
    assert by_code == {code: reason.model_dump() for code, reason in REASONS.items()}
    assert by_code[ReasonCode.LLM_RATE_LIMITED]["transient"] is True


def test_an_argument_is_refused() -> None:
    result = CliRunner().invoke(cli, ["errors", "llm"], prog_name="perdure")
    assert result.exit_code == 2
    assert result.stderr.endswith("see 'perdure errors --help'\n")


def test_the_table_needs_neither_temporal_nor_a_database() -> None:
    code = "import sys, perdure.cli.reasons\nprint(*{'temporalio', 'sqlalchemy'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(child.LIBRARY.parent)},
    )
    assert done.stdout.strip() == ""
