"""Tests of crashes: instances that die, and finishes that come too late."""

from __future__ import annotations

import trio

from ... import JobCancelledError
from .. import (
    DurableState,
    Finish,
    JobDeadError,
    Postponed,
    Released,
    Submission,
    SubmittedJob,
    Succeeded,
)
from ..acts.inspection import AllInstances, StatusOf
from ..acts.orders import Cancel
from ..acts.runs import Checkpoint, LendSlot, RegainSlot
from ._bench import LEASE, Bench, checked, opening, stories


@stories
class CrashStories:
    """Tests of crashes."""

    async def test_the_runs_of_a_crash_run_again_first_with_one_crash_more(
        self, bench: Bench
    ) -> None:
        many = [Submission(name="echo", payload=n, session="s") for n in range(3)]
        async with bench.doomed(*many) as claims:
            assert [claim.payload for claim in claims] == ["0"]
        async with bench.lanes() as lanes:
            last = await lanes.submit("echo", 3, session="s")
            await last.wait()
            assert bench.log == [0, 1, 2, 3]
            status = await lanes.job(claims[0].id).status()
            assert (status.crashes, status.attempt) == (1, 1)
            assert (await lanes.check()).problems == ()

    async def test_a_block_that_is_cancelled_gives_its_jobs_back_at_once(
        self, bench: Bench
    ) -> None:
        async with bench.lanes(worker=False) as asking:
            with trio.CancelScope() as scope:
                async with bench.lanes() as lanes:
                    job = await bench.submitted(lanes, "gate", "x")
                    assert bench.begun() == ["x"]
                    before = trio.current_time()
                    scope.cancel()
                    await trio.sleep_forever()
            assert trio.current_time() - before < 3
            status = await asking.job(job.id).status()
            assert (status.state, status.crashes) == (DurableState.WAITING, 0)
            assert await asking.instances() == []

    async def test_the_runs_of_a_crash_go_before_waiting_jobs(self, bench: Bench) -> None:
        many = [Submission(name="echo", payload=n) for n in range(6)]
        async with bench.doomed(*many) as claims:
            assert len(claims) == 4
        async with bench.lanes(lanes={"main": 1}, capacity=1) as lanes:
            last = await lanes.submit("echo", 6)
            await last.wait()
            assert bench.log == list(range(7))

    async def test_a_job_that_kills_its_process_is_dead_in_the_end(self, bench: Bench) -> None:
        poison = Submission(name="echo", payload="poison", session="s")
        async with bench.doomed(poison, max_crashes=2) as claims:
            pass
        (first,) = claims
        async with bench.doomed() as claims:
            assert [claim.crashes for claim in claims] == [1]
        async with bench.lanes() as lanes:
            error = await bench.fails(lanes.job(first.id), JobDeadError)
            assert error.type == "crash"
            # the store cannot tell a process that died from one that blocks
            assert "or did not answer for longer than its lease" in error.message
            assert error.message.endswith("2 times; is the handler blocking?")
            (dead,) = await lanes.dead()
            assert dead.crashes == 2
            await (await lanes.submit("echo", "after", session="s")).wait()
            assert await lanes.requeue(dead.id)
            assert await lanes.job(first.id).wait() == "poison"

    async def test_a_run_that_has_lent_its_slot_is_no_company_of_the_one_that_ends_the_process(
        self, bench: Bench
    ) -> None:
        store = bench.played()
        async with store.open(opening(max_crashes=1)):
            await store.join()
            await store.enqueue([SubmittedJob(name="echo", payload=text) for text in "12"])
            lender, other = (await store.step([], 2)).claims
            assert await store.do(LendSlot(lender.id, lender.fence))
        await bench.lease_over()
        async with bench.lanes() as lanes:
            assert await lanes.job(lender.id).wait() == 1
            assert [dead.id for dead in await lanes.dead()] == [other.id]

    async def test_a_suspect_behind_a_stricter_one_is_isolated_from_the_end_of_that(
        self, bench: Bench
    ) -> None:
        in_time = 70 if bench.virtual else 0  # in real time the isolation has just begun
        async with bench.lanes(worker=False) as lanes:
            await lanes.configure({"main": 10})

            async def crashed_twice(name: str, number: int) -> int:
                """Let a job crash twice among so many, and cancel the others."""
                many = [Submission(name=name, payload=n) for n in range(number)]
                async with bench.doomed(*many, names=(name,)) as claims:
                    assert len(claims) == number
                async with bench.doomed(names=(name,)) as claims:
                    assert len(claims) == number
                suspect, *others = sorted(claim.id for claim in claims)
                for id in others:
                    assert await lanes.cancel(id)
                return suspect

            later = await crashed_twice("other", 6)
            first = await crashed_twice("echo", 4)
            async with bench.playing(names=("echo", "other")) as store:
                claims = (await store.step([], 10)).claims
                assert [claim.id for claim in claims] == [first, later]
                end = Finish(first, claims[0].fence, Succeeded("1"))
                assert (await store.step([end], 10)).claims == ()
                for _ in range(in_time):
                    await bench.advance(0.9 * LEASE, lanes)
                    assert await store.beat()
                await lanes.submit_many([Submission(name="echo") for _ in range(5)])
                claims = (await store.step([], 10)).claims
                assert len(claims) == (5 if in_time else 2)

    async def test_a_job_that_kills_its_process_is_found_among_others_which_lose_nothing(
        self, bench: Bench
    ) -> None:
        many = [
            checked(
                Submission(
                    name="echo",
                    payload="poison" if n == 5 else n,
                    session=f"s{n}" if n % 2 else None,
                    lane="cron" if n % 3 == 2 else "main",
                    priority=n % 3 - 1,
                )
            )
            for n in range(9)
        ]
        companies: list[int] = []  # how many jobs ran in each crash
        ids: list[int] = []
        idle = False
        while not idle:
            store = bench.played()
            async with store.open(opening()):
                await store.join()
                ids = ids or await store.enqueue(many)
                finished: list[Finish] = []
                while True:
                    claims = (await store.step(finished, 100)).claims
                    idle = not claims
                    if idle or any(claim.payload == '"poison"' for claim in claims):
                        break
                    finished = [Finish(claim.id, claim.fence, Succeeded("1")) for claim in claims]
                if idle:
                    await store.leave()
                else:
                    companies.append(len(claims))
            await bench.lease_over()
            assert len(companies) < 9, companies
        assert companies[-3:] == [1, 1, 1]
        async with bench.lanes(worker=False) as lanes:
            (dead,) = await lanes.dead()
            assert (dead.id, dead.crashes) == (ids[5], len(companies))
            for id in ids:
                if id != dead.id:
                    assert await lanes.job(id).wait() == 1

    async def test_a_finish_that_comes_too_late_changes_nothing(self, bench: Bench) -> None:
        async with bench.doomed(Submission(name="echo", payload="x", session="s")) as claims:
            pass
        (old,) = claims
        async with bench.playing() as store:
            (new,) = (await store.step([], 1)).claims
            assert (new.id, new.crashes) == (old.id, 1)
            assert new.fence > old.fence
            for outcome in (Succeeded("1"), Released(), Postponed(0, True, False)):
                step = await store.step([Finish(old.id, old.fence, outcome)], 0)
                assert step.stale == (old.fence,)
            assert not await store.do(Checkpoint(old.id, old.fence, "1"))
            assert not await store.do(LendSlot(old.id, old.fence))
            assert await store.do(RegainSlot(old.id, old.fence)) is None
            step = await store.step([Finish(new.id, new.fence, Succeeded("2"))], 0)
            assert step.stale == ()
            step = await store.step([Finish(new.id, new.fence, Succeeded("3"))], 0)
            assert step.stale == (new.fence,)
            assert (await store.wait(new.id)).outcome == "2"

    async def test_an_instance_without_its_lease_does_nothing_until_it_has_joined_again(
        self, bench: Bench
    ) -> None:
        if not bench.store().leased:
            return
        async with bench.playing(max_crashes=1) as store:
            one, two = (checked(Submission(name="echo", payload=n)) for n in range(2))
            (id,) = await store.enqueue([one])
            (old,) = (await store.step([], 1)).claims
            (waiting,) = await store.enqueue([two])
            await bench.lease_over()
            assert not await store.beat()
            step = await store.step([Finish(id, old.fence, Succeeded("1"))], 1)
            assert (step.claims, step.stale) == ((), (old.fence,))
            assert not await store.do(Checkpoint(id, old.fence, "1"))
            assert not await store.do(LendSlot(id, old.fence))
            assert await store.do(RegainSlot(id, old.fence)) is None
            await store.join([(id, old.fence)])
            assert await store.beat()
            new = (await store.step([], 2)).claims
            assert [(claim.id, claim.crashes, claim.checkpoint) for claim in new] == [
                (id, 0, None),
                (waiting, 0, None),
            ]
            await store.step([Finish(claim.id, claim.fence, Released()) for claim in new], 0)

    async def test_a_join_takes_back_the_crashes_of_its_own_runs_alone(self, bench: Bench) -> None:
        async with bench.doomed(Submission(name="echo", payload="x")):
            pass
        async with bench.playing() as store:
            (run,) = (await store.step([], 1)).claims
            assert run.crashes == 1
            await store.step([Finish(run.id, run.fence, Released())], 0)
            await store.join([(run.id, run.fence)], [run.fence])
            (again,) = (await store.step([], 1)).claims
            assert again.crashes == 1
            await store.step([Finish(again.id, again.fence, Succeeded("1"))], 0)

    async def test_every_heartbeat_gives_back_the_runs_of_dead_instances(
        self, bench: Bench
    ) -> None:
        store, dead = bench.played(), bench.played()
        if not store.leased:
            return
        async with store.open(opening()):
            async with dead.open(opening()):
                await dead.join()
                (id,) = await dead.enqueue([checked(Submission(name="echo", payload="x"))])
                assert (await dead.step([], 1)).claims
            await bench.lease_over(0.6)
            await store.join()
            await bench.lease_over(0.6)
            assert (await store.step([], 1)).claims == ()
            assert await store.beat()
            (claim,) = (await store.step([], 1)).claims
            assert (claim.id, claim.crashes) == (id, 1)
            assert len(await store.look(AllInstances())) == 1
            await store.step([Finish(id, claim.fence, Succeeded("1"))], 0)
            await store.leave()

    async def test_what_a_process_ran_is_given_back_at_once_when_its_end_is_reported(
        self, bench: Bench
    ) -> None:
        dead = bench.played()
        if not dead.leased:
            return
        async with bench.playing() as store:
            async with dead.open(opening(host="here", pid=7)):
                await dead.join()
                (id,) = await dead.enqueue([checked(Submission(name="echo", payload="x"))])
                assert (await dead.step([], 1)).claims
            await store.declare_dead("here", 8)
            await store.declare_dead("there", 7)
            assert (await store.step([], 1)).claims == ()
            for _ in range(2):
                await store.declare_dead("here", 7)
            (claim,) = (await store.step([], 1)).claims
            assert (claim.id, claim.crashes) == (id, 1)
            assert len(await store.look(AllInstances())) == 1
            await store.step([Finish(id, claim.fence, Succeeded("1"))], 0)

    async def test_a_recorded_cancel_survives_the_crash_of_the_run(self, bench: Bench) -> None:
        async with bench.doomed(Submission(name="echo", payload="x", session="s")) as claims:
            asking = bench.store()
            async with bench.lanes(worker=False, store=asking) as lanes:
                assert await lanes.cancel(claims[0].id, "stop")
                assert (await lanes.job(claims[0].id).status()).cancelling
        async with bench.lanes() as lanes:
            assert (await bench.fails(lanes.job(claims[0].id), JobCancelledError)).reason == "stop"
            assert bench.log == []

    async def test_a_cancelled_job_is_cancelled_by_a_crash_that_would_make_it_dead(
        self, bench: Bench
    ) -> None:
        poison = Submission(name="echo", payload="x")
        async with bench.doomed(poison, max_crashes=1) as claims:
            async with bench.lanes(worker=False) as lanes:
                assert await lanes.cancel(claims[0].id)
        async with bench.lanes(max_crashes=1) as lanes:
            await bench.fails(lanes.job(claims[0].id), JobCancelledError)
            assert await lanes.dead() == []

    async def test_a_cancelled_run_is_not_postponed_or_given_back(self, bench: Bench) -> None:
        async with bench.playing() as store:
            for outcome in (Released(), Postponed(0, True, False)):
                (id,) = await store.enqueue([SubmittedJob(name="echo", payload="1")])
                (claim,) = (await store.step([], 1)).claims
                assert await store.do(Cancel(id, '{"reason": null}'))
                step = await store.step([], 0)
                assert step.cancels == ((id, claim.fence),)
                await store.step([Finish(id, claim.fence, outcome)], 0)
                assert (await store.look(StatusOf(id))).state is DurableState.CANCELLED

    async def test_a_checkpoint_survives_the_crash_of_the_run(self, bench: Bench) -> None:
        store = bench.played()
        async with store.open(opening()):
            await store.join()
            await store.enqueue([SubmittedJob(name="echo", payload="1", session="s")])
            (claim,) = (await store.step([], 1)).claims
            assert await store.do(Checkpoint(claim.id, claim.fence, "[7]"))
        await bench.lease_over()
        async with bench.doomed() as claims:
            assert [claim.checkpoint for claim in claims] == ["[7]"]

    async def test_a_clean_end_leaves_no_instance_and_no_crash(self, bench: Bench) -> None:
        async with bench.lanes() as lanes:
            await (await lanes.submit("echo")).wait()
            (one,) = await lanes.instances()
        async with bench.lanes() as lanes:
            (two,) = await lanes.instances()
            assert one.id != two.id

    async def test_delays_and_parked_jobs_survive(self, bench: Bench) -> None:
        async with bench.lanes() as lanes:
            await lanes.submit("echo", "delayed", session="s", delay=5)
            await lanes.pause_for("session:t", 5)
            await bench.submitted(lanes, "echo", "paused", session="t")
        async with bench.lanes() as lanes:
            assert bench.log == []
            await bench.advance(5.5, lanes)
            assert sorted(bench.log) == ["delayed", "paused"]
