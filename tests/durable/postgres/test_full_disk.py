"""A server whose disk is really full: a small file system for the tables of one namespace."""

import os
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import trio

from tests.support.needs import mount_small
from trio_lanes.durable import PostgresStore, StoreUnavailableError, open_durable_lanes

from .server import Server

pytestmark = pytest.mark.real_processes


@pytest.fixture
def small_disk(server: Server, namespace: str) -> Iterator[Path]:
    """A file system of 8 MB that belongs to the server's user."""
    disk = server.folder / namespace
    disk.mkdir()
    mount_small(disk, "8m")
    owner = server.folder.stat()
    os.chown(disk, owner.st_uid, owner.st_gid)
    yield disk
    server.run(f"DROP SCHEMA {namespace} CASCADE")
    server.run(f"DROP TABLESPACE {namespace}")
    subprocess.run(["umount", "-l", disk], check=True)


async def test_a_disk_that_is_really_full_refuses_new_jobs_and_keeps_the_others(
    server: Server, namespace: str, small_disk: Path
) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * 3_000_000)
    server.run(f"CREATE TABLESPACE {namespace} LOCATION '{small_disk}'")
    options = quote(f"-c default_tablespace={namespace}")
    store = PostgresStore(f"{server.dsn()}&options={options}", namespace=namespace)
    begun, gate = trio.Event(), trio.Event()

    async def wait(payload: Any) -> Any:
        begun.set()
        await gate.wait()
        return payload

    async with open_durable_lanes(store, {"wait": wait}) as lanes:
        await lanes.pause("cron")
        running = await lanes.submit("wait", 7)
        await begun.wait()
        accepted = 0
        with pytest.raises(StoreUnavailableError, match="could not extend file") as caught:
            while accepted < 100:
                await lanes.submit("wait", secrets.token_hex(200_000), lane="cron")
                accepted += 1
        assert not caught.value.unknown
        assert accepted
        gate.set()
        ballast.unlink()
        with trio.fail_after(60):
            assert await running.wait() == 7
            last = await lanes.submit("wait", "there is room")
            assert await last.wait() == "there is room"
        assert (await lanes.statistics()).waiting == accepted
        assert (await lanes.check()).problems == ()
        assert [job for job in await lanes.jobs(limit=-1) if job.crashes] == []
