"""Questions to people and approvals: what a turn asks for, what somebody decides, and the rules that ask or do not."""

import hashlib
import json
from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Annotated, Literal, TypeVar, cast

from pydantic import AfterValidator, ConfigDict, Field, model_validator
from pydantic_core import from_json

from perdure.contracts.files import refuse_files
from perdure.contracts.values import Authored, Items, JsonValue, Value, is_like

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
"""Longest time that an approval may be waited for; beyond it the calendar ends."""

Need = Literal["answer", "approval"]
"""What a tool call needs of a person: its result, or the permission to run."""

Interactive = Literal["wait", "stop", "refuse"]
"""What a turn does that needs a person: waits for one, ends with ``waiting_for_input``, or refuses the call."""

Verdict = Literal["allow", "deny", "ask"]
"""What a rule says of a tool call."""

Decision = Literal["answered", "approved", "denied", "expired"]
"""What became of an input request; ``expired`` is nobody's."""


_WILD = frozenset("*?")


class ApprovalRule(Authored):
    """What holds for some tool calls.

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
        """Whether it is about any tool that looks like its name."""
        return not _WILD.isdisjoint(self.tool)

    def matches(self, tool: str) -> bool:
        """Whether the rule is about the tool."""
        return is_like(tool, self.tool)


class ApprovalPolicy(Authored):
    """Which tool calls need an approval. The first rule that fits a call decides.

    A call that no rule fits needs one if its tool says ``requires_approval``.

    Attributes:
        expires: How long an approval is waited for; then the call is refused. None waits for ever.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_timedelta="float")

    rules: Items[ApprovalRule] = ()
    expires: timedelta | None = Field(default=None, gt=timedelta(0), le=LONGEST_EXPIRY)

    def idle(self, tools: Collection[str]) -> tuple[ApprovalRule, ...]:
        """The rules that are about none of these tools."""
        return tuple(rule for rule in self.rules if not any(map(rule.matches, tools)))


class InputRequest(Value):
    """What a turn asks a person for. Its id is that of the tool call that asks.

    Attributes:
        needs: ``answer``: the answer becomes the call's result. ``approval``: the call runs once it is approved.
        arguments: With masked values, for people. Of long ones, head and tail.
        question: Of a question: its text.
        options: If there are any, the answer has to be one of them.
        digest: Of tool and arguments, without what is masked: an approval that names it holds for exactly this call.
        expires_at: Until when an approval can be given.
    """

    request_id: str
    needs: Need
    tool: str
    arguments: str = "{}"
    question: str = ""
    options: tuple[str, ...] = ()
    digest: str = ""
    expires_at: datetime | None = None


class InputReceipt(Value):
    """What was decided about an input request: the result of the updates, and kept with the call's result.

    Attributes:
        by: Who decided, in the words of whoever sent it.
        digest: Of an approval: what was approved.
    """

    request_id: str
    decision: Decision
    by: str = ""
    at: datetime
    digest: str = ""


class OpenRequest(InputRequest):
    """An input request that nobody has decided about yet, with the turn that waits for it.

    Attributes:
        turn: The turn that waits, or that has stopped for it.
        agent: That turn's.
        asked_at: Since when it waits.
    """

    session: str
    turn: int
    agent: str
    asked_at: datetime


class DecidedRequest(InputReceipt):
    """A receipt with the name of the tool whose call it is about."""

    tool: str


class AskPeople(Value):
    """The input of the activity ``ask``: the requests that the turn is about to wait for, or what was decided.

    Attributes:
        store: The id of the store that the turn lives in.
        decided: Decisions that no other activity is about to write: the log has them before the calls run.
    """

    session: str
    turn: int
    step: int
    requests: tuple[InputRequest, ...] = ()
    store: str = ""
    decided: tuple[DecidedRequest, ...] = ()


def _is_deeper(value: JsonValue, levels: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels == 0 or any(_is_deeper(one, levels - 1) for one in inner)


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
"""What a person answers: text, or any JSON of at most 32 KiB."""

Reason = Annotated[str, Field(max_length=1_000)]
"""Why somebody denies a request; the model reads it."""


class Reply(Value):
    """What a person says to an input request. Of a session that stopped for it, it starts the next turn.

    Attributes:
        value: The answer, if that is the decision.
        digest: Of an approval: what it is for. Empty is what the request shows.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    request: str = Field(min_length=1, max_length=200)
    decision: Literal["answered", "approved", "denied"]
    value: Answer = None
    by: str = Field(default="", max_length=200)
    reason: Reason = ""
    digest: str = Field(default="", max_length=100)


class AnswerRequest(Value):
    """The input of the update ``answer``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    request: str = Field(min_length=1, max_length=200)
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


class ApproveRequest(Value):
    """The input of the update ``approve``; with a ``digest``, it holds for the arguments that it was made of only."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    request: str = Field(min_length=1, max_length=200)
    by: str = Field(min_length=1, max_length=200)
    digest: str = Field(default="", max_length=100)

    def reply(self) -> Reply:
        """The same as a reply."""
        return Reply(request=self.request, decision="approved", by=self.by, digest=self.digest)


class DenyRequest(Value):
    """The input of the update ``deny``: of an approval, or of a question that nobody is going to answer."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    request: str = Field(min_length=1, max_length=200)
    by: str = Field(min_length=1, max_length=200)
    reason: Reason = ""

    def reply(self) -> Reply:
        """The same as a reply."""
        return Reply(request=self.request, decision="denied", by=self.by, reason=self.reason)


class Settled(Value):
    """A reply that was taken: its receipt, and what is compared with another one to the same request."""

    receipt: InputReceipt
    said: str


def fingerprint_of(reply: Reply) -> str:
    """What makes two replies to a request the same: the decision and the answer; 32 hexadecimal digits."""
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
