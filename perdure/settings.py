"""Settings: the only reader of the environment, called once by each main function; the result is frozen.

Address, namespace, TLS and API key of the Temporal server are not here: they come from Temporal's own environment
configuration (``TEMPORAL_ADDRESS``, ``TEMPORAL_NAMESPACE``, ``TEMPORAL_PROFILE``, …), read by ``perdure.client``. What
no variable says comes from the address file of ``perdure dev``, where that runs.
"""

import os
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from perdure.contracts.errors import PerdureError
from perdure.contracts.names import DEFAULT_TASK_QUEUE
from perdure.credentials import credentials_in
from perdure.dev_file import DevFile, find

DEFAULT_STORE_URL = "sqlite:///.perdure/store.db"
"""The embedded default: a file below the working directory, shared by ``perdure dev`` and the command line there."""

PREFIX = "PERDURE_"

RecordingMode = Literal["off", "record", "replay"]


class SettingsError(PerdureError):
    """An environment variable has a value that cannot be used; the message names it."""


class Settings(BaseSettings):
    """What a worker, the client and the command line can be told. Each field is ``PERDURE_<NAME>``."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="ignore")

    store_url: str = Field(default=DEFAULT_STORE_URL, description="Transcript store: sqlite:///… or postgresql://…")
    task_queue: str = Field(default=DEFAULT_TASK_QUEUE, min_length=1, description="Temporal task queue of the turns")
    agents: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(), description="Modules with agents, separated by commas; the same as --agents"
    )
    allow_inline_agents: bool = Field(
        default=False, description="Whether start requests may bring an agent of their own: 1, or 0"
    )
    metrics_address: str = Field(
        default="127.0.0.1:9464", description="HOST:PORT of /metrics, /healthz and /readyz; empty turns them off"
    )
    tool_threads: int = Field(default=64, ge=1, le=4096, description="Sync tools that may run at once in a worker")
    max_activities: int = Field(default=200, ge=1, description="Model and tool calls that may run at once in a worker")
    max_cached_workflows: int = Field(default=1000, ge=1, description="Turns kept in memory; more than are active")
    shutdown_grace: timedelta = Field(
        default=timedelta(seconds=20),
        ge=timedelta(0),
        description="Seconds that running calls get to finish after SIGTERM, before they are handed over",
    )
    search_attributes: Literal["on", "off"] = Field(
        default="on", description="Whether turns set search attributes; 'off' for clusters that refuse them"
    )
    ui_url: str = Field(default="", description="Address of the Temporal UI, for the links that verbs print")
    log_level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="Level of the log")

    recordings: Path | None = Field(default=None, description="Folder of recordings; see --record and --replay")
    recording_mode: RecordingMode = Field(
        default="off", description="Whether calls of models and tools are recorded there, or replayed from there"
    )

    @field_validator("recording_mode")
    @classmethod
    def _has_a_folder(cls, value: RecordingMode, info: ValidationInfo) -> RecordingMode:
        if value != "off" and info.data.get("recordings") is None:
            msg = "needs a folder; set PERDURE_RECORDINGS too"
            raise ValueError(msg)
        return value

    @field_validator("agents", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value

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
        msg = f"{name}={first.get('input')!r}: {first['msg'].removeprefix('Value error, ')}"
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
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        msg = f"the folder {str(folder)!r} cannot hold recordings: {error}; choose another with --record DIR"
        raise SettingsError(msg) from error


def known_secrets(environment: Mapping[str, str] | None = None) -> frozenset[str]:
    """The credentials among environment variables, which are cut out of every text."""
    return credentials_in(os.environ if environment is None else environment)
