"""Ways through the script that the stories and random lives seldom take, or never."""

import itertools
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from tests.durable.conformance.bench import Played, opening, ticket
from trio_lanes import RateLimit
from trio_lanes.durable import (
    DurableState,
    Finish,
    LaneLimit,
    Released,
    Selection,
    SubmittedJob,
    Succeeded,
)
from trio_lanes.durable.acts.inspection import AllLanes, BlockersOf, JobsOf, StatusOf
from trio_lanes.durable.acts.locks import Settle, Spend
from trio_lanes.durable.acts.logs import LogPage, WriteLog
from trio_lanes.durable.acts.orders import Clear, Configure, Pause
from trio_lanes.durable.acts.runs import Checkpoint, LendSlot, RegainSlot, Send
from trio_lanes.durable.store import JOBS_LISTED, MESSAGES_KEPT

from .clock import EPOCH, KEY
from .place import Place
from .server import Server
from .test_check import Keys

pytestmark = pytest.mark.real_processes
PLACE = Place()
TEMPLATES = {"main": LaneLimit(4), "one": LaneLimit(1), "tenant:*": LaneLimit(2)}
_names = itertools.count(1)


class Stage:
    """Instances of one namespace, which a test plays, and their clock."""

    def __init__(self, place: Place) -> None:
        self.clock = place.clock()
        self.namespace = f"rare-{next(_names)}"
        self._place = place

    def played(self) -> Played:
        """Return an instance that is not open."""
        return Played(self._place.store(Path(self.namespace)))

    def run(self, test: Callable[[Played], Awaitable[None]], **options: Any) -> None:
        """Run a test with one instance that has joined."""
        opened = attrs.evolve(opening(**options), lanes=TEMPLATES, lease_ttl=1e9)

        async def main() -> None:
            store = self.played()
            async with store.store.open(opened):
                await store.join()
                await test(store)

        trio.run(main, clock=self.clock)


@pytest.fixture
def stage(server: Server) -> Iterator[Stage]:
    PLACE.server = server
    yield Stage(PLACE)
    PLACE.close()


def echo(**options: Any) -> SubmittedJob:
    return SubmittedJob(name="echo", **options)


def test_a_job_whose_checkpoint_data_were_deleted_runs_without_them(
    stage: Stage, server: Server
) -> None:
    async def test(store: Played) -> None:
        await store.enqueue([echo(), echo()])
        (one, other) = (await store.step([], 2)).claims
        assert await store.do(Checkpoint(one.id, one.fence, '"data"'))
        await store.step([Finish(one.id, one.fence, Released())], 0)
        server.ask("DEL", f"{{{stage.namespace}}}:c:{one.id}")
        (again,) = (await store.step([Finish(other.id, other.fence, Succeeded("1"))], 2)).claims
        assert (again.id, again.checkpoint) == (one.id, None)

    stage.run(test)


def test_nothing_is_kept_of_owners_without_waiting_jobs(stage: Stage, server: Server) -> None:
    def kept() -> set[str]:
        keys = server.ask("KEYS", f"{{{stage.namespace}}}:*")
        return {key.split(":")[1] for key in keys} & {"ph", "pb", "sh"}

    async def test(store: Played) -> None:
        weighted = LaneLimit(99, fair=True, weights={"a": 3, "b*": 2})
        await store.do(Configure({"main": weighted}, None, {}))
        await store.enqueue([echo(owner=f"b{n % 3}") for n in range(9)] + [echo(owner="a")])
        assert kept() == {"ph", "pb", "sh"}
        assert len(await store.claim(10)) == 10
        assert kept() == set()

    stage.run(test)


def test_a_clock_that_is_set_back_does_not_set_the_store_back(stage: Stage, server: Server) -> None:
    async def test(store: Played) -> None:
        await store.enqueue([echo()])
        server.ask("HINCRBY", KEY, "seconds", -3600)
        (late,) = await store.enqueue([echo()])
        (before, after) = await store.look(JobsOf(Selection(), 0, 9))
        assert after.id == late
        assert after.submitted_at >= before.submitted_at
        server.ask("HINCRBY", KEY, "seconds", 3600)

    stage.run(test)


def test_very_many_jobs_with_a_run_at_follow_the_clock_in_portions(stage: Stage) -> None:
    async def test(store: Played) -> None:
        for _ in range(2):
            await store.enqueue([echo(delay=600.0, run_at=EPOCH + 600) for _ in range(300)])
        for ahead, until in ((-300, 900), (-600, 1200)):
            stage.clock.set_clock(ahead)
            for _ in range(3):  # two portions, and a look for more
                assert await store.beat()
            found = await store.look(JobsOf(Selection(), 0, JOBS_LISTED))
            assert [round(job.until or 0) - EPOCH for job in found] == [until] * 600

    stage.run(test)


def test_a_changed_sliding_limit_forgets_what_has_left_the_window(stage: Stage) -> None:
    async def test(store: Played) -> None:
        def limit(most: int) -> LaneLimit:
            return LaneLimit(9, rates=(RateLimit(most, per=10.0, algorithm="sliding"),))

        await store.do(Configure({"one": limit(3)}, None, {}), ticket())
        await store.enqueue([echo(lane="one") for _ in range(9)])
        assert len((await store.step([], 2)).claims) == 2
        stage.clock.jump(6)
        assert len((await store.step([], 9)).claims) == 1
        stage.clock.jump(6)  # two have left the window
        await store.do(Configure({"one": limit(4)}, None, {}), ticket())
        assert len((await store.step([], 9)).claims) == 3

    stage.run(test)


def test_a_charge_that_is_given_back_whole_leaves_the_limit_fully_replenished(stage: Stage) -> None:
    async def test(store: Played) -> None:
        limits = [RateLimit(60, burst=1)]
        _, at, _ = await store.do(Spend("q", limits, {"requests": 5}), ticket())
        await store.do(Settle("q", limits, at, {"requests": -5}), ticket())
        assert (await store.do(Spend("q", limits, {"requests": 5}), ticket()))[0] == 0

    stage.run(test)


def test_an_earlier_charge_is_lessened_and_the_later_ones_stay(stage: Stage) -> None:
    async def test(store: Played) -> None:
        limits = [RateLimit(5, per=10.0, algorithm="sliding")]
        _, at, _ = await store.do(Spend("q", limits, {"requests": 3}), ticket())
        stage.clock.jump(5)
        await store.do(Spend("q", limits, {"requests": 2}), ticket())
        await store.do(Settle("q", limits, at, {"requests": -1}), ticket())
        assert (await store.do(Spend("q", limits, {"requests": 1}), ticket()))[0] == 0
        assert (await store.do(Spend("q", limits, {"requests": 2}), ticket()))[1] is None
        stage.clock.jump(6)  # the first charge has left the window
        assert (await store.do(Spend("q", limits, {"requests": 0}), ticket()))[1] is not None

    stage.run(test)


def test_an_idle_instance_that_is_gone_is_passed_over(stage: Stage) -> None:
    async def test(store: Played) -> None:
        dead = stage.played()
        async with dead.store.open(opening(names=["other"])):
            await dead.join()
            await dead.step([], 9)
        await store.enqueue([SubmittedJob(name="other")])
        assert (await store.step([], 9)).claims == ()

    stage.run(test)


def test_a_freed_slot_wakes_the_instance_whose_run_wants_it_back(stage: Stage) -> None:
    async def test(store: Played) -> None:
        other = stage.played()
        async with other.store.open(attrs.evolve(opening(), lanes=TEMPLATES, lease_ttl=1e9)):
            await other.join()
            await store.enqueue([echo(lane="one"), echo(lane="one")])
            (mine,) = (await store.step([], 1)).claims
            assert await store.do(LendSlot(mine.id, mine.fence))
            (theirs,) = (await other.step([], 1)).claims
            assert await store.do(RegainSlot(mine.id, mine.fence)) is False
            async with trio.open_nursery() as nursery:

                async def regain() -> None:
                    async for _ in store.wake():
                        if await store.do(RegainSlot(mine.id, mine.fence)):
                            nursery.cancel_scope.cancel()

                nursery.start_soon(regain)
                await other.step([Finish(theirs.id, theirs.fence, Succeeded("1"))], 0)

    stage.run(test)


def test_a_run_that_had_lent_its_slot_is_no_suspect_after_a_crash(stage: Stage) -> None:
    async def test(store: Played) -> None:
        (id,) = await store.enqueue([echo()])
        (claim,) = (await store.step([], 1)).claims
        assert await store.do(LendSlot(id, claim.fence))
        await store.leave()
        await store.join()
        (claim,) = (await store.step([], 1)).claims
        assert claim.crashes == 1

    stage.run(test)


def test_the_key_of_a_job_that_is_due_to_be_forgotten_is_free(stage: Stage) -> None:
    async def test(store: Played) -> None:
        (first,) = await store.enqueue([echo(key="k")])
        (claim,) = (await store.step([], 1)).claims
        await store.step([Finish(first, claim.fence, Succeeded("1"))], 0)
        stage.clock.jump(101)
        (second,) = await store.enqueue([echo(key="k")])
        assert second > first
        assert await store.look(StatusOf(first)) is None

    stage.run(test)


def test_suspects_of_a_crash_are_claimed_in_smaller_numbers(stage: Stage) -> None:
    async def test(store: Played) -> None:
        await store.enqueue([echo() for _ in range(4)])
        assert len((await store.step([], 9)).claims) == 4
        await store.leave()
        await store.join()
        assert len((await store.step([], 9)).claims) == 2

    stage.run(test, max_crashes=2)


def test_a_suspect_waits_until_an_instance_runs_fewer_jobs(stage: Stage) -> None:
    async def test(store: Played) -> None:
        await store.enqueue([echo(lane="tenant:a") for _ in range(2)])
        mine = (await store.step([], 2)).claims
        other = stage.played()
        opened = attrs.evolve(opening(max_crashes=2), lanes=TEMPLATES, lease_ttl=1e9)
        async with other.store.open(opened):
            await other.join()
            await other.enqueue([echo() for _ in range(2)])
            assert len((await other.step([], 2)).claims) == 2
            await other.leave()
        assert (await store.step([], 9)).claims == ()
        ends = [Finish(one.id, one.fence, Succeeded("1")) for one in mine]
        assert len((await store.step(ends, 9)).claims) == 1

    stage.run(test, max_crashes=2)


def test_a_lost_run_of_an_unknown_job_is_nothing_and_a_dead_one_is_revived(stage: Stage) -> None:
    async def test(store: Played) -> None:
        other = stage.played()
        async with other.store.open(attrs.evolve(opening(max_crashes=1), lanes=TEMPLATES)):
            await other.join()
            (id,) = await other.enqueue([echo()])
            (claim,) = (await other.step([], 1)).claims
            stage.clock.jump(2)
            assert await store.beat()
            assert (await store.look(StatusOf(id))).state is DurableState.DEAD
            await other.join(lost=[(id, claim.fence), (12345, 1)])
            assert (await store.look(StatusOf(id))).state is DurableState.WAITING

    stage.run(test, max_crashes=1)


def test_lanes_of_templates_leave_nothing_behind(stage: Stage, server: Server) -> None:
    async def test(store: Played) -> None:
        keys = Keys(server, stage.namespace)
        jobs = [echo(lane="tenant:a", priority=n % 2) for n in range(24)]
        await store.enqueue(jobs)
        await store.do(Pause("tenant:b", None, 5.0), ticket())
        claims = (await store.step([], 2)).claims
        while claims:
            ends = [Finish(one.id, one.fence, Succeeded("1")) for one in claims]
            claims = (await store.step(ends, 2)).claims
        assert any("tenant:a" in name for name in keys.ask("HKEYS", "turns"))
        assert sorted(keys.ask("HKEYS", "holds")) == ["tenant:b"]
        stage.clock.jump(61)
        await store.step([], 1)
        assert not any("tenant:a" in name for name in keys.ask("HKEYS", "turns"))
        assert keys.ask("HKEYS", "holds") == []
        assert sorted(await store.look(AllLanes())) == ["main", "one", "tenant:*"]

    stage.run(test)


def test_a_job_has_a_bounded_number_of_messages(stage: Stage) -> None:
    async def test(store: Played) -> None:
        (id,) = await store.enqueue([echo()])
        await store.step([], 1)
        for n in range(MESSAGES_KEPT):
            assert await store.do(Send(None, id, str(n), None), ticket()) == (id, n + 1)
        assert await store.do(Send(None, id, "1", None), ticket()) == "not_streaming"

    stage.run(test)


def test_a_log_is_read_in_pages(stage: Stage) -> None:
    async def test(store: Played) -> None:
        for n in range(JOBS_LISTED + 1):
            assert await store.do(WriteLog("l", str(n)), ticket()) == n + 1
        assert len(await store.look(LogPage("l", 0))) == JOBS_LISTED
        assert [record[2] for record in await store.look(LogPage("l", JOBS_LISTED))] == [
            str(JOBS_LISTED)
        ]

    stage.run(test)


def test_very_many_jobs_are_cleared_in_portions(stage: Stage) -> None:
    async def test(store: Played) -> None:
        await store.enqueue([echo() for _ in range(600)])
        assert await store.do(Clear("main", None, "{}"), ticket()) == 600

    stage.run(test)


def test_a_paused_lane_of_a_template_gets_limits_of_its_own_or_goes_with_it(stage: Stage) -> None:
    async def test(store: Played) -> None:
        for lane in ("tenant:a", "tenant:b"):
            await store.do(Pause(lane, None, 100.0), ticket())
        await store.do(Configure({"tenant:a": 3}, None, {}), ticket())
        limit = (await store.look(AllLanes()))["tenant:a"]
        assert limit.concurrency == 3
        assert limit.paused_until is not None
        await store.do(Configure({"tenant:*": None}, None, {}), ticket())
        assert sorted(await store.look(AllLanes())) == ["main", "one", "tenant:a"]

    stage.run(test)


def test_a_job_of_a_lane_that_was_removed_from_outside_has_no_blocker(
    stage: Stage, server: Server
) -> None:
    async def test(store: Played) -> None:
        keys = Keys(server, stage.namespace)
        keys.ids = await store.enqueue([echo()])
        keys.change(0, "lane", "elsewhere")
        assert await store.look(BlockersOf(keys.ids[0])) == ()

    stage.run(test)
