"""What became of the HTTP requests of one call: the SDK sends them from other tasks, and says little of it."""

import contextlib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from http import HTTPStatus
from typing import Any

import httpcore2
import httpx2

from perdure.activities.mcp.oauth import LoginNeededError


class Exchange:
    """The requests of one call, or of one greeting.

    Attributes:
        reached: Whether one of them began to be sent; if none did, the server has carried nothing out.
        status: The HTTP status of the last answer, or 0.
        refusals: The statuses of those that refused something.
        needs_login: Whether a person has to log in.
        silent: Whether the server said nothing for too long.
    """

    def __init__(self) -> None:
        self.reached = False
        self.status = 0
        self.refusals: list[int] = []
        self.needs_login = False
        self.silent = False

    async def trace(self, event: str, info: Mapping[str, object]) -> None:
        """Hear what the connection does with a request."""
        self.silent = self.silent or isinstance(info.get("exception"), httpcore2.ReadTimeout)
        self.reached = self.reached or event.endswith("send_request_headers.started")


_current: ContextVar[Exchange | None] = ContextVar("mcp_exchange", default=None)


@contextlib.contextmanager
def exchange() -> Iterator[Exchange]:
    """Note what becomes of the requests that are asked for in this block, whichever task sends them."""
    noted = Exchange()
    token = _current.set(noted)
    try:
        yield noted
    finally:
        _current.reset(token)


class NotedClient(httpx2.AsyncClient):
    """An HTTP client whose requests are noted for the call that asked for them."""

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:  # noqa: ANN401 - the vendor's own
        """Send a request."""
        noted = _current.get() or Exchange()
        request.extensions = {**request.extensions, "trace": noted.trace}
        try:
            response = await super().send(request, **options)
        except LoginNeededError:
            noted.needs_login = True
            raise
        noted.status = response.status_code
        if response.is_error:
            noted.refusals.append(response.status_code)
        noted.needs_login = noted.needs_login or response.status_code == HTTPStatus.UNAUTHORIZED
        return response
