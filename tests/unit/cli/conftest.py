"""A store for commands, in an environment without the developer's own settings."""

import os
from pathlib import Path

import pytest


@pytest.fixture
def store_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of a store that is not there yet, which the commands find in their environment."""
    for name in list(os.environ):
        if name.startswith(("PERDURE_", "TEMPORAL_")):
            monkeypatch.delenv(name)
    url = f"sqlite:///{tmp_path / 'store.db'}"
    monkeypatch.setenv("PERDURE_STORE_URL", url)
    return url
