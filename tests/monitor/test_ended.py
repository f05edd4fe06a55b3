"""What has ended: failures by error with the last traceback, and how long jobs of a name take."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.monitor.web import ask, page
from trio_lanes import LaneConfig, RateLimit, open_lanes

QUIET = LaneConfig(concurrency=9, log_failures=False)


async def answers(seconds: float) -> None:
    await trio.sleep(seconds)


async def fails(text: str) -> None:
    raise ValueError(text)


class NoWordsError(Exception):
    def __str__(self) -> str:
        raise RuntimeError


async def speechless() -> None:
    raise NoWordsError


async def test_failures_are_grouped_by_error_name_and_lane_with_the_last_traceback(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": QUIET, "other": QUIET}) as lanes:
        app = page(lanes)
        for number in range(3):
            lanes.submit_nowait(fails, f"no {number}", name="ask")
            await trio.sleep(2)
        lanes.submit_nowait(fails, "late", name="ask", lane="other")
        lanes.submit_nowait(speechless, name="mute")
        lanes.submit_nowait(trio.sleep, 60, name="slow", timeout=1)
        lanes.submit_nowait(trio.sleep, 60, name="gone", queue_timeout=1, delay=0).cancel()
        await lanes.run(answers, 4, name="ask")
        found = (await ask(app, "/ended")).json
        assert found["outcomes"] == {"failed": 6, "succeeded": 1, "cancelled": 1}
        assert (found["recorded"], found["failed"]) == (8, 6)
        groups = {(g["error"], g["name"], g["label"]): g for g in found["groups"]}
        assert [group["count"] for group in found["groups"]] == [3, 1, 1, 1]
        three = groups["ValueError", "ask", "main"]
        assert three["last"]["reason"] == "ValueError: no 2"
        assert "raise ValueError(text)" in three["trace"]
        mute = groups["NoWordsError", "mute", "main"]
        assert mute["last"]["reason"] == "NoWordsError: its text cannot be had"
        assert ("JobTimeoutError", "slow", "main") in groups
        one = (await ask(app, "/ended?error=NoWordsError")).json
        assert [job["name"] for job in one["jobs"]] == ["mute"]
        by_name = (await ask(app, "/ended?name=ask")).json
        assert (by_name["recorded"], by_name["failed"]) == (5, 4)
        (name,) = by_name["names"]
        assert name == {"name": "ask", "count": 5, "quantiles": [0.0, 0.0, 0.0, 4.0]}
        of_lane = (await ask(app, "/lane/other")).json["ended"]
        assert [group["count"] for group in of_lane["groups"]] == [1]


async def test_a_failure_stays_when_thousands_of_jobs_succeed_after_it(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": QUIET}) as lanes:
        app = page(lanes)
        await lanes.submit_nowait(fails, "early").wait_done()
        for _ in range(50):
            for _ in range(100):
                lanes.start_soon(answers, 0)
            await trio.sleep(1)
        found = (await ask(app, "/ended")).json
        assert found["outcomes"] == {"succeeded": 4000}
        assert (found["failed"], found["groups"][0]["last"]["reason"]) == (1, "ValueError: early")


async def test_tracebacks_are_bounded_in_number_length_and_rate(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": QUIET}) as lanes:
        app = page(lanes)

        async def trace(name: str) -> str:
            (group,) = (await ask(app, f"/ended?name={name}")).json["groups"]
            return str(group["trace"])

        for text in ("first", "second"):
            await lanes.submit_nowait(fails, text, name="ask").wait_done()
        assert "first" in await trace("ask")
        await trio.sleep(1)
        await lanes.submit_nowait(fails, "x" * 10_000, name="ask").wait_done()
        assert len(await trace("ask")) == 6000
        for number in range(60):
            await lanes.submit_nowait(fails, "no", name=f"n{number}").wait_done()
        assert (await trace("ask"), "ValueError: no" in await trace("n59")) == ("", True)


async def test_where_waits_went_is_summed_by_lane_and_session(autojump_clock: MockClock) -> None:
    rate = RateLimit(2, per=3, algorithm="sliding")
    main = LaneConfig(concurrency=1, rate=rate)
    async with open_lanes({"main": main, "other": 1}, wait_accounting=True) as lanes:
        app = page(lanes)
        for session in ("ann", "ann", "ann", "ben"):
            job = lanes.submit_nowait(trio.sleep, 1, session=session)
        await trio.sleep(0.5)
        told = (await ask(app, f"/job/{job.id}")).json["waits"]
        assert told == {"slots": pytest.approx(0.5)}
        await lanes.wait_idle()
        for path in ("/lane/main", "/session/ann"):
            found = (await ask(app, path)).json["ended"]
            assert {"session", "rate"} <= found["waits"].keys(), path
        assert (await ask(app, "/lane/other")).json["ended"]["waits"] == {}
        ann = (await ask(app, "/session/ann")).json["ended"]
        assert ann["recorded"] == 3


async def test_nothing_has_ended_at_first(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 1}) as lanes:
        found: Any = (await ask(page(lanes), "/ended")).json
        assert (found["recorded"], found["since"], found["groups"], found["names"]) == (
            0,
            None,
            [],
            [],
        )
        lanes.submit_nowait(trio.sleep, 1, delay=9).cancel()
        app = page(lanes)
        lanes.submit_nowait(trio.sleep, 1, delay=9, name="never").cancel()
        (name,) = (await ask(app, "/ended")).json["names"]
        assert name == {"name": "never", "count": 1, "quantiles": None}
