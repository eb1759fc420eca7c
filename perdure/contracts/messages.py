"""Messages of a conversation, neutral between providers; the wire format is made in ``perdure.activities.generate``."""

from typing import Annotated, Literal

from pydantic import Field

from perdure.contracts.content import Parts, parts_field
from perdure.contracts.errors import ErrorDetail
from perdure.contracts.people import InputReceipt
from perdure.contracts.values import JsonValue, Value


class ToolCall(Value):
    """One tool call of an assistant message.

    Attributes:
        id: Made by us, unique in the session: providers repeat ids or leave them empty.
        name: The tool's wire name, as the model wrote it.
        arguments: The raw JSON text, as the model wrote it; it may be broken.
    """

    id: str
    name: str
    arguments: str = "{}"


class UserMessage(Value):
    """What a person or another service said.

    Attributes:
        summary_of: Of the summary that a compaction put in place of earlier messages: how many they are.
        parts: The images and files that came with the text.
    """

    role: Literal["user"] = "user"
    content: str
    summary_of: int | None = None
    parts: Parts = parts_field()


class AssistantMessage(Value):
    """What the model said.

    Attributes:
        content: The text; empty when the model only calls tools.
        tool_calls: The calls, in the model's order.
        thinking: The model's reasoning as far as its provider wants it back unchanged: blocks that name their model.
        value: What the content holds as JSON, of an answer that fits the agent's output schema.
    """

    role: Literal["assistant"] = "assistant"
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    thinking: tuple[JsonValue, ...] = ()
    value: JsonValue = None


class ToolMessage(Value):
    """The result of one tool call, as the model reads it; ``error`` says that it failed.

    Attributes:
        decided: Who answered, approved or denied the call, if a person was asked. The model does not read it.
        stop: Why the tool asked the turn to end, if it did. The model does not read it.
        matched: The stop conditions on texts that hold for the whole result, by their place among them.
        delegate: The session of the delegate that carried out the call, if one did. The model does not read it.
        parts: The images of the result, for models that see; the content has a line for each.
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
