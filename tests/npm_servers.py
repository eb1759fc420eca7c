"""Where the programs from npm are that tests use, and how they get there: MCP servers, clients, Temporal workers."""

import os
from pathlib import Path

import pytest

VERSION = "2026.8.31"
NAMES = ("everything", "filesystem", "memory")

FOLDER = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "perdure" / "npm"

CLIENT_MAKERS = ("openapi-typescript@7.13.0", "openapi-fetch@0.17.0", "typescript@5.9.3")

WORKERS = ("@temporalio/worker@1.24.0", "@temporalio/workflow@1.24.0")

OPENAI = ("openai@7.55.0",)

INSTALL = f"npm install --prefix {FOLDER} " + " ".join(
    (*(f"@modelcontextprotocol/server-{name}@{VERSION}" for name in NAMES), *CLIENT_MAKERS, *WORKERS, *OPENAI)
)

_BIN = FOLDER / "node_modules" / ".bin"

installed = pytest.mark.skipif(
    not all((_BIN / f"mcp-server-{name}").exists() for name in NAMES), reason=f"needs: {INSTALL}"
)

makers_installed = pytest.mark.skipif(
    not all((_BIN / name).exists() for name in ("openapi-typescript", "tsc")), reason=f"needs: {INSTALL}"
)

workers_installed = pytest.mark.skipif(
    not all((FOLDER / "node_modules" / "@temporalio" / name).exists() for name in ("worker", "workflow")),
    reason=f"needs: {INSTALL}",
)

openai_installed = pytest.mark.skipif(not (FOLDER / "node_modules" / "openai").exists(), reason=f"needs: {INSTALL}")


def program(name: str) -> str:
    """A program of a package."""
    return str(_BIN / name)


def command(name: str) -> str:
    """The program of a server."""
    return str(_BIN / f"mcp-server-{name}")
