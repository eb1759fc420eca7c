"""The activity ``collect_delegates``: what delegates in the background came to, as the result of a call."""

import json
from dataclasses import dataclass

from temporalio import activity

from activities.definitions import Definitions
from activities.delegates import EVENT_CHARACTERS, Delegations, for_the_model
from activities.errors import store_failures
from activities.heartbeat import beating
from activities.outputs import output_id
from activities.stops import matches
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.delegates import DELEGATE_OUTPUT, DELEGATED, AwaitedDelegate, CollectDelegates
from perdure.contracts.errors import ErrorDetail, ReasonCode
from perdure.contracts.events import Event, NewEvent, ToolEnd, ToolStep, UserInputReceived
from perdure.contracts.messages import ToolMessage
from perdure.contracts.names import Activity
from perdure.contracts.tools import CallTool, ToolOutcome
from perdure.contracts.values import JsonValue
from perdure.engine.delegates import failure_of
from perdure.store import NotFoundError, Store


@dataclass(frozen=True)
class _Came:
    """What one delegate came to, as the caller's model reads it."""

    session: str
    tool: str
    text: str
    error: ErrorDetail | None
    matched: tuple[int, ...] = ()


class CollectActivity:
    """The calls of one worker's turns that have waited for delegates."""

    def __init__(self, *, store: Store, definitions: Definitions, delegations: Delegations) -> None:
        self._store = store
        self._definitions = definitions
        self._delegations = delegations

    @activity.defn(name=Activity.COLLECT_DELEGATES)
    async def collect_delegates(self, asked: CollectDelegates) -> ToolOutcome:
        """Write the results of delegates as the result of the call. Safe to run twice: the first result stays."""
        async with beating(), store_failures():
            claimant = f"collect/{asked.call_id}"
            claim = await self._store.claim_call(
                session=asked.session,
                turn=asked.turn,
                call_id=asked.call_id,
                claimant=claimant,
                events=_received(asked),
            )
            message = claim.message or await self._collected(asked, claimant)
        return ToolOutcome(
            call_id=asked.call_id,
            preview=message.content[:DELEGATE_OUTPUT],
            error=message.error,
            matched=message.matched,
        ).sparse()

    async def _collected(self, asked: CollectDelegates, claimant: str) -> ToolMessage:
        caller = await self._definitions.get(asked.definition)
        came = [await self._of(caller, one) for one in asked.delegates]
        call = CallTool(**{name: getattr(asked, name) for name in ("session", "turn", "step", "call_id", "definition")})
        content, artifacts = for_the_model(call, caller, None, _told(came))
        message = ToolMessage(
            call_id=asked.call_id,
            name=asked.tool,
            content=content,
            error=_error(asked, came),
            decided=asked.approval,
            matched=tuple(sorted({place for one in came for place in one.matched})),
            delegate=came[0].session if len(came) == 1 else None,
        )
        await self._store.finish_call(
            session=asked.session,
            turn=asked.turn,
            call_id=asked.call_id,
            claimant=claimant,
            message=message,
            events=_ends(asked, message, offloaded=bool(artifacts)),
            artifacts=artifacts,
        )
        return message

    async def _of(self, caller: AgentDefinition, one: AwaitedDelegate) -> _Came:
        declaration = caller.tool(one.tool)
        try:
            turn = await self._store.turn_by_request(one.session, f"{DELEGATED}{one.call_id}")
        except NotFoundError:
            turn = None
        if turn is None or turn.result is None or declaration is None:
            code = ReasonCode.TOOL_DELEGATE_FAILED
            lost = one.lost or ErrorDetail(code=code, title=one.tool, message=f"{one.tool} was lost ({one.session})")
            return _Came(one.session, one.tool, lost.message, lost)
        text, error = await self._delegations.text(declaration, turn.result), failure_of(one.tool, turn.result)
        matched, _ = ((), None) if error is not None else await matches(caller, one.tool, text)
        return _Came(one.session, one.tool, text, error, matched)


def _told(came: list[_Came]) -> str:
    """The text of one as its own call would have given it; of several one after the other."""
    if len(came) == 1:
        return came[0].text
    results: list[JsonValue] = [
        {
            "session": one.session,
            "agent": one.tool,
            **({"result": one.text} if one.error is None else {"error": _body(one, one.error)}),
        }
        for one in came
    ]
    return json.dumps({"results": results}, ensure_ascii=False)


def _body(one: _Came, error: ErrorDetail) -> JsonValue:
    try:
        body: JsonValue = json.loads(one.text)["error"]
    except ValueError:  # of a lost one, which has said nothing
        return {"code": error.code, "message": error.message}
    return body


def _error(asked: CollectDelegates, came: list[_Came]) -> ErrorDetail | None:
    """The call has failed if every delegate that it waited for has."""
    errors = [one.error for one in came if one.error is not None]
    if len(errors) < len(came):
        return None
    if len(errors) == 1:
        return errors[0]
    message = f"none of {len(errors)} agents finished; the first one: {errors[0].message}"[:2_000]
    return errors[0].model_copy(update={"title": asked.tool, "message": message})


def _received(asked: CollectDelegates) -> list[NewEvent]:
    if asked.approval is None:
        return []
    return [_event(asked, UserInputReceived(tool=asked.tool, **dict(asked.approval)))]


def _ends(asked: CollectDelegates, message: ToolMessage, *, offloaded: bool) -> list[NewEvent]:
    end = ToolEnd(
        call_id=asked.call_id,
        tool=asked.tool,
        result=message.content[:EVENT_CHARACTERS],
        error=message.error,
        artifact=output_id(asked.call_id) if offloaded else None,
        seconds=0,
    )
    return [_event(asked, event) for event in (end, ToolStep(call_id=asked.call_id, tool=asked.tool))]


def _event(asked: CollectDelegates, event: Event) -> NewEvent:
    key = f"{asked.turn}/{asked.call_id}/{event.type}"
    return NewEvent(key=key, turn=asked.turn, step=asked.step, event=event)
