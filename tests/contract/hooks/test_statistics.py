"""What lanes say of themselves: statistics that are right after every event, and reprs."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.track import Track
from trio_lanes import (
    Job,
    JobState,
    LaneConfig,
    Lanes,
    LanesStatistics,
    LaneStatistics,
    current_job,
    open_lanes,
)

WAITING, RUNNING = JobState.WAITING, JobState.RUNNING


class Ledger:
    """Every job of some lanes, from which their statistics can be worked out anew."""

    def __init__(self, lanes: Lanes) -> None:
        self.lanes = lanes
        self.jobs: list[Job[Any]] = []

    def submit(self, *args: Any, **options: Any) -> Job[Any]:
        job = self.lanes.submit_nowait(*args, **options)
        self.jobs.append(job)
        return job

    def check(self) -> None:
        lanes, statistics = self.lanes, self.lanes.statistics()
        now = trio.current_time()
        listed = [job for job in self.jobs if not job.done]
        assert lanes.jobs() == listed
        alive = [job for job in listed if job.session is not None]
        assert set(lanes.sessions()) >= {job.session for job in alive}
        assert statistics.sessions == len(lanes.sessions())
        for key in lanes.sessions():
            session = lanes.session(key)
            mine = [job.state for job in alive if job.session == key]
            assert session.waiting == mine.count(WAITING)
            assert session.active == mine.count(RUNNING)
            assert session.waiting or session.active or session.paused
        for name, found in statistics.lanes.items():
            lane = lanes.lane(name)
            assert lane.statistics() == found
            mine = [job for job in self.jobs if job.lane == name]
            waiting = [job for job in mine if job.state is WAITING]
            running = [job for job in mine if job.state is RUNNING]
            ended = [job for job in mine if job.done and job.started_at is not None]
            assert found.waiting == lane.waiting == len(waiting)
            assert found.waiting_in_lane + found.waiting_in_sessions == found.waiting
            assert found.waiting_in_lane >= len([job for job in waiting if job.session is None])
            assert found.active == lane.active == len(running)
            assert lane.limiter.borrowed_tokens == len(running)
            assert set(lane.limiter.statistics().borrowers) == set(running)
            assert found.concurrency == lane.concurrency == lane.limiter.total_tokens
            assert found.paused == lane.paused
            assert found.paused_until is None
            assert found.started == len(running) + len(ended)
            assert found.finished == len(ended)
            oldest = min((job.submitted_at for job in waiting), default=now)
            assert found.oldest_wait == now - oldest
        each = statistics.lanes.values()
        assert statistics.waiting == sum(lane.waiting for lane in each)
        assert statistics.active == sum(lane.active for lane in each)
        assert statistics.oldest_wait == max(lane.oldest_wait for lane in each)


async def test_fresh_lanes_have_nothing_to_tell(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 4, "cron": LaneConfig(paused=True)}) as lanes:
        nothing = LaneStatistics(
            waiting=0,
            waiting_in_lane=0,
            waiting_in_sessions=0,
            active=0,
            concurrency=4,
            paused=False,
            paused_until=None,
            oldest_wait=0.0,
            started=0,
            finished=0,
            slots=0,
            lent=0,
            cancelling=0,
            overdue=0,
            abandoned=0,
            succeeded=0,
            failed=0,
            cancelled=0,
            rates=(),
            rate_until=None,
        )
        assert lanes.statistics() == LanesStatistics(
            waiting=0,
            active=0,
            abandoned=0,
            sessions=0,
            oldest_wait=0.0,
            lanes={"main": nothing, "cron": attrs.evolve(nothing, concurrency=1, paused=True)},
            groups={},
        )


async def test_statistics_are_snapshots_that_cannot_be_changed(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        before = lanes.statistics()
        lanes.start_soon(trio.sleep, 1)
        assert before.active == before.lanes["main"].active == 0
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            before.waiting = 3  # type: ignore[misc]
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            before.lanes["main"].waiting = 3  # type: ignore[misc]


async def test_waiting_is_told_apart_by_layer(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 1, "cron": 1}) as lanes:
        ledger = Ledger(lanes)
        lane = lanes.lane("main")

        def layers() -> tuple[int, int, int]:
            found = lane.statistics()
            return found.waiting, found.waiting_in_lane, found.waiting_in_sessions

        ledger.submit(trio.sleep, 10)
        assert layers() == (0, 0, 0)
        ledger.submit(trio.sleep, 1)
        assert layers() == (1, 1, 0)
        for _ in range(3):
            ledger.submit(trio.sleep, 1, session="alice")
        assert layers() == (4, 2, 2)
        ledger.submit(trio.sleep, 1, session="bob", lane="cron")
        ledger.submit(trio.sleep, 1, session="bob")
        assert layers() == (5, 2, 3)
        lanes.pause("session:alice")
        assert layers() == (5, 1, 4)
        lanes.resume("session:alice")
        assert layers() == (5, 2, 3)
        lanes.clear("session:alice")
        assert layers() == (2, 1, 1)
        ledger.check()


async def test_the_oldest_wait_is_that_of_the_job_that_has_waited_longest(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 0, "cron": 0}) as lanes:
        oldest = lanes.submit_nowait(trio.sleep, 1, session="alice")
        await trio.sleep(3)
        lanes.submit_nowait(trio.sleep, 1, session="alice", priority=5)
        await trio.sleep(2)
        lanes.submit_nowait(trio.sleep, 1, lane="cron")
        await trio.sleep(1)
        statistics = lanes.statistics()
        assert statistics.oldest_wait == statistics.lanes["main"].oldest_wait == 6.0
        assert statistics.lanes["cron"].oldest_wait == 1.0
        oldest.priority = 7  # its wait goes on
        assert lanes.statistics().oldest_wait == 6.0
        oldest.cancel()
        assert lanes.statistics().oldest_wait == 3.0
        lanes.clear()
        assert lanes.statistics().oldest_wait == 0.0


async def test_bodies_given_up_by_a_reset_are_counted_until_they_end(
    autojump_clock: MockClock,
) -> None:
    async def stubborn(seconds: float) -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(seconds)

    async with open_lanes({"main": 3}) as lanes:
        ledger = Ledger(lanes)
        for seconds in (1, 2, 3):
            ledger.submit(stubborn, seconds)
        await wait_all_tasks_blocked()
        assert lanes.statistics().abandoned == 0
        assert lanes.reset() == 3
        assert lanes.statistics().abandoned == 3
        assert lanes.statistics().active == 0
        ledger.check()
        ledger.submit(trio.sleep, 10)
        await trio.sleep(1.5)
        assert lanes.statistics().abandoned == 2
        await trio.sleep(1)
        assert lanes.statistics().abandoned == 1
        await trio.sleep(1)
        assert lanes.statistics().abandoned == 0
        ledger.check()
        found = lanes.lane("main").statistics()
        assert (found.finished, found.slots, found.cancelling, found.cancelled) == (3, 1, 0, 3)


async def test_a_job_reset_before_it_was_called_is_no_abandoned_body(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": 1}) as lanes:
        ledger = Ledger(lanes)
        ledger.submit(track.sleep, "a")
        assert lanes.reset() == 1
        assert lanes.statistics().abandoned == 0
        ledger.check()
    assert track.started == []


@pytest.mark.many_seeds(15)
async def test_statistics_are_right_after_every_kind_of_event(
    autojump_clock: MockClock, scheduler_seed: int
) -> None:
    chance = random.Random(scheduler_seed)

    async def body(seconds: float) -> None:
        await trio.sleep(seconds)
        if seconds > 3:
            raise ValueError
        if seconds > 2:
            with trio.CancelScope(shield=True):
                await trio.sleep(1)

    async with open_lanes(
        {"main": 2, "cron": 1}, sessions=LaneConfig(concurrency=1 + scheduler_seed % 2)
    ) as lanes:
        ledger = Ledger(lanes)
        names = ["main", "cron", "session:a", "session:b", None]

        def submit() -> None:
            ledger.submit(
                body,
                chance.random() * 4,
                session=chance.choice(["a", "b", "c", None]),
                lane=chance.choice(["main", "cron"]),
                priority=chance.choice([0, 0, 1]),
                timeout=chance.choice([math.inf, 1.0]),
                queue_timeout=chance.choice([math.inf, math.inf, 2.0, 0.0]),
            )

        def cancel() -> None:
            if ledger.jobs:
                chance.choice(ledger.jobs).cancel()

        def reprioritize() -> None:
            waiting = [job for job in ledger.jobs if job.state is WAITING]
            if waiting:
                chance.choice(waiting).priority = chance.randrange(3)

        def resize() -> None:
            lanes.lane(chance.choice(["main", "cron"])).concurrency = chance.choice(
                [0, 1, 3, math.inf]
            )

        def configure() -> None:
            lanes.configure({"main": LaneConfig(concurrency=2, max_waiting=100), "cron": 1})

        events: list[Callable[[], object]] = [
            *[submit] * 6,
            cancel,
            reprioritize,
            resize,
            configure,
            lambda: lanes.pause(chance.choice(names)),
            lambda: lanes.resume(chance.choice(names)),
            lambda: lanes.resume(chance.choice(names)),
            lambda: lanes.clear(chance.choice(names)) if chance.random() < 0.3 else None,
            lambda: lanes.reset(chance.choice(names)) if chance.random() < 0.3 else None,
        ]
        for _ in range(150):
            chance.choice(events)()
            ledger.check()
            if chance.random() < 0.5:
                await trio.sleep(chance.choice([0, 0.1, 0.5]))
                ledger.check()
        for name in lanes.sessions():
            lanes.resume(f"session:{name}")
        lanes.resume()
        lanes.configure({"main": 2, "cron": 1})
        await lanes.wait_idle()
        ledger.check()
        assert lanes.sessions() == []
        await trio.sleep(10)
        assert lanes.statistics().abandoned == 0
        for job in ledger.jobs:  # a failure is retrieved
            assert job.done or job.exception is None
            _ = job.exception


async def test_statistics_are_right_inside_every_hook(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    checked: list[str] = []

    class Check:
        lanes: Lanes | None = None

        def _check(self, what: str) -> None:
            if self.lanes is None:
                return
            statistics = self.lanes.statistics()
            jobs = self.lanes.jobs()
            assert statistics.waiting == [job.state for job in jobs].count(WAITING)
            assert statistics.active == [job.state for job in jobs].count(RUNNING)
            assert statistics.active == self.lanes.lane("main").limiter.borrowed_tokens
            assert statistics.lanes["main"].waiting_in_sessions >= 0
            checked.append(what)

        def job_submitted(self, job: Job[Any]) -> None:
            self._check("submitted")

        def job_forwarded(self, job: Job[Any]) -> None:
            self._check("forwarded")

        def job_started(self, job: Job[Any]) -> None:
            self._check("started")

        def job_finished(self, job: Job[Any]) -> None:
            self._check("finished")

        def lane_idle(self, lane: object) -> None:
            self._check("idle")

        def lane_cleared(self, lane: object, count: int, reason: str | None) -> None:
            self._check("cleared")

        def lane_reset(self, lane: object, abandoned: int) -> None:
            self._check("reset")

    check = Check()
    async with open_lanes({"main": 2}, instruments=[check]) as lanes:
        check.lanes = lanes
        for i in range(10):
            lanes.submit_nowait(trio.sleep, 1, session=f"s{i % 3}")
        lanes.submit_nowait(trio.sleep, 1)
        await trio.sleep(1.5)
        lanes.clear("session:s0")
        lanes.reset()
        await lanes.wait_idle()
        check.lanes = None
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []
    assert set(checked) == {
        "submitted",
        "forwarded",
        "started",
        "finished",
        "idle",
        "cleared",
        "reset",
    }


@pytest.mark.slow
async def test_statistics_cost_the_same_however_many_jobs_wait(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        lanes.start_soon(trio.sleep, 1)

        def cost() -> float:
            best = math.inf
            for _ in range(5):
                began = time.thread_time()
                for _ in range(50):
                    lanes.statistics()
                    lanes.lane("main").statistics()
                best = min(best, time.thread_time() - began)
            return best

        lanes.submit_nowait(trio.sleep, 1, session="alice")
        few = cost()
        for i in range(5_000):
            lanes.submit_nowait(trio.sleep, 1, session="alice" if i % 2 else None)
        assert cost() < 20 * few  # a scan would be hundreds of times as long
        lanes.clear()


# ---- reprs


async def test_the_repr_of_lanes_tells_how_much_goes_on(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 1, "cron": 1}) as lanes:
        assert "2 lanes, 0 sessions, 0 active, 0 waiting" in repr(lanes)
        assert repr(lanes).startswith("<trio_lanes.Lanes at 0x")
        for _ in range(3):
            lanes.start_soon(trio.sleep, 1, session="alice")
        assert "2 lanes, 1 sessions, 1 active, 2 waiting" in repr(lanes)
        lanes.close()
        assert "closed" in repr(lanes)


async def test_the_repr_of_a_lane_is_live(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 2}) as lanes:
        lane, session = lanes.lane("main"), lanes.session("alice")
        assert repr(lane) == "<trio_lanes.Lane 'main', 0/2 active, 0 waiting>"
        assert repr(session) == "<trio_lanes.SessionLane 'session:alice', not alive>"
        for _ in range(3):
            session.start_soon(trio.sleep, 1)
        assert repr(lane) == "<trio_lanes.Lane 'main', 1/2 active, 2 waiting>"
        assert repr(session) == "<trio_lanes.SessionLane 'session:alice', 1/1 active, 2 waiting>"
        lane.pause()
        session.pause()
        lane.concurrency = math.inf
        assert repr(lane) == "<trio_lanes.Lane 'main', 1/inf active, 2 waiting, paused>"
        assert repr(session).endswith("1/1 active, 2 waiting, paused>")
        lanes.resume("main")
        session.resume()


async def test_the_repr_of_a_lane_that_was_removed_says_so(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 2, "cron": 1}) as lanes:
        lane = lanes.lane("cron")
        lanes.configure({"cron": None})
        assert repr(lane) == "<trio_lanes.Lane 'cron', removed>"


async def test_the_repr_of_a_job_tells_its_name_state_lane_and_session(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1, "cron": 1}) as lanes:
        job = lanes.submit_nowait(trio.sleep, 1, session="alice", lane="cron", name="nightly")
        other = lanes.submit_nowait(trio.sleep, 1)
        waiting = lanes.submit_nowait(trio.sleep, 1)
        assert repr(job).startswith(f"<trio_lanes.Job {job.id} 'nightly' at 0x")
        assert repr(job).endswith("running in 'cron', session 'alice'>")
        assert repr(waiting).endswith("waiting in 'main'>")
        assert f"{other.id} 'sleep'" in repr(other)
        waiting.cancel()
        assert repr(waiting).endswith("cancelled in 'main'>")
        await lanes.wait_idle()
        assert repr(job).endswith("succeeded in 'cron', session 'alice'>")


def test_the_repr_of_a_config_tells_every_field() -> None:
    text = repr(LaneConfig(concurrency=3, max_waiting=5, paused=True))
    for part in ("LaneConfig(", "concurrency=3", "max_waiting=5", "paused=True", "warn_after=2.0"):
        assert part in text


async def test_the_repr_of_statistics_tells_every_field(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 1}) as lanes:
        text = repr(lanes.statistics())
        for field in (*attrs.fields(LanesStatistics), *attrs.fields(LaneStatistics)):
            assert f"{field.name}=" in text


async def test_a_job_that_is_readmitted_runs_and_does_not_wait(autojump_clock: MockClock) -> None:
    async def again() -> None:
        job = current_job()
        assert job is not None
        lanes.pause_for("main", 5)
        await job.readmit()

    async with open_lanes({"main": 1}) as lanes:
        lanes.submit_nowait(again, session="a")
        await trio.sleep(1)
        main = lanes.statistics().lanes["main"]
        counts = (main.active, main.waiting, main.waiting_in_lane, main.waiting_in_sessions)
        assert counts == (1, 0, 0, 0)
