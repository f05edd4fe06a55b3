"""`map`: one result for each item, in order, with back-pressure; what failing and leaving do."""

from __future__ import annotations

import gc
import itertools
import logging
import math
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import Any

import pytest
import trio
from trio.testing import (
    MockClock,
    assert_checkpoints,
    assert_no_checkpoints,
    wait_all_tasks_blocked,
)

from tests.support.bodies import BodyError, cleans_up_shielded, echo, sleeps
from tests.support.track import Track
from trio_lanes import (
    Job,
    JobTimeoutError,
    LaneClearedError,
    LaneConfig,
    LanesClosedError,
    MapResults,
    RateLimit,
    current_job,
    open_lanes,
)
from trio_lanes.testing import LaneRecorder

pytestmark = pytest.mark.both_doors

DURATIONS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]


class Read:
    """Items, and which of them have been read."""

    def __init__(self) -> None:
        self.count = 0

    def forever(self) -> Iterator[int]:
        while True:
            self.count += 1
            yield self.count - 1


# ---- results


@pytest.mark.many_seeds(5)
async def test_results_come_in_the_order_of_the_items_one_for_each(
    autojump_clock: MockClock,
) -> None:
    recorder = LaneRecorder()
    async with open_lanes({"main": 4}, instruments=[recorder]) as lanes:
        async with lanes.map(sleeps, DURATIONS) as results:
            assert [seconds async for seconds in results] == DURATIONS
    recorder.check()
    assert len(recorder.started) == len(DURATIONS)


@pytest.mark.many_seeds(5)
async def test_unordered_results_come_as_they_end(autojump_clock: MockClock) -> None:
    ended: list[int] = []

    async def body(place: int) -> int:
        await trio.sleep(DURATIONS[place])
        ended.append(place)
        return place

    async with open_lanes({"main": 4}) as lanes:
        async with lanes.map(body, range(len(DURATIONS)), ordered=False) as results:
            taken = [place async for place in results]
    assert taken == ended
    assert sorted(taken) == list(range(len(DURATIONS)))
    assert taken != sorted(taken)


async def test_unordered_results_that_ended_unseen_come_in_the_order_of_their_ends(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 4}) as lanes:
        async with lanes.map(sleeps, [4, 3, 1, 2], ordered=False) as results:
            assert await anext(results) == 1
            await trio.sleep(100)
            assert [seconds async for seconds in results] == [2, 3, 4]


async def test_map_of_nothing_gives_nothing() -> None:
    async with open_lanes({"main": 1}) as lanes:
        for ordered in (True, False):
            async with lanes.map(echo, [], ordered=ordered) as results:
                assert [item async for item in results] == []
                with pytest.raises(StopAsyncIteration):  # it stays at its end
                    await anext(results)


async def one_item() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize("items", [lambda: [1], one_item])
async def test_taking_is_a_checkpoint_and_so_is_leaving_but_not_entering(
    items: Callable[[], Iterable[int] | AsyncIterable[int]],
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        mapped = lanes.map(echo, items())
        with assert_no_checkpoints():
            results = await mapped.__aenter__()
        with assert_checkpoints():
            assert await anext(results) == 1
        with assert_checkpoints(), pytest.raises(StopAsyncIteration):
            await anext(results)
        with assert_checkpoints():
            await mapped.__aexit__(None, None, None)

        async with lanes.map(echo, [1, 2], ordered=False) as results:
            await anext(results)
            await lanes.wait_idle()
            with assert_checkpoints():  # also of a result that is there already
                assert await anext(results) == 2


async def test_views_of_lanes_and_sessions_map_as_well(autojump_clock: MockClock) -> None:
    async def body(item: int) -> tuple[int, str, str | None]:
        job = current_job()
        assert job is not None
        await trio.sleep(1)
        return item, job.lane, job.session

    async with open_lanes({"main": 4, "cron": 1}) as lanes:
        async with lanes.lane("cron").map(body, [1, 2]) as results:
            assert [result async for result in results] == [(1, "cron", None), (2, "cron", None)]
        async with lanes.session("alice").map(body, [1, 2], lane="cron") as results:
            assert [result async for result in results] == [
                (1, "cron", "alice"),
                (2, "cron", "alice"),
            ]
        assert trio.current_time() == 4


async def test_options_apply_to_every_job_and_session_is_called_for_each(
    autojump_clock: MockClock,
) -> None:
    seen: list[tuple[str, str | None, int, Any]] = []

    async def body(item: int) -> None:
        job = current_job()
        assert job is not None
        seen.append((job.name, job.session, job.priority, job.meta))
        await trio.sleep(1)

    async with open_lanes({"main": 4}) as lanes:
        options: Any = {"name": "mapped", "priority": 3, "meta": "m"}
        async with lanes.map(body, [0, 1, 2], session=lambda n: f"s{n % 2}", **options) as results:
            assert [result async for result in results] == [None] * 3
    assert seen == [("mapped", f"s{n}", 3, "m") for n in (0, 1, 0)]
    assert trio.current_time() == 2  # the jobs of one session one after the other


async def test_jobs_run_in_the_context_in_which_map_was_called() -> None:
    var = ContextVar("var", default="outside")

    async def body(item: int) -> str:
        seen = var.get()
        var.set(f"of item {item}")
        return seen

    async with open_lanes({"main": 1}) as lanes:
        token = var.set("at the call")
        mapped = lanes.map(body, [1, 2, 3])
        var.reset(token)
        async with mapped as results:
            assert [seen async for seen in results] == ["at the call"] * 3
        assert var.get() == "outside"


async def test_repr_says_how_many_are_outstanding(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 2}) as lanes:
        async with lanes.map(sleeps, itertools.count()) as results:
            await anext(results)
            assert "3 outstanding" in repr(results)


async def test_only_map_makes_its_results() -> None:
    with pytest.raises(TypeError):
        MapResults(5)  # type: ignore[call-arg]


async def test_a_lane_from_a_template_maps() -> None:
    async with open_lanes({"main": 1, "sub:*": 2}) as lanes:
        async with lanes.map(echo, range(10), lane="sub:a") as results:
            assert [item async for item in results] == list(range(10))
        assert lanes.statistics().lanes.keys() == {"main"}


# ---- back-pressure


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize(
    ("concurrency", "outstanding"), [(1, 2), (4, 8), (600, 1000), (math.inf, 1000)]
)
async def test_by_default_twice_the_concurrency_are_outstanding(
    concurrency: float, outstanding: int, ordered: bool, autojump_clock: MockClock
) -> None:
    read = Read()
    async with open_lanes({"main": concurrency}) as lanes:
        async with lanes.map(sleeps, read.forever(), ordered=ordered) as results:
            assert read.count == 0  # nothing is read before it is wanted
            await anext(results)
            assert read.count == outstanding
            await lanes.wait_idle()
            assert read.count == outstanding  # jobs that end make no room: results taken do
            await anext(results)
            assert read.count == outstanding + 1


async def test_in_a_lane_that_starts_nothing_one_item_is_outstanding(
    autojump_clock: MockClock,
) -> None:
    read = Read()
    async with open_lanes({"main": 0}) as lanes:
        async with lanes.map(echo, read.forever()) as results:
            with trio.move_on_after(1):
                await anext(results)
            assert read.count == 1
            lanes.lane("main").concurrency = 3
            assert await anext(results) == 0
            assert await anext(results) == 1
            assert read.count == 7  # the window is that of the lane as it is


async def test_at_most_max_outstanding_items_are_read_ahead_of_the_taken_results(
    autojump_clock: MockClock,
) -> None:
    read, taken = Read(), 0
    async with open_lanes({"main": 4}) as lanes:
        async with lanes.map(sleeps, read.forever(), max_outstanding=3) as results:
            async for _ in results:
                taken += 1
                assert read.count - taken == 2
                if taken == 10:
                    break
        async with lanes.map(sleeps, [1, 1, 1], max_outstanding=1) as results:
            before = trio.current_time()
            assert [seconds async for seconds in results] == [1, 1, 1]
            assert trio.current_time() - before == 3


async def test_a_slow_taker_of_results_keeps_no_more_than_the_window(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": 2}) as lanes:
        async with lanes.map(track.sleep, itertools.count()) as results:
            async for label in results:
                await trio.sleep(100)
                assert len(track.started) == label + 4
                if label == 5:
                    break


@pytest.mark.many_seeds(5)
async def test_room_in_a_full_lane_is_waited_for_in_order_of_arrival(
    autojump_clock: MockClock,
) -> None:
    order: list[str] = []

    async def body(label: str) -> str:
        order.append(label)
        await trio.sleep(1)
        return label

    async def maps() -> None:
        items = [f"m{n}" for n in range(4)]
        async with lanes.map(body, items, max_outstanding=4) as results:
            assert [label async for label in results] == items

    config = LaneConfig(concurrency=1, max_waiting=1)
    async with open_lanes({"main": config}) as lanes, trio.open_nursery() as nursery:
        lanes.submit_nowait(body, "first")
        lanes.submit_nowait(body, "second")
        nursery.start_soon(maps)
        await wait_all_tasks_blocked()
        nursery.start_soon(lanes.run, body, "other")
        await wait_all_tasks_blocked()
    assert order == ["first", "second", "m0", "other", "m1", "m2", "m3"]


@pytest.mark.parametrize("ordered", [True, False])
async def test_a_window_is_filled_as_room_comes_not_only_as_results_are_taken(
    ordered: bool, autojump_clock: MockClock
) -> None:
    gate = trio.Event()

    async def body(item: int) -> int:
        await gate.wait()
        return item

    config = LaneConfig(concurrency=2, max_waiting=1)
    async with open_lanes({"main": config}) as lanes, trio.open_nursery() as nursery:
        lanes.submit_nowait(trio.sleep, 1)
        lanes.submit_nowait(trio.sleep, 2)
        lanes.submit_nowait(trio.sleep, 0)

        @nursery.start_soon
        async def take() -> None:
            async with lanes.map(body, range(9), ordered=ordered) as results:
                assert sorted([item async for item in results]) == list(range(9))

        await trio.sleep(5)
        assert lanes.statistics().active == 2
        assert lanes.statistics().waiting == 1
        gate.set()


async def test_a_job_that_settles_as_it_is_let_in_is_not_lost(autojump_clock: MockClock) -> None:
    class Clears:
        def job_submitted(self, job: Job[Any]) -> None:
            if job.name == "mapped":
                job.cancel("at once")

    config = LaneConfig(concurrency=1, max_waiting=1)
    for ordered in (True, False):
        async with open_lanes({"main": config}, instruments=[Clears()]) as lanes:  # type: ignore[list-item]
            lanes.submit_nowait(trio.sleep, 1)
            lanes.submit_nowait(trio.sleep, 1)
            async with lanes.map(echo, [1, 2], ordered=ordered, name="mapped") as results:
                for _ in range(2):
                    with pytest.raises(Exception, match="at once"):
                        await anext(results)
                with pytest.raises(StopAsyncIteration):
                    await anext(results)


# ---- failing


async def test_a_failing_item_raises_its_very_exception_and_leaving_cancels_the_rest(
    autojump_clock: MockClock,
) -> None:
    error = BodyError("of the second item")
    called: list[int] = []

    async def body(item: int) -> int:
        called.append(item)
        if item == 1:
            raise error
        try:
            await trio.sleep(item)
        finally:
            if item:
                with trio.CancelScope(shield=True):
                    await trio.sleep(7)
        return item

    taken = []
    async with open_lanes({"main": 3}) as lanes:
        with pytest.raises(BodyError) as caught:
            async with lanes.map(body, itertools.count()) as results:
                async for item in results:
                    taken.append(item)
        assert caught.value is error
        assert trio.current_time() == 7  # what ran was waited for
        assert lanes.jobs() == []
    assert taken == [0]
    assert called == [0, 1, 2, 3, 4]  # what waited was never called


async def test_code_that_catches_the_failure_of_an_item_gets_the_next_result(
    autojump_clock: MockClock,
) -> None:
    async def body(item: int) -> int:
        await trio.sleep(1)
        if item % 2:
            raise BodyError(item)
        return item

    async with open_lanes({"main": 2}) as lanes:
        for ordered in (True, False):
            taken: list[Any] = []
            async with lanes.map(body, range(6), ordered=ordered) as results:
                while True:
                    try:
                        taken.append(await anext(results))
                    except BodyError as error:
                        taken.append(error.args[0])
                    except StopAsyncIteration:
                        break
            assert sorted(taken) == list(range(6))


async def test_the_failures_of_jobs_are_the_errors_that_a_handle_would_raise(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        async with lanes.map(sleeps, [5], timeout=1) as results:
            with pytest.raises(JobTimeoutError):
                await anext(results)
        async with lanes.map(sleeps, [0, 5]) as results:
            await anext(results)
            lanes.pause()
            await trio.sleep(6)
        lanes.resume()
        async with lanes.map(sleeps, [1, 5, 5], max_outstanding=3) as results:
            await anext(results)
            lanes.clear(reason="enough")
            assert await anext(results) == 5  # it ran
            with pytest.raises(LaneClearedError, match="enough"):
                await anext(results)


async def test_an_item_that_raises_stop_async_iteration_is_not_the_end_of_all() -> None:
    async def body(item: int) -> int:
        if item == 1:
            raise StopAsyncIteration
        return item

    async with open_lanes({"main": 1}) as lanes:
        async with lanes.map(body, range(3)) as results:
            assert await anext(results) == 0
            with pytest.raises(RuntimeError, match="StopAsyncIteration"):
                await anext(results)
            assert await anext(results) == 2


async def test_a_failure_of_the_items_comes_after_the_results_before_it(
    autojump_clock: MockClock,
) -> None:
    def items() -> Iterator[int]:
        yield 2
        yield 1
        raise BodyError("of the items")

    async with open_lanes({"main": 4}) as lanes:
        for ordered in (True, False):
            taken = []
            async with lanes.map(sleeps, items(), ordered=ordered) as results:
                with pytest.raises(BodyError, match="of the items"):
                    async for seconds in results:
                        taken.append(seconds)
                assert sorted(taken) == [1, 2]
                with pytest.raises(StopAsyncIteration):
                    await anext(results)


async def test_an_item_without_a_session_that_can_be_fails_in_its_place(
    autojump_clock: MockClock,
) -> None:
    def session(item: int) -> str:
        if item == 1:
            raise BodyError("of session")
        return "" if item == 2 else "alice"

    async with open_lanes({"main": 4}) as lanes:
        async with lanes.map(echo, range(4), session=session) as results:
            assert await anext(results) == 0
            with pytest.raises(BodyError, match="of session"):
                await anext(results)
            with pytest.raises(ValueError, match="session must not be blank"):
                await anext(results)
            assert await anext(results) == 3


@pytest.mark.parametrize("ordered", [True, False])
async def test_closing_meanwhile_refuses_the_items_that_were_not_submitted(
    ordered: bool, autojump_clock: MockClock
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        async with lanes.map(sleeps, [1, 2, 3, 4], ordered=ordered) as results:
            assert await anext(results) == 1
            lanes.close("enough")
            with pytest.raises(LanesClosedError, match="enough"):
                if not ordered:  # a refusal is a result at once
                    await anext(results)
                else:
                    assert await anext(results) == 2
                    await anext(results)

    config = LaneConfig(concurrency=1, max_waiting=1)
    async with open_lanes({"main": config}) as lanes:
        lanes.submit_nowait(sleeps, 9)
        async with lanes.map(sleeps, [1, 2], ordered=ordered) as results:
            with trio.move_on_after(1):
                await anext(results)
            lanes.close("enough")  # the second one waits for room
            taken: list[Any] = []
            for _ in range(2):
                try:
                    taken.append(await anext(results))
                except LanesClosedError:
                    taken.append("refused")
            assert taken == ([1, "refused"] if ordered else ["refused", 1])


async def test_failures_that_were_never_taken_are_logged(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(item: int) -> None:
        raise BodyError(item)

    async with open_lanes({"main": 4}) as lanes:
        async with lanes.map(body, [1, 2]) as results:
            with pytest.raises(BodyError):
                await anext(results)
            await lanes.wait_idle()
        del results
        gc.collect()
    failures = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [str(record.exc_info and record.exc_info[1]) for record in failures] == ["2"]


# ---- cancelling, and leaving


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.many_seeds(3)
async def test_cancelling_the_taking_loses_nothing(
    ordered: bool, autojump_clock: MockClock
) -> None:
    for max_waiting in (1, math.inf):
        config = LaneConfig(concurrency=2, max_waiting=max_waiting)
        async with open_lanes({"main": config}) as lanes:
            lanes.submit_nowait(trio.sleep, 2)
            taken = []
            items = [(n, seconds) for n, seconds in enumerate(DURATIONS)]

            async def body(item: tuple[int, float]) -> int:
                await trio.sleep(item[1])
                return item[0]

            cancelled = 0
            async with lanes.map(body, items, ordered=ordered) as results:
                while len(taken) < len(items):
                    with trio.move_on_after(0.5) as scope:
                        taken.append(await anext(results))
                    cancelled += scope.cancelled_caught
                with pytest.raises(StopAsyncIteration):
                    await anext(results)
        assert cancelled > 10
        assert sorted(taken) == list(range(len(items)))
        if ordered:
            assert taken == sorted(taken)


async def test_a_result_that_is_there_survives_the_cancellation_of_its_taking() -> None:
    async with open_lanes({"main": 1}) as lanes:
        async with lanes.map(echo, [1, 2, 3]) as results:
            assert await anext(results) == 1
            await lanes.wait_idle()
            with trio.CancelScope() as scope:
                scope.cancel()
                await anext(results)
            assert scope.cancelled_caught
            assert [item async for item in results] == [2, 3]


async def test_leaving_early_withdraws_what_waits_and_cancels_what_runs(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": 2}) as lanes:
        async with lanes.map(track.sleep, itertools.count()) as results:
            async for _ in results:
                break
        assert trio.current_time() == 1
        assert lanes.jobs() == []
        assert track.started == [0, 1, 2, 3][: len(track.started)]
        assert track.running == 0


async def test_leaving_takes_out_of_line_what_waits_for_room(autojump_clock: MockClock) -> None:
    config = LaneConfig(concurrency=1, max_waiting=1)
    async with open_lanes({"main": config}) as lanes:
        lanes.submit_nowait(trio.sleep, 5)
        lanes.submit_nowait(trio.sleep, 5)
        with trio.move_on_after(1):
            async with lanes.map(echo, [1, 2]) as results:
                await anext(results)
        assert trio.current_time() == 1
        assert lanes.statistics().waiting == 1
        await lanes.run(echo, 3)  # the line is free
        assert trio.current_time() == 10


async def test_a_cancelled_block_waits_for_what_runs_and_stays_cancelled(
    autojump_clock: MockClock,
) -> None:
    async def body(item: int) -> str:
        return await cleans_up_shielded()

    async with open_lanes({"main": 1}) as lanes:
        with trio.move_on_after(1) as scope:
            async with lanes.map(body, [1]) as results:
                await anext(results)
        assert scope.cancelled_caught
        assert trio.current_time() == 2
        assert lanes.jobs() == []


async def test_an_error_in_the_block_leaves_as_it_is(autojump_clock: MockClock) -> None:
    error = BodyError("of the block")
    async with open_lanes({"main": 1}) as lanes:
        with pytest.raises(BodyError) as caught:
            async with lanes.map(echo, [1]) as results:
                await anext(results)
                raise error
        assert caught.value is error


async def test_only_one_task_at_a_time_may_take_results_and_no_task_when_the_block_was_left(
    autojump_clock: MockClock,
) -> None:
    async def takes() -> None:
        with pytest.raises(trio.ClosedResourceError):
            await anext(results)

    async with open_lanes({"main": 1}) as lanes, trio.open_nursery() as nursery:
        async with lanes.map(sleeps, [5, 5]) as results:
            nursery.start_soon(takes)
            await wait_all_tasks_blocked()
            with pytest.raises(trio.BusyResourceError):
                await anext(results)
        await takes()
    assert trio.current_time() == 0


async def test_leaving_the_lanes_first_ends_a_map(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        async with open_lanes({"main": 1}) as lanes:

            @nursery.start_soon
            async def takes() -> None:
                async with lanes.map(sleeps, [1, 2, 3, 4]) as results:
                    assert await anext(results) == 1
                    with pytest.raises(LanesClosedError):
                        async for seconds in results:
                            assert seconds == 2

            await wait_all_tasks_blocked()
    assert trio.current_time() == 3


# ---- bad input


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"fn": 5}, TypeError, "callable"),
        ({"items": 5}, TypeError, "iterable"),
        ({"items": None}, TypeError, "iterable"),
        ({"session": "alice"}, TypeError, "session.*'alice'"),
        ({"ordered": 1}, TypeError, "ordered.*1"),
        ({"max_outstanding": 0}, ValueError, "max_outstanding.*0"),
        ({"max_outstanding": -1}, ValueError, "max_outstanding.*-1"),
        ({"max_outstanding": math.inf}, ValueError, "max_outstanding.*inf"),
        ({"max_outstanding": "4"}, TypeError, "max_outstanding.*'4'"),
        ({"max_outstanding": True}, TypeError, "max_outstanding.*True"),
        ({"lane": "nowhere"}, LookupError, "nowhere"),
        ({"priority": 1.5}, ValueError, "priority.*1.5"),
        ({"timeout": -1}, ValueError, "timeout.*-1"),
        ({"cost": -1}, ValueError, "cost.*-1"),
        ({"cost": -1, "session": str}, ValueError, "cost.*-1"),
        ({"cost": {"pages": 1}}, ValueError, "pages"),
        ({"cost": {"": 1}, "session": str}, ValueError, "cost"),
        ({"yield_slot": 1}, RuntimeError, "yield_slot"),
        ({"yield_slot": True}, RuntimeError, "not inside a job"),
        ({"no_such_option": 1}, TypeError, "no_such_option"),
    ],
)
async def test_bad_input_is_an_error_at_the_call(
    arguments: dict[str, Any], error: type[Exception], words: str
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        options: dict[str, Any] = {"fn": echo, "items": [], **arguments}
        with pytest.raises(error, match=words):
            lanes.map(**options)
        assert lanes.jobs() == []


@pytest.mark.trio_only("asyncio has an error of its own")
async def test_a_coroutine_object_is_trios_own_error_at_the_call() -> None:
    async with open_lanes({"main": 1}) as lanes:
        with pytest.raises(TypeError, match="Trio was expecting an async function"):
            lanes.map(echo(1), [])  # type: ignore[arg-type]


async def test_a_view_of_a_session_takes_no_other_session() -> None:
    async with open_lanes({"main": 1}) as lanes:
        with pytest.raises(TypeError, match="session"):
            lanes.session("alice").map(echo, [], session=str)


async def test_when_the_lanes_are_closed_map_is_refused_at_the_call() -> None:
    async with open_lanes({"main": 1}) as lanes:
        lanes.close("over")
        with pytest.raises(LanesClosedError, match="over"):
            lanes.map(echo, [])


async def test_units_that_only_sessions_count_are_known(autojump_clock: MockClock) -> None:
    sessions = LaneConfig(rate=RateLimit(1, per=10, unit="pages"))
    async with open_lanes({"main": 4}, sessions=sessions) as lanes:
        options: Any = {"cost": {"pages": 1}}
        async with lanes.map(echo, [1, 2], session=lambda item: "alice", **options) as results:
            assert [item async for item in results] == [1, 2]
        assert trio.current_time() == 10


async def test_async_for_over_a_map_without_its_block_says_what_to_write() -> None:
    async with open_lanes() as lanes:
        with pytest.raises(TypeError, match=r"async with lanes.map\(\.\.\.\) as results:"):
            async for _ in lanes.map(echo, [1]):  # type: ignore[attr-defined]
                pass


async def test_items_that_cannot_be_iterated_are_refused_by_name() -> None:
    async with open_lanes({"main": 1}) as lanes:
        with pytest.raises(
            TypeError, match="items must be an iterable or an async iterable, not 3"
        ):
            lanes.map(trio.sleep, 3)  # type: ignore[arg-type]
