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
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, final

import attrs
import trio
from trio.testing import MockClock

from trio_lanes import Coalesce, LaneError, RateLimit
from trio_lanes.durable import (
    Cancelled,
    Died,
    DurableSchedule,
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
    Store,
    SubmittedJob,
    Succeeded,
)
from trio_lanes.durable.acts import inspection
from trio_lanes.durable.acts.locks import Acquire, Grant, LevelsOf, Release, Settle, Spend, Withdraw
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
from trio_lanes.durable.acts.runs import Checkpoint, EmitEvent, LendSlot, RegainSlot, Send, Take
from trio_lanes.durable.acts.schedules import (
    DropSchedule,
    FireSchedule,
    PauseSchedule,
    PutSchedule,
    SchedulesOf,
)
from trio_lanes.durable.store import JOBS_LISTED, REMEMBERED_FOR, Act

from .bench import ERROR, STOP, MakeClock, MakeStore, Played

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
    "cron": LaneLimit(1, weights={"a": 2.5}, fair=True),
    "tenant:*": LaneLimit(2, 5, rates=(RateLimit(4, per=7.0, unit="tokens"),)),
    "rated": LaneLimit(
        9,
        rates=(
            RateLimit(3, per=3.0, algorithm="sliding"),
            RateLimit(9, per=9.0),
            RateLimit(5, per=5.0, unit="tokens", algorithm="sliding"),
            RateLimit(Decimal("0.5"), per=5.0, unit="usd", algorithm="sliding"),
        ),
    ),
}
FAIR: Final = (
    LaneLimit(3, fair=True),
    LaneLimit(2, weights={"a": 3, "o*": 0.7}, fair=True),
    LaneLimit(4, weights={"o1": 2, "b": 1.5, "*": 3}, fair=True, aging=2.0),
    LaneLimit(3, aging=9.0),
)
RATED: Final = LaneLimit(3, rates=(RateLimit(9, per=3.0, unit="tokens"),))
QUOTA: Final = (
    RateLimit(4, per=9.0, burst=2),
    RateLimit(9, per=7.0, unit="tokens", algorithm="sliding"),
    RateLimit(Decimal("0.9"), per=8.0, unit="usd"),
    RateLimit(7, per="month", unit="calls"),
)
LETTER_STATES: Final = (
    frozenset({DurableState.DEAD}),
    frozenset({DurableState.DEAD, DurableState.FAILED}),
    frozenset({DurableState.FAILED}),
)
TIME_FIELDS: Final = frozenset(
    {"until", "submitted_at", "started_at", "ended_at", "due_at", "expires_at"}
)
HIDDEN: Final = frozenset({"seen_at", "age", "next_due", "fires"})
"""Fields that two stores need not have in common; the last two are hints, and may be early."""
COALESCED: Final = (
    Coalesce("a"),
    Coalesce("a", keep="first", while_running="drop"),
    Coalesce("b", debounce=3.0, max_wait=5.0),
    Coalesce("b", keep="first", debounce=1.0),
)
OF_RUN: Final = frozenset({"lend", "regain", "checkpoint", "emit", "take", "finish"})
OF_REQUEST: Final = frozenset({"release", "served"})
PLAYS: Final = (
    *("submit", "step", "finish") * 5,
    *("step again", "late step", "lend", "regain", "checkpoint", "crash", "time", "time"),
    *("emit", "emit", "events", "send", "send", "sent", "ask again", "ask again"),
    *("take", "take", "withdraw"),
    *("acquire", "acquire", "release", "release", "served", "served"),
    *("spend", "spend", "spend", "settle"),
    *("put first", "put first", "cancel", "abort", "clear", "pause", "resume", "configure"),
    *("requeue", "requeue many", "purge", "list", "promote"),
    *("schedule",) * 3,
)


@final
class _Twin:
    """One of the two stores. What it numbers is known to the life by its place in a list."""

    def __init__(self, store: Store) -> None:
        self.played = Played(store)
        self.rival: Played | None = None  # another instance over the same data
        self.opened = AsyncExitStack()
        self.ids: list[int] = []
        self.fences: list[int] = []
        self.requests: list[int] = []  # for locks and quotas
        self.versions: list[int] = [0]  # of schedules
        self.charges: list[float] = []  # when costs were taken from a quota
        self._lists: dict[str, list[Any]] = {
            **{"id": self.ids, "job": self.ids, "fence": self.fences},
            **{"request": self.requests, "at": self.charges, "version": self.versions},
        }

    def place(self, field: str, number: Any) -> int:
        """Return the place of a number; a number that is not known joins its list."""
        known = self._lists[field]
        if number not in known:
            known.append(number)
        return known.index(number)

    def real(self, act: Any) -> Any:
        """Return an act on places as one on the numbers of this store."""
        changes: dict[str, Any] = {}
        for field in attrs.fields_dict(type(act)):
            value = getattr(act, field)
            if field == "taken":
                changes[field] = {self.ids[place]: text for place, text in value.items()}
            elif isinstance(value, Selection):
                changes[field] = self.real(value)
            elif field in self._lists and value is not None:
                changes[field] = self._lists[field][value]
        return attrs.evolve(act, **changes)

    def shown(self, record: Any, since: float = 0.0) -> Any:
        """Return a record with places, and with times after ``since``."""

        def show(_: Any, field: attrs.Attribute[Any] | None, value: Any) -> Any:
            name = "" if field is None else field.name
            if name == "instance":
                return value is None
            if name in TIME_FIELDS and value is not None:
                return round(value - since, 3)
            if name == "waits":
                return {cause: round(seconds, 3) for cause, seconds in value.items()}
            if name == "stale":
                return [self.place("fence", fence) for fence in value]
            if name == "cancels":
                return sorted((self.place("id", id), self.place("fence", f)) for id, f in value)
            return self.place(name, value) if name in self._lists and value is not None else value

        return attrs.asdict(
            record, filter=lambda field, _: field.name not in HIDDEN, value_serializer=show
        )

    def status(self, status: DurableStatus | None) -> object:
        """Return a status without the numbers and times of this store."""
        if status is None:
            return None
        return self.shown(status, status.submitted_at), round(_unaccounted(status), 3)

    def answer(self, act: Act[Any], answer: Any) -> object:
        """Return the answer to an act without the numbers of this store."""
        if isinstance(act, Acquire | Spend):
            request, served, *low = answer  # the lease is long
            if isinstance(act, Spend) and not request:
                self.charges.append(served)
            return self.place("request", request) if request else "at once", served is None, low
        if isinstance(act, Send) and not isinstance(answer, str):
            return self.place("id", answer[0]), answer[1]
        return answer

    async def time_of(self, job: int | None) -> float | None:
        """Return when a job was submitted; None if it is None, or forgotten."""
        status = None if job is None else await self.played.look(inspection.StatusOf(self.ids[job]))
        return None if status is None else status.submitted_at


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
    """The life of both. All jobs, fences and requests in it are places."""

    def __init__(self, twins: Sequence[_Twin], seed: int, clock: MockClock) -> None:
        self.twins = twins
        self.chance = random.Random(seed)
        self.clock = clock
        self.hold = self.chance.random() < 0.3
        several = all(twin.rival is not None for twin in twins)
        self.affinity = self.chance.choice((0.0, 40.0)) if several else 0.0
        self.plays = (*PLAYS, *("rival",) * 5) if self.affinity else PLAYS
        self.rivals: list[int] = []  # claims of the rivals
        self.claims: list[int] = []  # claims that may still run
        self.jobs: dict[int, int] = {}  # {claim: its job}
        self.last: tuple[int, list[int], Any, int] | None = None
        self.messages: list[tuple[int, int]] = []  # (job, number)
        # what was taken from quotas at once: (name, template, costs)
        self.spent: list[tuple[str, str | None, dict[str, Any]]] = []
        self.asked: list[tuple[Act[Any], str, float]] = []  # the last acts, tickets and times
        self.wrong: list[str] = []
        self.acts = 0

    async def both(self, what: str, ask: Callable[[_Twin], Awaitable[object]]) -> Any:
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
        self.acts += 1
        if one != other:
            self.wrong.append(f"after {self.acts} acts, {what}: {one!r} and {other!r}")

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
            for one in filter(None, (twin.played, twin.rival)):
                await twin.opened.enter_async_context(one.open(opening))
                await one.join()

    async def live(self, acts: int) -> None:
        await self.open()
        try:
            await self._submit([SubmittedJob(name="echo")])  # an act may need a job
            for _ in range(acts):
                await self.play(self.chance.choice(self.plays))
                await self.look()
                if self.wrong:
                    return
        finally:
            for twin in self.twins:
                await twin.opened.aclose()

    async def look(self) -> None:
        one, other = [await self._seen(twin) for twin in self.twins]
        for what, answer in one.items():
            self._compare(what, answer, other[what])
        if one["check"]:
            self.wrong.append(f"check: {one['check']}")

    async def _seen(self, twin: _Twin) -> dict[str, object]:
        look = twin.played.look
        found = await look(inspection.JobsOf(Selection(), 0, JOBS_LISTED))
        sums = await look(inspection.AllStatistics())
        return {
            "jobs": [twin.status(status) for status in found],
            "queues": [
                twin.shown(job)
                for session in TWIN_SESSIONS
                for job in await look(inspection.QueueOf(session, 9))
            ],
            "blocked by": [
                twin.shown(reason, status.submitted_at)
                for status in found
                for reason in await look(inspection.BlockersOf(status.id)) or ()
            ],
            "running": [
                twin.status(await look(inspection.RunningIn(session))) for session in TWIN_SESSIONS
            ],
            "statistics": (sums.lanes, sums.sessions, sums.ended),
            "check": (await look(inspection.Check())).problems,
        }

    async def play(self, what: str) -> None:
        """Have both do an act of a kind, if it is possible now."""
        if (what in OF_RUN and not self.claims) or (
            what in OF_REQUEST and not self.twins[0].requests
        ):
            return
        make = getattr(self, "_" + what.replace(" ", "_"), None)
        if make is not None:
            await make()
        else:
            # asked again, it does nothing more
            await self._do(self._act(what), times=self.chance.choice((1, 1, 2)))

    async def _schedule(self) -> None:
        chance, name = self.chance, self.chance.choice("st")
        _, found = await self.twins[0].played.look(SchedulesOf(name, None))
        # of no clock yet: that of a store in memory is its own, and statistics say what is due
        due = chance.choice([1e10 * chance.randint(1, 9), *(one.next or 1e10 for one in found)] * 2)
        jobs = [
            SubmittedJob(
                name="echo",
                session=chance.choice((None, *TWIN_SESSIONS)),
                lane=chance.choice(("main", "main", "cron", "none")),
                key=chance.choice((None, "t@1")),
                cost=chance.choice((None, None, {"tokens": 1})),
            )
            for _ in range(chance.choice((0, 1, 1, 2)))
        ]
        overlap = chance.choice(("skip", "queue", "cancel"))
        versions = range(len(self.twins[0].versions))
        known = [self.twins[0].place("version", one.version) for one in found]
        of = name, chance.choice([*versions, *known * 9])
        times, why = (due, due + 1e7, due), chance.choice((None, None, None, "it is full"))
        fire = FireSchedule(*of, *times, chance.randrange(3), overlap, STOP, why, jobs)
        every, job = chance.choice((5.0, 9.0)), (*jobs, SubmittedJob(name="other"))[0]
        new = DurableSchedule(name=name, job=job, every=every, next=due)
        pause = PauseSchedule(*of, chance.choice((None, due)))
        acts = (fire, fire, fire, PutSchedule(new), PutSchedule(new), pause, DropSchedule(name))
        await self._do(chance.choice(acts), times=chance.choice((1, 1, 2)))
        await self.both("schedules", self._schedules)

    async def _schedules(self, twin: _Twin) -> object:
        _, found = await twin.played.look(SchedulesOf(None, 0))
        last = [one.last_id is not None and twin.place("id", one.last_id) for one in found]
        versions = [twin.place("version", one.version) for one in found]
        return last, versions, [attrs.evolve(one, id=0, last_id=None, version=0) for one in found]

    def _act(self, what: str) -> Act[Any]:
        """Return an act that is asked for alone, and whose answer is only compared."""
        chance = self.chance
        if what in OF_RUN:
            return self._act_of_run(what)
        if what in ("clear", "pause", "resume"):
            of = self._name()
            if what == "pause":
                return Pause(*of, chance.choice((1.0, 10.0)))
            return Clear(*of, "{}") if what == "clear" else Resume(*of)
        if what == "abort":
            return AbortRun(chance.choice(TWIN_SESSIONS), "{}")
        if what == "configure":
            limit = chance.choice((1, 2, 3, 4, 4, None, RATED, *FAIR))
            lane = chance.choice(("main", "cron", "tenant:*", "tenant:a", "tenant:*"))
            return Configure({lane: limit}, None, {})
        if what == "acquire":
            return Acquire(chance.choice("kl"), chance.random() < 0.5)
        if what == "release":
            return Release(self._request(), chance.random() < 0.5)
        if what in ("requeue many", "purge"):
            where = chance.choice([(None, None), self._name()])
            of_dead = Selection(
                states=chance.choice(LETTER_STATES),
                lane=where[0],
                session=where[1],
                **self._which(),
            )
            return Purge(of_dead) if what == "purge" else Requeue(of_dead)
        acts: dict[str, Callable[[int], Act[Any]]] = {
            "cancel": lambda id: Cancel(id, STOP),
            "withdraw": lambda id: Cancel(id, STOP, False),
            "put first": PutFirst,
            "promote": Promote,
            "requeue": lambda id: Requeue(Selection(id=id)),
        }
        return acts[what](self._job())

    def _act_of_run(self, what: str) -> Act[Any]:
        claim = self.chance.choice(self.claims)
        run, text = (self.jobs[claim], claim), str(self.chance.randrange(9))
        if what == "lend":
            return LendSlot(*run)
        if what == "regain":
            return RegainSlot(*run)
        return Checkpoint(*run, text) if what == "checkpoint" else EmitEvent(*run, text)

    async def _do(self, act: Act[Any], times: int = 1) -> Any:
        """Have both do an act on places, so many times: only the first time it does something."""
        ticket = f"{act.name} {self.acts}"
        self.asked = [*self.asked[-9:], (act, ticket, trio.current_time())]
        return [await self._ask(act, ticket) for _ in range(times)][-1]

    async def _ask(self, act: Act[Any], ticket: str) -> Any:
        async def do(twin: _Twin) -> object:
            return twin.answer(act, await twin.played.do(twin.real(act), ticket))

        return await self.both(act.name, do)

    async def _ask_again(self) -> None:
        """Have both do an act again, after others; or withdraw it, if it took something."""
        since = trio.current_time() - REMEMBERED_FOR / 2  # before it, one may have forgotten it
        asked = [one for one in self.asked if one[2] > since]
        for act, ticket, _ in self.chance.sample(asked, min(1, len(asked))):
            if isinstance(act, Acquire | Spend):
                spend = act if isinstance(act, Spend) else None
                of = (spend.quota, spend.limits, spend.costs) if spend else (None, (), {})
                await self._do(Withdraw(ticket, *of))
            else:
                await self._ask(act, ticket)

    # ---- what acts are on

    def _job(self) -> int:
        return self.chance.randrange(len(self.twins[0].ids))

    def _request(self) -> int:
        return self.chance.randrange(len(self.twins[0].requests))

    def _name(self) -> tuple[str | None, str | None]:
        return self.chance.choice(
            [
                *(("main", None), ("cron", None), ("tenant:a", None), ("tenant:*", None)),
                *((None, "a"), (None, "b"), (None, "c")),
            ]
        )

    def _which(self) -> dict[str, Any]:
        return {
            "name": self.chance.choice((None, None, "echo", "other")),
            "error": self.chance.choice((None, None, "ValueError", "crash")),
        }

    # ---- a worker

    def _submission(self) -> SubmittedJob:
        chance = self.chance
        lane = chance.choice(("main", "main", "cron", "rated", "tenant:a", "tenant:b"))
        costs: tuple[Mapping[str, int | Decimal] | None, ...] = (None, {"requests": 2})
        if lane == "rated":
            costs = (*costs, {"usd": Decimal("0.2")})
        if lane in ("rated", "tenant:a", "tenant:b"):
            costs = (*costs, {"requests": 0, "tokens": 3})
        job = SubmittedJob(
            name=chance.choice(("echo", "echo", "other", "unknown")),
            payload=str(chance.randrange(3)),
            session=chance.choice((None, "a", "b", "c")),
            lane=lane,
            priority=chance.choice((-1, 0, 0, 1)),
            key=chance.choice((None, None, None, "k1", "k2")),
            key_after=chance.choice(("result_ttl", "failure")),
            delay=chance.choice((0.0, 0.0, 0.0, 3.0)),
            expires=chance.choice((None, None, None, 4.0, 40.0)),
            cost=chance.choice(costs),
            owner=chance.choice((None, None, "o1", "o2", "a")),
        )
        coalesce = chance.choice((*(None,) * 6, *COALESCED))
        if coalesce is None:
            return job
        if chance.random() < 0.8:  # so that it agrees with the job that it joins
            job = attrs.evolve(job, name="echo", session=str(coalesce.key), lane="main")
        return attrs.evolve(job, key=None, delay=coalesce.debounce, coalesce=coalesce)

    async def _submit(self, batch: Sequence[SubmittedJob] = ()) -> None:
        batch = batch or [self._submission() for _ in range(self.chance.randrange(1, 4))]

        async def submit(twin: _Twin) -> object:
            return [twin.place("id", id) for id in await twin.played.enqueue(batch)]

        await self.both("submit", submit)

    async def _take_step(
        self, what: str, number: int | None, finished: list[int], outcome: Any, room: int
    ) -> list[int]:
        """Have both take a step, or without a number their rivals; return its claims."""

        async def step(twin: _Twin) -> object:
            ends = [Finish(twin.ids[self.jobs[n]], twin.fences[n], outcome) for n in finished]
            if number is not None:
                return twin.shown(await twin.played.store.step(number, ends, room))
            assert twin.rival is not None
            return twin.shown(await twin.rival.step(ends, room))

        claims = (await self.both(what, step))["claims"]
        self.jobs.update((claim["fence"], claim["id"]) for claim in claims)
        return [claim["fence"] for claim in claims]

    async def _own_step(self, what: str, *step: Any) -> None:
        claims = await self._take_step(what, *step)
        self.claims += [claim for claim in claims if claim not in self.claims]

    async def _next_step(self, finished: list[int], outcome: Any, room: int) -> None:
        self.last = 1 + (self.last[0] if self.last else 0), finished, outcome, room
        await self._own_step("step", *self.last)

    async def _rival(self) -> None:
        """Have the rivals end what they run, and claim."""
        room = self.chance.randrange(9)
        self.rivals = await self._take_step("rival", None, self.rivals, Succeeded("3"), room)

    async def _step(self) -> None:
        await self._next_step([], None, self.chance.randrange(0, 5))

    async def _finish(self) -> None:
        claim = self.chance.choice(self.claims)
        again = self.chance.random() < 0.1  # it is reported twice
        self.claims = [one for one in self.claims if again or one != claim]
        await self._next_step([claim], self.chance.choice(OUTCOMES), self.chance.randrange(3))

    async def _step_again(self) -> None:
        if self.last is not None:
            await self._own_step("step again", *self.last)

    async def _late_step(self) -> None:
        if self.last is not None and self.last[0] > 1:
            await self._own_step("late step", self.last[0] - 1, self.claims[:1], Succeeded("9"), 3)

    async def _take(self) -> None:
        chance, twin = self.chance, self.twins[0]
        claim = chance.choice(self.claims)
        job, most = self.jobs[claim], chance.randrange(4)
        status = await twin.played.look(inspection.StatusOf(twin.ids[job]))
        queue = []
        if status is not None and status.session is not None:
            queue = await twin.played.look(inspection.QueueOf(status.session, 20))
        places = [twin.place("id", one.id) for one in queue]
        taken = dict.fromkeys([place for place in places if place != job][:most], STOP)
        # sometimes the job itself, which runs or has ended: nothing is taken then
        taken.update({job: STOP} if chance.random() < 0.2 else {})
        await self._do(Take(job, claim, str(chance.randrange(9)), taken))

    async def _send(self) -> None:
        chance = self.chance
        message, key = str(chance.randrange(9)), chance.choice((None, "m1", "m2"))
        to: tuple[str | None, int | None] = (chance.choice(TWIN_SESSIONS), None)
        if self.claims:
            to = None, self.jobs[chance.choice(self.claims)]
        sent = await self._do(Send(*to, message, key))
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

    async def _sent(self) -> None:
        if self.messages:
            job, number = self.chance.choice(self.messages)

            async def sent(twin: _Twin) -> object:
                status = await twin.played.look(inspection.StatusOf(twin.ids[job]))
                waits = status is not None and status.state is DurableState.RUNNING
                return None if waits else await twin.played.store.sent(twin.ids[job], number)

            await self.both("sent", sent)

    async def _events(self) -> None:
        job, after = self._job(), self.chance.randrange(3)

        async def events(twin: _Twin) -> object:
            store, id = twin.played.store, twin.ids[job]
            found = await store.look(inspection.JobsOf(Selection(id=id, states=OVER), 0, 1))
            if not found and await store.look(inspection.StatusOf(id)) is not None:
                return None  # it would wait
            events = await store.events(id, after)
            return None if events is None else list(map(tuple, events))

        await self.both("events", events)

    async def _spend(self) -> None:
        chance = self.chance
        name, wait = chance.choice(("q", "t:1", "t:2")), chance.random() < 0.6
        of = None if name == "q" else "t:*"
        costs: dict[str, Any] = {"requests": chance.randrange(3), "tokens": chance.randrange(5)}
        costs |= {"usd": chance.choice((0, 1, Decimal("0.25"))), "calls": chance.randrange(3)}
        if (await self._do(Spend(name, QUOTA, costs, None, of, wait)))[0] == "at once":
            self.spent.append((name, of, costs))
        if self.chance.random() < 0.2:
            await self._do(Grant(name, QUOTA, costs, "{}"))
        await self.both("levels", lambda twin: self._levels(twin, name))

    async def _levels(self, twin: _Twin, name: str) -> object:
        store = twin.played.store
        quotas = (await store.look(inspection.AllStatistics())).quotas
        levels = await store.look(LevelsOf(name))
        return [one.name for one in quotas], [  # what leaks differs by the rounding of time
            (one.full_at is None, one.granted, one.limit.algorithm == "gcra" or one.left)
            for one in levels
        ]

    async def _settle(self) -> None:
        if self.spent:
            place = self.chance.randrange(len(self.spent))
            name, of, costs = self.spent[place]
            change = {unit: self.chance.choice((-most, 0, 1)) for unit, most in costs.items()}
            for unit, by in change.items():
                costs[unit] += by
            await self._do(Settle(name, QUOTA, place, change, of))

    async def _served(self) -> None:
        place = self._request()

        async def served(twin: _Twin) -> object:
            answers: list[object] = []

            async def ask() -> None:
                answers.append(await twin.played.store.served(twin.requests[place]) is not None)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask)
                for _ in range(3):
                    await twin.played.look(inspection.AllRules())  # returns after the first answer
                nursery.cancel_scope.cancel()
            return answers or "waits"

        await self.both("served", served)

    async def _crash(self) -> None:
        for twin in self.twins:
            await twin.played.leave()  # each run that is left counts a crash
            await twin.played.join()
        self.claims.clear()
        self.last = None

    async def _time(self) -> None:
        # irregular, so that no time is due at the very moment of an act
        self.clock.jump(self.chance.choice((0.371, 2.113, 5.237, 31.731)))

    async def _list(self) -> None:
        chance = self.chance
        lane, session = chance.choice([(None, None), self._name()])
        states = frozenset(chance.sample(list(DurableState), chance.randrange(1, 8)))
        of = Selection(states=states, lane=lane, session=session, **self._which())
        some = [job for job in range(len(self.twins[0].ids)) if chance.random() < 0.1]
        first, last, after = (chance.choice([None, *some]) for _ in range(3))
        limit = chance.choice((1, 3, JOBS_LISTED))

        async def listed(twin: _Twin) -> object:
            since, until = await twin.time_of(first), await twin.time_of(last)
            question = inspection.JobsOf(
                attrs.evolve(of, since=since, until=until),
                0 if after is None else twin.ids[after],
                limit,
            )
            return [twin.status(status) for status in await twin.played.look(question)]

        await self.both("list", listed)


def compare_stores(
    one: MakeStore,
    other: MakeStore,
    *,
    seed: int,
    acts: int = 60,
    clock: MakeClock = MockClock,
) -> list[str]:
    """Tell two stores the same random life; return in what their answers differ.

    Args:
      one, other: make a store from the path of a folder, as for `suite.play`. The time of both must
        be Trio's clock.
      seed: of the life.
      acts: how many acts the life has.
      clock: makes it, as for `suite.play`.
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
