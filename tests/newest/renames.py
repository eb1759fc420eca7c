"""What a release that renames something must do: a worker ends with exit code 2, and one sentence that names it.

``python -m tests.newest`` runs this file in the environment without the lock, behind its checks. For each name that
perdure needs, a forked process renames it, and starts a worker. All libraries are imported once, before the fork;
perdure's own modules again after the renaming, as it would be with such a release.
"""

import importlib
import inspect
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

from perdure.libraries import NAMES, Name

AGENTS = """
from perdure import Agent
agent = Agent(name="greeter", model="openai/gpt-5-mini", instructions="Greet.")
"""

START_SECONDS = 60
"""Longest time until a worker has ended."""


def rename(name: Name) -> None:
    """Give the name another one, as a release may."""
    owner = importlib.import_module(name.module)
    *parents, last = name.path.split(".")
    for parent in parents:
        owner = getattr(owner, parent)
    setattr(owner, f"{last}_of_old", inspect.getattr_static(owner, last))
    delattr(owner, last)
    if isinstance(owner, ModuleType):  # which may import a name again when somebody asks for it
        owner.__dict__["__getattr__"] = without(last, owner.__dict__.get("__getattr__"))


def without(missing: str, get: Callable[[str], Any] | None) -> Callable[[str], Any]:
    """A module's ``__getattr__`` that lacks a name."""

    def get_others(name: str) -> Any:
        if name == missing or get is None:
            raise AttributeError(name)
        return get(name)

    return get_others


def start_worker(name: Name, told: int) -> None:
    """Rename, and start a worker whose errors go into ``told``; this process ends with its exit code."""
    code = 1
    try:
        signal.alarm(START_SECONDS)
        os.dup2(told, 2)
        rename(name)
        sys.argv = ["worker", "--agents", "greeter.py", "--metrics-address", ""]
        importlib.import_module("perdure.worker.__main__").main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException as error:
        os.write(2, f"Traceback: {error!r}".encode())
    finally:
        os._exit(code)


class Meeting:
    """A worker in a process of its own that meets a renaming."""

    def __init__(self, name: Name) -> None:
        self._name = name
        self._told = tempfile.TemporaryFile()  # noqa: SIM115 - closed in problem()
        sys.stdout.flush()
        self._process = os.fork()
        if self._process == 0:
            start_worker(name, self._told.fileno())

    def problem(self) -> str:
        """What is wrong with the worker's end; empty if it is as it should be."""
        code = os.waitstatus_to_exitcode(os.waitpid(self._process, 0)[1])
        with self._told:
            self._told.seek(0)
            text = self._told.read().decode(errors="replace")
        library, name = self._name.library, f"{self._name.module}.{self._name.path}"
        sentence = f"{library} {version(library)} has no {name}, which perdure needs; install"
        if code == 2 and text.count("\n") == 1 and sentence in text:
            return ""
        return f"exit code {code}, not 2 with {sentence!r}:\n{text[-2_000:]}"


def main() -> int:
    """Rename each name; the number of those of which a worker said nothing."""
    Path("greeter.py").write_text(AGENTS, encoding="utf-8")
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # as a worker has it before it imports litellm
    for module in ("perdure.worker.__main__", *(name.module for name in NAMES)):
        importlib.import_module(module)
    for module in [module for module in sys.modules if module.partition(".")[0] == "perdure"]:
        if not module.startswith(("perdure.contracts", "perdure.libraries")):  # those import no library but pydantic
            del sys.modules[module]
    failed, at_once = 0, os.cpu_count() or 1
    for first in range(0, len(NAMES), at_once):
        names = NAMES[first : first + at_once]
        for name, meeting in [(name, Meeting(name)) for name in names]:
            problem = meeting.problem()
            failed += bool(problem)
            shown = f"{name.module}.{name.path}"
            print(f"FAILED  no {shown}: {problem}" if problem else f"ok      no {shown}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
