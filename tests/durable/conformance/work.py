"""Tests of work: jobs are accepted, ordered, run, retried and remembered."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from trio_lanes import LaneConfig, LaneFullError, LaneGroup, RateLimit, UnknownLaneError
from trio_lanes.durable import (
    DurableJobError,
    DurableState,
    JobDeadError,
    KeyConflictError,
    NoRetry,
    PayloadError,
    Released,
    ResultGoneError,
    Retry,
    RetryPolicy,
    Submission,
)

from .bench import ONCE, Bench, needs, new_job, this_run

SOON = RetryPolicy(max_attempts=3, backoff=(1.0, 60.0), jitter=0)


def rounded(waits: Mapping[str, float]) -> dict[str, int]:
    """Return the waits in whole seconds, without those of less than half a second."""
    found = {cause: round(seconds) for cause, seconds in waits.items()}
    return {cause: seconds for cause, seconds in found.items() if seconds}


class WorkStories(Bench):
    async def test_a_job_runs_and_every_waiting_task_gets_its_result(self) -> None:
        async with self.instance() as lanes:
            job = await lanes.submit("echo", {"text": "hé\u2028", "n": [1, None, 2.5, True]})
            assert await job.wait() == {"text": "hé\u2028", "n": [1, None, 2.5, True]}
            assert await lanes.job(job.id).wait() == await job.wait()
            assert (await job.status()).state is DurableState.SUCCEEDED

    async def test_each_run_has_the_headers_of_its_job(self) -> None:
        async with self.playing() as store:
            headers = '{"traceparent": "00-é"}'
            claims = await store.begin(new_job(headers=headers), new_job())
            assert [claim.headers for claim in claims] == [headers, None]
            (again,) = (await store.end(claims[0], Released(), 1)).claims
            assert (again.id, again.headers) == (claims[0].id, headers)

    async def test_a_session_runs_one_at_a_time_in_order_of_submission(self) -> None:
        async with self.instance():
            jobs = await self.gates("abc", session="s")
            for number, job in enumerate(jobs):
                assert self.begun() == [*"abc"[: number + 1]]
                await self.opened("abc"[number])
                await job.wait()

    async def test_a_lane_never_runs_more_than_its_limit(self) -> None:
        async with self.instance(lanes={"main": 2}) as lanes:
            await self.gates("abcd")
            assert self.begun() == ["a", "b"]
            await lanes.configure({"main": 3})
            await self.settle()
            assert self.begun() == ["a", "b", "c"]
            await lanes.configure({"main": 1})
            for name, begun in (("a", "abc"), ("b", "abc"), ("c", "abcd")):
                await self.opened(name)
                assert self.begun() == [*begun]

    async def test_an_instance_runs_no_more_than_its_capacity(self) -> None:
        async with self.instance(lanes={"main": 9, "cron": 9}, capacity=2):
            await self.gates("abc")
            await self.gates("d", lane="cron")
            assert len(self.begun()) == 2
            await self.opened("a")
            assert set(self.begun()) >= {"a", "b", "d"}  # lanes take turns
            assert len(self.begun()) == 3

    async def test_a_session_with_many_jobs_costs_the_others_nothing(self) -> None:
        async with self.instance(lanes={"main": 1}) as lanes:
            await lanes.pause("main")
            big = [Submission(name="echo", payload=n, session="big") for n in range(50)]
            jobs = await lanes.submit_many(big)
            assert [job.id for job in jobs] == sorted(job.id for job in jobs)
            for n in range(5):
                await lanes.submit("echo", f"small {n}", session=f"small {n}")
            await lanes.resume("main")
            await jobs[-1].wait()
            assert self.log == [0, *(f"small {n}" for n in range(5)), *range(1, 50)]

    async def test_priority_never_reorders_a_session(self) -> None:
        async with self.instance(lanes={"main": 1}) as lanes:
            await lanes.pause("main")
            await lanes.submit("echo", "first", session="s", priority=-1)
            job = await lanes.submit("echo", "second", session="s", priority=1)
            await lanes.resume("main")
            await job.wait()
            assert self.log == ["first", "second"]

    async def test_a_delayed_job_joins_the_tail_when_due_and_blocks_no_other_job(self) -> None:
        async with self.instance() as lanes:
            late = await lanes.submit("echo", "late", session="s", delay=2)
            status = await late.status()
            assert (status.state, status.why) == (DurableState.PARKED, "delay")
            assert status.until is not None
            await (await lanes.submit("echo", "a", session="s")).wait()
            await lanes.submit("gate", "b", session="s")
            await lanes.submit("echo", "c", session="s")
            await self.advance(2.1)
            assert (await late.status()).state is DurableState.WAITING
            self.gate("b").set()
            await late.wait()
            assert self.log == ["a", "b begins", "b ends", "c", "late"]

    async def test_a_longer_delay_puts_off_no_shorter_one(self) -> None:
        async with self.instance():
            for delay in (4, 2, 40):
                await self.submitted("echo", delay, delay=delay)
            await self.expect((2.1, [2]), (2, [2, 4]))

    async def test_what_falls_due_while_no_worker_lives_is_not_overtaken(self) -> None:
        later = RetryPolicy(backoff=(2.0, 2.0), jitter=0, order="requeue")
        async with self.instance() as lanes:
            dead = await lanes.submit("once", "dead", session="s", retry=ONCE)
            await self.submitted("once", "again", session="s", retry=later)
            for n in range(2):
                await lanes.submit("echo", f"delayed {n}", session="s", delay=2.5 - n)
            assert self.log == ["dead", "again"]
        async with self.instance(worker=False) as lanes:
            await self.advance(3)
            await lanes.submit("echo", "submitted", session="s")
            await lanes.submit("echo", "late", session="s", delay=1.5)
            await self.advance(2)
            assert await lanes.requeue(dead.id)
        async with self.instance() as lanes:
            await lanes.job(dead.id).wait()
        assert self.log[2:] == ["delayed 1", "again", "delayed 0", "submitted", "late", "dead"]

    async def test_between_attempts_the_head_blocks_its_session_alone(self) -> None:
        failures = iter([ValueError("once"), ValueError("twice")])

        async def flaky(payload: Any) -> Any:
            run = this_run()
            self.log.append(run.attempt)
            for failure in failures:
                raise failure
            return run.attempt

        async with self.instance(handlers={"flaky": flaky}, retry=SOON) as lanes:
            job = await lanes.submit("flaky", session="s")
            after = await lanes.submit("echo", "after", session="s")
            await (await lanes.submit("echo", "other", session="t")).wait()
            await self.settle()
            status = await job.status()
            assert (status.state, status.why) == (DurableState.PARKED, "retry")
            await self.advance(1.1)
            await self.advance(1.1)
            assert self.log in ([1, "other", 2], ["other", 1, 2])
            await self.advance(1.0)
            assert await job.wait() == 3
            await after.wait()
            assert self.log[-2:] == [3, "after"]

    async def test_retry_parks_it_that_long_and_no_retry_fails_it(self) -> None:
        async def later(payload: Any) -> Any:
            run = this_run()
            self.log.append(run.attempt)
            if len(self.log) < 5:
                raise Retry(after=0.5, counts=False)
            return "done"

        async def never(payload: Any) -> None:
            raise NoRetry("it is no use")

        async with self.instance(handlers={"later": later, "never": never}) as lanes:
            job = await lanes.submit("later")
            for _ in range(4):
                await self.settle()
                await self.advance(0.6)
            assert await job.wait() == "done"
            assert self.log == [1, 1, 1, 1, 1]
            lost = await lanes.submit("never")
            assert (await self.fails(lost, DurableJobError)).message == "it is no use"

    async def test_a_failure_that_is_not_retried_ends_the_job_at_once(self) -> None:
        async def bad(payload: Any) -> None:
            raise KeyError(payload)

        policy = RetryPolicy(retry_on=ValueError)
        async with self.instance(handlers={"bad": bad}, retry=policy) as lanes:
            job = await lanes.submit("bad", "x")
            error = await self.fails(job, DurableJobError)
            assert (error.type, error.message) == ("KeyError", "'x'")
            assert "in bad" in error.traceback
            assert isinstance(error.__cause__, KeyError)
            status = await job.status()
            assert status.state is DurableState.FAILED
            assert status.error == "KeyError: 'x'"

    async def test_a_job_whose_attempts_are_used_up_is_dead_and_its_session_goes_on(self) -> None:
        async with self.instance() as lanes:
            policy = RetryPolicy(max_attempts=2, backoff=(1.0, 1.0), jitter=0)
            job = await lanes.submit("bad", session="s", retry=policy, key="k")
            after = await self.submitted("echo", "after", session="s")
            await self.advance(1.1)
            await self.fails(job, JobDeadError)
            await after.wait()
            (dead,) = await lanes.dead("session:s")
            assert (dead.id, dead.attempt) == (job.id, 2)
            assert [one.id for one in await lanes.dead("main")] == [job.id]
            assert await lanes.dead("cron") == []
            assert (await lanes.statistics()).dead == 1
            assert (await lanes.submit("bad", session="s", key="k")).id == job.id
            assert not await lanes.cancel(job.id)
            assert await lanes.purge(job.id) == 1
            assert await lanes.purge(job.id) == 0
            await self.fails(job, ResultGoneError)
            assert (await lanes.submit("echo", session="s", key="k")).id != job.id

    async def test_a_failed_job_can_be_run_again_until_it_is_forgotten(self) -> None:
        async def send(payload: Any) -> Any:
            run = this_run()
            if run.checkpoint_data is None:
                await run.checkpoint("began")
                raise NoRetry("a mistake of today")
            return [payload, run.attempt, run.checkpoint_data]

        async with self.instance(handlers={"send": send}, result_ttl=10) as lanes:
            one = await lanes.submit("send", {"the only": "copy"}, session="s", key="k")
            two = await lanes.submit("send", 2, lane="cron")
            for job in (one, two):
                await self.fails(job, DurableJobError)
            assert await lanes.dead() == []
            assert [job.id for job in await lanes.dead(failed=True)] == [one.id, two.id]
            assert [job.id for job in await lanes.dead(failed=True, limit=1)] == [one.id]
            assert [job.id for job in await lanes.dead(failed=True, after=one.id)] == [two.id]
            assert [job.id for job in await lanes.dead("cron", failed=True)] == [two.id]
            assert [job.id for job in await lanes.dead("session:s", failed=True)] == [one.id]
            assert await lanes.requeue(one.id)
            assert await one.wait() == [{"the only": "copy"}, 1, "began"]
            assert not await lanes.requeue(one.id)
            assert (
                await lanes.submit("send", {"the only": "copy"}, session="s", key="k")
            ).id == one.id
            assert await lanes.purge() == 0
            assert await lanes.purge(failed=True) == 1
            three = await lanes.submit("send", 3)
            four = await lanes.submit("send", 4)
            for job in (three, four):
                await self.fails(job, DurableJobError)
            assert await lanes.purge(three.id) == 1
            await self.advance(10.1)
            assert await lanes.dead(failed=True) == []
            assert not await lanes.requeue(four.id)
            assert await lanes.purge(four.id) == 0
            assert (await lanes.check()).problems == ()

    async def test_a_dead_job_that_is_held_keeps_its_place_until_a_person_decides(self) -> None:
        async with self.instance(retry=ONCE, on_dead="hold") as lanes:
            dead = [("again", "s"), ("away", "t"), ("cleared", "u")]
            jobs = [await lanes.submit("once", name, session=session) for name, session in dead]
            job = jobs[0]
            after = await lanes.submit("echo", "after", session="s")
            next_t = await lanes.submit("echo", "t goes on", session="t")
            for one in jobs:
                await self.fails(one, JobDeadError)
            await self.settle()
            assert sorted(self.log) == ["again", "away", "cleared"]
            assert await lanes.requeue(job.id)
            assert not await lanes.requeue(job.id)
            await job.wait()
            await after.wait()
            assert self.log[-2:] == ["again", "after"]
            assert await lanes.purge(name="session:t") == 1
            await next_t.wait()
            assert await lanes.clear("session:u") == 0
            await (await lanes.submit("echo", "u goes on", session="u")).wait()
            assert await lanes.purge() == 1

    async def test_a_requeued_job_goes_to_the_tail_with_all_its_attempts(self) -> None:
        async with self.instance(retry=ONCE) as lanes:
            job = await lanes.submit("once", "x", session="s")
            await self.fails(job, JobDeadError)
            await self.submitted("gate", "before", session="s")
            assert await lanes.requeue(job.id)
            assert (await job.status()).attempt == 0
            self.gate("before").set()
            await job.wait()
            assert self.log == ["x", "before begins", "before ends", "x"]

    async def test_a_timeout_is_an_attempt(self) -> None:
        async with self.instance(retry=ONCE):
            job = await self.submitted("gate", "slow", timeout=1)
            await self.advance(1.1)
            assert (await self.fails(job, JobDeadError)).type == "trio_lanes.JobTimeoutError"
            assert self.log == ["slow begins", "slow is cancelled"]

    async def test_a_checkpoint_is_found_by_the_next_attempt(self) -> None:
        async def careful(payload: Any) -> Any:
            run = this_run()
            if run.checkpoint_data is None:
                with self.raises(PayloadError):
                    await run.checkpoint(object())
                await run.checkpoint({"page": 7})
                raise ValueError("no")
            return run.checkpoint_data

        async with self.instance(handlers={"careful": careful}) as lanes:
            job = await lanes.submit("careful", retry=RetryPolicy(backoff=(0.0, 0.0)))
            assert await job.wait() == {"page": 7}

    async def test_a_lent_slot_is_free_and_taken_back_before_all_that_wait(self) -> None:
        async def parent(payload: Any) -> None:
            run = this_run()
            async with run.yield_slot():
                async with run.yield_slot():  # the slot is lent already
                    self.log.append("lent")
                    await self.gate("parent").wait()
            self.log.append("has it back")

        async with self.instance(lanes={"main": 1}, handlers={"parent": parent}) as lanes:
            job = await lanes.submit("parent", session="s")
            await lanes.submit("gate", "a")
            await lanes.submit("gate", "b")
            await self.submitted("echo", "same session", session="s")
            assert self.log == ["lent", "a begins"]
            await self.opened("parent")
            assert self.log == ["lent", "a begins"]
            self.gate("a").set()
            await job.wait()
            assert self.log[:4] == ["lent", "a begins", "a ends", "has it back"]
            await self.opened("b")
            assert self.log[-1] == "same session"

    async def test_a_job_that_waits_starts_as_soon_as_a_run_lends_its_slot(self) -> None:
        async def lender(payload: Any) -> None:
            run = this_run()
            await self.gate("lend").wait()
            async with run.yield_slot():
                await self.gate("taken").wait()

        async def taker(payload: Any) -> None:
            self.gate("taken").set()

        handlers = {"lender": lender, "taker": taker}
        async with self.instance(lanes={"main": 1}, handlers=handlers) as lanes:
            job = await lanes.submit("lender")
            await self.submitted("taker")
            self.gate("lend").set()
            # nothing else happens that could wake a worker: no call, and no passage of time
            await job.wait()

    async def test_the_status_says_where_the_wait_went(self) -> None:
        policy = RetryPolicy(max_attempts=3, backoff=(100.0, 100.0), jitter=0.0)
        async with self.instance(lanes={"main": 9}, retry=policy) as lanes:
            head = await lanes.submit("gate", "head", session="s")
            second = await self.submitted("gate", "second", session="s")
            late = await lanes.submit("gate", "late", delay=20)
            retried = await self.submitted("once")
            assert rounded((await second.status()).waits) == {}
            if not self.virtual:
                return
            await lanes.pause("main")
            await self.advance(30)
            assert rounded((await head.status()).waits) == {}, await head.status()
            assert rounded((await second.status()).waits) == {"session": 30}
            assert rounded((await late.status()).waits) == {"delay": 20, "pause": 10}
            assert rounded((await retried.status()).waits) == {"retry": 30}
            await self.opened("head")
            await self.advance(4)
            assert rounded((await second.status()).waits) == {"session": 30, "pause": 4}
            await lanes.resume("main")
            await self.settle()
            await self.advance(70)
            self.open("second", "late")
            await retried.wait()
            await self.settle()
            for job, waits, by in (
                (head, {}, [None]),
                (second, {"session": 30, "pause": 4}, ["session"]),
                (late, {"delay": 20, "pause": 14}, ["delay"]),
                (retried, {"retry": 100, "queue": 4}, [None, "retry"]),
            ):
                status = await job.status()
                if job is not retried:
                    assert rounded(status.waits) == waits
                assert [run.due_by for run in status.history] == by
                runs = sum((run.ended_at or 0) - run.started_at for run in status.history)
                ended_at = status.history[-1].ended_at
                assert ended_at is not None
                all_of_it = ended_at - status.submitted_at
                assert abs(sum(status.waits.values()) + runs - all_of_it) < 0.001

    @needs("virtual time")
    async def test_each_second_of_a_wait_in_a_lane_has_the_cause_that_it_had_then(self) -> None:
        rate = RateLimit(1, per=9.0, algorithm="sliding")
        limits = {"main": LaneConfig(concurrency=1, rate=rate), "cron": 1, "t:*": 9}
        groups = {"g": LaneGroup(["main", "cron"], concurrency=1)}
        async with self.instance(lanes=limits, groups=groups) as lanes:
            await self.submitted("gate", "first")
            await lanes.pause("main")
            await lanes.pause_for("t:*", 2)
            jobs = [await self.submitted("echo", lane=lane) for lane in ("main", "cron", "t:a")]
            await self.advance(3)
            await lanes.resume("main")
            await self.settle()
            await self.advance(2)
            assert rounded((await jobs[0].status()).waits) == {"pause": 3, "slots": 2}
            await self.opened("first")
            await self.advance(4)
            assert [rounded((await job.status()).waits) for job in jobs] == [
                {"pause": 3, "slots": 2, "rate": 4},
                {"group": 5},
                {"pause": 2, "queue": 1},  # no instance looked before
            ]

    @needs("virtual time")
    async def test_the_causes_of_a_lane_are_kept_for_so_many_changes(self) -> None:
        async with self.instance(worker=False) as lanes:  # so that no claim looks
            job = await lanes.submit("echo")
            for _ in range(22):
                await lanes.pause("main")
                await self.advance(1)
                await lanes.resume("main")
                await self.advance(1)
            assert rounded((await job.status()).waits) == {"pause": 10, "queue": 34}

    async def test_the_same_key_is_the_same_job_until_it_is_forgotten(self) -> None:
        async with self.instance(result_ttl=5) as lanes:
            job = await lanes.submit("echo", {"a": 1}, session="s", key="k")
            assert (await lanes.submit("echo", {"a": 1}, session="s", key="k")).id == job.id
            await job.wait()
            assert (await lanes.submit("echo", {"a": 1}, session="s", key="k")).id == job.id
            assert self.log == [{"a": 1}]
            two = await lanes.submit("echo", {"a": {"b": 1, "c": 2}, "d": 3}, key="two")
            again = await lanes.submit("echo", {"d": 3, "a": {"c": 2, "b": 1}}, key="two")
            assert again.id == two.id  # fields have no order
            await two.wait()
            del self.log[1:]
            for changes in (
                {"name": "other"},
                {"session": "t"},
                {"lane": "cron"},
                {"payload": {"a": 2}},
            ):
                first = {"name": "echo", "payload": {"a": 1}, "session": "s", "key": "k"}
                asked: dict[str, Any] = first | changes
                with self.raises(KeyConflictError) as caught:
                    await lanes.submit(**asked)
                assert (caught[0].id, caught[0].field) == (job.id, next(iter(changes)))
            assert [one.id for one in await lanes.jobs()] == [job.id, two.id]
            await self.advance(5.1)
            await self.fails(job, ResultGoneError)
            with self.raises(ResultGoneError):
                await job.status()
            assert await lanes.jobs() == []
            assert (await lanes.submit("echo", "other", key="k")).id != job.id

    async def test_a_key_is_its_jobs_in_every_state_until_that_is_purged(self) -> None:
        policy = RetryPolicy(max_attempts=2, backoff=(1.0, 1.0), jitter=0.0)
        async with self.instance(retry=policy) as lanes:

            async def again() -> int:
                return (await lanes.submit("bad", 1, session="s", key="k", delay=1)).id

            id = await again()
            for state in (DurableState.PARKED, DurableState.PARKED, DurableState.DEAD):
                assert await self.state(id) is state
                assert await again() == id
                await self.advance(1.1)
            assert self.log == [1, 1]
            assert await lanes.requeue(id)
            await self.settle()
            assert (await again(), self.log) == (id, [1, 1, 1])
            await self.advance(1.1)
            assert await self.state(id) is DurableState.DEAD
            assert await lanes.purge(id) == 1
            assert await again() != id

            gate = await self.submitted("gate", "a", key="running")
            assert (await lanes.submit("gate", "a", key="running")).id == gate.id
            assert self.begun() == ["a"]

    async def test_many_are_accepted_together_or_not_at_all(self) -> None:
        async with self.instance() as lanes:
            await lanes.pause("main")
            one = Submission(name="echo", payload=1, key="k")
            two, three = await lanes.submit_many([one, one])
            assert two.id == three.id
            other = Submission(name="echo", payload=2, key="k")
            new = Submission(name="echo", payload=3, key="new")
            different = Submission(name="echo", payload=4, key="new")
            for batch, error in (
                ([new, other], KeyConflictError),
                ([new, different], KeyConflictError),
                ([new, Submission(name="echo", lane="nowhere")], UnknownLaneError),
            ):
                with self.raises(error):
                    await lanes.submit_many(batch)
                assert (await lanes.statistics()).waiting == 1
            assert await lanes.submit_many([]) == []

    async def test_a_lane_that_is_full_accepts_nothing(self) -> None:
        async with self.instance(lanes={"main": LaneConfig(max_waiting=2, paused=True)}) as lanes:
            with self.raises(LaneFullError):
                await lanes.submit_many([Submission(name="echo", payload=n) for n in range(3)])
            assert (await lanes.statistics()).waiting == 0
            await lanes.submit("echo", 1, delay=5)
            await lanes.submit("echo", 2)
            with self.raises(LaneFullError):
                await lanes.submit("echo", 3)
            await lanes.configure({"main": LaneConfig(max_waiting=math.inf)})
            await (await lanes.submit("echo", 3)).wait()

    async def test_a_payload_that_is_not_json_or_too_large_is_refused_alone(self) -> None:
        async def too_much(payload: Any) -> Any:
            self.log.append("ran")
            return "x" * most if payload == "large" else {1, 2}

        async with self.instance(handlers={"too_much": too_much}) as lanes:
            most = lanes._store.max_payload
            for payload in (object(), math.nan, "x" * most, "\ud800"):
                with self.raises(PayloadError):
                    await lanes.submit("echo", payload)
            assert (await lanes.statistics()).waiting == 0
            for kind in ("large", "no json"):
                job = await lanes.submit("too_much", kind)
                await self.fails(job, DurableJobError)
                assert (await job.status()).state is DurableState.FAILED
            assert self.log == ["ran", "ran"]
