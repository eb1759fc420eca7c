"""Answers made by a seed, on five wires: what is meant, the whole reply, and a stream of it in pieces of any length.

A stream varies where providers vary: an id or a name once or with each piece, arguments in pieces or at once, usage in
an event of its own or with the end, comments, pings and fields that nobody knows between.
"""

import itertools
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tests.wires.corpus import binary

Json = Any

LETTERS = 'ab 0,{}[]"\\\n\r\tä€🙂\u2028\u2029\x85\x0b\x0c\x1c\x1d\x1e\u200b<>&'
"""Letters that a reader of lines, of JSON or of packets may stumble over."""


@dataclass(frozen=True)
class Meant:
    """What a random answer means: blocks of thinking, text and calls in their order, and counts of tokens."""

    blocks: tuple[tuple[str, Json], ...]
    read: int
    written: int

    def said(self, kind: str) -> str:
        """All text, or all thinking."""
        return "".join(value for each, value in self.blocks if each == kind)

    @property
    def calls(self) -> list[tuple[str, Json]]:
        """Names and arguments of the calls."""
        return [value for kind, value in self.blocks if kind == "call"]


class Maker:
    """Makes one answer after the other."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def text(self, most: int = 40) -> str:
        """A text that is not blank."""
        return "w" + "".join(self._random.choices(LETTERS, k=self._random.randrange(most)))

    def value(self, depth: int = 2) -> Json:
        """A value of JSON."""
        kind = self._random.randrange(6 if depth else 4)
        match kind:
            case 0:
                return self.text()
            case 1:
                return self._random.choice([0, -1, 10**15, 0.5, -2.25])
            case 2:
                return self._random.choice([True, False, None])
            case 3:
                return ""
            case 4:
                return [self.value(depth - 1) for _ in range(self._random.randrange(3))]
            case _:
                return {self.text(6): self.value(depth - 1) for _ in range(self._random.randrange(3))}

    def meant(self, wire: str) -> Meant:
        """An answer with at least one text or call; thinking only where a wire's reader keeps it."""
        blocks: list[tuple[str, Json]] = []
        if wire != "gemini" and self._random.random() < 0.5:
            blocks.append(("thinking", self.text()))
        has_text = self._random.random() < 0.6
        if has_text:
            blocks.append(("text", self.text(120)))
        for _ in range(self._random.randrange(0 if has_text else 1, 4)):
            blocks.append(
                ("call", (self._random.choice(["pay", "look"]), {self.text(6): self.value() for _ in range(2)}))
            )
            if wire in {"anthropic", "bedrock", "responses"} and self._random.random() < 0.2:
                blocks.append(("thinking", self.text()))
        return Meant(tuple(blocks), self._random.randrange(1, 999), self._random.randrange(1, 999))

    def cut(self, text: str) -> list[str]:
        """The text in pieces of any length."""
        places = sorted(
            {self._random.randrange(len(text) + 1) for _ in range(self._random.randrange(5))} | {0, len(text)}
        )
        return [text[a:b] for a, b in itertools.pairwise(places)]

    def sometimes(self, *values: Json) -> list[Json]:
        """These values, or none."""
        return list(values) if self._random.random() < 0.3 else []

    def events(self, *values: Json) -> tuple[bytes, ...]:
        """Server-sent events of these values, with comments and line ends of any kind."""
        end = self._random.choice(["\n", "\r\n", "\r"])
        lines: list[bytes] = []
        for value in values:
            named = f"event: {value['type']}{end}" if isinstance(value, dict) and "type" in value else ""
            data = value if isinstance(value, str) else json.dumps(value, ensure_ascii=self._random.random() < 0.5)
            lines += [f": ping{end}{end}".encode()] * (self._random.random() < 0.1)
            lines.append(f"{named}data: {data}{end}{end}".encode())
        return tuple(lines)

    # Each of the following returns the whole reply and its stream.

    def chat(self, meant: Meant) -> tuple[Json, tuple[bytes, ...]]:
        """Chat completions."""
        calls: list[Json] = [
            {"id": f"c{at}", "type": "function", "function": {"name": name, "arguments": json.dumps(given)}}
            for at, (name, given) in enumerate(meant.calls)
        ]
        thought, text = meant.said("thinking"), meant.said("text")
        message = {
            "role": "assistant",
            "content": text or None,
            **({"reasoning_content": thought} if thought else {}),
            **({"tool_calls": calls} if calls else {}),
        }
        end = "tool_calls" if calls else "stop"
        usage = {"prompt_tokens": meant.read, "completion_tokens": meant.written}
        head = {"id": "x", "object": "chat.completion.chunk", "model": "m"}

        def chunk(delta: Json, finish: str | None = None, **more: Json) -> Json:
            return {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more}

        deltas: list[Json] = [{"reasoning_content": piece} for piece in self.cut(thought)] if thought else []
        deltas += [{"content": piece} for piece in self.cut(text)] if text else []
        repeats = self._random.random() < 0.3
        for at, call in enumerate(calls):
            function = call["function"]
            for place, piece in enumerate(self.cut(function["arguments"])):
                is_head = repeats or place == 0
                named = {"id": call["id"], "type": "function"} if is_head else {}
                called = {"arguments": piece, **({"name": function["name"]} if is_head else {})}
                deltas.append({"tool_calls": [{"index": at, **named, "function": called}]})
        last = [chunk({}, end), {**head, "choices": [], "usage": usage}]
        if self._random.random() < 0.3:
            last = [chunk({}, end, usage=usage)]
        stream = [chunk({"role": "assistant", "content": ""}), *map(chunk, deltas), *last, *self.sometimes("[DONE]")]
        choice = {"index": 0, "message": message, "finish_reason": end}
        return {"choices": [choice], "usage": usage}, self.events(*stream)

    def anthropic(self, meant: Meant) -> tuple[Json, tuple[bytes, ...]]:
        """Anthropic's messages."""
        content, streamed = [], [*self.sometimes({"type": "ping"})]
        for at, (kind, value) in enumerate(meant.blocks):
            if kind == "call":
                block: Json = {"type": "tool_use", "id": f"t{at}", "name": value[0], "input": value[1]}
                start, pieces = {**block, "input": {}}, self.cut(json.dumps(value[1]))
                deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
            elif kind == "text":
                block, start = {"type": "text", "text": value}, {"type": "text", "text": ""}
                deltas = [{"type": "text_delta", "text": piece} for piece in self.cut(value)]
            else:
                block = {"type": "thinking", "thinking": value, "signature": f"sig-{at}"}
                start = {"type": "thinking", "thinking": "", "signature": ""}
                deltas = [{"type": "thinking_delta", "thinking": piece} for piece in self.cut(value)]
                deltas.append({"type": "signature_delta", "signature": f"sig-{at}"})
            content.append(block)
            streamed.append({"type": "content_block_start", "index": at, "content_block": start})
            streamed += [{"type": "content_block_delta", "index": at, "delta": delta} for delta in deltas]
            streamed += [*self.sometimes({"type": "news"}), {"type": "content_block_stop", "index": at}]
        end = "tool_use" if meant.calls else "end_turn"
        usage = {"input_tokens": meant.read, "output_tokens": meant.written}
        whole = {
            "id": "m",
            "type": "message",
            "role": "assistant",
            "content": content,
            "stop_reason": end,
            "usage": usage,
        }
        begun = {**whole, "content": [], "stop_reason": None, "usage": {"input_tokens": meant.read, "output_tokens": 1}}
        delta = {"type": "message_delta", "delta": {"stop_reason": end}, "usage": {"output_tokens": meant.written}}
        return whole, self.events(
            {"type": "message_start", "message": begun}, *streamed, delta, {"type": "message_stop"}
        )

    def gemini(self, meant: Meant) -> tuple[Json, tuple[bytes, ...]]:
        """Gemini's generateContent."""
        whole: list[Json] = []
        pieces: list[Json] = []
        for kind, value in meant.blocks:
            if kind == "call":
                part = {"functionCall": {"name": value[0], "args": value[1]}}
                whole.append(part)
                pieces.append(part)
            else:
                whole.append({"text": value})
                pieces += [{"text": piece} for piece in self.cut(value)]
        usage = {"promptTokenCount": meant.read, "candidatesTokenCount": meant.written}

        def reply(parts: Sequence[Json], **more: Json) -> Json:
            candidate = {"index": 0, "content": {"role": "model", "parts": list(parts)}, **more}
            return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "x"}

        return reply(whole, finishReason="STOP"), self.events(
            *(reply([piece]) for piece in pieces[:-1]), reply(pieces[-1:], finishReason="STOP")
        )

    def bedrock(self, meant: Meant) -> tuple[Json, tuple[bytes, ...]]:
        """Bedrock's Converse."""
        content: list[Json] = []
        frames = [binary("messageStart", {"role": "assistant"})]

        def delta(at: int, value: Json) -> bytes:
            return binary("contentBlockDelta", {"contentBlockIndex": at, "delta": value})

        for at, (kind, value) in enumerate(meant.blocks):
            if kind == "call":
                use = {"toolUseId": f"t{at}", "name": value[0]}
                content.append({"toolUse": {**use, "input": value[1]}})
                frames.append(binary("contentBlockStart", {"contentBlockIndex": at, "start": {"toolUse": use}}))
                frames += [delta(at, {"toolUse": {"input": piece}}) for piece in self.cut(json.dumps(value[1]))]
            elif kind == "text":
                content.append({"text": value})
                frames += [delta(at, {"text": piece}) for piece in self.cut(value)]
            else:
                content.append({"reasoningContent": {"reasoningText": {"text": value, "signature": f"sig-{at}"}}})
                frames += [delta(at, {"reasoningContent": {"text": piece}}) for piece in self.cut(value)]
                frames.append(delta(at, {"reasoningContent": {"signature": f"sig-{at}"}}))
            frames += [*self.sometimes(binary("news", {})), binary("contentBlockStop", {"contentBlockIndex": at})]
        end = "tool_use" if meant.calls else "end_turn"
        usage = {"inputTokens": meant.read, "outputTokens": meant.written, "totalTokens": meant.read + meant.written}
        whole = {"output": {"message": {"role": "assistant", "content": content}}, "stopReason": end, "usage": usage}
        last = (binary("messageStop", {"stopReason": end}), binary("metadata", {"usage": usage}))
        return whole, (*frames, *last)

    def responses(self, meant: Meant) -> tuple[Json, tuple[bytes, ...]]:
        """OpenAI's Responses."""
        items: list[Json] = []
        streamed: list[Json] = []
        for at, (kind, value) in enumerate(meant.blocks):
            item, begun, deltas = self._item(at, kind, value)
            items.append(item)
            streamed.append({"type": "response.output_item.added", "output_index": at, "item": begun})
            streamed += [{**one, "output_index": at} for one in deltas]
            streamed += self.sometimes({"type": "response.news", "output_index": at})
            streamed.append({"type": "response.output_item.done", "output_index": at, "item": item})
        usage = {"input_tokens": meant.read, "output_tokens": meant.written}
        whole = {"id": "r", "object": "response", "status": "completed", "output": items, "usage": usage}
        last = {**whole, "output": []} if self._random.random() < 0.3 else whole
        begun = {**whole, "status": "in_progress", "output": [], "usage": None}
        return whole, self.events(
            {"type": "response.created", "response": begun},
            *streamed,
            {"type": "response.completed", "response": last},
        )

    def _item(self, at: int, kind: str, value: Json) -> tuple[Json, Json, list[Json]]:
        """An item, how it begins, and its pieces."""
        if kind == "call":
            told = {"type": "function_call", "id": f"f{at}", "call_id": f"c{at}", "name": value[0]}
            arguments = json.dumps(value[1])
            pieces = [
                {"type": "response.function_call_arguments.delta", "delta": piece} for piece in self.cut(arguments)
            ]
            return {**told, "arguments": arguments}, {**told, "arguments": ""}, pieces
        if kind == "text":
            told = {"type": "message", "id": f"m{at}", "role": "assistant"}
            content = [{"type": "output_text", "text": value, "annotations": []}]
            deltas = [
                {"type": "response.output_text.delta", "content_index": 0, "delta": piece} for piece in self.cut(value)
            ]
            return {**told, "content": content}, {**told, "content": []}, deltas
        told = {"type": "reasoning", "id": f"r{at}", "encrypted_content": f"sig-{at}"}
        summary = [{"type": "summary_text", "text": value}]
        kind = "response.reasoning_summary_text.delta"
        deltas = [{"type": kind, "summary_index": 0, "delta": piece} for piece in self.cut(value)]
        return {**told, "summary": summary}, {**told, "summary": []}, deltas


def answers(wire: str, seeds: range) -> Iterator[tuple[int, Meant, Json, tuple[bytes, ...]]]:
    """Random answers of a wire: the seed, what is meant, the whole reply, and the events of the stream."""
    for seed in seeds:
        maker = Maker(seed)
        meant = maker.meant(wire)
        whole, stream = getattr(maker, wire)(meant)
        yield seed, meant, whole, stream
