"""What tools print is in the worker's log, with the session and the tool, without secrets; other output passes."""

import asyncio
import dataclasses
import io
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from temporalio.testing import ActivityEnvironment

from perdure import Tool, tool
from perdure.activities.toolbox.runner import CallContext
from perdure.lanes.bodies import Bodies
from perdure.lanes.printing import LONGEST_UNFINISHED, Printed
from perdure.worker.telemetry import JsonFormatter

SECRET = "hunter2-hunter2"


class Kept(logging.Handler):
    """Keeps lines of the log."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(JsonFormatter(frozenset({SECRET})))
        self.lines: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one."""
        self.lines.append(json.loads(self.format(record)))

    def said(self) -> list[tuple[str, str]]:
        """Stream and message of each line."""
        return [(line["logger"], line["message"]) for line in self.lines]


@pytest.fixture
def log() -> Iterator[Kept]:
    kept, root = Kept(), logging.getLogger()
    root.addHandler(kept)
    yield kept
    root.removeHandler(kept)


@contextmanager
def printing() -> Iterator[io.BytesIO]:
    """What reaches either stream as before. Not a fixture: pytest puts streams of its own in between."""
    below, before = io.BytesIO(), (sys.stdout, sys.stderr)
    sys.stdout, sys.stderr = (Printed(io.TextIOWrapper(below, "utf-8"), name) for name in ("stdout", "stderr"))
    try:
        yield below
    finally:
        sys.stdout, sys.stderr = before


def call(body: Tool[..., Any], session: str = "job") -> None:
    """Call the tool as a worker does."""
    bodies, environment = Bodies(1), ActivityEnvironment()
    environment.info = dataclasses.replace(environment.info, workflow_id=session, activity_type=body.name)
    context = CallContext(session=session, turn=1, call_id="c1", idempotency_key=f"{session}/1/c1")

    async def carry_out() -> None:
        await asyncio.wrap_future(bodies.start(body, {}, context).future)

    try:
        asyncio.run(environment.run(carry_out))
    finally:
        bodies.close()


def both(print_all: Callable[[], None]) -> tuple[Tool[..., Any], Tool[..., Any]]:
    """A sync and an async tool that run this."""

    @tool
    def blocking() -> None:
        print_all()

    @tool
    async def quick() -> None:
        async def child() -> None:
            print_all()

        await asyncio.gather(child())

    return blocking, quick


def test_each_line_that_a_tool_prints_names_session_and_tool_and_no_secret(log: Kept) -> None:
    """S-52: on either stream, in pieces or at once; output outside of tools passes unchanged."""

    def print_all() -> None:
        print("one", end=" ")
        print(f"line with {SECRET}\n\ntwo")
        print("to stderr", file=sys.stderr)

    with printing() as raw:
        for body in both(print_all):
            log.lines.clear()
            call(body, "job-7")
            assert log.said() == [("stdout", "one line with ***"), ("stdout", "two"), ("stderr", "to stderr")]
            places = {(line["workflow"], line["activity"], line["level"]) for line in log.lines}
            assert places == {("job-7", body.name, "info")}
        log.lines.clear()
        print("of the worker itself")
        assert (raw.getvalue(), log.lines) == (b"of the worker itself\n", [])


def test_a_line_without_an_end_is_told_at_a_flush_when_it_is_long_and_when_the_tool_ends(log: Kept) -> None:
    told: list[int] = []

    def print_all() -> None:
        print("at once", end="", flush=True)
        told.append(len(log.lines))
        print("x" * LONGEST_UNFINISHED, end="")
        told.append(len(log.lines))
        print("y", end="")
        told.append(len(log.lines))
        sys.stderr.write("10 %\r20 %")
        raise RuntimeError

    with printing() as raw:
        for body in both(print_all):
            log.lines.clear()
            told.clear()
            call(body)
            assert told == [1, 1, 2], body.name
            last = [message for _, message in log.said()][1:]
            assert [last[0][-2:], *last[1:]] == ["xy", "20 %"], body.name
        assert raw.getvalue() == b""


def test_a_log_that_cannot_be_written_says_so_where_it_did_before(log: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """And does not log that it cannot log."""

    def fail(record: logging.LogRecord) -> None:
        try:
            os.write(-1, b"")
        except OSError:
            log.handleError(record)

    monkeypatch.setattr(log, "emit", fail)
    with printing() as raw:
        call(both(lambda: print("hello"))[0])
        assert raw.getvalue().count(b"\nOSError: [Errno 9] Bad file descriptor\n") == 1


@pytest.mark.deep
def test_a_subprocess_gets_the_stream_that_a_tool_hands_on(log: Kept, tmp_path: Path) -> None:
    """So do bytes."""
    with (tmp_path / "output").open("w") as real:
        stream = Printed(real, "stdout")

        @tool
        def run() -> None:
            subprocess.run([sys.executable, "-c", "print('child')"], stdout=stream, check=True)
            stream.buffer.write(b"bytes\n")
            stream.buffer.flush()

        call(run)
    assert ((tmp_path / "output").read_text(), log.lines) == ("child\nbytes\n", [])
