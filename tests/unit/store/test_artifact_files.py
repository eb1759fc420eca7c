"""Large artifacts stand in a folder or in a bucket: over real HTTP, sealed like rows, and gone with their session."""

import importlib
import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from moto.server import ThreadedMotoServer

from perdure.contracts.checkpoints import ResumeFrom
from perdure.contracts.turns import Continuation, OpenTurn
from perdure.security.keyring import Keyring
from perdure.store import Artifact, NotFoundError, StoreError, StoreUnavailableError
from perdure.store.artifact_files import LARGE, open_files
from perdure.store.store import Store
from tests.unit.store.given import HELPER, SESSION, STARTED, answer, commit, generate, open_turn
from tests.unit.store.test_sealing import OLD

boto3: Any = importlib.import_module("boto3")  # it has no types
MARKER = "MARK-9c1d "
BIG = Artifact(id="big", session=SESSION, media_type="text/plain", text=MARKER * (LARGE // len(MARKER) + 1))
SMALL = Artifact(id="small", session=SESSION, media_type="text/plain", text="small")


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """The address of a server that speaks S3's protocol."""
    server = ThreadedMotoServer(port=0)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def in_aws(s3: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty bucket."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test-0123456789")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    name = f"bucket-{os.urandom(4).hex()}"
    boto3.client("s3").create_bucket(Bucket=name)
    return name


@pytest.fixture(params=["folder", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "folder":
        return f"file://{tmp_path / 'artifacts'}"
    return f"s3://{request.getfixturevalue('in_aws')}/of/perdure"


def contents(place: str) -> list[bytes]:
    """What the files hold, the probe's included if it were left."""
    if place.startswith("file://"):
        return [path.read_bytes() for path in Path(place.removeprefix("file://")).rglob("*") if path.is_file()]
    client, bucket = boto3.client("s3"), place.split("/")[2]
    keys = [found["Key"] for found in client.list_objects_v2(Bucket=bucket).get("Contents", ())]
    return [client.get_object(Bucket=bucket, Key=key)["Body"].read() for key in keys]


async def make_session(store: Store) -> None:
    opened = await open_turn(store)
    step = await answer(store, generate(opened.tip), "hello")
    await store.commit_turn(commit(step.id))


@pytest.mark.parametrize("keyring", [None, OLD], ids=["plain", "sealed"])
async def test_a_large_artifact_is_a_file_which_goes_with_its_session(
    tmp_path: Path, place: str, keyring: Keyring | None
) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    async with await Store.open(url, upgrade=True, keyring=keyring, artifacts=place) as store:
        await make_session(store)
        await store.keep_artifacts([BIG, SMALL])
        await store.keep_artifacts([BIG])
        (file,) = contents(place)
        assert (MARKER.encode() in file) is (keyring is None)
        assert len((tmp_path / "store.db").read_bytes()) < LARGE
        assert (await store.artifact("big", session=SESSION)).text == BIG.text
        assert (await store.artifact("small", session=SESSION)).location == ""
    async with await Store.open(url, keyring=keyring, artifacts=place) as again:
        assert (await again.artifact("big")).data == BIG.text.encode()
        await again.erase_session(SESSION)
        assert contents(place) == []


async def test_a_fork_keeps_the_file_which_is_sealed_anew(tmp_path: Path, place: str) -> None:
    async with await Store.open("sqlite://", upgrade=True, keyring=OLD, artifacts=place) as store:
        await make_session(store)
        await store.keep_artifacts([BIG])
        (before,) = contents(place)
        request = Continuation(prompt="aside", resume_from=ResumeFrom(session=SESSION))
        fork = OpenTurn(session="fork", request=request, request_id="f1", run_started_at=STARTED)
        await store.open_turn(fork, HELPER)
        await store.erase_session(SESSION)
        (after,) = contents(place)
        assert before[:17] != after[:17]  # another key
        assert (await store.artifact("big", session="fork")).text == BIG.text


async def test_a_file_without_a_row_is_garbage(tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with await Store.open("sqlite://", upgrade=True, artifacts=place) as store:
        await make_session(store)
        await store.keep_artifacts([BIG])
        await store._shelve([BIG.model_copy(update={"id": "lost"})])
        assert (await store.collect_garbage())["files"] == 0  # it is young: its row may be about to come
        monkeypatch.setattr("perdure.store.garbage.YOUNG", timedelta(days=-1))
        assert (await store.collect_garbage(dry_run=True))["files"] == 1
        assert (await store.collect_garbage())["files"] == 1
        assert len(contents(place)) == 1
        assert (await store.artifact("big")).text == BIG.text


@pytest.mark.parametrize("url", ["s3://", "ftp://host/x", "file://relative", "file:///", "bucket"])
def test_what_is_no_place_is_refused(url: str) -> None:
    with pytest.raises(StoreError, match="write s3://BUCKET/PREFIX or file:///FOLDER"):
        open_files(url)


async def test_a_place_that_cannot_be_written_is_refused_at_start(tmp_path: Path, in_aws: str) -> None:
    (tmp_path / "file").write_text("")
    for place, said in (
        (f"s3://{in_aws}-missing", "PERDURE_ARTIFACTS cannot be used: the bucket .* there is no such bucket; make it"),
        (f"file://{tmp_path / 'file' / 'below'}", "PERDURE_ARTIFACTS cannot be used: the folder .*make it writable"),
    ):
        with pytest.raises(StoreUnavailableError, match=said):
            await Store.open(f"sqlite:///{tmp_path / 'store.db'}", upgrade=True, artifacts=place)


async def test_a_place_that_does_not_answer_is_waited_for_and_nothing_dangles(
    tmp_path: Path, in_aws: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is the one that the store's own writes are tried again for."""
    async with await Store.open("sqlite://", upgrade=True, artifacts=f"s3://{in_aws}") as store:
        await make_session(store)
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
        store.shelf._files = open_files(f"s3://{in_aws}")
        with pytest.raises(StoreUnavailableError, match="of artifacts: Could not connect"):
            await store.keep_artifacts([BIG])
        with pytest.raises(NotFoundError):
            await store.artifact("big")
