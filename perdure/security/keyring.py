"""The keys of encrypted content: the first one encrypts, and all of them decrypt.

With :data:`PLAIN` as the first entry nothing is encrypted yet. So a running fleet can get its first key, and give up
its last.

The cipher is AES-256-GCM with a random nonce of 12 bytes before the ciphertext, as in Temporal's samples of every
language. ``cryptography`` is imported when a keyring is made, so a process without keys does not need it.
"""

import base64
import binascii
import hashlib
import hmac
import re
import secrets  # noqa: TID251 - a nonce; no workflow imports a keyring
from collections.abc import Mapping

from perdure.contracts.errors import DecryptionError, KeyringError, UnknownKeyError

__all__ = ["DecryptionError", "Keyring", "KeyringError", "UnknownKeyError"]

KEY_BYTES = 32
NONCE_BYTES = 12
"""GCM's size. Random nonces are safe for 2³² values under one key (NIST SP 800-38D); then the key must be rotated."""

PLAIN = "plain"
"""The first entry of a keyring that only decrypts."""

MARK_CHARACTERS = 8

MAKE_A_KEY = "make one with: openssl rand -base64 32"

KEY_ID_FORM = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}")
_FORM = "write ID:BASE64, and a comma between two keys"


class Keyring:
    """Keys of 32 bytes by their ids, in order.

    Attributes:
        marks: A fingerprint of each key by its id, to compare the keys of two processes without revealing them.
    """

    def __init__(self, keys: Mapping[str, bytes], *, encrypts: bool = True) -> None:
        """Make a keyring; its first key encrypts, unless ``encrypts`` is off.

        Raises:
            KeyringError: There is no key, one cannot be used, or ``cryptography`` is not installed.
        """
        if not keys:
            raise KeyringError(f"there is no key; {_FORM}, and {MAKE_A_KEY}")
        for position, (name, key) in enumerate(keys.items(), 1):
            _check_id(name, position)
            if len(key) != KEY_BYTES:
                raise KeyringError(f"the key {name!r} has {len(key)} bytes, not {KEY_BYTES}; {MAKE_A_KEY}")
        if len(set(keys.values())) != len(keys):
            raise KeyringError(f"two ids have one and the same key; {MAKE_A_KEY}")
        try:
            # Imported here, since a process without keys does not need it.
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415
        except ImportError:
            msg = "encryption needs the package cryptography, which is not installed; pip install 'perdure[encryption]'"
            raise KeyringError(msg) from None
        self._encrypts = encrypts
        self.marks = {
            name: hmac.digest(key, b"perdure: mark of a key", hashlib.sha256).hex()[:MARK_CHARACTERS]
            for name, key in keys.items()
        }
        self._ciphers = {name: AESGCM(key) for name, key in keys.items()}

    @classmethod
    def parse(cls, text: str) -> "Keyring":
        """Read ``id2:BASE64,id1:BASE64``; a line for each key, and lines of comments after ``#``, do as well.

        ``plain,id1:BASE64`` decrypts with the key, and encrypts nothing.

        Raises:
            KeyringError: What is wrong with which key, and what to do; it quotes no key.
        """
        keys: dict[str, bytes] = {}
        entries = entries_of(text)
        encrypts = entries[:1] != [PLAIN]
        for position, entry in enumerate(entries[not encrypts :], 1 + (not encrypts)):
            name, colon, encoded = (part.strip() for part in entry.partition(":"))
            if entry == PLAIN:
                raise KeyringError(
                    f"{PLAIN!r} stands at place {position}; write it first, where it switches encryption off"
                )
            if not colon:
                raise KeyringError(f"the key at place {position} has no id before a colon; {_FORM}")
            _check_id(name, position)
            if name in keys:
                raise KeyringError(f"the id {name!r} stands there twice; give each key an id of its own")
            plain = encoded.rstrip("=").translate(str.maketrans("-_", "+/"))
            try:
                keys[name] = base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
            except (binascii.Error, ValueError):
                raise KeyringError(f"the key {name!r} is no base64; {MAKE_A_KEY}") from None
        return cls(keys, encrypts=encrypts)

    @property
    def encrypts(self) -> bool:
        """Whether content is encrypted; False if ``plain`` is the first entry."""
        return self._encrypts

    @property
    def primary(self) -> str:
        """The id of the first key."""
        return next(iter(self._ciphers))

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of all keys, the primary one first."""
        return tuple(self._ciphers)

    def encrypt(self, data: bytes, *, aad: bytes | None = None) -> bytes:
        """Encrypt with the primary key; returns nonce, ciphertext and tag in one.

        ``aad`` is authenticated with the data and needed to decrypt it. The caller has to check ``encrypts`` first.
        """
        nonce = secrets.token_bytes(NONCE_BYTES)
        return nonce + self._ciphers[self.primary].encrypt(nonce, data, aad)

    def decrypt(self, key_id: str, data: bytes, *, aad: bytes | None = None) -> bytes:
        """Decrypt what the key of this id has encrypted.

        Raises:
            UnknownKeyError: The keyring has no key of this id.
            DecryptionError: The key does not open the data.
        """
        cipher = self._ciphers.get(key_id)
        if cipher is None:
            raise UnknownKeyError(key_id, self.ids)
        # Loaded already, with the ciphers.
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415

        try:
            return cipher.decrypt(data[:NONCE_BYTES], data[NONCE_BYTES:], aad)
        except (InvalidTag, ValueError):
            raise DecryptionError(key_id) from None


def entries_of(text: str) -> list[str]:
    """The entries of a text of keys, separated by commas or line breaks, without empty ones and comments."""
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("#"))
    return [entry.strip() for line in lines for entry in line.split(",") if entry.strip()]


def _check_id(name: str, position: int) -> None:
    if not KEY_ID_FORM.fullmatch(name):
        msg = "has letters, digits, '.', '_' and '-', begins with a letter or digit, and has at most 32 characters"
        # Not quoted, because a key may stand in place of the id.
        raise KeyringError(f"the id of the key at place {position} cannot be one: an id {msg}")
