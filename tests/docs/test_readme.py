"""What the README says is so, and what the pages say to which it leads for the reference."""

import re
from datetime import timedelta
from pathlib import Path

import click
import pytest

from perdure.cli.errors import ExitCode
from perdure.cli.live import EXIT_CODES
from perdure.cli.main import cli
from perdure.contracts.agents import DEFAULT_GENERATION_TIMEOUT, DEFAULT_MAX_STEPS
from perdure.contracts.input_requests import MAX_WAITING_BYTES
from perdure.contracts.names import SearchAttribute
from perdure.contracts.retries import RetryPolicy
from perdure.contracts.sends import MAX_PROMPT_BYTES, MAX_WAITING_MESSAGES
from perdure.contracts.tools import DEFAULT_TOOL_TIMEOUT
from perdure.contracts.turns import MAX_OUTPUT_CHARACTERS, StopReason
from perdure.llm.tool_output import OFFLOAD_CHARACTERS
from perdure.settings import PREFIX, Settings
from perdure.worker.agents import load_agents

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CLI, FAILURES, SETTINGS, SIZING, UI = (
    (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    for name in ("cli", "failures", "settings", "sizing", "temporal-ui")
)
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
    shown = set(re.findall(r"`perdure ([a-z]+)", CLI))
    assert shown == set(cli.list_commands(context))
    run = cli.get_command(context, "run")
    assert run is not None
    options = {option for parameter in run.params for option in parameter.opts}
    row = next(line for line in CLI.splitlines() if line.startswith("| `perdure run"))
    assert set(re.findall(r"`(--[a-z-]+)`", row)) <= options


def test_the_exit_codes_are_the_ones_of_the_code() -> None:
    shown = {int(code): text for code, text in re.findall(r"^\| (\d+) \| (\w+)", CLI, re.MULTILINE)}
    assert set(shown) == {code.value for code in ExitCode}
    for reason in StopReason:
        assert shown[EXIT_CODES[reason].value] == reason


def test_the_settings_are_the_ones_of_the_code_with_their_defaults() -> None:
    shown = dict(re.findall(r"^\| `(PERDURE_\w+)` \| (?:`([^`]*)`)? ?\|", SETTINGS, re.MULTILINE))
    fields = Settings.model_fields
    assert set(shown) == {PREFIX + name.upper() for name in fields}
    for name, default in shown.items():
        value = fields[name.removeprefix(PREFIX).lower()].default
        value = ",".join(value) if isinstance(value, tuple) else value
        written = f"{value.total_seconds():g}" if isinstance(value, timedelta) else str(value or "")
        assert default == written, name


def test_the_retry_knobs_are_the_ones_of_the_code_with_their_defaults() -> None:
    presets = (RetryPolicy.dreadnode(), RetryPolicy.dawn(), RetryPolicy.activegraph(), RetryPolicy.perstack())
    rows = re.findall(r"^\| `(\w+)` " + r"\| ([^|]+) " * len(presets) + r"\| [^|]+ \|$", FAILURES, re.MULTILINE)
    assert {name for name, *_ in rows} == set(RetryPolicy.model_fields)
    for name, *cells in rows:
        assert cells == [in_words(getattr(preset, name)) for preset in presets], name


def in_words(value: object) -> str:
    if isinstance(value, timedelta):
        return f"{value.total_seconds():g} s" if value else "0"
    if isinstance(value, str):
        return f"`{value}`"
    return "none" if value is None else str(value)


def test_the_limits_are_the_ones_of_the_code() -> None:
    rows = dict(re.findall(r"^\| ([^|`]+|`output` of a result) \| ([^|]+) \| [^|]+ \|$", SETTINGS, re.MULTILINE))
    assert rows["model calls of a turn"] == f"{DEFAULT_MAX_STEPS:,}"
    assert rows["time of a model call"] == in_words(DEFAULT_GENERATION_TIMEOUT)
    assert rows["time of a tool call"] == in_words(DEFAULT_TOOL_TIMEOUT)
    assert rows["a prompt or message"] == f"{MAX_PROMPT_BYTES // 1024} KiB"
    waiting = f"{MAX_WAITING_MESSAGES}, and {MAX_WAITING_BYTES // 1024} KiB in all"
    assert rows["messages waiting at a running turn"] == waiting
    assert rows["a tool's output in the conversation"] == f"{OFFLOAD_CHARACTERS:,} characters"
    assert rows["`output` of a result"] == f"{MAX_OUTPUT_CHARACTERS:,} characters"


def test_the_search_attributes_are_the_ones_of_the_code() -> None:
    shown = set(re.findall(r"`(Perdure[A-Z]\w+)`", UI))
    assert shown == set(SearchAttribute)


def test_every_target_of_make_it_shows_exists() -> None:
    targets = set(re.findall(r"^(\w+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for page in (README, SIZING, contributing):
        shown = set(re.findall(r"(?:^    |`)make (\w+)", page, re.MULTILINE))
        assert shown
        assert shown <= targets


def test_the_readme_is_a_screen_and_links_and_the_verbs_it_shows_are_of_the_table() -> None:
    assert len([word for word in README.split() if word.strip("|-#")]) < 1_000  # a table's bars are no words
    verbs = set(re.findall(r"`perdure ([a-z]+)", README))
    assert verbs <= set(re.findall(r"`perdure ([a-z]+)", CLI))


def test_the_index_leads_to_every_page() -> None:
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"}
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert pages - set(re.findall(r"\]\(([\w-]+\.md)", index)) == set()


def test_the_index_begins_with_the_agent_of_the_readme_and_lists_the_pages_as_the_site_does() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert re.findall(r"```python\n(.*?)```", index, re.DOTALL) == PYTHON[:1]
    for start in re.findall(r"^    (.*perdure (?:dev|run) .*)$", index, re.MULTILINE):
        assert start in README
    listed = re.findall(r"^      - (\S+)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    linked = re.findall(r"\]\(([\w-]+\.md)(?:#[\w-]+)?\)", index.partition("## 1. ")[2])
    assert listed == list(dict.fromkeys(linked))


def test_every_link_to_a_file_leads_somewhere() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    for page in pages:
        for target, heading in re.findall(r"\]\((?!http)([^)#]*)(?:#([^)]*))?\)", page.read_text(encoding="utf-8")):
            linked = page.parent / target if target else page
            assert linked.exists(), f"{page.name} links to {target}"
            if heading:
                assert heading in headings(linked), f"{page.name} links to {target}#{heading}"


def headings(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
