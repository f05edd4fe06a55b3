"""`DurableSchedule`: when jobs are submitted by the clock. Its due times follow from it alone.

Those of ``cron`` are Debian's, by `cronsim`. On a day on which the clock of the zone changes, a
fixed time that is left out comes right after the change, and one that comes twice comes once; a
line whose minute or hour begins with ``*`` follows the clock.
"""

from __future__ import annotations

import math
import zlib
from datetime import UTC, datetime
from typing import Final, Literal, final, get_args

import attrs

from ..._config import check as _check
from ..._config.extras import needs_extra
from .._contract.records import SubmittedJob
from .names import checked_name

MISSED_AFTER: Final = 60.0
"""A due time that no instance has looked at for so many seconds is missed."""
MOST_AT_ONCE: Final = 1_000
"""How many due times of a schedule one act takes at most; half of them may be made up."""
_MICROS: Final = 1_000_000  # times are whole microseconds, which every store keeps exact
Overlap = Literal["skip", "queue", "cancel"]


@final
@attrs.frozen(kw_only=True)
class DurableSchedule:
    """A schedule, as `DurableLanes.schedules` lists it. All times are Unix times."""

    name: str
    job: SubmittedJob
    """What each due time submits; its ``name`` is the handler's."""
    cron: str | None = None
    every: float | None = None
    timezone: str = "UTC"
    overlap: Overlap = "skip"
    catch_up: int = 1
    jitter: float = 0.0
    id: int = 0
    next: float | None = None
    """The next due time; None: it is paused."""
    last: float | None = None
    """The last due time of which a job was submitted."""
    last_id: int | None = None
    """The number of that job."""
    skipped: int = 0
    """Of how many due times none was submitted."""
    version: int = 0
    """A number of the store, which is another each time that the schedule is set."""
    skipped_in_row: int = 0
    """How many times in a row, up to the last, the job of a due time was skipped, since that of
    ``last_id`` had not ended."""
    refused: str | None = None
    """Why the store has refused the job of its last due time; None: it has not."""

    @property
    def paused(self) -> bool:
        """Whether it waits for `DurableLanes.resume`."""
        return self.next is None

    @property
    def times(self) -> tuple[object, ...]:
        """What its due times follow from."""
        return self.cron, self.every, self.timezone

    def after(self, time: float) -> float:
        """Return the first due time after a time.

        Raises:
          ImportError: if the extra ``cron`` is needed, and is not here.
          ValueError: if none comes, or the cron line or the time zone cannot be read here.
        """
        if self.every is not None:
            step = round(self.every * _MICROS)
            return (round(time * _MICROS) // step + 1) * step / _MICROS
        with needs_extra("a schedule with cron", "cron"):
            from cronsim import CronSim, CronSimError
        assert self.cron is not None
        moment = datetime.fromtimestamp(time, _check.time_zone("timezone", self.timezone))
        try:
            return next(CronSim(self.cron, moment)).timestamp()
        except CronSimError as error:
            raise ValueError(f"cron cannot be read: {error}; got {self.cron!r}") from None
        except StopIteration:
            raise ValueError(f"cron must come at some time, got {self.cron!r}") from None

    def upcoming(self, count: int = 5) -> list[float]:
        """Return the next due times; none if it is paused. It raises as `after` does."""
        times = [] if self.next is None else [self.next]
        while 0 < len(times) < count:
            times.append(self.after(times[-1]))
        return times[:count]


def checked_schedule(of: DurableSchedule) -> DurableSchedule:
    """Return a schedule; raise the error of a bad field, or that of `DurableSchedule.after`."""
    checked_name("name", of.name)
    checked_name("name with a time", key_at(of.name, 0.0))
    _check.optional_text("cron", of.cron)
    _check.time_zone("timezone", of.timezone)
    if (of.cron is None) is (of.every is None):
        raise ValueError(f"give one of cron and every, got cron={of.cron!r}, every={of.every!r}")
    if of.every is not None and not 1e-6 <= _check.finite_seconds("every", of.every) <= 1e10:
        raise ValueError(f"every must be from 1e-06 to 1e+10 seconds, got {of.every!r}")
    if of.cron is None and of.timezone != "UTC":
        raise ValueError(f"timezone is for cron, got {of.timezone!r} with every")
    if of.cron is not None and len(of.cron.split()) != 5:
        raise ValueError(f"cron must have five fields, got {of.cron!r}")
    if of.overlap not in get_args(Overlap):
        raise ValueError(f"overlap must be 'skip', 'queue' or 'cancel', not {of.overlap!r}")
    if _check.natural("catch_up", of.catch_up) > MOST_AT_ONCE // 2:
        raise ValueError(f"catch_up must be at most {MOST_AT_ONCE // 2}, got {of.catch_up!r}")
    _check.finite_seconds("jitter", of.jitter)
    if of.job.expires is not None and of.job.expires <= of.jitter:  # a job could never begin
        raise ValueError(
            f"expires must be longer than the jitter of {of.jitter!r} s, got {of.job.expires!r}"
        )
    of.after(0.0)
    return of


def key_at(name: str, time: float) -> str:
    """Return the key of the job of a due time."""
    return f"{name}@{datetime.fromtimestamp(time, UTC).replace(tzinfo=None).isoformat()}Z"


def job_at(of: DurableSchedule, time: float, now: float) -> SubmittedJob:
    """Return the job of a due time. Its part of the jitter follows from its key alone."""
    key = key_at(of.name, time)
    run_at = time + of.jitter * zlib.crc32(key.encode()) / 2**32 if of.jitter else None
    delay = 0.0 if run_at is None else max(0.0, run_at - now)
    return attrs.evolve(of.job, key=key, run_at=run_at, delay=delay)


def take_due(of: DurableSchedule, now: float) -> tuple[list[float], int, float]:
    """Return the due times that are submitted now, how many are skipped, and the next due time.

    Of the missed times the last ``catch_up`` are submitted, and of the others all; if jobs may not
    overlap, only the last of them.
    """
    time, skipped, times = of.next, 0, list[float]()
    assert time is not None
    if of.last is not None and time <= of.last:
        time = of.after(of.last)  # the clock was set back before it was changed
    if of.every is not None:
        skipped = max(0, math.floor((now - time) / of.every) + 1 - MOST_AT_ONCE)
        time = of.after(time + (skipped - 0.5) * of.every) if skipped else time
    while time <= now and len(times) < MOST_AT_ONCE:
        times.append(time)
        time = of.after(time)
    if time <= now:  # there are more, after a long time: the next act looks again at the last
        again = len(times) - of.catch_up
        return [], skipped + again, [*times, time][again]
    missed = sum(one < now - MISSED_AFTER for one in times)
    chosen = times[max(0, missed - of.catch_up) :]
    if of.overlap != "queue":
        chosen = chosen[-1:]
    return chosen, skipped + len(times) - len(chosen), time
