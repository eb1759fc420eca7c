"""A toolset's methods are tools that share its state, and its lifespan begins and ends once."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from pydantic import PrivateAttr

from perdure import Agent, Secret, Setting, ToolDefinitionError, Toolset, tool, tool_method
from perdure.agents.toolset import OpenToolsets, ToolsetError


class Files(Toolset):
    """Files below a folder."""

    root: str = "/data"
    fail: int = 0
    _log: list[str] = PrivateAttr(default_factory=list[str])

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        self._log.append("entering")
        await asyncio.sleep(0)
        if self._log.count("entering") <= self.fail:
            raise ConnectionError("no disk")
        yield
        self._log.append("left")

    @tool_method
    def look(self, path: str) -> str:
        """Look.

        Args:
            path: Below the root.
        """
        return f"{self.root}/{path}"

    @tool_method(variants=["read", "write"], catch=True, needs={"token": Secret("TOKEN"), "depth": Setting("DEPTH")})
    async def read(self, path: str, token: str, depth: int = 1) -> str:
        """Read."""
        return self.look(path)

    @tool_method(variants=["write"], name="put", truncate=10)
    def copy_to(self, path: str) -> str:
        """Write."""
        return path

    def own(self) -> str:
        """Not for models."""
        return ""


class MoreFiles(Files):
    """A subclass has what its base has, but for what it hides."""

    @tool_method(variants=["delete"])
    def delete(self, path: str) -> str:
        """Delete."""
        return path

    def look(self, path: str) -> str:  # type: ignore[override]
        return path


class NoToolset:
    @tool_method
    def look(self, path: str) -> str:
        """Look."""
        return path


def a_tool_in_a_class() -> None:
    class Mistaken(Toolset):
        @tool
        def look(self, path: str) -> str:
            """Look."""
            return path


def names(toolset: Toolset) -> list[str]:
    return [made.name for made in toolset.tools]


@pytest.mark.parametrize(
    ("variant", "offered"),
    [("all", ["look", "read", "put"]), ("read", ["look", "read"]), ("write", ["look", "read", "put"])],
)
def test_a_variant_offers_its_methods_and_those_that_are_in_all(variant: str, offered: list[str]) -> None:
    """S-29."""
    assert names(Files(variant=variant)) == offered


def test_a_subclass_adds_and_hides_methods() -> None:
    assert names(MoreFiles()) == ["read", "put", "delete"]
    assert names(MoreFiles(variant="delete")) == ["delete"]


def test_a_method_is_a_tool_with_its_toolsets_state() -> None:
    files = Files(root="/srv")
    assert files.look("a") == "/srv/a"
    assert asyncio.run(files.read("a", token="t")) == "/srv/a"
    assert files.look is files.look
    look = files.look.declaration
    assert look.parameters["properties"] == {"path": {"description": "Below the root.", "type": "string"}}
    assert (look.description, look.reference) == ("Look.", f"{__name__}:Files.look")
    assert (files.read.declaration.catch, files.copy_to.declaration.truncate) == ("all", 10)
    assert list(files.read.declaration.parameters["properties"]) == ["path"]  # type: ignore[arg-type]


def test_names_have_the_toolsets_before_them_and_can_be_changed() -> None:
    """S-28."""
    files = Files(name="local")
    assert names(files) == ["local__look", "local__read", "local__put"]
    assert files.look.with_(name="see", truncate=5).name == "see"
    assert files.look.with_(name="see")("a") == "/data/a"
    assert files.read.clone(catch=False).declaration.catch == "none"
    long = Files(name="x" * 32).look.with_()
    assert long.name == "x" * 32 + "__look"

    class Long(Toolset):
        @tool_method(name="y" * 60)
        def one(self) -> str:
            """One."""
            return ""

        @tool_method(name="y" * 59 + "z")
        def two(self) -> str:
            """Two."""
            return ""

    cut = names(Long(name="toolset"))
    assert len(set(cut)) == 2
    assert {len(name) for name in cut} == {64}


def test_an_agent_takes_toolsets_methods_and_functions_side_by_side() -> None:
    files = Files(name="a", variant="read")
    agent = Agent(name="x", model="openai/x", tools=[files, Files(name="b").look, tool(name="len")(lambda: "")])
    assert [made.name for made in agent.tools] == ["a__look", "a__read", "b__look", "len"]
    assert agent.tools[0].toolset is files
    assert agent.definition.model_validate_json(agent.definition.canonical()) == agent.definition
    assert agent.clone(max_steps=2, tools=[files.look]).definition.tools == (files.look.declaration,)


def test_two_instances_do_not_share_tools_nor_does_a_copy() -> None:
    files = Files(root="/one")
    assert files.look("a") == "/one/a"
    assert (Files(root="/two").look("a"), files.model_copy(update={"root": "/three"}).look("a")) == (
        "/two/a",
        "/three/a",
    )


@pytest.mark.parametrize(
    ("make", "cause"),
    [
        (lambda: Files(variant="raed"), "toolset Files has no variant 'raed'; it has all, read, write"),
        (
            lambda: Files(rot="/"),  # type: ignore[call-arg]
            "toolset Files: rot: Extra inputs are not permitted",
        ),
        (lambda: Files(name="a b"), "toolset Files: name: String should match pattern"),
        (lambda: Agent(name="x", model="openai/x", tools=[Files]), "write Files(…) among the tools"),
        (lambda: Files().look.with_(nme="x"), "tool 'look': there is no setting nme; the settings are name"),  # type: ignore[call-arg]
        (lambda: NoToolset().look, "NoToolset.look: tool_method is for classes that inherit from Toolset"),
        (a_tool_in_a_class, "tool 'look' is a method; use @tool_method in a class that inherits"),
        (lambda: type("Bad", (Toolset,), {"__aenter__": None}), "toolset Bad: override lifespan()"),
        (lambda: type("Bad", (Toolset,), {"lifespan": _generator}), "toolset Bad: put @asynccontextmanager over"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line_with_the_fix(make: Any, cause: str) -> None:
    with pytest.raises(ToolDefinitionError) as refusal:
        make()
    assert cause in str(refusal.value)
    assert "\n" not in str(refusal.value)


async def _generator(_: object) -> AsyncIterator[None]:
    yield


@pytest.mark.parametrize("settings", [{"colour": "red"}, {"max_steps": 0}])
def test_a_clone_of_an_agent_is_checked_like_a_new_one(settings: dict[str, Any]) -> None:
    agent = Agent(name="x", model="openai/x")
    with pytest.raises(ValueError, match=r"agent 'x': (colour: there is no such setting; the settings are|max_steps)"):
        agent.clone(**settings)
    assert agent.clone(name="y").definition == agent.definition.model_copy(update={"name": "y"})


async def test_nested_and_concurrent_use_enters_once_and_leaves_once() -> None:
    """S-29."""
    files = Files()

    async def use() -> None:
        async with files, files:
            await asyncio.sleep(0)
            assert files._log == ["entering"]

    async with files:
        await asyncio.gather(use(), use())
        assert files._log == ["entering"]
    assert files._log == ["entering", "left"]
    async with files:
        pass
    assert files._log == ["entering", "left"] * 2


async def test_a_process_enters_once_and_what_failed_is_tried_again_by_the_next_call() -> None:
    files, opened = Files(fail=1), OpenToolsets()
    first = await asyncio.gather(*(opened.enter(files) for _ in range(3)), return_exceptions=True)
    assert [str(error) for error in first] == ["the toolset Files could not be entered: ConnectionError: no disk"] * 3
    await asyncio.gather(*(opened.enter(files) for _ in range(3)))
    assert files._log == ["entering"] * 2
    assert await opened.leave() == []
    assert files._log == ["entering", "entering", "left"]


class Slow(Toolset):
    """Enters when it is let in, and leaves in the task that entered."""

    exit: Any = None
    _let_in: asyncio.Event = PrivateAttr(default_factory=asyncio.Event)
    _tasks: list[Any] = PrivateAttr(default_factory=list[Any])

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        self._tasks.append(asyncio.current_task())
        await self._let_in.wait()
        yield
        self._tasks.append(asyncio.current_task())
        if self.exit is not None:
            raise self.exit


async def test_a_call_that_gives_up_waiting_does_not_stop_the_entering() -> None:
    slow, opened = Slow(), OpenToolsets()
    impatient = asyncio.create_task(opened.enter(slow))
    await asyncio.sleep(0)
    impatient.cancel()
    await asyncio.gather(impatient, return_exceptions=True)
    slow._let_in.set()
    await opened.enter(slow)
    assert await opened.leave() == []
    entered, left = slow._tasks
    assert entered is left


async def test_one_that_is_still_entering_is_given_up_when_the_process_ends() -> None:
    slow, opened = Slow(), OpenToolsets()
    waiting = asyncio.create_task(opened.enter(slow))
    await asyncio.sleep(0)
    assert await opened.leave() == []
    with pytest.raises(ToolsetError, match="the toolset Slow could not be entered: CancelledError"):
        await waiting


@pytest.mark.parametrize("error", [ValueError("stuck"), SystemExit("stuck")])
async def test_one_that_cannot_be_left_is_named(error: BaseException) -> None:
    slow, opened = Slow(exit=error), OpenToolsets()
    slow._let_in.set()
    await opened.enter(slow)
    (told,) = await opened.leave()
    assert str(told) == f"the toolset Slow could not be left: {type(error).__name__}: stuck"
