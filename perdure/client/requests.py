"""What is asked of a session, checked before it is sent: texts, images and files, options, and the UI's words."""

import asyncio
import base64
import binascii
import hashlib
import http.client
import re
import urllib.error
import urllib.request
import uuid
from collections.abc import Mapping, Sequence
from typing import TypedDict, TypeVar, cast
from urllib.parse import unquote_to_bytes, urlsplit

from pydantic import BaseModel, ValidationError
from temporalio.common import Priority

from perdure.agents.files import MAX_BYTES, File, Image
from perdure.client.errors import RequestRefusedError
from perdure.contracts.budgets import Budgets
from perdure.contracts.files import ContentError, FilePart, check_parts, part_of
from perdure.contracts.queues import TurnPriority
from perdure.contracts.turns import SESSION_ID_PATTERN, TurnRequest
from perdure.contracts.values import JsonValue, Value, describe_mistake
from perdure.store import Store
from perdure.store.records import BASE64, artifact_of

Model = TypeVar("Model", bound=BaseModel)

LONGEST_FAIRNESS_KEY = 64
"""Bytes; a server refuses longer ones."""


class TaskOptions(TypedDict, total=False):
    """What several turns may be told alike beside their prompts; see :class:`perdure.contracts.turns.TurnRequest`.

    ``context``, ``tenant`` and ``by`` reach tools, hooks and instructions, and no model. ``priority``, 1 to 5, says
    which of the work that waits is given out first: 1 before 5, and 3 without one.
    """

    model: str | None
    max_steps: int | None
    budgets: Budgets | None
    tenant: str
    context: Mapping[str, object] | None
    by: str
    priority: int | None
    recording: str | None
    definition: dict[str, JsonValue] | None


class SendOptions(TypedDict, total=False):
    """What a message may be told; ``context``, ``by`` and ``traceparent`` are for the turn that takes it.

    ``priority`` counts if the message begins a run: a run that works keeps its own, for all turns that it carries out.
    """

    request_id: str | None
    context: Mapping[str, object] | None
    by: str
    priority: int | None
    traceparent: str


class ResumeOptions(TaskOptions, total=False):
    """What any turn may be told beside its prompt; ``request_id`` makes asking twice harmless.

    ``traceparent`` is the W3C trace context under which the turn's spans hang: by default that of the active span of
    OpenTelemetry, if there is one.
    """

    request_id: str | None
    traceparent: str


class TurnOptions(ResumeOptions, total=False):
    """What a turn that is started may be told.

    ``turn`` is the number it is expected to have, ``history`` a conversation in OpenAI's chat format with which a new
    session begins.
    """

    turn: int | None
    history: Sequence[Mapping[str, JsonValue]]


def session_id(agent: str) -> str:
    """A new session's id, which begins with the agent's name."""
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", agent).strip("-._")[:100] or "session"
    return f"{slug}-{uuid.uuid4().hex[:8]}"


def priority_of(priority: int | None, tenant: str, weights: Mapping[str, float]) -> Priority:
    """What Temporal shares workers out by while work waits.

    A job of a lower priority key is first. Among equal ones tenants get turns, each in proportion to its weight. The
    turn's activities and delegates inherit both, and so does each run that continues this one.
    """
    if not tenant:
        return Priority(priority_key=priority)
    is_short = len(tenant.encode()) <= LONGEST_FAIRNESS_KEY
    key = tenant if is_short else hashlib.sha256(tenant.encode()).hexdigest()
    return Priority(priority_key=priority, fairness_key=key, fairness_weight=weights.get(tenant))


def validate(model: type[Model], fields: Mapping[str, object]) -> Model:
    """The value of these fields."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise RequestRefusedError(describe_mistake(error, at_root="request")) from error


class _Beside(Value):
    """What Temporal keeps beside the request."""

    priority: TurnPriority | None = None


def turn_request(session: str, fields: dict[str, object]) -> TurnRequest:
    """The request with an id of its own, checked before anything is sent; so is the priority, which it has not."""
    validate(_Beside, {"priority": fields.pop("priority", None)})
    if not re.fullmatch(SESSION_ID_PATTERN, session):
        msg = f"{session!r} is no session id; use up to 200 letters, digits and any of . _ : @ = + -"
        raise RequestRefusedError(msg)
    given = {name: value for name, value in fields.items() if value is not None and value != ""}
    return validate(TurnRequest, {"prompt": "", "request_id": uuid.uuid4().hex, **given})


Content = str | Sequence[str | Image | File | Mapping[str, JsonValue]]
"""A prompt: a text, or a list of texts, images and files. Mappings are OpenAI's parts of type ``text``, ``image_url``
and ``file``; a URL is ``data:…``, or ``http(s)://…``, which the client fetches itself."""

Files = Sequence[tuple[str, bytes]]
"""The name and bytes of each image and file of a prompt."""

FETCH_SECONDS = 30.0
"""Longest silence of an address from which an image is fetched."""

_ADVICE = 'write a text, perdure.Image, perdure.File, or a part of OpenAI\'s of type "text", "image_url" or "file"'


async def read_content(prompt: Content) -> tuple[str, list[tuple[str, bytes]]]:
    """The prompt's text, and the name and bytes of each image and file."""
    if isinstance(prompt, str):
        return prompt, []
    texts: list[str] = []
    files: list[tuple[str, bytes]] = []
    for number, part in enumerate(prompt, start=1):
        try:
            found = await _read(part)
        except RequestRefusedError as error:
            raise RequestRefusedError(f"prompt: part {number}: {error}") from None
        if isinstance(found, str):
            texts.append(found)
        else:
            files.append(found)
    text = "\n\n".join(texts)
    if not text.strip():
        msg = "prompt: there is no text beside the images and files; say what is to be done with them"
        raise RequestRefusedError(msg)
    return text, files


async def keep_files(store: Store, session: str, files: Files) -> tuple[FilePart, ...]:
    """Put the files into the store, and give what stands for them; nothing is kept if one cannot be taken."""
    try:
        parts = check_parts(tuple(part_of(session, name, data) for name, data in files))
    except ContentError as error:
        raise RequestRefusedError(f"prompt: {error}") from None
    await store.keep_artifacts([artifact_of(session, part, data) for part, (_, data) in zip(parts, files, strict=True)])
    return parts


async def _read(part: object) -> str | tuple[str, bytes]:
    if isinstance(part, str):
        return part
    if isinstance(part, Image | File):
        return part.name, part.data
    fields = _fields(part)
    kind = fields.get("type")
    if kind == "text" and isinstance(text := fields.get("text"), str):
        return text
    if kind == "image_url":
        url = fields.get("image_url")
        return await _fetch_url(str(url if isinstance(url, str) else _fields(url).get("url")))
    if kind == "file":
        file = _fields(fields.get("file"))
        if isinstance(data := file.get("file_data"), str):
            _, found = await _fetch_url(data)
            return str(file.get("filename") or ""), found
    raise RequestRefusedError(f"it is no content part; {_ADVICE}")


def _fields(value: object) -> Mapping[str, object]:
    return cast("Mapping[str, object]", value) if isinstance(value, Mapping) else {}


async def _fetch_url(url: str) -> tuple[str, bytes]:
    """The name and the bytes at a URL."""
    if url.startswith("data:"):
        head, comma, body = url.partition(",")
        try:
            data = base64.b64decode(body, validate=True) if head.endswith(BASE64) else unquote_to_bytes(body)
        except binascii.Error as error:
            raise RequestRefusedError(f"its data URL is no base64 ({error})") from None
        if not comma:
            raise RequestRefusedError("its data URL has no data; write data:image/png;base64,…")
        return "", data
    address = urlsplit(url)
    if address.scheme not in {"http", "https"}:
        msg = f"{url[:100]!r} is no address of http or https, and no data URL; read a file with perdure.File(path=…)"
        raise RequestRefusedError(msg)
    return address.path.rpartition("/")[2], await asyncio.to_thread(_fetch, url)


class _NoOtherScheme(urllib.request.HTTPRedirectHandler):
    """A redirect may lead to http and https only."""

    def redirect_request(
        self, req: urllib.request.Request, fp: object, code: int, msg: str, headers: object, newurl: str
    ) -> urllib.request.Request | None:
        if urlsplit(newurl).scheme not in {"http", "https"}:
            return None
        return super().redirect_request(req, fp, code, msg, headers, newurl)  # type: ignore[arg-type]


def _fetch(url: str) -> bytes:
    opener = urllib.request.build_opener(_NoOtherScheme)
    try:
        with opener.open(urllib.request.Request(url), timeout=FETCH_SECONDS) as reply:  # noqa: S310 - checked above
            data: bytes = reply.read(MAX_BYTES + 1)
    except (OSError, ValueError, http.client.HTTPException) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        msg = f"{url[:200]} could not be fetched: {error}; fetch it yourself and give its bytes"
        raise RequestRefusedError(msg) from None
    if len(data) > MAX_BYTES:
        raise RequestRefusedError(f"{url[:200]} has more than {MAX_BYTES:,} bytes, the limit")
    return data


SUMMARY_CHARACTERS = 90
"""Longest summary: it is shown in one row."""

SUMMARY_BYTES = 250
"""Largest summary; the server's limit is 400 with what it is wrapped in, and encryption is one more layer."""


def summary(request: TurnRequest) -> str | None:
    """The agent, and what this turn has of its own: model and limits. None if the request names nothing of it."""
    parts = [request.agent, request.model]
    if request.resume_from is not None:
        parts.append(f"from {request.resume_from}")
    if request.max_steps is not None:
        parts.append(f"at most {request.max_steps} steps")
    if request.budgets is not None and request.budgets.cost_usd is not None:
        parts.append(f"at most ${request.budgets.cost_usd}")
    text = " · ".join(part for part in parts if part)[:SUMMARY_CHARACTERS]
    return text.encode(errors="replace")[:SUMMARY_BYTES].decode(errors="ignore") or None


def details(session: str) -> str:
    """Where to look, as Markdown."""
    return "\n".join(
        (
            "- why it ended: **Result** (`stop_reason`, `reason_code`, `error`)",
            "- what it waits for or retries: **Pending Activities**",
            "- no **Current Details** beside this: no worker answers",
            f"- what was said and done: `perdure show {session}`, live `perdure follow {session}`",
        )
    )
