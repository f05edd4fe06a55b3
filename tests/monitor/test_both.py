"""A page over core and store: one verdict, one table, one total, and the age of what is old."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.monitor.web import ask, looking, page
from trio_lanes import Lanes, open_lanes
from trio_lanes.durable import (
    DurableLanes,
    MemoryStore,
    RetryPolicy,
    StoreUnavailableError,
    open_durable_lanes,
)


async def fail(payload: Any) -> None:
    raise ValueError("no")


async def wait(payload: Any) -> None:
    await trio.sleep_forever()


@asynccontextmanager
async def opened() -> AsyncIterator[DurableLanes]:
    handlers = {"fail": fail, "wait": wait}
    limits = {"main": 2, "mail": 2, "t:*": 1}
    once = RetryPolicy(max_attempts=1)
    async with open_durable_lanes(MemoryStore(), handlers, limits, retry=once, grace=0) as lanes:
        yield lanes


async def frame_of(lanes: Lanes, durable: DurableLanes) -> Any:
    """A frame of a page that was opened now."""
    async with looking(page(lanes, durable=durable)) as viewer:
        return await viewer.next()


def by_name(frame: Any) -> dict[str, Any]:
    return {row["name"]: row for row in frame["lanes"]}


async def test_a_sick_store_is_told_at_the_top_of_the_page(autojump_clock: MockClock) -> None:
    async with opened() as durable, open_lanes({"main": 1, "mail": 3}) as lanes:
        await durable.pause("mail")
        for _ in range(5):
            await durable.submit("wait", lane="mail")
        await durable.submit("wait", lane="mail", delay=1000)
        for n in range(7):
            await durable.submit("fail", n, lane="t:a")
        lanes.submit_nowait(trio.sleep_forever, lane="mail")
        await trio.sleep(47)
        frame = await frame_of(lanes, durable)
        found = [(one["kind"], one["lane"], one["stored"]) for one in frame["health"]]
        assert found == [("pause", "mail", True), ("dead", "t:a", True)]
        assert (frame["left_out"], frame["looked"]) == ([], True)
        totals = frame["totals"]
        assert (totals["waiting"], totals["parked"], totals["active"]) == (5, 1, 1)
        assert (totals["oldest"], totals["oldest_lane"]) == (47, "mail")
        rows = by_name(frame)
        mail = rows["mail"]
        assert (mail["waiting"], mail["parked"], mail["oldest"], mail["limit"]) == (5, 1, 47, 5)
        assert (mail["stored_paused"], mail["paused"]) == (True, False)
        assert (rows["main"]["parked"], rows["main"]["limit"]) == (0, 3)
        assert (rows["t:*"]["only_stored"], rows["t:*"]["template"]) == (True, True)
        lanes.pause("mail")
        lanes.submit_nowait(trio.sleep, 0, lane="mail")
        await trio.sleep(20)
        frame = await frame_of(lanes, durable)
        found = [(one["kind"], one["lane"], one["stored"]) for one in frame["health"]]
        assert found == [("pause", "mail", False), ("dead", "t:a", True)]
        lanes.clear()
        lanes.reset()


async def test_the_jobs_of_a_worker_are_counted_once(autojump_clock: MockClock) -> None:
    async with opened() as durable:
        for _ in range(3):
            await durable.submit("wait")
        await trio.sleep(1)
        assert durable.local is not None
        frame = await frame_of(durable.local, durable)
        totals, main = frame["totals"], by_name(frame)["main"]
        assert (main["active"], main["slots"], main["limit"], main["waiting"]) == (2, 2, 2, 1)
        assert (totals["active"], totals["waiting"], totals["limit"]) == (2, 1, 4)
        assert frame["health"] == []


async def test_a_session_of_a_worker_is_counted_once(autojump_clock: MockClock) -> None:
    async with opened() as durable:
        for _ in range(2):
            await durable.submit("wait", session="s")
        await trio.sleep(1)
        assert durable.local is not None
        assert (await frame_of(durable.local, durable))["totals"]["sessions"] == 1


async def test_a_lane_without_a_limit_has_none_with_the_store_either(
    autojump_clock: MockClock,
) -> None:
    async with opened() as durable, open_lanes({"main": math.inf}) as lanes:
        frame = await frame_of(lanes, durable)
        assert by_name(frame)["main"]["limit"] is None


async def test_of_many_lanes_those_of_the_store_that_wait_longest_are_shown(
    autojump_clock: MockClock,
) -> None:
    limits = {f"s{n}": 1 for n in range(70)}
    many = open_durable_lanes(MemoryStore(), {"wait": wait}, limits, worker=False)
    async with many as durable, open_lanes({"main": 1, "cron": 1}) as lanes:
        await durable.submit("wait", lane="s69")
        await durable.pause("s68")
        await durable.submit("wait", lane="s68")
        await trio.sleep(20)
        frame = await frame_of(lanes, durable)
        assert (len(frame["lanes"]), frame["more_lanes"]) == (60, 12)
        assert {"s68", "s69"} <= by_name(frame).keys()


async def test_figures_that_could_not_be_read_again_have_their_age(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened() as durable, open_lanes({"main": 1}) as lanes:
        await durable.submit("wait", delay=1000)
        app = page(lanes, durable=durable)
        async with looking(app) as viewer:
            frame = await viewer.next()
            assert (frame["health"], frame["left_out"]) == ([], [])

            async def away(self: DurableLanes) -> Any:
                raise StoreUnavailableError("it is gone")

            with monkeypatch.context() as patch:
                patch.setattr(DurableLanes, "statistics", away)
                await trio.sleep(12)
                frame = await viewer.next()
                frame = await viewer.next()
                (problem,) = frame["health"]
                assert (problem["kind"], frame["looked"]) == ("store", False)
                (left_out,) = frame["left_out"]
                assert left_out.startswith("the store (its figures are as of 1")
                assert left_out.endswith(" s ago)")
                assert frame["totals"]["parked"] == 1
                told = (await ask(app, "/durable")).json
                assert (told["error"], told["totals"]["parked"]) == ("it is gone", 1)
                assert told["age"] >= 10
            await trio.sleep(5)
            frame = await viewer.next()
            frame = await viewer.next()
            assert (frame["health"], frame["left_out"], frame["looked"]) == ([], [], True)


async def test_a_store_that_has_not_answered_yet_was_not_looked_at(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(self: DurableLanes) -> Any:
        await trio.sleep_forever()

    async with opened() as durable, open_lanes({"main": 1}) as lanes:
        with monkeypatch.context() as patch:
            patch.setattr(DurableLanes, "statistics", never)
            frame = await frame_of(lanes, durable)
        assert (frame["health"], frame["looked"]) == ([], False)
        assert frame["left_out"] == ["the store"]


async def test_a_look_at_the_store_that_fails_ends_no_stream(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened() as durable, open_lanes({"main": 1}) as lanes:
        async with looking(page(lanes, durable=durable)) as viewer:
            await viewer.next()

            async def fails(self: DurableLanes) -> Any:
                raise ZeroDivisionError

            with monkeypatch.context() as patch:
                patch.setattr(DurableLanes, "statistics", fails)
                await trio.sleep(10)
                first = await viewer.next()
                assert (await viewer.next())["n"] > first["n"]


async def test_a_store_that_goes_away_during_a_look_keeps_its_figures(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(self: DurableLanes) -> Any:
        raise StoreUnavailableError("it is gone")

    async with opened() as durable, open_lanes({"main": 1}) as lanes:
        await frame_of(lanes, durable)
        monkeypatch.setattr(DurableLanes, "limits", away)
        frame = await frame_of(lanes, durable)
        assert [one["text"] for one in frame["health"]] == [
            "the store cannot be reached: it is gone"
        ]


async def test_the_first_problem_of_each_kind_comes_before_others_of_a_kind(
    autojump_clock: MockClock,
) -> None:
    async with opened() as durable, open_lanes({"a": 1, "b": 1, "c": 0}) as lanes:
        for name in "ab":
            lanes.pause(name)
        for name in "abc":
            lanes.submit_nowait(trio.sleep_forever, lane=name)
        await durable.submit("fail")
        await trio.sleep(20)
        found = [one["kind"] for one in (await frame_of(lanes, durable))["health"]]
        assert found == ["concurrency", "pause", "dead", "pause"]
        lanes.clear()
