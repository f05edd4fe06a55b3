"""A store that takes steps ahead is asked for the next before it has answered the present one."""

from __future__ import annotations

import random
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_lanes.durable import (
    MemoryStore,
    StoreError,
    StoreUnavailableError,
    open_durable_lanes,
)
from trio_lanes.durable._runs.worker import MAX_ENDS_AHEAD

AGES = 10.0
"""Seconds of a lease; a beat is due in a third of them."""


class Asked:
    """One step that the store was asked for."""

    def __init__(self, number: int, ended: list[int], room: int) -> None:
        self.number, self.ended, self.room = number, ended, room
        self.ends = len(ended)
        self.goes_on = trio.Event()  # when the test lets the store do it
        self.over = trio.Event()
        self.fault = ""
        self.failed = False


class Ahead:
    """A hold on a store, which does the steps one after the other, each when the test lets it."""

    steps_ahead = True

    def __init__(self) -> None:
        self._inner = MemoryStore()
        self.asked: list[Asked] = []
        self.under_way: list[Asked] = []
        self.cut = False
        self.waits = False  # whether a step waits for the test

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def plan(self, asked: Asked) -> tuple[float, str]:
        """Return for how long a step is on its way, and what happens to it."""
        return 0.0, asked.fault

    async def step(self, number: int, finished: Any, room: int) -> Any:
        me = self._inner.instance
        before = self.under_way[-1] if self.under_way else None
        asked = Asked(number, [one.id for one in finished], room)
        self.asked.append(asked)
        self.under_way.append(asked)
        assert len(self.under_way) <= 2
        try:
            with trio.CancelScope(shield=True):
                if before is not None:
                    await before.over.wait()
                    if before.failed:
                        raise StoreUnavailableError("the step before has failed")
                if self.waits:
                    await asked.goes_on.wait()
                seconds, fault = self.plan(asked)
                await trio.sleep(seconds)
                if fault == "refused":
                    raise StoreUnavailableError("the store is away")
                if fault == "broken":
                    raise StoreError("the store is gone")
                answer = await self._inner._transact(
                    lambda engine: engine.step(me, number, finished, room)
                )
                await trio.sleep(seconds)
                if fault == "lost":
                    error = StoreUnavailableError("the answer was lost")
                    error.unknown = True
                    raise error
                return answer
        except StoreError:
            asked.failed = True
            raise
        finally:
            self.under_way.remove(asked)
            asked.over.set()

    async def beat(self) -> bool:
        if self.cut:
            await trio.lowlevel.checkpoint()
            raise StoreUnavailableError("the store is away")
        return await self._inner.beat()


class Held:
    """A handler whose runs end all at once."""

    def __init__(self) -> None:
        self.gate = trio.Event()

    async def __call__(self, payload: Any) -> Any:
        await self.gate.wait()
        return payload


async def end_all_at_once(lanes: Any, store: Ahead, held: Held, number: int) -> list[Any]:
    """Have jobs run and end, while the steps that report their ends wait for the test."""
    jobs = [await lanes.submit("held", n, session=f"s{n}") for n in range(number)]
    await wait_all_tasks_blocked()
    store.waits = True
    held.gate.set()
    await wait_all_tasks_blocked()
    assert len(store.under_way) == 2
    return jobs


async def test_the_next_step_is_asked_while_one_is_under_way_and_never_a_third(
    autojump_clock: MockClock,
) -> None:
    store: Any = Ahead()
    held = Held()
    number = 3 * MAX_ENDS_AHEAD
    async with open_durable_lanes(store, {"held": held}, {"main": 500}, capacity=500) as lanes:
        jobs = await end_all_at_once(lanes, store, held, number)
        first, second = store.under_way
        assert (first.ends, second.ends) == (MAX_ENDS_AHEAD, MAX_ENDS_AHEAD)
        assert second.number == first.number + 1
        first.goes_on.set()
        await wait_all_tasks_blocked()
        assert store.under_way[0] is second
        assert store.under_way[1].ends == number - 2 * MAX_ENDS_AHEAD
        store.waits = False
        for asked in store.under_way:
            asked.goes_on.set()
        assert [await job.wait() for job in jobs] == list(range(number))
    numbers = [asked.number for asked in store.asked]
    assert numbers == list(range(1, len(numbers) + 1))


async def test_two_steps_under_way_claim_no_more_jobs_than_the_instance_may_run(
    autojump_clock: MockClock,
) -> None:
    running = most = 0

    async def counted(payload: float) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await trio.sleep(payload)
        running -= 1

    class Slow(Ahead):
        def plan(self, asked: Asked) -> tuple[float, str]:
            return 0.3, ""

    store: Any = Slow()
    async with open_durable_lanes(store, {"counted": counted}, {"main": 99}, capacity=7) as lanes:
        jobs = [await lanes.submit("counted", n % 5 / 4, session=f"s{n % 20}") for n in range(60)]
        for job in jobs:
            await job.wait()
    assert most == 7


@pytest.mark.parametrize("fault", ["refused", "lost"])
async def test_a_step_that_has_no_answer_takes_the_next_with_it_and_nothing_is_lost_or_done_twice(
    fault: str, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    store: Any = Ahead()
    held = Held()
    async with open_durable_lanes(store, {"held": held}, {"main": 500}, capacity=500) as lanes:
        jobs = await end_all_at_once(lanes, store, held, 2 * MAX_ENDS_AHEAD)
        first, second = store.under_way
        first.fault = fault
        store.waits = False
        first.goes_on.set()
        assert [await job.wait() for job in jobs] == list(range(2 * MAX_ENDS_AHEAD))
        assert second.failed
        after = store.asked[store.asked.index(second) + 1]
        assert (after.number == first.number) == (fault == "lost")
        assert (await lanes.check()).problems == ()
    assert caplog.text.count("the store is not available") == 1
    assert "was not recorded" not in caplog.text


@pytest.mark.parametrize("fault", ["refused", "lost"])
async def test_a_step_ahead_that_has_no_answer_is_asked_again_after_the_one_before(
    fault: str, autojump_clock: MockClock
) -> None:
    store: Any = Ahead()
    held = Held()
    async with open_durable_lanes(store, {"held": held}, {"main": 500}, capacity=500) as lanes:
        jobs = await end_all_at_once(lanes, store, held, 2 * MAX_ENDS_AHEAD)
        first, second = store.under_way
        second.fault = fault
        store.waits = False
        first.goes_on.set()
        second.goes_on.set()
        assert [await job.wait() for job in jobs] == list(range(2 * MAX_ENDS_AHEAD))
        assert (await lanes.check()).problems == ()


@pytest.mark.parametrize("which", [0, 1])
async def test_a_store_that_is_gone_ends_the_lanes_whichever_step_finds_it(
    which: int, autojump_clock: MockClock
) -> None:
    store: Any = Ahead()
    held = Held()
    with pytest.RaisesGroup(pytest.RaisesExc(StoreError, match="is gone"), flatten_subgroups=True):
        async with open_durable_lanes(store, {"held": held}, {"main": 500}, capacity=500) as lanes:
            await end_all_at_once(lanes, store, held, 2 * MAX_ENDS_AHEAD)
            store.under_way[which].fault = "broken"
            store.waits = False
            for asked in store.under_way:
                asked.goes_on.set()
            await trio.sleep_forever()


@pytest.mark.parametrize("done", [True, False])
async def test_both_steps_are_dropped_with_their_incarnation_and_their_ends_are_reported_once(
    done: bool, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    store: Any = Ahead()
    held = Held()
    async with open_durable_lanes(
        store, {"held": held}, {"main": 500}, capacity=500, lease_ttl=AGES
    ) as lanes:
        jobs = await end_all_at_once(lanes, store, held, 2 * MAX_ENDS_AHEAD)
        first, second = store.under_way
        if done:  # the store has done the first before the lease is over, and its answer is late
            first.fault = "lost"
        store.cut = True
        await trio.sleep(AGES)
        store.cut = False
        await trio.sleep(AGES)  # another incarnation has begun
        store.waits = False
        first.goes_on.set()
        second.goes_on.set()
        assert [await job.wait() for job in jobs] == list(range(2 * MAX_ENDS_AHEAD))
        assert all([(await job.status()).crashes == 0 for job in jobs])
        assert (await lanes.check()).problems == ()
        later = store.asked[store.asked.index(second) + 1 :]
        assert [id for asked in later for id in asked.ended] == first.ended + second.ended
    assert "was not recorded" not in caplog.text


async def test_no_step_is_asked_ahead_of_one_that_is_asked_again(
    autojump_clock: MockClock,
) -> None:
    store: Any = Ahead()
    held = Held()
    async with open_durable_lanes(store, {"held": held}, {"main": 500}, capacity=500) as lanes:
        jobs = await end_all_at_once(lanes, store, held, 3 * MAX_ENDS_AHEAD)
        first, _ = store.under_way
        first.fault = "lost"
        first.goes_on.set()
        await trio.sleep(1)
        (again,) = store.under_way
        assert (again.number, again.ends) == (first.number, first.ends)
        store.waits = False
        again.goes_on.set()
        assert [await job.wait() for job in jobs] == list(range(3 * MAX_ENDS_AHEAD))


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("loses_leases", [False, True])
async def test_whatever_happens_to_steps_all_jobs_end_in_the_order_of_their_sessions(
    seed: int, loses_leases: bool, autojump_clock: MockClock
) -> None:
    chance = random.Random(seed)
    ran: list[tuple[int, int]] = []

    async def note(payload: list[int]) -> list[int]:
        await trio.sleep(chance.choice([0.0, 0.0, 0.1, 0.5]))
        ran.append((payload[0], payload[1]))
        return payload

    class Unreliable(Ahead):
        def plan(self, asked: Asked) -> tuple[float, str]:
            fault = chance.choice(["refused", "lost", *[""] * 8])
            return chance.choice([0.0, 0.01, 0.2]), fault

    store: Any = Unreliable()
    async with open_durable_lanes(
        store, {"note": note}, {"main": 30}, capacity=30, lease_ttl=AGES
    ) as lanes:
        async with trio.open_nursery() as nursery:

            async def cut() -> None:
                while loses_leases:
                    store.cut = not store.cut
                    await trio.sleep(chance.uniform(5, 15))

            nursery.start_soon(cut)
            jobs = {
                (session, n): await lanes.submit("note", [session, n], session=str(session))
                for n in range(8)
                for session in range(12)
            }
            for place, job in jobs.items():
                assert await job.wait() == list(place)
                assert (await job.status()).crashes == 0
            nursery.cancel_scope.cancel()
        store.cut = False
        assert (await lanes.check()).problems == ()
    for session in range(12):
        order = [n for its, n in ran if its == session]
        assert order == sorted(order)
        assert loses_leases or order == list(range(8))
