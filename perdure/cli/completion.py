"""``perdure completion``: the script with which a shell completes verbs, options, sessions and agents."""

import asyncio
import os
import threading
from collections.abc import Sequence

import click
from click.shell_completion import CompletionItem, get_completion_class

from perdure.cli.main import VARIABLE

PATIENCE = 1.5
"""Seconds that a person at a prompt waits for names; a store that takes longer is left alone."""

MOST = 200
"""Names that are offered."""


class StoredName(click.ParamType[str]):
    """A session or an agent: any text, completed with the names that the store has."""

    name = "text"

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The text as it is."""
        return str(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """The names that begin so; none if the store does not give them at once."""
        return [CompletionItem(name) for name in find_names(self._kind, incomplete)]


TYPES = {"session": StoredName("session"), "caller": StoredName("session"), "agent": StoredName("agent")}
"""The type of each argument and option of that name."""


def find_names(kind: str, incomplete: str) -> Sequence[str]:
    """The names that begin so, those in use last first; nothing is said of a store that fails."""
    found: list[str] = []

    def look() -> None:
        try:
            found.extend(asyncio.run(_read(kind)))
        except BaseException:  # noqa: BLE001 - a prompt is no place for an error
            found.clear()

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    if thread.is_alive():  # its connection would keep the process, and the prompt, until it gives up
        os._exit(0)
    return [name for name in found if name.startswith(incomplete)]


async def _read(kind: str) -> list[str]:
    # Loaded here: the store is needed for names alone, and verbs are completed without it.
    from perdure.cli.connection import open_store  # noqa: PLC0415

    async with open_store() as store:
        if kind == "agent":
            return [agent.name for agent in await store.agents()]
        return [session.session for session, _ in await store.sessions(limit=MOST)]


@click.command("completion")
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
@click.pass_context
def completion_command(ctx: click.Context, *, shell: str) -> None:
    """Print the script with which SHELL completes verbs, options, sessions and agents. Set it up once:

    \b
    bash  add to ~/.bashrc:  eval "$(perdure completion bash)"
    zsh   add to ~/.zshrc:   eval "$(perdure completion zsh)"
    fish  run:               perdure completion fish > ~/.config/fish/completions/perdure.fish
    """  # noqa: D301, D415  # \b is click's mark of lines that stay as they are
    kind = get_completion_class(shell)
    root = ctx.find_root().command
    if kind is not None:
        # The class of bash looks at the version of the bash that is installed here, and only warns.
        click.echo(kind(root, {}, "perdure", VARIABLE).source())
