"""openai-agents: its runner loops over functions of its own, and asks for approvals. Prints JSON."""

from typing import Any

from agents import Agent, HostedMCPTool, Runner, function_tool
from cases import FIVE, TWO_RIVERS, River, tell, user

PERDURE: Any = {
    "type": "mcp",
    "server_label": "perdure",
    "server_url": "https://perdure.invalid/mcp",
    "require_approval": "always",
}


@function_tool
def look() -> str:
    """Look."""
    return "look seen"


@function_tool
def seek() -> str:
    """Seek."""
    return "seek seen"


def assistant(model: str, **more: Any) -> Any:
    return Agent(name="Assistant", model=model, **more)


async def talk(agent: Any, texts: list[str], items: list[Any]) -> str:
    """Say one text after the other; the conversation grows in ``items``."""
    text = ""
    for said in texts:
        result = await Runner.run(agent, [*items, user(said)])
        items[:] = result.to_input_list()
        text = str(result.final_output)
    return text


async def chat(model: str) -> str:
    return await talk(assistant(model), FIVE, [])


async def function(model: str) -> str:
    return await talk(assistant(model, tools=[look, seek]), ["look", "two", "three"], [])


async def two_functions(model: str) -> str:
    return await talk(assistant(model, tools=[look, seek]), ["look seek", "bye"], [])


async def approval(model: str) -> str:
    tool = HostedMCPTool(tool_config=PERDURE, on_approval_request=lambda _: {"approve": True})
    return await talk(assistant(model, tools=[tool]), ["pay", "bye"], [])


async def interruption(model: str) -> str:
    agent = assistant(model, tools=[HostedMCPTool(tool_config=PERDURE)])
    result = await Runner.run(agent, "pay")
    state = result.to_state()
    for asked in result.interruptions:
        state.approve(asked)
    result = await Runner.run(agent, state)
    return await talk(agent, ["bye"], result.to_input_list())


async def stream(model: str) -> str:
    agent, items, text = assistant(model, tools=[look, seek]), list[Any](), ""
    for said in ("effect look", "two", "three"):
        result, text = Runner.run_streamed(agent, [*items, user(said)]), ""
        async for event in result.stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                text += event.data.delta
        items = result.to_input_list()
    return text


async def edited(model: str) -> str:
    items: list[Any] = []
    await talk(assistant(model), FIVE[:3], items)
    return await talk(assistant(model), ["edited"], items[: items.index(user("two"))])


async def rewritten(model: str) -> str:
    items: list[Any] = []
    await talk(assistant(model), FIVE[:3], items)
    return await talk(assistant(model), ["end"], [user("rewritten"), *items[1:]])


async def handoff(model: str) -> str:
    """The one who takes over has a function that the turn does not have."""
    helper = Agent(name="helper", model=model, tools=[look])
    return await talk(assistant(model, handoffs=[helper]), ["transfer"], [])


async def structured(model: str) -> str:
    return await talk(assistant(model, output_type=River), TWO_RIVERS, [])


async def cut(model: str) -> str:
    """The connection is cut while perdure's tool runs, and the client tries again by itself."""
    return await talk(assistant(model), ["effect"], [])


async def restart(model: str) -> str:
    """The gateway stops while perdure's tool runs, and another one takes its place."""
    return await talk(assistant(model), ["effect"], [])


async def unknown_model(model: str) -> str:
    return await talk(assistant(model), ["hello"], [])


tell(
    chat,
    function,
    two_functions,
    approval,
    interruption,
    stream,
    edited,
    rewritten,
    handoff,
    structured,
    cut,
    restart,
    unknown_model,
)
