"""References of a server's settings to the worker's environment. Imports no vendor."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from perdure.contracts.mcp import AnyServerConfig, OAuthConfig, StdioServerConfig
from perdure.contracts.variables import fill_variables, names_in

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


@dataclass(frozen=True)
class RegisteredClient:
    """A client that is registered with a login, with references replaced by values; it stays in memory."""

    id: str
    secret: str = field(default="", repr=False)


def registered_client(oauth: OAuthConfig, environment: Mapping[str, str]) -> RegisteredClient | None:
    """The registered client of a login; None if perdure registers itself. The variables are there."""
    if oauth.client_id is None:
        return None
    secret = fill_variables(oauth.client_secret or "", environment)
    return RegisteredClient(fill_variables(oauth.client_id, environment), secret)


def own_folder(environment: Mapping[str, str]) -> Path:
    """The folder of tokens and servers' logs."""
    return Path(environment.get(FOLDER_VARIABLE) or "~/.perdure/mcp").expanduser()


def _texts(config: AnyServerConfig) -> dict[str, str]:
    return config.env if isinstance(config, StdioServerConfig) else config.headers


def names_needed(config: AnyServerConfig) -> set[str]:
    """The variables that the server needs or refers to."""
    texts = (*_texts(config).values(), *_client_texts(config))
    return {*config.required_env, *(name for text in texts for name in names_in(text))}


def _client_texts(config: AnyServerConfig) -> Iterator[str]:
    oauth = None if isinstance(config, StdioServerConfig) else config.oauth
    if oauth is not None:
        yield from (text for text in (oauth.client_id, oauth.client_secret) if text is not None)
