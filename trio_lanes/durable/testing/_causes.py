"""Tests of `DurableLanes.root_causes`: incidents, and what keeps a job from going on."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from ... import Cause, LaneConfig, LaneGroup, RateLimit
from .. import DurableLanes, ResultGoneError, RetryPolicy
from ._bench import ONCE, Bench, new_job, this_run

RATE = RateLimit(1, per=60.0, algorithm="sliding")


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


@asynccontextmanager
async def stubborn(bench: Bench, **options: Any) -> AsyncIterator[DurableLanes]:
    """Open lanes with a handler that ends when its gate is open, cancelled or not."""

    async def goes_on(payload: Any) -> None:
        bench.log.append(f"{payload} begins")
        with trio.CancelScope(shield=True):
            await bench.gate(payload).wait()

    async with bench.instance(handlers={"stubborn": goes_on}, **options) as lanes:
        yield lanes


class CauseStories(Bench):
    """Incidents, and the causes that one question finds."""

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
            assert first.root == 'rate of "provider": 1 a minute'
            assert first.chain == ()
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

    async def test_the_cause_is_a_lane_without_a_free_slot(self) -> None:
        async with self.instance(lanes={"main": 1}) as lanes:
            first = await self.submitted("gate", "a")
            await lanes.submit("gate", "b")
            third = await self.submitted("gate", "c")
            cause = await only_cause(lanes, third.id)
            assert (cause.kind, cause.jobs) == ("concurrency", (first.id,))
            assert line(cause).startswith(
                f'{third.id} ← slots of "main": all 1 in use, longest by {first.id}: '
                "'gate' runs on A for 0"
            )
            assert line(cause).endswith(" s, 1 before it")
            assert cause.advice == f'raise the concurrency of "main", or cancel {first.id}'
            await lanes.configure({"main": 0})
            await self.opened("a")
            cause = await only_cause(lanes, third.id)
            assert line(cause) == f'{third.id} ← slots of "main": it has none'
            assert cause.advice == 'raise the concurrency of "main"'

    async def test_the_cause_is_the_group_of_a_lane_or_its_reservations(self) -> None:
        groups = {"g": LaneGroup(["main", "cron"], concurrency=2, reserve={"cron": 1})}
        async with self.instance(lanes={"main": 5, "cron": 5}, groups=groups) as lanes:
            first = await self.submitted("gate", "a")
            second = await self.submitted("gate", "b")
            at = 'tokens of the group "g": those left are reserved for other lanes'
            assert await lines(lanes, second.id) == [f"{second.id} ← {at}"]
            await self.submitted("gate", "c", lane="cron")
            cause = await only_cause(lanes, second.id)
            assert (cause.kind, cause.lane, cause.jobs) == ("group", "g", (first.id,))
            assert cause.root.startswith('tokens of the group "g": all 2 in use, longest by ')

    async def test_the_cause_is_a_pause(self) -> None:
        async with self.instance() as lanes:
            await lanes.pause("main")
            await lanes.pause_for("session:s", 100)
            job = await self.submitted("echo", session="s")
            by_session, by_lane = await lanes.root_causes(job.id)
            assert line(by_lane) == f'{job.id} ← pause of "main"'
            assert by_lane.advice == 'resume "main"'
            assert line(by_session).startswith(f'{job.id} ← pause of "session:s", in about ')
            assert by_session.seconds is not None
            assert 50 < by_session.seconds <= 100
            last = await self.submitted("echo", session="s")
            assert {cause.lane for cause in await lanes.root_causes(last.id)} == {
                "main",
                "session:s",
            }

    async def test_the_cause_is_a_delay_or_a_retry_of_the_head(self) -> None:
        policy = RetryPolicy(max_attempts=3, backoff=(50.0, 50.0), jitter=0.0)
        async with self.instance(retry=policy) as lanes:
            delayed = await lanes.submit("echo", delay=600, session="s")
            cause = await only_cause(lanes, delayed.id)
            assert line(cause).startswith(f"{delayed.id} ← its delay, in about ")
            assert cause.advice == f"promote {delayed.id}"
            head = await self.submitted("bad", session="t")
            job = await self.submitted("echo", session="t")
            cause = await only_cause(lanes, job.id)
            assert (cause.kind, cause.advice) == ("retry", f"promote {head.id}")
            assert line(cause).startswith(
                f"{job.id} ← {head.id} of its session ← its next attempt, after 1 has failed "
                "(ValueError: no), in about "
            )

    async def test_the_cause_is_a_dead_job_that_keeps_the_session_closed(self) -> None:
        async with self.instance(retry=ONCE, on_dead="hold") as lanes:
            dead = await self.submitted("bad", session="s")
            await lanes.submit("echo", session="s")
            job = await self.submitted("echo", session="s")
            cause = await only_cause(lanes, job.id)
            assert (cause.kind, cause.jobs) == ("dead", (dead.id,))
            root = f"{dead.id} 'bad' of its session, which is dead: ValueError: no"
            assert line(cause) == f"{job.id} ← {root}"
            assert cause.advice == f"requeue or purge {dead.id}"
            assert await lanes.root_causes(dead.id) == ()

    async def test_the_cause_is_that_no_instance_lives_or_none_has_the_handler(self) -> None:
        async with self.instance(worker=False) as asking:
            first = await asking.submit("other", session="s")
            job = await asking.submit("echo", session="s")
            way = f"{job.id} ← {first.id} of its session ← "
            assert await lines(asking, job.id) == [f"{way}no instance lives"]
            assert (await only_cause(asking, job.id)).advice == "start a worker"
            async with self.instance(only=["echo"]):
                await self.settle()
                cause = await only_cause(asking, job.id)
                assert line(cause) == f"{way}no live instance has the handler 'other'"
                assert cause.advice == "start a worker with the handler 'other'"
            with self.raises(ResultGoneError):
                await asking.root_causes(10**9)

    async def test_the_cause_is_a_body_that_runs(self) -> None:
        async with self.instance() as lanes:
            first = await self.submitted("gate", "a", session="s")
            job = await self.submitted("echo", session="s")
            await self.advance(0.5)
            cause = await only_cause(lanes, job.id)
            assert (cause.kind, cause.jobs, cause.advice) == (
                "body",
                (first.id,),
                f"cancel {first.id}",
            )
            assert line(cause).startswith(
                f"{job.id} ← {first.id} of its session ← 'gate' runs on A for "
            )
            assert await lanes.root_causes(first.id) == ()

    async def test_the_cause_is_a_body_that_outlives_its_timeout_or_its_cancellation(self) -> None:
        if not self.virtual:
            return
        async with stubborn(self) as lanes:
            first = await lanes.submit("stubborn", "a", session="s", timeout=20.0)
            job = await self.submitted("echo", session="s")
            await self.advance(29)
            assert (await lines(lanes, job.id))[0].endswith(" s")
            await self.advance(2)
            cause = await only_cause(lanes, job.id)
            assert line(cause).endswith(", past its timeout of 20 s")
            assert cause.advice is not None
            assert cause.advice.startswith("reset the lanes of ")
            await lanes.cancel(first.id)
            cause = await only_cause(lanes, job.id)
            assert line(cause).endswith(" s, although it was asked to stop")
            self.open("a")

    async def test_the_cause_is_a_run_on_an_instance_that_is_gone(self) -> None:
        if not self.leased:
            return  # its store knows only a process, which is that of the test
        async with self.instance(worker=False) as asking:
            async with self.doomed(new_job("a", "gate", session="s")):
                job = await asking.submit("echo", session="s")
            cause = await only_cause(asking, job.id)
            assert re.sub(r" on \S+ \d+", " on A", cause.root) == "'gate' ran on A, which is gone"
            assert cause.advice == "start a worker, which gives it back"

    async def test_the_cause_is_a_suspect_before_it(self) -> None:
        for submitted in ([new_job(payload, "gate") for payload in "ab"], []):
            async with self.doomed(*submitted) as claims:
                assert len(claims) == 2
        async with self.instance() as lanes:
            last = await self.submitted("echo")
            cause = await only_cause(lanes, last.id)
            assert cause.kind == "suspect"
            assert cause.root.startswith("one more crash could make it dead")

    async def test_the_cause_is_the_holder_of_a_lock_which_waits_for_another_job(self) -> None:
        async def locks(payload: Any) -> None:
            async with lanes.lock("index"):
                async with this_run().yield_slot():
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

    async def test_the_cause_is_a_lock_of_a_task_outside_of_a_job(self) -> None:
        async def locks(payload: Any) -> None:
            async with lanes.lock("index"):
                pass

        async with self.instance(handlers={"locks": locks}) as lanes:
            async with lanes.lock("index"):
                job = await self.submitted("locks")
                at = 'the lock "index", which a task outside of a job has'
                assert await lines(lanes, job.id) == [f"{job.id} ← {at}"]
            await job.wait()
            assert await lanes.root_causes(job.id) == ()

    async def test_the_cause_is_a_deadlock_of_locks(self) -> None:
        async def locks(payload: Any) -> None:
            async with lanes.lock(payload[0]):
                await self.gate("both").wait()
                async with lanes.lock(payload[1]):
                    pass

        async with self.instance(lanes={"main": 2}, handlers={"locks": locks}) as lanes:
            jobs = [await self.submitted("locks", order) for order in ("ab", "ba")]
            last = await self.submitted("echo")
            await self.opened("both")
            cause = (await lanes.root_causes(last.id))[-1]
            assert (cause.kind, sorted(cause.jobs)) == ("deadlock", [job.id for job in jobs])
            assert cause.root == f"deadlock of {jobs[0].id}, {jobs[1].id}"
            await lanes.cancel(jobs[0].id)
            await jobs[1].wait()

    async def test_the_cause_is_a_quota(self) -> None:
        async def spends(payload: Any) -> None:
            await lanes.quota("q").spend(tokens=payload)

        limit = RateLimit(100, per=60.0, algorithm="sliding", unit="tokens")
        async with self.instance(handlers={"spends": spends}, quotas={"q": limit}) as lanes:
            await (await lanes.submit("spends", 60)).wait()
            first = await self.submitted("spends", 50)
            second = await self.submitted("spends", 1)
            cause = await only_cause(lanes, second.id)
            way = f'{second.id} ← {first.id} first for the quota "q" ← '
            at = 'quota "q": 60 used of 100 tokens a minute, in about '
            assert line(cause).startswith(way + at)
            assert cause.advice == 'raise the limit of the quota "q", or reset it'

    async def test_the_search_for_causes_says_where_it_was_cut(self) -> None:
        async def follows(payload: Any) -> None:
            async with lanes.lock(f"lock {payload}"):
                async with lanes.lock(f"lock {payload - 1}"):
                    pass

        async with self.instance(lanes={"main": 99}, handlers={"follows": follows}) as lanes:
            async with lanes.lock("lock 0"):
                for n in range(1, 53):
                    job = await self.submitted("follows", n)
                cause = await only_cause(lanes, job.id)
                assert (cause.kind, cause.root) == ("unknown", "...")
