"""A model provider in an agent's own module: its codes, and the library's, end up where an operator looks."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import litellm
import pytest
from litellm.exceptions import APIConnectionError
from litellm.llms.custom_llm import CustomLLM, CustomLLMError

from perdure import Agent, ModelError
from perdure.activities.models import model_call
from perdure.activities.models.failures import facts_of
from perdure.contracts.retries import RetryPolicy
from perdure.llm.failures import classify
from tests.house import House
from tests.unit.activities.calls import NOW

QUICK = RetryPolicy(base=timedelta(milliseconds=10), jitter=timedelta(0), max_retries=2)


class TheirError(Exception):
    """An exception of somebody who does not import perdure."""

    reason_code = "llm.over_the_weekly_share"


class OddError(Exception):
    """An exception whose attribute means something else."""

    reason_code = "E-4711"


class HouseProvider(CustomLLM):
    """Fails in the way that the model's name says."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    async def acompletion(self, *_: Any, **given: Any) -> Any:
        self.calls += 1
        match given["model"]:
            case "moderated":
                raise ModelError("llm.moderated", "not in this house")
            case "warming-up":
                raise ModelError("llm.warming_up", "the model is being loaded", transient=True)
            case "busy":
                raise ModelError("llm.rate_limited", "two callers at once are enough")
            case "odd":
                raise OddError("who knows")
            case "status":
                raise CustomLLMError(403, "not for you")  # type: ignore[no-untyped-call]  # litellm's
        raise RuntimeError("the call failed") from TheirError("the week is over")


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> HouseProvider:
    custom = HouseProvider()
    monkeypatch.setattr(litellm, "custom_provider_map", [{"provider": "house", "custom_handler": custom}])
    monkeypatch.setattr(litellm, "provider_list", list(litellm.provider_list))
    monkeypatch.setattr(litellm, "_custom_providers", [*litellm._custom_providers])
    return custom


def agent(name: str) -> Agent:
    return Agent(name="tester", model=f"house/{name}", retry=QUICK)


async def played(house: House, name: str) -> Mapping[str, Any]:
    tester = agent(name)
    async with house.worker(tester):
        return await house.run()


@pytest.mark.parametrize(
    ("name", "code", "tries", "said"),
    [
        ("moderated", "llm.moderated", 1, "not in this house"),
        ("theirs", "llm.over_the_weekly_share", 1, "the week is over"),
        ("warming-up", "llm.warming_up", 3, "the model is being loaded"),
        ("busy", "llm.rate_limited", 3, "two callers at once are enough"),
        ("status", "llm.auth_error", 1, "not for you"),
        ("odd", "llm.network_error", 3, "who knows"),
    ],
)
async def test_a_turn_ends_with_the_code_that_its_provider_raised(
    house: House, provider: HouseProvider, name: str, code: str, tries: int, said: str
) -> None:
    """S-68: in the result, in the event, in the retries; codes of another form are no codes."""
    result = await played(house, name)
    assert (result["stop_reason"], result["reason_code"], provider.calls) == ("error", code, tries)
    assert said in result["error"]
    (failed,) = await house.events("generation_error")
    assert failed["error"]["code"] == code
    assert [retry["code"] for retry in await house.events("generation_retry")] == [code] * (tries - 1)


async def test_the_facts_are_those_of_the_exception_that_has_the_code(provider: HouseProvider) -> None:
    """S-68: not those of litellm's, which makes up a status of 500."""
    with pytest.raises(APIConnectionError) as raised:
        await model_call.complete(agent("theirs").definition, [{"role": "user", "content": "hello"}])
    facts = facts_of(raised.value, NOW)
    assert (raised.value.status_code, facts.status) == (500, None)
    assert (facts.class_name, facts.text, classify(facts)) == ("TheirError", "the week is over", TheirError.reason_code)
    assert provider.calls == 1
