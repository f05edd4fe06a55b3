"""The writer: the only thread of an instance that changes a PostgreSQL store.

* If the connection is lost, each act of the transaction fails. If it was lost while a commit was
  under way, it is unknown whether the acts have happened. The caller asks again, and the ticket or
  the number of the step decides.
* No act lasts longer than the store's patience: the connection is cut when an act is overdue.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, final

import psycopg

from .._rules.engine import Engine
from .._sql.act_thread import ActThread, Announce, HandedAct
from .errors import is_of_connection, translated
from .link import PostgresLink
from .tables import PostgresTables


@final
class PostgresWriter(ActThread):
    """A thread that makes calls in transactions of one connection.

    Args:
      name: describes the store.
      channel: the channel on which instances notify each other.
      me: the name of this instance on the channel.
    """

    _errors = psycopg.Error
    _tables: PostgresTables

    def __init__(
        self,
        name: str,
        link: PostgresLink,
        engine: Engine,
        tables: PostgresTables,
        channel: str,
        me: str,
        patience: float,
        announce: Announce,
    ) -> None:
        super().__init__(name, tables, engine, patience, announce)
        self._link: Final = link
        self._channel: Final = channel
        self._me: Final = me
        self._committing = False

    def _lose_patience(self) -> None:
        self._link.cut()

    def _begin(self, acts: Sequence[HandedAct[Any]]) -> None:
        engine, tables = self._engine, self._tables
        self._committing = False
        tables.use(self._link.connected())
        write = any(act.write for act in acts)
        engine.now, given = tables.begin(
            [act.lookups for act in acts],
            [act.ticket for act in acts if act.ticket],
            write=write,
            me=self._me,
            take_in=write,
        )
        for job, due, refused in given:
            engine.take_in(job, due, refused)

    def _commit(self, acts: Sequence[HandedAct[Any]]) -> None:
        engine = self._engine
        self._committing = any(act.write for act in acts)
        look = engine.look or engine.look_elsewhere
        if self._tables.commit(self._channel, self._me, look, engine.news):
            engine.look = True  # the next step forgets more

    def _undo(
        self, acts: list[HandedAct[Any]], error: BaseException
    ) -> tuple[list[list[HandedAct[Any]]], BaseException, bool]:
        lost = is_of_connection(error)
        unknown = self._committing and lost
        with suppress(psycopg.Error):
            self._tables.rollback()
        connection = self._link.connection
        if connection is None or connection.closed:
            self._link.close()
            lost = True
        if len(acts) > 1 and not lost:
            return [[act] for act in acts], error, False
        if isinstance(error, psycopg.Error):
            error = translated(self._name, error)
        return [], error, unknown
