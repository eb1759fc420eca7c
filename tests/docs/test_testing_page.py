"""What the page on testing shows is run, block by block."""

import inspect
import re
from pathlib import Path
from typing import Any

import click
import pytest

from perdure import Agent
from perdure.cli.main import cli
from perdure.local_ports import find_free_port
from perdure.testing import Script, faults
from perdure.testing.__main__ import main
from perdure.testing.script import ChatRequest
from tests.house import House

PAGE = (Path(__file__).parents[2] / "docs" / "testing.md").read_text(encoding="utf-8").partition("## Record a run")[0]
START = PAGE.partition("## An agent and a script")[2]  # what stands before is run in test_environment.py
AGENTS, *TESTS = re.findall(r"```python\n(.*?)```", START, re.DOTALL)
NAMES = re.findall(r"^async def (test_\w+)", "".join(TESTS), re.MULTILINE)


def run(text: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(text, "docs/testing.md", "exec"), names)
    return names


@pytest.mark.parametrize("name", NAMES)
async def test_each_test_of_the_page_passes(house: House, name: str) -> None:
    port = str(find_free_port())
    agents = [value for value in run(AGENTS).values() if isinstance(value, Agent)]
    for variable, value in re.findall(r"([A-Z_]+)=(\S+)", "\n".join(re.findall(r"^    export .*", PAGE, re.MULTILINE))):
        house.environment.setenv(variable, value.replace("8901", port))
    async with house.worker(*agents):
        await run("".join(TESTS).replace("8901", port))[name]()


def test_the_page_names_every_fault() -> None:
    table = "".join(line for line in PAGE.splitlines() if line.startswith("| `"))
    functions = inspect.getmembers(faults, inspect.isfunction)
    offered = {name for name, made in functions if made.__module__ == faults.__name__ and not name.startswith("_")}
    assert set(re.findall(r"`(\w+)\(", table)) == offered


def test_the_script_of_the_page_is_one() -> None:
    (text,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    request = ChatRequest(model="m", messages=({"role": "user", "content": "go"},))
    reply = Script.model_validate_json(text).reply(request)
    assert (reply.text, [fault.known for fault in reply.faults]) == ("done", ["rate_limited"])


def test_the_commands_of_the_page_have_these_options() -> None:
    dev = cli.get_command(click.Context(cli), "dev")
    assert dev is not None
    for words, command in (("perdure dev", dev), ("perdure.testing", main)):
        (line,) = re.findall(rf"^    .*{words} (--.*)", PAGE, re.MULTILINE)
        options = {option for parameter in command.params for option in parameter.opts}
        assert set(re.findall(r"--\w+", line)) <= options


def test_the_page_lists_what_a_scripted_model_sees_of_a_request() -> None:
    rows = "".join(
        re.findall(r"^\| (`[^|]+) \| [^|]+ \|$", PAGE.partition("field of a `ChatRequest`")[2], re.MULTILINE)
    )
    members = {name for name in vars(ChatRequest) if not name.startswith("_")} | set(ChatRequest.model_fields)
    assert {name for name in members if f"`{name}`" in rows} == {
        name for name in members if not name.startswith("model_")
    }
