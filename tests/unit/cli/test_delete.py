"""``perdure delete``: what it prints, and its exit code, when a delegate still runs."""

import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import pytest
from click.testing import CliRunner

from perdure.cli import control
from perdure.client import Erased, NotErased
from perdure.store.keys.tombstones import Tombstone

NOW = datetime(2026, 3, 1, tzinfo=UTC)
STONE = Tombstone(
    id="t1",
    session="s",
    tenant="",
    agent="helper",
    erased_by="ann",
    reason="request",
    erased_at=NOW,
    finished_at=NOW,
    digest="",
    counts={},
)


@pytest.mark.parametrize(
    "left", [(), (NotErased(session="s.helper", why="a turn of it runs"),)], ids=["all", "but one"]
)
@pytest.mark.parametrize("as_json", [False, True])
def test_what_was_not_erased_is_named_and_is_an_exit_code(
    monkeypatch: pytest.MonkeyPatch, left: tuple[NotErased, ...], as_json: bool
) -> None:
    erased = Erased(session="s", delegates=("s.other",), not_erased=left, tombstone=STONE)

    def with_client(_: Callable[[object], Awaitable[Erased]]) -> Erased:
        return erased

    monkeypatch.setattr(control, "with_client", with_client)
    done = CliRunner().invoke(control.delete_command, ["s", "--yes", *(["--json"] if as_json else [])])
    assert done.exit_code == len(left)
    if as_json:
        assert json.loads(done.stdout)["not_erased"] == [{"session": "s.helper", "why": "a turn of it runs"}] * len(
            left
        )
        return
    assert "erased session s, 1 sessions of delegates; tombstone t1" in done.stdout
    said = "not erased: s.helper: a turn of it runs; then run this command again\n"
    assert done.stderr == (said if left else "")
