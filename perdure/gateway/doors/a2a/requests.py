"""Requests of this door: the messages that clients send, read as what perdure is to do.

Fields that this door does not know are left alone, as the protocol asks for.
"""

import base64
import binascii
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, ClassVar, Literal, NoReturn, Self, TypeVar, cast

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from perdure.client import RequestRefusedError
from perdure.client.requests import Content
from perdure.contracts.a2a import TaskState
from perdure.contracts.input_requests import InputRequest, Need
from perdure.contracts.values import JsonValue
from perdure.contracts.webhooks import LONGEST_URL
from perdure.gateway.bodies import Body, Bounded, Json
from perdure.gateway.doors.a2a.errors import A2AError, Reason
from perdure.gateway.problems import problem_of_mistakes
from perdure.gateway.starts import content_of
from perdure.gateway.views import PromptFile, PromptImage, PromptText, SessionName

T = TypeVar("T")

Model = TypeVar("Model", bound=BaseModel)

Id = Annotated[str, Field(min_length=1, max_length=500)]


class Wire(Bounded):
    """An object that a client sends, as ProtoJSON: either form of a field's name, and null for what is unset."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore")

    @model_validator(mode="before")
    @classmethod
    def _leave_out_nulls(cls, given: T) -> T:
        if not isinstance(given, dict):
            return given
        fields = cast("dict[object, object]", given)
        return cast("T", {name: value for name, value in fields.items() if value is not None or name == "data"})


class Part(Wire):
    """A part of a message; exactly one of the first four fields is set."""

    text: str | None = None
    raw: str | None = None
    url: str | None = None
    data: Json = None
    filename: str = Field(default="", max_length=200)
    media_type: str = Field(default="", max_length=200)

    @model_validator(mode="after")
    def _has_one_content(self) -> Self:
        if len(self.model_fields_set & {"text", "raw", "url", "data"}) != 1:
            raise ValueError("a part has exactly one of text, raw, url and data")
        return self


class Message(Wire):
    """A message of a client."""

    message_id: str = Field(min_length=1, max_length=200)
    role: Literal["ROLE_USER"]
    parts: list[Part] = Field(min_length=1, max_length=100)
    context_id: SessionName | None = None
    task_id: str = Field(default="", max_length=500)

    @model_validator(mode="before")
    @classmethod
    def _unset_empty_context(cls, given: T) -> T:
        """ProtoJSON has the empty text for a text that is unset."""
        fields = cast("dict[object, object]", given) if isinstance(given, dict) else {}
        if "" not in {fields.get("contextId"), fields.get("context_id")}:
            return given  # pyright: ignore[reportUnknownVariableType] - whatever came
        return cast("T", {name: value for name, value in fields.items() if value != "" or name == "messageId"})


_VISIBLE = r"^[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?$"
"""Form of the value of a header."""


class Authentication(Wire):
    """Manner in which a receiver of push notifications knows who sends them."""

    scheme: str = Field(max_length=50, pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")
    credentials: str = Field(default="", max_length=4_000, pattern=rf"^$|{_VISIBLE}", repr=False)


class Push(Wire):
    """A configuration of push notifications.

    Attributes:
        id: Its id among those of the task; empty is the task's id.
        url: Address of the receiver.
        token: A text that each notification brings along.
    """

    id: str = Field(default="", max_length=200)
    url: str = Field(min_length=1, max_length=LONGEST_URL)
    token: str = Field(default="", max_length=1_000, pattern=rf"^$|{_VISIBLE}", repr=False)
    authentication: Authentication | None = None

    def headers(self) -> dict[str, str]:
        """The headers by which the receiver knows the sender."""
        told = {"x-a2a-notification-token": self.token} if self.token else {}
        if self.authentication is not None and self.authentication.credentials:
            told["authorization"] = f"{self.authentication.scheme} {self.authentication.credentials}"
        return told


HistoryLength = Annotated[int, Field(ge=0, le=2**31 - 1)]


class Configuration(Wire):
    """Manner of the answer to a message."""

    history_length: HistoryLength | None = None
    return_immediately: bool = False
    task_push_notification_config: Push | None = None


class Ask(Wire):
    """Parameters that every operation has."""

    tenant: str = Field(default="", max_length=200)


class SendMessage(Ask):
    """Parameters of ``SendMessage`` and ``SendStreamingMessage``."""

    message: Message
    configuration: Configuration = Configuration()


class TaskAsk(Ask):
    """Parameters of operations on one task."""

    id: Id


class OfTask(Ask):
    """Parameters of operations on configurations of push notifications."""

    task_id: Id


class NewPush(OfTask, Push):
    """Parameters of ``CreateTaskPushNotificationConfig``."""


class PushAsk(OfTask):
    """Parameters of operations on one configuration of push notifications."""

    id: Id


class ListPushes(OfTask):
    """Parameters of ``ListTaskPushNotificationConfigs``; all are on the first page."""

    page_size: int = Field(default=0, ge=0, le=2**31 - 1)
    page_token: str = Field(default="", max_length=500)


class GetTask(TaskAsk):
    """Parameters of ``GetTask``."""

    history_length: HistoryLength | None = None


class ListTasks(Ask):
    """Parameters of ``ListTasks``."""

    context_id: SessionName | Literal[""] = ""
    status: TaskState | Literal["TASK_STATE_UNSPECIFIED", ""] = ""
    page_size: int = Field(default=50, ge=1, le=100)
    page_token: str = Field(default="", max_length=500)
    history_length: HistoryLength = 0
    status_timestamp_after: AwareDatetime | None = None
    include_artifacts: bool = False

    @property
    def state(self) -> TaskState | None:
        """The state that is asked for."""
        return self.status if isinstance(self.status, TaskState) else None

    @property
    def since(self) -> datetime | None:
        """The moment since which the tasks' states stand."""
        return self.status_timestamp_after


class OpenBody(Body):
    """A body whose unknown fields are left alone."""

    model_config = ConfigDict(extra="ignore")

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, fields: T) -> T:
        return fields


class SendBody(OpenBody):
    """The body of a REST route that sends a message, read by :func:`read_params`."""

    longest: ClassVar[int | None] = None  # files come in base64

    tenant: Json = None
    message: Json = None
    configuration: Json = None


class PushBody(OpenBody):
    """The body of the REST route that adds a configuration of push notifications."""

    tenant: Json = None
    id: Json = None
    url: Json = None
    token: Json = None
    authentication: Json = None


class AskBody(OpenBody):
    """The body of a REST route that needs none of its fields."""

    tenant: Json = None


class RpcBody(OpenBody):
    """A request of JSON-RPC, whose fields the route reads."""

    longest: ClassVar[int | None] = None

    jsonrpc: Json = None
    id: Json = None
    method: Json = None
    params: Json = None


def read_params(model: type[Model], given: object) -> Model:
    """Parameters of an operation.

    Raises:
        ProblemError: They do not fit; the text begins with the field.
    """
    try:
        return model.model_validate({} if given is None else given)
    except ValidationError as error:
        raise problem_of_mistakes(error.errors(include_url=False, include_input=False), "body") from None


@dataclass(frozen=True, kw_only=True)
class Reply:
    """Reply of a client to a request of a task.

    Attributes:
        needs: What the reply is: an approval, an answer or a result.
        value: An answer or a result.
        digest: Digest of the call that is approved; empty for whichever the request is about.
    """

    request: str
    needs: Need
    value: JsonValue = None
    approve: bool = False
    reason: str = ""
    digest: str = ""


_KEYS: Mapping[str, Need] = {"approve": "approval", "answer": "answer", "result": "result"}
"""Field of a reply for each need of a request."""


def read_replies(message: Message) -> list[Reply]:
    """Replies of a message: its data parts with a ``request``.

    Raises:
        RequestRefusedError: One cannot be read, or there is a text beside them, which would go nowhere.
    """
    found: list[Reply] = []
    for number, part in enumerate(message.parts):
        said = part.data
        if isinstance(said, dict) and isinstance(request := said.get("request"), str):
            found.append(_read_reply(f"message.parts.{number}", request, said))
    if found and len(found) != len(message.parts):
        _refuse("message.parts", "replies to requests stand alone; send other parts in a message of their own")
    if twice := next((one.request for one in found if sum(one.request == two.request for two in found) > 1), None):
        _refuse("message.parts", f"{twice!r} is there twice")
    return found


def _read_reply(at: str, request: str, said: Mapping[str, JsonValue]) -> Reply:
    named = [name for name in _KEYS if name in said]
    if len(named) != 1:
        _refuse(at, 'a reply has one of "approve", "answer" and "result" beside its "request"')
    value, reason, digest = said[named[0]], said.get("reason", ""), said.get("digest", "")
    if named == ["approve"] and not isinstance(value, bool):
        _refuse(at, "approve is true or false")
    if not isinstance(reason, str) or not isinstance(digest, str):
        _refuse(at, "reason and digest are texts")
    approve = value is True and named == ["approve"]
    return Reply(request=request, needs=_KEYS[named[0]], value=value, approve=approve, reason=reason, digest=digest)


def reply_with_text(message: Message, asked: Sequence[InputRequest]) -> Reply:
    """A message without replies, as the reply to what a task waits for.

    Raises:
        RequestRefusedError: It is not clear to what it replies, or what it says must not be guessed.
    """
    texts = [part.text for part in message.parts if part.text is not None]
    named = ", ".join(repr(request.request_id) for request in asked)
    if len(asked) != 1 or asked[0].needs == "approval" or len(texts) != len(message.parts):
        form = '{"data": {"request": …, "approve": true}}; "answer" or "result" is in its place for other needs'
        _refuse("message.parts", f"the task waits for {named}: send a part {form}")
    return Reply(request=asked[0].request_id, needs=asked[0].needs, value="\n\n".join(texts))


def read_prompt(message: Message) -> Content:
    """The prompt that a message is.

    Raises:
        A2AError: A part is of a media type that no agent reads.
        ProblemError: It is too long, or a part cannot be read.
    """
    parts = [_read_part(f"message.parts.{number}", part) for number, part in enumerate(message.parts)]
    if all(isinstance(part, PromptText) for part in parts):
        text = "\n\n".join(part.text for part in parts if isinstance(part, PromptText))
        if not text.strip():
            _refuse("message.parts", "have no text; say what is to be done")
        return content_of(text)
    return content_of([part for part in parts if not isinstance(part, PromptText) or part.text])


_TEXTUAL = re.compile(r"text/[\w.+-]+|application/(?:[\w.-]+\+)?json")
_READ = re.compile(r"image/(?:png|jpeg|gif|webp)|application/pdf|text/[\w.+-]+|application/json")

INPUT_MODES = (
    "text/plain",
    "application/json",
    "image/png",
    "image/jpeg",
    "image/gif",
    "image/webp",
    "application/pdf",
)
"""Media types that every agent takes; whether its model reads images is the model's."""


def _read_part(at: str, part: Part) -> PromptText | PromptImage | PromptFile:
    media = part.media_type.partition(";")[0].strip().lower()
    if part.url is not None:
        _refuse_type(at, "is a url, which the gateway does not fetch; send the bytes as raw")
    if part.raw is None:
        if media and not _TEXTUAL.fullmatch(media):
            _refuse_type(at, f"is a text of the media type {media!r}; send text/plain or application/json")
        text = part.text if part.text is not None else json.dumps(part.data, ensure_ascii=False)
        return PromptText.model_construct(type="text", text=text)
    if not _READ.fullmatch(media):
        _refuse_type(at, f"is of the media type {media!r}; agents read {', '.join(INPUT_MODES)}")
    try:
        encoded = base64.b64encode(_decode(part.raw)).decode()
    except (binascii.Error, ValueError):
        _refuse(at, "raw is not in base64")
    url = f"data:{media};base64,{encoded}"
    fields: dict[str, Any]
    if media.startswith("image/"):
        fields = {"type": "image_url", "image_url": {"url": url}}
        return PromptImage.model_validate(fields)
    fields = {"type": "file", "file": {"filename": part.filename, "file_data": url}}
    return PromptFile.model_validate(fields)


def _decode(text: str) -> bytes:
    """Bytes in either alphabet of base64, padded or not, as ProtoJSON takes them."""
    padded = text.replace("-", "+").replace("_", "/").rstrip("=")
    return base64.b64decode(padded + "=" * (-len(padded) % 4), validate=True)


def _refuse(name: str, why: str) -> NoReturn:
    raise RequestRefusedError(f"{name}: {why}")


def _refuse_type(at: str, why: str) -> NoReturn:
    raise A2AError(Reason.CONTENT_TYPE_NOT_SUPPORTED, f"{at} {why}")
