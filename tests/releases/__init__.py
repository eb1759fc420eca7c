"""The release before this one: its wheel, its worker in a process of its own, and what its model is made to say."""

import os
import subprocess
import sys
import uuid
import zipfile
from collections.abc import Mapping
from pathlib import Path

from perdure.contracts.values import JsonValue
from perdure.testing import ChatRequest, Reply, call, say
from tests.house import WorkerProcess

RELEASES = Path(__file__).parent
"""A folder for each release, with what it has left; ``python -m tests.releases.record COMMIT`` makes one."""

BEFORE = RELEASES / "0.1.0"
"""The release before this one."""

AGENTS = Path(__file__).parent / "agents.py"
ASK: tuple[str, JsonValue] = ("ask_user", {"question": "Which way?", "options": ["left", "right"]})
PAY: tuple[str, JsonValue] = ("pay", {"amount": 7})


OF_ITS_LITELLM = """
import importlib.abc, importlib.util, sys

class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "perdure.activities.provider_http":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            made = module._transport
            module._transport = lambda *given, http2=False, cert=None, limits=None, **named: made(*given, **named)

        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Finder())
"""
"""Takes from the release's transport what litellm gives it from 1.109 on: it was locked with 1.106, and takes no more.

Python runs this before anything else of that release, in place of an installation of the older litellm.
"""


def unpack(folder: Path) -> Path:
    """The wheel's modules in a folder ``before``, as a place to import from."""
    (wheel,) = BEFORE.glob("*.whl")
    place = folder / "before"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(place)
    (place / "sitecustomize.py").write_text(OF_ITS_LITELLM, encoding="utf-8")
    return place


def environment_of(place: Path, changes: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment in which Python finds that release before any other."""
    return {**os.environ, "PYTHONPATH": str(place), **(changes or {})}


def worker_of(place: Path, log_folder: Path, **changes: str) -> WorkerProcess:
    """A worker of that release, as an operator starts it."""
    log = log_folder / f"worker-before-{uuid.uuid4().hex[:6]}.log"
    command = [sys.executable, "-P", "-m", "perdure.worker", "--agents", str(AGENTS)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=log_folder, env=environment_of(place, changes), stdout=output, stderr=output
        )
    return WorkerProcess(process, log)


def answers(request: ChatRequest) -> Reply:
    """What the model says: the prompt lists the tools that it calls, one an answer, and how often.

    ``walk 3, ask, walk 2`` walks three steps, asks, walks two, and is done.
    """
    prompt = [message for message in request.messages if message["role"] == "user"][-1]
    said = request.messages[request.messages.index(prompt) + 1 :]
    done = sum(message["role"] == "assistant" for message in said)
    calls = [one for part in str(prompt["content"]).split(", ") for one in _calls(part)]
    return call(calls[done]) if done < len(calls) else say(f"{prompt['content']}: done")


def _calls(part: str) -> list[tuple[str, JsonValue]]:
    what, _, number = part.partition(" ")
    if what == "walk":
        return [("walk", {"number": step}) for step in range(int(number))]
    if what == "read":
        return [("read", {"lines": int(number)})]
    if what == "delegate":
        return [("walker", {"query": f"walk {number}"})]
    return [{"ask": ASK, "pay": PAY}[what]] if what in {"ask", "pay"} else []
