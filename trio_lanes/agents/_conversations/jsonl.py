"""Conversations in files: one file for each thread, one line of JSON for each commit.

A commit counts when the newline of its line is in the file. A crash may leave a part of the last
line: reading ignores it, and the next write removes it first. A write that fails removes the part
it has written. Any other line that is no commit is an error that names the line: another program or
a bad disk has changed the file. `JsonlTranscript.repair` moves such lines out of the file.

The file system is used in worker threads. All access to a file is under one `threading.Lock`: a
write that has begun cannot be cancelled, so it may still run in its thread after its task has gone
on. A fixed number of locks is shared by all files.

A conversation reads its last known commit and what follows. The store remembers where the last line
that it has read begins, for a bounded number of files, and reads from there.
"""

from __future__ import annotations

import json
import os
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from functools import partial
from io import FileIO
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO, ClassVar, Final

import trio

from .exchange import MessageThread
from .folder_lock import lock_folder
from .locks import ThreadLocks
from .recent import RecentThreads
from .transcript import Commit, TranscriptError, check_thread_id

_FOR_OWNER: Final = partial(os.open, mode=0o600)  # conversations are nobody else's to read
_LOCKS: Final = 64
_STEP: Final = 64 * 1024  # bytes that one search step for the last newline reads
_MARKS: Final = 10_000  # files of which the store knows where their last line begins
_MAX_ID_BYTES: Final = 240  # bytes: file systems have names of 255


class JsonlTranscript:
    """A `TranscriptStore` in a folder: an append-only file ``<thread id>.jsonl`` for each thread.

    The folder is made if there is none. It belongs to this object, until `close`, the end of the
    process, or the collection of the object: a lock in the folder (``.owner``) refuses another
    object, of this or another process. Making the object is not a checkpoint. It blocks while it
    uses the disk, and for 0.2 seconds if it is refused.

    The methods that use a file raise the errors of `check`, `OSError` if the file cannot be read or
    written, and `RuntimeError` after `close`.

    Args:
      folder: the folder of the files.
      fsync: whether a write waits until the data is on the disk, so that it survives a crash of
        the machine, and not only of the process.

    Raises:
      TranscriptLockedError: if the folder belongs to another object.
      OSError: if the folder cannot be made or locked.
    """

    _locks_type: ClassVar[type[ThreadLocks]] = ThreadLocks

    def __init__(self, folder: str | os.PathLike[str], fsync: bool = False) -> None:
        self.folder: Final = Path(folder)
        self.fsync: Final = fsync
        self.locks: Final = self._locks_type()
        self.live: Final[set[str]] = set()
        self._recent: Final[RecentThreads[Any]] = RecentThreads()
        self._file_locks: Final = tuple(Lock() for _ in range(_LOCKS))
        # {file: index and offset of its last known line}
        self._marks: Final[OrderedDict[Path, tuple[int, int]]] = OrderedDict()
        self._release: Final = weakref.finalize(self, lock_folder(self.folder).close)

    def __repr__(self) -> str:
        return f"<trio_lanes.agents.JsonlTranscript at {id(self):#x}, {str(self.folder)!r}>"

    def check(self, thread_id: str) -> None:
        """Return if ``thread_id`` can be the name of a file in the folder. Not a checkpoint.

        Raises:
          TypeError: if it is not a string.
          ValueError: if it is blank, has more than 240 bytes in UTF-8, or names a file outside the
            folder.
        """
        self._path(thread_id)

    def close(self) -> None:
        """Free the folder for another object. No conversation should use it. Not a checkpoint.

        A second call has no effect.
        """
        self._release()

    async def load(self, thread_id: str, start: int = 0) -> Sequence[Commit]:
        """See `TranscriptStore.load`. Cancelling it has no effect once the file is being read.

        Raises:
          TranscriptError: if a line of the file is not a commit.
        """
        return await trio.to_thread.run_sync(self._load, self._path(thread_id), start)

    async def append(self, thread_id: str, commit: Commit) -> None:
        """See `TranscriptStore.append`. Cancelling it has no effect once the file is written.

        Raises:
          TypeError, ValueError: if ``commit`` is not JSON.
        """
        path = self._path(thread_id)
        line = json.dumps(commit, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        await trio.to_thread.run_sync(self._append, path, line)

    async def repair(self, thread_id: str) -> list[str]:
        """Move the damaged lines of a thread into ``<thread id>.jsonl.damaged``, and report them.

        A line is damaged if it is not a commit that can follow those before it: after a lost
        beginning of a turn, the rest of this turn is damaged too. An empty commit takes the place
        of each, so the other lines keep their numbers. A checkpoint; it waits until no commit of
        the thread is being written. Cancelling it has no effect once the file is being read.

        Returns:
          What is wrong with each damaged line, with its number; an empty list if none is damaged.
        """
        path = self._path(thread_id)
        async with self.locks.exclusive(thread_id):
            damaged = await trio.to_thread.run_sync(self._repair, path, thread_id)
            self._recent.forget(thread_id)
        return damaged

    def _path(self, thread_id: str) -> Path:
        name = check_thread_id(thread_id) + ".jsonl"
        if len(os.fsencode(thread_id)) > _MAX_ID_BYTES:
            raise ValueError(
                f"a thread id must have at most {_MAX_ID_BYTES} bytes in UTF-8, got "
                f"{len(os.fsencode(thread_id))}: {thread_id[:40]!r}…"
            )
        # Refuse backslashes on every system: a folder may be moved to another system.
        if thread_id in (".", "..") or "\\" in name or "\0" in name or Path(name).name != name:
            raise ValueError(f"thread id {thread_id!r} names a file outside the folder")
        return self.folder / name

    # ---- in a thread

    def _lock(self, path: Path) -> Lock:
        if not self._release.alive:
            raise RuntimeError(f"{self!r} is closed: its folder may belong to another object")
        return self._file_locks[hash(path) % _LOCKS]

    def _load(self, path: Path, start: int) -> list[Commit]:
        with self._lock(path):
            first, offset = self._marks.get(path, (0, 0))
            try:
                with open(path, "rb") as file:
                    if first > start or not _goes_to_line(file, offset):
                        first = offset = 0
                        file.seek(0)
                    lines = file.read().split(b"\n")[:-1]
            except FileNotFoundError:
                return []
            if lines:
                last = offset + sum(map(len, lines[:-1])) + len(lines) - 1
                self._marks[path] = first + len(lines) - 1, last
                self._marks.move_to_end(path)
                if len(self._marks) > _MARKS:
                    self._marks.popitem(last=False)
        lines = lines[start - first :]
        return [_commit(path, n, line) for n, line in enumerate(lines, start + 1)]

    def _append(self, path: Path, line: bytes) -> None:
        with self._lock(path):
            self.folder.mkdir(0o700, parents=True, exist_ok=True)
            # Unbuffered, so that closing the file does not repeat a write that has failed.
            with open(path, "a+b", buffering=0, opener=_FOR_OWNER) as file:
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

    def _repair(self, path: Path, thread_id: str) -> list[str]:
        with self._lock(path):
            try:
                lines = path.read_bytes().split(b"\n")[:-1]
            except FileNotFoundError:
                return []
            damaged = _damaged(path, thread_id, lines)
            if damaged:
                _write_lines(f"{path}.damaged", "ab", (lines[n] for n in damaged))
                whole = (b"[]" if n in damaged else line for n, line in enumerate(lines))
                _write_lines(f"{path}.repaired", "wb", whole)
                os.replace(f"{path}.repaired", path)
            self._marks.pop(path, None)
        return list(damaged.values())


def _write_lines(path: str, mode: str, lines: Iterable[bytes]) -> None:
    with open(path, mode, opener=_FOR_OWNER) as file:
        file.writelines(line + b"\n" for line in lines)
        file.flush()
        os.fsync(file.fileno())


def _goes_to_line(file: BinaryIO, offset: int) -> bool:
    """Go to ``offset``; False if no line begins there, since the file was replaced."""
    if not offset:
        return True
    file.seek(offset - 1)
    return file.read(1) == b"\n"


def _commit(path: Path, number: int, line: bytes) -> Commit:
    try:
        commit = json.loads(line)
    except ValueError as error:
        raise TranscriptError(f"{path}, line {number}: {error}") from error
    if not isinstance(commit, list):
        raise TranscriptError(f"{path}, line {number}: not a list of records")
    return commit


def _damaged(path: Path, thread_id: str, lines: Sequence[bytes]) -> dict[int, str]:
    """Return {index: what is wrong with it} for the lines that are no commits of a conversation."""
    damaged: dict[int, str] = {}
    good: list[Commit] = []
    thread = MessageThread(thread_id)
    for n, line in enumerate(lines):
        commit: Commit = []
        try:
            commit = _commit(path, n + 1, line)
            thread.read([commit])
        except TranscriptError as error:
            damaged[n] = str(error)
            if commit:  # the records before the bad one have changed the thread
                thread = MessageThread(thread_id)
                thread.read(good)
            commit = []
            thread.read([commit])
        good.append(commit)
    return damaged


def _whole_lines(file: FileIO) -> int:
    """Return the number of bytes of the file up to its last newline."""
    end = file.seek(0, os.SEEK_END)
    step = 1  # the last byte is a newline, unless a write was cut off
    while end:
        start = file.seek(max(0, end - step))
        newline = file.read(end - start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end, step = start, _STEP
    return 0


def _sync_folder(folder: Path) -> None:
    """Write the directory entry of a new file to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
