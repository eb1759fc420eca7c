"""Carrying out what a run asks for, by the client's verbs."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from starlette.requests import Request

from perdure.client import RequestRefusedError, SessionBusyError, TurnOptions, UnknownSessionError
from perdure.client.asks import Ask, Send, Start
from perdure.client.requests import SendOptions
from perdure.client.sessions import describe_missing_session
from perdure.client.views import SessionView
from perdure.contracts.errors import ReasonCode
from perdure.contracts.turns import RunState
from perdure.gateway.access import Gateway, act_for, missing_as, own_session
from perdure.gateway.callers import Caller
from perdure.gateway.doors.agui.requests import Asked, RunBody
from perdure.gateway.doors.responses.events import TurnFold
from perdure.gateway.doors.responses.following import find_turn, read_turn
from perdure.gateway.doors.responses.places import ResponseId
from perdure.gateway.doors.responses.replies import Speaker, Words, requests_of, segment_asking
from perdure.gateway.doors.responses.requests import Said
from perdure.gateway.following import own_view
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
        last = _last_turn(await gateway.client.session_view(thread))
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
        super().__init__(gateway, caller)
        self._request = request
        self._agent = agent

    async def carry_out(self, asked: Asked, body: RunBody) -> ResponseId:
        """Do what is asked for, once; the segment that comes of it.

        Raises:
            ProblemError: It names what there is not, or conflicts with what has happened.
            ClientError: As the client raises it.
        """
        thread = self._request.state.session = body.thread
        view = await own_view(self._gateway, self._caller, thread)
        if view is None:
            if asked.resumed:
                raise UnknownSessionError(describe_missing_session(thread))
            return await self._start(self._start_of(asked, thread, is_new=True), body)
        if (known := await _find_run(self._gateway, thread, body.run)) is not None:
            return known
        if asked.resumed or not asked.message:
            return await self._reply(asked, thread, view)
        if view.requests:
            names = ", ".join(request.request_id for request in view.requests)
            raise RequestRefusedError(f"resume: no output found for {names}; the run waits for it")
        if view.opened is None or view.state is RunState.ENDED:
            return await self._start(self._start_of(asked, thread, is_new=False), body)
        if not asked.steers:
            msg = f"thread {thread!r} has a run that goes on; wait for its end, or set forwardedProps.steer"
            raise SessionBusyError(msg)
        return await self._steer(asked, thread, view, body)

    def _start_of(self, asked: Asked, thread: str, *, is_new: bool) -> Start:
        history = asked.history if is_new and asked.history else None
        options: dict[str, object] = {"by": self._caller.name, "history": history, "tools": asked.tools}
        prompt = asked.prompt(is_new=is_new)
        return Start(agent=self._agent, prompt=prompt, session=thread, options=cast("TurnOptions", options))

    async def _start(self, ask: Ask, body: RunBody) -> ResponseId:
        starting = Starting(action="start", ask=ask, body=body, key=None, request_id=body.run, is_named=True)
        ticket = await start_once(self._gateway, self._caller, self._request, starting)
        return ResponseId(ticket.session, ticket.turn or 1)

    async def _steer(self, asked: Asked, thread: str, view: SessionView, body: RunBody) -> ResponseId:
        """Have the running turn read the message; the segment of it that goes on."""
        sent = SendOptions(by=self._caller.name)
        ask = Send(session=thread, prompt=asked.prompt(is_new=False), when_busy="steer", options=sent)
        starting = Starting(action=f"send {thread}", ask=ask, body=body, key=None, request_id=body.run)
        await start_once(self._gateway, self._caller, self._request, starting)
        place = ResponseId(thread, _last_turn(view))
        fold = await read_turn(self._gateway, place, await find_turn(self._gateway, place))
        return replace(place, segment=max(1, len(fold.segments)))

    async def _reply(self, asked: Asked, thread: str, view: SessionView) -> ResponseId:
        """Say to the segment that asked, of one of the last turns, what it waits for."""
        if not asked.resumed and not asked.results:
            asked.prompt(is_new=False)  # says what is missing
        last, heard = _last_turn(view), list[str]()
        given = [*asked.resumed, *asked.results]
        for turn in range(last, max(0, last - BACK), -1):
            place = ResponseId(thread, turn)
            found = await find_turn(self._gateway, place)
            if found.agent not in {None, self._agent}:
                msg = f"thread {thread!r} is of the agent {found.agent!r}; post to its path"
                raise ProblemError(422, ReasonCode.REQUEST_UNKNOWN_AGENT, msg)
            fold = await read_turn(self._gateway, place, found)
            segment = segment_asking(fold, {one.call_id for one in given})
            heard += [text for text, _ in fold.heard]
            if segment is not None:
                _check_words(asked, heard)
                mine = requests_of(fold, segment)
                said = [one for one in given if one.call_id in mine or not _is_history(fold, one, asked)]
                return await self.say(ResponseId(thread, turn, segment), fold, said, WORDS)
        names = ", ".join(repr(one.call_id) for one in given)
        raise RequestRefusedError(f"resume: the thread has asked for no {names}; reply to what its last run names")


def _last_turn(view: SessionView) -> int:
    return 1 if view.opened is None else view.opened[1].turn


def _check_words(asked: Asked, heard: Sequence[str]) -> None:
    """Check that the last message of the user is none beside the replies, but one that the thread has read.

    Raises:
        RequestRefusedError: It is new.
    """
    if asked.words and not any(text.endswith(asked.words) for text in heard):
        msg = "messages: a new message of the user stands beside resume; send it when the run of the reply has ended"
        raise RequestRefusedError(msg)


def _is_history(fold: TurnFold, one: Said, asked: Asked) -> bool:
    """Whether a client sends a result again that the turn has."""
    return one in asked.results and fold.knows_call(one.call_id)
