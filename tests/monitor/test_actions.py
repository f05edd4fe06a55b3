"""What an operator does: with an undo where that is possible, else bound to what was seen."""

from __future__ import annotations

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.monitor.web import looking, operator
from trio_lanes import JobState, Lanes, open_lanes
from trio_lanes.monitor import monitor


def page(lanes: Lanes):  # type: ignore[no-untyped-def]
    return monitor(lanes, authorize=lambda connection: "operate")


async def test_a_pause_is_undone(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 1, "t:*": 1}) as lanes:
        person = await operator(page(lanes))
        lanes.start_soon(trio.sleep, 30, lane="t:a")
        for name, lane in (("main", "main"), ("t:*", "t:a")):
            done = await person.act(do="pause", lane=name)
            assert done["text"] == f"Paused {name}"
            assert lanes.lane(lane).paused
            await person.act(409, do="pause", lane=name)
            assert (await person.act(do="undo", key=done["undo"]))[
                "text"
            ] == f"Undone: Paused {name}"
            assert not lanes.lane(lane).paused
            await person.act(410, do="undo", key=done["undo"])
            await person.act(409, do="resume", lane=name)
        done = await person.act(do="pause", lane="session:ann")
        assert lanes.session("ann").paused
        await person.act(do="undo", key=done["undo"])
        assert not lanes.session("ann").paused


async def test_an_undone_resume_pauses_for_the_rest_of_the_time(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 1, "cron": 1}) as lanes:
        person = await operator(page(lanes))
        lanes.pause_for("main", 8)
        lanes.pause("cron")
        timed = await person.act(do="resume", lane="main")
        by_hand = await person.act(do="resume", lane="cron")
        assert not lanes.lane("main").paused
        await trio.sleep(3)
        await person.act(do="undo", key=timed["undo"])
        await person.act(do="undo", key=by_hand["undo"])
        assert lanes.lane("main").statistics().paused_until == 8
        assert lanes.lane("cron").statistics().paused_until is None
        assert lanes.lane("cron").paused
        again = await person.act(do="resume", lane="main")
        await trio.sleep(7)
        await person.act(do="undo", key=again["undo"])  # its time is over
        assert not lanes.lane("main").paused
        lanes.resume()


async def test_an_undo_is_offered_for_ten_seconds(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 1}) as lanes:
        person = await operator(page(lanes))
        done = await person.act(do="limit", lane="main", value=3)
        assert (done["text"], done["seconds"]) == ("Limit of main: 1 → 3", 10)
        await trio.sleep(11)
        await person.act(410, do="undo", key=done["undo"])
        await person.act(410, do="undo")
        assert lanes.lane("main").concurrency == 3
        done = await person.act(do="limit", lane="main", value=5)
        await person.act(do="undo", key=done["undo"])
        assert lanes.lane("main").concurrency == 3


async def test_the_oldest_of_many_undos_is_forgotten(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 1}) as lanes:
        person = await operator(page(lanes))
        keys = []
        for value in range(60):
            keys.append((await person.act(do="limit", lane="main", value=value))["undo"])
            await trio.sleep(0.15)
        await person.act(410, do="undo", key=keys[0])
        await person.act(do="undo", key=keys[-1])
        assert lanes.lane("main").concurrency == 58


async def test_a_priority_is_changed_and_undone_while_its_job_waits(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        app = page(lanes)
        person = await operator(app)
        running = lanes.submit_nowait(trio.sleep, 20)
        first = lanes.submit_nowait(trio.sleep, 1)
        job = lanes.submit_nowait(trio.sleep, 1)
        await person.act(404, do="priority", job=job.id, value=5)  # no frame has shown it
        async with looking(app) as viewer:
            await viewer.next()
        done = await person.act(do="priority", job=job.id, value=5)
        assert lanes.lane("main").head(1) == [job]
        await person.act(do="undo", key=done["undo"])
        assert lanes.lane("main").head(1) == [first]
        done = await person.act(do="priority", job=job.id, value=5)
        await person.act(409, do="priority", job=running.id, value=5)
        job.cancel()
        await person.act(do="undo", key=done["undo"])
        assert job.priority == 5


async def test_a_cancellation_is_bound_to_the_state_that_was_seen(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        app = page(lanes)
        person = await operator(app)
        job = lanes.submit_nowait(trio.sleep, 60, name="long")
        async with looking(app) as viewer:
            await viewer.next()
            answer = await person.act(409, do="cancel", job=job.id, seen="waiting")
            assert "running by now" in answer["error"]
            answer = await person.act(do="cancel", job=job.id, seen="running")
            assert answer["text"] == f"Cancelled job {job.id} long"
            await job.wait_done()
            await viewer.next()
            note = viewer.frames[-1]["notes"][-1]
            assert (note["text"], note["job"]) == (f"{answer['text']} (by 127.0.0.1)", job.id)
        assert job.state is JobState.CANCELLED


async def test_clear_and_reset_are_bound_to_the_number_that_was_seen(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        person = await operator(page(lanes))
        for _ in range(4):
            lanes.submit_nowait(trio.sleep, 60, session="ann")
        await wait_all_tasks_blocked()
        answer = await person.act(409, do="clear", lane="main", seen=2)
        assert answer["error"] == "3 jobs wait by now; look again"
        await person.act(409, do="clear", lane="session:ann", seen=2)
        assert (await person.act(do="clear", lane="main", seen=3))[
            "text"
        ] == "Cleared main of 3 jobs"
        await person.act(409, do="reset", lane="main", seen=0)
        answer = await person.act(do="reset", lane="main", seen=1)
        assert answer["text"] == "Reset main; 1 jobs were given up"


async def test_bad_actions_change_nothing(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 1, "t:*": 1}) as lanes:
        person = await operator(page(lanes))
        await person.act(400, do="pause", lane="nowhere")
        await person.act(400, do="pause", lane=3)
        await person.act(400, do="pause", lane=" ")
        await person.act(400, do="pause", lane="x" * 300)
        await person.act(400, do="limit", lane="main", value=-1)
        await person.act(400, do="limit", lane="main", value=1.5)
        await person.act(400, do="limit", lane="main", value=True)
        await person.act(400, do="clear", lane="session: ", seen=1)
        await trio.sleep(5)
        await person.act(400, do="cancel", job="all", seen="running")
        assert (await person.act(do="clear", lane="t:new", seen=0))[
            "text"
        ] == "Cleared t:new of 0 jobs"
        assert lanes.lane("main").concurrency == 1
