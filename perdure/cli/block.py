"""``perdure block``, ``unblock`` and ``blocks``: refuse new turns and stop running ones, until the block is lifted."""

from collections.abc import Sequence

import click

from perdure.cli.connection import with_client, with_store
from perdure.cli.errors import ExitCode, MistakeError
from perdure.cli.live import print_json, print_table
from perdure.client import Block, BlockOutcome
from perdure.client.blocks import Only


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
def block_command(  # noqa: PLR0913  # one for each option of the command line
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
        print_json(outcome.model_dump(mode="json"))
    else:
        _show(outcome, dry_run=dry_run)
    ctx.exit(ExitCode.ERROR if any(turn.outcome == "failed" for turn in outcome.turns) else 0)


def _show(outcome: BlockOutcome, *, dry_run: bool) -> None:
    block = outcome.block
    if outcome.turns:
        rows = [
            (each.session, str(each.turn), each.agent, each.outcome.replace("_", " "), each.error)
            for each in outcome.turns
        ]
        print_table(("session", "turn", "agent", "outcome", "error"), rows)
    agents = f"; registered agents: {', '.join(outcome.refuses)}" if outcome.refuses else ""
    if dry_run:
        click.echo(f"would refuse new turns of {block.scope}{agents}; nothing was changed")
    else:
        state = "blocked" if outcome.changed else f"blocked already, since {block.created_at.isoformat('T', 'seconds')}"
        click.echo(f"{block.scope}: {state}{agents}; 'perdure unblock {block.id}' lifts it")


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
    if as_json:
        for block in found:
            print_json(block.model_dump(mode="json"))
    elif found:
        _print_blocks(found, lifted=lifted)
    else:
        click.echo("nothing is blocked" if not lifted else "nothing was ever blocked")


def _print_blocks(found: Sequence[Block], *, lifted: bool) -> None:
    heads = ("id", "turns of", "by", "since", "reason", *(("lifted", "lifted by") if lifted else ()))
    rows = [
        (
            *(block.id, block.scope, block.by, block.created_at.isoformat("T", "seconds"), block.reason),
            *(
                (block.lifted_at.isoformat("T", "seconds") if block.lifted_at else "", block.lifted_by)
                if lifted
                else ()
            ),
        )
        for block in found
    ]
    print_table(heads, rows)
