"""``perdure answer``: answer a question of a session."""

import click

from perdure.cli import replying
from perdure.cli.asking import person
from perdure.client import Client
from perdure.contracts.input_requests import InputReceipt


@click.command("answer")
@click.argument("session")
@click.argument("request", metavar="[REQUEST]")
@click.argument("value", metavar="VALUE", required=False)
@replying.by
@replying.as_json
def command(*, session: str, request: str, value: str | None, by: str | None, as_json: bool) -> None:
    """Answer REQUEST, a question of SESSION, with VALUE: the model reads it as the result of its call.

    REQUEST may be left out if SESSION waits for one answer only; several are listed. A question with options takes one
    of them; a tool whose answer is no text takes JSON, such as 3 or true. A session that has stopped for the question
    goes on. The same answer twice is harmless.
    """
    said = request if value is None else value

    async def send(client: Client, found: str, _: str) -> InputReceipt:
        if value is None and found == said:
            msg = f"{said!r} is the request, and the VALUE is missing"
            raise click.UsageError(msg)
        return await client.answer(session, found, said, by=person(by))

    replying.reply(session, None if value is None else request, send, needs="answer", as_json=as_json)
