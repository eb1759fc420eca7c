"""What stands among an agent's tools or delegates and is none is refused where it is written, with the fix."""

import functools
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, NoReturn

import pytest

from perdure import Agent, Delegate, HttpServerConfig, ToolDefinitionError, Toolset, hook, tool, tool_method
from perdure.activities.toolbox.output import read
from perdure.agents.context import InvalidOutputError
from perdure.mcp_server import as_mcp


@tool
def add(first: int, second: int) -> int:
    """Add."""
    return first + second


def count(to: int) -> Iterator[int]:
    yield from range(to)


async def stream(to: int) -> AsyncIterator[int]:
    for number in range(to):
        yield number


class Search:
    def __init__(self, url: str) -> None:
        self.url = url

    def __call__(self, text: str) -> str:
        return text


class Words(Toolset):
    @tool_method
    def look(self, text: str) -> str:
        """Look."""
        return text


@hook("tool_end")
def watch(event: object) -> None:
    """Nothing."""


WRITER = Agent(name="writer", model="openai/x")

NO_TOOLS: dict[str, tuple[Any, str]] = {
    "a generator": (count, "tool 'count' yields, and a model reads one result: return a list"),
    "an async generator": (stream, "tool 'stream' yields, and a model reads one result: return a list"),
    "a part of a generator": (functools.partial(count, to=1), "has no name of its own; write a function with def"),
    "a class": (Search, "Search is a class; put a function among the tools, or an instance of a Toolset"),
    "an object": (
        Search("x"),
        "a Search has no name of its own; write a function with def, and decorate it with @tool",
    ),
    "a lambda": (lambda: 1, "tool '<lambda>': a lambda has no name; write a function with def, or tool(name='…')(…)"),
    "a list": ([add, add], "a list stands among the tools; write *[…] to put each of its tools in"),
    "an agent": (WRITER, "the agent 'writer' stands among the tools; write delegates=[…] for agents to call"),
    "agents in a list": ([WRITER], "a list stands among the tools; write *[…]"),
    "a delegate": (Delegate(WRITER), "the agent 'writer' stands among the tools; write delegates=[…]"),
    "a toolset's class": (Words, "Words is a class of toolsets; write Words(…) among the tools"),
    "a method of a class": (
        Words.look,
        "look is a method of a class of toolsets; take it from an instance, as in Words(…).look",
    ),
    "a text": ("add", "'add' is no tool; write a function"),
    "nothing": (None, "None is no tool; write a function"),
    "a number": (3, "3 is no tool; write a function"),
    "a hook": (watch, "watch is a hook; write hooks=[…]"),
    "a server": (
        HttpServerConfig(name="web", url="https://x.example"),
        "the MCP server 'web' stands among the tools; write mcp_servers=[…]",
    ),
}


@pytest.mark.parametrize("kind", NO_TOOLS)
def test_what_is_no_tool_is_refused_with_what_to_write(kind: str) -> None:
    given, said = NO_TOOLS[kind]
    with pytest.raises((ToolDefinitionError, ValueError)) as refused:
        Agent(name="x", model="openai/x", tools=[add, given])
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
    assert " at 0x" not in str(refused.value)
    with pytest.raises(ToolDefinitionError) as served:
        as_mcp(given)
    assert said in str(served.value)


@pytest.mark.parametrize(
    "given",
    [add, count, {"add": add}, "add", (each for each in [add]), {1}],
    ids=["a tool", "a function", "a dictionary", "a text", "a generator", "a set"],
)
def test_tools_that_are_no_list_are_refused(given: Any) -> None:
    with pytest.raises(ValueError, match=r"agent 'x': tools: write a list: tools=\[…\]$"):
        Agent(name="x", model="openai/x", tools=given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([[WRITER]], "a list stands among the delegates; write *[…] to put each of its agents in"),
        ([add], "the tool 'add' stands among the delegates; write tools=[…]"),
        ([count], "delegates: give an agent, its name or Delegate(…) (got the function count)"),
        ([Agent], "delegates: give an agent, its name or Delegate(…) (got the class Agent)"),
        (WRITER, "delegates: write a list: delegates=[…]"),
        ("writer", "delegates: write a list: delegates=[…]"),
    ],
)
def test_what_is_no_delegate_is_refused_with_what_to_write(given: Any, said: str) -> None:
    with pytest.raises(ValueError, match="agent 'x'") as refused:
        Agent(name="x", model="openai/x", delegates=given)
    assert said in str(refused.value)
    assert " at 0x" not in str(refused.value)


def test_hooks_in_a_list_are_refused_with_what_to_write() -> None:
    with pytest.raises(ValueError, match=r"a list stands among the hooks; write \*\[…\] to put each of its hooks in"):
        Agent(name="x", model="openai/x", hooks=[[watch]])  # type: ignore[list-item]


def test_a_decorated_tool_is_not_decorated_again() -> None:
    with pytest.raises(ToolDefinitionError, match=r"tool 'add' is a tool already; change its settings with add\.with_"):
        tool(add)


def test_a_wrapped_function_stays_a_tool() -> None:
    @functools.lru_cache
    def cached(text: str) -> str:
        """Look up."""
        return text

    @functools.wraps(count)
    def listed(to: int) -> list[int]:
        return list(count(to))

    assert [each.name for each in Agent(name="x", model="openai/x", tools=[cached, listed]).tools] == [
        "cached",
        "count",
    ]
    assert tool(name="one")(lambda: 1).name == "one"


async def fetch() -> str:
    return "fetched"


def not_awaited() -> object:
    return fetch()


UNAWAITED: dict[str, tuple[Callable[[], Any], str]] = {
    "a coroutine": (not_awaited, "returned a coroutine that nobody awaited; write 'async def' and 'return await …'"),
    "coroutines in a list": (lambda: ["a", fetch()], "returned a coroutine that nobody awaited"),
    "coroutines by name": (lambda: {"a": fetch()}, "returned a coroutine that nobody awaited"),
    "an async generator": (
        lambda: stream(1),
        "returned an async generator; collect it: return [item async for item in …]",
    ),
}


@pytest.mark.parametrize("kind", UNAWAITED)
@pytest.mark.parametrize("annotation", [str, list[str], Any])
async def test_what_nobody_awaited_is_bad_output(kind: str, annotation: Any) -> None:
    """S-25: tool.invalid_output, and Python has nothing to warn of."""
    make, said = UNAWAITED[kind]

    def body() -> NoReturn:
        raise NotImplementedError

    body.__annotations__["return"] = annotation
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(InvalidOutputError, match="the tool ") as refused:
            read(make(), "c1", tool(body).returns)
    assert said in str(refused.value)
