"""The incidents that an operator meets: how each begins, what is told of it, and what mends it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import attrs
import trio

from trio_lanes import LaneConfig, RateLimit
from trio_lanes.durable import (
    MemoryStore,
    RetryPolicy,
    StoreUnavailableError,
    open_durable_lanes,
)
from trio_lanes.durable._contract.records import HeldSnapshot
from trio_lanes.durable.acts.inspection import AllStatistics, HeldSnapshots

from .stage import Stage

ONCE = RetryPolicy(max_attempts=1)


@attrs.frozen
class Told:
    """An incident."""

    begin: Callable[[Stage], AbstractAsyncContextManager[None]]
    """Begins it, and lets it grow old."""
    mend: Callable[[Stage], Awaitable[object]]
    """Does what the advice names."""
    screen: tuple[str, ...]
    """What the first screen of the page says."""
    kinds: frozenset[str] = frozenset()
    """What the verdict finds: of the page, the command, the log and the metrics."""
    commands: Mapping[str, str] = {}
    """Words of what commands say; ``top`` says what the first screen says."""
    figures: Mapping[str, float] = {}
    """Metrics besides the problems."""
    exit_code: int | None = None
    """Of ``health``, if it is neither 0 nor 1."""
    in_store: str = ""
    """What ``health`` of the store says, if the page says more."""
    pace: float = 1.0
    """How fast time goes on while it is looked at."""


TOLD: dict[str, Told] = {}


def told(
    name: str,
    mend: Callable[[Stage], Awaitable[object]],
    *screen: str,
    kinds: str = "",
    **more: Any,
) -> Callable[[Callable[[Stage], AsyncIterator[None]]], None]:
    """Put an incident into the table."""

    def put(begin: Callable[[Stage], AsyncIterator[None]]) -> None:
        whole = asynccontextmanager(begin)
        TOLD[name] = Told(whole, mend, screen, frozenset(kinds.split()), **more)

    return put


def by_act(**action: Any) -> Callable[[Stage], Awaitable[object]]:
    return lambda stage: stage.act(**action)


def by_command(*lines: str) -> Callable[[Stage], Awaitable[object]]:
    async def mend(stage: Stage) -> None:
        for line in lines:
            code, text = await stage.says(line)
            assert code == 0, text

    return mend


async def waits(payload: Any = None) -> None:
    await trio.sleep_forever()


async def ends(payload: Any = None) -> None:
    pass


async def stubborn(payload: Any = None) -> None:
    with trio.CancelScope(shield=True):
        await trio.sleep(500)


# ---- of the core


@told(
    "a hung job",
    by_act(do="cancel", job=1, seen="running"),
    "nothing of 'main' has started, ended or made progress for 3",
    'slots of "main": 2 of 2 in use, longest by 1',
    "What to do: cancel 1",
    kinds="standstill",
    commands={"why 3": "what would help: cancel 1"},
    figures={"jobs_waiting": 3},
)
async def hung_job(stage: Stage) -> AsyncIterator[None]:
    async with stage.core({"main": 2}) as lanes:
        for _ in range(2):
            lanes.submit_nowait(waits)
        for _ in range(3):
            lanes.submit_nowait(ends)
        await trio.sleep(301)
        yield


@told(
    "a stuck head of a session",
    by_act(do="cancel", job=1, seen="running"),
    "Healthy",
    "the oldest wait is of 3",
    " s, in 'main': 2 ← 1 of its session ← its body, for 3",
    "What would help: cancel 1",
    commands={"why 2": "what would help: cancel 1"},
    figures={"jobs_waiting": 3},
)
async def stuck_head(stage: Stage) -> AsyncIterator[None]:
    async with stage.core({"main": 4}) as lanes:
        lanes.submit_nowait(waits, session="ann")
        for _ in range(3):
            lanes.submit_nowait(ends, session="ann")
        await trio.sleep(300)
        yield


async def raise_rate(stage: Stage) -> None:
    more = RateLimit(100, per=3600, algorithm="sliding")
    stage.lanes.configure({"main": LaneConfig(concurrency=4, rate=more)})


@told(
    "a starved rate",
    raise_rate,
    "Healthy",
    "the oldest wait is of ",
    'rate of "main": 2 an hour, in about 3,5',
    'What would help: raise the rate of "main"',
    commands={"why 3": 'what would help: raise the rate of "main"'},
    figures={"jobs_waiting": 3, "lanes_rate_limited_total": 1},
)
async def starved_rate(stage: Stage) -> AsyncIterator[None]:
    rate = RateLimit(2, per=3600, algorithm="sliding")
    async with stage.core({"main": LaneConfig(concurrency=4, rate=rate)}) as lanes:
        for _ in range(5):
            lanes.submit_nowait(ends)
        await trio.sleep(36)
        yield


@told(
    "a forgotten pause",
    by_act(do="resume", lane="main"),
    "job 1 of 'main' has waited for 6",
    'pause of "main", until it is resumed',
    'What to do: resume "main"',
    kinds="pause",
    commands={"why 1": 'what would help: resume "main"'},
    figures={"jobs_waiting": 2},
)
async def forgotten_pause(stage: Stage) -> AsyncIterator[None]:
    async with stage.core({"main": 4}) as lanes:
        lanes.pause("main")
        for _ in range(2):
            lanes.submit_nowait(ends)
        await trio.sleep(60)
        yield


@told(
    "a deadlock",
    by_act(do="limit", lane="main", value=3),
    "deadlock of ",
    "What to do: have ",
    "or raise the limit",
    kinds="deadlock",
    commands={"why 1": "or raise the limit"},
    figures={"jobs_waiting": 2},
)
async def deadlock(stage: Stage) -> AsyncIterator[None]:
    async def asks() -> None:
        await trio.sleep(1)
        await stage.lanes.run(trio.sleep, 1)

    async with stage.core({"main": 3}) as lanes:
        for _ in range(2):
            lanes.submit_nowait(asks)
        third = lanes.submit_nowait(waits)
        await trio.sleep(2)
        lanes.lane("main").concurrency = 2
        third.cancel()
        await trio.sleep(28)
        yield


async def later(stage: Stage) -> None:
    stage.clock.jump(300)


@told(
    "a deadlock that was refused",
    later,
    "Healthy",
    "s ago: deadlock refused: this wait would never end: ",
    commands={"top": "or lend the outer job's slot meanwhile (yield_slot)"},
    figures={"jobs_waiting": 0},
)
async def refused_deadlock(stage: Stage) -> AsyncIterator[None]:
    async def asks() -> None:
        await stage.lanes.run(ends)

    lanes = {"main": LaneConfig(concurrency=1, log_failures=False)}
    async with stage.core(lanes) as opened:
        opened.submit_nowait(asks)
        await trio.sleep(2)
        yield


async def raise_limit(stage: Stage) -> None:
    await stage.act(do="limit", lane="main", value=1000)


@told(
    "a tenant that floods",
    raise_limit,
    "Healthy",
    "the oldest wait is of 6",
    'slots of "main": 2 of 2 in use',
    'What would help: raise the concurrency of "main"',
    "of the 303 that wait in 'main', 300 are of the owner 'acme'",
    "What would help: make 'main' fair, so that owners take turns",
    figures={"jobs_waiting": 303},
)
async def flood(stage: Stage) -> AsyncIterator[None]:
    async with stage.core({"main": 2}) as lanes:
        for n in range(302):
            lanes.submit_nowait(trio.sleep, 90, owner="acme", session=None if n < 2 else f"{n}")
        for n in range(3):
            lanes.submit_nowait(ends, owner=f"other {n}")
        await trio.sleep(60)
        yield


@told(
    "a body that outlives its timeout",
    by_act(do="reset", lane="main", seen=1),
    "1 overdue in 'main': the body of job 1 'stubborn' goes on for ",
    "What to do: find where it hangs, or reset 'main'",
    kinds="overdue",
    commands={"top": "job 1 stubborn still runs"},
    figures={"bodies_overdue": 1},
)
async def overdue(stage: Stage) -> AsyncIterator[None]:
    async with stage.core({"main": 2}) as lanes:
        lanes.submit_nowait(stubborn, timeout=5)
        await trio.sleep(60)
        yield


# ---- of a store


@told(
    "a hung job of a store",
    by_command("cancel #1"),
    "nothing of 'main' has started, ended or made progress for 3",
    'slots of "main": all 2 in use, longest by #1',
    "What to do: cancel #1",
    kinds="standstill",
    commands={"why #3": "what would help: cancel #1", "status": "main 2 2 3"},
    figures={"store_waiting": 3, "store_running": 2},
)
async def stored_hung_job(stage: Stage) -> AsyncIterator[None]:
    async with stage.stored({"waits": waits, "ends": ends}, {"main": 2}) as lanes:
        for _ in range(2):
            stage.ids.append((await lanes.submit("waits")).id)
        for _ in range(3):
            stage.ids.append((await lanes.submit("ends")).id)
        await trio.sleep(301)
        yield


@told(
    "a stuck head of a session of a store",
    by_command("cancel #1"),
    "Healthy",
    "s, in 'main': #2 ← #1 of its session",
    "What would help: cancel #1",
    commands={"why #2": "what would help: cancel #1"},
    figures={"store_waiting": 3, "store_running": 1},
)
async def stored_stuck_head(stage: Stage) -> AsyncIterator[None]:
    async with stage.stored({"waits": waits, "ends": ends}, {"main": 2}) as lanes:
        stage.ids.append((await lanes.submit("waits", session="ann")).id)
        for _ in range(3):
            stage.ids.append((await lanes.submit("ends", session="ann")).id)
        await trio.sleep(301)
        yield


@told(
    "a forgotten pause of a store",
    by_command("resume main"),
    "job #1 of 'main' has waited for 6",
    'pause of "main", until it is resumed',
    'What to do: resume "main"',
    kinds="pause",
    commands={"why #1": 'what would help: resume "main"', "status": "paused"},
    figures={"store_waiting": 2},
)
async def stored_pause(stage: Stage) -> AsyncIterator[None]:
    async with stage.stored({"ends": ends}, {"main": 2}) as lanes:
        await lanes.pause("main")
        for _ in range(2):
            stage.ids.append((await lanes.submit("ends")).id)
        await trio.sleep(60)
        yield


@told(
    "a budget that is spent",
    by_command("quota tokens --reset"),
    "2 wait for the quota 'tokens', the first for ",
    'What to do: raise the limit of the quota "tokens", grant more, or reset it',
    kinds="quota",
    commands={"why #2": "or reset it", "quota": "tokens"},
    figures={"store_running": 2},
)
async def spent_budget(stage: Stage) -> AsyncIterator[None]:
    async def spends(payload: Any) -> None:
        assert stage.durable is not None
        await stage.durable.quota("tokens").spend(tokens=payload, wait=True)

    budget = RateLimit(100, per="day", unit="tokens")
    async with stage.stored({"spends": spends}, {"main": 4}, quotas={"tokens": budget}) as lanes:
        for amount in (100, 10, 10):
            stage.ids.append((await lanes.submit("spends", amount)).id)
        await trio.sleep(60)
        yield


@told(
    "a deadlock of locks",
    by_command("cancel #1"),
    "deadlock",
    "What to do: cancel one of them, and take locks in one order",
    kinds="deadlock",
    commands={"why #1": "cancel one of them, and take locks in one order"},
    figures={"store_running": 2, "store_waiting": 1},
)
async def deadlocked_locks(stage: Stage) -> AsyncIterator[None]:
    async def locks(payload: Any) -> None:
        assert stage.durable is not None
        first, second = payload
        async with stage.durable.lock(first):
            await trio.sleep(1)
            async with stage.durable.lock(second):
                pass

    async with stage.stored({"locks": locks, "ends": ends}, {"main": 2}) as lanes:
        for keys in ("ab", "ba"):
            stage.ids.append((await lanes.submit("locks", list(keys))).id)
        stage.ids.append((await lanes.submit("ends")).id)
        await trio.sleep(60)
        yield


async def requeue_all(stage: Stage) -> None:
    stage.heals = True
    assert (await stage.says("requeue --error ValueError"))[1] == "requeued 700 jobs"


@told(
    "700 dead letters",
    requeue_all,
    "700 of 'main' died within the last hour: 700 by ValueError; 700 are dead in all",
    "What to do: look at them by trio-lanes failures, and requeue or purge them",
    kinds="dead",
    commands={
        "failures": "700 breaks main ValueError: no model",
        "status": "ended in main: 700 dead",
    },
    figures={"store_dead": 700},
)
async def dead_letters(stage: Stage) -> AsyncIterator[None]:
    async def breaks(payload: Any) -> None:
        if not stage.heals:
            raise ValueError("no model")

    async with stage.stored({"breaks": breaks}, {"main": 20}, retry=ONCE) as lanes:
        for _ in range(700):
            stage.ids.append((await lanes.submit("breaks")).id)
        await lanes.wait_idle()
        await trio.sleep(60)
        yield


@told(
    "a tenant that floods a store",
    by_command("limit main 90"),
    "Healthy",
    "the oldest wait is of 6",
    'slots of "main": all 2 in use',
    'What would help: raise the concurrency of "main"',
    "of the 53 that wait in 'main', 50 are of the owner 'acme'",
    "What would help: make 'main' fair, so that owners take turns",
    figures={"store_waiting": 53},
)
async def stored_flood(stage: Stage) -> AsyncIterator[None]:
    async def takes(payload: Any) -> None:
        await trio.sleep(90)

    async with stage.stored({"takes": takes}, {"main": 2}) as lanes:
        for owner in ["acme"] * 52 + ["other 1", "other 2", "other 3"]:
            stage.ids.append((await lanes.submit("takes", owner=owner)).id)
        await trio.sleep(60)
        yield


async def mend_store(stage: Stage) -> None:
    stage.look = None


@told(
    "a slow store",
    mend_store,
    "the store has taken ",
    "What to do: look at its load, its disk and the network",
    kinds="store",
    pace=4,
)
async def slow_store(stage: Stage) -> AsyncIterator[None]:
    async def slowly(question: object) -> None:
        await trio.sleep(2 if isinstance(question, AllStatistics) else 0)

    async with stage.stored({"ends": ends}, {"main": 2}):
        stage.look = slowly
        await trio.sleep(60)
        yield


@told(
    "a store that is away",
    mend_store,
    "the store cannot be reached: lock timeout",
    "What to do: look at its server, its disk and the network",
    "the store (its figures are as of ",
    kinds="store",
    exit_code=2,
)
async def store_away(stage: Stage) -> AsyncIterator[None]:
    async def fails(question: object) -> None:
        raise StoreUnavailableError("lock timeout")

    async with stage.stored({"ends": ends}, {"main": 2}):
        async with stage.real_time():
            await stage.says("top")
        stage.look = fails
        await trio.sleep(60)
        yield


async def a_worker_lives(stage: Stage) -> None:
    pass  # this one


@told(
    "an instance that has died",
    a_worker_lives,
    "silent for longer than half of a lease: ",
    "its 1 runs are given up in ",
    "What to do: see whether its process stands still, or has lost its network; else ",
    kinds="instance",
    commands={"status": "main 1 2"},
)
async def dead_instance(stage: Stage) -> AsyncIterator[None]:
    store = MemoryStore()
    other: Any = store.another()
    transact, stands_still = other._transact, False

    async def transacts(*args: Any, **options: Any) -> Any:
        if stands_still:
            await trio.sleep_forever()
        return await transact(*args, **options)

    other._transact = transacts
    lanes = {"main": 2}
    async with open_durable_lanes(other, {"job": waits}, lanes, grace=0, lease_ttl=60.0) as there:
        await there.submit("job")
        await trio.sleep(1)
        stands_still = True
        async with stage.stored({"job": ends}, lanes, store=store):
            await trio.sleep(50)
            yield
        stands_still = False


@told(
    "a body of a store that outlives its timeout",
    by_act(do="reset", lane="main", seen=1),
    "1 overdue in 'main': the body of job 1 'stubborn #1' goes on for ",
    "What to do: find where it hangs, or reset 'main'",
    kinds="overdue",
    in_store=", past its timeout of 5.0 s",
    commands={"why #2": "what would help: reset the lanes of "},
    figures={"store_running": 1, "store_waiting": 1},
)
async def stored_overdue(stage: Stage) -> AsyncIterator[None]:
    async def hangs_once(payload: Any) -> None:  # a run that is reset is given back
        if not stage.heals:
            stage.heals = True
            await stubborn()

    handlers = {"stubborn": hangs_once, "ends": ends}
    async with stage.stored(handlers, {"main": 1}) as lanes:
        for name in ("stubborn", "ends"):
            stage.ids.append((await lanes.submit(name, timeout=5.0)).id)
        await trio.sleep(60)
        yield


@told(
    "a schedule that skips",
    by_command("cancel #1"),
    "schedule 'tick' has skipped its last 6 due times: its job #1 has run since ",
    "What to do: cancel #1, or give the schedule another overlap",
    kinds="schedule",
    commands={"schedules": "tick", "why #1": "job #1 is running"},
)
async def skipping_schedule(stage: Stage) -> AsyncIterator[None]:
    async with stage.stored({"waits": waits}, {"main": 2}) as lanes:
        await lanes.schedule("tick", "waits", every=100)
        await trio.sleep(750)
        stage.ids = [job.id for job in await lanes.jobs()]
        yield


@told(
    "an old snapshot",
    mend_store,
    "the session 4711 of 'pg_dump' has held a snapshot for 4",
    "and the database keeps what was changed since",
    "What to do: end it: pg_terminate_backend(4711)",
    kinds="snapshot",
)
async def old_snapshot(stage: Stage) -> AsyncIterator[None]:
    async def holds(question: object) -> Any:
        if isinstance(question, HeldSnapshots):
            return [HeldSnapshot("session", "4711", "pg_dump", age=400.0)]
        return None

    async with stage.stored({"ends": ends}, {"main": 2}):
        stage.look = holds
        await trio.sleep(60)
        yield


async def promote_all(stage: Stage) -> None:
    stage.heals = True
    for n in range(1, 51):
        await stage.says(f"promote #{n}")


@told(
    "a storm of retries",
    promote_all,
    "Healthy",
    "of the 50 that are parked, 50 back off after a failure, 50 of them by ConnectionError",
    "What would help: look at one, job #1, and promote them when what fails is mended",
    commands={
        "why #1": "#1 ← its next attempt, after ",
        "jobs --state parked": "retry until",
    },
    figures={"store_parked": 50},
)
async def retry_storm(stage: Stage) -> AsyncIterator[None]:
    async def breaks(payload: Any) -> None:
        if not stage.heals:
            raise ConnectionError("the provider is down")

    retry = RetryPolicy(max_attempts=50)
    async with stage.stored({"breaks": breaks}, {"main": 20}, retry=retry) as lanes:
        for _ in range(50):
            stage.ids.append((await lanes.submit("breaks")).id)
        await trio.sleep(60)
        yield
