"""Reset, which gives up what runs; without it a slot is held until the body has ended."""

from random import Random

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.track import Track
from trio_lanes import (
    Job,
    JobCancelledError,
    JobState,
    LaneConfig,
    LaneResetError,
    current_job,
    open_lanes,
)

pytestmark = pytest.mark.both_doors


async def stuck(track: Track, name: str, seconds: float) -> str:
    """A body that no cancellation ends: it is stuck in shielded code for so long."""
    track.started.append(name)
    with trio.CancelScope(shield=True):
        await trio.sleep(seconds)
    track.ended.append(name)
    return name


@pytest.mark.parametrize("session", [None, "alice"])
async def test_reset_starts_what_waits_at_once_and_tells_both_waiters(
    session: str | None, autojump_clock: MockClock
) -> None:
    track = Track()
    async with open_lanes({"main": 1}) as lanes:
        told: list[tuple[object, float]] = []

        async def caller() -> None:
            with pytest.raises(LaneResetError) as caught:
                await lanes.run(stuck, track, "old", 10, session=session)
            told.append((type(caught.value), trio.current_time()))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(caller)
            await wait_all_tasks_blocked()
            (old,) = lanes.jobs()
            new = lanes.submit_nowait(track.sleep, "new", 3, session=session)
            await trio.sleep(1)
            assert lanes.reset("main") == 1
            assert (old.state, new.state) == (JobState.CANCELLED, JobState.RUNNING)
            assert new.started_at == 1
            assert await new.wait() == "new"
        assert told == [(LaneResetError, 1)]
        assert trio.current_time() == 4
        assert lanes.statistics().abandoned == 1
        with pytest.raises(LaneResetError):
            await old.wait()
        await trio.sleep(7)
        assert track.ended == ["new", "old"]
        assert lanes.statistics().abandoned == 0
        # the late result changed nothing
        assert (old.state, old.finished_at) == (JobState.CANCELLED, 1)
        with pytest.raises(LaneResetError):
            await old.wait()


@pytest.mark.parametrize("session", [None, "alice"])
@pytest.mark.parametrize("late", ["returns", "raises", "ends cancelled"])
async def test_a_body_that_goes_on_after_a_reset_changes_nothing_for_its_successor(
    session: str | None, late: str, autojump_clock: MockClock
) -> None:
    track = Track()
    own: list[object] = []

    async def old_body() -> str:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(2)
            job = current_job()
            assert job is not None
            own.append(job)
            assert job.cancel() is False
            if late == "raises":
                raise OSError
            if late == "returns":
                return "late"  # noqa: B012
        raise AssertionError

    async with open_lanes({"main": 1}) as lanes:
        main = lanes.lane("main")
        old = lanes.submit_nowait(old_body, session=session)
        new = lanes.submit_nowait(track.sleep, "new", 10, session=session)
        last = lanes.submit_nowait(track.sleep, "last", session=session)
        await trio.sleep(1)
        main.reset()
        await trio.sleep(5)  # the old body has ended meanwhile
        assert own == [old]
        assert lanes.statistics().abandoned == 0
        assert list(main.limiter.statistics().borrowers) == [new]
        assert (main.active, main.waiting) == (1, 1)
        assert (new.state, last.state) == (JobState.RUNNING, JobState.WAITING)
        assert not new.cancel_called
        if session:
            assert (lanes.session(session).active, lanes.session(session).waiting) == (1, 1)
        assert await new.wait() == "new"
        assert await last.wait() == "last"
        assert isinstance(old.exception, LaneResetError)
        assert main.statistics().finished == 3


async def test_a_reset_raises_the_generation_of_its_lane_by_one(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1, "cron": 1}) as lanes:
        main, cron = lanes.lane("main"), lanes.lane("cron")
        assert (main.generation, cron.generation) == (0, 0)
        lanes.reset("main")
        assert (main.generation, cron.generation) == (1, 0)
        lanes.reset()
        main.reset()
        assert (main.generation, cron.generation) == (3, 1)
        assert lanes.lane("main").generation == 3


async def test_reset_says_how_many_it_gave_up_and_keeps_what_waits(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": 3, "cron": 1}) as lanes:
        for n in range(3):
            lanes.submit_nowait(stuck, track, str(n), 5)
        lanes.submit_nowait(stuck, track, "cron", 5, lane="cron")
        for n in range(3, 5):
            lanes.submit_nowait(track.sleep, str(n))
        await trio.sleep(1)
        assert lanes.reset("main") == 3
        assert lanes.statistics().abandoned == 3
        assert (lanes.lane("main").active, lanes.lane("main").waiting) == (2, 0)
        assert lanes.lane("cron").active == 1
        assert lanes.reset() == 3
        assert lanes.statistics().abandoned == 4  # two had not been called yet, and never are
        await trio.sleep(5)
        assert lanes.statistics().abandoned == 0
    assert sorted(map(str, track.ended)) == ["0", "1", "2", "cron"]


async def test_a_reset_of_a_session_gives_up_its_jobs_only(autojump_clock: MockClock) -> None:
    track = Track()
    async with open_lanes({"main": 4}) as lanes:
        alice = lanes.submit_nowait(stuck, track, "alice", 5, session="alice")
        bob = lanes.submit_nowait(stuck, track, "bob", 5, session="bob")
        after = lanes.submit_nowait(track.sleep, "after", session="alice")
        await trio.sleep(1)
        assert lanes.reset("session:alice") == 1
        assert after.state is JobState.RUNNING
        assert isinstance(alice.exception, LaneResetError)
        assert alice.exception.lane == "session:alice"
        assert lanes.lane("main").generation == 0
        assert await bob.wait() == "bob"


async def test_a_job_reset_before_it_was_called_never_is(autojump_clock: MockClock) -> None:
    track = Track()
    async with open_lanes({"main": 1}) as lanes:
        job = lanes.submit_nowait(track.sleep, "never")
        assert job.state is JobState.RUNNING
        assert lanes.reset() == 1
        assert lanes.statistics().abandoned == 0
        with pytest.raises(LaneResetError):
            await job.wait()
        assert await lanes.run(track.sleep, "next") == "next"
    assert track.started == ["next"]


@pytest.mark.parametrize("pause", [0, 1])
async def test_a_job_may_reset_its_own_lane_and_is_abandoned_by_that(
    pause: float, autojump_clock: MockClock
) -> None:
    track = Track()
    went_on = False
    async with open_lanes({"main": 1}) as lanes:

        async def body() -> None:
            nonlocal went_on
            if pause:
                await trio.sleep(pause)
            assert lanes.reset("main") == 1
            assert lanes.statistics().abandoned == 1
            went_on = True
            await trio.sleep(5)

        job = lanes.submit_nowait(body)
        successor = lanes.submit_nowait(track.sleep, "successor")
        with pytest.raises(LaneResetError):
            await job.wait()
        assert await successor.wait() == "successor"
        assert trio.current_time() == pause + 1
        assert lanes.statistics().abandoned == 0  # its sleep was cancelled
    assert went_on


async def test_a_job_that_was_cancelled_before_its_reset_is_told_of_the_reset(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": 1}) as lanes:
        job = lanes.submit_nowait(stuck, track, "stuck", 5)
        await trio.sleep(1)
        job.cancel("please")
        assert await lanes.wait_active("main", timeout=1) is False
        assert lanes.reset("main") == 1
        with pytest.raises(LaneResetError):
            await job.wait()


async def test_leaving_the_block_waits_for_abandoned_bodies(autojump_clock: MockClock) -> None:
    track = Track()
    async with open_lanes({"main": 1}) as lanes:
        lanes.submit_nowait(stuck, track, "stuck", 5)
        await trio.sleep(1)
        lanes.reset()
    assert trio.current_time() == 5
    assert track.ended == ["stuck"]


async def test_an_abandoned_body_that_raises_harms_no_other_job(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(5)
        raise OSError

    async with open_lanes({"main": 1}) as lanes:
        lanes.start_soon(body)
        job = lanes.submit_nowait(body)
        await trio.sleep(1)
        lanes.reset()
        await trio.sleep(1)
        lanes.reset()
        await trio.sleep(10)
        assert isinstance(job.exception, LaneResetError)
        assert lanes.statistics().abandoned == 0
        assert await lanes.run(trio.sleep, 1) is None  # type: ignore[func-returns-value]
    assert caplog.records == []


@pytest.mark.trio_only("asyncio lets a SystemExit out of the loop")
async def test_a_base_exception_of_an_abandoned_body_still_leaves(
    autojump_clock: MockClock,
) -> None:
    async def body() -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(5)
        raise SystemExit

    with pytest.RaisesGroup(SystemExit):
        async with open_lanes({"main": 1}) as lanes:
            lanes.submit_nowait(body)
            await trio.sleep(1)
            lanes.reset()
            await trio.sleep_forever()


async def test_an_abandoned_job_is_still_the_current_job_of_its_body(
    autojump_clock: MockClock,
) -> None:
    seen: list[object] = []

    async def body() -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(2)
        seen.append(current_job())

    async with open_lanes({"main": 1}) as lanes:
        job = lanes.submit_nowait(body)
        await trio.sleep(1)
        lanes.reset()
    assert seen == [job]


async def test_a_slot_is_held_until_the_body_has_really_ended(autojump_clock: MockClock) -> None:
    async def slow_to_clean_up() -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(1)

    for session in (None, "alice"):
        async with open_lanes({"main": 2}, sessions=LaneConfig(concurrency=2)) as lanes:
            began = trio.current_time()
            timed_out = lanes.submit_nowait(slow_to_clean_up, timeout=3, session=session)
            cancelled = lanes.submit_nowait(slow_to_clean_up, session=session)
            next_jobs = [lanes.submit_nowait(trio.sleep, 5, session=session) for _ in range(2)]
            await trio.sleep(1)
            cancelled.cancel()
            assert lanes.lane("main").limiter.borrowed_tokens == 2
            await lanes.wait_idle()
            assert [job.started_at for job in next_jobs] == [began + 2, began + 4]
            for job in (timed_out, cancelled):
                assert isinstance(job.exception, Exception)


@pytest.mark.many_seeds(10)
async def test_any_clears_and_resets_lose_and_double_nothing(
    scheduler_seed: int, autojump_clock: MockClock
) -> None:
    random = Random(scheduler_seed)
    finished: list[Job[object]] = []

    class Recorder:
        def job_finished(self, job: Job[object]) -> None:
            finished.append(job)

    calls: dict[int, int] = {}

    async def body(n: int) -> int:
        calls[n] = calls.get(n, 0) + 1
        if random.random() < 0.3:
            with trio.CancelScope(shield=True):
                await trio.sleep(random.random())
        elif random.random() < 0.7:
            await trio.sleep(random.random())
        return n

    async with open_lanes({"main": 2, "cron": 1}, instruments=[Recorder()]) as lanes:
        jobs: dict[int, Job[int]] = {}
        for n in range(200):
            jobs[n] = lanes.submit_nowait(
                body,
                n,
                session=random.choice((None, "alice", "bob")),
                lane=random.choice(("main", "cron")),
                priority=random.randrange(3),
            )
            if random.random() < 0.5:
                await trio.sleep(random.random() / 2)
            name = random.choice(("main", "cron", "session:alice", None))
            match random.randrange(20):
                case 0:
                    lanes.clear(name)
                case 1 | 2:
                    lanes.reset(name)
                case 3:
                    random.choice(lanes.jobs() or [jobs[n]]).cancel()
        await lanes.wait_idle()
    assert len(finished) == len(set(finished)) == 200
    for n, job in jobs.items():
        if job.state is JobState.SUCCEEDED:
            assert (calls[n], await job.wait()) == (1, n)
        else:
            assert job.state is JobState.CANCELLED
            assert isinstance(job.exception, JobCancelledError)
            assert calls.get(n, 0) <= (job.started_at is not None)
    statistics = lanes.statistics()
    assert (statistics.waiting, statistics.active, statistics.abandoned) == (0, 0, 0)
