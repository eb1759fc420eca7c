"""References of a server's settings to the worker's environment. Imports no vendor."""

from collections.abc import Mapping
from pathlib import Path

from perdure.contracts.agents import fill_variables, names_in
from perdure.contracts.mcp import AnyServerConfig, StdioServerConfig

FOLDER_VARIABLE = "PERDURE_MCP_FOLDER"
"""Variable that names the folder of tokens and servers' logs; ``~/.perdure/mcp`` without it."""


class MissingVariableError(Exception):
    """A server needs variables that the worker does not have; the message names them."""


def resolve_references(config: AnyServerConfig, environment: Mapping[str, str]) -> dict[str, str]:
    """The server's HTTP headers or environment variables, with references replaced by values.

    Raises:
        MissingVariableError: The worker's environment lacks variables; the message names them.
    """
    needed = names_needed(config)
    missing = sorted(name for name in needed if not environment.get(name))
    if missing:
        msg = f"it needs {', '.join(missing)} in the worker's environment; set it and start the worker again"
        raise MissingVariableError(msg)
    values = {name: fill_variables(text, environment) for name, text in _texts(config).items()}
    if isinstance(config, StdioServerConfig):
        values = {**{name: environment[name] for name in config.required_env}, **values}
    return values


def own_folder(environment: Mapping[str, str]) -> Path:
    """The folder of tokens and servers' logs."""
    return Path(environment.get(FOLDER_VARIABLE) or "~/.perdure/mcp").expanduser()


def _texts(config: AnyServerConfig) -> dict[str, str]:
    return config.env if isinstance(config, StdioServerConfig) else config.headers


def names_needed(config: AnyServerConfig) -> set[str]:
    """The variables that the server needs or refers to."""
    return {*config.required_env, *(name for text in _texts(config).values() for name in names_in(text))}
