"""What an installation without the lock must do: it runs in a folder of its own, with the installed package only.

``python -m tests.newest`` installs the package and runs this file there. It needs nothing but perdure.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pydantic

import perdure
from perdure import Agent, StdioServerConfig, libraries, tool
from perdure.activities.models import model_call
from perdure.activities.models.failures import facts_of
from perdure.contracts.agents import AgentDefinition
from perdure.llm.failures import classify
from perdure.testing import Fault, Script, ScriptedProvider, call, environment, faults, say

SERVER = """
from mcp.server.mcpserver import MCPServer
server = MCPServer("adder")

@server.tool()
def add(a: int, b: int) -> int:
    return a + b

server.run(transport="stdio")
"""


@tool
def count(text: str) -> int:
    """Count the words of a text."""
    return len(text.split())


Check = Callable[[], Awaitable[None]]


async def job() -> None:
    """A job on a real server, with a tool and a retry."""
    agent = Agent(name="counter", model="openai/gpt-5-mini", tools=[count])
    script = Script(replies=(call(("count", {"text": "a b c"})).after(faults.rate_limited()), say("Three.")))
    async with environment([agent], script) as house:
        result = await (await house.client.start("counter", "Count.", session="newest-job")).result()
    expect((result.stop_reason, result.output, result.steps), ("finished", "Three.", 2))


async def streamed_job() -> None:
    """The same as a stream, on both wires; the answer holds a character at which others split lines."""
    for model in ("openai/gpt-5-mini", "anthropic/claude-sonnet-4-5"):
        agent = Agent(name="streamer", model=model, tools=[count], stream="always")
        script = Script(replies=(call(("count", {"text": "a\u2028b"})), say("Two\u2028words.")))
        async with environment([agent], script) as house:
            result = await (await house.client.start("streamer", "Count.", session=f"newest-{model[:6]}")).result()
            streams = [request.request.stream for request in house.provider.requests]
        expect((result.stop_reason, result.output, streams), ("finished", "Two\u2028words.", [True, True]))


async def mcp_call() -> None:
    """A call of an MCP server over standard input and output."""
    Path("adder.py").write_text(SERVER, encoding="utf-8")
    server = StdioServerConfig(name="adder", command=sys.executable, args=("adder.py",))
    agent = Agent(name="clerk", model="openai/gpt-5-mini", mcp_servers=[server])
    script = Script(replies=(call(("adder__add", {"a": 2, "b": 3})), say("Five.")))
    async with environment([agent], script) as house:
        result = await (await house.client.start("clerk", "Add.", session="newest-mcp")).result()
        told = house.provider.requests[-1].request.messages[-1]["content"]
    expect((result.stop_reason, "5" in str(told)), ("finished", True))


async def bounds() -> None:
    """No redirect is followed, nothing is repeated, no flood is read, on both wires."""
    for model in ("openai/scripted", "anthropic/scripted"):
        async with ScriptedProvider(always=faults.status(500)) as other:
            redirect = faults.status(307, headers={"location": other.anthropic_url})
            expect(await met(model, redirect), ("llm.request_error", 1))
            expect(other.connection_count, 0)
        expect(await met(model, faults.reset_before_reply()), ("llm.network_error", 1))
        expect(await met(model, faults.close_before_reply()), ("llm.network_error", 1))
        flood = faults.status(200, body='{"a": "' + "x" * 33_000_000 + '"}')
        expect(await met(model, flood), ("llm.invalid_response", 1))


async def foreign_model() -> None:
    """A model that perdure does not know, through litellm."""
    async with ScriptedProvider(Script(replies=(say("hello"),))) as provider:
        params: dict[str, pydantic.JsonValue] = {"api_base": provider.url, "api_key": "sk-scripted-0123456789"}
        agent = AgentDefinition(name="t", model="friendliai/scripted", generate_params=params)
        answer = await model_call.complete(agent, [{"role": "user", "content": "hello"}])
    expect(answer.text, "hello")
    expect(await met("friendliai/scripted", faults.rate_limited()), ("llm.rate_limited", 1))


async def met(model: str, fault: Fault) -> tuple[str, int]:
    """The reason code of a call that meets a fault, and the number of its requests."""
    async with ScriptedProvider(Script(replies=(say("unused"),)), always=fault) as provider:
        base = provider.anthropic_url if model.startswith("anthropic") else provider.url
        params: dict[str, pydantic.JsonValue] = {"api_base": base, "api_key": "sk-scripted-0123456789"}
        agent = AgentDefinition(name="t", model=model, generate_params=params)
        try:
            await model_call.complete(agent, [{"role": "user", "content": "hello"}])
        except Exception as error:
            import datetime  # noqa: PLC0415

            return str(classify(facts_of(error, datetime.datetime.now(datetime.UTC)))), provider.request_count
    return "an answer", provider.request_count


async def names() -> None:
    """The names that perdure relies on."""
    libraries.check_libraries()


def expect(got: object, wanted: object) -> None:
    """Fail unless both are equal."""
    if got != wanted:
        msg = f"expected {wanted!r}, got {got!r}"
        raise AssertionError(msg)


async def main() -> int:
    """Run every check; the number of those that failed."""
    has_litellm = find_spec("litellm") is not None
    packages = ("perdure", *(["litellm", "openai"] if has_litellm else []), "httpx2", "mcp", "temporalio", "pydantic")
    print(", ".join(f"{name} {version(name)}" for name in packages), flush=True)
    expect("site-packages" in str(perdure.__file__), True)
    failed = 0
    checks: tuple[Check, ...] = (names, bounds, job, streamed_job, mcp_call, *([foreign_model] if has_litellm else []))
    for check in checks:
        try:
            async with asyncio.timeout(120):
                await check()
            print(f"ok      {check.__name__}", flush=True)
        except BaseException as error:
            failed += 1
            print(f"FAILED  {check.__name__}: {type(error).__name__}: {error}", flush=True)
            if not isinstance(error, Exception):
                raise
    return failed


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
