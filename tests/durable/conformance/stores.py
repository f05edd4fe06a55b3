"""Stores that need nothing but Python."""

from __future__ import annotations

from pathlib import Path

from tests.support.programs import PATIENCE
from trio_lanes.durable import MemoryStore, SqliteStore

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
