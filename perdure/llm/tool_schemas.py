"""Tools as providers take them, and a model's arguments under the names of the tools' own schemas.

A model call makes one :class:`ShownTools` of its agent's tools: it shows tools and past calls when the call is put
together, and reads the calls of the answer.
"""

import functools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, cast

from perdure.contracts.tools import LONGEST_NAME, RawCall, ToolDeclaration
from perdure.contracts.values import JsonValue, json_object, replace, to_json_line
from perdure.llm.openai_format import WireMessage
from perdure.llm.schema_forms import DEEPEST, Schema, as_object, resolve, root_form, shown_names

LONGEST_RULE = 2_000
"""Characters of what a schema's form does not say that a tool's description has."""

_STARTS_WELL = re.compile(r"[A-Za-z_]")


class _Form(NamedTuple):
    """The form of a schema.

    Attributes:
        parameters: The form as JSON; empty if the schema is taken as it is.
        rule: What the form does not say; may be empty.
        renames: Whether properties have other names in it.
    """

    parameters: str
    rule: str
    renames: bool


@functools.lru_cache(maxsize=1024)
def _form_of(parameters: str) -> _Form:
    schema = json.loads(parameters)
    shown, rule = root_form(schema)
    text = to_json_line(shown)
    renames = any(name != other for names in _all_names(as_object(schema)) for name, other in names.items())
    return _Form("" if text == parameters else text, rule, renames)


def _all_names(schema: JsonValue) -> Iterator[dict[str, str]]:
    unread = [schema]
    while unread:
        part = unread.pop()
        if isinstance(part, list):
            unread += part
        elif isinstance(part, dict):
            if isinstance(properties := part.get("properties"), dict):
                yield shown_names(properties)
            unread += part.values()


def shown_tool_name(name: str) -> str:
    """The name of a tool as each provider takes it. Source: Gemini's names begin with a letter or an underscore."""
    return name if _STARTS_WELL.match(name) else f"_{name}"[:LONGEST_NAME]


class ShownTools:
    """Tools as a provider takes them. Each schema is looked at once, when this is made."""

    def __init__(self, tools: Iterable[ToolDeclaration]) -> None:
        self._tools = [(tool, _form_of(to_json_line(tool.parameters))) for tool in tools]
        self._changed = {
            tool.name: tool for tool, form in self._tools if form.renames or shown_tool_name(tool.name) != tool.name
        }
        """The tools that models see under another name, or with other names of properties."""

    def declarations(self) -> list[JsonValue]:
        """The tools in OpenAI's format, with schemas that every provider takes."""
        return [{"type": "function", "function": _show(tool, form)} for tool, form in self._tools]

    def show_calls(self, messages: Sequence[WireMessage]) -> list[WireMessage]:
        """The messages, with the calls in them under the names that the model is shown."""
        if not self._changed:
            return list(messages)
        shown: list[WireMessage] = []
        for message in messages:
            calls = message.get("tool_calls")
            if not isinstance(calls, list):
                shown.append(message)
                continue
            renamed = [_show_call(cast("dict[str, JsonValue]", call), self._changed) for call in calls]
            shown.append({**message, "tool_calls": renamed})
        return shown

    def read_calls(self, calls: Iterable[RawCall]) -> tuple[RawCall, ...]:
        """A model's calls, under the names of the tools and of their own schemas."""
        own = self._changed
        changed = {**{shown_tool_name(name): tool for name, tool in own.items()}, **own}
        return tuple(
            replace(call, name=tool.name, arguments=_rename(call.arguments, tool, back=True))
            if (tool := changed.get(call.name)) is not None
            else call
            for call in calls
        )


def _show(tool: ToolDeclaration, form: _Form) -> JsonValue:
    description = tool.description
    if form.rule:
        rule = form.rule if len(form.rule) <= LONGEST_RULE else "more than these say; an error will tell"
        description = f"{description}\n\nThe arguments also have to fit: {rule}".strip()
    parameters = json.loads(form.parameters) if form.parameters else tool.parameters
    return {"name": shown_tool_name(tool.name), "description": description, "parameters": parameters}


def _show_call(call: dict[str, JsonValue], changed: Mapping[str, ToolDeclaration]) -> JsonValue:
    function = cast("dict[str, str]", call.get("function"))
    if (tool := changed.get(function["name"])) is None:
        return call
    shown = {"name": shown_tool_name(tool.name), "arguments": _rename(function["arguments"], tool, back=False)}
    return {**call, "function": cast("JsonValue", {**function, **shown})}


def _rename(arguments: str, tool: ToolDeclaration, *, back: bool) -> str:
    """The arguments under their shown names, or ``back`` under their own ones; unchanged if they are no object."""
    try:
        given = json_object(arguments or "{}")
    except ValueError:
        return arguments
    renamed = _Renaming(tool.parameters, back=back).apply(given, [as_object(tool.parameters)])
    return arguments if renamed == given else to_json_line(renamed)


class _Renaming:
    """The renaming of a value's properties, in one direction or the other."""

    def __init__(self, root: Schema, *, back: bool) -> None:
        self._root = root
        self._back = back

    def apply(self, value: JsonValue, schemas: Iterable[Schema], depth: int = 0) -> JsonValue:
        """The value under the other names; ``schemas`` are those that it may have to fit."""
        if depth > DEEPEST or not isinstance(value, dict | list):
            return value
        flat = list(self._flat(schemas))
        if isinstance(value, list):
            inner = _parts(flat, "items", "prefixItems")
            return [self.apply(item, inner, depth + 1) for item in value]
        objects = [found for schema in flat if isinstance(found := schema.get("properties"), dict)]
        maps = [shown_names(found) for found in objects]
        renamed: dict[str, JsonValue] = {}
        for name, inner_value in value.items():
            own = self._own_name(name, maps) if self._back else name
            other = own if self._back else next((names[name] for names in maps if name in names), name)
            parts = [part for found in objects if isinstance(part := found.get(own), dict)]
            parts = parts or _parts(flat, "additionalProperties")
            renamed.setdefault(other, self.apply(inner_value, parts, depth + 1))
        return renamed

    @staticmethod
    def _own_name(name: str, maps: Sequence[Mapping[str, str]]) -> str:
        if any(name in names for names in maps):  # the model wrote the property's own name
            return name
        return next((own for names in maps for own, shown in names.items() if shown == name), name)

    def _flat(self, schemas: Iterable[Schema]) -> Iterator[Schema]:
        """The schemas with their branches, and with what they refer to."""
        unread, seen = list(schemas), set[int]()
        while unread:
            schema = unread.pop(0)
            if id(schema) in seen:
                continue
            seen.add(id(schema))
            yield schema
            for word in ("anyOf", "oneOf", "allOf"):
                listed = schema.get(word)
                unread += [part for part in listed if isinstance(part, dict)] if isinstance(listed, list) else []
            if isinstance(target := resolve(schema.get("$ref"), self._root), dict):
                unread.append(target)


def _parts(schemas: Iterable[Schema], *words: str) -> list[Schema]:
    """The schemas under these keywords, which have one or a list of them."""
    values = [schema.get(word) for schema in schemas for word in words]
    listed = [part for value in values for part in (value if isinstance(value, list) else [value])]
    return [part for part in listed if isinstance(part, dict)]
