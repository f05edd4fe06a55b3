"""The portal: other threads submit, cancel and get results; nothing hangs, nothing runs twice."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import logging
import math
import queue
import signal
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import CancelledError, Future
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeVar

import attrs
import pytest
import sniffio
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.bodies import BodyError, never_ends, raises_at_once
from tests.support.programs import PATIENCE
from trio_lanes import (
    Job,
    JobCancelledError,
    JobTimeoutError,
    LaneClearedError,
    LaneConfig,
    LaneFullError,
    LaneResetError,
    LanesClosedError,
    LanesPortal,
    QueueTimeoutError,
    UnknownLaneError,
    current_job,
    open_lanes,
)
from trio_lanes.testing import LaneRecorder

pytestmark = pytest.mark.real_processes

T = TypeVar("T")


async def in_thread(fn: Callable[..., T], *args: Any) -> T:
    """What ``fn`` returns in another thread."""
    with trio.fail_after(PATIENCE):
        return await trio.to_thread.run_sync(partial(fn, *args), abandon_on_cancel=True)


async def in_this_thread(fn: Callable[..., T], *args: Any) -> T:
    return fn(*args)


async def settled(future: Future[T]) -> Future[T]:
    """Return ``future`` when it has settled and its waiters have been told."""
    done = await in_thread(concurrent.futures.wait, [future])
    assert done == ({future}, set())
    return future


async def echo(item: T) -> T:
    await trio.lowlevel.checkpoint()
    return item


# ---- submitting


async def test_run_returns_the_value_of_the_body_or_raises_its_exception() -> None:
    async with open_lanes({"main": 1}) as lanes:
        portal = lanes.portal()
        assert await in_thread(portal.run, echo, "value") == "value"
        with pytest.raises(BodyError):
            await in_thread(portal.run, raises_at_once)
        with pytest.raises(JobTimeoutError):
            await in_thread(partial(portal.run, never_ends, timeout=0))


async def test_submit_gives_a_future_that_settles_as_the_job_does() -> None:
    async with open_lanes({"main": 1}) as lanes:
        portal = lanes.portal()
        gate = trio.Event()
        future = await in_thread(portal.submit, gate.wait)
        behind = [await in_thread(portal.submit, echo, n) for n in range(5)]
        await wait_all_tasks_blocked()
        assert not future.done()
        assert len(lanes.jobs()) == 6
        lanes.lane("main").clear(reason="enough")
        for cleared in behind:
            assert isinstance((await settled(cleared)).exception(), LaneClearedError)
        lanes.reset()
        assert isinstance((await settled(future)).exception(), LaneResetError)


async def test_options_reach_the_job() -> None:
    async def body(text: str) -> tuple[Any, ...]:
        job = current_job()
        assert job is not None
        return text, job.name, job.lane, job.session, job.priority, job.meta, job.parent

    async with open_lanes({"main": 1, "cron": 1}) as lanes:
        options = {"name": "n", "lane": "cron", "session": "alice", "priority": 3, "meta": "m"}
        run = partial(lanes.portal().run, body, "text", **options)
        assert await in_thread(run) == ("text", "n", "cron", "alice", 3, "m", None)


async def test_a_job_runs_in_a_copy_of_the_context_of_the_thread_that_submitted_it() -> None:
    var = ContextVar("var", default="nobody's")

    async def body() -> str:
        seen = var.get()
        var.set("the job's")
        return seen

    def thread() -> tuple[str, str]:
        var.set("the thread's")
        future = portal.submit(body)
        var.set("changed after")
        return future.result(), var.get()

    async with open_lanes({"main": 1}) as lanes:
        portal = lanes.portal()
        var.set("the lanes'")
        assert await in_thread(thread) == ("the thread's", "changed after")


async def test_submissions_of_one_thread_keep_their_order() -> None:
    started: list[int] = []

    async def body(n: int) -> None:
        started.append(n)
        await trio.lowlevel.checkpoint()

    def thread() -> None:
        futures = [portal.submit(body, n, session="s" if n % 2 else None) for n in range(200)]
        concurrent.futures.wait(futures)

    for config in (LaneConfig(concurrency=1), LaneConfig(concurrency=1, max_waiting=3)):
        started.clear()
        async with open_lanes({"main": config}) as lanes:
            portal = lanes.portal()
            await in_thread(thread)
        assert started[::2] != []
        assert [n for n in started if n % 2] == list(range(1, 200, 2))
        assert [n for n in started if not n % 2] == list(range(0, 200, 2))


async def test_the_lanes_own_thread_may_submit_but_not_run() -> None:
    async with open_lanes({"main": 1}) as lanes:
        portal = lanes.portal()
        future = portal.submit(echo, 5)
        with pytest.raises(RuntimeError, match="own thread"):
            portal.run(echo, 5)
        assert (await settled(future)).result() == 5


async def test_a_portal_is_made_by_lanes_in_any_thread() -> None:
    with pytest.raises(TypeError, match="portal"):
        LanesPortal()
    async with open_lanes({"main": 1}) as lanes:
        portal = await in_thread(lanes.portal)
        with pytest.raises(RuntimeError, match="own thread"):
            portal.run(echo, 5)
        assert await in_thread(portal.run, echo, 5) == 5
        assert await in_thread(lambda: lanes.portal().run(echo, 6)) == 6
        assert repr(portal).startswith("<trio_lanes.LanesPortal at 0x")
        lanes.close()
        assert "closed" in repr(portal)


async def test_a_thread_of_a_job_submits_from_outside() -> None:
    async def body() -> Any:
        return await trio.to_thread.run_sync(portal.run, parent)

    async def parent() -> Any:
        job = current_job()
        assert job is not None
        return job.parent

    async with open_lanes({"main": 2}) as lanes:
        portal = lanes.portal()
        assert await lanes.run(body) is None


# ---- full lanes


async def test_in_a_full_lane_a_submission_waits_for_room_and_blocks_no_thread() -> None:
    gate = trio.Event()
    started: list[Any] = []

    async def body(n: Any) -> Any:
        started.append(n)
        await gate.wait()
        return n

    async with open_lanes({"main": LaneConfig(concurrency=1, max_waiting=1)}) as lanes:
        portal = lanes.portal()
        async with trio.open_nursery() as nursery:
            futures = await in_thread(lambda: [portal.submit(body, n) for n in range(3)])
            await wait_all_tasks_blocked()
            nursery.start_soon(lanes.run, body, "of a task")
            await wait_all_tasks_blocked()
            futures += await in_thread(lambda: [portal.submit(body, n) for n in range(3, 5)])
            await wait_all_tasks_blocked()
            assert lanes.statistics().waiting == 1
            gate.set()
            assert [(await settled(future)).result() for future in futures] == [0, 1, 2, 3, 4]
    assert started == [0, 1, 2, "of a task", 3, 4]


async def test_a_submission_that_waits_for_room_is_cancelled_or_refused() -> None:
    gate = trio.Event()
    async with open_lanes({"main": LaneConfig(concurrency=1, max_waiting=1)}) as lanes:
        portal = lanes.portal()

        def thread() -> list[Future[Any]]:
            return [portal.submit(gate.wait) for _ in range(4)]

        futures = await in_thread(thread)
        await wait_all_tasks_blocked()
        assert await in_thread(futures[2].cancel)
        with pytest.raises(CancelledError):
            (await settled(futures[2])).result()
        lanes.close("enough")
        with pytest.raises(LanesClosedError, match="enough"):
            (await settled(futures[3])).result()
        gate.set()
        for future in futures[:2]:
            assert (await settled(future)).result() is None


async def test_a_submission_cancelled_while_it_waits_for_room_makes_way() -> None:
    gate = trio.Event()
    called: list[int] = []

    async def body(n: int) -> None:
        called.append(n)
        await gate.wait()

    async with open_lanes({"main": LaneConfig(concurrency=1, max_waiting=1)}) as lanes:
        portal = lanes.portal()
        futures = await in_thread(lambda: [portal.submit(body, n) for n in range(4)])
        await wait_all_tasks_blocked()
        assert await in_thread(futures[2].cancel)
        await settled(futures[2])
        gate.set()
        await settled(futures[3])
        await lanes.wait_idle()
    assert called == [0, 1, 3]


async def test_a_job_that_is_cancelled_as_it_is_let_in_settles_its_future() -> None:
    class Cancels:
        def job_submitted(self, job: Job[Any]) -> None:
            if job.name == "unwanted":
                job.cancel("at once")

    gate = trio.Event()
    config = LaneConfig(concurrency=1, max_waiting=1)
    async with open_lanes({"main": config}, instruments=[Cancels()]) as lanes:  # type: ignore[list-item]
        portal = lanes.portal()
        await in_thread(lambda: [portal.submit(gate.wait) for _ in range(2)])
        future = await in_thread(partial(portal.submit, echo, 1, name="unwanted"))
        await wait_all_tasks_blocked()
        assert not future.done()
        gate.set()
        assert isinstance((await settled(future)).exception(), JobCancelledError)


# ---- cancelling


async def test_cancelling_a_future_withdraws_a_job_that_waits() -> None:
    called = False

    async def body() -> None:
        nonlocal called
        called = True

    async with open_lanes({"main": 0}) as lanes:
        portal = lanes.portal()
        future = await in_thread(portal.submit, body)
        await wait_all_tasks_blocked()
        (job,) = lanes.jobs()
        assert future.cancel()
        assert future.cancel()  # again
        assert future.cancelled()
        with pytest.raises(CancelledError):
            future.result()
        await settled(future)
        assert isinstance(job.exception, JobCancelledError)
        lanes.lane("main").concurrency = 1
        await lanes.wait_idle()
    assert not called


async def test_cancelling_a_future_cancels_a_body_and_waiting_for_it_waits_for_its_end() -> None:
    cleaned, gate = trio.Event(), trio.Event()

    async def body() -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                cleaned.set()
                await gate.wait()

    async with open_lanes({"main": 1}) as lanes:
        portal = lanes.portal()
        future = await in_thread(portal.submit, body)
        await wait_all_tasks_blocked()
        assert await in_thread(future.cancel)
        await cleaned.wait()
        with pytest.raises(CancelledError):
            future.result()
        done, pending = await in_thread(partial(concurrent.futures.wait, [future], timeout=0.01))
        assert (done, pending) == (set(), {future})
        gate.set()
        await settled(future)


async def test_a_future_that_is_cancelled_before_it_arrives_is_never_submitted() -> None:
    recorder = LaneRecorder()
    async with open_lanes({"main": 1}, instruments=[recorder]) as lanes:
        portal = lanes.portal()
        future = portal.submit(echo, 1)  # in the lanes' own thread it arrives later
        assert future.cancel()
        await settled(future)
        assert recorder.started == recorder.finished == []


async def test_a_future_whose_job_has_settled_cannot_be_cancelled() -> None:
    async with open_lanes({"main": 1}) as lanes:
        future = await settled(await in_thread(lanes.portal().submit, echo, 1))
        assert not future.cancel()
        assert future.result() == 1


def test_a_wait_that_ctrl_c_interrupts_cancels_its_job() -> None:
    """In a main thread that is not that of the lanes."""
    portals: queue.SimpleQueue[LanesPortal] = queue.SimpleQueue()
    started, interrupted, cancelled, over = (threading.Event() for _ in range(4))

    async def body() -> None:
        started.set()
        try:
            await trio.sleep_forever()
        finally:
            cancelled.set()

    async def lanes_in_a_thread() -> None:
        async with open_lanes({"main": 1}) as lanes:
            portals.put(lanes.portal())
            await trio.to_thread.run_sync(over.wait)

    def on_ctrl_c(signum: int, frame: object) -> None:
        if not interrupted.is_set():
            interrupted.set()
            raise KeyboardInterrupt

    def press_ctrl_c() -> None:
        started.wait(PATIENCE)
        while not interrupted.wait(0.02):  # Python may see one only when the next one comes
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    threads = [
        threading.Thread(target=trio.run, args=(lanes_in_a_thread,)),
        threading.Thread(target=press_ctrl_c),
    ]
    before = signal.signal(signal.SIGINT, on_ctrl_c)
    try:
        for thread in threads:
            thread.start()
        portal = portals.get(timeout=PATIENCE)
        with pytest.raises(KeyboardInterrupt):
            portal.run(body)
        assert cancelled.wait(PATIENCE)
    finally:
        over.set()
        for thread in threads:
            thread.join(PATIENCE)
        signal.signal(signal.SIGINT, before)


# ---- closing


async def test_after_closing_every_submission_is_refused_from_any_thread(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        portal = lanes.portal()
        lanes.close("restarting", retry_after=30)
        for verb in (portal.run, portal.submit):
            for call in (in_thread, in_this_thread):
                with pytest.raises(LanesClosedError, match="restarting") as caught:
                    await call(verb, echo, 1)
                assert caught.value.retry_after == 30
        await wait_all_tasks_blocked()
    for verb in (portal.run, portal.submit):
        for call in (in_thread, in_this_thread):
            with pytest.raises(LanesClosedError):
                await call(verb, echo, 1)
    refusals = [record for record in caplog.records if "refusing new work" in record.getMessage()]
    assert len(refusals) == 1


def test_after_the_run_every_submission_is_refused() -> None:
    async def main() -> tuple[LanesPortal, Future[int]]:
        async with open_lanes({"main": 1}) as lanes:
            portal = lanes.portal()
            return portal, portal.submit(echo, 1)

    portal, future = trio.run(main)
    assert isinstance(future.exception(timeout=PATIENCE), LanesClosedError)
    for verb in (portal.run, portal.submit):
        with pytest.raises(LanesClosedError):
            verb(echo, 1)
    assert not future.cancel()


def test_a_submission_during_which_the_run_ends_is_refused() -> None:
    checking, ended = threading.Event(), threading.Event()
    refused: list[BaseException] = []

    class Costs(Mapping[str, float]):
        """Its checking takes until the run has ended."""

        def __iter__(self) -> Iterator[str]:
            checking.set()
            assert ended.wait(PATIENCE)
            return iter(())

        def __getitem__(self, unit: str) -> float:
            raise KeyError(unit)

        def __len__(self) -> int:
            return 0

    async def main() -> LanesPortal:
        async with open_lanes({"main": 1}) as lanes:
            portal = portals["the"] = lanes.portal()
            thread.start()
            await trio.to_thread.run_sync(checking.wait)
            return portal

    def submits() -> None:
        try:
            portals["the"].submit(echo, 1, cost=Costs())
        except LanesClosedError as error:
            refused.append(error)

    portals: dict[str, LanesPortal] = {}
    thread = threading.Thread(target=submits)
    trio.run(main)
    ended.set()
    thread.join(PATIENCE)
    assert len(refused) == 1


def test_a_cancellation_during_which_the_run_ends_comes_too_late_for_the_job() -> None:
    cancelling, ended = threading.Event(), threading.Event()

    def callback(future: Future[Any]) -> None:
        cancelling.set()
        assert ended.wait(PATIENCE)

    async def main() -> Future[Any]:
        async with open_lanes({"main": 1}) as lanes:
            gate = trio.Event()
            future = lanes.portal().submit(gate.wait)
            future.add_done_callback(callback)
            thread = threading.Thread(target=future.cancel)
            thread.start()
            threads.append(thread)
            await trio.to_thread.run_sync(cancelling.wait)
            gate.set()
            return future

    threads: list[threading.Thread] = []
    future = trio.run(main)
    ended.set()
    threads[0].join(PATIENCE)
    assert not threads[0].is_alive()
    assert future.cancelled()


async def test_what_waits_or_arrives_when_the_lanes_end_settles() -> None:
    async def main() -> list[Future[Any]]:
        with trio.CancelScope() as scope:
            async with open_lanes({"main": 1}) as lanes:
                portal = lanes.portal()
                futures = await in_thread(lambda: [portal.submit(never_ends) for _ in range(3)])
                await wait_all_tasks_blocked()
                futures.append(portal.submit(echo, 1))  # it has not arrived
                scope.cancel()
        return futures

    for future, kind in zip(
        await main(), (JobCancelledError, *[LanesClosedError] * 3), strict=True
    ):
        assert isinstance((await settled(future)).exception(), kind)


# ---- bad input


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"lane": "nowhere"}, UnknownLaneError, "nowhere.*'main'"),
        ({"session": " "}, ValueError, "session"),
        ({"priority": 1.5}, ValueError, "priority.*1.5"),
        ({"timeout": "1"}, TypeError, "timeout.*'1'"),
        ({"cost": -1}, ValueError, "cost.*-1"),
        ({"yield_slot": True}, ValueError, "yield_slot"),
        ({"no_such_option": 1}, TypeError, "no_such_option"),
    ],
)
async def test_bad_input_is_an_error_at_the_call(
    options: dict[str, Any], error: type[Exception], words: str
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        portal = lanes.portal()
        for verb in (portal.run, portal.submit):
            with pytest.raises(error, match=words):
                await in_thread(partial(verb, echo, 1, **options))


async def test_an_object_that_is_no_async_function_is_trios_own_error_at_the_call() -> None:
    async with open_lanes({"main": 1}) as lanes:
        portal = lanes.portal()
        for call in (in_thread, in_this_thread):
            with pytest.raises(TypeError, match="Trio was expecting an async function"):
                await call(portal.submit, echo(1))
            with pytest.raises(TypeError, match="not callable"):
                await call(portal.submit, 5)
        with pytest.raises(TypeError, match="Trio expected an async function"):
            await in_thread(portal.run, len, "no coroutine")


async def test_what_can_be_known_only_by_the_lanes_is_an_error_of_the_future() -> None:
    async with open_lanes({"main": 1, "gone": 1}) as lanes:
        portal = lanes.portal()
        future = await in_thread(partial(portal.submit, echo, 1, cost={"pages": 1}))
        with pytest.raises(ValueError, match="pages"):
            (await settled(future)).result()
        future = portal.submit(echo, 1, lane="gone")
        lanes.configure({"gone": None})
        with pytest.raises(UnknownLaneError):
            (await settled(future)).result()
        assert await in_thread(portal.run, echo, "all is well") == "all is well"


# ---- failures that are never retrieved, and callbacks


async def test_a_failure_that_is_never_retrieved_from_its_future_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gc.collect()  # what other tests have left, and is none of ours
    caplog.clear()
    gate = trio.Event()
    async with open_lanes({"main": 4}) as lanes:
        portal = lanes.portal()
        looked = [await settled(await in_thread(portal.submit, raises_at_once)) for _ in range(2)]
        ignored = await settled(await in_thread(portal.submit, raises_at_once))
        looked[0].exception()
        with pytest.raises(BodyError):
            looked[1].result()
        with pytest.raises(TimeoutError):
            (await in_thread(portal.submit, gate.wait)).result(timeout=0)
        gate.set()
    assert not [record for record in caplog.records if record.levelno == logging.ERROR]
    del looked
    gc.collect()
    assert not [record for record in caplog.records if record.levelno == logging.ERROR]
    del ignored  # it is the future's to keep, also when the lanes have ended
    gc.collect()
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "raises_at_once" in record.getMessage()
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], BodyError)


async def test_a_failure_besides_the_cancellation_of_its_future_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def body() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise BodyError

    gc.collect()  # what other tests have left, and is none of ours
    caplog.clear()
    async with open_lanes({"main": 1}) as lanes:
        future = await in_thread(lanes.portal().submit, body)
        await wait_all_tasks_blocked()
        assert future.cancel()
        await settled(future)
    gc.collect()
    assert [type(record.exc_info[1]) for record in caplog.records if record.exc_info] == [BodyError]


async def test_a_callback_that_raises_harms_no_other_code(caplog: pytest.LogCaptureFixture) -> None:
    def callback(future: Future[Any]) -> None:
        raise SystemExit

    async with open_lanes({"main": 1}) as lanes:
        portal = lanes.portal()
        gate = trio.Event()
        future = await in_thread(portal.submit, gate.wait)
        future.add_done_callback(callback)
        gate.set()
        assert (await settled(future)).result() is None
        assert await in_thread(portal.run, echo, 1) == 1
    assert any("callback" in record.getMessage() for record in caplog.records)


async def test_a_callback_may_submit() -> None:
    futures: list[Future[Any]] = []
    async with open_lanes({"main": 1}) as lanes:
        portal = lanes.portal()
        gate = trio.Event()
        future = await in_thread(portal.submit, gate.wait)
        future.add_done_callback(lambda future: futures.append(portal.submit(echo, 2)))
        gate.set()
        await settled(future)
        assert (await settled(futures[0])).result() == 2


async def test_a_callback_may_cancel_another_waiter_of_the_same_job() -> None:
    scope = trio.CancelScope()
    async with open_lanes({"main": 1}) as lanes:
        gate = trio.Event()
        future = await in_thread(lanes.portal().submit, gate.wait)
        future.add_done_callback(lambda future: scope.cancel())
        await wait_all_tasks_blocked()
        (job,) = lanes.jobs()

        async def other() -> None:
            with scope:
                await job.wait()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(other)
            await wait_all_tasks_blocked()
            gate.set()
        assert scope.cancelled_caught
        assert (await settled(future)).result() is None
        assert await lanes.run(echo, 1) == 1


async def test_a_callback_may_cancel_another_submission_that_is_refused_in_the_same_batch() -> None:
    scope = trio.CancelScope()
    async with open_lanes({"main": LaneConfig(max_waiting=1)}) as lanes:
        gate = trio.Event()
        jobs = [lanes.submit_nowait(gate.wait) for _ in range(2)]
        future = await in_thread(lanes.portal().submit, echo, 1)
        future.add_done_callback(lambda future: scope.cancel())

        async def other() -> None:
            with scope:
                await lanes.submit(echo, 2)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(other)
            await wait_all_tasks_blocked()
            lanes.close()
        assert scope.cancelled_caught
        with pytest.raises(LanesClosedError):
            (await settled(future)).result()
        gate.set()
        for job in jobs:
            await job.wait()


async def test_nothing_that_a_thread_sends_can_end_the_run() -> None:
    """Not even logging that raises inside of what its cancellation does."""

    class Instrument:
        def job_finished(self, job: Job[Any]) -> None:
            raise BodyError("of an instrument")

    def refuse_to_log(record: logging.LogRecord) -> bool:
        raise BodyError("of logging")

    logger = logging.getLogger("trio_lanes")
    async with open_lanes({"main": 0}, instruments=[Instrument()]) as lanes:  # type: ignore[list-item]
        portal = lanes.portal()
        future = await in_thread(portal.submit, echo, 1)
        await wait_all_tasks_blocked()
        logger.addFilter(refuse_to_log)
        try:
            assert await in_thread(future.cancel)
            await settled(future)
            lanes.close()
            with pytest.raises(LanesClosedError):
                await in_thread(portal.submit, echo, 1)
            await wait_all_tasks_blocked()
        finally:
            logger.removeFilter(refuse_to_log)


async def test_a_cancellation_that_breaks_a_step_off_ends_the_lanes_and_not_the_run() -> None:
    class Owner:
        fails = False

        def __hash__(self) -> int:
            if self.fails:
                raise BodyError("of a key")
            return 1

    owner = Owner()
    with pytest.raises(RuntimeError, match="the lanes have ended: an act was broken off"):
        async with open_lanes({"main": LaneConfig(concurrency=0, fair=True)}) as lanes:
            future = await in_thread(partial(lanes.portal().submit, echo, 1, owner=owner))
            await wait_all_tasks_blocked()
            owner.fails = True
            assert future.cancel()
            await trio.sleep_forever()
    assert (await settled(future)).cancelled()


# ---- many threads at once


@pytest.mark.parametrize("max_waiting", [10, 10_000])
async def test_in_a_storm_of_threads_every_submission_runs_once_or_is_refused(
    max_waiting: int,
) -> None:
    ran: dict[tuple[int, int], int] = {}
    order: list[tuple[int, int]] = []

    async def body(thread: int, n: int) -> tuple[int, int]:
        ran[thread, n] = ran.get((thread, n), 0) + 1
        order.append((thread, n))
        if len(ran) == 700:
            enough.set()
        if n % 3 == 0:
            await trio.lowlevel.checkpoint()
        return thread, n

    def storm(thread: int) -> list[tuple[tuple[int, int], Future[Any] | None]]:
        barrier.wait(PATIENCE)
        submitted: list[tuple[tuple[int, int], Future[Any] | None]] = []
        for n in range(150):
            try:
                future = portal.submit(body, thread, n, session=f"of {thread}")
            except LanesClosedError:
                submitted.append(((thread, n), None))
            else:
                submitted.append(((thread, n), future))
                if n % 10 == 5:
                    future.cancel()
                if n % 25 == 0:
                    concurrent.futures.wait([future], timeout=PATIENCE)
        return submitted

    barrier, enough = threading.Barrier(8), trio.Event()
    recorder = LaneRecorder()
    submitted: list[tuple[tuple[int, int], Future[Any] | None]] = []
    config = LaneConfig(concurrency=4, max_waiting=max_waiting)
    async with trio.open_nursery() as nursery:
        async with open_lanes({"main": config}, instruments=[recorder]) as lanes:
            portal = lanes.portal()

            async def one(thread: int) -> None:
                submitted.extend(await in_thread(storm, thread))

            for thread in range(8):
                nursery.start_soon(one, thread)
            with trio.fail_after(PATIENCE):
                await enough.wait()
    recorder.check()
    assert len(submitted) == 8 * 150
    assert set(ran.values()) == {1}
    for label, future in submitted:
        if future is None:
            assert label not in ran
        elif future.cancelled():
            await settled(future)
        else:
            error = (await settled(future)).exception()
            assert (error is None) == (label in ran)
            assert error is None or isinstance(error, LanesClosedError)
    for thread in range(8):
        of_one = [n for other, n in order if other == thread]
        assert of_one == sorted(of_one)


async def test_a_race_of_ends_and_cancellations_settles_every_future_once() -> None:
    def race() -> list[Future[int]]:
        futures = [portal.submit(echo, n) for n in range(300)]
        for future in futures:
            future.cancel()
        return futures

    async with open_lanes({"main": 4}) as lanes:
        portal = lanes.portal()
        for n, future in enumerate(await in_thread(race)):
            if not (await settled(future)).cancelled():
                assert future.result() == n
        assert lanes.jobs() == []


# ---- asyncio in another thread


async def test_an_asyncio_loop_awaits_jobs_and_cancels_them() -> None:
    started, cancelled = threading.Event(), trio.Event()

    async def hangs() -> None:
        started.set()
        try:
            await trio.sleep_forever()
        finally:
            cancelled.set()

    async def in_asyncio() -> None:
        results = await asyncio.gather(
            *(asyncio.wrap_future(portal.submit(echo, n, session="alice")) for n in range(20))
        )
        assert results == list(range(20))
        with pytest.raises(BodyError):
            await asyncio.wrap_future(portal.submit(raises_at_once))
        task = asyncio.ensure_future(asyncio.wrap_future(portal.submit(hangs)))
        await asyncio.to_thread(started.wait, PATIENCE)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.wrap_future(portal.submit(hangs)), 0.01)

    async with open_lanes({"main": 4}) as lanes:
        portal = lanes.portal()
        await in_thread(asyncio.run, in_asyncio())
        await cancelled.wait()
        with trio.fail_after(PATIENCE):
            await lanes.wait_idle()


async def test_a_job_knows_that_it_runs_in_trio_also_when_an_asyncio_thread_submitted_it() -> None:
    async def body() -> str:
        await trio.lowlevel.checkpoint()
        return sniffio.current_async_library()

    async def in_asyncio() -> str:
        sniffio.current_async_library_cvar.set("asyncio")
        return await asyncio.wrap_future(portal.submit(body))

    async with open_lanes({"main": 1}) as lanes:
        portal = lanes.portal()
        assert await in_thread(asyncio.run, in_asyncio()) == "trio"


@pytest.mark.parametrize("idle_timeout", [PATIENCE, math.inf])
async def test_in_another_thread_every_call_that_would_change_lanes_is_refused(
    idle_timeout: float,
) -> None:
    gate = trio.Event()
    async with open_lanes({"main": 1}) as lanes:
        running = lanes.submit_nowait(gate.wait, idle_timeout=idle_timeout)
        waiting = lanes.submit_nowait(trio.sleep, 0, session="alice")
        before = lanes.statistics()
        session, lane = lanes.session("bob"), lanes.lane("main")
        verbs: list[Callable[[], object]] = [
            lambda: lanes.submit_nowait(trio.sleep, 1),
            lambda: session.start_soon(trio.sleep, 1),
            lanes.clear,
            lanes.reset,
            lanes.pause,
            session.pause,
            lambda: session.pause_for(1),
            lane.resume,
            lambda: lanes.configure({"main": 9}),
            lambda: setattr(lane, "concurrency", 9),
            lambda: setattr(waiting, "priority", 9),
            lanes.close,
            running.cancel,
            waiting.cancel,
            lambda: running.charge(requests=2),
            running.progress,
        ]
        for verb in verbs:
            with pytest.raises(RuntimeError):
                await in_thread(verb)
        with pytest.raises(RuntimeError, match=r"portal\(\)"):
            await in_thread(lanes.clear)
        after = lanes.statistics()
        assert attrs.evolve(after, oldest_wait=0, lanes={}) == attrs.evolve(
            before, oldest_wait=0, lanes={}
        )
        assert after.lanes["main"].concurrency == 1
        assert lanes.sessions() == ["alice"]
        assert (waiting.priority, running.cancel_called) == (0, False)
        gate.set()
        await lanes.run(trio.sleep, 0)
        assert (running.exception, waiting.exception) == (None, None)


async def test_in_a_trio_run_of_another_thread_every_wait_is_refused_and_changes_nothing() -> None:
    gate = trio.Event()
    config = {"main": 1, "full": LaneConfig(concurrency=0, max_waiting=0), "t-*": 1}
    async with open_lanes(config) as lanes:
        ended = lanes.submit_nowait(trio.sleep, 0)
        await ended.wait()
        running = lanes.submit_nowait(gate.wait)
        waiting = lanes.submit_nowait(trio.sleep, 0)
        lane = lanes.lane("main")

        async def take() -> None:
            await anext(results)

        async def take_of_another_map() -> None:
            async with lanes.map(echo, [1]) as others:
                await anext(others)

        async def pause() -> None:
            lanes.pause("t-1")

        verbs: list[Callable[[], Awaitable[object]]] = [
            running.wait,
            running.wait_done,
            waiting.wait_started,
            ended.wait,
            lanes.wait_idle,
            lanes.wait_empty,
            partial(lanes.wait_room, 9),
            lanes.wait_active,
            partial(lanes.wait_active, timeout=0),
            lane.wait_idle,
            lanes.wait_closing,
            lanes.drain,
            running.readmit,
            partial(lanes.run, echo, 1),
            partial(lanes.submit, echo, 1),
            partial(lanes.run, echo, 1, lane="full"),
            partial(lanes.submit, echo, 1, lane="full"),
            take,
            take_of_another_map,
            pause,
        ]
        async with lanes.map(echo, [1], max_outstanding=1) as results:
            before = lanes.statistics()
            for verb in verbs:
                with pytest.raises(RuntimeError, match=r"portal\(\)"):
                    await in_thread(trio.run, verb)
            after = lanes.statistics()
            assert attrs.evolve(after, oldest_wait=0, lanes={}) == attrs.evolve(
                before, oldest_wait=0, lanes={}
            )
            assert list(after.lanes) == ["main", "full"]
            lanes.check_open()
            gate.set()
            assert await anext(results) == 1
        await lanes.wait_idle()
        assert (running.exception, waiting.exception) == (None, None)


# ---- submitting without a wait


async def test_submit_nowait_gives_a_future_or_raises_at_the_call_when_a_lane_is_full() -> None:
    gate = trio.Event()
    rejected: list[tuple[str, str]] = []

    class Counts:
        def job_rejected(self, lane: Any, reason: str) -> None:
            rejected.append((lane.name, reason))

    async def body(n: int) -> int:
        await gate.wait()
        return n

    def thread() -> tuple[list[Future[int]], int]:
        futures: list[Future[int]] = []
        refused = 0
        for n in range(80):
            try:
                futures.append(portal.submit_nowait(body, n))
            except LaneFullError:
                refused += 1
        return futures, refused

    config = LaneConfig(concurrency=2, max_waiting=3)
    async with open_lanes({"main": config}, instruments=[Counts()]) as lanes:  # type: ignore[list-item]
        portal = lanes.portal()
        futures, refused = await in_thread(thread)
        assert (len(futures), refused, len(rejected)) == (5, 75, 75)
        assert {*rejected} == {("main", "full")}
        assert len(lanes.jobs()) == 5
        gate.set()
        assert [(await settled(future)).result() for future in futures] == [0, 1, 2, 3, 4]


async def test_submit_nowait_raises_at_the_call_what_refuses_the_job() -> None:
    async with open_lanes({"main": 1}) as lanes:
        portal = lanes.portal()
        with pytest.raises(ValueError, match="tokens"):
            await in_thread(partial(portal.submit_nowait, echo, 1, cost={"tokens": 1}))
        with pytest.raises(RuntimeError, match=r"own thread; use Lanes\.submit_nowait"):
            portal.submit_nowait(echo, 1)
        lanes.close("enough")
        with pytest.raises(LanesClosedError, match="enough"):
            await in_thread(portal.submit_nowait, echo, 1)
        assert lanes.jobs() == []


async def test_submit_nowait_gives_a_settled_future_if_the_job_ends_in_the_call() -> None:
    async with open_lanes({"main": 0}) as lanes:
        submit = partial(lanes.portal().submit_nowait, echo, 1, queue_timeout=0)
        future = await in_thread(submit)
        assert isinstance(future.exception(timeout=0), QueueTimeoutError)


async def test_an_error_of_submit_nowait_keeps_nothing_alive() -> None:
    class Argument:
        pass

    def thread() -> weakref.ref[Argument]:
        argument = Argument()
        try:
            portal.submit_nowait(echo, argument)
        except LaneFullError:
            pass
        return weakref.ref(argument)

    async with open_lanes({"main": LaneConfig(concurrency=0, max_waiting=0)}) as lanes:
        portal = lanes.portal()
        gc.collect()
        gc.disable()
        try:
            kept = await in_thread(thread)
            await wait_all_tasks_blocked()
            assert kept() is None
        finally:
            gc.enable()


# ---- how long a submission waits


async def test_queue_timeout_counts_from_the_call_of_a_thread(mock_clock: MockClock) -> None:
    """The wait for room included, and the wait in line after it."""
    gate, other = trio.Event(), trio.Event()
    async with open_lanes({"main": LaneConfig(concurrency=1, max_waiting=1)}) as lanes:
        portal = lanes.portal()

        def thread() -> list[Future[Any]]:
            bodies = [gate.wait, other.wait, trio.sleep_forever, trio.sleep_forever]
            return [portal.submit(body, queue_timeout=10) for body in bodies]

        running, in_line, for_room, later = await in_thread(thread)
        await wait_all_tasks_blocked()
        mock_clock.jump(6)
        gate.set()  # the second starts, the third has its room
        await settled(running)
        assert not in_line.done()
        assert [job.state.name for job in lanes.jobs()] == ["RUNNING", "WAITING"]
        mock_clock.jump(3.9)
        await wait_all_tasks_blocked()
        assert not for_room.done()
        assert not later.done()
        mock_clock.jump(0.2)
        for future in (for_room, later):
            error = (await settled(future)).exception()
            assert isinstance(error, QueueTimeoutError)
            assert error.seconds == 10
        assert len(lanes.jobs()) == 1
        other.set()
        assert (await settled(in_line)).result() is None


async def test_queue_timeout_of_a_thread_does_not_count_the_delay(mock_clock: MockClock) -> None:
    gate = trio.Event()
    async with open_lanes({"main": LaneConfig(concurrency=1, max_waiting=1)}) as lanes:
        portal = lanes.portal()

        def thread() -> list[Future[Any]]:
            return [
                portal.submit(gate.wait),
                portal.submit(echo, 1),
                portal.submit(trio.sleep_forever, delay=100, queue_timeout=10),
            ]

        futures = await in_thread(thread)
        await wait_all_tasks_blocked()
        mock_clock.jump(4)  # it waits for room
        gate.set()
        await settled(futures[1])
        lanes.lane("main").concurrency = 0
        mock_clock.jump(104.5)
        await wait_all_tasks_blocked()
        assert not futures[2].done()
        mock_clock.jump(2)
        assert isinstance((await settled(futures[2])).exception(), QueueTimeoutError)


async def test_queue_timeout_counts_the_time_in_which_the_lanes_thread_was_busy(
    mock_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        portal = lanes.portal()
        late, in_time = portal.submit(echo, 1, queue_timeout=1), portal.submit(echo, 2)
        mock_clock.jump(2)  # before they arrive
        assert isinstance((await settled(late)).exception(), QueueTimeoutError)
        assert (await settled(in_time)).result() == 2


async def test_queue_timeout_ends_the_wait_for_room(mock_clock: MockClock) -> None:
    async with open_lanes({"main": LaneConfig(concurrency=0, max_waiting=1)}) as lanes:
        portal = lanes.portal()

        def thread() -> list[Future[int]]:
            return [portal.submit(echo, 1), portal.submit(echo, 2, queue_timeout=10)]

        in_line, for_room = await in_thread(thread)
        await wait_all_tasks_blocked()
        mock_clock.jump(11)
        assert isinstance((await settled(for_room)).exception(), QueueTimeoutError)
        assert len(lanes.jobs()) == 1
        lanes.lane("main").concurrency = 1
        assert (await settled(in_line)).result() == 1
