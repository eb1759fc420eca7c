"""The command line. Nothing but the verb that is asked for is loaded."""

__all__ = ["main"]


def main() -> None:
    """Run the command line and exit."""
    from perdure.cli.main import cli  # noqa: PLC0415  # whoever imports a module of this package needs no verbs

    cli(prog_name="perdure")
