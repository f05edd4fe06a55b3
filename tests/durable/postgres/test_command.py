"""The command `trio-lanes` on a store in PostgreSQL."""

import json
import os
import subprocess
import sys

import pytest
import trio

from trio_lanes.command._exits import CommandError
from trio_lanes.command._stores import find_store
from trio_lanes.durable import PostgresStore, open_durable_lanes

from .server import Server

pytestmark = pytest.mark.real_processes


async def ask(*arguments: str) -> "subprocess.CompletedProcess[bytes]":
    return await trio.run_process(
        [sys.executable, "-m", "trio_lanes", *arguments],
        capture_stdout=True,
        capture_stderr=True,
        check=False,
    )


async def test_the_command_shows_a_store_and_changes_it(server: Server, namespace: str) -> None:
    store = PostgresStore(server.dsn(), namespace=namespace)
    async with open_durable_lanes(store, {}, worker=False) as lanes:
        await lanes.submit("a", session="s")
    named = f"{server.dsn()}#{namespace}"
    done = await ask("clear", "session:s", "--store", named)
    assert done.returncode == 0, done.stderr
    done = await ask("status", "--store", named, "--json")
    assert json.loads(done.stdout)["waiting"] == 0


async def test_the_command_lists_the_instances(server: Server, namespace: str) -> None:
    async def act(payload: object) -> None: ...

    store = PostgresStore(server.dsn(), namespace=namespace)
    async with open_durable_lanes(store, {"act": act}) as lanes:
        done = await ask("instances", "--store", f"{server.dsn()}#{namespace}", "--json")
        (here,) = await lanes.instances()
    (told,) = json.loads(done.stdout)
    assert (told["id"], told["pid"], told["names"]) == (here.id, os.getpid(), ["act"])
    assert (told["lives"], told["lease_ttl"]) == (True, 30.0)
    assert told["activity"]["commits"] >= 0


async def test_the_command_makes_no_store(server: Server, namespace: str) -> None:
    done = await ask("status", "--store", f"{server.dsn()}#{namespace}")
    assert done.returncode != 0
    assert b"a worker makes it" in done.stderr
    query = f"SELECT count(*) FROM pg_namespace WHERE nspname = '{namespace}'"
    assert server.run(query) == [(0,)]


def test_the_namespace_stands_behind_the_number_sign() -> None:
    assert "namespace 'jobs'" in repr(find_store("postgresql://db/app#jobs"))
    assert "namespace 'lanes'" in repr(find_store("postgresql://db/app"))
    with pytest.raises(CommandError, match="namespace"):
        find_store("postgresql://db/app#No")
