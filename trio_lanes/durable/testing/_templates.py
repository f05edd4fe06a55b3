"""Tests of templates: the limits of lanes that come when a job needs them, and go when empty."""

from __future__ import annotations

from typing import Any

from ... import (
    LaneClearedError,
    LaneConfig,
    LaneDeadlockError,
    LaneFullError,
    LaneGroup,
    RateLimit,
    UnknownLaneError,
)
from .. import DurableLanes, DurableState
from ._bench import Bench

TENANTS: Any = {"main": 4, "tenant:*": 1}


async def present(lanes: DurableLanes) -> list[str]:
    """Return the lanes that statistics list."""
    return sorted((await lanes.statistics()).lanes)


class TemplateStories(Bench):
    """Tests of templates."""

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
            jobs = [await lanes.submit("gate", f"{n}", lane="tenant:a") for n in range(4)]
            await self.settle()
            assert self.begun() == ["0"]
            await lanes.configure({"tenant:*": 2})
            await self.settle()
            assert self.begun() == ["0", "1"]
            await lanes.configure({"tenant:a": 3})
            await self.settle()
            assert self.begun() == ["0", "1", "2"]
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

    async def test_a_timed_pause_of_a_lane_of_a_template_outlasts_the_clean_up(self) -> None:
        if not self.virtual:
            return  # the clean-up comes once a minute
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
