"""Every fault on both wires under the four retry presets: reason code, requests, waits, events and rows."""

import asyncio
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
import temporalio.client
from temporalio.testing import WorkflowEnvironment

from perdure import Agent
from perdure.cli.server import EmbeddedServer
from perdure.client.connect import DATA_CONVERTER
from perdure.contracts.retries import RetryPolicy
from perdure.testing import Script, ScriptedProvider, say
from perdure.workflows import options
from tests.house import House, become_a_user
from tests.workflow.matrix import (
    CASES,
    FATES,
    ODD_ANSWERS,
    ODD_CASES,
    PRESETS,
    SERVED,
    Outcome,
    expected_waits,
    run,
)

pytestmark = [pytest.mark.deep, pytest.mark.timeout(300)]

Outcomes = dict[tuple[str, str, str], Outcome]


@pytest.fixture(scope="module")
async def outcomes(
    server: EmbeddedServer, temporal: temporalio.client.Client, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Outcomes]:
    """Every case has been played."""
    binary = str(Path(sys.executable).with_name("temporal-test-server"))
    with pytest.MonkeyPatch.context() as environment:
        become_a_user(environment, server.address)
        environment.setenv("ANTHROPIC_API_KEY", "sk-ant-scripted-0123456789")
        # Hundreds of turns at once on a busy machine beat late, and a call that counts as lost is made again.
        environment.setattr(options, "HEARTBEAT_TIMEOUT", timedelta(minutes=4))
        folder = tmp_path_factory.mktemp("matrix")
        built = House.built(name="matrix", server=server, temporal=temporal, environment=environment, folder=folder)
        skipping = await WorkflowEnvironment.start_time_skipping(
            test_server_existing_path=binary, data_converter=DATA_CONVERTER
        )
        async with skipping, built as house, asyncio.timeout(240):
            yield await run(house, skipping)


@pytest.mark.parametrize(("name", "wire", "preset"), CASES)
def test_a_fault_is_met_as_the_policy_says(outcomes: Outcomes, name: str, wire: str, preset: str) -> None:
    """S-02 S-03 S-07 S-08 S-09 S-13 S-14 S-40: its code, the exact number of requests, and every wait."""
    outcome, fate, policy = outcomes[name, wire, preset], FATES[name], PRESETS[preset]
    waits = expected_waits(fate, policy)
    code = fate.expected(wire)
    assert (outcome.result["stop_reason"], outcome.result["reason_code"]) == ("error", code)
    assert outcome.requests == (len(waits) + 1) * fate.sent
    retries = outcome.of("generation_retry")
    assert [(retry["attempt"], retry["code"]) for retry in retries] == [(i + 1, code) for i in range(len(waits))]
    for retry, (least, most) in zip(retries, waits, strict=True):
        assert least <= retry["wait_seconds"] <= most
    assert outcome.result["steps"] == (len(waits) if policy.told else 0)


@pytest.mark.parametrize(("name", "wire", "preset"), CASES)
def test_a_fault_is_shown_where_it_was_and_ends_the_turn(outcomes: Outcomes, name: str, wire: str, preset: str) -> None:
    """S-06 S-07: a row for each retry, then the failure under its title, then the end; the events agree."""
    outcome, policy = outcomes[name, wire, preset], PRESETS[preset]
    count = len(expected_waits(FATES[name], policy))
    failed, why, end = outcome.events[-3:]
    assert [event["type"] for event in (failed, why, end)] == ["generation_error", "agent_error", "agent_end"]
    assert (failed["error"]["code"], failed["error"]["title"]) == (FATES[name].expected(wire), "generation")
    assert (end["stop_reason"], end["error"]) == ("error", outcome.result["error"])
    retried = [row for row in outcome.rows if row.startswith("↻ ")]
    total = PRESETS[preset].policy.max_retries
    assert [f"· retry {i + 1} of {total} in " in row for i, row in enumerate(retried)] == [True] * count
    assert next(row for row in outcome.rows if row.startswith("✗ ")) == "✗ generation"
    said = outcome.rows[outcome.rows.index("✗ generation") + 1]
    step = f"step {count + 1 if policy.told else 1}, {wire}/scripted: "
    assert said.startswith(f"  more than {count} failures in a row: {step}" if policy.told and count else f"  {step}")
    assert outcome.rows[-1].startswith("error · ")


@pytest.mark.parametrize(("name", "wire"), ODD_CASES)
def test_an_odd_answer_is_the_models_business_and_the_turn_goes_on(outcomes: Outcomes, name: str, wire: str) -> None:
    """S-40: the second request is one that a real provider takes: this one refuses ids that are there twice."""
    outcome = outcomes[name, wire, SERVED]
    assert (outcome.result["stop_reason"], outcome.result["output"], outcome.requests) == ("finished", "done", 2)
    assert outcome.of("generation_retry") == []
    ended = outcome.of("tool_end") + outcome.of("tool_error")
    assert len({event["call_id"] for event in ended}) == len(ODD_ANSWERS[name].calls)


@pytest.mark.parametrize("wire", ["openai", "anthropic"])
async def test_a_turn_goes_on_when_its_provider_comes_back(house: House, wire: str) -> None:
    """S-01: refused connections use retries and no step."""
    house.environment.setenv("ANTHROPIC_API_KEY", "sk-ant-scripted-0123456789")
    async with ScriptedProvider(Script(replies=(say("fine"),))) as provider:
        base = provider.anthropic_url if wire == "anthropic" else provider.url
        patient = RetryPolicy(max_retries=1000, base=timedelta(milliseconds=200), jitter=timedelta(0))
        patient = patient.model_copy(update={"cap": timedelta(milliseconds=200)})
        agent = Agent(name="tester", model=f"{wire}/scripted", retry=patient, generate_params={"api_base": base})
        await provider.refuse()
        async with house.worker(agent):
            handle = await house.start()
            await house.wait_for_event("generation_retry", 2)
            await provider.accept()
            result = await handle.result()
    assert (result["stop_reason"], result["output"], result["steps"]) == ("finished", "fine", 1)
    assert provider.request_count == 1
