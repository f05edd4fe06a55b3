"""Tests of claims, and of calls asked again: a step by its number, an act by its ticket."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import trio

from trio_lanes import RateLimit
from trio_lanes.durable import (
    DurableState,
    Finish,
    LaneLimit,
    Selection,
    Step,
    SubmittedJob,
    Succeeded,
)
from trio_lanes.durable.acts.inspection import AllInstances, AllLanes, AllStatistics, StatusOf
from trio_lanes.durable.acts.jobs import Enqueue
from trio_lanes.durable.acts.orders import Cancel, Clear, Configure, Pause, Purge, Requeue, Resume
from trio_lanes.durable.acts.runs import Checkpoint, LendSlot, RegainSlot
from trio_lanes.durable.store import STEP_BYTES

from .bench import RETURNED, STOP, Bench, Played, ends, needs, new_job, opening, ticket


class AgainStories(Bench):
    async def test_a_step_asked_again_gives_the_same_claims_and_does_nothing_more(self) -> None:
        async with self.playing() as store:
            await store.enqueue([new_job(n) for n in range(9)])
            first = await store.store.step(1, [], 2)
            assert [claim.payload for claim in first.claims] == ["0", "1"]
            again = await store.store.step(1, [], 2)
            assert (again.claims, again.stale) == (first.claims, first.stale)
            finishes = [
                Finish(claim.id, claim.fence + late, Succeeded("1"))
                for late, claim in enumerate(first.claims)
            ]
            second = await store.store.step(2, finishes, 2)
            assert second.stale == (finishes[1].fence,)
            assert len(second.claims) == 2
            again = await store.store.step(2, finishes, 2)
            assert (again.claims, again.stale) == (second.claims, second.stale)
            assert (await store.look(AllStatistics())).running == 3

    async def test_a_step_that_is_asked_ahead_is_done_after_the_one_before(self) -> None:
        if not getattr(self.store(), "steps_ahead", False):
            return
        steps: dict[int, Step] = {}

        async def ask(number: int, finished: Sequence[Finish], room: int) -> None:
            steps[number] = await store.store.step(number, finished, room)

        async def ask_both(first: int, finished: Sequence[Finish], room: int) -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask, first, finished[:2], room)
                await trio.lowlevel.checkpoint()  # until it is asked
                nursery.start_soon(ask, first + 1, finished[2:], room)

        async with self.playing() as store:
            await store.enqueue([new_job(n) for n in range(5)])
            await ask_both(1, [], 2)
            claims = [*steps[1].claims, *steps[2].claims]
            assert [claim.payload for claim in claims] == ["0", "1", "2", "3"]
            again = await store.store.step(2, [], 2)
            assert again.claims == steps[2].claims
            await ask_both(3, ends(RETURNED, *claims), 1)
            assert [claim.payload for claim in steps[3].claims] == ["4"]
            assert (steps[3].stale, steps[4].stale, steps[4].claims) == ((), (), ())
            assert (await store.look(AllStatistics())).running == 1

    async def test_a_step_that_comes_after_a_later_one_does_nothing(self) -> None:
        async with self.playing() as store:
            (run,) = await store.begin(new_job())
            await store.step([], 0)
            late = await store.store.step(1, ends(RETURNED, run), 1)
            assert late == Step((), (), (), None)
            assert (await store.look(StatusOf(run.id))).state is DurableState.RUNNING

    async def test_the_answer_of_a_step_asked_again_has_no_run_that_others_have_ended(self) -> None:
        async with self.playing(dies=True) as store:
            runs = await store.begin(new_job(), new_job())
            assert await store.do(Cancel(runs[0].id, STOP))
            again = await store.store.step(1, [], 2)
            assert again.claims == runs
            assert again.cancels == ((runs[0].id, runs[0].fence),)
            await store.leave()
            again = await store.store.step(1, [], 2)
            assert (again.claims, again.cancels) == ((), ())

    async def test_steps_are_counted_from_1_in_each_incarnation(self) -> None:
        async with self.playing() as store:
            for _ in range(3):
                await store.step([], 1)
            await store.join()
            await store.enqueue([new_job()])
            assert len((await store.store.step(1, [], 1)).claims) == 1

    async def test_the_claims_of_an_unanswered_step_are_given_back_by_the_next_join(self) -> None:
        async with self.playing(max_crashes=1) as store:
            run, lost = await store.begin(new_job(session="a"), new_job())
            await store.join(held=[run.fence])
            claims = (await store.end(run, Succeeded("7"), 2)).claims
            assert [(claim.id, claim.crashes) for claim in claims] == [(lost.id, 0)]
            assert claims[0].fence > lost.fence
            assert (await store.wait(run.id)).outcome == "7"
            assert len(await store.look(AllInstances())) == 1

    async def test_a_run_that_ended_as_it_was_cancelled_with_the_lease_keeps_its_end(self) -> None:
        async with self.playing(max_crashes=1) as store:
            ended, cut = await store.begin(new_job(session="a"), new_job(session="b"))
            lost = [(ended.id, ended.fence), (cut.id, cut.fence)]
            await store.join(lost, held=[ended.fence])
            claims = (await store.end(ended, Succeeded("7"), 2)).claims
            assert [(claim.id, claim.crashes) for claim in claims] == [(cut.id, 0)]
            assert (await store.wait(ended.id)).outcome == "7"

    async def test_a_join_that_is_asked_again_is_one_incarnation(self) -> None:
        store = self.played()
        me = ticket()
        async with store.open(opening()):
            await store.store.join(me)
            await store.enqueue([new_job()])
            (claim,) = (await store.store.step(1, [], 1)).claims
            await store.store.join(me, [(claim.id, claim.fence)])
            (instance,) = await store.look(AllInstances())
            assert (instance.id, instance.running) == (me, 1)
            assert (await store.store.step(1, [], 1)).claims == (claim,)
            await store.leave()

    async def test_a_submission_with_the_same_ticket_is_accepted_once(self) -> None:
        async with self.playing() as store:
            batch, mine = [new_job(1), new_job(2)], ticket()
            ids = await store.do(Enqueue(batch), mine)
            assert await store.do(Enqueue(batch), mine) == ids
            assert (await store.look(AllStatistics())).waiting == 2
            assert await store.do(Enqueue(batch), ticket()) != ids

    async def test_every_order_with_the_same_ticket_is_done_once(self) -> None:
        async with self.playing() as store:
            (first,) = await store.enqueue([new_job()])
            assert await store.twice(Cancel(first, STOP))  # it has ended: that was asked here
            mine = ticket()
            await store.enqueue([new_job(), new_job(session="s")])
            assert await store.do(Clear("main", None, STOP), mine) == 2
            await store.enqueue([new_job()])
            assert await store.do(Clear("main", None, STOP), mine) == 2
            assert (await store.look(AllStatistics())).waiting == 1
            for act, undo in (
                (Pause("main", None, 1e6), Resume("main", None)),
                (Configure({"main": 2}, None, {}), Configure({"main": 4}, None, {})),
            ):
                mine = ticket()
                for one, name in ((act, mine), (undo, ticket()), (act, mine)):
                    await store.do(one, name)
            lane = (await store.look(AllLanes()))["main"]
            assert (lane.concurrency, lane.paused_until) == (4, None)
            (claim,) = await store.claim()
            lend = ticket()
            assert await store.do(LendSlot(claim.id, claim.fence), lend)
            assert await store.do(RegainSlot(claim.id, claim.fence)) is True
            assert await store.do(LendSlot(claim.id, claim.fence), lend)
            others = await store.enqueue([new_job() for _ in range(4)])
            assert len(await store.claim(9)) == 3  # the run has its slot
            mine = ticket()
            assert await store.do(Checkpoint(claim.id, claim.fence, "1"), mine)
            assert await store.do(Checkpoint(claim.id, claim.fence, "2"))
            assert await store.do(Checkpoint(claim.id, claim.fence, "1"), mine)
            await store.leave()
            await store.join()
            claims = await store.claim(9)
            assert [one.checkpoint for one in claims if one.id == claim.id] == ["2"]
            assert others

    async def test_requeue_and_purge_with_the_same_ticket_are_done_once(self) -> None:
        async with self.doomed(new_job(1), max_crashes=1) as claims:
            pass
        async with self.playing() as store:
            id = claims[0].id
            mine, again = ticket(), ticket()
            assert await store.do(Requeue(Selection(id=id)), mine) == 1
            (claim,) = await store.claim()
            await store.end(claim)
            assert await store.do(Requeue(Selection(id=id)), mine) == 1
            assert (await store.look(StatusOf(id))).state is DurableState.SUCCEEDED
            assert await store.do(Purge(Selection()), again) == 0

    async def test_an_instance_reads_no_jobs_of_handlers_that_it_lacks(self) -> None:
        async with self.playing(names=["echo", "gate"]) as store:
            names = ["other", "gate", "echo", "other", "echo", "gate"]
            batch = [SubmittedJob(name=name, payload=str(n)) for n, name in enumerate(names)]
            await store.enqueue(batch)
            claims = await store.claim(9)
            assert [claim.payload for claim in claims] == ["1", "2", "4", "5"]
            assert (await store.look(AllStatistics())).unhandled == 2

    async def test_a_lower_priority_has_one_turn_in_ten_over_all_instances(self) -> None:
        instances = 3 if self.leased else 1
        async with AsyncExitStack() as opened:
            stores = [await opened.enter_async_context(self.playing()) for _ in range(instances)]
            await stores[0].enqueue(
                [new_job(-1, priority=-1), *(new_job(priority=1) for _ in range(30))]
            )
            turns: list[str] = []
            while "-1" not in turns:
                store = stores[len(turns) % len(stores)]
                (claim,) = await store.claim()
                turns.append(claim.payload)
                await store.end(claim)
            assert len(turns) == 10

    async def test_of_ten_claims_the_highest_priority_has_eight_and_each_lower_one(self) -> None:
        async with self.playing() as store:
            await store.do(Configure({"main": 30}, None, {}))
            of = {
                priority: [new_job(n, priority=priority) for n in range(20)]
                for priority in (1, 0, -1)
            }
            await store.enqueue([job for jobs in zip(*of.values(), strict=True) for job in jobs])
            claims = [(await store.claim())[0] for _ in range(20)]
            turns = ([1] * 8 + [0, -1]) * 2
            first = [of[priority].pop(0).payload for priority in turns]
            assert [claim.payload for claim in claims] == first

    async def test_the_claims_of_a_step_have_four_mebibytes_or_are_one_job(self) -> None:
        async with self.playing() as store:
            large = "x" * (STEP_BYTES // 3)
            await store.enqueue([new_job(large) for _ in range(4)])
            assert len(await store.claim(9)) == 2
            assert len(await store.claim(9)) == 2
            huge = "é" * (STEP_BYTES // 2)
            await store.join()
            await store.do(Clear("main", None, STOP))
            await store.enqueue([new_job(huge), new_job()])
            assert len(await store.claim(9)) == 1
            assert len(await store.claim(9)) == 1

    @needs("leases", "virtual time")
    async def test_a_session_stays_for_a_while_where_its_last_job_ran(self) -> None:
        async def turn_of(store: Played, room: int) -> float | None:
            """Run a job of the session; or return when one that waits may be claimed, or 0."""
            step = await store.step([], 9)
            if not step.claims:
                return step.next_due or 0.0
            await store.step(ends(RETURNED, *step.claims), room)
            return None

        rates = (RateLimit(1000, per=1.0, algorithm="sliding"),)
        lanes = {"main": LaneLimit(9), "rated": LaneLimit(9, rates=rates)}
        job = new_job(session="s")
        rated = new_job(session="rated", lane="rated")
        of: dict[str, Any] = {"affinity": 60.0, "lease_ttl": 3600.0, "lanes": lanes}
        async with self.playing(**of) as home, self.instance(worker=False):
            async with self.playing(**of) as other:
                await home.enqueue([rated])
                assert await turn_of(home, 9) is None
                await home.enqueue([rated])
                assert 0 < (await turn_of(other, 9) or 0.0) <= 60
                assert await turn_of(home, 9) is None
                for room in (9, 0):
                    await home.enqueue([job])
                    assert await turn_of(home, room) is None
                    await home.enqueue([job])
                    if room:
                        assert 0 < (await turn_of(other, 9) or 0.0) <= 60
                        assert await turn_of(home, room) is None
                    else:
                        assert await turn_of(other, 9) is None  # the home is full
                await home.enqueue([job])
                assert await turn_of(home, 9) is not None
            assert await turn_of(home, 9) is None  # its home has left
            async with self.playing(**of) as other:
                await other.enqueue([job])
                assert await turn_of(other, 9) is not None
                await self.advance(60.0)
                assert await turn_of(other, 9) is None
