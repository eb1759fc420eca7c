"""``perdure schedule``: turns that the clock starts, again and again or once."""

from datetime import UTC, datetime
from functools import partial
from typing import Any, get_args
from zoneinfo import ZoneInfo

import click

from perdure.cli.connection import with_client
from perdure.cli.errors import MistakeError
from perdure.cli.options import as_json, list_limit
from perdure.cli.output import print_json, print_list
from perdure.cli.render import clean, duration
from perdure.contracts.schedules import Schedule, ScheduleRun
from perdure.contracts.sends import WhenBusy

SHOWN = 5
"""Next runs that are listed."""


@click.group("schedule")
def schedule_command() -> None:
    """Manage schedules: turns that the clock starts, in a new session each time or in an existing one."""


schedule_argument = click.argument("schedule", metavar="ID")
tenant = click.option("--tenant", default="", metavar="T", help="Tenant of the schedule. [default: none]")

OPTIONS = (
    click.option(
        "--cron", metavar="CRON", help="Run repeatedly: five cron fields, such as '0 7 * * 1-5' for workdays at 7:00."
    ),
    click.option(
        "--at", metavar="WHEN", help="Run once, at this time: 2026-12-24T18:00 in --timezone, or with offset."
    ),
    click.option("--timezone", metavar="ZONE", help="Name in the tz database, such as Europe/Berlin. [default: UTC]"),
    click.option("--agent", metavar="A", help="Start a new session of this agent for each run."),
    click.option("--session", metavar="SESSION", help="Send PROMPT to this session in each run, instead of --agent."),
    click.option(
        "--when-busy",
        type=click.Choice(get_args(WhenBusy)),
        help="What a run does while the run before it or the session is busy. queue (default): wait; reject: skip this "
        "run. With --session also steer, interrupt or rollback, as in 'perdure send'.",
    ),
    click.option("--model", metavar="NAME", help="With --agent: model of the turns, as provider/model."),
    click.option("--max-steps", type=int, metavar="N", help="With --agent: step limit of each turn."),
    click.option("--max-cost-usd", type=float, metavar="X", help="With --agent: most US dollars of each turn."),
    click.option(
        "--priority",
        type=click.IntRange(1, 5),
        metavar="N",
        help="From 1, the most urgent, to 5: where work waits for workers, a lower number goes first. [default: 3]",
    ),
    click.option("--jitter", type=float, metavar="SECONDS", help="Start each run up to this many seconds later."),
    click.option(
        "--catchup",
        type=float,
        metavar="SECONDS",
        help="Make up for runs that the Temporal server missed by less than this. [default: 3600; 86400 with --at]",
    ),
    click.option("--note", metavar="TEXT", help="A note for people."),
)
"""Options of both ``add`` and ``update``."""


def options(command: Any) -> Any:  # noqa: ANN401 - click's decorators are untyped
    """The command with the options of a schedule."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


@schedule_command.command("add")
@schedule_argument
@click.argument("prompt")
@options
@click.option("--paused", is_flag=True, help="Add the schedule paused.")
@tenant
@as_json
def add_command(*, schedule: str, prompt: str, tenant: str, as_json: bool, **given: Any) -> None:  # noqa: ANN401
    """Add schedule ID, which sends PROMPT: at the times of --cron or --at, to an --agent or a --session.

    Example: perdure schedule add report 'Write the daily report.' --agent writer --cron '0 7 * * 1-5'
    """
    fields = _fields(given) | {"prompt": prompt}
    _print(with_client(lambda client: client.schedules.of(tenant).add(schedule, **fields)), as_json=as_json)


@schedule_command.command("update")
@schedule_argument
@click.option("--prompt", metavar="TEXT", help="The message of each run.")
@options
@tenant
@as_json
def update_command(*, schedule: str, tenant: str, as_json: bool, **given: Any) -> None:  # noqa: ANN401
    """Change the given options of schedule ID; the others stay."""
    fields = _fields(given)
    if not fields:
        raise MistakeError("no option says what to change; see 'perdure schedule update --help'")
    for name, other in (("cron", "at"), ("at", "cron"), ("agent", "session"), ("session", "agent")):
        if name in fields:
            fields.setdefault(other, None)
    _print(with_client(lambda client: client.schedules.of(tenant).update(schedule, **fields)), as_json=as_json)


def _fields(given: dict[str, Any]) -> dict[str, object]:
    """Given options, by the names of a schedule's fields."""
    fields: dict[str, object] = {
        name: value for name, value in given.items() if value is not None and value is not False
    }
    cost = fields.pop("max_cost_usd", None)
    if cost is not None:
        fields["budgets"] = {"cost_usd": cost}
    return fields


@schedule_command.command("list")
@tenant
@as_json
def list_command(*, tenant: str, as_json: bool) -> None:
    """List the schedules of a tenant, with when each runs next."""
    found = with_client(lambda client: client.schedules.of(tenant).list())
    none = "there are no schedules; add one with 'perdure schedule add ID PROMPT'"
    print_list(found, ("id", "when", "next in", "for", "state", "prompt"), _row, none, as_json=as_json)


@schedule_command.command("show")
@schedule_argument
@tenant
@as_json
def show_command(*, schedule: str, tenant: str, as_json: bool) -> None:
    """Show schedule ID with its next runs."""
    _print(with_client(lambda client: client.schedules.of(tenant).get(schedule)), as_json=as_json)


@schedule_command.command("pause")
@schedule_argument
@click.option("--note", default="", metavar="TEXT", help="Why, shown as the reason.")
@tenant
def pause_command(*, schedule: str, note: str, tenant: str) -> None:
    """Pause schedule ID: it starts no run until 'perdure schedule unpause ID'."""
    with_client(lambda client: client.schedules.of(tenant).pause(schedule, note))
    click.echo(f"{schedule} is paused")


@schedule_command.command("unpause")
@schedule_argument
@click.option("--note", default="", metavar="TEXT", help="Why, shown as the reason.")
@tenant
def unpause_command(*, schedule: str, note: str, tenant: str) -> None:
    """Let a paused schedule ID start runs again."""
    found = with_client(lambda client: client.schedules.of(tenant).unpause(schedule, note))
    following = f"; next at {_local(found, found.next_at[0])}" if found.next_at else ""
    click.echo(f"{schedule} goes on{following}")


@schedule_command.command("trigger")
@schedule_argument
@tenant
def trigger_command(*, schedule: str, tenant: str) -> None:
    """Start a run of schedule ID now, even while it is paused."""
    with_client(lambda client: client.schedules.of(tenant).trigger(schedule))
    click.echo(f"{schedule} runs; 'perdure schedule runs {schedule}' lists what it has started")


@schedule_command.command("remove")
@schedule_argument
@tenant
def remove_command(*, schedule: str, tenant: str) -> None:
    """Remove schedule ID; turns that it has started go on."""
    with_client(lambda client: client.schedules.of(tenant).remove(schedule))
    click.echo(f"{schedule} is removed")


@schedule_command.command("runs")
@schedule_argument
@list_limit("Most runs to list.")
@tenant
@as_json
def runs_command(*, schedule: str, limit: int, tenant: str, as_json: bool) -> None:
    """List the runs of schedule ID, the newest first, as long as Temporal keeps them."""
    found = with_client(lambda client: client.schedules.of(tenant).runs(schedule, limit=limit))
    none = f"{schedule} has started no run yet, or Temporal no longer keeps it"
    row = partial(_run_row, now=datetime.now(UTC))
    print_list(found, ("ago", "session", "turn", "state", "error"), row, none, as_json=as_json)


def _print(schedule: Schedule, *, as_json: bool) -> None:
    if as_json:
        print_json(schedule)
        return
    who = f"a new session of {schedule.agent}" if schedule.agent else f"session {schedule.session}"
    click.echo(clean(f"{schedule.id}: {_when(schedule)}, {who}, {_state(schedule)}"))
    click.echo(clean(f"  {schedule.prompt[:200]}"))
    for moment in schedule.next_at[:SHOWN]:
        click.echo(f"  {_local(schedule, moment)}")


def _local(schedule: Schedule, moment: datetime) -> str:
    """A time as the schedule's own zone has it."""
    return moment.astimezone(ZoneInfo(schedule.timezone)).isoformat(timespec="seconds")


def _when(schedule: Schedule) -> str:
    if schedule.at is not None:
        return f"at {schedule.at.isoformat(timespec='minutes')} {schedule.timezone}"
    return f"{schedule.cron} {schedule.timezone}"


def _state(schedule: Schedule) -> str:
    if schedule.paused:
        why = schedule.reason or schedule.note
        return f"paused ({why})" if why else "paused"
    return "active" if schedule.next_at else "over"


def _row(schedule: Schedule) -> tuple[str, ...]:
    wait = ""
    if schedule.next_at and not schedule.paused:
        wait = duration(max(0.0, (schedule.next_at[0] - datetime.now(UTC)).total_seconds()))
    who = schedule.agent or schedule.session or ""
    return schedule.id, clean(_when(schedule)), wait, clean(who), clean(_state(schedule)), clean(schedule.prompt)


def _run_row(run: ScheduleRun, now: datetime) -> tuple[str, ...]:
    state = run.stop_reason or run.state
    ago = duration((now - run.started_at).total_seconds())
    return ago, run.session, str(run.turn or ""), state, clean(run.error or "")
