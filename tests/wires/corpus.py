"""Answers as providers send them, whole and streamed, and what is to be read of them.

Each is written after the provider's own pages or after what its servers were seen to send; nothing is copied. A stream
is a list of frames, so that the tests can cut it wherever they like.
"""

import base64
import json
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Json = Any

SEPARATORS = "Pay Ada\u2028and\u2029Bob\x85now\x0b\x0c.\x1c\x1d\x1e"
"""Characters at which ``str.splitlines`` splits, and an event stream does not."""


SEPARATORS_IN_JSON = json.dumps(SEPARATORS, ensure_ascii=False)[1:-1]
"""The same within a JSON text; only those below a space are escaped."""


@dataclass(frozen=True)
class Sample:
    """One answer.

    Attributes:
        name: What is special about it.
        model: The model that is asked, which decides the wire.
        whole: The reply without a stream.
        frames: The same as a stream, in frames as they stand on the wire.
        text: The text that is to be read.
        calls: The calls, as names and arguments.
        thinking: The texts of its reasoning blocks that are kept for the next call, and their signatures.
        finish: The finish reason.
        usage: Tokens of input, output and cache.
        cost: The cost in US dollars, as far as the provider says it.
        code: The reason code of an answer that is none.
        kind: The content type of the stream.
    """

    name: str
    model: str
    whole: Json
    frames: tuple[bytes, ...]
    text: str = ""
    calls: tuple[tuple[str, Json], ...] = ()
    thinking: tuple[Json, ...] = ()
    finish: str = "stop"
    usage: tuple[int, int, int] = (7, 5, 0)
    cost: str | None = None
    code: str = ""
    kind: str = "text/event-stream"
    params: Mapping[str, Json] = field(default_factory=dict)


def events(*values: Json, end: str = "\n") -> tuple[bytes, ...]:
    """Server-sent events; a text is sent as it is."""
    return tuple(
        (value if isinstance(value, str) else f"data: {json.dumps(value, ensure_ascii=False)}{end}{end}").encode()
        for value in values
    )


DONE = "data: [DONE]\n\n"

USAGE = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}


def completion(message: Json, finish: str = "stop", usage: Json = None, **more: Json) -> Json:
    """A chat completion with one choice."""
    choice = {"index": 0, "message": {"role": "assistant", "content": None, **message}, "finish_reason": finish}
    return {"id": "x", "object": "chat.completion", "model": "m", "choices": [choice], "usage": usage or USAGE, **more}


def chunk(delta: Json = None, finish: str | None = None, **more: Json) -> Json:
    """A chunk with one choice."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "x", "object": "chat.completion.chunk", "model": "m", "choices": [choice], **more}


def chunks(*deltas: Json, finish: str = "stop", usage: Json = None, end: str = "\n") -> tuple[bytes, ...]:
    """Chunks with these deltas, their finish reason, and usage in a chunk without choices."""
    last: Json = {"id": "x", "object": "chat.completion.chunk", "model": "m", "choices": [], "usage": usage or USAGE}
    return events(*(chunk(delta) for delta in deltas), chunk({}, finish), last, DONE, end=end)


def piece(index: Json, call_id: Json, name: Json, arguments: Json) -> Json:
    """A delta with a piece of one call; a part that is ``...`` is left out."""
    function = {key: part for key, part in (("name", name), ("arguments", arguments)) if part is not ...}
    call = {"index": index, "id": call_id, "type": "function", "function": function}
    return {"tool_calls": [{key: part for key, part in call.items() if part is not ...}]}


def called(*calls: tuple[str, Json], **more: Json) -> Json:
    """A message with calls."""
    functions = [
        {
            "id": f"c{at}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(given, ensure_ascii=False)},
        }
        for at, (name, given) in enumerate(calls)
    ]
    return {"tool_calls": functions, **more}


PAY = (("pay", {"to": "Ada"}), ("pay", {"to": "Bob"}))


def _chat() -> Iterable[Sample]:
    openai = "openai/scripted"

    def text(name: str, frames: tuple[bytes, ...], said: str = "The answer.", **more: Any) -> Sample:
        return Sample(name, openai, completion({"content": said}), frames, text=said, **more)

    def pay(name: str, *deltas: Json, calls: Sequence[tuple[str, Json]] = PAY, **more: Any) -> Sample:
        return Sample(
            name,
            openai,
            completion(called(*calls), "tool_calls"),
            chunks(*deltas, finish="tool_calls"),
            calls=tuple(calls),
            finish="tool_calls",
            **more,
        )

    yield text(
        "text in pieces", chunks({"role": "assistant", "content": ""}, {"content": "The "}, {"content": "answer."})
    )
    yield text("separators of lines", chunks(*({"content": part} for part in SEPARATORS)), SEPARATORS)
    yield pay(
        "separators of lines in arguments",
        piece(0, "c1", "pay", ""),
        *(piece(0, ..., ..., part) for part in ('{"to": "', *SEPARATORS_IN_JSON, '"}')),
        calls=(("pay", {"to": SEPARATORS}),),
    )
    yield text("CRLF", chunks({"content": "The "}, {"content": "answer."}, end="\r\n"))
    yield text("CR", chunks({"content": "The "}, {"content": "answer."}, end="\r"))
    yield text("a byte order mark", (b"\xef\xbb\xbf", *chunks({"content": "The answer."})))
    yield text(
        "comments, ids, retries and pings",
        events(
            ": OPENROUTER PROCESSING\n\n",
            "id: 1\nretry: 5\ndata:" + json.dumps(chunk({"content": "The "})) + "\n\n",
            "event: ping\ndata: {}\n\n",
            "event: message\nid: 2\ndata: " + json.dumps(chunk({"content": "answer."})) + "\n\n",
            chunk({}, "stop"),
            "event: ping\ndata: null\n\n",
            {"choices": [], "usage": USAGE},
            DONE,
        ),
    )
    yield text(
        "data in several lines",
        events(
            "".join(f"data: {line}\n" for line in json.dumps(chunk({"content": "The answer."}), indent=1).split("\n"))
            + "\n",
            chunk({}, "stop"),
            {"choices": [], "usage": USAGE},
            DONE,
        ),
    )
    whole = chunks({"content": "The "}, {"content": "answer."})
    yield text("sent as JSON", whole, kind="application/json")
    yield text("sent as text", whole, kind="text/plain; charset=utf-8")
    yield text("sent without a type", whole, kind="")
    yield text("no end but the connection's", whole[:-1])
    yield text("no blank line behind the last event", (*whole[:-2], whole[-2].rstrip()))
    yield text(
        "null deltas and null choices",
        events(
            chunk(None),
            {"choices": None},
            chunk({"content": "The answer."}),
            5,
            None,
            chunk(None, "stop"),
            {"choices": [], "usage": USAGE},
        ),
    )
    yield text(
        "usage in a choice",
        events(
            chunk({"content": "The answer."}),
            {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "usage": USAGE}]},
        ),
    )
    yield text(
        "usage in x_groq", events(chunk({"content": "The answer."}), {**chunk({}, "stop"), "x_groq": {"usage": USAGE}})
    )
    yield text(
        "usage in every chunk",
        events(
            chunk({"content": "The "}, usage=None),
            chunk({"content": "answer."}, usage={**USAGE, "completion_tokens": 2}),
            chunk({}, "stop", usage=USAGE),
            DONE,
        ),
    )
    yield text("a whole message in one event", events(completion({"content": "The answer."}), DONE))
    yield text(
        "filters of Azure before the first choice",
        events(
            {"choices": [], "prompt_filter_results": [{"prompt_index": 0}]},
            *map(json.loads, (frame[6:] for frame in whole[:-1])),
        ),
    )
    yield pay(
        "two calls, by index",
        piece(0, "a", "pay", ""),
        piece(0, ..., ..., '{"to": '),
        piece(0, ..., ..., '"Ada"}'),
        piece(1, "b", "pay", '{"to": "Bob"}'),
    )
    yield pay(
        "two calls that are interleaved",
        piece(0, "a", "pay", '{"to": '),
        piece(1, "b", "pay", '{"to": '),
        piece(0, ..., ..., '"Ada"}'),
        piece(1, ..., ..., '"Bob"}'),
    )
    yield pay(
        "index 0 for both, with ids",
        piece(0, "a", "pay", '{"to": "Ada"}'),
        piece(0, "b", "pay", '{"to": '),
        piece(0, "b", ..., '"Bob"}'),
    )
    yield pay(
        "index 0 for both, without ids", piece(0, ..., "pay", '{"to": "Ada"}'), piece(0, None, "pay", '{"to": "Bob"}')
    )
    yield pay("no index", piece(..., "a", "pay", '{"to": "Ada"}'), piece(..., "b", "pay", '{"to": "Bob"}'))
    yield pay(
        "no index, in pieces",
        piece(..., "a", "pay", '{"to": '),
        piece(..., ..., ..., '"Ada"}'),
        piece(..., "b", "pay", '{"to": '),
        piece(None, "", None, '"Bob"}'),
    )
    yield pay("empty ids", piece(0, "", "pay", '{"to": "Ada"}'), piece(1, "", "pay", '{"to": "Bob"}'))
    yield pay(
        "a new id with each piece",
        piece(0, "r1", "pay", ""),
        piece(0, "r2", None, '{"to": "A'),
        piece(0, "r3", ..., 'da"}'),
        piece(1, "r4", "pay", '{"to": "Bob"}'),
    )
    yield pay(
        "the name again with each piece",
        piece(0, "a", "pay", '{"to": "A'),
        piece(0, "a", "pay", 'da"}'),
        piece(1, "b", "pay", '{"to": "Bob"}'),
    )
    yield pay(
        "both calls in one delta",
        {
            "tool_calls": [
                piece(0, "a", "pay", '{"to": "Ada"}')["tool_calls"][0],
                piece(0, "b", "pay", '{"to": "Bob"}')["tool_calls"][0],
            ]
        },
    )
    yield pay(
        "arguments with separators of lines",
        piece(0, "a", "delete", '{"only": "draft\u2028s"}'),
        calls=[("delete", {"only": "draft\u2028s"})],
    )
    yield pay("arguments as an object", piece(0, "a", "pay", {"to": "Ada"}), calls=PAY[:1])
    yield pay("no arguments", piece(0, "a", "look", None), calls=[("look", {})])
    yield pay(
        "the function call of old",
        {"function_call": {"name": "pay", "arguments": ""}},
        {"function_call": {"arguments": '{"to": "Ada"}'}},
        calls=PAY[:1],
    )
    two = completion({"content": "I pay."}, "stop")
    two["choices"].append(
        {"index": 1, "finish_reason": "tool_calls", "message": {"role": "assistant", **called(PAY[0])}}
    )
    split = [chunk({"content": "I pay."}), {"choices": [{"index": 1, "delta": piece(0, "a", "pay", '{"to": "Ada"}')}]}]
    ends = [
        {"choices": [{"index": at, "delta": {}, "finish_reason": end}]} for at, end in enumerate(("stop", "tool_calls"))
    ]
    yield Sample(
        "text and calls in two choices (Copilot)",
        openai,
        two,
        events(*split, *ends, {"choices": [], "usage": USAGE}, DONE),
        text="I pay.",
        calls=PAY[:1],
        finish="tool_calls",
    )
    yield Sample(
        "a refusal",
        openai,
        completion({"refusal": "I will not."}),
        chunks({"refusal": "I will"}, {"refusal": " not."}),
        code="llm.refused",
    )
    yield Sample(
        "cut off",
        openai,
        completion({"content": "half a"}, "length"),
        chunks({"content": "half a"}, finish="length"),
        code="llm.truncated",
    )
    yield Sample(
        "filtered",
        openai,
        completion({"content": "half a"}, "content_filter"),
        chunks({"content": "half a"}, finish="content_filter"),
        code="llm.content_filtered",
    )
    yield Sample(
        "an end in calls, and none",
        openai,
        completion({"content": "I do it."}, "tool_calls"),
        chunks({"content": "I do it."}, finish="tool_calls"),
        code="llm.invalid_response",
    )
    yield Sample("nothing", openai, completion({"content": ""}), chunks({"content": ""}), code="llm.empty_response")
    yield Sample(
        "an unknown end",
        openai,
        completion({"content": "so"}, "tired"),
        chunks({"content": "so"}, finish="tired"),
        code="llm.invalid_response",
    )
    yield Sample(
        "broken off",
        openai,
        completion({"content": "so"}, "error"),
        chunks({"content": "so"}, finish="error"),
        code="llm.network_error",
    )
    counted = {
        **USAGE,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 3},
    }
    yield Sample(
        "cached tokens",
        openai,
        completion({"content": "hi"}, usage=counted),
        chunks({"content": "hi"}, usage=counted),
        text="hi",
        usage=(7, 5, 4),
    )
    odd = {
        "prompt_tokens": 7,
        "completion_tokens": "5",
        "total_tokens": [],
        "prompt_tokens_details": "none",
        "cost": "n/a",
    }
    yield Sample(
        "usage of an odd form",
        openai,
        completion({"content": "hi"}, usage=odd),
        chunks({"content": "hi"}, usage=odd),
        text="hi",
    )
    more = {**USAGE, "prompt_tokens_details": {"cached_tokens": 900}}
    yield Sample(
        "more cached than read",
        openai,
        completion({"content": "hi"}, usage=more),
        chunks({"content": "hi"}, usage=more),
        text="hi",
        usage=(7, 5, 7),
    )
    thought = "<think>hm\u2028</think>The answer."
    yield Sample(
        "thoughts in the text",
        "deepseek/scripted",
        completion({"content": thought}),
        chunks(*({"content": part} for part in thought)),
        text="The answer.",
        thinking=("hm\u2028",),
    )
    packed = {"tool_uses": [{"recipient_name": f"functions.{name}", "parameters": given} for name, given in PAY]}
    yield Sample(
        "calls packed into one",
        openai,
        completion(called(("multi_tool_use.parallel", packed)), "tool_calls"),
        chunks(piece(0, "a", "multi_tool_use.parallel", json.dumps(packed)), finish="tool_calls"),
        calls=PAY,
        finish="tool_calls",
    )


def _others_of_chat() -> Iterable[Sample]:
    parts = [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "The ans"}]
    whole = completion({"content": [*parts, {"type": "text", "text": "wer."}]})
    frames = chunks({"content": parts[:1]}, {"content": parts[1:]}, {"content": "wer."})
    for model in ("mistral/scripted", "openai/scripted"):
        yield Sample(f"content in parts ({model})", model, whole, frames, text="The answer.")
    reasons = {"reasoning_content": "I think.", "content": "hi"}
    pieces = chunks({"reasoning_content": "I "}, {"reasoning_content": "think."}, {"content": "hi"})
    yield Sample(
        "DeepSeek's reasoning", "deepseek/scripted", completion(reasons), pieces, text="hi", thinking=("I think.",)
    )
    for name, model in (("vLLM", "hosted_vllm/scripted"), ("Groq", "groq/scripted")):
        whole = completion({"reasoning": "I think.", "content": "hi"})
        yield Sample(
            f"reasoning of {name}",
            model,
            whole,
            chunks({"reasoning": "I "}, {"reasoning": "think."}, {"content": "hi"}),
            text="hi",
        )
    details = [{"type": "reasoning.text", "text": "I think.", "format": "x", "index": 0, "signature": "s"}]
    bill = {**USAGE, "cost": 0.25, "is_byok": False, "cost_details": {"upstream_inference_cost": None}}
    yield Sample(
        "OpenRouter's details and bill",
        "openrouter/x/scripted",
        completion({"content": "hi", "reasoning": "I think.", "reasoning_details": details}, usage=bill),
        chunks(
            {"reasoning": "I ", "reasoning_details": [{**details[0], "text": "I ", "signature": None}]},
            {"reasoning": "think.", "reasoning_details": [{**details[0], "text": "think.", "signature": "s"}]},
            {"content": "hi"},
            usage=bill,
        ),
        text="hi",
        thinking=tuple(details),
        cost="0.25",
    )
    own = {**USAGE, "cost": 0, "is_byok": True, "cost_details": {"upstream_inference_cost": 0.125}}
    yield Sample(
        "a bill of the caller's own key",
        "openrouter/x/scripted",
        completion({"content": "hi"}, usage=own),
        chunks({"content": "hi"}, usage=own),
        text="hi",
        cost="0.125",
    )
    azure = {"api_version": "2026-01-01"}
    yield Sample(
        "Azure",
        "azure/scripted",
        completion(called(*PAY), "tool_calls"),
        chunks(piece(0, "a", "pay", '{"to": "Ada"}'), piece(1, "b", "pay", '{"to": "Bob"}'), finish="tool_calls"),
        calls=PAY,
        finish="tool_calls",
        params=azure,
    )


def message(*blocks: Json, stop: str = "end_turn", **usage: int) -> Json:
    """A message of Anthropic's."""
    counts = {"input_tokens": 7, "output_tokens": 5, **usage}
    return {
        "id": "x",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": list(blocks),
        "stop_reason": stop,
        "usage": counts,
    }


def blocks(*streamed: tuple[Json, Sequence[Json]], stop: str = "end_turn", **usage: int) -> tuple[bytes, ...]:
    """The events of a message: for each block its start and its deltas."""
    start = {**message(stop=None, **usage), "content": []}  # type: ignore[arg-type]
    sent: list[Json] = [
        {"type": "message_start", "message": {**start, "usage": {**start["usage"], "output_tokens": 1}}}
    ]
    for index, (block, deltas) in enumerate(streamed):
        sent.append({"type": "content_block_start", "index": index, "content_block": block})
        sent += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        sent += [{"type": "content_block_stop", "index": index}, {"type": "ping"}]
    sent.append(
        {"type": "message_delta", "delta": {"stop_reason": stop, "stop_sequence": None}, "usage": {"output_tokens": 5}}
    )
    sent.append({"type": "message_stop"})
    return tuple(
        f"event: {event['type']}\ndata: {json.dumps(event, ensure_ascii=False)}\n\n".encode() for event in sent
    )


def said(*pieces: str) -> tuple[Json, list[Json]]:
    """A block of text, in pieces."""
    return {"type": "text", "text": ""}, [{"type": "text_delta", "text": part} for part in pieces]


def used(name: str, *pieces: str, given: Json = None) -> tuple[Json, list[Json]]:
    """A block with a call, its arguments in pieces."""
    start = {"type": "tool_use", "id": f"t_{name}", "name": name, "input": given or {}}
    return start, [{"type": "input_json_delta", "partial_json": part} for part in pieces]


def thought(text: str, signature: str) -> tuple[Json, list[Json]]:
    """A block of thinking, in two pieces and its signature."""
    half = len(text) // 2
    deltas = [{"type": "thinking_delta", "thinking": part} for part in (text[:half], text[half:])]
    return {"type": "thinking", "thinking": "", "signature": ""}, [
        *deltas,
        {"type": "signature_delta", "signature": signature},
    ]


def _messages() -> Iterable[Sample]:
    claude = "anthropic/scripted"
    use = {"type": "tool_use", "id": "t", "name": "pay", "input": {"to": "Ada"}}
    think = {"type": "thinking", "thinking": "let me see", "signature": "c2ln"}
    yield Sample(
        "text",
        claude,
        message({"type": "text", "text": "The answer."}),
        blocks(said("The ", "answer.")),
        text="The answer.",
    )
    yield Sample(
        "separators of lines",
        claude,
        message({"type": "text", "text": SEPARATORS}),
        blocks(said(*SEPARATORS)),
        text=SEPARATORS,
    )
    yield Sample(
        "separators of lines in arguments",
        claude,
        message({"type": "tool_use", "id": "t1", "name": "pay", "input": {"to": SEPARATORS}}, stop="tool_use"),
        blocks(used("pay", '{"to": "', *SEPARATORS_IN_JSON, '"}'), stop="tool_use"),
        calls=(("pay", {"to": SEPARATORS}),),
        finish="tool_calls",
    )
    yield Sample(
        "text and a call",
        claude,
        message({"type": "text", "text": "I pay."}, use, stop="tool_use"),
        blocks(said("I pay."), used("pay", "", '{"to": ', '"Ada"}'), stop="tool_use"),
        text="I pay.",
        calls=PAY[:1],
        finish="tool_calls",
    )
    yield Sample(
        "a call whole at its start",
        claude,
        message(use, stop="tool_use"),
        blocks(used("pay", given={"to": "Ada"}), stop="tool_use"),
        calls=PAY[:1],
        finish="tool_calls",
    )
    yield Sample(
        "a call whole at its start, and an empty piece",
        claude,
        message(use, stop="tool_use"),
        blocks(used("pay", "", given={"to": "Ada"}), stop="tool_use"),
        calls=PAY[:1],
        finish="tool_calls",
    )
    bare = {**use, "name": "look", "input": {}}
    yield Sample(
        "a call without arguments",
        claude,
        message(bare, stop="tool_use"),
        blocks(used("look", ""), stop="tool_use"),
        calls=(("look", {}),),
        finish="tool_calls",
    )
    yield Sample(
        "thinking, call, thinking, call",
        claude,
        message(think, use, {**think, "signature": "Mg=="}, {**use, "input": {"to": "Bob"}}, stop="tool_use"),
        blocks(
            thought("let me see", "c2ln"),
            used("pay", '{"to": "Ada"}'),
            thought("let me see", "Mg=="),
            used("pay", '{"to": "Bob"}'),
            stop="tool_use",
        ),
        calls=PAY,
        thinking=(("let me see", "c2ln"), ("let me see", "Mg==")),
        finish="tool_calls",
    )
    hidden = {"type": "redacted_thinking", "data": "enc"}
    yield Sample(
        "thinking that is redacted",
        claude,
        message(hidden, {"type": "text", "text": "hi"}),
        blocks((hidden, []), said("hi")),
        text="hi",
        thinking=("enc",),
    )
    search = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "x"}}
    found = {"type": "web_search_tool_result", "tool_use_id": "s", "content": []}
    yield Sample(
        "blocks of the server's tools",
        claude,
        message(search, found, {"type": "text", "text": "hi"}),
        blocks((search, []), (found, []), said("hi")),
        text="hi",
    )
    cited = {"type": "text", "text": "hi", "citations": [{"type": "x"}]}
    citing = said("hi")
    citing[1].append({"type": "citations_delta", "citation": {"type": "x"}})
    yield Sample("citations", claude, message(cited), blocks(citing), text="hi")
    yield Sample(
        "a cache",
        claude,
        message({"type": "text", "text": "hi"}, cache_read_input_tokens=10, cache_creation_input_tokens=3),
        blocks(said("hi"), cache_read_input_tokens=10, cache_creation_input_tokens=3),
        text="hi",
        usage=(20, 5, 10),
    )
    for stop, code in (
        ("max_tokens", "llm.truncated"),
        ("refusal", "llm.content_filtered"),
        ("model_context_window_exceeded", "llm.truncated"),
        ("pause_turn", "llm.invalid_response"),
        ("tool_use", "llm.invalid_response"),
    ):
        yield Sample(
            f"an end by {stop}",
            claude,
            message({"type": "text", "text": "half a"}, stop=stop),
            blocks(said("half a"), stop=stop),
            code=code,
        )


def _gemini() -> Iterable[Sample]:
    model = "gemini/scripted"
    usage = {"promptTokenCount": 7, "candidatesTokenCount": 2, "thoughtsTokenCount": 3, "totalTokenCount": 12}

    def reply(*parts: Json, end: str | None = "STOP") -> Json:
        return {
            "candidates": [{"index": 0, "content": {"role": "model", "parts": list(parts)}, "finishReason": end}],
            "usageMetadata": usage,
        }

    yield Sample(
        "text",
        model,
        reply({"text": "The answer."}),
        events(reply({"text": "The "}, end=None), reply({"text": "answer."})),
        text="The answer.",
    )
    yield Sample(
        "separators of lines",
        model,
        reply({"text": SEPARATORS}),
        events(*(reply({"text": part}, end=None) for part in SEPARATORS), reply()),
        text=SEPARATORS,
    )
    call = {"functionCall": {"name": "pay", "args": {"to": "Ada"}}, "thoughtSignature": "c2ln"}
    other = {"functionCall": {"name": "pay", "args": {"to": "Bob"}}}
    yield Sample(
        "thoughts and calls",
        model,
        reply({"text": "hm", "thought": True}, call, other),
        events(reply({"text": "hm", "thought": True}, end=None), reply(call, end=None), reply(other)),
        calls=PAY,
        thinking=("c2ln",),
        finish="tool_calls",
    )
    yield Sample(
        "a call without arguments",
        model,
        reply({"functionCall": {"name": "look"}}),
        events(reply({"functionCall": {"name": "look"}})),
        calls=(("look", {}),),
        finish="tool_calls",
    )
    yield Sample(
        "a signature of the text",
        model,
        reply({"text": "hi", "thoughtSignature": "c2ln"}),
        events(reply({"text": "h"}, end=None), reply({"text": "i", "thoughtSignature": "c2ln"})),
        text="hi",
        thinking=("c2ln",),
    )
    for end, code in (
        ("MAX_TOKENS", "llm.truncated"),
        ("SAFETY", "llm.content_filtered"),
        ("RECITATION", "llm.content_filtered"),
        ("PROHIBITED_CONTENT", "llm.content_filtered"),
        ("BLOCKLIST", "llm.content_filtered"),
        ("SPII", "llm.content_filtered"),
        ("MALFORMED_FUNCTION_CALL", "llm.invalid_response"),
        ("OTHER", "llm.invalid_response"),
    ):
        yield Sample(
            f"an end by {end}",
            model,
            reply({"text": "half a"}, end=end),
            events(reply({"text": "half a"}, end=None), reply(end=end)),
            code=code,
        )
    blocked = {"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}, "usageMetadata": {"promptTokenCount": 7}}
    yield Sample("a prompt that is blocked", model, blocked, events(blocked), code="llm.content_filtered")


def binary(kind: str, payload: Json, **headers: str) -> bytes:
    """A message of AWS's binary event stream."""
    named = {":event-type": kind, ":content-type": "application/json", ":message-type": "event", **headers}
    head = b"".join(
        struct.pack("!B", len(name)) + name.encode() + struct.pack("!BH", 7, len(value)) + value.encode()
        for name, value in named.items()
    )
    body = json.dumps(payload, ensure_ascii=False).encode()
    prelude = struct.pack("!II", len(head) + len(body) + 16, len(head))
    prelude += struct.pack("!I", zlib.crc32(prelude))
    return prelude + head + body + struct.pack("!I", zlib.crc32(prelude + head + body))


def _converse() -> Iterable[Sample]:
    model = "bedrock/converse/anthropic.claude-scripted-v1:0"
    kind = "application/vnd.amazon.eventstream"
    usage = {"inputTokens": 7, "outputTokens": 5, "totalTokens": 12}

    def reply(*content: Json, stop: str = "end_turn") -> Json:
        return {
            "output": {"message": {"role": "assistant", "content": list(content)}},
            "stopReason": stop,
            "usage": usage,
            "metrics": {"latencyMs": 1},
        }

    def stream(*parts: tuple[Json, Sequence[Json]], stop: str = "end_turn") -> tuple[bytes, ...]:
        sent = [binary("messageStart", {"role": "assistant"})]
        for index, (start, deltas) in enumerate(parts):
            if start:
                sent.append(binary("contentBlockStart", {"start": start, "contentBlockIndex": index}))
            sent += [binary("contentBlockDelta", {"delta": delta, "contentBlockIndex": index}) for delta in deltas]
            sent.append(binary("contentBlockStop", {"contentBlockIndex": index}))
        return (
            *sent,
            binary("messageStop", {"stopReason": stop}),
            binary("metadata", {"usage": usage, "metrics": {"latencyMs": 1}}),
        )

    tool = {"toolUse": {"toolUseId": "t", "name": "pay", "input": {"to": "Ada"}}}
    start = {"toolUse": {"toolUseId": "t", "name": "pay"}}
    given = [{"toolUse": {"input": part}} for part in ('{"to": ', '"Ada"}')]
    thinking = {"reasoningContent": {"reasoningText": {"text": "let me see", "signature": "c2ln"}}}
    thoughts = [{"reasoningContent": {"text": part}} for part in ("let ", "me see")]
    yield Sample(
        "text",
        model,
        reply({"text": "The answer."}),
        stream((None, [{"text": "The "}, {"text": "answer."}])),
        text="The answer.",
        kind=kind,
    )
    yield Sample(
        "separators of lines",
        model,
        reply({"text": SEPARATORS}),
        stream((None, [{"text": part} for part in SEPARATORS])),
        text=SEPARATORS,
        kind=kind,
    )
    yield Sample(
        "reasoning, text and a call",
        model,
        reply(thinking, {"text": "I pay."}, tool, stop="tool_use"),
        stream(
            (None, [*thoughts, {"reasoningContent": {"signature": "c2ln"}}]),
            (None, [{"text": "I pay."}]),
            (start, given),
            stop="tool_use",
        ),
        text="I pay.",
        calls=PAY[:1],
        thinking=(("let me see", "c2ln"),),
        finish="tool_calls",
        kind=kind,
    )
    hidden = base64.b64encode(b"enc").decode()
    yield Sample(
        "reasoning that is redacted",
        model,
        reply({"reasoningContent": {"redactedContent": hidden}}, {"text": "hi"}),
        stream((None, [{"reasoningContent": {"redactedContent": hidden}}]), (None, [{"text": "hi"}])),
        text="hi",
        thinking=(hidden,),
        kind=kind,
    )
    bare = {"toolUse": {"toolUseId": "t", "name": "look", "input": {}}}
    yield Sample(
        "a call without arguments",
        model,
        reply(bare, stop="tool_use"),
        stream(({"toolUse": {"toolUseId": "t", "name": "look"}}, []), stop="tool_use"),
        calls=(("look", {}),),
        finish="tool_calls",
        kind=kind,
    )
    for stop, code in (
        ("max_tokens", "llm.truncated"),
        ("guardrail_intervened", "llm.content_filtered"),
        ("model_context_window_exceeded", "llm.truncated"),
        ("malformed_tool_use", "llm.invalid_response"),
        ("malformed_model_output", "llm.invalid_response"),
    ):
        yield Sample(
            f"an end by {stop}",
            model,
            reply({"text": "half a"}, stop=stop),
            stream((None, [{"text": "half a"}]), stop=stop),
            code=code,
            kind=kind,
        )


def _ollama() -> Iterable[Sample]:
    model, kind = "ollama_chat/scripted", "application/x-ndjson"
    end = {"done": True, "done_reason": "stop", "prompt_eval_count": 7, "eval_count": 5}

    def reply(said: Json, **more: Json) -> Json:
        return {"model": "m", "message": {"role": "assistant", "content": "", **said}, **end, **more}

    def lines(*messages: Json, **more: Json) -> tuple[bytes, ...]:
        sent = [
            {"model": "m", "message": {"role": "assistant", "content": "", **part}, "done": False} for part in messages
        ]
        return tuple(json.dumps(line, ensure_ascii=False).encode() + b"\n" for line in (*sent, reply({}, **more)))

    call = {"tool_calls": [{"function": {"name": "pay", "arguments": {"to": "Ada"}}}]}
    yield Sample(
        "text",
        model,
        reply({"content": "The answer."}),
        lines({"content": "The "}, {"content": "answer."}),
        text="The answer.",
        kind=kind,
    )
    yield Sample(
        "separators of lines",
        model,
        reply({"content": SEPARATORS}),
        lines(*({"content": part} for part in SEPARATORS)),
        text=SEPARATORS,
        kind=kind,
    )
    yield Sample(
        "thinking and a call",
        model,
        reply({"thinking": "hm", **call}),
        lines({"thinking": "h"}, {"thinking": "m"}, call),
        calls=PAY[:1],
        thinking=("hm",),
        finish="tool_calls",
        kind=kind,
    )
    yield Sample(
        "cut off",
        model,
        reply({"content": "half a"}, done_reason="length"),
        lines({"content": "half a"}, done_reason="length"),
        code="llm.truncated",
        kind=kind,
    )


SAMPLES: dict[str, Sample] = {
    f"{sample.model.partition('/')[0]}: {sample.name}": sample
    for samples in (_chat(), _others_of_chat(), _messages(), _gemini(), _converse(), _ollama())
    for sample in samples
}
