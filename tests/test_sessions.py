"""Session lanes: order inside a session, turns between sessions, and lanes that come and go."""

import gc
from collections.abc import Awaitable, Callable
from random import Random

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_lanes import (
    Job,
    JobState,
    LaneClearedError,
    LaneConfig,
    Lanes,
    LanesClosedError,
    open_lanes,
)

from .track import Track

# ---- order inside a session


@pytest.mark.many_seeds(10)
async def test_replies_of_a_session_come_in_the_order_of_its_messages(
    scheduler_seed: int, autojump_clock: MockClock
) -> None:
    random = Random(scheduler_seed)
    track = Track()
    replies: list[object] = []
    async with open_lanes({"main": 4}) as lanes:

        async def message(n: int) -> None:
            replies.append(await lanes.run(track.sleep, n, random.random(), session="alice"))

        async with trio.open_nursery() as nursery:
            for n in range(10):
                nursery.start_soon(message, n)
                await wait_all_tasks_blocked()
    assert replies == track.started == list(range(10))
    assert track.peak == 1


@pytest.mark.many_seeds(10)
async def test_sessions_wider_than_one_start_in_order_and_never_more_than_they_may(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    sessions = LaneConfig(concurrency=3)
    async with open_lanes({"main": 8}, sessions=sessions) as lanes:
        jobs = [lanes.submit_nowait(track.sleep, n, 1 + n % 4, session="alice") for n in range(20)]
        await lanes.wait_idle()
    assert track.peak == 3
    starts = [track.start_times[n] for n in range(20)]
    assert starts == sorted(starts)
    assert [job.started_at for job in jobs] == starts


async def test_a_session_may_use_several_lanes_and_is_in_order_over_all_of_them(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": 4, "cron": 4}) as lanes:
        for n in range(6):
            lanes.submit_nowait(track.sleep, n, session="alice", lane="main" if n % 2 else "cron")
    assert track.started == list(range(6))
    assert track.peak == 1


async def test_a_session_that_waits_for_a_full_lane_stays_in_order(
    autojump_clock: MockClock,
) -> None:
    # Its second job could start in the other lane at once, and must not.
    track = Track()
    async with open_lanes({"main": 1, "cron": 1}) as lanes:
        lanes.submit_nowait(trio.sleep, 10)
        lanes.submit_nowait(track.sleep, 1, session="alice")
        lanes.submit_nowait(track.sleep, 2, session="alice", lane="cron")
        await trio.sleep(5)
        assert track.started == []
    assert track.start_times == {1: 10, 2: 11}


async def raises() -> None:
    await trio.sleep(1)
    raise OSError


async def raises_at_once() -> None:
    raise OSError


async def returns_at_once() -> None:
    pass


async def catches_its_cancellation() -> None:
    with trio.CancelScope(shield=True):
        await trio.sleep(2)


Ending = Callable[[Lanes, Job[None]], object]


@pytest.mark.parametrize("session", [None, "alice"])
@pytest.mark.parametrize(
    ("body", "options", "after_a_second", "ends_at"),
    [
        pytest.param(returns_at_once, {}, None, 0, id="returned at once"),
        pytest.param(raises_at_once, {}, None, 0, id="raised at once"),
        pytest.param(raises, {}, None, 1, id="raised"),
        pytest.param(trio.sleep_forever, {"timeout": 3}, None, 3, id="timed out"),
        pytest.param(catches_its_cancellation, {"timeout": 1}, None, 2, id="outlived its timeout"),
        pytest.param(
            trio.sleep_forever, {}, lambda lanes, job: job.cancel(), 1, id="was cancelled"
        ),
        pytest.param(
            catches_its_cancellation,
            {},
            lambda lanes, job: job.cancel(),
            2,
            id="outlived its cancellation",
        ),
        pytest.param(
            catches_its_cancellation, {}, lambda lanes, job: lanes.reset(), 1, id="was reset"
        ),
    ],
)
async def test_the_successor_starts_as_soon_as_the_slot_is_free_however_the_job_ended(
    body: Callable[[], Awaitable[None]],
    options: dict[str, float],
    after_a_second: Ending | None,
    ends_at: float,
    session: str | None,
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": 1}) as lanes:
        job = lanes.submit_nowait(body, session=session, **options)  # type: ignore[arg-type]
        lanes.submit_nowait(track.sleep, "next", session=session)
        await trio.sleep(1)
        if after_a_second is not None:
            after_a_second(lanes, job)
        await lanes.wait_empty()
        assert isinstance(job.exception, Exception | None)
    assert track.start_times == {"next": ends_at}


@pytest.mark.many_seeds(10)
async def test_a_session_stays_in_order_whatever_happens_to_some_of_its_jobs_and_to_others(
    scheduler_seed: int, autojump_clock: MockClock
) -> None:
    random = Random(scheduler_seed)
    track = Track()

    async def body(n: int) -> None:
        await track.sleep(n, random.choice((0, 0.5, 1)))
        if n % 5 == 0:
            raise OSError

    async with open_lanes({"main": 3, "cron": 2}) as lanes:
        alice = [
            lanes.submit_nowait(
                body, n, session="alice", timeout=0.75 if n % 7 == 0 else 10, queue_timeout=15
            )
            for n in range(40)
        ]
        for n in range(40):
            lanes.submit_nowait(trio.sleep, random.random(), session=f"other {n % 3}")
            lanes.submit_nowait(trio.sleep, random.random(), lane="cron")
        for _ in range(40):
            await trio.sleep(random.random() / 2)
            match random.randrange(6):
                case 0:
                    random.choice(alice).cancel()
                case 1:
                    lanes.clear("session:other 1")
                case 2:
                    lanes.reset("session:other 2")
                case 3:
                    lanes.clear("cron")
                case 4:
                    lanes.lane("main").concurrency = random.randrange(1, 5)
                case 5:
                    lanes.reset("cron")
        await lanes.wait_idle()
        for job in alice:
            assert job.done
            assert isinstance(job.exception, Exception | None)
        ran = [n for n in range(40) if alice[n].started_at is not None]
        assert track.started == ran
        assert ran != list(range(40))
    assert track.peak == 1


# ---- forwarding, and turns


async def test_a_global_lane_holds_of_each_session_no_more_than_it_may_still_start(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        main = lanes.lane("main")
        blocker = main.submit_nowait(trio.sleep, 1)
        for session in ("alice", "bob"):
            for _ in range(50):
                main.submit_nowait(trio.sleep, 0, session=session)
        assert main.statistics().waiting == 100
        assert main.statistics().waiting_in_lane == 2
        assert main.statistics().waiting_in_sessions == 98
        await blocker.wait()
        # alice's first has the slot now: nothing more of hers may start
        assert main.statistics().waiting_in_lane == 1


async def test_sessions_take_turns_in_a_lane(autojump_clock: MockClock) -> None:
    track = Track()
    async with open_lanes({"main": 1}) as lanes:
        for session, count in (("a", 5), ("b", 1), ("c", 3)):
            for n in range(count):
                lanes.submit_nowait(track.sleep, f"{session}{n}", session=session)
    assert track.started == ["a0", "b0", "c0", "a1", "c1", "a2", "c2", "a3", "a4"]


async def test_a_session_with_very_much_waiting_delays_another_by_no_more_than_a_round(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": 1}) as lanes:
        for n in range(10_000):
            lanes.submit_nowait(track.sleep, n, session="bulk")
        lanes.submit_nowait(track.sleep, "quick", session="quick")
        await lanes.wait_idle("session:quick")
        assert track.started[:2] == [0, "quick"]
        lanes.clear()


async def test_a_better_job_takes_the_forwarded_ones_place_and_that_keeps_its_own_by_submission(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": 1}) as lanes:
        lanes.submit_nowait(track.sleep, "blocker")
        lanes.submit_nowait(track.sleep, "alice 1", session="alice")  # forwarded at once
        lanes.submit_nowait(track.sleep, "carol, high", session="carol", priority=5)
        lanes.submit_nowait(track.sleep, "alice 2", session="alice")
        lanes.submit_nowait(track.sleep, "bob", session="bob")
        # inherits the arrival of "alice 1", so that it is before its equal of carol's
        lanes.submit_nowait(track.sleep, "alice, high", session="alice", priority=5)
        assert lanes.statistics().lanes["main"].waiting_in_lane == 3
    assert track.started == ["blocker", "alice, high", "carol, high", "bob", "alice 1", "alice 2"]


async def test_a_better_job_for_another_lane_takes_its_place_at_the_end_of_that_lane(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": 1, "cron": 1}) as lanes:
        lanes.submit_nowait(trio.sleep, 10)
        lanes.submit_nowait(trio.sleep, 20, lane="cron")
        lanes.submit_nowait(track.sleep, "alice 1", session="alice")
        lanes.submit_nowait(track.sleep, "cron's", lane="cron", priority=5)
        lanes.submit_nowait(track.sleep, "alice, high", session="alice", lane="cron", priority=5)
        assert lanes.statistics().lanes["main"].waiting_in_lane == 0
        assert lanes.statistics().lanes["main"].waiting == 1
        assert lanes.statistics().lanes["cron"].waiting_in_lane == 2
    assert track.start_times == {"cron's": 20, "alice, high": 21, "alice 1": 22}


async def test_of_a_wider_session_it_is_the_worst_forwarded_job_that_makes_room(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": 1}, sessions=LaneConfig(concurrency=2)) as lanes:
        lanes.submit_nowait(track.sleep, "blocker")
        for name, priority in (("mid", 1), ("low", 0), ("high", 2), ("low too", 0), ("top", 3)):
            lanes.submit_nowait(track.sleep, name, session="alice", priority=priority)
            assert lanes.statistics().lanes["main"].waiting_in_lane <= 2
    assert track.started == ["blocker", "top", "high", "mid", "low", "low too"]


async def test_a_cancelled_forwarded_job_makes_way_for_the_next_of_its_session(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": 1}) as lanes:
        lanes.submit_nowait(track.sleep, "blocker")
        first = lanes.submit_nowait(track.sleep, "alice 1", session="alice")
        lanes.submit_nowait(track.sleep, "alice 2", session="alice")
        first.cancel()
        assert lanes.statistics().lanes["main"].waiting_in_lane == 1
    assert track.started == ["blocker", "alice 2"]


# ---- coming to life, and going


async def test_a_session_lane_comes_to_life_with_mail_and_is_gone_with_its_last_job(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 2}) as lanes:
        view = lanes.session("alice")
        assert (view.waiting, view.active, lanes.sessions()) == (0, 0, [])
        first = view.submit_nowait(trio.sleep, 1)
        second = view.submit_nowait(trio.sleep, 1)
        assert (view.waiting, view.active, lanes.sessions()) == (1, 1, ["alice"])
        await first.wait()
        assert (view.waiting, view.active, lanes.sessions()) == (0, 1, ["alice"])
        await second.wait()
        assert (view.waiting, view.active, lanes.sessions()) == (0, 0, [])
        assert lanes.statistics().sessions == 0
        assert await view.run(trio.sleep, 1) is None  # type: ignore[func-returns-value]


async def test_a_session_is_gone_when_the_last_of_it_is_cancelled_or_cleared(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        lanes.submit_nowait(trio.sleep, 1)
        job = lanes.submit_nowait(trio.sleep, 1, session="alice")
        lanes.submit_nowait(trio.sleep, 1, session="bob")
        lanes.submit_nowait(trio.sleep, 1, session="carol", queue_timeout=0.5)
        assert lanes.sessions() == ["alice", "bob", "carol"]
        job.cancel()
        assert lanes.sessions() == ["bob", "carol"]
        lanes.clear("session:bob")
        assert lanes.sessions() == ["carol"]
        await trio.sleep(0.6)
        assert lanes.sessions() == []


@pytest.mark.many_seeds(10)
@pytest.mark.parametrize("pause", [0, 1])
async def test_a_job_submitted_by_a_finishing_job_of_its_session_goes_to_a_living_lane(
    pause: float, autojump_clock: MockClock
) -> None:
    seen: list[int] = []
    async with open_lanes({"main": 2}) as lanes:

        async def body(n: int) -> None:
            if pause:
                await trio.sleep(pause)
            seen.append(n)
            assert lanes.session("alice").active == 1
            if n:
                lanes.submit_nowait(body, n - 1, session="alice")

        lanes.submit_nowait(body, 20, session="alice")
        await lanes.wait_idle()
        assert seen == list(range(20, -1, -1))
        assert lanes.sessions() == []


class Reviver:
    """An instrument that submits to a session in each moment in which it may be gone."""

    def __init__(self, hook: str, again: int) -> None:
        self.again = again
        self.submit: Callable[[], Job[object]]
        self.jobs: list[Job[object]] = []
        setattr(self, hook, self.revive)

    def revive(self, *args: object) -> None:
        if self.again:
            self.again -= 1
            self.jobs.append(self.submit())


@pytest.mark.parametrize("hook", ["job_finished", "lane_idle", "lane_empty", "lane_cleared"])
async def test_a_job_submitted_by_a_hook_while_its_session_goes_is_not_lost(
    hook: str, autojump_clock: MockClock
) -> None:
    track = Track()
    reviver = Reviver(hook, 10)
    async with open_lanes({"main": 2}, instruments=[reviver]) as lanes:
        reviver.submit = lambda: lanes.submit_nowait(track.sleep, "again", session="alice")
        for _ in range(12):
            for _ in range(3):
                lanes.submit_nowait(track.sleep, "job", session="alice")
            lanes.clear("session:alice")
            lanes.submit_nowait(track.sleep, "job", session="alice")
            await lanes.wait_idle()
            lanes.clear("main")
            await lanes.wait_idle()
        assert reviver.again == 0
        for job in reviver.jobs:
            await job.wait()
        assert lanes.sessions() == []
    assert track.peak == 1


async def test_whoever_waits_for_a_job_of_a_session_finds_its_lane_gone(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 2}) as lanes:
        for seconds in (0, 1):
            await lanes.run(trio.sleep, seconds, session="alice")
            assert lanes.sessions() == []


def objects() -> int:
    """How many objects there are that can refer to others."""
    gc.collect()
    return len(gc.get_objects())


async def test_very_many_sessions_leave_neither_lanes_nor_objects_behind(
    autojump_clock: MockClock,
) -> None:
    async def nothing() -> None:
        pass

    async with open_lanes({"main": 100}) as lanes:

        async def use(keys: range) -> None:
            for key in keys:
                lanes.start_soon(nothing, session=str(key))
            assert lanes.statistics().sessions == len(keys)
            await lanes.wait_idle()
            assert lanes.sessions() == []

        def use_and_clear(keys: range) -> None:
            lanes.pause()
            for key in keys:
                lanes.start_soon(nothing, session=str(key))
            assert lanes.statistics().sessions == len(keys)
            assert lanes.clear() == len(keys)
            assert lanes.sessions() == []
            lanes.resume()

        await use(range(1000))
        use_and_clear(range(1000))
        before = objects()
        await use(range(1000, 6000))
        use_and_clear(range(6000, 20_000))
        assert objects() < before + 1000


# ---- a session's own pause, bound and configuration


async def test_a_paused_session_forwards_nothing_and_keeps_its_lane(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": 4}) as lanes:
        alice = lanes.session("alice")
        alice.pause()
        assert alice.paused
        assert lanes.sessions() == ["alice"]
        alice.submit_nowait(track.sleep, "alice")
        lanes.submit_nowait(track.sleep, "bob", session="bob")
        await trio.sleep(5)
        assert track.started == ["bob"]
        assert lanes.statistics().lanes["main"].waiting_in_lane == 0
        assert alice.waiting == 1
        alice.resume()
        await lanes.wait_idle()
        assert track.start_times["alice"] == 5
        assert lanes.sessions() == []


async def test_a_session_paused_after_it_forwarded_takes_its_jobs_back(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": 1}) as lanes:
        lanes.submit_nowait(track.sleep, "blocker")
        lanes.submit_nowait(track.sleep, "alice", session="alice")
        assert lanes.statistics().lanes["main"].waiting_in_lane == 1
        lanes.pause("session:alice")
        assert lanes.statistics().lanes["main"].waiting_in_lane == 0
        await trio.sleep(5)
        assert track.started == ["blocker"]
        lanes.resume("session:alice")
    assert track.started == ["blocker", "alice"]


async def test_resuming_a_session_that_is_not_alive_leaves_nothing(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        lanes.session("alice").resume()
        assert lanes.sessions() == []
        lanes.session("alice").pause()
        lanes.session("alice").resume()
        assert lanes.sessions() == []


async def test_sessions_configured_paused_start_when_they_are_resumed(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": 4}, sessions=LaneConfig(concurrency=1, paused=True)) as lanes:
        assert lanes.session("alice").paused
        lanes.submit_nowait(track.sleep, "alice", session="alice")
        lanes.submit_nowait(track.sleep, "bob", session="bob")
        await trio.sleep(5)
        assert track.started == []
        lanes.session("alice").resume()
        await trio.sleep(5)
        assert track.started == ["alice"]
        assert lanes.clear("session:bob") == 1


async def test_a_session_cleared_by_its_view_tells_the_session_as_the_lane(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        alice = lanes.session(" session:alice ")
        running = alice.submit_nowait(trio.sleep, 1)
        waiting = alice.submit_nowait(trio.sleep, 1)
        assert alice.clear(reason="enough") == 1
        with pytest.raises(LaneClearedError) as caught:
            await waiting.wait()
        assert (caught.value.lane, caught.value.reason) == ("session:alice", "enough")
        await running.wait()
        assert running.state is JobState.SUCCEEDED


async def test_what_never_started_in_a_paused_session_is_told_when_the_lanes_crash(
    autojump_clock: MockClock,
) -> None:
    with pytest.RaisesGroup(OSError):
        async with open_lanes({"main": 1}) as lanes:
            lanes.pause("session:alice")
            job = lanes.submit_nowait(trio.sleep, 1, session="alice")
            raise OSError
    with pytest.raises(LanesClosedError):
        await job.wait()
