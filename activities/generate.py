"""The activity ``generate``: read the conversation, call the model, record its answer as a step, return what is new.

A failed call is judged: it is sent again after a wait, told to the model, or ends the turn.

Safe to run twice: the answer is stored under the key of its input before it is returned. A second attempt that finds it
there does not call the model again. Likewise a failure that ends the call is recorded before it is raised, and a second
attempt raises it again. An answer whose worker dies before it is stored is lost: the next attempt buys another one, and
no event has the cost of the first.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import TypeAdapter
from temporalio import activity
from temporalio.exceptions import ApplicationError

from perdure.activities.agents import Definitions
from perdure.activities.conditions import matches
from perdure.activities.conversations import Conversations
from perdure.activities.cost_ceiling import Counted, NotAffordableError, ceiling, text_only
from perdure.activities.errors import permanent, runtime_error
from perdure.activities.heartbeat import keep_beating
from perdure.activities.litellm_call import Answer, PromptAssemblyError, guard_assembly, system_prompt
from perdure.activities.model_attempt import Attempts, CallFailedError, paid_for
from perdure.activities.record_answer import (
    CONTENT_CHARACTERS,
    answer_in,
    check_output,
    end_events,
    event_of,
    failure_told,
    generation_of,
    is_answer,
    start_events,
    step_of,
)
from perdure.activities.store_access import store_failures, write_answer, write_until_stored
from perdure.agents.agent import Agent
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.budgets import Paid
from perdure.contracts.conditions import GenerationCount, walk_conditions
from perdure.contracts.errors import REASONS, ErrorDetail, ReasonCode
from perdure.contracts.events import GenerationContent, GenerationRetry, GenerationStep
from perdure.contracts.generations import Generate, Generation
from perdure.contracts.messages import AssistantMessage, Message, UserMessage
from perdure.contracts.names import Activity
from perdure.llm.openai_format import WireMessage, wire
from perdure.schema_checks import run_off_the_loop
from perdure.store import LedgerCall, StepRecord, Store

LARGE_ANSWER = 100_000
"""Characters of an answer whose masking and checking would block the event loop, and is done on a thread."""

logger = logging.getLogger("perdure.worker")

T = TypeVar("T")


@dataclass(frozen=True)
class Given:
    """What a generation is made from.

    Attributes:
        request: What the workflow asks for.
        definition: The agent as the turn froze it, with the fallback's model if one is at work.
        conversation: The messages up to the step's parent, which the model has seen before.
        new: The messages since then: results of calls, and messages of users and hooks.
        is_watched: Whether somebody follows the session's deltas.
    """

    request: Generate
    definition: AgentDefinition
    conversation: list[WireMessage]
    new: tuple[Message, ...]
    is_watched: bool = False


class GenerateActivity:
    """The generations of one worker."""

    def __init__(
        self,
        *,
        store: Store,
        agents: Mapping[str, Agent],
        definitions: Definitions,
        conversations: Conversations,
        attempts: Attempts,
        secrets: Collection[str],
    ) -> None:
        self._store = store
        self._agents = agents
        self._definitions = definitions
        self._conversations = conversations
        self._attempts = attempts
        self._secrets = secrets

    @activity.defn(name=Activity.GENERATE)
    async def generate(self, request: Generate) -> Generation:
        """Call the model and store its answer as a step."""
        async with keep_beating(on_lost=lambda detail: self._attempts.describe_loss(request, detail)):
            given, stored = await self._read(request)
            if stored is not None:
                return await self._return_stored(given, stored)
            if (ended := await self._attempts.load_recorded_end(request)) is not None:
                raise ended
            try:
                answer, seconds, streamed = await self._call(given)
            except NotAffordableError as error:
                raise permanent(error.detail, await self._attempts.load_paid(request)) from None
            except PromptAssemblyError as error:
                return await self._judge(given, self._attempts.describe_failure(given.definition, error))
            except CallFailedError as error:
                return await self._judge(given, error)
            try:
                step, rejected, is_ours = await self._record(given, answer, seconds)
            except ApplicationError as error:
                raise await self._explain_refusal(given, answer, error) from None
            except Exception as error:  # noqa: BLE001 - whatever it is, it would be bought again every second
                return await self._judge(given, self._attempts.describe_unkept_answer(given.definition, answer, error))
            if streamed:
                await self._forget_deltas(request)
            if not is_ours:
                return await self._return_stored(given, step)
            return await self._return(given, step, rejected)

    async def _read(self, request: Generate) -> tuple[Given, StepRecord | None]:
        """What the model is to read, and the step that an earlier attempt stored, if one did."""
        async with store_failures():
            await self._store.require(request.store)
        definition = (await self._definitions.get(request.definition)).using(request.fallback)
        conversation = await self._conversations.read(request.session, request.parent)
        async with store_failures():
            begun = await self._store.begin_generation(request, start_events(request, definition, len(conversation)))
        new: tuple[Message, ...] = (
            *begun.results,
            *(UserMessage(content=text) for text in request.said),
            *(UserMessage(content=message.prompt, parts=message.parts) for message in request.steered),
        )
        return Given(request, definition, conversation, new, begun.is_watched), begun.answer

    async def _call(self, given: Given) -> tuple[Answer, float, bool]:
        """The model's answer, the seconds it took, and whether it came as a stream."""
        request = given.request
        asked = text_only(given.definition) if request.text_only else given.definition
        with guard_assembly():
            sent = [*system_prompt(asked), *given.conversation, *map(wire, given.new)]
        most = None
        if request.cost_left is not None:
            left = request.cost_left - (await self._attempts.load_paid(request)).cost_usd
            async with store_failures():
                parent = await self._store.step(request.parent)
            most = ceiling(asked, sent, left, _read_counted(request, parent, len(sent) - len(given.new)))
        shown = self._attempts.publisher_of(request, asked) if await self._streams(given) else None
        answer, seconds = await self._attempts.call(request, asked, sent, ceiling=most, shown=shown)
        return answer, seconds, shown is not None

    async def _streams(self, given: Given) -> bool:
        """Whether the model is asked for a stream."""
        mode = given.definition.stream
        wanted = mode == "always" or (mode == "watched" and given.is_watched)
        return wanted and await self._attempts.may_stream(given.request)

    async def _forget_deltas(self, request: Generate) -> None:
        """Delete the deltas of an answer that is stored. What a failure leaves behind is swept later."""
        try:
            await self._store.live.forget(request.session, request.turn, request.step)
        except Exception as error:  # noqa: BLE001 - whatever the database says, the answer is stored
            logger.info("the pieces of an answer are left where they are: %s", type(error).__name__)

    async def _judge(self, given: Given, error: CallFailedError) -> Generation:
        """Record the failure as an event, and raise it: retryable with a wait, or final.

        Under ``on_retry: tell_model`` a retryable failure becomes a step instead, which is returned. A context that is
        too long is not recorded as the end of the call: the workflow first compacts the conversation, once per step.
        """
        request, definition = given.request, given.definition
        tells = definition.retry.on_retry == "tell_model"
        failure = await self._attempts.classify_failure(request, definition, error, request.failures if tells else None)
        if failure.detail.code == ReasonCode.LLM_CONTEXT_OVERFLOW and not request.compacted:
            self._attempts.count_lost(definition, error.paid)
            raise permanent(failure.detail) from None
        if failure.retry is not None and tells:
            return await self._record_failure(given, failure.retry)
        if failure.retry is None and error.unkept:
            content = GenerationContent(content=error.unkept[:CONTENT_CHARACTERS])
            await self._attempts.record(request, "content", content)
        raise await self._attempts.record_failure(request, failure) from None

    async def _record(
        self, given: Given, answer: Answer, seconds: float
    ) -> tuple[StepRecord, ErrorDetail | None, bool]:
        """Store the answer.

        Returns:
            The stored step, the error of an answer that does not fit the output schema, and False if another attempt
            stored its answer first: the step is that one's then.
        """
        request, definition = given.request, given.definition

        def make() -> tuple[StepRecord, list[LedgerCall], ErrorDetail | None]:
            made, ledger = step_of(request, definition, given.new, answer, self._secrets)
            step, rejected = check_output(request, definition, made, self._output_type(definition))
            return step, ledger, rejected

        step, ledger, rejected = await _run_off_the_loop_if_slow(definition, answer, make)
        events = end_events(request, definition, step, seconds, rejected, recorded=answer.recorded)
        stored, at_once = await write_answer(lambda: self._store.finish_generation(step, ledger, events))
        if stored is not step:
            if at_once:
                self._attempts.count_lost(definition, paid_for(answer))
            return stored, None, False
        self._conversations.extend(request.session, request.parent, stored.id, stored.messages)
        return stored, rejected, True

    async def _record_failure(self, given: Given, retry: GenerationRetry) -> Generation:
        """Store the failure as the last message of a step: the model reads it with its next call."""
        request = given.request
        step = StepRecord(
            id=request.step_id(),
            session=request.session,
            turn=request.turn,
            step=request.step,
            parent=request.parent,
            messages=(*given.new, UserMessage(content=f"{retry.error_type}: {retry.error_message}")),
            finish_reason="error",
            usage=retry.usage,
            cost_usd=retry.cost_usd,
        )
        events = [
            event_of(request, f"retry/{retry.attempt}", retry),
            event_of(request, "step", GenerationStep(tip=step.id)),
        ]
        stored = await write_until_stored(lambda: self._store.finish_generation(step, [], events))
        if stored is not step:
            return await self._return_stored(given, stored)
        self._conversations.extend(request.session, request.parent, stored.id, stored.messages)
        return failure_told(stored, retry.wait_seconds)

    async def _explain_refusal(self, given: Given, answer: Answer, error: ApplicationError) -> ApplicationError:
        """The error of an answer that the store refused, with step, model and cost; any other error unchanged."""
        request, bought = given.request, paid_for(answer)
        if error.type != ReasonCode.RUNTIME_STORE_REFUSED:
            self._attempts.count_lost(given.definition, bought)
            return error
        self._attempts.count_refused(given.definition, bought)
        paid = (await self._attempts.load_paid(request)).plus(answer.usage, answer.cost_usd)
        advice = REASONS[ReasonCode.RUNTIME_STORE_REFUSED].advice.replace("SESSION", request.session)
        place = f"step {request.step}, {given.definition.model}"
        message = f"{place}: the answer could not be stored: {error.message}; {advice}"
        return permanent(runtime_error(ReasonCode.RUNTIME_STORE_REFUSED, message), paid)

    async def _return_stored(self, given: Given, step: StepRecord) -> Generation:
        """What the workflow needs of a step that another attempt stored: an answer, or a failure told to the model."""
        request, definition = given.request, given.definition
        if is_answer(step):
            _, rejected = await run_off_the_loop(
                lambda: check_output(request, definition, step, self._output_type(definition))
            )
            return await self._return(given, step, rejected)
        retries = await self._attempts.load_retries(request)
        return failure_told(step, retries[-1].wait_seconds if retries else 0.0)

    async def _return(self, given: Given, step: StepRecord, rejected: ErrorDetail | None) -> Generation:
        """What the workflow needs of an answer, with the stop conditions that hold for its text."""
        request, conditions = given.request, given.definition.conditions
        matched, problem = await matches(given.definition, None, answer_in(step).content) if conditions else ((), None)
        if problem is not None:
            raise permanent(problem)
        counts = any(isinstance(part, GenerationCount) and part.retries for part in walk_conditions(conditions))
        retries = await self._attempts.count_retries(request) if counts else 0
        tried = activity.info().attempt > 1 or request.cost_left is not None
        paid = await self._attempts.load_paid(request) if tried else Paid()
        return generation_of(step, rejected, matched=matched, retries=retries, failed=paid)

    def _output_type(self, definition: AgentDefinition) -> TypeAdapter[Any] | None:
        """The type of the turn's output schema; None if this worker's agent lacks it, or has another schema by now."""
        agent = self._agents.get(definition.name) if definition.output_schema is not None else None
        if agent is None or agent.output_schema != definition.output_schema:
            return None
        return agent.output_type


def _read_counted(request: Generate, parent: StepRecord | None, before: int) -> Counted:
    """Messages and tokens of the parent step's prompt, as the provider counted them.

    Nothing after a model fallback, after a compaction, or for the first step of a turn: that prompt was another one.
    """
    if parent is None or parent.turn != request.turn or request.fallback or parent.summarised is not None:
        return Counted()
    if not is_answer(parent) or not parent.usage.input_tokens:
        return Counted()
    place = next(at for at, message in enumerate(parent.messages) if isinstance(message, AssistantMessage))
    return Counted(messages=before - (len(parent.messages) - place), tokens=parent.usage.input_tokens)


async def _run_off_the_loop_if_slow(definition: AgentDefinition, answer: Answer, work: Callable[[], T]) -> T:
    """The result of the work. It runs on a thread if it may block the event loop: for long answers, or with schemas."""
    is_long = len(answer.text) + sum(len(call.arguments) for call in answer.calls) > LARGE_ANSWER
    is_governed = definition.approvals.rules or any(
        tool.interactive or tool.requires_approval or tool.delegate for tool in definition.tools
    )
    if is_long or definition.output_schema is not None or (answer.calls and is_governed):
        return await run_off_the_loop(work)
    return work()
