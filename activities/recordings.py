"""Recordings: folders of model and tool calls with their outcomes, written by one worker and replayed by another.

A recording holds ``recording.json`` and a file for each call, a *fixture*: ``llm/<hash>.json`` or
``tools/<tool>/<hash>.json``. The second of two equal tool calls in a session is ``<hash>.2.json``. A person's decision
is ``people/<tool>/<hash>.json``, named like the fixture of its call. The tools that MCP servers offered are
``mcp/<turn>.json``. A replay calls nothing, asks nobody and connects to no server. Failed model calls are not recorded.

Long, because all that is read from and written to a recording's folder stands in one place.
"""

import asyncio
import dataclasses
import re
import time
import uuid
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError, field_validator
from temporalio import activity

from perdure.activities.models.model_call import Answer
from perdure.activities.models.record_answer import to_shown_arguments
from perdure.activities.store_access import store_failures
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.errors import ErrorDetail, ReasonCode
from perdure.contracts.input_requests import AskPeople, InputReceipt, InputRequest
from perdure.contracts.messages import Message, ToolMessage
from perdure.contracts.recordings import (
    RECORDING_FORMAT,
    RecordedArtifact,
    RecordedDecisions,
    RecordingInfo,
    ToolFixture,
)
from perdure.contracts.tools import CallTool, Delegated, RawCall, ToolDeclaration, ToolOutcome
from perdure.contracts.values import JsonValue, Value, replace
from perdure.llm.openai_format import WireMessage
from perdure.llm.recorded_calls import (
    Asked,
    CanonicalRequest,
    difference,
    find_nearest,
    request_of_generation,
    request_of_tool_call,
    without_secrets,
)
from perdure.local_files import make_folder, open_private
from perdure.settings import RecordingMode
from perdure.store import Artifact, Store

NO_WORKER = "start the worker with --record DIR to write one, or with --replay DIR to replay one"
"""The advice if a request names a recording and the worker neither records nor replays."""


class FixtureMissingError(Exception):
    """The recording does not have the call, and the call was not made."""

    reason_code = ReasonCode.LLM_FIXTURE_MISSING
    """The reason code for a model call; the turn ends with it."""


class RecordingError(Exception):
    """A recording cannot be used; the message names the cause and the fix."""


class ModelFixture(Value):
    """A recorded model call: the request as it was hashed, and the answer; calls that failed are never recorded."""

    request: CanonicalRequest
    answer: dict[str, JsonValue]
    recorded_at: datetime
    seconds: float

    @field_validator("answer")
    @classmethod
    def _is_whole(cls, value: dict[str, JsonValue]) -> dict[str, JsonValue]:
        _ANSWER.validate_python(value)
        return value


Fixture = TypeVar("Fixture", bound=Value)

_ANSWER = TypeAdapter(Answer)


class Recordings:
    """The recordings of one worker: off, being written, or replayed."""

    def __init__(self, *, mode: RecordingMode, folder: Path | None, store: Store, secrets: Collection[str]) -> None:
        self.mode = mode if folder is not None else "off"
        self._folder = folder or Path()
        self.store = store
        self.secrets = secrets

    async def open(self, name: str, agent: str) -> None:
        """Open the recording of that name for a turn; create it if this worker records.

        Raises:
            RecordingError: It does not exist, is another agent's, or its folder cannot be used.
        """
        await asyncio.to_thread(self._open, name, agent)

    def _open(self, name: str, agent: str) -> None:
        if self.mode == "off":
            msg = f"recording {name!r} was asked for, and this worker neither records nor replays; {NO_WORKER}"
            raise RecordingError(msg)
        try:
            info = self._info(name, agent)
        except OSError as error:
            msg = f"recording {name!r} cannot be used: {error}"
            raise RecordingError(msg) from error
        if info.format != RECORDING_FORMAT:
            msg = f"recording {name!r} has format {info.format}, this release has {RECORDING_FORMAT}; record it again"
            raise RecordingError(msg)
        if info.agent != agent:
            msg = f"recording {name!r} was made with agent {info.agent!r}, not {agent!r}; name another recording"
            raise RecordingError(msg)

    def _info(self, name: str, agent: str) -> RecordingInfo:
        place = self._folder / name
        if self.mode == "record" and not place.exists():
            self._begin(place, agent)
        if not place.exists():
            known = sorted(path.parent.name for path in self._folder.glob("*/recording.json"))
            msg = f"there is no recording {name!r} in {self._folder}; it has: {', '.join(known) or 'none'}"
            raise RecordingError(msg)
        try:
            return RecordingInfo.model_validate_json((place / "recording.json").read_bytes())
        except (FileNotFoundError, NotADirectoryError, ValidationError):
            msg = f"{place} is no recording: it has no readable recording.json; name another, or move it away"
            raise RecordingError(msg) from None

    def _begin(self, place: Path, agent: str) -> None:
        """Make the folder with its description in it, at once: another worker may begin the same recording."""
        make_folder(place.parent)
        prepared = place.parent / f".{uuid.uuid4().hex}"
        info = RecordingInfo(format=RECORDING_FORMAT, agent=agent, created_at=datetime.now(UTC))
        write(prepared / "recording.json", info)
        try:
            prepared.rename(place)
        except OSError:
            (prepared / "recording.json").unlink()
            prepared.rmdir()
            if not place.exists():
                raise

    async def answer(
        self,
        definition: AgentDefinition,
        messages: Sequence[WireMessage],
        call: Callable[[], Awaitable[Answer]],
    ) -> Answer:
        """The answer to a model call: the recorded one, or that of ``call``, which is recorded if this worker records.

        Raises:
            FixtureMissingError: The worker replays and has no such call.
        """
        place = self.place(definition)
        if place is None:
            return await call()
        folder = place / "llm"
        if self.mode == "replay":
            return await asyncio.to_thread(self._find_answer, folder, definition, messages)
        began = time.monotonic()
        answer = await call()
        seconds = round(time.monotonic() - began, 3)
        await record(lambda: self._write_answer(folder, definition, messages, answer, seconds))
        return answer

    def _find_answer(self, folder: Path, definition: AgentDefinition, messages: Sequence[WireMessage]) -> Answer:
        asked = request_of_generation(definition, messages, self.secrets)
        fixture = load(folder / f"{asked.digest}.json", ModelFixture)
        if fixture is None:
            raise _describe_missing_answer(folder, asked)
        recorded = _ANSWER.validate_python(asked.numbers.show(fixture.answer))
        return dataclasses.replace(recorded, recorded=True)

    def _write_answer(
        self,
        folder: Path,
        definition: AgentDefinition,
        messages: Sequence[WireMessage],
        answer: Answer,
        seconds: float,
    ) -> None:
        asked = request_of_generation(definition, messages, self.secrets)
        shown = asked.numbers.hide(self._mask(definition, answer))
        fixture = ModelFixture(
            request=asked.request,
            answer=shown if isinstance(shown, dict) else {},
            recorded_at=datetime.now(UTC),
            seconds=seconds,
        )
        write(folder / f"{asked.digest}.json", fixture)

    def _mask(self, definition: AgentDefinition, answer: Answer) -> JsonValue:
        """The answer as the transcript has it: without known secrets, and with the same masks in its arguments."""
        said = _ANSWER.dump_python(dataclasses.replace(answer, calls=()), mode="json")
        shown = without_secrets(said, self.secrets)
        calls: list[JsonValue] = []
        for call in answer.calls:
            tool = definition.tool(call.name)
            arguments, _ = to_shown_arguments(call.arguments, tool.masked if tool else (), self.secrets)
            calls.append(dataclasses.asdict(RawCall(name=call.name, arguments=arguments)))
        return {**shown, "calls": calls} if isinstance(shown, dict) else shown

    def place(self, definition: AgentDefinition) -> Path | None:
        """The folder of a turn's recording; None if its calls are made without recording.

        Raises:
            FixtureMissingError: A worker of another recording mode opened the turn.
        """
        name = definition.recording
        if name and self.mode == "off":
            msg = f"the turn uses recording {name!r}, and this worker neither records nor replays; {NO_WORKER}"
            raise FixtureMissingError(msg)
        if not name and self.mode == "replay":
            msg = "the turn was opened by a worker that does not replay, and this one does; start the turn again"
            raise FixtureMissingError(msg)
        return self._folder / name if name else None

    async def tool_call(self, definition: AgentDefinition, call: CallTool, tool: str) -> "CallRecording":
        """A tool call's place in the turn's recording."""
        if not definition.recording and self.mode != "replay":
            return CallRecording()
        async with store_failures():
            transcript = await self.store.transcript(call.session)
        asked = await asyncio.to_thread(request_of_tool_call, transcript, call.call_id, tool, self.secrets)
        try:
            place = self.place(definition)
        except FixtureMissingError as error:
            return CallRecording(replays=True, refusal=error)
        return CallRecording(
            file=None if place is None else place / "tools" / tool / tool_file(asked),
            replays=self.mode == "replay",
            asked=asked,
            secrets=frozenset(self.secrets),
        )


@dataclasses.dataclass(frozen=True)
class CallRecording:
    """One tool call's place in a recording; one without a file is neither recorded nor replayed."""

    file: Path | None = None
    replays: bool = False
    asked: Asked | None = None
    secrets: frozenset[str] = frozenset()
    refusal: FixtureMissingError | None = None

    async def outcome(self) -> ToolFixture:
        """The recorded outcome of a call that is replayed.

        Raises:
            FixtureMissingError: The recording does not have the call.
        """
        if self.file is None or self.asked is None:
            raise self.refusal or FixtureMissingError(NO_WORKER)
        fixture = await asyncio.to_thread(load, self.file, ToolFixture)
        if fixture is None:
            raise await asyncio.to_thread(_describe_missing_outcome, self.file.parent, self.asked)
        shown = self.asked.numbers.show(fixture.model_dump(mode="json", exclude={"attachments"}))
        return replace(ToolFixture.model_validate(shown), attachments=fixture.attachments)

    async def keep(
        self, message: ToolMessage, *, artifacts: Sequence[Artifact], ended_turn: bool, seconds: float | None
    ) -> None:
        """Record the call's outcome as the store now holds it, if this worker records."""
        file, asked = self.file, self.asked
        if file is None or asked is None or self.replays:
            return
        output = f"art_{message.call_id}"
        outcome: dict[str, JsonValue] = {
            "content": message.content,
            "error": None if message.error is None else message.error.model_dump(mode="json"),
            "artifact": next((artifact.text for artifact in artifacts if artifact.id == output), None),
            "ended_turn": ended_turn,
            "seconds": seconds,
            "stop": message.stop,
        }
        attached = tuple(
            RecordedArtifact(media_type=artifact.media_type, text=artifact.text, name=artifact.name)
            for artifact in artifacts
            if artifact.id != output
        )
        await record(lambda: write(file, self._fixture(outcome, asked, attached)))

    def _fixture(
        self, outcome: dict[str, JsonValue], asked: Asked, attached: tuple[RecordedArtifact, ...]
    ) -> ToolFixture:
        """The fixture of a call, without secrets. Images and files stay as the store has them, byte for byte."""
        shown = asked.numbers.hide(without_secrets(outcome, self.secrets))
        about = {"request": asked.request, "recorded_at": datetime.now(UTC), "attachments": attached}
        return ToolFixture.model_validate({**(shown if isinstance(shown, dict) else {}), **about})


def tool_file(asked: Asked) -> str:
    """The name of the fixture of a tool call."""
    number = "" if asked.occurrence == 1 else f".{asked.occurrence}"
    return f"{asked.digest}{number}.json"


async def record(writing: Callable[[], None]) -> None:
    """Write a fixture; log a failure. Neither a full disk nor a fault here may end a turn whose call is paid for."""
    try:
        await asyncio.to_thread(writing)
    except OSError as error:
        activity.logger.warning("a call is missing in the recording: %s", error)
    except Exception as error:  # noqa: BLE001 - it would count as a failure of the provider or the tool
        activity.logger.warning("a call is missing in the recording: %s", type(error).__name__, exc_info=error)


def write(path: Path, value: Value) -> None:
    """Write a file for its owner alone, in one go, so that a second worker that writes the same does no harm."""
    make_folder(path.parent)
    prepared = path.with_name(f".{uuid.uuid4().hex}")
    with open(prepared, "x", encoding="utf-8", opener=open_private) as file:
        file.write(value.model_dump_json(indent=2) + "\n")
    prepared.replace(path)


def load(path: Path, kind: type[Fixture]) -> Fixture | None:
    """The fixture at a path; None if there is no file.

    Raises:
        FixtureMissingError: The file cannot be read.
    """
    try:
        return kind.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        msg = f"the fixture {path} cannot be read ({type(error).__name__}); record it again"
        raise FixtureMissingError(msg) from None


def _read_fixtures(folder: Path, kind: type[Fixture]) -> Iterator[Fixture]:
    for path in sorted(folder.glob("*.json")):
        fixture = load(path, kind)
        if fixture is not None:
            yield fixture


def _describe_missing_answer(folder: Path, asked: Asked) -> FixtureMissingError:
    other = find_nearest(asked.request, (fixture.request for fixture in _read_fixtures(folder, ModelFixture)))
    where = "no model call is recorded" if other is None else difference(asked.request, other)
    return FixtureMissingError(f"{where} (recording {folder.parent.name!r}, request {asked.digest[:12]}); {AGAIN}")


def _describe_missing_outcome(folder: Path, asked: Asked) -> FixtureMissingError:
    other = find_nearest(asked.request, (fixture.request for fixture in _read_fixtures(folder, ToolFixture)))
    if other is None:
        where = f"no call of {folder.name} is recorded"
    elif other != asked.request:
        where = difference(asked.request, other)
    else:
        recorded = sum(
            _OCCURRENCE.fullmatch(path.name.removeprefix(asked.digest)) is not None for path in folder.glob("*")
        )
        where = f"this is call {asked.occurrence} with the same arguments, recorded were {recorded}"
    return FixtureMissingError(
        f"{where} (recording {folder.parent.parent.name!r}, request {asked.digest[:12]}); {AGAIN}"
    )


_OCCURRENCE = re.compile(r"(\.\d+)?\.json")
AGAIN = "record it again, or undo the change"


DIGITS = 16
"""Digits of the call's hash that name a delegate's recording. Short, because recordings of delegates are nested."""


class DecisionFixture(Value):
    """A person's decision about an input request, and what the model read if the call did not run."""

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
    """Recordings of what belongs to whole turns: tools of MCP servers, delegates, and people's decisions."""

    def __init__(self, recordings: Recordings) -> None:
        self._recordings = recordings

    @property
    def replays(self) -> bool:
        """Whether this worker replays."""
        return self._recordings.mode == "replay"

    async def keep_tools(self, definition: AgentDefinition, turn: int, tools: Sequence[ToolDeclaration]) -> None:
        """Record the tools that the servers offered, if the turn is recorded, without this worker's task queue."""
        place = self._recordings.place(definition)
        if place is None:
            return
        everywhere = tuple(replace(tool, task_queue=None, pinned=False) if tool.pinned else tool for tool in tools)
        fixture = ToolsFixture(tools=everywhere, recorded_at=datetime.now(UTC))
        await record(lambda: write(_tools_file(place, turn), fixture))

    async def tools(self, definition: AgentDefinition, turn: int) -> tuple[ToolDeclaration, ...]:
        """The tools that the servers offered when the turn was recorded.

        Raises:
            RecordingError: The recording does not have them.
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

    async def recording_of_delegate(self, delegated: Delegated) -> str:
        """Name of a delegate's recording. It lies within its caller's, as equal queries may get different answers."""
        store = self._recordings.store
        caller = await store.definition(delegated.definition)
        if not caller.recording:
            return ""
        transcript = await store.transcript(delegated.session)
        asked = request_of_tool_call(transcript, delegated.call_id, delegated.tool, self._recordings.secrets)
        return f"{caller.recording}/delegates/{delegated.tool}/{asked.digest[:DIGITS]}.{asked.occurrence}"

    async def keep_decisions(self, session: str, turn: int) -> None:
        """Record people's decisions, if the turn that has ended is recorded."""
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
                asked = request_of_tool_call(transcript, message.call_id, message.name, self._recordings.secrets)
                write(_decision_file(place, message.name, asked), self._decision(message, message.decided, asked))

    def _decision(self, message: ToolMessage, decided: InputReceipt, asked: Asked) -> DecisionFixture:
        about: dict[str, JsonValue] = {"decision": decided.model_dump(mode="json")}
        if decided.decision != "approved":  # the outcome of an approved call is in the call's own fixture
            about["content"] = message.content
            about["error"] = None if message.error is None else message.error.model_dump(mode="json")
        shown = asked.numbers.hide(without_secrets(about, self._recordings.secrets))
        return DecisionFixture.model_validate(
            {**(shown if isinstance(shown, dict) else {}), "request": asked.request, "recorded_at": datetime.now(UTC)}
        )

    async def decisions(self, asking: AskPeople) -> RecordedDecisions | None:
        """The recorded decision about each request; None if people are to be asked.

        Raises:
            FixtureMissingError: This worker replays, and the recording lacks a decision.
        """
        if not self.replays:
            return None
        if asking.stops:  # the reply starts a turn of its own in a replay too
            return None
        store = self._recordings.store
        definition = await store.definition((await store.turn(asking.session, asking.turn)).definition)
        place = self._recordings.place(definition)
        if place is None:
            return None
        transcript = await store.transcript(asking.session)
        found = [
            await asyncio.to_thread(self._load_decision, place, transcript, request) for request in asking.requests
        ]
        return RecordedDecisions(outcomes=tuple(found))

    def _load_decision(self, place: Path, transcript: tuple[Message, ...], request: InputRequest) -> ToolOutcome:
        asked = request_of_tool_call(transcript, request.request_id, request.tool, self._recordings.secrets)
        fixture = load(_decision_file(place, request.tool, asked), DecisionFixture)
        if fixture is None:
            what = request.needs
            msg = (
                f"no {what} is recorded for this call of {request.tool} "
                f"(recording {place.name!r}, request {asked.digest[:12]}); {AGAIN}"
            )
            raise FixtureMissingError(msg)
        fixture = DecisionFixture.model_validate(asked.numbers.show(fixture.model_dump(mode="json")))
        # The approval is for the call as it is now: a replay has masks in place of masked arguments.
        receipt = replace(fixture.decision, digest=request.digest, request_id=request.request_id)
        return ToolOutcome(
            call_id=request.request_id,
            preview=fixture.content,
            error=fixture.error,
            recorded=False,
            decided=receipt,
        )


def _tools_file(place: Path, turn: int) -> Path:
    return place / "mcp" / f"{turn}.json"


def _decision_file(place: Path, tool: str, asked: Asked) -> Path:
    return place / "people" / tool / tool_file(asked)
