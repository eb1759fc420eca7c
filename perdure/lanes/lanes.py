"""Threads and an event loop that run the code of authors, contained.

A lane has both. Code that runs in one can block, fail in any way and never end: all of that is the failure of its one
run. Its time counts from its first step, and a run that was given up before has none.

Long, because all that one run meets stands here: its thread or its loop, its first step, its time and its end.
"""

import asyncio
import contextlib
import contextvars
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass
from types import CoroutineType
from typing import Any, Protocol, TypeVar, cast
from weakref import WeakSet

from perdure.contracts.exceptions import failure_of, value_of
from perdure.lanes.loops import CodeLoop
from perdure.lanes.printing import GatheredLines

logger = logging.getLogger("perdure.tools")

T = TypeVar("T")

BEGIN_SECONDS = 60.0
"""Longest time that a run waits for its first step."""

BLOCKED_SECONDS = 1.0
"""Time without a first step of an async run after which the log names what blocks the loop."""


class NotBegunError(TimeoutError):
    """A run was given up before its first step, because others hold the threads or the loop."""


@dataclass(frozen=True, eq=False)
class Run:
    """A run of code in a lane, and what it comes to: a value, or ``Failed``.

    Attributes:
        name: The name of what runs.
        future: Done with the run. A cancel stops async code; sync code runs on.
        begun: Done with the first step. If it is cancelled before, the code never begins.
    """

    name: str
    lane: "Lane"
    future: "Future[Any]"
    begun: "Future[None]"


def _run_and_log(code: Callable[[], T]) -> T:
    """Run the code and return its result; what it prints goes into the log."""
    with GatheredLines():
        return code()


def _begin(begun: "Future[None]") -> bool:
    """Take a run's first step; False if the run was given up."""
    if not begun.set_running_or_notify_cancel():
        return False
    begun.set_result(None)
    return True


_held: ContextVar[list["Future[Any]"] | None] = ContextVar("perdure_held", default=None)
"""Runs on threads of the attempt that has a place."""


def _start_task(coroutine: Coroutine[Any, Any, None], on: CodeLoop) -> None:
    """Start a task without the loop's factory of tasks, which an author's code may have set, and not to work."""
    asyncio.Task(coroutine, loop=on.loop)


class Resident(Protocol):
    """It lives on a loop."""

    def abandon(self) -> None:
        """Leave all of it there, since the loop is blocked for good."""


class Loops:
    """The event loop of one kind of code, which several lanes of a process may have in common.

    A run that is given up and still blocks the loop keeps it: what has not begun there, and all that comes, has a
    new one.

    Attributes:
        name: What the code is, such as ``tool``.
        most: The number of loops that may be left to what blocks them.
        residents: What lives on the loop, and has to be abandoned with it.
    """

    def __init__(self, name: str, most: int) -> None:
        self.name = name
        self.most = most
        self.residents: WeakSet[Resident] = WeakSet()
        self._loops = [CodeLoop(name)]
        self._lock = threading.Lock()
        self._unbegun: dict[Run, Callable[[CodeLoop], None]] = {}
        self._opening: dict[Run, CodeLoop] = {}
        self._tasks: dict[asyncio.Task[Any], Run] = {}
        self._blamed: object = None

    def start(self, run: Run, code: Callable[[], Awaitable[Any]], opening: Callable[[], Awaitable[None]] | None) -> Run:
        """Run async code in this context; ``opening`` comes before its first step."""
        outer = contextvars.copy_context()

        async def work(on: CodeLoop) -> None:
            if not self._take(run, on):
                return  # it begins on another loop
            if opening is not None and not await self._open(run, on, opening):
                return
            if not _begin(run.begun):
                run.future.cancel()
                return
            task = cast("asyncio.Task[Any]", asyncio.current_task())
            task.set_name(run.name)
            self._tasks[task] = run
            run.future.add_done_callback(lambda future: on.cancel(task) if future.cancelled() else None)
            try:
                with GatheredLines():
                    came = await code()
            except BaseException as error:
                # ``isinstance`` would ask the exception for its class, which may be the author's code.
                if issubclass(type(error), asyncio.CancelledError) and task.cancelling():
                    run.future.cancel()
                    raise  # it was stopped
                came = failure_of(error)
            finally:
                del self._tasks[task]
            with contextlib.suppress(Exception):  # it was cancelled: nobody waits any more
                run.future.set_result(came)

        def schedule(on: CodeLoop) -> None:
            on.start()
            on.loop.call_soon_threadsafe(lambda: _start_task(work(on), on), context=outer.copy())

        with self._lock:
            self._unbegun[run] = schedule
            schedule(self._loops[-1])
        return run

    async def _open(self, run: Run, on: CodeLoop, opening: Callable[[], Awaitable[None]]) -> bool:
        """Open what a run needs; False if that has failed, which is the run's outcome then."""
        self._opening[run] = on
        try:
            await opening()
        except asyncio.CancelledError:  # the worker closes
            run.future.cancel()
            raise
        except Exception as error:  # noqa: BLE001 - it is told to whoever waits for the run
            run.future.set_result(failure_of(error))
            return False
        finally:
            del self._opening[run]
        return True

    def is_opening(self, run: Run) -> bool:
        """Whether a run waits for what it needs to be opened, which bounds itself."""
        return self._opening.get(run) is self._loops[-1]

    def _take(self, run: Run, on: CodeLoop) -> bool:
        """Whether the run may take its first step on the loop."""
        with self._lock:
            return on is self._loops[-1] and self._unbegun.pop(run, None) is not None

    def help_if_blocked(self, *, at_last: bool = False) -> bool:
        """Name what blocks the loop in the log, once, and have a new loop if nobody waits for that any more.

        ``at_last`` has a new loop also where a toolset that opens blocks it, or a task of an author's.
        """
        loop = self._loops[-1]
        task = loop.task
        if task is None or not (blocking := self.blocking()):
            return False
        if task is not self._blamed:
            self._blamed = task
            logger.warning("%s, so no other async %s runs; use asyncio, or a sync function", blocking, self.name)
        run = self._tasks.get(task)
        is_left = at_last if run is None else run.future.cancelled()
        return is_left and self._leave_loop(loop)

    def _leave_loop(self, left: CodeLoop) -> bool:
        """Have a new loop, on which all begins that has not begun; False if there are too many."""
        with self._lock:
            if self._loops[-1] is left:
                self._stop_free_loops()
                if len(self._loops) > self.most:
                    return False
                self._loops.append(CodeLoop(self.name))
                for resident in list(self.residents):
                    resident.abandon()
                for schedule in self._unbegun.values():
                    schedule(self._loops[-1])
                logger.warning("async %ss that come now run on a new loop; the blocked one is left behind", self.name)
            return True

    def _stop_free_loops(self) -> None:
        """Stop the loops left behind that nothing blocks any more, and on which no run goes on."""
        used = {task.get_loop() for task in list(self._tasks)}
        free = [one for one in self._loops[:-1] if one.task is None and one.loop not in used]
        for one in free:
            self._loops.remove(one)
            one.stop()

    def blocking(self) -> str:
        """Describe the code that holds the loop at this moment, and its place; empty if nothing does."""
        loop = self._loops[-1]
        task = loop.task
        if task is None:
            return ""
        coroutine = task.get_coro()
        code = (
            f" ({coroutine.__qualname__})"
            if isinstance(coroutine, CoroutineType) and coroutine.__name__ != "work"
            else ""
        )
        frame = loop.frame
        where = f", at {frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno}" if frame is not None else ""
        return f"{task.get_name()}{code} blocks the loop of async {self.name}s{where}"

    def run_ours(self, code: Callable[[], Awaitable[T]]) -> "Future[T]":
        """Run perdure's own async code on the loop."""

        async def work() -> T:
            return await code()

        with self._lock:
            loop = self._loops[-1]
            loop.start()
        return asyncio.run_coroutine_threadsafe(work(), loop.loop)

    def cancel(self, lane: "Lane") -> None:
        """Cancel what a lane runs, and what has not begun."""
        for run in [*list(self._unbegun), *list(self._tasks.values())]:
            if run.lane is lane:
                run.future.cancel()

    def close(self) -> None:
        """Cancel what still runs, and stop. Code that does not end is abandoned."""
        for run in list(self._unbegun):
            run.future.cancel()
        for loop in self._loops:
            loop.close()


class Lane:
    """Threads and an event loop for one kind of code.

    Args:
        name: What the code is, such as ``tool``.
        threads: The number of threads.
        loops: The event loop, if the lane has it in common with others.
    """

    def __init__(self, name: str, threads: int, loops: Loops | None = None) -> None:
        self.name = name
        self.threads = threads
        self.loops = Loops(name, threads) if loops is None else loops
        self._is_alone = loops is None
        self._places = asyncio.Semaphore(threads)
        self._pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix=f"perdure-{name}")
        self._running: set[Run] = set()

    def run_on_thread(self, name: str, code: Callable[[], Any]) -> Run:
        """Run sync code on a thread, in this context."""
        run, outer = Run(name, self, Future(), Future()), contextvars.copy_context()
        ended: Future[None] = Future()  # with the thread, whereas the run's future is cancelled when it is given up
        if (held := _held.get()) is not None:
            held.append(ended)

        def work() -> None:
            if not _begin(run.begun):
                run.future.cancel()
                ended.set_result(None)
                return
            self._running.add(run)
            try:
                came = outer.run(_run_and_log, code)
            except BaseException as error:  # noqa: BLE001 - the edge: it is the author's code
                came = failure_of(error)
            self._running.discard(run)
            ended.set_result(None)
            with contextlib.suppress(Exception):  # it was cancelled: nobody waits any more
                run.future.set_result(came)

        self._pool.submit(work)
        return run

    def run_on_loop(
        self, name: str, code: Callable[[], Awaitable[Any]], opening: Callable[[], Awaitable[None]] | None = None
    ) -> Run:
        """Run async code on the lane's loop, in this context; ``opening`` comes before its first step."""
        return self.loops.start(Run(name, self, Future(), Future()), code, opening)

    async def call_on_thread(self, name: str, code: Callable[[], T]) -> T:
        """The result of sync code on a thread; for async code that runs on the lane's loop."""
        run = self.run_on_thread(name, code)
        try:
            return cast("T", value_of(await asyncio.wrap_future(run.future)))
        finally:
            run.begun.cancel()  # given up before its first step, it has none

    def call_within(self, seconds: float, name: str, code: Callable[[], T]) -> T:
        """The result of sync code on a thread, for a caller that may block.

        Raises:
            TimeoutError: It took longer.
            Exception: The code raised it.
        """
        run = self.run_on_thread(name, code)
        try:
            run.begun.result(BEGIN_SECONDS)
        except TimeoutError:
            if run.begun.cancel():
                raise NotBegunError(self.describe_wait(run)) from None
        try:
            return cast("T", value_of(run.future.result(seconds)))
        except TimeoutError as error:
            if run.future.done():
                raise
            msg = f"it ran longer than {seconds:g} s"
            raise TimeoutError(msg) from error

    @contextlib.asynccontextmanager
    async def place(self, seconds: float) -> AsyncIterator[None]:
        """Have a thread for what runs in the block; it is free again once all of that has ended.

        Raises:
            TimeoutError: None was free in time.
        """
        await asyncio.wait_for(self._places.acquire(), seconds)
        held: list[Future[Any]] = []
        token = _held.set(held)
        try:
            yield
        finally:
            _held.reset(token)
            self._leave(held)

    def _leave(self, held: list["Future[Any]"]) -> None:
        """Give the place back when the last run has ended."""
        still, loop = [future for future in held if not future.done()], asyncio.get_running_loop()
        if not still:
            self._places.release()
            return
        left, lock = set(map(id, still)), threading.Lock()

        def note(future: "Future[Any]") -> None:
            with lock:
                left.discard(id(future))
                if left:
                    return
            with contextlib.suppress(RuntimeError):  # the worker's loop is closed
                loop.call_soon_threadsafe(self._places.release)

        for future in still:
            future.add_done_callback(note)

    def describe_wait(self, run: Run) -> str:
        """Describe why a run has not begun."""
        return f"{run.name} did not run: {self.loops.blocking() or self.describe_threads()}"

    @property
    def is_full(self) -> bool:
        """Whether no place is free."""
        return self._places.locked()

    def describe_threads(self) -> str:
        """Who holds the threads."""
        names = [run.name for run in list(self._running)]
        counted = ", ".join(f"{name} ({names.count(name)})" for name in sorted(set(names))) or "others"
        return f"all {self.threads} threads for {self.name}s are taken, by {counted}"

    def close(self) -> None:
        """Cancel what still runs, and stop the pool, and the loop unless others have it too."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self._is_alone:
            self.loops.close()
        else:
            self.loops.cancel(self)


async def wait_within(run: Run, seconds: float, *, who: str, late: TimeoutError, give_up: Callable[[], None]) -> Any:  # noqa: ANN401
    """Wait for a run, and return its value. If it takes too long, or the wait is cancelled, give it up.

    Args:
        run: The run.
        seconds: Its timeout, from its first step.
        who: Its name, for messages.
        late: The exception to raise after the timeout.
        give_up: Called when the run is given up.

    Raises:
        NotBegunError: It did not begin, and never will.
        Exception: Whatever the code raises, or ``late``.
    """
    waiting, begun, done = asyncio.wrap_future(run.future), _wrap_begun(run), False
    try:
        await _wait_for_begin(run, waiting, begun)
        done = bool((await asyncio.wait([waiting], timeout=seconds))[0])
    finally:
        if not done:
            run.begun.cancel()
            give_up()
            waiting.cancel()
    if not done:
        raise late
    if waiting.cancelled():
        msg = f"{who} cancelled itself"
        raise RuntimeError(msg)
    return value_of(waiting.result())


def _wrap_begun(run: Run) -> "asyncio.Future[None]":
    """A future of this loop that is done with the first step; cancelling it does not cancel the run."""
    loop = asyncio.get_running_loop()
    begun: asyncio.Future[None] = loop.create_future()

    def note(_: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(_set, begun)

    run.begun.add_done_callback(note)
    return begun


def _set(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


async def _wait_for_begin(run: Run, waiting: "asyncio.Future[Any]", begun: "asyncio.Future[None]") -> None:
    deadline = time.monotonic() + BEGIN_SECONDS
    while not run.begun.done():
        left = deadline - time.monotonic()
        if left <= 0:
            why, was_opening = run.lane.describe_wait(run), run.lane.loops.is_opening(run)
            helped = run.lane.loops.help_if_blocked(at_last=True)
            if run.lane.loops.is_opening(run) or (helped and not was_opening):
                deadline += BEGIN_SECONDS
            elif run.begun.cancel():
                raise NotBegunError(why)
        await asyncio.wait(
            [waiting, begun], timeout=max(0.0, min(left, BLOCKED_SECONDS)), return_when=asyncio.FIRST_COMPLETED
        )
        if waiting.done():
            return
        if not run.begun.done():
            run.lane.loops.help_if_blocked()
