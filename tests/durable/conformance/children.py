"""Tests of children: jobs that a run submits and waits for, over its attempts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio

from trio_lanes import JobCancelledError, LaneDeadlockError
from trio_lanes.durable import (
    Children,
    DurableJob,
    DurableJobError,
    DurableState,
    KeyConflictError,
    Retry,
    RetryPolicy,
    UnknownHandlerError,
)

from .bench import Bench, new_job, this_run

WAITING, RUNNING, SUCCEEDED = DurableState.WAITING, DurableState.RUNNING, DurableState.SUCCEEDED


class ChildrenStories(Bench):
    def family(self, fn: Callable[[Children], Any], **options: Any) -> Any:
        """Return an instance whose handler ``parent`` calls a function with its children."""

        async def parent(payload: Any) -> Any:
            async with this_run().children() as jobs:
                return await fn(jobs)

        return self.instance(handlers={"parent": parent}, **options)

    async def test_a_run_has_the_results_of_its_children_in_order_of_submission(self) -> None:
        async def parent(jobs: Children) -> Any:
            for name in "ab":
                await jobs.submit("gate", name, session=name)
            await jobs.submit("echo", "c", key="third", lane="cron")
            self.log.append(this_run().children_ended)
            assert repr(jobs).endswith(f"of job {this_run().id}, 0 of 3 ended>")
            results = await jobs.wait_all()
            assert await jobs.wait_all() == results
            return results, this_run().children_ended

        # one slot, which the parent lends
        async with self.family(parent, lanes={"main": 1, "cron": 1}) as lanes:
            job = await self.submitted("parent", session="p")
            assert sorted(map(str, self.log)) == ["(0, 3)", "a begins", "c"]
            family = [one for one in await lanes.jobs() if one.id != job.id]
            assert [one.key for one in family] == [f"{job.id}/{n}" for n in (1, 2, "third")]
            await self.opened("a")
            await self.opened("b")
            assert await job.wait() == [["a", "b", "c"], [3, 3]]

    async def test_the_next_attempt_finds_the_children_and_starts_none_twice(self) -> None:
        ids: list[list[int]] = []

        async def parent(jobs: Children) -> Any:
            one = await jobs.submit("echo", "a")
            two = await jobs.submit("echo", "b", key="b")
            ids.append([one.id, two.id])
            results = await jobs.wait_all()
            if len(ids) < 3:
                raise Retry(after=0)
            assert await (await jobs.submit("echo", "c")).wait() == "c"
            return results

        async with self.family(parent, retry=RetryPolicy(max_attempts=3)) as lanes:
            assert await (await lanes.submit("parent")).wait() == ["a", "b"]
            assert ids == [ids[0]] * 3
            assert sorted(self.log) == ["a", "b", "c"]

    async def test_children_outlive_the_death_of_their_parent(self) -> None:
        async def parent(jobs: Children) -> Any:
            for name in ("done", "runs", "late"):
                await jobs.submit("echo", name)
            return await jobs.wait_all()

        names = ("parent", "echo")
        async with self.playing(dies=True, names=names) as store:
            (claim,) = await store.begin(new_job(name="parent"))
            # what an instance does that runs the parent, until it is killed
            family = [
                new_job(name, key=f"{claim.id}/{n}") for n, name in ((1, "done"), (2, "runs"))
            ]
            done, runs = await store.begin(*family)
            await store.end(done)
        await self.lease_over()
        async with self.family(parent) as lanes:
            assert await lanes.job(claim.id).wait() == [1, "runs", "late"]
            assert sorted(self.log) == ["late", "runs"]
            assert len(await lanes.jobs()) == 4
            assert (await lanes.job(runs.id).status()).crashes == 1

    async def test_the_first_that_ends_is_returned_once_and_the_block_waits_for_the_rest(
        self,
    ) -> None:
        async def parent(jobs: Children) -> Any:
            for name in "abcd":
                await jobs.submit("gate", name)
            for _ in range(2):
                first: DurableJob = await jobs.wait_first()
                self.log.append(await first.wait())
            return "returned"

        async with self.family(parent, lanes={"main": 5}):
            job = await self.submitted("parent")
            await self.opened("c")
            assert self.log[-2:] == ["c ends", "c"]
            await self.opened("a")
            assert self.log[-2:] == ["a ends", "a"]
            assert await self.state(job.id) is RUNNING
            self.open("b", "d")
            assert await job.wait() == "returned"

    async def test_of_several_that_have_ended_the_earliest_submission_is_first(self) -> None:
        async def parent(jobs: Children) -> Any:
            ids = [(await jobs.submit("bad", n)).id for n in range(3)]
            with self.raises(ExceptionGroup):
                await jobs.wait_all()
            found = [(await jobs.wait_first()).id for _ in ids]
            with self.raises(LookupError):
                await jobs.wait_first()
            return found == ids

        async with self.family(parent, retry=RetryPolicy(max_attempts=1)) as lanes:
            assert await (await lanes.submit("parent")).wait()

    async def test_failures_of_children_are_raised_together_when_all_have_ended(self) -> None:
        async def parent(jobs: Children) -> Any:
            await jobs.submit("bad", 1)
            cancelled = await jobs.submit("echo", 2, delay=1000)
            await jobs.submit("gate", "slow")
            await self.lanes.cancel(cancelled.id)
            with self.raises(ExceptionGroup) as caught:
                await jobs.wait_all()
            return [type(error).__name__ for error in caught[0].exceptions]

        async with self.family(parent, retry=RetryPolicy(max_attempts=1)):
            job = await self.submitted("parent")
            assert await self.state(job.id) is RUNNING
            await self.opened("slow")
            assert await job.wait() == ["JobDeadError", "JobCancelledError"]

    async def test_a_child_that_cannot_be_is_refused_and_takes_no_number(self) -> None:
        async def parent(jobs: Children) -> Any:
            with self.raises(ValueError) as caught:
                await jobs.submit("echo", session=" p ")
            assert str(caught[0]).startswith("session must")
            assert "' p '" in str(caught[0])
            with self.raises(ValueError) as caught:
                await jobs.submit("echo", key="12")
            assert str(caught[0]).startswith("key must")
            assert "'12'" in str(caught[0])
            for key in (None, "named"):
                with self.raises(UnknownHandlerError):
                    await jobs.submit("unknown", key=key)
            first = await jobs.submit("echo")
            assert (await first.status()).key == f"{this_run().id}/1"
            again = await jobs.submit("echo", key="again")
            assert await jobs.submit("echo", key="again") is again
            return this_run().children_ended[1]

        async with self.family(parent) as lanes:
            assert await (await lanes.submit("parent", session="p")).wait() == 2

    async def test_another_child_in_the_place_of_an_earlier_one_is_refused(self) -> None:
        async def parent(jobs: Children) -> Any:
            attempt = this_run().attempt
            if attempt == 1:
                await jobs.submit("echo", attempt)
                raise Retry(after=0)
            with self.raises(KeyConflictError):
                await jobs.submit("echo", attempt)

        async with self.family(parent) as lanes:
            await (await lanes.submit("parent")).wait()

    async def test_children_of_a_parent_that_is_cancelled_go_on(self) -> None:
        async def parent(jobs: Children) -> Any:
            await jobs.submit("gate", "a")
            await jobs.wait_all()

        async with self.family(parent) as lanes:
            job = await self.submitted("parent")
            await lanes.cancel(job.id)
            await self.fails(job, JobCancelledError)
            (child,) = [one for one in await lanes.jobs() if one.id != job.id]
            assert child.state is RUNNING
            await self.opened("a")
            assert await self.state(child.id) is SUCCEEDED

    async def test_a_block_that_is_left_with_an_error_does_not_wait(self) -> None:
        async def parent(jobs: Children) -> Any:
            await jobs.submit("gate", "a")
            raise ValueError("no")

        async with self.family(parent, retry=RetryPolicy(max_attempts=1)):
            job = await self.submitted("parent")
            error = await self.fails(job, DurableJobError)
            assert error.type == "ValueError"
            await self.opened("a")

    async def test_a_child_that_needs_what_a_waiting_ancestor_keeps_is_refused(self) -> None:
        async def parent(jobs: Children) -> Any:
            if this_run().session == "s":
                await jobs.submit("parent")
            else:
                await jobs.submit("echo", session="s")
            await jobs.wait_first()
            await jobs.wait_all()

        async with self.family(parent, retry=RetryPolicy(max_attempts=1)) as lanes:
            job = await lanes.submit("parent", session="s")
            error = await self.fails(job, DurableJobError)
            assert LaneDeadlockError.__name__ in str(error)

    async def test_children_may_be_submitted_while_others_are_waited_for(self) -> None:
        async def parent(jobs: Children) -> Any:
            await jobs.submit("gate", "a")

            async def more() -> None:
                await self.gate("more").wait()
                await jobs.submit("gate", "b")

            async with trio.open_nursery() as nursery:
                nursery.start_soon(more)
                return await jobs.wait_all()

        async with self.family(parent):
            job = await self.submitted("parent")
            await self.opened("more")
            await self.opened("a")
            assert await self.state(job.id) is RUNNING
            await self.opened("b")
            assert await job.wait() == ["a", "b"]
