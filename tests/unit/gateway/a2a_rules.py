"""A2A 1.0's own rules as the judge of what its door sends: fields, types and presence, read from ``lf.a2a.v1``."""

import re
from collections.abc import Callable, Mapping
from typing import Any

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
STATES = frozenset(
    f"TASK_STATE_{name}"
    for name in (
        *("SUBMITTED", "WORKING", "COMPLETED", "FAILED", "CANCELED", "INPUT_REQUIRED", "REJECTED", "AUTH_REQUIRED"),
    )
)

_RULES: Mapping[str, Mapping[str, str]] = {
    "Task": {
        "id!": "text",
        "contextId": "text",
        "status!": "TaskStatus",
        "artifacts": "Artifact*",
        "history": "Message*",
        "metadata": "object",
    },
    "TaskStatus": {"state!": "state", "message": "Message", "timestamp": "time"},
    "Message": {
        "messageId!": "text",
        "contextId": "text",
        "taskId": "text",
        "role!": "role",
        "parts!": "Part*",
        "metadata": "object",
    },
    "Artifact": {"artifactId!": "text", "name": "text", "description": "text", "parts!": "Part*", "metadata": "object"},
    "TaskStatusUpdateEvent": {"taskId!": "text", "contextId!": "text", "status!": "TaskStatus", "metadata": "object"},
    "TaskArtifactUpdateEvent": {
        "taskId!": "text",
        "contextId!": "text",
        "artifact!": "Artifact",
        "append": "flag",
        "lastChunk": "flag",
        "metadata": "object",
    },
    "AgentCard": {
        "name!": "text",
        "description!": "text",
        "supportedInterfaces!": "AgentInterface*",
        "version!": "text",
        "capabilities!": "object",
        "securitySchemes": "object",
        "securityRequirements": "any",
        "defaultInputModes!": "text*",
        "defaultOutputModes!": "text*",
        "skills!": "AgentSkill*",
        "signatures": "AgentCardSignature*",
    },
    "AgentCardSignature": {"protected!": "text", "signature!": "text", "header": "object"},
    "AgentInterface": {"url!": "text", "protocolBinding!": "text", "protocolVersion!": "text"},
    "AgentSkill": {"id!": "text", "name!": "text", "description!": "text", "tags!": "text*"},
    "TaskPushNotificationConfig": {
        "id": "text",
        "taskId": "text",
        "url!": "text",
        "token": "text",
        "authentication": "AuthenticationInfo",
    },
    "AuthenticationInfo": {"scheme!": "text", "credentials": "text"},
    "ListTaskPushNotificationConfigsResponse": {"configs": "TaskPushNotificationConfig*", "nextPageToken": "any"},
    "ListTasksResponse": {"tasks!": "Task*", "nextPageToken!": "any", "pageSize!": "any", "totalSize!": "any"},
}
"""Fields of the messages that the door sends: their types, ``*`` for a list, and ``!`` behind a name that is needed."""

_PLAIN: Mapping[str, Callable[[Any], bool]] = {
    "text": lambda value: isinstance(value, str) and bool(value),
    "flag": lambda value: isinstance(value, bool),
    "object": lambda value: isinstance(value, dict),
    "any": lambda _: True,
    "time": lambda value: bool(TIME.fullmatch(value)),
    "state": STATES.__contains__,
    "role": {"ROLE_USER", "ROLE_AGENT"}.__contains__,
}

_UPDATES = {
    "task": "Task",
    "message": "Message",
    "statusUpdate": "TaskStatusUpdateEvent",
    "artifactUpdate": "TaskArtifactUpdateEvent",
}


def judge(kind: str, value: Any, at: str = "") -> None:
    """Judge an object.

    Raises:
        AssertionError: It is not as the protocol says.
    """
    at = at or kind
    if kind in _PLAIN:
        assert _PLAIN[kind](value), (at, value)
    elif kind.endswith("*"):
        assert isinstance(value, list), at
        for number, one in enumerate(value):  # pyright: ignore[reportUnknownVariableType,reportUnknownArgumentType]
            judge(kind[:-1], one, f"{at}[{number}]")
    elif kind == "Part":
        assert len({"text", "raw", "url", "data"} & value.keys()) == 1, (at, value)
        assert value.keys() <= {"text", "raw", "url", "data", "metadata", "filename", "mediaType"}, (at, value)
    else:
        rules = {name.rstrip("!"): type_ for name, type_ in _RULES[kind].items()}
        assert not value.keys() - rules.keys(), (at, value.keys() - rules.keys())
        for name in _RULES[kind]:
            assert not name.endswith("!") or name[:-1] in value, f"{at}.{name[:-1]} is needed"
        for name, one in value.items():
            assert one is not None, f"{at}.{name}"
            judge(rules[name], one, f"{at}.{name}")
        if kind in {"Message", "Artifact"}:
            assert value["parts"], f"{at} has no part"


def judge_update(update: Mapping[str, Any]) -> None:
    """Judge one item of a stream; raises as :func:`judge`."""
    ((name, value),) = update.items()
    judge(_UPDATES[name], value)


def shown(updates: Any) -> dict[str, Any]:
    """The task as a client puts it together from a stream alone: state, and the text of each artifact that stands."""
    state, texts = "", {}
    for update in updates:
        if "task" in update:
            state = update["task"]["status"]["state"]
            for artifact in update["task"].get("artifacts", []):
                texts[artifact["artifactId"]] = text_of(artifact)
        elif "statusUpdate" in update:
            state = update["statusUpdate"]["status"]["state"]
        else:
            told = update["artifactUpdate"]
            name = told["artifact"]["artifactId"]
            texts[name] = (texts[name] if told["append"] else "") + text_of(told["artifact"])
            if told["artifact"].get("metadata", {}).get("superseded"):
                del texts[name]
    return {"state": state, "artifacts": texts}


def text_of(artifact: Mapping[str, Any]) -> str:
    """The text of an artifact."""
    return "".join(part.get("text", "") for part in artifact["parts"])
