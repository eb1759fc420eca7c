"""Writes large artifacts to files and reads them, sealed with their session's key as rows are.

A file begins with a byte for its format: 0, then the text in UTF-8; or 1, then the id of the session's key and the
sealed text.
"""

import asyncio
from collections.abc import AsyncIterator, Collection
from datetime import datetime

from perdure.contracts.values import replace
from perdure.store.artifact_files import LARGE, ArtifactFiles, check_files, name_of
from perdure.store.errors import StoreError, StoreKeyError
from perdure.store.keys.vault import DataKey, Vault, open_vault
from perdure.store.records import Artifact

PLAIN, SEALED = b"\x00", b"\x01"
KEY_ID = 16
"""Characters of a key's id."""

PAGE = 500
"""Names that are looked up at once."""

_PLACE = "artifacts.file"


class Shelf:
    """The files of one store's artifacts; without a place for files, artifacts stay in the database."""

    def __init__(self, files: ArtifactFiles | None, vault: Vault) -> None:
        self._files = files
        self._vault = vault

    @property
    def files(self) -> ArtifactFiles:
        """The place of the files.

        Raises:
            StoreError: This process has no setting for it.
        """
        if self._files is None:
            raise StoreError("an artifact is a file; set PERDURE_ARTIFACTS as the processes have it that wrote it")
        return self._files

    async def check(self) -> None:
        """Check that files can be written, if there is a place for them.

        Raises:
            StoreUnavailableError: They cannot be written; the message names the place and the fix.
        """
        if self._files is not None:
            await asyncio.to_thread(check_files, self._files)

    def wants(self, artifact: Artifact) -> bool:
        """Whether the artifact's content belongs into a file."""
        return self._files is not None and len(artifact.text) > LARGE

    async def write(self, artifact: Artifact) -> Artifact:
        """Write a large artifact's content to a file; return the artifact with its location, a small one unchanged."""
        if not self.wants(artifact):
            return artifact
        name = name_of(artifact.session, artifact.id)
        key = self._vault.find(artifact.session) if self._vault.keyring is not None else None
        if key is None and self._vault.keyring is not None:
            raise StoreKeyError(f"the key of session {artifact.session!r} is not known yet; try again")
        await asyncio.to_thread(self.files.put, name, _pack(artifact.text, key))
        return replace(artifact, text="", location=name)

    async def fetch(self, location: str) -> bytes:
        """The bytes of a file, still sealed."""
        return await asyncio.to_thread(self.files.get, location)

    def move(self, location: str, session: str, artifact: str) -> str:
        """Write a file anew, sealed with the key of ``session``. To be called in a transaction, on a store's thread."""
        name, data = name_of(session, artifact), self.files.get(location)
        sealer = open_vault()
        if data[:1] == SEALED:
            text = unpack(data, sealer.key_by_id(key_id_of(data)))
            data = _pack(text, sealer.key_of(session))
        self.files.put(name, data)
        return name

    async def delete(self, locations: Collection[str]) -> None:
        """Delete files."""
        for location in locations:
            await asyncio.to_thread(self.files.delete, location)

    async def list_old(self, before: datetime) -> AsyncIterator[list[str]]:
        """Names of the files that were written before a time, in pages."""
        if self._files is None:
            return
        names = await asyncio.to_thread(lambda: list(self.files.names(before)))
        for place in range(0, len(names), PAGE):
            yield names[place : place + PAGE]


def _pack(text: str, key: DataKey | None) -> bytes:
    if key is None:
        return PLAIN + text.encode()
    return SEALED + key.id.encode() + key.seal(text.encode(), _PLACE)


def key_id_of(data: bytes) -> str:
    """The id of the key that a file is sealed with; empty if it is not."""
    return data[1 : KEY_ID + 1].decode() if data[:1] == SEALED else ""


def unpack(data: bytes, key: DataKey | None) -> str:
    """The text of a file.

    Raises:
        StoreKeyError: The key does not open it.
    """
    return data[1:].decode() if key is None else key.open(data[KEY_ID + 1 :], _PLACE).decode()
