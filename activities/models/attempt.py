"""One call of one model: made within the agent's time, and what becomes of it when it fails.

Long, because each failure is described, judged and recorded here, whole or streamed.
"""

import asyncio
import os
import random
from collections.abc import Awaitable, Collection, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Literal

from temporalio import activity
from temporalio.exceptions import ApplicationError

from perdure.activities.errors import permanent, transient
from perdure.activities.faults import is_fault, log_fault
from perdure.activities.heartbeat import is_stop, note_spent, note_wait
from perdure.activities.models.facts import facts_about
from perdure.activities.models.failures import facts_of
from perdure.activities.models.given_way import MOST_TRIES, adapted
from perdure.activities.models.model_call import Answer, complete
from perdure.activities.models.pace import TELL_SECONDS, Gate, Waiting, wait_for
from perdure.activities.models.provider_messages import without_places
from perdure.activities.models.provider_replies import StreamCutError, UnusableAnswerError
from perdure.activities.models.step_log import ENDED, NOTHING_PAID, StepLog, event_of, own_key, paid_of_retries
from perdure.activities.parts import ActivityParts
from perdure.activities.secrets import values_of
from perdure.activities.telling.deltas import DeltaPublisher, Shows
from perdure.activities.telling.log_counters import count_paid
from perdure.activities.telling.traces import note_answer, note_source
from perdure.contracts.agents import AgentDefinition, names_of_call
from perdure.contracts.budgets import Paid
from perdure.contracts.errors import ErrorDetail, ReasonCode, code_of_kind
from perdure.contracts.events import GenerationAdapted, GenerationError, GenerationRetry, GenerationWait, NewEvent
from perdure.contracts.exceptions import can_be_printed, kind_of
from perdure.contracts.generations import Compact
from perdure.contracts.values import JsonValue, replace
from perdure.contracts.waits import ProviderRetry
from perdure.llm.failures import EXCEPTION, FailureFacts, class_of, classify, is_ambiguous, reason_of
from perdure.llm.openai_format import WireMessage
from perdure.llm.pace import REFUSALS, Sent
from perdure.llm.retries import MAX_MESSAGE, Chain, End, compose_final_text, decide, failure_text
from perdure.security.redaction import without_known

MAX_CALLS = 500
"""Most tool calls of one answer: a server takes 2,000 running activities of a workflow, and 2 MB from one activity."""

FALLBACK_ATTEMPTS = 10_000
"""Number from which a fallback's attempts are counted: they come after those of the model before it."""


class DeadlineExceededError(TimeoutError):
    """The model call took longer than the agent's generation_timeout."""

    def __init__(self, limit: timedelta) -> None:
        super().__init__(f"the model did not answer within generation_timeout ({limit.total_seconds():g} s)")


class TooManyCallsError(UnusableAnswerError):
    """The answer asks for more tool calls than a workflow can have at once."""


class CallFailedError(Exception):
    """A model call failed; what is known about it, redacted, when it was by Temporal's clock, and how long it took.

    Attributes:
        was_shown: Whether pieces of its answer were shown while they came.
    """

    was_shown = False

    def __init__(
        self,
        facts: FailureFacts,
        failed_at: datetime,
        paid: Paid = NOTHING_PAID,
        *,
        seconds: float = 0.0,
        unkept: str = "",
    ) -> None:
        super().__init__(facts.text)
        self.unkept = unkept
        self.facts = facts
        self.failed_at = failed_at
        self.paid = paid
        self.seconds = seconds


@dataclass(frozen=True)
class Failure:
    """A failed call under the agent's policy: ``retry`` is None if the call is not sent again.

    ``paid`` is then what all tries of the step have cost, and ``last`` what the last one has. ``next_retry`` is for who
    asks why the turn waits.
    """

    detail: ErrorDetail
    retry: GenerationRetry | None
    paid: Paid = NOTHING_PAID
    last: Paid = NOTHING_PAID
    next_retry: ProviderRetry | None = None
    model: str = ""


@dataclass(frozen=True)
class Prompt:
    """Input of one model call.

    Attributes:
        messages: The messages, with the places of their pictures and files.
        ceiling: The most tokens that the answer may have; None without a bound.
        shown: Shows the answer while it comes; with it the call is made as a stream.
        may_cut: Whether a context that is too long is shortened by the call, as nothing else can make it shorter.
    """

    messages: list[WireMessage]
    ceiling: int | None = None
    shown: DeltaPublisher | None = None
    may_cut: bool = False


class ModelCall:
    """One call of one model for a step, which a worker makes with its parts.

    Attributes:
        definition: The agent that asks, with the model that is called.
        adapted: What the model has refused and the answer was got without; None if nothing new.
    """

    def __init__(self, parts: ActivityParts, log: StepLog, definition: AgentDefinition) -> None:
        self._parts = parts
        self._log = log
        self.definition = definition
        self.adapted: GenerationAdapted | None = None

    async def send(self, prompt: Prompt) -> tuple[Answer, float]:
        """The answer, and the seconds it took.

        The call waits for its turn at the gate of its key; that wait does not count in its time. If the provider
        refuses a picture, a file or reasoning, these give way, and the call is made again at once.

        Raises:
            CallFailedError: Whatever the provider or its library did.
        """
        parts, session, definition = self._parts, self._log.request.session, self.definition
        if parts.recordings.mode == "replay":
            return await self._send_once(prompt, prompt.messages)
        if not parts.given_way.knows(session):
            parts.given_way.recall(session, await self._log.load_adaptations())
        known = given = parts.given_way.of(session, definition)
        tries, reason = 1, ""
        while True:
            facts, fitted = facts_about(definition.model), given.fitted(prompt.messages)
            filled = await parts.contents.with_bytes(session, facts, fitted, definition.retention, given)
            try:
                called = await self._send_once(prompt, filled)
            except CallFailedError as error:
                less = given.lessened(filled, error.facts, may_cut=prompt.may_cut)
                if less is None or tries == MOST_TRIES:
                    if reason_of(error.facts).transient:  # the next attempt goes on from here
                        parts.given_way.keep(session, definition, given)
                    raise
                given, tries, reason = less, tries + 1, error.facts.text
            else:
                self.adapted = adapted(known, given, definition, reason)
                parts.given_way.keep(session, definition, given.taking(filled))
                return called

    def events_of_adapting(self) -> list[NewEvent]:
        """The event that tells what the model has refused and the answer was got without, to be written with it."""
        if self.adapted is None:
            return []
        return [event_of(self._log.request, own_key("adapted"), self.adapted)]

    async def _send_once(self, prompt: Prompt, filled: list[WireMessage]) -> tuple[Answer, float]:
        """Make the call with the ``filled`` messages; recorded are those of the prompt."""
        parts, definition, shown = self._parts, self.definition, prompt.shown
        gate, entered, replays = parts.gates.gate_of(definition), parts.monotonic(), parts.recordings.mode == "replay"
        sent = None if replays else await self._wait_for_turn(gate)
        began = parts.monotonic()
        waited = began - entered
        with parts.traces.model_call(self._log.request, definition, streams=shown is not None) as span:
            try:
                if definition.recording or replays:
                    asked = without_places(prompt.messages)
                    answer = await parts.recordings.answer(
                        definition, asked, lambda: _ask_model(definition, filled, prompt)
                    )
                else:
                    answer = await _ask_model(definition, filled, prompt)
            except BaseException as error:
                if is_stop(error):
                    raise
                failure = self.describe_failure(error, parts.monotonic() - began, waited=waited)
                if failure.paid != NOTHING_PAID:
                    note_spent()
                failure.was_shown = shown is not None and shown.has_shown
                if isinstance(error, StreamCutError) and error.has_ended_well:
                    parts.metrics.unusable_streams.labels(parts.metrics.model(definition.model)).inc()
                span.fail(classify(failure.facts))
                span.end()
                if sent is not None:
                    is_served = isinstance(error, UnusableAnswerError)
                    if _show(gate, sent, failure.facts, served=is_served):
                        await parts.gates.tell(gate)
                # The chain holds unredacted texts, and would stand in the history.
                raise failure from None
            note_spent()
            note_answer(span, answer.usage, answer.cost_usd, answer.finish_reason, recorded=answer.recorded)
            note_source(span, answer.source.id, answer.source.model, answer.source.server)
        seconds = parts.monotonic() - began
        if activity.info().attempt > 1:
            self._log.look_again()
        if sent is not None:
            gate.serve(sent)
        if not answer.recorded:  # then nobody was asked, or paid
            parts.metrics.generation_seconds.labels(parts.metrics.model(definition.model)).observe(seconds)
        # A model may repeat a key that it found somewhere.
        secrets = self._secrets
        thinking = tuple(_without_secrets(block, secrets) for block in answer.thinking)
        answer = replace(answer, text=without_known(answer.text, secrets), thinking=thinking)
        return answer, seconds

    async def _wait_for_turn(self, gate: Gate) -> Sent:
        """Wait until the call may be sent; where people look for the job, it says that it waits."""
        parts, request = self._parts, self._log.request
        told, ahead, began, entered = False, 0, datetime.now(UTC), parts.monotonic()

        async def tell(waiting: Waiting) -> None:
            nonlocal told, ahead
            ahead = max(ahead, waiting.ahead)
            note_wait(str(waiting))
            if not told and waiting.seconds >= TELL_SECONDS:
                told = True
                pace = None if waiting.rate is None else round(waiting.rate, 3)
                event = GenerationWait(model=self.definition.model, ahead=waiting.ahead, calls_per_second=pace)
                await self._log.record(f"{'compaction/' if isinstance(request, Compact) else ''}wait", event)

        try:
            await parts.gates.hear()
            return await wait_for(gate, request.session, tell, parts.gates.hear)
        finally:
            note_wait("")
            parts.traces.wait_for_limit(request, gate.provider, began, parts.monotonic() - entered, ahead)

    def describe_failure(self, error: BaseException, seconds: float = 0.0, *, waited: float = 0.0) -> CallFailedError:
        """Describe a call that failed, after ``seconds`` and a wait."""
        # Temporal's clock, the start of the attempt plus what has passed since: a worker's own may be wrong.
        failed_at = activity.info().started_time + timedelta(seconds=waited + seconds)
        paid = error.paid if isinstance(error, UnusableAnswerError) else Paid()
        facts = facts_of(error, failed_at, self._secrets)
        if facts.fault:
            log_fault(error, self._secrets, f"a call of {self.definition.model}")
        return CallFailedError(facts, failed_at, paid, seconds=seconds)

    def describe_unkept_answer(self, answer: Answer, error: BaseException) -> CallFailedError:
        """The failure of a call whose answer has come, and could not be kept for a reason that nobody foresaw."""
        now, code = activity.info().started_time, f"{EXCEPTION}{kind_of(error)}"
        facts = facts_of(error, now, self._secrets)
        if is_fault(error) or not isinstance(error, Exception) or not can_be_printed(error):
            log_fault(error, self._secrets, f"what keeps an answer of {self.definition.model}")
            code = ReasonCode.RUNTIME_INTERNAL
        facts = replace(facts, own_code=code, status=None, retry_after_seconds=None)
        return CallFailedError(facts, now, Paid().plus(answer.usage, answer.cost_usd), unkept=answer.text)

    @cached_property
    def _secrets(self) -> frozenset[str]:
        """Texts that nothing may show: also the values that the definition refers to and no agent here has any more."""
        names = names_of_call(self.definition.generate_params, secrets=True)
        return self._parts.secrets | values_of(names, os.environ) if names else self._parts.secrets

    async def classify_failure(self, error: CallFailedError, failures: int | None = None) -> Failure:
        """Decide whether the call is sent again, and after which wait.

        The number of the try and the time used up are counted from the step's recorded retries, so an attempt lost with
        its worker uses up neither; or the number is ``failures``, which the workflow has counted, of an agent whose
        model is told.
        """
        log, definition, facts = self._log, self.definition, error.facts
        request, policy = log.request, definition.retry
        log.look_again()
        before = await log.load_retries(error.paid)
        chain = chain_of(before, error, failures)
        code, reason, place = classify(facts), reason_of(facts), f"step {request.step}, {definition.model}"
        sample = random.random()  # noqa: S311 - jitter needs no secrecy
        decided = decide(policy, reason, chain, jitter_sample=sample)
        if isinstance(decided, End):
            text = compose_final_text(place, facts, reason, decided, request.session)
            paid = paid_of_retries(before).plus(error.paid.usage, error.paid.cost_usd)
            return Failure(_detail(facts, code, text), None, paid, last=error.paid, model=definition.model)
        retry = GenerationRetry(
            attempt=chain.attempt,
            max_attempts=policy.max_retries,
            wait_seconds=decided.time.total_seconds(),
            code=code,
            error_type=facts.class_name,
            error_message=facts.text,
            failed_at=error.failed_at,
            counted_seconds=round(chain.elapsed.total_seconds(), 3),
            compaction=isinstance(request, Compact),
            fallback=request.fallback,
            model=definition.model,
            usage=error.paid.usage,
            cost_usd=error.paid.cost_usd,
        )
        coming = ProviderRetry(
            model=definition.model, attempt=chain.attempt, max_attempts=policy.max_retries, status=facts.status
        )
        return Failure(_detail(facts, code, failure_text(place, facts, reason)), retry, next_retry=coming)

    def make_publisher(self) -> DeltaPublisher:
        """The publisher that shows the answer of this attempt while it is written."""
        request, definition = self._log.request, self.definition
        shows = Shows(
            session=request.session,
            turn=request.turn,
            step=request.step,
            attempt=request.fallback * FALLBACK_ATTEMPTS + activity.info().attempt,
            tools={tool.name for tool in definition.tools},
            thinking=definition.stream_thinking,
            secrets=self._secrets,
        )
        return DeltaPublisher(self._parts.store.live, shows)

    def count_lost(self, paid: Paid) -> None:
        """Count the cost of an answer that is in no turn: another attempt was first, or the turn had ended."""
        self._count("lost", paid)

    def count_refused(self, paid: Paid) -> None:
        """Count the cost of an answer that the store refused: its turn knows of it, the log cannot."""
        self._count("failed", paid)

    def _count(self, kind: Literal["failed", "lost"], paid: Paid) -> None:
        name, model = self.definition.name, self.definition.model
        count_paid(self._parts.metrics, model, kind, paid, agent=name, tenant="")


async def describe_loss(log: StepLog, detail: ErrorDetail) -> ApplicationError:
    """The final error after too many lost attempts, with the cost of failed tries."""
    request = log.request
    if (ended := await log.load_recorded_end()) is not None:
        return ended
    text = f"step {request.step}: {detail.message}"
    detail, paid = replace(detail, title="generation", message=text), await log.load_paid()
    if isinstance(request, Compact) and request.trigger == "threshold":
        return permanent(detail, paid)  # no end of the turn: it goes on with what it has
    return await record_failure(log, Failure(detail, None, paid))


async def record_failure(log: StepLog, failure: Failure) -> ApplicationError:
    """Record the failure as an event; what ends the attempt, until the next one after its wait or for good."""
    detail, retry = failure.detail, failure.retry
    if retry is None:
        last = failure.last
        error = GenerationError(error=detail, model=failure.model, usage=last.usage, cost_usd=last.cost_usd)
        await log.record(own_key(ENDED), error, last)
        return permanent(detail, failure.paid)
    key = f"{'compaction/' if retry.compaction else ''}retry/{retry.attempt}"
    await log.record(key, retry, Paid(usage=retry.usage, cost_usd=retry.cost_usd))
    next_try = f"; retry {retry.attempt} of {retry.max_attempts} in {retry.wait_seconds:.1f} s"
    message = detail.message + next_try
    detail, wait = replace(detail, message=message), timedelta(seconds=retry.wait_seconds)
    return transient(detail, wait, failure.next_retry)


def chain_of(before: Sequence[GenerationRetry], error: CallFailedError, failures: int | None) -> Chain:
    """The failed calls of a step up to this one; ``failures`` came before it, of which the model was told."""
    elapsed, code = 0.0, classify(error.facts)
    if before:
        last = before[-1]
        between = (error.failed_at - last.failed_at).total_seconds() - error.seconds
        # None of the wait has passed if its worker was lost before it began.
        elapsed = last.counted_seconds + min(last.wait_seconds, max(between, 0.0)) + error.seconds
    return Chain(
        calls=len(before) + 1,
        attempt=(len(before) if failures is None else failures) + 1,
        elapsed=timedelta(seconds=elapsed),
        same=sum(retry.code == code for retry in before),
        retry_after=error.facts.retry_after_seconds,
        ambiguous=is_ambiguous(error.facts, code),
        was_shown=error.was_shown,
        told=failures is not None,
    )


def paid_for(answer: Answer) -> Paid:
    """Cost of an answer; an answer of a recording costs nothing."""
    return NOTHING_PAID if answer.recorded else Paid().plus(answer.usage, answer.cost_usd)


def _without_secrets(value: JsonValue, secrets: Collection[str]) -> JsonValue:
    """Reasoning without secrets."""
    if isinstance(value, dict):
        return {name: _without_secrets(part, secrets) for name, part in value.items()}
    if isinstance(value, list):
        return [_without_secrets(part, secrets) for part in value]
    return without_known(value, secrets) if isinstance(value, str) else value


def _show(gate: Gate, sent: Sent, facts: FailureFacts, *, served: bool) -> bool:
    """Let the gate learn from a failed call: a refusal slows all calls of the key, an answer of no use was served.

    Returns:
        Whether the other workers of the fleet are to learn of it too.
    """
    if facts.status in REFUSALS and reason_of(facts).transient:
        return gate.refuse(sent, facts.status, facts.retry_after_seconds)
    if served:
        gate.serve(sent)
    return False


async def _ask_model(definition: AgentDefinition, messages: list[WireMessage], prompt: Prompt) -> Answer:
    async with nullcontext() if prompt.shown is None else prompt.shown:
        call = complete(definition, messages, most_tokens=prompt.ceiling, shown=prompt.shown)
        answer = await _wait_within(definition.generation_timeout, call)
    _check_calls(answer)
    return answer


async def _wait_within(limit: timedelta, call: Awaitable[Answer]) -> Answer:
    """The answer, or :class:`DeadlineExceededError`; litellm's own time-out bounds a silence only."""
    deadline = asyncio.timeout(limit.total_seconds())
    try:
        async with deadline:
            return await call
    except TimeoutError as error:
        if not deadline.expired():
            raise
        raise DeadlineExceededError(limit) from error


def _check_calls(answer: Answer) -> None:
    if len(answer.calls) > MAX_CALLS:
        msg = f"the answer asks for {len(answer.calls):,} tool calls at once, the limit is {MAX_CALLS}"
        error = TooManyCallsError(msg)
        error.paid = Paid().plus(answer.usage, answer.cost_usd)
        raise error


def _detail(facts: FailureFacts, code: str, text: str) -> ErrorDetail:
    kind = class_of(facts)
    exception = code_of_kind(kind) if code == ReasonCode.RUNTIME_INTERNAL else None
    return ErrorDetail(code=code, title="generation", message=text[:MAX_MESSAGE], type=kind, exception=exception)
