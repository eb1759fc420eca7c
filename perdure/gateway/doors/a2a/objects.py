"""Objects of A2A 1.0 (``lf.a2a.v1``) as ProtoJSON: parts, messages, artifacts, tasks, and updates of them."""

import json
from collections.abc import Iterable, Sequence
from datetime import datetime

from perdure.contracts.a2a import TaskId, TaskState, write_time
from perdure.contracts.files import FilePart, ToolFile
from perdure.contracts.input_requests import InputRequest
from perdure.contracts.values import JsonValue
from perdure.gateway.doors.responses.places import item_id

Object = dict[str, JsonValue]
"""An object of the protocol. Fields that are unset are left out."""


def text_part(text: str) -> Object:
    """A part that is a text."""
    return {"text": text, "mediaType": "text/plain"}


def data_part(data: JsonValue) -> Object:
    """A part that is a JSON value."""
    return {"data": data, "mediaType": "application/json"}


def file_parts(session: str, files: Iterable[FilePart | ToolFile], address: str = "") -> list[Object]:
    """Images and files: where the gateway has them, at its address if that is known."""
    return [
        {
            "url": f"{address}/v1/sessions/{session}/artifacts/{file.artifact}",
            **({"mediaType": file.media_type} if file.media_type else {}),
            **({"filename": file.name} if file.name else {}),
        }
        for file in files
    ]


def message_of(task: TaskId, place: object, role: str, parts: Sequence[Object], message: str | None = None) -> Object:
    """A message of a task; without an id, it has the one of its place in the task."""
    return {
        "messageId": message or item_id("msg", task.session, task.turn, place),
        "contextId": task.session,
        "taskId": str(task),
        "role": f"ROLE_{role}",
        "parts": [*parts],
    }


def request_parts(requests: Iterable[InputRequest]) -> list[Object]:
    """Parts for what a task waits for: of a question its text, and of each request what a reply needs."""
    found: list[Object] = []
    for request in requests:
        if request.question:
            found.append(text_part(request.question))
        asked: Object = {
            "request": request.request_id,
            "needs": request.needs,
            "tool": request.tool,
            "arguments": _arguments_of(request.arguments),
            **({"question": request.question} if request.question else {}),
            **({"options": [*request.options]} if request.options else {}),
            **({"digest": request.digest} if request.digest else {}),
            **({"expires_at": write_time(request.expires_at)} if request.expires_at is not None else {}),
        }
        found.append(data_part(asked))
    return found


def _arguments_of(text: str) -> JsonValue:
    """Arguments as JSON; a text where they are shortened, so that they are none."""
    try:
        found: JsonValue = json.loads(text)
    except ValueError:
        return text
    return found


def status_of(state: TaskState, at: datetime | None, message: Object | None = None) -> Object:
    """The status of a task."""
    status: Object = {"state": state.value}
    if message is not None:
        status["message"] = message
    if at is not None:
        status["timestamp"] = write_time(at)
    return status


def status_update(task: TaskId, status: Object, metadata: Object) -> Object:
    """An update of a task's status, as a stream has it."""
    update: Object = {"taskId": str(task), "contextId": task.session, "status": status, "metadata": metadata}
    return {"statusUpdate": update}


def artifact_update(task: TaskId, artifact: Object, metadata: Object, *, append: bool, last: bool) -> Object:
    """A part of an artifact, as a stream has it."""
    update: Object = {
        "taskId": str(task),
        "contextId": task.session,
        "artifact": artifact,
        "append": append,
        "lastChunk": last,
        "metadata": metadata,
    }
    return {"artifactUpdate": update}


def task_of(
    task: TaskId,
    status: Object,
    *,
    artifacts: Sequence[Object] | None = None,
    history: Sequence[Object] = (),
    metadata: Object | None = None,
) -> Object:
    """A task; without artifacts, the field is left out."""
    found: Object = {"id": str(task), "contextId": task.session, "status": status}
    if artifacts is not None:
        found["artifacts"] = [*artifacts]
    if history:
        found["history"] = [*history]
    if metadata:
        found["metadata"] = metadata
    return found
