"""The codec of the Temporal UI and of Temporal's own command: payloads of a history, decrypted for who may read them.

The routes and their JSON are those that Temporal's tools ask every codec server for. A payload does not say whose
session it is from, so the scope ``decrypt`` is for all tenants, and ``admin`` does not include it.
"""

from typing import Annotated, ClassVar

from fastapi import Depends, Header
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from pydantic import Field
from starlette.requests import Request
from temporalio.api.common.v1 import Payloads

from perdure.client.encryption import EncryptionCodec, codec_of, key_id_of
from perdure.contracts.errors import DecryptionError, ReasonCode, UnknownKeyError
from perdure.gateway.access import GatewayOf, require
from perdure.gateway.audit import note_payloads
from perdure.gateway.bodies import Bounded, Router
from perdure.gateway.callers import Caller, Scope
from perdure.gateway.metrics import HttpMetrics
from perdure.gateway.problems import ProblemCode, ProblemError
from perdure.security.keyring import KEY_ID_FORM
from perdure.settings import ENCRYPTION_KEYS

router = Router(prefix="/codec", tags=["codec"], include_in_schema=False)

MOST_PAYLOADS = 10_000
"""Payloads of one request."""

Decrypter = Annotated[Caller, Depends(require(Scope.DECRYPT))]


Base64 = Annotated[str, Field(pattern=r"^[A-Za-z0-9+/_-]*={0,2}$")]


class PayloadBody(Bounded):
    """A payload in Temporal's JSON: bytes are base64."""

    metadata: dict[str, Base64] = Field(default_factory=dict)
    data: Base64 = ""


class PayloadsBody(Bounded):
    """Payloads in Temporal's JSON; what else its tools send with them is not looked at."""

    longest: ClassVar[int | None] = None

    payloads: list[PayloadBody] = Field(max_length=MOST_PAYLOADS)


def codec(gateway: GatewayOf, x_namespace: Annotated[str, Header()] = "") -> EncryptionCodec:
    """The gateway's codec, for the namespace that it works in.

    Raises:
        ProblemError: It has no keys, or another namespace is meant.
    """
    temporal = gateway.client.temporal
    if x_namespace and x_namespace != temporal.namespace:
        msg = (
            f"this gateway reads the namespace {temporal.namespace!r}, not {x_namespace!r}; ask the gateway of that one"
        )
        raise ProblemError(422, ReasonCode.REQUEST_INVALID, msg)
    found = codec_of(temporal.data_converter)
    if found.keyring is None:
        msg = f"this gateway has no keys; set {ENCRYPTION_KEYS} where it runs to what the workers have"
        raise ProblemError(503, ProblemCode.KEY_MISSING, msg)
    return found


CodecOf = Annotated[EncryptionCodec, Depends(codec)]


def _read(body: PayloadsBody) -> Payloads:
    try:
        return ParseDict(body.model_dump(), Payloads())
    except ParseError:
        msg = "payloads: metadata and data are base64"
        raise ProblemError(422, ReasonCode.REQUEST_INVALID, msg) from None


@router.post("/decode", operation_id="decode_payloads")
async def decode_payloads(caller: Decrypter, body: PayloadsBody, codec: CodecOf, request: Request) -> dict[str, object]:
    """Decrypt payloads; those that are not encrypted come back as they are."""
    payloads = _read(body)
    keys = sorted({key for key in map(key_id_of, payloads.payloads) if key is not None})
    note_payloads(request, len(payloads.payloads), keys)
    try:
        await codec.decode_wrapper(payloads)
    except (UnknownKeyError, DecryptionError) as error:
        metrics: HttpMetrics = request.app.state.metrics
        metrics.codec_failures.labels(error.key_id if KEY_ID_FORM.fullmatch(error.key_id) else "other").inc()
        raise
    return MessageToDict(payloads)


@router.post("/encode", operation_id="encode_payloads")
async def encode_payloads(caller: Decrypter, body: PayloadsBody, codec: CodecOf, request: Request) -> dict[str, object]:
    """Encrypt payloads, as Temporal's own command asks for before it sends them."""
    payloads = _read(body)
    note_payloads(request, len(payloads.payloads), [])
    await codec.encode_wrapper(payloads)
    return MessageToDict(payloads)
