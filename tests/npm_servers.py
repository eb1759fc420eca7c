"""Where the MCP servers from npm are that tests use, and how they get there."""

import os
from pathlib import Path

import pytest

VERSION = "2026.8.31"
NAMES = ("everything", "filesystem", "memory")

FOLDER = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "perdure" / "npm"

INSTALL = f"npm install --prefix {FOLDER} " + " ".join(
    f"@modelcontextprotocol/server-{name}@{VERSION}" for name in NAMES
)

_BIN = FOLDER / "node_modules" / ".bin"

installed = pytest.mark.skipif(
    not all((_BIN / f"mcp-server-{name}").exists() for name in NAMES), reason=f"needs: {INSTALL}"
)


def command(name: str) -> str:
    """The program of a server."""
    return str(_BIN / f"mcp-server-{name}")
