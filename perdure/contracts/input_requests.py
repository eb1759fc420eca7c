"""Questions, approvals and calls that the caller runs: what a turn asks for, what is replied, and rules that ask.

Long, because each kind of reply says for itself what it takes and refuses.
"""

import hashlib
import json
import operator
from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Annotated, Literal, Self, TypeVar, cast

from pydantic import AfterValidator, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError, from_json

from perdure.contracts.files import refuse_files
from perdure.contracts.sends import SendRequest
from perdure.contracts.standing_approvals import AlwaysScope, Reason, StandingTerms, Until, check_always
from perdure.contracts.tool_choice import ToolChoice
from perdure.contracts.values import Authored, Items, JsonValue, PublicValue, Value, find_repeated, is_like, size_of

T = TypeVar("T")

MAX_ANSWER_BYTES = 32 * 1024
"""Longest answer of a person, as JSON in UTF-8; it travels in Temporal payloads."""

DEEPEST_ANSWER = 64
"""Most levels of an answer that is JSON."""

MAX_WAITING_BYTES = 512 * 1024
"""Size of all messages or replies that wait at a running turn, in UTF-8; one payload holds them when a turn rotates."""

MAX_OPTIONS = 20
"""Most options of a question."""

MAX_OPTION_CHARACTERS = 200
"""Longest option of a question."""

LONGEST_EXPIRY = timedelta(days=36_500)
"""Longest wait for an approval that the calendar holds."""

Need = Literal["answer", "approval", "result"]
"""Need of a tool call: a person's answer, a person's permission to run, or the result from the caller who runs it."""

NEEDED: dict[Need, str] = {"answer": "an answer", "approval": "an approval", "result": "a result"}
"""Words for what a request waits for."""

REPLY_VERBS: dict[Need, str] = {"answer": "answer", "approval": "approve", "result": "submit"}
"""Verbs of the command line that reply to it."""

Interactive = Literal["wait", "stop", "refuse"]
"""Behaviour of a turn that needs a person: it waits, ends with ``waiting_for_input``, or refuses the call."""

Verdict = Literal["allow", "deny", "ask"]
"""Verdict of a rule about a tool call."""

Decision = Literal["answered", "approved", "denied", "expired", "returned", "failed"]
"""Decision about an input request; ``expired`` is nobody's, ``returned`` and ``failed`` are results of the caller."""


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
        expires: Longest wait for an approval; then the call is refused. None means no limit.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_timedelta="float")

    rules: Items[ApprovalRule] = ()
    expires: timedelta | None = Field(default=None, gt=timedelta(0), le=LONGEST_EXPIRY)

    def idle_rules_of(self, tools: Collection[str]) -> tuple[ApprovalRule, ...]:
        """The rules that match none of these tools."""
        return tuple(rule for rule in self.rules if not any(map(rule.matches, tools)))


def request_id_of(call_id: str, number: int) -> str:
    """The id of an input request that asks a question of the call's MCP server, numbered from 1.

    The request of the call itself, for example for an approval, has the id of the call.
    """
    return f"{call_id}~{number}"


def call_id_of(request_id: str) -> str:
    """The id of the call that an input request belongs to."""
    return request_id.partition("~")[0]


class InputRequest(Value):
    """A turn's request to a person; its id is the id of the tool call that asks, see :func:`request_id_of`.

    Attributes:
        needs: ``answer``: the answer becomes the call's result. ``approval``: the call runs once it is approved.
            ``result``: the caller runs the call, and sends its result.
        arguments: The masked arguments, for people; head and tail of long ones. For a result: all, as JSON.
        question: For a question: its text.
        options: Answers that the question allows; empty for any answer.
        form: For a question of an MCP server: the JSON schema that the answer has to fit.
        digest: Digest of tool and arguments, masked values left out; an approval with the digest is for this call only.
        expires_at: Time until which an approval or a result can be given.
    """

    request_id: str
    needs: Need
    tool: str
    arguments: str = "{}"
    question: str = ""
    options: tuple[str, ...] = ()
    form: dict[str, JsonValue] | None = Field(default=None, exclude_if=lambda form: form is None)
    digest: str = ""
    expires_at: datetime | None = None


class InputReceipt(PublicValue):
    """A decision about an input request: the result of the updates, kept with the call's result.

    Attributes:
        by: The person who decided, as the sender names them.
        digest: For an approval: digest of the approved call.
        always: For an approval that stands for further calls: which.
        standing: Id of the standing approval that let the call through; then ``by`` and ``at`` are of that one.
    """

    request_id: str
    decision: Decision
    by: str = ""
    at: datetime
    digest: str = ""
    always: StandingTerms | None = None
    standing: str = ""


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
        stops: Whether the turn ends with the requests, so that a reply starts the next one.
    """

    session: str
    turn: int
    step: int
    requests: tuple[InputRequest, ...] = ()
    store: str = ""
    decided: tuple[DecidedRequest, ...] = ()
    trace: str = ""
    stops: bool = Field(default=False, exclude_if=operator.not_)


def _is_deeper(value: JsonValue, levels: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels == 0 or any(_is_deeper(part, levels - 1) for part in inner)


def _can_be_carried(value: JsonValue) -> JsonValue:
    if _is_deeper(value, DEEPEST_ANSWER):
        msg = f"is nested more than {DEEPEST_ANSWER} deep"
        raise ValueError(msg)
    try:
        size = len(json.dumps(value, ensure_ascii=False, allow_nan=False).encode())
    except UnicodeEncodeError:
        msg = "holds half a character, which no store can keep"
        raise ValueError(msg) from None
    except ValueError:
        msg = "has a number that is not finite or has too many digits; send it as a text"
        raise ValueError(msg) from None
    if size > MAX_ANSWER_BYTES:
        msg = f"is {size:,} bytes, the limit is {MAX_ANSWER_BYTES:,}; let the agent read large input with a tool"
        raise ValueError(msg)
    return value


def _text_can_be_carried(text: str) -> str:
    _can_be_carried(text)
    return text


Answer = Annotated[JsonValue, AfterValidator(_can_be_carried)]
"""Answer of a person: text, or any JSON of at most 32 KiB."""


class Reply(Value):
    """A person's reply to an input request. For a session that stopped at the request, a reply starts the next turn.

    Attributes:
        value: The answer for ``answered``, the result for ``returned``, the error's text for ``failed``.
        digest: For an approval or a result: digest of the call; empty is the call that the request shows.
        always: For an approval: the further calls that it stands for.
        tool_choice: For a result: what the model has to call from now on; None leaves that as it is.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    request: str = Field(min_length=1, max_length=200)
    decision: Literal["answered", "approved", "denied", "returned", "failed"]
    value: Answer = None
    by: str = Field(default="", max_length=200)
    reason: Reason = ""
    digest: str = Field(default="", max_length=100)
    always: StandingTerms | None = None
    tool_choice: ToolChoice | None = Field(default=None, exclude_if=lambda choice: choice is None)


def check_replies(replies: tuple[Reply, ...]) -> tuple[Reply, ...]:
    """Check that no request is replied to twice, and that the replies fit into one payload.

    Raises:
        ValueError: It is not so.
    """
    if twice := find_repeated(reply.request for reply in replies):
        msg = f"{twice} is replied to twice"
        raise ValueError(msg)
    size = size_of(replies)
    if size > MAX_WAITING_BYTES:
        msg = f"are {size:,} bytes together, the limit is {MAX_WAITING_BYTES:,}; give shorter ones"
        raise ValueError(msg)
    return replies


def receipt_of(reply: Reply, at: datetime, *, digest: str, arguments: str) -> InputReceipt:
    """The receipt of a reply that was taken, with the digest and the masked arguments of its call."""
    return InputReceipt(
        request_id=reply.request,
        decision=reply.decision,
        by=reply.by,
        at=at,
        digest=digest,
        always=reply.always and reply.always.of_call(arguments),
    )


class ReplyRequest(Value):
    """Input of the updates that reply to an input request.

    Attributes:
        request: The id of the input request.
        message: A message that the model reads together with the reply. It has to say ``steer``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    request: str = Field(min_length=1, max_length=200)
    message: SendRequest | None = Field(default=None, exclude_if=lambda message: message is None)

    @field_validator("message")
    @classmethod
    def _is_steered(cls, message: SendRequest | None) -> SendRequest | None:
        if message is not None and message.when_busy != "steer":
            kind, text = "steered", 'is read together with the reply; write "when_busy": "steer" into it'
            raise PydanticCustomError(kind, text)
        return message


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
    """The input of the update ``approve``.

    Attributes:
        digest: The request's digest; an approval with it is for this call only, and for ``always``.
        always: The further calls of this session that the approval stands for; None: none.
        until: With ``always``: the time at which that ends.
        reason: With ``always``: why.
    """

    by: str = Field(min_length=1, max_length=200)
    digest: str = Field(default="", max_length=100)
    always: AlwaysScope | None = None
    until: Until | None = None
    reason: Reason = ""

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        check_always(self.always, self.until, self.reason)
        return self

    def reply(self) -> Reply:
        """The same as a reply."""
        stands = self.always and StandingTerms(scope=self.always, until=self.until, reason=self.reason)
        return Reply(request=self.request, decision="approved", by=self.by, digest=self.digest, always=stands)


class DenyRequest(ReplyRequest):
    """The input of the update ``deny``, for an approval, or for a question that nobody will answer."""

    by: str = Field(min_length=1, max_length=200)
    reason: Reason = ""

    def reply(self) -> Reply:
        """The same as a reply."""
        return Reply(request=self.request, decision="denied", by=self.by, reason=self.reason)


def check_outcome(given: Collection[str], error: str | None) -> None:
    """Refuse an outcome that has both a ``value`` and an ``error``, or neither, by the names of what was given.

    Raises:
        ValueError: It does.
    """
    if ("value" in given) == (error is not None):
        msg = "give a value or an error" + ("" if error is None else ", and not both")
        raise ValueError(msg)


class ResultRequest(ReplyRequest):
    """The input of the update ``submit_result``: what came of a call that the caller has run.

    Attributes:
        value: The result: text, or any JSON of at most 32 KiB.
        error: In place of a value: the text of an error, of at most 32 KiB; the model reads an error result.
        digest: The request's digest; a result with it is for this call only.
        tool_choice: What the model has to call from now on; None leaves that as it is.
    """

    value: Answer = None
    error: Annotated[str, Field(min_length=1), AfterValidator(_text_can_be_carried)] | None = None
    by: str = Field(default="", max_length=200)
    digest: str = Field(default="", max_length=100)
    tool_choice: ToolChoice | None = Field(default=None, exclude_if=lambda choice: choice is None)

    @model_validator(mode="before")
    @classmethod
    def _without_files(cls, fields: T) -> T:
        refuse_files(fields, "send them with 'perdure send SESSION PROMPT --steer --attach FILE', then the result")
        return fields

    @model_validator(mode="after")
    def _has_one(self) -> Self:
        check_outcome(self.model_fields_set, self.error)
        return self

    def reply(self) -> Reply:
        """The same as a reply."""
        returned = self.error is None
        return Reply(
            request=self.request,
            decision="returned" if returned else "failed",
            value=self.value if returned else self.error,
            by=self.by,
            digest=self.digest,
            tool_choice=self.tool_choice,
        )


ReplyBody = AnswerRequest | ApproveRequest | DenyRequest | ResultRequest
"""A reply, as the input of the update that gives it."""


class Settled(Value):
    """An accepted reply: its receipt, and a fingerprint to compare later replies to the same request with."""

    receipt: InputReceipt
    said: str


def fingerprint_of(reply: Reply) -> str:
    """Fingerprint of a reply: 32 hexadecimal digits over its decision and its answer."""
    return digest_of(reply.decision, reply.value)


def describe_other_terms(reply: Reply, receipt: InputReceipt) -> str | None:
    """Describe a second approval whose ``always`` is not that of the first; None if it is, or says nothing of it."""
    given = receipt.always
    if reply.always is None or (given is not None and reply.always.of_call("") == given.of_call("")):
        return None
    how = "for this call alone" if given is None else "to stand for further calls in another way"
    who = receipt.by or "somebody"
    return f"{reply.request!r} was approved by {who} at {receipt.at.isoformat()} {how}; that stands"


def readings(value: JsonValue) -> tuple[JsonValue, ...]:
    """Values that an answer may mean: itself, and for a text the JSON that it holds."""
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
