"""Bodies of requests: read up to the limit of the route, parsed within bounds, validated up to the first unknown field.

Every route with a body is a :class:`BodyRoute`, by the :class:`Router` that it belongs to. FastAPI alone would parse
and validate on the event loop, and list every mistake: a body of unknown fields then holds up the whole gateway.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from datetime import timedelta
from itertools import islice
from typing import Any, ClassVar, TypeVar, cast, get_args
from urllib.parse import unquote_to_bytes

from fastapi import APIRouter
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from pydantic import (
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    SkipValidation,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from perdure.contracts.errors import ReasonCode
from perdure.contracts.json_bounds import BoundsError, read_json
from perdure.contracts.texts import CONTENT, explain_odd_text, find_odd_text
from perdure.contracts.values import JsonValue, find_repeated, guess_name, replace_surrogates
from perdure.gateway.problems import ProblemCode, ProblemError, problem_of_mistakes

T = TypeVar("T")

ON_THE_LOOP = 32 * 1024
"""Bytes of a body that is parsed and validated at once; a larger one is on a thread."""

SMALL = 64 * 1024
"""Longest body of a route, in bytes, unless its model says otherwise."""

TINY = 4 * 1024
"""Longest body of a log-in, in bytes: who sends it has shown no token."""

MEDIUM = 2 * 1024 * 1024
"""Longest body with one prompt or one answer, in bytes: a prompt of 128 KiB can be six times as long in JSON."""

BODY_TIME, SMALL_BODY_TIME = timedelta(minutes=2), timedelta(seconds=20)
"""Longest time that a body may take to come, of a route with the gateway's limit alone, and of any other."""

MOST_FIELDS = 1_000
"""Fields of a body whose texts are looked at: no model has as many."""

_UNFIT = 0
"""A value that no model of a body takes."""

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


def _fail_fast(part: object) -> None:
    if isinstance(part, dict):
        schema = cast("dict[str, object]", part)
        if str(schema.get("type")) in {"list", "set", "frozenset", "tuple", "dict"}:
            schema["fail_fast"] = True
        for inner in schema.values():
            _fail_fast(inner)
    elif isinstance(part, list | tuple):
        for inner in cast("Sequence[object]", part):
            _fail_fast(inner)


Json = SkipValidation[JsonValue]
"""Any JSON, as a part of a body: it was read as JSON, so no part of it can be wrong, and none is looked at again."""


class Bounded(BaseModel):
    """A model whose lists, sets and objects are read up to their first mistake.

    Pydantic builds an error for every mistake otherwise: 99,000 numbers where names belong cost half a second.
    """

    @classmethod
    def __get_pydantic_core_schema__(cls, source: type[BaseModel], handler: GetCoreSchemaHandler) -> CoreSchema:
        """Pydantic's schema, in which whatever has items fails at the first that does not fit."""
        schema = handler(source)
        _fail_fast(handler.resolve_ref_schema(schema))
        return schema


class Body(Bounded):
    """The body of a request: the first unknown field refuses it.

    Attributes:
        longest: Bytes that a body of this model may have; None is the gateway's limit alone.
    """

    model_config = ConfigDict(extra="forbid")

    longest: ClassVar[int | None] = SMALL

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, fields: T) -> T:
        given = cast("dict[object, object]", fields) if isinstance(fields, dict) else {}
        known = cls.model_fields
        unknown = next((name for name in given if name not in known), None)
        if unknown is not None:
            kind, said = "unknown_field", "there is no such field"
            raise PydanticCustomError(kind, said, {"field": str(unknown)[:100]})
        return fields  # pyright: ignore[reportUnknownVariableType] - whatever came


class Reader:
    """Reads the bodies of one route.

    Args:
        kind: The type of the route's body; None is part of it if the body may be left out.
        are_names: Whether texts without NUL, and short ones, are wanted wherever perdure's own routes have no content.
    """

    def __init__(self, kind: Any, *, are_names: bool = True) -> None:  # noqa: ANN401 - a model, or a union with None
        model = next((part for part in get_args(kind) if isinstance(part, type) and issubclass(part, Body)), kind)
        self.longest: int | None = getattr(model, "longest", SMALL)
        self._adapter: TypeAdapter[object] = TypeAdapter(kind)
        self._are_names = are_names

    async def read(self, text: bytes, request: Request) -> object:
        """The body as the route's parameter.

        Raises:
            ProblemError: It is not JSON, passes a bound, or does not fit the model.
        """
        if len(text) <= ON_THE_LOOP:
            return self.parse(text)
        threads = request.app.state.gateway.bodies
        return await asyncio.get_running_loop().run_in_executor(threads, self.parse, text)

    def parse(self, text: bytes) -> object:
        """Parse and validate; raises as :meth:`read`."""
        try:
            value = read_json(text)
            refuse_odd_texts(value, are_names=self._are_names)
            return self._adapter.validate_python(value)
        except BoundsError as error:
            raise ProblemError(422, ReasonCode.REQUEST_INVALID, f"body: {error}") from None
        except ValidationError as error:
            raise problem_of_mistakes(error.errors(include_url=False, include_input=False), "body") from None
        except ValueError:
            msg = "the body is no JSON; send an object, in UTF-8"
            raise ProblemError(400, ProblemCode.BAD_JSON, msg) from None


def refuse_odd_texts(body: object, *, are_names: bool) -> None:
    """Refuse a body with a text that nothing behind the gateway can keep, as the client refuses it.

    Raises:
        ProblemError: It has one.
    """
    items = cast("dict[str, object]", body).items() if isinstance(body, dict) else ()
    fields = dict(islice(items, MOST_FIELDS))  # the model refuses more, or leaves them alone
    problem = find_odd_text({"body": list(fields)}) or find_odd_text(fields, CONTENT if are_names else list(fields))
    if problem is not None:
        raise ProblemError(422, ReasonCode.REQUEST_INVALID, problem)


class BodyRequest(Request):
    """A request whose body the route's reader reads."""

    def __init__(self, request: Request, reader: Reader, count: Callable[[int], None]) -> None:
        super().__init__(request.scope, request.receive)
        self._reader = reader
        self._count = count
        self._text: bytes | None = None

    async def body(self) -> bytes:
        """The bytes, up to the route's limit."""
        if self._text is None:
            self._text = await self._read_bytes()
        return self._text

    async def json(self) -> object:
        """The body as the route's parameter; if it was refused, a value that does not fit, and the refusal is kept.

        FastAPI asks for it before it looks at the caller's scopes and session, whose refusals come first.
        """
        try:
            return await self._reader.read(await self.body(), self)
        except ProblemError as error:
            error.__context__ = None  # the frames of both hold the body, and what is kept here would hold the frames
            self.state.refused_body = error.with_traceback(None)
            return _UNFIT

    async def _read_bytes(self) -> bytes:
        limit, body = self._reader.longest, bytearray()
        told = self.headers.get("content-length", "")
        if limit is not None and told.isdigit() and int(told) > limit:
            raise _too_long(limit)
        try:
            async with asyncio.timeout((BODY_TIME if limit is None else SMALL_BODY_TIME).total_seconds()):
                async for chunk in self.stream():
                    self._count(len(chunk))
                    body += chunk
                    if limit is not None and len(body) > limit:
                        raise _too_long(limit)
        except TimeoutError:
            raise HTTPException(408, "the body did not come in time; send it again, faster") from None
        return bytes(body)


def refuse_odd_query(request: Request, known: Collection[str] | None) -> None:
    """Refuse a query that is not in UTF-8, has NUL or a very long text; and a parameter unknown, or given twice.

    Not every database takes NUL, in the path either. A filter of a misspelt name would filter nothing.

    Args:
        request: The request.
        known: Names of the route's parameters; None if it takes any, as clients of another protocol send their own.

    Raises:
        ProblemError: It is such a one.
    """
    try:
        unquote_to_bytes(request.scope["query_string"]).decode()
    except UnicodeDecodeError:
        said = "query: is not in UTF-8; encode its texts as UTF-8 before they are percent-encoded"
        raise ProblemError(422, ReasonCode.REQUEST_INVALID, said) from None
    ids = request.path_params.items() if known is not None else ()
    for place, items in (("path", ids), ("query", request.query_params.multi_items())):
        for name, value in items:
            if (why := explain_odd_text("", [name, value])) is not None:
                raise _refused(name, f"{why} ({place})")
    if known is None:
        return
    names = [name for name, _ in request.query_params.multi_items()]
    if (unknown := next((name for name in names if name not in known), None)) is not None:
        meant = guess_name(unknown, known) or f"there are {', '.join(sorted(known)) or 'none'}"
        raise _refused(unknown, f"there is no such parameter; {meant} (query)")
    if twice := find_repeated(names):
        raise _refused(twice, "stands there twice; give one value (query)")


def _refused(name: str, said: str) -> ProblemError:
    shown = replace_surrogates(name.replace("\0", ""))[:100] or "query"
    return ProblemError(422, ReasonCode.REQUEST_INVALID, f"{shown}: {said}")


def _too_long(limit: int) -> HTTPException:
    return HTTPException(413, f"the body has more than {limit:,} bytes, the limit of this route")


def _query_names(dependant: Dependant) -> Iterator[str]:
    """The parameters of a query that a route or one of its dependencies takes."""
    yield from (field.alias for field in dependant.query_params)
    for other in dependant.dependencies:
        yield from _query_names(other)


class BodyRoute(APIRoute):
    """A route whose body its reader reads."""

    def get_route_handler(self) -> Handler:
        """FastAPI's handler, behind a look at the query, which is given the body as it was read."""
        handle = super().get_route_handler()
        is_own = self.include_in_schema and self.path.startswith("/v1/")
        body = self.body_field
        reader = None if body is None else Reader(body.field_info.annotation, are_names=is_own)
        known = frozenset(_query_names(self.dependant)) if is_own else None

        async def handle_read(request: Request) -> Response:
            refuse_odd_query(request, known)
            if reader is None:
                return await handle(request)
            caller = getattr(request.state, "caller", None)
            with request.app.state.gateway.limits.body(caller.tenant if caller else None) as count:
                return await handle(BodyRequest(request, reader, count))

        return handle_read


class Router(APIRouter):
    """A router of the gateway: its routes read their bodies within bounds."""

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401 - FastAPI's
        super().__init__(route_class=BodyRoute, **settings)
