"""Answers unlike the usual, as providers document them and as users of other clients reported them."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest

from perdure.activities.models import model_call
from perdure.activities.models.failures import facts_of
from perdure.activities.models.model_call import Answer
from perdure.activities.models.provider_packets import HttpReply
from perdure.activities.models.provider_reading import receive
from perdure.activities.models.provider_replies import UnusableReplyError
from perdure.activities.models.wires import CHAT
from perdure.activities.models.wires.reply import Answered, Silent
from perdure.llm.failures import classify
from tests.unit.activities.calls import NOW, Sink
from tests.unit.activities.raw_provider import read_request, reply, serving
from tests.wires.corpus import (
    DONE,
    PAY,
    USAGE,
    Json,
    Sample,
    binary,
    blocks,
    called,
    chunk,
    completion,
    events,
    message,
    piece,
    said,
    used,
)
from tests.wires.test_corpus import WIRES, check, definition, outcome, packets_of

Case = Callable[[], Sample]

DOCUMENTED: list[Case] = []
REPORTED: list[Case] = []

OPENAI = "openai/scripted"
TEXT = "The answer."
BILL: Json = {"choices": [], "usage": USAGE}
AMAZONS = "application/vnd.amazon.eventstream"


def documented(case: Case) -> Case:
    """Mark an answer that a provider documents."""
    DOCUMENTED.append(case)
    return case


def reported(case: Case) -> Case:
    """Mark an answer that was reported for another client."""
    REPORTED.append(case)
    return case


def text(*frames: Json, whole: Json = None, **more: Any) -> Sample:
    """A chat completion that is only text."""
    more.setdefault("text", TEXT)
    return Sample("", OPENAI, whole or completion({"content": more["text"]}), events(*frames), **more)


def pay(*frames: Json, **more: Any) -> Sample:
    """A chat completion with calls."""
    more.setdefault("calls", PAY[:1])
    usual = completion(called(*more["calls"], content=more.get("text") or None), "tool_calls")
    whole = more.pop("whole", usual)
    return Sample("", OPENAI, whole, events(*frames), finish="tool_calls", **more)


def failed(code: str, *frames: Json, whole: Json = None) -> Sample:
    """A chat completion that ends in a failure."""
    return Sample("", OPENAI, whole, events(*frames), code=code)


def choice(**more: Json) -> Json:
    """A chunk whose choice is exactly this."""
    return {"id": "x", "object": "chat.completion.chunk", "choices": [{"index": 0, **more}]}


# What providers document


@documented
def perplexity_with_message_and_delta() -> Sample:
    """Perplexity, pages on streaming: the message so far beside each delta, citations, a bill in the usage, no DONE."""
    bill = {**USAGE, "search_context_size": "low", "cost": {"request_cost": 0.005, "total_cost": 0.006}}
    more: Json = {
        "citations": ["https://example.com"],
        "search_results": [{"title": "t", "url": "https://example.com"}],
    }

    def sent(part: str, so_far: str, end: str | None = None, kind: str = "chat.completion.chunk") -> Json:
        both = {
            "delta": {"role": "assistant", "content": part},
            "message": {"role": "assistant", "content": so_far},
            "finish_reason": end,
        }
        return {"id": "x", "object": kind, "usage": bill, **more, "choices": [{"index": 0, **both}]}

    frames = sent("The ", "The "), sent("answer.", TEXT), sent("", TEXT, "stop", "chat.completion.done")
    return text(*frames, whole=completion({"content": TEXT}, usage=bill, **more))


@documented
def xai_counts_reasoning_beside_the_completion() -> Sample:
    """xAI, pages on reasoning: completion_tokens hold no reasoning_tokens, the total does; calls come in one chunk."""
    usage = {
        "prompt_tokens": 7,
        "completion_tokens": 2,
        "total_tokens": 12,
        "prompt_tokens_details": {"text_tokens": 7, "audio_tokens": 0, "cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 3, "audio_tokens": 0},
        "num_sources_used": 0,
    }
    call = piece(0, "call_1", "pay", '{"to": "Ada"}')
    frames = events(
        chunk({"role": "assistant", "content": "", "reasoning_content": "hm"}),
        chunk({"role": "assistant", "content": "", **call}),
        chunk({"role": "assistant", "content": ""}, "tool_calls"),
        {"choices": [], "usage": usage, "citations": []},
        DONE,
    )
    whole = completion(called(PAY[0], content="", reasoning_content="hm"), "tool_calls", usage)
    return Sample("", OPENAI, whole, frames, calls=PAY[:1], finish="tool_calls", usage=(7, 5, 4))


@documented
def minimax_sends_the_whole_message_last() -> Sample:
    """MiniMax, chat completion: empty counts in each chunk; the last event is the whole completion with its message."""
    none = {"total_tokens": 0, "total_characters": 0}
    more: Json = {
        "input_sensitive": False,
        "output_sensitive": False,
        "base_resp": {"status_code": 0, "status_msg": ""},
    }
    whole = completion({"content": TEXT, "name": "MM", "audio_content": ""}, **more)
    return text(
        chunk({"role": "assistant", "content": "The "}, usage=none),
        chunk({"role": "", "content": "answer."}, usage=none),
        chunk({"role": "assistant", "content": ""}, "stop", usage=none),
        whole,
        whole=whole,
    )


@documented
def minimax_refuses_in_a_status() -> Sample:
    """MiniMax, error codes: too many requests is a base_resp of status 200, without choices."""
    refused = {"id": "x", "choices": None, "base_resp": {"status_code": 1002, "status_msg": "rate limit exceeded"}}
    return failed("llm.rate_limited", refused, whole=refused)


@documented
def dashscope_with_empty_ids_and_functions() -> Sample:
    """Qwen on DashScope, function calling: later pieces have an empty id and even an empty function."""
    return pay(
        chunk({"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": None}, usage=None),
        chunk({"content": None, **piece(0, "call_1", "pay", "")}, usage=None),
        chunk({"content": None, **piece(0, "", ..., '{"to": "Ada"}')}, usage=None),
        chunk({"content": None, **piece(0, "", ..., ...)}, usage=None),
        chunk({"content": ""}, "tool_calls", usage=None),
        BILL,
        DONE,
        whole=completion(called(PAY[0], content="", reasoning_content="hm"), "tool_calls"),
    )


@documented
def zhipu_ends_by_its_policy() -> Sample:
    """Zhipu's GLM, chat completion: the finish reason of unsafe content is ``sensitive``."""
    return failed(
        "llm.content_filtered",
        chunk({"role": "assistant", "content": "half a"}),
        chunk({"content": ""}, "sensitive", usage=USAGE),
        DONE,
        whole=completion({"content": "half a"}, "sensitive"),
    )


@documented
def zhipu_breaks_off() -> Sample:
    """Zhipu's GLM, chat completion: the finish reason of a broken inference is ``network_error``."""
    return failed(
        "llm.network_error",
        chunk({"content": "half a"}),
        chunk({"content": ""}, "network_error", usage=USAGE),
        DONE,
        whole=completion({"content": "half a"}, "network_error"),
    )


@documented
def deepseek_runs_out_of_machines() -> Sample:
    """DeepSeek, chat completion: ``insufficient_system_resource`` ends an answer whose inference was interrupted."""
    end = "insufficient_system_resource"
    return failed(
        "llm.network_error",
        chunk({"content": "half a"}),
        chunk({"content": ""}, end, usage=USAGE),
        DONE,
        whole=completion({"content": "half a"}, end),
    )


@documented
def mistral_reaches_the_models_length() -> Sample:
    """Mistral, chat completion: ``model_length`` ends an answer that filled the context."""
    return failed(
        "llm.truncated",
        chunk({"content": "half a"}),
        chunk({"content": ""}, "model_length", usage=USAGE),
        DONE,
        whole=completion({"content": "half a"}, "model_length"),
    )


@documented
def together_ends_in_eos() -> Sample:
    """Together, chat completion: the finish reasons are stop, eos, length, tool_calls and function_call."""
    whole = completion({"content": TEXT}, "eos")
    return text(chunk({"content": TEXT}), chunk({"content": ""}, "eos", usage=USAGE), DONE, whole=whole)


@documented
def vllm_with_token_ids_and_a_stop() -> Sample:
    """vLLM, its server: stop_reason and token_ids beside each choice; with a required tool the end is ``stop``."""
    frames = events(
        choice(delta={"role": "assistant", "content": ""}, logprobs=None, finish_reason=None, token_ids=None),
        choice(delta=piece(0, "call_1", "pay", '{"to": '), finish_reason=None, token_ids=[90]),
        choice(delta=piece(0, ..., ..., '"Ada"}'), finish_reason="stop", stop_reason=128001, token_ids=[9, 2]),
        {**BILL, "prompt_token_ids": None},
        DONE,
    )
    whole = completion(called(PAY[0], content="", reasoning=None), "stop", prompt_token_ids=[1])
    whole["choices"][0] |= {"stop_reason": 128001, "token_ids": [9, 2]}
    return Sample("", "hosted_vllm/scripted", whole, frames, calls=PAY[:1], finish="tool_calls")


@documented
def databricks_with_reasoning_in_parts() -> Sample:
    """Databricks, reasoning models: the content is a list with parts of type reasoning, then of type text."""

    def reasons(summary: str, signature: str) -> Json:
        return [{"type": "reasoning", "summary": [{"type": "summary_text", "text": summary, "signature": signature}]}]

    return text(
        chunk({"role": "assistant", "content": reasons("let me ", "")}),
        chunk({"role": "assistant", "content": reasons("see", "c2ln")}),
        chunk({"role": "assistant", "content": [{"type": "text", "text": "The "}]}),
        chunk({"role": "assistant", "content": "answer."}),
        chunk({"role": "assistant", "content": ""}, "stop"),
        BILL,
        DONE,
        whole=completion({"content": [*reasons("let me see", "c2ln"), {"type": "text", "text": TEXT}]}),
    )


@documented
def azure_filters_behind_the_end() -> Sample:
    """Azure, asynchronous filter: choices without a delta, and with no finish reason after the one that ended."""

    def notes(**more: Json) -> Json:
        return choice(content_filter_results={"hate": {"filtered": False}}, content_filter_offsets={}, **more)

    return text(
        {"choices": [], "prompt_filter_results": [{"prompt_index": 0}]},
        chunk({"role": "assistant", "content": "The "}),
        notes(finish_reason=None),
        chunk({"content": "answer."}),
        chunk({}, "stop"),
        notes(finish_reason=None),
        notes(),
        BILL,
        DONE,
    )


@documented
def llama_cpp_with_timings() -> Sample:
    """llama.cpp, its server: timings and progress of the prompt beside the choices, which may be empty at first."""
    progress = {"total": 7, "cache": 0, "processed": 7, "time_ms": 5}
    timings = {"cache_n": 0, "prompt_n": 7, "predicted_n": 5, "predicted_per_second": 40.5}
    return text(
        {"choices": [], "prompt_progress": progress},
        chunk({"role": "assistant", "content": None}),
        chunk({"content": TEXT}),
        chunk({}, "stop"),
        {"choices": [], "usage": USAGE, "timings": timings},
        DONE,
        whole=completion({"content": TEXT}, timings=timings),
    )


@documented
def claude_with_its_own_tools() -> Sample:
    """Anthropic, server tools: their blocks stream input too, the counts at the end replace those at the start."""
    query = [{"type": "input_json_delta", "partial_json": part} for part in ("", '{"query":', ' "x"}')]
    search = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
    found = {"type": "web_search_tool_result", "tool_use_id": "s", "content": [{"type": "web_search_result"}]}
    cites = {"type": "citations_delta", "citation": {"type": "web_search_result_location", "cited_text": "x"}}
    ran = {"type": "bash_code_execution_tool_result", "tool_use_id": "s", "content": {"stdout": "1"}}
    packed: tuple[Json, list[Json]] = (
        {"type": "compaction", "content": ""},
        [{"type": "compaction_delta", "content": "so far"}],
    )
    final = {"input_tokens": 7, "output_tokens": 5, "server_tool_use": {"web_search_requests": 1}}
    context = {"applied_edits": [{"type": "clear_tool_uses_20250919", "cleared_input_tokens": 50}]}
    frames = list(
        blocks(packed, (search, query), (found, []), (ran, []), (said("The ")[0], [*said("The ", "answer.")[1], cites]))
    )
    frames[-2:-1] = events(
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_details": None, "container": {"id": "c"}},
            "usage": final,
            "context_management": context,
        }
    )
    start = json.loads(frames[0].split(b"data: ")[1])
    start["message"]["usage"] = {"input_tokens": 3, "output_tokens": 1, "cache_read_input_tokens": 0}
    frames[0] = events(start)[0]
    answer = {"type": "text", "text": TEXT, "citations": [cites["citation"]]}
    whole = message(
        {"type": "compaction", "content": "so far"}, {**search, "input": {"query": "x"}}, found, ran, answer
    )
    whole |= {"usage": final, "container": {"id": "c"}, "context_management": context}
    return Sample("", "anthropic/scripted", whole, tuple(frames), text=TEXT)


@documented
def claude_sends_input_unchecked() -> Sample:
    """Anthropic, fine-grained streaming of tools: an input that the longest answer cut is no JSON."""
    whole = message({"type": "tool_use", "id": "t", "name": "pay", "input": {"INVALID_JSON": '{"to": '}})
    whole["stop_reason"] = "max_tokens"
    frames = blocks(used("pay", '{"to": '), stop="max_tokens")
    return Sample("", "anthropic/scripted", whole, frames, code="llm.truncated")


@documented
def gemini_runs_code() -> Sample:
    """Gemini, code execution and grounding: parts of code and pictures beside the text; tokens of its own tools."""
    usage = {
        "promptTokenCount": 4,
        "toolUsePromptTokenCount": 3,
        "candidatesTokenCount": 2,
        "thoughtsTokenCount": 3,
        "totalTokenCount": 12,
        "trafficType": "ON_DEMAND",
    }
    parts: list[Json] = [
        {"text": "The "},
        {"executableCode": {"language": "PYTHON", "code": "print(1)"}},
        {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1"}},
        {"inlineData": {"mimeType": "image/png", "data": "AAAA"}},
        {"text": "answer."},
    ]
    more = {"groundingMetadata": {"webSearchQueries": ["x"]}, "urlContextMetadata": {}, "index": 0}

    def sent(*some: Json, **rest: Json) -> Json:
        return {"candidates": [{"content": {"role": "model", "parts": list(some)}, **more, **rest}], "responseId": "r"}

    frames = events(
        *(sent(part) for part in parts),
        {"candidates": [{"content": {"parts": [{"text": ""}]}, "finishReason": "STOP", **more}]},
        {"usageMetadata": usage, "modelVersion": "m"},
    )
    return Sample(
        "", "gemini/scripted", {**sent(*parts, finishReason="STOP"), "usageMetadata": usage}, frames, text=TEXT
    )


@documented
def gemini_over_openais_format() -> Sample:
    """Gemini's endpoint in OpenAI's format: whole calls without an index, signatures beside them, an end by stop."""
    signature = {"extra_content": {"google": {"thought_signature": "c2ln"}}}

    def call(at: int, name: str, **more: Json) -> Json:
        function = {"name": "pay", "arguments": json.dumps({"to": name})}
        return {"id": f"function-call-{at}", "type": "function", "function": function, **more}

    frames = events(
        chunk({"role": "assistant", "tool_calls": [call(1, "Ada", **signature)]}),
        chunk({"role": "assistant", "tool_calls": [call(2, "Bob")]}),
        chunk({"role": "assistant", **signature}, "stop", usage=USAGE),
        DONE,
    )
    whole = completion({"tool_calls": [call(1, "Ada", **signature), call(2, "Bob")]}, "stop")
    return Sample("", OPENAI, whole, frames, calls=PAY, finish="tool_calls")


def converse(*frames: bytes, whole: Json = None, **more: Any) -> Sample:
    """An answer of Bedrock's."""
    return Sample("", "bedrock/converse/anthropic.claude-scripted-v1:0", whole, frames, kind=AMAZONS, **more)


@documented
def bedrock_with_citations_and_results() -> Sample:
    """Bedrock, Converse: text in a block of citations, and results of the server's tools beside it."""
    usage = {"inputTokens": 7, "outputTokens": 5, "totalTokens": 12, "serverToolUsage": {}}
    where = {"title": "t", "location": {"web": {"url": "https://example.com"}}}
    search = {"toolUseId": "s", "name": "web_search", "type": "server_tool_use"}

    def delta(at: int = 2, **part: Json) -> bytes:
        return binary("contentBlockDelta", {"contentBlockIndex": at, "delta": part, "p": "abcdefg"})

    content = [
        {"toolUse": {**search, "input": {"query": "x"}}},
        {"toolResult": {"toolUseId": "s", "content": [{"text": "not for you"}], "status": "success"}},
        {"citationsContent": {"content": [{"text": "The "}, {"text": "answer."}], "citations": [where]}},
    ]
    whole = {
        "output": {"message": {"role": "assistant", "content": content}},
        "stopReason": "end_turn",
        "usage": usage,
        "metrics": {"latencyMs": 1},
    }
    frames = (
        binary("messageStart", {"role": "assistant", "p": "abc"}),
        binary("contentBlockStart", {"contentBlockIndex": 0, "start": {"toolUse": search}}),
        delta(0, toolUse={"input": '{"query": "x"}'}),
        binary("contentBlockStop", {"contentBlockIndex": 0}),
        binary("contentBlockStart", {"contentBlockIndex": 1, "start": {"toolResult": {"toolUseId": "s"}}}),
        delta(1, toolResult=[{"text": "not for you"}]),
        binary("contentBlockStop", {"contentBlockIndex": 1}),
        delta(text="The "),
        delta(text="answer."),
        delta(citation=where),
        binary("contentBlockStop", {"contentBlockIndex": 2}),
        binary("messageStop", {"stopReason": "end_turn", "additionalModelResponseFields": None}),
        binary("metadata", {"usage": usage, "metrics": {"latencyMs": 1}, "performanceConfig": {}}),
    )
    return converse(*frames, whole=whole, text=TEXT)


def broken(name: str, said: str, **headers: str) -> Sample:
    """An answer of Bedrock's whose stream holds a failure."""
    begun = (
        binary("messageStart", {"role": "assistant"}),
        binary("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": "half a"}}),
    )
    headers = {":message-type": "exception", ":exception-type": name, **headers}
    return converse(*begun, binary(name, {"message": said}, **headers))


@documented
def bedrock_throttles_in_the_stream() -> Sample:
    """Bedrock, ConverseStream: each of its exceptions may come as a message of the stream (also spring-ai#1699)."""
    sample = broken("throttlingException", "Too many tokens, please wait before trying again.")
    return Sample("", sample.model, None, sample.frames, kind=AMAZONS, code="llm.rate_limited")


@documented
def bedrock_fails_in_the_stream() -> Sample:
    """Bedrock, ConverseStream: a failure of the model itself, with the status that it had."""
    sample = broken("modelStreamErrorException", "The system encountered an unexpected error during processing.")
    return Sample("", sample.model, None, sample.frames, kind=AMAZONS, code="llm.network_error")


@documented
def bedrock_fails_unmodelled() -> Sample:
    """AWS event streams: an error that no model names has its code and its text in headers only."""
    named = {":message-type": "error", ":error-code": "InternalFailure", ":error-message": "We broke."}
    sample = broken("", "", **named)
    return Sample("", sample.model, None, sample.frames, kind=AMAZONS, code="llm.network_error")


@documented
def openrouter_fails_in_a_chunk() -> Sample:
    """OpenRouter, errors while streaming: an error beside choices whose finish reason is ``error``."""
    error = {"code": 429, "message": "Rate limit exceeded", "metadata": {"provider_name": "x"}}
    end = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": "error"}
    whole = completion({"content": "half a"}, "error")
    whole["choices"][0]["error"] = error
    frames = chunk({"content": "half a"}), {"id": "x", "error": error, "choices": [end]}, BILL, DONE
    return failed("llm.rate_limited", *frames, whole=whole)


# What users of other clients reported


@reported
def an_end_that_is_an_empty_text() -> Sample:
    """goose (aaif-goose/goose#10258): the finish reason of every chunk but the last is an empty text."""
    return pay(
        chunk({"role": "assistant", "content": ""}, ""),
        chunk(piece(0, "a", "pay", ""), ""),
        chunk(piece(0, ..., ..., '{"to": '), ""),
        chunk(piece(0, ..., ..., '"Ada"}'), ""),
        chunk({}, "tool_calls"),
        chunk({}, ""),
        BILL,
        DONE,
    )


@reported
def one_call_twice_in_one_delta() -> Sample:
    """openai-python (openai/openai-python#3201): name and first arguments are two entries of the same index."""
    name, first = piece(0, "a", "pay", ...)["tool_calls"], piece(0, ..., ..., '{"to": ')["tool_calls"]
    return pay(
        chunk({"tool_calls": [*name, *first]}),
        chunk(piece(0, ..., ..., '"Ada"}')),
        chunk({}, "tool_calls"),
        BILL,
        DONE,
    )


@reported
def an_id_before_the_function() -> Sample:
    """langchain4j (langchain4j/langchain4j#5711): the first piece of a call has an id and no function."""

    def bare(at: int, call_id: str) -> Json:
        return {"tool_calls": [{"index": at, "id": call_id, "type": "function"}]}

    return pay(
        chunk(bare(0, "a")),
        chunk(piece(0, ..., "pay", '{"to": "Ada"}')),
        chunk({"tool_calls": [{"index": 1, "id": "b", "function": None}]}),
        chunk(piece(1, ..., "pay", '{"to": "Bob"}')),
        chunk({}, "tool_calls"),
        BILL,
        DONE,
        calls=PAY,
    )


@reported
def a_name_in_pieces() -> Sample:
    """Continue (continuedev/continue#5849): the function's name comes in pieces, then its arguments."""
    return pay(
        chunk(piece(0, "a", "pa", "")),
        chunk(piece(0, ..., "y", "")),
        chunk(piece(0, ..., ..., '{"to": "Ada"}')),
        chunk({}, "tool_calls"),
        BILL,
        DONE,
    )


@reported
def the_same_name_with_each_piece() -> Sample:
    """hermes-agent (NousResearch/hermes-agent#8259): MiniMax on NIM names the function in every chunk, without ids."""
    return pay(
        chunk(piece(0, "a", "pay", "")),
        chunk(piece(0, None, "pay", '{"to": ')),
        chunk(piece(0, None, "pay", '"Ada"}')),
        chunk({}, "tool_calls"),
        BILL,
        DONE,
    )


@reported
def the_rest_of_the_arguments_with_the_end() -> Sample:
    """vLLM (vllm-project/vllm#44098): the chunk that ends holds the last arguments and the id and name again."""
    return pay(
        chunk(piece(0, "a", "pay", "")),
        chunk(piece(0, ..., ..., '{"to": "A')),
        chunk(piece(0, "a", "pay", 'da"}'), "tool_calls"),
        BILL,
        DONE,
    )


@reported
def the_index_of_the_tool() -> Sample:
    """SGLang (sgl-project/sglang#6310): the first piece has the tool's index, the next ones have the call's."""
    return pay(
        chunk(piece(2, "a", "pay", "")),
        chunk(piece(0, None, None, '{"to": "Ada"}')),
        chunk(piece(2, "b", "pay", "")),
        chunk(piece(1, None, None, '{"to": "Bob"}')),
        chunk({}, "tool_calls"),
        BILL,
        DONE,
        calls=PAY,
    )


@reported
def only_a_signature_without_an_index() -> Sample:
    """Open WebUI's computer (open-webui/computer#224): arguments without an index, then a piece that is no call."""
    bare = {"extra_content": {"google": {"thought_signature": "c2ln"}}}
    whole = completion(called(PAY[0]), "stop")
    whole["choices"][0]["message"]["tool_calls"][0] |= bare
    return pay(
        chunk(piece(..., "a", "pay", '{"to": ')),
        chunk(piece(..., ..., ..., '"Ada"}')),
        chunk({"tool_calls": [bare]}),
        chunk({"tool_calls": [None]}),
        chunk({}, "stop"),
        BILL,
        DONE,
        whole=whole,
    )


@reported
def one_id_for_two_calls() -> Sample:
    """Gateways that take the function's name for an id (brainlid/langchain#174): two calls differ in their index."""
    return pay(
        chunk(piece(0, "call-pay", "pay", '{"to": ')),
        chunk(piece(0, "call-pay", "pay", '"Ada"}')),
        chunk(piece(1, "call-pay", "pay", '{"to": ')),
        chunk(piece(1, "call-pay", ..., '"Bob"}')),
        chunk({}, "tool_calls"),
        BILL,
        DONE,
        calls=PAY,
    )


@reported
def the_whole_call_once_more() -> Sample:
    """LangChain for Elixir (brainlid/langchain#174): the delta with the call comes twice; nothing is paid twice."""
    again = piece(0, "a", "pay", '{"to": "Ada"}')
    return pay(chunk(again), chunk(again, "tool_calls"), BILL, DONE)


@reported
def arguments_that_are_null() -> Sample:
    """OpenDeepWiki (AIDotNet/OpenDeepWiki#392): a call of a tool without parameters has the text null, or blanks."""
    whole = completion(called(("look", {}), ("look", {})), "tool_calls")
    whole["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] = "null"
    return pay(
        chunk(piece(0, "a", "look", "nu")),
        chunk(piece(0, ..., ..., "ll")),
        chunk(piece(1, "b", "look", " ")),
        chunk({}, "tool_calls"),
        BILL,
        DONE,
        calls=[("look", {}), ("look", {})],
        whole=whole,
    )


@reported
def an_empty_object_before_the_arguments() -> Sample:
    """ogx (ogx-ai/ogx#5462): a gateway begins a call with an empty object, and the arguments follow."""
    return pay(
        chunk(piece(0, "a", "pay", "{}")),
        chunk(piece(0, ..., ..., '{"to": ')),
        chunk(piece(0, ..., ..., '"Ada"}')),
        chunk({}, "tool_calls"),
        BILL,
        DONE,
    )


@reported
def counts_before_zeros() -> Sample:
    """openai-agents-python (openai/openai-agents-python#2122): the usage comes early, and the last chunk has none."""
    zeros = dict.fromkeys(USAGE, 0)
    return text(chunk({"content": TEXT}, usage=USAGE), chunk({}, "stop", usage=zeros), {**BILL, "usage": None}, DONE)


@reported
def a_status_for_a_text() -> Sample:
    """goose (aaif-goose/goose#8027): vLLM's and SGLang's error in the stream; some write its status as a text."""
    error = {"object": "error", "message": "no such thing", "type": "BadRequestError", "param": None, "code": "400"}
    return failed("llm.request_error", chunk({"role": "assistant", "content": ""}), {"error": error})


@reported
def text_and_calls_in_the_last_delta() -> Sample:
    """Mistral's and Ollama's servers (earendil-works/pi#9674): text, calls, end and usage in one chunk."""
    delta = {"role": "assistant", "content": "I pay.", **piece(0, "a", "pay", '{"to": "Ada"}')}
    return pay(chunk(delta, "tool_calls", usage=USAGE), DONE, text="I pay.")


@reported
def done_and_no_end() -> Sample:
    """pi (earendil-works/pi#6226): NIM sends a whole call and DONE, and never a finish reason."""
    return failed("llm.stream_cut", chunk(piece(0, "a", "pay", '{"to": "Ada"}')), BILL, DONE)


@reported
def nulls_in_later_pieces() -> Sample:
    """opencode (anomalyco/opencode#43328): id, type and name are null in each later piece, arguments empty or null."""
    later = {"index": 0, "id": None, "type": None, "function": {"name": None, "arguments": ""}}
    return pay(
        chunk({"role": None, "content": "", **piece(0, "a", "pay", None)}),
        chunk({"role": None, "content": "", "tool_calls": [later]}),
        chunk({"role": None, "content": "", "tool_calls": [{**later, "function": None}]}),
        chunk({"role": None, **piece(0, None, None, '{"to": "Ada"}')}),
        chunk({"role": None, **piece(0, None, None, None)}),
        chunk({}, "tool_calls"),
        BILL,
        DONE,
    )


@reported
def an_error_for_a_text() -> Sample:
    """octos (octos-org/octos#13): an event named error, whose error is a text and no object."""
    return failed(
        "llm.network_error",
        chunk({"content": "half a"}),
        'event: error\ndata: {"error": "Stream error: Internal Network Failure"}\n\n',
    )


@reported
def an_error_in_a_field_of_its_own() -> Sample:
    """llama.cpp (ggml-org/llama.cpp, its older servers): the field of the event is ``error``, no data at all."""
    error = {"error": {"code": 500, "message": "failed", "type": "server_error"}}
    return failed("llm.network_error", chunk({"content": "half a"}), f"error: {json.dumps(error)}\n\n")


@reported
def an_error_and_done() -> Sample:
    """RocketMQ's dashboard (apache/rocketmq-dashboard#2178): the only event is an error, of status 200."""
    error = {"error": {"message": "You exceeded your current quota", "code": "insufficient_quota"}}
    return failed("llm.quota_exhausted", error, DONE, whole=error)


@reported
def an_error_from_text_generation() -> Sample:
    """text-generation-inference: an error as a text with its type, as data without a blank, and the end."""
    return failed(
        "llm.network_error",
        chunk({"content": "half a"}),
        'data:{"error":"Request failed during generation: Server error","error_type":"generation"}\n\n',
    )


@reported
def an_error_within_an_event() -> Sample:
    """sub2api (Wei-Shaw/sub2api#1471): an error is written into an event that was not ended."""
    half = json.dumps(chunk({"content": "half a"}))[:40]
    error = '{"type": "error", "error": {"type": "upstream_error", "message": "stream_read_error"}}'
    return failed("llm.stream_cut", chunk({"content": "half"}), f"data: {half}\ndata: {error}\n\n")


@reported
def more_behind_done() -> Sample:
    """Gateways (BerriAI/litellm and others): marks of DONE without a blank, and events behind it."""
    return text(
        chunk({"content": TEXT}),
        chunk({}, "stop"),
        BILL,
        "data:[DONE]\r\n\r\n",
        {"hook_results": {}, "choices": []},
        "event: done\ndata: [DONE]\n\n",
    )


@reported
def a_start_without_input() -> Sample:
    """cc-switch (farion1231/cc-switch#2557): a gateway's block of a tool has no input at its start, and no counts."""
    start: Json = {"type": "tool_use", "id": "t", "name": "pay"}
    frames = list(blocks((start, used("pay", '{"to": ', '"Ada"}')[1]), stop="tool_use"))
    frames[0] = events(
        {"type": "message_start", "message": {"id": "x", "type": "message", "role": "assistant", "content": []}}
    )[0]
    delta = {"type": "message_delta", "delta": {"stop_reason": "tool_use"}}
    frames[-2:-1] = events({**delta, "usage": {"input_tokens": 7, "output_tokens": 5}})
    whole = message({**start, "input": {"to": "Ada"}}, stop="tool_use")
    return Sample("", "anthropic/scripted", whole, tuple(frames), calls=PAY[:1], finish="tool_calls")


@reported
def claude_overloaded_in_the_stream() -> Sample:
    """anthropic-sdk-python, reports of overload: the error comes in the stream, behind the status 200."""
    error = {"type": "error", "error": {"details": None, "type": "overloaded_error", "message": "Overloaded"}}
    frames = (*blocks(said("half a"))[:3], f"event: error\ndata: {json.dumps(error)}\n\n".encode())
    return Sample("", "anthropic/scripted", None, frames, code="llm.network_error")


@reported
def gemini_ends_without_parts() -> Sample:
    """Envoy's gateway (envoyproxy/ai-gateway#2399): a call without an end, then an end without content or parts."""
    usage = {"promptTokenCount": 7, "candidatesTokenCount": 2, "thoughtsTokenCount": 3, "totalTokenCount": 12}
    call = {"functionCall": {"name": "pay", "args": {"to": "Ada"}}, "thoughtSignature": "c2ln"}

    def sent(*parts: Json, **more: Json) -> Json:
        return {"candidates": [{"content": {"role": "model", "parts": list(parts)}, **more}]}

    frames = events(
        {**sent(call), "usageMetadata": {"trafficType": "ON_DEMAND"}},
        {"candidates": [{"content": {"role": "model"}, "index": 0}]},
        {"candidates": [{"finishReason": "STOP", "index": 0}], "usageMetadata": usage},
    )
    whole = {**sent(call, finishReason="STOP"), "usageMetadata": usage}
    return Sample("", "gemini/scripted", whole, frames, calls=PAY[:1], finish="tool_calls")


@reported
def blanks_before_the_answer() -> Sample:
    """oMLX (jundot/omlx#2066): blank lines keep a whole reply alive until it is there."""
    frames = (b" ", b"\n", b"\n \n", json.dumps(completion({"content": TEXT})).encode(), b"\n")
    return Sample("", OPENAI, completion({"content": TEXT}), frames, text=TEXT, kind="application/json")


@reported
def characters_cut_in_two() -> Sample:
    """urllib3.future (jawah/urllib3.future#349): a character of several bytes lies across two packets."""
    beyond = "é, 北京, 👩‍👩‍👧 and Ωmega"
    return text(*(chunk({"content": part}) for part in beyond), chunk({}, "stop"), BILL, DONE, text=beyond)


@reported
def one_line_of_megabytes() -> Sample:
    """Clients that bound a line (bufio's scanner, aiohttp's reader): one event of some megabytes."""
    long = "a\u2028" * 400_000
    return text(chunk({"content": long}), chunk({}, "stop"), BILL, DONE, text=long)


@documented
def arguments_in_pieces() -> Sample:
    """Vertex AI, streamFunctionCallArguments: a call whose arguments are not there is never made without them."""
    usage = {"promptTokenCount": 7, "candidatesTokenCount": 2, "totalTokenCount": 9}
    begun = {"functionCall": {"name": "pay", "willContinue": True}}
    more = {"functionCall": {"partialArgs": [{"jsonPath": "$.to", "stringValue": "Ada"}]}}
    frames = events(
        {"candidates": [{"content": {"role": "model", "parts": [begun]}}]},
        {
            "candidates": [{"content": {"role": "model", "parts": [more]}, "finishReason": "STOP"}],
            "usageMetadata": usage,
        },
    )
    return Sample("", "gemini/scripted", None, frames, code="llm.invalid_response")


@reported
def an_error_event_that_is_plain_text() -> Sample:
    """Proxies in front of a model: the event's type says that it is an error, its data is a sentence."""
    return failed("llm.network_error", chunk({"content": "half"}), "event: error\ndata: upstream is gone\n\n")


CASES = {case.__name__: case for case in (*DOCUMENTED, *REPORTED)}


async def read(sample: Sample, packets: list[bytes], fault: Exception | None = None) -> Answer | str:
    """What becomes of these packets, which may end in a fault: the answer, or the reason code of one that is none."""

    async def raw() -> AsyncIterator[bytes]:
        for packet in packets:
            yield packet
        if fault is not None:
            raise fault

    async def close() -> None: ...

    wire = WIRES.get(sample.model.partition("/")[0], CHAT)
    try:
        answered = await receive(wire, HttpReply(200, {"content-type": sample.kind}, raw(), close), Silent())
        assert isinstance(answered, Answered)
        return model_call._answer(answered, definition(sample, "http://127.0.0.1:9"), may_be_cut=False)
    except Exception as error:  # noqa: BLE001 - whatever is raised is what is tested
        return classify(facts_of(error, NOW))


@pytest.mark.parametrize("size", ["everything", "an event", "anywhere", 1])
@pytest.mark.parametrize("name", CASES)
async def test_a_stream_unlike_the_usual(name: str, size: int | str) -> None:
    """S-15."""
    sample = CASES[name]()
    if size == 1 and sum(map(len, sample.frames)) > 100_000:
        size = 4093
    check(sample, await read(sample, packets_of(sample.frames, size)))


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case().whole])
async def test_the_whole_reply_is_read_as_the_stream_is(name: str) -> None:
    """S-15."""
    sample = CASES[name]()
    whole = await read(Sample("", sample.model, None, (), kind="application/json"), [json.dumps(sample.whole).encode()])
    check(sample, whole)
    if isinstance(whole, Answer):
        assert whole == await read(sample, list(sample.frames))


async def test_a_connection_lost_behind_the_end_loses_nothing() -> None:
    """S-15; langchain-openai and others: a server closes behind the last chunk and before DONE, or its trailers."""
    sample = CASES["text_and_calls_in_the_last_delta"]()
    lost = httpx.RemoteProtocolError("peer closed connection without sending complete message body")
    check(sample, await read(sample, list(sample.frames[:-1]), lost))
    assert await read(CASES["characters_cut_in_two"](), list(sample.frames[:0]), lost) == "llm.stream_cut"


@pytest.mark.parametrize("kind", ["", "event: error\n"])
async def test_words_in_place_of_a_chunk_are_quoted(kind: str) -> None:
    """S-15; proxies in front of a model say in plain text why it is gone."""
    frames = events(chunk({"content": "half"}), f"{kind}data: no healthy upstream\n\n")

    async def raw() -> AsyncIterator[bytes]:
        for frame in frames:
            yield frame

    async def close() -> None: ...

    with pytest.raises(UnusableReplyError, match="no healthy upstream"):
        await receive(CHAT, HttpReply(200, {"content-type": "text/event-stream"}, raw(), close), Silent())


async def test_a_stream_that_is_done_without_an_end_is_asked_for_whole() -> None:
    """S-15; earendil-works/pi#6226: half an answer is never taken for one, and the next try is no stream."""
    sample, sent = CASES["done_and_no_end"](), []
    whole = json.dumps(completion(called(PAY[0]), "tool_calls")).encode()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while asked := await read_request(reader):
            sent.append(b'"stream": true' in asked or b'"stream":true' in asked)
            kind = () if not sent[-1] else ("content-type: text/event-stream",)
            writer.write(reply(b"".join(sample.frames) if sent[-1] else whole, *kind))

    async with serving(serve) as address:
        agent = definition(sample, address)
        assert await outcome(agent, Sink()) == "llm.stream_cut"
        answer = await outcome(agent, Sink())
    assert isinstance(answer, Answer)
    assert [json.loads(call.arguments) for call in answer.calls] == [{"to": "Ada"}]
    assert sent == [True, False]
