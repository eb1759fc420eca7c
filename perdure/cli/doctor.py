"""``perdure doctor``: check what a turn needs, and say how to fix it.

The checks of the server and of the store do not wait for each other, and one deadline bounds both. Long, because each
check says what it found, and what to do, in its own words.
"""

import asyncio
import contextlib
import os
import platform
import re
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path

import click
from pydantic import ValidationError
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest, GetSystemInfoRequest
from temporalio.service import RPCError, RPCStatusCode

from perdure.cli.connection import describe, open_store, views_of
from perdure.cli.errors import CliError, ExitCode
from perdure.cli.findings import Finding
from perdure.cli.fleet_versions import look_at_versions
from perdure.cli.gateway import find_readiness, gateway_url
from perdure.cli.keys import ask_fleet, ask_keys
from perdure.cli.output import print_json, show
from perdure.cli.render import Line, Tone, clean, to_one_line
from perdure.cli.rules import find_unknown_metrics
from perdure.cli.setup import find_missing_attributes
from perdure.cli.store import ask_sweeps
from perdure.cli.worker import USUAL_KEYS
from perdure.client import Client, ClientError
from perdure.client.connect import CONNECT_TIMEOUT, address_source, connect, load_config, make_converter, rpc_errors
from perdure.client.encryption import load_keyring
from perdure.client.errors import ServerUnreachableError, StoreMismatchError, TemporalConfigError
from perdure.client.restored import LOOKED_AT, compare
from perdure.client.worker_stores import WorkerStore, check_stores, worker_stores
from perdure.contracts.queues import Role
from perdure.libraries import (
    LibraryMismatchError,
    advice_for,
    check_libraries,
    describe_unknown_provider,
    describe_untested,
    find_untested,
    names_used_here,
    release_of,
)
from perdure.security.credentials import mask_addresses
from perdure.security.redaction import redact_text
from perdure.settings import PREFIX, Settings, SettingsError, folder_settings, secrets_of
from perdure.store import Store
from perdure.store.database import BUSY_TIMEOUT, Address
from perdure.store.errors import StoreError
from perdure.store.migrate import read_schema
from perdure.store.records import RegisteredAgent

SHOWN_TURNS = 5
"""Turns that one line names."""

_SAID = re.compile(r'(?:message|error): "([^"]*)"')
"""Message of the other end, or of the system, within the Temporal client's texts."""


@dataclass(frozen=True)
class Cluster:
    """Address and key in Temporal's own settings."""

    address: str
    api_key: str


def read_settings() -> tuple[Settings, list[Finding]]:
    """Our settings, those that cannot be used replaced by their defaults so that the other checks can go on."""
    found: list[Finding] = []
    try:
        settings = Settings(**folder_settings())
    except ValidationError as error:
        # Without the value, which may be a secret in the wrong variable.
        wrong = {
            str(problem["loc"][0]): problem["msg"].replace(repr(problem["input"]), "it") for problem in error.errors()
        }
        usable = {name: Settings.model_fields[name].default for name in wrong}
        settings = Settings(**folder_settings() | usable)
        for name, message in wrong.items():
            fix = "correct or unset it; the checks below use its default"
            found.append(_make_finding("settings", f"{PREFIX}{name.upper()}: {message}", fix))
    try:
        Address(settings.store_url)
    except StoreError as error:
        text, _, fix = str(error).partition("; ")
        found.append(_make_finding("settings", f"PERDURE_STORE_URL: {text}", fix))
    try:
        load_keyring(settings)
    except SettingsError as error:
        text, _, fix = str(error).partition("; ")
        found.append(_make_finding("settings", text, fix))
        settings = settings.model_copy(update={"encryption_keys": "", "encryption_keys_file": None})
    return settings, found or [Finding(check="settings", ok=True, text="all PERDURE_* variables are valid")]


def read_cluster() -> tuple[Cluster | None, Finding]:
    """Temporal's own settings; None if they cannot be read."""
    try:
        config = load_config()
    except TemporalConfigError as error:
        return None, _make_finding("Temporal settings", *str(error).split("; ", 1))
    except ServerUnreachableError as error:
        return None, finding_of_error("Temporal settings", error)
    cluster = Cluster(address=config.get("target_host", ""), api_key=config.get("api_key") or "")
    namespace = config.get("namespace", "default")
    key = "with" if cluster.api_key else "without"
    text = f"address {cluster.address} ({address_source()}), namespace {namespace}, {key} an API key"
    return cluster, Finding(check="Temporal settings", ok=True, text=text)


async def ask_server(settings: Settings, cluster: Cluster | None) -> AsyncIterator[Finding]:
    """Whether the server, the namespace, its search attributes and a worker are there."""
    later = ("namespace", "search attributes", "worker")
    if cluster is None:
        for finding in _skip_checks("its address is not known", "server", *later):
            yield finding
        return
    try:
        keyring = load_keyring(settings)
        client = Client(await connect(make_converter(keyring)), settings)
        with rpc_errors():
            info = await client.temporal.workflow_service.get_system_info(GetSystemInfoRequest(), retry=True)
        text = f"Temporal server {info.server_version} answers at {cluster.address}"
        yield Finding(check="server", ok=True, text=text, version=info.server_version)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what the doctor was asked for
        yield _describe_no_connection(error)
        for finding in _skip_checks("the server cannot be asked", *later):
            yield finding
        return
    namespace = await _try_check("namespace", _namespace(client))
    yield namespace
    if namespace.code is ExitCode.UNREACHABLE and not namespace.ok:
        for finding in _skip_checks("the namespace is not there", *later[1:]):
            yield finding
        return
    yield await _try_check("search attributes", _search_attributes(client))
    yield await _try_check("worker", _worker(client))
    if (roles := await find_missing_roles(client)) is not None:
        yield roles
    if (keys := await ask_fleet(client, keyring)) is not None:
        yield keys
    for ask in (_stores_of_workers, _find_closed_turns, _compare_store, ask_sweeps):
        with contextlib.suppress(CliError, StoreError, ClientError):  # what is wrong with them is told by other checks
            if (found := await ask(client)) is not None:
                yield found
    with contextlib.suppress(ClientError):
        for finding in [*await look_at_versions(client), *await _find_standing_turns(client)]:
            yield finding


async def ask_store(settings: Settings) -> AsyncIterator[Finding]:
    """Whether the store can be read, which agents are registered in it, and the keys their models need."""
    try:
        async with open_store(settings) as store:
            try:
                await store.check_writes()
            except StoreError as error:
                yield finding_of_error("store", error)
            else:  # told before checks that a store in trouble makes slow
                schema = await asyncio.to_thread(read_schema, settings.store_url)
                yield Finding(check="store", ok=True, text=f"{Address(settings.store_url)}, schema {schema.applied}")
            agents, blocks = await store.agents(), await store.blocks()
            rings = await store.doorbell.answers()
            artifacts = await _look_at_artifacts(settings, store)
            key_store = await _look_at_key_store(store)
    except Exception as error:  # noqa: BLE001 - as above
        yield finding_of_error("store", error)
        for finding in _skip_checks("the store cannot be read", "agents", "keys"):
            yield finding
        return
    if not rings:
        fix = (
            "set PERDURE_LISTEN_URL to its address without the pool; until then, followers look for events every second"
        )
        text = "PostgreSQL's NOTIFY does not reach a LISTEN, as behind PgBouncer in transaction mode"
        yield Finding(check="events", ok=None, text=text, fix=fix)
    if artifacts is not None:
        yield artifacts
    if key_store is not None:
        yield key_store
    for block in blocks:
        yield Finding(check="blocks", ok=None, text=clean(block.in_words), fix=f"perdure unblock {block.id}")
    for finding in look_at_agents(agents):
        yield finding


async def _look_at_artifacts(settings: Settings, store: Store) -> Finding | None:
    """Whether the place of large artifacts can be written, if there is one."""
    if not settings.artifacts:
        return None
    try:
        await store.shelf.check()
    except StoreError as error:
        cause, _, fix = str(error).rpartition("; ")
        return Finding(check="artifacts", ok=False, text=cause, fix=fix, code=ExitCode.UNREACHABLE)
    return Finding(check="artifacts", ok=True, text=f"{settings.artifacts} can be written")


async def _look_at_key_store(store: Store) -> Finding | None:
    """Whether the keys of sessions stand in the key store, if there is one: that it answers, the store has seen."""
    if store.key_store is None:
        return None
    here = sum((await store.count_own_keys()).values())
    if here:
        fix = "run 'perdure store keys --to key-store' once every process has PERDURE_KEY_STORE_URL"
        text = f"{here} keys of sessions are still in the store, and in its backups"
        return Finding(check="key store", ok=None, text=text, fix=fix)
    apart = sum((await store.count_keys()).values())
    return Finding(check="key store", ok=True, text=f"{store.key_store.address} holds all keys of sessions, {apart}")


async def ask_gateway(settings: Settings) -> AsyncIterator[Finding]:
    """Whether the gateway is ready, if one is said to be anywhere."""
    if (url := gateway_url(settings)) is not None:
        yield await asyncio.to_thread(find_readiness, url)


def look_at_libraries() -> Iterator[Finding]:
    """Whether the libraries are as perdure expects them. litellm's names are left to a worker: it loads for seconds."""
    try:
        check_libraries(names_used_here())
    except LibraryMismatchError as error:
        text, _, fix = str(error).partition("; ")
        yield _make_finding("libraries", text, fix)
    untested = find_untested()
    for library in untested:
        yield Finding(check="libraries", ok=None, text=describe_untested(library), fix=advice_for(library))
    if not untested:
        yield Finding(check="libraries", ok=True, text="all are of tested releases")


def look_at_agents(agents: Iterable[RegisteredAgent]) -> Iterator[Finding]:
    """The agents that are registered, and a hint on the key of each provider of their models."""
    models = {agent.name: agent.model for agent in agents}
    if not models:
        fix = "start a worker with 'perdure worker --agents MODULE', or 'perdure dev --agents MODULE' on this machine"
        yield Finding(check="agents", ok=False, text="no worker has registered any agent in this store", fix=fix)
    else:
        yield Finding(check="agents", ok=True, text=", ".join(sorted(models)))
    for provider in sorted({model.partition("/")[0] if "/" in model else "" for model in models.values()}):
        yield _key(provider)


def _key(provider: str) -> Finding:
    names = USUAL_KEYS.get(provider)
    if provider and (problem := describe_unknown_provider(provider)):
        fix = "correct the agent's model; a provider of your own is known to the workers that register it only"
        return Finding(check="keys", ok=None, text=problem, fix=fix)
    if names is None:
        unknown = f"{provider}: perdure does not know which variable holds its key"
        text = unknown if provider else "a model has no provider in its name, as openai/ in openai/gpt-4o"
        fix = "litellm's documentation of the provider names the variable; set it where the worker starts"
        return Finding(check="keys", ok=None, text=text, fix=fix)
    there = next((name for name in names if os.environ.get(name)), None)
    if there is not None:
        return Finding(check="keys", ok=True, text=f"{provider}: {there} is set here; workers read their own")
    text = f"{provider}: {' or '.join(names)} is not set here; workers read their own"
    return Finding(check="keys", ok=None, text=text, fix=f"make sure that {names[0]} is set where the worker starts")


async def _namespace(client: Client) -> Finding:
    name = client.temporal.namespace
    try:
        with rpc_errors():
            await client.temporal.workflow_service.describe_namespace(
                DescribeNamespaceRequest(namespace=name), retry=True
            )
    except Exception as error:
        if not isinstance(error.__cause__, RPCError) or error.__cause__.status != RPCStatusCode.NOT_FOUND:
            raise
        fix = f"create it with 'temporal operator namespace create --namespace {name}', or set TEMPORAL_NAMESPACE"
        text = f"the server has no namespace {name}"
        return Finding(check="namespace", ok=False, text=text, fix=fix, code=ExitCode.UNREACHABLE)
    return Finding(check="namespace", ok=True, text=name)


async def _search_attributes(client: Client) -> Finding:
    check = "search attributes"
    if client.settings.search_attributes == "off":
        return Finding(check=check, ok=True, text="not used, by PERDURE_SEARCH_ATTRIBUTES=off")
    missing = await find_missing_attributes(client)
    if missing:
        fix = "run 'perdure setup' once, or set PERDURE_SEARCH_ATTRIBUTES=off; without either, no worker starts"
        return Finding(check=check, ok=False, text=f"{', '.join(sorted(missing))}: not registered", fix=fix)
    return Finding(check=check, ok=True, text="all are registered")


async def _worker(client: Client) -> Finding:
    await client.check_worker()
    return Finding(check="worker", ok=True, text=f"a worker polls the task queue {client.settings.task_queue!r}")


async def find_missing_roles(client: Client) -> Finding | None:
    """The roles of a split fleet that no worker has; None if no worker has any, as each then does everything."""
    queue, told = client.settings.task_queue, await worker_stores(client.temporal, client.settings.task_queue)
    there = frozenset[str]().union(*(worker.roles for worker in told))
    if not there:
        return None
    if any(not worker.roles for worker in told):
        there |= {Role.TURNS}
    missing = [role for role in Role if role not in there]
    if not missing:
        return Finding(check="roles", ok=True, text=f"workers of {queue!r} have {', '.join(Role)}")
    text = f"no worker of {queue!r} has the role {' or '.join(missing)}, so work for this role waits"
    fix = f"start one with 'perdure worker --roles {','.join(missing)} --agents MODULE'"
    return Finding(check="roles", ok=False, text=text, fix=fix)


async def _stores_of_workers(client: Client) -> Finding | None:
    """Whether the workers use the store that is looked at here; None if no worker tells its store."""
    queue = client.settings.task_queue
    async with open_store(client.settings) as store:
        own = WorkerStore.worker_store_of(store)
    told = await worker_stores(client.temporal, queue)
    check = "workers' store"
    try:
        check_stores(own, told, queue)
    except StoreMismatchError as error:
        return finding_of_error(check, error)
    others = [poller for poller in told if poller.store != own.store]
    if others:
        text = (
            f"worker {others[0].worker} uses {others[0]}, and others use {own}: turns wait for workers of their store"
        )
        return Finding(
            check=check, ok=None, text=text, fix="give all workers of a task queue the same PERDURE_STORE_URL"
        )
    return Finding(check=check, ok=True, text="the same") if told else None


async def _find_closed_turns(client: Client) -> Finding | None:
    """Open turns whose workflow Temporal has ended, with the command that goes on; None if there are none."""
    async with open_store(client.settings) as store:
        ended = await views_of(store, client).closed_turns()
    if not ended:
        return None
    shown = ", ".join(f"{name} ({closure.how})" for name, closure in list(ended.items())[:SHOWN_TURNS])
    more = f" and {len(ended) - SHOWN_TURNS} more" if len(ended) > SHOWN_TURNS else ""
    text = f"Temporal has ended the workflows of open turns: {shown}{more}"
    fix = f"'perdure send {next(iter(ended))} …' ends the open turn and goes on from its last step"
    return Finding(check="turns", ok=None, text=text, fix=fix)


async def _compare_store(client: Client) -> Finding | None:
    """Whether the store is older than what Temporal knows, as after a restore; None if it is not."""
    async with open_store(client.settings) as store:
        found = await compare(client.temporal, store, client.settings.task_queue, most_open=LOOKED_AT)
    if not found:
        return None
    kinds = {
        "turns that have ended are open in it": [end.session for end in found.open],
        "ended turns of its sessions are missing": [end.session for end in found.behind],
        "sessions are missing": list(found.missing),
    }
    said = [
        f"{len(names)} {kind} ({', '.join(names[:SHOWN_TURNS])}{', ...' if len(names) > SHOWN_TURNS else ''})"
        for kind, names in kinds.items()
        if names
    ]
    text = f"the store is older than what Temporal knows, as after a restore: {'; '.join(said)}"
    fix = "'perdure store reconcile --dry-run' lists them, 'perdure store reconcile' closes and adds what can be"
    return Finding(check="turns", ok=False, text=text, fix=fix)


async def _find_standing_turns(client: Client) -> list[Finding]:
    """The turns of the task queue that stand still until somebody acts, and by cause how many others wait."""
    waits = await client.waits(await client.views.running_sessions())
    stuck = {session: wait for session, wait in waits.items() if wait.is_stuck}
    # A caller that waits for one of these delegates has nothing to add.
    shown = {session: wait for session, wait in stuck.items() if wait.session == session or wait.session not in stuck}
    now = datetime.now(UTC)
    found = [
        Finding(check="turns", ok=False, text=f"{session} {wait.facts(now)}", fix=wait.advice)
        for session, wait in list(shown.items())[:SHOWN_TURNS]
    ]
    if len(shown) > SHOWN_TURNS:
        text = f"{len(shown) - SHOWN_TURNS} more turns stand still"
        found.append(Finding(check="turns", ok=False, text=text, fix="'perdure list --stuck' names them"))
    others = Counter(wait.cause.value for session, wait in waits.items() if session not in stuck)
    if others:
        causes = ", ".join(f"{cause} {count}" for cause, count in sorted(others.items()))
        fix = "nothing to do; 'perdure list' says what each waits for, 'perdure inbox' what people are asked"
        found.append(Finding(check="turns", ok=None, text=f"waiting: {causes}", fix=fix))
    return found


async def _try_check(check: str, asking: Coroutine[None, None, Finding]) -> Finding:
    try:
        return await asking
    except Exception as error:  # noqa: BLE001 - as above
        return finding_of_error(check, error)


def finding_of_error(check: str, error: Exception) -> Finding:
    """The finding of a check that ended in an error."""
    described = describe(error)
    if described is None:
        line = (str(error).strip().splitlines() or ["no message"])[0]
        return Finding(check=check, ok=False, text=f"{type(error).__name__}: {line[:300]}")
    text, _, fix = described.message.partition("; ")
    return Finding(check=check, ok=False, text=text, fix=fix, code=ExitCode(described.exit_code))


def _describe_no_connection(error: Exception) -> Finding:
    """Describe why the server was not reached, with what the system or the other end said."""
    text, _, fix = str(error).partition("; ")
    said = _SAID.findall(str(error.__cause__)) if isinstance(error, ServerUnreachableError) else []
    if not said:
        return finding_of_error("server", error)
    return Finding(check="server", ok=False, text=f"{text} ({said[-1]})", fix=fix, code=ExitCode.UNREACHABLE)


def _make_finding(check: str, text: str, fix: str) -> Finding:
    return Finding(check=check, ok=False, text=text, fix=fix, code=ExitCode.USAGE)


def _skip_checks(why: str, *checks: str) -> Iterator[Finding]:
    for check in checks:
        yield Finding(check=check, ok=None, text=f"not checked: {why}")


PATIENCE = max(CONNECT_TIMEOUT, BUSY_TIMEOUT) + timedelta(seconds=1)
"""Longest time for the answers of server and store together: as long as a connection, and a moment to report it."""

KEYS_PATIENCE = timedelta(seconds=60)
"""The same where histories are read."""

_MARKS = {True: ("✓", Tone.GOOD), False: ("✗", Tone.BAD), None: ("·", Tone.QUIET)}
_WORST_FIRST = (ExitCode.USAGE, ExitCode.UNREACHABLE, ExitCode.ERROR)


@click.command("doctor")
@click.option(
    "--keys", is_flag=True, help="Also decrypt the oldest open turn, and say which keys open turns and schedules need."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--rules",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Only check that perdure has the metrics that this file of Prometheus rules or Grafana dashboard names. A "
    "folder stands for its .yml, .yaml and .json files; may be repeated.",
)
@click.pass_context
def doctor_command(ctx: click.Context, *, keys: bool, as_json: bool, rules: tuple[Path, ...]) -> None:
    """Check settings, server, worker and store, and say how to fix each problem.

    It changes nothing, takes a few seconds at most, and shows no secret. ✓ is well, ✗ is a problem, and · is a hint or
    could not be checked. Exit codes: 0 no problem, 2 a setting is wrong, 8 something is not reachable, 1 any other
    problem.
    """
    patience = (KEYS_PATIENCE if keys else PATIENCE).total_seconds()
    findings = (
        [found for path in rules for found in check_rules(path)]
        if rules
        else examine(time.monotonic() + patience, keys=keys)
    )
    versions = {
        "perdure": version("perdure"),
        **{name: release for name in ("temporalio", "litellm", "openai", "mcp") if (release := release_of(name))},
        "python": platform.python_version(),
        "server": next((finding.version for finding in findings if finding.version), None),
    }
    code = exit_code(findings)
    if as_json:
        checks = [
            {"check": found.check, "ok": found.ok, "text": found.text, "fix": found.fix or None} for found in findings
        ]
        print_json({"ok": code is ExitCode.FINISHED, "checks": checks, "versions": versions})
        ctx.exit(code)
    for finding in findings:
        mark, tone = _MARKS[finding.ok]
        fix = f"; {finding.fix}" if finding.fix else ""
        show(Line(f"{mark} {finding.check}: {finding.text}{fix}", tone))
    known = " · ".join(f"{name} {number or 'unknown'}" for name, number in versions.items())
    show(Line(f"{_MARKS[True][0]} versions: {known}", _MARKS[True][1]))
    ctx.exit(code)


def check_rules(path: Path) -> list[Finding]:
    """A finding for each metric that rules or dashboards name and perdure lacks; one good finding if there is none."""
    unknown = find_unknown_metrics(path)
    return [
        Finding(
            check="rules",
            ok=False,
            text=f"{metric.place}: perdure has no metric {metric.name}",
            fix=f"did you mean {metric.near}?" if metric.near else "docs/metrics.md lists them",
            code=ExitCode.USAGE,
        )
        for metric in unknown
    ] or [Finding(check="rules", ok=True, text=f"{path}: perdure has all perdure_* metrics in it")]


def examine(deadline: float, *, keys: bool = False) -> list[Finding]:
    """Everything that was found by the deadline, in a fixed order and without secrets."""
    settings, found = read_settings()
    cluster, temporal = read_cluster()
    asked = [
        Asking("server", ask_server(settings, cluster), fix="check TEMPORAL_ADDRESS, TLS and the network"),
        Asking("store", ask_store(settings), fix="check PERDURE_STORE_URL and the network"),
        Asking("gateway", ask_gateway(settings), fix="check PERDURE_GATEWAY_ADDRESS and the network"),
    ]
    if keys:
        asked.append(Asking("encryption", ask_keys(settings), fix="check TEMPORAL_ADDRESS, TLS and the network"))
    found = [
        *look_at_libraries(),
        *found,
        temporal,
        *(finding for asking in asked for finding in asking.collect(deadline)),
    ]
    secrets = secrets_of() | {cluster.api_key if cluster is not None else ""}

    def shown(text: str) -> str:
        return to_one_line(mask_addresses(redact_text(text, secrets)))

    return [replace(finding, text=shown(finding.text), fix=shown(finding.fix)) for finding in found]


class Asking:
    """Checks on a thread of their own: one that never ends neither delays the others nor keeps the process alive."""

    def __init__(self, name: str, checks: AsyncIterator[Finding], *, fix: str) -> None:
        self._name = name
        self._checks = checks
        self._fix = fix
        self._found: list[Finding] = []
        self._thread = threading.Thread(target=lambda: asyncio.run(self._ask()), daemon=True)
        self._thread.start()

    async def _ask(self) -> None:
        try:
            async for finding in self._checks:
                self._found.append(finding)
        except Exception as error:  # noqa: BLE001 - the thread's edge: a bug of ours must not look like health
            self._found.append(finding_of_error(self._name, error))

    def collect(self, deadline: float) -> list[Finding]:
        """Collect the findings by the deadline; checks that are not done by then are a finding too."""
        self._thread.join(max(0.0, deadline - time.monotonic()))
        late = self._thread.is_alive()
        found = list(self._found)
        if late:
            text = f"did not answer all checks within {PATIENCE.total_seconds():.0f} s"
            found.append(Finding(check=self._name, ok=False, text=text, fix=self._fix, code=ExitCode.UNREACHABLE))
        return found


def exit_code(findings: Iterable[Finding]) -> ExitCode:
    """The exit code of the worst finding."""
    codes = {finding.code for finding in findings if finding.ok is False}
    return next((code for code in _WORST_FIRST if code in codes), ExitCode.FINISHED)
