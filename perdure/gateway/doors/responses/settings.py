"""Settings of a request: what it wants of this turn's answers, as far as a request may say.

The form of the answer and the choice of tools are the caller's, whose program reads them. Parameters of the model are
for tokens with the scope ``tune``. What every framework sends by default is never refused: the response tells what was
left alone. What would be another answer than the caller can use is refused.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import TypeAdapter, ValidationError

from perdure.agents.caller_tools import check_output_schema
from perdure.client import RequestRefusedError
from perdure.contracts.tool_choice import NamedTool, ToolChoice
from perdure.contracts.values import JsonValue
from perdure.contracts.wishes import OutputSchema
from perdure.gateway.bodies import Json
from perdure.gateway.doors.responses.objects import SERVER, Item

Object = dict[str, Json]

LEFT_ALONE = "left_alone"
"""Key in a response's metadata: the fields of its request that have changed nothing."""

ANY_OBJECT: Object = {"type": "object"}
"""Schema of the form ``json_object``."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of the answers that a request wants.

    Attributes:
        output_schema: JSON schema of the answer; None for a text.
        tool_choice: What the model has to call.
        params: Parameters of the model's calls.
        left_alone: Names of the fields that change nothing, in the order of the alphabet.
        echoed: Fields of the request that were applied, as they came: a turn keeps them in another form.
    """

    output_schema: Object | None = None
    tool_choice: ToolChoice | None = None
    params: Mapping[str, Json] = field(default_factory=dict[str, Json])
    left_alone: tuple[str, ...] = ()
    echoed: Mapping[str, Json] = field(default_factory=dict[str, Json])

    def told(self, response: Item) -> Item:
        """A response to the request, with what became of its settings."""
        if not self.left_alone:
            return {**response, **self.echoed}
        metadata = response.get("metadata")
        known = metadata if isinstance(metadata, dict) else {}
        return {**response, **self.echoed, "metadata": {**known, LEFT_ALONE: ", ".join(self.left_alone)}}

    @property
    def unapplied(self) -> "Settings":
        """The same for a request that a turn takes which has settings of its own: the parameters are left alone."""
        names = {name for name, ours in _TUNED.items() if ours in self.params}
        names |= {"parallel_tool_calls"} & self.params.keys()
        return replace(self, params={}, left_alone=tuple(sorted({*self.left_alone, *names})))

    @property
    def options(self) -> dict[str, object]:
        """The settings as options of a turn."""
        return {
            "output_schema": self.output_schema,
            "tool_choice": self.tool_choice,
            "generate_params": dict(self.params) or None,
        }


NO_SETTINGS = Settings()


def read_settings(fields: Mapping[str, Json], *, tunes: bool) -> Settings:
    """Read the settings among the fields of a request.

    Args:
        fields: The fields as they came.
        tunes: Whether the caller may set parameters of the model.

    Raises:
        RequestRefusedError: One cannot be done; the text begins with the field.
    """
    refuse_given(fields, _REFUSED)
    _refuse_other_types(fields)
    params, left_alone = _read_params(fields, tunes=tunes)
    if fields.get("parallel_tool_calls") is False:
        params["parallel_tool_calls"] = False
    schema, choice = _read_format(fields.get("text")), _read_choice(fields.get("tool_choice"))
    echoed: Object = {} if choice is None else {"tool_choice": fields.get("tool_choice")}
    if fields.get("previous_response_id") is not None:
        echoed["previous_response_id"] = fields["previous_response_id"]
    if schema is not None:
        echoed["text"] = {"format": _object(fields.get("text")).get("format")}
    return Settings(
        output_schema=schema,
        tool_choice=choice,
        params=params,
        echoed=echoed,
        left_alone=tuple(sorted({*left_alone, *_find_idle(fields)})),
    )


def refusal(name: str, why: str) -> RequestRefusedError:
    """The refusal of a field, which its text begins with."""
    return RequestRefusedError(f"{name}: {why}")


_REFUSED: Mapping[str, tuple[JsonValue, str]] = {
    "context_management": ([], "an agent summarises by itself: set compaction of its definition"),
    "image": (None, "leave it out"),
    "moderation": (None, "leave it out"),
    "prompt": (None, "the instructions are the agent's; leave it out"),
    "top_logprobs": (0, "leave it out"),
}
"""Fields that this door cannot do, with the one value beside null that asks for nothing."""


def refuse_given(fields: Mapping[str, Json], refused: Mapping[str, tuple[JsonValue, str]]) -> None:
    """Refuse fields that a door cannot do, unless they have the one value beside null that asks for nothing.

    Raises:
        RequestRefusedError: One has another; the text says what to do instead.
    """
    for name, (nothing, instead) in refused.items():
        value = fields.get(name)
        if value is not None and value != nothing:
            raise refusal(name, f"this door cannot do that; {instead}")


_TYPES: Mapping[str, tuple[type, str]] = {
    "parallel_tool_calls": (bool, "is true or false"),
    "reasoning": (dict, 'is an object, as {"effort": "low"}'),
    "text": (dict, 'is an object, as {"format": {"type": "text"}}'),
}


def _refuse_other_types(fields: Mapping[str, Json]) -> None:
    for name, (kind, what) in _TYPES.items():
        value = fields.get(name)
        if value is not None and not isinstance(value, kind):
            raise refusal(name, what)


EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""Efforts of reasoning that providers know."""

_RANGES: Mapping[str, float] = {"temperature": 2, "top_p": 1}
"""Largest values of parameters. Source: OpenAI's reference of responses."""

_TUNED: Mapping[str, str] = {"temperature": "temperature", "top_p": "top_p", "reasoning.effort": "reasoning_effort"}
"""Parameters of the model, with the names that agents have for them."""


def _read_params(fields: Mapping[str, Json], *, tunes: bool) -> tuple[dict[str, Json], list[str]]:
    """The parameters that are applied, and the names of those that are left alone."""
    given = {"temperature": fields.get("temperature"), "top_p": fields.get("top_p")}
    given["reasoning.effort"] = _object(fields.get("reasoning")).get("effort")
    told = {name: value for name, value in given.items() if value is not None}
    if not tunes:
        return {}, list(told)
    for name, most in _RANGES.items():
        value = told.get(name, 0)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= most:
            raise refusal(name, f"is a number from 0 to {most}")
    if told.get("reasoning.effort", "low") not in EFFORTS:
        raise refusal("reasoning.effort", f"is one of {', '.join(EFFORTS)}")
    return {_TUNED[name]: value for name, value in told.items()}, []


_IDLE: Mapping[str, Callable[[Json], bool]] = {
    "max_output_tokens": lambda _: True,
    "service_tier": lambda value: value not in ("auto", "default"),
    "store": lambda value: value is not True,
    "text.verbosity": lambda _: True,
    "truncation": lambda value: value != "disabled",
}
"""Fields that change nothing here, and whether a value would have at OpenAI's."""


def _find_idle(fields: Mapping[str, Json]) -> list[str]:
    given: dict[str, Json] = {**fields, "text.verbosity": _object(fields.get("text")).get("verbosity")}
    return [name for name, differs in _IDLE.items() if (value := given.get(name)) is not None and differs(value)]


_SEND = 'send {"type": "json_schema", "name": "answer", "schema": {…}}'
_OF_FORMAT = frozenset({"type", "name", "schema", "strict", "description"})

_SCHEMA: TypeAdapter[Any] = TypeAdapter(OutputSchema)


def _read_format(text: Json) -> Object | None:
    """The schema of the answer."""
    form = _object(text).get("format")
    if form is None:
        return None
    told = _object(form)
    match told.get("type"):
        case "text":
            return None
        case "json_object":
            if "schema" in told:
                raise refusal("text.format", f"json_object has no schema; {_SEND}")
            return ANY_OBJECT
        case "json_schema":
            schema = told.get("schema")
            if not isinstance(schema, dict):
                raise refusal("text.format.schema", f"is no JSON schema; {_SEND}")
            if odd := told.keys() - _OF_FORMAT:
                raise refusal("text.format", f"there is no {min(odd)!r} in it; {_SEND}")
            about = told.get("description")
            return _checked({"description": about, **schema} if isinstance(about, str) and about else schema)
        case kind:
            raise refusal("text.format", f"is of type text, json_object or json_schema, and not {str(kind)[:50]!r}")


def _checked(schema: Object) -> Object:
    try:
        read: Object = _SCHEMA.validate_python(schema)
        check_output_schema(read)
    except ValidationError as error:
        why = error.errors(include_url=False, include_input=False)[0]["msg"].removeprefix("Value error, ")
        raise refusal("text.format.schema", why) from None
    except ValueError as error:
        raise refusal("text.format.schema", str(error)) from None
    return read


def _read_choice(given: Json) -> ToolChoice | None:
    """The choice of tools."""
    if given is None or given == "auto":
        return None
    if given == "none":
        return "none"
    if given == "required":
        return "required"
    told = _object(given)
    name, is_ours = told.get("name"), told.get("type") == "mcp" and told.get("server_label") == SERVER
    if (told.get("type") == "function" or is_ours) and isinstance(name, str) and 0 < len(name) <= 200:
        return NamedTool(name=name)
    what = "a function, or a tool of the agent's (type mcp, server_label perdure), by its name"
    raise refusal("tool_choice", f"is auto, none, required, or {what}")


def _object(value: Json) -> Object:
    return value if isinstance(value, dict) else {}
