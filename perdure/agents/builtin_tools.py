"""Tools that come with perdure: the end of a task, todos, questions to people, and reading on in a long output.

The workflow, or a person, carries out those whose body raises; it never runs.
"""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from perdure.agents.context import InvalidInputError, ToolContext
from perdure.agents.tool import tool
from perdure.contracts.input_requests import MAX_OPTION_CHARACTERS, MAX_OPTIONS
from perdure.contracts.tools import MAX_SUMMARY, MAX_TODOS, Builtin, Completion, Title, ToolDeclaration


@tool
def todo(
    new_titles: Annotated[list[Title], Field(max_length=MAX_TODOS), "What is to be done, one title for each todo"] = [],  # noqa: B006 - the body never runs
    completed: Annotated[list[int], Field(max_length=MAX_TODOS), "The ids of todos that are done"] = [],  # noqa: B006
) -> str:
    """Keep the list of what is to be done: add todos, complete some by their ids, and read the whole list.

    Ids begin at 0. Without arguments the list is only read.
    """
    raise NotImplementedError


@tool
def clear_todo() -> str:
    """Drop all todos, the open ones too; the ids of new ones begin at 0 again."""
    raise NotImplementedError


@tool
def finish(
    summary: Annotated[str, Field(max_length=MAX_SUMMARY), "What was done and what came of it: the result"] = "",
) -> str:
    """End the work, with its result. Call it once, when everything is done."""
    raise NotImplementedError


@tool
def attempt_completion() -> str:
    """Say that the work is done. Todos that are still open come back and the work goes on.

    Write the result as text beside this call.
    """
    raise NotImplementedError


def settle_completion(
    completion: Completion | None, finish_tool: str | None, schema: object, tools: Sequence[ToolDeclaration]
) -> tuple[str | None, tuple[ToolDeclaration, ...]]:
    """The name of the agent's finish tool, and the tools that its way to finish adds."""
    if finish_tool is not None:
        _need(completion in {None, "finish_tool"}, f"finish_tool={finish_tool!r} is for completion='finish_tool'")
        return finish_tool, ()
    if completion == "finish_tool":
        _need(schema is None, "completion='finish_tool' rules out answers in text, which output_schema is for")
        own = next((declared for declared in tools if declared.builtin == "finish"), None)
        taken = any(declared.name == finish.name for declared in tools)
        _need(
            own is not None or not taken, "a tool is named 'finish'; say finish_tool='finish' if it finishes the turn"
        )
        return (finish.name, (finish.declaration,)) if own is None else (own.name, ())
    if completion == "attempt_completion":
        _need(schema is None, "output_schema is for answers in text; completion='attempt_completion' has its own end")
        kinds: set[Builtin | None] = {declared.builtin for declared in tools}
        missing = [
            builtin for builtin in (todo, clear_todo, attempt_completion) if builtin.declaration.builtin not in kinds
        ]
        for builtin in missing:
            taken = any(other.name == builtin.name for other in tools)
            _need(
                not taken,
                f"completion='attempt_completion' adds the tool {builtin.name!r}, and there is one of that name",
            )
        return None, tuple(builtin.declaration for builtin in missing)
    return None, ()


def _need(condition: bool, otherwise: str) -> None:
    if not condition:
        raise ValueError(otherwise)


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
        raise InvalidInputError(f"it cannot be read as characters: {error}") from None
    if start >= len(text) and start > 0:
        raise InvalidInputError(f"start {start:,} is past the end: {handle} has {len(text):,} characters")
    end = min(start + min(length, READ_CHARACTERS), len(text))
    more = f"read on with start={end}" if end < len(text) else "this is its end"
    return f"[characters {start:,} to {end:,} of {len(text):,} of {handle}; {more}]\n{text[start:end]}"
