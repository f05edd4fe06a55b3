"""Tests of keys: what becomes of a further submission; and of jobs that expire."""

from __future__ import annotations

from typing import Any

from trio_lanes import Coalesce, LaneConfig, LaneFullError
from trio_lanes.durable import (
    DurableState,
    JobDeadError,
    JobExpiredError,
    KeyConflictError,
    Retry,
    Submission,
)
from trio_lanes.durable.acts.jobs import Enqueue
from trio_lanes.durable.acts.orders import Cancel

from .bench import ONCE, STOP, Bench, new_job, this_run, ticket


class KeyStories(Bench):
    async def test_a_key_after_a_failure_begins_anew_if_that_is_asked_for(self) -> None:
        async with self.instance(retry=ONCE) as lanes:

            async def again(name: str, payload: object = 1) -> int:
                options: dict[str, Any] = {"session": "s", "key": name, "key_after": "failure"}
                return (await lanes.submit(name, payload, **options)).id

            dead = await again("bad")
            await self.settle()
            assert await self.state(dead) is DurableState.DEAD
            assert (await lanes.submit("bad", 1, session="s", key="bad")).id == dead
            anew = await again("bad", 2)
            assert anew != dead
            await self.settle()
            assert self.log == [1, 2]
            await self.fails(lanes.job(dead), JobDeadError)
            assert (await lanes.job(dead).status()).key is None
            assert [one.id for one in await lanes.dead()] == [dead, anew]
            assert await lanes.requeue(dead) == 1  # the key is not its own any more
            await self.settle()
            assert (await lanes.submit("bad", 2, session="s", key="bad")).id == anew

            done = await again("echo")
            await lanes.job(done).wait()
            assert await again("echo") == done
            gate = await again("gate", "a")
            await self.settle()
            assert await again("gate", "a") == gate  # it runs
            with self.raises(KeyConflictError):
                await again("gate", "b")
            assert await lanes.cancel(gate)
            await self.settle()
            assert await self.state(gate) is DurableState.CANCELLED
            assert await again("gate", "b") != gate

    async def test_a_bad_key_after_is_refused_with_its_value(self) -> None:
        async with self.instance() as lanes:
            for value, key, said in (
                ("success", "k", "not 'success'"),
                ([], "k", "not []"),
                ("failure", None, "key=None"),
            ):
                with self.raises(ValueError) as caught:
                    await lanes.submit("echo", key=key, key_after=value)  # type: ignore[arg-type]
                assert "key_after" in str(caught[0])
                assert said in str(caught[0])
            with self.raises(ValueError):
                await lanes.submit_many([Submission(name="echo", key_after="failure")])
            assert await lanes.jobs() == []

    async def test_one_ticket_begins_anew_once_and_one_batch_too(self) -> None:
        async with self.playing() as store:
            job = new_job(key="k", key_after="failure")
            (first,) = await store.enqueue([job])
            assert await store.do(Cancel(first, STOP))
            mine = ticket()
            two = await store.do(Enqueue([job, job]), mine)
            assert two[0] == two[1] != first
            assert await store.do(Cancel(two[0], STOP))
            assert await store.do(Enqueue([job, job]), mine) == two
            assert await store.enqueue([job]) != [two[0]]

    # ---- expires

    async def test_a_job_that_no_run_has_begun_in_time_expires_and_the_next_goes_on(self) -> None:
        async with self.instance(lanes={"main": 1}) as lanes:
            await self.submitted("gate", "a")
            late = await lanes.submit("echo", "late", session="s", expires=2)
            behind = await lanes.submit("echo", "behind", session="s", expires=1)
            delayed = await lanes.submit("echo", "delayed", session="s", delay=1, expires=3)
            after = await lanes.submit("echo", "after", session="s", expires=60)
            status = await late.status()
            assert status.expires_at is not None
            assert round(status.expires_at - status.submitted_at, 3) == 2
            await self.advance(1.1)
            assert (await self.fails(behind, JobExpiredError)).id == behind.id
            assert await self.state(late.id) is DurableState.WAITING
            await self.advance(2)
            for job in (late, delayed):
                assert f"job {job.id} expired" in str(await self.fails(job, JobExpiredError))
                status = await job.status()
                assert (status.state, status.expires_at) == (DurableState.EXPIRED, None)
            assert (await lanes.statistics()).waiting == 1
            assert await lanes.requeue(late.id, failed=True) == 0
            self.gate("a").set()
            await after.wait()
            assert self.log == ["a begins", "a ends", "after"]
            expired = await lanes.jobs(states=[DurableState.EXPIRED])
            assert [one.id for one in expired] == [late.id, behind.id, delayed.id]
            assert (await lanes.check()).problems == ()

    async def test_a_job_that_a_run_has_begun_never_expires(self) -> None:
        async def twice(payload: object) -> None:
            self.log.append(payload)
            if len(self.log) == 1:
                raise Retry(3)

        async with self.instance(handlers={"twice": twice}) as lanes:
            job = await lanes.submit("twice", 1, expires=2)
            await self.settle()
            assert (await job.status()).expires_at is None
            await self.advance(4)
            assert await job.wait() is None
            assert self.log == [1, 1]
            ended = await lanes.submit("echo", 2, expires=1, delay=0.5)
            assert await lanes.cancel(ended.id)
            await self.advance(1.5)
            assert await self.state(ended.id) is DurableState.CANCELLED

    async def test_a_child_that_expires_is_one_that_did_not_succeed(self) -> None:
        async def parent(payload: object) -> None:
            async with this_run().children() as jobs:
                await jobs.submit("parent", lane="cron", expires=1)
                with self.raises(ExceptionGroup) as caught:
                    await jobs.wait_all()
            self.log.append([type(error) for error in caught[0].exceptions])

        async with self.instance(handlers={"parent": parent}) as lanes:
            await lanes.pause("cron")
            await self.submitted("parent")
            await self.expect((1.1, [[JobExpiredError]]))

    async def test_what_expires_while_no_worker_lives_never_begins(self) -> None:
        async with self.instance(worker=False) as lanes:
            options: dict[str, Any] = {"expires": 1, "key_after": "failure"}
            jobs = await lanes.submit_many(
                [Submission(name="echo", payload=n, session="s", expires=1) for n in range(1001)]
            )
            keyed = await lanes.submit("echo", "old", key="k", **options)
            late = await lanes.submit("echo", "late", delay=0.5, session="t", **options, key="t")
            await self.advance(1.1)
            assert (await lanes.submit("echo", "new", key="k", **options)).id != keyed.id
            await lanes.submit("echo", "last", session="t")  # the delayed job is due before it
            assert await self.state(late.id) is DurableState.EXPIRED
        async with self.instance() as lanes:
            for job in (jobs[0], jobs[-1], keyed, late):
                await self.fails(lanes.job(job.id), JobExpiredError)
            await self.settle()
            assert sorted(self.log) == ["last", "new"]

    async def test_a_time_at_which_a_job_could_never_begin_is_refused(self) -> None:
        async with self.instance() as lanes:
            refused: tuple[tuple[dict[str, Any], str], ...] = (
                ({"expires": 0}, "got 0"),
                ({"expires": 3, "delay": 3}, "the delay of 3 s, got 3"),
                ({"expires": float("inf")}, "got inf"),
            )
            for options, said in refused:
                with self.raises(ValueError) as caught:
                    await lanes.submit("echo", **options)
                assert "expires must be" in str(caught[0])
                assert said in str(caught[0])
            with self.raises(TypeError):
                await lanes.submit("echo", expires="3")  # type: ignore[arg-type]
            assert await lanes.jobs() == []

    # ---- coalesce

    async def test_one_job_of_a_key_waits_with_what_was_submitted_last_and_in_its_place(
        self,
    ) -> None:
        limits = {"main": LaneConfig(concurrency=2, max_waiting=3), "cron": 1}
        async with self.instance(lanes=limits) as lanes:
            await lanes.pause("main")
            latest = Coalesce("k")
            job = await lanes.submit("gate", "a", session="s", coalesce=latest, priority=-1)
            after = await lanes.submit("echo", "after", session="s")
            other = await lanes.submit("echo", "other")
            for name in "bc":
                options: dict[str, Any] = {"session": "s", "coalesce": latest, "timeout": 3}
                assert await lanes.submit("gate", name, **options) is job
            status = await job.status(texts=True)
            assert (status.priority, status.timeout) == (0, 3)
            assert status.texts is not None
            assert status.texts.payload == '"c"'
            first = Coalesce("k", keep="first")
            assert await lanes.submit("gate", "d", session="s", coalesce=first) is job
            with self.raises(LaneFullError):
                await lanes.submit("gate", "a", coalesce=Coalesce("new"))
            for field, value in (("name", "echo"), ("session", "t"), ("lane", "cron")):
                asked: dict[str, Any] = {"name": "gate", "session": "s", "coalesce": first}
                with self.raises(KeyConflictError) as caught:
                    await lanes.submit(**{**asked, field: value})
                found = caught[0].key, caught[0].id, caught[0].field
                assert found == ("k", job.id, field)
            await lanes.resume("main")
            await other.wait()
            await self.settle()
            assert self.begun() == ["c"]
            anew = await lanes.submit("gate", "e", session="s", coalesce=latest)
            assert anew is not job
            drops = Coalesce("k", while_running="drop")
            assert await lanes.submit("gate", "f", session="s", coalesce=drops) is anew
            await self.opened("c")
            await after.wait()
            assert await lanes.submit("gate", "g", session="s", coalesce=drops) is anew
            await self.opened("f")
            await anew.wait()
            assert self.begun() == ["c", "f"]
            assert (await lanes.check()).problems == ()

    async def test_a_further_submission_with_another_priority_goes_behind_its_new_equals(
        self,
    ) -> None:
        for fair in (False, True):
            limits = {"main": LaneConfig(fair=fair)}
            async with self.instance(lanes=limits) as lanes:
                await lanes.configure(limits)
                await lanes.pause("main")
                jobs = [
                    await lanes.submit("echo", n, session=f"{n}", priority=p, coalesce=coalesce)
                    for n, p, coalesce in ((1, 1, None), (2, 0, Coalesce("k")), (3, 1, None))
                ]
                more = {"session": "2", "priority": 1, "coalesce": Coalesce("k")}
                assert await lanes.submit("echo", 4, **more) is jobs[1]  # type: ignore[arg-type]
                await lanes.resume("main")
                await jobs[1].wait()
                await self.settle()
                assert self.log[-3:] == [1, 3, 4]
                assert (await lanes.check()).problems == ()

    async def test_a_job_with_a_debounce_starts_when_it_is_quiet_or_has_waited_enough(
        self,
    ) -> None:
        async with self.instance() as lanes:
            quiet = Coalesce("k", debounce=2, max_wait=5)
            start = await self.submitted("echo", 0, coalesce=quiet)
            for n in range(1, 4):
                await self.advance(1)
                assert (await lanes.submit("echo", n, coalesce=quiet)) is start
            assert await self.state(start.id) is DurableState.PARKED
            await self.expect((1.5, []), (1, [3]))
            await self.submitted("echo", 4, coalesce=quiet)
            for n in range(5, 9):
                await self.advance(1.1)
                await lanes.submit("echo", n, coalesce=quiet)
            await self.expect((1, [3, 8]))
            # a shorter one comes earlier
            await lanes.submit("echo", 9, coalesce=Coalesce("k", debounce=60))
            await lanes.submit("echo", 10, coalesce=Coalesce("k", keep="first", debounce=1))
            await self.expect((1.1, [3, 8, 9]))

    async def test_a_job_that_was_claimed_once_waits_for_its_key_no_more(self) -> None:
        async def twice(payload: object) -> None:
            self.log.append(payload)
            if len(self.log) == 1:
                raise Retry(3)

        async with self.instance(handlers={"twice": twice}) as lanes:
            waits, drops = Coalesce("k"), Coalesce("k", while_running="drop")
            job = await lanes.submit("twice", 1, coalesce=waits)
            await self.settle()
            assert await self.state(job.id) is DurableState.PARKED
            assert await lanes.submit("twice", 2, coalesce=drops) is job
            other = await lanes.submit("twice", 3, coalesce=waits)
            await other.wait()
            await self.advance(3.1)
            await job.wait()
            assert self.log == [1, 3, 1]
            anew = await lanes.submit("twice", 4, coalesce=drops)
            assert anew not in (job, other)
            await anew.wait()
        async with self.instance(retry=ONCE) as lanes:
            dead = await self.submitted("bad", 1, coalesce=drops)
            assert await self.state(dead.id) is DurableState.DEAD
            assert await lanes.submit("bad", 1, coalesce=drops) is not dead

    async def test_what_has_expired_takes_no_further_submission(self) -> None:
        async with self.instance(worker=False) as lanes:
            one = Coalesce("k")
            job = await lanes.submit("echo", 1, coalesce=one, expires=2)
            await self.advance(1.5)
            assert await lanes.submit("echo", 2, coalesce=one, expires=2) is job
            await self.advance(1.5)
            assert await lanes.submit("echo", 3, coalesce=one) is job
            assert (await job.status()).expires_at is None
            over = await lanes.submit("echo", 4, coalesce=Coalesce("l"), expires=1)
            await self.advance(1.1)
            anew = await lanes.submit("echo", 5, coalesce=Coalesce("l"))
            assert anew is not over
            await self.fails(over, JobExpiredError)
        async with self.instance() as lanes:
            await lanes.job(anew.id).wait()
            await lanes.job(job.id).wait()
            assert sorted(self.log) == [3, 5]

    async def test_a_batch_and_a_ticket_coalesce_once(self) -> None:
        one = Coalesce("k")
        async with self.playing() as store:
            batch = [new_job(n, coalesce=one) for n in range(3)]
            mine = ticket()
            ids = await store.do(Enqueue(batch), mine)
            assert len(set(ids)) == 1
            (later,) = await store.enqueue([new_job(3, coalesce=one)])
            assert later == ids[0]
            assert await store.do(Enqueue(batch), mine) == ids
            with self.raises(KeyConflictError):
                await store.enqueue(
                    [new_job(coalesce=Coalesce("l")), new_job(name="x", coalesce=one)]
                )
            with self.raises(KeyConflictError):
                of_two = [
                    new_job(coalesce=Coalesce("l")),
                    new_job(name="x", coalesce=Coalesce("l")),
                ]
                await store.enqueue(of_two)
            with self.raises(ValueError):
                await store.enqueue([new_job(coalesce=one, cost={"tokens": 1})])
            (claim,) = await store.claim(9)
            assert (claim.id, claim.payload) == (later, "3")

    async def test_what_cannot_coalesce_is_refused(self) -> None:
        async with self.instance() as lanes:
            one = Coalesce("k")
            refused: tuple[tuple[dict[str, Any], type[Exception], str], ...] = (
                ({"coalesce": "k"}, TypeError, "not 'k'"),
                ({"coalesce": Coalesce(("a", 1))}, TypeError, "('a', 1)"),
                ({"coalesce": Coalesce("")}, ValueError, "the key of coalesce"),
                ({"coalesce": one, "key": "x"}, ValueError, "key and coalesce"),
                ({"coalesce": one, "delay": 3}, ValueError, "got 3"),
                ({"coalesce": one, "run_at": 3.0}, ValueError, "run_at and coalesce"),
                ({"coalesce": Coalesce("k", debounce=2), "expires": 2}, ValueError, "expires"),
            )
            for options, kind, said in refused:
                with self.raises(kind) as caught:
                    await lanes.submit("echo", **options)
                assert said in str(caught[0])
                with self.raises(kind):
                    await lanes.submit_many([Submission(name="echo", **options)])
            assert await lanes.jobs() == []
