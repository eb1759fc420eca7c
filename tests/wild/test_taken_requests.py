"""A request that was taken (202) is never one that cannot run: whatever the document allows, its turn ends in a result.

Seen: a context of two hundred levels was taken, and then the workflow's task failed for ever.
"""

import asyncio
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings

from perdure import Agent, RetryPolicy
from perdure.testing import ScriptedProvider, say
from tests.gateway import gateway
from tests.house import WAIT_SECONDS, House

pytestmark = pytest.mark.deep

AGENT = Agent(name="tester", model="openai/scripted", retry=RetryPolicy(max_retries=0))
EXAMPLES = 150


def bodies_of(document: Any, path: str) -> list[dict[str, Any]]:
    """Bodies that the document allows for a POST, the same at each run."""
    made: list[dict[str, Any]] = []
    operation = schemathesis.openapi.from_dict(document)[path]["POST"]

    @settings(
        max_examples=EXAMPLES,
        database=None,
        derandomize=True,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(operation.as_strategy())
    def make(case: Any) -> None:
        if isinstance(case.body, dict):
            made.append(case.body)

    make()
    return made


async def test_every_start_that_was_taken_ends_in_a_result(house: House) -> None:
    """Each body has the agent of this worker, so that it is not refused for that."""
    async with ScriptedProvider(lambda _: say("done")) as provider, house.worker(AGENT):
        house.use(provider)
        async with gateway(house, gateway_max_requests=0) as door:
            document = (await door.http.get("/openapi.json")).json()
            bodies = await asyncio.to_thread(bodies_of, document, "/v1/sessions")
            taken: list[str] = []
            for body in bodies:
                for agent in ({"agent": "tester"}, {"agent": "tester", "definition": None, "session": None}):
                    answer = await door.http.post("/v1/sessions", json={**body, **agent})
                    assert answer.status_code < 500, answer.text
                    if answer.status_code == 202:
                        taken.append(answer.json()["session"])
        assert len(taken) > EXAMPLES / 10, "too few were taken to say anything"
        async with asyncio.timeout(WAIT_SECONDS):
            results = [await (await house.client.attach(session)).result() for session in dict.fromkeys(taken)]
    assert all(result.stop_reason for result in results)
