"""What crosses a process keeps its shape: a change shows as a diff of a snapshot, reviewed with the changelog."""

import pytest

from tests.contract.schema_snapshots import FOLDER, snapshots

SNAPSHOTS = snapshots()


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_a_schema_equals_its_snapshot(name: str) -> None:
    stored = (FOLDER / name).read_text(encoding="utf-8")
    assert SNAPSHOTS[name] == stored, "if the change is meant: make schemas, and a line in CHANGELOG.md"


def test_no_snapshot_is_left_over() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(SNAPSHOTS)
