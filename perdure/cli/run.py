"""``perdure run``, ``send``, ``fork``, ``compact``, ``follow`` and ``extend``."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import ParamSpec, TypedDict, TypeVar, Unpack, cast, get_args

import click

from perdure.cli.connection import with_client
from perdure.cli.errors import MistakeError
from perdure.cli.live import Printer, detach, follow
from perdure.cli.options import only_types, refuse_types, type_names, with_deltas, with_tree
from perdure.cli.output import print_json
from perdure.cli.prompts import PROMPT, add_sender_options, attachments, read_attached, read_history
from perdure.client import Client, ServerUnreachableError, SessionIdleError, Turn, TurnOptions
from perdure.client.requests import SendOptions
from perdure.contracts.budgets import Budgets
from perdure.contracts.deltas import Delta
from perdure.contracts.dimensions import DIMENSIONS
from perdure.contracts.events import Envelope, Names
from perdure.contracts.input_requests import InputRequest
from perdure.contracts.sends import WhenBusy
from perdure.contracts.turn_options import ResumeOptions
from perdure.contracts.turns import TurnResult, TurnStatus
from perdure.contracts.values import JsonValue

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


class Dollars(click.ParamType[Decimal]):
    """An amount of US dollars above zero."""

    name = "usd"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Decimal:
        """Read the amount exactly as it was written."""
        try:
            amount = Decimal(str(value))
        except InvalidOperation:
            amount = Decimal(0)
        if not (amount.is_finite() and amount > 0):
            self.fail(f"{value!r} is not an amount above zero, for example 0.50", param, ctx)
        return amount


P = ParamSpec("P")
T = TypeVar("T")


class Following(TypedDict):
    """The values of the options that say how a turn is followed."""

    as_json: bool
    types: tuple[str, ...]
    names: Names
    tree: bool
    deltas: bool
    detached: bool


class Told(Following):
    """Those, and the values of the options of a turn."""

    model: str | None
    max_steps: int | None
    max_cost_usd: Decimal | None
    priority: int | None
    attached: tuple[Path, ...]


as_json = click.option("--json", "as_json", is_flag=True, help="Print each event as one line of JSON.")
detached = click.option(
    "--detach", "detached", is_flag=True, help="Print the session's id and the turn's number, and do not follow."
)

with_priority = click.option(
    "--priority",
    type=click.IntRange(1, 5),
    metavar="N",
    help="From 1, the most urgent, to 5: where work waits for workers, a lower number goes first. [default: 3]",
)

_FOLLOWING = (as_json, only_types, type_names, with_tree, with_deltas, detached)
_TURN = (
    click.option("--model", metavar="NAME", help="Model of this turn, as provider/model, instead of the agent's."),
    click.option(
        "--max-steps", type=click.IntRange(min=1), metavar="N", help="Step limit of this turn, instead of the agent's."
    ),
    click.option("--max-cost-usd", type=Dollars(), metavar="X", help="Most US dollars this turn may cost, e.g. 0.50."),
    with_priority,
    attachments,
)
_PLACE = (
    click.option(
        "--at",
        type=click.IntRange(min=0),
        metavar="STEP",
        help="Step to go on from, after the results of its calls. [default: the turn's last step]",
    ),
    click.option(
        "--turn", type=click.IntRange(min=0), metavar="N", help="Turn to go on from. [default: the last turn]"
    ),
)
TAKING = (*_PLACE, *_FOLLOWING, *_TURN)
"""The options of what takes a session up at a step."""


def add(*options: Callable[[Callable[P, T]], Callable[P, T]]) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Give a command these options."""

    def added(command: Callable[P, T]) -> Callable[P, T]:
        for option in reversed(options):
            command = option(command)
        return command

    return added


def options_of(told: Told) -> ResumeOptions:
    """The options of a turn as the client takes them."""
    cost = told["max_cost_usd"]
    budgets = Budgets(cost_usd=cost) if cost is not None else None
    return ResumeOptions(model=told["model"], max_steps=told["max_steps"], budgets=budgets, priority=told["priority"])


def lead(start: Callable[[Client], Awaitable[Turn]], told: Following) -> int:
    """Start the turn and follow it to its end; the exit code."""
    if told["detached"]:
        refuse_types(told["types"], "--detach")
    printer = Printer(as_json=told["as_json"], types=told["types"], names=told["names"], deltas=told["deltas"])

    async def main(client: Client) -> int:
        await client.check_worker()
        turn = await start(client)
        if told["detached"]:
            return await detach(turn, as_json=told["as_json"])
        return await follow(turn, printer, cancels=True, client=client, tree=told["tree"])

    return with_client(main)


@click.command("run")
@click.argument("agent")
@click.argument("prompt", type=PROMPT)
@click.option(
    "--session", metavar="ID", help="Id of the session; a new id begins a session under it. [default: a new id]"
)
@add(*_FOLLOWING)
@click.option(
    "--history",
    "path",
    type=FILE,
    metavar="FILE",
    help="JSON file with a conversation that the new session begins with, as OpenAI chat messages.",
)
@add_sender_options
@click.option("--tenant", default="", metavar="NAME", help="Tenant on whose behalf the turn runs.")
@click.option("--recording", metavar="NAME", help="Recording to write or read, on a worker with --record or --replay.")
@add(*_TURN)
@click.pass_context
def run_command(
    ctx: click.Context,
    *,
    agent: str,
    prompt: str,
    session: str | None,
    path: Path | None,
    data: dict[str, JsonValue] | None,
    by: str,
    tenant: str,
    recording: str | None,
    **told: Unpack[Told],
) -> None:
    """Start a turn of AGENT with PROMPT and follow it to its end.

    PROMPT may be - to read stdin, or @FILE to read a file. Ctrl+C cancels the turn; a second one within three seconds
    quits at once, and the turn may go on.
    """
    content = read_attached(prompt, told["attached"])
    options = cast("TurnOptions", options_of(told))
    options.update({"recording": recording, "context": data, "tenant": tenant, "by": by})
    if path is not None:
        options["history"] = read_history(path)
    ctx.exit(lead(lambda client: client.start(agent, content, session=session, **options), told))


@click.command("send")
@click.argument("session")
@click.argument("prompt", type=PROMPT)
@click.option(
    "--when-busy",
    type=click.Choice(get_args(WhenBusy)),
    help="What to do while a turn runs. reject: refuse the message. queue (default): keep it for the next turn. steer: "
    "the running turn reads it before its next model call. interrupt: cancel the running turn and all queued ones, "
    "then start with this message. rollback: like interrupt, from where the cancelled turn began.",
)
@click.option("--steer", is_flag=True, help="The same as --when-busy steer.")
@add_sender_options
@with_priority
@add(*_FOLLOWING, attachments)
@click.pass_context
def send_command(
    ctx: click.Context,
    *,
    session: str,
    prompt: str,
    when_busy: WhenBusy | None,
    steer: bool,
    data: dict[str, JsonValue] | None,
    by: str,
    priority: int | None,
    attached: tuple[Path, ...],
    **told: Unpack[Following],
) -> None:
    """Send PROMPT to SESSION and follow the turn that takes it.

    PROMPT may be - to read stdin, or @FILE to read a file. A busy session queues the message for its next turn, or does
    what --when-busy says. Ctrl+C cancels the turn; a second one within three seconds quits at once.
    """
    if steer and when_busy not in {None, "steer"}:
        msg = f"--steer and --when-busy {when_busy} contradict each other; leave one of them out"
        raise MistakeError(msg)
    busy: WhenBusy = "steer" if steer else when_busy or "queue"
    content = read_attached(prompt, attached)
    options = SendOptions(context=data, by=by, priority=priority)
    ctx.exit(lead(lambda client: client.send(session, content, when_busy=busy, **options), told))


class Taken(Told):
    """Those, and the place where ``resume`` and ``fork`` take a session up."""

    at: int | None
    turn: int | None


@click.command("fork")
@click.argument("session")
@click.argument("prompt", default="", type=PROMPT)
@click.option("--as", "into", metavar="ID", help="Id of the new session. [default: a new id]")
@add(*TAKING)
@click.pass_context
def fork_command(ctx: click.Context, *, session: str, prompt: str, into: str | None, **told: Unpack[Taken]) -> None:
    """Start a new session from a step of SESSION, and follow its first turn to its end.

    SESSION stays as it is, and may even be running. Without PROMPT the model goes on from that step, for example with
    another --model. Nothing is copied, and tool calls that have run never run again.
    """
    at, turn, content = told["at"], told["turn"], read_attached(prompt, told["attached"])
    options = options_of(told)
    ctx.exit(lead(lambda client: client.fork(session, content, at=at, turn=turn, into=into, **options), told))


@click.command("compact")
@click.argument("session")
@click.argument("guidance", default="")
@add(as_json, detached)
@click.pass_context
def compact_command(ctx: click.Context, *, session: str, guidance: str, as_json: bool, detached: bool) -> None:
    """Summarise the conversation of SESSION, and follow the compaction to its end.

    From then on models read the summary and the last messages; 'perdure show' and 'perdure export' still give every
    message. GUIDANCE tells the summarising model what to keep. A session with a running turn is refused.
    """
    told = Following(as_json=as_json, types=(), names="perdure", tree=False, deltas=False, detached=detached)
    ctx.exit(lead(lambda client: client.compact(session, guidance), told))


_TYPES = {"N": int, "X": str, "S": float}
_LIMITS = tuple(
    click.option(
        f"--max-{row.name.replace('_', '-')}",
        row.name,
        type=_TYPES[row.unit],
        metavar=row.unit,
        help=f"Most {row.most}.",
    )
    for row in DIMENSIONS
)


@click.command("extend")
@click.argument("session")
@click.option("--max-steps", "max_steps", type=int, metavar="N", help="Most generations.")
@add(*_LIMITS)
@click.option("--turn", type=click.IntRange(min=1), metavar="N", help="Refuse unless turn N is the one that runs.")
@click.option("--end", is_flag=True, help="Accept a limit that is used up already; the turn then ends.")
@click.option("--json", "as_json", is_flag=True, help="Print all limits and what is used, as one JSON object.")
def extend_command(*, session: str, turn: int | None, end: bool, as_json: bool, **limits: object) -> None:
    """Change limits of the running turn of SESSION.

    Each value is the new limit of the whole turn, not an increment: --max-steps 50 allows 50 steps in all. Limits that
    you do not give stay. A new limit may be lower than before; one that is already used up needs --end.
    """
    named = {name: value for name, value in limits.items() if value is not None}
    status = with_client(
        lambda client: client.extend(session, turn=turn, end=end, **named),  # type: ignore[arg-type] # checked there
        store=False,
    )
    if as_json:
        print_json(status)
    else:
        used = {**dict(status.spent), "max_steps": status.steps}
        new = {name: value for name, value in (*status.limits, ("max_steps", status.max_steps)) if name in named}
        told = (f"{name} {value}" + (f" ({used[name]} used)" if name in used else "") for name, value in new.items())
        click.echo(f"session {session}: {', '.join(told)}")


class Session:
    """All turns of a session, as they are followed."""

    def __init__(self, client: Client, session: str, after: int | None) -> None:
        """``after`` None begins with the turn that runs, or else the last."""
        self.session = session
        self._client = client
        self._after = after

    def events(self, *, heartbeat: timedelta | None, deltas: bool) -> AsyncIterator[Envelope | Delta]:
        """The events until no turn runs or waits, and pieces of answers if they are wanted."""
        return self._client.events(self.session, self._after, heartbeat=heartbeat, deltas=deltas)

    async def status(self) -> TurnStatus | None:
        """Status of the running turn; None while nobody can tell it, as when the server is away."""
        with contextlib.suppress(SessionIdleError, ServerUnreachableError):
            return await self._client.status(self.session)
        return None

    async def requests(self) -> tuple[InputRequest, ...]:
        """Input requests of the last turn."""
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
    help="Begin after event N of the session, in whichever turn that is; 0 begins with the session's first event.",
)
@click.option("--json", "as_json", is_flag=True, help="Print each event as one line of JSON.")
@only_types
@type_names
@with_tree
@with_deltas
@click.option(
    "--heartbeat",
    type=click.FloatRange(min=0.01, max=86_400),
    metavar="SECONDS",
    help="With --json: print a line of type heartbeat whenever no event came for this long. It has the sequence number "
    "of the last event.",
)
@click.pass_context
def follow_command(
    ctx: click.Context,
    *,
    session: str,
    after: int | None,
    as_json: bool,
    types: tuple[str, ...],
    names: Names,
    tree: bool,
    deltas: bool,
    heartbeat: float | None,
) -> None:
    """Follow SESSION from its running or last turn until no turn runs or waits.

    Turns that start meanwhile are followed too. Ctrl+C stops following; the turn goes on. To miss no event after a
    break, give the last number you saw with --after: with --json, events that were written before have "replayed":
    true. The exit code is that of the last turn.
    """
    if heartbeat is not None and not as_json:
        raise MistakeError("--heartbeat prints nothing without --json; add --json, or leave --heartbeat out")
    every = None if heartbeat is None else timedelta(seconds=heartbeat)
    printer = Printer(as_json=as_json, types=types, names=names, heartbeat=every, deltas=deltas)
    printer.after = after
    code = with_client(
        lambda client: follow(Session(client, session, after), printer, cancels=False, client=client, tree=tree)
    )
    ctx.exit(code)
