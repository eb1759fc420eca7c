"""Environments of frameworks that strangers wrote: each is made anew, with the newest releases that there are."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"

NEEDS = {
    "openai_python.py": ("openai",),
    "openai_agents.py": ("openai-agents",),
    "langchain_responses.py": ("langchain", "langchain-openai"),
    "pydantic_ai_responses.py": ("pydantic-ai-slim[openai]",),
    "litellm_responses.py": ("litellm",),
    "openai_js.mjs": ("openai", "zod"),
    "openai_agents_js.mjs": ("@openai/agents", "zod"),
    "ai_sdk.mjs": ("ai", "@ai-sdk/openai", "zod"),
    "langchain_js.mjs": ("langchain", "@langchain/openai", "@langchain/core", "zod"),
}
"""Packages of each program, of PyPI or of npm; an environment of its own for each, so that none holds another back."""

CHATS: dict[str, tuple[str, ...]] = {
    "chat_openai_python.py": ("openai",),
    "chat_openai_js.mjs": ("openai", "zod"),
    "chat_langchain.py": ("langchain", "langchain-openai"),
    "chat_litellm.py": ("litellm",),
    "chat_ai_sdk.mjs": ("ai", "@ai-sdk/openai", "zod"),
}
"""Packages of each program that speaks Chat Completions."""

PAGES = {"copilotkit.jsx": ("@copilotkit/react-core", "react", "react-dom", "zod", "esbuild")}
"""Packages of each program for a browser."""

SERVERS = {
    "open-webui": r"torch|nvidia-.*|cuda-.*|triton|sentence-transformers|accelerate|faster-whisper|ctranslate2|av"
}
"""Each server that is run as it is, and the packages of gigabytes for models of its own, which are left out."""

INSTALL_SECONDS = 600

OF_THE_DEVELOPER = ("PERDURE_", "TEMPORAL_", "OPENAI_", "ANTHROPIC_", "LANGCHAIN_", "LANGSMITH_", "PYTHON")

ALONE = {"OPENAI_AGENTS_DISABLE_TRACING": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
"""Variables with which the frameworks ask nobody but the gateway: no traces, no list of prices."""

needs_node = pytest.mark.skipif(
    not (shutil.which("node") and shutil.which("npm")), reason="needs: node and npm on the PATH"
)


def variables(**more: str) -> dict[str, str]:
    """The variables of this process without those of the developer and of perdure, and with more."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OF_THE_DEVELOPER)}
    return {**kept, **ALONE, **more}


def make(program: str, folder: Path) -> list[str]:
    """Install what a program needs into a folder, and copy the program there; the command that runs it."""
    for name in (program, f"cases{Path(program).suffix}"):
        shutil.copy(PROGRAMS / name, folder)
    packages = {**NEEDS, **CHATS}[program]
    if program.endswith(".mjs"):
        _install(packages, folder)
        return ["node", program]
    return [str(_make_venv(packages, folder) / "python"), program]


def install_server(name: str, folder: Path) -> Path:
    """Install the newest release of a server of ``SERVERS``; the folder of its commands."""
    found = folder / "packages.json"
    ask = ["--dry-run", "--ignore-installed", "--report", str(found)]
    _do([sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *ask, name], folder)
    needed = [package["metadata"] for package in json.loads(found.read_text(encoding="utf-8"))["install"]]
    named = [
        f"{one['name']}=={one['version']}" for one in needed if not re.fullmatch(SERVERS[name], one["name"].lower())
    ]
    return _make_venv(["--no-deps", *named], folder)


def bundle(program: str, folder: Path) -> Path:
    """Install what a program for a browser needs into a folder, and make one script of it all."""
    shutil.copy(PROGRAMS / program, folder)
    _install(PAGES[program], folder)
    fonts = [f"--loader:.{kind}=dataurl" for kind in ("woff", "woff2", "ttf")]
    made = folder / "bundle.js"
    settings = ["--bundle", "--minify", "--log-level=error", '--define:process.env.NODE_ENV="production"', *fonts]
    _do([str(folder / "node_modules" / ".bin" / "esbuild"), program, f"--outfile={made}", *settings], folder)
    return made


def releases(command: Sequence[str], folder: Path) -> str:
    """Names and releases of what is installed, for the message of a failure."""
    listed = ["npm", "ls", "--prefix", str(folder)]
    if command[0] != "node":
        listed = [sys.executable, "-m", "pip", "--python", command[0], "list", "--format", "freeze"]
    return subprocess.run(listed, check=False, capture_output=True, text=True, timeout=INSTALL_SECONDS).stdout


def _make_venv(packages: Sequence[str], folder: Path) -> Path:
    """A virtual environment of this process's Python, with these packages; the folder of its commands."""
    _do([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], folder)
    # Our own pip installs from outside, and compiles nothing: of what is installed, a program imports a part.
    commands = folder / "venv" / "bin"
    pip = [sys.executable, "-m", "pip", "--python", str(commands / "python"), "install", "--quiet", "--no-compile"]
    _do([*pip, "--disable-pip-version-check", *packages], folder)
    return commands


def _install(packages: Sequence[str], folder: Path) -> None:
    _do(["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder), *packages], folder)


def _do(command: Sequence[str], folder: Path) -> None:
    done = subprocess.run(
        command, cwd=folder, env=variables(), check=False, capture_output=True, text=True, timeout=INSTALL_SECONDS
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
