"""Durable lanes with handlers of asyncio's."""

import asyncio
import contextvars
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import trio_lanes.durable as of_trio
from tests.support.programs import PATIENCE
from trio_lanes import Job, JobCancelledError, LaneConfig
from trio_lanes.aio import current_durable_job, open_durable_lanes
from trio_lanes.command._worker import WorkerOptions, run_worker
from trio_lanes.durable import (
    DurableJobError,
    DurableLanes,
    MemoryStore,
    RetryPolicy,
    SqliteStore,
    StoreLockedError,
    current_job,
)

ONCE = RetryPolicy(max_attempts=1)


@pytest.mark.asyncio_only
async def test_a_handler_is_asyncios_and_has_the_verbs_of_its_run() -> None:
    async def answer(payload: dict[str, str]) -> str:
        async with asyncio.timeout(1):
            await asyncio.sleep(0.1)
        run = current_durable_job()
        assert run is not None
        await run.checkpoint({"half": True})
        await run.emit("an event")
        async with run.yield_slot():
            await asyncio.sleep(0)
        async for message in run.messages():
            return f"{payload['text']} {message}"
        raise AssertionError

    assert current_durable_job() is None
    async with open_durable_lanes(MemoryStore(), {"answer": answer}) as lanes:
        assert isinstance(lanes, DurableLanes)
        assert "DurableLanes" in repr(lanes)
        job = await lanes.submit("answer", {"text": "hello"}, session="alice")
        events = job.events()
        assert await anext(events) == (1, "an event")
        await lanes.send("alice", "bob")
        assert await job.wait() == "hello bob"
        assert [event async for event in events] == []
        async with lanes.lock("key") as held:
            assert held.key == "key"
        (listed,) = await lanes.jobs()
        assert listed.id == job.id


@pytest.mark.asyncio_only
async def test_a_handler_of_asyncios_waits_for_children_without_its_slot() -> None:
    async def parent(payload: object) -> object:
        run = current_durable_job()
        assert run is not None
        async with run.children() as jobs:
            first = await jobs.submit("child", 1)
            assert (await jobs.wait_first()).id == first.id
            await jobs.submit("child", 2)
            return await jobs.wait_all()

    async def child(payload: object) -> object:
        await asyncio.sleep(0)
        return payload

    handlers = {"parent": parent, "child": child}
    async with open_durable_lanes(MemoryStore(), handlers, {"main": 1}) as lanes:
        assert await (await lanes.submit("parent")).wait() == [1, 2]


@pytest.mark.asyncio_only
async def test_a_handler_that_fails_or_is_cancelled_ends_as_in_trio() -> None:
    async def fails(payload: object) -> None:
        raise KeyError(payload)

    async def cleans_up(payload: object) -> None:
        try:
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(1)
            cleaned.append(payload)

    async def cancels_itself(payload: object) -> None:
        raise asyncio.CancelledError

    cleaned: list[object] = []
    handlers = {"fails": fails, "cleans_up": cleans_up, "cancels_itself": cancels_itself}
    async with open_durable_lanes(MemoryStore(), handlers, retry=ONCE) as lanes:
        for name in ("fails", "cancels_itself"):
            job = await lanes.submit(name, 1)
            with pytest.raises(DurableJobError):
                await job.wait()
        job = await lanes.submit("cleans_up", 2)
        await asyncio.sleep(1)
        assert await lanes.cancel(job.id)
        with pytest.raises(Exception, match="cancelled"):
            await job.wait()
        assert cleaned == [2]


@pytest.mark.asyncio_only
async def test_a_lock_refuses_at_the_call_what_it_refuses_in_trio() -> None:
    async def holds() -> str:
        async with lanes.lock("key") as held:
            return held.key

    async with open_durable_lanes(MemoryStore(), {}) as lanes:
        key: Any = 5
        with pytest.raises(TypeError, match="key"):
            lanes.lock(key)
        async with lanes.lock("key"):
            with pytest.raises(RuntimeError, match="holds the lock 'key' already"):
                lanes.lock("key")
            other = asyncio.create_task(holds())
            await asyncio.sleep(1)
            assert not other.done()
        assert await other == "key"


@pytest.mark.asyncio_only
async def test_a_second_task_that_takes_messages_is_a_runtime_error() -> None:
    async def takes_twice(payload: object) -> None:
        run = current_durable_job()
        assert run is not None
        first = asyncio.ensure_future(anext(run.messages()))
        await asyncio.sleep(1)
        with pytest.raises(RuntimeError, match="another task of this run is taking messages"):
            await anext(run.messages())
        first.cancel()

    async with open_durable_lanes(MemoryStore(), {"takes": takes_twice}) as lanes:
        await (await lanes.submit("takes", None, session="alice")).wait()


@pytest.mark.parametrize("handlers", [5, {"answer": 5}])
def test_bad_handlers_are_refused_at_the_call(handlers: Any) -> None:
    with pytest.raises(TypeError, match="handler"):
        open_durable_lanes(MemoryStore(), handlers)


APPLICATION = """
import asyncio
from trio_lanes.aio import open_durable_lanes
from trio_lanes.durable import SqliteStore

async def answer(payload):
    await asyncio.sleep(0)
    print("answered", payload, flush=True)

def lanes():
    print("made", flush=True)
    return open_durable_lanes(SqliteStore("jobs.db"), {"answer": answer})
"""


@pytest.mark.real_processes
def test_the_command_runs_a_worker_with_handlers_of_asyncios(tmp_path: Path) -> None:
    async def never(payload: object) -> None:
        raise AssertionError

    async def submit() -> None:
        store = SqliteStore(tmp_path / "jobs.db")
        async with open_durable_lanes(store, {"answer": never}, worker=False) as lanes:
            await lanes.submit("answer", 42)

    (tmp_path / "app.py").write_text(APPLICATION)
    asyncio.run(submit())
    worker = subprocess.Popen(
        [sys.executable, "-m", "trio_lanes", "worker", "app:lanes"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "made\n"
        assert worker.stdout.readline() == "answered 42\n"
        worker.send_signal(signal.SIGTERM)
        rest, _ = worker.communicate(timeout=PATIENCE)
        assert (rest, worker.returncode) == ("", 0)
    finally:
        worker.kill()
        worker.wait()


def test_a_worker_of_asyncio_runs_until_a_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = APPLICATION.replace("jobs.db", str(tmp_path / "jobs.db"))
    kill = "os.kill(os.getpid(), signal.SIGTERM)"
    text = text.replace('print("answered"', f'{kill}; print("answered"')
    (tmp_path / "app_of_asyncio.py").write_text(f"import os, signal\n{text}")
    monkeypatch.syspath_prepend(tmp_path)

    async def submit() -> None:
        store = SqliteStore(tmp_path / "jobs.db")
        async with open_durable_lanes(store, {}, worker=False) as lanes:
            await lanes.submit("answer", 42)

    asyncio.run(submit())
    options = WorkerOptions(application="app_of_asyncio:lanes", grace=5, cancel_grace=5)
    assert run_worker(options) == 0
    assert capsys.readouterr().out == "made\nanswered 42\n"


@pytest.mark.asyncio_only
async def test_lanes_that_cannot_be_opened_are_an_error_on_entering(tmp_path: Path) -> None:
    async def never(payload: object) -> None:
        raise AssertionError

    async with open_durable_lanes(SqliteStore(tmp_path / "jobs.db"), {"never": never}):
        with pytest.raises(StoreLockedError):
            async with open_durable_lanes(SqliteStore(tmp_path / "jobs.db"), {"never": never}):
                raise AssertionError


@pytest.mark.asyncio_only
async def test_a_cancellation_while_durable_lanes_are_opened_leaves_them() -> None:
    async def never(payload: object) -> None:
        raise AssertionError

    store, cancelled = MemoryStore(), 0
    for turns in range(40):
        opening = open_durable_lanes(store, {"never": never})
        task = asyncio.create_task(opening.__aenter__())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        cancelled += task.cancelled()
        if not task.cancelled():
            await asyncio.create_task(opening.__aexit__(None, None, None))
        store = MemoryStore()
    assert 3 < cancelled < 40


@pytest.mark.asyncio_only
async def test_a_wrap_is_asyncios_and_runs_around_the_handler_in_its_job_and_context() -> None:
    seen: list[object] = []
    name = contextvars.ContextVar("name", default="none")

    async def wrap(job: Any, body: Callable[[], Awaitable[object]]) -> object:
        name.set("of the wrap")
        run = current_durable_job()
        seen.append((job.meta == run, job.lane, isinstance(job, Job)))
        for _ in range(2):
            await asyncio.sleep(0)
            try:
                return [await body()]
            except ValueError:
                seen.append("again")
        raise AssertionError

    async def handler(payload: object) -> object:
        run = current_durable_job()
        assert run is not None
        async with run.yield_slot():
            await asyncio.sleep(0)
        seen.append(name.get())
        if len(seen) < 3:
            raise ValueError
        return payload

    lanes_: dict[str, Any] = {
        "main": LaneConfig(wrap=wrap),
        "tenant:*": LaneConfig(wrap=wrap),
        "cron": 1,
    }
    async with open_durable_lanes(MemoryStore(), {"it": handler}, lanes_, retry=ONCE) as lanes:
        assert await (await lanes.submit("it", 5)).wait() == [5]
        around, inside = (True, "main", True), "of the wrap"
        assert seen == [around, inside, "again", inside]
        assert await (await lanes.submit("it", 6, lane="tenant:a")).wait() == [6]
        assert await (await lanes.submit("it", 7, lane="cron")).wait() == 7


@pytest.mark.asyncio_only
async def test_a_wrap_that_is_cancelled_ends_with_its_handler() -> None:
    ended: list[str] = []

    async def wrap(job: Any, body: Callable[[], Awaitable[object]]) -> object:
        try:
            return await body()
        finally:
            ended.append("wrap")

    async def handler(payload: object) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(1)
            ended.append("handler")

    lanes_ = {"main": LaneConfig(wrap=wrap)}
    async with open_durable_lanes(MemoryStore(), {"it": handler}, lanes_) as lanes:
        job = await lanes.submit("it")
        await asyncio.sleep(1)
        await lanes.cancel(job.id)
        with pytest.raises(JobCancelledError):
            await job.wait()
        await lanes.wait_idle()
    assert ended == ["handler", "wrap"]


@pytest.mark.asyncio_only
async def test_two_doors_of_one_job_are_equal() -> None:
    async with open_durable_lanes(MemoryStore(), {"it": asyncio.sleep}) as lanes:
        one, other = await lanes.submit("it", 0), await lanes.submit("it", 0)
        assert lanes.job(one.id) == one != other
        assert {one, lanes.job(one.id), other} == {one, other}
        assert one != object()


@pytest.mark.asyncio_only
async def test_a_run_of_trios_names_the_one_of_asyncio_at_its_async_verbs() -> None:
    async def handler(payload: object) -> object:
        run = current_job()
        assert run is not None
        for verb in (
            lambda: run.checkpoint({}),
            lambda: run.queue(),
            lambda: run.emit("event"),
            lambda: run.cancel(),
            lambda: anext(run.messages()),
            lambda: run.yield_slot().__aenter__(),
        ):
            with pytest.raises(RuntimeError, match="current_durable_job"):
                await verb()
        run.progress()
        return run.id

    async with open_durable_lanes(MemoryStore(), {"it": handler}, retry=ONCE) as lanes:
        job = await lanes.submit("it", session="ann")
        assert await job.wait() == job.id


@pytest.mark.parametrize("worker", [True, False])
def test_durable_lanes_of_trio_name_those_for_asyncio(worker: bool) -> None:
    async def main() -> None:
        with pytest.raises(RuntimeError, match=r"use trio_lanes\.aio\.open_durable_lanes"):
            async with of_trio.open_durable_lanes(MemoryStore(), {}, worker=worker):
                raise AssertionError

    asyncio.run(main())
