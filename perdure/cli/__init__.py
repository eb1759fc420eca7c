"""The command line. Nothing but the verb that is asked for is loaded."""

import contextlib
import os
import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line and exit."""
    from perdure.cli.main import cli  # noqa: PLC0415  # whoever imports a module of this package needs no verbs

    try:
        cli(prog_name="perdure")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        # Temporal's client has threads of its own, and one that calls back while the interpreter is torn down aborts
        # the process: so leave without the teardown.
        os._exit(code)
