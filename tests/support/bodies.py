"""Bodies that end in all the ways in which one can; most take two seconds, or never end."""

from typing import Any

import trio

from trio_lanes import Job, current_job


class BodyError(Exception):
    """What bodies raise here."""


def this_job() -> Job[Any]:
    """Return the job in whose body this is called."""
    job = current_job()
    assert job is not None
    return job


async def echo(item: Any) -> Any:
    return item


async def sleeps(seconds: float) -> float:
    await trio.sleep(seconds)
    return seconds


async def returns() -> str:
    await trio.sleep(2)
    return "value"


async def returns_at_once() -> str:
    return "value"


async def returns_in_spite_of_all() -> str:
    with trio.CancelScope(shield=True):
        await trio.sleep(2)
    return "value"


async def swallows_its_cancellation() -> str:
    try:
        await trio.sleep_forever()
    except trio.Cancelled:
        pass
    return "value"


async def raises() -> str:
    await trio.sleep(2)
    raise BodyError


async def raises_at_once() -> str:
    raise BodyError


async def raises_when_cancelled() -> str:
    try:
        await trio.sleep_forever()
    finally:
        raise BodyError


async def raises_beside_its_cancellation() -> str:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(raises_when_cancelled)
        await trio.sleep_forever()
    raise AssertionError


async def never_ends() -> str:
    await trio.sleep_forever()
    raise AssertionError


async def a_nursery_that_never_ends() -> str:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep_forever)
        nursery.start_soon(trio.sleep_forever)
    raise AssertionError


async def cleans_up_shielded() -> str:
    try:
        await trio.sleep_forever()
    finally:
        with trio.CancelScope(shield=True):
            await trio.sleep(1)
    raise AssertionError


async def cancels_itself_and_returns() -> str:
    this_job().cancel("by itself")
    return "value"


async def cancels_itself_and_raises() -> str:
    this_job().cancel("by itself")
    raise BodyError


async def cancels_itself_and_waits() -> str:
    this_job().cancel("by itself")
    await trio.sleep_forever()
    raise AssertionError


async def wraps_everything_in_a_group() -> str:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(raises_at_once)
    raise AssertionError
