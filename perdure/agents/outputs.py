"""The tool with which a model reads on in an output that was too long for the conversation."""

from typing import Annotated

from pydantic import Field

from perdure.agents.context import ToolContext
from perdure.agents.errors import InvalidInputError
from perdure.agents.tool import tool

READ_CHARACTERS = 25_000
"""Longest part that is read at once: with its first line it is never long enough to be offloaded itself."""


@tool(idempotent=True, offload=False)
def read_output(
    context: ToolContext,
    handle: Annotated[str, "The artifact's handle, as the note in the output gives it"],
    start: Annotated[int, Field(ge=0), "The first character to read, counted from 0"] = 0,
    length: Annotated[int, Field(ge=1), f"How many characters, at most {READ_CHARACTERS:,}"] = READ_CHARACTERS,
) -> str:
    """Read a part of a long output, or of a text file, that stands outside the conversation."""
    try:
        text = context.read_artifact(handle).text
    except ValueError as error:
        msg = f"it cannot be read as characters: {error}"
        raise InvalidInputError(msg) from None
    if start >= len(text) and start > 0:
        msg = f"start {start:,} is past the end: {handle} has {len(text):,} characters"
        raise InvalidInputError(msg)
    end = min(start + min(length, READ_CHARACTERS), len(text))
    more = f"read on with start={end}" if end < len(text) else "this is its end"
    return f"[characters {start:,} to {end:,} of {len(text):,} of {handle}; {more}]\n{text[start:end]}"
