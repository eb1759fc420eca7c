"""Logins with a client of the author's choice, and logins for more scope."""

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from starlette.responses import Response

from perdure.activities.mcp.failures import McpError, McpUnavailableError
from tests.unit.activities.mcp_http import web
from tests.unit.activities.mcp_logins import Login, person_logs_in, run_out, token_file, worker

SECRET = "s3cret/with odd:characters"
OURS: dict[str, Any] = {
    "client_id": "ours",
    "client_secret": "${LOGIN_SECRET}",
    "environment": {"LOGIN_SECRET": SECRET},
}


@pytest.fixture
async def login() -> AsyncIterator[Login]:
    at = web()
    server = Login(at)
    async with at.serving(server):
        yield server


@pytest.mark.parametrize(
    ("methods", "proof"),
    [(None, "basic"), (["client_secret_post"], "post"), (["client_secret_post", "client_secret_basic"], "basic")],
)
async def test_a_registered_client_logs_in_and_refreshes_with_its_secret(
    methods: list[str] | None, proof: str, login: Login, tmp_path: Path
) -> None:
    """S-76: nothing is registered, and the secret is in no file."""
    login.clients["ours"] = SECRET if proof == "post" else "s3cret%2Fwith%20odd%3Acharacters"
    if methods is not None:
        login.more["token_endpoint_auth_methods_supported"] = methods
    (page,) = await person_logs_in(login, tmp_path, **OURS)
    assert parse_qs(urlsplit(page).query)["client_id"] == ["ours"]
    run_out(tmp_path)
    login.valid.clear()
    async with worker(login, tmp_path, **OURS) as connected:
        await connected.open()
        assert (await connected.call("web__echo", text="hi")).text == "echo: hi"
    assert (login.registrations, login.refreshes, login.proven) == (0, 1, [proof, proof])
    assert "s3cret" not in token_file(tmp_path).read_text()


async def test_a_public_client_has_no_secret(login: Login, tmp_path: Path) -> None:
    """S-76."""
    login.clients["public"] = ""
    await person_logs_in(login, tmp_path, client_id="${WHO}", environment={"WHO": "public"})
    assert (login.registrations, login.proven) == (0, ["none"])


async def test_a_client_without_its_secret_is_told_which_variable_to_set(login: Login, tmp_path: Path) -> None:
    """S-76: before anything is sent."""
    await person_logs_in(login, tmp_path)
    login.paths.clear()
    missing = {**OURS, "environment": {}}
    with pytest.raises(McpUnavailableError, match="needs LOGIN_SECRET in the worker's environment"):
        await person_logs_in(login, tmp_path, **missing)
    async with worker(login, tmp_path, **missing) as connected:
        with pytest.raises(McpUnavailableError, match="needs LOGIN_SECRET in the worker's environment"):
            await connected.open()
    assert login.paths == []


async def test_tokens_of_one_client_are_of_no_use_to_another(login: Login, tmp_path: Path) -> None:
    """S-76: a login may change its client while tokens of the former one are kept."""
    await person_logs_in(login, tmp_path)
    async with worker(login, tmp_path, **OURS) as connected:
        with pytest.raises(McpUnavailableError, match="wants a login"):
            await connected.open()


@pytest.mark.parametrize(("is_known", "registrations"), [(True, 0), (False, 1)])
async def test_a_document_is_the_client_where_the_login_takes_documents(
    is_known: bool, registrations: int, login: Login, tmp_path: Path
) -> None:
    """S-76: elsewhere perdure registers itself."""
    login.more["client_id_metadata_document_supported"] = is_known
    document = "https://us.example/client.json"
    (page,) = await person_logs_in(login, tmp_path, client_metadata_url=document)
    assert parse_qs(urlsplit(page).query)["client_id"] == [document if is_known else "us"]
    assert login.registrations == registrations
    async with worker(login, tmp_path, client_metadata_url=document) as connected:
        await connected.open()


def lacking(scope: str) -> Response:
    challenge = f'Bearer error="insufficient_scope", scope="{scope}"'
    return Response(status_code=403, headers={"WWW-Authenticate": challenge})


async def test_a_call_that_lacks_scope_names_the_command_that_gets_it(login: Login, tmp_path: Path) -> None:
    """S-76: the worker asks nobody, and sends the call once; the login asks for the former scope too."""
    login.more["scopes_supported"] = ["files:read"]
    await person_logs_in(login, tmp_path)
    async with worker(login, tmp_path) as connected:
        await connected.open()
        valid, login.refusal = login.valid, lacking("files:write files:read")
        login.valid = set()
        login.paths.clear()
        with pytest.raises(McpError, match="with the scope 'files:write files:read', which its tokens lack") as caught:
            await connected.call("web__echo", text="hi")
        assert login.paths == ["/mcp"]
        command = re.search(r"mcp_login --agents MODULE --scope \"(.*)\" web'", str(caught.value))
        assert command is not None
        login.valid, login.refusal = valid, Response(status_code=401, headers={"WWW-Authenticate": "Bearer"})
        await person_logs_in(login, tmp_path, more_scope=command.group(1))
        assert login.asked == ["files:read", "files:read files:write"]
        await connected.open()
        assert (await connected.call("web__echo", text="hi")).text == "echo: hi"
    assert await person_logs_in(login, tmp_path, more_scope="files:write") == []  # it is granted already


async def test_a_scope_that_no_command_can_hold_is_named_all_the_same(login: Login, tmp_path: Path) -> None:
    """S-76: it is a stranger's text, and people copy commands."""
    await person_logs_in(login, tmp_path)
    async with worker(login, tmp_path) as connected:
        await connected.open()
        login.valid, login.refusal = set(), lacking("$(reboot)")
        with pytest.raises(McpError, match=r"the scope '\$\(reboot\)', .*--agents MODULE web'"):
            await connected.call("web__echo", text="hi")


async def test_the_author_chooses_the_scope(login: Login, tmp_path: Path) -> None:
    """S-76: in place of what the server proposes; it still gets tokens that can be refreshed."""
    login.more["scopes_supported"] = ["everything", "offline_access"]
    await person_logs_in(login, tmp_path, scope="little")
    await person_logs_in(login, tmp_path / "other")
    assert login.asked == ["little offline_access", "everything offline_access"]


async def test_a_person_logs_in_where_the_server_greets_strangers(login: Login, tmp_path: Path) -> None:
    """S-76: such a server asks for a login when a tool is called, and then nobody is there."""
    login.greets_strangers = True
    assert len(await person_logs_in(login, tmp_path)) == 1
    assert token_file(tmp_path).exists()
