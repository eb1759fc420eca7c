"""Carrying out what a run asks for, by the client's verbs."""

import hashlib
import itertools
import json
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from http import HTTPStatus
from typing import cast

from starlette.requests import Request

from perdure.client import ReplyOptions, RequestRefusedError, SessionBusyError, TurnOptions, UnknownSessionError
from perdure.client.asks import Ask, Send, Start
from perdure.client.requests import Content, SendOptions
from perdure.client.sessions import describe_missing_session
from perdure.client.views import SessionView
from perdure.contracts.errors import ReasonCode
from perdure.contracts.events import GenerationStart, UserInputReceived
from perdure.contracts.input_requests import Need
from perdure.contracts.turns import RunState
from perdure.gateway.access import Gateway, act_for, missing_as, own_session
from perdure.gateway.callers import Caller
from perdure.gateway.doors.agui.conversations import new_words, results_for
from perdure.gateway.doors.agui.requests import Asked, RunBody, nothing_new
from perdure.gateway.doors.responses.events import TurnFold
from perdure.gateway.doors.responses.following import find_turn, read_turn
from perdure.gateway.doors.responses.places import ResponseId
from perdure.gateway.doors.responses.replies import Speaker, requests_of, segment_asking, stops_at
from perdure.gateway.doors.responses.requests import Object, Said
from perdure.gateway.doors.responses.words import Words
from perdure.gateway.following import own_view, reader_at, wait_until
from perdure.gateway.problems import ProblemCode, ProblemError
from perdure.gateway.starts import Starting, start_once

WORDS = Words(
    field="resume",
    thing="run",
    needs={
        "approval": 'an entry of resume with the payload {"approved": true} or {"approved": false}',
        "answer": 'an entry of resume with the payload {"answer": …}',
        "result": "a message of a tool, with its toolCallId",
    },
)

_PLACE = re.compile(r"([1-9]\d{0,6})\.([1-9]\d{0,6})")

STOP_SECONDS = 10
"""Longest time that a message waits for the end of a turn that stops for results."""

BACK = 2
"""Turns that replies are looked for in, from the last one: one that stopped for them, and the one they began."""


def unknown_run(thread: str, run: str) -> ProblemError:
    """The refusal of a run: in the same words whether nobody has it or another tenant."""
    return ProblemError(404, ProblemCode.UNKNOWN_TURN, f"there is no run {run[:200]!r} of thread {thread[:200]!r}")


async def own_run(gateway: Gateway, caller: Caller, agent: str, thread: str, run: str) -> ResponseId:
    """The run of that name, which is the caller's tenant's: the id that began it, or ``TURN.SEGMENT``.

    Raises:
        ProblemError: It is not, or nobody has it.
        SessionErasedError: It was the caller's, and was erased.
    """
    with missing_as(unknown_run(thread, run)):
        await own_session(thread, await act_for(gateway, caller, thread), gateway)
    found = _PLACE.fullmatch(run)
    place = ResponseId(thread, int(found[1]), int(found[2])) if found else await _find_run(gateway, thread, run)
    if place is None:
        raise unknown_run(thread, run)
    with missing_as(unknown_run(thread, run)):
        view = await gateway.client.turn_view(thread, place.turn)
    if view.agent not in {None, agent}:
        raise unknown_run(thread, run)
    if view.agent is None and place.turn > BACK:  # any number may be of a turn to come; here, that of the next one
        last = last_turn(await gateway.client.session_view(thread))
        if place.turn > last + 1:
            raise unknown_run(thread, run)
    if place.segment > 1:
        fold = await read_turn(gateway, place, view)
        if place.segment > len(fold.segments) + (not fold.has_ended):
            raise unknown_run(thread, run)
    return place


async def _find_run(gateway: Gateway, thread: str, run: str) -> ResponseId | None:
    """The run that began a turn, if a worker has opened that."""
    turn = await gateway.client.views.turn_of_request(thread, run)
    return None if turn is None else ResponseId(thread, turn)


class RunCarrier(Speaker):
    """Carries out one run of an agent."""

    def __init__(self, gateway: Gateway, caller: Caller, request: Request, agent: str) -> None:
        super().__init__(gateway, caller, WORDS)
        self._request = request
        self._agent = agent

    async def carry_out(self, asked: Asked, body: RunBody) -> ResponseId:
        """Do what is asked for, once; the segment that comes of it.

        Raises:
            ProblemError: It names what there is not, or conflicts with what has happened.
            ClientError: As the client raises it.
        """
        name = self._request.state.session = body.thread
        view = await own_view(self._gateway, self._caller, name)
        if view is None:
            if asked.resumed:
                raise UnknownSessionError(describe_missing_session(name))
            return await self._start(self._start_of(asked, name, asked.begin(), asked.history), body)
        if not asked.resumed and (known := await _find_run(self._gateway, name, body.run)) is not None:
            return known
        thread = await self._look(name, view)
        given, over = thread.replies_in(asked)
        words: Sequence[Object] = new_words(asked.lines, name, thread.folds)
        if given:
            if over:
                await self._confirm(thread, over)
            return await self._give(thread, given, asked, words)
        place = await self._confirm(thread, over) if over else None
        if not words and place is None and asked.resumed:
            place = thread.behind({one.call_id for one in asked.resumed})
        if not words and place is None:
            if not asked.message:
                return await self._give_again(thread, asked)
            words = asked.message  # somebody asks for an answer to what was said before
        return place if place is not None and not words else await self._say(thread, asked, words, body)

    async def _look(self, name: str, view: SessionView) -> "_Thread":
        folds: list[TurnFold] = []
        for turn in range(last_turn(view), max(0, last_turn(view) - BACK), -1):
            place = ResponseId(name, turn)
            folds.append(await read_turn(self._gateway, place, await find_turn(self._gateway, place)))
        return _Thread(name, view, folds)

    async def _give(
        self, thread: "_Thread", given: Sequence[Said], asked: Asked, words: Sequence[Object]
    ) -> ResponseId:
        """Give the replies to what waits, all together, and a new message with them."""
        place, fold = self._asking(thread, given)
        left = [one for one in self.check(place, fold, given) if one in thread.waiting]
        if left and (words or not stops_at(fold, place.segment)):
            raise _lacking(thread, left)
        options: dict[str, object] = {"prompt": asked.say(words), "by": self._caller.name, "stop_for_results": True}
        if asked.tools:
            options["tools"] = asked.tools
        return await self.give(place, fold, given, cast("ReplyOptions", options))

    async def _confirm(self, thread: "_Thread", over: Sequence[Said]) -> ResponseId:
        """See that decisions stand that are given again; the segment behind them.

        Raises:
            ProblemError: Others stand.
        """
        place, fold = self._asking(thread, over)
        try:
            self.check(place, fold, over)
            return await self.give(place, fold, over)
        except ProblemError as error:
            if error.status != HTTPStatus.CONFLICT:
                raise
            msg = f'{error.detail}; an entry of the status "cancelled" takes it as it is'
            raise ProblemError(HTTPStatus.CONFLICT, ProblemCode.CONFLICT, msg) from None

    async def _give_again(self, thread: "_Thread", asked: Asked) -> ResponseId:
        """The segment behind results that the thread has already."""
        behind = itertools.takewhile(lambda line: line.role == "tool", reversed(asked.lines))
        again = [line.said for line in behind if line.said is not None]
        if thread.waiting and all(one.call_id in thread.waiting for one in again):
            raise _lacking(thread, thread.waiting)
        if not again:
            raise nothing_new()
        place, fold = self._asking(thread, again)
        mine = requests_of(fold, place.segment)
        return await self.say(
            place, fold, [one for one in again if one.call_id in mine or not fold.knows_call(one.call_id)]
        )

    def _asking(self, thread: "_Thread", said: Sequence[Said]) -> tuple[ResponseId, TurnFold]:
        """The segment that asked for these replies.

        Raises:
            RequestRefusedError: None did.
            ProblemError: It is of another agent.
        """
        found = thread.asking({one.call_id for one in said})
        if found is None:
            names = ", ".join(repr(one.call_id) for one in said)
            raise RequestRefusedError(f"resume: the thread has asked for no {names}; reply to what its last run names")
        place, fold = found
        if fold.shape.model not in {"", self._agent}:
            msg = f"thread {thread.name!r} is of the agent {fold.shape.model!r}; post to its path"
            raise ProblemError(422, ReasonCode.REQUEST_UNKNOWN_AGENT, msg)
        return place, fold

    async def _say(self, thread: "_Thread", asked: Asked, words: Sequence[Object], body: RunBody) -> ResponseId:
        """Start a turn with a message; one that has stopped for results goes on without them."""
        view, waiting = thread.view, thread.waiting
        is_idle = view.opened is None or view.state is RunState.ENDED
        if not is_idle and thread.folds[0].stops and set(waiting.values()) == {"result"}:
            turn = await self._gateway.client.attach(thread.name, thread.folds[0].turn)
            await wait_until(turn.result(), (self._gateway.stopping.wait(),), STOP_SECONDS)  # it is about to end
            is_idle = True
        if waiting and (not is_idle or any(need != "result" for need in waiting.values())):
            raise _lacking(thread, waiting)
        if is_idle:
            return await self._start(
                self._start_of(asked, thread.name, asked.say(words)), await self._fresh(body, words)
            )
        if not asked.steers:
            msg = f"thread {thread.name!r} has a run that goes on; wait for its end, or set forwardedProps.steer"
            raise SessionBusyError(msg)
        return await self._steer(thread, asked.say(words), body)

    async def _fresh(self, body: RunBody, words: Sequence[Object]) -> RunBody:
        """The request, under an id of its own if its run has begun a turn: a client resumes under the id that asked."""
        if await _find_run(self._gateway, body.thread, body.run) is None:
            return body
        told = hashlib.sha256(json.dumps(words).encode()).hexdigest()[:16]
        return body.model_copy(update={"run": f"{body.run[:150]}-{told}"})

    def _start_of(self, asked: Asked, thread: str, prompt: Content, history: Sequence[Object] = ()) -> Start:
        options: dict[str, object] = {"by": self._caller.name, "tools": asked.tools, "stop_for_results": True}
        if history:
            options["history"] = history
        return Start(agent=self._agent, prompt=prompt, session=thread, options=cast("TurnOptions", options))

    async def _start(self, ask: Ask, body: RunBody) -> ResponseId:
        starting = Starting(action="start", ask=ask, body=body, key=None, request_id=body.run, is_named=True)
        ticket = await start_once(self._gateway, self._caller, self._request, starting)
        return ResponseId(ticket.session, ticket.turn or 1)

    async def _steer(self, thread: "_Thread", prompt: Content, body: RunBody) -> ResponseId:
        """Have the running turn read the message; the segment of it that goes on."""
        sent = SendOptions(by=self._caller.name, stop_for_results=True)
        ask = Send(session=thread.name, prompt=prompt, when_busy="steer", options=sent)
        starting = Starting(action=f"send {thread.name}", ask=ask, body=body, key=None, request_id=body.run)
        ticket = await start_once(self._gateway, self._caller, self._request, starting)
        place = ResponseId(thread.name, ticket.turn or last_turn(thread.view))
        if place.turn > last_turn(thread.view):  # the turn has ended meanwhile
            return place
        fold = await read_turn(self._gateway, place, await find_turn(self._gateway, place))
        return replace(place, segment=max(1, len(fold.segments)))


@dataclass(frozen=True)
class _Thread:
    """State of a thread: its session, and its last turns, the latest first."""

    name: str
    view: SessionView
    folds: Sequence[TurnFold]

    @property
    def waiting(self) -> dict[str, Need]:
        """Needs of what can still be replied to, by the ids of the calls; no result comes too late."""
        now, requests = datetime.now(UTC), self.view.requests
        late = {one.request_id for one in requests if one.expires_at is not None and one.expires_at <= now}
        return {one.request_id: one.needs for one in requests if one.needs == "result" or one.request_id not in late}

    def replies_in(self, asked: Asked) -> tuple[list[Said], list[Said]]:
        """The replies of a request to what waits, and its decisions of what is over, without those that only decline.

        A message of a tool is the result of a call whose result waits, wherever it stands, and of no other call: of one
        that an entry decides, or that waits for a person, CopilotKit sends one too.
        """
        waiting, entries = self.waiting, {one.call_id for one in asked.resumed}
        calls = {call for call, need in waiting.items() if need == "result" and call not in entries}
        results = [line.said for line in results_for(asked.lines, calls) if line.said is not None]
        over = [one for one in asked.resumed if one.call_id not in waiting and not one.declines]
        return [*(one for one in asked.resumed if one.call_id in waiting), *results], over

    def asking(self, names: Collection[str]) -> tuple[ResponseId, TurnFold] | None:
        """The last segment that asked for any of these."""
        for fold in self.folds:
            if (segment := segment_asking(fold, names)) is not None:
                return ResponseId(self.name, fold.turn, segment), fold
        return None

    def behind(self, names: Collection[str]) -> ResponseId:
        """The segment behind the one that asked for these.

        Raises:
            RequestRefusedError: None did.
        """
        found = self.asking(names)
        if found is None:
            told = ", ".join(map(repr, names))
            raise RequestRefusedError(f"resume: the thread has asked for no {told}; reply to what its last run names")
        place, fold = found
        if fold.has_stopped:
            is_last = fold.turn == last_turn(self.view)
            return place if is_last else ResponseId(self.name, fold.turn + 1)
        last = len(fold.segments) + (not fold.has_ended)
        return replace(place, segment=min(place.segment + 1, last))


def _lacking(thread: _Thread, names: Iterable[str]) -> RequestRefusedError:
    """The refusal of a request that leaves out what the run waits for, with the ways out."""
    told, ways = ", ".join(names), {WORDS.needs[thread.waiting[name]]: None for name in names}
    return RequestRefusedError(
        f"resume: no output found for {told}; the run waits for it. Send {', or '.join(ways)}; or decline it, by an "
        'entry of resume with the status "cancelled"'
    )


async def went_on_as(gateway: Gateway, thread: str, turn: int, last: int) -> bool:
    """Whether replies have begun each turn behind one, up to the last."""
    for number in range(turn + 1, last + 1):
        if not await _began_with_replies(gateway, thread, number):
            return False
    return True


async def _began_with_replies(gateway: Gateway, thread: str, turn: int) -> bool:
    reader = await reader_at(gateway, thread, turn)
    while page := await reader.read():
        for envelope in page:
            if envelope.turn == turn and isinstance(envelope.event, UserInputReceived):
                return True
            if envelope.turn > turn or (envelope.turn == turn and isinstance(envelope.event, GenerationStart)):
                return False
    return False


def last_turn(view: SessionView) -> int:
    """Number of the open or last turn; of a thread that no worker has opened, the first."""
    return 1 if view.opened is None else view.opened[1].turn
