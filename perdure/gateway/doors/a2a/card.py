"""The card of an agent: what others read before they send it anything, made from its registered definition."""

from collections.abc import Collection, Sequence

from starlette.requests import Request

from perdure.client.stream import from_store
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.errors import ReasonCode
from perdure.contracts.names import A2A_CAPABILITIES
from perdure.contracts.tools import ToolDeclaration
from perdure.gateway.access import Gateway
from perdure.gateway.doors.a2a.objects import Object
from perdure.gateway.doors.a2a.requests import INPUT_MODES
from perdure.gateway.doors.a2a.signing import load_signer
from perdure.gateway.problems import ProblemError

PREFIX = "/a2a"
"""Of the paths of this door."""

VERSION = "1.0"
"""The protocol's version that this door speaks."""

OUTPUT_MODES = ("text/plain", "application/json")

STREAMING, PUSH, EXTENDED_CARD = A2A_CAPABILITIES

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


async def make_card(
    gateway: Gateway, request: Request, definition: AgentDefinition, *, extended: bool = False
) -> Object:
    """The card of an agent as this gateway has it, signed if there is a key."""
    settings = gateway.client.settings
    capabilities = settings.a2a_capabilities
    card = describe_agent(
        definition,
        f"{settings.gateway_url or str(request.base_url).rstrip('/')}{PREFIX}/{definition.name}",
        capabilities,
        settings.a2a_extensions,
        needs_token=gateway.tokens is not None,
        tells_tools=extended or EXTENDED_CARD not in capabilities,
    )
    signer = load_signer(settings)
    return card if signer is None else signer.sign(card)


def describe_agent(
    definition: AgentDefinition,
    url: str,
    capabilities: Collection[str] = (STREAMING, PUSH),
    extensions: Sequence[str] = (),
    *,
    needs_token: bool,
    tells_tools: bool = True,
) -> Object:
    """The card of an agent.

    Args:
        definition: The agent.
        url: The address of its interfaces, without a slash at the end.
        capabilities: Those that the operator lets clients use.
        extensions: URIs of those that a client has to declare.
        needs_token: Whether requests need a token.
        tells_tools: Whether the agent's tools are among its skills.
    """
    about = definition.description or f"The agent {definition.name}."
    tools = [tool for tool in definition.tools if tells_tools and tool.runs != "caller"]
    skills = [_skill_of(definition, about), *map(_skill_of_tool, tools)]
    card: Object = {
        "name": definition.label or definition.name,
        "description": about,
        "supportedInterfaces": [
            {"url": url, "protocolBinding": binding, "protocolVersion": VERSION} for binding in ("JSONRPC", "HTTP+JSON")
        ],
        "version": definition.digest()[:12],
        "capabilities": {
            "streaming": STREAMING in capabilities,
            "pushNotifications": PUSH in capabilities,
            "extendedAgentCard": EXTENDED_CARD in capabilities,
            **({"extensions": [{"uri": uri, "required": True} for uri in extensions]} if extensions else {}),
        },
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
