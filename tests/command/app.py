"""Applications that are run by the command: what stands after the colon of ``APP:LANES``."""

import asyncio
import json
import os
import signal
import socket
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import trio

import trio_lanes.aio
from trio_lanes.command._stores import find_store
from trio_lanes.durable import (
    DurableLanes,
    MemoryStore,
    RetryPolicy,
    SqliteStore,
    current_job,
    open_durable_lanes,
)


async def act(what: Any) -> Any:
    """What jobs of these applications do, by what they are given."""
    if isinstance(what, int | float):
        await trio.sleep(what)
    elif what == "fail":
        raise ValueError("this one fails")
    elif what == "deaf":
        with trio.CancelScope(shield=True):
            await trio.sleep(3600)
    elif what.startswith("until "):
        while not await trio.Path(what.removeprefix("until ")).exists():  # noqa: ASYNC110
            await trio.sleep(0.02)
    elif what.startswith("stop the parent but once "):
        try:
            open(what.removeprefix("stop the parent but once "), "x").close()  # noqa: ASYNC230
        except FileExistsError:
            return what
        os.kill(os.getppid(), signal.SIGTERM)
    return what


async def other(what: Any) -> None:
    """Another handler."""


def sqlite() -> AbstractAsyncContextManager[DurableLanes]:
    """Over a file that the environment names."""
    return open_durable_lanes(
        SqliteStore(os.environ["TEST_JOBS"]),
        {"act": act, "other": other},
        {"main": 2, "cron": 1},
        retry=RetryPolicy(max_attempts=1),
    )


async def note(what: Any) -> Any:
    """Note in a database beside the store that this has run, and how often."""
    run = current_job()
    assert run is not None
    if what in (60, 61):
        await trio.sleep(what)
    await trio.sleep(0.05)
    with sqlite3.connect(f"{os.environ['TEST_JOBS']}.notes", timeout=60) as notes:
        notes.execute("CREATE TABLE IF NOT EXISTS notes (told TEXT)")
        notes.execute("INSERT INTO notes VALUES (?)", (json.dumps([run.session, what]),))
    notes.close()
    return what


async def last(what: Any) -> None:
    """Note when this begins and ends. It ends when it is cancelled: late, or never, or at once."""

    def say(word: str) -> None:
        line = f"{word} {what} {os.getpid()} {time.monotonic()}\n"
        with open(f"{os.environ['TEST_JOBS']}.runs", "a") as runs:
            runs.write(line)

    say("begins")
    try:
        if what == "never":
            time.sleep(3600)  # noqa: ASYNC251
        await trio.sleep_forever()
    finally:
        with trio.CancelScope(shield=True):
            await trio.sleep(3 if what == "late" else 0)
        say("ends")


@asynccontextmanager
async def listening() -> AsyncIterator[DurableLanes]:
    """As `served`, in a process that listens as well."""
    async with open_durable_lanes(
        SqliteStore(os.environ["TEST_JOBS"]),
        {"last": last},
        {"main": 8},
        lease_ttl=float(os.environ.get("TEST_LEASE", "30")),
        max_crashes=1_000,
    ) as lanes:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"{os.environ['TEST_JOBS']}.{os.getpid()}")
            listener.listen()
            yield lanes


async def waits(what: Any) -> None:
    """Wait for long, in an asyncio loop."""
    await asyncio.sleep(3600)


def in_loop() -> Any:
    """As `served`, of an asyncio application."""
    store = SqliteStore(os.environ["TEST_JOBS"])
    return trio_lanes.aio.open_durable_lanes(store, {"waits": waits}, {"main": 8})


def networked() -> AbstractAsyncContextManager[DurableLanes]:
    """Over a server that the environment names."""
    return open_durable_lanes(
        find_store(os.environ["TEST_STORE"], make=True),
        {"act": act},
        {"main": 8},
        capacity=8,
        lease_ttl=300,
    )


def served() -> AbstractAsyncContextManager[DurableLanes]:
    """Over a file that the environment names, with room for what a kill costs."""
    return open_durable_lanes(
        SqliteStore(os.environ["TEST_JOBS"]),
        {"note": note},
        {"main": 8},
        capacity=8,
        lease_ttl=float(os.environ.get("TEST_LEASE", "30")),
        max_crashes=1_000,
    )


@asynccontextmanager
async def memory() -> AsyncIterator[DurableLanes]:
    """Each process has its own, in which there is from the start what the environment says."""
    async with open_durable_lanes(MemoryStore(), {"act": act}, {"main": 2}) as lanes:
        for what in os.environ.get("TEST_ACTS", "").split(","):
            if what:
                await lanes.submit("act", what)
        yield lanes


def limits() -> dict[str, int]:
    """What SIGHUP reads anew."""
    return {"main": 7}


# ---- values that are not applications

number = 5


@asynccontextmanager
async def nothing() -> AsyncIterator[None]:
    """Gives no lanes."""
    yield None


def asking() -> AbstractAsyncContextManager[DurableLanes]:
    """Runs no jobs."""
    return open_durable_lanes(MemoryStore(), {}, {"main": 1}, worker=False)


def wants(something: object) -> None:
    """Cannot be called without arguments."""


async def coroutine() -> None:
    """Is async itself."""
