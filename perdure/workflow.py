"""Agents as parts of your own Temporal workflows: turns are child workflows, and budgets may be shared by several.

A workflow's sandbox takes this module: it reads no file, knows no store and imports neither litellm nor the client. The
calling worker needs no setting of perdure's. If payloads are encrypted, it needs the same codec.
"""

import asyncio
import contextlib
from collections.abc import Generator
from decimal import Decimal
from typing import Any, Unpack

from temporalio import workflow
from temporalio.common import Priority
from temporalio.exceptions import ApplicationError, ChildWorkflowError, FailureError, NexusOperationError

with workflow.unsafe.imports_passed_through():
    from pydantic import ValidationError

    from perdure.contracts.budgets import Budgets, Spent
    from perdure.contracts.dimensions import COUNTED
    from perdure.contracts.errors import ErrorDetail, ReasonCode
    from perdure.contracts.ids import slug_of
    from perdure.contracts.names import AGENT_TURN, DEFAULT_TASK_QUEUE, KNOCK, NEXUS_SERVICE, Signal
    from perdure.contracts.queues import fairness_key_of
    from perdure.contracts.schedules import Knocked
    from perdure.contracts.sends import WhenBusy
    from perdure.contracts.turn_options import TurnOptions
    from perdure.contracts.turns import TurnRequest, TurnResult
    from perdure.contracts.values import JsonValue, describe_mistake
    from perdure.engine import limits

__all__ = ["AgentHandle", "AgentOptions", "SharedBudget", "run_agent", "start_agent"]

LONGEST_SUMMARY = 100
"""Characters of an agent's name that Temporal's UI shows beside the turn."""

RANDOM_DIGITS = 12
"""Hexadecimal digits behind the agent's name in the id of a new session."""


class AgentOptions(TurnOptions, total=False):
    """Options of a turn that a workflow starts, beside those of any turn.

    Attributes:
        session: Session of the turn, which is the child workflow's id; None is a new one.
        shared: Budget that the turn shares with others, in place of ``budgets``.
        task_queue: Task queue of perdure's workers, in the namespace of the calling workflow; by default ``perdure``.
        endpoint: Nexus endpoint of perdure's workers in another namespace, in place of ``task_queue``: the turn is then
            an operation, and no child workflow.
        outlives: Whether the turn goes on when the calling workflow closes or continues as new. By default a child is
            then cancelled. A turn through an endpoint always goes on.
    """

    session: str | None
    shared: "SharedBudget | None"
    task_queue: str
    endpoint: str | None
    outlives: bool


async def run_agent(agent: str, prompt: str, **options: Unpack[AgentOptions]) -> TurnResult:
    """Run a turn of an agent as a child workflow, and return its result, whatever its stop reason.

    If the calling workflow is cancelled meanwhile, the turn is cancelled first, whatever run it is in.

    Example::

        @workflow.defn
        class Report:
            @workflow.run
            async def run(self, topic: str) -> str:
                result = await run_agent("writer", f"Write about {topic}.", budgets=Budgets(cost_usd="0.50"))
                return result.output

    Args:
        agent: Name of an agent of perdure's workers.
        prompt: What the agent is to do.
        options: See :class:`AgentOptions`.

    Raises:
        ApplicationError: The request is not valid (type ``request.invalid``), or nothing is left of the shared budget
            (type ``budget.…_exhausted``). No turn was started.
        WorkflowAlreadyStartedError: A turn of this session runs.
        ChildWorkflowError: Temporal closed the turn without a result: its cause says whether it was cancelled,
            terminated or timed out.
        NexusOperationError: Each of the last two, and whatever an endpoint refuses, if the turn is an operation.
        asyncio.CancelledError: The wait was cancelled, and the turn has ended.
    """
    return await (await start_agent(agent, prompt, **options)).result()


async def start_agent(agent: str, prompt: str, **options: Unpack[AgentOptions]) -> "AgentHandle":
    """Start a turn of an agent as a child workflow; options and errors are those of :func:`run_agent`."""
    request = _make_request(agent, prompt, options)
    session = options.get("session") or f"{slug_of(agent)}-{workflow.uuid4().hex[:RANDOM_DIGITS]}"
    shared = options.get("shared")
    grant = None if shared is None else await shared.reserve()
    if grant is not None:
        request = request.model_copy(update={"budgets": grant})
    try:
        place = _ChildTurn if options.get("endpoint") is None else _NexusTurn
        turn: _ChildTurn | _NexusTurn = await place.start(session, request, options)
    except BaseException:
        if shared is not None and grant is not None:
            shared.give_back(grant, Spent())
        raise
    return AgentHandle(turn, shared, grant)


class AgentHandle:
    """A turn that the calling workflow has started.

    Attributes:
        session: The turn's session, which is the child workflow's id.
    """

    def __init__(self, turn: "_ChildTurn | _NexusTurn", shared: "SharedBudget | None", grant: Budgets | None) -> None:
        self.session = turn.session
        self._turn = turn
        self._has_sent = False
        self._end = asyncio.create_task(self._wait(shared, grant))

    def __await__(self) -> Generator[Any, None, TurnResult]:
        """Wait for the result, as :meth:`result` does."""
        return self._end.__await__()

    async def result(self) -> TurnResult:
        """Wait until the turn has ended. If the calling workflow is cancelled meanwhile, the turn is cancelled first.

        Messages that came meanwhile are turns after this one: the result is then the last one's.

        Raises:
            ChildWorkflowError: Temporal closed the turn without a result.
            asyncio.CancelledError: The wait was cancelled, and the turn has ended.
        """
        return await self._end

    async def cancel(self, reason: str = "") -> None:
        """Ask the turn to stop: its stop reason is then ``cancelled``. A turn that has ended stays as it is."""
        await self._turn.cancel({"reason": reason})

    async def send(self, prompt: str, *, when_busy: WhenBusy = "queue", by: str = "") -> int | None:
        """Send a message to the session, and return the number of the turn that takes it.

        None stands for a message that a busy session rejected (``when_busy="reject"``). A message to a child is a child
        workflow too, ``Knock``, as that of a schedule is. It is sent once, whatever fails meanwhile. Its turn has the
        agent's own budgets, and what it uses is not charged to a shared one.

        Raises:
            ChildWorkflowError, NexusOperationError: The message was refused; the cause says why.
        """
        self._has_sent = True
        return await self._turn.send({"prompt": prompt, "when_busy": when_busy, "by": by})

    async def _wait(self, shared: "SharedBudget | None", grant: Budgets | None) -> TurnResult:
        """The result, once what the turn has not used is given back; the use of a turn before the last is unknown."""
        spent: Spent | None = None
        try:
            result = await _result_of(self._turn)
            if not self._has_sent:
                spent = result.spent or Spent()
            return result
        finally:
            if shared is not None and grant is not None:
                shared.give_back(grant, spent)


class SharedBudget:
    """Budgets of several turns together: of those that run at once each gets an equal share of what is left.

    A share is reserved while its turn runs, and what the turn does not use comes back. A turn without a share waits for
    one, so at most ``at_once`` turns run. A turn that Temporal closed without a result counts as its whole share.
    ``seconds`` and ``depth`` are each turn's own.

    Example::

        shared = SharedBudget(Budgets(cost_usd="3.00"), at_once=3)
        drafts = await asyncio.gather(*(run_agent("writer", part, shared=shared) for part in parts))

    Attributes:
        budgets: The limits.
        at_once: Number of shares.
        spent: Use of the turns that have ended.
    """

    def __init__(self, budgets: Budgets, *, at_once: int = 1) -> None:
        if at_once < 1:
            msg = f"at_once: is the number of turns that may run at once, 1 or more (got {at_once})"
            raise ValueError(msg)
        if budgets.scope == "session":
            msg = "budgets: the scope 'session' is a session's own; share budgets without a scope"
            raise ValueError(msg)
        self.budgets = budgets
        self.at_once = at_once
        self.spent = Spent()
        self._reserved: list[Budgets] = []

    def share(self) -> Budgets | ErrorDetail | None:
        """The share of the next turn, or why there is none; None as long as a running turn may give something back."""
        taken = self.spent
        for grant in self._reserved:
            taken = taken.with_delegate(_as_spent(grant), 0)
        free = self.at_once - len(self._reserved)
        if free > 0:
            share = limits.share(self.budgets, taken, free).model_copy(update={"depth": self.budgets.depth})
            refused = limits.forbids_generation(share, Spent())
            if refused is None or not self._reserved:
                return refused or share
        return None

    async def reserve(self) -> Budgets:
        """Wait for a share, and reserve it.

        Raises:
            ApplicationError: Nothing is left for another turn.
        """
        while (share := self.share()) is None:
            await workflow.wait_condition(lambda: self.share() is not None)
        if isinstance(share, ErrorDetail):
            used = limits.forbids_generation(self.budgets, self.spent) or share
            raise ApplicationError(f"{used.message}; no turn was started", type=used.code, non_retryable=True)
        self.hold(share)
        return share

    def hold(self, share: Budgets) -> None:
        """Reserve a share."""
        self._reserved.append(share)

    def give_back(self, grant: Budgets, spent: Spent | None) -> None:
        """Charge what a turn has used of its share, all of it if that is unknown, and let others have the rest."""
        self._reserved.remove(grant)
        self.spent = self.spent.with_delegate(_as_spent(grant) if spent is None else spent, 0)


def _as_spent(grant: Budgets) -> Spent:
    """A share as if all of it were used."""
    counts = {name: limit for name in COUNTED if (limit := getattr(grant, name)) is not None}
    return Spent(cost_usd=grant.cost_usd or Decimal(0), **counts)


def _make_request(agent: str, prompt: str, options: AgentOptions) -> TurnRequest:
    if options.get("shared") is not None and options.get("budgets") is not None:
        msg = "budgets, shared: a turn has budgets of its own or shares others'; give one of them"
        raise ApplicationError(msg, type=ReasonCode.REQUEST_INVALID, non_retryable=True)
    fields = {name: value for name, value in options.items() if name not in _OF_WORKFLOWS and value not in (None, "")}
    try:
        return TurnRequest.model_validate({"agent": agent, "prompt": prompt, **fields})
    except ValidationError as error:
        message = f"the turn request is not valid: {describe_mistake(error, at_root='request')}"
        raise ApplicationError(message, type=ReasonCode.REQUEST_INVALID, non_retryable=True) from None


_OF_WORKFLOWS = AgentOptions.__annotations__.keys() - TurnOptions.__annotations__.keys() | {"priority"}
"""Options that are no fields of the request."""


async def _result_of(turn: "_ChildTurn | _NexusTurn") -> TurnResult:
    """The result of a turn, also of one that an error has closed as Failed."""
    try:
        return TurnResult.model_validate(await turn.wait())
    except (ChildWorkflowError, NexusOperationError) as error:
        cause = error.cause
        if isinstance(cause, ApplicationError) and cause.details:
            with contextlib.suppress(ValidationError):
                return TurnResult.model_validate(cause.details[0])
        raise


def _as_json(request: TurnRequest) -> dict[str, Any]:
    fields: dict[str, Any] = request.model_dump(mode="json", exclude_defaults=True)
    return fields


def _summary(request: TurnRequest) -> str:
    return (request.agent or "")[:LONGEST_SUMMARY]


class _ChildTurn:
    """A turn in the caller's namespace: a child workflow."""

    def __init__(self, running: workflow.ChildWorkflowHandle[Any, Any], task_queue: str, tenant: str) -> None:
        self.session = running.id
        self.running = running
        self._task_queue = task_queue
        self._tenant = tenant

    @classmethod
    async def start(cls, session: str, request: TurnRequest, options: AgentOptions) -> "_ChildTurn":
        outlives, policy = options.get("outlives", False), workflow.ParentClosePolicy
        task_queue = options.get("task_queue", DEFAULT_TASK_QUEUE)
        # Without a priority of its own the calling workflow's counts.
        priority = Priority(priority_key=options.get("priority"), fairness_key=fairness_key_of(request.tenant))
        running = await workflow.start_child_workflow(
            AGENT_TURN,
            _as_json(request),
            id=session,
            task_queue=task_queue,
            parent_close_policy=policy.ABANDON if outlives else policy.REQUEST_CANCEL,
            static_summary=_summary(request),
            priority=priority,
        )
        return cls(running, task_queue, request.tenant)

    async def wait(self) -> object:
        """Wait for the end. If this wait is cancelled, so is the turn, and its end is waited for first.

        Temporal's own cancel of a child names its first run, which has closed if the turn has gone on in a fresh
        history: at a change of version, after some thousand events, or with a message. The signal reaches any run.
        """
        try:
            return await asyncio.shield(self.running)
        except asyncio.CancelledError:
            if not workflow.patched("perdure-cancel-by-signal"):
                self.running.cancel()
                return await self.running
            await _finish(asyncio.create_task(self._stop()))
            raise

    async def _stop(self) -> None:
        await self.cancel({"reason": "the calling workflow was cancelled"})
        with contextlib.suppress(FailureError):
            await self.running

    async def cancel(self, fields: dict[str, JsonValue]) -> None:
        with contextlib.suppress(FailureError):  # it has ended meanwhile
            await self.running.signal(Signal.CANCEL, fields)

    async def send(self, fields: dict[str, JsonValue]) -> int | None:
        knock = {"session": self.session, "tenant": self._tenant, **fields}
        sent = await workflow.execute_child_workflow(
            KNOCK, knock, task_queue=self._task_queue, static_summary=self.session
        )
        return Knocked.model_validate(sent).turn


async def _finish(task: "asyncio.Task[None]") -> None:
    """Wait for a task to its end, however often this wait is cancelled."""
    while not task.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(task)


class _NexusTurn:
    """A turn in another namespace: an operation of the Nexus service there."""

    def __init__(
        self, client: workflow.NexusClient[Any], session: str, running: workflow.NexusOperationHandle[Any]
    ) -> None:
        self.session = session
        self.running = running
        self._client = client

    @classmethod
    async def start(cls, session: str, request: TurnRequest, options: AgentOptions) -> "_NexusTurn":
        endpoint, priority = options.get("endpoint") or "", options.get("priority")
        client: workflow.NexusClient[Any] = workflow.create_nexus_client(service=NEXUS_SERVICE, endpoint=endpoint)
        fields = {**_as_json(request), "session": session, "priority": priority}
        return cls(client, session, await client.start_operation("start", fields, summary=_summary(request)))

    async def wait(self) -> object:
        """Wait for the end. A cancel of this wait is one of the operation, which reaches the turn in any run."""
        return await self.running

    async def cancel(self, fields: dict[str, JsonValue]) -> None:
        await self._client.execute_operation("cancel", {"session": self.session, **fields})

    async def send(self, fields: dict[str, JsonValue]) -> int | None:
        sent: object = await self._client.execute_operation("send", {"session": self.session, **fields})
        return Knocked.model_validate(sent).turn
