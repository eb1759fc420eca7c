"""A verb, the doctor and a client that use another store than the workers say so at once, instead of waiting."""

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from perdure.cli.main import cli
from perdure.client import Client, StoreMismatchError
from perdure.client.worker_stores import worker_stores
from perdure.store import Store
from tests.house import House, eventually

pytestmark = pytest.mark.deep

AGENTS = "tests.workflow.agents_for_kill"


def perdure(*args: str) -> Result:
    return CliRunner().invoke(cli, args, prog_name="perdure")


def store_check() -> dict[str, object]:
    checks = json.loads(perdure("doctor", "--json").stdout)["checks"]
    return next((check for check in checks if check["check"] == "workers' store"), {})


async def test_who_uses_another_store_than_the_workers_hears_of_both(house: House, tmp_path: Path) -> None:
    worker = house.spawn_worker(AGENTS)
    await worker.polling()
    queue = house.settings.task_queue
    (told,) = await eventually(lambda: worker_stores(house.temporal, queue))
    assert (told.store, told.address) == (house.store.id, house.settings.store_url)
    assert (await asyncio.to_thread(store_check))["ok"] is True

    elsewhere = f"sqlite:///{tmp_path / 'elsewhere.db'}"
    await (await Store.open(elsewhere, upgrade=True)).close()
    house.environment.setenv("PERDURE_STORE_URL", elsewhere)
    result = await asyncio.to_thread(perdure, "run", "killed", "go")
    assert (result.exit_code, result.stderr.count("\n"), result.stdout) == (2, 1, "")
    assert f"uses the store {elsewhere} (id " in result.stderr
    assert f"use {house.settings.store_url} (id {house.store.id[:8]}) on worker" in result.stderr
    found = await asyncio.to_thread(store_check)
    assert (found["ok"], "set PERDURE_STORE_URL" in str(found["fix"])) == (False, True)

    async with await Client.connect() as client:
        with pytest.raises(StoreMismatchError, match="uses the store"):
            await client.start("killed", "go")
        with pytest.raises(StoreMismatchError):
            await client.store()

    second = house.spawn_worker(AGENTS, PERDURE_STORE_URL=elsewhere)
    await second.polling()
    assert "another worker of this task queue uses another store" in second.log.read_text()
    found = await asyncio.to_thread(store_check)
    assert (found["ok"], "turns wait for workers of their store" in str(found["text"])) == (None, True)
