"""What a job costs where very many tenants or owners have lanes, or wait, in counts of calls."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest
import trio

from tests.contract.costs.test_costs import calls_of
from trio_lanes import LaneConfig, LaneGroup, RateLimit, open_lanes

pytestmark = pytest.mark.slow

FEW, MANY = 250, 1_000


async def tenants(count: int, config: Mapping[str, Any], group: Mapping[str, Any]) -> None:
    """Each tenant has a lane of its own and two jobs; all lanes are in one group."""
    async with open_lanes(
        {"tenant:*": LaneConfig(warn_after=math.inf, **config)},
        groups={"key": LaneGroup(["tenant:*"], **group)},
        wait_accounting=True,
    ) as lanes:
        jobs = [
            lanes.submit_nowait(trio.sleep, 0.01, lane=f"tenant:{n}", session=f"{n}")
            for _ in range(2)
            for n in range(count)
        ]
        for job in jobs:
            await job.wait_done()


RATE = RateLimit(10, per=0.1, algorithm="sliding")


@pytest.mark.parametrize(
    ("config", "group"),
    [
        ({}, {"concurrency": 20}),
        ({}, {"concurrency": 20, "rate": RATE}),
        ({"rate": RateLimit(1, per=1)}, {"concurrency": 20}),
        ({"aging": 5}, {"rate": RATE}),
    ],
    ids=["tokens", "tokens and a rate", "rates of tenants", "a rate and aging"],
)
def test_a_job_costs_as_much_however_many_tenants_share_a_group_with_accounting(
    config: dict[str, Any], group: dict[str, Any]
) -> None:
    few, many = (calls_of(partial(tenants, n, config, group)) / n for n in (FEW, MANY))
    assert many <= 1.1 * few


async def owners(count: int, weights: Mapping[str, float] | None) -> None:
    config = LaneConfig(paused=True, fair=weights is None, weights=weights or {})
    async with open_lanes({"main": config}) as lanes:
        jobs = [lanes.submit_nowait(trio.sleep, 0, owner=f"user{n}") for n in range(count)]
        for job in jobs[: count // 2]:
            job.cancel()
        lanes.resume("main")
        await jobs[-1].wait()


@pytest.mark.parametrize("weighted", [False, True])
def test_a_job_costs_as_much_however_many_owners_wait_or_have_a_weight(weighted: bool) -> None:
    few, many = (
        calls_of(
            partial(owners, n, {f"user{i}": 1 + i % 7 for i in range(n)} if weighted else None)
        )
        / n
        for n in (FEW, 2 * MANY)
    )
    assert many <= 1.1 * few


@pytest.mark.parametrize("options", [{"fair": True}, {"weights": {"user1*": 2, "*": 1}}])
def test_a_look_at_the_first_job_of_a_fair_lane_reads_no_others(options: dict[str, Any]) -> None:
    async def look(count: int, times: int) -> None:
        async with open_lanes({"main": LaneConfig(paused=True, **options)}) as lanes:
            for n in range(count):
                # half of them weigh double, however many there are
                lanes.submit_nowait(trio.sleep, 0, session=f"user{n % 2}-{n}")
            await trio.sleep(20)  # `health` tells of it
            for _ in range(times):
                assert lanes.lane("main").head(1)
                assert lanes.health()
            lanes.clear()

    def calls_of_looks(count: int) -> int:
        return calls_of(partial(look, count, 20)) - calls_of(partial(look, count, 0))

    few, many = (calls_of_looks(n) for n in (4 * FEW, 2 * MANY))  # it reads 500 at most
    assert many <= 1.1 * few
