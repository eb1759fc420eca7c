"""What becomes of faults of a provider or a network, on each wire. Tests cause each; docs/errors.md lists them."""

from perdure.contracts.errors import ReasonCode
from perdure.contracts.values import Value


class WireFault(Value):
    """What becomes of a fault with OpenAI's and with Anthropic's API (the two *wires*).

    Attributes:
        fault: What the provider or the network does.
        code: The reason code on both wires, unless ``anthropic_code`` names another for the second.
        seen: The name of the failure for people, and the status, unless ``anthropic`` is another on the second wire.
    """

    fault: str
    code: ReasonCode
    seen: str
    anthropic: str = ""
    anthropic_code: ReasonCode | None = None


_R = ReasonCode

WIRE_FAULTS: tuple[WireFault, ...] = (
    *(
        WireFault(fault=fault, code=code, seen=seen)
        for fault, code, seen in (
            ("the key is refused", _R.LLM_AUTH_ERROR, "AuthenticationError 401"),
            ("there is no such model", _R.LLM_REQUEST_ERROR, "NotFoundError 404"),
            ("too many requests", _R.LLM_RATE_LIMITED, "RateLimitError 429"),
            ("the prompt is too long", _R.LLM_CONTEXT_OVERFLOW, "BadRequestError 400"),
            ("there are too many tools", _R.LLM_TOO_MANY_TOOLS, "BadRequestError 400"),
            ("the request is against the content policy", _R.LLM_CONTENT_FILTERED, "BadRequestError 400"),
            ("a gateway's page of status 502", _R.LLM_NETWORK_ERROR, "BadGatewayError 502"),
            ("an unknown error, said with status 200", _R.LLM_NETWORK_ERROR, "ProviderError 200"),
            ("a page of status 200", _R.LLM_NETWORK_ERROR, "ProviderError 200"),
            ("a reply without an answer", _R.LLM_EMPTY, "EmptyAnswerError"),
            ("neither text nor a tool call", _R.LLM_EMPTY, "EmptyAnswerError"),
            ("the answer is cut off by max_tokens", _R.LLM_TRUNCATED, "TruncatedAnswerError"),
            ("the answer is cut off by the content policy", _R.LLM_CONTENT_FILTERED, "ContentFilteredError"),
            ("silence before the reply", _R.LLM_TIMEOUT, "NoReplyError"),
            ("silence in the reply", _R.LLM_TIMEOUT, "NoReplyError"),
            ("the connection is closed before the reply", _R.LLM_NETWORK_ERROR, "NoReplyError"),
            ("the connection is reset before the reply", _R.LLM_NETWORK_ERROR, "NoReplyError"),
            ("the connection is closed in the reply", _R.LLM_NETWORK_ERROR, "NoReplyError"),
            ("the connection is reset in the reply", _R.LLM_NETWORK_ERROR, "NoReplyError"),
            ("the connection is refused", _R.LLM_NETWORK_ERROR, "NoReplyError"),
            ("the host's name is unknown", _R.LLM_NETWORK_ERROR, "NoReplyError"),
            ("the address is no URL", _R.LLM_REQUEST_ERROR, "NoReplyError"),
        )
    ),
    WireFault(
        fault="the account is used up",
        code=_R.LLM_QUOTA_EXHAUSTED,
        seen="RateLimitError 429",
        anthropic="BadRequestError 400",
    ),
    WireFault(
        fault="no capacity",
        code=_R.LLM_NETWORK_ERROR,
        seen="ServiceUnavailableError 503",
        anthropic="OverloadedError 529",
    ),
    WireFault(
        fault="no capacity, said with status 200",
        code=_R.LLM_NETWORK_ERROR,
        seen="ProviderError 200",
        anthropic="OverloadedError 529",
    ),
    WireFault(
        fault="the model refuses",
        code=_R.LLM_REFUSED,
        seen="RefusedAnswerError",
        anthropic="ContentFilteredError",
        anthropic_code=_R.LLM_CONTENT_FILTERED,
    ),
)
"""Faults that a test causes. Any other error in a reply of 200 gets the code of its words."""
