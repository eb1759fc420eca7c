"""The person at the terminal is asked what a followed turn waits for; without one, others are told how to reply."""

import asyncio
import contextlib
import getpass
import os
import shlex
import sys
import termios
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import NamedTuple

import click

from perdure.cli.followed import Followed
from perdure.cli.render import Line, Tone, clean, describe_request, to_one_line
from perdure.client import Client, ClientError
from perdure.contracts.events import AgentEnd, AgentStart, Envelope, UserInputReceived, UserInputRequired
from perdure.contracts.input_requests import NEEDED, REPLY_VERBS, InputRequest
from perdure.store import StoreError

LOOK = timedelta(milliseconds=500)
"""Between two looks at whether a request still waits: somebody else may reply."""

CATCH_UP = timedelta(seconds=3)
"""Longest time until the events of a request are printed; longer than the longest pause between two reads."""

LONGEST_LINE = 65_536
"""More than a terminal gives at once."""

Note = Callable[[str], None]

_YES, _NO, _ALWAYS = ("y", "yes"), ("n", "no"), ("always",)


def person(given: str | None) -> str:
    """Who replies: the name that was given, or the user of this machine."""
    if given:
        return given
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user without a name
        return "unknown"


def is_at_a_terminal() -> bool:
    """Whether a person reads what is printed and can type."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def command_for(session: str, request: InputRequest) -> str:
    """The command that replies to a request, with the first option if a terminal can show it as it is."""
    where = f"{shlex.quote(session)} {request.request_id}"
    if request.needs != "answer":
        return f"perdure {REPLY_VERBS[request.needs]} {where}{' VALUE' if request.needs == 'result' else ''}"
    value = request.options[0] if request.options and request.options[0].isprintable() else "VALUE"
    return f"perdure answer {'-- ' if value.startswith('-') else ''}{where} {shlex.quote(value)}"


def request_lines(session: str, request: InputRequest) -> list[Line]:
    """A request that waits, and the command that replies to it."""
    until = f" · until {request.expires_at.astimezone():%Y-%m-%d %H:%M}" if request.expires_at is not None else ""
    return [
        Line(f"? {describe_request(request)} · {request.request_id}{until}", Tone.WARNING),
        Line(f"  {command_for(session, request)}", Tone.QUIET),
    ]


def say_what_waits(session: str, requests: Sequence[InputRequest], note: Note) -> None:
    """Print each request with the command that replies to it."""
    for request in requests:
        what = request.question if request.needs == "answer" else f"{request.tool} {request.arguments}"
        note(f"waiting for {NEEDED[request.needs]}: {to_one_line(what)}; {command_for(session, request)}")


class Terminal(NamedTuple):
    """Functions of the terminal for asking: a note, an end of the following, and hiding what is drawn meanwhile."""

    note: Note
    leave: Callable[[], object]
    hide: Callable[[bool], object]


class Asking:
    """Dialogue about the input requests of a turn that is followed.

    Attributes:
        left: What nobody at this terminal could be asked; following has then been ended.
    """

    def __init__(self, turn: Followed, client: Client | None, terminal: Terminal) -> None:
        """``client`` None never asks."""
        self.left: tuple[InputRequest, ...] = ()
        self._turn = turn
        self._client = client
        self._note, self._leave, self._hide = terminal
        self._open: set[str] = set()
        self._told = asyncio.Event()
        self._asked = ""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look: what the turn waits for may have been told of before the first event that is read."""
        self._open.clear()
        self._task = asyncio.create_task(self._ask())

    def note(self, envelope: Envelope) -> None:
        """See what the event means for the person."""
        event = envelope.event
        if isinstance(event, UserInputRequired):
            self._open.add(event.request_id)
            self._told.set()
        elif isinstance(event, UserInputReceived):
            self._open.discard(event.request_id)
        elif isinstance(event, AgentEnd):
            self.stop()
        elif isinstance(event, AgentStart) and self._task is None:  # the next turn of the session
            self.start()

    def stop(self) -> None:
        """Ask no more."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _ask(self) -> None:
        """Ask whenever the turn waits, one request after another, until the turn has ended."""
        try:
            while True:
                # A moment for what has happened before to be printed, and between two looks.
                await asyncio.sleep(LOOK.total_seconds())
                status = await self._turn.status()
                requests = status.requests if status is not None else ()
                await self._wait_until_printed({request.request_id for request in requests})
                if requests:
                    try:
                        if self._client is not None and is_at_a_terminal():
                            await self._ask_for(self._client, requests[0])
                            continue
                    except EOFError:  # Ctrl+D: the turn waits on, for others or for later
                        click.echo()
                    self.left = requests
                    self._leave()
                    return
                if status is not None and not self._open:
                    self._told.clear()
                    await self._told.wait()
        except (ClientError, StoreError) as error:
            self._note(f"what the turn waits for cannot be asked: {error}")

    async def _wait_until_printed(self, waiting: set[str]) -> None:
        """Let the events that tell of these be printed first; those that somebody has left out never are."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CATCH_UP.total_seconds()):
                while not self._open.issuperset(waiting):
                    self._told.clear()
                    await self._told.wait()
        self._open |= waiting

    async def _ask_for(self, client: Client, request: InputRequest) -> None:
        if request.request_id != self._asked:  # what was typed before is no reply to it
            termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
            self._asked = request.request_id
        self._hide(True)
        click.echo(prompt_for(request), nl=False)
        typing = asyncio.create_task(_line())
        gone = asyncio.create_task(self._wait_until_decided(request.request_id))
        try:
            await asyncio.wait({typing, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not typing.done():
                self._note("somebody else has decided")
                return
            with contextlib.suppress(ValueError):
                await _reply(client, self._turn.session, request, typing.result())
        except ClientError as error:
            self._note(str(error))
        finally:
            typing.cancel()
            gone.cancel()
            self._hide(False)

    async def _wait_until_decided(self, request_id: str) -> None:
        """Wait until it is decided, or the turn waits for others only. While no worker can say, it may well wait."""
        while request_id in self._open:
            await asyncio.sleep(LOOK.total_seconds())
            status = await self._turn.status()
            requests = status.requests if status is not None else ()
            if requests and request_id not in {request.request_id for request in requests}:
                return


def prompt_for(request: InputRequest) -> str:
    """Question for the terminal; the model's text cannot look like a line or an option of its own."""
    if request.needs == "approval":
        return clean(f"? approve {request.tool} {request.arguments} [y/n/always] ")
    if request.needs == "result":
        return clean(f"? result of {request.tool} {request.arguments}\n> ")
    question = request.question.strip().replace("\n", "\n    ")
    options = (f"  {number}. {' '.join(option.split())}" for number, option in enumerate(request.options, 1))
    return clean("\n".join([f"? {question}", *options])) + "\n> "


async def _reply(client: Client, session: str, request: InputRequest, line: str) -> None:
    """Send what was typed; an option may be given by its number.

    Raises:
        ValueError: It means nothing here; the person is asked again.
    """
    text, who = line.strip(), person(None)
    if request.needs == "approval":
        if text.lower() in _YES:
            await client.approve(session, request.request_id, by=who, digest=request.digest)
        elif text.lower() in _ALWAYS:
            await client.approve(session, request.request_id, by=who, digest=request.digest, always="tool")
        elif text.lower() in _NO:
            await client.deny(session, request.request_id, by=who)
        return
    if not text:
        raise ValueError("nothing was typed")
    if request.needs == "result":
        await client.submit_result(session, request.request_id, text, by=who, digest=request.digest)
        return
    if text not in request.options and text.isdigit() and 1 <= int(text) <= len(request.options):
        text = request.options[int(text) - 1]
    await client.answer(session, request.request_id, text, by=who)


async def _line() -> str:
    """The next line that is typed. Without a thread, which could not be given up when the turn ends meanwhile."""
    loop, terminal = asyncio.get_running_loop(), sys.stdin.fileno()
    line: asyncio.Future[str] = loop.create_future()
    typed = bytearray()

    def take() -> None:
        # Not by ``readline``, which would block all else when a line is sent without its end.
        some = os.read(terminal, LONGEST_LINE)
        typed.extend(some)
        if not some:  # Ctrl+D, or the terminal is gone
            loop.remove_reader(terminal)
            if not line.done():
                line.set_exception(EOFError())
        elif b"\n" in typed and not line.done():
            line.set_result(typed.decode(errors="replace").partition("\n")[0])

    loop.add_reader(terminal, take)
    try:
        return await line
    finally:
        loop.remove_reader(terminal)
