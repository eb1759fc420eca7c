"""The activity ``generate``: read the conversation, call the model, store the answer as a step, return what is new.

Safe to run twice: the answer is stored under the key of its input before it is returned, and a second attempt that
finds it there neither calls the model nor pays again.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Collection
from datetime import datetime, timedelta
from typing import TypeVar

from temporalio import activity

from activities.answers import event_of, finished, generation_of, starting, step_of, told
from activities.conversations import Conversations, WireMessage, wire
from activities.definitions import Definitions
from activities.errors import permanent, store_failures, transient
from activities.failures import facts_of
from activities.heartbeat import beating
from activities.metrics import Metrics
from activities.model import Answer, complete
from activities.storing import until_stored
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.errors import REASONS, ErrorDetail, ReasonCode
from perdure.contracts.events import (
    Event,
    GenerationError,
    GenerationRetry,
    GenerationStep,
)
from perdure.contracts.generations import Generate, Generation
from perdure.contracts.messages import AssistantMessage, Message, UserMessage
from perdure.contracts.names import Activity
from perdure.contracts.retries import RetryPolicy
from perdure.engine.retries import FailureFacts, classify, decide, is_ambiguous
from perdure.store import StepRecord, Store

MAX_CALLS = 500
"""Most tool calls of one answer: a server takes 2,000 running activities of a workflow, and 2 MB from one activity."""

NOT_AGAIN = (
    "the provider may have carried the call out, so it is not sent again: "
    "the agent's retry policy says ambiguous='fail'"
)
"""Stands behind a failure that another policy would have retried."""

LARGE_ARGUMENTS = 200_000
"""Masking more than so many characters takes longer than a blink."""

T = TypeVar("T")


class DeadlineExceededError(TimeoutError):
    """The model call took longer than the agent's generation_timeout."""


class TooManyCallsError(Exception):
    """The answer asks for more tool calls than a workflow can have at once."""


class GenerateActivity:
    """Model calls of one worker."""

    def __init__(
        self,
        *,
        store: Store,
        definitions: Definitions,
        conversations: Conversations,
        metrics: Metrics,
        secrets: Collection[str],
    ) -> None:
        self._store = store
        self._definitions = definitions
        self._conversations = conversations
        self._metrics = metrics
        self._secrets = secrets

    @activity.defn(name=Activity.GENERATE)
    async def generate(self, request: Generate) -> Generation:
        """Call the model and store its answer as a step."""
        async with beating():
            definition = await self._definitions.get(request.definition)
            messages = await self._conversations.read(request.session, request.parent)
            async with store_failures():
                begun = await self._store.begin_generation(request, starting(request, definition, len(messages)))
            if begun.answer is not None:
                return await self._stored(request, begun.answer)
            new: tuple[Message, ...] = (
                *begun.results,
                *(UserMessage(content=message.prompt) for message in request.steered),
            )
            return await self._call(request, definition, new)

    async def _call(self, request: Generate, definition: AgentDefinition, new: tuple[Message, ...]) -> Generation:
        messages = await self._conversations.read(request.session, request.parent)
        prompt: list[WireMessage] = (
            [{"role": "system", "content": definition.instructions}] if definition.instructions else []
        )
        began = time.monotonic()
        try:
            answer = await _within(
                definition.generation_timeout, complete(definition, [*prompt, *messages, *map(wire, new)])
            )
            _check_calls(answer)
        except Exception as error:  # noqa: BLE001 - the edge: whatever a provider library raises becomes a reason code
            failed_at = activity.info().started_time + timedelta(seconds=time.monotonic() - began)
            return await self._failed(request, definition, new, facts_of(error, failed_at, self._secrets), failed_at)
        seconds = time.monotonic() - began
        step, ledger = await _off_the_loop_if_large(
            answer, lambda: step_of(request, definition, new, answer, self._secrets)
        )
        events = finished(request, definition, step, answer, seconds)
        stored = await until_stored(lambda: self._store.finish_generation(step, ledger, events))
        self._conversations.extend(request.session, request.parent, stored.id, stored.messages)
        self._count(definition, answer, seconds)
        return generation_of(stored)

    async def _stored(self, request: Generate, step: StepRecord) -> Generation:
        """What an earlier attempt has stored: an answer, or a failure of which the model is told."""
        if isinstance(step.messages[-1], AssistantMessage):
            return generation_of(step)
        async with store_failures():
            retries = await self._store.retries(request.session, request.turn, request.step)
        waits = [line.event.wait_seconds for line in retries if isinstance(line.event, GenerationRetry)]
        return told(step, waits[-1] if waits else 0.0)

    async def _failed(
        self,
        request: Generate,
        definition: AgentDefinition,
        new: tuple[Message, ...],
        facts: FailureFacts,
        failed_at: datetime,
    ) -> Generation:
        """Record the failure as an event, then end the attempt: to be sent again after a wait, or for good.

        Under ``on_retry: tell_model`` the failure becomes a step of its own instead. The number of the try is counted
        from the step's recorded retries, or by the workflow, so an attempt lost with its worker uses none up; time is
        Temporal's, the start of the attempt plus what has passed since: a worker's clock may be wrong.
        """
        tells = definition.retry.on_retry == "tell_model"
        async with store_failures():
            before = await self._store.retries(request.session, request.turn, request.step)
        first = next((e.event.failed_at for e in before if isinstance(e.event, GenerationRetry)), failed_at)
        code = classify(facts)
        attempt, ambiguous = (request.failures if tells else len(before)) + 1, is_ambiguous(facts, code)
        wait = decide(
            definition.retry,
            code,
            ambiguous=ambiguous,
            attempt=attempt,
            elapsed=failed_at - first,
            retry_after=facts.retry_after_seconds,
            jitter_sample=random.random(),  # noqa: S311 - jitter needs no secrecy
        )
        detail = _detail(request, definition, facts, code)
        if wait is None:
            detail = _final(detail, definition.retry, code, attempt=attempt, ambiguous=ambiguous)
            await self._record(request, "error", GenerationError(error=detail))
            raise permanent(detail) from None  # the chain holds unredacted texts, and would stand in the history
        retry = GenerationRetry(
            attempt=attempt,
            max_attempts=definition.retry.max_retries,
            wait_seconds=wait.total_seconds(),
            code=code,
            error_type=facts.class_name,
            error_message=facts.text,
            failed_at=failed_at,
        )
        self._metrics.generation_retries.labels(definition.model, code).inc()
        if tells:
            return await self._tell(request, new, retry)
        await self._record(request, f"retry/{attempt}", retry)
        next_try = f"; retry {attempt} of {definition.retry.max_retries} in {wait.total_seconds():.1f} s"
        raise transient(detail.model_copy(update={"message": detail.message + next_try}), wait) from None

    async def _tell(self, request: Generate, new: tuple[Message, ...], retry: GenerationRetry) -> Generation:
        """Store the failure as the step's last message: the model reads it with its next call."""
        failure = UserMessage(content=f"{retry.error_type}: {retry.error_message}")
        step = StepRecord(
            id=request.step_id(),
            session=request.session,
            turn=request.turn,
            step=request.step,
            parent=request.parent,
            messages=(*new, failure),
            finish_reason="error",
        )
        events = [
            event_of(request, f"retry/{retry.attempt}", retry),
            event_of(request, "step", GenerationStep(tip=step.id)),
        ]
        stored = await until_stored(lambda: self._store.finish_generation(step, [], events))
        self._conversations.extend(request.session, request.parent, stored.id, stored.messages)
        return told(stored, retry.wait_seconds)

    async def _record(self, request: Generate, key: str, event: Event) -> None:
        async with store_failures():
            await self._store.append_events(request.session, [event_of(request, key, event)])

    def _count(self, definition: AgentDefinition, answer: Answer, seconds: float) -> None:
        metrics, model, usage = self._metrics, definition.model, answer.usage
        metrics.steps.labels(definition.name).inc()
        metrics.generation_seconds.labels(model).observe(seconds)
        metrics.tokens.labels(model, "input").inc(usage.input_tokens)
        metrics.tokens.labels(model, "output").inc(usage.output_tokens)
        metrics.tokens.labels(model, "cached").inc(usage.cached_tokens)
        metrics.cost_usd.labels(model).inc(float(answer.cost_usd or 0))


async def _within(limit: timedelta, call: Awaitable[Answer]) -> Answer:
    """The answer, or :class:`DeadlineExceededError`; litellm's own time-out bounds a silence only."""
    deadline = asyncio.timeout(limit.total_seconds())
    try:
        async with deadline:
            return await call
    except TimeoutError as error:
        if not deadline.expired():
            raise
        msg = f"the model did not answer within generation_timeout ({limit.total_seconds():g} s)"
        raise DeadlineExceededError(msg) from error


def _check_calls(answer: Answer) -> None:
    if len(answer.calls) > MAX_CALLS:
        msg = f"the answer asks for {len(answer.calls):,} tool calls at once, the limit is {MAX_CALLS}"
        raise TooManyCallsError(msg)


async def _off_the_loop_if_large(answer: Answer, work: Callable[[], T]) -> T:
    """The result of the work; on a thread if the arguments are so long that masking them would hold up the beats."""
    if sum(len(call.arguments) for call in answer.calls) <= LARGE_ARGUMENTS:
        return work()
    return await asyncio.to_thread(work)


def _final(detail: ErrorDetail, policy: RetryPolicy, code: ReasonCode, *, attempt: int, ambiguous: bool) -> ErrorDetail:
    """The failure with the rule of the agent's policy that ends the chain, where it is not plain from the failure."""
    text = detail.message
    if ambiguous and policy.ambiguous == "fail":
        text = f"{text}; {NOT_AGAIN}"
    elif policy.on_retry == "tell_model" and REASONS[code].transient and attempt > policy.max_retries:
        text = f"more than {policy.max_retries} failures in a row: {text}"
    return detail.model_copy(update={"message": text})


def _detail(request: Generate, definition: AgentDefinition, facts: FailureFacts, code: ReasonCode) -> ErrorDetail:
    """The failure as one sentence that stands alone: step, model, cause, and what the provider said."""
    status = f" (HTTP {facts.status})" if facts.status else ""
    reason, semicolon, advice = REASONS[code].text.partition("; ")
    said = facts.text.rstrip(".") if advice else facts.text
    message = f"step {request.step}, {definition.model}: {reason}{status}: {said}{semicolon}{advice}"
    return ErrorDetail(code=code, title="generation", message=message[:2_000], type=facts.class_name)
