"""What the pinned litellm makes of faults of a provider or a network. Tests cause each; docs/errors.md lists them."""

from perdure.contracts.errors import ReasonCode
from perdure.contracts.values import Value


class WireFault(Value):
    """What litellm makes of a fault with OpenAI's and with Anthropic's API (the two *wires*).

    Attributes:
        fault: What the provider or the network does.
        code: The reason code on both wires, unless ``anthropic_code`` names another for the second.
        openai: What is raised with OpenAI's API: class and status.
        anthropic: The same with Anthropic's API.
    """

    fault: str
    code: ReasonCode
    openai: str
    anthropic: str
    anthropic_code: ReasonCode | None = None


_SAME: tuple[tuple[str, ReasonCode, str], ...] = (
    ("the key is refused", ReasonCode.LLM_AUTH_ERROR, "AuthenticationError 401"),
    ("there is no such model", ReasonCode.LLM_REQUEST_ERROR, "NotFoundError 404"),
    ("too many requests", ReasonCode.LLM_RATE_LIMITED, "RateLimitError 429"),
    ("the prompt is too long", ReasonCode.LLM_CONTEXT_OVERFLOW, "ContextWindowExceededError 400"),
    ("there are too many tools", ReasonCode.LLM_TOO_MANY_TOOLS, "BadRequestError 400"),
    ("the request is against the content policy", ReasonCode.LLM_CONTENT_FILTERED, "ContentPolicyViolationError 400"),
    ("a gateway's page of status 502", ReasonCode.LLM_NETWORK_ERROR, "BadGatewayError 502"),
    ("neither text nor a tool call", ReasonCode.LLM_EMPTY, "EmptyAnswerError"),
    ("the answer is cut off by max_tokens", ReasonCode.LLM_TRUNCATED, "TruncatedAnswerError"),
    ("the answer is cut off by the content policy", ReasonCode.LLM_CONTENT_FILTERED, "ContentFilteredError"),
    ("silence before the reply", ReasonCode.LLM_TIMEOUT, "Timeout"),
    ("silence in the reply", ReasonCode.LLM_TIMEOUT, "Timeout"),
    ("the connection is closed before the reply", ReasonCode.LLM_NETWORK_ERROR, "InternalServerError"),
    ("the connection is reset before the reply", ReasonCode.LLM_NETWORK_ERROR, "InternalServerError"),
    ("the connection is closed in the reply", ReasonCode.LLM_NETWORK_ERROR, "InternalServerError"),
    ("the connection is reset in the reply", ReasonCode.LLM_NETWORK_ERROR, "InternalServerError"),
    ("the connection is refused", ReasonCode.LLM_NETWORK_ERROR, "InternalServerError"),
    ("the host's name is unknown", ReasonCode.LLM_NETWORK_ERROR, "InternalServerError"),
    ("the address is no URL", ReasonCode.LLM_REQUEST_ERROR, "InternalServerError"),
)

WIRE_FAULTS: tuple[WireFault, ...] = (
    *(WireFault(fault=fault, code=code, openai=seen, anthropic=seen) for fault, code, seen in _SAME),
    WireFault(
        fault="the account is used up",
        code=ReasonCode.LLM_QUOTA_EXHAUSTED,
        openai="RateLimitError 429",
        anthropic="BadRequestError 400",
    ),
    WireFault(
        fault="no capacity",
        code=ReasonCode.LLM_NETWORK_ERROR,
        openai="ServiceUnavailableError 503",
        anthropic="InternalServerError 529",
    ),
    WireFault(
        fault="no capacity, said with status 200",
        code=ReasonCode.LLM_NETWORK_ERROR,
        openai="APIError",
        anthropic="InternalServerError 200",
    ),
    WireFault(
        fault="an unknown error, said with status 200",
        code=ReasonCode.LLM_NETWORK_ERROR,
        openai="APIError",
        anthropic="APIConnectionError 200",
    ),
    WireFault(
        fault="a page of status 200",
        code=ReasonCode.LLM_NETWORK_ERROR,
        openai="APIError 200",
        anthropic="APIConnectionError 200",
    ),
    WireFault(
        fault="a reply without an answer",
        code=ReasonCode.LLM_EMPTY,
        openai="IndexError",
        anthropic="EmptyAnswerError",
    ),
    WireFault(
        fault="the model refuses",
        code=ReasonCode.LLM_REFUSED,
        openai="RefusedAnswerError",
        anthropic="ContentFilteredError",
        anthropic_code=ReasonCode.LLM_CONTENT_FILTERED,
    ),
)
"""Faults that a test causes with the pinned litellm. Any other error in a reply of 200 gets the code of its words."""
