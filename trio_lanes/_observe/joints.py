"""Joints: the places at which a feature hangs on the loop, without a line of its own in there.

A joint is a tuple of functions, mostly bound methods, which is empty when nobody listens; a job
then pays for the look at a tuple, and for no call. The loop calls them in the middle of an act, so
a joint may note, and may not act: what it wants done goes through `Scheduler.after_act`, as every
effect does. Nor may it raise: an error that leaves a joint breaks the act off, and ends the lanes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, final

from .._actors.actor import Served
from .._actors.job import AnyJob
from .._actors.state import JobState

if TYPE_CHECKING:
    from typing import TypeAlias

    Note: TypeAlias = Callable[[AnyJob], object]

JOINTS: Final = (
    "on_asked",
    "on_placed",
    "on_started",
    "on_ended",
    "on_settled",
    "on_served",
    "on_batch_end",
)


@final
class Joints:
    """The joints of one `open_lanes`, in the order in which a job meets them."""

    __slots__ = JOINTS

    on_asked: tuple[Note, ...]
    """``job``, which is not accepted yet and has no number, waits for room."""
    on_placed: tuple[Note, ...]
    """``job`` was accepted, and has its place or its delay; or its session has forwarded it."""
    on_started: tuple[Note, ...]
    """``job`` has its slots for the first time; its body has not begun."""
    on_ended: tuple[Callable[[AnyJob, JobState, BaseException | None], object], ...]
    """``job``, whose body has ended or is given up, is about to settle as ``state`` with ``error``.
    It still has its slots, and nothing of that is done: so this is the one joint from which users'
    functions may be called."""
    on_settled: tuple[Note, ...]
    """``job`` has its outcome, and its lanes and its context for the last time."""
    on_served: tuple[Callable[[Served], object], ...]
    """``actor``, or a group, has done what it can do now. It may be gone before the batch ends."""
    on_batch_end: tuple[Callable[[float], object], ...]
    """Nothing is left to do at ``now``. If a joint leaves an effect, the batch goes on, and this
    comes again."""

    def __init__(self) -> None:
        for name in JOINTS:
            setattr(self, name, ())

    def add(self, listener: object) -> None:
        """Have what ``listener`` has under the names of joints called, once if added twice."""
        for name in JOINTS:
            called, notes = getattr(listener, name, None), getattr(self, name)
            if called is not None and called not in notes:
                setattr(self, name, (*notes, called))

    def remove(self, listener: object) -> None:
        """Have nothing of ``listener`` called any more; it need not have been added."""
        for name in JOINTS:
            called, notes = getattr(listener, name, None), getattr(self, name)
            setattr(self, name, tuple(note for note in notes if note != called))
