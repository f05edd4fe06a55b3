"""Tests of what runs say while they run: events."""

from __future__ import annotations

from typing import Any

import trio

from .. import (
    DurableLanes,
    Finish,
    PayloadError,
    Released,
    ResultGoneError,
    SubmittedJob,
    Succeeded,
    current_job,
)
from ..store import EVENT_BYTES, EVENTS_KEPT
from ._bench import Bench, opening, story, ticket


class TalkStories:
    """Tests of what runs say while they run."""

    @story
    async def test_events_reach_readers_on_any_instance_until_the_job_has_ended(
        self, bench: Bench
    ) -> None:
        async def speak(payload: Any) -> None:
            run = current_job()
            assert run is not None
            for word in ("one", {"two": 2}):
                bench.log.append(await run.emit(word))
            await bench.gate("more").wait()
            await run.emit("three")

        async def read(lanes: DurableLanes, after: int, seen: list[Any]) -> None:
            async for number, event in lanes.job(job.id).events(after=after):
                seen.append((number, event))
            seen.append("ended")

        here: list[Any] = []
        there: list[Any] = []
        late: list[Any] = []
        async with (
            bench.lanes(handlers={"speak": speak}) as lanes,
            bench.lanes(worker=False) as elsewhere,
            trio.open_nursery() as nursery,
        ):
            job = await lanes.submit("speak")
            nursery.start_soon(read, lanes, 0, here)
            nursery.start_soon(read, elsewhere, 1, there)
            for _ in range(3):
                await bench.advance(0.5, lanes)
            assert bench.log == [1, 2]
            assert here == [(1, "one"), (2, {"two": 2})]
            assert there == [(2, {"two": 2})]
            bench.gate("more").set()
            for _ in range(3):
                await bench.advance(0.5, lanes)
            assert here[2:] == there[1:] == [(3, "three"), "ended"]
            await read(elsewhere, 0, late)
            assert late == here
            late.clear()
            await read(elsewhere, 3, late)
            assert late == ["ended"]
            with bench.raises(TypeError):
                lanes.job(job.id).events(after="1")  # type: ignore[arg-type]
            with bench.raises(ResultGoneError):
                await read_one(lanes, 10**9)

    @story
    async def test_what_is_no_event_is_refused_at_the_call(self, bench: Bench) -> None:
        async def speak(payload: Any) -> None:
            run = current_job()
            assert run is not None
            for event in (object(), "x" * EVENT_BYTES):
                with bench.raises(PayloadError):
                    await run.emit(event)
            bench.log.append(await run.emit("x" * (EVENT_BYTES - 2)))

        async with bench.lanes(handlers={"speak": speak}) as lanes:
            await (await lanes.submit("speak")).wait()
            assert bench.log == [1]

    @story
    async def test_events_are_counted_over_all_attempts_and_need_the_fence(
        self, bench: Bench
    ) -> None:
        store = bench.played()
        async with store.open(opening()):
            await store.join()
            (id,) = await store.enqueue([SubmittedJob(name="echo")])
            (first,) = (await store.step([], 1)).claims
            inner, mine = store.store, ticket()
            assert await inner.emit(id, first.fence, '"a"', mine) == 1
            assert await inner.emit(id, first.fence, '"a"', mine) == 1
            (second,) = (await store.step([Finish(id, first.fence, Released())], 1)).claims
            assert await inner.emit(id, first.fence, '"lost"', ticket()) is None
            assert await inner.emit(id, second.fence, '"b"', ticket()) == 2
            assert list(await inner.events(id, 0) or ()) == [(1, '"a"'), (2, '"b"')]
            assert list(await inner.events(id, 1) or ()) == [(2, '"b"')]
            await store.step([Finish(id, second.fence, Succeeded("1"))], 0)
            assert list(await inner.events(id, 2) or ()) == []
            assert await inner.events(10**9, 0) is None
            await store.leave()

    @story
    async def test_the_last_events_are_kept_as_long_as_the_job(self, bench: Bench) -> None:
        store = bench.played()
        async with store.open(opening()):
            await store.join()
            (id,) = await store.enqueue([SubmittedJob(name="echo")])
            (claim,) = (await store.step([], 1)).claims

            async def emit(n: int) -> None:
                await store.store.emit(id, claim.fence, str(n), ticket())

            async with trio.open_nursery() as nursery:
                for n in range(EVENTS_KEPT + 5):
                    nursery.start_soon(emit, n)
            await store.step([Finish(id, claim.fence, Succeeded("1"))], 0)
            numbers: list[int] = [0]
            while found := await store.store.events(id, numbers[-1]):
                numbers += [number for number, _ in found]
            assert numbers[1:] == list(range(6, EVENTS_KEPT + 6))
            await store.leave()


async def read_one(lanes: DurableLanes, id: int) -> None:
    """Read an event of a job."""
    await anext(lanes.job(id).events())
