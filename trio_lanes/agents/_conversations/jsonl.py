"""Conversations in files: a folder with one file for each thread, a line of JSON for each commit.

A line is written by one call, and counts when its newline is there. So whatever a crash leaves of
the last line is no commit: reading passes over it, and the next write first cuts it off. A write
that fails takes back what it has written. Any other line that is no JSON is an error, since
something else has been at the file.

All of it is done in threads. What concerns one file is done under one lock, which is a thread's
and not a task's: a write that has begun cannot be cancelled, and one that waits for another waits
where Trio sees only a thread at work. The locks are few and shared by the files, so that nothing
is kept of a file that is not in use.
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
_STEP: Final = 64 * 1024  # bytes that are looked through at once for the last newline


@final
class JsonlTranscript:
    """A `TranscriptStore` in a folder: an append-only file ``<thread id>.jsonl`` for each thread.

    A folder is for one object of one process at a time. The folder is made when it is needed.

    Args:
      folder: where the files are.
      fsync: whether a write waits until the disk has it, so that it outlives the machine's crash
        and not only the process's.
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
          TypeError: if it is no string.
          ValueError: if it is empty, or would lead out of the folder.
        """
        self._path(thread_id)

    async def load(self, thread_id: str, start: int = 0) -> Sequence[Commit]:
        """See `TranscriptStore.load`. Cancelling it has no effect once the file is being read.

        Raises:
          TypeError, ValueError: as `check`.
          OSError: if the file cannot be read.
          TranscriptError: if a line of it is no commit.
        """
        return await trio.to_thread.run_sync(self._load, self._path(thread_id), start)

    async def append(self, thread_id: str, commit: Commit) -> None:
        """See `TranscriptStore.append`. Cancelling it has no effect once the file is written.

        Raises:
          TypeError, ValueError: as `check`, or if ``commit`` is no JSON.
          OSError: if the file cannot be written.
        """
        path = self._path(thread_id)
        line = json.dumps(commit, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        await trio.to_thread.run_sync(self._append, path, line)

    def _path(self, thread_id: str) -> Path:
        name = check_thread_id(thread_id) + ".jsonl"
        # A backslash is looked for everywhere, since a folder may be taken to another system.
        if thread_id in (".", "..") or "\\" in name or "\0" in name or Path(name).name != name:
            raise ValueError(f"thread id {thread_id!r} could leave the folder")
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
            # Without a buffer, so that closing the file cannot write what had failed before.
            with open(path, "a+b", buffering=0) as file:
                end = _whole_lines(file)
                file.truncate(end)
                try:
                    view = memoryview(line)
                    while view:
                        view = view[file.write(view) :]
                    if self.fsync:
                        os.fsync(file.fileno())
                        if not end and os.name == "posix":  # elsewhere folders cannot be opened
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
        raise TranscriptError(f"{path}, line {number} is no list")
    return commit


def _whole_lines(file: FileIO) -> int:
    """How many bytes of the file are lines that end."""
    end = file.seek(0, os.SEEK_END)
    while end:
        start = file.seek(max(0, end - _STEP))
        newline = file.read(end - start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def _sync_folder(folder: Path) -> None:
    """Have the disk know that there is a new file."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
