"""How a feature hangs on the loop: a counter of settled jobs by lane, in one class and one line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.bodies import returns_at_once, sleeps
from trio_lanes import Adaptive, Job, LaneConfig, LaneInstrument, Lanes, open_lanes
from trio_lanes._observe.joints import JOINTS


class SettledByLane:
    """How many jobs of each lane have settled, however they did."""

    def __init__(self) -> None:
        self.numbers: Counter[str] = Counter()

    def on_settled(self, job: Job[Any]) -> None:
        self.numbers[job.lane_label] += 1


async def test_a_counter_of_settled_jobs_by_lane_is_one_class_and_one_line(
    autojump_clock: MockClock,
) -> None:
    counter = SettledByLane()
    async with open_lanes({"main": 1, "tenant:*": LaneConfig()}) as lanes:
        lanes._scheduler.joints.add(counter)
        for lane in ("main", "main", "tenant:a", "tenant:b"):
            lanes.submit_nowait(sleeps, 1, lane=lane)
        lanes.submit_nowait(sleeps, 1).cancel()
        await lanes.wait_idle()
    assert counter.numbers == {"main": 3, "tenant:*": 2}


class All:
    """Notes each call of each joint, by its name and the job or the actor."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Any]] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name not in JOINTS:
            raise AttributeError(name)
        return partial(self._note, name)

    def _note(self, name: str, about: Any, *more: object) -> None:
        self.seen.append((name, about))

    def of(self, job: object) -> list[str]:
        return [name for name, about in self.seen if about is job]


def listened_to(lanes: Lanes) -> set[str]:
    """The joints on which anything hangs."""
    return {name for name in JOINTS if getattr(lanes._scheduler.joints, name)}


async def test_a_job_meets_the_joints_of_its_steps_in_their_order(
    autojump_clock: MockClock,
) -> None:
    hears = All()
    config = LaneConfig(concurrency=1, max_waiting=1)
    async with open_lanes({"main": config}) as lanes:
        lanes._scheduler.joints.add(hears)
        first = lanes.submit_nowait(sleeps, 1)
        second = lanes.submit_nowait(sleeps, 1, session="alice")
        late: list[Job[float]] = []

        async def submits() -> None:
            late.append(await lanes.submit(sleeps, 1))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(submits)
            await wait_all_tasks_blocked()
            second.cancel()
        await lanes.wait_idle()
    way = ["on_placed", "on_started", "on_ended", "on_settled"]
    assert hears.of(first) == way
    assert hears.of(second) == ["on_placed", "on_placed", "on_settled"]  # it was forwarded
    assert hears.of(late[0]) == ["on_asked", *way]
    names = [name for name, _ in hears.seen]
    assert {"on_served", "on_batch_end"} < {*names}
    assert names[-1] == "on_batch_end"


async def test_without_a_feature_that_listens_each_joint_is_empty(
    autojump_clock: MockClock,
) -> None:
    class HearsOfQuiet(LaneInstrument):
        def lane_idle(self, lane: object) -> None: ...

    class HearsOfJobs(LaneInstrument):
        def job_started(self, job: object) -> None: ...

    async with open_lanes({"main": 1}) as lanes:
        assert listened_to(lanes) == set()
        jobs, quiet = HearsOfJobs(), HearsOfQuiet()
        lanes.add_instrument(jobs)
        assert listened_to(lanes) == {"on_placed", "on_started", "on_settled"}
        lanes.add_instrument(quiet)
        assert listened_to(lanes) == {"on_placed", "on_started", "on_settled", "on_batch_end"}
        lanes.add_instrument(another := HearsOfQuiet())
        lanes.remove_instrument(another)
        assert len(lanes._scheduler.joints.on_batch_end) == 1
        await lanes.run(returns_at_once)
        lanes.remove_instrument(quiet)
        lanes.remove_instrument(jobs)
        assert listened_to(lanes) == set()
        lanes.configure({"main": LaneConfig(concurrency=Adaptive(1, 4))})
        assert listened_to(lanes) == {"on_ended"}
        lanes.configure({"main": 1})
        assert listened_to(lanes) == set()
    async with open_lanes({"main": 1}, wait_accounting=True) as lanes:
        assert listened_to(lanes) == {*JOINTS} - {"on_ended"}


async def test_a_listener_that_is_added_twice_is_called_once(autojump_clock: MockClock) -> None:
    counter = SettledByLane()
    async with open_lanes({"main": 1}) as lanes:
        for _ in range(2):
            lanes._scheduler.joints.add(counter)
        await lanes.run(returns_at_once)
        lanes._scheduler.joints.remove(counter)
        await lanes.run(returns_at_once)
    assert counter.numbers == {"main": 1}


async def test_what_a_joint_leaves_as_an_effect_at_the_end_of_a_batch_is_done_in_that_batch(
    autojump_clock: MockClock,
) -> None:
    class SubmitsOnce:
        """Submits a job when nothing is left to do."""

        def on_batch_end(self, now: float) -> None:
            if not jobs:
                lanes._scheduler.after_act(self.submit)

        def submit(self) -> None:
            jobs.append(lanes.submit_nowait(returns_at_once))

    jobs: list[Job[str]] = []
    async with open_lanes({"main": 2}) as lanes:
        lanes._scheduler.joints.add(SubmitsOnce())
        first = lanes.submit_nowait(returns_at_once)
        assert [job.state.value for job in (first, *jobs)] == ["running", "running"]
    assert [await job.wait() for job in jobs] == [await first.wait()]
