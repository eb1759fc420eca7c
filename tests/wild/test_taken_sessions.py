"""A tenant takes the id of a session that another tenant's delegate will need, and so reads and steers that delegate.

Seen in an attack on a running gateway: ids that a service derives from public facts can be taken by whoever starts
them first. The attacker knows the caller's session, its prompt and the definition's hash.
"""

import hashlib

import pytest
from temporalio.client import WorkflowExecutionStatus

from perdure import Agent
from perdure.contracts.generations import Generate
from perdure.contracts.ids import delegate_session
from perdure.contracts.names import AGENT_TURN
from perdure.store import open_turn
from perdure.store.rows import step_id
from perdure.testing import ChatRequest, Reply, ScriptedProvider, call, say
from tests.gateway import gateway, token_lines
from tests.house import House

LEAD = Agent(name="lead", model="openai/scripted", instructions="I am lead.", delegates=["helper"])
HELPER = Agent(name="helper", model="openai/scripted", instructions="I am helper.")
SECRET = "pay invoice 4711 of ann"
SEED = "5eed" * 8


def answers(request: ChatRequest) -> Reply:
    """The lead asks its helper once; the helper says what it has read."""
    if "I am helper" in request.system:
        return say(" | ".join(str(message["content"]) for message in request.messages[1:]))
    asked = any(message["role"] == "tool" for message in request.messages)
    return say("done") if asked else call(("helper", {"query": SECRET}))


def first_call(session: str, prompt: str, definition: str) -> str:
    """The id of a turn's first call, as anybody can compute it who has read the source."""
    parent = step_id("prompt", session, 1, None, prompt)
    step = Generate(session=session, turn=1, step=1, parent=parent, definition=definition).step_id()
    return f"call_{step[:16]}_0"


async def test_nobody_can_begin_the_session_that_another_tenants_delegate_will_need(house: House) -> None:
    """T-03: The attack as it was played: begin it first, then read what the other tenant's delegate says there."""
    lines, tokens = token_lines(ann=("acme", "admin"), eve=("evil", "admin"))
    async with ScriptedProvider(answers) as provider, house.worker(LEAD, HELPER):
        house.use(provider)
        async with (
            gateway(house, gateway_tokens=lines) as door,
            door.holder(tokens["ann"]) as ann,
            door.holder(tokens["eve"]) as eve,
        ):
            await ann.post("/v1/sessions", json={"agent": "lead", "prompt": "pay", "session": "earlier"})
            await (await house.client.attach("earlier", 1)).result()
            definition = (await house.store.turn("earlier", 1)).definition
            digest = hashlib.sha256(f"bank\n{first_call('bank', 'pay', definition)}".encode()).hexdigest()[:16]
            taken = f"bank.helper.{digest}"
            begun = await eve.post("/v1/sessions", json={"agent": "helper", "prompt": "evil words", "session": taken})
            assert begun.status_code == 202
            await (await house.client.attach(taken, 1)).result()

            await ann.post("/v1/sessions", json={"agent": "lead", "prompt": "pay", "session": "bank"})
            result = await (await house.client.attach("bank", 1)).result()

            assert result.stop_reason == "finished"
            seen = await eve.get(f"/v1/sessions/{taken}/transcript")
            assert SECRET not in seen.text
            told = [str(made.request.messages) for made in provider.requests if "I am helper" in made.request.system]
            assert not any("evil words" in text and SECRET in text for text in told)
            ((child, _),) = await house.store.sessions(caller="bank")
            assert (child.tenant, child.session != taken) == ("acme", True)
            assert (await eve.get(f"/v1/sessions/{child.session}")).status_code == 404


@pytest.mark.parametrize("stranger", ["has ended", "runs"])
async def test_a_delegate_whose_session_a_stranger_has_fails_its_call(
    house: House, monkeypatch: pytest.MonkeyPatch, stranger: str
) -> None:
    """Even a stranger who knows the id: one that has a turn there, and one that holds it through Temporal."""
    monkeypatch.setattr(open_turn, "new_seed", lambda: SEED)
    async with ScriptedProvider(answers) as provider, house.worker(LEAD, HELPER):
        house.use(provider)
        await (await house.client.start("lead", "go", session="earlier")).result()
        made = first_call(house.session, "go", (await house.store.turn("earlier", 1)).definition)
        session = delegate_session(house.session, "helper", house.session, made, SEED)
        handle = house.temporal.get_workflow_handle(session)
        if stranger == "runs":
            await house.temporal.start_workflow(AGENT_TURN, {"prompt": "mine"}, id=session, task_queue="nobodys")
        else:
            await house.store.claim_session(session, "evil")

        result = await house.run("lead")

        assert result["stop_reason"] == "finished"
        if stranger == "runs":
            assert (await handle.describe()).status is WorkflowExecutionStatus.RUNNING
            await handle.terminate()
    (end,) = await house.events("tool_end")
    said = "taken by a workflow that this call has not started" if stranger == "runs" else "another tenant's"
    assert (end["error"]["code"], said in end["error"]["message"]) == ("tool.delegate_failed", True)
    assert not any(SECRET in str(made.request.messages[1:2]) for made in provider.requests[3:])
