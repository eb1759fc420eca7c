"""Requests of this door: the body of OpenAI's ``responses.create``, read as what perdure is to do.

A request does not change what an agent's definition says, such as the sampling of its model. A field is left alone
where that takes nothing away, and refused where the answer would be another one than the caller asked for.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, NoReturn

from pydantic import Field, TypeAdapter, ValidationError

from perdure.client import RequestRefusedError
from perdure.client.requests import Content
from perdure.contracts.budgets import Budgets
from perdure.contracts.caller_tools import MOST_CALLER_TOOLS, NO_ARGUMENTS, CallerTools
from perdure.contracts.values import JsonValue, Label
from perdure.gateway.bodies import Body, Json
from perdure.gateway.doors.prompts import join_parts
from perdure.gateway.doors.responses.objects import APPROVAL
from perdure.gateway.problems import problem_of_mistakes
from perdure.gateway.views import SessionName

Object = dict[str, Json]


class ResponseBody(Body):
    """The body of ``responses.create``; fields of type ``Json`` alone are looked at by :func:`read_request`."""

    longest: ClassVar[int | None] = None

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


HARMLESS: Mapping[str, tuple[JsonValue, ...]] = {
    "context_management": ([],),
    "image": (),
    "max_output_tokens": (),
    "moderation": (),
    "parallel_tool_calls": (True,),
    "prompt": (),
    "store": (True,),
    "temperature": (1, 1.0),
    "tool_choice": ("auto",),
    "top_logprobs": (0,),
    "top_p": (1, 1.0),
}
"""Fields that would change an answer, and the values, beside null, that change nothing. Others are refused."""

_ADVICE: Mapping[str, str] = {
    "max_output_tokens": "set generate_params of the agent, or budgets",
    "parallel_tool_calls": "the agent's model may call several tools at once: give each call its output",
    "store": "every response is durable; erase its session when you no longer need it",
    "temperature": "set generate_params of the agent",
    "tool_choice": "the agent's model chooses",
    "top_p": "set generate_params of the agent",
}


@dataclass(frozen=True, kw_only=True)
class Said:
    """Reply of a client to a request of a turn.

    Attributes:
        call_id: The id of the call.
        output: The output of a call of a function, or an answer; None for a decision.
        approve: Whether a call may run.
        declines: Whether a decision may decline a question too.
        error: In place of an output: why the caller's call failed.
    """

    call_id: str
    output: JsonValue = None
    approve: bool = False
    reason: str = ""
    declines: bool = False
    error: str = ""

    @property
    def says(self) -> str:
        """Kind of the reply: an output, an error or a decision."""
        return "error" if self.error else "decision" if self.output is None else "output"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Wish of a request: to go on with what is said, or a turn with the prompt.

    Attributes:
        history: Messages before the prompt, in OpenAI's chat format, for a new session.
        previous: The id of a response.
        conversation: The id of a session.
    """

    model: str | None
    said: Sequence[Said] = ()
    prompt: Content = ""
    history: Sequence[Object] = ()
    tools: Sequence[Object] = ()
    context: Mapping[str, str] | None = None
    budgets: Budgets | None = None
    previous: str | None = None
    conversation: str | None = None


def read_request(body: ResponseBody) -> Asked:
    """Read what the body asks for.

    Raises:
        RequestRefusedError: It cannot be done; the text begins with the field.
        ProblemError: The prompt is too long.
    """
    _refuse_what_would_change_answers(body)
    goes_on = body.previous_response_id is not None or body.conversation is not None
    read = _Input(goes_on=goes_on)
    read.read(body.input)
    if read.said and (read.prompt or read.history):
        _refuse(
            "input", "has outputs and messages; send the outputs first, and the message when that response has ended"
        )
    context = dict(body.metadata) if body.metadata else None
    budgets = None if body.max_tool_calls is None else Budgets(tool_calls=body.max_tool_calls)
    common = Asked(
        model=body.model,
        tools=_read_tools(body.tools or []),
        context=context,
        budgets=budgets,
        previous=body.previous_response_id,
        conversation=_read_conversation(body),
        said=tuple(read.said),
    )
    if read.said:
        return common
    system = [text for text in (body.instructions, *read.system) if text]
    return replace(common, prompt=read.content(system), history=tuple(read.history))


def _refuse(name: str, why: str) -> NoReturn:
    raise RequestRefusedError(f"{name}: {why}")


def _refuse_what_would_change_answers(body: ResponseBody) -> None:
    for name, taken in HARMLESS.items():
        value = getattr(body, name)
        if value is not None and not any(
            value == one and isinstance(value, bool) == isinstance(one, bool) for one in taken
        ):
            _refuse(name, f"this door cannot do that; {_ADVICE.get(name, 'leave it out')}")
    style = body.text if isinstance(body.text, dict) else {}
    form = style.get("format")
    if isinstance(form, dict) and form.get("type") != "text":
        _refuse("text", "the form of an answer is the agent's, by its output_schema; leave format out")


def _read_conversation(body: ResponseBody) -> str | None:
    given = body.conversation
    if given is None:
        return None
    if body.previous_response_id is not None:
        _refuse("conversation", "name a conversation or a previous_response_id, and not both")
    name = given.get("id") if isinstance(given, dict) else given
    try:
        return _SESSION.validate_python(name)
    except ValidationError as error:
        raise problem_of_mistakes([{**error.errors()[0], "loc": ("conversation",)}], "body") from None


_SESSION: TypeAdapter[str] = TypeAdapter(SessionName)
_TOOLS: TypeAdapter[Any] = TypeAdapter(CallerTools)


def _read_tools(given: Sequence[Object]) -> Sequence[Object]:
    """The function tools, as perdure's clients send them."""
    if len(given) > MOST_CALLER_TOOLS:
        _refuse("tools", f"there are {len(given)}, the limit is {MOST_CALLER_TOOLS}")
    read: list[Object] = []
    for number, tool in enumerate(given):
        if tool.get("type") != "function":
            kind = str(tool.get("type"))[:50]
            _refuse(
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


@dataclass
class _Input:
    """The input of a request, as it is read.

    Attributes:
        goes_on: Whether the request goes on with a session, which has the messages so far.
        ran: Ids of the approval requests whose calls stand in the input with what came of them.
    """

    goes_on: bool
    said: list[Said] = field(default_factory=list[Said])
    system: list[str] = field(default_factory=list[str])
    history: list[Object] = field(default_factory=list[Object])
    prompt: list[Object] = field(default_factory=list[Object])
    ran: set[str] = field(default_factory=set[str])

    def read(self, given: str | Sequence[Object] | None) -> None:
        """Read all items.

        Raises:
            RequestRefusedError: One cannot be used.
        """
        items: Sequence[Object] = [{"role": "user", "content": given}] if isinstance(given, str) else given or []
        self.ran = {str(item.get("approval_request_id")) for item in items if item.get("type") == "mcp_call"}
        for number, item in enumerate(items):
            self._read_item(f"input[{number}]", item)
        if not self.goes_on and items and items[-1].get("type") == "function_call_output":
            _refuse("input", "ends with an output; name the response that asked for it as previous_response_id")
        if not self.prompt and not self.said and not self.goes_on:
            _refuse("input", "has no message of the user behind all others; say what is to be done")

    def content(self, system: Sequence[str]) -> Content:
        """The prompt with the instructions before it.

        Raises:
            ProblemError: It is too long.
        """
        return join_parts(system, self.prompt, "input")

    def _read_item(self, at: str, item: Object) -> None:
        kind = item.get("type", "message")
        if kind == "message":
            self._read_message(at, item)
        elif kind == "function_call_output":
            self._read_output(at, item)
        elif kind == "mcp_approval_response":
            self._read_approval(at, item)
        elif kind == "function_call" and not self.goes_on:
            self._read_call(at, item, "call_id")
        elif kind == "mcp_call" and not self.goes_on:
            self._read_call(at, item, "id")
            self.history.append({"role": "tool", "tool_call_id": item["id"], "content": _outcome_of(at, item)})
        elif str(kind) in _UNRESOLVED and not self.goes_on and str(item.get("id")) not in self.ran:
            _refuse(at, _UNRESOLVED[str(kind)])
        elif str(kind) not in _KNOWN:
            _refuse(at, f"an item of type {str(kind)[:50]!r} cannot be used here; leave it out")

    def _read_message(self, at: str, item: Object) -> None:
        role = item.get("role")
        if str(role) in {"system", "developer"}:
            self.system.append(_text_of(at, item.get("content")))
        elif role == "user":
            self.prompt += _parts_of(at, item.get("content"))
        elif role != "assistant":
            _refuse(at, "is no message: its role is user, assistant, system or developer")
        elif not self.goes_on:
            self._settle_prompt(at)
            self.history.append({"role": "assistant", "content": _text_of(at, item.get("content"))})

    def _settle_prompt(self, at: str) -> None:
        """Take the messages of the user so far into the history, as others stand behind them."""
        if any(part["type"] != "text" for part in self.prompt):
            _refuse(at, "only the last message may have images and files")
        self.history += [{"role": "user", "content": part["text"]} for part in self.prompt]
        self.prompt = []

    def _read_output(self, at: str, item: Object) -> None:
        call_id = _name_of(at, item, "call_id")
        output = item.get("output")
        text = output if isinstance(output, str) else _text_of(f"{at}.output", output)
        if self.goes_on:
            self.said.append(Said(call_id=call_id, output=text))
            return
        self._settle_prompt(at)
        self.history.append({"role": "tool", "tool_call_id": call_id, "content": text})

    def _read_approval(self, at: str, item: Object) -> None:
        request, approve, reason = _name_of(at, item, "approval_request_id"), item.get("approve"), item.get("reason")
        if not isinstance(approve, bool) or not isinstance(reason or "", str):
            _refuse(at, "approve is true or false, and reason a text")
        if not self.goes_on:
            _refuse(at, "name the response that asked for it as previous_response_id")
        said = str(reason or "")
        self.said.append(Said(call_id=request.removeprefix(APPROVAL), approve=bool(approve), reason=said))

    def _read_call(self, at: str, item: Object, name: str) -> None:
        """A call that the caller resends, with the messages of a conversation that it keeps itself.

        The field ``name`` has its id.
        """
        self._settle_prompt(at)
        function: Object = {"name": _name_of(at, item, "name"), "arguments": item.get("arguments") or "{}"}
        call: Object = {"id": _name_of(at, item, name), "type": "function", "function": function}
        if not self.history or self.history[-1]["role"] != "assistant":
            self.history.append({"role": "assistant", "content": ""})
        calls = self.history[-1].setdefault("tool_calls", [])
        if isinstance(calls, list):
            calls.append(call)


_KNOWN = frozenset(
    {"function_call", "mcp_call", "mcp_approval_request", "mcp_list_tools", "reasoning", "item_reference"}
)
"""Types of items that clients resend of what they were sent, and that the session has.

A new session goes without the agent's own list of tools and its model's reasoning: nobody is told less by that.
"""

_UNRESOLVED: Mapping[str, str] = {
    "item_reference": "refers to an item that the request does not hold; name the response before this one as "
    "previous_response_id, or a conversation (in Vercel's AI SDK providerOptions.openai.previousResponseId or "
    ".conversation), or send the items whole",
    "mcp_approval_request": "is a request without its decision; name the response that asked as previous_response_id",
}
"""Items that only a session can resolve, and why a request without one is refused."""


def _outcome_of(at: str, item: Object) -> str:
    """The output of a call that perdure has run, or its error."""
    output, error = item.get("output"), item.get("error")
    if error is None:
        return output if isinstance(output, str) else "" if output is None else json.dumps(output)
    content = error.get("content") if isinstance(error, dict) else error
    return _text_of(f"{at}.error", content) if isinstance(content, str | list) else json.dumps(error)


def _name_of(at: str, item: Object, name: str) -> str:
    value = item.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= 200:
        _refuse(at, f"{name} is a text of 1 to 200 characters")
    return value


def _text_of(at: str, content: JsonValue) -> str:
    parts = _parts_of(at, content)
    if any(part["type"] != "text" for part in parts):
        _refuse(at, "may have text only")
    return "\n\n".join(str(part["text"]) for part in parts)


def _parts_of(at: str, content: JsonValue) -> list[Object]:
    """The parts of a message, in the chat format."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    if not isinstance(content, list):
        _refuse(at, "its content is a text, or a list of parts")
    return [_read_part(at, part) for part in content]


def _read_part(at: str, part: JsonValue) -> Object:
    told = part if isinstance(part, dict) else {}
    kind = told.get("type")
    if str(kind) in {"input_text", "output_text", "text"} and isinstance(told.get("text"), str):
        return {"type": "text", "text": told["text"]}
    if kind == "input_image" and isinstance(url := told.get("image_url"), str):
        if not url.startswith("data:"):
            _refuse(at, "an image is data:image/png;base64,…: the gateway fetches nothing")
        return {"type": "image_url", "image_url": {"url": url}}
    if kind == "input_file" and isinstance(data := told.get("file_data"), str):
        return {"type": "file", "file": {"filename": told.get("filename") or "", "file_data": data}}
    why = "is of type input_text, input_image with an image_url, or input_file with file_data"
    _refuse(at, f"a part {why}; {json.dumps(kind)[:60]} without its data cannot be used")
