"""Options that say on whose behalf a turn works: ``--context``, ``--tenant`` and ``--by``."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from perdure.contracts.values import JsonValue, json_object

Command = Callable[..., Any]


class JsonObject(click.ParamType[dict[str, JsonValue]]):
    """A JSON object as text, or ``@FILE`` that holds one."""

    name = "json"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, JsonValue]:
        """Read the object."""
        text, place = str(value), ""
        if text.startswith("@"):
            place = f"{text[1:]}: "
            try:
                text = Path(text[1:]).read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                self.fail(f"{place}{getattr(error, 'strerror', None) or 'it is no text in UTF-8'}", param, ctx)
        try:
            return json_object(text)
        except ValueError as error:
            self.fail(f"{place}{error}; write a JSON object, such as '{{\"customer\": 7}}', or @FILE", param, ctx)


def on_behalf_of(command: Command) -> Command:
    """Add the options of a turn that takes a message."""
    context = click.option(
        "--context", "data", type=JsonObject(), metavar="JSON", help="For tools and instructions; or @FILE."
    )
    by = click.option("--by", default="", metavar="NAME", help="Who says it, for tools and instructions.")
    return context(by(command))
