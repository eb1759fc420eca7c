"""``perdure artifact``: a long output, an image or a file of a session."""

import sys
from pathlib import Path

import click

from perdure.cli.connection import opened_store, run
from perdure.cli.errors import MistakeError
from perdure.cli.render import clean
from perdure.store import Artifact, NotFoundError


@click.command("artifact")
@click.argument("session")
@click.argument("handle", metavar="ID")
@click.option(
    "--output", "-o", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write it to this file."
)
def command(*, session: str, handle: str, output: Path | None) -> None:
    """Write artifact ID of SESSION to standard output, byte for byte; on a terminal, without control characters.

    Tools' images, files and outputs that are too long for the conversation are artifacts; 'perdure show' and the events
    tool_end have their ids.
    """

    async def main() -> Artifact:
        async with opened_store() as store:
            await store.session(session)
            try:
                return await store.artifact(handle, session=session)
            except NotFoundError as error:
                raise MistakeError(f"{error}; 'perdure show {session}' tells the ids") from None

    found = run(main())
    if output is None:
        _print(found)
        return
    try:
        output.write_bytes(found.data)
    except OSError as error:
        raise MistakeError(f"{output} cannot be written: {error.strerror}; name another file") from error


def _print(found: Artifact) -> None:
    """Write the bytes; a terminal gets text only, without the characters that steer it."""
    if not is_terminal():
        click.echo(found.data, nl=False)
    elif found.is_binary:
        raise MistakeError(
            f"{found.id} is {found.content_type}, {len(found.data):,} bytes; name a file with --output, or redirect it"
        )
    else:
        click.echo(clean(found.data.decode(errors="replace")), nl=False)


def is_terminal() -> bool:
    """Whether somebody would look at the bytes."""
    return sys.stdout.isatty()
