"""A file with a conversation that a session begins with."""

import json
from pathlib import Path

from pydantic import ValidationError

from perdure.cli.errors import MistakeError
from perdure.contracts.messages import ConversationError, checked_history
from perdure.contracts.values import JsonValue
from perdure.llm.openai_format import WireMessage
from perdure.trajectory import Trajectory

WANTED = "write a list of OpenAI chat messages, as 'perdure export SESSION --format openai' does, or a trajectory"


def read_history(path: Path) -> list[WireMessage]:
    """The messages of a file: a list of them, a record of JSONL, or a trajectory's ``to_dict``.

    Raises:
        MistakeError: It holds none that a session could begin with.
    """
    try:
        data: JsonValue = json.loads(path.read_text(encoding="utf-8-sig"))
        if isinstance(data, dict) and "steps" in data:
            return Trajectory.from_dict(data).to_openai()
    except ValidationError as error:
        field = ".".join(map(str, error.errors()[0]["loc"]))
        raise MistakeError(f"{path}: it is no trajectory: {field}: {error.errors()[0]['msg']}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise MistakeError(f"{path}: it is no JSON ({error}); {WANTED}") from error
    messages = data.get("messages") if isinstance(data, dict) else data
    if not isinstance(messages, list):
        raise MistakeError(f"{path}: it holds no conversation; {WANTED}")
    try:
        checked_history(messages)
    except ConversationError as error:
        raise MistakeError(f"{path}: {error}") from error
    return [one for one in messages if isinstance(one, dict)]
