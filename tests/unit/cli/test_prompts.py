"""Where a prompt comes from."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from perdure.cli.prompts import PROMPT


@click.command()
@click.argument("prompt", type=PROMPT)
def echo(prompt: str) -> None:
    click.echo(prompt)


def said(prompt: str, stdin: bytes = b"") -> str:
    result = CliRunner().invoke(echo, ["--", prompt], input=stdin)
    return result.stdout if result.exit_code == 0 else result.stderr.splitlines()[-1]


def test_a_prompt_is_what_is_written_stdin_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "prompt.md"
    file.write_text("from a file\n", encoding="utf-8")
    assert [said("go"), said("-", "über\n".encode()), said(f"@{file}"), said("@@bob hi"), said("@")] == [
        "go\n",
        "über\n\n",
        "from a file\n\n",
        "@bob hi\n",
        "@\n",
    ]


@pytest.mark.parametrize(
    ("prompt", "stdin", "part"),
    [
        ("-", b" \n", "stdin is empty"),
        ("-", b"\xff", "stdin is not UTF-8 text"),
        ("@bob hi", b"", "the file 'bob hi': no such file or directory; write @@ for a prompt that begins with @"),
    ],
)
def test_what_is_no_prompt_is_said_with_the_fix(prompt: str, stdin: bytes, part: str) -> None:
    assert part in said(prompt, stdin)
