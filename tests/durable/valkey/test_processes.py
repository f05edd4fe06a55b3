"""Four processes on one server, killed and stopped: nothing is lost, doubled or out of order."""

import os
import signal
from functools import partial
from pathlib import Path

import pytest
import trio

from tests.durable.kill_program import LANES
from tests.durable.kills import killing
from tests.support.chaos import number
from trio_lanes.durable import ValkeyStore, open_durable_lanes

from .proxy import Proxy
from .server import Server, programs

pytestmark = [pytest.mark.real_processes, pytest.mark.needs("Valkey")]


@pytest.mark.slow
async def test_kill_9_and_stops_longer_than_the_lease(
    server: Server, namespace: str, tmp_path: Path
) -> None:
    store = ValkeyStore(server.url, namespace=namespace, patience=60)
    address = f"{server.url}#{namespace}"
    async with open_durable_lanes(store, {}, LANES, worker=False) as lanes:
        async with killing(lanes, "valkey", address, tmp_path) as story:
            await story.go_on(partial(story.kill_and_stop, number("KILLS", 12)))
            print(story.summary())
            await story.check()


LOST = 300_000
"""Bytes at the end of the file that a machine's crash may take."""
HOUR = 3600


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [
        "always",
        "everysec",
        "machine",
        pytest.param("clock", marks=pytest.mark.needs("libfaketime")),
    ],
)
async def test_a_server_that_is_killed_while_processes_run_jobs(tmp_path: Path, how: str) -> None:
    fsync = "always" if how in ("always", "clock") else "everysec"
    server = Server(programs()["valkey"], appendfsync=fsync)
    deaths = number("KILLS_SERVER", 3)

    async def kill_server() -> None:
        while not story.log.runs:
            story.log.read()
            await trio.sleep(0.05)
        (file,) = server.folder.glob("appendonlydir/*.incr.aof")
        made = file.stat().st_size  # what is lost are acts, and not the store itself
        for _ in range(deaths):
            await trio.sleep(1 + story.dice.random())
            if story.dice.random() < 0.3:
                await story.kill()
            server.stop(signal.SIGKILL)
            if how == "machine":  # it takes the end of the file, too
                (file,) = server.folder.glob("appendonlydir/*.incr.aof")
                size = file.stat().st_size
                os.truncate(file, max(made, size // 2, size - story.dice.randrange(LOST)))
            ahead = story.dice.choice((-HOUR, 0, HOUR)) if how == "clock" else 0
            await trio.to_thread.run_sync(server.start, ahead)

    server.start()
    try:
        store = ValkeyStore(server.url, patience=60)
        async with open_durable_lanes(store, {}, LANES, worker=False) as lanes:
            async with killing(lanes, "valkey", f"{server.url}#lanes", tmp_path) as story:
                if fsync != "always":
                    story.families = None  # the number of a lost parent may be another job's
                await story.go_on(kill_server)
                if fsync == "always":
                    await story.check()
                    print(f"{deaths} deaths of the server;", story.summary())
                else:
                    print(f"{deaths} deaths of the server;", await story.check_after_losses())
    finally:
        server.remove()


@pytest.mark.slow
async def test_cuts_between_four_processes_and_the_server_repeat_nothing(
    server: Server, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KILLS_LEASE", "60")  # a process that stands still loses no run
    proxy, most = Proxy(server.port), number("CUTS", 40)
    store = ValkeyStore(server.url, namespace=namespace, patience=60)

    async def disturb() -> None:
        for _ in range(most):
            await trio.sleep(story.dice.random() * 0.1)
            await proxy.disturb(story.dice)

    async with trio.open_nursery() as carrying:
        await carrying.start(proxy.serve)
        async with open_durable_lanes(store, {}, LANES, worker=False) as lanes:
            async with killing(lanes, "valkey", f"{proxy.url}#{namespace}", tmp_path) as story:
                await story.go_on(disturb)
                await story.check_nothing_repeated()
                print(f"{most} faults, {story.submitted} jobs, {proxy.connections} connections")
        carrying.cancel_scope.cancel()


@pytest.mark.slow
async def test_a_rolling_sigterm_and_wrong_clocks_repeat_nothing_and_count_no_crash(
    server: Server, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KILLS_LEASE", "60")  # a process that stands still loses no run
    monkeypatch.setenv("KILLS_CLOCK", "3600")  # the clocks of processes decide nothing
    store = ValkeyStore(server.url, namespace=namespace, patience=60)
    address = f"{server.url}#{namespace}"
    async with open_durable_lanes(store, {}, LANES, worker=False) as lanes:
        async with killing(lanes, "valkey", address, tmp_path) as story:
            await story.go_on(partial(story.roll, number("ROLLS", 8)))
            await story.check_nothing_repeated()
            print(f"{number('ROLLS', 8)} processes ended by SIGTERM; {story.submitted} jobs")
