"""Bedrock's ``Converse``: whole, and as AWS's binary events."""

import json

from perdure.activities.models.provider_replies import Object
from perdure.activities.models.wires.frames import Frame
from perdure.activities.models.wires.reply import (
    Answered,
    Blocks,
    Counts,
    Parts,
    Shown,
    count_both,
    count_of,
    finish_of,
    joined,
    missing_field,
    same_json,
    to_object,
    to_objects,
    to_text,
)
from perdure.contracts.values import JsonValue, replace_surrogates


def read(reply: Object) -> Answered:
    """The answer in a whole response.

    Raises:
        InvalidReplyError: A part is missing, the answer is malformed, or its end is unknown.
    """
    counts = counts_of(reply)
    blocks = to_object(to_object(reply.get("output")).get("message")).get("content")
    if not isinstance(blocks, list):
        raise missing_field("output", counts.usage)
    finish_reason = finish_of("stopReason", reply.get("stopReason"), counts.usage)
    parts = Parts()
    for block in to_objects(blocks):
        cited = to_object(block.get("citationsContent")).get("content")
        parts.texts.append(to_text(block.get("text")) + joined(part.get("text") for part in to_objects(cited)))
        used = to_object(block.get("toolUse"))
        if used and used.get("type") != "server_tool_use":
            parts.call(used.get("name"), same_json(used.get("input")))
        if thought := _reasoning(to_object(block.get("reasoningContent"))):
            parts.reasoning.append({**thought, **({"calls": len(parts.calls)} if parts.calls else {})})
    return parts.answered(finish_reason, counts)


def _reasoning(content: Object) -> dict[str, JsonValue]:
    """A block of reasoning in the form of Anthropic's, which is sent back through litellm."""
    said = to_object(content.get("reasoningText"))
    if data := to_text(content.get("redactedContent")):
        return {"type": "redacted_thinking", "data": data}
    if not said:
        return {}
    block: dict[str, JsonValue] = {"type": "thinking", "thinking": replace_surrogates(to_text(said.get("text")))}
    return {**block, "signature": to_text(said.get("signature"))} if said.get("signature") else block


def counts_of(reply: Object) -> Counts:
    """The usage of a response. Bedrock counts what its cache gave and what it took beside the rest of the prompt."""
    usage = to_object(reply.get("usage"))
    cached, stored = count_of(usage, "cacheReadInputTokens"), count_of(usage, "cacheWriteInputTokens")
    read_tokens, written = count_both(
        usage, count_of(usage, "inputTokens") + cached + stored, count_of(usage, "outputTokens"), total="totalTokens"
    )
    return Counts(
        input_tokens=read_tokens,
        output_tokens=written,
        cached_tokens=cached,
        stored_tokens=stored,
    )


class ConversePieces:
    """Events of a streamed response, put together to the response."""

    def __init__(self) -> None:
        self.error: JsonValue = None
        self._reason: JsonValue = None
        self._usage: Object = {}
        self._blocks = Blocks(_Block)

    @property
    def is_over(self) -> bool:
        """Whether the metadata has come, which is behind the end of the message, or an error."""
        return self.error is not None or not self.missing()

    def add(self, event: Object, frame: Frame, shown: Shown) -> None:
        """Add an event."""
        kind = frame.event
        if kind.startswith("error:"):
            name = kind.removeprefix("error:")
            self.error = {**event, "message": to_text(event.get("message")) or name, "type": name}
        elif kind in {"contentBlockStart", "contentBlockDelta"}:
            index, start = event.get("contentBlockIndex"), to_object(to_object(event.get("start")).get("toolUse"))
            block = self._blocks.begin(index, start, shown) if start else self._blocks.find(index, shown)
            block.add(event)
        elif kind == "messageStop":
            self._reason = event.get("stopReason")
        elif kind == "metadata":
            self._usage |= to_object(event.get("usage"))

    def reply(self) -> Object:
        """The response so far."""
        content: list[JsonValue] = [block.whole() for block in self._blocks]
        return {"output": {"message": {"content": content}}, "stopReason": self._reason, "usage": self._usage}

    def missing(self) -> tuple[str, ...]:
        """A stop reason and usage, as long as they have not come."""
        return (*([] if self._reason else ["a finish reason"]), *([] if self._usage else ["usage"]))


class _Block:
    """One block of a streamed response."""

    def __init__(self, place: int, shown: Shown) -> None:
        self._place = place
        self._shown = shown
        self._tool: Object = {}
        self._pieces: dict[str, list[str]] = {}

    def is_another(self, start: Object) -> bool:
        """Whether the block has a call that is another than the one that begins."""
        return bool(self._tool) and self._tool.get("toolUseId") != start.get("toolUseId")

    def add(self, event: Object) -> None:
        """Add the start of the block or a piece."""
        if tool := to_object(to_object(event.get("start")).get("toolUse")):
            self._tool = tool
            self._shown.tool_call(self._place, to_text(tool.get("name")), 0)
        delta = to_object(event.get("delta"))
        thought = to_object(delta.get("reasoningContent"))
        given = to_object(delta.get("toolUse")).get("input")
        if given is not None and not isinstance(given, str):
            given = json.dumps(given)
        pieces = {
            "text": delta.get("text"),
            "input": given,
            "thought": thought.get("text"),
            "signature": thought.get("signature"),
            "redacted": thought.get("redactedContent"),
        }
        for name, piece in pieces.items():
            if isinstance(piece, str):
                self._pieces.setdefault(name, []).append(piece)
        if text := to_text(pieces["text"]):
            self._shown.text(text)
        if text := to_text(pieces["thought"]):
            self._shown.thinking(text)
        if text := to_text(given):
            self._shown.tool_call(self._place, to_text(self._tool.get("name")), len(text))

    def whole(self) -> Object:
        """The block so far."""
        texts = {name: "".join(pieces) for name, pieces in self._pieces.items()}
        if self._tool:
            return {"toolUse": {**self._tool, "input": texts.get("input") or self._tool.get("input") or {}}}
        if "redacted" in texts:
            return {"reasoningContent": {"redactedContent": texts["redacted"]}}
        if "thought" in texts or "signature" in texts:
            said: Object = {"text": texts.get("thought", ""), "signature": texts.get("signature", "")}
            return {"reasoningContent": {"reasoningText": said}}
        return {"text": texts.get("text", "")}
