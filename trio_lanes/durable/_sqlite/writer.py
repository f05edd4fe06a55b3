"""The writer: the only thread that changes a SQLite store, with group commit.

* The rules refuse an act before they write, so a refused act fails alone.
* If the disk refuses the transaction, or an act fails halfway, the transaction is rolled back and
  each act is repeated in a transaction of its own. So an act that is too large for a nearly full
  disk fails alone. A transaction that cannot begin, since another process writes, is not repeated;
  but the acts in it that only look are done in a transaction of their own, which needs no lock.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, final

from .._contract.errors import StoreUnavailableError
from .._rules.engine import Engine
from .._tables.act_thread import Act, ActThread, OverdueError, Tell
from .schema import is_damage, looked_at_again
from .tables import SqliteTables


@final
class Writer(ActThread):
    """A thread that makes calls in transactions of one SQLite connection."""

    def __init__(
        self,
        path: Path,
        tables: SqliteTables,
        engine: Engine,
        check: Callable[[], None],
        patience: float,
        tell: Tell,
    ) -> None:
        super().__init__(str(path), engine, patience, tell)
        self._path: Final = path
        self._tables: Final = tables
        self._check: Final = check  # raises if the file of that path was removed or replaced
        self._begun = False  # whether the present transaction has begun

    def _lose_patience(self) -> None:
        """Do nothing: only the disk itself ends a call of the disk."""

    def _do(self, acts: list[Act[Any]]) -> None:
        """Do all acts in one transaction; if that fails, do each in a transaction of its own."""
        acts = self._not_overdue(acts)
        if not acts:
            return
        try:
            self._transact(acts)
        except OverdueError:
            self._tables.rollback()
            self._engine.forget_effects()
            self._do(acts)
        except BaseException as error:
            certain = self._tables.rollback()
            self._engine.forget_effects()
            failed: BaseException = error
            damaged = isinstance(error, sqlite3.Error) and is_damage(error)
            if len(acts) > 1 and self._begun and not damaged:
                for act in acts:
                    self._do([act])
                return
            looks = [act for act in acts if not act.write]
            if looks and len(looks) < len(acts) and not damaged:
                self._do(looks)  # these need no lock that another process could hold
                acts = [act for act in acts if act.write]
            if isinstance(error, sqlite3.Error):
                failed = looked_at_again(self._path, error)  # once for all acts
            for act in acts:
                self._refuse(act, failed if len(acts) == 1 else type(failed)(*failed.args), certain)

    def _refuse(self, act: Act[Any], error: BaseException, certain: bool) -> None:
        if not certain and isinstance(error, StoreUnavailableError):
            error.unknown = True
        act.refuse(error)

    def _transact(self, acts: list[Act[Any]]) -> None:
        self._begun = False
        self._check()
        tables = self._tables
        tables.begin(write=any(act.write for act in acts))
        self._begun = True
        for act in acts:
            before = tables.writes
            try:
                self._engine.now = act.now
                act.perform(self._engine)
            except sqlite3.Error:
                raise  # an error of the disk concerns all acts
            except Exception as error:
                if len(acts) == 1 or tables.writes != before:
                    raise  # the act is half done: undo all, and do each act by itself
                act.refuse(error)
        self._seal(acts)
        tables.commit(acts[-1].now)
        self._keep_effects()
