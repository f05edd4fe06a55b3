"""The order of starts: priorities in both layers, and acts on a lane while it is served."""

from collections.abc import Callable
from random import Random

import pytest
import trio
from trio.testing import MockClock

from tests.support.track import Track
from trio_lanes import Job, JobCancelledError, JobState, open_lanes

pytestmark = pytest.mark.both_doors

in_both_layers = pytest.mark.parametrize("session", [None, "alice"])


async def test_the_limiter_of_a_lane_tells_the_truth(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 2}) as lanes:
        limiter = lanes.lane("main").limiter
        assert limiter.total_tokens == 2
        jobs = [lanes.submit_nowait(trio.sleep, n) for n in (1, 2, 3)]
        assert limiter.borrowed_tokens == 2
        assert set(limiter.statistics().borrowers) == set(jobs[:2])
        await jobs[0].wait()
        assert set(limiter.statistics().borrowers) == set(jobs[1:])
        lanes.lane("main").concurrency = 5
        assert limiter.total_tokens == 5


async def test_priorities_may_be_as_large_as_integers_are(autojump_clock: MockClock) -> None:
    track = Track()
    async with open_lanes({"main": 1}) as lanes:
        lanes.submit_nowait(track.sleep, "blocker")
        for priority in (-(2**70), 2**63, -1, 2**70, 0, -(2**63)):
            lanes.submit_nowait(track.sleep, priority, priority=priority)
    assert track.started == ["blocker", 2**70, 2**63, 0, -1, -(2**63), -(2**70)]


@in_both_layers
async def test_order_survives_any_cancellations_and_refills(
    session: str | None, autojump_clock: MockClock
) -> None:
    random = Random(1)
    track = Track()
    async with open_lanes({"main": 1}) as lanes:
        lanes.submit_nowait(track.sleep, "blocker", session=session)
        jobs: dict[int, Job[object]] = {}
        for n in range(300):
            priority = random.choice((-1, 0, 1))
            jobs[n] = lanes.submit_nowait(
                track.sleep, (-priority, n), session=session, priority=priority
            )
            if n % 10 == 9:
                for victim in random.sample(sorted(jobs), 8):
                    assert jobs.pop(victim).cancel()
    left = [(-job.priority, n) for n, job in jobs.items()]
    assert track.started == ["blocker", *sorted(left)]


class CancelsInTheCall:
    """An instrument that cancels a job as soon as it hears of it."""

    def job_submitted(self, job: Job[object]) -> None:
        if job.name == "unwanted":
            assert job.cancel("unwanted")


@in_both_layers
async def test_a_job_cancelled_inside_the_call_that_submits_it_never_starts(
    session: str | None, autojump_clock: MockClock
) -> None:
    track = Track()
    async with open_lanes({"main": 1}, instruments=[CancelsInTheCall()]) as lanes:
        job = lanes.submit_nowait(track.sleep, "unwanted", session=session, name="unwanted")
        assert job.state is JobState.CANCELLED
        with pytest.raises(JobCancelledError, match="unwanted"):
            await job.wait()
        with pytest.raises(JobCancelledError, match="unwanted"):
            await lanes.run(track.sleep, "unwanted too", session=session, name="unwanted")
        assert await lanes.run(track.sleep, "wanted", session=session) == "wanted"
        assert lanes.sessions() == []
    assert track.started == ["wanted"]


class SubmitsWhileServed:
    """An instrument that submits a job from every hook that it has, up to a number."""

    def __init__(self, most: int) -> None:
        self.left = most
        self.submit: Callable[[], object]
        self.limiter: trio.CapacityLimiter
        self.most_borrowed = 0.0

    def _hook(self, *args: object) -> None:
        self.most_borrowed = max(self.most_borrowed, self.limiter.borrowed_tokens)
        if self.left:
            self.left -= 1
            self.submit()

    job_submitted = job_forwarded = job_started = job_finished = _hook
    lane_idle = lane_empty = lane_paused = lane_resumed = lane_cleared = lane_reset = _hook


@in_both_layers
@pytest.mark.parametrize("width", [1, 2])
async def test_an_instrument_that_submits_while_a_lane_is_served_breaks_no_limit(
    session: str | None, width: int, autojump_clock: MockClock
) -> None:
    track = Track()
    instrument = SubmitsWhileServed(most=50)
    async with open_lanes({"main": width}, instruments=[instrument]) as lanes:
        main = lanes.lane("main")
        instrument.limiter = main.limiter
        instrument.submit = lambda: lanes.submit_nowait(track.sleep, "more", session=session)
        lanes.submit_nowait(track.sleep, "first", session=session)
        main.pause()
        main.resume()
        main.clear()
        main.reset()
        await lanes.wait_idle()
        assert instrument.left == 0
        assert instrument.most_borrowed == (1 if session else width)
        statistics = main.statistics()
        assert statistics.started == statistics.finished > 0
    assert track.running == 0


async def test_an_on_wait_that_submits_breaks_no_limit(autojump_clock: MockClock) -> None:
    track = Track()
    async with open_lanes({"main": 1}) as lanes:

        def again(job: Job[object], waited: float) -> None:
            lanes.submit_nowait(track.sleep, "from on_wait", priority=1)

        lanes.submit_nowait(track.sleep, "blocker", 5)
        lanes.submit_nowait(track.sleep, "waits", warn_after=1, on_wait=again)
        await trio.sleep(1.5)
        assert lanes.lane("main").active == 1
    assert track.started == ["blocker", "from on_wait", "waits"]
    assert track.peak == 1


async def test_jobs_lists_what_waits_and_runs_in_the_order_of_submission(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1, "cron": 1}) as lanes:
        jobs = [
            lanes.submit_nowait(trio.sleep, 1, lane=lane, session=session, priority=priority)
            for lane, session, priority in [
                ("cron", None, 0), ("main", "alice", 0), ("main", None, 5), ("cron", "alice", 9),
                ("main", "bob", -1),
            ]
        ]  # fmt: skip
        assert lanes.jobs() == jobs
        await jobs[0].wait()
        assert lanes.jobs() == [job for job in jobs if not job.done]
