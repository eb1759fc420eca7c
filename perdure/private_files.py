"""Files that only their owner may read: stores, executions and logs hold what people and agents say to each other."""

import os
from pathlib import Path

FOLDER_MODE = 0o700
FILE_MODE = 0o600
UMASK = 0o077
"""Of a child process whose every file is its owner's alone."""


def make_folder(folder: Path) -> None:
    """Make the folder, and the missing ones above it, for their owner alone; an existing folder keeps its mode.

    Raises:
        OSError: It cannot be made, or is a file.
    """
    for above in reversed(folder.parents):
        if not above.exists():
            above.mkdir(mode=FOLDER_MODE, exist_ok=True)
    folder.mkdir(mode=FOLDER_MODE, exist_ok=True)


def open_private(path: str, flags: int) -> int:
    """Open a file, making it for its owner alone: the ``opener`` of the function ``open``."""
    return os.open(path, flags, FILE_MODE)
