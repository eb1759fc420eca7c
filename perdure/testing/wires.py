"""What the two wire formats have in common: requests in, answers and errors out."""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from perdure.contracts.values import JsonValue, Value
from perdure.testing.script import ChatRequest, ErrorText, Fault, KnownError, Reply


class KnownText(ErrorText):
    """The status and words of a known error; ``{model}``, ``{key}``, ``{tokens}`` and others are filled in."""

    status: int


class RuleTexts(Value):
    """What a wire says of a conversation that breaks a rule; ``{at}`` is the message's number, ``{what}`` the id."""

    unanswered: str
    orphan: str
    twice: str
    bad_name: str
    no_content: str


class Wire(ABC):
    """One wire format, as its provider documents it."""

    path: ClassVar[str]
    known: ClassVar[Mapping[KnownError, KnownText]]
    rules: ClassVar[RuleTexts]

    @abstractmethod
    def request(self, body: bytes) -> ChatRequest:
        """The request of a body.

        Raises:
            ValueError: The body is no request of this wire.
        """

    @abstractmethod
    def answer(self, request: ChatRequest, reply: Reply) -> dict[str, JsonValue]:
        """The answer as an object; ids and token counts depend on the request alone."""

    @abstractmethod
    def without_answer(self, answer: dict[str, JsonValue]) -> dict[str, JsonValue]:
        """The same object with nothing in it."""

    @abstractmethod
    def is_empty(self, message: Mapping[str, JsonValue]) -> bool:
        """Whether the message lacks the content that the provider asks for."""

    @abstractmethod
    def error(self, status: int, text: ErrorText) -> dict[str, JsonValue]:
        """An error reply."""

    def refusal(self, fault: Fault, filled: Mapping[str, object]) -> tuple[int, JsonValue]:
        """Status and body of an error reply, with the words of a known error filled in."""
        if fault.known is not None:
            text = self.known[fault.known]
            said = ErrorText(message=text.message.format(**filled), type=text.type, code=text.code)
            return fault.sent_as or text.status, self.error(text.status, said)
        said = fault.error or ErrorText(message=f"scripted status {fault.status}", type="scripted")
        return fault.sent_as or fault.status, fault.body or self.error(fault.status, said)


def call_ids(request: ChatRequest, reply: Reply, prefix: str) -> tuple[str, ...]:
    """The ids of the reply's calls, or those that the script sets."""
    own = tuple(f"{prefix}_{request.digest}_{number}" for number in range(len(reply.calls)))
    return own if reply.call_ids is None else reply.call_ids


def written_tokens(reply: Reply) -> int:
    """The size of the answer by the provider's count."""
    return (len(reply.text or "") + sum(len(json.dumps(given)) for _, given in reply.calls)) // 4 + 1


def shown_key(headers: Mapping[str, str]) -> str:
    """The key of a request as OpenAI repeats it: its two ends, and stars between."""
    key = headers.get("x-api-key") or headers.get("authorization", "").removeprefix("Bearer ")
    return f"{key[:8]}{'*' * max(4, len(key) - 12)}{key[-4:]}"
