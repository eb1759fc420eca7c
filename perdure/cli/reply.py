"""``perdure inbox``, ``answer``, ``approve``, ``approvals``, ``revoke``, ``deny``, ``submit``: what people decide."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial

import click

from perdure.cli.asking import command_for, person
from perdure.cli.connection import with_client
from perdure.cli.errors import MistakeError
from perdure.cli.options import When
from perdure.cli.output import print_json, print_list, print_table, show
from perdure.cli.render import Line, Tone, clean, describe_request, duration
from perdure.client import Client
from perdure.client.standing_approvals import ApproveMore
from perdure.contracts.input_requests import InputReceipt, InputRequest, Need, OpenRequest
from perdure.contracts.standing_approvals import DESCRIBED, AlwaysScope, StandingApproval


@click.command("inbox")
@click.option("--session", metavar="ID", help="Only what this session waits for.")
@click.option("--agent", metavar="A", help="Only turns of this agent.")
@click.option("--tenant", metavar="T", help="Only sessions of this tenant.")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON for each request.")
def inbox_command(*, session: str | None, agent: str | None, tenant: str | None, as_json: bool) -> None:
    """List the open input requests of all sessions, the oldest first, each with the command that replies.

    Turns that Temporal has ended and expired approvals are left out. With --json each line has session, turn, agent,
    asked_at, request_id, needs (answer, approval or result), tool, arguments, question, options, digest, expires_at.
    """
    found = with_client(lambda client: client.inbox(session, agent=agent, tenant=tenant))
    if as_json:
        for request in found:
            print_json(request)
        return
    if not found:
        click.echo("nothing waits for a person")
        return
    now = datetime.now(UTC)
    rows = [
        (duration((now - request.asked_at).total_seconds()), request.session, request.agent, describe_request(request))
        for request in found
    ]
    print_table(("waits", "session", "agent", "for"), rows)
    show(Line(""))
    for request in found:
        show(Line(command_for(request.session, request), Tone.QUIET))


by = click.option("--by", metavar="NAME", help="Who decides. [default: the user of this machine]")
"""The option that names the person."""

as_json = click.option("--json", "as_json", is_flag=True, help="Print the receipt as one JSON object.")

which = click.argument("request", required=False)
"""The request's id, which may be left out where only one waits."""


def reply(
    session: str,
    request: str | None,
    send: Callable[[Client, str, str], Awaitable[InputReceipt]],
    *,
    needs: Need | None = None,
    as_json: bool,
) -> None:
    """Send a reply and print its receipt; without the request's id, to the only request that waits.

    ``send`` gets the client, the request's id, and its digest if it was looked up.
    """

    async def main(client: Client) -> tuple[InputReceipt, str]:
        if request is not None:
            return await send(client, request, ""), ""
        found = pick_request(session, await client.inbox(session), needs)
        return await send(client, found.request_id, found.digest), f" · {describe_request(found)}"

    receipt, what = with_client(main)
    if as_json:
        print_json(receipt)
    else:
        who = f" by {receipt.by}" if receipt.by else ""
        shown = f"{receipt.request_id} {receipt.decision}{who}{what}; 'perdure follow {session}' shows how it goes on"
        click.echo(clean(shown))
        if receipt.always is not None:
            ends = f"'perdure revoke {session} {receipt.request_id}' ends that"
            click.echo(
                clean(f"it stands for {DESCRIBED[receipt.always.scope]} in this session{_until(receipt)}; {ends}")
            )


def _until(receipt: InputReceipt) -> str:
    until = receipt.always and receipt.always.until
    return f" until {until.astimezone():%Y-%m-%d %H:%M}" if until else ""


def pick_request(session: str, waiting: list[OpenRequest], needs: Need | None) -> InputRequest:
    """The only request that the session waits for, of that need if one is given."""
    fitting = [request for request in waiting if needs in {None, request.needs}]
    if len(fitting) == 1:
        return fitting[0]
    what = needs or "reply"
    if not fitting:
        fix = (
            f"it waits for this: {command_for(session, waiting[0])}" if waiting else "'perdure inbox' lists what waits"
        )
        raise MistakeError(f"session {session!r} waits for no {what}; {fix}")
    for request in fitting:
        click.echo(clean(f"{request.request_id}  {describe_request(request)}"), err=True)
    raise MistakeError(f"session {session!r} waits for {len(fitting)} replies; add the id of the one you mean")


@click.command("answer")
@click.argument("session")
@click.argument("request", metavar="[REQUEST]")
@click.argument("value", metavar="VALUE", required=False)
@by
@as_json
def answer_command(*, session: str, request: str, value: str | None, by: str | None, as_json: bool) -> None:
    """Answer question REQUEST of SESSION with VALUE. The model reads VALUE as the result of its tool call.

    Leave REQUEST out if SESSION waits for one answer only; otherwise the command lists the requests. A question with
    options takes one of them; a tool that wants no text takes JSON, such as 3 or true. A session that has stopped to
    wait goes on. Sending the same answer twice is harmless.
    """
    said = request if value is None else value

    async def send(client: Client, found: str, _: str) -> InputReceipt:
        if value is None and found == said:
            raise click.UsageError(f"{said!r} is the id of the request; add the VALUE behind it")
        return await client.answer(session, found, said, by=person(by))

    reply(session, None if value is None else request, send, needs="answer", as_json=as_json)


@click.command("approve")
@click.argument("session")
@which
@by
@click.option(
    "--digest",
    default="",
    metavar="HEX",
    help="Refuse if the digest of the request is another, as after a change of its call.",
)
@click.option("--always", is_flag=True, help="Approve all further calls of this tool in SESSION too.")
@click.option("--same-arguments", is_flag=True, help="With --always: only calls with the same arguments.")
@click.option(
    "--until",
    type=When(ahead=True),
    metavar="WHEN",
    help="With --always: until then: 12h, 3d, 2026-11-21 or 2026-11-21T14:30 (local time).",
)
@click.option("--reason", default="", metavar="TEXT", help="With --always: why; 'perdure approvals' shows it.")
@as_json
def approve_command(
    *,
    session: str,
    request: str | None,
    by: str | None,
    digest: str,
    always: bool,
    same_arguments: bool,
    until: datetime | None,
    reason: str,
    as_json: bool,
) -> None:
    """Approve tool call REQUEST of SESSION: the tool runs.

    Leave REQUEST out if SESSION waits for one approval only; otherwise the command lists the requests. An approval with
    --always stands for further calls, in later turns too, until 'perdure revoke' ends it. A rule that denies outranks
    it.
    """
    if not always and (same_arguments or until is not None or reason):
        wrong = "--same-arguments" if same_arguments else "--until" if until is not None else "--reason"
        raise click.UsageError(f"{wrong} is for an approval that stands; add --always")
    scope: AlwaysScope = "arguments" if same_arguments else "tool"

    async def send(client: Client, found: str, seen: str) -> InputReceipt:
        more = ApproveMore(digest=digest or seen, always=scope if always else None, until=until, reason=reason)
        return await client.approve(session, found, by=person(by), **more)

    reply(session, request, send, needs="approval", as_json=as_json)


@click.command("approvals")
@click.argument("session")
@click.option("--ended", is_flag=True, help="Also list those that were revoked or are over: the audit trail.")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON for each.")
def approvals_command(*, session: str, ended: bool, as_json: bool) -> None:
    """List the standing approvals of SESSION, the oldest first: what each lets through, who gave it, when and why."""
    found = with_client(lambda client: client.approvals.list(session, ended=ended))
    heads = ("id", "calls of", "by", "given", "until", "reason", *(("revoked", "revoked by") if ended else ()))
    print_list(found, heads, partial(_row_of, ended=ended), "no approval stands", as_json=as_json)


def _row_of(given: StandingApproval, *, ended: bool) -> tuple[str, ...]:
    what = given.tool if given.scope == "tool" else f"{given.tool} {given.arguments}"
    row = (given.id, what, given.by, _moment(given.given_at), _moment(given.until), given.reason)
    return (*row, _moment(given.revoked_at), given.revoked_by) if ended else row


def _moment(at: datetime | None) -> str:
    return "" if at is None else at.isoformat("T", "seconds")


@click.command("revoke")
@click.argument("session")
@click.argument("approval")
@by
@click.option("--json", "as_json", is_flag=True, help="Print the standing approval as one JSON object.")
def revoke_command(*, session: str, approval: str, by: str | None, as_json: bool) -> None:
    """Revoke the standing APPROVAL of SESSION, as 'perdure approvals SESSION' lists it: such calls ask again.

    This holds from the model's next answer on. Revoking twice is harmless: the first who did it stays recorded.
    """
    revoked = with_client(lambda client: client.approvals.revoke(session, approval, by=person(by)))
    if as_json:
        print_json(revoked)
    else:
        click.echo(clean(f"{revoked.id}: calls of {revoked.tool} ask again; revoked by {revoked.revoked_by}"))


@click.command("deny")
@click.argument("session")
@which
@click.option("--reason", default="", metavar="TEXT", help="Why; the model reads it.")
@by
@as_json
def deny_command(*, session: str, request: str | None, reason: str, by: str | None, as_json: bool) -> None:
    """Deny REQUEST of SESSION: a tool call does not run, a question gets no answer. The model reads the denial.

    Leave REQUEST out if SESSION waits for one reply only; otherwise the command lists the requests.
    """
    reply(
        session,
        request,
        lambda client, found, _: client.deny(session, found, by=person(by), reason=reason),
        as_json=as_json,
    )


@click.command("submit")
@click.argument("session")
@click.argument("request", metavar="[REQUEST]", required=False)
@click.argument("value", metavar="VALUE", required=False)
@click.option("--error", metavar="TEXT", help="In place of VALUE: why there is none; the model reads an error.")
@click.option("--digest", default="", metavar="HEX", help="Refuse if the digest of the request is another.")
@by
@as_json
def submit_command(
    *,
    session: str,
    request: str | None,
    value: str | None,
    error: str | None,
    digest: str,
    by: str | None,
    as_json: bool,
) -> None:
    """Submit VALUE as the result of tool call REQUEST of SESSION, which its caller runs.

    Leave REQUEST out if SESSION waits for one result only; otherwise the command lists the requests. A tool that wants
    no text takes JSON, such as 3 or true. Sending the same result twice is harmless.
    """
    if error is None and value is None:
        request, value = None, request
    if (error is None) == (value is None):
        raise click.UsageError("give a VALUE or --error TEXT" + ("" if error is None else ", and not both"))

    async def send(client: Client, found: str, seen: str) -> InputReceipt:
        who, shown = person(by), digest or seen
        return await client.submit_result(session, found, value, error=error, by=who, digest=shown)

    reply(session, request, send, needs="result", as_json=as_json)
