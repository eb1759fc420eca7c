"""What the client raises: one tree, exported, whatever a method is given and whoever is away."""

import ast
import asyncio
import inspect
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType

import pytest

import perdure.client
from perdure.cli.server import EmbeddedServer, ServerOptions
from perdure.client import (
    Client,
    DenyRequest,
    PerdureError,
    ResultRequest,
    ServerRefusedError,
    ServerUnreachableError,
    SettingsError,
    StoreError,
    StoreUnavailableError,
    Task,
    TemporalConfigError,
    Turn,
    UnknownAgentError,
    UnknownSessionError,
    patience,
)
from perdure.client.asks import Compact
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.sends import SendRequest
from perdure.contracts.turns import RunState
from perdure.local_ports import find_free_port
from perdure.store import Store

pytestmark = pytest.mark.timeout(120)

MODULES = sorted(Path(perdure.client.__file__).parent.glob("*.py"))

INSIDE = {"NotTakenError", "UpdateRefusedError"}
"""What the client's own modules tell one another; each is caught in it."""

MESSAGE = SendRequest(prompt="And?", when_busy="steer")

Call = Callable[[Client], Awaitable[object]]


def public_methods(owner: type) -> set[str]:
    return {f"{owner.__name__}.{name}" for name, _ in inspect.getmembers(owner, inspect.isfunction) if name[0] != "_"}


async def drained(events: AsyncIterator[object]) -> None:
    async for _ in events:
        pass


def odd_calls() -> dict[str, list[Call]]:
    """Each method that talks to somebody, with what nobody has and what nobody can mean."""
    soon = timedelta(0)
    return {
        "Client.agents": [lambda client: client.agents()],
        "Client.answer": [lambda client: client.answer("gone", "call", "x"), lambda client: client.answer("", "", "")],
        "Client.approve": [
            lambda client: client.approve("gone", "call", by="me"),
            lambda client: client.approve("gone", "call", by="m" * 1000),
            lambda client: client.approve("gone", "call", by="me", until=datetime.now(UTC)),
            lambda client: client.approve("gone", "call", by="me", always="tool", until=datetime(9999, 12, 31)),  # noqa: DTZ001
            lambda client: client.approve("gone", "call", by="me", always="session"),
        ],
        "Client.artifact": [lambda client: client.artifact("gone", "a")],
        "Client.attach": [lambda client: client.attach("gone"), lambda client: client.attach("gone", -1)],
        "Client.budget": [lambda client: client.budget("gone"), lambda client: client.budget("no id")],
        "Client.block": [
            lambda client: client.block(),
            lambda client: client.block(agent="", dry_run=True),
            lambda client: client.block("r" * 100_000, agent="gone"),
        ],
        "Client.blocks": [lambda client: client.blocks(tenant="t" * 1000)],
        "Client.cancel": [
            lambda client: client.cancel("gone"),
            lambda client: client.cancel("gone", turn=7),
            lambda client: client.cancel("gone", turn="x"),
        ],
        "Client.cancel_all": [
            lambda client: client.cancel_all(),
            lambda client: client.cancel_all(state=RunState.ENDED),
        ],
        "Client.carry_out": [
            lambda client: client.carry_out(Compact(session="gone")),
            lambda client: client.carry_out(Compact(session="no id")),
        ],
        "Client.check_worker": [lambda client: client.check_worker()],
        "Client.checkpoints": [lambda client: client.checkpoints("gone")],
        "Client.compact": [lambda client: client.compact("gone"), lambda client: client.compact("no id")],
        "Client.delete": [lambda client: client.delete("gone"), lambda client: client.delete("no id")],
        "Client.deny": [lambda client: client.deny("gone", "call", by="me")],
        "Client.events": [
            lambda client: drained(client.events("gone")),
            lambda client: drained(client.events("gone", types=["nothing"])),
            lambda client: drained(client.events("gone", heartbeat=soon)),
        ],
        "Client.extend": [
            lambda client: client.extend("gone", max_steps=2),
            lambda client: client.extend("gone", max_steps=-1),
            lambda client: client.extend("gone", turn=-1, max_steps=2),
        ],
        "Client.fork": [lambda client: client.fork("gone"), lambda client: client.fork("gone", at=-1)],
        "Client.inbox": [lambda client: client.inbox()],
        "Client.pause": [lambda client: client.pause("gone"), lambda client: client.pause("gone", "r" * 2000)],
        "Client.unpause": [lambda client: client.unpause("gone")],
        "Client.resume": [lambda client: client.resume("gone"), lambda client: client.resume("gone", turn=-1)],
        "Client.resume_all": [lambda client: client.resume_all(), lambda client: client.resume_all(per_second=0)],
        "Client.runs": [lambda client: client.runs("gone"), lambda client: client.runs("no id")],
        "Client.send": [lambda client: client.send("gone", "go"), lambda client: client.send("gone", "")],
        "Client.session_view": [
            lambda client: client.session_view("gone"),
            lambda client: client.session_view("no id"),
        ],
        "Client.sessions": [lambda client: client.sessions(agent="nobody")],
        "Client.start": [
            lambda client: client.start("writer", ""),
            lambda client: client.start("writer", "go", session="no id"),
            lambda client: client.start("writer", "go", max_steps=-1),
        ],
        "Client.reply": [
            lambda client: client.reply("gone", [ResultRequest(request="call", value="x")], prompt="go on"),
            lambda client: client.reply("", [DenyRequest(request="call", by="ada")]),
            lambda client: client.reply("gone", []),
            lambda client: client.reply("gone", [DenyRequest(request="call", by="ada", message=MESSAGE)]),
            lambda client: client.reply("gone", [object()]),
            lambda client: client.reply("gone", [ResultRequest(request="call", value="x")] * 2),
            lambda client: client.reply("gone", [ResultRequest(request="call", value="x")], tools=[{"name": "%"}]),
        ],
        "Client.status": [lambda client: client.status("gone")],
        "Client.store": [lambda client: client.store()],
        "Client.submit_result": [
            lambda client: client.submit_result("gone", "call", "x"),
            lambda client: client.submit_result("", "", error="e" * 100_000),
            lambda client: client.submit_result("gone", "call", object()),
        ],
        "Client.trajectory": [lambda client: client.trajectory("gone")],
        "Client.transcript": [lambda client: client.transcript("gone")],
        "Client.turn_view": [
            lambda client: client.turn_view("gone", 1),
            lambda client: client.turn_view("gone", -1),
            lambda client: client.turn_view("no id", 1),
        ],
        "Client.turn_views": [lambda client: client.turn_views("gone"), lambda client: client.turn_views("no id")],
        "Client.turns": [lambda client: client.turns("gone")],
        "Client.unblock": [lambda client: client.unblock("gone")],
        "Client.waits_for": [lambda client: client.waits_for("gone"), lambda client: client.waits_for("")],
    }


SILENT = {"Client.close", "Client.connect", "Client.task", "Client.waits"}
"""They ask nobody, or are tested by themselves."""

OF_A_TURN: dict[str, Callable[[Turn], Awaitable[object]]] = {
    "Turn.cancel": lambda turn: turn.cancel("no longer"),
    "Turn.events": lambda turn: drained(turn.events(after=99)),
    "Turn.extend": lambda turn: turn.extend(max_steps=-1),
    "Turn.listen": lambda turn: turn.listen(print, types=["nothing"]),
    "Turn.notice": lambda turn: turn.notice(),
    "Turn.number": lambda turn: turn.number(),
    "Turn.requests": lambda turn: turn.requests(),
    "Turn.result": lambda turn: turn.result(),
    "Turn.status": lambda turn: turn.status(),
    "Turn.tool_metrics": lambda turn: turn.tool_metrics(),
    "Turn.waits_for": lambda turn: turn.waits_for(),
}


def raised_in(module: Path) -> set[str]:
    """The classes of ``raise Class(…)`` in a module."""
    statements = [node for node in ast.walk(ast.parse(module.read_text())) if isinstance(node, ast.Raise)]
    made = [node.exc for node in statements if isinstance(node.exc, ast.Call)]
    return {call.func.id for call in made if isinstance(call.func, ast.Name) and call.func.id.endswith("Error")}


def announced(owner: type) -> set[str]:
    """The classes that the public methods' docstrings say they raise."""
    methods = [function for name, function in inspect.getmembers(owner, inspect.isroutine) if name[0] != "_"]
    raises = "".join((inspect.getdoc(method) or "").partition("Raises:")[2] for method in methods)
    return set(re.findall(r"^    (\w+Error): ", raises, re.MULTILINE))


def exported(module: ModuleType) -> set[str]:
    values = {name: getattr(module, name) for name in module.__all__}
    return {name for name, value in values.items() if isinstance(value, type) and issubclass(value, PerdureError)}


def test_all_that_is_raised_or_announced_is_exported_and_of_one_tree() -> None:
    raised = set[str]().union(*map(raised_in, MODULES)) - INSIDE
    said = announced(Client) | announced(Turn) | announced(Task)
    assert {"TurnClosedError", "UnknownSessionError"} <= raised & said
    assert (raised | said) - exported(perdure.client) == set()


def test_no_method_is_forgotten() -> None:
    methods = public_methods(Client) | {"Client.connect"}
    assert odd_calls().keys() | SILENT == methods
    assert OF_A_TURN.keys() == public_methods(Turn)


async def expect_our_errors(calls: list[tuple[str, Awaitable[object]]]) -> dict[str, str]:
    """Make the calls side by side; each comes back, or raises an exported error whose message is one line."""
    ends = await asyncio.gather(*(call for _, call in calls), return_exceptions=True)
    raised = {method: end for (method, _), end in zip(calls, ends, strict=True) if isinstance(end, BaseException)}
    names = {method: type(error).__name__ for method, error in raised.items()}
    assert {method: name for method, name in names.items() if name not in exported(perdure.client)} == {}
    assert [str(error) for error in raised.values() if not str(error) or "\n" in str(error)] == []
    return names


SAYS_NONE = {"Client.budget"}
"""What says None where nobody answers: it is looked at while a turn is followed, which says so itself."""


async def test_what_nobody_has_and_nobody_can_mean_raises_errors_of_the_tree_only(client: Client) -> None:
    calls = [(method, call(client)) for method, several in odd_calls().items() for call in several]
    raised = await expect_our_errors(calls)
    assert raised.keys() >= odd_calls().keys() - {
        *SAYS_NONE,
        "Client.blocks",
        "Client.runs",
        "Client.agents",
        "Client.inbox",
        "Client.sessions",
        "Client.store",
    }
    assert (raised["Client.cancel"], raised["Client.resume"]) == ("RequestRefusedError", "RequestRefusedError")


@pytest.mark.usefixtures("worker")
async def test_a_turns_methods_raise_errors_of_the_tree_only(client: Client) -> None:
    turn = await client.start("writer", "go")
    await turn.result()
    raised = await expect_our_errors([(method, call(turn)) for method, call in OF_A_TURN.items()])
    assert raised == dict.fromkeys(("Turn.events", "Turn.extend", "Turn.listen"), "RequestRefusedError")


@pytest.mark.deep
async def test_a_server_and_a_store_that_are_away_raise_errors_of_the_tree_only(
    client: Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(patience, "PATIENCE", timedelta(0))
    async with EmbeddedServer(ServerOptions(port=find_free_port())) as server:
        alone = await Client.connect(address=server.address, store_url=f"sqlite:///{tmp_path}/missing/store.db")
    calls = [(method, several[0](alone)) for method, several in odd_calls().items()]
    raised = await expect_our_errors(calls)
    assert raised.keys() == odd_calls().keys() - SAYS_NONE
    assert set(raised.values()) == {"RequestRefusedError", "ServerUnreachableError", "StoreUnavailableError"}
    for method in ("Client.agents", "Client.store", "Client.transcript"):
        assert raised[method] == StoreUnavailableError.__name__
    for method in ("Client.attach", "Client.cancel", "Client.check_worker", "Client.send", "Client.status"):
        assert raised[method] == ServerUnreachableError.__name__


async def test_options_of_connect_replace_the_environment_each_for_itself(
    server: EmbeddedServer, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", f"127.0.0.1:{find_free_port()}")
    monkeypatch.setenv("TEMPORAL_NAMESPACE", "of-the-environment")
    monkeypatch.setenv("PERDURE_STORE_URL", "sqlite:///nowhere/store.db")
    monkeypatch.setenv("PERDURE_TASK_QUEUE", "of-the-environment")
    with pytest.raises(ServerUnreachableError):
        await Client.connect()
    async with await Client.connect(address=server.address, store_url=store_url) as client:
        assert (client.temporal.namespace, client.settings.task_queue) == ("of-the-environment",) * 2
        assert await client.agents() == []
    async with await Client.connect(
        client.settings, address=server.address, namespace="default", task_queue="q"
    ) as other:
        assert (other.temporal.namespace, other.settings.task_queue) == ("default", "q")
        assert other.settings.store_url == store_url
        with pytest.raises(UnknownSessionError):
            await other.attach("gone")


async def test_options_of_connect_that_cannot_be_used_say_which_and_why(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ServerUnreachableError, match="does not speak TLS, and this client does"):
        await Client.connect(address=server.address, tls=True)
    with pytest.raises(ServerUnreachableError, match="does not speak TLS, and this client does"):
        await Client.connect(address=server.address, api_key="key-of-the-caller")
    async with await Client.connect(address=server.address, api_key="key", tls=False) as client:
        await client.temporal.count_workflows()
    with pytest.raises(TemporalConfigError, match=r"^address: 'here or there' is no HOST:PORT"):
        await Client.connect(address="here or there")
    async with await Client.connect(address=server.address, namespace="no-such") as client:
        with pytest.raises(ServerRefusedError, match="has no namespace no-such"):
            await client.attach("gone")
    async with await Client.connect(address=server.address, store_url="mysql://host/db") as client:
        with pytest.raises(StoreError, match="cannot be a mysql database"):
            await client.agents()
    monkeypatch.setenv("PERDURE_TOOL_THREADS", "many")
    with pytest.raises(SettingsError, match="PERDURE_TOOL_THREADS"):
        await Client.connect(address=server.address)


@pytest.mark.usefixtures("worker")
async def test_an_agent_that_no_worker_has_is_an_error_of_start(client: Client, store_url: str) -> None:
    await (await client.start("writer", "go", session="known")).result()  # nothing is registered: nobody can say
    async with await Store.open(store_url) as store:
        await store.register_agents([AgentDefinition(name="clerk", model="test/model")])
    with pytest.raises(UnknownAgentError, match=r"no worker has an agent 'nobody'; there are: clerk; correct the name"):
        await client.start("nobody", "go", session="unknown")
    with pytest.raises(UnknownSessionError):
        await client.attach("unknown")
    result = await (await client.start("writer", "go", session="known")).result()  # the session's own agent
    assert (result.turn, result.stop_reason) == (2, "finished")
    inline = await client.start("nobody", "go", definition={"name": "nobody", "model": "test/model"})
    assert (await inline.result()).reason_code == "request.unknown_agent"  # the stand-in has no other
