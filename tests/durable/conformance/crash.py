"""Tests of crashes: instances that die, and finishes that come too late."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from trio_lanes import JobCancelledError
from trio_lanes.durable import Claim, DurableState, JobDeadError, Postponed, Released, Succeeded
from trio_lanes.durable.acts.inspection import AllInstances, Check, StatusOf
from trio_lanes.durable.acts.orders import Cancel
from trio_lanes.durable.acts.runs import Checkpoint, Compare, LendSlot, RegainSlot

from .bench import LEASE, RETURNED, STOP, Bench, Played, ends, needs, new_job


async def does_nothing(store: Played, run: Claim) -> None:
    """Check that acts of a run that is lost do nothing."""
    assert not await store.do(Checkpoint(run.id, run.fence, "1"))
    assert not await store.do(LendSlot(run.id, run.fence))
    assert await store.do(RegainSlot(run.id, run.fence)) is None


async def runs_again(store: Played, lost: Claim) -> None:
    """Check that the only instance claims a run that crashed, and end it."""
    (run,) = await store.claim()
    assert (run.id, run.crashes) == (lost.id, 1)
    assert len(await store.look(AllInstances())) == 1
    await store.end(run)


class CrashStories(Bench):
    async def test_the_runs_of_a_crash_run_again_first_with_one_crash_more(self) -> None:
        many = [new_job(n, session="s") for n in range(3)]
        async with self.doomed(*many) as claims:
            assert [claim.payload for claim in claims] == ["0"]
        async with self.instance() as lanes:
            last = await lanes.submit("echo", 3, session="s")
            await last.wait()
            assert self.log == [0, 1, 2, 3]
            status = await lanes.job(claims[0].id).status()
            assert (status.crashes, status.attempt) == (1, 1)
            assert (await lanes.check()).problems == ()

    async def test_a_block_that_is_cancelled_gives_its_jobs_back_at_once(self) -> None:
        async with self.instance(worker=False) as asking:
            with trio.CancelScope() as scope:
                async with self.instance():
                    job = await self.submitted("gate", "x")
                    assert self.begun() == ["x"]
                    before = trio.current_time()
                    scope.cancel()
                    await trio.sleep_forever()
            assert trio.current_time() - before < 3
            status = await asking.job(job.id).status()
            assert (status.state, status.crashes) == (DurableState.WAITING, 0)
            assert await asking.instances() == []

    async def test_the_runs_of_a_crash_go_before_waiting_jobs(self) -> None:
        many = [new_job(n) for n in range(6)]
        async with self.doomed(*many) as claims:
            assert len(claims) == 4
        async with self.instance(lanes={"main": 1}, capacity=1) as lanes:
            last = await lanes.submit("echo", 6)
            await last.wait()
            assert self.log == list(range(7))

    async def test_a_job_that_kills_its_process_is_dead_in_the_end(self) -> None:
        poison = new_job("poison", session="s")
        async with self.doomed(poison, max_crashes=2) as claims:
            pass
        (first,) = claims
        async with self.doomed() as claims:
            assert [claim.crashes for claim in claims] == [1]
        async with self.instance() as lanes:
            error = await self.fails(lanes.job(first.id), JobDeadError)
            assert error.type == "crash"
            # the store cannot tell a process that died from one that blocks
            assert "or did not answer for longer than its lease" in error.message
            assert error.message.endswith("2 times; is the handler blocking?")
            (dead,) = await lanes.dead()
            assert dead.crashes == 2
            await (await lanes.submit("echo", "after", session="s")).wait()
            assert await lanes.requeue(dead.id)
            assert await lanes.job(first.id).wait() == "poison"

    async def test_a_run_without_its_slot_is_not_counted_beside_one_that_crashes(self) -> None:
        async with self.playing(dies=True, max_crashes=1) as store:
            lender, other = await store.begin(new_job(), new_job(2))
            assert await store.do(LendSlot(lender.id, lender.fence))
        await self.lease_over()
        async with self.instance() as lanes:
            assert await lanes.job(lender.id).wait() == 1
            assert [dead.id for dead in await lanes.dead()] == [other.id]

    async def test_a_suspect_behind_a_stricter_one_is_isolated_from_the_end_of_that(self) -> None:
        in_time = 70 if self.virtual else 0  # in real time the isolation has just begun
        async with self.instance(worker=False) as lanes:
            await lanes.configure({"main": 10})

            async def crashed_twice(name: str, number: int) -> int:
                """Let a job crash twice among so many, and cancel the others."""
                for jobs in [new_job(name=name)] * number, []:
                    async with self.doomed(*jobs, names=(name,)) as claims:
                        assert len(claims) == number
                suspect, *others = sorted(claim.id for claim in claims)
                for id in others:
                    assert await lanes.cancel(id)
                return suspect

            later = await crashed_twice("other", 6)
            first = await crashed_twice("echo", 4)
            async with self.playing(names=("echo", "other")) as store:
                claims = await store.claim(10)
                assert [claim.id for claim in claims] == [first, later]
                assert (await store.end(claims[0], room=10)).claims == ()
                for _ in range(in_time):
                    await self.advance(0.9 * LEASE)
                    assert await store.beat()
                await store.enqueue([new_job()] * 5)
                assert len(await store.claim(10)) == (5 if in_time else 2)

    async def test_a_job_that_kills_its_process_is_found_and_others_lose_nothing(self) -> None:
        many = [
            new_job(
                "poison" if n == 5 else n,
                session=f"s{n}" if n % 2 else None,
                lane="cron" if n % 3 == 2 else "main",
                priority=n % 3 - 1,
            )
            for n in range(9)
        ]
        companies: list[int] = []  # how many jobs ran in each crash
        ids: list[int] = []
        claims: Sequence[Claim] = ()
        while not companies or claims:
            async with self.playing(dies=True) as store:
                ids = ids or await store.enqueue(many)
                claims = await store.claim(100)
                while claims and all(claim.payload != '"poison"' for claim in claims):
                    claims = (await store.step(ends(RETURNED, *claims), 100)).claims
                if claims:
                    companies.append(len(claims))
            await self.lease_over()
            assert len(companies) < 9, companies
        assert companies[-3:] == [1, 1, 1]
        async with self.instance(worker=False) as lanes:
            (dead,) = await lanes.dead()
            assert (dead.id, dead.crashes) == (ids[5], len(companies))
            for id in ids:
                if id != dead.id:
                    assert await lanes.job(id).wait() == 1

    async def test_a_finish_that_comes_too_late_changes_nothing(self) -> None:
        async with self.doomed(new_job("x", session="s")) as claims:
            pass
        (old,) = claims
        async with self.playing() as store:
            (new,) = await store.claim()
            assert (new.id, new.crashes) == (old.id, 1)
            assert new.fence > old.fence
            for outcome in (Succeeded("1"), Released(), Postponed(0, True, False)):
                assert (await store.end(old, outcome)).stale == (old.fence,)
            await does_nothing(store, old)
            assert (await store.end(new, Succeeded("2"))).stale == ()
            assert (await store.end(new, Succeeded("3"))).stale == (new.fence,)
            assert (await store.wait(new.id)).outcome == "2"

    @needs("leases")
    async def test_an_instance_without_its_lease_does_nothing_until_it_joins_again(self) -> None:
        async with self.playing(max_crashes=1) as store:
            (old,) = await store.begin(new_job())
            (waiting,) = await store.enqueue([new_job(2)])
            await self.lease_over()
            assert not await store.beat()
            step = await store.end(old, room=1)
            assert (step.claims, step.stale) == ((), (old.fence,))
            await does_nothing(store, old)
            await store.join([(old.id, old.fence)])
            assert await store.beat()
            new = await store.claim(2)
            assert [(claim.id, claim.crashes, claim.checkpoint) for claim in new] == [
                *((old.id, 0, None), (waiting, 0, None))
            ]
            await store.step(ends(Released(), *new), 0)

    async def test_a_join_takes_back_the_crashes_of_its_own_runs_alone(self) -> None:
        async with self.doomed(new_job()):
            pass
        async with self.playing() as store:
            (run,) = await store.claim()
            assert run.crashes == 1
            await store.end(run, Released())
            await store.join([(run.id, run.fence)], [run.fence])
            (again,) = await store.claim()
            assert again.crashes == 1
            await store.end(again)

    @needs("leases")
    async def test_every_heartbeat_gives_back_the_runs_of_dead_instances(self) -> None:
        async with self.playing() as store:
            async with self.playing(dies=True) as dead:
                (run,) = await dead.begin(new_job())
            await self.lease_over(0.6)
            await store.join()
            await self.lease_over(0.6)
            assert await store.claim() == ()
            assert await store.beat()
            await runs_again(store, run)

    @needs("leases")
    async def test_what_a_process_ran_is_given_back_at_once_when_its_end_is_reported(self) -> None:
        async with self.playing() as store:
            async with (
                self.playing(host="here", pid=7) as other,
                self.playing(dies=True, host="here", pid=7) as dead,
            ):
                # two containers may have the same names of hosts, and the same pids
                (mine,) = await other.begin(new_job())
                (run,) = await dead.begin(new_job())
                status = await other.look(StatusOf(run.id))
                await store.declare_dead("none of them")
                assert await store.claim() == ()
                for _ in range(2):
                    await store.declare_dead(status.instance)
                assert (await other.end(mine)).stale == ()
            await runs_again(store, run)

    async def test_runs_that_only_the_store_has_are_given_back_and_those_it_lacks_are_named(
        self,
    ) -> None:
        async with self.playing(max_crashes=1) as store:
            runs = await store.begin(*(new_job(n, session=f"s{n}") for n in range(4)))
            first, second, third, late = runs
            assert [run.fence for run in runs] == sorted(run.fence for run in runs)
            assert await store.do(Checkpoint(first.id, first.fence, "7"))
            # it does not know yet that the last was claimed
            has = [third.fence, late.fence + 1, late.fence + 2]
            lost = await store.twice(Compare(has, third.fence, [], 0))
            assert lost[:2] == ((late.fence + 1, late.fence + 2), ())
            assert lost[2] >= late.fence
            again = await store.claim(9)
            assert [(run.id, run.crashes, run.attempt) for run in again] == [
                *((first.id, 0, 1), (second.id, 0, 1))
            ]
            assert again[0].checkpoint == "7"
            assert again[0].fence > late.fence
            stale = await store.step(ends(RETURNED, *runs), 0)
            assert stale.stale == (first.fence, second.fence)
            assert (await store.do(Compare([], again[0].fence, [], 0)))[:2] == ((), ())
            (run,) = await store.claim(9)
            assert run.id == first.id
            assert (await store.step(ends(RETURNED, run, again[1]), 0)).stale == ()
            assert (await store.look(Check())).problems == ()

    async def test_a_cancelled_run_that_only_the_store_has_ends(self) -> None:
        async with self.playing() as store:
            (run,) = await store.begin(new_job())
            assert await store.do(Cancel(run.id, "{}"))
            assert (await store.do(Compare([], run.fence, [], 0)))[:2] == ((), ())
            status = await store.look(StatusOf(run.id))
            assert status is not None
            assert status.state is DurableState.CANCELLED

    @needs("leases")
    async def test_an_instance_without_its_lease_compares_nothing(self) -> None:
        async with self.playing() as store:
            (run,) = await store.begin(new_job())
            await self.lease_over()
            assert (await store.do(Compare([run.fence + 1], run.fence, [7], 7)))[:2] == ((), ())
            await store.join()
            await store.end((await store.claim())[0])

    async def test_a_cancelled_job_is_cancelled_by_a_crash_that_would_make_it_dead(self) -> None:
        async with self.doomed(new_job("x", session="s"), max_crashes=1) as claims:
            async with self.instance(worker=False) as lanes:
                assert await lanes.cancel(claims[0].id, "stop")
                assert (await lanes.job(claims[0].id).status()).cancelling
        async with self.instance(max_crashes=1) as lanes:
            assert (await self.fails(lanes.job(claims[0].id), JobCancelledError)).reason == "stop"
            assert await lanes.dead() == self.log == []

    async def test_a_cancelled_run_is_not_postponed_or_given_back(self) -> None:
        async with self.playing() as store:
            for outcome in (Released(), Postponed(0, True, False)):
                (run,) = await store.begin(new_job())
                assert await store.do(Cancel(run.id, STOP))
                assert (await store.step([], 0)).cancels == ((run.id, run.fence),)
                await store.end(run, outcome)
                assert (await store.look(StatusOf(run.id))).state is DurableState.CANCELLED

    async def test_a_checkpoint_survives_the_crash_of_the_run(self) -> None:
        async with self.playing(dies=True) as store:
            (claim,) = await store.begin(new_job(session="s"))
            assert await store.do(Checkpoint(claim.id, claim.fence, "[7]"))
        await self.lease_over()
        async with self.doomed() as claims:
            assert [claim.checkpoint for claim in claims] == ["[7]"]

    async def test_delays_and_parked_jobs_survive(self) -> None:
        async with self.instance() as lanes:
            await lanes.submit("echo", "delayed", session="s", delay=5)
            await lanes.pause_for("session:t", 5)
            await self.submitted("echo", "paused", session="t")
        async with self.instance() as lanes:
            assert self.log == []
            await self.advance(5.5)
            assert sorted(self.log) == ["delayed", "paused"]
