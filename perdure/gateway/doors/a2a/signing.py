"""Signatures of cards: a detached JWS (RFC 7515) over the card's canonical JSON (RFC 8785), as the protocol says.

``cryptography`` is imported when a key is configured, so a gateway without one does not need it.
"""

import base64
import functools
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from perdure.gateway.doors.a2a.objects import Object
from perdure.settings import Settings, SettingsError, read_file

MAKE_A_KEY = "make one with: openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256"

LEAST_RSA_BITS = 2048


@dataclass(frozen=True)
class Signer:
    """A key that signs cards.

    Attributes:
        algorithm: Its name in JWS: ``ES256``, ``EdDSA`` or ``RS256``.
        key_id: Thumbprint of the public key (RFC 7638), which everybody can compute who has that key.
    """

    algorithm: str
    key_id: str
    _sign: Callable[[bytes], bytes]

    def sign(self, card: Object) -> Object:
        """The card with its signature."""
        header = {"alg": self.algorithm, "kid": self.key_id, "typ": "JOSE"}
        protected = _encode(canonical(header))
        signature = self._sign(f"{protected}.{_encode(canonical(card))}".encode())
        return {**card, "signatures": [{"protected": protected, "signature": _encode(signature)}]}


def canonical(value: Mapping[str, object]) -> bytes:
    """The canonical JSON of an object without numbers and empty values, and with names in ASCII, as cards are."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def load_signer(settings: Settings) -> Signer | None:
    """The signer of the settings; None without a key.

    Raises:
        SettingsError: The key cannot be used, or there is no address that it may vouch for.
    """
    path, text = settings.a2a_signing_key_file, settings.a2a_signing_key
    if path is None and not text.strip():
        return None
    if not settings.gateway_url:  # else whoever asks for a card could choose the address that is signed
        raise SettingsError("a key that signs cards needs the address to vouch for; set PERDURE_GATEWAY_URL")
    return _load(path, text)


@functools.cache
def _load(path: Path | None, text: str) -> Signer:
    name = "PERDURE_A2A_SIGNING_KEY"
    source = name if path is None else f"{name}_FILE={path}"
    return make_signer(text if path is None else read_file(path, source), source)


def make_signer(pem: str, source: str) -> Signer:
    """The signer of a private key in PEM.

    Raises:
        SettingsError: It is none that cards can be signed with; the message begins with ``source`` and has no key.
    """
    try:
        # Imported here, since a gateway without a key does not need it.
        from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415
        from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415
        from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa, utils  # noqa: PLC0415
    except ImportError:
        raise SettingsError(f"{source} needs cryptography; pip install 'perdure[encryption]'") from None
    try:
        key = serialization.load_pem_private_key(pem.strip().encode(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise SettingsError(f"{source} is no private key in PEM without a passphrase; {MAKE_A_KEY}") from None
    if isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, ec.SECP256R1):
        curve, numbers = key, key.public_key().public_numbers()

        def sign_by_curve(data: bytes) -> bytes:
            r, s = utils.decode_dss_signature(curve.sign(data, ec.ECDSA(hashes.SHA256())))
            return r.to_bytes(32, "big") + s.to_bytes(32, "big")

        x, y = (_encode(number.to_bytes(32, "big")) for number in (numbers.x, numbers.y))
        return Signer("ES256", _thumbprint(crv="P-256", kty="EC", x=x, y=y), sign_by_curve)
    if isinstance(key, ed25519.Ed25519PrivateKey):
        raw = key.public_key().public_bytes_raw()
        return Signer("EdDSA", _thumbprint(crv="Ed25519", kty="OKP", x=_encode(raw)), key.sign)
    if isinstance(key, rsa.RSAPrivateKey) and key.key_size >= LEAST_RSA_BITS:
        found, public = key, key.public_key().public_numbers()

        def sign_by_rsa(data: bytes) -> bytes:
            return found.sign(data, padding.PKCS1v15(), hashes.SHA256())

        e, n = (_encode(number.to_bytes((number.bit_length() + 7) // 8, "big")) for number in (public.e, public.n))
        return Signer("RS256", _thumbprint(e=e, kty="RSA", n=n), sign_by_rsa)
    msg = f"{source} is no key of P-256, Ed25519 or RSA with {LEAST_RSA_BITS} bits; {MAKE_A_KEY}"
    raise SettingsError(msg)


def _thumbprint(**members: str) -> str:
    return _encode(hashlib.sha256(canonical(members)).digest())


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
