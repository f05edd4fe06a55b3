"""What comes too late, too deep, or after the end; each of these has lost or repeated work once."""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.programs import PATIENCE
from trio_lanes import LaneConfig, LanesClosedError, RateLimit
from trio_lanes.durable import (
    CheckReport,
    DurableJobError,
    DurableLanes,
    DurableState,
    Finish,
    JobDeadError,
    MemoryStore,
    ResultGoneError,
    Retry,
    RetryPolicy,
    SqliteStore,
    Step,
    Store,
    StoreUnavailableError,
    Submission,
    SubmittedJob,
    current_job,
    open_durable_lanes,
)
from trio_lanes.durable._rules.engine import MAX_FORGOTTEN
from trio_lanes.durable._runs.worker import MAX_STEP
from trio_lanes.durable.acts.jobs import Enqueue
from trio_lanes.durable.acts.runs import RegainSlot
from trio_lanes.durable.store import Act

T = TypeVar("T")


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "jobs.db")


async def echo(payload: Any) -> Any:
    return payload


def kept(store: Store) -> int:
    """How many jobs the store has, also those that it does not know any more."""
    if isinstance(store, MemoryStore):
        return len(store._tables._jobs)
    assert isinstance(store, SqliteStore)
    with closing(sqlite3.connect(store.path)) as connection:
        return int(connection.execute("SELECT count(*) FROM jobs").fetchone()[0])


# ---- what has to wake the worker: nothing else happens in these that could


async def test_more_jobs_than_one_step_takes_begin_at_once_if_there_is_room(
    mock_clock: MockClock,
) -> None:
    begun = 0

    async def note(payload: Any) -> None:
        nonlocal begun
        begun += 1
        await trio.sleep_forever()

    number = 2 * MAX_STEP + 1
    async with open_durable_lanes(
        MemoryStore(), {"note": note}, {"main": number}, capacity=number, grace=0
    ) as lanes:
        await lanes.submit_many([Submission(name="note") for _ in range(number)])
        await wait_all_tasks_blocked()
        assert begun == number


async def test_a_slot_that_is_lent_wakes_the_worker_for_a_job_that_waits_already(
    autojump_clock: MockClock,
) -> None:
    async def parent(payload: Any) -> Any:
        run = current_job()
        assert run is not None
        child = await lanes.submit("echo", "child")
        await trio.sleep(5)  # the step that this submission brings has been taken
        async with run.yield_slot():
            return await child.wait()

    handlers = {"echo": echo, "parent": parent}
    async with open_durable_lanes(MemoryStore(), handlers, {"main": 1}, grace=0) as lanes:
        with trio.fail_after(60):
            assert await (await lanes.submit("parent")).wait() == "child"


@pytest.mark.parametrize("name", ["main", "session:s"])
async def test_a_pause_for_some_seconds_ends_by_itself(
    name: str, autojump_clock: MockClock
) -> None:
    async with open_durable_lanes(MemoryStore(), {"echo": echo}, {"main": 1}, grace=0) as lanes:
        began = trio.current_time()
        await lanes.pause_for(name, 5)
        with trio.fail_after(60):
            assert await (await lanes.submit("echo", 1, session="s")).wait() == 1
        assert 5 <= trio.current_time() - began < 6


async def test_a_rate_that_lets_a_job_start_wakes_the_worker(
    autojump_clock: MockClock,
) -> None:
    rate = LaneConfig(concurrency=2, rate=RateLimit(1, per=10, algorithm="sliding"))
    async with open_durable_lanes(MemoryStore(), {"echo": echo}, {"main": rate}, grace=0) as lanes:
        began = trio.current_time()
        jobs = [await lanes.submit("echo", n) for n in range(2)]
        with trio.fail_after(60):
            assert [await job.wait() for job in jobs] == [0, 1]
        assert 10 <= trio.current_time() - began < 11


async def test_a_retry_that_counts_as_no_attempt_is_tried_again_after_the_last_attempt(
    autojump_clock: MockClock,
) -> None:
    async def busy(payload: Any) -> float:
        if trio.current_time() < 3:
            raise Retry(1, counts=False)
        return trio.current_time()

    once = RetryPolicy(max_attempts=1)
    async with open_durable_lanes(MemoryStore(), {"busy": busy}, retry=once) as lanes:
        job = await lanes.submit("busy")
        assert await job.wait() == 3
        assert (await job.status()).attempt == 1


async def settle(lanes: DurableLanes) -> None:
    """Let everything happen that can happen now, in the thread of a store as well."""
    for _ in range(6):
        await wait_all_tasks_blocked()
        await lanes.pause_for("session:unused", 0)  # comes back after what was handed over
    await wait_all_tasks_blocked()


# ---- after the end


async def test_a_call_while_lanes_close_gets_an_error_and_does_not_hang(store: Store) -> None:
    asked_for: list[str] = []

    async def ask(lanes: DurableLanes) -> None:
        with pytest.raises(StoreUnavailableError, match="is not open"):
            while True:
                await lanes.pause_for("main", 0)
        asked_for.append("asking")

    async with trio.open_nursery() as nursery:
        async with open_durable_lanes(store, {"echo": echo}) as lanes:
            for _ in range(20):
                nursery.start_soon(ask, lanes)
            for _ in range(10):
                await trio.lowlevel.checkpoint()
    assert asked_for == ["asking"] * 20


async def test_a_task_that_waits_for_a_job_gets_an_error_when_lanes_close(store: Store) -> None:
    with pytest.RaisesGroup(pytest.RaisesExc(StoreUnavailableError, match="is not open")):
        async with trio.open_nursery() as nursery:
            async with open_durable_lanes(store, {"echo": echo}) as lanes:
                await lanes.pause("main")
                nursery.start_soon((await lanes.submit("echo")).wait)
                await wait_all_tasks_blocked()


async def test_a_task_that_waits_to_hand_over_a_call_gets_an_error_when_lanes_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trio_lanes.durable._sql.act_thread.OUTSTANDING", 1)
    accepted = refused = 0

    async def submit(lanes: DurableLanes) -> None:
        nonlocal accepted, refused
        try:
            await lanes.submit("echo")
            accepted += 1
        except (StoreUnavailableError, LanesClosedError):
            refused += 1

    path = tmp_path / "jobs.db"
    async with trio.open_nursery() as nursery:
        async with open_durable_lanes(SqliteStore(path), {}, worker=False) as lanes:
            for _ in range(30):
                nursery.start_soon(submit, lanes)
            await trio.lowlevel.checkpoint()
            await trio.lowlevel.checkpoint()  # all have been let in, most stand in line
    assert accepted + refused == 30
    async with open_durable_lanes(SqliteStore(path), {}, worker=False) as lanes:
        assert (await lanes.statistics()).waiting == accepted


# ---- by the clock


async def test_a_key_whose_time_is_over_is_a_new_job_though_nothing_has_happened_since(
    store: Store, mock_clock: MockClock
) -> None:
    done: list[int] = []

    async def note(payload: Any) -> None:
        done.append(payload)

    async with open_durable_lanes(store, {"note": note}, result_ttl=100) as lanes:
        old = await lanes.submit("note", 1, key="k")
        await old.wait()
        mock_clock.jump(99)
        assert (await lanes.submit("note", 1, key="k")).id == old.id
        mock_clock.jump(2)
        new = await lanes.submit("note", 2, key="k")
        await new.wait()
        assert new.id != old.id
        assert done == [1, 2]


async def test_a_job_whose_time_is_over_is_not_known_though_nothing_has_happened_since(
    store: Store, mock_clock: MockClock
) -> None:
    async def note(payload: Any) -> None:
        pass

    async with open_durable_lanes(store, {"note": note}, result_ttl=100) as lanes:
        job = await lanes.submit("note")
        await job.wait()
        await lanes.wait_idle()
        mock_clock.jump(99)
        assert await job.wait() is None
        assert [one.id for one in await lanes.jobs()] == [job.id]
        mock_clock.jump(2)
        with pytest.raises(ResultGoneError):
            await job.wait()
        with pytest.raises(ResultGoneError):
            await job.status()
        assert await lanes.jobs() == []


async def test_jobs_whose_time_is_over_leave_the_store_with_the_steps_that_follow(
    store: Store, mock_clock: MockClock
) -> None:
    async def note(payload: Any) -> None:
        pass

    async with open_durable_lanes(store, {"note": note}, result_ttl=100) as lanes:
        many = [Submission(name="note") for _ in range(MAX_FORGOTTEN + 1)]
        for job in await lanes.submit_many(many):
            await job.wait()
        mock_clock.jump(101)
        assert kept(store) == MAX_FORGOTTEN + 1
        for left in (1, 0):
            await (await lanes.submit("note")).wait()
            await lanes.wait_idle()
            assert kept(store) <= left + 2
        assert await lanes.check() == CheckReport((), 0)


async def test_jobs_whose_time_is_over_leave_the_store_though_nothing_happens(
    store: Store, mock_clock: MockClock
) -> None:
    steps = 0

    async def step(number: int, finished: Sequence[Finish], room: int) -> Step:
        nonlocal steps
        steps += 1
        return await taken(number, finished, room)

    async def look_for(seconds: float) -> int:
        mock_clock.jump(seconds)
        for _ in range(8):
            await wait_all_tasks_blocked()
            await lanes.running("unused")  # returns after all earlier calls
        return kept(store)

    assert isinstance(store, MemoryStore | SqliteStore)
    taken, store.step = store.step, step  # type: ignore[method-assign]
    async with open_durable_lanes(store, {"echo": echo}, result_ttl=100, lease_ttl=1e6) as lanes:
        for _ in range(20):
            await (await lanes.submit("echo")).wait()
            await lanes.wait_idle()
            mock_clock.jump(0.01)
        many = [Submission(name="echo") for _ in range(MAX_FORGOTTEN + 1)]
        for job in await lanes.submit_many(many):
            await job.wait()
        await lanes.wait_idle()
        assert await look_for(99) == MAX_FORGOTTEN + 21
        before = steps
        assert await look_for(2) == 0
        assert steps - before <= 3  # not one for each moment at which a job had ended
        before = steps
        assert await look_for(10_000) == 0
        assert steps == before
        assert await lanes.check() == CheckReport((), 0)


# ---- what a dead job has kept


async def test_a_job_that_died_while_it_was_being_cancelled_is_as_new_when_it_is_requeued(
    store: Store,
) -> None:
    runs = 0

    async def stubborn(payload: Any) -> str:
        nonlocal runs
        runs += 1
        if runs > 1:
            await trio.sleep(0.01)
            return "done"
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            raise RuntimeError("no") from None

    retry = RetryPolicy(max_attempts=1)
    async with open_durable_lanes(store, {"stubborn": stubborn}, retry=retry) as lanes:
        job = await lanes.submit("stubborn")
        while not runs:
            await lanes.pause_for("cron", 0)
        assert await lanes.cancel(job.id)
        with pytest.raises(JobDeadError):
            await job.wait()
        assert await lanes.requeue(job.id)
        assert await job.wait() == "done"


# ---- what others have accepted


async def test_a_payload_that_is_too_deep_to_be_read_fails_alone(store: Store) -> None:
    async with open_durable_lanes(store, {"echo": echo}) as lanes:
        deep = "[" * 100_000 + "]" * 100_000  # from a process that may go deeper than this
        one = SubmittedJob(name="echo", payload=deep, session="s")
        (id,) = await store.do(Enqueue([one]), "ticket")
        with pytest.raises(DurableJobError, match="cannot be read") as caught:
            await lanes.job(id).wait()
        assert caught.value.type == "trio_lanes.durable.PayloadError"
        assert await (await lanes.submit("echo", "next", session="s")).wait() == "next"


async def test_an_error_that_cannot_be_delivered_keeps_no_other_answer_back(store: Store) -> None:
    async def raises(payload: Any) -> None:
        # what a traceback shows of it, is no text
        raise SyntaxError("bad", ("file", 1, 1, 5))  # type: ignore[arg-type]

    handlers = {"raises": raises, "echo": echo}
    retry = RetryPolicy(max_attempts=1)
    async with open_durable_lanes(store, handlers, retry=retry) as lanes:
        job = await lanes.submit("raises", session="s")
        with pytest.raises(JobDeadError) as caught:
            await job.wait()
        assert caught.value.type == "SyntaxError"
        assert await (await lanes.submit("echo", "next", session="s")).wait() == "next"


# ---- what is on its way


class Slow:
    """A hold on a store whose answers may be held up, and whose heartbeats may fail."""

    def __init__(self, store: MemoryStore) -> None:
        self._inner = store
        self.answers = trio.Event()
        self.beats = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def step(self, *args: Any) -> Any:
        step = await self._inner.step(*args)
        if step.claims:
            await self.answers.wait()
        return step

    async def beat(self) -> bool:
        if not self.beats:
            await trio.lowlevel.checkpoint()
            raise StoreUnavailableError("no answer")
        return await self._inner.beat()


async def test_a_store_that_answers_slowly_holds_up_no_job_that_is_due_meanwhile(
    autojump_clock: MockClock,
) -> None:
    asked: list[float] = []

    class Slowly(Slow):
        async def step(self, *args: Any) -> Any:
            asked.append(trio.current_time())
            step = await self._inner.step(*args)
            await trio.sleep(3)
            return step

    store: Any = Slowly(MemoryStore())
    async with open_durable_lanes(store, {"echo": echo}) as lanes:
        await trio.sleep(1)
        job = await lanes.submit("echo", "due", delay=4)
        assert await job.wait() == "due"
    assert asked[:3] == [0, 3, 6]  # what was answered at 6 is as of 3: it is due at 5


async def test_a_slot_that_a_task_takes_back_is_not_taken_from_another_that_has_lent_it(
    store: Store,
) -> None:
    waits, leaves = trio.Event(), trio.Event()
    gates = {"first": trio.Event(), "second": trio.Event()}

    async def gate(payload: str) -> None:
        await gates[payload].wait()

    async def lends(payload: None) -> None:
        run = current_job()
        assert run is not None

        async def until_announced() -> None:
            async with run.yield_slot():
                waits.set()
                await leaves.wait()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(until_announced)
            await waits.wait()
            first = await lanes.submit("gate", "first")
            while (await first.status()).state is not DurableState.RUNNING:
                await lanes.pause_for("session:unused", 0)
            leaves.set()  # that task wants the slot back, which the first one has
            await settle(lanes)
            async with run.yield_slot():
                second = await lanes.submit("gate", "second")
                await settle(lanes)  # steps are taken, and that task asks again
                gates["first"].set()
                gates["second"].set()
                await second.wait()

    handlers = {"gate": gate, "lends": lends}
    with trio.fail_after(PATIENCE):
        async with open_durable_lanes(store, handlers, {"main": 1}) as lanes:
            await (await lanes.submit("lends")).wait()
            assert (await lanes.statistics()).lanes["main"].running == 0


async def test_a_run_that_wants_its_slot_back_asks_once_after_each_step(
    autojump_clock: MockClock,
) -> None:
    class Counting(MemoryStore):
        async def do(self, act: Act[T], ticket: str) -> T:
            nonlocal asked
            asked += isinstance(act, RegainSlot)
            return await super().do(act, ticket)

    async def lends(payload: None) -> None:
        run = current_job()
        assert run is not None
        async with run.yield_slot():
            await trio.sleep(1)

    asked = 0
    handlers = {"lends": lends, "sleep": trio.sleep}
    async with open_durable_lanes(Counting(), handlers, {"main": 1, "other": 1}) as lanes:
        job = await lanes.submit("lends")
        await lanes.submit("sleep", 10)  # takes the slot
        await trio.sleep(2)
        before = asked
        await lanes.submit("sleep", 0, lane="other")  # a step claims it, and one reports its end
        for _ in range(100):
            await trio.lowlevel.checkpoint()
        assert 0 < asked - before < 5
        await job.wait()


async def test_a_lending_that_could_not_be_begun_leaves_the_slot_where_it_is(
    tmp_path: Path,
) -> None:
    async def lends(payload: None) -> str:
        run = current_job()
        assert run is not None
        with trio.CancelScope() as scope:
            scope.cancel()
            async with run.yield_slot():
                raise AssertionError
        return "went on"

    with trio.fail_after(PATIENCE):
        store = SqliteStore(tmp_path / "jobs.db")
        async with open_durable_lanes(store, {"lends": lends}, {"main": 1}) as lanes:
            assert await (await lanes.submit("lends")).wait() == "went on"


async def test_a_claim_that_arrives_after_its_lease_is_not_begun_under_the_next(
    autojump_clock: MockClock,
) -> None:
    runs: list[tuple[float, str]] = []

    async def work(payload: Any) -> None:
        runs.append((trio.current_time(), "begins"))
        await trio.sleep(30)
        runs.append((trio.current_time(), "ends"))

    slow = Slow(MemoryStore())
    store: Any = slow
    async with open_durable_lanes(store, {"work": work}, lease_ttl=10) as lanes:
        job = await lanes.submit("work")
        await trio.sleep(8.5)  # a new term has begun at 8, the old lease lasts until 10
        slow.beats = True
        slow.answers.set()
        await job.wait()
        assert [what for _, what in runs] == ["begins", "ends"]
        status = await job.status()
        assert (status.crashes, status.attempt) == (0, 1)
