"""Tests of schedules: each due time is one job, on whichever instance."""

from __future__ import annotations

from typing import Any, Final

import attrs

from trio_lanes.durable import DurableSchedule, DurableState
from trio_lanes.durable.acts.jobs import Enqueue
from trio_lanes.durable.acts.schedules import (
    DropSchedule,
    FireSchedule,
    PauseSchedule,
    PutSchedule,
    SchedulesOf,
)
from trio_lanes.durable.store import NAMES_LISTED, SubmittedJob

from .bench import STOP, Bench, Played, new_job

FAR: Final = 10**6
"""Seconds between two due times of a schedule that no instance fires in a test."""


async def put(store: Played, due: float, name: str = "s", **options: Any) -> None:
    """Set a schedule with a next due time."""
    options.setdefault("job", new_job(name))
    options.setdefault("every", FAR)
    await store.do(PutSchedule(DurableSchedule(name=name, next=due, **options)))


async def all_of(store: Any) -> list[DurableSchedule]:
    """Return the first page of schedules, without the ids."""
    _, found = await store.look(SchedulesOf(None, 0))
    return [attrs.evolve(one, id=0, version=0) for one in found]


async def version_of(store: Any) -> int:
    """Return the version of the schedule of the tests."""
    _, found = await store.look(SchedulesOf("s", None))
    return found[0].version if found else 0


async def fired(
    store: Any, due: float, following: float, *jobs: SubmittedJob, overlap: str = "skip"
) -> FireSchedule:
    """Return the act that fires the schedule of the tests."""
    version = await version_of(store)
    return FireSchedule("s", version, due, following, due, 0, overlap, STOP, None, jobs)


async def paused(store: Any, due: float | None) -> PauseSchedule:
    """Return the act that pauses the schedule of the tests, or lets it go on."""
    return PauseSchedule("s", await version_of(store), due)


class ScheduleStories(Bench):
    async def test_a_due_time_is_fired_once_with_its_job(self) -> None:
        async with self.playing() as store:
            assert (await store.step([], 0)).fires is None
            await put(store, 2.0 * FAR)
            fires = (await store.step([], 0)).fires
            assert fires is not None
            await put(store, 1.0 * FAR, "t")
            assert await store.twice(
                await fired(store, 2.0 * FAR, 3.0 * FAR, new_job("x", key="s@2"))
            )
            assert not await store.do(
                await fired(store, 2.0 * FAR, 3.0 * FAR, new_job("y", key="s@2b"))
            )
            assert not await store.do(FireSchedule("none", 1, 1, 2, 1, 0, "skip", STOP, None, ()))
            (claim,) = await store.claim(9)
            assert claim.payload == '"x"'
            s, t = await all_of(store)
            assert (s.next, s.last, s.last_id, s.skipped) == (3.0 * FAR, 2.0 * FAR, claim.id, 0)
            assert (t.next, t.last, t.last_id, t.paused) == (1.0 * FAR, None, None, False)
            assert (s.job, s.every) == (new_job("s"), FAR)

    async def test_a_job_that_overlaps_is_skipped_or_queued_or_cancels_the_one_before(self) -> None:
        async with self.playing() as store:
            await put(store, 1.0)
            ids: list[int | None] = []
            for due, overlap in ((1.0, "skip"), (2.0, "skip"), (3.0, "queue"), (4.0, "cancel")):
                assert await store.do(
                    await fired(store, due, due + 1, new_job(due), overlap=overlap)
                )
                (s,) = await all_of(store)
                ids.append(s.last_id)
            assert ids[0] == ids[1] != ids[2] != ids[3]
            assert (s.skipped, s.last, s.next) == (1, 4.0, 5.0)
            assert [claim.payload for claim in await store.claim(9)] == ["1.0", "4.0"]
            await store.do(await fired(store, 5.0, 6.0, new_job(5), overlap="cancel"))
            assert [id for id, _ in (await store.step([], 0)).cancels] == [ids[3]]
            assert await store.do(
                await fired(store, 6.0, 7.0, overlap="cancel")
            )  # nothing is submitted
            (claim,) = await store.claim(9)
            await store.end(claim)
            assert await store.do(await fired(store, 7.0, 8.0, new_job(7)))
            assert [claim.payload for claim in await store.claim(9)] == ["7"]

    async def test_a_schedule_that_is_put_again_keeps_its_past_and_its_due_time(self) -> None:
        async with self.playing() as store:
            await put(store, 1.0)
            await store.do(await fired(store, 1.0, 2.0, new_job(1)))
            await put(store, 9.0, job=new_job("new"), overlap="queue")
            (s,) = await all_of(store)
            assert (s.next, s.last, s.job.payload, s.overlap) == (2.0, 1.0, '"new"', "queue")
            await put(store, 9.0, every=None, cron="* * * * *")
            (s,) = await all_of(store)
            assert (s.next, s.last, s.every, s.cron) == (9.0, 1.0, None, "* * * * *")
            assert await store.twice(await paused(store, None))
            assert not await store.do(await fired(store, 9.0, 10.0, new_job(2)))
            assert (await store.step([], 0)).fires is None
            await put(store, 12.0)  # it stays paused
            assert [one.paused for one in await all_of(store)] == [True]
            assert await store.do(await paused(store, 15.0))
            assert await store.do(await paused(store, 16.0))  # it is not paused
            assert [one.next for one in await all_of(store)] == [15.0]
            assert (await store.step([], 0)).fires is not None
            assert await store.twice(DropSchedule("s"))
            assert not await store.do(DropSchedule("s"))
            assert not await store.do(await paused(store, None))
            assert ((await store.step([], 0)).fires, await all_of(store)) == (None, [])

    async def test_a_schedule_that_is_replaced_while_it_fires_submits_nothing_of_the_former(
        self,
    ) -> None:
        async with self.playing() as store:
            await put(store, 1.0)
            late = await fired(store, 1.0, 2.0, new_job("old"))
            resumed = await paused(store, 5.0)
            await put(store, 1.0, job=new_job("new"))
            assert not await store.do(late)
            assert await store.do(await paused(store, None))
            await put(store, 1.0, every=None, cron="* * * * *")
            assert not await store.do(resumed)  # by the former due times
            assert [(one.next, one.last) for one in await all_of(store)] == [(None, None)]
            await store.do(DropSchedule("s"))
            await put(store, 1.0)
            assert not await store.do(late)
            assert await store.do(await fired(store, 1.0, 2.0, new_job("newest")))
            assert [claim.payload for claim in await store.claim(9)] == ['"newest"']

    async def test_a_schedule_or_a_due_time_that_is_refused_changes_nothing(self) -> None:
        async with self.instance(worker=False) as lanes, self.playing() as store:
            for bad in (new_job(lane="none"), new_job(cost={"tokens": 1})):
                with self.raises(LookupError, ValueError):
                    await put(store, 1.0, job=bad)
            assert await lanes.schedules() == []
            await put(store, 9e9)
            before = await lanes.schedules()
            await store.do(Enqueue([new_job("a", key="k")]))
            with self.raises(ValueError):
                await store.do(await fired(store, 9e9, 9.1e9, new_job("b", key="k")))
            assert await lanes.schedules() == before
            for name in ("pause", "resume"):
                with self.raises(LookupError):
                    await getattr(lanes, name)("schedule:none")
            assert not await lanes.unschedule("none")
            assert await lanes.unschedule("s")

    async def test_an_instance_fires_what_is_due_and_makes_up_what_was_missed(self) -> None:
        async with self.instance(worker=False) as lanes, self.playing() as store:
            now, _ = await store.look(SchedulesOf(None, 0))
            await put(store, now - 1_000, every=200, catch_up=2, overlap="queue")
            await put(store, now - 10, "t", job=new_job("refused", lane="cron"))
            await lanes.configure({"cron": None})
        async with self.instance(lanes={"main": 4}) as lanes:
            await self.reaped_until(2)
            s, t = await lanes.schedules()
            assert self.log.count("s") in (2, 3)  # one may have been due in the last minute
            assert s.skipped >= 3
            assert t.last is None  # the store refused its job
            assert t.skipped in (1, 2)
            assert s.next is not None
            await lanes.pause("schedule:s")
            await lanes.resume("schedule:s")
            assert s.next <= (await lanes.schedules())[0].upcoming(3)[0]
            await lanes.schedule("every", "echo", "e", every=0.25)
            await self.reaped_until(len(self.log) + 2)
            (job,) = await lanes.jobs(states=[DurableState.SUCCEEDED], handler="echo", limit=1)
            assert str(job.key).startswith("s@")

    async def reaped_until(self, entries: int) -> None:
        """Let time pass until the log has so many entries."""
        tries = iter(range(200))
        while len(self.log) < entries and next(tries, None) is not None:
            await self.advance(0.1)
        assert len(self.log) >= entries, self.log
        await self.settle()

    async def test_all_schedules_are_listed_by_name(self) -> None:
        async with self.instance(worker=False) as lanes, self.playing() as store:
            names = [f"{n:03}" for n in range(NAMES_LISTED, -1, -1)]
            for name in names:
                await put(store, 9e9, name)
            assert [one.name for one in await lanes.schedules()] == sorted(names)
