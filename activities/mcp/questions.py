"""Questions of an MCP server in place of a call's result: read, kept with the call, and answered with its next try.

The server holds no connection meanwhile. Its state comes with the question, and goes back with the answer as it came.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeGuard, cast

from mcp_types import ElicitRequest, ElicitRequestFormParams, ElicitRequestURLParams, ElicitResult, InputRequiredResult
from pydantic import Field

from perdure.activities.mcp.failures import McpError
from perdure.contracts.errors import ReasonCode
from perdure.contracts.server_questions import ServerAnswer, ServerQuestion
from perdure.contracts.values import JsonValue, Value

MAX_QUESTION = 2_000
"""Characters of a question that people read."""

MAX_FORM_BYTES = 16 * 1024
"""Longest schema of an answer, as JSON; it travels in Temporal payloads."""

MAX_STATE_BYTES = 256 * 1024
"""Longest state of a server that is kept with a call."""

MAX_ROUNDS = 20
"""Most questions of one call."""

DONE = "done"
"""The answer to a request to open a page."""

_FIELDS = frozenset(
    {"type", "title", "description", "enum", "enumNames", "default", "minLength", "maxLength", "minimum", "maximum"}
    | {"minItems", "maxItems", "items", "oneOf", "anyOf", "const"}
)
"""Words of a field's schema that are kept. A pattern is not: it is a stranger's, and the server checks it itself."""

_KINDS = frozenset({"string", "number", "integer", "boolean", "array"})


class AskedByServer(Value):
    """A question of a server, as the ledger keeps it with the call.

    Attributes:
        question: What people are asked.
        state: The server's state, which goes back as it came; None if it sent none.
        forms: The server's names of the parts that ask for fields, with the names of these.
        pages: The server's names of the parts that ask to open a page.
    """

    question: ServerQuestion
    state: str | None = None
    forms: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    pages: tuple[str, ...] = ()


@dataclass(frozen=True)
class Answering:
    """Question that a call's server asked before, and the answer that is sent now.

    Attributes:
        has_people: Whether a question can wait for people; else the server learns that nobody answers.
    """

    asked: AskedByServer | None = None
    answer: ServerAnswer | None = None
    has_people: bool = True

    @property
    def number(self) -> int:
        """Number of questions that the server has asked."""
        return 0 if self.answer is None else self.answer.number

    def response(self) -> tuple[dict[str, Any] | None, str | None]:
        """Responses to the question, and the state that came with it: both are sent with the call."""
        if self.asked is None or self.answer is None:
            return None, None
        return responses_to(self.asked, self.answer), self.asked.state


NOTHING_ASKED = Answering()
"""Of a call that is sent for the first time."""


class InputNeededError(Exception):
    """A call has no result yet: its server asks people something first."""

    def __init__(self, asked: AskedByServer) -> None:
        super().__init__(asked.question.text)
        self.asked = asked


def read_question(server: str, result: InputRequiredResult, number: int, clean: Callable[[str], str]) -> AskedByServer:
    """The question in a server's answer to a call.

    Args:
        server: The server's name.
        result: The answer; it asks for something.
        number: How many questions of this call came so far, with this one.
        clean: Masks secrets.

    Raises:
        McpError: The server asks for what people cannot be asked, or for too much.
    """
    who = f"MCP server {server!r}"
    requests = result.input_requests or {}
    others = sorted({request.method for request in requests.values() if not isinstance(request, ElicitRequest)})
    if others:
        raise _refusal(f"{who} asks for {', '.join(others)}, which perdure did not offer")
    if number > MAX_ROUNDS:
        raise _refusal(f"{who} asked {MAX_ROUNDS} questions about this call and asks another one")
    if len((result.request_state or "").encode()) > MAX_STATE_BYTES:
        raise _refusal(f"{who} asks something and sends over {MAX_STATE_BYTES:,} bytes of state with it")
    asked = {key: request.params for key, request in requests.items() if isinstance(request, ElicitRequest)}
    forms = {key: _form_of(params) for key, params in asked.items() if isinstance(params, ElicitRequestFormParams)}
    pages = tuple(key for key, params in asked.items() if isinstance(params, ElicitRequestURLParams))
    form = _join_forms(forms)
    if form is not None and len(json.dumps(form).encode()) > MAX_FORM_BYTES:
        raise _refusal(f"{who} asks for an answer whose schema is over {MAX_FORM_BYTES:,} bytes")
    said = [clean(_text_of(params)) for params in asked.values()]
    fields = "" if form is None else _describe_fields(form)
    text = f"{who} asks: " + "\n".join(said)
    text = text[: MAX_QUESTION - len(fields) - 1] if len(fields) < MAX_QUESTION // 2 else text
    question = ServerQuestion(
        number=number,
        text=f"{text}\n{fields}".strip()[:MAX_QUESTION],
        form=cast("dict[str, JsonValue] | None", _cleaned(form, clean)),
        options=(DONE,) if form is None else (),
    )
    names = {key: tuple(cast("Mapping[str, Any]", form["properties"])) for key, form in forms.items()}
    return AskedByServer(question=question, state=result.request_state, forms=names, pages=pages)


def responses_to(asked: AskedByServer, answer: ServerAnswer) -> dict[str, Any]:
    """The responses that the server gets for its question, by its names of the parts."""
    action: Literal["accept", "decline", "cancel"] = answer.action
    if action != "accept":
        return {key: ElicitResult(action=action) for key in (*asked.forms, *asked.pages)}
    given: Any = answer.value
    single = len(asked.forms) == 1
    content = {key: given if single else given.get(key, {}) for key in asked.forms}
    return {
        **{key: ElicitResult(action="accept", content=fields) for key, fields in content.items()},
        **{key: ElicitResult(action="accept") for key in asked.pages},
    }


def _refusal(why: str) -> McpError:
    return McpError(ReasonCode.TOOL_INVALID_OUTPUT, f"{why}; the call was not completed")


def _text_of(params: ElicitRequestFormParams | ElicitRequestURLParams) -> str:
    text = params.message.strip()
    return f"{text}\nOpen {params.url}, then answer '{DONE}'." if isinstance(params, ElicitRequestURLParams) else text


def _form_of(params: ElicitRequestFormParams) -> dict[str, Any]:
    """The schema of the answer, of the words that such schemas have."""
    given = params.requested_schema
    fields = _object_of(given.get("properties"))
    known = {name: _field_of(field) for name, field in fields.items() if _is_object(field)}
    names = [name for name in _list_of(given.get("required")) if name in known]
    return {"type": "object", "properties": known, "required": names}


def _is_object(value: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def _object_of(value: object) -> dict[str, Any]:
    return value if _is_object(value) else {}


def _is_list(value: object) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def _list_of(value: object) -> list[Any]:
    return value if _is_list(value) else []


def _field_of(field: Mapping[str, Any]) -> dict[str, Any]:
    kept = {word: value for word, value in field.items() if word in _FIELDS}
    if kept.get("type") not in _KINDS:
        kept.pop("type", None)
    for word in ("oneOf", "anyOf"):
        if word in kept:
            kept[word] = [_field_of(_object_of(each)) for each in _list_of(kept[word])]
    if "items" in kept:
        kept["items"] = _field_of(_object_of(kept["items"]))
    return kept


def _join_forms(forms: Mapping[str, dict[str, Any]]) -> dict[str, Any] | None:
    if len(forms) <= 1:
        return next(iter(forms.values()), None)
    return {"type": "object", "properties": dict(forms), "required": [*forms]}


def _describe_fields(form: Mapping[str, Any]) -> str:
    """The fields of an answer in a line, for doors that show no schema."""
    return f"Answer with {_describe_object(form)}" if form["properties"] else "Answer with {}."


def _describe_object(form: Mapping[str, Any]) -> str:
    return "{" + ", ".join(_describe_each(form)) + "}"


def _describe_each(form: Mapping[str, Any]) -> Iterator[str]:
    for name, field in form["properties"].items():
        choices = _choices_of(field)
        what = " | ".join(map(json.dumps, choices)) if choices else field.get("type", "any")
        if field.get("type") == "object":
            what = _describe_object(field)
        yield f"{json.dumps(name)}: {what}{'' if name in form['required'] else ' (optional)'}"


def _choices_of(field: Mapping[str, Any]) -> list[Any]:
    if isinstance(field.get("enum"), list):
        return list(field["enum"])
    each: Any = field.get("oneOf") or field.get("anyOf") or []
    return [choice["const"] for choice in each if isinstance(choice, dict) and "const" in choice]


def _cleaned(value: Any, clean: Callable[[str], str]) -> Any:  # noqa: ANN401 - raw JSON
    """The schema with its texts masked; names of fields stay, as the answer has them."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {name: _cleaned(inner, clean) for name, inner in cast("dict[str, Any]", value).items()}
    return [_cleaned(inner, clean) for inner in value] if _is_list(value) else value
