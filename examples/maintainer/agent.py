"""A maintainer of a Git repository: it reads and tests by itself, and a person approves what it changes.

REPOSITORY=~/src/project perdure dev --agents examples/maintainer/agent.py
perdure run maintainer "The tests fail. Find out why, and mend it."
"""

import subprocess
import sys
from datetime import timedelta
from pathlib import Path

from pydantic import JsonValue

from perdure import Agent, ApprovalPolicy, ApprovalRule, Setting, tool

REPOSITORY = {"repository": Setting("REPOSITORY", default=".")}


def inside(repository: str, path: str) -> Path:
    """The file, if it is one of the repository's."""
    root = Path(repository).expanduser().resolve()
    found = (root / path).resolve()
    if not found.is_relative_to(root) or ".git" in found.relative_to(root).parts:
        raise PermissionError(f"{path} is not a file of the repository")
    return found


def run(repository: str, *command: str) -> str:
    """Run a command there; its exit code and the end of what it prints."""
    folder = inside(repository, ".")
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600, check=False)  # noqa: S603
    return f"exit code {ended.returncode}\n{(ended.stdout + ended.stderr)[-4_000:]}"


@tool(needs=REPOSITORY, catch=[OSError])
def read_file(path: str, repository: str) -> str:
    """Read a text file of the repository."""
    return inside(repository, path).read_text(encoding="utf-8")


@tool(needs=REPOSITORY, catch=[subprocess.TimeoutExpired])
def run_tests(repository: str) -> str:
    """Run the tests."""
    return run(repository, sys.executable, "-m", "pytest", "-q")


@tool(needs=REPOSITORY, catch=[OSError], requires_approval=True, idempotent=True)
def write_file(path: str, text: str, repository: str) -> str:
    """Write a text file of the repository, in place of what is there."""
    inside(repository, path).write_text(text, encoding="utf-8")
    return f"wrote {path}"


@tool(needs=REPOSITORY, requires_approval=True)
def commit(message: str, repository: str) -> str:
    """Commit all changes."""
    return run(repository, "git", "commit", "--all", "--message", message)


DOCS: dict[str, JsonValue] = {"properties": {"path": {"pattern": r"^docs/[a-z_]+\.md$"}}, "required": ["path"]}

agent = Agent(
    name="maintainer",
    model="openai/gpt-5-mini",
    instructions="You maintain this repository. Run the tests before and after a change, and commit what works.",
    tools=[read_file, run_tests, write_file, commit],
    approvals=ApprovalPolicy(
        rules=(ApprovalRule(tool="write_file", arguments=DOCS, decision="allow"),), expires=timedelta(days=3)
    ),
)
