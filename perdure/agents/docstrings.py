"""A function's docstring in two: the text for the model, and a text for each parameter."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from griffe import DocstringSection

_DOCUMENTED = frozenset({"parameters", "other parameters", "returns", "raises", "yields", "receives", "warns"})
"""Sections that are no part of a tool's description: the schema says it, or it is for people."""


def parted(docstring: str) -> tuple[str, dict[str, str]]:
    """The description, and the texts of the parameters, of a docstring in the style of Google, NumPy or Sphinx."""
    if "\n" not in docstring:
        return docstring, {}
    from griffe import Docstring, Parser  # noqa: PLC0415 - a third of the package's import time

    parsed = Docstring(docstring)
    for style in (Parser.google, Parser.numpy, Parser.sphinx):
        sections = parsed.parse(style, warnings=False)
        if any(section.kind.value in _DOCUMENTED for section in sections):
            kept = [_text(section) for section in sections if section.kind.value not in _DOCUMENTED]
            return "\n\n".join(text for text in kept if text), _parameters(sections)
    return docstring, {}


def _parameters(sections: "Sequence[DocstringSection]") -> dict[str, str]:
    return {
        parameter.name.lstrip("*"): parameter.description.strip()
        for section in sections
        if section.kind.value in {"parameters", "other parameters"}
        for parameter in section.value
        if parameter.description.strip()
    }


def _text(section: "DocstringSection") -> str:
    """A section that is kept, as it was written but for its style."""
    if section.kind.value == "text":
        return str(section.value).strip()
    if section.kind.value == "admonition":
        return _titled(str(section.title), str(section.value.contents))
    if section.kind.value == "examples":
        return _titled("Examples", "\n\n".join(text for _, text in section.value))
    return ""


def _titled(title: str, contents: str) -> str:
    lines = [f"    {line}".rstrip() for line in contents.strip().splitlines()]
    return "\n".join([f"{title}:", *lines])
