"""Trio as the guest of an asyncio loop: one run for each loop, in the loop's own thread.

Theory of operation
-------------------
`trio.lowlevel.start_guest_run` takes Trio's run apart into ticks, which the host calls. By itself a
run with nothing to do waits for events in a thread, and each wake-up costs two switches of threads.
Here the host's loop waits instead: for Trio's poller, by one more reader, and for Trio's next
deadline, by one more timer. To that end Trio's clock says "do not sleep", so that Trio posts its
next tick at once. That tick is kept back until the poller is readable, or the deadline has come. A
task that is woken from outside of the run makes the poller readable, as it would wake the thread.
So there is no thread, and the run is as deterministic as the loop.

That tick is kept back by private names of Trio's (`_internals`). Where a version of Trio has not
all of them, or the loop cannot watch a poller (Windows), Trio waits in its thread, as a guest does
by itself. In all cases Trio's clock is that of the loop.

The run begins with the first user of the loop and ends with the last. It ends before that, with a
line in the log, when the loop's asynchronous generators are shut down, as `asyncio.run` does at its
end, or when the closed loop is collected: a loop alone refers to its run.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import os
import sys
import threading
import warnings
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import suppress
from contextvars import Context
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, Final, TypeVar, final
from weakref import ref

import outcome
import trio

logger: Final = logging.getLogger("trio_lanes")

T = TypeVar("T")

_LEFT_OPEN: Final = (
    "an asyncio loop was closed while lanes were open in it: leave their block first"
)

_OTHER_LOOP: Final = (
    "another asyncio loop of this thread has lanes open, and a thread has one run of Trio's at a "
    "time: leave the lanes of that loop first, or run this loop in a thread of its own"
)

_MOST_AWAITS: Final = 100
"""How often a task is closed that awaits something else instead of ending."""

_internals: Final = attrgetter(
    "unrolled_run_next_send",
    "unrolled_run_gen.close",
    "runner.guest_tick_scheduled",
    "runner.io_manager.get_events",
)
"""Read of Trio's `GuestState` what is needed to keep a tick back."""

_here: Final = threading.local()  # `guest`: a weak reference to the guest run of this thread


@final
class _LoopClock(trio.abc.Clock):
    """The time of the loop as Trio's; it keeps the deadline for which Trio would sleep."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop: Final = loop
        self.loop_waits = False  # in the place of Trio's thread
        self.deadline: float | None = None  # for which Trio would sleep now; None: it is busy

    def start_clock(self) -> None:
        """The loop's clock goes already."""

    def current_time(self) -> float:
        return self._loop.time()

    def deadline_to_sleep_time(self, deadline: float) -> float:
        self.deadline = deadline
        return 0 if self.loop_waits else deadline - self._loop.time()


@final
class GuestRun:
    """The run of Trio's in one loop. `enter_guest` makes it, if need be."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop: Final = loop
        self.ended: Final[ShieldedFuture[bool]] = ShieldedFuture()
        self.over: Final = trio.Event()  # it is to end
        self.ends: Final[list[bool]] = []  # not empty: it has ended, known without the loop
        self.failure: BaseException | None = None  # in which it has ended: of Trio's, or Ctrl-C
        self.is_of_parent = False  # of a process that has forked this one, so that no tick comes
        self.yet_to_begin: Final[deque[object]] = deque()  # tasks in it, by the order of calls
        self._users = 0
        self._clock: Final = _LoopClock(loop)
        self._context: Final = Context()  # of the ticks: they belong to no job
        self._poller: int | None = None  # the descriptor that the loop watches
        self._tick: Any = None  # a method of Trio's `GuestState`
        self._kept_back = False  # whether it is called only when there is work for it
        self._timer: asyncio.TimerHandle | None = None  # that calls it then
        self._guard: Final = _until_shutdown(ref(self))
        self._context.run(self._start)

    def _start(self) -> None:
        trio.lowlevel.start_guest_run(
            self.over.wait,
            run_sync_soon_threadsafe=self.loop.call_soon_threadsafe,
            run_sync_soon_not_threadsafe=self._post,
            done_callback=self._done,
            host_uses_signal_set_wakeup_fd=True,
            clock=self._clock,
        )
        poller = _poller_of(self._tick)
        if poller is not None:
            # A descriptor of its own, since Trio closes its poller before it says that it has ended
            descriptor = os.dup(poller.fileno())
            try:
                self.loop.add_reader(descriptor, self._wake)
            except NotImplementedError:
                os.close(descriptor)
            else:
                self._poller = descriptor
                self._clock.loop_waits = True

    def __del__(self) -> None:  # of closed loops, which tests have in a process of their own
        if not self.ended.done() and not self.is_of_parent:  # pragma: no cover - see above
            logger.error(_LEFT_OPEN)
            if self._poller is not None:
                os.close(self._poller)
            with suppress(AttributeError):  # see `_internals`
                _abandon(self._tick.__self__)

    async def enter(self) -> None:
        """One user more."""
        self._users += 1
        if self._users == 1:
            await anext(self._guard)

    async def leave(self) -> None:
        """One user less; the last one ends the run, and waits for that."""
        self._users -= 1
        if not self._users:
            self.over.set()
            await self.ended.result_shielded()
            await self._guard.aclose()
            if self.failure is not None:  # pragma: no cover - Ctrl-C: tests of real processes
                raise self.failure

    def _done(self, result: outcome.Outcome[None]) -> None:
        if self._poller is not None:
            self.loop.remove_reader(self._poller)
            os.close(self._poller)
        if isinstance(result, outcome.Error):  # pragma: no cover - see `leave`
            self.failure = result.error
        self.ends.append(True)
        self.ended.set_result(True)

    # ---- ticks

    def _post(self, tick: Callable[[], object]) -> None:
        """Call ``tick`` soon, or when there is work for it."""
        self._tick = tick
        deadline, self._clock.deadline = self._clock.deadline, None
        if not self._clock.loop_waits or deadline is None or _has_events(tick):
            self.loop.call_soon(tick, context=self._context)
            return
        state = self._tick.__self__
        self._kept_back = True
        state.runner.guest_tick_scheduled = False  # as if a thread waited: so it wakes the poller
        if deadline < math.inf:
            self._timer = self.loop.call_at(deadline, self._wake, context=self._context)

    def _wake(self) -> None:
        """There is work for the tick, if it is kept back: do what Trio's thread would do."""
        if not self._kept_back:  # pragma: no cover - Trio is busy, and looks by itself
            return
        self._kept_back = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        state = self._tick.__self__
        state.unrolled_run_next_send = outcome.capture(state.runner.io_manager.get_events, 0)
        state.runner.guest_tick_scheduled = True
        self._tick()


def _poller_of(tick: Any) -> Any:
    """Return what Trio waits by; None: it is none that a loop could watch, or not known."""
    try:
        _internals(tick.__self__)
    except AttributeError:
        return None
    manager = tick.__self__.runner.io_manager
    return getattr(manager, "_epoll", None) or getattr(manager, "_kqueue", None)


def _abandon(state: Any) -> None:  # pragma: no cover - in a process of its own
    """Let go of Trio's run, of which no tick comes any more, without a word on stderr."""
    tasks = [*state.runner.tasks]
    for task in tasks:
        for nursery in task.child_nurseries:
            nursery._children.clear()  # else Trio asserts this as it is collected
    for task in tasks:
        for _ in range(_MOST_AWAITS):  # in the clean-up of what the task awaits
            with suppress(Exception):
                task.coro.close()
                break
    queue = state.runner.entry_queue
    queue.wakeup.close()  # and asynchronous generators that are collected later wake nobody
    queue.wakeup = SimpleNamespace(close=bool, wakeup_thread_and_signal_safe=bool)
    state.unrolled_run_gen.close()


def _silence_trio() -> None:  # pragma: no cover - in a process of its own
    """The log says what Trio would say. It may be collected first: hence not around its end."""
    warnings.filterwarnings("ignore", "Trio guest run got abandoned", RuntimeWarning)


def _has_events(tick: Any) -> bool:
    events: outcome.Outcome[Any] = tick.__self__.unrolled_run_next_send
    return not isinstance(events, outcome.Value) or bool(events.value)


async def _until_shutdown(guest: ref[GuestRun]) -> AsyncGenerator[None]:
    """End the run when the loop's asynchronous generators, as this one, are shut down."""
    try:
        yield
    finally:
        run = guest()
        if run is not None and not run.over.is_set() and not run.is_of_parent:
            logger.error(_LEFT_OPEN)
            run.over.set()
            await run.ended.result_shielded()


def guest_here() -> GuestRun | None:
    """Return the guest run of this thread that has not ended, if any."""
    guest: GuestRun | None = _here.guest() if hasattr(_here, "guest") else None
    return None if guest is None or guest.ended.done() else guest


async def enter_guest() -> None:
    """Have the guest run of the running loop last until `leave_guest` at least.

    Raises:
      RuntimeError: outside of an asyncio task, or if this thread is another run's of Trio's, such
        as that of another loop.
    """
    try:
        loop = asyncio.get_running_loop()
        if asyncio.current_task() is None:
            raise RuntimeError
    except RuntimeError:
        raise RuntimeError(
            "trio_lanes.aio needs an asyncio task, as asyncio.run() runs it; "
            "in Trio, use trio_lanes.open_lanes"
        ) from None
    guest = guest_here()
    if guest is not None and guest.loop is loop and guest.over.is_set():
        await guest.ended.result_shielded()
        guest = guest_here()
    if guest is None or guest.loop is not loop:
        guest = None
        if trio.lowlevel.in_trio_run():
            gc.collect()  # it may be that of a closed loop
        if guest_here() is not None:
            raise RuntimeError(_OTHER_LOOP)
        if trio.lowlevel.in_trio_run():
            raise RuntimeError(
                "this thread runs Trio already, and the asyncio loop in it: "
                "use trio_lanes.open_lanes there"
            )
        guest = GuestRun(loop)
        ends = guest.ends
        # weak references tell of garbage before any of it is finalized
        _here.guest = ref(guest, lambda _: None if ends else _silence_trio())
    await guest.enter()


def _forget_parents_guest() -> None:  # pragma: no cover - in a forked child
    """Let this process, which was just forked, have runs of Trio's of its own."""
    guest: GuestRun | None = _here.guest() if hasattr(_here, "guest") else None
    if guest is not None and not guest.ended.done():
        guest.is_of_parent = True
        _of_parent.append(guest)  # for ever: Trio would end another run if this one was collected
        del _here.guest
        with suppress(AttributeError):  # see `_internals`
            attrgetter("_core._run.GLOBAL_RUN_CONTEXT")(trio).__dict__.clear()


_of_parent: Final[list[GuestRun]] = []

if sys.platform != "win32":  # pragma: no branch - a process is forked only elsewhere
    os.register_at_fork(after_in_child=_forget_parents_guest)


async def leave_guest() -> None:
    """Undo `enter_guest`."""
    guest = guest_here()
    if guest is not None:  # pragma: no branch - else a loop is closed, in a process of its own
        await guest.leave()


def check_loop() -> None:
    """Refuse a call from another loop than that of the guest run in this thread.

    Raises:
      RuntimeError: there; it names the portal.
    """
    guest = guest_here()
    if guest is not None and guest.loop is not asyncio.get_running_loop():
        raise RuntimeError("lanes belong to one asyncio loop; use Lanes.portal() in others")


@final
class ShieldedFuture(asyncio.Future[T | None]):
    """A future that is awaited to its end: the cancellation of a task that awaits it calls
    ``abort()`` at once, and is raised when this is done.

    It is what an abort function that returns `trio.lowlevel.Abort.FAILED` is in Trio.
    """

    def __init__(self, abort: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self.abort: Final = abort
        self._aborted = False

    def cancel(self, msg: object = None) -> bool:
        """Called by `asyncio.Task.cancel`: the task will be cancelled at its next step."""
        if not self.done():
            self._aborted = True
            self.abort()
        return False

    async def wait_through(self) -> asyncio.CancelledError | None:
        """Wait until this is done; return the cancellation of the task meanwhile."""
        cancelled = None
        while not self.done():
            try:
                await self
            except asyncio.CancelledError as error:
                cancelled = error
        return cancelled

    async def result_shielded(self) -> T | None:
        """Wait until this is done, and return its result.

        If the task was cancelled meanwhile, and the result is None, its cancellation is raised:
        there is nothing that would be lost. Else the cancellation comes again; also if it came when
        this was done, and the task had only yet to have its turn.
        """
        cancelled = await self.wait_through()
        result = self.result()
        # Python 3.11 does not trace what a task does after its cancellation: hence the pragmas
        if cancelled is not None:  # pragma: no cover - see above
            if result is None and self._aborted:
                raise cancelled
            recancel(cancelled)
        return result


def recancel(cancelled: asyncio.CancelledError) -> None:
    """Cancel this task again soon: its cancellation did not end what it awaited.

    Trio does that at each checkpoint, asyncio cancels once. Not if the scope that asked for the
    cancellation, such as `asyncio.timeout`, is left before.
    """
    task = this_task()
    asked = task.cancelling()

    def cancel() -> None:
        if 0 < asked <= task.cancelling() and not task.done():
            task.cancel(*cancelled.args)  # by which anyio knows that it is its own
            task.uncancel()  # it is the same cancellation

    task.get_loop().call_soon(cancel)


def new_task(
    loop: asyncio.AbstractEventLoop,
    coro: Coroutine[Any, Any, T],
    context: Context,
    done: Callable[[asyncio.Task[T]], object],
    *,
    name: str | None = None,
) -> asyncio.Task[T]:
    """Make a task of ``loop`` that calls ``done`` at its end.

    Raises what a task factory of the application raises.
    """
    try:
        task = loop.create_task(coro, name=name, context=context)
        task.add_done_callback(done)
        return task
    except BaseException:
        coro.close()  # else a warning says that it was never awaited
        raise


async def in_own_turn(loop: asyncio.AbstractEventLoop) -> None:
    """Begin a task in a turn of the loop of its own.

    A task factory may have run its first step where the task was made: in the middle of an act of
    the lanes, or in a task of Trio's.
    """
    if loop.get_task_factory() is not None:
        await asyncio.sleep(0)


def this_task() -> asyncio.Task[Any]:
    """Return the asyncio task that calls this."""
    task = asyncio.current_task()
    assert task is not None
    return task
