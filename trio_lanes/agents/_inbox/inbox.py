"""An inbox: what happens to the messages of one session while a turn is active.

States. A message waits in the line, then is in a turn, then has settled; or it settles out of the
line. A turn is active from when it takes what it is started with until its handler has ended, or
its job was given up by a reset. Only what is synchronous, and here, changes that: `post`,
`Turn.take`, the first half of `abort`, the begin and the end of a turn, and `_look`, which sees
what was done to jobs when one of them has settled.

Jobs. The inbox has no task: it lives on the jobs of `_successor`. When the body of one begins, it
takes the head of the line and has the next queued. So there is always either a queued job or an
active turn to see to what waits, which is why no message can fall between the last `take` of a
turn and the end of its job.

What happens between the checkpoints of a handler:

====================  =============================================================================
a turn ends           its messages settle; the successor, or the same job, runs what waits
a turn is aborted     its scope is cancelled; the job, which is around it, goes on
its job is cancelled  the turn is cancelled; the successor runs what waits
``clear``             the successor has settled: what waits is cancelled
``reset``             the job has settled while its body may run: the turn is over, its messages are
                      cancelled, the successor starts; if no turn had begun, another job is queued
the lanes end         the successor has settled with `LanesClosedError`: as for a clear
====================  =============================================================================
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Hashable
from contextvars import Context, copy_context
from typing import Any, Final, final

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

from .ids import KnownIds
from .options import InboxStatistics, check_cap, check_seconds
from .queue import Entry, Line, Overflow, Summary, WhenBusy, one_line
from .receipt import Receipt, Settled, SettledKind
from .successor import Successor
from .turn import Handler, Turn, call, own_part

_log: Final = logging.getLogger("trio_lanes.agents")


@final
class Inbox:
    """The messages of one session, and what is done with those that come while a turn is active.

    ::

        async def handler(turn: Turn) -> str:
            return await ask_the_model(turn.messages)

        receipt = Inbox(lanes, "alice", handler).post("hello")
        print((await receipt.settled()).result)

    It needs no closing. Two inboxes of one session never overlap, and are strangers otherwise.

    Args:
      lanes: where its turns run.
      session: the session whose lane they go through.
      handler: ``async def handler(turn) -> result``, one call for each turn.
      when_busy: what is done with a message that does not say.
      lane: the global lane that runs the turns.
      debounce: seconds without a new one after which collected messages are due.
      max_wait: seconds after which they are due at the latest, from the oldest; may be `math.inf`.
      cap: how many messages may wait; `math.inf` for no bound.
      overflow: what is done when as many wait, and one more is posted.

    Raises:
      TypeError, ValueError: for a bad value; also for a session whose lane is wider than 1.
      UnknownLaneError: if there is no such lane.
    """

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
    ) -> None:
        view = lanes.session(session)
        if view.config.concurrency > 1:
            raise ValueError(
                f"the turns of an inbox cannot overlap, but {view.name!r} runs "
                f"{view.config.concurrency} jobs at once"
            )
        if not callable(handler):
            raise TypeError(f"handler must be an async function, not {handler!r}")
        self.session: Final = view.key
        self.lane: Final = lanes.lane(lane).name
        self.when_busy: WhenBusy = WhenBusy(when_busy)
        self._lanes: Final = lanes
        self._handler: Final = handler
        self._overflow: Final = Overflow(overflow)
        self._line: Final[Line[Receipt]] = Line(
            check_seconds("debounce", debounce, sys.float_info.max),
            check_seconds("max_wait", max_wait, math.inf),
            check_cap(cap),
            self._overflow,
        )
        self._turn: Turn | None = None
        self._successor: Final = Successor(
            lanes, self.session, self.lane, self._serve, self._look, handler
        )
        self._summary: list[str] = []  # lines for the next turn
        self._known: Final = KnownIds()
        self._offered = 0
        self._settled: Final = dict.fromkeys(SettledKind, 0)

    def __repr__(self) -> str:
        busy = "idle" if self._turn is None else "active"
        return (
            f"<trio_lanes.agents.Inbox at {id(self):#x}, session {self.session!r}, {busy}, "
            f"{len(self._line)} waiting>"
        )

    # ---- looking; none of these is a checkpoint

    @property
    def turn(self) -> Turn | None:
        """The active turn."""
        self._look()
        return self._turn

    @property
    def waiting(self) -> list[Receipt]:
        """What waits, in order."""
        self._look()
        return [entry.item for entry in self._line]

    @property
    def is_busy(self) -> bool:
        """Whether a turn is active or a message waits."""
        self._look()
        return self._turn is not None or len(self._line) > 0

    def statistics(self) -> InboxStatistics:
        """How things stand."""
        self._look()
        in_turn = 0 if self._turn is None else len(self._turn._receipts)
        return InboxStatistics(self._offered, len(self._line), in_turn, self._settled.copy())

    # ---- posting

    @enable_ki_protection
    def post(
        self,
        message: Any,
        *,
        when_busy: WhenBusy | None = None,
        id: Hashable = None,
        group: Hashable = None,
    ) -> Receipt:
        """Take ``message``; its place in line is taken at once. Not a checkpoint.

        When no turn is active and nothing waits, it is run at once. Else ``when_busy`` says what is
        done with it. Turns run in the context of whoever posted what was first in line when their
        job was queued.

        Args:
          when_busy: instead of that of the inbox.
          id: the same id within five minutes is the same message: its first receipt is returned.
          group: collect messages of different groups are not put together.

        Raises:
          LanesClosedError: if the lanes take no new work; a running job of them may post.
          LaneFullError: if its session lane, or its lane, takes no job that would run it.
          UnknownLaneError: if its lane was removed.
          ValueError: for an unknown mode.
        """
        mode = WhenBusy(self.when_busy if when_busy is None else when_busy)
        now = trio.current_time()
        known = self._known.find(id, now)
        if known is not None:
            return known
        # Asked for where no job is submitted, or lanes that close could be kept busy for ever.
        self._lanes.check_open()
        receipt = Receipt(self, message, id)
        busy = self.is_busy
        if busy and mode is WhenBusy.REJECT:
            self._offer(receipt, now)
            self._settle(receipt, Settled(SettledKind.REJECTED))
        else:
            self._accept(receipt, mode, group, now, runs_at_once=not busy)
        return receipt

    def _accept(
        self, receipt: Receipt, mode: WhenBusy, group: Hashable, now: float, *, runs_at_once: bool
    ) -> None:
        line = self._line
        entry = Entry(receipt, mode, group, runs_at_once, now, copy_context())
        line.meet(entry)
        if not line.would_drop(mode):
            is_next = not line or mode is WhenBusy.INTERRUPT
            context = entry.context if is_next else self._next_context
            self._successor.secure(line.due_with(entry), context, self._turn is not None)
        # Asked again, since an instrument may have posted when the successor was submitted.
        self._offer(receipt, now)
        if line.would_drop(mode):
            self._settle(receipt, Settled(SettledKind.DROPPED))
            return
        if mode is WhenBusy.REPLACE and line.has_replaceable:
            self._settle(line.take_replaceable().item, Settled(SettledKind.REPLACED))
        elif line.is_full:
            self._make_room()
        line.add(entry)
        if mode is WhenBusy.INTERRUPT and self._turn is not None:
            self._turn.abort("interrupted")
        self._arrange()
        self._look()  # a hook may have ended the successor as it was submitted

    def _make_room(self) -> None:
        victim = self._line.take_victim().item
        kind = SettledKind.DROPPED
        if self._overflow is Overflow.SUMMARIZE:
            self._summary.append(one_line(victim.message))
            kind = SettledKind.SUMMARIZED
        self._settle(victim, Settled(kind))

    def _offer(self, receipt: Receipt, now: float) -> None:
        self._offered += 1
        self._known.add(receipt, now)

    # ---- aborting

    async def abort(self, reason: str | None = None, timeout: float = 15.0) -> bool:
        """Cancel what waits, then the active turn, and wait for its end.

        The summary of messages that made room is dropped, too. What is posted meanwhile runs after
        the turn. A checkpoint; cancelling it takes nothing back. A turn that calls this is
        cancelled here.

        Args:
          reason: told to whoever waits for the messages.
          timeout: seconds to wait at most.

        Returns:
          False at the timeout; True if the turn ended in time, or if there was none.
        """
        turn = self._cancel(reason)
        await trio.lowlevel.checkpoint()
        if turn is not None and turn._is_active:
            with trio.move_on_after(max(0, timeout)):
                while turn._is_active:
                    await turn._ending.wait_while(turn.job)
        return turn is None or not turn._is_active

    @enable_ki_protection
    def _cancel(self, reason: str | None) -> Turn | None:
        self._look()
        self._cancel_line(JobCancelledError(reason))
        self._arrange()
        if self._turn is not None:
            self._turn.abort(reason)
        return self._turn

    # ---- the successor

    def _secure(self) -> None:
        """Have a successor come when the head of the line is due; raises as its `secure`."""
        self._successor.secure(self._line.due, self._next_context, self._turn is not None)

    def _arrange(self) -> None:
        """Have the successor that is needed now, if there can be one."""
        if not self._line:
            self._successor.withdraw()
            return
        try:
            self._secure()
        except LaneError:
            pass  # there is a turn, whose end sees to it

    @property
    def _next_context(self) -> Context:
        return next(iter(self._line)).context

    def _job_of(self, receipt: Receipt) -> Job[Any]:
        """The job that is to end before ``receipt``, which has not settled, can be forgotten."""
        if receipt._turn is not None:
            return receipt._turn.job
        if self._successor.job is not None:
            return self._successor.job
        assert self._turn is not None
        return self._turn.job

    @enable_ki_protection
    def _look(self) -> None:
        """See what was done to jobs: they tell when they have settled, and hooks ask before."""
        turn, job = self._turn, self._successor.job
        if turn is not None and turn.job.done:
            self._turn = None
            error = turn.job.exception
            self._settle_turn(turn, Settled(SettledKind.CANCELLED, error=error, turn=turn))
            if job is None:
                self._continue(error)
        if job is not None and job.done:
            self._successor.job = None
            error = job.exception
            if isinstance(error, LaneResetError):  # granted its slots, and not begun
                self._continue(error)
            else:
                self._cancel_line(error)

    def _continue(self, error: BaseException | None) -> None:
        """Have what waits run by a successor; without one, cancel it because of ``error``."""
        if self._line:
            try:
                self._secure()
            except LaneError as refusal:
                refusal.__cause__ = error
                self._cancel_line(refusal)

    def _cancel_line(self, error: BaseException | None) -> None:
        """Cancel all messages that wait, and drop the summary of those that made room."""
        self._summary = []
        for entry in self._line.take_all():
            self._settle(entry.item, Settled(SettledKind.CANCELLED, error=error))

    # ---- turns

    @enable_ki_protection
    async def _serve(self, due: float) -> None:
        """The body of every job: one turn; more only where no successor fits."""
        job = current_job()
        assert job is not None
        self._successor.begins(job)
        self._look()
        if not self._is_due(due):
            return
        while True:
            failure = await self._run(self._begin(job))
            if not self._goes_on(job):
                break
            if failure is not None:
                _log.error("a turn of %r failed; its job runs the next", self, exc_info=failure)
        if failure is not None:
            try:
                raise failure
            finally:
                del failure  # this frame is in its traceback

    def _is_due(self, due: float) -> bool:
        """Whether a job that was to come at ``due``, and begins, is to start a turn."""
        if self._turn is not None or not self._line:  # a turn: the session was made wider since
            return False
        head_is_due = self._line.due
        if head_is_due <= max(due, trio.current_time()):
            return True
        try:
            self._secure()
        except LaneError:
            return True  # there would be nobody to see to it
        return False

    def _begin(self, job: Job[Any]) -> Turn:
        receipts = [entry.item for entry in self._line.take_unit()]
        messages = [receipt.message for receipt in receipts]
        if self._summary:
            messages.insert(0, Summary("\n".join(self._summary)))
            self._summary = []
        self._turn = turn = Turn(self, job, messages, receipts)
        for receipt in receipts:
            receipt._turn = turn
        self._arrange()
        return turn

    async def _run(self, turn: Turn) -> Exception | None:
        """Call the handler; what it raises, if that is its own affair and not a cancellation."""
        settled: Settled | None = None
        try:
            with turn._handler_scope:
                settled = Settled(SettledKind.RAN, await call(self._handler, turn), turn=turn)
            if settled is None:
                aborted = JobCancelledError(turn._reason)
                settled = Settled(SettledKind.CANCELLED, error=aborted, turn=turn)
            self._end(turn, settled)
            return None
        except BaseException as raised:  # also for a scope that the handler has left open
            told = own_part(raised)
            kind = SettledKind.CANCELLED if told is None else SettledKind.FAILED
            error = JobCancelledError("the job ended") if told is None else told
            self._end(turn, Settled(kind, error=error, turn=turn))
            if told is raised and isinstance(raised, Exception):
                return raised
            self._look()
            self._continue(None)
            raise

    def _goes_on(self, job: Job[Any]) -> bool:
        """Whether ``job``, whose turn has ended, is to run the next."""
        self._look()
        if self._turn is not None or not self._line:
            return False
        if job.cancel_called:  # nothing can be run in it any more
            self._continue(job.exception)
            return False
        try:
            self._secure()
        except LaneFullError:
            return True
        except LaneError as refusal:
            self._cancel_line(refusal)
        return False

    @enable_ki_protection
    def _take(self, turn: Turn) -> list[Any]:
        self._look()
        receipts = [entry.item for entry in self._line.take_steers()]
        for receipt in receipts:
            self._settle(receipt, Settled(SettledKind.STEERED, turn=turn))
        self._arrange()
        return [receipt.message for receipt in receipts]

    def _end(self, turn: Turn, settled: Settled) -> None:
        self._look()
        if self._turn is turn:
            self._turn = None
            self._settle_turn(turn, settled)

    def _settle_turn(self, turn: Turn, settled: Settled) -> None:
        for receipt in turn._receipts:
            self._settle(receipt, settled)
            if settled.kind is SettledKind.RAN:
                settled = attrs.evolve(settled, kind=SettledKind.MERGED)
        turn._ending.tell()

    def _settle(self, receipt: Receipt, settled: Settled) -> None:
        self._settled[settled.kind] += 1
        receipt._outcome = settled
        receipt._ending.tell()
