"""Life locks: how the owner of a file knows whether a process that worked on it still lives.

The workers of a served file hold no lock of the file; their parent does. So each of them holds a
lock of its own on an empty file beside the store, for each of its incarnations, from before the
store hears of that until the process has ended, when the system frees it. If the parent dies and
another process opens the file, that one gives back what an incarnation ran as soon as its life lock
is free: nothing of it can run any more. Until then, and if there is no such file, the lease counts.

The lock is `flock`'s. A process that a body forks has it too: what goes on there still runs.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

logger: Final = logging.getLogger("trio_lanes.durable")

_held: Final[list[int]] = []  # descriptors, which nothing closes but the end of the process


def _path_of(store: Path, incarnation: str) -> str:
    return f"{os.path.realpath(store)}.life-{incarnation}"


def hold_life(store: Path, incarnation: str) -> None:
    """Hold the life lock of an incarnation of this process, until the process ends."""
    path = _path_of(store, incarnation)
    try:
        while not _take(path):
            pass  # another process looks at the file in this moment, or has removed it
    except OSError as error:
        logger.warning(
            "%s cannot be locked: %s; if the parent of this process dies, the jobs that this"
            " process runs are given back at the end of its lease",
            path,
            error,
        )
        forget_life(store, incarnation)


def _take(path: str) -> bool:
    import fcntl  # which Windows lacks, where no file is served

    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    is_held = False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_held = os.path.samestat(os.stat(path), os.fstat(descriptor))
    except (BlockingIOError, FileNotFoundError):
        pass
    finally:
        if is_held:
            _held.append(descriptor)
        else:
            os.close(descriptor)
    return is_held


def forget_life(store: Path, *incarnations: str) -> None:
    """Remove the files of life locks: no job of the incarnations is left to give back."""
    for incarnation in incarnations:
        with suppress(OSError):
            os.unlink(_path_of(store, incarnation))


def ended_lives(store: Path, known: Collection[str]) -> set[str]:
    """Return the incarnations whose life locks are free.

    The files of those that are not among ``known`` are removed.
    """
    whole = _path_of(store, "")
    folder, prefix = os.path.split(whole)
    ended: set[str] = set()
    try:
        names = os.listdir(folder)
    except OSError:  # the leases count
        return ended
    for name in names:
        if name.startswith(prefix):
            incarnation = name.removeprefix(prefix)
            with suppress(OSError):  # it is held, or another process has removed it
                with closing(_Locked(whole + incarnation)):
                    ended.add(incarnation)
                    if incarnation not in known:
                        forget_life(store, incarnation)
    return ended


class _Locked:
    """The lock of a file that exists; raises OSError if another process holds it."""

    def __init__(self, path: str) -> None:
        import fcntl

        self._descriptor: Final = os.open(path, os.O_RDWR)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        os.close(self._descriptor)
