"""One model call as an attempt of an activity: within the agent's time, and what becomes of it when it fails.

Long, because each failure is described, judged and recorded here, whole or streamed.
"""

import asyncio
import os
import random
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from temporalio import activity
from temporalio.exceptions import ApplicationError

from perdure.activities.cost_ceiling import with_ceiling
from perdure.activities.deltas import DeltaPublisher, Shows
from perdure.activities.errors import permanent, transient
from perdure.activities.failures import facts_of
from perdure.activities.heartbeat import note_wait
from perdure.activities.litellm_call import Answer, complete, facts_about
from perdure.activities.log_counters import count_paid
from perdure.activities.metrics import Metrics
from perdure.activities.pace import TELL_SECONDS, Gate, Gates, Waiting, wait_for
from perdure.activities.provider_messages import Contents, without_places
from perdure.activities.provider_replies import UnusableAnswerError
from perdure.activities.record_answer import NOTHING_PAID, event_of, key_of
from perdure.activities.recordings import Recordings
from perdure.activities.secrets import values_of
from perdure.activities.store_access import store_failures, write_until_stored
from perdure.activities.traces import Traces, note_answer
from perdure.contracts.agents import AgentDefinition, names_of_call
from perdure.contracts.budgets import Paid
from perdure.contracts.errors import ErrorDetail, ReasonCode
from perdure.contracts.events import AnyEvent, Event, GenerationError, GenerationRetry, GenerationWait
from perdure.contracts.generations import Compact, StepRequest
from perdure.contracts.values import JsonValue, replace
from perdure.contracts.waits import ProviderRetry
from perdure.llm.failures import EXCEPTION, FailureFacts, class_of, classify, is_ambiguous, reason_of
from perdure.llm.openai_format import WireMessage
from perdure.llm.pace import REFUSALS, Sent
from perdure.llm.retries import MAX_MESSAGE, Chain, compose_final_text, decide, failure_text, rule_of_end, wait_before
from perdure.security.redaction import without_known
from perdure.store import Store

T = TypeVar("T")

MAX_CALLS = 500
"""Most tool calls of one answer: a server takes 2,000 running activities of a workflow, and 2 MB from one activity."""

NOT_AGAIN = (
    "the provider may have carried the call out, so it is not sent again: "
    "the agent's retry policy says ambiguous='fail'"
)
"""Text after a failure that another policy would have retried."""


NOT_AFTER_SHOWN = (
    "a part of its answer was shown already, so it is not sent again: "
    "the agent's retry policy says stream_retry='never_after_first_delta'"
)
"""Likewise of a stream."""

FALLBACK_ATTEMPTS = 10_000
"""What a fallback's attempts are counted from: they come after those of the model before it."""

MOST_CUTS = 2
"""Streams of one step that may be cut; the call is then made without one, as nobody's watching may end a job."""

ENDED = "error"
"""The key of the failure that ends an activity."""


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
    """What an agent's policy makes of a failed call: ``retry`` is None if it is not sent again.

    ``paid`` is then what all tries of the step have cost, and ``last`` what the last one has. ``next_retry`` is for who
    asks why the turn waits.
    """

    detail: ErrorDetail
    retry: GenerationRetry | None
    paid: Paid = NOTHING_PAID
    last: Paid = NOTHING_PAID
    next_retry: ProviderRetry | None = None
    model: str = ""


class Attempts:
    """The model calls of one worker."""

    def __init__(  # noqa: PLR0913 - the parts of a worker, all by keyword
        self,
        *,
        store: Store,
        metrics: Metrics,
        recordings: Recordings,
        gates: Gates,
        secrets: Collection[str],
        traces: Traces,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._monotonic = monotonic
        self._traces = traces
        self._store = store
        self._metrics = metrics
        self._gates = gates
        self._recordings = recordings
        self._contents = Contents(store)
        self._secrets = frozenset(secrets)

    async def call(
        self,
        request: StepRequest,
        definition: AgentDefinition,
        messages: list[WireMessage],
        *,
        ceiling: int | None = None,
        shown: DeltaPublisher | None = None,
    ) -> tuple[Answer, float]:
        """The answer, and the seconds it took; a ceiling bounds its tokens. With ``shown`` it is asked for as a stream.

        The call waits for its turn at the gate of its key; that is no part of its time.

        Raises:
            CallFailedError: Whatever the provider or its library did.
        """
        gate, entered, replays = self._gates.gate_of(definition), self._monotonic(), self._recordings.mode == "replay"
        filled, sent = messages, None
        if not replays:
            facts = facts_about(definition.model)
            filled = await self._contents.with_bytes(request.session, facts, messages, definition.retention)
            sent = await self._wait_for_turn(gate, request, definition)
        began = self._monotonic()
        waited = began - entered
        with self._traces.model_call(request, definition, streams=shown is not None) as span:
            try:
                if definition.recording or replays:
                    asked = without_places(messages)
                    answer = await self._recordings.answer(
                        definition, asked, lambda: _call_model(definition, filled, ceiling, shown)
                    )
                else:
                    answer = await _call_model(definition, filled, ceiling, shown)
            except Exception as error:  # noqa: BLE001 - the edge: whatever a provider library raises becomes a reason code
                failure = self.describe_failure(definition, error, self._monotonic() - began, waited=waited)
                failure.was_shown = shown is not None and shown.has_shown
                span.fail(classify(failure.facts))
                span.end()
                if sent is not None:
                    is_served = isinstance(error, UnusableAnswerError)
                    if _show(gate, sent, failure.facts, served=is_served):
                        await self._gates.tell(gate)
                # The chain holds unredacted texts, and would stand in the history.
                raise failure from None
            note_answer(span, answer.usage, answer.cost_usd, answer.finish_reason, recorded=answer.recorded)
        seconds = self._monotonic() - began
        if sent is not None:
            gate.serve(sent)
        if not answer.recorded:  # then nobody was asked, or paid
            self._metrics.generation_seconds.labels(self._metrics.model(definition.model)).observe(seconds)
        # A model may repeat a key that it found somewhere.
        secrets = self._secrets_of(definition)
        thinking = tuple(_without_secrets(block, secrets) for block in answer.thinking)
        answer = replace(answer, text=without_known(answer.text, secrets), thinking=thinking)
        return answer, seconds

    async def _wait_for_turn(self, gate: Gate, request: StepRequest, definition: AgentDefinition) -> Sent:
        """Wait until the call may be sent; where people look for the job, it says that it waits."""
        told, ahead, began, entered = False, 0, datetime.now(UTC), self._monotonic()

        async def tell(waiting: Waiting) -> None:
            nonlocal told, ahead
            ahead = max(ahead, waiting.ahead)
            note_wait(str(waiting))
            if not told and waiting.seconds >= TELL_SECONDS:
                told = True
                pace = None if waiting.rate is None else round(waiting.rate, 3)
                event = GenerationWait(model=definition.model, ahead=waiting.ahead, calls_per_second=pace)
                await self.record(request, f"{'compaction/' if isinstance(request, Compact) else ''}wait", event)

        try:
            await self._gates.hear()
            return await wait_for(gate, request.session, tell, self._gates.hear)
        finally:
            note_wait("")
            self._traces.wait_for_limit(request, gate.provider, began, self._monotonic() - entered, ahead)

    def describe_failure(
        self, definition: AgentDefinition, error: Exception, seconds: float = 0.0, *, waited: float = 0.0
    ) -> CallFailedError:
        """Describe a call that failed, after ``seconds`` and a wait."""
        # Temporal's clock, the start of the attempt plus what has passed since: a worker's own may be wrong.
        failed_at = activity.info().started_time + timedelta(seconds=waited + seconds)
        paid = error.paid if isinstance(error, UnusableAnswerError) else Paid()
        return CallFailedError(
            facts_of(error, failed_at, self._secrets_of(definition)), failed_at, paid, seconds=seconds
        )

    def describe_unkept_answer(self, definition: AgentDefinition, answer: Answer, error: Exception) -> CallFailedError:
        """The failure of a call whose answer has come, and could not be kept for a reason that nobody foresaw."""
        now, code = activity.info().started_time, f"{EXCEPTION}{type(error).__name__}"
        facts = facts_of(error, now, self._secrets_of(definition))
        facts = replace(facts, own_code=code, status=None, retry_after_seconds=None)
        return CallFailedError(facts, now, Paid().plus(answer.usage, answer.cost_usd), unkept=answer.text)

    async def describe_loss(self, request: StepRequest, detail: ErrorDetail) -> ApplicationError:
        """What a call ends with whose attempts were lost too often; its failed tries have cost something."""
        if (ended := await self.load_recorded_end(request)) is not None:
            return ended
        text = f"step {request.step}: {detail.message}"
        detail, paid = replace(detail, title="generation", message=text), await self.load_paid(request)
        if isinstance(request, Compact) and request.trigger == "threshold":
            return permanent(detail, paid)  # no end of the turn: it goes on with what it has
        return await self.record_failure(request, Failure(detail, None, paid))

    def _secrets_of(self, definition: AgentDefinition) -> frozenset[str]:
        """What no text may show: also what a definition refers to that no agent of this worker has any more."""
        names = names_of_call(definition.generate_params, secrets=True)
        return self._secrets | values_of(names, os.environ) if names else self._secrets

    async def classify_failure(
        self, request: StepRequest, definition: AgentDefinition, error: CallFailedError, failures: int | None = None
    ) -> Failure:
        """Decide whether the call is sent again, and after which wait.

        The number of the try and the time used up are counted from the step's recorded retries, so an attempt lost with
        its worker uses up neither; or the number is ``failures``, which the workflow has counted, of an agent whose
        model is told.
        """
        facts, policy = error.facts, definition.retry
        before = await self.load_retries(request, error.paid)
        counted = before[-1].counted_seconds + _waited_after(before[-1], error) + error.seconds if before else 0.0
        code, reason = classify(facts), reason_of(facts)
        attempt, ambiguous = (len(before) if failures is None else failures) + 1, is_ambiguous(facts, code)
        sample = random.random()  # noqa: S311 - jitter needs no secrecy
        wait = decide(
            policy,
            reason,
            ambiguous=ambiguous,
            attempt=attempt,
            elapsed=timedelta(seconds=counted),
            retry_after=facts.retry_after_seconds,
            jitter_sample=sample,
        )
        place = f"step {request.step}, {definition.model}"
        if reason.most_retries is not None and sum(retry.code == code for retry in before) >= reason.most_retries:
            wait = None
        ends_shown = error.was_shown and policy.stream_retry == "never_after_first_delta"
        if ends_shown:
            wait = None
        if wait is None:
            chain = Chain(
                calls=len(before) + 1,
                elapsed=timedelta(seconds=counted),
                wait=wait_before(policy, attempt, retry_after=facts.retry_after_seconds, jitter_sample=sample),
                retry_after=facts.retry_after_seconds,
                told=failures is not None,
                most_retries=reason.most_retries,
            )
            not_again = ambiguous and policy.ambiguous == "fail"
            rule = "" if not_again or ends_shown else rule_of_end(policy, reason, chain)
            choice = NOT_AGAIN if not_again else NOT_AFTER_SHOWN if ends_shown else ""
            text = compose_final_text(place, facts, reason, rule, request.session, choice=choice)
            if failures is not None and not choice and reason.transient and attempt > policy.max_retries:
                text = f"more than {policy.max_retries} failures in a row: {text}"
            paid = paid_of_retries(before).plus(error.paid.usage, error.paid.cost_usd)
            return Failure(_detail(facts, code, text), None, paid, last=error.paid, model=definition.model)
        retry = GenerationRetry(
            attempt=attempt,
            max_attempts=policy.max_retries,
            wait_seconds=wait.total_seconds(),
            code=code,
            error_type=facts.class_name,
            error_message=facts.text,
            failed_at=error.failed_at,
            counted_seconds=round(counted, 3),
            compaction=isinstance(request, Compact),
            fallback=request.fallback,
            model=definition.model,
            usage=error.paid.usage,
            cost_usd=error.paid.cost_usd,
        )
        coming = ProviderRetry(
            model=definition.model, attempt=attempt, max_attempts=policy.max_retries, status=facts.status
        )
        return Failure(_detail(facts, code, failure_text(place, facts, reason)), retry, next_retry=coming)

    async def record_failure(self, request: StepRequest, failure: Failure) -> ApplicationError:
        """Record the failure as an event; what ends the attempt, until the next one after its wait or for good."""
        detail, retry = failure.detail, failure.retry
        if retry is None:
            last = failure.last
            error = GenerationError(error=detail, model=failure.model, usage=last.usage, cost_usd=last.cost_usd)
            await self.record(request, own_key(ENDED), error, last)
            return permanent(detail, failure.paid)
        key = f"{'compaction/' if retry.compaction else ''}retry/{retry.attempt}"
        await self.record(request, key, retry, Paid(usage=retry.usage, cost_usd=retry.cost_usd))
        next_try = f"; retry {retry.attempt} of {retry.max_attempts} in {retry.wait_seconds:.1f} s"
        message = detail.message + next_try
        detail, wait = replace(detail, message=message), timedelta(seconds=retry.wait_seconds)
        return transient(detail, wait, failure.next_retry)

    async def load_recorded_end(self, request: StepRequest) -> ApplicationError | None:
        """The failure that ended an earlier attempt of this activity, which was lost before Temporal had it."""
        event = await self.load_recorded(request, ENDED)
        if not isinstance(event, GenerationError):
            return None
        return permanent(event.error, (await self.load_paid(request)).plus(event.usage, event.cost_usd))

    async def load_recorded(self, request: StepRequest, key: str) -> AnyEvent | None:
        """The event that an earlier attempt of this activity has written under its own key, if one has."""
        if activity.info().attempt == 1:
            return None
        async with store_failures():
            found = await self._store.events_by_key(request.session, [key_of(request, own_key(key))])
        return found[0].event if found else None

    async def load_retries(self, request: StepRequest, keeping: Paid = NOTHING_PAID) -> list[GenerationRetry]:
        """The recorded retries of this call, in order, and not those of the step's summary or of another model."""
        loaded = await self._load_step_retries(request, keeping)
        return [retry for retry in loaded if retry.fallback == request.fallback]

    async def count_retries(self, request: StepRequest) -> int:
        """Number of failed calls that were sent again for this step, of all models."""
        return len(await self._load_step_retries(request))

    async def may_stream(self, request: StepRequest) -> bool:
        """Whether the step's streams have not been cut too often; asked of a further attempt only."""
        if activity.info().attempt == 1:
            return True
        cuts = sum(retry.code == ReasonCode.LLM_STREAM_CUT for retry in await self.load_retries(request))
        return cuts < MOST_CUTS

    def publisher_of(self, request: StepRequest, definition: AgentDefinition) -> DeltaPublisher:
        """What shows the answer of this attempt while it is written."""
        shows = Shows(
            session=request.session,
            turn=request.turn,
            step=request.step,
            attempt=request.fallback * FALLBACK_ATTEMPTS + activity.info().attempt,
            tools={tool.name for tool in definition.tools},
            thinking=definition.stream_thinking,
            secrets=self._secrets_of(definition),
        )
        return DeltaPublisher(self._store.live, shows)

    async def load_paid(self, request: StepRequest) -> Paid:
        """What tries of this call have cost that failed."""
        return paid_of_retries(await self.load_retries(request))

    async def _load_step_retries(self, request: StepRequest, keeping: Paid = NOTHING_PAID) -> list[GenerationRetry]:
        recorded = await _ask(lambda: self._store.retries(request.session, request.turn, request.step), keeping)
        retries = [line.event for line in recorded if isinstance(line.event, GenerationRetry)]
        return [retry for retry in retries if retry.compaction == isinstance(request, Compact)]

    async def record(self, request: StepRequest, key: str, event: Event, keeping: Paid = NOTHING_PAID) -> None:
        """Write an event of the step, once for each key; one that tells of a cost waits for a store that is away."""
        await _ask(lambda: self._store.append_events(request.session, [event_of(request, key, event)]), keeping)

    def count_lost(self, definition: AgentDefinition, paid: Paid) -> None:
        """Count what was paid for an answer that is in no turn: another attempt was first, or the turn had ended."""
        count_paid(self._metrics, definition.model, "lost", paid, agent=definition.name, tenant="")

    def count_refused(self, definition: AgentDefinition, paid: Paid) -> None:
        """Count what was paid for an answer that the store refused: its turn knows of it, the log cannot."""
        count_paid(self._metrics, definition.model, "failed", paid, agent=definition.name, tenant="")


def _waited_after(retry: GenerationRetry, error: CallFailedError) -> float:
    """Seconds of a retry's wait that passed before the next call; none if its worker was lost before the wait began."""
    between = (error.failed_at - retry.failed_at).total_seconds() - error.seconds
    return min(retry.wait_seconds, max(between, 0.0))


async def _ask(work: Callable[[], Awaitable[T]], keeping: Paid) -> T:
    """Ask the store; while it is away, an attempt that has paid for what it holds waits, and any other one fails."""
    if keeping == NOTHING_PAID:
        async with store_failures():
            return await work()
    return await write_until_stored(work)


def paid_for(answer: Answer) -> Paid:
    """What was paid for an answer; for one of a recording nobody was."""
    return NOTHING_PAID if answer.recorded else Paid().plus(answer.usage, answer.cost_usd)


def own_key(key: str) -> str:
    """The key of an event that an activity writes once: a turn that was reset makes the same step with other ones."""
    info = activity.info()
    return f"{key}/{info.workflow_run_id}/{info.activity_id}"


def _without_secrets(value: JsonValue, secrets: Collection[str]) -> JsonValue:
    """Reasoning without secrets."""
    if isinstance(value, dict):
        return {name: _without_secrets(part, secrets) for name, part in value.items()}
    if isinstance(value, list):
        return [_without_secrets(part, secrets) for part in value]
    return without_known(value, secrets) if isinstance(value, str) else value


def paid_of_retries(retries: Iterable[GenerationRetry]) -> Paid:
    """What failed calls have cost."""
    paid = Paid()
    for retry in retries:
        paid = paid.plus(retry.usage, retry.cost_usd)
    return paid


def _show(gate: Gate, sent: Sent, facts: FailureFacts, *, served: bool) -> bool:
    """Let the gate learn from a failed call: a refusal slows all calls of the key, an answer of no use was served.

    Returns:
        Whether the other workers of the fleet are to learn of it too.
    """
    if served:
        gate.serve(sent)
    elif facts.status in REFUSALS and reason_of(facts).transient:
        return gate.refuse(sent, facts.status, facts.retry_after_seconds)
    return False


async def _call_model(
    definition: AgentDefinition, messages: list[WireMessage], ceiling: int | None, shown: DeltaPublisher | None
) -> Answer:
    bounded = definition if ceiling is None else with_ceiling(definition, ceiling)
    async with nullcontext() if shown is None else shown:
        call = complete(bounded, messages, may_be_cut=ceiling is not None, shown=shown)
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
    return ErrorDetail(code=code, title="generation", message=text[:MAX_MESSAGE], type=class_of(facts))
