"""What a job costs where very many tenants or owners have lanes, or wait, in counts of calls."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest
import trio

from tests.contract.costs.test_costs import calls_of
from trio_lanes import LaneConfig, LaneGroup, RateLimit, open_lanes

pytestmark = pytest.mark.slow

FEW, MANY = 250, 2_000


async def tenants(count: int, config: Mapping[str, Any], group: Mapping[str, Any]) -> None:
    """Each tenant has a lane of its own and two jobs; all lanes are in one group."""
    async with open_lanes(
        {"tenant:*": LaneConfig(**config)},
        groups={"key": LaneGroup(["tenant:*"], **group)},
        wait_accounting=True,
    ) as lanes:
        for _ in range(2):
            for n in range(count):
                lanes.submit_nowait(trio.sleep, 0.01, lane=f"tenant:{n}", session=f"{n}")


RATE = RateLimit(10, per=0.1, algorithm="sliding")


@pytest.mark.parametrize(
    ("config", "group"),
    [
        ({}, {"concurrency": 20}),
        ({}, {"concurrency": 20, "rate": RATE}),
        ({"rate": RateLimit(1, per=1)}, {"concurrency": 20}),
        ({"paused": False, "aging": 5}, {"rate": RATE}),
    ],
    ids=["tokens", "tokens and a rate", "rates of tenants", "a rate and aging"],
)
def test_a_job_costs_as_much_however_many_tenants_share_a_group_with_accounting(
    config: dict[str, Any], group: dict[str, Any]
) -> None:
    few, many = (calls_of(partial(tenants, n, config, group)) / n for n in (FEW, MANY))
    assert many <= 1.1 * few
