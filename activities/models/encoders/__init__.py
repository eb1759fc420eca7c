"""Requests for a model's answer, in the formats of the providers.

Each module writes the body of one wire's request, of a conversation in OpenAI's chat format and of settings under
OpenAI's names. A setting that a wire has no name for is sent as it is, so that the provider itself says what it takes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from perdure.activities.models.provider_replies import Object
from perdure.contracts.values import JsonValue
from perdure.llm.openai_format import WireMessage


@dataclass(frozen=True)
class Asked:
    """A question to a model.

    Attributes:
        model: The model as its provider calls it.
        messages: The conversation, with reasoning in the fields of ``perdure.activities.models.reasoning``.
        tools: Declarations of tools.
        output: Form of the answer, as OpenAI's ``response_format``; None for a text.
        settings: The author's settings, by OpenAI's names.
        most_tokens: Longest answer of the model, for wires that want one with each request.
        thinks_as_needed: Whether a model of Anthropic's decides itself how much it thinks.
        streams: Whether the answer is to come as a stream.
    """

    model: str
    messages: Sequence[WireMessage]
    tools: Sequence[Object] = ()
    output: Object | None = None
    settings: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    most_tokens: int = 0
    thinks_as_needed: bool = False
    streams: bool = False
