"""The tree of reason codes: what each failure is called, whether a retry can help, and what people read.

The codes are the failure types in the Temporal history, ``reason_code`` in results, and label values in metrics.
The table is data: ``llm.failures`` decides by it, the command line prints it, ``docs/errors.md`` is made from it.

Long, because the whole tree stands in one place.
"""

import json
import re
from collections.abc import Sequence
from enum import StrEnum

from perdure.contracts.values import Value


class ReasonCode(StrEnum):
    """A dotted name of a failure. Codes of the form ``exception.<Class>`` are made at run time."""

    LLM_RATE_LIMITED = "llm.rate_limited"
    LLM_NETWORK_ERROR = "llm.network_error"
    LLM_TIMEOUT = "llm.timeout"
    LLM_STREAM_CUT = "llm.stream_cut"
    LLM_EMPTY = "llm.empty_response"
    LLM_TRUNCATED = "llm.truncated"
    LLM_INVALID_RESPONSE = "llm.invalid_response"
    LLM_AUTH_ERROR = "llm.auth_error"
    LLM_REQUEST_ERROR = "llm.request_error"
    LLM_TOO_MANY_TOOLS = "llm.too_many_tools"
    LLM_QUOTA_EXHAUSTED = "llm.quota_exhausted"
    LLM_CONTEXT_OVERFLOW = "llm.context_overflow"
    LLM_CONTENT_FILTERED = "llm.content_filtered"
    LLM_REFUSED = "llm.refused"
    LLM_MISSING_KEY = "llm.missing_key"
    LLM_PARSE_ERROR = "llm.parse_error"
    LLM_SCHEMA_VIOLATION = "llm.schema_violation"
    LLM_FIXTURE_MISSING = "llm.fixture_missing"
    LLM_PROMPT_ASSEMBLY_ERROR = "llm.prompt_assembly_error"

    TOOL_UNKNOWN = "tool.unknown_tool"
    TOOL_INVALID_INPUT = "tool.invalid_input"
    TOOL_INVALID_OUTPUT = "tool.invalid_output"
    TOOL_TIMEOUT = "tool.timeout"
    TOOL_NETWORK_ERROR = "tool.network_error"
    TOOL_EXECUTION_ERROR = "tool.execution_error"
    TOOL_EFFECT_UNKNOWN = "tool.effect_unknown"
    TOOL_CANCELLED = "tool.cancelled"
    TOOL_DENIED = "tool.denied"
    TOOL_APPROVAL_EXPIRED = "tool.approval_expired"
    TOOL_FIXTURE_MISSING = "tool.fixture_missing"
    TOOL_STATE_LOST = "tool.state_lost"
    TOOL_DELEGATE_FAILED = "tool.delegate_failed"
    TOOL_MAX_TURNS_EXHAUSTED = "tool.max_turns_exhausted"

    BUDGET_EXHAUSTED = "budget.exhausted"
    BUDGET_COST = "budget.cost_exhausted"
    BUDGET_LLM_CALLS = "budget.llm_calls_exhausted"
    BUDGET_TOOL_CALLS = "budget.tool_calls_exhausted"
    BUDGET_SECONDS = "budget.seconds_exhausted"
    BUDGET_BEHAVIOR_CALLS = "budget.behavior_calls_exhausted"
    BUDGET_EVENTS = "budget.events_exhausted"
    BUDGET_PATCHES = "budget.patches_exhausted"
    BUDGET_DEPTH = "budget.depth_exhausted"

    REQUEST_INVALID = "request.invalid"
    REQUEST_RESERVED_ID = "request.reserved_id"
    REQUEST_TOO_LARGE = "request.too_large"
    REQUEST_TOO_EARLY = "request.too_early"
    REQUEST_UNKNOWN_AGENT = "request.unknown_agent"
    REQUEST_UNKNOWN_SESSION = "request.unknown_session"
    REQUEST_TURN_MISMATCH = "request.turn_mismatch"
    REQUEST_SESSION_BUSY = "request.session_busy"
    REQUEST_BLOCKED = "request.blocked"

    RUNTIME_STORE_UNAVAILABLE = "runtime.store_unavailable"
    RUNTIME_STORE_REFUSED = "runtime.store_refused"
    RUNTIME_STORE_BEHIND = "runtime.store_behind"
    RUNTIME_STORE_MISMATCH = "runtime.store_mismatch"
    RUNTIME_TOOL_MISSING = "runtime.tool_missing"
    RUNTIME_MCP_UNAVAILABLE = "runtime.mcp_unavailable"
    RUNTIME_QUEUED = "runtime.queued"
    RUNTIME_ABORTED = "runtime.aborted"
    RUNTIME_TURN_ENDED = "runtime.turn_ended"
    RUNTIME_TURN_CLOSED = "runtime.turn_closed"
    RUNTIME_WORKER_LOST = "runtime.worker_lost"
    RUNTIME_WORKER_SHUTDOWN = "runtime.worker_shutdown"
    RUNTIME_PAYLOAD_TOO_LARGE = "runtime.payload_too_large"
    RUNTIME_HOOK_FAILED = "runtime.hook_failed"
    RUNTIME_FAILED_BY_HOOK = "runtime.failed_by_hook"
    RUNTIME_INTERNAL = "runtime.internal"

    SESSION_ERASED = "session.erased"

    WEBHOOK_UNDELIVERED = "webhook.undelivered"
    WEBHOOK_GONE = "webhook.gone"


NOTHING = "nothing"
"""Message to the model of a failure that ends the turn, or is retried without its knowing."""

TOLD = "nothing; under on_retry='tell_model' the error's class and text, as a user message"
"""Message to the model of a failed call that is sent again."""

CORRECTED = "with output_corrections what is wrong, as a user message"
"""Message to the model of an answer outside the output schema."""

RESULT = "the call's error result: code, class and text"
"""Message to the model of a failed tool call: with its next step, or in the next turn if the failure ended this one."""

HEADERS = "retry-after-ms or retry-after, or of its error's fields or words, if longer than the policy's wait"
"""Source of a provider's word on how long to wait: the headers of its error reply."""

NO_SOURCE = "none"


class Reason(Value):
    """Facts about one reason code.

    Attributes:
        transient: Whether the same call may succeed later; only then is it retried.
        text: What an operator reads: the cause, and behind a semicolon the next thing to do.
        model: What the model reads.
        retry_after: What can lengthen the wait before a retry.
        most_retries: Retries with which the failure is final, if the policy has more: they hardly ever help.
        reserved: Nothing raises the code yet.
    """

    transient: bool
    text: str
    model: str = NOTHING
    retry_after: str = NO_SOURCE
    most_retries: int | None = None
    reserved: bool = False

    @property
    def cause(self) -> str:
        """Cause of the failure."""
        return self.text.partition("; ")[0]

    @property
    def advice(self) -> str:
        """The next thing to do."""
        return self.text.partition("; ")[2]


def _permanent(text: str) -> Reason:
    return Reason(transient=False, text=text)


def _transient(text: str, model: str = NOTHING) -> Reason:
    return Reason(transient=True, text=text, model=model)


def _reply_reason_of(text: str) -> Reason:
    return Reason(transient=True, text=text, model=TOLD, retry_after=HEADERS)


def _answer(text: str) -> Reason:
    return Reason(transient=False, text=text, model=CORRECTED)


def _tool(text: str) -> Reason:
    return Reason(transient=False, text=text, model=RESULT)


RESUME = "go on with 'perdure resume SESSION'"
"""Advice for when the cause has passed; messages of a turn name its session."""

_FALLBACK = "give the agent fallback_models"

REASONS: dict[ReasonCode, Reason] = {
    ReasonCode.LLM_RATE_LIMITED: _reply_reason_of(
        f"the provider limits the rate of requests; {RESUME}, raise the limit with the provider, or {_FALLBACK}"
    ),
    ReasonCode.LLM_NETWORK_ERROR: _reply_reason_of(
        "the provider could not be reached or failed on its side; look at its status page and at api_base, then "
        f"{RESUME}, or {_FALLBACK}"
    ),
    ReasonCode.LLM_TIMEOUT: _reply_reason_of(
        f"the provider did not answer in time; raise generation_timeout if its answers are long, or idle_timeout "
        f"if it is silent while it thinks, then {RESUME}, or {_FALLBACK}"
    ),
    ReasonCode.LLM_STREAM_CUT: _transient(
        "the answer's stream ended before the answer did: it has no finish reason; "
        f"{RESUME}, or set stream='off' if the provider cannot stream",
        TOLD,
    ),
    ReasonCode.LLM_EMPTY: _transient(
        f"the model answered with neither text nor a tool call; {RESUME}, or choose another model", TOLD
    ),
    ReasonCode.LLM_TRUNCATED: _transient(
        "the answer was cut off at its longest allowed length; raise max_tokens in the agent's generate_params",
        TOLD,
    ),
    ReasonCode.LLM_INVALID_RESPONSE: Reason(
        transient=True,
        text="the provider's reply has not the shape of an answer; see that api_base is the address of the model's own "
        "API, or choose another model",
        model=TOLD,
        most_retries=1,
    ),
    ReasonCode.LLM_AUTH_ERROR: _permanent(
        "the provider refused the key or what it may use; set a valid one in the worker's environment and start it "
        "again, or have the provider allow the model"
    ),
    ReasonCode.LLM_REQUEST_ERROR: _permanent(
        "the provider refused the request as invalid; correct what it names: the model, api_base, generate_params or a "
        "tool's schema, or go on from before the message that it names with "
        "'perdure resume SESSION PROMPT --at STEP'"
    ),
    ReasonCode.LLM_TOO_MANY_TOOLS: _permanent(
        "the provider refuses so many tools; leave the agent's tool_mode at auto, or give it fewer"
    ),
    ReasonCode.LLM_QUOTA_EXHAUSTED: _permanent(
        "the account's quota or credit is used up; raise it with the provider, or choose another model"
    ),
    ReasonCode.LLM_CONTEXT_OVERFLOW: _permanent(
        "the conversation is longer than the model's context window, and no more of it can be summarised; "
        "choose a model with a larger window, or go on from before what is too long with "
        "'perdure resume SESSION PROMPT --at STEP', or while a turn runs with "
        "'perdure send SESSION PROMPT --when-busy rollback'"
    ),
    ReasonCode.LLM_CONTENT_FILTERED: _permanent(
        "the provider's content policy refused the request or the answer; change what is asked, or give the agent a "
        "fallback with also_on=['llm.content_filtered']"
    ),
    ReasonCode.LLM_REFUSED: _permanent(
        "the model refused to answer; change what is asked, or give the agent a fallback with also_on=['llm.refused']"
    ),
    ReasonCode.LLM_MISSING_KEY: _permanent(
        "a key that the call needs is not set in the worker's environment; set it and start the worker again"
    ),
    ReasonCode.LLM_PARSE_ERROR: _answer(
        "the answer is not the JSON that the agent's output asks for; raise output_corrections, or simplify the output"
    ),
    ReasonCode.LLM_SCHEMA_VIOLATION: _answer(
        "the answer does not fit the schema of the agent's output; raise output_corrections, or simplify the schema"
    ),
    ReasonCode.LLM_FIXTURE_MISSING: _permanent(
        "no recorded answer fits this request; record the run again, or undo what changed its prompt"
    ),
    ReasonCode.LLM_PROMPT_ASSEMBLY_ERROR: _permanent(
        "the request for the model could not be put together; correct the agent's generate_params or its tools"
    ),
    ReasonCode.TOOL_UNKNOWN: _tool(
        "the model asked for a tool that the agent does not have; name the tools in the instructions, or add it"
    ),
    ReasonCode.TOOL_INVALID_INPUT: _tool(
        "the arguments do not fit the tool's schema; describe its parameters more clearly"
    ),
    ReasonCode.TOOL_INVALID_OUTPUT: _tool(
        "the tool returned a value that does not fit its annotation, or that has no JSON form; return what it promises"
    ),
    ReasonCode.TOOL_TIMEOUT: _tool("the tool ran longer than its time-out; raise the tool's timeout, or do less"),
    ReasonCode.TOOL_NETWORK_ERROR: _tool(
        "the tool could not reach what it needs over the network; look at the address and at what answers there"
    ),
    ReasonCode.TOOL_EXECUTION_ERROR: _tool("the tool raised an exception; the worker's log has its traceback"),
    ReasonCode.TOOL_EFFECT_UNKNOWN: _tool(
        "the worker was lost or stopped while the tool ran, so its effect is unknown; look at what it did before it "
        "runs again"
    ),
    ReasonCode.TOOL_CANCELLED: _tool(
        "the turn was cancelled while the tool ran, so its effect is unknown; look at what it did before it runs again"
    ),
    ReasonCode.TOOL_DENIED: _tool(
        "a rule of the agent or a person denied the tool call, so it did not run; change the agent's approvals if it "
        "should"
    ),
    ReasonCode.TOOL_APPROVAL_EXPIRED: _tool(
        "nobody approved the tool call in time, so it did not run; ask for it again, or raise the time for approvals"
    ),
    ReasonCode.TOOL_FIXTURE_MISSING: _tool(
        "no recorded result fits this tool call; record the run again, or undo what changed the call"
    ),
    ReasonCode.TOOL_STATE_LOST: _tool(
        "the worker that held the state of the tool's server is lost, and that state too, so the call's effect is "
        "unknown; look at what it did, and begin again with what the server had open"
    ),
    ReasonCode.TOOL_DELEGATE_FAILED: _tool("the delegate did not finish; its session says why"),
    ReasonCode.TOOL_MAX_TURNS_EXHAUSTED: _tool(
        f"max_tool_turns is used up, and the model has not finished; raise it, or {RESUME}"
    ),
    ReasonCode.BUDGET_EXHAUSTED: _permanent("a budget of the turn is used up; raise it with 'perdure extend SESSION'"),
    ReasonCode.BUDGET_COST: _permanent("the turn's cost budget is used up; raise budgets.cost_usd"),
    ReasonCode.BUDGET_LLM_CALLS: _permanent("the turn's budget of model calls is used up; raise budgets.llm_calls"),
    ReasonCode.BUDGET_TOOL_CALLS: _tool("the turn's budget of tool calls is used up; raise budgets.tool_calls"),
    ReasonCode.BUDGET_SECONDS: _permanent("the turn's time budget is used up; raise budgets.seconds"),
    ReasonCode.BUDGET_BEHAVIOR_CALLS: _tool(
        "the turn's budget of calls of delegates and hooks is used up; raise budgets.behavior_calls"
    ),
    ReasonCode.BUDGET_EVENTS: _tool("the turn's budget of answers and results is used up; raise budgets.events"),
    ReasonCode.BUDGET_PATCHES: _tool(
        "the turn's budget of changes to its session's state is used up; raise budgets.patches"
    ),
    ReasonCode.BUDGET_DEPTH: _tool("the turn may not have delegates so deep below it; raise budgets.depth"),
    ReasonCode.REQUEST_INVALID: _permanent(
        "the request does not have the documented shape; correct the field that the message names"
    ),
    ReasonCode.REQUEST_RESERVED_ID: _permanent(
        "ids of that form are perdure's own, and there is no such session; choose another id, or name none"
    ),
    ReasonCode.REQUEST_TOO_LARGE: _permanent(
        "the message is over the size limit; shorten it, or have a tool read the long part"
    ),
    ReasonCode.REQUEST_TOO_EARLY: _transient("the turn is about to ask this, or to stop for it; reply in a moment"),
    ReasonCode.REQUEST_UNKNOWN_AGENT: _permanent(
        "no worker that polls this task queue has an agent of that name; start one that has, or correct the name"
    ),
    ReasonCode.REQUEST_UNKNOWN_SESSION: _permanent(
        "there is no session of that id, and no agent was named; name an agent to begin it, or correct the id"
    ),
    ReasonCode.REQUEST_TURN_MISMATCH: _permanent(
        "the session is at another turn than the caller expected; read it again with 'perdure show SESSION'"
    ),
    ReasonCode.REQUEST_SESSION_BUSY: _transient(
        "a turn of the session runs, and the message is not to wait; send it when the turn has ended, or queue it"
    ),
    ReasonCode.REQUEST_BLOCKED: _permanent(
        "an operator has blocked new turns of this agent, tenant or model; send it again when the block is lifted with "
        "'perdure unblock ID'"
    ),
    ReasonCode.RUNTIME_STORE_UNAVAILABLE: _transient(
        "the transcript store cannot be reached, is locked or its disk is full; the turn waits until it can be used"
    ),
    ReasonCode.RUNTIME_STORE_REFUSED: _permanent(
        f"the transcript store refused a value it cannot hold; look at the worker's log, then {RESUME}"
    ),
    ReasonCode.RUNTIME_STORE_BEHIND: _permanent(
        "the transcript store has lost what the turn had written to it, as after a restore from an older copy; "
        "send the message again, and the session goes on from what the store has"
    ),
    ReasonCode.RUNTIME_STORE_MISMATCH: _transient(
        "this worker looks at another transcript store than the turn's; start a worker with the PERDURE_STORE_URL that "
        "the turn was opened with, for which it waits"
    ),
    ReasonCode.RUNTIME_TOOL_MISSING: _transient(
        "this worker lacks a tool, hook, delegate, MCP server or the agent of the turn, or has another version; the "
        "turn waits for a worker that has it: start one, or cancel the turn"
    ),
    ReasonCode.RUNTIME_MCP_UNAVAILABLE: _permanent(
        "an MCP server of the agent cannot be used, so no turn was opened; start it, or correct its address or login"
    ),
    ReasonCode.RUNTIME_QUEUED: _transient(
        "as many turns of the agent or tenant run as may; it opens when one of them ends, or raise the limit"
    ),
    ReasonCode.RUNTIME_ABORTED: _permanent(f"the operation was aborted by a cancel; {RESUME} if that was a mistake"),
    ReasonCode.RUNTIME_TURN_ENDED: _permanent("the turn has already ended; start a new one"),
    ReasonCode.RUNTIME_TURN_CLOSED: _permanent(
        f"the turn's workflow was terminated or timed out before it could end; {RESUME}"
    ),
    ReasonCode.RUNTIME_WORKER_LOST: _transient(
        f"the worker was lost while the activity ran; look at why it died, then {RESUME}"
    ),
    ReasonCode.RUNTIME_WORKER_SHUTDOWN: _transient(
        "the worker shut down and handed the work over; nothing is to be done while another one runs"
    ),
    ReasonCode.RUNTIME_PAYLOAD_TOO_LARGE: _permanent(
        "a value was too large for a Temporal payload; ask for less at once"
    ),
    ReasonCode.RUNTIME_HOOK_FAILED: _permanent(
        "a hook or a stop condition of the agent failed; the worker's log has its traceback"
    ),
    ReasonCode.RUNTIME_FAILED_BY_HOOK: _permanent(
        f"a hook of the agent ended the turn as failed; do what it asks for, then {RESUME}"
    ),
    ReasonCode.RUNTIME_INTERNAL: _permanent(
        "perdure's own code, a library's or an agent's module failed, and not the provider; the worker's log has the "
        "traceback: correct what the message names, or report it with the release of perdure"
    ),
    ReasonCode.SESSION_ERASED: _permanent(
        "the session was erased, and its id is never given again; begin another session, with another id"
    ),
    ReasonCode.WEBHOOK_UNDELIVERED: _transient(
        "the address of a webhook did not take a message; look at the receiver, then send it again with "
        "'perdure webhooks redrive ID'"
    ),
    ReasonCode.WEBHOOK_GONE: _permanent(
        "the webhook was removed, or its address wants nothing more (410), which pauses it; remove it, or unpause it"
    ),
}
"""One row for each code of :class:`ReasonCode`."""

CUSTOM_CODE = re.compile(r"llm\.[a-z][a-z0-9_]{0,59}")
"""Codes that the model provider of an agent's own module may raise beside those of the table."""


class PerdureError(Exception):
    """Base of what the client, the store and the settings raise; exported from ``perdure.client``."""


class KeyringError(PerdureError):
    """The keys that content is encrypted with cannot be used; the message names the key by its id, and the fix."""


class UnknownKeyError(KeyringError):
    """Content is encrypted with a key that this process does not have; with the key, the same call succeeds."""

    def __init__(self, key_id: str, known: Sequence[str] = ()) -> None:
        have = f"this process has {', '.join(known)}" if known else "this process has no keys"
        super().__init__(f"content is encrypted with the key {key_id!r}, and {have}; add it to PERDURE_ENCRYPTION_KEYS")
        self.key_id = key_id


class DecryptionError(KeyringError):
    """A key does not open what carries its id: other bytes under the same id, or damaged content."""

    def __init__(self, key_id: str) -> None:
        fix = "give the key that encrypted it the same id in PERDURE_ENCRYPTION_KEYS everywhere"
        super().__init__(f"the key {key_id!r} of this process does not open content with this id; {fix}")
        self.key_id = key_id


class ModelError(Exception):
    """A failure of a model provider of one's own, such as a ``litellm.CustomLLM``: the turn ends with this code.

    Args:
        code: ``llm.`` and a name of your own, or a code of the table, which then says itself whether it is retried.
        message: What happened, in a sentence.
        transient: Whether the same call may succeed later, and is retried.

    Raises:
        ValueError: The code does not have that form.
    """

    def __init__(self, code: str, message: str, *, transient: bool = False) -> None:
        if not CUSTOM_CODE.fullmatch(code):
            msg = f"{code!r} is no code for a model's failure; write llm. and a lower-case name, such as llm.moderated"
            raise ValueError(msg)
        super().__init__(message)
        self.reason_code = code
        self.transient = transient


def code_of_kind(kind: str) -> str:
    """The code of a failure by its type in Temporal: reason codes as they are, a class as ``exception.<Class>``."""
    has_code = kind in REASONS or kind.startswith("exception.") or CUSTOM_CODE.fullmatch(kind)
    return kind if has_code else f"exception.{kind}"


class ErrorDetail(Value):
    """One failure as everything outside the failing activity sees it: redacted, bounded in size.

    Attributes:
        code: A reason code, or ``exception.<Class>``.
        title: Where it happened: ``generation``, a tool's name, ``agent`` or ``runtime``.
        message: One self-contained sentence of at most 2,000 characters.
        type: The class of the exception that was raised, as its library names it; an unknown model's is always
            ``NotFoundError``.
        exception: ``exception.<Class>`` of a plain exception, of a hook, a tool or a fault of code: a second code.
    """

    code: str
    title: str
    message: str
    type: str = ""
    exception: str | None = None

    @property
    def codes(self) -> tuple[str, ...]:
        """Every code that the failure is found by."""
        return (self.code,) if self.exception is None else (self.code, self.exception)

    def as_result(self, said: str = "") -> str:
        """Result of the call for the model: code, class and text, for which ``said`` may stand."""
        body = {"code": self.code, "type": self.type, "message": said or self.message}
        return json.dumps({"error": body}, ensure_ascii=False)
