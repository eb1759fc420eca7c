"""With keys in the settings, nothing that was said stands in Temporal in plain text, and all goes on as before."""

import base64
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest
import temporalio.client
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.query.v1 import WorkflowQuery
from temporalio.api.schedule.v1 import ScheduleListEntry
from temporalio.api.workflowservice.v1 import (
    DescribeScheduleRequest,
    DescribeWorkflowExecutionRequest,
    ListSchedulesRequest,
    QueryWorkflowRequest,
)

from perdure import Agent, ask_user, tool
from perdure.cli.server import EmbeddedServer, ServerOptions
from perdure.client.connect import make_converter
from perdure.client.encryption import open_store
from perdure.contracts.names import AGENT_TURN
from perdure.local_ports import find_free_port
from perdure.security.keyring import Keyring
from perdure.settings import Settings
from perdure.testing import ChatRequest, Reply, ScriptedProvider, call, faults, say
from tests.house import House, become_a_user, eventually
from tests.workflow.delegating import in_order, played

pytestmark = pytest.mark.deep

KEY = bytes(range(32))
KEYS = f"k1:{base64.b64encode(KEY).decode()}"

MARKS = {
    name: f"MARK-{name}-7Q"
    for name in (
        *("prompt", "argument", "result", "error", "question", "answer", "delegate", "steered", "final", "context"),
        *("queued", "cancel", "pause", "note", "scheduled", "message", "output", "approved", "by"),
    )
}
"""A text for each thing that is said; none of them may be seen where it is encrypted."""

CONTROL = "MARK-control-7Q"
"""What is not encrypted, and so has to be seen: who looks for the marks would find them."""


@tool
def look(at: str) -> str:
    """Look at something."""
    return MARKS["result"]


@tool
def fail(why: str) -> str:
    """Fail."""
    raise RuntimeError(MARKS["error"])


@tool(requires_approval=True)
def pay(to: str) -> str:
    """Pay somebody."""
    return "paid"


def agent(name: str, **settings: Any) -> Agent:
    return Agent(name=name, model="openai/scripted", instructions=f"I am {name}.", **settings)


LEAD = agent("lead", on_tool_error="feed_back", tools=[look, fail, pay, ask_user], delegates=["helper"])
HELPER = agent("helper")


def helper(_: ChatRequest) -> Reply:
    return say(MARKS["output"])


def lead(request: ChatRequest) -> Reply:
    """One turn with everything in it; the next one hangs until it is cancelled."""
    if any(MARKS["queued"] in str(message.get("content")) for message in request.messages):
        return say("late").after(faults.hang())
    if MARKS["scheduled"] in str(request.messages[-1].get("content")):
        return say("on time")
    replies = (
        call(("look", {"at": MARKS["argument"]}), ("fail", {"why": "x"})),
        call(("ask_user", {"question": MARKS["question"]})),
        call(("pay", {"to": MARKS["approved"]})),
        call(("helper", {"query": MARKS["delegate"]})),
        say(MARKS["final"]),
    )
    return in_order(*replies)(request)


@pytest.fixture
async def sealed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[House]:
    """A house with keys, whose server keeps its executions in a file."""
    options = ServerOptions(port=find_free_port(), db=tmp_path / "temporal.db")
    async with EmbeddedServer(options) as server:
        become_a_user(monkeypatch, server.address)
        monkeypatch.setenv("PERDURE_ENCRYPTION_KEYS", KEYS)
        temporal = await temporalio.client.Client.connect(
            server.address, data_converter=make_converter(Keyring.parse(KEYS))
        )
        async with (
            House.built(
                name="sealed", server=server, temporal=temporal, environment=monkeypatch, folder=tmp_path
            ) as house,
            await open_store(house.settings) as house.store,
        ):
            yield house


def seen_in(blobs: Iterable[bytes]) -> set[str]:
    """Whose marks can be read in these bytes."""
    known = {**MARKS, "control": CONTROL}
    texts = list(blobs)
    return {name for name, mark in known.items() if any(mark.encode() in text for text in texts)}


def files_of(folder: Path, name: str) -> list[bytes]:
    """A database's file and what stands beside it, such as its log of writes."""
    found = [path.read_bytes() for path in sorted(folder.glob(f"{name}*"))]
    assert found
    return found


async def told_by_the_server(temporal: temporalio.client.Client) -> list[bytes]:
    """Everything that the server's API says of workflows and schedules, to a client without keys."""
    blobs: list[bytes] = []
    async for run in temporal.list_workflows():
        execution = WorkflowExecution(workflow_id=run.id, run_id=run.run_id)
        described = await temporal.workflow_service.describe_workflow_execution(
            DescribeWorkflowExecutionRequest(namespace=temporal.namespace, execution=execution), retry=True
        )
        blobs.append(described.SerializeToString())
        handle = temporal.get_workflow_handle(run.id, run_id=run.run_id)
        blobs.extend([event.SerializeToString() async for event in handle.fetch_history_events()])
    listed = await temporal.workflow_service.list_schedules(
        ListSchedulesRequest(namespace=temporal.namespace), retry=True
    )
    entries: Iterable[ScheduleListEntry] = listed.schedules
    for entry in entries:
        asked = DescribeScheduleRequest(namespace=temporal.namespace, schedule_id=entry.schedule_id)
        blobs += [
            entry.SerializeToString(),
            (await temporal.workflow_service.describe_schedule(asked, retry=True)).SerializeToString(),
        ]
    return blobs


async def answers_to_queries(temporal: temporalio.client.Client, session: str) -> list[bytes]:
    """What a running turn says of itself: its status, and the details that the UI shows."""
    asked = [
        QueryWorkflowRequest(
            namespace=temporal.namespace,
            execution=WorkflowExecution(workflow_id=session),
            query=WorkflowQuery(query_type=kind),
        )
        for kind in ("status", "budget", "__temporal_workflow_metadata")
    ]
    return [
        (await temporal.workflow_service.query_workflow(request, retry=True)).SerializeToString() for request in asked
    ]


async def is_asked(provider: ScriptedProvider, mark: str) -> bool:
    """Whether a model has read the mark."""
    return any(mark in str(made.request.messages) for made in provider.requests)


async def say_everything(house: House, plain: temporalio.client.Client, provider: ScriptedProvider) -> list[bytes]:
    """Carry out jobs in which each mark is said; what a client without keys learnt while they ran."""
    client, session = house.client, house.session
    turn = await client.start("lead", MARKS["prompt"], session=session, context={"of": MARKS["context"]})

    async def asked(tool: str) -> str | None:
        return next((open_.request_id for open_ in await client.inbox(session) if open_.tool == tool), None)

    question = await eventually(lambda: asked("ask_user"))
    blobs = await answers_to_queries(plain, session)
    await client.pause(session, MARKS["pause"], by=MARKS["by"])
    blobs += await answers_to_queries(plain, session)
    await client.unpause(session, by=MARKS["by"])
    await client.send(session, MARKS["steered"], when_busy="steer")
    await client.send(session, MARKS["queued"])
    await client.answer(session, question, MARKS["answer"], by=MARKS["by"])
    approval = await eventually(lambda: asked("pay"))
    blobs += await answers_to_queries(plain, session)
    await client.approve(session, approval, by=MARKS["by"])
    assert (await turn.result()).output == MARKS["final"]
    last = await client.attach(session)
    await eventually(lambda: is_asked(provider, MARKS["queued"]))
    await client.cancel(session, reason=MARKS["cancel"])
    await last.result()
    await client.schedules.add(
        "nightly",
        cron="0 3 * * *",
        agent="lead",
        prompt=MARKS["scheduled"],
        note=MARKS["note"],
        context={"of": MARKS["context"]},
    )
    await client.schedules.pause("nightly", note=MARKS["pause"])
    schedule = await client.schedules.get("nightly")
    assert (schedule.note, schedule.reason, schedule.prompt) == (MARKS["note"], MARKS["pause"], MARKS["scheduled"])
    return blobs


async def test_no_content_stands_in_plain_text_in_temporals_database_or_over_its_api(sealed: House) -> None:
    """Prompts, arguments, results, errors, questions, replies, delegates, steering, reasons and notes."""
    house, plain = sealed, await temporalio.client.Client.connect(sealed.server.address)
    async with ScriptedProvider(played(lead=lead, helper=helper)) as provider, house.worker(LEAD, HELPER):
        house.use(provider)
        blobs = await say_everything(house, plain, provider)
        read = str([request.request.messages for request in provider.requests])
        said = {name for name, mark in MARKS.items() if mark in read}
        assert {"prompt", "argument", "result", "error", "question", "answer", "steered", "delegate", "queued"} <= said
        blobs += await told_by_the_server(plain)
        assert len(blobs) > 50
        assert seen_in(blobs) == set()
        started = await plain.start_workflow(
            AGENT_TURN, {"agent": "helper", "prompt": CONTROL}, id="plain-input", task_queue=house.settings.task_queue
        )
        sealed_result = await house.temporal.get_workflow_handle(started.id).result()
        assert sealed_result["output"] == MARKS["output"]  # plain input is accepted, and the answer to it encrypted
        assert seen_in(await told_by_the_server(plain)) == {"control"}

        async def written() -> bool:
            return "control" in seen_in(files_of(house.folder, "temporal.db"))

        await eventually(written)
        assert seen_in(files_of(house.folder, "temporal.db")) == {"control"}
        assert b"plain-input" in b"".join(files_of(house.folder, "store.db"))
        assert seen_in(files_of(house.folder, "store.db")) == set()


async def test_a_webhooks_secret_stands_encrypted_in_the_store_and_signs_as_before(sealed: House) -> None:
    """Also the one before it, while both sign; and a secret of a time without keys is read as it is."""
    async with await open_store(Settings(encryption_keys=KEYS, store_url=sealed.settings.store_url)) as store:
        plain = await sealed.client.webhooks.add("https://example.com/plain")
        assert (await store.webhook_target(plain.id)) is not None
        added = await sealed.client.webhooks.add("https://example.com/hook")
        changed = await sealed.client.webhooks.exchange_secret(added.id)
        target = await store.webhook_target(added.id)
        assert target is not None
        assert target.secrets == (changed.secret, added.secret)
        headers = {"authorization": "Bearer of-the-receiver-1"}
        push = plain.model_copy(update={"id": "wh_0123456789abcdef", "session": "s", "turn": 1})
        await store.add_webhook(push, changed.secret, headers)
        told = await store.webhook_target(push.id)
        assert told is not None
        assert told.headers == headers
        files = files_of(sealed.folder, "store.db")
        assert not any(b"of-the-receiver-1" in file for file in files)
        assert not any(secret.encode() in file for secret in target.secrets for file in files)
        with contextlib.closing(sqlite3.connect(sealed.folder / "store.db")) as database, database:
            database.execute("UPDATE webhooks SET secret = 'whsec_plain' WHERE id = ?", (plain.id,))
        found = await store.webhook_target(plain.id)
        assert found is not None
        assert found.secrets[0] == "whsec_plain"
        await sealed.client.webhooks.remove(added.id)
