"""Everything that perdure replaces or reads of litellm's private names, and its settings.

None of it is needed for the common wires, whose calls do not go through ``acompletion``.
"""

import logging
import os

import litellm
from litellm._internal_context import is_internal_call  # pyright: ignore[reportMissingTypeStubs]
from litellm.llms.custom_httpx import http_handler  # pyright: ignore[reportMissingTypeStubs]

from perdure.activities.models import provider_http

_BOUNDS = ("AIOHTTP_CONNECTOR_LIMIT", "AIOHTTP_CONNECTOR_LIMIT_PER_HOST")
"""Variables that litellm reads while it is imported, which an agent's module may do before perdure sets them."""


def quiet() -> None:
    """Stop litellm from printing and from handling its own log records, and have its HTTP exchanges guarded."""
    provider_http.install()
    litellm.suppress_debug_info = True
    litellm.turn_off_message_logging = True
    for name in _BOUNDS:
        setattr(http_handler, name, int(os.environ[name]))
    for name in ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.setLevel(logging.WARNING)


_CALLBACKS = (
    "callbacks",
    "success_callback",
    "failure_callback",
    "_async_success_callback",  # where litellm moves those that are coroutines
    "_async_failure_callback",
)


def skip_logging() -> bool:
    """Whether an agent's module has registered litellm callbacks, such as a tracer's; if not, nothing is logged.

    litellm assembles, copies and redacts a log record of each call, a third of its time, also when nobody reads it.
    """
    told = [callback for name in _CALLBACKS for callback in getattr(litellm, name, None) or ()]
    is_listened_to = any(callback != "cache" for callback in told)  # its own, once a Gemini call has made one
    is_internal_call.set(not is_listened_to)
    return is_listened_to
