"""Tests of tickets: an answer stays, a refusal too; and of acts that are withdrawn."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import attrs

from trio_lanes import LaneError, RateLimit
from trio_lanes.durable import (
    Claim,
    Died,
    DurableBlocker,
    DurableSchedule,
    LaneLimit,
    Selection,
    StoreUnavailableError,
    SubmittedJob,
)
from trio_lanes.durable.acts import VERBS
from trio_lanes.durable.acts.inspection import AllLanes, AllStatistics, BlockersOf, Repair, StatusOf
from trio_lanes.durable.acts.jobs import Enqueue
from trio_lanes.durable.acts.locks import (
    Acquire,
    Grant,
    LevelsOf,
    Release,
    ResetQuota,
    Settle,
    Spend,
    Withdraw,
)
from trio_lanes.durable.acts.logs import DropLog, LogPage, WriteLog
from trio_lanes.durable.acts.orders import (
    AbortRun,
    Cancel,
    Clear,
    Configure,
    Pause,
    Promote,
    Purge,
    PutFirst,
    Requeue,
    Resume,
)
from trio_lanes.durable.acts.runs import (
    Checkpoint,
    Compare,
    EmitEvent,
    LendSlot,
    RegainSlot,
    Send,
    Take,
)
from trio_lanes.durable.acts.schedules import (
    DropSchedule,
    FireSchedule,
    PauseSchedule,
    PutSchedule,
    SchedulesOf,
)
from trio_lanes.durable.store import Act, Question

from .bench import ERROR, STOP, Bench, Played, new_job, ticket

DOLLARS_A_DAY: Final = (RateLimit(10, per="day", unit="usd"),)
NO_LOCK: Final[tuple[None, tuple[RateLimit, ...], dict[str, int]]] = None, (), {}
TOKENS_A_MINUTE: Final = LaneLimit(4, rates=(RateLimit(90, unit="tokens"),))


@attrs.frozen
class Case:
    """An act, and what comes between its two copies."""

    act: Act[Any]
    between: Callable[[], Awaitable[object]]
    """After it, the same act under another ticket would be decided otherwise, or do more."""
    see: Question[Any] = attrs.field(factory=AllStatistics)
    """What shows whether the second copy has done something."""
    show: Callable[[Any], object] = lambda sums: (sums.waiting, sums.running, sums.dead)
    repeats: bool = True
    """False: under another ticket it does nothing either."""


async def _asked(
    store: Played, act: Acquire | Spend, name: str | None = None
) -> tuple[int, float | None]:
    """Make a request; return its number, and its fence or the time of its charge."""
    asked = await store.do(act, name)
    assert asked is not None
    return asked[:2]


async def _dead(store: Played, session: str) -> Claim:
    (run,) = await store.begin(new_job(session=session))
    await store.end(run, Died(ERROR))
    return run


def _schedule(name: str, **job: Any) -> DurableSchedule:
    return DurableSchedule(name=name, job=SubmittedJob(name="echo", **job), every=5.0, next=1e9)


async def enqueue_full(store: Played) -> Case:
    (first,) = await store.enqueue([new_job(lane="narrow")])
    return Case(Enqueue([new_job(lane="narrow")]), lambda: store.do(Cancel(first, STOP)))


async def enqueue_nowhere(store: Played) -> Case:
    return Case(
        Enqueue([new_job(lane="a")]), lambda: store.do(Configure({"a": LaneLimit(1)}, None, {}))
    )


async def enqueue_conflict(store: Played) -> Case:
    (first,) = await store.enqueue([new_job(1, key="k")])
    act = Enqueue([new_job(2, key="k", key_after="failure")])
    return Case(act, lambda: store.do(Cancel(first, STOP)))


async def enqueue_uncounted(store: Played) -> Case:
    act = Enqueue([new_job(lane="cron", cost={"requests": 1, "tokens": 1})])
    return Case(act, lambda: store.do(Configure({"cron": TOKENS_A_MINUTE}, None, {})))


async def acquire(store: Played) -> Case:
    holder = await _asked(store, Acquire("held", False))
    return Case(Acquire("held", False), lambda: store.do(Release(holder[0], True)))


async def spend(store: Played) -> Case:
    await store.do(Spend("refuses", DOLLARS_A_DAY, {"usd": 8}))
    act = Spend("refuses", DOLLARS_A_DAY, {"usd": 5}, wait=False)
    see = LevelsOf("refuses", DOLLARS_A_DAY)
    return Case(act, lambda: store.do(ResetQuota("refuses")), see, lambda levels: levels[0].used)


async def release(store: Played) -> Case:
    request = await _asked(store, Acquire("free", False))
    return Case(Release(request[0], True), lambda: store.do(Acquire("free", False)), repeats=False)


async def withdraw(store: Played) -> Case:
    mine, see = ticket(), LevelsOf("withdrawn", DOLLARS_A_DAY)
    act = Spend("withdrawn", DOLLARS_A_DAY, {"usd": 5})
    await store.do(act, mine)
    return Case(
        Withdraw(mine, "withdrawn", DOLLARS_A_DAY, {"usd": 5}),
        lambda: store.do(act),
        see,
        lambda levels: levels[0].used,
        repeats=False,
    )


async def settle(store: Played) -> Case:
    _, at = await _asked(store, Spend("settled", DOLLARS_A_DAY, {"usd": 1}))
    assert at is not None
    act, see = Settle("settled", DOLLARS_A_DAY, at, {"usd": 2}), LevelsOf("settled", DOLLARS_A_DAY)
    return Case(act, lambda: store.do(ResetQuota("settled")), see, lambda levels: levels[0].used)


async def grant(store: Played) -> Case:
    act, see = Grant("granted", DOLLARS_A_DAY, {"usd": 1}, "1"), LevelsOf("granted", DOLLARS_A_DAY)
    return Case(act, lambda: store.do(act), see, lambda levels: levels[0].granted)


async def reset_quota(store: Played) -> Case:
    spends, see = Spend("reset", DOLLARS_A_DAY, {"usd": 4}), LevelsOf("reset", DOLLARS_A_DAY)
    await store.do(spends)
    return Case(ResetQuota("reset"), lambda: store.do(spends), see, lambda levels: levels[0].used)


async def write_log(store: Played) -> Case:
    act = WriteLog("written", "1")
    return Case(act, lambda: store.do(act), LogPage("written", 0), len)


async def drop_log(store: Played) -> Case:
    return Case(
        DropLog("dropped"), lambda: store.do(WriteLog("dropped", "1")), LogPage("dropped", 0), len
    )


async def cancel(store: Played) -> Case:
    run = await _dead(store, "cancelled")
    again = Requeue(Selection(id=run.id))
    return Case(Cancel(run.id, STOP), lambda: store.do(again))


async def put_first(store: Played) -> Case:
    _, last = await store.enqueue(
        [new_job(1, session="first"), new_job(2, session="first", delay=1e6)]
    )
    return Case(PutFirst(last), lambda: store.do(Promote(last)))


async def promote(store: Played) -> Case:
    (job,) = await store.enqueue([new_job(delay=1e6)])
    return Case(Promote(job), lambda: store.do(Cancel(job, STOP)))


async def abort_run(store: Played) -> Case:
    return Case(
        AbortRun("aborted", STOP),
        lambda: store.begin(new_job(session="aborted")),
        StatusOf(1),
        lambda status: status,
    )


def _of_unknown(act: Clear | Pause | Resume) -> Callable[[Played], Awaitable[Case]]:
    async def refused(store: Played) -> Case:
        made = Configure({str(act.lane): LaneLimit(1)}, None, {})
        return Case(act, lambda: store.do(made))

    return refused


async def configure_nowhere(store: Played) -> Case:
    made = Configure({"gone": LaneLimit(1)}, None, {})
    return Case(Configure({"gone": None}, None, {}), lambda: store.do(made), AllLanes(), set)


async def configure_used(store: Played) -> Case:
    await store.do(Configure({"used": LaneLimit(1)}, None, {}))
    await store.enqueue([new_job(lane="used")])
    act = Configure({"used": None}, None, {})
    return Case(act, lambda: store.do(Clear("used", None, STOP)), AllLanes(), set)


async def configure_groups(store: Played) -> Case:
    return Case(
        Configure({"one": 1}, None, {}),
        lambda: store.do(Configure({"one": 2}, None, {})),
        AllLanes(),
        lambda lanes: lanes["one"].concurrency,
    )


async def requeue(store: Played) -> Case:
    (run,) = await store.begin(new_job())
    return Case(Requeue(Selection(id=run.id)), lambda: store.end(run, Died(ERROR)))


async def purge(store: Played) -> Case:
    (run,) = await store.begin(new_job())
    return Case(Purge(Selection(id=run.id)), lambda: store.end(run, Died(ERROR)))


async def checkpoint(store: Played) -> Case:
    (run,) = await store.begin(new_job())
    of = run.id, run.fence
    return Case(
        Checkpoint(*of, "1"),
        lambda: store.do(Checkpoint(*of, "2")),
        StatusOf(run.id, True),
        lambda status: status.texts.checkpoint,
    )


async def compare(store: Played) -> Case:
    (run,) = await store.begin(new_job())
    return Case(Compare([run.fence], 0, [], 0), lambda: store.end(run))


async def take(store: Played) -> Case:
    dead = await _dead(store, "taken")
    (run,) = await store.begin(new_job(session="taken"))
    act = Take(run.id, run.fence, "1", {dead.id: STOP})
    return Case(act, lambda: store.do(Requeue(Selection(id=dead.id))))


async def _one_of_two(store: Played, lane: str) -> tuple[tuple[int, int], Question[Any]]:
    """Let one of two jobs of a lane of one slot run; the question tells if the slot is free."""
    await store.do(Configure({lane: LaneLimit(1)}, None, {}))
    (run,) = await store.begin(new_job(lane=lane))
    (waits,) = await store.enqueue([new_job(lane=lane)])
    return (run.id, run.fence), BlockersOf(waits)


def _kinds(reasons: Sequence[DurableBlocker]) -> list[str]:
    return [reason.kind for reason in reasons]


async def lend_slot(store: Played) -> Case:
    run, see = await _one_of_two(store, "lends")
    return Case(LendSlot(*run), lambda: store.do(RegainSlot(*run)), see, _kinds)


async def regain_slot(store: Played) -> Case:
    run, see = await _one_of_two(store, "regains")
    return Case(RegainSlot(*run), lambda: store.do(LendSlot(*run)), see, _kinds)


async def emit_event(store: Played) -> Case:
    (run,) = await store.begin(new_job())
    act = EmitEvent(run.id, run.fence, "1")
    return Case(act, lambda: store.do(act))


async def send(store: Played) -> Case:
    return Case(Send("sent", None, "1", None), lambda: store.begin(new_job(session="sent")))


async def put_schedule_nowhere(store: Played) -> Case:
    made = Configure({"timed": LaneLimit(1)}, None, {})
    act = PutSchedule(_schedule("nowhere", lane="timed"))
    return Case(act, lambda: store.do(made), SchedulesOf("nowhere", None), lambda all: len(all[1]))


async def put_schedule_uncounted(store: Played) -> Case:
    await store.do(Configure({"uncounted": LaneLimit(1)}, None, {}))
    act = PutSchedule(_schedule("costs", lane="uncounted", cost={"tokens": 1}))
    made = Configure({"uncounted": TOKENS_A_MINUTE}, None, {})
    return Case(act, lambda: store.do(made), SchedulesOf("costs", None), lambda all: len(all[1]))


async def fire_schedule(store: Played) -> Case:
    limit = LaneLimit(1, max_waiting=1)
    await store.do(Configure({"fires": limit}, None, {}))
    await store.do(PutSchedule(_schedule("fires", lane="fires")))
    (first,) = await store.enqueue([new_job(lane="fires")])
    see = SchedulesOf("fires", None)
    version = (await store.look(see))[1][0].version
    act = FireSchedule(
        "fires", version, 1e9, 2e9, 1e9, 0, "queue", STOP, None, [new_job(lane="fires")]
    )
    return Case(act, lambda: store.do(Cancel(first, STOP)), see, lambda all: all[1][0].next)


async def pause_schedule(store: Played) -> Case:
    see = SchedulesOf("paused", None)
    await store.do(PutSchedule(_schedule("paused")))
    version = (await store.look(see))[1][0].version
    return Case(
        PauseSchedule("paused", version, None),
        lambda: store.do(PauseSchedule("paused", version, 1e9)),
        see,
        lambda all: all[1],
    )


async def drop_schedule(store: Played) -> Case:
    made = PutSchedule(_schedule("dropped"))
    see = SchedulesOf("dropped", None)
    return Case(DropSchedule("dropped"), lambda: store.do(made), see, lambda all: all[1])


async def repair(store: Played) -> Case:
    return Case(Repair(), lambda: store.enqueue([new_job()]), repeats=False)


CASES: Final[Mapping[type[Act[Any]], Sequence[Callable[[Played], Awaitable[Case]]]]] = {
    AbortRun: [abort_run],
    Acquire: [acquire],
    Cancel: [cancel],
    Checkpoint: [checkpoint],
    Compare: [compare],
    Clear: [_of_unknown(Clear("cleared", None, STOP))],
    Configure: [configure_nowhere, configure_used, configure_groups],
    DropLog: [drop_log],
    DropSchedule: [drop_schedule],
    EmitEvent: [emit_event],
    Enqueue: [enqueue_full, enqueue_nowhere, enqueue_conflict, enqueue_uncounted],
    FireSchedule: [fire_schedule],
    Grant: [grant],
    LendSlot: [lend_slot],
    Pause: [_of_unknown(Pause("paused", None, 9.0))],
    PauseSchedule: [pause_schedule],
    Promote: [promote],
    Purge: [purge],
    PutFirst: [put_first],
    PutSchedule: [put_schedule_nowhere, put_schedule_uncounted],
    RegainSlot: [regain_slot],
    Release: [release],
    Repair: [repair],
    Requeue: [requeue],
    ResetQuota: [reset_quota],
    Resume: [_of_unknown(Resume("resumed", None))],
    Send: [send],
    Settle: [settle],
    Spend: [spend],
    Take: [take],
    Withdraw: [withdraw],
    WriteLog: [write_log],
}
"""Of each act, a case for each of its errors, or for another answer."""


class TicketStories(Bench):
    async def test_each_act_is_decided_once_for_its_ticket_whatever_comes_between(self) -> None:
        acts = {kind for kind in VERBS.values() if issubclass(kind, Act)}
        assert acts == CASES.keys(), "an act without a case, or a case without an act"
        lanes = {"main": LaneLimit(99), "cron": LaneLimit(4)}
        lanes["narrow"] = LaneLimit(1, max_waiting=1)
        async with self.playing(lease_ttl=3600.0, lanes=lanes) as store:
            for prepare in (one for cases in CASES.values() for one in cases):
                for lane in await store.look(AllLanes()):  # a step claims what a case submits
                    await store.do(Clear(lane, None, STOP))
                await self._decided_once(store, await prepare(store))

    async def _decided_once(self, store: Played, case: Case) -> None:
        async def ask(name: str) -> object:
            try:
                return await store.do(case.act, name)
            except (LaneError, ValueError) as error:
                return type(error), str(error)

        async def seen() -> object:
            return case.show(await store.look(case.see))

        mine = ticket()
        first = await ask(mine)
        await case.between()
        before = await seen()
        for _ in range(2):
            assert await ask(mine) == first, case.act
            assert await seen() == before, case.act
        again = await ask(ticket())
        differs = again != first or await seen() != before
        assert differs == case.repeats, case.act

    async def test_a_withdrawal_takes_back_what_was_spent_and_what_waits(self) -> None:
        async with self.playing(lease_ttl=3600.0) as store:
            at_once, waits = ticket(), ticket()
            assert (await _asked(store, Spend("q", DOLLARS_A_DAY, {"usd": 8}), at_once))[0] == 0
            request, at = await _asked(store, Spend("q", DOLLARS_A_DAY, {"usd": 5}), waits)
            last, _ = await _asked(store, Spend("q", DOLLARS_A_DAY, {"usd": 6}))
            assert at is None
            await store.do(Withdraw(waits, "q", DOLLARS_A_DAY, {"usd": 5}))
            assert await store.store.served(request) is None
            await store.do(Withdraw(at_once, "q", DOLLARS_A_DAY, {"usd": 8}))
            assert await store.store.served(last) is not None
            (level,) = await store.look(LevelsOf("q", DOLLARS_A_DAY))
            assert level.used == 6
            for mine, amount in ((at_once, 8), (waits, 5)):
                with self.raises(StoreUnavailableError):
                    await store.do(Spend("q", DOLLARS_A_DAY, {"usd": amount}), mine)

    async def test_a_withdrawn_lock_is_free_for_the_next(self) -> None:
        async with self.playing(lease_ttl=3600.0) as store:
            mine = ticket()
            await store.do(Acquire("k", False), mine)
            after, fence = await _asked(store, Acquire("k", False))
            assert fence is None
            await store.do(Withdraw(mine, *NO_LOCK))
            assert await store.store.served(after) is not None

    async def test_an_act_that_comes_after_its_withdrawal_is_refused_and_not_done(self) -> None:
        async with self.playing(lease_ttl=3600.0) as store:
            for act, of in (
                (Spend("q", DOLLARS_A_DAY, {"usd": 8}), ("q", DOLLARS_A_DAY, {"usd": 8})),
                (Acquire("k", False), NO_LOCK),
            ):
                mine = ticket()
                await store.do(Withdraw(mine, *of))
                for _ in range(2):
                    with self.raises(StoreUnavailableError):
                        await store.do(act, mine)
            (level,) = await store.look(LevelsOf("q", DOLLARS_A_DAY))
            assert level.used == 0
            assert (await _asked(store, Acquire("k", False)))[1] is not None

    async def test_a_withdrawal_of_what_was_refused_changes_nothing(self) -> None:
        async with self.playing(lease_ttl=3600.0) as store:
            mine = ticket()
            await store.do(Spend("q", DOLLARS_A_DAY, {"usd": 8}))
            with self.raises(LaneError):
                await store.do(Spend("q", DOLLARS_A_DAY, {"usd": 5}, wait=False), mine)
            await store.do(Withdraw(mine, "q", DOLLARS_A_DAY, {"usd": 5}))
            (level,) = await store.look(LevelsOf("q", DOLLARS_A_DAY))
            assert level.used == 8
