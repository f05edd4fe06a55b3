"""Tests of names: which ones every store refuses, and that each store keeps the longest."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any, Final

import trio

from trio_lanes import LaneConfig, LaneGroup, RateLimit
from trio_lanes.durable import DurableJobError, DurableLanes, DurableState, NoRetry

from .bench import Bench, this_run

LENGTH: Final = 1_000
REFUSED: Final = ("a\0b", "ä\0b", "a\ud800b", "x" * (LENGTH + 1), "ä" * (LENGTH + 1))
"""Names that some store could not keep."""
NAMED_LANES: Final = {"main": 4, "t:*": 2}


def acts(lanes: DurableLanes, name: str) -> Iterator[Callable[[], Awaitable[Any]]]:
    """Yield every act and every question of lanes that names something."""

    async def lock() -> None:
        await lanes.lock(name).__aenter__()

    async def log() -> None:
        lanes.log(name)

    submit = partial(lanes.submit, "echo")
    yield partial(lanes.submit, name)
    yield partial(submit, session=name)
    yield partial(submit, key=name)
    yield partial(submit, lane=f"t:{name}")
    yield partial(submit, cost={name: 1})
    yield partial(lanes.schedule, name, "echo", every=9e6)
    yield partial(lanes.unschedule, name)
    yield partial(lanes.send, name, "hello")
    yield partial(lanes.send, "s", "hello", key=name)
    yield from (lock, log)
    for of in (f"t:{name}", f"session:{name}"):
        yield partial(lanes.pause_for, of, 1)
        for control in (lanes.pause, lanes.resume, lanes.clear, lanes.jobs, lanes.dead):
            yield partial(control, of)
        for choose in (lanes.requeue, lanes.purge):
            yield partial(choose, name=of)
    for find in (lanes.jobs, lanes.dead, lanes.requeue, lanes.purge):
        yield partial(find, handler=name)
        yield partial(find, error=name)
    for of_session in (lanes.running, lanes.abort, lanes.queue):
        yield partial(of_session, name)
    yield partial(lanes.configure, {name: 1})
    yield partial(lanes.configure, {name: None})
    yield partial(lanes.configure, {"main": LaneConfig(rate=RateLimit(1, unit=name))})
    yield partial(lanes.configure, {"main": 1}, {name: LaneGroup(["main"])})
    yield partial(lanes.configure, {"main": 1}, {"g": LaneGroup(["main", name])})


class NameStories(Bench):
    async def test_a_name_that_a_store_could_not_keep_is_refused_and_nothing_written(self) -> None:
        for name in REFUSED:
            for options in (
                {"handlers": {name: trio.sleep}},
                {"lanes": {"main": 1, name: 1}},
                {"groups": {name: LaneGroup(["main"])}},
                {"quotas": {name: RateLimit(1)}},
                {"quotas": {"q": RateLimit(1, unit=name)}},
            ):
                with self.raises(ValueError):
                    self.instance(**options)
        async with self.instance(lanes=NAMED_LANES) as lanes:
            for name in REFUSED:
                for act in acts(lanes, name):
                    with self.raises(ValueError) as caught:
                        await act()
                    # the field, and the value or its beginning
                    assert str(caught[0]).partition(" must ")[2], caught
                    assert repr(name[:2])[1:-1] in str(caught[0])
            assert await lanes.jobs() == []
            assert set(await lanes.limits()) == set(NAMED_LANES)
            await (await lanes.submit("echo", 7)).wait()
            assert self.log == [7]

    async def test_names_of_1000_characters_are_kept(self) -> None:
        async def hear(payload: Any) -> Any:
            run = this_run()
            return await anext(aiter(run.messages()))

        async def fail(payload: Any) -> None:
            raise NoRetry

        dice = random.Random(0)  # the text cannot be compressed, which an index would do

        def longest(before: str = "") -> str:
            return before + "".join(
                chr(dice.randrange(0x10000, 0x110000)) for _ in range(LENGTH - len(before))
            )

        hears, fails, unit, lane, quota = longest(), longest(), longest(), longest(), longest()
        rate = RateLimit(2, unit=unit)
        limits = {lane: LaneConfig(concurrency=1, rate=rate), "t:*": 2, longest("t")[:-1] + "*": 1}
        async with self.instance(
            lanes={"main": 4, **limits},
            groups={longest(): LaneGroup([lane])},
            quotas={quota: rate},
            handlers={hears: hear, fails: fail},
        ) as lanes:
            session, key = longest(), longest()
            job = await self.submitted(hears, session=session, key=key, lane=lane, cost={unit: 2})
            assert await lanes.send(session, "hello", key=longest())
            assert await job.wait() == "hello"
            tenant = longest("t:")
            job = await lanes.submit(fails, lane=tenant)
            await self.fails(job, DurableJobError)
            await lanes.pause(tenant)
            await lanes.pause(f"session:{session}")
            assert [one.id for one in await lanes.jobs(tenant, handler=fails)] == [job.id]
            async with lanes.lock(longest()):
                await lanes.log(log := longest()).append(1)
            assert [record.data for record in await lanes.log(log).read(-1)] == [1]
            assert await lanes.log(log).read(10**30) == []
            assert await lanes.log(log).delete()
            await lanes.quota(quota).spend(wait=True, **{unit: 1})
            assert (await lanes.check()).problems == ()
            waiting = await lanes.submit(hears, lane=tenant, session=session)
        async with self.instance(lanes={}, worker=False) as lanes:
            assert (await lanes.job(waiting.id).status()).state is DurableState.WAITING
            assert await lanes.clear(tenant) == 1
