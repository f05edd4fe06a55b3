"""The conformance suite: what must hold on every store, as stories that any test runner can run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import trio.testing

from ._accept import AcceptStories
from ._bench import MakeStore
from ._control import ControlStories
from ._crash import CrashStories
from ._limits import LimitStories
from ._work import WorkStories

MakeClock: TypeAlias = Callable[[], trio.testing.MockClock]


def durable_store_suite(make: MakeStore, *, clock: MakeClock | None = None) -> type:
    """A class of tests for a store, to be collected under a name that begins with ``Test``::

        TestMyStore = durable_store_suite(lambda folder: MyStore(folder / "jobs"))

    Its methods are plain functions without arguments, each of which runs Trio; they need no
    plugin. Each makes its stores anew, over data of its own.

    Args:
      make: given a folder that only one test uses, makes a store that is not open. Those made for
        the same folder have the same data.
      clock: makes the clock that a test runs on, if the store's time is Trio's. Without it, tests
        wait in real time.
    """

    class DurableStoreSuite(AcceptStories, WorkStories, ControlStories, LimitStories, CrashStories):
        make_store = staticmethod(make)
        make_clock = staticmethod(clock if clock is not None else _real_time)

    return DurableStoreSuite


def _real_time() -> None:
    return None
