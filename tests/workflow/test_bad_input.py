"""Bad input: one sentence that names the cause and the fix, and nothing left half-started."""

import pytest
from temporalio.client import WorkflowFailureError

from perdure import Agent
from perdure.store import NotFoundError
from perdure.testing import Script, ScriptedProvider, say
from tests.house import House
from tests.memory import Run

pytestmark = pytest.mark.deep

AGENT = Agent(name="tester", model="openai/scripted")


async def test_an_unknown_agent_is_refused_with_the_names_there_are(house: House) -> None:
    async with house.worker(AGENT):
        result = await house.run(agent="nobody")
    assert (result["stop_reason"], result["reason_code"], result["turn"]) == ("error", "request.unknown_agent", None)
    assert result["error"] == "no worker that polls has an agent 'nobody'; this worker has: tester"
    with pytest.raises(NotFoundError):
        await house.store.session(house.session)


async def test_without_any_worker_an_agent_that_none_ever_had_waits_for_one_that_has_it(house: House) -> None:
    """A service may start jobs before the first worker of a new agent is up, whatever other agents the store knows."""
    await house.store.register_agents([AGENT.definition])
    turn = await house.client.start("newcomer", "go", session=house.session)
    async with ScriptedProvider(Script(replies=(say("done"),))) as provider:
        house.use(provider)
        async with house.worker(Agent(name="newcomer", model="openai/scripted")):
            assert (await turn.result()).output == "done"


async def test_a_missing_key_names_the_variable_and_sends_nothing(house: House) -> None:
    house.environment.delenv("ANTHROPIC_API_KEY")
    agent = Agent(name="tester", model="anthropic/claude-sonnet-4-5")
    async with house.worker(agent):
        result = await house.run()
    assert (result["stop_reason"], result["reason_code"]) == ("error", "llm.missing_key")
    assert "is not set in the worker's environment: ANTHROPIC_API_KEY; set it" in result["error"]


async def test_input_that_is_no_request_fails_the_workflow_with_the_field(house: House) -> None:
    async with house.worker(AGENT):
        handle = await house.start(max_steps=-1)
        with pytest.raises(WorkflowFailureError) as failed:
            await handle.result()
    assert "the input is no turn request: max_steps:" in str(failed.value.cause)


async def test_an_expression_that_would_fill_the_workers_memory_is_refused_before_it_is_compiled(house: House) -> None:
    """S-34: it comes from another service, and the worker runs on."""
    condition = {"type": "output", "pattern": "a{4000000000}", "regex": True, "catch": True}
    async with house.worker(AGENT):
        handle = await house.start(stop_conditions=[condition])
        with pytest.raises(WorkflowFailureError) as failed:
            await handle.result()
    assert "the input is no turn request: stop_conditions.0" in str(failed.value.cause)
    assert "has repeats {…} that come to more than 2,000 parts" in str(failed.value.cause)


async def test_a_prompt_over_the_limit_fails_before_a_turn_exists(house: House) -> None:
    async with house.worker(AGENT):
        handle = await house.start(prompt="x" * 140_000)
        with pytest.raises(WorkflowFailureError) as failed:
            await handle.result()
    assert "the limit is 131,072" in str(failed.value.cause)


async def test_a_request_may_override_model_steps_and_budgets_for_one_turn(run: Run) -> None:
    scripts = {"other": Script(replies=(say("from the other model"),)), "scripted": Script(replies=(say("mine"),) * 2)}
    first = await run(AGENT, models=scripts, model="openai/other", max_steps=3, budgets={"cost_usd": "0.5"})
    second = await run(AGENT, models=scripts)
    assert (first["output"], second["output"], second["turn"]) == ("from the other model", "mine", 2)


ODD_SESSIONS = ("job\x1b[31m", "job\nnext", "job\0", "../../etc/passwd", "--help", "j" * 900, "-")


async def test_a_workflow_id_that_is_no_session_id_is_refused_before_a_turn_exists(house: House) -> None:
    """Any service may start a workflow under any id; it would stand in file names, addresses and on terminals."""
    async with house.worker(AGENT):
        for odd in ODD_SESSIONS:
            house.session = odd
            result = await house.run()
            assert (result["stop_reason"], result["reason_code"], result["turn"]) == ("error", "request.invalid", None)
            assert "cannot be a session id; start the workflow under an id of up to 200 letters" in result["error"]
    assert await house.store.sessions() == ()


async def test_a_request_id_that_no_database_could_write_is_refused_with_its_field(house: House) -> None:
    """PostgreSQL refuses a NUL, and so it would be tried for ever."""
    async with house.worker(AGENT):
        handle = await house.start(request_id="a\0b")
        with pytest.raises(WorkflowFailureError) as failed:
            await handle.result()
    assert "the input is no turn request: request_id: has a control character" in str(failed.value.cause)


async def test_search_attributes_take_as_much_of_a_name_as_they_can_hold(house: House) -> None:
    """200 characters may be 2,402 bytes as Temporal counts them, over a limit that fails the workflow."""
    tenant, model = "\N{GRINNING FACE}" * 200, "openai/" + "\N{GRINNING FACE}" * 190
    async with ScriptedProvider(lambda _: say("done")) as provider, house.worker(AGENT):
        house.use(provider)
        handle = await house.start(tenant=tenant, model=model)
        result = await handle.result()
        known = (await handle.describe()).typed_search_attributes
    assert result["stop_reason"] == "finished"
    for name, whole in (("PerdureTenant", tenant), ("PerdureModel", model)):
        (value,) = (pair.value for pair in known if pair.key.name == name)
        assert whole.startswith(str(value))
        assert len(str(value)) > 150
