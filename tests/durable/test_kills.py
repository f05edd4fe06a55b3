"""Workers on a file that another process serves, killed while they run jobs."""

import socket
from functools import partial
from pathlib import Path

import pytest
import trio

from tests.durable.kill_program import LANES
from tests.durable.kills import killing
from tests.support.chaos import number
from trio_lanes.durable import SqliteStore, open_durable_lanes
from trio_lanes.durable._sqlite.guest import host
from trio_lanes.durable._wire.sockets import serve_unix

pytestmark = pytest.mark.real_processes


@pytest.mark.slow
async def test_kill_9_on_a_served_file_loses_nothing(tmp_path: Path) -> None:
    path = str(tmp_path / "store")
    async with host(SqliteStore(tmp_path / "jobs.db", patience=60)) as owner:
        async with trio.open_nursery() as nursery:
            await nursery.start(serve_unix, path, owner.guest)
            async with open_durable_lanes(owner.guest(), {}, LANES, worker=False) as lanes:
                bury = partial(owner.store.declare_dead, socket.gethostname())
                async with killing(lanes, "served", path, tmp_path, bury) as story:
                    await story.go_on(partial(story.kill_and_stop, number("KILLS_SERVED", 20)))
                    print(story.summary())
                    await story.check()
            nursery.cancel_scope.cancel()
