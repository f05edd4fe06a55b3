"""What a job says that it waits for."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.bodies import this_job
from trio_lanes import (
    Blocker,
    Job,
    LaneConfig,
    LaneGroup,
    Lanes,
    RateLimit,
    open_lanes,
)

SLIDING = RateLimit(1, per=60, algorithm="sliding")
TOKENS = RateLimit(100, per=60, unit="tokens", algorithm="sliding")


def runs(lanes: Lanes, **options: Any) -> Job[Any]:
    """A job that runs for very long."""
    return lanes.submit_nowait(trio.sleep, 1000, **options)


async def test_a_job_that_runs_or_has_ended_waits_for_nothing(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 2}) as lanes:
        running = lanes.submit_nowait(trio.sleep, 1)
        assert running.blocked_by() == ()
        await running.wait()
        assert running.blocked_by() == ()
        cancelled = lanes.submit_nowait(trio.sleep, 1, delay=5)
        cancelled.cancel()
        assert cancelled.blocked_by() == ()


def test_a_blocker_is_a_value() -> None:
    blocker = Blocker("pause", "main", until=5.0)
    assert blocker == Blocker("pause", "main", (), 5.0)
    assert blocker != Blocker("pause", "cron", (), 5.0)
    assert hash(blocker) == hash(Blocker("pause", "main", until=5.0))
    assert repr(blocker) == "Blocker(kind='pause', lane='main', jobs=(), until=5.0, reason=None)"
    with pytest.raises(AttributeError):
        blocker.kind = "rate"  # type: ignore[misc]


@pytest.mark.parametrize("session", [None, "alice"])
async def test_a_job_that_is_not_due_waits_for_its_delay_alone(
    autojump_clock: MockClock, session: str | None
) -> None:
    async with open_lanes({"main": LaneConfig(paused=True)}) as lanes:
        runs(lanes, session=session)
        await trio.sleep(1)
        job = runs(lanes, delay=5, session=session)
        assert job.blocked_by() == (Blocker("delay", "main", until=6.0),)
        lanes.clear()


# ---- in its session


async def test_a_job_waits_for_the_jobs_that_its_session_runs(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 9}, sessions=LaneConfig(concurrency=2)) as lanes:
        running = [runs(lanes, session="alice") for _ in range(2)]
        job = runs(lanes, session="alice")
        assert job.blocked_by() == (Blocker("session", "session:alice", tuple(running)),)
        lanes.reset()
        lanes.reset()


async def test_a_job_waits_for_all_that_are_before_it_in_its_session(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1, "cron": 1}) as lanes:
        blocker = runs(lanes)
        jobs = [runs(lanes, session="alice") for _ in range(3)]
        urgent = runs(lanes, session="alice", priority=1, lane="cron", delay=1)
        low = runs(lanes, session="alice", priority=-1)
        await trio.sleep(0.5)
        assert [job.blocked_by() for job in jobs] == [
            (Blocker("concurrency", "main", (blocker,)),),
            (Blocker("order", "session:alice", (jobs[0],)),),
            (Blocker("order", "session:alice", (jobs[0], jobs[1])),),
        ]
        await trio.sleep(1)
        assert urgent.blocked_by() == ()
        assert jobs[0].blocked_by() == (Blocker("session", "session:alice", (urgent,)),)
        assert low.blocked_by() == (
            Blocker("session", "session:alice", (urgent,)),
            Blocker("order", "session:alice", tuple(jobs)),
        )
        lanes.clear()
        lanes.reset()


async def test_a_job_waits_for_the_pause_of_its_session(autojump_clock: MockClock) -> None:
    async with open_lanes() as lanes:
        alice = lanes.session("alice")
        alice.pause()
        job = runs(lanes, session="alice")
        assert job.blocked_by() == (Blocker("pause", "session:alice"),)
        alice.resume()
        lanes.reset()
        await trio.sleep(1)
        alice.pause_for(7)
        job = runs(lanes, session="alice")
        assert job.blocked_by() == (Blocker("pause", "session:alice", until=8.0),)
        alice.pause()
        assert job.blocked_by() == (Blocker("pause", "session:alice"),)
        lanes.clear()
        alice.resume()


async def test_a_job_waits_for_the_rate_of_its_session(autojump_clock: MockClock) -> None:
    async with open_lanes(sessions=LaneConfig(rate=SLIDING)) as lanes:
        alice = lanes.session("alice")
        await alice.run(trio.sleep, 0)
        await trio.sleep(10)
        jobs = [alice.submit_nowait(trio.sleep, 0) for _ in range(2)]
        assert jobs[0].blocked_by() == (Blocker("rate", "session:alice", until=60.0),)
        assert jobs[1].blocked_by() == (Blocker("order", "session:alice", (jobs[0],)),)
        lanes.clear()


async def test_with_a_rate_of_its_session_a_job_waits_for_the_jobs_that_are_readmitted_before_it(
    autojump_clock: MockClock,
) -> None:
    async def turned_away() -> None:
        lanes.pause("cron")
        await this_job().readmit()

    sessions = LaneConfig(concurrency=2, rate=RateLimit(10, 1))
    async with open_lanes({"main": 4, "cron": 4}, sessions=sessions) as lanes:
        alice = lanes.session("alice")
        first = alice.submit_nowait(turned_away, lane="cron")
        await trio.sleep(1)
        assert first.blocked_by() == (Blocker("pause", "cron"),)
        equal, better = (alice.submit_nowait(trio.sleep, 0, priority=one) for one in (0, 1))
        await better.wait()
        assert equal.blocked_by() == (Blocker("order", "session:alice", (first,)),)
        lanes.resume("cron")


# ---- in its lane


async def test_a_job_waits_for_the_jobs_that_hold_the_slots_of_its_lane(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 2}) as lanes:
        running = [runs(lanes, session="alice"), runs(lanes)]
        for options in ({}, {"session": "bob"}):
            job = runs(lanes, **options)
            assert job.blocked_by() == (Blocker("concurrency", "main", tuple(running)),)
            job.cancel()
        lanes.reset()


async def test_a_lane_of_none_blocks_by_itself(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 0}) as lanes:
        job = runs(lanes)
        assert job.blocked_by() == (Blocker("concurrency", "main"),)
        job.cancel()


async def test_a_lane_that_was_narrowed_blocks_by_the_jobs_that_still_run(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 2}) as lanes:
        running = [runs(lanes) for _ in range(2)]
        lanes.lane("main").concurrency = 1
        running[0].cancel()
        await wait_all_tasks_blocked()
        job = runs(lanes)
        assert job.blocked_by() == (Blocker("concurrency", "main", (running[1],)),)
        lanes.clear()
        lanes.reset()


async def test_the_slots_of_a_shared_limiter_may_be_held_by_other_lanes_and_other_code(
    autojump_clock: MockClock,
) -> None:
    limiter = trio.CapacityLimiter(2)
    config = {name: LaneConfig(limiter=limiter) for name in ("main", "cron")}
    async with open_lanes(config) as lanes:
        await limiter.acquire()
        other = runs(lanes, lane="cron")
        job = runs(lanes)
        await wait_all_tasks_blocked()
        assert job.blocked_by() == (Blocker("concurrency", "main", (other,)),)
        lanes.clear()
        lanes.reset()


async def test_a_job_waits_for_the_pause_of_its_lane(autojump_clock: MockClock) -> None:
    async with open_lanes() as lanes:
        lanes.pause_for("main", 30)
        job = runs(lanes, session="alice")
        assert job.blocked_by() == (Blocker("pause", "main", until=30.0),)
        lanes.pause("main")
        assert job.blocked_by() == (Blocker("pause", "main"),)
        job.cancel()
        lanes.resume()


async def test_a_job_waits_for_all_that_are_before_it_in_its_lane(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        running = runs(lanes)
        low = runs(lanes, priority=-1)
        jobs = [runs(lanes, session=session) for session in ("alice", None, "bob")]
        high = runs(lanes, priority=1)
        slots = Blocker("concurrency", "main", (running,))
        assert high.blocked_by() == (slots,)
        assert jobs[0].blocked_by() == (Blocker("order", "main", (high,)), slots)
        assert jobs[2].blocked_by() == (Blocker("order", "main", (high, *jobs[:2])), slots)
        assert low.blocked_by() == (Blocker("order", "main", (high, *jobs)), slots)
        lanes.clear()
        lanes.reset()


async def test_in_a_fair_lane_the_jobs_with_earlier_turns_are_before_it(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": LaneConfig(fair=True)}) as lanes:
        running = runs(lanes, owner="a")
        a1, a2, b1, b2, c1 = (runs(lanes, owner=owner) for owner in "aabbc")
        slots = Blocker("concurrency", "main", (running,))
        assert b2.blocked_by() == (Blocker("order", "main", (a1, b1, c1, a2)), slots)
        assert a1.blocked_by() == (slots,)
        for _ in range(3):
            lanes.reset()
        assert [job.started_at for job in (a1, b1, c1)] == [0.0, 0.0, 0.0]
        assert b2.blocked_by() == (
            Blocker("order", "main", (a2,)),
            Blocker("concurrency", "main", (c1,)),
        )
        lanes.clear()
        lanes.reset()


async def test_in_a_lane_with_aging_the_jobs_that_have_waited_longer_are_before_it(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": LaneConfig(aging=10)}) as lanes:
        running = runs(lanes)
        old = runs(lanes)
        await trio.sleep(11)
        high, low = runs(lanes, priority=1), runs(lanes)
        slots = Blocker("concurrency", "main", (running,))
        assert high.blocked_by() == (Blocker("order", "main", (old,)), slots)
        assert low.blocked_by() == (Blocker("order", "main", (old, high)), slots)
        lanes.clear()
        lanes.reset()


async def test_the_head_of_a_lane_waits_for_its_rate_and_others_for_the_head(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": LaneConfig(concurrency=9, rate=TOKENS)}) as lanes:
        await lanes.run(trio.sleep, 0, cost={"tokens": 70})
        await trio.sleep(20)
        large = runs(lanes, cost={"tokens": 50})
        small = runs(lanes, cost={"tokens": 10})
        assert large.blocked_by() == (Blocker("rate", "main", until=60.0),)
        assert small.blocked_by() == (Blocker("order", "main", (large,)),)
        lanes.clear()


async def test_a_job_waits_for_everything_that_stops_it_at_once(
    autojump_clock: MockClock,
) -> None:
    group = LaneGroup(["main", "cron"], concurrency=1, rate=TOKENS)
    config = {"main": LaneConfig(rate=SLIDING), "cron": 1}
    async with open_lanes(config, groups={"g": group}) as lanes:
        running = runs(lanes, cost={"tokens": 90})
        await trio.sleep(5)
        lanes.pause_for("main", 5)
        job = runs(lanes, cost={"tokens": 20})
        assert job.blocked_by() == (
            Blocker("pause", "main", until=10.0),
            Blocker("concurrency", "main", (running,)),
            Blocker("group", "g", (running,)),
            Blocker("rate", "main", until=60.0),
            Blocker("rate", "g", until=60.0),
        )
        lanes.clear()
        lanes.reset()


# ---- in its group


async def test_a_job_waits_for_the_jobs_that_hold_the_tokens_of_its_group(
    autojump_clock: MockClock,
) -> None:
    group = LaneGroup(["main", "cron"], concurrency=3)
    async with open_lanes({"main": 9, "cron": 9}, groups={"g": group}) as lanes:
        running = [runs(lanes, lane=lane) for lane in ("main", "cron", "main")]
        for lane in ("main", "cron"):
            job = runs(lanes, lane=lane)
            assert job.blocked_by() == (Blocker("group", "g", tuple(running)),)
        lanes.clear()
        lanes.reset()


async def test_a_job_waits_while_what_its_group_has_left_is_reserved(
    autojump_clock: MockClock,
) -> None:
    group = LaneGroup(["main", "hooks"], concurrency=3, reserve={"hooks": 1})
    async with open_lanes({"main": 9, "hooks": 9}, groups={"g": group}) as lanes:
        running = [runs(lanes) for _ in range(2)]
        job = runs(lanes)
        assert job.blocked_by() == (Blocker("reservation", "g", tuple(running)),)
        running.append(runs(lanes, lane="hooks"))
        assert job.blocked_by() == (Blocker("group", "g", tuple(running)),)
        lanes.clear()
        lanes.reset()


async def test_a_head_waits_for_the_head_of_a_sibling_that_waits_for_the_rate_of_the_group(
    autojump_clock: MockClock,
) -> None:
    group = LaneGroup(["main", "cron"], rate=TOKENS)
    async with open_lanes({"main": 9, "cron": 9}, groups={"g": group}) as lanes:
        await lanes.run(trio.sleep, 0, cost={"tokens": 70})
        large, cheap = runs(lanes, cost={"tokens": 50}), runs(lanes)
        small = runs(lanes, cost={"tokens": 10}, lane="cron")
        large_too = runs(lanes, cost={"tokens": 40}, lane="cron")
        assert large.blocked_by() == (Blocker("rate", "g", until=60.0),)
        assert cheap.blocked_by() == (Blocker("order", "main", (large,)),)
        assert small.blocked_by() == (Blocker("order", "g", (large,)),)
        small.cancel()
        assert large_too.blocked_by() == (
            Blocker("rate", "g", until=60.0),
            Blocker("order", "g", (large,)),
        )
        lanes.pause("main")  # then it is not in the way any more
        assert large_too.blocked_by() == (Blocker("rate", "g", until=60.0),)
        lanes.clear()


# ---- while it runs


async def test_a_job_that_runs_waits_for_the_jobs_that_its_tasks_wait_for(
    autojump_clock: MockClock,
) -> None:
    async def waits() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(target.wait)
            nursery.start_soon(later.wait_started)
            await wait_all_tasks_blocked()
            waits_for.append(this_job().blocked_by())
            target.cancel()
            nursery.cancel_scope.cancel()
        waits_for.append(this_job().blocked_by())
        await lanes.run(trio.sleep, 1, lane="cron", name="child")

    waits_for: list[tuple[Blocker, ...]] = []
    async with open_lanes({"main": 2, "cron": 1}) as lanes:
        target = runs(lanes)
        later = runs(lanes, lane="cron", delay=50)
        job = lanes.submit_nowait(waits)
        await trio.sleep(0.5)
        assert set(waits_for[0]) == {
            Blocker("job", "main", (target,)),
            Blocker("job", "cron", (later,)),
        }
        assert waits_for[1] == ()
        (child,) = [one for one in lanes.jobs() if one.name == "child"]
        assert job.blocked_by() == (Blocker("job", "cron", (child,)),)
        lanes.clear()


@pytest.mark.parametrize("session", [None, "bob"])
async def test_a_job_that_runs_waits_for_room(
    autojump_clock: MockClock, session: str | None
) -> None:
    async def submits() -> None:
        await lanes.submit(trio.sleep, 0, lane="cron", session=session)

    bound = LaneConfig(max_waiting=2)
    async with open_lanes({"main": 1, "cron": bound}, sessions=bound) as lanes:
        runs(lanes, lane="cron", session=session)
        waiting = [runs(lanes, lane="cron", session=session) for _ in range(2)]
        job = lanes.submit_nowait(submits)
        await wait_all_tasks_blocked()
        where = "cron" if session is None else "session:bob"
        assert job.blocked_by() == (Blocker("room", where, tuple(waiting)),)
        lanes.clear()
        lanes.reset("cron")
        await job.wait()


async def test_a_job_that_has_lent_its_slot_waits_for_it_only_when_it_wants_it_back(
    autojump_clock: MockClock,
) -> None:
    async def lends() -> None:
        async with this_job().yield_slot():
            await trio.sleep(5)

    group = LaneGroup(["main", "cron"], concurrency=1, reserve={"cron": 1})
    async with open_lanes({"main": 1, "cron": 1}) as lanes:
        job = lanes.submit_nowait(lends)
        await wait_all_tasks_blocked()
        assert job.blocked_by() == ()
        borrower = runs(lanes)
        await trio.sleep(6)
        assert job.blocked_by() == (Blocker("concurrency", "main", (borrower,)),)
        lanes.configure(groups={"g": group})
        assert job.blocked_by() == (
            Blocker("concurrency", "main", (borrower,)),
            Blocker("group", "g", (borrower,)),
        )
        lanes.reset("main")


async def test_a_job_that_wants_its_slot_back_does_not_wait_for_a_reservation(
    autojump_clock: MockClock,
) -> None:
    async def lends() -> None:
        async with this_job().yield_slot():
            await trio.sleep(5)

    async with open_lanes({"main": 2, "cron": 1}) as lanes:
        job = lanes.submit_nowait(lends)
        running = runs(lanes)
        await wait_all_tasks_blocked()
        lanes.lane("main").concurrency = 1
        reserve = LaneGroup(["main", "cron"], concurrency=2, reserve={"cron": 1})
        lanes.configure(groups={"g": reserve})
        await trio.sleep(6)
        assert job.blocked_by() == (Blocker("concurrency", "main", (running,)),)
        lanes.reset("main")


async def test_a_job_that_is_being_readmitted_waits_as_a_head_does(
    autojump_clock: MockClock,
) -> None:
    async def turned_away() -> None:
        lanes.pause_for("main", 30)
        await this_job().readmit(cost={"tokens": 90})

    async with open_lanes({"main": LaneConfig(concurrency=2, rate=TOKENS)}) as lanes:
        jobs = [lanes.submit_nowait(turned_away, cost={"tokens": 20}) for _ in range(2)]
        await wait_all_tasks_blocked()
        pause = Blocker("pause", "main", until=30.0)
        assert [len(job.blocked_by()) for job in jobs] == [2, 2]
        first, second = sorted(jobs, key=lambda job: job.blocked_by()[1].kind == "order")
        assert first.blocked_by() == (pause, Blocker("rate", "main", until=60.0))
        assert second.blocked_by() == (pause, Blocker("order", "main", (first,)))
        await trio.sleep(45)
        assert first.blocked_by() == (Blocker("rate", "main", until=60.0),)
        lanes.reset()


async def test_an_instrument_may_ask_when_the_group_is_just_starting_jobs(
    autojump_clock: MockClock,
) -> None:
    seen: list[tuple[Blocker, ...]] = []

    class Asks:
        def job_started(self, job: Job[Any]) -> None:
            seen.append(waiting.blocked_by())

    groups = {"key": LaneGroup(["main", "cron"])}
    async with open_lanes({"main": 1, "cron": 1}, groups=groups, instruments=[Asks()]) as lanes:
        lanes.pause("main")
        waiting = lanes.submit_nowait(trio.sleep, 1)
        lanes.submit_nowait(trio.sleep, 1, lane="cron")
        lanes.resume("main")
    assert seen == [(Blocker("pause", "main"),), ()]
