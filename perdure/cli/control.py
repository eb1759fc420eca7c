"""``perdure cancel``, ``pause``, ``unpause`` and ``delete``: stop turns, have a session stand still, erase it."""

from collections.abc import Sequence
from datetime import datetime

import click

from perdure.cli.connection import with_client
from perdure.cli.errors import ExitCode, MistakeError
from perdure.cli.list import Since
from perdure.cli.live import print_json, print_table
from perdure.client import CancelOutcome, Client
from perdure.client.cancels import OpenFilter
from perdure.contracts.turns import RunState

_OPEN = (RunState.RUNNING.value, RunState.WAITING_FOR_INPUT.value)


@click.command("cancel")
@click.argument("session", required=False)
@click.option("--reason", default="", metavar="TEXT", help="Why; it is kept with the turn.")
@click.option("--turn", type=click.IntRange(min=1), metavar="N", help="Turn N, which runs or waits.")
@click.option("--drop-queue", is_flag=True, help="Drop all messages that wait, too: their turns end as cancelled.")
@click.option("--all", "every", is_flag=True, help="All sessions whose turn runs, or those that the filters mean.")
@click.option("--dry-run", is_flag=True, help="With --all: cancel nothing, and say what would be.")
@click.option("--state", type=click.Choice(_OPEN), help="With --all: only sessions in this state.")
@click.option("--agent", metavar="A", help="With --all: only turns of this agent.")
@click.option("--tenant", metavar="T", help="With --all: only sessions of this tenant.")
@click.option("--since", type=Since(), metavar="WHEN", help="With --all: only turns that began since then: 12h, 3d, …")
@click.option("--caller", metavar="SESSION", help="With --all: only the delegates of this session.")
@click.option("--json", "as_json", is_flag=True, help="One object a session, as JSON.")
@click.pass_context
def cancel_command(  # noqa: PLR0913  # one for each option of the command line
    ctx: click.Context,
    *,
    session: str | None,
    reason: str,
    turn: int | None,
    drop_queue: bool,
    every: bool,
    dry_run: bool,
    state: str | None,
    agent: str | None,
    tenant: str | None,
    since: datetime | None,
    caller: str | None,
    as_json: bool,
) -> None:
    """Cancel the running turn of SESSION, or one that waits; an idle session is left as it is.

    A --turn that neither runs nor waits is refused with exit code 2 while another one runs. With --json the object has
    session, and sent: false if there was nothing to cancel.

    With --all and no SESSION: every running turn that the filters mean, and the messages that wait behind it. What
    begins meanwhile is left alone. With --json each line has session, turn, agent, outcome and error.
    """
    filters: OpenFilter = {"agent": agent, "tenant": tenant, "since": since, "caller": caller}
    if state is not None:
        filters["state"] = RunState(state)
    if not every:
        if dry_run or any(value is not None for value in filters.values()):
            raise MistakeError("--dry-run and the filters go with --all; name a session, or add --all")
        _cancel_one(session, reason, turn, drop_queue=drop_queue, as_json=as_json)
        return
    if session is not None or turn is not None:
        raise MistakeError("--all cancels by filters; leave SESSION and --turn out, or leave --all out")
    outcomes = with_client(lambda client: client.cancel_all(reason, dry_run=dry_run, **filters))
    _show(outcomes, as_json=as_json)
    ctx.exit(ExitCode.ERROR if any(outcome.outcome == "failed" for outcome in outcomes) else 0)


def _cancel_one(session: str | None, reason: str, turn: int | None, *, drop_queue: bool, as_json: bool) -> None:
    if session is None:
        raise MistakeError("name the session to cancel, or cancel by filters with --all")
    name = session

    async def cancel(client: Client) -> bool:
        return await client.cancel(name, reason, turn, drop_queue=drop_queue)

    sent = with_client(cancel, store=False)
    if as_json:
        print_json({"session": session, "sent": sent})
    elif sent:
        click.echo(f"cancel sent to session {session}; 'perdure follow {session}' shows the turn's end")
    else:
        click.echo(f"no turn of session {session} runs; nothing to cancel")


def _show(outcomes: Sequence[CancelOutcome], *, as_json: bool) -> None:
    if as_json:
        for outcome in outcomes:
            print_json(outcome.model_dump(mode="json"))
    elif outcomes:
        rows = [
            (each.session, str(each.turn), each.agent, each.outcome.replace("_", " "), each.error) for each in outcomes
        ]
        print_table(("session", "turn", "agent", "outcome", "error"), rows)
    else:
        click.echo("no turn runs that the filters mean; nothing to cancel")


@click.command("pause")
@click.argument("session")
@click.option("--reason", default="", metavar="TEXT", help="Why; who looks at the session reads it.")
@click.option("--by", default="", metavar="NAME", help="Who says so.")
@click.option("--json", "as_json", is_flag=True, help="One object, as JSON.")
def pause_command(*, session: str, reason: str, by: str, as_json: bool) -> None:
    """Have SESSION stand still: what runs finishes, and nothing begins until `perdure unpause SESSION`.

    Delegates that work for the session are paused too. It may take days: a paused session costs nothing, needs no
    worker, and its time counts against no limit of seconds. With --json the object has session, paused and changed.
    """
    changed = with_client(lambda client: client.pause(session, reason, by=by))
    if as_json:
        print_json({"session": session, "paused": True, "changed": changed})
    else:
        state = "is paused" if changed else "was paused already"
        click.echo(f"session {session} {state}; 'perdure unpause {session}' goes on")


@click.command("unpause")
@click.argument("session")
@click.option("--by", default="", metavar="NAME", help="Who says so.")
@click.option("--json", "as_json", is_flag=True, help="One object, as JSON.")
def unpause_command(*, session: str, by: str, as_json: bool) -> None:
    """Have a paused SESSION, and the delegates that work for it, go on."""
    changed = with_client(lambda client: client.unpause(session, by=by))
    if as_json:
        print_json({"session": session, "paused": False, "changed": changed})
    else:
        click.echo(f"session {session} goes on" if changed else f"session {session} was not paused")


@click.command("delete")
@click.argument("session")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--histories", is_flag=True, help="Have the Temporal server delete the histories of its turns, too.")
@click.option("--json", "as_json", is_flag=True, help="One object, as JSON; it does not ask.")
def delete_command(*, session: str, yes: bool, histories: bool, as_json: bool) -> None:
    """Erase SESSION and the sessions of its delegates from the store: conversation, events, calls, artifacts.

    A session whose turn runs is refused: cancel it first. Steps that forks stand on stay, and nobody finds them by this
    id. Temporal keeps the histories of the turns, with previews of what was said, until its own retention, unless
    --histories has them deleted. An erasure that was cut off goes on when it is asked for again.
    """
    if not (yes or as_json):
        click.confirm(f"erase session {session} for good?", abort=True)
    erased = with_client(lambda client: client.delete(session, histories=histories))
    if as_json:
        print_json(erased.model_dump(mode="json"))
        return
    more = f", {len(erased.delegates)} sessions of delegates" if erased.delegates else ""
    kept = f"; {erased.kept_steps} steps that forks stand on stay" if erased.kept_steps else ""
    click.echo(f"erased session {session}{more}{kept}")
