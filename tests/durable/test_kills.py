"""Workers on a file that another process serves, killed while they run jobs, and that process."""

from functools import partial
from pathlib import Path

import pytest
import trio

from tests.durable.kill_program import LANES
from tests.durable.kills import again, killing
from tests.support.chaos import number
from trio_lanes.durable import DurableLanes, SqliteStore, open_durable_lanes
from trio_lanes.durable._sqlite.guest import host
from trio_lanes.durable._wire.sockets import serve_unix

pytestmark = pytest.mark.real_processes


async def bury(lanes: DurableLanes, pid: int) -> None:
    """Report the end of a process, as its supervisor does."""
    for one in await again(lanes.instances):
        if one.pid == pid:
            await again(partial(lanes._store.declare_dead, one.id))


@pytest.mark.slow
async def test_kill_9_on_a_served_file_loses_nothing(tmp_path: Path) -> None:
    path = str(tmp_path / "store")
    async with host(SqliteStore(tmp_path / "jobs.db", patience=60)) as owner:
        async with trio.open_nursery() as nursery:
            await nursery.start(serve_unix, path, owner.guest)
            async with open_durable_lanes(owner.guest(), {}, LANES, worker=False) as lanes:
                ends = partial(bury, lanes)
                async with killing(lanes, "served", path, tmp_path, ends) as story:
                    await story.go_on(partial(story.kill_and_stop, number("KILLS_SERVED", 20)))
                    print(story.summary())
                    await story.check()
            nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_kill_9_of_the_process_that_serves_a_file_runs_nothing_twice_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KILLS_LEASE", "30")  # the default, of which no kill waits for the end
    file = tmp_path / "jobs.db"
    store = SqliteStore(file, patience=60)
    async with open_durable_lanes(store, {}, LANES, worker=False) as lanes:
        async with killing(lanes, "family", str(file), tmp_path, partial(bury, lanes)) as story:
            story.parent = await story.workers.parent()
            await story.go_on(partial(story.kill_families, number("KILLS_SERVED", 10)))
            print(story.summary())
            await story.check()
            story.check_nothing_ran_twice_at_once()
            assert story.parents_killed
            assert story.longest < 25  # four seconds, on a quiet machine, and not the lease
