"""The activity ``generate``: read the conversation, call the model, record its answer as a step, return what is new.

A failed call is judged: it is sent again after a wait, told to the model, or ends the turn.

Safe to run twice: the answer is stored under the key of its input before it is returned. A second attempt that finds it
there does not call the model again. Likewise a failure that ends the call is recorded before it is raised, and a second
attempt raises it again. An answer whose worker dies before it is stored is lost: the next attempt buys another one, and
no event has the cost of the first.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from temporalio import activity
from temporalio.exceptions import ApplicationError

from perdure.activities.conditions import matches
from perdure.activities.errors import permanent, runtime_error
from perdure.activities.faults import faults_are_final, is_fault
from perdure.activities.heartbeat import is_stop, keep_beating, note_kept
from perdure.activities.models.attempt import (
    CallFailedError,
    ModelCall,
    Prompt,
    describe_loss,
    paid_for,
    record_failure,
)
from perdure.activities.models.conversations import Conversations
from perdure.activities.models.cost_ceiling import Counted, NotAffordableError, ceiling, text_only, with_choice
from perdure.activities.models.model_call import Answer, PromptAssemblyError, guard_assembly, system_prompt
from perdure.activities.models.record_answer import (
    OutputCheck,
    answer_in,
    check_output,
    end_events,
    failure_told,
    generation_of,
    is_answer,
    start_events,
    step_of,
)
from perdure.activities.models.step_log import StepLog, event_of
from perdure.activities.parts import ActivityParts
from perdure.activities.secrets import with_masked_results
from perdure.activities.store_access import store_failures, write_answer, write_until_stored
from perdure.agents.settings import problem_of
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.budgets import Paid
from perdure.contracts.conditions import GenerationCount, walk_conditions
from perdure.contracts.errors import REASONS, ErrorDetail, ReasonCode
from perdure.contracts.events import CONTENT_CHARACTERS, GenerationContent, GenerationRetry, GenerationStep
from perdure.contracts.generations import Generate, Generation
from perdure.contracts.messages import AssistantMessage, Message, UserMessage
from perdure.contracts.names import Activity
from perdure.contracts.values import JsonValue
from perdure.llm.openai_format import WireMessage, wire
from perdure.schema_checks import run_off_the_loop
from perdure.store import LedgerCall, StepRecord

LARGE_ANSWER = 100_000
"""Characters of an answer whose masking and checking would block the event loop, and is done on a thread."""

CHECK_SECONDS = 30.0
"""Longest time that an output type's validators may take."""

logger = logging.getLogger("perdure.worker")

T = TypeVar("T")


@dataclass(frozen=True)
class Given:
    """Inputs of a generation.

    Attributes:
        request: What the workflow asks for.
        log: The events of the step.
        definition: The agent as the turn froze it, with the fallback's model if one is at work.
        call: The call of that model; if the request is for text only, it may not ask for tools.
        conversation: The messages up to the step's parent, which the model has seen before.
        new: The messages since then: results of calls, and messages of users and hooks.
        is_watched: Whether somebody follows the session's deltas.
    """

    request: Generate
    log: StepLog
    definition: AgentDefinition
    call: ModelCall
    conversation: list[WireMessage]
    new: tuple[Message, ...]
    is_watched: bool = False


class GenerateActivity:
    """The generations of one worker."""

    def __init__(self, parts: ActivityParts) -> None:
        self._parts = parts
        self._store = parts.store
        self._secrets = parts.secrets
        self._conversations = Conversations(parts.store)

    @activity.defn(name=Activity.GENERATE)
    async def generate(self, request: Generate) -> Generation:
        """Call the model and store its answer as a step."""
        request = with_masked_results(request, self._secrets)
        log = StepLog(self._store, request)
        async with (
            keep_beating(on_lost=lambda detail: describe_loss(log, detail)),
            faults_are_final(self._secrets, log.untold),
        ):
            given, stored = await self._read(request, log)
            if stored is not None:
                return await self._return_stored(given, stored)
            if (ended := await log.load_recorded_end()) is not None:
                raise ended
            try:
                answer, seconds, streamed = await self._call(given)
            except NotAffordableError as error:
                raise permanent(error.detail, await log.load_paid()) from None
            except PromptAssemblyError as error:
                return await self._judge(given, given.call.describe_failure(error))
            except CallFailedError as error:
                return await self._judge(given, error)
            except Exception as error:
                if not is_fault(error):
                    raise
                return await self._judge(given, given.call.describe_failure(error))
            try:
                step, rejected, is_ours = await self._record(given, answer, seconds)
                note_kept()
            except ApplicationError as error:
                raise await self._explain_refusal(given, answer, error) from None
            except BaseException as error:
                if is_stop(error):
                    raise
                # Whatever it is, it would be bought again every second.
                return await self._judge(given, given.call.describe_unkept_answer(answer, error))
            if streamed:
                await self._forget_deltas(request)
            if not is_ours:
                return await self._return_stored(given, step)
            return await self._return(given, step, rejected)

    async def _read(self, request: Generate, log: StepLog) -> tuple[Given, StepRecord | None]:
        """Read the model's input, and the step that an earlier attempt stored, if one did."""
        async with store_failures():
            await self._store.require(request.store)
        definition = (await self._parts.definitions.get(request.definition)).using(request.fallback)
        conversation = await self._conversations.read(request.session, request.parent)
        async with store_failures():
            begun = await self._store.begin_generation(request, start_events(request, definition, len(conversation)))
        new: tuple[Message, ...] = (
            *begun.results,
            *(UserMessage(content=text) for text in request.said),
            *(UserMessage(content=message.prompt, parts=message.parts) for message in request.steered),
        )
        asked = text_only(definition) if request.text_only else with_choice(definition, request.tool_choice)
        call = ModelCall(self._parts, log, asked)
        return Given(request, log, definition, call, conversation, new, begun.is_watched), begun.answer

    async def _call(self, given: Given) -> tuple[Answer, float, bool]:
        """The model's answer, the seconds it took, and whether it came as a stream."""
        request, asked = given.request, given.call.definition
        with guard_assembly():
            sent = [*system_prompt(asked), *given.conversation, *map(wire, given.new)]
        most = None
        if request.cost_left is not None:
            left = request.cost_left - (await given.log.load_paid()).cost_usd
            async with store_failures():
                parent = await self._store.step(request.parent)
            most = ceiling(asked, sent, left, _read_counted(request, parent, len(sent) - len(given.new)))
        shown = given.call.make_publisher() if await self._streams(given) else None
        may_cut = request.compacted or _is_mostly_new(sent, given.new)
        answer, seconds = await given.call.send(Prompt(sent, most, shown, may_cut))
        return answer, seconds, shown is not None

    async def _streams(self, given: Given) -> bool:
        """Whether the model is asked for a stream."""
        mode = given.definition.stream
        wanted = mode == "always" or (mode == "watched" and given.is_watched)
        return wanted and await given.log.may_stream()

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
        failure = await given.call.classify_failure(error, request.failures if tells else None)
        if failure.detail.code == ReasonCode.LLM_CONTEXT_OVERFLOW and not request.compacted:
            given.call.count_lost(error.paid)
            raise permanent(failure.detail) from None
        if failure.retry is not None and tells:
            return await self._record_failure(given, failure.retry)
        if failure.retry is None and error.unkept:
            content = GenerationContent(content=error.unkept[:CONTENT_CHARACTERS])
            await given.log.record("content", content)
        raise await record_failure(given.log, failure) from None

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
            step, rejected = check_output(request, definition, made, self._output_check(definition))
            return step, ledger, rejected

        step, ledger, rejected = await _run_off_the_loop_if_slow(definition, answer, make)
        events = [
            *given.call.events_of_adapting(),
            *end_events(request, definition, step, seconds, rejected, recorded=answer.recorded),
        ]
        stored, at_once = await write_answer(lambda: self._store.finish_generation(step, ledger, events))
        if stored.messages is not step.messages:  # the step itself may be a copy, whose calls were let through
            if at_once:
                given.call.count_lost(paid_for(answer))
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
            model=given.definition.model,
        )
        events = [
            event_of(request, f"retry/{retry.attempt}", retry),
            event_of(request, "step", GenerationStep(tip=step.id)),
        ]
        stored = await write_until_stored(lambda: self._store.finish_generation(step, [], events))
        note_kept()
        if stored is not step:
            return await self._return_stored(given, stored)
        self._conversations.extend(request.session, request.parent, stored.id, stored.messages)
        return failure_told(stored, retry.wait_seconds)

    async def _explain_refusal(self, given: Given, answer: Answer, error: ApplicationError) -> ApplicationError:
        """The error of an answer that the store refused, with step, model and cost; any other error unchanged."""
        request, bought = given.request, paid_for(answer)
        if error.type != ReasonCode.RUNTIME_STORE_REFUSED:
            given.call.count_lost(bought)
            return error
        given.call.count_refused(bought)
        paid = (await given.log.load_paid()).plus(answer.usage, answer.cost_usd)
        advice = REASONS[ReasonCode.RUNTIME_STORE_REFUSED].advice.replace("SESSION", request.session)
        place = f"step {request.step}, {given.definition.model}"
        message = f"{place}: the answer could not be stored: {error.message}; {advice}"
        return permanent(runtime_error(ReasonCode.RUNTIME_STORE_REFUSED, message), paid)

    async def _return_stored(self, given: Given, step: StepRecord) -> Generation:
        """Generation for the workflow from a step that another attempt stored: an answer, or a failure to tell."""
        request, definition = given.request, given.definition
        given.log.stored = Paid().plus(step.usage, step.cost_usd)
        if is_answer(step):
            _, rejected = await run_off_the_loop(
                lambda: check_output(request, definition, step, self._output_check(definition))
            )
            return await self._return(given, step, rejected)
        retries = await given.log.load_retries()
        return failure_told(step, retries[-1].wait_seconds if retries else 0.0)

    async def _return(self, given: Given, step: StepRecord, rejected: ErrorDetail | None) -> Generation:
        """Result for the workflow from an answer, with the stop conditions that hold for its text."""
        request, conditions = given.request, given.definition.conditions
        given.log.stored = Paid().plus(step.usage, step.cost_usd)
        matched, problem = await matches(given.definition, None, answer_in(step).content) if conditions else ((), None)
        if problem is not None:
            raise permanent(problem)
        counts = any(isinstance(part, GenerationCount) and part.retries for part in walk_conditions(conditions))
        retries = await given.log.count_retries() if counts else 0
        tried = activity.info().attempt > 1 or request.cost_left is not None
        paid = await given.log.load_paid() if tried else Paid()
        return generation_of(step, rejected, matched=matched, retries=retries, failed=paid)

    def _output_check(self, definition: AgentDefinition) -> OutputCheck | None:
        """The checks of the output schema's type; None if this worker's agent lacks it, or has another schema by now.

        They are the author's code, which may never end.
        """
        agent = self._parts.agents.get(definition.name) if definition.output_schema is not None else None
        if agent is None or agent.output_schema != definition.output_schema:
            return None
        output_type = agent.output_type
        if output_type is None:
            return None

        def check(value: JsonValue) -> str | None:
            name = f"output_schema of {definition.name}"
            try:
                return self._parts.bodies.call_within(CHECK_SECONDS, name, lambda: problem_of(output_type, value))
            except TimeoutError as error:
                return f"a validator of output_schema did not end: {error}; correct the validator"

        return check


def _is_mostly_new(sent: list[WireMessage], new: tuple[Message, ...]) -> bool:
    """Whether one new message is longer than all others, so that no summary of these could make room for it."""
    longest = max((len(message.content) for message in new), default=0)
    return longest > sum(len(str(message.get("content") or "")) for message in sent) - longest


def _read_counted(request: Generate, parent: StepRecord | None, before: int) -> Counted:
    """Messages and tokens of the parent step's prompt, as the provider counted them.

    Nothing after a model fallback, after a compaction, or for the first step of a turn: that prompt was another one.
    An estimate does not bound them.
    """
    if parent is None or parent.turn != request.turn or request.fallback or parent.summarised is not None:
        return Counted()
    if not is_answer(parent) or not parent.usage.input_tokens or parent.usage.estimated:
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
