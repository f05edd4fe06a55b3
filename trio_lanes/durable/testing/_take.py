"""Tests of the queue of a session as its run sees it, and of the jobs that a run takes."""

from __future__ import annotations

import json
from typing import Any

import attrs

from ... import JobCancelledError
from .. import (
    DurableState,
    JobTakenError,
    PayloadError,
    Postponed,
    Retry,
    RetryPolicy,
    Submission,
)
from ..acts.runs import Checkpoint, Take
from ..store import STEP_BYTES
from ._bench import Bench, new_job, this_run

TAKEN = json.dumps({"by": 1, "reason": "collected"})
WAITING, PARKED, RUNNING = DurableState.WAITING, DurableState.PARKED, DurableState.RUNNING


def one(payload: str = "1", session: str = "s", **options: Any) -> Submission:
    return Submission(name="echo", payload=payload, session=session, **options)


class TakeStories(Bench):
    """Tests of the queue of a session, and of taking jobs from it."""

    async def test_the_queue_of_a_session_has_its_jobs_with_their_payloads(self) -> None:
        jobs = [new_job("a"), new_job("b", key="k"), new_job("c", delay=9.0)]
        of_s = [attrs.evolve(job, session="s") for job in jobs]
        async with self.doomed(*of_s[:2], new_job("x", session="t"), of_s[2]) as claims:
            assert [claim.payload for claim in claims] == ['"a"', '"x"']
            async with self.instance(worker=False) as lanes:
                queue = await lanes.queue("session:s")
                seen = [(job.name, job.payload, job.key) for job in queue]
                assert seen == [("echo", job.payload, job.key) for job in jobs]
                assert [job.state for job in queue] == [RUNNING, WAITING, PARKED]
                assert all(0 <= job.age < 60 for job in queue)
                assert [job.payload for job in await lanes.queue("s", limit=2)] == ['"a"', '"b"']
                assert await lanes.queue("s", limit=0) == []
                assert await lanes.queue("unknown") == []

    async def test_a_queue_has_at_most_the_bytes_of_a_step(self) -> None:
        text = "x" * (STEP_BYTES // 5)
        async with self.instance(worker=False) as lanes:
            await lanes.submit_many([one(text) for _ in range(6)])
            assert len(await lanes.queue("s")) == 4

    async def test_a_job_of_a_queue_has_begun_if_an_attempt_or_a_crash_was_counted(self) -> None:
        async with self.instance(worker=False) as lanes:
            async with self.playing() as store:
                claims = await store.begin(*(new_job(session=session) for session in "abcd"))
                await store.do(Checkpoint(claims[0].id, claims[0].fence, "1"))
                for n in range(3):  # and the last run counts a crash
                    await store.end(claims[n], Postponed(9.0, n == 1, False))
            begun = [[job.begun for job in await lanes.queue(session)] for session in "abcd"]
            assert begun == [[True], [True], [False], [True]]

    async def test_a_run_takes_jobs_of_its_session_and_keeps_data_in_one_act(self) -> None:
        async def taker(payload: Any) -> Any:
            run = this_run()
            if run.checkpoint_data is None:
                queue = await run.queue()
                assert queue[0].id == run.id
                assert await run.take(
                    {job.id: "collected" for job in queue[1:3]},
                    [json.loads(job.payload) for job in queue[1:3]],
                )
                assert run.checkpoint_data == ["b", "c"]
                raise ValueError("again")
            return run.checkpoint_data

        async with self.instance(handlers={"taker": taker}, lanes={"main": 1}) as lanes:
            await lanes.pause("main")
            first = await lanes.submit("taker", session="s", retry=RetryPolicy(backoff=(0.0, 0.0)))
            others = await lanes.submit_many([one("b"), one("c", delay=60.0), one("d")])
            await lanes.resume("main")
            assert await first.wait() == ["b", "c"]
            for other in others[:2]:
                error = await self.fails(other, JobTakenError)
                assert (error.by, error.reason) == (first.id, "collected")
                assert isinstance(error, JobCancelledError)
                assert str(error) == (f"job {first.id} of the same session has taken it: collected")
            assert await others[2].wait() == "d"
            assert (await lanes.check()).problems == ()

    async def test_a_run_takes_all_jobs_or_none(self) -> None:
        async with self.playing() as store, self.instance(worker=False) as lanes:
            ids = await store.enqueue([new_job(session=session) for session in "ssstt"])
            run, other = await store.claim(9)
            assert (run.id, other.id) == (ids[0], ids[3])
            await lanes.cancel(ids[2])
            for wrong in (ids[0], *ids[2:], 10**15):
                taken = {ids[1]: TAKEN, wrong: TAKEN}
                assert await store.do(Take(run.id, run.fence, "1", taken)) is False
            assert await self.state(ids[1]) is WAITING
            assert not (await lanes.queue("s"))[0].begun
            assert await store.twice(Take(run.id, run.fence, "2", {ids[1]: TAKEN}))
            assert await self.state(ids[1]) is DurableState.CANCELLED
            assert (await lanes.queue("s"))[0].begun
            assert (await store.end(run, room=9)).claims == ()
            assert await store.do(Take(run.id, run.fence, "3", {})) is None

    async def test_jobs_without_a_session_are_not_taken(self) -> None:
        seen: list[Any] = []

        async def taker(payload: Any) -> None:
            run = this_run()
            seen.append(await run.queue())
            seen.append(await run.take({payload: "mine"}, None))
            with self.raises(PayloadError):
                await run.take({}, object())
            with self.raises(TypeError):
                await run.take({"1": "mine"}, None)  # type: ignore[dict-item]

        async with self.instance(handlers={"taker": taker}, lanes={"main": 4, "cron": 1}) as lanes:
            await lanes.pause("cron")
            waiting = await lanes.submit("echo", lane="cron")
            await (await lanes.submit("taker", waiting.id)).wait()
            assert seen == [[], False]
            assert await self.state(waiting.id) is WAITING

    async def test_a_cancel_that_spares_running_jobs_ends_only_jobs_that_wait(self) -> None:
        async with self.instance() as lanes:
            running = await lanes.submit("gate", "a", session="s")
            waiting = await self.submitted("echo", session="s")
            assert not await lanes.cancel(running.id, running=False)
            assert await lanes.cancel(waiting.id, running=False)
            assert not await lanes.cancel(waiting.id, running=False)
            self.gate("a").set()
            assert await running.wait() == "a"

    async def test_a_retry_says_whether_its_job_keeps_its_place(self) -> None:
        async def turns(payload: Any) -> None:
            self.log.append(payload)
            if payload == "tail" and self.log.count("tail") == 1:
                raise Retry(0, counts=False, order="requeue")
            if payload == "place" and self.log.count("place") == 1:
                raise Retry(0, order="keep")

        async with self.instance(handlers={"turns": turns}, lanes={"main": 1}) as lanes:
            await lanes.pause("main")
            policy = RetryPolicy(order="requeue")
            jobs = [
                await lanes.submit("turns", payload, session="s", retry=policy)
                for payload in ("tail", "place", "last")
            ]
            await lanes.resume("main")
            for job in jobs:
                await job.wait()
            assert self.log == ["tail", "place", "place", "last", "tail"]
            assert (await jobs[0].status()).attempt == 1
        with self.raises(ValueError):
            Retry(0, order="first")  # type: ignore[arg-type]
