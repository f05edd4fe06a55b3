"""The rate limits of a store, beside those of the core that they are to agree with."""

import hypothesis.strategies as st
from hypothesis import given, settings

from trio_lanes import LaneGroup, RateLimit
from trio_lanes._limits.rate import ONE_REQUEST, Rates
from trio_lanes.durable._contract.records import GroupLimit, LaneLimit
from trio_lanes.durable._memory.tables import MemoryTables
from trio_lanes.durable._rules.rates import (
    charge,
    from_json,
    group_from_json,
    group_to_json,
    lane_meters,
    ready_at,
    replace,
    to_json,
)

AMOUNTS = st.sampled_from([0.5, 1, 1.5, 2, 3, 4.5, 7, 10, 30])
PERS = st.sampled_from([0.1, 1.0, 3.0, 7.7, 60.0])


@st.composite
def limits(draw: st.DrawFn) -> RateLimit:
    limit, per = draw(AMOUNTS), draw(PERS)
    if draw(st.booleans()):
        return RateLimit(limit, per, algorithm="sliding")
    burst = draw(st.none() | AMOUNTS.filter(lambda burst: burst <= limit))
    return RateLimit(limit, per, burst=burst)


@given(
    st.lists(limits(), min_size=1, max_size=3),
    st.lists(st.floats(0, 5) | st.none(), max_size=40),
)
@settings(deadline=None)
def test_a_store_lets_start_exactly_when_the_core_would(
    rates: list[RateLimit], waits: list[float | None]
) -> None:
    tables, core = MemoryTables(), Rates(rates)
    meters = lane_meters("main", LaneLimit(1, rates=core.limits))
    now = 1e9
    for wait in waits:
        expected = core.ready_at(ONE_REQUEST, now)
        assert max(ready_at(tables, meters), now) == max(expected, now)
        # None: as soon as it may
        now = max(now, expected) if wait is None else now + wait
        if expected <= now:
            core.charge(ONE_REQUEST, now)
            charge(tables, meters, now)


@given(limits(), limits(), st.lists(st.floats(0, 5), max_size=20))
@settings(deadline=None)
def test_a_limit_that_replaces_another_goes_on_with_its_past(
    first: RateLimit, second: RateLimit, waits: list[float]
) -> None:
    tables, core, now = MemoryTables(), Rates([first]), 1e9
    old = lane_meters("main", LaneLimit(1, rates=(first,)))
    new = lane_meters("main", LaneLimit(1, rates=(second,)))
    for wait in waits:
        now += wait
        core.charge(ONE_REQUEST, now)
        charge(tables, old, now)
    now += 0.25
    replace(tables, old, new, now)
    ours = max(ready_at(tables, new), now)
    theirs = max(core.reconfigured([second], now).ready_at(ONE_REQUEST, now), now)
    if "sliding" in (first.algorithm, second.algorithm):
        # what had left the old window, or was more than its limit, is not remembered
        assert ours <= theirs or second.limit > first.limit or second.per > first.per
    else:
        assert abs(ours - theirs) < 1e-5
    replace(tables, new, [], now)
    assert ready_at(tables, new) < now


def test_limits_are_written_down_and_read_back() -> None:
    rates = (RateLimit(5, 1.5, algorithm="sliding"), RateLimit(7, burst=0.5))
    assert from_json(to_json(rates)) == rates
    for group in (GroupLimit(("a", "b"), 3, {"a": 1}, rates), GroupLimit(())):
        assert group_from_json(group_to_json(group)) == group
    assert LaneGroup(["a"]).concurrency == GroupLimit(("a",)).concurrency
