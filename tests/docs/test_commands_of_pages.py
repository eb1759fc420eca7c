"""Every command that a page, an alert or a sentence with advice names is one that there is, with its options."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from perdure.cli.main import cli
from tests.contract.repository import ROOT

PAGES = sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", *(ROOT / "deploy").rglob("*.md")])
RULES = sorted((ROOT / "deploy/prometheus/rules").glob("*.yml"))
SOURCES = sorted(
    file for folder in ("perdure", "worker", "activities", "workflows") for file in (ROOT / folder).rglob("*.py")
)

_QUOTED = re.compile(r"`(perdure [a-z][^`]*)`|'(perdure [a-z][^'{}]*)'")
"""A command within a sentence."""

_IN_AN_ALERT = re.compile(r"\b(perdure [a-z]+(?: (?:--[a-z-]+|\w+|\{\{[^}]*\}\}))* --[a-z-]+(?: --[a-z-]+)*)")
"""A command with options within an alert, which has no quotes."""

_TYPED = re.compile(r"^ {4,}(?:\S.*?(?:[$][(]|-- |[|] |&& ))?(perdure .*)")
"""A command in an indented block, alone or behind what leads to it."""

_END = re.compile(r"\s(?:[|;&>#]|\|\|)|[;)]|$")


_TEMPORAL = re.compile(
    r"\btemporal ((?:workflow|worker|operator|schedule|task-queue|server)(?: [a-z][a-z-]*)+)([^`\n|]*)"
)
"""A command of Temporal's own program, and what follows it."""


def commands_of(file: Path) -> Iterator[tuple[str, str]]:
    """The commands of a file, by their places."""
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        place = f"{file.relative_to(ROOT)}:{number}"
        for found in _QUOTED.finditer(line):
            yield place, found[1] or found[2]
        if file.suffix == ".yml":
            yield from ((place, found[1]) for found in _IN_AN_ALERT.finditer(line))
        typed = _TYPED.match(line) if file.suffix == ".md" else None
        if typed is not None:
            end = _END.search(typed[1])
            yield place, typed[1][: end.start()] if end else typed[1]


def flaw_of(command: str) -> str:
    """What is wrong with a command; empty if nothing is."""
    try:
        words = shlex.split(command)[1:]
    except ValueError:  # it goes on in the next line
        return ""
    found: click.Command = cli
    while isinstance(found, click.Group) and words and re.fullmatch(r"[a-z-]+", words[0]) and words[0][0] != "-":
        below = found.get_command(click.Context(found), words[0])
        if below is None:
            return f"there is no {words[0]!r}"
        found, words = below, words[1:]
    known = {
        name
        for parameter in found.get_params(click.Context(found))
        if isinstance(parameter, click.Option)
        for name in (*parameter.opts, *parameter.secondary_opts)
    }
    unknown = [word for word in words if word.startswith("--") and word.partition("=")[0] not in known]
    return f"it has no {unknown[0]}" if unknown else ""


@pytest.mark.parametrize("files", [PAGES, RULES, SOURCES], ids=["pages", "alerts", "sentences"])
def test_each_command_that_is_named_is_there_with_its_options(files: list[Path]) -> None:
    found = [each for file in files for each in commands_of(file)]
    wrong = [f"{place}: {command}: {flaw}" for place, command in found if (flaw := flaw_of(command))]
    assert not wrong, "\n".join(wrong)


def test_commands_are_found() -> None:
    """In pages, alerts and code."""
    counts = [sum(1 for file in files for _ in commands_of(file)) for files in (PAGES, RULES, SOURCES)]
    assert all(count > least for count, least in zip(counts, (200, 5, 100), strict=True)), counts


@pytest.mark.parametrize(
    ("command", "flaw"),
    [
        ("perdure resume --all --reason-code X --since 4d", ""),
        ("perdure resume --everything", "it has no --everything"),
        ("perdure store reconcil", "there is no 'reconcil'"),
        ("perdure restart", "there is no 'restart'"),
    ],
)
def test_a_command_that_is_not_there_is_noticed(command: str, flaw: str) -> None:
    assert flaw_of(command) == flaw


_IN_NO_HELP = {"--codec-auth", "--codec-endpoint"}
"""Options of every command of Temporal's program, which hides them."""


def flaw_in_help(shown: str, options: set[str]) -> str:
    """The options that the help of a command of Temporal's does not show."""
    return ", ".join(sorted(option for option in options - _IN_NO_HELP if not re.search(rf"{option}(?![\w-])", shown)))


@pytest.mark.deep
def test_each_command_of_temporals_program_is_there_with_its_options() -> None:
    options: dict[str, set[str]] = {}
    for file in [*PAGES, *RULES, *SOURCES, ROOT / "deploy/compose.yaml"]:
        text = re.sub(r"\\\\?\n\s*|[\"']\n\s*f?[\"']", "", file.read_text(encoding="utf-8"))
        for command, rest in _TEMPORAL.findall(text):
            options.setdefault(command, set()).update(re.findall(r"(?<![\w-])--[a-z][a-z-]*", rest))
    assert len(options) > 15
    program = Path(sys.executable).parent / "temporal"
    for command, named in options.items():
        done = subprocess.run([program, *command.split(), "--help"], capture_output=True, text=True, check=False)
        usage = re.search(r"^Usage:\n\s+temporal (.*?)(?: \[|$)", done.stdout, re.MULTILINE)
        assert usage is not None, command
        assert usage[1].strip() == command, f"there is no `temporal {command}`"
        assert flaw_in_help(done.stdout, named) == "", command


def test_an_option_that_a_help_does_not_show_is_noticed() -> None:
    assert flaw_in_help("      --build-id string   Build ID", {"--build-id", "--build", "--codec-auth"}) == "--build"
