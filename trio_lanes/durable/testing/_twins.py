"""`compare_stores`: one random life, played on two stores at once, which must answer the same.

It plays a worker and its operators at the level of `Store`: submissions, steps with every outcome,
steps asked again and steps that come too late, slots, checkpoints, orders, crashes, and time. After
each act the two answers are compared, and then every job, the statistics and the check. The stores
number their jobs as they like, so jobs are compared by the order of their acceptance.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final, final

import trio
import trio.testing

from ... import LaneError, RateLimit
from .. import (
    Cancelled,
    Died,
    DurableAttempt,
    DurableState,
    DurableStatus,
    Failed,
    Finish,
    GroupLimit,
    LaneLimit,
    Opening,
    Postponed,
    Released,
    Selection,
    Step,
    Store,
    SubmittedJob,
    Succeeded,
)
from ..acts import inspection
from ..acts.locks import Acquire, Release, Settle, Spend
from ..acts.orders import (
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
from ..acts.runs import Checkpoint, EmitEvent, LendSlot, RegainSlot, Send, Take
from ..store import PAGE, Act
from ._bench import ERROR, STOP, MakeStore, Played

OUTCOMES: Final = (
    Succeeded("1"),
    Succeeded("2"),
    Failed(ERROR),
    Died(ERROR),
    Postponed(5.0, True, False),
    Postponed(2.0, False, True),
    Released(),
    Cancelled(),
)
OVER: Final = frozenset(DurableState) - {
    DurableState.WAITING,
    DurableState.PARKED,
    DurableState.RUNNING,
}
ENDLESS_LEASE: Final = 1e6
TWIN_SESSIONS: Final = ("a", "b", "c")
TWIN_LANES: Final = {
    "main": LaneLimit(3, 12),
    "cron": LaneLimit(1),
    "tenant:*": LaneLimit(2, 5, rates=(RateLimit(4, per=7.0, unit="tokens"),)),
    "rated": LaneLimit(
        9,
        rates=(
            RateLimit(3, per=3.0, algorithm="sliding"),
            RateLimit(9, per=9.0),
            RateLimit(5, per=5.0, unit="tokens", algorithm="sliding"),
        ),
    ),
}
RATED: Final = LaneLimit(3, rates=(RateLimit(9, per=3.0, unit="tokens"),))
QUOTA: Final = (
    RateLimit(4, per=9.0, burst=2),
    RateLimit(9, per=7.0, unit="tokens", algorithm="sliding"),
)
ACTS: Final = (
    *("submit", "step", "finish") * 5,
    *("step again", "late step", "lend", "regain", "checkpoint", "crash", "time", "time"),
    *("emit", "emit", "events", "send", "send", "sent"),
    *("take", "take", "withdraw"),
    *("acquire", "acquire", "release", "release", "served", "served"),
    *("spend", "spend", "spend", "settle"),
    *("put first", "put first", "cancel", "abort", "clear", "pause", "resume", "configure"),
    *("requeue", "requeue many", "purge", "list", "promote"),
)


@final
class _Twin:
    """One of the two stores, and the known numbers of it."""

    def __init__(self, store: Store) -> None:
        self.played = Played(store)
        self.rival: Played | None = None  # another instance over the same data
        self.opened = AsyncExitStack()
        self.ids: list[int] = []
        self.fences: list[int] = []  # in order of the claims
        self.requests: list[int] = []  # for locks and quotas
        self.charges: list[float] = []  # when costs were taken from a quota

    def job(self, id: int) -> int:
        """Return the place of a job in the order of acceptance."""
        if id not in self.ids:
            self.ids.append(id)
        return self.ids.index(id)

    async def time_of(self, job: int | None) -> float | None:
        """Return when a job was submitted; None if it is None, or forgotten."""
        status = None if job is None else await self.played.look(inspection.StatusOf(self.ids[job]))
        return None if status is None else status.submitted_at

    def asked(self, answer: tuple[int, float | None] | None) -> object:
        """Return the answer to a request without the numbers of this store."""
        assert answer is not None  # the lease is long
        request, served = answer
        if request and request not in self.requests:
            self.requests.append(request)
        return self.requests.index(request) if request else "at once", served is None

    def seen(self, step: Step) -> object:
        """Return the answer of a step without the numbers of this store."""
        for claim in step.claims:
            if claim.fence not in self.fences:
                self.fences.append(claim.fence)
        claims = [
            (
                *(self.job(claim.id), self.fences.index(claim.fence), claim.name, claim.payload),
                *(claim.session, claim.lane, claim.attempt, claim.crashes, claim.checkpoint),
            )
            for claim in step.claims
        ]
        stale = [self.fences.index(fence) for fence in step.stale]
        cancels = sorted((self.job(id), self.fences.index(fence)) for id, fence in step.cancels)
        return claims, stale, cancels  # `next_due` is a hint, and may be early

    def shown(self, status: DurableStatus) -> object:
        """Return a status without the numbers and times of this store."""
        until = None if status.until is None else round(status.until - status.submitted_at, 3)
        return (
            *(self.job(status.id), status.name, status.session, status.lane, status.priority),
            *(status.key, status.state, status.why, until, status.attempt, status.crashes),
            *(status.cancelling, status.error, status.instance is None, status.timeout),
            *((cause, round(seconds, 3)) for cause, seconds in sorted(status.waits.items())),
            round(_unaccounted(status), 3),
            *(self.run(run, status.submitted_at) for run in status.history),
        )

    def run(self, run: DurableAttempt, since: float) -> object:
        """Return a run without the numbers and times of this store."""
        ended = None if run.ended_at is None else round(run.ended_at - since, 3)
        return run.number, round(run.started_at - since, 3), ended, run.how, run.error

    async def blocked_by(self, status: DurableStatus) -> object:
        """Return the reasons why a job waits, without the numbers and times of this store."""
        reasons = await self.played.look(inspection.BlockersOf(status.id))
        assert reasons is not None
        return [
            (
                *(one.kind, one.lane, None if one.job is None else self.job(one.job)),
                None if one.until is None else round(one.until - status.submitted_at, 3),
                one.before,
            )
            for one in reasons
        ]


def _unaccounted(status: DurableStatus) -> float:
    """Return the seconds since the acceptance of a job that were neither waits nor runs.

    It must be 0, unless there were more runs than are kept.
    """
    until, runs = status.submitted_at, status.history
    if status.state in (DurableState.WAITING, DurableState.PARKED):
        until = status.seen_at
    elif runs:
        until = runs[-1].ended_at or runs[-1].started_at
    ran = sum(run.ended_at - run.started_at for run in runs if run.ended_at is not None)
    left = until - status.submitted_at - ran - sum(status.waits.values())
    assert abs(left) < 0.001 or (runs and runs[0].number > 1), status
    return left


@final
class _TwinLife:
    def __init__(self, twins: Sequence[_Twin], seed: int, clock: trio.testing.MockClock) -> None:
        self.twins = twins
        self.chance = random.Random(seed)
        self.clock = clock
        self.hold = self.chance.random() < 0.3
        several = all(twin.rival is not None for twin in twins)
        self.affinity = self.chance.choice((0.0, 40.0)) if several else 0.0
        self.choices = (*ACTS, *("rival",) * 5) if self.affinity else ACTS
        self.rivals: list[int] = []  # places in `_Twin.fences` of claims of the rivals
        self.claims: list[int] = []  # places in `_Twin.fences` of claims that may still run
        self.jobs: dict[int, int] = {}  # {place of a claim: place of its job}
        self.last: tuple[int, list[int], Any, int] | None = None
        self.messages: list[tuple[int, int]] = []  # (place of a job, number)
        self.spent: list[dict[str, int]] = []  # what was taken from the quota at once
        self.wrong: list[str] = []
        self.acts: list[str] = []

    async def both(self, what: str, ask: Callable[[_Twin], Awaitable[object]]) -> object:
        """Ask both stores; return the answer of the first."""
        answers = []
        for twin in self.twins:
            try:
                answers.append(await ask(twin))
            except (LaneError, ValueError) as error:
                answers.append(type(error).__name__)
        self._compare(what, *answers)
        return answers[0]

    def _compare(self, what: str, one: object, other: object) -> None:
        self.acts.append(f"{what} -> {one}")
        if one != other:
            self.wrong.append(f"after {len(self.acts)} acts, {what}: {one!r} and {other!r}")

    async def open(self) -> None:
        for twin in self.twins:
            opening = Opening(
                names=frozenset({"echo", "other"}),
                lanes=TWIN_LANES,
                groups={"g": GroupLimit(("main", "cron", "tenant:*"), 4, {"cron": 1})},
                max_crashes=2,
                hold=self.hold,
                result_ttl=60.0,
                lease_ttl=ENDLESS_LEASE,
                worker=True,
                affinity=self.affinity,
            )
            twin.opened = AsyncExitStack()
            for one in filter(None, (twin.played, twin.rival)):
                await twin.opened.enter_async_context(one.open(opening))
                await one.join()
        self.claims.clear()
        self.last = None

    async def close(self) -> None:
        for twin in self.twins:
            await twin.opened.aclose()

    async def live(self, acts: int) -> None:
        await self.open()
        try:
            await self._submit([SubmittedJob(name="echo")])  # an act may need a job
            for _ in range(acts):
                await getattr(self, "do_" + self.chance.choice(self.choices).replace(" ", "_"))()
                await self.look()
                if self.wrong:
                    return
        finally:
            await self.close()

    async def look(self) -> None:
        one, other = [await self._seen(twin) for twin in self.twins]
        for what, answer in one.items():
            self._compare(what, answer, other[what])
        if one["check"]:
            self.wrong.append(f"check: {one['check']}")

    async def _seen(self, twin: _Twin) -> dict[str, object]:
        look = twin.played.look
        found = await look(inspection.JobsOf(Selection(), 0, PAGE))
        sums = await look(inspection.AllStatistics())
        running = [await look(inspection.RunningIn(session)) for session in TWIN_SESSIONS]
        return {
            "jobs": [twin.shown(status) for status in found],
            "queues": [
                (twin.job(job.id), job.name, job.key, job.state, job.payload, job.begun)
                for session in TWIN_SESSIONS
                for job in await look(inspection.QueueOf(session, 9))
            ],
            "blocked by": [await twin.blocked_by(status) for status in found],
            "running": [None if status is None else twin.shown(status) for status in running],
            "statistics": (sums.lanes, sums.sessions),
            "check": (await look(inspection.Check())).problems,
        }

    # ---- a worker

    def _submission(self) -> SubmittedJob:
        chance = self.chance
        lane = chance.choice(("main", "main", "cron", "rated", "tenant:a", "tenant:b"))
        costs: tuple[Mapping[str, int] | None, ...] = (None, {"requests": 2})
        if lane in ("rated", "tenant:a", "tenant:b"):
            costs = (*costs, {"requests": 0, "tokens": 3})
        return SubmittedJob(
            name=chance.choice(("echo", "echo", "other", "unknown")),
            payload=str(chance.randrange(3)),
            session=chance.choice((None, "a", "b", "c")),
            lane=lane,
            priority=chance.choice((-1, 0, 0, 1)),
            key=chance.choice((None, None, None, "k1", "k2")),
            delay=chance.choice((0.0, 0.0, 0.0, 3.0)),
            cost=chance.choice(costs),
        )

    async def do_submit(self) -> None:
        await self._submit([self._submission() for _ in range(self.chance.randrange(1, 4))])

    async def _submit(self, batch: list[SubmittedJob]) -> None:
        async def submit(twin: _Twin) -> object:
            return [twin.job(id) for id in await twin.played.enqueue(batch)]

        await self.both("submit", submit)

    async def _step(
        self, what: str, number: int, finished: list[int], outcome: Any, room: int
    ) -> None:
        async def step(twin: _Twin) -> object:
            finishes = [Finish(twin.ids[self.jobs[n]], twin.fences[n], outcome) for n in finished]
            return twin.seen(await twin.played.store.step(number, finishes, room))

        answer: Any = await self.both(what, step)
        for job, claim, *_ in answer[0]:
            self.jobs[claim] = job
            if claim not in self.claims:
                self.claims.append(claim)

    async def _next_step(self, finished: list[int], outcome: Any, room: int) -> None:
        number = 1 + (self.last[0] if self.last else 0)
        self.last = number, finished, outcome, room
        await self._step("step", number, finished, outcome, room)

    async def do_rival(self) -> None:
        """Have the rivals end what they run, and claim."""
        room, ended = self.chance.randrange(9), self.rivals

        async def step(twin: _Twin) -> object:
            ends = [Finish(twin.ids[self.jobs[n]], twin.fences[n], Succeeded("3")) for n in ended]
            assert twin.rival is not None
            return twin.seen(await twin.rival.step(ends, room))

        answer: Any = await self.both("rival", step)
        self.rivals = [claim for _, claim, *_ in answer[0]]
        self.jobs.update((claim, job) for job, claim, *_ in answer[0])

    async def do_step(self) -> None:
        await self._next_step([], None, self.chance.randrange(0, 5))

    async def do_finish(self) -> None:
        if self.claims:
            claim = self.chance.choice(self.claims)
            again = self.chance.random() < 0.1  # it is reported twice
            self.claims = [one for one in self.claims if again or one != claim]
            await self._next_step([claim], self.chance.choice(OUTCOMES), self.chance.randrange(3))

    async def do_step_again(self) -> None:
        if self.last is not None:
            await self._step("step again", *self.last)

    async def do_late_step(self) -> None:
        if self.last is not None and self.last[0] > 1:
            await self._step("late step", self.last[0] - 1, self.claims[:1], Succeeded("9"), 3)

    async def _do(
        self,
        make: Callable[[_Twin], Act[Any]],
        show: Callable[[_Twin, Any], object] = lambda twin, answer: answer,
        *,
        times: int = 1,
    ) -> Any:
        """Have both do an act, so many times: only the first time it does something."""
        what = make(self.twins[0]).name
        ticket = f"{what} {len(self.acts)}"

        async def do(twin: _Twin) -> object:
            return show(twin, await twin.played.do(make(twin), ticket))

        return [await self.both(what, do) for _ in range(times)][-1]

    async def _order(self, make: Callable[[_Twin], Act[Any]]) -> None:
        await self._do(make, times=self.chance.choice((1, 1, 2)))

    async def _of_claim(self, make: Callable[[int, int], Act[Any]]) -> None:
        if self.claims:
            claim = self.chance.choice(self.claims)
            job = self.jobs[claim]
            await self._do(lambda twin: make(twin.ids[job], twin.fences[claim]))

    async def do_lend(self) -> None:
        await self._of_claim(LendSlot)

    async def do_regain(self) -> None:
        await self._of_claim(RegainSlot)

    async def do_checkpoint(self) -> None:
        data = str(self.chance.randrange(9))
        await self._of_claim(lambda id, fence: Checkpoint(id, fence, data))

    async def do_take(self) -> None:
        chance = self.chance
        most, data = chance.randrange(4), str(chance.randrange(9))
        wrong = chance.random() < 0.2
        if not self.claims:
            return
        claim = chance.choice(self.claims)
        job = self.jobs[claim]

        async def take(twin: _Twin) -> object:
            store, id = twin.played, twin.ids[job]
            status = await store.look(inspection.StatusOf(id))
            waits = []
            if status is not None and status.session is not None:
                waits = [one.id for one in await store.look(inspection.QueueOf(status.session, 20))]
            taken = dict.fromkeys([one for one in waits if one != id][:most], STOP)
            if wrong:
                taken[id] = STOP  # it runs, or has ended: nothing is taken
            return await store.do(Take(id, twin.fences[claim], data, taken))

        await self.both("take", take)

    async def do_withdraw(self) -> None:
        await self._of_job(lambda id: Cancel(id, STOP, False))

    async def do_emit(self) -> None:
        event = str(self.chance.randrange(9))
        await self._of_claim(lambda id, fence: EmitEvent(id, fence, event))

    async def do_send(self) -> None:
        chance = self.chance
        message, key = str(chance.randrange(9)), chance.choice((None, "m1", "m2"))
        to = chance.choice(TWIN_SESSIONS)
        run = self.jobs[chance.choice(self.claims)] if self.claims else None

        def send(twin: _Twin) -> Send:
            session, id = (to, None) if run is None else (None, twin.ids[run])
            return Send(session, id, message, key)

        sent = await self._do(
            send, lambda twin, sent: sent if isinstance(sent, str) else (twin.job(sent[0]), sent[1])
        )
        if not isinstance(sent, str):
            self.messages.append(sent)
            if chance.random() < 0.6:
                await self._receive(*sent)

    async def _receive(self, job: int, number: int) -> None:
        """Have the run of a job take a message that was just sent, so that nothing waits."""
        claims = [claim for claim in self.claims if self.jobs[claim] == job]

        async def receive(twin: _Twin) -> object:
            fence = twin.fences[claims[-1]] if claims else 0
            message = await twin.played.store.receive(twin.ids[job], fence, number - 1)
            return message and tuple(message)

        await self.both("receive", receive)

    async def do_sent(self) -> None:
        if self.messages:
            job, number = self.chance.choice(self.messages)

            async def sent(twin: _Twin) -> object:
                status = await twin.played.look(inspection.StatusOf(twin.ids[job]))
                waits = status is not None and status.state is DurableState.RUNNING
                return None if waits else await twin.played.store.sent(twin.ids[job], number)

            await self.both("sent", sent)

    async def do_events(self) -> None:
        job, after = self._place(), self.chance.randrange(3)

        async def events(twin: _Twin) -> object:
            store, id = twin.played.store, twin.ids[job]
            found = await store.look(inspection.JobsOf(Selection(id=id, states=OVER), 0, 1))
            if not found and await store.look(inspection.StatusOf(id)) is not None:
                return None  # it would wait
            events = await store.events(id, after)
            return None if events is None else list(map(tuple, events))

        await self.both("events", events)

    async def do_acquire(self) -> None:
        key, shared = self.chance.choice(("k", "l")), self.chance.random() < 0.5
        await self._do(lambda twin: Acquire(key, shared), _Twin.asked)

    async def do_spend(self) -> None:
        costs = {"requests": self.chance.randrange(3), "tokens": self.chance.randrange(5)}
        at: dict[_Twin, float] = {}

        def asked(twin: _Twin, answer: Any) -> object:
            at[twin] = answer[1]
            return twin.asked(answer)

        if (await self._do(lambda twin: Spend("q", QUOTA, costs), asked))[0] == "at once":
            self.spent.append(costs)
            for twin in self.twins:
                twin.charges.append(at[twin])

    def _asked(self) -> int | None:
        requests = self.twins[0].requests
        return self.chance.randrange(len(requests)) if requests else None

    async def do_release(self) -> None:
        place, used = self._asked(), self.chance.random() < 0.5
        if place is not None:
            await self._order(lambda twin: Release(twin.requests[place], used))

    async def do_served(self) -> None:
        place = self._asked()

        async def served(twin: _Twin) -> object:
            answers: list[object] = []

            async def ask() -> None:
                assert place is not None
                answers.append(await twin.played.store.served(twin.requests[place]) is not None)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask)
                for _ in range(3):
                    await twin.played.look(inspection.AllRules())  # returns after the first answer
                nursery.cancel_scope.cancel()
            return answers or "waits"

        if place is not None:
            await self.both("served", served)

    async def do_settle(self) -> None:
        if self.spent:
            place = self.chance.randrange(len(self.spent))
            costs = self.spent[place]
            change = {unit: self.chance.randint(-most, 2) for unit, most in costs.items()}
            for unit, by in change.items():
                costs[unit] += by
            await self._do(lambda twin: Settle("q", QUOTA, twin.charges[place], change))

    async def do_crash(self) -> None:
        for twin in self.twins:
            await twin.played.leave()  # each run that is left counts a crash
            await twin.played.join()
        self.claims.clear()
        self.last = None

    async def do_time(self) -> None:
        # irregular, so that no time is due at the very moment of an act
        self.clock.jump(self.chance.choice((0.371, 2.113, 5.237, 31.731)))

    # ---- operators

    def _name(self) -> tuple[str | None, str | None]:
        return self.chance.choice(
            [
                *(("main", None), ("cron", None), ("tenant:a", None), ("tenant:*", None)),
                *((None, "a"), (None, "b"), (None, "c")),
            ]
        )

    def _place(self) -> int:
        return self.chance.randrange(len(self.twins[0].ids))

    async def _of_job(self, make: Callable[[int], Act[Any]]) -> None:
        job = self._place()
        await self._do(lambda twin: make(twin.ids[job]))

    async def do_cancel(self) -> None:
        await self._of_job(lambda id: Cancel(id, STOP))

    async def do_put_first(self) -> None:
        await self._of_job(PutFirst)

    async def do_promote(self) -> None:
        await self._of_job(Promote)

    async def do_abort(self) -> None:
        session = self.chance.choice(TWIN_SESSIONS)
        await self._order(lambda twin: AbortRun(session, "{}"))

    async def do_clear(self) -> None:
        lane, session = self._name()
        await self._order(lambda twin: Clear(lane, session, "{}"))

    async def do_pause(self) -> None:
        lane, session = self._name()
        seconds = self.chance.choice((1.0, 10.0))
        await self._order(lambda twin: Pause(lane, session, seconds))

    async def do_resume(self) -> None:
        lane, session = self._name()
        await self._order(lambda twin: Resume(lane, session))

    async def do_configure(self) -> None:
        limit = self.chance.choice((1, 2, 3, 4, 4, None, RATED))
        lane = self.chance.choice(("main", "cron", "tenant:*", "tenant:a", "tenant:*"))
        await self._order(lambda twin: Configure({lane: limit}, None, {}))

    async def do_requeue(self) -> None:
        await self._of_job(lambda id: Requeue(Selection(id=id)))

    async def do_requeue_many(self) -> None:
        of = self._letters()
        await self._order(lambda twin: Requeue(of))

    async def do_purge(self) -> None:
        of = self._letters()
        await self._order(lambda twin: Purge(of))

    def _letters(self) -> Selection:
        chance = self.chance
        lane, session = chance.choice([(None, None), self._name()])
        dead, failed = DurableState.DEAD, DurableState.FAILED
        return Selection(
            states=frozenset(chance.choice([(dead,), (dead, failed), (failed,)])),
            lane=lane,
            session=session,
            name=chance.choice((None, None, "echo", "other")),
            error=chance.choice((None, None, "ValueError", "crash")),
        )

    async def do_list(self) -> None:
        chance = self.chance
        lane, session = chance.choice([(None, None), self._name()])
        states = chance.sample(list(DurableState), chance.randrange(1, 8))
        ended = [job for job in range(len(self.twins[0].ids)) if chance.random() < 0.1]
        first, last, after = (chance.choice([None, *ended]) for _ in range(3))
        name = chance.choice((None, "echo", "other"))
        error = chance.choice((None, None, "ValueError", "crash"))
        limit = chance.choice((1, 3, PAGE))

        async def listed(twin: _Twin) -> object:
            of = Selection(
                states=frozenset(states),
                lane=lane,
                session=session,
                name=name,
                error=error,
                since=await twin.time_of(first),
                until=await twin.time_of(last),
            )
            found = await twin.played.look(
                inspection.JobsOf(of, 0 if after is None else twin.ids[after], limit)
            )
            return [twin.shown(status) for status in found]

        await self.both("list", listed)


def compare_stores(
    one: MakeStore,
    other: MakeStore,
    *,
    seed: int,
    acts: int = 60,
    clock: Callable[[], trio.testing.MockClock] = trio.testing.MockClock,
) -> list[str]:
    """Tell two stores the same random life; return in what their answers differ.

    Args:
      one, other: make a store from the path of a folder, as for `durable_store_suite`. The time of
        both must be Trio's clock.
      seed: of the life.
      acts: how many acts the life has.
      clock: makes a clock for Trio and the stores, on which time passes by ``jump(seconds)`` alone.
    """
    time = clock()
    with tempfile.TemporaryDirectory() as folder:
        twins = [_Twin(make(Path(folder))) for make in (one, other)]
        if all(twin.played.leased for twin in twins):  # else a store takes one instance
            for twin, make in zip(twins, (one, other), strict=True):
                twin.rival = Played(make(Path(folder)))
        life = _TwinLife(twins, seed, time)
        trio.run(life.live, acts, clock=time)
    return life.wrong
