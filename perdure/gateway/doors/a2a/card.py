"""The card of an agent: what others read before they send it anything, made from its registered definition."""

from perdure.client.stream import from_store
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.errors import ReasonCode
from perdure.contracts.tools import ToolDeclaration
from perdure.gateway.access import Gateway
from perdure.gateway.doors.a2a.objects import Object
from perdure.gateway.doors.a2a.requests import INPUT_MODES
from perdure.gateway.problems import ProblemError

VERSION = "1.0"
"""The protocol's version that this door speaks."""

OUTPUT_MODES = ("text/plain", "application/json")

_SCHEME = "bearer"


async def find_agent(gateway: Gateway, name: str) -> AgentDefinition:
    """The definition of an agent that some worker has registered.

    Raises:
        ProblemError: None has.
    """
    store = await gateway.client.store()
    found = next((agent for agent in await from_store(store.agents) if agent.name == name), None)
    if found is None:
        msg = f"no worker has registered an agent {name[:200]!r}; GET /v1/agents lists the agents"
        raise ProblemError(404, ReasonCode.REQUEST_UNKNOWN_AGENT, msg)
    return await from_store(lambda: store.definition(found.definition))


def describe_agent(definition: AgentDefinition, url: str, *, needs_token: bool) -> Object:
    """The card of an agent.

    Args:
        definition: The agent.
        url: The address of its interfaces, without a slash at the end.
        needs_token: Whether requests need a token.
    """
    about = definition.description or f"The agent {definition.name}."
    skills = [
        _skill_of(definition, about),
        *(_skill_of_tool(tool) for tool in definition.tools if tool.runs != "caller"),
    ]
    card: Object = {
        "name": definition.label or definition.name,
        "description": about,
        "supportedInterfaces": [
            {"url": url, "protocolBinding": binding, "protocolVersion": VERSION} for binding in ("JSONRPC", "HTTP+JSON")
        ],
        "version": definition.digest()[:12],
        "capabilities": {"streaming": True, "pushNotifications": True, "extendedAgentCard": False},
        "defaultInputModes": [*INPUT_MODES],
        "defaultOutputModes": [*OUTPUT_MODES],
        "skills": [*skills],
    }
    if needs_token:
        scheme: Object = {"scheme": "Bearer", "description": "A token of the gateway"}
        card["securitySchemes"] = {_SCHEME: {"httpAuthSecurityScheme": scheme}}
        card["securityRequirements"] = [{"schemes": {_SCHEME: {"list": ["read", "run"]}}}]
    return card


def _skill_of(definition: AgentDefinition, about: str) -> Object:
    return {
        "id": definition.name,
        "name": definition.label or definition.name,
        "description": about,
        "tags": [*definition.tags] or ["agent"],
    }


def _skill_of_tool(tool: ToolDeclaration) -> Object:
    about = tool.description or f"Calls {tool.name}."
    return {"id": f"tool:{tool.name}", "name": tool.name, "description": about, "tags": ["tool"]}
