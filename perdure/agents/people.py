"""The tool with which a model asks a person."""

from typing import Annotated

from pydantic import Field

from perdure.agents.tool import tool
from perdure.contracts.input_requests import MAX_OPTION_CHARACTERS, MAX_OPTIONS


@tool(interactive=True)
def ask_user(
    question: Annotated[str, "What to ask, in one message that can be understood by itself"],
    options: Annotated[
        list[Annotated[str, Field(max_length=MAX_OPTION_CHARACTERS)]],
        Field(max_length=MAX_OPTIONS),
        "The possible answers; leave it out for an answer in the person's own words",
    ] = [],  # noqa: B006 - the body never runs
) -> str:
    """Ask the person you work for, and wait for the answer. It may take long: ask only what you cannot find out."""
    raise NotImplementedError
