"""Options that several verbs have: which events are printed and how, JSON, lengths of lists, moments; and all texts."""

import re
from collections.abc import Callable, Collection
from datetime import UTC, datetime, timedelta
from typing import TypeVar, get_args

import click
from click.shell_completion import CompletionItem

from perdure.cli.errors import MistakeError
from perdure.contracts.events import Names, event_type
from perdure.contracts.texts import explain_odd_text

Verb = TypeVar("Verb", bound=Callable[..., object])


class Text(click.ParamType[str]):
    """A text, unless nothing behind a verb can keep it; it is refused in the client's words."""

    name = "text"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Refuse the text, or take it."""
        if (why := explain_odd_text((param and param.name) or "", value)) is not None:
            self.fail(why, param, ctx)
        return click.STRING.convert(value, param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """The names of sessions or agents that begin so, where the parameter is one."""
        from perdure.cli.stored_names import complete_name  # noqa: PLC0415 - only a shell's prompt needs it

        return complete_name(param.name or "", incomplete)


def refuse_odd_texts(command: click.Command) -> None:
    """Have a verb, and those below it, refuse such texts."""
    for parameter in command.params:
        if parameter.type is click.STRING:
            parameter.type = Text()
    for below in command.commands.values() if isinstance(command, click.Group) else ():
        refuse_odd_texts(below)


class EventType(click.ParamType[str]):
    """A type of events, by any of its names."""

    name = "type"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The name, if it is one of a type."""
        try:
            event_type(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return str(value)


class When(click.ParamType[datetime]):
    """A moment, or so long ago; with ``ahead``, so long from now."""

    name = "when"
    _APART = re.compile(r"(\d{1,6})([smhdw])")
    _UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}  # noqa: RUF012

    def __init__(self, *, ahead: bool = False) -> None:
        self._ahead = ahead

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """Read ``30m``, ``12h``, ``3d``, or an ISO date or time, which is local unless it says otherwise."""
        try:
            if (apart := self._APART.fullmatch(str(value))) is not None:
                length = timedelta(**{self._UNITS[apart[2]]: int(apart[1])})
                return datetime.now(UTC) + (length if self._ahead else -length)
            return datetime.fromisoformat(str(value)).astimezone()
        except (ValueError, OverflowError):
            self.fail(
                f"{value!r} is no time; give for example 30m, 12h, 3d, 2026-11-21 or 2026-11-21T14:30", param, ctx
            )


only_types = click.option(
    "--type",
    "types",
    type=EventType(),
    multiple=True,
    help="Only events of this type; may be repeated. A type is also known by its class: agent_error is also called "
    "AgentError, and in Perstack's words errorRun or stopRunByError (docs/coming-from.md).",
)
"""The option that chooses among events."""

type_names = click.option(
    "--names",
    type=click.Choice(get_args(Names)),
    default="perdure",
    help="With --json: whose names event types get. perdure: agent_error; dreadnode: AgentError; perstack: errorRun.",
)
"""The option that names the types of printed events."""

with_deltas = click.option(
    "--deltas",
    "deltas",
    is_flag=True,
    help="With --json: also stream answers while they are written, one line of type delta for each piece. A terminal "
    "without --json always shows them.",
)
"""The option that prints pieces of answers."""

with_tree = click.option("--tree", is_flag=True, help="Also show the events of delegates, below their callers' events.")
"""The option that shows delegates."""

as_json = click.option("--json", "as_json", is_flag=True, help="Print one line of JSON for each.")
"""The option of a verb that lists."""


def list_limit(text: str) -> Callable[[Verb], Verb]:
    """The option ``--limit`` of a verb that lists, with this help: 50 unless told, 1,000 at most."""
    return click.option(
        "--limit", type=click.IntRange(min=1, max=1_000), default=50, show_default=True, metavar="N", help=text
    )


def refuse_types(types: Collection[str], where: str) -> None:
    """Refuse the option where no events are printed."""
    if types:
        raise MistakeError(f"{where} prints no events that --type could choose from; leave one of the two out")
