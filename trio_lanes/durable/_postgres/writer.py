"""The writer: the only thread of an instance that changes a PostgreSQL store, with group commit.

* The rules refuse an act before they write, so a refused act fails alone.
* If the server refuses the transaction, or an act fails halfway, the transaction is rolled back and
  each act is repeated in a transaction of its own. If the connection is lost, each act fails.
* A connection that is lost while a commit is under way leaves it unknown whether the acts have
  happened. The caller asks again, and the ticket or the number of the step decides.
* No act lasts longer than the store's patience: the connection is cut when an act is overdue.
"""

from __future__ import annotations

from typing import Any, Final, final

import psycopg

from .._contract.errors import StoreUnavailableError
from .._rules.engine import Engine
from .._tables.act_thread import Act, ActThread, OverdueError, Tell
from .errors import is_of_connection, translated
from .link import Link
from .tables import PostgresTables


@final
class Writer(ActThread):
    """A thread that makes calls in transactions of one connection.

    Args:
      name: describes the store.
      channel: the channel on which instances notify each other.
      me: the name of this instance on the channel.
    """

    def __init__(
        self,
        name: str,
        link: Link,
        engine: Engine,
        tables: PostgresTables,
        channel: str,
        me: str,
        patience: float,
        tell: Tell,
    ) -> None:
        super().__init__(name, engine, patience, tell)
        self._link: Final = link
        self._tables: Final = tables
        self._channel: Final = channel
        self._me: Final = me
        self._committing = False

    def _lose_patience(self) -> None:
        self._link.cut()

    # ---- in the writer's thread

    def _do(self, acts: list[Act[Any]]) -> None:
        """Do all acts in one transaction; if that fails, do each in a transaction of its own."""
        acts = self._not_overdue(acts)
        if not acts:
            return
        try:
            self._transact(acts)
        except OverdueError:
            self._undo()
            self._do(acts)
        except BaseException as error:
            unknown = self._committing and is_of_connection(error)
            lost = self._undo() or is_of_connection(error)
            if len(acts) > 1 and not lost:
                for act in acts:
                    self._do([act])
                return
            for act in acts:
                told: BaseException = error
                if isinstance(error, psycopg.Error):
                    told = translated(self._name, error)
                if isinstance(told, StoreUnavailableError):
                    told.unknown = unknown and act.write
                act.refuse(told)

    def _undo(self) -> bool:
        """Undo the transaction; return whether the connection is lost."""
        self._committing = False
        self._engine.forget_effects()
        try:
            self._tables.rollback()
        except psycopg.Error:
            pass
        connection = self._link.connection
        if connection is not None and not connection.closed:
            return False
        self._link.close()
        return True

    def _transact(self, acts: list[Act[Any]]) -> None:
        engine, tables = self._engine, self._tables
        tables.use(self._link.connected())
        write = any(act.write for act in acts)
        engine.now, given = tables.begin(
            [act.hints for act in acts],
            [act.ticket for act in acts if act.ticket],
            write=write,
            me=self._me,
            take_in=write,
        )
        for job, due, refused in given:
            engine.take_in(job, due, refused)
        for act in acts:
            before = tables.writes
            try:
                act.perform(engine)
            except psycopg.Error:
                raise  # an error of the server concerns all acts
            except Exception as error:
                if len(acts) == 1 or tables.writes != before:
                    raise  # the act is half done: undo all, and do each act by itself
                act.refuse(error)
        self._seal(acts)
        self._committing = write
        look = engine.look or engine.look_elsewhere
        if tables.commit(self._channel, self._me, look, engine.ended):
            engine.look = True  # the next step forgets more
        self._committing = False
        self._keep_effects()
