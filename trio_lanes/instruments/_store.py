"""The figures of a store: one table of them, and the task that reads them.

A task in the nursery of the lanes reads the store every some seconds; a scrape, in whatever thread,
gets what was read last. What could not be read keeps its figures, and `STORE_READ_AGE` grows.

The labels are bounded: the lanes and quotas of a template have its name, and of schedules the
oldest have theirs.
"""

from __future__ import annotations

import logging
import math
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeAlias, final

import trio
from trio.abc import Clock

from .._config import check as _check
from .._config.names import label_of
from ..durable import (
    DurableLanes,
    DurableState,
    QuotaStatistics,
    StoreError,
)
from ..durable._lanes.causes import lives
from ..durable.store import NAMES_LISTED
from ._figures import Figure

_logger: Final = logging.getLogger("trio_lanes")

Samples: TypeAlias = Mapping[tuple[str, ...], float]
"""The values of a figure, by its labels."""
_Read: TypeAlias = Mapping[Figure, Samples]

STORE_WAITING: Final = Figure("store.waiting", "level", "Jobs that are queued and do not run.")
STORE_OLDEST_WAIT: Final = Figure(
    "store.oldest_wait", "level", "How long the first waiting job has waited.", unit="s"
)
STORE_RUNNING: Final = Figure("store.running", "level", "Jobs that run, on all instances.")
STORE_SLOTS: Final = Figure("store.slots", "level", "How many jobs may run at once.")
STORE_PARKED: Final = Figure("store.parked", "level", "Jobs that are delayed or back off.")
STORE_DUE: Final = Figure("store.due", "level", "Parked jobs and schedules whose time has come.")
STORE_DEAD: Final = Figure("store.dead", "level", "Jobs that are dead letters now.")
STORE_ENDED: Final = Figure(
    "store.ended", "count", "Jobs that have ended, ever.", ("lane", "outcome")
)
STORE_UNHANDLED: Final = Figure(
    "store.unhandled", "level", "Jobs whose handler no live instance has.", ()
)
STORE_INSTANCES: Final = Figure(
    "store.instances", "level", "Instances that live and run jobs.", (), "{instance}"
)
STORE_OLDEST_BEAT: Final = Figure(
    "store.oldest_beat", "level", "For how long an instance has been silent, at most.", (), "s"
)
STORE_READ_AGE: Final = Figure(
    "store.read_age", "level", "How long ago all of these figures were read.", (), "s"
)
STORE_QUOTA_LEFT: Final = Figure(
    "store.quota_left", "level", "What is left of a quota, of 1.", ("quota",), "1"
)
STORE_SKIPPED: Final = Figure(
    *("store.schedule_skipped", "count", "Due times of which no job was submitted."),
    labels=("schedule",),
    unit="{time}",
)
STORE_PROBLEMS: Final = Figure(
    *("store.problems", "level", "What `DurableLanes.health` finds wrong now."),
    labels=("kind",),
    unit="{problem}",
)

STORE_FIGURES: Final = (
    *(
        STORE_WAITING,
        STORE_OLDEST_WAIT,
        STORE_RUNNING,
        STORE_SLOTS,
        STORE_PARKED,
        STORE_DUE,
        STORE_DEAD,
        STORE_ENDED,
    ),
    *(
        STORE_UNHANDLED,
        STORE_INSTANCES,
        STORE_OLDEST_BEAT,
        STORE_READ_AGE,
        STORE_QUOTA_LEFT,
        STORE_SKIPPED,
        STORE_PROBLEMS,
    ),
)
_FIELDS: Final = {
    STORE_WAITING: "waiting",
    STORE_RUNNING: "running",
    STORE_SLOTS: "concurrency",
    STORE_PARKED: "parked",
    STORE_DUE: "due",
    STORE_DEAD: "dead",
}
"""By figure, the field of the statistics of a lane."""
READ_EVERY: Final = 15.0
"""Seconds between two reads."""
_ENDS: Final = (
    *(DurableState.SUCCEEDED, DurableState.FAILED, DurableState.DEAD),
    *(DurableState.CANCELLED, DurableState.EXPIRED),
)
OTHER: Final = "other"
_SCHEDULES_NAMED: Final = 200
"""How many schedules have a label of their own."""
_JOBS_LOOKED_AT: Final = 10
"""Of how many waiting jobs the longest wait is looked for: a job that backed off is not behind."""


@final
class StoreReads:
    """What was read of a store last.

    Raises:
      TypeError, ValueError: for a bad argument.
    """

    def __init__(self, lanes: DurableLanes, every: float = READ_EVERY) -> None:
        if not isinstance(lanes, DurableLanes):
            raise TypeError(f"lanes must be DurableLanes, not {lanes!r}")
        self._every: Final = _check.positive_seconds("every", every)
        self._found: _Read = {}
        self._clock: Clock | None = None  # of the lanes; None: they do not read
        self._read_at = 0.0
        self._failed = False

    async def keep(self, lanes: DurableLanes) -> None:
        """Read for ever: a task of the lanes."""
        self._clock, self._read_at = trio.lowlevel.current_clock(), trio.current_time()
        try:
            while True:
                await self._read(lanes)
                await trio.sleep(self._every)
        finally:
            self._clock, self._found = None, {}

    async def _read(self, lanes: DurableLanes) -> None:
        failure, found = None, dict(self._found)
        for read in _READS:  # each by itself: a store that is away still has its problem
            try:
                found |= _kept(await read(lanes), self._found)
            except Exception as error:  # figures end no application
                failure = failure or error
        self._found = found
        if failure is None:
            self._read_at = trio.current_time()
        elif not self._failed:
            known = isinstance(failure, StoreError)
            text = "figures of the store could not be read, and stay as they are: %r"
            _logger.warning(text, failure, exc_info=None if known else failure)
        self._failed = failure is not None

    def samples(self, figure: Figure) -> Samples:
        """Return the values of a figure, from any thread."""
        clock = self._clock
        if figure is STORE_READ_AGE and clock is not None:
            return {(): max(0.0, clock.current_time() - self._read_at)}
        return self._found.get(figure, {})


def _kept(found: _Read, before: _Read) -> _Read:
    """Return what was found, with what must not go or fall because something else went.

    A kind of problem that is over is 0. The schedules without a label are fewer when one of those
    with a label was removed; a counter that falls would count as one that began anew.
    """
    more = dict(found)
    if STORE_PROBLEMS in found:
        more[STORE_PROBLEMS] = {
            **dict.fromkeys(before.get(STORE_PROBLEMS, {}), 0.0),
            **found[STORE_PROBLEMS],
        }
    if (OTHER,) in found.get(STORE_SKIPPED, {}):
        most = max(found[STORE_SKIPPED][OTHER,], before.get(STORE_SKIPPED, {}).get((OTHER,), 0.0))
        more[STORE_SKIPPED] = {**found[STORE_SKIPPED], (OTHER,): most}
    return more


# ---- what is read


async def _of_lanes(lanes: DurableLanes) -> _Read:
    now, limits = await lanes.statistics(), await lanes.limits()
    most = sorted(now.lanes, key=lambda name: -now.lanes[name].waiting)[:NAMES_LISTED]
    waits = await _waits(lanes, [name for name in most if now.lanes[name].waiting])
    zeros: dict[tuple[str, ...], float] = {(name,): 0.0 for name in limits}
    found = {figure: defaultdict(float, zeros) for figure in (STORE_OLDEST_WAIT, *_FIELDS)}
    for name, lane in now.lanes.items():
        label = label_of(name, limits) or name
        for figure, field in _FIELDS.items():
            found[figure][label,] += getattr(lane, field)
        longest = found[STORE_OLDEST_WAIT]
        longest[label,] = max(longest[label,], waits.get(name, 0.0))
    # from 0 on, or the first end would be no increase
    ended: dict[tuple[str, ...], float] = {
        (label, state.value): 0.0 for label in limits for state in _ENDS
    }
    for of, ends in now.ended.items():
        ended.update({(of, outcome): float(number) for outcome, number in ends.items()})
    left: dict[tuple[str, ...], float] = {}
    for quota in now.quotas:
        known_as = (quota.template or quota.name,)
        left[known_as] = min(_left(quota), left.get(known_as, 1.0))
    bounded = {label: slots for label, slots in found[STORE_SLOTS].items() if slots < math.inf}
    return {
        **found,
        STORE_SLOTS: bounded,
        STORE_ENDED: ended,
        STORE_QUOTA_LEFT: left,
        STORE_UNHANDLED: {(): float(now.unhandled)},
    }


def _left(quota: QuotaStatistics) -> float:
    """Return what is left of the scarcest limit of a quota, from 0 to 1."""
    shares = [1.0]
    for level in quota.levels:
        left, used = float(level.left), float(level.used)
        shares.append(max(0.0, left) / (left + used) if left + used > 0 else 0.0)
    return min(shares)


async def _waits(lanes: DurableLanes, waiting: Sequence[str]) -> dict[str, float]:
    """Return the longest wait by lane: of some lanes, and of the first jobs of the store."""
    found: defaultdict[str, float] = defaultdict(float)
    for name in (None, *waiting):
        for job in await lanes.jobs(name, states=[DurableState.WAITING], limit=_JOBS_LOOKED_AT):
            found[job.lane] = max(found[job.lane], job.waited)
    return found


async def _of_instances(lanes: DurableLanes) -> _Read:
    found = await lanes.instances()
    living = sum(lives(one) is not False for one in found)
    silent: Samples = {(): max(one.silent for one in found)} if found else {}
    return {STORE_INSTANCES: {(): float(living)}, STORE_OLDEST_BEAT: silent}


async def _of_schedules(lanes: DurableLanes) -> _Read:
    found: Counter[tuple[str, ...]] = Counter()
    for at, one in enumerate(sorted(await lanes.schedules(), key=lambda one: one.id)):
        found[one.name if at < _SCHEDULES_NAMED else OTHER,] += one.skipped
    return {STORE_SKIPPED: found}


async def _of_problems(lanes: DurableLanes) -> _Read:
    return {STORE_PROBLEMS: Counter((one.kind,) for one in await lanes.health())}


_READS: Final[tuple[Callable[[DurableLanes], Awaitable[_Read]], ...]] = (
    *(_of_lanes, _of_instances, _of_schedules, _of_problems),
)
