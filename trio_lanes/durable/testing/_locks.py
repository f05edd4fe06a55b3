"""Tests of locks and quotas over instances."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import attrs
import trio

from ... import RateLimit
from .. import DurableLanes
from ..acts.inspection import AllStatistics
from ..acts.locks import Acquire, Release, ResetQuota, Settle, Spend
from ..acts.logs import DropLog, LogPage, WriteLog
from ..store import LISTED, REQUESTS_LISTED, STEP_BYTES
from ._bench import Bench, opening, ticket

TOKENS = RateLimit(100, per=100.0, burst=1, unit="tokens")
SLIDING = RateLimit(2, per=10.0, algorithm="sliding")


async def hold(
    bench: Bench,
    lanes: DurableLanes,
    name: str,
    *,
    shared: bool = False,
    task_status: trio.TaskStatus[trio.CancelScope] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Hold the lock of the tests until the test opens the gate of a name."""
    with trio.CancelScope() as scope:
        task_status.started(scope)
        async with lanes.lock("k", shared=shared) as held:
            assert (held.key, held.shared) == ("k", shared)
            bench.log.append(f"{name} begins")
            bench.fences.append(held.fence)
            await bench.gate(name).wait()
        bench.log.append(f"{name} ends")


async def spend(
    bench: Bench,
    lanes: DurableLanes,
    *,
    task_status: trio.TaskStatus[trio.CancelScope] = trio.TASK_STATUS_IGNORED,
    **amounts: int,
) -> None:
    """Spend from the quota of the tests, and log how much."""
    with trio.CancelScope() as scope:
        task_status.started(scope)
        await lanes.quota("q").spend(**amounts)
        bench.log += amounts.values()


class LockStories(Bench):
    """Tests of locks and quotas over instances."""

    async def test_tasks_have_a_lock_one_after_the_other_in_their_order(self) -> None:
        async with self.instance() as lanes, trio.open_nursery() as nursery:
            for name in ("a", "b", "c"):
                nursery.start_soon(hold, self, lanes, name)
                await self.settle()
            assert self.log == ["a begins"]
            async with lanes.lock("another"):
                pass
            for name in ("a", "b", "c"):
                await self.opened(name)
            assert self.log == [f"{name} {what}" for name in "abc" for what in ("begins", "ends")]
            assert self.fences == sorted(set(self.fences))
            assert (await lanes.check()).problems == ()

    async def test_shared_holders_are_together_and_nothing_overtakes(self) -> None:
        async with self.instance() as lanes, trio.open_nursery() as nursery:
            for name, shared in (("a", True), ("b", True), ("c", False), ("d", True), ("e", True)):
                nursery.start_soon(
                    lambda *one: hold(self, lanes, one[0], shared=one[1]), name, shared
                )
                await self.settle()
            assert self.begun() == ["a", "b"]
            await self.opened("a")
            assert self.begun() == ["a", "b"]
            await self.opened("b")
            assert self.begun() == ["a", "b", "c"]
            await self.opened("c")
            assert sorted(self.begun()) == ["a", "b", "c", "d", "e"]
            self.open("d", "e")

    async def test_who_is_cancelled_gives_the_lock_or_the_place_to_the_next(self) -> None:
        async with self.instance() as lanes, trio.open_nursery() as nursery:
            scopes = []
            for name in ("a", "b", "c"):
                scopes.append(await nursery.start(hold, self, lanes, name))
                await self.settle()
            scopes[1].cancel()
            await self.settle()
            assert self.begun() == ["a"]
            scopes[0].cancel()
            await self.settle()
            assert self.begun() == ["a", "c"]
            with self.raises(ValueError):
                async with lanes.lock("other"):
                    await self.bad("in the block")
            async with lanes.lock("other"):
                self.gate("c").set()

    async def test_a_lock_taken_twice_by_a_task_and_bad_arguments_are_refused(self) -> None:
        quotas = {"q": [SLIDING, TOKENS]}
        async with self.instance(quotas=quotas) as lanes, self.instance(worker=False) as asking:
            async with lanes.lock("k"):
                for shared in (False, True):
                    with self.raises(RuntimeError):
                        lanes.lock("k", shared=shared)
                again = lanes.lock("l")
                async with lanes.lock("l"):
                    with self.raises(RuntimeError):
                        await again.__aenter__()
            async with lanes.lock("k"):
                pass
            for bad, error in ((3, TypeError), ("", ValueError)):
                with self.raises(error):
                    lanes.lock(bad)  # type: ignore[arg-type]
            with self.raises(TypeError):
                lanes.lock("k", shared=1)  # type: ignore[arg-type]
            with self.raises(RuntimeError):
                asking.lock("k")
            with self.raises(RuntimeError):
                asking.quota("q")
            with self.raises(LookupError):
                lanes.quota("none")
            quota = lanes.quota("q")
            for amounts, error in (
                ({"words": 1}, ValueError),
                ({"tokens": -1}, ValueError),
                ({"tokens": 10**13}, ValueError),
                ({"tokens": 1.5}, ValueError),
                ({"tokens": "1"}, TypeError),
            ):
                with self.raises(error):
                    await quota.spend(**amounts)
            spent = await quota.spend(tokens=5)
            assert spent.costs == {"requests": 1, "tokens": 5}
            with self.raises(ValueError):
                await spent.settle(words=1)
            await spent.settle(tokens=5)
            with self.raises(RuntimeError):
                await spent.settle(tokens=5)
            assert "tokens" in repr(quota)
            assert "5 tokens" in repr(spent)

    async def test_a_lock_goes_over_instances_and_is_freed_with_its_lease(self) -> None:
        dead = self.played()
        if not dead.leased:
            return  # it has one instance
        async with dead.store.open(opening()):
            await dead.join()
            locked: Any = await dead.twice(Acquire("k", False))
            assert locked[1] > 0
            behind: Any = await dead.do(Acquire("k", False))
            assert behind[1] is None
            async with (
                self.instance() as lanes,
                self.instance() as others,
                trio.open_nursery() as nursery,
            ):
                nursery.start_soon(hold, self, lanes, "a")
                await self.settle()
                nursery.start_soon(hold, self, others, "b")
                await self.settle()
                assert self.begun() == []
                await self.lease_over()
                await reaped(self, lanes, lambda: self.begun() == ["a"])
                self.gate("a").set()
                await reaped(self, lanes, lambda: self.begun() == ["a", "b"])
                self.gate("b").set()
                assert locked[1] < self.fences[0] < self.fences[1]
            assert await dead.served(behind[0]) is None
            assert await dead.do(Acquire("k", False)) is None
            assert await dead.do(Spend("q", [SLIDING], {"requests": 1})) is None
            await dead.do(Release(behind[0], True))

    async def test_amounts_are_taken_in_order_as_the_limits_admit_them(self) -> None:
        async def spend(name: str, **amounts: int) -> None:
            await lanes.quota("q").spend(**amounts)
            self.log.append(name)

        quotas = {"q": [SLIDING, TOKENS]}
        async with self.instance(quotas=quotas) as lanes, trio.open_nursery() as nursery:
            for name, tokens in (("a", 5), ("b", 3), ("c", 0), ("d", 200)):
                nursery.start_soon(partial(spend, name, tokens=tokens))
                await self.settle()
            assert self.log == ["a"]
            await self.advance(4.0)
            assert self.log == ["a"]
            await self.advance(2.0)
            assert self.log == ["a", "b"]  # after 5 s for 5 tokens
            await self.advance(3.0)
            assert self.log == ["a", "b"]
            await self.advance(2.0)
            assert self.log == ["a", "b", "c"]  # the third request after 10 s
            await self.advance(3.0)
            assert self.log == ["a", "b", "c"]
            await self.advance(2.0)
            assert self.log == ["a", "b", "c", "d"]  # above the limit, which is free

    async def test_amounts_that_have_left_the_window_hold_up_no_amount(self) -> None:
        quotas = {"q": RateLimit(10, per=3.0, unit="tokens", algorithm="sliding")}
        async with self.instance(quotas=quotas) as lanes, trio.open_nursery() as nursery:
            await spend(self, lanes, tokens=2)
            await self.advance(0.1)
            await spend(self, lanes, tokens=3)
            await self.advance(1.9)
            await spend(self, lanes, tokens=1)
            await self.advance(1.2)
            # the first two have left, and the store need not keep them
            await spend(self, lanes, tokens=1)
            nursery.start_soon(partial(spend, self, lanes, tokens=8))
            await self.settle()
            assert self.log == [2, 3, 1, 1, 8]

    async def test_what_was_not_used_is_given_back_and_what_was_used_beyond_is_taken(self) -> None:
        async with self.instance(quotas={"q": TOKENS}) as lanes, trio.open_nursery() as nursery:
            first = await lanes.quota("q").spend(tokens=100)
            nursery.start_soon(partial(spend, self, lanes, tokens=40))
            await self.settle()
            assert self.log == []
            await first.settle(tokens=10)
            await self.advance(9.0)
            assert self.log == []
            await self.advance(2.0)
            assert self.log == [40]
            second = await lanes.quota("q").spend(tokens=0)
            await second.settle(tokens=50)
            nursery.start_soon(partial(spend, self, lanes, tokens=10))
            await self.advance(85.0)
            assert self.log == [40]
            await self.advance(6.0)
            assert self.log == [40, 10]

    async def test_what_would_have_run_over_is_not_given_back(self) -> None:
        quotas = {"q": RateLimit(11, per=10.0, burst=10)}  # one in 5 s
        async with self.instance(quotas=quotas) as lanes, trio.open_nursery() as nursery:
            first = await lanes.quota("q").spend(requests=10)
            await self.advance(46.0)
            await spend(self, lanes, requests=9)  # of the first, 0.8 is still in use
            await first.settle(requests=0)
            nursery.start_soon(partial(spend, self, lanes, requests=8))
            await self.advance(33.0)
            assert self.log == [9]
            await self.advance(3.0)
            assert self.log == [9, 8]

    async def test_no_more_is_given_back_than_was_in_use_ever_since(self) -> None:
        quotas = {"q": RateLimit(29, per=10.0, burst=20)}  # one a second
        async with self.instance(quotas=quotas) as lanes, trio.open_nursery() as nursery:
            first = await lanes.quota("q").spend(requests=10)
            await self.advance(2.0)
            await spend(self, lanes, requests=1)  # on top of 8
            await self.advance(6.0)
            await spend(self, lanes, requests=1)  # on top of 3, which are all that is given back
            await first.settle(requests=0)
            nursery.start_soon(partial(spend, self, lanes, requests=20))
            await self.advance(0.5)
            assert self.log == [1, 1]
            await self.advance(1.0)
            assert self.log == [1, 1, 20]

    async def test_who_is_cancelled_takes_nothing_and_the_next_goes_on(self) -> None:
        async with self.instance(quotas={"q": TOKENS}) as lanes, trio.open_nursery() as nursery:
            await nursery.start(partial(spend, self, lanes, tokens=5))
            giant = await nursery.start(partial(spend, self, lanes, tokens=1_000_000))
            await self.settle()
            await nursery.start(partial(spend, self, lanes, tokens=0))
            await self.settle()
            assert self.log == [5]
            giant.cancel()
            await self.settle()
            assert self.log == [5, 0]

    async def test_what_was_charged_and_not_used_is_given_back_once(self) -> None:
        for limit in (SLIDING, RateLimit(4, per=10.0, burst=2)):
            name = limit.algorithm
            async with self.playing() as store:
                spend: Any = partial(store.do, Spend(name, [limit], {"requests": 1}))
                first, second = await spend(ticket()), await spend(ticket())
                assert first[0] == second[0] == 0
                waiting = await spend(ticket())
                assert waiting[1] is None
                await store.twice(Settle(name, [limit], first[1], {"requests": -1}))
                assert await store.served(waiting[0]) is not None
                await store.do(Release(waiting[0], False))
                again = await spend(ticket())
                assert again[0] == 0
                # a time at which nothing was taken changes nothing
                await store.do(Settle(name, [limit], -1.0, {"requests": -1}))
                last = await spend(ticket())
                assert last[1] is None
                await store.do(Release(last[0], False))
                await store.do(Release(last[0], False))

    async def test_a_request_is_served_in_time_though_another_call_served_the_first(self) -> None:
        store, limits = self.played(), [RateLimit(1, per=2.0, algorithm="sliding")]

        async def wait(request: int) -> None:
            assert await store.served(request) is not None
            self.log.append("served")

        longer = attrs.evolve(opening(), lease_ttl=100.0)
        async with store.open(longer), self.instance(worker=False):
            await store.join()
            spend: Any = partial(store.do, Spend("q", limits, {"requests": 1}))
            assert (await spend(ticket()))[0] == 0
            await spend(ticket())  # the task of this request waits no more, and has not ended it
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait, (await spend(ticket()))[0])
                await self.settle()
                await self.advance(2.1)
                await spend(ticket())
                assert self.log == []
                await self.advance(2.1)
                assert self.log == ["served"]
            await store.leave()

    async def test_statistics_say_who_has_locks_and_who_waits_for_them(self) -> None:
        async def locks(payload: Any) -> None:
            async with lanes.lock("k"):
                pass

        async with (
            self.instance(handlers={"locks": locks}) as lanes,
            self.instance(worker=False) as asking,
            trio.open_nursery() as nursery,
        ):
            assert (await asking.statistics()).locks == ()
            for name in ("a", "b"):
                nursery.start_soon(partial(hold, self, lanes, name, shared=True))
            await self.settle()
            job = await self.submitted("locks")
            (lock,) = (await asking.statistics()).locks
            assert (lock.key, lock.holding, lock.waiting) == ("k", 2, 1)
            assert [one.job for one in lock.holders] == [None, None]
            assert [one.job for one in lock.waiters] == [job.id]
            (instance,) = await lanes.instances()
            for one in (*lock.holders, *lock.waiters):
                assert one.instance == instance.id
                assert one.since is not None
                assert 0 <= one.since - instance.since < 60
            self.open("a", "b")
            await job.wait()
            assert (await asking.statistics()).locks == ()

    async def test_the_most_wanted_locks_and_quotas_and_the_first_waits_are_listed(self) -> None:
        async with self.playing() as store:
            for n in range(LISTED + 1):
                await store.do(Acquire(f"{n:03}", False, n + 1))
                await store.do(Spend(f"{n:03}", [SLIDING], {"requests": 1}))
            for n in range(REQUESTS_LISTED + 1):
                await store.do(Acquire(f"{LISTED:03}", False, 1000 + n))
            now = await store.look(AllStatistics())
            assert len(now.locks) == LISTED
            assert [lock.key for lock in now.locks[:3]] == [f"{LISTED:03}", "000", "001"]
            wanted = now.locks[0]
            assert (wanted.holding, wanted.waiting) == (1, REQUESTS_LISTED + 1)
            assert [one.job for one in wanted.holders] == [LISTED + 1]
            assert [one.job for one in wanted.waiters] == [*range(1000, 1000 + REQUESTS_LISTED)]
            assert [quota.name for quota in now.quotas] == [f"{n:03}" for n in range(LISTED)]

    async def test_the_level_of_a_quota_is_seen_and_can_be_reset(self) -> None:
        async def spend() -> None:
            await lanes.quota("q").spend(tokens=1)
            self.log.append("spent")

        async with (
            self.instance(quotas={"q": [SLIDING, TOKENS]}) as lanes,
            self.instance(worker=False) as asking,
            trio.open_nursery() as nursery,
        ):
            assert (await asking.statistics()).quotas == ()
            assert not await asking.reset_quota("q")
            first = await lanes.quota("q").spend(tokens=5)
            second = await lanes.quota("q").spend(tokens=0)
            await first.settle(tokens=5_000)  # a slip
            nursery.start_soon(spend)
            await self.settle()
            (quota,) = (await asking.statistics()).quotas
            assert (quota.name, quota.waiting) == ("q", 1)
            assert [one.job for one in quota.waiters] == [None]
            requests, tokens = quota.levels
            assert (requests.limit, tokens.limit) == (SLIDING, TOKENS)
            assert requests.used == 2
            assert 4_900 < tokens.used <= 5_000
            assert requests.full_at is not None
            assert tokens.full_at is not None
            assert 4_900 < tokens.full_at - requests.full_at < 5_000
            await self.advance(0.1)
            assert self.log == []
            assert await asking.reset_quota("q")
            await reaped(self, lanes, lambda: self.log == ["spent"], seconds=0.2)
            await second.settle(tokens=0, requests=0)  # of before the reset: nothing to give back
            (quota,) = (await asking.statistics()).quotas
            assert quota.waiting == 0
            requests, tokens = quota.levels
            assert (requests.used, tokens.used <= 1) == (1, True)
            await self.advance(11.0)
            (quota,) = (await asking.statistics()).quotas
            assert [(level.used, level.full_at) for level in quota.levels] == [(0, None)] * 2
            with self.raises(ValueError):
                await asking.reset_quota("")

    async def test_the_reset_of_a_quota_that_is_asked_again_is_done_once(self) -> None:
        mine = ticket()
        async with self.playing() as store:
            spend: Any = partial(store.do, Spend("q", [SLIDING], {"requests": 2}))
            assert (await spend(ticket()))[0] == 0
            assert await store.do(ResetQuota("q"), mine)
            assert (await spend(ticket()))[0] == 0
            assert await store.do(ResetQuota("q"), mine)
            waiting, at = await spend(ticket())
            assert (bool(waiting), at) == (True, None)

    async def test_a_log_has_its_records_in_order_and_needs_a_lease(self) -> None:
        store = self.played()
        async with store.store.open(opening()):
            assert await store.do(WriteLog("a", "[0]")) is None
            await store.join()
            assert await store.twice(WriteLog("a", "[1]")) == 1
            for n in range(2, 60):
                assert await store.do(WriteLog("a", f"[{n}]")) == n
            assert await store.do(WriteLog("b", "[9]")) == 1
            found = await store.look(LogPage("a", 0))
            me = found[0][1]
            assert found == [(n, me, f"[{n}]") for n in range(1, 60)]
            assert await store.look(LogPage("a", 57)) == [(58, me, "[58]"), (59, me, "[59]")]
            assert await store.look(LogPage("a", 59)) == await store.look(LogPage("none", 0)) == []
            large = json.dumps("x" * (STEP_BYTES // 2))
            for n in (1, 2, 3):
                assert await store.do(WriteLog("large", large)) == n
            assert [number for number, *_ in await store.look(LogPage("large", 0))] == [1]
            assert [number for number, *_ in await store.look(LogPage("large", 2))] == [3]
            assert await store.do(DropLog("a"))
            assert not await store.do(DropLog("a"))
            assert await store.look(LogPage("a", 0)) == []
            assert await store.look(LogPage("b", 0)) == [(1, me, "[9]")]
            await store.leave()

    async def test_the_requests_of_a_dead_instance_leave_the_line_of_a_quota(self) -> None:
        async def spend(lanes: DurableLanes) -> None:
            await lanes.quota("q").spend(tokens=1)
            self.log.append("spent")

        dead = self.played()
        if not dead.leased:
            return  # it has one instance
        async with dead.store.open(opening()):
            await dead.join()
            await dead.do(Spend("q", [TOKENS], {"tokens": 5}))
            waiting: Any = await dead.do(Spend("q", [TOKENS], {"tokens": 10**6}))
            assert waiting[1] is None
        async with self.instance(quotas={"q": TOKENS}) as lanes, trio.open_nursery() as nursery:
            nursery.start_soon(spend, lanes)
            await self.settle()
            await self.lease_over()
            await reaped(self, lanes, lambda: self.log == ["spent"])


async def reaped(
    bench: Bench, lanes: DurableLanes, so: Callable[[], Any], seconds: float = 30.0
) -> None:
    """Wait until a condition holds, which other instances bring about.

    Args:
      seconds: how far virtual time is set ahead for each look.
    """
    tries = iter(range(200))
    while not so() and next(tries, None) is not None:
        await bench.advance(seconds if bench.virtual else 0.1)
    assert so(), bench.log
