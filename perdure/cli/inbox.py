"""``perdure inbox``: what waits for people, over all sessions."""

from datetime import UTC, datetime

import click

from perdure.cli.asking import command_for, what_waits
from perdure.cli.connection import connected, run
from perdure.cli.live import print_json, print_table, show
from perdure.cli.render import Line, Tone, duration
from perdure.contracts.input_requests import OpenRequest


@click.command("inbox")
@click.option("--session", metavar="ID", help="Only what this session waits for.")
@click.option("--agent", metavar="A", help="Only turns of this agent.")
@click.option("--tenant", metavar="T", help="Only turns of this tenant; by the search attribute PerdureTenant.")
@click.option("--json", "as_json", is_flag=True, help="One request a line, as JSON.")
def command(*, session: str | None, agent: str | None, tenant: str | None, as_json: bool) -> None:
    """List what waits for people over all sessions, the oldest request first, with the commands that reply.

    With --json each line has session, turn, agent, asked_at, request_id, needs (answer or approval), tool, arguments,
    question, options, digest and expires_at. Turns that Temporal has ended, and approvals whose time is over, are left
    out.
    """

    async def main() -> list[OpenRequest]:
        async with connected() as client:
            return await client.inbox(session, agent=agent, tenant=tenant)

    found = run(main())
    if as_json:
        for request in found:
            print_json(request.model_dump(mode="json"))
        return
    if not found:
        click.echo("nothing waits for a person")
        return
    now = datetime.now(UTC)
    rows = [
        (duration((now - request.asked_at).total_seconds()), request.session, request.agent, what_waits(request))
        for request in found
    ]
    print_table(("waits", "session", "agent", "for"), rows)
    show(Line(""))
    for request in found:
        show(Line(command_for(request.session, request), Tone.QUIET))
