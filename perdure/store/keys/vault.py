"""The data keys of sessions: 32 random bytes each, wrapped by the keyring, in the store or in a key store.

Deleting a wrapped key erases all that it has sealed, backups included. With a key store both places are read, the key
store first, and a row of the store says where new keys go: so keys can be moved while sessions are written.
"""

import base64
import binascii
import secrets
import threading
from collections import OrderedDict
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from sqlalchemy import Connection, Executable, Row, bindparam, func, literal, select, update

from perdure.contracts.errors import DecryptionError, UnknownKeyError
from perdure.store import schema
from perdure.store.errors import SessionErasedError, StoreKeyError
from perdure.store.keys.key_store import SETTING, KeyStore
from perdure.store.keys.sealing import SEAL, Content, current_sealer, sealing_with
from perdure.store.rows import insert_into

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES = 32
NONCE_BYTES = 12

KNOWN_KEYS = 10_000
"""Data keys that a process keeps in memory, a few hundred bytes each."""

SLICE = 500
"""Keys that one transaction wraps anew at most."""

_K = schema.session_keys
_BY_SESSION = select(_K).where(_K.c.session == bindparam("session"))
_BY_ID = select(_K).where(_K.c.id == bindparam("id"))
HOME = select(schema.identity.c.key_store)
"""The id of the key store that new keys go to; null if they go into the store."""

IS_THERE = _K.c.wrapped != ""
"""The condition for keys that were not erased: of an erased one only the name is left."""

_REWRAP = (
    update(_K)
    .where(_K.c.id == bindparam("this_id"), _K.c.wrapped_by == bindparam("before"))
    .values(wrapped=bindparam("again"), wrapped_by=bindparam("by"))
)


class Keyring(Protocol):
    """The keys that wrap data keys: the first encrypts, all decrypt. See :class:`perdure.security.keyring.Keyring`."""

    @property
    def encrypts(self) -> bool:
        """Whether contents are encrypted; False if the keys only decrypt what was encrypted before."""
        ...

    @property
    def primary(self) -> str:
        """The id of the key that encrypts."""
        ...

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of all keys."""
        ...

    def encrypt(self, data: bytes, *, aad: bytes | None = None) -> bytes:
        """Encrypt with the primary key."""
        ...

    def decrypt(self, key_id: str, data: bytes, *, aad: bytes | None = None) -> bytes:
        """Decrypt what the key of that id has encrypted."""
        ...


class DataKey(NamedTuple):
    """A session's key, unwrapped."""

    id: str
    cipher: "AESGCM"

    def seal(self, data: bytes, place: str) -> bytes:
        """Encrypt with AES-GCM, bound to the place; nonce, ciphertext and tag in one."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        return nonce + self.cipher.encrypt(nonce, data, place.encode())

    def open(self, sealed: bytes, place: str) -> bytes:
        """Decrypt data that was sealed for that place.

        Raises:
            StoreKeyError: The key or the place is another one.
        """
        # Loaded already, with the cipher.
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415

        try:
            return self.cipher.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], place.encode())
        except (InvalidTag, ValueError):
            msg = f"{place} holds a text that its session's key {self.id} does not open: it was changed or moved"
            raise StoreKeyError(msg) from None

    def seal_text(self, text: str, place: str) -> str:
        """Seal a text for a column, with the key's id before it."""
        return f"{SEAL}{self.id}.{base64.b64encode(self.seal(text.encode(), place)).decode()}"

    def open_text(self, sealed: str, place: str) -> str:
        """Open the text of a column."""
        return self.open(base64.b64decode(sealed.partition(".")[2]), place).decode()


def key_id_of(sealed: str) -> str:
    """The id of the data key that a text is sealed with."""
    return sealed.removeprefix(SEAL).partition(".")[0]


class Vault:
    """The data keys of one store's sessions that this process has used."""

    def __init__(self, keyring: Keyring | None, key_store: KeyStore | None = None) -> None:
        self.keyring = keyring
        self.key_store = key_store
        self._lock = threading.Lock()
        self._by_id: OrderedDict[str, DataKey] = OrderedDict()
        self._by_session: OrderedDict[str, DataKey] = OrderedDict()

    @contextmanager
    def using(self, connection: Connection) -> Generator["OpenVault"]:
        """Seal what this transaction writes, and open what it reads."""
        opened = OpenVault(self, connection)
        with sealing_with(opened):
            yield opened

    def find(self, session: str) -> DataKey | None:
        """The key of a session, if this process has used it."""
        with self._lock:
            return self._by_session.get(session)

    def find_by_id(self, key_id: str) -> DataKey | None:
        """The key of that id, if this process has used it."""
        with self._lock:
            return self._by_id.get(key_id)

    def keep(self, keys: dict[str, DataKey]) -> None:
        """Remember keys, by session, that are committed in the database."""
        with self._lock:
            for session, key in keys.items():
                self._by_session[session] = self._by_id[key.id] = key
            for known in (self._by_id, self._by_session):
                while len(known) > KNOWN_KEYS:
                    known.popitem(last=False)

    def forget(self, session: str) -> None:
        """Forget the key of a session that is erased."""
        with self._lock:
            key = self._by_session.pop(session, None)
            if key is not None:
                self._by_id.pop(key.id, None)

    def unwrap(self, row: Row[*tuple[object, ...]]) -> DataKey:
        """The data key of a row.

        Raises:
            StoreKeyError: The keyring lacks the key that wraps it, or has a different key with that id.
        """
        # Imported here, since a store without keys does not need the package.
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415

        return DataKey(row.id, AESGCM(self.unwrapped(row)))

    def unwrapped(self, row: Row[*tuple[object, ...]]) -> bytes:
        """The bytes of a row's key."""
        if self.keyring is None:
            msg = f"sessions of the store are encrypted (key {row.wrapped_by!r}); {GIVE_KEYS}"
            raise StoreKeyError(msg)
        try:
            return self.keyring.decrypt(row.wrapped_by, base64.b64decode(row.wrapped), aad=_bound_to(row.id))
        except UnknownKeyError:
            msg = f"sessions of the store are encrypted with the key {row.wrapped_by!r}, which PERDURE_ENCRYPTION_KEYS "
            msg += f"lacks (it has {', '.join(self.keyring.ids)}); add that key behind the first one"
            raise StoreKeyError(msg) from None
        except (DecryptionError, binascii.Error):
            msg = f"the key {row.wrapped_by!r} of PERDURE_ENCRYPTION_KEYS is not the one of that id that sessions of "
            msg += "the store are encrypted with; correct it"
            raise StoreKeyError(msg) from None

    def wrap(self, key_id: str, key: bytes) -> str:
        """Wrap a data key with the newest key, as its row holds it."""
        assert self.keyring is not None, "nothing is wrapped without keys"  # noqa: S101 - narrows the type
        return base64.b64encode(self.keyring.encrypt(key, aad=_bound_to(key_id))).decode()


GIVE_KEYS = "set PERDURE_ENCRYPTION_KEYS or PERDURE_ENCRYPTION_KEYS_FILE as the other processes of the store have it"


KEYS_ARE_APART = (
    f"the keys of this store's sessions stand in a key store; set {SETTING} as the other processes of the store have it"
)


class OpenVault:
    """The vault in one transaction: it reads and makes keys over the transaction's connection."""

    def __init__(self, vault: Vault, connection: Connection) -> None:
        self._vault = vault
        self._connection = connection
        self._found: dict[str, DataKey] = {}
        self._by_id: dict[str, DataKey] = {}

    def seal(self, content: Content, place: str) -> str:
        """Seal a text with its session's key; without a keyring that encrypts the text is unchanged."""
        if self._vault.keyring is None or not self._vault.keyring.encrypts:
            return content.text
        return self.key_of(content.session).seal_text(content.text, place)

    def open(self, sealed: str, place: str) -> str:
        """Open a text that was sealed for that place.

        Raises:
            StoreKeyError: Its key is gone, or this process cannot unwrap it.
        """
        return self.key_by_id(key_id_of(sealed)).open_text(sealed, place)

    def key_of(self, session: str) -> DataKey:
        """The key of a session; made now if there is none."""
        known = self._vault.find(session) or self._found.get(session)
        if known is not None:
            return known
        row = self._find(_BY_SESSION, {"session": session})
        return self._note(self._make(session) if row is None else row)

    def _make(self, session: str) -> Row[*tuple[object, ...]]:
        """Make a key in the store or the key store. If another process makes one at the same time, the first counts."""
        key_id, data = secrets.token_urlsafe(12), secrets.token_bytes(KEY_BYTES)
        assert self._vault.keyring is not None, "it seals"  # noqa: S101 - narrows the type
        values = {
            "id": key_id,
            "session": session,
            "wrapped": self._vault.wrap(key_id, data),
            "wrapped_by": self._vault.keyring.primary,
            "created_at": datetime.now(UTC),
        }
        key_store = self._vault.key_store
        if key_store is not None:
            # ``choose_home`` waits until this transaction has ended. SQLite has one writer anyway.
            if self._connection.dialect.name == "postgresql":
                self._connection.exec_driver_sql("LOCK TABLE session_keys IN ROW EXCLUSIVE MODE")
            if self._connection.scalar(HOME) is not None:
                # Committed at once, before this transaction, so that what it seals can always be opened.
                key_store.write(lambda apart: insert_keys(apart, values))
                row = self._find(_BY_SESSION, {"session": session})
                assert row is not None, "it was just written"  # noqa: S101 - narrows the type
                return row
        # The condition is part of the insert, so that it costs nothing without a key store.
        here = select(*(literal(value, _K.c[name].type) for name, value in values.items())).where(
            HOME.scalar_subquery().is_(None)
        )
        made = insert_into(self._connection, _K).from_select(list(values), here).on_conflict_do_nothing()
        self._connection.execute(made)
        row = self._connection.execute(_BY_SESSION, {"session": session}).one_or_none()
        if row is None:
            raise StoreKeyError(KEYS_ARE_APART)
        return row

    def _find(self, statement: Executable, given: dict[str, str]) -> Row[*tuple[object, ...]] | None:
        """The row of a key, wherever it stands.

        Raises:
            SessionErasedError: The key was erased, and its session with it.
        """
        if self._vault.key_store is not None:
            row = self._vault.key_store.read(lambda apart: apart.execute(statement, given).one_or_none())
            if row is not None and not row.wrapped:
                raise SessionErasedError(
                    f"session {row.session!r} was erased on {row.created_at:%Y-%m-%d %H:%M UTC}: its key is gone from "
                    "the key store. What is left of it comes from a backup; 'perdure store gc' deletes it"
                )
            if row is not None:
                return row
        return self._connection.execute(statement, given).one_or_none()

    def key_by_id(self, key_id: str) -> DataKey:
        """The key with this id.

        Raises:
            StoreKeyError: The key is gone, or this process cannot unwrap it.
        """
        known = self._vault.find_by_id(key_id) or self._by_id.get(key_id)
        if known is not None:
            return known
        row = self._find(_BY_ID, {"id": key_id})
        if row is None:
            if self._vault.key_store is None and self._connection.scalar(HOME) is not None:
                raise StoreKeyError(KEYS_ARE_APART)
            msg = f"the key {key_id} of a session is not there: the session was erased, or the keys were not restored"
            raise StoreKeyError(msg)
        return self._note(row)

    @property
    def encrypts(self) -> bool:
        """Whether there is a keyring."""
        return self._vault.keyring is not None

    def load(self, sessions: Sequence[str]) -> set[str]:
        """Read the keys of these sessions at once, for reads that follow.

        Returns:
            The sessions whose keys were erased, if the store was restored from a backup.
        """
        wanted = [session for session in sessions if self._vault.find(session) is None]
        statement, erased = select(_K).where(_K.c.session.in_(wanted)), set[str]()
        if not wanted:
            return erased
        rows = list(self._connection.execute(statement))
        if self._vault.key_store is not None:
            rows += self._vault.key_store.read(lambda apart: apart.execute(statement).all())
        for row in rows:
            if row.wrapped:
                self._note(row)
            else:
                erased.add(row.session)
        return erased

    def keep(self) -> None:
        """Have the process remember this transaction's keys; call it after the commit."""
        if self._found:
            self._vault.keep(self._found)

    def _note(self, row: Row[*tuple[object, ...]]) -> DataKey:
        key = self._vault.unwrap(row)
        self._found[row.session] = self._by_id[key.id] = key
        return key


def open_vault() -> OpenVault:
    """The vault of the transaction that runs on this thread."""
    opened = current_sealer()
    assert isinstance(opened, OpenVault), "every store has one"  # noqa: S101 - narrows the type
    return opened


def check_keys(connection: Connection, vault: Vault) -> None:
    """Check that the keyring can unwrap the store's data keys.

    Raises:
        StoreKeyError: It lacks a key, or has a different key under its id; the message names it and the fix.
    """
    wrapping = select(_K.c.wrapped_by).where(IS_THERE).group_by(_K.c.wrapped_by)
    for name in connection.scalars(wrapping).all():
        row = connection.execute(select(_K).where(_K.c.wrapped_by == name).limit(1)).first()
        if row is not None:
            vault.unwrapped(row)


def count_keys(connection: Connection) -> dict[str, int]:
    """Number of data keys that each key of the keyring wraps."""
    number = func.count().label("number")
    counted = select(_K.c.wrapped_by, number).where(IS_THERE).group_by(_K.c.wrapped_by).order_by(_K.c.wrapped_by)
    return {row.wrapped_by: row.number for row in connection.execute(counted)}


def rewrap_slice(connection: Connection, vault: Vault) -> int:
    """Wrap the next data keys with the newest key; returns how many. What they have sealed is not touched."""
    assert vault.keyring is not None, "the caller has keys"  # noqa: S101 - narrows the type
    primary = vault.keyring.primary
    # Rows that are locked by another rewrap or an erasure are skipped.
    some = select(_K).where(_K.c.wrapped_by != primary, IS_THERE).limit(SLICE).with_for_update(skip_locked=True)
    rows = connection.execute(some).all()
    changed = [
        {
            "this_id": row.id,
            "before": row.wrapped_by,
            "again": vault.wrap(row.id, vault.unwrapped(row)),
            "by": primary,
        }
        for row in rows
    ]
    if changed:
        connection.execute(_REWRAP, changed)
    return len(changed)


def insert_keys(connection: Connection, *rows: dict[str, Any]) -> None:
    """Insert rows of keys; existing ones stay."""
    connection.execute(insert_into(connection, _K).on_conflict_do_nothing(), rows)


def _bound_to(key_id: str) -> bytes:
    return f"perdure data key {key_id}".encode()
