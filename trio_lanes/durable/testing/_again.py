"""Tests of calls that are asked again: a step by its number, every other act by its ticket."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import trio

from ... import UnknownLaneError
from .. import DurableState, Finish, Selection, Step, Submission, SubmittedJob, Succeeded
from ..acts.inspection import AllInstances, AllLanes, AllStatistics, StatusOf
from ..acts.jobs import Enqueue
from ..acts.orders import Cancel, Clear, Configure, Pause, Purge, Requeue, Resume
from ..acts.runs import Checkpoint, LendSlot, RegainSlot
from ..store import STEP_BYTES
from ._bench import STOP, Bench, opening, stories, ticket


def one(payload: str = "1", **options: Any) -> SubmittedJob:
    return SubmittedJob(name="echo", payload=payload, **options)


@stories
class AgainStories:
    """Tests of calls that are asked again."""

    async def test_a_step_that_is_asked_again_gives_the_same_claims_and_does_nothing_more(
        self, bench: Bench
    ) -> None:
        async with bench.playing() as store:
            await store.enqueue([one(str(n)) for n in range(9)])
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

    async def test_a_step_that_is_asked_ahead_is_done_after_the_one_before(
        self, bench: Bench
    ) -> None:
        if not getattr(bench.store(), "steps_ahead", False):
            return
        steps: dict[int, Step] = {}

        async def ask(number: int, ends: Sequence[Finish], room: int) -> None:
            steps[number] = await store.store.step(number, ends, room)

        async def ask_both(first: int, ends: Sequence[Finish], room: int) -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask, first, ends[:2], room)
                await trio.lowlevel.checkpoint()  # until it is asked
                nursery.start_soon(ask, first + 1, ends[2:], room)

        async with bench.playing() as store:
            await store.enqueue([one(str(n)) for n in range(5)])
            await ask_both(1, [], 2)
            claims = [*steps[1].claims, *steps[2].claims]
            assert [claim.payload for claim in claims] == ["0", "1", "2", "3"]
            again = await store.store.step(2, [], 2)
            assert again.claims == steps[2].claims
            ends = [Finish(claim.id, claim.fence, Succeeded("1")) for claim in claims]
            await ask_both(3, ends, 1)
            assert [claim.payload for claim in steps[3].claims] == ["4"]
            assert (steps[3].stale, steps[4].stale, steps[4].claims) == ((), (), ())
            assert (await store.look(AllStatistics())).running == 1

    async def test_a_step_that_comes_after_a_later_one_does_nothing(self, bench: Bench) -> None:
        async with bench.playing() as store:
            (id,) = await store.enqueue([one()])
            (claim,) = (await store.step([], 1)).claims
            await store.step([], 0)
            late = await store.store.step(1, [Finish(id, claim.fence, Succeeded("1"))], 1)
            assert late == Step((), (), (), None)
            assert (await store.look(StatusOf(id))).state is DurableState.RUNNING

    async def test_the_answer_of_a_step_asked_again_has_no_run_that_others_have_ended(
        self, bench: Bench
    ) -> None:
        store = bench.played()
        async with store.open(opening()):
            await store.join()
            ids = await store.enqueue([one(), one()])
            claims = (await store.store.step(1, [], 2)).claims
            assert await store.do(Cancel(ids[0], STOP))
            again = await store.store.step(1, [], 2)
            assert again.claims == claims
            assert again.cancels == ((ids[0], claims[0].fence),)
            await store.leave()
            again = await store.store.step(1, [], 2)
            assert (again.claims, again.cancels) == ((), ())

    async def test_steps_are_counted_from_1_in_each_incarnation(self, bench: Bench) -> None:
        async with bench.playing() as store:
            for _ in range(3):
                await store.step([], 1)
            await store.join()
            await store.enqueue([one()])
            assert len((await store.store.step(1, [], 1)).claims) == 1

    async def test_the_claims_of_an_unanswered_step_are_given_back_by_the_next_join(
        self, bench: Bench
    ) -> None:
        async with bench.playing(max_crashes=1) as store:
            (ended, unknown) = await store.enqueue([one("1", session="a"), one("2")])
            (run, lost) = (await store.step([], 2)).claims
            await store.join(held=[run.fence])
            claims = (await store.step([Finish(ended, run.fence, Succeeded("7"))], 2)).claims
            assert [(claim.id, claim.crashes) for claim in claims] == [(unknown, 0)]
            assert claims[0].fence > lost.fence
            assert (await store.wait(ended)).outcome == "7"
            assert len(await store.look(AllInstances())) == 1

    async def test_a_run_that_ended_as_it_was_cancelled_with_the_lease_keeps_its_end(
        self, bench: Bench
    ) -> None:
        async with bench.playing(max_crashes=1) as store:
            await store.enqueue([one("1", session="a"), one("2", session="b")])
            (ended, cut) = (await store.step([], 2)).claims
            lost = [(ended.id, ended.fence), (cut.id, cut.fence)]
            await store.join(lost, held=[ended.fence])
            finish = Finish(ended.id, ended.fence, Succeeded("7"))
            claims = (await store.step([finish], 2)).claims
            assert [(claim.id, claim.crashes) for claim in claims] == [(cut.id, 0)]
            assert (await store.wait(ended.id)).outcome == "7"

    async def test_a_join_that_is_asked_again_is_one_incarnation(self, bench: Bench) -> None:
        store = bench.played()
        me = ticket()
        async with store.open(opening()):
            await store.store.join(me)
            await store.enqueue([one()])
            (claim,) = (await store.store.step(1, [], 1)).claims
            await store.store.join(me, [(claim.id, claim.fence)])
            (instance,) = await store.look(AllInstances())
            assert (instance.id, instance.running) == (me, 1)
            assert (await store.store.step(1, [], 1)).claims == (claim,)
            await store.leave()

    async def test_a_submission_with_the_same_ticket_is_accepted_once(self, bench: Bench) -> None:
        store = bench.store()
        async with store.open(opening(names=())):
            batch, mine = [one("1"), one("2")], ticket()
            ids = await store.do(Enqueue(batch), mine)
            assert await store.do(Enqueue(batch), mine) == ids
            assert (await store.look(AllStatistics())).waiting == 2
            assert await store.do(Enqueue(batch), ticket()) != ids

    async def test_a_refused_act_can_be_asked_again(self, bench: Bench) -> None:
        store = bench.store()
        async with store.open(opening(names=())):
            mine = ticket()
            for _ in range(2):
                with bench.raises(UnknownLaneError):
                    await store.do(Enqueue([one(lane="nowhere")]), mine)
            assert len(await store.do(Enqueue([one()]), mine)) == 1

    async def test_every_order_with_the_same_ticket_is_done_once(self, bench: Bench) -> None:
        async with bench.playing() as store:
            (first,) = await store.enqueue([one()])
            assert await store.twice(Cancel(first, STOP))  # it has ended: that was asked here
            mine = ticket()
            await store.enqueue([one(), one(session="s")])
            assert await store.do(Clear("main", None, STOP), mine) == 2
            await store.enqueue([one()])
            assert await store.do(Clear("main", None, STOP), mine) == 2
            assert (await store.look(AllStatistics())).waiting == 1
            mine = ticket()
            await store.do(Pause("main", None, 1e6), mine)
            await store.do(Resume("main", None), ticket())
            await store.do(Pause("main", None, 1e6), mine)
            mine = ticket()
            await store.do(Configure({"main": 2}, None, {}), mine)
            await store.do(Configure({"main": 4}, None, {}), ticket())
            await store.do(Configure({"main": 2}, None, {}), mine)
            lane = (await store.look(AllLanes()))["main"]
            assert (lane.concurrency, lane.paused_until) == (4, None)
            (claim,) = (await store.step([], 1)).claims
            lend = ticket()
            assert await store.do(LendSlot(claim.id, claim.fence), lend)
            assert await store.do(RegainSlot(claim.id, claim.fence)) is True
            assert await store.do(LendSlot(claim.id, claim.fence), lend)
            others = await store.enqueue([one() for _ in range(4)])
            assert len((await store.step([], 9)).claims) == 3  # the run has its slot
            mine = ticket()
            assert await store.do(Checkpoint(claim.id, claim.fence, "1"), mine)
            assert await store.do(Checkpoint(claim.id, claim.fence, "2"))
            assert await store.do(Checkpoint(claim.id, claim.fence, "1"), mine)
            await store.leave()
            await store.join()
            claims = (await store.step([], 9)).claims
            assert [one.checkpoint for one in claims if one.id == claim.id] == ["2"]
            assert others

    async def test_requeue_and_purge_with_the_same_ticket_are_done_once(self, bench: Bench) -> None:
        async with bench.doomed(Submission(name="echo", payload=1), max_crashes=1) as claims:
            pass
        async with bench.playing() as store:
            id = claims[0].id
            mine, again = ticket(), ticket()
            assert await store.do(Requeue(Selection(id=id)), mine) == 1
            (claim,) = (await store.step([], 1)).claims
            await store.step([Finish(id, claim.fence, Succeeded("1"))], 0)
            assert await store.do(Requeue(Selection(id=id)), mine) == 1
            assert (await store.look(StatusOf(id))).state is DurableState.SUCCEEDED
            assert await store.do(Purge(Selection()), again) == 0

    async def test_an_instance_reads_no_jobs_of_handlers_that_it_lacks(self, bench: Bench) -> None:
        async with bench.playing(names=["echo", "gate"]) as store:
            names = ["other", "gate", "echo", "other", "echo", "gate"]
            batch = [SubmittedJob(name=name, payload=str(n)) for n, name in enumerate(names)]
            await store.enqueue(batch)
            claims = (await store.step([], 9)).claims
            assert [claim.payload for claim in claims] == ["1", "2", "4", "5"]
            assert (await store.look(AllStatistics())).unhandled == 2

    async def test_a_lower_priority_has_one_turn_in_ten_over_all_instances(
        self, bench: Bench
    ) -> None:
        instances = 3 if bench.store().leased else 1
        async with AsyncExitStack() as opened:
            stores = [await opened.enter_async_context(bench.playing()) for _ in range(instances)]
            await stores[0].enqueue([one("-1", priority=-1), *(one(priority=1) for _ in range(30))])
            turns: list[str] = []
            while "-1" not in turns:
                store = stores[len(turns) % len(stores)]
                (claim,) = (await store.step([], 1)).claims
                turns.append(claim.payload)
                await store.step([Finish(claim.id, claim.fence, Succeeded("1"))], 0)
            assert len(turns) == 10

    async def test_of_ten_claims_the_highest_priority_has_eight_and_each_lower_one(
        self, bench: Bench
    ) -> None:
        async with bench.playing() as store:
            await store.do(Configure({"main": 30}, None, {}))
            await store.enqueue(
                [one(str(priority), priority=priority) for priority in (1, 0, -1) * 20]
            )
            turns = [(await store.step([], 1)).claims[0].payload for _ in range(20)]
            assert turns == ([*"11111111", "0", "-1"]) * 2

    async def test_the_claims_of_a_step_have_four_mebibytes_or_are_one_job(
        self, bench: Bench
    ) -> None:
        async with bench.playing() as store:
            large = '"' + "x" * (STEP_BYTES // 3) + '"'
            await store.enqueue([one(large) for _ in range(4)])
            assert len((await store.step([], 9)).claims) == 2
            assert len((await store.step([], 9)).claims) == 2
            huge = '"' + "é" * (STEP_BYTES // 2) + '"'
            await store.join()
            await store.do(Clear("main", None, STOP))
            await store.enqueue([one(huge), one()])
            assert len((await store.step([], 9)).claims) == 1
            assert len((await store.step([], 9)).claims) == 1
