"""`map` over async iterables: read meanwhile, never cancelled by the taking, closed at the end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.bodies import BodyError, echo, sleeps
from trio_lanes import LaneConfig, current_job, open_lanes


class Source:
    """Items that take a second each, and what became of them."""

    def __init__(self, seconds: float = 1, length: int | None = None) -> None:
        self.seconds = seconds
        self.length = length
        self.count = 0
        self.closed_at: float | None = None

    async def items(self) -> AsyncIterator[int]:
        try:
            while self.count != self.length:
                await trio.sleep(self.seconds)
                self.count += 1
                yield self.count - 1
        finally:
            self.closed_at = trio.current_time()


@pytest.mark.many_seeds(5)
@pytest.mark.parametrize("ordered", [True, False])
async def test_results_of_async_items_come_in_order_one_for_each(
    ordered: bool, autojump_clock: MockClock
) -> None:
    ended: list[int] = []

    async def body(item: int) -> int:
        await trio.sleep(item * 7 % 5)
        ended.append(item)
        return item

    source = Source(length=20)
    async with open_lanes({"main": 4}) as lanes:
        async with lanes.map(body, source.items(), ordered=ordered) as results:
            taken = [item async for item in results]
            with pytest.raises(StopAsyncIteration):
                await anext(results)
    assert taken == (list(range(20)) if ordered else ended)
    assert sorted(taken) == list(range(20))


async def test_a_slow_source_holds_up_no_result(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 4}) as lanes:
        async with lanes.map(echo, Source(seconds=10).items()) as results:
            for n in range(5):
                assert await anext(results) == n
                assert trio.current_time() == 10 * (n + 1)


async def test_items_are_read_and_started_while_a_result_is_being_waited_for_or_used(
    autojump_clock: MockClock,
) -> None:
    started: list[float] = []

    async def body(item: int) -> int:
        started.append(trio.current_time())
        await trio.sleep(10)
        return item

    async with open_lanes({"main": 10}) as lanes:
        async with lanes.map(body, Source(length=9).items()) as results:
            await anext(results)
            assert started == [1, 2, 3, 4, 5, 6, 7, 8, 9]
        async with lanes.map(body, Source(length=9).items(), max_outstanding=3) as results:
            await anext(results)
            await trio.sleep(100)
            assert len(started) == 9 + 4  # a window that is full reads no more


async def test_async_items_are_read_no_further_than_the_window(autojump_clock: MockClock) -> None:
    source = Source(seconds=0)
    async with open_lanes({"main": 2}) as lanes:
        async with lanes.map(echo, source.items()) as results:
            for n in range(10):
                assert await anext(results) == n
                await trio.sleep(1)
                assert source.count == n + 5  # the result that was taken made room for one item


@pytest.mark.many_seeds(3)
@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("max_waiting", [1, 100])
async def test_cancelling_the_taking_does_not_cancel_the_reading(
    max_waiting: int, ordered: bool, autojump_clock: MockClock
) -> None:
    taken: list[int] = []

    async def body(item: int) -> int:
        await trio.sleep(item * 7 % 5)
        return item

    cancelled = 0
    config = LaneConfig(concurrency=2, max_waiting=max_waiting)
    async with open_lanes({"main": config}) as lanes:
        async with lanes.map(body, Source(length=20).items(), ordered=ordered) as results:
            while len(taken) < 20:
                with trio.move_on_after(0.5) as scope:
                    taken.append(await anext(results))
                cancelled += scope.cancelled_caught
            with pytest.raises(StopAsyncIteration):
                await anext(results)
    assert cancelled > 10
    assert sorted(taken) == list(range(20))


async def test_room_that_comes_wakes_a_reader_though_no_task_takes_results(
    autojump_clock: MockClock,
) -> None:
    source = Source(seconds=0)
    config = LaneConfig(concurrency=1, max_waiting=1)
    async with open_lanes({"main": config}) as lanes:
        async with lanes.map(sleeps, source.items(), max_outstanding=9) as results:
            await anext(results)
            await trio.sleep(5)
            assert source.count > 4


# ---- failing


@pytest.mark.parametrize("ordered", [True, False])
async def test_a_failure_of_the_source_comes_after_the_results_of_its_items(
    ordered: bool, autojump_clock: MockClock
) -> None:
    error = BodyError("of the source")

    async def items() -> AsyncIterator[int]:
        yield 5
        yield 3
        raise error

    async with open_lanes({"main": 4}) as lanes:
        taken = []
        with pytest.raises(BodyError) as caught:
            async with lanes.map(sleeps, items(), ordered=ordered) as results:
                async for seconds in results:
                    taken.append(seconds)
        assert caught.value is error
        assert taken == ([5, 3] if ordered else [3, 5])


async def test_a_source_that_fails_before_its_first_item_wakes_the_taker(
    autojump_clock: MockClock,
) -> None:
    async def items() -> AsyncIterator[int]:
        await trio.sleep(1)
        raise BodyError
        yield 0

    async with open_lanes({"main": 4}) as lanes:
        with pytest.raises(BodyError):
            async with lanes.map(sleeps, items()) as results:
                await anext(results)


async def test_failing_items_and_errors_in_the_block_are_in_no_group(
    autojump_clock: MockClock,
) -> None:
    async def fails(item: int) -> None:
        raise BodyError(item)

    async with open_lanes({"main": 1}) as lanes:
        with pytest.raises(BodyError, match="0"):
            async with lanes.map(fails, Source().items()) as results:
                await anext(results)
        with pytest.raises(BodyError, match="of the block"):
            async with lanes.map(echo, Source().items()) as results:
                raise BodyError("of the block")
        assert lanes.jobs() == []


@pytest.mark.many_seeds(5)
async def test_an_error_in_a_cancelled_block_is_not_lost(autojump_clock: MockClock) -> None:
    async def items() -> AsyncIterator[int]:
        try:
            await trio.sleep_forever()
        finally:
            await trio.sleep(1)  # in a cancelled scope: raises Cancelled
        yield 0

    async with open_lanes({"main": 1}) as lanes:
        with trio.CancelScope() as scope:
            with pytest.raises(BodyError):
                async with lanes.map(echo, items()) as results:
                    with trio.move_on_after(1):
                        await anext(results)
                    scope.cancel()
                    raise BodyError
        assert not scope.cancelled_caught

        with trio.CancelScope() as scope:
            async with lanes.map(echo, items()) as results:
                scope.cancel()
                await anext(results)
        assert scope.cancelled_caught


async def test_a_base_exception_leaves_the_block_as_from_a_nursery(
    autojump_clock: MockClock,
) -> None:
    async def items() -> AsyncIterator[int]:
        yield 0
        raise SystemExit(3)

    async with open_lanes({"main": 1}) as lanes:
        with pytest.RaisesGroup(pytest.RaisesExc(SystemExit, match="3")):
            async with lanes.map(sleeps, items()) as results:
                async for _ in results:
                    await trio.sleep_forever()


async def test_a_base_exception_goes_before_an_error_of_the_block(
    autojump_clock: MockClock,
) -> None:
    async def items() -> AsyncIterator[int]:
        yield 0
        raise SystemExit(3)

    async with open_lanes({"main": 1}) as lanes:
        with pytest.RaisesGroup(pytest.RaisesExc(SystemExit, match="3")):
            async with lanes.map(sleeps, items()):
                try:
                    await trio.sleep_forever()
                finally:
                    raise BodyError


# ---- leaving


@pytest.mark.many_seeds(5)
@pytest.mark.parametrize("how", ["after a result", "by an error", "at once"])
async def test_nothing_is_read_or_submitted_after_the_block_is_left(
    autojump_clock: MockClock, how: str
) -> None:
    """The source gives its items without awaiting anything, as the rows of a page do."""
    read = []

    async def rows() -> AsyncIterator[float]:
        for seconds in (1, 100, 100, 100, 100, 100, 100):
            read.append(seconds)
            yield seconds

    async with open_lanes({"main": 2}) as lanes:
        with suppress(BodyError):
            async with lanes.map(sleeps, rows()) as results:
                if how != "at once":
                    assert await anext(results) == 1
                count, left_at = len(read), trio.current_time()
                if how == "by an error":
                    raise BodyError
        assert len(read) == count
        assert trio.current_time() == left_at
        assert lanes.jobs() == []


async def test_an_item_whose_reading_outlasts_the_block_is_not_submitted(
    autojump_clock: MockClock,
) -> None:
    async def items() -> AsyncIterator[float]:
        with trio.CancelScope(shield=True):
            await trio.sleep(1)
        yield 100

    async with open_lanes({"main": 2}) as lanes:
        async with lanes.map(sleeps, items()):
            await wait_all_tasks_blocked()
        assert trio.current_time() == 1
        assert lanes.jobs() == []


# ---- closing


async def test_a_source_is_closed_when_it_is_used_up_or_the_block_is_left(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        source = Source(length=1)
        async with lanes.map(echo, source.items()) as results:
            assert [item async for item in results] == [0]

        source = Source()
        async with lanes.map(echo, source.items(), max_outstanding=1) as results:
            assert await anext(results) == 0
            await trio.sleep(5)  # one more was read; now it rests
            assert source.count == 2
            assert source.closed_at is None
        assert source.closed_at == trio.current_time()

        source = Source(seconds=100)
        async with lanes.map(echo, source.items()) as results:
            await wait_all_tasks_blocked()  # it is being read
            left_at = trio.current_time()
        assert source.closed_at == trio.current_time() == left_at

        source = Source()
        with pytest.raises(BodyError):
            async with lanes.map(echo, source.items(), max_outstanding=1) as results:
                await anext(results)
                await trio.sleep(5)
                raise BodyError
        assert source.closed_at == trio.current_time()


async def test_a_source_that_rests_is_closed_gently(autojump_clock: MockClock) -> None:
    """Its cleanup is not cancelled, unless the block is."""
    cleaned = []

    async def items() -> AsyncIterator[int]:
        try:
            yield 0
            yield 1
        finally:
            await trio.sleep(1)
            cleaned.append(trio.current_time())

    async with open_lanes({"main": 1}) as lanes:
        async with lanes.map(echo, items(), max_outstanding=1) as results:
            await anext(results)
            await wait_all_tasks_blocked()
        assert cleaned == [1]

        with trio.CancelScope() as scope:
            async with lanes.map(echo, items(), max_outstanding=1) as results:
                await anext(results)
                await wait_all_tasks_blocked()
                scope.cancel()
        assert cleaned == [1]


async def test_a_channel_is_closed_and_what_cannot_be_closed_is_left_alone(
    autojump_clock: MockClock,
) -> None:
    class Countdown:
        def __init__(self) -> None:
            self.left = 3

        def __aiter__(self) -> Countdown:
            return self

        async def __anext__(self) -> int:
            if not self.left:
                raise StopAsyncIteration
            self.left -= 1
            return self.left

    send, receive = trio.open_memory_channel[int](10)
    async with open_lanes({"main": 1}) as lanes:
        async with lanes.map(echo, Countdown()) as results:
            assert [item async for item in results] == [2, 1, 0]
        send.send_nowait(5)
        async with lanes.map(echo, receive) as results:
            assert await anext(results) == 5
        with pytest.raises(trio.BrokenResourceError):
            send.send_nowait(6)


async def test_an_error_of_closing_leaves_the_block(autojump_clock: MockClock) -> None:
    error = BodyError("of closing")

    async def items() -> AsyncIterator[int]:
        try:
            yield 0
            yield 1
        finally:
            raise error

    async with open_lanes({"main": 1}) as lanes:
        with pytest.raises(BodyError) as caught:
            async with lanes.map(echo, items(), max_outstanding=1) as results:
                await anext(results)
                await wait_all_tasks_blocked()
        assert caught.value is error

        with pytest.raises(BodyError) as caught:
            async with lanes.map(echo, items(), max_outstanding=1) as results:
                await anext(results)
                await wait_all_tasks_blocked()
                raise KeyError("of the block")
        assert caught.value is error
        assert isinstance(error.__cause__, KeyError)


class BrokenError(ExceptionGroup[OSError]):
    """As of an application: it has no `derive` of its own."""


@pytest.mark.many_seeds(5)
@pytest.mark.parametrize("waits", [True, False], ids=["reading", "at a yield"])
@pytest.mark.parametrize("ends", ["break", "raise", "cancel"])
async def test_an_error_of_a_cancelled_reading_leaves_the_block_as_one_of_closing_does(
    ends: str, waits: bool, autojump_clock: MockClock
) -> None:
    error = BrokenError("", [OSError("the connection broke")])

    async def rows() -> AsyncIterator[int]:
        try:
            for n in range(100):
                yield n
                if waits:
                    await trio.sleep(1)
        finally:
            raise error

    async with open_lanes({"main": 2}) as lanes:
        with pytest.raises(ExceptionGroup) as told:
            with trio.move_on_after(0.5 if ends == "cancel" else 10):
                async with lanes.map(echo, rows(), max_outstanding=2) as results:
                    async for _ in results:
                        await trio.sleep(0.1 if ends != "cancel" else 5)
                        if ends == "break":
                            break
                        raise KeyError
    assert told.value.exceptions == error.exceptions
    assert told.value is error or ends == "cancel"  # of which the scope here makes a copy


async def test_an_error_of_closing_after_one_of_a_cancelled_reading_has_both(
    autojump_clock: MockClock,
) -> None:
    class Items:
        def __aiter__(self) -> AsyncIterator[int]:
            return self

        async def __anext__(self) -> int:
            try:
                await trio.sleep_forever()
            finally:
                raise OSError("reading")

        async def aclose(self) -> None:
            raise OSError("closing")

    async with open_lanes() as lanes:
        with pytest.raises(OSError, match="closing") as told:
            async with lanes.map(echo, Items()):
                await trio.sleep(1)
    assert str(told.value.__context__) == "reading"


@pytest.mark.parametrize("is_async", [True, False])
async def test_an_error_of_the_items_that_is_not_taken_is_logged(
    is_async: bool, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def read() -> AsyncIterator[int]:
        yield 1
        raise BodyError

    def items() -> Iterator[int]:
        yield 1
        raise BodyError

    async with open_lanes() as lanes:
        async with lanes.map(echo, read() if is_async else items()) as results:
            assert await anext(results) == 1
            await trio.sleep(1)
    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert record.getMessage() == "the items of a map raised; its results were not taken"
    assert record.exc_info is not None
    assert record.exc_info[0] is BodyError


async def test_a_generator_that_yields_in_a_nursery_is_closed_with_the_error_of_that_nursery(
    autojump_clock: MockClock,
) -> None:
    async def rows() -> AsyncIterator[int]:
        async with trio.open_nursery():
            for n in range(100):
                yield n

    async with open_lanes() as lanes:
        with pytest.RaisesGroup(GeneratorExit):  # as `contextlib.aclosing` would raise it
            async with lanes.map(echo, rows(), max_outstanding=1) as results:
                async for _ in results:
                    break


async def test_closing_that_is_cancelled_raises_that_cancellation(
    autojump_clock: MockClock,
) -> None:
    async def rows() -> AsyncIterator[int]:
        try:
            while True:
                yield 1
        finally:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.sleep, 9)

    async with open_lanes() as lanes:
        with trio.move_on_after(1) as scope:
            async with lanes.map(echo, rows(), max_outstanding=1) as results:
                await anext(results)
        assert scope.cancelled_caught


async def test_an_object_that_is_iterable_both_ways_is_read_asynchronously() -> None:
    class Both:
        def __iter__(self) -> Any:
            raise AssertionError

        async def __aiter__(self) -> AsyncIterator[int]:
            yield 1

    async with open_lanes({"main": 1}) as lanes:
        async with lanes.map(echo, Both()) as results:
            assert [item async for item in results] == [1]


# ---- whose it is


async def test_a_source_is_read_inside_the_job_that_maps_it(autojump_clock: MockClock) -> None:
    async def items() -> AsyncIterator[Any]:
        yield current_job()
        lanes.close()
        yield await lanes.run(echo, "may submit while the lanes close", lane="side")

    async def maps() -> list[Any]:
        async with lanes.map(echo, items(), lane="side") as results:
            return [result async for result in results]

    async with open_lanes({"main": 1, "side": 1}) as lanes:
        job = lanes.submit_nowait(maps)
        assert await job.wait() == [job, "may submit while the lanes close"]
