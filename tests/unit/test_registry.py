"""The registry of lanes: what is made, revived and forgotten."""

from __future__ import annotations

from trio_lanes import LaneConfig, open_lanes


async def test_a_lane_that_is_gone_is_forgotten_once_and_not_the_one_after_it() -> None:
    async with open_lanes({"tenant:*": LaneConfig()}) as lanes:
        registry = lanes._scheduler.registry
        old, new = (registry.make_lane("tenant:a", "tenant:*") for _ in range(2))
        registry.revive_lane(old)
        registry.forget(old)
        registry.revive_lane(new)
        registry.forget(old)
        assert registry.lanes["tenant:a"] is new


async def test_a_session_that_is_gone_is_forgotten_once_and_not_the_one_after_it() -> None:
    async with open_lanes() as lanes:
        registry = lanes._scheduler.registry
        old = registry.revive_session("alice")
        registry.forget(old)
        new = registry.revive_session("alice")
        registry.forget(old)
        assert registry.sessions["alice"] is new
