"""The conformance suite: the stories that each store must pass, as one class of tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import trio.testing

from .again import AgainStories
from .bench import REAL_PAUSE, MakeStore, plain_tests
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
from .work import WorkStories

MakeClock: TypeAlias = Callable[[], trio.testing.MockClock]
STORIES: Final = (
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
)


def durable_store_suite(
    make: MakeStore, *, clock: MakeClock | None = None, pause: float | None = None
) -> type:
    """Return a class of tests for a store, to be collected under a name that begins with ``Test``::

        TestMyStore = durable_store_suite(lambda folder: MyStore(folder / "jobs"))

    Its methods are plain functions without arguments that run Trio; they need no plugin. Each test
    makes new stores, over data of its own.

    Args:
      make: makes a store that is not open, from the path of a folder that only one test uses. All
        stores of one folder have the same data.
      clock: makes the clock of a test, if the store's time is Trio's clock. Without it, tests
        wait in real time.
      pause: seconds of real time in which a notice of one instance reaches another. By default
        0.05 without a ``clock``, and 0 with it.
    """

    suite: dict[str, Any] = {
        "make_store": staticmethod(make),
        "make_clock": staticmethod(clock if clock is not None else lambda: None),
        "real_pause": pause if pause is not None else 0.0 if clock is not None else REAL_PAUSE,
    }
    for cls in STORIES:
        suite |= plain_tests(cls)
    return type("DurableStoreSuite", (), suite)
