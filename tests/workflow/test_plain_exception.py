"""An exception that no table knows is called by its class, wherever somebody looks for the reason."""

import pytest

from activities.conversations import Conversations
from perdure import Agent, RetryPolicy
from perdure.testing import ScriptedProvider, say
from tests.house import House
from worker.sandbox import production_runner
from workflows import options


async def test_a_bug_ends_the_turn_as_exception_and_its_class(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """S-69: in the result, the log of events and the search; a worker that is mended would have gone on meanwhile."""

    async def bug(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Conversations, "read", bug)
    monkeypatch.setattr(options, "LOST_WORKER_MARGIN", 1)
    agent = Agent(name="tester", model="openai/scripted", retry=RetryPolicy(max_retries=0))
    async with ScriptedProvider(lambda _: say("never")) as provider, house.worker(agent, runner=production_runner()):
        house.use(provider)
        result = await house.run()
    assert (result["stop_reason"], result["reason_code"]) == ("error", "exception.ZeroDivisionError")
    (error,) = await house.events("agent_error")
    assert (error["error"]["code"], error["error"]["title"]) == ("exception.ZeroDivisionError", "generation")
    (found,) = await house.client.sessions(reason_code="exception.ZeroDivisionError")
    assert found[0].session == house.session
    assert provider.request_count == 0
