"""Questions to people and approvals: what a turn asks for, what somebody decides, and the rules that ask or do not."""

import hashlib
import json
from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Annotated, Literal, TypeVar, cast

from pydantic import AfterValidator, ConfigDict, Field, model_validator
from pydantic_core import from_json

from perdure.contracts.files import refuse_files
from perdure.contracts.values import Authored, Items, JsonValue, PublicValue, Value, is_like

T = TypeVar("T")

MAX_ANSWER_BYTES = 32 * 1024
"""Longest answer of a person, as JSON in UTF-8; it travels in Temporal payloads."""

DEEPEST_ANSWER = 64
"""Most levels of an answer that is JSON."""

MAX_OPTIONS = 20
"""Most options of a question."""

MAX_OPTION_CHARACTERS = 200
"""Longest option of a question."""

LONGEST_EXPIRY = timedelta(days=36_500)
"""Longest wait for an approval that the calendar holds."""

Need = Literal["answer", "approval"]
"""Need of a tool call: its result from a person, or a person's permission to run."""

Interactive = Literal["wait", "stop", "refuse"]
"""Behaviour of a turn that needs a person: it waits, ends with ``waiting_for_input``, or refuses the call."""

Verdict = Literal["allow", "deny", "ask"]
"""Verdict of a rule about a tool call."""

Decision = Literal["answered", "approved", "denied", "expired"]
"""Decision about an input request; ``expired`` is nobody's."""


_WILD = frozenset("*?")


class ApprovalRule(Authored):
    """An approval rule for the calls of some tools.

    Attributes:
        tool: The tool's wire name, or a pattern with ``*`` and ``?``.
        arguments: A JSON schema that the arguments have to fit, as the model wrote them; None is all arguments.
        decision: ``allow`` runs the call, ``deny`` gives the model an error, ``ask`` waits for somebody's approval.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    tool: str = Field(min_length=1, max_length=100)
    arguments: dict[str, JsonValue] | None = None
    decision: Verdict

    @property
    def is_pattern(self) -> bool:
        """Whether the tool's name is a pattern."""
        return not _WILD.isdisjoint(self.tool)

    def matches(self, tool: str) -> bool:
        """Whether the rule is about the tool."""
        return is_like(tool, self.tool)


class ApprovalPolicy(Authored):
    """Which tool calls need an approval. The first rule that fits a call decides.

    A call that no rule fits needs one if its tool says ``requires_approval``.

    Attributes:
        expires: Longest wait for an approval; then the call is refused. None is no limit.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_timedelta="float")

    rules: Items[ApprovalRule] = ()
    expires: timedelta | None = Field(default=None, gt=timedelta(0), le=LONGEST_EXPIRY)

    def idle_rules_of(self, tools: Collection[str]) -> tuple[ApprovalRule, ...]:
        """The rules that match none of these tools."""
        return tuple(rule for rule in self.rules if not any(map(rule.matches, tools)))


class InputRequest(Value):
    """A turn's request to a person; its id is the id of the tool call that asks.

    Attributes:
        needs: ``answer``: the answer becomes the call's result. ``approval``: the call runs once it is approved.
        arguments: The masked arguments, for people; head and tail of long ones.
        question: For a question: its text.
        options: Answers that the question allows; empty for any answer.
        digest: Digest of tool and arguments, masked values left out; an approval with the digest is for this call only.
        expires_at: Time until which an approval can be given.
    """

    request_id: str
    needs: Need
    tool: str
    arguments: str = "{}"
    question: str = ""
    options: tuple[str, ...] = ()
    digest: str = ""
    expires_at: datetime | None = None


class InputReceipt(PublicValue):
    """A decision about an input request: the result of the updates, kept with the call's result.

    Attributes:
        by: The person who decided, as the sender names them.
        digest: For an approval: digest of the approved call.
    """

    request_id: str
    decision: Decision
    by: str = ""
    at: datetime
    digest: str = ""


class OpenRequest(InputRequest):
    """An undecided input request, with the turn that waits for it.

    Attributes:
        turn: Number of the turn that waits for a decision, or has stopped for one.
        agent: Agent of the turn.
        asked_at: Start of the wait.
    """

    session: str
    turn: int
    agent: str
    asked_at: datetime


class DecidedRequest(InputReceipt):
    """A receipt with the name of the called tool."""

    tool: str


class AskPeople(Value):
    """The input of the activity ``ask``: requests that the turn is about to wait for, or decisions about them.

    Attributes:
        store: The id of the store that the turn lives in.
        decided: Decisions that no other activity writes; the log gets them before the calls run.
        trace: The trace context of the turn's span; empty if the turn is not traced.
    """

    session: str
    turn: int
    step: int
    requests: tuple[InputRequest, ...] = ()
    store: str = ""
    decided: tuple[DecidedRequest, ...] = ()
    trace: str = ""


def _is_deeper(value: JsonValue, levels: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels == 0 or any(_is_deeper(part, levels - 1) for part in inner)


def _can_be_carried(value: JsonValue) -> JsonValue:
    if _is_deeper(value, DEEPEST_ANSWER):
        msg = f"is nested more than {DEEPEST_ANSWER} deep"
        raise ValueError(msg)
    try:
        size = len(json.dumps(value, ensure_ascii=False).encode())
    except UnicodeEncodeError:
        msg = "holds half a character, which no store can keep"
        raise ValueError(msg) from None
    if size > MAX_ANSWER_BYTES:
        msg = f"is {size:,} bytes, the limit is {MAX_ANSWER_BYTES:,}; let the agent read large input with a tool"
        raise ValueError(msg)
    return value


Answer = Annotated[JsonValue, AfterValidator(_can_be_carried)]
"""Answer of a person: text, or any JSON of at most 32 KiB."""

Reason = Annotated[str, Field(max_length=1_000)]
"""Reason of a denial; the model reads it."""


class Reply(Value):
    """A person's reply to an input request. For a session that stopped at the request, a reply starts the next turn.

    Attributes:
        value: The answer, for the decision ``answered``.
        digest: For an approval: digest of the approved call; empty approves the call that the request shows.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    request: str = Field(min_length=1, max_length=200)
    decision: Literal["answered", "approved", "denied"]
    value: Answer = None
    by: str = Field(default="", max_length=200)
    reason: Reason = ""
    digest: str = Field(default="", max_length=100)


class ReplyRequest(Value):
    """Input of the updates that reply to an input request; ``request`` is the id of the input request."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    request: str = Field(min_length=1, max_length=200)


class AnswerRequest(ReplyRequest):
    """The input of the update ``answer``."""

    value: Answer
    by: str = Field(default="", max_length=200)

    @model_validator(mode="before")
    @classmethod
    def _without_files(cls, fields: T) -> T:
        refuse_files(fields, "use 'perdure send SESSION PROMPT --steer --attach FILE', then answer")
        return fields

    def reply(self) -> Reply:
        """The same as a reply."""
        return Reply(request=self.request, decision="answered", value=self.value, by=self.by)


class ApproveRequest(ReplyRequest):
    """The input of the update ``approve``; with a ``digest``, it approves the digested call only."""

    by: str = Field(min_length=1, max_length=200)
    digest: str = Field(default="", max_length=100)

    def reply(self) -> Reply:
        """The same as a reply."""
        return Reply(request=self.request, decision="approved", by=self.by, digest=self.digest)


class DenyRequest(ReplyRequest):
    """The input of the update ``deny``, for an approval, or for a question that nobody will answer."""

    by: str = Field(min_length=1, max_length=200)
    reason: Reason = ""

    def reply(self) -> Reply:
        """The same as a reply."""
        return Reply(request=self.request, decision="denied", by=self.by, reason=self.reason)


class Settled(Value):
    """An accepted reply: its receipt, and a fingerprint to compare later replies to the same request with."""

    receipt: InputReceipt
    said: str


def fingerprint_of(reply: Reply) -> str:
    """Fingerprint of a reply: 32 hexadecimal digits over its decision and its answer."""
    return digest_of(reply.decision, reply.value)


def readings(value: JsonValue) -> tuple[JsonValue, ...]:
    """What an answer may mean: itself, and for a text the JSON that it holds."""
    if not isinstance(value, str):
        return (value,)
    try:
        return (value, cast("JsonValue", from_json(value, allow_inf_nan=False)))
    except ValueError:
        return (value,)


def digest_of(name: str, value: JsonValue) -> str:
    """A digest over a name and a value, 32 hexadecimal digits; the order of an object's keys does not matter."""
    text = json.dumps([name, value], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]
