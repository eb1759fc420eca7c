"""What a recording holds of a turn beside its calls: what people decided in it, and the tools of its MCP servers.

These are ``people/<tool>/<hash>.json``, named like the fixture of the call that asked, and ``mcp/<turn>.json``. A
replay asks nobody and connects to no server.
"""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from perdure.activities.recordings import (
    AGAIN,
    FixtureMissingError,
    RecordingError,
    Recordings,
    load,
    record,
    tool_file,
    write,
)
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.errors import ErrorDetail
from perdure.contracts.input_requests import AskPeople, InputReceipt, InputRequest
from perdure.contracts.messages import Message, ToolMessage
from perdure.contracts.recordings import RecordedDecisions
from perdure.contracts.tools import Delegated, ToolDeclaration, ToolOutcome
from perdure.contracts.values import JsonValue, Value
from perdure.engine.fixtures import Asked, asked_tool, without_secrets

DIGITS = 16
"""So much of the hash of its call names the recording of a delegate: they stand in each other."""


class DecisionFixture(Value):
    """What became of an input request: who decided, and what the model read if the call did not run."""

    request: dict[str, JsonValue]
    decision: InputReceipt
    content: str = ""
    error: ErrorDetail | None = None
    recorded_at: datetime


class ToolsFixture(Value):
    """The tools that the MCP servers of an agent offered when a turn opened."""

    tools: tuple[ToolDeclaration, ...]
    recorded_at: datetime


class RecordedTurns:
    """The part of one worker's recordings that is about whole turns."""

    def __init__(self, recordings: Recordings) -> None:
        self._recordings = recordings

    @property
    def replays(self) -> bool:
        """Whether this worker replays."""
        return self._recordings.mode == "replay"

    async def keep_tools(self, definition: AgentDefinition, turn: int, tools: Sequence[ToolDeclaration]) -> None:
        """Write down what the servers offered, if the turn is recorded; a queue of this worker is not part of it."""
        place = self._recordings.place(definition)
        if place is None:
            return
        everywhere = tuple(
            tool.model_copy(update={"task_queue": None, "pinned": False}) if tool.pinned else tool for tool in tools
        )
        fixture = ToolsFixture(tools=everywhere, recorded_at=datetime.now(UTC))
        await record(lambda: write(_tools_file(place, turn), fixture))

    async def tools(self, definition: AgentDefinition, turn: int) -> tuple[ToolDeclaration, ...]:
        """What the servers offered when the turn was recorded.

        Raises:
            RecordingError: That is not in the recording.
        """
        try:
            place = self._recordings.place(definition)
            fixture = None if place is None else await asyncio.to_thread(load, _tools_file(place, turn), ToolsFixture)
        except FixtureMissingError as error:
            raise RecordingError(str(error)) from None
        if fixture is None:
            msg = (
                f"recording {definition.recording!r} does not say what the MCP servers offered in turn {turn}; {AGAIN}"
            )
            raise RecordingError(msg)
        return fixture.tools

    async def of_delegate(self, delegated: Delegated) -> str:
        """The recording of a delegate's turn, within that of its caller: equal calls of equal delegates may differ."""
        store = self._recordings.store
        caller = await store.definition(delegated.definition)
        if not caller.recording:
            return ""
        transcript = await store.transcript(delegated.session)
        asked = asked_tool(transcript, delegated.call_id, delegated.tool, self._recordings.secrets)
        return f"{caller.recording}/delegates/{delegated.tool}/{asked.digest[:DIGITS]}.{asked.occurrence}"

    async def keep_decisions(self, session: str, turn: int) -> None:
        """Write down what people have decided, if the turn that has ended is recorded."""
        if self._recordings.mode != "record":
            return
        store = self._recordings.store
        place = self._recordings.place(await store.definition((await store.turn(session, turn)).definition))
        if place is None:
            return
        transcript = await store.transcript(session)
        await record(lambda: self._write_decisions(place, transcript))

    def _write_decisions(self, place: Path, transcript: tuple[Message, ...]) -> None:
        for message in transcript:
            if isinstance(message, ToolMessage) and message.decided is not None:
                asked = asked_tool(transcript, message.call_id, message.name, self._recordings.secrets)
                write(_decision_file(place, message.name, asked), self._decision(message, message.decided, asked))

    def _decision(self, message: ToolMessage, decided: InputReceipt, asked: Asked) -> DecisionFixture:
        about: dict[str, JsonValue] = {"decision": decided.model_dump(mode="json")}
        if decided.decision != "approved":  # what came of the call is the fixture of the call
            about["content"] = message.content
            about["error"] = None if message.error is None else message.error.model_dump(mode="json")
        shown = asked.numbers.hide(without_secrets(about, self._recordings.secrets))
        return DecisionFixture.model_validate(
            {**(shown if isinstance(shown, dict) else {}), "request": asked.request, "recorded_at": datetime.now(UTC)}
        )

    async def decisions(self, asking: AskPeople) -> RecordedDecisions | None:
        """What became of each of the requests when the turn was recorded; None if people are to be asked.

        Raises:
            FixtureMissingError: This worker replays, and it is not known.
        """
        if not self.replays:
            return None
        store = self._recordings.store
        definition = await store.definition((await store.turn(asking.session, asking.turn)).definition)
        place = self._recordings.place(definition)
        if place is None or definition.interactive == "stop":  # the reply starts a turn, as it did
            return None
        transcript = await store.transcript(asking.session)
        found = [await asyncio.to_thread(self._decided, place, transcript, one) for one in asking.requests]
        return RecordedDecisions(outcomes=tuple(found))

    def _decided(self, place: Path, transcript: tuple[Message, ...], request: InputRequest) -> ToolOutcome:
        asked = asked_tool(transcript, request.request_id, request.tool, self._recordings.secrets)
        fixture = load(_decision_file(place, request.tool, asked), DecisionFixture)
        if fixture is None:
            what = "approval" if request.needs == "approval" else "answer"
            msg = (
                f"no {what} is recorded for this call of {request.tool} "
                f"(recording {place.name!r}, request {asked.digest[:12]}); {AGAIN}"
            )
            raise FixtureMissingError(msg)
        fixture = DecisionFixture.model_validate(asked.numbers.show(fixture.model_dump(mode="json")))
        # What is approved is the call as it is now: of masked arguments, a replay has the masks.
        receipt = fixture.decision.model_copy(update={"digest": request.digest, "request_id": request.request_id})
        return ToolOutcome(
            call_id=request.request_id,
            preview=fixture.content,
            error=fixture.error,
            recorded=False,
            decided=receipt,
        ).sparse()


def _tools_file(place: Path, turn: int) -> Path:
    return place / "mcp" / f"{turn}.json"


def _decision_file(place: Path, tool: str, asked: Asked) -> Path:
    return place / "people" / tool / tool_file(asked)
