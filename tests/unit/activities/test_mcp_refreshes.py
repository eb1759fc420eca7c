"""Tokens that a server refuses before their time, and token endpoints that fail."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from starlette.responses import JSONResponse, Response

from perdure.activities.mcp import token_endpoint
from perdure.activities.mcp.failures import McpError, McpUnavailableError
from tests.unit.activities.mcp_http import older, web
from tests.unit.activities.mcp_logins import Login, edit_tokens, person_logs_in, run_out, worker
from tests.unit.activities.mcp_peers import Connected

GENERATIONS = pytest.mark.parametrize("generation", ["newer", "older"])

FAULTS: dict[str, tuple[Response, str]] = {
    "500": (Response("<html>oh</html>", status_code=500), "HTTP 500"),
    "503 as JSON": (JSONResponse({"error": "temporarily_unavailable"}, 503), "HTTP 503 (temporarily_unavailable)"),
    "too many requests": (Response(status_code=429), "HTTP 429"),
    "a page": (Response("<html>maintenance</html>", media_type="text/html"), "no tokens in its answer"),
    "no token": (JSONResponse({"token_type": "Bearer"}), "no tokens in its answer"),
    "nothing": (Response(), "no tokens in its answer"),
}


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_endpoint, "RETRY_PAUSE", 0.0)


@asynccontextmanager
async def server_of(generation: str = "newer") -> AsyncIterator[Login]:
    at = web()
    login = Login(at)
    login.app = older(login.app) if generation == "older" else login.app
    async with at.serving(login):
        yield login


@asynccontextmanager
async def logged_in(login: Login, folder: Path) -> AsyncIterator[Connected]:
    await person_logs_in(login, folder)
    async with worker(login, folder) as connected:
        await connected.open()
        login.paths.clear()
        yield connected


async def called(connected: Connected, times: int = 5) -> set[str]:
    """What calls that run side by side give, or end with."""

    async def one() -> str:
        try:
            return (await connected.call("web__echo", text="hi")).text
        except McpError as error:
            return str(error)

    return set(await asyncio.gather(*(one() for _ in range(times))))


@pytest.mark.parametrize(("lifetime", "generation"), [(3600, "older"), (None, "newer"), (0, "older"), (-1, "newer")])
async def test_tokens_that_the_server_refuses_are_refreshed_whatever_the_clock_says(
    lifetime: int | None, generation: str, tmp_path: Path
) -> None:
    """S-76: once for all calls that meet it, and each is then carried out."""
    async with server_of(generation) as login:
        login.lifetime = lifetime
        async with logged_in(login, tmp_path) as connected:
            refreshes = login.refreshes
            login.valid.clear()
            assert await called(connected) == {"echo: hi"}
            assert login.refreshes == refreshes + 1
            assert connected.status == "connected"


async def test_workers_that_share_tokens_which_the_server_refuses_refresh_them_once(tmp_path: Path) -> None:
    """S-76: a second one would present a refresh token that was taken already."""
    async with (
        server_of() as login,
        logged_in(login, tmp_path) as first,
        worker(login, tmp_path) as other,
    ):
        await other.open()
        login.valid.clear()
        assert [*await called(first), *await called(other)] == ["echo: hi"] * 2
        login.valid.clear()
        assert set.union(*await asyncio.gather(called(first), called(other))) == {"echo: hi"}
        assert login.refreshes == 2


async def test_a_list_of_tools_is_asked_for_with_new_tokens(tmp_path: Path) -> None:
    """S-76: also by a worker that starts after the tokens were withdrawn."""
    async with server_of() as login:
        await person_logs_in(login, tmp_path)
        login.valid.clear()
        async with worker(login, tmp_path) as connected:
            await connected.open()
            assert connected.tools
        assert login.refreshes == 1


@GENERATIONS
async def test_a_server_that_refuses_every_token_is_asked_twice(generation: str, tmp_path: Path) -> None:
    """S-76: once with new tokens; a person may be refused for another reason."""
    async with server_of(generation) as login, logged_in(login, tmp_path) as connected:

        def withdraw() -> None:
            login.valid.clear()

        login.before = withdraw
        (said,) = await called(connected, times=1)
        assert "wants a login" in said
        assert (login.refreshes, login.paths.count("/mcp")) == (1, 2)


@GENERATIONS
@pytest.mark.parametrize("kept", ["a refresh token that is refused", "no refresh token"])
async def test_tokens_that_were_withdrawn_for_good_need_a_new_login(kept: str, generation: str, tmp_path: Path) -> None:
    """S-76: all calls that meet it say so; the server carried out none of them."""
    async with server_of(generation) as login, logged_in(login, tmp_path) as connected:
        if kept == "no refresh token":
            edit_tokens(tmp_path, lambda file: file["tokens"].pop("refresh_token"))
        login.refresh_token = "another"
        login.valid.clear()
        (said,) = await called(connected)
        assert "wants a login" in said
        assert "effect is unknown" not in said
        assert ("HTTP 400 (invalid_grant)" in said) == (kept == "a refresh token that is refused")
        assert login.refreshes == int(kept == "a refresh token that is refused")
        assert connected.status == "needs_auth"
        await person_logs_in(login, tmp_path)
        assert await called(connected) == {"echo: hi"}


@pytest.mark.parametrize(("fault", "said"), FAULTS.values(), ids=FAULTS.keys())
async def test_a_token_endpoint_that_fails_once_is_asked_again(fault: Response, said: str, tmp_path: Path) -> None:
    """S-76: if it fails twice, that is what is told, and no login is asked for."""
    async with server_of() as login, logged_in(login, tmp_path) as connected:
        for times, expected in ((1, "echo: hi"), (2, said), (0, "echo: hi")):
            login.valid.clear()
            if times == 2:
                run_out(tmp_path)
            login.faults = [fault] * times
            (answer,) = await called(connected)
            assert expected in answer
            assert "wants a login" not in answer
            assert "effect is unknown" not in answer
            assert connected.status == ("failed" if times == 2 else "connected")
        assert login.refreshes == 2


async def test_a_token_endpoint_that_cannot_be_reached_is_named(tmp_path: Path) -> None:
    """S-76: for calls, and when a turn opens."""
    async with server_of() as login, logged_in(login, tmp_path) as connected:
        nowhere = f"http://127.0.0.1:{web().port}/token"
        edit_tokens(tmp_path, lambda file: file["server"].update(token_endpoint=nowhere))
        login.valid.clear()
        (said,) = await called(connected)
        assert f"the worker cannot refresh its tokens: {nowhere}: ConnectError" in said
        assert connected.status == "failed"
        async with worker(login, tmp_path) as later:
            with pytest.raises(McpUnavailableError, match="cannot refresh its tokens"):
                await later.open()
            assert later.status == "failed"


async def test_a_token_endpoint_that_has_moved_elsewhere_is_not_followed(tmp_path: Path) -> None:
    """S-76: the refresh token is for the host that gave it, and the second try would be sent elsewhere too."""
    async with server_of() as login, logged_in(login, tmp_path) as connected:
        login.faults = [Response(status_code=307, headers={"Location": "https://elsewhere.example/token"})]
        login.valid.clear()
        (said,) = await called(connected, times=1)
        assert "cannot refresh its tokens" in said
        assert "HTTP 307" in said
        assert await called(connected) == {"echo: hi"}
