"""The rate limits of a Valkey store beside those of the core, which are their model."""

import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.durable.conformance.bench import Played, ticket
from trio_lanes import RateLimit
from trio_lanes._config.exact import exact
from trio_lanes._limits.calendar import CalendarWindow
from trio_lanes._limits.rate import Rates
from trio_lanes.durable.acts.locks import Release, Settle, Spend

from ..test_rates import RUNS_OVER, STARTS, STARTS_THAT_RUN_OVER, Starts, less_of, limits
from .place import Place
from .server import Server
from .test_rare_ways import PLACE, Stage

pytestmark = pytest.mark.real_processes
EVERYTHING = {"requests": 1_000, "tokens": 1_000, "usd": 1_000}
"""Costs that are admitted when nothing is used."""


@pytest.fixture
def place(server: Server) -> Iterator[Place]:
    PLACE.server = server
    yield PLACE
    PLACE.close()


class Both:
    """A quota of a store, and rates of the core. Their times are whole microseconds.

    Attributes:
      now: the time of both.
      charged: (when, costs) of all charges.
    """

    def __init__(self, stage: Stage, store: Played, limits: Sequence[RateLimit]) -> None:
        self._stage, self._store, self._limits = stage, store, limits
        self.core = Rates([in_micros(limit) for limit in limits])
        for used in self.core._meters:
            if isinstance(used.meter, CalendarWindow):
                used.meter = InMicros(used.limit)  # type: ignore[assignment]
        self.now = 0.0
        self.charged: list[tuple[float, dict[str, Any]]] = []

    async def begin(self) -> None:
        _, at, _ = await self._store.do(Spend("q", self._limits, {}), ticket())
        assert at is not None
        self.now = at

    def wait(self, micros: float) -> None:
        self._stage.clock.jump(micros / 1e6)
        self.now += micros

    def ready_at(self, costs: Mapping[str, Any]) -> float:
        return math.ceil(max(self.core.ready_at(costs, self.now), self.now))

    async def spend(self, costs: dict[str, Any]) -> None:
        """Take costs from both if the core admits them; else both refuse them."""
        id, at, _ = await self._store.do(Spend("q", self._limits, costs), ticket())
        if self.ready_at(costs) > self.now:
            assert at is None
            await self._store.do(Release(id, False), ticket())
        else:
            assert (id, at) == (0, self.now)
            self.core.charge(costs, self.now)
            self.charged.append((self.now, {**costs}))

    async def wait_for(self, costs: dict[str, Any]) -> None:
        """Wait until the core admits costs; a microsecond before, both refuse them."""
        left = self.ready_at(costs) - self.now
        if left > 0:
            self.wait(left - 1)
            await self.spend(costs)
            self.wait(1)

    async def settle(self, at: float, change: Mapping[str, Any]) -> None:
        await self._store.do(Settle("q", self._limits, at, change), ticket())
        self.core.correct(change, self.now, at)


class InMicros:
    """The core's meter of a calendar, for times that are Unix time in microseconds."""

    def __init__(self, limit: RateLimit) -> None:
        assert isinstance(limit.per, str)
        most = exact(limit.limit)
        self._meter = CalendarWindow(most, limit.per, limit.timezone, lambda: 0.0)

    def ready_at(self, marks: Any, amount: Any) -> float:
        return self._meter.ready_at(marks, amount) * 1e6

    def charged(self, marks: Any, amount: Any, now: float) -> Any:
        return self._meter.charged(marks, amount, Fraction(now) / 10**6)  # type: ignore[arg-type]

    def given_back(self, marks: Any, amount: Any, now: float, at: float) -> Any:
        times: Any = Fraction(now) / 10**6, Fraction(at) / 10**6
        return self._meter.given_back(marks, amount, *times)


def in_micros(limit: RateLimit) -> RateLimit:
    if isinstance(limit.per, str):
        return limit
    per = round(limit.per * 1e6)
    return RateLimit(
        limit.limit, per, unit=limit.unit, burst=limit.burst, algorithm=limit.algorithm
    )


@given(st.lists(limits(), min_size=1, max_size=3), STARTS)
@example(RUNS_OVER, STARTS_THAT_RUN_OVER)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_quota_admits_an_amount_exactly_when_the_core_would(
    place: Place, rates: list[RateLimit], starts: Starts
) -> None:
    async def test(store: Played) -> None:
        both = Both(stage, store, list(dict.fromkeys(rates)))
        await both.begin()
        for wait, costs, correction in starts:
            if wait is not None:
                both.wait(round(wait * rates[0].longest * 1e6))
            else:
                await both.wait_for(costs)
            await both.spend(costs)
            if correction is not None and both.charged:
                at, less = less_of(both.charged, *correction)
                await both.settle(at, {unit: -amount for unit, amount in less.items()})
        await both.wait_for(EVERYTHING)
        await both.spend(EVERYTHING)

    stage = Stage(place)
    stage.run(test)


@pytest.mark.parametrize("corrected", [0, 85, 86, 100, 149])
def test_of_very_long_busy_times_as_much_is_given_back_as_in_the_core(
    place: Place, corrected: int
) -> None:
    async def test(store: Played) -> None:
        both = Both(stage, store, [RateLimit(2_000, 1_001, burst=1_000)])  # one a second
        await both.begin()
        for _ in range(150):  # what is used grows by one a second
            await both.spend({"requests": 2})
            both.wait(10**6)
        at, _ = both.charged[corrected]
        await both.settle(at, {"requests": -2})
        await both.wait_for(EVERYTHING)
        await both.spend(EVERYTHING)

    stage = Stage(place)
    stage.run(test)
