"""Pauses of lanes and templates as they begin and end: by a call, a configuration, or a timer."""

from __future__ import annotations

from functools import partial
from typing import Protocol

from .._actors.actor import Actor, Pausable
from .._observe.announcer import Announcer
from .._observe.hooks import Hooks
from .._queue.timers import Timers


class Pauses(Protocol):
    """What pauses ask of the loop."""

    @property
    def timers(self) -> Timers: ...
    @property
    def hooks(self) -> Hooks: ...
    @property
    def announcer(self) -> Announcer: ...


def pause_until(scheduler: Pauses, pausable: Pausable, until: float) -> None:
    """Pause ``pausable`` until ``until``, in place of its timed pause; set the timer."""
    call = partial(_is_over, scheduler, pausable)
    pausable.pause_until(until, scheduler.timers.call_at(until, call, alone=False))


def _is_over(scheduler: Pauses, pausable: Pausable) -> None:
    pausable.end_timed_pause()
    update_pause(scheduler, pausable)


def update_pause(scheduler: Pauses, pausable: Pausable) -> None:
    """Set whether ``pausable`` is paused, as its pauses say, and call hooks of a change."""
    if pausable.update_paused() and isinstance(pausable, Actor):  # a template is no lane
        hooks = scheduler.hooks.lane_paused if pausable.paused else scheduler.hooks.lane_resumed
        scheduler.announcer.tell_of_lane(hooks, pausable)
