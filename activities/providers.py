"""The marks with which a conversation goes to a provider that keeps the beginning of a prompt.

A provider that is asked to keeps the beginning of a prompt: the next call then costs less. The last system message is
marked, and with it the tools before it; so are the last two messages that are no answers. The next step finds the
conversation up to there. Source: Dreadnode's cache mode ``latest``. All this is done to what is sent, and to nothing
that is stored or recorded.
"""

from perdure.activities.conversations import WireMessage
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.values import JsonValue

MARKED_MESSAGES = 2
"""With the system message these are three of the four marks that Anthropic takes."""

_MARK: JsonValue = {"type": "ephemeral"}


def marked(definition: AgentDefinition, messages: list[WireMessage]) -> list[WireMessage]:
    """The messages as they are sent, with marks if the agent wants them and its provider takes them."""
    if definition.cache == "off" or not _takes_marks(definition.model):
        return messages
    system = [at for at, one in enumerate(messages) if one.get("role") == "system"]
    said = [at for at, one in enumerate(messages) if one.get("role") not in {"system", "assistant"}]
    places = {*system[-1:], *said[-MARKED_MESSAGES:]}
    return [_with_mark(one) if at in places else one for at, one in enumerate(messages)]


def _takes_marks(model: str) -> bool:
    """Whether it is one of Anthropic's models; others keep what they can by themselves, or refuse the mark."""
    provider, _, name = model.partition("/")
    return provider == "anthropic" or (provider in {"bedrock", "openrouter", "vertex_ai"} and "claude" in name)


def _with_mark(message: WireMessage) -> WireMessage:
    content = message.get("content")
    if isinstance(content, list):
        return {**message, "content": _with_last_marked(content)}
    if not isinstance(content, str) or not content.strip():  # an empty text may not be marked
        return message
    if message.get("role") == "tool":
        return {**message, "cache_control": _MARK}
    return {**message, "content": [{"type": "text", "text": content, "cache_control": _MARK}]}


def _with_last_marked(blocks: list[JsonValue]) -> JsonValue:
    """The blocks with the mark on the last text that has any: not every provider takes one on a file."""
    for place in reversed(range(len(blocks))):
        block = blocks[place]
        if isinstance(block, dict) and block.get("type") == "text" and str(block.get("text")).strip():
            return [*blocks[:place], {**block, "cache_control": _MARK}, *blocks[place + 1 :]]
    return blocks
