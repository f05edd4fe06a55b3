"""The writer: the only thread that changes a SQLite store.

A transaction that cannot begin, since another process writes, is not repeated; but the acts in it
that only look are done in a transaction of their own, which needs no lock. An act that is too large
for a nearly full disk fails alone.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, final

from .._rules.engine import Engine
from .._sql.act_thread import Act, ActThread, Tell
from .schema import confirmed_error, is_damage
from .tables import SqliteTables


@final
class Writer(ActThread):
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
        tell: Tell,
    ) -> None:
        super().__init__(str(path), tables, engine, patience, tell)
        self._path: Final = path
        self._check: Final = check
        self._begun = False  # whether the present transaction has begun

    def _lose_patience(self) -> None:
        """Do nothing: only the disk itself ends a call of the disk."""

    def _begin(self, acts: Sequence[Act[Any]]) -> None:
        self._begun = False
        self._check()
        self._tables.begin(write=any(act.write for act in acts))
        self._begun = True

    def _commit(self, acts: Sequence[Act[Any]]) -> None:
        self._tables.commit(_now(acts))

    def _undo(
        self, acts: list[Act[Any]], error: BaseException
    ) -> tuple[list[list[Act[Any]]], BaseException, bool]:
        unknown = not self._tables.rollback()
        again: list[list[Act[Any]]] = []
        if not (isinstance(error, sqlite3.Error) and is_damage(error)):
            looks = [act for act in acts if not act.write]
            if len(acts) > 1 and self._begun:
                again = [[act] for act in acts]
            elif looks and len(looks) < len(acts):
                again = [looks]  # these need no lock that another process could hold
        if isinstance(error, sqlite3.Error) and len(again) < len(acts):
            error = confirmed_error(self._path, error)
        return again, error, unknown


def _now(acts: Sequence[Act[Any]]) -> float:
    return acts[-1].now or 0.0
