"""The store that the release before this one has left opens after the migration, and shows what it showed before.

Its histories replay in ``test_replay``.
"""

import asyncio
import json
import shutil
import sys
from typing import Any

import pytest
from click.testing import CliRunner

from perdure.cli.main import cli
from perdure.store import Store, migrate
from perdure.store.schema import KNOWN_REVISIONS
from tests.house import ROOT
from tests.releases import BEFORE

SHOWN: dict[str, str] = json.loads((BEFORE / "shown.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def store_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A migrated copy of the store."""
    file = tmp_path_factory.mktemp("before") / "store.db"
    shutil.copy(BEFORE / "store.db", file)
    url = f"sqlite:///{file}"
    assert migrate.read_schema(url).pending == KNOWN_REVISIONS[1:]
    migrate.migrate(url)
    assert migrate.read_schema(url).applied == KNOWN_REVISIONS[-1]
    assert asyncio.run(fill(url)) > 3
    return url


async def fill(url: str) -> int:
    """What workers do behind a migration; how many sessions there were."""
    async with await Store.open(url) as store:
        return await store.fill()


def perdure(*arguments: str) -> str:
    result = CliRunner().invoke(cli, arguments, prog_name="perdure", catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def values_of(text: str) -> list[Any]:
    """The JSON values of an output: one, or one a line."""
    try:
        return [json.loads(text)]
    except ValueError:
        return [json.loads(line) for line in text.splitlines()]


def is_within(before: Any, now: Any) -> bool:
    """Whether all is there that was there before; a newer release may say more."""
    if isinstance(before, dict):
        return isinstance(now, dict) and all(name in now and is_within(before[name], now[name]) for name in before)
    if isinstance(before, list):
        return isinstance(now, list) and len(before) == len(now) and all(map(is_within, before, now))
    return bool(before == now)


def test_a_value_that_is_missing_or_another_is_found() -> None:
    """Proves that the test below can fail."""
    before = {"a": [{"b": 1}]}
    assert is_within(before, {"a": [{"b": 1, "c": 2}], "d": 3})
    assert not is_within(before, {"a": [{"b": 2}]})
    assert not is_within(before, {"a": [{"b": 1}, {"b": 1}]})
    assert not is_within(before, {"a": [{}]})


@pytest.mark.parametrize("verb", SHOWN)
async def test_the_store_shows_what_it_showed_before(
    verb: str, store_url: str, environment: pytest.MonkeyPatch
) -> None:
    environment.setenv("PERDURE_STORE_URL", store_url)
    before, shown = values_of(SHOWN[verb]), values_of(await asyncio.to_thread(perdure, *verb.split()))
    if verb == "show waiting --json":
        before[0].pop("waits_for")  # this is what Temporal said, and this server knows no such turn
    assert is_within(before, shown)


async def test_a_session_of_the_store_is_followed(store_url: str, environment: pytest.MonkeyPatch) -> None:
    environment.setenv("PERDURE_STORE_URL", store_url)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "perdure.cli", "follow", "asked", "--json"), cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    assert process.returncode == 0
    assert is_within(values_of(SHOWN["export asked --format events"]), values_of(output.decode()))
