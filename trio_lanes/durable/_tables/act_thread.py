"""`ActThread`: a thread that makes acts in transactions, with group commit.

Theory of operation:

* Tasks hand acts over to the thread. All acts that have piled up during one transaction go into
  the next transaction together.
* A caller gets its answer when the transaction is on the disk. It cannot be cancelled between
  handing over and the answer: it would not know whether the act has happened.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Final, Generic, TypeAlias, TypeVar, final

import outcome
import trio
from trio.lowlevel import Abort

from .._contract.errors import StoreUnavailableError
from .._contract.records import Ended
from .._rules.engine import Engine
from .._rules.engine_store import NO_HINTS, Hints

T = TypeVar("T")

AT_ONCE: Final = 500
"""How many acts one transaction takes at most."""
OUTSTANDING: Final = 2000
"""How many acts may be handed over and not done; the callers of more wait, and can be cancelled."""

Tell: TypeAlias = Callable[[list[int], list[tuple[int, Ended]], bool], None]


@final
class Act(Generic[T]):
    """A call to be made in a transaction, and its outcome.

    Attributes:
      now: the store's time, if the caller knows it.
      write: whether the call may change the tables.
      hints: what the call will look up.
    """

    __slots__ = (
        "accepted",
        "call",
        "ended",
        "hints",
        "look",
        "look_elsewhere",
        "now",
        "outcome",
        "task",
        "write",
    )

    def __init__(self, call: Callable[[Engine], T], now: float, write: bool, hints: Hints) -> None:
        self.call: Final = call
        self.now: Final = now
        self.write: Final = write
        self.hints: Final = hints
        self.task: Final = trio.lowlevel.current_task()
        self.outcome: outcome.Outcome[T] | None = None
        self.accepted: list[int] = []
        self.ended: list[tuple[int, Ended]] = []
        self.look = self.look_elsewhere = False

    def perform(self, engine: Engine) -> None:
        """Make the call, and keep its result and its effects."""
        self.outcome = outcome.Value(self.call(engine))
        self.accepted, self.ended, self.look = engine.accepted, engine.ended, engine.look
        self.look_elsewhere = engine.look or engine.look_elsewhere
        engine.forget_effects()

    def refuse(self, error: BaseException) -> None:
        """Let the caller get an error: nothing of the act has happened, as far as known."""
        self.outcome = outcome.Error(error)
        self.accepted, self.ended = [], []
        self.look = self.look_elsewhere = False


class ActThread(ABC):
    """A thread that makes calls in transactions, in the order of handing over."""

    def __init__(self, name: str, tell: Tell) -> None:
        self._name: Final = name
        self._tell: Final = tell
        self._handed_over: Final[SimpleQueue[Act[Any] | None]] = SimpleQueue()
        self._outstanding = 0
        self._closed = False
        self._room: Final = trio.lowlevel.ParkingLot()
        self._token: Final = trio.lowlevel.current_trio_token()
        self._thread: Final = Thread(target=self._work, name=f"writer of {name}", daemon=True)

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
    async def act(
        self,
        call: Callable[[Engine], T],
        now: float,
        *,
        write: bool = True,
        hints: Hints = NO_HINTS,
    ) -> T:
        """Make a call in a transaction; return its result when the transaction is on the disk.

        A checkpoint. It can be cancelled before it is handed over, and not after.

        Raises:
          StoreUnavailableError: if the database refuses it now, or the thread is closed.
        """
        while self._outstanding >= OUTSTANDING and not self._closed:
            await self._room.park()
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._closed:
            raise StoreUnavailableError(f"{self._name} is not open")
        act = Act(call, now, write, hints)
        self._outstanding += 1
        self._hand_over(act)
        await trio.lowlevel.wait_task_rescheduled(lambda raise_cancel: Abort.FAILED)
        assert act.outcome is not None
        return act.outcome.unwrap()

    # ---- in Trio's thread

    def _hand_over(self, act: Act[Any]) -> None:
        self._handed_over.put(act)

    def _deliver(self, acts: list[Act[Any]]) -> None:
        self._outstanding -= len(acts)
        self._room.unpark(count=len(acts))
        for act in acts:
            self._tell(act.accepted, act.ended, act.look)
            trio.lowlevel.reschedule(act.task)

    # ---- in the writer's thread

    def _work(self) -> None:
        following: deque[Act[Any] | None] = deque()
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

    @abstractmethod
    def _do(self, acts: list[Act[Any]]) -> None:
        """Do all acts, in as few transactions as possible; give each its outcome."""
