"""``perdure answer``: answer a question of a session."""

import click

from perdure.cli import replying
from perdure.cli.asking import person


@click.command("answer")
@click.argument("session")
@click.argument("request")
@click.argument("value")
@replying.by
@replying.as_json
def command(*, session: str, request: str, value: str, by: str | None, as_json: bool) -> None:
    """Answer REQUEST, a question of SESSION, with VALUE: the model reads it as the result of its call.

    A question with options takes one of them; a tool whose answer is no text takes JSON, such as 3 or true. A session
    that has stopped for the question goes on. The same answer twice is harmless.
    """
    replying.reply(session, lambda client: client.answer(session, request, value, by=person(by)), as_json=as_json)
