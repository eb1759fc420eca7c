"""What ``answer``, ``approve`` and ``deny`` share: the request that is meant, who replies, and the printed receipt."""

from collections.abc import Awaitable, Callable

import click

from perdure.cli.asking import command_for, what_waits
from perdure.cli.connection import connected, run
from perdure.cli.errors import MistakeError
from perdure.cli.live import print_json
from perdure.cli.render import clean
from perdure.client import Client
from perdure.contracts.input_requests import InputReceipt, InputRequest, Need, OpenRequest

by = click.option("--by", metavar="NAME", help="Who decides; the user of this machine by default.")
"""The option that names the person."""

as_json = click.option("--json", "as_json", is_flag=True, help="The receipt, as JSON.")

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

    async def main() -> tuple[InputReceipt, str]:
        async with connected() as client:
            if request is not None:
                return await send(client, request, ""), ""
            found = only_request(session, await client.inbox(session), needs)
            return await send(client, found.request_id, found.digest), f" · {what_waits(found)}"

    receipt, what = run(main())
    if as_json:
        print_json(receipt.model_dump(mode="json"))
    else:
        who = f" by {receipt.by}" if receipt.by else ""
        shown = f"{receipt.request_id} {receipt.decision}{who}{what}; 'perdure follow {session}' shows how it goes on"
        click.echo(clean(shown))


def only_request(session: str, waiting: list[OpenRequest], needs: Need | None) -> InputRequest:
    """The only request that the session waits for, of that need if one is given.

    Raises:
        MistakeError: It waits for none, or for several, which are printed.
    """
    fitting = [request for request in waiting if needs in {None, request.needs}]
    if len(fitting) == 1:
        return fitting[0]
    what = {"answer": "answer", "approval": "approval", None: "reply"}[needs]
    if not fitting:
        fix = (
            f"it waits for this: {command_for(session, waiting[0])}" if waiting else "'perdure inbox' lists what waits"
        )
        raise MistakeError(f"session {session!r} waits for no {what}; {fix}")
    for request in fitting:
        click.echo(clean(f"{request.request_id}  {what_waits(request)}"), err=True)
    raise MistakeError(f"session {session!r} waits for {len(fitting)} replies; add the id of the one you mean")
