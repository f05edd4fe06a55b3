"""The writer: the only thread that changes a SQLite store, with group commit.

Theory of operation:

* Tasks hand acts over to the thread. All acts that have piled up during one transaction go into
  the next transaction together.
* The rules refuse an act before they write, so a refused act fails alone.
* If the disk refuses the transaction, or an act fails halfway, the transaction is rolled back and
  each act is repeated in a transaction of its own. So an act that is too large for a nearly full
  disk fails alone.
* A caller gets its answer when the transaction is on the disk. It cannot be cancelled between
  handing over and the answer: it would not know whether the act has happened.
"""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Final, Generic, TypeVar, final

import outcome
import trio
from trio.lowlevel import Abort

from .._contract.errors import StoreUnavailableError
from .._contract.records import Ended
from .._rules.engine import Engine
from .schema import is_damage, looked_at_again
from .tables import SqliteTables

T = TypeVar("T")

AT_ONCE: Final = 500
"""How many acts one transaction takes at most."""
OUTSTANDING: Final = 2000
"""How many acts may be handed over and not done; the callers of more wait, and can be cancelled."""


@final
class _Act(Generic[T]):
    """A call to be made in a transaction, and its outcome."""

    def __init__(self, call: Callable[[Engine], T], now: float, write: bool) -> None:
        self.call: Final = call
        self.now: Final = now
        self.write: Final = write
        self.task: Final = trio.lowlevel.current_task()
        self.outcome: outcome.Outcome[T] | None = None
        self.accepted: list[int] = []
        self.ended: list[tuple[int, Ended]] = []
        self.look = False


@final
class Writer:
    """A thread that makes calls in transactions, in the order of handing over."""

    def __init__(
        self,
        path: Path,
        tables: SqliteTables,
        engine: Engine,
        check: Callable[[], None],
        tell: Callable[[list[int], list[tuple[int, Ended]], bool], None],
    ) -> None:
        self._path: Final = path
        self._tables: Final = tables
        self._engine: Final = engine
        self._check: Final = check  # raises if the file of that path was removed or replaced
        self._tell: Final = tell
        self._handed_over: Final[SimpleQueue[_Act[Any] | None]] = SimpleQueue()
        self._outstanding = 0
        self._closed = False
        self._room: Final = trio.lowlevel.ParkingLot()
        self._token: Final = trio.lowlevel.current_trio_token()
        self._thread: Final = Thread(target=self._work, name=f"writer of {path}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    async def close(self) -> None:
        """Refuse new acts, and end the thread when all acts that were handed over are done."""
        self._closed = True
        self._room.unpark_all()
        self._handed_over.put(None)
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(self._thread.join)

    @trio.lowlevel.enable_ki_protection  # a task must wait for each act that is handed over
    async def act(self, call: Callable[[Engine], T], now: float, *, write: bool = True) -> T:
        """Make a call in a transaction; return its result when the transaction is on the disk.

        A checkpoint. It can be cancelled before it is handed over, and not after.

        Raises:
          StoreUnavailableError: if the disk refuses it now, or the writer is closed.
        """
        while self._outstanding >= OUTSTANDING and not self._closed:
            await self._room.park()
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._closed:
            raise StoreUnavailableError(f"{self._path} is not open")
        act = _Act(call, now, write)
        self._outstanding += 1
        self._handed_over.put(act)
        await trio.lowlevel.wait_task_rescheduled(lambda raise_cancel: Abort.FAILED)
        assert act.outcome is not None
        return act.outcome.unwrap()

    # ---- in Trio's thread

    def _deliver(self, acts: list[_Act[Any]]) -> None:
        self._outstanding -= len(acts)
        self._room.unpark(count=len(acts))
        for act in acts:
            self._tell(act.accepted, act.ended, act.look)
            trio.lowlevel.reschedule(act.task)

    # ---- in the writer's thread

    def _work(self) -> None:
        following: deque[_Act[Any] | None] = deque()
        while True:
            following.append(self._handed_over.get())
            try:
                while len(following) < AT_ONCE:
                    following.append(self._handed_over.get_nowait())
            except Empty:
                pass
            acts = [act for act in following if act is not None]
            closing = len(acts) < len(following)
            following.clear()
            if acts:
                self._do(acts)
                self._token.run_sync_soon(self._deliver, acts)
            if closing:
                return

    def _do(self, acts: list[_Act[Any]]) -> None:
        """Do all acts in one transaction; if that fails, do each in a transaction of its own."""
        try:
            self._transact(acts)
        except BaseException as error:
            certain = self._tables.rollback()
            self._engine.forget_effects()
            failed: BaseException = error
            damaged = isinstance(error, sqlite3.Error) and is_damage(error)
            if len(acts) > 1 and not damaged:
                for act in acts:
                    self._do([act])
                return
            if isinstance(error, sqlite3.Error):
                failed = looked_at_again(self._path, error)  # once for all acts
            for act in acts:
                self._refuse(act, failed if len(acts) == 1 else type(failed)(*failed.args), certain)

    def _refuse(self, act: _Act[Any], error: BaseException, certain: bool) -> None:
        if not certain and isinstance(error, StoreUnavailableError):
            error.unknown = True
        act.outcome = outcome.Error(error)
        act.accepted, act.ended, act.look = [], [], False

    def _transact(self, acts: list[_Act[Any]]) -> None:
        self._check()
        tables = self._tables
        tables.begin(write=any(act.write for act in acts))
        for act in acts:
            before = tables.writes
            try:
                self._perform(act)
            except sqlite3.Error:
                raise  # an error of the disk concerns all acts
            except Exception as error:
                if len(acts) == 1 or tables.writes != before:
                    raise  # the act is half done: undo all, and do each act by itself
                self._engine.forget_effects()
                act.outcome = outcome.Error(error)
        tables.commit(acts[-1].now)

    def _perform(self, act: _Act[Any]) -> None:
        engine = self._engine
        engine.now = act.now
        act.outcome = outcome.Value(act.call(engine))
        act.accepted, act.ended, act.look = engine.accepted, engine.ended, engine.look
        engine.forget_effects()
