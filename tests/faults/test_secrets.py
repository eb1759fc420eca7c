"""Secrets are planted in every place, and then everything that is left of the job anywhere is read byte for byte."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from perdure.local_ports import find_free_port
from perdure.testing import Reply, ScriptedProvider, call, faults, say
from perdure.testing.script import ChatRequest, Fault
from tests.faults import everywhere
from tests.house import House, WorkerProcess, eventually

pytestmark = pytest.mark.deep

AGENTS = "tests.faults.agents_for_secrets"

SETTINGS = {
    "OPENAI_API_KEY": "sk-known-0setting1key2",
    "VAULT_TOKEN": "plainwords-without-shape-3",
    "ODD_SECRET": 'odd"quoted\\slashed é 4value',
    "DB_PASS": "d40atabase password",
    "MY_PAT": "p41ersonal-access-token",
    "HTTPS_PROXY": "http://me:p42roxy%2Fpass@127.0.0.1:9",
}
"""Values of variables that the worker knows to be secret; some are written in other ways by JSON and URLs."""

ENVIRONMENT = {
    "PLANTED_BEARER": "b5earer.of.a.letter",
    "PLANTED_URL": "u6rl-pa55word",
    "PLANTED_NEED": 'n37eeded by "name" only',
}
"""What only a tool's exception holds, and a secret that a tool is given by reference, of a name that is none."""

ARGUMENTS: dict[str, Any] = {
    "password": "h7unter",
    "pin": "q8z4w20",
    "number": 99,
    "argv": ["tool", "--token", "f9lag-in-list", "--user", "me", "--api-key=f10lag-in-place"],
    "command": "SERVICE_TOKEN=e11nvironment curl -H 'X-Api-Key: h12eader-key' https://me:u13rl-pass@host ghp_14"
    + "a" * 36,
    "url": "https://api.test/v1?api_key=q29uery-key&access_token=q30uery-token",
    "script": "export api_key=e31xported; curl -u admin:u32ser-pass -H 'Cookie: session=c33ookie' "
    r"-H 'Authorization: Basic dXNlcjpwYXNz' -d '{\"password\": \"j34son-in-json\"}'",
    "options": {
        "sk-proj-35name0ofan0option": "x",
        "auth_token": "n15ested-token",
        "deep": [{"client_secret": "d16eep-secret"}],
        "headers": [{"name": "Authorization", "value": "p17air-of-header"}, ["X-Auth-Token", "p18air-in-list"]],
        "password": 19191919,
        "auth": [{"password": 73519}],
        "known": f"in the midst {SETTINGS['VAULT_TOKEN']} of text",
    },
}
PLANTED = {
    "known key": SETTINGS["OPENAI_API_KEY"],
    "known token": SETTINGS["VAULT_TOKEN"],
    "known odd value": "slashed",
    "known password": "d40atabase",
    "known access token": "p41ersonal",
    "password of a proxy": "p42roxy",
    "bearer of an exception": ENVIRONMENT["PLANTED_BEARER"],
    "URL of an exception": ENVIRONMENT["PLANTED_URL"],
    "need of a tool": "n37eeded",
    "password": "h7unter",
    "masked by the tool": "q8z4w20",
    "flag in a list": "f9lag-in-list",
    "flag with its value": "f10lag-in-place",
    "environment of a command": "e11nvironment",
    "header of a command": "h12eader-key",
    "URL of a command": "u13rl-pass",
    "shape under a harmless name": "ghp_14aaaa",
    "nested": "n15ested-token",
    "deep": "d16eep-secret",
    "header as an object": "p17air-of-header",
    "header as a list": "p18air-in-list",
    "number": "19191919",
    "small number": "73519",
    "key in a URL": "q29uery-key",
    "token in a URL": "q30uery-token",
    "exported": "e31xported",
    "user's password": "u32ser-pass",
    "cookie": "c33ookie",
    "basic without a digit": "dXNlcjpwYXNz",
    "JSON in a text": "j34son-in-json",
    "name of an argument": "sk-proj-35name0ofan0option",
    "URL of an error": "r36efused-token",
    "kept": "k20ept-by-a-tool",
    "broken": "b21roken-json",
    "unknown": "u22nknown-tool",
    "whole echo": "sk-proj-23whole0echo",
    "starred echo": "24tail",
    "starred echo without a shape": "25head",
    "body of an error": "e26rror-body",
    "header of a reply": "r27esponse-header",
    "hard-coded": "sk-hard-28coded0key",
}


WAL = "store.db-wal"
"""Where SQLite keeps what was written last; it is emptied when a turn with masked arguments has ended."""

ECHO = f"your key is {SETTINGS['VAULT_TOKEN']}"

STATUSES = (400, 401, 403, 404, 408, 409, 413, 422, 429, 500, 502, 503, 529)

BODY = (
    f"Incorrect API key provided: {SETTINGS['OPENAI_API_KEY']}, not sk-proj-23whole0echo nor sk-proj-****24tail nor "
    f'25head********; sent was {{"api_key": "e26rror-body", "x": 1}}, Authorization: Bearer e26rror-body.x; '
    f"token={SETTINGS['VAULT_TOKEN']}, for https://api.test/v1?token=r36efused-token&secret=r36efused-token"
)
HEADERS = {
    "x-request-id": "r27esponse-header",
    "www-authenticate": f"Bearer {SETTINGS['VAULT_TOKEN']}",
    "set-cookie": "session=r27esponse-header",
}


def refused(status: int) -> Fault:
    return faults.status(status, headers=HEADERS, body={"error": {"message": BODY, "type": BODY, "code": None}})


def careless(request: ChatRequest) -> Reply:
    """The model of all tools: what to do stands in the prompt."""
    prompt = str(request.messages[0]["content"])
    if prompt.startswith("status "):
        fault = refused(int(prompt.split()[1]))
        return say("done").after(fault, fault)
    replies = {
        "tools": (
            call(
                ("login", ARGUMENTS),
                ("keep", {"password": "k20ept-by-a-tool", "note": "n"}),
                ("keep", '{"password": "b21roken-json", "note": '),
                ("nowhere", {"password": "u22nknown-tool"}),
                ("environment", {"form": "text"}),
                ("environment", {"form": "json"}),
                ("dump", {}),
                ("borrow", {"fail": False}),
                ("borrow", {"fail": True}),
            ),
            say("done"),
        ),
        "abort": (call(("keep", {"password": "k20ept-by-a-tool", "note": "n"}), ("login", ARGUMENTS)), say("done")),
        "echo": (call(("keep", {"password": "k20ept-by-a-tool", "note": "n"}), text=ECHO), say(ECHO)),
        "content ghp_0123456789abcdefghijABCDEFGHIJ": (call(("found", {})), say("sk-example-0123456789")),
        "hard-coded": (call(("hard_coded", {})), say("done")),
        "hold": (call(("hold", {"password": "k20ept-by-a-tool " * 2_000})), say("done")),  # on pages of its own
    }
    return replies[prompt][request.index]


@pytest.fixture
def address(house: House) -> str:
    """Where the worker will serve its metrics."""
    return f"127.0.0.1:{find_free_port()}"


@pytest.fixture
async def worker(house: House, address: str) -> AsyncIterator[WorkerProcess]:
    """A worker as an operator starts it, who looks for a fault."""
    async with ScriptedProvider(careless) as provider:
        house.use(provider)
        spawned = house.spawn_worker(
            AGENTS,
            **SETTINGS,
            **ENVIRONMENT,
            HELD=str(house.folder / "held"),
            PERDURE_LOG_LEVEL="debug",
            PERDURE_METRICS_ADDRESS=address,
        )
        await spawned.polling()
        yield spawned


async def played(house: House, agent: str, *prompts: str) -> list[str]:
    """The sessions of these prompts, which have all ended."""
    turns = [await house.client.start(agent, prompt) for prompt in prompts]
    async with asyncio.timeout(90):
        await asyncio.gather(*(turn.result() for turn in turns))
    return [turn.session for turn in turns]


async def nothing_in_files(house: House, worker: WorkerProcess) -> None:
    """With the last connection the log is folded into the store's file, where what was wiped is overwritten."""
    await worker.stop()
    await house.store.close()
    assert everywhere.found(PLANTED, everywhere.files(house)) == []


async def left_of(house: House, address: str, *sessions: str, views: bool = True) -> list[tuple[str, str]]:
    """Which secret stands where, while the worker still runs."""
    places = {**everywhere.rows(house), **everywhere.files(house), **await everywhere.page(address)}
    for session in sessions:
        places |= {f"{place} of {session}": text for place, text in (await everywhere.temporal(house, session)).items()}
    if views:
        places |= await everywhere.views(sessions)
    return everywhere.found(PLANTED, places)


@pytest.mark.parametrize(
    ("agent", "prompt", "raised"),
    [("careless", "tools", True), ("strict", "abort", True), ("strict", "hard-coded", True), ("strict", "echo", False)],
)
async def test_no_secret_of_a_call_or_an_answer_is_left_anywhere(
    house: House, worker: WorkerProcess, address: str, agent: str, prompt: str, *, raised: bool
) -> None:
    """S-52: in arguments of any kind, in the exception that repeats them, in results, artifacts and logs.

    Secrets by reference never appear in history, store, events or logs.
    """
    (session,) = await played(house, agent, prompt)
    events = b"".join(everywhere.rows(house).values())
    assert (b"VaultError" in events, b"***" in events) == (raised, True)
    assert await left_of(house, address, session) == []
    await nothing_in_files(house, worker)
    assert ("login with ***" in worker.log.read_text()) == (prompt in {"tools", "abort"})
    assert ("borrowed ***" in worker.log.read_text()) == (prompt == "tools")


async def test_what_people_and_tools_give_as_content_stays_as_it_is(house: House, worker: WorkerProcess) -> None:
    """S-52: a prompt is in Temporal's hands before a worker reads it, and a model has to read what a tool found."""
    (session,) = await played(house, "strict", "content ghp_0123456789abcdefghijABCDEFGHIJ")
    said = [message.content for message in await house.client.transcript(session)]
    assert said == ["content ghp_0123456789abcdefghijABCDEFGHIJ", "", "ghp_" + "f" * 36, "sk-example-0123456789"]


async def test_no_secret_that_a_provider_sends_back_is_left_anywhere(
    house: House, worker: WorkerProcess, address: str
) -> None:
    """S-52: of any status, whether it is retried or not, and when the model is told of it."""
    prompts = [f"status {status}" for status in STATUSES]
    sessions = [
        *await played(house, "careless", *prompts),
        *await played(house, "told", "status 401 told", "status 503 told"),
    ]
    pending = await house.client.start("waiting", "status 503 waiting")
    handle = house.temporal.get_workflow_handle(pending.session)

    async def failed_once() -> bool:
        return any(pending.attempt > 1 for pending in (await handle.describe()).raw_description.pending_activities)

    await eventually(failed_once)
    assert await left_of(house, address, pending.session, views=False) == []
    assert await left_of(house, address, *sessions[:1], views=True) == []
    assert await left_of(house, address, *sessions[1:], views=False) == []


async def test_raw_arguments_stand_in_the_ledger_while_the_tool_runs_and_nowhere_afterwards(
    house: House, worker: WorkerProcess, address: str
) -> None:
    """S-52: the one place that the design allows."""
    turn = await house.client.start("careless", "hold")

    async def held() -> bool:
        return (house.folder / "held").exists()

    await eventually(held)
    meanwhile = {place for _, place in await left_of(house, address, turn.session, views=False)}
    assert "table tool_calls" in meanwhile
    assert meanwhile <= {"table tool_calls", "store.db", WAL}
    await turn.cancel()
    await turn.result()

    async def nowhere() -> bool:  # a reader of the store delays it
        return await left_of(house, address, turn.session) == []

    await eventually(nowhere)
    await nothing_in_files(house, worker)
