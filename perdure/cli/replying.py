"""What ``answer``, ``approve`` and ``deny`` share: who replies, and what is printed of the receipt."""

from collections.abc import Awaitable, Callable

import click

from perdure.cli.connection import connected, run
from perdure.cli.live import print_json
from perdure.cli.render import clean
from perdure.client import Client
from perdure.contracts.people import InputReceipt

by = click.option("--by", metavar="NAME", help="Who decides; the user of this machine by default.")
"""The option that names the person."""

as_json = click.option("--json", "as_json", is_flag=True, help="The receipt, as JSON.")


def reply(session: str, send: Callable[[Client], Awaitable[InputReceipt]], *, as_json: bool) -> None:
    """Send a reply and print its receipt."""

    async def main() -> InputReceipt:
        async with connected() as client:
            return await send(client)

    receipt = run(main())
    if as_json:
        print_json(receipt.model_dump(mode="json"))
    else:
        who = f" by {receipt.by}" if receipt.by else ""
        shown = f"{receipt.request_id} {receipt.decision}{who}; 'perdure follow {session}' shows how it goes on"
        click.echo(clean(shown))
