"""A store comes back with older data: instances and store agree again, in virtual time."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_lanes.durable import (
    DurableState,
    LockLostError,
    MemoryStore,
    StoreUnavailableError,
    current_job,
    open_durable_lanes,
)
from trio_lanes.durable._memory.tables import MemoryTables
from trio_lanes.durable.acts.locks import Acquire
from trio_lanes.durable.testing import NO_FAULTS, Faults, open_cluster

LEASE = 30.0


def kept(store: MemoryStore) -> Callable[[], None]:
    """Keep the data of a store as they are now; return what brings them back."""
    tables, before = store._tables, copy.deepcopy(vars(store._tables))

    def bring_back() -> None:
        number, ahead = tables._number, tables.ahead
        vars(tables).update(copy.deepcopy(before))
        tables._number, tables.ahead = number, ahead  # they rise with the time
        for one in store._open:
            one._look_again()
            one._wake_waiters()

    return bring_back


async def test_a_run_whose_end_was_lost_runs_again_and_one_whose_claim_was_lost_is_cancelled(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    log: list[str] = []
    gates = {name: trio.Event() for name in ("ends", "goes on", "is lost")}

    async def work(name: str) -> None:
        log.append(f"{name}: begins")
        try:
            await gates[name].wait()
        except trio.Cancelled:
            log.append(f"{name}: is cancelled")
            raise

    store = MemoryStore()
    async with open_durable_lanes(store, {"work": work}, lease_ttl=LEASE) as lanes:
        first = [await lanes.submit("work", name) for name in ("ends", "goes on")]
        await wait_all_tasks_blocked()
        bring_back = kept(store)
        gates["ends"].set()
        await first[0].wait()
        lost = await lanes.submit("work", "is lost")
        await wait_all_tasks_blocked()
        assert log == [f"{name}: begins" for name in gates]
        bring_back()
        await trio.sleep(LEASE / 3 + 1)
        assert log[3:] == ["is lost: is cancelled", "ends: begins"]
        assert f"the run of job {lost.id} with fence" in caplog.text
        gates["goes on"].set()
        await lanes.wait_idle()
        ended = await lanes.jobs()
        assert [(job.id, job.state) for job in ended] == [
            (job.id, DurableState.SUCCEEDED) for job in first
        ]
        assert [job.crashes for job in ended] == [0, 0]
        assert log.count("goes on: begins") == 1
        assert (await lanes.check()).problems == ()


async def test_a_lock_whose_release_was_lost_is_freed_and_one_that_was_lost_is_cancelled(
    autojump_clock: MockClock,
) -> None:
    store, gate, lost = MemoryStore(), trio.Event(), list[str]()

    async def hold(key: str, until: trio.Event) -> None:
        try:
            async with lanes.lock(key):
                await until.wait()
        except LockLostError:
            lost.append(key)

    async with open_durable_lanes(store, {}, lease_ttl=LEASE) as lanes:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hold, "kept", gate)
            async with lanes.lock("released"):
                await wait_all_tasks_blocked()
                bring_back = kept(store)
            nursery.start_soon(hold, "taken", gate)
            await wait_all_tasks_blocked()
            bring_back()
            with trio.fail_after(LEASE / 3 + 1):
                async with lanes.lock("released"):
                    pass
            await wait_all_tasks_blocked()
            assert lost == ["taken"]
            gate.set()
        assert (await lanes.statistics()).locks == ()


async def test_a_new_connection_is_followed_by_a_heartbeat_at_once(
    autojump_clock: MockClock,
) -> None:
    store = MemoryStore()
    store.renewed = trio.Event()
    async with open_durable_lanes(store, {}, lease_ttl=LEASE) as lanes:
        async with lanes.lock("k"):
            bring_back = kept(store)
        bring_back()
        renewed, store.renewed = store.renewed, trio.Event()
        renewed.set()
        await trio.sleep(1)
        assert (await lanes.statistics()).locks == ()


async def test_what_a_late_copy_of_a_call_has_made_is_given_back_by_the_second_heartbeat(
    autojump_clock: MockClock,
) -> None:
    """Older data do not know the call, so that its copy is done anew, and its answer is lost."""
    store = MemoryStore()
    async with open_durable_lanes(store, {"work": trio.sleep}, lease_ttl=LEASE) as lanes:
        worker = lanes._worker
        assert worker is not None
        worker.claiming = False
        job = await lanes.submit("work", 1)
        await wait_all_tasks_blocked()
        await store.do(Acquire("k", False), "late")
        worker._steps_taken += 1
        (claim,) = (await store.step(worker._steps_taken, [], 1)).claims
        assert claim.id == job.id
        worker.claiming = True
        await trio.sleep(LEASE / 3 + 1)
        assert (await job.status()).state is DurableState.RUNNING
        await trio.sleep(LEASE / 3)
        assert (await lanes.statistics()).locks == ()
        await job.wait()
        assert (await job.status()).crashes == 0


async def test_a_run_that_ends_its_process_is_not_given_back_by_a_heartbeat(
    autojump_clock: MockClock,
) -> None:
    async def leave(payload: Any) -> None:
        raise SystemExit(payload)

    store, status = MemoryStore(), []
    try:
        async with open_durable_lanes(store, {"leave": leave}, lease_ttl=LEASE) as lanes:
            job = await lanes.submit("leave", 3)
            with trio.CancelScope(shield=True):
                await trio.sleep(LEASE)
                status.append(await job.status())
            await trio.sleep_forever()
    except* SystemExit:
        pass
    assert [one.state for one in status] == [DurableState.RUNNING]


@pytest.mark.parametrize("faults", [NO_FAULTS, Faults(kills=math.inf, jumps=math.inf)])
@pytest.mark.seeds(10)
async def test_instances_and_store_agree_within_a_lease_after_older_data_at_any_moment(
    autojump_clock: MockClock, seed: int, faults: Faults
) -> None:
    running: set[int] = set()

    async def work(payload: Any) -> None:
        run = current_job()
        assert run is not None
        assert run.fence not in running
        running.add(run.fence)
        try:
            if payload % 3 == 0:
                async with cluster.lanes_of(run).lock(f"lock {payload % 2}"):
                    await trio.sleep(0.1 + cluster.random.random())
            else:
                await trio.sleep(0.1 + cluster.random.random() * 4)
        finally:
            running.remove(run.fence)

    async def feed() -> None:
        for n in range(10_000):
            try:
                await cluster.lanes.submit("work", n, session=f"s{n % 8}")
            except StoreUnavailableError:
                pass
            await trio.sleep(0.2)

    store = MemoryStore()
    async with open_cluster(
        {"work": work}, {"main": 6}, seed=seed, faults=faults, store=store, capacity=4
    ) as cluster:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(feed)
            for _ in range(3):
                await trio.sleep(5 + 20 * cluster.random.random())
                bring_back = kept(store)
                await trio.sleep(6 * cluster.random.random())
                bring_back()
            nursery.cancel_scope.cancel()
        cluster.end_faults()
        # what was sent before still arrives, and a lease that was lost is over
        await trio.sleep(faults.latest + LEASE)
        for _ in range(100):
            jobs = await cluster.lanes.jobs(states=[DurableState.RUNNING], limit=-1)
            assert {fence_of(store._tables, job.id) for job in jobs} <= running
            now = await cluster.lanes.statistics()
            if not (now.waiting or now.running):
                break
            await trio.sleep(5)
        assert (now.waiting, now.running, now.locks) == (0, 0, ())
        assert not running
        assert (await cluster.lanes.check()).problems == ()


def fence_of(tables: MemoryTables, id: int) -> int:
    job = tables.get(id)
    assert job is not None
    return job.fence
