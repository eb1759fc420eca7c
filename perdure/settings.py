"""Settings: the only reader of the environment, called once by each main function; the result is frozen.

Address, namespace, TLS and API key of the Temporal server are not here: they come from Temporal's own environment
configuration (``TEMPORAL_ADDRESS``, ``TEMPORAL_NAMESPACE``, ``TEMPORAL_PROFILE``, …), read by ``perdure.client``. What
no variable says comes from the address file of ``perdure dev``, where that runs.

Credentials among the variables are found by their names, and passwords inside of addresses. Each of them is cut out of
every text. So a value that texts hold for other reasons is none: a short one, an ordinary word, a path that exists.

Long, because each variable that a process reads stands here, with its default, its meaning and its check.
"""

import ipaddress
import os
import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import unquote

from pydantic import Field, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from perdure.contracts.agents import SHORTEST_SECRET
from perdure.contracts.errors import PerdureError
from perdure.contracts.names import A2A_CAPABILITIES, DEFAULT_TASK_QUEUE, DOORS
from perdure.contracts.queues import RateLimit, Role, Routing
from perdure.contracts.webhooks import EVERYWHERE, Egress, read_entry
from perdure.local_files import DevFile, find, make_folder
from perdure.setting_lists import READERS, parts_of

_ENDS = re.compile(r"(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL)S?$")
"""The ends of words that name a credential, also without an underscore before them: ``PGPASSWORD``, ``APIKEY``."""

_NO_KEYS = re.compile(r"(?:MON|DON|TUR|HOC|JOC|WHIS|LAC|FLUN|HOT)KEYS?$")

_SURE = re.compile(
    r"\w*(?:PASSWORD|PASSWD|PASSPHRASE|SECRET|CREDENTIAL)S?"
    r"|(?:DB|PG|SQL|MYSQL|REDIS|SMTP|IMAP|MAIL|FTP|SSH|LDAP|USER|ROOT|ADMIN|SUDO)?(?:PASS|PWD)"
)
"""Words that name a credential wherever they stand between underscores."""

_LIKELY = re.compile(
    r"(?:\w*(?:API|ACCESS|AUTH|PRIVATE|SECRET))?(?:KEY|TOKEN)S?|PAT|JWT|AUTH|AUTHORIZATION|BEARER|COOKIES?"
)
"""Words that name one if the value has a digit, as keys have: ``PRIMARY_KEY_COLUMN`` holds a word."""

_ABOUT = re.compile(
    r"AGE|ALG|ALGORITHM|ALIAS|ARN|ATTEMPTS|AUDIENCE|BACKEND|CMD|COLUMN|COMMAND|COUNT|DIR|DISABLED|ENABLED|ENDPOINT"
    r"|EXPIRATION|EXPIRES|EXPIRY|FIELD|FILE|FILENAME|FOLDER|FORMAT|HEADER|HOST|INTERVAL|ISSUER|LAYOUT|LEN|LENGTH|LIMIT"
    r"|MANAGER|MAX|MIN|MODE|NAME|PATH|PATTERN|POLICY|PORT|PREFIX|PROMPT|PROVIDER|RATE|REGEX|REGION|REQUIRED|ROTATION"
    r"|SCOPES?|SERVER|SERVICE|SIZE|SOCK|SOCKET|STORE|STRATEGY|SUFFIX|TIMEOUT|TTL|TYPE|URI|URL|VERSION"
)
"""Last words of names that say something about a credential: ``AWS_WEB_IDENTITY_TOKEN_FILE``, ``TOKEN_URL``."""

_SHELL = frozenset({"PWD", "OLDPWD"})
"""The folders of a shell."""

_ORDINARY = re.compile(
    r"anonymous|automatic|changeit|changeme|database|default|development|disabled|enabled|external|internal|localhost"
    r"|optional|password|postgres|postgresql|production|required|security|standard|undefined|unlimited|username",
    re.IGNORECASE,
)
"""Words that many texts hold for other reasons."""

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*://")
_END_OF_ADDRESS = re.compile(r"[\s\"<>]")
_END_OF_AUTHORITY = re.compile(r"[/?#]")
_PORT = re.compile(r"\d+(?:/|$)")

_BARE = re.compile(r"[^\s:/@]+:(?P<password>\S+)@(?:[\w.\-]+(?::\d+)?/?|(?:tcp|unix)\(\S*)")
"""``user:password@host:port`` as proxies take it, and ``user:password@tcp(host)/database``."""

_SETTING = re.compile(
    r"(?:^|[\s;?&,])(?:\w*(?:password|passwd|token|secret)|pwd|(?:api|access|account|sharedaccess|ssl)_?key)\s*=\s*"
    r"(?:'(?P<quoted>[^']*)'|\"(?P<double>[^\"]*)\"|(?P<plain>[^\s;&,#'\"]+))",
    re.IGNORECASE,
)
"""A credential in the query of an address, or in a connection string such as ``host=db password=…``."""

ENCRYPTION_KEYS = "PERDURE_ENCRYPTION_KEYS"

_ORIGIN = re.compile(r"https?://[A-Za-z0-9.\-\[\]:]*[A-Za-z0-9\]]")

_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[!-~]+")
_ADDRESS = re.compile(rf"{_ORIGIN.pattern}(?:/[^\s?#]*)?")

_URL_SAFE, _STANDARD = str.maketrans("+/", "-_"), str.maketrans("-_", "+/")

SHORTEST_USER = 16
"""A user without a password who has at least so many characters, with a digit among them, is a token."""

SHORTEST_PATH = 16
"""The same for the path of a webhook: clients name it without its host when they fail."""


def credentials_in(environment: Mapping[str, str]) -> frozenset[str]:
    """Secret values among these variables; masked in every text."""
    return frozenset(value for name, text in environment.items() for value in _values(name, text) if _is_secret(value))


def _values(name: str, text: str) -> Iterator[str]:
    """Yield the parts of a variable that may be secret: all of it by its name, and what it holds."""
    if _names_credential(name, text):
        yield text
    if name.upper() == ENCRYPTION_KEYS:
        yield from keys_in(text)
    if _is_webhook(name, text):
        yield text
        path = text.partition("://")[2].partition("/")[2]
        if len(path) >= SHORTEST_PATH and _has_digit(path):
            yield path
    for held in _passwords_of(name, text):
        yield held
        yield unquote(held)


def keys_in(text: str) -> Iterator[str]:
    """The keys in a text of ``ID:BASE64``, as texts may show them: without padding, in both alphabets of base64."""
    for entry in re.split(r"[,\n]", text):
        key = entry.partition(":")[2].strip().rstrip("=")
        yield from {key, key.translate(_URL_SAFE), key.translate(_STANDARD)}


def _names_credential(name: str, text: str) -> bool:
    name = name.upper()
    words = [word for word in re.split(r"[^A-Z0-9]+", name) if word]
    if name in _SHELL or not words:
        return False
    if _ENDS.search(name) and not _NO_KEYS.search(name):
        return True
    if _ABOUT.fullmatch(words[-1]):
        return False
    if "DSN" in words:
        return any(True for _ in _passwords_of(name, text))
    if any(_SURE.fullmatch(word) for word in words):
        return True
    return _has_digit(text) and any(_LIKELY.fullmatch(word) for word in words)


def _is_webhook(name: str, text: str) -> bool:
    return "WEBHOOK" in name.upper() and _SCHEME.match(text) is not None and not name.upper().startswith(PREFIX)


def _passwords_of(name: str, text: str) -> Iterator[str]:
    """The passwords in addresses and connection strings, as they stand there."""
    schemes = list(_SCHEME.finditer(text))
    ends = [*(scheme.start() for scheme in schemes[1:]), len(text)]
    for scheme, end in zip(schemes, ends, strict=False):
        yield from _user_passwords_of(_END_OF_ADDRESS.split(text[scheme.end() : end])[0])
    for setting in _SETTING.finditer(text):
        yield next(value for value in setting.groups() if value is not None)
    bare = _BARE.fullmatch(text)
    if bare is not None and not schemes and (name.upper().endswith("PROXY") or "@tcp(" in text or "@unix(" in text):
        yield bare["password"]


def _user_passwords_of(address: str) -> Iterator[str]:
    """The password of ``user:password@host/…``, or a user that is a token."""
    authority = _END_OF_AUTHORITY.split(address)[0]
    for place in {authority, address}:  # a password that is not encoded may hold what ends an authority
        before, at, _ = place.rpartition("@")
        user, _, password = before.partition(":")
        if not at or ("@" not in authority and _PORT.match(password)):  # host:8080/path@version
            continue
        if password and password.casefold() != user.casefold():
            yield password
        if len(user) >= SHORTEST_USER and _has_digit(user) and not set(user) & set("./@"):
            yield user


def _is_secret(value: str) -> bool:
    return len(value) >= SHORTEST_SECRET and not _ORDINARY.fullmatch(value) and not is_path(value)


def is_path(value: str) -> bool:
    """Whether the value is a path that exists here."""
    try:
        return value.startswith(("/", "~", "./")) and Path(value).expanduser().exists()
    except (OSError, RuntimeError, ValueError):
        return False


def _has_digit(text: str) -> bool:
    return any(character.isdigit() for character in text)


DEFAULT_STORE_URL = "sqlite:///.perdure/store.db"
"""The embedded default: a file below the working directory, shared by ``perdure dev`` and the command line there."""

PREFIX = "PERDURE_"

RecordingMode = Literal["off", "record", "replay"]


class SettingsError(PerdureError):
    """An environment variable has a value that cannot be used; the message names it."""


class Settings(BaseSettings):
    """Settings of workers, gateways, clients and the command line. Each field is the variable ``PERDURE_<NAME>``."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="ignore")

    store_url: str = Field(default=DEFAULT_STORE_URL, description="Transcript store: sqlite:///… or postgresql://…")
    listen_url: str = Field(
        default="",
        description="Address of the same PostgreSQL database without a pooler, if PERDURE_STORE_URL goes through one",
    )
    key_store_url: str = Field(
        default="",
        description="A second database for the keys of sessions, outside the store's backups; empty: in the store",
    )
    artifacts: str = Field(
        default="",
        description="Where artifacts over 1 MB are kept: s3://BUCKET/PREFIX or file:///FOLDER; empty: in the store",
    )
    task_queue: str = Field(default=DEFAULT_TASK_QUEUE, min_length=1, description="Temporal task queue of the turns")
    roles: Annotated[tuple[Role, ...], NoDecode] = Field(
        default=(), description="In a split fleet, what this process does: turns, models, tools; empty is everything"
    )
    rate_limits: Annotated[tuple[RateLimit, ...], NoDecode] = Field(
        default=(), description="Most calls that all workers together make with a key: openai=50/s,TEAM_KEY=300/m"
    )
    tenant_weights: Annotated[dict[str, float], NoDecode] = Field(
        default={}, description="Weights of tenants where work waits for workers: acme=5,trial=0.5; every other has 1"
    )
    tenant_max_running: Annotated[dict[str, int], NoDecode] = Field(
        default={},
        description="Most turns of a tenant that run at once: acme=20,*=5; * is every other tenant; empty: no limit",
    )
    tenant_variables: Annotated[dict[str, frozenset[str]], NoDecode] = Field(
        default={},
        description="Variables that contexts of a tenant may name: acme=PERDURE_CONTEXT_ACME,beta=PERDURE_CONTEXT_BETA",
    )
    migrate: Literal["auto", "off"] = Field(
        default="auto",
        description="Whether a worker brings the store's schema up to date; 'off' for fleets: 'perdure store migrate'",
    )
    deployment: str = Field(
        default="", description="Worker deployment in Temporal; empty: no versions. Or TEMPORAL_DEPLOYMENT_NAME"
    )
    build_id: str = Field(
        default="",
        validate_default=True,
        description="This worker's version of the deployment. Or TEMPORAL_WORKER_BUILD_ID",
    )
    versioning: Literal["auto_upgrade", "rotate", "pinned"] = Field(
        default="auto_upgrade",
        description="How a running turn moves to the current version: at its next task, by a rotation, or not at all",
    )
    held_patches: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(), description="Changes of workflow code that turns do not take yet, by id, separated by commas"
    )
    agents: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(), description="Modules with agents, separated by commas; the same as --agents"
    )
    allow_inline_agents: bool = Field(
        default=False, description="Whether start requests may bring an agent of their own: 1, or 0"
    )
    metrics_address: str = Field(
        default="127.0.0.1:9464", description="HOST:PORT of /metrics, /healthz and /readyz; empty turns them off"
    )
    metrics_tenants: bool = Field(
        default=False, description="Whether metrics name tenants, each a series of its own: 1, or 0"
    )
    gateway_address: str = Field(default="127.0.0.1:8234", description="HOST:PORT of 'perdure gateway'")
    gateway_tokens_file: Path | None = Field(
        default=None, description="File of the gateway's tokens: a line for each, with its hash"
    )
    gateway_tokens: str = Field(default="", description="The same lines in the variable itself, instead of a file")
    gateway_proxies: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(), description="Proxies whose X-Forwarded-For counts: addresses or networks, with commas"
    )
    gateway_max_running: int = Field(default=1000, ge=0, description="Running jobs of one tenant; 0 is no limit")
    gateway_max_streams: int = Field(
        default=1000, ge=0, description="Open event streams of one tenant in one gateway; 0 is no limit"
    )
    gateway_retry_window: timedelta = Field(
        default=timedelta(0),
        ge=timedelta(0),
        le=timedelta(hours=1),
        description="A request without an Idempotency-Key whose client does not count its tries joins the job that the "
        "same token began with the same body, if its connection ended no longer ago; 0 is never",
    )
    gateway_max_schedules: int = Field(default=200, ge=0, description="Schedules of one tenant; 0 is no limit")
    gateway_max_webhooks: int = Field(default=100, ge=0, description="Webhooks of one tenant; 0 is no limit")
    gateway_max_pushes: int = Field(default=1000, ge=0, description="Push notifications of its open tasks; 0: no limit")
    gateway_max_blocks: int = Field(default=100, ge=0, description="Blocks of one tenant in force; 0 is no limit")
    gateway_max_requests: int = Field(
        default=500, ge=0, description="Requests of one tenant in one gateway and second; 0 is no limit"
    )
    gateway_max_connections: int = Field(
        default=10_000, ge=0, description="Connections of one gateway, from all callers; 0 is no limit"
    )
    gateway_max_body_bytes: int = Field(
        default=32_000_000, ge=1024, description="Longest body of a request; images and files come in base64"
    )
    doors: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(),
        description="Protocols of others, with commas: responses, chat, agui, a2a at the gateway, nexus at workers",
    )
    gateway_url: str = Field(
        default="", description="Address of the gateway, in links and cards of A2A; empty: the request's"
    )
    chat_calls: Literal["reasoning", "text", "none"] = Field(
        default="reasoning", description="Where chat completions tell calls that perdure runs"
    )
    chat_conversation_header: str = Field(
        default="", description="Header in which a front end sends the id of its conversation, which is a session then"
    )
    chat_person_header: str = Field(
        default="", description="Header in which a front end says for whom it asks; a claim of its own, and no login"
    )
    chat_task_header: str = Field(
        default="", description="Header in which a front end says what it asks beside a chat, such as a title"
    )
    chat_task_agent: str = Field(
        default="", description="Agent that answers what is asked beside a chat; empty: such requests are refused"
    )
    chat_decisions: Literal["page", "words"] = Field(
        default="page", description="Where people approve and answer: at the gateway's page, or also by words of a chat"
    )
    chat_closed: Literal["continue", "cancel"] = Field(
        default="continue", description="Fate of a turn whose client closes its connection before the end"
    )
    a2a_capabilities: Annotated[tuple[str, ...], NoDecode] = Field(
        default=("streaming", "push"), description="Capabilities of A2A, with commas: streaming, push, extended-card"
    )
    a2a_extensions: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(), description="URIs of extensions that clients of A2A have to declare, with commas"
    )
    a2a_signing_key: str = Field(
        default="", repr=False, description="Private key that signs cards of A2A, as PEM; needs PERDURE_GATEWAY_URL"
    )
    a2a_signing_key_file: Path | None = Field(default=None, description="File of the same key, instead of the variable")
    encryption_keys: str = Field(
        default="", repr=False, description="Keys of content, ID:BASE64 of 32 bytes, first encrypts; empty: plain text"
    )
    encryption_keys_file: Path | None = Field(
        default=None, description="File of the same keys, a line for each, instead of the variable"
    )
    codec_origins: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(), description="Origins of the Temporal UI whose pages may have the gateway decrypt, with commas"
    )
    tool_threads: int = Field(default=64, ge=1, le=4096, description="Sync tools that may run at once in a worker")
    max_activities: int = Field(default=200, ge=1, description="Model and tool calls that may run at once in a worker")
    max_deliveries: int = Field(default=100, ge=1, description="Messages of webhooks and schedules under way at once")
    max_cached_workflows: int = Field(default=1000, ge=1, description="Turns kept in memory; more than are active")
    shutdown_grace: timedelta = Field(
        default=timedelta(minutes=5),
        ge=timedelta(0),
        description="Seconds that running calls get to finish after SIGTERM, before they are handed over; "
        "20 in 'perdure dev'",
    )
    search_attributes: Literal["on", "off"] = Field(
        default="on", description="Whether turns set search attributes; 'off' for clusters that refuse them"
    )
    fail_workflows: bool = Field(
        default=False,
        description="Whether errors close turns as Failed in Temporal, and cancels as Canceled: 1, or 0",
    )
    webhook_allow: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(EVERYWHERE,),
        description="Hosts that webhooks may have: *, example.com, *.example.com, or origins, which may be private",
    )
    ui_url: str = Field(default="", description="Address of the Temporal UI, for the links that verbs print")
    log_level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="Level of the log")

    recordings: Path | None = Field(default=None, description="Folder of recordings; see --record and --replay")
    recording_mode: RecordingMode = Field(
        default="off", description="Whether calls of models and tools are recorded there, or replayed from there"
    )

    @model_validator(mode="before")
    @classmethod
    def _of_the_worker_controller(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Take the names of Temporal's Worker Controller where ours say nothing."""
        theirs = {"deployment": "TEMPORAL_DEPLOYMENT_NAME", "build_id": "TEMPORAL_WORKER_BUILD_ID"}
        told = {name: os.environ.get(variable) for name, variable in theirs.items() if not values.get(name)}
        return {**values, **{name: value for name, value in told.items() if value}}

    @field_validator("deployment")
    @classmethod
    def _names_a_deployment(cls, value: str) -> str:
        if "." in value:
            msg = "a deployment's name must not have a dot; Temporal puts one between deployment and build id"
            raise ValueError(msg)
        return value

    @field_validator("build_id")
    @classmethod
    def _belongs_to_a_deployment(cls, value: str, info: ValidationInfo) -> str:
        if info.data.get("deployment") and not value:
            msg = "PERDURE_DEPLOYMENT needs a build id; set it to the version of the image, such as its tag"
            raise ValueError(msg)
        return value

    @field_validator("recording_mode")
    @classmethod
    def _has_a_folder(cls, value: RecordingMode, info: ValidationInfo) -> RecordingMode:
        if value != "off" and info.data.get("recordings") is None:
            msg = "needs a folder; set PERDURE_RECORDINGS too"
            raise ValueError(msg)
        return value

    @field_validator("webhook_allow")
    @classmethod
    def _are_hosts(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(read_entry, value))

    @field_validator("codec_origins")
    @classmethod
    def _are_origins(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for origin in value:
            if not _ORIGIN.fullmatch(origin):
                msg = f"{origin!r} is no origin; write https://host or http://host:port, without a path and without *"
                raise ValueError(msg)
        return value

    @field_validator("chat_conversation_header", "chat_person_header", "chat_task_header")
    @classmethod
    def _is_a_header(cls, value: str) -> str:
        if value and not _HEADER.fullmatch(value):
            msg = f"{value!r} is no name of a header; write one such as X-OpenWebUI-Chat-Id"
            raise ValueError(msg)
        return value

    @field_validator("gateway_url")
    @classmethod
    def _is_an_address(cls, value: str) -> str:
        if value and not _ADDRESS.fullmatch(value):
            msg = f"{value!r} is no address; write https://agents.example.com, with a path if the gateway is below one"
            raise ValueError(msg)
        return value.rstrip("/")

    @property
    def egress(self) -> Egress:
        """Which addresses webhooks may have."""
        return Egress(self.webhook_allow)

    @field_validator(*READERS, mode="before")
    @classmethod
    def _read_list(cls, value: object, info: ValidationInfo) -> object:
        return READERS[info.field_name or ""](value) if isinstance(value, str) else value

    @property
    def routing(self) -> Routing:
        """Division of the work in the fleet of this process."""
        return Routing(self.task_queue, self.roles, self.rate_limits)

    @field_validator("gateway_proxies")
    @classmethod
    def _are_networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        try:
            return tuple(str(ipaddress.ip_network(proxy)) for proxy in value)
        except ValueError as error:
            msg = f"{str(error).split()[0]} is no address of a proxy; write 10.1.2.3 or 10.1.0.0/16, with commas"
            raise ValueError(msg) from None

    @field_validator(
        *(
            "a2a_capabilities",
            "a2a_extensions",
            "agents",
            "codec_origins",
            "doors",
            "gateway_proxies",
            "webhook_allow",
            "held_patches",
        ),
        mode="before",
    )
    @classmethod
    def _split(cls, value: object) -> object:
        return tuple(parts_of(value)) if isinstance(value, str) else value

    @field_validator("doors")
    @classmethod
    def _are_doors(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if unknown := [name for name in value if name not in DOORS]:
            msg = f"there is no door {unknown[0]!r}; the doors are {', '.join(DOORS)}"
            raise ValueError(msg)
        return value

    @field_validator("a2a_capabilities")
    @classmethod
    def _are_capabilities(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if unknown := [name for name in value if name not in A2A_CAPABILITIES]:
            msg = f"there is no capability {unknown[0]!r}; choose among {', '.join(A2A_CAPABILITIES)}, or set none"
            raise ValueError(msg)
        return value

    @field_validator("a2a_extensions")
    @classmethod
    def _are_uris(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if odd := [name for name in value if not _URI.fullmatch(name)]:
            msg = f"{odd[0]!r} is no URI; write one such as https://example.com/extensions/policy/v1"
            raise ValueError(msg)
        return value

    @field_validator("shutdown_grace", mode="before")
    @classmethod
    def _seconds(cls, value: object) -> object:
        return float(value) if isinstance(value, str) else value

    @property
    def store_path(self) -> Path | None:
        """The file of an SQLite store; None for any other store."""
        scheme, _, rest = self.store_url.partition(":///")
        return Path(rest) if scheme.startswith("sqlite") and rest else None


def load_settings(*, of_folder: bool = True) -> Settings:
    """Read the environment and, for what it does not say, the address file of ``perdure dev`` in this folder.

    Args:
        of_folder: False leaves the address file out.

    Raises:
        SettingsError: A variable has a value that cannot be used.
    """
    try:
        return Settings(**folder_settings() if of_folder else {})
    except ValidationError as error:
        first = error.errors()[0]
        name = PREFIX + "_".join(str(part) for part in first["loc"]).upper()
        problem = "choose 1 or 0" if first["type"] == "bool_parsing" else first["msg"].removeprefix("Value error, ")
        msg = f"{name}={first.get('input')!r}: {problem}"
        raise SettingsError(msg) from error


def folder_settings() -> dict[str, Any]:
    """The settings that stand in the address file of ``perdure dev`` and in no variable."""
    found = find()
    if found is None:
        return {}
    told = {"store_url": found.addresses.store_url, "task_queue": found.addresses.task_queue}
    return {name: value for name, value in told.items() if not is_set(name)}


def is_set(name: str) -> bool:
    """Whether a variable of the environment has this setting."""
    return f"{PREFIX}{name}".upper() in {variable.upper() for variable in os.environ}


def temporal_file() -> DevFile | None:
    """The address file that leads to Temporal; None if there is none, or a ``TEMPORAL_*`` variable is set."""
    if any(name.startswith("TEMPORAL_") and value for name, value in os.environ.items()):
        return None
    return find()


def read_file(path: Path, source: str) -> str:
    """The text of a file that a setting names.

    Raises:
        SettingsError: It cannot be read; the message begins with ``source``.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{source} cannot be read: {error}") from error


def prepare_recordings(settings: Settings) -> None:
    """See that the folder of recordings is there, or make it if this worker is to record.

    Raises:
        SettingsError: It cannot be used.
    """
    folder = settings.recordings
    if settings.recording_mode == "off" or folder is None:
        return
    if settings.recording_mode == "replay" and not folder.is_dir():
        msg = f"there is no folder {str(folder)!r} of recordings to replay; make one with --record {folder}"
        raise SettingsError(msg)
    try:
        make_folder(folder)
    except OSError as error:
        msg = f"the folder {str(folder)!r} cannot hold recordings: {error}; choose another with --record DIR"
        raise SettingsError(msg) from error


def secrets_of(environment: Mapping[str, str] | None = None) -> frozenset[str]:
    """Credentials in environment variables and keys of content: values that are cut out of every text."""
    environment = os.environ if environment is None else environment
    return credentials_in({**environment, **_keys_of_file(environment)})


def _keys_of_file(environment: Mapping[str, str]) -> dict[str, str]:
    """Read the file of keys, as the variable would hold them. Whoever needs the keys says why it cannot be read."""
    path = environment.get(f"{ENCRYPTION_KEYS}_FILE")
    try:
        return {ENCRYPTION_KEYS: Path(path).read_text(encoding="utf-8")} if path else {}
    except (OSError, ValueError):
        return {}
