"""``perdure list`` and ``perdure agents``: the sessions, newest first, and the agents that workers have registered."""

import contextlib
import difflib
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import click

from perdure.cli.connection import with_store
from perdure.cli.live import print_json, print_table, show
from perdure.cli.render import Line, Tone, clean, cost_of, duration, to_one_line
from perdure.cli.waits import MOST, list_running_turns, waits_of
from perdure.client import Cause, ClientError, TurnWait
from perdure.client.causes import wait_for_person
from perdure.client.connect import connect
from perdure.client.read import SESSION_FIELDS, Listed, closures, is_listed, list_sessions, session_fields
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.errors import CUSTOM_CODE, ReasonCode
from perdure.contracts.input_requests import OpenRequest
from perdure.contracts.turns import RunState, StopReason
from perdure.contracts.values import JsonValue
from perdure.contracts.waits import STUCK
from perdure.settings import load_settings
from perdure.store import SessionRecord, Store, TurnRecord
from perdure.store.records import Closure, QueuedTurn, RegisteredAgent, SessionFilter, TurnGlance

HEADS = ("session", "turn", "state", "steps", "cost", "took", "began", "agent", "prompt")

STATES = [state.value for state in RunState if state is not RunState.PAUSED]
"""States to list by. That a running turn is paused stands in its line: Temporal knows, and the store does not."""

MOST_LOOKED_AT = 500
"""Running turns that the server is asked about for ``--stuck`` and ``--needs-version``."""


class Since(click.ParamType[datetime]):
    """A moment, or so long ago."""

    name = "when"
    _AGO = re.compile(r"(\d{1,6})([smhdw])")
    _UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}  # noqa: RUF012

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """Read ``30m``, ``12h``, ``3d``, or an ISO date or time, which is local unless it says otherwise."""
        try:
            if (ago := self._AGO.fullmatch(str(value))) is not None:
                return datetime.now(UTC) - timedelta(**{self._UNITS[ago[2]]: int(ago[1])})
            return datetime.fromisoformat(str(value)).astimezone()
        except (ValueError, OverflowError):
            self.fail(
                f"{value!r} is no time; give for example 30m, 12h, 3d, 2026-11-21 or 2026-11-21T14:30", param, ctx
            )


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
    type=Since(),
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
def list_command(  # noqa: PLR0913  # one for each option of the command line
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

    With --json each line has session, agent, turn (the last), created_at, updated_at, state, job_status (in the words
    of Perstack, see docs/coming-from.md), started_at and ended_at of that turn, and, null until it has ended,
    stop_reason, reason_code, error, stopped_by, steps and cost_usd.

    waits_for says why a running turn stands still: cause, text, advice, since, next_at and missing (the version that no
    worker has); it is null if the turn goes on. Temporal is asked about the first 20 running turns of the list, or,
    with --stuck and --needs-version, about the 500 that began last.

    If Temporal has ended the workflow of an open turn, the turn is listed as ended by error (runtime.turn_closed),
    without steps and cost. A turn that no worker has opened yet has only session, state and waits_for; a session whose
    first turn is queued also has its agent.
    """
    _check_code(reason_code)
    only = frozenset({Cause.VERSION}) if needs_version else STUCK if stuck else None

    async def main(store: Store) -> Found:
        wanted = SessionFilter(
            agent=agent,
            state=RunState(state) if state is not None else RunState.RUNNING if only is not None else None,
            stop_reason=StopReason(stop_reason) if stop_reason is not None else None,
            reason_code=reason_code,
            since=since,
            caller=caller,
            delegates=not no_delegates,
        )
        found = await list_sessions(store, _closures, limit=limit if only is None else MOST_LOOKED_AT, **wanted)
        every = await store.queued_turns()
        known = {session.session for session, _ in found}
        queued = [turn for turn in every if turn.session not in known and is_listed(turn, wanted)][:limit]
        waits = await _waits(store, found, only, [turn.session for turn in queued])
        if only is not None:
            found = [row for row in found if row[0].session in waits][:limit]
        is_any = state in {None, RunState.RUNNING} and not (stop_reason or reason_code or agent or since or caller)
        unopened: Mapping[str, TurnWait] = await _find_unopened(store, only, every) if is_any else {}
        turns = {session.session: last.turn for session, last in found}
        return Found(found, {} if as_json else await store.glances(turns), waits, unopened, queued)

    sessions, glances, waits, unopened, queued = with_store(main)
    for turn in queued if as_json else ():
        print_json(_body_of_unopened(turn.session, RunState.QUEUED, waits.get(turn.session), turn.agent))
    for session, last in sessions if as_json else ():
        wait = waits.get(session.session)
        print_json({**session_fields(session, last), "waits_for": wait.model_dump(mode="json") if wait else None})
    for name, wait in unopened.items() if as_json else ():
        print_json(_body_of_unopened(name, RunState.RUNNING, wait))
    if (sessions or queued) and not as_json:
        now, nothing = datetime.now(UTC), TurnGlance()
        rows = [_row_of_queued(turn, now) for turn in queued]
        rows += [_row(session, last, glances.get(session.session, nothing), now) for session, last in sessions]
        tones = [Tone.BAD if row[2].startswith(StopReason.ERROR) else Tone.PLAIN for row in rows]
        print_table(HEADS, rows, tones)
        for name, wait in waits.items():
            show(Line(f"{name}: {wait.sentence(now)}", _tone(wait)))
    for name, wait in unopened.items() if not as_json else ():
        show(Line(f"{name}: not opened yet, {wait.sentence(datetime.now(UTC))}", _tone(wait)))
    if not (sessions or unopened or queued or as_json):
        filtered = only or any(value is not None for value in (state, stop_reason, reason_code, agent, since, caller))
        click.echo("no such sessions" if filtered else "no sessions; start one with 'perdure run AGENT PROMPT'")


class Found(NamedTuple):
    """What is listed.

    Attributes:
        glances: The steps and prompts of the last turns.
        waits: Why turns stand still, by their sessions.
        unopened: The same of turns that no worker has opened yet: the store knows nothing of them.
        queued: Turns that wait for a slot, of sessions that are not among these.
    """

    sessions: Sequence[Listed]
    glances: Mapping[str, TurnGlance]
    waits: Mapping[str, TurnWait]
    unopened: Mapping[str, TurnWait]
    queued: Sequence[QueuedTurn]


def _tone(wait: TurnWait) -> Tone:
    return Tone.BAD if wait.is_stuck else Tone.WARNING


async def _closures(begun: Mapping[str, datetime]) -> Mapping[str, Closure]:
    """Which turns Temporal has ended; the server is reached for that alone, and the list is there without it."""
    try:
        return await closures(await connect(), begun)
    except ClientError as error:
        click.echo(clean(f"perdure: whether open turns still run is not known: {error}"), err=True)
        return {}


def _check_code(code: str | None) -> None:
    """A misspelt code would find nothing; codes of exceptions and of agents' own providers are made at run time."""
    if code is None or code in set(ReasonCode) or code.startswith("exception."):
        return
    near = difflib.get_close_matches(code, set(ReasonCode), n=1, cutoff=0.8)
    if near or not CUSTOM_CODE.fullmatch(code):
        meant = f", did you mean '{near[0]}'?" if near else ";"
        raise click.UsageError(f"there is no reason code {code!r}{meant} 'perdure errors' lists them")


def _body_of_unopened(
    session: str, state: RunState, wait: TurnWait | None, agent: str | None = None
) -> dict[str, JsonValue]:
    waits_for: JsonValue = wait.model_dump(mode="json") if wait is not None else None
    named: dict[str, JsonValue] = {"session": session, "agent": agent, "state": state, "waits_for": waits_for}
    return {**dict.fromkeys(SESSION_FIELDS), **named}


async def _waits(
    store: Store, found: Sequence[Listed], only: frozenset[Cause] | None, queued: Sequence[str]
) -> Mapping[str, TurnWait]:
    """Why turns stand still: the first of a list and those that ask people, or all that do for these causes."""
    open_turns = [session for session, last in found if not last.closure or session.queued]
    states = {RunState.RUNNING, RunState.QUEUED}
    running = [*queued, *(session.session for session in open_turns if session.state in states)]
    if only is not None:
        return {name: wait for name, wait in (await waits_of(running)).items() if wait.cause in only}
    asking = {session.session for session in open_turns if session.state is RunState.WAITING_FOR_INPUT}
    asked: dict[str, list[OpenRequest]] = {}
    for request in await store.open_requests() if asking else ():
        if request.session in asking:
            asked.setdefault(request.session, []).append(request)
    people = {
        name: wait_for_person(name, those, min(person_request.asked_at for person_request in those))
        for name, those in asked.items()
    }
    with contextlib.suppress(ClientError):  # which the look for closures has told
        return {**await waits_of(running[:MOST]), **people}
    return people


async def _find_unopened(
    store: Store, only: frozenset[Cause] | None, queued: Sequence[QueuedTurn]
) -> Mapping[str, TurnWait]:
    """Why running turns that the store knows nothing of stand still."""
    with contextlib.suppress(ClientError):  # as above
        known = {*await store.open_runs(), *(turn.session for turn in queued)}
        running = await list_running_turns(await connect(), load_settings().task_queue)
        waits = await waits_of([name for name in running if name not in known][:MOST])
        return {name: wait for name, wait in waits.items() if only is None or wait.cause in only}
    return {}


def _row(session: SessionRecord, last: TurnRecord, glance: TurnGlance, now: datetime) -> tuple[str, ...]:
    ended: str = last.result.stop_reason if last.result is not None else session.state
    if last.result is not None and last.result.reason_code is not None:
        ended = f"{ended} ({last.result.reason_code})"
    if session.queued:
        ended = RunState.QUEUED
    elif last.closure is not None:
        ended = f"{StopReason.ERROR} ({ReasonCode.RUNTIME_TURN_CLOSED}: {last.closure.how})"
    steps = str(glance.steps if last.result is None else last.result.steps)
    cost = "" if last.result is None else cost_of(last.result)
    took = duration(((last.ended_at or now) - last.started_at).total_seconds())
    when = f"{last.started_at.astimezone():%Y-%m-%d %H:%M}"
    return (session.session, str(session.turn), ended, steps, cost, took, when, session.agent, glance.prompt)


def _row_of_queued(turn: QueuedTurn, now: datetime) -> tuple[str, ...]:
    waited = duration((now - turn.queued_at).total_seconds())
    return (turn.session, str(turn.turn), RunState.QUEUED, "", "", waited, "", turn.agent, "")


@click.command("agents")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON for each agent.")
def agents_command(*, as_json: bool) -> None:
    """List the agents that workers have registered in the store."""

    async def main(store: Store) -> list[tuple[RegisteredAgent, AgentDefinition]]:
        return [(agent, await store.definition(agent.definition)) for agent in await store.agents()]

    agents = with_store(main)
    for agent, definition in agents:
        if as_json:
            called = {"label": definition.label, "tags": list(definition.tags)}
            print_json({**agent.model_dump(mode="json"), **called})
            continue
        label = f" ({clean(definition.label)})" if definition.label else ""
        show(Line(f"{agent.name}{label} · {agent.model} · seen {agent.seen_at:%Y-%m-%d %H:%M}", Tone.HEAD))
        if agent.description:
            show(Line(f"  {to_one_line(agent.description)}"))
        if definition.tags:
            show(Line(f"  tags: {clean(', '.join(definition.tags))}", Tone.QUIET))
        show(Line(f"  tools: {', '.join(agent.tools) or 'none'}", Tone.QUIET))
    if not agents and not as_json:
        click.echo("no agents yet; start a worker with 'perdure dev --agents MODULE'")
