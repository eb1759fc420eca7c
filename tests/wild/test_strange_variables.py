"""A tenant's context may name the variables of that tenant, and no other's: at the opening, and at each call."""

from typing import Any

import pytest

from perdure import Agent, ToolContext, TurnContext, tool
from perdure.activities.agents import TurnContexts
from perdure.agents.context import ToolUnavailableError
from perdure.client import RequestRefusedError
from perdure.store import Store
from perdure.testing import ChatRequest, Reply, ScriptedProvider, call, run_in_memory, say
from tests.house import House

OF_ACME = {"crm": [{"token": "${PERDURE_CONTEXT_ACME}"}]}
OWNERS = {"PERDURE_CONTEXT_ACME": frozenset({"acme"}), "PERDURE_CONTEXT_BOTH": frozenset({"acme", "beta"})}

USED: list[object] = []


@tool
def use(context: ToolContext) -> str:
    """Use."""
    USED.append(context.data)
    return "used"


def uses(request: ChatRequest) -> Reply:
    return call(("use", {})) if request.messages[-1]["role"] == "user" else say("done")


AGENT = Agent(name="tester", model="openai/scripted", tools=[use])


@pytest.fixture(autouse=True)
def secrets(house: House, monkeypatch: pytest.MonkeyPatch) -> None:  # behind the house, which clears the environment
    USED.clear()
    for name in ("ACME", "BOTH", "PLAIN"):
        monkeypatch.setenv(f"PERDURE_CONTEXT_{name}", f"s3cret-of-{name.lower()}")


@pytest.mark.parametrize(
    ("tenant", "variable", "allowed"),
    [
        ("acme", "ACME", True),
        ("acme", "BOTH", True),
        ("beta", "BOTH", True),
        ("", "PLAIN", True),
        ("beta", "ACME", False),
        ("acme", "PLAIN", False),
        ("", "ACME", False),
        ("beta", "NOWHERE", False),
    ],
)
async def test_a_variable_is_read_by_turns_of_its_tenant_only(
    house: House, tenant: str, variable: str, allowed: bool
) -> None:
    """T-05."""
    house.settings = house.settings.model_copy(update={"tenant_variables": OWNERS})
    given: dict[str, Any] = {"crm": [{"token": f"${{PERDURE_CONTEXT_{variable}}}"}]}
    async with ScriptedProvider(uses) as provider, house.worker(AGENT):
        house.use(provider)
        turn = await house.client.start("tester", "go", session="s", tenant=tenant, context=given)
        result = await turn.result()
    if allowed:
        assert [{"crm": [{"token": f"s3cret-of-{variable.lower()}"}]}] == USED
        return
    whose = f"of tenant '{tenant}'" if tenant else "of a turn without a tenant"
    assert (result.stop_reason, result.reason_code, USED) == ("error", "request.invalid", [])
    assert result.error == (
        f"context.crm.token names PERDURE_CONTEXT_{variable}, which is no variable {whose}; name one that the workers' "
        "setting PERDURE_TENANT_VARIABLES gives to it"
    )


async def test_a_session_keeps_its_context_and_not_the_right_to_it(house: House) -> None:
    house.settings = house.settings.model_copy(update={"tenant_variables": OWNERS})
    async with ScriptedProvider(uses) as provider:
        house.use(provider)
        async with house.worker(AGENT):
            await (await house.client.start("tester", "go", session="s", tenant="acme", context=OF_ACME)).result()
        house.settings = house.settings.model_copy(update={"tenant_variables": {}})
        async with house.worker(AGENT):
            with pytest.raises(RequestRefusedError, match="which is no variable of tenant 'acme'"):
                await house.client.send("s", "go on")
    assert len(USED) == 1


async def test_a_tool_reads_no_variable_that_its_own_worker_gives_to_another_tenant() -> None:
    """Another worker, with other settings, may have opened the turn."""
    async with await Store.open("sqlite:///:memory:", upgrade=True) as store:
        contexts = TurnContexts(
            store, {"PERDURE_CONTEXT_ACME": "s3cret"}, {"PERDURE_CONTEXT_ACME": frozenset({"acme"})}
        )
        assert contexts.data_for_code(TurnContext(data={"a": "${PERDURE_CONTEXT_ACME}"}, tenant="acme")) == {
            "a": "s3cret"
        }
        with pytest.raises(ToolUnavailableError, match="which is no variable of tenant 'beta'"):
            contexts.data_for_code(TurnContext(data={"a": "${PERDURE_CONTEXT_ACME}"}, tenant="beta"))


async def test_a_run_in_memory_has_the_same_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_TENANT_VARIABLES", "acme=PERDURE_CONTEXT_ACME")
    for tenant, count in (("acme", 1), ("beta", 1)):
        await run_in_memory(AGENT, "go", uses, tenant=tenant, context=OF_ACME)
        assert len(USED) == count
