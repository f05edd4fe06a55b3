"""Rate limits in lanes, sessions and groups, on virtual time."""

from __future__ import annotations

import math
import random
from typing import Any, Literal

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_lanes import Job, LaneConfig, LaneGroup, Lanes, RateLimit, current_job, open_lanes

pytestmark = pytest.mark.both_doors


async def no_op() -> None:
    pass


def sliding(limit: float, per: float, unit: str = "requests") -> RateLimit:
    return RateLimit(limit, per, unit=unit, algorithm="sliding")


def starts(jobs: list[Job[None]]) -> list[float]:
    assert all(job.started_at is not None for job in jobs)
    return [pytest.approx(job.started_at) for job in jobs]


async def test_a_sliding_limit_of_two_a_second_starts_two_each_second(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": LaneConfig(concurrency=9, rate=sliding(2, 1))}) as lanes:
        jobs = [lanes.submit_nowait(no_op) for _ in range(6)]
        await lanes.wait_idle()
        assert starts(jobs) == [0, 0, 1, 1, 2, 2]


async def test_a_job_submitted_in_the_middle_of_a_window_waits_for_its_end(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": LaneConfig(rate=sliding(1, 0.5))}) as lanes:
        first = lanes.submit_nowait(no_op)
        await trio.sleep(0.25)
        second = lanes.submit_nowait(no_op)
        await second.wait()
        assert starts([first, second]) == [0, 0.5]
        await trio.sleep(60)
        third = lanes.submit_nowait(no_op)
        await third.wait()
        assert starts([third]) == [60.5]


async def test_ten_a_second_with_five_at_once_and_jobs_of_three_tenths(
    autojump_clock: MockClock,
) -> None:
    config = LaneConfig(concurrency=5, rate=sliding(10, 1))
    async with open_lanes({"main": config}) as lanes:
        jobs = [lanes.submit_nowait(trio.sleep, 0.3) for _ in range(13)]
        await trio.sleep(0.4)
        assert sum(job.started_at is not None for job in jobs) == 10
        lanes.lane("main").concurrency = 50  # does not lift the rate
        await trio.sleep(0.55)
        assert sum(job.started_at is not None for job in jobs) == 10
        await trio.sleep(0.45)
        assert all(job.done for job in jobs)


async def test_a_cancelled_waiting_job_takes_nothing_from_the_rate_and_a_failed_one_does(
    autojump_clock: MockClock,
) -> None:
    async def fail() -> None:
        raise OSError

    async with open_lanes({"main": LaneConfig(rate=sliding(1, 1))}) as lanes:
        failed = lanes.submit_nowait(fail)
        cancelled = lanes.submit_nowait(no_op)
        last = lanes.submit_nowait(no_op)
        await trio.sleep(0.5)
        cancelled.cancel()
        await last.wait()
        assert isinstance(failed.exception, OSError)
        assert starts([last]) == [1]
        lanes.submit_nowait(no_op)
        await trio.sleep(0.5)
        lanes.clear()
        after = lanes.submit_nowait(no_op)
        await after.wait()
        assert starts([after]) == [2]


async def test_priority_decides_which_job_starts_in_the_next_window(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": LaneConfig(rate=sliding(1, 1))}) as lanes:
        jobs = [lanes.submit_nowait(no_op, priority=priority) for priority in (0, 0, 5)]
        await lanes.wait_idle()
        assert starts(jobs) == [0, 2, 1]


async def test_the_tighter_of_two_limits_rules_and_unused_units_are_given_back(
    autojump_clock: MockClock,
) -> None:
    rates = [sliding(100, 60), sliding(1000, 60, "tokens")]

    async def uses(tokens: float) -> None:
        job = current_job()
        assert job is not None
        job.charge(tokens=tokens)
        with pytest.raises(RuntimeError, match="charged before"):
            job.charge(tokens=tokens)

    async with open_lanes({"main": LaneConfig(rate=rates)}) as lanes:
        first = lanes.submit_nowait(uses, 100, cost={"tokens": 900})
        second = lanes.submit_nowait(uses, 900, cost={"tokens": 900})
        third = lanes.submit_nowait(uses, 1, cost={"tokens": 100})
        await lanes.wait_idle()
        assert starts([first, second, third]) == [0, 0, 60]


async def test_a_job_above_the_burst_waits_for_a_full_bucket_and_leaves_a_debt(
    autojump_clock: MockClock,
) -> None:
    rate = RateLimit(60, 60, unit="tokens", burst=10)  # 51 a minute
    async with open_lanes({"main": LaneConfig(rate=rate)}) as lanes:
        jobs = [lanes.submit_nowait(no_op, cost={"tokens": tokens}) for tokens in (5, 20, 1)]
        await lanes.wait_idle()
        a_token = 60 / 51
        assert starts(jobs) == [0, 5 * a_token, (5 + 11) * a_token]


async def test_pause_for_delays_the_head_exactly_and_only_ever_extends(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        for seconds in (2, 10, 4):
            lanes.pause_for("main", seconds)
        job = lanes.submit_nowait(no_op)
        assert lanes.lane("main").statistics().paused_until == pytest.approx(10)
        await job.wait()
        assert starts([job]) == [10]
        lanes.pause_for(None, 100)
        lanes.pause()
        assert lanes.lane("main").statistics().paused_until is None
        lanes.resume()
        await lanes.run(no_op)
        assert trio.current_time() == pytest.approx(10)


async def test_a_timed_pause_of_a_session_keeps_its_lane_until_it_is_over(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        lanes.session("a").pause_for(5)
        assert lanes.sessions() == ["a"]
        job = lanes.session("a").submit_nowait(no_op)
        await job.wait()
        assert starts([job]) == [5]
        assert lanes.sessions() == []
        lanes.lane("main").pause_for(5)
        await lanes.lane("main").run(no_op)
        assert trio.current_time() == pytest.approx(10)


async def test_a_limit_that_is_changed_while_jobs_wait_takes_effect_at_once(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": LaneConfig(rate=sliding(1, 100))}) as lanes:
        jobs = [lanes.submit_nowait(no_op) for _ in range(3)]
        await trio.sleep(10)
        lanes.configure({"main": LaneConfig(rate=sliding(2, 100))})
        await trio.sleep(1)
        lanes.configure({"main": LaneConfig(rate=())})
        await lanes.wait_idle()
        assert starts(jobs) == [0, 10, 11]


async def test_each_session_has_its_own_rate_and_stays_until_that_has_refilled(
    autojump_clock: MockClock,
) -> None:
    sessions = LaneConfig(concurrency=5, rate=sliding(1, 10))
    async with open_lanes({"main": 9}, sessions=sessions) as lanes:
        jobs = [lanes.submit_nowait(no_op, session=name) for name in "aab"]
        await lanes.wait_idle()
        assert starts(jobs) == [0, 10, 0]
        assert lanes.sessions() == ["a"]
        await trio.sleep(10.001)
        assert lanes.sessions() == []


async def test_a_session_that_waits_for_its_rate_holds_up_no_other_session(
    autojump_clock: MockClock,
) -> None:
    sessions = LaneConfig(rate=sliding(1, 10))
    async with open_lanes({"main": 1}, sessions=sessions) as lanes:
        slow = [lanes.submit_nowait(no_op, session="a") for _ in range(2)]
        better = lanes.submit_nowait(no_op, session="a", priority=1)
        other = lanes.submit_nowait(no_op, session="b")
        await lanes.wait_idle()
        assert starts([*slow, better, other]) == [0, 20, 10, 0]


async def test_jobs_that_submit_jobs_keep_the_limit(autojump_clock: MockClock) -> None:
    began: list[float] = []

    async def chain(left: int) -> None:
        began.append(trio.current_time())
        if left:
            lanes.submit_nowait(chain, left - 1)

    async with open_lanes({"main": LaneConfig(rate=sliding(2, 1))}) as lanes:
        lanes.submit_nowait(chain, 5)
        await lanes.wait_idle()
    assert began == [pytest.approx(at) for at in (0, 0, 1, 1, 2, 2)]


@pytest.mark.parametrize(
    ("cost", "error", "says"),
    [
        ({"tokenz": 1}, ValueError, "tokenz"),
        (-1, ValueError, "cost.*-1"),
        (float("nan"), ValueError, "cost.*nan"),
        ("3", TypeError, "cost.*'3'"),
        ({"tokens": "3"}, TypeError, "tokens.*'3'"),
    ],
)
async def test_a_bad_cost_is_an_error_at_the_call(
    cost: object, error: type[Exception], says: str
) -> None:
    groups = {"key": LaneGroup(["main"], rate=sliding(9, 9, "tokens"))}
    async with open_lanes({"main": 1}, groups=groups) as lanes:
        with pytest.raises(error, match=says):
            lanes.submit_nowait(no_op, session="a", cost=cost)  # type: ignore[arg-type]
        assert lanes.sessions() == []
        await lanes.run(no_op, session="a", cost={"tokens": 3})


async def test_only_a_job_that_has_started_can_be_charged(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": LaneConfig(rate=sliding(9, 9))}) as lanes:
        lanes.pause()
        job = lanes.submit_nowait(no_op)
        with pytest.raises(RuntimeError, match="not started"):
            job.charge(requests=2)
        lanes.resume()
        await job.wait()
        with pytest.raises(ValueError, match="bytes"):
            job.charge(bytes=2)
        job.charge(requests=2)


@pytest.mark.parametrize(("cost", "used", "rest"), [(0.7, 0.8, 0.2), (0.3, 0.1, 0.9)])
@pytest.mark.parametrize("algorithm", ["gcra", "sliding"])
async def test_the_used_and_the_remaining_units_are_exactly_the_limit(
    algorithm: Literal["gcra", "sliding"],
    cost: float,
    used: float,
    rest: float,
    autojump_clock: MockClock,
) -> None:
    limit = RateLimit(1, per=10, algorithm=algorithm)
    async with open_lanes({"main": LaneConfig(rate=limit)}) as lanes:
        job = lanes.submit_nowait(no_op, cost=cost)
        await job.wait()
        job.charge(requests=used)
        await lanes.run(no_op, cost=rest)
    assert trio.current_time() == 0.0


@pytest.mark.parametrize("of", ["lane", "template", "session"])
@pytest.mark.parametrize("gone", [False, True])
async def test_a_job_that_has_ended_is_charged_in_its_session_and_lane_even_if_these_have_gone(
    of: str, gone: bool, autojump_clock: MockClock
) -> None:
    rate = sliding(10, 60, "tokens")
    rated = {name: LaneConfig(rate=rate if name == of else ()) for name in ("lane", "template")}
    sessions = LaneConfig(rate=rate if of == "session" else ())
    config = {"main": rated["lane"], "auth:*": rated["template"]}
    async with open_lanes(config, sessions=sessions) as lanes:

        async def submitted(tokens: int) -> Job[None]:
            lane = "auth:alice" if of == "template" else "main"
            job = lanes.submit_nowait(no_op, lane=lane, session="alice", cost={"tokens": tokens})
            await job.wait()
            return job

        first = await submitted(10)
        if gone:
            await trio.sleep(100)
            first.charge(tokens=20)  # what it used beyond its cost is a charge of now
        else:
            first.charge(tokens=1)
        jobs = [await submitted(tokens) for tokens in (9, 1)]
        assert starts(jobs) == ([160, 160] if gone else [0, 60])
        if of == "session":
            await trio.sleep(200)
            assert lanes.sessions() == []


def used(jobs: list[Job[None]], costs: list[int], per: float) -> tuple[int, float]:
    """The most jobs, and the most cost, that started in any half-open window of that length."""
    began = sorted((job.started_at or 0.0, cost) for job, cost in zip(jobs, costs, strict=True))
    most_jobs, most_cost = 0, 0.0
    for start, _ in began:
        window = [cost for at, cost in began if start <= at < start + per]
        most_jobs, most_cost = max(most_jobs, len(window)), max(most_cost, sum(window))
    return most_jobs, most_cost


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("algorithm", "least"), [("sliding", 0.85), ("gcra", 0.65)])
async def test_three_hundred_random_jobs_stay_below_both_limits_and_use_them(
    autojump_clock: MockClock, algorithm: str, least: float, seed: int
) -> None:
    drawn = random.Random(seed)
    costs = [drawn.randint(1, 3_000) for _ in range(300)]
    burst = 3_000 if algorithm == "gcra" else None
    rates = [
        RateLimit(60, 60, algorithm=algorithm),  # type: ignore[arg-type]
        RateLimit(10_000, 60, unit="tokens", burst=burst, algorithm=algorithm),  # type: ignore[arg-type]
    ]
    async with open_lanes({"main": LaneConfig(concurrency=300, rate=rates)}) as lanes:
        jobs = [lanes.submit_nowait(no_op, cost={"tokens": cost}) for cost in costs]
        await lanes.wait_idle()
        took = trio.current_time()
    most_jobs, most_tokens = used(jobs, costs, 60)
    assert most_jobs <= 60
    assert most_tokens <= 10_000
    assert [job.id for job in sorted(jobs, key=lambda job: (job.started_at, job.id))] == [
        job.id for job in jobs
    ]
    # All but what the first window lets through at once comes at the rate.
    assert sum(costs) / (took + 60) * 60 >= least * 10_000


def waits(lanes: Lanes) -> int:
    return lanes.statistics().waiting


@pytest.mark.trio_only("it counts tasks of Trio's")
async def test_nothing_wakes_while_a_rate_limited_lane_has_nothing_to_start(
    autojump_clock: MockClock,
) -> None:
    class Steps(trio.abc.Instrument):
        count = 0

        def before_task_step(self, task: trio.lowlevel.Task) -> None:
            self.count += 1

    steps = Steps()
    async with open_lanes({"main": LaneConfig(rate=sliding(1, 1000), warn_after=9e9)}) as lanes:
        await lanes.run(no_op)
        lanes.submit_nowait(no_op)
        await trio.sleep(1)
        trio.lowlevel.add_instrument(steps)
        await trio.sleep(900)
        assert steps.count <= 2  # this task's own
        trio.lowlevel.remove_instrument(steps)
        assert waits(lanes) == 1


@pytest.mark.trio_only("it counts tasks of Trio's")
@pytest.mark.parametrize("where", ["lane", "group", "session", "room", "room in the session"])
async def test_no_timer_outlives_the_job_that_waited_for_a_rate(
    autojump_clock: MockClock, where: str
) -> None:
    rate, none = sliding(1, 1000), LaneConfig(concurrency=9, warn_after=9e9)
    main = attrs.evolve(none, rate=rate if where in ("lane", "room") else ())
    main = attrs.evolve(main, max_waiting=0 if where.startswith("room") else math.inf)
    session = LaneConfig(concurrency=9, rate=rate if "session" in where else ())
    groups = {"g": LaneGroup(["main"], rate=rate)} if where == "group" else {}
    async with open_lanes({"main": main, "cron": none}, sessions=session, groups=groups) as lanes:
        # While it runs, the session needs no timer to remember its rate.
        lanes.submit_nowait(trio.sleep_forever, lane="cron", session="alice", cost=0)
        await lanes.run(no_op, session="alice")
        if where.startswith("room"):
            with trio.move_on_after(1):
                await lanes.run(no_op, session="alice" if "session" in where else None)
        else:
            job = lanes.submit_nowait(no_op, session="alice" if where == "session" else None)
            await trio.sleep(1)
            job.cancel()
        await wait_all_tasks_blocked()
        assert trio.lowlevel.current_statistics().seconds_to_next_deadline == math.inf
        lanes.reset()


@pytest.mark.trio_only("it counts tasks of Trio's")
async def test_a_lane_that_lost_its_rate_while_a_job_waited_for_it_keeps_no_timer(
    autojump_clock: MockClock,
) -> None:
    config = LaneConfig(concurrency=9, warn_after=math.inf)
    async with open_lanes({"main": attrs.evolve(config, rate=sliding(1, 1000))}) as lanes:
        for _ in range(2):
            lanes.submit_nowait(trio.sleep_forever)
        lanes.configure({"main": config})
        await wait_all_tasks_blocked()
        assert lanes.lane("main").active == 2
        assert trio.lowlevel.current_statistics().seconds_to_next_deadline == math.inf
        lanes.reset()


async def test_rates_that_refill_at_the_same_time_let_the_best_head_of_a_group_start(
    autojump_clock: MockClock,
) -> None:
    config = LaneConfig(rate=sliding(1, 10))
    group = LaneGroup(["main", "cron"], concurrency=1)
    async with open_lanes({"main": config, "cron": config}, groups={"g": group}) as lanes:
        for lane in ("main", "cron"):
            lanes.submit_nowait(no_op, lane=lane)
            await lanes.wait_idle()
        worse = lanes.submit_nowait(trio.sleep, 1)
        better = lanes.submit_nowait(trio.sleep, 1, lane="cron", priority=9)
        await lanes.wait_idle()
        assert starts([better, worse]) == [10, 11]


async def test_a_job_whose_rate_refills_when_its_queue_timeout_is_over_starts(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": LaneConfig(rate=sliding(1, 10))}) as lanes:
        await lanes.run(no_op)
        job = lanes.submit_nowait(no_op, queue_timeout=10)
        await job.wait()
        assert starts([job]) == [10]


async def test_a_charge_of_no_unit_corrects_nothing_and_leaves_the_correction_to_a_later_call(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": LaneConfig(rate=RateLimit(10, 1, burst=2))}) as lanes:
        job = lanes.submit_nowait(trio.sleep, 0, cost=2)
        await job.wait()
        job.charge()
        job.charge(requests=1)
        with pytest.raises(RuntimeError, match="corrected before"):
            job.charge(requests=1)


@pytest.mark.parametrize(
    "options", [{}, {"algorithm": "sliding"}, {"per": "day"}, {"per": 10**400}]
)
@pytest.mark.parametrize("cost", [1e308, 10**400], ids=["float", "whole"])
async def test_an_amount_beyond_all_floats_ends_no_lanes(
    options: dict[str, Any], cost: float, autojump_clock: MockClock
) -> None:
    rate = [RateLimit(10**401, **options), RateLimit(5, unit="tokens", **options)]
    config = LaneConfig(concurrency=9, rate=rate, warn_after=math.inf)
    async with open_lanes({"main": config}) as lanes:
        first = [lanes.submit_nowait(trio.sleep, 0, cost={"tokens": 0}) for _ in range(3)]
        for job in first:
            await job.wait()
            job.charge(requests=cost, tokens=cost)
        last = lanes.submit_nowait(trio.sleep, 0, cost={"tokens": 1})
        assert [blocker.kind for blocker in last.blocked_by()] == ["rate"]
        assert last.root_causes()[0].root.startswith('rate of "main": ')
        assert rate[0].in_words.startswith("inf ")
        now = lanes.statistics()
        assert [limit.left for limit in now.lanes["main"].rates][1] == -math.inf
        lanes.clear()


@pytest.mark.parametrize("of", ["lane", "group"])
@pytest.mark.parametrize("cost", [1e308, 1])
async def test_a_debt_of_more_than_an_hour_is_in_the_log(
    of: str, cost: float, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    rate = RateLimit(24, 86_400, burst=1)
    group = LaneGroup(["main"], rate=rate if of == "group" else ())
    config = LaneConfig(concurrency=4, rate=rate if of == "lane" else (), warn_after=math.inf)
    async with open_lanes({"main": config}, groups={"all": group}) as lanes:
        await lanes.run(trio.sleep, 0, cost=cost)
        for _ in range(3):
            lanes.submit_nowait(trio.sleep, 0)
        await trio.sleep(1)
        found = [r.getMessage() for r in caplog.records if "starts no job" in r.getMessage()]
        if cost == 1:
            assert found == []
        else:
            (line,) = found
            who = "lane 'main'" if of == "lane" else "group 'all'"
            assert line.startswith(f"{who} starts no job for ")
        lanes.clear()
