"""`LaneRecorder`: what it tells, and that it finds each way of breaking the contract.

Lanes do not break it on request, so most of these tests call the recorder's hooks by hand, with
real jobs, at the wrong moment.
"""

from __future__ import annotations

import gc
import weakref
from typing import Any

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from trio_lanes import (
    Job,
    JobState,
    LaneConfig,
    LaneGroup,
    Lanes,
    RateLimit,
    current_job,
    open_lanes,
)
from trio_lanes.testing import LaneRecorder


async def sleep(seconds: float = 1.0) -> None:
    await trio.sleep(seconds)


def found(recorder: LaneRecorder) -> str:
    """What ``check`` complains of."""
    with pytest.raises(AssertionError) as caught:
        recorder.check()
    return str(caught.value)


async def test_it_records_the_order_in_which_jobs_were_submitted_started_and_finished(
    autojump_clock: trio.testing.MockClock,
) -> None:
    recorder = LaneRecorder()
    async with open_lanes({"main": 2}, instruments=[recorder]) as lanes:
        lanes.submit_nowait(sleep, 3.0, session="alice", name="long")
        lanes.submit_nowait(sleep, 1.0, session="bob", name="short")
        lanes.submit_nowait(sleep, 1.0, session="alice", name="never").cancel()
        lanes.submit_nowait(sleep, 1.0, name="last", priority=3)
        recorder.check()
    recorder.check()
    assert [job.name for job in recorder.submitted] == ["long", "short", "never", "last"]
    assert [job.name for job in recorder.started] == ["long", "short", "last"]
    assert [job.name for job in recorder.finished] == ["never", "short", "last", "long"]
    last = recorder.finished[2]
    assert (last.id, last.session, last.lane, last.priority) == (4, None, "main", 3)
    assert last.state is JobState.SUCCEEDED
    assert (last.submitted_at, last.started_at, last.finished_at) == (0.0, 1.0, 2.0)
    never = recorder.finished[0]
    assert (never.state, never.started_at, never.finished_at) == (JobState.CANCELLED, None, 0.0)
    assert "4 submitted, 3 started, 4 finished, 0 violations" in repr(recorder)


async def test_peak_is_the_most_slots_in_use_at_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    recorder = LaneRecorder()
    async with open_lanes(
        {"main": 3, "cron": 2}, sessions=LaneConfig(concurrency=2), instruments=[recorder]
    ) as lanes:
        for _ in range(5):
            lanes.submit_nowait(sleep, session="alice")
        lanes.submit_nowait(sleep, session="bob")
    assert recorder.peak("main") == 3
    assert recorder.peak("session:alice") == 2
    assert recorder.peak("session:bob") == 1
    assert recorder.peak("cron") == recorder.peak("session:carol") == 0


async def test_a_reset_frees_the_slot_so_its_body_and_its_successor_do_not_overlap(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def stuck() -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(10)

    recorder = LaneRecorder()
    async with open_lanes({"main": 1}, instruments=[recorder]) as lanes:
        lanes.submit_nowait(stuck, session="alice")
        lanes.submit_nowait(sleep, session="alice")
        await wait_all_tasks_blocked()
        assert lanes.reset() == 1
        recorder.check()
    recorder.check()
    assert recorder.peak("main") == 1


async def test_it_keeps_no_ended_job_alive(autojump_clock: trio.testing.MockClock) -> None:
    recorder = LaneRecorder()
    async with open_lanes({"main": 1}, instruments=[recorder]) as lanes:
        job = lanes.submit_nowait(sleep, session="alice")
        assert recorder.submitted[0].job is job
        await job.wait()
        gone = weakref.ref(job)
        del job
        await wait_all_tasks_blocked()
        gc.collect()
        assert gone() is None
        assert recorder.finished[0].job is None
    recorder.check()


class Meddler:
    """An instrument that acts on each job as soon as it hears of it at one hook."""

    def __init__(self, hook: str, act: Any) -> None:
        setattr(self, hook, act)


@pytest.mark.parametrize("first", ["meddler", "recorder"])
@pytest.mark.parametrize("hook", ["job_submitted", "job_forwarded"])
async def test_a_job_that_another_instrument_cancels_is_no_violation(
    hook: str, first: str, autojump_clock: trio.testing.MockClock
) -> None:
    recorder, meddler = LaneRecorder(), Meddler(hook, lambda job: job.cancel())
    instruments: list[Any] = [meddler, recorder] if first == "meddler" else [recorder, meddler]
    async with open_lanes({"main": 1}, instruments=instruments) as lanes:
        lanes.submit_nowait(sleep, session="alice")
        recorder.check()
    recorder.check()
    assert [job.state for job in recorder.finished] == [JobState.CANCELLED]
    assert recorder.started == []


@pytest.mark.parametrize("first", ["meddler", "recorder"])
async def test_a_job_that_another_instrument_resets_is_no_violation(
    first: str, autojump_clock: trio.testing.MockClock
) -> None:
    opened: list[Lanes] = []
    recorder, meddler = LaneRecorder(), Meddler("job_started", lambda job: opened[0].reset("main"))
    instruments: list[Any] = [meddler, recorder] if first == "meddler" else [recorder, meddler]
    async with open_lanes({"main": 1}, instruments=instruments) as lanes:
        opened.append(lanes)
        lanes.submit_nowait(sleep, session="alice")
        lanes.submit_nowait(sleep)
    recorder.check()
    assert len(recorder.started) == len(recorder.finished) == 2


async def test_what_another_instrument_submits_meanwhile_has_not_been_overtaken(
    autojump_clock: trio.testing.MockClock,
) -> None:
    def submit_better(job: Job[Any]) -> None:
        if job.priority == 0:
            for session in (None, job.session):
                lanes.submit_nowait(sleep, session=session, priority=1)

    recorder: Any = LaneRecorder()
    meddler: Any = Meddler("job_started", submit_better)
    async with open_lanes({"main": 0}, instruments=[meddler, recorder]) as lanes:
        for session in ("alice", "bob", "carol"):
            lanes.submit_nowait(sleep, session=session)
        lanes.lane("main").concurrency = 3
        await lanes.wait_idle()  # carol's job comes after the better jobs
    recorder.check()
    assert len(recorder.finished) == 9


async def test_what_another_instrument_raises_meanwhile_has_not_been_overtaken(
    autojump_clock: trio.testing.MockClock,
) -> None:
    def raise_the_last(job: Job[Any]) -> None:
        if last.state is JobState.WAITING:
            last.priority = 7

    recorder: Any = LaneRecorder()
    meddler: Any = Meddler("job_started", raise_the_last)
    async with open_lanes({"main": 0}, instruments=[meddler, recorder]) as lanes:
        for session in ("alice", "bob", "bob"):
            last = lanes.submit_nowait(sleep, session=session)
        lanes.lane("main").concurrency = 2
    recorder.check()


async def test_a_slot_that_is_lent_is_free(autojump_clock: trio.testing.MockClock) -> None:
    async def parent() -> None:
        await lanes.run(sleep, yield_slot=True)
        job = current_job()
        assert job is not None
        await job.readmit()

    recorder = LaneRecorder()
    async with open_lanes({"main": 1}, instruments=[recorder]) as lanes:
        await lanes.run(parent, session="alice")
        recorder.check()
    recorder.check()
    assert recorder.peak("main") == 1


async def test_no_job_overtakes_a_job_with_a_delay_before_it_is_due(
    autojump_clock: trio.testing.MockClock,
) -> None:
    recorder = LaneRecorder()
    async with open_lanes({"main": 1}, instruments=[recorder]) as lanes:
        for session in ("alice", None):
            lanes.submit_nowait(sleep, session=session, delay=5, name="late", priority=1)
            lanes.submit_nowait(sleep, session=session, name="early")
        await trio.sleep(3)
        recorder.check()
    recorder.check()
    assert [job.name for job in recorder.started] == ["early", "early", "late", "late"]


async def test_owners_take_turns_in_a_fair_lane(autojump_clock: trio.testing.MockClock) -> None:
    recorder = LaneRecorder()
    config = LaneConfig(fair=True)
    async with open_lanes({"main": config}, instruments=[recorder]) as lanes:
        for owner in "aaab":
            lanes.submit_nowait(sleep, owner=owner, name=owner)
    recorder.check()
    assert [job.name for job in recorder.started] == ["a", "a", "b", "a"]


async def test_owners_take_turns_also_inside_a_session_that_may_start_several_jobs(
    autojump_clock: trio.testing.MockClock,
) -> None:
    recorder = LaneRecorder()
    config = LaneConfig(fair=True)
    async with open_lanes(
        {"main": config}, sessions=LaneConfig(concurrency=3), instruments=[recorder]
    ) as lanes:
        for owner in "aab":
            lanes.submit_nowait(sleep, owner=owner, name=owner, session="alice")
        lanes.submit_nowait(sleep, owner="a", name="a", session="alice")
    recorder.check()
    assert [job.name for job in recorder.started] == ["a", "a", "b", "a"]


async def test_waiting_counts_in_a_lane_with_aging(
    autojump_clock: trio.testing.MockClock,
) -> None:
    recorder = LaneRecorder()
    config = LaneConfig(aging=1.0)
    async with open_lanes({"main": config}, instruments=[recorder]) as lanes:
        lanes.submit_nowait(sleep, 5.0, name="first")
        lanes.submit_nowait(sleep, name="old")
        await trio.sleep(4)
        lanes.submit_nowait(sleep, name="new", priority=3)
    recorder.check()
    assert [job.name for job in recorder.started] == ["first", "old", "new"]


async def test_what_waits_for_a_rate_or_a_group_or_a_shared_limiter_does_not_wait_in_vain(
    autojump_clock: trio.testing.MockClock,
) -> None:
    recorder = LaneRecorder()
    shared = trio.CapacityLimiter(1)
    config = {
        "rated": LaneConfig(concurrency=9, rate=RateLimit(1, 60.0)),
        "grouped": LaneConfig(concurrency=9),
        "shared": LaneConfig(limiter=shared),
    }
    async with open_lanes(
        config,
        sessions=LaneConfig(concurrency=2, rate=RateLimit(1, 60.0)),
        groups={"all": LaneGroup(["grouped"], concurrency=1)},
        instruments=[recorder],
    ) as lanes:
        async with shared:
            for lane in config:
                lanes.submit_nowait(sleep, lane=lane)
                lanes.submit_nowait(sleep, lane=lane)
                lanes.submit_nowait(sleep, lane=lane, session=lane)
                lanes.submit_nowait(sleep, lane=lane, session=lane)
            await trio.sleep(0.5)
            recorder.check()
    recorder.check()
    assert len(recorder.finished) == 12


# ---- it finds ...


async def paused(lanes: Lanes, count: int, **options: Any) -> list[Job[None]]:
    """Jobs that wait in a lane that is paused."""
    lanes.pause("main")
    return [lanes.submit_nowait(sleep, name=f"job{i}", **options) for i in range(count)]


async def test_it_finds_a_job_that_overtakes_another_in_its_session(
    autojump_clock: trio.testing.MockClock,
) -> None:
    recorder = LaneRecorder()
    async with open_lanes({"main": 4}, instruments=[recorder]) as lanes:
        jobs = await paused(lanes, 2, session="alice")
        recorder.job_started(jobs[1])
        assert (
            "job 2 'job1' of session 'alice' in 'main' overtook job 1 'job0' of session 'alice' "
            "in 'main', which comes before it in its session" in found(recorder)
        )
        lanes.resume("main")


async def test_it_finds_a_job_that_overtakes_a_higher_priority_in_its_session(
    autojump_clock: trio.testing.MockClock,
) -> None:
    recorder = LaneRecorder()
    async with open_lanes({"main": 4}, instruments=[recorder]) as lanes:
        jobs = await paused(lanes, 2, session="alice")
        jobs[1].priority = 1
        recorder.job_started(jobs[0])
        assert "job0" in found(recorder).split("overtook")[0]
        lanes.resume("main")


async def test_it_finds_a_start_beyond_the_best_of_a_session_though_in_another_lane(
    autojump_clock: trio.testing.MockClock,
) -> None:
    recorder = LaneRecorder()
    async with open_lanes({"main": 4, "cron": 0}, instruments=[recorder]) as lanes:
        lanes.pause("main")
        first = lanes.submit_nowait(sleep, lane="cron", session="alice")
        second = lanes.submit_nowait(sleep, session="alice")
        recorder.job_started(second)
        assert "started while job 1" in found(recorder)
        lanes.resume("main")
        first.cancel()


async def test_two_slots_of_a_session_may_be_used_in_two_lanes(
    autojump_clock: trio.testing.MockClock,
) -> None:
    recorder = LaneRecorder()
    async with open_lanes(
        {"main": 4, "cron": 0}, sessions=LaneConfig(concurrency=2), instruments=[recorder]
    ) as lanes:
        first = lanes.submit_nowait(sleep, lane="cron", session="alice")
        await lanes.run(sleep, session="alice")
        recorder.check()
        first.cancel()


async def test_it_finds_a_job_that_overtakes_another_in_its_lane(
    autojump_clock: trio.testing.MockClock,
) -> None:
    recorder = LaneRecorder()
    async with open_lanes({"main": 4}, instruments=[recorder]) as lanes:
        jobs = await paused(lanes, 2)
        recorder.job_started(jobs[1])
        assert "job 2 'job1' in 'main' overtook job 1" in found(recorder)
        assert "which comes before it in its lane" in found(recorder)
        lanes.resume("main")


async def test_it_finds_an_owner_that_overtakes_itself_in_a_fair_lane(
    autojump_clock: trio.testing.MockClock,
) -> None:
    recorder = LaneRecorder()
    async with open_lanes({"main": LaneConfig(fair=True)}, instruments=[recorder]) as lanes:
        jobs = await paused(lanes, 2, owner="alice")
        other = lanes.submit_nowait(sleep, owner="bob")
        recorder.job_started(jobs[1])
        said = found(recorder)
        assert "job 2 'job1' in 'main' overtook job 1 'job0' in 'main'" in said
        recorder.job_started(other)
        assert "job 3" not in "".join(part for part in recorder.violations if "overtook" in part)
        lanes.resume("main")


async def test_it_finds_a_higher_priority_that_comes_before_a_longer_wait_that_outweighs_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    recorder = LaneRecorder()
    async with open_lanes({"main": LaneConfig(aging=1.0)}, instruments=[recorder]) as lanes:
        await paused(lanes, 1)
        await trio.sleep(2)
        recorder.job_started(lanes.submit_nowait(sleep, name="higher", priority=3))
        assert all("overtook" not in said for said in recorder.violations)
        recorder.job_started(lanes.submit_nowait(sleep, name="high", priority=1))
        assert "'high' in 'main' overtook job 1 'job0' in 'main'" in found(recorder)
        lanes.resume("main")


async def test_it_finds_too_many_at_once(autojump_clock: trio.testing.MockClock) -> None:
    recorder = LaneRecorder()
    async with open_lanes({"main": 1}, instruments=[recorder]) as lanes:
        lanes.submit_nowait(sleep, session="alice")
        second = lanes.submit_nowait(sleep, session="alice")
        recorder.job_started(second)
        said = found(recorder)
        assert "took slot 2 of 1 of 'main'" in said
        assert "took slot 2 of 1 of 'session:alice'" in said
        assert "where 2 jobs then hold slots and the limiter has lent 1" in said


async def test_it_finds_what_happens_twice_or_too_late_or_against_the_table(
    autojump_clock: trio.testing.MockClock,
) -> None:
    recorder = LaneRecorder()
    async with open_lanes({"main": 1}, instruments=[recorder]) as lanes:
        job = lanes.submit_nowait(sleep)
        recorder.job_submitted(job)
        assert "was submitted twice" in found(recorder)
        recorder.job_started(job)
        assert "started twice" in found(recorder)
        withdrawn = lanes.submit_nowait(sleep)
        withdrawn.cancel()
        recorder.job_started(withdrawn)
        assert "started after it had settled" in found(recorder)
        await job.wait()
        recorder.job_finished(job)
        assert "settled twice" in found(recorder)
        late = LaneRecorder()
        late.job_submitted(job)
        assert "has settled, and this recorder got no report" in found(late)
    late = LaneRecorder()
    async with open_lanes({"main": 1}) as lanes:
        job = lanes.submit_nowait(sleep)
        late.job_submitted(job)
        late.job_started(job)
        late.job_finished(job)
        assert "is reported to have settled but is RUNNING" in found(late)


async def test_it_finds_a_start_of_a_job_that_waits(
    autojump_clock: trio.testing.MockClock,
) -> None:
    recorder = LaneRecorder()
    async with open_lanes({"main": 1}, instruments=[recorder]) as lanes:
        (job,) = await paused(lanes, 1)
        recorder.job_started(job)
        assert "was started but is WAITING" in found(recorder)
        lanes.resume()


async def test_it_finds_a_change_of_state_that_the_table_does_not_allow(
    autojump_clock: trio.testing.MockClock,
) -> None:
    recorder = LaneRecorder()
    async with open_lanes({"main": 1}) as lanes:
        (job,) = await paused(lanes, 1)
        recorder.job_submitted(job)
        lanes.resume()
        await job.wait()
        recorder.job_finished(job)  # it never heard of a start
        assert "went from WAITING to SUCCEEDED" in found(recorder)


async def test_it_finds_times_that_run_backwards(
    autojump_clock: trio.testing.MockClock,
) -> None:
    recorder = LaneRecorder()
    async with open_lanes({"main": 1}, instruments=[recorder]) as lanes:
        job = lanes.submit_nowait(sleep)
        job.submitted_at = 100.0
    assert "was submitted, started and finished at 100.0, 0.0, 1.0" in found(recorder)


class Withheld:
    """An instrument that hears nothing of some of the recorder's hooks."""

    def __init__(self, recorder: LaneRecorder, *hooks: str) -> None:
        for hook in hooks:
            setattr(self, hook, getattr(recorder, hook))


async def test_it_finds_a_job_whose_end_no_instrument_was_told_of(
    autojump_clock: trio.testing.MockClock,
) -> None:
    recorder = LaneRecorder()
    deaf: Any = Withheld(recorder, "job_submitted", "job_started")
    async with open_lanes({"main": 1}, instruments=[deaf]) as lanes:
        lanes.submit_nowait(sleep)
        recorder.check()
    assert "has settled, and this recorder got no report" in found(recorder)


def as_it_is_now(job: Job[Any]) -> Job[Any]:
    """Return an object with the present fields of ``job``, which itself cannot be copied."""
    other: Job[Any] = Job.__new__(Job)
    for field in attrs.fields(Job):
        if hasattr(job, field.name):
            setattr(other, field.name, getattr(job, field.name))
    return other


async def test_it_finds_a_job_that_is_left_behind(autojump_clock: trio.testing.MockClock) -> None:
    recorder = LaneRecorder()
    async with open_lanes({"main": 1, "cron": 1}) as lanes:
        jobs = [lanes.submit_nowait(sleep, session="alice") for _ in range(2)]
        jobs += [lanes.submit_nowait(sleep, lane="cron") for _ in range(2)]
        for job in (jobs[1], jobs[3]):
            recorder.job_submitted(as_it_is_now(job))  # no code will ever change it
        await lanes.wait_idle()
        said = found(recorder)
        assert "job 2 'sleep' of session 'alice' in 'main' waits in its session" in said
        assert "job 4 'sleep' in 'cron' waits in its lane, which could start it" in said
    said = found(recorder)
    assert "job 2 'sleep' of session 'alice' in 'main' is WAITING in lanes that have" in said
    assert "job 4 'sleep' in 'cron' is WAITING in lanes that have ended" in said
    assert "which could" not in said


async def test_a_job_that_its_session_took_back_does_not_wait_in_its_lane(
    autojump_clock: trio.testing.MockClock,
) -> None:
    recorder = LaneRecorder()
    async with open_lanes({"main": 1, "cron": 1}, instruments=[recorder]) as lanes:
        lanes.submit_nowait(sleep)
        lanes.pause("cron")
        lanes.submit_nowait(sleep, session="alice")
        lanes.submit_nowait(sleep, session="alice", lane="cron", priority=1)
        await trio.sleep(2)
        assert lanes.lane("main").waiting == lanes.lane("cron").waiting == 1
        recorder.check()
        lanes.resume()
    recorder.check()


async def test_a_check_in_the_moment_in_which_a_wait_was_cancelled_finds_nothing() -> None:
    recorder = LaneRecorder()
    async with open_lanes({"main": 0}, instruments=[recorder]) as lanes:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lanes.run, trio.sleep, 1)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()  # the caller withdraws its job
            recorder.check()
            assert [job.state for job in recorder.finished] == [JobState.CANCELLED]
