"""Answers of five wires as their bytes, and what they mean: the data of ``tests/wires/test_answers.py``.

Each file is a list of cases, one a line:

- ``name``, ``wire``, and ``kind``: what is special about it
- ``whole``: status, headers and body of an answer that is not streamed
- ``stream``: status, headers, ``events`` as texts of the wire (for Bedrock type, payload and kind of a binary frame)
  or ``body`` for bytes without events, and ``end``: ``eof``, or ``reset`` for a connection that breaks off
- ``meant``: text, thinking, calls (name and ``args``, or ``raw`` for arguments that are no JSON), ``end`` (any of
  these), usage, ``sig`` (a signature that goes back), ``order`` of thinking, text and calls; only given fields count
- ``meant_error``: words that the error shows, its status and its ``retry_after``
- ``cut``: the stream broke off, and only an error is right
- ``either``: an error and the answer that is meant are both right
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.wires.corpus import binary

Case = dict[str, Any]


def cases() -> Iterator[Case]:
    """Every case of every wire."""
    for file in sorted(Path(__file__).parent.glob("*.json")):
        yield from json.loads(file.read_text(encoding="utf-8"))


def events_of(stream: Case) -> tuple[bytes, ...]:
    """The events of a stream as they stand on the wire."""
    if "body" in stream:
        return (stream["body"].encode(),)
    return tuple(event.encode() if isinstance(event, str) else _frame(*event) for event in stream["events"])


def _frame(name: str, payload: Any, kind: str = "event") -> bytes:
    """A binary frame of Amazon's event streams."""
    if kind == "exception":
        return binary(name, payload, **{":message-type": "exception", ":exception-type": name})
    return binary(name, payload)
