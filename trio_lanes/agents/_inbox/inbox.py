"""An inbox: the queue of messages of one session, and the turns that handle them.

States. A message waits in the queue, then is in a turn, then has settled; or it settles in the
queue. A turn is active from the moment when it takes its messages until its handler has ended or a
reset has settled its job. All state changes are synchronous and in this module: in `post`,
`Turn.take`, the first half of `abort`, the beginning and the end of a turn, and in `_sync`, which
reads the jobs of the inbox after one of them has settled.

Jobs. The inbox has no task of its own; it uses the job of a `Successor`. When the body of that job
begins, it takes the head of the queue and has the next job submitted. Invariant: while messages
wait, there is a queued job or an active turn that will handle them. So a message that is posted
between the last `take` of a turn and the end of its job is not lost.

Events and their effects:

====================  =============================================================================
a turn ends           its messages settle; the successor, or the same job, runs the waiting messages
a turn is aborted     the scope inside its job is cancelled; the job goes on
its job is cancelled  the turn is cancelled; the successor runs the waiting messages
``clear``             the successor has settled: the waiting messages are cancelled
``reset``             the job has settled while its body may run: the turn is over, its messages are
                      cancelled, the successor starts; if no turn had begun, a new job is submitted
the lanes end         the successor has settled with `LanesClosedError`: as for a clear
====================  =============================================================================

Holding. Whether the inbox is held is one flag beside these states, so it is idle, active, held, or
both active and held. While it is held, the successor is held too: it has an endless delay, and
closing lanes settle it with `LanesClosedError`. A job that was granted its slots before begins no
turn. So no turn begins from the moment when the flag is set, which is also before a turn is
cancelled by `stop`. The flag is set by `hold` and cleared by `release` alone. A failure with
``hold_on_failure`` sets it for as long as messages wait.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Hashable
from contextvars import Context, copy_context
from typing import Any, ClassVar, Final, Literal

import attrs
import trio
from trio.lowlevel import enable_ki_protection

from trio_lanes import (
    Job,
    JobCancelledError,
    LaneError,
    LaneFullError,
    LaneResetError,
    Lanes,
    current_job,
)

from ..._config import check as _check
from ..._config.names import name_of
from .ids import KnownIds
from .queue import Entry, MessageQueue, Overflow, QueueOptions, Summary, WhenBusy, one_line
from .receipt import InboxStatistics, Receipt, Settled, SettledKind
from .successor import Successor
from .turn import Handler, Turn, call, check_then, own_part

_log: Final = logging.getLogger("trio_lanes.agents")


class Inbox:
    """The messages of one session, handled in turns, with a rule for messages during a turn.

    ::

        async def handler(turn: Turn) -> str:
            return await ask_the_model(turn.messages)

        receipt = Inbox(lanes, "alice", handler).post("hello")
        print((await receipt.settled()).result)

    An inbox needs no closing. The turns of two inboxes of one session never overlap; the inboxes
    share nothing else.

    Args:
      lanes: the lanes that run the turns.
      session: the session of the turns.
      handler: ``async def handler(turn) -> result``, called once for each turn.
      when_busy: the mode of a message that is posted without one.
      lane: the global lane that runs the turns.
      debounce: the number of seconds without a new message after which collected messages are due.
      max_wait: the number of seconds after which they are due at the latest, counted from the
        oldest message; may be `math.inf`.
      cap: the maximum number of waiting messages; `math.inf` for no bound.
      overflow: the rule for a new message when ``cap`` messages wait.
      hold_on_failure: after a turn that failed, hold the waiting messages until `release`.
      steers_first: whether `Turn.take` returns the steers of the turn although messages of other
        modes were posted before them. If False, it returns what is at the head of the queue.

    Raises:
      TypeError, ValueError: for a bad value; also for a session whose lane is wider than 1.
      UnknownLaneError: if there is no such lane.
    """

    _receipt_type: ClassVar[type[Receipt]] = Receipt
    _check_lanes = staticmethod(_check.lanes_of_trio)

    def __init__(
        self,
        lanes: Lanes,
        session: str,
        handler: Handler,
        *,
        when_busy: WhenBusy = WhenBusy.STEER,
        lane: str = "main",
        debounce: float = 0.5,
        max_wait: float = 5.0,
        cap: int | float = 20,
        overflow: Overflow = Overflow.SUMMARIZE,
        hold_on_failure: bool = False,
        steers_first: bool = True,
    ) -> None:
        self._check_lanes(lanes)
        view = lanes.session(session)
        if view.concurrency > 1:
            raise ValueError(
                f"the turns of an inbox cannot overlap, but {view.name!r} runs "
                f"{view.concurrency} jobs at once"
            )
        if not callable(handler):
            raise TypeError(f"handler must be an async function, not {handler!r}")
        self.session: Final = view.key
        self.lane: Final = lanes.lane(lane).name
        self.when_busy: WhenBusy = WhenBusy(when_busy)
        self._lanes: Final = lanes
        self._handler: Final = handler
        self._turn_name: Final = name_of(handler)  # of its jobs; made once, since it may be a repr
        options = QueueOptions(debounce, max_wait, cap, overflow)
        self._overflow: Final = options.overflow
        self._queue: Final[MessageQueue[Receipt]] = MessageQueue(
            options, steers_first=_check.boolean("steers_first", steers_first)
        )
        self._hold_on_failure: Final = _check.boolean("hold_on_failure", hold_on_failure)
        self._is_held = False
        self._until_release = False  # whether it is held although no message waits
        self._turn: Turn | None = None
        self._successor: Final = Successor(self)
        self._summary: list[str] = []  # of removed messages, for the next turn
        self._posting = 0  # calls of `post` that have not ended
        # these are set by a table of inboxes
        self._known = KnownIds()
        self._outcomes = dict.fromkeys(SettledKind, 0)
        self._when_idle: Callable[[Inbox], None] | None = None

    def __repr__(self) -> str:
        busy = "idle" if self._turn is None else "active"
        return (
            f"<trio_lanes.agents.Inbox at {id(self):#x}, session {self.session!r}, {busy}, "
            f"{len(self._queue)} waiting{', held' if self._is_held else ''}>"
        )

    # ---- queries; none of these is a checkpoint

    @property
    def turn(self) -> Turn | None:
        """The active turn, or None."""
        self._sync()
        return self._turn

    @property
    def waiting(self) -> list[Receipt]:
        """The receipts of the waiting messages, in order."""
        self._sync()
        return [entry.item for entry in self._queue]

    @property
    def is_busy(self) -> bool:
        """Whether a turn is active or a message waits."""
        self._sync()
        return self._turn is not None or len(self._queue) > 0

    @property
    def is_held(self) -> bool:
        """Whether no turn begins until `release`: by `hold`, by `stop`, or after a failure."""
        self._sync()
        return self._is_held

    def statistics(self) -> InboxStatistics:
        """Return the number of messages in each state and with each outcome."""
        return statistics([self], self._outcomes)

    @property
    def _counts(self) -> tuple[int, int]:
        """The number of messages that wait, and of those in the turn."""
        self._sync()
        return len(self._queue), 0 if self._turn is None else len(self._turn._receipts)

    # ---- posting

    @enable_ki_protection
    def post(
        self,
        message: Any,
        *,
        when_busy: WhenBusy | None = None,
        id: Hashable = None,
        group: Hashable = None,
        expected_turn: str | None = None,
    ) -> Receipt:
        """Put ``message`` in the queue, and return its receipt. Not a checkpoint.

        If no turn is active, no message waits and the inbox is not held, the message is due at
        once. Otherwise ``when_busy`` selects the treatment. A turn runs in a copy of the context in
        which the head of the queue was posted, at the time when the job of the turn was submitted.

        Args:
          when_busy: the mode of this message; None for the mode of the inbox.
          id: an id for the message. A second post with the same id within five minutes is the first
            message: it returns the receipt of the first. Once that has settled, it returns a
            receipt with its kind, result and error, and without its turn; nothing else is kept.
          group: the group of the message. Collected messages of different groups do not share a
            turn, and a turn takes steers of its own group only.
          expected_turn: the `Turn.id` of the turn for which the message is meant. Unless that turn
            is active, and not aborted, when the message is queued, it is REJECTED: the `error` of
            its outcome says why.

        Raises:
          TypeError: for an ``expected_turn`` that is no string.
          RuntimeError: in another thread, which uses `Lanes.portal`; so do all verbs of an inbox,
            its receipts and its turns.
          LanesClosedError: if the lanes accept no new work; a running job of them may post.
          LaneFullError: if the session lane or the global lane is full and refuses the job that
            would handle the message.
          UnknownLaneError: if the global lane was removed.
          ValueError: for an unknown mode.
        """
        mode = WhenBusy(self.when_busy if when_busy is None else when_busy)
        if expected_turn is not None and not isinstance(expected_turn, str):
            raise TypeError(f"expected_turn must be the id of a turn, not {expected_turn!r}")
        self._lanes.check_thread()
        now = trio.current_time()
        known = self._known.find(self.session, id, now)
        if isinstance(known, Receipt):
            return known
        if known is not None:
            receipt = self._receipt_type(self, message, id)
            receipt._outcome = known
            return receipt
        # Also if no job has to be submitted: posts could keep closing lanes busy for ever.
        self._lanes.check_open()
        receipt = self._receipt_type(self, message, id)
        self._posting += 1
        try:
            busy = self.is_busy or self._is_held
            if busy and mode is WhenBusy.REJECT:
                self._known.add(receipt, now)
                self._settle(receipt, Settled(SettledKind.REJECTED))
            elif expected_turn is None or not self._is_rejected(receipt, expected_turn, now):
                entry = Entry(receipt, mode, group, not busy, now, copy_context())
                self._accept(entry, expected_turn)
        finally:
            self._posting -= 1
            self._tell_if_idle()
        return receipt

    def _is_rejected(self, receipt: Receipt, expected_turn: str, now: float) -> bool:
        """Whether the message is meant for another turn than the active one; then it settles."""
        turn = self._turn
        if turn is None:
            why = "no turn is active"
        elif turn.id != expected_turn:
            why = f"the turn {turn.id!r} is active"
        elif turn.abort_called:
            why = "it was aborted"
        else:
            return False
        error = RuntimeError(f"the message is for the turn {expected_turn!r}, but {why}")
        self._known.add(receipt, now)
        self._settle(receipt, Settled(SettledKind.REJECTED, error=error))
        return True

    def _accept(self, entry: Entry[Receipt], expected_turn: str | None) -> None:
        queue, receipt, mode, now = self._queue, entry.item, entry.mode, entry.posted_at
        if not queue.would_drop(mode):
            is_next = not queue or entry.goes_first
            context = entry.context if is_next else self._next_context
            due = math.inf if self._is_held else queue.due_with(entry)
            self._successor.secure(due, context)
        # Check again: an instrument may have posted when the successor was submitted.
        if expected_turn is not None and self._is_rejected(receipt, expected_turn, now):
            self._adjust_successor()
            self._hear()
            return
        self._known.add(receipt, now)
        if queue.would_drop(mode):
            self._settle(receipt, Settled(SettledKind.DROPPED))
            return
        replaces = mode is WhenBusy.REPLACE and queue.has_replaceable
        overflows = queue.is_full and not replaces
        if replaces:
            self._settle(queue.take_replaceable().item, Settled(SettledKind.REPLACED))
        queue.add(entry)
        if overflows:
            self._make_room()
        if entry.goes_first and self._turn is not None and not self._is_held:
            self._turn.abort("interrupted", rollback=mode is WhenBusy.ROLLBACK)
        self._adjust_successor()
        self._hear()

    def _make_room(self) -> None:
        victim = self._queue.take_victim().item
        kind = SettledKind.DROPPED
        if self._overflow is Overflow.SUMMARIZE:
            self._summary.append(one_line(victim.message))
            kind = SettledKind.SUMMARIZED
        self._settle(victim, Settled(kind))

    # ---- one message that waits

    def _position(self, receipt: Receipt) -> int | None:
        self._sync()
        entry, turn = self._queue.find(receipt), self._turn
        if entry is None:
            return None
        if turn is None or turn.abort_called:
            return self._queue.position(entry, [])
        return self._queue.position(entry, self._queue.steers_of(turn.group))

    def _edit(self, receipt: Receipt, message: Any) -> bool:
        self._sync()
        if receipt._turn is not None or receipt._outcome is not None:
            return False
        receipt.message = message
        return True

    @enable_ki_protection
    def _withdraw(self, receipt: Receipt, reason: str | None) -> bool:
        self._lanes.check_thread()
        self._sync()
        entry = self._queue.find(receipt)
        if entry is None:
            return False
        self._queue.take(entry)
        self._settle(receipt, Settled(SettledKind.CANCELLED, error=JobCancelledError(reason)))
        self._adjust_successor()
        self._hear()
        self._tell_if_idle()
        return True

    # ---- holding

    @enable_ki_protection
    def hold(self) -> None:
        """Begin no turn until `release`; no effect if that is so. Not a checkpoint.

        Messages wait, in every mode but REJECT, which is rejected. An active turn goes on: it takes
        steers, and an interrupt waits and does not abort it. When the lanes close, the messages
        that wait are CANCELLED by `LanesClosedError`.
        """
        self._lanes.check_thread()
        self._sync()
        self._until_release = self._is_held = True
        self._adjust_successor()
        self._hear()

    @enable_ki_protection
    def release(self) -> None:
        """End the hold: run the messages that wait. No effect if it is not held. Not a checkpoint.

        Raises:
          LaneFullError, LanesClosedError: if the lanes refuse the job that would handle the
            messages; they stay held.
        """
        self._lanes.check_thread()
        self._sync()
        if not self._is_held:
            return
        until_release, self._until_release, self._is_held = self._until_release, False, False
        if self._queue:
            try:
                self._ensure_successor()
            except LaneError:
                self._until_release, self._is_held = until_release or self._until_release, True
                raise
        self._hear()
        self._tell_if_idle()

    # ---- stopping

    async def stop(
        self,
        then: Literal["run", "hold", "clear"] = "run",
        *,
        reason: str | None = None,
        timeout: float = 15.0,
    ) -> bool:
        """Cancel the active turn, and wait until it has ended.

        What happens to the waiting messages is decided first, in the same act, so that no turn
        begins in between. If no turn is active, that is all. Messages that are posted meanwhile
        are handled after the turn, or are held. A checkpoint; cancelling the wait does not undo the
        stop. A turn that calls this method is cancelled at this call.

        Args:
          then: what the waiting messages do: ``"run"``, they are handled next, unless the inbox is
            held; ``"hold"``, they wait until `release`, as by `hold`; ``"clear"``, they are
            CANCELLED, and the summary of removed messages is dropped; a `hold` stays.
          reason: the reason in the errors of the cancelled messages.
          timeout: the maximum number of seconds to wait.

        Returns:
          False at the timeout; True if the turn ended in time, or if no turn was active.

        Raises:
          ValueError: for another ``then``.
          LaneDeadlockError: inside a job, if the turn would never end, as in a turn that waits for
            itself although it is cancelled. The stop stands.
        """
        turn = self._stop(check_then(then), reason)
        await trio.lowlevel.checkpoint()
        if turn is not None and turn._is_active:
            with trio.move_on_after(max(0, timeout)):
                while turn._is_active:
                    await turn._ending.wait_while(turn.job)
        return turn is None or not turn._is_active

    async def abort(self, reason: str | None = None, timeout: float = 15.0) -> bool:
        """Cancel the waiting messages and the active turn: `stop` with ``then="clear"``."""
        return await self.stop("clear", reason=reason, timeout=timeout)

    @enable_ki_protection
    def _stop(self, then: Literal["run", "hold", "clear"], reason: str | None) -> Turn | None:
        self._sync()
        turn = self._turn
        if turn is None:
            self._before_abort(then, reason)
        else:
            turn.abort(reason, then=then)
        return turn

    def _before_abort(self, then: Literal["run", "hold", "clear"], reason: str | None) -> None:
        """Do with the waiting messages what is to be done ``then``."""
        self._lanes.check_thread()
        if then == "hold":
            self.hold()
        elif then == "clear":
            self._cancel_queue(JobCancelledError(reason))
            self._adjust_successor()

    # ---- the successor

    def _ensure_successor(self) -> None:
        """Have a successor start when the head is due. Raises the errors of `Successor.secure`."""
        due = self._due
        self._successor.secure(due, self._next_context)
        if not self._queue or self._due != due:  # changed by a hook as the job was submitted
            self._adjust_successor()

    @property
    def _due(self) -> float:
        return math.inf if self._is_held else self._queue.due

    def _adjust_successor(self) -> None:
        """Submit or withdraw the successor, as the queue needs it now."""
        if not self._queue:
            self._is_held = self._until_release
            self._successor.withdraw()
            return
        try:
            self._ensure_successor()
        except LaneError:
            pass  # a turn is active; `_has_next` tells again at its end

    @property
    def _next_context(self) -> Context:
        return next(iter(self._queue)).context

    def _job_of(self, receipt: Receipt) -> Job[Any]:
        """Return the job on which ``receipt``, which has not settled, depends next."""
        if receipt._turn is not None:
            return receipt._turn.job
        if self._successor.job is not None:
            return self._successor.job
        assert self._turn is not None
        return self._turn.job

    def _hear(self) -> None:
        """Update the inbox if a hook has settled the successor as it was submitted."""
        if self._successor.is_unheard:
            self._sync()

    @enable_ki_protection
    def _sync(self, settled: Job[None] | None = None) -> None:
        """Bring the inbox up to date with jobs that have settled outside of it.

        Called once for each job when it has ``settled``, and before each query from outside, since
        a hook may query the inbox earlier. What the inbox does inside of a job has been told.
        """
        self._successor.is_unheard = False
        turn, job = self._turn, self._successor.job
        if turn is not None and turn.job.done:
            self._turn = None
            error = turn.job.exception
            self._settle_turn(turn, Settled(SettledKind.CANCELLED, error=error, turn=turn))
            if job is None:
                self._start_next(error)
            self._tell_if_idle()
        if job is not None and job.done:
            self._successor.job = None
            error = job.exception
            if isinstance(error, LaneResetError):  # it was started, but its body had not begun
                self._start_next(error)
            else:
                self._cancel_queue(error)

    def _tell_if_idle(self) -> None:
        """Tell the table of inboxes that this inbox keeps nothing."""
        if (
            self._when_idle is not None
            and self._turn is None
            and not self._queue
            and not self._summary
            and not self._is_held
            and not self._posting
        ):
            self._when_idle(self)

    def _start_next(self, error: BaseException | None) -> None:
        """Have a successor run the waiting messages; if none fits, cancel them because of it.

        Args:
          error: the error of the settled job, as the cause of the refusal.
        """
        if self._queue:
            try:
                self._ensure_successor()
            except LaneError as refusal:
                refusal.__cause__ = error
                self._cancel_queue(refusal)

    def _cancel_queue(self, error: BaseException | None) -> None:
        """Cancel all waiting messages, and drop the summary of removed messages."""
        self._summary = []
        self._is_held = self._until_release
        for entry in self._queue.take_all():
            self._settle(entry.item, Settled(SettledKind.CANCELLED, error=error))
        self._tell_if_idle()

    # ---- turns

    @enable_ki_protection
    async def _serve(self, due: float) -> None:
        """The body of each job of the inbox: one turn, or more if no successor fits."""
        job = current_job()
        assert job is not None
        self._successor.begins(job)
        self._hear()
        if not self._is_due(due):
            return
        while True:
            failure = await self._run(self._begin(job))
            if not self._has_next(job):
                break
            if failure is not None:
                _log.error(
                    "a turn of %r failed; the same job runs the next turn", self, exc_info=failure
                )
        if failure is not None:
            try:
                raise failure
            finally:
                del failure  # this frame is in its traceback

    def _is_due(self, due: float) -> bool:
        """Whether a job that was submitted for the time ``due``, and begins, starts a turn."""
        if self._turn is not None or not self._queue:  # a turn: the session was made wider
            return False
        if self._due <= max(due, trio.current_time()):
            return True
        try:
            self._ensure_successor()
        except LaneError as refusal:
            if not self._is_held:
                return True  # no later job would handle the head
            self._cancel_queue(refusal)
        return False

    def _begin(self, job: Job[Any]) -> Turn:
        unit = self._queue.take_unit()
        receipts = [entry.item for entry in unit]
        messages = [receipt.message for receipt in receipts]
        if self._summary:
            messages.insert(0, Summary("\n".join(self._summary)))
            self._summary = []
        self._turn = turn = Turn(self, job, messages, receipts, unit[0].group)
        for receipt in receipts:
            receipt._turn = turn
        self._adjust_successor()
        return turn

    async def _run(self, turn: Turn) -> Exception | None:
        """Call the handler; return the exception that it raised unless that was a cancellation."""
        settled: Settled | None = None
        try:
            with turn._handler_scope:
                settled = Settled(SettledKind.RAN, await call(self._handler, turn), turn=turn)
            if settled is None:
                aborted = JobCancelledError(turn._reason)
                settled = Settled(SettledKind.CANCELLED, error=aborted, turn=turn)
            self._end(turn, settled)
            return None
        except BaseException as raised:  # also an error about a scope that the handler left open
            own = own_part(raised)
            kind = SettledKind.CANCELLED if own is None else SettledKind.FAILED
            error = JobCancelledError("the job ended") if own is None else own
            self._end(turn, Settled(kind, error=error, turn=turn))
            if own is raised and isinstance(raised, Exception):
                return raised
            self._hear()
            self._start_next(None)
            raise

    def _has_next(self, job: Job[Any]) -> bool:
        """Whether ``job``, whose turn has ended, has to run the next turn too."""
        self._hear()
        if self._turn is not None or not self._queue:
            return False
        if job.cancel_called:  # a cancelled job can run no further turn
            self._start_next(job.exception)
            return False
        try:
            self._ensure_successor()
        except LaneError as refusal:
            if isinstance(refusal, LaneFullError) and not self._is_held:
                return True
            self._cancel_queue(refusal)
        return False

    @enable_ki_protection
    def _take(self, turn: Turn) -> list[Any]:
        self._lanes.check_thread()
        self._sync()
        receipts = [entry.item for entry in self._queue.take_steers(turn.group)]
        for receipt in receipts:
            self._settle(receipt, Settled(SettledKind.STEERED, turn=turn))
        self._adjust_successor()
        return [receipt.message for receipt in receipts]

    def _end(self, turn: Turn, settled: Settled) -> None:
        if self._turn is turn:  # else a reset has ended it
            self._turn = None
            self._settle_turn(turn, settled)
            if self._hold_on_failure and settled.kind is SettledKind.FAILED and self._queue:
                self._is_held = True
                self._adjust_successor()
            self._tell_if_idle()

    def _settle_turn(self, turn: Turn, settled: Settled) -> None:
        for receipt in turn._receipts:
            self._settle(receipt, settled)
            if settled.kind is SettledKind.RAN:
                settled = attrs.evolve(settled, kind=SettledKind.MERGED)
        turn._ending.set()

    def _settle(self, receipt: Receipt, settled: Settled) -> None:
        self._outcomes[settled.kind] += 1
        receipt._outcome = settled
        if receipt.id is not None:
            self._known.settle(receipt, settled, trio.current_time())
        receipt._ending.set()


def statistics(inboxes: Collection[Inbox], settled: dict[SettledKind, int]) -> InboxStatistics:
    """Return the statistics of some inboxes, whose messages are counted in ``settled``."""
    counts = [inbox._counts for inbox in inboxes]  # first: reading them may settle messages
    waiting, in_turn = sum(one[0] for one in counts), sum(one[1] for one in counts)
    offered = waiting + in_turn + sum(settled.values())
    return InboxStatistics(offered, waiting, in_turn, settled.copy())
