"""A session or a turn as one value: messages, steps, events and usage; and the formats it is exported in."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Literal, Self, cast, get_args

from perdure.contracts.budgets import Usage
from perdure.contracts.events import (
    AnyEvent,
    CompactionEvent,
    Envelope,
    GenerationEnd,
    GenerationError,
    GenerationRetry,
    UnknownEvent,
    load_event,
)
from perdure.contracts.messages import SYSTEM_ROLES, AssistantMessage, Message, read_openai
from perdure.contracts.turns import TurnResult
from perdure.contracts.values import JsonValue, Value, replace
from perdure.llm.openai_format import WireMessage, openai_messages, order_messages

ModelCall = GenerationEnd | GenerationRetry | GenerationError | CompactionEvent
"""The events with the usage of a model call."""


class TrajectoryStep(Value):
    """A step: what it adds to the conversation, and what its model call used.

    Attributes:
        step: The number of the generation in its turn; 0 holds the prompt.
        messages: New results and messages, then the answer; empty for a compaction.
        cost_usd: US dollars; None if the price is unknown, or no model was called.
        session: The other session, for a step from before a fork; otherwise empty.
    """

    turn: int = 1
    step: int
    messages: tuple[Message, ...]
    finish_reason: str = ""
    usage: Usage = Usage()
    cost_usd: Decimal | None = None
    session: str = ""


class Trajectory(Value):
    """A session, or one turn of a session, as one value.

    Attributes:
        session: The session's id; empty for an imported conversation.
        turn: The turn's number, if this is one turn only.
        system_prompt: The agent's instructions in its last turn. They are no message of the conversation.
        tools: The declarations of the model's tools, in OpenAI's format.
        steps: The steps, in the order of the conversation.
        events: The event log, in order.
        metadata: How the last turn ended, and other facts.
        result: The result of the last turn; None while it runs, and for an imported conversation.
    """

    session: str = ""
    turn: int | None = None
    agent: str = ""
    model: str = ""
    system_prompt: str = ""
    tools: tuple[JsonValue, ...] = ()
    steps: tuple[TrajectoryStep, ...] = ()
    events: tuple[Envelope, ...] = ()
    metadata: dict[str, JsonValue] = {}
    result: TurnResult | None = None

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation in chat order: each result right after the answer with its call."""
        return tuple(order_messages([message for step in self.steps for message in step.messages]))

    @property
    def usage(self) -> Usage:
        """Tokens as the providers reported them, each model call once, also of unusable and withdrawn answers."""
        total = Usage()
        for call in (*self.steps, *self._without_a_step()):
            total = total.plus(call.usage)
        return total

    @property
    def cost_usd(self) -> Decimal:
        """US dollars, without calls of unknown price."""
        return sum((call.cost_usd or Decimal(0) for call in (*self.steps, *self._without_a_step())), Decimal(0))

    def _without_a_step(self) -> Iterator[ModelCall]:
        """Model calls of these turns without a step in the conversation, by the event log."""
        own = [step for step in self.steps if not step.session]
        turns = {step.turn for step in own}
        read = {(step.turn, step.step): step.messages for step in own if step.messages}
        for envelope in self.events:
            event, messages = envelope.event, read.get((envelope.turn, envelope.step), ())
            if envelope.turn in turns and isinstance(event, ModelCall) and not _is_of_a_step(event, messages):
                yield event

    def to_dict(self) -> dict[str, JsonValue]:
        """The trajectory as plain JSON; :meth:`from_dict` reads it."""
        fields = self.model_dump(mode="json", exclude={"events"})
        return {**fields, "events": [event_line(envelope) for envelope in self.events]}

    @classmethod
    def from_dict(cls, data: Mapping[str, JsonValue]) -> Self:
        """The trajectory of :meth:`to_dict`. Events of types that this release does not know are kept as they are.

        Raises:
            pydantic.ValidationError: It is none.
        """
        events = data.get("events")
        lines = [read_event_line(line) for line in events if isinstance(line, dict)] if isinstance(events, list) else []
        return cls.model_validate({**data, "events": lines})

    def to_openai(self) -> list[WireMessage]:
        """The conversation as OpenAI's chat messages, the system prompt first."""
        return openai_messages(self.messages, self.system_prompt)

    @classmethod
    def from_openai(cls, messages: Sequence[JsonValue], *, agent: str = "", session: str = "") -> Self:
        """Import a conversation: a step for each answer, with the messages before it.

        Raises:
            ConversationError: The messages are no conversation; the error names the first that is wrong.
        """
        prompt, read = read_openai(messages)
        steps: list[TrajectoryStep] = []
        new: list[Message] = []
        for message in read:
            new.append(message)
            if isinstance(message, AssistantMessage):
                steps.append(TrajectoryStep(step=len(steps) + 1, messages=tuple(new)))
                new = []
        if new:
            steps.append(TrajectoryStep(step=len(steps) + 1, messages=tuple(new)))
        return cls(session=session, agent=agent, system_prompt=prompt, steps=tuple(steps))

    def to_record(self, metadata: Mapping[str, JsonValue] | None = None) -> dict[str, JsonValue]:
        """A record of a JSONL file for training: messages with the system prompt once, tools, metadata."""
        about: dict[str, JsonValue] = {"session": self.session, "agent": self.agent, "model": self.model}
        return {
            "messages": [*self.to_openai()],
            "tools": [*self.tools],
            "metadata": {**about, **self.metadata, **(metadata or {})},
        }


def _is_of_a_step(event: ModelCall, messages: Sequence[Message]) -> bool:
    """Whether a step with these messages already has the usage of the call."""
    answered = any(isinstance(message, AssistantMessage) for message in messages)
    if isinstance(event, GenerationEnd):
        return answered
    if isinstance(event, GenerationRetry):  # or the model was told of it, in a step
        return bool(messages) and not answered and not event.compaction
    return isinstance(event, CompactionEvent) and event.compaction_status != "failed"


def event_to_dict(event: AnyEvent) -> dict[str, JsonValue]:
    """An event as plain JSON, with its ``type``; ``load_event`` reads it."""
    return dict(event.body) if isinstance(event, UnknownEvent) else event.model_dump(mode="json")


def event_line(envelope: Envelope) -> dict[str, JsonValue]:
    """An envelope as plain JSON; :func:`read_event_line` reads it."""
    about = envelope.model_dump(mode="json", exclude={"event"})
    return {**about, "event": event_to_dict(envelope.event)}


def read_event_line(line: Mapping[str, JsonValue]) -> Envelope:
    """The event of :func:`event_line`; an unknown type loads as ``UnknownEvent``.

    Raises:
        pydantic.ValidationError: It is none.
    """
    body = line.get("event")
    loaded = load_event(body if isinstance(body, dict) else {})
    about = Envelope.model_validate({**line, "event": UnknownEvent(name="", body={})})
    return replace(about, event=loaded)


DatasetFormat = Literal["messages", "chat", "turns"]
"""``messages``: a row for each conversation. ``chat``: the same with roles and texts only, as TRL takes it. ``turns``:
a row for each answer, with the messages before it."""

FORMATS: tuple[DatasetFormat, ...] = get_args(DatasetFormat)

Record = Mapping[str, JsonValue]
"""Messages, tools and metadata of one conversation."""


def rows(records: Iterable[Record], form: str) -> Iterator[dict[str, JsonValue]]:
    """The rows of the records in a format.

    Raises:
        ValueError: There is no such format.
    """
    makers = {"messages": _messages, "chat": _chat, "turns": _turns}
    make = makers.get(form)
    if make is None:
        msg = f"there is no dataset format {form!r}; the formats are {', '.join(FORMATS)}"
        raise ValueError(msg)
    return (row for record in records for row in make(record))


def _messages_of(record: Record) -> list[dict[str, JsonValue]]:
    return cast("list[dict[str, JsonValue]]", record["messages"])


def _describe_record(record: Record) -> dict[str, JsonValue]:
    return cast("dict[str, JsonValue]", record.get("metadata") or {})


def _messages(record: Record) -> Iterator[dict[str, JsonValue]]:
    yield {**_describe_record(record), "messages": record["messages"], "tools": record.get("tools") or []}


def _chat(record: Record) -> Iterator[dict[str, JsonValue]]:
    said: list[JsonValue] = [
        {"role": message["role"], "content": message.get("content") or ""} for message in _messages_of(record)
    ]
    yield {**_describe_record(record), "conversation": said}


def _turns(record: Record) -> Iterator[dict[str, JsonValue]]:
    system: JsonValue = None
    history: list[JsonValue] = []
    for message in _messages_of(record):
        if message["role"] in SYSTEM_ROLES:
            system = message.get("content")
            continue
        if message["role"] == "assistant":
            calls = message.get("tool_calls")
            answer: dict[str, JsonValue] = {"response": message.get("content") or "", "tool_calls": calls}
            yield {**_describe_record(record), "system": system, "history": [*history], **answer}
        history.append(message)
