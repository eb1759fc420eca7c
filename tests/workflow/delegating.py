"""Agents that call other agents: a lead, and those it calls. What a model answers depends on who is asked what."""

from collections.abc import Callable
from typing import Any

from perdure import Agent
from perdure.contracts.messages import Message
from perdure.contracts.values import JsonValue
from perdure.store import SessionRecord, TurnRecord
from perdure.testing import ChatRequest, Reply, ScriptedProvider, call, say
from tests.house import House
from tests.memory import Run

DONE = say("all done")


def agent(name: str, **settings: Any) -> Agent:
    """An agent whose system prompt is its name."""
    return Agent(**{"name": name, "model": "openai/scripted", "instructions": f"I am {name}.", **settings})


def query_of(request: ChatRequest) -> str:
    """The first thing that a model was told by somebody."""
    return next(str(message["content"]) for message in request.messages if message["role"] == "user")


def results_in(request: ChatRequest) -> list[str]:
    """What the model has read as results of its calls."""
    return [str(message["content"]) for message in request.messages if message["role"] == "tool"]


def of_helpers(provider: ScriptedProvider | Run) -> list[str]:
    """The queries of the helpers' model calls, in order."""
    made = [request.request for request in provider.requests]
    return [query_of(request) for request in made if "helper" in request.system]


def played(**answers: Callable[[ChatRequest], Reply]) -> Callable[[ChatRequest], Reply]:
    """Who is asked, by the system prompt, answers."""

    def answer(request: ChatRequest) -> Reply:
        name = request.system.removeprefix("I am ").split(".")[0].replace("-", "_")
        return answers[name](request)

    return answer


def in_order(*replies: Reply) -> Callable[[ChatRequest], Reply]:
    """One reply after the other."""
    return lambda request: replies[request.index]


def asks(*queries: str, tool: str = "helper") -> Reply:
    """An answer that calls a delegate with each of these queries."""
    made: list[tuple[str, JsonValue]] = [(tool, {"query": query}) for query in queries]
    return call(*made)


async def children(of: House | Run) -> list[tuple[SessionRecord, TurnRecord]]:
    """The sessions of delegates, the one that began first coming first."""
    listed = await of.store.sessions(limit=500)
    return [child for child in reversed(listed) if child[0].session.startswith(f"{of.session}.")]


async def transcript(of: House | Run, session: str) -> list[tuple[str, str]]:
    """The messages of a session."""
    messages: tuple[Message, ...] = await of.store.transcript(session)
    return [(message.role, message.content) for message in messages]
