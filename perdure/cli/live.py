"""Following a turn on a terminal or in a pipe: its lines as they come, Ctrl+C, and the exit code of its end."""

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterator, Sequence
from datetime import timedelta
from typing import Protocol, get_args

import click

from perdure.cli.asking import Asking, say_what_waits
from perdure.cli.errors import CliError, ExitCode, MistakeError, UnreachableError
from perdure.cli.render import Line, Tone, clean, lines, table
from perdure.cli.waits import LOOK, Watch
from perdure.client import Client, ServerUnreachableError, Turn
from perdure.client.patience import logger as client_log
from perdure.client.turn import UNRECORDED
from perdure.contracts.errors import ReasonCode
from perdure.contracts.event_types import event_type, is_called
from perdure.contracts.events import AgentEnd, AgentError, Envelope, Names
from perdure.contracts.people import InputRequest
from perdure.contracts.turns import StopReason, TurnResult, TurnStatus
from perdure.contracts.values import to_json_line
from perdure.store import StoreUnavailableError

SECOND_PRESS = timedelta(seconds=3)
"""A second Ctrl+C within this time quits at once."""

NUMBER_TIMEOUT = timedelta(seconds=10)
"""How long ``--detach`` waits for the turn's number."""

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

_COLOURS: dict[Tone, dict[str, str | bool]] = {
    Tone.PLAIN: {},
    Tone.HEAD: {"bold": True},
    Tone.QUIET: {"dim": True},
    Tone.GOOD: {"fg": "green"},
    Tone.WARNING: {"fg": "yellow"},
    Tone.BAD: {"fg": "red"},
}

_REFUSED_BY_CALLER = {ReasonCode.REQUEST_UNKNOWN_AGENT, ReasonCode.REQUEST_UNKNOWN_SESSION, ReasonCode.REQUEST_INVALID}


class EventType(click.ParamType[str]):
    """A type of events, by any of its names."""

    name = "type"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The name, if it is one of a type."""
        try:
            event_type(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return str(value)


only_types = click.option(
    "--type",
    "types",
    type=EventType(),
    multiple=True,
    help="Only events of this type; may be repeated. agent_error is also called AgentError (every type goes by its "
    "class too) and, for those who come from Perstack, errorRun or stopRunByError; see docs/coming-from.md.",
)
"""The option that chooses among events."""

type_names = click.option(
    "--names",
    type=click.Choice(get_args(Names)),
    default="perdure",
    help="With --json: whose names of event types are printed; Perstack's errorRun, for example, or AgentError as in "
    "Dreadnode.",
)
"""The option that names the types of printed events."""


def refuse_types(types: Collection[str], where: str) -> None:
    """Refuse the option where no events are printed.

    Raises:
        MistakeError: Types were given.
    """
    if types:
        raise MistakeError(f"{where} prints no events that --type could choose from; leave one of the two out")


def show(line: Line) -> None:
    """Print a line without what steers a terminal, in colour on one unless ``NO_COLOR`` is set."""
    click.echo(styled(line), color=None if not os.environ.get("NO_COLOR") else False)


def styled(line: Line) -> str:
    """The line in its colour, without what steers a terminal."""
    return click.style(clean(line.text), **_COLOURS[line.tone])  # type: ignore[arg-type]


def show_paged(rows: Sequence[Line]) -> None:
    """Print lines; at a terminal that is too low for them, through the pager."""
    if sys.stdout.isatty() and len(rows) >= shutil.get_terminal_size().lines:
        plain = False if os.environ.get("NO_COLOR") else None
        click.echo_via_pager((f"{styled(row)}\n" for row in rows), color=plain)
        return
    for row in rows:
        show(row)


def columns() -> int | None:
    """How wide the terminal is; None where stdout is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def print_table(heads: Sequence[str], rows: Sequence[Sequence[str]], tones: Sequence[Tone] = ()) -> None:
    """Print rows below their heads; as wide as the terminal, or whole where none is."""
    for place, line in enumerate(table([[head.upper() for head in heads], *rows], columns())):
        show(Line(line, Tone.QUIET if place == 0 else tones[place - 1] if tones else Tone.PLAIN))


def print_json(value: object) -> None:
    """Print one JSON object as one line; what steers a terminal and is left as it is by JSON is escaped."""
    click.echo(to_json_line(value))


class Printer:
    """Prints the events of a turn, all or some types; keeps how it ended and the number of the last one."""

    def __init__(
        self,
        *,
        as_json: bool,
        types: Collection[str] = (),
        names: Names = "perdure",
        heartbeat: timedelta | None = None,
    ) -> None:
        """Raises a MistakeError for names of types where no types are printed."""
        if names != "perdure" and not as_json:
            raise MistakeError("--names names the types of JSON lines; add --json, or leave it out")
        self.as_json = as_json
        self.types = types
        self.names: Names = names
        self.heartbeat = heartbeat
        self.end: AgentEnd | None = None
        self.after: int | None = None
        self._failures: list[list[Line]] = []

    def event(self, envelope: Envelope) -> None:
        """Print one event."""
        self.after = envelope.seq
        if isinstance(envelope.event, AgentEnd):
            self.end = envelope.event
            self._failures.clear()
        if self.types and not is_called(envelope.event, {*self.types, "heartbeat"}):
            return
        if self.as_json:
            click.echo(envelope.to_json(self.names))
            return
        rows = lines(envelope)
        # What ended the turn was shown when it happened; calls beside it may have failed since.
        if isinstance(envelope.event, AgentError) and rows in self._failures:
            return
        if rows and rows[0].tone == Tone.BAD:
            self._failures.append(rows)
        for row in rows:
            show(row)

    def note(self, text: str) -> None:
        """Say something that is no event, on stderr."""
        click.echo(clean(f"perdure: {' '.join(text.split())}"), err=True)


class Followed(Protocol):
    """What can be followed: a turn, or a session through its turns."""

    @property
    def session(self) -> str:
        """The session's id."""
        ...

    def events(self, *, heartbeat: timedelta | None) -> AsyncIterator[Envelope]:
        """The events as they come, to the end."""
        ...

    async def status(self) -> TurnStatus | None:
        """Where the running turn stands, if one runs and a worker can say."""
        ...

    async def requests(self) -> tuple[InputRequest, ...]:
        """What the turn has stopped for."""
        ...

    async def result(self) -> TurnResult:
        """How the turn ended, or was refused."""
        ...

    async def cancel(self, reason: str) -> bool:
        """Have the turn stopped."""
        ...


async def follow(turn: Followed, printer: Printer, *, cancels: bool, client: Client | None = None) -> int:
    """Print a turn, or a session's turns, to the end and return the exit code.

    Args:
        turn: What is followed.
        printer: What prints it.
        cancels: Whether the first Ctrl+C cancels the turn; otherwise it stops following.
        client: Takes what the person at the terminal is asked. Without a terminal, or as JSON, following ends when the
            turn waits for a person.
    """
    asking = Asking(turn, None if printer.as_json else client, printer.note, lambda: following.cancel())  # noqa: PLW0108 - made below
    following = asyncio.create_task(_print_events(turn, printer, asking))
    asking.start()
    watching = asyncio.create_task(_tell_waits(turn.session, printer, client)) if client is not None else None
    presses = _Presses(turn, printer, following, cancels=cancels)
    with _on_interrupt(presses.pressed):
        try:
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
    if printer.end is not None:
        if printer.end.stop_reason == StopReason.WAITING_FOR_INPUT:
            say_what_waits(turn.session, await turn.requests(), printer.note)
        return EXIT_CODES.get(printer.end.stop_reason, ExitCode.ERROR)
    return refused(await turn.result())


async def _tell_waits(session: str, printer: Printer, client: Client) -> None:
    watch = Watch(client, session, as_json=printer.as_json)
    while True:
        await asyncio.sleep(LOOK.total_seconds())
        if (text := await watch.look(printer.after)) is not None:
            printer.note(text)


async def _print_events(turn: Followed, printer: Printer, asking: Asking) -> None:
    with _saying_what_is_waited_for(printer):
        try:
            async for envelope in turn.events(heartbeat=printer.heartbeat):
                printer.event(envelope)
                asking.saw(envelope)
        except (StoreUnavailableError, ServerUnreachableError) as error:
            place = "" if printer.after is None else f" --after {printer.after}"
            again = f"'perdure follow {turn.session}{place}' goes on where this ended"
            raise UnreachableError(f"{error}; {again}") from error


@contextlib.contextmanager
def _saying_what_is_waited_for(printer: Printer) -> Iterator[None]:
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


def refused(result: TurnResult) -> int:
    """Raise the error of a request that never became a turn, or whose end no event tells; the exit code of others."""
    if result.turn is not None and result.reason_code not in UNRECORDED:
        return EXIT_CODES.get(result.stop_reason, ExitCode.ERROR)
    code = ExitCode.USAGE if result.reason_code in _REFUSED_BY_CALLER else ExitCode.ERROR
    raise CliError(clean(result.error or f"the request was refused: {result.reason_code}"), code)


async def detach(turn: Turn, *, as_json: bool) -> int:
    """Print where the turn is, without waiting for its end."""
    number = None
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(NUMBER_TIMEOUT.total_seconds()):
            number = await turn.number()
            if number is None:
                refused(await turn.result())
    if as_json:
        print_json({"session": turn.session, "turn": number})
    else:
        click.echo(clean(f"{turn.session} turn {number if number is not None else '(not opened yet)'}"))
    return ExitCode.FINISHED


class _Presses:
    """What Ctrl+C does: cancel or stop following at first, quit at the second press."""

    def __init__(self, turn: Followed, printer: Printer, following: "asyncio.Task[None]", *, cancels: bool) -> None:
        self.quit = False
        self._turn = turn
        self._printer = printer
        self._following = following
        self._cancels = cancels
        self._pressed_at: float | None = None
        self._cancelling: set[asyncio.Task[None]] = set()

    def pressed(self) -> None:
        now = asyncio.get_running_loop().time()
        again = self._pressed_at is not None and now - self._pressed_at < SECOND_PRESS.total_seconds()
        self._pressed_at = now
        if again or not self._cancels:
            self.quit = True
            self._following.cancel()
            return
        self._printer.note("cancelling the turn; press Ctrl+C again within 3 s to quit at once")
        self._keep(self._cancel())

    def _keep(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._cancelling.add(task)
        task.add_done_callback(self._cancelling.discard)

    async def _cancel(self) -> None:
        try:
            await self._turn.cancel("cancelled by Ctrl+C")
        except Exception as error:  # noqa: BLE001  # whatever it is, the person at the keyboard must know
            self._printer.note(f"the turn could not be cancelled: {error}")


@contextlib.contextmanager
def _on_interrupt(pressed: Callable[[], None]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, pressed)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
