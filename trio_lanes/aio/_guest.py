"""Trio as the guest of an asyncio loop: one run for each loop, in the loop's own thread.

Theory of operation
-------------------
`trio.lowlevel.start_guest_run` takes Trio's run apart into ticks, which the host calls. A run with
nothing to do waits for events in a thread of its own, and each wake-up then costs two switches of
threads. Here the host's loop waits instead: it watches the file descriptor of Trio's poller, as one
more reader, and Trio's next deadline, as one more timer. To that end Trio is given a clock that
says "do not sleep", so that it posts its next tick at once; the tick is kept back (`_park`) until
the poller is readable, the deadline has come, or the run is woken from outside, which Trio does
through its poller. So no thread is there, and the run is as deterministic as the loop is.

Where the loop or the platform has no such poller (Windows), Trio waits in its thread, as it does by
itself. Trio's clock is the loop's clock in any case.

The run begins with the first user of a loop and ends with the last. It also ends when the loop's
asynchronous generators are shut down (`asyncio.run` does that before it closes the loop).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable
from contextvars import Context
from typing import Any, Final, final
from weakref import WeakKeyDictionary

import outcome
import trio

_guests: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, GuestRun]] = WeakKeyDictionary()


@final
class _LoopClock(trio.abc.Clock):
    """The loop's time as Trio's; it keeps the deadline for which Trio would sleep."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop: Final = loop
        self.watched = False  # whether the loop waits for Trio's events
        self.deadline: float | None = None  # for which Trio would sleep now; None: it is busy

    def start_clock(self) -> None:
        pass

    def current_time(self) -> float:
        return self._loop.time()

    def deadline_to_sleep_time(self, deadline: float) -> float:
        self.deadline = deadline
        return 0 if self.watched else deadline - self._loop.time()


@final
class GuestRun:
    """The guest run of one loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop: Final = loop
        self.ended: Final[asyncio.Future[outcome.Outcome[None]]] = loop.create_future()
        self._users = 0
        self._clock: Final = _LoopClock(loop)
        self._context: Final = Context()  # of the ticks: that of no job
        self._poller: int | None = None  # a descriptor of Trio's poller, which the loop watches
        self._tick: Callable[[], object] | None = None  # Trio's next tick, kept back
        self._timer: asyncio.TimerHandle | None = None  # of the tick that is kept back
        self._over: Final = trio.Event()
        self._guard: Final = self._until_shutdown()
        self._context.run(self._start)

    def _start(self) -> None:
        trio.lowlevel.start_guest_run(
            self._over.wait,
            run_sync_soon_threadsafe=self.loop.call_soon_threadsafe,
            run_sync_soon_not_threadsafe=self._post,
            done_callback=self._done,
            host_uses_signal_set_wakeup_fd=True,
            clock=self._clock,
        )

    @classmethod
    async def enter(cls) -> GuestRun:
        """Return the guest run of the running loop, which lasts until `leave` at least."""
        loop = asyncio.get_running_loop()
        while True:
            guest = _guests.get(loop)
            if guest is None:
                guest = _guests[loop] = cls(loop)
                guest._users = 1
                await anext(guest._guard)
                return guest
            if not guest._over.is_set():
                guest._users += 1
                return guest
            await asyncio.wait([guest.ended])

    def leave(self) -> bool:
        """One user less; return whether it was the last: then the run is about to end."""
        self._users -= 1
        if not self._users:
            self._over.set()
        return not self._users

    async def _until_shutdown(self) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            if not self.ended.done():
                self._over.set()
                await asyncio.wait([self.ended])

    def _done(self, result: outcome.Outcome[None]) -> None:
        if self._poller is not None:
            self.loop.remove_reader(self._poller)
            os.close(self._poller)
        del _guests[self.loop]
        self.ended.set_result(result)

    # ---- ticks

    def _post(self, tick: Callable[[], object]) -> None:
        """Trio wants ``tick`` called soon."""
        state: Any = getattr(tick, "__self__", None)
        if self._poller is None and self._clock.deadline is None:
            self._watch(state)
        events = state.unrolled_run_next_send
        deadline, self._clock.deadline = self._clock.deadline, None
        if not self._clock.watched or deadline is None or events.value:
            self.loop.call_soon(tick, context=self._context)
            return
        self._tick = tick
        state.runner.guest_tick_scheduled = False  # so Trio wakes its poller
        if deadline < float("inf"):
            self._timer = self.loop.call_at(deadline, self._wake, context=self._context)

    def _watch(self, state: Any) -> None:
        poller: Any = getattr(state.runner.io_manager, "_epoll", None)
        self._poller = os.dup(poller.fileno())
        self.loop.add_reader(self._poller, self._wake)
        self._clock.watched = True

    def _wake(self) -> None:
        """The poller is readable, or the deadline has come: what Trio's thread would do."""
        tick, self._tick = self._tick, None
        if tick is None:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        state: Any = getattr(tick, "__self__", None)
        state.unrolled_run_next_send = outcome.capture(state.runner.io_manager.get_events, 0)
        state.runner.guest_tick_scheduled = True
        tick()
