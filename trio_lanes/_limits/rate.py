"""Rate limits: how much may start in how much time, and what a job takes of it.

Pure: no function here reads a clock. The caller passes the time, and gets the time from which on a
job may start. The caller also makes the charge, so that it can take rates and tokens in one step.
The arithmetic of one limit is in `meters`.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, final

import attrs

from .._config import check as _check
from .._config.exact import NEVER_USED, Amount, Exact, bucket_shape, exact, rounded, rounded_up
from .meters import Bucket, Mark, SlidingWindow, put

if TYPE_CHECKING:
    from .calendar import CalendarWindow  # a job without such a limit does not load it

logger: Final = logging.getLogger("trio_lanes")

REQUESTS: Final = "requests"

_PERIODS: Final[Mapping[float, str]] = {
    1: "a second",
    60: "a minute",
    3600: "an hour",
    86400: "a day",
}

Meter: TypeAlias = "SlidingWindow | Bucket | CalendarWindow"

_LOOK_AGAIN: Final = 300.0
"""Seconds after which a wait for a day or month is looked at again: a machine may have slept."""
_LONGEST: Final = {"day": 25 * 3600, "month": 31 * 86400 + 3600}
_GREATEST: Final = 300  # digits of an amount, before and behind the point: all are kept


def _amount(field: str, value: Any) -> Amount:
    if isinstance(value, Decimal):
        if not value.is_finite():
            raise ValueError(f"{field} must be finite, got {value!r}")
        if value and not -_GREATEST < value.adjusted() < _GREATEST:
            raise ValueError(f"{field} must have at most {_GREATEST} digits, got {value!r}")
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{field} must be a number, not {value!r}")
    if not -math.inf < value < math.inf:  # also true of NaN
        raise ValueError(f"{field} must be finite, got {value!r}")
    return value


def _positive(field: str, value: Any) -> Amount:
    if _amount(field, value) <= 0:
        raise ValueError(f"{field} must be above 0, got {value!r}")
    return value  # type: ignore[no-any-return]  # _amount() has checked it


def _per(field: str, value: Any) -> object:
    if isinstance(value, str):
        if value in _LONGEST:
            return value
    elif not isinstance(value, Decimal):
        return _positive(field, value)
    raise TypeError(f'{field} must be a number of seconds, "day" or "month", not {value!r}')


def _unit(field: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{field} must be a string, not {value!r}")
    if not value.strip():
        raise ValueError(f"{field} must not be blank, got {value!r}")
    return value


def _check_algorithm(value: Any, per: float | str) -> None:
    known = ("calendar",) if isinstance(per, str) else ("gcra", "sliding")
    words = f"{' or '.join(map(repr, known))} with per={per!r}"
    if not isinstance(value, str):
        raise TypeError(f"algorithm must be {words}, not {value!r}")
    if value not in known:
        raise ValueError(f"algorithm must be {words}, got {value!r}")


def _usual_algorithm(limit: RateLimit) -> str:
    return "calendar" if isinstance(limit.per, str) else "gcra"


def _counted_as(limit: Amount) -> tuple[Amount, bool]:
    return limit, isinstance(limit, Decimal)  # a store counts both otherwise


@attrs.frozen
class RateLimit:
    """At most ``limit`` of a unit in any ``per`` seconds, or in each calendar day or month.

    ::

        LaneConfig(
            concurrency=8,
            rate=[
                RateLimit(500),
                RateLimit(90_000, unit="tokens", burst=9_000),
                RateLimit(Decimal("2.50"), per="day", unit="usd", timezone="Europe/Berlin"),
            ],
        )

    ``"gcra"`` spreads starts evenly after a burst. For whole numbers, ``burst`` and what refills
    in ``per`` seconds are together ``limit + 1``, with which no half-open window ``[t, t + per)``
    holds more than ``limit``, as long as no cost is above ``burst``. A larger cost waits until
    nothing is used and leaves a debt, so that a window may then hold ``cost - burst`` more.

    ``"sliding"`` is exact, and admits each cost that fits: no half-open window ``[t, t + per)``
    holds more than ``limit``, for every cost up to ``limit``. A larger cost is admitted when the
    window is empty. The meter remembers each start until it has left the window.

    ``"calendar"`` is the algorithm with ``per="day"`` or ``"month"``: the whole limit may start
    from local midnight, or midnight of the first, until the next. What is above it waits until
    then; a larger cost starts first of its day or month. Days and months follow the wall clock.

    The arithmetic is exact: numbers are taken as they are written, so that ten times 0.1 is 1.

    Raises:
      TypeError, ValueError: for a bad value, naming the field and the value.
    """

    limit: Amount = attrs.field(validator=_check.field(_positive), eq=_counted_as)
    """The amount that may start in ``per`` seconds, above 0. A store counts in whole numbers, or,
    if this is a `decimal.Decimal`, in millionths."""
    per: float | Literal["day", "month"] = attrs.field(default=60.0, validator=_check.field(_per))
    """The length of time in seconds, above 0; or ``"day"`` or ``"month"``, those of a calendar."""
    unit: str = attrs.field(default=REQUESTS, kw_only=True, validator=_check.field(_unit))
    """The unit that is counted. The ``cost`` of a job says how much of it the job takes."""
    burst: Amount | None = attrs.field(
        default=None, kw_only=True, validator=attrs.validators.optional(_check.field(_positive))
    )
    """How much may start at once after a pause, for ``"gcra"``: up to ``limit``. None means a tenth
    of the limit, but at least 1 if the limit is at least 1."""
    algorithm: Literal["gcra", "sliding", "calendar"] = attrs.field(
        default=attrs.Factory(_usual_algorithm, takes_self=True), kw_only=True
    )
    """The algorithm by which the limit is kept."""
    timezone: str = attrs.field(default="UTC", kw_only=True)
    """Where the days and months of a calendar begin: a name of the time zone database."""

    def __repr__(self) -> str:
        names = [a.name for a in attrs.fields(RateLimit) if a.name != "timezone"]
        if self.algorithm == "calendar":
            names.append("timezone")
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        refill = "" if self.refill is None else f", refill {self.refill:.15g}"
        return f"RateLimit({fields}{refill})"

    @property
    def in_words(self) -> str:
        """The limit for people: ``100 a minute``, ``5 tokens in 10 s``, ``9 usd a day in UTC``."""
        limit = self.limit if isinstance(self.limit, Decimal) else rounded(exact(self.limit))
        amount = f"{limit:,.15g}" + ("" if self.unit == REQUESTS else f" {self.unit}")
        if isinstance(self.per, str):
            return f"{amount} a {self.per} in {self.timezone}"
        return f"{amount} {_PERIODS.get(self.per, f'in {rounded(exact(self.per)):,.15g} s')}"

    @property
    def longest(self) -> float:
        """The most seconds for which it can hold back what is within the limit."""
        return _LONGEST[self.per] if isinstance(self.per, str) else self.per

    @property
    def refill(self) -> float | None:
        """What refills in ``per`` seconds, for ``"gcra"``: the less, the larger the burst."""
        if isinstance(self.per, str) or self.algorithm != "gcra":
            return None
        return rounded_up(bucket_shape(self.limit, self.per, self.burst)[1] * Fraction(self.per))

    def __attrs_post_init__(self) -> None:
        _check_algorithm(self.algorithm, self.per)
        if self.timezone != "UTC":
            _check.time_zone("timezone", self.timezone)
            if self.algorithm != "calendar":
                raise ValueError(f'timezone is for per="day" or "month", got {self.timezone!r}')
        if self.burst is not None:
            if self.algorithm != "gcra":
                raise ValueError(f"burst is for gcra, not {self.algorithm}, got {self.burst!r}")
            if exact(self.burst) > exact(self.limit):
                raise ValueError(
                    f"burst must not be above limit, {self.limit!r}, got {self.burst!r}"
                )
        if self.refill is not None and 2 * self.refill < exact(self.limit):
            _warn_of_burst(self)


@lru_cache(maxsize=1_000)  # a store makes the same limit anew for each of its calls
def _warn_of_burst(rate: RateLimit) -> None:
    logger.warning(
        "%r: after its burst, only %.15g of %s refill in %s s; a smaller burst, or "
        '"sliding", lets more start',
        *(rate, rate.refill, rate.limit, rate.per),
    )


def rate_limits(value: Any) -> tuple[RateLimit, ...]:
    """Return the limits that ``rate=value`` means.

    Raises:
      TypeError: if it is neither a `RateLimit` nor a sequence of these.
    """
    if isinstance(value, RateLimit):
        return (value,)
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise TypeError(f"rate must be a RateLimit or a sequence of RateLimits, not {value!r}")
    for limit in value:
        if not isinstance(limit, RateLimit):
            raise TypeError(f"rate must hold only RateLimits, not {limit!r}")
    return tuple(value)


ONE_REQUEST: Final[Mapping[str, Amount]] = MappingProxyType({REQUESTS: 1})
"""The costs of a job that was submitted without ``cost``."""


def costs_of(cost: Amount | Mapping[str, Amount]) -> Mapping[str, Amount]:
    """Return the amounts of ``cost`` by unit: a number is requests; requests default to 1.

    Raises:
      TypeError: if it is neither a number nor a mapping of strings to numbers.
      ValueError: for a blank unit, and an amount that is negative or not finite.
    """
    if not isinstance(cost, Mapping):
        requests = _cost("cost", cost)
        return ONE_REQUEST if requests == 1 else MappingProxyType({REQUESTS: requests})
    costs: dict[str, Amount] = {REQUESTS: 1}
    for unit, amount in cost.items():
        _unit("a unit of cost", unit)
        costs[unit] = _cost(f"cost of {unit!r}", amount)
    return MappingProxyType(costs)


def _cost(field: str, value: Any) -> Amount:
    if _amount(field, value) < 0:
        raise ValueError(f"{field} must not be negative, got {value!r}")
    return value  # type: ignore[no-any-return]  # _amount() has checked it


def check_units(costs: Mapping[str, Amount], known: Collection[str]) -> None:
    """Refuse costs in a unit that no limit counts; requests need not be counted.

    Raises:
      ValueError: it names the unit, and the units that are counted.
    """
    for unit in costs:
        if unit not in known and unit != REQUESTS:
            counted = ", ".join(map(repr, sorted(known))) or "none"
            raise ValueError(
                f"cost names {unit!r}, which no rate limit counts (counted: {counted})"
            )


@final
class Rates:
    """All rate limits of one lane, session or group, and their meters.

    Several limits may count the same unit. A unit that the costs of a job do not name costs the job
    nothing, and a job without costs never waits.
    """

    __slots__ = ("_follows", "_meters", "units")

    def __init__(self, limits: Sequence[RateLimit] = ()) -> None:
        # Two equal limits admit the same as one.
        self._meters = tuple(_Used(limit, meter_of(limit)) for limit in dict.fromkeys(limits))
        self.units = frozenset(limit.unit for limit in limits)
        """The units that are counted."""
        self._follows = any(isinstance(limit.per, str) for limit in limits)  # the wall clock

    @classmethod
    def of(cls, rate: RateLimit | Sequence[RateLimit]) -> Rates:
        """Return the rates that ``rate=`` means, unused."""
        return cls(rate_limits(rate)) if rate else NO_RATES

    def __bool__(self) -> bool:
        return bool(self._meters)

    @property
    def limits(self) -> tuple[RateLimit, ...]:
        """All limits, in the order given."""
        return tuple(used.limit for used in self._meters)

    def ready_at(self, costs: Mapping[str, Amount], now: float) -> float:
        """Return the earliest time at which all limits admit ``costs``.

        A time that is not after ``now`` means now. The result changes only by a charge or a
        correction, and that of a calendar if the wall clock is set.
        """
        ready = NEVER_USED
        for used in self._meters:
            amount = costs.get(used.limit.unit)
            if amount:
                ready = max(ready, used.meter.ready_at(used.marks, amount))
        return ready

    def look_at(self, when: float, now: float) -> float:
        """Return when to look at a job that waits for ``when``: before that for a calendar."""
        if not self._follows:
            return when
        return min(when, (now // _LOOK_AGAIN + 1) * _LOOK_AGAIN)  # the same for many calls

    def forecast(self, jobs: Iterable[Mapping[str, Amount]], now: float) -> tuple[float, RateLimit]:
        """Return when the last of ``jobs``, by their costs, may start if each starts as soon as the
        limits admit it, and the limit that holds it longest. There must be a limit."""
        copies = [_Used(used.limit, used.meter, used.marks.copy()) for used in self._meters]
        longest = copies[0].limit
        for costs in jobs:
            charged = [used for used in copies if costs.get(used.limit.unit)]
            for used in charged:
                ready = used.meter.ready_at(used.marks, costs[used.limit.unit])
                if ready > now:
                    now, longest = ready, used.limit
            for used in charged:
                put(used.marks, *used.meter.charged(used.marks, costs[used.limit.unit], now))
                used.marks = used.meter.shortened(used.marks)
        return now, longest

    def charge(self, costs: Mapping[str, Amount], now: float) -> None:
        """Charge ``costs`` to all limits, whether or not they admit it."""
        for used in self._meters:
            amount = costs.get(used.limit.unit)
            if amount:
                put(used.marks, *used.meter.charged(used.marks, amount, now))

    def correct(self, differences: Mapping[str, Exact], now: float, charged_at: float) -> None:
        """Correct the charge that was made at ``charged_at`` by ``differences``.

        A negative difference gives back at most the amount that the charge still occupies. A
        positive difference is charged now, and may be a debt: later jobs wait for it.
        """
        for used in self._meters:
            difference = differences.get(used.limit.unit, 0)
            if difference > 0:
                put(used.marks, *used.meter.charged(used.marks, difference, now))
            elif difference < 0:
                marks = used.meter.given_back(used.marks, -difference, now, charged_at)
                used.marks = deque(marks)

    def refilled_at(self, now: float) -> float:
        """Return since or from when all meters are fully replenished."""
        times = (used.meter.refilled_at(used.marks) for used in self._meters)
        return max(times, default=NEVER_USED)

    def left(self, now: float) -> Iterator[tuple[RateLimit, float, float]]:
        """Yield each limit, its remaining amount, and when it is fully replenished."""
        for used in self._meters:
            meter, marks = used.meter, used.marks
            yield used.limit, meter.left(marks, now), meter.refilled_at(marks)

    def reconfigured(self, limits: Sequence[RateLimit], now: float) -> Rates:
        """Return the rates of ``limits`` with the past of this object, which is not used any more.

        A new limit continues an old limit of the same unit and algorithm: an equal limit, else the
        limit with the longest window, or for ``"gcra"`` with the nearest ``per``. A limit of a
        calendar continues one with the same ``per``.
        """
        rates = Rates(limits)
        for used in rates._meters:
            used.marks = self._continued(used, now)
        return rates

    def _continued(self, new: _Used, now: float) -> deque[Mark]:
        pasts: list[_Used] = []
        for old in self._meters:
            if old.limit == new.limit:
                return old.marks
            if _kind(old.limit) == _kind(new.limit):
                pasts.append(old)
        if not pasts:
            return deque()
        # of several with the same sort of calendar, the first
        past = max(pasts, key=lambda old: old.limit.longest)
        if new.limit.algorithm == "gcra":
            past = min(pasts, key=lambda old: abs(old.limit.longest - new.limit.longest))
        return deque(new.meter.continued(past.marks, past.meter, now))


@attrs.define(eq=False)
class _Used:
    limit: RateLimit
    meter: Meter
    marks: deque[Mark] = attrs.field(factory=deque)


def _kind(limit: RateLimit) -> tuple[str, str, str]:
    return limit.unit, limit.algorithm, limit.per if isinstance(limit.per, str) else ""


def meter_of(limit: RateLimit, scale: int = 1, ahead: Callable[[], float] | None = None) -> Meter:
    """Return the meter of a limit, for amounts in parts of which ``scale`` are 1.

    ``ahead`` says by how much the clock is ahead of Unix time, if that is not Trio's clock.
    """
    most = exact(limit.limit) * scale
    if isinstance(limit.per, str):
        from .calendar import CalendarWindow, ahead_of_wall

        return CalendarWindow(most, limit.per, limit.timezone, ahead or ahead_of_wall)
    if limit.algorithm == "sliding":
        return SlidingWindow(most, limit.per)
    return Bucket(limit.limit, limit.per, limit.burst, scale)


NO_RATES: Final = Rates()  # it has no meters, so that all lanes without rates can share it
