"""Replies to what a turn waits for: whether they fit, and giving them, for this door and for another."""

from collections.abc import Collection, Mapping, Sequence

from perdure.client import AnswerRequest, ApproveRequest, DenyRequest, ReplyOptions, RequestRefusedError, ResultRequest
from perdure.client.requests import validate
from perdure.contracts.input_requests import Need, ReplyBody
from perdure.gateway.access import Gateway
from perdure.gateway.callers import Caller, Scope
from perdure.gateway.doors.responses.events import TurnFold
from perdure.gateway.doors.responses.following import find_turn, read_turn
from perdure.gateway.doors.responses.objects import asked_call
from perdure.gateway.doors.responses.places import ResponseId
from perdure.gateway.doors.responses.requests import Said
from perdure.gateway.doors.responses.words import OPENAI_WORDS, Words
from perdure.gateway.problems import ProblemCode, ProblemError


class Speaker:
    """Says to turns what they wait for, as one caller, in the words of a protocol."""

    def __init__(self, gateway: Gateway, caller: Caller, words: Words) -> None:
        self._gateway = gateway
        self._caller = caller
        self._words = words

    async def say(self, place: ResponseId, fold: TurnFold, said: Sequence[Said]) -> ResponseId:
        """Say to a turn, read so far, all that its segment waits for; the segment that goes on behind it.

        Raises:
            RequestRefusedError: Something is missing, or is said that the segment does not wait for.
            ProblemError: The caller may not, or something else stands.
        """
        if missing := self.check(place, fold, said):
            raise RequestRefusedError(
                f"{self._words.field}: no output found for {', '.join(missing)}; send all at once"
            )
        return await self.give(place, fold, said)

    def check(self, place: ResponseId, fold: TurnFold, said: Sequence[Said]) -> Sequence[str]:
        """Check what is to be said, before any of it is; the requests that are then still to be replied to.

        Raises:
            RequestRefusedError: Something is said that the segment does not wait for.
            ProblemError: The caller may not.
        """
        requests, words = requests_of(fold, place.segment), self._words
        if not requests:
            raise RequestRefusedError(f"{words.field}: the {words.thing} waits for nothing; send a message of the user")
        check_said(requests, said, words)
        self._check_scopes(requests, said)
        for one in said:
            _body_of(one, requests[one.call_id], self._caller.name)
        told = {one.call_id for one in said} | decided_behind(fold, place.segment)
        return [name for name in requests if name not in told]

    async def give(
        self, place: ResponseId, fold: TurnFold, said: Sequence[Said], options: ReplyOptions | None = None
    ) -> ResponseId:
        """Give what was checked; the segment that goes on behind it.

        A turn that stopped for its requests goes on as the next one, with these options. If not all was said to it,
        that one asks for the rest.

        Raises:
            ProblemError: Something else stands.
        """
        requests, by = requests_of(fold, place.segment), self._caller.name
        bodies = [_body_of(one, requests[one.call_id], by) for one in said]
        if bodies:
            try:
                replied = await self._gateway.client.reply(place.session, bodies, **(options or ReplyOptions()))
            except RequestRefusedError as error:
                raise ProblemError(409, ProblemCode.CONFLICT, str(error)) from error
            if replied.turn is not None:
                return ResponseId(place.session, replied.turn)
        if not fold.has_ended:  # it may have stopped since it was read, so that the next turn has taken what was said
            fold = await read_turn(self._gateway, place, await find_turn(self._gateway, place))
        if fold.has_stopped:
            return ResponseId(place.session, place.turn + 1)
        return ResponseId(place.session, place.turn, place.segment + 1)

    def _check_scopes(self, requests: Mapping[str, Need], said: Sequence[Said]) -> None:
        asks_people = any(requests[one.call_id] != "result" for one in said)
        if asks_people and not self._caller.may(Scope.APPROVE):
            msg = f"the token {self._caller.name!r} lacks the scope 'approve'; use one that has it"
            raise ProblemError(403, ProblemCode.FORBIDDEN, msg)


def requests_of(fold: TurnFold, segment: int) -> dict[str, Need]:
    """The requests of a response: what each needs, by the ids of the calls."""
    found = fold.segments[segment - 1].items if 0 < segment <= len(fold.segments) else []
    calls = map(asked_call, found)
    return {call_id: fold.needs[call_id] for call_id in calls if call_id in fold.needs}


def segment_asking(fold: TurnFold, names: Collection[str]) -> int | None:
    """Number of the last segment that asks for one of these calls."""
    numbers = [
        segment.number for segment in fold.segments if not requests_of(fold, segment.number).keys().isdisjoint(names)
    ]
    return numbers[-1] if numbers else None


def last_asking(fold: TurnFold) -> int:
    """Number of the last segment that asks for anything; of the last one if none does."""
    numbers = [segment.number for segment in fold.segments if requests_of(fold, segment.number)]
    return numbers[-1] if numbers else max(1, len(fold.segments))


def stops_at(fold: TurnFold, segment: int) -> bool:
    """Whether the turn ends with the requests of a segment, also if it has not come to that yet.

    Replies then begin the next turn, all of them together.
    """
    return fold.has_stopped if fold.has_ended else fold.stops and segment == last_asking(fold)


def decided_behind(fold: TurnFold, segment: int) -> set[str]:
    """Ids of the calls that somebody has decided behind a response."""
    return {receipt.request_id for later in fold.segments[segment:] for receipt in later.inputs}


def check_said(requests: Mapping[str, Need], said: Sequence[Said], words: Words = OPENAI_WORDS) -> None:
    """Check that nothing is said but what a segment asks for, once and in its kind, in a protocol's own words.

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


_SAYS: Mapping[Need, frozenset[str]] = {
    "approval": frozenset({"decision"}),
    "answer": frozenset({"output"}),
    "result": frozenset({"output", "error"}),
}
"""Kinds of replies to each need."""


def _body_of(one: Said, need: Need, by: str) -> ReplyBody:
    """A reply as the client takes it.

    Raises:
        RequestRefusedError: It is too long, for example.
    """
    fields: dict[str, object] = {"request": one.call_id, "by": by}
    if one.error:
        return validate(ResultRequest, {**fields, "error": one.error, "tool_choice": one.tool_choice})
    if one.output is None and one.approve:
        return validate(ApproveRequest, fields)
    if one.output is None:
        return validate(DenyRequest, {**fields, "reason": one.reason})
    if need == "result":
        return validate(ResultRequest, {**fields, "value": one.output, "tool_choice": one.tool_choice})
    return validate(AnswerRequest, {**fields, "value": one.output})
