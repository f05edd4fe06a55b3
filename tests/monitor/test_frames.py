"""Frames: what they hold equals the lanes' own statistics, and who does not look does not pay."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.monitor.web import ask, looking, page
from trio_lanes import (
    Job,
    LaneConfig,
    LaneDeadlockError,
    LaneFullError,
    LaneGroup,
    LaneInstrument,
    RateLimit,
    current_job,
    open_lanes,
)


def this_job() -> Job[Any]:
    job = current_job()
    assert job is not None
    return job


async def stubborn(seconds: float) -> None:
    with trio.CancelScope(shield=True):
        await trio.sleep(seconds)


async def lends(reason: str | None, seconds: float) -> None:
    async with this_job().yield_slot(reason=reason):
        await trio.sleep(seconds)


async def fails() -> None:
    raise ValueError("no")


@pytest.mark.parametrize("seed", range(6))
async def test_the_figures_of_each_frame_equal_the_statistics_of_that_moment(
    autojump_clock: MockClock, seed: int
) -> None:
    chance = random.Random(seed)
    quiet = LaneConfig(concurrency=3, log_failures=False)
    async with open_lanes(
        {"main": quiet, "free": math.inf, "t:*": 2, "cron": LaneConfig(paused=True)},
        groups={"g": LaneGroup(["main", "t:*"], concurrency=3, rate=RateLimit(9, 1))},
    ) as lanes:
        app = page(lanes)

        async def work() -> None:
            for _ in range(120):
                lane = chance.choice(["main", "main", "free", "t:a", "t:b", "cron"])
                session = chance.choice([None, "ann", "ben", "cleo"])
                act: Any = chance.choice(
                    [
                        (trio.sleep, 1),
                        (lends, None, 2),
                        (lends, "a person", 1),
                        (fails,),
                        (stubborn, 1),
                    ]
                )
                job = lanes.submit_nowait(*act, lane=lane, session=session)
                await trio.sleep(chance.random() / 4)
                if chance.random() < 0.2:
                    job.cancel()
                if chance.random() < 0.05:
                    lanes.reset("main")
                if chance.random() < 0.05:
                    lanes.pause_for("main", 1)

        def check(frame: dict[str, Any]) -> None:
            found = lanes.statistics()
            totals = frame["totals"]
            assert totals["active"] == found.active
            assert totals["waiting"] == found.waiting
            assert totals["sessions"] == found.sessions
            assert totals["abandoned"] == found.abandoned
            each = found.lanes.values()
            for name in ("slots", "lent", "finished", "failed", "cancelled"):
                assert totals[name] == sum(getattr(lane, name) for lane in each)
            for row in frame["lanes"]:
                mine = [
                    lane
                    for name, lane in found.lanes.items()
                    if lanes.lane(name).label == row["name"]
                ]
                for name in [
                    "slots",
                    "active",
                    "lent",
                    "cancelling",
                    "abandoned",
                    "waiting",
                    "started",
                    "finished",
                    "succeeded",
                    "failed",
                    "cancelled",
                ]:
                    assert row[name] == sum(getattr(lane, name) for lane in mine), name
                assert row["in_lane"] == sum(lane.waiting_in_lane for lane in mine)
                assert row["in_sessions"] == sum(lane.waiting_in_sessions for lane in mine)
                assert row["oldest"] == pytest.approx(
                    max(lane.oldest_wait for lane in mine), abs=0.01
                )
            (group,) = frame["groups"]
            assert group["slots"] == found.groups["g"].slots
            assert len(frame["jobs"]) >= min(found.active, 20)
            checked.append(frame["n"])

        checked: list[int] = []
        async with looking(app) as viewer, trio.open_nursery() as nursery:
            viewer.on_frame = check
            nursery.start_soon(work)
            while len(checked) < 60:
                await viewer.next()
            nursery.cancel_scope.cancel()
        lanes.clear()
        lanes.resume()


async def test_a_frame_is_made_four_times_a_second_and_once_for_all_viewers(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        app = page(lanes)
        async with looking(app) as one, looking(app) as other:
            await trio.sleep(10)
            assert 36 <= len(one.frames) <= 41
            bodies = [{raw[raw.index(b"id:") :] for raw in page.raw} for page in (one, other)]
            assert len(bodies[0] & bodies[1]) >= 35
            numbers = [frame["n"] for frame in one.frames]
            assert numbers == sorted(set(numbers))


async def test_a_slow_viewer_gets_the_latest_frame_and_nothing_else(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        app = page(lanes)
        async with looking(app) as quick, looking(app) as slow:
            slow.slow = 3.0
            await trio.sleep(20)
            assert len(slow.frames) < 9
            last = slow.frames[-1]
            assert quick.frames[-1]["at"] - last["at"] <= 3.5
            gaps = [b["n"] - a["n"] for a, b in zip(slow.frames[1:], slow.frames[2:], strict=False)]
            assert min(gaps) >= 10


async def test_a_stream_ends_after_five_minutes_so_that_its_viewer_is_authorized_again(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes, looking(page(lanes)) as viewer:
        await viewer.ended.wait()
        assert trio.current_time() == pytest.approx(300, abs=1)


async def test_ended_jobs_are_recorded_without_a_viewer_and_the_steps_of_slots_are_not(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        app = page(lanes)
        await lanes.run(lends, None, 1, name="unseen")
        async with looking(app) as viewer:
            await lanes.run(lends, None, 1, name="seen")
            await viewer.next()
        await lanes.run(trio.sleep, 1, name="later")
        later, seen, unseen = (await ask(app, "/history")).json["ended"]
        assert [record["name"] for record in (unseen, seen, later)] == ["unseen", "seen", "later"]
        assert unseen["steps"] == []
        assert [state for _, state in seen["steps"]] == ["lent", "held"]
        assert len((await ask(app, "/history?after=1")).json["ended"]) == 2
        assert (await ask(app, "/history?after=x")).status == 400


async def test_a_burst_without_a_viewer_leaves_a_hundred_records_a_second(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 50}) as lanes:
        app = page(lanes)
        for _ in range(3):
            for _ in range(1000):
                lanes.submit_nowait(trio.sleep, 0)
            await trio.sleep(1.5)
        assert len((await ask(app, "/history")).json["ended"]) == 300


async def test_a_burst_leaves_a_bounded_number_of_records_a_frame(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 50}) as lanes, looking(page(lanes)) as viewer:
        await viewer.next()
        for _ in range(1000):
            lanes.submit_nowait(trio.sleep, 0)
        frame = await viewer.next()
        assert len(frame["ended"]) == 100
        assert frame["totals"]["finished"] == 1000
        assert frame["totals"]["quantiles"] is not None or frame["n"] < 5
        await lanes.run(trio.sleep, 0.01)
        assert len((await viewer.next())["ended"]) == 1


async def test_each_state_of_a_slot_is_a_step_with_its_time(autojump_clock: MockClock) -> None:
    async def life() -> None:
        job = this_job()
        await trio.sleep(1)
        await lends("approval", 1)
        lanes.pause_for("main", 1)
        await job.readmit()
        await stubborn(2)

    async with open_lanes({"main": 1}) as lanes, looking(page(lanes)) as viewer:
        job = lanes.submit_nowait(life, session="ann")
        await trio.sleep(4.5)
        job.cancel()
        await trio.sleep(0.3)
        (brief,) = viewer.frames[-1]["jobs"]
        assert (brief["state"], brief["slot"], brief["cancel"]) == ("running", "held", True)
        await job.wait_done()
        await viewer.next()
        (record,) = [record for frame in viewer.frames for record in frame["ended"]]
        states = [state for _, state in record["steps"]]
        assert states == ["lent", "held", "wanted", "held", "cancelling"]
        times = [at for at, _ in record["steps"]]
        assert times == pytest.approx([times[0] + after for after in (0, 1, 1, 2, 3.5)], abs=0.01)


async def test_steps_are_kept_for_a_bounded_number_of_jobs(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 3000}) as lanes, looking(page(lanes)) as viewer:
        await viewer.next()
        for _ in range(2010):
            lanes.start_soon(lends, None, 1)
        await trio.sleep(0.6)
        shown = viewer.frames[-1]["jobs"]
        assert shown[0]["steps"] == []  # the first are forgotten
        assert all(job["slot"] == "lent" for job in shown)


async def test_a_hook_of_the_monitor_that_was_removed_is_no_trouble(
    autojump_clock: MockClock,
) -> None:
    class Remover(LaneInstrument):
        def job_lent(self, job: Job[Any]) -> None:
            for instrument in listening:
                lanes.remove_instrument(instrument)

    listening: list[Any] = []
    async with open_lanes({"main": 1}) as lanes:
        add = lanes.add_instrument

        def spy(instrument: Any) -> None:
            listening.append(instrument)
            add(instrument)

        app = page(lanes)
        type(lanes).add_instrument = lambda self, instrument: spy(instrument)  # type: ignore[method-assign]
        try:
            async with looking(app) as viewer:
                await viewer.next()
                add(Remover())
                await lanes.run(lends, None, 1)
        finally:
            type(lanes).add_instrument = add.__func__  # type: ignore[attr-defined, method-assign]
        async with looking(app) as viewer:
            assert (await viewer.next())["totals"]["active"] == 0


async def test_the_busiest_of_many_sessions_are_shown_with_their_next_jobs(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes, looking(page(lanes)) as viewer:
        for number in range(1000):
            for _ in range(3 if number == 777 else 1):
                lanes.start_soon(trio.sleep, 100, session=f"s{number}")
        for _ in range(60):
            lanes.start_soon(trio.sleep, 100, session="busy")
        lanes.start_soon(trio.sleep, 100, session="late", delay=50)
        await trio.sleep(2)
        sessions = viewer.frames[-1]["sessions"]
        assert len(sessions) == 30
        assert [one["key"] for one in sessions[:2]] == ["busy", "s777"]
        assert (sessions[0]["oldest"], sessions[0]["next"]) == (None, [])  # too many for a list
        assert sessions[1]["oldest"] is not None
        assert [job["session"] for job in sessions[1]["next"]] == ["s777"] * 3
        lanes.clear()
        lanes.reset()


async def test_sessions_by_their_oldest_wait_are_those_of_all_sessions(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1, "other": 1, "off": LaneConfig(paused=True)}) as lanes:
        async with looking(page(lanes)) as viewer:
            for name in ("main", "other"):
                lanes.start_soon(trio.sleep, 100, lane=name)
            lanes.start_soon(trio.sleep, 1, lane="other", session="second", delay=1)
            lanes.start_soon(trio.sleep, 1, session="first")
            lanes.start_soon(trio.sleep, 1, lane="off", session="not due", delay=90)
            await trio.sleep(3)
            for number in range(40):
                for _ in range(2):
                    lanes.submit_nowait(trio.sleep, 1, session=f"s{number:02}")
            await trio.sleep(2)
            frame = viewer.frames[-1]
            longest = frame["longest"]
            assert "first" not in [one["key"] for one in frame["sessions"]]
            assert [one["key"] for one in longest["sessions"][:3]] == ["first", "second", "s00"]
            assert [one["waiting"] for one in longest["sessions"][:3]] == [1, 1, 2]
            assert (len(longest["sessions"]), longest["whole"]) == (30, True)
            lanes.clear()
            lanes.reset()


async def test_behind_many_jobs_of_one_session_no_other_is_said_to_wait_longest(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1, "t:*": 1}) as lanes:
        async with looking(page(lanes)) as viewer:
            for _ in range(1002):
                lanes.start_soon(trio.sleep, 100, session="ann")
            lanes.start_soon(trio.sleep, 100, session="ben")
            await trio.sleep(2)
            longest = viewer.frames[-1]["longest"]
            assert [one["key"] for one in longest["sessions"]] == ["ann"]
            assert not longest["whole"]
            lanes.clear("main")
            for number in range(202):  # more lanes than are read, each with one session
                lanes.submit_nowait(trio.sleep, 100, lane=f"t:{number}")
            for number in range(202):
                lanes.start_soon(trio.sleep, 1, lane=f"t:{number}", session=f"s{number:03}")
                await trio.sleep(0.1)
            await trio.sleep(2)
            longest = viewer.frames[-1]["longest"]
            assert [one["key"] for one in longest["sessions"][:2]] == ["s000", "s001"]
            assert longest["whole"]
            lanes.clear()
            lanes.reset()


async def test_a_frame_says_what_is_wrong_and_what_to_do(autojump_clock: MockClock) -> None:
    off = LaneConfig(concurrency=1, paused=True)
    async with open_lanes({"main": 1, "off": off}) as lanes, looking(page(lanes)) as viewer:
        assert (await viewer.next())["health"] == []
        job = lanes.submit_nowait(trio.sleep, 1, lane="off")
        await trio.sleep(12)
        (problem,) = viewer.frames[-1]["health"]
        assert (problem["kind"], problem["lane"], problem["job"]) == ("pause", "off", job.id)
        assert problem["advice"] == 'resume "off"'
        lanes.resume("off")
        await trio.sleep(2)
        assert viewer.frames[-1]["health"] == []


async def test_what_should_be_noticed_is_noticed_once(autojump_clock: MockClock) -> None:
    async def waits_without_lending() -> None:
        await lanes.run(trio.sleep, 8, lane="other")

    async def deadlocked() -> None:
        with pytest.raises(LaneDeadlockError):
            await lanes.run(trio.sleep, 0, lane="narrow")

    narrow = LaneConfig(concurrency=1, max_waiting=0)
    main = LaneConfig(concurrency=3, overdue_after=5)
    async with open_lanes({"main": main, "other": 1, "narrow": narrow}) as lanes:
        app = page(lanes)
        async with looking(app) as viewer:
            holder = lanes.submit_nowait(waits_without_lending, session="ann", name="holder")
            job = lanes.submit_nowait(stubborn, 9, name="stubborn")
            lanes.start_soon(trio.sleep, 1, session="ann", name="beside")
            await wait_all_tasks_blocked()
            job.cancel("late")
            lanes.configure({"other": 2, "new": 1, "narrow": narrow})
            lanes.configure({"narrow": LaneConfig(concurrency=1, max_waiting=0, aging=9)})
            lanes.configure(sessions=LaneConfig(concurrency=1, max_waiting=9))
            lanes.pause("new")
            lanes.pause_for("session:zoe", 3)
            lanes.resume("new")
            lanes.start_soon(trio.sleep, 2, lane="narrow")
            for _ in range(3):
                with pytest.raises(LaneFullError):
                    lanes.submit_nowait(trio.sleep, 0, lane="narrow")
            await trio.sleep(7)
            lanes.start_soon(deadlocked, lane="narrow")
            await holder.wait()
            lanes.clear("other", reason="a test")
            lanes.clear("other")
            lanes.reset("other")
            lanes.close("the test")
            with pytest.raises(trio.ClosedResourceError):
                lanes.submit_nowait(trio.sleep, 0)
            await viewer.next()
            notes = viewer.frames[-1]["notes"]
        texts = [note["text"] for note in notes]
        assert "new is new, limit 1" in texts
        assert "other 1 → 2" in texts
        assert "narrow has another configuration" in texts
        assert "new is paused until it is resumed" in texts
        assert "session:zoe is paused for 3 s" in texts
        assert "new starts jobs again" in texts
        assert texts.count(f"job {job.id} stubborn still runs 5 s after it was to end") == 1
        assert any(text.startswith("deadlock refused: ") for text in texts)
        assert "other was cleared of 0 jobs: a test" in texts
        assert "other was cleared of 0 jobs" in texts
        assert "other was reset, and 0 running jobs were given up" in texts
        assert "the lanes take no new work: the test" in texts
        assert "a submission to main was refused: the lanes are closed" in texts
        (full,) = [note for note in notes if note["text"].endswith("refused: it is full")]
        assert full["count"] == 3


async def test_of_many_lanes_a_frame_has_those_with_problems_or_the_longest_waits(
    autojump_clock: MockClock,
) -> None:
    stuck: list[Job[Any]] = []

    async def outlives() -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(1000)

    async with (
        open_lanes({f"lane-{n}": 1 for n in range(100)}) as lanes,
        looking(page(lanes)) as viewer,
    ):
        for number in range(95, 100):
            lanes.pause(f"lane-{number}")
            lanes.submit_nowait(trio.sleep, 1, lane=f"lane-{number}")
        stuck.append(lanes.submit_nowait(outlives, lane="lane-90", timeout=1))
        await trio.sleep(100)
        frame = await viewer.next()
        names = [row["name"] for row in frame["lanes"]]
        assert len(names) == 60
        assert frame["more_lanes"] == 40
        assert {f"lane-{number}" for number in (0, 53, 90, *range(95, 100))} <= set(names)
        assert names == [name for name in lanes.statistics().lanes if name in names]
        by_name = {row["name"]: row for row in frame["lanes"]}
        assert by_name["lane-99"]["longest"]["reason"].endswith('pause of "lane-99"')
        lanes.resume()


async def test_jobs_of_a_frame_are_bounded(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 1, "t:*": 30}) as lanes, looking(page(lanes)) as viewer:
        for number in range(20):
            for _ in range(40):
                lanes.start_soon(trio.sleep, 5, lane=f"t:{number}")
        frame = await viewer.next()
        assert 200 <= len(frame["jobs"]) < 250
        assert [row["name"] for row in frame["lanes"]] == ["main", "t:*"]
        assert frame["lanes"][1]["alive"] == 20
        lanes.clear()


async def test_a_readmitted_job_is_shown_once(autojump_clock: MockClock) -> None:
    async def again() -> None:
        await this_job().readmit()

    async with open_lanes({"main": 1}) as lanes, looking(page(lanes)) as viewer:
        lanes.pause_for("main", 2)
        job = lanes.submit_nowait(again)
        lanes.resume("main")
        lanes.pause_for("main", 2)
        await wait_all_tasks_blocked()
        frame = await viewer.next()
        assert [shown["id"] for shown in frame["jobs"]] == [job.id]


async def test_texts_are_clipped_and_can_be_encoded(autojump_clock: MockClock) -> None:
    name = "\ud800" + "x" * 500
    async with open_lanes({"main": 1}) as lanes, looking(page(lanes)) as viewer:
        lanes.start_soon(trio.sleep, 5, name=name, session="<b>&amp;</b>")
        frame = await viewer.next()
        (job,) = frame["jobs"]
        assert job["name"] == "?" + "x" * 118 + "…"
        assert job["session"] == "<b>&amp;</b>"


async def test_oldest_records_do_not_count_for_the_waits_of_five_minutes(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        app = page(lanes)
        async with looking(app) as viewer:
            await lanes.run(trio.sleep, 10)
            never = lanes.submit_nowait(trio.sleep, 1, delay=9)
            never.cancel()
            await trio.sleep(2)
            assert viewer.frames[-1]["lanes"][0]["quantiles"] == [0.0, 0.0, 10.0, 10.0]
        await trio.sleep(320)
        async with looking(app) as viewer:
            frame = await viewer.next()
            assert frame["lanes"][0]["quantiles"] is None


async def test_the_row_of_a_lane_has_the_root_of_its_longest_wait(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1, "t:*": 1, "cron": LaneConfig(paused=True)}) as lanes:
        app = page(lanes)

        async def longest(after: float = 1.0) -> dict[str, Any]:
            await trio.sleep(after)
            async with looking(app) as viewer:
                return {row["name"]: row["longest"] for row in (await viewer.next())["lanes"]}

        assert await longest() == {"main": None, "cron": None}
        first = lanes.submit_nowait(trio.sleep, 100)
        waits = lanes.submit_nowait(trio.sleep, 100)
        late = lanes.submit_nowait(trio.sleep, 100, lane="cron", delay=1000)
        for name in ("t:a", "t:b", "t:c"):
            lanes.submit_nowait(trio.sleep, 100, lane=name)
        oldest = lanes.submit_nowait(trio.sleep, 1, lane="t:a")
        await trio.sleep(1)
        lanes.submit_nowait(trio.sleep, 1, lane="t:b")
        found = await longest(30)
        assert {name: row["job"] for name, row in found.items()} == {
            "main": waits.id,
            "t:*": oldest.id,
            "cron": late.id,
        }
        at = f'{waits.id} ← slots of "main": 1 of 1 in use, longest by {first.id} for '
        assert found["main"]["reason"].startswith(at)
        first.cancel()  # and no job waits, before the reason is looked up again
        assert (await longest(0.1))["main"] is None
        lanes.reset()
        lanes.clear()


async def test_a_job_that_is_seen_to_want_its_lent_slot_back_has_that_step(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes, looking(page(lanes)) as viewer:
        job = lanes.submit_nowait(lends, "approval", 1)
        await trio.lowlevel.checkpoint()
        lanes.submit_nowait(trio.sleep, 3)
        await trio.sleep(2)
        assert job.slot == "wanted"
        await job.wait_done()
        await viewer.next()
        records = [record for frame in viewer.frames for record in frame["ended"]]
        (steps,) = [record["steps"] for record in records if record["id"] == job.id]
        assert [state for _, state in steps] == ["lent", "wanted", "held"]
