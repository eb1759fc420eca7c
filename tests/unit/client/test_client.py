import asyncio
import uuid
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import WorkflowExecutionStatus

from perdure.cli.server import EmbeddedServer, ServerOptions
from perdure.client import (
    Client,
    NoWorkerError,
    RequestRefusedError,
    ServerUnreachableError,
    SessionBusyError,
    SessionErasedError,
    SessionIdleError,
    Turn,
    TurnClosedError,
    UnknownSessionError,
    WrongTurnError,
    updates,
)
from perdure.client import (
    sessions as client_sessions,
)
from perdure.client.executions import Close, Runs
from perdure.client.requests import turn_request
from perdure.contracts.turns import StopReason, TurnRequest
from perdure.local_ports import find_free_port
from perdure.settings import Settings

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def session() -> str:
    return f"job-{uuid.uuid4().hex[:8]}"


async def finish(client: Client, turn: Turn) -> None:
    await turn.number()
    await client.temporal.get_workflow_handle(turn.session).signal("finish")


async def types(turn: Turn, after: int = 0) -> list[str]:
    return [envelope.event.type async for envelope in turn.events(after=after)]


@pytest.mark.usefixtures("worker")
async def test_a_turn_gives_its_number_its_events_and_its_result(client: Client) -> None:
    turn = await client.start("writer", "go")
    assert turn.session.startswith("writer-")
    events = [envelope async for envelope in turn.events()]
    assert [envelope.seq for envelope in events] == list(range(1, len(events) + 1))
    assert (events[0].event.type, events[-1].event.type) == ("agent_start", "agent_end")
    result = await turn.result()
    assert (result.session, result.turn, result.stop_reason) == (turn.session, 1, StopReason.FINISHED)
    assert turn.turn == await turn.number() == 1
    assert await types(turn, after=1) == [envelope.event.type for envelope in events[1:]]
    assert await types(turn, after=events[-1].seq) == []


@pytest.mark.usefixtures("worker")
async def test_the_workflow_names_agent_and_limits_and_no_word_of_the_prompt(client: Client, session: str) -> None:
    await (await client.start("writer", "hunter2", session=session, model="openai/other", max_steps=7)).result()
    description = await client.temporal.get_workflow_handle(session).describe()
    assert await description.static_summary() == "writer · openai/other · at most 7 steps"
    details = await description.static_details()
    assert details is not None
    assert f"perdure show {session}" in details
    assert "hunter2" not in details


@pytest.mark.usefixtures("worker")
async def test_starting_again_with_the_same_request_is_the_same_turn(client: Client, session: str) -> None:
    first = await client.start("writer", "hold", session=session, request_id="r-1")
    while_running = await client.start("writer", "hold", session=session, request_id="r-1")
    await finish(client, first)
    assert (await while_running.result()).turn == 1
    when_ended = await client.start("writer", "hold", session=session, request_id="r-1")
    assert (await when_ended.result()).turn == 1
    assert len(await client.turns(session)) == 1


@pytest.mark.usefixtures("worker")
async def test_a_busy_session_refuses_another_start_and_says_what_to_do(client: Client, session: str) -> None:
    first = await client.start("writer", "hold", session=session)
    await first.number()
    with pytest.raises(SessionBusyError, match=f"'{session}' is running turn 1; .*perdure send {session}"):
        await client.start("writer", "more", session=session)
    await finish(client, first)
    await first.result()


def note_close(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Set once somebody asks for the last hooks of a turn to end."""
    met, close = asyncio.Event(), runs.close

    async def closing(session: str, run_id: str) -> Close:
        met.set()
        return await close(session, run_id)

    monkeypatch.setattr(runs, "close", closing)
    return met


@pytest.mark.usefixtures("worker")
async def test_a_turn_starts_behind_one_that_has_ended_and_runs_its_last_hooks(
    client: Client, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has read the end of a turn may start the next one."""
    met = note_close(client._runs, monkeypatch)
    first = await client.start("writer", "linger", session=session)
    assert (await types(first))[-1] == "agent_end"
    assert (await first.result()).turn == 1
    starting = asyncio.create_task(client.start("writer", "go", session=session))
    await asyncio.wait({starting, asyncio.create_task(met.wait())}, return_when=asyncio.FIRST_COMPLETED)
    await finish(client, first)
    assert (await (await starting).result()).turn == 2


@pytest.mark.usefixtures("worker")
async def test_a_turn_whose_last_hooks_do_not_end_counts_as_running(
    client: Client, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_sessions, "CLOSING_TIMEOUT", timedelta(seconds=0.2))
    first = await client.start("writer", "linger", session=session)
    assert (await types(first))[-1] == "agent_end"
    with pytest.raises(SessionBusyError, match=f"perdure send {session}"):
        await client.start("writer", "go", session=session)
    await finish(client, first)


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize("next_turn", ["", "hold"], ids=["nothing waits", "a message waits"])
async def test_a_session_is_erased_behind_a_turn_that_has_ended_and_runs_its_last_hooks(
    client: Client, session: str, monkeypatch: pytest.MonkeyPatch, next_turn: str
) -> None:
    """Whoever has read the end of a turn may erase its session; unless a message waited there, whose turn runs then."""
    first = await client.start("writer", "linger", session=session)
    assert (await types(first))[-1] == "agent_end"
    second = await client.send(session, next_turn) if next_turn else None
    met = note_close(client._sessions.runs, monkeypatch)
    erasing = asyncio.create_task(client.delete(session))
    await asyncio.wait({erasing, asyncio.create_task(met.wait())}, return_when=asyncio.FIRST_COMPLETED)
    assert met.is_set()
    await finish(client, first)
    if second is None:
        assert (await erasing).session == session
    else:
        with pytest.raises(SessionBusyError, match=f"end it with 'perdure cancel {session} --drop-queue'"):
            await erasing
        await finish(client, second)
        await second.result()
        await client.delete(session)
    with pytest.raises(SessionErasedError):
        await client.transcript(session)


@pytest.mark.usefixtures("worker")
async def test_a_session_whose_last_hooks_do_not_end_is_not_erased_and_no_cancel_is_advised(
    client: Client, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_sessions, "CLOSING_TIMEOUT", timedelta(seconds=0.2))
    first = await client.start("writer", "linger", session=session)
    assert (await types(first))[-1] == "agent_end"
    with pytest.raises(
        SessionBusyError, match=f"turn 1 of session '{session}' has ended, and its last hooks run"
    ) as busy:
        await client.delete(session)
    assert "cancel" not in str(busy.value)
    await finish(client, first)


@pytest.mark.usefixtures("worker")
async def test_a_message_to_a_busy_session_becomes_the_next_turn(client: Client, session: str) -> None:
    first = await client.start("writer", "hold", session=session)
    await first.number()
    second = await client.send(session, "second")
    third = await client.send(session, "third")
    again = await client.send(session, "third", request_id=third.request_id)
    assert (second.turn, third.turn, again.turn) == (2, 3, 3)
    following = asyncio.create_task(types(third))
    await finish(client, first)
    assert [(await turn.result()).turn for turn in (third, second, first)] == [3, 2, 1]
    assert (await following)[0] == "agent_start"
    assert [envelope.turn async for envelope in second.events()] == [2] * len(await types(second))


@pytest.mark.usefixtures("worker")
async def test_a_message_can_steer_the_running_turn(client: Client, session: str) -> None:
    first = await client.start("writer", "hold", session=session)
    await first.number()
    assert (await client.send(session, "look left", when_busy="steer")).turn == 1
    await finish(client, first)


@pytest.mark.usefixtures("worker")
async def test_a_message_to_an_idle_session_starts_its_next_turn(client: Client, session: str) -> None:
    await (await client.start("writer", "go", session=session)).result()
    second = await client.send(session, "and on", request_id="r-2")
    assert (await second.result()).turn == 2
    again = await client.send(session, "and on", request_id="r-2")
    assert (again.turn, (await again.result()).turn) == (2, 2)
    assert len(await client.turns(session)) == 2


@pytest.mark.usefixtures("worker")
async def test_a_message_that_meets_the_end_of_a_turn_is_sent_again(client: Client, session: str) -> None:
    first = await client.start("writer", "deaf", session=session)
    await first.number()
    second = await client.send(session, "still there?")
    assert (await first.result()).turn == 1
    assert (await second.result()).turn == 2


@pytest.mark.usefixtures("worker")
async def test_messages_that_race_with_the_end_are_each_carried_out_once(client: Client, session: str) -> None:
    first = await client.start("writer", "hold", session=session)
    await first.number()
    sending = [asyncio.create_task(client.send(session, f"message {number}")) for number in range(8)]
    await finish(client, first)
    turns = [await task for task in sending]
    assert sorted([(await turn.result()).turn or 0 for turn in turns]) == list(range(2, 10))
    assert len(await client.turns(session)) == 9


@pytest.mark.usefixtures("worker")
async def test_nothing_is_sent_to_a_session_that_nobody_knows(client: Client, session: str) -> None:
    with pytest.raises(UnknownSessionError, match=session):
        await client.send(session, "hello")
    with pytest.raises(UnknownSessionError, match=session):
        await client.cancel(session)
    with pytest.raises(UnknownSessionError, match=session):
        await client.attach(session)
    with pytest.raises(UnknownSessionError, match=session):
        await client.status(session)
    assert [found async for found in client.temporal.list_workflows(f'WorkflowId = "{session}"')] == []


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": "x" * 2_000_000}, "prompt"),
        ({"prompt": "go", "session": "a/b"}, "session id"),
        ({"prompt": "go", "session": "a\n"}, "session id"),
        ({"prompt": "go", "max_steps": 0}, "max_steps"),
    ],
)
async def test_a_request_that_is_not_valid_is_refused_in_one_line(
    client: Client, fields: dict[str, object], message: str
) -> None:
    with pytest.raises(RequestRefusedError, match=message) as caught:
        await client.start("writer", **fields)  # type: ignore[arg-type]
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 500


@pytest.mark.usefixtures("worker")
async def test_a_message_the_turn_refuses_is_an_error_with_its_reason(client: Client, session: str) -> None:
    first = await client.start("writer", "hold", session=session)
    with pytest.raises(RequestRefusedError, match="too many messages wait"):
        await client.send(session, "too much")
    await finish(client, first)


@pytest.mark.usefixtures("worker")
async def test_a_turn_that_is_refused_has_a_result_no_number_and_no_events(client: Client, session: str) -> None:
    turn = await client.start("nobody", "go", session=session)
    assert await types(turn) == []
    result = await turn.result()
    assert (result.turn, result.reason_code) == (None, "request.unknown_agent")
    assert await turn.number() is None


@pytest.mark.usefixtures("worker")
async def test_a_rotated_turn_stays_the_same_turn(client: Client, session: str) -> None:
    turn = await client.start("writer", "rotate", session=session)
    assert (await turn.result()).turn == 1
    assert (await types(turn))[-1] == "agent_end"
    same = await client.attach(session)
    assert (await same.result()).turn == 1


@pytest.mark.usefixtures("worker")
async def test_cancel_stops_the_turn_it_names_and_leaves_an_idle_session(client: Client, session: str) -> None:
    turn = await client.start("writer", "hold", session=session)
    await turn.number()
    with pytest.raises(WrongTurnError, match="turn 1 runs"):
        await client.cancel(session, "wrong turn", turn=7)
    assert (await client.status(session)).cancelling is False
    assert await turn.cancel("enough")
    assert (await turn.result()).stop_reason == StopReason.CANCELLED
    await client.temporal.get_workflow_handle(session).result()
    assert await client.cancel(session) is False
    with pytest.raises(SessionIdleError, match="perdure show"):
        await client.status(session)


@pytest.mark.usefixtures("worker")
async def test_attach_finds_the_running_turn_the_last_one_and_any_other(client: Client, session: str) -> None:
    first = await client.start("writer", "hold", session=session)
    running = await client.attach(session)
    assert await running.number() == 1
    await finish(client, first)
    await client.temporal.get_workflow_handle(session).result()
    await (await client.send(session, "next")).result()
    assert (await (await client.attach(session)).result()).turn == 2
    assert (await (await client.attach(session, 1)).result()).turn == 1
    with pytest.raises(UnknownSessionError, match="no turn 9; its last is 2"):
        await client.attach(session, 9)


@pytest.mark.usefixtures("worker")
async def test_attach_finds_a_turn_that_the_stock_client_started(client: Client, session: str) -> None:
    await client.temporal.start_workflow(
        "AgentTurn", {"agent": "writer", "prompt": "rotate hold"}, id=session, task_queue=client.settings.task_queue
    )
    turn = await client.attach(session)
    await finish(client, turn)
    assert (await turn.result()).turn == 1


@pytest.mark.usefixtures("worker")
async def test_a_terminated_turn_is_an_error_with_the_reason(client: Client, session: str) -> None:
    turn = await client.start("writer", "hold", session=session)
    following = asyncio.create_task(types(turn))
    await turn.number()
    await client.temporal.get_workflow_handle(session).terminate(reason="an operator did it")
    with pytest.raises(TurnClosedError, match="terminated: an operator did it"):
        await turn.result()
    with pytest.raises(TurnClosedError, match="terminated: an operator did it"):
        await following


@pytest.mark.usefixtures("worker")
async def test_a_failed_workflow_is_an_error_with_its_message(client: Client, session: str) -> None:
    turn = await client.start("writer", "crash", session=session)
    await finish(client, turn)
    with pytest.raises(TurnClosedError, match="failed: the roof fell in"):
        await turn.result()


@pytest.mark.usefixtures("worker")
async def test_a_turn_that_an_operator_reset_is_followed_into_its_new_run(client: Client, session: str) -> None:
    turn = await client.start("writer", "hold", session=session)
    await turn.number()
    waiting = asyncio.create_task(turn.result())
    description = await client.temporal.get_workflow_handle(session).describe()
    await client.temporal.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=client.temporal.namespace,
            workflow_execution=WorkflowExecution(workflow_id=session, run_id=description.run_id),
            workflow_task_finish_event_id=4,
            request_id=uuid.uuid4().hex,
        ),
        retry=True,
    )
    await client.temporal.get_workflow_handle(session).signal("finish")
    assert (await waiting).turn == 1


async def test_a_queue_without_a_worker_is_named_before_anything_waits(
    client: Client, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NoWorkerError, match=client.settings.task_queue):
        await client.check_worker()
    await client.start("writer", "go", session=session)
    monkeypatch.setattr(updates, "TIMEOUT", timedelta(seconds=0.2))
    with pytest.raises(NoWorkerError, match=client.settings.task_queue):
        await client.send(session, "anybody?")
    await client.temporal.get_workflow_handle(session).terminate()


@pytest.mark.usefixtures("worker")
async def test_a_queue_with_a_worker_passes(client: Client, session: str) -> None:
    await (await client.start("writer", "go", session=session)).result()
    await client.check_worker()


async def test_a_store_that_is_not_the_workers_is_named(worker_with_another_store: Client, session: str) -> None:
    turn = await worker_with_another_store.start("writer", "go", session=session)
    with pytest.raises(TurnClosedError, match="PERDURE_STORE_URL"):
        await types(turn)


async def test_an_address_where_nothing_answers_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    address = f"127.0.0.1:{find_free_port()}"
    monkeypatch.setenv("TEMPORAL_ADDRESS", address)
    with pytest.raises(ServerUnreachableError, match=f"{address}; start one with 'perdure dev'"):
        await Client.connect()


@pytest.fixture(scope="module")
def slow_server() -> Iterator[EmbeddedServer]:
    shipped = {"history.workflowIdReuseMinimalInterval": '"1s"'}
    embedded = EmbeddedServer(ServerOptions(port=find_free_port(), dynamic_config=shipped))
    asyncio.run(embedded.start())
    yield embedded
    asyncio.run(embedded.stop())


@pytest.mark.deep
async def test_a_server_that_refuses_a_second_run_within_a_second_is_waited_for(
    slow_server: EmbeddedServer, store_url: str, monkeypatch: pytest.MonkeyPatch, session: str
) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", slow_server.address)
    async with await Client.connect(Settings(store_url=store_url)) as client:
        for number in range(3):
            await client.start("writer", f"go {number}", session=session)
            await client.temporal.get_workflow_handle(session).terminate()
        runs = [run async for run in client.temporal.list_workflows(f'WorkflowId = "{session}"')]
    assert {run.status for run in runs} <= {WorkflowExecutionStatus.TERMINATED, WorkflowExecutionStatus.RUNNING}


def test_a_request_carries_only_what_was_given() -> None:
    request = turn_request("s", {"agent": "a", "prompt": "p", "model": None, "tenant": ""})
    assert request.model_dump(exclude_unset=True).keys() == {"agent", "prompt", "request_id"}
    assert isinstance(request, TurnRequest)


@pytest.mark.parametrize(
    ("prompt", "options", "said"),
    [
        ("go", {"max_step": 3}, "max_step: there is no such option; did you mean 'max_steps'?"),
        ("go", {"colour": 3}, "colour: there is no such option; the options are budgets, "),
        (3, {}, "prompt: an int is no prompt; give a text, or a list of texts, images and files"),
        (None, {}, "prompt: a NoneType is no prompt"),
        (b"go", {}, "prompt: a bytes is no prompt"),
    ],
)
async def test_a_slip_of_the_pen_is_told_before_anything_is_sent(
    client: Client, prompt: Any, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(RequestRefusedError) as refusal:
        await client.start("writer", prompt, **options)
    assert str(refusal.value).startswith(said)
