"""``${NAME}`` in a server's settings: what it stands for, and which of these values are secrets. Imports no vendor."""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from perdure.agents.agent import Agent
from perdure.agents.needs import secrets_among
from perdure.contracts.mcp import AnyServerConfig, StdioServerConfig
from perdure.settings import SHORTEST_SECRET, known_secrets

_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


FOLDER_VARIABLE = "PERDURE_MCP_FOLDER"
"""Where tokens and the servers' logs are, if not in ``~/.perdure/mcp``."""


class MissingVariableError(Exception):
    """A server needs variables that the worker does not have; the message names them."""


def resolved(config: AnyServerConfig, environment: Mapping[str, str]) -> dict[str, str]:
    """The server's headers or variables, with the values of what they refer to.

    Raises:
        MissingVariableError: The worker lacks some.
    """
    needed = {*config.required_env, *_names(config)}
    missing = sorted(name for name in needed if not environment.get(name))
    if missing:
        msg = f"it needs {', '.join(missing)} in the worker's environment; set it and start the worker again"
        raise MissingVariableError(msg)
    values = {name: _REFERENCE.sub(lambda found: environment[found[1]], text) for name, text in _texts(config).items()}
    if isinstance(config, StdioServerConfig):
        values = {**{name: environment[name] for name in config.required_env}, **values}
    return values


def secret_values(agents: Iterable[Agent], environment: Mapping[str, str]) -> frozenset[str]:
    """What no text may show: what references of the agents' servers stand for, and the secrets that tools need.

    A path that exists is no secret of a server. Of a value of several lines each line is one too: logs show them so.
    """
    agents = tuple(agents)
    needed = (secrets_among(tool.needs, environment) for agent in agents for tool in agent.tools)
    values = known_secrets(environment).union(*needed) | {
        value
        for agent in agents
        for config in agent.mcp_servers
        for name in (*config.required_env, *_names(config))
        if len(value := environment.get(name, "")) >= SHORTEST_SECRET and not _is_path(value)
    }
    return values | {line for value in values for line in _lines(value)}


def own_folder(environment: Mapping[str, str]) -> Path:
    """Where tokens and the servers' logs are."""
    return Path(environment.get(FOLDER_VARIABLE) or "~/.perdure/mcp").expanduser()


def _texts(config: AnyServerConfig) -> dict[str, str]:
    return config.env if isinstance(config, StdioServerConfig) else config.headers


def _names(config: AnyServerConfig) -> Iterator[str]:
    for text in _texts(config).values():
        yield from _REFERENCE.findall(text)


def _lines(value: str) -> Iterator[str]:
    for line in (raw.strip() for raw in value.splitlines()):
        if len(line) >= SHORTEST_SECRET and not line.startswith("-----"):  # as keys begin and end
            yield line


def _is_path(value: str) -> bool:
    try:
        return value.startswith(("/", "~", "./")) and Path(value).expanduser().exists()
    except (OSError, RuntimeError, ValueError):
        return False
