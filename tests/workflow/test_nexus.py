"""Agents for workflows of another namespace (S-82): by operations of the Nexus service."""

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import temporalio.client
from google.protobuf.duration_pb2 import Duration
from temporalio.api.nexus.v1 import EndpointSpec, EndpointTarget
from temporalio.api.operatorservice.v1 import CreateNexusEndpointRequest, DeleteNexusEndpointRequest
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest
from temporalio.exceptions import CancelledError, NexusOperationError
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import Replayer, Worker

from perdure import Agent, ask_user, tool
from perdure.client import UnknownSessionError
from perdure.testing import Script, ScriptedProvider, call, faults, say
from tests.house import House, eventually
from tests.workflow.test_from_workflows import Histories, ended, failure_of
from tests.workflow.workflows_of_users import Conversation, Operation, Single

NAMESPACE = "callers"


@tool(requires_approval=True)
def pay(amount: int) -> str:
    """Pay an amount in dollars."""
    return f"paid {amount}"


WORKFLOWS = [Single, Conversation, Operation]


@pytest.fixture
async def theirs(house: House) -> temporalio.client.Client:
    """A client of the callers' namespace; the workers of this test serve the Nexus service."""
    house.settings = house.settings.model_copy(update={"doors": ("nexus",)})
    request = RegisterNamespaceRequest(
        namespace=NAMESPACE, workflow_execution_retention_period=Duration(seconds=3 * 24 * 3600)
    )
    try:
        await house.temporal.workflow_service.register_namespace(request, retry=True)
    except RPCError as error:
        if error.status != RPCStatusCode.ALREADY_EXISTS:
            raise
    return await temporalio.client.Client.connect(house.server.address, namespace=NAMESPACE)


class Callers:
    """A worker of the callers' namespace, and an endpoint that leads from there to perdure's workers."""

    def __init__(self, client: temporalio.client.Client, endpoint: str) -> None:
        self.client = client
        self.endpoint = endpoint

    async def start(self, kind: Any, *arguments: Any) -> Any:
        return await self.client.start_workflow(
            kind.run, args=arguments, id=f"caller-{uuid.uuid4().hex}", task_queue=self.endpoint
        )

    async def operate(self, operation: str, **fields: Any) -> Any:
        return await ended(await self.start(Operation, self.endpoint, operation, fields))

    async def refusal(self, operation: str, **fields: Any) -> Any:
        """Kind and text of the error with which an operation fails."""
        cause = await failure_of(await self.start(Operation, self.endpoint, operation, fields))
        assert isinstance(cause, NexusOperationError)
        return cause.cause


@asynccontextmanager
async def callers(house: House, client: temporalio.client.Client) -> AsyncIterator[Callers]:
    endpoint = f"e{uuid.uuid4().hex}"
    target = EndpointTarget(
        worker=EndpointTarget.Worker(namespace=house.temporal.namespace, task_queue=house.settings.task_queue)
    )
    made = await house.temporal.operator_service.create_nexus_endpoint(
        CreateNexusEndpointRequest(spec=EndpointSpec(name=endpoint, target=target)), retry=True
    )
    try:
        async with (
            Worker(client, task_queue=endpoint, workflows=WORKFLOWS, max_cached_workflows=0),
        ):
            yield Callers(client, endpoint)
    finally:
        await house.temporal.operator_service.delete_nexus_endpoint(
            DeleteNexusEndpointRequest(id=made.endpoint.id, version=made.endpoint.version), retry=True
        )


def agent(*tools: Any) -> Agent:
    return Agent(name="tester", model="openai/scripted", tools=tools)


async def test_a_workflow_of_another_namespace_runs_an_agent_and_replays(
    house: House, theirs: temporalio.client.Client
) -> None:
    """S-82: the turn is linked with its caller."""
    async with ScriptedProvider(Script(replies=(say("hello"),))) as provider, house.worker(agent()):
        house.use(provider)
        async with callers(house, theirs) as caller:
            asked = {"agent": "tester", "prompt": "go", "endpoint": caller.endpoint, "session": house.session}
            handle = await caller.start(Single, asked)
            result = await ended(handle)
            assert (result["stop_reason"], result["output"]) == ("finished", "hello")
        history = await handle.fetch_history()
        await Replayer(workflows=WORKFLOWS).replay_workflow(history)
    started = (await house.temporal.get_workflow_handle(house.session).fetch_history()).events[0]
    (callback,) = started.workflow_execution_started_event_attributes.completion_callbacks
    links = [link.workflow_event.workflow_id for link in callback.links]
    assert links == [handle.id]


async def test_a_cancel_of_the_caller_cancels_the_turn_first(house: House, theirs: temporalio.client.Client) -> None:
    """S-82."""
    hanging = say("late").after(faults.hang())
    async with ScriptedProvider(lambda _: hanging) as provider, house.worker(agent()):
        house.use(provider)
        async with callers(house, theirs) as caller:
            asked = {"agent": "tester", "prompt": "go", "endpoint": caller.endpoint, "session": house.session}
            handle = await caller.start(Single, asked)
            await provider.wait_for_requests(1)
            await handle.cancel()
            cause = await failure_of(handle)
            assert isinstance(cause, CancelledError) or isinstance(getattr(cause, "cause", None), CancelledError)
            result = (await house.store.turn(house.session, 1)).result
            assert result is not None
            assert result.stop_reason == "cancelled"


@pytest.mark.parametrize("number", [2, 3])
async def test_a_cancel_reaches_the_history_in_which_the_turn_is_now(
    house: House, theirs: temporalio.client.Client, number: int
) -> None:
    """S-82."""
    turn = Histories(house, number)
    async with ScriptedProvider(turn.reply) as provider, house.worker(turn.agent):
        house.use(provider)
        async with callers(house, theirs) as caller:
            asked = {"agent": "tester", "prompt": "go", "endpoint": caller.endpoint, "session": house.session}
            handle = await caller.start(Single, asked)
            await turn.reached(provider)
            await handle.cancel()
            cause = await failure_of(handle)
            assert isinstance(cause, CancelledError) or isinstance(getattr(cause, "cause", None), CancelledError)
            await turn.check_cancelled(provider)


async def test_questions_approvals_and_messages_go_through_the_service(
    house: House, theirs: temporalio.client.Client
) -> None:
    """S-82: each operation has the name of the update and its fields."""
    script = Script(
        replies=(
            call(("ask_user", {"question": "Which?"})),
            call(("pay", {"amount": 5})),
            call(("pay", {"amount": 6})),
            say("done"),
            say("again"),
        )
    )
    async with ScriptedProvider(script) as provider, house.worker(agent(ask_user, pay)):
        house.use(provider)
        async with callers(house, theirs) as caller:
            session = house.session
            asked = {"agent": "tester", "prompt": "go", "endpoint": caller.endpoint, "session": session}
            handle = await caller.start(Single, asked)

            seen = set[str]()

            async def request() -> str | None:
                """One that nobody has replied to: the inbox has a reply's request for a moment longer."""
                new = [each.request_id for each in await house.client.inbox(session) if each.request_id not in seen]
                seen.update(new)
                return new[0] if new else None

            question = await eventually(request)
            refused = await caller.refusal("approve", session=session, request=question, by="them")
            assert "BAD_REQUEST" in str(refused.type)
            beside = {"prompt": "be quick", "when_busy": "steer"}
            await caller.operate("answer", session=session, request=question, value="this", by="them", message=beside)
            for operation, more in (("approve", {}), ("deny", {"reason": "too much"})):
                fields = {"session": session, "request": await eventually(request), "by": "them", **more}
                receipt = await caller.operate(operation, **fields)
                assert receipt["request_id"] == fields["request"]
            assert (await ended(handle))["output"] == "done"
            users = [each["content"] for each in provider.requests[-1].request.messages if each["role"] == "user"]
            assert users == ["go", "be quick"]
            assert await caller.operate("send", session=session, prompt="more") == {"turn": 2}
            await house.wait_for_event("agent_end", 2)
            assert await caller.operate("cancel", session=session) == {"stops": False}


async def test_a_session_that_temporal_knows_and_the_store_does_not_is_a_missing_one(house: House) -> None:
    """A message to it starts its workflow, which finds nothing; the refusal is the one for an unknown session."""
    await (await house.start()).terminate()
    async with house.worker(agent()):
        with pytest.raises(UnknownSessionError):
            await house.client.send(house.session, "x")


@pytest.mark.parametrize(
    ("operation", "fields", "kind", "said"),
    [
        ("start", {"agent": "tester"}, "BAD_REQUEST", "prompt: is needed"),
        ("start", {"agent": "tester", "prompt": "x", "session": "a b"}, "BAD_REQUEST", "is no session id"),
        ("start", {"agent": "tester", "prompt": "x", "session": "perdure:x"}, "BAD_REQUEST", "are perdure's own"),
        ("start", {"agent": "tester", "prompt": "x", "nonsense": 1}, "BAD_REQUEST", "nonsense"),
        ("send", {"session": "gone", "prompt": "x"}, "NOT_FOUND", "gone"),
        ("send", {"prompt": "x"}, "BAD_REQUEST", "session: is needed"),
        ("cancel", {"session": "gone", "turn": "one"}, "BAD_REQUEST", "turn: "),
        ("answer", {"session": "gone", "request": "r", "value": 1}, "NOT_FOUND", "gone"),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_a_bad_operation_is_refused_with_a_kind_that_is_not_tried_again(
    house: House, theirs: temporalio.client.Client, operation: str, fields: dict[str, Any], kind: str, said: str
) -> None:
    async with house.worker(agent()), callers(house, theirs) as caller:
        refused = await caller.refusal(operation, **fields)
        assert kind in str(refused.type)
        assert said in str(refused)


async def test_an_error_that_closes_the_turn_as_failed_is_a_result_all_the_same(
    house: House, theirs: temporalio.client.Client
) -> None:
    async with ScriptedProvider(always=faults.status(401)) as provider, house.worker(agent(), fail_workflows=True):
        house.use(provider)
        async with callers(house, theirs) as caller:
            handle = await caller.start(Single, {"agent": "tester", "prompt": "go", "endpoint": caller.endpoint})
            assert (await ended(handle))["reason_code"] == "llm.auth_error"
