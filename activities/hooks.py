"""The activity ``run_hooks``: call hooks written in Python with the events of a step, and return their reactions.

Each call is recorded in the event log when it ends. So a second attempt repeats only the call that ran when its worker
was lost. The events are those of the log, and the results of calls that only the workflow knows.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import cast, get_args

from temporalio import activity

from perdure.activities.errors import (
    LONGEST_MISSING_RETRY,
    cause_of,
    permanent,
    redact_and_cut,
)
from perdure.activities.heartbeat import keep_beating, note_kept, note_spent
from perdure.activities.parts import ActivityParts
from perdure.activities.secrets import with_masked_results
from perdure.activities.store_access import store_failures, write_until_stored
from perdure.activities.toolbox.output import call_key
from perdure.activities.toolbox.runner import CodeContext
from perdure.agents.hooks import Hook, HookContext, HookedEvent, StepEnd
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.budgets import Usage
from perdure.contracts.errors import ErrorDetail, ReasonCode, code_of_kind
from perdure.contracts.events import (
    AgentStalled,
    DelegateEnd,
    DelegateStart,
    Envelope,
    GenerationContent,
    Heartbeat,
    HookEnd,
    NewEvent,
    ToolEnd,
    ToolError,
    UnknownEvent,
    UserInputReceived,
    to_events,
)
from perdure.contracts.exceptions import kind_of, text_of
from perdure.contracts.hooks import (
    EVENTS_AT,
    OF_DELEGATES,
    AnyReaction,
    Boundary,
    DecidedEvent,
    HookResult,
    HookResults,
    Reaction,
    RunHooks,
)
from perdure.contracts.messages import Message
from perdure.contracts.names import Activity
from perdure.contracts.plain import to_plain
from perdure.contracts.waits import MissingVersion
from perdure.lanes.lanes import wait_within
from perdure.security.redaction import without_known
from perdure.store import StepRecord


@dataclass(frozen=True)
class Hooked:
    """An event that hooks receive, and its sequence number; 0 if the log does not have it."""

    event: HookedEvent
    seq: int = 0

    @property
    def call_id(self) -> str:
        """Id of the tool call that the event is about, or an empty text; an input request has the id of its call."""
        of = "request_id" if isinstance(self.event, UserInputReceived) else "call_id"
        return str(getattr(self.event, of, ""))

    def is_for(self, hook: Hook) -> bool:
        """Whether the hook is for the event."""
        tool = getattr(self.event, "tool", None)
        return self.event.type in hook.declaration.on and (tool is None or hook.declaration.is_about(str(tool)))


def hooked_events_of(request: RunHooks, envelopes: Iterable[Envelope], step: StepRecord | None) -> list[Hooked]:
    """The events that hooks can receive at a boundary, in order.

    Each call of a step has a ``tool_end``, and each failed one a ``tool_error`` too, even if the log has only one of
    the two.
    """
    kinds = EVENTS_AT[request.boundary]
    logged = [
        Hooked(envelope.event, envelope.seq)
        for envelope in envelopes
        if not isinstance(envelope.event, UnknownEvent | Heartbeat)
        and (envelope.event.type in kinds or _is_left(request, envelope))
    ]
    if request.boundary == "stalled":
        return [Hooked(AgentStalled())]
    if request.boundary != "step":
        return logged
    logged = [hooked for hooked in logged if not _is_early(request, hooked, step)]
    told = [*_with_counterparts(logged), *_unrecorded_results_of(request, logged, step)]
    results = [hooked.event for hooked in told if isinstance(hooked.event, ToolEnd)]
    text = [envelope.event.content for envelope in envelopes if isinstance(envelope.event, GenerationContent)]
    return [*told, Hooked(StepEnd(output=text[-1] if text else "", results=tuple(results)))]


def _is_left(request: RunHooks, envelope: Envelope) -> bool:
    """Whether hooks receive the event at the turn's end, because no later step came in which they could have."""
    if request.boundary != "end":
        return False
    if isinstance(envelope.event, DelegateStart | DelegateEnd):
        return envelope.event.call_id in request.ended
    return any(envelope.event.type == left.event.type for left in request.decided)  # only those were read from the log


def _is_early(request: RunHooks, hooked: Hooked, step: StepRecord | None) -> bool:
    """Whether the event is about a background delegate whose end the workflow has not heard of yet."""
    if not isinstance(hooked.event, DelegateStart | DelegateEnd) or step is None or hooked.call_id in request.ended:
        return False
    return any(call.background and call.call_id == hooked.call_id for call in step.calls)


def _with_counterparts(logged: Sequence[Hooked]) -> Iterable[Hooked]:
    for hooked in logged:
        event = hooked.event
        yield hooked
        if isinstance(event, ToolEnd) and event.error is not None:
            yield Hooked(ToolError(call_id=event.call_id, tool=event.tool, error=event.error), hooked.seq)
        elif isinstance(event, ToolError):
            text = event.error.message
            yield Hooked(
                ToolEnd(call_id=event.call_id, tool=event.tool, result=text, error=event.error, seconds=0), hooked.seq
            )


def _unrecorded_results_of(request: RunHooks, logged: Sequence[Hooked], step: StepRecord | None) -> Iterable[Hooked]:
    """The results that only the workflow knows."""
    known = {hooked.call_id for hooked in logged if isinstance(hooked.event, ToolEnd | ToolError)}
    told = [hooked.event for hooked in logged if isinstance(hooked.event, UserInputReceived)]
    tools = {call.call_id: call.tool for call in step.calls} if step is not None else {}
    for outcome in request.failed:
        if outcome.call_id not in known and outcome.call_id in tools:
            tool = tools[outcome.call_id]
            end = ToolEnd(call_id=outcome.call_id, tool=tool, result=outcome.preview, error=outcome.error, seconds=0)
            yield from _with_counterparts([Hooked(end)])
        if outcome.decided is not None and outcome.call_id in tools:
            received = UserInputReceived(tool=tools[outcome.call_id], **dict(outcome.decided))
            if received not in told:
                yield Hooked(received)


PAGE = 200
"""Events that are read at once, backwards from the end of the log."""

DECISIONS: frozenset[str] = frozenset(event_type.model_fields["type"].default for event_type in get_args(DecidedEvent))
"""The types of events that the workflow decides."""

TOLD = DECISIONS - {"stop_condition_met"}
"""Decision events that hooks receive by key; ``stop_condition_met`` is excluded, because it ends the turn."""

LATE = DECISIONS | OF_DELEGATES
"""Types of events that hooks may receive in a later step than that of the event."""

MISSING_AT_THE_END_RETRY = timedelta(seconds=1)
"""Longest wait for a worker that has a hook at the end of a turn, whose result waits for the hooks."""

ERROR_CHARACTERS = 1_500
"""Longest text of a hook's exception."""

_Key = tuple[str, str, int, str]
"""A call of a hook at a boundary: the hook, and the type, number and tool call of the event."""


@dataclass(kw_only=True)
class _Context(CodeContext, HookContext):
    step: int
    usage: Usage
    cost_usd: Decimal
    read: Callable[[], tuple[Message, ...]]

    def messages(self, last: int = 20) -> tuple[Message, ...]:
        """Read them from the store."""
        return self.read()[-last:] if last > 0 else ()


class HooksActivity:
    """The hooks of one worker's agents."""

    def __init__(self, parts: ActivityParts) -> None:
        self._parts = parts
        self._store = parts.store
        self._secrets = parts.secrets

    @activity.defn(name=Activity.RUN_HOOKS)
    async def run_hooks(self, request: RunHooks) -> HookResults:
        """Call hooks with the events of a step, and return what they want."""
        request = with_masked_results(request, self._secrets)
        async with keep_beating():
            async with store_failures():
                await self._store.require(request.store)
            definition = await self._parts.definitions.get(request.definition)
            hooks = [await self._hook(definition, name, request.boundary) for name in request.calling]
            if request.decided and request.boundary != "end":  # at the end the commit has written them
                decided = to_events(request.turn, request.decided)
                await write_until_stored(lambda: self._store.append_events(request.session, decided))
            envelopes = await self._events(request)
            async with store_failures():
                step = await self._store.step(request.tip)
            events = hooked_events_of(request, envelopes, step)
            calls = [(hook, event) for hook in hooks for event in events if event.is_for(hook)]
            ended = await self._load_ended_calls(request, envelopes, calls)
            if request.boundary == "end":
                return await self._call_end_hooks(request, calls, ended)
            return await self._call_hooks(request, calls, ended, fails=definition.on_hook_error == "fail")

    async def _call_hooks(
        self, request: RunHooks, calls: list[tuple[Hook, Hooked]], ended: dict[_Key, HookEnd], *, fails: bool
    ) -> HookResults:
        """Make the calls that no earlier attempt has made, and return the results of all."""
        refused: str | None = None
        done: list[HookEnd] = []
        for hook, hooked_event in calls:
            if request.left is not None and len(done) >= request.left:
                refused = hook.name
                break
            end = ended.get(_key(hook.name, hooked_event))
            if end is None:
                end = await self._record(request, await self._call_hook(request, hook, hooked_event))
            if end.error is not None and fails:
                raise permanent(end.error)
            done.append(end)
        wanted = [HookResult(hook=end.hook, reaction=end.reaction) for end in done if end.reaction is not None]
        return HookResults(reactions=tuple(wanted), calls=len(done), refused=refused)

    async def _hook(self, definition: AgentDefinition, name: str, at: Boundary) -> Hook:
        """The hook of that name. A worker that lacks it raises, and leaves the call to one that has it."""
        agent = self._parts.agents.get(definition.name)
        hook = agent.hook(name) if agent is not None else None
        if hook is None:
            info = activity.info()
            missing = MissingVersion(agent=definition.name, what="hook", name=name, definition=definition.digest())
            self._parts.metrics.refused_versions.note(info.workflow_id or "")
            longest = MISSING_AT_THE_END_RETRY if at == "end" else LONGEST_MISSING_RETRY
            raise await self._parts.roster.offer(missing, longest)
        return hook

    async def _events(self, request: RunHooks) -> list[Envelope]:
        """The events that hooks receive now, in order: those of the step, and ``LATE`` ones of earlier steps."""
        async with store_failures():
            keys = _late_keys_of(request)
            late = await self._store.events_by_key(request.session, keys) if keys else ()
            of_step = await self._load_step(request)
        return sorted(
            {envelope.seq: envelope for envelope in (*of_step, *late)}.values(), key=lambda envelope: envelope.seq
        )

    async def _load_step(self, request: RunHooks) -> list[Envelope]:
        """The events of the step so far, from the end of the log. Decisions are left out: they are read by key."""
        found: list[Envelope] = []
        step, before = (request.turn, request.step), (await self._store.session(request.session)).last_seq
        while before > 0:
            after = max(0, before - PAGE)
            page = await self._store.events(request.session, after=after, limit=before - after)
            found = [
                *(
                    envelope
                    for envelope in page
                    if (envelope.turn, envelope.step) == step and envelope.event.type not in TOLD
                ),
                *found,
            ]
            in_time = [(envelope.turn, envelope.step) for envelope in page if envelope.event.type not in LATE]
            if not page or (in_time and in_time[0] < step):
                break
            before = after
        return found

    async def _call_hook(self, request: RunHooks, hook: Hook, called_with: Hooked) -> HookEnd:
        """Call the hook; return the event that records the call."""
        began, event = time.monotonic(), called_with.event
        reaction, error = await self._outcome(request, hook, event)
        return HookEnd(
            hook=hook.name,
            boundary=request.boundary,
            event=event.type,
            event_seq=called_with.seq,
            call_id=called_with.call_id,
            reaction=reaction,
            error=error,
            seconds=round(time.monotonic() - began, 3),
        )

    async def _outcome(
        self, request: RunHooks, hook: Hook, event: HookedEvent
    ) -> tuple[AnyReaction | None, ErrorDetail | None]:
        try:
            note_spent()
            return self._reaction(hook, await self._run(request, hook, event)), None
        except Exception as error:  # noqa: BLE001 - the edge: whatever a hook raises becomes a reason code
            kind = kind_of(error)
            text = redact_and_cut(text_of(error), self._secrets)[:ERROR_CHARACTERS] or "no message"
            message = f"hook {hook.name}, {event.type}: {kind}: {text}"
            code = ReasonCode.RUNTIME_HOOK_FAILED
            detail = ErrorDetail(code=code, title=hook.name, message=message, type=kind, exception=code_of_kind(kind))
            activity.logger.warning("%s", message, exc_info=cause_of(detail, error))
            return None, detail

    async def _run(self, request: RunHooks, hook: Hook, event: HookedEvent) -> AnyReaction | str | None:
        """Run the function within its timeout, and return its reaction, or the class of anything else."""
        context = await self._context(request)
        limit = hook.declaration.timeout.total_seconds()
        body = self._parts.bodies.start_function(
            hook.name, hook.function, hook.arguments(event, context), _read_reaction
        )
        late = TimeoutError(f"it ran longer than its time-out of {limit:g} s")
        found: AnyReaction | str | None = await wait_within(body, limit, who="it", late=late, give_up=context.stop.set)
        return found

    async def _context(self, request: RunHooks) -> _Context:
        loop = asyncio.get_running_loop()

        async def conversation() -> tuple[Message, ...]:
            return await write_until_stored(lambda: self._store.conversation(request.tip))

        def read() -> tuple[Message, ...]:
            return asyncio.run_coroutine_threadsafe(conversation(), loop).result()

        spent, turn = (
            request.spent,
            await write_until_stored(lambda: self._parts.contexts.load_context(request.session, request.turn)),
        )
        return _Context(
            session=request.session,
            turn=request.turn,
            step=request.step,
            usage=spent.usage,
            cost_usd=spent.cost_usd,
            read=read,
            data=self._parts.contexts.data_for_code(turn),
            tenant=turn.tenant,
            by=turn.by,
        )

    def _reaction(self, hook: Hook, returned: AnyReaction | str | None) -> AnyReaction | None:
        """The hook's reaction, without the worker's secrets; None if it returned something else."""
        if isinstance(returned, str):
            activity.logger.warning("hook %s returned a %s, which is no reaction; it is ignored", hook.name, returned)
            return None
        if returned is None:
            return None
        texts = {name: self._clean(value) for name, value in returned if name != "type"}
        return returned.model_copy(update=texts)

    def _clean(self, value: object) -> object:
        if isinstance(value, tuple):
            return tuple(without_known(str(text), self._secrets) for text in cast("tuple[str, ...]", value))
        return without_known(str(value), self._secrets)

    async def _record(self, request: RunHooks, end: HookEnd) -> HookEnd:
        """Write the event that records a call; if a lost attempt has written its own meanwhile, that one counts."""
        key = _event_key_of(request, _key_of(end))
        event = NewEvent(key=key, turn=request.turn, step=request.step, event=end)
        await write_until_stored(lambda: self._store.append_events(request.session, [event]))
        async with store_failures():
            (stored,) = await self._store.events_by_key(request.session, [key])
        note_kept()
        return stored.event if isinstance(stored.event, HookEnd) else end

    async def _load_ended_calls(
        self, request: RunHooks, envelopes: list[Envelope], calls: list[tuple[Hook, Hooked]]
    ) -> dict[_Key, HookEnd]:
        """The recorded calls of hooks at this boundary, and at any boundary those with ``LATE`` events.

        After an operator's reset a turn may receive a late event in another step than before, or at its end.
        """
        late = [_event_key_of(request, _key(hook.name, event)) for hook, event in calls if event.event.type in LATE]
        async with store_failures():
            elsewhere = await self._store.events_by_key(request.session, late) if late else ()
        here = [envelope.event for envelope in envelopes if isinstance(envelope.event, HookEnd)]
        ends = [end for end in here if end.boundary == request.boundary]
        ends += [envelope.event for envelope in elsewhere if isinstance(envelope.event, HookEnd)]
        return {_key_of(end): end for end in ends}

    async def _call_end_hooks(
        self, request: RunHooks, calls: list[tuple[Hook, Hooked]], ended: dict[_Key, HookEnd]
    ) -> HookResults:
        """Call hooks with the end of a turn. Its log is closed: calls are not recorded, and no reaction counts."""
        for hook, hooked_event in calls:
            if _key(hook.name, hooked_event) in ended:
                continue
            reaction, _ = await self._outcome(request, hook, hooked_event.event)
            if reaction is not None:
                activity.logger.warning("hook %s: the turn has ended, its %s is ignored", hook.name, reaction.type)
        return HookResults()


def _late_keys_of(request: RunHooks) -> list[str]:
    """The keys of events that hooks receive in a later step than their own."""
    return [
        *(event.key for event in to_events(request.turn, request.decided)),
        *(call_key(request.turn, call_id, kind) for call_id in request.ended for kind in OF_DELEGATES),
    ]


def _read_reaction(returned: object) -> AnyReaction | str | None:
    """The reaction that a hook returned, of exact values; the name of its class for anything else.

    Raises:
        ValidationError: It was made without its checks, and does not pass them.
    """
    if returned is None:
        return None
    kind = next((base for base in type(returned).__mro__ if base in _REACTIONS), None)
    if kind is None:
        return type(returned).__name__
    fields = cast("dict[str, object]", to_plain(object.__getattribute__(returned, "__dict__")))
    return cast("AnyReaction", kind(**{name: fields[name] for name in _REACTIONS[kind] if name in fields}))


_REACTIONS: Mapping[type, Collection[str]] = {
    reaction: reaction.model_fields.keys() - {"type"} for reaction in Reaction.__subclasses__()
}
"""The classes of reactions, and their fields."""


def _key(hook: str, called_with: Hooked) -> _Key:
    return hook, called_with.event.type, called_with.seq, called_with.call_id


def _key_of(end: HookEnd) -> _Key:
    return end.hook, end.event, end.event_seq, end.call_id


def _event_key_of(request: RunHooks, key: _Key) -> str:
    """The key of the event that records a call; for a late event it does not depend on the step or boundary."""
    _, event, _, _ = key
    place = ("late", "hook") if event in LATE else (request.step, "hook", request.boundary)
    return "/".join(map(str, (request.turn, *place, *key)))
