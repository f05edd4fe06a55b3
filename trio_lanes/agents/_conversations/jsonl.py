"""Conversations in files: one file for each thread, one line of JSON for each commit.

A commit counts when the newline of its line is in the file. A crash may leave a part of the last
line: reading ignores it, and the next write removes it first. A write that fails removes the part
it has written. Any other line that is not JSON is an error, because another program has changed the
file.

The file system is used in worker threads. All access to a file is under one `threading.Lock`: a
write that has begun cannot be cancelled, so it may still run in its thread after its task has gone
on. A fixed number of locks is shared by all files, so the store keeps nothing about files that are
not in use.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from io import FileIO
from pathlib import Path
from threading import Lock
from typing import Final, final

import trio

from .locks import ThreadLocks
from .transcript import Commit, TranscriptError, check_thread_id

_LOCKS: Final = 64
_STEP: Final = 64 * 1024  # bytes that one search step for the last newline reads


@final
class JsonlTranscript:
    """A `TranscriptStore` in a folder: an append-only file ``<thread id>.jsonl`` for each thread.

    Only one object of one process may use a folder at a time. The first write makes the folder.

    Args:
      folder: the folder of the files.
      fsync: whether a write waits until the data is on the disk, so that it survives a crash of
        the machine, and not only of the process.
    """

    def __init__(self, folder: str | os.PathLike[str], fsync: bool = False) -> None:
        self.folder: Final = Path(folder)
        self.fsync: Final = fsync
        self.locks: Final = ThreadLocks()
        self.live: Final[set[str]] = set()
        self._file_locks: Final = tuple(Lock() for _ in range(_LOCKS))

    def __repr__(self) -> str:
        return f"<trio_lanes.agents.JsonlTranscript at {id(self):#x}, {str(self.folder)!r}>"

    def check(self, thread_id: str) -> None:
        """Return if ``thread_id`` can be the name of a file in the folder. Not a checkpoint.

        Raises:
          TypeError: if it is not a string.
          ValueError: if it is blank, or names a file outside the folder.
        """
        self._path(thread_id)

    async def load(self, thread_id: str, start: int = 0) -> Sequence[Commit]:
        """See `TranscriptStore.load`. Cancelling it has no effect once the file is being read.

        Raises:
          TypeError, ValueError: as `check`.
          OSError: if the file cannot be read.
          TranscriptError: if a line of the file is not a commit.
        """
        return await trio.to_thread.run_sync(self._load, self._path(thread_id), start)

    async def append(self, thread_id: str, commit: Commit) -> None:
        """See `TranscriptStore.append`. Cancelling it has no effect once the file is written.

        Raises:
          TypeError, ValueError: as `check`, or if ``commit`` is not JSON.
          OSError: if the file cannot be written.
        """
        path = self._path(thread_id)
        line = json.dumps(commit, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        await trio.to_thread.run_sync(self._append, path, line)

    def _path(self, thread_id: str) -> Path:
        name = check_thread_id(thread_id) + ".jsonl"
        # Refuse backslashes on every system: a folder may be moved to another system.
        if thread_id in (".", "..") or "\\" in name or "\0" in name or Path(name).name != name:
            raise ValueError(f"thread id {thread_id!r} names a file outside the folder")
        return self.folder / name

    # ---- in a thread

    def _lock(self, path: Path) -> Lock:
        return self._file_locks[hash(path) % _LOCKS]

    def _load(self, path: Path, start: int) -> list[Commit]:
        with self._lock(path):
            try:
                data = path.read_bytes()
            except FileNotFoundError:
                return []
        lines = data.split(b"\n")[:-1]
        return [_commit(path, n, line) for n, line in enumerate(lines[start:], start + 1)]

    def _append(self, path: Path, line: bytes) -> None:
        with self._lock(path):
            self.folder.mkdir(parents=True, exist_ok=True)
            # Unbuffered, so that closing the file does not repeat a write that has failed.
            with open(path, "a+b", buffering=0) as file:
                end = _whole_lines(file)
                file.truncate(end)
                try:
                    view = memoryview(line)
                    while view:
                        view = view[file.write(view) :]
                    if self.fsync:
                        os.fsync(file.fileno())
                        if not end and os.name == "posix":  # only there can folders be opened
                            _sync_folder(self.folder)
                except BaseException:
                    file.truncate(end)
                    raise


def _commit(path: Path, number: int, line: bytes) -> Commit:
    try:
        commit = json.loads(line)
    except ValueError as error:
        raise TranscriptError(f"{path}, line {number}: {error}") from error
    if not isinstance(commit, list):
        raise TranscriptError(f"{path}, line {number}: not a list of records")
    return commit


def _whole_lines(file: FileIO) -> int:
    """Return the number of bytes of the file up to its last newline."""
    end = file.seek(0, os.SEEK_END)
    while end:
        start = file.seek(max(0, end - _STEP))
        newline = file.read(end - start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def _sync_folder(folder: Path) -> None:
    """Write the directory entry of a new file to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
