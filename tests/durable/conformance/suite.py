"""The stories that each store must pass, one by one and as a class of tests."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import trio

from .again import AgainStories
from .bench import Bench, MakeClock, MakeStore
from .blockers import BlockerStories
from .children import ChildrenStories
from .control import ControlStories
from .crash import CrashStories
from .fair import FairStories
from .keys import KeyStories
from .limits import LimitStories
from .locks import LockStories
from .names import NameStories
from .quotas import QuotaStories
from .schedules import ScheduleStories
from .talk import TalkStories
from .tickets import TicketStories
from .verdicts import VerdictStories
from .work import WorkStories

REAL_PAUSE: Final = 0.05
PATIENCE: Final = 180.0
"""Real seconds; far longer than any story takes on a busy machine."""

STORIES: Final[dict[str, type[Bench]]] = {
    name: stories
    for stories in (
        AgainStories,
        WorkStories,
        KeyStories,
        FairStories,
        ControlStories,
        LimitStories,
        BlockerStories,
        ChildrenStories,
        CrashStories,
        LockStories,
        NameStories,
        QuotaStories,
        ScheduleStories,
        TalkStories,
        TicketStories,
        VerdictStories,
    )
    for name in vars(stories)
    if name.startswith("test_")
}
"""The class of each story, by its name."""


def play(
    name: str,
    make: MakeStore,
    *,
    clock: MakeClock | None = None,
    pause: float | None = None,
    patience: float = PATIENCE,
) -> list[str]:
    """Play a story over new stores; return what it lacks, if it is not played for want of it.

    Args:
      make: makes its stores, from the path of a folder that only this story uses.
      clock: makes the clock, if the time of the stores is Trio's. Without it, time is real.
      pause: seconds of real time in which a notice of one instance reaches another. By default
        0.05 without a ``clock``, and 0 with it.
      patience: real seconds after which a story hangs.
    """
    if pause is None:
        pause = REAL_PAUSE if clock is None else 0.0
    time = None if clock is None else clock()
    with tempfile.TemporaryDirectory() as folder:
        bench = STORIES[name](make, Path(folder), time, pause)
        return trio.run(_in_time, bench, getattr(bench, name), patience, clock=time)


async def _in_time(bench: Bench, story: Callable[[], Any], patience: float) -> list[str]:
    if lacking := bench.lacks(story):
        return lacking
    with trio.CancelScope() as scope:
        token = trio.lowlevel.current_trio_token()
        # in real seconds, since the clock of a story that hangs may stand still
        watch = threading.Timer(patience, token.run_sync_soon, [scope.cancel])
        watch.start()
        try:
            await story()
        finally:
            watch.cancel()
    assert not scope.cancelled_caught, f"hung after {bench.log}"
    return []


def durable_store_suite(
    make: MakeStore, *, clock: MakeClock | None = None, pause: float | None = None
) -> type:
    """Return a class of tests, to be collected under a name that begins with ``Test``.

    They are plain functions that run Trio. The arguments are those of `play`.
    """

    def test_of(name: str) -> Callable[[Any], None]:
        def test(self: Any) -> None:
            play(name, make, clock=clock, pause=pause)

        return test

    return type("DurableStoreSuite", (), {name: test_of(name) for name in STORIES})
