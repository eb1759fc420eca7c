"""Files of large artifacts, outside of the database: in a folder, or in a bucket of S3 or a compatible service.

A file is written before the row that names it, under a name derived from session and artifact. So writing it twice is
harmless, and every row has its file. Files that no row names are deleted once they are old.
"""

import hashlib
import importlib
import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from perdure.local_files import make_folder, open_private
from perdure.store.errors import NotFoundError, StoreConfigError, StoreError, StoreUnavailableError

LARGE = 1_000_000
"""Size above which an artifact goes into a file, in characters of its text (base64 for binary content)."""

_PROBE = "perdure-probe"
_FORM = "write s3://BUCKET/PREFIX or file:///FOLDER"
_GONE = frozenset({"NoSuchKey", "404", "NotFound"})
_SECONDS = 20


class ArtifactFiles(Protocol):
    """The place of the files. Each method blocks, and raises StoreUnavailableError if a retry may help."""

    def put(self, name: str, data: bytes) -> None:
        """Write a file atomically."""
        ...

    def get(self, name: str) -> bytes:
        """Read a file; NotFoundError if it is not there."""
        ...

    def delete(self, name: str) -> None:
        """Delete a file, if it is there."""
        ...

    def names(self, before: datetime) -> Iterator[str]:
        """Names of the files that were written before a time."""
        ...


def open_files(url: str) -> ArtifactFiles | None:
    """The place of the files at an address; None for an empty one: artifacts then stay in the database.

    Raises:
        StoreConfigError: The address is of neither kind, or boto3 is not installed.
    """
    if not url:
        return None
    parts = urlsplit(url)
    if parts.scheme == "file" and parts.path.strip("/") and not parts.netloc:
        return Folder(Path(unquote(parts.path)))
    if parts.scheme == "s3" and parts.netloc:
        return Bucket(parts.netloc, parts.path.strip("/"))
    raise StoreConfigError(f"PERDURE_ARTIFACTS={url!r} is no place for artifacts; {_FORM}")


def check_files(files: ArtifactFiles) -> None:
    """Write and delete a probe file.

    Raises:
        StoreError: That failed; the message names the place and the fix.
    """
    try:
        files.put(_PROBE, b"")
        files.delete(_PROBE)
    except StoreError as error:
        raise StoreUnavailableError(f"PERDURE_ARTIFACTS cannot be used: {error}") from None


def name_of(session: str, artifact: str) -> str:
    """The name of an artifact's file, made of hashes, so that it reveals neither session nor artifact."""
    return f"{_hash(session)}/{_hash(artifact)}"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class Folder:
    """Files below a folder, for their owner alone."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def put(self, name: str, data: bytes) -> None:
        """Write a file under a temporary name, then rename it: a half-written one never has the final name."""
        target = self._path / name
        with self._failures():
            make_folder(target.parent)
            beside = target.with_name(f"{target.name}.{os.getpid()}.part")
            with open(beside, "wb", opener=open_private) as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(target)

    def get(self, name: str) -> bytes:
        """Read a file."""
        with self._failures():
            try:
                return (self._path / name).read_bytes()
            except FileNotFoundError:
                raise NotFoundError(f"the file {name} of an artifact is not in {self._path} any more") from None

    def delete(self, name: str) -> None:
        """Delete a file; with a session's last file also its folder."""
        with self._failures():
            path = self._path / name
            path.unlink(missing_ok=True)
            if path.parent != self._path and path.parent.is_dir() and not any(path.parent.iterdir()):
                path.parent.rmdir()

    def names(self, before: datetime) -> Iterator[str]:
        """Names of the files, and of temporary files that a killed writer left behind."""
        with self._failures():
            for path in sorted(self._path.glob("*/*")):
                if datetime.fromtimestamp(path.stat().st_mtime, UTC) < before:
                    yield str(path.relative_to(self._path))

    @contextmanager
    def _failures(self) -> Generator[None]:
        try:
            yield
        except OSError as error:
            msg = f"the folder {self._path} of artifacts: {error.strerror or error}; make it writable for this process"
            raise StoreUnavailableError(msg) from None


class Bucket:
    """Objects below a prefix of a bucket. Credentials, region and endpoint come from AWS's own variables."""

    def __init__(self, bucket: str, prefix: str) -> None:
        try:
            # Imported here, because it takes half a second and most stores need none; by name, as it has no types.
            boto3: Any = importlib.import_module("boto3")
            config: Any = importlib.import_module("botocore.config")
            errors: Any = importlib.import_module("botocore.exceptions")
        except ImportError:
            msg = "artifacts in S3 need the package boto3, which is not installed; pip install 'perdure[s3]'"
            raise StoreConfigError(msg) from None
        self._place = f"s3://{bucket}/{prefix}".rstrip("/")
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._errors: tuple[type[Exception], ...] = (errors.BotoCoreError, errors.ClientError)
        # The store retries its writes itself.
        settings = config.Config(connect_timeout=_SECONDS, read_timeout=_SECONDS, retries={"total_max_attempts": 1})
        with self._failures():
            self._client: Any = boto3.client("s3", config=settings)

    def put(self, name: str, data: bytes) -> None:
        """Write an object."""
        with self._failures():
            self._client.put_object(Bucket=self._bucket, Key=self._prefix + name, Body=data)

    def get(self, name: str) -> bytes:
        """Read an object."""
        with self._failures(name):
            found: bytes = self._client.get_object(Bucket=self._bucket, Key=self._prefix + name)["Body"].read()
            return found

    def delete(self, name: str) -> None:
        """Delete an object."""
        with self._failures():
            self._client.delete_object(Bucket=self._bucket, Key=self._prefix + name)

    def names(self, before: datetime) -> Iterator[str]:
        """The objects below the prefix."""
        with self._failures():
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=self._prefix)
            for page in pages:
                for found in page.get("Contents", ()):
                    if found["LastModified"] < before:
                        yield str(found["Key"]).removeprefix(self._prefix)

    @contextmanager
    def _failures(self, name: str = "") -> Generator[None]:
        try:
            yield
        except self._errors as error:
            code = str(getattr(error, "response", {}).get("Error", {}).get("Code", ""))
            if name and code in _GONE:
                raise NotFoundError(f"the object {name} of an artifact is not in {self._place} any more") from None
            fix = {
                "NoSuchBucket": "there is no such bucket; make it, or correct PERDURE_ARTIFACTS",
                "AccessDenied": "the credentials may not do this; allow PutObject, GetObject, DeleteObject, ListBucket",
            }.get(code, " ".join(str(error).split())[:200])
            raise StoreUnavailableError(f"the bucket {self._place} of artifacts: {fix}") from None
