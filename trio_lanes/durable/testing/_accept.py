"""Tests of acceptance: accepted and refused submissions, and keys."""

from __future__ import annotations

import math
from typing import Any

from ... import LaneConfig, LaneFullError, UnknownLaneError
from .. import (
    DurableJobError,
    DurableState,
    KeyConflictError,
    PayloadError,
    ResultGoneError,
    RetryPolicy,
    Submission,
)
from ._bench import Bench


class AcceptStories(Bench):
    """Tests of acceptance."""

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
