"""S-83: signed cards, judged by another library of JWS, over the canonical JSON that a verifier makes itself."""

import base64
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from jwt.algorithms import get_default_algorithms

from perdure import Agent
from perdure.gateway.doors.a2a.card import describe_agent
from perdure.gateway.doors.a2a.signing import canonical, load_signer, make_signer
from perdure.settings import Settings, SettingsError

AGENT = Agent(name="writer", model="openai/scripted", description='Écrit "tout" € \u2028 \U0001f600\n')

KEYS: dict[str, Callable[[], PrivateKeyTypes]] = {
    "ES256": lambda: ec.generate_private_key(ec.SECP256R1()),
    "EdDSA": ed25519.Ed25519PrivateKey.generate,
    "RS256": lambda: rsa.generate_private_key(65537, 2048),
}


def pem_of(key: PrivateKeyTypes) -> str:
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return key.private_bytes(*form).decode()


def check(card: dict[str, Any], key: PrivateKeyTypes, algorithm: str) -> dict[str, Any]:
    """The protected header of the card's signature.

    Raises:
        InvalidSignatureError: The signature is another card's or another key's.
    """
    unsigned = {name: value for name, value in card.items() if name != "signatures"}
    (signature,) = card["signatures"]
    payload = base64.urlsafe_b64encode(canonical(unsigned)).decode().rstrip("=")
    token = f"{signature['protected']}.{payload}.{signature['signature']}"
    found = jwt.decode_complete(token, key.public_key(), algorithms=[algorithm])  # type: ignore[arg-type]
    assert found["payload"] == unsigned
    header: dict[str, Any] = found["header"]
    return header


@pytest.mark.parametrize("algorithm", KEYS)
def test_a_signature_is_accepted_by_another_library_and_a_changed_card_is_not(algorithm: str) -> None:
    """S-83: for each kind of key; the key's id is the thumbprint that whoever has the public key computes."""
    key = KEYS[algorithm]()
    card = describe_agent(AGENT.definition, "https://agents.example.com/a2a/writer", needs_token=True)
    signed: dict[str, Any] = make_signer(pem_of(key), "X").sign(card)
    header = check(json.loads(json.dumps(signed)), key, algorithm)
    assert (header["alg"], header["typ"]) == (algorithm, "JOSE")
    jwk = get_default_algorithms()[algorithm].to_jwk(key.public_key(), as_dict=True)
    members = {"ES256": ("crv", "kty", "x", "y"), "EdDSA": ("crv", "kty", "x"), "RS256": ("e", "kty", "n")}[algorithm]
    needed = json.dumps({name: jwk[name] for name in members}, separators=(",", ":"))
    assert header["kid"] == base64.urlsafe_b64encode(hashlib.sha256(needed.encode()).digest()).decode().rstrip("=")
    for changed in ({**signed, "name": "other"}, {**signed, "supportedInterfaces": []}):
        with pytest.raises(jwt.InvalidSignatureError):
            check(changed, key, algorithm)
    with pytest.raises(jwt.InvalidSignatureError):
        check(signed, KEYS[algorithm](), algorithm)


def test_the_canonical_form_is_that_of_rfc_8785() -> None:
    """S-83: the strings of the RFC's own example, and names in order."""
    text = "\u20ac$\u000f\u000aA'\u0042\u0022\u005c\\\u0022/"
    assert canonical({"b": text, "a": [True, False]}).decode() == (
        '{"a":[true,false],"b":"\u20ac$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
    )


def test_a_card_has_nothing_that_a_canonical_form_leaves_out() -> None:
    """S-83: no empty value and no number, so that every verifier makes the same bytes."""

    def visit(value: object) -> None:
        assert isinstance(value, bool | str | list | dict), value
        assert value or value is False
        inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        for one in inside:
            visit(one)

    for agent in (AGENT, Agent(name="bare", model="openai/scripted")):
        visit(describe_agent(agent.definition, "https://x", needs_token=True))


def test_a_key_that_cannot_sign_is_refused_by_name(tmp_path: Path) -> None:
    """S-83: and no message has the key."""
    good = pem_of(KEYS["ES256"]())
    file = tmp_path / "key.pem"
    file.write_text(good)
    assert load_signer(Settings()) is None
    url = "https://agents.example.com"
    signer = load_signer(Settings(a2a_signing_key_file=file, gateway_url=url))
    assert signer is not None
    assert signer.key_id == make_signer(good, "X").key_id
    for odd, said in (
        ("nonsense-of-a-key-123", "PERDURE_A2A_SIGNING_KEY is no private key in PEM"),
        (pem_of(rsa.generate_private_key(65537, 1024)), "RSA with 2048 bits"),
        (pem_of(ec.generate_private_key(ec.SECP384R1())), "no key of P-256"),
    ):
        with pytest.raises(SettingsError, match=said) as refused:
            load_signer(Settings(a2a_signing_key=odd, gateway_url=url))
        assert odd[30:60] not in str(refused.value) or len(odd) < 30
    with pytest.raises(SettingsError, match="PERDURE_GATEWAY_URL"):
        load_signer(Settings(a2a_signing_key=good))
    with pytest.raises(SettingsError, match=r"PERDURE_A2A_SIGNING_KEY_FILE=.*cannot be read"):
        load_signer(Settings(a2a_signing_key_file=tmp_path / "none", gateway_url=url))
    with pytest.raises(ValueError, match="is no address"):
        Settings(gateway_url="agents.example.com")
