"""Replay a run from what was recorded of it, as Temporal does, and compare every command.

A run and its replay are the same coroutine. All that it knows comes through its :class:`Runtime`: so a log of what it
asked of that, in order and with the answers, is enough to have it run again without anything beside it.
"""

from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import coroutine
from typing import Any, NoReturn

from temporalio.common import SearchAttributeUpdate
from temporalio.exceptions import ApplicationError

from perdure.contracts.tools import CallTool
from perdure.contracts.turns import Continuation, TurnResult
from perdure.engine.delegates import StartDelegate
from perdure.testing.memory_runtime import Around, ContinueAsNew, MemoryRuntime
from perdure.workflows.options import ActivityOptions
from perdure.workflows.runtime import Argument, History, Started
from perdure.workflows.world import TurnWorld

Message = Callable[[TurnWorld], Coroutine[Any, Any, object]]
Work = Coroutine[Any, Any, object]

_RUN = 0
"""The number of the turn's own coroutine; those of the tasks beside it follow."""


@dataclass(frozen=True)
class Entry:
    """One line of the log of a run.

    Attributes:
        what: A method of the runtime; or what came from outside: ``message``, ``begins`` and ``returned``.
        given: What the run handed over; of the others, which coroutine or which wait it is.
        value: The answer.
    """

    what: str
    given: tuple[object, ...] = ()
    value: Any = None

    def __str__(self) -> str:
        """The entry, shortened."""
        return f"{self.what}{self.given}"[:400]


class _Difference(BaseException):
    """A replay differs from its run."""


class RecordingRuntime(MemoryRuntime):
    """A runtime in memory that logs all that a run asks of it."""

    def __init__(self, around: Around, session: str) -> None:
        self.log: list[Entry] = []
        self.request: Continuation | None = None
        self._silent = False
        self._counted = _RUN
        self._waits = 0
        super().__init__(around, session)

    def note(self, what: str, *given: object, value: object = None) -> None:
        """Log one line, unless a condition is looked at: a run does not know when that happens."""
        if not self._silent:
            self.log.append(Entry(what, given, value))

    def count(self) -> int:
        """The number of one more that was started."""
        self._counted += 1
        return self._counted

    async def run(self, world: TurnWorld, request: Continuation) -> TurnResult:
        """Run a turn."""
        self.request = request
        self.note("begins", _RUN)
        result = await super().run(world, request)
        self.note("end", result)
        return result

    async def receive(self, world: TurnWorld, message: Message) -> object:
        """Have a turn handle a message."""
        self.note("message", value=message)
        return await message(world)

    @property
    def now(self) -> datetime:
        """Virtual time."""
        now = self._clock.now
        self.note("now", value=now)
        return now

    @property
    def history(self) -> History:
        """The history of this run."""
        history = super().history
        self.note("history", value=history)
        return history

    @property
    def handlers_finished(self) -> bool:
        """Whether every message has been taken."""
        finished = super().handlers_finished
        self.note("handlers_finished", value=finished)
        return finished

    def start(  # type: ignore[override]  # what it returns does the same, and is logged
        self,
        activity: Callable[[Argument], Awaitable[Any]] | Callable[[], Awaitable[Any]],
        argument: Argument | None,
        bounds: ActivityOptions,
        summary: str | None = None,
        queue: str | None = None,
    ) -> "_Recorded":
        """Call an activity."""
        self.note("start", activity.__name__, argument, bounds, summary, queue)
        return _Recorded(self, super().start(activity, argument, bounds, summary, queue))

    def start_tool(  # type: ignore[override]  # as above
        self, tool: str, call: CallTool, bounds: ActivityOptions, summary: str, queue: str | None
    ) -> "_Recorded":
        """Call a tool."""
        self.note("start_tool", tool, call, bounds, summary, queue)
        return _Recorded(self, super().start_tool(tool, call, bounds, summary, queue))

    def start_delegate(self, start: StartDelegate) -> "_Recorded":  # type: ignore[override]  # as above
        """Begin the delegate's session."""
        self.note("start_delegate", start)
        return _Recorded(self, super().start_delegate(start))

    def start_task(self, work: Coroutine[Any, Any, None]) -> "_Recorded":  # type: ignore[override]  # as above
        """Start a task."""
        self.note("start_task")
        number = self._counted + 1

        async def begin() -> None:
            self.note("begins", number)
            await work

        task = super().start_task(begin())
        task.add_done_callback(lambda _: work.close())  # it may have been cancelled before it began
        return _Recorded(self, task)

    async def wait(self, condition: Callable[[], bool], at_most: timedelta | None = None) -> None:
        """Wait in virtual time."""
        number = self._begin_wait("wait", at_most)
        until = None if at_most is None else self._clock.now + at_most
        await self._clock.wait(lambda: self._look(condition), until)
        self.note("returned", number)

    def _look(self, condition: Callable[[], bool]) -> bool:
        before, self._silent = self._silent, True
        try:
            return condition()
        finally:
            self._silent = before

    async def sleep(self, time: timedelta) -> None:
        """Let virtual time pass."""
        number = self._begin_wait("sleep", time)
        await super().sleep(time)
        self.note("returned", number)

    async def finish(self, *started: Started) -> list[Any]:
        """Wait for calls and delegates."""
        recorded = [one for one in started if isinstance(one, _Recorded)]
        number = self._begin_wait("finish", *(one.number for one in recorded))
        outcomes = await super().finish(*(one.inner for one in recorded))
        self.note("returned", number, value=outcomes)
        return outcomes

    def _begin_wait(self, what: str, *given: object) -> int:
        self.note(what, *given)
        self._waits += 1
        return self._waits

    def continue_as_new(self, request: Continuation, *, on_newest: bool) -> NoReturn:
        """End this run, and begin the next."""
        self.note("continue_as_new", request, on_newest)
        super().continue_as_new(request, on_newest=on_newest)

    def show(self, details: str) -> None:
        """Nobody looks."""
        self.note("show", details)

    def upsert(self, updates: Sequence[SearchAttributeUpdate[Any]]) -> None:
        """Nobody searches."""
        self.note("upsert", [(update.key.name, update.value) for update in updates])


class _Recorded:
    """An activity, a delegate or a task whose uses are logged."""

    def __init__(self, runtime: RecordingRuntime, inner: Any) -> None:  # noqa: ANN401 - any of them
        self.inner = inner
        self.number = runtime.count()
        self._runtime = runtime

    def done(self) -> bool:
        done: bool = self.inner.done()
        self._runtime.note("done", self.number, value=done)
        return done

    @property
    def begun(self) -> bool:
        begun: bool = self.inner.begun
        self._runtime.note("begun", self.number, value=begun)
        return begun

    @property
    def outcome(self) -> Any:  # noqa: ANN401 - as of what it stands for
        outcome = self.inner.outcome
        self._runtime.note("outcome", self.number, value=outcome)
        return outcome

    def cancel(self) -> None:
        self._runtime.note("cancel", self.number)
        self.inner.cancel()

    def cancel_turn(self, reason: str) -> None:
        self._runtime.note("cancel_turn", self.number, reason)
        self.inner.cancel_turn(reason)


class _Replayed:
    """An activity, a delegate or a task of a replay."""

    def __init__(self, replay: "_Replay", work: Work | None = None) -> None:
        self.number = replay.count()
        self._replay = replay
        if work is not None:
            replay.coroutines[self.number] = work

    def done(self) -> bool:
        done: bool = self._replay.take("done", self.number)
        return done

    @property
    def begun(self) -> bool:
        begun: bool = self._replay.take("begun", self.number)
        return begun

    @property
    def outcome(self) -> Any:  # noqa: ANN401 - as of what it stands for
        return self._replay.take("outcome", self.number)

    def cancel(self) -> None:
        self._replay.take("cancel", self.number)
        self._replay.close(self.number)

    def cancel_turn(self, reason: str) -> None:
        self._replay.take("cancel_turn", self.number, reason)


class _Replay(RecordingRuntime):
    """A runtime whose every answer comes from the log of a run; it raises where it is asked for something else."""

    def __init__(self, run: RecordingRuntime) -> None:
        super().__init__(run.around, run.session)
        self.log = run.log
        self.at = 0
        self.coroutines: dict[int, Work] = {}
        self._blocked: dict[int, Work] = {}
        self._run_id, self._started_at, self.request = run.run_id, run.started_at, run.request

    def take(self, what: str, *given: object) -> Any:  # noqa: ANN401 - whatever was answered
        """Take the next line of the log, which has to be this one.

        Raises:
            _Difference: It is another.
        """
        mine = Entry(what, given)
        entry = self.log[self.at] if self.at < len(self.log) else Entry("nothing")
        if (entry.what, entry.given) != (what, given):
            msg = f"at line {self.at} the run did {entry}, and its replay {mine}"
            raise _Difference(msg)
        self.at += 1
        return entry.value

    def replay(self) -> None:
        """Run the turn again.

        Raises:
            _Difference: It does something else.
        """
        world = TurnWorld(self)
        assert self.request is not None  # noqa: S101 - narrows the type
        self.coroutines[_RUN] = self._carry_out(world, self.request)
        try:
            while self.at < len(self.log):
                self._do(self.log[self.at], world)
        finally:
            for left in (*self.coroutines.values(), *self._blocked.values()):
                left.close()

    def _do(self, entry: Entry, world: TurnWorld) -> None:
        """Have come what came from outside."""
        match entry.what:
            case "begins":
                (number,) = entry.given
                work = self.coroutines.get(int(str(number)))
            case "message":
                work = entry.value(world)
            case "returned":
                work = self._blocked.pop(int(str(entry.given[0])), None)
            case _:
                work = None
        if work is None:
            msg = f"at line {self.at} the run did {entry}, and its replay nothing"
            raise _Difference(msg)
        if entry.what != "returned":  # the wait itself takes that line
            self.at += 1
        try:
            number = work.send(None)
        except StopIteration:
            pass
        except (ContinueAsNew, ApplicationError):
            pass  # it was logged; or a message was refused, as it was by the run
        else:
            self._blocked[number] = work

    async def _carry_out(self, world: TurnWorld, request: Continuation) -> None:
        self.take("end", await world.run(request))

    def close(self, number: int) -> None:
        """End a task; of an activity nothing is left to end."""
        if (work := self.coroutines.pop(number, None)) is None:
            return
        self._blocked = {wait: one for wait, one in self._blocked.items() if one is not work}
        work.close()

    @property
    def now(self) -> datetime:
        now: datetime = self.take("now")
        return now

    @property
    def history(self) -> History:
        history: History = self.take("history")
        return history

    @property
    def handlers_finished(self) -> bool:
        finished: bool = self.take("handlers_finished")
        return finished

    def note(self, what: str, *given: object, value: object = None) -> None:
        """A command is compared instead."""
        del value
        self.take(what, *given)

    def start(  # type: ignore[override]  # as of the run
        self,
        activity: Callable[[Argument], Awaitable[Any]] | Callable[[], Awaitable[Any]],
        argument: Argument | None,
        bounds: ActivityOptions,
        summary: str | None = None,
        queue: str | None = None,
    ) -> _Replayed:
        self.take("start", activity.__name__, argument, bounds, summary, queue)
        return _Replayed(self)

    def start_tool(  # type: ignore[override]  # as of the run
        self, tool: str, call: CallTool, bounds: ActivityOptions, summary: str, queue: str | None
    ) -> _Replayed:
        self.take("start_tool", tool, call, bounds, summary, queue)
        return _Replayed(self)

    def start_delegate(self, start: StartDelegate) -> _Replayed:  # type: ignore[override]  # as of the run
        self.take("start_delegate", start)
        return _Replayed(self)

    def start_task(self, work: Coroutine[Any, Any, None]) -> _Replayed:  # type: ignore[override]  # as of the run
        self.take("start_task")
        return _Replayed(self, work)

    async def wait(self, condition: Callable[[], bool], at_most: timedelta | None = None) -> None:
        del condition  # the run knew when it held
        await self._block(self._begin_wait("wait", at_most))

    async def sleep(self, time: timedelta) -> None:
        await self._block(self._begin_wait("sleep", time))

    async def finish(self, *started: Started) -> list[Any]:
        numbers = [one.number for one in started if isinstance(one, _Replayed)]
        outcomes: list[Any] = await self._block(self._begin_wait("finish", *numbers))
        return outcomes

    @coroutine
    def _block(self, wait: int) -> Generator[int, None, Any]:
        """Wait until the log says that this wait returned."""
        entry = self.log[self.at] if self.at < len(self.log) else Entry("nothing")
        if (entry.what, entry.given) != ("returned", (wait,)):
            yield wait
        return self.take("returned", wait)


def difference_of(run: RecordingRuntime) -> str:
    """Replay a run: how the replay differs; empty if it does not."""
    if run.request is None:  # it had no chance to begin
        return ""
    try:
        _Replay(run).replay()
    except _Difference as difference:
        return str(difference)
    except Exception as error:  # noqa: BLE001 - the edge: whatever a replay raises that its run did not
        return f"the replay raised {error!r}"
    return ""
