"""Sessions stay on the instance that ran their last job, and nothing waits long for it."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise
from typing import Any, Final

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.durable.conformance.bench import ERROR, Played, opening
from trio_lanes import RateLimit
from trio_lanes.durable import (
    Claim,
    DurableLanes,
    Failed,
    Finish,
    GroupLimit,
    LaneLimit,
    MemoryStore,
    Postponed,
    Released,
    SubmittedJob,
    Succeeded,
    open_durable_lanes,
)
from trio_lanes.durable.acts.orders import Pause, Resume
from trio_lanes.durable.store import REMEMBERED_FOR

AFFINITY: Final = 2.0
SUCCEEDED: Final = Succeeded("1")


class Instances:
    """Some instances over one store, and what ran where, and when."""

    def __init__(self) -> None:
        self.memory = MemoryStore()
        self.ran: list[tuple[str, Any, float]] = []  # (instance, payload, time), in order

    @asynccontextmanager
    async def open(self, name: str, **options: Any) -> AsyncIterator[DurableLanes]:
        async def turn(payload: Any) -> None:
            self.ran.append((name, payload, trio.current_time()))
            await trio.sleep(1)

        async def long(payload: Any) -> None:
            await trio.sleep(1000)

        options = {"affinity": AFFINITY, "lanes": {"main": 100}, "grace": 0, **options}
        handlers = {"turn": turn, "long": long}
        async with open_durable_lanes(self.memory.another(), handlers, **options) as lanes:
            yield lanes

    @asynccontextmanager
    async def several(self, *names: str, **options: Any) -> AsyncIterator[list[DurableLanes]]:
        async with AsyncExitStack() as stack:
            yield [await stack.enter_async_context(self.open(name, **options)) for name in names]

    async def talk(self, lanes: Sequence[DurableLanes], sessions: int, turns: int) -> float:
        """Have sessions take turns, each sent to any instance; return the share that stayed."""
        for number in range(turns):
            for session in range(sessions):
                at = lanes[(number + session) % len(lanes)]
                await at.submit("turn", session, session=f"{session}")
            await trio.sleep(30)
        assert len(self.ran) == sessions * turns
        where: dict[Any, list[str]] = {}
        for name, session, _ in self.ran:
            where.setdefault(session, []).append(name)
        stayed = [one == two for ran in where.values() for one, two in pairwise(ran)]
        return sum(stayed) / len(stayed)

    async def turn_of(self, lanes: DurableLanes) -> tuple[str, float]:
        """Run a turn of one session; return where, and how long it has waited."""
        sent = trio.current_time()
        await (await lanes.submit("turn", session="s")).wait()
        name, _, began = self.ran[-1]
        return name, began - sent


@pytest.mark.many_seeds(10)
async def test_all_turns_of_a_session_run_on_one_instance(autojump_clock: MockClock) -> None:
    instances = Instances()
    async with instances.several("one", "two", "three") as lanes:
        assert await instances.talk(lanes, sessions=12, turns=6) == 1.0
        assert len({name for name, _, _ in instances.ran}) > 1


async def test_without_affinity_the_turns_of_a_session_run_anywhere(
    autojump_clock: MockClock,
) -> None:
    instances = Instances()
    async with instances.several("one", "two", "three", affinity=0.0) as lanes:
        assert await instances.talk(lanes, sessions=12, turns=6) < 0.7


@pytest.mark.many_seeds(20)
async def test_the_sessions_of_an_instance_that_ends_are_free_at_once(
    autojump_clock: MockClock,
) -> None:
    instances = Instances()
    async with instances.open("one") as one:
        assert await instances.turn_of(one) == ("one", 0)
        async with instances.open("two") as two:
            assert await instances.turn_of(two) == ("one", 0)
            one.close()  # as at the beginning of a drain, which may last
            assert await instances.turn_of(two) == ("two", 0)
    async with instances.open("three") as three:
        assert await instances.turn_of(three) == ("three", 0)


@pytest.mark.many_seeds(20)
async def test_the_sessions_of_a_full_instance_go_elsewhere_at_once(
    autojump_clock: MockClock,
) -> None:
    instances = Instances()
    async with instances.open("one", capacity=1) as one:
        assert await instances.turn_of(one) == ("one", 0)
        job = await one.submit("long", session="another")
        await wait_all_tasks_blocked()
        async with instances.open("two") as two:
            assert await instances.turn_of(two) == ("two", 0)
            await one.cancel(job.id)
            assert await instances.turn_of(one) == ("two", 0)


async def test_a_turn_waits_for_an_instance_that_does_not_answer_no_longer_than_the_affinity(
    autojump_clock: MockClock,
) -> None:
    instances = Instances()
    home = Played(instances.memory.another())
    async with home.open(opening(["turn"], affinity=AFFINITY, lease_ttl=3600.0)):
        await home.join()
        await settle(home, "s")
        async with instances.open("two") as two:  # its own timer is all that lets it look again
            assert await instances.turn_of(two) == ("two", AFFINITY)
            assert await instances.turn_of(two) == ("two", 0)


async def test_bad_values_are_refused_at_the_call() -> None:
    for bad in (-1, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="affinity"):
            open_durable_lanes(MemoryStore(), {}, affinity=bad)
    for wrong in ("1", None, True):
        with pytest.raises(TypeError, match="affinity"):
            open_durable_lanes(MemoryStore(), {}, affinity=wrong)  # type: ignore[arg-type]


# ---- at the level of a store, where the test says who looks when


def turn(session: str | None = "s", **options: Any) -> SubmittedJob:
    return SubmittedJob(**{"name": "turn", "session": session, **options})


def end(claim: Claim, outcome: Any = SUCCEEDED) -> Finish:
    return Finish(claim.id, claim.fence, outcome)


async def claim(
    store: Played, *jobs: SubmittedJob, finished: Sequence[Finish] = (), room: int = 9
) -> list[str | None]:
    """Submit jobs, and have an instance take a step; return the sessions of its claims."""
    await store.enqueue(jobs)
    step = await store.step(finished, room)
    return [one.session for one in step.claims]


async def settle(home: Played, *sessions: str, room: int = 9, outcome: Any = SUCCEEDED) -> None:
    """Let an instance run a job of each session, and have so much room after that."""
    await home.enqueue([turn(session) for session in sessions])
    claims = (await home.step([], 9)).claims
    assert len(claims) == len(sessions)
    await home.step([end(one, outcome) for one in claims], room)


@asynccontextmanager
async def playing(of: dict[str, Any] | None = None, **options: Any) -> AsyncIterator[list[Played]]:
    """Play two instances over one store, the first with options ``of`` its own."""
    memory = MemoryStore()
    options = {"names": ["turn"], "affinity": AFFINITY, "lease_ttl": 3600.0, **options}
    async with AsyncExitStack() as stack:
        stores = []
        for own in (of or {}, {}):
            store = Played(memory.another())
            await stack.enter_async_context(store.open(opening(**{**options, **own})))
            await store.join()
            stores.append(store)
        yield stores


async def test_as_many_turns_are_left_to_an_instance_as_it_has_room_for(
    mock_clock: MockClock,
) -> None:
    async with playing() as (home, other):
        await settle(home, *"abc", room=2)
        assert await claim(other, turn("a"), turn("b"), turn("c")) == ["c"]
        assert await claim(other) == []
        assert await claim(home) == ["a", "b"]


async def test_the_next_look_is_due_when_the_first_turn_may_be_taken(mock_clock: MockClock) -> None:
    async with playing() as (home, other):
        await settle(home, "a")
        mock_clock.jump(0.5)
        await settle(home, "b")
        mock_clock.jump(0.25)
        await other.enqueue([turn("b"), turn("a", delay=0.25)])
        assert (await other.step([], 9)).next_due == pytest.approx(0.25)  # the delay
        mock_clock.jump(0.25)
        step = await other.step([], 9)
        assert step.claims == ()
        assert step.next_due == pytest.approx(1.75)
        mock_clock.jump(1.75)
        step = await other.step([], 9)
        assert [one.session for one in step.claims] == ["b"]
        assert step.next_due == pytest.approx(0.25)
        mock_clock.jump(0.25)
        assert await claim(other) == ["a"]  # from the end of its delay


async def test_a_turn_behind_another_counts_from_the_end_of_that(mock_clock: MockClock) -> None:
    async with playing() as (home, other):
        await home.enqueue([turn(), turn(lane="cron")])
        (first,) = (await home.step([], 9)).claims
        await other.enqueue([turn(None, lane="cron")])
        (busy,) = (await other.step([], 9)).claims
        mock_clock.jump(10)
        assert await claim(home, finished=[end(first)]) == []  # the lane has no slot
        assert await claim(other, finished=[end(busy)]) == []
        mock_clock.jump(AFFINITY)
        assert await claim(other) == ["s"]


async def test_no_later_job_takes_the_slot_of_a_turn_that_is_left(mock_clock: MockClock) -> None:
    groups = {"g": GroupLimit(("main", "cron"), 2)}
    async with playing(groups=groups) as (home, other):
        await settle(home, "s")
        jobs = [turn(), turn(None, lane="cron"), turn("t"), turn("u")]
        assert await claim(other, *jobs) == [None]  # one of the two slots of the group
        assert await claim(home) == ["s"]
    async with playing(lanes={"main": LaneLimit(1)}) as (home, other):
        await settle(home, "s")
        assert await claim(other, turn(), turn("t")) == []
        mock_clock.jump(AFFINITY)
        assert await claim(other) == ["s"]


async def test_where_a_rate_counts_starts_no_later_job_of_the_lane_starts(
    mock_clock: MockClock,
) -> None:
    rated = {
        "main": LaneLimit(9, rates=(RateLimit(2, per=1e6, algorithm="sliding"),)),
        "cron": LaneLimit(1),
    }
    async with playing(lanes=rated) as (home, other):
        await settle(home, "s")
        assert await claim(other, turn(), turn("t"), turn("u", lane="cron")) == ["u"]
        assert await claim(home) == ["s"]


async def test_priorities_take_turns_as_if_a_turn_that_is_left_were_not_there(
    mock_clock: MockClock,
) -> None:
    async with playing() as (home, other):
        await settle(home, "s")
        jobs = [turn(priority=1), turn("low", priority=-1), turn("t", priority=1), turn("u")]
        assert await claim(other, *jobs) == ["t", "u", "low"]
        assert await claim(home) == ["s"]


async def test_a_turn_whose_handler_its_instance_lacks_is_free(mock_clock: MockClock) -> None:
    async with playing(names=["turn", "more"], of={"names": ["turn"]}) as (home, other):
        await settle(home, "s", "t")
        assert await claim(other, turn(name="more"), turn("t")) == ["s"]


async def test_a_failed_turn_and_a_retry_stay_and_a_run_that_was_given_back_does_not(
    mock_clock: MockClock,
) -> None:
    for outcome in (Failed(ERROR), Postponed(50.0, True, False)):
        async with playing() as (home, other):
            await settle(home, "s", outcome=outcome)
            await home.enqueue([turn()])
            mock_clock.jump(getattr(outcome, "delay", 0.0))
            assert await claim(other) == []
            assert await claim(home) == ["s"]
    async with playing() as (home, other):
        await home.enqueue([turn()])
        (given_back,) = (await home.step([], 9)).claims
        await home.do(Pause("main", None, 60.0))
        assert await claim(home, finished=[end(given_back, Released())]) == []
        await home.do(Resume("main", None))
        assert await claim(other) == ["s"]


async def test_the_sessions_of_a_dead_instance_are_free_and_what_it_ran_too(
    mock_clock: MockClock,
) -> None:
    async with playing(of={"lease_ttl": 1.0}) as (home, other):
        await settle(home, "s", "t")
        await home.enqueue([turn("t")])
        await home.step([], 9)
        assert await claim(other, turn()) == []
        mock_clock.jump(1.0)  # the lease is over, and no instance has found it out
        assert await claim(other) == ["s"]
        await other.beat()
        assert await claim(other) == ["t"]


async def test_a_job_that_has_run_in_a_crash_is_left_to_no_instance(mock_clock: MockClock) -> None:
    async with playing() as (home, other):
        await settle(home, "s", room=0)
        assert await claim(other, turn()) == ["s"]
        assert await claim(home) == []
        await other.leave()
        await other.join()
        assert await claim(other) == ["s"]


async def test_an_instance_without_affinity_leaves_nothing_and_nothing_is_left_to_it(
    mock_clock: MockClock,
) -> None:
    for first, second in ((0.0, AFFINITY), (AFFINITY, 0.0)):
        async with playing(of={"affinity": first}, affinity=second) as (home, other):
            await settle(home, "s")
            assert await claim(other, turn()) == ["s"]


async def test_a_session_is_free_when_its_last_turn_is_long_ago(mock_clock: MockClock) -> None:
    async with playing() as (home, other):
        await settle(home, "s")
        mock_clock.jump(REMEMBERED_FOR)
        await home.beat()
        assert await claim(other, turn()) == ["s"]


async def pages(home: Played, other: Played) -> None:
    """Have an instance pass over more jobs than any store reads at once, and claim what it may."""
    old = [f"old {n}" for n in range(60)]
    new = [f"new {n}" for n in range(35)]
    await home.enqueue([turn(session) for session in old])
    claims = (await home.step([], 100)).claims
    assert len(claims) == 60
    await home.step([end(one) for one in claims], 100)
    await home.enqueue([turn(session) for session in (*old[:30], *new[:25])])
    assert await claim(other, *map(turn, old[30:]), *map(turn, new[25:]), room=30) == new[:30]
    assert await claim(other) == new[30:]
    assert await claim(other) == []
    assert await claim(home, room=100) == old


async def test_however_many_turns_are_left_the_others_are_found(mock_clock: MockClock) -> None:
    async with playing(lanes={"main": LaneLimit(1_000)}) as (home, other):
        await pages(home, other)
