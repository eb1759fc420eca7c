"""``perdure list`` and ``perdure agents``: the sessions, newest first, and the agents that workers have registered."""

import asyncio
import contextlib
import difflib
from collections import Counter
from datetime import UTC, datetime

import click

from perdure.cli.connection import with_store, with_views
from perdure.cli.options import When
from perdure.cli.output import print_json, print_table, show
from perdure.cli.render import Line, Tone, clean, cost_of, duration, money, to_one_line
from perdure.client import Cause, ClientError
from perdure.client.agent_versions import AgentVersion, find_versions
from perdure.client.connect import connect
from perdure.client.read import Listed
from perdure.client.session_lists import read_overview
from perdure.client.worker_stores import PATIENCE_SECONDS, WorkerStore, worker_stores
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.errors import CUSTOM_CODE, ReasonCode
from perdure.contracts.turns import RunState, StopReason
from perdure.contracts.waits import STUCK
from perdure.settings import load_settings
from perdure.store import Store
from perdure.store.agents import digests_by_name
from perdure.store.records import QueuedTurn, SessionFilter, TurnGlance

SHOWN_DIGITS = 8
"""Digits of a definition's digest that tell versions apart for people."""

HEADS = ("session", "turn", "state", "steps", "cost", "took", "began", "agent", "prompt")

STATES = [state.value for state in RunState if state is not RunState.PAUSED]
"""States to list by. That a running turn is paused stands in its line: Temporal knows, and the store does not."""


@click.command("list")
@click.option("--state", type=click.Choice(STATES), help="Only sessions in this state.")
@click.option(
    "--stop-reason",
    type=click.Choice([reason.value for reason in StopReason]),
    help="Only sessions whose last turn ended with this stop reason.",
)
@click.option("--reason-code", metavar="CODE", help="Only sessions whose last turn ended with this reason code.")
@click.option("--agent", metavar="A", help="Only sessions whose last turn was of this agent.")
@click.option(
    "--since",
    type=When(),
    metavar="WHEN",
    help="Only sessions whose last turn began since: 12h, 3d, 2026-11-21 or 2026-11-21T14:30 (local time).",
)
@click.option("--stuck", is_flag=True, help="Only turns that stand still until somebody acts, with the action.")
@click.option(
    "--needs-version", is_flag=True, help="Only running turns that need a version of their agent that no worker has."
)
@click.option("--caller", metavar="SESSION", help="Only the delegates of this session.")
@click.option("--no-delegates", is_flag=True, help="Leave out the sessions of delegates.")
@click.option(
    "--limit", type=click.IntRange(min=1), default=50, show_default=True, metavar="N", help="Most sessions to list."
)
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON for each session.")
def list_command(
    *,
    state: str | None,
    stop_reason: str | None,
    reason_code: str | None,
    agent: str | None,
    since: datetime | None,
    stuck: bool,
    needs_version: bool,
    caller: str | None,
    no_delegates: bool,
    limit: int,
    as_json: bool,
) -> None:
    """List the sessions by the start of their last turn, the newest first. A session must match all given filters.

    The table shows the last turn of each session: its state or how it ended, steps, cost, duration and prompt.

    With --json each line has session, tenant, agent, turn (the last), created_at, updated_at, state, job_status (in the
    words of Perstack, see docs/coming-from.md), started_at and ended_at of that turn, and, null until it has ended,
    stop_reason, reason_code, error, stopped_by, steps and cost_usd.

    waits_for says why a running turn stands still: cause, text, advice, since, next_at and missing (the version that no
    worker has); it is null if the turn goes on. Temporal is asked about the first 20 running turns of the list, or,
    with --stuck and --needs-version, about the 500 that began last.

    If Temporal has ended the workflow of an open turn, the turn is listed as ended by error (runtime.turn_closed),
    without steps and cost. A turn that no worker has opened yet has only session, state and waits_for; a session whose
    first turn is queued also has its agent.
    """
    check_code(reason_code)
    only = frozenset({Cause.VERSION}) if needs_version else STUCK if stuck else None

    wanted = SessionFilter(
        agent=agent,
        state=RunState(state) if state is not None else None,
        stop_reason=StopReason(stop_reason) if stop_reason is not None else None,
        reason_code=reason_code,
        since=since,
        caller=caller,
        delegates=not no_delegates,
    )
    found = with_views(lambda views: read_overview(views, wanted, limit, only))
    if found.trouble is not None:
        click.echo(clean(f"perdure: whether open turns still run is not known: {found.trouble}"), err=True)
    if as_json:
        for view in (*found.queued, *found.listed, *found.unopened):
            wait = view.waits_for
            print_json({**view.fields, "waits_for": wait.model_dump(mode="json") if wait is not None else None})
        return
    now = datetime.now(UTC)
    if found.queued or found.listed:
        rows = [_row_of_queued(view.queued, now) for view in found.queued if view.queued is not None]
        rows += [_row(view.opened, view.glance, now) for view in found.listed if view.opened is not None]
        tones = [Tone.BAD if row[2].startswith(StopReason.ERROR) else Tone.PLAIN for row in rows]
        print_table(HEADS, rows, tones)
    for view in (*found.queued, *found.listed, *found.unopened):
        if (wait := view.waits_for) is not None:
            note = "" if view.opened or view.queued else "not opened yet, "
            show(Line(f"{view.session}: {note}{wait.sentence(now)}", Tone.BAD if wait.is_stuck else Tone.WARNING))
    if not (found.queued or found.listed or found.unopened):
        filtered = only or any(value is not None for value in (state, stop_reason, reason_code, agent, since, caller))
        click.echo("no such sessions" if filtered else "no sessions; start one with 'perdure run AGENT PROMPT'")


def check_code(code: str | None) -> None:
    """A misspelt code would find nothing; codes of exceptions and of agents' own providers are made at run time."""
    if code is None or code in set(ReasonCode) or code.startswith("exception."):
        return
    near = difflib.get_close_matches(code, set(ReasonCode), n=1, cutoff=0.8)
    if near or not CUSTOM_CODE.fullmatch(code):
        meant = f", did you mean '{near[0]}'?" if near else ";"
        raise click.UsageError(f"there is no reason code {code!r}{meant} 'perdure errors' lists them")


def _row(opened: Listed, glance: TurnGlance, now: datetime) -> tuple[str, ...]:
    session, last = opened
    ended: str = last.result.stop_reason if last.result is not None else session.state
    if last.result is not None and last.result.reason_code is not None:
        ended = f"{ended} ({last.result.reason_code})"
    if session.queued:
        ended = RunState.QUEUED
    elif last.closure is not None:
        ended = f"{StopReason.ERROR} ({ReasonCode.RUNTIME_TURN_CLOSED}: {last.closure.how})"
    steps = str(glance.steps if last.result is None else last.result.steps)
    cost = (money(glance.cost_usd) if glance.cost_usd else "") if last.result is None else cost_of(last.result)
    took = duration(((last.ended_at or now) - last.started_at).total_seconds())
    when = f"{last.started_at.astimezone():%Y-%m-%d %H:%M}"
    return (session.session, str(session.turn), ended, steps, cost, took, when, session.agent, glance.prompt)


def _row_of_queued(turn: QueuedTurn, now: datetime) -> tuple[str, ...]:
    waited = duration((now - turn.queued_at).total_seconds())
    return (turn.session, str(turn.turn), RunState.QUEUED, "", "", waited, "", turn.agent, "")


@click.command("agents")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON for each agent, and each version of it.")
def agents_command(*, as_json: bool) -> None:
    """List the agents that workers have registered in the store.

    While workers have several versions of an agent, as during a rollout, each version is listed, with its workers.
    """

    async def main(store: Store) -> list[tuple[AgentVersion, AgentDefinition]]:
        agents, kept = await store.agents(), await store.read("digests_by_name", digests_by_name)
        told = [worker for worker in await _ask_workers() if worker.store == store.id]
        found = find_versions(agents, kept, told)
        return [(version, await store.definition(version.definition)) for version in found]

    versions = with_store(main)
    several = {name for name, count in Counter(version.agent.name for version, _ in versions).items() if count > 1}
    for version, definition in versions:
        tools = [tool.name for tool in definition.tools]
        if as_json:
            told = {"model": definition.model, "description": definition.description, "tools": tools}
            own = {**told, "definition": version.definition, "label": definition.label, "tags": list(definition.tags)}
            where = {"workers": version.workers, "builds": version.builds}
            print_json({**version.agent.model_dump(mode="json"), **own, **where})
            continue
        label = f" ({clean(definition.label)})" if definition.label else ""
        number = f"version {version.definition[:SHOWN_DIGITS]} · " if definition.name in several else ""
        show(Line(f"{definition.name}{label} · {definition.model} · {number}{_where(version)}", Tone.HEAD))
        if definition.description:
            show(Line(f"  {to_one_line(definition.description)}"))
        if definition.tags:
            show(Line(f"  tags: {clean(', '.join(definition.tags))}", Tone.QUIET))
        show(Line(f"  tools: {', '.join(tools) or 'none'}", Tone.QUIET))
    if not versions and not as_json:
        click.echo("no agents yet; start a worker with 'perdure dev --agents MODULE'")


def _where(version: AgentVersion) -> str:
    """The workers that have a version, or when one was seen last."""
    if version.workers:
        count = f"{len(version.workers)} worker{'s' if len(version.workers) > 1 else ''}"
        return f"{count} of build {clean(', '.join(version.builds))}" if version.builds else count
    seen = f"seen {version.agent.seen_at:%Y-%m-%d %H:%M}"
    return seen if version.workers is None else f"{seen}, and no worker has it now"


async def _ask_workers() -> list[WorkerStore]:
    """Ask the workers who they are; nobody if the server does not answer at once."""
    with contextlib.suppress(ClientError, TimeoutError):
        async with asyncio.timeout(PATIENCE_SECONDS):
            temporal = await connect()
        return await worker_stores(temporal, load_settings().task_queue)
    return []
