"""What the README says is so."""

import re
from datetime import timedelta
from pathlib import Path

import click
import pytest

from perdure.cli.errors import ExitCode
from perdure.cli.live import EXIT_CODES
from perdure.cli.main import cli
from perdure.contracts.turns import StopReason
from perdure.settings import PREFIX, Settings
from worker.agents import load_agents

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PYTHON = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_the_agent_of_the_readme_loads(tmp_path: Path) -> None:
    module = tmp_path / "agent_of_the_readme.py"
    module.write_text(PYTHON[0], encoding="utf-8")
    assert list(load_agents([str(module)])) == ["writer"]


@pytest.mark.parametrize("block", PYTHON)
def test_every_python_block_compiles(block: str) -> None:
    compile(block, "README.md", "exec")


def test_every_verb_and_option_it_shows_exists() -> None:
    context = click.Context(cli)
    shown = set(re.findall(r"`perdure ([a-z]+)", README))
    assert shown == set(cli.list_commands(context))
    run = cli.get_command(context, "run")
    assert run is not None
    options = {option for parameter in run.params for option in parameter.opts}
    row = next(line for line in README.splitlines() if line.startswith("| `perdure run"))
    assert set(re.findall(r"`(--[a-z-]+)`", row)) <= options


def test_the_exit_codes_are_the_ones_of_the_code() -> None:
    shown = {int(code): text for code, text in re.findall(r"^\| (\d) \| (\w+)", README, re.MULTILINE)}
    assert set(shown) == {code.value for code in ExitCode if code is not ExitCode.INTERRUPTED}
    for reason in StopReason:
        assert shown[EXIT_CODES[reason].value] == reason


def test_the_settings_are_the_ones_of_the_code_with_their_defaults() -> None:
    shown = dict(re.findall(r"^\| `(PERDURE_\w+)` \| (?:`([^`]*)`)? ?\|", README, re.MULTILINE))
    fields = Settings.model_fields
    assert set(shown) == {PREFIX + name.upper() for name in fields}
    for name, default in shown.items():
        value = fields[name.removeprefix(PREFIX).lower()].default
        written = f"{value.total_seconds():g}" if isinstance(value, timedelta) else str(value or "")
        assert default == written, name


def test_every_link_to_a_file_leads_somewhere() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    for page in pages:
        for target in re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
