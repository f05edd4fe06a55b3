"""Rate limits in a store: the meters of the core, over marks that the store keeps.

A start takes the costs of its job, by unit: one request if the job names none. The marks are kept
in the store's time. So they hold for all instances, and survive restarts.

A quota may get other limits by a deploy, and during the deploy some instances have the old limits,
others the new. So its days and months count in one scale, whether the limit is an int or a
`Decimal`; and what a limit of an hour or longer counts is noted for the day and the month, too,
though no limit may count these now (`noted_beside`). A limit that is edited reads what was spent.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import quote

from ... import RateLimit
from ..._config.exact import NEVER_USED, rounded_up
from ..._limits.meters import Bucket, Marks
from ..._limits.rate import REQUESTS, meter_of
from ..._limits.rate import Meter as Arithmetic
from .._contract.amounts import (
    MAX_DECIMAL,
    MILLION,
    Costs,
    amount_of,
    counted_in,
    from_data,
    scale_of,
)
from .._contract.records import SHORTEST_BUDGET, GroupLimit, LaneLimit, QuotaLevel, is_budget
from .job_record import JobRecord
from .tables import GRANTS, Tables

_KEY: Final = re.compile(
    r"(lane|quota) (.*) (?:gcra|sliding|day|month)(?:-decimal)? \d+(?: \S+)?", re.DOTALL
)
_CALENDARS: Final[tuple[Literal["day", "month"], ...]] = ("day", "month")
ONE_REQUEST: Final[Costs] = MappingProxyType({REQUESTS: 1})


class Meter(NamedTuple):
    """One rate limit of a store. All its amounts are whole numbers, and so are its marks' sums."""

    key: str
    """The name under which the store keeps the marks."""
    unit: str
    """The unit that is counted."""
    of: Arithmetic
    """The arithmetic, in parts."""
    scale: int
    """How many parts are 1."""
    notes: bool = False
    """Whether it refuses nothing: it keeps what an edited limit would read."""


def meters_of(tables: Tables, owner: str, limits: Sequence[RateLimit]) -> list[Meter]:
    """Return the meters of the limits of ``lane NAME``, ``group NAME`` or ``quota NAME``."""
    # numbered by kind, so that a changed limit inherits the marks of its own kind
    meters, numbers = [], Counter[str]()
    of_quota = owner.startswith("quota ")
    beside = noted_beside(tuple(limits)) if of_quota else ()
    for place, limit in enumerate((*limits, *beside)):
        # quoted, so that `names_of` finds the name of the lane, whatever blanks it has
        unit = "" if limit.unit == REQUESTS else f" {quote(limit.unit, safe='')}"
        kind, scale = kind_of(limit, of_quota=of_quota)
        key = f"{owner} {kind} {numbers[kind + unit]}{unit}"
        of = meter_of(limit, scale, tables.ahead_of_wall)
        meters.append(Meter(key, limit.unit, of, scale, notes=place >= len(limits)))
        numbers[kind + unit] += 1
    return meters


@lru_cache(maxsize=1_000)  # each call of a quota asks
def noted_beside(limits: tuple[RateLimit, ...]) -> tuple[RateLimit, ...]:
    """Return the limits of days and months for which a quota notes its spends, besides its own."""
    zones: dict[str, str] = {}
    for limit in sorted(limits, key=lambda limit: limit.algorithm != "calendar"):
        if limit.longest >= SHORTEST_BUDGET:
            zones.setdefault(limit.unit, limit.timezone)
    have = {(limit.unit, limit.per) for limit in limits}
    large = {limit.unit for limit in limits if limit.limit > MAX_DECIMAL}
    return tuple(
        RateLimit(Decimal(1), per=per, unit=unit, timezone=zone)
        for unit, zone in zones.items()
        for per in _CALENDARS
        if (unit, per) not in have and unit not in large
    )


def kind_of(limit: RateLimit, *, of_quota: bool) -> tuple[str, int]:
    """Return the kind of a limit, and how many parts are 1 in its marks.

    One that has other parts is of another kind: it does not inherit the marks of the former.
    """
    scale = scale_of(limit.limit)
    if of_quota and limit.algorithm == "calendar" and limit.limit <= MAX_DECIMAL:
        scale = MILLION
    kind = limit.per if isinstance(limit.per, str) else limit.algorithm
    return (kind if scale == 1 else f"{kind}-decimal"), scale


def names_of(kind: str, keys: Iterable[str]) -> set[str]:
    """Return the names of a kind, ``lane`` or ``quota``, of which meters have some of the keys."""
    return {found[2] for found in map(_KEY.fullmatch, keys) if found and found[1] == kind}


def costs_of(job: JobRecord) -> Costs:
    """Return what a start of a job takes from rates, by unit."""
    return ONE_REQUEST if job.cost is None else from_data(json.loads(job.cost))


def _window_end(meter: Meter, now: float) -> float:
    if isinstance(meter.of, Bucket):
        return rounded_up(Fraction(now) + meter.of.per)
    return meter.of.refilled_at(meter.of.charged([], 0, now)[0])


def charge(tables: Tables, meters: Iterable[Meter], costs: Costs, now: float) -> None:
    """Charge all meters with the costs of a start."""
    meters = list(meters)
    for meter, amount in _counted(meters, costs):
        charged = meter.of.charged(tables.marks(meter.key), amount, now)
        _put(tables, meter, *charged, _kept_until(tables, meters, meter))


def give_back(
    tables: Tables, meters: Iterable[Meter], costs: Costs, now: float, charged_at: float
) -> None:
    """Lessen the charge that was made at a time."""
    meters = list(meters)
    for meter, amount in _counted(meters, costs):
        marks = tables.marks(meter.key)
        lessened = meter.of.given_back(marks, amount, now, charged_at)
        if lessened is not marks:
            until = _kept_until(tables, meters, meter)
            _put(tables, meter, lessened, len(lessened), until)


def ready_at(tables: Tables, meters: Iterable[Meter], costs: Costs, now: float = math.inf) -> float:
    """Return the earliest time at which all meters admit a start of these costs.

    What was granted counts only with the time ``now``: no grants are for lanes and groups.
    """
    times = (
        meter.of.ready_at(tables.marks(meter.key), amount - granted(tables, meter, now))
        for meter, amount in _counted(meters, costs)
        if not meter.notes
    )
    return max(times, default=NEVER_USED)


def granted(tables: Tables, meter: Meter, now: float) -> int:
    """Return how much more than its limit a meter admits now."""
    grants = tables.of(GRANTS).get(meter.key, ())
    return sum(amount for until, amount in grants if until > now)


def grant(tables: Tables, meters: Iterable[Meter], amounts: Costs, now: float) -> None:
    """Let meters admit more than their limits, until their windows end."""
    for key, grants in list(tables.of(GRANTS).items()):  # those that are over are forgotten
        tables.put(GRANTS, key, tuple(one for one in grants if one[0] > now) or None)
    limiting = [meter for meter in meters if not meter.notes]
    for meter, amount in _counted(limiting, amounts):
        before = tables.of(GRANTS).get(meter.key, ())
        tables.put(GRANTS, meter.key, (*before, (_window_end(meter, now), amount)))


def newly_low(
    tables: Tables, owner: str, limits: Sequence[RateLimit], now: float
) -> tuple[str, ...]:
    """Return the units of the budgets of which 80 % are used, and were not before in the window."""
    found = []
    for meter, limit in zip(meters_of(tables, owner, limits), limits, strict=False):
        key = f"low {meter.key}"
        if is_budget(limit) and _level(tables, meter, limit, now).is_low:
            marks = tables.marks(key)
            if not marks or marks[-1][0] <= now:
                until = _window_end(meter, now)
                tables.put_marks(key, [(until, 1)], 1, until)
                found.append(meter.unit)
    return tuple(found)


def replace(tables: Tables, old: Sequence[Meter], new: Sequence[Meter], now: float) -> None:
    """Replace meters; the new meters inherit the marks of the old."""
    before = {meter.key: meter for meter in old}
    for meter in new:
        past = before.pop(meter.key, None)
        if past is not None:
            marks = meter.of.continued(tables.marks(meter.key), past.of, now)
            tables.forget_marks(meter.key)
            if marks:
                if isinstance(meter.of, Bucket):  # its sums must be whole
                    marks = [meter.of.whole(marks)]
                _put(tables, meter, marks, len(marks))
    for key in before:
        tables.forget_marks(key)


def _counted(meters: Iterable[Meter], costs: Costs) -> Iterator[tuple[Meter, int]]:
    for meter in meters:
        amount = costs.get(meter.unit)
        if amount:
            yield meter, counted_in(amount, meter.scale)


def _kept_until(tables: Tables, meters: Iterable[Meter], noted: Meter) -> float:
    """Return for how long a meter is kept at most: one that notes, as long as the limits."""
    if not noted.notes:
        return math.inf
    limiting = (meter for meter in meters if meter.unit == noted.unit and not meter.notes)
    return max(meter.of.refilled_at(tables.marks(meter.key)) for meter in limiting)


def _put(
    tables: Tables, meter: Meter, added: Marks, keep: int, kept_until: float = math.inf
) -> None:
    marks = tables.marks(meter.key)
    # when it is replenished follows from the first and the last mark alone
    ends = [marks[0], *added] if keep > len(added) else added
    tables.put_marks(meter.key, added, keep, min(meter.of.refilled_at(ends), kept_until))


def levels(
    tables: Tables, owner: str, limits: Sequence[RateLimit], now: float
) -> tuple[QuotaLevel, ...]:
    """Return how much is in use of each limit of an owner, as `meters_of` names it."""
    pairs = zip(meters_of(tables, owner, limits), limits, strict=False)  # those that note are last
    return tuple(_level(tables, meter, limit, now) for meter, limit in pairs)


def _level(tables: Tables, meter: Meter, limit: RateLimit, now: float) -> QuotaLevel:
    marks = tables.marks(meter.key)
    used = math.ceil(meter.of.used(marks, now))
    full_at = meter.of.refilled_at(marks) if used else None
    return level_of(limit, used, full_at, granted(tables, meter, now), meter.scale)


def level_of(
    limit: RateLimit, used: int, full_at: float | None, granted: int, scale: int
) -> QuotaLevel:
    """Return the level of a limit, of parts of which ``scale`` are 1: as the limit counts."""
    if scale_of(limit.limit) < scale:  # what others have spent may have other parts
        return QuotaLevel(limit, -(-used // scale), full_at, granted // scale)
    return QuotaLevel(limit, amount_of(used, scale), full_at, amount_of(granted, scale))


def to_json(rates: Sequence[RateLimit]) -> str:
    """Return the JSON text of rate limits, as a store keeps it."""
    return json.dumps(
        [
            [rate.limit, rate.per, rate.algorithm, rate.burst, rate.unit, rate.timezone]
            for rate in rates
        ],
        default=str,  # a Decimal
    )


def from_json(text: str) -> tuple[RateLimit, ...]:
    """Return the rate limits of a text from `to_json`."""
    return tuple(
        RateLimit(
            *(_read(limit), per),
            algorithm=algorithm,
            burst=_read(burst),
            unit=unit,
            timezone=timezone,
        )
        for limit, per, algorithm, burst, unit, timezone in json.loads(text)
    )


def _read(amount: Any) -> Any:
    return Decimal(amount) if isinstance(amount, str) else amount


def check_groups(lanes: Mapping[str, LaneLimit], groups: Mapping[str, GroupLimit]) -> None:
    """Check that groups fit lanes.

    Raises:
      ValueError: for a member that is not a lane, or is in two groups.
    """
    group_of: dict[str, str] = {}
    for name, group in groups.items():
        for member in group.members:
            if member not in lanes:
                raise ValueError(f"group {name!r} has the member {member!r}, which is not a lane")
            if member in group_of:
                raise ValueError(
                    f"lane {member!r} is in two groups: {group_of[member]!r}, {name!r}"
                )
            group_of[member] = name
