"""The output of a tool: text as it is, values as JSON, images and files as artifacts; and the events of its call.

A call's events are in its caller's log, each under a key of its own, whether a tool or a delegate carries it out.
"""

import asyncio
import base64
import contextlib
import sysconfig
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

from perdure.activities.errors import LONGEST_RAW_TEXT, redact_and_cut
from perdure.activities.faults import MISTAKES, perdures_module
from perdure.activities.mcp.failures import McpError, shorten, with_last_lines
from perdure.activities.store_access import write_until_stored
from perdure.agents.builtin_tools import read_output
from perdure.agents.context import InvalidInputError, InvalidOutputError, ToolUnavailableError
from perdure.agents.files import MEDIA_TYPE, UNKNOWN_TYPE, File
from perdure.agents.parameters import ReturnValue
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.errors import ErrorDetail, ReasonCode, code_of_kind
from perdure.contracts.events import RESULT_CHARACTERS, Event, NewEvent, ToolEnd, ToolError, ToolStep, UserInputReceived
from perdure.contracts.exceptions import kind_of, print_error, raised_of, text_of
from perdure.contracts.files import MAX_PARTS, ContentError, FilePart, ToolFile, clean_name, is_image, part_of
from perdure.contracts.messages import ToolMessage
from perdure.contracts.plain import is_of, to_text
from perdure.contracts.recordings import ToolFixture
from perdure.contracts.tools import CallSite, CallTool, ToolDeclaration, ToolOutcome
from perdure.contracts.values import replace, replace_surrogates
from perdure.lanes.lanes import NotBegunError
from perdure.llm.tool_output import (
    Attachment,
    CallResult,
    ToolTimeoutError,
    attachment_id,
    attachments_of,
    output_id,
    parts_of,
)
from perdure.security.redaction import SHORTEST_PART, spellings, without_known
from perdure.store import Artifact, NotFoundError, Store
from perdure.store.records import BASE64

ERROR_CHARACTERS = 1_500
"""Longest text of an error that the model reads."""


TRACEBACK_CHARACTERS = 4_000
"""Longest traceback in the event log. A longer one keeps its end, which people need. Temporal's history has none."""


STOP_CHARACTERS = 500
"""Longest reason for which a tool asks the turn to end."""


_NETWORK = frozenset(
    {"ConnectionError", "gaierror", "TransportError", "ClientConnectionError", "RequestException", "URLError"}
)
"""Base classes of network faults in the standard library, httpx, aiohttp and requests."""


class NotApprovedError(Exception):
    """The call needs an approval for these arguments and has none; the model is always told."""


def call_event(call: CallSite, event: Event, *, key: str | None = None) -> NewEvent:
    """An event of the call, ready for the log. ``key`` is needed if a call has several events of this type."""
    key = call_key(call.turn, call.call_id, key or event.type)
    return NewEvent(key=key, turn=call.turn, step=call.step, event=event)


def call_key(turn: int, call_id: str, key: str) -> str:
    """The key of a call's event in the log."""
    return f"{turn}/{call_id}/{key}"


def events_of_approval(call: CallSite, tool: str) -> list[NewEvent]:
    """The event of the call's approval; none if it needed no approval."""
    if call.approval is None:
        return []
    return [call_event(call, UserInputReceived(tool=tool, **dict(call.approval)))]


def events_of_end(
    call: CallSite,
    message: ToolMessage,
    artifacts: Sequence[Artifact],
    seconds: float,
    *,
    recorded: bool = False,
    traceback: str | None = None,
) -> list[NewEvent]:
    """Events of a call that has a result for the model; an error is one too."""
    output = output_id(call.call_id)
    end = ToolEnd(
        call_id=message.call_id,
        tool=message.name,
        result=message.content[:RESULT_CHARACTERS],
        error=message.error,
        artifact=next((artifact.id for artifact in artifacts if artifact.id == output), None),
        attachments=tuple(
            ToolFile(artifact=artifact.id, media_type=artifact.content_type, name=artifact.name)
            for artifact in artifacts
            if artifact.id != output
        ),
        seconds=round(seconds, 3),
        recorded=recorded,
        traceback=traceback,
    )
    return [call_event(call, end), step_ended(call, message.name)]


def events_of_abort(call: CallSite, tool: str, error: ErrorDetail, trace: str | None = None) -> list[NewEvent]:
    """Events of a call that failed outside its tool's ``catch``: the turn ends."""
    failure = ToolError(call_id=call.call_id, tool=tool, error=error, traceback=trace)
    return [call_event(call, failure), step_ended(call, tool)]


def step_ended(call: CallSite, tool: str) -> NewEvent:
    """The last event of the call."""
    return call_event(call, ToolStep(call_id=call.call_id, tool=tool))


_PERDURE, _STANDARD_LIBRARY = Path(__file__).parents[2], Path(sysconfig.get_path("stdlib"))
"""Folders whose frames are left out of a body's traceback where they stand above it."""

_ENCODINGS = ("utf-8", "utf-16-le", "utf-16-be")
"""Encodings in which secrets are searched for in binary data."""


def read(value: object, call_id: str, annotated: ReturnValue | None = None) -> CallResult:
    """Read the value that a body returned. A list or tuple with images or files in it is read part by part.

    Raises:
        InvalidOutputError: The value does not fit the body's annotation, has no JSON form, or holds an image or a file
            that is too large.
    """
    if is_of(value, str) and (annotated is None or annotated.is_text):
        return CallResult(replace_surrogates(to_text(value)))
    attachments = attachments_of(call_id)
    text = "\n".join(part.text for part in parts_of(value, attachments, annotated))
    return CallResult(text, attachments.check())


async def artifacts_of(call: CallTool, attachments: Sequence[Attachment], secrets: Collection[str]) -> list[Artifact]:
    """The artifacts of a call's images and files, without secrets. Text files are kept as text, to be read in parts."""
    return [  # large ones take long
        await asyncio.to_thread(_artifact, attachment_id(call.call_id, number), call.session, attachment, secrets)
        for number, attachment in enumerate(attachments, start=1)
    ]


def _artifact(handle: str, session: str, attachment: Attachment, secrets: Collection[str]) -> Artifact:
    name = clean_name(without_known(attachment.file or "", secrets))
    try:
        text = without_known(File(attachment.what, attachment.data, attachment.media_type).text, secrets)
    except ValueError:
        text = base64.b64encode(_with_stars(attachment.data, secrets)).decode()
        return Artifact(id=handle, session=session, media_type=f"{attachment.media_type}{BASE64}", text=text, name=name)
    return Artifact(id=handle, session=session, media_type=attachment.media_type, text=text, name=name)


def _with_stars(data: bytes, secrets: Collection[str]) -> bytes:
    """Binary data with each secret replaced by as many stars, so that offsets stay valid.

    Short secrets are left, because their bytes may occur by chance.
    """
    texts = {text for secret in secrets if len(secret) >= SHORTEST_PART for text in spellings(secret)}
    written = {text.encode(encoding, errors="replace") for text in texts for encoding in _ENCODINGS}
    for name in sorted(written, key=lambda text: (-len(text), text)):
        data = data.replace(name, b"*" * len(name))
    return data


def show_images(artifacts: Sequence[Artifact]) -> tuple[FilePart, ...]:
    """The parts that show a result's images to models, as far as models take them."""
    images = (artifact for artifact in artifacts if is_image(artifact.content_type))
    return tuple(part for image in images for part in _show_image(image))[:MAX_PARTS]


def _show_image(image: Artifact) -> Iterator[FilePart]:
    with contextlib.suppress(ContentError):
        part = part_of(image.session, "", image.data)
        if is_image(part.media_type):
            yield replace(part, artifact=image.id)


def make_finder(store: Store, session: str) -> Callable[[str], File | None]:
    """A function with which a body finds an artifact of its session. It blocks: call it on any thread but this one."""
    loop = asyncio.get_running_loop()

    def find(handle: str) -> File | None:
        found = asyncio.run_coroutine_threadsafe(_load_patiently(store, handle, session), loop).result()
        if found is None:
            return None
        kind = found.content_type
        return File(found.id, found.data, kind if MEDIA_TYPE.fullmatch(kind) else UNKNOWN_TYPE)

    return find


async def _load_patiently(store: Store, handle: str, session: str) -> Artifact | None:
    """Load an artifact, and wait while the store is away: a failed read would look like a failure of the tool."""
    return await write_until_stored(lambda: _load_stored(store, handle, session))


def artifact_of_output(call: CallSite, text: str) -> Artifact:
    """The artifact of an output that is too long for the conversation."""
    return Artifact(id=output_id(call.call_id), session=call.session, media_type="text/plain", text=text)


def reading_tool_of(definition: AgentDefinition) -> str | None:
    """The agent's name for the tool ``perdure.read_output``; None if it does not have that tool."""
    reference = read_output.declaration.reference
    return next((tool.name for tool in definition.tools if tool.reference == reference), None)


async def artifacts_in_store(store: Store, call: CallTool) -> list[Artifact]:
    """The whole output of a call that has ended, if there is one, and its images and files."""
    whole = await _load_stored(store, output_id(call.call_id), call.session)
    artifacts: list[Artifact] = []
    while (
        artifact := await _load_stored(store, attachment_id(call.call_id, len(artifacts) + 1), call.session)
    ) is not None:
        artifacts.append(artifact)
    return artifacts if whole is None else [whole, *artifacts]


def copy_recorded_artifacts(call: CallTool, fixture: ToolFixture) -> list[Artifact]:
    """The artifacts of a recorded call, with ids of this call."""
    artifacts = [
        Artifact(
            id=attachment_id(call.call_id, number),
            session=call.session,
            media_type=attachment.media_type,
            text=attachment.text,
            name=attachment.name,
        )
        for number, attachment in enumerate(fixture.attachments, start=1)
    ]
    return artifacts if fixture.artifact is None else [artifact_of_output(call, fixture.artifact), *artifacts]


async def _load_stored(store: Store, handle: str, session: str) -> Artifact | None:
    try:
        return await store.artifact(handle, session=session)
    except NotFoundError:
        return None


def message_of_error(call: CallTool, error: ErrorDetail, said: str = "") -> ToolMessage:
    """An error as the model reads it, as JSON; ``said`` is a longer text in place of the error's own."""
    return ToolMessage(
        call_id=call.call_id,
        name=error.title,
        content=error.as_result(said),
        error=error,
        decided=call.approval,
    )


def outcome(message: ToolMessage) -> ToolOutcome:
    """The outcome of a call for the workflow, with a preview of its result."""
    preview = message.content[:RESULT_CHARACTERS]
    return ToolOutcome(
        call_id=message.call_id, preview=preview, error=message.error, stop=message.stop, matched=message.matched
    )


def stop_request(reason: str | None, secrets: "frozenset[str]") -> str | None:
    """A tool's reason for ending the turn, as people read it; None if the tool did not ask for the end."""
    return None if reason is None else redact_and_cut(" ".join(reason.split()), secrets)[:STOP_CHARACTERS]


_OURS = (
    InvalidInputError,
    InvalidOutputError,
    McpError,
    NotApprovedError,
    NotBegunError,
    ToolTimeoutError,
    ToolUnavailableError,
)
"""Exceptions that perdure itself raises for a call. Every other one is the tool's own."""


def is_caught(declaration: ToolDeclaration, error: Exception) -> bool:
    """Whether the error is told to the model, so that the turn goes on."""
    ours = isinstance(error, InvalidInputError | NotApprovedError | ToolUnavailableError | McpError)
    return ours or declaration.catches(raised_of(error))


def error_detail(declaration: ToolDeclaration, error: Exception, secrets: "frozenset[str]") -> ErrorDetail:
    """The facts of a body's exception: reason code, class, redacted text."""
    text = shorten(redact_and_cut(text_of(error), secrets), ERROR_CHARACTERS) or "no message"
    kind = kind_of(error)
    exception = None if isinstance(error, _OURS) else code_of_kind(kind)
    return ErrorDetail(code=_code(error), title=declaration.name, message=text, type=kind, exception=exception)


def traceback_of(error: Exception, secrets: "frozenset[str]") -> str:
    """The traceback of a body's exception, for people: its own frames and causes, without secrets; the end if long.

    The final cut comes after redaction, so that it cannot split a secret. The first cut, for speed, is far before the
    part that is shown.
    """
    own = error.__traceback__
    while own is not None and _is_before_a_body(Path(own.tb_frame.f_code.co_filename)):
        own = own.tb_next
    raised = raised_of(error)
    try:
        lines = traceback.format_exception(type(raised), raised, own or error.__traceback__)
    except BaseException:  # noqa: BLE001 - the edge: notes and causes are the author's code too
        lines = [*traceback.format_tb(own or error.__traceback__), print_error(error)]
    text = redact_and_cut("".join(lines)[-LONGEST_RAW_TEXT:], secrets).rstrip()
    return text if len(text) <= TRACEBACK_CHARACTERS else f"…{text[1 - TRACEBACK_CHARACTERS :]}"


def _is_before_a_body(file: Path) -> bool:
    """Whether a frame above a body is of this file: perdure's, or the standard library's threads and loops."""
    if file.is_relative_to(_STANDARD_LIBRARY):
        return not file.is_relative_to(_STANDARD_LIBRARY / "site-packages")
    return file.is_relative_to(_PERDURE)


def text_of_exception(error: Exception, secrets: "frozenset[str]") -> str:
    """The exception's text for the model; that of an MCP server keeps all last lines of its standard error."""
    text = redact_and_cut(text_of(error), secrets)
    return with_last_lines(text, ERROR_CHARACTERS) if isinstance(error, McpError) else text[:ERROR_CHARACTERS]


def _code(error: Exception) -> ReasonCode:
    if isinstance(error, MISTAKES) and perdures_module(error) == "perdure.activities.tools":
        return ReasonCode.RUNTIME_INTERNAL  # bodies, results and servers have modules of their own
    if isinstance(error, McpError):
        return error.code
    if isinstance(error, InvalidInputError):
        return ReasonCode.TOOL_INVALID_INPUT
    if isinstance(error, NotApprovedError):
        return ReasonCode.TOOL_DENIED
    if isinstance(error, InvalidOutputError):
        return ReasonCode.TOOL_INVALID_OUTPUT
    if isinstance(error, ToolTimeoutError | NotBegunError):
        return ReasonCode.TOOL_TIMEOUT
    if any(base.__name__ in _NETWORK for base in type(error).__mro__):
        return ReasonCode.TOOL_NETWORK_ERROR
    return ReasonCode.TOOL_EXECUTION_ERROR
