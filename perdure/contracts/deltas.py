"""Pieces of an answer while a model writes it: shown beside the event log, kept nowhere for good."""

from typing import Literal

from pydantic import Field

from perdure.contracts.values import Value

DeltaKind = Literal["text", "thinking", "tool_call"]


class Delta(Value):
    """A piece of an answer that is being written. The stored answer, which the event log has, replaces all of them.

    A reader keeps a text for each kind. A delta of a later step or of a higher ``attempt`` begins anew; one whose
    ``offset`` is not the length of what the reader has is left out, unless it is 0, which replaces what was there.

    Attributes:
        session: The session's id.
        turn: The turn's number.
        step: The step whose answer it is.
        attempt: Rises with each call of the model for the step: text of two attempts never belongs together.
        n: The number of the delta in its attempt, from 0.
        kind: ``text``; ``thinking``, if the agent has ``stream_thinking``; or ``tool_call``, a call that is written.
        offset: Characters of this kind before this delta; of a tool call its place in the answer, from 0.
        text: The piece, without secrets. Arguments of tool calls are not shown while they are written.
        tool: Name of the tool that is called; empty until it is known.
        characters: Size of the call's arguments so far.
    """

    session: str
    turn: int
    step: int
    attempt: int
    n: int
    kind: DeltaKind = "text"
    offset: int = Field(default=0, ge=0)
    text: str = ""
    tool: str = ""
    characters: int = Field(default=0, ge=0)

    @property
    def place(self) -> tuple[int, int, int, int]:
        """Place in the session: turn, step, attempt, number."""
        return self.turn, self.step, self.attempt, self.n


START = (0, 0, 0, -1)
"""The place before every delta of a session."""

Place = tuple[int, int, int, int]
"""Turn, step, attempt, and number in the attempt."""


class LiveAnswer:
    """Answer that is being written, as a reader has it by the rules that :class:`Delta` states.

    Attributes:
        text: The answer's text so far.
        thinking: The model's reasoning so far.
        calls: The tool calls so far: of each its tool's name and the size of its arguments.
    """

    def __init__(self) -> None:
        self._attempt = (0, 0, 0)
        self.clear()

    def clear(self) -> None:
        """Show nothing: the answer is stored, or its call has failed."""
        self.text = ""
        self.thinking = ""
        self.calls: dict[int, tuple[str, int]] = {}

    def add(self, delta: Delta) -> bool:
        """Take a delta; True if what was there before does not stand any more."""
        attempt = delta.place[:3]
        if attempt < self._attempt:
            return False
        begins_anew = attempt > self._attempt
        if begins_anew:
            self._attempt = attempt
            self.clear()
        if delta.kind == "tool_call":
            self.calls[delta.offset] = (delta.tool, delta.characters)
            return begins_anew
        before = self.text if delta.kind == "text" else self.thinking
        if delta.offset not in {0, len(before)}:
            before, whole = "", ""
        else:
            whole = (before if delta.offset else "") + delta.text
            begins_anew = begins_anew or (delta.offset == 0 and bool(before))
        if delta.kind == "text":
            self.text = whole
        else:
            self.thinking = whole
        return begins_anew or not whole
