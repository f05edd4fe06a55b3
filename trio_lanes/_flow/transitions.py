"""Transitions: how anything changes, and how what can act then acts.

A transition changes what it must and touches the actors that may act now. When the outermost one
ends, it serves: each touched actor takes its step, which may touch others, until none is left.
Serving is a loop, so a million jobs that start each other are no recursion; and what a hook does
inside a transition only touches, and is served when that transition is over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final

import trio

from .._actors.actor import Actor, Steps, Turns
from .._waiting.current import jobs_by_task
from .._instrument import Hooks
from .._actors.job import AnyJob
from .._queue.timers import Timer, Timers
from .._waiting.watch import Watches

if TYPE_CHECKING:
    from .._actors.lane import LaneActor
    from .._waiting.room import Lines


class Transitions:
    """The loop that serves the lanes of one `open_lanes`, and the clock and tasks of it."""

    # An object without slots keeps up to thirty attributes as cheaply; here are more.
    __slots__ = (
        "_changed",
        "_context",
        "_current_time",
        "_nursery",
        "_thread",
        "_token",
        "broken",
        "group_turns",
        "hooks",
        "lane_turns",
        "lanes",
        "lines",
        "now",
        "serving",
        "session_turns",
        "tells",
        "timers",
        "view",
        "watches",
    )

    lines: Lines  # of those who wait for room

    def __init__(self, nursery: trio.Nursery, hooks: Hooks) -> None:
        self._nursery: Final = nursery
        self._context: Final = copy_context()  # that of the lanes' own tasks
        self._current_time: Final = trio.lowlevel.current_clock().current_time
        self._thread: Final = get_ident()  # the only one in which anything may change
        self._token: Final = trio.lowlevel.current_trio_token()
        self.now = 0.0  # when the present transition began
        self.serving = False  # whether there is one
        self.broken: BaseException | None = None  # what was raised in the middle of one
        # Sessions take their steps first: what a lane may start is what they let it have; and so
        # are lanes before groups, which start the best of what the lanes have to offer.
        self.session_turns: Final[Turns] = deque()
        self.lane_turns: Final[Turns] = deque()
        self.group_turns: Final[Turns] = deque()
        self.hooks: Final = hooks
        self.tells: Final = bool(hooks.lane_empty or hooks.lane_idle)
        self._changed: Final[dict[Actor, None]] = {}  # where instruments may have to be told
        self.view: Callable[[Actor], object] = lambda actor: actor  # what hooks are given
        self.timers: Final = Timers(self.spawn, self.transition)
        self.watches: Final = Watches(jobs_by_task().watches)
        self.lanes: Final[dict[str, LaneActor]] = {}  # global ones, by name

    def spawn(self, fn: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start a task of the lanes' own."""
        # A copy, since this may be called while the context itself is entered: by a hook of
        # Trio's that is told of a task which is being spawned here.
        self._context.copy().run(self._nursery.start_soon, fn)

    def begin(self) -> bool:
        """Begin a transition; whether it is the outermost, which must `serve` at its end.

        Raises:
          RuntimeError: in another thread; then nothing has changed.
        """
        if get_ident() != self._thread:  # asked here as well, to spare every job a call
            self.check_thread()
        if self.serving:
            if self.broken is not None:
                self.broke_down(self.broken)
            return False
        self.now = self._current_time()
        self.serving = True
        return True

    def broke_down(self, error: BaseException) -> None:
        """``error`` was raised in the middle of a transition: end the lanes, for it never will.

        It came from a stack that is too deep, from an object of the application that is a key here,
        or from a bug. No actor takes a step any more; better that the lanes end than that they are
        dead. Where the stack is too deep even for this, the next transition does it.
        """
        if self.broken is None:
            self.broken = error
        self._token.run_sync_soon(self._nursery.cancel_scope.cancel, idempotent=True)

    def check_thread(self) -> None:
        """Refuse to change anything in another thread, where it would leave the lanes dead."""
        if get_ident() != self._thread:
            raise RuntimeError("lanes belong to one thread; use Lanes.portal() in others")

    @contextmanager
    def transition(self) -> Iterator[None]:
        """`begin` and, whatever happens, `serve`, for those that are not on every job's way."""
        outermost = self.begin()
        try:
            yield
        finally:
            if outermost:
                self.serve()

    def touch(self, actor: Steps) -> None:
        """Have ``actor`` take its step before the present transition is over."""
        if not actor.touched:
            actor.touched = True
            actor.turns.append(actor)

    def touch_at(self, when: float, actor: Steps, timer: Timer | None) -> Timer:
        """Have ``actor`` take a step at ``when``, instead of when ``timer`` is due."""
        if timer is not None and timer.is_set and timer.when == when:
            return timer
        new = self.timers.call_at(when, partial(self.touch, actor), alone=False)
        if timer is not None:
            timer.cancel()  # last: without any timer, the task that waits for them would end
        return new

    def serve(self) -> None:
        """End the outermost transition: whatever can act now acts."""
        sessions, lanes, groups = self.session_turns, self.lane_turns, self.group_turns
        lines, changed = self.lines, self._changed
        try:
            while True:
                while turns := sessions or lanes or groups:
                    actor = turns.popleft()
                    actor.touched = False
                    actor.step()
                    if lines.length:
                        lines.look_at(actor, self.lanes.values())
                if lines.length and lines.let_in():
                    continue
                if not changed:
                    break
                self._tell_of(next(iter(changed)))
        except BaseException as error:
            self.broke_down(error)
            raise
        self.serving = False
        if self.watches.due:
            self.watches.check()

    def has_changed(self, job: AnyJob) -> None:
        """How much waits or runs has changed in the lanes of ``job``."""
        self._changed[job._lane] = None
        if job._session_lane is not None:
            self._changed[job._session_lane] = None

    def _tell_of(self, actor: Actor) -> None:
        """Tell instruments if nothing waits in ``actor`` any more, or nothing runs either."""
        del self._changed[actor]
        had_waiting, was_busy = actor.told
        waiting, busy = bool(actor.waiting), bool(actor.waiting or actor.active)
        actor.told = waiting, busy
        if had_waiting and not waiting:
            self.hooks.call(self.hooks.lane_empty, self.view(actor))
        if was_busy and not (actor.waiting or actor.active):  # a hook may have submitted
            self.hooks.call(self.hooks.lane_idle, self.view(actor))

    def rate_limited(self, actor: Actor, until: float) -> None:
        """The head of ``actor`` waits for a rate limit."""
        if self.hooks.lane_rate_limited:
            self.hooks.call(self.hooks.lane_rate_limited, self.view(actor), until)
