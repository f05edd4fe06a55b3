"""Rate limits as arithmetic: what starts when, beside models that count every window."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_lanes._limits.rate import (
    RateLimit,
    Rates,
    _warn_of_burst,
    check_units,
    costs_of,
    rate_limits,
)

ONE = {"requests": 1}


def start(rates: Rates, costs: Mapping[str, float], now: float) -> float:
    """Start a job as early as it may, from ``now`` on; when that was."""
    ready = rates.ready_at(costs, now)
    now = max(now, ready)
    assert rates.ready_at(costs, now) <= now  # a job that comes back then is admitted
    rates.charge(costs, now)
    return now


def start_many(rates: Rates, number: int, now: float = 0.0) -> list[float]:
    times = []
    for _ in range(number):
        now = start(rates, ONE, now)
        times.append(now)
    return times


def fullest(starts: list[tuple[float, float]], per: float) -> Fraction:
    """The most that a half-open window of ``per`` seconds holds of these (time, cost)."""
    exact = [(Fraction(time), amount(cost)) for time, cost in starts]
    most = held = Fraction(0)
    first = 0
    for time, cost in exact:
        held += cost
        while exact[first][0] + Fraction(per) <= time:
            held -= exact[first][1]
            first += 1
        most = max(most, held)
    return most


# ---- what may be said


def test_every_field_can_be_read_back() -> None:
    limit = RateLimit(90_000, 10, unit="tokens", burst=9_000)
    assert (limit.limit, limit.per, limit.unit, limit.burst) == (90_000, 10, "tokens", 9_000)
    assert limit.algorithm == "gcra"
    assert RateLimit(5) == RateLimit(5, 60.0, unit="requests", burst=None, algorithm="gcra")
    with pytest.raises(AttributeError):
        limit.limit = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        *(
            (field, value, error)
            for field in ("limit", "per", "burst")
            for value, error in [
                (0, ValueError),
                (-1.5, ValueError),
                (math.inf, ValueError),
                (math.nan, ValueError),
                ("5", TypeError),
                (True, TypeError),
            ]
        ),
        ("limit", None, TypeError),
        ("per", None, TypeError),
        ("unit", " ", ValueError),
        ("unit", None, TypeError),
        ("algorithm", "fixed", ValueError),
        ("algorithm", None, TypeError),
        ("burst", 11, ValueError),
    ],
)
def test_a_bad_value_is_refused_by_field_and_value(
    field: str, value: Any, error: type[Exception]
) -> None:
    with pytest.raises(error) as caught:
        RateLimit(**{"limit": 10, field: value})
    assert type(caught.value) is error
    assert field in str(caught.value)
    assert repr(value) in str(caught.value)


def test_a_burst_with_sliding_is_refused() -> None:
    with pytest.raises(ValueError, match=r"burst .*sliding.* 2"):
        RateLimit(10, burst=2, algorithm="sliding")


def test_a_rate_is_one_limit_or_several() -> None:
    one, other = RateLimit(10, 1), RateLimit(100)
    assert rate_limits(one) == (one,)
    assert rate_limits([one, other]) == (one, other)
    assert rate_limits(()) == ()


@pytest.mark.parametrize("value", [10, "requests", [RateLimit(10), 5], {RateLimit(10)}])
def test_a_rate_that_is_no_limit_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="rate must"):
        rate_limits(value)


def test_a_number_is_requests() -> None:
    assert costs_of(1) == {"requests": 1}
    assert costs_of(2.5) == {"requests": 2.5}
    assert costs_of(0) == {"requests": 0}


def test_a_mapping_without_requests_costs_one_request() -> None:
    assert costs_of({"tokens": 300}) == {"requests": 1, "tokens": 300}
    assert costs_of({"tokens": 300, "requests": 0}) == {"requests": 0, "tokens": 300}
    assert costs_of({}) == {"requests": 1}


def test_costs_are_a_read_only_copy() -> None:
    given = {"tokens": 300}
    costs = costs_of(given)
    given["tokens"] = 1
    assert costs["tokens"] == 300
    with pytest.raises(TypeError):
        costs["tokens"] = 1  # type: ignore[index]


@pytest.mark.parametrize(
    ("cost", "error"),
    [
        (-1, ValueError),
        (math.nan, ValueError),
        (math.inf, ValueError),
        (True, TypeError),
        ("1", TypeError),
        (None, TypeError),
        ({"tokens": -1}, ValueError),
        ({"tokens": math.nan}, ValueError),
        ({"tokens": "many"}, TypeError),
        ({"": 1}, ValueError),
        ({1: 1}, TypeError),
    ],
)
def test_a_bad_cost_is_refused_by_name(cost: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="cost") as caught:
        costs_of(cost)
    assert type(caught.value) is error


def test_a_unit_that_no_limit_counts_is_refused() -> None:
    check_units({"requests": 1}, frozenset())
    check_units({"requests": 1, "tokens": 5}, {"tokens"})
    with pytest.raises(ValueError, match=r"cost names 'tokens'.*'dollars', 'requests'"):
        check_units({"tokens": 5}, {"requests", "dollars"})
    with pytest.raises(ValueError, match=r"cost names 'tokens'.*none"):
        check_units({"tokens": 5}, frozenset())


# ---- no limits, and no costs


def test_without_limits_everything_starts_at_once() -> None:
    rates = Rates()
    assert not rates
    assert rates.units == frozenset()
    assert rates.limits == ()
    rates.charge(ONE, 5.0)
    rates.correct({"requests": 3}, 5.0, 5.0)
    assert rates.ready_at(ONE, 5.0) <= 5.0
    assert rates.refilled_at(5.0) <= 5.0


@pytest.mark.parametrize("algorithm", ["gcra", "sliding"])
def test_what_costs_nothing_never_waits(algorithm: Any) -> None:
    rates = Rates([RateLimit(1, unit="tokens", algorithm=algorithm)])
    assert rates
    assert rates.units == {"tokens"}
    rates.charge({"tokens": 5}, 0.0)
    assert rates.ready_at({"tokens": 1}, 0.0) > 0.0
    for costs in (ONE, {"requests": 1, "tokens": 0}):
        assert rates.ready_at(costs, 0.0) <= 0.0
        rates.charge(costs, 0.0)


# ---- sliding


def test_ten_times_a_tenth_is_one() -> None:
    rates = Rates([RateLimit(1, algorithm="sliding")])
    starts = [start(rates, {"requests": 0.1}, float(i)) for i in range(11)]
    assert starts == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 60.0]


def test_a_window_that_a_float_cannot_say_is_rounded_up() -> None:
    rates = Rates([RateLimit(1, 0.1, algorithm="sliding")])
    now = 0.0
    for _ in range(1000):
        before, now = now, start(rates, ONE, now)
        if before:
            assert Fraction(now) - Fraction(before) >= Fraction(0.1)
            assert now - before == pytest.approx(0.1)
    assert now == pytest.approx(99.9)


def test_charges_that_have_left_the_window_are_forgotten() -> None:
    rates = Rates([RateLimit(5, 1, algorithm="sliding")])
    now = start_many(rates, 100)[-1]
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(5_000):
            now = start(rates, ONE, now + 0.1)
        assert tracemalloc.get_traced_memory()[0] - before < 5_000
    finally:
        tracemalloc.stop()


COSTS = st.one_of(st.integers(1, 12), st.sampled_from([0.1, 0.25, 0.7, 3.3]))
GAPS = st.one_of(
    st.just(0.0), st.floats(0, 2, allow_subnormal=False), st.sampled_from([0.1, 0.5, 1.0])
)
BEGINS = st.sampled_from([0.0, 0.1, 1 / 3, 86_400.7, 123_456_789.1])
PERS = st.sampled_from([1, 0.1, 0.3, 2.5, 60])


def amount(number: float) -> Fraction:
    """The number as it is written."""
    return Fraction(repr(number))


def first_float_from(time: Fraction) -> float:
    near = float(time)
    return near if near >= time else math.nextafter(near, math.inf)


def earliest_sliding(
    starts: list[tuple[float, float]], cost: float, limit: float, per: float, now: float
) -> float:
    """The first time, from now on, at which the window before it has room, or is empty."""
    charged = [(Fraction(time) + Fraction(per), amount(taken)) for time, taken in starts]
    for time in sorted({Fraction(now), *(leaves for leaves, _ in charged if leaves > now)}):
        held = sum(taken for leaves, taken in charged if leaves > time)
        if not held or held + amount(cost) <= limit:
            return first_float_from(time)
    raise AssertionError(starts)


@given(st.lists(st.tuples(GAPS, COSTS), max_size=50), st.integers(1, 12), PERS, BEGINS)
def test_sliding_starts_each_job_as_early_as_no_window_holds_more_than_the_limit(
    traffic: list[tuple[float, float]], limit: int, per: float, now: float
) -> None:
    rates = Rates([RateLimit(limit, per, algorithm="sliding")])
    starts: list[tuple[float, float]] = []
    for gap, cost in traffic:
        now += gap * per
        expected = earliest_sliding(starts, cost, limit, per, now)
        now = start(rates, {"requests": cost}, now)
        assert now == expected
        starts.append((now, cost))
    if all(cost <= limit for _, cost in starts):
        assert fullest(starts, per) <= limit


# ---- gcra


def test_the_default_burst_is_a_tenth_and_at_least_one() -> None:
    assert start_many(Rates([RateLimit(60)]), 8).count(0.0) == 6
    assert start_many(Rates([RateLimit(5)]), 8).count(0.0) == 1
    rates = Rates([RateLimit(0.5, 10)])  # of which no whole number ever fits
    assert start_many(rates, 3) == [0.0, 20.0, 40.0]


@pytest.mark.parametrize("burst", [None, 1, 7, 60])
def test_a_stream_of_ones_fills_a_window_to_the_limit(burst: int | None) -> None:
    times = start_many(Rates([RateLimit(60, burst=burst)]), 61)
    assert times[59] < 60.0
    assert times[60] == 60.0


@pytest.mark.parametrize("limit", [10, 2.5, 0.5])
@pytest.mark.parametrize("burst", [0.25, 0.5])
def test_a_burst_below_one_is_no_faster_than_the_limit(limit: float, burst: float) -> None:
    rates = Rates([RateLimit(limit, 1, burst=burst)])
    assert start_many(rates, 101)[-1] >= 100 / limit


def test_a_limit_with_a_fraction_is_kept_by_whole_numbers() -> None:
    times = start_many(Rates([RateLimit(2.5, 1, burst=2)]), 50)
    assert fullest([(time, 1) for time in times], 1) == 2


@given(
    st.lists(st.tuples(GAPS, COSTS), max_size=50),
    st.integers(1, 12),
    st.integers(1, 12),
    PERS,
    BEGINS,
)
def test_gcra_is_the_cell_rate_algorithm_and_no_window_of_whole_numbers_is_over_the_limit(
    traffic: list[tuple[float, float]], limit: int, burst: int, per: float, now: float
) -> None:
    burst = min(burst, limit)
    rates = Rates([RateLimit(limit, per, burst=burst)])
    interval = Fraction(per) / (limit + 1 - burst)
    arrival = Fraction(0)  # theoretical
    starts: list[tuple[float, float]] = []
    for gap, cost in traffic:
        now += gap * per
        ready = arrival - max(burst - amount(cost), 0) * interval
        expected = first_float_from(max(ready, Fraction(now)))
        now = start(rates, {"requests": cost}, now)
        assert now == expected
        arrival = max(arrival, Fraction(now)) + amount(cost) * interval
        starts.append((now, cost))
    if all(isinstance(cost, int) for _, cost in starts):
        excess = max((cost - burst for _, cost in starts), default=0)
        assert fullest(starts, per) <= limit + max(excess, 0)


# ---- several at once


def test_of_several_limits_the_tightest_rules() -> None:
    rates = Rates([RateLimit(2, 1, algorithm="sliding"), RateLimit(3, 10, algorithm="sliding")])
    assert rates.units == {"requests"}
    assert start_many(rates, 7) == [0.0, 0.0, 1.0, 10.0, 10.0, 11.0, 20.0]


def test_a_limit_given_twice_counts_once() -> None:
    rates = Rates([RateLimit(2, 1, algorithm="sliding")] * 2)
    assert rates.limits == (RateLimit(2, 1, algorithm="sliding"),)
    assert start_many(rates, 3) == [0.0, 0.0, 1.0]


def test_requests_and_tokens_are_charged_together() -> None:
    rates = Rates(
        [
            RateLimit(10, 1, algorithm="sliding"),
            RateLimit(100, 10, unit="tokens", algorithm="sliding"),
        ]
    )
    assert rates.units == {"requests", "tokens"}
    assert start(rates, {"requests": 1, "tokens": 80}, 0.0) == 0.0
    assert rates.ready_at({"requests": 9, "tokens": 20}, 0.0) <= 0.0
    assert rates.ready_at({"requests": 10, "tokens": 20}, 0.0) == 1.0
    assert rates.ready_at({"requests": 9, "tokens": 30}, 0.0) == 10.0


# ---- corrections


@pytest.mark.parametrize("algorithm", ["gcra", "sliding"])
def test_unused_units_are_given_back(algorithm: Any) -> None:
    rates = Rates([RateLimit(10, 10, unit="tokens", algorithm=algorithm)])
    rates.charge({"tokens": 10}, 0.0)
    assert rates.ready_at({"tokens": 1}, 1.0) > 1.0
    rates.correct({"tokens": -10, "requests": -1}, 1.0, 0.0)
    assert rates.ready_at({"tokens": 1}, 1.0) <= 1.0
    rates.charge({"tokens": 1}, 1.0)
    rates.correct({"tokens": -20}, 1.0, 1.0)  # never more than was taken
    fresh = Rates([RateLimit(10, 10, unit="tokens", algorithm=algorithm)])
    for cost in range(1, 20):
        costs = {"tokens": cost}
        assert max(rates.ready_at(costs, 1.0), 1.0) == max(fresh.ready_at(costs, 1.0), 1.0)
    for each in (rates, fresh):
        each.charge({"tokens": 10}, 1.0)
    assert rates.ready_at({"tokens": 1}, 1.0) == fresh.ready_at({"tokens": 1}, 1.0) > 1.0


@pytest.mark.parametrize("algorithm", ["gcra", "sliding"])
def test_use_above_the_charge_is_a_debt_for_later_jobs(algorithm: Any) -> None:
    rates = Rates([RateLimit(10, 10, burst=None, algorithm=algorithm)])
    rates.charge(ONE, 0.0)
    rates.correct({"requests": 30}, 2.0, 0.0)
    late = rates.ready_at(ONE, 2.0)
    assert late >= 12.0
    assert start(rates, ONE, 2.0) == late


def test_sliding_gives_back_nothing_of_a_charge_that_has_left_the_window() -> None:
    rates = Rates([RateLimit(10, 10, algorithm="sliding")])
    rates.charge({"requests": 10}, 0.0)
    assert start(rates, {"requests": 10}, 9.0) == 10.0
    rates.correct({"requests": -10}, 11.0, 0.0)
    assert rates.ready_at(ONE, 11.0) == 20.0


def test_gcra_gives_nothing_back_that_has_run_over() -> None:
    rates = Rates([RateLimit(14, 10, burst=5)])  # one a second
    rates.charge({"requests": 5}, 0.0)
    rates.charge({"requests": 5}, 7.0)  # the bucket was full again since 5
    rates.correct({"requests": -4}, 8.0, 0.0)
    assert rates.ready_at({"requests": 2}, 8.0) == 9.0


def test_units_that_one_correction_frees_are_not_given_back_by_another() -> None:
    rates = Rates([RateLimit(29, 10, burst=20)])  # one a second
    for time, cost in ((0.0, 5), (1.0, 10), (2.0, 5)):
        rates.charge({"requests": cost}, time)
    rates.correct({"requests": -10}, 2.0, 1.0)
    rates.correct({"requests": -5}, 2.0, 0.0)  # of which two had leaked by then
    assert rates.ready_at({"requests": 20}, 2.0) == 7.0


STEPS = st.lists(
    st.tuples(
        GAPS,
        st.integers(1, 9),
        st.booleans(),  # whether it waits until it may start
        st.none() | st.tuples(st.integers(0, 9), st.integers(1, 9)),  # which before it, how much
    ),
    max_size=40,
)


@given(STEPS, st.sampled_from(["gcra", "sliding"]), st.integers(1, 20), PERS, BEGINS)
def test_after_a_correction_it_is_as_if_the_right_cost_had_been_charged(
    steps: list[tuple[float, int, bool, tuple[int, int] | None]],
    algorithm: Any,
    limit: int,
    per: float,
    now: float,
) -> None:
    burst = max(1, limit - 2) if algorithm == "gcra" else None
    limits = [RateLimit(limit, per, burst=burst, algorithm=algorithm)]
    rates = Rates(limits)
    starts: list[tuple[float, int]] = []
    for gap, cost, waits, correction in steps:
        now += gap * per / 3
        if waits:
            now = start(rates, {"requests": cost}, now)
        else:
            rates.charge({"requests": cost}, now)
        starts.append((now, cost))
        if correction is not None:
            back, less = correction
            index = max(len(starts) - 1 - back, 0)
            time, charged = starts[index]
            less = min(less, charged)
            now += gap * per / 9
            rates.correct({"requests": -less}, now, time)
            starts[index] = (time, charged - less)
            right = Rates(limits)
            for time, charged in starts:
                right.charge({"requests": charged}, time)
            for probe in range(1, 22):
                costs = {"requests": probe}
                assert max(rates.ready_at(costs, now), now) == max(right.ready_at(costs, now), now)


def test_of_very_long_busy_times_less_may_be_given_back_but_never_more() -> None:
    limits = [RateLimit(2_000, 1_001, burst=1_000)]  # one a second
    charges = [(float(i), 2) for i in range(400)]  # what is used grows by one a second
    for corrected in (0, 100, 250, 398):
        rates, right = Rates(limits), Rates(limits)
        for time, cost in charges:
            rates.charge({"requests": cost}, time)
            right.charge({"requests": 0 if time == corrected else cost}, time)
        rates.correct({"requests": -2}, 400.0, float(corrected))
        given, due = (each.ready_at({"requests": 1_000}, 400.0) for each in (rates, right))
        assert given >= due
        if corrected >= 350:
            assert given == due


def test_a_bucket_that_is_in_debt_for_long_does_not_grow() -> None:
    rates = Rates([RateLimit(10, 10, burst=1)])
    rates.charge(ONE, 0.0)
    tracemalloc.start()
    try:
        for second in range(1, 3_000):
            rates.charge({"requests": 2}, float(second))
        assert tracemalloc.get_traced_memory()[0] < 50_000
    finally:
        tracemalloc.stop()


# ---- fully replenished, and new limits


@pytest.mark.parametrize("algorithm", ["gcra", "sliding"])
def test_from_when_it_is_refilled_it_is_as_if_never_used(algorithm: Any) -> None:
    rates = Rates([RateLimit(10, 10, algorithm=algorithm), RateLimit(4, 1, algorithm=algorithm)])
    assert rates.refilled_at(0.0) <= 0.0
    start_many(rates, 12, now=3.0)
    refilled = rates.refilled_at(3.0)
    assert refilled > 3.0
    whole = {"requests": 100}  # which waits until nothing is used
    assert rates.ready_at(whole, 3.0) == refilled
    assert rates.refilled_at(refilled) <= refilled
    assert rates.ready_at(whole, refilled) <= refilled


@pytest.mark.parametrize("algorithm", ["gcra", "sliding"])
def test_the_same_limit_goes_on_as_it_was(algorithm: Any) -> None:
    limit = RateLimit(3, 10, algorithm=algorithm)
    rates = Rates([RateLimit(50, 1), limit])
    now = start_many(rates, 6)[-1]
    ready = rates.ready_at(ONE, now)
    changed = rates.reconfigured([limit, RateLimit(70, 1)], now)
    assert changed.limits == (limit, RateLimit(70, 1))
    assert changed.units == {"requests"}
    assert changed.ready_at(ONE, now) == ready > now


def test_a_higher_sliding_limit_lets_start_at_once_what_fits_now() -> None:
    rates = Rates([RateLimit(2, 10, algorithm="sliding")])
    start_many(rates, 2, now=1.0)
    assert rates.ready_at(ONE, 1.0) == 11.0
    rates = rates.reconfigured([RateLimit(3, 10, algorithm="sliding")], 1.0)
    assert start_many(rates, 2, now=1.0) == [1.0, 11.0]


def test_a_lower_sliding_limit_counts_what_started_before() -> None:
    rates = Rates([RateLimit(4, 10, algorithm="sliding")])
    for time in (0.0, 1.0, 2.0, 3.0):
        start(rates, ONE, time)
    rates = rates.reconfigured([RateLimit(2, 10, algorithm="sliding")], 5.0)
    assert rates.ready_at(ONE, 5.0) == 12.0
    rates = rates.reconfigured([RateLimit(2, 4, algorithm="sliding")], 5.0)
    assert rates.ready_at(ONE, 5.0) == 6.0


def test_a_new_sliding_limit_takes_the_longest_past() -> None:
    rates = Rates([RateLimit(9, 1, algorithm="sliding"), RateLimit(9, 60, algorithm="sliding")])
    start_many(rates, 3)
    assert rates.ready_at(ONE, 2.0) <= 2.0
    rates = rates.reconfigured([RateLimit(3, 30, algorithm="sliding")], 5.0)
    assert rates.ready_at(ONE, 5.0) == 30.0


def test_a_new_gcra_limit_keeps_the_used_units() -> None:
    rates = Rates([RateLimit(10, 6, burst=5)])  # one a second
    rates.charge({"requests": 5}, 0.0)
    rates = rates.reconfigured([RateLimit(20, 8, burst=5)], 1.0)  # two a second, and 4 are used
    assert rates.ready_at(ONE, 1.0) <= 1.0
    assert rates.ready_at({"requests": 5}, 1.0) == 3.0
    rates = rates.reconfigured([RateLimit(2, 2, burst=1)], 2.0)  # one a second, and 2 are used
    assert rates.ready_at(ONE, 2.0) == 4.0


def test_a_new_gcra_limit_takes_the_past_of_the_nearest() -> None:
    slow, fast = RateLimit(12, 12, burst=1), RateLimit(9, 1, burst=6)  # one and four a second
    for limits in ([slow, fast], [fast, slow]):
        rates = Rates(limits)
        rates.charge({"requests": 5}, 0.0)
        rates = rates.reconfigured([RateLimit(9, 2, burst=6)], 1.0)  # two a second
        assert rates.ready_at({"requests": 6}, 1.0) == 1.5  # one is used, not four


def test_of_several_gcra_limits_each_goes_on_as_it_was() -> None:
    slow, fast = RateLimit(6, 1, burst=6), RateLimit(9, 1, burst=6)  # one and four a second
    for limits in ([slow, fast], [fast, slow]):
        rates = Rates(limits)
        rates.charge({"requests": 6}, 0.0)
        assert rates.reconfigured([slow], 1.0).ready_at({"requests": 6}, 1.0) == 6.0
        assert rates.reconfigured([fast], 1.0).ready_at({"requests": 6}, 1.0) == 1.5


def test_gcra_gives_nothing_back_that_ran_over_before_a_change() -> None:
    rates = Rates([RateLimit(14, 10, burst=5)])  # one a second
    rates.charge({"requests": 5}, 0.0)
    rates.charge({"requests": 5}, 7.0)
    rates = rates.reconfigured([RateLimit(24, 10, burst=5)], 7.0)  # two a second
    rates.correct({"requests": -4}, 8.0, 0.0)
    assert rates.ready_at({"requests": 5}, 8.0) == 9.5


def test_gcra_gives_back_at_most_what_was_left_of_a_charge_before_a_change() -> None:
    rates = Rates([RateLimit(14, 10, burst=5)])  # one a second
    rates.charge({"requests": 5}, 0.0)
    rates.charge({"requests": 4}, 4.0)  # when 1 of the 5 was left
    rates = rates.reconfigured([RateLimit(24, 10, burst=5)], 4.0)  # two a second
    rates.correct({"requests": -4}, 4.0, 0.0)
    assert rates.ready_at({"requests": 5}, 4.0) == 6.0


@pytest.mark.parametrize("algorithm", ["gcra", "sliding"])
def test_a_charge_before_a_change_of_limits_can_be_corrected_after_it(algorithm: Any) -> None:
    rates = Rates([RateLimit(10, 10, algorithm=algorithm)])
    rates.charge({"requests": 10}, 0.0)
    rates = rates.reconfigured([RateLimit(12, 10, algorithm=algorithm)], 1.0)
    assert rates.ready_at({"requests": 12}, 1.0) > 1.0
    rates.correct({"requests": -10}, 1.0, 0.0)
    assert rates.ready_at({"requests": 12}, 1.0) <= 1.0


def test_a_limit_of_another_unit_or_algorithm_begins_anew() -> None:
    rates = Rates([RateLimit(1), RateLimit(1, unit="tokens", algorithm="sliding")])
    rates.charge({"requests": 1, "tokens": 1}, 0.0)
    rates = rates.reconfigured(
        [RateLimit(1, algorithm="sliding"), RateLimit(1, unit="dollars")], 0.0
    )
    assert rates.units == {"requests", "dollars"}
    assert rates.refilled_at(0.0) <= 0.0


@pytest.mark.parametrize("algorithm", ["gcra", "sliding"])
def test_numbers_beyond_all_floats_wait_for_ever_and_raise_nothing(algorithm: Any) -> None:
    rates = Rates([RateLimit(10**400, 10**400, algorithm=algorithm)])
    assert start(rates, {"requests": 10**401}, 0.0) == 0.0
    assert rates.ready_at({"requests": 1e308}, 0.0) == math.inf
    assert rates.refilled_at(0.0) == math.inf


@pytest.mark.parametrize(
    ("limit", "refill", "is_warned"),
    [
        ({"limit": 15}, 14.5, False),
        ({"limit": 15, "burst": 1}, 15, False),
        ({"limit": 15, "burst": 15}, 1, True),
        ({"limit": 90_000, "unit": "tokens", "burst": 90_000}, 1, True),
        ({"limit": 100, "per": 7, "burst": 51}, 50, False),
        ({"limit": 100, "per": 7, "burst": 52}, 49, True),
        ({"limit": 1, "burst": 1}, 1, False),
        ({"limit": 15, "algorithm": "sliding"}, None, False),
    ],
)
def test_a_limit_shows_what_refills_and_warns_if_that_is_less_than_half(
    limit: dict[str, Any],
    refill: float | None,
    is_warned: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    _warn_of_burst.cache_clear()
    rate = RateLimit(**limit)
    assert RateLimit(**limit) == rate  # warned of once
    assert rate.refill == refill
    assert (f", refill {refill})" in repr(rate)) is (refill is not None)
    messages = [record.getMessage() for record in caplog.records]
    if is_warned:
        (message,) = messages
        assert message.startswith(f"{rate!r}: after its burst, only {refill} of {rate.limit} ")
    else:
        assert messages == []
