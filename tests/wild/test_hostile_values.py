"""Values of an author's code whose classes only look like built-in ones: their methods raise, lie, or end the process.

Seen in public trackers: lazy translations (Django's), marked-up texts and units of numbers are subclasses of ``str``,
``int`` and ``float``; mocks answer any question with what was not asked. None of their code may run where a worker
looks at a result, and what is stored are exact texts and numbers.
"""

import json
from collections.abc import Callable
from enum import Enum, IntEnum, StrEnum
from typing import Any, NamedTuple, cast

import pytest

from perdure import Agent, Continue, File, Finish, Image, ToolContext, hook, tool
from perdure.activities.models.litellm_door import read
from perdure.contracts.plain import to_number, to_plain, to_text
from perdure.testing import call, say
from tests.memory import Run


class Escaped(BaseException):
    """No handler of exceptions sees it."""


def hostile(base: type) -> type:
    """A subclass all of whose methods raise, and which takes itself for another class."""

    def fail(*_: object, **__: object) -> Any:
        raise Escaped

    made = {name for name in dir(base) if callable(getattr(base, name))} | {"__str__", "__repr__", "__format__"}
    kept = {"__new__", "__init__", "__class__", "__init_subclass__", "__subclasshook__", "__getattribute__", "__del__"}
    body: dict[str, Any] = dict.fromkeys(made - kept, fail)
    body["__class__"] = property(fail)
    body["__bytes__"] = fail
    return type(f"Hostile{base.__name__}", (base,), body)


def liar() -> str:
    """A text whose methods tell another one."""

    class Liar(str):
        __slots__ = ()

        def __str__(self) -> str:
            return self

        def __len__(self) -> int:
            return 0

        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = str.__hash__

        def __format__(self, _: str) -> str:
            return "lie"

        def encode(self, *_: Any) -> bytes:
            return b"lie"

        def split(self, *_: Any) -> Any:
            return ["lie"]

        def __iter__(self) -> Any:
            return iter("lie")

    return Liar("truth")


Text, Number, Share, List, Row, Map, Bytes = map(hostile, (str, int, float, list, tuple, dict, bytes))
TEXTS: dict[str, Callable[[], str]] = {"hostile": lambda: Text("truth"), "lying": liar}

each = pytest.mark.parametrize("kind", TEXTS)


class Colour(StrEnum):
    RED = "red"


class Size(IntEnum):
    TEN = 10


class Kind(Enum):
    ODD = liar()


class Point(NamedTuple):
    x: int
    y: str


VALUES: dict[str, tuple[Callable[[], object], object]] = {
    "text": (lambda: Text("a"), "a"),
    "lie": (liar, "truth"),
    "number": (lambda: Number(7), 7),
    "long number": (lambda: Number(10**30), 10**30),
    "share": (lambda: Share(0.5), 0.5),
    "bytes": (lambda: Bytes(b"x"), b"x"),
    "list": (lambda: List([Text("a"), List([Number(1)])]), ["a", [1]]),
    "tuple": (lambda: Row((Text("a"), 1)), ("a", 1)),
    "map": (lambda: Map({"k": Map({"x": Text("a")})}), {"k": {"x": "a"}}),
    "named tuple": (lambda: Point(1, Text("b")), (1, "b")),
    "member of texts": (lambda: [Colour.RED], ["red"]),
    "member of numbers": (lambda: Size.TEN, 10),
    "member": (lambda: Kind.ODD, "truth"),
    "truth": (lambda: [True, None, 1.5], [True, None, 1.5]),
}


def is_exact(value: object) -> bool:
    kind = type(value)
    if kind is dict:
        return all(is_exact(name) and is_exact(part) for name, part in value.items())  # type: ignore[attr-defined]
    if kind is list or kind is tuple:
        return all(map(is_exact, value))  # type: ignore[call-overload]
    return kind in {str, int, float, bool, bytes, type(None)}


@pytest.mark.parametrize("name", VALUES)
def test_an_exact_value_is_made_without_the_authors_code(name: str) -> None:
    make, wanted = VALUES[name]
    got = to_plain(make())
    assert is_exact(got)
    assert got == wanted
    assert type(got) is type(wanted)


def test_a_key_of_a_hostile_class_is_exact_too() -> None:
    class Key(str):
        __slots__ = ()
        armed = False

        def __hash__(self) -> int:
            if Key.armed:
                raise Escaped
            return str.__hash__(self)

        __eq__ = str.__eq__

    given = {Key("a"): 1}
    Key.armed = True
    assert to_plain(given) == {"a": 1}


def test_what_is_no_built_in_value_stays_as_it_is() -> None:
    thing = object()
    assert to_plain(thing) is thing
    assert type(to_text(Text("a"))) is str


def test_what_cannot_be_a_number_is_none() -> None:
    class Broken:
        def __float__(self) -> float:
            raise ValueError

    assert str(to_number(Broken())) == str(to_number("x")) == "nan"
    assert [to_number(value) for value in (Number(3), Share(0.5), "5", True)] == [3, 0.5, 5.0, 1]


def agent(**settings: Any) -> Agent:
    return Agent(**{"name": "tester", "model": "openai/scripted", "instructions": "Be brief.", **settings})


def told(run: Run) -> list[Any]:
    """What the model read last."""
    return [message.get("content") for message in run.requests[-1].request.messages]


@each
@pytest.mark.parametrize("is_async", [False, True])
async def test_instructions_are_exact(run: Run, kind: str, is_async: bool) -> None:
    def make(_: object) -> str:
        return TEXTS[kind]()

    async def make_async(context: object) -> str:
        return make(context)

    result = await run(agent(instructions=make_async if is_async else make), say("done"))
    assert result["stop_reason"] == "finished", result["error"]
    assert told(run)[0] == "truth"


RESULTS: dict[str, tuple[Callable[[], object], str]] = {
    "text": (lambda: Text("truth"), "truth"),
    "lying text": (liar, "truth"),
    "half a character": (lambda: Text("a\ud800"), "a\ufffd"),
    "number": (lambda: Number(7), "7"),
    "share": (lambda: Share(0.5), "0.5"),
    "list": (lambda: List([Text("a"), Number(1)]), '["a",1]'),
    "map": (lambda: Map({"k": Text("a")}), '{"k":"a"}'),
    "lists in it": (lambda: {"k": List([Map({"x": liar()})])}, '{"k":[{"x":"truth"}]}'),
    "items of a generator": (lambda: (item for item in [Text("a"), Number(1)]), '["a",1]'),
    "member": (lambda: Colour.RED, "red"),
    "named tuple": (lambda: Point(1, "b"), '[1,"b"]'),
}


@pytest.mark.parametrize("name", RESULTS)
@pytest.mark.parametrize("is_async", [False, True])
async def test_what_a_tool_returns_is_exact(run: Run, name: str, is_async: bool) -> None:
    make, wanted = RESULTS[name]

    def look() -> Any:
        """Look."""
        return make()

    async def look_async() -> Any:
        """Look."""
        return make()

    used: Any = tool(name="look")(look_async if is_async else look)
    result = await run(agent(tools=[used]), call(("look", {})), say("done"))
    assert result["stop_reason"] == "finished", result["error"]
    read_by_model = told(run)[-1]
    assert (
        read_by_model == wanted
        if not wanted.startswith(("[", "{"))
        else json.loads(read_by_model) == json.loads(wanted)
    )


async def test_an_annotated_text_is_exact(run: Run) -> None:
    @tool
    def look() -> str:
        """Look."""
        return cast("str", Text("truth"))

    result = await run(agent(tools=[look]), call(("look", {})), say("done"))
    assert (result["stop_reason"], told(run)[-1]) == ("finished", "truth")


async def test_names_and_bytes_of_files_are_exact(run: Run) -> None:
    @tool
    def draw() -> Any:
        """Draw."""
        image, file = Image(b"\x89PNG\r\n\x1a\n" + b"x" * 9), File("a", "text", "text/plain")
        image.data, image.media_type = Bytes(image.data), Text(image.media_type)
        file.name, file.data, file.media_type = Text("a.txt"), Bytes(b"text"), Text("text/plain")
        return [Text("seen"), image, file]

    result = await run(agent(tools=[draw]), call(("draw", {})), say("done"))
    assert result["stop_reason"] == "finished", result["error"]
    assert "[file a.txt, text/plain, 4 bytes" in str(told(run)[-1]) + str(told(run)[-2])


@each
async def test_progress_and_reasons_of_a_tool_are_exact(run: Run, kind: str) -> None:
    @tool
    def work(context: ToolContext) -> str:
        """Work."""
        context.report_progress(Number(1), Share(2.0), TEXTS[kind]())
        context.stop_turn(TEXTS[kind]())
        return "done"

    result = await run(agent(tools=[work]), call(("work", {})))
    assert (result["stop_reason"], result["stopped_by"]) == ("finished", "work: truth")
    (event,) = await run.events("tool_progress")
    assert (event["progress"], event["total"], event["message"]) == (1.0, 2.0, "truth")


async def test_a_report_that_cannot_be_read_does_not_fail_the_tool(run: Run) -> None:
    class Broken:
        def __str__(self) -> str:
            raise ValueError

        __float__ = __str__

    @tool
    def work(context: ToolContext) -> str:
        """Work."""
        context.report_progress(Broken(), Broken(), Broken())  # type: ignore[arg-type]
        return "done"

    result = await run(agent(tools=[work]), call(("work", {})), say("ok"))
    assert (result["stop_reason"], told(run)[-1]) == ("finished", "done")


@each
@pytest.mark.parametrize("is_async", [False, True])
async def test_reactions_of_hooks_are_exact(run: Run, kind: str, is_async: bool) -> None:
    class Mine(Continue):
        def __iter__(self) -> Any:
            raise Escaped

        def model_copy(self, **_: Any) -> Any:
            raise Escaped

    reacted: list[str] = []

    def react(_: object) -> Any:
        reacted.append(kind)
        return Mine.model_construct(messages=(TEXTS[kind](),), feedback="") if len(reacted) == 1 else None

    async def react_async(event: object) -> Any:
        return react(event)

    reacting = hook("generation_end", name="react")(react_async if is_async else react)
    result = await run(agent(hooks=[reacting]), say("first"), say("second"))
    assert (result["stop_reason"], result["output"]) == ("finished", "second"), result["error"]
    assert "truth" in told(run)


async def test_a_reaction_made_without_its_checks_fails_the_hook(run: Run) -> None:
    def react(_: object) -> Any:
        return Finish.model_construct(reason=Number(5))

    result = await run(agent(hooks=[hook("generation_end", name="react")(react)], on_hook_error="fail"), say("done"))
    assert (result["reason_code"], "hook react" in result["error"]) == ("runtime.hook_failed", True)


@pytest.mark.parametrize("name", ["text", "map", "number"])
async def test_what_is_no_reaction_is_ignored(run: Run, name: str) -> None:
    make, _ = VALUES[name]

    def react(_: object) -> Any:
        return make()

    result = await run(agent(hooks=[hook("generation_end", name="react")(react)]), say("done"))
    assert (result["stop_reason"], result["output"]) == ("finished", "done")


def test_an_answer_of_a_provider_of_ones_own_is_exact() -> None:
    """litellm's ``custom_provider_map``: the handler is the author's code."""

    class Response:
        def model_dump(self, **_: Any) -> dict[str, Any]:
            called = {"function": {"name": Text("pay"), "arguments": Text('{"a": 1}')}}
            message = Map({"content": Text("truth"), "tool_calls": List([called])})
            return {"choices": [{"message": message, "finish_reason": Text("stop")}], "usage": Map()}

    answered = read(Response())
    assert (type(answered.text), answered.text) == (str, "truth")
    assert [(type(called.name), type(called.arguments), called.name) for called in answered.calls] == [
        (str, str, "pay")
    ]
