"""`replay`: what went through lanes goes through them again, as other limits would have it."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from trio_lanes import Job, LaneConfig, LaneGroup, Lanes, RateLimit, current_job, open_lanes
from trio_lanes.replay import (
    LimitChange,
    RecordedRun,
    Recording,
    as_recorded,
    read_recording,
    replay,
)
from trio_lanes.testing import LaneRecorder


def this_job() -> Job[Any]:
    job = current_job()
    assert job is not None
    return job


def recorded(
    folder: Path, work: Callable[[Lanes], Awaitable[None]], lanes: Any, **options: Any
) -> Recording:
    """What a recorder has saved of ``work``."""
    recorder = LaneRecorder()

    async def main() -> None:
        async with open_lanes(lanes, instruments=[recorder], **options) as opened:
            await work(opened)

    trio.run(main, clock=MockClock(autojump_threshold=0))
    recorder.check()
    recorder.save(folder / "x.jsonl")
    return read_recording(folder / "x.jsonl")


def run(id: int, **more: Any) -> RecordedRun:
    given: dict[str, Any] = {
        "name": f"job{id}",
        "lane": "main",
        "label": "main",
        "submitted": 0.0,
        "started": 0.0,
        "finished": 1.0,
        "state": "succeeded",
        **more,
    }
    given.setdefault("waited_from", given["submitted"])
    return RecordedRun(id=id, **given)


def recording(*jobs: RecordedRun, **more: Any) -> Recording:
    given: dict[str, Any] = {"lanes": {"main": LaneConfig(concurrency=1)}, **more}
    return Recording(seconds=10.0, jobs=jobs, **given)


def test_with_its_own_limits_a_recording_goes_as_it_went(tmp_path: Path) -> None:
    async def life() -> None:
        job = this_job()
        await trio.sleep(1)
        async with job.yield_slot():
            await trio.sleep(3)
        lanes_of[0].submit_nowait(trio.sleep, 2, lane="sub")
        await job.readmit()
        await trio.sleep(1.5)

    async def fail() -> None:
        await trio.sleep(0.7)
        raise ValueError

    async def work(lanes: Lanes) -> None:
        lanes_of.append(lanes)
        for number in range(12):
            lanes.submit_nowait(life, session=f"s{number % 5}", priority=number % 2)
            lanes.submit_nowait(fail, owner=number % 3, delay=number / 7)
            lanes.submit_nowait(trio.sleep, 4, lane="t:a", cost=2)
            await trio.sleep(1.1)
        lanes.submit_nowait(trio.sleep, 9, session="s1").cancel()
        late = lanes.submit_nowait(trio.sleep, 99, lane="sub", priority=9)
        await late.wait_started()
        late.cancel()
        lanes.pause_for("main", 2.2)
        lanes.submit_nowait(trio.sleep, 1, queue_timeout=1.3)

    lanes_of: list[Lanes] = []
    main = LaneConfig(concurrency=2, fair=True, log_failures=False)
    slow = LaneConfig(concurrency=3, rate=RateLimit(10, 5, algorithm="sliding"))
    before = recorded(
        tmp_path,
        work,
        {"main": main, "sub": 2, "t:*": slow},
        sessions=LaneConfig(concurrency=2),
        groups={"g": LaneGroup(["main", "sub"], concurrency=3)},
    )
    after = replay(before)
    told, found = as_recorded(before), after
    assert found.total.jobs == told.total.jobs == 51
    assert found.total.started == told.total.started
    for label, waits in told.lanes.items():
        # What waits for its own slot again in the recording sleeps in the replay
        assert found.lanes[label].p50 == pytest.approx(waits.p50, rel=0.25, abs=1), label
        assert found.lanes[label].per_second == pytest.approx(waits.per_second, rel=0.25), label
    states = [job.state for job in before.jobs]
    assert [job.state for job in after.jobs] == states
    assert {*states} == {"succeeded", "failed", "cancelled"}


def test_more_slots_shorten_the_waits_and_no_guarantee_is_broken(tmp_path: Path) -> None:
    async def work(lanes: Lanes) -> None:
        for number in range(40):
            lanes.submit_nowait(trio.sleep, 3, session=f"s{number % 10}")
            await trio.sleep(0.5)

    monday = recorded(tmp_path, work, {"main": 4})
    checks = LaneRecorder()
    more = replay(monday, {"main": 8}, instruments=[checks])
    checks.check()
    assert 4 < checks.peak("main") <= 8
    assert replay(monday).total.p95 > 5
    assert more.total.p95 <= 1
    assert more.total.per_second > replay(monday).total.per_second


def test_the_limits_of_sessions_groups_and_templates_can_be_set() -> None:
    jobs = [run(id, session=1, lane="t:a", label="t:*") for id in range(1, 5)]
    before = recording(
        *jobs,
        lanes={"t:*": LaneConfig(concurrency=4)},
        groups={"g": LaneGroup(["t:*"], concurrency=2)},
        sessions={1: LaneConfig(concurrency=1)},
    )
    ends = {
        "as it was": replay(before),
        "session": replay(before, {"session:*": 4}),
        "both": replay(before, {"session:*": 4, "group:g": math.inf}),
        "all": replay(before, {"session:*": 4, "group:g": math.inf, "t:*": 1}),
    }
    assert {what: done.total.longest for what, done in ends.items()} == {
        "as it was": 3,
        "session": 1,
        "both": 0,
        "all": 3,
    }


@pytest.mark.parametrize(
    ("limits", "error", "why"),
    [
        ({"cron": 3}, ValueError, "'cron' is not in the recording, which has main, session:*"),
        ({"group:x": 3}, ValueError, "'group:x' is not in the recording"),
        ({"main": -1}, ValueError, "concurrency must"),
        ({"main": "3"}, TypeError, "concurrency must"),
    ],
)
def test_a_limit_that_cannot_be_is_refused(limits: Any, error: type[Exception], why: str) -> None:
    with pytest.raises(error, match=why.replace("*", r"\*")):
        replay(recording(run(1)), limits)


def test_a_child_comes_as_long_after_the_start_of_its_parent_as_it_did() -> None:
    parent = run(1, submitted=0.0, started=5.0, finished=9.0)
    before = recording(
        run(2, submitted=0.0, started=0.0, finished=5.0),
        parent,
        run(3, submitted=7.0, started=9.0, finished=10.0, parent=1),
        run(4, submitted=8.0, started=9.0, finished=10.0, parent=99),
    )
    played = {job.id: job for job in replay(before, {"main": 9}).jobs}
    assert played[1].started == 0
    assert played[3].submitted == 2
    assert played[4].submitted == 8


def test_a_slot_that_is_wanted_back_is_waited_for() -> None:
    steps = ((1.0, "lent"), (3.0, "wanted"), (5.0, "held"), (6.0, "wanted"), (6.0, "held"))
    before = recording(
        run(1, finished=8.0, steps=steps),
        run(2, started=1.0, finished=5.0),
    )
    # 1 s, a loan of 2 s, 2 s for the slot, 1 s, a readmission, 2 s
    assert [job.finished for job in replay(before).jobs] == [8, 5]
    assert [job.finished for job in replay(before, {"main": 2}).jobs] == [6, 4]


def test_a_job_without_an_end_goes_on_as_is_likely() -> None:
    before = recording(
        run(1, finished=2.0),
        run(2, started=2.0, finished=None, state="running"),
        run(3, started=None, finished=None, state="waiting"),
        run(4, started=None, finished=3.5, state="cancelled"),
        run(5, started=None, finished=1.0, state="cancelled", submitted=1.0),
    )
    played = {job.id: job for job in replay(before).jobs}
    assert played[2].finished == 2 + 8  # to the end of the recording
    assert (played[3].started, played[3].finished) == (10, 12)  # the median
    assert (played[4].started, played[4].finished, played[4].state) == (None, 3.5, "cancelled")
    assert played[5].state == "cancelled"
    played = {job.id: job for job in replay(before, {"main": 2}).jobs}
    assert (played[4].started, played[4].state) == (None, "cancelled")
    played = {job.id: job for job in replay(before, {"main": 9}).jobs}
    assert (played[4].started, played[4].finished, played[4].state) == (0, 2, "succeeded")


def test_a_replay_ends_though_a_lane_never_starts_its_jobs() -> None:
    before = recording(
        run(1),
        run(2, session=1),
        run(3, started=None, finished=None, state="waiting", submitted=2.0),
        changes=(LimitChange(at=0.5, lane="main", paused=True),),
    )
    played = replay(before)
    assert [job.state for job in played.jobs] == ["succeeded", "waiting", "waiting"]
    assert (played.total.jobs, played.total.started) == (3, 1)
    none = replay(before, {"main": 0})
    assert (none.total.started, none.total.p95, none.total.per_second) == (0, 0, 0)


def test_changes_are_made_again_but_for_a_limit_that_is_set() -> None:
    jobs = [run(id) for id in range(1, 9)]
    changes = (
        LimitChange(at=1.5, lane="main", config=LaneConfig(concurrency=4, rate=RateLimit(600))),
        LimitChange(at=1.6, lane="main", paused=True),
        LimitChange(at=2.6, lane="main", paused=False),
    )
    before = recording(*jobs, changes=changes)
    starts = [job.started for job in replay(before).jobs]
    assert starts[:2] == [0, 1]
    assert starts[2:6] == [1.5, 1.5, 1.5, 2.6]
    assert [job.started for job in replay(before, {"main": 2}).jobs][:4] == [0, 0, 1, 1]


def test_a_lane_of_a_template_has_the_limit_that_it_was_given() -> None:
    jobs = [run(id, lane="t:a", label="t:*", cost={"tokens": 3}) for id in range(1, 6)]
    change = LimitChange(at=0.5, lane="t:a", config=LaneConfig(concurrency=4))
    before = recording(*jobs, lanes={"t:*": LaneConfig()}, changes=(change,))
    assert [job.started for job in replay(before).jobs] == [0, 0.5, 0.5, 0.5, 1]


def test_an_empty_recording_has_no_waits() -> None:
    assert replay(recording()).total == as_recorded(recording()).total
    assert as_recorded(recording()).total.jobs == 0
