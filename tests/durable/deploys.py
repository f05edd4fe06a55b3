"""A deploy of a version of this library that has another schema, on any store."""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Any

import attrs
import pytest
import trio

from tests.durable.conformance.bench import opening, ticket
from trio_lanes.durable import Store, StoreError, StoreUnavailableError, open_durable_lanes
from trio_lanes.durable.store import StoreVersionError

ME = f"process {os.getpid()} on {socket.gethostname()}"
LONG = 60


async def echo(payload: Any) -> Any:
    await trio.lowlevel.checkpoint()
    return payload


async def error_of(store: Store, *, worker: bool) -> StoreError:
    """Open lanes, which are refused; return the error."""
    with pytest.raises(StoreError) as caught:
        async with open_durable_lanes(store, {"echo": echo}, worker=worker):
            raise AssertionError
    return caught.value


async def deploy(
    store: Callable[[], Store],
    newer: Callable[[], AbstractContextManager[Any]],
    refused: type[StoreError] = StoreUnavailableError,
) -> None:
    """A worker of the newer version migrates, and no worker of the older version may live then.

    Args:
      newer: lets a store be of the newer version if it is opened inside of the block.
      refused: the error of a worker of the newer version that has to wait.
    """
    async with open_durable_lanes(store(), {"echo": echo}) as lanes:
        with newer():
            asks, works = [await error_of(store(), worker=worker) for worker in (False, True)]
            assert type(asks) is StoreVersionError
            assert type(works) is refused
            assert ME in str(asks)
            assert ME in str(works)
        assert await (await lanes.submit("echo", 1)).wait() == 1
        await lanes.pause("main")
        later = await lanes.submit("echo", 2)
    with newer():
        for _ in range(2):
            asks = await error_of(store(), worker=False)
            assert type(asks) is StoreVersionError
            assert "start a worker of this version" in str(asks)
            assert ME not in str(asks)
        async with open_durable_lanes(store(), {"echo": echo}) as lanes:
            await lanes.resume("main")
            assert await lanes.job(later.id).wait() == 2
            assert (await lanes.check()).problems == ()
        async with open_durable_lanes(store(), {}, worker=False) as lanes:
            assert (await lanes.statistics()).waiting == 0
    for worker in (False, True):
        assert type(await error_of(store(), worker=worker)) is StoreVersionError


async def deploy_after_a_kill(
    store: Callable[[], Store],
    newer: Callable[[], AbstractContextManager[Any]],
    meanwhile: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint,
) -> None:
    """A worker of the older version that was killed is in the way until its lease is over."""
    killed = store()
    async with killed.open(attrs.evolve(opening(), lease_ttl=1.0)):
        await killed.join(ticket())
    await meanwhile()
    with newer():
        assert type(await error_of(store(), worker=True)) is StoreUnavailableError
        with trio.fail_after(LONG):
            while True:
                try:
                    async with open_durable_lanes(store(), {"echo": echo}) as lanes:
                        assert await (await lanes.submit("echo", 1)).wait() == 1
                        return
                except StoreUnavailableError:
                    await trio.sleep(0.05)
