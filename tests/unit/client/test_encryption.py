"""Payloads as Temporal sees them: in the form of Temporal's own samples, and readable with any key of the keyring."""

import base64
import os
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.converter import PayloadCodec
from temporalio.exceptions import ApplicationError

from perdure.client.connect import make_converter
from perdure.client.encryption import EncryptionCodec, key_id_of, reveal_failure, reveal_pending
from perdure.client.errors import KeysMismatchError
from perdure.client.worker_stores import WorkerStore, check_keys, marks_of
from perdure.contracts.errors import DecryptionError, KeyringError, UnknownKeyError
from perdure.contracts.tools import CallTool
from perdure.security.keyring import Keyring
from perdure.workflows import visibility

OLD, NEW, OTHER = bytes(range(32)), bytes(range(200, 232)), bytes(range(100, 132))


class SampleCodec(PayloadCodec):
    """The codec of Temporal's ``samples-python``, ``encryption/codec.py``, as it stands there."""

    def __init__(self, key_id: str, key: bytes) -> None:
        super().__init__()
        self.key_id = key_id
        self.encryptor = AESGCM(key)

    async def encode(self, payloads: Iterable[Payload]) -> list[Payload]:
        return [
            Payload(
                metadata={
                    "encoding": b"binary/encrypted",
                    "encryption-key-id": self.key_id.encode(),
                },
                data=self.encrypt(p.SerializeToString()),
            )
            for p in payloads
        ]

    async def decode(self, payloads: Iterable[Payload]) -> list[Payload]:
        ret: list[Payload] = []
        for p in payloads:
            if p.metadata.get("encoding", b"").decode() != "binary/encrypted":
                ret.append(p)
                continue
            key_id = p.metadata.get("encryption-key-id", b"").decode()
            if key_id != self.key_id:
                raise ValueError(f"Unrecognized key ID {key_id}. Current key ID is {self.key_id}.")
            ret.append(Payload.FromString(self.decrypt(p.data)))
        return ret

    def encrypt(self, data: bytes) -> bytes:
        nonce = os.urandom(12)
        return nonce + self.encryptor.encrypt(nonce, data, None)

    def decrypt(self, data: bytes) -> bytes:
        return self.encryptor.decrypt(data[:12], data[12:], None)


def payloads(*values: str) -> list[Payload]:
    return [Payload(metadata={"encoding": b"json/plain"}, data=f'"{value}"'.encode()) for value in values]


async def test_the_codec_of_temporals_samples_reads_ours_and_ours_reads_theirs() -> None:
    theirs, ours = SampleCodec("k1", OLD), EncryptionCodec(Keyring({"k1": OLD}))
    said = payloads("the prompt", "the result")
    assert await theirs.decode(await ours.encode(said)) == said
    assert await ours.decode(await theirs.encode(said)) == said


async def test_each_key_of_the_keyring_reads_and_the_first_writes() -> None:
    before, after = EncryptionCodec(Keyring({"k1": OLD})), EncryptionCodec(Keyring({"k2": NEW, "k1": OLD}))
    said = payloads("words")
    assert await after.decode(await before.encode(said)) == said
    (sealed,) = await after.encode(said)
    assert key_id_of(sealed) == "k2"
    with pytest.raises(UnknownKeyError, match="encrypted with the key 'k2', and this process has k1"):
        await before.decode([sealed])


async def test_payloads_in_plain_text_are_read_beside_encrypted_ones() -> None:
    codec = EncryptionCodec(Keyring({"k1": OLD}))
    plain, sealed = payloads("before"), await codec.encode(payloads("after"))
    assert await codec.decode([*plain, *sealed]) == [*plain, *payloads("after")]


async def test_a_keyring_that_begins_with_plain_reads_and_encrypts_nothing() -> None:
    keyring = Keyring.parse(f"plain,k1:{base64.b64encode(OLD).decode()}")
    codec, said = EncryptionCodec(keyring), payloads("words")
    assert await codec.encode(said) == said
    assert await codec.decode(await EncryptionCodec(Keyring({"k1": OLD})).encode(said)) == said
    assert codec.seal_text("a note") == "a note"
    with pytest.raises(KeyringError, match="'plain' stands at place 2; write it first"):
        Keyring.parse(f"k1:{base64.b64encode(OLD).decode()},plain")
    with pytest.raises(KeyringError, match="there is no key"):
        Keyring.parse("plain")


@pytest.mark.parametrize("keyring", [None, Keyring({"k2": NEW}), Keyring({"k1": OTHER})])
async def test_what_cannot_be_read_is_a_plain_exception_with_the_keys_id_and_is_told_of(
    keyring: Keyring | None,
) -> None:
    """An ``ApplicationError`` might end the workflow; any other fails its task, which is tried again."""
    told: list[str] = []
    sealed = await EncryptionCodec(Keyring({"k1": OLD})).encode(payloads("words"))
    with pytest.raises((UnknownKeyError, DecryptionError)) as refused:
        await EncryptionCodec(keyring, failed=lambda error: told.append(error.key_id)).decode(sealed)
    assert not isinstance(refused.value, ApplicationError)
    assert "PERDURE_ENCRYPTION_KEYS" in str(refused.value)
    assert told == ["k1"]


def raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
    try:
        raise error from cause
    except type(error):
        return error


async def test_messages_and_stacks_of_failures_and_of_their_causes_are_encrypted_and_read_again() -> None:
    converter, failure = make_converter(Keyring({"k1": OLD})), Failure()
    error = raised(ApplicationError("MARK-outer", "MARK-detail", type="tool.failed"), raised(ValueError("MARK-inner")))
    await converter.encode_failure(error, failure)
    assert b"MARK" not in failure.SerializeToString()
    assert b"raised" not in failure.SerializeToString()
    assert (failure.message, failure.application_failure_info.type) == ("Encoded failure", "tool.failed")
    read = await converter.decode_failure(failure)
    assert "MARK-outer" in str(read)
    assert "MARK-inner" in str(read.__cause__)
    await reveal_failure(converter, failure)
    assert (failure.message, failure.cause.message) == ("MARK-outer", "MARK-inner")
    assert "raised" in failure.cause.stack_trace


async def test_a_failure_of_before_is_encrypted_whole_when_it_is_passed_on() -> None:
    """What a workflow raises again has the failure of its cause as the history has it: without keys, in plain text."""
    plain, sealed = Failure(), Failure()
    await make_converter(None).encode_failure(raised(ApplicationError("MARK", type="x"), OSError("MARK")), plain)
    converter = make_converter(Keyring({"k1": OLD}))
    await converter.encode_failure(raised(await converter.decode_failure(plain)), sealed)
    assert b"MARK" not in sealed.SerializeToString()


async def test_a_failure_and_a_beat_of_another_key_say_so_or_are_left_out() -> None:
    pending = PendingActivityInfo()
    writer, reader = make_converter(Keyring({"k1": OLD})), make_converter(Keyring({"k2": NEW}))
    await writer.encode_failure(raised(OSError("gone")), pending.last_failure)
    pending.heartbeat_details.payloads.extend(await writer.encode(["a note"]))
    readable = PendingActivityInfo()
    readable.CopyFrom(pending)
    await reveal_pending(writer, [readable])
    assert (readable.last_failure.message, readable.heartbeat_details.payloads[0].data) == ("gone", b'"a note"')
    await reveal_pending(reader, [pending])
    assert pending.last_failure.message.startswith("content is encrypted with the key 'k1', and this process has k2")
    assert not pending.heartbeat_details.payloads


def test_a_note_is_encrypted_where_temporal_takes_text_only() -> None:
    codec = EncryptionCodec(Keyring({"k1": OLD}))
    sealed = codec.seal_text("for the party \N{PARTY POPPER}")
    assert sealed.startswith("encrypted:k1:")
    assert codec.open_text(sealed) == "for the party \N{PARTY POPPER}"
    assert (codec.seal_text(""), codec.open_text("plain: text"), codec.open_text("encrypted:k1:???")) == (
        "",
        "plain: text",
        "encrypted:k1:???",
    )
    assert "this process has no keys" in EncryptionCodec(None).open_text(sealed)


@pytest.mark.parametrize("text", ["x" * 500, "\N{GRINNING FACE}" * 200, '"' * 500, "\x01" * 500])
async def test_a_summary_fits_the_servers_limit_encrypted_too(text: str) -> None:
    call = CallTool(session="s", turn=1, step=1, call_id="c", definition="d", arguments=text)
    (payload,) = await make_converter(Keyring({"k" * 32: OLD})).encode([visibility.tool_summary(call)])
    assert payload.ByteSize() <= 400


def worker(*keys: tuple[str, bytes], plain: bool = False) -> WorkerStore:
    keyring = Keyring(dict(keys), encrypts=not plain) if keys else None
    told = WorkerStore("7@host", "5d0c", "sqlite:///a folder/store.db", keys=marks_of(keyring))
    parsed = WorkerStore.parse(told.identity)
    assert parsed == told
    return parsed


K1, K2 = ("k1", OLD), ("k2", NEW)


@pytest.mark.parametrize(
    ("own", "theirs"),
    [
        ({}, [worker()]),
        ({"k1": OLD}, []),
        ({"k1": OLD}, [worker(K1), worker(K1, K2)]),
        ({"k2": NEW, "k1": OLD}, [worker(K1, K2)]),
        ({"k1": OLD}, [worker(K1, plain=True)]),
    ],
)
def test_processes_that_can_read_each_other_work_together(own: dict[str, bytes], theirs: Sequence[Any]) -> None:
    check_keys(marks_of(Keyring(own) if own else None), theirs, "queue")


@pytest.mark.parametrize(
    ("own", "theirs", "problem"),
    [
        ({}, worker(K1), "encrypts with the key 'k1', which this process does not have"),
        ({"k1": OLD}, worker(), "does not have the key 'k1', with which this process encrypts"),
        ({"k2": NEW, "k1": OLD}, worker(K1), "does not have the key 'k2', with which this process encrypts"),
        ({"k1": OLD}, worker(K2, K1), "encrypts with the key 'k2', which this process does not have"),
        ({"k1": OTHER}, worker(K1), "has another key than this process under the id 'k1'"),
    ],
)
def test_a_process_that_would_not_read_a_worker_or_not_be_read_is_refused(
    own: dict[str, bytes], theirs: WorkerStore, problem: str
) -> None:
    with pytest.raises(KeysMismatchError) as refused:
        check_keys(marks_of(Keyring(own) if own else None), [theirs], "queue")
    assert f"worker 7@host of task queue 'queue' {problem}; give every process the same keys" in str(refused.value)
