"""Chunks of a chat completion: the stream events of a response, told in the words of this protocol.

A completion is the same chunks, put together: who streams and who waits read the same.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, cast

from perdure.contracts.errors import ReasonCode
from perdure.contracts.values import JsonValue
from perdure.gateway.doors.responses.events import TurnFold, WireEvent
from perdure.gateway.doors.responses.objects import Item, Shape, asked_call, texts_of
from perdure.gateway.doors.responses.places import NOTE, Place, ResponseId
from perdure.gateway.doors.responses.settings import LEFT_ALONE
from perdure.gateway.problems import ProblemError
from perdure.security.approvals import is_cut

PREFIX = "chatcmpl-"
"""Prefix of the id of a completion; that of its response is behind it."""

CallsShown = Literal["reasoning", "text", "none"]
"""Places of calls that perdure runs: as ``reasoning_content``, in the text, or nowhere."""

YES_OR_NO = "Answer yes or no, or decide at "
HERE = "Answer here, or at "
"""Words before the address of the page, where words of a chat answer too."""

LONGEST_OUTPUT = 200
"""Characters of the output of such a call that are told."""


@dataclass(kw_only=True)
class Chunks:
    """The chunks of one completion, out of the stream events of its response.

    Attributes:
        place: The response.
        model: Name of the agent.
        created: Time of the beginning, in seconds since 1970.
        shows: Places of calls that perdure runs.
        link: Page on which people answer what the turn waits for; empty without one.
        decides: Whether words of the chat answer it, too.
        left_alone: Fields of the request that have changed nothing.
        offered: Names of the functions that the request has brought to its turn.
        seen: Characters of the text that the client has, without white space; they are passed over.
        is_continued: Whether the client adds the text to one that it has.
        fold: The fold that gives the events.
        usage: Tokens of the whole response, once it has ended.
    """

    place: ResponseId
    model: str
    created: int
    shows: CallsShown = "none"
    link: str = ""
    decides: bool = False
    left_alone: Sequence[str] = ()
    offered: Sequence[str] = ()
    seen: int = 0
    is_continued: bool = False
    fold: TurnFold | None = None
    usage: Item | None = None
    _block: str = ""
    _calls: list[str] = field(default_factory=list[str])

    def make(self, session: str, turn: int, shape: Shape, at: Place) -> TurnFold:
        """The fold of the turn, for who follows it."""
        self.fold = TurnFold(session, turn, shape, at)
        return self.fold

    @property
    def has_begun(self) -> bool:
        """Whether the turn has begun."""
        return self.fold is not None and bool(self.fold.segments)

    def begin(self) -> Item:
        """The first chunk; it does not wait for a worker."""
        return self._chunk({"role": "assistant", "content": ""})

    def take(self, event: WireEvent) -> Iterator[Item]:
        """The chunks of the next stream event.

        Raises:
            ProblemError: The turn has failed, or was cancelled. Its status is the one that no client tries again.
        """
        body = event.body
        match body["type"]:
            case "response.output_text.delta":
                if not (message := str(body["item_id"])).startswith(NOTE):
                    yield self._say(message, str(body["delta"]))
            case "response.mcp_call_arguments.done" if self.shows != "none":
                item = self._item_at(event)
                yield self._show(str(item["id"]), f"{item['name']}({body['arguments']})")
            case "response.output_item.done":
                yield from self._take_item(cast("Item", body["item"]), event.segment)
            case "response.completed" | "response.failed" | "response.incomplete":
                yield from self._end(cast("Item", body["response"]))
            case _:
                pass

    def _item_at(self, event: WireEvent) -> Item:
        if self.fold is None:
            return {"id": event.body["item_id"], "name": ""}
        return self.fold.segments[event.segment - 1].items[cast("int", event.body["output_index"])]

    def _take_item(self, item: Item, segment: int) -> Iterator[Item]:
        match item["type"]:
            case "mcp_call" if self.shows != "none" and item["status"] != "incomplete":
                yield self._show(str(item["id"]), f"\n→ {_outcome_of(item)}")
            case "mcp_approval_request" | "function_call" if question := ask_of(item, self.fold):
                yield self._ask(item, question, segment)
            case "function_call":
                self._calls.append(str(item["call_id"]))
                function = {"name": item["name"], "arguments": item["arguments"]}
                about = {"index": len(self._calls) - 1, "id": item["call_id"], "type": "function"}
                yield self._chunk({"tool_calls": [{**about, "function": function}]})
            case _:
                pass

    def _ask(self, item: Item, text: str, segment: int) -> Item:
        """Request for a decision of people, with the page on which they decide, and the place that asks."""
        how = HERE if item["type"] == "function_call" else YES_OR_NO
        how = how if self.decides and not is_cut(str(item["arguments"])) else ""
        turn = self.place.turn if self.fold is None else self.fold.turn
        page = f"\n{how}{self.link}?asked={turn}.{segment}" if self.link else ""
        return self._say(str(item["id"]), f"{text}{page}")

    def _say(self, block: str, text: str) -> Item:
        """A piece of the text; blocks of it stand apart."""
        apart = "\n\n" if self._block not in {"", block} or (self.is_continued and not self._block) else ""
        self._block, text = block, apart + text
        if self.seen:
            text, self.seen = _behind(text, self.seen)
        return self._chunk({"content": text})

    def _show(self, block: str, text: str) -> Item:
        """A piece of what perdure does."""
        is_text = self.shows == "text" and (self.fold is None or self.fold.shape.output_schema is None)
        if is_text:
            return self._say(block, text)
        return self._chunk({} if self.seen else {"reasoning_content": f"{text}\n"})

    def _end(self, response: Item) -> Iterator[Item]:
        about, error = cast("Item", response["metadata"]), response.get("error")
        code = str(about.get("reason_code") or "")
        if isinstance(error, dict):
            raise ProblemError(400, code or str(error["code"]), str(error["message"]))
        if response["status"] == "cancelled":
            raise ProblemError(400, code or ReasonCode.RUNTIME_ABORTED, "the job was cancelled")
        self.usage = _describe_usage(cast("Item", response["usage"] or {}))
        reason = "length" if response["status"] == "incomplete" else "tool_calls" if self._calls else "stop"
        ended = self._chunk({}, reason)
        left_alone = [*self.left_alone, *self._given_way()]
        more = {LEFT_ALONE: ", ".join(left_alone)} if left_alone else {}
        yield {**ended, "metadata": {**about, **more}}

    def _given_way(self) -> Iterator[str]:
        """The functions that were left out, because the agent has tools of these names."""
        if self.fold is not None and self.fold.shape.names:
            brought = {str(tool["name"]) for tool in self.fold.shape.tools}
            yield from (f"tools.{name}" for name in self.offered if name not in brought)

    def _chunk(self, delta: Item, reason: str | None = None) -> Item:
        choice: Item = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        return {**self._head("chat.completion.chunk"), "choices": [choice]}

    def _head(self, kind: str) -> Item:
        return {"id": f"{PREFIX}{self.place}", "object": kind, "created": self.created, "model": self.model}

    def usage_chunk(self) -> Item:
        """The chunk with the usage alone, behind all others."""
        return {**self._head("chat.completion.chunk"), "choices": [], "usage": self.usage}

    def whole(self, chunks: Sequence[Item]) -> Item:
        """The completion that these chunks are."""
        texts = {"content": "", "reasoning_content": ""}
        calls: list[JsonValue] = []
        reason: JsonValue = None
        for chunk in chunks:
            (choice,) = cast("list[Item]", chunk["choices"])
            delta, reason = cast("Item", choice["delta"]), choice["finish_reason"]
            for name in texts:
                texts[name] += str(delta.get(name, ""))
            called = cast("list[Item]", delta.get("tool_calls", []))
            calls += ({name: value for name, value in call.items() if name != "index"} for call in called)
        message: Item = {"role": "assistant", "content": texts["content"] or (None if calls else ""), "refusal": None}
        if texts["reasoning_content"]:
            message["reasoning_content"] = texts["reasoning_content"]
        if calls:
            message["tool_calls"] = calls
        answer: Item = {"index": 0, "message": message, "logprobs": None, "finish_reason": reason}
        about = chunks[-1].get("metadata") if chunks else None
        return {**self._head("chat.completion"), "choices": [answer], "usage": self.usage, "metadata": about}


def _behind(text: str, seen: int) -> tuple[str, int]:
    """The text behind so many characters that are no white space, and how many are still to be passed over."""
    for at, character in enumerate(text):
        if not seen:
            return text[at:], 0
        seen -= not character.isspace()
    return "", seen


def ask_of(item: Item, fold: TurnFold | None) -> str:
    """Question of an item to people, in words; empty if it has none."""
    if item["type"] == "mcp_approval_request":
        return f"{item['name']} waits for an approval: {item['arguments']}"
    is_question = fold is not None and fold.needs.get(asked_call(item)) == "answer"
    return _question_of(item) if item["type"] == "function_call" and is_question else ""


def questions_of(fold: TurnFold, segment: int) -> dict[str, str]:
    """The questions of a turn's segment to people, by the ids of the calls."""
    items = fold.segments[segment - 1].items if 0 < segment <= len(fold.segments) else []
    return {asked_call(item): question for item in items if (question := ask_of(item, fold))}


def contents_of(fold: TurnFold, shows: CallsShown) -> list[str]:
    """The texts of a turn's completions, as chats have been told them but for addresses of pages."""
    return ["\n\n".join(_texts_of(segment.items, fold, shows)) for segment in fold.segments]


def _texts_of(items: Sequence[Item], fold: TurnFold, shows: CallsShown) -> Iterator[str]:
    for item in items:
        if item["type"] == "message" and not str(item["id"]).startswith(NOTE):
            yield from texts_of([item])
        elif item["type"] == "mcp_call" and shows == "text" and fold.shape.output_schema is None:
            yield f"{item['name']}({item['arguments']})\n→ {_outcome_of(item)}"
        elif question := ask_of(item, fold):
            yield question


def _outcome_of(item: Item) -> str:
    """The beginning of what came of a call."""
    error = item.get("error")
    parts = error.get("content") if isinstance(error, dict) else None
    first = parts[0] if isinstance(parts, list) and parts else None
    text = str(first.get("text")) if isinstance(first, dict) else str(item.get("output") or "")
    return text if len(text) <= LONGEST_OUTPUT else f"{text[:LONGEST_OUTPUT]}…"


def _question_of(item: Item) -> str:
    """The words of a question, which stand in the arguments of its call."""
    try:
        told: JsonValue = json.loads(str(item["arguments"]))
    except ValueError:
        told = None
    question = told.get("question") if isinstance(told, dict) else None
    return str(question) if question else f"{item['name']} asks: {item['arguments']}"


def _describe_usage(usage: Item) -> Item:
    cached = cast("Item", usage.get("input_tokens_details") or {}).get("cached_tokens", 0)
    return {
        "prompt_tokens": usage.get("input_tokens", 0),
        "completion_tokens": usage.get("output_tokens", 0),
        "total_tokens": usage.get("total_tokens", 0),
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
