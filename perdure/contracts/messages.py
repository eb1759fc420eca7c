"""Messages: what a model reads and writes; and conversations in OpenAI's chat format, checked and taken over."""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationError
from pydantic_core import to_json

from perdure.contracts.errors import ErrorDetail
from perdure.contracts.files import Parts, parts_field
from perdure.contracts.input_requests import InputReceipt
from perdure.contracts.values import JsonValue, Value, describe_mistake, json_object, replace


class ToolCall(Value):
    """One tool call of an assistant message.

    Attributes:
        id: Our own id, unique in the session: providers repeat ids or leave them empty.
        name: The tool's wire name, as the model wrote it.
        arguments: The JSON text as the model wrote it, maybe broken; masked if it holds secrets.
    """

    id: str
    name: str
    arguments: str = "{}"


class UserMessage(Value):
    """A message of a person or another service.

    Attributes:
        summary_of: For the summary of a compaction: number of messages that it replaces.
        parts: Images and files of the message.
    """

    role: Literal["user"] = "user"
    content: str
    summary_of: int | None = None
    parts: Parts = parts_field()


class AssistantMessage(Value):
    """An answer of the model.

    Attributes:
        content: The text; empty when the model only calls tools.
        tool_calls: The calls, in the model's order.
        thinking: Blocks of reasoning that the provider wants back unchanged; each names its model.
        value: The content's JSON, for an answer that fits the agent's output schema.
    """

    role: Literal["assistant"] = "assistant"
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    thinking: tuple[JsonValue, ...] = ()
    value: JsonValue = None


class ToolMessage(Value):
    """The result of one tool call, as the model reads it; ``error`` says that it failed.

    Attributes:
        decided: A person's decision about the call. The model does not read it.
        stop: Reason with which the tool asked the turn to end. The model does not read it.
        matched: Indexes of the stop conditions on texts that the whole result meets.
        delegate: Session of the delegate that carried out the call. The model does not read it.
        parts: Images of the result, for models that see; the content has a line for each.
    """

    role: Literal["tool"] = "tool"
    call_id: str
    name: str
    content: str
    error: ErrorDetail | None = None
    decided: InputReceipt | None = None
    stop: str | None = None
    matched: tuple[int, ...] = ()
    delegate: str | None = None
    parts: Parts = parts_field()


Message = Annotated[UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")]
"""Any message of a conversation. The system prompt is not one: it stands in the agent's definition."""


SYSTEM_ROLES = frozenset({"system", "developer"})
"""Roles of the system prompt, which stands before the conversation and apart from it."""

LONGEST_CALL_ID = 64
"""Longest id of a call that providers take, in characters."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NOT_IN_IDS = re.compile(r"[^A-Za-z0-9_-]")

MAX_HISTORY_BYTES = 1024 * 1024
"""Longest conversation that a request may bring, as JSON in UTF-8; it travels in Temporal payloads."""


class ConversationError(ValueError):
    """Messages that no model could continue; the text names the first wrong one."""


def read_openai(messages: Sequence[JsonValue]) -> tuple[str, tuple[Message, ...]]:
    """The system prompt, and the messages after it.

    Raises:
        ConversationError: A message is malformed, or a call lacks a result right after it.
    """
    prompts: list[str] = []
    read: list[Message] = []
    names: dict[str, str] = {}
    for at, message in enumerate(messages):
        given = _object(at, message)
        role = given.get("role")
        if role in SYSTEM_ROLES:
            if read:
                raise _error_at(at, "a system prompt stands behind other messages; put it first, or leave it out")
            prompts.append(_text(at, given))
        else:
            read.append(_message(at, given, names))
    check_conversation(read, begins_at=len(prompts))
    return "\n\n".join(prompts), tuple(read)


def check_history(messages: Sequence[JsonValue]) -> tuple[Message, ...]:
    """The messages that a session may begin with, which every provider takes; odd characters of call ids are replaced.

    Raises:
        ConversationError: There is a message that providers refuse.
    """
    _, read = read_openai(messages)
    begins_at = len(messages) - len(read)
    ids: dict[str, str] = {}
    taken: list[Message] = []
    for at, message in enumerate(read, start=begins_at):
        if at == begins_at and not isinstance(message, UserMessage):
            raise _error_at(at, "a conversation begins with a message of the user; put the one that this answers first")
        if isinstance(message, UserMessage):
            if not message.content.strip():
                raise _error_at(at, "this message of the user is empty; leave it out")
            taken.append(message)
        elif isinstance(message, AssistantMessage):
            calls = tuple(_make_sendable(at, call, ids) for call in message.tool_calls)
            taken.append(replace(message, tool_calls=calls))
        else:
            taken.append(replace(message, call_id=ids[message.call_id]))
    return tuple(taken)


def _make_sendable(at: int, call: ToolCall, ids: dict[str, str]) -> ToolCall:
    """The call as providers take it; its new id is noted beside the old one."""
    if not _NAME.fullmatch(call.name):
        raise _error_at(at, f"a call's tool is named {call.name[:100]!r}; a name has 1 to 64 letters, digits, _ and -")
    arguments = call.arguments.strip() or "{}"
    try:
        json_object(arguments)
    except ValueError as error:
        raise _error_at(at, f"the arguments of call {call.id!r} are no JSON object: {error}") from None
    cleaned = _NOT_IN_IDS.sub("_", call.id)
    if cleaned in ids.values():
        raise _error_at(at, f"the id {call.id!r} of a call becomes {cleaned!r}, which another call has; choose another")
    ids[call.id] = cleaned
    return replace(call, id=cleaned, arguments=arguments)


def check_conversation(messages: Sequence[Message], *, begins_at: int = 0) -> None:
    """Check that every call has its result right after it, and every result its call.

    Raises:
        ConversationError: It is not so.
    """
    waiting: list[str] = []
    seen: set[str] = set()
    for at, message in enumerate(messages, start=begins_at):
        if isinstance(message, ToolMessage):
            if message.call_id not in waiting:
                raise _error_at(
                    at, f"it is the result of call {message.call_id!r}, which no message before it asks for"
                )
            waiting.remove(message.call_id)
            continue
        if waiting:
            raise _error_at(at, f"call {waiting[0]!r} has no result yet; put its tool message before this one")
        calls = message.tool_calls if isinstance(message, AssistantMessage) else ()
        for call in calls:
            if call.id in seen or not 0 < len(call.id) <= LONGEST_CALL_ID:
                raise _error_at(at, f"the id {call.id!r} of a call is empty, too long or there twice")
            seen.add(call.id)
            waiting.append(call.id)
    if waiting:
        at = begins_at + len(messages)
        raise ConversationError(f"the conversation ends before call {waiting[0]!r} has its result (message {at})")


def _error_at(at: int, cause: str) -> ConversationError:
    return ConversationError(f"message {at + 1}: {cause}")


def _object(at: int, message: JsonValue) -> dict[str, JsonValue]:
    if not isinstance(message, dict):
        raise _error_at(at, "it is no object with role and content")
    return message


def _message(at: int, given: Mapping[str, JsonValue], names: dict[str, str]) -> Message:
    role = given.get("role")
    if role == "user":
        return UserMessage(content=_text(at, given))
    if role == "assistant":
        calls = tuple(_call(at, call) for call in _list(at, given.get("tool_calls")))
        names.update((call.id, call.name) for call in calls)
        text = "" if given.get("content") is None else _text(at, given)
        return AssistantMessage(content=text, tool_calls=calls)
    if role == "tool":
        call_id = given.get("tool_call_id")
        if not isinstance(call_id, str):
            raise _error_at(at, "a tool message needs its tool_call_id")
        return ToolMessage(call_id=call_id, name=names.get(call_id, ""), content=_text(at, given))
    raise _error_at(at, f"its role {role!r} is none of system, user, assistant and tool")


def _list(at: int, value: JsonValue) -> list[JsonValue]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise _error_at(at, "tool_calls is no list")
    return value


def _call(at: int, call: JsonValue) -> ToolCall:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict):
        raise _error_at(at, "a tool call is an object with id and function")
    try:
        return ToolCall.model_validate(
            {"id": call.get("id"), "name": function.get("name"), "arguments": function.get("arguments", "{}")}
        )
    except ValidationError as error:
        raise _error_at(at, f"a tool call: {describe_mistake(error)}") from None


def _text(at: int, message: Mapping[str, JsonValue]) -> str:
    """The text of a content: a string, or parts that are texts."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(_read_part(at, part) for part in content)
    raise _error_at(at, "it has no content")


def _read_part(at: int, part: JsonValue) -> str:
    text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
    if not isinstance(text, str):
        raise _error_at(at, "its content has parts that are no text; only texts can be taken over")
    return text


def _small_and_whole(messages: tuple[dict[str, JsonValue], ...]) -> tuple[dict[str, JsonValue], ...]:
    size = len(to_json(messages))
    if size > MAX_HISTORY_BYTES:
        msg = f"is {size:,} bytes, the limit is {MAX_HISTORY_BYTES:,}; give the agent large texts with a tool"
        raise ValueError(msg)
    check_history(messages)
    return messages


History = Annotated[tuple[dict[str, JsonValue], ...], AfterValidator(_small_and_whole)]
"""A conversation in OpenAI's chat format with which a session begins."""
