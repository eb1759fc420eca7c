"""Objects of OpenAI's Responses API, as JSON: the response with its items, made from what the log says of a turn."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from perdure.contracts.budgets import Usage
from perdure.contracts.errors import ErrorDetail, ReasonCode
from perdure.contracts.events import AgentStart
from perdure.contracts.files import FilePart
from perdure.contracts.input_requests import DecidedRequest, InputRequest, Need
from perdure.contracts.tools import ToolDeclaration
from perdure.contracts.turns import StopReason
from perdure.contracts.values import JsonValue
from perdure.gateway.doors.responses.places import ResponseId, call_of, item_id, wire_call

Item = dict[str, JsonValue]
"""An item of a response: a message, a call, or a request to whoever follows it."""

SERVER = "perdure"
"""Label of the server that runs an agent's tools: their calls are items ``mcp_call`` of it."""

APPROVAL = "mcpr_"
"""Prefix of the id of an approval request; the id of the call, as clients have it, is behind it."""

STATUSES: Mapping[StopReason, str] = {
    StopReason.FINISHED: "completed",
    StopReason.WAITING_FOR_INPUT: "completed",
    StopReason.MAX_STEPS_REACHED: "incomplete",
    StopReason.BUDGET_EXHAUSTED: "incomplete",
    StopReason.CANCELLED: "cancelled",
    StopReason.ERROR: "failed",
    StopReason.STALLED: "failed",
}
"""Status of a response whose turn ended so."""

NEEDS: Mapping[str, Need] = {"answered": "answer", "returned": "result", "failed": "result"}
"""Needs of calls that the client runs or a person answers, by decisions that are their outputs."""


@dataclass(frozen=True)
class Ending:
    """End of a response, as a client reads it.

    Attributes:
        status: OpenAI's word for it.
        error: Why it failed, as one sentence.
        code: Our reason code.
        stop_reason: Our word for the end of the turn; empty if the turn has not ended.
    """

    status: str
    at: datetime | None = None
    error: str = ""
    code: str = ""
    stop_reason: str = ""


@dataclass(frozen=True)
class Shape:
    """Fields that the responses of one turn share.

    Attributes:
        model: Name of the agent.
        metadata: Texts of the turn's context.
        tools: Function tools of the caller.
        names: Names of all tools that the model may call.
        output_schema: JSON schema of the answer; None for a text.
        params: Parameters of the model's calls.
    """

    model: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])
    tools: Sequence[Item] = ()
    names: frozenset[str] = frozenset()
    output_schema: Item | None = None
    params: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])


def tools_of(tools: Sequence[ToolDeclaration]) -> list[Item]:
    """The function tools among an agent's tools, which whoever started the turn runs."""
    return [
        {
            "type": "function",
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.parameters,
            "strict": None,
        }
        for tool in tools
        if tool.runs == "caller"
    ]


def describe_response(
    place: ResponseId,
    shape: Shape,
    *,
    created_at: datetime,
    output: Sequence[Item] = (),
    usage: Usage | None = None,
    ending: Ending | None = None,
) -> Item:
    """A response object; without an ending it is in progress."""
    status = "in_progress" if ending is None else ending.status
    told = {} if ending is None else {"stop_reason": ending.stop_reason, "reason_code": ending.code}
    metadata: Item = {**shape.metadata, **{name: text for name, text in told.items() if text}}
    previous = None if place.segment == 1 else str(ResponseId(place.session, place.turn, place.segment - 1))
    return {
        "id": str(place),
        "object": "response",
        "created_at": int(created_at.timestamp()),
        "completed_at": int(ending.at.timestamp()) if ending and ending.at and status == "completed" else None,
        "status": status,
        "background": True,
        "error": _describe_failure(ending) if ending is not None and status == "failed" else None,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "instructions": None,
        "max_output_tokens": None,
        "max_tool_calls": None,
        "model": shape.model,
        "output": list(output),
        "parallel_tool_calls": shape.params.get("parallel_tool_calls") is not False,
        "previous_response_id": previous,
        "conversation": {"id": place.session},
        "reasoning": _describe_reasoning(shape.params.get("reasoning_effort")),
        "store": True,
        "temperature": shape.params.get("temperature"),
        "text": {"format": _describe_format(shape.output_schema)},
        "tool_choice": "auto",
        "tools": list(shape.tools),
        "top_p": shape.params.get("top_p"),
        "truncation": "disabled",
        "usage": None if usage is None else describe_usage(usage),
        "metadata": metadata,
    }


def _describe_reasoning(effort: JsonValue) -> Item | None:
    return None if effort is None else {"effort": effort, "summary": None}


def _describe_format(schema: Item | None) -> Item:
    """The form of the answer; its name is nobody's, since a turn keeps the schema alone."""
    if schema is None:
        return {"type": "text"}
    return {"type": "json_schema", "name": "answer", "schema": schema, "strict": None, "description": None}


def _describe_failure(ending: Ending) -> Item:
    """The error of a failed response; OpenAI has a closed list of codes, so ours stands in the metadata."""
    code = "rate_limit_exceeded" if ending.code == ReasonCode.LLM_RATE_LIMITED else "server_error"
    return {"code": code, "message": ending.error or f"the turn ended: {ending.stop_reason or ending.code}"}


def describe_inputs(place: ResponseId, prompt: AgentStart | None, said: Sequence[Item]) -> list[Item]:
    """Input of a response: the prompt of its turn, or what was said to the response before."""
    if place.segment > 1 or prompt is None or said:
        return list(said)
    return [describe_words(place, "prompt", prompt.prompt, prompt.parts)]


def describe_words(place: ResponseId, name: str, text: str, parts: Sequence[FilePart]) -> Item:
    """A message of the user, by its name in its turn."""
    content: list[JsonValue] = [{"type": "input_text", "text": text}] if text else []
    files: list[Item] = [{"type": "input_file", "file_id": part.artifact, "filename": part.name} for part in parts]
    message = item_id("msg", place.session, place.turn, name)
    return {"id": message, "type": "message", "role": "user", "status": "completed", "content": [*content, *files]}


def describe_decision(session: str, turn: int, decided: DecidedRequest, output: str | None) -> Item:
    """Reply to a request: a decision about a call, or the output of one that the client ran."""
    call_id = decided.request_id
    wire = wire_call(session, turn, call_id)
    if decided.decision in {"approved", "denied"}:
        return {
            "id": item_id("mcpa", session, turn, call_id),
            "type": "mcp_approval_response",
            "approval_request_id": APPROVAL + wire,
            "approve": decided.decision == "approved",
            "reason": None,
        }
    return {
        "id": item_id("fco", session, turn, call_id),
        "type": "function_call_output",
        "call_id": wire,
        "output": output or "",
        "status": "completed",
    }


def describe_list(items: Sequence[Item], *, has_more: bool = False) -> Item:
    """A list of objects with ids."""
    first, last = (str(items[0]["id"]), str(items[-1]["id"])) if items else ("", "")
    return {"object": "list", "data": list(items), "first_id": first, "last_id": last, "has_more": has_more}


def describe_usage(usage: Usage) -> Item:
    """Tokens of a response."""
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.total_tokens,
    }


def describe_part(text: str) -> Item:
    """The text of a message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def describe_message(message: str, text: str | None, status: str) -> Item:
    """A message of the agent; without a text it has no content yet."""
    content: list[JsonValue] = [] if text is None else [describe_part(text)]
    return {"id": message, "type": "message", "role": "assistant", "status": status, "content": content}


def describe_call(session: str, turn: int, call_id: str, tool: str, arguments: str, *, approved: bool = False) -> Item:
    """A call that perdure runs, and has not ended."""
    return {
        "id": item_id("mcp", session, turn, call_id),
        "type": "mcp_call",
        "server_label": SERVER,
        "name": tool,
        "arguments": arguments,
        "approval_request_id": APPROVAL + wire_call(session, turn, call_id) if approved else None,
        "status": "in_progress",
        "output": None,
        "error": None,
    }


def close_call(item: Item, result: str | None, error: ErrorDetail | None) -> Item:
    """A call with what came of it."""
    if error is None:
        return {**item, "status": "completed", "output": result}
    said: JsonValue = [{"type": "text", "text": f"{error.code}: {error.message}"}]
    failure: Item = {"type": "mcp_tool_execution_error", "content": said}
    return {**item, "status": "failed", "output": result, "error": failure}


def describe_request(session: str, turn: int, request: InputRequest) -> Item:
    """Request that a turn waits for: an approval, or a call of a function that the client runs or a person answers."""
    wire = wire_call(session, turn, request.request_id)
    if request.needs == "approval":
        return {
            "id": APPROVAL + wire,
            "type": "mcp_approval_request",
            "server_label": SERVER,
            "name": request.tool,
            "arguments": request.arguments,
        }
    return {
        "id": item_id("fc", session, turn, request.request_id),
        "type": "function_call",
        "call_id": wire,
        "name": request.tool,
        "arguments": request.arguments,
        "status": "completed",
    }


def asked_call(item: Item) -> str:
    """The id of the call that an item is, or asks an approval of; an item that is none has an id that no call has."""
    return call_of(str(item.get("call_id") or item["id"]).removeprefix(APPROVAL))


def texts_of(items: Sequence[Item]) -> list[str]:
    """The texts of the messages among these items."""
    contents = [item["content"] for item in items if item["type"] == "message"]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    return [str(part["text"]) for part in parts if isinstance(part, dict) and "text" in part]
