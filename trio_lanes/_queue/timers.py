"""Timers: one heap of times, and one task that exists only while the heap is not empty.

Timers of lanes that are due together fire in one batch. So if several pauses end or several rates
refill together, the best head of these lanes starts, and not the head of the lane whose timer was
set first. Timers of lanes fire before timers of jobs that are due at the same time, so a job that
may start then does so before its ``queue_timeout`` ends it.

The task sleeps under a cancel scope whose deadline is the earliest time of the heap, so setting
a later timer wakes no task, and setting an earlier timer only moves that deadline. The scope is
shielded: a task that waits, shielded, for the effect of a timer must get it although the lanes are
cancelled meanwhile.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from itertools import count
from typing import Any, Final, final

import attrs
import trio
from trio.lowlevel import enable_ki_protection


@final
@attrs.define(eq=False)
class Timer:
    """One call that is due at a time, until it is made or cancelled."""

    when: float
    _call: Callable[[], None] | None
    _timers: Timers

    @property
    def is_set(self) -> bool:
        """Whether the call is still to be made."""
        return self._call is not None

    def cancel(self) -> None:
        """Cancel the call; nothing happens if it was made or cancelled before."""
        if self._call is not None:
            self._call = None
            self._timers._forget()

    def _fire(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            self._timers._waiting -= 1
            call()


@final
class Timers:
    """The timers of one `Lanes`. Calls are made in order of time, then in order of setting."""

    def __init__(
        self,
        spawn: Callable[[Callable[[], Coroutine[Any, Any, None]]], None],
        batch: Callable[[], AbstractContextManager[None]] = nullcontext,
        after_act: Callable[[Callable[[], None]], None] = lambda effect: effect(),
    ) -> None:
        self._spawn: Final = spawn
        self._batch: Final = batch
        self._after_act: Final = after_act  # calls a function that may run code of others
        # (when, whether it is made alone, the order of setting, timer)
        self._heap: list[tuple[float, bool, int, Timer]] = []
        self._order: Final = count()
        self._first_new = 0  # timers of this number and later ones were set in the present pass
        self._waiting = 0  # timers in the heap that are not cancelled
        self._alive = False  # whether the task exists
        self._stopped = False
        self._sleep: trio.CancelScope | None = None  # what the task sleeps under

    def call_at(self, when: float, call: Callable[[], None], *, alone: bool = True) -> Timer:
        """Have ``call()`` made at ``when`` on Trio's clock, in a task of the lanes' nursery.

        The call must not raise. Calls that are not made ``alone`` share one batch if they are due
        together, and come before the calls that are made alone.
        """
        if self._stopped:
            return Timer(when, None, self)
        timer = Timer(when, call, self)
        heapq.heappush(self._heap, (when, alone, next(self._order), timer))
        self._waiting += 1
        if not self._alive:
            self._alive = True
            self._spawn(self._run)
        elif self._sleep is not None and when < self._sleep.deadline:
            self._sleep.deadline = when
        return timer

    def stop(self) -> None:
        """Make no call any more, neither of present nor of later timers."""
        self._stopped = True
        for *_, timer in self._heap.copy():
            timer.cancel()

    def _forget(self) -> None:
        self._waiting -= 1
        if not self._waiting:
            self._heap.clear()
            self._after_act(self._let_end)
        elif len(self._heap) > 2 * self._waiting + 16:
            self._heap = [entry for entry in self._heap if entry[3]._call is not None]
            heapq.heapify(self._heap)

    def _let_end(self) -> None:
        """End the task, unless another timer has been set."""
        if self._sleep is not None and not self._waiting:
            self._sleep.cancel()

    def _skip_cancelled(self) -> bool:
        """Drop the cancelled timers that would be due next; whether any other is left."""
        while self._heap and not self._heap[0][3].is_set:
            heapq.heappop(self._heap)
        return bool(self._heap)

    def _is_due(self, now: float) -> bool:
        return bool(self._heap) and self._heap[0][0] <= now and self._heap[0][2] < self._first_new

    @enable_ki_protection
    async def _run(self) -> None:
        try:
            while self._skip_cancelled():
                with trio.CancelScope(deadline=self._heap[0][0], shield=True) as self._sleep:
                    await trio.sleep_forever()
                self._sleep = None
                now = trio.current_time()
                # What is set from here on is not due in this pass, even if it were set for a time
                # that is over: no call can keep the other tasks of Trio from having their turn.
                self._first_new = next(self._order)
                while self._is_due(now):
                    if self._heap[0][1]:
                        heapq.heappop(self._heap)[3]._fire()
                        continue
                    with self._batch():
                        while self._is_due(now) and not self._heap[0][1]:
                            heapq.heappop(self._heap)[3]._fire()
        finally:
            self._alive = False
            self._sleep = None
