"""`ActThread`: the only thread of a store that changes its tables, with group commit.

Theory of operation:

* Tasks hand acts over to the thread. All acts that have piled up during one transaction go into
  the next transaction together, and a claim that comes while it begins (`Transactions.joining_at`).
  So the claim that a worker asks for with a submission is in the transaction of the job, and other
  instances hear nothing of a job that is claimed.
* The rules refuse an act before they write, so a refused act fails alone, and the transaction
  keeps the refusal under its ticket. If the database refuses the transaction, or an act fails
  otherwise, the transaction is undone and each act is repeated in a transaction of its own, unless
  `Transactions.undo_acts` sees no use in that.
* The effects of a transaction are announced as a whole.
* A caller gets its answer when the transaction is on the disk.
* No caller waits longer than the store's patience, also if the thread stands still in a call of the
  database. A second thread looks for acts that are overdue, which are refused at once.
* `ActThread._seal` decides which error the caller of an overdue act gets. Before it, the act has
  not happened and never will: the transaction is undone. After it, the commit is under way, so the
  error's ``unknown`` is True; if the act has happened after all, its effects are announced.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from threading import Condition, Lock, Thread
from time import monotonic
from typing import Any, ClassVar, Final, Generic, TypeAlias, TypeVar, final

import attrs
import trio
from outcome import Error, Outcome, Value
from trio.lowlevel import Abort

from .._contract.errors import StoreUnavailableError
from .._contract.records import Ended
from .._rules.commits import Commits
from .._rules.engine import Engine, is_refusal
from .._rules.engine_store import NO_LOOKUPS, Lookups

logger: Final = logging.getLogger("trio_lanes.durable")

T = TypeVar("T")

MAX_ACTS: Final = 500
"""How many acts one transaction takes at most."""
OUTSTANDING: Final = 2000
"""How many acts may be handed over and not done; the callers of more wait, and can be cancelled."""

CLOSING: Final = 1.0
"""Seconds, beyond the patience, for which the thread may delay the end of its store."""


Announce: TypeAlias = Callable[[list[int], list[tuple[int, Ended | None]], bool], None]


class OverdueError(Exception):
    """An act of the transaction is overdue, and its caller knows by now that it has not happened.

    So the transaction must be undone.
    """


def _not_cancelled(raise_cancel: object) -> Abort:
    return Abort.FAILED  # a cancelled caller would not know whether its act has happened


@final
@attrs.define(eq=False)
class HandedAct(Generic[T]):
    """A call to be made in a transaction, and its outcome."""

    call: Callable[[Engine], T]
    now: float | None
    """The store's time; None: the beginning of the transaction finds it out."""
    ticket: str
    """The ticket of the act; empty: it has none."""
    write: bool
    """Whether the call may change the tables."""
    lookups: Lookups
    """What the call will look up."""
    due: float
    """The monotonic time until which the caller waits."""
    tell: Callable[[Outcome[T]], None]
    """Called in Trio's thread with what came of it."""
    overdue: bool = False
    """Whether `due` has passed before the act was sealed."""
    sealed: bool = False
    """Whether the commit of the act may be under way."""
    outcome: Outcome[T] | None = None
    """What came of the call; set in the writer's thread."""
    answer: Outcome[T] | None = None
    """What the caller gets; set in Trio's thread."""

    def perform(self, engine: Engine) -> None:
        """Make the call, and keep its result."""
        self.outcome = Value(engine.once(self.ticket, self.call))

    @property
    def may_join(self) -> bool:
        """Whether a transaction that has begun for others can take it: a claim, and no more."""
        return self.lookups.room > 0 and not self.lookups.ids

    def refuse(self, error: BaseException) -> None:
        """Let the caller get an error: nothing of the act has happened, as far as known."""
        self.outcome = Error(error)


def _put_claims_last(acts: list[HandedAct[Any]]) -> None:
    """Let the claims of a transaction find the jobs that it accepts, and see no earlier time."""
    if len(acts) > 1:
        acts.sort(key=lambda act: act.lookups.room > 0)
        latest = max(act.now or 0.0 for act in acts)
        for act in acts:
            if act.lookups.room and act.now is not None:
                act.now = latest


class Transactions(ABC):
    """The transactions of one connection, as an `ActThread` needs them. In its thread."""

    errors: ClassVar[type[Exception]]
    """The errors of the database, which concern all acts of a transaction."""
    has_lock: bool = True
    """Whether no other instance can commit before the transaction does."""

    @property
    @abstractmethod
    def writes(self) -> int:
        """The number of changes so far: a caller compares it with an earlier value."""

    @abstractmethod
    def begin_acts(self, engine: Engine, acts: Sequence[HandedAct[Any]]) -> None:
        """Begin a transaction for these acts."""

    def joining_at(self) -> float | None:
        """Return the store's time for acts that join the transaction now; None: they may not."""
        return None

    @abstractmethod
    def commit_acts(self, engine: Engine, acts: Sequence[HandedAct[Any]]) -> None:
        """Commit the transaction of these acts."""

    @abstractmethod
    def undo_acts(
        self, acts: list[HandedAct[Any]], error: BaseException
    ) -> tuple[list[list[HandedAct[Any]]], BaseException, bool]:
        """Undo the transaction of these acts, which has failed.

        Return the acts that are to be done again, by transaction; the error of all others; and
        whether these may have happened.
        """

    @abstractmethod
    def lose_patience(self) -> None:
        """Make the thread go on, if anything can: an act is overdue. In the thread that watches."""


@final
class ActThread:
    """A thread that makes calls in transactions, in the order of handing over.

    Args:
      name: describes the store.
      tables: the tables of the store.
      engine: makes the calls.
      patience: seconds after which a caller that got no answer gets an error.
      announce: announces the effects of transactions.
    """

    def __init__(
        self, name: str, tables: Transactions, engine: Engine, patience: float, announce: Announce
    ) -> None:
        self._name: Final = name
        self._tables: Final = tables
        self._engine: Final = engine
        self._patience: Final = patience
        self._announce: Final = announce
        self.commits: Final = Commits()
        """The commits of the thread, which notes them."""
        self._handed_over: Final[SimpleQueue[HandedAct[Any] | None]] = SimpleQueue()
        self._following: Final[deque[HandedAct[Any] | None]] = deque()  # that were taken over
        self._acts: list[HandedAct[Any]] = []  # that are done and delivered together
        self._outstanding = 0
        self._closed = False
        self._room: Final = trio.lowlevel.ParkingLot()
        self._token: Final = trio.lowlevel.current_trio_token()
        self._thread: Final = Thread(target=self._work, name=f"writer of {name}", daemon=True)
        self._lock: Final = Lock()  # for what follows, `HandedAct.overdue` and `HandedAct.sealed`
        self._changed: Final = Condition(self._lock)  # what the watch waits for
        self._at_end: list[Callable[[], None]] | None = []  # None: the thread has ended
        self._unanswered: Final[deque[HandedAct[Any]]] = deque()  # in order of `HandedAct.due`
        self._accepted: list[int] = []  # the effects of the transactions that are being done
        self._news: list[tuple[int, Ended | None]] = []
        self._look = False
        self._watch_idle = False
        self._watch_ends = False
        self._watch: Final = Thread(
            target=self._look_for_overdue, name=f"patience of {name}", daemon=True
        )

    def start(self) -> None:
        """Start the threads."""
        self._thread.start()
        self._watch.start()

    async def close(self) -> None:
        """Refuse new acts, and end the thread when all acts that were handed over are done.

        If the thread stands still, it is left behind when the patience is over.
        """
        self._closed = True
        self._room.unpark_all()
        self._handed_over.put(None)
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(self._thread.join, self._patience + CLOSING)
            with self._changed:
                self._watch_ends = True  # no caller waits any more
                self._changed.notify()
            await trio.to_thread.run_sync(self._watch.join)

    async def at_end(self, call: Callable[[], None], limiter: trio.CapacityLimiter) -> None:
        """Make a call in a thread, when the writer's thread has ended.

        If that was left behind, it makes the call itself, when the database lets it go on.
        """
        with self._lock:
            if self._at_end is not None:
                logger.error(
                    "%s has not answered for %g s while it was closed; it stays locked by this "
                    "process until the database answers: look for a disk that stands still",
                    self._name,
                    self._patience,
                )
                self._at_end.append(call)
                return
        await trio.to_thread.run_sync(call, limiter=limiter)

    @trio.lowlevel.enable_ki_protection  # a task must wait for each act that is handed over
    async def act(
        self,
        call: Callable[[Engine], T],
        now: float | None,
        ticket: str = "",
        *,
        write: bool = True,
        lookups: Lookups = NO_LOOKUPS,
    ) -> T:
        """Make a call in a transaction; return its result when the transaction is on the disk.

        With a ticket, it is made unless the act with this ticket is done.

        A checkpoint. It can be cancelled before it is handed over, and not after.

        Raises:
          StoreUnavailableError: if the database refuses it now, or has not answered within the
            patience, or the thread is closed.
        """
        task = trio.lowlevel.current_task()
        act = self._act(call, now, ticket, write, lookups, partial(trio.lowlevel.reschedule, task))
        # Tasks go on in their order when acts before them are answered, as overdue acts are, too.
        # So no task waits here for longer than its patience.
        while self._outstanding >= OUTSTANDING and not self._closed:
            await self._room.park()
        await trio.lowlevel.checkpoint_if_cancelled()
        self._hand_over(act)
        result: T = await trio.lowlevel.wait_task_rescheduled(_not_cancelled)
        return result

    def begin(
        self,
        call: Callable[[Engine], T],
        now: float | None,
        ticket: str,
        lookups: Lookups,
        tell: Callable[[Outcome[T]], None],
    ) -> bool:
        """Do the same for a function, which is called with what came of it, and for no task.

        Return False, and do nothing, if so many acts are under way that a task would wait.
        """
        if self._outstanding >= OUTSTANDING:
            return False
        self._hand_over(self._act(call, now, ticket, True, lookups, tell))
        return True

    def _act(
        self,
        call: Callable[[Engine], T],
        now: float | None,
        ticket: str,
        write: bool,
        lookups: Lookups,
        tell: Callable[[Outcome[T]], None],
    ) -> HandedAct[T]:
        due = monotonic() + self._patience
        return HandedAct(call, now, ticket, write, lookups, due, tell)

    def _hand_over(self, act: HandedAct[Any]) -> None:
        if self._closed:
            raise StoreUnavailableError(f"{self._name} is not open")
        self._outstanding += 1
        with self._lock:
            self._unanswered.append(act)
            if self._watch_idle:
                self._watch_idle = False
                self._changed.notify()
        self._handed_over.put(act)

    # ---- in Trio's thread

    def _deliver(
        self,
        acts: list[HandedAct[Any]],
        accepted: list[int],
        news: list[tuple[int, Ended | None]],
        look: bool,
    ) -> None:
        self._announce(accepted, news, look)  # also of overdue acts: they have happened
        for act in acts:
            assert act.outcome is not None
            self._answer(act, act.outcome)
        with self._lock:
            while self._unanswered and self._unanswered[0].answer is not None:
                self._unanswered.popleft()

    def _answer(self, act: HandedAct[Any], answer: Outcome[Any]) -> None:
        if act.answer is None:  # else it was overdue
            act.answer = answer
            self._outstanding -= 1
            if self._room:
                self._room.unpark()
            act.tell(answer)

    def _refuse_overdue(self, acts: list[HandedAct[Any]]) -> None:
        for act in acts:
            error = StoreUnavailableError(
                f"{self._name} has not answered within {self._patience:g} s"
            )
            error.unknown = act.sealed and act.write
            self._answer(act, Error(error))

    # ---- in the thread that watches

    def _look_for_overdue(self) -> None:
        # not by Trio's clock, which the disk and the server do not know
        with self._changed:
            while not self._watch_ends:
                wait = self._unanswered[0].due - monotonic() if self._unanswered else None
                if wait is None or wait > 0:
                    self._watch_idle = wait is None
                    self._changed.wait(wait)
                else:
                    self._token.run_sync_soon(self._refuse_overdue, self._take_overdue())
                    self._tables.lose_patience()

    def _take_overdue(self) -> list[HandedAct[Any]]:
        now, overdue = monotonic(), []
        while self._unanswered and self._unanswered[0].due <= now:
            act = self._unanswered.popleft()
            act.overdue = not act.sealed
            overdue.append(act)
        return overdue

    # ---- in the writer's thread

    def _work(self) -> None:
        following = self._following
        closing = False
        while not closing:
            if not following:
                following.append(self._handed_over.get())
            self._take_over()
            acts = [act for act in following if act is not None]
            closing = len(acts) < len(following)
            following.clear()
            _put_claims_last(acts)
            if acts:
                try:
                    self._do_and_deliver(acts)
                except trio.RunFinishedError:
                    break  # this thread was left behind
        with self._lock:
            at_end, self._at_end = self._at_end, None
        assert at_end is not None
        for call in at_end:
            call()

    def _take_over(self) -> None:
        """Take over all acts that were handed over, as far as there is room for them."""
        try:
            while len(self._following) < MAX_ACTS:
                self._following.append(self._handed_over.get_nowait())
        except Empty:
            pass

    def _do_and_deliver(self, acts: list[HandedAct[Any]]) -> None:
        """Do all acts; have Trio's thread announce their effects, and answer their callers.

        Raises:
          RunFinishedError: if there is no such thread any more.
        """
        self._accepted, self._news, self._look = [], [], False
        self._acts = acts
        self._do(acts)
        effects = self._accepted, self._news, self._look
        self._token.run_sync_soon(self._deliver, self._acts, *effects)

    def _not_overdue(self, acts: list[HandedAct[Any]]) -> list[HandedAct[Any]]:
        """Return the acts whose callers still wait; refuse the others."""
        waiting = []
        for act in acts:
            if act.overdue:
                act.refuse(StoreUnavailableError(f"{self._name} has not answered in time"))
            else:
                waiting.append(act)
        return waiting

    def _seal(self, acts: list[HandedAct[Any]]) -> None:
        """Note that the commit of all acts begins.

        Raises:
          OverdueError: if the caller of an act knows by now that it has not happened.
        """
        with self._lock:
            if any(act.overdue for act in acts):
                raise OverdueError
            for act in acts:
                act.sealed = True

    def _do(self, acts: list[HandedAct[Any]]) -> None:
        """Do all acts, in as few transactions as possible; give each its outcome."""
        while acts := self._not_overdue(acts):
            try:
                self._transact(acts)
            except BaseException as error:
                again, refused, unknown = self._undo(acts, error)
            else:
                return
            if again == [acts]:
                continue  # as a whole, and as often as others come before it
            for some in again:
                self._do(some)
            repeated = {act for some in again for act in some}
            for act in acts:
                if act not in repeated:
                    # an error for each, since a caller adds to its traceback
                    one = refused if len(acts) == 1 else type(refused)(*refused.args)
                    if isinstance(one, StoreUnavailableError):
                        one.unknown = unknown and act.write
                    act.refuse(one)
            return

    def _undo(
        self, acts: list[HandedAct[Any]], error: BaseException
    ) -> tuple[list[list[HandedAct[Any]]], BaseException, bool]:
        """Undo the transaction of acts; return the same as `Transactions.undo_acts`."""
        self._engine.forget_effects()
        again, refused, unknown = self._tables.undo_acts(acts, error)
        return ([acts] if isinstance(error, OverdueError) else again), refused, unknown

    def _let_join(self, acts: list[HandedAct[Any]]) -> dict[HandedAct[Any], float]:
        """Add the claims that came while the transaction began, up to another act.

        Return them, with the store's time for each.
        """
        joined: dict[HandedAct[Any], float] = {}
        now = self._tables.joining_at()
        if now is None:
            return joined
        self._take_over()
        following = self._following
        while following and len(acts) < MAX_ACTS:
            act = following[0]
            if act is None or not act.may_join:
                break
            following.popleft()
            joined[act] = now
            acts.append(act)
            self._acts.append(act)
        return joined

    def _perform(self, act: HandedAct[Any]) -> None:
        before = self._tables.writes
        try:
            act.perform(self._engine)
        except self._tables.errors:
            raise
        except Exception as error:
            if self._tables.writes != before or not is_refusal(error):
                raise  # the act may be half done: undo all, and do each act by itself
            act.refuse(error)
            self._engine.keep_refusal(act.ticket, error)

    def _transact(self, acts: list[HandedAct[Any]]) -> None:
        engine, tables = self._engine, self._tables
        began, unchanged = monotonic(), tables.writes
        try:
            tables.begin_acts(engine, acts)
        finally:  # also if it was in vain
            if tables.has_lock:
                self.commits.waited(monotonic() - began)
        joined, done = self._let_join(acts), 0
        while done < len(acts):
            for act in acts[done:]:
                now = joined.get(act, act.now)
                if now is not None:
                    engine.now = now
                self._perform(act)
                done += 1
            joined = self._let_join(acts)
        self._seal(acts)
        tables.commit_acts(engine, acts)
        self.commits.made += tables.writes != unchanged
        self._accepted += engine.accepted
        self._news += engine.news
        self._look = self._look or engine.work_ready
        engine.forget_effects()
