"""How long outputs are cut for the model. Source of the sizes: Dreadnode's tools (30,000 kept as 15,000 + 15,000)."""

OFFLOAD_CHARACTERS = 30_000
"""A longer output is stored as an artifact; the model reads its head, its tail and a handle."""

_KEPT_AT_EACH_END = 15_000


def whole_characters(text: str) -> str:
    """The text with halves of characters (lone surrogates) replaced: models and tools send them, no store has them."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def head_and_tail(text: str, limit: int) -> str:
    """The text cut to at most ``limit`` characters: its beginning, its end, and a note between them if it fits."""
    if len(text) <= limit:
        return text
    note = f"\n… {len(text) - limit:,} characters left out …\n"
    room = limit - len(note)
    if room < len(note):
        return text[:limit]
    tail = room // 2
    return text[: room - tail] + note + text[len(text) - tail :]


def offloaded(text: str, artifact: str, reader: str | None = None) -> str:
    """What the model reads in place of a long output that is stored as that artifact.

    ``reader`` is the agent's tool to read on with, if it has one.
    """
    head, middle, tail = text[:_KEPT_AT_EACH_END], text[_KEPT_AT_EACH_END:-_KEPT_AT_EACH_END], text[-_KEPT_AT_EACH_END:]
    lines = middle.count("\n")
    way = f"; read on with {reader}, start={_KEPT_AT_EACH_END}" if reader else ""
    left_out = f"{len(middle):,} characters ({lines:,} lines) left out"
    return f"{head}\n\n… {left_out}; the whole output is artifact {artifact} {way and f'({way[2:]}) '}…\n\n{tail}"
