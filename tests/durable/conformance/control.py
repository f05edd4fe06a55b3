"""Tests of control and inspection, and of the end of lanes."""

from __future__ import annotations

import math
import os
import socket
from typing import Any

import attrs
import trio

from trio_lanes import (
    JobCancelledError,
    LaneClearedError,
    LaneConfig,
    LaneGroup,
    LanesClosedError,
    RateLimit,
    UnknownLaneError,
)
from trio_lanes.durable import (
    Cancelled,
    Died,
    DurableJobError,
    DurableSchedule,
    DurableState,
    Failed,
    GroupLimit,
    JobDeadError,
    LaneLimit,
    NoRetry,
    Postponed,
    Released,
    ResultGoneError,
    RetryPolicy,
    Selection,
    Submission,
    UnknownHandlerError,
    current_job,
)
from trio_lanes.durable.acts.inspection import AllStatistics, JobsOf, StatusOf
from trio_lanes.durable.acts.orders import Cancel, Clear, Configure, Purge, Requeue
from trio_lanes.durable.acts.schedules import PutSchedule, SchedulesOf
from trio_lanes.durable.store import JOBS_LISTED, NAMES_LISTED

from .bench import ERROR, ONCE, STOP, Bench, ends, needs, new_job, this_run


def failing(bench: Bench) -> dict[str, Any]:
    """Return handlers that fail, each with an error of its own."""

    def failure(error: Exception) -> Any:
        async def fail(payload: Any) -> None:
            bench.log.append(payload)
            raise error

        return fail

    return {"key": failure(KeyError("no")), "refused": failure(NoRetry("no"))}


class ControlStories(Bench):
    async def test_clear_takes_jobs_that_have_not_started_and_leaves_those_that_run(self) -> None:
        policy = RetryPolicy(backoff=(5.0, 5.0))
        async with self.instance(retry=policy) as lanes:
            running = await lanes.submit("gate", "a", session="s")
            waiting = await lanes.submit("echo", "b", session="s")
            delayed = await lanes.submit("echo", "c", session="s", delay=5)
            parked = await lanes.submit("bad", session="t")
            behind = await lanes.submit("echo", "t", session="t")
            elsewhere = await self.submitted("echo", "d", lane="cron", delay=1)
            assert await lanes.clear("session:s", "enough") == 2
            for job in (waiting, delayed):
                error = await self.fails(job, LaneClearedError)
                assert (error.lane, error.reason) == ("session:s", "enough")
            assert await lanes.clear("main") == 2
            for job in (parked, behind):
                assert await self.state(job.id) is DurableState.CANCELLED
            self.gate("a").set()
            assert await running.wait() == "a"
            await self.advance(1.1)
            assert await elsewhere.wait() == "d"
            with self.raises(UnknownLaneError):
                await lanes.clear("nowhere")

    async def test_cancel_ends_a_waiting_job_and_stops_a_running_one(self) -> None:
        async with self.instance() as lanes:
            running = await lanes.submit("gate", "a", session="s")
            waiting = await lanes.submit("echo", "b", session="s")
            last = await self.submitted("echo", "c", session="s")
            assert await lanes.cancel(waiting.id, "not needed")
            assert (await self.fails(waiting, JobCancelledError)).reason == "not needed"
            assert await lanes.cancel(running.id)
            await self.fails(running, JobCancelledError)
            assert await last.wait() == "c"
            assert self.log == ["a begins", "a is cancelled", "c"]
            assert not await lanes.cancel(running.id)
            assert not await lanes.cancel(10**9)

    @needs("virtual time")
    async def test_the_job_that_has_a_key_is_found_until_it_is_forgotten(self) -> None:
        async with self.instance(result_ttl=100) as lanes, self.instance(worker=False) as elsewhere:
            assert await elsewhere.keyed("k") is None
            job = await self.submitted("gate", "a", key="k")
            for state in (DurableState.RUNNING, DurableState.SUCCEEDED):
                status = await elsewhere.keyed("k")
                assert status is not None
                assert (status.id, status.state) == (job.id, state)
                self.gate("a").set()
                await job.wait()
            await self.advance(200)
            await self.settle()
            await (await lanes.submit("echo", "b")).wait()  # a step that forgets
            await self.advance(2)
            assert await lanes.keyed("k") is None
            with self.raises(ValueError):
                await lanes.keyed("")

    async def test_abort_stops_what_runs_in_a_session_and_not_what_waits(self) -> None:
        async with self.instance() as lanes, self.instance(worker=False) as elsewhere:
            assert await elsewhere.running("alice") is None
            assert not await elsewhere.abort("alice")
            first = await lanes.submit("gate", "first", session="alice")
            after = await lanes.submit("gate", "after", session="alice")
            other = await self.submitted("gate", "other", session="bob")
            status = await elsewhere.running("session:alice")
            assert status is not None
            assert (status.id, status.state) == (first.id, DurableState.RUNNING)
            assert await elsewhere.abort("alice", "enough")
            await self.advance(2)  # longer than the interval of polling
            assert (await self.fails(first, JobCancelledError)).reason == "enough"
            await self.settle()
            status = await lanes.running("alice")
            assert status is not None
            assert status.id == after.id
            assert await self.state(other.id) is DurableState.RUNNING
            self.gate("after").set()
            await after.wait()
            await lanes.pause("session:alice")
            await lanes.submit("gate", "waits", session="alice")
            assert await lanes.running("alice") is None
            assert not await lanes.abort("alice")
            with self.raises(ValueError):
                await lanes.running("")

    async def test_a_job_that_is_put_first_is_the_next_of_its_session(self) -> None:
        async with self.instance() as lanes, self.instance(worker=False) as elsewhere:
            jobs = {"a": await lanes.submit("gate", "a", session="alice")}
            await self.settle()
            for name in "bcdef":
                jobs[name] = await lanes.submit("gate", name, session="alice")
            alone = await lanes.submit("gate", "alone")
            assert await elsewhere.put_first(jobs["e"].id)
            assert await lanes.put_first(jobs["c"].id)
            assert await lanes.put_first(jobs["e"].id)  # it is before c
            for id in (jobs["a"].id, alone.id, 10**9):
                assert not await lanes.put_first(id)
            assert (await lanes.check()).problems == ()
            self.open("a", "alone", *"ecbdf")
            await jobs["f"].wait()
            assert [name for name in self.begun() if name != "alone"] == [*"aecbdf"]
            assert not await lanes.put_first(jobs["f"].id)

            await lanes.pause("session:alice")
            more = [await lanes.submit("echo", n, session="alice") for n in range(3)]
            assert await lanes.put_first(more[2].id)  # before a head that waits
            assert await lanes.put_first(more[0].id)
            assert (await lanes.check()).problems == ()
            await self.settle()
            assert [await self.state(one.id) for one in more] == [DurableState.WAITING] * 3
            await lanes.resume("session:alice")
            assert await more[0].wait() == 0
            assert await self.state(more[2].id) is DurableState.SUCCEEDED
            assert await more[1].wait() == 1

            first = await lanes.submit("echo", 1, session="bob", delay=1000)
            assert not await lanes.put_first(first.id)

    async def test_a_parked_job_that_is_promoted_is_due_now(self) -> None:
        policy = RetryPolicy(max_attempts=2, backoff=(500.0, 500.0), jitter=0.0)
        async with self.instance(retry=policy) as lanes, self.instance(worker=False) as elsewhere:
            first = await lanes.submit("gate", "first", session="s")
            late = [await lanes.submit("echo", n, session="s", delay=900 - n) for n in range(3)]
            behind = await self.submitted("echo", "behind", session="s")
            assert await elsewhere.promote(late[1].id)
            assert await lanes.promote(late[0].id)
            status = await lanes.job(late[0].id).status()
            assert (status.state, status.why, status.until) == (DurableState.WAITING, None, None)
            for id in (first.id, late[0].id, behind.id, 10**9):
                assert not await lanes.promote(id)
            assert (await lanes.check()).problems == ()
            self.open("first")
            await late[0].wait()
            await self.settle()
            assert self.log == ["first begins", "first ends", "behind", 1, 0]
            assert await self.state(late[2].id) is DurableState.PARKED

            failed = await self.submitted("bad", "again", session="t")
            after = await self.submitted("echo", "after", session="t")
            alone = await self.submitted("echo", "alone", delay=900)
            assert await lanes.promote(alone.id)
            assert await alone.wait() == "alone"
            assert await lanes.promote(failed.id)  # it has kept its place
            await self.fails(failed, JobDeadError)
            assert await after.wait() == "after"
            assert self.log[5:] == ["again", "alone", "again", "after"]
            assert not await lanes.promote(failed.id)

        async with self.instance(worker=False) as asking:  # nothing queues the due jobs
            due = await asking.submit("echo", session="u", delay=0.01)
            await self.advance(0.02)
            assert await asking.promote(due.id)
            assert await self.state(due.id) is DurableState.WAITING
            assert not await asking.promote(due.id)

    async def test_failures_are_grouped_by_handler_lane_and_error(self) -> None:
        async def fails(payload: Any) -> None:
            raise (NoRetry if payload else ValueError)(f"no {payload}\nat all")

        async with self.instance(retry=ONCE, handlers={"fails": fails}) as lanes:
            jobs = [await lanes.submit("fails", payload) for payload in ("", "x", "")]
            jobs.append(await lanes.submit("fails", "x", lane="cron"))
            await self.settle()
            for job in jobs:
                await self.fails(job, DurableJobError)
            first, *others = await lanes.failures()
            assert (first.handler, first.lane, first.error) == ("fails", "main", "ValueError: no ")
            assert (first.count, first.last) == (2, jobs[2].id)
            assert "ValueError: no \nat all" in first.traceback
            assert sorted((one.lane, one.count) for one in others) == [("cron", 1), ("main", 1)]
            assert {one.lane for one in await lanes.failures("cron", handler="fails")} == {"cron"}
            assert [one.count for one in await lanes.failures(limit=1)] == [1]

    async def test_of_many_failures_the_last_are_grouped_and_it_says_which(self) -> None:
        async def fails(payload: Any) -> None:
            raise ValueError(payload)

        async with self.instance(retry=ONCE, handlers={"fails": fails}) as lanes:
            jobs = []
            for n in range(8):
                jobs.append(await lanes.submit("fails", "new" if n > 5 else "old"))
                await self.settle()
                await self.advance(0.05)
            whole = await lanes.failures()
            assert (whole.looked, whole.between) == (8, None)
            last = await lanes.failures(limit=4)
            assert sorted((one.error, one.count) for one in last)[0] == ("ValueError: new", 2)
            assert max(one.last for one in last) == jobs[-1].id
            status = await jobs[-1].status()
            assert last.between is not None
            assert 2 <= last.looked <= 4
            assert last.between[1] == status.submitted_at
            for _ in range(3):  # at one time, with some clocks
                await lanes.submit("fails", "new")
            await self.settle()
            assert 1 <= (await lanes.failures(limit=2)).looked <= 2

    async def test_a_job_whose_cancellation_is_recorded_is_never_claimed_again(self) -> None:
        async def stubborn(payload: Any) -> None:
            try:
                await trio.sleep_forever()
            finally:
                self.log.append(f"{payload} stops")
                raise ValueError("while it stopped")

        async with self.instance(handlers={"stubborn": stubborn}) as lanes:
            raising = await self.submitted("stubborn", "raises")
            assert await lanes.cancel(raising.id, "stop")
            assert await lanes.cancel(raising.id, "stop again")
            await self.fails(raising, JobCancelledError)
            assert self.log == ["raises stops"]

    async def test_a_paused_lane_or_session_starts_nothing_until_resumed(self) -> None:
        async with self.instance() as lanes:
            await lanes.pause("session:s")
            await lanes.pause("cron")
            job = await lanes.submit("echo", "s", session="s")
            cron = await lanes.submit("echo", "cron", lane="cron")
            await (await lanes.submit("echo", "t", session="t")).wait()
            await self.settle()
            assert self.log == ["t"]
            statistics = await lanes.statistics()
            assert (statistics.lanes["cron"].paused, statistics.waiting) == (True, 2)
            await lanes.resume("session:s")
            await job.wait()
            await lanes.resume("cron")
            await cron.wait()

    async def test_pause_for_ends_by_itself_and_only_ever_extends(self) -> None:
        async with self.instance() as lanes:
            for name in ("main", "session:s"):
                await lanes.pause_for(name, 2)
                await lanes.pause_for(name, 1)
            job = await lanes.submit("echo", "s", session="s", lane="cron")
            main = await lanes.submit("echo", "main")
            await self.expect((1.5, []))
            await self.advance(1.0)
            await job.wait()
            await main.wait()
            await lanes.pause("main")
            await lanes.pause_for("main", 0.1)
            await lanes.submit("echo", "later")
            await self.advance(0.5)
            assert (await lanes.statistics()).lanes["main"].paused

    async def test_a_pause_or_a_cancelled_job_behind_it_costs_a_head_no_turn(self) -> None:
        async with self.instance(lanes={"main": 1}) as lanes:
            await lanes.submit("gate", "a")
            await lanes.submit("gate", "b", session="b")
            behind = await lanes.submit("gate", "behind b", session="b")
            await self.submitted("gate", "c", session="c")
            for act in (lanes.pause, lanes.pause, lanes.resume):
                await act("session:b")
            assert await lanes.cancel(behind.id)
            await self.opened("a")
            assert self.begun() == ["a", "b"]

    async def test_a_paused_session_keeps_its_place_while_others_are_given_back(self) -> None:
        many = [new_job(f"{n}", "gate") for n in range(4)]
        paused = new_job("paused", "gate", session="a")
        async with self.doomed(*many, paused, new_job("last", "gate")) as claims:
            assert len(claims) == 4
            async with self.instance(worker=False) as asker:
                await asker.pause("session:a")
        async with self.instance() as lanes:
            await self.settle()
            assert self.begun() == ["0", "1", "2", "3"]
            await lanes.resume("session:a")
            for n in range(2):
                await self.opened(f"{n}")
            assert self.begun() == ["0", "1", "2", "3", "paused", "last"]

    async def test_limits_belong_to_the_store_and_present_limits_win(self) -> None:
        async with self.instance(lanes={"main": 2}) as lanes:
            await lanes.configure({"main": 5, "new": 1, "odd": LaneConfig(max_waiting=3)})
            await (await lanes.submit("echo", "x", lane="new")).wait()
            await lanes.pause("odd")
            waiting = await lanes.submit("echo", "x", lane="odd")
            for bad in ({"odd": None}, {"main": -1}, {"main": 1, "odd": None}):
                with self.raises(ValueError):
                    await lanes.configure(bad)
            assert (await lanes.statistics()).lanes["main"].concurrency == 5
            await lanes.cancel(waiting.id)
            await lanes.configure({"odd": None})
            with self.raises(UnknownLaneError):
                await lanes.configure({"nowhere": None})
            with self.raises(UnknownLaneError):
                await lanes.submit("echo", lane="odd")
        async with self.instance(lanes={"main": 2, "cron": math.inf}) as lanes:
            limits = (await lanes.statistics()).lanes
            assert limits["main"].concurrency == 5
            assert limits["cron"].concurrency == math.inf
            assert sorted(limits) == ["cron", "main", "new"]

    async def test_status_has_the_history_of_the_last_runs(self) -> None:
        async def flaky(payload: Any) -> str:
            run = this_run()
            if run.attempt == 1:
                raise ExceptionGroup("in a nursery", [ValueError("two\nlines")])
            if run.crashes == 0:
                await trio.sleep_forever()
            return "done"

        policy = RetryPolicy(backoff=(1.0, 1.0), jitter=0)
        async with self.instance(handlers={"flaky": flaky}, retry=policy) as lanes:
            job = await lanes.submit("flaky")
            waiting = await lanes.submit("echo", delay=1e305)
            assert (await waiting.status()).history == ()
            await self.settle()
            status = await job.status()
            (first,) = status.history
            assert (first.number, first.how, first.error) == (1, "retried", "ValueError: two lines")
            assert (first.host, first.pid) == (socket.gethostname(), os.getpid())
            assert first.ended_at is not None
            assert status.submitted_at <= first.started_at <= first.ended_at
            await self.advance(1.1)
        async with self.doomed(names=["flaky"]) as claims:
            async with self.instance(worker=False) as asker:
                running = (await asker.job(job.id).status()).history[-1]
                assert (running.number, running.fence) == (2, claims[0].fence)
                assert (running.ended_at, running.how, running.error) == (None, None, None)
        async with self.instance(handlers={"flaky": flaky}, retry=policy) as lanes:
            assert await lanes.job(job.id).wait() == "done"
            history = (await lanes.job(job.id).status()).history
            assert [(run.number, run.how) for run in history] == [
                *((1, "retried"), (2, "released"), (2, "crashed"), (2, "succeeded"))
            ]
            fences = [run.fence for run in history]
            assert fences == sorted(set(fences))

    async def test_history_is_bounded_and_says_how_each_run_ended(self) -> None:
        async with self.playing() as store:
            *others, again = await store.begin(*[new_job()] * 4)
            assert await store.do(Cancel(others[2].id, STOP))
            for claim, outcome in zip(
                others, (Died(ERROR), Failed(ERROR), Cancelled()), strict=True
            ):
                await store.end(claim, outcome)
            (again,) = (await store.end(again, Released(), 1)).claims
            for n in range(12):
                error = Postponed(0.0, True, False, f"error {n}")
                (again,) = (await store.end(again, error, 1)).claims
            await store.end(again, Released())
            runs = [status.history for status in await store.look(JobsOf(Selection(), 0, 9))]
            assert [(run.how, run.error) for one in (0, 1, 2) for run in runs[one]] == [
                ("dead", "ValueError: no"),
                ("failed", "ValueError: no"),
                ("cancelled", None),
            ]
            errors = [f"error {n}" for n in range(3, 12)]
            assert [run.error for run in runs[3]] == [*errors, None]
            assert [run.number for run in runs[3]] == list(range(4, 14))

    async def test_a_run_that_a_lost_lease_ended_was_not_a_crash_in_the_history(self) -> None:
        async with self.playing() as store:
            (run,) = await store.begin(new_job())
            await store.leave()
            status = await store.look(StatusOf(run.id))
            assert [run.how for run in status.history] == ["crashed"]
            await store.join([(run.id, run.fence)])
            status = await store.look(StatusOf(run.id))
            assert ([run.how for run in status.history], status.crashes) == (["released"], 0)

    async def test_jobs_are_listed_by_handler_error_and_time(self) -> None:
        async with self.instance(handlers=failing(self), retry=ONCE) as lanes:
            first = [await lanes.submit(name, "x") for name in ("echo", "bad", "key")]
            await self.settle()
            await self.advance(1.0)
            later = [await lanes.submit(name, "x") for name in ("bad", "echo", "refused")]
            await self.settle()
            since = (await later[0].status()).submitted_at

            async def listed(**options: Any) -> list[int]:
                return [status.id for status in await lanes.jobs(**options)]

            assert await listed(handler="bad") == [first[1].id, later[0].id]
            assert await listed(handler="bad", since=since) == [later[0].id]
            assert await listed(until=since) == [job.id for job in first]
            assert await listed(since=since, until=since) == []
            assert await listed(handler="echo", states=[DurableState.DEAD]) == []
            assert await listed(error="ValueError") == [first[1].id, later[0].id]
            assert await listed(error="ValueError", until=since) == [first[1].id]
            assert await listed(error="trio_lanes.durable.NoRetry") == [later[2].id]
            assert await listed(since=since, limit=2) == [later[0].id, later[1].id]
            assert await listed(since=since, limit=2, after=later[1].id) == [later[2].id]
            dead = await lanes.dead(handler="key", error="KeyError")
            assert [status.id for status in dead] == [first[2].id]
            assert await lanes.dead(error="NoRetry") == []
            for bad in ({"since": -1}, {"until": math.nan}, {"handler": ""}, {"error": "\ud800"}):
                with self.raises(ValueError):
                    await lanes.jobs(**bad)

    async def test_dead_jobs_are_requeued_and_purged_by_handler_and_error(self) -> None:
        async with self.instance(handlers=failing(self), retry=ONCE) as lanes:
            jobs = {
                name: [await lanes.submit(name, f"{name} {n}", key=f"{name} {n}") for n in range(2)]
                for name in ("bad", "key", "refused")
            }
            await self.settle()
            self.log.clear()
            assert await lanes.requeue(error="ValueError") == 2
            await self.settle()
            assert self.log == ["bad 0", "bad 1"]  # the oldest first, and each once
            assert await lanes.requeue(handler="bad", error="KeyError") == 0
            assert await lanes.requeue(name="cron", error="ValueError") == 0
            assert await lanes.requeue(handler="refused") == 0
            assert await lanes.requeue(handler="refused", failed=True) == 2
            await self.settle()
            assert await lanes.purge(handler="key") == 2
            await self.fails(jobs["key"][0], ResultGoneError)
            assert (await lanes.submit("key", "again", key="key 0")).id != jobs["key"][0].id
            await self.settle()
            assert await lanes.requeue() == 3
            await self.settle()
            assert await lanes.purge(jobs["bad"][0].id) == 1
            assert await lanes.purge(error="ValueError", failed=True) == 1
            assert [status.name for status in await lanes.dead(failed=True)] == [
                *("refused", "refused", "key")
            ]
            with self.raises(ValueError):
                await lanes.purge(7, error="ValueError")
            with self.raises(ValueError):
                await lanes.requeue(7, name="main")
            assert (await lanes.check()).problems == ()

    async def test_very_many_dead_jobs_are_requeued_once_each_and_listed_in_pages(self) -> None:
        many = JOBS_LISTED + 1
        async with self.playing() as store:
            await store.do(Configure({"main": many}, None, {}))
            ids = await store.enqueue([new_job() for _ in range(many)])
            claims = await store.claim(many)
            await store.step(ends(Died(ERROR), *claims), 0)
            of = Selection(error="ValueError")
            page = await store.look(JobsOf(of, 0, many))
            assert [status.id for status in page] == ids[:JOBS_LISTED]
            assert [one.id for one in await store.look(JobsOf(of, ids[-2], JOBS_LISTED))] == ids[
                -1:
            ]
            assert await store.twice(Requeue(of)) == many
            assert (await store.look(AllStatistics())).waiting == many
            claims = await store.claim(many)
            assert [claim.id for claim in claims] == ids
            await store.step(ends(Died(ERROR), *claims), 0)
            assert await store.twice(Purge(of)) == many
            assert (await store.look(AllStatistics())).dead == 0

    async def test_clear_takes_every_one_of_very_many_delayed_jobs(self) -> None:
        async with self.playing() as store:
            many = JOBS_LISTED + 1  # their ids follow one another
            await store.enqueue([new_job(delay=50.0) for _ in range(many)])
            assert await store.do(Clear("main", None, STOP)) == many
            assert (await store.look(AllStatistics())).parked == 0

    async def test_statistics_and_status_say_how_things_stand(self) -> None:
        async with self.instance(retry=ONCE) as lanes:
            running = await lanes.submit("gate", "a", session="s", priority=1, key="k")
            await lanes.submit("echo", "b", session="s")
            await lanes.submit("echo", "c", delay=9, lane="cron")
            for name, lane in (("d", "main"), ("e", "cron")):
                await lanes.submit("gate", name, lane=lane)
            await self.submitted("bad")
            now = await lanes.statistics()
            assert (now.waiting, now.parked, now.running, now.dead) == (1, 1, 3, 1)
            assert (now.sessions, now.unhandled) == (1, 0)
            assert (now.lanes["main"].sessions, now.lanes["cron"].sessions) == (1, 0)
            assert (now.lanes["main"].running, now.lanes["cron"].parked) == (2, 1)
            assert now.lanes["main"].concurrency == 4
            async with self.instance(worker=False) as asking:
                (instance,) = await asking.instances()
            assert instance.names == ("bad", "echo", "gate", "once", "other", "steps", "stubborn")
            assert (instance.running, instance.lanes) == (3, {"main": 2, "cron": 1})
            status = await running.status()
            assert (status.name, status.session, status.lane) == ("gate", "s", "main")
            assert (status.priority, status.key, status.attempt) == (1, "k", 1)
            assert (status.instance, status.cancelling) == (instance.id, False)
            assert status.error is None
            assert (await lanes.check()).problems == ()
            assert (await lanes.check(repair=True)).problems == ()

    async def test_ends_are_counted_by_lane_or_template_and_nothing_takes_them_away(self) -> None:
        limits = {"main": 4, "tenant:*": 1}
        rules: Any = {"retry": ONCE, "result_ttl": 50.0, "handlers": failing(self)}
        async with self.instance(lanes=limits, **rules) as lanes:
            assert (await lanes.statistics()).ended == {}
            dead = await self.submitted("bad")
            assert await lanes.requeue(dead.id) == 1
            await self.settle()
            assert await lanes.purge(dead.id) == 1
            await self.submitted("echo")
            await self.submitted("refused")
            for tenant in "ab":
                await self.submitted("gate", "g", lane=f"tenant:{tenant}", session="g")
            await lanes.submit("echo", lane="tenant:a", expires=1.0)
            await self.advance(1.1)
            assert await lanes.clear("tenant:*") == 1
            self.open("g")
            await self.settle()
            main = {"dead": 2, "failed": 1, "succeeded": 1}
            ended = {"main": main, "tenant:*": {"cancelled": 1, "expired": 1, "succeeded": 1}}
            assert (await lanes.statistics()).ended == ended
            await self.advance(60)  # the store forgets the jobs
            await self.submitted("echo")
            assert (await lanes.check(repair=True)).problems == ()
            main["succeeded"] += 1
            assert (await lanes.statistics()).ended == ended

    async def test_statistics_say_what_is_due_and_when_something_will_be(
        self,
    ) -> None:
        async with self.playing(lease_ttl=3600.0) as store, self.instance(worker=False) as asking:
            seen = await asking.statistics()
            assert (seen.due, seen.next_due, seen.lanes["cron"].due) == (0, None, 0)
            now, _ = await store.look(SchedulesOf(None, 0))
            await store.enqueue([new_job(delay=900.0, expires=800.0), new_job(delay=900.0)])
            next_due = (await asking.statistics()).next_due
            assert next_due is not None
            assert 790 < next_due - now < 890
            await store.enqueue([new_job(delay=3.0, lane="cron"), new_job()])
            next_due = (await asking.statistics()).next_due
            assert next_due is not None
            assert 2.9 < next_due - now < 90
            for name, due, lane in (("t", now + 900, "main"), ("s", now - 5, "fires")):
                await store.do(Configure({lane: LaneLimit(1)}, None, {}))
                scheduled = DurableSchedule(name=name, job=new_job(lane=lane), every=1e6, next=due)
                await store.do(PutSchedule(scheduled))
            seen = await asking.statistics()
            assert (seen.due, seen.lanes["fires"].due, seen.next_due) == (1, 1, now - 5)
            await self.advance(3.1)
            seen = await asking.statistics()
            assert (seen.due, seen.lanes["cron"].due, seen.lanes["main"].due) == (2, 1, 0)
            assert seen.lanes["cron"].parked == 1
            await store.step([], 0)
            seen = await asking.statistics()
            assert (seen.due, seen.lanes["cron"].due, seen.lanes["cron"].waiting) == (1, 0, 1)

    async def test_instances_say_how_long_they_are_silent(self) -> None:
        async with self.playing(lease_ttl=40.0) as store, self.instance(worker=False) as asking:
            await self.advance(1.0)
            (silent,) = await asking.instances()
            assert await store.beat()
            (beaten,) = await asking.instances()
            if self.leased:
                assert (silent.lease_ttl, beaten.silent < silent.silent) == (40.0, True)
                assert 0.9 < silent.silent < 30
            else:
                assert (silent.lease_ttl, silent.silent) == (math.inf, 0.0)

    async def test_a_heartbeat_says_how_commits_go_or_nothing_does(self) -> None:
        async with self.playing(lease_ttl=40.0) as store, self.instance(worker=False) as asking:
            (joined,) = await asking.instances()
            await self.advance(1.0)
            assert await store.beat()
            (beaten,) = await asking.instances()
            if joined.activity is None:  # the store does not say it
                assert beaten.activity is None
            else:
                assert beaten.activity is not None
                assert beaten.activity.commits > joined.activity.commits
                assert beaten.activity.commits_a_second is not None
                assert 0 < beaten.activity.commits_a_second < 100
                assert beaten.activity.late_share == 0.0

    async def test_statistics_name_the_paused_sessions(self) -> None:
        async with self.instance() as lanes, self.instance(worker=False) as asking:
            assert (await asking.statistics()).paused == {}
            for n in range(NAMES_LISTED):
                await lanes.pause(f"session:{n:03}")
            await lanes.pause_for("session:0", 60)
            await lanes.pause("session:9")  # one more than are listed
            paused = dict((await asking.statistics()).paused)
            (instance,) = await lanes.instances()
            when = paused.pop("0")
            assert when is not None
            assert 59 < when - instance.since < 100
            assert paused == {f"{n:03}": None for n in range(NAMES_LISTED - 1)}

    async def test_the_limits_of_a_lane_can_be_changed_without_a_change_of_its_pause(self) -> None:
        rate = RateLimit(9, unit="tokens")
        async with self.instance() as lanes:
            for seconds in (60.0, math.inf):
                if seconds == math.inf:
                    await lanes.pause("main")
                else:
                    await lanes.pause_for("main", seconds)
                before = (await lanes.limits())["main"]
                assert (before.paused_until == math.inf) is (seconds == math.inf)
                changed = attrs.evolve(before, max_waiting=7, rates=(rate,))
                await lanes.configure({"main": changed})
                after = (await lanes.limits())["main"]
                assert after.paused_until == before.paused_until
                assert (after.concurrency, after.max_waiting, after.rates) == (4, 7, (rate,))
            await lanes.resume("main")
            await lanes.configure({"main": attrs.evolve(before, paused_until=None)})
            assert await (await lanes.submit("echo", 1)).wait() == 1
            with self.raises(ValueError):
                await lanes.configure({"main": attrs.evolve(before, concurrency=-1)})

    async def test_a_group_is_read_as_it_was_set(self) -> None:
        groups = {"g": LaneGroup(["main", "cron"], 2, reserve={"cron": 1}, rate=RateLimit(9))}
        async with self.instance(groups=groups) as lanes:
            assert await lanes.groups() == {
                "g": GroupLimit(("main", "cron"), 2, {"cron": 1}, (RateLimit(9),))
            }

    async def test_jobs_are_listed_by_state_lane_and_session_in_pages(self) -> None:
        async with self.instance() as lanes:
            ended = await lanes.submit("echo", session="s")
            await ended.wait()
            running = await self.submitted("gate", "a", session="s")
            waiting = await lanes.submit("echo", session="s")
            parked = await lanes.submit("echo", lane="cron", delay=100)

            async def ids(name: str | None = None, **options: Any) -> list[int]:
                return [status.id for status in await lanes.jobs(name, **options)]

            everything = [ended.id, running.id, waiting.id, parked.id]
            assert await ids() == everything
            assert await ids(limit=2) == everything[:2]
            assert await ids(after=running.id) == everything[2:]
            assert await ids(after=running.id, limit=1) == everything[2:3]
            assert await ids("session:s") == everything[:3]
            assert await ids("cron") == [parked.id]
            assert await ids("main", states=[DurableState.WAITING]) == [waiting.id]
            live = [DurableState.RUNNING, DurableState.PARKED]
            assert await ids(states=live) == [running.id, parked.id]
            assert await ids(states=[]) == []
            (status,) = await lanes.jobs(after=ended.id, limit=1)
            assert status == await running.status()

    async def test_a_job_without_a_handler_here_keeps_its_place_and_is_no_crash(self) -> None:
        async with self.instance(lanes={"main": 1}) as lanes:
            await lanes.pause("main")
            for session in "ab":
                await lanes.submit("other", f"{session} new", session=session)
                await lanes.submit("echo", f"{session} after it", session=session)
            await lanes.submit("echo", "c", session="c")
            with self.raises(UnknownHandlerError):
                await lanes.submit("unknown")
        async with self.instance(only=["echo"]) as lanes:
            await lanes.resume("main")
            await self.settle()
            assert self.log == ["c"]
            now = await lanes.statistics()
            assert (now.unhandled, now.waiting) == (2, 4)
            assert (await lanes.check()).problems == ()
        async with self.instance() as lanes:
            last = await lanes.submit("echo", "last", session="b")
            await last.wait()
            assert (await lanes.statistics()).unhandled == 0
        assert self.log[1:3] == ["a new", "b new"]
        assert sorted(self.log[3:5]) == ["a after it", "b after it"]

    async def test_an_instance_that_is_no_worker_submits_and_inspects(self) -> None:
        async with self.instance(worker=False) as asking:
            job = await self.submitted("echo", "hello", session="s", key="k")
            assert (await job.status()).state is DurableState.WAITING
            assert await asking.instances() == []
            assert (await asking.drain()).finished == 0
        async with self.instance() as lanes:
            assert await lanes.job(job.id).wait() == "hello"
            async with self.instance(worker=False) as asking:
                assert await asking.job(job.id).wait() == "hello"

    async def test_two_instances_at_once_see_the_same(self) -> None:
        async with self.instance(), self.instance(worker=False) as asking:
            job = await asking.submit("echo", "hello")
            stopped = await asking.submit("gate", "stop me")
            results = []

            async def wait() -> None:
                results.append(await job.wait())

            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait)
                await self.settle()
                await self.advance(2)  # longer than the interval of polling
                await self.advance(2)
            assert results == ["hello"]
            assert await asking.cancel(stopped.id)
            await self.advance(2)
            await self.fails(stopped, JobCancelledError)

    @needs("leases")  # else there is one worker
    async def test_an_end_wakes_the_instance_that_can_run_what_waits(self) -> None:
        async with (
            self.instance(only=["gate"], lanes={"main": 1}),
            self.instance(only=["echo"], lanes={"main": 1}) as others,
        ):
            await self.submitted("gate", "a")
            waiting = await others.submit("echo", "b")
            await self.settle()
            assert self.log == ["a begins"]
            self.gate("a").set()
            # nothing else happens that could wake the other: no call, and no passage of time
            assert await waiting.wait() == "b"

    @needs("leases")  # else there is one worker
    async def test_what_an_instance_has_no_room_for_wakes_another(self) -> None:
        begun: list[str] = []

        async def meets(payload: str) -> None:
            begun.append(payload)
            self.gate(payload).set()
            await self.gate(f"both {payload[0]}").wait()

        handlers = {"meets": meets}
        async with (
            self.instance(capacity=1, handlers=handlers) as lanes,
            self.instance(capacity=1, handlers=handlers),
            self.instance(worker=False, handlers=handlers) as asking,
        ):
            # nothing else happens that could wake the other: no call, and no passage of time
            both = [Submission(name="meets", payload=f"a{n}") for n in "12"]
            jobs = list(await asking.submit_many(both))
            for n in "12":
                await self.gate(f"a{n}").wait()
            await self.opened("both a")
            for n in "12":  # the first fills the instance that is asked
                jobs.append(await lanes.submit("meets", f"b{n}"))
                await self.gate(f"b{n}").wait()
            self.gate("both b").set()
            for job in jobs:
                await job.wait()
        assert sorted(begun) == ["a1", "a2", "b1", "b2"]

    async def test_leaving_gives_running_jobs_back_and_counts_as_nothing(self) -> None:
        async with self.instance() as lanes:
            job = await lanes.submit("gate", "a", session="s")
            await self.submitted("gate", "b", session="s")
            instances = await lanes.instances()
        assert self.log == ["a begins", "a is cancelled"]
        with self.raises(LanesClosedError):
            await lanes.submit("echo")
        self.open("a", "b")
        async with self.instance() as lanes:
            status = await lanes.job(job.id).status()
            assert status.crashes == 0
            instances += await lanes.instances()
            assert len({instance.id for instance in instances}) == len(instances) == 2
            await lanes.job(job.id).wait()
            status = await lanes.job(job.id).status()
            assert (status.attempt, status.crashes) == (1, 0)

    async def test_an_error_in_the_block_cancels_running_jobs_and_gives_them_back(self) -> None:
        with self.raises(ExceptionGroup):
            async with self.instance() as lanes:
                job = await self.submitted("gate", "a")
                await self.bad("in the block")
        async with self.instance() as lanes:
            self.gate("a").set()
            await lanes.job(job.id).wait()
            assert (await lanes.job(job.id).status()).crashes == 0

    async def test_drain_lets_work_end_and_claims_nothing_more(self) -> None:
        async def submitting(payload: Any) -> Any:
            await self.gate("go on").wait()
            return (await lanes.submit("echo", "from inside")).id

        async with self.instance(lanes={"main": 1}, handlers={"submitting": submitting}) as lanes:
            job = await self.submitted("submitting")
            await lanes.submit("echo", "waits")
            reports = []

            async def drain() -> None:
                reports.append(await lanes.drain())

            async with trio.open_nursery() as nursery:
                nursery.start_soon(drain)
                await self.settle()
                with self.raises(LanesClosedError):
                    await lanes.submit("echo", "from outside")
                self.gate("go on").set()
            assert isinstance(await job.wait(), int)
            assert (reports[0].finished, reports[0].cancelled) == (1, 0)
            assert (await lanes.statistics()).waiting == 2
            assert self.log == []

    async def test_a_handler_knows_its_run(self) -> None:
        async def know(payload: Any) -> Any:
            run = this_run()
            run.progress()
            return [run.id, run.name, run.session, run.lane, run.attempt, run.crashes, run.fence]

        assert current_job() is None
        async with self.instance(handlers={"know": know}) as lanes:
            one = await lanes.submit("know", session="s")
            two = await lanes.submit("know", session="s", lane="cron")
            first, second = await one.wait(), await two.wait()
            assert first[:6] == [one.id, "know", "s", "main", 1, 0]
            assert second[:6] == [two.id, "know", "s", "cron", 1, 0]
            assert second[6] > first[6]
