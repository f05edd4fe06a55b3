"""Hooks that change the lanes being served: cases that failed once, and random cases."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.support.track import Track
from trio_lanes import (
    Job,
    JobCancelledError,
    JobState,
    LaneConfig,
    LaneFullError,
    LaneGroup,
    LaneInstrument,
    LaneResetError,
    Lanes,
    QueueTimeoutError,
    RateLimit,
    open_lanes,
)

HOOKS = [name for name in vars(LaneInstrument) if name.startswith(("job_", "lane", "deadlock_"))]
RATE = RateLimit(1, 10, algorithm="sliding")


def at_first(hook: str, act: Callable[[], object]) -> LaneInstrument:
    """An instrument whose ``hook`` acts when it is called for the first time."""
    acts = [act]

    def told(self: object, *args: object) -> None:
        while acts:
            acts.pop()()

    instrument: LaneInstrument = type("Acts", (), {hook: told})()
    return instrument


@pytest.mark.parametrize(
    ("lanes_then", "groups_then", "starts"),
    [
        ({"main": 2}, None, [0, 0, 1, 1]),
        ({"main": LaneConfig(concurrency=3, fair=True)}, None, [0, 0, 0, 1]),
        ({"main": LaneConfig(concurrency=3, rate=RATE)}, None, [0, 0, 10, 20]),
        ({"main": LaneConfig(concurrency=3, paused=True)}, None, [0, 5, 5, 5]),
        (None, {"g": LaneGroup(["main"], concurrency=1)}, [0, 1, 2, 3]),
        ({"main": 2}, {}, [0, 0, 1, 1]),
    ],
    ids=["narrower", "fair", "rate", "paused", "group", "no group"],
)
@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("plain", [False, True])
async def test_a_hook_may_configure_the_lane_that_is_just_starting_jobs(
    autojump_clock: MockClock,
    lanes_then: Any,
    groups_then: Any,
    starts: list[float],
    grouped: bool,
    plain: bool,
) -> None:
    track = Track()
    instrument = at_first("job_started", lambda: lanes.configure(lanes_then, groups_then))
    main = LaneConfig(concurrency=3, aging=math.inf if plain else 5.0)
    groups = {"g": LaneGroup(["main"], concurrency=9)} if grouped else {}
    async with open_lanes({"main": main}, groups=groups, instruments=[instrument]) as lanes:
        lanes.pause()
        for i in range(4):
            lanes.start_soon(track.sleep, i)
        lanes.resume()
        await trio.sleep(5)
        lanes.resume()
    assert sorted(track.ended) == [0, 1, 2, 3]  # each once
    # A rate that comes later knows nothing of the first start, and lets one more go.
    assert sorted(track.start_times.values()) == starts


async def test_a_hook_may_clear_a_session_that_is_just_putting_its_best_forward(
    autojump_clock: MockClock,
) -> None:
    track = Track()

    class ClearAll:
        def job_forwarded(self, job: Job[Any]) -> None:
            if job.name == "better":
                assert lanes.clear() == 2

    async with open_lanes({"main": 1}, instruments=[ClearAll()]) as lanes:
        lanes.start_soon(track.sleep, "running")
        lanes.submit_nowait(track.sleep, "forwarded", session="alice")
        lanes.submit_nowait(track.sleep, "better", session="alice", name="better", priority=1)
        assert lanes.sessions() == []
        await lanes.run(track.sleep, "later", session="alice")
    assert track.ended == ["running", "later"]


@pytest.mark.parametrize("width", [1, 0, "pause"])
@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("plain", [False, True])
async def test_a_hook_may_hold_back_the_session_whose_jobs_are_just_being_started(
    autojump_clock: MockClock, width: int | str, grouped: bool, plain: bool
) -> None:
    def hold_back() -> None:
        if width == "pause":
            lanes.pause("session:alice")
        else:
            lanes.configure({"session:alice": width})

    track = Track()
    main = LaneConfig(concurrency=3, aging=math.inf if plain else 5.0)
    groups = {"g": LaneGroup(["main"], concurrency=9)} if grouped else {}
    instrument = at_first("job_started", hold_back)
    async with open_lanes(
        {"main": main, "session:alice": 3}, groups=groups, instruments=[instrument]
    ) as lanes:
        lanes.pause()
        for i in range(4):
            lanes.start_soon(track.sleep, i, session="alice")
        lanes.resume()
        await trio.sleep(5)
        assert sorted(track.start_times.values()) == ([0, 1, 2, 3] if width == 1 else [0])
        lanes.configure({"session:alice": 3})
        lanes.resume("session:alice")
    assert sorted(track.ended) == [0, 1, 2, 3]  # each once


async def test_a_hook_may_reset_everything_while_the_failure_of_a_job_ends_it(
    autojump_clock: MockClock,
) -> None:
    async def fail() -> None:
        await trio.sleep(1)
        raise KeyError("of the body")

    instrument = at_first("job_finished", lambda: lanes.reset())
    with pytest.raises(ExceptionGroup) as caught:
        async with open_lanes({"main": 1}, instruments=[instrument]) as lanes:
            lanes.start_soon(fail)
            lanes.start_soon(trio.sleep, 1)
            (failed, unstarted) = lanes.jobs()
    assert caught.group_contains(KeyError, match="of the body")
    assert failed.state is JobState.FAILED
    assert unstarted.state is JobState.CANCELLED
    statistics = lanes.statistics()
    assert (statistics.waiting, statistics.active, statistics.abandoned) == (0, 0, 0)


async def test_a_hook_may_reset_the_very_job_that_is_just_being_reset(
    autojump_clock: MockClock,
) -> None:
    given_up: list[int] = []

    async def runs_another() -> None:
        await lanes.run(trio.sleep, 1, lane="cron")

    # It is told of the other job, which is withdrawn as soon as the first job is cancelled.
    instrument = at_first("job_finished", lambda: given_up.append(lanes.reset()))
    async with open_lanes({"main": 1, "cron": 0}, instruments=[instrument]) as lanes:
        job = lanes.submit_nowait(runs_another)
        await trio.sleep(1)
        given_up.append(lanes.reset())
        assert job.state is JobState.CANCELLED
        await lanes.run(trio.sleep, 1)
        statistics = lanes.statistics()
    assert given_up == [0, 1]  # the hook is told when the first job has been given up
    assert (statistics.waiting, statistics.active, statistics.abandoned) == (0, 0, 0)


@pytest.mark.parametrize(
    "options", [{"delay": 1}, {"warn_after": 1}, {"queue_timeout": 1}], ids=str
)
async def test_a_hook_of_trio_may_cancel_a_job_that_is_just_being_submitted(
    autojump_clock: MockClock, options: dict[str, Any]
) -> None:
    class Cancels(trio.abc.Instrument):
        def task_spawned(self, task: trio.lowlevel.Task) -> None:
            for job in lanes.jobs():
                if job.name == "cancelled":
                    job.cancel()

    warned: list[float] = []
    async with open_lanes({"main": 1}) as lanes:
        lanes.start_soon(trio.sleep, 0.5)
        await trio.lowlevel.checkpoint()
        trio.lowlevel.add_instrument(instrument := Cancels())
        job = lanes.submit_nowait(
            trio.sleep,
            1,
            name="cancelled",
            on_wait=lambda _, waited: warned.append(waited),
            **options,
        )
        trio.lowlevel.remove_instrument(instrument)
        assert type(job.exception) is JobCancelledError
        await trio.sleep(5)
        await lanes.run(trio.sleep, 0)
    assert not warned
    assert job.state is JobState.CANCELLED


async def test_a_hook_of_trio_may_reset_a_job_whose_start_was_waited_for(
    autojump_clock: MockClock,
) -> None:
    class Resets(trio.abc.Instrument):
        def task_scheduled(self, task: trio.lowlevel.Task) -> None:
            if task is waiter:
                given_up.append(lanes.reset())

    started: list[str] = []
    given_up: list[int] = []

    class Listens:
        def job_started(self, job: Job[None]) -> None:
            started.append(job.name)

    waiter = trio.lowlevel.current_task()
    async with open_lanes({"main": 1}, instruments=[Listens()]) as lanes:
        lanes.start_soon(trio.sleep, 1, name="first")
        job = lanes.submit_nowait(trio.sleep, 1, name="second")
        trio.lowlevel.add_instrument(instrument := Resets())
        await job.wait_started()
        trio.lowlevel.remove_instrument(instrument)
        assert type(job.exception) is LaneResetError
        assert given_up == [1]
        await lanes.run(trio.sleep, 1, name="third")
    assert started == ["first", "second", "third"]


class ByChance:
    """Lanes in which hooks and tasks do anything at any time."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.acts = self.chance.choice([3, 6, 30])  # that hooks may still do
        self.numbers = count()
        self.jobs: list[Job[None]] = []
        self.called: Counter[str] = Counter()
        self.lanes: Lanes
        hooks = dict.fromkeys(HOOKS, self.told)
        self.instrument: LaneInstrument = type("Acts", (), hooks)()

    def told(self, *args: object) -> None:
        if isinstance(args[0], Lanes):
            self.lanes = args[0]  # this is the first hook
        if self.acts and self.chance.random() < 0.6:
            self.acts -= 1
            self.act()

    def config(self) -> int | LaneConfig:
        choice = self.chance.choice
        if choice([True, False, False]):
            return choice(range(4))
        return LaneConfig(
            concurrency=choice(range(4)),
            fair=choice([True, False]),
            aging=choice([math.inf, 3]),
            rate=choice([(), RateLimit(2, 5, algorithm="sliding")]),
            max_waiting=choice([math.inf, 3]),
            paused=choice([True, False, False, False]),
        )

    def groups(self) -> dict[str, LaneGroup]:
        rate = self.chance.choice([(), RateLimit(2, 5, algorithm="sliding")])
        one = LaneGroup(["main", "cron"], concurrency=self.chance.randint(1, 3))
        other = LaneGroup(["main", "t:*"], concurrency=2, reserve={"t:*": 1}, rate=rate)
        return self.chance.choice([{}, {"g": one}, {"g": other}])

    def act(self) -> None:
        lanes, choice = self.lanes, self.chance.choice
        everywhere = [None, "main", "session:a"]
        waiting = [job for job in lanes.jobs() if job.state is JobState.WAITING]
        acts: list[Callable[[], object]] = [
            self.submit,
            self.submit,
            lambda: lanes.clear(choice(everywhere)),
            lambda: lanes.reset(choice(everywhere)),
            lambda: lanes.pause(choice(everywhere)),
            lambda: lanes.resume(choice(everywhere)),
            lambda: lanes.configure({choice(["main", "cron", "t:*"]): self.config()}),
            lambda: lanes.configure({"main": self.config()}, self.groups()),
            lambda: lanes.configure(None, self.groups()),
            lambda: lanes.configure({f"session:{choice('ab')}": choice([1, 2, 3])}),
            lambda: setattr(lanes.lane("main"), "concurrency", choice(range(4))),
            lambda: choice(self.jobs).cancel() if self.jobs else None,
            lambda: setattr(choice(waiting), "priority", choice(range(3))) if waiting else None,
        ]
        choice(acts)()

    async def body(self, name: str, seconds: float) -> None:
        self.called[name] += 1
        if seconds:
            await trio.sleep(seconds)

    def submit(self) -> None:
        choice = self.chance.choice
        name = str(next(self.numbers))
        try:
            job = self.lanes.submit_nowait(
                self.body,
                name,
                choice([0, 1, 2]),
                name=name,
                session=choice([None, "a", "b"]),
                lane=choice(["main", "cron", "t:a", "t:b"]),
                priority=choice([0, 0, 1]),
                delay=choice([0, 0, 0, 1]),
                timeout=choice([math.inf, math.inf, math.inf, 1]),
                queue_timeout=choice([math.inf, math.inf, math.inf, 3, 0]),
                warn_after=choice([None, 1]),
            )
        except LaneFullError:
            return
        self.jobs.append(job)

    def look(self) -> None:
        """The books balance."""
        jobs = self.lanes.jobs()
        assert set(jobs) == {job for job in self.jobs if not job.done}
        waiting = Counter(job.lane for job in jobs if job.state is JobState.WAITING)
        running = Counter(job.lane for job in jobs if job.state is JobState.RUNNING)
        for name, told in self.lanes.statistics().lanes.items():
            assert (told.waiting, told.active) == (waiting[name], running[name])
            assert min(told.waiting_in_lane, told.waiting_in_sessions) >= 0
            assert self.lanes.lane(name).limiter.borrowed_tokens == told.active

    async def live(self) -> None:
        sessions = LaneConfig(concurrency=self.chance.choice([1, 1, 2]))
        async with open_lanes(
            {"main": 2, "cron": 1, "t:*": 1},
            sessions=sessions,
            groups=self.groups(),
            instruments=[self.instrument],
        ) as self.lanes:
            for _ in range(25):
                self.submit() if self.chance.random() < 0.7 else self.act()
                self.look()
                if self.chance.random() < 0.3:
                    await trio.sleep(self.chance.choice([0, 0.5, 1]))
                    self.look()
            self.acts = 0
            self.lanes.configure(dict.fromkeys(("main", "cron", "t:*"), LaneConfig()), {})
            for name in (*self.lanes.statistics().lanes, "session:a", "session:b"):
                self.lanes.resume(name)
            with trio.fail_after(1_000):
                await self.lanes.wait_idle()
            self.look()
            assert self.lanes.sessions() == []
            for job in self.jobs:
                assert job.done
                assert job.exception is not None or self.called[job.name] == 1
                assert self.called[job.name] <= 1


@pytest.mark.many_seeds(60)
async def test_every_job_settles_and_the_counts_agree_after_any_acts_of_hooks(
    autojump_clock: MockClock, scheduler_seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    await ByChance(scheduler_seed).live()
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


@pytest.mark.parametrize("where", ["hook", "callback"])
@pytest.mark.parametrize("free", [True, False])
async def test_a_job_that_must_not_wait_starts_if_it_can_also_from_a_hook_and_a_callback(
    where: str, free: bool, autojump_clock: MockClock
) -> None:
    submitted: list[Job[None]] = []

    def submit(job: Job[Any]) -> None:
        if job.name == "first":
            submitted.append(lanes.submit_nowait(trio.sleep, 1, lane="other", queue_timeout=0))

    class Instrument:
        def job_finished(self, job: Job[Any]) -> None:
            if where == "hook":
                submit(job)

    async with open_lanes({"main": 1, "other": 1}, instruments=[Instrument()]) as lanes:
        if not free:
            lanes.submit_nowait(trio.sleep, 9, lane="other")
        job = lanes.submit_nowait(trio.sleep, 1, name="first")
        if where == "callback":
            job.on_settled(submit)
        await trio.sleep(1.5)
        (later,) = submitted
        assert later.submitted_at == 1
        if free:
            assert (later.state, later.started_at) == (JobState.RUNNING, 1)
        else:
            assert isinstance(later.exception, QueueTimeoutError)
            assert later.finished_at == 1


async def test_callbacks_that_add_themselves_take_no_stack_and_let_others_run(
    autojump_clock: MockClock,
) -> None:
    called = 0

    def again(job: Job[Any]) -> None:
        nonlocal called
        called += 1
        if called < 5_000:
            job.on_settled(again)

    async with open_lanes() as lanes:
        job = lanes.submit_nowait(trio.sleep, 0)
        await job.wait()
        job.on_settled(again)
        assert called == 1
        await trio.sleep(1)
    assert called == 5_000
