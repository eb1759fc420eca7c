"""The tools that perdure carries out itself, inside the workflow and without an activity: todos, and how to finish."""

# ruff: noqa: A005 - nothing here is mistaken for the names that Python has everywhere

from typing import Annotated, Literal

from pydantic import Field

from perdure.contracts.values import Tagged, Value

MAX_TODOS = 100
"""Most todos of a session; the whole list travels in payloads."""

MAX_TITLE = 500
"""Longest title of a todo, in characters."""

MAX_SUMMARY = 10_000
"""Longest summary of ``finish``, in characters."""

MAX_AWAITED = 100
"""Most sessions that one call can name to wait for."""

Completion = Literal["text", "finish_tool", "attempt_completion"]
"""What finishes a turn: text without a call, a tool, or ``attempt_completion`` without open todos."""

Title = Annotated[str, Field(min_length=1, max_length=MAX_TITLE)]
"""What is to be done, as the model words it."""


class Todo(Value):
    """Something that an agent has to do; its id is its place in the list, from 0."""

    title: str
    completed: bool = False


class ChangeTodos(Tagged):
    """Add todos, then complete some by their ids; without either, only read them."""

    type: Literal["todo"] = "todo"
    new_titles: tuple[Title, ...] = Field(default=(), max_length=MAX_TODOS)
    completed: tuple[int, ...] = Field(default=(), max_length=MAX_TODOS)


class ClearTodos(Tagged):
    """Drop every todo; ids begin at 0 again."""

    type: Literal["clear_todo"] = "clear_todo"


class Finish(Tagged):
    """The work is done, with this result."""

    type: Literal["finish"] = "finish"
    summary: str = Field(default="", max_length=MAX_SUMMARY)


class AttemptCompletion(Tagged):
    """The work is done, unless todos are open."""

    type: Literal["attempt_completion"] = "attempt_completion"


class AwaitDelegates(Tagged):
    """Wait for delegates that work in the background: those of these sessions, or all that nobody has waited for."""

    type: Literal["await_delegate"] = "await_delegate"
    sessions: tuple[str, ...] = Field(default=(), max_length=MAX_AWAITED)


def awaits_delegates(call: "BuiltinCall | None") -> bool:
    """Whether the call waits for delegates, and so comes behind those of its answer."""
    return isinstance(call, AwaitDelegates)


def changes_todos(call: "BuiltinCall | None") -> bool:
    """Whether the call adds, completes or drops a todo, and so changes the session's state."""
    return isinstance(call, ClearTodos) or (isinstance(call, ChangeTodos) and bool(call.new_titles or call.completed))


BuiltinCall = Annotated[
    ChangeTodos | ClearTodos | Finish | AttemptCompletion | AwaitDelegates, Field(discriminator="type")
]
"""A call of such a tool with its arguments."""

Builtin = Literal["todo", "clear_todo", "finish", "attempt_completion", "await_delegate"]
"""Which of them a tool is, whatever an author named it."""
