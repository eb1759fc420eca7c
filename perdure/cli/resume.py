"""``perdure resume``: one session goes on, or all of them that an outage has ended."""

from datetime import datetime
from typing import Unpack

import click
from click.core import ParameterSource

from perdure.cli.connection import with_client
from perdure.cli.errors import ExitCode, MistakeError
from perdure.cli.list import check_code
from perdure.cli.options import When
from perdure.cli.output import print_list
from perdure.cli.prompts import PROMPT, read_attached
from perdure.cli.run import TAKING, Taken, add, lead, options_of
from perdure.client import ResumeOutcome
from perdure.client.resumes import PER_SECOND, EndedFilter

_FILTERS = (
    click.option("--all", "every", is_flag=True, help="Resume all sessions whose last turns ended as the filters say."),
    click.option("--dry-run", is_flag=True, help="With --all: resume nothing, and list what would be resumed."),
    click.option(
        "--reason-code", metavar="CODE", help="With --all: only turns that ended with this code. [default: any error]"
    ),
    click.option("--agent", metavar="A", help="With --all: only turns of this agent."),
    click.option("--tenant", metavar="T", help="With --all: only sessions of this tenant."),
    click.option("--since", type=When(), metavar="WHEN", help="With --all: only turns that began since: 12h, 3d, …"),
    click.option(
        "--per-second",
        type=click.FloatRange(min=0, min_open=True),
        default=PER_SECOND,
        show_default=True,
        metavar="N",
        help="With --all: how many turns begin in a second at most.",
    ),
)
_OF_ALL = ("dry_run", "reason_code", "agent", "tenant", "since", "per_second")


@click.command("resume")
@click.argument("session", required=False)
@click.argument("prompt", default="", type=PROMPT)
@add(*TAKING, *_FILTERS)
@click.pass_context
def resume_command(
    ctx: click.Context,
    *,
    session: str | None,
    prompt: str,
    every: bool,
    dry_run: bool,
    reason_code: str | None,
    agent: str | None,
    tenant: str | None,
    since: datetime | None,
    per_second: float,
    **told: Unpack[Taken],
) -> None:
    """Go on with SESSION where its last turn stopped, and follow the new turn to its end.

    Without PROMPT the model goes on from the end of the conversation, for example from the results of its calls after
    max_steps_reached. With --turn and --at the session first goes back to that step: later steps stay stored but leave
    the conversation. --turn 0 goes back to before the first message. Tool calls that have run never run again.

    With --all instead of SESSION: resume every session whose last turn ended with --reason-code, or by any error, the
    oldest first, and follow none. Delegates are left out: their callers go on. Running it again is harmless. With
    --json each line has session, turn, agent, outcome and error. The exit code is 1 if a session could not be resumed.
    """
    given = {name for name in ctx.params if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    if not every:
        if given & {*_OF_ALL}:
            raise MistakeError("--dry-run and the filters go with --all; name a session, or add --all")
        if session is None:
            raise MistakeError("name the session to resume, or resume by filters with --all")
        name, at, turn, content = session, told["at"], told["turn"], read_attached(prompt, told["attached"])
        ctx.exit(lead(lambda client: client.resume(name, content, at=at, turn=turn, **options_of(told)), told))
    if given - {*_OF_ALL, "every", "as_json"}:
        raise MistakeError("--all resumes by filters alone; of the other options it takes only --json")
    check_code(reason_code)
    wanted: EndedFilter = {"reason_code": reason_code, "agent": agent, "tenant": tenant, "since": since}
    outcomes = with_client(lambda client: client.resume_all(dry_run=dry_run, per_second=per_second, **wanted))
    heads = ("session", "turn", "agent", "outcome", "error")
    none = "no session's last turn has ended so; nothing to resume"
    print_list(outcomes, heads, _row, none, as_json=told["as_json"])
    ctx.exit(ExitCode.ERROR if any(outcome.outcome == "failed" for outcome in outcomes) else 0)


def _row(outcome: ResumeOutcome) -> tuple[str, ...]:
    return outcome.session, str(outcome.turn), outcome.agent, outcome.outcome.replace("_", " "), outcome.error
