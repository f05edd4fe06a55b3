"""The last hour: what a page that is opened at three shows of two o'clock."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

import pytest
import trio
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, SimpleUser
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.routing import Mount
from trio.testing import MockClock

from tests.monitor.web import HOST, Operator, ask, looking, operator, page, post
from trio_lanes import LaneConfig, open_lanes
from trio_lanes.monitor import monitor
from trio_lanes.monitor._history import NUMBERS, History

QUIET = LaneConfig(concurrency=3, log_failures=False)


async def hour(app: Any, lane: str = "") -> Any:
    return (await ask(app, f"/hour?lane={lane}")).json


def column(told: Any, name: str) -> list[float]:
    at = list(NUMBERS).index(name)
    return [sample[at] for sample in told["samples"]]


async def fails() -> None:
    await trio.sleep(6)
    raise ValueError


async def stubborn(seconds: float) -> None:
    with trio.CancelScope(shield=True):
        await trio.sleep(seconds)


async def test_the_numbers_of_an_hour_ago_are_there_for_a_page_that_is_opened_now(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": QUIET, "other": QUIET, "t:*": 1}) as lanes:
        app = page(lanes)
        await trio.sleep(600)
        for _ in range(4):
            lanes.submit_nowait(fails)
        for _ in range(5):
            lanes.start_soon(trio.sleep, 60)
        lanes.start_soon(trio.sleep, 60, lane="t:a")
        await trio.sleep(900)
        told = await hour(app, "main")
        assert (told["label"], told["labels"]) == ("main", ["main", "other", "t:*"])
        assert (max(column(told, "slots")), max(column(told, "waiting"))) == (3, 6)
        assert column(told, "failed")[-1] == 4
        assert set(column(told, "limit")) == {3}
        assert max(column(told, "oldest")) > 50
        assert column(told, "slots")[-1] == 0
        everything = await hour(app, "unknown")
        assert (everything["label"], max(column(everything, "slots"))) == ("", 4)
        assert column(await hour(app, "t:*"), "limit")[-1] == 0  # its lane has gone
        assert len(told["walls"]) == len(told["samples"]) == 300


@pytest.mark.slow
async def test_the_ring_holds_an_hour_in_few_megabytes_and_the_oldest_leave_first(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({f"lane-{number:02}": QUIET for number in range(62)}) as lanes:
        lanes.start_soon(trio.sleep, 100, lane="lane-00")
        gc.collect()
        tracemalloc.start()
        app = page(lanes)
        await trio.sleep(4000.5)  # no sample is taken when the jobs below run
        for number in range(100):
            for _ in range(100):
                lanes.start_soon(trio.sleep, 0, lane=f"lane-{number % 60:02}", session=str(number))
            await trio.sleep(1)
        gc.collect()
        kept = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        told = await hour(app, "lane-00")
        assert len(told["samples"]) == 720
        assert max(column(told, "slots")) == 0  # the first minutes are over
        assert kept < 6_000_000


async def test_what_happened_while_no_page_was_open_is_noted_with_who_did_it(
    autojump_clock: MockClock,
) -> None:
    class Users:
        async def authenticate(self, connection: Any) -> Any:
            return AuthCredentials([]), SimpleUser("zoe")

    async with open_lanes({"main": LaneConfig(concurrency=1, overdue_after=5)}) as lanes:
        app = monitor(lanes, authorize=lambda connection: "operate")
        person = await operator(app)
        done = await person.act(do="limit", lane="main", value=4)
        await person.act(do="undo", key=done["undo"])
        await person.act(do="pause", lane="main")
        lanes.resume()
        job = lanes.submit_nowait(trio.sleep, 9, name="turn")
        late = lanes.submit_nowait(stubborn, 60, name="nightly", timeout=10)
        async with looking(app) as viewer:
            await viewer.next()
        await person.act(do="priority", job=late.id, value=3)
        named = Starlette(
            routes=[Mount("/", app)],
            middleware=[Middleware(AuthenticationMiddleware, backend=Users())],
        )
        await Operator(named, person._token).act(do="cancel", job=job.id, seen="running")
        told = await post(app, b'{"do": "clear", "lane": "main", "seen": 1}', person._token)
        assert told.status == 200
        late = lanes.submit_nowait(stubborn, 60, name="nightly", timeout=10)
        await trio.sleep(3000)
        notes = (await hour(app))["notes"]
        assert [note["text"] for note in notes] == [
            "main 1 → 4 (by 127.0.0.1)",
            "main 4 → 1 (by 127.0.0.1)",
            "undone: Limit of main: 1 → 4 (by 127.0.0.1)",
            "main is paused until it is resumed (by 127.0.0.1)",
            "main starts jobs again",
            "Priority of job 2: 0 → 3 (by 127.0.0.1)",
            "Cancelled job 1 turn (by zoe)",
            "main was cleared of 1 jobs: by an operator (by 127.0.0.1)",
            "job 3 nightly still runs 5 s after it was to end",
        ]
        assert (notes[-1]["job"], notes[-1]["level"]) == (late.id, "error")
        assert HOST


async def test_lanes_that_end_in_a_burst_end_the_samples_as_well(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        app = page(lanes)
        for _ in range(200):  # more than are recorded in a second
            lanes.start_soon(trio.sleep, 0)
    await trio.sleep(100)
    assert len((await hour(app))["samples"]) == 1


async def test_a_fault_while_a_sample_is_taken_is_logged_and_ends_nothing_else(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fault(self: History) -> None:
        raise ValueError("a fault")

    async with open_lanes({"main": 1}) as lanes:
        app = page(lanes)
        await trio.sleep(7)
        monkeypatch.setattr(History, "sample", fault)
        await trio.sleep(20)
        assert len((await hour(app))["samples"]) == 2
        assert [record.message for record in caplog.records] == [
            "the monitor takes no more samples"
        ]


async def test_samples_end_with_the_lanes(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 1}) as lanes:
        app = page(lanes)
        lanes.start_soon(trio.sleep, 20)
        await trio.sleep(1)
        lanes.close("the test")
    await trio.sleep(100)
    assert len((await hour(app))["samples"]) <= 6
