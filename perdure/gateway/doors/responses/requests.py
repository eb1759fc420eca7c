"""Requests of this door: the body of OpenAI's ``responses.create``, read as what perdure is to do.

What it wants of the agent's answers, such as their form, :mod:`perdure.gateway.doors.responses.settings` reads.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar

from pydantic import Field, TypeAdapter, ValidationError, field_validator

from perdure.contracts.budgets import Budgets
from perdure.contracts.caller_tools import MOST_CALLER_TOOLS, NO_ARGUMENTS, CallerTools
from perdure.contracts.tool_choice import ToolChoice
from perdure.contracts.values import JsonValue, Label, is_fields
from perdure.gateway.bodies import Body, Json
from perdure.gateway.doors.responses.objects import APPROVAL, SERVER
from perdure.gateway.doors.responses.places import NOTE, PREFIX, Origin, ResponseId, call_of
from perdure.gateway.doors.responses.settings import LEFT_ALONE, Settings, read_settings, refusal
from perdure.gateway.problems import problem_of_mistakes
from perdure.gateway.views import SessionName

Object = dict[str, Json]

LONGEST_ID = 500
"""Longest id of an item or a call: those of this door name a session of up to 200 characters."""


OURS = frozenset({LEFT_ALONE, "reason_code", "stop_reason"})
"""Keys of a response's metadata that are ours: a program may send all of it with its next request."""


class ResponseBody(Body):
    """The body of ``responses.create``; fields of type ``Json`` alone are looked at by :func:`read_request`."""

    longest: ClassVar[int | None] = None

    @field_validator("metadata", mode="before")
    @classmethod
    def _without_ours(cls, metadata: object) -> object:
        return {name: metadata[name] for name in metadata if name not in OURS} if is_fields(metadata) else metadata

    input: str | list[Object] | None = None
    model: Annotated[Label, Field(min_length=1)] | None = None
    instructions: str | None = Field(default=None, max_length=100_000)
    metadata: dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]] | None = Field(
        default=None, max_length=16
    )
    previous_response_id: Annotated[str, Field(max_length=500)] | None = None
    conversation: SessionName | Object | None = None
    tools: list[Object] | None = None
    max_tool_calls: int | None = Field(default=None, ge=0, le=1_000_000)
    stream: bool | None = None
    background: bool | None = None
    background_options: Json = None
    context_management: Json = None
    image: Json = None
    include: Json = None
    max_output_tokens: Json = None
    moderation: Json = None
    parallel_tool_calls: Json = None
    prompt: Json = None
    prompt_cache_key: Json = None
    prompt_cache_options: Json = None
    prompt_cache_retention: Json = None
    reasoning: Json = None
    safety_identifier: Json = None
    service_tier: Json = None
    store: Json = None
    stream_options: Json = None
    temperature: Json = None
    text: Json = None
    tool_choice: Json = None
    top_logprobs: Json = None
    top_p: Json = None
    truncation: Json = None
    user: Json = None


@dataclass(frozen=True, kw_only=True)
class Said:
    """Reply of a client to a request of a turn.

    Attributes:
        call_id: The id of the call.
        output: The output of a call of a function, or an answer; None for a decision.
        approve: Whether a call may run.
        declines: Whether a decision may decline a question too.
        error: In place of an output: why the caller's call failed.
        tool_choice: What the model has to call behind it.
    """

    call_id: str
    output: JsonValue = None
    approve: bool = False
    reason: str = ""
    declines: bool = False
    error: str = ""
    tool_choice: ToolChoice | None = None

    @property
    def says(self) -> str:
        """Kind of the reply: an output, an error or a decision."""
        return "error" if self.error else "decision" if self.output is None else "output"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """An item of the input, or a text of it.

    Attributes:
        at: Its place in the request, for refusals.
        kind: Its type.
        id: Its own id, or for a reference the id that it names; empty without one.
        origin: The turn that this id names, or the id of its call, if this door may have given it.
        parts: The content of a message of the user, in OpenAI's chat format.
        history: What it is in the history of a new session, in that format.
        said: What it replies to a request.
        settles: The id of the approval request that it shows to be settled, since the call has run.
        is_hollow: Whether it is a call that has run, without what came of it: some clients leave that out.
    """

    at: str
    kind: str
    id: str = ""
    origin: Origin | None = None
    parts: Sequence[Object] = ()
    history: Sequence[Object] = ()
    said: "Said | None" = None
    settles: str = ""
    is_hollow: bool = False

    @property
    def is_models(self) -> bool:
        """Whether it is of the agent: the session that it comes from has it."""
        return not self.parts and self.said is None

    @property
    def asks(self) -> bool:
        """Whether it is a request, which a reply may stand behind."""
        return self.id.startswith((APPROVAL, "fc_")) or self.kind in {"function_call", "mcp_approval_request"}

    @property
    def is_bare(self) -> bool:
        """Whether it is nothing to tell an agent: the list of its own tools, its model's reasoning, our own notes."""
        return self.kind in _BARE or _is_note(self.id)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Wish of a request: what it shows of a conversation, and what it says, in the order of its input.

    Attributes:
        system: Texts of the instructions, which stand before the prompt.
        previous: The id of a response.
        conversation: The id of a session.
        settings: What it wants of the answers.
    """

    model: str | None
    entries: Sequence[Entry] = ()
    system: Sequence[str] = ()
    tools: Sequence[Object] = ()
    context: Mapping[str, str] | None = None
    budgets: Budgets | None = None
    previous: str | None = None
    conversation: str | None = None
    settings: Settings = field(default_factory=Settings)

    @property
    def is_named(self) -> bool:
        """Whether it says by name what it goes on from."""
        return bool(self.previous or self.conversation)


_SETTINGS = ResponseBody.model_fields.keys() - {"input", "tools", "metadata"}
"""Fields that may say something of the answers."""


def read_request(body: ResponseBody, *, tunes: bool = False) -> Asked:
    """Read what the body asks for.

    Args:
        body: The body.
        tunes: Whether the caller may set parameters of the model.

    Raises:
        RequestRefusedError: It cannot be done; the text begins with the field.
        ProblemError: A tool is none, or the conversation has no name.
    """
    settings = read_settings(body.model_dump(include=_SETTINGS), tunes=tunes)
    items: Sequence[Object] = (
        [{"role": "user", "content": body.input}] if isinstance(body.input, str) else body.input or []
    )
    entries: list[Entry] = []
    system = [body.instructions] if body.instructions else []
    for number, item in enumerate(items):
        at = f"input[{number}]"
        if _is_system(item):
            system.append(text_of(at, item.get("content")))
        else:
            entries.append(read_item(at, item))
    return Asked(
        model=body.model,
        entries=entries,
        system=[text for text in system if text],
        tools=read_tools(body.tools or []),
        context=dict(body.metadata) if body.metadata else None,
        budgets=None if body.max_tool_calls is None else Budgets(tool_calls=body.max_tool_calls),
        previous=body.previous_response_id,
        conversation=_read_conversation(body),
        settings=settings,
    )


def _read_conversation(body: ResponseBody) -> str | None:
    given = body.conversation
    if given is None:
        return None
    if body.previous_response_id is not None:
        raise refusal("conversation", "name a conversation or a previous_response_id, and not both")
    name = given.get("id") if isinstance(given, dict) else given
    try:
        return _SESSION.validate_python(name)
    except ValidationError as error:
        raise problem_of_mistakes([{**error.errors()[0], "loc": ("conversation",)}], "body") from None


_SESSION: TypeAdapter[str] = TypeAdapter(SessionName)
_TOOLS: TypeAdapter[Any] = TypeAdapter(CallerTools)


def read_tools(given: Sequence[Object]) -> Sequence[Object]:
    """The function tools, as perdure's clients send them.

    Raises:
        RequestRefusedError: Another tool is among them.
        ProblemError: A function is none.
    """
    if len(given) > MOST_CALLER_TOOLS:
        raise refusal("tools", f"there are {len(given)}, the limit is {MOST_CALLER_TOOLS}")
    read: list[Object] = []
    for number, tool in enumerate(given):
        if tool.get("type") == "mcp" and tool.get("server_label") == SERVER:
            if tool.get("allowed_tools") is not None:
                raise refusal(
                    "tools", f"tool {number}: allowed_tools would restrict the agent's own tools; leave it out"
                )
            continue  # its client knows requests for approvals by it, and nothing of it is needed
        if tool.get("type") != "function":
            kind = str(tool.get("type"))[:50]
            raise refusal(
                "tools", f"tool {number} is of type {kind!r}; a caller brings functions, other tools are the agent's"
            )
        parameters = tool.get("parameters")
        described = tool.get("description")
        read.append(
            {
                "name": tool.get("name"),
                "description": "" if described is None else described,
                "parameters": dict(NO_ARGUMENTS) if parameters is None else parameters,
            }
        )
    try:
        _TOOLS.validate_python(read)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)[0]
        raise problem_of_mistakes([{**found, "loc": ("tools", *found["loc"])}], "body") from None
    return read


def _is_system(item: Object) -> bool:
    role = str(item.get("role"))
    return item.get("type", "message") == "message" and role in {"system", "developer"}


def read_item(at: str, item: Object) -> Entry:
    """Read an item of the input, or one of an output as if it were sent again.

    Raises:
        RequestRefusedError: It cannot be used.
    """
    kind = str(item.get("type", "message"))
    read = _READERS.get(kind)
    if read is None:
        raise refusal(at, f"an item of type {kind[:50]!r} cannot be used here; leave it out")
    return read(at, item)


def _read_message(at: str, item: Object) -> Entry:
    role = item.get("role")
    if role == "user":
        return Entry(at=at, kind="message", parts=_parts_of(at, item.get("content")), **_identity(item))
    if role != "assistant":
        raise refusal(at, "is no message: its role is user, assistant, system or developer")
    text, told = text_of(at, item.get("content")), _identity(item)
    history: list[Object] = [] if _is_note(told.get("id", "")) else [{"role": "assistant", "content": text}]
    return Entry(at=at, kind="message", history=history, **told)


def _is_note(name: str) -> bool:
    return name.startswith(NOTE) and Origin.parse(name) is not None


def _read_output(at: str, item: Object) -> Entry:
    wire, output = _name_of(at, item, "call_id"), item.get("output")
    text = output if isinstance(output, str) else text_of(f"{at}.output", output)
    history: Object = {"role": "tool", "tool_call_id": call_of(wire), "content": text}
    said = Said(call_id=call_of(wire), output=text)
    return Entry(at=at, kind="function_call_output", origin=Origin.parse(wire), history=[history], said=said)


def _read_approval(at: str, item: Object) -> Entry:
    wire, approve, reason = _name_of(at, item, "approval_request_id"), item.get("approve"), item.get("reason")
    if not isinstance(approve, bool) or not isinstance(reason or "", str):
        raise refusal(at, "approve is true or false, and reason a text")
    call = wire.removeprefix(APPROVAL)
    said = Said(call_id=call_of(call), approve=bool(approve), reason=str(reason or ""))
    return Entry(at=at, kind="mcp_approval_response", id=wire, origin=Origin.parse(call), said=said)


def _read_function_call(at: str, item: Object) -> Entry:
    wire = _name_of(at, item, "call_id")
    call = Entry(at=at, kind="function_call", history=[_call_of(at, item, call_of(wire))], **_identity(item))
    return replace(call, origin=Origin.parse(wire) or call.origin)


def _read_ended_call(at: str, item: Object) -> Entry:
    call_id = call_of(_name_of(at, item, "id")) if item.get("id") is not None else at
    outcome: Object = {"role": "tool", "tool_call_id": call_id, "content": _outcome_of(at, item)}
    request = item.get("approval_request_id")
    return Entry(
        at=at,
        kind="mcp_call",
        history=[_call_of(at, item, call_id), outcome],
        settles=request if isinstance(request, str) else "",
        is_hollow=item.get("output") is None and item.get("error") is None,
        **_identity(item),
    )


def _read_approval_request(at: str, item: Object) -> Entry:
    wire = _name_of(at, item, "id")
    call = wire.removeprefix(APPROVAL)
    history = [_call_of(at, item, call_of(call))]
    return Entry(at=at, kind="mcp_approval_request", id=wire, origin=Origin.parse(call), history=history)


def _read_reference(at: str, item: Object) -> Entry:
    wire = _name_of(at, item, "id")
    origin = Origin.parse(wire.removeprefix(APPROVAL))
    if origin is None and (place := ResponseId.parse(wire)) is not None:
        origin = Origin(place.session, place.turn, PREFIX)
    return Entry(at=at, kind="item_reference", id=wire, origin=origin)


def _read_bare(at: str, item: Object) -> Entry:
    return Entry(at=at, kind=str(item["type"]), **_identity(item))


_BARE = frozenset({"mcp_list_tools", "reasoning"})

_READERS: Mapping[str, Callable[[str, Object], Entry]] = {
    "message": _read_message,
    "function_call": _read_function_call,
    "function_call_output": _read_output,
    "item_reference": _read_reference,
    "mcp_approval_request": _read_approval_request,
    "mcp_approval_response": _read_approval,
    "mcp_call": _read_ended_call,
    **dict.fromkeys(_BARE, _read_bare),
}
"""Readers of the items that clients send."""


def _identity(item: Object) -> dict[str, Any]:
    found = item.get("id")
    return {"id": found, "origin": Origin.parse(found)} if isinstance(found, str) else {}


def _call_of(at: str, item: Object, call_id: str) -> Object:
    """A call as the history has it, in a message of the agent."""
    function: Object = {"name": _name_of(at, item, "name"), "arguments": item.get("arguments") or "{}"}
    call: Object = {"id": call_id, "type": "function", "function": function}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def _outcome_of(at: str, item: Object) -> str:
    """The output of a call that perdure has run, or its error."""
    output, error = item.get("output"), item.get("error")
    if error is None:
        return output if isinstance(output, str) else "" if output is None else json.dumps(output)
    content = error.get("content") if isinstance(error, dict) else error
    return text_of(f"{at}.error", content) if isinstance(content, str | list) else json.dumps(error)


def _name_of(at: str, item: Object, name: str) -> str:
    value = item.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST_ID:
        raise refusal(at, f"{name} is a text of 1 to {LONGEST_ID} characters")
    return value


def text_of(at: str, content: JsonValue) -> str:
    """The text of a message.

    Raises:
        RequestRefusedError: It has something else.
    """
    parts = _parts_of(at, content)
    if any(part["type"] != "text" for part in parts):
        raise refusal(at, "may have text only")
    return "\n\n".join(str(part["text"]) for part in parts)


def _parts_of(at: str, content: JsonValue) -> list[Object]:
    """The parts of a message, in the chat format."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    if not isinstance(content, list):
        raise refusal(at, "its content is a text, or a list of parts")
    return [part for part in (_read_part(at, part) for part in content) if part.get("text") != ""]


def _read_part(at: str, part: JsonValue) -> Object:
    told = part if isinstance(part, dict) else {}
    kind = told.get("type")
    if str(kind) in {"input_text", "output_text", "text"} and isinstance(told.get("text"), str):
        return {"type": "text", "text": told["text"]}
    if kind == "refusal" and isinstance(said := told.get("refusal"), str):
        return {"type": "text", "text": said}
    if kind == "input_image" and isinstance(url := told.get("image_url"), str):
        if not url.startswith("data:"):
            raise refusal(at, "an image is data:image/png;base64,…: the gateway fetches nothing")
        return {"type": "image_url", "image_url": {"url": url}}
    if kind == "input_file" and isinstance(data := told.get("file_data"), str):
        return {"type": "file", "file": {"filename": told.get("filename") or "", "file_data": data}}
    why = "is of type input_text, input_image with an image_url, or input_file with file_data"
    raise refusal(at, f"a part {why}; {json.dumps(kind)[:60]} without its data cannot be used")
