"""`simulate`: one random life of a cluster, and what was wrong with it.

A life submits jobs to a cluster while things go wrong, then lets the faults end, and waits. What
its handlers have seen is compared with what durable lanes promise:

* Each accepted job ends, with its own result, within `PATIENT` seconds after the last fault.
* In a session, no job begins before the jobs accepted before it have ended for good, and no two
  bodies overlap, except a body that a fault has cancelled.
* A lane never runs more bodies than its limit.
* The fences of a session rise.
* The next attempt of a parent finds its children, and starts none twice.
* A budget of a month admits no more than its cap and what was granted, but by settles above the
  estimates, and is charged once for each spend, and not for one that was refused.
* A submission that a full lane has refused is no job, whichever copies of it come later.
* At the end the store is consistent, no run is left, and each slot is free.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from typing import Any, Final, TypeAlias, final

import attrs
import trio
import trio.testing

from ... import Coalesce, JobCancelledError, LaneConfig, LaneFullError, RateLimit
from .. import (
    BudgetSpentError,
    DurableRun,
    DurableState,
    DurableStatus,
    JobDeadError,
    JobExpiredError,
    MemoryStore,
    Retry,
    RetryPolicy,
    StoreUnavailableError,
    current_job,
)
from ._cluster import NO_FAULTS, Cluster, ClusterStore, Faults, open_cluster

OpenStore: TypeAlias = Callable[[], AbstractAsyncContextManager[ClusterStore]]

LANES: Final = {"main": 3, "cron": 1, "narrow": 1}
SESSIONS: Final = (None, "a", "b", "c", "d")
MORE_THAN_ALL: Final = 1_000  # more jobs than any life has
PATIENT: Final = 1_000.0
"""Seconds after the last fault in which all jobs must have ended."""
HANDLERS: Final = (
    *("work", "work", "work", "flaky", "lends", "saves", "stubborn"),
    *("parent", "spends", "spends"),
)
BUDGET, BUDGET_CAP, ESTIMATE = "budget:1", 7, 3


@final
@attrs.frozen
class Life:
    """What happens in one simulated life; `simulate` plays it."""

    seed: int
    jobs: int = 16
    seconds: float = 60.0
    """How long things go wrong, and jobs are submitted."""
    faults: Faults = Faults()  # noqa: RUF009  # frozen
    instances: int = 3
    orders: int = 2
    """How many orders are given: cancel, clear, pause, requeue."""


@final
@attrs.frozen
class _Body:
    """A body that runs."""

    id: int
    session: str | None
    lane: str
    since: float


@final
class _Story:
    """What the handlers have seen."""

    def __init__(self, life: Life) -> None:
        self.life = life
        self.chance = random.Random(life.seed + 1)
        self.wrong: list[str] = []
        self.running: dict[int, _Body] = {}  # {fence: body}
        self.cluster: Cluster | None = None
        self.places: dict[int, int] = {}  # {id: place in its session}, of jobs without a delay
        self.begun: defaultdict[str, int] = defaultdict(int)  # {session: the last place begun}
        self.fences: Counter[str] = Counter()
        self.results: dict[int, Any] = {}  # {id: payload}
        self.refused: set[str] = set()  # keys of submissions that are no jobs
        self.joined: set[int] = set()  # numbers of submissions that may have joined a job
        self.ran: set[int] = set()  # the jobs of which a body has begun
        self.children: dict[tuple[int, int], int] = {}  # {(parent, place): id}
        self.spent = self.above = self.granted = 0  # of the budget at most; above are settles

    def say(self, what: str) -> None:
        self.wrong.append(f"at {trio.current_time():.3f}: {what}")

    @contextmanager
    def body(self) -> Iterator[DurableRun]:
        """Note what the body of a job sees, which is the block."""
        run = current_job()
        assert run is not None
        self.ran.add(run.id)
        for fence, body in self._trusted().items():
            if body.id == run.id or (body.session is not None and body.session == run.session):
                self.say(f"job {run.id} (fence {run.fence}) overlaps job {body.id} (fence {fence})")
        self._occupy(run)
        if run.session is not None and run.fence in self._trusted():
            if run.fence <= self.fences[run.session]:
                self.say(f"the fence {run.fence} of job {run.id} does not rise")
            self.fences[run.session] = run.fence
            place = self.places.get(run.id, 0)
            if place and place < self.begun[run.session]:
                self.say(f"job {run.id} begins after a later job of its session has begun")
            self.begun[run.session] = max(self.begun[run.session], place)
        try:
            yield run
        finally:
            self.running.pop(run.fence, None)

    def _trusted(self) -> dict[int, _Body]:
        """Return the bodies that no jump of the store's clock excuses, by fence.

        After a jump an instance may begin a job, under a lease that it does not know to be over,
        whose next run has begun elsewhere: the answer with its claim was late.
        """
        assert self.cluster is not None
        since = self.cluster.trusted_from
        return {fence: body for fence, body in self.running.items() if body.since >= since}

    def _occupy(self, run: DurableRun) -> None:
        # a run that its instance gives up goes on without a slot, and is cancelled
        lane = "" if run._given_up else run.lane
        self.running[run.fence] = _Body(run.id, run.session, lane, trio.current_time())
        used = sum(body.lane == run.lane for body in self._trusted().values())
        if used > LANES[run.lane]:
            self.say(f"lane {run.lane!r} runs {used} bodies")

    # ---- handlers

    async def work(self, payload: Any) -> Any:
        with self.body():
            await trio.sleep(self.chance.expovariate(0.5))
        return payload

    async def flaky(self, payload: Any) -> Any:
        await self.work(payload)
        if self.chance.random() < 0.4:
            raise Retry(self.chance.random() * 3, counts=False)
        if self.chance.random() < 0.3:
            raise ValueError("again")
        return payload

    async def lends(self, payload: Any) -> Any:
        with self.body() as run:
            await trio.sleep(self.chance.random())
            self.running[run.fence] = attrs.evolve(self.running[run.fence], lane="")
            async with run.yield_slot():
                await trio.sleep(self.chance.random() * 3)
            self._occupy(run)
            await trio.sleep(self.chance.random())
        return payload

    async def saves(self, payload: Any) -> Any:
        with self.body() as run:
            done = run.checkpoint_data or 0
            for part in range(done, 3):
                await trio.sleep(self.chance.random())
                await run.checkpoint(part + 1)
        return payload

    async def parent(self, payload: Any) -> Any:
        with self.body() as run:
            async with run.children() as jobs:
                for place in range(2):
                    child = await jobs.submit("work", payload)
                    first = self.children.setdefault((run.id, place), child.id)
                    self.results[child.id] = payload
                    self.wrong += [f"job {run.id} has child {place} twice"] * (first != child.id)
                    await trio.sleep(self.chance.random())
                self.running[run.fence] = attrs.evolve(self.running[run.fence], lane="")
            self._occupy(run)
            self.wrong += [f"job {run.id} misses an end"] * (run.children_ended != (2, 2))
        return payload

    async def spends(self, payload: Any) -> Any:
        with self.body() as run:
            await trio.sleep(self.chance.random())
            assert self.cluster is not None
            quota, change = self.cluster.lanes_of(run).quota(BUDGET), self.chance.choice((-2, 2))
            self.spent += ESTIMATE  # also if the answer is lost
            try:
                spent = await quota.spend(tokens=ESTIMATE, wait=False)
            except BudgetSpentError:
                self.spent -= ESTIMATE
                return payload
            self.above += max(0, change)
            self.spent += max(0, change)
            await spent.settle(tokens=ESTIMATE + change)
            self.spent += min(0, change)
        return payload

    def check_budget(self, used: int, granted: int) -> None:
        """Note where the budget has admitted too much, or was charged twice, at the end."""
        too_much = used - self.above > BUDGET_CAP + granted or granted > self.granted
        what = f"{used} of the budget are used, {self.spent} were spent, {granted} granted"
        self.wrong += [what] * (too_much or used > self.spent)

    def check_refused(self, jobs: Sequence[DurableStatus]) -> None:
        """Note which of all jobs were refused."""
        for job in jobs:
            if job.key in self.refused:
                self.say(f"job {job.id} was refused, and is {job.state.value}")

    async def stubborn(self, payload: Any) -> Any:
        try:
            return await self.work(payload)
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(self.chance.random())


async def _play(life: Life, open_store: OpenStore) -> list[str]:
    story = _Story(life)
    handlers = {name: getattr(story, name) for name in HANDLERS}
    retry = RetryPolicy(max_attempts=1_000, backoff=(0.5, 4.0))
    async with (
        open_store() as store,
        open_cluster(
            handlers,
            {
                "main": LaneConfig(concurrency=LANES["main"], weights={"gold": 3}),
                "cron": LaneConfig(concurrency=LANES["cron"], aging=2.0),
                "narrow": LaneConfig(concurrency=LANES["narrow"], max_waiting=1),
            },
            instances=life.instances,
            seed=life.seed,
            faults=life.faults,
            store=store,
            retry=retry,
            max_crashes=1_000,
            result_ttl=1e6,
            grace=0,
            affinity=2.0 * (life.seed % 2),
            quotas={"budget:*": RateLimit(BUDGET_CAP, per="month", unit="tokens")},
        ) as cluster,
    ):
        story.cluster = cluster
        chance, lanes = story.chance, cluster.lanes
        with trio.CancelScope() as submitting:
            submitting.deadline = trio.current_time() + life.seconds + PATIENT
            for number in range(life.jobs):
                await trio.sleep(chance.expovariate(life.jobs / life.seconds * 2))
                await _submit(story, lanes, number)
                if chance.random() < life.orders / life.jobs:
                    await _order(story, lanes)
            await trio.sleep_until(max(trio.current_time(), life.seconds))
        cluster.end_faults()
        for name in (*LANES, *(f"session:{name}" for name in SESSIONS if name)):
            await lanes.resume(name)
        with trio.move_on_after(PATIENT) as in_time:
            for id, payload in list(story.results.items()):  # a parent may be adding a child
                await _check_end(story, lanes.job(id), payload)
        # such a life has a planted fault, and these are played without coverage
        if in_time.cancelled_caught:  # pragma: no cover
            alive = [one for one in DurableState if one.value in ("waiting", "parked", "running")]
            for status in await lanes.jobs(states=alive):
                story.say(
                    f"job {status.id} is stuck: {status.state.value}, {status.why} {status.name}"
                    f" on {status.instance}"
                )
        story.check_refused(await lanes.jobs(limit=MORE_THAN_ALL))
        for quota in (await lanes.statistics(quota=BUDGET)).quotas:
            story.check_budget(int(quota.levels[0].used), int(quota.levels[0].granted))
        story.wrong += (await lanes.check()).problems
    return story.wrong


async def _submit(story: _Story, lanes: Any, number: int) -> None:
    chance = story.chance
    session, delay = chance.choice(SESSIONS), chance.choice((0, 0, 0, 0, 3.0))
    arguments: dict[str, Any] = {
        "session": session,
        "lane": chance.choice(("main", "main", "cron", "narrow")),
        "priority": chance.choice((-1, 0, 0, 1)),
        "key": f"key {number}",
        "key_after": chance.choice(("result_ttl", "failure")),
        "delay": delay,
        "owner": chance.choice((None, "gold", "silver")),
        "expires": chance.choice((None, None, None, 20.0)),
    }
    name = chance.choice(HANDLERS)
    coalesce = None
    if chance.random() < 0.3:
        key = f"{name} {session} {arguments['lane']}"
        coalesce = chance.choice(
            (
                *(Coalesce(key), Coalesce(key, keep="first", while_running="drop")),
                Coalesce(f"{key} later", debounce=2.0, max_wait=5.0),
            )
        )
        arguments |= {"key": None, "key_after": "result_ttl", "delay": 0, "coalesce": coalesce}
        delay = coalesce.debounce
        story.joined.add(number)
    unknown = coalesce is not None
    while True:
        try:
            job = await lanes.submit(name, number, **arguments)
            break
        except LaneFullError:
            story.refused |= set() if unknown else {arguments["key"]}
            return
        except StoreUnavailableError as error:
            unknown = unknown or error.unknown
            await trio.sleep(0.5)  # with the same key it is the same job
    story.results.setdefault(job.id, number)
    if session is not None and not delay:
        story.places.setdefault(job.id, number + 1)


async def _order(story: _Story, lanes: Any) -> None:
    chance = story.chance
    name = chance.choice(("main", "cron", "session:a", "session:b"))
    what = chance.choice(("clear", "pause", "pause", "cancel", "grant"))
    try:
        if what == "grant":
            story.granted += 2
            with suppress(LookupError):  # nothing was spent yet
                await lanes.grant(BUDGET, tokens=2)
        elif what == "clear":
            await lanes.clear(name)
        elif what == "pause":
            await lanes.pause_for(name, chance.random() * 10)
        else:
            await lanes.cancel(chance.choice(list(story.results)))
    except StoreUnavailableError:
        pass  # it may have happened


async def _check_end(story: _Story, job: Any, payload: Any) -> None:
    try:
        result = await job.wait()
    except JobCancelledError:
        return
    except JobExpiredError:
        if job.id in story.ran:
            story.say(f"job {job.id} expired, and has run")
        return
    except JobDeadError as error:
        story.say(f"job {job.id} is dead: {error}")
        return
    if result != payload and not (result in story.joined and payload in story.joined):
        story.say(f"job {job.id} has the result {result!r} of another job, not {payload!r}")


@asynccontextmanager
async def _in_memory() -> AsyncIterator[ClusterStore]:
    yield MemoryStore()


def simulate(life: Life, open_store: OpenStore = _in_memory) -> list[str]:
    """Play a life on virtual time; return what was wrong, one line each.

    The same life is the same every time, as long as the code is.

    Args:
      open_store: opens the data that the instances share. It must do each call in Trio's thread,
        or virtual time passes meanwhile.
    """
    # Trio offers no public way to make the order of its tasks come back.
    scheduler: Any = trio._core._run
    before = random.getstate(), scheduler._ALLOW_DETERMINISTIC_SCHEDULING
    random.seed(life.seed)
    scheduler._r.seed(life.seed)
    scheduler._ALLOW_DETERMINISTIC_SCHEDULING = True
    try:
        return trio.run(_play, life, open_store, clock=trio.testing.MockClock(autojump_threshold=0))
    finally:
        random.setstate(before[0])
        scheduler._ALLOW_DETERMINISTIC_SCHEDULING = before[1]


def shrink(life: Life) -> Life:
    """Return a smaller life that goes wrong too, if there is one near; else ``life`` itself.

    It may have another seed: what happens in a smaller life is another story in any case.
    """
    while True:
        for smaller in _smaller(life):
            if simulate(smaller):
                life = smaller
                break
        else:
            return life


def _smaller(life: Life) -> list[Life]:
    smaller = []
    for field, none in attrs.asdict(NO_FAULTS).items():
        if getattr(life.faults, field) != none:
            smaller.append(attrs.evolve(life, faults=attrs.evolve(life.faults, **{field: none})))
    if life.orders:
        smaller.append(attrs.evolve(life, orders=0))
    if life.instances > 1:
        smaller.append(attrs.evolve(life, instances=life.instances - 1))
    if life.jobs > 1:
        smaller += [attrs.evolve(life, jobs=life.jobs // 2), attrs.evolve(life, jobs=life.jobs - 1)]
    return [attrs.evolve(one, seed=seed) for one in smaller for seed in (life.seed, 1, 2, 3)]
