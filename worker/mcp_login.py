"""``python -m perdure.worker.mcp_login --agents MODULE SERVER``: logs a person in at an MCP server."""

import asyncio
import os
import sys
import webbrowser
from typing import NoReturn

import click

from perdure.agents.agent import AgentDefinitionError
from perdure.agents.tool import ToolDefinitionError
from perdure.contracts.mcp import HttpServerConfig
from perdure.worker.agents import AgentLoadError, load_agents

USAGE, FAILED = 2, 1


@click.command()
@click.option("--agents", "modules", multiple=True, required=True, metavar="MODULE", help="A module with agents.")
@click.option("--scope", default="", metavar="SCOPE", help="Ask for this scope too, as a refused call names it.")
@click.argument("server")
def main(modules: tuple[str, ...], server: str, scope: str) -> None:
    """Log in at the MCP server SERVER of these agents; its workers then use the tokens."""
    try:
        agents = load_agents(modules)
    except (AgentLoadError, AgentDefinitionError, ToolDefinitionError) as error:
        _end(str(error), USAGE)
    known = [config for agent in agents.values() for config in agent.mcp_servers]
    behind_urls = {config.name: config for config in known if isinstance(config, HttpServerConfig)}
    if server not in behind_urls:
        _end(f"no MCP server behind a URL is named {server!r}; there are: {', '.join(behind_urls) or 'none'}", USAGE)
    from perdure.activities.mcp.failures import McpUnavailableError  # noqa: PLC0415 - loads the SDK, which takes a second
    from perdure.activities.mcp.login import log_in  # noqa: PLC0415

    try:
        asyncio.run(log_in(behind_urls[server], os.environ, _show, scope))
    except McpUnavailableError as error:
        _end(str(error), FAILED)
    click.echo(f"logged in at {server}")


def _show(url: str) -> None:
    click.echo(f"open this page to log in: {url}")
    webbrowser.open(url)


def _end(message: str, code: int) -> NoReturn:
    click.echo(f"perdure: {message}", err=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
