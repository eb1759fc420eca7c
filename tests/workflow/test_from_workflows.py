"""Agents in users' own workflows (S-82): turns are child workflows, with everything that Temporal promises of these."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import temporalio.client
from temporalio.client import WorkflowFailureError, WorkflowHandle, WorkflowHistory
from temporalio.exceptions import ApplicationError, CancelledError, ChildWorkflowError
from temporalio.worker import Replayer, Worker

from perdure import Agent
from perdure.testing import ChatRequest, Reply, Script, ScriptedProvider, call, faults, say
from tests.house import WAIT_SECONDS, House, eventually
from tests.workflow.bodies import Body, happened
from tests.workflow.workflows_of_users import Conversation, Report, Single

WORKFLOWS = [Report, Single, Conversation]

AGENT = Agent(name="tester", model="openai/scripted")


@pytest.fixture
async def theirs(house: House) -> temporalio.client.Client:
    """A client as users have one: with Temporal's own data converter."""
    return await temporalio.client.Client.connect(house.server.address)


@asynccontextmanager
async def their_worker(client: temporalio.client.Client, house: House) -> AsyncIterator[None]:
    """A user's worker, which keeps no workflow in memory: each task replays the history."""
    queue = f"users-{house.settings.task_queue}"
    async with Worker(client, task_queue=queue, workflows=WORKFLOWS, max_cached_workflows=0):
        yield


async def started(client: temporalio.client.Client, house: House, kind: Any, **asked: Any) -> WorkflowHandle[Any, Any]:
    asked = {"task_queue": house.settings.task_queue, **asked}
    queue = f"users-{house.settings.task_queue}"
    return await client.start_workflow(kind.run, asked, id=f"user-{house.session}", task_queue=queue)


async def ended(handle: WorkflowHandle[Any, Any]) -> Any:
    async with asyncio.timeout(WAIT_SECONDS):
        return await handle.result()


async def failure_of(handle: WorkflowHandle[Any, Any]) -> BaseException | None:
    with pytest.raises(WorkflowFailureError) as failed:
        await ended(handle)
    return failed.value.cause


def echo(request: ChatRequest) -> Reply:
    return say(f"about {request.messages[-1]['content']}")


async def test_three_agents_at_once_share_a_budget_and_the_history_replays(
    house: House, theirs: temporalio.client.Client
) -> None:
    """S-82."""
    async with ScriptedProvider(echo) as provider, house.worker(AGENT), their_worker(theirs, house):
        house.use(provider)
        handle = await started(theirs, house, Report, parts=["a", "b", "c"], llm_calls=3, at_once=3)
        assert await ended(handle) == {"outputs": ["about a", "about b", "about c"], "llm_calls": 3}
    await Replayer(workflows=WORKFLOWS).replay_workflow(await handle.fetch_history())


async def test_a_turn_without_a_share_waits_for_one_and_none_starts_when_nothing_is_left(
    house: House, theirs: temporalio.client.Client
) -> None:
    """S-82: two shares of two calls in all; the third part finds none left."""
    async with ScriptedProvider(echo) as provider, house.worker(AGENT), their_worker(theirs, house):
        house.use(provider)
        handle = await started(theirs, house, Report, parts=["a", "b", "c"], llm_calls=2, at_once=2)
        cause = await failure_of(handle)
        assert isinstance(cause, ApplicationError)
        assert (cause.type, len(provider.requests)) == ("budget.llm_calls_exhausted", 2)
        assert "2 of 2 model calls; no turn was started" in cause.message


async def test_a_cancelled_workflow_cancels_its_agents_first(house: House, theirs: temporalio.client.Client) -> None:
    """S-82."""
    hanging = say("late").after(faults.hang())
    async with ScriptedProvider(lambda _: hanging) as provider, house.worker(AGENT), their_worker(theirs, house):
        house.use(provider)
        handle = await started(theirs, house, Report, parts=["a", "b"], llm_calls=9, at_once=2)
        await provider.wait_for_requests(2)
        await handle.cancel()
        cause = await failure_of(handle)
        assert isinstance(cause, CancelledError) or isinstance(getattr(cause, "cause", None), CancelledError)
        events = (await handle.fetch_history()).events
        sessions = [
            event.child_workflow_execution_started_event_attributes.workflow_execution.workflow_id
            for event in events
            if event.HasField("child_workflow_execution_started_event_attributes")
        ]
        # The workflow gathers its agents: it ends with the first of them, and the other has been told already.
        assert any(event.HasField("child_workflow_execution_completed_event_attributes") for event in events)

        async def ended() -> list[str | None] | None:
            results = [(await house.store.turn(session, 1)).result for session in sessions]
            return [result.stop_reason for result in results if result] if all(results) else None

        assert await eventually(ended) == ["cancelled", "cancelled"]


class Histories:
    """A session that has gone on in fresh histories when its last turn calls a model that never answers."""

    def __init__(self, house: House, number: int) -> None:
        self._house = house
        self._body = Body()
        self._messages = [f"message {at}" for at in range(2, number + 1)]
        self.agent = Agent(name="tester", model="openai/scripted", tools=[self._body.held()])

    def reply(self, request: ChatRequest) -> Reply:
        """The answer of the model."""
        last = request.messages[-1]
        if (self._messages[-1:] or ["go"]) == [last["content"]]:
            return say("late").after(faults.hang())
        return call(("held", {})) if last["content"] == "go" else say("next")

    async def reached(self, provider: ScriptedProvider) -> None:
        """Wait for the call that never ends, in the last history."""
        if self._messages:
            await happened(self._body.started)
            for message in self._messages:
                await self._house.client.send(self._house.session, message)
            self._body.released.set()

        async def is_asked() -> bool:
            last = provider.requests[-1].request.messages[-1]["content"] if provider.requests else ""
            return last == (self._messages[-1:] or ["go"])[0]

        await eventually(is_asked)

    async def check_cancelled(self, provider: ScriptedProvider) -> None:
        """The last turn has ended as cancelled, and buys nothing more."""
        turns = await self._house.store.turns(self._house.session)
        ends = [turn.result.stop_reason if turn.result else None for turn in turns]
        assert ends == [*(["finished"] * len(self._messages)), "cancelled"]
        await provider.wait_for_disconnect()


@pytest.mark.parametrize("number", [1, 2, 3])
async def test_a_cancel_reaches_the_history_in_which_the_turn_is_now(
    house: House, theirs: temporalio.client.Client, number: int
) -> None:
    """S-82: Temporal's own cancel of a child names its first run, and a turn goes on in fresh ones."""
    turn = Histories(house, number)
    async with ScriptedProvider(turn.reply) as provider, house.worker(turn.agent), their_worker(theirs, house):
        house.use(provider)
        handle = await started(theirs, house, Single, agent="tester", prompt="go", session=house.session)
        await turn.reached(provider)
        await handle.cancel()
        cause = await failure_of(handle)
        assert isinstance(cause, CancelledError)
        await turn.check_cancelled(provider)
    await Replayer(workflows=WORKFLOWS).replay_workflow(await handle.fetch_history())


async def test_a_workflow_that_was_cancelled_before_cancels_were_signals_replays() -> None:
    """S-48: recorded when Temporal's cancel of the child was all that was sent."""
    recorded = Path(__file__).parent / "histories" / "cancelled_by_temporal.json"
    history = WorkflowHistory.from_json("caller", recorded.read_text(encoding="utf-8"))
    await Replayer(workflows=WORKFLOWS).replay_workflow(history)


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        ({"prompt": ""}, "request.invalid", "prompt: is needed"),
        ({"max_steps": 0}, "request.invalid", "max_steps: "),
        ({"nonsense": 1}, "request.invalid", "nonsense: "),
        ({"session": "perdure:own"}, None, "are perdure's own"),
        ({"agent": "nobody"}, None, "nobody"),
    ],
    ids=lambda value: str(value)[:30],
)
async def test_a_request_that_cannot_be_carried_out_fails_with_a_code_or_has_a_result_that_says_why(
    house: House, theirs: temporalio.client.Client, options: dict[str, Any], code: str | None, said: str
) -> None:
    async with ScriptedProvider(echo) as provider, house.worker(AGENT), their_worker(theirs, house):
        house.use(provider)
        handle = await started(theirs, house, Single, **{"agent": "tester", "prompt": "go", **options})
        if code is None:
            result = await ended(handle)
            assert result["stop_reason"] == "error"
            assert said in result["error"]
        else:
            cause = await failure_of(handle)
            assert isinstance(cause, ApplicationError)
            assert cause.type == code
            assert said in cause.message


async def test_an_error_that_closes_the_turn_as_failed_is_a_result_all_the_same(
    house: House, theirs: temporalio.client.Client
) -> None:
    """S-82: with ``PERDURE_FAIL_WORKFLOWS``."""
    async with (
        ScriptedProvider(always=faults.status(401)) as provider,
        house.worker(AGENT, fail_workflows=True),
        their_worker(theirs, house),
    ):
        house.use(provider)
        handle = await started(theirs, house, Single, agent="tester", prompt="go", session=house.session)
        assert (await ended(handle))["reason_code"] == "llm.auth_error"


async def test_a_message_is_the_next_turn_of_the_session_and_the_result_is_the_last_ones(
    house: House, theirs: temporalio.client.Client
) -> None:
    """S-82: it is sent once."""
    body = Body()
    tester = Agent(name="tester", model="openai/scripted", tools=[body.held()])
    script = Script(replies=(call(("held", {})), say("first"), say("second")))
    async with ScriptedProvider(script) as provider, house.worker(tester), their_worker(theirs, house):
        house.use(provider)
        handle = await started(theirs, house, Conversation, agent="tester", prompt="go", session=house.session)
        await happened(body.started)
        await handle.signal(Conversation.order, "and then?")

        async def taken() -> bool:
            return bool((await house.temporal.get_workflow_handle(house.session).query("status"))["queued"])

        await eventually(taken)
        body.released.set()
        end = await ended(handle)
        assert (end["turn"], end["result"]["turn"], end["result"]["output"]) == (2, 2, "second")
    said = [message.content for message in await house.store.transcript(house.session) if message.role == "user"]
    assert said == ["go", "and then?"]


async def test_a_handle_cancels_its_turn_with_a_reason(house: House, theirs: temporalio.client.Client) -> None:
    """S-82."""
    hanging = say("late").after(faults.hang())
    async with ScriptedProvider(lambda _: hanging) as provider, house.worker(AGENT), their_worker(theirs, house):
        house.use(provider)
        handle = await started(theirs, house, Conversation, agent="tester", prompt="go", session=house.session)
        await provider.wait_for_requests(1)
        await handle.signal(Conversation.order, "cancel")
        result = (await ended(handle))["result"]
        assert result["stop_reason"] == "cancelled"
        assert "enough" in str(result)


@pytest.mark.parametrize("outlives", [False, True])
async def test_a_workflow_that_closes_cancels_its_turn_unless_that_outlives_it(
    house: House, theirs: temporalio.client.Client, *, outlives: bool
) -> None:
    """S-82."""
    slow = say("done").after(faults.delay(2.0)) if outlives else say("late").after(faults.hang())
    async with ScriptedProvider(lambda _: slow) as provider, house.worker(AGENT), their_worker(theirs, house):
        house.use(provider)
        asked = {"agent": "tester", "prompt": "go", "session": house.session, "outlives": outlives}
        handle = await started(theirs, house, Conversation, **asked)
        await provider.wait_for_requests(1)
        await handle.signal(Conversation.order, "close")
        assert await ended(handle) == {"session": house.session}

        async def result() -> Any:
            return (await house.store.turn(house.session, 1)).result

        assert (await eventually(result)).stop_reason == ("finished" if outlives else "cancelled")


async def test_a_workflow_that_closes_cancels_its_turn_in_a_later_history_too(
    house: House, theirs: temporalio.client.Client
) -> None:
    """S-82: Temporal's parent close policy reaches any run."""
    turn = Histories(house, 3)
    async with ScriptedProvider(turn.reply) as provider, house.worker(turn.agent), their_worker(theirs, house):
        house.use(provider)
        handle = await started(theirs, house, Conversation, agent="tester", prompt="go", session=house.session)
        await turn.reached(provider)
        await handle.signal(Conversation.order, "close")
        await ended(handle)

        async def result() -> Any:
            return (await house.store.turn(house.session, 3)).result

        await eventually(result)
        await turn.check_cancelled(provider)


async def test_a_terminated_turn_is_an_error_of_temporals(house: House, theirs: temporalio.client.Client) -> None:
    hanging = say("late").after(faults.hang())
    async with ScriptedProvider(lambda _: hanging) as provider, house.worker(AGENT), their_worker(theirs, house):
        house.use(provider)
        handle = await started(theirs, house, Single, agent="tester", prompt="go", session=house.session)
        await provider.wait_for_requests(1)
        await house.temporal.get_workflow_handle(house.session).terminate()
        assert isinstance(await failure_of(handle), ChildWorkflowError)


@pytest.mark.deep
def test_the_import_is_light() -> None:
    """S-82: a user's worker needs no store and no library of models."""
    code = (
        "import sys, perdure.workflow;"
        "print([name for name in ('litellm', 'sqlalchemy', 'mcp', 'httpx', 'starlette') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
