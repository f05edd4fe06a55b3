"""The writer: the only thread that changes a SQLite store."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, final

from .._rules.engine import Engine
from .._sql.act_thread import ActThread, Announce, HandedAct
from .schema import confirmed_error, is_damage
from .tables import SqliteTables


@final
class SqliteWriter(ActThread):
    """A thread that makes calls in transactions of one SQLite connection.

    Args:
      check: raises if the file of that path was removed or replaced.
    """

    _errors = sqlite3.Error
    _tables: SqliteTables

    def __init__(
        self,
        path: Path,
        tables: SqliteTables,
        engine: Engine,
        check: Callable[[], None],
        patience: float,
        announce: Announce,
    ) -> None:
        super().__init__(str(path), tables, engine, patience, announce)
        self._path: Final = path
        self._check: Final = check
        self._begun = False  # whether the present transaction has begun

    def _lose_patience(self) -> None:
        """Do nothing: only the disk itself ends a call of the disk."""

    def _begin(self, acts: Sequence[HandedAct[Any]]) -> None:
        self._begun = False
        self._check()
        self._tables.begin(write=any(act.write for act in acts))
        self._begun = True

    def _commit(self, acts: Sequence[HandedAct[Any]]) -> None:
        self._tables.commit(_now(acts))

    def _undo(
        self, acts: list[HandedAct[Any]], error: BaseException
    ) -> tuple[list[list[HandedAct[Any]]], BaseException, bool]:
        unknown = not self._tables.rollback()
        again: list[list[HandedAct[Any]]] = []
        if not (isinstance(error, sqlite3.Error) and is_damage(error)):
            looks = [act for act in acts if not act.write]
            if len(acts) > 1 and self._begun:
                again = [[act] for act in acts]  # one too large for a nearly full disk fails alone
            elif looks and len(looks) < len(acts):
                again = [looks]  # another process writes: these need no lock of it
        if isinstance(error, sqlite3.Error) and len(again) < len(acts):
            error = confirmed_error(self._path, error)
        return again, error, unknown


def _now(acts: Sequence[HandedAct[Any]]) -> float:
    return acts[-1].now or 0.0
