"""Locks and quotas while the lease is lost, the lanes close, or the store is away."""

import math
from typing import Any, TypeVar

import pytest
import trio
import trio.testing

from trio_lanes import RateLimit
from trio_lanes.durable import (
    LockLostError,
    MemoryStore,
    Store,
    StoreUnavailableError,
    open_durable_lanes,
)
from trio_lanes.durable.acts.locks import Acquire, Spend
from trio_lanes.durable.store import Act

T = TypeVar("T")

TOKENS = RateLimit(60, unit="tokens", burst=1)


class Away(MemoryStore):
    """A store whose next calls of a verb get no answer, before the act or after it."""

    def __init__(self) -> None:
        super().__init__()
        self.before: dict[str, int] = {}
        self.after: dict[str, int] = {}
        self.refused = 0
        self.sent = False
        """Whether a call without an answer before the act was sent, and lost on its way."""

    async def do(self, act: Act[T], ticket: str) -> T:
        if self.refused and isinstance(act, Acquire):
            self.refused -= 1
            await trio.lowlevel.checkpoint()
            return None  # type: ignore[return-value]  # the answer without a lease
        if self.before.get(act.name, 0) > 0:
            self.before[act.name] -= 1
            await trio.lowlevel.checkpoint()
            raise self._lost("away", self.sent)
        try:
            return await super().do(act, ticket)
        finally:
            if self.after.get(act.name, 0) > 0:
                self.after[act.name] -= 1
                raise self._lost("the answer was lost", True)

    def _lost(self, what: str, unknown: bool) -> StoreUnavailableError:
        error = StoreUnavailableError(what)
        error.unknown = unknown
        return error


class Slow(MemoryStore):
    """A store whose first answer to a request comes when another incarnation has begun."""

    answers = 0

    async def do(self, act: Act[T], ticket: str) -> T:
        answer = await super().do(act, ticket)
        if isinstance(act, Acquire | Spend):
            if not self.answers:
                self.jump(1000)
                await trio.sleep(60)
            self.answers += 1
        return answer


def lanes_over(store: Store, **options: Any) -> Any:
    return open_durable_lanes(store, {}, quotas={"q": TOKENS}, **options)


async def free(lanes: Any, key: str = "k") -> None:
    """Wait until a lock is free."""
    async with lanes.lock(key):
        pass


async def test_a_lost_lease_cancels_the_body_and_the_lock_goes_to_the_next(
    autojump_clock: trio.testing.MockClock,
) -> None:
    store, log = MemoryStore(), []

    async def hold(lanes: Any) -> None:
        with pytest.raises(LockLostError, match="lost its lease"):
            async with lanes.lock("k"):
                log.append("held")
                try:
                    await trio.sleep_forever()
                finally:
                    log.append("cancelled")

    async with lanes_over(store, lease_ttl=30) as lanes, trio.open_nursery() as nursery:
        nursery.start_soon(hold, lanes)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(free, lanes)  # its request ends with the lease, and is made again
        await trio.testing.wait_all_tasks_blocked()
        store.jump(1000)
    assert log == ["held", "cancelled"]


async def test_a_lock_whose_answer_comes_after_the_lease_is_asked_for_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    store = Slow()
    async with lanes_over(store, lease_ttl=30) as lanes, lanes.lock("k"):
        assert store.answers == 2
        async with lanes_over(store.another(), lease_ttl=30) as others:
            with trio.move_on_after(100):
                await free(others)
                raise AssertionError("two tasks have the lock")


async def test_the_end_of_the_lanes_cancels_the_body_of_a_lock(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with trio.open_nursery() as nursery:
        async with lanes_over(MemoryStore()) as lanes:

            async def hold() -> None:
                with pytest.raises(LockLostError, match="lanes are closed"):
                    async with lanes.lock("k"):
                        await trio.sleep_forever()

            nursery.start_soon(hold)
            await trio.testing.wait_all_tasks_blocked()


async def test_the_first_records_of_a_log_are_read(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_durable_lanes(MemoryStore(), {}) as lanes:
        log = lanes.log("l")
        for number in range(5):
            await log.append(number)
        for limit, found in ((0, []), (2, [1, 2]), (9, [1, 2, 3, 4]), (math.inf, [1, 2, 3, 4])):
            assert [one.data for one in await log.read(1, limit=limit)] == found
        with pytest.raises(ValueError, match="limit"):
            await log.read(limit=-1)


@pytest.mark.parametrize("verb", ["acquire", "spend"])
async def test_a_request_without_an_answer_holds_up_no_other(
    autojump_clock: trio.testing.MockClock, verb: str
) -> None:
    store = Away()
    async with lanes_over(store) as lanes:
        quota = lanes.quota("q")
        await quota.spend(tokens=5)
        for lost in (store.before, store.after):
            lost[verb] = 1
            with pytest.raises(StoreUnavailableError):
                await (free(lanes) if verb == "acquire" else quota.spend(tokens=10**6))
            with trio.fail_after(50):
                await free(lanes)
                await quota.spend(tokens=1)


@pytest.mark.parametrize("lost", ["before", "after"])
async def test_a_charge_without_an_answer_is_given_back_or_never_made(
    autojump_clock: trio.testing.MockClock, lost: str
) -> None:
    store = Away()
    store.sent = True
    async with lanes_over(store) as lanes:
        getattr(store, lost)["spend"] = 1
        with pytest.raises(StoreUnavailableError) as caught:
            await lanes.quota("q").spend(tokens=5)
        assert caught.value.unknown
        await trio.testing.wait_all_tasks_blocked()
        before = trio.current_time()
        await lanes.quota("q").spend(tokens=5)
        assert trio.current_time() == before
        await lanes.quota("q").spend(tokens=1)
        assert trio.current_time() > before


async def test_a_refusal_whose_answer_was_lost_ends_no_lanes(
    autojump_clock: trio.testing.MockClock,
) -> None:
    store = Away()
    store.sent = True
    async with lanes_over(store) as lanes:
        await lanes.quota("q").spend(tokens=5)
        for lost in (store.before, store.after):
            lost["spend"] = 1
            with pytest.raises(StoreUnavailableError):
                await lanes.quota("q").spend(tokens=5, wait=False)
            await trio.testing.wait_all_tasks_blocked()
        await free(lanes)


async def test_a_charge_whose_answer_comes_after_the_lease_is_made_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    nine = RateLimit(9, per=1e6, unit="tokens", algorithm="sliding")
    async with open_durable_lanes(Slow(), {}, quotas={"q": nine}, lease_ttl=30) as lanes:
        await lanes.quota("q").spend(tokens=2)
        assert await lanes.quota("q").left() == {"tokens": 7}


async def test_a_request_of_an_instance_without_a_lease_is_made_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    store = Away()
    async with lanes_over(store) as lanes:
        store.refused = 2
        before = trio.current_time()
        await free(lanes)
        assert trio.current_time() - before == pytest.approx(1)


async def test_a_release_without_an_answer_is_done_later(
    autojump_clock: trio.testing.MockClock,
) -> None:
    store = Away()
    async with lanes_over(store) as lanes:
        store.before["release"] = 3
        await free(lanes)
        with trio.fail_after(50):
            await free(lanes)
        assert store.before["release"] == 0


@pytest.mark.parametrize("unknown", [False, True])
async def test_a_settlement_can_be_repeated_if_it_has_not_happened(
    autojump_clock: trio.testing.MockClock, unknown: bool
) -> None:
    store = Away()
    async with lanes_over(store) as lanes:
        spent = await lanes.quota("q").spend(tokens=30)
        (store.after if unknown else store.before)["settle"] = 1
        with pytest.raises(StoreUnavailableError):
            await spent.settle(tokens=0)
        if unknown:
            with pytest.raises(RuntimeError, match="settled before"):
                await spent.settle(tokens=0)
        else:
            await spent.settle(tokens=0)
        before = trio.current_time()
        await lanes.quota("q").spend(tokens=1)
        assert trio.current_time() == before


async def test_a_body_that_raises_and_a_block_that_is_cancelled_free_the_lock(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with lanes_over(MemoryStore()) as lanes:
        with pytest.raises(KeyError):
            async with lanes.lock("k"):
                raise KeyError
        with trio.move_on_after(1):
            async with lanes.lock("k", shared=True):
                await trio.sleep_forever()
        with trio.CancelScope() as scope:
            scope.cancel()
            await free(lanes)
        assert scope.cancelled_caught
        with trio.fail_after(1):
            await free(lanes)


@pytest.mark.parametrize("limits", [(), (3,), 3])
def test_a_quota_needs_limits(limits: Any) -> None:
    with pytest.raises(TypeError):
        open_durable_lanes(MemoryStore(), {}, quotas={"q": limits})
