"""``perdure follow``: the events of a session, through its turns."""

import contextlib
from collections.abc import AsyncIterator
from datetime import timedelta

import click

from perdure.cli.connection import connect, run
from perdure.cli.errors import MistakeError
from perdure.cli.live import Printer, follow, only_types, type_names, with_tree
from perdure.client import Client, ServerUnreachableError, SessionIdleError
from perdure.contracts.events import Envelope, Names
from perdure.contracts.input_requests import InputRequest
from perdure.contracts.turns import TurnResult, TurnStatus


class Session:
    """All turns of a session, as they are followed."""

    def __init__(self, client: Client, session: str, after: int | None) -> None:
        """``after`` None begins with the turn that runs, or else the last."""
        self.session = session
        self._client = client
        self._after = after

    def events(self, *, heartbeat: timedelta | None) -> AsyncIterator[Envelope]:
        """The events until no turn runs or waits."""
        return self._client.events(self.session, self._after, heartbeat=heartbeat)

    async def status(self) -> TurnStatus | None:
        """Where the running turn stands; None while nobody can say, as when the server is away."""
        with contextlib.suppress(SessionIdleError, ServerUnreachableError):
            return await self._client.status(self.session)
        return None

    async def requests(self) -> tuple[InputRequest, ...]:
        """What the last turn waits for people for."""
        return await (await self._client.attach(self.session)).requests()

    async def result(self) -> TurnResult:
        """The result of the last turn."""
        return await (await self._client.attach(self.session)).result()

    async def cancel(self, reason: str) -> bool:
        """Have the running turn stopped."""
        return await self._client.cancel(self.session, reason)


@click.command("follow")
@click.argument("session")
@click.option(
    "--after",
    type=click.IntRange(min=0),
    metavar="N",
    help="Begin with event N+1, of whichever turn it is; 0 begins with the first event of the session.",
)
@click.option("--json", "as_json", is_flag=True, help="One event a line, as JSON.")
@only_types
@type_names
@with_tree
@click.option(
    "--heartbeat",
    type=click.FloatRange(min=0.01, max=86_400),
    metavar="SECONDS",
    help="With --json: a line of the type heartbeat whenever nothing else came for so long. It has the number of the "
    "event before it.",
)
@click.pass_context
def follow_command(  # noqa: PLR0913  # one for each option of the command line
    ctx: click.Context,
    *,
    session: str,
    after: int | None,
    as_json: bool,
    types: tuple[str, ...],
    names: Names,
    tree: bool,
    heartbeat: float | None,
) -> None:
    """Follow SESSION, from its running or last turn through all that wait or come meanwhile, until none runs.

    Ctrl+C stops following; the turn goes on. With --after nothing is missed: in JSON, what had been written before has
    "replayed": true. The exit code is that of the last turn.
    """
    if heartbeat is not None and not as_json:
        raise MistakeError("--heartbeat prints nothing without --json; add that, or leave it out")
    every = None if heartbeat is None else timedelta(seconds=heartbeat)
    printer = Printer(as_json=as_json, types=types, names=names, heartbeat=every)
    printer.after = after

    async def main() -> int:
        async with connect() as client:
            return await follow(Session(client, session, after), printer, cancels=False, client=client, tree=tree)

    ctx.exit(run(main()))
