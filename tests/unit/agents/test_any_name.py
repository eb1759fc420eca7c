"""Authors of toolsets may use every name that no page documents: nothing of ours or pydantic's is in the way."""

import asyncio
import warnings
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from pydantic import BaseModel, PrivateAttr

from perdure import ToolDefinitionError, Toolset, tool_method
from perdure.agents.toolset import RESERVED

SEEN = ("_inside", "_methods", "_made", "_door", "_running", "_ours", "_tools_of", "_check_variant", "tool_of")
"""Names that our own class once used on its instances."""

CALLED_BY_PYTHON = ("_abc_impl", "_setattr_handler")


def is_free(name: str) -> bool:
    return name not in {*RESERVED, *CALLED_BY_PYTHON} and not name.startswith(("__", "model_"))


NAMES = sorted({name for name in (*dir(Toolset), *dir(BaseModel), *vars(Toolset(name="x")), *SEEN) if is_free(name)})


def a_tool(called: str) -> Any:
    def body(self: Toolset, word: str) -> str:
        """Say."""
        return f"{called} {word} {type(self).__name__}"

    body.__name__ = called
    body.__qualname__ = f"Authored.{called}"
    return tool_method(body)


def a_method(called: str) -> Any:
    def body(self: Toolset) -> str:
        return called

    return body


def authored(name: str, value: Any) -> type[Toolset]:
    """A toolset with something of that name, beside a tool and a lifespan."""
    log: list[str] = []

    @asynccontextmanager
    async def lifespan(self: Toolset) -> AsyncIterator[None]:
        log.append("entered")
        yield
        log.append("left")

    space = {"__module__": __name__, "lifespan": lifespan, "log_of_it": log, "beside": a_tool("beside")}
    space["__annotations__"] = {"log_of_it": "ClassVar[list[str]]"}
    return type("Authored", (Toolset,), {**space, name: value})


def works(kind: type[Toolset]) -> list[str]:
    """The names of the tools of an instance that has been made, copied, entered twice and called."""
    made: Any = kind(name="set")

    async def inside() -> None:
        async with made, made:
            assert made.beside("now") == "beside now Authored"

    asyncio.run(inside())
    assert made.log_of_it == ["entered", "left"]
    made.variant = "all"
    names = [each.name for each in made.tools]
    assert [each.name for each in made.model_copy(update={"name": "copy"}).get_tools()] == [
        name.replace("set__", "copy__") for name in names
    ]
    return names


@pytest.mark.parametrize("name", NAMES)
def test_whatever_is_called_like_something_inside_is_the_authors(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        as_tool, as_method = authored(name, a_tool(name)), authored(name, a_method(name))
        assert works(as_tool) == ["set__beside", f"set__{name}"]
        assert works(as_method) == ["set__beside"]
    assert getattr(as_tool(), name)("now") == f"{name} now Authored"
    assert getattr(as_method(), name)() == name
    if name.startswith("_") and not hasattr(BaseModel, name):
        as_state = authored(name, PrivateAttr(default_factory=list))
        assert works(as_state) == ["set__beside"]
        assert getattr(as_state(), name) == []


@pytest.mark.parametrize("name", CALLED_BY_PYTHON)
def test_what_python_overwrites_is_refused_instead_of_lost(name: str) -> None:
    with pytest.raises(ToolDefinitionError, match=f"toolset Authored: {name} is what Python and pydantic use; choose"):
        authored(name, a_tool(name))


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("_") and hasattr(BaseModel, name)])
def test_state_that_pydantic_would_hide_is_refused(name: str) -> None:
    with pytest.raises(ToolDefinitionError, match=f"toolset Authored: {name} is what Python and pydantic use; choose"):
        authored(name, PrivateAttr(default_factory=list))


@pytest.mark.parametrize("name", sorted({*RESERVED, "model_dump", "model_copy", "model_post_init", "model_fields"}))
def test_a_tool_cannot_be_called_like_what_is_documented(name: str) -> None:
    with pytest.raises(ToolDefinitionError, match=f"toolset Authored: {name} is a name that every .*='{name}'"):
        authored(name, a_tool(name))
    renamed = type("Renamed", (Toolset,), {"__module__": __name__, "another": tool_method(name=name)(a_method("x"))})
    assert [each.name for each in renamed().tools] == [name]


@pytest.mark.parametrize(
    "value", [a_method("tools"), ["a list"], property(a_method("tools"))], ids=["method", "field", "property"]
)
@pytest.mark.parametrize("name", ["tools", "get_tools"])
def test_what_agents_read_of_a_toolset_is_not_replaced(name: str, value: Any) -> None:
    with pytest.raises(ToolDefinitionError, match=f"toolset Authored: {name} is what agents read; choose another name"):
        authored(name, value)


def test_settings_of_ours_take_other_defaults() -> None:
    class Named(Toolset):
        name: str = "notes"
        variant: str = "view"

        @tool_method(variants=["view"])
        def read(self) -> str:
            """Read."""
            return ""

    assert [each.name for each in Named().tools] == ["notes__read"]


def test_two_methods_of_one_qualified_name_are_two_tools() -> None:
    def numbered(number: int) -> Any:
        def same(self: Toolset) -> int:
            """Count."""
            return number

        return same

    made: Callable[[int], Any] = numbered
    kind: Any = type(
        "Two",
        (Toolset,),
        {"__module__": __name__, "one": tool_method(name="one")(made(1)), "two": tool_method(made(2))},
    )
    assert (kind().one(), kind().two()) == (1, 2)
