"""The activity ``compact``: have a model summarise the beginning of a conversation, and store the summary as a step.

Safe to run twice: the summary is stored under the key of its input. A second attempt that finds it there, or finds the
failure that ended the first, does not call the model again. Every message stays in the store; only what models read
from here on changes.
"""

from temporalio import activity
from temporalio.exceptions import ApplicationError

from perdure.activities.agents import Definitions
from perdure.activities.cost_ceiling import NotAffordableError, ceiling
from perdure.activities.errors import permanent
from perdure.activities.failures import facts_of
from perdure.activities.heartbeat import keep_beating
from perdure.activities.litellm_call import Answer, EmptyAnswerError, context_window
from perdure.activities.model_attempt import Attempts, CallFailedError, Failure, own_key, paid_for
from perdure.activities.record_answer import CONTENT_CHARACTERS, event_of
from perdure.activities.store_access import store_failures, write_answer
from perdure.contracts.agents import AgentDefinition, is_destination
from perdure.contracts.budgets import Paid
from perdure.contracts.errors import ErrorDetail, ReasonCode
from perdure.contracts.events import CompactionEvent, GenerationError
from perdure.contracts.generations import CUT_OFF, Compact, Compacted
from perdure.contracts.messages import Message, UserMessage
from perdure.contracts.names import Activity
from perdure.contracts.values import replace
from perdure.engine.limits import exhausted_error
from perdure.llm.compaction import (
    INSTRUCTIONS,
    characters_of_one_summary,
    plan_summary,
    replace_beginning,
    summary_in,
    to_summarise,
)
from perdure.llm.openai_format import WireMessage, wire
from perdure.store import StepRecord, Store

FAILED = "compaction/failed"
"""Key of the event that records a compaction's failure."""

CUT = exhausted_error("cost_usd", "the summary was cut off, as more of it was not affordable")
"""The failure of a compaction whose summary did not fit into what was left."""


class CompactActivity:
    """The compactions of one worker."""

    def __init__(self, *, store: Store, definitions: Definitions, attempts: Attempts) -> None:
        self._store = store
        self._definitions = definitions
        self._attempts = attempts

    @activity.defn(name=Activity.COMPACT)
    async def compact(self, request: Compact) -> Compacted:
        """Summarise the messages that are safe to cut off, and store the summary; nothing if there are none."""
        async with keep_beating(on_lost=lambda detail: self._attempts.describe_loss(request, detail)):
            async with store_failures():
                await self._store.require(request.store)
            definition = (await self._definitions.get(request.definition)).using(request.fallback)
            async with store_failures():
                stored = await self._store.step(request.step_id())
                if stored is not None:
                    return await self._report(request, stored)
                failed = await self._attempts.load_recorded(request, FAILED)
                if isinstance(failed, CompactionEvent) and failed.error is not None:
                    raise await self._compose_end(request, failed, failed.error)
                messages = await self._store.conversation(request.parent)
            return await self._summarise(request, definition, messages)

    async def _summarise(
        self, request: Compact, definition: AgentDefinition, messages: tuple[Message, ...]
    ) -> Compacted:
        """Have the model write the summary. If the provider finds the request too long, try with half as much."""
        writer, keep = _writer(definition), definition.compaction.keep
        room = _room_of(definition, writer)
        event = CompactionEvent(
            trigger=request.trigger,
            compaction_status="started",
            messages_before=len(messages),
            messages_after=len(messages),
            model=writer.model,
        )
        while (plan := plan_summary(messages, keep=keep, room=room))[0]:
            boundary, each = plan
            await self._attempts.record(request, "compaction/started", event)
            wishes = (definition.compaction.guidance, request.guidance)
            prompt = to_summarise(messages[:boundary], wishes, each)
            sent: list[WireMessage] = [
                {"role": "system", "content": INSTRUCTIONS},
                wire(UserMessage(content=prompt)),
            ]
            try:
                most = await self._ceiling(request, writer, sent)
                answer, seconds = await self._attempts.call(request, writer, sent, ceiling=most)
                summary = summary_of(answer, seconds)
                try:
                    shorter = replace_beginning(messages, boundary, summary)
                    stored = await self._finish(request, writer, event, shorter, answer)
                except ApplicationError:
                    self._attempts.count_lost(writer, paid_for(answer))
                    raise
                except Exception as error:  # noqa: BLE001 - whatever it is, it would be bought again every second
                    raise self._attempts.describe_unkept_answer(writer, answer, error) from None
            except NotAffordableError as error:
                paid = (await self._attempts.load_paid(request)).plus(error.paid.usage, error.paid.cost_usd)
                raise await self._record_failure(
                    request, Failure(error.detail, None, paid, error.paid), event
                ) from None
            except CallFailedError as error:
                failure = await self._attempts.classify_failure(request, writer, error)
                if failure.detail.code != ReasonCode.LLM_CONTEXT_OVERFLOW:
                    raise await self._record_failure(request, failure, event) from None
                self._attempts.count_lost(writer, error.paid)
                room = min(room, len(prompt)) // 2
                continue
            return await self._report(request, stored)
        return await self._skip(request, event, keep, definition.model)

    async def _report(self, request: Compact, step: StepRecord) -> Compacted:
        return replace(_to_compacted(step), failed=await self._attempts.load_paid(request))

    async def _ceiling(self, request: Compact, writer: AgentDefinition, sent: list[WireMessage]) -> int | None:
        """The longest summary that the budget pays for, in tokens; None if no bound is needed."""
        if request.cost_left is None:
            return None
        return ceiling(writer, sent, request.cost_left - (await self._attempts.load_paid(request)).cost_usd)

    async def _finish(
        self,
        request: Compact,
        writer: AgentDefinition,
        started: CompactionEvent,
        messages: tuple[Message, ...],
        answer: Answer,
    ) -> StepRecord:
        summary = messages[0]
        step = StepRecord(
            id=request.step_id(),
            session=request.session,
            turn=request.turn,
            step=request.step,
            parent=request.parent,
            messages=messages,
            finish_reason=answer.finish_reason,
            usage=answer.usage,
            cost_usd=answer.cost_usd,
            summarised=started.messages_before - len(messages) + 1,
        )
        completed = replace(
            started,
            compaction_status="completed",
            messages_after=len(messages),
            summary=summary.content[:CONTENT_CHARACTERS],
            usage=answer.usage,
            cost_usd=answer.cost_usd,
        )
        events = [event_of(request, "compaction/completed", completed)]
        stored, at_once = await write_answer(lambda: self._store.finish_compaction(step, events))
        if stored is not step and at_once:
            self._attempts.count_lost(writer, paid_for(answer))
        return stored

    async def _skip(self, request: Compact, started: CompactionEvent, keep: int, model: str) -> Compacted:
        """Record that nothing can be summarised. A turn whose model refused the context then ends with that refusal."""
        reason = (
            f"of {started.messages_before} messages none can be summarised: the last {keep} are kept, a tool call "
            "stays with its result, and what is left may be more than the model can read at once"
        )
        skipped = replace(started, compaction_status="skipped", reason=reason, model="")
        await self._attempts.record(request, "compaction/skipped", skipped)
        if request.failure is not None:
            await self._attempts.record(request, "error", GenerationError(error=request.failure, model=model))
        return Compacted(tip=request.parent, reason=reason)

    async def _record_failure(self, request: Compact, failure: Failure, started: CompactionEvent) -> ApplicationError:
        """Record a failed try; the error either is retried after a wait or ends the compaction."""
        detail = replace(failure.detail, message=f"{failure.detail.message} (writing a summary)"[:2_000])
        if failure.retry is not None:
            return await self._attempts.record_failure(request, replace(failure, detail=detail))
        last: dict[str, object] = {"usage": failure.last.usage, "cost_usd": failure.last.cost_usd}
        failed = started.model_copy(
            update={"compaction_status": "failed", "reason": detail.message, "error": detail, **last}
        )
        await self._attempts.record(request, own_key(FAILED), failed, failure.last)
        return await self._compose_end(request, failed, detail)

    async def _compose_end(self, request: Compact, failed: CompactionEvent, detail: ErrorDetail) -> ApplicationError:
        """The error that ends a compaction, with the cost of all tries; that of the last is in ``failed``."""
        paid = (await self._attempts.load_paid(request)).plus(failed.usage, failed.cost_usd)
        if request.trigger == "threshold":
            return permanent(detail, paid)  # does not end the turn: it goes on with the context as it is
        return await self._attempts.record_failure(request, Failure(detail, None, paid, model=failed.model))


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
