"""The clock of the server is set, back or ahead: what waits for a time waits no longer, no less."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.durable.conformance.bench import LEASE, Bench, new_job
from tests.durable.newcomers import FIRST, all_dead, newcomers
from trio_lanes import LaneConfig, RateLimit
from trio_lanes.durable import (
    DurableState,
    LaneLimit,
    Opening,
    PostgresStore,
    Retry,
    SubmittedJob,
    current_job,
    open_durable_lanes,
)
from trio_lanes.durable.acts.jobs import Enqueue

from .clock import EPOCH, TABLE, StoreClock
from .server import Server, programs

pytestmark = pytest.mark.real_processes
HOUR = 3600
TWO = RateLimit(2, per=1.0, algorithm="sliding")


class Stage:
    """A bench on a server of which the clock can be set."""

    def __init__(self, server: Server, namespace: str, folder: Path) -> None:
        self.server = server
        self.namespace = namespace
        self.clock = StoreClock(server.dsn())
        self.clock.prepare(namespace)
        self.bench = Bench(self.store, folder, self.clock, 0.01)  # type: ignore[arg-type]

    def store(self, folder: Path) -> PostgresStore:
        return PostgresStore(self.server.dsn(), namespace=self.namespace, patience=24)

    def set_clock(self, seconds: float) -> None:
        """Set the clock of the server so many seconds ahead."""
        self.server.run(f"UPDATE {TABLE} SET now = now + {seconds}")


@pytest.fixture
def stage(server: Server, namespace: str, tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(server, namespace, tmp_path)
    yield stage
    stage.clock.close()


@pytest.mark.parametrize("jumps", [(-HOUR,), (HOUR,), (HOUR, -HOUR), (-HOUR, HOUR), (30, -60)])
def test_delays_retries_rates_quotas_pauses_and_leases_are_as_long_when_the_clock_is_set(
    stage: Stage, jumps: tuple[int, ...]
) -> None:
    bench = stage.bench

    async def fail_once(payload: Any) -> None:
        run = current_job()
        assert run is not None
        if run.attempt == 1:
            raise Retry(5)
        bench.log.append("retried")

    async def spend(lanes: Any) -> None:
        for _ in range(3):
            await lanes.quota("q").spend()
            bench.log.append("spent")

    async def story() -> None:
        limits = {"main": 9, "rated": LaneConfig(concurrency=9, rate=TWO)}
        async with bench.instance(
            lanes=limits, quotas={"q": TWO}, handlers={"fail_once": fail_once}, lease_ttl=30
        ) as lanes:
            for jump in jumps:
                bench.log.clear()
                long = await lanes.submit("gate", f"long {jump}")
                await lanes.submit("echo", "before", delay=5)
                await lanes.submit("fail_once")
                await lanes.pause_for("session:s", 5)
                await lanes.submit("echo", "paused", session="s")
                for _ in range(3):
                    await lanes.submit("echo", "rated", lane="rated")
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(spend, lanes)
                    await bench.settle()
                    stage.set_clock(jump)
                    submit = f"{stage.namespace}.submit('echo', '\"by SQL\"', delay => 5)"
                    stage.server.run(f"SELECT {submit}")
                    await lanes.submit("echo", "after", delay=5)
                    await bench.advance(0.5)
                    now = [f"long {jump} begins", *["rated"] * 2, *["spent"] * 2]
                    assert sorted(bench.log) == sorted(now)
                    await bench.advance(0.6)
                    assert sorted(bench.log) == sorted([*now, "rated", "spent"])
                await bench.advance(4.5)
                later = ["before", "after", "by SQL", "retried", "paused"]
                assert sorted(bench.log) == sorted([*now, "rated", "spent", *later])
                await bench.advance(15)
                bench.gate(f"long {jump}").set()
                await long.wait()
                assert [run.how for run in (await long.status()).history] == ["succeeded"]
            assert (await lanes.check()).problems == ()

    trio.run(story, clock=stage.clock)


def test_run_at_follows_the_clock_of_the_server(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, minute, set_by = stage.bench, 60.0, 0.0
    monkeypatch.setattr("time.time", lambda: EPOCH + stage.clock.current_time() + set_by)

    def set_to(ahead: float) -> None:
        nonlocal set_by
        stage.set_clock(ahead - set_by)
        set_by = ahead

    async def story() -> None:
        async with bench.instance() as lanes:
            for minutes in (10, 30, 50):
                await lanes.submit("echo", minutes, run_at=time.time() + minutes * minute)
            await lanes.submit("echo", "delayed", delay=15 * minute)
            set_to(10 * minute)
            await bench.advance(1)
            assert bench.log == [10]
            set_to(-10 * minute)
            await bench.advance(1)
            await bench.advance(15 * minute)
            assert bench.log == [10, "delayed"]
            await bench.advance(24 * minute)  # of 39 minutes 10 were set back
            assert bench.log == [10, "delayed"]
            await bench.advance(minute)
            assert bench.log == [10, "delayed", 30]
            assert (await lanes.check()).problems == ()
        set_to(10 * minute)  # while no worker is there
        async with bench.instance() as lanes:
            await bench.settle()
            assert bench.log == [10, "delayed", 30, 50]

    trio.run(story, clock=stage.clock)


def test_a_heartbeat_lets_run_at_follow_the_clock(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: EPOCH + stage.clock.current_time())

    async def story() -> None:
        store = stage.bench.store()
        store.patience = 2.0
        async with stage.bench.instance(store=store, lease_ttl=3) as lanes:
            await lanes.submit("echo", "planned", run_at=time.time() + HOUR / 2)
            await stage.bench.settle()
            stage.set_clock(HOUR)
            stage.clock.jump(1.1)  # too soon for the slow look of a worker
            for _ in range(500):
                await trio.to_thread.run_sync(time.sleep, 0.01)
                if stage.bench.log:
                    break
            assert stage.bench.log == ["planned"]

    trio.run(story, clock=stage.clock)


def test_a_dead_worker_is_noticed_when_its_lease_is_over_although_the_clock_was_set_back(
    stage: Stage,
) -> None:
    async def story() -> None:
        async with stage.bench.doomed(new_job("again")):
            stage.set_clock(-HOUR)
        store = stage.bench.store()
        store.patience = LEASE / 2
        async with stage.bench.instance(store=store, lease_ttl=LEASE):
            for _ in range(5):  # a lease, which began at the last act before
                await stage.bench.advance(LEASE / 4)
            assert stage.bench.log == ["again"]

    trio.run(story, clock=stage.clock)


@pytest.mark.parametrize("first", FIRST)
def test_a_newcomer_does_not_take_a_step_of_the_clock_for_time_that_has_passed(
    stage: Stage, first: str
) -> None:
    trio.run(newcomers, stage.bench, stage.set_clock, first, clock=stage.clock)


def test_a_newcomer_after_the_death_of_all_workers_knows_how_much_time_has_passed(
    stage: Stage,
) -> None:
    trio.run(all_dead, stage.bench, stage.clock.jump, clock=stage.clock)


@pytest.mark.needs("libfaketime")
async def test_the_real_clock_of_a_server_may_be_set(namespace: str, tmp_path: Path) -> None:
    found = programs()
    assert found is not None
    server = Server(found)
    server.clock = server.folder / "clock"
    server.clock.write_text("+0\n")
    gate = trio.Event()

    async def long(payload: Any) -> None:
        await gate.wait()

    async def echo(payload: Any) -> Any:
        return payload

    try:
        await trio.to_thread.run_sync(server.start)
        store = PostgresStore(server.dsn(), namespace=namespace)
        handlers = {"long": long, "echo": echo}
        async with open_durable_lanes(store, handlers, lease_ttl=30.0) as lanes:
            run = await lanes.submit("long")
            for ahead in (HOUR, 0, -HOUR, 0):
                late = await lanes.submit("echo", delay=HOUR / 2)
                server.clock.write_text(f"{ahead:+}\n")
                with trio.fail_after(60):
                    await (await lanes.submit("echo", delay=0.1)).wait()
                assert (await late.status()).state is DurableState.PARKED
            gate.set()
            await run.wait()
            assert [one.how for one in (await run.status()).history] == ["succeeded"]
    finally:
        server.remove()


async def test_what_was_heard_of_a_clock_that_was_set_is_noted_once(
    server: Server, namespace: str
) -> None:
    """By who looks before its commit, by who learns of it with its commit, and by no other."""
    clock = StoreClock(server.dsn())
    clock.prepare(namespace)
    stores = [PostgresStore(server.dsn(), namespace=namespace) for _ in range(2)]
    opening = Opening(
        names=frozenset(),
        lanes={"main": LaneLimit(1)},
        max_crashes=3,
        hold=False,
        result_ttl=1.0,
        lease_ttl=3600.0,
        worker=False,
    )
    newest = f"SELECT clock, ahead FROM {namespace}.deltas ORDER BY batch DESC LIMIT 1"

    async def write(store: PostgresStore) -> tuple[float, float]:
        await store.do(Enqueue([SubmittedJob(name="a")]), "")
        (found,) = server.run(newest)
        return found

    try:
        async with stores[0].open(opening), stores[1].open(opening):
            for store in (*stores, *stores):
                await write(store)
            for ahead in (HOUR, 0, HOUR):
                server.run(f"UPDATE {TABLE} SET now = {EPOCH + ahead}")
                stores[0]._acts.hint(lock=False)
                for store in (*stores, *stores, *stores):
                    time, noted = await write(store)
                    assert EPOCH <= time < EPOCH + 60
                assert noted == pytest.approx(-ahead, abs=60)
                server.run(f"UPDATE {TABLE} SET now = {EPOCH}")
                for store in (*stores, *stores):
                    time, noted = await write(store)
                    assert EPOCH <= time < EPOCH + 60
    finally:
        clock.close()
