"""A store for commands, in an environment without the developer's own settings."""

import os
from pathlib import Path

import pytest

NOBODY = "127.0.0.1:1"
"""No program of a user can listen at this port."""


@pytest.fixture
def store_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of a store that is not there yet, which the commands find in their environment."""
    for name in list(os.environ):
        if name.startswith(("PERDURE_", "TEMPORAL_")):
            monkeypatch.delenv(name)
    # Nobody listens there. At Temporal's own port, or at that of an address file above this folder, somebody may.
    monkeypatch.setenv("TEMPORAL_ADDRESS", NOBODY)
    url = f"sqlite:///{tmp_path / 'store.db'}"
    monkeypatch.setenv("PERDURE_STORE_URL", url)
    return url
