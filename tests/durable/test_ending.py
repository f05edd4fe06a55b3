"""Closing, draining and resetting one instance, and what signals do to it."""

import signal
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock, assert_checkpoints, wait_all_tasks_blocked

from trio_lanes import LanesClosedError, shutdown_on_signals
from trio_lanes.durable import (
    DurableState,
    MemoryStore,
    current_job,
    open_durable_lanes,
)
from trio_lanes.durable._rules.tables import INSTANCES


async def sleeps(payload: Any) -> Any:
    await trio.sleep(payload)
    return payload


async def deaf(payload: Any) -> str:
    """Does not hear of its cancellation for that long."""
    with trio.CancelScope(shield=True):
        await trio.sleep(payload)
    return "heard nothing"


HANDLERS: Mapping[str, Any] = {"sleeps": sleeps, "deaf": deaf}


async def test_close_refuses_new_work_and_claims_no_more(autojump_clock: MockClock) -> None:
    async with open_durable_lanes(MemoryStore(), HANDLERS, {"main": 1}) as lanes:
        running = await lanes.submit("sleeps", 5)
        waiting = await lanes.submit("sleeps", 5)
        await wait_all_tasks_blocked()
        lanes.close("going", retry_after=3)
        lanes.close("again")
        assert "closed" in repr(lanes)
        with pytest.raises(LanesClosedError, match="going; retry after 3 s"):
            await lanes.submit("sleeps", 5)
        with assert_checkpoints():
            await lanes.wait_closing()
        await lanes.wait_idle()
        assert trio.current_time() == 5
        assert (await running.status()).state is DurableState.SUCCEEDED
        assert (await waiting.status()).state is DurableState.WAITING


async def test_a_running_handler_may_still_submit_when_lanes_are_closed(
    autojump_clock: MockClock,
) -> None:
    async def submits(payload: Any) -> int:
        await trio.sleep(1)
        return (await lanes.submit("sleeps", 0)).id

    handlers = {"submits": submits, "sleeps": sleeps}
    async with open_durable_lanes(MemoryStore(), handlers) as lanes:
        job = await lanes.submit("submits")
        await wait_all_tasks_blocked()
        lanes.close()
        assert isinstance(await job.wait(), int)


async def test_who_only_asks_has_nothing_to_end() -> None:
    async with open_durable_lanes(MemoryStore(), {}, worker=False) as lanes:
        with assert_checkpoints():
            await lanes.wait_idle()
        assert lanes.reset() == 0
        lanes.close("enough")
        with pytest.raises(LanesClosedError, match="enough"):
            await lanes.submit("sleeps", 5)
        assert (await lanes.drain()).finished == 0


async def test_reset_gives_up_bodies_that_do_not_end(autojump_clock: MockClock) -> None:
    fences: list[int] = []

    async def first_is_deaf(payload: Any) -> str:
        run = current_job()
        assert run is not None
        fences.append(run.fence)
        return await deaf(100 if len(fences) == 1 else 1)

    async with open_durable_lanes(MemoryStore(), {"work": first_is_deaf}, {"main": 1}) as lanes:
        job = await lanes.submit("work", session="s")
        await trio.sleep(1)
        assert lanes.reset() == 1
        assert await job.wait() == "heard nothing"
        assert trio.current_time() == 2
        status = await job.status()
        assert (status.attempt, status.crashes) == (1, 0)
        assert fences == sorted(set(fences))
        assert len(fences) == 2
    assert trio.current_time() == 100  # the body was waited for


async def test_a_drain_gives_up_jobs_that_outlive_their_cancellation(
    autojump_clock: MockClock,
) -> None:
    async with open_durable_lanes(MemoryStore(), HANDLERS, {"main": 3}) as lanes:
        await lanes.submit("sleeps", 2)
        await lanes.submit("sleeps", 50)
        job = await lanes.submit("deaf", 50)
        await wait_all_tasks_blocked()
        report = await lanes.drain(grace=5, cancel_grace=3)
        assert (report.finished, report.cancelled, report.abandoned) == (1, 1, 1)
        assert trio.current_time() == 8
        status = await job.status()
        assert (status.state, status.attempt, status.crashes) == (DurableState.WAITING, 0, 0)


async def test_a_lease_that_is_lost_in_a_drain_does_not_let_it_claim(
    autojump_clock: MockClock,
) -> None:
    store = MemoryStore()
    async with open_durable_lanes(store, HANDLERS, {"main": 1}, lease_ttl=9) as lanes:
        first = await lanes.submit("sleeps", 5)
        await wait_all_tasks_blocked()
        lanes.close()
        (instance,) = await lanes.instances()
        store._tables.put(INSTANCES, instance.id, None)
        await trio.sleep(60)
        assert (await lanes.instances())[0].id != instance.id
        assert (await first.status()).state is DurableState.WAITING


async def test_a_signal_drains_and_a_second_one_cancels(autojump_clock: MockClock) -> None:
    async with open_durable_lanes(MemoryStore(), HANDLERS, {"main": 2}) as lanes:
        quick = await lanes.submit("sleeps", 3)
        slow = await lanes.submit("sleeps", 100)
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(shutdown_on_signals, lanes, grace=30))
            await trio.sleep(1)
            signal.raise_signal(signal.SIGTERM)
            await trio.sleep(9)
            assert await quick.wait() == 3
            signal.raise_signal(signal.SIGINT)
        assert trio.current_time() == 10
        status = await slow.status()
        assert (status.state, status.attempt, status.crashes) == (DurableState.WAITING, 0, 0)


async def test_a_reload_sets_the_limits_of_the_store(autojump_clock: MockClock) -> None:
    async with open_durable_lanes(MemoryStore(), HANDLERS, {"main": 2}) as lanes:
        async with trio.open_nursery() as nursery:
            await nursery.start(
                partial(
                    shutdown_on_signals,
                    lanes,
                    grace=1,
                    reload_signal=signal.SIGHUP,
                    reload=lambda: {"main": 7},
                )
            )
            signal.raise_signal(signal.SIGHUP)
            await trio.sleep(1)
            assert (await lanes.statistics()).lanes["main"].concurrency == 7
            lanes.close()


@pytest.mark.parametrize("steps", range(20))
async def test_opening_can_be_cancelled_at_every_moment(
    steps: int, autojump_clock: MockClock
) -> None:
    async def cancel_after(scope: trio.CancelScope) -> None:
        for _ in range(steps):
            await trio.lowlevel.checkpoint()
        scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(cancel_after, nursery.cancel_scope)
        async with open_durable_lanes(MemoryStore(), HANDLERS):
            await trio.sleep_forever()


@pytest.mark.parametrize("how", ["left", "raises", "cancelled"])
async def test_a_run_whose_slot_does_not_come_back_holds_up_no_end(
    how: str, autojump_clock: MockClock
) -> None:
    lent = trio.Event()

    async def lends(payload: Any) -> None:
        run = current_job()
        assert run is not None
        async with run.yield_slot():
            await lent.wait()
        await trio.sleep_forever()

    store = MemoryStore()
    with trio.CancelScope() as scope, suppress(*[ExceptionGroup] if how == "raises" else []):
        async with open_durable_lanes(store, {"lends": lends}, {"main": 1}, grace=5) as lanes:
            job = await lanes.submit("lends")
            await wait_all_tasks_blocked()
            await lanes.configure({"main": 0})
            lent.set()
            await wait_all_tasks_blocked()
            if how == "raises":
                raise ValueError
            if how == "cancelled":
                scope.cancel()
                await trio.lowlevel.checkpoint()
    assert trio.current_time() == (5 if how == "left" else 0)
    async with open_durable_lanes(store.another(), {}, worker=False) as lanes:
        status = await lanes.job(job.id).status()
        assert (status.state, status.crashes) == (DurableState.WAITING, 0)
