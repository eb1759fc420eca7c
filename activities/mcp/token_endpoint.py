"""The endpoint that gives new tokens for a refresh token. It is asked once more if it fails."""

import asyncio
import json
from http import HTTPStatus
from typing import cast

import httpx2
from mcp.shared.auth import OAuthToken
from pydantic import ValidationError

from perdure.activities.mcp.failures import describe_failure

RETRY_PAUSE = 1.0
"""Seconds before an endpoint that failed is asked once more."""

PATIENCE = 10.0
"""Seconds that the endpoint may be silent. Both tries together stay below ``REFRESH_SECONDS`` of the lock."""

LONGEST_ERROR = 100
"""Characters of an error code that a message has."""


class TokensError(Exception):
    """There are no new tokens; ``is_refusal`` says that the endpoint refuses them, so that a person has to log in."""

    def __init__(self, message: str, *, is_refusal: bool) -> None:
        super().__init__(message)
        self.is_refusal = is_refusal


async def request_tokens(request: httpx2.Request) -> httpx2.Response:
    """Send a request for new tokens, and once more if the endpoint fails.

    Returns:
        Tokens, a redirect, or a refusal.

    Raises:
        TokensError: The endpoint failed twice.
    """
    async with httpx2.AsyncClient(timeout=PATIENCE) as http:
        answer = await _send(http, request)
        if isinstance(answer, str):
            await asyncio.sleep(RETRY_PAUSE)
            answer = await _send(http, request)
    if isinstance(answer, str):
        raise TokensError(f"{request.url}: {answer}", is_refusal=False)
    return answer


async def _send(http: httpx2.AsyncClient, request: httpx2.Request) -> httpx2.Response | str:
    """The answer; a text says why there is none that counts."""
    try:
        answer = await http.send(request)
    except httpx2.HTTPError as error:
        return describe_failure(error)
    passes = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS}
    if answer.is_server_error or answer.status_code in passes:
        return describe_answer(answer)
    if answer.is_success:
        try:
            OAuthToken.model_validate_json(answer.content)
        except ValidationError:
            return f"HTTP {answer.status_code}, and no tokens in its answer"
    return answer


def describe_answer(answer: httpx2.Response) -> str:
    """The status of a failed answer, with the error code of OAuth (RFC 6749 §5.2) if there is one."""
    try:
        body = json.loads(answer.content)
    except ValueError:
        body = None
    error = cast("dict[str, object]", body).get("error") if isinstance(body, dict) else None
    named = f" ({' '.join(error.split())[:LONGEST_ERROR]})" if isinstance(error, str) and error else ""
    return f"HTTP {answer.status_code}{named}"
