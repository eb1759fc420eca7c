"""Reads YAML into nodes with line numbers, and into plain values with JSON's types."""

import re
from collections.abc import Sequence
from typing import Any

import yaml

from perdure.contracts.values import JsonValue

MAX_REPEATED = 1_000_000
"""Most characters that aliases such as ``*name`` may add to a text if they are written out."""

_TAG = "tag:yaml.org,2002:"


class YamlError(ValueError):
    """A text is not YAML, or holds something that cannot be used; ``line`` counts from 1."""

    def __init__(self, line: int, cause: str) -> None:
        super().__init__(f"line {line}: {cause}")
        self.line = line
        self.cause = cause


class _Loader(yaml.SafeLoader):
    """Reads only JSON's numbers, booleans and null as such: ``off``, ``1:30`` and dates are texts."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - as the parent has it


for _name, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"-?(0|[1-9][0-9]*)", list("-0123456789")),
    ("float", r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?", list("-0123456789")),
    ("merge", r"<<", ["<"]),
):
    _Loader.add_implicit_resolver(_TAG + _name, re.compile(rf"^(?:{_pattern})$"), _first)


def compose(text: str) -> yaml.Node | None:
    """The nodes of one document; None if it is empty.

    Raises:
        YamlError: The text is not YAML, or is nested too deeply.
    """
    try:
        return yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line if error.problem_mark is not None else 0
        raise YamlError(line + 1, f"{error.problem}") from error
    except yaml.reader.ReaderError as error:
        raise YamlError(text.count("\n", 0, error.position) + 1, error.reason) from error
    except RecursionError as error:
        raise YamlError(1, "it is nested too deeply") from error


def to_plain(node: yaml.Node) -> JsonValue:
    """The value of a node, with JSON's types.

    Raises:
        YamlError: A key is not a text or occurs twice, or a value is not one of JSON's.
    """
    _check(node, set(), {})
    constructor: Any = _Loader("")  # a document without nodes of its own
    try:
        value: JsonValue = constructor.construct_document(node)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line if error.problem_mark is not None else 0
        raise YamlError(line + 1, f"{error.problem}") from error
    except RecursionError as error:
        raise YamlError(line_of(node), "it is nested too deeply") from error
    return value


def _check(node: yaml.Node, above: set[int], sizes: dict[int, int]) -> int:
    """Refuse values that JSON does not have, values that contain themselves, and too many aliases.

    Returns:
        The approximate size of the node in characters with its aliases written out. ``sizes`` caches it by node.
    """
    if id(node) in above:
        raise YamlError(line_of(node), "it contains itself")
    if id(node) in sizes:  # an alias: its node was checked before
        return sizes[id(node)]
    kind = node.tag.removeprefix(_TAG)
    if kind not in {"map", "seq", "str", "null", "bool", "int", "float", "merge"}:
        raise YamlError(line_of(node), f"{node.tag} is no kind of value that is known here")
    inside = {*above, id(node)}
    size = 1
    if isinstance(node, yaml.MappingNode):
        _check_names([key for key, _ in node.value])
        size += sum(len(key.value) + _check(value, inside, sizes) for key, value in node.value)
    elif isinstance(node, yaml.SequenceNode):
        size += sum(_check(item, inside, sizes) for item in node.value)
    else:
        size += len(node.value)
    if size > node.end_mark.index - node.start_mark.index + MAX_REPEATED:
        cause = f"its aliases, such as *name, repeat more than {MAX_REPEATED:,} characters; write fewer of them"
        raise YamlError(line_of(node), cause)
    sizes[id(node)] = size
    return size


def _check_names(keys: Sequence[yaml.Node]) -> None:
    """Refuse names of an object that are not texts or occur twice. A name such as ``1`` counts as a text."""
    names: set[str] = set()
    for key in keys:
        if not isinstance(key, yaml.ScalarNode):
            raise YamlError(line_of(key), "a name must be a text")
        if key.value in names:
            raise YamlError(line_of(key), f"{key.value} stands there twice; leave one of them out")
        names.add(key.value)
        if key.tag != f"{_TAG}merge":
            key.tag = f"{_TAG}str"


def line_of(node: yaml.Node) -> int:
    """The line in which a node begins, from 1."""
    return int(node.start_mark.line) + 1


def line_of_path(node: yaml.Node, path: tuple[int | str, ...]) -> int:
    """The line of the node at a path, or of the last part of the path that exists."""
    line = line_of(node)
    for part in path:
        if isinstance(node, yaml.MappingNode):
            found = next(((key, value) for key, value in node.value if key.value == part), None)
            if found is None:
                break
            line, node = line_of(found[0]), found[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line = line_of(node)
        else:
            break
    return line
