"""MCP servers as an author names them, and the state of one as operators see it.

A value in ``headers`` and ``env``, and a registered client, may refer to the worker's environment as ``${NAME}``. What
a reference stands for is read where the server is connected; it never becomes part of a definition, a history or the
store.
"""

import re
from datetime import timedelta
from enum import StrEnum
from typing import Self
from urllib.parse import urlsplit

from pydantic import ConfigDict, Field, field_validator, model_validator

from perdure.contracts.values import Authored, Items, Value

LONGEST_INIT = timedelta(minutes=4)
"""Two tries of connecting fit into the time that the opening of a turn may take."""

_ONLY_REFERENCES = re.compile(r"(\$\{[A-Za-z_][A-Za-z0-9_]*\})+")


class ServerStatus(StrEnum):
    """Status of a server's connection on one worker."""

    CONNECTED = "connected"
    DISCONNECTED = "disconnected"
    FAILED = "failed"
    NEEDS_AUTH = "needs_auth"
    DISABLED = "disabled"


class ServerState(Value):
    """One server on one worker; ``error`` says why, if it is failed or needs a login."""

    name: str
    status: ServerStatus
    error: str = ""


class McpServerConfig(Authored):
    """Settings that all MCP servers share.

    Attributes:
        name: Stands before the names of its tools: ``name__tool``.
        pick: The only tools that the agent may use; None is all of them.
        omit: Tools that it may not use.
        init_timeout: Longest time until it is connected and has listed its tools.
        call_timeout: Longest time of one call; the server is then told to stop.
        stateful: Whether it remembers something from call to call. The calls of a turn then all go to the worker that
            opened the turn.
        enabled: False leaves the server and its tools out.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,31}$")
    pick: Items[str] | None = None
    omit: Items[str] = ()
    init_timeout: timedelta = Field(default=timedelta(seconds=30), gt=timedelta(0), le=LONGEST_INIT)
    call_timeout: timedelta = Field(default=timedelta(seconds=300), gt=timedelta(0))
    stateful: bool = False
    enabled: bool = True

    @field_validator("pick", "omit", mode="before")
    @classmethod
    def _is_a_list(cls, value: object) -> object:
        if isinstance(value, str):
            msg = f"write a list of tool names, for example [{value!r}]"
            raise ValueError(msg)  # noqa: TRY004 - pydantic turns it into an error of the field
        return value


class StdioServerConfig(McpServerConfig):
    """A server that the worker starts as a process of its own, and keeps.

    Attributes:
        command: The program; looked for on the worker's PATH.
        args: Its arguments.
        env: Further variables for it; ``${NAME}`` is taken from the worker's environment.
        cwd: Its working directory; the worker's by default.
        required_env: Variables of the worker that are handed on, and without which it is not started. Beside these it
            gets HOME, LOGNAME, PATH, SHELL, TERM and USER only.
    """

    command: str = Field(min_length=1)
    args: Items[str] = ()
    env: dict[str, str] = {}
    cwd: str | None = None
    required_env: Items[str] = ()


class OAuthConfig(Authored):
    """Settings by which the worker asks a server's login for tokens. Without a client it registers itself there.

    Attributes:
        client_name: What people read when they are asked for their consent.
        scope: What is asked for, separated by spaces; None is what the server proposes.
        client_id: Id of a client that is registered with the login already; ``${NAME}`` is taken from the worker's
            environment.
        client_secret: Its secret, as ``${NAME}``; None for a public client.
        client_metadata_url: Address of a document that describes the client, and is its id where the login takes such
            ids; ``https://host/path``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    client_name: str = "perdure"
    scope: str | None = None
    client_id: str | None = Field(default=None, min_length=1)
    client_secret: str | None = None
    client_metadata_url: str | None = None

    @field_validator("client_secret")
    @classmethod
    def _is_not_written_out(cls, secret: str | None) -> str | None:
        if secret is not None and not _ONLY_REFERENCES.fullmatch(secret):
            msg = "client_secret may not be written out; write '${NAME}' and set NAME in the worker's environment"
            raise ValueError(msg)
        return secret

    @field_validator("client_metadata_url")
    @classmethod
    def _is_an_address(cls, url: str | None) -> str | None:
        parts = urlsplit(url or "https://host/path")
        if parts.scheme != "https" or not parts.hostname or parts.path in {"", "/"} or parts.fragment or parts.username:
            msg = f"client_metadata_url {url!r} cannot be a client's id; write for example 'https://host/client.json'"
            raise ValueError(msg)
        return url

    @model_validator(mode="after")
    def _has_one_client(self) -> Self:
        if self.client_secret is not None and self.client_id is None:
            msg = "client_secret belongs to a client; give its client_id too"
            raise ValueError(msg)
        if self.client_id is not None and self.client_metadata_url is not None:
            msg = "give client_id or client_metadata_url, not both: each is the id of a client"
            raise ValueError(msg)
        return self


class HttpServerConfig(McpServerConfig):
    """A server behind a URL: streamable HTTP, or SSE where the server has only that.

    Attributes:
        url: ``https://…``, or ``http://…``.
        headers: Sent with each request; ``${NAME}`` is taken from the worker's environment.
        oauth: The server wants a login, made once with ``python -m perdure.worker.mcp_login``.
        timeout: Longest time for connecting and for sending a request.
        sse_read_timeout: Longest silence of a reply.
        required_env: Variables of the worker without which it is not connected.
    """

    url: str
    headers: dict[str, str] = {}
    oauth: OAuthConfig | None = None
    timeout: timedelta = Field(default=timedelta(seconds=30), gt=timedelta(0))
    sse_read_timeout: timedelta = Field(default=timedelta(seconds=300), gt=timedelta(0))
    required_env: Items[str] = ()

    @model_validator(mode="after")
    def _url_is_one(self) -> Self:
        parts = urlsplit(self.url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            msg = f"url {self.url!r} is none; write for example 'https://host/mcp'"
            raise ValueError(msg)
        if parts.username or parts.password:
            msg = "url: put no credentials into it; use headers={'Authorization': 'Bearer ${NAME}'}"
            raise ValueError(msg)
        return self


AnyServerConfig = StdioServerConfig | HttpServerConfig
