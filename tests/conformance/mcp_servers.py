"""Runs perdure's MCP client against servers that others wrote, from npm and PyPI: lists the tools of each, calls one.

    python -m tests.conformance.mcp_servers [NAME ...]

Not in CI: it installs two gigabytes of strangers' programs into the cache folder, once. Node comes from ``run``.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from perdure import Agent, HttpServerConfig, StdioServerConfig
from perdure.activities.mcp.failures import McpError
from perdure.activities.mcp.servers import McpServers
from perdure.activities.mcp.session_state import Caller
from perdure.llm.tool_schemas import ShownTools
from perdure.local_ports import find_free_port
from tests.conformance import say
from tests.conformance.run import FOLDER, install

PATIENCE = 90.0
"""Seconds for a server to start."""


@dataclass(frozen=True)
class Stranger:
    """A server: its package, how it is started, and a call with what is in its result.

    ``{port}``, ``{folder}`` and ``{here}`` in the arguments are a free port, an empty folder and this repository.
    """

    package: str
    program: str
    tool: str
    arguments: Mapping[str, Any]
    gives: str
    args: tuple[str, ...] = ()
    path: str = ""
    """Of its URL, for a server behind one."""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    also: tuple[str, ...] = ()
    """Further requirements."""

    @property
    def is_npm(self) -> bool:
        return "==" not in self.package

    @property
    def name(self) -> str:
        return self.package.rpartition("@")[0] if self.is_npm else self.package.partition("==")[0]


THOUGHT = {"thought": "a", "thoughtNumber": 1, "totalThoughts": 1, "nextThoughtNeeded": False}

STRANGERS = (
    Stranger(
        "@modelcontextprotocol/server-sequential-thinking@2026.8.31",
        "mcp-server-sequential-thinking",
        *("sequentialthinking", THOUGHT, "thoughtHistoryLength"),
    ),
    Stranger(
        "@playwright/mcp@0.0.83",
        *("playwright-mcp", "browser_close", {}, ""),
        args=("--headless", "--port", "{port}"),
        path="/mcp",
    ),
    Stranger(
        "@playwright/mcp@0.0.83",
        *("playwright-mcp", "browser_close", {}, ""),
        args=("--headless", "--port", "{port}"),
        path="/sse",
    ),
    Stranger("@eslint/mcp@0.3.13", "mcp", "lint-files", {"filePaths": ["{folder}/a.js"]}, "a.js"),
    Stranger("@coo-quack/calc-mcp@2.1.1", "calc-mcp", "math", {"expression": "6*7"}, "42"),
    Stranger("@cyanheads/git-mcp-server@2.15.3", "git-mcp-server", "git_status", {"path": "{here}"}, "currentBranch"),
    Stranger(
        "@cyanheads/git-mcp-server@2.15.3",
        *("git-mcp-server", "git_log", {"path": "{here}", "maxCount": 1}, "commit"),
        path="/mcp",
        env={"MCP_TRANSPORT_TYPE": "http", "MCP_HTTP_PORT": "{port}", "MCP_HTTP_HOST": "127.0.0.1"},
    ),
    Stranger("@notionhq/notion-mcp-server@2.5.2", "notion-mcp-server", "API-get-self", {}, ""),
    Stranger("@drawio/mcp@1.6.1", "drawio-mcp", "open_drawio_csv", {"content": "## x"}, ""),
    Stranger(
        "@allpepper/memory-bank-mcp@0.2.2",
        *("mcp-server-memory-bank", "list_projects", {}, ""),
        env={"MEMORY_BANK_ROOT": "{folder}"},
    ),
    Stranger("mcp-server-fetch==2026.10.24", "mcp-server-fetch", "fetch", {"url": "http://127.0.0.1:9/"}, "!"),
    Stranger(
        "mcp-server-sqlite==2025.4.25",
        *("mcp-server-sqlite", "read_query", {"query": "select 6*7 as n"}, "42"),
        args=("--db-path", "{folder}/a.db"),
        also=("mcp<2",),
    ),
    Stranger(
        "mcp-server-calculator==0.2.1",
        *("python", "calculate", {"expression": "6*7"}, "42"),
        args=("-m", "mcp_server_calculator"),
    ),
    Stranger(
        "excel-mcp-server==2.2.2",
        *("excel-mcp-server", "create_workbook", {"path": "a.xlsx"}, "a.xlsx"),
        args=("streamable-http", "--port", "{port}", "--allow-dir", "{folder}", "--allow-unauthenticated"),
        path="/mcp",
    ),
    Stranger(
        "markitdown-mcp==0.0.1a8",
        *("markitdown-mcp", "convert_to_markdown", {"uri": "data:text/html,<h1>Hi</h1>"}, "# Hi"),
        args=("--http", "--port", "{port}"),
        path="/mcp",
    ),
    Stranger(
        "mcp-alchemy==2026.10.15.202659",
        *("mcp-alchemy", "execute_query", {"query": "select 6*7 as n"}, "42"),
        env={"DB_URL": "sqlite:///{folder}/a.db"},
    ),
    Stranger(
        "mcp-server-tree-sitter==0.7.0",
        *("mcp-server-tree-sitter", "list_languages", {}, "python"),
        also=("mcp<2",),
    ),
    Stranger(
        "office-word-mcp-server==1.1.11",
        *("word_mcp_server", "create_document", {"filename": "{folder}/a.docx"}, "a.docx"),
    ),
    Stranger(
        "mcp-server-motherduck==1.1.0",
        *("mcp-server-motherduck", "execute_query", {"sql": "select 6*7 as n"}, "42"),
        args=("--db-path", ":memory:", "--read-write"),
    ),
)


def fetch(stranger: Stranger) -> str:
    """Install the server, unless it is there; gives the path of its program."""
    place = FOLDER / "strangers" / stranger.package.replace("/", "_")
    marker = place / "installed"
    found = place / ("node_modules/.bin" if stranger.is_npm else "bin") / stranger.program
    if not marker.exists():
        place.mkdir(parents=True, exist_ok=True)
        if stranger.is_npm:
            quiet = ("--silent", "--no-fund", "--no-audit", "--prefix", str(place))
            run(["npm", "install", *quiet, stranger.package], PLAYWRIGHT_SKIP_BROWSER_DOWNLOAD="1")
        else:
            run([sys.executable, "-m", "venv", str(place)])
            pip = [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            run([*pip, stranger.package, *stranger.also])
        marker.touch()
    return str(found)


def run(command: list[str], **environment: str) -> None:
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, **environment})


@asynccontextmanager
async def started(stranger: Stranger, program: str, values: Mapping[str, str]) -> AsyncIterator[Any]:
    """The configuration of the server; one behind a URL runs meanwhile."""

    def filled(text: str) -> str:
        for name, value in values.items():
            text = text.replace(f"{{{name}}}", value)
        return text

    args = tuple(filled(arg) for arg in stranger.args)
    env = {"HOME": values["folder"], **{name: filled(value) for name, value in stranger.env.items()}}
    limit = timedelta(seconds=PATIENCE)
    if not stranger.path:
        yield StdioServerConfig(name="s", command=program, args=args, env=env, cwd=values["folder"], init_timeout=limit)
        return
    log = Path(values["folder"]) / "server.log"
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *(program, *args),
            env={"PATH": values["path"], **env},
            cwd=values["folder"],
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            await _listens(int(values["port"]))
            yield HttpServerConfig(
                name="s", url=f"http://localhost:{values['port']}{stranger.path}", init_timeout=limit
            )
        finally:
            process.kill()
            await process.wait()


async def _listens(port: int) -> None:
    ends = time.monotonic() + PATIENCE
    while time.monotonic() < ends:
        try:
            _, writer = await asyncio.open_connection("localhost", port)
        except OSError:
            await asyncio.sleep(0.2)
        else:
            writer.close()
            return


async def use(stranger: Stranger, programs: Path) -> str:
    """List the tools of a server and call one; gives a line about it, which begins with ``ok`` if all is well."""
    program = await asyncio.to_thread(fetch, stranger)
    with tempfile.TemporaryDirectory() as folder:
        path = f"{programs}:/usr/local/bin:/usr/bin:/bin"
        (Path(folder) / "a.js").write_text("let a = 1;\n")
        (Path(folder) / "eslint.config.mjs").write_text("export default [{ rules: { 'prefer-const': 2 } }];\n")
        here = str(Path(__file__).parents[2])
        values = {"folder": folder, "port": str(find_free_port()), "here": here, "path": path}
        async with started(stranger, program, values) as config:
            environment = {"PATH": path, "PERDURE_MCP_FOLDER": f"{folder}/mcp"}
            agent = Agent(name="tester", model="openai/none", mcp_servers=[config])
            servers = McpServers([agent], frozenset(), environment)
            try:
                return await _list_and_call(servers, agent, stranger, values)
            finally:
                await servers.close()


async def _list_and_call(servers: McpServers, agent: Agent, stranger: Stranger, values: Mapping[str, str]) -> str:
    try:
        tools = {tool.remote.name: tool for tool in await servers.declarations(agent) if tool.remote is not None}
    except McpError as error:
        return f"LIST: {str(error)[:300]}"
    shown: Any = ShownTools(tools.values()).declarations()
    changed = sum(
        one["function"]["parameters"] != tool.parameters for one, tool in zip(shown, tools.values(), strict=True)
    )
    counts = f"{len(tools)} tools, {changed} schemas shown in another form"
    if stranger.tool not in tools:
        return f"CALL: {counts}; no tool {stranger.tool}, but {', '.join(sorted(tools))[:300]}"
    arguments: dict[str, Any] = {name: _filled(value, values) for name, value in stranger.arguments.items()}
    try:
        result = await servers.call(
            agent.mcp_servers[0],
            tools[stranger.tool],
            arguments,
            caller=Caller("s", "c_0"),
            unspoken=frozenset(),
            on_progress=lambda *_: None,
        )
        said = result.text
    except McpError as error:
        said = f"! {error}"
    said = " ".join(said.split())
    good = stranger.gives in said and (stranger.gives == "!" or not said.startswith("!") or stranger.gives == "")
    return f"{'ok' if good else 'CALL'}: {counts}; {stranger.tool}: {said[:100]!r}"


def _filled(value: Any, values: Mapping[str, str]) -> Any:
    if isinstance(value, list):
        return [_filled(inner, values) for inner in value]
    if not isinstance(value, str):
        return value
    for name, filled in values.items():
        value = value.replace(f"{{{name}}}", filled)
    return value


async def main(names: list[str]) -> int:
    """Say a line about each server; 1 if one of them did not work."""
    programs = install()
    failed = 0
    for stranger in STRANGERS:
        if names and stranger.name not in names:
            continue
        try:
            line = await use(stranger, programs)
        except (OSError, subprocess.CalledProcessError) as error:
            line = f"INSTALL: {error}"
        failed += not line.startswith("ok")
        say(f"{stranger.name} {'HTTP ' + stranger.path if stranger.path else 'stdio'}: {line}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
