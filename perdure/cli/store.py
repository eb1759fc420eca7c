"""``perdure store``: look at the transcript store, migrate it, delete old data, and look after keys."""

import contextlib
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Literal

import click

from perdure.cli.connection import open_store, with_client, with_store
from perdure.cli.errors import ExitCode, MistakeError
from perdure.cli.findings import Finding
from perdure.cli.options import list_limit
from perdure.cli.output import print_json
from perdure.cli.render import clean
from perdure.client import Client
from perdure.client.restored import LOOKED_AT, Differences, compare, reconcile
from perdure.client.retention import find_interval, read_sweeps, schedule_sweeps, sweep_now
from perdure.contracts.retention import Retention, Swept, read_duration
from perdure.settings import load_settings
from perdure.store import Store, migrate
from perdure.store.database import Address
from perdure.store.errors import StoreKeyError
from perdure.store.keys.moves import make_key_store

SHORTEST_INTERVAL = timedelta(minutes=1)


@click.group("store")
def store_command() -> None:
    """Manage the transcript store: its schema, keys, retention, tombstones and garbage."""


as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@store_command.command("migrate")
@as_json
def migrate_command(*, as_json: bool) -> None:
    """Migrate the store's schema to this release, in one transaction; a store that is up to date stays as it is.

    Sessions with an open turn are then brought into the new form, one by one; workers do so for all others. Workers of
    the previous release go on meanwhile. You can start it several times at once: one run migrates, the others wait.
    """
    settings = load_settings()
    url = settings.store_url
    done = migrate.migrate(url)
    if settings.key_store_url:
        make_key_store(url, settings.key_store_url)
    filled = 0
    with contextlib.suppress(StoreKeyError):  # a process without keys leaves it to the workers
        filled = with_store(lambda store: store.fill(only_open=True))
    if as_json:
        print_json({"store": str(Address(url)), "applied": list(done), "filled": filled})
        return
    if done:
        click.echo(f"the store {Address(url)} is at schema {done[-1]}; applied: {', '.join(done)}")
    else:
        click.echo(f"the store {Address(url)} has the schema of this release already")
    if filled:
        click.echo(f"brought {filled} sessions with an open turn into its form")


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
        advice = f"this release can use the store{', which a newer release has migrated' if found.is_newer else ''}"
        if not found.is_known:
            advice = "this release is too old for the store; upgrade perdure, or set PERDURE_STORE_URL to another store"
        elif found.pending:
            advice = f"this release needs {', '.join(found.pending)}; run 'perdure store migrate'"
        click.echo(f"release  {advice}")
    ctx.exit(code)


@store_command.command("reconcile")
@click.option("--dry-run", is_flag=True, help="Change nothing, and list what differs.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=LOOKED_AT,
    show_default=True,
    metavar="N",
    help="Most ended turns to read.",
)
@as_json
def reconcile_command(*, dry_run: bool, limit: int, as_json: bool) -> None:
    """Bring a store that was restored from an older copy up to date with what Temporal knows.

    Turns that have ended for Temporal and are open in the store are closed, and turns that the store lacks are added to
    their sessions, both with the reason runtime.store_behind: the next turn of such a session tells its model that work
    was done which the conversation does not show. Missing sessions are listed; nothing of them can be restored.

    Every open turn of the store is looked up, and of Temporal's ended turns the newest N. You can run it while workers
    run, and again.
    """

    async def compared(client: Client) -> Differences:
        store = await client.store()
        found = await compare(client.temporal, store, client.settings.task_queue, limit=limit)
        if not dry_run:
            await reconcile(store, found)
        return found

    found = with_client(compared)
    kinds: list[tuple[str, Iterable[tuple[str, int]]]] = [
        ("would be closed" if dry_run else "closed", [(end.session, end.result.turn or 0) for end in found.open]),
        ("would be added" if dry_run else "added", [(end.session, end.result.turn or 0) for end in found.behind]),
        ("missing", found.missing.items()),
    ]
    lines = [(kind, session, turn) for kind, listed in kinds for session, turn in listed]
    for kind, session, turn in lines:
        if as_json:
            print_json({"session": session, "turn": turn, "done": kind, "dry_run": dry_run})
        else:
            click.echo(clean(f"{kind}: turn {turn} of session {session}"))
    if not lines and not as_json:
        click.echo("the store has all that Temporal knows of")


@store_command.command("gc")
@click.option("--dry-run", is_flag=True, help="Delete nothing, and count what would be deleted.")
@as_json
def gc_command(*, dry_run: bool, as_json: bool) -> None:
    """Delete garbage from the store: rows older than a day that nothing refers to any more.

    These are artifacts, definitions and keys that no session, turn or agent uses, steps kept for forks that are gone,
    pieces of answers left by lost workers, and Idempotency-Keys older than seven days. It also finishes interrupted
    erasures. You can run it while workers run.
    """
    done = with_store(lambda store: store.collect_garbage(dry_run=dry_run))
    if as_json:
        print_json({"dry_run": dry_run, **done})
        return
    verb = "would be deleted" if dry_run else "deleted"
    found = [f"{count} {kind}" for kind, count in done.items() if count]
    click.echo(f"{verb}: {', '.join(found)}" if found else f"nothing {verb}")


@store_command.command("rewrap")
@as_json
def rewrap_command(*, as_json: bool) -> None:
    """Wrap the key of each session with the first key of PERDURE_ENCRYPTION_KEYS, so that you can drop older ones.

    The content of the sessions is not rewritten. You can run it while workers run, and again if it was interrupted.
    """

    async def rewrap(store: Store) -> tuple[int, dict[str, int]]:
        return await store.rewrap(), await store.count_keys()

    done, keys = with_store(rewrap)
    if as_json:
        print_json({"rewrapped": done, "keys": keys})
        return
    counts = ", ".join(f"{name}: {count}" for name, count in keys.items())
    click.echo(f"{done} keys wrapped anew; keys by the key that wraps them: {counts or 'none'}")


@store_command.command("keys")
@click.option("--to", type=click.Choice(["key-store", "store"]), help="Move all keys there, and store new ones there.")
@as_json
def keys_command(*, to: Literal["key-store", "store"] | None, as_json: bool) -> None:
    """Count the keys of sessions in the store and in the key store (PERDURE_KEY_STORE_URL), or move them with --to.

    Set PERDURE_KEY_STORE_URL on every process before you move keys. You can move them while workers run; if it is
    interrupted, run it again.
    """

    async def look(store: Store) -> tuple[int, int, int]:
        moved = 0 if to is None else await store.move_keys(out=to == "key-store")
        here, whole = (sum(counts.values()) for counts in (await store.count_own_keys(), await store.count_keys()))
        return moved, here, whole - here

    moved, here, apart = with_store(look)
    if as_json:
        print_json({"moved": moved, "store": here, "key_store": apart})
        return
    done = f"{moved} keys moved; " if to is not None else ""
    click.echo(f"{done}keys in the store: {here}, in the key store: {apart}")


@store_command.command("rotate-ids")
@as_json
def rotate_ids_command(*, as_json: bool) -> None:
    """Sign the ids that perdure derives with a new secret from now on; ids that were given before stay valid.

    The sessions of schedules' runs and of requests with an Idempotency-Key have such ids. Each turn has a secret of its
    own for the ids of its delegates. No secret is ever shown. You can run it while workers run.
    """
    number = with_store(lambda store: store.rotate_id_secret())
    if as_json:
        print_json({"secrets": number})
        return
    click.echo(f"ids are signed with secret {number} from now on; those that older ones have signed stay valid")


@store_command.command("tombstones")
@list_limit("Most to list.")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON for each.")
def tombstones_command(*, limit: int, as_json: bool) -> None:
    """List the erased sessions, the newest first: when, by whom and why, with a hash of the erased data (--json)."""
    for stone in with_store(lambda store: store.tombstones(limit=limit)):
        if as_json:
            print_json(stone)
            continue
        by = f" by {stone.erased_by}" if stone.erased_by else ""
        state = "" if stone.finished_at is not None else "; it was interrupted: 'perdure store gc' finishes it"
        click.echo(f"{stone.erased_at:%Y-%m-%d %H:%M}  {stone.session}  {stone.reason}{by}  {stone.id}{state}")


@store_command.command("retention")
@click.option("--dry-run", is_flag=True, help="Sweep nothing, and count what a sweep would delete.")
@click.option("--now", is_flag=True, help="Sweep now, on a worker, and count what was deleted.")
@click.option("--every", metavar="TIME", help="Change how often the schedule perdure-retention sweeps, e.g. 1h or 1d.")
@click.option("--off", is_flag=True, help="Stop sweeping: remove the schedule perdure-retention.")
@as_json
def retention_command(*, dry_run: bool, now: bool, every: str | None, off: bool, as_json: bool) -> None:
    """Show how long the sessions of each agent are kept and how often old data is swept (deleted); or sweep.

    Each agent sets its own times: Agent(retention=Retention(events="30d", …)). A worker with such an agent makes the
    Temporal schedule perdure-retention when it starts.
    """
    if sum((dry_run, now, every is not None, off)) > 1:
        raise MistakeError("--dry-run, --now, --every and --off exclude each other; give only one of them")
    if dry_run or now:
        swept = with_client(lambda client: _sweep(client, dry_run=dry_run))
        _show_swept(swept, dry_run=dry_run, as_json=as_json)
        return
    if every is not None or off:
        with_client(lambda client: _schedule(client, None if every is None else _read_interval(every)))
    interval, agents = with_client(_describe)
    if as_json:
        kept = {name: retention.model_dump(mode="json") for name, retention in agents.items()}
        print_json({"every_seconds": None if interval is None else interval.total_seconds(), "agents": kept})
        return
    click.echo("schedule  none: nothing is swept" if interval is None else f"schedule  every {interval}")
    for name, retention in agents.items():
        times = [f"{what} {value}" for what, value in retention if value not in {None, False}]
        click.echo(f"{name}  {', '.join(times)}")


def _read_interval(text: str) -> timedelta:
    found = read_duration(text)
    if not isinstance(found, timedelta) or found < SHORTEST_INTERVAL:
        raise MistakeError(f"--every {text!r} is no interval of at least a minute; write for example 1h or 1d")
    return found


async def _sweep(client: Client, *, dry_run: bool) -> Swept:
    store = await client.store()
    return await sweep_now(client.temporal, client.settings.task_queue, store.id, dry_run=dry_run)


async def _schedule(client: Client, every: timedelta | None) -> None:
    store = await client.store()
    await schedule_sweeps(client.temporal, client.settings.task_queue, store, every)


async def _describe(client: Client) -> tuple[timedelta | None, dict[str, Retention]]:
    store = await client.store()
    interval = await find_interval(client.temporal, client.settings.task_queue)
    return interval, await store.retentions()


def _show_swept(swept: Swept, *, dry_run: bool, as_json: bool) -> None:
    if as_json:
        print_json({"dry_run": dry_run, **swept.model_dump(mode="json", exclude={"going_on"})})
        return
    verb = "would be" if dry_run else "were"
    click.echo(
        f"{swept.erased} sessions {verb} erased, {swept.trimmed} trimmed; "
        f"{swept.events} events and {swept.artifacts} artifacts {verb} deleted"
    )
    for kept in swept.kept:
        click.echo(f"kept {kept.session}: {kept.why}")
    if swept.kept_sessions > len(swept.kept):
        click.echo(f"kept {swept.kept_sessions - len(swept.kept)} more")


async def ask_sweeps(client: Client, now: datetime | None = None) -> Finding | None:
    """When the last sweep was, and whether sweeps are missing; None if no agent has a retention."""
    async with open_store(client.settings) as store:
        agents = sorted(await store.retentions())
    if not agents:
        return None
    check, sweeps = "retention", await read_sweeps(client.temporal, client.settings.task_queue)
    if sweeps.every is None:
        text = f"no schedule sweeps, so nothing old is deleted; these agents have a retention: {', '.join(agents)}"
        return Finding(check=check, ok=False, text=text, fix="run 'perdure store retention --every 1h'")
    last = "there was none yet" if sweeps.last is None else f"the last one ended {sweeps.last:%Y-%m-%d %H:%M} UTC"
    text = f"a sweep is due every {sweeps.every}; {last}"
    if sweeps.is_late(now or datetime.now(UTC)):
        fix = "see whether the schedule perdure-retention is paused, and run 'perdure store retention --now'"
        return Finding(check=check, ok=False, text=text, fix=fix)
    return Finding(check=check, ok=True, text=text)
