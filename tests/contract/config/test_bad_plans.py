"""Configurations that contradict themselves or lanes in use are refused, with nothing changed."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from trio_lanes import (
    JobState,
    LaneClearedError,
    LaneConfig,
    LaneGroup,
    RateLimit,
    UnknownLaneError,
    open_lanes,
)


async def no_op() -> None:
    pass


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: LaneGroup("main"), TypeError, "members.*'main'"),
        (lambda: LaneGroup(["a", " a "]), ValueError, "members.*twice"),
        (lambda: LaneGroup(["a"], concurrency=-1), ValueError, "concurrency.*-1"),
        (lambda: LaneGroup(["a"], reserve=3), TypeError, "reserve.*3"),  # type: ignore[arg-type]
        (lambda: LaneGroup(["a"], reserve={"b": 1}), ValueError, "reserve.*'b'"),
        (lambda: LaneGroup(["a"], reserve={"a": -1}), ValueError, r"reserve\['a'\].*-1"),
        (lambda: LaneGroup(["a"], 1, {"a": 2}), ValueError, "reserve.*more than the concurrency"),
        (lambda: LaneConfig(aging=0), ValueError, "aging.*0"),
        (lambda: LaneConfig(limiter=3), TypeError, "limiter"),  # type: ignore[arg-type]
        (lambda: LaneConfig(limiter=trio.CapacityLimiter(2), concurrency=2), ValueError, "limiter"),
        (lambda: LaneConfig(rate="fast"), TypeError, "rate.*'fast'"),  # type: ignore[arg-type]
    ],
)
def test_a_bad_group_or_lane_is_an_error_where_it_is_made(
    make: Any, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=f"(?s){says}"):
        make()


def test_a_reservation_resolves_names_of_lanes_and_is_a_copy() -> None:
    reserve = {" main ": 1}
    group = LaneGroup(["main", "cron"], 2, reserve)
    reserve[" main "] = 9
    assert group.reserve == {"main": 1}
    assert "reserve={'main': 1}" in repr(group)


@pytest.mark.parametrize(
    ("groups", "error", "says"),
    [
        ([], TypeError, "groups"),
        ({"g": ["main"]}, TypeError, "group 'g'"),
        ({5: LaneGroup(["main"])}, TypeError, "group name.*5"),
        ({"g": LaneGroup(["nowhere"])}, ValueError, "'g'.*'nowhere'"),
        ({"g": LaneGroup(["main"]), "h": LaneGroup(["main"])}, ValueError, r"'main'.*'g', 'h'"),
    ],
)
async def test_bad_groups_are_refused_when_opening_and_when_configuring(
    groups: Any, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        open_lanes({"main": 1}, groups=groups)
    async with open_lanes({"main": 1}) as lanes:
        with pytest.raises(error, match=says):
            lanes.configure({"main": 5, "new": 1}, groups)
        assert lanes.lane("main").concurrency == 1
        assert set(lanes.statistics().lanes) == {"main"}


async def test_a_lane_that_is_in_a_group_cannot_be_removed_without_it(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"a": 1, "b": 1}, groups={"g": LaneGroup(["a", "b"])}) as lanes:
        with pytest.raises(ValueError, match=r"'g'.*'b'"):
            lanes.configure({"b": None})
        view = lanes.lane("b")
        lanes.configure({"b": None}, {"g": LaneGroup(["a"])})
        with pytest.raises(UnknownLaneError):
            _ = view.limiter


async def test_the_limiter_of_a_lane_changes_only_while_nothing_runs_in_it(
    autojump_clock: MockClock,
) -> None:
    shared = trio.CapacityLimiter(1)
    async with open_lanes({"main": 1}) as lanes:
        job = lanes.submit_nowait(trio.sleep, 1)
        waiting = lanes.submit_nowait(no_op)
        with pytest.raises(ValueError, match="another limiter while 1 jobs run"):
            lanes.configure({"main": LaneConfig(limiter=shared)})
        waiting.cancel()
        await job.wait()
        lanes.configure({"main": LaneConfig(limiter=shared)})
        assert lanes.lane("main").limiter is shared
        with pytest.raises(ValueError, match="shared limiter"):
            lanes.configure({"main": 3})
        lanes.lane("main").concurrency = 3
        assert shared.total_tokens == lanes.lane("main").concurrency == 3
        shared.total_tokens = 0
        asking = lanes.submit_nowait(no_op)
        await trio.sleep(1)
        assert shared.statistics().tasks_waiting == 1
        lanes.configure({"main": LaneConfig(concurrency=2)})
        await asking.wait()
        assert shared.statistics().tasks_waiting == 0
        assert lanes.lane("main").limiter is not shared


async def test_only_run_lends_a_slot_and_only_inside_a_job(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 1}) as lanes:
        for submit in (lanes.submit_nowait, lanes.start_soon):
            with pytest.raises(ValueError, match="yield_slot"):
                submit(no_op, yield_slot=True)
        with pytest.raises(ValueError, match="yield_slot"):
            await lanes.submit(no_op, yield_slot=True)
        with pytest.raises(RuntimeError, match="not inside"):
            await lanes.run(no_op, yield_slot=True)
        assert lanes.jobs() == []


async def test_what_only_a_running_job_can_do_is_refused_otherwise(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        lanes.pause()
        job = lanes.submit_nowait(no_op)
        job.progress()  # says nothing: it does not run
        with pytest.raises(RuntimeError, match="no slot"):
            async with job.yield_slot():
                raise AssertionError
        with pytest.raises(RuntimeError, match="does not run"):
            await job.readmit()
        lanes.resume()
        await job.wait()
        with pytest.raises(RuntimeError, match="does not run"):
            await job.readmit()


async def test_progress_may_come_before_the_body_has_begun(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 1}) as lanes:
        job = lanes.submit_nowait(trio.sleep, 1, idle_timeout=2)
        job.progress()
        await job.wait()


async def test_a_longer_pause_takes_the_place_of_a_shorter_one(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": LaneConfig(rate=RateLimit(9))}) as lanes:
        lanes.pause_for("main", 4)
        lanes.pause_for("main", 10)
        job = lanes.submit_nowait(no_op)
        await job.wait()
        assert job.started_at == pytest.approx(10)


async def test_a_fair_lane_becomes_a_plain_lane_and_back_with_its_jobs(
    autojump_clock: MockClock,
) -> None:
    order: list[str] = []

    async def note(name: str) -> None:
        order.append(name)

    async with open_lanes({"main": LaneConfig(paused=True)}) as lanes:
        for name in ("a1", "a2", "a3", "b1", "b2", "gone"):
            lanes.submit_nowait(note, name, owner=name[0], name=name)
        lanes.configure({"main": LaneConfig(paused=True, fair=True)})
        assert lanes.statistics().waiting == 6
        assert lanes.clear(owner="g") == 1
        lanes.configure({"main": LaneConfig(paused=True)})
        lanes.configure({"main": LaneConfig(fair=True)})
        await lanes.wait_idle()
    assert order == ["a1", "b1", "a2", "b2", "a3"]


async def test_hooks_may_submit_to_more_sessions_at_once_than_spare_parts_are_kept(
    autojump_clock: MockClock,
) -> None:
    class FanOut:
        def job_started(self, job: Any) -> None:
            if job.name == "first":
                for number in range(150):
                    lanes.submit_nowait(no_op, session=f"s{number}")

    async with open_lanes({"main": 200}, instruments=[FanOut()]) as lanes:
        lanes.submit_nowait(no_op, name="first")
        await lanes.wait_idle()
        assert lanes.statistics().lanes["main"].finished == 151


async def test_a_hook_may_submit_when_a_deadline_has_just_withdrawn_a_job(
    autojump_clock: MockClock,
) -> None:
    class Replace:
        def job_finished(self, job: Any) -> None:
            if job.name == "withdrawn":
                lanes.submit_nowait(no_op, name="instead")

    async with open_lanes({"main": 1, "cron": 1}, instruments=[Replace()]) as lanes:
        lanes.submit_nowait(trio.sleep, 5, lane="cron", name="running")
        lanes.pause("main")
        with trio.move_on_after(1):
            await lanes.run(no_op, name="withdrawn")
        assert [job.name for job in lanes.jobs()] == ["running", "instead"]
        assert lanes.jobs()[1].parent is None
        lanes.resume("main")


async def test_a_hook_that_is_told_of_a_cleared_job_finds_the_others_cleared_too(
    autojump_clock: MockClock,
) -> None:
    class Both:
        def job_finished(self, job: Any) -> None:
            assert not jobs[1].cancel()

    async with open_lanes({"main": 1}, instruments=[Both()]) as lanes:
        lanes.pause()
        jobs = [lanes.submit_nowait(no_op) for _ in range(3)]
        assert lanes.clear() == 3
        assert {type(job.exception) for job in jobs} == {LaneClearedError}


async def test_a_hook_may_pause_the_lane_that_its_group_serves_next(
    autojump_clock: MockClock,
) -> None:
    class Pause:
        def job_started(self, job: Any) -> None:
            lanes.pause("cron")

    group = LaneGroup(["main", "cron"], concurrency=2)
    config = {"main": 1, "cron": 1, "other": 1}
    async with open_lanes(config, groups={"key": group}, instruments=[Pause()]) as lanes:
        lanes.pause()
        lanes.submit_nowait(trio.sleep, 1)
        waits = lanes.submit_nowait(trio.sleep, 1, lane="cron")
        lanes.resume()
        await trio.sleep(5)
        assert waits.state is JobState.WAITING
        lanes.resume("cron")


async def test_a_hook_may_reset_the_lane_that_is_being_reset(autojump_clock: MockClock) -> None:
    class Again:
        def job_finished(self, job: Any) -> None:
            lanes.reset()

    async with open_lanes({"main": 2}, instruments=[Again()]) as lanes:
        jobs = [lanes.submit_nowait(trio.sleep, 9) for _ in range(2)]
        await trio.sleep(1)
        assert lanes.reset() >= 1
        assert all(job.done for job in jobs)
        await trio.sleep(1)
        assert lanes.statistics().abandoned == 0
