"""Keys of a model by reference: the provider gets them, and nobody else ever sees them."""

import pytest

from perdure.contracts.agents import names_of_call
from perdure.contracts.values import JsonValue
from perdure.testing import ChatRequest, Reply, ScriptedProvider, faults, say
from tests.faults import everywhere
from tests.house import House

pytestmark = pytest.mark.deep

SECRETS = {"key": "0wn-key-of-the-agent-7f3a", "header": "gate-pass-of-the-team-91c2"}
GIVEN = {"OWN": SECRETS["key"], "GATE": SECRETS["header"], "OPENAI_API_KEY": ""}
AGENTS = "tests.faults.agents_with_keys"


def repeating(request: ChatRequest) -> Reply:
    """A provider that says in its error what it was sent."""
    said = f"not allowed: {SECRETS['key']} behind {SECRETS['header']}"
    return say("").after(faults.error(401, said, name="invalid_api_key"))


async def test_a_key_by_reference_reaches_the_provider_and_is_left_nowhere(house: House) -> None:
    """S-52: also when the provider repeats it; the worker logs all that it can."""
    async with ScriptedProvider(repeating) as provider:
        worker = house.spawn_worker(AGENTS, **GIVEN, OWN_URL=provider.url, PERDURE_LOG_LEVEL="debug")
        await worker.polling()
        result = await house.run()
        (request,) = provider.requests
        places = {
            **everywhere.rows(house),
            **everywhere.files(house),
            **await everywhere.temporal(house, house.session),
        }
        assert everywhere.found(SECRETS, places) == []
    sent = request.headers["authorization"], request.headers["x-gateway"]
    assert sent == (f"Bearer {SECRETS['key']}", f"team {SECRETS['header']}")
    assert (result["stop_reason"], result["reason_code"]) == ("error", "llm.auth_error")
    assert "not allowed: *** behind ***" in result["error"]


async def test_a_reference_to_what_the_worker_does_not_have_is_a_missing_key(house: House) -> None:
    """S-52: named, and nothing is sent."""
    async with ScriptedProvider(repeating) as provider:
        worker = house.spawn_worker(AGENTS, OWN="", GATE="", OPENAI_API_KEY="", OWN_URL=provider.url)
        await worker.polling()
        result = await house.run()
        assert provider.requests == []
    assert (result["stop_reason"], result["reason_code"]) == ("error", "llm.missing_key")
    assert result["error"].endswith(
        ": a key that the call needs is not set in the worker's environment: "
        "OWN and GATE; set it and start the worker again"
    )


def test_what_a_definition_refers_to_is_a_secret_also_when_no_agent_of_the_worker_has_it() -> None:
    """S-52: a turn that goes on under a definition from before. Regions and names of projects are none."""
    params: dict[str, JsonValue] = {
        "api_base": "https://${PLANTED_USER}:${PLANTED_PASSWORD}@host",
        "extra_headers": {"X-Gateway": "team ${PLANTED_GATE}"},
        "aws_region_name": "${PLANTED_REGION}",
        "temperature": 0,
    }
    assert names_of_call(params, secrets=True) == ["PLANTED_USER", "PLANTED_PASSWORD", "PLANTED_GATE"]
    assert names_of_call(params)[-1] == "PLANTED_REGION"
