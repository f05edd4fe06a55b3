"""Random histories with every feature switched on, and the statements that hold in all of them.

The model of the core says exactly what happens, of few things. Here all things meet: rates, groups,
templates, shared limiters, nested runs, lent slots, changes of all limits. What is compared is what
the contract says of any moment, and that in the end nothing hangs, and nothing is left.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from math import inf
from typing import Any

import attrs
import hypothesis
import hypothesis.strategies as st
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.model.everything import CONFIGURED, LANES, SESSIONS, Act, Plan, Spec, plans
from tests.support.chaos import examples
from trio_lanes import (
    Job,
    LaneConfig,
    LaneError,
    LaneGroup,
    LaneInstrument,
    RateLimit,
    current_job,
    open_lanes,
)
from trio_lanes.testing import LaneRecorder

# More seconds than everything that is drawn can take, if nothing hangs.
FOR_EVER = 10_000

RATES = (
    RateLimit(3, per=2.0, algorithm="sliding"),
    RateLimit(5, per=4.0, unit="tokens", algorithm="sliding"),
)


class Boom(Exception):
    """What a body raises."""


class Crash(Exception):
    """What the block of the lanes is left by."""


@contextmanager
def as_may_be() -> Iterator[None]:
    """Inside, lanes may refuse anything, or give the failures of jobs."""
    with suppress(LaneError, Boom, ValueError, RuntimeError):
        yield


@attrs.define
class Charge:
    """What a job took of the rates of one place."""

    job: Job[Any]
    when: float
    costs: dict[str, float]


class Watcher(LaneInstrument):
    """Looks at each start: at budgets, reservations and rates."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.jobs: list[Job[Any]] = []
        self.settled: Counter[int] = Counter()
        self.wrong: list[str] = []
        self.charges: defaultdict[str, list[Charge]] = defaultdict(list)  # {place: its charges}

    def job_submitted(self, job: Job[Any]) -> None:
        self.jobs.append(job)

    def job_finished(self, job: Job[Any]) -> None:
        self.settled[job.id] += 1

    def job_started(self, job: Job[Any]) -> None:
        group = self.history.group
        label = self.history.lanes.lane(job.lane).label
        if group is not None and label in group.members:
            used = self.history.used()
            kept = sum(
                max(0, tokens - used[member])
                for member, tokens in group.reserve.items()
                if member != label
            )
            taken = sum(used[member] for member in group.members)
            if taken + kept > group.concurrency:
                self.wrong.append(f"{job} started, with {taken} used and {kept} kept of {group}")
        self.charge(job, job.meta)

    def charge(
        self, job: Job[Any], cost: float | Mapping[str, float], skipped: Sequence[str] = ()
    ) -> None:
        """``job`` was charged ``cost`` now: look at each window that ends now."""
        costs: dict[str, float] = {"requests": 1}
        costs |= cost if isinstance(cost, Mapping) else {"requests": cost}
        now = trio.current_time()
        for place, limits in self.history.limits(job):
            if place in skipped:
                continue
            charges = self.charges[place]
            charges.append(Charge(job, now, dict(costs)))
            for limit in limits:
                window = [
                    charge.costs[limit.unit]
                    for charge in charges
                    if now - charge.when < limit.per and charge.costs.get(limit.unit)
                ]
                if costs.get(limit.unit) and sum(window) > limit.limit and len(window) > 1:
                    self.wrong.append(f"{job} started in {place}: {window} is more than {limit}")

    @contextmanager
    def corrected(self, job: Job[Any], used: Mapping[str, float]) -> Iterator[None]:
        """``job`` says inside what its last start really took: that may be less, or be refused."""
        changed: list[tuple[Charge, dict[str, float]]] = []
        for charges in self.charges.values():
            for charge in [charge for charge in charges if charge.job is job][-1:]:
                changed.append((charge, dict(charge.costs)))
                for unit, amount in used.items():
                    charge.costs[unit] = min(amount, charge.costs.get(unit, 0))
        try:
            yield
        except BaseException:
            for charge, costs in changed:
                charge.costs = costs
            raise


class History:
    """Lanes with everything switched on, and what is done to them."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.recorder = LaneRecorder()
        self.watcher = Watcher(self)
        self.shared = trio.CapacityLimiter(2)
        self.inside: list[Job[Any]] = []  # whose bodies have begun and not ended
        self.told: list[tuple[Job[Any], Exception | None]] = []
        self.before: Counter[str] = Counter()  # slots in use at the last look, by lane
        self.used_before: Counter[str] = Counter()  # and by label
        self.group: LaneGroup | None = None
        if plan.group is not None:
            self.group = self.group_of(("main", "cron"), *plan.group)
        self.configs = {
            "main": LaneConfig(concurrency=plan.main, max_waiting=plan.bound),
            "cron": LaneConfig(concurrency=1, aging=plan.aging),
            "shared": LaneConfig(limiter=self.shared),
            "fair": LaneConfig(concurrency=2, fair=True, aging=plan.aging),
            "sub:*": LaneConfig(concurrency=1, max_waiting=plan.bound),
        }
        for name in plan.rates:
            if name in self.configs:
                self.configs[name] = attrs.evolve(self.configs[name], rate=RATES)

    def group_of(self, members: tuple[str, ...], budget: float, kept: int) -> LaneGroup:
        return LaneGroup(
            members,
            concurrency=budget,
            reserve={"cron": min(kept, int(min(budget, 9)))} if "cron" in members else {},
            rate=RATES if "group" in self.plan.rates else (),
        )

    @property
    def groups(self) -> dict[str, LaneGroup]:
        return {} if self.group is None else {"provider": self.group}

    async def live(self) -> None:
        tasks = trio.lowlevel.current_statistics().tasks_living
        async with trio.open_nursery() as self.nursery:
            self.nursery.start_soon(self.watch)
            try:
                async with open_lanes(
                    self.configs,
                    groups=self.groups,
                    sessions=LaneConfig(
                        concurrency=self.plan.session_width,
                        max_waiting=self.plan.session_bound,
                        rate=RATES if self.plan.session_rate else (),
                    ),
                    instruments=[self.recorder, self.watcher],
                    wait_accounting=True,
                ) as self.lanes:
                    for act in self.plan.acts:
                        with as_may_be():
                            await self.take(act)
                        self.look()
                    await self.end()
            except* Crash:
                assert self.plan.crash
            self.look()
            await trio.sleep(100)  # all others have ended that are not the lanes' own
            self.nothing_is_left()
            self.nursery.cancel_scope.cancel()
        assert trio.lowlevel.current_statistics().tasks_living == tasks

    async def watch(self) -> None:
        await trio.sleep(FOR_EVER)
        stuck = [f"{job}: {job.blocked_by()}" for job in self.lanes.jobs()]
        pytest.fail(f"this hangs: {self.lanes.statistics()}, {stuck}")

    async def end(self) -> None:
        if self.plan.crash:
            raise Crash
        for name in [None, *(f"session:{key}" for key in SESSIONS), *LANES]:
            self.lanes.resume(name)
        if self.plan.may_block_later:
            self.group = None
            self.lanes.configure(
                {name: inf for name in self.configs if name != "shared"}, groups={}
            )
            for name in self.lanes.statistics().lanes:
                self.lanes.lane(name).concurrency = inf
        grace, cancel_grace, waiting = self.plan.end
        await self.lanes.drain(grace=grace, cancel_grace=cancel_grace, waiting=waiting)  # type: ignore[arg-type]  # one of two
        self.look()
        statistics = self.lanes.statistics()
        assert statistics.waiting == statistics.active == 0
        await trio.sleep(100)  # all rates have refilled, and all that went on has ended
        assert self.lanes.sessions() == []
        assert self.lanes.statistics().lanes.keys() == set(CONFIGURED) - {"sub:*"}

    def nothing_is_left(self) -> None:
        statistics = self.lanes.statistics()
        assert statistics.waiting == statistics.active == statistics.abandoned == 0
        assert self.lanes.jobs() == [] == self.inside
        assert not self.shared.borrowed_tokens
        assert not self.shared.statistics().tasks_waiting
        for lane in statistics.lanes.values():
            assert lane.waiting == lane.active == 0
            assert lane.started == lane.finished
        for job in self.watcher.jobs:
            assert job.done
            assert self.watcher.settled[job.id] == 1
            assert job.blocked_by() == ()
            assert job.root_causes() == ()
            waited = sum(more for cause, more in job.waits.items() if cause != "room")
            end = job.finished_at if job.started_at is None else job.started_at
            assert waited == pytest.approx(end - job.submitted_at, abs=1e-6)
        for job, error in self.told:
            assert job.exception is error

    # ---- what is done from outside

    async def take(self, act: Act) -> None:
        lanes = self.lanes
        match act:
            case Act("sleep", (seconds,)):
                await trio.sleep(seconds)
                await wait_all_tasks_blocked()
            case Act("pass", (passes,)):
                for _ in range(passes):
                    await trio.lowlevel.checkpoint()
                    self.look()
            case Act("submit", (spec,)):
                job = lanes.submit_nowait(self.body, spec, **options(spec))
                self.nursery.start_soon(self.wait_for, job)
            case Act(("run" | "enter") as verb, (spec, patience)):
                self.nursery.start_soon(self.call, verb, spec, patience)
            case Act("cancel", (number,)):
                for job in self.watcher.jobs[number : number + 1]:
                    job.cancel()
            case Act("set_priority", (number, priority)):
                for job in self.watcher.jobs[number : number + 1]:
                    job.priority = priority
            case Act("put_off", (number, delay)):
                for job in self.watcher.jobs[number : number + 1]:
                    job.put_off(delay)
            case Act("clear", (name, owner)):
                lanes.clear(name, owner=owner)
            case Act("pause", (name,)):
                lanes.pause(name)
            case Act("resume", (name,)):
                lanes.resume(name)
            case Act("pause_for", (name, seconds)):
                lanes.pause_for(name, seconds)
            case Act("reset", (name,)):
                lanes.reset(name)
            case Act("borrow", (seconds,)):
                self.nursery.start_soon(self.borrow, seconds)
            case Act("concurrency", (name, number)):
                if name == "shared":
                    number = max(1, number)
                lanes.lane(name).concurrency = number
            case Act("configure", (widths, bound, fair)):
                self.configure(widths, bound, fair)
            case Act("regroup", (members, budget, kept)):
                group = self.group_of(members, budget, kept) if members else None
                if group is None or self.group is None:
                    self.watcher.charges.pop("group", None)
                self.group = group
                lanes.configure(groups=self.groups)
            case _:
                raise AssertionError(act)

    def configure(self, widths: dict[str, int], bound: float, fair: bool) -> None:
        for name, width in widths.items():
            config = self.configs[name]
            if name == "shared":
                config = attrs.evolve(config, max_waiting=bound)
            else:
                config = attrs.evolve(config, concurrency=width, max_waiting=bound, fair=fair)
            self.lanes.configure({name: config})
            self.configs[name] = config
            self.look()  # by the next change another one may have started

    async def wait_for(self, job: Job[Any]) -> None:
        try:
            await job.wait()
            self.told.append((job, None))
        except Exception as error:
            self.told.append((job, error))

    async def call(self, verb: str, spec: Spec, patience: float) -> None:
        submit = self.lanes.run if verb == "run" else self.lanes.submit
        with as_may_be(), trio.move_on_after(patience):
            await submit(self.body, spec, **options(spec))

    async def borrow(self, seconds: float) -> None:
        async with self.shared:
            await trio.sleep(seconds)

    # ---- what bodies do

    async def body(self, spec: Spec) -> None:
        job = current_job()
        assert job is not None
        self.inside.append(job)
        try:
            for act in spec.acts:
                await self.do(job, act)
        finally:
            self.inside.remove(job)

    async def sleep(self, seconds: float) -> None:
        await self.body(Spec({}, [Act("sleep", (seconds,))]))

    async def do(self, job: Job[Any], act: Act) -> None:
        if act.verb == "fail":
            raise Boom
        with as_may_be():
            await self.try_to(job, act)

    async def try_to(self, job: Job[Any], act: Act) -> None:
        lanes = self.lanes
        match act:
            case Act("sleep", (seconds,)):
                await trio.sleep(seconds)
            case Act("shielded", (seconds,)):
                with trio.CancelScope(shield=True):
                    await trio.sleep(seconds)
            case Act("clean_up", (seconds,)):
                try:
                    await trio.sleep(seconds)
                finally:
                    with trio.CancelScope(shield=True):
                        await trio.sleep(seconds)
            case Act("lend", (seconds,)):
                await self.lend(job, seconds)
            case Act("two_lend", (one, other, readmits)):
                try:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(self.lend, job, one)
                        nursery.start_soon(self.lend, job, other)
                        if readmits:
                            await self.readmit(job, None)
                except* (RuntimeError, ValueError):  # there may be no such rate any more
                    pass
            case Act("readmit", (cost,)):
                await self.readmit(job, cost)
            case Act("wait_and_readmit", (name, seconds)):
                lanes.pause_for(name, seconds)
                await self.readmit(job, None)
            case Act("charge", (used,)):
                with self.watcher.corrected(job, used):
                    job.charge(**used)
            case Act("progress", _):
                job.progress()
            case Act("cancel_itself", _):
                job.cancel()
            case Act("wait_lane", (name, seconds)):
                await lanes.wait_active(name, timeout=seconds)
            case Act("reset", names):
                for name in names:
                    lanes.reset(name)
            case Act("run", (spec,)):
                await lanes.run(self.body, spec, **options(spec))
            case Act("lend_and_run", (spec,)):
                await lanes.run(self.body, spec, yield_slot=True, **options(spec))
            case Act("two_run", specs):
                async with trio.open_nursery() as nursery:
                    for spec in specs:
                        nursery.start_soon(self.run, spec)
            case Act("submit", (spec,)):
                await lanes.submit(self.body, spec, **options(spec))
            case Act("wait_for", (spec,)):
                await lanes.submit_nowait(self.body, spec, **options(spec)).wait()
            case Act("map", (name, lends)):
                async with lanes.map(
                    self.sleep, [0, 0.5, 0.25], lane=name, yield_slot=lends, meta=1
                ) as results:
                    async for _ in results:
                        pass
            case _:
                raise AssertionError(act)

    async def run(self, spec: Spec) -> None:
        with as_may_be():
            await self.lanes.run(self.body, spec, **options(spec))

    async def lend(self, job: Job[Any], seconds: float) -> None:
        async with job.yield_slot():
            await trio.sleep(seconds)

    async def readmit(self, job: Job[Any], cost: float | None) -> None:
        group = self.group
        await job.readmit(cost=cost)
        if not job.done:
            # By when it sees that it was started it may be in another group.
            skipped = () if self.group is group else ("group",)
            self.watcher.charge(job, job.meta if cost is None else cost, skipped)

    # ---- comparing

    def limits(self, job: Job[Any]) -> Iterator[tuple[str, tuple[RateLimit, ...]]]:
        """The places that charge ``job``, and their limits."""
        label = self.lanes.lane(job.lane).label
        if label in self.plan.rates:
            yield job.lane, RATES
        if job.session is not None and self.plan.session_rate:
            yield f"session:{job.session}", RATES
        if self.group is not None and self.group.rate and label in self.group.members:
            yield "group", RATES

    def used(self) -> Counter[str]:
        """The slots in use, by the label of their lane."""
        used: Counter[str] = Counter()
        for name in self.lanes.statistics().lanes:
            lane = self.lanes.lane(name)
            used[lane.label] += len(holders(lane.limiter.statistics().borrowers, name))
        return used

    def look(self) -> None:
        self.recorder.check()
        assert not self.watcher.wrong, self.watcher.wrong
        statistics = self.lanes.statistics()
        jobs = self.lanes.jobs()
        waiting = Counter(job.lane for job in jobs if job.started_at is None)
        running = Counter(job.lane for job in jobs if job.started_at is not None)
        assert not any(job.done for job in jobs)
        assert [job.id for job in jobs] == sorted(
            job.id for job in self.watcher.jobs if not job.done
        )
        assert statistics.waiting == waiting.total()
        assert statistics.active == running.total()
        assert statistics.abandoned == sum(job.done for job in self.inside)
        assert {job.session for job in jobs} - {None} <= set(self.lanes.sessions())
        assert {job.lane for job in jobs} <= statistics.lanes.keys()
        slots: Counter[str] = Counter()
        for name, got in statistics.lanes.items():
            lane = self.lanes.lane(name)
            held = holders(lane.limiter.statistics().borrowers, name)
            slots[name] = len(held)
            assert set(held) <= set(jobs)
            assert (got.waiting, got.active) == (waiting[name], running[name])
            assert got.started - got.finished == got.active
            if name != "shared":
                assert lane.limiter.borrowed_tokens == len(held)
            assert len(held) <= max(lane.limiter.total_tokens, self.before[name])
        if self.group is not None:
            used = self.used()
            taken = sum(used[member] for member in self.group.members)
            had = sum(self.used_before[member] for member in self.group.members)
            assert taken <= max(self.group.concurrency, had)
        self.before, self.used_before = slots, self.used()
        for key in SESSIONS:
            assert self.lanes.session(key).active <= self.plan.session_width


def options(spec: Spec) -> dict[str, Any]:
    return {**spec.options, "meta": spec.options["cost"]}


def holders(borrowers: Any, name: str) -> list[Job[Any]]:
    """The jobs of that lane among ``borrowers``, which may be anybody's.

    A token of a shared limiter that came in this very tick goes back when it is seen.
    """
    return [
        job
        for job in borrowers
        if isinstance(job, Job)
        and job.lane == name
        and job.started_at is not None
        and not (name == "shared" and job.done)
    ]


@hypothesis.settings(max_examples=examples(150), report_multiple_bugs=False)
@hypothesis.given(st.random_module(), plans)
def test_everything_at_once_keeps_the_contract(seed: object, plan: Plan) -> None:
    hypothesis.note(f"{plan}")
    trio.run(History(plan).live, clock=MockClock(autojump_threshold=0))
