"""``perdure list``: the sessions."""

from collections.abc import Sequence

import click

from perdure.cli.connection import opened_store, run
from perdure.cli.live import print_json, show
from perdure.cli.render import Line, Tone
from perdure.contracts.turns import RunState, StopReason
from perdure.contracts.values import JsonValue
from perdure.store import SessionRecord, TurnRecord


@click.command("list")
@click.option("--state", type=click.Choice([state.value for state in RunState]), help="Only sessions in this state.")
@click.option(
    "--stop-reason",
    type=click.Choice([reason.value for reason in StopReason]),
    help="Only sessions whose last turn ended so.",
)
@click.option("--agent", metavar="A", help="Only sessions of this agent.")
@click.option(
    "--limit", type=click.IntRange(min=1), default=50, show_default=True, metavar="N", help="At most so many."
)
@click.option("--json", "as_json", is_flag=True, help="One session a line, as JSON.")
def command(*, state: str | None, stop_reason: str | None, agent: str | None, limit: int, as_json: bool) -> None:
    """List the sessions, the ones that changed last first."""

    async def main() -> Sequence[tuple[SessionRecord, TurnRecord]]:
        async with opened_store() as store:
            return await store.sessions(
                agent=agent,
                state=RunState(state) if state is not None else None,
                stop_reason=StopReason(stop_reason) if stop_reason is not None else None,
                limit=limit,
            )

    sessions = run(main())
    for session, last in sessions:
        if as_json:
            print_json(_body(session, last))
        else:
            show(_line(session, last))
    if not sessions and not as_json:
        click.echo("no sessions; start one with 'perdure run AGENT PROMPT'")


def _body(session: SessionRecord, last: TurnRecord) -> dict[str, JsonValue]:
    result = last.result
    return {
        **session.model_dump(mode="json", include={"session", "agent", "turn", "created_at", "updated_at"}),
        "state": RunState.RUNNING if session.open_turn is not None else RunState.ENDED,
        "stop_reason": result.stop_reason if result is not None else None,
        "reason_code": result.reason_code if result is not None else None,
    }


def _line(session: SessionRecord, last: TurnRecord) -> Line:
    ended = last.result.stop_reason if last.result is not None else RunState.RUNNING
    tone = Tone.BAD if ended == StopReason.ERROR else Tone.PLAIN
    when = f"{session.updated_at:%Y-%m-%d %H:%M}"
    return Line(f"{session.session} · {session.agent} · turn {session.turn} · {ended} · {when}", tone)
