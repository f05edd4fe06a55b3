"""Jobs that may have killed their process: with how many they run, and when they are dead."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from tests.durable.conformance.bench import LEASE, Played, opening, ticket
from trio_lanes import RateLimit
from trio_lanes.durable import (
    DurableState,
    DurableStatus,
    MemoryStore,
    SubmittedJob,
    open_durable_lanes,
)
from trio_lanes.durable._contract.records import (
    Claim,
    Finish,
    LaneLimit,
    Postponed,
    Released,
    Selection,
    Succeeded,
)
from trio_lanes.durable.acts.inspection import JobsOf
from trio_lanes.durable.acts.orders import Cancel, Configure, Requeue
from trio_lanes.durable.acts.runs import LendSlot


def job(payload: int, **options: Any) -> SubmittedJob:
    return SubmittedJob(name="echo", payload=str(payload), **options)


@asynccontextmanager
async def instance(memory: MemoryStore, **options: Any) -> AsyncIterator[Played]:
    """Another instance, which leaves in order."""
    store = Played(memory.another())
    async with store.open(opening(**options)):
        await store.join()
        yield store
        await store.leave()


async def claims(store: Played, finished: Sequence[Finish] = ()) -> list[Claim]:
    return list((await store.step(finished, 100)).claims)


async def crash(memory: MemoryStore, clock: MockClock, times: int = 1) -> int:
    """Have a process die that runs whatever there is; returns how many jobs those were."""
    number = 0
    for _ in range(times):
        store = Played(memory.another())
        async with store.open(opening()):
            await store.join()
            number = len(await claims(store))
        clock.jump(LEASE * 1.1)
    return number


async def submitted(memory: MemoryStore, *jobs: SubmittedJob, **options: Any) -> None:
    """Have those jobs; the first instance writes the rules of the store."""
    async with instance(memory, **options) as store:
        await store.enqueue(jobs)


def finish(claim: Claim, outcome: Any = None) -> Finish:
    return Finish(claim.id, claim.fence, outcome or Succeeded("1"))


async def test_a_first_crash_makes_no_suspects(mock_clock: MockClock) -> None:
    memory = MemoryStore()
    await submitted(memory, *(job(n) for n in range(4)))
    assert await crash(memory, mock_clock) == 4
    assert await crash(memory, mock_clock) == 4
    assert await crash(memory, mock_clock) == 2
    assert await crash(memory, mock_clock) == 1


async def test_without_a_limit_of_crashes_there_are_no_suspects(mock_clock: MockClock) -> None:
    memory = MemoryStore()
    await submitted(memory, *(job(n) for n in range(4)), max_crashes=float("inf"))
    assert await crash(memory, mock_clock, 20) == 4


async def test_crashes_in_company_make_no_job_dead(mock_clock: MockClock) -> None:
    memory = MemoryStore()
    await submitted(memory, job(0), job(1), max_crashes=1)
    await crash(memory, mock_clock)
    async with instance(memory) as store:
        (first,) = await claims(store)
        assert first.crashes == 1
        (second,) = await claims(store, [finish(first)])
        assert second.crashes == 1
        assert await claims(store, [finish(second)]) == []


async def test_a_crash_in_more_company_makes_no_job_less_suspect(mock_clock: MockClock) -> None:
    memory = MemoryStore()
    await submitted(memory, job(0), job(1))
    assert await crash(memory, mock_clock, 2) == 2
    await submitted(memory, job(2), job(3))
    store = Played(memory.another())
    async with store.open(attrs.evolve(opening(), lease_ttl=1000.0)):
        await store.join()
        running = len(await claims(store))
        for _ in range(3):  # each suspect restricts claims for a minute
            mock_clock.jump(100)
            running += len(await claims(store))
        assert running == 4
    mock_clock.jump(1001)
    assert await crash(memory, mock_clock) == 1


async def test_a_run_that_ends_without_a_crash_is_no_suspect_any_more(
    mock_clock: MockClock,
) -> None:
    memory = MemoryStore()
    await submitted(memory, job(0), job(1))
    await crash(memory, mock_clock, 2)
    async with instance(memory) as store:
        (first,) = await claims(store)
        (second,) = await claims(store, [finish(first, Postponed(0, True, False))])
        assert (first.payload, second.payload) == ("0", "1")
        both = await claims(store, [finish(second, Postponed(0, True, False))])
        assert [claim.crashes for claim in both] == [2, 2]
        await store.step([finish(claim) for claim in both], 0)


async def test_a_suspect_that_is_given_back_stays_one(mock_clock: MockClock) -> None:
    memory = MemoryStore()
    await submitted(memory, job(0), job(1))
    await crash(memory, mock_clock, 2)
    async with instance(memory) as store:
        (first,) = await claims(store)
        (again,) = await claims(store, [finish(first, Released())])
        assert again.payload == "0"
        await store.step([finish(again, Released())], 0)


async def test_a_requeued_job_is_no_suspect(mock_clock: MockClock) -> None:
    memory = MemoryStore()
    await submitted(memory, job(0))
    await crash(memory, mock_clock, 3)
    async with instance(memory) as store:
        (dead,) = await store.look(JobsOf(Selection(states=frozenset({DurableState.DEAD})), 0, 9))
        assert await store.do(Requeue(Selection(id=dead.id)), ticket()) == 1
    await submitted(memory, job(1))
    assert await crash(memory, mock_clock) == 2


async def test_suspects_run_first_whatever_their_lane_and_priority(mock_clock: MockClock) -> None:
    memory = MemoryStore()
    await submitted(memory, job(0, priority=-1), job(1, lane="cron"))
    await crash(memory, mock_clock, 2)
    await submitted(memory, job(2), job(3, priority=1))
    async with instance(memory) as store:
        order, finished = [], []
        while found := await claims(store, finished):
            order.append({claim.payload for claim in found})
            finished = [finish(claim) for claim in found]
        assert order == [{"0"}, {"1"}, {"2", "3"}] or order == [{"1"}, {"0"}, {"2", "3"}]


async def test_a_suspect_keeps_other_jobs_off_for_a_minute_and_twice_as_long_the_next_time(
    mock_clock: MockClock,
) -> None:
    memory = MemoryStore()
    await submitted(memory, job(0), job(9))
    await crash(memory, mock_clock, 2)
    async with instance(memory) as store:
        (_, other) = await all_of(store)
        await store.do(Cancel(other.id, "{}"))
    await submitted(memory, job(1))
    for seconds in (60, 120):
        store = Played(memory.another())
        async with store.open(attrs.evolve(opening(), lease_ttl=1000.0)):
            await store.join()
            (first,) = await claims(store)
            assert first.payload == "0"
            step = await store.step([], 100)
            assert step.claims == ()
            assert step.next_due == pytest.approx(seconds)
            mock_clock.jump(seconds - 1)
            assert await claims(store) == []
            mock_clock.jump(1.1)
            (second,) = await claims(store)
            await store.step([finish(second, Released())], 0)
        mock_clock.jump(1000)


async def test_a_suspect_waits_until_few_enough_run_but_not_for_ever(
    mock_clock: MockClock,
) -> None:
    memory = MemoryStore()
    for finishes in (True, False):
        busy = Played(memory.another())
        async with busy.open(attrs.evolve(opening(), lease_ttl=1000.0)):
            await busy.join()
            await busy.enqueue([job(0)])
            (running,) = await claims(busy)
            await submitted(memory, job(1), job(2))
            await crash(memory, mock_clock, 2)
            await busy.beat()
            await busy.enqueue([job(3, lane="cron")])
            step = await busy.step([], 100)
            assert step.claims == ()
            assert step.next_due == pytest.approx(60)
            if finishes:
                (suspect,) = await claims(busy, [finish(running)])
            else:
                mock_clock.jump(60.1)
                (suspect,) = await claims(busy)
                await busy.step([finish(running)], 0)
            assert suspect.payload == "1"
            (suspect,) = await claims(busy, [finish(suspect)])
            assert suspect.payload == "2"
            (last,) = await claims(busy, [finish(suspect)])
            await busy.step([finish(last)], 0)
            await busy.leave()


async def test_a_suspect_that_a_limit_holds_back_keeps_no_other_job_off(
    mock_clock: MockClock,
) -> None:
    memory = MemoryStore()
    limited = LaneLimit(4, rates=(RateLimit(1, per=1e6, algorithm="sliding"),))
    await submitted(memory, job(0), job(1))
    await crash(memory, mock_clock, 2)
    async with instance(memory) as store:
        await store.do(Configure({"main": limited}, None, {}), ticket())
        (first,) = await claims(store)
        await store.enqueue([job(2, lane="cron")])
        (second,) = await claims(store, [finish(first)])
        assert second.payload == "2"
        await store.step([finish(second)], 0)


async def test_a_run_that_has_lent_its_slot_is_no_company(mock_clock: MockClock) -> None:
    memory = MemoryStore()
    for lent, outcomes in ((1, {"0": (1, 0, 2), "1": (1, 1, 1)}), (2, {"0": (1, 0, 2)})):
        store = Played(memory.another())
        async with store.open(opening()):
            await store.join()
            await store.enqueue([job(0), job(1)])
            for claim in (await claims(store))[:lent]:
                await store.do(LendSlot(claim.id, claim.fence))
        mock_clock.jump(LEASE * 1.1)
        async with instance(memory) as other:
            records = [memory._tables.get(one.id) for one in await all_of(other)]
            counted = {
                r.payload: (r.crashes, r.crashes_alone, r.crashed_with)
                for r in records
                if r is not None
            }
            assert outcomes.items() <= counted.items()
            for one in await all_of(other):
                await other.do(Cancel(one.id, "{}"))


async def all_of(store: Played) -> list[DurableStatus]:
    live = frozenset({DurableState.WAITING, DurableState.PARKED, DurableState.RUNNING})
    return await store.store.look(JobsOf(Selection(states=live), 0, 100))


async def test_a_suspect_that_waits_for_a_job_that_is_kept_off_gets_it_in_the_end(
    autojump_clock: MockClock,
) -> None:
    async def echo(payload: Any) -> Any:
        return payload

    async def parent(payload: Any) -> Any:
        child = await lanes.submit("echo", "child", lane="cron")
        return await child.wait()

    memory = MemoryStore()
    handlers = {"echo": echo, "parent": parent}
    async with instance(memory) as store:
        await store.enqueue([SubmittedJob(name="parent", payload="0"), job(1)])
    for _ in range(2):
        doomed = Played(memory.another())
        async with doomed.open(opening(names=["echo", "parent"])):
            await doomed.join()
            assert len(await claims(doomed)) == 2
        await trio.sleep(2)
    async with open_durable_lanes(memory.another(), handlers) as lanes:
        began = trio.current_time()
        assert await lanes.job(1).wait() == "child"
        assert trio.current_time() - began < 200
