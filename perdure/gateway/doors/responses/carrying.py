"""Carrying out what a request asks for, by the client's verbs: a turn begins, or one that waits is told something."""

import hashlib
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from http import HTTPStatus
from typing import cast

from starlette.requests import Request

from perdure.client import (
    ReplyOptions,
    RequestRefusedError,
    ResumeOptions,
    SessionBusyError,
    TurnOptions,
    UnknownSessionError,
)
from perdure.client.asks import Ask, Fork, Send, Start
from perdure.client.requests import Content, SendOptions
from perdure.client.sessions import describe_missing_session
from perdure.contracts.turns import RunState
from perdure.gateway.access import Gateway, act_for, missing_as, own_session
from perdure.gateway.bodies import Body
from perdure.gateway.callers import Caller
from perdure.gateway.doors.prompts import join_parts
from perdure.gateway.doors.responses.conversations import (
    begin,
    is_heard,
    last_place,
    live_replies,
    new_words,
    nothing_new,
    unnamed_behind,
)
from perdure.gateway.doors.responses.events import TurnFold
from perdure.gateway.doors.responses.following import unknown_response
from perdure.gateway.doors.responses.lookup import EditedError, Lookup
from perdure.gateway.doors.responses.objects import texts_of
from perdure.gateway.doors.responses.places import ResponseId
from perdure.gateway.doors.responses.refusals import (
    WaitsError,
    lacking,
    refuse_beside,
    refuse_others,
    refuse_unknown_choice,
)
from perdure.gateway.doors.responses.replies import (
    Speaker,
    decided_behind,
    last_asking,
    requests_of,
    segment_asking,
    stops_at,
)
from perdure.gateway.doors.responses.requests import Asked, Entry, Object, Said
from perdure.gateway.doors.responses.words import OPENAI_WORDS, Words
from perdure.gateway.following import own_view
from perdure.gateway.problems import ProblemCode, ProblemError
from perdure.gateway.starts import Starting, start_once


async def own_response(gateway: Gateway, caller: Caller, text: str) -> ResponseId:
    """The response of that id, which is the caller's tenant's.

    Raises:
        ProblemError: It is not, or nobody has it.
        SessionErasedError: It was the caller's, and was erased.
    """
    place = ResponseId.parse(text)
    if place is None:
        raise unknown_response(text)
    with missing_as(unknown_response(text)):
        await own_session(place.session, await act_for(gateway, caller, place.session), gateway)
    return place


@dataclass(frozen=True)
class Carried:
    """Result of a request.

    Attributes:
        place: The response that came of it.
        missing: Calls that this response, which has ended, still waits for, since not all were replied to.
        applies: Whether the turn has the settings of the request, and not its own ones.
        seen: Characters of its text that the client has, without white space; None unless it asks for the rest.
    """

    place: ResponseId
    missing: Sequence[str] = ()
    applies: bool = True
    seen: int | None = None


class Carrier(Speaker):
    """Carries out one request.

    Args:
        key: Its Idempotency-Key.
        words: Words of its protocol.
    """

    def __init__(
        self, gateway: Gateway, caller: Caller, request: Request, key: str | None, words: Words = OPENAI_WORDS
    ) -> None:
        super().__init__(gateway, caller, words)
        self._request = request
        self._key = key
        self._lookup = Lookup(gateway, caller)
        self._action = "respond"  # the same whatever has become of the session since
        self._mark = ""

    async def carry_out(self, asked: Asked, body: Body) -> Carried:
        """Do what is asked for, once; the response that comes of it.

        Raises:
            ProblemError: It names what there is not, or conflicts with what has happened.
            ClientError: As the client raises it.
        """
        named = await self._find_named(asked)
        asked = replace(asked, entries=await self._lookup.with_own(asked.entries))
        place = named if named is not None or asked.conversation is not None else last_place(asked.entries)
        if place is not None:
            self._request.state.session = place.session
            try:
                return await self._go_on(asked, body, place)
            except EditedError as error:
                if named is not None:
                    what = "conversation" if asked.conversation else "previous_response_id"
                    msg = f"{error}: is not what {what} has at that place; send what is new alone, or leave {what} out"
                    raise RequestRefusedError(msg) from None
        return await self._begin(asked, body)

    async def _find_named(self, asked: Asked) -> ResponseId | None:
        """The response that the request goes on from by name; None if it names none, or a session that is to begin."""
        if asked.previous is not None:
            return await own_response(self._gateway, self._caller, asked.previous)
        if asked.conversation is None:
            return None
        self._request.state.session = asked.conversation
        view = await own_view(self._gateway, self._caller, asked.conversation)
        if view is None:
            return None
        if view.opened is None:
            return ResponseId(asked.conversation, 1)
        place = ResponseId(asked.conversation, view.opened[1].turn)
        fold = await self._lookup.turn(place.session, place.turn)
        return replace(place, segment=max(1, len(fold.segments)))

    # A new session

    async def _begin(self, asked: Asked, body: Body) -> Carried:
        if asked.conversation is not None and not new_words(asked.entries):
            raise UnknownSessionError(describe_missing_session(asked.conversation))
        prompt, history = begin(await self._lookup.resolved(asked.entries), asked.system, self._words)
        if asked.model is None:
            raise RequestRefusedError("model: is needed; GET /models lists the agents")
        options = {**self._options(asked), "history": history or None}
        ask = Start(agent=asked.model, prompt=prompt, session=asked.conversation, options=cast("TurnOptions", options))
        return Carried(await self._start(ask, body))

    def _options(self, asked: Asked) -> dict[str, object]:
        told: dict[str, object] = {"by": self._caller.name, "context": asked.context, "budgets": asked.budgets}
        return told | asked.settings.options | {"tools": asked.tools, "stop_for_results": True}

    def _reply_options(self, asked: Asked, prompt: Content, fold: TurnFold) -> ReplyOptions:
        """Options of the turn that replies begin: it has the context of the turn that asked, and mostly its agent."""
        options = {name: value for name, value in self._options(asked).items() if name != "context"}
        before = None if fold.prompt is None else fold.prompt.agent
        agent = None if asked.model == before else asked.model
        return cast("ReplyOptions", {**options, "agent": agent, "prompt": prompt})

    async def _start(self, ask: Ask, body: Body, refusal: RequestRefusedError | None = None) -> ResponseId:
        action, key, attempt = self._action, self._key, None
        if key is None:
            said = body.model_dump_json(exclude_unset=True)
            key, attempt = await self._gateway.tries.enter(self._caller, self._request, action, said)
        starting = Starting(
            action=action,
            ask=ask,
            body=body,
            key=key,
            attempt=attempt,
            request_id=f"{self._mark}{hashlib.sha256(key.encode()).hexdigest()[:32]}" if self._mark else None,
            is_named=isinstance(ask, Start) and ask.session is not None,
            refusal=refusal,
        )
        try:
            ticket = await start_once(self._gateway, self._caller, self._request, starting)
        except (RequestRefusedError, SessionBusyError):
            if key != self._key:
                await self._gateway.tries.refuse(key)
            raise
        return ResponseId(ticket.session, ticket.turn or 1)

    # A session that is there

    async def _go_on(self, asked: Asked, body: Body, place: ResponseId) -> Carried:
        """Go on from a response.

        Raises:
            EditedError: The session has another conversation than the one that is shown.
        """
        if asked.is_named:
            await self._check_known(asked.entries, place)
        if (edited := await self._lookup.edited(asked.entries)) is not None:
            raise EditedError(edited)
        if asked.conversation is not None:
            asked = replace(asked, entries=await self._lookup.without_known(asked.entries, place))
        if not asked.is_named:
            behind, is_lenient = unnamed_behind(asked.entries), self._words.is_lenient
            place = await self._lookup.followed(behind, place, is_lenient=is_lenient)
        replies, words = live_replies(asked.entries), new_words(asked.entries)
        if replies or not words:
            if not asked.is_named and not replies and not asked.entries[-1].asks:
                raise nothing_new(asked.entries, self._words)
            return await self._reply(asked, body, place, replies)
        return await self._send(asked, body, place, join_parts(asked.system, words, self._words.field))

    async def _check_known(self, entries: Sequence[Entry], place: ResponseId) -> None:
        """Check that the session has what is sent of the agent, beside the response's id or the session's.

        Raises:
            EditedError: It has not.
        """
        for entry in entries:
            if not entry.is_models or entry.is_bare:
                continue
            if entry.origin is not None:
                is_known = await self._lookup.descends(place.session, entry.origin.session)
            else:
                is_known = await self._has_said(entry, place)
            if not is_known:
                raise EditedError(entry.at)

    async def _has_said(self, entry: Entry, place: ResponseId) -> bool:
        """Whether the turn has said this, or made this call, which has no id of this door."""
        fold = await self._lookup.turn(place.session, place.turn)
        if entry.kind == "message":
            texts = [*(text for segment in fold.segments for text in texts_of(segment.items))]
            return bool(entry.history) and entry.history[0]["content"] in texts
        calls = entry.history[0].get("tool_calls") if entry.history else None
        return isinstance(calls, list) and all(
            isinstance(call, dict) and fold.knows_call(str(call["id"])) for call in calls
        )

    async def _send(self, asked: Asked, body: Body, previous: ResponseId, prompt: Content) -> Carried:
        ask, refusal = await self._choose(asked, previous, prompt)
        return Carried(await self._start(ask, body, refusal), applies=not isinstance(ask, Send))

    async def _choose(
        self, asked: Asked, previous: ResponseId, prompt: Content
    ) -> tuple[Ask, RequestRefusedError | None]:
        """The verb for a message, and why it is refused unless the same request came before."""
        options = self._options(asked)
        view = await self._gateway.client.session_view(previous.session)
        last = previous.turn if view.opened is None else view.opened[1].turn
        if previous.turn < last and asked.conversation is None:
            forked = cast("ResumeOptions", options)
            return Fork(session=previous.session, turn=previous.turn, prompt=prompt, options=forked), None
        if view.state is RunState.ENDED:
            agent = asked.model or view.agent or ""
            started = cast("TurnOptions", options)
            lacks = lacking(view, {"result"})  # whose program has to send them first, as at OpenAI
            return Start(agent=agent, prompt=prompt, session=previous.session, options=started), lacks
        refusal = refuse_beside(
            "waits for a turn that runs",
            tools=asked.tools,
            tool_choice=asked.settings.tool_choice,
            text=asked.settings.output_schema,
            max_tool_calls=asked.budgets,
        )
        refusal = lacking(view, {"answer", "approval", "result"}) or refusal
        sent = SendOptions(by=self._caller.name, context=asked.context, stop_for_results=True)
        return Send(session=previous.session, prompt=prompt, options=sent), refusal

    async def _reply(self, asked: Asked, body: Body, place: ResponseId, replies: Sequence[Entry]) -> Carried:
        """Say to the turn that asked what it waits for, and a message with it.

        Raises:
            EditedError: The turn is over, so that the session has another outcome of a call than the one that is shown.
        """
        try:
            found = await self._find_asking(asked, place, replies)
        except ProblemError as error:
            if error.status == HTTPStatus.CONFLICT and new_words(asked.entries):
                raise EditedError(replies[-1].at) from None
            raise
        place, fold, said = found.place, found.fold, found.said
        stops = stops_at(fold, place.segment)
        if stops:
            refuse_unknown_choice(asked, fold)
        else:
            refuse_others(asked, fold)
        words, prompt = await self._words_beside(asked, fold)
        open_calls = [one.call_id for one in said if one.call_id in fold.needs and one.call_id not in found.given]
        options = self._reply_options(asked, prompt, fold)
        if prompt and said and not open_calls:
            after = await self._give_again(found, replies[-1].at)
            later = fold if after.turn == place.turn else await self._lookup.turn(after.session, after.turn)
            if is_heard(words, later.heard):  # the same request again
                return Carried(after, applies=stops)
            if later.has_ended:
                return await self._send(asked, body, after, prompt)
            # It may be the same request, whose message no model has read yet: the turn takes that once.
            return Carried(await self.give(place, fold, said, options), applies=stops)
        if open_calls and found.end:
            if prompt:
                raise EditedError(replies[-1].at)
            over = f"nothing waits for {open_calls[0]!r} any more: {found.end}; send a message of the user"
            raise ProblemError(409, ProblemCode.CONFLICT, f"{replies[-1].at}: {over}")
        missing = self.check(place, fold, said)
        if missing and prompt:
            late = await self._expired(place.session)
            missing = [name for name in missing if name not in late]
        if missing and (prompt or not said):
            raise WaitsError(place.session, place.turn, {name: fold.needs[name] for name in missing})
        try:
            after = await self.give(place, fold, said, options)
        except ProblemError as error:
            if error.status == HTTPStatus.CONFLICT and prompt and not asked.is_named:
                raise EditedError(replies[-1].at) from None
            raise
        if after.turn > place.turn:
            return Carried(after)
        return Carried(place if missing else after, missing, applies=False)

    async def _give_again(self, asking: "_Asking", at: str) -> ResponseId:
        """The segment behind replies that were given before a message.

        Raises:
            EditedError: Others stand.
        """
        try:
            return await self.give(asking.place, asking.fold, asking.said)
        except ProblemError as error:
            if error.status != HTTPStatus.CONFLICT:
                raise
            raise EditedError(at) from None

    async def _find_asking(self, asked: Asked, place: ResponseId, replies: Sequence[Entry]) -> "_Asking":
        """The response that asked for these replies, and those that are to it."""
        turn = max((entry.origin.turn for entry in replies if entry.origin is not None), default=place.turn)
        fold = await self._lookup.turn(place.session, turn)
        said: list[Said] = []
        for entry in replies:
            if entry.origin is not None and entry.origin.session != place.session:
                raise RequestRefusedError(f"{entry.at}: replies to another conversation than the rest is of")
            if entry.said is not None and (entry.origin is None or entry.origin.turn == turn):
                said.append(replace(entry.said, tool_choice=asked.settings.tool_choice))
        segment = segment_asking(fold, {one.call_id for one in said})
        if segment is None:
            segment = place.segment if asked.is_named and turn == place.turn else last_asking(fold)
        requests = requests_of(fold, segment)
        said = [one for one in said if one.call_id in requests or not fold.knows_call(one.call_id)]
        at = ResponseId(place.session, turn, segment)
        asking = _Asking(place=at, fold=fold, said=said, given=decided_behind(fold, segment))
        if fold.has_stopped:
            return await self._look_behind(asking)
        ending = fold.segments[-1].ending if fold.has_ended and fold.segments else None
        if ending is not None and ending.stop_reason:
            return replace(asking, end=f"the turn ended, {ending.stop_reason}")
        return asking

    async def _look_behind(self, asking: "_Asking") -> "_Asking":
        """The requests of a turn that stopped for them, with what the turn behind it has heard.

        One that began with a part of the replies asks for the others once more, and so on.

        Raises:
            ProblemError: Another reply than one of these stands.
        """
        place, names = asking.place, {one.call_id for one in asking.said}
        view = await self._gateway.client.session_view(place.session)
        if view.opened is None or view.opened[1].turn == place.turn:
            return asking
        behind = await self._lookup.turn(place.session, place.turn + 1)
        given = {*asking.given, *decided_behind(behind, 0)}
        segment = segment_asking(behind, names - given)
        if segment is None:
            return await self._ask_turn_behind(replace(asking, given=given))
        if stale := [one for one in asking.said if one.call_id in given]:
            await self.give(place, asking.fold, stale)
        at = ResponseId(place.session, place.turn + 1, segment)
        said = [one for one in asking.said if one.call_id in requests_of(behind, segment)]
        later = _Asking(place=at, fold=behind, said=said, given=given | decided_behind(behind, segment))
        return await self._look_behind(later) if stops_at(behind, segment) else later

    async def _expired(self, session: str) -> set[str]:
        """Requests of a session that nobody can reply to any more."""
        view, now = await self._gateway.client.session_view(session), datetime.now(UTC)
        return {one.request_id for one in view.requests if one.expires_at is not None and one.expires_at <= now}

    async def _words_beside(self, asked: Asked, fold: TurnFold) -> tuple[list[Object], Content]:
        """The message beside replies and its text, if there is a new one: some clients send earlier ones before them.

        The instructions stand before it unless the session has them.
        """
        words, behind = new_words(asked.entries), new_words(asked.entries, behind_replies=True)
        if not words:
            return [], ""
        heard = await self._lookup.heard_by(fold)
        if is_heard(words[: len(words) - len(behind)], heard):
            words = behind
        is_told = any(text.startswith("\n\n".join(asked.system)) for text, _ in heard)
        return words, join_parts([] if is_told else asked.system, words, self._words.field) if words else ""

    async def _ask_turn_behind(self, asking: "_Asking") -> "_Asking":
        """See whether the turn behind has the replies, of which its log may not tell yet."""
        untold = [one for one in asking.said if one.call_id not in asking.given]
        if not untold:
            return asking
        self.check(asking.place, asking.fold, untold)
        try:
            await self.give(asking.place, asking.fold, untold)
        except ProblemError as error:
            if error.status != HTTPStatus.CONFLICT:
                raise
            return replace(asking, end="the session went on without a reply")
        return replace(asking, given=asking.given | {one.call_id for one in untold})


@dataclass(frozen=True, kw_only=True)
class _Asking:
    """Response that asked for replies.

    Attributes:
        said: The replies to it.
        given: Calls that somebody has decided.
        end: Why nobody waits for the others; empty as long as the turn does.
    """

    place: ResponseId
    fold: TurnFold
    said: Sequence[Said]
    given: AbstractSet[str]
    end: str = ""
