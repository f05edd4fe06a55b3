"""The verbs of schedules, over acts and questions of a store."""

from __future__ import annotations

import attrs

from .._contract.act import new_ticket
from .._contract.protocol import NAMES_LISTED, Store
from .._options.schedule import DurableSchedule
from ..acts.schedules import PauseSchedule, PutSchedule, SchedulesOf


async def put(store: Store, schedule: DurableSchedule) -> None:
    """Set a schedule; its first due time is after what the store has fired."""
    now, found = await store.look(SchedulesOf(schedule.name, None))
    last = max((one.last or now for one in found), default=now)
    first = attrs.evolve(schedule, next=schedule.after(max(now, last)))
    await store.do(PutSchedule(first), new_ticket())


async def set_paused(store: Store, name: str, paused: bool) -> None:
    """Pause a schedule, or resume it from its next due time on.

    Raises:
      LookupError: if it does not exist.
    """
    done = False
    while not done:  # its due times may be others by now
        now, found = await store.look(SchedulesOf(name, None))
        if not found:
            raise LookupError(f"there is no schedule {name!r}")
        due = None if paused else found[0].after(now)
        done = await store.do(PauseSchedule(name, found[0].version, due), new_ticket())


async def listed(store: Store, limit: int) -> list[DurableSchedule]:
    """Return the oldest schedules, by name."""
    found: list[DurableSchedule] = []
    while True:
        _, page = await store.look(SchedulesOf(None, found[-1].id if found else 0))
        found += page
        if len(page) < NAMES_LISTED or len(found) >= limit:
            return sorted(found[: max(0, limit)], key=lambda one: one.name)


async def unix_time(store: Store) -> float:
    """Return the Unix time by which the store's schedules fall due."""
    now, _ = await store.look(SchedulesOf("", None))
    return now
