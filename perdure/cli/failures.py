"""The one line and the exit code of each error that the client, the store and the settings announce."""

from perdure.cli.errors import CliError, ExitCode
from perdure.client.errors import (
    ClientError,
    NoWorkerError,
    RequestRefusedError,
    ServerUnreachableError,
    SessionIdleError,
    StoreMismatchError,
    TemporalConfigError,
    UnknownAgentError,
    UnknownArtifactError,
    UnknownSessionError,
)
from perdure.local_files import find
from perdure.settings import SettingsError, is_set
from perdure.store.errors import NotFoundError, StoreError

_UNREACHABLE = (ServerUnreachableError, NoWorkerError)
_USAGE = (
    UnknownSessionError,
    UnknownAgentError,
    UnknownArtifactError,
    RequestRefusedError,
    SessionIdleError,
    SettingsError,
    StoreMismatchError,
    TemporalConfigError,
)


def describe(error: Exception) -> CliError | None:
    """The error as the command line shows it; None if it is not one that is expected."""
    if isinstance(error, CliError):
        return error
    if isinstance(error, NotFoundError):
        return CliError(f"{error}; 'perdure list' names the sessions there are", ExitCode.USAGE)
    if isinstance(error, _USAGE):
        return CliError(str(error), ExitCode.USAGE)
    if isinstance(error, _UNREACHABLE):
        return CliError(str(error), ExitCode.UNREACHABLE)
    if isinstance(error, StoreError):
        return CliError(f"the transcript store: {error}; {_store_hint()}", ExitCode.UNREACHABLE)
    if isinstance(error, ClientError):
        return CliError(str(error), ExitCode.ERROR)
    return None


def _store_hint() -> str:
    found = find()
    if found is None or is_set("store_url"):
        return "see PERDURE_STORE_URL"
    return f"its address comes from {found.path}, which holds no password; set PERDURE_STORE_URL"
