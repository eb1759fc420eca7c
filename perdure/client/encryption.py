"""The keys of this process, and what Temporal gets to see of content: payloads and texts, encrypted with them.

The form is that of Temporal's samples in every language, so a codec server of theirs reads it with the same key: the
whole payload as protobuf, encrypted by AES-256 in GCM behind its nonce, the id of the key in the metadata. Payloads
that are not encrypted are read as they are, so that encryption can be switched on while jobs run.
"""

import base64
import binascii
from collections.abc import Callable, Sequence

from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.converter import DataConverter, PayloadCodec

from perdure.contracts.errors import DecryptionError, KeyringError, UnknownKeyError
from perdure.security.keyring import Keyring
from perdure.settings import ENCRYPTION_KEYS, Settings, SettingsError, read_file
from perdure.store import Store
from perdure.store.store import Observe

ENCODING, KEY_ID = "encoding", "encryption-key-id"
"""Names in the metadata of a payload."""

ENCRYPTED = b"binary/encrypted"

SEALED_TEXT = "encrypted:"
"""Prefix of an encrypted text where Temporal takes no payload; then the key's id and base64."""


def load_keyring(settings: Settings) -> Keyring | None:
    """The keys of the settings; None if none are configured.

    Raises:
        SettingsError: They cannot be read or used; the message names the key by its id, and quotes none.
    """
    path, text = settings.encryption_keys_file, settings.encryption_keys
    if path is not None and text.strip():
        raise SettingsError(f"{ENCRYPTION_KEYS} and {ENCRYPTION_KEYS}_FILE are both set; take one of them out")
    if path is None and not text.strip():
        return None
    source = ENCRYPTION_KEYS if path is None else f"{ENCRYPTION_KEYS}_FILE={path}"
    try:
        return Keyring.parse(text if path is None else read_file(path, source))
    except KeyringError as error:
        raise SettingsError(f"{source}: {error}") from None


async def open_store(settings: Settings, *, upgrade: bool = False, observe: Observe | None = None) -> Store:
    """Open the store of these settings; ``upgrade`` creates and migrates its tables.

    Args:
        settings: Address and keys.
        upgrade: Whether this process keeps the schema up to date, as workers do.
        observe: Told the name and the seconds of each operation.

    Raises:
        SettingsError: The keys cannot be used.
        StoreUnavailableError: It cannot be reached, or is a missing file that may not be created.
        StoreVersionError: Its schema is not this release's.
        StoreKeyError: It holds encrypted sessions, and the keys lack one of theirs.
    """
    return await Store.open(
        settings.store_url,
        upgrade=upgrade,
        observe=observe,
        listen_url=settings.listen_url,
        keyring=load_keyring(settings),
        artifacts=settings.artifacts,
        key_store=settings.key_store_url,
    )


def _ignore(_: UnknownKeyError | DecryptionError) -> None:
    """Nobody counts."""


class EncryptionCodec(PayloadCodec):
    """Encrypts payloads with the keyring's first key and decrypts those of each; without a keyring it encrypts none.

    What it cannot decrypt is a plain exception and no ``ApplicationError``: the task of a workflow fails, and is tried
    again until a worker has the key.
    """

    def __init__(
        self, keyring: Keyring | None, *, failed: Callable[[UnknownKeyError | DecryptionError], None] = _ignore
    ) -> None:
        """Take over the keys; ``failed`` is told of each payload that they do not open."""
        self.keyring = keyring
        self._failed = failed

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Encrypt each payload whole, with its metadata."""
        return [self._seal(payload) for payload in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Decrypt those that are encrypted.

        Raises:
            UnknownKeyError: There is no such key here.
            DecryptionError: The key does not open the payload.
        """
        return [self._open(payload) for payload in payloads]

    def _seal(self, payload: Payload) -> Payload:
        if self.keyring is None or not self.keyring.encrypts:
            return payload
        metadata = {ENCODING: ENCRYPTED, KEY_ID: self.keyring.primary.encode()}
        return Payload(metadata=metadata, data=self.keyring.encrypt(payload.SerializeToString()))

    def _open(self, payload: Payload) -> Payload:
        if payload.metadata.get(ENCODING) != ENCRYPTED:
            return payload
        return Payload.FromString(self._decrypt(key_id_of(payload) or "", payload.data))

    def _decrypt(self, key_id: str, data: bytes) -> bytes:
        if self.keyring is None:
            unknown = UnknownKeyError(key_id)
            self._failed(unknown)
            raise unknown
        try:
            return self.keyring.decrypt(key_id, data)
        except (UnknownKeyError, DecryptionError) as error:
            self._failed(error)
            raise

    def seal_text(self, text: str) -> str:
        """Seal a text for a plain field of Temporal's, such as the note of a schedule."""
        if self.keyring is None or not self.keyring.encrypts or not text:
            return text
        sealed = base64.b64encode(self.keyring.encrypt(text.encode(errors="surrogatepass"))).decode()
        return f"{SEALED_TEXT}{self.keyring.primary}:{sealed}"

    def open_text(self, text: str) -> str:
        """The text that was sealed; another one as it is, and what cannot be opened says why."""
        key_id, colon, sealed = text.removeprefix(SEALED_TEXT).partition(":")
        if not text.startswith(SEALED_TEXT) or not colon:
            return text
        try:
            return self._decrypt(key_id, base64.b64decode(sealed, validate=True)).decode(errors="surrogatepass")
        except KeyringError as error:
            return str(error)
        except (binascii.Error, UnicodeDecodeError):
            return text


def codec_of(converter: DataConverter) -> EncryptionCodec:
    """The codec of a converter; of one without, a codec that encrypts nothing."""
    codec = converter.payload_codec
    return codec if isinstance(codec, EncryptionCodec) else EncryptionCodec(None)


def key_id_of(payload: Payload) -> str | None:
    """The id of the key that a payload is encrypted with; None if it is not encrypted."""
    if payload.metadata.get(ENCODING) != ENCRYPTED:
        return None
    return payload.metadata.get(KEY_ID, b"").decode(errors="replace")


async def reveal_failure(converter: DataConverter, failure: Failure) -> None:
    """Make a failure of a description or a history readable, in its place; what cannot be decrypted says so itself."""
    try:
        await codec_of(converter).decode_failure(failure)
    except KeyringError as error:
        failure.message = str(error)
        return
    link: Failure | None = failure
    while link is not None:
        if link.HasField("encoded_attributes"):
            told: dict[str, str] = converter.payload_converter.from_payload(link.encoded_attributes, dict[str, str])
            link.message, link.stack_trace = told.get("message", ""), told.get("stack_trace", "")
        link = link.cause if link.HasField("cause") else None


async def reveal_pending(converter: DataConverter, pending: Sequence[PendingActivityInfo]) -> None:
    """Make the last failures and beats of activities readable, in their places; a beat of another key is left out."""
    for activity in pending:
        if activity.HasField("last_failure"):
            await reveal_failure(converter, activity.last_failure)
        try:
            await codec_of(converter).decode_wrapper(activity.heartbeat_details)
        except KeyringError:
            activity.ClearField("heartbeat_details")
