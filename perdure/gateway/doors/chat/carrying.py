"""Carrying out a request of a conversation that its front end names: in the session of that, on the branch it shows."""

import contextlib
import re
from collections.abc import Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import cast

from starlette.requests import Request

from perdure.client import (
    EventsGoneError,
    RequestRefusedError,
    SessionBusyError,
    SessionErasedError,
    TurnClosedError,
    TurnOptions,
    UnknownSessionError,
    WrongTurnError,
)
from perdure.client.asks import Ask, Resume, Send, Start
from perdure.client.requests import Content
from perdure.client.views import SessionView, TurnView
from perdure.contracts.events import AgentStart
from perdure.contracts.input_requests import Need
from perdure.contracts.turns import RunState
from perdure.gateway.access import Gateway
from perdure.gateway.bodies import Body
from perdure.gateway.callers import Caller, Scope
from perdure.gateway.doors.chat.chunks import CallsShown, contents_of, questions_of
from perdure.gateway.doors.chat.requests import WORDS
from perdure.gateway.doors.chat.threads import (
    START,
    Found,
    Node,
    Round,
    Tree,
    digest_of,
    end_of_shown,
    heard_in,
    join_heard,
    page_of,
    read_reply,
    read_rounds,
    squeeze,
    without_page,
)
from perdure.gateway.doors.prompts import join_parts
from perdure.gateway.doors.responses.carrying import Carried, Carrier
from perdure.gateway.doors.responses.conversations import begin, live_replies, new_words, nothing_new
from perdure.gateway.doors.responses.events import TurnFold
from perdure.gateway.doors.responses.lookup import EditedError
from perdure.gateway.doors.responses.places import ResponseId
from perdure.gateway.doors.responses.refusals import WaitsError, lacking
from perdure.gateway.doors.responses.replies import decided_behind, last_asking, requests_of, stops_at
from perdure.gateway.doors.responses.requests import Asked, Entry, Object, Said
from perdure.gateway.following import CANCEL_SECONDS, own_view, wait_until
from perdure.gateway.problems import ProblemError
from perdure.security.approvals import is_cut

_MARK = re.compile(r"chat-([0-9a-f]{16})-")
"""Beginning of the id of a request that begins a turn here, with the digest of its words: a front end shows these."""

MOST_READ = 20
"""Last answers of which is seen whether they were edited."""


class ChatCarrier(Carrier):
    """Carries out one request of a conversation.

    Args:
        session: The session of the conversation, which may not have begun.
    """

    def __init__(self, gateway: Gateway, caller: Caller, request: Request, key: str | None, session: str) -> None:
        super().__init__(gateway, caller, request, key, WORDS)
        settings = gateway.client.settings
        self._session = self._request.state.session = session
        self._action = f"respond in {session}"
        self._shows: CallsShown = settings.chat_calls
        self._decides = settings.chat_decisions == "words" and caller.may(Scope.APPROVE)
        self._cancels = settings.chat_closed == "cancel"

    async def carry_out(self, asked: Asked, body: Body) -> Carried:
        """Do what is asked for, once; the completion that comes of it.

        Raises:
            ProblemError: It conflicts with what has happened.
            ClientError: As the client raises it.
        """
        view = await own_view(self._gateway, self._caller, self._session)
        entries = [_of_session(entry, self._session) for entry in asked.entries]
        asked = replace(asked, conversation=self._session, entries=entries)
        replies = [entry for entry in live_replies(entries) if entry.origin is not None]
        if not replies and not new_words(entries):
            if view is None or view.opened is None or (rest := await self._continue(entries)) is None:
                raise nothing_new(entries, self._words)
            return rest
        self._note(read_rounds(entries, self._session)[1])
        if view is None or view.opened is None:
            return await self._begin(asked, body)
        if not replies:
            return await self._decide(asked, view) or await self._say(asked, body, view)
        turn = max(entry.origin.turn for entry in replies if entry.origin is not None)
        try:
            return await self._reply(replace(asked, conversation=None), body, ResponseId(view.session, turn), replies)
        except EditedError:
            return await self._begin_anew(asked, body, view)

    async def _continue(self, entries: Sequence[Entry]) -> Carried | None:
        """The rest of the answer that is shown last, or what comes behind its request to people; None if it is whole.

        Raises:
            WaitsError: The turn has ended with this request, and waits on.
            EventsGoneError: The retention of the agent has deleted its log.
        """
        rounds, said = read_rounds(entries, self._session)
        tree, found = await self._find(entries, rounds, said)
        if found is None or not rounds or not rounds[-1].answers:
            return None
        folds = [await self._lookup.turn(self._session, it) for it in (found.turn, *tree.silent_behind(found.turn))]
        places = [(fold, number) for fold in folds for number in range(1, len(fold.segments) + 1)]
        texts = [squeeze(text) for fold in folds for text in contents_of(fold, self._shows)]
        end = end_of_shown(texts, squeeze(without_page(rounds[-1].answers[-1], self._session)))
        if end is None:
            return None
        at, seen = end
        fold, number = places[at]
        place = ResponseId(self._session, fold.turn, number)
        if seen < len(texts[at]) or fold.segments[number - 1].ending is None:
            return Carried(place, applies=False, seen=seen)
        if at + 1 < len(places):
            fold, number = places[at + 1]
            return Carried(ResponseId(self._session, fold.turn, number), applies=False, seen=0)
        if not fold.has_ended:
            return Carried(replace(place, segment=number + 1), applies=False, seen=0)
        if fold.has_stopped:
            raise WaitsError(self._session, fold.turn, requests_of(fold, number))
        return None

    async def _decide(self, asked: Asked, view: SessionView) -> Carried | None:
        """Take a message for the reply of a person, if words are one and the one before it has asked; None if not."""
        rounds, said = read_rounds(asked.entries, view.session)
        place = rounds[-1].asked_at(view.session) if self._decides and rounds and len(said) == 1 else None
        if place is None or place[0] != _last_of(view):
            return None
        try:
            fold = await self._lookup.turn(view.session, place[0])
        except EventsGoneError:
            return None
        requests, decided = requests_of(fold, place[1]), decided_behind(fold, place[1])
        left: dict[str, Need] = {name: need for name, need in requests.items() if name not in decided} or requests
        questions, shown = questions_of(fold, place[1]), squeeze(rounds[-1].answers[-1])
        if any(is_cut(questions[name]) or squeeze(questions[name]) not in shown for name in left):
            return None  # nobody can say yes to what is not shown
        reply = read_reply(heard_in(said[0])[0], left)
        return await self._give(asked, ResponseId(view.session, *place), fold, reply) if reply else None

    async def _give(self, asked: Asked, place: ResponseId, fold: TurnFold, reply: Sequence[Said]) -> Carried | None:
        """Give a reply of a person; None if another one stands, so that it is a message behind that."""
        self.check(place, fold, reply)
        try:
            after = await self.give(place, fold, reply, self._reply_options(asked, "", fold))
        except ProblemError as error:
            if error.status != HTTPStatus.CONFLICT:
                raise
            return None
        return Carried(after, applies=after.turn > place.turn)

    async def _send(self, asked: Asked, body: Body, previous: ResponseId, prompt: Content) -> Carried:
        """Say a message behind replies that were given before: where the conversation has come to."""
        view = await self._gateway.client.session_view(previous.session)
        return await self._say(replace(asked, conversation=previous.session), body, view)

    async def _say(self, asked: Asked, body: Body, view: SessionView) -> Carried:
        """Say a message where the conversation that is shown has come to."""
        if self._cancels and view.state is RunState.RUNNING:
            view = await self._wait_for_end(view)
        rounds, said = read_rounds(asked.entries, view.session)
        tree, found = await self._find(asked.entries, rounds, said)
        if found is None or await self._is_edited(tree, rounds, found):
            return await self._begin_anew(asked, body, view)
        self._note(said[found.taken :])
        parts = [part for entry in said[found.taken :] for part in entry.parts]
        prompt = join_parts(asked.system, parts, self._words.field)
        end, place = tree.end_of(found.turn), ResponseId(view.session, _last_of(view))
        if end == place.turn:
            return await super()._send(asked, body, place, prompt)
        return await self._resume(asked, body, view, end, prompt)

    async def _find(
        self, entries: Sequence[Entry], rounds: Sequence[Round], said: Sequence[Entry]
    ) -> tuple[Tree, Found | None]:
        """The session's turns, and the place among them that the conversation has come to."""
        messages = [heard_in(entry) for entry in said]
        tree = await self._read_tree()
        found = tree.find(rounds, messages)
        if found is None and any(entry.said is not None for entry in entries):
            tree = await self._read_tree(looks_behind_results=True)
            found = tree.find(rounds, messages)
        return tree, found

    async def _read_tree(self, *, looks_behind_results: bool = False) -> Tree:
        """The session's turns; if asked, with the words that were said to them beside results."""
        views = await self._gateway.client.turn_views(self._session)
        starts = await self._lookup.starts((self._session, view.turn) for view in views)
        nodes = [_node_of(view, starts.get((self._session, view.turn))) for view in views]
        for at, node in enumerate(nodes):
            if looks_behind_results and node.heard == []:
                with contextlib.suppress(EventsGoneError):
                    heard = (await self._lookup.turn(self._session, node.turn)).heard
                    nodes[at] = replace(node, heard=heard, is_shown=bool(heard))
        return Tree(nodes, tells_calls=self._shows == "text")

    async def _is_edited(self, tree: Tree, rounds: Sequence[Round], found: Found) -> bool:
        """Whether an answer is shown in words that its turn has not said; the beginning of one is none."""
        for one, turn in list(zip(reversed(rounds), reversed(found.turns), strict=False))[:MOST_READ]:
            if tree.has_said(turn, one.answers) or not tree.answers_of(turn):
                continue
            shown = squeeze(without_page(one.answers[-1], self._session))
            try:
                folds = [await self._lookup.turn(self._session, it) for it in (turn, *tree.silent_behind(turn))]
            except EventsGoneError:
                continue
            told = [squeeze(text) for fold in folds for text in contents_of(fold, self._shows)]
            is_question = one.asked_at(self._session) is not None and any(text.endswith(shown) for text in told)
            if not is_question and end_of_shown(told, shown) is None:
                return True
        return False

    async def _begin_anew(self, asked: Asked, body: Body, view: SessionView) -> Carried:
        """Begin with the conversation that is shown, in the session, which keeps what was there, and waits on."""
        prompt, history = begin(await self._lookup.resolved(asked.entries), asked.system, self._words)
        return await self._resume(asked, body, view, START, prompt, history)

    async def _resume(
        self,
        asked: Asked,
        body: Body,
        view: SessionView,
        turn: int,
        prompt: Content,
        history: Sequence[Object] = (),
    ) -> Carried:
        """Go on from a turn that is not the last one; what that one waits for is withdrawn with it."""
        options = self._options(asked) | ({"history": history} if history else {})
        ask = Resume(
            session=view.session, prompt=prompt, turn=turn, agent=asked.model, options=cast("TurnOptions", options)
        )
        waits = (
            lacking(view, {"answer", "approval", "result"}) if history and view.state is not RunState.ENDED else None
        )
        try:
            return Carried(await self._start(ask, body, waits))
        except SessionBusyError:
            view = await self._gateway.client.session_view(view.session)
            if view.state is not RunState.WAITING_FOR_INPUT or history:
                raise
        why = f"{self._caller.name} has edited its message, or asked for another answer"
        with contextlib.suppress(WrongTurnError):
            await self._gateway.client.cancel(view.session, why, _last_of(view))
        await self._wait_for_end(view)
        return Carried(await self._start(ask, body))

    async def _start(self, ask: Ask, body: Body, refusal: RequestRefusedError | None = None) -> ResponseId:
        try:
            return await super()._start(ask, body, refusal)
        except SessionErasedError:
            raise
        except (SessionBusyError, UnknownSessionError):  # nobody may know yet what a request beside this one begins
            where = f"wait for its end, or stop it at {page_of(self._session)} of the gateway"
            raise SessionBusyError(f"messages: this conversation still answers another message; {where}") from None

    def _note(self, said: Sequence[Entry]) -> None:
        """Note the words of the message in the id of the request that begins a turn."""
        self._mark = f"chat-{digest_of(join_heard([*map(heard_in, said)]))}-"

    async def _choose(
        self, asked: Asked, previous: ResponseId, prompt: Content
    ) -> tuple[Ask, RequestRefusedError | None]:
        """The verb for a message; calls that the front end does not show wait for nothing, and are withdrawn."""
        ask, refusal = await super()._choose(asked, previous, prompt)
        if not isinstance(refusal, WaitsError):
            return ask, refusal
        if {entry.origin.name for entry in asked.entries if entry.origin is not None} & refusal.needs.keys():
            return ask, refusal
        if isinstance(ask, Send) and await self._is_about_to_stop(refusal):
            await self._wait_for_end(await self._gateway.client.session_view(previous.session))
            ask, refusal = await super()._choose(asked, previous, prompt)
        return ask, None if isinstance(ask, Start) and isinstance(refusal, WaitsError) else refusal

    async def _is_about_to_stop(self, waits: WaitsError) -> bool:
        """Whether the turn ends with what it waits for, which its client reads a moment before it has ended."""
        fold = await self._lookup.turn(waits.session, waits.turn)
        return not fold.has_ended and stops_at(fold, last_asking(fold))

    async def _wait_for_end(self, view: SessionView) -> SessionView:
        """The session once its turn has ended, whose client may have gone away just now."""
        turn = await self._gateway.client.attach(view.session, _last_of(view))
        with contextlib.suppress(TurnClosedError):
            await wait_until(turn.result(), (self._gateway.stopping.wait(),), CANCEL_SECONDS)
        return await self._gateway.client.session_view(view.session)


def _last_of(view: SessionView) -> int:
    return 1 if view.opened is None else view.opened[1].turn


def _node_of(view: TurnView, start: AgentStart | None) -> Node:
    """A turn in the tree; its log may be deleted."""
    mark = _MARK.match(view.request_id or "")
    node = Node(
        turn=view.turn,
        parent=view.turn - 1,
        words=mark[1] if mark else "",
        heard=None,
        answer="" if view.result is None else view.result.output or "",
    )
    if start is None:
        return node
    origin, heard = start.resumed_from, [(start.prompt, len(start.parts))] if start.prompt or start.parts else []
    if origin is not None:
        node = replace(node, parent=(origin.turn or START) if origin.session == view.session else START)
    return replace(node, heard=heard, is_shown=bool(node.words))


def _of_session(entry: Entry, session: str) -> Entry:
    """The entry; what another session has said, as in a copy of a chat, comes from nowhere."""
    is_own = entry.origin is not None and entry.origin.session == session
    return entry if is_own else replace(entry, origin=None)
