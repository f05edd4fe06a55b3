"""Tests of `DurableLanes.health`: what is wrong, and that a wait alone is not."""

from __future__ import annotations

from typing import Any

import trio

from ... import LaneConfig, RateLimit
from .. import DurableLanes
from ._bench import ONCE, Bench


async def kinds(lanes: DurableLanes) -> list[tuple[str, str, int | None]]:
    """Return the problems without their texts."""
    return [(one.kind, one.lane, one.job) for one in await lanes.health()]


class HealthStories(Bench):
    """Tests of the verdict. Waits are long, so they need virtual time."""

    async def test_lanes_in_which_each_wait_can_end_are_healthy(self) -> None:
        rate = RateLimit(1, per=60.0, algorithm="sliding")
        lanes = {"main": 1, "cron": 1, "slow": LaneConfig(concurrency=9, rate=rate)}
        async with self.instance(lanes=lanes) as opened, self.instance(worker=False) as asking:
            for name in ("a", "b"):
                await opened.submit("gate", name, session="s")
            for n in range(9):
                await opened.submit("echo", n, lane="slow")
            await opened.pause_for("cron", 600)
            await opened.submit("echo", lane="cron")
            await opened.submit("echo", delay=600)
            await self.settle()
            assert await asking.health() == ()
            if self.virtual:
                await self.advance(20)
            assert await opened.health() == ()
            self.open("a", "b")

    async def test_an_instance_is_alive_as_long_as_it_has_its_lease(self) -> None:
        if not (self.leased and self.virtual):
            return  # its lease lasts as long as it does, or the time is real
        async with self.playing(lease_ttl=10.0), self.instance(worker=False) as asking:
            for seconds, alive in ((9.0, True), (2.0, False)):
                await self.advance(seconds)
                assert [one.alive for one in await asking.instances()] == [alive]

    async def test_it_is_a_problem_that_nothing_serves_a_lane(self) -> None:
        if not self.virtual:
            return
        async with self.instance(worker=False) as asking:
            first = await asking.submit("echo", session="s")
            await self.advance(5)
            assert await kinds(asking) == []
            await self.advance(20)
            assert await kinds(asking) == [("instance", "main", first.id)]
            (problem,) = await asking.health()
            assert str(problem) == (
                f"job {first.id} of 'main' has waited for 25 s; {first.id} ← no instance lives: "
                "start a worker"
            )
        async with self.instance(lanes={"main": 4, "cron": 1, "late": 3}) as lanes:
            await self.settle()
            assert await kinds(lanes) == []
            await lanes.pause("main")
            jobs = [await lanes.submit("echo", lane=name) for name in ("main", "late")]
            await lanes.configure({"cron": 0})
            jobs.append(await lanes.submit("echo", lane="cron", delay=100))
            await self.settle()
            await self.advance(105)
            assert await kinds(lanes) == [("pause", "main", jobs[0].id)]
            await self.advance(10)
            assert sorted(await kinds(lanes)) == [
                ("concurrency", "cron", jobs[2].id),
                ("pause", "main", jobs[0].id),
            ]

    async def test_it_is_a_problem_that_no_instance_has_a_handler(self) -> None:
        if not self.virtual:
            return
        async with self.instance(worker=False) as asking:
            await asking.pause_for("session:s", 500)
            await asking.submit("echo", session="s")
            other = await asking.submit("other")
            async with self.instance(only=["echo"]):
                await self.advance(20)
                assert await kinds(asking) == [("handler", "main", other.id)]

    async def test_it_is_a_problem_that_a_dead_job_keeps_a_session_closed(self) -> None:
        async with self.instance(retry=ONCE, on_dead="hold") as lanes:
            await lanes.submit("bad")
            dead = [await lanes.submit("bad", session=session) for session in "ab"]
            await self.settle()
            assert await kinds(lanes) == []
            await lanes.submit("echo", session="b")
            assert await kinds(lanes) == [("dead", "session:b", dead[1].id)]
            (problem,) = await lanes.health()
            assert str(problem) == (
                f"job {dead[1].id} 'bad' is dead and keeps session:b closed (ValueError: no): "
                f"requeue or purge {dead[1].id}"
            )

    async def test_it_is_a_problem_that_a_body_goes_on_past_its_timeout(self) -> None:
        if not self.virtual:
            return

        async def goes_on(payload: Any) -> None:
            with trio.CancelScope(shield=True):
                await self.gate("end").wait()

        handlers = {"goes on": goes_on}
        async with (
            self.instance(lanes={"main": 1}, handlers=handlers) as lanes,
            self.instance(worker=False) as asking,
        ):
            await lanes.submit("goes on", timeout=20.0)
            behind = await lanes.submit("echo")
            await self.settle()
            await self.advance(25)
            assert await kinds(asking) == []
            await self.advance(6)
            assert await kinds(asking) == [("overdue", "main", behind.id)]
            (problem,) = await asking.health()
            assert "past its timeout of 20 s" in str(problem)
            self.open("end")

    async def test_it_is_a_problem_that_a_store_answers_slowly(self) -> None:
        if not self.virtual:
            return
        async with self.instance() as lanes:
            store: Any = lanes._store
            look = store.look

            async def slowly(question: Any) -> Any:
                answer = await look(question)
                await self.advance(2)
                store.look = look
                return answer

            store.look = slowly
            (problem,) = await lanes.health()
            assert str(problem) == (
                "the store has taken 2.0 s to answer: look at its load, its disk and the network"
            )

    async def test_it_is_a_problem_that_no_instance_has_room_for_a_job(self) -> None:
        if not self.virtual:
            return
        async with self.instance(capacity=1) as lanes:
            await self.submitted("gate", "a")
            job = await self.submitted("echo")
            await self.advance(20)
            (problem,) = await lanes.health()
            assert (problem.kind, problem.lane, problem.job) == ("stalled", "main", job.id)
            assert "though nothing holds it" in str(problem)
