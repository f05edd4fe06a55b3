"""Limits of calendar days and months in lanes, on virtual time: the wall clock goes with it."""

from __future__ import annotations

import math
import time
from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from trio_lanes import LaneConfig, LaneGroup, RateLimit, current_job, open_lanes

pytestmark = pytest.mark.both_doors
HOUR = 3600
PASSED = 20  # the most real seconds between the setting of the wall clock and the first look at it
WIDE = LaneConfig(concurrency=9, warn_after=math.inf)


class WallClock:
    """The wall clock of the machine, as a test sets it."""

    def __init__(self) -> None:
        self.of_machine = 0.0

    def set(self, text: str) -> None:
        self.of_machine = datetime.fromisoformat(text).timestamp() - time.monotonic()

    def now(self) -> float:
        return time.monotonic() + self.of_machine


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> WallClock:
    clock = WallClock()
    monkeypatch.setattr(time, "time", clock.now)
    return clock


async def no_op() -> None:
    pass


def berlin(limit: Any, **options: Any) -> RateLimit:
    return RateLimit(limit, per="day", timezone="Europe/Berlin", **options)


def starts(jobs: list[Any]) -> list[float]:
    return [pytest.approx(job.started_at, abs=PASSED) for job in jobs]


async def test_what_is_above_the_limit_of_a_day_starts_at_the_next_midnight(
    autojump_clock: MockClock, wall: WallClock
) -> None:
    wall.set("2026-03-27T23:00:00+01:00")
    async with open_lanes(
        {"main": LaneConfig(concurrency=9, warn_after=math.inf, rate=berlin(2))}
    ) as lanes:
        jobs = [lanes.submit_nowait(no_op) for _ in range(7)]
        await lanes.wait_idle()
        days = [HOUR, 25 * HOUR, 48 * HOUR]  # the last has 23 hours
        assert starts(jobs) == [0, 0, days[0], days[0], days[1], days[1], days[2]]


async def test_a_month_begins_with_its_first_day(
    autojump_clock: MockClock, wall: WallClock
) -> None:
    wall.set("2026-02-27T00:00:00+00:00")
    async with open_lanes(
        {"main": LaneConfig(warn_after=math.inf, rate=RateLimit(1, per="month"))}
    ) as lanes:
        jobs = [lanes.submit_nowait(no_op) for _ in range(2)]
        await lanes.wait_idle()
        assert starts(jobs) == [0, 48 * HOUR]


async def test_a_cost_above_the_limit_starts_first_of_its_day(
    autojump_clock: MockClock, wall: WallClock
) -> None:
    wall.set("2026-03-02T23:00:00+01:00")
    rate = berlin(Decimal("0.30"), unit="usd")
    async with open_lanes(
        {"main": LaneConfig(concurrency=9, warn_after=math.inf, rate=rate)}
    ) as lanes:
        costs = ["0.10", "0.10", "0.10", "0.70", "0.01"]
        jobs = [lanes.submit_nowait(no_op, cost={"usd": Decimal(text)}) for text in costs]
        await lanes.wait_idle()
        assert starts(jobs) == [0, 0, 0, HOUR, 25 * HOUR]
        assert jobs[0].cost == {"requests": 1, "usd": Decimal("0.10")}


async def test_what_is_given_back_may_start_on_the_same_day_only(
    autojump_clock: MockClock, wall: WallClock
) -> None:
    async def uses(amount: Decimal, seconds: float) -> None:
        await trio.sleep(seconds)
        job = current_job()
        assert job is not None
        job.charge(usd=amount)

    wall.set("2026-03-02T12:00:00+01:00")
    rate = berlin(1, unit="usd")
    async with open_lanes(
        {"main": LaneConfig(concurrency=9, warn_after=math.inf, rate=rate)}
    ) as lanes:
        cost = {"usd": Decimal("0.5")}
        early = lanes.submit_nowait(uses, Decimal("0.1"), 60, cost=cost)
        late = lanes.submit_nowait(uses, Decimal("0.1"), 13 * HOUR, cost=cost)
        jobs = [lanes.submit_nowait(no_op, cost={"usd": Decimal("0.4")}) for _ in range(4)]
        await lanes.wait_idle()
        assert starts([early, late, *jobs]) == [0, 0, 60, 12 * HOUR, 12 * HOUR, 36 * HOUR]


async def test_the_wait_for_a_calendar_limit_says_its_limit_and_its_end(
    autojump_clock: MockClock, wall: WallClock
) -> None:
    wall.set("2026-03-02T12:00:00+01:00")
    groups = {"g": LaneGroup(["main"], rate=berlin(1))}
    async with open_lanes({"main": WIDE}, groups=groups) as lanes:
        await lanes.run(no_op)
        first, second = (lanes.submit_nowait(no_op) for _ in range(2))
        (blocker,) = first.blocked_by()
        assert blocker.kind == "rate"
        assert blocker.until == pytest.approx(12 * HOUR, abs=PASSED)
        (cause,) = first.root_causes()
        root = 'rate of the group "g": 1 a day in Europe/Berlin'
        assert cause.root == root
        assert cause.seconds == pytest.approx(12 * HOUR, abs=PASSED)
        (cause,) = second.root_causes()
        assert cause.seconds == pytest.approx(36 * HOUR, abs=PASSED)
        (rate,) = lanes.statistics().groups["g"].rates
        assert rate.left == 0
        assert rate.full_at == pytest.approx(12 * HOUR, abs=PASSED)
        assert lanes.health() == ()
        lanes.clear()


@pytest.mark.trio_only("the clock of the lanes' thread")
@pytest.mark.parametrize("of", ["lane", "session", "group", "full lane", "full session"])
async def test_a_job_that_waits_for_the_next_day_follows_a_machine_that_has_slept(
    of: str, autojump_clock: MockClock, wall: WallClock
) -> None:
    wall.set("2026-03-02T12:00:00+01:00")
    full, by_session = of.startswith("full"), of.endswith("session")
    config = LaneConfig(
        concurrency=9,
        warn_after=math.inf,
        rate=berlin(1) if of.endswith("lane") else (),
        max_waiting=0 if full else math.inf,
    )
    async with (
        open_lanes(
            {"main": config},
            groups={"g": LaneGroup(["main"], rate=berlin(1))} if of == "group" else {},
            sessions=LaneConfig(rate=berlin(1) if by_session else ()),
        ) as lanes,
        trio.open_nursery() as nursery,
    ):
        await lanes.run(no_op, session="a")

        async def late() -> None:
            await lanes.run(no_op, session="a")
            assert trio.current_time() == pytest.approx(HOUR + 150, abs=151)

        nursery.start_soon(late)
        await trio.sleep(HOUR)
        wall.set("2026-03-03T01:00:00+01:00")  # thirteen hours ahead of 12:00


@pytest.mark.trio_only("the clock of the lanes' thread")
async def test_a_wall_clock_that_is_set_is_followed(
    autojump_clock: MockClock, wall: WallClock
) -> None:
    wall.set("2026-03-02T12:00:00+01:00")
    async with open_lanes({"main": LaneConfig(warn_after=math.inf, rate=berlin(1))}) as lanes:
        await lanes.run(no_op)
        second = lanes.submit_nowait(no_op)
        await trio.sleep(HOUR)
        wall.set("2026-03-02T22:00:00+01:00")  # ten hours ahead of 12:00: it is 23:00
        lanes.configure({"main": LaneConfig(warn_after=math.inf, rate=berlin(1))})
        await second.wait()
        assert starts([second]) == [2 * HOUR]
        third = lanes.submit_nowait(no_op)
        wall.set("2026-03-02T21:00:00+01:00")  # the day of the second is not opened again
        await third.wait()
        assert starts([third]) == [2 * HOUR + 25 * HOUR]


async def test_a_session_has_its_own_days(autojump_clock: MockClock, wall: WallClock) -> None:
    wall.set("2026-03-02T12:00:00+01:00")
    sessions = LaneConfig(rate=berlin(1))
    async with open_lanes({"main": WIDE}, sessions=sessions) as lanes:
        jobs = [lanes.submit_nowait(no_op, session=name) for name in "aabb"]
        await lanes.wait_idle()
        assert starts(jobs) == [0, 12 * HOUR, 0, 12 * HOUR]
