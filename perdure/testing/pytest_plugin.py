"""Fixtures for tests of agents; load them with ``pytest_plugins = ["perdure.testing.pytest_plugin"]`` in conftest.py.

One Temporal server serves the whole run; each test has a store, a task queue, a worker and a scripted model of its own.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import pytest

from perdure.agents.agent import Agent
from perdure.testing.environment import Environment, environment, make_server
from perdure.testing.script import Answers


class MakeEnvironment(Protocol):
    """:func:`perdure.testing.environment` at the server of the test run."""

    def __call__(
        self,
        agents: Iterable[Agent],
        script: Answers | None = None,
        *,
        models: Mapping[str, Answers] | None = None,
    ) -> AbstractAsyncContextManager[Environment]:
        """An environment for the test."""
        ...


@pytest.fixture(scope="session")
def perdure_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Temporal server for the test run."""
    server = make_server(tmp_path_factory.mktemp("perdure"))
    asyncio.run(server.start())
    yield server.address
    asyncio.run(server.stop())


@pytest.fixture
def perdure_environment(perdure_server: str) -> MakeEnvironment:
    """A function that makes environments at the server of the test run."""

    def make(
        agents: Iterable[Agent],
        script: Answers | None = None,
        *,
        models: Mapping[str, Answers] | None = None,
    ) -> AbstractAsyncContextManager[Environment]:
        return environment(agents, script, models=models, address=perdure_server)

    return make
