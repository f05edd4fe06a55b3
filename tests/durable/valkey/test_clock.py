"""The clock of the server is set, back or ahead: what waits for a time waits no longer, no less."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from tests.durable.conformance.bench import LEASE, Bench, new_job
from tests.durable.newcomers import FIRST, all_dead, newcomers
from trio_lanes import LaneConfig, RateLimit
from trio_lanes.durable import Retry, ValkeyStore, current_job

from .clock import BOUNDED, EPOCH, StoreClock
from .place import Place
from .server import Server

pytestmark = pytest.mark.real_processes
PLACE = Place()
HOUR = 3600.0
MINUTE = 60.0
TWO = RateLimit(2, per=1.0, algorithm="sliding")


@pytest.fixture
def clock(server: Server) -> Iterator[StoreClock]:
    PLACE.server = server
    yield PLACE.clock()
    PLACE.close()


@pytest.fixture
def bench(clock: StoreClock, namespace: str, tmp_path: Path) -> Bench:
    return bench_of(PLACE, tmp_path / namespace, clock)


def bench_of(place: Place, folder: Path, clock: StoreClock) -> Bench:
    """Return a bench on a server of which the clock can be set."""

    def store(folder: Path) -> ValkeyStore:
        made = place.store(folder)
        made._script = BOUNDED
        return made

    return Bench(store, folder, clock, 0.01)  # type: ignore[arg-type]


@pytest.mark.parametrize("times", [(-HOUR,), (HOUR,), (HOUR, 0), (-HOUR, 0), (30, -30)])
def test_delays_retries_rates_quotas_pauses_and_leases_are_as_long_when_the_clock_is_set(
    bench: Bench, clock: StoreClock, times: tuple[float, ...]
) -> None:
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
        store = bench.store()
        store.patience = 24
        async with bench.instance(
            store=store,
            lanes=limits,
            quotas={"q": TWO},
            handlers={"fail_once": fail_once},
            lease_ttl=30,
        ) as lanes:
            for time in times:
                bench.log.clear()
                long = await lanes.submit("gate", f"long {time}")
                await lanes.submit("echo", "before", delay=5)
                await lanes.submit("fail_once")
                await lanes.pause_for("session:s", 5)
                await lanes.submit("echo", "paused", session="s")
                for _ in range(3):
                    await lanes.submit("echo", "rated", lane="rated")
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(spend, lanes)
                    await bench.settle()
                    clock.set_clock(time)
                    await lanes.submit("echo", "after", delay=5)
                    await bench.advance(0.5)
                    now = [f"long {time} begins", *["rated"] * 2, *["spent"] * 2]
                    assert sorted(bench.log) == sorted(now)
                    await bench.advance(0.6)
                    assert sorted(bench.log) == sorted([*now, "rated", "spent"])
                await bench.advance(4.5)
                later = ["before", "after", "retried", "paused"]
                assert sorted(bench.log) == sorted([*now, "rated", "spent", *later])
                await bench.advance(15)
                bench.gate(f"long {time}").set()
                await long.wait()
                assert [run.how for run in (await long.status()).history] == ["succeeded"]
            assert (await lanes.check()).problems == ()

    trio.run(story, clock=clock)


def test_a_dead_worker_is_noticed_when_its_lease_is_over_although_the_clock_was_set_back(
    bench: Bench, clock: StoreClock
) -> None:
    async def story() -> None:
        async with bench.doomed(new_job("again")):
            clock.set_clock(-HOUR)
        store = bench.store()
        store.patience = LEASE / 2
        async with bench.instance(store=store, lease_ttl=LEASE):
            for _ in range(5):  # a lease, which began at the last act before
                await bench.advance(LEASE / 4)
            assert bench.log == ["again"]

    trio.run(story, clock=clock)


def test_an_instance_that_calls_seldom_does_not_hold_the_time_of_the_others_back(
    bench: Bench, clock: StoreClock
) -> None:
    async def story() -> None:
        store = bench.store()
        store.patience = 24
        async with (
            bench.instance(store=store, lease_ttl=30) as lanes,
            bench.instance(worker=False) as seldom,
        ):
            await lanes.submit("echo", "late", delay=35)
            for _ in range(3):
                await bench.advance(10)  # with calls of the worker alone
            clock.jump(4)
            await seldom.pause_for("session:unused", 0)
            await trio.testing.wait_all_tasks_blocked()
            assert bench.log == []
            clock.jump(1)
            await seldom.pause_for("session:unused", 0)
            await bench.settle()
            assert bench.log == ["late"]

    trio.run(story, clock=clock)


@pytest.mark.parametrize("first", FIRST)
def test_a_newcomer_does_not_take_a_step_of_the_clock_for_time_that_has_passed(
    bench: Bench, clock: StoreClock, first: str
) -> None:
    trio.run(newcomers, bench, clock.set_clock, first, clock=clock)


def test_a_newcomer_after_the_death_of_all_workers_knows_how_much_time_has_passed(
    bench: Bench, clock: StoreClock
) -> None:
    trio.run(all_dead, bench, clock.jump, clock=clock)


def test_run_at_follows_the_clock_of_the_server(
    bench: Bench, clock: StoreClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_by = 0.0

    def wall() -> float:
        return EPOCH + clock.current_time() + set_by

    def set_to(ahead: float) -> None:
        nonlocal set_by
        set_by = ahead
        clock.set_clock(ahead)

    async def story() -> None:
        async with bench.instance() as lanes:
            for minutes in (10, 30, 50):
                await lanes.submit("echo", minutes, run_at=wall() + minutes * MINUTE)
            await lanes.submit("echo", "delayed", delay=15 * MINUTE)
            set_to(10 * MINUTE)
            await bench.advance(1)
            assert bench.log == [10]
            set_to(-10 * MINUTE)
            await bench.advance(1)
            await bench.advance(15 * MINUTE)
            assert bench.log == [10, "delayed"]
            await bench.advance(24 * MINUTE)  # of 39 minutes 10 were set back
            assert bench.log == [10, "delayed"]
            await bench.advance(MINUTE)
            assert bench.log == [10, "delayed", 30]
            assert (await lanes.check()).problems == ()
        set_to(10 * MINUTE)  # while no worker is there
        async with bench.instance() as lanes:
            await bench.settle()
            assert bench.log == [10, "delayed", 30, 50]

    monkeypatch.setattr("time.time", wall)
    trio.run(story, clock=clock)
