"""What Temporal refuses is told as that, with its own fix; "no server answers" is said only where none does."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import temporalio.client
from click.testing import CliRunner, Result
from temporalio.service import RPCStatusCode

from perdure.cli.main import cli
from perdure.client import Client, NoWorkerError, ServerRefusedError, ServerUnreachableError, updates
from perdure.client.connect import connect
from perdure.settings import Settings
from perdure.store import Store
from perdure.worker.search_attributes import SearchAttributesError, check_search_attributes
from tests.house import House
from tests.refusing_server import Answer, certificate, refusing, with_tls

pytestmark = pytest.mark.deep

UNAUTHENTICATED = Answer(RPCStatusCode.UNAUTHENTICATED, "Request unauthorized.")
FORBIDDEN = Answer(RPCStatusCode.PERMISSION_DENIED, "Request forbidden.")
LOGIN_PAGE = b"<html>sign in</html>"
NO_SERVER = "no Temporal server answers"

Environment = pytest.MonkeyPatch


@pytest.fixture
async def user(monkeypatch: Environment, tmp_path: Path) -> Environment:
    """A user without settings of Temporal, with a store."""
    for name in ("ADDRESS", "NAMESPACE", "API_KEY", "TLS", "PROFILE"):
        monkeypatch.delenv(f"TEMPORAL_{name}", raising=False)
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", str(tmp_path / "none.toml"))
    monkeypatch.setenv("PERDURE_STORE_URL", f"sqlite:///{tmp_path / 'store.db'}")
    await (await Store.open(f"sqlite:///{tmp_path / 'store.db'}", upgrade=True)).close()
    return monkeypatch


async def perdure(*arguments: str) -> Result:
    runner = CliRunner()
    return await asyncio.to_thread(runner.invoke, cli, list(arguments), prog_name="perdure")


async def told(address: str, user: Environment) -> tuple[str, dict[str, Any]]:
    """What ``perdure run`` says of it in a line, and what ``perdure doctor`` finds of the server."""
    user.setenv("TEMPORAL_ADDRESS", address)
    ran = await perdure("run", "tester", "go")
    (line,) = ran.stderr.splitlines()
    report = json.loads((await perdure("doctor", "--json")).stdout)
    (server,) = [check for check in report["checks"] if check["check"] == "server"]
    assert server["ok"] is False
    assert server["fix"]
    said = f"{server['text']}; {server['fix']}"
    assert NO_SERVER not in line + said
    return line, {"code": ran.exit_code, "doctor": said}


@pytest.mark.parametrize(
    ("answer", "part", "fix"),
    [
        (UNAUTHENTICATED, "did not accept the credentials (401, Request unauthorized.)", "set TEMPORAL_API_KEY"),
        (Answer(http=401), "did not accept the credentials (401, ", "set TEMPORAL_API_KEY"),
        (
            Answer(http=401, body=LOGIN_PAGE),
            "did not accept the credentials (401, HTTP status 401)",
            "TEMPORAL_API_KEY",
        ),
        (FORBIDDEN, "forbids this to the credentials in use (403, Request forbidden.)", "ask for a role"),
        (Answer(http=403, body=LOGIN_PAGE), "forbids this to the credentials in use (403, ", "ask for a role"),
    ],
    ids=["401", "401 of a proxy", "401 of a proxy with a page", "403", "403 of a proxy with a page"],
)
async def test_credentials_that_are_refused_are_told_as_that(
    answer: Answer, part: str, fix: str, user: Environment
) -> None:
    """S-51: a 401 asks for new credentials; the exit code is that of an error, since something was reached."""
    async with refusing({"*": answer}) as server:
        line, found = await told(server.address, user)
    assert part in line
    assert fix in line
    assert found["code"] == 1
    assert part in found["doctor"]
    assert fix in found["doctor"]


@pytest.mark.parametrize(("answer", "part"), [(UNAUTHENTICATED, "TEMPORAL_API_KEY"), (FORBIDDEN, "ask for a role")])
async def test_a_key_that_expires_while_a_client_is_connected_is_told_too(
    answer: Answer, part: str, user: Environment
) -> None:
    """S-51: by every call; none of them waits for a minute, and none takes it for a session that is not there."""
    calls: list[Callable[[Client], Any]] = [
        lambda client: client.start("tester", "go", session="job"),
        lambda client: client.send("job", "more"),
        lambda client: client.cancel("job"),
        lambda client: client.status("job"),
        lambda client: client.answer("job", "call_1", "red"),
        lambda client: client.extend("job", max_steps=5),
        lambda client: client.attach("job"),
        lambda client: client.check_worker(),
    ]
    async with refusing({"GetSystemInfo": Answer(), "*": answer}) as server:
        user.setenv("TEMPORAL_ADDRESS", server.address)
        async with await Client.connect(Settings()) as client:
            for call in calls:
                with pytest.raises(ServerRefusedError, match=part):
                    await call(client)


async def test_a_namespace_that_is_not_there_is_told_by_every_call(house: House) -> None:
    """S-51: with the command that makes it; also where a session that is not there would be another error."""
    house.environment.setenv("TEMPORAL_NAMESPACE", "nowhere")
    calls: list[Callable[[Client], Any]] = [
        lambda client: client.start("tester", "go", session="job"),
        lambda client: client.send("job", "more"),
        lambda client: client.cancel("job"),
        lambda client: client.status("job"),
        lambda client: client.answer("job", "call_1", "red"),
        lambda client: client.extend("job", max_steps=5),
        lambda client: client.attach("job"),
        lambda client: client.check_worker(),
    ]
    create = "no namespace nowhere; set TEMPORAL_NAMESPACE .* 'temporal operator namespace create --namespace nowhere'"
    async with await Client.connect(house.settings) as client:
        for call in calls:
            with pytest.raises(ServerRefusedError, match=create):
                await call(client)
    for arguments in (["run", "tester", "go"], ["follow", "job"], ["cancel", "job"]):
        # A process of its own: following handles Ctrl+C, which only a main thread can.
        command = [sys.executable, "-m", "perdure.cli", *arguments]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
        assert done.returncode == 1, done.stdout
        assert "has no namespace nowhere" in done.stderr


async def test_a_client_without_tls_is_told_that_the_server_speaks_it(user: Environment, tmp_path: Path) -> None:
    """S-51."""
    async with refusing(tls=with_tls(certificate(tmp_path))) as server:
        line, found = await told(server.address, user)
    assert "speaks TLS, and this client does not; set TEMPORAL_TLS=true" in line
    assert (found["code"], "set TEMPORAL_TLS=true" in found["doctor"]) == (8, True)


@pytest.mark.parametrize("name", ["TEMPORAL_TLS", "TEMPORAL_API_KEY"])
async def test_a_client_with_tls_is_told_that_the_server_speaks_none(name: str, user: Environment) -> None:
    """S-51: an API key turns TLS on; the fix works."""
    user.setenv(name, "true")
    async with refusing({"*": UNAUTHENTICATED}) as server:
        line, found = await told(server.address, user)
        assert "does not speak TLS, and this client does; set TEMPORAL_TLS=false" in line
        assert (found["code"], "set TEMPORAL_TLS=false" in found["doctor"]) == (8, True)
        user.setenv("TEMPORAL_TLS", "false")
        line, _ = await told(server.address, user)
        assert "(401" in line


async def test_a_certificate_that_is_not_trusted_is_told_with_the_setting(user: Environment, tmp_path: Path) -> None:
    """S-51: each of its faults; the fix of the first one works."""
    user.setenv("TEMPORAL_TLS", "true")
    good, other, old = (
        certificate(tmp_path),
        certificate(tmp_path, "temporal.example"),
        certificate(tmp_path, days=-1),
    )
    async with refusing({"*": UNAUTHENTICATED}, tls=with_tls(good)) as server:
        line, found = await told(server.address, user)
        assert "signed by an authority that is not trusted here; set TEMPORAL_TLS_SERVER_CA_CERT_PATH" in line
        assert (found["code"], "TEMPORAL_TLS_SERVER_CA_CERT_PATH" in found["doctor"]) == (8, True)
        user.setenv("TEMPORAL_TLS_SERVER_CA_CERT_PATH", str(good))
        line, _ = await told(server.address, user)
        assert "(401" in line
    for path, part in ((other, "is for another name; set TEMPORAL_ADDRESS"), (old, "has expired; renew it")):
        user.setenv("TEMPORAL_TLS_SERVER_CA_CERT_PATH", str(path))
        async with refusing(tls=with_tls(path)) as server:
            line, _ = await told(server.address, user)
        assert part in line


async def test_a_server_that_wants_a_certificate_of_the_client_says_so(user: Environment, tmp_path: Path) -> None:
    """S-51."""
    path = certificate(tmp_path)
    user.setenv("TEMPORAL_TLS", "true")
    user.setenv("TEMPORAL_TLS_SERVER_CA_CERT_PATH", str(path))
    async with refusing(tls=with_tls(path, clients=path)) as server:
        line, found = await told(server.address, user)
    assert "set TEMPORAL_TLS_CLIENT_CERT_PATH and TEMPORAL_TLS_CLIENT_KEY_PATH" in line
    assert found["code"] == 8


@pytest.mark.parametrize("answer", [Answer(http=404, body=b"<html>"), Answer(http=302, body=b"<html>")])
async def test_what_is_no_temporal_server_is_told_as_that(answer: Answer, user: Environment) -> None:
    """S-51: such as the port of the UI."""
    async with refusing({"*": answer}) as server:
        line, found = await told(server.address, user)
    assert f"is no Temporal server (HTTP status {answer.http}); set TEMPORAL_ADDRESS to the gRPC port" in line
    assert found["code"] == 8


@asynccontextmanager
async def listening(
    answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[str]:
    """The address of a port where each connection is answered so."""
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as listener:
        yield f"127.0.0.1:{listener.sockets[0].getsockname()[1]}"


async def test_a_port_that_speaks_http_1_only_is_no_temporal_server(user: Environment) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async with listening(answer) as address:
        line, found = await told(address, user)
    assert f"what answers at {address} is no Temporal server; set TEMPORAL_ADDRESS to the gRPC port" in line
    assert found["code"] == 8


async def test_a_proxy_whose_server_is_away_is_told_as_that(user: Environment) -> None:
    """S-51: it answers with a status of its own, or takes the connection and closes it."""
    async with refusing({"*": Answer(http=503, body=b"no healthy upstream")}) as server:
        line, found = await told(server.address, user)
    assert (
        "a proxy answers in place of the Temporal server, which is away (HTTP status 503); look at the server" in line
    )
    assert found["code"] == 8

    async def close(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with listening(close) as address:
        line, found = await told(address, user)
    assert f"what answers at {address} takes connections and says nothing, as a proxy does whose server is away" in line
    assert found["code"] == 8


async def test_a_worker_of_a_namespace_that_is_not_there_says_so(house: House) -> None:
    """S-51: in the words of the doctor, and not as search attributes that cannot be read."""
    there = house.temporal.config() | {"namespace": "nowhere"}
    with pytest.raises(SearchAttributesError, match="the Temporal server has no namespace nowhere; set TEMPORAL_NAMES"):
        await check_search_attributes(temporalio.client.Client(**there))


async def test_only_where_nobody_answers_no_server_answers(user: Environment) -> None:
    user.setenv("TEMPORAL_ADDRESS", "127.0.0.1:1")
    with pytest.raises(ServerUnreachableError, match=NO_SERVER):
        await connect()


async def test_a_server_that_leaves_while_an_update_is_delivered_cancels_nobody(user: Environment) -> None:
    """The SDK raises one error for a cancelled caller and for a call that the server gave up."""
    gone = Answer(RPCStatusCode.CANCELLED, "the server stops")
    taken = {"GetSystemInfo": Answer(), "DescribeWorkflowExecution": Answer()}
    async with refusing({**taken, "UpdateWorkflowExecution": gone}) as server:
        user.setenv("TEMPORAL_ADDRESS", server.address)
        user.setattr("perdure.client.updates.ATTEMPTS", 2)
        async with await Client.connect(Settings()) as client:
            with pytest.raises(NoWorkerError, match="no worker took the limits"):
                await updates.send_limits(
                    client.temporal, "job", updates.extend_request(turn=1, end=False, max_steps=5)
                )
    assert server.calls.count("UpdateWorkflowExecution") == 2
