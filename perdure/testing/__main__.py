"""``python -m perdure.testing --script FILE.json``: a scripted provider in a process of its own."""

import asyncio
import sys
from contextlib import suppress
from pathlib import Path

import click

from perdure.testing.provider import AUTO, ScriptedProvider
from perdure.testing.script import Script


@click.command()
@click.option("--script", "path", required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--port", default=0, show_default="a free one")
@click.option("--window", type=int, help="Tokens a prompt may have.")
@click.option("--plays", default=AUTO, show_default=True, help="Provider by whose rules requests are refused.")
def main(path: Path, port: int, window: int | None, plays: str) -> None:
    """Serve the script of a JSON file; the first line printed is the base URL of OpenAI's format."""
    script = Script.model_validate_json(path.read_bytes())

    async def serve() -> None:
        async with ScriptedProvider(script, window=window, plays=plays, port=port) as provider:
            sys.stdout.write(provider.url + "\n")
            sys.stdout.flush()
            await asyncio.Event().wait()

    with suppress(KeyboardInterrupt):
        asyncio.run(serve())


if __name__ == "__main__":
    main()
