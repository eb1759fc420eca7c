"""The keys of content: how they are written, what refuses them, and what each of them opens."""

import base64
import sys
from pathlib import Path

import pytest

from perdure.client.encryption import load_keyring
from perdure.security.keyring import DecryptionError, Keyring, KeyringError, UnknownKeyError
from perdure.security.redaction import redact_text
from perdure.settings import Settings, SettingsError, secrets_of

OLD, NEW = bytes(range(32)), bytes(range(200, 232))
OLD_TEXT, NEW_TEXT = base64.b64encode(OLD).decode(), base64.b64encode(NEW).decode()


def test_the_first_key_encrypts_and_each_decrypts() -> None:
    before, after = Keyring({"old": OLD}), Keyring({"new": NEW, "old": OLD})
    assert (after.primary, after.ids) == ("new", ("new", "old"))
    assert after.decrypt("old", before.encrypt(b"words")) == b"words"
    assert after.decrypt("new", after.encrypt(b"words")) == b"words"
    with pytest.raises(UnknownKeyError) as refused:
        before.decrypt("new", after.encrypt(b"words"))
    assert refused.value.key_id == "new"
    assert str(refused.value).endswith("this process has old; add it to PERDURE_ENCRYPTION_KEYS")


def test_two_encryptions_of_one_text_differ() -> None:
    keyring = Keyring({"a": OLD})
    assert keyring.encrypt(b"words") != keyring.encrypt(b"words")


def test_what_a_text_is_bound_to_must_be_the_same_to_open_it() -> None:
    keyring = Keyring({"a": OLD})
    sealed = keyring.encrypt(b"words", aad=b"session-1")
    assert keyring.decrypt("a", sealed, aad=b"session-1") == b"words"
    with pytest.raises(DecryptionError):
        keyring.decrypt("a", sealed, aad=b"session-2")


@pytest.mark.parametrize("damage", [lambda sealed: sealed[:-1], lambda sealed: sealed[:5], lambda _: b""])
def test_damaged_content_and_another_key_of_the_same_id_are_an_error_with_the_id(damage: object) -> None:
    sealed = Keyring({"a": OLD}).encrypt(b"words")
    assert callable(damage)
    for keyring, data in ((Keyring({"a": OLD}), damage(sealed)), (Keyring({"a": NEW}), sealed)):
        with pytest.raises(DecryptionError, match="the key 'a' of this process does not open"):
            keyring.decrypt("a", data)


@pytest.mark.parametrize(
    "text",
    [
        f"new:{NEW_TEXT},old:{OLD_TEXT}",
        f" new : {NEW_TEXT} , old:{OLD_TEXT} ,",
        f"# rotated in May, by ann\nnew:{NEW_TEXT}\n\nold:{OLD_TEXT}\n",
        f"new:{base64.urlsafe_b64encode(NEW).decode().rstrip('=')},old:{OLD_TEXT}",
    ],
)
def test_keys_are_read_from_a_line_or_from_lines_in_either_alphabet(text: str) -> None:
    keyring = Keyring.parse(text)
    assert keyring.ids == ("new", "old")
    assert Keyring({"new": NEW}).decrypt("new", keyring.encrypt(b"words")) == b"words"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (f"a:{base64.b64encode(OLD[:16]).decode()}", "the key 'a' has 16 bytes, not 32; make one with: openssl"),
        (f"a:{OLD.hex()}", "the key 'a' has 48 bytes, not 32; make one with: openssl rand -base64 32"),
        ("a:???", "the key 'a' is no base64; make one with: openssl rand -base64 32"),
        ("a:", "the key 'a' has 0 bytes, not 32"),
        (OLD_TEXT, "the key at place 1 has no id before a colon; write ID:BASE64"),
        (f"a:{OLD_TEXT},{NEW_TEXT}", "the key at place 2 has no id before a colon"),
        (f"a:{OLD_TEXT},a:{NEW_TEXT}", "the id 'a' stands there twice; give each key an id of its own"),
        (f"a:{OLD_TEXT},b:{OLD_TEXT}", "two ids have one and the same key"),
        (f"a b:{OLD_TEXT}", "the id of the key at place 1 cannot be one: an id has letters, digits"),
        (f":{OLD_TEXT}", "the id of the key at place 1 cannot be one"),
        (f"{'a' * 33}:{OLD_TEXT}", "the id of the key at place 1 cannot be one"),
        (f"{OLD_TEXT}:a", "the id of the key at place 1 cannot be one"),
        (" , ", "there is no key; write ID:BASE64"),
        ("# none yet", "there is no key; write ID:BASE64"),
    ],
)
def test_keys_that_cannot_be_used_are_refused_with_cause_and_fix_and_without_the_key(text: str, problem: str) -> None:
    with pytest.raises(KeyringError) as refused:
        Keyring.parse(text)
    assert str(refused.value).startswith(problem)
    assert "\n" not in str(refused.value)
    assert not any(key in str(refused.value) for key in (OLD_TEXT.rstrip("="), NEW_TEXT.rstrip("="), OLD.hex()))


def test_without_the_package_a_keyring_says_which_extra_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    with pytest.raises(KeyringError, match=r"not installed; pip install 'perdure\[encryption\]'"):
        Keyring({"a": OLD})


def test_keys_come_from_the_variable_or_from_a_file_and_not_from_both(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"new:{NEW_TEXT}\nold:{OLD_TEXT}\n")
    assert load_keyring(Settings()) is None
    for settings in (
        Settings(encryption_keys=f"new:{NEW_TEXT},old:{OLD_TEXT}"),
        Settings(encryption_keys_file=file),
    ):
        keyring = load_keyring(settings)
        assert keyring is not None
        assert keyring.ids == ("new", "old")
    with pytest.raises(SettingsError, match="are both set; take one of them out"):
        load_keyring(Settings(encryption_keys=f"a:{OLD_TEXT}", encryption_keys_file=file))


def test_keys_that_cannot_be_read_or_used_name_their_place(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"^PERDURE_ENCRYPTION_KEYS: the key 'a' is no base64; make one"):
        load_keyring(Settings(encryption_keys="a:???"))
    missing = tmp_path / "missing"
    with pytest.raises(SettingsError, match=f"^PERDURE_ENCRYPTION_KEYS_FILE={missing} cannot be read: .*No such file"):
        load_keyring(Settings(encryption_keys_file=missing))
    empty = tmp_path / "empty"
    empty.write_text("\n")
    with pytest.raises(SettingsError, match=f"^PERDURE_ENCRYPTION_KEYS_FILE={empty}: there is no key"):
        load_keyring(Settings(encryption_keys_file=empty))


@pytest.mark.parametrize("of_file", [False, True], ids=["variable", "file"])
def test_each_key_is_a_secret_for_texts_and_reprs(tmp_path: Path, *, of_file: bool) -> None:
    """S-52."""
    keys = f"new:{NEW_TEXT},old:{OLD_TEXT}"
    (tmp_path / "keys").write_text(keys.replace(",", "\n"))
    found = secrets_of(
        {"PERDURE_ENCRYPTION_KEYS_FILE": str(tmp_path / "keys")} if of_file else {"PERDURE_ENCRYPTION_KEYS": keys}
    )
    for key in (OLD, NEW):
        for shown in (base64.b64encode(key).decode(), base64.urlsafe_b64encode(key).decode().rstrip("=")):
            assert shown.rstrip("=") not in redact_text(f"the key is {shown} today", found)
    assert OLD_TEXT not in repr(Settings(encryption_keys=keys))
