"""The story of a job: its place, the root of its wait, and what would help; lists of jobs."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.monitor.test_frames import lends, stubborn
from tests.monitor.web import ask, looking, page
from trio_lanes import Adaptive, Job, LaneConfig, LaneGroup, Lanes, RateLimit, open_lanes


async def stories(lanes: Lanes, *jobs: Job[Any]) -> list[Any]:
    """What the page is told of ``jobs``, which it has found by their sessions or in a frame."""
    app = page(lanes)
    async with looking(app) as viewer:
        await viewer.next()
    for session in {job.session for job in jobs if job.session is not None}:
        assert (await ask(app, f"/session/{session}")).status == 200
    return [(await ask(app, f"/job/{job.id}")).json for job in jobs]


async def test_a_waiting_job_has_a_place_holders_and_help(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": LaneConfig(concurrency=2, overdue_after=1)}) as lanes:
        running = lanes.submit_nowait(trio.sleep, 60)
        body = lanes.submit_nowait(stubborn, 60)
        lanes.submit_nowait(trio.sleep, 1, priority=5)
        job = lanes.submit_nowait(trio.sleep, 1, owner="acme", name="turn")
        await wait_all_tasks_blocked()
        body.cancel()
        await trio.sleep(2)
        (told,) = await stories(lanes, job)
        assert (told["place"], told["line"], told["owner"]) == (2, 2, "acme")
        (root,) = told["roots"]
        assert root["text"].startswith('slots of "main": 2 of 2 in use, longest by ')
        assert root["text"].endswith(", 1 before it")
        assert root["jobs"] == [running.id, body.id]
        assert (
            root["advice"]
            == f'reset "main": the body of {body.id} goes on after it was asked to stop'
        )
        lanes.clear()
        lanes.reset()


async def test_the_way_from_a_job_to_the_root_of_its_wait_is_told(
    autojump_clock: MockClock,
) -> None:
    async def outer() -> None:
        await lanes.run(trio.sleep, 50, lane="other", name="inner")

    async with open_lanes({"main": 1, "other": 1}) as lanes:
        holder = lanes.submit_nowait(outer, session="ann")
        job = lanes.submit_nowait(trio.sleep, 1, session="ann")
        lanes.submit_nowait(trio.sleep, 1, session="ben")
        await wait_all_tasks_blocked()
        (told,) = await stories(lanes, job)
        assert told["place"] is None
        inner = next(job for job in lanes.jobs() if job.name == "inner")
        (root,) = told["roots"]
        assert root["job"] == job.id
        assert root["chain"] == [[holder.id, "of its session"], [inner.id, "that it waits for"]]
        assert root["text"].startswith("its body, for ")
        assert root["advice"] is None
        (told,) = await stories(lanes, inner)
        assert told["parent"]["id"] == holder.id
        assert told["roots"] == []


async def test_every_reason_has_words(autojump_clock: MockClock) -> None:
    async def wants_room() -> None:
        await lanes.submit(trio.sleep, 1, lane="full")

    rate = RateLimit(1, 100, algorithm="sliding")
    async with open_lanes(
        {
            "main": 9,
            "slow": LaneConfig(concurrency=5, rate=rate),
            "full": LaneConfig(concurrency=1, max_waiting=1),
            "off": LaneConfig(paused=True),
            "a": 2,
            "b": 2,
        },
        groups={"g": LaneGroup(["a", "b"], concurrency=2, reserve={"b": 1})},
    ) as lanes:
        sleep = lanes.submit_nowait
        for lane in ("slow", "full", "full", "a"):
            sleep(trio.sleep, 60, lane=lane)
        delayed = sleep(trio.sleep, 1, delay=9, session="d")
        limited = sleep(trio.sleep, 1, lane="slow")
        paused = sleep(trio.sleep, 1, lane="off")
        reserved = sleep(trio.sleep, 1, lane="a")
        room = sleep(wants_room)
        lent = sleep(lends, "approval", 50)
        await wait_all_tasks_blocked()
        found = await stories(lanes, delayed, limited, paused, reserved, room, lent)
        assert [told["roots"][0]["advice"] for told in found] == [
            None,
            'raise the rate of "slow"',
            'resume "off"',
            'lower the reservations of the group "g"',
            'raise the concurrency of "full"',
            "end the wait for approval",
        ]
        texts = [told["roots"][0]["text"] for told in found[:3]]
        assert texts[0].startswith("delay of 9.0 s, in about 8.")  # a frame has come meanwhile
        rate = 'rate of "slow": 1 in 100 s, in about '
        assert texts[1] in (f"{rate}99 s", f"{rate}100 s")
        assert texts[2] == 'pause of "off"'
        sleep(trio.sleep, 60, lane="b")
        (told,) = await stories(lanes, reserved)
        assert told["roots"][0]["advice"] == 'raise the concurrency of the group "g"'
        lanes.reset()
        lanes.clear()
        lanes.resume()


async def test_jobs_that_have_ended_or_gone(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 1}) as lanes:
        app = page(lanes)
        job = lanes.submit_nowait(trio.sleep, 5)
        async with looking(app) as viewer:
            await viewer.next()
        await job.wait()
        told = (await ask(app, f"/job/{job.id}")).json
        assert (told["state"], told["roots"]) == ("succeeded", [])
        assert (await ask(app, "/job/999")).json is None


@pytest.mark.parametrize("waiting", [3, 2001])
async def test_the_first_jobs_of_a_session_are_listed_with_their_reasons(
    autojump_clock: MockClock, waiting: int
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        for _ in range(waiting + 1):
            lanes.start_soon(trio.sleep, 1, session="ann", name="turn")
        await wait_all_tasks_blocked()
        answer = (await ask(page(lanes), "/session/ann")).json
        assert (answer["waiting"], answer["active"]) == (waiting, 1)
        listed = answer["jobs"]
        assert len(listed) == (4 if waiting == 3 else 30)
        assert {(job["name"], job["lane"]) for job in listed} == {("turn", "main")}
        assert " of its session ← its body, for " in listed[-1]["reason"]
        assert (await ask(page(lanes), "/session/%20")).status == 404
        lanes.clear()


async def test_a_lane_shows_the_limits_that_it_has_tried(autojump_clock: MockClock) -> None:
    config = LaneConfig(concurrency=Adaptive(1, 8, by="aimd"))
    async with open_lanes({"main": config, "t:*": config}) as lanes:
        for _ in range(2):
            await lanes.run(trio.sleep, 1)
        app = page(lanes)
        (one, *_) = (await ask(app, "/lane/main")).json["tried"]
        assert (one["limit"], one["reason"]) == (2, "nothing was refused")
        lanes.start_soon(trio.sleep, 1, lane="t:a")
        assert (await ask(app, "/lane/t:*")).json["tried"] == []


async def test_the_jobs_of_a_lane_are_those_that_run_and_those_that_wait_longest(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1, "t:*": 1}) as lanes:
        for lane in ("t:b", "t:a"):
            lanes.start_soon(trio.sleep, 100, lane=lane, name=f"runs in {lane}")
        await trio.sleep(1)
        for lane in ("t:b", "t:a"):
            lanes.start_soon(trio.sleep, 1, lane=lane, name=f"waits in {lane}")
            await trio.sleep(1)
        app = page(lanes)
        found = (await ask(app, "/lane/t:*")).json
        assert (found["waiting"], found["active"], found["paused"]) == (2, 2, False)
        assert [job["name"] for job in found["jobs"]] == [
            "runs in t:b",
            "runs in t:a",
            "waits in t:b",
            "waits in t:a",
        ]
        (one,) = [job for job in found["jobs"] if job["name"] == "waits in t:a"]
        assert ' ← slots of "t:a": 1 of 1 in use' in one["reason"]
        assert len((await ask(app, "/lane/t:a")).json["jobs"]) == 2
        assert (await ask(app, "/lane/other")).json is None
        lanes.clear()
        lanes.reset()
