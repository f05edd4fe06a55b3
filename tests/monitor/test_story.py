"""The story of a job: its place, why it waits, and what would help."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.monitor.test_frames import lends, stubborn
from tests.monitor.web import ask, looking
from trio_lanes import Job, LaneConfig, LaneGroup, Lanes, RateLimit, open_lanes
from trio_lanes.monitor import monitor


async def stories(lanes: Lanes, *jobs: Job[Any]) -> list[Any]:
    """What the page is told of ``jobs``, which it has found by their sessions or in a frame."""
    app = monitor(lanes)
    async with looking(app) as viewer:
        await viewer.next()
    for session in {job.session for job in jobs if job.session is not None}:
        assert (await ask(app, f"/session/{session}")).status == 200
    return [(await ask(app, f"/job/{job.id}")).json for job in jobs]


def kinds(told: Any) -> list[tuple[str, list[int]]]:
    return [(reason["kind"], [job["id"] for job in reason["jobs"]]) for reason in told["why"]]


async def test_a_waiting_job_has_a_place_holders_and_help(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 2}) as lanes:
        running = lanes.submit_nowait(trio.sleep, 60)
        body = lanes.submit_nowait(stubborn, 60)
        before = lanes.submit_nowait(trio.sleep, 1, priority=5)
        job = lanes.submit_nowait(trio.sleep, 1, owner="acme", name="turn")
        await wait_all_tasks_blocked()
        body.cancel()
        (told,) = await stories(lanes, job)
        assert (told["place"], told["line"], told["owner"]) == (2, 2, "acme")
        assert kinds(told) == [("order", [before.id]), ("concurrency", [running.id, body.id])]
        assert told["help"] == [
            "raise its priority",
            "raise main to 3",
            f"reset the slot of job {body.id}, whose body outlives its cancellation",
        ]
        lanes.clear()
        lanes.reset()


async def test_a_chain_of_waits_is_a_tree(autojump_clock: MockClock) -> None:
    async def outer() -> None:
        await lanes.run(trio.sleep, 50, lane="other", name="inner")

    async with open_lanes({"main": 1, "other": 1}) as lanes:
        holder = lanes.submit_nowait(outer, session="ann")
        job = lanes.submit_nowait(trio.sleep, 1, session="ann")
        lanes.submit_nowait(trio.sleep, 1, session="ben")
        await wait_all_tasks_blocked()
        (told,) = await stories(lanes, job)
        assert told["place"] is None
        (reason,) = told["why"]
        assert (reason["kind"], reason["text"]) == ("session", "session:ann runs as many as it may")
        (held,) = reason["jobs"]
        assert held["id"] == holder.id
        (deeper,) = held["why"]
        assert (deeper["kind"], deeper["jobs"][0]["name"]) == ("job", "inner")
        assert told["help"] == [f"have job {holder.id} lend its slot while it waits (yield_slot)"]
        (inner,) = await stories(lanes, next(job for job in lanes.jobs() if job.name == "inner"))
        assert inner["parent"]["id"] == holder.id
        assert inner["why"] == []


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
        assert [told["why"][0]["text"] for told in found] == [
            "its delay is not over",
            "the rate limit of slow is used up",
            "off is paused",
            "the free slots of the group g are reserved",
            "it runs, and waits for room in full",
            "it has lent its slot, and waits for approval",
        ]
        assert [told["help"] for told in found] == [
            [],
            ["wait until the rate of slow lets it start"],
            ["resume off"],
            ["lower the reservations of the group g"],
            ["raise max_waiting of full"],
            [],
        ]
        sleep(trio.sleep, 60, lane="b")
        (told,) = await stories(lanes, reserved)
        assert told["why"][0]["text"] == "the group g runs as many as it may"
        assert told["help"] == ["raise the limit of the group g"]
        lanes.reset()
        lanes.clear()
        lanes.resume()


async def test_a_tree_is_bounded(autojump_clock: MockClock) -> None:
    async def outer(depth: int) -> None:
        if depth:
            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(run, depth - 1)
        else:
            await trio.sleep(60)

    async def run(depth: int) -> None:
        await lanes.run(outer, depth, lane="free")

    async with open_lanes({"main": 1, "free": 1000}) as lanes:
        lanes.submit_nowait(outer, 4)
        job = lanes.submit_nowait(trio.sleep, 1)
        for _ in range(12):
            lanes.submit_nowait(trio.sleep, 1)
        last = lanes.submit_nowait(trio.sleep, 1)
        await wait_all_tasks_blocked()
        told, behind = await stories_of_any(lanes, job, last)

        def size(reasons: list[Any]) -> int:
            return sum(1 + sum(1 + size(job["why"]) for job in why["jobs"]) for why in reasons)

        assert size(told["why"]) == 60
        assert behind["why"][0]["more"] == 5
        lanes.reset()
        lanes.clear()


async def stories_of_any(lanes: Lanes, *jobs: Job[Any]) -> list[Any]:
    for job in jobs:
        job.priority = 9  # so that a frame shows it
    app = monitor(lanes)
    async with looking(app) as viewer:
        await viewer.next()
    for job in jobs:
        job.priority = 0
    return [(await ask(app, f"/job/{job.id}")).json for job in jobs]


async def test_behind_thousands_of_jobs_only_the_place_is_told(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 1}) as lanes:
        for _ in range(5002):
            lanes.submit_nowait(trio.sleep, 1)
        app = monitor(lanes)
        async with looking(app) as viewer:
            frame = await viewer.next()
        shown = [job["id"] for job in frame["jobs"]]
        told = (await ask(app, f"/job/{shown[-1]}")).json
        assert (told["place"], told["why"], told["too_long"]) == (8, [], True)
        lanes.clear()


async def test_jobs_that_have_ended_or_gone(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 1}) as lanes:
        app = monitor(lanes)
        job = lanes.submit_nowait(trio.sleep, 5)
        async with looking(app) as viewer:
            await viewer.next()
        await job.wait()
        told = (await ask(app, f"/job/{job.id}")).json
        assert (told["state"], told["why"], told["help"]) == ("succeeded", [], [])
        assert (await ask(app, "/job/999")).json is None


@pytest.mark.parametrize("waiting", [3, 2001])
async def test_the_first_jobs_of_a_session_are_listed_with_their_reasons(
    autojump_clock: MockClock, waiting: int
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        for _ in range(waiting + 1):
            lanes.start_soon(trio.sleep, 1, session="ann", name="turn")
        await wait_all_tasks_blocked()
        answer = (await ask(monitor(lanes), "/session/ann")).json
        assert (answer["waiting"], answer["active"]) == (waiting, 1)
        listed = answer["jobs"]
        assert len(listed) == (4 if waiting == 3 else 30)
        assert {(job["name"], job["lane"]) for job in listed} == {("turn", "main")}
        assert listed[-1]["reason"] == "session:ann runs as many as it may"
        assert (await ask(monitor(lanes), "/session/%20")).status == 404
        lanes.clear()


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
        app = monitor(lanes)
        found = (await ask(app, "/lane/t:*")).json
        assert (found["waiting"], found["active"], found["paused"]) == (2, 2, False)
        assert [job["name"] for job in found["jobs"]] == [
            "runs in t:b",
            "runs in t:a",
            "waits in t:b",
            "waits in t:a",
        ]
        (one,) = [job for job in found["jobs"] if job["name"] == "waits in t:a"]
        assert one["reason"] == "t:a runs as many as it may"
        assert len((await ask(app, "/lane/t:a")).json["jobs"]) == 2
        assert (await ask(app, "/lane/other")).json is None
        lanes.clear()
        lanes.reset()
