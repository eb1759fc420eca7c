"""The person at the terminal is asked what a followed turn waits for; without one, others are told how to reply."""

import asyncio
import contextlib
import getpass
import shlex
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta

import click

from perdure.cli.render import clean
from perdure.client import Client, ClientError, Turn
from perdure.contracts.events import AgentEnd, Envelope, UserInputReceived, UserInputRequired
from perdure.contracts.people import InputRequest
from perdure.store import StoreError

LOOK = timedelta(milliseconds=500)
"""Between two looks at whether a request still waits: somebody else may reply."""

Note = Callable[[str], None]

_YES, _NO = ("y", "yes"), ("n", "no")


def person(given: str | None) -> str:
    """Who replies: the name that was given, or the user of this machine."""
    if given:
        return given
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user without a name
        return "unknown"


def at_a_terminal() -> bool:
    """Whether a person reads what is printed and can type."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def command_for(session: str, request: InputRequest) -> str:
    """The command that replies to a request."""
    where = f"{shlex.quote(session)} {request.request_id}"
    if request.needs == "approval":
        return f"perdure approve {where}"
    return f"perdure answer {where} {shlex.quote(request.options[0]) if request.options else 'VALUE'}"


def say_what_waits(session: str, requests: Sequence[InputRequest], note: Note) -> None:
    """Print each request with the command that replies to it."""
    for request in requests:
        what = request.question if request.needs == "answer" else f"{request.tool} {request.arguments}"
        note(f"waiting for {_needed(request)}: {clean(' '.join(what.split()))}; {command_for(session, request)}")


def _needed(request: InputRequest) -> str:
    return "an answer" if request.needs == "answer" else "an approval"


class Asking:
    """What becomes of the input requests of a turn that is followed.

    Attributes:
        left: What nobody at this terminal could be asked; following has then been ended.
    """

    def __init__(self, turn: Turn, client: Client | None, note: Note, leave: Callable[[], object]) -> None:
        """``client`` None never asks; ``leave`` ends the following."""
        self.left: tuple[InputRequest, ...] = ()
        self._turn = turn
        self._client = client
        self._note = note
        self._leave = leave
        self._open: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    def saw(self, envelope: Envelope) -> None:
        """See what the event means for the person."""
        event = envelope.event
        if isinstance(event, UserInputRequired):
            self._open.add(event.request_id)
            if self._task is None or self._task.done():
                self._task = asyncio.create_task(self._ask())
        elif isinstance(event, UserInputReceived):
            self._open.discard(event.request_id)
        if isinstance(event, AgentEnd) or not self._open:
            self.stop()

    def stop(self) -> None:
        """Ask no more."""
        if self._task is not None:
            self._task.cancel()

    async def _ask(self) -> None:
        """Wait until the turn waits, then ask, one request after another."""
        try:
            requests = await self._turn.requests()
            while not requests:
                await asyncio.sleep(LOOK.total_seconds())
                requests = await self._turn.requests()
            if self._client is None or not at_a_terminal():
                self.left = requests
                self._leave()
                return
            while requests:
                await self._ask_for(self._client, requests[0])
                requests = await self._turn.requests()
        except (ClientError, StoreError) as error:
            self._note(f"what the turn waits for cannot be asked: {error}")

    async def _ask_for(self, client: Client, request: InputRequest) -> None:
        click.echo(_prompt(request), nl=False)
        typing = asyncio.create_task(_line())
        gone = asyncio.create_task(self._gone(request.request_id))
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

    async def _gone(self, request_id: str) -> None:
        waits = True
        while waits:
            await asyncio.sleep(LOOK.total_seconds())
            waits = request_id in {request.request_id for request in await self._turn.requests()}


def _prompt(request: InputRequest) -> str:
    if request.needs == "approval":
        return clean(f"? approve {request.tool} {request.arguments} [y/n] ")
    rows = [f"? {request.question}", *(f"  {number}. {option}" for number, option in enumerate(request.options, 1))]
    return clean("\n".join(rows)) + "\n> "


async def _reply(client: Client, session: str, request: InputRequest, line: str) -> None:
    """Send what was typed; an option may be given by its number.

    Raises:
        ValueError: It means nothing here; the person is asked again.
    """
    text, who = line.strip(), person(None)
    if request.needs == "approval":
        if text.lower() in _YES:
            await client.approve(session, request.request_id, by=who, digest=request.digest)
        elif text.lower() in _NO:
            await client.deny(session, request.request_id, by=who)
        return
    if not text:
        msg = "nothing was typed"
        raise ValueError(msg)
    if text not in request.options and text.isdigit() and 1 <= int(text) <= len(request.options):
        text = request.options[int(text) - 1]
    await client.answer(session, request.request_id, text, by=who)


async def _line() -> str:
    """The next line that is typed. Without a thread, which could not be given up when the turn ends meanwhile."""
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), ready.set)
    try:
        await ready.wait()
        line = sys.stdin.readline()
        if not line:  # closed: ask no more, and let the turn wait
            await asyncio.Event().wait()
        return line
    finally:
        loop.remove_reader(sys.stdin.fileno())
