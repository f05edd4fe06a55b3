"""A cancellation at any step of anything that waits leaves nothing behind, and lanes that work.

Each story is told again and again, cancelled one step later each time: before it begins, after the
first step that Trio takes for any task, after the second, and so on, until the story has ended
before it is cancelled.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from math import inf
from typing import Any, Final

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_lanes import (
    Job,
    JobCancelledError,
    JobState,
    LaneConfig,
    Lanes,
    LanesClosedError,
    current_job,
    open_lanes,
)
from trio_lanes.testing import LaneRecorder, RecordedJob

CANCELLED: Final = object()
"""What became of a story that was cancelled."""

FAR_LIMITS: Final[dict[str, Any]] = {"timeout": 99, "queue_timeout": 99, "warn_after": 99}

# The orders of tasks that are ready together differ from seed to seed. Other tests are about each
# line of this.
pytestmark = [pytest.mark.many_seeds(2), pytest.mark.no_cover]


class Boom(Exception):
    pass


async def work(seconds: float = 1.0) -> str:
    await trio.sleep(seconds)
    return "done"


async def failing() -> None:
    await trio.sleep(1)
    raise Boom


async def deaf() -> str:
    """A body that does not hear of its cancellation."""
    with trio.CancelScope(shield=True):
        await trio.sleep(3)
    return "done"


async def slow_to_stop() -> None:
    try:
        await trio.sleep(1)
    finally:
        with trio.CancelScope(shield=True):
            await trio.sleep(0.5)


class Stepper(trio.abc.Instrument):
    """Makes a call after so many steps of any tasks, counted from when it is armed."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._call: Callable[[], object] | None = None
        self.has_called = False

    def arm(self, call: Callable[[], object]) -> None:
        self._call = call
        self._count_down()

    def disarm(self) -> None:
        self._call = None

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self._count_down()

    def _count_down(self) -> None:
        if self._call is not None:
            if not self._steps:
                self._call()
                self._call = None
                self.has_called = True
            self._steps -= 1


def everywhere(rehearse: Callable[[Stepper], Awaitable[None]]) -> None:
    """Run ``rehearse`` with a stepper that calls after 0, 1, 2... steps, until it is too late."""
    for steps in itertools.count():
        stepper = Stepper(steps)
        clock = MockClock(autojump_threshold=0)
        trio.run(rehearse, stepper, clock=clock, instruments=[stepper])
        if not stepper.has_called:
            break
    assert steps > 1  # else there was nothing to interrupt


@attrs.define
class Scene:
    """Where a story happens."""

    lanes: Lanes
    recorder: LaneRecorder
    stepper: Stepper
    jobs: list[Job[Any]] = attrs.field(factory=list)  # those that the story found there
    outcome: object = CANCELLED  # what it returned
    cancelled_at: float = inf

    def mine(self) -> RecordedJob | None:
        """The job that the story itself submitted."""
        return next((job for job in self.recorder.submitted if job.name == "mine"), None)

    def occupy(self, count: int, **options: Any) -> None:
        """Have so many jobs there, each of which takes another second."""
        for _ in range(count):
            seconds = 1.0 + len(self.jobs)
            # Limits that nothing comes near: to see that they are forgotten, too.
            job = self.lanes.submit_nowait(work, seconds, **options, **FAR_LIMITS)
            self.jobs.append(job)

    def cancel(self, scope: trio.CancelScope) -> None:
        self.cancelled_at = trio.current_time()
        scope.cancel()


Prepare = Callable[[Scene], None]
Act = Callable[[Scene], Awaitable[object]]
Check = Callable[[Scene], None]


async def rehearse(prepare: Prepare, act: Act, check: Check, stepper: Stepper) -> None:
    recorder = LaneRecorder()
    async with open_lanes(
        {"main": LaneConfig(concurrency=2, max_waiting=2), "cron": 1},
        sessions=LaneConfig(max_waiting=1),
        instruments=[recorder],
    ) as lanes:
        tasks = trio.lowlevel.current_statistics().tasks_living
        scene = Scene(lanes, recorder, stepper)
        prepare(scene)
        with trio.CancelScope() as scope:
            stepper.arm(lambda: scene.cancel(scope))
            scope_was_cancelled = scope.cancel_called
            scene.outcome = await act(scene)
        stepper.disarm()
        assert scope.cancelled_caught is (scene.outcome is CANCELLED)
        if scope_was_cancelled:  # everything that waits is a checkpoint
            assert scene.outcome is CANCELLED
        recorder.check()
        check(scene)
        await lanes.wait_idle()
        await all_is_quiet(lanes, tasks)
        for job in scene.jobs:
            assert job.state is JobState.SUCCEEDED
        for lane in ("main", "cron"):
            for session in ("alice", None):
                assert await lanes.run(work, lane=lane, session=session) == "done"
        await all_is_quiet(lanes, tasks)
    recorder.check()


async def all_is_quiet(lanes: Lanes, tasks: int) -> None:
    """Nothing waits, runs, is kept, or will happen."""
    await wait_all_tasks_blocked()
    statistics = lanes.statistics()
    assert (statistics.waiting, statistics.active, statistics.abandoned) == (0, 0, 0)
    assert (statistics.sessions, statistics.oldest_wait) == (0, 0)
    for name, lane in statistics.lanes.items():
        assert (lane.waiting, lane.waiting_in_lane, lane.waiting_in_sessions) == (0, 0, 0)
        assert (lane.active, lane.started) == (0, lane.finished)
        limiter = lanes.lane(name).limiter.statistics()
        assert (limiter.borrowed_tokens, limiter.tasks_waiting) == (0, 0)
    assert lanes.sessions() == []
    assert lanes.jobs() == []
    # Waits for lanes have no public count.
    assert not lanes._scheduler.watches._watched
    assert not lanes._scheduler.watches.inside
    assert trio.lowlevel.current_statistics().tasks_living == tasks
    assert trio.lowlevel.current_statistics().seconds_to_next_deadline == inf


# ---- what is there before


def nothing(scene: Scene) -> None:
    pass


def busy(scene: Scene) -> None:
    """Both slots of the lane are taken, and one job waits."""
    scene.occupy(3)


def busy_session(scene: Scene) -> None:
    scene.occupy(1, session="alice")


def full(scene: Scene) -> None:
    """The lane has no room."""
    scene.occupy(4)


def full_session(scene: Scene) -> None:
    scene.occupy(2, session="alice")


def full_both(scene: Scene) -> None:
    scene.occupy(2, session="alice")
    scene.occupy(2)


BEFORE = [nothing, busy, busy_session, full, full_session, full_both]


# ---- run


@pytest.mark.parametrize("fn", [work, deaf, slow_to_stop, failing])
@pytest.mark.parametrize("prepare", BEFORE)
def test_run(prepare: Prepare, fn: Callable[[], Awaitable[Any]]) -> None:
    async def run(scene: Scene) -> object:
        try:
            return await scene.lanes.run(fn, session="alice", name="mine", **FAR_LIMITS) or "done"
        except Boom:
            return "failed"

    def check(scene: Scene) -> None:
        mine = scene.mine()
        if scene.outcome is CANCELLED:
            assert mine is None or mine.state is JobState.CANCELLED
            return
        assert mine is not None
        assert mine.started_at is not None
        # It was not cancelled before its body had ended, or its body did not care.
        assert scene.cancelled_at >= mine.started_at + 1 or fn is deaf
        assert scene.outcome == ("failed" if fn is failing else "done")
        assert mine.state is (JobState.FAILED if fn is failing else JobState.SUCCEEDED)

    everywhere(lambda stepper: rehearse(prepare, run, check, stepper))


# ---- submit


def submit_has_submitted_unless_cancelled(scene: Scene) -> None:
    assert (scene.mine() is None) is (scene.outcome is CANCELLED)


@pytest.mark.parametrize("session", ["alice", None])
@pytest.mark.parametrize("prepare", BEFORE)
def test_submit(prepare: Prepare, session: str | None) -> None:
    async def submit(scene: Scene) -> object:
        job = await scene.lanes.submit(work, session=session, name="mine", **FAR_LIMITS)
        scene.jobs.append(job)
        return job

    everywhere(
        lambda stepper: rehearse(prepare, submit, submit_has_submitted_unless_cancelled, stepper)
    )


def test_several_that_wait_for_room() -> None:
    async def submit(scene: Scene) -> object:
        async with trio.open_nursery() as nursery:
            for session in ("alice", "alice", "bob", None):
                nursery.start_soon(submit_one, scene, session)
        return "done"

    async def submit_one(scene: Scene, session: str | None) -> None:
        scene.jobs.append(await scene.lanes.submit(work, session=session))

    everywhere(lambda stepper: rehearse(full_both, submit, check_nothing, stepper))


# ---- waiting for a job


def check_nothing(scene: Scene) -> None:
    pass


WAITS: list[Callable[[Job[Any]], Awaitable[object]]] = [Job.wait, Job.wait_started, Job.wait_done]


@pytest.mark.parametrize("wait", WAITS, ids=lambda wait: wait.__name__)
@pytest.mark.parametrize("number", [0, 2], ids=["running", "waiting"])
def test_waiting_for_a_job(wait: Callable[[Job[Any]], Awaitable[object]], number: int) -> None:
    async def act(scene: Scene) -> object:
        async with trio.open_nursery() as nursery:  # several, in no particular order
            for _ in range(2):
                nursery.start_soon(wait, scene.jobs[number])
        return await wait(scene.jobs[number])  # which is a checkpoint, if it has ended

    # The jobs have to succeed all the same.
    everywhere(lambda stepper: rehearse(busy, act, check_nothing, stepper))


# ---- waiting for lanes


def wait_active(scene: Scene) -> Awaitable[object]:
    return scene.lanes.wait_active()


def wait_active_until_a_timeout(scene: Scene) -> Awaitable[object]:
    return scene.lanes.wait_active("main", timeout=1.5)


def wait_idle(scene: Scene) -> Awaitable[object]:
    return scene.lanes.wait_idle()


def wait_idle_of_a_session(scene: Scene) -> Awaitable[object]:
    return scene.lanes.wait_idle("session:alice")


def wait_empty(scene: Scene) -> Awaitable[object]:
    return scene.lanes.lane("main").wait_empty()


def wait_room(scene: Scene) -> Awaitable[object]:
    return scene.lanes.wait_room(2, "main")


LANE_WAITS: list[Act] = [
    wait_active,
    wait_active_until_a_timeout,
    wait_idle,
    wait_idle_of_a_session,
    wait_empty,
    wait_room,
]


@pytest.mark.parametrize("wait", LANE_WAITS)
@pytest.mark.parametrize("prepare", [nothing, full, full_both])
def test_waiting_for_lanes(prepare: Prepare, wait: Act) -> None:
    async def act(scene: Scene) -> object:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait, scene)  # two at one condition
            return await wait(scene)

    everywhere(lambda stepper: rehearse(prepare, act, check_nothing, stepper))


# ---- inside a job, which is cancelled


async def lend(lanes: Lanes) -> None:
    job = current_job()
    assert job is not None
    try:
        async with job.yield_slot():
            await trio.sleep(1)
        await trio.sleep(1)
    finally:  # it cleans up with its slot, unless it was reset
        assert job.done or job in lanes.lane("main").limiter.statistics().borrowers


async def be_readmitted(lanes: Lanes) -> None:
    job = current_job()
    assert job is not None
    try:
        await job.readmit()
        await trio.sleep(1)
    finally:
        assert job.done or job in lanes.lane("main").limiter.statistics().borrowers


async def run_a_child(lanes: Lanes) -> None:
    await lanes.run(work, lane="cron")


async def run_a_child_with_its_slot(lanes: Lanes) -> None:
    await lanes.run(work, yield_slot=True)


async def submit_children(lanes: Lanes) -> None:
    async with trio.open_nursery() as nursery:
        for seconds in (1.0, 2.0, 3.0):
            nursery.start_soon(submit_a_child, lanes, seconds)


async def submit_a_child(lanes: Lanes, seconds: float) -> None:
    await lanes.submit(work, seconds)


async def wait_for_all_others(lanes: Lanes) -> None:
    await lanes.wait_idle()


BODIES = [
    lend,
    be_readmitted,
    run_a_child,
    run_a_child_with_its_slot,
    submit_children,
    wait_for_all_others,
]


@pytest.mark.parametrize("end", ["cancel", "reset"])
@pytest.mark.parametrize("body", BODIES)
def test_a_job_that_waits(body: Callable[[Lanes], Awaitable[None]], end: str) -> None:
    def prepare(scene: Scene) -> None:
        scene.jobs.clear()
        job = scene.lanes.submit_nowait(body, scene.lanes, session="alice", name="mine")
        scene.occupy(2)
        scene.jobs.append(job)

    async def act(scene: Scene) -> object:
        job = scene.jobs.pop()
        scene.stepper.arm(job.cancel if end == "cancel" else reset_session(scene))
        try:
            await job.wait()
        except JobCancelledError:
            assert scene.stepper.has_called
        return "done"

    def reset_session(scene: Scene) -> Callable[[], object]:
        return lambda: scene.lanes.reset("session:alice")

    everywhere(lambda stepper: rehearse(prepare, act, check_nothing, stepper))


# ---- ending


@pytest.mark.parametrize("waiting", ["finish", "cancel"])
@pytest.mark.parametrize("grace", [inf, 1.5])
@pytest.mark.parametrize("cancel_grace", [inf, 0.5])
def test_drain(waiting: Any, grace: float, cancel_grace: float) -> None:
    async def rehearse(stepper: Stepper) -> None:
        recorder = LaneRecorder()
        async with open_lanes({"main": 2}, instruments=[recorder]) as lanes:
            tasks = trio.lowlevel.current_statistics().tasks_living
            for fn in (work, deaf, slow_to_stop, work):
                lanes.submit_nowait(fn, session="alice")
                lanes.submit_nowait(fn)
            with trio.CancelScope() as scope:
                stepper.arm(scope.cancel)
                await lanes.drain(grace=grace, cancel_grace=cancel_grace, waiting=waiting)
            stepper.disarm()
            recorder.check()
            if lanes.jobs():
                with pytest.raises(LanesClosedError):
                    lanes.submit_nowait(work)
            await lanes.wait_idle()
            await trio.sleep(9)  # a body that was given up may go on
            await all_is_quiet(lanes, tasks)
        recorder.check()
        assert len(recorder.finished) == len(recorder.submitted)

    everywhere(rehearse)


@pytest.mark.parametrize("fail", [False, True])
def test_leaving_the_block(fail: bool) -> None:
    async def rehearse(stepper: Stepper) -> None:
        recorder = LaneRecorder()
        tasks = trio.lowlevel.current_statistics().tasks_living
        told: list[type[Exception] | None] = []

        async def told_of(job: Job[Any]) -> None:
            try:
                await job.wait()
            except Exception as error:
                told.append(type(error))
            else:
                told.append(None)

        async with trio.open_nursery() as outside:
            with trio.CancelScope() as scope:
                try:
                    async with open_lanes({"main": 2}, instruments=[recorder]) as lanes:
                        for fn in (work, deaf, slow_to_stop, failing):
                            for session in ("alice", None):
                                job = lanes.submit_nowait(fn, session=session)
                                outside.start_soon(told_of, job)
                        stepper.arm(scope.cancel)
                        if fail:
                            await trio.sleep(1)
                            raise Boom
                except* Boom:
                    assert fail
            stepper.disarm()
            recorder.check()
        assert len(told) == 8
        assert set(told) <= {None, Boom, JobCancelledError, LanesClosedError}
        assert len(recorder.finished) == 8
        await wait_all_tasks_blocked()
        assert trio.lowlevel.current_statistics().tasks_living == tasks

    everywhere(rehearse)
