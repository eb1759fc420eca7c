"""On whose behalf a turn works: what its starter says reaches tools, hooks, delegates, instructions, and no model."""

import asyncio
import json
import threading
from typing import Any

import pytest

from perdure import Agent, HookContext, ToolContext, TurnContext, hook, tool
from perdure.client import RequestRefusedError
from perdure.contracts.events import AgentStart
from perdure.testing import ChatRequest, Reply, ScriptedProvider, call, say
from tests.house import House

ACME: dict[str, Any] = {"customer": {"id": 7, "name": "Acme"}, "plan": "gold"}
FOR_ADA = '{"customer":{"id":7,"name":"Acme"},"tenant":"acme","by":"ada"}'
FOR_BOB = FOR_ADA.replace("ada", "bob")


@tool
def look(context: ToolContext) -> dict[str, object]:
    """Look."""
    context.data["plan"] = "changed by a tool"  # of its own copy
    return {"customer": context.data.get("customer"), "tenant": context.tenant, "by": context.by}


def agent(**settings: Any) -> Agent:
    return Agent(**{"name": "tester", "model": "openai/scripted", "tools": [look], **settings})


def looks(request: ChatRequest) -> Reply:
    """A model that looks once in every turn; a lead has its helper do it."""
    names = [str(offered["function"]["name"]) for offered in request.tools]  # type: ignore[index, call-overload]
    ask = call(("helper", {"query": "look"})) if "helper" in names else call((names[0], {}))
    return ask if request.messages[-1]["role"] == "user" else say("done")


def read_by_the_model(provider: ScriptedProvider, at: int = -1) -> list[str]:
    return [str(message["content"]) for message in provider.requests[at].request.messages if message["role"] == "tool"]


async def test_context_reaches_tools_hooks_and_instructions_and_stays_with_the_session(house: House) -> None:
    heard: list[tuple[object, str, str]] = []

    @hook("tool_end")
    def watch(_: object, context: HookContext) -> None:
        heard.append((context.data["plan"], context.tenant, context.by))

    writer = agent(
        instructions="Write for {context.customer.name} on plan {context.plan}, {turn.by} of {turn.tenant}: {json}.",
        hooks=[watch],
    )
    async with ScriptedProvider(looks) as provider, house.worker(writer):
        house.use(provider)
        turn = await house.client.start("tester", "go", session="s", tenant="acme", by="ada", context=ACME)
        assert (await turn.result()).stop_reason == "finished"
        assert provider.requests[0].request.system == "Write for Acme on plan gold, ada of acme: {json}."
        assert read_by_the_model(provider) == [FOR_ADA]
        assert heard == [("gold", "acme", "ada")]

        # Who sends the next message is not who sent the first; what the session is about stays.
        await (await house.client.send("s", "and?", by="bob")).result()
        assert read_by_the_model(provider)[-1] == FOR_BOB
        await (await house.client.resume("s", "on", by="bob")).result()
        assert read_by_the_model(provider)[-1] == FOR_BOB
        beta = {"customer": {"name": "Beta"}, "plan": 1}
        fork = await house.client.fork("s", "now", into="f", turn=1, context=beta)
        assert (await fork.result()).stop_reason == "finished"
        assert provider.requests[-1].request.system == "Write for Beta on plan 1,  of acme: {json}."
        with pytest.raises(RequestRefusedError, match=r"need context\.customer\.name, which .* has plan, so"):
            await house.client.send("s", "and?", context={"plan": "free"})
        starts = [item.event async for item in house.client.events("s", 0) if isinstance(item.event, AgentStart)]
        assert [(start.context, start.tenant, start.by) for start in starts] == [
            (ACME, "acme", "ada"),
            (ACME, "acme", "bob"),
            (ACME, "acme", "bob"),
        ]


async def test_another_tenant_never_works_in_a_session_and_so_never_with_its_context(house: House) -> None:
    """T-04."""
    async with ScriptedProvider(looks) as provider, house.worker(agent()):
        house.use(provider)
        await (await house.client.start("tester", "go", session="s", tenant="acme", context=ACME)).result()
        asked = len(provider.requests)
        refused = await (await house.client.start("tester", "go", session="s", tenant="beta", by="eve")).result()
        assert (refused.stop_reason, refused.reason_code) == ("error", "request.invalid")
        assert len(provider.requests) == asked


async def test_a_delegate_works_on_behalf_of_its_callers_starter(house: House) -> None:
    helper = agent(name="helper", instructions="Help {turn.by}.")
    lead = agent(name="lead", tools=[], delegates=[helper])
    async with ScriptedProvider(looks) as provider, house.worker(lead, helper):
        house.use(provider)
        await (await house.client.start("lead", "go", tenant="acme", by="ada", context=ACME)).result()
        assert provider.requests[1].request.system == "Help ada."
        assert read_by_the_model(provider, 2) == [FOR_ADA]


async def test_a_message_that_waits_brings_its_own_context(house: House) -> None:
    """Over the queue; a word into the running turn cannot change what that turn began with."""
    running, goes_on = threading.Event(), threading.Event()

    @tool
    def hold(context: ToolContext) -> str:
        """Hold."""
        running.set()
        goes_on.wait(30)
        return json.dumps([context.data, context.by])

    async with ScriptedProvider(looks) as provider, house.worker(agent(tools=[hold])):
        house.use(provider)
        await house.client.start("tester", "go", session="s", by="ada", context={"n": 1})
        assert await asyncio.to_thread(running.wait, 30)
        second = await house.client.send("s", "then", by="bob", context={"n": 2})
        third = await house.client.send("s", "at last", by="eve")
        with pytest.raises(RequestRefusedError, match="context: is frozen in the running turn; send it without steer"):
            await house.client.send("s", "now", when_busy="steer", context={"n": 3})
        await house.client.send("s", "now", when_busy="steer")
        goes_on.set()
        await second.result()
        await third.result()
        of_the_first = '[{"n": 1}, "ada"]'  # also after the word into it
        said = [of_the_first, of_the_first, '[{"n": 2}, "bob"]', '[{"n": 2}, "eve"]']
        assert read_by_the_model(provider) == said


async def test_instructions_are_made_once_by_a_function_and_frozen_with_the_turn(house: House) -> None:
    made: list[TurnContext] = []

    async def instruct(context: TurnContext) -> str:
        made.append(context)
        return f"  Call number {len(made)} for {context.data['plan']}"

    using = agent(instructions=instruct)
    async with ScriptedProvider(looks) as provider, house.worker(using):
        house.use(provider)
        turn = await house.client.start("tester", "go", session="s", by="ada", context=ACME)
        await turn.result()
        assert [item.request.system for item in provider.requests] == ["Call number 1 for gold"] * 2
        assert made == [TurnContext(data=ACME, by="ada")]
        failed = await (await house.client.start("tester", "go", session="t")).result()
    assert failed.reason_code == "request.invalid"
    assert failed.error is not None
    assert "the instructions of agent 'tester' could not be made: KeyError: 'plan'" in failed.error


async def test_a_secret_of_a_tenant_reaches_tools_and_nothing_else(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-52: by a reference that names a variable of the worker's environment."""
    monkeypatch.setenv("PERDURE_CONTEXT_ACME", "s3cret-of-acme")
    used: list[object] = []

    @tool
    def use(context: ToolContext) -> str:
        """Use."""
        used.append(context.data)
        return "used"

    @tool
    def fail(context: ToolContext) -> str:
        """Never runs."""
        raise NotImplementedError

    given = {"crm": {"token": "${PERDURE_CONTEXT_ACME}", "ids": [1]}}
    async with ScriptedProvider(looks) as provider:
        house.use(provider)
        async with house.worker(agent(tools=[use])):
            turn = await house.client.start("tester", "go", session="s", context=given)
            await turn.result()
        assert used == [{"crm": {"token": "s3cret-of-acme", "ids": [1]}}]
        events = [item.model_dump_json() async for item in house.client.events("s", 0)]
        assert "${PERDURE_CONTEXT_ACME}" in events[0]
        assert not any("s3cret" in event for event in events)
        monkeypatch.delenv("PERDURE_CONTEXT_ACME")
        async with house.worker(agent(tools=[fail])):
            await (await house.client.start("tester", "go", session="t", context=given)).result()
        told = read_by_the_model(provider)[-1]
        assert "context.crm.token of this turn stands for PERDURE_CONTEXT_ACME, which is not set" in told
        async with house.worker(agent(instructions="Use {context.crm.token}.")):
            refused = await (await house.client.start("tester", "go", session="u", context=given)).result()
    assert refused.error is not None
    assert "need context.crm.token, which stands for a secret; no model may read it" in refused.error
