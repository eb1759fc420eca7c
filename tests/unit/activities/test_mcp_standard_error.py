"""What stdio servers write to their standard error: the last lines in errors, all of it in a log."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from perdure import StdioServerConfig
from perdure.activities.mcp import process
from perdure.activities.mcp.failures import (
    RECENT_LINES,
    McpError,
    McpUnavailableError,
    last_lines,
    shorten,
    with_last_lines,
)
from perdure.activities.mcp.process import LONGEST_LINE, LONGEST_SECRET, StandardError
from perdure.activities.toolbox.output import error_detail, text_of_exception
from perdure.contracts.errors import ReasonCode
from perdure.contracts.tools import ToolDeclaration
from tests.unit.activities.mcp_peers import peer, worker_of

TOOL = ToolDeclaration(name="t", description="T.", parameters={"type": "object"}, reference="mcp:peer/t")
SECRET = "plain-words-of-a-service-7"


def wordy(then: str) -> StdioServerConfig:
    """A server that writes 60 lines of 84 characters each, and then does something else."""
    return StdioServerConfig(
        name="peer", command="sh", args=("-c", f"for i in $(seq -w 60); do printf '%s %081d\\n' $i 0 >&2; done; {then}")
    )


def numbers(text: str) -> list[int]:
    """The lines of a wordy server in a text, those that are whole."""
    return [int(line[-84:-82]) for line in text.splitlines() if line.endswith(f" {0:081d}")]


def read_from(path: Path, clean: Callable[[str], str], *written: bytes) -> StandardError:
    """The standard error of a server that wrote this and ended."""
    standard_error = StandardError(path, clean, lambda: None)
    for data in written:
        standard_error.data(data)
    standard_error.end()
    return standard_error


@pytest.mark.deep
async def test_the_error_of_a_server_that_does_not_start_has_its_last_fifty_lines(tmp_path: Path) -> None:
    """S-77."""
    async with worker_of(wordy("exit 1"), folder=tmp_path) as worker:
        with pytest.raises(McpUnavailableError) as caught:
            await worker.open()
    assert numbers(str(caught.value)) == list(range(11, 61))


@pytest.mark.deep
async def test_the_error_of_a_call_in_which_the_server_ends_has_its_last_fifty_lines(tmp_path: Path) -> None:
    """S-77."""
    async with worker_of(wordy(f"exec {sys.executable} {peer().args[0]}"), folder=tmp_path) as worker:
        await worker.open()
        with pytest.raises(McpError, match=r"(?s)its effect is unknown.*\nthe last words of the peer$") as caught:
            await worker.call("peer__die")
    assert numbers(str(caught.value)) == list(range(12, 61))


def test_people_are_told_as_many_lines_as_fit_and_the_model_all_of_them() -> None:
    """S-77: the newest; a failure's message is one row of the Temporal UI."""
    lines = "\n".join(f"{number} {0:081d}" for number in range(11, 61))
    error = McpError(ReasonCode.TOOL_NETWORK_ERROR, f"the connection broke; its standard error ends with: {lines}")
    message = error_detail(TOOL, error, frozenset()).message
    assert message.startswith("the connection broke; its standard error ends with: ")
    assert numbers(message) == list(range(44, 61))
    assert len(message) <= 1_500
    assert text_of_exception(error, frozenset()) == str(error)
    assert last_lines(str(error)) == lines.splitlines()


def test_what_the_model_is_told_has_a_bound_and_no_masked_argument() -> None:
    """S-52: and the words of a server that only says that it failed are as long as those of any error."""
    said = McpError(ReasonCode.TOOL_EXECUTION_ERROR, "x" * 5_000)
    assert text_of_exception(said, frozenset()) == error_detail(TOOL, said, frozenset()).message == "x" * 1_500
    assert text_of_exception(ValueError("x" * 5_000), frozenset()) == "x" * 1_500
    ends = f"broke; its standard error ends with: {SECRET} {'y' * 100_000}"
    assert SECRET not in text_of_exception(McpError(ReasonCode.TOOL_NETWORK_ERROR, ends), frozenset({SECRET}))
    assert len(with_last_lines(ends, 1_500)) < 10_000


def test_a_last_line_that_does_not_fit_whole_is_told_by_its_end() -> None:
    """Better than none."""
    short = shorten(f"broke; its standard error ends with: {'a' * 200}b", 100)
    assert (len(short), short[:7], short[-2:]) == (100, "broke; ", "ab")


def test_a_long_line_is_whole_in_the_log_and_shortened_for_errors(tmp_path: Path) -> None:
    """S-77: in whatever pieces it arrives."""
    log, line = tmp_path / "peer.log", b"a" * 5_000 + b" END-OF-LINE"
    standard_error = read_from(log, str, line[:2_000], line[2_000:] + b"\nnext", b" one\r\nrest")
    assert log.read_text().splitlines() == [line.decode(), "next one", "rest"]
    assert [len(text) for text in standard_error.recent] == [160, 8, 4]


def test_a_log_and_its_folders_are_their_owners_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The older logs as well: a server may write whatever it is called with."""
    monkeypatch.setattr(process, "LOG_BYTES", 20)
    folder = tmp_path / "new" / "logs"
    before = os.umask(0o022)
    try:
        read_from(folder / "peer.log", str, b"called with it\n" * 3)
    finally:
        os.umask(before)
    modes = {path.name: oct(path.stat().st_mode & 0o777) for path in folder.iterdir()}
    assert modes == {"peer.log": "0o600", "peer.log.1": "0o600", "peer.log.2": "0o600"}
    assert [oct(path.stat().st_mode & 0o777) for path in (folder, folder.parent)] == ["0o700", "0o700"]


def test_an_endless_line_is_bounded_and_its_end_is_no_part_of_a_secret(tmp_path: Path) -> None:
    """S-78: it is cut before its secrets are out, so what could be half of one goes too."""
    log = tmp_path / "peer.log"
    secret = b"S3cret-" + b"q" * 100_000
    endless = secret + b"a" * (LONGEST_LINE - len(secret) - 9) + secret
    standard_error = read_from(log, lambda text: text.replace(secret.decode(), "***"), endless, b"a" * 10, b"\nnext\n")
    first, second = log.read_text().splitlines()
    assert first == "***" + "a" * (LONGEST_LINE - len(secret) - LONGEST_SECRET) + "…"
    assert (second, standard_error.recent[-1]) == ("next", "next")


@pytest.mark.deep
async def test_a_secret_in_a_long_line_is_in_no_log(tmp_path: Path) -> None:
    """S-78: however far behind it stands."""
    script = 'head -c 60000 /dev/zero | tr "\\0" y >&2; echo " $KEY END" >&2; exit 1'
    config = StdioServerConfig(name="peer", command="sh", args=("-c", script), env={"KEY": "${SERVICE_PASS}"})
    async with worker_of(config, folder=tmp_path, SERVICE_PASS=SECRET) as worker:
        with pytest.raises(McpUnavailableError):
            await worker.open()
    lines = (tmp_path / "mcp" / "logs" / "peer.log").read_text().splitlines()
    assert lines == ["y" * 60_000 + " *** END"] * 2  # it was started twice


@pytest.mark.deep
async def test_what_calls_were_told_stays_out_of_the_log_when_they_have_ended(tmp_path: Path) -> None:
    """S-52: of as many calls as a server may still write of; and each line of a text by itself."""
    async with worker_of(peer("loud"), folder=tmp_path) as worker:
        await worker.open()
        await worker.call("peer__echo", text="first 1word", unspoken=["first 1word", "several\nof the lines"])
        for number in range(3):
            await worker.call("peer__echo", text=f"first 1word, of the lines, {number}word", unspoken=[f"{number}word"])
        await worker.call("peer__echo", text="first 1word and 2word")
    lines = (tmp_path / "mcp" / "logs" / "peer.log").read_text().splitlines()
    assert lines == [
        'called with {"text": "***"}',
        *['called with {"text": "***, ***, ***"}'] * 3,
        'called with {"text": "*** and ***"}',
    ]


def test_a_log_that_is_full_is_turned_over_and_the_oldest_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-77: the newest lines are kept, none is lost between two files, and disks do not fill."""
    monkeypatch.setattr(process, "LOG_BYTES", 1_000)
    log = tmp_path / "peer.log"
    wrote = [f"line {number:03} {'x' * 40}" for number in range(200)]
    standard_error = read_from(log, str, "\n".join(wrote).encode())
    kept = [tmp_path / name for name in ("peer.log.3", "peer.log.2", "peer.log.1", "peer.log")]
    assert sorted(tmp_path.iterdir()) == sorted(kept)
    assert all(file.stat().st_size <= 1_000 for file in kept)
    lines = [line for file in kept for line in file.read_text().splitlines()]
    assert lines == wrote[-len(lines) :]
    assert len(lines) > 3 * 15
    assert list(standard_error.recent) == wrote[-RECENT_LINES:]
