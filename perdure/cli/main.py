"""The group of verbs. A verb's module is loaded when the verb is used, so that ``perdure --help`` is quick."""

import importlib
from typing import NoReturn

import click
from click.shell_completion import CompletionItem

from perdure.cli.errors import ExitCode, MistakeError

VARIABLE = "_PERDURE_COMPLETE"
"""The variable by which a shell asks for completions."""

VERBS: dict[str, str] = {
    "dev": "Run an embedded server, its UI, a worker and the gateway.",
    "worker": "Run a worker for a cluster.",
    "gateway": "Run the HTTP gateway for other services.",
    "run": "Start a turn and follow it live.",
    "send": "Send a message to a session and follow the turn that takes it.",
    "follow": "Follow the events of a session live.",
    "cancel": "Cancel the running turn of a session, or of many.",
    "pause": "Pause a session until you unpause it.",
    "unpause": "Let a paused session go on.",
    "block": "Stop all matching turns, and refuse new ones.",
    "unblock": "Lift a block.",
    "blocks": "List the blocks: what they stop, who set them and why.",
    "delete": "Erase a session from the store.",
    "extend": "Change the limits of a session's running turn.",
    "inbox": "List what waits for people, over all sessions.",
    "answer": "Answer a question of a session.",
    "approve": "Approve a tool call that waits for approval.",
    "approvals": "List a session's standing approvals.",
    "revoke": "Revoke a standing approval.",
    "deny": "Deny a tool call, or decline a question.",
    "submit": "Submit the result of a tool call that its caller runs.",
    "resume": "Go on from a session's end or an earlier step, or with all that ended by an error.",
    "fork": "Start a new session from a step of another.",
    "compact": "Summarise a session's conversation between its turns.",
    "show": "Show the turns and the conversation of a session.",
    "list": "List the sessions, newest first.",
    "artifact": "Print or save a long output, an image or a file of a session.",
    "export": "Export a transcript or an event log for other programs.",
    "agents": "List the agents that workers have registered.",
    "schedule": "Manage schedules: turns that the clock starts.",
    "webhooks": "Manage webhooks: HTTP requests when turns end or wait.",
    "mcp": "Serve the agents as durable jobs to an MCP host.",
    "setup": "Register the search attributes on a cluster.",
    "store": "Manage the transcript store: schema, keys, retention, garbage.",
    "replay": "Replay a cluster's turns against this code before a rollout.",
    "doctor": "Check settings, server, worker and store, and suggest fixes.",
    "errors": "Explain the reason codes: cause, fix, retried or final.",
    "completion": "Print a shell's completion script.",
}
"""Each verb with the short help of the list; :func:`module` says where its command is."""

_MODULES: dict[str, str] = {
    **dict.fromkeys(("run", "send", "follow", "extend", "fork", "compact"), "run"),
    **dict.fromkeys(("cancel", "pause", "unpause", "block", "unblock", "blocks", "delete"), "control"),
    **dict.fromkeys(("inbox", "answer", "approve", "approvals", "revoke", "deny", "submit"), "reply"),
    **dict.fromkeys(("show", "export", "artifact"), "show"),
    **dict.fromkeys(("list", "agents"), "list"),
    "errors": "reasons",
}
"""Modules of the verbs that have no module of their own; ``perdure.cli.errors`` are what the verbs raise."""


def module(verb: str) -> str:
    """The module of a verb: it has ``<verb>_command``."""
    return f"perdure.cli.{_MODULES.get(verb, verb)}"


class LazyGroup(click.Group):
    """A group that loads a verb's module when it is needed, and shows every expected error as one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The verbs in the order of their use."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load a verb."""
        if cmd_name not in VERBS:
            return None
        command: click.Command = getattr(importlib.import_module(module(cmd_name)), f"{cmd_name}_command")
        from perdure.cli.options import refuse_odd_texts  # noqa: PLC0415 - only a verb needs it

        refuse_odd_texts(command)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The verbs and options that begin so, without loading a verb's module."""
        verbs = [CompletionItem(name, help=text) for name, text in VERBS.items() if name.startswith(incomplete)]
        return [*verbs, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs without loading them."""
        with formatter.section("Verbs"):
            formatter.write_dl(list(VERBS.items()))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse our own options."""
        try:
            return super().parse_args(ctx, args)
        except click.exceptions.NoArgsIsHelpError:
            raise
        except click.UsageError as error:
            _usage(error)

    def invoke(self, ctx: click.Context) -> object:
        """Run the verb."""
        try:
            return super().invoke(ctx)
        except click.exceptions.NoArgsIsHelpError:
            raise
        except click.UsageError as error:
            _usage(error)
        except (KeyboardInterrupt, click.Abort):
            ctx.exit(ExitCode.INTERRUPTED)
        except (click.ClickException, click.exceptions.Exit):
            raise
        except Exception as error:
            # Loaded here, when there is an error to name: the client brings Temporal with it.
            from perdure.cli.connection import describe  # noqa: PLC0415

            described = describe(error)
            if described is None:  # a bug
                raise
            raise described from error


def _usage(error: click.UsageError) -> NoReturn:
    where = error.ctx.command_path if error.ctx is not None else "perdure"
    message = error.format_message().rstrip(".")
    raise MistakeError(f"{message[:1].lower()}{message[1:]}; see '{where} --help'") from error


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="perdure", message="%(version)s")
def cli() -> None:
    """Run LLM agents as durable jobs on Temporal.

    Temporal's own variables and profiles (TEMPORAL_ADDRESS, TEMPORAL_PROFILE, …) say where the Temporal server is;
    PERDURE_* variables set everything else.

    Exit codes: 0 finished, 1 error, 2 usage, 3 max_steps_reached, 4 stalled, 5 budget_exhausted, 6 cancelled,
    7 waiting_for_input, 8 server, worker or store not reachable, 130 interrupted by a second Ctrl+C.
    """
