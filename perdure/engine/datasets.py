"""Rows for training, of records as :meth:`perdure.Trajectory.to_record` writes them: the three formats of a dataset."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, cast, get_args

from perdure.contracts.messages import SYSTEM_ROLES
from perdure.contracts.values import JsonValue

DatasetFormat = Literal["messages", "chat", "turns"]
"""``messages``: a row has the whole conversation. ``chat``: only who said what, as TRL takes it. ``turns``: a row for
each answer, with what came before it."""

FORMATS: tuple[DatasetFormat, ...] = get_args(DatasetFormat)

Record = Mapping[str, JsonValue]
"""Messages, tools and metadata of one conversation."""


def rows(records: Iterable[Record], form: str) -> Iterator[dict[str, JsonValue]]:
    """The rows of the records in a format.

    Raises:
        ValueError: There is no such format.
    """
    makers = {"messages": _messages, "chat": _chat, "turns": _turns}
    make = makers.get(form)
    if make is None:
        msg = f"there is no dataset format {form!r}; the formats are {', '.join(FORMATS)}"
        raise ValueError(msg)
    return (row for record in records for row in make(record))


def _said(record: Record) -> list[dict[str, JsonValue]]:
    return cast("list[dict[str, JsonValue]]", record["messages"])


def _about(record: Record) -> dict[str, JsonValue]:
    return cast("dict[str, JsonValue]", record.get("metadata") or {})


def _messages(record: Record) -> Iterator[dict[str, JsonValue]]:
    yield {**_about(record), "messages": record["messages"], "tools": record.get("tools") or []}


def _chat(record: Record) -> Iterator[dict[str, JsonValue]]:
    said: list[JsonValue] = [{"role": one["role"], "content": one.get("content") or ""} for one in _said(record)]
    yield {**_about(record), "conversation": said}


def _turns(record: Record) -> Iterator[dict[str, JsonValue]]:
    system: JsonValue = None
    history: list[JsonValue] = []
    for one in _said(record):
        if one["role"] in SYSTEM_ROLES:
            system = one.get("content")
            continue
        if one["role"] == "assistant":
            calls = one.get("tool_calls")
            answer: dict[str, JsonValue] = {"response": one.get("content") or "", "tool_calls": calls}
            yield {**_about(record), "system": system, "history": [*history], **answer}
        history.append(one)
