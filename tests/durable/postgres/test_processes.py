"""Four processes on one server, killed and stopped: nothing is lost, doubled or out of order."""

from functools import partial
from pathlib import Path

import pytest

from tests.durable.kill_program import LANES
from tests.durable.kills import killing
from tests.support.chaos import number
from trio_lanes.durable import PostgresStore, open_durable_lanes

from .server import Server

pytestmark = pytest.mark.real_processes


@pytest.mark.slow
async def test_kill_9_and_stops_longer_than_the_lease(
    server: Server, namespace: str, tmp_path: Path
) -> None:
    store = PostgresStore(server.dsn(), namespace=namespace, patience=60)
    address = f"{server.dsn()}#{namespace}"
    async with open_durable_lanes(store, {}, LANES, worker=False) as lanes:
        async with killing(lanes, "postgres", address, tmp_path) as story:
            await story.go_on(partial(story.kill_and_stop, number("KILLS", 12)))
            print(story.summary())
            await story.check()
