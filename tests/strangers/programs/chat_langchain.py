"""LangChain's ``ChatOpenAI`` as it is: Chat Completions, and an agent that runs functions of its own. Prints JSON."""

from typing import Any

from cases import FIVE, TWO_RIVERS, River, tell
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI


@tool
def look() -> str:
    """Look."""
    return "look seen"


def llm(model: str, **more: Any) -> Any:
    return ChatOpenAI(model=model, **more)


def named(model: str) -> Any:
    return llm(model, default_headers={"X-Chat": model})


def talk(asked: Any, texts: list[str], messages: list[Any]) -> str:
    """Say one text after the other; the conversation grows in ``messages``."""
    for text in texts:
        messages.append(HumanMessage(text))
        messages.append(asked.invoke(messages))
    return str(messages[-1].text)


def chat(model: str) -> str:
    return talk(llm(model), FIVE[:3], [])


def conversation(model: str) -> str:
    return talk(named(model), FIVE[:3], [])


def function(model: str) -> str:
    agent, messages = create_agent(llm(model), [look]), list[Any]()
    for text in ("look", "two"):
        messages = agent.invoke({"messages": [*messages, HumanMessage(text)]})["messages"]
    return str(messages[-1].text)


def stream(model: str) -> str:
    agent, messages = create_agent(llm(model, streaming=True, stream_usage=True), [look]), list[Any]()
    for text in ("effect look", "two"):
        messages = agent.invoke({"messages": [*messages, HumanMessage(text)]})["messages"]
    assert messages[-1].usage_metadata["total_tokens"] > 0
    return str(messages[-1].text)


def structured(model: str) -> str:
    asking, messages, river = named(model).with_structured_output(River, include_raw=True), list[Any](), None
    for text in TWO_RIVERS:
        messages.append(HumanMessage(text))
        answer = asking.invoke(messages)
        messages.append(answer["raw"])
        river = answer["parsed"]
    return str(river)


def cut(model: str) -> str:
    """The connection is cut while perdure's tool runs, and the client tries again by itself."""
    return talk(llm(model), ["effect"], [])


def restart(model: str) -> str:
    """The gateway stops while perdure's tool runs, and another one takes its place."""
    return talk(llm(model), ["effect"], [])


def unknown_model(model: str) -> str:
    return talk(llm(model), ["hello"], [])


def refused(model: str) -> str:
    return talk(llm(model, n=2), ["hello"], [])


tell(chat, conversation, function, stream, structured, cut, restart, unknown_model, refused)
