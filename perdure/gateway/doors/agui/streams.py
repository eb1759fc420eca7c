"""Streams of runs: what a reader gets of the log, as bytes."""

import json
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from urllib.parse import quote

from starlette.responses import Response

from perdure.gateway.access import Gateway
from perdure.gateway.callers import Caller
from perdure.gateway.doors.agui.events import RunFold, run_started
from perdure.gateway.doors.agui.held import Held
from perdure.gateway.doors.agui.history import HistoryFold, Transcript
from perdure.gateway.doors.agui.places import Seen, name_events
from perdure.gateway.doors.responses.events import TurnFold, WireEvent
from perdure.gateway.doors.responses.following import follow
from perdure.gateway.doors.responses.objects import Item, Shape
from perdure.gateway.doors.responses.places import Place, ResponseId
from perdure.gateway.problems import ProblemError
from perdure.gateway.sse import PING, Chunks, EventStream

PREFIX = "/agui"


@dataclass(frozen=True)
class Following:
    """A run that is followed.

    Attributes:
        place: Where the run is in the log; None for one of a thread that has nothing to tell.
        run: The id of the run, as the client has it.
        is_old: Whether the reader speaks a version before 1.0.
        before: What the reader is to have before the run; None if it has the conversation.
        held: What it has of the run.
    """

    place: ResponseId | None
    agent: str
    thread: str
    run: str
    is_old: bool = False
    before: Transcript | None = None
    held: Held = field(default_factory=Held)

    @property
    def first(self) -> list[Item]:
        """The events that do not wait for a worker."""
        begun = run_started(self.thread, self.run, self.place)
        return [begun] if self.before is None else [begun, *self.before.events]

    @property
    def address(self) -> str:
        """The path at which the run is read again."""
        name = self.run if self.place is None else f"{self.place.turn}.{self.place.segment}"
        return f"{PREFIX}/{quote(self.agent, safe='')}/threads/{quote(self.thread)}/runs/{quote(name, safe='')}"

    def make(self, session: str, turn: int, shape: Shape, at: Place) -> TurnFold:
        """The fold of the run."""
        if self.before is None:
            return RunFold(session, turn, shape, at, run=self.run, is_old=self.is_old)
        known = self.before.calls
        return HistoryFold(session, turn, shape, at, run=self.run, is_old=self.is_old, known=known)


async def stream_run(gateway: Gateway, caller: Caller, following: Following, seen: Seen | None = None) -> Response:
    """The stream of a run, whose address is in the header ``Content-Location``.

    Raises:
        ProblemError: The tenant has too many streams, or there is no such run.
    """
    if following.place is None:
        return _answer_at_once(following)
    place = following.place
    async with AsyncExitStack() as stack:
        stack.enter_context(gateway.limits.stream(caller.tenant))
        ends = gateway.ends(stack.enter_context(gateway.hold(caller)))
        feed = await stack.enter_async_context(gateway.hub.deltas.follow(place.session))
        at = None if seen is None else seen.place
        chunks = _encode(following, follow(gateway, place, at, feed, following.make), seen)
        stream = EventStream(chunks, place="", ends=ends, closing=stack.pop_all(), farewell=_say_why)
        stream.headers["Content-Location"] = following.address
        return stream


def _answer_at_once(following: Following) -> Response:
    """The stream of a run of which nothing more comes."""
    ended: Item = {"type": "RUN_FINISHED", "threadId": following.thread, "runId": following.run}
    outcome: Item = {"type": "success"} if following.before is None else following.before.outcome
    told: list[Item] = [*following.first, {**ended, "outcome": outcome}]
    return Response(b"".join(_encode_event(event, "0") for event in told), media_type="text/event-stream")


async def _encode(following: Following, events: AsyncGenerator[list[WireEvent], None], seen: Seen | None) -> Chunks:
    """The events as bytes; the first do not wait for a worker."""
    if seen is None:
        yield b"".join(_encode_event(event, "0") for event in following.first), ""
    async with aclosing(events):
        async for found in events:
            named = ((name, following.held.rest_of(_finish(event.body))) for name, event in name_events(found, seen))
            yield b"".join(_encode_event(rest, name) for name, rest in named if rest is not None) or PING, ""


def _say_why(problem: ProblemError, _: str) -> bytes:
    """The end of a stream whose run goes on; it has no id, so that a reader comes again behind the last event."""
    body = {"type": "RUN_ERROR", "message": problem.detail, "code": str(problem.code)}
    return b"data: %s\n\n" % json.dumps(body).encode()


def _finish(body: Item) -> Item:
    """An event without what only the fold needs; of a turn that no worker has opened, its end."""
    if body["type"] == "response.failed":
        response = body["response"]
        told = response if isinstance(response, dict) else {}
        error, metadata = told.get("error"), told.get("metadata")
        message = error.get("message") if isinstance(error, dict) else None
        code = metadata.get("reason_code") if isinstance(metadata, dict) else None
        at = told.get("created_at")
        stamp: Item = {"timestamp": at * 1000} if isinstance(at, int) else {}
        said = message or "the turn was refused"
        return {"type": "RUN_ERROR", "message": said, "code": code or "runtime.internal", **stamp}
    return {name: value for name, value in body.items() if name != "sequence_number"}


def _encode_event(body: Item, name: str) -> bytes:
    """The event as the stream has it, with its id."""
    return b"id: %s\ndata: %s\n\n" % (name.encode(), json.dumps(body).encode())
