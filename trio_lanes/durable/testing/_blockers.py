"""Tests of `DurableLanes.blocked_by`: the reasons why a job does not go on."""

from __future__ import annotations

from typing import Any

from ... import LaneConfig, LaneGroup, RateLimit
from .. import DurableLanes, ResultGoneError, RetryPolicy, Submission
from ._bench import ONCE, Bench, new_job, this_run

Reason = tuple[str, str, int | None]


async def reasons(lanes: DurableLanes, id: int) -> list[Reason]:
    """Return the reasons without their times."""
    return [(one.kind, one.lane, one.job) for one in await lanes.blocked_by(id)]


async def until(lanes: DurableLanes, id: int) -> list[float | None]:
    """Return when the reasons end, in seconds after the submission of the job."""
    submitted_at = (await lanes.job(id).status()).submitted_at
    times = [one.until for one in await lanes.blocked_by(id)]
    return [None if time is None else time - submitted_at for time in times]


class BlockerStories(Bench):
    """Tests of the reasons why a job does not go on."""

    async def test_a_job_is_blocked_by_the_head_of_its_session(self) -> None:
        async with self.instance() as lanes:
            first, second, third = await lanes.submit_many(
                [Submission(name="gate", payload=payload, session="s") for payload in "abc"]
            )
            await self.settle()
            assert await reasons(lanes, first.id) == []
            for job in (second, third):
                assert await reasons(lanes, job.id) == [("session", "session:s", first.id)]
            await lanes.pause("session:s")
            self.gate("a").set()
            await first.wait()
            await self.settle()
            assert await reasons(lanes, first.id) == []
            paused: Reason = ("pause", "session:s", None)
            assert await reasons(lanes, second.id) == [paused]
            assert await reasons(lanes, third.id) == [paused, ("order", "session:s", second.id)]
            with self.raises(ResultGoneError):
                await lanes.blocked_by(10**9)

    async def test_a_job_is_blocked_by_its_delay_and_between_its_attempts(self) -> None:
        policy = RetryPolicy(max_attempts=2, backoff=(50.0, 50.0), jitter=0.0)
        async with self.instance(retry=policy) as lanes:
            delayed = await lanes.submit("echo", session="s", delay=60)
            assert await reasons(lanes, delayed.id) == [("delay", "main", None)]
            (when,) = await until(lanes, delayed.id)
            assert when is not None
            assert abs(when - 60) < 0.001
            retried = await lanes.submit("bad", session="t")
            behind = await self.submitted("echo", session="t")
            assert await reasons(lanes, retried.id) == [("retry", "main", None)]
            assert await reasons(lanes, behind.id) == [("order", "session:t", retried.id)]

    async def test_a_job_is_blocked_by_a_dead_job_that_keeps_its_session_closed(self) -> None:
        async with self.instance(retry=ONCE, on_dead="hold") as lanes:
            dead = await lanes.submit("bad", session="s")
            behind = await self.submitted("echo", session="s")
            assert await reasons(lanes, dead.id) == []
            assert await reasons(lanes, behind.id) == [("dead", "session:s", dead.id)]

    async def test_a_job_is_blocked_by_its_lane(self) -> None:
        async with self.instance(lanes={"main": 1}) as lanes:
            first = await self.submitted("gate", "a")
            second = await lanes.submit("gate", "b")
            third = await lanes.submit("gate", "c", priority=-1)
            slot: Reason = ("concurrency", "main", first.id)
            assert await reasons(lanes, second.id) == [slot]
            assert await reasons(lanes, third.id) == [("order", "main", second.id), slot]
            fourth = await lanes.submit("gate", "d")
            for job, before in ((fourth, 1), (third, 2)):
                assert (await lanes.blocked_by(job.id))[0].before == before
            await lanes.cancel(fourth.id)
            await lanes.pause("main")
            assert await reasons(lanes, second.id) == [("pause", "main", None), slot]
            assert await until(lanes, second.id) == [None, None]
            await lanes.resume("main")
            await lanes.pause_for("main", 60)
            when, _ = await until(lanes, second.id)
            assert when is not None
            assert 59 < when < 70
            await self.opened("a")
            assert await reasons(lanes, second.id) == [("pause", "main", None)]

    async def test_a_job_is_blocked_until_an_instance_has_its_handler(self) -> None:
        async with self.instance() as lanes:
            await lanes.pause("main")
            other = await lanes.submit("other")
            echo = await lanes.submit("echo", priority=-1)
            assert await reasons(lanes, echo.id) == [
                ("pause", "main", None),
                ("order", "main", other.id),
            ]
        async with self.instance(only=["echo"]) as lanes:
            paused: Reason = ("pause", "main", None)
            assert await reasons(lanes, other.id) == [paused, ("handler", "main", None)]
            assert await reasons(lanes, echo.id) == [paused]

    async def test_a_job_is_blocked_by_the_group_of_its_lane(self) -> None:
        groups = {"g": LaneGroup(["main", "cron"], concurrency=2, reserve={"cron": 1})}
        async with self.instance(lanes={"main": 5, "cron": 5}, groups=groups) as lanes:
            first = await self.submitted("gate", "a")
            second = await self.submitted("gate", "b")
            assert await reasons(lanes, second.id) == [("reservation", "g", first.id)]
            await self.submitted("gate", "c", lane="cron")
            assert await reasons(lanes, second.id) == [("group", "g", first.id)]

    async def test_a_job_is_blocked_by_rates_until_a_time_that_is_known(self) -> None:
        rate = RateLimit(1, per=60.0, algorithm="sliding")
        groups = {"g": LaneGroup(["main", "cron"], rate=rate)}
        async with self.instance(
            lanes={"main": LaneConfig(concurrency=5, rate=rate), "cron": 5}, groups=groups
        ) as lanes:
            first = await lanes.submit("echo", 1)
            await first.wait()
            second = await lanes.submit("echo", 2)
            third = await lanes.submit("echo", 3)
            cron = await self.submitted("echo", 4, lane="cron")
            assert await reasons(lanes, second.id) == [("rate", "main", None), ("rate", "g", None)]
            assert await reasons(lanes, third.id) == [("order", "main", second.id)]
            assert await reasons(lanes, cron.id) == [("rate", "g", None)]
            for when in await until(lanes, second.id):
                assert when is not None
                assert 30 < when <= 60

    async def test_a_run_is_blocked_by_its_lent_slot_and_by_the_job_it_waits_for(self) -> None:
        async def parent(payload: Any) -> None:
            run = this_run()
            async with run.yield_slot():
                await lanes.job(child.id).wait()

        groups = {"g": LaneGroup(["cron"], concurrency=1)}
        for lane, slot in (("main", ("concurrency", "main")), ("cron", ("group", "g"))):
            async with self.instance(
                lanes={"main": 1, "cron": 2}, groups=groups, handlers={"parent": parent}
            ) as lanes:
                child = await lanes.submit("gate", f"child in {lane}", lane=lane, delay=0.5)
                outer = await self.submitted("parent", lane=lane)
                assert await reasons(lanes, outer.id) == [
                    ("lent", lane, None),
                    ("job", lane, child.id),
                ]
                await self.advance(0.6)
                other = await lanes.submit("gate", f"other in {lane}", lane=lane)
                await self.opened(f"child in {lane}")
                assert await reasons(lanes, other.id) == []
                assert await reasons(lanes, outer.id) == [(*slot, other.id)]
                self.gate(f"other in {lane}").set()
                await outer.wait()
                assert await reasons(lanes, outer.id) == []

    async def test_a_run_is_blocked_by_the_lock_and_the_quota_that_it_waits_for(self) -> None:
        async def locks(payload: Any) -> None:
            async with lanes.lock("the index"):
                await self.gate(payload).wait()

        async def spends(payload: Any) -> None:
            await lanes.quota("q").spend(tokens=payload)

        async with (
            self.instance(
                lanes={"main": 9},
                handlers={"locks": locks, "spends": spends},
                quotas={"q": RateLimit(100, per=100.0, burst=1, unit="tokens")},
            ) as lanes,
            self.instance(worker=False) as asking,
        ):
            jobs = []
            for name in "abc":
                jobs.append(await lanes.submit("locks", name))
                await self.settle()
            for side in (lanes, asking):
                assert await reasons(side, jobs[0].id) == []
                for job in jobs[1:]:
                    assert await reasons(side, job.id) == [("lock", "the index", jobs[0].id)]
            self.gate("a").set()
            await jobs[0].wait()
            await self.settle()
            assert await reasons(asking, jobs[1].id) == []
            assert await reasons(asking, jobs[2].id) == [("lock", "the index", jobs[1].id)]
            self.open("b", "c")
            await jobs[2].wait()
            async with lanes.lock("the index"):  # by a task outside of a run
                other = await self.submitted("locks", "a")
                assert await reasons(asking, other.id) == [("lock", "the index", None)]
            await lanes.quota("q").spend(tokens=60)
            first = await self.submitted("spends", 50)
            second = await self.submitted("spends", 1)
            assert await reasons(asking, first.id) == [("quota", "q", None)]
            (when,) = await until(asking, first.id)
            assert when is not None
            assert 30 < when <= 60
            assert await reasons(asking, second.id) == [("quota", "q", first.id)]
            assert await until(asking, second.id) == [None]

    async def test_a_suspect_is_blocked_until_an_instance_runs_few_jobs(self) -> None:
        for submitted in ([new_job(payload, "gate") for payload in "ab"], []):
            async with self.doomed(*submitted) as claims:
                assert len(claims) == 2
        ids = [claim.id for claim in claims]
        async with self.instance() as lanes:
            last = await self.submitted("echo")
            running, waiting = ids if self.begun() == ["a"] else reversed(ids)
            assert await reasons(lanes, running) == []
            assert await reasons(lanes, waiting) == [("suspect", "main", None)]
            assert await reasons(lanes, last.id) == [("order", "main", waiting)]
