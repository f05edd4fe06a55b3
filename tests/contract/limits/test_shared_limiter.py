"""Lanes whose slots are tokens of a limiter that the application shares with them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.chaos import examples
from tests.support.track import Steps, Track
from trio_lanes import Job, JobState, LaneConfig, LaneGroup, RateLimit, current_job, open_lanes
from trio_lanes.testing import LaneRecorder


def sharing(limiter: trio.CapacityLimiter, *names: str) -> dict[str, LaneConfig]:
    return {name: LaneConfig(limiter=limiter) for name in names or ("main",)}


# ---- the shared limiter


async def test_the_lane_has_that_very_limiter_and_its_tokens_are_the_concurrency(
    autojump_clock: MockClock,
) -> None:
    limiter = trio.CapacityLimiter(3)
    async with open_lanes(sharing(limiter)) as lanes:
        lane = lanes.lane("main")
        assert lane.limiter is limiter
        assert lane.concurrency == lane.statistics().concurrency == 3
        jobs = [lanes.submit_nowait(trio.sleep, 1) for _ in range(4)]
        assert set(limiter.statistics().borrowers) == set(jobs[:3])
        assert lane.active == 3
    assert limiter.borrowed_tokens == 0
    assert trio.current_time() == 2.0


@pytest.mark.many_seeds(5)
async def test_two_lanes_and_other_code_hold_no_more_tokens_than_there_are(
    autojump_clock: MockClock,
) -> None:
    limiter, track = trio.CapacityLimiter(3), Track()

    async def other_code(i: int) -> None:
        async with limiter:
            await track.sleep(f"other{i}")

    async with trio.open_nursery() as nursery:
        async with open_lanes(sharing(limiter, "main", "cron")) as lanes:
            for i in range(5):
                nursery.start_soon(other_code, i)
                lanes.submit_nowait(track.sleep, f"main{i}")
                lanes.submit_nowait(track.sleep, f"cron{i}", lane="cron")
    assert track.peak == 3
    assert len(track.ended) == 15
    assert trio.current_time() == 5.0
    assert limiter.borrowed_tokens == 0


@pytest.mark.many_seeds(3)
async def test_a_limiter_serves_lanes_and_other_code_in_order_of_arrival(
    autojump_clock: MockClock,
) -> None:
    limiter, track = trio.CapacityLimiter(1), Track()

    async def other_code(label: str) -> None:
        async with limiter:
            await track.sleep(label)

    async with trio.open_nursery() as nursery:
        async with open_lanes(sharing(limiter, "main", "cron")) as lanes:
            lanes.submit_nowait(track.sleep, "main1")
            await wait_all_tasks_blocked()
            lanes.submit_nowait(track.sleep, "main2")
            await wait_all_tasks_blocked()
            nursery.start_soon(other_code, "other1")
            await wait_all_tasks_blocked()
            lanes.submit_nowait(track.sleep, "cron1", lane="cron")
            await wait_all_tasks_blocked()
            # A lane asks for one token at a time, so these take turns with the others.
            lanes.submit_nowait(track.sleep, "main3")
            lanes.submit_nowait(track.sleep, "cron2", lane="cron")
            nursery.start_soon(other_code, "other2")
            await wait_all_tasks_blocked()
    order = ["main1", "main2", "other1", "cron1", "other2", "main3", "cron2"]
    assert track.started == order


async def test_a_lane_never_has_more_than_one_waiter_at_the_limiter(
    autojump_clock: MockClock,
) -> None:
    limiter = trio.CapacityLimiter(2)
    async with open_lanes(sharing(limiter, "main", "cron")) as lanes:
        for i in range(10):
            lanes.submit_nowait(trio.sleep, 1, session=f"s{i % 3}")
        for _ in range(6):
            await wait_all_tasks_blocked()
            if lanes.lane("main").statistics().waiting_in_lane:
                assert limiter.statistics().tasks_waiting == 1
            lanes.submit_nowait(trio.sleep, 0, lane="cron", priority=1)
            await wait_all_tasks_blocked()
            assert limiter.statistics().tasks_waiting <= 2
            await trio.sleep(1)
    assert limiter.statistics().tasks_waiting == 0


# ---- what becomes of the waiter


@pytest.mark.parametrize("how", ["pause", "clear", "cancel", "queue_timeout", "rate", "removed"])
async def test_a_lane_that_can_start_nothing_more_does_not_wait_at_the_limiter(
    autojump_clock: MockClock, how: str
) -> None:
    limiter = trio.CapacityLimiter(1)
    rate = RateLimit(1, per=60, algorithm="sliding")
    config = LaneConfig(limiter=limiter, rate=rate if how == "rate" else ())
    async with open_lanes({"main": 1, "shared": config}) as lanes:
        lane = lanes.lane("shared")
        if how == "rate":
            await lane.run(trio.sleep, 0)
        await limiter.acquire()
        queue_timeout = 5 if how == "queue_timeout" else 100
        job = lane.submit_nowait(trio.sleep, 0, queue_timeout=queue_timeout)
        await wait_all_tasks_blocked()
        assert limiter.statistics().tasks_waiting == (how != "rate")
        if how == "pause":
            lane.pause()
        elif how in ("clear", "removed"):
            lane.clear()
        elif how == "cancel":
            job.cancel()
        await trio.sleep(10)
        assert limiter.statistics().tasks_waiting == 0
        if how == "removed":
            lanes.configure({"shared": None})
        limiter.release()
        lanes.resume()
        await job.wait_done()
    assert job.state is (JobState.SUCCEEDED if how in ("pause", "rate") else JobState.CANCELLED)
    assert limiter.borrowed_tokens == 0


@pytest.mark.parametrize("how", ["pause", "clear", "cancel", "overtake", "narrow"])
@pytest.mark.many_seeds(4)
async def test_a_token_that_comes_for_a_head_that_may_not_start_goes_back(
    autojump_clock: MockClock, how: str
) -> None:
    limiter, track = trio.CapacityLimiter(1), Track()
    recorder = LaneRecorder()
    async with open_lanes(sharing(limiter), instruments=[recorder]) as lanes:
        lane = lanes.lane("main")
        await limiter.acquire()
        job = lanes.submit_nowait(track.sleep, "head")
        await wait_all_tasks_blocked()
        limiter.release()  # it is the head's now, and no task of the lane has run since
        assert limiter.borrowed_tokens == 1
        if how == "pause":
            lane.pause()
        elif how == "clear":
            lane.clear()
        elif how == "cancel":
            job.cancel()
        elif how == "overtake":
            lanes.submit_nowait(track.sleep, "better", priority=1)
        else:
            lane.concurrency = 0
        await wait_all_tasks_blocked()
        started = ["better"] if how == "overtake" else []
        assert track.started == started
        assert limiter.borrowed_tokens == len(started)
        lane.concurrency = 1
        lane.resume()
    recorder.check()
    assert limiter.borrowed_tokens == 0
    ends = {"pause": ["head"], "overtake": ["better", "head"], "narrow": ["head"]}
    assert track.ended == ends.get(how, [])


async def test_a_returned_token_goes_to_the_next_waiter_and_the_lane_asks_again(
    autojump_clock: MockClock,
) -> None:
    limiter, track = trio.CapacityLimiter(1), Track()

    async def other_code() -> None:
        async with limiter:
            await track.sleep("other")

    async with trio.open_nursery() as nursery:
        async with open_lanes(sharing(limiter)) as lanes:
            await limiter.acquire()
            head = lanes.submit_nowait(track.sleep, "head")
            await wait_all_tasks_blocked()
            nursery.start_soon(other_code)
            await wait_all_tasks_blocked()
            lanes.submit_nowait(track.sleep, "next")
            limiter.release()
            head.cancel()
    assert track.started == ["other", "next"]


async def test_a_better_job_does_not_lose_the_place_at_the_limiter_that_the_lane_has(
    autojump_clock: MockClock,
) -> None:
    limiter, track = trio.CapacityLimiter(1), Track()
    async with open_lanes(sharing(limiter)) as lanes:
        await limiter.acquire()
        lanes.submit_nowait(track.sleep, "head")
        await wait_all_tasks_blocked()
        lanes.submit_nowait(track.sleep, "better", priority=1)
        await wait_all_tasks_blocked()
        assert limiter.statistics().tasks_waiting == 1
        limiter.release()
    assert track.started == ["better", "head"]


@pytest.mark.many_seeds(10)
async def test_a_token_that_is_there_before_the_lane_has_asked_is_taken(
    autojump_clock: MockClock,
) -> None:
    limiter, track = trio.CapacityLimiter(1), Track()
    async with open_lanes(sharing(limiter)) as lanes:
        await limiter.acquire()
        lanes.submit_nowait(track.sleep, "a")  # there is none, so the lane will ask
        limiter.release()
        lanes.submit_nowait(track.sleep, "b")  # but now there is
        assert lanes.lane("main").active == 1
    assert track.started == ["a", "b"]
    assert track.peak == 1
    assert limiter.borrowed_tokens == 0


@pytest.mark.many_seeds(10)
async def test_a_pause_that_is_over_in_the_same_tick_loses_no_token_and_no_waiter(
    autojump_clock: MockClock,
) -> None:
    limiter, track = trio.CapacityLimiter(1), Track()
    async with open_lanes(sharing(limiter)) as lanes:
        await limiter.acquire()
        lanes.submit_nowait(track.sleep, "a")
        await wait_all_tasks_blocked()
        for _ in range(2):
            lanes.pause()
            lanes.resume()
            await trio.lowlevel.checkpoint()
        await wait_all_tasks_blocked()
        assert limiter.statistics().tasks_waiting == 1
        lanes.pause()
        limiter.release()
        lanes.resume()
    assert track.ended == ["a"]
    assert limiter.borrowed_tokens == 0


async def test_a_lane_that_waits_at_the_limiter_wakes_up_for_nothing_else(
    autojump_clock: MockClock,
) -> None:
    limiter = trio.CapacityLimiter(1)
    async with open_lanes(sharing(limiter)) as lanes:
        lanes.submit_nowait(trio.sleep, 1000, warn_after=float("inf"))
        lanes.submit_nowait(trio.sleep, 0, warn_after=float("inf"))
        await wait_all_tasks_blocked()
        with Steps() as steps:
            await trio.sleep(900)
        assert steps.count <= 2  # this task's own


# ---- the number of tokens


async def test_setting_the_concurrency_of_the_lane_sets_that_of_the_limiter(
    autojump_clock: MockClock,
) -> None:
    limiter, track = trio.CapacityLimiter(1), Track()
    async with open_lanes(sharing(limiter, "main", "cron")) as lanes:
        for i in range(6):
            lanes.submit_nowait(track.sleep, i, 10, lane="main" if i % 2 else "cron")
        lanes.lane("main").concurrency = 4
        assert limiter.total_tokens == lanes.lane("cron").concurrency == 4
        await wait_all_tasks_blocked()
        assert track.running == 4
        lanes.lane("cron").concurrency = 1
        assert lanes.lane("main").concurrency == 1
        await trio.sleep(5)
        assert track.running == 4
        await trio.sleep(10)
        assert track.running == 1
    assert trio.current_time() == 30.0


async def test_what_the_application_does_to_the_limiter_itself_counts_too(
    autojump_clock: MockClock,
) -> None:
    limiter, track = trio.CapacityLimiter(0), Track()
    async with open_lanes(sharing(limiter)) as lanes:
        for i in range(3):
            lanes.submit_nowait(track.sleep, i, 10)
        await wait_all_tasks_blocked()
        assert track.running == 0
        limiter.total_tokens = 2
        await wait_all_tasks_blocked()
        assert track.running == 2
        limiter.total_tokens = 1
    assert trio.current_time() == 20.0


@pytest.mark.parametrize("bad", [-1, 1.5, "4", True])
async def test_a_concurrency_that_is_no_count_is_refused_and_changes_nothing(
    autojump_clock: MockClock, bad: Any
) -> None:
    limiter = trio.CapacityLimiter(3)
    async with open_lanes(sharing(limiter)) as lanes:
        with pytest.raises((TypeError, ValueError), match="concurrency"):
            lanes.lane("main").concurrency = bad
    assert limiter.total_tokens == 3


def test_a_limiter_is_no_companion_of_a_concurrency_and_not_for_sessions() -> None:
    limiter = trio.CapacityLimiter(3)
    with pytest.raises(ValueError, match=r"concurrency must be left out.*got 2"):
        LaneConfig(limiter=limiter, concurrency=2)
    assert LaneConfig(limiter=limiter, concurrency=1).limiter is limiter
    with pytest.raises(ValueError, match="sessions cannot have limiter="):
        open_lanes(sessions=LaneConfig(limiter=limiter))
    with pytest.raises(ValueError, match=r"session:vip.*limiter="):
        open_lanes({"main": 1, "session:vip": LaneConfig(limiter=limiter)})
    not_one: Any = 3
    with pytest.raises(TypeError, match="limiter"):
        LaneConfig(limiter=not_one)


async def test_a_number_does_not_configure_a_lane_with_a_shared_limiter(
    autojump_clock: MockClock,
) -> None:
    limiter = trio.CapacityLimiter(3)
    async with open_lanes(sharing(limiter)) as lanes:
        with pytest.raises(ValueError, match="'main' has a shared limiter"):
            lanes.configure({"main": 2})
        assert limiter.total_tokens == 3


async def test_the_limiter_of_a_lane_may_change_while_nothing_runs_in_it(
    autojump_clock: MockClock,
) -> None:
    old, new, track = trio.CapacityLimiter(1), trio.CapacityLimiter(2), Track()
    async with open_lanes(sharing(old)) as lanes:
        lane = lanes.lane("main")
        running = lanes.submit_nowait(track.sleep, "first")
        for config in (LaneConfig(limiter=new), LaneConfig(concurrency=5)):
            with pytest.raises(ValueError, match="cannot have another limiter while 1 jobs run"):
                lanes.configure({"main": config})
            assert lane.limiter is old
        await running.wait()
        await old.acquire()
        for i in range(3):
            lanes.submit_nowait(track.sleep, i)
        await wait_all_tasks_blocked()
        lanes.configure({"main": LaneConfig(limiter=new)})
        await wait_all_tasks_blocked()
        assert (track.running, new.borrowed_tokens) == (2, 2)
        assert old.statistics().tasks_waiting == 0
        await lanes.wait_idle()
        lanes.configure({"main": LaneConfig(concurrency=3)})
        assert lane.concurrency == 3
        assert lane.limiter not in (old, new)
    assert new.borrowed_tokens == 0
    assert old.borrowed_tokens == 1


async def test_other_changes_leave_the_limiter_alone_while_jobs_run(
    autojump_clock: MockClock,
) -> None:
    limiter = trio.CapacityLimiter(1)
    async with open_lanes(sharing(limiter)) as lanes:
        lanes.submit_nowait(trio.sleep, 1)
        lanes.configure({"main": LaneConfig(limiter=limiter, max_waiting=1)})
        assert lanes.lane("main").config.max_waiting == 1
        assert limiter.borrowed_tokens == 1


# ---- resets, ends, lending


async def test_a_reset_gives_the_tokens_back_at_once(autojump_clock: MockClock) -> None:
    limiter, track = trio.CapacityLimiter(1), Track()
    async with open_lanes(sharing(limiter)) as lanes:

        async def stuck() -> None:
            with trio.CancelScope(shield=True):
                await track.sleep("stuck", 30)

        lanes.submit_nowait(stuck)
        lanes.submit_nowait(track.sleep, "next")
        await wait_all_tasks_blocked()
        assert lanes.reset("main") == 1
        await trio.sleep(0.5)
        assert track.running == 2
        await trio.sleep(1)
        assert limiter.borrowed_tokens == 0
    assert track.ended == ["next", "stuck"]


async def test_a_reset_without_waiting_jobs_gives_the_tokens_to_other_code(
    autojump_clock: MockClock,
) -> None:
    limiter = trio.CapacityLimiter(1)
    async with open_lanes(sharing(limiter)) as lanes:
        lanes.submit_nowait(trio.sleep_forever)
        await wait_all_tasks_blocked()
        lanes.reset()
        limiter.acquire_nowait()


async def test_leaving_the_lanes_does_not_wait_for_tokens_that_no_job_needs(
    autojump_clock: MockClock,
) -> None:
    limiter = trio.CapacityLimiter(1)
    await limiter.acquire()
    async with open_lanes(sharing(limiter)) as lanes:
        job = lanes.submit_nowait(trio.sleep, 1)
        await wait_all_tasks_blocked()
        job.cancel()
    assert limiter.statistics().tasks_waiting == 0
    assert trio.current_time() == 0.0


async def test_lanes_that_are_cancelled_leave_nothing_at_the_limiter(
    autojump_clock: MockClock,
) -> None:
    limiter = trio.CapacityLimiter(1)
    with trio.CancelScope() as scope:
        async with open_lanes(sharing(limiter, "main", "cron")) as lanes:
            lanes.submit_nowait(trio.sleep_forever)
            waiting = [lanes.submit_nowait(trio.sleep, 1, lane=lane) for lane in ("main", "cron")]
            await wait_all_tasks_blocked()
            assert limiter.statistics().tasks_waiting == 2
            scope.cancel()
            await trio.sleep_forever()
    assert limiter.statistics().tasks_waiting == limiter.borrowed_tokens == 0
    assert [job.state for job in waiting] == [JobState.CANCELLED] * 2


async def test_a_lane_that_has_been_left_with_all_tokens_lent_gives_them_to_other_code(
    autojump_clock: MockClock,
) -> None:
    limiter, track = trio.CapacityLimiter(1), Track()

    async def lends() -> None:
        job = current_job()
        assert job is not None
        async with job.yield_slot():
            assert limiter.borrowed_tokens == 0
            async with limiter:
                await track.sleep("other", 5)
        assert limiter.statistics().borrowers == [job]
        await track.sleep("after")

    async with open_lanes(sharing(limiter)) as lanes:
        await lanes.run(lends)
    assert track.started == ["other", "after"]
    assert limiter.borrowed_tokens == 0


async def test_a_job_that_takes_a_lent_token_back_queues_with_other_code_and_before_its_lane(
    autojump_clock: MockClock,
) -> None:
    limiter, track = trio.CapacityLimiter(1), Track()

    async def lends() -> None:
        job = current_job()
        assert job is not None
        async with job.yield_slot():
            await trio.sleep(1)
        await track.sleep("lender")

    async def other_code(label: str) -> None:
        async with limiter:
            await track.sleep(label, 2)

    async with trio.open_nursery() as nursery:
        async with open_lanes(sharing(limiter)) as lanes:
            lanes.submit_nowait(lends)
            await wait_all_tasks_blocked()
            nursery.start_soon(other_code, "other1")
            await wait_all_tasks_blocked()
            nursery.start_soon(other_code, "other2")
            await trio.sleep(1.5)
            assert limiter.statistics().tasks_waiting == 2
            lanes.submit_nowait(track.sleep, "waiting", priority=9)
            await wait_all_tasks_blocked()
            assert limiter.statistics().tasks_waiting == 2
            nursery.start_soon(other_code, "other3")
    assert track.started == ["other1", "other2", "lender", "other3", "waiting"]


@pytest.mark.parametrize("how", ["reset", "lend again"])
async def test_no_task_waits_at_the_limiter_for_a_slot_that_is_not_wanted_back_any_more(
    autojump_clock: MockClock, how: str
) -> None:
    limiter = trio.CapacityLimiter(1)

    async def lend(job: Job[Any], seconds: float) -> None:
        async with job.yield_slot():
            await trio.sleep(seconds)

    async def lends() -> None:
        job = current_job()
        assert job is not None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lend, job, 1)
            await trio.sleep(2)
            if how == "lend again":
                await lend(job, 5)

    async with open_lanes(sharing(limiter)) as lanes:
        job = lanes.submit_nowait(lends)
        await wait_all_tasks_blocked()
        await limiter.acquire()
        await trio.sleep(1.5)
        assert limiter.statistics().tasks_waiting == 1
        if how == "reset":
            assert lanes.reset() == 1
        await trio.sleep(1)
        assert limiter.statistics().tasks_waiting == 0
        if how == "lend again":
            await trio.sleep(10)
            assert limiter.statistics().tasks_waiting == 1
            limiter.release()
            await job.wait()
    assert limiter.statistics().tasks_waiting == 0
    assert trio.current_time() == (2.5 if how == "reset" else 12.5)


async def test_a_template_lane_with_a_shared_limiter_goes_when_it_is_idle(
    autojump_clock: MockClock,
) -> None:
    limiter, track = trio.CapacityLimiter(1), Track()
    async with open_lanes({"main": 1, "sub:*": LaneConfig(limiter=limiter)}) as lanes:
        for name in "abc":
            lanes.submit_nowait(track.sleep, name, lane=f"sub:{name}")
            await wait_all_tasks_blocked()
        await lanes.wait_idle()
        assert list(lanes.statistics().lanes) == ["main"]
    assert track.started == ["a", "b", "c"]
    assert limiter.borrowed_tokens == 0


# ---- in a group


async def test_in_a_group_a_lane_asks_only_when_the_group_would_let_it_start(
    autojump_clock: MockClock,
) -> None:
    limiter, track = trio.CapacityLimiter(1), Track()
    config: dict[str, Any] = {"main": 2, **sharing(limiter, "shared")}
    group = LaneGroup(["main", "shared"], concurrency=1)
    async with open_lanes(config, groups={"all": group}) as lanes:
        await limiter.acquire()
        lanes.submit_nowait(track.sleep, "main0")
        lanes.submit_nowait(track.sleep, "shared", lane="shared")
        await wait_all_tasks_blocked()
        assert limiter.statistics().tasks_waiting == 0  # it lacks the group's token too
        await trio.sleep(1.5)
        assert limiter.statistics().tasks_waiting == 1  # only this job
        lanes.submit_nowait(track.sleep, "main1")  # passes it over: it holds no budget
        await wait_all_tasks_blocked()
        assert track.started == ["main0", "main1"]
        limiter.release()  # comes while the group has no token, so it goes back
        await wait_all_tasks_blocked()
        assert limiter.borrowed_tokens == 0
    assert track.started == ["main0", "main1", "shared"]
    assert track.peak == 1


# ---- any history


Operation = tuple[str, int, int]


@settings(max_examples=examples(60))
@given(
    st.random_module(),
    st.lists(
        st.tuples(
            st.sampled_from(
                ["submit"] * 4
                + ["hold", "free", "cancel", "pause", "resume", "size", "clear", "reset", "lend"]
                + ["raise", "sleep", "sleep", "unlend", "acquire"]
            ),
            st.integers(0, 7),
            st.integers(0, 3),
        ),
        max_size=60,
    ),
)
def test_no_history_leaks_a_token_or_a_waiter_or_lets_a_token_lie(
    random_module: random.Random, operations: list[Operation]
) -> None:
    trio.run(_live_through, operations, clock=MockClock(autojump_threshold=0))


async def _live_through(operations: list[Operation]) -> None:
    limiter, recorder = trio.CapacityLimiter(2), LaneRecorder()
    names = ("main", "cron")
    jobs: list[Job[Any]] = []
    held: list[object] = []
    asking: list[trio.CancelScope] = []
    gates: dict[int, trio.Event] = {}

    async def body(seconds: float) -> None:
        job = current_job()
        assert job is not None
        await trio.sleep(seconds)
        if job.id in gates:
            async with job.yield_slot():
                await gates[job.id].wait()
        await trio.sleep(seconds)

    async def ask(scope: trio.CancelScope) -> None:
        with scope:
            async with limiter:
                await trio.sleep(1)
        asking.remove(scope)

    def pick(number: int) -> Job[Any] | None:
        return jobs[number % len(jobs)] if jobs else None

    async with trio.open_nursery() as nursery:
        async with open_lanes(sharing(limiter, *names), instruments=[recorder]) as lanes:

            def hold(number: int, size: int) -> None:
                try:
                    limiter.acquire_on_behalf_of_nowait(token := object())
                except trio.WouldBlock:
                    return
                held.append(token)

            def acquire(number: int, size: int) -> None:
                if number % 2 and asking:
                    asking[number % len(asking)].cancel()
                else:
                    asking.append(trio.CancelScope())
                    nursery.start_soon(ask, asking[-1])

            def lend(number: int, size: int) -> None:
                job = pick(number)
                if job is not None:
                    gates.setdefault(job.id, trio.Event())

            def act(kind: str, number: int, size: int) -> None:
                lane = lanes.lane(names[number % 2])
                job = pick(number)
                if kind == "submit":
                    session = f"s{size}" if size else None
                    jobs.append(
                        lane.submit_nowait(body, size, session=session, priority=number // 4)
                    )
                elif kind == "free" and held:
                    limiter.release_on_behalf_of(held.pop(number % len(held)))
                elif kind == "cancel" and job is not None:
                    job.cancel()
                elif kind == "raise" and job is not None and job.state is JobState.WAITING:
                    job.priority = size
                elif kind == "unlend" and job is not None and job.id in gates:
                    gates[job.id].set()
                elif kind == "pause":
                    lane.pause()
                elif kind == "resume":
                    lane.resume()
                elif kind == "size":
                    lane.concurrency = size
                elif kind == "clear":
                    lane.clear()
                elif kind == "reset":
                    lane.reset()

            others: dict[str, Callable[[int, int], None]] = {
                "hold": hold,
                "acquire": acquire,
                "lend": lend,
            }
            for kind, number, size in operations:
                if kind == "sleep":
                    await trio.sleep(size / 2)
                elif kind in others:
                    others[kind](number, size)
                else:
                    act(kind, number, size)
                if number % 3:
                    await wait_all_tasks_blocked()
                    _nothing_lies_about(lanes_of := [lanes.lane(name) for name in names], limiter)
                    waiters = limiter.statistics().tasks_waiting
                    assert waiters <= len(lanes_of) + len(asking)
            for gate in gates.values():
                gate.set()
            for token in held:
                limiter.release_on_behalf_of(token)
            lanes.resume()
            limiter.total_tokens = 2
    recorder.check()
    assert all(job.done for job in jobs)
    assert limiter.borrowed_tokens == limiter.statistics().tasks_waiting == 0


def _nothing_lies_about(lanes: list[Any], limiter: trio.CapacityLimiter) -> None:
    """No token is free while a lane could use it; and none is lent for a job that does not run."""
    in_line = sum(lane.statistics().waiting_in_lane for lane in lanes if not lane.paused)
    assert not (in_line and limiter.available_tokens >= 1)
    for borrower in limiter.statistics().borrowers:
        assert not isinstance(borrower, Job) or borrower.state is JobState.RUNNING


async def test_a_job_whose_lent_slot_has_just_come_back_is_listed_once(
    mock_clock: MockClock,
) -> None:
    shared = trio.CapacityLimiter(1)
    enough = trio.Event()

    async def lend() -> None:
        job = current_job()
        assert job is not None
        async with job.yield_slot():
            await enough.wait()

    async with open_lanes({"main": LaneConfig(limiter=shared)}) as lanes:
        job = lanes.submit_nowait(lend)
        await wait_all_tasks_blocked()
        async with shared:
            enough.set()
            await wait_all_tasks_blocked()
        # The token is the job's, and the task of the lane that has asked for it has yet to run.
        assert lanes.jobs() == [job]
