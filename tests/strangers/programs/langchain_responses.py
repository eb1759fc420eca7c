"""LangChain: a chat model with the Responses API, and an agent that runs functions of its own. Prints JSON."""

from typing import Any

from cases import FIVE, TWO_RIVERS, River, tell
from langchain.agents import create_agent
from langchain_core.messages import AIMessageChunk, HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI


@tool
def look() -> str:
    """Look."""
    return "look seen"


@tool
def seek() -> str:
    """Seek."""
    return "seek seen"


def llm(model: str) -> Any:
    return ChatOpenAI(model=model, use_responses_api=True)


def talk(model: str, texts: list[str], messages: list[Any]) -> str:
    """Say one text after the other; the conversation grows in ``messages``."""
    for text in texts:
        messages.append(HumanMessage(text))
        messages.append(llm(model).invoke(messages))
    return str(messages[-1].text)


def talk_of_an_agent(model: str, texts: list[str]) -> str:
    agent, messages = create_agent(llm(model), [look, seek]), list[Any]()
    for text in texts:
        messages = agent.invoke({"messages": [*messages, HumanMessage(text)]})["messages"]
    return str(messages[-1].text)


def chat(model: str) -> str:
    return talk(model, FIVE, [])


def function(model: str) -> str:
    return talk_of_an_agent(model, ["look", "two", "three"])


def two_functions(model: str) -> str:
    return talk_of_an_agent(model, ["look seek", "bye"])


def approval(model: str) -> str:
    messages: list[Any] = []
    talk(model, ["pay"], messages)
    asked = [block["id"] for block in messages[-1].content if block["type"] == "mcp_approval_request"]
    approved: Any = [
        {"type": "mcp_approval_response", "approve": True, "approval_request_id": request} for request in asked
    ]
    messages.append(HumanMessage(approved))
    messages.append(llm(model).invoke(messages))
    return talk(model, ["bye"], messages)


def stream(model: str) -> str:
    """An agent whose tokens are streamed; each message is put together of its chunks, as for a page."""
    agent, messages, shown = create_agent(llm(model), [look, seek]), list[Any](), ""
    for text in ("effect look", "two", "three"):
        shown = ""
        for mode, part in agent.stream(
            {"messages": [*messages, HumanMessage(text)]}, stream_mode=["messages", "values"]
        ):
            if mode == "values":
                messages = part["messages"]
            elif isinstance(part[0], AIMessageChunk):
                shown += part[0].text
    return shown


def edited(model: str) -> str:
    messages: list[Any] = []
    talk(model, FIVE[:3], messages)
    return talk(model, ["edited"], messages[:2])


def rewritten(model: str) -> str:
    messages: list[Any] = []
    talk(model, FIVE[:3], messages)
    return talk(model, ["end"], [HumanMessage("rewritten"), *messages[1:]])


def structured(model: str) -> str:
    """The message beside the answer is asked for, to go on from it."""
    asking, messages, river = llm(model).with_structured_output(River, include_raw=True), list[Any](), None
    for text in TWO_RIVERS:
        messages.append(HumanMessage(text))
        answer = asking.invoke(messages)
        messages.append(answer["raw"])
        river = answer["parsed"]
    return str(river)


def structured_agent(model: str) -> str:
    agent, messages, river = create_agent(llm(model), response_format=River), list[Any](), None
    for text in TWO_RIVERS:
        state = agent.invoke({"messages": [*messages, HumanMessage(text)]})
        messages, river = state["messages"], state["structured_response"]
    return str(river)


def cut(model: str) -> str:
    """The connection is cut while perdure's tool runs, and the client tries again by itself."""
    return talk(model, ["effect"], [])


def restart(model: str) -> str:
    """The gateway stops while perdure's tool runs, and another one takes its place."""
    return talk(model, ["effect"], [])


def unknown_model(model: str) -> str:
    return talk(model, ["hello"], [])


tell(
    chat,
    function,
    two_functions,
    approval,
    stream,
    edited,
    rewritten,
    structured,
    structured_agent,
    cut,
    restart,
    unknown_model,
)
