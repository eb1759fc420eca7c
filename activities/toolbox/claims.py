"""Claims of tool calls, and the decision about calls that a lost attempt had claimed.

A row of the ledger claims a call before the body runs. A second attempt finds the call free, committed, or *uncertain*:
an earlier attempt claimed it and was lost, and the tool may have had its effect. If that attempt was of this process,
which slept, the call still runs here, and its end is awaited (``RunningCalls``). A worker that is lost may be dead,
frozen or cut off, which cannot be told apart: its claim is taken over, so that nothing it does later is recorded.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Literal, TypeVar, cast

from temporalio import activity

from perdure.activities.agents import TurnContexts
from perdure.activities.errors import redact_and_cut
from perdure.activities.heartbeat import note_held, was_stopped
from perdure.activities.mcp.questions import Answering, AskedByServer
from perdure.activities.recordings import CallRecording
from perdure.activities.store_access import write_until_stored
from perdure.activities.toolbox.output import (
    ERROR_CHARACTERS,
    call_event,
    events_of_approval,
    message_of_error,
    read,
)
from perdure.activities.toolbox.runner import Progress, check_arguments, masked
from perdure.agents.context import DidNotHappen, Effect, EffectUnknown, Happened, Reconciler
from perdure.agents.tool import Tool
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.errors import REASONS, ErrorDetail, ReasonCode
from perdure.contracts.events import NewEvent, ToolRecovery, ToolStart
from perdure.contracts.exceptions import failure_of, print_error
from perdure.contracts.mcp import AnyServerConfig
from perdure.contracts.messages import ToolMessage
from perdure.contracts.plain import is_of, to_text
from perdure.contracts.tools import CallTool, ToolDeclaration
from perdure.contracts.values import json_object
from perdure.lanes.bodies import Bodies
from perdure.lanes.lanes import wait_within
from perdure.llm.tool_output import ToolTimeoutError
from perdure.security.redaction import Hidden, hidden_values_of
from perdure.store import RERUN, Claim, Store

HEIR_SECONDS = 30.0
"""Longest time that a call runs on without an attempt that waits for it. Temporal starts the next within seconds."""

LOOK_SECONDS = 1.0
"""Seconds between two checks whether such a call still holds its claim."""

Result = TypeVar("Result")

Holds = Callable[[], Awaitable[bool]]
"""Says whether a call's claim still stands: no other attempt has taken it over, and its turn is open."""


@dataclass
class _Running:
    """A running call, and the number of attempts that wait for it."""

    task: asyncio.Task[Any]
    holds: Holds
    attempts: int = 0


class RunningCalls:
    """The running calls of one worker, by the claimant of the attempt that began each."""

    def __init__(self) -> None:
        self._running: dict[str, _Running] = {}
        self._watches: set[asyncio.Task[None]] = set()

    async def carry_out(self, claimant: str, call: Coroutine[Any, Any, Result], holds: Holds) -> Result:
        """Run a call to its end. It survives the loss of this attempt, but not a cancel of this or a later attempt."""
        task = asyncio.create_task(call)
        running = self._running[claimant] = _Running(task, holds)
        task.add_done_callback(lambda done: self._end(claimant, done))
        await self._wait(running)
        return task.result()

    def has_other(self, claimant: str) -> bool:
        """Whether this process runs the call for another attempt, which holds what the call needs."""
        call = claimant.rpartition("/")[0]
        return any(other != claimant and other.rpartition("/")[0] == call for other in self._running)

    async def wait(self, claimant: str | None) -> bool:
        """Wait for the end of a call that an earlier attempt began; False if this process does not run it.

        Raises:
            Exception: Whatever the call raised: this attempt ends in the same way.
        """
        running = self._running.get(claimant or "")
        if running is None:
            return False
        await self._wait(running)
        if not running.task.cancelled():
            running.task.result()
        return True

    async def _wait(self, running: _Running) -> None:
        running.attempts += 1
        try:
            await asyncio.wait([running.task])
        except asyncio.CancelledError:
            if not _is_lost():
                running.task.cancel()
                await asyncio.wait([running.task])
            raise
        finally:
            running.attempts -= 1
            if not running.attempts and not running.task.done():
                self._watch(running)

    def _watch(self, running: _Running) -> None:
        watch = asyncio.create_task(_end_unless_joined(running))
        self._watches.add(watch)
        watch.add_done_callback(self._watches.discard)

    def _end(self, claimant: str, task: asyncio.Task[Any]) -> None:
        self._running.pop(claimant, None)
        if not task.cancelled():
            task.exception()  # retrieved, or asyncio would log it if no attempt waits any more


async def _end_unless_joined(running: _Running) -> None:
    """Cancel a call once its claim is lost, or if no attempt comes in time to wait for it."""
    for _ in range(round(HEIR_SECONDS / LOOK_SECONDS)):
        await asyncio.wait([running.task], timeout=LOOK_SECONDS)
        if running.attempts or running.task.done():
            return
        if not await running.holds():
            break
    running.task.cancel()


def _is_lost() -> bool:
    """Whether the server has given this attempt up. Then its cancellation does not ask the call to end."""
    why = activity.cancellation_details()
    if why is None or why.cancel_requested or why.paused or why.reset or why.worker_shutdown:
        return False
    return why.not_found or why.timed_out


Body = Tool[..., Any] | AnyServerConfig
"""Body that carries out a call: a Python tool, or an MCP server."""

MAX_RUNS = 5
"""Runs of one call, each with a lost worker, after which the call is given up: its body may be what kills them."""

MAX_ATTEMPTS = 25
"""Attempts at a call after which its reconciler is not asked any more, as the reconciler may be what kills workers."""

LONGEST_RECONCILIATION = timedelta(minutes=1)
"""Timeout of a reconciler, if the tool's own is longer: it has to fit into ``perdure.workflows.options.GRACE``."""

FRESH = timedelta(seconds=4)
"""A claim whose answer took longer is made once more: a worker that froze for so long may have lost it again."""


LOST = "the worker was lost while the tool ran, so its effect is unknown"
"""Cause of an unknown effect if nobody stopped the worker."""

STOPPED = "the worker was stopped while the tool ran, so its effect is unknown"
"""Cause of an unknown effect if a drain has cut the call off."""


@dataclass(frozen=True)
class Recovery:
    """The decision about a call that a lost attempt had claimed.

    Attributes:
        decision: The decision, as the event log has it.
        reason: Why, for people.
        told: What the model reads, if the call is given up.
        found: The result as it was read, or why it could not be, if the reconciler found it.
        code: The reason code of the call's error, if the call is given up.
    """

    decision: Literal["run_again", "result_found", "given_up"]
    reason: str
    told: str = ""
    found: object = None
    code: ReasonCode = ReasonCode.TOOL_EFFECT_UNKNOWN


@dataclass(frozen=True)
class Attempt:
    """One attempt at a call, and what is known of it so far.

    Attributes:
        call: What the workflow asks for; its arguments are masked.
        definition: The agent as the turn froze it.
        declaration: The tool as it is frozen with the agent.
        body: What carries the call out.
        claimant: The name of the attempt in the ledger.
        recording: The call's place in a recording.
        progress: Takes the progress that the body reports.
        raw_arguments: The model's arguments, unmasked, from the ledger; empty until the call is claimed.
        hidden: Values of the raw arguments that only the body may see.
        recovery: The decision about the call, if a lost attempt had claimed it.
        asked: What the call's MCP server asked in place of a result, if it did.
    """

    call: CallTool
    definition: AgentDefinition
    declaration: ToolDeclaration
    body: Body
    claimant: str
    recording: CallRecording
    progress: Progress
    raw_arguments: str = ""
    hidden: Hidden = field(default_factory=Hidden)
    recovery: Recovery | None = None
    asked: AskedByServer | None = None

    @property
    def answering(self) -> Answering:
        """The question of the call's MCP server, and the answer."""
        return Answering(self.asked, self.call.answer, self.definition.interactive != "refuse")

    @property
    def unspoken(self) -> frozenset[str]:
        """Values of the raw arguments that no text about the call may show."""
        return self.hidden.named | self.hidden.guessed

    @property
    def fate(self) -> str:
        """Fate of the call if a drain cuts it off, for the log."""
        if isinstance(self.body, Tool) and self.body.reconciler is not None:
            return "another worker asks its reconciler"
        if self.declaration.idempotent:
            return "another worker runs it again"
        return "it does not run again, and the model reads that its effect is unknown"

    def events_of_start(self) -> list[NewEvent]:
        """Events of a body that is about to run: its approval, if it needed one, and its start."""
        name = self.declaration.name
        start = ToolStart(call_id=self.call.call_id, tool=name, arguments=self.call.arguments)
        return [*events_of_approval(self.call, name), call_event(self.call, start)]

    def message_of_loss(self, recovery: Recovery) -> ToolMessage:
        """Message to the model if an earlier attempt was lost in the body and the call is given up."""
        error = ErrorDetail(code=recovery.code, title=self.declaration.name, message=recovery.told)
        return message_of_error(self.call, error)


class Claims:
    """The claims of one worker's tool calls."""

    def __init__(
        self,
        *,
        store: Store,
        bodies: Bodies,
        running: RunningCalls,
        contexts: TurnContexts,
        secrets: frozenset[str],
    ) -> None:
        self._store = store
        self._contexts = contexts
        self._bodies = bodies
        self._running = running
        self._secrets = secrets

    async def claim(self, attempt: Attempt) -> tuple[Claim, Recovery | None]:
        """Claim the call, and decide about it if a lost attempt had claimed it."""
        claim, recovery = await self._claim(attempt, None, []), None
        if (
            claim.state == "free" and note_held(attempt.fate) and not _is_parked(attempt, claim)
        ):  # an earlier attempt claimed it; the store lost that in a failover
            recovery = await self._recovery(attempt, claim.model_copy(update={"runs": 1}))
            return await self._claim(attempt, None, [self._event_of(attempt, recovery)]), recovery
        while claim.state == "uncertain":
            if await self._running.wait(claim.held_by):
                claim = await self._claim(attempt, None, [])
                continue
            recovery = await self._recovery(attempt, claim)
            claim = await self._claim(attempt, claim.held_by, [self._event_of(attempt, recovery, claim.runs)])
        if claim.state == "free":
            note_held(attempt.fate)
        return claim, recovery

    def _event_of(self, attempt: Attempt, recovery: Recovery, runs: int = 1) -> NewEvent:
        event = ToolRecovery(
            call_id=attempt.call.call_id,
            tool=attempt.declaration.name,
            decision=recovery.decision,
            reason=recovery.reason,
            stopped=was_stopped(),
        )
        again = recovery.decision == "run_again"
        key = f"{RERUN}{runs}" if again else f"tool_recovery/{attempt.claimant}"
        return call_event(attempt.call, event, key=key)

    async def _claim(self, attempt: Attempt, lost: str | None, events: list[NewEvent]) -> Claim:
        asked = time.monotonic()
        claim = await self._ask(attempt, lost, events)
        if claim.state == "free" and time.monotonic() - asked > FRESH.total_seconds():
            return await self._ask(attempt, lost, events)
        return claim

    async def _ask(self, attempt: Attempt, lost: str | None, events: list[NewEvent]) -> Claim:
        call = attempt.call
        return await write_until_stored(
            lambda: self._store.claim_call(
                session=call.session,
                turn=call.turn,
                call_id=call.call_id,
                claimant=attempt.claimant,
                lost=lost,
                events=[*attempt.events_of_start(), *events],
            )
        )

    async def _recovery(self, attempt: Attempt, claim: Claim) -> Recovery:
        if attempt.recording.replays:
            return Recovery("run_again", "the call is replayed from a recording, its body has never run")
        effect, why = await self._effect(attempt, claim)
        if isinstance(effect, Happened):
            return Recovery("result_found", "its reconciler found that it happened", found=effect.result)
        often = f"its worker was lost in each of {claim.runs} runs, so it is not run again"
        if isinstance(effect, DidNotHappen):
            if claim.runs < MAX_RUNS:
                return Recovery("run_again", "its reconciler found that it did not happen")
            told = f"{attempt.declaration.name} did not happen; {often}"
            return Recovery("given_up", told, told, code=ReasonCode.TOOL_EXECUTION_ERROR)
        if attempt.declaration.idempotent:
            if claim.runs < MAX_RUNS:
                return Recovery("run_again", _join_sentences("the tool is idempotent", why))
            why = _join_sentences(why, often)
        advice = REASONS[ReasonCode.TOOL_EFFECT_UNKNOWN].advice
        told = f"{_join_sentences(STOPPED if was_stopped() else LOST, why)}; {advice}"
        return Recovery("given_up", why or "the tool may have run, and is not idempotent", told)

    async def _effect(self, attempt: Attempt, claim: Claim) -> tuple[Effect | None, str]:
        """The reconciler's answer, or None; with it the reason if the effect is still unknown."""
        tool = attempt.body
        if not isinstance(tool, Tool) or tool.reconciler is None:
            return None, ""
        if activity.info().attempt > MAX_ATTEMPTS:
            return None, f"after {MAX_ATTEMPTS} attempts nobody checks any more whether it happened"
        unspoken = await hidden_of(attempt, claim.arguments)
        masked.set(unspoken.named | unspoken.guessed)
        try:
            effect = await self._ask_reconciler(tool, tool.reconciler, attempt, claim.arguments)
        except Exception as error:  # noqa: BLE001 - the edge: whatever a reconciler raises, it has given no answer
            text = f"the check whether it happened failed: {print_error(error)}"
            return None, self._mask(text, unspoken)
        if isinstance(effect, EffectUnknown):
            return effect, self._mask(
                _join_sentences("a check could not tell whether it happened", effect.why), unspoken
            )
        return effect, ""

    async def _ask_reconciler(self, tool: Tool[..., Any], reconciler: Reconciler, attempt: Attempt, raw: str) -> Effect:
        """The reconciler's answer, within its timeout."""
        asks = replace(tool, function=reconciler.function, context_parameter=reconciler.context_parameter)
        context = await self._contexts.load_call_context(attempt.call)
        seconds = min(attempt.declaration.timeout, LONGEST_RECONCILIATION).total_seconds()
        answer = self._bodies.start(
            asks, lambda: check_arguments(tool, raw), context, lambda effect: _read_effect(effect, context.call_id)
        )
        late = ToolTimeoutError(f"it took longer than {seconds:g} s")
        effect: Effect = await wait_within(answer, seconds, who="it", late=late, give_up=context.stop.set)
        return effect

    def _mask(self, text: str, unspoken: Hidden) -> str:
        return redact_and_cut(text, self._secrets | unspoken.named | unspoken.guessed)[:ERROR_CHARACTERS]


def _is_parked(attempt: Attempt, claim: Claim) -> bool:
    """Whether the call's MCP server has asked something that this attempt brings no answer to."""
    asked = AskedByServer.model_validate_json(claim.asked) if claim.asked else None
    return asked is not None and asked.question.number > attempt.answering.number


def _read_effect(effect: object, call_id: str) -> Effect:
    """A reconciler's answer of exact values. The result of :class:`Happened` is read as a body's is.

    Raises:
        TypeError: It is something else.
    """
    if is_of(effect, Happened):
        try:
            return Happened(read(cast("Happened", effect).result, call_id))
        except BaseException as error:  # noqa: BLE001 - the edge: what it refers to is the author's code
            return Happened(failure_of(error))
    if is_of(effect, EffectUnknown):
        return EffectUnknown(to_text(cast("EffectUnknown", effect).why))
    if is_of(effect, DidNotHappen):
        return DidNotHappen()
    msg = f"it returned {type(effect).__name__}, not Happened, DidNotHappen or EffectUnknown"
    raise TypeError(msg)


def _join_sentences(*parts: str) -> str:
    return ": ".join(part for part in parts if part)


async def hidden_of(attempt: Attempt, raw_arguments: str) -> Hidden:
    """Values of the raw arguments that only the body may see; none if nothing was masked."""
    if raw_arguments == attempt.call.arguments:
        return Hidden()
    return await asyncio.to_thread(masked_values_of, attempt.declaration, raw_arguments)  # slow for large ones


def masked_values_of(declaration: ToolDeclaration, raw_arguments: str) -> Hidden:
    """Values of the raw arguments that only the body may see; exceptions often repeat them."""
    try:
        return hidden_values_of(json_object(raw_arguments), declaration.masked)
    except ValueError:
        return Hidden()
