"""The activity ``react``: call hooks written in Python with the events of a step, and return what they want.

Each call is recorded in the event log as it ends. So a second attempt calls no hook again that has ended; only the one
that ran when its worker was lost may run twice. The events are those of the log, and results that only the workflow
knows.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from typing import cast, get_args

from temporalio import activity

from perdure.activities.agents import Definitions, TurnContexts
from perdure.activities.errors import cause_of, error_of_missing_version, permanent, store_failures
from perdure.activities.failures import redact
from perdure.activities.heartbeat import keep_beating
from perdure.activities.store_writes import write_until_stored
from perdure.activities.tool_output import call_key
from perdure.activities.tool_runner import Bodies, wait_within
from perdure.agents.agent import Agent
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
    decided_events,
)
from perdure.contracts.hooks import (
    EVENTS_AT,
    OF_DELEGATES,
    AnyReaction,
    Boundary,
    DecidedEvent,
    HookReaction,
    React,
    Reacted,
    Reaction,
)
from perdure.contracts.messages import Message
from perdure.contracts.names import Activity
from perdure.contracts.values import JsonValue
from perdure.contracts.waits import MissingVersion
from perdure.security.redaction import without_known
from perdure.store import StepRecord, Store


@dataclass(frozen=True)
class Hooked:
    """An event, and its number in the log; 0 if it is not there."""

    event: HookedEvent
    seq: int = 0

    @property
    def call_id(self) -> str:
        """The tool call's id, if the event is of one: an input request has the id of its call."""
        of = "request_id" if isinstance(self.event, UserInputReceived) else "call_id"
        return str(getattr(self.event, of, ""))

    def concerns(self, hook: Hook) -> bool:
        """Whether the hook is for the event."""
        tool = getattr(self.event, "tool", None)
        return self.event.type in hook.declaration.on and (tool is None or hook.declaration.is_about(str(tool)))


def hooked_events_of(request: React, envelopes: Iterable[Envelope], step: StepRecord | None) -> list[Hooked]:
    """The events that hooks can be on at a boundary, in order.

    Each call of a step has one ``tool_end``, and a ``tool_error`` too if it failed, also where the log has one of them.
    """
    kinds = EVENTS_AT[request.boundary]
    logged = [
        Hooked(one.event, one.seq)
        for one in envelopes
        if not isinstance(one.event, UnknownEvent | Heartbeat) and (one.event.type in kinds or _is_left(request, one))
    ]
    if request.boundary == "stalled":
        return [Hooked(AgentStalled())]
    if request.boundary != "step":
        return logged
    logged = [one for one in logged if not _is_early(request, one, step)]
    told = [*_with_counterparts(logged), *_unrecorded_results_of(request, logged, step)]
    results = [one.event for one in told if isinstance(one.event, ToolEnd)]
    text = [one.event.content for one in envelopes if isinstance(one.event, GenerationContent)]
    return [*told, Hooked(StepEnd(output=text[-1] if text else "", results=tuple(results)))]


def _is_left(request: React, one: Envelope) -> bool:
    """Whether it is told at the end of the turn, because no step came in which it could have been."""
    if request.boundary != "end":
        return False
    if isinstance(one.event, DelegateStart | DelegateEnd):
        return one.event.call_id in request.ended
    return any(one.event.type == left.event.type for left in request.decided)  # others are not among them


def _is_early(request: React, one: Hooked, step: StepRecord | None) -> bool:
    """Whether it is about a delegate in the background of whose end the turn does not know yet."""
    if not isinstance(one.event, DelegateStart | DelegateEnd) or step is None or one.call_id in request.ended:
        return False
    return any(call.background and call.call_id == one.call_id for call in step.calls)


def _with_counterparts(logged: Sequence[Hooked]) -> Iterable[Hooked]:
    for one in logged:
        event = one.event
        yield one
        if isinstance(event, ToolEnd) and event.error is not None:
            yield Hooked(ToolError(call_id=event.call_id, tool=event.tool, error=event.error), one.seq)
        elif isinstance(event, ToolError):
            text = event.error.message
            yield Hooked(
                ToolEnd(call_id=event.call_id, tool=event.tool, result=text, error=event.error, seconds=0), one.seq
            )


def _unrecorded_results_of(request: React, logged: Sequence[Hooked], step: StepRecord | None) -> Iterable[Hooked]:
    """The results that only the workflow knows."""
    known = {one.call_id for one in logged if isinstance(one.event, ToolEnd | ToolError)}
    told = [one.event for one in logged if isinstance(one.event, UserInputReceived)]
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
"""Events that are read at once, from the end of the log."""

DECISIONS: frozenset[str] = frozenset(one.model_fields["type"].default for one in get_args(DecidedEvent))
"""The types of events that the workflow decides."""

TOLD = DECISIONS - {"stop_condition_met"}
"""Those that hooks hear of where they are told of them; that one ends the turn."""

LATE = DECISIONS | OF_DELEGATES
"""The types of events that may be written in a later step than the one they are of."""

MISSING_HOOK_RETRY = timedelta(seconds=5)
"""Wait before another worker is asked for a hook this one lacks."""

MISSING_AT_THE_END_RETRY = timedelta(seconds=1)
"""The same of a hook for the end of a turn, whose result waits for a few attempts at it."""

ERROR_CHARACTERS = 1_500
"""Longest text of a hook's exception."""

_Key = tuple[str, str, int, str]
"""A call of a hook at a boundary: the hook, and the type, number and tool call of the event."""


@dataclass
class _Context(HookContext):
    session: str
    turn: int
    step: int
    usage: Usage
    cost_usd: Decimal
    read: Callable[[], tuple[Message, ...]]
    stop: threading.Event = field(default_factory=threading.Event)
    data: dict[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    tenant: str = ""
    by: str = ""

    @property
    def cancelled(self) -> bool:
        """Whether the hook should end."""
        return self.stop.is_set()

    def wait(self, seconds: float) -> bool:
        """Block until the flag is set, at most so long."""
        return self.stop.wait(seconds)

    def messages(self, last: int = 20) -> tuple[Message, ...]:
        """Read them from the store."""
        return self.read()[-last:] if last > 0 else ()


class ReactActivity:
    """The hooks of one worker's agents."""

    def __init__(
        self,
        *,
        store: Store,
        agents: Mapping[str, Agent],
        definitions: Definitions,
        bodies: Bodies,
        contexts: TurnContexts,
        secrets: Collection[str],
    ) -> None:
        self._store = store
        self._agents = agents
        self._definitions = definitions
        self._bodies = bodies
        self._contexts = contexts
        self._secrets = secrets

    @activity.defn(name=Activity.REACT)
    async def react(self, request: React) -> Reacted:
        """Call hooks with the events of a step, and return what they want."""
        async with keep_beating():
            async with store_failures():
                await self._store.require(request.store)
            definition = await self._definitions.get(request.definition)
            hooks = [self._hook(definition, name, request.boundary) for name in request.calling]
            if request.decided and request.boundary != "end":  # where they are in the log
                decided = decided_events(request.turn, request.decided)
                await write_until_stored(lambda: self._store.append_events(request.session, decided))
            envelopes = await self._events(request)
            async with store_failures():
                step = await self._store.step(request.tip)
            events = hooked_events_of(request, envelopes, step)
            calls = [(hook, event) for hook in hooks for event in events if event.concerns(hook)]
            ended = await self._ended(request, envelopes, calls)
            if request.boundary == "end":
                return await self._told_of_the_end(request, calls, ended)
            return await self._reacted(request, calls, ended, fails=definition.on_hook_error == "fail")

    async def _reacted(
        self, request: React, calls: list[tuple[Hook, Hooked]], ended: dict[_Key, HookEnd], *, fails: bool
    ) -> Reacted:
        """Make the calls that no earlier attempt has made, and say what all of them have come to."""
        refused: str | None = None
        done: list[HookEnd] = []
        for hook, hooked_event in calls:
            if request.left is not None and len(done) >= request.left:
                refused = hook.name
                break
            end = ended.get(_key(hook.name, hooked_event))
            if end is None:
                end = await self._recorded(request, await self._called(request, hook, hooked_event))
            if end.error is not None and fails:
                raise permanent(end.error)
            done.append(end)
        wanted = [HookReaction(hook=end.hook, reaction=end.reaction) for end in done if end.reaction is not None]
        return Reacted(reactions=tuple(wanted), calls=len(done), refused=refused).sparse()

    def _hook(self, definition: AgentDefinition, name: str, at: Boundary) -> Hook:
        """The hook of that name; a worker of another version leaves it to one that has it."""
        agent = self._agents.get(definition.name)
        hook = agent.hook(name) if agent is not None else None
        if hook is None:
            missing = MissingVersion(agent=definition.name, what="hook", name=name, definition=definition.digest())
            raise error_of_missing_version(missing, MISSING_AT_THE_END_RETRY if at == "end" else MISSING_HOOK_RETRY)
        return hook

    async def _events(self, request: React) -> list[Envelope]:
        """The events that hooks hear of now, in order: those of the step, and what came late."""
        async with store_failures():
            keys = _late(request)
            late = await self._store.events_by_key(request.session, keys) if keys else ()
            of_step = await self._of_step(request)
        return sorted({one.seq: one for one in (*of_step, *late)}.values(), key=lambda one: one.seq)

    async def _of_step(self, request: React) -> list[Envelope]:
        """The events of the step so far, which stand at the end of the log, but for decisions: they are named."""
        found: list[Envelope] = []
        step, before = (request.turn, request.step), (await self._store.session(request.session)).last_seq
        while before > 0:
            after = max(0, before - PAGE)
            page = await self._store.events(request.session, after=after, limit=before - after)
            found = [*(one for one in page if (one.turn, one.step) == step and one.event.type not in TOLD), *found]
            in_time = [(one.turn, one.step) for one in page if one.event.type not in LATE]
            if not page or (in_time and in_time[0] < step):
                break
            before = after
        return found

    async def _called(self, request: React, hook: Hook, called_with: Hooked) -> HookEnd:
        """What a call of the hook came to."""
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
        self, request: React, hook: Hook, event: HookedEvent
    ) -> tuple[AnyReaction | None, ErrorDetail | None]:
        try:
            returned = await self._run(request, hook, event)
            return self._reaction(hook, returned), None
        except Exception as error:  # noqa: BLE001 - the edge: whatever a hook raises becomes a reason code
            text = redact(str(error), frozenset(self._secrets))[:ERROR_CHARACTERS] or "no message"
            message = f"hook {hook.name}, {event.type}: {type(error).__name__}: {text}"
            kind = type(error).__name__
            code = ReasonCode.RUNTIME_HOOK_FAILED
            detail = ErrorDetail(code=code, title=hook.name, message=message, type=kind, exception=code_of_kind(kind))
            activity.logger.warning("%s", message, exc_info=cause_of(detail, error))
            return None, detail

    async def _run(self, request: React, hook: Hook, event: HookedEvent) -> object:
        """Run the function within its time."""
        context = await self._context(request)
        limit = hook.declaration.timeout.total_seconds()
        body = self._bodies.start_function(hook.function, hook.arguments(event, context))
        late = TimeoutError(f"it ran longer than its time-out of {limit:g} s")
        return await wait_within(body, limit, who="it", late=late, give_up=context.stop.set)

    async def _context(self, request: React) -> _Context:
        loop = asyncio.get_running_loop()

        async def conversation() -> tuple[Message, ...]:
            return await write_until_stored(lambda: self._store.conversation(request.tip))

        def read() -> tuple[Message, ...]:
            return asyncio.run_coroutine_threadsafe(conversation(), loop).result()

        spent, turn = request.spent, await write_until_stored(lambda: self._contexts.of(request.session, request.turn))
        return _Context(
            session=request.session,
            turn=request.turn,
            step=request.step,
            usage=spent.usage,
            cost_usd=spent.cost_usd,
            read=read,
            data=self._contexts.data_for_code(turn),
            tenant=turn.tenant,
            by=turn.by,
        )

    def _reaction(self, hook: Hook, returned: object) -> AnyReaction | None:
        """What the hook wants, without the secrets that the worker knows; what is no reaction is nothing."""
        if isinstance(returned, Reaction):
            texts = {name: self._clean(value) for name, value in returned if name != "type"}
            return cast("AnyReaction", returned.model_copy(update=texts))
        if returned is not None:
            kind = type(returned).__name__
            activity.logger.warning("hook %s returned a %s, which is no reaction; it is ignored", hook.name, kind)
        return None

    def _clean(self, value: object) -> object:
        if isinstance(value, tuple):
            return tuple(without_known(str(text), frozenset(self._secrets)) for text in cast("tuple[str, ...]", value))
        return without_known(str(value), frozenset(self._secrets))

    async def _recorded(self, request: React, end: HookEnd) -> HookEnd:
        """Write what a call came to; what an attempt that was given up has written meanwhile counts instead."""
        key = _event_key_of(request, _key_of(end))
        event = NewEvent(key=key, turn=request.turn, step=request.step, event=end)
        await write_until_stored(lambda: self._store.append_events(request.session, [event]))
        async with store_failures():
            (stored,) = await self._store.events_by_key(request.session, [key])
        return stored.event if isinstance(stored.event, HookEnd) else end

    async def _ended(
        self, request: React, envelopes: list[Envelope], calls: list[tuple[Hook, Hooked]]
    ) -> dict[_Key, HookEnd]:
        """The calls of hooks at this boundary that have ended, and wherever else they were called with late events.

        A turn that an operator resets may hear of those in another step, or at its end.
        """
        late = [_event_key_of(request, _key(hook.name, event)) for hook, event in calls if event.event.type in LATE]
        async with store_failures():
            elsewhere = await self._store.events_by_key(request.session, late) if late else ()
        here = [one.event for one in envelopes if isinstance(one.event, HookEnd)]
        ends = [end for end in here if end.boundary == request.boundary]
        ends += [one.event for one in elsewhere if isinstance(one.event, HookEnd)]
        return {_key_of(end): end for end in ends}

    async def _told_of_the_end(
        self, request: React, calls: list[tuple[Hook, Hooked]], ended: dict[_Key, HookEnd]
    ) -> Reacted:
        """Call hooks with the end of a turn. Nothing can be recorded any more, and no reaction counts."""
        for hook, hooked_event in calls:
            if _key(hook.name, hooked_event) in ended:
                continue
            reaction, _ = await self._outcome(request, hook, hooked_event.event)
            if reaction is not None:
                activity.logger.warning("hook %s: the turn has ended, its %s is ignored", hook.name, reaction.type)
        return Reacted()


def _late(request: React) -> list[str]:
    """The keys of the events that hooks hear of in a later step than the one they are of."""
    return [
        *(event.key for event in decided_events(request.turn, request.decided)),
        *(call_key(request.turn, call_id, kind) for call_id in request.ended for kind in OF_DELEGATES),
    ]


def _key(hook: str, called_with: Hooked) -> _Key:
    return hook, called_with.event.type, called_with.seq, called_with.call_id


def _key_of(end: HookEnd) -> _Key:
    return end.hook, end.event, end.event_seq, end.call_id


def _event_key_of(request: React, key: _Key) -> str:
    """The key of the event that records a call: one about a late event has the same wherever it is heard."""
    _, event, _, _ = key
    place = ("late", "hook") if event in LATE else (request.step, "hook", request.boundary)
    return "/".join(map(str, (request.turn, *place, *key)))
