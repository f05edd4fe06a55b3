"""Tests of what is wrong: why a job does not go on, root causes, and health."""

from __future__ import annotations

import math
import re
from typing import Any

from trio_lanes import Cause, LaneConfig, LaneGroup, RateLimit
from trio_lanes.durable import DurableLanes, ResultGoneError, RetryPolicy

from .bench import ONCE, Bench, needs, new_job, this_run

Reason = tuple[str, str, int | None]
RATE = RateLimit(1, per=60.0, algorithm="sliding")
RESERVING = {"g": LaneGroup(["main", "cron"], concurrency=2, reserve={"cron": 1})}


async def reasons(lanes: DurableLanes, id: int) -> list[Reason]:
    """Return the blockers without their times."""
    return [(one.kind, one.lane, one.job) for one in await lanes.blocked_by(id)]


async def until(lanes: DurableLanes, id: int) -> list[float]:
    """Return when the blockers end, in seconds after the submission of the job."""
    submitted_at = (await lanes.job(id).status()).submitted_at
    times = [one.until for one in await lanes.blocked_by(id)]
    return [math.inf if time is None else time - submitted_at for time in times]


def line(cause: Cause) -> str:
    """Return the line of a cause without the names of hosts and processes."""
    return re.sub(r" on \S+ \d+", " on A", str(cause))


async def lines(lanes: DurableLanes, id: int) -> list[str]:
    """Return the lines of the causes of a job."""
    return [line(cause) for cause in await lanes.root_causes(id)]


async def only_cause(lanes: DurableLanes, id: int) -> Cause:
    """Return the cause of a job, which has one."""
    (cause,) = await lanes.root_causes(id)
    return cause


async def kinds(lanes: DurableLanes) -> list[tuple[str, str, int | None]]:
    """Return the problems without their texts."""
    return [(one.kind, one.lane, one.job) for one in await lanes.health()]


class BlockerStories(Bench):
    async def test_a_job_is_blocked_by_the_head_of_its_session(self) -> None:
        async with self.instance() as lanes:
            first, second, third = [await lanes.submit("gate", n, session="s") for n in "abc"]
            await self.settle()
            assert await reasons(lanes, first.id) == []
            assert await lanes.root_causes(first.id) == ()
            await self.advance(0.5)
            for job in (second, third):
                assert await reasons(lanes, job.id) == [("session", "session:s", first.id)]
                cause = await only_cause(lanes, job.id)
                assert (cause.kind, cause.jobs) == ("body", (first.id,))
                assert cause.advice == f"cancel {first.id}"
                at = f"{job.id} ← {first.id} of its session ← 'gate' runs on A for "
                assert line(cause).startswith(at)
            await lanes.pause("session:s")
            self.gate("a").set()
            await first.wait()
            await self.settle()
            assert await reasons(lanes, first.id) == []
            paused: Reason = ("pause", "session:s", None)
            assert await reasons(lanes, second.id) == [paused]
            assert await reasons(lanes, third.id) == [paused, ("order", "session:s", second.id)]
            for ask in (lanes.blocked_by, lanes.root_causes):
                with self.raises(ResultGoneError):
                    await ask(10**9)

    async def test_a_job_is_blocked_by_its_delay_and_between_its_attempts(self) -> None:
        policy = RetryPolicy(max_attempts=2, backoff=(50.0, 50.0), jitter=0.0)
        async with self.instance(retry=policy) as lanes:
            delayed = await lanes.submit("echo", session="s", delay=600)
            assert await reasons(lanes, delayed.id) == [("delay", "main", None)]
            (when,) = await until(lanes, delayed.id)
            assert abs(when - 600) < 0.001
            cause = await only_cause(lanes, delayed.id)
            assert line(cause).startswith(f"{delayed.id} ← its delay, in about ")
            assert cause.advice == f"promote {delayed.id}"
            retried = await lanes.submit("bad", session="t")
            behind = await self.submitted("echo", session="t")
            assert await reasons(lanes, retried.id) == [("retry", "main", None)]
            assert await reasons(lanes, behind.id) == [("order", "session:t", retried.id)]
            cause = await only_cause(lanes, behind.id)
            assert (cause.kind, cause.advice) == ("retry", f"promote {retried.id}")
            assert line(cause).startswith(
                f"{behind.id} ← {retried.id} of its session ← its next attempt, after 1 has failed "
                "(ValueError: no), in about "
            )

    async def test_a_job_is_blocked_by_a_dead_job_that_keeps_its_session_closed(self) -> None:
        async with self.instance(retry=ONCE, on_dead="hold") as lanes:
            await lanes.submit("bad")
            await lanes.submit("bad", session="t")
            dead = await self.submitted("bad", session="s")
            assert await reasons(lanes, dead.id) == []
            assert await lanes.root_causes(dead.id) == ()
            assert await kinds(lanes) == [("dead", "main", dead.id)]
            jobs = [await self.submitted("echo", session="s") for _ in range(2)]
            root = f"{dead.id} 'bad' of its session, which is dead: ValueError: no"
            for job in jobs:
                assert await reasons(lanes, job.id) == [("dead", "session:s", dead.id)]
                cause = await only_cause(lanes, job.id)
                assert (cause.kind, cause.jobs) == ("dead", (dead.id,))
                assert line(cause) == f"{job.id} ← {root}"
                assert cause.advice == f"requeue or purge {dead.id}"
            of_session, of_lane = ("dead", "session:s", dead.id), ("dead", "main", dead.id)
            assert await kinds(lanes) == [of_session, of_lane]
            problem, _ = await lanes.health()
            assert str(problem) == (
                f"job {dead.id} 'bad' is dead and keeps session:s closed (ValueError: no): "
                f"requeue or purge {dead.id}"
            )

    async def test_a_job_is_blocked_by_a_lane_without_a_free_slot(self) -> None:
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
            cause = await only_cause(lanes, fourth.id)
            assert (cause.kind, cause.jobs) == ("concurrency", (first.id,))
            assert line(cause).startswith(
                f'{fourth.id} ← slots of "main": all 1 in use, longest by {first.id}: '
                "'gate' runs on A for 0"
            )
            assert line(cause).endswith(" s, 1 before it")
            assert cause.advice == f'raise the concurrency of "main", or cancel {first.id}'
            await lanes.configure({"main": 0})
            await self.opened("a")
            cause = await only_cause(lanes, fourth.id)
            assert line(cause) == f'{fourth.id} ← slots of "main": it has none'
            assert cause.advice == 'raise the concurrency of "main"'

    async def test_a_job_is_blocked_by_a_pause(self) -> None:
        async with self.instance(lanes={"main": 1}) as lanes:
            first = await self.submitted("gate", "a")
            await lanes.pause_for("session:s", 100)
            job = await self.submitted("echo", session="s")
            slot: Reason = ("concurrency", "main", first.id)
            await lanes.pause("main")
            await lanes.pause_for("main", 60)  # which ends no pause
            of_session, of_lane, _ = await until(lanes, job.id)
            assert of_lane == math.inf
            assert 99 < of_session < 110
            await lanes.resume("main")
            await lanes.pause_for("main", 60)
            paused: list[Reason] = [("pause", "session:s", None), ("pause", "main", None)]
            assert await reasons(lanes, job.id) == [*paused, slot]
            _, of_lane, _ = await until(lanes, job.id)
            assert 59 < of_lane < 70
            await self.opened("a")
            assert await reasons(lanes, job.id) == paused
            await lanes.pause("main")
            by_session, by_lane = await lanes.root_causes(job.id)
            assert line(by_lane) == f'{job.id} ← pause of "main"'
            assert by_lane.advice == 'resume "main"'
            assert line(by_session).startswith(f'{job.id} ← pause of "session:s", in about ')
            assert by_session.seconds is not None
            assert 50 < by_session.seconds <= 100
            last = await self.submitted("echo", session="s")
            found = {cause.lane for cause in await lanes.root_causes(last.id)}
            assert found == {"main", "session:s"}

    async def test_a_job_is_blocked_until_an_instance_lives_that_has_its_handler(self) -> None:
        async with self.instance() as lanes:
            await lanes.pause("main")
            other = await lanes.submit("other", session="s")
            behind = await lanes.submit("echo", session="s")
            echo = await lanes.submit("echo", priority=-1)
            paused: Reason = ("pause", "main", None)
            assert await reasons(lanes, echo.id) == [paused, ("order", "main", other.id)]
        way = f"{behind.id} ← {other.id} of its session ← "
        async with self.instance(worker=False) as asking:
            cause = (await asking.root_causes(behind.id))[-1]
            assert (line(cause), cause.advice) == (f"{way}no instance lives", "start a worker")
            async with self.instance(only=["echo"]):
                await self.settle()
                assert await reasons(asking, other.id) == [paused, ("handler", "main", None)]
                assert await reasons(asking, echo.id) == [paused]
                cause = (await asking.root_causes(behind.id))[-1]
                assert line(cause) == f"{way}no live instance has the handler 'other'"
                assert cause.advice == "start a worker with the handler 'other'"

    async def test_a_job_is_blocked_by_the_group_of_its_lane_or_its_reservations(self) -> None:
        async with self.instance(lanes={"main": 5, "cron": 5}, groups=RESERVING) as lanes:
            first = await self.submitted("gate", "a")
            second = await self.submitted("gate", "b")
            assert await reasons(lanes, second.id) == [("reservation", "g", first.id)]
            at = 'slots of the group "g": those left are reserved for other lanes'
            assert await lines(lanes, second.id) == [f"{second.id} ← {at}"]
            await self.submitted("gate", "c", lane="cron")
            assert await reasons(lanes, second.id) == [("group", "g", first.id)]
            cause = await only_cause(lanes, second.id)
            assert (cause.kind, cause.lane, cause.jobs) == ("group", "g", (first.id,))
            assert cause.root.startswith('slots of the group "g": all 2 in use, longest by ')

    async def test_a_job_is_blocked_by_rates_until_a_time_that_is_known(self) -> None:
        groups = {"g": LaneGroup(["main", "cron"], rate=RATE)}
        async with self.instance(
            lanes={"main": LaneConfig(concurrency=5, rate=RATE), "cron": 5}, groups=groups
        ) as lanes:
            await (await lanes.submit("echo", 1)).wait()
            second = await lanes.submit("echo", 2)
            third = await lanes.submit("echo", 3)
            cron = await self.submitted("echo", 4, lane="cron")
            assert await reasons(lanes, second.id) == [("rate", "main", None), ("rate", "g", None)]
            assert await reasons(lanes, third.id) == [("order", "main", second.id)]
            assert await reasons(lanes, cron.id) == [("rate", "g", None)]
            for when in await until(lanes, second.id):
                assert 30 < when <= 60

    async def test_the_cause_is_a_rate_that_holds_another_job_of_the_session(self) -> None:
        config = LaneConfig(concurrency=5, rate=RATE)
        async with self.instance(lanes={"main": 5, "provider": config}) as lanes:
            await (await lanes.submit("echo", 0, lane="provider")).wait()
            before = [await lanes.submit("echo", n, lane="provider") for n in range(2)]
            head = await lanes.submit("echo", 3, lane="provider", session="s")
            job = await self.submitted("echo", 4, session="s")
            cause = await only_cause(lanes, job.id)
            assert (cause.kind, cause.lane) == ("rate", "provider")
            assert cause.chain == ((head.id, "of its session"),)
            assert cause.advice == 'raise the rate of "provider"'
            assert cause.seconds is not None
            assert 150 < cause.seconds <= 180
            at = cause.root
            assert at == 'rate of "provider": 1 a minute, 2 before it'
            assert str(cause).startswith(f"{job.id} ← {head.id} of its session ← {at}, in about 1")
            first = await only_cause(lanes, before[0].id)
            assert (first.root, first.chain) == ('rate of "provider": 1 a minute', ())
            assert await job.root_causes() == await lanes.root_causes(job.id)

    async def test_the_cause_is_a_rate_in_a_unit_of_which_no_time_is_known(self) -> None:
        rate = RateLimit(100, per=60.0, unit="tokens", algorithm="sliding")
        groups = {"g": LaneGroup(["main"], rate=rate)}
        async with self.instance(lanes={"main": 5}, groups=groups) as lanes:
            await (await lanes.submit("echo", 0, cost={"tokens": 100})).wait()
            first = await lanes.submit("echo", 1, cost={"tokens": 10})
            second = await self.submitted("echo", 2, cost={"tokens": 10})
            assert (await only_cause(lanes, first.id)).seconds is not None
            at = 'rate of "g": 100 tokens a minute, 1 before it'
            assert await lines(lanes, second.id) == [f"{second.id} ← {at}"]

    async def test_a_run_is_blocked_by_its_lent_slot_and_by_the_job_it_waits_for(self) -> None:
        async def parent(payload: Any) -> None:
            async with this_run().yield_slot():
                await lanes.job(child.id).wait()

        groups = {"g": LaneGroup(["cron"], concurrency=1)}
        for lane, slot in (("main", ("concurrency", "main")), ("cron", ("group", "g"))):
            async with self.instance(
                lanes={"main": 1, "cron": 2}, groups=groups, handlers={"parent": parent}
            ) as lanes:
                child = await lanes.submit("gate", f"child in {lane}", lane=lane, delay=0.5)
                outer = await self.submitted("parent", lane=lane)
                waits = [("lent", lane, None), ("job", lane, child.id)]
                assert await reasons(lanes, outer.id) == waits
                await self.advance(0.6)
                other = await lanes.submit("gate", f"other in {lane}", lane=lane)
                await self.opened(f"child in {lane}")
                assert await reasons(lanes, other.id) == []
                assert await reasons(lanes, outer.id) == [(*slot, other.id)]
                self.gate(f"other in {lane}").set()
                await outer.wait()
                assert await reasons(lanes, outer.id) == []

    async def test_a_run_is_blocked_by_the_lock_that_it_waits_for(self) -> None:
        async with (
            self.instance(lanes={"main": 9}) as lanes,
            self.instance(worker=False) as asking,
        ):
            jobs = [await self.submitted("steps", ["lock index", f"gate {n}"]) for n in "abc"]
            for side in (lanes, asking):
                assert await reasons(side, jobs[0].id) == []
                for job in jobs[1:]:
                    assert await reasons(side, job.id) == [("lock", "index", jobs[0].id)]
            self.gate("a").set()
            await jobs[0].wait()
            await self.settle()
            assert await reasons(asking, jobs[1].id) == []
            assert await reasons(asking, jobs[2].id) == [("lock", "index", jobs[1].id)]
            self.open("b", "c")
            await jobs[2].wait()
            async with lanes.lock("index"):  # by a task outside of a job
                job = await self.submitted("steps", ["lock index"])
                assert await reasons(asking, job.id) == [("lock", "index", None)]
                at = 'the lock "index", which a task outside of a job has'
                assert await lines(lanes, job.id) == [f"{job.id} ← {at}"]
            await job.wait()
            assert await lanes.root_causes(job.id) == ()

    async def test_a_run_is_blocked_by_the_quota_that_it_waits_for(self) -> None:
        async def spends(payload: Any) -> None:
            await lanes.quota("q").spend(tokens=payload)

        limit = RateLimit(100, per=60.0, algorithm="sliding", unit="tokens")
        async with self.instance(handlers={"spends": spends}, quotas={"q": limit}) as lanes:
            await (await lanes.submit("spends", 60)).wait()
            first = await self.submitted("spends", 50)
            second = await self.submitted("spends", 1)
            async with self.instance(worker=False) as asking:
                assert await reasons(asking, first.id) == [("quota", "q", None)]
                (when,) = await until(asking, first.id)
                assert 30 < when <= 60
                assert await reasons(asking, second.id) == [("quota", "q", first.id)]
                assert await until(asking, second.id) == [math.inf]
            cause = await only_cause(lanes, second.id)
            way = f'{second.id} ← {first.id} first for the quota "q" ← '
            at = 'quota "q": 60 used of 100 tokens a minute, in about '
            assert line(cause).startswith(way + at)
            assert cause.advice == 'raise the limit of the quota "q", or reset it'

    async def test_the_cause_is_the_debt_of_a_quota_whose_settlement_was_above_its_estimate(
        self,
    ) -> None:
        async def spends(payload: Any) -> None:
            spent = await lanes.quota("q").spend(tokens=10)
            await spent.settle(tokens=payload)

        limit = RateLimit(100, per=60.0, unit="tokens", burst=100)
        async with self.instance(handlers={"spends": spends}, quotas={"q": limit}) as lanes:
            await (await lanes.submit("spends", 500)).wait()
            job = await self.submitted("spends", 1)
            async with self.instance(worker=False) as asking:
                cause = await only_cause(asking, job.id)
            assert (cause.kind, cause.lane) == ("quota", "q")
            assert " used of 100 tokens a minute, in about 2" in line(cause)  # 246 s, at 0 s
            assert cause.advice == 'raise the limit of the quota "q", or reset it'
            assert await kinds(lanes) == []

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
            cause = await only_cause(lanes, last.id)
            assert cause.kind == "suspect"
            assert cause.root.startswith("one more crash could make it dead")

    @needs("virtual time")
    async def test_the_cause_is_a_body_that_outlives_its_timeout_or_its_cancellation(self) -> None:
        async with (
            self.instance(lanes={"main": 1}) as lanes,
            self.instance(worker=False) as asking,
        ):
            first = await lanes.submit("stubborn", "a", session="s", timeout=20.0)
            behind = await lanes.submit("echo")
            job = await self.submitted("echo", session="s")
            await self.advance(29)
            assert (await lines(lanes, job.id))[0].endswith(" s")
            assert await lanes.health() == ()
            await self.advance(2)
            cause = await only_cause(lanes, job.id)
            assert line(cause).endswith(", past its timeout of 20 s")
            (problem,) = await asking.health()
            assert (problem.kind, problem.lane, problem.job) == ("overdue", "main", behind.id)
            assert "past its timeout of 20 s" in str(problem)
            assert cause.advice is not None
            assert cause.advice.startswith("reset the lanes of ")
            await lanes.cancel(first.id)
            cause = await only_cause(lanes, job.id)
            assert line(cause).endswith(" s, although it was asked to stop")
            self.open("a")

    @needs("virtual time")
    async def test_behind_runs_that_hang_the_advice_is_to_end_one_and_to_add_no_slot(self) -> None:
        async with self.instance(lanes={"main": 2}) as lanes:
            first = await self.submitted("gate", "a")
            await self.advance(10)
            await self.submitted("gate", "b")
            job = await lanes.submit("echo")
            await self.advance(299)
            cause = await only_cause(lanes, job.id)
            assert cause.advice is not None
            assert cause.advice.startswith('raise the concurrency of "main", or cancel')
            await self.advance(2)
            cause = await only_cause(lanes, job.id)
            assert cause.advice is not None
            assert cause.advice.startswith(f"cancel {first.id}, or reset the lanes of ")
            self.open("a")
            self.open("b")

    @needs("leases")  # else it is known by its process, which is that of the test
    async def test_the_cause_is_a_run_on_an_instance_that_is_gone(self) -> None:
        async with self.instance(worker=False) as asking:
            async with self.doomed(new_job("a", "gate", session="s")):
                job = await asking.submit("echo", session="s")
            cause = await only_cause(asking, job.id)
            assert re.sub(r" on \S+ \d+", " on A", cause.root) == "'gate' ran on A, which is gone"
            assert cause.advice == "start a worker, which gives it back"

    async def test_the_cause_is_the_holder_of_a_lock_which_waits_for_another_job(self) -> None:
        async def locks(payload: Any) -> None:
            async with lanes.lock("index"), this_run().yield_slot():
                await lanes.job(child.id).wait()

        async with self.instance(lanes={"main": 3}, handlers={"locks": locks}) as lanes:
            child = await lanes.submit("echo", delay=600)
            holder = await self.submitted("locks")
            second = await self.submitted("locks", session="s")
            job = await self.submitted("echo", session="s")
            cause = next(one for one in await lanes.root_causes(job.id) if one.kind == "delay")
            assert cause.chain == (
                (second.id, "of its session"),
                (holder.id, 'with the lock "index"'),
                (child.id, "that it waits for"),
            )
            assert cause.advice == f"promote {child.id}"
            async with self.instance(worker=False) as asking:  # the wait is known to its instance
                (lent,) = await lines(asking, job.id)
                assert lent.endswith(" ← it has lent its slot on A")

    async def test_the_cause_is_a_deadlock_of_locks(self) -> None:
        async with self.instance(lanes={"main": 2}) as lanes:
            ways = [[f"lock {a}", "gate both", f"lock {b}"] for a, b in ("ab", "ba")]
            jobs = [await self.submitted("steps", way) for way in ways]
            last = await self.submitted("echo")
            await self.opened("both")
            cause = (await lanes.root_causes(last.id))[-1]
            assert (cause.kind, sorted(cause.jobs)) == ("deadlock", [job.id for job in jobs])
            assert cause.root == f"deadlock of {jobs[0].id}, {jobs[1].id}"
            await lanes.cancel(jobs[0].id)
            await jobs[1].wait()

    async def test_the_search_for_causes_says_where_it_was_cut(self) -> None:
        async with self.instance(lanes={"main": 99}) as lanes, lanes.lock("0"):
            for n in range(1, 53):
                job = await self.submitted("steps", [f"lock {n}", f"lock {n - 1}"])
            cause = await only_cause(lanes, job.id)
            assert (cause.kind, cause.root) == ("unknown", "...")

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

    @needs("leases", "virtual time")
    async def test_an_instance_is_alive_as_long_as_it_has_its_lease(self) -> None:
        async with self.playing(lease_ttl=10.0), self.instance(worker=False) as asking:
            for seconds, alive in ((9.0, True), (2.0, False)):
                await self.advance(seconds)
                assert [one.alive for one in await asking.instances()] == [alive]

    @needs("virtual time")
    async def test_it_is_a_problem_that_nothing_serves_a_lane(self) -> None:
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
            (problem,) = await lanes.health()
            assert (problem.kind, problem.lane, problem.job) == ("pause", "main", jobs[0].id)
            assert problem.text.endswith(f'{jobs[0].id} ← pause of "main", until it is resumed')
            await self.advance(10)
            assert sorted(await kinds(lanes)) == [
                ("concurrency", "cron", jobs[2].id),
                ("pause", "main", jobs[0].id),
            ]

    @needs("virtual time")
    async def test_it_is_a_problem_that_no_instance_has_a_handler(self) -> None:
        async with self.instance(worker=False) as asking:
            await asking.pause_for("session:s", 500)
            await asking.submit("echo", session="s")
            other = await asking.submit("other")
            async with self.instance(only=["echo"]):
                await self.advance(20)
                assert await kinds(asking) == [("handler", "main", other.id)]

    @needs("virtual time")
    async def test_it_is_a_problem_that_a_job_waits_though_nothing_holds_it(self) -> None:
        async with self.playing(lease_ttl=1e6), self.instance(worker=False) as asking:
            job = await asking.submit("echo")
            await self.advance(20)
            (problem,) = await asking.health()
            assert str(problem) == (
                f"job {job.id} of 'main' has waited for 20 s, though nothing holds it: "
                "look at what its process does, and at its capacity"
            )

    @needs("virtual time")
    async def test_it_is_a_problem_that_a_store_answers_slowly(self) -> None:
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

    @needs("virtual time")
    async def test_it_is_a_problem_that_no_instance_has_room_for_a_job(self) -> None:
        async with self.instance(capacity=1) as lanes:
            await self.submitted("gate", "a")
            job = await self.submitted("echo")
            behind = await self.submitted("echo")
            async with self.instance(worker=False) as asking:
                found = await only_cause(asking, behind.id)
            assert re.sub(r": \S+ \d+", ": A", found.root) == (
                "room of an instance: A runs 1, 1 before it"
            )
            await self.advance(20)
            (problem,) = await lanes.health()
            assert (problem.kind, problem.lane, problem.job) == ("capacity", "main", job.id)
            assert problem.advice == "raise the capacity of the workers, or start another"

    @needs("virtual time")
    async def test_the_verdict_says_of_how_many_lanes_it_does_not_speak(self) -> None:
        names = [f"lane {n}" for n in range(102)]
        async with self.instance(lanes=dict.fromkeys(names, 1)) as lanes:
            for name in names:
                await lanes.pause_for(name, 500)
                await lanes.submit("echo", lane=name)
            found = await lanes.health()
            assert (found, found.unseen) == ((), 2)
            await self.advance(20)
            look = lanes.root_causes

            async def slowly(id: int) -> Any:
                await self.advance(3)
                return await look(id)

            lanes.root_causes = slowly  # type: ignore[method-assign]
            found = await lanes.health()
            assert (found, found.unseen) == ((), 100)
