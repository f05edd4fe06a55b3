"""The search: over all jobs that wait or run, and those that ended last; its bound is said."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.monitor.web import ask, page
from trio_lanes import Lanes, open_lanes
from trio_lanes.monitor import _search, monitor


async def found(app: Any, text: str) -> Any:
    return (await ask(app, f"/find?text={text}")).json


def ids(answer: Any) -> list[int]:
    return [job["id"] for job in answer["jobs"]]


async def crowd(lanes: Lanes) -> Any:
    """A job that runs, and two hundred that wait behind it."""
    lanes.start_soon(trio.sleep, 500, name="first")
    for number in range(200):
        lanes.start_soon(trio.sleep, 1, name=f"ask-{number:03}", session=f"user-{number % 50}")
    await wait_all_tasks_blocked()


async def test_a_job_is_found_by_name_number_session_owner_and_meta(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1, "other": 1}) as lanes:
        await crowd(lanes)
        app = page(lanes)
        job = lanes.submit_nowait(
            trio.sleep,
            1,
            name="Report",
            session="Zoë",
            owner=("acme", 7),
            meta={"request": "R-81", "tags": ["urgent", 5.5], "more": object()},
            delay=60,
        )
        for text in ("report", "zo%C3%AB", "ACME", "r-81", "urgent", "5.5", str(job.id)):
            answer = await found(app, text)
            assert ids(answer) == [job.id], text
            assert (answer["looked"], answer["there"]) == (202, 202)
            (line,) = answer["jobs"]
            assert (line["name"], line["lane"]) == ("Report", "main")
            assert line["reason"] == f"{job.id} ← delay of 60 s, in about 60 s"
        assert (await found(app, "zo%C3%AB"))["sessions"] == ["Zoë"]
        assert (await found(app, "THE"))["lanes"] == ["other"]
        nothing = await found(app, "nothing")
        assert (nothing["jobs"], nothing["ended"], nothing["looked"]) == ([], [], 202)
        lanes.clear()
        lanes.reset()


async def test_the_job_of_a_number_comes_first_however_many_have_it_in_their_names(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        await crowd(lanes)
        app = page(lanes)
        last = lanes.submit_nowait(trio.sleep, 1)
        for _ in range(40):
            lanes.start_soon(trio.sleep, 1, name=f"about {last.id}", priority=9)
        answer = await found(app, str(last.id))
        assert (ids(answer)[0], len(ids(answer)), answer["most"]) == (last.id, 30, 30)
        assert (await ask(app, f"/job/{last.id + 40}")).json["name"] == f"about {last.id}"
        lanes.clear()
        lanes.reset()


async def test_jobs_that_have_ended_are_found_with_their_errors(autojump_clock: MockClock) -> None:
    async def fails() -> None:
        raise ValueError("no ink")

    async with open_lanes({"main": 1}) as lanes:
        app = page(lanes)
        job = lanes.submit_nowait(fails, name="print", session="ann", owner="acme")
        await job.wait_done()
        assert isinstance(job.outcome.error, ValueError)  # type: ignore[union-attr]
        for text in ("print", "ann", "acme", str(job.id)):
            answer = await found(app, text)
            (line,) = answer["ended"]
            assert (line["id"], line["state"], line["reason"]) == (
                job.id,
                "failed",
                "ValueError: no ink",
            )
            assert (answer["jobs"], answer["there"]) == ([], 0)
        with pytest.raises(ValueError, match="no ink"):
            await job.wait()


async def test_a_search_that_reaches_its_bound_says_of_how_many_jobs_it_speaks(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_search, "MAX_SEARCHED", 100)
    async with open_lanes({"main": 1, "other": 1}) as lanes:
        await crowd(lanes)
        lanes.start_soon(trio.sleep, 500, lane="other")
        app = page(lanes)
        answer = await found(app, "ask-150")
        assert (answer["jobs"], answer["looked"], answer["there"]) == ([], 100, 202)
        assert ids(await found(app, "ask-098")) == [100]
        monkeypatch.setattr(_search, "SEARCH_SECONDS", 0)
        assert (await found(app, "ask-098"))["looked"] == 0
        assert (await ask(app, "/job/100")).json["id"] == 100  # a list has shown it
        assert (await ask(app, "/job/99")).json is None
        lanes.clear()
        lanes.reset()


async def test_a_search_gives_way_to_others(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        for _ in range(1001):
            lanes.start_soon(trio.sleep, 1)
        app = page(lanes)
        passes = 0

        async def count() -> None:
            nonlocal passes
            while True:
                passes += 1
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(count)
            answer = await found(app, "none")
            nursery.cancel_scope.cancel()
        assert answer["looked"] == 1001
        assert passes >= 3
        lanes.clear()


async def test_there_must_be_a_text_to_look_for(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 1}) as lanes:
        app = page(lanes)
        assert (await ask(app, "/find")).status == 400
        assert (await ask(app, "/find?text=%20")).status == 400
        refused = monitor(lanes, authorize=lambda connection: None)
        for url in ("/find?text=a", "/lane/main", "/ended", "/hour"):
            assert (await ask(refused, url)).status == 403
