"""Logins: none without a person, tokens that only their owner reads, and that are refreshed without one."""

import asyncio
import json
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from starlette.responses import Response
from starlette.types import ASGIApp

from perdure.activities.mcp.failures import McpError, McpUnavailableError
from perdure.activities.mcp.login import log_in
from tests.house import WAIT_SECONDS
from tests.unit.activities.mcp_http import older, web
from tests.unit.activities.mcp_logins import Login, config, own_port, person_logs_in, run_out, token_file, worker


@pytest.fixture
async def login() -> AsyncIterator[Login]:
    at = web()
    server = Login(at)
    app: ASGIApp = server
    async with at.serving(app):
        yield server


async def test_a_worker_asks_nobody_for_a_login(login: Login, tmp_path: Path) -> None:
    """S-76: it says who has to do what, and registers nothing."""
    async with worker(login, tmp_path) as connected:
        with pytest.raises(McpUnavailableError, match=r"wants a login; log in once with 'python -m perdure\.worker"):
            await connected.open()
        assert connected.status == "needs_auth"
    assert set(login.paths) == {"/mcp"}


async def test_a_person_logs_in_once_and_the_worker_needs_no_new_start(login: Login, tmp_path: Path) -> None:
    """S-76."""
    async with worker(login, tmp_path) as connected:
        with pytest.raises(McpUnavailableError):
            await connected.open()
        (page,) = await person_logs_in(login, tmp_path)
        assert urlsplit(page).path == "/oauth/authorization"
        await connected.open()
        assert (await connected.call("web__echo", text="hi")).text == "echo: hi"
        assert connected.status == "connected"
    assert login.registrations == 1
    assert stat.S_IMODE(token_file(tmp_path).stat().st_mode) == 0o600
    assert stat.S_IMODE(token_file(tmp_path).parent.stat().st_mode) == 0o700


async def test_tokens_are_refreshed_without_a_person(login: Login, tmp_path: Path) -> None:
    """S-76: also by a worker that starts when they have run out."""
    await person_logs_in(login, tmp_path)
    run_out(tmp_path)
    login.valid.clear()
    async with worker(login, tmp_path) as connected:
        await connected.open()
        assert (await connected.call("web__echo", text="hi")).text == "echo: hi"
    assert login.refreshes == 1
    assert json.loads(token_file(tmp_path).read_text())["tokens"]["access_token"] in login.valid


async def test_workers_that_share_tokens_refresh_them_once(login: Login, tmp_path: Path) -> None:
    """S-76: a second one would present a refresh token that was taken already."""
    await person_logs_in(login, tmp_path)
    async with worker(login, tmp_path) as first, worker(login, tmp_path) as other:
        await first.open()
        await other.open()
        run_out(tmp_path)
        await asyncio.gather(*(using.call("web__echo", text="hi") for using in (first, other) for _ in range(5)))
        assert login.refreshes == 1
        run_out(tmp_path)
        login.valid.clear()
        await other.open()
        assert login.refreshes == 2
        assert (await first.call("web__echo", text="hi")).text == "echo: hi"


async def test_tokens_that_another_worker_replaced_in_the_middle_of_a_request_are_used(
    login: Login, tmp_path: Path
) -> None:
    """S-76: the request is sent again with them."""
    await person_logs_in(login, tmp_path)
    async with worker(login, tmp_path) as connected:
        await connected.open()
        kept = json.loads(token_file(tmp_path).read_text())
        kept["tokens"]["access_token"] = "a-newer-one"

        def replace() -> None:
            token_file(tmp_path).write_text(json.dumps(kept))
            login.valid = {"a-newer-one"}

        login.before = replace
        assert (await connected.call("web__echo", text="hi")).text == "echo: hi"
    assert login.refreshes == 0


async def test_only_what_comes_back_from_the_login_ends_it(login: Login, tmp_path: Path) -> None:
    """S-76: neither another page that the browser opens there, nor one that claims to be the login."""
    answers: list[str] = []

    async def visit(url: str) -> None:
        query = parse_qs(urlsplit(url).query)
        (state,), (callback,) = query["state"], query["redirect_uri"]
        async with httpx2.AsyncClient(follow_redirects=True) as browser:
            replies = [
                await browser.get(f"{callback.removesuffix('/callback')}/favicon.ico?error=x&state={state}"),
                await browser.get(f"{callback}?error=x"),
                await browser.get(f"{callback}?code=x&state=another"),
                await browser.post(f"{callback}?error=x&state={state}"),
                await browser.get(url),
            ]
        answers.extend(reply.text for reply in replies)

    visits: list[asyncio.Task[None]] = []
    folder = {"PERDURE_MCP_FOLDER": str(tmp_path / "mcp")}
    with own_port():
        await log_in(config(login), folder, lambda url: visits.append(asyncio.create_task(visit(url))))
    await visits[0]
    assert answers == ["Nothing to see here."] * 4 + ["You are logged in; close this page."]


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("generation", ["newer", "older"])
async def test_fifty_calls_over_a_login_run_side_by_side(generation: str, as_json: bool, tmp_path: Path) -> None:
    """S-76: none waits for another's answer; tokens that have run out are refreshed once before."""
    at = web()
    server = Login(at)
    app = at.server().streamable_http_app(json_response=as_json)
    server.app = older(app) if generation == "older" else app
    async with at.serving(server), asyncio.timeout(WAIT_SECONDS):
        await person_logs_in(server, tmp_path)
        async with worker(server, tmp_path) as connected:
            await connected.open()
            for refreshes in (0, 1):
                at.all_here.clear()
                results = await asyncio.gather(*(connected.call("web__meet", parties=50) for _ in range(50)))
                assert [result.text for result in results] == ["met"] * 50
                assert server.refreshes == refreshes
                run_out(tmp_path)


async def test_a_token_that_runs_out_on_its_way_is_refreshed(login: Login, tmp_path: Path) -> None:
    """S-76: the server refused the call, so it is sent again; calls that meet this together refresh once."""
    await person_logs_in(login, tmp_path)
    async with worker(login, tmp_path) as connected:
        await connected.open()

        def expire() -> None:
            login.before = lambda: None
            login.valid.clear()
            run_out(tmp_path)

        login.before = expire
        results = await asyncio.gather(*(connected.call("web__echo", text="hi") for _ in range(5)))
        assert [result.text for result in results] == ["echo: hi"] * 5
    assert login.refreshes == 1


async def test_a_call_that_is_forbidden_is_not_sent_again_with_newer_tokens(login: Login, tmp_path: Path) -> None:
    """S-77: the server may have carried it out."""
    await person_logs_in(login, tmp_path)
    async with worker(login, tmp_path) as connected:
        await connected.open()
        login.refusal = Response(status_code=403)

        def forbid() -> None:
            login.before = lambda: None
            login.valid.clear()
            run_out(tmp_path)

        login.before = forbid
        login.paths.clear()
        with pytest.raises(McpError, match="HTTP 403"):
            await connected.call("web__echo", text="hi")
    assert login.paths.count("/mcp") == 1


async def test_tokens_that_cannot_be_refreshed_need_a_new_login(login: Login, tmp_path: Path) -> None:
    """S-76: one try, and nobody is asked."""
    await person_logs_in(login, tmp_path)
    async with worker(login, tmp_path) as connected:
        await connected.open()
        login.valid.clear()
        login.refresh_token = "another"
        run_out(tmp_path)
        with pytest.raises(McpError, match="wants a login"):
            await connected.call("web__echo", text="hi")
        assert connected.status == "needs_auth"
    assert login.refreshes == login.registrations == 1


async def test_a_call_that_needs_more_scope_needs_a_new_login(login: Login, tmp_path: Path) -> None:
    """S-76: unlike other calls that a server forbids."""
    await person_logs_in(login, tmp_path)
    async with worker(login, tmp_path) as connected:
        await connected.open()
        login.valid.clear()
        login.refusal = Response(status_code=403, headers={"WWW-Authenticate": 'Bearer error="insufficient_scope"'})
        with pytest.raises(McpError, match="wants a login"):
            await connected.call("web__echo", text="hi")
