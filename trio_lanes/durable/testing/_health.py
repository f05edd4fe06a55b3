"""Tests of `DurableLanes.health`: what is wrong, and that a wait alone is not."""

from __future__ import annotations

from typing import Any

import trio

from ... import LaneConfig, RateLimit
from .. import DurableLanes
from ._bench import ONCE, Bench, stories


async def kinds(lanes: DurableLanes) -> list[tuple[str, str, int | None]]:
    """Return the problems without their texts."""
    return [(one.kind, one.lane, one.job) for one in await lanes.health()]


@stories
class HealthStories:
    """Tests of the verdict. Waits are long, so they need virtual time."""

    async def test_lanes_in_which_each_wait_can_end_are_healthy(self, bench: Bench) -> None:
        rate = RateLimit(1, per=60.0, algorithm="sliding")
        lanes = {"main": 1, "cron": 1, "slow": LaneConfig(concurrency=9, rate=rate)}
        async with bench.lanes(lanes=lanes) as opened, bench.lanes(worker=False) as asking:
            for name in ("a", "b"):
                await opened.submit("gate", name, session="s")
            for n in range(9):
                await opened.submit("echo", n, lane="slow")
            await opened.pause_for("cron", 600)
            await opened.submit("echo", lane="cron")
            await opened.submit("echo", delay=600)
            await bench.settle(opened)
            assert await asking.health() == ()
            if bench.virtual:
                await bench.advance(20, opened)
            assert await opened.health() == ()
            bench.open("a", "b")

    async def test_an_instance_is_alive_as_long_as_it_has_its_lease(self, bench: Bench) -> None:
        if not (bench.store().leased and bench.virtual):
            return  # its lease lasts as long as it does, or the time is real
        async with bench.playing(lease_ttl=10.0), bench.lanes(worker=False) as asking:
            for seconds, alive in ((9.0, True), (2.0, False)):
                await bench.advance(seconds, asking)
                assert [one.alive for one in await asking.instances()] == [alive]

    async def test_it_is_a_problem_that_nothing_serves_a_lane(self, bench: Bench) -> None:
        if not bench.virtual:
            return
        async with bench.lanes(worker=False) as asking:
            first = await asking.submit("echo", session="s")
            await bench.advance(5, asking)
            assert await kinds(asking) == []
            await bench.advance(20, asking)
            assert await kinds(asking) == [("instance", "main", first.id)]
            (problem,) = await asking.health()
            assert str(problem) == (
                f"job {first.id} of 'main' has waited for 25 s; {first.id} ← no instance lives: "
                "start a worker"
            )
        async with bench.lanes(lanes={"main": 4, "cron": 1, "late": 3}) as lanes:
            await bench.settle(lanes)
            assert await kinds(lanes) == []
            await lanes.pause("main")
            jobs = [await lanes.submit("echo", lane=name) for name in ("main", "late")]
            await lanes.configure({"cron": 0})
            jobs.append(await lanes.submit("echo", lane="cron", delay=100))
            await bench.settle(lanes)
            await bench.advance(105, lanes)
            assert await kinds(lanes) == [("pause", "main", jobs[0].id)]
            await bench.advance(10, lanes)
            assert sorted(await kinds(lanes)) == [
                ("concurrency", "cron", jobs[2].id),
                ("pause", "main", jobs[0].id),
            ]

    async def test_it_is_a_problem_that_no_instance_has_a_handler(self, bench: Bench) -> None:
        if not bench.virtual:
            return
        async with bench.lanes(worker=False) as asking:
            await asking.pause_for("session:s", 500)
            await asking.submit("echo", session="s")
            other = await asking.submit("other")
            async with bench.lanes(only=["echo"]) as lanes:
                await bench.advance(20, lanes)
                assert await kinds(asking) == [("handler", "main", other.id)]

    async def test_it_is_a_problem_that_a_dead_job_keeps_a_session_closed(
        self, bench: Bench
    ) -> None:
        async with bench.lanes(retry=ONCE, on_dead="hold") as lanes:
            await lanes.submit("bad")
            dead = [await lanes.submit("bad", session=session) for session in "ab"]
            await bench.settle(lanes)
            assert await kinds(lanes) == []
            await lanes.submit("echo", session="b")
            assert await kinds(lanes) == [("dead", "session:b", dead[1].id)]
            (problem,) = await lanes.health()
            assert str(problem) == (
                f"job {dead[1].id} 'bad' is dead and keeps session:b closed (ValueError: no): "
                f"requeue or purge {dead[1].id}"
            )

    async def test_it_is_a_problem_that_a_body_goes_on_past_its_timeout(self, bench: Bench) -> None:
        if not bench.virtual:
            return

        async def goes_on(payload: Any) -> None:
            with trio.CancelScope(shield=True):
                await bench.gate("end").wait()

        handlers = {"goes on": goes_on}
        async with (
            bench.lanes(lanes={"main": 1}, handlers=handlers) as lanes,
            bench.lanes(worker=False) as asking,
        ):
            await lanes.submit("goes on", timeout=20.0)
            behind = await lanes.submit("echo")
            await bench.settle(lanes)
            await bench.advance(25, lanes)
            assert await kinds(asking) == []
            await bench.advance(6, lanes)
            assert await kinds(asking) == [("overdue", "main", behind.id)]
            (problem,) = await asking.health()
            assert "past its timeout of 20 s" in str(problem)
            bench.open("end")

    async def test_it_is_a_problem_that_a_store_answers_slowly(self, bench: Bench) -> None:
        if not bench.virtual:
            return
        async with bench.lanes() as lanes:
            store: Any = lanes._store
            look = store.look

            async def slowly(question: Any) -> Any:
                answer = await look(question)
                await bench.advance(2, lanes)
                store.look = look
                return answer

            store.look = slowly
            (problem,) = await lanes.health()
            assert str(problem) == (
                "the store has taken 2.0 s to answer: look at its load, its disk and the network"
            )

    async def test_it_is_a_problem_that_no_instance_has_room_for_a_job(self, bench: Bench) -> None:
        if not bench.virtual:
            return
        async with bench.lanes(capacity=1) as lanes:
            await bench.submitted(lanes, "gate", "a")
            job = await bench.submitted(lanes, "echo")
            await bench.advance(20, lanes)
            (problem,) = await lanes.health()
            assert (problem.kind, problem.lane, problem.job) == ("stalled", "main", job.id)
            assert "though nothing holds it" in str(problem)
