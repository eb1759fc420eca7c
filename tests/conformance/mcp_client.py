"""perdure's MCP client as the official conformance suite drives it: ``mcp_client.py URL``, once for each scenario.

The suite names the scenario in MCP_CONFORMANCE_SCENARIO and gives what it needs in MCP_CONFORMANCE_CONTEXT. The client
lists the server's tools, calls each, and logs in where the scenario is about a login, as a person would who says yes.
"""

import asyncio
import json
import os
import re
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import httpx2

from perdure import Agent, HttpServerConfig
from perdure.activities.mcp import login, oauth
from perdure.activities.mcp.failures import McpError
from perdure.activities.mcp.questions import Answering, InputNeededError
from perdure.activities.mcp.servers import McpServers
from perdure.activities.mcp.session_state import Caller
from perdure.activities.secrets import secret_values
from perdure.contracts.mcp import OAuthConfig
from perdure.contracts.server_questions import ServerAnswer
from perdure.contracts.tools import ToolDeclaration
from perdure.llm.tool_output import CallResult
from perdure.local_ports import find_free_port
from tests.conformance import say

CLIENT_DOCUMENT = "https://conformance-test.local/client-metadata.json"
"""The address by which the suite knows a client that is described by a document."""

_SCOPE_IN_COMMAND = re.compile(r'--scope "([^"]*)"')
"""The scope in the command that a refused call names; a person takes it over."""

LOGIN_SECONDS = 20.0
"""Longest login; a server of the suite that refuses one leaves the person on its page."""

VALUES: Mapping[str, Any] = {"string": "text", "integer": 7, "number": 5, "boolean": True, "array": [], "object": {}}


def say_yes(url: str) -> None:
    """Open the login page as a browser does, and follow it back to perdure."""

    async def visit() -> None:
        async with httpx2.AsyncClient(follow_redirects=True) as browser:
            await browser.get(url)

    _visits.add(asyncio.get_running_loop().create_task(visit()))


_visits: set["asyncio.Task[None]"] = set()


def arguments_of(tool: ToolDeclaration) -> dict[str, Any]:
    """Some arguments that fit the tool's schema."""
    properties: Any = tool.parameters.get("properties") or {}
    return {name: _value(schema) for name, schema in properties.items()}


def _value(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return "text"
    for word in ("const", "default"):
        if word in schema:
            return schema[word]
    if choices := schema.get("enum"):
        return choices[0]
    kind = schema.get("type", "string")
    return VALUES.get(kind[0] if isinstance(kind, list) else kind, "text")


async def log_in_once(config: HttpServerConfig, environment: Mapping[str, str], scope: str = "") -> bool:
    """Log in at the server; False if that does not work."""
    port = find_free_port()  # the suite runs scenarios side by side
    vars(login)["LOGIN_PORT"], oauth.REDIRECT = port, f"http://127.0.0.1:{port}{oauth.CALLBACK}"
    try:
        async with asyncio.timeout(LOGIN_SECONDS):
            await login.log_in(config, environment, say_yes, scope)
    except (McpError, TimeoutError) as error:
        say(f"login: {error}", to=sys.stderr)
        return False
    return True


Calls = list[tuple[ToolDeclaration, dict[str, Any]]]


def calls_of(tools: Mapping[str, ToolDeclaration], context: Mapping[str, Any]) -> Calls:
    """The calls that the scenario asks for; one of each tool, if it asks for none."""
    asked = [(tools.get(f"server__{call['name']}"), call["arguments"]) for call in context.get("toolCalls", ())]
    return [(tool, arguments) for tool, arguments in asked if tool is not None] or [
        (tool, arguments_of(tool)) for tool in tools.values()
    ]


async def call(
    servers: McpServers, config: HttpServerConfig, tool: ToolDeclaration, arguments: dict[str, Any], caller: Caller
) -> CallResult:
    """Call a tool, and answer what its server asks as a person would who says yes."""
    while True:
        try:
            return await servers.call(
                config, tool, arguments, caller=caller, unspoken=frozenset(), on_progress=lambda *_: None
            )
        except InputNeededError as needed:
            question = needed.asked.question
            properties: Any = (question.form or {}).get("properties") or {}
            content = {name: _value(schema) for name, schema in properties.items()}
            answer = ServerAnswer(number=question.number, action="accept", value=content)
            caller = replace(caller, answering=Answering(needed.asked, answer))


async def use(config: HttpServerConfig, environment: Mapping[str, str], context: Mapping[str, Any]) -> str | None:
    """List the tools and call them; gives the last error, or None."""
    agent = Agent(name="conformance", model="openai/none", mcp_servers=[config])
    servers = McpServers([agent], secret_values([agent], environment), environment)
    failure: str | None = None
    try:
        tools = {tool.name: tool for tool in await servers.declarations(agent)}
        for number, (tool, arguments) in enumerate(calls_of(tools, context)):
            try:
                result = await call(servers, config, tool, arguments, Caller("conformance", f"call{number}_0"))
                say(f"{tool.name}: {result.text[:200]}")
            except McpError as error:
                say(f"{tool.name}: {error}", to=sys.stderr)
                failure = str(error)
    except McpError as error:
        say(f"list: {error}", to=sys.stderr)
        failure = str(error)
    finally:
        await servers.close()
    return failure


def settings_of(context: Mapping[str, Any]) -> tuple[OAuthConfig, dict[str, str]]:
    """The settings of a login as the scenario gives them, and the variables that they refer to."""
    if "client_id" in context:
        secret = {"CLIENT_SECRET": context["client_secret"]} if "client_secret" in context else {}
        reference = "${CLIENT_SECRET}" if secret else None
        return OAuthConfig(client_id=context["client_id"], client_secret=reference), secret
    return OAuthConfig(client_metadata_url=CLIENT_DOCUMENT), {}


async def main(url: str) -> int:
    scenario = os.environ.get("MCP_CONFORMANCE_SCENARIO", "")
    context: dict[str, Any] = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    with tempfile.TemporaryDirectory() as folder:
        oauth, variables = settings_of(context)
        environment = {"PERDURE_MCP_FOLDER": folder, **variables}
        needs_login = scenario.startswith("auth/")
        config = HttpServerConfig(name="server", url=url, oauth=oauth if needs_login else None)
        if needs_login and not await log_in_once(config, environment):
            return 1
        failure = await use(config, environment, context)
        if failure is not None and needs_login:
            command = _SCOPE_IN_COMMAND.search(failure)
            if await log_in_once(config, environment, command.group(1) if command else ""):
                failure = await use(config, environment, context)
    return 0 if failure is None else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[-1])))
