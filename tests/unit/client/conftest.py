"""A real server, a real store, and a stand-in for the agent's turn that ends when a test says so."""

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio import activity, workflow
from temporalio.exceptions import ActivityError, ApplicationError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from perdure.cli.server import EmbeddedServer
from perdure.client import Client
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.budgets import Spent
from perdure.contracts.errors import ReasonCode
from perdure.contracts.openings import OpenedTurn
from perdure.contracts.sends import QueuedMessage, SendReceipt, SendRequest
from perdure.contracts.turns import (
    CancelReceipt,
    CancelRequest,
    CommitTurn,
    Continuation,
    OpenTurn,
    RunState,
    StopReason,
    TurnResult,
    TurnStatus,
)
from perdure.contracts.values import JsonValue
from perdure.settings import Settings
from perdure.store import NotFoundError, Store

DEFINITION = AgentDefinition(name="writer", model="test/model")
SECONDS = timedelta(seconds=10)


class Bookkeeping:
    """The two activities of a turn, over the real store."""

    def __init__(self, store: Store) -> None:
        self.store = store

    @activity.defn
    async def open_turn(self, opening: OpenTurn) -> OpenedTurn:
        known = opening.request.agent == DEFINITION.name
        if opening.request.agent is None:
            try:
                await self.store.session(opening.session)
                known = True
            except NotFoundError as error:
                raise ApplicationError("no", type=ReasonCode.REQUEST_UNKNOWN_SESSION, non_retryable=True) from error
        if not known:
            raise ApplicationError("unknown agent", type=ReasonCode.REQUEST_UNKNOWN_AGENT, non_retryable=True)
        opened = await self.store.open_turn(opening, DEFINITION)
        return OpenedTurn(
            turn=opened.turn, tip=opened.tip, definition="d", policy=DEFINITION.policy(), ended=opened.ended
        )

    @activity.defn
    async def commit_turn(self, commit: CommitTurn) -> TurnResult:
        return (await self.store.commit_turn(commit)).result


@workflow.defn(name="AgentTurn")
class StandIn:
    """A turn whose prompt says what it does: ``hold`` waits for the signal ``finish``, ``crash`` fails, …

    ``linger`` ends, and waits for it then.
    """

    @workflow.init
    def __init__(self, request: Continuation) -> None:
        self.request = request
        self.turn: int | None = None
        self.refused = ""
        self.queued = list(request.queued)
        self.released = isinstance(request.carried, dict) and bool(request.carried["released"])
        self.cancelled = False

    @workflow.run
    async def run(self, request: Continuation) -> TurnResult:
        info = workflow.info()
        carried = request.carried if isinstance(request.carried, dict) else None
        opening = OpenTurn(
            session=info.workflow_id,
            request=request.model_copy(update={"queued": ()}),
            request_id=str(carried["turn"]["request_id"]) if carried else request.request_id or info.run_id,  # type: ignore[index,call-overload]
            run_started_at=info.start_time,
        )
        try:
            opened = await workflow.execute_activity_method(
                Bookkeeping.open_turn, opening, start_to_close_timeout=SECONDS
            )
        except ActivityError as error:
            self.refused = str(getattr(error.cause, "type", None))
            await workflow.wait_condition(workflow.all_handlers_finished)
            return self.refusal()
        if opened.ended is not None:
            self.refused = ReasonCode.REQUEST_INVALID
            await workflow.wait_condition(workflow.all_handlers_finished)
            return opened.ended
        self.turn = opened.turn
        if request.prompt.startswith("rotate") and carried is None:
            turn: JsonValue = {"turn": {"request_id": opening.request_id}, "released": self.released}
            workflow.continue_as_new(request.model_copy(update={"carried": turn}))
        if any(word in request.prompt for word in ("hold", "deaf", "crash")):
            await workflow.wait_condition(lambda: self.released or self.cancelled)
        if request.prompt.startswith("crash"):
            raise ApplicationError("the roof fell in", non_retryable=True)
        result = await workflow.execute_activity_method(
            Bookkeeping.commit_turn, self.commit(opened), start_to_close_timeout=SECONDS
        )
        if request.prompt.startswith("linger"):
            await workflow.wait_condition(lambda: self.released)
        if self.queued:
            first, *rest = self.queued
            workflow.continue_as_new(Continuation(prompt=first.prompt, request_id=first.request_id, queued=tuple(rest)))
        return result

    def refusal(self) -> TurnResult:
        session = workflow.info().workflow_id
        return TurnResult(
            session=session,
            turn=None,
            agent="",
            stop_reason=StopReason.ERROR,
            reason_code=self.refused,
            error="refused by the stand-in",
        )

    def commit(self, opened: OpenedTurn) -> CommitTurn:
        return CommitTurn(
            session=workflow.info().workflow_id,
            turn=opened.turn,
            tip=opened.tip,
            stop_reason=StopReason.CANCELLED if self.cancelled else StopReason.FINISHED,
            steps=0,
            spent=Spent(),
        )

    @workflow.signal
    def finish(self) -> None:
        self.released = True

    @workflow.signal(name="cancel")
    def cancel_by_signal(self, request: CancelRequest) -> None:
        self.cancelled = self.cancelled or request.turn in {None, self.turn}

    @workflow.update
    async def cancel(self, request: CancelRequest) -> CancelReceipt:
        await workflow.wait_condition(lambda: self.turn is not None)
        turn = self.turn or 0
        if request.turn not in {None, turn} or request.request_id not in {None, self.request.request_id}:
            raise ApplicationError(f"turn {turn} runs", type=ReasonCode.REQUEST_TURN_MISMATCH, non_retryable=True)
        self.cancelled = True
        return CancelReceipt(turn=turn)

    @workflow.update(unfinished_policy=workflow.HandlerUnfinishedPolicy.ABANDON)
    async def send(self, request: SendRequest) -> SendReceipt:
        await workflow.wait_condition(lambda: self.turn is not None or bool(self.refused))
        if self.refused:
            raise ApplicationError("refused", type=self.refused, non_retryable=True)
        if self.request.prompt.startswith("deaf"):
            self.released = True
            await workflow.wait_condition(lambda: False)
        turn = self.turn or 0
        if request.request_id == self.request.request_id or request.when_busy == "steer":
            return SendReceipt(turn=turn)
        if request.request_id not in [other.request_id for other in self.queued]:
            self.queued.append(QueuedMessage(prompt=request.prompt, request_id=request.request_id))
        places = [other.request_id for other in self.queued]
        return SendReceipt(turn=turn + 1 + places.index(request.request_id))

    @send.validator
    def check(self, request: SendRequest) -> None:
        if request.prompt == "too much":
            raise ApplicationError("too many messages wait", type=ReasonCode.REQUEST_TOO_LARGE, non_retryable=True)

    @workflow.query
    def status(self) -> TurnStatus:
        return TurnStatus(
            session=workflow.info().workflow_id,
            turn=self.turn,
            agent="writer",
            model="test/model",
            state=RunState.RUNNING,
            step=0,
            max_steps=1,
            activity="wait",
            queued=len(self.queued),
            cancelling=self.cancelled,
            spent=Spent(),
        )


@pytest.fixture
async def store_url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/store.db"
    await (await Store.open(url, upgrade=True)).close()
    return url


@pytest.fixture
async def client(
    server: EmbeddedServer, store_url: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> AsyncIterator[Client]:
    monkeypatch.setenv("TEMPORAL_ADDRESS", server.address)
    settings = Settings(store_url=store_url, task_queue=f"queue-{request.node.name}")
    async with await Client.connect(settings) as connected:
        yield connected


@pytest.fixture
async def worker(client: Client) -> AsyncIterator[Worker]:
    store = await Store.open(client.settings.store_url)
    books = Bookkeeping(store)
    running = Worker(
        client.temporal,
        task_queue=client.settings.task_queue,
        workflows=[StandIn],
        activities=[books.open_turn, books.commit_turn],
        workflow_runner=UnsandboxedWorkflowRunner(),
        debug_mode=True,  # busy is not stuck
    )
    async with running:
        yield running
    await store.close()


@pytest.fixture
async def worker_with_another_store(client: Client, tmp_path: Path) -> AsyncIterator[Client]:
    """A client whose store is not the one the worker writes to."""
    url = f"sqlite:///{tmp_path}/other.db"
    store = await Store.open(url, upgrade=True)
    books = Bookkeeping(store)
    async with Worker(
        client.temporal,
        task_queue=client.settings.task_queue,
        workflows=[StandIn],
        activities=[books.open_turn, books.commit_turn],
        workflow_runner=UnsandboxedWorkflowRunner(),
        debug_mode=True,  # busy is not stuck
    ):
        yield client
    await store.close()
