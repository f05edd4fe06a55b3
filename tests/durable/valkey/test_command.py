"""The command `trio-lanes` on a store in Valkey."""

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import trio

from tests.command.test_processes import Start, start
from trio_lanes.command._exits import CommandError
from trio_lanes.command._stores import find_store
from trio_lanes.durable import DurableState, ValkeyStore, open_durable_lanes

from .server import Server

__all__ = ["start"]

pytestmark = pytest.mark.real_processes

WORK = ("worker", "tests.command.app:networked")


async def ask(*arguments: str) -> "subprocess.CompletedProcess[bytes]":
    return await trio.run_process(
        [sys.executable, "-m", "trio_lanes", *arguments],
        capture_stdout=True,
        capture_stderr=True,
        check=False,
    )


async def test_the_command_shows_a_store_and_changes_it(server: Server, namespace: str) -> None:
    store = ValkeyStore(server.url, namespace=namespace)
    async with open_durable_lanes(store, {}, worker=False) as lanes:
        await lanes.submit("a", session="s")
    named = f"{server.url}#{namespace}"
    done = await ask("clear", "session:s", "--store", named)
    assert done.returncode == 0, done.stderr
    done = await ask("status", "--store", named, "--json")
    assert json.loads(done.stdout)["waiting"] == 0


async def test_a_process_that_dies_gives_its_jobs_to_another_before_its_lease_ends(
    server: Server, namespace: str, start: Start, tmp_path: Path
) -> None:
    gate, named = tmp_path / "gate", f"{server.url}#{namespace}"
    parent = await trio.to_thread.run_sync(partial(start, *WORK, "--processes=2", TEST_STORE=named))
    for number in "12":
        await trio.to_thread.run_sync(parent.see, f"process {number} is ready")
    async with open_durable_lanes(
        ValkeyStore(server.url, namespace=namespace), {}, worker=False
    ) as lanes:
        job = await lanes.submit("act", f"until {gate}")
        with trio.fail_after(30):
            while (await job.status()).state is not DurableState.RUNNING:  # noqa: ASYNC110
                await trio.sleep(0.02)
        (running,) = [one for one in await lanes.instances() if one.running]
        os.kill(running.pid, signal.SIGKILL)
        gate.touch()
        with trio.fail_after(30):  # the lease is one of 300 s
            await job.wait()
        status = await job.status()
        assert (status.attempt, status.crashes) == (1, 1)
    parent.send(signal.SIGTERM)
    assert await trio.to_thread.run_sync(parent.ended) == 0


async def test_the_command_lists_the_instances(server: Server, namespace: str) -> None:
    async def act(payload: object) -> None: ...

    store = ValkeyStore(server.url, namespace=namespace)
    async with open_durable_lanes(store, {"act": act}) as lanes:
        done = await ask("instances", "--store", f"{server.url}#{namespace}", "--json")
        (here,) = await lanes.instances()
    (told,) = json.loads(done.stdout)
    assert (told["id"], told["pid"], told["names"]) == (here.id, os.getpid(), ["act"])
    assert (told["lives"], told["lease_ttl"]) == (True, 30.0)
    assert told["activity"] is None


async def test_the_command_makes_no_store(server: Server, namespace: str) -> None:
    done = await ask("status", "--store", f"{server.url}#{namespace}")
    assert done.returncode != 0
    assert b"a worker makes them" in done.stderr
    assert server.ask("EXISTS", f"{{{namespace}}}:meta") == 0


@pytest.mark.parametrize("scheme", ["valkey", "valkeys", "redis", "rediss"])
def test_the_namespace_stands_behind_the_number_sign(scheme: str) -> None:
    assert "h:6379/1, namespace 'jobs'" in repr(find_store(f"{scheme}://h/1#jobs"))
    assert "namespace 'lanes'" in repr(find_store(f"{scheme}://h"))
    with pytest.raises(CommandError, match="database"):
        find_store(f"{scheme}://h/x")


def test_a_socket_has_a_path() -> None:
    assert "/run/valkey, namespace 'jobs'" in repr(find_store("unix:///run/valkey?db=1#jobs"))
