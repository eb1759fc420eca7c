"""Requests to a session, checked before they are sent: texts, images and files, options, and the UI's words."""

import asyncio
import base64
import binascii
import http.client
import re
import urllib.error
import urllib.request
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TypedDict, TypeVar, cast
from urllib.parse import unquote_to_bytes, urlsplit

from pydantic import BaseModel, ValidationError
from temporalio.common import Priority, WorkflowIDConflictPolicy, WorkflowIDReusePolicy

from perdure.agents.files import MAX_BYTES, File, Image
from perdure.client.errors import RequestRefusedError, ReservedIdError
from perdure.contracts.budgets import Budgets
from perdure.contracts.files import ContentError, FilePart, check_parts, part_of
from perdure.contracts.ids import SESSION_ID_PATTERN, refusal_of, refusal_of_request, slug_of
from perdure.contracts.json_bounds import BoundsError, check_value
from perdure.contracts.queues import TurnPriority, fairness_key_of
from perdure.contracts.tool_choice import ToolChoice
from perdure.contracts.turn_options import TurnOptions
from perdure.contracts.turns import TurnRequest
from perdure.contracts.values import JsonValue, Value, describe_mistake, guess_name
from perdure.settings import Settings
from perdure.store import SessionRecord, Store
from perdure.store.records import BASE64, artifact_of

Model = TypeVar("Model", bound=BaseModel)


class SendOptions(TypedDict, total=False):
    """Options of a message; ``context``, ``by`` and ``traceparent`` are for the turn that takes it.

    ``stop_for_results`` is for the turn that it begins, as in :class:`perdure.client.TurnOptions`.

    ``priority`` counts if the message begins a run: a run that works keeps its own, for all turns that it carries out.
    """

    request_id: str | None
    context: Mapping[str, object] | None
    by: str
    priority: int | None
    traceparent: str
    stop_for_results: bool


class ResultMore(TypedDict, total=False):
    """Options of a result: an ``error`` in its place, ``by`` whom it is, and the request's ``digest``.

    ``tool_choice`` is what the model has to call behind it.
    """

    error: str | None
    by: str
    digest: str
    tool_choice: ToolChoice | None


def session_id(agent: str) -> str:
    """A new session's id, which begins with the agent's name."""
    return f"{slug_of(agent)}-{uuid.uuid4().hex[:8]}"


def priority_of(priority: int | None, tenant: str, weights: Mapping[str, float]) -> Priority:
    """Priority by which Temporal shares workers out while work waits.

    A job of a lower priority key is first. Among equal ones tenants get turns, each in proportion to its weight. The
    turn's activities and delegates inherit both, and so does each run that continues this one.
    """
    key = fairness_key_of(tenant)
    return Priority(priority_key=priority, fairness_key=key, fairness_weight=weights.get(tenant))


class WorkflowOptions(TypedDict):
    """Options of the workflow that a request begins."""

    id: str
    task_queue: str
    id_reuse_policy: WorkflowIDReusePolicy
    id_conflict_policy: WorkflowIDConflictPolicy
    priority: Priority
    static_summary: str | None
    static_details: str


def workflow_options(session: str, request: TurnRequest, share: Priority, settings: Settings) -> WorkflowOptions:
    """The options with which every door of this process starts a turn's workflow."""
    return WorkflowOptions(
        id=session,
        task_queue=settings.task_queue,
        id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
        id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
        priority=share,
        static_summary=summary(request),
        static_details=details(session),
    )


def validate(model: type[Model], fields: Mapping[str, object]) -> Model:
    """The value of these fields, whose JSON is within the bounds of every request."""
    try:
        check_value(fields)
        return model.model_validate(fields)
    except BoundsError as error:
        raise RequestRefusedError(f"request: {error}") from None
    except ValidationError as error:
        raise RequestRefusedError(describe_mistake(error, at_root="request")) from error


class _Beside(Value):
    """Fields that Temporal keeps beside the request."""

    priority: TurnPriority | None = None


def turn_request(session: str, fields: dict[str, object]) -> TurnRequest:
    """The request with an id of its own, checked before anything is sent; so is the priority, which it has not."""
    validate(_Beside, {"priority": fields.pop("priority", None)})
    if not re.fullmatch(SESSION_ID_PATTERN, session):
        msg = f"{session!r} is no session id; use up to 200 letters, digits and any of . _ : @ = + -"
        raise RequestRefusedError(msg)
    refused = refusal_of_request(str(fields.get("request_id") or ""))
    if refused is not None:
        raise ReservedIdError(refused)
    if unknown := sorted(fields.keys() - TurnRequest.model_fields.keys()):
        options = sorted(TurnOptions.__optional_keys__)
        guess = guess_name(unknown[0], options) or f"the options are {', '.join(options)}"
        raise RequestRefusedError(f"{unknown[0]}: there is no such option; {guess}")
    given = {name: value for name, value in fields.items() if value is not None and value != ""}
    request = validate(TurnRequest, {"prompt": "", "request_id": uuid.uuid4().hex, **given})
    _check_schemas(request)
    return request


def _check_schemas(request: TurnRequest) -> None:
    """Refuse schemas that no worker would take; whether the agent has a tool of a name is the worker's to say."""
    if not request.tools and request.output_schema is None:
        return
    from perdure.agents.caller_tools import (  # noqa: PLC0415 - what checks schemas loads slowly
        check_output_schema,
        declare_caller_tools,
    )
    from perdure.agents.context import ToolDefinitionError  # noqa: PLC0415

    try:
        declare_caller_tools(request.tools)
    except ToolDefinitionError as error:
        raise RequestRefusedError(f"tools: {error}") from None
    if request.output_schema is None:
        return
    try:
        check_output_schema(request.output_schema)
    except ValueError as error:
        raise RequestRefusedError(f"output_schema: {error}") from None


async def check_name(session: str, tenant: str, open_store: Callable[[], Awaitable[Store]]) -> None:
    """Refuse an id that only perdure derives, unless there is such a session, or the store signed it for the tenant.

    Raises:
        ReservedIdError: No caller may write such an id.
    """
    refused = refusal_of(session)
    if refused is None:
        return
    store = await open_store()
    if await store.tenant_of(session) is None and not await store.is_signed(tenant, session):
        raise ReservedIdError(refused)


Admit = Callable[[SessionRecord], AbstractAsyncContextManager[None]]
"""Context in which a turn of an idle session is begun. Of a resume of many, a ClientError of it refuses that session,
and any other error ends all."""


def admit_all(_: SessionRecord) -> AbstractAsyncContextManager[None]:
    """Begin each turn that is asked for."""
    return nullcontext()


Content = str | Sequence[str | Image | File | Mapping[str, JsonValue]]
"""A prompt: a text, or a list of texts, images and files. Mappings are OpenAI's parts of type ``text``, ``image_url``
and ``file``; a URL is ``data:…``, or ``http(s)://…``, which the client fetches itself."""


class ReplyOptions(TypedDict, total=False):
    """Options of a turn that replies begin: what they leave out is as it was in the turn that asked.

    ``prompt`` is a message behind the replies. ``tools`` stand in place of those that came with the request before.
    Another ``agent`` can go on once the results of all calls are given.
    """

    prompt: Content
    agent: str | None
    model: str | None
    max_steps: int | None
    budgets: Budgets | None
    by: str
    priority: int | None
    tools: Sequence[Mapping[str, object]]
    output_schema: Mapping[str, JsonValue] | None
    generate_params: Mapping[str, JsonValue] | None
    tool_choice: ToolChoice | None
    traceparent: str
    stop_for_results: bool


Files = Sequence[tuple[str, bytes]]
"""The name and bytes of each image and file of a prompt."""

FETCH_SECONDS = 30.0
"""Longest silence of an address from which an image is fetched."""

_ADVICE = 'write a text, perdure.Image, perdure.File, or a part of OpenAI\'s of type "text", "image_url" or "file"'


async def read_content(prompt: Content) -> tuple[str, list[tuple[str, bytes]]]:
    """The prompt's text, and the name and bytes of each image and file."""
    if isinstance(prompt, str):
        return prompt, []
    given = cast("object", prompt)  # a caller's mistake is told with its fix
    if isinstance(given, bytes) or not isinstance(given, Iterable):
        kind = type(given).__name__
        article = "an" if kind[0] in "aeiou" else "a"
        msg = f"prompt: {article} {kind} is no prompt; give a text, or a list of texts, images and files"
        raise RequestRefusedError(msg)
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
    """Hints on where to look, as Markdown."""
    return "\n".join(
        (
            "- why it ended: **Result** (`stop_reason`, `reason_code`, `error`)",
            "- what it waits for or retries: **Pending Activities**",
            "- no **Current Details** beside this: no worker answers",
            f"- what was said and done: `perdure show {session}`, live `perdure follow {session}`",
        )
    )
