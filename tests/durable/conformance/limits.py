"""Tests of limits over all instances: groups, rates, and templates of lanes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from trio_lanes import (
    LaneClearedError,
    LaneConfig,
    LaneDeadlockError,
    LaneFullError,
    LaneGroup,
    RateLimit,
    UnknownLaneError,
)
from trio_lanes.durable import DurableLanes, DurableState, LaneLimit
from trio_lanes.durable.acts.orders import Configure

from .bench import Bench, needs, new_job, this_run

TWO_IN_ONE_SECOND = RateLimit(2, per=1.0, algorithm="sliding")

TENANTS: Any = {"main": 4, "tenant:*": 1}


async def present(lanes: DurableLanes) -> list[str]:
    """Return the lanes that statistics list."""
    return sorted((await lanes.statistics()).lanes)


class LimitStories(Bench):
    async def starts(self, of: Sequence[str], *moments: tuple[float, int], **options: Any) -> None:
        """Submit a job to each of some lanes: so many must have started at each moment."""
        async with self.instance(**options) as opened:
            for n, lane in enumerate(of):
                await opened.submit("echo", n, lane=lane)
            for seconds, started in moments:
                await self.expect((seconds, range(started)), ordered=False)

    async def lend(self, payload: Any) -> None:
        """Lend the slot until the test opens a gate."""
        async with this_run().yield_slot():
            await self.gate(f"parent {payload}").wait()
        self.log.append(f"parent {payload} has it back")

    async def test_lanes_of_a_group_share_its_slots_and_a_reservation_is_kept(self) -> None:
        groups = {"g": LaneGroup(["main", "cron"], concurrency=3, reserve={"cron": 1})}
        async with self.instance(lanes={"main": 5, "cron": 5, "free": 1}, groups=groups):
            await self.gates("abc")
            assert sorted(self.begun()) == ["a", "b"]  # the third slot is kept for cron
            await self.gates("de", lane="cron")
            await self.gates("f", lane="free")
            assert sorted(self.begun()) == ["a", "b", "d", "f"]
            await self.opened("a")
            assert len(self.begun()) == 5

    async def test_no_window_of_a_rate_holds_more_starts_than_its_limit(self) -> None:
        lanes = {"main": LaneConfig(concurrency=9, rate=TWO_IN_ONE_SECOND)}
        await self.starts(["main"] * 5, (0, 2), (0.5, 2), (0.6, 4), (1.1, 5), lanes=lanes)

    async def test_a_smoothed_rate_spreads_starts_after_its_burst(self) -> None:
        rate = RateLimit(4, per=2.0, burst=2)  # three in two seconds, after a burst of two
        lanes = {"main": LaneConfig(concurrency=9, rate=rate)}
        await self.starts(["main"] * 4, (0, 2), (0.7, 3), (0.7, 4), lanes=lanes)

    async def test_a_group_has_rates_that_its_lanes_share(self) -> None:
        groups = {"g": LaneGroup(["main", "cron"], rate=[TWO_IN_ONE_SECOND])}
        lanes = {"main": 5, "cron": 5}
        await self.starts(["main", "cron"] * 2, (0, 2), (1.1, 4), lanes=lanes, groups=groups)

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
            await self.expect((0, [0, 1]), (1.1, [0, 1, 2]), ordered=False)
            self.log.clear()
            await self.gates("ab")
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
            await self.expect((0, [0]), (0.6, [0, 1]), ordered=False)
            with self.raises(ValueError):
                await lanes.configure({"cron": None})
            await lanes.configure({"main": LaneConfig(concurrency=9)}, {})
            await self.settle()
            assert sorted(self.log) == [0, 1, 2, 3]
            await lanes.configure({"cron": None})
            await lanes.configure({"main": LaneConfig(concurrency=9, rate=smooth)})
            await (await lanes.submit("echo", 4)).wait()  # the past ended with the limits

    @needs("virtual time")  # a slow machine uses the part up
    async def test_a_part_of_a_start_is_still_in_use_when_its_rate_is_replaced(self) -> None:
        one_a_second, slower = RateLimit(4, per=4.0, burst=1), RateLimit(4, per=40.0, burst=1)
        async with self.instance(lanes={"main": LaneConfig(rate=one_a_second)}) as lanes:
            await (await lanes.submit("echo", 0)).wait()
            await self.advance(0.5)  # a half is left, which leaks in 5 s
            await lanes.configure({"main": LaneConfig(rate=slower)})
            await lanes.submit("echo", 1)
            await self.expect((4, [0]), (2, [0, 1]))

    async def test_a_start_takes_the_cost_of_its_job_from_the_rates(self) -> None:
        rates = [
            RateLimit(4, per=1.0, algorithm="sliding"),
            RateLimit(100, per=1.0, unit="tokens", algorithm="sliding"),
        ]
        async with self.instance(lanes={"main": LaneConfig(concurrency=9, rate=rates)}) as lanes:
            await lanes.submit("echo", "a", cost={"tokens": 60})
            await lanes.submit("echo", "b", cost={"tokens": 60})  # too many tokens
            await lanes.submit("echo", "c", cost=3)  # it waits behind b
            await self.expect((0, "a"), (1.1, "abc"))
            await lanes.submit("echo", "d", cost={"requests": 0, "tokens": 40})
            await lanes.submit("echo", "e")  # four requests are used
            await self.expect((0, "abcd"))
            await self.advance(1.1)
            # more than the limit: when nothing is in use
            await lanes.submit("echo", "f", cost={"requests": 0, "tokens": 150})
            await self.expect((0, "abcdef"))
            await lanes.submit("echo", "g", cost={"tokens": 1})
            await self.expect((0.5, "abcdef"), (0.6, "abcdefg"))

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

    async def test_decimals_are_counted_exactly(self) -> None:
        rate = RateLimit(Decimal("0.30"), per=1.0, unit="usd", algorithm="sliding")
        groups = {"g": LaneGroup(["cron"], rate=RateLimit(5, unit="credits"))}
        lanes_of = {"main": LaneConfig(concurrency=9, rate=rate), "cron": 1}
        async with self.instance(lanes=lanes_of, groups=groups) as lanes:
            assert (await lanes.limits())["main"].rates == (rate,)
            bad: Any
            for bad in ("NaN", "-0.1", "0.0000001", "1e10", "1e-99999"):
                with self.raises(ValueError):
                    await lanes.submit("echo", cost={"usd": Decimal(bad)})
            # in whole numbers, and in millionths that a store can add
            for lane, bad in (("cron", {"credits": Decimal("0.5")}), ("main", {"usd": 10**10})):
                with self.raises(ValueError) as caught:
                    await lanes.submit("echo", lane=lane, cost=bad)
                assert "an int, and at most 1,000,000,000" in str(caught[0])
            assert await lanes.jobs() == []
            for n in range(4):
                await lanes.submit("echo", n, cost={"usd": Decimal("0.10")})
            await self.expect((0, range(3)), (0.9, range(3)), (0.2, range(4)))
            await lanes.submit("echo", 4, cost={"usd": Decimal("0.200001")})
            await lanes.submit("echo", 5, lane="cron", cost={"credits": Decimal("5.0")})
            await self.expect((0, [0, 1, 2, 3, 5]), (1.1, [0, 1, 2, 3, 5, 4]))
            for limit in (Decimal("0.0000001"), Decimal(10**10)):
                with self.raises(ValueError):
                    await lanes.configure({"main": LaneConfig(rate=RateLimit(limit))})

    async def test_a_lane_starts_no_more_in_a_month_than_its_limit(self) -> None:
        rates = [RateLimit(1, per="month", timezone="Asia/Tokyo"), RateLimit(9, per="day")]
        async with self.instance(lanes={"main": LaneConfig(concurrency=9, rate=rates)}) as lanes:
            assert (await lanes.limits())["main"].rates == tuple(rates)
            await (await lanes.submit("echo", 1)).wait()
            second = await self.submitted("echo", 2)
            (reason,) = await lanes.blocked_by(second.id)
            assert reason.kind == "rate"
            assert reason.until is not None
            (cause,) = await second.root_causes()
            assert cause.root == 'rate of "main": 1 a month in Asia/Tokyo, 9 a day in UTC'
            assert 0 < (cause.seconds or 0) <= 31 * 86_400
            more = RateLimit(2, per="month", timezone="Asia/Tokyo")
            await lanes.configure({"main": LaneConfig(rate=more)})
            third = await self.submitted("echo", 3)
            await self.expect((0, [1, 2]))
            (cause,) = await third.root_causes()
            assert cause.root == 'rate of "main": 2 a month in Asia/Tokyo'

    async def test_a_lent_slot_is_one_of_its_group_too(self) -> None:
        groups = {"g": LaneGroup(["main", "cron"], concurrency=2)}
        async with self.instance(
            lanes={"main": 2, "cron": 2}, groups=groups, handlers={"parent": self.lend}
        ):
            await self.submitted("parent", 1)
            await self.submitted("parent", 2, lane="cron")
            await self.gates("abc", lane="cron")
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
                lanes={"main": 2, "cron": 2}, handlers={"parent": self.lend}
            ) as lanes:
                await lanes.configure({}, shared)
                for n in (1, 2):  # claimed in this order
                    await self.submitted("parent", f"{lane} {n}", lane="main" if n == 1 else lane)
                await self.gates([f"{lane} a", f"{lane} b"])
                assert len(self.begun()) == 2
                for n in (2, 1):  # and they ask in the other order
                    await self.opened(f"parent {lane} {n}")
                await self.opened(f"{lane} a")
                back = [entry for entry in self.log if entry.endswith("has it back")]
                assert back == [f"parent {lane} {n} has it back" for n in (1, 2)]
                await self.opened(f"{lane} b")

    async def test_a_run_that_lends_its_slot_makes_room_on_its_instance(self) -> None:
        async def parent(payload: Any) -> Any:
            async with this_run().yield_slot():
                return await (await lanes.submit("echo", "child")).wait()

        limits: Any = {"main": math.inf}
        async with self.instance(capacity=1, lanes=limits, handlers={"parent": parent}) as lanes:
            assert await (await lanes.submit("parent")).wait() == "child"

    async def test_each_lane_of_a_template_has_its_limits_and_is_forgotten_when_empty(self) -> None:
        async with self.instance(lanes=TENANTS) as lanes:
            assert await present(lanes) == ["main"]
            for name in ("a1", "a2", "b1"):
                await lanes.submit("gate", name, lane=f"tenant:{name[0]}")
            await self.settle()
            assert sorted(self.begun()) == ["a1", "b1"]
            assert await present(lanes) == ["main", "tenant:a", "tenant:b"]
            tenant = (await lanes.statistics()).lanes["tenant:a"]
            assert (tenant.running, tenant.waiting, tenant.concurrency) == (1, 1, 1)
            (waiting,) = await lanes.jobs("tenant:a", states=[DurableState.WAITING])
            (reason,) = await lanes.blocked_by(waiting.id)
            assert (reason.kind, reason.lane) == ("concurrency", "tenant:a")
            self.open("a1", "a2", "b1")
            await self.settle()
            assert await present(lanes) == ["main"]
            assert sorted(await lanes.limits()) == ["main", "tenant:*"]
            assert (await lanes.check()).problems == ()
            for name in ("tenant:*", "tenan", "other"):
                with self.raises(UnknownLaneError):
                    await lanes.submit("echo", lane=name)

    async def test_of_many_lanes_that_cannot_start_a_job_each_starts_one_when_it_can(self) -> None:
        # more lanes than a claim looks at in vain: it puts the others aside
        lanes_of = {kind: [f"{kind}:{n}" for n in range(30)] for kind in "fpr"}
        rate = RateLimit(4, per=100.0, unit="tokens", algorithm="sliding")
        limits: Any = {"f:*": 1, "p:*": 1, "r:*": LaneConfig(concurrency=5, rate=rate)}
        async with self.instance(lanes=limits, capacity=90) as lanes:
            await lanes.pause("p:*")
            for lane in lanes_of["f"]:
                await lanes.submit("gate", lane, lane=lane)
                await lanes.submit("echo", lane, lane=lane)
            for lane in lanes_of["p"]:
                await lanes.submit("echo", lane, lane=lane)
            held = []
            for lane in lanes_of["r"]:
                for tokens in (3, 3, 1):
                    held.append(
                        await lanes.submit("echo", lane, lane=lane, cost={"tokens": tokens})
                    )
            await self.settle()
            began = [*lanes_of["r"], *(f"{lane} begins" for lane in lanes_of["f"])]
            assert sorted(self.log) == sorted(began)
            self.log.clear()
            await lanes.cancel(held[1].id)  # it is before one that the rate allows
            self.open("f:9")
            await self.settle()
            assert {"r:0", "f:9"} <= {*self.log}
            await lanes.resume("p:*")
            await self.settle()
            assert set(lanes_of["p"]) < set(self.log)
            self.log.clear()
            await lanes.configure({"f:*": 2})
            await self.settle()
            assert sorted(self.log) == sorted(set(lanes_of["f"]) - {"f:9"})
            self.open(*lanes_of["f"])
            self.log.clear()
            if not self.virtual:
                return
            await self.advance(101)
            for lane in lanes_of["r"][1:]:
                assert self.log.count(lane) == 2

    @needs("leases")
    async def test_lanes_that_one_instance_has_no_handlers_for_are_in_turn_for_others(self) -> None:
        # more lanes than a claim looks at in vain; the next job of a lane depends on who asks
        names = [f"{kind}:{n:02}" for kind in "rt" for n in range(55)]
        rate = RateLimit(4, per=100.0, unit="tokens", algorithm="sliding")
        limits: Any = {"main": 4, "t:*": 1, "r:*": LaneConfig(rate=rate)}
        async with (
            self.instance(lanes=limits, only=["other"]),
            self.instance(lanes=limits, worker=False) as asker,
        ):
            for name in names:
                for handler, cost in ("other", 3), ("other", 3), ("gate", 1):
                    if name.startswith("r:"):
                        costs = {"tokens": cost}
                        await asker.submit(handler, f"{handler} {name}", lane=name, cost=costs)
                if name.startswith("t:"):
                    await asker.submit("gate", f"gate {name}", lane=name)
            await self._count("other ", 55)
            async with self.instance(lanes=limits, only=["gate"], capacity=10):
                await self._count("gate ", 10)
                await self.submitted("other", "takes a step")  # and looks at all lanes in vain
                self.open(*(f"gate {name}" for name in names))
                await self._count("gate ", 2 * len(names))

    async def _count(self, prefix: str, number: int) -> None:
        """Wait until so many entries of the log begin so, and no more come."""
        for _ in range(50):  # pragma: no branch - a store that takes longer fails below
            await self.settle()
            if sum(str(entry).startswith(prefix) for entry in self.log) == number:
                break
        await self.settle()
        assert sum(str(entry).startswith(prefix) for entry in self.log) == number

    async def test_a_lane_has_the_limits_of_its_own_or_of_its_longest_template(self) -> None:
        limits: Any = {"*": 1, "tenant:*": LaneConfig(concurrency=2, max_waiting=1), "tenant:x": 3}
        async with self.instance(lanes=limits) as lanes:
            for lane in ("other", "tenant:a", "tenant:x"):
                await self.submitted("gate", f"{lane} 0", lane=lane)
                await lanes.pause(lane)
            await lanes.submit("echo", lane="tenant:a")
            with self.raises(LaneFullError):
                await lanes.submit("echo", lane="tenant:a")
            await lanes.submit("echo", lane="tenant:b", delay=100)
            found = (await lanes.statistics()).lanes
            assert {name: lane.concurrency for name, lane in found.items()} == {
                "other": 1,
                "tenant:a": 2,
                "tenant:b": 2,
                "tenant:x": 3,
            }

    async def test_a_template_is_configured_for_all_its_lanes(self) -> None:
        async with self.instance(lanes=TENANTS) as lanes:
            jobs = await self.gates("0123", lane="tenant:a")
            assert self.begun() == ["0"]
            for name, begun in (("tenant:*", 2), ("tenant:a", 3)):
                await lanes.configure({name: begun})
                await self.settle()
                assert self.begun() == [*"0123"[:begun]]
            for bad in ({"tenant:*": None, "tenant:a": None}, {"tenant:b": None}):
                with self.raises(ValueError, UnknownLaneError):
                    await lanes.configure(bad)
            await lanes.configure({"tenant:*": None, "tenant:a": 4})
            await self.settle()
            assert self.begun() == ["0", "1", "2", "3"]
            with self.raises(UnknownLaneError):
                await lanes.submit("echo", lane="tenant:b")
            await lanes.configure({"ten*": 1, "tenant:a": None})  # another template matches it
            assert (await lanes.statistics()).lanes["tenant:a"].concurrency == 1
            for n, job in enumerate(jobs):
                self.gate(f"{n}").set()
                await job.wait()

    @needs("virtual time")  # the clean-up comes once a minute
    async def test_a_timed_pause_of_a_lane_of_a_template_outlasts_the_clean_up(self) -> None:
        async with self.instance(lanes=TENANTS) as lanes:
            await lanes.pause_for("tenant:a", 1000)
            for _ in range(4):
                await self.advance(50)
                await (await lanes.submit("echo")).wait()
            await self.submitted("gate", "a", lane="tenant:a")
            assert self.begun() == []
            await self.advance(801)
            assert self.begun() == ["a"]
            self.gate("a").set()

    async def test_pause_resume_and_clear_act_on_a_lane_of_a_template_or_on_all(self) -> None:
        async with self.instance(lanes=TENANTS) as lanes:
            await lanes.pause("tenant:a")
            assert await present(lanes) == ["main", "tenant:a"]
            first = await lanes.submit("echo", "a", lane="tenant:a")
            await (await lanes.submit("echo", "b", lane="tenant:b")).wait()
            await self.settle()
            assert self.log == ["b"]
            await lanes.resume("tenant:a")
            await first.wait()
            await self.settle()
            assert await present(lanes) == ["main"]

            await lanes.pause("tenant:*")
            await lanes.pause("tenant:a")
            jobs = [await lanes.submit("echo", name, lane=f"tenant:{name}") for name in "abc"]
            await lanes.resume("tenant:b")
            await self.settle()
            assert self.log == ["b", "a"]  # a lane is paused while its template is
            assert (await lanes.statistics()).lanes["tenant:b"].paused
            await lanes.clear("tenant:c", "one")
            await self.fails(jobs[2], LaneClearedError)
            await lanes.resume("tenant:*")
            await self.settle()
            assert sorted(self.log) == ["a", "a", "b", "b"]

            await lanes.pause_for("tenant:*", 1)
            jobs = [await lanes.submit("echo", name, lane=f"tenant:{name}") for name in "abc"]
            other = await lanes.submit("echo", "main", delay=100)
            assert await lanes.clear("tenant:*", "all") == 3
            for job in jobs:
                assert (await self.fails(job, LaneClearedError)).lane == "tenant:*"
            assert await self.state(other.id) is DurableState.PARKED
            last = await lanes.submit("echo", "last", lane="tenant:a")
            await self.advance(1.1)
            await last.wait()
            await lanes.pause_for("tenant:x", 1)
            assert await present(lanes) == ["main", "tenant:x"]
            await self.advance(1.1)
            assert await present(lanes) == ["main"]
            for act in (lanes.pause, lanes.resume, lanes.clear):
                with self.raises(UnknownLaneError):
                    await act("nowhere:*")

    async def test_lanes_of_a_template_share_its_place_in_a_group(self) -> None:
        groups = {"g": LaneGroup(["main", "tenant:*"], concurrency=3, reserve={"main": 1})}
        async with self.instance(lanes=TENANTS, groups=groups) as lanes:
            for name in "abc":
                await lanes.submit("gate", name, lane=f"tenant:{name}")
            await self.settle()
            assert len(self.begun()) == 2  # the third slot is kept for main
            (waiting,) = await lanes.jobs(states=[DurableState.WAITING])
            (reason,) = await lanes.blocked_by(waiting.id)
            assert (reason.kind, reason.lane) == ("reservation", "g")
            await self.submitted("gate", "main")
            assert len(self.begun()) == 3
            await lanes.configure({}, {"g": LaneGroup(["tenant:*"], concurrency=3)})
            await self.settle()
            assert len(self.begun()) == 4

    async def test_the_rate_of_a_template_is_that_of_each_lane_and_is_remembered(self) -> None:
        rate = RateLimit(1, per=100.0, algorithm="sliding")
        limits: Any = {"tenant:*": LaneConfig(concurrency=9, rate=rate), "main": 4}
        async with self.instance(lanes=limits) as lanes:
            for name in ("a b", "c"):
                await (await lanes.submit("echo", name, lane=f"tenant:{name}")).wait()
            assert await present(lanes) == ["main"]
            second = await self.submitted("echo", "second", lane="tenant:a b")
            (reason,) = await lanes.blocked_by(second.id)
            assert (reason.kind, reason.lane) == ("rate", "tenant:a b")
            twice = RateLimit(2, per=100.0, algorithm="sliding")
            await lanes.configure({"tenant:*": LaneConfig(concurrency=9, rate=twice)})
            await second.wait()
            third = await self.submitted("echo", "third", lane="tenant:a b")
            (reason,) = await lanes.blocked_by(third.id)
            assert (reason.kind, reason.lane) == ("rate", "tenant:a b")

    async def test_lanes_of_templates_take_turns_and_serve_every_priority(self) -> None:
        groups = {"g": LaneGroup(["tenant:*"], concurrency=1)}
        async with self.instance(lanes=TENANTS, groups=groups) as lanes:
            await lanes.pause("tenant:*")
            jobs = [
                await lanes.submit("echo", f"{name}{n}", lane=f"tenant:{name}")
                for n in range(3)
                for name in "ab"
            ]
            await lanes.resume("tenant:*")
            for job in jobs:
                await job.wait()
            assert self.log == ["a0", "b0", "a1", "b1", "a2", "b2"]

    async def test_a_wait_that_can_never_end_is_found_in_a_lane_of_a_template(self) -> None:
        async def outer(payload: Any) -> None:
            inner = await lanes.submit("echo", lane="tenant:a")
            await self.fails(inner, LaneDeadlockError)
            other = await lanes.submit("echo", "other", lane="tenant:b")
            assert await other.wait() == "other"

        async with self.instance(lanes=TENANTS, handlers={"outer": outer}) as lanes:
            await (await lanes.submit("outer", lane="tenant:a")).wait()
