"""Submissions under one key are one job while it waits: `Coalesce`."""

from __future__ import annotations

import gc
import logging
import math
import weakref
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from trio_lanes import (
    Coalesce,
    Job,
    JobCancelledError,
    JobState,
    LaneClearedError,
    LaneConfig,
    LaneDeadlockError,
    LaneError,
    LaneFullError,
    LaneGroup,
    LaneInstrument,
    QueueTimeoutError,
    RateLimit,
    current_job,
    open_lanes,
)
from trio_lanes.testing import LaneRecorder

pytestmark = pytest.mark.both_doors

KEY = Coalesce("index")


class Bodies:
    """Functions that note what ran, and when."""

    def __init__(self) -> None:
        self.ran: list[tuple[Any, float]] = []

    async def note(self, what: Any, seconds: float = 1) -> Any:
        self.ran.append((what, trio.current_time() - self.begin))
        await trio.sleep(seconds)
        return what

    def __enter__(self) -> Bodies:
        self.begin = trio.current_time()
        return self

    def __exit__(self, *error: object) -> None:
        pass

    @property
    def names(self) -> list[Any]:
        return [what for what, _ in self.ran]


async def no_op() -> None:
    pass


@pytest.mark.many_seeds(5)
async def test_while_a_job_waits_further_submissions_of_its_key_get_its_handle(
    autojump_clock: MockClock,
) -> None:
    recorder = LaneRecorder()
    with Bodies() as bodies:
        async with open_lanes({"main": 1}, instruments=[recorder]) as lanes:
            lanes.submit_nowait(bodies.note, "before", name="0")
            first = lanes.submit_nowait(bodies.note, 0, coalesce=KEY)
            after = lanes.submit_nowait(bodies.note, "after", name="0")
            for number in range(1, 100):
                same = lanes.submit_nowait(bodies.note, number, name=str(number), coalesce=KEY)
                assert same is first
            assert (first.submissions, after.submissions) == (100, 1)
            assert lanes.statistics().waiting == 2
            assert await first.wait() == 99
        assert bodies.names == ["before", 99, "after"]
    recorder.check()
    assert [record.name for record in recorder.finished] == ["0", "99", "0"]


async def test_the_first_is_kept_if_that_is_asked_for(autojump_clock: MockClock) -> None:
    keep = Coalesce("index", keep="first")
    with Bodies() as bodies:
        async with open_lanes({"main": 1}) as lanes:
            lanes.submit_nowait(no_op)
            job = lanes.submit_nowait(bodies.note, "first", name="one", coalesce=keep)
            again = lanes.submit_nowait(bodies.note, "second", name="two", coalesce=keep)
            assert again is job
            assert (job.name, job.submissions) == ("one", 2)
            assert await job.wait() == "first"
    assert bodies.names == ["first"]


async def test_all_callers_of_run_get_the_result_of_what_ran(autojump_clock: MockClock) -> None:
    results: list[Any] = []
    with Bodies() as bodies:
        async with open_lanes({"main": 1}) as lanes, trio.open_nursery() as nursery:

            async def call(number: int) -> None:
                results.append(await lanes.run(bodies.note, number, session="a", coalesce=KEY))

            lanes.submit_nowait(trio.sleep, 1)
            for number in range(5):
                nursery.start_soon(call, number)
    (ran,) = bodies.names
    assert results == [ran] * 5


async def test_it_takes_the_options_and_the_context_of_the_newest(
    autojump_clock: MockClock,
) -> None:
    user: ContextVar[str] = ContextVar("user")

    async def body() -> Any:
        await trio.sleep(5)
        return user.get()

    async with open_lanes({"main": LaneConfig(rate=RateLimit(100, unit="tokens"))}) as lanes:
        lanes.pause()
        user.set("alice")
        first: Job[Any] = lanes.submit_nowait(
            no_op, session="a", name="old", meta=1, timeout=1, owner="o", coalesce=KEY
        )
        user.set("bob")
        newest: Job[Any] = lanes.submit_nowait(
            body, session="a", name="new", meta=2, cost={"tokens": 7}, coalesce=KEY
        )
        user.set("carol")
        assert newest is first
        assert (first.name, first.meta, first.owner) == ("new", 2, "a")
        assert first.cost == {"tokens": 7, "requests": 1}
        assert first.id == 1
        lanes.resume()
        assert await first.wait() == "bob"


async def test_it_keeps_its_place_in_its_session_and_in_its_lane(
    autojump_clock: MockClock,
) -> None:
    with Bodies() as bodies:
        async with open_lanes({"main": 1}) as lanes:
            lanes.submit_nowait(bodies.note, 0)
            in_lane = lanes.submit_nowait(bodies.note, 1, coalesce=Coalesce("lane"))
            lanes.submit_nowait(bodies.note, 2, session="a")
            in_session = lanes.submit_nowait(bodies.note, 3, session="a", coalesce=KEY)
            lanes.submit_nowait(bodies.note, 4, session="a")
            lanes.submit_nowait(bodies.note, "lane", coalesce=Coalesce("lane"))
            lanes.submit_nowait(bodies.note, "session", session="a", coalesce=KEY)
            assert in_lane.submissions == in_session.submissions == 2
    assert bodies.names == [0, "lane", 2, "session", 4]


@pytest.mark.parametrize("session", ["a", None])
async def test_another_priority_moves_it_and_the_same_does_not(
    autojump_clock: MockClock, session: str | None
) -> None:
    with Bodies() as bodies:
        async with open_lanes({"main": 1}) as lanes:
            lanes.submit_nowait(bodies.note, 0, session=session)
            lanes.submit_nowait(bodies.note, 1, session=session)
            job = lanes.submit_nowait(bodies.note, 2, session=session, coalesce=KEY)
            lanes.submit_nowait(bodies.note, "up", session=session, priority=1, coalesce=KEY)
            assert job.priority == 1
    assert bodies.names == [0, "up", 1]


async def test_another_owner_moves_it_among_the_owners_of_a_fair_lane(
    autojump_clock: MockClock,
) -> None:
    with Bodies() as bodies:
        async with open_lanes({"main": LaneConfig(fair=True)}) as lanes:
            lanes.submit_nowait(bodies.note, "runs")
            lanes.submit_nowait(bodies.note, "a1", owner="a")
            job = lanes.submit_nowait(bodies.note, "a2", owner="a", coalesce=KEY)
            lanes.submit_nowait(bodies.note, "a3", owner="a")
            lanes.submit_nowait(bodies.note, "b", owner="b", coalesce=KEY)
            assert lanes.clear(owner="b", reason="gone") == 1
            assert job.state is JobState.CANCELLED
            job = lanes.submit_nowait(bodies.note, "a4", owner="a", coalesce=KEY)
            lanes.submit_nowait(bodies.note, "b", owner="b", coalesce=KEY)
    assert bodies.names == ["runs", "a1", "b", "a3"]


@pytest.mark.many_seeds(5)
async def test_debounce_moves_the_start_until_it_is_quiet(autojump_clock: MockClock) -> None:
    quiet = Coalesce("index", debounce=2)
    recorder = LaneRecorder()
    with Bodies() as bodies:
        async with open_lanes({"main": 1}, instruments=[recorder]) as lanes:
            for number in range(4):
                job = lanes.submit_nowait(bodies.note, number, session="a", coalesce=quiet)
                assert job.waiting_since is None
                assert job.delay == number * 1.5 + 2
                (blocker,) = job.blocked_by()
                assert (blocker.kind, blocker.until) == ("delay", trio.current_time() + 2)
                await trio.sleep(1.5)
            await job.wait()
            assert job.submissions == 4
    assert bodies.ran == [(3, 4.5 + 2)]
    recorder.check()


async def test_max_wait_bounds_that_since_the_first(autojump_clock: MockClock) -> None:
    quiet = Coalesce("index", debounce=2, max_wait=5)
    with Bodies() as bodies:
        async with open_lanes({"main": 1}) as lanes:
            for number in range(8):
                lanes.submit_nowait(bodies.note, number, 0, coalesce=quiet)
                await trio.sleep(1)
    assert bodies.ran == [(4, 5), (7, 9)]


async def test_debounce_without_a_bound_takes_a_job_out_of_line_again(
    autojump_clock: MockClock,
) -> None:
    quiet = Coalesce("index", debounce=2)
    recorder = LaneRecorder()
    with Bodies() as bodies:
        async with open_lanes({"main": 1}, instruments=[recorder], wait_accounting=True) as lanes:
            lanes.submit_nowait(bodies.note, "long", 3, session="a")
            job = lanes.submit_nowait(bodies.note, "old", session="a", coalesce=quiet)
            lanes.submit_nowait(bodies.note, "other", 1, session="b")
            await trio.sleep(2.5)
            started: list[float | None] = [job.waiting_since]
            lanes.submit_nowait(bodies.note, "new", session="a", coalesce=quiet)
            started.append(job.waiting_since)
            assert started == [bodies.begin + 2, None]
            lanes.submit_nowait(bodies.note, "later", 5, session="b")
            lanes.submit_nowait(bodies.note, "behind", session="a")
            await job.wait()
            assert sum(job.waits.values()) == 10
            assert job.waits["delay"] == 4
    assert bodies.ran == [("long", 0), ("other", 3), ("behind", 4), ("later", 5), ("new", 10)]
    recorder.check()


async def test_a_job_that_was_debounced_comes_before_later_jobs_of_its_session(
    autojump_clock: MockClock,
) -> None:
    quiet = Coalesce("index", debounce=2)
    recorder = LaneRecorder()
    with Bodies() as bodies:
        async with open_lanes({"main": 1}, instruments=[recorder]) as lanes:
            lanes.submit_nowait(bodies.note, "busy", 3)
            lanes.submit_nowait(bodies.note, "index", session="a", coalesce=quiet)
            lanes.submit_nowait(bodies.note, "later", session="a")
    assert bodies.names == ["busy", "index", "later"]
    recorder.check()


async def test_a_submission_without_debounce_ends_the_wait_for_quiet(
    autojump_clock: MockClock,
) -> None:
    with Bodies() as bodies:
        async with open_lanes({"main": 1}, wait_accounting=True) as lanes:
            job = lanes.submit_nowait(bodies.note, 1, coalesce=Coalesce("index", debounce=60))
            await trio.sleep(1)
            assert lanes.submit_nowait(bodies.note, 2, coalesce=KEY) is job
            assert await job.wait() == 2
            assert job.waits == {"delay": 1}
    assert bodies.ran == [(2, 1)]


async def test_keep_first_is_debounced_by_each_submission(autojump_clock: MockClock) -> None:
    quiet = Coalesce("index", keep="first", debounce=2)
    with Bodies() as bodies:
        async with open_lanes({"main": 1}) as lanes:
            job = lanes.submit_nowait(bodies.note, 1, priority=3, coalesce=quiet)
            await trio.sleep(1)
            lanes.submit_nowait(bodies.note, 2, coalesce=quiet)
            assert job.priority == 3
    assert bodies.ran == [(1, 3)]


async def test_a_submission_while_one_runs_is_a_job_that_waits(autojump_clock: MockClock) -> None:
    with Bodies() as bodies:
        async with open_lanes({"main": 9}) as lanes:
            runs = lanes.submit_nowait(bodies.note, 1, session="a", coalesce=KEY)
            waits = lanes.submit_nowait(bodies.note, 2, session="a", coalesce=KEY)
            assert waits is not runs
            assert lanes.submit_nowait(bodies.note, 3, session="a", coalesce=KEY) is waits
            assert (await runs.wait(), await waits.wait()) == (1, 3)
    assert bodies.ran == [(1, 0), (3, 1)]


async def test_it_is_dropped_while_one_runs_if_that_is_asked_for(
    autojump_clock: MockClock,
) -> None:
    drop = Coalesce("index", while_running="drop")
    with Bodies() as bodies:
        async with open_lanes({"main": 9}) as lanes:
            first = lanes.submit_nowait(bodies.note, 1, 3, coalesce=KEY)
            second = lanes.submit_nowait(bodies.note, 2, 1, coalesce=KEY)
            assert (first.state, second.state) == (JobState.RUNNING, JobState.RUNNING)
            assert lanes.submit_nowait(bodies.note, 3, coalesce=drop) is second
            assert second.submissions == 2
            await second.wait()
            assert lanes.submit_nowait(bodies.note, 4, coalesce=drop) is first
            await first.wait()
            assert lanes.submit_nowait(bodies.note, 5, coalesce=drop) is not first
    assert bodies.names == [1, 2, 5]


@pytest.mark.parametrize("by", ["caller", "handle", "timeout"])
async def test_a_submission_does_not_join_a_job_that_is_cancelled_while_it_runs(
    by: str, autojump_clock: MockClock
) -> None:
    async def cleans_up() -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(5)

    drop = Coalesce("index", while_running="drop")
    timeout = 1 if by == "timeout" else math.inf
    async with open_lanes({"main": 1}) as lanes, trio.open_nursery() as nursery:

        async def caller() -> None:
            with trio.move_on_after(1 if by == "caller" else math.inf), suppress(LaneError):
                await lanes.run(cleans_up, coalesce=drop, timeout=timeout)

        nursery.start_soon(caller)
        await trio.sleep(1)
        if by == "handle":
            lanes.jobs()[0].cancel()
        await trio.sleep(1)
        other = lanes.submit_nowait(trio.sleep, 1, coalesce=drop)
        assert other is lanes.submit_nowait(trio.sleep, 1, coalesce=drop)
        await other.wait()
        assert other.finished_at == 7


@pytest.mark.parametrize("other", [{"session": "b"}, {"lane": "cron", "session": "a"}, {}])
async def test_a_key_that_waits_elsewhere_is_refused_with_nothing_changed(
    autojump_clock: MockClock, other: dict[str, Any]
) -> None:
    with Bodies() as bodies:
        async with open_lanes({"main": 1, "cron": 1}) as lanes:
            lanes.pause()
            job = lanes.submit_nowait(bodies.note, 1, session="a", coalesce=KEY)
            for _ in range(2):
                with pytest.raises(ValueError, match=r"(?s)'index'.*Job 1.*part of the key"):
                    lanes.submit_nowait(bodies.note, 2, coalesce=KEY, **other)
                with pytest.raises(ValueError, match="coalesce"):
                    await lanes.run(bodies.note, 2, coalesce=KEY, **other)
            assert (job.submissions, lanes.statistics().waiting) == (1, 1)
            lanes.resume()
            await job.wait()
            lanes.submit_nowait(bodies.note, 3, coalesce=KEY, **other)
    assert bodies.names == [1, 3]


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"coalesce": "index"}, TypeError, "coalesce.*'index'"),
        ({"coalesce": KEY, "delay": 2}, ValueError, "delay=2.*debounce"),
        ({"coalesce": KEY, "queue_timeout": 0}, ValueError, "queue_timeout=0"),
    ],
)
async def test_options_that_cannot_be_coalesced_are_refused(
    options: dict[str, Any], error: type[Exception], says: str
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        with pytest.raises(error, match=says):
            lanes.submit_nowait(no_op, **options)
        lanes.submit_nowait(no_op, coalesce=None, delay=0)


async def test_a_map_and_a_nursery_have_jobs_of_their_own() -> None:
    async with open_lanes({"main": 1}) as lanes:
        options: Any = {"coalesce": KEY}
        with pytest.raises(ValueError, match=r"coalesce.*map"):
            lanes.map(no_op, [], **options)  # type: ignore[arg-type]
        async with lanes.open_nursery() as jobs:
            with pytest.raises(ValueError, match=r"coalesce.*nursery"):
                jobs.start_soon(no_op, coalesce=KEY)


async def test_would_wait_says_why_the_job_that_it_would_join_waits(
    autojump_clock: MockClock,
) -> None:
    drop = Coalesce("index", while_running="drop")
    async with open_lanes({"main": 1}) as lanes:
        assert lanes.would_wait(coalesce=KEY) == ()
        (blocker,) = lanes.would_wait(coalesce=Coalesce("index", debounce=3))
        assert (blocker.kind, blocker.until) == ("delay", trio.current_time() + 3)
        runs = lanes.submit_nowait(trio.sleep, 1, coalesce=KEY)
        assert lanes.would_wait(coalesce=drop) == ()
        assert [one.jobs for one in lanes.would_wait(coalesce=KEY)] == [(runs,)]
        job = lanes.submit_nowait(trio.sleep, 1, coalesce=KEY)
        assert lanes.would_wait(coalesce=KEY) == job.blocked_by() != ()
        assert job.submissions == 1


# ---- cancelling


@pytest.mark.many_seeds(5)
async def test_a_caller_of_run_that_is_cancelled_leaves_the_job_to_the_others(
    autojump_clock: MockClock,
) -> None:
    results: list[Any] = []
    with Bodies() as bodies:
        async with open_lanes({"main": 1}) as lanes, trio.open_nursery() as nursery:

            async def call(name: str, seconds: float) -> None:
                with trio.move_on_after(seconds):
                    results.append(await lanes.run(bodies.note, name, 4, coalesce=KEY))
                    return
                results.append((name, trio.current_time() - bodies.begin))

            lanes.submit_nowait(trio.sleep, 2)
            nursery.start_soon(call, "waits", 1)  # while it waits
            nursery.start_soon(call, "runs", 3)  # while it runs
            nursery.start_soon(call, "stays", 99)
            await trio.sleep(0.5)
            lanes.submit_nowait(bodies.note, "ran", 4, coalesce=KEY)
    assert results == [("waits", 1), ("runs", 3), "ran"]
    assert bodies.ran == [("ran", 2)]


@pytest.mark.many_seeds(5)
async def test_the_last_caller_of_run_that_is_cancelled_withdraws_the_job(
    autojump_clock: MockClock,
) -> None:
    with Bodies() as bodies:
        async with open_lanes({"main": 1}) as lanes:
            lanes.submit_nowait(trio.sleep, 2)
            with trio.move_on_after(1):
                async with trio.open_nursery() as nursery:
                    for number in range(3):
                        nursery.start_soon(
                            lambda number: lanes.run(bodies.note, number, coalesce=KEY), number
                        )
            assert lanes.statistics().waiting == 0
    assert bodies.ran == []


async def test_the_last_caller_of_run_that_is_cancelled_cancels_a_job_that_runs(
    autojump_clock: MockClock,
) -> None:
    with Bodies() as bodies:
        async with open_lanes({"main": 1}) as lanes:
            for _ in range(2):
                with trio.move_on_after(1):
                    await lanes.run(bodies.note, 1, 99, coalesce=KEY)
            assert trio.current_time() == bodies.begin + 2
    assert bodies.names == [1, 1]


async def test_cancel_and_clear_are_for_all_who_have_the_handle(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        lanes.submit_nowait(trio.sleep, 1)
        for error in (JobCancelledError, LaneClearedError):
            job = lanes.submit_nowait(no_op, coalesce=KEY)
            same = lanes.submit_nowait(no_op, coalesce=KEY)
            if error is JobCancelledError:
                job.cancel("no more")
            else:
                lanes.clear("main")
            with pytest.raises(error):
                await same.wait()
            assert lanes.submit_nowait(no_op, coalesce=KEY) is not job
            lanes.clear("main")


async def test_a_wait_that_is_cancelled_changes_nothing(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 1}) as lanes:
        lanes.submit_nowait(trio.sleep, 2)
        job = lanes.submit_nowait(no_op, coalesce=KEY)
        with trio.move_on_after(1):
            await job.wait()
        assert lanes.submit_nowait(no_op, coalesce=KEY) is job
        await job.wait()


# ---- waits and their limits


async def test_queue_timeout_is_that_of_the_newest_and_counts_from_its_call(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        lanes.submit_nowait(trio.sleep, 100)
        job = lanes.submit_nowait(no_op, queue_timeout=3, coalesce=KEY)
        await trio.sleep(2)
        lanes.submit_nowait(no_op, queue_timeout=5, coalesce=KEY)
        await trio.sleep(4)
        assert job.state is JobState.WAITING
        with pytest.raises(QueueTimeoutError, match="5"):
            await job.wait()
        assert trio.current_time() == job.submitted_at + 7
        job = lanes.submit_nowait(no_op, queue_timeout=3, coalesce=KEY)
        lanes.submit_nowait(no_op, coalesce=KEY)
        await trio.sleep(50)
        assert job.state is JobState.WAITING


async def test_timeout_is_that_of_the_newest(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 1}) as lanes:
        lanes.submit_nowait(trio.sleep, 1)
        job = lanes.submit_nowait(trio.sleep, 10, timeout=2, coalesce=KEY)
        lanes.submit_nowait(trio.sleep, 10, timeout=5, coalesce=KEY)
        await job.wait_done()
        assert (job.state, trio.current_time()) == (JobState.FAILED, job.submitted_at + 1 + 5)


async def test_each_on_wait_is_called_once_and_the_hook_too(autojump_clock: MockClock) -> None:
    said: list[str] = []

    class Hook(LaneInstrument):
        def job_waiting_long(self, job: Job[Any], seconds: float) -> None:
            said.append(f"hook {job.name} {seconds:g}")

    def say(name: str) -> Any:
        return lambda job, seconds: said.append(f"{name} {seconds:g}")

    async with open_lanes({"main": LaneConfig(warn_after=4)}, instruments=[Hook()]) as lanes:
        lanes.submit_nowait(trio.sleep, 20, name="runs")
        lanes.submit_nowait(no_op, name="a", coalesce=KEY)
        await trio.sleep(1)
        lanes.submit_nowait(no_op, name="b", coalesce=KEY)
        await trio.sleep(4)
        assert said == ["hook b 4"]
        lanes.submit_nowait(no_op, name="c", coalesce=KEY)
        await trio.sleep(4)
        assert said == ["hook b 4"]
        lanes.submit_nowait(no_op, name="d", warn_after=10, on_wait=say("d"), coalesce=KEY)
        await trio.sleep(2)
        assert said[1:] == ["d 10", "hook d 10"]
        job = lanes.submit_nowait(no_op, name="e", coalesce=KEY)
        assert job.submissions == 5


async def test_a_cost_that_is_less_lets_it_start_at_once(autojump_clock: MockClock) -> None:
    rate = RateLimit(10, per=10, unit="tokens", algorithm="sliding")
    for options in ({}, {"session": "a"}):
        async with open_lanes(
            {"main": LaneConfig(rate=rate)}, groups={"g": LaneGroup(["main"])}
        ) as lanes:
            await lanes.run(no_op, cost={"tokens": 8})
            job = lanes.submit_nowait(no_op, cost={"tokens": 5}, coalesce=KEY, **options)  # type: ignore[arg-type]
            await trio.sleep(1)
            states = [job.state]
            lanes.submit_nowait(no_op, cost={"tokens": 2}, coalesce=KEY, **options)  # type: ignore[arg-type]
            assert [*states, job.state] == [JobState.WAITING, JobState.RUNNING]


async def test_a_cost_that_is_less_in_a_session_with_rates(autojump_clock: MockClock) -> None:
    sessions = LaneConfig(rate=RateLimit(10, per=10, unit="tokens", algorithm="sliding"))
    async with open_lanes({"main": 1}, sessions=sessions) as lanes:
        await lanes.run(no_op, cost={"tokens": 8}, session="a")
        job = lanes.submit_nowait(no_op, cost={"tokens": 5}, coalesce=KEY, session="a")
        lanes.submit_nowait(no_op, cost={"tokens": 2}, coalesce=KEY, session="a")
        assert job.state is JobState.RUNNING


# ---- room


async def test_a_submission_that_joins_needs_no_room(autojump_clock: MockClock) -> None:
    with Bodies() as bodies:
        async with open_lanes({"main": LaneConfig(max_waiting=1)}) as lanes:
            lanes.submit_nowait(bodies.note, 0)
            job = lanes.submit_nowait(bodies.note, 1, coalesce=KEY)
            assert lanes.submit_nowait(bodies.note, 2, coalesce=KEY) is job
            assert await lanes.submit(bodies.note, 3, coalesce=KEY) is job
            lanes.start_soon(bodies.note, 4, coalesce=KEY)
            assert await lanes.run(bodies.note, 5, coalesce=KEY) == 5
            assert job.submissions == 5
            lanes.submit_nowait(bodies.note, 6)
            lanes.submit_nowait(bodies.note, 7)
            with pytest.raises(LaneFullError):
                lanes.submit_nowait(bodies.note, 8, coalesce=KEY)
    assert bodies.names == [0, 5, 6, 7]


@pytest.mark.many_seeds(10)
@pytest.mark.parametrize("bounded", ["lane", "session"])
async def test_submissions_that_wait_for_room_join_the_first_that_has_it(
    autojump_clock: MockClock, bounded: str
) -> None:
    results: list[Any] = []
    lane = LaneConfig(max_waiting=1) if bounded == "lane" else 1
    sessions = LaneConfig(max_waiting=1) if bounded == "session" else LaneConfig()
    with Bodies() as bodies:
        async with open_lanes({"main": lane}, sessions=sessions) as lanes:
            lanes.submit_nowait(bodies.note, "runs", session="a")
            lanes.submit_nowait(bodies.note, "waits", session="a")
            async with trio.open_nursery() as nursery:

                async def call(number: int) -> None:
                    job = await lanes.submit(bodies.note, number, session="a", coalesce=KEY)
                    results.append((await job.wait(), job.submissions))

                async def run(number: int) -> None:
                    result = await lanes.run(bodies.note, number, session="a", coalesce=KEY)
                    results.append((result, 6))

                async def other(coalesce: Coalesce | None) -> None:
                    await lanes.submit(bodies.note, coalesce, coalesce=coalesce)

                async def gives_up() -> None:
                    with trio.move_on_after(0.5):
                        await lanes.submit(bodies.note, "never", session="a", coalesce=KEY)

                nursery.start_soon(gives_up)
                nursery.start_soon(other, None)
                nursery.start_soon(other, Coalesce("other"))
                for number in range(3):
                    nursery.start_soon(call, number)
                    nursery.start_soon(run, number)
    assert len(bodies.ran) == 5
    assert {None, Coalesce("other")} < {*bodies.names}
    assert results == [(results[0][0], 6)] * 6
    assert results[0][0] in bodies.names


async def test_submissions_that_wait_for_room_are_found_by_their_keys_alone(
    autojump_clock: MockClock,
) -> None:
    compared = 0

    class Key:
        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return self is other

        __hash__ = object.__hash__

    async with (
        open_lanes({"main": LaneConfig(max_waiting=1)}) as lanes,
        trio.open_nursery() as callers,
    ):
        for _ in range(100):
            callers.start_soon(partial(lanes.run, trio.sleep, 0, coalesce=Coalesce(Key())))
    assert compared < 10  # by chance, where hashes are equal


async def test_a_submission_that_waits_for_room_elsewhere_is_refused_when_one_is_accepted(
    autojump_clock: MockClock,
) -> None:
    refused: list[str] = []
    async with open_lanes({"main": LaneConfig(max_waiting=1)}) as lanes:
        lanes.submit_nowait(trio.sleep, 1)
        lanes.submit_nowait(trio.sleep, 1)
        async with trio.open_nursery() as nursery:

            async def call(session: str) -> None:
                try:
                    await lanes.run(trio.sleep, 1, session=session, coalesce=KEY)
                except ValueError as error:
                    refused.append(str(error))

            nursery.start_soon(call, "a")
            nursery.start_soon(call, "b")
    (error,) = refused
    assert "coalesce: the key 'index'" in error


# ---- callers inside of jobs


@pytest.mark.parametrize("session", ["a", None])
async def test_a_job_that_waits_for_one_behind_itself_gets_an_error_and_others_their_result(
    autojump_clock: MockClock, session: str | None
) -> None:
    with Bodies() as bodies:
        async with open_lanes({"main": 1}) as lanes:

            async def parent() -> str:
                with pytest.raises(LaneDeadlockError):
                    await lanes.run(bodies.note, "inside", session=session, coalesce=KEY)
                return "went on"

            job = lanes.submit_nowait(parent, session=session)
            waits = lanes.submit_nowait(bodies.note, "outside", session=session, coalesce=KEY)
            assert await job.wait() == "went on"
            assert await waits.wait() == "inside"
            alone = lanes.submit_nowait(parent, session=session)
            assert await alone.wait() == "went on"
            assert lanes.statistics().waiting == 0


async def test_a_job_may_join_from_inside_and_lend_its_slot(autojump_clock: MockClock) -> None:
    with Bodies() as bodies:
        async with open_lanes({"main": 1}) as lanes:

            async def parent() -> Any:
                job = current_job()
                assert job is not None
                seen: list[Job[Any]] = []
                result = await lanes.run(
                    bodies.note, "inside", coalesce=KEY, yield_slot=True, on_submit=seen.append
                )
                assert seen == [waits]
                return result

            job = lanes.submit_nowait(parent)
            waits = lanes.submit_nowait(bodies.note, "outside", coalesce=KEY)
            assert await job.wait() == "inside"
            assert waits.parent is job


async def test_a_body_that_runs_its_own_key_and_drops_it_gets_a_deadlock(
    autojump_clock: MockClock,
) -> None:
    drop = Coalesce("index", while_running="drop")
    async with open_lanes({"main": 2}) as lanes:

        async def body() -> str:
            with pytest.raises(LaneDeadlockError):
                await lanes.run(no_op, coalesce=drop)
            return "went on"

        assert await lanes.run(body, coalesce=drop) == "went on"


# ---- failures, and what is left


async def test_a_failure_belongs_to_all_who_have_the_handle(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def fails() -> None:
        raise ValueError("boom")

    async with open_lanes({"main": 1}) as lanes:
        lanes.submit_nowait(trio.sleep, 1)
        job = lanes.submit_nowait(no_op, coalesce=KEY)
        lanes.submit_nowait(fails, coalesce=KEY)
        for _ in range(2):
            with pytest.raises(ValueError, match="boom"):
                await job.wait()
    assert caplog.record_tuples == []


@pytest.mark.parametrize("first", [True, False])
async def test_a_failure_leaves_the_lanes_if_one_submission_was_by_start_soon(
    autojump_clock: MockClock, first: bool
) -> None:
    async def fails() -> None:
        raise ValueError("boom")

    with pytest.raises(ExceptionGroup) as info:
        async with open_lanes({"main": 1}) as lanes:
            lanes.submit_nowait(trio.sleep, 1)
            if first:
                lanes.start_soon(no_op, coalesce=KEY)
                lanes.submit_nowait(fails, coalesce=KEY)
            else:
                lanes.submit_nowait(no_op, coalesce=KEY)
                lanes.start_soon(fails, coalesce=KEY)
    assert [str(error) for error in info.value.exceptions] == ["boom"]


async def test_nothing_is_kept_of_what_was_replaced_and_of_what_has_ended(
    autojump_clock: MockClock,
) -> None:
    class Payload:
        async def work(self) -> None:
            await trio.sleep(1)

    async with open_lanes({"main": 1}) as lanes:
        lanes.submit_nowait(trio.sleep, 1)
        payload = Payload()
        replaced = weakref.ref(payload)
        job = lanes.submit_nowait(payload.work, coalesce=Coalesce(("key", 1)))
        del payload
        payload = Payload()
        newest = weakref.ref(payload)
        lanes.submit_nowait(payload.work, coalesce=Coalesce(("key", 1)))
        del payload
        gc.collect()
        assert replaced() is None
        await job.wait()
        handle = weakref.ref(job)
        del job
        gc.collect()
        assert (newest(), handle()) == (None, None)


async def test_a_reset_gives_a_job_of_a_key_up_and_the_next_is_another(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    drop = Coalesce("index", while_running="drop")
    async with open_lanes({"main": 1}) as lanes:
        job = lanes.submit_nowait(trio.sleep, 9, coalesce=drop)
        assert lanes.submit_nowait(trio.sleep, 9, coalesce=drop) is job
        assert lanes.reset("main") == 1
        again = lanes.submit_nowait(trio.sleep, 1, coalesce=drop)
        assert again is not job
        await again.wait()


async def test_closing_settles_it_for_all(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 1}) as lanes:
        lanes.submit_nowait(trio.sleep, 1)
        job = lanes.submit_nowait(no_op, coalesce=Coalesce("index", debounce=50))
        assert lanes.submit_nowait(no_op, coalesce=Coalesce("index", debounce=70)) is job
    assert (job.state, job.finished_at) == (JobState.SUCCEEDED, job.submitted_at + 70)
