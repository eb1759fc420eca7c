"""Requests of this door: AG-UI's ``RunAgentInput``, read as what perdure is to do.

A client sends the whole conversation each time. A thread that exists has it, so all but the end is left out: a last
message of the user is the prompt, and messages of tools behind the user's last one are results.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, NoReturn, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from perdure.client import RequestRefusedError
from perdure.client.requests import Content
from perdure.contracts.caller_tools import MOST_CALLER_TOOLS, NO_ARGUMENTS, CallerTools
from perdure.contracts.values import JsonValue
from perdure.gateway.bodies import Body, Json
from perdure.gateway.doors.prompts import join_parts
from perdure.gateway.doors.responses.requests import Object, Said
from perdure.gateway.problems import problem_of_mistakes
from perdure.gateway.views import SessionName

T = TypeVar("T")

RunName = Annotated[str, Field(min_length=1, max_length=200)]
"""The id of a run, which the client chooses: the request id of the turn."""


class RunBody(Body):
    """The body of a run. Fields that this release does not know are left out, as the protocol's versions demand."""

    model_config = ConfigDict(extra="ignore")

    longest: ClassVar[int | None] = None

    thread: SessionName = Field(alias="threadId")
    run: RunName = Field(alias="runId")
    messages: list[Object] = Field(max_length=10_000)
    tools: list[Object] | None = None
    context: list[Object] | None = Field(default=None, max_length=100)
    resume: list[Object] | None = Field(default=None, max_length=1_000)
    forwarded: Json = Field(default=None, alias="forwardedProps")

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, fields: T) -> T:
        return fields


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Wish of a request.

    Attributes:
        message: The last message, if it is the user's: what is asked for.
        before: Texts that stand before it: the entries of the context.
        system: Texts of the system, which a new thread's first prompt begins with.
        history: Messages before it, in OpenAI's chat format, for a new thread.
        results: Results of tools behind the user's last message. A message beside the reply to an interrupt of its call
            is none: CopilotKit sends one, and the reply decides.
        resumed: Replies to interrupts.
        steers: Whether a running turn shall read the message.
    """

    message: Sequence[Object]
    before: Sequence[str]
    system: Sequence[str]
    history: Sequence[Object]
    tools: Sequence[Object]
    results: Sequence[Said]
    resumed: Sequence[Said]
    steers: bool

    @property
    def words(self) -> str:
        """The text of the last message, if it is the user's."""
        return "\n\n".join(str(part["text"]) for part in self.message if part["type"] == "text")

    def prompt(self, *, is_new: bool) -> Content:
        """The prompt, with what stands before it.

        Raises:
            RequestRefusedError: There is none.
            ProblemError: It is too long, or a part of it cannot be used.
        """
        if not self.message:
            _refuse("messages", "the last one is not the user's, and nothing is replied to; say what is to be done")
        texts = [*(self.system if is_new else ()), *self.before]
        return join_parts(texts, self.message, "messages")


_TOOLS: TypeAdapter[object] = TypeAdapter(CallerTools)


def read_run(body: RunBody) -> Asked:
    """Read what the body asks for.

    Raises:
        RequestRefusedError: It cannot be used; the text begins with the field.
        ProblemError: A tool is none.
    """
    last = next((n for n in reversed(range(len(body.messages))) if body.messages[n].get("role") in _SPOKEN), -1)
    users = [n for n, message in enumerate(body.messages) if message.get("role") == "user"]
    reader = _Messages()
    for number, message in enumerate(body.messages):
        reader.read(f"messages[{number}]", message, is_last=number == last)
    behind = body.messages[users[-1] + 1 if users else 0 :]
    resumed = [_read_resume(f"resume[{number}]", entry) for number, entry in enumerate(body.resume or [])]
    results = [_read_result(message) for message in behind if message.get("role") == "tool"]
    forwarded = body.forwarded if isinstance(body.forwarded, dict) else {}
    return Asked(
        message=reader.message,
        before=[_read_context(number, entry) for number, entry in enumerate(body.context or [])],
        system=reader.system,
        history=reader.history,
        tools=_read_tools(body.tools or []),
        results=[one for one in results if one.call_id not in {entry.call_id for entry in resumed}],
        resumed=resumed,
        steers=forwarded.get("steer") is True,
    )


_SPOKEN = ("user", "assistant", "tool")  # compared, not hashed: a role may be any JSON


def _refuse(name: str, why: str) -> NoReturn:
    raise RequestRefusedError(f"{name}: {why}")


class _Messages:
    """The messages of a request, as they are read."""

    def __init__(self) -> None:
        self.system: list[str] = []
        self.history: list[Object] = []
        self.message: list[Object] = []

    def read(self, at: str, message: Object, *, is_last: bool) -> None:
        """Read the next message."""
        content = message.get("content")
        match message.get("role"):
            case "system" | "developer":
                self.system.append(_text_of(at, content))
            case "user" if is_last:
                self.message = [_read_part(at, part) for part in _parts_of(at, content)]
                if not self.message:
                    _refuse(at, "is empty")
            case "user":
                self.history.append({"role": "user", "content": _text_of(at, content)})
            case "assistant":
                self._read_assistant(at, message)
            case "tool":
                call_id = _name_of(at, message, "toolCallId")
                self.history.append({"role": "tool", "tool_call_id": call_id, "content": _text_of(at, content)})
            case "activity" | "reasoning":
                pass
            case _:
                _refuse(at, "its role is user, assistant, tool, system, developer, activity or reasoning")

    def _read_assistant(self, at: str, message: Object) -> None:
        content, calls = message.get("content"), message.get("toolCalls")
        read: list[JsonValue] = []
        for call in calls if isinstance(calls, list) else []:
            function = call.get("function") if isinstance(call, dict) else None
            if not isinstance(call, dict) or not isinstance(function, dict):
                _refuse(at, "a call has an id and a function with name and arguments")
            told: Object = {"name": _name_of(at, function, "name"), "arguments": function.get("arguments") or "{}"}
            read.append({"id": _name_of(at, call, "id"), "type": "function", "function": told})
        before = self.history[-1] if self.history else {}
        calls_before = before.get("tool_calls")
        if read and not content and isinstance(calls_before, list):  # calls of one answer, each in a message of its own
            calls_before += read
            return
        told_text = "" if content is None else _text_of(at, content)
        self.history.append({"role": "assistant", "content": told_text, **({"tool_calls": read} if read else {})})


def _name_of(at: str, given: Mapping[str, JsonValue], name: str) -> str:
    value = given.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= 200:
        _refuse(at, f"{name} is a text of 1 to 200 characters")
    return value


def _parts_of(at: str, content: JsonValue) -> list[JsonValue]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    if not isinstance(content, list):
        _refuse(at, "its content is a text, or a list of parts")
    return content


def _text_of(at: str, content: JsonValue) -> str:
    parts = [part if isinstance(part, dict) else {} for part in _parts_of(at, content)]
    return "\n\n".join(str(part["text"]) for part in parts if part.get("type") == "text" and "text" in part)


def _read_part(at: str, part: JsonValue) -> Object:
    told = part if isinstance(part, dict) else {}
    kind, source = told.get("type"), told.get("source")
    if kind == "text" and isinstance(told.get("text"), str):
        return {"type": "text", "text": told["text"]}
    if isinstance(source, dict) and source.get("type") == "data" and isinstance(source.get("value"), str):
        url = f"data:{source.get('mimeType')};base64,{source['value']}"
        if kind == "image":
            return {"type": "image_url", "image_url": {"url": url}}
        if kind == "document":
            return {"type": "file", "file": {"filename": "", "file_data": url}}
    _refuse(at, "a part is a text, or an image or a document with a source of type data: the gateway fetches nothing")


def _read_context(number: int, entry: Object) -> str:
    told, value = entry.get("description"), entry.get("value")
    if not isinstance(told, str) or not isinstance(value, str):
        _refuse(f"context[{number}]", "has a description and a value, which are texts")
    return f"{told}: {value}" if told else value


def _read_tools(given: Sequence[Object]) -> Sequence[Object]:
    """The caller's tools, as perdure's clients send them."""
    if len(given) > MOST_CALLER_TOOLS:
        _refuse("tools", f"there are {len(given)}, the limit is {MOST_CALLER_TOOLS}")
    read: list[Object] = [
        {
            "name": tool.get("name"),
            "description": tool.get("description") or "",
            "parameters": tool.get("parameters") or dict(NO_ARGUMENTS),
        }
        for tool in given
    ]
    try:
        _TOOLS.validate_python(read)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)[0]
        raise problem_of_mistakes([{**found, "loc": ("tools", *found["loc"])}], "body") from None
    return read


def _read_result(message: Object) -> Said:
    call_id, error = _name_of("messages", message, "toolCallId"), message.get("error")
    if isinstance(error, str) and error:
        return Said(call_id=call_id, error=error)
    return Said(call_id=call_id, output=_text_of("messages", message.get("content")))


def _read_resume(at: str, entry: Object) -> Said:
    """A reply to an interrupt; ``cancelled`` denies a call, and declines a question."""
    call_id, payload = _name_of(at, entry, "interruptId"), entry.get("payload")
    told: Mapping[str, JsonValue] = payload if isinstance(payload, dict) else {}
    reason = told.get("reason")
    why = reason if isinstance(reason, str) else ""
    if entry.get("status") == "cancelled":
        return Said(call_id=call_id, reason=why, declines=True)
    if entry.get("status") != "resolved":
        _refuse(at, "its status is resolved or cancelled")
    if isinstance(told.get("approved"), bool):
        return Said(call_id=call_id, approve=told["approved"] is True, reason=why)
    if told.get("answer") is not None:
        return Said(call_id=call_id, output=told["answer"])
    _refuse(at, 'its payload is {"approved": true} or {"approved": false} for a call, {"answer": …} for a question')
