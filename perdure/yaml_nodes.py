"""YAML as it was written: nodes that know their lines, and plain values by the rules of JSON."""

import re
from collections.abc import Sequence
from typing import Any, cast

import yaml

from perdure.contracts.values import JsonValue

MAX_REPEATED = 1_000_000
"""Most characters that a text may come to beyond its own, with each alias such as ``*name`` written out."""

_TAG = "tag:yaml.org,2002:"


class YamlError(ValueError):
    """A text is no YAML, or holds what cannot be used: in which line, from 1, and why."""

    def __init__(self, line: int, cause: str) -> None:
        super().__init__(f"line {line}: {cause}")
        self.line = line
        self.cause = cause


class _Loader(yaml.SafeLoader):
    """Only what looks like JSON is a number, a truth or nothing: ``off`` and ``1:30`` and a date are texts."""

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
        YamlError: It is no YAML, or nested too deeply.
    """
    try:
        return cast("yaml.Node | None", yaml.compose(text, Loader=_Loader))
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line if error.problem_mark is not None else 0
        raise YamlError(line + 1, f"{error.problem}") from error
    except yaml.reader.ReaderError as error:
        raise YamlError(text.count("\n", 0, error.position) + 1, error.reason) from error
    except RecursionError as error:
        raise YamlError(1, "it is nested too deeply") from error


def to_plain(node: yaml.Node) -> JsonValue:
    """What a node stands for.

    Raises:
        YamlError: A key is no text or stands there twice, or a value is none that JSON has.
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
    """Refuse what JSON does not have, and what contains itself or repeats itself without end.

    Returns:
        The characters of the node with each alias in it written out, about; ``sizes`` has those of every node so far.
    """
    if id(node) in above:
        raise YamlError(line_of(node), "it contains itself")
    if id(node) in sizes:  # what is named twice is looked at once
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
    """See that the names of an object are texts, each there once; a name such as ``1`` is taken for a text."""
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
    """The line of what stands at the path, or of the last part of it that there is."""
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
