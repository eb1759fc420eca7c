"""Routes and verbs show the client's views of turns: none reads the store's rows of turns and puts one together.

Which modules of the client they may import is a rule in pyproject.toml, next to the other rules of imports.
"""

import ast
from collections.abc import Iterator

import pytest

from tests.contract.repository import ROOT, sources

OF_TURNS = {
    "glances",
    "list_turns",
    "open_requests",
    "open_runs",
    "open_turns",
    "queued_turns",
    "session",
    "sessions",
    "traces",
    "turn",
    "turn_by_request",
    "turns",
}
"""Reads of the store about sessions and turns."""

OF_THE_STORE_ALONE = OF_TURNS - {"session", "sessions", "turn", "turns"}
"""Those whose names nothing else has, so that they are known whatever the store is called."""

LISTS = {"closures", "list_sessions"}
"""Functions of the client from which only its views are made."""


def is_store(node: ast.expr) -> bool:
    """Whether an expression is a store, by how the code names one: ``store``, ``self._store``, ``await x.store()``."""
    if isinstance(node, ast.Await):
        return is_store(node.value)
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute) and node.func.attr in {"store", "open_store"}
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return name.strip("_") == "store"


def reads_of_turns(text: str) -> Iterator[str]:
    """The reads of turns in a module, one line each."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and (
            node.attr in OF_THE_STORE_ALONE or (node.attr in OF_TURNS and is_store(node.value))
        ):
            yield f"{node.lineno}: {node.attr}"
        if isinstance(node, ast.ImportFrom) and node.module == "perdure.client.read":
            yield from (f"{node.lineno}: {alias.name}" for alias in node.names if alias.name in LISTS)


def test_no_route_and_no_verb_asks_the_store_for_turns() -> None:
    doors = [*sources("perdure/gateway", "perdure/cli")]
    assert len(doors) > 50
    found = {str(path): [*reads_of_turns((ROOT / path).read_text(encoding="utf-8"))] for path in doors}
    assert not {path: lines for path, lines in found.items() if lines}


@pytest.mark.parametrize(
    "planted",
    [
        "record = await store.turn(session, 1)",
        "rows = await (await gateway.client.store()).turns(session)",
        "rows = await self._store.sessions(limit=1)",
        "queued = await there.queued_turns(session=session)",
        "call(store.session)",
        "from perdure.client.read import closures",
    ],
)
def test_a_door_that_does_is_named(planted: str) -> None:
    text = f"async def f(store, session, gateway, there, self, call):\n    {planted}\n"
    assert [line.partition(":")[0] for line in reads_of_turns(text)] == ["2"]


def test_the_verbs_of_the_client_are_not_meant() -> None:
    text = "async def f(client, turn):\n    return await client.turns('s'), await client.sessions(), turn.turn\n"
    assert not [*reads_of_turns(text)]
