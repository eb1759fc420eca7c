"""Carrying out what a request asks for, by the client's verbs: a turn begins, or one that waits is told something."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from starlette.requests import Request

from perdure.client import RequestRefusedError, ResumeOptions, TurnOptions, UnknownSessionError
from perdure.client.asks import Ask, Fork, Send, Start
from perdure.client.requests import ResultMore, SendOptions, validate
from perdure.client.sessions import describe_missing_session
from perdure.contracts.input_requests import AnswerRequest, ApproveRequest, DenyRequest, Need, ResultRequest
from perdure.contracts.turns import RunState
from perdure.gateway.access import Gateway, act_for, own_session
from perdure.gateway.callers import Caller, Scope
from perdure.gateway.doors.responses.events import TurnFold
from perdure.gateway.doors.responses.following import find_turn, read_turn, unknown_response
from perdure.gateway.doors.responses.objects import APPROVAL
from perdure.gateway.doors.responses.places import ResponseId
from perdure.gateway.doors.responses.requests import Asked, ResponseBody, Said
from perdure.gateway.following import own_view
from perdure.gateway.problems import ProblemCode, ProblemError
from perdure.gateway.starts import Starting, start_once


@dataclass(frozen=True, kw_only=True)
class Words:
    """A protocol's words in refusals.

    Attributes:
        field: Field of the request that replies stand in.
        thing: Word for a segment of a turn.
        needs: What replies to each need.
    """

    field: str
    thing: str
    needs: Mapping[Need, str]


OPENAI_WORDS = Words(
    field="input",
    thing="response",
    needs={
        "approval": "an mcp_approval_response",
        "answer": "a function_call_output",
        "result": "a function_call_output",
    },
)


async def own_response(gateway: Gateway, caller: Caller, text: str) -> ResponseId:
    """The response of that id, which is the caller's tenant's.

    Raises:
        ProblemError: It is not, or nobody has it.
        SessionErasedError: It was the caller's, and was erased.
    """
    place = ResponseId.parse(text)
    if place is None:
        raise unknown_response(text)
    try:
        await own_session(place.session, await act_for(gateway, caller, place.session), gateway)
    except UnknownSessionError:
        raise unknown_response(text) from None
    return place


class Speaker:
    """Says to turns what they wait for, as one caller."""

    def __init__(self, gateway: Gateway, caller: Caller) -> None:
        self._gateway = gateway
        self._caller = caller

    async def say(
        self, place: ResponseId, fold: TurnFold, said: Sequence[Said], words: Words = OPENAI_WORDS
    ) -> ResponseId:
        """Say to a turn, read so far, what its segment waits for; the segment that goes on behind it.

        Raises:
            RequestRefusedError: Something is missing, or is said that the segment does not wait for.
            ProblemError: The caller may not, or something else stands.
        """
        requests = requests_of(fold, place.segment)
        if not requests:
            raise RequestRefusedError(f"{words.field}: the {words.thing} waits for nothing; send a message of the user")
        check_said(requests, decided_behind(fold, place.segment), said, words)
        by = self._caller.name
        self._check_scopes(requests, said)
        for one in said:  # all of them, before any is carried out
            _validate(one, requests[one.call_id], by)
        for one in said:
            await self._say_one(place.session, one, requests[one.call_id], by)
        if not fold.has_ended:  # it may have stopped since it was read, so that the next turn has taken what was said
            fold = await read_turn(self._gateway, place, await find_turn(self._gateway, place))
        if fold.has_ended and len(fold.segments) == place.segment:  # a turn that stops for its requests
            return ResponseId(place.session, place.turn + 1)
        return ResponseId(place.session, place.turn, place.segment + 1)

    def _check_scopes(self, requests: Mapping[str, Need], said: Sequence[Said]) -> None:
        asks_people = any(requests[one.call_id] != "result" for one in said)
        if asks_people and not self._caller.may(Scope.APPROVE):
            msg = f"the token {self._caller.name!r} lacks the scope 'approve'; use one that has it"
            raise ProblemError(403, ProblemCode.FORBIDDEN, msg)

    async def _say_one(self, session: str, one: Said, need: Need, by: str) -> None:
        client = self._gateway.client
        try:
            if one.error:
                await client.submit_result(session, one.call_id, **ResultMore(by=by, error=one.error))
            elif one.output is None and one.approve:
                await client.approve(session, one.call_id, by=by)
            elif one.output is None:
                await client.deny(session, one.call_id, by=by, reason=one.reason)
            elif need == "result":
                await client.submit_result(session, one.call_id, one.output, **ResultMore(by=by))
            else:
                await client.answer(session, one.call_id, one.output, by=by)
        except RequestRefusedError as error:
            raise ProblemError(409, ProblemCode.CONFLICT, str(error)) from error


class Carrier(Speaker):
    """Carries out one request.

    Args:
        key: Its Idempotency-Key.
    """

    def __init__(self, gateway: Gateway, caller: Caller, request: Request, key: str | None) -> None:
        super().__init__(gateway, caller)
        self._request = request
        self._key = key

    async def carry_out(self, asked: Asked, body: ResponseBody) -> ResponseId:
        """Do what is asked for, once; the response that comes of it.

        Raises:
            ProblemError: It names what there is not, or conflicts with what has happened.
            ClientError: As the client raises it.
        """
        previous = None
        if asked.previous is not None:
            previous = await own_response(self._gateway, self._caller, asked.previous)
            self._request.state.session = previous.session
        elif asked.conversation is not None:
            self._request.state.session = asked.conversation
            previous = await self._last_of(asked.conversation, must_exist=bool(asked.said))
        if asked.said or not asked.prompt:
            if previous is None:
                raise RequestRefusedError("input: nothing of this conversation waits for it; send a message")
            return await self._say(previous, asked.said)
        ask, refusal = await self._choose(asked, previous)
        starting = Starting(
            action="respond",  # whatever has become of the session since the same request came before
            ask=ask,
            body=body,
            key=self._key,
            request_id=None,
            is_named=isinstance(ask, Start) and ask.session is not None,
            refusal=refusal,
        )
        ticket = await start_once(self._gateway, self._caller, self._request, starting)
        return ResponseId(ticket.session, ticket.turn or 1)

    async def _last_of(self, session: str, *, must_exist: bool) -> ResponseId | None:
        """The last response of a session; None if nobody has begun it."""
        view = await own_view(self._gateway, self._caller, session)
        if view is None:
            if must_exist:
                raise UnknownSessionError(describe_missing_session(session))
            return None
        if view.opened is None:
            return ResponseId(session, 1)
        place = ResponseId(session, view.opened[1].turn)
        fold = await read_turn(self._gateway, place, await find_turn(self._gateway, place))
        return ResponseId(session, place.turn, max(1, len(fold.segments)))

    async def _choose(self, asked: Asked, previous: ResponseId | None) -> tuple[Ask, RequestRefusedError | None]:
        """The verb, and why it is refused unless the same request came before."""
        options: dict[str, object] = {"by": self._caller.name, "context": asked.context, "budgets": asked.budgets}
        if previous is None:
            if asked.model is None:
                raise RequestRefusedError("model: is needed; GET /models lists the agents")
            started = cast("TurnOptions", {**options, "history": asked.history or None, "tools": asked.tools})
            return Start(agent=asked.model, prompt=asked.prompt, session=asked.conversation, options=started), None
        view = await self._gateway.client.session_view(previous.session)
        last = previous.turn if view.opened is None else view.opened[1].turn
        if previous.turn < last and asked.conversation is None:
            refusal = _refuse_beside("goes on from an earlier response", tools=asked.tools)
            forked = cast("ResumeOptions", options)
            return Fork(session=previous.session, turn=previous.turn, prompt=asked.prompt, options=forked), refusal
        if view.state is RunState.ENDED:
            agent = asked.model or view.agent or ""
            started = cast("TurnOptions", {**options, "tools": asked.tools})
            return Start(agent=agent, prompt=asked.prompt, session=previous.session, options=started), None
        refusal = _refuse_beside("waits for a turn that runs", tools=asked.tools, max_tool_calls=asked.budgets)
        if view.requests:
            names = ", ".join(request.request_id for request in view.requests)
            refusal = RequestRefusedError(f"input: no output found for {names}; the turn waits for it")
        sent = SendOptions(by=self._caller.name, context=asked.context)
        return Send(session=previous.session, prompt=asked.prompt, options=sent), refusal

    async def _say(self, place: ResponseId, said: Sequence[Said]) -> ResponseId:
        fold = await read_turn(self._gateway, place, await find_turn(self._gateway, place))
        return await self.say(place, fold, said)


def _refuse_beside(why: str, **fields: object) -> RequestRefusedError | None:
    name = next((name for name, value in fields.items() if value), None)
    if name is None:
        return None
    return RequestRefusedError(f"{name}: a message that {why} cannot bring any; leave it out")


def requests_of(fold: TurnFold, segment: int) -> dict[str, Need]:
    """The requests of a response: what each needs, by the ids of the calls."""
    found = fold.segments[segment - 1].items if 0 < segment <= len(fold.segments) else []
    calls = [str(item.get("call_id") or item["id"]).removeprefix(APPROVAL) for item in found]
    return {call_id: fold.needs[call_id] for call_id in calls if call_id in fold.needs}


def decided_behind(fold: TurnFold, segment: int) -> set[str]:
    """Ids of the calls that somebody has decided behind a response."""
    return {receipt.request_id for later in fold.segments[segment:] for receipt in later.inputs}


def check_said(
    requests: Mapping[str, Need], decided: set[str], said: Sequence[Said], words: Words = OPENAI_WORDS
) -> None:
    """Check that everything is said that a segment asks for, and nothing else, in a protocol's own words.

    Raises:
        RequestRefusedError: It is not so.
    """
    told = [one.call_id for one in said]
    for one in said:
        need = requests.get(one.call_id)
        if need is None:
            msg = f"{words.field}: the {words.thing} asks for no {one.call_id!r}; it asks for {[*requests]}"
            raise RequestRefusedError(msg)
        if one.says not in _SAYS[need] and not (one.declines and need == "answer"):
            raise RequestRefusedError(f"{words.field}: {one.call_id!r} needs {words.needs[need]}")
    if twice := next((name for name in told if told.count(name) > 1), None):
        raise RequestRefusedError(f"{words.field}: {twice!r} is there twice")
    missing = [name for name in requests if name not in told and name not in decided]
    if missing:
        raise RequestRefusedError(f"{words.field}: no output found for {', '.join(missing)}; send all at once")


_SAYS: Mapping[Need, frozenset[str]] = {
    "approval": frozenset({"decision"}),
    "answer": frozenset({"output"}),
    "result": frozenset({"output", "error"}),
}
"""Kinds of replies to each need."""


def _validate(one: Said, need: Need, by: str) -> None:
    fields: dict[str, object] = {"request": one.call_id, "by": by}
    if one.error:
        validate(ResultRequest, {**fields, "error": one.error})
    elif one.output is None:
        validate(ApproveRequest, fields) if one.approve else validate(DenyRequest, {**fields, "reason": one.reason})
    else:
        validate(ResultRequest if need == "result" else AnswerRequest, {**fields, "value": one.output})
