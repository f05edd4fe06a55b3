"""The rate limits of a store, beside those of the core that they are to agree with."""

import sqlite3
from contextlib import closing
from decimal import Decimal
from typing import Any, Final, TypeAlias

import hypothesis.strategies as st
from hypothesis import example, given, settings

from trio_lanes import LaneGroup, RateLimit
from trio_lanes._limits.rate import Rates
from trio_lanes.durable._contract.records import GroupLimit
from trio_lanes.durable._memory.tables import MemoryTables
from trio_lanes.durable._rules.rates import (
    ONE_REQUEST,
    charge,
    from_json,
    give_back,
    meters_of,
    ready_at,
    replace,
    to_json,
)
from trio_lanes.durable._sqlite import schema
from trio_lanes.durable._sqlite.tables import SqliteTables
from trio_lanes.durable._wire.codec import decode, encode

AMOUNTS = st.sampled_from([0.5, 1, 1.5, 2, 3, 4.5, 7, 10, 30])
PERIODS: Any = st.sampled_from(["day", "month"])
PERS = st.sampled_from([0.1, 1.0, 3.0, 7.7, 60.0])


COSTS = st.fixed_dictionaries(
    {"requests": st.sampled_from([0, 1, 1, 2, 4, 8, 40])},
    optional={
        "tokens": st.sampled_from([0, 1, 3, 9, 40]),
        "usd": st.sampled_from([0, 1, *map(Decimal, ["0", "0.01", "0.25", "1.5", "40.000001"])]),
    },
)


@st.composite
def limits(draw: st.DrawFn, units: tuple[str, ...] = ("requests", "tokens", "usd")) -> RateLimit:
    limit, per, unit = draw(AMOUNTS), draw(PERS), draw(st.sampled_from(units))
    if unit == "usd":  # in millionths
        limit = Decimal(limit)
    kind = draw(st.sampled_from(["gcra", "sliding", "calendar"]))
    if kind == "calendar":
        zone = draw(st.sampled_from(["UTC", "Europe/Berlin", "Africa/Casablanca"]))
        return RateLimit(limit, draw(PERIODS), unit=unit, timezone=zone)
    if kind == "sliding":
        return RateLimit(limit, per, algorithm="sliding", unit=unit)
    burst = draw(st.none() | st.just(limit) | AMOUNTS.filter(lambda burst: burst <= limit))
    return RateLimit(limit, per, burst=burst, unit=unit)


STARTS = st.lists(
    st.tuples(
        # after how much of the first window; None: as soon as it may
        st.none() | st.sampled_from([0.0, 0.1, 0.5, 1.0]) | st.floats(0, 3),
        COSTS,
        # which charge is corrected then: how many are later, and by how much
        st.none() | st.tuples(st.integers(0, 3), st.sampled_from([1, 2, 40])),
    ),
    min_size=10,
    max_size=40,
)
Starts: TypeAlias = list[tuple[float | None, dict[str, Any], tuple[int, int] | None]]
RUNS_OVER: Final = [RateLimit(11, per=10, burst=10)]
STARTS_THAT_RUN_OVER: Final[Starts] = [
    (None, {"requests": 10}, None),
    (4.5, {"requests": 9}, (1, 40)),  # of the first, one is still in use
    (None, {"requests": 9}, None),
]


@given(st.lists(limits(), min_size=1, max_size=3), STARTS)
@example(RUNS_OVER, STARTS_THAT_RUN_OVER)
@settings(deadline=None)
def test_a_store_starts_a_job_exactly_when_the_core_would(
    rates: list[RateLimit], starts: Starts
) -> None:
    tables, core = tables_ahead(), with_store_time(Rates(rates))
    meters = meters_of(tables, "lane main", core.limits)
    now, charged = 1e9, list[tuple[float, dict[str, Any]]]()
    for wait, costs, correction in starts:
        expected = core.ready_at(costs, now)
        assert max(ready_at(tables, meters, costs), now) == max(expected, now)
        now = max(now, expected) if wait is None else now + wait * rates[0].longest
        if expected <= now:
            core.charge(costs, now)
            charge(tables, meters, costs, now)
            charged.append((now, {**costs}))
        if correction is not None and charged:
            at, less = less_of(charged, *correction)
            core.correct({unit: -amount for unit, amount in less.items()}, now, at)
            give_back(tables, meters, less, now, at)
        for meter in meters:
            assert all(type(total) is int for _, total in tables.marks(meter.key))


AHEAD: Final = -700_000_000.5
"""Seconds by which the time of the stores here is ahead of Unix time."""


def tables_ahead() -> MemoryTables:
    tables = MemoryTables()
    tables.ahead_of_wall = lambda: AHEAD  # type: ignore[method-assign]
    return tables


def with_store_time(core: Rates) -> Rates:
    """Rates of the core whose calendars are those of `tables_ahead`."""
    for used in core._meters:
        if used.limit.algorithm == "calendar":
            used.meter._ahead = lambda: AHEAD  # type: ignore[union-attr]
    return core


def less_of(
    charged: list[tuple[float, dict[str, Any]]], later: int, amount: int
) -> tuple[float, dict[str, Any]]:
    """Lessen one of the charges; return when it was made, and by how much it is less now."""
    at, costs = charged[max(0, len(charged) - 1 - later)]
    less = {unit: min(amount, taken) for unit, taken in costs.items()}
    for unit, by in less.items():
        costs[unit] -= by
    return at, less


@given(
    st.integers(1, 5),
    st.lists(st.tuples(st.floats(0, 3), st.integers(1, 9)), max_size=60),
)
@settings(deadline=None)
def test_a_store_keeps_one_mark_more_than_the_window_has_starts(
    limit: int, starts: list[tuple[float, int]]
) -> None:
    tables, now = MemoryTables(), 1e9
    (meter,) = meters_of(tables, "lane main", (sliding(limit),))
    for wait, cost in starts:
        now = max(now + wait, ready_at(tables, [meter], {"requests": cost}))
        charge(tables, [meter], {"requests": cost}, now)
        in_window = [mark for mark in tables.marks(meter.key) if mark[0] + 2.0 > now]
        assert len(tables.marks(meter.key)) <= len(in_window) + 1 <= limit + 1


def sliding(limit: int) -> RateLimit:
    return RateLimit(limit, per=2.0, algorithm="sliding")


@given(limits(("requests",)), limits(("requests",)), st.lists(st.floats(0, 5), max_size=20))
@settings(deadline=None)
def test_a_limit_that_replaces_another_goes_on_with_its_past(
    first: RateLimit, second: RateLimit, waits: list[float]
) -> None:
    tables, core, now = tables_ahead(), with_store_time(Rates([first])), 1e9
    old = meters_of(tables, "lane main", (first,))
    new = meters_of(tables, "lane main", (second,))
    for wait in waits:
        now += wait
        core.charge(ONE_REQUEST, now)
        charge(tables, old, ONE_REQUEST, now)
    now += 0.25
    replace(tables, old, new, now)
    ours = max(ready_at(tables, new, ONE_REQUEST), now)
    changed = with_store_time(core.reconfigured([second], now))
    theirs = max(changed.ready_at(ONE_REQUEST, now), now)
    if first.algorithm == "sliding" and second.longest > first.longest:
        assert ours <= theirs  # the core may remember a start that has left the old window
    else:
        assert abs(ours - theirs) < 1e-5
    replace(tables, new, [], now)
    assert ready_at(tables, new, ONE_REQUEST) < now


def test_a_quota_notes_what_it_counts_of_an_hour_or_longer_for_the_day_and_the_month() -> None:
    tables = tables_ahead()
    short, long = RateLimit(9, per=60.0), RateLimit(9, per=3600.0, unit="usd")
    month = RateLimit(9, per="month", unit="tokens", timezone="Europe/Berlin")
    large = RateLimit(10**10, per="day", unit="bytes")
    meters = meters_of(tables, "quota q", (short, long, month, large))
    assert [(one.key, one.scale) for one in meters if one.notes] == [
        ("quota q day-decimal 0 tokens", 10**6),
        ("quota q day-decimal 0 usd", 10**6),
        ("quota q month-decimal 0 usd", 10**6),
    ]
    assert [one.key for one in meters if not one.notes] == [
        *("quota q gcra 0", "quota q gcra 0 usd"),
        *("quota q month-decimal 0 tokens", "quota q day 0 bytes"),
    ]
    assert not any(one.notes for one in meters_of(tables, "lane q", (long, month)))


def test_a_note_is_kept_for_as_long_as_what_limits() -> None:
    tables, now = tables_ahead(), 1e9
    day = RateLimit(9, per="day", unit="usd")
    meters = meters_of(tables, "quota q", (day,))
    assert len(meters) == 2
    charge(tables, meters, {"usd": 5}, now)
    give_back(tables, meters, {"usd": 1}, now, now)
    tables.forget_unused(now)
    assert len(tables.meters()) == 2
    tables.forget_unused(now + 86_400)
    assert not tables.meters()


def test_limits_are_written_down_and_read_back() -> None:
    rates: tuple[RateLimit, ...] = (
        *(RateLimit(5, 1.5, algorithm="sliding"), RateLimit(7, burst=0.5, unit="tokens")),
        RateLimit(Decimal("2.50"), per="day", unit="usd", timezone="Europe/Berlin"),
    )
    assert from_json(to_json(rates)) == rates
    for group in (GroupLimit(("a", "b"), 3, {"a": 1}, rates), GroupLimit(())):
        assert decode(encode(group)) == group
    assert LaneGroup(["a"]).concurrency == GroupLimit(("a",)).concurrency


def test_the_marks_of_one_transaction_are_read_back_as_if_each_had_its_own() -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        schema.fill(connection)
        tables = SqliteTables(connection, "of a test")
        tables.begin()
        for added in ([(1.0, 1), (2.0, 2)], [(3.0, 3)], [(4.0, 4)]):
            tables.put_marks("a meter", added, 3, 9.0)
        tables.commit(0.0)
        kept = [(2.0, 2), (3.0, 3), (4.0, 4)]
        assert list(tables.marks("a meter")) == kept
        assert list(SqliteTables(connection, "anew").marks("a meter")) == kept
