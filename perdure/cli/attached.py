"""``--attach``: the images and files that go with a prompt."""

from pathlib import Path

import click

from perdure.agents.files import File
from perdure.cli.errors import MistakeError
from perdure.client.content import Content

attachments = click.option(
    "--attach",
    "attached",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="An image, a PDF or a text that goes with the prompt; may be given several times.",
)


def read_attached(prompt: str, paths: tuple[Path, ...]) -> Content:
    """The prompt with the files, which are read at once; the text alone without any.

    Raises:
        MistakeError: A file cannot be read.
    """
    try:
        return [prompt, *(File(path.name, path=path) for path in paths)] if paths else prompt
    except OSError as error:
        raise MistakeError(f"--attach: {error.filename}: {error.strerror}") from None
