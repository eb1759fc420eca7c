"""Toolsets and needs in turns: entered once, on the loop of their methods, and filled in without a trace."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from pydantic import PrivateAttr

from perdure import Agent, DidNotHappen, Secret, Setting, Tool, ToolContext, Toolset, tool, tool_method
from perdure.lanes.bodies import Bodies
from perdure.testing import Reply, Script, ScriptedProvider, call, say
from tests.house import House
from tests.workflow.traces import visible

DONE = say("done")


class Ledger(Toolset):
    """Counts what happens to it, and where."""

    failures: int = 0
    _log: list[str] = PrivateAttr(default_factory=list[str])
    _loops: set[Any] = PrivateAttr(default_factory=set[Any])

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        self._loops.add(asyncio.get_running_loop())
        await asyncio.sleep(0)
        self._log.append("entering")
        if self._log.count("entering") <= self.failures:
            raise ConnectionError("no ledger")
        self._log.append("entered")
        yield
        self._loops.add(asyncio.get_running_loop())
        self._log.append("left")

    @tool_method
    async def add(self, amount: int, context: ToolContext) -> str:
        """Add."""
        self._loops.add(asyncio.get_running_loop())
        self._log.append(f"add {amount}")
        return f"{context.turn}: {amount}"

    @tool_method
    def total(self, currency: str) -> str:
        """Sum up, on a thread."""
        self._log.append(f"total in {currency} on {threading.current_thread().name.rpartition('_')[0]}")
        return "42"

    @tool_method(timeout=timedelta(milliseconds=100), catch=True)
    async def hang(self) -> str:
        """Hang."""
        await asyncio.Event().wait()
        return ""


def agent(*tools: Toolset | Tool[..., Any], **settings: Any) -> Agent:
    return Agent(**{"name": "tester", "model": "openai/scripted", "tools": tools, **settings})


async def played(house: House, using: Agent, *answers: Reply) -> tuple[Mapping[str, Any], Sequence[str]]:
    """The result of a turn, and the results that the model read last."""
    async with ScriptedProvider(Script(replies=answers)) as provider, house.worker(using):
        house.use(provider)
        result = await house.run()
        last = provider.requests[-1].request.messages
    return result, [str(message["content"]) for message in last if message["role"] == "tool"]


async def test_a_toolset_is_entered_before_its_first_call_and_left_when_the_worker_stops(house: House) -> None:
    """S-29: once, with calls beside and after each other, and on the loop of its methods."""
    ledger = Ledger(name="book")
    both = call(("book__add", {"amount": 1}), ("book__total", {"currency": "CHF"}))
    result, read = await played(house, agent(ledger), both, call(("book__add", {"amount": 2})), DONE)
    assert (result["stop_reason"], list(read)) == ("finished", ["1: 1", "42", "1: 2"])
    assert (ledger._log[:2], ledger._log[-1]) == (["entering", "entered"], "left")
    assert sorted(ledger._log[2:-1]) == ["add 1", "add 2", "total in CHF on perdure-tool"]
    assert len(ledger._loops) == 1
    assert asyncio.get_running_loop() not in ledger._loops


async def test_a_toolset_that_is_not_called_is_not_entered(house: House) -> None:
    ledger = Ledger()
    await played(house, agent(ledger), DONE)
    assert ledger._log == []


async def test_a_toolset_that_cannot_be_entered_is_told_to_the_model_and_entered_by_the_next_call(house: House) -> None:
    ledger = Ledger(failures=1)
    ask = call(("add", {"amount": 1}))
    result, read = await played(house, agent(ledger), ask, ask, DONE)
    assert (result["stop_reason"], read[1]) == ("finished", "1: 1")
    error = json.loads(read[0])["error"]
    assert (error["code"], error["type"]) == ("tool.execution_error", "ToolsetError")
    assert error["message"].startswith("the toolset Ledger could not be entered: ConnectionError: no ledger")
    assert ledger._log == ["entering", "entering", "entered", "add 1", "left"]


async def test_a_method_ends_with_its_time_out_and_the_toolset_stays(house: House) -> None:
    ledger = Ledger()
    _, read = await played(house, agent(ledger), call(("hang", {})), call(("add", {"amount": 1})), DONE)
    assert (json.loads(read[0])["error"]["code"], read[1]) == ("tool.timeout", "1: 1")
    assert ledger._log == ["entering", "entered", "add 1", "left"]


async def test_a_single_method_with_other_settings_and_two_toolsets_go_together(house: House) -> None:
    """S-28."""
    first, two = Ledger(name="one"), Ledger()
    using = agent(first, two.add.with_(name="plus", truncate=1))
    result, read = await played(house, using, call(("plus", {"amount": 7}), ("one__add", {"amount": 8})), DONE)
    assert (result["stop_reason"], read[1]) == ("finished", "1: 8")
    assert read[0] != "1: 7"
    assert [ledger._log.count("entered") for ledger in (first, two)] == [1, 1]


SEEN: list[object] = []


@tool(
    needs={
        "token": Secret("PLANTED_NEED"),
        "short": Secret("PLANTED_SHORT"),
        "tries": Setting("PLANTED_TRIES"),
        "region": Setting("PLANTED_REGION", default="eu"),
    }
)
def connect(host: str, token: str, short: str, tries: int, region: str) -> str:
    """Connect."""
    SEEN.append((token, short, tries, region))
    if host == "fails":
        raise ConnectionError(f"{region} refused {token} and {short}")
    return f"{region} took {token} and {short}"


@pytest.mark.parametrize("host", ["works", "fails"])
async def test_a_tool_gets_what_it_needs_and_no_secret_of_it_leaves_a_trace(
    house: House, caplog: pytest.LogCaptureFixture, host: str
) -> None:
    """Secrets by reference never appear in history, store, events or logs."""
    secrets = {"PLANTED_NEED": "plain0words of a need", "PLANTED_SHORT": "q8z4"}
    for name, value in {**secrets, "PLANTED_TRIES": "8"}.items():
        house.environment.setenv(name, value)
    SEEN.clear()
    using = agent(connect, on_tool_error="feed_back")
    answers = Script(replies=(call(("connect", {"host": host})), DONE))
    async with ScriptedProvider(answers) as provider, house.worker(using):
        house.use(provider)
        handle = await house.start()
        await handle.result()
        everything = await visible(house, handle, caplog)
        offered = provider.requests[0].request.model_dump_json()
    assert [*SEEN] == [(*secrets.values(), 8, "eu")]
    assert "eu refused *** and ***" in everything or "eu took *** and ***" in everything
    assert [value for value in (*secrets.values(), "PLANTED") if value in offered] == []
    assert [value for value in secrets.values() if value in everything] == []


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ({}, "tool.execution_error", "it needs the variable PLANTED_NEED, which is not set"),
        ({"token": "mine"}, "tool.invalid_input", "token"),
    ],
)
async def test_a_call_without_what_it_needs_or_with_what_is_not_the_models_to_send_is_told_so(
    house: House, arguments: dict[str, str], code: str, words: str
) -> None:
    """It does not end the turn either, for the worker refuses to start: the variable went away since."""
    house.environment.delenv("PLANTED_NEED", raising=False)
    SEEN.clear()
    result, (read,) = await played(house, agent(connect), call(("connect", {"host": "works", **arguments})), DONE)
    error = json.loads(read)["error"]
    assert (result["stop_reason"], error["code"], words in error["message"]) == ("finished", code, True)
    assert SEEN == []


class Mailer(Toolset):
    """One that asks about its own state."""

    _sent: list[str] = PrivateAttr(default_factory=list[str])

    async def did_it(self, to: str) -> DidNotHappen:
        self._sent.append(f"asked about {to}")
        return DidNotHappen()

    @tool_method(reconcile=did_it)
    async def send(self, to: str) -> str:
        """Send."""
        return to


def test_the_reconciler_of_a_method_is_a_method() -> None:
    mailer = Mailer()
    assert mailer.send.reconciler is not None
    effect: Any = mailer.send.reconciler.function(to="you")
    assert asyncio.run(effect) == DidNotHappen()
    assert mailer._sent == ["asked about you"]


class Stuck(Toolset):
    """One that says how it was left."""

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        yield
        raise OSError("stuck")

    @tool_method
    async def work(self) -> str:
        """Work."""
        return "done"


async def test_a_toolset_that_cannot_be_left_is_logged_and_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    bodies = Bodies(1)
    context: Any = None
    assert await asyncio.wrap_future(bodies.start(Stuck().work, {}, context).future) == "done"
    bodies.close()
    assert "the toolset Stuck could not be left: OSError: stuck" in caplog.text
