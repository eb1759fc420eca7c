"""Frames around what a front end puts before the words of its user: models read both, people only the words."""

import re
from collections.abc import Sequence

_FRAMES = re.compile(
    "".join(rf"(?:<{name}>\n.*?\n</{name}>(?:\n\n|\Z))?" for name in ("instructions", "context")), re.DOTALL
)


def frame(system: Sequence[str], context: Sequence[str]) -> list[str]:
    """Texts that stand before a prompt: messages of the system, and entries of the context."""
    return [_wrap(name, texts) for name, texts in (("instructions", system), ("context", context)) if texts]


def _wrap(name: str, texts: Sequence[str]) -> str:
    inner = "\n\n".join(texts).replace(f"</{name}>", f"<\\/{name}>")
    return f"<{name}>\n{inner}\n</{name}>"


def words_of(prompt: str) -> str:
    """The words of a prompt, without the frames before them."""
    return _FRAMES.sub("", prompt, count=1)
