"""``perdure doctor --keys``: which keys content in Temporal is encrypted with, and whether all processes have them.

What the keys are needed for is read from open turns and from schedules; closed runs hold theirs for as long as the
namespace keeps them.
"""

from collections import Counter
from collections.abc import AsyncIterator, Iterator

import temporalio.client
from google.protobuf.message import Message
from temporalio.api.common.v1 import Payload
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest, DescribeScheduleRequest

from perdure.cli.errors import ExitCode
from perdure.cli.findings import Finding
from perdure.client import Client, KeysMismatchError
from perdure.client.connect import connect, make_converter, rpc_errors
from perdure.client.encryption import codec_of, key_id_of, load_keyring
from perdure.client.worker_stores import check_keys, marks_of, worker_stores
from perdure.contracts.errors import KeyringError
from perdure.contracts.ids import SCHEDULE_PREFIX
from perdure.contracts.names import AGENT_TURN
from perdure.security.keyring import Keyring
from perdure.settings import ENCRYPTION_KEYS, Settings

MOST_TURNS = 5_000
"""Open turns among which the oldest are looked for."""

READ_TURNS = 50
"""The oldest open turns, whose histories are read."""

IN_PLAIN_TEXT = "plain text"
CHECK = "encryption"


async def ask_fleet(client: Client, keyring: Keyring | None) -> Finding | None:
    """Whether the workers and this process read each other; None where nobody has keys."""
    queue = client.settings.task_queue
    told = await worker_stores(client.temporal, queue)
    try:
        check_keys(marks_of(keyring), told, queue)
    except KeysMismatchError as error:
        text, _, fix = str(error).partition("; ")
        return Finding(check=CHECK, ok=False, text=text, fix=fix, code=ExitCode.USAGE)
    if keyring is None:
        return None
    how = f"encrypts with {keyring.primary!r}" if keyring.encrypts else "encrypts nothing ('plain' stands first)"
    return Finding(check=CHECK, ok=True, text=f"{how}, has {', '.join(keyring.ids)}; {len(told)} workers read it")


async def ask_keys(settings: Settings) -> AsyncIterator[Finding]:
    """The oldest open turn decoded, and how often each key occurs in open turns and in schedules."""
    keyring = load_keyring(settings)
    temporal = await connect(make_converter(keyring))
    query = f'WorkflowType = "{AGENT_TURN}" AND ExecutionStatus = "Running" AND TaskQueue = "{settings.task_queue}"'
    with rpc_errors():
        runs = [run async for run in temporal.list_workflows(query, limit=MOST_TURNS)]
    runs = sorted(runs, key=lambda run: run.start_time)[:READ_TURNS]
    turns: Counter[str] = Counter()
    for place, run in enumerate(runs):
        handle = temporal.get_workflow_handle(run.id, run_id=run.run_id)
        with rpc_errors():
            found = [payload async for event in handle.fetch_history_events() for payload in payloads_in(event)]
        turns.update({key_id_of(payload) or IN_PLAIN_TEXT for payload in found})
        if place == 0:
            try:
                await codec_of(temporal.data_converter).decode(found)
            except KeyringError as error:
                cause, _, fix = str(error).partition("; ")
                text = f"the oldest open turn, {run.id}, cannot be read: {cause}"
                yield Finding(check=CHECK, ok=False, text=text, fix=fix, code=ExitCode.USAGE)
            else:
                text = f"the oldest open turn, {run.id}, can be read: {len(found)} payloads"
                yield Finding(check=CHECK, ok=True, text=text)
    if not runs:
        yield Finding(check=CHECK, ok=None, text="no turn is open, so no payload of one was decoded")
    schedules = await _keys_of_schedules(temporal)
    yield _finding_of_use(keyring, turns, schedules, len(runs))
    with rpc_errors():
        asked = DescribeNamespaceRequest(namespace=temporal.namespace)
        described = await temporal.workflow_service.describe_namespace(asked, retry=True)
    days = described.config.workflow_execution_retention_ttl.ToTimedelta()
    yield Finding(
        check=CHECK, ok=None, text=f"closed runs hold the keys of their time until they are gone, after {days}"
    )


async def _keys_of_schedules(temporal: temporalio.client.Client) -> dict[str, set[str]]:
    """The keys by the schedules that need them."""
    found: dict[str, set[str]] = {}
    with rpc_errors():
        async for listed in await temporal.list_schedules():
            if not listed.id.startswith(SCHEDULE_PREFIX):
                continue
            asked = DescribeScheduleRequest(namespace=temporal.namespace, schedule_id=listed.id)
            described = await temporal.workflow_service.describe_schedule(asked, retry=True)
            for payload in payloads_in(described.schedule):
                found.setdefault(key_id_of(payload) or IN_PLAIN_TEXT, set()).add(
                    listed.id.removeprefix(SCHEDULE_PREFIX)
                )
    return found


def _finding_of_use(keyring: Keyring | None, turns: Counter[str], schedules: dict[str, set[str]], read: int) -> Finding:
    """Describe where each key still occurs, and which of ours could go."""
    ids = keyring.ids if keyring is not None else ()
    used = sorted(turns.keys() | schedules.keys())
    parts = [f"{name}: {turns[name]} of {read} open turns, {len(schedules.get(name, ()))} schedules" for name in used]
    text = "; ".join(parts) or "no key occurs in an open turn or a schedule"
    if lacking := [name for name in used if name not in {*ids, IN_PLAIN_TEXT}]:
        fix = f"add {', '.join(lacking)} to {ENCRYPTION_KEYS}"
        return Finding(check=CHECK, ok=False, text=text, fix=fix, code=ExitCode.USAGE)
    old = ids[1:] if keyring is not None and keyring.encrypts else ids
    needed = sorted({name for key in old for name in schedules.get(key, ())})
    if needed:
        fix = f"'perdure schedule update {needed[0]} --note …' encrypts a schedule anew; then its old key may go"
        return Finding(check=CHECK, ok=None, text=text, fix=fix)
    return Finding(check=CHECK, ok=True, text=text)


def payloads_in(message: Message) -> Iterator[Payload]:
    """The payloads in a message of Temporal's, except those of search attributes, which nothing encrypts."""
    for field, value in message.ListFields():
        if field.message_type is None or field.name == "search_attributes":
            continue
        if field.message_type.GetOptions().map_entry:
            if field.message_type.fields_by_name["value"].message_type is None:
                continue
            values = [value[key] for key in value]
        else:
            values = list(value) if field.is_repeated else [value]
        for held in values:
            if isinstance(held, Payload):
                yield held
            elif isinstance(held, Message):
                yield from payloads_in(held)
