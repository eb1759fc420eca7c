"""The page for those who know another system: its code runs, and each word that it calls taken is taken."""

import inspect
import re
from pathlib import Path

import pytest

from perdure import Agent, RetryPolicy, Toolset, stop, tool, tool_method
from perdure.agents.tool import ToolSettings
from perdure.contracts.events import event_type
from perdure.contracts.values import SYNONYMS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "coming-from.md").read_text(encoding="utf-8")
(CODE,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith("| there")
]
TAKEN = [word for row in ROWS if row[1].startswith("taken") for word in re.findall(r"`@?(\w+)[^`]*`", row[0])]

KEYWORDS = {
    name
    for factory in vars(stop).values()
    if inspect.isfunction(factory)
    for name in inspect.signature(factory).parameters
}


def test_the_code_of_the_page_runs() -> None:
    names: dict[str, object] = {}
    exec(compile(CODE, "docs/coming-from.md", "exec"), names)
    assert isinstance(names["dreadnode"], Agent)


@pytest.mark.parametrize("word", TAKEN)
def test_a_word_that_is_called_taken_is_taken(word: str) -> None:
    """As a setting, as a keyword of a stop factory, as a setting or a method of tools, or as a type of events."""
    settings = {
        *Agent.model_fields,
        *RetryPolicy.model_fields,
        *(name for words in SYNONYMS.values() for name in words),
    }
    tools = {*ToolSettings.__annotations__, *dir(Toolset), *dir(tool(word_of)), "variants"}
    given = {tool.__name__, Toolset.__name__, tool_method.__name__, stop.output.__name__, stop.tool_output.__name__}
    if word not in settings | KEYWORDS | tools | given:
        assert event_type(word) == "agent_error"


def word_of() -> str:
    return "a tool"


def test_each_word_of_the_table_in_code_is_on_the_page() -> None:
    """A word that nobody can find helps nobody; those that are a spelling of another one may be left out."""
    missing = {word for words in SYNONYMS.values() for word in words if f"`{word}" not in PAGE} - {"attempts"}
    assert missing == set()


def test_the_presets_of_the_page_make_as_many_calls_as_it_says() -> None:
    calls = {row[0]: row[2] for row in ROWS if row[0].startswith("`RetryPolicy.")}
    assert list(calls) == [f"`RetryPolicy.{name}()`" for name in ("dreadnode", "dawn", "activegraph", "perstack")]
    for preset, said in calls.items():
        made = getattr(RetryPolicy, preset.split(".")[1].removesuffix("()`"))()
        assert said.split()[0] == str(made.max_retries + 1)


def test_readme_and_help_link_to_the_page() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "(docs/coming-from.md#presets)" in readme
    for file in ("options.py", "list.py"):
        assert "docs/coming-from.md" in (ROOT / "perdure" / "cli" / file).read_text(encoding="utf-8")
