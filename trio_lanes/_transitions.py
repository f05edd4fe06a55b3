"""Transitions: how anything changes, and how what can act then acts.

A transition changes what it must and touches the actors that may act now. When the outermost one
ends, it serves: each touched actor takes its step, which may touch others, until none is left.
Serving is a loop, so a million jobs that start each other are no recursion; and what a hook does
inside a transition only touches, and is served when that transition is over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import trio

from ._actor import Actor, Steps
from ._instrument import Hooks
from ._lane import LaneActor
from ._timers import Timer, Timers
from ._watch import Watches

if TYPE_CHECKING:
    from ._room import Lines


class Transitions:
    """The loop that serves the lanes of one `open_lanes`, and the clock and tasks of it."""

    lines: Lines  # of those who wait for room

    def __init__(self, nursery: trio.Nursery, hooks: Hooks) -> None:
        self._nursery: Final = nursery
        self._context: Final = copy_context()  # that of the lanes' own tasks
        self._current_time: Final = trio.lowlevel.current_clock().current_time
        self.now = 0.0  # when the present transition began
        self.serving = False  # whether there is one
        self._touched: Final[deque[Steps]] = deque()
        self.hooks: Final = hooks
        self.view: Callable[[Actor], object] = lambda actor: actor  # what hooks are given
        self.timers: Final = Timers(self.spawn)
        self.watches: Final = Watches()
        self.lanes: Final[dict[str, LaneActor]] = {}  # global ones, by name

    def spawn(self, fn: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start a task of the lanes' own."""
        # A copy, since this may be called while the context itself is entered: by a hook of
        # Trio's that is told of a task which is being spawned here.
        self._context.copy().run(self._nursery.start_soon, fn)

    def begin(self) -> bool:
        """Begin a transition; whether it is the outermost, which must `serve` at its end."""
        if self.serving:
            return False
        self.serving = True
        self.now = self._current_time()
        return True

    def touch(self, actor: Steps) -> None:
        """Have ``actor`` take its step before the present transition is over."""
        if not actor.touched:
            actor.touched = True
            self._touched.append(actor)

    def touch_at(self, when: float, actor: Steps, timer: Timer | None) -> Timer:
        """Have ``actor`` take a step at ``when``, instead of when ``timer`` is due."""
        if timer is not None:
            if timer.when == when and timer.is_set:
                return timer
            timer.cancel()
        return self.timers.call_at(when, partial(self._touch_now, actor))

    def _touch_now(self, actor: Steps) -> None:
        outermost = self.begin()
        self.touch(actor)
        if outermost:
            self.serve()

    def serve(self) -> None:
        """End the outermost transition: whatever can act now acts."""
        touched, lines = self._touched, self.lines
        listeners = self.hooks.lane_empty or self.hooks.lane_idle
        while touched or (lines.length and lines.let_in()):
            actor = touched.popleft()
            actor.touched = False
            actor.step()
            if (listeners or lines.length) and isinstance(actor, Actor):
                lines.look_at(actor, self.lanes.values())
                self._tell_of(actor)
        self.serving = False
        if self.watches:
            self.watches.check()

    def _tell_of(self, actor: Actor) -> None:
        """Tell instruments if nothing waits in ``actor`` any more, or nothing runs either."""
        had_waiting, was_busy = actor.told
        waiting, busy = bool(actor.waiting), bool(actor.waiting or actor.active)
        actor.told = waiting, busy
        if had_waiting and not waiting:
            self.hooks.call(self.hooks.lane_empty, self.view(actor))
        if was_busy and not busy:
            self.hooks.call(self.hooks.lane_idle, self.view(actor))

    def rate_limited(self, actor: Actor, until: float) -> None:
        """The head of ``actor`` waits for a rate limit."""
        if self.hooks.lane_rate_limited:
            self.hooks.call(self.hooks.lane_rate_limited, self.view(actor), until)
