"""What lanes tell of slots, cancellations, refusals and limits: hooks, statistics, heads."""

from __future__ import annotations

import contextvars
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_lanes import (
    Job,
    LaneConfig,
    LaneDeadlockError,
    LaneFullError,
    LaneGroup,
    LaneInstrument,
    Lanes,
    LanesClosedError,
    RateLimit,
    context_free,
    current_job,
    open_lanes,
)


class Told:
    """An instrument that has the hooks of ``names``, and notes what they are told."""

    def __init__(self, *names: str) -> None:
        self.events: list[tuple[Any, ...]] = []
        for name in names:
            setattr(self, name, self._hook(name))

    def _hook(self, name: str) -> Callable[..., None]:
        def hook(subject: Any, *rest: object) -> None:
            said = getattr(subject, "name", None) or subject
            if isinstance(subject, Job):
                rest = (subject.slot, *rest)
            self.events.append((name, said, *rest))

        return hook


@asynccontextmanager
async def lanes_and(told: Told, lanes: dict[str, Any], **options: Any) -> AsyncIterator[Lanes]:
    instrument: Any = told
    async with open_lanes(lanes, instruments=[instrument], **options) as opened:
        yield opened


async def test_a_job_tells_of_the_slot_that_it_lends_and_gets_back(
    autojump_clock: MockClock,
) -> None:
    told = Told("job_lent", "job_regained")
    slots: list[str | None] = []

    async def body() -> None:
        job = current_job()
        assert job is not None
        slots.append(job.slot)
        async with job.yield_slot(), trio.open_nursery() as nursery:
            nursery.start_soon(lend_too, job)
            slots.append(job.slot)
        slots.append(job.slot)

    async def lend_too(job: Job[Any]) -> None:
        async with job.yield_slot():
            await trio.sleep(1)

    async with lanes_and(told, {"main": 1}) as lanes:
        job = lanes.submit_nowait(body, name="lender")
        assert job.slot == "held"
        await job.wait()
    assert slots == ["held", "lent", "held"]
    assert job.slot is None
    assert told.events == [("job_lent", "lender", "lent"), ("job_regained", "lender", "held")]


async def test_a_lent_slot_is_wanted_until_it_is_free_again(autojump_clock: MockClock) -> None:
    back = trio.Event()

    async def body() -> None:
        job = current_job()
        assert job is not None
        async with job.yield_slot():
            await back.wait()

    async with open_lanes({"main": 1}) as lanes:
        job = lanes.submit_nowait(body)
        await wait_all_tasks_blocked()
        lanes.start_soon(trio.sleep, 5)
        await wait_all_tasks_blocked()
        found = lanes.lane("main").statistics()
        assert (found.slots, found.lent, found.active) == (1, 1, 2)
        back.set()
        await wait_all_tasks_blocked()
        assert job.slot == "wanted"
        await job.wait()
        assert trio.current_time() >= 5


async def test_a_readmitted_job_tells_when_it_waits_and_when_it_goes_on(
    autojump_clock: MockClock,
) -> None:
    told = Told("job_readmitted", "job_regained")

    async def body() -> None:
        job = current_job()
        assert job is not None
        await job.readmit()

    async with lanes_and(told, {"main": 1}) as lanes:
        lanes.pause("main")
        job = lanes.submit_nowait(body, name="again")
        lanes.resume("main")
        lanes.start_soon(trio.sleep, 1)
        await job.wait()
    assert told.events == [
        ("job_readmitted", "again", "wanted"),
        ("job_regained", "again", "held"),
    ]


async def test_a_job_whose_other_task_lends_lends_again_when_it_was_readmitted(
    autojump_clock: MockClock,
) -> None:
    told = Told("job_lent", "job_readmitted", "job_regained")

    async def body() -> None:
        job = current_job()
        assert job is not None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(job.readmit)
            await wait_all_tasks_blocked()
            nursery.start_soon(lend, job)

    async def lend(job: Job[Any]) -> None:
        async with job.yield_slot():
            await trio.sleep(9)

    async with lanes_and(told, {"main": 1}) as lanes:
        job = lanes.submit_nowait(body, name="both")
        lanes.pause_for("main", 2)
        await job.wait()
    names = [event[0] for event in told.events]
    assert names == ["job_readmitted", "job_regained", "job_lent", "job_regained"]


async def test_blocked_by_has_the_reason_for_which_a_slot_is_lent(
    autojump_clock: MockClock,
) -> None:
    async def body(reason: str | None) -> None:
        job = current_job()
        assert job is not None
        async with job.yield_slot(reason=reason):
            await trio.sleep(1)

    async with open_lanes({"main": 2}) as lanes:
        told, silent = (lanes.submit_nowait(body, why) for why in ("approval", None))
        await wait_all_tasks_blocked()
        (why,) = told.blocked_by()
        assert (why.kind, why.lane, why.reason) == ("lent", "main", "approval")
        assert silent.blocked_by() == ()
        await told.wait()
        assert told.blocked_by() == ()


async def test_the_reason_of_a_loan_is_a_string() -> None:
    async def body() -> None:
        job = current_job()
        assert job is not None
        with pytest.raises(TypeError, match="reason must be a string"):
            async with job.yield_slot(reason=3):  # type: ignore[arg-type]
                raise AssertionError
        assert job.slot == "held"

    async with open_lanes({"main": 1}) as lanes:
        await lanes.run(body)


async def test_a_running_job_that_is_asked_to_stop_is_told_once_and_counted(
    autojump_clock: MockClock,
) -> None:
    told = Told("job_cancel_called")

    async def stubborn() -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(5)

    async with lanes_and(told, {"main": 1}) as lanes:
        job = lanes.submit_nowait(stubborn, name="stubborn")
        waiting = lanes.submit_nowait(trio.sleep, 1)
        await wait_all_tasks_blocked()
        waiting.cancel("not needed")
        job.cancel("too late")
        job.cancel("again")
        lane = lanes.lane("main")
        assert lane.statistics().cancelling == 1
        await job.wait_done()
        found = lane.statistics()
        assert (found.cancelling, found.succeeded, found.failed, found.cancelled) == (0, 1, 0, 1)
    assert told.events == [("job_cancel_called", "stubborn", "held", "too late")]


async def test_jobs_are_counted_by_how_they_ended(autojump_clock: MockClock) -> None:
    async def fail() -> None:
        raise ValueError

    async with open_lanes({"main": LaneConfig(concurrency=9, log_failures=False)}) as lanes:
        lanes.submit_nowait(fail)
        lanes.submit_nowait(trio.sleep, 9, timeout=1)
        lanes.submit_nowait(trio.sleep, 1)
        stopped = lanes.submit_nowait(trio.sleep_forever)
        lanes.pause("main")
        lanes.submit_nowait(trio.sleep, 1)
        await trio.sleep(2)
        stopped.cancel()
        lanes.clear("main")
        await lanes.wait_idle()
        found = lanes.lane("main").statistics()
        assert (found.succeeded, found.failed, found.cancelled, found.finished) == (1, 2, 2, 4)
        lanes.resume("main")


async def test_refused_submissions_are_told_with_the_lane_and_why(
    autojump_clock: MockClock,
) -> None:
    told = Told("job_rejected")

    async with lanes_and(
        told,
        {"main": LaneConfig(concurrency=1, max_waiting=1)},
        sessions=LaneConfig(concurrency=1, max_waiting=0),
    ) as lanes:
        lanes.start_soon(trio.sleep, 5, session="ann")
        with pytest.raises(LaneFullError):
            lanes.submit_nowait(trio.sleep, 1, session="ann")
        lanes.start_soon(trio.sleep, 1)
        with pytest.raises(LaneFullError):
            lanes.submit_nowait(trio.sleep, 1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(refused, lanes)
            await wait_all_tasks_blocked()
            lanes.close("the end")
        with pytest.raises(LanesClosedError):
            lanes.submit_nowait(trio.sleep, 1)
        with pytest.raises(LanesClosedError):
            lanes.would_wait()  # no submission
    assert told.events == [
        ("job_rejected", "session:ann", "full"),
        ("job_rejected", "main", "full"),
        ("job_rejected", "main", "closed"),
        ("job_rejected", "main", "closed"),
    ]


async def refused(lanes: Lanes) -> None:
    with pytest.raises(LanesClosedError):
        await lanes.submit(trio.sleep, 1)


async def test_lanes_that_got_another_configuration_are_told(autojump_clock: MockClock) -> None:
    told = Told("lane_configured")
    limiter = trio.CapacityLimiter(2)
    async with lanes_and(
        told, {"main": 1, "cron": 1, "job:*": 1, "shared": LaneConfig(limiter=limiter)}
    ) as lanes:
        assert told.events == []
        lanes.start_soon(trio.sleep, 1, session="ann")
        lanes.start_soon(trio.sleep, 1, lane="job:a")
        lanes.configure({"main": 2, "cron": 1, "new": 3})
        lanes.lane("main").concurrency = 4
        lanes.lane("job:a").concurrency = 2
        lanes.lane("shared").concurrency = 3
        lanes.configure(sessions=LaneConfig(concurrency=2))
    assert [event[1] for event in told.events] == [
        "main",
        "new",
        "main",
        "job:a",
        "shared",
        "session:ann",
    ]


async def test_refused_deadlocks_are_told_with_their_error(autojump_clock: MockClock) -> None:
    told = Told("deadlock_refused")
    inner: list[Job[Any]] = []
    submitted = trio.Event()

    async def outer(lanes: Lanes) -> None:
        with pytest.raises(LaneDeadlockError):
            await lanes.run(trio.sleep, 0)

    async def waits_for(lanes: Lanes) -> None:
        await submitted.wait()
        with pytest.raises(LaneDeadlockError):
            await inner[0].wait()

    async with lanes_and(told, {"main": 1, "other": 1}) as lanes:
        await lanes.run(outer, lanes)
        assert [type(event[1]) for event in told.events] == [LaneDeadlockError]
        # Here an act that is no wait closes the circle: the limit was lowered for a time.
        lanes.configure({"other": 0})
        job = lanes.submit_nowait(waits_for, lanes, session="ann", lane="main")
        inner.append(lanes.submit_nowait(trio.sleep, 0, session="ann", lane="other"))
        submitted.set()
        await trio.sleep(2)
        lanes.configure({"other": 1})
        await job.wait()
    assert len(told.events) == 2


async def test_an_instrument_can_be_added_and_removed(autojump_clock: MockClock) -> None:
    told: Any = Told("job_started", "lane_idle", "job_overdue", "job_waiting_long")
    async with open_lanes({"main": 1}) as lanes:
        job = lanes.submit_nowait(trio.sleep, 1, name="before")
        await wait_all_tasks_blocked()
        lanes.add_instrument(told)
        lanes.add_instrument(told)  # it is there already
        await job.wait()
        await lanes.run(trio.sleep, 1)
        lanes.remove_instrument(told)
        await lanes.run(trio.sleep, 1)
        with pytest.raises(KeyError):
            lanes.remove_instrument(told)
    assert [event[0] for event in told.events] == ["lane_idle", "job_started", "lane_idle"]


async def test_a_bad_instrument_is_not_added(autojump_clock: MockClock) -> None:
    class Bad(LaneInstrument):
        def __init__(self) -> None:
            self.job_submitted = self.lane_idle = lambda *args: told.append(args)
            self.lane_paused = 3  # type: ignore[assignment]

    told: list[object] = []
    async with open_lanes({"main": 1}) as lanes:
        with pytest.raises(TypeError, match="lane_paused"):
            lanes.add_instrument(Bad())
        await lanes.run(trio.sleep, 0)
    assert told == []


async def test_a_hook_may_remove_its_own_instrument(autojump_clock: MockClock) -> None:
    class Once(LaneInstrument):
        def job_started(self, job: Job[Any]) -> None:
            started.append(job.name)
            lanes.remove_instrument(self)

    started: list[str] = []
    async with open_lanes({"main": 1}) as lanes:
        lanes.add_instrument(Once())
        for name in "ab":
            await lanes.run(trio.sleep, 0, name=name)
    assert started == ["a"]


async def test_a_context_free_hook_does_not_see_or_change_the_context_of_the_job(
    autojump_clock: MockClock,
) -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="none")

    class Sets(LaneInstrument):
        def job_started(self, job: Job[Any]) -> None:
            variable.set("by a hook")

    class Free(LaneInstrument):
        @context_free
        def job_started(self, job: Job[Any]) -> None:
            seen.append(variable.get())

        @context_free
        def job_finished(self, job: Job[Any]) -> None:
            seen.append(variable.get())

    async def body() -> str:
        return variable.get()

    seen: list[str] = []
    async with open_lanes({"main": 1}, instruments=[Sets(), Free()]) as lanes:
        assert await lanes.run(body) == "by a hook"
    assert seen == ["none", "none"]


async def test_statistics_have_the_remaining_units_of_each_rate(autojump_clock: MockClock) -> None:
    sliding = RateLimit(3, 10, algorithm="sliding")
    smooth = RateLimit(60, 60, unit="tokens", burst=5)
    group_rate = RateLimit(4, 10, algorithm="sliding")
    async with open_lanes(
        {"main": LaneConfig(concurrency=9, rate=[sliding, smooth])},
        groups={"g": LaneGroup(["main"], concurrency=7, rate=group_rate)},
    ) as lanes:
        await trio.sleep(1)

        def left() -> list[tuple[float, float | None]]:
            return [(rate.left, rate.full_at) for rate in lanes.lane("main").statistics().rates]

        assert [rate.limit for rate in lanes.lane("main").statistics().rates] == [sliding, smooth]
        assert left() == [(3, None), (5, None)]
        for _ in range(4):
            lanes.start_soon(trio.sleep, 1, cost={"tokens": 1})
        assert lanes.lane("main").statistics().rate_until == 11
        assert left()[0] == (0, 11)
        assert left()[1][0] == 2
        (found,) = lanes.statistics().groups.values()
        assert (found.slots, found.concurrency) == (3, 7)
        assert (found.members, found.rate_until) == (("main",), None)
        assert [(rate.left, rate.full_at) for rate in found.rates] == [(1, 11)]
        await trio.sleep(30)
        assert left() == [(3, None), (5, None)]
        assert lanes.lane("main").statistics().rate_until is None


@pytest.mark.parametrize(
    "config",
    [
        LaneConfig(concurrency=1),
        LaneConfig(concurrency=1, fair=True),
        LaneConfig(concurrency=1, aging=1),
        LaneConfig(concurrency=1, aging=0.5, fair=True),
    ],
    ids=["plain", "fair", "aging", "both"],
)
@pytest.mark.parametrize("seed", range(8))
async def test_the_head_of_a_lane_is_the_order_in_which_its_jobs_start(
    autojump_clock: MockClock, config: LaneConfig, seed: int
) -> None:
    chance = random.Random(seed)
    started: list[int] = []

    class Starts(LaneInstrument):
        def job_started(self, job: Job[Any]) -> None:
            started.append(job.id)

    async with open_lanes({"main": config}, instruments=[Starts()]) as lanes:
        lane = lanes.lane("main")
        lanes.start_soon(trio.sleep, 99)
        jobs: list[Job[Any]] = []
        for _ in range(60):
            await trio.sleep(chance.choice([0, 0, 1.5]))
            jobs.append(
                lanes.submit_nowait(
                    trio.sleep, 0, owner=chance.choice("abcd"), priority=chance.choice([0, 0, 1, 5])
                )
            )
        for job in chance.sample(jobs, 20):
            if chance.random() < 0.5:
                job.cancel()
            else:
                job.priority = chance.choice([0, 3])
        assert lane.head(0) == []
        expected = lane.head(100)
        assert lane.head(7) == expected[:7]
        first = lane.running(1)
        assert [job.id for job in first] == started
        started.clear()
        await lanes.wait_idle()
        assert [job.id for job in expected] == started
        with pytest.raises(ValueError, match="n must not be negative"):
            lane.head(-1)
        with pytest.raises(TypeError, match="n must be a whole number"):
            lane.running("all")  # type: ignore[arg-type]


async def test_the_head_of_a_fair_lane_begins_with_a_job_that_is_readmitted(
    autojump_clock: MockClock,
) -> None:
    async def again() -> None:
        job = current_job()
        assert job is not None
        await job.readmit()

    async with open_lanes({"main": LaneConfig(concurrency=1, fair=True)}) as lanes:
        lane = lanes.lane("main")
        running = lane.submit_nowait(again, owner="a")
        waiting = [lane.submit_nowait(trio.sleep, 1, owner=owner) for owner in "ab"]
        lane.pause()
        await wait_all_tasks_blocked()
        assert lane.head(9) == [running, *waiting]
        lane.resume()


async def test_the_head_of_a_lane_has_a_job_once_that_has_the_place_of_an_outdone_job_again(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        lane = lanes.lane("main")
        lanes.start_soon(trio.sleep, 1)
        jobs = [
            lane.submit_nowait(trio.sleep, 1, session="alice", priority=priority)
            for priority in (0, 1, 2)
        ]
        jobs[2].priority = 0
        assert lane.head(9) == [jobs[1]]


@pytest.mark.parametrize("hook", ["job_started", "job_finished"])
async def test_a_context_free_hook_that_raises_is_logged_and_its_instrument_is_removed(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, hook: str
) -> None:
    class Raises:
        pass

    @context_free
    def fail(job: Job[Any]) -> None:
        calls.append(job.name)
        raise ValueError

    calls: list[str] = []
    instrument: Any = Raises()
    setattr(instrument, hook, fail)
    async with open_lanes({"main": 1}, instruments=[instrument]) as lanes:
        for name in "ab":
            await lanes.run(trio.sleep, 1, name=name)
    assert calls == ["a"]
    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert "is removed" in record.getMessage()


class Long(LaneInstrument):
    """Notes long waits: the name of the job, and when."""

    def __init__(self) -> None:
        self.told: list[tuple[str, float]] = []

    def job_waiting_long(self, job: Job[Any], waited: float) -> None:
        self.told.append((job.name, trio.current_time()))


async def test_each_long_wait_is_told_at_its_own_time_by_one_timer_of_the_lane(
    autojump_clock: MockClock,
) -> None:
    long = Long()
    config = LaneConfig(concurrency=1, warn_after=5)
    async with open_lanes({"main": config}, instruments=[long]) as lanes:
        lanes.start_soon(trio.sleep, 30)
        for name in "abcd":
            job = lanes.submit_nowait(trio.sleep, 0, name=name)
            if name == "b":
                job.cancel()
            await trio.sleep(1)
        lanes.start_soon(trio.sleep, 0, name="own", warn_after=2)
    assert long.told == [("a", 5), ("own", 6), ("c", 7), ("d", 8)]


async def test_a_changed_warn_after_holds_for_the_jobs_that_wait_already(
    autojump_clock: MockClock,
) -> None:
    long = Long()
    async with open_lanes(
        {"main": LaneConfig(concurrency=1, warn_after=50)}, instruments=[long]
    ) as lanes:
        lanes.start_soon(trio.sleep, 30)
        lanes.start_soon(trio.sleep, 0, name="a")
        await trio.sleep(1)
        lanes.start_soon(trio.sleep, 0, name="b")
        lanes.configure({"main": LaneConfig(concurrency=1, warn_after=10)})
        await trio.sleep(1)
        lanes.start_soon(trio.sleep, 0, name="c")
        await trio.sleep(20)
        assert long.told == [("a", 10), ("b", 11), ("c", 12)]
        lanes.configure({"main": LaneConfig(concurrency=1, warn_after=float("inf"))})
        lanes.start_soon(trio.sleep, 0, name="d")
    assert len(long.told) == 3
