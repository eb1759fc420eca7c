"""A model that a start request asks for: it reaches no address of the request's, and no other provider's key."""

from typing import Any

import pytest

from perdure import Agent, Fallback
from perdure.contracts.values import JsonValue
from perdure.testing import Script, ScriptedProvider, say
from tests.house import House

KEY = "sk-of-the-agent-0123456789"
DONE = Script(replies=(say("done"),), repeat=True)


def agent(provider: ScriptedProvider, model: str = "openai/first", **settings: Any) -> Agent:
    params = {"api_base": provider.url, "api_key": "${OWN}", "temperature": 0.5, "aws_session_token": "${OWN}"}
    return Agent(**{"name": "tester", "model": model, "generate_params": params, **settings})


@pytest.fixture(autouse=True)
def _keys(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("OWN", KEY)
    environment.setenv("FALLBACKS", "sk-of-the-fallback")


async def test_the_agents_key_and_address_do_not_go_to_another_provider(house: House) -> None:
    async with ScriptedProvider(DONE) as own, ScriptedProvider(DONE) as other:
        house.use(other)
        async with house.worker(agent(own)):
            result = await house.run(model="anthropic/claude-x")
    assert (result["stop_reason"], own.requests) == ("finished", [])
    (asked,) = other.requests
    assert asked.request.model == "claude-x"
    assert isinstance(asked.body, dict)
    assert asked.body["temperature"] == 0.5
    assert KEY not in f"{asked.headers} {asked.body}"


async def test_another_model_of_the_provider_goes_where_the_agents_own_goes(house: House) -> None:
    async with ScriptedProvider(DONE) as own, ScriptedProvider(DONE) as other:
        house.use(other)
        async with house.worker(agent(own)):
            await house.run(model="openai/second")
    assert (own.requests[0].request.model, other.requests) == ("second", [])
    assert own.requests[0].headers["authorization"] == f"Bearer {KEY}"


async def test_a_fallback_that_is_asked_for_has_its_own_key_and_address(house: House) -> None:
    async with ScriptedProvider(DONE) as own, ScriptedProvider(DONE) as other:
        params: dict[str, JsonValue] = {"api_base": other.anthropic_url, "api_key": "${FALLBACKS}"}
        fallback = Fallback(model="anthropic/second", generate_params=params)
        async with house.worker(agent(own, fallback_models=[fallback])):
            await house.run(model="anthropic/second")
    assert own.requests == []
    assert other.requests[0].headers["x-api-key"] == "sk-of-the-fallback"


@pytest.mark.parametrize("how", ["named", "inline", "resumed"])
async def test_a_model_that_names_an_address_is_refused_and_nothing_is_sent(house: House, how: str) -> None:
    async with ScriptedProvider(DONE) as own, house.worker(agent(own), inline=True):
        house.use(own)
        request = {"model": f"oobabooga/{own.url}"}
        match how:
            case "inline":
                scout = {"name": "scout", "model": "openai/first"}
                result = await house.run(agent=None, definition=scout, **request)
            case "resumed":
                await house.run()
                own.requests.clear()
                turn = await house.client.fork(house.session, "again", model=request["model"])
                result = (await turn.result()).model_dump()
            case _:
                result = await house.run(**request)
        assert own.requests == []
    assert (result["stop_reason"], result["reason_code"]) == ("error", "request.invalid")
    assert result["error"] == f"model: 'oobabooga/{own.url}' names an address, which may not come in a request"


async def test_a_model_of_the_agents_own_may_name_an_address(house: House) -> None:
    """Its author wrote it: asking for it again is no new address."""
    async with ScriptedProvider(DONE) as own:
        model = f"oobabooga/{own.url}"
        definition = agent(own, model).definition
    assert definition.changes_of_model(model) == {"model": model, "generate_params": definition.generate_params}


async def test_a_short_word_behind_a_reference_is_no_secret(house: House) -> None:
    """A model may say it; a long one it may not."""
    house.environment.setenv("TEAM", "dev")
    async with ScriptedProvider(Script(replies=(say(f"the dev team has {KEY}"),))) as own:
        params: dict[str, JsonValue] = {
            "api_base": own.url,
            "api_key": "${OWN}",
            "extra_headers": {"X-Team": "${TEAM}"},
        }
        async with house.worker(Agent(name="tester", model="openai/first", generate_params=params)):
            result = await house.run()
        assert own.requests[0].headers["x-team"] == "dev"
    assert result["output"] == "the dev team has ***"
