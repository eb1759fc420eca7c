"""``perdure cancel``, ``pause``, ``unpause``, ``block``, ``unblock``, ``blocks``, ``delete``: stop, refuse, erase."""

from datetime import datetime
from functools import partial

import click

from perdure.cli.connection import with_client, with_store
from perdure.cli.errors import ExitCode, MistakeError
from perdure.cli.options import When
from perdure.cli.output import print_json, print_list, print_table
from perdure.cli.render import clean
from perdure.client import Block, CancelOutcome, Client
from perdure.client.blocks import Only
from perdure.client.cancels import OpenFilter
from perdure.contracts.turns import RunState

_OPEN = (RunState.RUNNING.value, RunState.WAITING_FOR_INPUT.value, RunState.QUEUED.value)


@click.command("cancel")
@click.argument("session", required=False)
@click.option("--reason", default="", metavar="TEXT", help="Why; kept in the turn's result.")
@click.option("--turn", type=click.IntRange(min=1), metavar="N", help="Cancel turn N, running or queued.")
@click.option("--drop-queue", is_flag=True, help="Also cancel every queued turn of the session.")
@click.option("--force", is_flag=True, help="Terminate the workflow, and end the turn in the store; explained below.")
@click.option("--all", "every", is_flag=True, help="Cancel the running turns of all sessions that match the filters.")
@click.option("--dry-run", is_flag=True, help="With --all: cancel nothing, and list what would be cancelled.")
@click.option("--state", type=click.Choice(_OPEN), help="With --all: only sessions in this state.")
@click.option("--agent", metavar="A", help="With --all: only turns of this agent.")
@click.option("--tenant", metavar="T", help="With --all: only sessions of this tenant.")
@click.option("--since", type=When(), metavar="WHEN", help="With --all: only turns that began since: 12h, 3d, …")
@click.option("--caller", metavar="SESSION", help="With --all: only the delegates of this session.")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON for each session.")
@click.pass_context
def cancel_command(
    ctx: click.Context,
    *,
    session: str | None,
    reason: str,
    turn: int | None,
    drop_queue: bool,
    force: bool,
    every: bool,
    dry_run: bool,
    state: str | None,
    agent: str | None,
    tenant: str | None,
    since: datetime | None,
    caller: str | None,
    as_json: bool,
) -> None:
    """Cancel the running turn of SESSION, or with --turn a queued one. An idle session stays as it is.

    While another turn runs, a --turn that is neither running nor queued is refused with exit code 2. With --json the
    object has session, and sent: false if there was nothing to cancel.

    A turn whose own code fails in every worker takes no cancel: 'perdure list --stuck' names it. --force ends such a
    turn as cancelled, terminates its workflow, and drops the messages queued behind it. It does the same to a healthy
    turn, whose running calls are not asked. With --all, --force is only for turns whose own code fails.

    With --all instead of SESSION: cancel every running turn that matches the filters, and the messages queued behind
    it. Turns that begin meanwhile go on. With --json each line has session, turn, agent, outcome and error. The exit
    code is 1 if a turn could not be cancelled.
    """
    filters: OpenFilter = {"agent": agent, "tenant": tenant, "since": since, "caller": caller}
    if state is not None:
        filters["state"] = RunState(state)
    if not every:
        if dry_run or any(value is not None for value in filters.values()):
            raise MistakeError("--dry-run and the filters go with --all; name a session, or add --all")
        _cancel_one(session, reason, turn, drop_queue=drop_queue, force=force, as_json=as_json)
        return
    if session is not None or turn is not None:
        raise MistakeError("--all cancels by filters; leave SESSION and --turn out, or leave --all out")
    outcomes = with_client(lambda client: client.cancel_all(reason, dry_run=dry_run, force=force, **filters))
    none = "no running turn matches the filters; nothing to cancel"
    print_list(outcomes, CANCELLED, _row_of_cancelled, none, as_json=as_json)
    ctx.exit(ExitCode.ERROR if any(outcome.outcome == "failed" for outcome in outcomes) else 0)


def _cancel_one(
    session: str | None, reason: str, turn: int | None, *, drop_queue: bool, force: bool, as_json: bool
) -> None:
    if session is None:
        raise MistakeError("name the session to cancel, or cancel by filters with --all")
    name = session

    async def cancel(client: Client) -> bool:
        return await client.cancel(name, reason, turn, drop_queue=drop_queue, force=force)

    sent = with_client(cancel, store=force)
    if as_json:
        print_json({"session": session, "sent": sent})
    elif sent and force:
        click.echo(f"the turn of session {session} is ended; 'perdure send {session} ...' goes on from its last step")
    elif sent:
        click.echo(f"cancel sent to session {session}; 'perdure follow {session}' shows the turn's end")
    else:
        click.echo(f"no turn of session {session} runs; nothing to cancel")


CANCELLED = ("session", "turn", "agent", "outcome", "error")
"""The heads of a table of cancelled turns."""


def _row_of_cancelled(turn: CancelOutcome) -> tuple[str, ...]:
    return turn.session, str(turn.turn), turn.agent, turn.outcome.replace("_", " "), turn.error


@click.command("pause")
@click.argument("session")
@click.option("--reason", default="", metavar="TEXT", help="Why; shown to everyone who looks at the session.")
@click.option("--by", default="", metavar="NAME", help="Who pauses it.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def pause_command(*, session: str, reason: str, by: str, as_json: bool) -> None:
    """Pause SESSION: calls that run finish, and no new one begins until 'perdure unpause SESSION'.

    Delegates of the session are paused too. A pause may last for days: it costs nothing, needs no worker, and does not
    count against a budget of seconds. With --json the object has session, paused and changed.
    """
    changed = with_client(lambda client: client.pause(session, reason, by=by))
    if as_json:
        print_json({"session": session, "paused": True, "changed": changed})
    else:
        state = "is paused" if changed else "was paused already"
        click.echo(f"session {session} {state}; 'perdure unpause {session}' lets it go on")


@click.command("unpause")
@click.argument("session")
@click.option("--by", default="", metavar="NAME", help="Who lets it go on.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def unpause_command(*, session: str, by: str, as_json: bool) -> None:
    """Let a paused SESSION and its delegates go on. With --json the object has session, paused and changed."""
    changed = with_client(lambda client: client.unpause(session, by=by))
    if as_json:
        print_json({"session": session, "paused": False, "changed": changed})
    else:
        click.echo(f"session {session} goes on" if changed else f"session {session} was not paused")


@click.command("block")
@click.option("--agent", metavar="A", help="Only turns of this agent.")
@click.option("--tenant", metavar="T", help='Only turns of this tenant; "" is the default tenant.')
@click.option("--model", metavar="M", help="Only turns that may call this model, such as openai/gpt-4o.")
@click.option("--all", "every", is_flag=True, help="All turns, instead of filters.")
@click.option("--reason", default="", metavar="TEXT", help="Why; shown to everyone whose turn is refused.")
@click.option("--by", default="", metavar="NAME", help="Who sets the block.")
@click.option("--dry-run", is_flag=True, help="Change nothing, and list what would be cancelled and refused.")
@click.option("--keep-running", is_flag=True, help="Only refuse new turns; let open ones go on.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def block_command(
    ctx: click.Context,
    *,
    agent: str | None,
    tenant: str | None,
    model: str | None,
    every: bool,
    reason: str,
    by: str,
    dry_run: bool,
    keep_running: bool,
    as_json: bool,
) -> None:
    """Stop all matching turns, and refuse new ones until 'perdure unblock ID'.

    A turn matches if all given filters match. Messages queued behind a stopped turn are dropped. Giving the same block
    again changes nothing but cancels matching turns that are still open. The exit code is 1 if a turn could not be
    cancelled. With --json the object has block, changed, refuses and turns.
    """
    if not every and (agent, tenant, model) == (None, None, None):
        raise MistakeError("name which turns with --agent, --tenant or --model, or add --all for everything")
    only: Only = {"agent": agent, "tenant": tenant, "model": model, "everything": every}
    outcome = with_client(
        lambda client: client.block(reason, by=by, dry_run=dry_run, keep_running=keep_running, **only)
    )
    if as_json:
        print_json(outcome)
    else:
        block = outcome.block
        if outcome.turns:
            print_table(CANCELLED, list(map(_row_of_cancelled, outcome.turns)))
        agents = f"; registered agents: {', '.join(outcome.refuses)}" if outcome.refuses else ""
        if dry_run:
            click.echo(f"would refuse new turns of {block.scope}{agents}; nothing was changed")
        else:
            since = block.created_at.isoformat("T", "seconds")
            state = "blocked" if outcome.changed else f"blocked already, since {since}"
            click.echo(f"{block.scope}: {state}{agents}; 'perdure unblock {block.id}' lifts it")
    ctx.exit(ExitCode.ERROR if any(turn.outcome == "failed" for turn in outcome.turns) else 0)


@click.command("unblock")
@click.argument("block", metavar="ID")
@click.option("--by", default="", metavar="NAME", help="Who lifts the block.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def unblock_command(*, block: str, by: str, as_json: bool) -> None:
    """Lift block ID, as 'perdure blocks' lists it. New turns are accepted again; stopped ones stay stopped.

    With --json the object has block, lifted and changed.
    """
    changed = with_client(lambda client: client.unblock(block, by=by))
    if as_json:
        print_json({"block": block, "lifted": True, "changed": changed})
    else:
        click.echo(f"block {block} is lifted" if changed else f"block {block} was lifted before")


@click.command("blocks")
@click.option("--lifted", is_flag=True, help="Also list lifted blocks: the audit trail.")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON for each block.")
def blocks_command(*, lifted: bool, as_json: bool) -> None:
    """List the blocks in force, the oldest first: what each stops, who set it, why and since when."""
    found = with_store(lambda store: store.blocks(lifted=lifted))
    heads = ("id", "turns of", "by", "since", "reason", *(("lifted", "lifted by") if lifted else ()))
    none = "nothing was ever blocked" if lifted else "nothing is blocked"
    print_list(found, heads, partial(_row_of_block, lifted=lifted), none, as_json=as_json)


def _row_of_block(block: Block, *, lifted: bool) -> tuple[str, ...]:
    row = (block.id, block.scope, block.by, block.created_at.isoformat("T", "seconds"), block.reason)
    if not lifted:
        return row
    return *row, block.lifted_at.isoformat("T", "seconds") if block.lifted_at else "", block.lifted_by


@click.command("delete")
@click.argument("session")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--histories", is_flag=True, help="Also delete the workflow histories of its turns from Temporal.")
@click.option("--by", default="", metavar="NAME", help="Who asks for it; kept in the tombstone.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object; implies --yes.")
@click.pass_context
def delete_command(ctx: click.Context, *, session: str, yes: bool, histories: bool, by: str, as_json: bool) -> None:
    """Erase SESSION and the sessions of its delegates from the store: conversation, events, calls, artifacts.

    A tombstone with a hash of the erased data stays, and the id is never used again. A session with a running turn is
    refused: cancel the turn first. Steps that a fork needs stay, but cannot be found by this id.

    Temporal keeps the workflow histories of the turns, which hold previews of the messages, until the retention of the
    namespace; --histories deletes them now. If an erasure was interrupted, run the command again to finish it.

    A delegate that still runs is named, and the exit code is 1: cancel its turn, and run the command again.
    """
    if not (yes or as_json):
        click.confirm(f"erase session {session} for good?", abort=True)
    erased = with_client(lambda client: client.delete(session, histories=histories, by=by))
    if as_json:
        print_json(erased)
        ctx.exit(ExitCode.ERROR if erased.not_erased else ExitCode.FINISHED)
    more = f", {len(erased.delegates)} sessions of delegates" if erased.delegates else ""
    kept = f"; {erased.kept_steps} steps that forks need stay" if erased.kept_steps else ""
    sent = f"; removed {', '.join(erased.schedules)}, which sent messages to it" if erased.schedules else ""
    click.echo(f"erased session {session}{more}{kept}{sent}; tombstone {erased.tombstone.id}")
    for left in erased.not_erased:
        click.echo(clean(f"not erased: {left.session}: {left.why}; then run this command again"), err=True)
    ctx.exit(ExitCode.ERROR if erased.not_erased else ExitCode.FINISHED)
