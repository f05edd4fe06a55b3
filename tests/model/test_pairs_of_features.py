"""Random histories in which two rare features meet, judged by the contract said again.

The model of the core says exactly what happens, of few features; the history of everything at once
says little, of all. Here each history keeps to one theme, and after each act the contract is asked:
was each start right, and does each job that waits wait for something true? In the end all limits
are as at the opening, and nothing is paused: then every job must end.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from math import inf
from typing import Any

import attrs
import hypothesis
import hypothesis.strategies as st
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.model.pairs_contract import Contract
from tests.model.pairs_facts import Facts, KnownGroup, KnownJob
from tests.model.pairs_plans import THEMES, Act, Plan, Spec, Theme
from tests.support.chaos import examples
from trio_lanes import Job, LaneError, LaneInstrument, Lanes, current_job, open_lanes
from trio_lanes.testing import LaneRecorder

# More seconds than everything that is drawn can take, if nothing hangs.
FOR_EVER = 2_000


class History(LaneInstrument):
    """Lanes, what is done to them, and what was seen of that."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.recorder = LaneRecorder()
        self.facts = Facts(plan.setting)
        self.wrong: list[str] = []
        self.asking: list[Spec] = []  # jobs that wait for room, in order
        self.waited: Counter[str] = Counter()  # jobs that waited at the last look
        self.lanes: Lanes
        self.contract: Contract

    async def live(self) -> None:
        setting = self.plan.setting
        async with trio.open_nursery() as self.nursery:
            async with open_lanes(
                setting.lanes,
                sessions=setting.sessions,
                groups=setting.groups,
                instruments=[self.recorder, self],
                wait_accounting=True,
            ) as self.lanes:
                self.contract = Contract(self.facts, self.lanes)
                try:
                    for act in self.plan.acts:
                        with suppress(LaneError):
                            await self.take(act)
                        self.look()
                    await self.end()
                except BaseException:
                    self.lanes.reset()  # or what hangs would hang the test
                    raise
            self.nursery.cancel_scope.cancel()
        assert not self.lanes.jobs()

    async def end(self) -> None:
        """Let everything end that can: nothing is paused, and lanes are as wide as they ever were.

        Narrower ones might never end: a wait that was no deadlock then may be one now.
        """
        await self.rest()
        self.resume(None)
        for name in [*self.names(), *self.lanes.statistics().lanes]:
            self.resume(name)
        for label in self.plan.setting.lanes:
            self.configure(label, self.facts.widest[label])
        for lane in self.lanes.statistics().lanes:
            self.set_concurrency(lane, self.facts.widest[self.facts.label(lane)])
        await self.rest()
        await trio.sleep(FOR_EVER)
        stuck = [
            f"{known}: {known.job.blocked_by()}"
            for known in self.facts.jobs
            if known.waits or known.runs
        ]
        assert not stuck, f"this hangs: {stuck}"
        assert not self.asking, f"these wait for room for ever: {self.asking}"
        await self.rest()

    def names(self) -> list[str]:
        """Sessions and lanes that were paused at some time."""
        return [*self.facts.by_hand, *self.facts.until]

    # ---- what is done from outside

    async def take(self, act: Act) -> None:
        match act:
            case Act("sleep", (seconds,)):
                await trio.sleep(seconds)
                await self.rest()
            case Act("submit", (spec,)):
                job = self.lanes.submit_nowait(self.body, spec, **options(spec))
                self.nursery.start_soon(self.wait_for, job)
            case Act("enter", (spec,)):
                self.nursery.start_soon(self.enter, spec)
                await trio.lowlevel.checkpoint()
            case Act("cancel", (number,)):
                for known in self.known(number):
                    known.job.cancel()
            case Act("prioritize", (number, priority)):
                for known in self.known(number):
                    self.prioritize(known, priority)
            case Act("clear", (name,)):
                self.lanes.clear(name)
            case Act("pause", (name,)):
                self.facts.by_hand.update(self.pausable(name))
                self.lanes.pause(name)
            case Act("pause_for", (name, seconds)):
                until = trio.current_time() + seconds
                for one in self.pausable(name):
                    self.facts.until[one] = max(self.facts.until[one], until)
                self.lanes.pause_for(name, seconds)
            case Act("resume", (name,)):
                self.resume(name)
            case Act("configure", (label, width)):
                self.configure(label, width)
            case Act("concurrency", (lane, width)):
                self.set_concurrency(lane, width)
            case Act("regroup", (group,)):
                await self.rest()
                self.regroup(group)
            case _:
                raise AssertionError(act)

    def known(self, number: int) -> list[KnownJob]:
        """The job of that number, from the latest."""
        return self.facts.jobs[::-1][number : number + 1]

    def pausable(self, name: str | None) -> list[str]:
        return list(self.lanes.statistics().lanes) if name is None else [name]

    def prioritize(self, known: KnownJob, priority: int) -> None:
        if known.waits and priority != known.priority:
            known.priority, known.moved = priority, True
            known.place = self.facts.next_place()
            known.job.priority = priority

    def resume(self, name: str | None) -> None:
        for one in self.pausable(name):
            self.facts.by_hand.discard(one)
            self.facts.until[one] = -inf
        self.lanes.resume(name)

    def configure(self, label: str, width: float) -> None:
        facts = self.facts
        facts.note_width(label, width)
        facts.configs[label] = evolve(facts.configs[label], width)
        if label.endswith("*"):  # whether that is for lanes with a width of their own is open
            facts.may_have_retired |= facts.live_widths.keys()
        self.lanes.configure({label: int(width)})

    def set_concurrency(self, lane: str, width: float) -> None:
        facts = self.facts
        if lane in facts.configs:
            facts.configs[lane] = evolve(facts.configs[lane], width)
        elif lane in self.lanes.statistics().lanes:
            facts.live_widths[lane] = width
            facts.may_have_retired.discard(lane)
        else:
            return  # what is set of a lane that is not alive is not tested here
        facts.note_width(facts.label(lane), width)
        self.lanes.lane(lane).concurrency = width

    def regroup(self, new: tuple[str, Any] | None) -> None:
        groups = {} if new is None else dict([new])
        old, self.facts.groups = self.facts.groups, {}
        for name, config in groups.items():
            self.facts.groups[name] = old.get(name) or KnownGroup(config)
            self.facts.groups[name].config = config
        self.lanes.configure(groups=groups)

    async def enter(self, spec: Spec) -> None:
        self.asking.append(spec)
        with suppress(LaneError):
            await self.lanes.submit(self.body, spec, **options(spec))
        if spec in self.asking:
            self.asking.remove(spec)

    async def wait_for(self, job: Job[Any]) -> None:
        with suppress(LaneError):
            await job.wait()

    # ---- what bodies do

    async def body(self, spec: Spec) -> None:
        job = current_job()
        assert job is not None
        known = self.facts.by_job[job]
        for act in spec.acts:
            with suppress(LaneError):
                await self.do(known, act)

    async def do(self, known: KnownJob, act: Act) -> None:
        lanes = self.lanes
        match act:
            case Act("sleep", (seconds,)):
                await trio.sleep(seconds)
            case Act("lend", (seconds,)):
                await self.lend(known, seconds)
            case Act("lend_and_sleep", (seconds, more)):
                await self.lend(known, seconds)
                await trio.sleep(more)
            case Act("lend_in_cleanup", (seconds,)):
                try:
                    await trio.sleep(seconds)
                finally:
                    with trio.CancelScope(shield=True):
                        await self.lend(known, 1)
            case Act("lend_twice_in_cleanup", (seconds,)):
                try:
                    await self.lend(known, seconds)
                finally:
                    with trio.CancelScope(shield=True):
                        await self.lend(known, 0.5)
                        await self.lend(known, 0.5)
            case Act("lend_both", (one, other)):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self.lend, known, one)
                    nursery.start_soon(self.lend, known, other)
            case Act("readmit"):
                await self.readmit(known)
            case Act("charge", (used,)):
                self.charge(known, used)
            case Act("run", (spec, lends)):
                if lends:
                    async with self.lending(known):
                        await lanes.run(self.body, spec, **options(spec))
                else:
                    await lanes.run(self.body, spec, **options(spec))
            case Act("map", (seconds,)):
                spec = Spec("sub", None, 0, 1, (Act("cleanup", (seconds,)),))
                known.unknown = True
                async with lanes.map(
                    self.body, [spec] * 2, lane="sub", yield_slot=True, meta=spec
                ) as results:
                    async for _ in results:
                        pass
                known.unknown = False
            case Act("cleanup", (seconds,)):
                try:
                    await trio.sleep(seconds)
                finally:
                    with trio.CancelScope(shield=True):
                        await trio.sleep(1)
            case Act("wait_job", (number,)):
                others = [other for other in self.facts.jobs if other is not known]
                for other in others[::-1][number : number + 1]:
                    await other.job.wait_done()
            case Act("wait_idle", (name,)):
                await lanes.wait_idle(name)
            case Act("drain"):
                await lanes.drain()
            case _:
                raise AssertionError(act)

    async def lend(self, known: KnownJob, seconds: float) -> None:
        async with self.lending(known):
            await trio.sleep(seconds)

    @asynccontextmanager
    async def lending(self, known: KnownJob) -> AsyncIterator[None]:
        known.lenders += 1
        last = False
        try:
            async with known.job.yield_slot():
                try:
                    yield
                finally:
                    known.lenders -= 1
                    last = not known.lenders
                    known.wants_slot += last
        finally:
            known.wants_slot -= last
            self.goes_on(known)

    def goes_on(self, known: KnownJob) -> None:
        """``known`` has its slot again, or must be cancelled."""
        if known.runs and not known.lenders and not known.wants_slot:
            limiter = self.lanes.lane(known.lane).limiter
            known.went_without = known.job not in limiter.statistics().borrowers
            if known.went_without and not known.job.cancel_called:
                self.wrong.append(f"{known} goes on without its slot")

    async def readmit(self, known: KnownJob) -> None:
        if not known.has_slot:
            return
        known.readmits, known.since = True, trio.current_time()
        try:
            await known.job.readmit()
            self.wrong += self.contract.over_limits(known, trio.current_time())
            self.facts.charge(known, trio.current_time())
        finally:
            known.readmits = False
            self.goes_on(known)

    def charge(self, known: KnownJob, used: float) -> None:
        """``known`` says that it used less than its last start was charged, if it may say so."""
        if not known.charged:
            known.charged = True
            for charge in self.facts.last_charges(known):
                charge.amount = used
            known.job.charge(requests=used)

    # ---- what is seen

    def job_submitted(self, job: Job[Any]) -> None:
        if job.meta in self.asking:
            self.asking.remove(job.meta)
        self.facts.add(job, job.meta, trio.current_time())

    def job_started(self, job: Job[Any]) -> None:
        known, now = self.facts.by_job[job], trio.current_time()
        self.wrong += self.contract.wrong_with_start(known, now)
        self.facts.charge(known, now)

    def job_finished(self, job: Job[Any]) -> None:
        if job.lane in self.facts.live_widths and not self.alive(job.lane):
            self.facts.may_have_retired.add(job.lane)

    def alive(self, lane: str) -> bool:
        return bool(self.facts.waiting(lane) or self.facts.running(lane))

    async def rest(self) -> None:
        """Every task is blocked: what was to happen up to now has happened."""
        await wait_all_tasks_blocked()
        self.look()
        self.wrong += self.contract.wrong_at_rest(trio.current_time())
        self.wrong += self.room_that_is_not_taken()
        self.nothing_wrong()

    def look(self) -> None:
        self.recorder.check()
        statistics = self.lanes.statistics()
        facts = self.facts
        waited: Counter[str] = Counter()
        for lane, got in statistics.lanes.items():
            waiting, running = facts.waiting(lane), facts.running(lane)
            assert (got.waiting, got.active) == (len(waiting), len(running)), lane
            bound = facts.config(lane).max_waiting
            waited[lane] = len(waiting)
            if len(waiting) > max(bound, self.waited[lane]):
                self.wrong.append(f"{len(waiting)} wait in {lane}, where {bound} may")
            self.compare_width(lane, got.concurrency)
        self.waited = waited
        for lane in facts.live_widths.keys() - statistics.lanes.keys():
            del facts.live_widths[lane]
            facts.may_have_retired.discard(lane)
        assert statistics.waiting == waited.total()
        assert statistics.active == sum(known.runs for known in facts.jobs)
        self.nothing_wrong()

    def compare_width(self, lane: str, got: float) -> None:
        facts = self.facts
        if lane in facts.may_have_retired:
            facts.may_have_retired.discard(lane)
            if got == facts.config(lane).concurrency:
                facts.live_widths.pop(lane, None)
        if got != facts.width(lane):
            self.wrong.append(f"{lane} is {got} wide, not {facts.width(lane)}")

    def room_that_is_not_taken(self) -> list[str]:
        """Room for jobs that wait for it, where nothing but the bound of the lane stops them."""
        first: defaultdict[str, list[Spec]] = defaultdict(list)
        for spec in self.asking:
            first[spec.lane].append(spec)
        return [
            f"{specs[0]} waits for room in {lane}, where there is some"
            for lane, specs in first.items()
            if not any(spec.session for spec in specs)
            and len(self.facts.waiting(lane)) < self.facts.config(lane).max_waiting
        ]

    def nothing_wrong(self) -> None:
        assert not self.wrong, "\n".join(self.wrong)


def evolve(config: Any, width: float) -> Any:
    return attrs.evolve(config, concurrency=width)


def options(spec: Spec) -> dict[str, Any]:
    return {
        "lane": spec.lane,
        "session": spec.session,
        "priority": spec.priority,
        "cost": spec.cost,
        "meta": spec,
    }


@pytest.mark.parametrize("theme", THEMES, ids=lambda theme: type(theme).__name__)
@hypothesis.settings(max_examples=examples(125), report_multiple_bugs=False)
@hypothesis.given(data=st.data(), seed=st.random_module())
def test_the_contract_holds_where_features_meet(theme: Theme, seed: object, data: Any) -> None:
    plan = data.draw(theme.plans())
    trio.run(History(plan).live, clock=MockClock(autojump_threshold=0))
