"""Tests of groups and rates, which are limits over all instances."""

from __future__ import annotations

import math
from typing import Any

from ... import LaneConfig, LaneGroup, RateLimit
from .. import LaneLimit
from ..acts.orders import Configure
from ._bench import Bench, new_job, this_run

TWO_IN_ONE_SECOND = RateLimit(2, per=1.0, algorithm="sliding")


def lender(bench: Bench) -> Any:
    """Return a handler that lends its slot until the test opens a gate."""

    async def parent(payload: Any) -> None:
        async with this_run().yield_slot():
            await bench.gate(f"parent {payload}").wait()
        bench.log.append(f"parent {payload} has it back")

    return parent


class LimitStories(Bench):
    """Tests of groups and rates."""

    async def test_lanes_of_a_group_share_its_slots_and_a_reservation_is_kept(self) -> None:
        groups = {"g": LaneGroup(["main", "cron"], concurrency=3, reserve={"cron": 1})}
        async with self.instance(lanes={"main": 5, "cron": 5, "free": 1}, groups=groups) as lanes:
            for name in ("a", "b", "c"):
                await lanes.submit("gate", name)
            await self.settle()
            assert sorted(self.begun()) == ["a", "b"]  # the third slot is kept for cron
            await lanes.submit("gate", "d", lane="cron")
            await lanes.submit("gate", "e", lane="cron")
            await self.submitted("gate", "f", lane="free")
            assert sorted(self.begun()) == ["a", "b", "d", "f"]
            await self.opened("a")
            assert len(self.begun()) == 5

    async def test_no_window_of_a_rate_holds_more_starts_than_its_limit(self) -> None:
        async with self.instance(
            lanes={"main": LaneConfig(concurrency=9, rate=TWO_IN_ONE_SECOND)}
        ) as lanes:
            for n in range(5):
                await lanes.submit("echo", n)
            await self.settle()
            assert sorted(self.log) == [0, 1]
            await self.advance(0.5)
            assert sorted(self.log) == [0, 1]
            await self.advance(0.6)
            assert sorted(self.log) == [0, 1, 2, 3]
            await self.advance(1.1)
            assert sorted(self.log) == [0, 1, 2, 3, 4]

    async def test_a_smoothed_rate_spreads_starts_after_its_burst(self) -> None:
        rate = RateLimit(4, per=2.0, burst=2)  # three in two seconds, after a burst of two
        async with self.instance(lanes={"main": LaneConfig(concurrency=9, rate=rate)}) as lanes:
            for n in range(4):
                await lanes.submit("echo", n)
            await self.settle()
            assert sorted(self.log) == [0, 1]
            await self.advance(0.7)
            assert sorted(self.log) == [0, 1, 2]
            await self.advance(0.7)
            assert sorted(self.log) == [0, 1, 2, 3]

    async def test_a_step_names_the_first_time_at_which_a_rate_allows_a_start(self) -> None:
        lanes = {
            f"lane {n}": LaneLimit(9, rates=(RateLimit(1, per=per, algorithm="sliding"),))
            for n, per in enumerate((40.0, 10.0, 40.0))
        }
        async with self.playing() as store:
            await store.do(Configure(lanes, None, {}))
            await store.enqueue([new_job(lane=lane) for lane in lanes] * 2)
            step = await store.step([], 9)
            assert len(step.claims) == 3
            assert step.next_due is not None
            assert step.next_due <= 10.0

    async def test_a_group_has_rates_that_its_lanes_share(self) -> None:
        groups = {"g": LaneGroup(["main", "cron"], rate=[TWO_IN_ONE_SECOND])}
        async with self.instance(lanes={"main": 5, "cron": 5}, groups=groups) as lanes:
            for n in range(2):
                await lanes.submit("echo", f"main {n}")
                await lanes.submit("echo", f"cron {n}", lane="cron")
            await self.settle()
            assert len(self.log) == 2
            await self.advance(1.1)
            assert len(self.log) == 4

    async def test_rates_and_groups_survive_and_present_limits_win(self) -> None:
        limits: Any = {"main": LaneConfig(concurrency=9, rate=TWO_IN_ONE_SECOND), "cron": 1}
        groups = {"g": LaneGroup(["main"], concurrency=1)}
        async with self.instance(lanes=limits, groups=groups) as lanes:
            await (await lanes.submit("echo", 0)).wait()
            await (await lanes.submit("echo", 1)).wait()
            await self.submitted("echo", 2)
            assert sorted(self.log) == [0, 1]
        other = {"h": LaneGroup(["main", "cron"], concurrency=5)}
        async with self.instance(lanes={"main": 9, "cron": 1}, groups=other) as lanes:
            await self.settle()
            assert sorted(self.log) == [0, 1]
            await self.advance(1.1)
            assert sorted(self.log) == [0, 1, 2]
            self.log.clear()
            await lanes.submit("gate", "a")
            await self.submitted("gate", "b")
            assert self.begun() == ["a"]

    async def test_configure_replaces_groups_and_rates_which_go_on_with_their_past(self) -> None:
        smooth = RateLimit(4, per=4.0, burst=1)  # one in a second
        async with self.instance(
            lanes={"main": LaneConfig(concurrency=9, rate=smooth), "cron": 1}
        ) as lanes:
            for n in range(4):
                await lanes.submit("echo", n)
            await self.settle()
            assert sorted(self.log) == [0]
            for groups in (
                {"g": LaneGroup(["nowhere"])},
                {"g": LaneGroup(["main"]), "h": LaneGroup(["main"])},
            ):
                with self.raises(ValueError):
                    await lanes.configure({"cron": 3}, groups)
            with self.raises(TypeError):
                no_group: Any = 3
                await lanes.configure({"cron": 3}, {"g": no_group})
            assert (await lanes.statistics()).lanes["cron"].concurrency == 1
            # twice as fast; the used part leaks at the new rate
            faster = LaneConfig(
                concurrency=9, rate=[RateLimit(4, per=2.0, burst=1), TWO_IN_ONE_SECOND]
            )
            await lanes.configure({"main": faster}, {"g": LaneGroup(["main", "cron"])})
            await self.settle()
            assert sorted(self.log) == [0]
            await self.advance(0.6)
            assert sorted(self.log) == [0, 1]
            with self.raises(ValueError):
                await lanes.configure({"cron": None})
            await lanes.configure({"main": LaneConfig(concurrency=9)}, {})
            await self.settle()
            assert sorted(self.log) == [0, 1, 2, 3]
            await lanes.configure({"cron": None})
            await lanes.configure({"main": LaneConfig(concurrency=9, rate=smooth)})
            await (await lanes.submit("echo", 4)).wait()  # the past ended with the limits

    async def test_a_part_of_a_start_is_still_in_use_when_its_rate_is_replaced(self) -> None:
        if not self.virtual:
            return  # a slow machine uses the part up
        one_a_second, slower = RateLimit(4, per=4.0, burst=1), RateLimit(4, per=40.0, burst=1)
        async with self.instance(lanes={"main": LaneConfig(rate=one_a_second)}) as lanes:
            await (await lanes.submit("echo", 0)).wait()
            await self.advance(0.5)  # a half is left, which leaks in 5 s
            await lanes.configure({"main": LaneConfig(rate=slower)})
            await lanes.submit("echo", 1)
            await self.advance(4.0)
            assert self.log == [0]
            await self.advance(2.0)
            assert self.log == [0, 1]

    async def test_a_start_takes_the_cost_of_its_job_from_the_rates(self) -> None:
        rates = [
            RateLimit(4, per=1.0, algorithm="sliding"),
            RateLimit(100, per=1.0, unit="tokens", algorithm="sliding"),
        ]
        async with self.instance(lanes={"main": LaneConfig(concurrency=9, rate=rates)}) as lanes:
            await lanes.submit("echo", "a", cost={"tokens": 60})
            await lanes.submit("echo", "b", cost={"tokens": 60})  # too many tokens
            await lanes.submit("echo", "c", cost=3)  # it waits behind b
            await self.settle()
            assert self.log == ["a"]
            await self.advance(1.1)
            assert self.log == ["a", "b", "c"]
            await lanes.submit("echo", "d", cost={"requests": 0, "tokens": 40})
            await lanes.submit("echo", "e")  # four requests are used
            await self.settle()
            assert self.log == ["a", "b", "c", "d"]
            await self.advance(1.1)
            # more than the limit: when nothing is in use
            await self.submitted("echo", "f", cost={"requests": 0, "tokens": 150})
            assert self.log == ["a", "b", "c", "d", "e", "f"]
            await lanes.submit("echo", "g", cost={"tokens": 1})
            await self.advance(0.5)
            assert self.log[-1] == "f"
            await self.advance(0.6)
            assert self.log[-1] == "g"

    async def test_a_cost_in_a_unit_that_no_rate_counts_is_refused(self) -> None:
        tokens = RateLimit(100, unit="tokens", burst=50)
        groups = {"g": LaneGroup(["cron"], rate=tokens)}
        async with self.instance(groups=groups) as lanes:
            bad: Any
            for bad in ("many", {"tokens": "many"}, {1: 1}):
                with self.raises(TypeError):
                    await lanes.submit("echo", cost=bad)
            for bad in (-1, 0.5, 10**13, {"tokens": -1}, {" ": 1}, {"tokens": 1}):
                with self.raises(ValueError):
                    await lanes.submit("echo", cost=bad)
            assert await lanes.jobs() == []
            await (await lanes.submit("echo", 1, cost={"requests": 7})).wait()
            await (await lanes.submit("echo", 2, lane="cron", cost={"tokens": 50})).wait()
            third = await self.submitted("echo", 3, lane="cron", cost={"tokens": 1})
            assert self.log == [1, 2]
            (reason,) = await lanes.blocked_by(third.id)
            assert (reason.kind, reason.lane) == ("rate", "g")
            await lanes.configure({}, {})
            await third.wait()  # nothing counts tokens any more

    async def test_a_lent_slot_is_one_of_its_group_too(self) -> None:
        groups = {"g": LaneGroup(["main", "cron"], concurrency=2)}
        async with self.instance(
            lanes={"main": 2, "cron": 2}, groups=groups, handlers={"parent": lender(self)}
        ) as lanes:
            await self.submitted("parent", 1)
            await self.submitted("parent", 2, lane="cron")
            for name in ("a", "b", "c"):
                await lanes.submit("gate", name, lane="cron")
            await self.settle()
            assert sorted(self.begun()) == ["a", "b"]
            for n in (1, 2):
                await self.opened(f"parent {n}")
            assert sorted(self.begun()) == ["a", "b"]
            await self.opened("a")
            last = ["a ends", "parent 1 has it back", "parent 2 has it back", "c begins"]
            assert self.log[-4:] == last

    async def test_slots_return_in_the_order_in_which_the_runs_were_claimed(self) -> None:
        groups = {"g": LaneGroup(["main", "cron"], concurrency=2)}
        for lane, shared in (("main", {}), ("cron", groups)):
            self.log.clear()
            async with self.instance(
                lanes={"main": 2, "cron": 2}, handlers={"parent": lender(self)}
            ) as lanes:
                await lanes.configure({}, shared)
                for n in (1, 2):  # claimed in this order
                    await self.submitted("parent", f"{lane} {n}", lane="main" if n == 1 else lane)
                for name in ("a", "b"):
                    await lanes.submit("gate", f"{lane} {name}")
                await self.settle()
                assert len(self.begun()) == 2
                for n in (2, 1):  # and they ask in the other order
                    await self.opened(f"parent {lane} {n}")
                await self.opened(f"{lane} a")
                back = [entry for entry in self.log if entry.endswith("has it back")]
                assert back == [f"parent {lane} {n} has it back" for n in (1, 2)]
                await self.opened(f"{lane} b")

    async def test_a_run_that_lends_its_slot_makes_room_on_its_instance(self) -> None:
        async def parent(payload: Any) -> Any:
            run = this_run()
            async with run.yield_slot():
                return await (await lanes.submit("echo", "child")).wait()

        limits: Any = {"main": math.inf}
        async with self.instance(capacity=1, lanes=limits, handlers={"parent": parent}) as lanes:
            assert await (await lanes.submit("parent")).wait() == "child"
