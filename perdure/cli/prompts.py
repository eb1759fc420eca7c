"""Inputs of a turn, as verbs take them: prompt, files beside it, a conversation from elsewhere, and context."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from pydantic import ValidationError

from perdure.agents.files import File
from perdure.cli.errors import MistakeError
from perdure.client.requests import Content
from perdure.contracts.messages import ConversationError, check_history
from perdure.contracts.texts import explain_odd_text
from perdure.contracts.values import JsonValue, describe_mistake, json_object
from perdure.llm.openai_format import WireMessage
from perdure.trajectory import Trajectory


class Prompt(click.ParamType[str]):
    """A prompt; ``-`` reads stdin to its end, ``@file`` a file, and ``@@`` begins a prompt that begins with ``@``."""

    name = "prompt"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Read what the argument stands for."""
        text = str(value)
        if (why := explain_odd_text("prompt", text)) is not None:
            self.fail(why, param, ctx)
        if text.startswith("@@"):
            return text[1:]
        if text != "-" and not (text.startswith("@") and len(text) > 1):
            return text
        where = "stdin" if text == "-" else f"the file {text[1:]!r}"
        try:
            raw = sys.stdin.buffer.read() if text == "-" else Path(text[1:]).read_bytes()
            read = raw.decode()
        except OSError as error:
            why = (error.strerror or "cannot be read").lower()
            self.fail(f"{where}: {why}; write @@ for a prompt that begins with @", param, ctx)
        except UnicodeDecodeError:
            self.fail(f"{where} is not UTF-8 text", param, ctx)
        if not read.strip():
            self.fail(f"{where} is empty", param, ctx)
        return read


PROMPT = Prompt()


attachments = click.option(
    "--attach",
    "attached",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="An image, a PDF or a text file to send with the prompt; may be repeated.",
)


def read_attached(prompt: str, paths: tuple[Path, ...]) -> Content:
    """The prompt with the files, which are read at once; the text alone without any."""
    try:
        return [prompt, *(File(path.name, path=path) for path in paths)] if paths else prompt
    except OSError as error:
        raise MistakeError(f"--attach: {error.filename}: {error.strerror}") from None


Command = Callable[..., Any]


class JsonObject(click.ParamType[dict[str, JsonValue]]):
    """A JSON object as text, or ``@FILE`` that holds one."""

    name = "json"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, JsonValue]:
        """Read the object."""
        text, place = str(value), ""
        if (why := explain_odd_text("data", text)) is not None:
            self.fail(why, param, ctx)
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


def add_sender_options(command: Command) -> Command:
    """Add the options of a turn that takes a message."""
    context = click.option(
        "--context",
        "data",
        type=JsonObject(),
        metavar="JSON",
        help="JSON object that tools and instructions of the turn can read, or @FILE that holds it.",
    )
    by = click.option(
        "--by", default="", metavar="NAME", help="Who sends the message; tools and instructions can read it."
    )
    return context(by(command))


WANTED = "write a list of OpenAI chat messages, as 'perdure export SESSION --format openai' does, or a trajectory"


def read_history(path: Path) -> list[WireMessage]:
    """The messages of a file: a list of them, a record of JSONL, or a trajectory's ``to_dict``."""
    try:
        data: JsonValue = json.loads(path.read_text(encoding="utf-8-sig"))
        if isinstance(data, dict) and "steps" in data:
            return Trajectory.from_dict(data).to_openai()
    except ValidationError as error:
        raise MistakeError(f"{path}: it is no trajectory: {describe_mistake(error)}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise MistakeError(f"{path}: it is no JSON ({error}); {WANTED}") from error
    messages = data.get("messages") if isinstance(data, dict) else data
    if not isinstance(messages, list):
        raise MistakeError(f"{path}: it holds no conversation; {WANTED}")
    try:
        check_history(messages)
    except ConversationError as error:
        raise MistakeError(f"{path}: {error}") from error
    return [message for message in messages if isinstance(message, dict)]
