"""``perdure store``: look at the transcript store, migrate it and clean it."""

import click

from perdure.cli.errors import ExitCode
from perdure.cli.live import print_json
from perdure.cli.upkeep import COMMANDS
from perdure.settings import load_settings
from perdure.store import migrate
from perdure.store.database import Address
from perdure.store.key_moves import make_key_store


@click.group("store")
def store_command() -> None:
    """Manage the transcript store: its schema, keys, retention, tombstones and garbage."""


for command in COMMANDS:
    store_command.add_command(command)

as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@store_command.command("migrate")
@as_json
def migrate_command(*, as_json: bool) -> None:
    """Migrate the store's schema to this release, in one transaction; a store that is up to date stays as it is.

    Workers of the previous release go on meanwhile. You can start it several times at once: one run migrates, the
    others wait for it.
    """
    settings = load_settings()
    url = settings.store_url
    done = migrate.migrate(url)
    if settings.key_store_url:
        make_key_store(url, settings.key_store_url)
    if as_json:
        print_json({"store": str(Address(url)), "applied": list(done)})
    elif done:
        click.echo(f"the store {Address(url)} is at schema {done[-1]}; applied: {', '.join(done)}")
    else:
        click.echo(f"the store {Address(url)} has the schema of this release already")


@store_command.command("status")
@as_json
@click.pass_context
def status_command(ctx: click.Context, *, as_json: bool) -> None:
    """Show the store's schema, and whether this release can use the store. Changes nothing.

    Exit codes: 0 it can, 1 run 'perdure store migrate' first, 8 it cannot, or the store does not answer.
    """
    url = load_settings().store_url
    found = migrate.read_schema(url)
    code = ExitCode.FINISHED if found.is_known else ExitCode.UNREACHABLE
    if found.is_known and found.pending:
        code = ExitCode.ERROR
    if as_json:
        about = {"store": str(Address(url)), "schema": found.applied, "oldest": found.oldest}
        print_json({**about, "pending": list(found.pending) if found.is_known else [], "usable": found.is_known})
    else:
        click.echo(f"store    {Address(url)}")
        click.echo(f"schema   {found.applied or 'none'}, for releases that know {found.oldest or 'any'}")
        click.echo(f"release  {_advise(found)}")
    ctx.exit(code)


def _advise(found: migrate.Schema) -> str:
    if not found.is_known:
        return "this release is too old for the store; upgrade perdure, or set PERDURE_STORE_URL to another store"
    if found.pending:
        return f"this release needs {', '.join(found.pending)}; run 'perdure store migrate'"
    newer = ", which a newer release has migrated" if found.is_newer else ""
    return f"this release can use the store{newer}"
