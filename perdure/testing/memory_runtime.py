"""A runtime without a server: activities are called, waits are virtual, delegates are sessions beside their caller's.

What a turn does stands in :mod:`perdure.workflows.world`, as on Temporal.
"""

import asyncio
import contextlib
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NoReturn, TypeVar, Unpack

from temporalio.common import RawValue, SearchAttributeUpdate, TypedSearchAttributes
from temporalio.exceptions import ApplicationError

from perdure.client.connect import DATA_CONVERTER
from perdure.client.errors import RequestRefusedError
from perdure.contracts.budgets import ExtendRequest, Limits
from perdure.contracts.errors import ErrorDetail, ReasonCode
from perdure.contracts.events import Event
from perdure.contracts.input_requests import InputRequest, Reply
from perdure.contracts.names import Activity
from perdure.contracts.sends import SendRequest, WhenBusy
from perdure.contracts.tools import CallTool
from perdure.contracts.turns import CancelRequest, Continuation, RunState, TurnResult, TurnStatus
from perdure.contracts.waits import PauseRequest
from perdure.engine import input_requests
from perdure.engine.delegates import StartDelegate
from perdure.store.records import Written
from perdure.testing.calls import Call
from perdure.testing.clock import Clock, NothingComesError
from perdure.worker.app import Activities
from perdure.workflows.options import ActivityOptions
from perdure.workflows.runtime import Argument, History, Runtime, Started
from perdure.workflows.world import TurnWorld

Ask = Callable[[InputRequest], tuple[Reply, float] | None]
"""A person: the reply to a request, and after how many seconds it comes; None sends no reply."""

T = TypeVar("T")


@dataclass(kw_only=True)
class Around:
    """Parts that the sessions of one run in memory share."""

    activities: Activities
    clock: Clock
    ask: Ask
    on_event: Callable[[Event, "RunningTurn"], None]
    sessions: dict[str, "MemorySession"] = field(default_factory=dict[str, "MemorySession"])

    def call(self, activity: str, argument: object, *, name: str, session: str, bounds: ActivityOptions) -> Call:
        """Call an activity; ``name`` is that of its task."""
        return Call(self.clock, self.body(activity), argument, name=name, session=session, options=bounds)

    def body(self, activity: str) -> Callable[..., Awaitable[Any]]:
        """The function of an activity."""
        function: Callable[..., Awaitable[Any]] = _BODILESS.get(activity) or getattr(self.activities, activity)
        return function

    def note_run(self, session: str) -> None:
        """Note that a run of the session has begun."""

    def note_reply(self, reply: Reply) -> None:
        """Note that a turn has taken a reply."""

    def make_runtime(self, session: str) -> "MemoryRuntime":
        """Make the runtime of a run of the session."""
        return MemoryRuntime(self, session)

    def history(self, session: str) -> History:
        """The history of a session's run: none that could grow."""
        del session
        return History()


class RunningTurn:
    """A turn that runs in memory, for what is to happen meanwhile."""

    def __init__(self, session: "MemorySession") -> None:
        self._session = session

    @property
    def session(self) -> str:
        """The session's id; that of a delegate is its own."""
        return self._session.id

    def cancel(self, reason: str = "") -> None:
        """Cancel the turn."""
        self._session.deliver(lambda world: world.cancel(CancelRequest(reason=reason)))

    def send(self, prompt: str, *, when_busy: WhenBusy = "queue") -> None:
        """Send a message: for the session's next turn, or with ``steer`` into this one, as a client would.

        Raises:
            RequestRefusedError: The turn does not take the message.
        """
        message = SendRequest(prompt=prompt, when_busy=when_busy)
        self._session.deliver(lambda world: world.send(message, uuid.uuid4().hex))

    def pause(self, reason: str = "", *, seconds: float) -> None:
        """Pause the session, and take that back after so many seconds of virtual time."""
        self._session.deliver(lambda world: world.pause(PauseRequest(reason=reason)))
        self._session.deliver_later(seconds, lambda world: world.unpause())

    def extend(self, *, end: bool = False, **limits: Unpack[Limits]) -> None:
        """Set limits; the others stay.

        Raises:
            RequestRefusedError: A limit cannot be set.
        """
        asked = ExtendRequest.model_validate({**limits, "end": end})
        self._session.deliver(lambda world: world.extend(asked))


_around: ContextVar[Around | None] = ContextVar("perdure_memory", default=None)


def tell(written: Sequence[Written]) -> None:
    """Tell whoever listens to the run that writes events of them, with the turns that they are of."""
    around = _around.get()
    if around is None:
        return
    for line in written:
        if (session := around.sessions.get(line.session)) is not None:
            around.on_event(line.event, RunningTurn(session))


class ContinueAsNew(BaseException):
    """A run has ended, and this request begins the next."""

    def __init__(self, request: Continuation) -> None:
        super().__init__()
        self.request = request


class MemorySession:
    """The runs of one session, one after the other."""

    def __init__(self, around: Around, session: str) -> None:
        self.id = session
        self._around = around
        self._clock = around.clock
        self._asked: set[str] = set()
        self._world = self._begin()
        around.sessions[session] = self

    def _begin(self) -> TurnWorld:
        self._around.note_run(self.id)
        self._runtime = self._around.make_runtime(self.id)
        return TurnWorld(self._runtime)

    async def run(self, request: Continuation) -> list[TurnResult]:
        """Carry out a request, and the messages that were sent meanwhile for later turns; the results of all turns."""
        _around.set(self._around)
        people = self._clock.start(self._reply_to_requests())
        results: list[TurnResult] = []
        try:
            while True:
                try:
                    return [*results, await self._runtime.run(self._world, request)]
                except ContinueAsNew as following:
                    request = following.request
                    if self._world.result is not None:
                        results.append(self._world.result)
                    self._world = self._begin()
        finally:
            people.cancel()

    @property
    def requests(self) -> tuple[InputRequest, ...]:
        """Input requests that the turn waits for."""
        state = self._world.state
        return () if state is None else input_requests.input_requests(state)

    @property
    def status(self) -> TurnStatus:
        """Answer of the query ``status``."""
        return self._world.status()

    @property
    def is_cancelled(self) -> bool:
        """Whether the turn that runs was cancelled."""
        return self._world.mail.cancel is not None

    @property
    def is_paused(self) -> bool:
        """Whether the session is paused."""
        return self._world.mail.paused is not None

    @property
    def is_held(self) -> bool:
        """Whether the time budget stands still: the session is paused, or waits for people."""
        return self.is_paused or self._world.run_state is RunState.WAITING_FOR_INPUT

    def deliver(
        self,
        message: Callable[[TurnWorld], Coroutine[Any, Any, object]],
        taken: Callable[[], None] = lambda: None,
    ) -> None:
        """Bring a message to the turn that runs: at once, or as soon as that is open; ``taken`` is called then.

        Raises:
            RequestRefusedError: The turn refuses the message.
        """
        handling = self._runtime.receive(self._world, message)
        if self._world.opened is None:
            self._runtime.handle(handling, taken)
            return
        try:
            handling.send(None)
        except StopIteration:
            taken()
            self._clock.look()
        except ApplicationError as error:
            raise RequestRefusedError(error.message) from None

    def deliver_later(
        self,
        seconds: float,
        message: Callable[[TurnWorld], Coroutine[Any, Any, object]],
        taken: Callable[[], None] = lambda: None,
    ) -> None:
        """Bring a message after so many seconds to the turn that runs then, which may refuse it."""

        async def wait() -> None:
            await self._clock.sleep(seconds)
            with contextlib.suppress(RequestRefusedError):
                self.deliver(message, taken)

        self._clock.start(wait())

    async def _reply_to_requests(self) -> None:
        """Be the people who are asked."""
        with contextlib.suppress(NothingComesError):
            while True:
                await self._clock.wait(lambda: bool(self._unasked))
                for request in self._unasked:
                    self._asked.add(request.request_id)
                    if (said := self._around.ask(request)) is not None:
                        self._reply_later(*said)

    @property
    def _unasked(self) -> list[InputRequest]:
        if self._world.run_state is not RunState.WAITING_FOR_INPUT:
            return []
        return [request for request in self.requests if request.request_id not in self._asked]

    def _reply_later(self, reply: Reply, seconds: float) -> None:
        self.deliver_later(seconds, lambda world: world.reply(reply), lambda: self._around.note_reply(reply))


class MemoryRuntime(Runtime):
    """One run of a session in this process."""

    def __init__(self, around: Around, session: str) -> None:
        self.note_cancel: Callable[[], None] = lambda: None
        self.around = around
        self._clock = around.clock
        self._session = session
        self._run_id = uuid.uuid4().hex
        self._started_at = around.clock.now
        self._handling = 0

    async def run(self, world: TurnWorld, request: Continuation) -> TurnResult:
        """Run a turn."""
        return await world.run(request)

    async def receive(self, world: TurnWorld, message: Callable[[TurnWorld], Coroutine[Any, Any, object]]) -> object:
        """Have a turn handle a message."""
        return await message(world)

    def handle(self, message: Coroutine[Any, Any, object], taken: Callable[[], None]) -> None:
        """Take a message once the turn has its number; it may then be refused."""

        async def take() -> None:
            try:
                with contextlib.suppress(ApplicationError):
                    await message
                    taken()
            finally:
                self._handling -= 1

        self._handling += 1
        self._clock.start(take())

    @property
    def session(self) -> str:
        """The session's id."""
        return self._session

    @property
    def run_id(self) -> str:
        """An id of this run's own."""
        return self._run_id

    @property
    def started_at(self) -> datetime:
        """When this run began."""
        return self._started_at

    @property
    def now(self) -> datetime:
        """Virtual time."""
        return self._clock.now

    @property
    def history(self) -> History:
        """The history of this run."""
        return self.around.history(self._session)

    @property
    def version(self) -> str:
        """There are no versions."""
        return ""

    def has_another_target(self, moved_from: str) -> bool:
        """There are no versions."""
        del moved_from
        return False

    @property
    def handlers_finished(self) -> bool:
        """Whether every message that came before the turn had its number has been taken."""
        return not self._handling

    @property
    def search_attributes(self) -> TypedSearchAttributes:
        """There are none."""
        return TypedSearchAttributes.empty

    def patched(self, patch: str) -> bool:
        """Every run begins with all changes."""
        del patch
        return True

    def start(
        self,
        activity: Callable[[Argument], Awaitable[Any]] | Callable[[], Awaitable[Any]],
        argument: Argument | None,
        bounds: ActivityOptions,
        summary: str | None = None,
        queue: str | None = None,
    ) -> Call:
        """Call the activity that the stub stands for."""
        del summary, queue
        name = activity.__name__
        return self.around.call(name, argument, name=name, session=self._session, bounds=bounds)

    def start_tool(self, tool: str, call: CallTool, bounds: ActivityOptions, summary: str, queue: str | None) -> Call:
        """Call a tool."""
        del summary, queue
        given = [RawValue(DATA_CONVERTER.payload_converter.to_payload(call))]
        return self.around.call("call_tool", given, name=tool, session=self._session, bounds=bounds)

    def start_delegate(self, start: StartDelegate) -> "MemoryDelegate":
        """Begin the delegate's session."""
        return MemoryDelegate(self.around, start)

    def start_task(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Start a task."""
        return self._clock.start(work)

    async def wait(self, condition: Callable[[], bool], at_most: timedelta | None = None) -> None:
        """Wait in virtual time."""
        await self._clock.wait(condition, None if at_most is None else self.now + at_most)

    async def sleep(self, time: timedelta) -> None:
        """Let virtual time pass."""
        await self._clock.sleep(time.total_seconds())

    async def finish(self, *started: Started) -> list[Any]:
        """Wait for calls and delegates."""
        await self._clock.wait(lambda: all(one.done() for one in started))
        return [one.outcome for one in started if isinstance(one, Call | MemoryDelegate)]

    def continue_as_new(self, request: Continuation, *, on_newest: bool) -> NoReturn:
        """End this run, and begin the next."""
        del on_newest
        raise ContinueAsNew(request)

    def show(self, details: str) -> None:
        """Nobody looks."""

    def upsert(self, updates: Sequence[SearchAttributeUpdate[Any]]) -> None:
        """Nobody searches."""


class MemoryDelegate:
    """A delegate's session beside its caller's."""

    def __init__(self, around: Around, start: StartDelegate) -> None:
        self.begun = True
        self._session = MemorySession(around, start.session)
        self._task = around.clock.start(self._session.run(start.request))

    def done(self) -> bool:
        """Whether it has ended."""
        return self._task.done()

    @property
    def outcome(self) -> TurnResult | ErrorDetail:
        """The result of its turn."""
        error = self._task.exception()
        if error is None:
            return self._task.result()[0]
        message = f"failed: {error}"[:1_000]
        return ErrorDetail(code=ReasonCode.TOOL_DELEGATE_FAILED, title="delegate", message=message)

    def cancel_turn(self, reason: str) -> None:
        """Cancel its turn, unless that has ended."""
        with contextlib.suppress(RequestRefusedError):
            self._session.deliver(lambda world: world.cancel(CancelRequest(reason=reason)))


async def _do_nothing(_: object) -> None:
    """Do nothing in place of a server."""


_BODILESS: dict[str, Callable[[object], Awaitable[None]]] = {Activity.CLOSE_AS_CANCELED: _do_nothing}
