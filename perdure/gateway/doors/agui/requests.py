"""Requests of this door: AG-UI's ``RunAgentInput``, read as what it holds.

A client sends the whole conversation each time, with entries for what waits: which of it a thread has, its log says.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, NoReturn, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from perdure.client import RequestRefusedError
from perdure.client.requests import Content
from perdure.contracts.caller_tools import MOST_CALLER_TOOLS, NO_ARGUMENTS, CallerTools
from perdure.contracts.values import JsonValue
from perdure.gateway.bodies import Body, Json
from perdure.gateway.doors.agui.framing import frame
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
    version: str | None = Field(default=None, alias="protocolVersion", max_length=50)
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
class Line:
    """A message of the user, of the agent or of a tool.

    Attributes:
        at: Its place in the request, for refusals.
        id: Its id, which the client has chosen, or this door.
        parts: What the user says, in OpenAI's chat format. What cannot be read of an earlier message, which stays in
            the conversation although it was refused, is a text that says so.
        calls: Calls of the agent, each as text, by their ids.
        said: The result of a call.
    """

    at: str
    role: str
    id: str = ""
    parts: Sequence[Object] = ()
    calls: Mapping[str, str] = field(default_factory=dict[str, str])
    said: Said | None = None

    @property
    def words(self) -> tuple[str, int]:
        """The text, and the number of files."""
        texts = [str(part["text"]) for part in self.parts if part["type"] == "text"]
        return "\n\n".join(texts), len(self.parts) - len(texts)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Wish of a request.

    Attributes:
        lines: The conversation, in order.
        context: Entries of the context, which stand before a prompt.
        system: Texts of the system, which stand before the first prompt of a new thread.
        history: Messages before the last one, if that is the user's, in OpenAI's chat format, for a new thread.
        resumed: Replies to interrupts.
        steers: Whether a running turn shall read the message.
        is_old: Whether the client speaks a version before 1.0, which says so nowhere.
    """

    lines: Sequence[Line]
    context: Sequence[str]
    system: Sequence[str]
    history: Sequence[Object]
    tools: Sequence[Object]
    resumed: Sequence[Said]
    steers: bool
    is_old: bool

    @property
    def message(self) -> Sequence[Object]:
        """The last message, if it is the user's."""
        return self.lines[-1].parts if self.lines else ()

    def begin(self) -> Content:
        """The prompt of a new thread.

        Raises:
            RequestRefusedError: There is none.
            ProblemError: It is too long, or a part of it cannot be used.
        """
        if not self.message:
            raise nothing_new()
        return join_parts(frame(self.system, self.context), self.message, "messages")

    def say(self, words: Sequence[Object]) -> Content:
        """The prompt of a thread that has a conversation: new words of the user, behind the context.

        Raises:
            ProblemError: It is too long, or a part of it cannot be used.
        """
        return join_parts(frame((), self.context), words, "messages") if words else ""


def nothing_new() -> RequestRefusedError:
    """The refusal of a request that says nothing."""
    why = "the last one is not the user's, and nothing is replied to; say what is to be done"
    return RequestRefusedError(f"messages: {why}")


_TOOLS: TypeAdapter[object] = TypeAdapter(CallerTools)


def read_run(body: RunBody) -> Asked:
    """Read what the body asks for.

    Raises:
        RequestRefusedError: It cannot be used; the text begins with the field.
        ProblemError: A tool is none.
    """
    last = max((n for n, message in enumerate(body.messages) if message.get("role") in _SPOKEN), default=-1)
    reader = _Messages()
    for number, message in enumerate(body.messages):
        reader.read(f"messages[{number}]", message, is_last=number == last)
    resumed = [_read_resume(f"resume[{number}]", entry) for number, entry in enumerate(body.resume or [])]
    forwarded = body.forwarded if isinstance(body.forwarded, dict) else {}
    is_asked = bool(reader.lines) and reader.lines[-1].role == "user"
    return Asked(
        lines=reader.lines,
        context=[_read_context(number, entry) for number, entry in enumerate(body.context or [])],
        system=reader.system,
        # A greeting of the front end's is nothing that a model has said to anybody.
        history=[*itertools.dropwhile(_is_not_the_users, reader.history[:-1] if is_asked else reader.history)],
        tools=_read_tools(body.tools or []),
        resumed=resumed,
        steers=forwarded.get("steer") is True,
        is_old=body.version is None,
    )


_SPOKEN = ("user", "assistant", "tool")  # compared, not hashed: a role may be any JSON


def _refuse(name: str, why: str) -> NoReturn:
    raise RequestRefusedError(f"{name}: {why}")


def _is_not_the_users(message: Object) -> bool:
    return message["role"] != "user"


class _Messages:
    """The messages of a request, as they are read."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.system: list[str] = []
        self.history: list[Object] = []

    def read(self, at: str, message: Object, *, is_last: bool) -> None:
        """Read the next message."""
        content, name = message.get("content"), message.get("id")
        line = Line(at=at, role=str(message.get("role")), id=name if isinstance(name, str) else "")
        match message.get("role"):
            case "system" | "developer":
                self.system.append(_text_of(at, content))
            case "user":
                parts = [_read_part(at, part, is_last=is_last) for part in _parts_of(at, content)]
                if is_last and not parts:
                    _refuse(at, "is empty")
                self.lines.append(replace(line, parts=parts))
                self.history.append({"role": "user", "content": self.lines[-1].words[0]})
            case "assistant":
                self._read_assistant(line, message)
            case "tool":
                said = _read_result(at, message)
                self.lines.append(replace(line, said=said))
                told = _text_of(at, content)
                self.history.append({"role": "tool", "tool_call_id": said.call_id, "content": told})
            case "activity" | "reasoning":
                pass
            case _:
                _refuse(at, "its role is user, assistant, tool, system, developer, activity or reasoning")

    def _read_assistant(self, line: Line, message: Object) -> None:
        at, content, calls = line.at, message.get("content"), message.get("toolCalls")
        read: list[JsonValue] = []
        texts: dict[str, str] = {}
        for call in calls if isinstance(calls, list) else []:
            function = call.get("function") if isinstance(call, dict) else None
            if not isinstance(call, dict) or not isinstance(function, dict):
                _refuse(at, "a call has an id and a function with name and arguments")
            told: Object = {"name": _name_of(at, function, "name"), "arguments": function.get("arguments") or "{}"}
            call_id = _name_of(at, call, "id")
            read.append({"id": call_id, "type": "function", "function": told})
            texts[call_id] = f"{told['name']}({told['arguments']})"
        self.lines.append(replace(line, calls=texts))
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


def _read_part(at: str, part: JsonValue, *, is_last: bool) -> Object:
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
    if not is_last:
        return {"type": "text", "text": f"(a part of the type {str(kind)[:50]!r}, which could not be read)"}
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


def _read_result(at: str, message: Object) -> Said:
    call_id, error = _name_of(at, message, "toolCallId"), message.get("error")
    if isinstance(error, str) and error:
        return Said(call_id=call_id, error=error)
    return Said(call_id=call_id, output=_text_of(at, message.get("content")))


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
