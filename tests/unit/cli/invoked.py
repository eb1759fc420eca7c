"""A verb of the command line, called in this process, and the one line of an error."""

from click.testing import CliRunner, Result

from perdure.cli.main import cli


def perdure(*args: str) -> Result:
    """What a call gives."""
    return CliRunner().invoke(cli, list(args), prog_name="perdure")


def assert_one_line(result: Result, code: int, *parts: str) -> None:
    """It failed with this code, and one line on stderr that has these parts."""
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("perdure: ")
    for part in parts:
        assert part in line
