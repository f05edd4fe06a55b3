"""Four processes on one server, killed and stopped: nothing is lost, doubled or out of order."""

import os
import random
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
import trio

from trio_lanes.durable import DurableState, PostgresStore, open_durable_lanes

from .server import Server

pytestmark = pytest.mark.real_processes
KILLS = 150 if os.environ.get("TRIO_LANES_LONG_TESTS") else 8
JOBS, SESSIONS = KILLS * 25, 12


async def test_kill_9_and_stops_longer_than_the_lease(
    server: Server, namespace: str, tmp_path: Path
) -> None:
    dice, log = random.Random(1), tmp_path / "runs"
    program = [sys.executable, "-m", "tests.durable.postgres.worker"]

    def spawn() -> "subprocess.Popen[bytes]":
        return subprocess.Popen([*program, server.dsn(), namespace, log])

    store = PostgresStore(server.dsn(), namespace=namespace)
    async with open_durable_lanes(store, {}, {"main": 6}, worker=False) as lanes:
        workers = [spawn() for _ in range(4)]
        try:
            jobs = []
            for n in range(JOBS):
                jobs.append(await lanes.submit("work", n, session=f"s{n % SESSIONS}", key=str(n)))
            with trio.fail_after(120):
                while not await trio.Path(log).exists():  # noqa: ASYNC110 - another process
                    await trio.sleep(0.05)
            stopped = workers[0]
            stopped.send_signal(signal.SIGSTOP)  # for longer than its lease of 2 s
            for _ in range(KILLS):
                await trio.sleep(dice.uniform(0.2, 0.5))
                which = dice.randrange(1, 4)
                workers[which].kill()
                workers[which].wait()
                workers[which] = spawn()
            stopped.send_signal(signal.SIGCONT)
            with trio.fail_after(150 if KILLS < 100 else 600):
                for job in jobs:
                    await job.wait()
            ended = await lanes.jobs(limit=JOBS)
            assert {status.state for status in ended} == {DurableState.SUCCEEDED}
            assert (await lanes.check()).problems == ()
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
    runs: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for line in log.read_text().splitlines():
        session, payload, fence = line.split()
        runs[session].append((int(fence), int(payload)))
    assert {payload for of in runs.values() for _, payload in of} == set(range(JOBS))
    for of in runs.values():
        payloads = [payload for _, payload in sorted(of)]
        assert payloads == sorted(payloads)
