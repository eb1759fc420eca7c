"""Google's ``generateContent`` of Gemini and Vertex AI: whole, and as server-sent events of partial responses."""

from collections.abc import Iterator
from typing import cast

from perdure.activities.models.provider_replies import InvalidReplyError, Object
from perdure.activities.models.wires.frames import Frame
from perdure.activities.models.wires.reply import (
    LONGEST_WHY,
    Answered,
    Counts,
    FinishReason,
    Parts,
    Shown,
    count_both,
    count_of,
    finish_of,
    has_ended,
    is_error,
    merge_ends,
    missing_field,
    to_object,
    to_objects,
    to_text,
)
from perdure.contracts.values import JsonValue, replace_surrogates


def read(reply: Object) -> Answered:
    """The answer in a whole response. A prompt that was blocked is an answer that the content filter ended.

    Raises:
        InvalidReplyError: A part is missing, the answer is malformed, or its end is unknown.
    """
    counts = counts_of(reply)
    blocked = to_object(reply.get("promptFeedback")).get("blockReason")
    candidates = to_objects(reply.get("candidates"))
    if blocked and not candidates:
        said = to_text(to_object(reply.get("promptFeedback")).get("blockReasonMessage"))
        text = f"the prompt was blocked ({blocked}{f': {said[:LONGEST_WHY]}' if said else ''})"
        return Answered(text=text, finish_reason="content_filter", counts=counts)
    if not isinstance(reply.get("candidates"), list):
        raise missing_field("candidates", counts.usage)
    parts = Parts()
    thoughts: list[str] = []
    signatures: list[dict[str, JsonValue]] = []
    ends: list[FinishReason] = []
    for candidate in candidates:
        parts.why = to_text(candidate.get("finishMessage")) or parts.why
        ends.append(finish_of("finishReason", candidate.get("finishReason"), counts.usage, parts.why))
        for part in to_objects(to_object(candidate.get("content")).get("parts")):
            signature = to_text(part.get("thoughtSignature"))
            called = part.get("functionCall")
            if isinstance(called, dict):
                if called.get("partialArgs"):
                    msg = "Gemini sent the arguments of a call in pieces; leave out streamFunctionCallArguments"
                    raise InvalidReplyError(msg, counts.usage)
                if signature:
                    signatures.append(_signature(len(parts.calls), signature))
                parts.call(called.get("name"), called.get("args"))
            elif part.get("thought") is True:
                thoughts.append(to_text(part.get("text")))
            else:
                parts.texts.append(to_text(part.get("text")))
                if signature:
                    signatures.append(_signature(-1, signature))
    parts.reasoning += _blocks("".join(thoughts), signatures)
    return parts.answered(merge_ends(ends), counts)


def _signature(place: int, signature: str) -> dict[str, JsonValue]:
    return {"type": "thought_signature", "call": place, "signature": replace_surrogates(signature)}


def _blocks(thought: str, signatures: list[dict[str, JsonValue]]) -> Iterator[dict[str, JsonValue]]:
    """The blocks of reasoning; a signature that stands at a call and at the text is kept once."""
    if thought:
        yield {"type": "reasoning_content", "text": replace_surrogates(thought)}
    of_calls = [block for block in signatures if block["call"] != -1]
    yield from of_calls
    known = [block["signature"] for block in of_calls]
    of_text = [block for block in signatures if block["call"] == -1 and block["signature"] not in known]
    yield from of_text[:1]


def counts_of(reply: Object) -> Counts:
    """The usage of a response. Gemini counts thoughts beside the answer, and what its tools read beside the prompt."""
    usage = to_object(reply.get("usageMetadata"))
    read_tokens = count_of(usage, "promptTokenCount") + count_of(usage, "toolUsePromptTokenCount")
    written = count_of(usage, "candidatesTokenCount", "responseTokenCount") + count_of(usage, "thoughtsTokenCount")
    read_tokens, written = count_both(usage, read_tokens, written, total="totalTokenCount")
    return Counts(
        input_tokens=read_tokens,
        output_tokens=written,
        cached_tokens=min(count_of(usage, "cachedContentTokenCount"), read_tokens),
    )


class GeminiPieces:
    """Partial responses of a stream, put together to one response."""

    def __init__(self) -> None:
        self.error: JsonValue = None
        self._reply: Object = {}
        self._candidates: dict[str, _Candidate] = {}

    @property
    def is_over(self) -> bool:
        """Whether an error has come; no partial response says that it is the last one."""
        return self.error is not None

    def add(self, event: Object, frame: Frame, shown: Shown) -> None:
        """Add a partial response."""
        del frame
        if is_error(event.get("error")):
            self.error = cast("JsonValue", event)
            return
        for name in ("usageMetadata", "promptFeedback"):
            if found := to_object(event.get(name)):
                self._reply[name] = {**to_object(self._reply.get(name)), **found}
        for candidate in to_objects(event.get("candidates")):
            added = self._candidates.setdefault(str(candidate.get("index") or 0), _Candidate())
            added.add(candidate, shown)

    def reply(self) -> Object:
        """The response so far."""
        return {**self._reply, "candidates": [candidate.whole() for candidate in self._candidates.values()]}

    def missing(self) -> tuple[str, ...]:
        """A finish reason, or that the prompt is blocked, and usage, as long as they have not come."""
        blocked = to_object(self._reply.get("promptFeedback")).get("blockReason")
        has_ended = blocked or any(candidate.reason for candidate in self._candidates.values())
        has_usage = blocked or self._reply.get("usageMetadata")
        return (*([] if has_ended else ["a finish reason"]), *([] if has_usage else ["usage"]))


class _Candidate:
    def __init__(self) -> None:
        self.reason: JsonValue = None
        self._why: JsonValue = None
        self._parts: list[JsonValue] = []
        self._calls = 0

    def add(self, candidate: Object, shown: Shown) -> None:
        if has_ended(reason := candidate.get("finishReason")):
            self.reason = reason
        self._why = candidate.get("finishMessage") or self._why
        for part in to_objects(to_object(candidate.get("content")).get("parts")):
            self._parts.append(cast("JsonValue", part))
            text, called = to_text(part.get("text")), part.get("functionCall")
            if isinstance(called, dict):
                shown.tool_call(self._calls, to_text(called.get("name")), len(str(called.get("args") or "")))
                self._calls += 1
            elif text and part.get("thought") is True:
                shown.thinking(text)
            elif text:
                shown.text(text)

    def whole(self) -> Object:
        return {"content": {"parts": self._parts}, "finishReason": self.reason, "finishMessage": self._why}
