"""The activity ``collect_delegates``: what delegates in the background came to, as the result of a call."""

import json
from dataclasses import dataclass

from temporalio import activity

from perdure.activities.call_events import approved, ended
from perdure.activities.definitions import Definitions
from perdure.activities.delegates import Delegations, Said, for_the_model
from perdure.activities.errors import store_failures
from perdure.activities.heartbeat import beating
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.errors import ErrorDetail, ReasonCode
from perdure.contracts.messages import ToolMessage
from perdure.contracts.names import Activity
from perdure.contracts.tools import DELEGATE_OUTPUT, DELEGATED, AwaitedDelegate, CollectDelegates, ToolOutcome
from perdure.contracts.values import JsonValue
from perdure.store import NotFoundError, Store


@dataclass(frozen=True)
class _Came:
    """What one delegate came to."""

    session: str
    tool: str
    said: Said


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
            await self._store.require(asked.store)
            claimant = f"collect/{asked.call_id}"
            claim = await self._store.claim_call(
                session=asked.session,
                turn=asked.turn,
                call_id=asked.call_id,
                claimant=claimant,
                events=approved(asked, asked.tool),
            )
            if claim.message is not None:
                message, problem = claim.message, None
            else:
                message, problem = await self._collected(asked, claimant)
        return ToolOutcome(
            call_id=asked.call_id,
            preview=message.content[:DELEGATE_OUTPUT],
            error=message.error,
            matched=message.matched,
            problem=problem,
        ).sparse()

    async def _collected(self, asked: CollectDelegates, claimant: str) -> tuple[ToolMessage, ErrorDetail | None]:
        """The result of the call, written; and why stop conditions could not be looked for in it."""
        caller = await self._definitions.get(asked.definition)
        came = [await self._of(caller, one) for one in asked.delegates]
        content, artifacts = for_the_model(asked, caller, None, _told(came))
        message = ToolMessage(
            call_id=asked.call_id,
            name=asked.tool,
            content=content,
            error=_error(asked, came),
            decided=asked.approval,
            matched=tuple(sorted({place for one in came for place in one.said.matched})),
            delegate=came[0].session if len(came) == 1 else None,
        )
        await self._store.finish_call(
            session=asked.session,
            turn=asked.turn,
            call_id=asked.call_id,
            claimant=claimant,
            message=message,
            events=ended(asked, message, artifacts, seconds=0),
            artifacts=artifacts,
        )
        return message, next((one.said.problem for one in came if one.said.problem is not None), None)

    async def _of(self, caller: AgentDefinition, one: AwaitedDelegate) -> _Came:
        declaration = caller.tool(one.tool)
        try:
            turn = await self._store.turn_by_request(one.session, f"{DELEGATED}{one.call_id}")
        except NotFoundError:
            turn = None
        if turn is None or turn.result is None or declaration is None:
            code = ReasonCode.TOOL_DELEGATE_FAILED
            lost = one.lost or ErrorDetail(code=code, title=one.tool, message=f"{one.tool} was lost ({one.session})")
            return _Came(one.session, one.tool, Said(lost.message, lost))
        return _Came(one.session, one.tool, await self._delegations.said(caller, declaration, turn.result))


def _told(came: list[_Came]) -> str:
    """The text of one as its own call would have given it; of several one after the other."""
    if len(came) == 1:
        return came[0].said.text
    results: list[JsonValue] = [
        {
            "session": one.session,
            "agent": one.tool,
            **({"result": one.said.text} if one.said.error is None else {"error": _body(one.said, one.said.error)}),
        }
        for one in came
    ]
    return json.dumps({"results": results}, ensure_ascii=False)


def _body(said: Said, error: ErrorDetail) -> JsonValue:
    try:
        body: JsonValue = json.loads(said.text)["error"]
    except ValueError:  # of a lost one, which has said nothing
        return {"code": error.code, "message": error.message}
    return body


def _error(asked: CollectDelegates, came: list[_Came]) -> ErrorDetail | None:
    """The call has failed if every delegate that it waited for has."""
    errors = [one.said.error for one in came if one.said.error is not None]
    if len(errors) < len(came):
        return None
    if len(errors) == 1:
        return errors[0]
    message = f"none of {len(errors)} agents finished; the first one: {errors[0].message}"[:2_000]
    return errors[0].model_copy(update={"title": asked.tool, "message": message})
