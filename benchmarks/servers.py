"""``python -m benchmarks.servers``: fifteen MCP servers of npm and PyPI that no test uses, in five trials each.

Each is listed, called, given a wrong argument, asked for a large result where it has one, and killed in a call. Prints
a table, and ends with 1 if a trial of one failed. The servers are installed once, in the versions below, into the cache
folder; that needs npm and a network. No trial needs an account: a server that cannot do without says so in its answer,
which must reach the model. ``python -m benchmarks.servers NAME…`` tries some of them.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import psutil  # type: ignore[import-untyped] # it has no types

from perdure import Agent, StdioServerConfig
from perdure.activities.mcp import reaper
from perdure.activities.mcp.failures import McpError, McpUnavailableError
from perdure.activities.mcp.servers import McpServers
from perdure.activities.mcp.session_state import Caller
from perdure.contracts.tools import ToolDeclaration
from perdure.contracts.values import JsonValue

FOLDER = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "perdure" / "fifteen"
NPM = FOLDER / "npm" / "node_modules" / ".bin"

START_SECONDS, CALL_SECONDS, SENT_SECONDS = 60, 60, 0.3
"""Bounds of a start and a call, and what a call needs to reach a server that is stopped."""

LARGE = 100_000
"""Characters that a large result has at least."""

SHOWN = 48


@dataclass(frozen=True)
class Deed:
    """A call of a tool."""

    tool: str
    arguments: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])


@dataclass(frozen=True)
class Server:
    """A server, how it is installed and started, and what it is asked.

    Attributes:
        packages: Of npm if the command stands in ``NPM``, else of PyPI, in an environment of its own.
        command: The program and its arguments; ``$FOLDER`` is a folder for files.
        works: A call; without an account or a network its answer is an error.
        large: A call with a large result, if it has one that needs nothing but this machine.
        before: Calls that ``large`` needs.
    """

    name: str
    packages: Sequence[str]
    command: Sequence[str]
    works: Deed
    large: Deed | None = None
    before: Sequence[Deed] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def is_of_npm(self) -> bool:
        """Whether it comes from npm; a version of PyPI stands behind ``==``."""
        return not any("==" in package for package in self.packages)

    @property
    def home(self) -> Path:
        """The folder that it is installed in."""
        return FOLDER / "npm" if self.is_of_npm else FOLDER / "pypi" / self.name

    def config(self, folder: Path) -> StdioServerConfig:
        """How it is started, with its files in a folder."""
        program, *arguments = (part.replace("$FOLDER", str(folder)) for part in self.command)
        return StdioServerConfig(
            name=self.name,
            command=str((NPM if self.is_of_npm else self.home / "bin") / program),
            args=arguments,
            env=dict(self.env),
            cwd=str(folder),
            init_timeout=timedelta(seconds=START_SECONDS),
            call_timeout=timedelta(seconds=CALL_SECONDS),
        )


BOOK: JsonValue = "$FOLDER/book.xlsx"
DOCUMENT: JsonValue = "$FOLDER/text.docx"
THOUGHT: dict[str, JsonValue] = {"thought": "a", "nextThoughtNeeded": False, "thoughtNumber": 1, "totalThoughts": 1}

FIFTEEN = (
    Server(
        "thinking",
        ["@modelcontextprotocol/server-sequential-thinking@2026.8.31"],
        ["mcp-server-sequential-thinking"],
        Deed("sequentialthinking", THOUGHT),
    ),
    Server(
        "context7",
        ["@upstash/context7-mcp@4.1.1"],
        ["context7-mcp"],
        Deed("resolve-library-id", {"query": "durable", "libraryName": "temporal"}),
    ),
    Server(
        "playwright",
        ["@playwright/mcp@0.0.83"],
        ["playwright-mcp", "--headless", "--isolated"],
        Deed("browser_navigate", {"url": "about:blank"}),
    ),
    Server("chrome", ["chrome-devtools-mcp@1.11.0"], ["chrome-devtools-mcp", "--headless"], Deed("list_pages")),
    Server("notion", ["@notionhq/notion-mcp-server@2.5.2"], ["notion-mcp-server"], Deed("API-get-self")),
    Server(
        "eslint",
        ["@eslint/mcp@0.3.13"],
        ["mcp"],
        Deed("lint-files", {"filePaths": ["$FOLDER/a.js"]}),
        large=Deed("lint-files", {"filePaths": ["$FOLDER/large.js"]}),
    ),
    Server(
        "commands",
        ["mcp-server-commands@0.5.0"],
        ["mcp-server-commands"],
        Deed("run_command", {"command": "echo hi"}),
        large=Deed("run_command", {"command": "head -c 500000 /dev/zero | tr '\\0' x"}),
    ),
    Server(
        "figma",
        ["figma-developer-mcp@0.13.2"],
        ["figma-developer-mcp", "--stdio", "--figma-api-key", "none"],
        Deed("get_figma_data", {"fileKey": "abc"}),
    ),
    Server(
        "fetch",
        ["mcp-server-fetch==2026.10.24"],
        ["mcp-server-fetch", "--ignore-robots-txt"],
        Deed("fetch", {"url": "http://127.0.0.1:9/"}),
    ),
    Server(
        "sqlite",
        ["mcp-server-sqlite==2025.4.25", "mcp<2"],
        ["mcp-server-sqlite", "--db-path", "$FOLDER/a.db"],
        Deed("read_query", {"query": "SELECT 6 * 7"}),
        large=Deed("read_query", {"query": "SELECT hex(zeroblob(500000))"}),
    ),
    Server(
        "calculator",
        ["mcp-server-calculator==0.2.1"],
        ["mcp-server-calculator"],
        Deed("calculate", {"expression": "6 * 7"}),
    ),
    Server(
        "excel",
        ["excel-mcp-server==2.2.2"],
        ["excel-mcp-server", "stdio"],
        Deed("create_workbook", {"path": BOOK, "overwrite": True}),
        large=Deed("read_range", {"path": BOOK, "sheet": "Large", "max_cells": 100_000}),
        before=[Deed("import_csv", {"path": BOOK, "csv_path": "$FOLDER/large.csv", "sheet": "Large"})],
    ),
    Server(
        "wikipedia",
        ["wikipedia-mcp==2.0.1"],
        ["wikipedia-mcp"],
        Deed("get_summary", {"title": "Temporal"}),
    ),
    Server(
        "duckdb",
        ["mcp-server-motherduck==1.1.0"],
        ["mcp-server-motherduck", "--db-path", ":memory:", "--read-write", "--max-chars", "1000000"],
        Deed("execute_query", {"sql": "SELECT 6 * 7"}),
        large=Deed("execute_query", {"sql": "SELECT repeat('x', 500000)"}),
    ),
    Server(
        "word",
        ["office-word-mcp-server==1.1.11"],
        ["python", "-m", "word_document_server.main"],
        Deed("create_document", {"filename": DOCUMENT}),
        large=Deed("get_document_text", {"filename": DOCUMENT}),
        before=[Deed("add_paragraph", {"filename": DOCUMENT, "text": "x" * 500_000})],
    ),
)


class TrialFailedError(Exception):
    """A trial did not end as it should."""


class Trials:
    """The trials of one server."""

    def __init__(self, server: Server, folder: Path) -> None:
        self._server = server
        self._folder = folder
        self._config = server.config(folder)
        self._agent = Agent(name="trials", model="openai/none", mcp_servers=[self._config])
        environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "PERDURE_MCP_FOLDER": str(folder / "mcp")}
        self._servers = McpServers([self._agent], frozenset(), environment)
        self._tools: dict[str, ToolDeclaration] = {}

    async def run(self) -> list[tuple[bool, str]]:
        """Run the trials in their order; for each whether it went well, and a few words."""
        done: list[tuple[bool, str]] = []
        for trial in (self.listed, self.called, self.refused, self.large, self.killed):
            try:
                done.append((True, await trial()))
            except (TrialFailedError, McpError) as error:
                done.append((False, f"FAILED {error}"))
        await self._servers.close()
        return done

    async def listed(self) -> str:
        """List the tools."""
        declared = await self._servers.declarations(self._agent)
        self._tools = {tool.remote.name: tool for tool in declared if tool.remote is not None}
        return f"{len(self._tools)} tools"

    async def called(self) -> str:
        """Call a tool; an error counts if it is the server's own."""
        return await self._answer(self._server.works)

    async def refused(self) -> str:
        """Leave out each argument that a tool demands, and give one that it does not know."""
        with_need = next((tool for tool in self._tools.values() if tool.parameters.get("required")), None)
        if with_need is None or with_need.remote is None:
            return "-"
        said = await self._answer(Deed(with_need.remote.name, {"nonsense": [1]}))
        (state,) = self._servers.states()
        if state.status != "connected":
            raise TrialFailedError(f"the server is {state.status} after it")
        return said

    async def large(self) -> str:
        """Ask for a large result."""
        deed = self._server.large
        if deed is None:
            return "-"
        for before in self._server.before:
            await self._call(before)
        read = await self._call(deed)
        if len(read) < LARGE:
            raise TrialFailedError(f"{len(read)} characters: {read[:SHOWN]}")
        return f"{len(read):,} characters"

    async def killed(self) -> str:
        """Kill the server in a call, and call again."""
        deed = self._server.works
        processes = self._processes()
        if not processes:
            raise TrialFailedError("it has no process")
        for process in processes:
            process.send_signal(signal.SIGSTOP)
        call = asyncio.create_task(self._answer(deed))
        await asyncio.sleep(SENT_SECONDS)
        for process in reversed(processes):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        said = await call
        repeats = self._tools[deed.tool].idempotent
        if ("its effect is unknown" in said) == repeats:
            raise TrialFailedError(f"in the call: {said[:SHOWN]}")
        again = await self._answer(deed)
        if "its effect is unknown" in again:
            raise TrialFailedError(f"after it: {again[:SHOWN]}")
        return "called again" if repeats else "effect unknown, then well"

    def _processes(self) -> list[psutil.Process]:
        children = psutil.Process().children(recursive=True)
        return [process for process in children if reaper.__file__ not in process.cmdline()]

    async def _answer(self, deed: Deed) -> str:
        """What the model reads of a call, be it an error."""
        try:
            return await self._call(deed)
        except McpUnavailableError:
            raise
        except McpError as error:
            if "ran longer than" in str(error) or not str(error).strip():
                raise
            return f"{error.code.value}: {error}"

    async def _call(self, deed: Deed) -> str:
        result = await self._servers.call(
            self._config,
            self._tools[deed.tool],
            {name: self._in_folder(value) for name, value in deed.arguments.items()},
            caller=Caller("s", "c1"),
            unspoken=frozenset(),
            on_progress=lambda *_: None,
        )
        return result.text

    def _in_folder(self, value: JsonValue) -> JsonValue:
        if isinstance(value, list):
            return [self._in_folder(inner) for inner in value]
        return value.replace("$FOLDER", str(self._folder)) if isinstance(value, str) else value


def install(servers: Sequence[Server]) -> None:
    """Install what is not there. Scripts of npm packages do not run: those would load browsers."""
    for server in servers:
        marker = FOLDER / f"{server.name} {' '.join(server.packages)}".replace("/", "_")
        if marker.exists():
            continue
        say(f"installing {' '.join(server.packages)}\n")
        if server.is_of_npm:
            npm = ["npm", "install", "--silent", "--no-fund", "--no-audit", "--ignore-scripts"]
            subprocess.run([*npm, "--prefix", str(server.home), *server.packages], check=True)
        else:
            python = server.home / "bin" / "python"
            subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(server.home)], check=True)
            pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
            subprocess.run([*pip, *server.packages], check=True)
        marker.touch()


def say(text: str) -> None:
    """Print at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


def main(names: Sequence[str]) -> int:
    """Install the servers and try them one after another; 1 if a trial failed."""
    servers = [server for server in FIFTEEN if not names or server.name in names]
    FOLDER.mkdir(parents=True, exist_ok=True)
    install(servers)
    say(
        "| server | list | a call | a wrong argument | a large result | killed in a call |\n|---|---|---|---|---|---|\n"
    )
    failures = 0
    for server in servers:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "a.js").write_text("x = 1\n", encoding="utf-8")
            (folder / "large.js").write_text("if (1) { debugger }\n" * 2_000, encoding="utf-8")
            (folder / "large.csv").write_text(
                "a,b\n" + "some longer text that fills a cell,7\n" * 10_000, encoding="utf-8"
            )
            config = "export default [{ rules: { 'no-debugger': 'error' } }]\n"
            (folder / "eslint.config.mjs").write_text(config, encoding="utf-8")
            began = time.monotonic()
            done = asyncio.run(Trials(server, folder).run())
        failures += sum(not well for well, _ in done)
        cells = [" ".join(said.split()).replace("|", "/") for _, said in done]
        shown = [cell if len(cell) <= SHOWN or cell.startswith("FAILED") else f"{cell[:SHOWN]}…" for cell in cells]
        say(f"| {server.packages[0]} ({time.monotonic() - began:.0f} s) | {' | '.join(shown)} |\n")
    say(f"{len(servers)} servers, {failures} failed trials\n")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
