"""Tests of the verdict on a store: what is a problem besides a long wait, and what is none."""

from __future__ import annotations

import logging
import math
import re
from contextlib import AsyncExitStack
from typing import Any

import trio

from trio_lanes import LaneGroup, Problem, RateLimit
from trio_lanes.durable import DurableLanes, DurableState, StoreUnavailableError

from .bench import LEASE, ONCE, Bench, needs, new_job, this_run

CLOCK = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC")


async def of_kind(lanes: DurableLanes, kind: str, **options: Any) -> list[Problem]:
    """Return the problems of one kind."""
    return [one for one in await lanes.health(**options) if one.kind == kind]


def text_of(problem: Problem) -> str:
    """Return the text without the names of hosts and processes, and without the time of day."""
    return re.sub(r" \S+ \d+ (for|\()", r" A \1", CLOCK.sub("TIME", problem.text))


class VerdictStories(Bench):
    """Tests of `DurableLanes.health`."""

    @needs("virtual time")
    async def test_it_is_a_problem_that_all_slots_hang_while_jobs_wait(self) -> None:
        async with self.instance(lanes={"main": 2, "cron": 1}) as lanes:
            first = await self.submitted("gate", "a")
            await self.advance(100)
            await self.submitted("gate", "b", session="s")
            await self.submitted("echo", session="s")
            jobs = [await self.submitted("echo") for _ in range(2)]
            await self.advance(299)
            assert await lanes.health() == ()
            assert await of_kind(lanes, "standstill", standstill_after=200)
            await self.advance(2)
            (problem,) = await lanes.health()
            assert (problem.kind, problem.lane, problem.job) == ("standstill", "main", jobs[0].id)
            assert problem.text.startswith(
                "nothing of 'main' has started, ended or made progress for 301 s, and 3 wait; "
                f'{jobs[0].id} ← slots of "main": all 2 in use, longest by {first.id}: '
            )
            assert problem.advice.startswith(f"cancel {first.id}, or reset the lanes of ")
            assert problem.advice.endswith(
                "; raise standstill_after of 'main' if its jobs may take so long"
            )
            assert await lanes.health(standstill_after=math.inf) == ()
            async with self.instance(worker=False) as asking:
                await self.advance(300)  # the time of a file is that of the last act in it
                found = await asking.health()
                assert [one.kind for one in found] == ["standstill"]
                assert found.sentence == "1 problem; not looked at: the bodies of other processes"
            await lanes.cancel(first.id)
            await self.settle()
            assert await lanes.health() == ()
            self.open("b")

    @needs("virtual time")
    async def test_a_run_that_ends_or_tells_of_progress_is_a_sign_of_life(self) -> None:

        async def tells(payload: Any) -> None:
            await self.gate("progress").wait()
            this_run().progress()
            await self.gate("end").wait()

        async with self.instance(lanes={"main": 2}, handlers={"tells": tells}) as lanes:
            await self.submitted("tells")
            await self.gates("ab")
            await lanes.configure({"main": 1})
            await self.submitted("echo")
            await self.advance(250)
            await self.opened("progress")
            await self.advance(250)
            assert await of_kind(lanes, "standstill") == []
            await self.opened("a")
            assert await of_kind(lanes, "standstill") == []
            await self.advance(290)
            assert await of_kind(lanes, "standstill") == []
            await self.advance(20)
            assert len(await of_kind(lanes, "standstill")) == 1
            self.open("b", "end")

    @needs("virtual time")
    async def test_a_lane_stands_still_behind_the_slots_of_its_group(self) -> None:
        groups = {"g": LaneGroup(["main", "cron"], concurrency=1)}
        async with self.instance(lanes={"main": 4, "cron": 4}, groups=groups) as lanes:
            await self.submitted("gate", "a", lane="cron")
            await self.advance(1000)
            job = await self.submitted("echo")
            await self.advance(299)
            assert await of_kind(lanes, "standstill") == []
            await self.advance(2)
            (problem,) = await of_kind(lanes, "standstill")
            assert (problem.lane, problem.job) == ("main", job.id)
            assert 'slots of the group "g"' in problem.text
            self.open("a")

    @needs("virtual time")
    async def test_a_pause_a_session_and_a_free_slot_are_no_standstill(self) -> None:
        async with self.instance(lanes={"main": 2, "cron": 1, "one": 1}) as lanes:
            await self.gates("a", session="s")
            await self.gates("b", lane="cron")
            await self.gates("c", lane="one", session="t")
            await self.submitted("echo", session="s")
            await self.submitted("echo", lane="cron")
            await self.submitted("echo", lane="one", session="t")
            await lanes.pause("cron")
            await self.advance(1000)
            assert [one.kind for one in await lanes.health()] == ["pause"]
            self.open("a", "b", "c")

    @needs("virtual time")
    async def test_it_is_a_problem_for_an_hour_that_jobs_have_died(self) -> None:
        async with self.instance(retry=ONCE) as lanes:
            for n in range(3):
                await self.submitted("bad", n)
            await self.submitted("bad", lane="cron")
            assert [one.lane for one in await of_kind(lanes, "dead")] == ["main", "cron"]
            await self.advance(3000)
            late = await self.submitted("bad", 9)
            await self.advance(700)
            (problem,) = await lanes.health()
            assert (problem.kind, problem.lane, problem.job) == ("dead", "main", late.id)
            assert str(problem) == (
                "1 of 'main' died within the last hour: 1 by ValueError; 4 are dead in all: "
                "look at them by trio-lanes failures, and requeue or purge them"
            )
            await lanes.purge(late.id)
            assert await lanes.health() == ()
            assert (await lanes.statistics()).dead == 4

    @needs("virtual time")
    async def test_the_errors_of_dead_letters_are_counted_by_their_types(self) -> None:

        async def fails(payload: Any) -> None:
            raise type(payload, (Exception,), {"__module__": "builtins"})

        async with self.instance(retry=ONCE, handlers={"fails": fails}) as lanes:
            for name in "ABCDA":
                await self.submitted("fails", f"{name}Error")
            (problem,) = await lanes.health()
            assert problem.text == (
                "5 of 'main' died within the last hour: 2 by AError, 1 by BError, 1 by CError, ...;"
                " 5 are dead in all"
            )

    @needs("virtual time")
    async def test_it_is_a_problem_that_a_schedule_skips_for_one_run(self) -> None:
        async with self.instance() as lanes:
            await lanes.schedule("tick", "gate", "a", every=100)
            await lanes.schedule("tock", "echo", every=100)
            for _ in range(3):
                await self.advance(100)
                await self.settle()
            assert await lanes.health() == ()
            await self.advance(100)
            await self.settle()
            (problem,) = await lanes.health()
            (run,) = await lanes.jobs(states=[DurableState.RUNNING])
            assert (problem.kind, problem.lane, problem.job) == (
                "schedule",
                "schedule:tick",
                run.id,
            )
            assert text_of(problem) == (
                f"schedule 'tick' has skipped its last 3 due times: its job {run.id} has run since "
                f"TIME, for {problem.text.rpartition(' for ')[2]}"
            )
            assert problem.advice == f"cancel {run.id}, or give the schedule another overlap"
            (one, _) = await lanes.schedules()
            assert (one.skipped_in_row, one.refused) == (3, None)
            await lanes.pause("schedule:tick")
            assert await lanes.health() == ()
            await lanes.resume("schedule:tick")
            assert len(await lanes.health()) == 1
            await lanes.cancel(run.id)
            await self.settle()
            assert await lanes.health() == ()
            await self.advance(100)
            await self.settle()
            (one, _) = await lanes.schedules()
            assert one.skipped_in_row == 0
            self.open("a")

    @needs("virtual time")
    async def test_a_schedule_whose_job_waits_skips_as_well_and_one_that_queues_does_not(
        self,
    ) -> None:
        async with self.instance() as lanes:
            await lanes.pause("cron")
            await lanes.schedule("tick", "echo", every=100, lane="cron")
            await lanes.schedule("tock", "echo", every=100, lane="cron", overlap="queue")
            for _ in range(4):
                await self.advance(100)
                await self.settle()
            (problem,) = await of_kind(lanes, "schedule")
            assert problem.lane == "schedule:tick"
            assert " has waited since " in problem.text
            await lanes.clear("cron")
            assert await of_kind(lanes, "schedule") == []

    @needs("virtual time")
    async def test_it_is_a_problem_that_the_last_job_of_a_schedule_was_refused(self) -> None:
        async with self.instance(lanes={"main": 4, "full": 4}) as lanes:
            await lanes.schedule("tick", "echo", every=100, lane="full", overlap="queue")
            full = 'the lane "full" is not in the store'
            await lanes.configure({"full": None})
            await self.advance(100)
            await self.settle()
            (problem,) = await lanes.health()
            assert (problem.kind, problem.lane) == ("schedule", "schedule:tick")
            text = "the last job of schedule 'tick' was refused: UnknownLaneError: "
            assert problem.text.startswith(text), full
            await lanes.configure({"full": 4})
            assert len(await lanes.health()) == 1
            await self.advance(100)
            await self.settle()
            assert await lanes.health() == ()

    @needs("virtual time")
    async def test_it_is_a_problem_that_work_waits_for_a_quota_that_gives_nothing_back(
        self,
    ) -> None:

        async def spends(payload: Any) -> None:
            await self.lanes.quota(payload).spend(requests=1, wait=True)

        a_day = RateLimit(1, per="day")
        quotas = {"budget": a_day, "fast": RateLimit(1, per=50.0, algorithm="sliding")}
        async with self.instance(quotas=quotas, handlers={"spends": spends}) as lanes:
            for name in ("budget", "fast"):
                await lanes.quota(name).spend(requests=1)
            jobs = [await self.submitted("spends", name) for name in quotas]
            await self.advance(8)
            assert await lanes.health() == ()
            await self.advance(3)
            (problem,) = await lanes.health()
            assert (problem.kind, problem.lane, problem.job) == ("quota", "budget", jobs[0].id)
            assert text_of(problem).startswith(
                "1 wait for the quota 'budget', the first for 11 s (1 used of 1 a day in UTC); it "
                "gives nothing back until TIME, for "
            )
            assert (
                problem.advice == 'raise the limit of the quota "budget", grant more, or reset it'
            )
            await lanes.reset_quota("budget")
            await self.settle()
            assert await lanes.health() == ()

    @needs("virtual time")
    async def test_a_task_that_waits_for_a_spent_budget_counts_as_well(self) -> None:
        quotas = {"budget": RateLimit(1, per="day")}
        async with self.instance(quotas=quotas) as lanes, trio.open_nursery() as nursery:
            await lanes.quota("budget").spend(requests=1)
            nursery.start_soon(lambda: lanes.quota("budget").spend(requests=1, wait=True))
            await self.settle()
            await self.advance(11)
            (problem,) = await lanes.health()
            assert (problem.kind, problem.lane, problem.job) == ("quota", "budget", None)
            nursery.cancel_scope.cancel()

    @needs("leases", "virtual time")
    async def test_it_is_a_problem_that_an_instance_is_silent_for_half_of_its_lease(self) -> None:
        async with self.instance(worker=False) as asking:
            async with self.doomed(new_job("a", "gate")):
                await self.advance(LEASE * 0.4)
                assert await of_kind(asking, "instance") == []
                await self.advance(LEASE * 0.2)
                (problem,) = await of_kind(asking, "instance")
                assert text_of(problem).startswith("silent for longer than half of a lease: ")
                assert "(its 1 runs are given up in " in problem.text
            await self.advance(LEASE)
            (problem,) = await of_kind(asking, "instance")
            assert "(its 1 runs are given up by the next instance that lives)" in problem.text
            async with self.instance() as lanes:
                await self.settle()
                assert await of_kind(lanes, "instance") == []
                self.open("a")
                await self.settle()
            assert await asking.health() == ()

    @needs("leases", "virtual time")
    async def test_who_gives_an_instance_up_says_so_in_its_log(self) -> None:
        lines: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
        logger = logging.getLogger("trio_lanes.durable")
        logger.addHandler(handler)
        try:
            async with self.doomed(new_job("a", "gate"), new_job("b", "gate")):
                pass
            async with self.playing(lease_ttl=1000.0) as store:
                (line,) = [one for one in lines if "is given up" in one]
                assert "is given up: its 2 runs are given back, and count a crash" in line
                async with self.doomed(names=frozenset()):
                    pass
                assert await store.beat()
                _, line = [one for one in lines if "is given up" in one]
                assert "is given up: its 0 runs are given back, and count a crash" in line
        finally:
            logger.removeHandler(handler)

    @needs("leases", "virtual time")
    async def test_several_silent_instances_are_one_problem(self) -> None:
        async with self.instance(worker=False) as asking, AsyncExitStack() as stack:
            for _ in range(4):
                await stack.enter_async_context(self.playing(lease_ttl=10.0))
            await self.advance(6)
            (problem,) = await of_kind(asking, "instance")
            assert problem.text.endswith(", and 1 more")

    @needs("virtual time")
    async def test_it_is_a_problem_that_work_is_due_and_no_instance_lives(self) -> None:
        async with self.instance(worker=False) as asking:
            await asking.submit("echo", delay=100)
            await self.advance(105)
            assert await asking.health() == ()
            await self.advance(10)
            (problem,) = await asking.health()
            assert (problem.kind, problem.lane, problem.job) == ("instance", "", None)
            assert str(problem) == (
                "no instance lives, and 1 are due, the first for 15 s: start a worker"
            )
            async with self.instance() as lanes:
                await self.settle()
                assert await lanes.health() == ()

    async def test_a_store_that_cannot_be_reached_is_a_problem_and_no_error(self) -> None:
        async with self.instance() as lanes:
            store: Any = lanes._store
            look = store.look

            async def fails(question: Any) -> Any:
                raise StoreUnavailableError("it is gone")

            store.look = fails
            found = await lanes.health()
            (problem,) = found
            assert (problem.kind, problem.lane, found.looked) == ("store", "", False)
            assert problem.text == "the store cannot be reached: it is gone"
            assert found.sentence == "1 problem; not looked at: the store"

            async def fails_then(question: Any) -> Any:
                store.look = fails
                return await look(question)

            store.look = fails_then
            found = await lanes.health()
            assert found.sentence == "1 problem; not looked at: the rest of the store"
            store.look = look
            found = await lanes.health()
            assert (found, found.looked, found.sentence) == ((), True, "healthy")

    @needs("virtual time")
    async def test_with_too_many_schedules_the_verdict_says_that_some_were_left_out(self) -> None:
        async with self.instance() as lanes:
            for n in range(201):
                await lanes.schedule(f"n{n}", "echo", every=1e6)
            found = await lanes.health()
            assert found.sentence == "healthy; not looked at: some of the schedules"
