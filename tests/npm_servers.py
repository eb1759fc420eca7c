"""Where the programs from npm are that tests use, and how they get there: MCP servers, and makers of HTTP clients."""

import os
from pathlib import Path

import pytest

VERSION = "2026.8.31"
NAMES = ("everything", "filesystem", "memory")

FOLDER = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "perdure" / "npm"

CLIENT_MAKERS = ("openapi-typescript@7.13.0", "openapi-fetch@0.17.0", "typescript@5.9.3")

INSTALL = f"npm install --prefix {FOLDER} " + " ".join(
    (*(f"@modelcontextprotocol/server-{name}@{VERSION}" for name in NAMES), *CLIENT_MAKERS)
)

_BIN = FOLDER / "node_modules" / ".bin"

installed = pytest.mark.skipif(
    not all((_BIN / f"mcp-server-{name}").exists() for name in NAMES), reason=f"needs: {INSTALL}"
)

makers_installed = pytest.mark.skipif(
    not all((_BIN / name).exists() for name in ("openapi-typescript", "tsc")), reason=f"needs: {INSTALL}"
)


def program(name: str) -> str:
    """A program of a package."""
    return str(_BIN / name)


def command(name: str) -> str:
    """The program of a server."""
    return str(_BIN / f"mcp-server-{name}")
