"""Questions that MCP servers ask people in place of a call's result, and the answers to them."""

from typing import Literal

from perdure.contracts.input_requests import InputReceipt
from perdure.contracts.values import JsonValue, Value


class ServerQuestion(Value):
    """A question that an MCP server asks in place of a call's result; the call goes on with the answer.

    Attributes:
        number: Which of the call's questions it is, from 1.
        form: JSON schema of the answer; None for a question with options.
    """

    number: int = 1
    text: str
    form: dict[str, JsonValue] | None = None
    options: tuple[str, ...] = ()


class ServerAnswer(Value):
    """A person's answer to an MCP server's question.

    Attributes:
        action: MCP's word for it: ``decline`` if a person denied it, ``cancel`` if nobody could be asked.
        receipt: Who answered; None if nobody could be asked.
    """

    number: int = 1
    action: Literal["accept", "decline", "cancel"]
    value: JsonValue = None
    receipt: InputReceipt | None = None
