"""The tree of reason codes: what each failure is called, whether a retry can help, and what people read.

The codes are the failure types in the Temporal history, ``reason_code`` in results, and label values in metrics.
The table is data: ``engine.failures`` decides by it, the command line prints it, ``docs/errors.md`` is made from it.
"""

import json
import re
from enum import StrEnum

from perdure.contracts.values import Value


class ReasonCode(StrEnum):
    """A dotted name of a failure. Codes of the form ``exception.<Class>`` are made at run time."""

    LLM_RATE_LIMITED = "llm.rate_limited"
    LLM_NETWORK_ERROR = "llm.network_error"
    LLM_TIMEOUT = "llm.timeout"
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

    BUDGET_COST = "budget.cost_exhausted"
    BUDGET_LLM_CALLS = "budget.llm_calls_exhausted"
    BUDGET_TOOL_CALLS = "budget.tool_calls_exhausted"
    BUDGET_SECONDS = "budget.seconds_exhausted"
    BUDGET_BEHAVIOR_CALLS = "budget.behavior_calls_exhausted"
    BUDGET_EVENTS = "budget.events_exhausted"
    BUDGET_PATCHES = "budget.patches_exhausted"
    BUDGET_DEPTH = "budget.depth_exhausted"

    REQUEST_INVALID = "request.invalid"
    REQUEST_TOO_LARGE = "request.too_large"
    REQUEST_TOO_EARLY = "request.too_early"
    REQUEST_UNKNOWN_AGENT = "request.unknown_agent"
    REQUEST_UNKNOWN_SESSION = "request.unknown_session"
    REQUEST_TURN_MISMATCH = "request.turn_mismatch"

    RUNTIME_STORE_UNAVAILABLE = "runtime.store_unavailable"
    RUNTIME_STORE_REFUSED = "runtime.store_refused"
    RUNTIME_STORE_BEHIND = "runtime.store_behind"
    RUNTIME_STORE_MISMATCH = "runtime.store_mismatch"
    RUNTIME_TOOL_MISSING = "runtime.tool_missing"
    RUNTIME_MCP_UNAVAILABLE = "runtime.mcp_unavailable"
    RUNTIME_ABORTED = "runtime.aborted"
    RUNTIME_TURN_ENDED = "runtime.turn_ended"
    RUNTIME_TURN_CLOSED = "runtime.turn_closed"
    RUNTIME_WORKER_LOST = "runtime.worker_lost"
    RUNTIME_WORKER_SHUTDOWN = "runtime.worker_shutdown"
    RUNTIME_PAYLOAD_TOO_LARGE = "runtime.payload_too_large"
    RUNTIME_HOOK_FAILED = "runtime.hook_failed"
    RUNTIME_FAILED_BY_HOOK = "runtime.failed_by_hook"


NOTHING = "nothing"
"""What the model reads of a failure that ends the turn, or is retried without its knowing."""

TOLD = "nothing; under on_retry='tell_model' the error's class and text, as a user message"
"""What it reads of a failed call that is sent again."""

CORRECTED = "with output_corrections what is wrong, as a user message"
"""What it reads of an answer outside the output schema."""

RESULT = "the call's error result: code, class and text"
"""What it reads of a failed tool call: with its next step, or in the next turn if the failure ended this one."""

HEADERS = "retry-after-ms, or retry-after in seconds or as an HTTP date, if longer than the policy's wait"
"""Where a provider says how long to wait: the headers of its error reply."""

NO_SOURCE = "none"


class Reason(Value):
    """What is known about one reason code.

    Attributes:
        transient: Whether the same call may succeed later; only then is it retried.
        text: What an operator reads: the cause, and where there is one, behind a semicolon the next thing to do.
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


def _permanent(text: str) -> Reason:
    return Reason(transient=False, text=text)


def _transient(text: str, model: str = NOTHING) -> Reason:
    return Reason(transient=True, text=text, model=model)


def _replied(text: str) -> Reason:
    return Reason(transient=True, text=text, model=TOLD, retry_after=HEADERS)


def _answer(text: str) -> Reason:
    return Reason(transient=False, text=text, model=CORRECTED)


def _tool(text: str) -> Reason:
    return Reason(transient=False, text=text, model=RESULT)


def _reserved(text: str) -> Reason:
    return Reason(transient=False, text=text, reserved=True)


REASONS: dict[ReasonCode, Reason] = {
    ReasonCode.LLM_RATE_LIMITED: _replied("the provider limits the rate of requests"),
    ReasonCode.LLM_NETWORK_ERROR: _replied("the provider could not be reached or failed on its side"),
    ReasonCode.LLM_TIMEOUT: _replied("the provider did not answer in time"),
    ReasonCode.LLM_EMPTY: _transient("the model answered with neither text nor a tool call", TOLD),
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
        "the provider refused the key; set a valid one in the worker's environment and start it again"
    ),
    ReasonCode.LLM_REQUEST_ERROR: _permanent("the provider refused the request as invalid"),
    ReasonCode.LLM_TOO_MANY_TOOLS: _permanent(
        "the provider refuses so many tools; leave the agent's tool_mode at auto, or give it fewer"
    ),
    ReasonCode.LLM_QUOTA_EXHAUSTED: _permanent(
        "the account's quota or credit is used up; raise it with the provider, or choose another model"
    ),
    ReasonCode.LLM_CONTEXT_OVERFLOW: _permanent(
        "the conversation is longer than the model's context window, and no more of it can be summarised; "
        "choose a model with a larger window, lower keep in the agent's compaction, or begin a new session"
    ),
    ReasonCode.LLM_CONTENT_FILTERED: _permanent("the provider's content policy refused the request or the answer"),
    ReasonCode.LLM_REFUSED: _permanent("the model refused to answer"),
    ReasonCode.LLM_MISSING_KEY: _permanent(
        "a key that the call needs is not set in the worker's environment; set it and start the worker again"
    ),
    ReasonCode.LLM_PARSE_ERROR: _answer("the answer is not the JSON that the agent's output asks for"),
    ReasonCode.LLM_SCHEMA_VIOLATION: _answer("the answer does not fit the schema of the agent's output"),
    ReasonCode.LLM_FIXTURE_MISSING: _permanent("no recorded answer fits this request"),
    ReasonCode.LLM_PROMPT_ASSEMBLY_ERROR: _reserved("the request for the model could not be put together"),
    ReasonCode.TOOL_UNKNOWN: _tool("the model asked for a tool that the agent does not have"),
    ReasonCode.TOOL_INVALID_INPUT: _tool("the arguments do not fit the tool's schema"),
    ReasonCode.TOOL_INVALID_OUTPUT: _tool(
        "the tool returned a value that does not fit its annotation, or that has no JSON form"
    ),
    ReasonCode.TOOL_TIMEOUT: _tool("the tool ran longer than its time-out"),
    ReasonCode.TOOL_NETWORK_ERROR: _tool("the tool could not reach what it needs over the network"),
    ReasonCode.TOOL_EXECUTION_ERROR: _tool("the tool raised an exception"),
    ReasonCode.TOOL_EFFECT_UNKNOWN: _tool("the worker was lost while the tool ran; its effect is unknown"),
    ReasonCode.TOOL_CANCELLED: _tool("the turn was cancelled while the tool ran; its effect is unknown"),
    ReasonCode.TOOL_DENIED: _tool("a rule of the agent or a person denied the tool call; it did not run"),
    ReasonCode.TOOL_APPROVAL_EXPIRED: _tool("nobody approved the tool call in time; it did not run"),
    ReasonCode.TOOL_FIXTURE_MISSING: _tool("no recorded result fits this tool call"),
    ReasonCode.TOOL_STATE_LOST: _tool(
        "the worker that held the state of the tool's server is lost, and that state too; the call's effect is unknown"
    ),
    ReasonCode.TOOL_DELEGATE_FAILED: _tool("the delegate did not finish; its session says why"),
    ReasonCode.TOOL_MAX_TURNS_EXHAUSTED: _tool("max_tool_turns is used up, and the model has not finished"),
    ReasonCode.BUDGET_COST: _permanent("the turn's cost budget is used up"),
    ReasonCode.BUDGET_LLM_CALLS: _permanent("the turn's budget of model calls is used up"),
    ReasonCode.BUDGET_TOOL_CALLS: _tool("the turn's budget of tool calls is used up"),
    ReasonCode.BUDGET_SECONDS: _permanent("the turn's time budget is used up"),
    ReasonCode.BUDGET_BEHAVIOR_CALLS: _tool("the turn's budget of calls of delegates and hooks is used up"),
    ReasonCode.BUDGET_EVENTS: _tool("the turn's budget of answers and results is used up"),
    ReasonCode.BUDGET_PATCHES: _tool("the turn's budget of changes to its session's state is used up"),
    ReasonCode.BUDGET_DEPTH: _tool("the turn may not have delegates so deep below it"),
    ReasonCode.REQUEST_INVALID: _permanent("the request does not have the documented shape"),
    ReasonCode.REQUEST_TOO_LARGE: _permanent("the message is over the size limit"),
    ReasonCode.REQUEST_TOO_EARLY: _transient("the turn is about to ask this, or to stop for it; reply in a moment"),
    ReasonCode.REQUEST_UNKNOWN_AGENT: _permanent("no worker on this task queue has an agent of that name"),
    ReasonCode.REQUEST_UNKNOWN_SESSION: _permanent("there is no session of that id, and no agent was named"),
    ReasonCode.REQUEST_TURN_MISMATCH: _permanent("the session is at another turn than the caller expected"),
    ReasonCode.RUNTIME_STORE_UNAVAILABLE: _transient(
        "the transcript store cannot be reached, is locked or its disk is full; the turn waits until it can be used"
    ),
    ReasonCode.RUNTIME_STORE_REFUSED: _permanent("the transcript store refused a value it cannot hold"),
    ReasonCode.RUNTIME_STORE_BEHIND: _permanent(
        "the transcript store has lost what the turn had written to it, as after a restore from an older copy; "
        "send the message again, and the session goes on from what the store has"
    ),
    ReasonCode.RUNTIME_STORE_MISMATCH: _transient(
        "this worker looks at another transcript store than the turn's, which waits for a worker that looks at its own"
    ),
    ReasonCode.RUNTIME_TOOL_MISSING: _transient(
        "this worker has not the tool the definition names, or another version"
    ),
    ReasonCode.RUNTIME_MCP_UNAVAILABLE: _permanent(
        "an MCP server of the agent cannot be used, so no turn was opened; the message names the server and the cause"
    ),
    ReasonCode.RUNTIME_ABORTED: _permanent("the operation was aborted by a cancel"),
    ReasonCode.RUNTIME_TURN_ENDED: _permanent("the turn has already ended; start a new one"),
    ReasonCode.RUNTIME_TURN_CLOSED: _permanent("the turn's workflow was terminated or timed out before it could end"),
    ReasonCode.RUNTIME_WORKER_LOST: _transient("the worker was lost while the activity ran"),
    ReasonCode.RUNTIME_WORKER_SHUTDOWN: _transient("the worker shut down and handed the work over"),
    ReasonCode.RUNTIME_PAYLOAD_TOO_LARGE: _permanent("a value was too large for a Temporal payload"),
    ReasonCode.RUNTIME_HOOK_FAILED: _permanent("a hook or a stop condition of the agent failed"),
    ReasonCode.RUNTIME_FAILED_BY_HOOK: _permanent("a hook of the agent ended the turn as failed"),
}
"""One row for each code of :class:`ReasonCode`."""

CUSTOM_CODE = re.compile(r"llm\.[a-z][a-z0-9_]{0,59}")
"""Codes that the model provider of an agent's own module may raise beside those of the table."""


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


def named(kind: str) -> str:
    """The code of a failure by its type in Temporal: reason codes as they are, a class as ``exception.<Class>``."""
    has_code = kind in REASONS or kind.startswith("exception.") or CUSTOM_CODE.fullmatch(kind)
    return kind if has_code else f"exception.{kind}"


class ErrorDetail(Value):
    """One failure as everything outside the failing activity sees it: redacted, bounded in size.

    Attributes:
        code: A reason code, or ``exception.<Class>``.
        title: Where it happened: ``generation``, a tool's name, ``agent`` or ``runtime``.
        message: One self-contained sentence of at most 2,000 characters.
        type: The class of the exception that was raised, as its library names it.
    """

    code: str
    title: str
    message: str
    type: str = ""

    def as_result(self, said: str = "") -> str:
        """What the model reads in place of a call's result: code, class and text, for which ``said`` may stand."""
        body = {"code": self.code, "type": self.type, "message": said or self.message}
        return json.dumps({"error": body}, ensure_ascii=False)
