"""Following a turn on a terminal or in a pipe: its lines as they come, Ctrl+C, and the exit code of its end."""

import asyncio
import contextlib
import functools
import logging
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterator
from contextlib import aclosing
from datetime import UTC, datetime, timedelta

import click

from perdure.cli.asking import Asking, Terminal, say_what_waits
from perdure.cli.connection import ui_page
from perdure.cli.errors import CliError, ExitCode, MistakeError, UnreachableError
from perdure.cli.followed import Followed
from perdure.cli.output import print_json, show
from perdure.cli.progress import Progress, Screen, can_be_live
from perdure.cli.render import Line, Tone, clean, to_one_line
from perdure.cli.waits import LOOK, Watch
from perdure.client import Client, ClientError, EventsGoneError, ServerUnreachableError, Turn
from perdure.client.patience import logger as client_log
from perdure.client.tree import Tree, TreePlace
from perdure.client.turn import UNRECORDED
from perdure.contracts.deltas import Delta
from perdure.contracts.errors import ReasonCode
from perdure.contracts.events import (
    AgentEnd,
    DelegateStart,
    Envelope,
    Names,
    ToolProgress,
    is_called,
)
from perdure.contracts.turns import StopReason, TurnResult
from perdure.store import StoreError, StoreUnavailableError

SECOND_PRESS = timedelta(seconds=3)
"""A second Ctrl+C within this time quits at once."""

NUMBER_TIMEOUT = timedelta(seconds=10)
"""Longest time that ``--detach`` waits for the turn's number."""

TICK = timedelta(milliseconds=200)
"""Between two looks of the live rows."""

QUIET = timedelta(seconds=5)
"""Between two looks at what is spent while no step begins: delegates and failed calls spend, too."""

EXIT_CODES: dict[str, ExitCode] = {
    StopReason.FINISHED: ExitCode.FINISHED,
    StopReason.ERROR: ExitCode.ERROR,
    StopReason.MAX_STEPS_REACHED: ExitCode.MAX_STEPS_REACHED,
    StopReason.STALLED: ExitCode.STALLED,
    StopReason.BUDGET_EXHAUSTED: ExitCode.BUDGET_EXHAUSTED,
    StopReason.CANCELLED: ExitCode.CANCELLED,
    StopReason.WAITING_FOR_INPUT: ExitCode.WAITING,
    "waiting_for_delegate": ExitCode.WAITING,
}

_REFUSED_BY_CALLER = {ReasonCode.REQUEST_UNKNOWN_AGENT, ReasonCode.REQUEST_UNKNOWN_SESSION, ReasonCode.REQUEST_INVALID}


class Printer:
    """Prints the events of a turn, all or some types; keeps how it ended and the number of the last one."""

    def __init__(
        self,
        *,
        as_json: bool,
        types: Collection[str] = (),
        names: Names = "perdure",
        heartbeat: timedelta | None = None,
        deltas: bool = False,
    ) -> None:
        """Raises a MistakeError for names of types where no types are printed."""
        if deltas and not as_json:
            raise MistakeError("--deltas prints JSON lines; add --json, or leave it out: a terminal shows them anyway")
        if names != "perdure" and not as_json:
            raise MistakeError("--names names the types of JSON lines; add --json, or leave it out")
        self.as_json = as_json
        self.types = types
        self.names: Names = names
        self.heartbeat = heartbeat
        self.end: AgentEnd | None = None
        self.after: int | None = None
        self.progress = Progress()
        self._delegates: dict[str, Progress] = {}
        self._screen = Screen() if can_be_live() and not as_json and not types else None
        self._is_hidden = False
        self.wants_deltas = deltas or self._screen is not None

    def delta(self, delta: Delta) -> None:
        """Print a piece of an answer, or show it below."""
        if self.as_json:
            print_json({"type": "delta", **delta.model_dump(mode="json")})
            return
        self.progress.answer.add(delta)
        self.draw()

    def event(self, envelope: Envelope) -> None:
        """Print one event of what is followed."""
        self.after = envelope.seq
        if isinstance(envelope.event, AgentEnd):
            self.end = envelope.event
        self._print(envelope, self.progress)

    @property
    def is_live(self) -> bool:
        """Whether rows at the bottom of a terminal show what goes on."""
        return self._screen is not None

    def delegate_event(self, envelope: Envelope) -> None:
        """Print one event of a delegate, below its caller's."""
        self._print(envelope, self._delegates.setdefault(envelope.session, Progress("  │ ")))
        if isinstance(envelope.event, AgentEnd):
            self._delegates.pop(envelope.session)

    def _print(self, envelope: Envelope, progress: Progress) -> None:
        is_shown = not self.types or is_called(envelope.event, {*self.types, "heartbeat"})
        if self.as_json:
            if is_shown:
                click.echo(envelope.to_json(self.names))
            return
        rows = progress.note(envelope, shown=is_shown)
        if isinstance(envelope.event, DelegateStart):
            self._delegates.setdefault(envelope.event.delegate, progress.progress_of_delegate(envelope.event))
        if not rows or (self.is_live and isinstance(envelope.event, ToolProgress)):  # in place, below
            self.draw()
            return
        with self._print_above():
            for row in rows:
                show(row)

    def note(self, text: str) -> None:
        """Print a text beside the events, on stderr."""
        with self._print_above():
            click.echo(f"perdure: {to_one_line(text)}", err=True)

    @contextlib.contextmanager
    def _print_above(self) -> Iterator[None]:
        """Print above the live rows."""
        if self._screen is not None:
            self._screen.erase()
        yield
        self.draw()

    def draw(self) -> None:
        """Bring the live rows up to date, at a terminal."""
        if self._screen is not None:
            self._screen.draw([] if self._is_hidden else self.progress.rows(datetime.now(UTC)))

    def hide(self, is_hidden: bool) -> None:
        """Take the live rows away while a person types, and bring them back."""
        self._is_hidden = is_hidden
        self.draw()

    @contextlib.asynccontextmanager
    async def keep_live(self, session: str, client: Client | None) -> AsyncIterator[None]:
        """Keep the live rows up to date, at a terminal; they are gone at the end."""
        if self._screen is None:
            yield
            return
        ticking = asyncio.create_task(self._tick(session, client))
        try:
            yield
        finally:
            ticking.cancel()
            self._screen.erase()
            self._is_hidden = True

    async def _tick(self, session: str, client: Client | None) -> None:
        clock = asyncio.get_running_loop().time
        step, asked = 0, 0.0
        while True:
            await asyncio.sleep(TICK.total_seconds())
            self.draw()
            is_old = clock() - asked > QUIET.total_seconds() and self.progress.budget is not None
            if client is not None and (step != self.progress.step or is_old):
                step, asked = self.progress.step, clock()
                with contextlib.suppress(ClientError, StoreError):
                    self.progress.budget = await client.budget(session) or self.progress.budget


async def follow(
    turn: Followed, printer: Printer, *, cancels: bool, client: Client | None = None, tree: bool = False
) -> int:
    """Print a turn, or a session's turns, to the end and return the exit code.

    Args:
        turn: What is followed.
        printer: What prints it.
        cancels: Whether the first Ctrl+C cancels the turn; otherwise it stops following.
        client: Takes what the person at the terminal is asked. Without a terminal, or as JSON, following ends when the
            turn waits for a person.
        tree: Whether the events of delegates are printed too, below their callers'.
    """
    terminal = Terminal(printer.note, lambda: following.cancel(), printer.hide)  # noqa: PLW0108 - made below
    asking = Asking(turn, None if printer.as_json else client, terminal)
    following = asyncio.create_task(_print_events(turn, printer, asking, client if tree else None))
    asking.start()
    watching = asyncio.create_task(_tell_waits(turn.session, printer, client)) if client is not None else None
    presses = _Presses(turn, printer, following, cancels=cancels)
    with _handle_interrupts(presses.note_press):
        try:
            async with printer.keep_live(turn.session, client):
                await following
        except asyncio.CancelledError:
            if asking.left and not presses.quit:
                say_what_waits(turn.session, asking.left, printer.note)
                return ExitCode.WAITING
            if not presses.quit:
                raise
            again = f"'perdure follow {turn.session}' goes on following, 'perdure cancel {turn.session}' stops it"
            printer.note(f"the turn may still run; {again}")
            return ExitCode.INTERRUPTED
        finally:
            asking.stop()
            if watching is not None:
                watching.cancel()
    if client is not None and not printer.as_json and not printer.types and (page := ui_page(client, turn.session)):
        show(Line(f"in the Temporal UI: {page}", Tone.QUIET))
    if printer.end is not None:
        if printer.end.stop_reason == StopReason.WAITING_FOR_INPUT:
            say_what_waits(turn.session, await turn.requests(), printer.note)
        return EXIT_CODES.get(printer.end.stop_reason, ExitCode.ERROR)
    return raise_refusal(await turn.result())


async def _tell_waits(session: str, printer: Printer, client: Client) -> None:
    watch = Watch(client, session, as_json=printer.as_json, live=printer.is_live)
    while True:
        await asyncio.sleep(LOOK.total_seconds())
        after = printer.after
        wait = await watch.look(after)
        if printer.after == after:  # otherwise it goes on
            printer.progress.waits = wait
            if wait is not None and (text := watch.tell(wait)) is not None:
                printer.note(text)


async def _read_source(
    turn: Followed, printer: Printer, client: Client, session: str, after: int
) -> AsyncGenerator[Envelope | Delta, None]:
    """The events of one session of a tree: of what is followed, or of a delegate."""
    if session == turn.session:
        async for item in turn.events(heartbeat=printer.heartbeat, deltas=printer.wants_deltas):
            yield item
        return
    try:
        async for envelope in client.events(session, after):
            yield envelope
    except EventsGoneError as error:  # a delegate's retention is shorter; the others go on
        printer.note(str(error))
        async for envelope in client.events(session, error.last):
            yield envelope


async def _read_tree(turn: Followed, printer: Printer, client: Client) -> AsyncGenerator[Envelope | Delta, None]:
    """The events of what is followed, and those of its delegates and theirs as they come."""
    tree: Tree[Envelope | Delta] = Tree(
        await client.store(),
        functools.partial(_read_source, turn, printer, client),
        lambda item: item if isinstance(item, Envelope) else None,
    )
    await tree.begin(turn.session, TreePlace())
    async with aclosing(tree.merge()) as merged:
        async for item, _ in merged:
            yield item


async def _print_events(turn: Followed, printer: Printer, asking: Asking, tree_of: Client | None) -> None:
    """Print what is followed; with ``tree_of``, which reads them, its delegates too."""
    with _print_client_waits(printer):
        try:
            items = (
                turn.events(heartbeat=printer.heartbeat, deltas=printer.wants_deltas)
                if tree_of is None
                else _read_tree(turn, printer, tree_of)
            )
            async for item in items:
                if isinstance(item, Delta):
                    printer.delta(item)
                elif item.session == turn.session:
                    printer.event(item)
                    asking.note(item)
                else:
                    printer.delegate_event(item)
        except (StoreUnavailableError, ServerUnreachableError) as error:
            place = "" if printer.after is None else f" --after {printer.after}"
            again = f"'perdure follow {turn.session}{place}' goes on where this ended"
            raise UnreachableError(f"{error}; {again}") from error


@contextlib.contextmanager
def _print_client_waits(printer: Printer) -> Iterator[None]:
    """A server or a store that is away for a while is sat out by the client, which logs it."""
    notes = _Notes(printer)
    client_log.addHandler(notes)
    try:
        yield
    finally:
        client_log.removeHandler(notes)


class _Notes(logging.Handler):
    """Log records as notes on stderr."""

    def __init__(self, printer: Printer) -> None:
        super().__init__(logging.WARNING)
        self._printer = printer

    def emit(self, record: logging.LogRecord) -> None:
        self._printer.note(record.getMessage())


def raise_refusal(result: TurnResult) -> int:
    """Raise the error of a request that never became a turn, or whose end no event tells; the exit code of others."""
    if result.turn is not None and result.reason_code not in UNRECORDED:
        return EXIT_CODES.get(result.stop_reason, ExitCode.ERROR)
    code = ExitCode.USAGE if result.reason_code in _REFUSED_BY_CALLER else ExitCode.ERROR
    raise CliError(clean(result.error or f"the request was refused: {result.reason_code}"), code)


async def detach(turn: Turn, *, as_json: bool) -> int:
    """Print where the turn is, without waiting for its end."""
    number, notice = None, ""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(NUMBER_TIMEOUT.total_seconds()):
            number = await turn.number()
            if number is None:
                raise_refusal(await turn.result())
            notice = await turn.notice()
    if as_json:
        print_json({"session": turn.session, "turn": number, **({"notice": notice} if notice else {})})
    else:
        click.echo(clean(f"{turn.session} turn {number if number is not None else '(not opened yet)'}"))
        if notice:
            click.echo(clean(notice), err=True)
    return ExitCode.FINISHED


class _Presses:
    """Presses of Ctrl+C: the first cancels or stops following, the second quits."""

    def __init__(self, turn: Followed, printer: Printer, following: "asyncio.Task[None]", *, cancels: bool) -> None:
        self.quit = False
        self._turn = turn
        self._printer = printer
        self._following = following
        self._cancels = cancels
        self._pressed_at: float | None = None
        self._cancelling: set[asyncio.Task[None]] = set()

    def note_press(self) -> None:
        now = asyncio.get_running_loop().time()
        again = self._pressed_at is not None and now - self._pressed_at < SECOND_PRESS.total_seconds()
        self._pressed_at = now
        if again or not self._cancels:
            self.quit = True
            self._following.cancel()
            return
        self._printer.note("cancelling the turn; press Ctrl+C again within 3 s to quit at once")
        task = asyncio.create_task(self._cancel())
        self._cancelling.add(task)
        task.add_done_callback(self._cancelling.discard)

    async def _cancel(self) -> None:
        try:
            await self._turn.cancel("cancelled by Ctrl+C")
        except Exception as error:  # noqa: BLE001  # whatever it is, the person at the keyboard must know
            self._printer.note(f"the turn could not be cancelled: {error}")


@contextlib.contextmanager
def _handle_interrupts(pressed: Callable[[], None]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, pressed)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
