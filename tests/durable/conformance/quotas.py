"""Tests of the quotas of templates, and of what is left of a quota."""

from __future__ import annotations

import random
from decimal import Decimal
from functools import partial
from typing import Any, Final

import trio

from trio_lanes import RateLimit
from trio_lanes.durable import BudgetSpentError, Quota, QuotaLevel
from trio_lanes.durable.acts.inspection import AllStatistics
from trio_lanes.durable.acts.locks import Grant, LevelsOf, Release, ResetQuota, Settle, Spend
from trio_lanes.durable.store import NAMES_LISTED

from .bench import Played, needs
from .locks import LockStories

FIVE = RateLimit(5, per=10.0, unit="tokens", algorithm="sliding")
LEAKING = RateLimit(29, per=10.0, burst=20, unit="tokens")  # one a second


def _usd(limit: int | Decimal, per: Any = "day", **options: Any) -> RateLimit:
    return RateLimit(limit, per=per, unit="usd", **options)


EDITS: Final[tuple[tuple[RateLimit, RateLimit, int | Decimal], ...]] = (
    (_usd(10), _usd(20), 10),
    (_usd(10), _usd(Decimal("10.50")), Decimal("0.50")),
    (_usd(Decimal("10.50")), _usd(11), 1),
    (_usd(10), _usd(100, "month"), 90),
    (_usd(Decimal(10), "month", timezone="Europe/Berlin"), _usd(15, timezone="Asia/Tokyo"), 5),
    (_usd(10, 86_400.0, burst=10), _usd(15), 5),
    (_usd(10, 3600.0, algorithm="sliding"), _usd(Decimal(15), "month"), Decimal(5)),
)
"""A limit of which 10 are spent, the limit that replaces it, and what is left."""


class QuotaStories(LockStories):
    async def test_each_name_of_a_template_is_a_quota_of_its_own(self) -> None:
        quotas = {"tenant:*": FIVE, "tenant:vip:*": LEAKING, "tenant:7": [FIVE, LEAKING]}
        async with self.instance(quotas=quotas) as lanes, self.instance(worker=False) as asking:
            for name in ("tenant:1", "tenant:2"):
                await lanes.quota(name).spend(tokens=5)
                assert await lanes.quota(name).left() == {"tokens": 0}
            assert await lanes.quota("tenant:3").left() == {"tokens": 5}
            assert await lanes.quota("tenant:vip:3").left() == {"tokens": 20}
            assert await lanes.quota("tenant:7").left() == {"tokens": 5}  # the least of two
            bad: list[tuple[Any, type[Exception]]] = [
                *(("tenant:*", LookupError), ("tenant", LookupError)),
                *(("tenant:\0", ValueError), (5, TypeError)),
            ]
            for name, error in bad:
                with self.raises(error):
                    lanes.quota(name)
            shown = (await asking.statistics()).quotas
            assert [(one.name, one.levels[0].left) for one in shown] == [
                *(("tenant:1", 0), ("tenant:2", 0))
            ]
            await asking.grant("tenant:3", tokens=2)
            (granted,) = (await asking.statistics(quota="tenant:3")).quotas
            assert granted.levels[0].left == 7
            assert await asking.reset_quota("tenant:1")
            assert not await asking.reset_quota("tenant:1")
            assert not await asking.reset_quota("tenant:3")
            assert not await asking.reset_quota("another")
            assert [one.name for one in (await asking.statistics()).quotas] == ["tenant:2"]
            for name in ("tenant:7", "tenant:vip:1"):
                await lanes.quota(name).spend(tokens=1)
            shown = (await asking.statistics()).quotas
            assert [(one.name, one.template) for one in shown] == [
                ("tenant:2", "tenant:*"),
                ("tenant:7", None),
                ("tenant:vip:1", "tenant:vip:*"),
            ]

    async def test_a_quota_of_a_template_is_forgotten_when_nothing_of_it_is_in_use(self) -> None:
        async with self.playing(lease_ttl=3600.0) as store, self.instance(worker=False):
            for n in range(3):
                spend: Any = Spend(f"t:{n}", [FIVE], {"tokens": 1 + n}, None, "t:*")
                (_, at, _) = await store.do(spend)
            await store.do(Settle("t:2", [FIVE], at, {"tokens": -3}, "t:*"))
            assert [one.name for one in await self._quotas(store)] == ["t:0", "t:1"]
            assert [level.used for level in await store.look(LevelsOf("t:1"))] == [2]
            assert await store.look(LevelsOf("unknown")) == ()
            both = [RateLimit(1, per=99.0, unit="usd"), FIVE]
            for unit in ("usd", "tokens"):  # the later spend is over sooner
                await store.do(Spend("u:1", both, {unit: 1}, None, "u:*"))
            await self.advance(11.0)
            assert [one.name for one in await self._quotas(store)] == ["u:1"]
            assert not await store.do(ResetQuota("t:1"))
            await store.do(spend)
            quota, _ = await self._quotas(store)
            assert (quota.name, [level.used for level in quota.levels]) == ("t:2", [3])

    async def test_a_quota_is_asked_for_by_its_name_however_many_there_are(self) -> None:
        async with self.playing() as store, self.instance(worker=False) as asking:
            for n in range(NAMES_LISTED + 2):
                await store.do(Spend(f"t:{n:03}", [FIVE], {"tokens": 1}, None, "t:*"))
            assert [one.name for one in await self._quotas(store)][-1] == f"t:{NAMES_LISTED - 1:03}"
            for name in ("t:*", "unknown"):
                assert (await asking.statistics(quota=name)).quotas == ()
            (quota,) = (await asking.statistics(quota=f"t:{NAMES_LISTED + 1:03}")).quotas
            assert [level.left for level in quota.levels] == [4]
            with self.raises(ValueError):
                await asking.statistics(quota="")

    async def _quotas(self, store: Any) -> Any:
        return (await store.look(AllStatistics())).quotas

    async def _refused(self, quota: Quota, tokens: int) -> Any:
        with self.raises(BudgetSpentError) as caught:
            await quota.spend(wait=False, tokens=tokens)
        return caught[0]

    async def test_who_does_not_wait_takes_at_once_or_is_refused_with_what_is_left(self) -> None:
        async with self.instance(quotas={"q": [FIVE, LEAKING], "r": FIVE}) as lanes:
            quota = lanes.quota("q")
            with self.raises(TypeError):
                await quota.spend(wait=0, tokens=1)  # type: ignore[arg-type]
            assert (await quota.spend(wait=False, tokens=3)).costs == {"tokens": 3}
            for _ in range(2):
                refused = await self._refused(quota, 3)
                assert (refused.quota, refused.left) == ("q", {"tokens": 2})
                assert "q" in str(refused)
                assert "2 tokens" in str(refused)
            (level, _) = (await lanes.statistics()).quotas[0].levels
            assert refused.until == level.full_at
            assert level.used == 3
            assert await quota.left() == {"tokens": 2}

    async def test_who_does_not_wait_overtakes_no_one_who_waits(self) -> None:
        async with self.instance(quotas={"q": FIVE}) as lanes, trio.open_nursery() as nursery:
            quota = lanes.quota("q")
            await quota.spend(tokens=3)
            nursery.start_soon(partial(quota.spend, tokens=4))
            await self.settle()
            refused = await self._refused(quota, 1)
            (level,) = (await lanes.statistics()).quotas[0].levels
            assert (refused.left, refused.until) == ({"tokens": 2}, level.full_at)
            nursery.cancel_scope.cancel()

    async def test_a_refusal_changes_nothing_and_the_same_can_be_asked_later(self) -> None:
        async with self.playing(lease_ttl=3600.0) as store, self.instance(worker=False):
            spend: Any = Spend("q", [FIVE], {"tokens": 5}, wait=False)
            assert (await store.do(spend))[0] == 0
            with self.raises(BudgetSpentError):
                await store.do(spend)
            assert [level.used for level in await store.look(LevelsOf("q"))] == [5]
            await self.advance(11.0)
            assert (await store.do(spend))[0] == 0

    async def test_what_was_spent_counts_against_a_limit_that_replaces_another(self) -> None:
        async with self.playing(lease_ttl=3600.0) as store:

            async def level(name: str, limit: RateLimit) -> QuotaLevel:
                found: QuotaLevel
                (found,) = await store.look(LevelsOf(name, [limit]))
                return found

            for number, (before, after, left) in enumerate(EDITS):
                name = f"q{number}"
                spent: Any = await store.do(Spend(name, [before], {"usd": 10}, wait=False))
                at = spent[1]
                found = await level(name, after)
                assert (found.left, type(found.left)) == (left, type(left)), name
                await store.do(Settle(name, [before], at, {"usd": -4}))
                assert (await level(name, after)).left == left + 4
                # while a deploy rolls, both spend
                await store.do(Spend(name, [after], {"usd": 1}, wait=False))
                both = [one for one in (before, after) if one.algorithm == "calendar"]
                assert [(await level(name, one)).used for one in both] == [7] * len(both)
                assert await store.do(ResetQuota(name))
                assert [(await level(name, one)).used for one in both] == [0] * len(both)

    async def test_a_whole_limit_shows_a_part_that_others_spent_as_used(self) -> None:
        async with self.playing(lease_ttl=3600.0) as store:
            exact, whole = _usd(Decimal(10)), _usd(10)
            await store.do(Spend("q", [exact], {"usd": Decimal("0.25")}))
            await store.do(Grant("q", [exact], {"usd": Decimal("1.75")}, "1"))
            (found,) = await store.look(LevelsOf("q", [whole]))
            assert (found.used, found.granted, found.left) == (1, 1, 10)
            with self.raises(BudgetSpentError):
                await store.do(Spend("q", [whole], {"usd": 12}, wait=False))

    async def test_what_a_person_grants_can_be_spent_until_the_window_has_passed(self) -> None:
        async with (
            self.instance(quotas={"q": FIVE}) as lanes,
            self.instance(worker=False) as asking,
            trio.open_nursery() as nursery,
        ):
            quota = lanes.quota("q")
            with self.raises(LookupError):
                await asking.grant("q", tokens=1)
            await quota.grant(tokens=2, by="ann")
            assert await quota.left() == {"tokens": 7}
            await quota.spend(tokens=7, wait=False)
            nursery.start_soon(self.spend, 3)
            await self.settle()
            bad: list[tuple[dict[str, Any], type[Exception]]] = [
                *(({"tokens": -1}, ValueError), ({"words": 1}, ValueError)),
                *(({"tokens": 1, "by": 5}, TypeError), ({"tokens": 1, "by": ""}, ValueError)),
            ]
            for given, error in bad:
                with self.raises(error):
                    await asking.grant("q", **given)
            assert await quota.left() == {"tokens": 0}
            await asking.grant("q", tokens=3)
            await self.reaped(lambda: self.log == [3], seconds=0.2)
            assert await quota.left() == {"tokens": 0}
            records = [record.data for record in await lanes.log("grants").read()]
            assert [(one["granted"], one["quota"]) for one in records] == [
                *(({"tokens": 2}, "q"), ({"tokens": 3}, "q"))
            ]
            assert records[0]["by"] == "ann"
            assert " on " in records[1]["by"]
            if not self.virtual:
                return
            await self.advance(11.0)
            assert await quota.left() == {"tokens": 5}
            await quota.grant(tokens=1)  # the others are forgotten
            assert await quota.left() == {"tokens": 6}

    async def test_an_amount_above_a_limit_of_a_calendar_is_never_admitted(self) -> None:
        budget = RateLimit(Decimal("5.00"), per="month", unit="usd")
        async with self.instance(quotas={"q": [budget, FIVE]}) as lanes:
            quota = lanes.quota("q")
            for wait in (True, False):
                with self.raises(BudgetSpentError) as caught:
                    await quota.spend(usd=Decimal("5.01"), wait=wait)
                assert caught[0].until is None
                assert caught[0].left == {"usd": 5, "tokens": 5}
                assert "never" in str(caught[0])
            await quota.grant(usd=Decimal("0.50"))
            await quota.spend(usd=Decimal("5.25"))
            assert (await quota.left())["usd"] == Decimal("0.25")
            with self.raises(BudgetSpentError) as caught:
                await quota.spend(usd=1, wait=False)
            assert caught[0].until is not None

    async def test_a_budget_is_low_once_in_its_window_when_80_percent_are_used(self) -> None:
        budget = RateLimit(10, per=3600.0, unit="tokens", algorithm="sliding")

        def spend(tokens: int, quota: str = "q") -> Any:
            return store.twice(Spend(quota, [budget, LEAKING], {"tokens": tokens}))

        async with self.playing(lease_ttl=1e5) as store, self.instance(worker=False):
            assert (await spend(7))[2] == ()
            (_, at, low) = await spend(1)
            assert low == ("tokens",)
            assert (await spend(1))[2] == ()
            settle = Settle("q", [budget], at, {"tokens": -1})
            assert await store.twice(settle) == ()
            assert (await spend(1))[2] == ()
            assert (await spend(9, "r"))[2] == ("tokens",)
            assert await store.do(ResetQuota("r"))
            assert (await spend(9, "r"))[2] == ("tokens",)  # again, since that was forgotten
            assert (await store.twice(Settle("s", [budget], at, {"tokens": 9}))) == ("tokens",)
            await store.do(Grant("v", [budget], {"tokens": 5}, "{}"))
            assert (await spend(11, "v"))[2] == ()
            waiting = await spend(3)
            if not self.virtual:
                return
            await self.advance(3601.0)
            assert await store.served(waiting[0]) is not None
            assert await store.do(Release(waiting[0], True)) == ()
            assert (await spend(7))[2] == ("tokens",)  # again, since it is another window
            waiting = await spend(9)
            await self.advance(3601.0)
            assert await store.served(waiting[0]) is not None
            assert await store.do(Release(waiting[0], True)) == ("tokens",)
            assert await store.do(Release(waiting[0], True)) == ()

    @needs("virtual time")  # its model needs the time
    async def test_random_spends_settles_and_crashes_admit_no_more_than_the_cap(self) -> None:
        chance = random.Random(42)
        charges: dict[str, list[list[float]]] = {"t:1": [], "t:2": []}  # [when, how many]
        spent: list[tuple[str, list[float], float]] = []  # (quota, charge, the store's time)
        async with self.playing(lease_ttl=3600.0) as store, self.instance(worker=False):
            for _ in range(120):
                now, name = trio.current_time(), chance.choice(["t:1", "t:2"])
                used = sum(many for at, many in charges[name] if at + 10.0 > now)
                what, amount = chance.random(), chance.randint(0, 5)
                if what < 0.5:
                    act: Any = Spend(name, [FIVE], {"tokens": amount}, None, "t:*", wait=False)
                    answer = await self._spent_or_refused(store, act)
                    if isinstance(answer, BudgetSpentError):
                        assert used + amount > 5
                        assert answer.left == {"tokens": 5 - used}
                    else:
                        assert used + amount <= 5 or not amount
                        charges[name].append([now, amount])
                        spent.append((name, charges[name][-1], answer[1]))
                elif what < 0.75 and spent:
                    name, charge, at = spent.pop(chance.randrange(len(spent)))
                    change = chance.randint(-int(charge[1]), 2)
                    await store.twice(Settle(name, [FIVE], at, {"tokens": change}, "t:*"))
                    if change > 0:  # only so the cap is passed
                        charges[name].append([now, change])
                    elif charge[0] + 10.0 > now:
                        charge[1] += change
                elif what < 0.8:
                    await store.leave()
                    await store.join()
                else:
                    await self.advance(chance.choice((0.37, 2.11, 5.23)))

    async def _spent_or_refused(self, store: Played, spend: Spend) -> Any:
        try:
            return await store.twice(spend)
        except BudgetSpentError as refused:
            return refused
