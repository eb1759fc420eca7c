"""Bug reports of other MCP clients about logins and questions of servers, each tried on perdure.

Each test names where it was seen.
"""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from perdure import HttpServerConfig
from perdure.activities.mcp.failures import McpError
from perdure.activities.mcp.questions import Answering, InputNeededError
from perdure.contracts.server_questions import ServerAnswer
from tests.unit.activities.mcp_askers import Asker
from tests.unit.activities.mcp_http import web
from tests.unit.activities.mcp_logins import Login, person_logs_in, run_out, token_file, worker
from tests.unit.activities.mcp_peers import worker_of

OURS: dict[str, Any] = {
    "client_id": "ours",
    "client_secret": "${OUR_SECRET}",
    "environment": {"OUR_SECRET": "very-secret"},
}


@pytest.fixture
async def login() -> AsyncIterator[Login]:
    at = web()
    server = Login(at)
    async with at.serving(server):
        yield server


async def refreshed(login: Login, folder: Path, **settings: Any) -> None:
    """Log in, have the tokens run out, and call a tool with new ones."""
    await person_logs_in(login, folder, **settings)
    for _ in range(2):
        run_out(folder)
        login.valid.clear()
        async with worker(login, folder, **settings) as connected:
            await connected.open()
            assert (await connected.call("web__echo", text="hi")).text == "echo: hi"


async def test_a_refresh_proves_the_client_with_its_secret(login: Login, tmp_path: Path) -> None:
    """Seen at apify/mcpc #387: only the login itself sent the secret, so that every session ended after an hour."""
    login.clients["ours"] = "very-secret"
    login.more["token_endpoint_auth_methods_supported"] = ["client_secret_post"]
    await refreshed(login, tmp_path, **OURS)
    assert login.proven == ["post"] * 3


async def test_a_refresh_names_a_public_client(login: Login, tmp_path: Path) -> None:
    """Seen at anthropics/claude-code #53021: a client id from the settings was in no request for new tokens."""
    login.clients["public"] = ""
    await refreshed(login, tmp_path, client_id="public")
    assert login.proven == ["none"] * 3


async def test_a_registered_client_proves_itself_by_the_method_that_the_login_takes(
    login: Login, tmp_path: Path
) -> None:
    """Seen at vstorm-co/agenticos #1620: the secret always stood in the form, also where only Basic is taken."""
    login.clients["ours"] = "very-secret"
    login.more["token_endpoint_auth_methods_supported"] = ["private_key_jwt", "client_secret_basic"]
    await refreshed(login, tmp_path, **OURS)
    assert login.proven == ["basic"] * 3


class Delegating(Login):
    """A login at another place than the server, which says so only where its refusal points to."""

    def __init__(self, at: Any) -> None:
        super().__init__(at)
        header = f'Bearer resource_metadata="{at.url}/gateway/about"'
        self.refusal = Response(status_code=401, headers={"WWW-Authenticate": header})

    async def _reply(self, request: Request) -> Response:
        base, path = self.at.url, request.url.path
        if path == "/gateway/about":
            return JSONResponse({"resource": f"{base}/mcp", "authorization_servers": [f"{base}/tenant"]})
        if path == "/.well-known/oauth-authorization-server/tenant":
            ends = {f"{name}_endpoint": f"{base}/oauth/{name}" for name in ("authorization", "token", "registration")}
            more = {"response_types_supported": ["code"], "code_challenge_methods_supported": ["S256"]}
            return JSONResponse({"issuer": f"{base}/tenant", **ends, **more})
        if path == "/.well-known/oauth-authorization-server":
            ends = {f"{name}_endpoint": f"{base}/wrong/{name}" for name in ("authorization", "token", "registration")}
            return JSONResponse({"issuer": base, **ends, "response_types_supported": ["code"]})
        if path.startswith("/.well-known/"):
            return Response(status_code=404)
        if path == "/oauth/authorization":
            answer = await super()._reply(request)
            answer.headers["location"] = answer.headers["location"].replace("%2F", "/").split("&iss=")[0]
            return answer
        return await super()._reply(request)


async def test_the_refusal_says_where_the_login_is(tmp_path: Path) -> None:
    """Seen at anthropics/claude-code #85563: the address in the refusal was passed over for the server's origin.

    And at apify/mcpc #388: tokens were refreshed at the origin, where nobody knows the client.
    """
    at = web()
    login = Delegating(at)
    async with at.serving(login):
        await refreshed(login, tmp_path)
    assert not [path for path in login.paths if path.startswith("/wrong")]
    assert login.refreshes == 2


async def test_a_login_for_more_scope_refreshes_nothing(login: Login, tmp_path: Path) -> None:
    """Seen at anthropics/claude-code #28258: the tokens were refreshed, and came back with the scope they had."""
    login.more["scopes_supported"] = ["read"]
    await person_logs_in(login, tmp_path)
    (page,) = await person_logs_in(login, tmp_path, more_scope="write")
    assert parse_qs(urlsplit(page).query)["scope"] == ["read write"]
    assert login.refreshes == 0


async def test_a_scope_that_is_missing_is_not_called_an_expired_token(login: Login, tmp_path: Path) -> None:
    """Seen at anthropics/claude-code #68720 and #44652."""
    await person_logs_in(login, tmp_path)
    async with worker(login, tmp_path) as connected:
        await connected.open()
        login.valid.clear()
        header = (
            f'Bearer error="insufficient_scope", scope="products:write", error_description="ask for more", '
            f'resource_metadata="{login.at.url}/.well-known/oauth-protected-resource"'
        )
        login.refusal = Response(status_code=403, headers={"WWW-Authenticate": header})
        with pytest.raises(McpError, match="scope 'products:write', which its tokens lack"):
            await connected.call("web__echo", text="hi")


async def test_a_refresh_token_that_was_replaced_is_not_used_again(login: Login, tmp_path: Path) -> None:
    """Seen at PostHog/posthog #46982: several clients kept the first one for ever."""
    await refreshed(login, tmp_path)
    assert login.refreshes == 2
    assert login.refresh_token in token_file(tmp_path).read_text()


async def test_a_second_login_registers_no_second_client(login: Login, tmp_path: Path) -> None:
    """Seen at anomalyco/opencode #35625: each login registered a new one, although the tokens could be refreshed."""
    await person_logs_in(login, tmp_path)
    run_out(tmp_path)
    login.valid.clear()
    assert await person_logs_in(login, tmp_path) == []
    assert (login.registrations, login.refreshes) == (1, 1)


async def test_a_registration_asks_for_refresh_tokens(login: Login, tmp_path: Path) -> None:
    """Seen at stacklok/toolhive #3078: servers then refuse the refresh after an hour."""
    await person_logs_in(login, tmp_path)
    assert '"refresh_token"' in token_file(tmp_path).read_text().partition('"grant_types"')[2].partition("]")[0]


@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_a_question_that_is_not_answered_sends_no_content(tmp_path: Path, action: Any) -> None:
    """Seen at modelcontextprotocol/go-sdk #758 and typescript-sdk #966: a null, or nothing, was held to the schema."""
    at, asker = web(), Asker()
    config = HttpServerConfig(name="web", url=f"{at.url}/mcp")
    async with (
        at.serving(asker.server().streamable_http_app()),
        worker_of(config, folder=tmp_path) as connected,
    ):
        await connected.open()
        with pytest.raises(InputNeededError) as needed:
            await connected.call("web__paint", what="it")
        answering = Answering(needed.value.asked, ServerAnswer(action=action))
        assert (await connected.call("web__paint", answering=answering, what="it")).text == f"not painted: {action}"
    assert asker.said == [{"action": action, "content": None, "state": "painting it"}]
