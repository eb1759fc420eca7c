"""The fold of this door: the events of one turn, and the pieces of answers between them, as A2A's updates of a task.

It is pure: the same log gives the same task, whoever reads it. A reader gets the task as it is, then its updates; each
says in its metadata behind which event of the log it comes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from perdure.contracts import events as log
from perdure.contracts.a2a import RESUMABLE, STATES, TaskId, TaskState
from perdure.contracts.deltas import Delta, LiveAnswer
from perdure.contracts.errors import ErrorDetail
from perdure.contracts.events import AnyEvent, Envelope
from perdure.contracts.files import FilePart, ToolFile
from perdure.contracts.input_requests import DecidedRequest, InputRequest
from perdure.contracts.turns import MAX_OUTPUT_CHARACTERS, StopReason
from perdure.contracts.values import replace
from perdure.gateway.doors.a2a.objects import (
    Object,
    artifact_update,
    data_part,
    file_parts,
    message_of,
    request_parts,
    status_of,
    status_update,
    task_of,
    text_part,
)


@dataclass
class _Answer:
    """The answer of the step that runs.

    Attributes:
        shown: What a reader has of it.
        stale: Attempts up to this one have failed: what comes late of them is not shown.
    """

    step: int
    tries: int = 1
    shown: str = ""
    attempt: int = 0
    stale: int = 0

    @property
    def artifact(self) -> str:
        """The artifact's id."""
        return f"answer-{self.step}-{self.tries}"


class TaskFold:
    """The task that a turn is.

    Args:
        task: Its place.
        asked_as: The id of the message that began the turn.
        address: The gateway's, for the addresses of files; they begin with its path if it is empty.

    Attributes:
        state: The task's state.
        asked: Open requests, by their ids.
        decided: Decisions about requests, by their ids.
        has_ended: Whether the turn has ended.
        has_stopped: Whether it ended for its requests: a reply begins the next turn.
        seq: Number of the last event that was taken.
    """

    def __init__(self, task: TaskId, asked_as: str | None = None, address: str = "") -> None:
        self.task = task
        self._address = address
        self._asked_as = asked_as
        self.state = TaskState.SUBMITTED
        self.asked: dict[str, InputRequest] = {}
        self.decided: dict[str, DecidedRequest] = {}
        self.has_ended = self.has_stopped = False
        self.seq = 0
        self._at: datetime | None = None
        self._message: Object | None = None
        self._artifacts: dict[str, Object] = {}
        self._history: list[Object] = []
        self._answered: dict[str, tuple[int, Object]] = {}
        self._metadata: Object = {}
        self._is_asking = False
        self._answer: _Answer | None = None
        self._live = LiveAnswer()
        self._text = ""
        self._beginning: tuple[log.GenerationContent, int] | None = None
        self._out: list[Object] = []

    @property
    def is_asking(self) -> bool:
        """Whether the last requests may not be all of their group: see :meth:`settle`."""
        return self._is_asking

    @property
    def is_interrupted(self) -> bool:
        """Whether the task waits for its client."""
        return self.state is TaskState.INPUT_REQUIRED

    def describe(self, history: int | None = None, *, artifacts: bool = True) -> Object:
        """The task as it is now, with so many of its last messages; None is all of them."""
        told = self._history if history is None else self._history[-history:] if history else []
        shown = [*self._artifacts.values()] if artifacts else None
        status = status_of(self.state, self._at, self._message)
        return task_of(self.task, status, artifacts=shown, history=told, metadata=self._metadata)

    def take(self, envelope: Envelope) -> list[Object]:
        """The updates of the next event of the log, and those of a group of requests that it ends."""
        if envelope.turn != self.task.turn or envelope.event.type == "heartbeat":
            return []
        event = envelope.event
        settled = [] if isinstance(event, log.UserInputRequired) else self.settle()
        self._out, self.seq = [], envelope.seq
        self._fold(event, envelope)
        return [*settled, *self._out]

    def take_delta(self, delta: Delta) -> list[Object]:
        """The update of a piece of the answer that is being written."""
        answer = self._answer
        if answer is None or delta.kind != "text" or (delta.turn, delta.step) != (self.task.turn, answer.step):
            return []
        answer.attempt = max(answer.attempt, delta.attempt)
        if delta.attempt <= answer.stale:
            return []
        self._live.add(delta)
        whole = self._live.text
        if not whole.startswith(answer.shown) or len(whole) == len(answer.shown):
            return []  # of another attempt: the reader gets the stored answer
        self._out = []
        self._tell_answer(whole[len(answer.shown) :], append=bool(answer.shown), last=False)
        answer.shown = whole
        return self._out

    def settle(self) -> list[Object]:
        """The update that says what the task waits for, where the last requests so far are all of their group."""
        if not self._is_asking:
            return []
        self._out, self._is_asking = [], False
        message = message_of(self.task, f"asked-{self.seq}", "AGENT", request_parts(self.asked.values()))
        self._history.append(message)
        self._enter(TaskState.INPUT_REQUIRED, self._at, message)
        return self._out

    def close(self, state: TaskState, at: datetime | None, text: str, code: str) -> list[Object]:
        """The update of an end that the log does not have: a worker refused the turn, or Temporal has ended it."""
        if self.has_ended:
            return []
        self._out, self._is_asking = [], False
        self._drop_answer()
        self._end(state, at, text, {"reasonCode": code} if code else {})
        return self._out

    def go_on(self) -> None:
        """Note that a later turn has taken what this one stopped for."""
        if self.has_stopped:
            self.state, self._message = TaskState.COMPLETED, None

    # Events

    def _fold(self, event: AnyEvent, envelope: Envelope) -> None:
        match event:
            case log.AgentStart():
                self._begin(event, envelope.at)
            case log.UserMessageReceived() if not event.is_notice:
                parts = [text_part(event.content), *self._files(event.parts)]
                self._history.append(message_of(self.task, envelope.seq, "USER", parts))
            case log.GenerationStart():
                self._store_beginning()
                if self._answer is None or self._answer.step != envelope.step:
                    self._drop_answer()
                    self._answer, self._live = _Answer(envelope.step), LiveAnswer()
            case log.GenerationRetry() if not event.compaction:
                self._give_up()
            case log.GenerationContent():
                self._take_answer(event, envelope.step)
            case log.GenerationError():
                self._beginning = None
                self._drop_answer()
            case log.ToolStart():
                self._tell_call("tool_start", event, {"arguments": event.arguments})
            case log.DelegateStart():
                self._tell_call("delegate_start", event, {"agent": event.agent})
            case log.ToolEnd():
                self._tell_call("tool_end", event, {"result": event.result, **_failure_of(event.error)})
                self._note_answer(event)
                self._tell_files(event)
            case log.ToolError():
                self._tell_call("tool_error", event, _failure_of(event.error))
            case log.UserInputRequired():
                self.asked[event.request_id] = event
                self._is_asking, self._at = True, envelope.at
            case log.UserInputReceived():
                self._receive(event, envelope.at)
            case log.AgentEnd():
                self._end_turn(event, envelope.at)
            case _:
                pass

    def _begin(self, event: log.AgentStart, at: datetime) -> None:
        parts = [*([text_part(event.prompt)] if event.prompt else []), *self._files(event.parts)]
        if parts:
            self._history.append(message_of(self.task, "prompt", "USER", parts, self._asked_as))
        self._enter(TaskState.WORKING, at)

    def _receive(self, event: log.UserInputReceived, at: datetime) -> None:
        """Take a decision about a request, which may be one that the turn before stopped for."""
        self.decided[event.request_id] = event
        said = data_part({"request": event.request_id, "decision": event.decision, "by": event.by})
        if event.decision == "answered":
            self._answered[event.request_id] = (len(self._history), said)
        self._history.append(message_of(self.task, self.seq, "USER", [said]))
        was_asked = self.asked.pop(event.request_id, None) is not None
        if was_asked and not self.asked:
            self._enter(TaskState.WORKING, at)

    def _note_answer(self, event: log.ToolEnd) -> None:
        """Have the history say what a person answered: the log has it as the result of the call that asked."""
        answered = self._answered.pop(event.call_id, None)
        if answered is not None and event.error is None:
            place, said = answered
            self._history[place] = {**self._history[place], "parts": [said, text_part(event.result)]}

    def _files(self, files: Iterable[FilePart | ToolFile]) -> list[Object]:
        return file_parts(self.task.session, files, self._address)

    def _tell_files(self, event: log.ToolEnd) -> None:
        """The artifact of a call's images and files."""
        if event.attachments:
            name, parts = f"files-{event.call_id}", self._files(event.attachments)
            self._artifacts[name] = {"artifactId": name, "name": event.tool, "parts": [*parts]}
            self._tell_artifact(self._artifacts[name], append=False, last=True)

    def _end_turn(self, event: log.AgentEnd, at: datetime) -> None:
        self._store_beginning(event.output)
        self._drop_answer()
        self._metadata = {"stopReason": event.stop_reason.value, "steps": event.steps}
        if event.reason_code:
            self._metadata["reasonCode"] = event.reason_code
        if event.stop_reason is StopReason.WAITING_FOR_INPUT:  # what it waits for is told already
            self.has_ended = self.has_stopped = True
            return
        if event.stop_reason is StopReason.FINISHED:
            self._tell_output(event)
        if event.stop_reason in RESUMABLE:
            self._metadata["resumable"] = True
        self._end(STATES.get(event.stop_reason, TaskState.FAILED), at, event.error or "", self._metadata)

    def _tell_output(self, event: log.AgentEnd) -> None:
        """Artifacts of an output that no answer of the model is, and of an output that is a value."""
        parts: list[Object] = []
        if event.output and event.output != self._text[:MAX_OUTPUT_CHARACTERS]:
            parts.append(text_part(event.output))
        if event.value is not None and event.value != event.output:
            parts.append(data_part(event.value))
        if parts:
            made: Object = {"artifactId": "output", "name": "output", "parts": [*parts]}
            self._artifacts["output"] = made
            self._tell_artifact(made, append=False, last=True)

    def _end(self, state: TaskState, at: datetime | None, text: str, metadata: Object) -> None:
        self._metadata, self.has_ended = metadata, True
        self.asked.clear()
        message = message_of(self.task, "end", "AGENT", [text_part(text)]) if text else None
        self._enter(state, at, message)

    # Answers

    def _take_answer(self, event: log.GenerationContent, step: int) -> None:
        if len(event.content) >= log.CONTENT_CHARACTERS and not event.tool_calls:
            self._beginning = event, step  # the end of the turn has more of it
        else:
            self._store_answer(event, step)

    def _store_beginning(self, output: str = "") -> None:
        """Store a long answer, of which its event has only the beginning, with as much as is known."""
        if self._beginning is None:
            return
        (event, step), self._beginning = self._beginning, None
        content = output if output.startswith(event.content) else event.content
        self._store_answer(replace(event, content=content), step)

    def _store_answer(self, event: log.GenerationContent, step: int) -> None:
        answer, self._text = self._answer or _Answer(step), event.content
        self._answer = answer
        if not event.content:
            self._drop_answer()
            return
        metadata: Object = {"step": step, **({"interim": True} if event.tool_calls else {})}
        goes_on = bool(answer.shown) and event.content.startswith(answer.shown)
        rest = event.content[len(answer.shown) :] if goes_on else event.content
        self._tell_answer(rest, append=goes_on, last=True, metadata=metadata)
        whole: Object = {"artifactId": answer.artifact, "name": "answer", "parts": [text_part(event.content)]}
        self._artifacts[answer.artifact] = {**whole, "metadata": metadata}
        self._answer = None

    def _give_up(self) -> None:
        """Drop the answer of a call that failed, which is sent again."""
        before = self._answer
        self._drop_answer()
        if before is not None:
            self._answer = _Answer(before.step, before.tries + 1, attempt=before.attempt, stale=before.attempt)
            self._live = LiveAnswer()

    def _drop_answer(self) -> None:
        """Close what a reader has of an answer that will never be stored."""
        if self._answer is not None and self._answer.shown:
            self._tell_answer("", append=True, last=True, metadata={"superseded": True})
        self._answer = None

    # The wire

    def _enter(self, state: TaskState, at: datetime | None, message: Object | None = None) -> None:
        self.state, self._at, self._message = state, at, message
        metadata: Object = {"seq": self.seq, **(self._metadata if self.has_ended else {})}
        self._out.append(status_update(self.task, status_of(state, at, message), metadata))

    def _tell_call(self, kind: str, event: log.CallEvent, more: Object) -> None:
        """Tell of a call by a message of the status, which stays as it is."""
        said: Object = {"event": kind, "call_id": event.call_id, "tool": event.tool, **more}
        message = message_of(self.task, self.seq, "AGENT", [data_part(said)])
        status = status_of(self.state, self._at, message)
        if self.state is TaskState.WORKING:
            self._out.append(status_update(self.task, status, {"seq": self.seq}))

    def _tell_answer(self, text: str, *, append: bool, last: bool, metadata: Object | None = None) -> None:
        artifact = "" if self._answer is None else self._answer.artifact
        piece: Object = {"artifactId": artifact, "name": "answer", "parts": [text_part(text)]}
        self._tell_artifact({**piece, **({"metadata": metadata} if metadata else {})}, append=append, last=last)

    def _tell_artifact(self, artifact: Object, *, append: bool, last: bool) -> None:
        self._out.append(artifact_update(self.task, artifact, {"seq": self.seq}, append=append, last=last))


def _failure_of(error: ErrorDetail | None) -> Object:
    return {} if error is None else {"error": {"code": error.code, "message": error.message}}


def fold_task(task: TaskId, envelopes: Iterable[Envelope], asked_as: str | None = None) -> TaskFold:
    """The fold of a turn whose log so far is read to its end."""
    fold = TaskFold(task, asked_as)
    for envelope in envelopes:
        fold.take(envelope)
    fold.settle()
    return fold


def is_last(update: Object, beyond: Sequence[str], fold: TaskFold) -> bool:
    """Whether a stream ends with the update: the task has ended, or waits for its client.

    Args:
        update: The update.
        beyond: Requests that have to be decided before the task is said to wait.
        fold: The fold behind the update.
    """
    if "statusUpdate" not in update:
        return False
    return fold.has_ended or (fold.is_interrupted and all(request in fold.decided for request in beyond))
