"""Life locks: a new owner of a file waits for the ends of workers whose parent has died."""

from __future__ import annotations

import errno
import fcntl
import math
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from tests.durable.conformance.bench import new_job, opening
from trio_lanes.durable import DurableState, SqliteStore, open_durable_lanes
from trio_lanes.durable._sqlite import life_lock
from trio_lanes.durable._sqlite.guest import host
from trio_lanes.durable._sqlite.life_lock import ended_lives, forget_life, hold_life
from trio_lanes.durable._sqlite.owner_lock import is_taken
from trio_lanes.durable.acts.jobs import Enqueue


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


def files(path: Path) -> list[str]:
    return sorted(one.name for one in path.parent.iterdir() if ".life-" in one.name)


def die() -> None:
    """Free the last life lock, as the system does at the end of its process."""
    os.close(life_lock._held.pop())


def test_a_life_lock_is_free_when_its_process_has_ended(path: Path) -> None:
    hold_life(path, "one")
    hold_life(path, "two")
    assert ended_lives(path, {"one", "two"}) == set()
    die()
    assert ended_lives(path, {"one", "two"}) == {"two"}
    assert files(path) == ["jobs.db.life-one", "jobs.db.life-two"]
    assert ended_lives(path, {"one"}) == {"two"}  # of which nothing is left to give back
    assert files(path) == ["jobs.db.life-one"]
    die()
    forget_life(path, "one", "none")
    assert files(path) == []


def test_a_process_that_looks_or_clears_up_does_not_take_a_life_lock(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, times = fcntl.flock, 0

    def flock(descriptor: int, how: int) -> None:
        nonlocal times
        times += 1
        if times == 1:  # another process has it for a moment
            raise BlockingIOError
        lock(descriptor, how)
        if times == 2:  # another process took it before, and removes the file
            forget_life(path, "me")
        elif times == 3:  # and then there is another file
            forget_life(path, "me")
            Path(f"{path}.life-me").touch()

    monkeypatch.setattr(fcntl, "flock", flock)
    hold_life(path, "me")
    assert times == 4
    assert ended_lives(path, set()) == set()
    die()


def test_where_files_cannot_be_locked_the_lease_counts(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def flock(descriptor: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    hold_life(path, "me")
    assert "given back at the end of its lease" in caplog.text
    assert files(path) == []
    assert ended_lives(path / "no folder", set()) == set()


@asynccontextmanager
async def orphan(path: Path, **options: Any) -> AsyncIterator[int]:
    """A job that a worker runs whose parent has died."""
    with trio.CancelScope() as dead:
        async with host(SqliteStore(path)) as owner:
            guest = owner.guest()
            async with guest.open(attrs.evolve(opening(), **options)):
                await guest.join("me")
                (id,) = await guest.do(Enqueue([new_job()]), "ticket")
                assert (await guest.step(1, [], 1)).claims
                dead.cancel()
                await trio.lowlevel.checkpoint()
    yield id


async def echo(payload: Any) -> Any:
    return payload


@pytest.mark.parametrize("is_served", [False, True])
async def test_what_a_worker_of_a_dead_parent_runs_is_given_back_when_it_has_ended(
    path: Path, is_served: bool
) -> None:
    hold_life(path, "me")
    async with orphan(path, lease_ttl=3600) as id, host_or_worker(path, is_served) as lanes:
        job = lanes.job(id)
        for _ in range(2):
            with trio.move_on_after(1.2):
                await job.wait()
            status = await job.status()
            assert (status.state, status.crashes) == (DurableState.RUNNING, 0)
        die()
        assert await job.wait() == 1
        assert (await job.status()).crashes == 1
    assert files(path) == []


async def test_without_a_life_lock_it_is_given_back_when_the_lease_is_over(path: Path) -> None:
    async with orphan(path, lease_ttl=2.0) as id, host_or_worker(path, False) as lanes:
        assert (await lanes.job(id).status()).state is DurableState.RUNNING
        assert await lanes.job(id).wait() == 1
        assert (await lanes.job(id).status()).crashes == 1


@asynccontextmanager
async def host_or_worker(path: Path, is_served: bool) -> AsyncIterator[Any]:
    """A new owner of the file, and lanes that work on it."""
    handlers: dict[str, Any] = {"echo": echo}
    if not is_served:
        async with open_durable_lanes(SqliteStore(path), handlers) as lanes:
            yield lanes
        return
    async with host(SqliteStore(path)) as owner:
        async with open_durable_lanes(owner.guest(), handlers) as lanes:
            yield lanes


async def test_what_an_only_worker_ran_is_given_back_at_once(path: Path) -> None:
    async with orphan(path, lease_ttl=math.inf) as id, host_or_worker(path, False) as lanes:
        assert await lanes.job(id).wait() == 1


def test_a_file_that_is_not_there_has_no_owner(tmp_path: Path) -> None:
    assert not is_taken(tmp_path / "jobs.db")
