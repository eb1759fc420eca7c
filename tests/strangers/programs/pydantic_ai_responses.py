"""pydantic-ai: an agent with functions of its own, that is given its messages again. Prints JSON."""

from typing import Any

from cases import FIVE, TWO_RIVERS, River, tell
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.messages import ModelRequest, UserPromptPart
from pydantic_ai.models.openai import OpenAIResponsesModel, OpenAIResponsesModelSettings


def look() -> str:
    """Look."""
    return "look seen"


def seek() -> str:
    """Seek."""
    return "seek seen"


def assistant(model: str, **more: Any) -> Any:
    return Agent(OpenAIResponsesModel(model), **more)


async def talk(agent: Any, texts: list[str], messages: list[Any]) -> str:
    """Say one text after the other; the conversation grows in ``messages``."""
    text = ""
    for said in texts:
        result = await agent.run(said, message_history=messages)
        messages[:] = result.all_messages()
        text = str(result.output)
    return text


async def chat(model: str) -> str:
    return await talk(assistant(model), FIVE, [])


async def chat_with_ids(model: str) -> str:
    settings = OpenAIResponsesModelSettings(openai_send_reasoning_ids=True)
    return await talk(assistant(model, model_settings=settings), FIVE, [])


async def function(model: str) -> str:
    return await talk(assistant(model, tools=[look, seek]), ["look", "two", "three"], [])


async def two_functions(model: str) -> str:
    return await talk(assistant(model, tools=[look, seek]), ["look seek", "bye"], [])


async def approval(model: str) -> str:
    """It passes a request for an approval over: the answer is the message that says what waits."""
    return await talk(assistant(model), ["pay"], [])


async def stream(model: str) -> str:
    agent, messages, text = assistant(model, tools=[look, seek]), list[Any](), ""
    for said in ("effect look", "two", "three"):
        async with agent.run_stream(said, message_history=messages) as result:
            text = "".join([delta async for delta in result.stream_text(delta=True)])
            messages = result.all_messages()
    return text


async def edited(model: str) -> str:
    messages: list[Any] = []
    await talk(assistant(model), FIVE[:3], messages)
    return await talk(assistant(model), ["edited"], messages[:2])


async def rewritten(model: str) -> str:
    messages: list[Any] = []
    await talk(assistant(model), FIVE[:3], messages)
    first = ModelRequest(parts=[UserPromptPart("rewritten")])
    return await talk(assistant(model), ["end"], [first, *messages[1:]])


async def structured(model: str) -> str:
    """The answer is the call of a function."""
    return await talk(assistant(model, output_type=River), TWO_RIVERS, [])


async def structured_native(model: str) -> str:
    return await talk(assistant(model, output_type=NativeOutput(River)), TWO_RIVERS, [])


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
    chat_with_ids,
    function,
    two_functions,
    approval,
    stream,
    edited,
    rewritten,
    structured,
    structured_native,
    cut,
    restart,
    unknown_model,
)
