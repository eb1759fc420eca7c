"""The process of a stdio server: how it is started, and what it writes to its standard error."""

import asyncio
import contextlib
import logging
import os
import shutil
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

from mcp.client.stdio import StdioServerParameters, get_default_environment, stdio_client

from perdure.activities.mcp import failures, reaper
from perdure.activities.mcp.failures import McpUnavailableError
from perdure.contracts.mcp import StdioServerConfig
from perdure.local_files import make_folder, open_private

LONGEST_LINE = 256 * 1024
"""Bytes of a line that are kept: masking the secrets in so many takes half a second."""

LONGEST_SECRET = 128 * 1024
"""Bytes dropped at the end of a cut line, where half a secret may stand. No environment variable is longer."""

LOG_BYTES, LOG_FILES = 1_000_000, 3
"""Size at which a log is rotated, and the number of older logs that are kept."""

SETTLE_SECONDS = 0.5
"""Longest wait for the last output of a server that has ended, in seconds."""

logger = logging.getLogger("perdure.mcp")


class StandardError:
    """Standard error of a server: the last lines, and all of it in a file."""

    def __init__(self, path: Path, clean: Callable[[str], str], ended: Callable[[], None]) -> None:
        self.recent: deque[str] = deque(maxlen=failures.RECENT_LINES)
        self._clean = clean
        self._ended = ended
        self._rest = bytearray()
        self._file = _log_file(path)
        self.read_to_its_end = asyncio.Event()

    def line(self, raw: bytes) -> None:
        """Keep one line."""
        text = self._clean(raw[:LONGEST_LINE].decode(errors="replace").rstrip("\r"))
        if len(raw) > LONGEST_LINE:
            text = text[:-LONGEST_SECRET] + "…"
        self.recent.append(text[: failures.LONGEST_RECENT_LINE])
        if self._file is not None:
            self._file.emit(logging.LogRecord("", logging.INFO, "", 0, text, None, None))

    def data(self, data: bytes) -> None:
        """Take bytes that were read."""
        *lines, rest = data.split(b"\n")
        for line in lines:
            self.line(bytes(self._rest) + line)
            self._rest.clear()
        self._rest += rest[: LONGEST_LINE + 1 - len(self._rest)]

    def end(self) -> None:
        """Take the end of the output: the last process that could write is gone."""
        if self._rest:
            self.line(bytes(self._rest))
            self._rest.clear()
        if self._file is not None:
            self._file.close()
        self.read_to_its_end.set()
        self._ended()

    async def wait_until_read(self) -> None:
        """Wait until all output is read, at most ``SETTLE_SECONDS``."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_SECONDS):
                await self.read_to_its_end.wait()


class _Reader(asyncio.Protocol):
    def __init__(self, standard_error: StandardError) -> None:
        self._to = standard_error

    def data_received(self, data: bytes) -> None:
        self._to.data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._to.end()


@asynccontextmanager
async def run_server(
    config: StdioServerConfig, variables: Mapping[str, str], standard_error: StandardError
) -> AsyncIterator[Any]:
    """Run the server under the reaper, which ends it with the worker; yields the streams of the SDK's transport."""
    parameters = StdioServerParameters(
        command=sys.executable,
        args=[
            "-I",
            "-S",
            reaper.__file__,
            str(os.getpid()),
            "1" if "LC_CTYPE" in variables else "0",
            *_command(config, variables),
        ],
        env=dict(variables),
        cwd=config.cwd,
        encoding_error_handler="replace",  # a byte that is not UTF-8 would end the SDK's reader
    )
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as stack:
        read_end, write_end = os.pipe()
        reader, _ = await loop.connect_read_pipe(lambda: _Reader(standard_error), os.fdopen(read_end, "rb"))
        stack.callback(reader.close)
        stack.push_async_callback(standard_error.wait_until_read)
        with os.fdopen(write_end, "w") as errors:  # closed here, so that EOF means that all server processes are gone
            streams = await stack.enter_async_context(stdio_client(parameters, errlog=errors))
        yield streams


def _command(config: StdioServerConfig, variables: Mapping[str, str]) -> list[str]:
    if config.cwd is not None and not Path(config.cwd).is_dir():
        raise McpUnavailableError(f"its working directory {config.cwd!r} is not there")
    path = variables.get("PATH") or get_default_environment().get("PATH")
    command = config.command
    if "/" in command:
        command = str(Path(config.cwd or ".", command).absolute())
    if shutil.which(command, path=path) is None:
        msg = f"there is no command {config.command!r} on the worker's PATH; install it, or give its whole path"
        raise McpUnavailableError(msg)
    return [command, *config.args]


class _OwnersLog(RotatingFileHandler):
    """A log that only its owner may read: servers log the arguments of their calls."""

    def _open(self) -> "TextIOWrapper[Any]":
        os.close(open_private(self.baseFilename, os.O_WRONLY | os.O_CREAT))
        return super()._open()


def _log_file(path: Path) -> RotatingFileHandler | None:
    try:
        make_folder(path.absolute().parent)
        return _OwnersLog(path, maxBytes=LOG_BYTES, backupCount=LOG_FILES, encoding="utf-8", delay=True)
    except OSError as error:
        logger.warning("the standard error of an MCP server is not kept: %s", error)
        return None
