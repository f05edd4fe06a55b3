"""Order inside a session, and turns between sessions."""

from collections.abc import Awaitable, Callable
from random import Random

import pytest
import trio
from trio.testing import MockClock

from tests.support.bodies import never_ends
from tests.support.track import Track
from trio_lanes import (
    Job,
    LaneConfig,
    Lanes,
    open_lanes,
)

pytestmark = pytest.mark.both_doors

# ---- order inside a session


@pytest.mark.many_seeds(10)
async def test_sessions_wider_than_one_start_in_order_and_within_their_limit(
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
        pytest.param(never_ends, {"timeout": 3}, None, 3, id="timed out"),
        pytest.param(catches_its_cancellation, {"timeout": 1}, None, 2, id="outlived its timeout"),
        pytest.param(never_ends, {}, lambda lanes, job: job.cancel(), 1, id="was cancelled"),
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
async def test_a_session_stays_in_order_while_jobs_of_it_and_of_others_end_in_any_way(
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
        for n in range(100):
            lanes.submit_nowait(track.sleep, n, session="bulk")
        lanes.submit_nowait(track.sleep, "quick", session="quick")
        await lanes.wait_idle("session:quick")
        assert track.started[:2] == [0, "quick"]
        lanes.clear()


async def test_a_better_job_takes_the_place_of_a_forwarded_job_which_keeps_its_place_in_the_session(
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
