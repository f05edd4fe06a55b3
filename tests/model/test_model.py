"""Random histories of lanes, compared with a small model of the contract after each step."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any, NamedTuple

import hypothesis
import hypothesis.strategies as st
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.model.model import Model
from tests.model.model_jobs import Body, ModelJob
from tests.model.model_lanes import ModelGroup
from tests.model.model_plans import (
    SESSIONS,
    Cancel,
    Clear,
    Configure,
    Pause,
    Plan,
    Regroup,
    Reset,
    Resume,
    SetPriority,
    Sleep,
    Step,
    Submit,
    Yield,
    plans,
)
from tests.support.chaos import examples
from trio_lanes import (
    Job,
    LaneConfig,
    LaneGroup,
    LaneInstrument,
    Lanes,
    RateLimit,
    current_job,
    open_lanes,
)
from trio_lanes.testing import LaneRecorder


class Boom(Exception):
    """What a body raises."""


class Crash(Exception):
    """What the block of the lanes is left by."""


class Told(NamedTuple):
    """One thing that was seen."""

    what: str
    key: int
    when: float
    state: str = ""
    error: str | None = None


class Witness(LaneInstrument):
    """Writes down what is seen of jobs; also by their bodies."""

    def __init__(self) -> None:
        self.lanes: Lanes
        self.jobs: list[Job[int]] = []
        self.seen: list[Told] = []

    def tell(self, what: str, key: int, *how: Any) -> None:
        self.seen.append(Told(what, key, trio.current_time(), *how))

    def job_submitted(self, job: Job[Any]) -> None:
        assert job.meta == len(self.jobs)
        self.jobs.append(job)
        if job.parent is not None:
            self.tell("child", job.parent.meta)

    def job_started(self, job: Job[Any]) -> None:
        assert job.started_at == trio.current_time()
        self.tell("start", job.meta)

    def job_finished(self, job: Job[Any]) -> None:
        error = None if job.exception is None else type(job.exception).__name__
        self.tell("settled", job.meta, job.state.name, error)

    async def run(self, key: int, body: Body) -> int:
        """The function of all jobs."""
        self.tell("call", key)
        try:
            if body.seconds:
                with trio.CancelScope(shield=body.shielded):
                    await trio.sleep(body.seconds)
            if body.child is not None and body.lends:
                await self.run_lending(key, body.child)
            elif body.child is not None:
                await self.run_child(body.child)
            if body.fails:
                raise Boom
            return key
        except trio.Cancelled:
            with trio.CancelScope(shield=True):
                if body.cleanup:
                    await trio.sleep(body.cleanup)
            raise
        finally:
            self.tell("exit", key)

    async def run_child(self, body: Body) -> None:
        key = len(self.jobs)
        assert await self.lanes.run(self.run, key, body, lane="sub", meta=key) == key

    async def run_lending(self, key: int, body: Body) -> None:
        job = current_job()
        assert job is not None
        self.tell("lend", key)
        async with job.yield_slot():
            try:
                await self.run_child(body)
            finally:
                self.tell("return", key)


class History:
    """Real lanes and their model, going through the same steps."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.recorder = LaneRecorder()
        self.witness = Witness()
        self.model = Model(plan.setting)
        self.jobs = self.witness.jobs
        self.told: list[tuple[int, int | None, str | None]] = []  # by the tasks that wait for jobs

    async def live(self) -> None:
        setting = self.plan.setting
        async with trio.open_nursery() as self.nursery:
            try:
                async with open_lanes(
                    {
                        "main": self.config("main", setting.main),
                        "cron": setting.cron,
                        "sub": setting.sub,
                    },
                    sessions=LaneConfig(
                        concurrency=setting.session_width, max_waiting=setting.session_bound
                    ),
                    groups=self.groups(setting.group),
                    instruments=[self.recorder, self.witness],
                ) as self.lanes:
                    self.witness.lanes = self.lanes
                    for step in self.plan.steps:
                        await self.take(step)
                    self.model_the_end()
            except* Crash:
                assert self.plan.crash
            self.look(at_rest=True)
            self.model.all_over()
        self.compare_what_waiters_were_told()

    def config(self, lane: str, concurrency: int, bound: float = inf) -> LaneConfig:
        setting = self.plan.setting
        rate, fair = (setting.rate, setting.fair) if lane == "main" else (inf, False)
        return LaneConfig(
            concurrency=concurrency, max_waiting=bound, fair=fair, rate=rate_limits(rate, per=1)
        )

    async def take(self, step: Step) -> None:
        match step:
            case Sleep(seconds):
                await trio.sleep(seconds)
                await wait_all_tasks_blocked()
                self.look(at_rest=True)
            case Yield(passes):
                for _ in range(passes):
                    await trio.lowlevel.checkpoint()
                    self.look()
            case _:
                self.act(step)

    def model_the_end(self) -> None:
        if self.plan.crash:
            self.model.crash(trio.current_time())
            raise Crash
        changes: dict[str, int | tuple[int, float] | None] = {
            name: max(1, lane.concurrency) for name, lane in self.model.lanes.items()
        }
        self.act(Configure(changes))
        for session in self.model.sessions():
            self.act(Resume(f"session:{session}"))
        self.act(Resume(None))

    def act(self, step: Step) -> None:
        """Take ``step``, with the lanes and with the model, and compare what comes of it."""
        if isinstance(step, Cancel | SetPriority):
            if not self.jobs:
                return
            step = step._replace(job=step.job % len(self.jobs))
        expected = self.ask_model(step, trio.current_time())
        got: object
        try:
            got = self.ask_lanes(step)
        except (LookupError, RuntimeError, ValueError, trio.WouldBlock) as error:
            got = type(error).__name__
        assert got == expected, (step, got, expected)
        self.look()
        assert not self.model.unseen

    def ask_model(self, step: Step, now: float) -> int | str | None:
        """What ``step`` has to return, or the name of what it has to raise."""
        model = self.model
        match step:
            case Submit():
                return model.submit(*step, now)
            case Cancel(number):
                return model.cancel(model.jobs[number], now)
            case SetPriority(number, priority):
                return model.set_priority(model.jobs[number], priority)
            case Clear(name, owner):
                return self.unknown(name) or model.clear(name, owner, now)
            case Reset(name):
                return self.unknown(name) or model.reset(name, now)
            case Pause(name) | Resume(name):
                if not self.unknown(name):
                    model.pause(name, isinstance(step, Pause))
                return self.unknown(name)
            case Configure(changes):
                return model.configure(changes, now)
            case Regroup(limits):
                return model.regroup(limits, now)
        raise AssertionError(step)

    def ask_lanes(self, step: Step) -> int | None:
        """What ``step`` returns."""
        lanes = self.lanes
        match step:
            case Submit(session, lane, priority, owner, timeout, queue_timeout, body):
                rare: Any = {} if owner is None else {"owner": owner}
                job = lanes.submit_nowait(
                    self.witness.run,
                    len(self.jobs),
                    body,
                    session=session,
                    lane=lane,
                    priority=priority,
                    timeout=timeout,
                    queue_timeout=queue_timeout,
                    meta=len(self.jobs),
                    **rare,
                )
                self.nursery.start_soon(self.wait_for, job)
            case Cancel(number):
                return self.jobs[number].cancel()
            case SetPriority(number, priority):
                self.jobs[number].priority = priority
            case Clear(name, None):
                return lanes.clear(name)
            case Clear(name, owner):
                return lanes.clear(name, owner=owner)
            case Reset(name):
                return lanes.reset(name)
            case Pause(name):
                lanes.pause(name)
            case Resume(name):
                lanes.resume(name)
            case Configure(changes):
                there = lanes.statistics().lanes
                configs: dict[str, int | LaneConfig | None] = {}
                for name, change in changes.items():
                    if isinstance(change, tuple):
                        configs[name] = self.config(name, *change)
                    elif change is None or name in there:
                        configs[name] = change
                    else:
                        configs[name] = self.config(name, change)
                lanes.configure(configs)
            case Regroup(limits):
                lanes.configure(groups=self.groups(limits))
        return None

    def groups(self, limits: tuple[float, int] | None) -> dict[str, LaneGroup]:
        if limits is None:
            return {}
        budget, reserved = limits
        rate = rate_limits(self.plan.setting.group_rate, per=2)
        return {
            "g": LaneGroup(
                ModelGroup.members, concurrency=budget, reserve={"cron": reserved}, rate=rate
            )
        }

    def unknown(self, name: str | None) -> str | None:
        known = name is None or name.startswith("session:") or name in self.model.lanes
        return None if known else "UnknownLaneError"

    async def wait_for(self, job: Job[int]) -> None:
        try:
            self.told.append((job.meta, await job.wait(), None))
        except Exception as error:
            self.told.append((job.meta, None, type(error).__name__))

    # ---- comparing

    def look(self, at_rest: bool = False) -> None:
        """Show the model what was seen since the last look, and compare everything else."""
        model = self.model
        for what, key, when, state, error in self.witness.seen:
            match what:
                case "start":
                    model.saw_start(key, when)
                case "call":
                    model.saw_call(key, when)
                case "exit":
                    model.saw_exit(key, when)
                case "lend":
                    model.saw_lend(key, when)
                case "child":
                    model.saw_child(key, when)
                case "return":
                    model.saw_return(key, when)
                case _:
                    model.saw_settled(key, state, error, when)
        self.witness.seen.clear()
        model.nothing_can_start(trio.current_time())
        if at_rest:
            model.at_rest(trio.current_time())
        self.recorder.check()
        for mine, theirs in zip(self.jobs, model.jobs, strict=True):
            self.compare_job(mine, theirs)
        compare_lanes(self.lanes, model, trio.current_time())

    def compare_job(self, job: Job[int], expected: ModelJob) -> None:
        assert job.state.name == expected.state
        assert job.done is (not expected.waits and not expected.runs)
        assert job.priority == expected.priority
        assert job.submitted_at == expected.submitted
        assert (inf if job.started_at is None else job.started_at) == expected.started
        error = None if job.exception is None else type(job.exception).__name__
        assert error == expected.error

    def compare_what_waiters_were_told(self) -> None:
        assert sorted(self.told, key=lambda told: told[0]) == [
            (job.key, job.key if job.state == "SUCCEEDED" else None, job.error)
            for job in self.model.jobs
            if job.parent is None
        ]


def rate_limits(limit: float, per: float) -> Sequence[RateLimit]:
    return () if limit == inf else [RateLimit(limit, per, algorithm="sliding")]


def compare_lanes(lanes: Lanes, model: Model, now: float) -> None:
    statistics = lanes.statistics()
    assert statistics.waiting == len(model.waiting())
    assert statistics.active == len(model.running())
    assert statistics.abandoned == model.abandoned()
    assert statistics.oldest_wait == oldest_wait(model.waiting(), now)
    assert set(lanes.sessions()) == model.sessions()
    assert statistics.sessions == len(model.sessions())
    assert [job.meta for job in lanes.jobs()] == [
        job.key for job in model.jobs if job.waits or job.runs
    ]
    assert statistics.lanes.keys() == model.lanes.keys()
    for name, expected in model.lanes.items():
        waiting, line, running = model.waiting(name), expected.line.jobs, model.running(name)
        holding = model.holding(name)
        got, lane = statistics.lanes[name], lanes.lane(name)
        assert got == lane.statistics()
        assert got.waiting == lane.waiting == len(waiting)
        assert got.waiting_in_lane == len(line)
        assert got.waiting_in_sessions == len(waiting) - len(line)
        assert got.active == lane.active == len(running)
        assert lane.limiter.borrowed_tokens == len(holding)
        borrowers: list[Any] = [*lane.limiter.statistics().borrowers]
        assert sorted(job.meta for job in borrowers) == [job.key for job in holding]
        assert got.concurrency == lane.concurrency == expected.concurrency
        assert lane.limiter.total_tokens == lane.config.concurrency == expected.concurrency
        assert lane.config.max_waiting == expected.max_waiting
        assert got.paused is lane.paused is expected.paused
        assert got.oldest_wait == oldest_wait(waiting, now)
        assert (got.started, got.finished) == (expected.started, expected.finished)
        assert lane.generation == expected.generation
    for key in SESSIONS:
        session = lanes.session(key)
        assert session.waiting == len(model.waiting(session.name))
        assert session.active == len(model.running(session.name))
        assert session.paused is (key in model.paused_sessions)


def oldest_wait(waiting: list[ModelJob], now: float) -> float:
    return max((now - job.submitted for job in waiting), default=0.0)


@hypothesis.settings(max_examples=examples(400))
@hypothesis.given(st.random_module(), plans)
def test_lanes_do_what_the_model_says(seed: object, plan: Plan) -> None:
    hypothesis.note(f"{plan}")
    trio.run(History(plan).live, clock=MockClock(autojump_threshold=0))
