"""Tests of fair lanes and of aging, in which the order is that of the core, which is the judge."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import Any, Final

import attrs

from trio_lanes import Job, LaneConfig, Lanes, open_lanes
from trio_lanes.durable import DurableJob, DurableLanes, LaneLimit, Released
from trio_lanes.durable.acts.orders import Configure, Pause, PutFirst, Resume

from .bench import Bench, needs, new_job

WEIGHTS: Final[list[dict[str, float]]] = [
    {},
    {"gold": 4},
    {"gold": 3, "team:*": 2.5, "*": 0.5},
    {"*": 2, "team:a": 0.3, "silver": 7},
]
OWNERS: Final = (None, None, "gold", "silver", "team:a", "team:b")
GAPS: Final = (0.0, 0.25, 0.5, 1.5)
JUDGED_SESSIONS: Final = (None, None, None, "one", "two", "gold")


class FairStories(Bench):
    async def test_fair_lanes_start_jobs_in_the_order_of_the_core(self) -> None:
        for seed in range(2):
            chance = Random(seed)
            config = LaneConfig(concurrency=0, fair=True, weights=chance.choice(WEIGHTS))
            await self._judge(chance, config)

    @needs("virtual time")
    async def test_lanes_with_aging_start_jobs_in_the_order_of_the_core(self) -> None:
        for seed in range(2):
            await self._judge(Random(seed), LaneConfig(concurrency=0, aging=1.0))

    async def _judge(self, chance: Random, config: LaneConfig) -> None:
        self.log.clear()
        lane = f"judged:{chance.random()}"
        limits: Any = {"main": 4, lane: config}
        async with self.instance(lanes=limits) as lanes, open_lanes(limits) as core:
            judged = _Judged(self, lanes, core, lane, config, chance)
            for number in range(14):
                await judged.age((1.0,) if number < 3 else GAPS)  # the first are equal then
                await judged.submit(number - 1 if number < 3 else chance.choice((-1, 0, 0, 1)))
            await judged.configure(concurrency=2)
            for number in range(30):
                await judged.age(GAPS)
                await judged.act()
                assert judged.durable_begun() == judged.begun, (config, number)
            await lanes.clear(lane)
            self.open(*judged.jobs)
            await self.settle()
            await core.drain(grace=0, waiting="cancel")

    async def test_aging_is_changed_at_once_and_a_wait_says_what_is_before(self) -> None:
        async with self.instance(lanes={"t:*": LaneConfig(concurrency=0, aging=0.1)}) as lanes:
            await lanes.pause("t:1")
            low = await lanes.submit("echo", 0, lane="t:1", priority=-1)
            await self.advance(0.25)
            high = [await lanes.submit("echo", n, lane="t:1", priority=1) for n in range(1, 13)]
            for job, before in ((high[0], 1), (high[-1], 12)):
                (_, order, _) = await lanes.blocked_by(job.id)
                assert (order.kind, order.job, order.before) == ("order", low.id, before)
            limit = (await lanes.limits())["t:*"]
            for bad in (0, -1.5, math.nan):
                with self.raises(ValueError) as caught:
                    await lanes.configure({"t:*": attrs.evolve(limit, aging=bad)})
                assert "aging" in str(caught[0])
                assert str(bad) in str(caught[0])
            assert (await lanes.limits())["t:*"] == limit
            await lanes.configure({"t:*": attrs.evolve(limit, aging=1000 / 3)})
            (_, order, _) = await lanes.blocked_by(low.id)
            assert (order.job, order.before) == (high[0].id, 12)
            await lanes.configure({"t:*": 1})
            assert (await lanes.limits())["t:*"].aging == 1000 / 3
            await lanes.resume("t:1")
            assert await low.wait() == 0
            assert self.log == [*range(1, 13), 0]

    async def test_a_delayed_job_ages_from_when_it_is_due_and_a_queued_one_at_once(self) -> None:
        async with self.instance(lanes={"t:*": LaneConfig(concurrency=0, aging=0.1)}) as lanes:
            late = await lanes.submit("echo", "delayed", lane="t:1", priority=-1, delay=0.6)
            for name, priority in (("first", 1), ("queued", -1)):
                await lanes.submit("echo", name, lane="t:2", priority=priority, session="s")
            await self.advance(0.3)
            last = [await lanes.submit("echo", "last", lane=lane) for lane in ("t:1", "t:2")]
            await self.advance(0.4)
            for lane, job, log in (
                ("t:1", late, ["last", "delayed"]),
                ("t:2", last[1], ["first", "queued", "last"]),
            ):
                self.log.clear()
                await lanes.configure({lane: LaneConfig(aging=0.1)})
                await job.wait()
                assert self.log == log

    async def test_where_owners_take_turns_a_priority_ages_by_its_next_job(self) -> None:
        for lane, weights in {"plain": {}, "weighted": {"b": 1.0}}.items():
            self.log.clear()
            config = LaneConfig(concurrency=0, fair=True, weights=weights, aging=0.1)
            async with self.instance(lanes={lane: config}) as lanes:
                for _ in range(2):
                    last = await lanes.submit("echo", "a", lane=lane, owner="a", priority=-1)
                await self.advance(0.25)
                await lanes.submit("echo", "b", lane=lane, owner="b", priority=-1)
                high = await lanes.submit("echo", "x", lane=lane, priority=1)
                for job, before in ((high, 1), (last, 2)):
                    assert (await lanes.blocked_by(job.id))[0].before == before
                await lanes.configure({lane: 1})
                await last.wait()
                assert self.log == ["a", "x", "b", "a"]

    async def test_the_first_priority_is_served_and_the_last_once_in_ten(self) -> None:
        main = LaneLimit(20, weights={"a": 2}, fair=True)
        async with self.playing(lanes={"main": main}) as store:
            high = [new_job(n % 3, owner="abc"[n % 3], priority=1) for n in range(12)]
            low = [new_job(9, owner="ab"[n % 2], priority=-1) for n in range(4)]
            await store.enqueue(high + low)
            served = [int(run.payload) for run in await store.claim(16)]
            assert [n for n, payload in enumerate(served) if payload == 9] == [9, 13, 14, 15]
            assert served[:4].count(0) == 2

    async def test_an_owner_with_jobs_of_several_handlers_has_one_turn(self) -> None:
        main = LaneLimit(9, fair=True)
        async with self.playing(names=["echo", "other"], lanes={"main": main}) as store:
            kinds = [("echo", "a"), ("other", "a"), ("echo", "a"), ("echo", "b"), ("other", "b")]
            await store.enqueue(
                [new_job(n, name, owner=owner) for n, (name, owner) in enumerate(kinds)]
            )
            assert [int(run.payload) for run in await store.claim(5)] == [0, 3, 1, 4, 2]

    async def test_what_waits_is_listed_anew_when_an_opening_brings_other_weights(self) -> None:
        asked: Any = {"main": LaneConfig(fair=True, weights={"gold": 4}), "t:*": LaneConfig()}
        async with self.instance(worker=False, lanes=asked) as asking:
            for lane in ("main", "main", "t:1", "t:1"):
                await asking.submit("echo", lane, lane=lane, owner="gold")
            fair = LaneLimit(9, weights={"silver": 2}, fair=True)
            async with self.playing(lanes={"main": fair, "t:1": fair}) as store:
                claims = await store.claim(9)
                assert sorted(claim.lane for claim in claims) == ["main", "main", "t:1", "t:1"]

    async def test_a_job_that_is_given_back_takes_no_turn(self) -> None:
        async with self.playing(lanes={"main": LaneLimit(1, fair=True)}) as store:
            await store.enqueue([new_job(n, owner="aab"[n]) for n in range(3)])
            (run,) = await store.claim()
            await store.do(Configure({"main": 9}, None, {}))
            await store.end(run, Released())
            assert [int(run.payload) for run in await store.claim(3)] == [0, 2, 1]
            await store.do(Configure({"main": LaneLimit(9)}, None, {}))  # it is plain now
            await store.enqueue([new_job(n, owner="aab"[n]) for n in range(3)])
            assert [int(run.payload) for run in await store.claim(3)] == [0, 1, 2]

    async def test_a_job_put_first_takes_no_turn_and_a_paused_one_gives_it_up(self) -> None:
        async with self.playing(lanes={"main": LaneLimit(9, fair=True)}) as store:
            jobs = [new_job(0, session="s"), new_job(1, session="s"), new_job(2, owner="b")]
            _, second, _ = await store.enqueue(jobs)
            assert await store.do(PutFirst(second))
            assert [int(run.payload) for run in await store.claim(3)] == [1, 2]
            jobs = [new_job(0, session="t"), new_job(1, owner="t"), new_job(2, owner="c")]
            await store.enqueue(jobs)
            await store.do(Pause(None, "t", 1e6))
            await store.do(Resume(None, "t"))
            assert [int(run.payload) for run in await store.claim(3)] == [1, 2, 0]

    async def test_a_lane_becomes_fair_and_plain_with_the_jobs_that_wait(self) -> None:
        tenant = LaneLimit(1, weights={"z": 9}, fair=True)
        async with self.playing(lanes={"main": LaneLimit(9), "tenant:*": LaneLimit(9)}) as store:
            for lane in ("main", "tenant:x"):
                jobs = [new_job(n, owner="aaabbc"[n], lane=lane) for n in range(6)]
                await store.enqueue(jobs)
            await store.do(Configure({"tenant:*": tenant, "main": tenant}, None, {}))
            runs = [run for _ in range(2) for run in await store.claim(6)]
            assert [int(run.payload) for run in runs] == [0, 0]
            await store.do(Configure({"tenant:*": 3, "main": LaneLimit(9)}, None, {}))
            runs = list(await store.claim(6))
            of_tenant = [int(run.payload) for run in runs if run.lane == "tenant:x"]
            assert of_tenant == [3, 5]
            assert len(runs) == 6

    async def test_a_job_behind_others_of_its_owner_says_so(self) -> None:
        main = LaneConfig(concurrency=0, weights={"a": 2, "tenant:*": 0.5})
        async with self.instance(lanes={"main": main}) as lanes:
            first, second = [await lanes.submit("echo", n, owner="a") for n in range(2)]
            (order, _) = await lanes.blocked_by(second.id)
            assert (order.kind, order.job) == ("order", first.id)
            assert order.before >= 1
            limit = (await lanes.limits())["main"]
            assert (limit.fair, limit.weights) == (True, main.weights)
            await lanes.configure({"main": attrs.evolve(limit, concurrency=1)})
            assert await second.wait() == 1
            assert not (await lanes.check()).problems

    async def test_an_owner_that_no_store_can_keep_is_refused(self) -> None:
        async with self.instance() as lanes:
            for owner in ("", 5, "a" * 1_001, "a\0"):
                with self.raises(TypeError, ValueError) as caught:
                    await lanes.submit("echo", owner=owner)  # type: ignore[arg-type]
                assert "owner" in str(caught[0])
            with self.raises(ValueError) as caught:
                await lanes.configure({"main": LaneConfig(weights={"a\0": 2})})
            assert "owner" in str(caught[0])


@attrs.define
class _Judged:
    """Durable lanes and lanes of the core, to which the same is done."""

    bench: Bench
    lanes: DurableLanes
    core: Lanes
    lane: str
    config: LaneConfig
    chance: Random
    begun: list[str] = attrs.field(factory=list)  # in the core
    jobs: dict[str, tuple[DurableJob, Job[None]]] = attrs.field(factory=dict)

    def durable_begun(self) -> list[str]:
        return [one for one in self.bench.begun() if one.startswith(f"{self.lane} ")]

    async def _gate(self, name: str) -> None:
        self.begun.append(name)
        await self.bench.gate(name).wait()

    async def submit(self, priority: int) -> None:
        name, lane = f"{self.lane} {len(self.jobs)}", self.lane
        of: dict[str, Any] = {"lane": lane}
        if self.config.fair:
            of["session"] = self.chance.choice(JUDGED_SESSIONS)
            owner = self.chance.choice(OWNERS)
            of |= {} if owner is None else {"owner": owner}
        else:
            of["priority"] = priority
        job = await self.lanes.submit("gate", name, **of)
        self.jobs[name] = job, self.core.submit_nowait(self._gate, name, **of)

    async def age(self, waits: Sequence[float]) -> None:
        """Let some time pass, if it counts."""
        await self.bench.advance(0.0 if self.config.fair else self.chance.choice(waits))

    async def configure(self, **changes: Any) -> None:
        self.config = attrs.evolve(self.config, **changes)
        await self.lanes.configure({self.lane: self.config})
        self.core.configure({self.lane: self.config})
        await self.bench.settle()

    async def act(self) -> None:
        """Do something by chance, and wait until nothing more happens."""
        running = [name for name in self.begun if not self.jobs[name][1].done]
        waiting = [name for name in self.jobs if name not in self.begun]
        act = self.chance.choice(["end"] * 5 + ["submit"] * 3 + ["cancel", "pause", "change"])
        if act == "end" and running:
            self.bench.open(self.chance.choice(running))
        elif act == "cancel" and waiting:
            durable, job = self.jobs[self.chance.choice(waiting)]
            job.cancel()
            await self.lanes.cancel(durable.id)
        elif act == "pause":
            session = "session:" + self.chance.choice(["one", "two", "gold"])
            self.core.pause(session)
            await self.lanes.pause(session)
            await self.submit(0)
            self.core.resume(session)
            await self.lanes.resume(session)
        elif act == "change":
            weights = self.chance.choice(WEIGHTS)
            aging = self.chance.choice((0.25, 1.0, 1.75))
            await self.configure(**({"weights": weights} if self.config.fair else {"aging": aging}))
        else:
            await self.submit(self.chance.choice((-1, 0, 0, 1)))
        await self.bench.settle()
