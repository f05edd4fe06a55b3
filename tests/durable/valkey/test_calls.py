"""How many calls of the script a job takes."""

import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from trio_lanes.durable import Store, Submission, ValkeyStore, open_durable_lanes

from ..test_budgets import OPENING, claim_in_many_lanes, step_beside_held_lanes
from .server import Server

pytestmark = pytest.mark.real_processes


def calls(server: Server, command: str) -> int:
    found = re.search(rf"cmdstat_{command}:calls=(\d+)", server.ask("INFO", "commandstats"))
    return int(found[1]) if found else 0


async def echo(payload: Any) -> Any:
    return payload


async def test_a_job_begins_with_the_call_that_accepts_it_and_ends_with_another(
    server: Server, namespace: str
) -> None:
    store = ValkeyStore(server.url, namespace=namespace)
    async with open_durable_lanes(store, {"echo": echo}, lease_ttl=3600) as lanes:
        await (await lanes.submit("echo")).wait()
        before = calls(server, "fcall")
        for n in range(20):
            assert await (await lanes.submit("echo", n, session="s")).wait() == n
        assert calls(server, "fcall") - before < 2 * 20 + 10  # some are slow looks


async def test_the_ends_that_one_call_brings_are_one_message(
    server: Server, namespace: str
) -> None:
    store = ValkeyStore(server.url, namespace=namespace)
    async with open_durable_lanes(store, {"echo": echo}, {"main": 50}) as lanes:
        before = calls(server, "publish")
        jobs = await lanes.submit_many([Submission(name="echo", payload=n) for n in range(50)])
        assert [await job.wait() for job in jobs] == list(range(50))
        assert calls(server, "publish") - before < 10


@pytest.mark.slow
@pytest.mark.parametrize(
    ("play", "most"), [(claim_in_many_lanes, 4_000), (step_beside_held_lanes, 1_000)]
)
async def test_a_claim_makes_as_many_commands_with_very_many_lanes_that_wait_as_with_100(
    play: Callable[[Store, int, Callable[[], int]], Awaitable[int]],
    most: int,
    server: Server,
    namespace: str,
) -> None:
    def commands() -> int:
        return sum(map(int, re.findall(r":calls=(\d+)", server.ask("INFO", "commandstats"))))

    async def claims(lanes: int) -> int:
        store = ValkeyStore(server.url, namespace=f"{namespace}{lanes}")
        async with store.open(OPENING):
            return await play(store, lanes, commands)

    few, many = await claims(100), await claims(most)
    assert few > 0
    assert many <= 1.2 * few
