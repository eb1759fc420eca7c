"""``perdure completion``: the script with which a shell completes verbs, options, sessions and agents."""

import click
from click.shell_completion import get_completion_class

from perdure.cli.main import VARIABLE


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
