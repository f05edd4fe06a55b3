"""What timers may do, watched in any test: nothing polls, or wakes when there is nothing to do.

* A lane, a session or a group sets no timer at or before the time of the batch in which it is set,
  or that time would never pass. What ends a pause or a wait may be set for the time of the batch,
  where the application asked for 0 seconds.
* In one instant no timer goes off twice: by what it calls, since it may be another object.
* Timers of lanes, sessions and groups go off no more often than acts happen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import pytest
import trio

from trio_lanes._flow.loop import Scheduler
from trio_lanes._queue.timers import Timer, Timers

FREE = 3  # timers that may go off before anything has happened


class Counts:
    """Of the lanes of one `open_lanes`."""

    def __init__(self) -> None:
        self.acts = 0
        self.fired = 0  # timers of lanes, sessions and groups
        self.instant = -1.0
        self.now: dict[object, int] = {}  # {what is called: how often in this instant}


def what_is_called(call: Any) -> object:
    if isinstance(call, partial):
        return (call.func, *call.args)
    return call


@contextmanager
def watched_timers() -> Iterator[list[str]]:
    """Watch all timers; yields the faults that were found, and raises at the end if there are."""
    faults: list[str] = []
    counts: WeakKeyDictionary[object, Counts] = WeakKeyDictionary()
    call_at = Timers.call_at

    def of(owner: object) -> Counts:
        found = counts.get(owner)
        if found is None:
            found = counts[owner] = Counts()
        return found

    def watched_call_at(
        timers: Timers, when: float, call: Callable[[], None], *, alone: bool = True
    ) -> Timer:
        now = trio.current_time()
        if when < now or (when == now and getattr(call, "__name__", "") == "touch"):
            faults.append(f"{call} was set for {when}, at {now}")
        mine = of(getattr(timers._batch, "__self__", timers))
        asked = when <= now  # the application has asked for 0 seconds, perhaps several times

        def fire() -> None:
            moment, key = trio.current_time(), what_is_called(call)
            if mine.instant != moment:
                mine.instant = moment
                mine.now.clear()
            mine.now[key] = mine.now.get(key, 0) + (not asked)
            if mine.now[key] > 1:
                faults.append(f"{call} went off {mine.now[key]} times at {moment}")
            if not alone:
                mine.fired += 1
                if mine.fired > mine.acts + FREE:
                    faults.append(f"{mine.fired} timers went off, and {mine.acts} acts happened")
            call()

        return call_at(timers, when, fire, alone=alone)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Timers, "call_at", watched_call_at)
        for name in ("submit", "begin", "_start", "_finish_running"):
            patch.setattr(Scheduler, name, _counting(getattr(Scheduler, name), of))
        yield faults
    assert not faults, faults[:5]


def _counting(method: Callable[..., Any], of: Callable[[object], Counts]) -> Callable[..., Any]:
    def counted(scheduler: Scheduler, *args: Any) -> Any:
        of(scheduler).acts += 1
        return method(scheduler, *args)

    return counted
