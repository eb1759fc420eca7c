"""The activity ``compact``: have a model summarise the beginning of a conversation, and store the summary as a step.

Safe to run twice: the summary is stored under the key of its input. A second attempt that finds it there, or finds the
failure that ended the first, does not call the model again. Every message stays in the store; only what models read
from here on changes.
"""

from decimal import Decimal

from temporalio import activity
from temporalio.exceptions import ApplicationError

from perdure.activities.errors import permanent
from perdure.activities.faults import faults_are_final
from perdure.activities.heartbeat import is_stop, keep_beating, note_kept
from perdure.activities.models.attempt import (
    CallFailedError,
    Failure,
    ModelCall,
    Prompt,
    describe_loss,
    paid_for,
    record_failure,
)
from perdure.activities.models.cost_ceiling import NotAffordableError, ceiling
from perdure.activities.models.facts import context_window
from perdure.activities.models.failures import facts_of
from perdure.activities.models.model_call import Answer, EmptyAnswerError
from perdure.activities.models.step_log import StepLog, event_of, own_key
from perdure.activities.parts import ActivityParts
from perdure.activities.store_access import store_failures, write_answer
from perdure.contracts.agents import AgentDefinition, is_destination
from perdure.contracts.budgets import Paid
from perdure.contracts.errors import ErrorDetail, ReasonCode
from perdure.contracts.events import CONTENT_CHARACTERS, CompactionEvent, GenerationError
from perdure.contracts.generations import CUT_OFF, Compact, Compacted
from perdure.contracts.messages import Message, UserMessage
from perdure.contracts.names import Activity
from perdure.contracts.values import replace
from perdure.engine.limits import exhausted_error
from perdure.llm.compaction import (
    INSTRUCTIONS,
    SUMMARISED_SHARE,
    characters_of_one_summary,
    cut_to_ends,
    plan_forced_summary,
    plan_summary,
    replace_beginning,
    summary_in,
    to_summarise,
)
from perdure.llm.openai_format import WireMessage, wire
from perdure.store import StepRecord

FAILED = "compaction/failed"
"""Key of the event that records a compaction's failure."""

CUT = exhausted_error("cost_usd", "the summary was cut off, as more of it was not affordable")
"""The failure of a compaction whose summary did not fit into what was left."""


class CompactActivity:
    """The compactions of one worker."""

    def __init__(self, parts: ActivityParts) -> None:
        self._parts = parts
        self._store = parts.store
        self._secrets = parts.secrets

    @activity.defn(name=Activity.COMPACT)
    async def compact(self, request: Compact) -> Compacted:
        """Summarise the messages that are safe to cut off, and store the summary; nothing if there are none."""
        log = StepLog(self._store, request)
        async with (
            keep_beating(on_lost=lambda detail: describe_loss(log, detail)),
            faults_are_final(self._secrets, log.untold),
        ):
            async with store_failures():
                await self._store.require(request.store)
            definition = (await self._parts.definitions.get(request.definition)).using(request.fallback)
            async with store_failures():
                stored = await self._store.step(request.step_id())
                if stored is not None:
                    return await self._report(log, stored)
                failed = await log.load_recorded(FAILED)
                if isinstance(failed, CompactionEvent) and failed.error is not None:
                    raise await self._compose_end(request, log, failed, failed.error)
                messages = await self._store.conversation(request.parent)
            return await self._summarise(request, log, definition, messages)

    async def _summarise(
        self, request: Compact, log: StepLog, definition: AgentDefinition, messages: tuple[Message, ...]
    ) -> Compacted:
        """Have the model write the summary. If the provider finds the request too long, try with half as much."""
        writer, keep = _writer(definition), definition.compaction.keep
        call = ModelCall(self._parts, log, writer)
        room = _room_of(definition, writer)
        event = CompactionEvent(
            trigger=request.trigger,
            compaction_status="started",
            messages_before=len(messages),
            messages_after=len(messages),
            model=writer.model,
        )
        forced = request.trigger == "overflow_recovery"
        plan_of = plan_forced_summary if forced else plan_summary
        whole = int(room / SUMMARISED_SHARE)
        while (plan := plan_of(messages, keep=keep, room=room))[0]:
            boundary, each = plan
            await log.record("compaction/started", event)
            wishes = (definition.compaction.guidance, request.guidance)
            prompt = to_summarise(messages[:boundary], wishes, each)
            sent: list[WireMessage] = [
                {"role": "system", "content": INSTRUCTIONS},
                wire(UserMessage(content=prompt)),
            ]
            try:
                most = await self._ceiling(request, log, writer, sent)
                answer, seconds = await call.send(Prompt(sent, ceiling=most))
                summary = summary_of(answer, seconds)
                try:
                    shorter = replace_beginning(messages, boundary, summary)
                    shorter = cut_to_ends(shorter, whole) if forced else shorter
                    stored = await self._finish(request, call, event, shorter, answer)
                except ApplicationError:
                    call.count_lost(paid_for(answer))
                    raise
                except BaseException as error:
                    if is_stop(error):
                        raise
                    # Whatever it is, it would be bought again every second.
                    raise call.describe_unkept_answer(answer, error) from None
            except NotAffordableError as error:
                paid = (await log.load_paid()).plus(error.paid.usage, error.paid.cost_usd)
                raise await self._record_failure(
                    request, log, Failure(error.detail, None, paid, error.paid), event
                ) from None
            except CallFailedError as error:
                failure = await call.classify_failure(error)
                if failure.detail.code != ReasonCode.LLM_CONTEXT_OVERFLOW:
                    raise await self._record_failure(request, log, failure, event) from None
                call.count_lost(error.paid)
                room = min(room, len(prompt)) // 2
                continue
            return await self._report(log, stored)
        if forced and (shorter := cut_to_ends(messages, min(whole, _size(messages) // 2))) != messages:
            return _to_compacted(await self._finish_cut(request, event, messages, shorter))
        return await self._skip(request, log, event, keep, definition.model)

    async def _report(self, log: StepLog, step: StepRecord) -> Compacted:
        log.stored = Paid().plus(step.usage, step.cost_usd)
        return replace(_to_compacted(step), failed=await log.load_paid())

    async def _ceiling(
        self, request: Compact, log: StepLog, writer: AgentDefinition, sent: list[WireMessage]
    ) -> int | None:
        """The longest summary that the budget pays for, in tokens; None if no bound is needed."""
        if request.cost_left is None:
            return None
        return ceiling(writer, sent, request.cost_left - (await log.load_paid()).cost_usd)

    async def _finish(
        self,
        request: Compact,
        call: ModelCall,
        started: CompactionEvent,
        messages: tuple[Message, ...],
        answer: Answer,
    ) -> StepRecord:
        summary = messages[0]
        step = replace(
            _step_of(request, messages, started.messages_before - len(messages) + 1),
            finish_reason=answer.finish_reason,
            usage=answer.usage,
            cost_usd=answer.cost_usd,
            model=started.model,
        )
        completed = replace(
            started,
            compaction_status="completed",
            messages_after=len(messages),
            summary=summary.content[:CONTENT_CHARACTERS],
            usage=answer.usage,
            cost_usd=answer.cost_usd,
        )
        events = [*call.events_of_adapting(), event_of(request, "compaction/completed", completed)]
        stored, at_once = await write_answer(lambda: self._store.finish_compaction(step, events))
        note_kept()
        if stored is not step and at_once:
            call.count_lost(paid_for(answer))
        return stored

    async def _finish_cut(
        self, request: Compact, started: CompactionEvent, messages: tuple[Message, ...], shorter: tuple[Message, ...]
    ) -> StepRecord:
        """Store the messages of which the longest were cut to their ends; no model was called for that."""
        count = sum(before != after for before, after in zip(messages, shorter, strict=True))
        step = replace(_step_of(request, shorter, count), cost_usd=Decimal(0))
        reason = f"nothing can be summarised, so the longest {count} of {len(messages)} messages were cut to their ends"
        cut = replace(started, compaction_status="completed", reason=reason, model="", cost_usd=Decimal(0))
        events = [event_of(request, "compaction/completed", cut)]
        stored, _ = await write_answer(lambda: self._store.finish_compaction(step, events))
        return stored

    async def _skip(self, request: Compact, log: StepLog, started: CompactionEvent, keep: int, model: str) -> Compacted:
        """Record that nothing can be summarised. A turn whose model refused the context then ends with that refusal."""
        reason = (
            f"of {started.messages_before} messages none can be summarised: the last {keep} are kept, a tool call "
            "stays with its result, and what is left may be more than the model can read at once"
        )
        skipped = replace(started, compaction_status="skipped", reason=reason, model="")
        await log.record("compaction/skipped", skipped)
        if request.failure is not None:
            await log.record("error", GenerationError(error=request.failure, model=model))
        return Compacted(tip=request.parent, reason=reason)

    async def _record_failure(
        self, request: Compact, log: StepLog, failure: Failure, started: CompactionEvent
    ) -> ApplicationError:
        """Record a failed try; the error either is retried after a wait or ends the compaction."""
        detail = replace(failure.detail, message=f"{failure.detail.message} (writing a summary)"[:2_000])
        if failure.retry is not None:
            return await record_failure(log, replace(failure, detail=detail))
        last: dict[str, object] = {"usage": failure.last.usage, "cost_usd": failure.last.cost_usd}
        failed = started.model_copy(
            update={"compaction_status": "failed", "reason": detail.message, "error": detail, **last}
        )
        await log.record(own_key(FAILED), failed, failure.last)
        return await self._compose_end(request, log, failed, detail)

    async def _compose_end(
        self, request: Compact, log: StepLog, failed: CompactionEvent, detail: ErrorDetail
    ) -> ApplicationError:
        """The error that ends a compaction, with the cost of all tries; that of the last is in ``failed``."""
        paid = (await log.load_paid()).plus(failed.usage, failed.cost_usd)
        if request.trigger == "threshold":
            return permanent(detail, paid)  # does not end the turn: it goes on with the context as it is
        return await record_failure(log, Failure(detail, None, paid, model=failed.model))


def _writer(definition: AgentDefinition) -> AgentDefinition:
    """The agent as writer of the summary: with its own model or the one named for compaction, and without tools."""
    model = definition.compaction.model or definition.model
    same_provider = model.partition("/")[0] == definition.model.partition("/")[0]
    params = {
        name: value for name, value in definition.generate_params.items() if same_provider and is_destination(name)
    }
    return replace(definition, model=model, tools=(), output_schema=None, generate_params=params)


def _room_of(definition: AgentDefinition, writer: AgentDefinition) -> int:
    """Characters that the writer can read; its window may be smaller than the agent's."""
    policy = definition.compaction
    rooms = [characters_of_one_summary(policy, context_window(definition.model))]
    if writer.model != definition.model:
        rooms.append(characters_of_one_summary(replace(policy, window=None), context_window(writer.model)))
    return min(rooms)


def _size(messages: tuple[Message, ...]) -> int:
    return sum(len(message.content) for message in messages)


def summary_of(answer: Answer, seconds: float = 0.0) -> str:
    """The summary in an answer.

    Raises:
        CallFailedError: The answer has no text; it may only call tools.
        NotAffordableError: The summary was cut off by the cost ceiling.
    """
    paid = Paid().plus(answer.usage, answer.cost_usd)
    if answer.finish_reason == CUT_OFF:
        raise NotAffordableError(CUT, paid)
    summary = summary_in(answer.text)
    if not summary:
        nothing = EmptyAnswerError("the model wrote no summary")
        now = activity.info().started_time
        raise CallFailedError(facts_of(nothing, now), now, paid, seconds=seconds)
    return summary


def _to_compacted(step: StepRecord) -> Compacted:
    return Compacted(tip=step.id, summarised=step.summarised or 0, usage=step.usage, cost_usd=step.cost_usd)


def _step_of(request: Compact, messages: tuple[Message, ...], summarised: int) -> StepRecord:
    """The step of a compaction, without what its answer cost."""
    return StepRecord(
        id=request.step_id(),
        session=request.session,
        turn=request.turn,
        step=request.step,
        parent=request.parent,
        messages=messages,
        summarised=summarised,
    )
