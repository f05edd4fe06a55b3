"""Stores that need nothing but Python, each in the conformance suite."""

from __future__ import annotations

from pathlib import Path

import trio

from tests.support.programs import PATIENCE
from trio_lanes.durable import MemoryStore, SqliteStore
from trio_lanes.durable.storage import MemoryNamespace, MemoryStorage, StorageStore

from .bench import MakeStore


def memory() -> MakeStore:
    """Return what makes stores in memory, those of one folder over the same data."""
    first: dict[Path, MemoryStore] = {}

    def make(folder: Path) -> MemoryStore:
        if folder in first:
            return first[folder].another()
        return first.setdefault(folder, MemoryStore())

    return make


def sqlite(folder: Path) -> SqliteStore:
    """Return a store in a SQLite file."""
    # a busy machine may need longer than a program would wait
    return SqliteStore(folder / "jobs.db", synchronous="NORMAL", patience=PATIENCE)


def storage() -> MakeStore:
    """Return what makes stores over a storage in memory, those of one folder over the same data."""
    all: dict[Path, MemoryNamespace] = {}

    def make(folder: Path) -> StorageStore:
        def connect(me: str) -> MemoryStorage:
            if folder not in all:  # the first is connected in Trio's thread
                all[folder] = MemoryNamespace(trio.lowlevel.current_clock().current_time)
            return MemoryStorage(all[folder])

        return StorageStore(connect, patience=PATIENCE)

    return make
