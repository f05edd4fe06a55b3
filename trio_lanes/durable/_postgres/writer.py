"""The writer: the only thread of an instance that changes a PostgreSQL store, with group commit.

* The rules refuse an act before they write, so a refused act fails alone.
* If the server refuses the transaction, or an act fails halfway, the transaction is rolled back and
  each act is repeated in a transaction of its own. If the connection is lost, each act fails.
* A connection that is lost while a commit is under way leaves it unknown whether the acts have
  happened. The caller asks again, and the ticket or the number of the step decides.
* No act lasts longer than the store's patience. An act that is not begun by then is refused; if it
  is under way, the connection is cut.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any, Final, final

import psycopg
import trio

from .._contract.errors import StoreUnavailableError
from .._contract.records import Ended
from .._rules.engine import Engine
from .._tables.act_thread import Act, ActThread, Tell
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
        super().__init__(name, tell)
        self._link: Final = link
        self._engine: Final = engine
        self._tables: Final = tables
        self._channel: Final = channel
        self._me: Final = me
        self._patience: Final = patience
        self._committing = False
        # acts that are not done, in order of their deadlines
        self._due: Final[deque[tuple[float, Act[Any]]]] = deque()
        self._expired: Final[set[Act[Any]]] = set()
        self._came = trio.Event()

    # ---- in Trio's thread

    async def keep_patience(self) -> None:
        """Refuse acts that are not done when the patience is over; cut the connection for them."""
        while True:
            if not self._due:
                self._came = trio.Event()
                await self._came.wait()
            await trio.sleep_until(self._due[0][0] if self._due else -math.inf)
            late = [act for deadline, act in self._due if deadline <= trio.current_time()]
            if late:
                for _ in late:
                    self._due.popleft()
                self._expired.update(late)
                self._link.cut()

    def _hand_over(self, act: Act[Any]) -> None:
        self._due.append((trio.current_time() + self._patience, act))
        self._came.set()
        super()._hand_over(act)

    def _deliver(self, acts: list[Act[Any]]) -> None:
        self._expired.difference_update(acts)
        while self._due and self._due[0][1].outcome is not None:
            self._due.popleft()
        super()._deliver(acts)

    # ---- in the writer's thread

    def _do(self, acts: list[Act[Any]]) -> None:
        """Do all acts in one transaction; if that fails, do each in a transaction of its own."""
        begun = []
        for act in acts:
            if act in self._expired:
                act.refuse(StoreUnavailableError(f"{self._name} has not answered in time"))
            else:
                begun.append(act)
        if not begun:
            return
        try:
            self._transact(begun)
        except BaseException as error:
            unknown = self._committing and is_of_connection(error)
            lost = self._undo() or is_of_connection(error)
            if len(begun) > 1 and not lost:
                for act in begun:
                    self._do([act])
                return
            for act in begun:
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
            [act.hints for act in acts], write=write, me=self._me, take_in=write
        )
        for job, due in given:
            engine.take_in(job, due)
        look = look_here = engine.look
        ended: list[tuple[int, Ended]] = []
        engine.forget_effects()
        for act in acts:
            before = tables.writes
            try:
                act.perform(engine)
            except psycopg.Error:
                raise  # an error of the server concerns all acts
            except Exception as error:
                if len(acts) == 1 or tables.writes != before:
                    raise  # the act is half done: undo all, and do each act by itself
                engine.forget_effects()
                act.refuse(error)
            look = look or act.look_elsewhere
            ended += act.ended
        acts[0].look = acts[0].look or look_here
        self._committing = write
        tables.commit(self._channel, self._me, look, ended)
        self._committing = False
