"""Calendar windows as arithmetic: where days and months begin, and what a window admits."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal, FloatOperation, localcontext
from fractions import Fraction
from typing import Any, Literal
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_lanes._limits.calendar import CalendarWindow, utc_offsets, window_end
from trio_lanes._limits.meters import Mark
from trio_lanes._limits.rate import RateLimit, Rates, costs_of

HOUR = 3600


def unix(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp())


@pytest.mark.parametrize(
    ("zone", "at", "end", "hours"),
    [
        ("UTC", "2026-11-28T00:00:00+00:00", "2026-11-29T00:00:00+00:00", 24),
        ("UTC", "2026-12-31T00:00:00+00:00", "2027-01-01T00:00:00+00:00", 24),
        ("Europe/Berlin", "2026-03-29T00:00:00+01:00", "2026-03-30T00:00:00+02:00", 23),
        ("Europe/Berlin", "2026-10-25T00:00:00+02:00", "2026-10-26T00:00:00+01:00", 25),
        ("Asia/Kathmandu", "2026-11-28T00:00:00+05:45", "2026-11-29T00:00:00+05:45", 24),
        # half an hour
        ("Australia/Lord_Howe", "2026-10-04T00:00:00+10:30", "2026-10-05T00:00:00+11:00", 23.5),
        # midnight is skipped, or comes twice
        ("Asia/Beirut", "2026-03-29T01:00:00+03:00", "2026-03-30T00:00:00+03:00", 23),
        ("America/Havana", "2026-11-01T00:00:00-04:00", "2026-11-02T00:00:00-05:00", 25),
        # a minute of the next day, and then an hour of this one again
        ("America/Goose_Bay", "2010-11-07T00:00:00-03:00", "2010-11-08T00:00:00-04:00", 25),
        # there was no 30 December
        ("Pacific/Apia", "2011-12-29T00:00:00-10:00", "2011-12-31T00:00:00+14:00", 24),
    ],
)
def test_a_day_ends_at_local_midnight(zone: str, at: str, end: str, hours: float) -> None:
    begin, after = unix(at), unix(end)
    assert after - begin == hours * HOUR
    where = ZoneInfo(zone)
    assert window_end(begin - 1, "day", where) == begin
    for second in (begin, begin + 90, begin + 2 * HOUR, after - 1):
        assert window_end(second, "day", where) == after


@pytest.mark.parametrize(
    ("at", "end"),
    [
        ("2026-01-31T23:59:59+01:00", "2026-02-01T00:00:00+01:00"),
        ("2026-02-01T00:00:00+01:00", "2026-03-01T00:00:00+01:00"),
        ("2028-02-29T12:00:00+01:00", "2028-03-01T00:00:00+01:00"),
        ("2026-03-01T00:00:00+01:00", "2026-04-01T00:00:00+02:00"),
        ("2026-12-31T23:59:59+01:00", "2027-01-01T00:00:00+01:00"),
    ],
)
def test_a_month_ends_with_the_midnight_before_the_first(at: str, end: str) -> None:
    assert window_end(unix(at), "month", ZoneInfo("Europe/Berlin")) == unix(end)


@pytest.mark.parametrize("per", ["day", "month"])
@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/Nuuk", "Africa/Casablanca"])
def test_windows_follow_each_other_and_have_the_length_of_days_and_months(
    per: Literal["day", "month"], zone: str
) -> None:
    end = window_end(unix("2025-12-31T00:00:00+00:00"), per, ZoneInfo(zone))
    for _ in range(800 if per == "day" else 60):
        after = window_end(end, per, ZoneInfo(zone))
        assert window_end(after - 1, per, ZoneInfo(zone)) == after
        local = datetime.fromtimestamp(after, ZoneInfo(zone))
        assert (local.hour, local.minute) == (0, 0)
        assert per == "day" or local.day == 1
        if per == "day":
            assert after - end in (23 * HOUR, 24 * HOUR, 25 * HOUR)
        end = after


# ---- what a window admits


class Clock:
    """A clock, and how far it is ahead of Unix time."""

    def __init__(self, ahead: float = 0.0) -> None:
        self.ahead = ahead

    def meter(self, limit: Any, per: Literal["day", "month"] = "day") -> CalendarWindow:
        return CalendarWindow(Fraction(limit), per, "Europe/Berlin", lambda: self.ahead)


def days() -> Iterator[tuple[int, int]]:
    """The windows of March 2026, as times of a clock that is not ahead."""
    begin = unix("2026-03-01T00:00:00+01:00")
    while True:
        end = window_end(begin, "day", ZoneInfo("Europe/Berlin"))
        yield begin, end
        begin = end


AMOUNTS = st.sampled_from([1, 2, Decimal("0.1"), Decimal("0.35"), Decimal("2.5"), 4])


@given(
    st.lists(st.tuples(st.floats(0, 1.5), AMOUNTS, st.booleans()), max_size=40),
    st.sampled_from([3, Decimal("2.5")]),
    st.sampled_from([0.0, -123.456, 1.7e9 + 0.1]),
)
def test_a_day_holds_no_more_than_its_limit_and_all_of_it(
    traffic: list[tuple[float, Any, bool]], limit: Any, ahead: float
) -> None:
    meter, marks, windows = Clock(ahead).meter(limit), list[Mark](), days()
    begin, end = next(windows)
    held, now = Fraction(0), begin + ahead + 1
    for gap, amount, corrected in traffic:
        now += gap * 86_400
        while now >= end + Fraction(ahead):
            (begin, end), held = next(windows), Fraction(0)
        ready = meter.ready_at(marks, amount)
        assert meter.used(marks, now) == held
        if held == 0 or held + Fraction(amount) <= limit:
            assert ready <= now
        else:
            assert ready >= end + Fraction(ahead) > float(ready) - 1e-6
            assert meter.refilled_at(marks) == ready
            now, (begin, end), held = ready, next(windows), Fraction(0)
        marks, keep = meter.charged(marks, amount, now)
        assert keep == len(marks) == 1
        held += Fraction(amount)
        assert meter.left(marks, now) == float(Fraction(limit) - held)
        if corrected:
            marks = list(meter.given_back(marks, Decimal("0.05"), now, now))
            held -= Fraction(1, 20)


def test_only_the_charges_of_this_window_are_given_back() -> None:
    meter = Clock().meter(5)
    midnight = unix("2026-03-02T00:00:00+01:00")
    marks, _ = meter.charged([], 3, midnight - 1)
    assert meter.given_back(marks, 2, midnight, midnight - 1) is marks  # it is over
    marks, _ = meter.charged(marks, 4, midnight + 1)
    assert meter.used(marks, midnight + 2) == 4
    assert meter.given_back(marks, 2, midnight + 2, midnight - 1) is marks
    assert meter.given_back(marks, 9, midnight + 2, midnight + 1) == [(marks[0][0], 0)]
    assert meter.given_back([], 9, midnight + 2, midnight + 1) == []


def test_a_clock_that_is_set_back_opens_no_window_twice() -> None:
    clock = Clock()
    meter = clock.meter(5)
    midnight = unix("2026-03-02T00:00:00+01:00")
    marks, _ = meter.charged([], 4, midnight + 1)
    clock.ahead = 10.0  # it is the day before again
    assert meter.ready_at(marks, 2) == midnight + 86_400 + 10
    marks, _ = meter.charged(marks, 1, midnight + 3)
    assert marks == [(midnight + 86_400, 5)]
    clock.ahead = 0.0
    assert meter.used(marks, midnight + 20) == 5


def test_a_limit_that_replaces_one_of_the_same_calendar_goes_on_with_its_past() -> None:
    day, month = RateLimit(3, per="day"), RateLimit(9, per="month")
    old, now = Rates([day, month]), 0.0
    for meter in old._meters:
        meter.meter._ahead = lambda: -1.77e9  # type: ignore[union-attr]
    old.charge({"requests": 2}, now)
    new = old.reconfigured([RateLimit(4, per="day"), RateLimit(10, 60)], now)
    for meter in new._meters[:1]:
        meter.meter._ahead = lambda: -1.77e9  # type: ignore[union-attr]
    assert [left for _, left, _ in new.left(now)] == [2, 1]
    assert next(iter(old.reconfigured([month], now)._meters)).marks[0][1] == 2


# ---- what may be said


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"per": "week"}, TypeError, "per .*'week'"),
        ({"per": Decimal(60)}, TypeError, "per .*60"),
        ({"timezone": "Europe/Berln"}, ValueError, "timezone .*'Europe/Berln'"),
        ({"timezone": "Europe"}, ValueError, "timezone .*'Europe'"),
        ({"timezone": ""}, ValueError, "timezone .*''"),
        ({"timezone": "../UTC"}, ValueError, "timezone .*UTC"),
        ({"timezone": "\0"}, ValueError, "timezone .*x00"),
        ({"timezone": None}, TypeError, "timezone .*None"),
        ({"per": 60, "timezone": "Europe/Berlin"}, ValueError, "timezone .*'Europe/Berlin'"),
        ({"algorithm": "sliding"}, ValueError, "algorithm .*'calendar'.*'day'.*'sliding'"),
        ({"per": 60, "algorithm": "calendar"}, ValueError, "algorithm .*'gcra'.*'calendar'"),
        ({"burst": 1}, ValueError, "burst .*calendar.* 1"),
    ],
)
def test_a_bad_calendar_is_refused_by_field_and_value(
    options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words) as caught:
        RateLimit(5, **{"per": "day", **options})
    assert type(caught.value) is error


def test_a_calendar_limit_says_what_it_is() -> None:
    limit = RateLimit(Decimal("2.50"), per="day", unit="usd", timezone="Europe/Berlin")
    assert limit.algorithm == "calendar"
    assert limit.refill is None
    assert limit.in_words == "2.50 usd a day in Europe/Berlin"
    assert repr(limit) == (
        "RateLimit(limit=Decimal('2.50'), per='day', unit='usd', burst=None, "
        "algorithm='calendar', timezone='Europe/Berlin')"
    )
    assert RateLimit(100, per="month").in_words == "100 a month in UTC"
    assert (limit.longest, RateLimit(1, 5).longest) == (25 * HOUR, 5)


# ---- decimals


@pytest.mark.parametrize("algorithm", ["gcra", "sliding"])
def test_decimals_are_added_exactly(algorithm: Any) -> None:
    rates = Rates([RateLimit(Decimal("0.3"), unit="usd", algorithm=algorithm)])
    cost = {"usd": Decimal("0.1")}
    for _ in range(3):
        ready = rates.ready_at(cost, 0.0)
        rates.charge(cost, max(ready, 0.0))
    assert rates.ready_at(cost, 0.0) > 0.0
    rates.correct({"usd": Fraction(-1, 10)}, 0.0, 0.0)
    assert algorithm == "gcra" or rates.ready_at(cost, 0.0) <= 0.0


@pytest.mark.parametrize(
    "text", ["NaN", "sNaN", "Infinity", "-Infinity", "-0.1", "1e300", "1e-300", "1e999999"]
)
def test_a_decimal_that_is_no_amount_is_refused(text: str) -> None:
    value = Decimal(text)
    for refused in (
        lambda: RateLimit(value),
        lambda: RateLimit(5, burst=value),
        lambda: costs_of({"usd": value}),
    ):
        with pytest.raises(ValueError, match=r"limit|burst|cost of 'usd'") as caught:
            refused()
        assert repr(value) in str(caught.value)


def test_decimals_and_floats_meet_where_the_program_forbids_to_mix_them() -> None:
    with localcontext() as context:
        context.traps[FloatOperation] = True
        assert RateLimit(Decimal("2.5"), burst=1.5).refill == 1.5
        with pytest.raises(ValueError, match="burst must not be above limit"):
            RateLimit(Decimal("2.5"), burst=3.5)


def test_a_decimal_of_no_amount_costs_nothing() -> None:
    assert costs_of({"usd": Decimal("0E+999999")}) == {"requests": 1, "usd": 0}
    with pytest.raises(ValueError, match="limit must be above 0"):
        RateLimit(Decimal(0))
    assert timedelta(hours=25).total_seconds() == RateLimit(1, per="day").longest


def test_the_offsets_for_a_script_say_since_when_local_time_is_ahead_by_how_much() -> None:
    assert utc_offsets("Asia/Kolkata") == [(0, 19_800)]
    berlin = utc_offsets("Europe/Berlin")
    assert berlin[0] == (0, 3600)
    summer, winter = (
        round(datetime(2026, month, day, 1, tzinfo=UTC).timestamp())
        for month, day in ((3, 29), (10, 25))
    )
    assert (summer, 7200) in berlin
    assert (winter, 3600) in berlin
