"""Four processes on one server, killed and stopped: nothing is lost, doubled or out of order."""

from pathlib import Path

import pytest

from tests.durable.kill_program import LANES
from tests.durable.kills import killing
from tests.support.chaos import number
from trio_lanes.durable import ValkeyStore, open_durable_lanes

from .server import Server

pytestmark = pytest.mark.real_processes


@pytest.mark.slow
async def test_kill_9_and_stops_longer_than_the_lease(
    server: Server, namespace: str, tmp_path: Path
) -> None:
    store = ValkeyStore(server.url, namespace=namespace, patience=60)
    address = f"{server.url}#{namespace}"
    async with open_durable_lanes(store, {}, LANES, worker=False) as lanes:
        async with killing(lanes, "valkey", address, tmp_path) as story:
            await story.go_on(number("KILLS", 8))
            print(story.told())
            await story.check()
