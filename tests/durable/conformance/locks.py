"""Tests of locks and quotas over instances."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from typing import Any

import trio

from trio_lanes import RateLimit
from trio_lanes.durable import DurableLanes, QuotaLevel
from trio_lanes.durable.acts.inspection import AllStatistics
from trio_lanes.durable.acts.locks import Acquire, LevelsOf, Release, ResetQuota, Settle, Spend
from trio_lanes.durable.acts.logs import DropLog, LogPage, WriteLog
from trio_lanes.durable.acts.runs import Compare
from trio_lanes.durable.store import NAMES_LISTED, REQUESTS_LISTED, STEP_BYTES

from .bench import Bench, needs, ticket

TOKENS = RateLimit(100, per=100.0, burst=1, unit="tokens")
SLIDING = RateLimit(2, per=10.0, algorithm="sliding")


class LockStories(Bench):
    async def hold(
        self,
        lanes: DurableLanes,
        name: str,
        shared: bool = False,
        task_status: trio.TaskStatus[trio.CancelScope] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Hold the lock of the tests until the test opens the gate of a name."""
        with trio.CancelScope() as scope:
            task_status.started(scope)
            async with lanes.lock("k", shared=shared) as held:
                assert (held.key, held.shared) == ("k", shared)
                self.log.append(f"{name} begins")
                self.fences.append(held.fence)
                await self.gate(name).wait()
            self.log.append(f"{name} ends")

    async def spend(
        self,
        amount: int | Decimal,
        unit: str = "tokens",
        task_status: trio.TaskStatus[trio.CancelScope] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Spend from the quota of the tests, and log how much."""
        with trio.CancelScope() as scope:
            task_status.started(scope)
            await self.lanes.quota("q").spend(wait=True, **{unit: amount})
            self.log.append(amount)

    async def reaped(self, so: Callable[[], Any], seconds: float = 30.0) -> None:
        """Wait until a condition holds, which other instances bring about.

        Args:
          seconds: how far virtual time is set ahead for each look.
        """
        tries = iter(range(200))
        while not so() and next(tries, None) is not None:
            await self.advance(seconds if self.virtual else 0.1)
        assert so(), self.log

    async def test_tasks_have_a_lock_one_after_the_other_in_their_order(self) -> None:
        async with self.instance() as lanes, trio.open_nursery() as nursery:
            for name in ("a", "b", "c"):
                nursery.start_soon(self.hold, lanes, name)
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
            for name in "abcde":
                nursery.start_soon(self.hold, lanes, name, name != "c")
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
            for name in "abc":
                scopes.append(await nursery.start(self.hold, lanes, name))
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

    async def test_requests_that_only_the_store_has_are_ended_and_those_it_lacks_are_named(
        self,
    ) -> None:
        async with self.playing() as store:
            made: list[Any] = [await store.do(Acquire("k", False)) for _ in range(3)]
            held, next_one, late = (request for request, _ in made)
            # it does not know yet that the last was made
            lost = await store.twice(Compare([], 0, [next_one, late + 1], next_one))
            assert lost[:2] == ((), (late + 1,))
            assert lost[2] >= late
            assert await store.served(held) is None
            served = await store.served(next_one)
            assert served is not None
            assert served > late
            await store.do(Release(next_one, True))
            assert await store.served(late) is not None
            took: Any = await store.do(Spend("q", [TOKENS], {"tokens": 1}))
            waits: Any = await store.do(Spend("q", [TOKENS], {"tokens": 1}))
            assert took[1] is not None
            assert waits[1] is None
            assert (await store.do(Compare([], 0, [late], waits[0])))[:2] == ((), ())
            assert await store.served(waits[0]) is None
            (level,) = await store.look(LevelsOf("q"))
            assert level.used == 1  # nobody gives it back
            await store.do(Release(late, True))

    @needs("leases")  # else there is one instance
    async def test_a_lock_goes_over_instances_and_is_freed_with_its_lease(self) -> None:
        async with self.playing(dies=True) as dead:
            locked: Any = await dead.twice(Acquire("k", False))
            assert locked[1] > 0
            behind: Any = await dead.do(Acquire("k", False))
            assert behind[1] is None
            async with (
                self.instance() as lanes,
                self.instance() as others,
                trio.open_nursery() as nursery,
            ):
                nursery.start_soon(self.hold, lanes, "a")
                await self.settle()
                nursery.start_soon(self.hold, others, "b")
                await self.settle()
                assert self.begun() == []
                await self.lease_over()
                await self.reaped(lambda: self.begun() == ["a"])
                self.gate("a").set()
                await self.reaped(lambda: self.begun() == ["a", "b"])
                self.gate("b").set()
                assert locked[1] < self.fences[0] < self.fences[1]
            assert await dead.served(behind[0]) is None
            assert await dead.do(Acquire("k", False)) is None
            assert await dead.do(Spend("q", [SLIDING], {"requests": 1})) is None
            await dead.do(Release(behind[0], True))

    async def test_amounts_are_taken_in_order_as_the_limits_admit_them(self) -> None:
        quotas = {"q": [SLIDING, TOKENS]}
        async with self.instance(quotas=quotas), trio.open_nursery() as nursery:
            for tokens in (5, 3, 0, 200):
                nursery.start_soon(self.spend, tokens)
                await self.settle()
            await self.expect((0, [5]), (4, [5]), (2, [5, 3]))  # after 5 s for 5 tokens
            await self.expect((3, [5, 3]), (2, [5, 3, 0]))  # the third request after 10 s
            await self.expect((3, [5, 3, 0]), (2, [5, 3, 0, 200]))  # above the limit, which is free

    async def test_amounts_that_have_left_the_window_hold_up_no_amount(self) -> None:
        quotas = {"q": RateLimit(10, per=3.0, unit="tokens", algorithm="sliding")}
        async with self.instance(quotas=quotas), trio.open_nursery() as nursery:
            for tokens, seconds in ((2, 0.1), (3, 1.9), (1, 1.2)):
                await self.spend(tokens)
                await self.advance(seconds)
            # the first two have left, and the store need not keep them
            await self.spend(1)
            nursery.start_soon(self.spend, 8)
            await self.settle()
            assert self.log == [2, 3, 1, 1, 8]

    async def test_what_was_not_used_is_given_back_and_what_was_used_beyond_is_taken(self) -> None:
        async with self.instance(quotas={"q": TOKENS}) as lanes, trio.open_nursery() as nursery:
            first = await lanes.quota("q").spend(tokens=100)
            nursery.start_soon(self.spend, 40)
            await self.expect((0, []))
            await first.settle(tokens=10)
            await self.expect((9, []), (2, [40]))
            second = await lanes.quota("q").spend(tokens=0)
            await second.settle(tokens=50)
            nursery.start_soon(self.spend, 10)
            await self.expect((85, [40]), (6, [40, 10]))

    async def test_money_is_spent_and_settled_exactly(self) -> None:
        quotas = {
            "q": [
                RateLimit(Decimal("0.30"), per=10.0, unit="usd", algorithm="sliding"),
                RateLimit(10, unit="calls"),
            ]
        }
        async with self.instance(quotas=quotas) as lanes, trio.open_nursery() as nursery:
            quota = lanes.quota("q")
            bad: Any
            for bad in (Decimal("0.0000001"), Decimal("NaN"), 0.1, 10**10):
                with self.raises(ValueError):
                    await quota.spend(usd=bad)
            with self.raises(ValueError):
                await quota.spend(calls=Decimal("0.5"))
            spent = [await quota.spend(usd=Decimal("0.10")) for _ in range(3)]
            nursery.start_soon(self.spend, Decimal("0.07"), "usd")
            await self.expect((0, []))
            await spent[0].settle(usd=Decimal("0.040001"))
            await self.expect((0, []))
            await spent[1].settle(usd=Decimal("0.089999"))
            await self.expect((0, [Decimal("0.07")]))
            await spent[2].settle(usd=1)
            (levels,) = [one.levels for one in (await lanes.statistics()).quotas]
            assert levels[0].used == Decimal("1.2")
            assert levels[1].used == 0

    async def test_what_is_above_the_limit_of_a_day_may_be_spent_on_the_next(self) -> None:
        day = RateLimit(Decimal("0.30"), per="day", unit="usd", timezone="Europe/Berlin")
        month = RateLimit(9, per="month", unit="usd", timezone="Europe/Berlin")
        async with self.playing(lease_ttl=1e7) as store:

            async def spend(amount: int | str) -> Any:
                costs = {"usd": Decimal(amount)}
                answer = await store.do(Spend("q", [day, month], costs), ticket())
                return (answer or ())[:2]

            async def level() -> QuotaLevel:
                levels: tuple[QuotaLevel, ...] = await store.look(LevelsOf("q", [day, month]))
                return levels[0]

            _, at = await spend(0)
            number, at = await spend(1)  # above the limit, which is free
            assert number == 0
            waiting, served = await spend(1)
            assert served is None
            change = {"usd": Decimal("-0.75")}
            await store.do(Settle("q", [day, month], at, change), ticket())
            assert (await level()).used == Decimal("0.25")
            assert (await level()).left == Decimal("0.05")
            ends = (await level()).full_at
            assert ends is not None
            if self._clock is None:
                return
            hours = 0
            while (await level()).used:
                self._clock.jump(3600.0)
                hours += 1
            assert 0 < hours <= 25
            assert await store.served(waiting) is not None
            assert (await level()).used == 1
            next_ends = (await level()).full_at
            assert next_ends is not None
            assert round(next_ends - ends) in (23 * 3600, 86_400, 25 * 3600)
            # what was taken on another day is not given back
            await store.do(Settle("q", [day, month], at, change), ticket())
            assert (await level()).used == 1

    async def test_what_would_have_run_over_is_not_given_back(self) -> None:
        quotas = {"q": RateLimit(11, per=10.0, burst=10)}  # one in 5 s
        async with self.instance(quotas=quotas) as lanes, trio.open_nursery() as nursery:
            first = await lanes.quota("q").spend(requests=10)
            await self.advance(46.0)
            await self.spend(9, "requests")  # of the first, 0.8 is still in use
            await first.settle(requests=0)
            nursery.start_soon(self.spend, 8, "requests")
            await self.expect((33, [9]), (3, [9, 8]))

    async def test_no_more_is_given_back_than_was_in_use_ever_since(self) -> None:
        quotas = {"q": RateLimit(29, per=10.0, burst=20)}  # one a second
        async with self.instance(quotas=quotas) as lanes, trio.open_nursery() as nursery:
            first = await lanes.quota("q").spend(requests=10)
            await self.advance(2.0)
            await self.spend(1, "requests")  # on top of 8
            await self.advance(6.0)
            await self.spend(1, "requests")  # on top of 3, which are all that is given back
            await first.settle(requests=0)
            nursery.start_soon(self.spend, 20, "requests")
            await self.expect((0.5, [1, 1]), (1, [1, 1, 20]))

    async def test_who_is_cancelled_takes_nothing_and_the_next_goes_on(self) -> None:
        async with self.instance(quotas={"q": TOKENS}), trio.open_nursery() as nursery:
            scopes = []
            for tokens in (5, 1_000_000, 0):
                scopes.append(await nursery.start(self.spend, tokens))
                await self.settle()
            assert self.log == [5]
            scopes[1].cancel()
            await self.expect((0, [5, 0]))

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
        limits = [RateLimit(1, per=2.0, algorithm="sliding")]

        async def wait(request: int) -> None:
            assert await store.served(request) is not None
            self.log.append("served")

        async with self.playing(lease_ttl=100.0) as store, self.instance(worker=False):
            spend: Any = partial(store.do, Spend("q", limits, {"requests": 1}))
            assert (await spend(ticket()))[0] == 0
            await spend(ticket())  # the task of this request waits no more, and has not ended it
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait, (await spend(ticket()))[0])
                await self.settle()
                await self.advance(2.1)
                await spend(ticket())
                assert self.log == []
                await self.expect((2.1, ["served"]))

    async def test_statistics_say_who_has_locks_and_who_waits_for_them(self) -> None:
        async with (
            self.instance() as lanes,
            self.instance(worker=False) as asking,
            trio.open_nursery() as nursery,
        ):
            assert (await asking.statistics()).locks == ()
            for name in ("a", "b"):
                nursery.start_soon(self.hold, lanes, name, True)
            await self.settle()
            job = await self.submitted("steps", ["lock k"])
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
            for n in range(NAMES_LISTED + 1):
                await store.do(Acquire(f"{n:03}", False, n + 1))
                await store.do(Spend(f"{n:03}", [SLIDING], {"requests": 1}))
            for n in range(REQUESTS_LISTED + 1):
                await store.do(Acquire(f"{NAMES_LISTED:03}", False, 1000 + n))
            now = await store.look(AllStatistics())
            assert len(now.locks) == NAMES_LISTED
            assert [lock.key for lock in now.locks[:3]] == [f"{NAMES_LISTED:03}", "000", "001"]
            wanted = now.locks[0]
            assert (wanted.holding, wanted.waiting) == (1, REQUESTS_LISTED + 1)
            assert [one.job for one in wanted.holders] == [NAMES_LISTED + 1]
            assert [one.job for one in wanted.waiters] == [*range(1000, 1000 + REQUESTS_LISTED)]
            assert [quota.name for quota in now.quotas] == [f"{n:03}" for n in range(NAMES_LISTED)]

    async def test_the_level_of_a_quota_is_seen_and_can_be_reset(self) -> None:
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
            nursery.start_soon(self.spend, 1)
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
            await self.expect((0.1, []))
            assert await asking.reset_quota("q")
            await self.reaped(lambda: self.log == [1], seconds=0.2)
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
            waiting, at, _ = await spend(ticket())
            assert (bool(waiting), at) == (True, None)

    async def test_a_log_has_its_records_in_order_and_needs_a_lease(self) -> None:
        async with self.playing() as store:
            await store.leave()
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

    @needs("leases")  # else there is one instance
    async def test_the_requests_of_a_dead_instance_leave_the_line_of_a_quota(self) -> None:
        async with self.playing(dies=True) as dead:
            await dead.do(Spend("q", [TOKENS], {"tokens": 5}))
            waiting: Any = await dead.do(Spend("q", [TOKENS], {"tokens": 10**6}))
            assert waiting[1] is None
        async with self.instance(quotas={"q": TOKENS}), trio.open_nursery() as nursery:
            nursery.start_soon(self.spend, 1)
            await self.settle()
            await self.lease_over()
            await self.reaped(lambda: self.log == [1])
