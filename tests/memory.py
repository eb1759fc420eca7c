"""Turns of one test in memory: what the engine alone decides needs no server, no port and no wait."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from perdure import Agent
from perdure.contracts.messages import Message
from perdure.store import Store
from perdure.testing import Fault, InMemoryRun, RecordedRequest, Reply, Script, run_in_memory
from perdure.testing.script import Answers

MOST_REQUESTS = 20
"""So often a model that always fails is asked at most."""


class Run:
    """Runs the turns of a session, one after the other; each call is a turn.

    Attributes:
        environment: The test's environment, which is a user's.
        requests: What models were asked in all turns.
    """

    def __init__(self, environment: pytest.MonkeyPatch) -> None:
        self.environment = environment
        self.requests: list[RecordedRequest] = []
        self._last: InMemoryRun | None = None

    async def __call__(
        self,
        agent: Agent,
        *replies: Reply,
        prompt: Any = "go",
        script: Answers | None = None,
        always: Fault | None = None,
        **options: Any,
    ) -> dict[str, Any]:
        """Run a turn with these answers of the model, or this script, or always this fault; its result as JSON."""
        if always is not None:
            replies = (Reply(faults=(always,) * MOST_REQUESTS),) * MOST_REQUESTS
        self._last = await run_in_memory(
            agent, prompt, script or Script(replies=replies), **{"after": self._last, **options}
        )
        self.requests += self._last.requests
        return self._last.result.model_dump(mode="json")

    @property
    def last(self) -> InMemoryRun:
        """The turn that has ended last."""
        assert self._last is not None, "no turn has run"
        return self._last

    @property
    def session(self) -> str:
        """The session of the turns."""
        return self.last.session

    @property
    def store(self) -> Store:
        """Where the turns stand."""
        return self.last.store

    async def events(self, *types: str) -> list[Mapping[str, Any]]:
        """The events of the session as JSON lines, all or those of these types."""
        lines = [envelope.line() for envelope in await self.last.events()]
        return [line for line in lines if not types or line["type"] in types]

    async def transcript(self) -> Sequence[Message]:
        """The conversation."""
        return await self.last.transcript()

    def read(self, request: int = -1) -> list[tuple[str, str]]:
        """What the model was sent with a request: the role and the text of each message."""
        messages = self.requests[request].request.messages
        return [(str(message["role"]), str(message.get("content") or "")) for message in messages]
