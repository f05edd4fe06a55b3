"""What durable lanes do beside keeping jobs: arguments, errors, representations, ends."""

import gc
import json
import logging
import math
import sqlite3
import sys
import time
import weakref
from pathlib import Path
from typing import Any, NoReturn

import pytest
import trio
from trio.testing import MockClock, assert_checkpoints, wait_all_tasks_blocked

import trio_lanes.durable as durable
from trio_lanes import JobCancelledError, LaneConfig, LaneError, LaneGroup, RateLimit
from trio_lanes.durable import (
    CheckReport,
    DurableJobError,
    DurableRun,
    DurableState,
    JobDeadError,
    KeyConflictError,
    MemoryStore,
    NoRetry,
    ResultGoneError,
    Retry,
    RetryPolicy,
    SqliteStore,
    StoreLockedError,
    StoreRules,
    StoreUnavailableError,
    Submission,
    SubmittedJob,
    UnknownHandlerError,
    current_job,
    open_durable_lanes,
)
from trio_lanes.durable._contract.records import Finish, Released
from trio_lanes.durable._contract.state import TRANSITIONS, check_transition
from trio_lanes.durable._runs.worker import GIVE_UP_AFTER
from trio_lanes.durable.acts.inspection import AllGroups, StatusOf


async def echo(payload: Any) -> Any:
    return payload


# ---- arguments


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"store": "jobs.db"}, TypeError),
        ({"handlers": [echo]}, TypeError),
        ({"handlers": {"echo": 1}}, TypeError),
        ({"handlers": {1: echo}}, TypeError),
        ({"handlers": {"": echo}}, ValueError),
        ({"handlers": {"\ud800": echo}}, ValueError),
        ({"retry": 3}, TypeError),
        ({"on_dead": "explode"}, ValueError),
        ({"capacity": 0}, ValueError),
        ({"capacity": "many"}, TypeError),
        ({"max_crashes": 0}, ValueError),
        ({"lease_ttl": 0}, ValueError),
        ({"lease_ttl": math.inf}, ValueError),
        ({"result_ttl": -1}, ValueError),
        ({"grace": math.nan}, ValueError),
        ({"worker": "yes"}, TypeError),
        ({"lanes": {"main": -1}}, ValueError),
        ({"lanes": {"session:x": 1}}, ValueError),
        ({"lanes": {"main": LaneConfig(weights={"a\0": 2})}}, ValueError),
        ({"lanes": {"main": LaneConfig(timeout=5)}}, ValueError),
        ({"lanes": {"main": LaneConfig(queue_timeout=5)}}, ValueError),
        ({"lanes": {"main": LaneConfig(idle_timeout=5)}}, ValueError),
        ({"lanes": {"main": LaneConfig(log_failures=False)}}, ValueError),
        ({"lanes": {"main": LaneConfig(limiter=trio.CapacityLimiter(1))}}, ValueError),
        ({"groups": {"g": 3}}, TypeError),
        ({"groups": {"g": LaneGroup(["nowhere"])}}, ValueError),
    ],
)
def test_a_bad_argument_is_refused_at_the_call(options: Any, error: type[Exception]) -> None:
    arguments = {"store": MemoryStore(), "handlers": {"echo": echo}} | options
    with pytest.raises(error):
        open_durable_lanes(**arguments)


@pytest.mark.parametrize(
    ("submitted", "error"),
    [
        ({"name": 1}, TypeError),
        ({"name": ""}, ValueError),
        ({"name": "unknown"}, UnknownHandlerError),
        ({"priority": 2}, ValueError),
        ({"priority": 0.5}, ValueError),
        ({"session": " "}, ValueError),
        ({"session": 5}, TypeError),
        ({"session": "\ud800"}, ValueError),
        ({"key": ""}, ValueError),
        ({"key": 7}, TypeError),
        ({"delay": -1}, ValueError),
        ({"delay": math.inf}, ValueError),
        ({"delay": 1, "run_at": 5.0}, ValueError),
        ({"timeout": -1}, ValueError),
        ({"retry": 3}, TypeError),
        ({"retry": RetryPolicy(retry_on=ValueError)}, ValueError),
    ],
)
async def test_a_bad_submission_is_refused_and_nothing_is_accepted(
    submitted: Any, error: type[Exception]
) -> None:
    async with open_durable_lanes(MemoryStore(), {"echo": echo}) as lanes:
        with pytest.raises(error):
            await lanes.submit(**({"name": "echo"} | submitted))
        assert (await lanes.statistics()).waiting == 0


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"max_attempts": 0}, ValueError),
        ({"max_attempts": "3"}, TypeError),
        ({"backoff": 5}, TypeError),
        ({"backoff": (5, 1)}, ValueError),
        ({"backoff": (-1, 1)}, ValueError),
        ({"jitter": 2}, ValueError),
        ({"retry_on": "ValueError"}, TypeError),
        ({"retry_on": (ValueError, KeyboardInterrupt)}, TypeError),
        ({"order": "random"}, ValueError),
    ],
)
def test_a_bad_retry_policy_is_refused(options: Any, error: type[Exception]) -> None:
    (field,) = options
    with pytest.raises(error, match=f"^{field} "):  # a sentence, which begins with it
        RetryPolicy(**options)


def test_the_delay_doubles_up_to_its_most_with_jitter() -> None:
    policy = RetryPolicy(backoff=(1.0, 60.0), jitter=0)
    assert [policy.delay(n) for n in (1, 2, 3, 7, 1000)] == [1, 2, 4, 60, 60]
    drawn = [RetryPolicy(jitter=0.5, backoff=(10, 10)).delay(1) for _ in range(200)]
    assert 5 <= min(drawn) < 7 < 13 < max(drawn) <= 15
    assert str(Retry(3)) == "retry in 3 s"
    with pytest.raises(ValueError, match="after"):
        Retry(math.inf)


async def test_a_jobs_own_policy_travels_with_it(autojump_clock: MockClock) -> None:
    async def bad(payload: Any) -> None:
        raise ValueError("no")

    forever = RetryPolicy(max_attempts=math.inf, backoff=(1, 1))
    async with open_durable_lanes(MemoryStore(), {"bad": bad}) as lanes:
        job = await lanes.submit("bad", retry=forever)
        await trio.sleep(30)
        assert (await job.status()).attempt > 10


async def test_run_at_is_a_time_of_the_wall_clock(autojump_clock: MockClock) -> None:
    async with open_durable_lanes(MemoryStore(), {"echo": echo}) as lanes:
        past = await lanes.submit("echo", "past", run_at=time.time() - 5)
        assert (await past.status()).state is not DurableState.PARKED
        await (await lanes.submit("echo", run_at=time.time() + 100)).wait()
        assert 99 < trio.current_time() < 101


# ---- what callers read


def test_errors_describe_the_mistake_and_are_lane_errors() -> None:
    assert "'unknown' on this instance; its handlers are: 'a', 'b'" in str(
        UnknownHandlerError("unknown", "ab")
    )
    assert "'k' belongs to job 7, which has another lane" in str(KeyConflictError("k", 7, "lane"))
    assert str(DurableJobError("ValueError", "no")) == "ValueError: no"
    assert str(JobDeadError("ValueError", "")) == "ValueError"
    assert str(ResultGoneError(7)) == (
        "the store does not know job 7: its result_ttl is over, it was purged, or it never existed"
    )
    assert "jobs.db is locked by another worker: you" in str(StoreLockedError("jobs.db", "you"))
    for name in dir(durable):
        kind = getattr(durable, name)
        if name.endswith("Error"):
            assert issubclass(kind, LaneError)
            assert kind.__module__ == "trio_lanes.durable"
    assert issubclass(JobDeadError, DurableJobError)


async def test_representations_show_the_present_state() -> None:
    seen = []

    async def look(payload: Any) -> None:
        seen.append(repr(current_job()))

    async with open_durable_lanes(MemoryStore(), {"look": look}) as lanes:
        job = await lanes.submit("look")
        await job.wait()
        assert repr(job) == f"<trio_lanes.durable.DurableJob {job.id}>"
        assert "0 running>" in repr(lanes)
        assert "look" in repr(lanes.local) or lanes.local is not None
        assert lanes.job(job.id) is job
    assert "closed" in repr(lanes)
    assert seen == [f"<trio_lanes.durable.DurableRun of job {job.id}, attempt 1>"]
    async with open_durable_lanes(MemoryStore(), {}, worker=False) as lanes:
        assert "0 running>" in repr(lanes)
        assert lanes.local is None


async def test_every_async_method_is_a_checkpoint() -> None:
    async with open_durable_lanes(MemoryStore(), {"echo": echo}) as lanes:
        for call in (
            lambda: lanes.submit("echo"),
            lambda: lanes.cancel(5),
            lambda: lanes.clear("main"),
            lambda: lanes.pause_for("main", 0),
            lambda: lanes.configure({"main": 3}),
            lanes.statistics,
            lanes.check,
            lanes.drain,
        ):
            with assert_checkpoints():
                await call()  # type: ignore[operator]


async def test_an_exception_without_a_readable_message_is_kept() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    async def bad(payload: Any) -> None:
        raise Mute

    once = RetryPolicy(max_attempts=1)
    async with open_durable_lanes(MemoryStore(), {"bad": bad}, retry=once) as lanes:
        with pytest.raises(JobDeadError, match="its message cannot be read") as caught:
            await (await lanes.submit("bad")).wait()
        assert caught.value.type.endswith("Mute")


async def test_a_difference_to_the_stores_lanes_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = MemoryStore()
    here = {"g": LaneGroup(["main"])}
    async with open_durable_lanes(store, {}, {"main": 3}, groups=here):
        pass
    assert caplog.text == ""
    here = {"g": LaneGroup(["main"], concurrency=2)}
    async with open_durable_lanes(store, {}, {"main": 5}, groups=here):
        pass
    here = {"h": LaneGroup(["main"])}
    async with open_durable_lanes(store, {}, {"main": 3}, groups=here):
        pass
    assert "group 'h' was not written to the store" in caplog.text
    assert (
        "group 'g' has concurrency=inf in the store, which wins over the 2 given here; "
        "`trio-lanes limit` or DurableLanes.configure() changes it" in caplog.text
    )
    assert (
        "lane 'main' has concurrency=3 in the store, which wins over the 5 given here; "
        "`trio-lanes limit` or DurableLanes.configure() changes it" in caplog.text
    )


async def test_a_change_of_one_lane_leaves_what_the_rates_of_others_have_counted(
    autojump_clock: MockClock,
) -> None:
    limits = {"main": LaneConfig(concurrency=2, rate=RateLimit(1, per=5.0)), "cron": 1}
    async with open_durable_lanes(MemoryStore(), {"echo": echo}, limits) as lanes:
        await (await lanes.submit("echo")).wait()
        await lanes.configure({"cron": 2})
        began = trio.current_time()
        await (await lanes.submit("echo")).wait()
        assert trio.current_time() - began == pytest.approx(5, abs=0.5)


@pytest.mark.parametrize("sqlite", [False, True])
async def test_the_rules_of_the_store_win_and_configure_changes_them(
    sqlite: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    memory = MemoryStore()

    def store() -> Any:
        return SqliteStore(tmp_path / "jobs.db") if sqlite else memory.another()

    rules: Any = {"result_ttl": 900.0, "max_crashes": math.inf, "on_dead": "hold"}
    async with open_durable_lanes(store(), {}, worker=False) as lanes:
        assert await lanes.rules() == StoreRules(3600.0, 3, False)  # its own: there are none yet
    async with open_durable_lanes(store(), {}, **rules) as lanes:
        assert await lanes.rules() == StoreRules(900.0, math.inf, True)
    async with open_durable_lanes(store(), {}, worker=False) as lanes:
        assert await lanes.rules() == StoreRules(900.0, math.inf, True)
    assert caplog.text == ""
    async with open_durable_lanes(store(), {}) as lanes:
        assert (
            "the store has result_ttl=900.0 in the store, which wins over the 3600.0 given here; "
            "`trio-lanes rules` or DurableLanes.configure() changes it" in caplog.text
        )
        await lanes.configure({}, result_ttl=5, max_crashes=10**400)
        there = await lanes.rules()
        assert (there.result_ttl, there.max_crashes > 10**18, there.hold) == (5.0, True, True)
        await lanes.configure({}, on_dead="continue")
        assert not (await lanes.rules()).hold
        for bad in ({"result_ttl": -1}, {"max_crashes": 0}, {"on_dead": "x"}):
            with pytest.raises(ValueError, match=next(iter(bad))):
                await lanes.configure({}, **bad)


@pytest.mark.parametrize("sqlite", [False, True])
async def test_who_ends_a_job_keeps_it_as_long_as_the_store_says(
    sqlite: bool, tmp_path: Path
) -> None:
    memory = MemoryStore()

    def store() -> Any:
        return SqliteStore(tmp_path / "jobs.db") if sqlite else memory.another()

    async with open_durable_lanes(store(), {"echo": echo}, result_ttl=900.0):
        pass
    async with open_durable_lanes(store(), {}, worker=False, result_ttl=0.0) as asking:
        job = await asking.submit("echo", key="k")
        await asking.cancel(job.id)
        assert (await asking.submit("echo", key="k")).id == job.id


@pytest.mark.parametrize("sqlite", [False, True])
async def test_the_lanes_of_an_instance_that_is_no_worker_are_a_proposal_that_a_worker_replaces(
    sqlite: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    memory = MemoryStore()

    def store() -> Any:
        return SqliteStore(tmp_path / "jobs.db") if sqlite else memory.another()

    async with open_durable_lanes(store(), {}, {"main": 4, "cron": 1}, worker=False) as asking:
        await asking.pause("main")
        await asking.configure({"cron": 7})  # which is no proposal
    async with open_durable_lanes(store(), {}, {"main": 9}, worker=False) as asking:
        assert (await asking.statistics()).lanes["main"].concurrency == 4
    async with open_durable_lanes(store(), {"echo": echo}, {"main": 50}) as lanes:
        now = (await lanes.statistics()).lanes
        assert (now["main"].concurrency, now["main"].paused) == (50, True)
        assert now["cron"].concurrency == 7
    async with open_durable_lanes(store(), {}, {"main": 9}, worker=False) as asking:
        assert (await asking.statistics()).lanes["main"].concurrency == 50
    assert caplog.text == ""
    async with open_durable_lanes(store(), {"echo": echo}, {"main": 9, "cron": 1}):
        assert "lane 'main' has concurrency=50 in the store" in caplog.text
        assert "lane 'cron' has concurrency=7 in the store" in caplog.text


async def test_groups_of_an_instance_that_is_no_worker_are_not_written(tmp_path: Path) -> None:
    groups = {"g": LaneGroup(["main"])}
    memory = MemoryStore()
    async with open_durable_lanes(memory.another(), {}, groups=groups, worker=False):
        async with open_durable_lanes(memory.another(), {}, groups={"h": LaneGroup(["main"])}):
            assert list(await memory._open[0].look(AllGroups())) == ["h"]


async def test_names_are_not_longer_than_a_listing_can_bear() -> None:
    long = "x" * 1_001
    async with open_durable_lanes(MemoryStore(), {}, worker=False) as lanes:
        await lanes.submit("echo", session="x" * 1_000, key="k" * 1_000)
        for given in ({"session": long}, {"key": long}, {"lane": long}):
            with pytest.raises(ValueError, match="at most 1,000 characters, got 1,001"):
                await lanes.submit("echo", **given)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="name must have at most 1,000 characters"):
            await lanes.submit(long)
        with pytest.raises(ValueError, match="at most 1,000 characters"):
            await lanes.pause(f"session:{long}")


async def test_more_jobs_than_a_page_are_listed_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trio_lanes.durable._lanes.lanes.JOBS_LISTED", 2)
    async with open_durable_lanes(MemoryStore(), {"echo": echo}) as lanes:
        ids = [(await lanes.submit("echo", delay=1e9)).id for _ in range(5)]
        assert [one.id for one in await lanes.jobs(limit=-1)] == ids
        assert [one.id for one in await lanes.jobs(limit=3)] == ids[:3]


@pytest.mark.parametrize("sqlite", [False, True])
async def test_arguments_of_listings_are_checked_and_may_be_any_whole_number(
    sqlite: bool, tmp_path: Path
) -> None:
    store = SqliteStore(tmp_path / "jobs.db") if sqlite else MemoryStore()
    async with open_durable_lanes(store, {"echo": echo}, {"main": 10**400}) as lanes:
        job: Any = await lanes.submit("echo", delay=1e9)
        for act in (lanes.cancel, lanes.requeue, lanes.purge):
            for bad in (job, str(job.id)):
                with pytest.raises(TypeError, match="id must be a whole number"):
                    await act(bad)
            assert not await act(10**400)
        with pytest.raises(ResultGoneError):
            await lanes.job(10**400).wait()
        with pytest.raises(ResultGoneError):
            await lanes.job(-(10**400)).status()
        assert await lanes.jobs(after=10**400) == []
        assert len(await lanes.jobs(after=-(10**400))) == 1
        assert [one.id for one in await lanes.jobs(limit=10**400)] == [job.id]
        assert [one.id for one in await lanes.jobs(limit=-1)] == [job.id]  # all
        assert await lanes.dead(limit=10**400) == []
        parked: Any = ["parked"]
        assert [one.id for one in await lanes.jobs(states=parked)] == [job.id]
        with pytest.raises(ValueError, match="is not a valid DurableState"):
            await lanes.jobs(states=["asleep"])  # type: ignore[list-item]
        with pytest.raises(ValueError, match="session must be text"):
            await lanes.clear("session:\ud800")
        await lanes.configure({"main": LaneConfig(concurrency=10**30, max_waiting=10**30)})
        assert (await lanes.statistics()).lanes["main"].concurrency >= 2**63
        await lanes.configure({"main": 1})


def test_a_store_in_a_file_has_one() -> None:
    for path in ("", ":memory:"):
        with pytest.raises(ValueError, match="path must be the path of a file"):
            SqliteStore(path)


async def test_a_task_that_waits_for_one_job_of_very_many_gets_its_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("trio_lanes.durable._contract.waiter.MAX_KNOWN", 1)
    async with open_durable_lanes(MemoryStore(), {"echo": echo}) as lanes:
        submissions = [Submission(name="echo", payload=n, delay=0.01) for n in range(3)]
        jobs = [(await lanes.submit_many([one]))[0] for one in submissions]
        assert [await job.wait() for job in jobs] == [0, 1, 2]


# ---- ends


class Underivable(BaseExceptionGroup):
    def derive(self, errors: Any) -> NoReturn:
        raise RuntimeError("no group like this one")


@pytest.mark.parametrize(
    "error",
    [
        KeyboardInterrupt(),
        BaseExceptionGroup("from a nursery", [KeyboardInterrupt()]),
        Underivable("from elsewhere", [ValueError(), KeyboardInterrupt()]),
    ],
)
async def test_a_job_in_which_the_process_is_interrupted_is_given_back(
    error: BaseException,
) -> None:
    async def bad(payload: Any) -> None:
        raise error

    store = MemoryStore()
    with pytest.raises(BaseExceptionGroup):
        async with open_durable_lanes(store, {"bad": bad}) as lanes:
            job = await lanes.submit("bad")
            await trio.sleep_forever()
    record = store._tables.get(job.id)
    assert record is not None
    assert (record.state, record.attempts, record.crashes) == (DurableState.WAITING, 0, 0)


async def test_a_job_that_ends_its_process_is_dead_in_the_end_and_the_others_lose_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def bad(payload: Any) -> None:
        sys.exit("no configuration")

    async def good(payload: Any) -> None:
        await trio.sleep_forever()

    path = tmp_path / "jobs.db"
    async with open_durable_lanes(SqliteStore(path), {}, worker=False) as lanes:
        await lanes.submit("good")
        poison = await lanes.submit("bad")
    for crashes in (1, 2):
        with pytest.RaisesGroup(SystemExit, flatten_subgroups=True):
            async with open_durable_lanes(
                SqliteStore(path), {"bad": bad, "good": good}, max_crashes=2
            ) as lanes:
                await trio.sleep_forever()
        async with open_durable_lanes(SqliteStore(path), {}, worker=False) as lanes:
            states = [(job.name, job.state, job.crashes, job.attempt) for job in await lanes.jobs()]
            assert states == [
                ("good", DurableState.WAITING, 0, 0),
                ("bad", DurableState.DEAD if crashes == 2 else DurableState.WAITING, crashes, 0),
            ]
            assert (await lanes.instances()) == []
    assert f"bad {poison.id} has ended its process after" in caplog.text
    assert "its body raised SystemExit" in caplog.text


async def test_a_payload_with_a_longer_number_than_can_be_read_here_fails_alone() -> None:
    store, before = MemoryStore(), sys.get_int_max_str_digits()
    async with open_durable_lanes(store, {}, worker=False) as lanes:
        sys.set_int_max_str_digits(0)
        try:
            unread = await lanes.submit("echo", 10**before)
        finally:
            sys.set_int_max_str_digits(before)
    async with open_durable_lanes(store.another(), {"echo": echo}) as lanes:
        assert await (await lanes.submit("echo", "another")).wait() == "another"
        with pytest.raises(DurableJobError, match="PayloadError: the payload or checkpoint data"):
            await lanes.job(unread.id).wait()


async def test_a_payload_that_cannot_be_read_here_has_a_key_all_the_same() -> None:
    from tests.durable.conformance.bench import Played, opening

    store = Played(MemoryStore())
    async with store.open(opening()):
        long = "1" * (sys.get_int_max_str_digits() + 1)
        (id,) = await store.enqueue([SubmittedJob(name="echo", payload=long, key="k")])
        assert await store.enqueue([SubmittedJob(name="echo", payload=long, key="k")]) == [id]
        with pytest.raises(KeyConflictError):
            await store.enqueue([SubmittedJob(name="echo", payload=long + "1", key="k")])


async def test_a_job_that_fails_with_a_cancelled_job_of_its_own_has_failed() -> None:
    async def bad(payload: Any) -> None:
        raise JobCancelledError("of another")

    retry = RetryPolicy(max_attempts=1)
    async with open_durable_lanes(MemoryStore(), {"bad": bad}, retry=retry) as lanes:
        with pytest.raises(JobDeadError, match="of another"):
            await (await lanes.submit("bad")).wait()


class LateStore:
    """Its claims are on their way until the story says that they arrive."""

    def __init__(self) -> None:
        self.memory = MemoryStore()
        self.arrive = trio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.memory, name)

    async def step(self, *args: Any) -> Any:
        step = await self.memory.step(*args)
        if step.claims:
            await self.arrive.wait()
        return step


async def test_a_claim_that_arrives_when_all_is_given_back_is_given_back_too() -> None:
    store = LateStore()

    async def arrive() -> None:
        await wait_all_tasks_blocked()
        store.arrive.set()

    async with trio.open_nursery() as nursery:
        async with open_durable_lanes(store, {"echo": echo}, grace=0) as lanes:
            job = await lanes.submit("echo")
            await wait_all_tasks_blocked()
            nursery.start_soon(arrive)
            assert (await lanes.drain(grace=0)).cancelled == 0
            assert (await job.status()).state is DurableState.WAITING
    record = store.memory._tables.get(job.id)
    assert record is not None
    assert (record.state, record.crashes) == (DurableState.WAITING, 0)


async def test_a_claim_that_arrives_in_a_drain_has_its_grace_and_no_more(
    autojump_clock: MockClock,
) -> None:
    async def sleeps(payload: Any) -> None:
        await trio.sleep(payload)

    async def arrive() -> None:
        await trio.sleep(2)
        store.arrive.set()

    for seconds, state in ((1, DurableState.SUCCEEDED), (math.inf, DurableState.WAITING)):
        store = LateStore()
        async with trio.open_nursery() as nursery:
            began = trio.current_time()
            async with open_durable_lanes(store, {"sleeps": sleeps}, grace=5) as lanes:
                job = await lanes.submit("sleeps", seconds if seconds < math.inf else 1e9)
                await wait_all_tasks_blocked()
                nursery.start_soon(arrive)
        assert trio.current_time() - began == min(2 + seconds, 5)
        record = store.memory._tables.get(job.id)
        assert record is not None
        assert (record.state, record.crashes) == (state, 0)


async def test_a_store_that_does_not_answer_holds_up_the_end_for_some_seconds_only(
    autojump_clock: MockClock,
) -> None:
    with trio.CancelScope() as scope:
        async with open_durable_lanes(LateStore(), {"echo": echo}) as lanes:
            await lanes.submit("echo")
            await wait_all_tasks_blocked()
            scope.cancel()
    assert trio.current_time() == GIVE_UP_AFTER


async def test_a_drain_waits_for_a_store_that_is_away_for_some_seconds_where_only_reports_are_left(
    autojump_clock: MockClock,
) -> None:
    class Away(LateStore):
        away = False

        async def step(self, *args: Any) -> Any:
            if self.away:
                raise StoreUnavailableError("it is away")
            return await self.memory.step(*args)

    store = Away()

    async def sleeps(payload: Any) -> None:
        await trio.sleep(1)
        store.away = True

    async with open_durable_lanes(store, {"sleeps": sleeps}) as lanes:
        await lanes.submit("sleeps")
        await trio.sleep(2)
        with trio.fail_after(1000):
            await lanes.drain()
        assert trio.current_time() == 2 + 2 * GIVE_UP_AFTER


async def test_a_claim_that_arrives_when_the_lanes_are_cancelled_is_given_back() -> None:
    store = MemoryStore()
    with trio.CancelScope() as scope:
        async with open_durable_lanes(store, {"echo": echo}) as lanes:
            assert lanes.local is not None
            lanes.local.close()
            job = await lanes.submit("echo")
            for _ in range(20):
                await trio.lowlevel.checkpoint()
            scope.cancel()
    record = store._tables.get(job.id)
    assert record is not None
    assert (record.state, record.crashes) == (DurableState.WAITING, 0)


async def test_jobs_of_the_cores_lanes_are_none_of_its_business() -> None:
    async with open_durable_lanes(MemoryStore(), {"echo": echo}) as lanes:
        assert lanes.local is not None
        assert await lanes.local.run(echo, 5) == 5


async def test_a_run_that_has_ended_is_freed_at_once_without_the_collector() -> None:
    runs: list[weakref.ref[DurableRun]] = []

    async def note(_: object) -> None:
        run = current_job()
        assert run is not None
        runs.append(weakref.ref(run))

    async with open_durable_lanes(MemoryStore(), {"note": note}) as lanes:
        first = await lanes.submit("note", session="s")
        await first.wait()
        gc.disable()
        try:
            for _ in range(3):
                job = await lanes.submit("note", session="s")
                await job.wait()
                await wait_all_tasks_blocked()
            assert [run() for run in runs[:-1]] == [None] * 3
        finally:
            gc.enable()


async def test_a_run_that_is_used_after_its_end_is_lost() -> None:
    runs: list[DurableRun] = []

    async def note(_: object) -> None:
        run = current_job()
        assert run is not None
        runs.append(run)

    async with open_durable_lanes(MemoryStore(), {"note": note}) as lanes:
        job = await lanes.submit("note")
        await job.wait()
        runs[0].progress()
        with pytest.raises(JobCancelledError, match="the run was lost"):
            await runs[0].checkpoint("too late")


async def test_a_drain_gives_back_at_its_grace(autojump_clock: MockClock) -> None:
    async def slow(payload: Any) -> None:
        await trio.sleep(100)

    async with open_durable_lanes(MemoryStore(), {"slow": slow}) as lanes:
        job = await lanes.submit("slow")
        await wait_all_tasks_blocked()
        report = await lanes.drain(grace=5)
        assert (report.finished, report.cancelled) == (0, 1)
        status = await job.status()
        assert (status.state, status.crashes, status.attempt) == (DurableState.WAITING, 0, 0)


# ---- the table, and what contradicts itself


def test_only_a_failed_job_leaves_its_end_and_only_a_claim_starts() -> None:
    for before, allowed in TRANSITIONS.items():
        for after in DurableState:
            if after in allowed:
                check_transition(before, after)
            else:
                with pytest.raises(RuntimeError, match="cannot go from"):
                    check_transition(before, after)
    assert [state for state, after in TRANSITIONS.items() if DurableState.RUNNING in after] == [
        DurableState.WAITING
    ]


async def test_check_finds_and_repairs_contradictions(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    async with open_durable_lanes(SqliteStore(path), {"echo": echo}, worker=False) as lanes:
        first = await lanes.submit("echo", "first", session="s")
        second = await lanes.submit("echo", "second", session="s")
        parked = await lanes.submit("echo", "parked", session="t", delay=1000)
        await lanes.submit("echo", "u1", session="u")
        runs = await lanes.submit("echo", "u2", session="u")
        lost = await lanes.submit("echo", "v", session="v")
        assert (await lanes.check()).problems == ()
        for statement in (
            f"UPDATE jobs SET ready = NULL WHERE id = {first.id}",
            f"UPDATE jobs SET ready = 1 WHERE id = {second.id}",
            f"UPDATE jobs SET ready = 2 WHERE id = {parked.id}",
            f"UPDATE jobs SET state = 'running', instance = 'x' WHERE id = {runs.id}",
            f"UPDATE jobs SET lane = 'nowhere' WHERE id = {lost.id}",
        ):
            connection = sqlite3.connect(path)
            connection.execute(statement)
            connection.commit()
            connection.close()
        report = await lanes.check()
        text = "\n".join(report.problems)
        assert f"job {first.id} is a waiting head, and is on no ready list" in text
        assert f"job {second.id} is on a ready list, though other jobs of its session are" in text
        assert f"job {parked.id} is on a ready list, though it is parked" in text
        assert f"job {runs.id} runs, though other jobs of its session are before it" in text
        assert f"job {runs.id} runs on an instance that is not in the store" in text
        assert f"job {lost.id} is for lane 'nowhere', which is not in the store" in text
        assert "the stored counts of jobs are wrong" in text
        assert report.repaired == 0
        assert (await lanes.check(repair=True)).repaired == 5
        left = "\n".join((await lanes.check()).problems)
        assert f"job {first.id} " not in left
        assert f"job {second.id} " not in left
        assert "counts" not in left


async def test_check_puts_a_head_on_its_list_and_nothing_is_repaired_twice() -> None:
    store = MemoryStore()
    async with open_durable_lanes(store, {}, worker=False) as lanes:
        job = store._tables.get((await lanes.submit("echo", session="s")).id)
        assert job is not None
        job.ready = None
        assert (await lanes.check(repair=True)).repaired == 1
        assert await lanes.check(repair=True) == CheckReport((), 0)


async def test_check_of_a_sound_store_lets_others_write_while_it_looks(
    tmp_path: Path,
) -> None:
    path = tmp_path / "jobs.db"
    async with open_durable_lanes(SqliteStore(path, busy_timeout=0.02), {}) as lanes:
        await lanes.submit("echo")
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")  # no write lock is to be had
        assert await lanes.check(repair=True) == CheckReport((), 0)
        other.close()


async def test_check_gives_back_a_job_that_runs_on_no_instance(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    async with open_durable_lanes(SqliteStore(path), {"echo": echo}, worker=False) as lanes:
        lost = await lanes.submit("echo", session="s")
        connection = sqlite3.connect(path)
        connection.execute(
            "UPDATE jobs SET state = 'running', instance = 'x', ready = NULL,"
            """ history = '[1,0,"host",1,0.0,null,null,null]'"""
        )
        connection.execute("UPDATE counts SET state = 'running'")
        connection.commit()
        connection.close()
        report = await lanes.check(repair=True)
        assert report.problems == (f"job {lost.id} runs on an instance that is not in the store",)
        assert report.repaired == 1
        assert (await lanes.check()).problems == ()
        status = await lost.status()
        assert (status.state, status.crashes) == (DurableState.WAITING, 1)


async def test_a_finish_of_a_job_that_is_gone_is_stale() -> None:
    from tests.durable.conformance.bench import Played, opening

    store = Played(MemoryStore())
    async with store.open(opening()):
        await store.join()
        assert (await store.step([Finish(99, 5, Released())], 0)).stale == (5,)
        await store.enqueue([SubmittedJob(name="echo", payload=json.dumps(1))])
        assert await store.look(StatusOf(99)) is None
        assert await store.wait(99) is None
        with pytest.raises(NoRetry):
            raise NoRetry
        await store.leave()


# ---- errors at the end of a run, which belong to that run alone


class Unconstructed(Retry):
    """Does not call the constructor of `Retry`."""

    def __init__(self, response: str) -> None:
        self.response = response


class Raising(dict[str, int]):
    """A mapping that raises when it is written as JSON."""

    def __init__(self, error: Exception) -> None:
        super().__init__(a=1)
        self.error = error

    def items(self) -> Any:
        raise self.error


@pytest.mark.parametrize("error", [RuntimeError("changed size"), MemoryError()])
async def test_a_result_that_raises_when_it_is_encoded_fails_its_job_alone(
    error: Exception,
) -> None:
    async def bad(payload: Any) -> Any:
        return Raising(error)

    store = MemoryStore()
    async with open_durable_lanes(store, {"bad": bad, "echo": echo}, {"main": 1}) as lanes:
        lost = await lanes.submit("bad")
        with pytest.raises(DurableJobError, match="the result is not JSON") as caught:
            await lost.wait()
        assert str(error) in caught.value.message
        assert (await lost.status()).state is DurableState.FAILED
        assert await (await lanes.submit("echo", 1)).wait() == 1


async def test_a_retry_without_its_attributes_is_tried_again_by_the_policy(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def bad(payload: Any) -> None:
        raise Unconstructed("429")

    policy = RetryPolicy(max_attempts=2, backoff=(5, 5), jitter=0)
    handlers = {"bad": bad, "echo": echo}
    async with open_durable_lanes(MemoryStore(), handlers, {"main": 1}, retry=policy) as lanes:
        lost = await lanes.submit("bad")
        with pytest.raises(JobDeadError, match="Unconstructed"):
            await lost.wait()
        assert trio.current_time() == 5
        assert await (await lanes.submit("echo", 1)).wait() == 1
    assert "a handler raised Unconstructed, which lacks the attributes of Retry" in caplog.text


async def test_a_retry_policy_that_cannot_be_read_fails_its_job_alone() -> None:
    async def bad(payload: Any) -> None:
        raise ValueError("no")

    store = MemoryStore()
    async with open_durable_lanes(store, {"bad": bad, "echo": echo}) as lanes:
        await lanes.pause("main")
        lost = await lanes.submit("bad", retry=RetryPolicy())
        record = store._tables.get(lost.id)
        assert record is not None
        record.retry = '"as from another program"'
        await lanes.resume("main")
        with pytest.raises(DurableJobError):
            await lost.wait()
        assert await (await lanes.submit("echo", 1)).wait() == 1


async def test_a_logging_filter_that_raises_disturbs_no_run() -> None:
    class Trips(logging.Filter):
        def filter(self, record: Any) -> bool:
            raise KeyError("user")

    events, trips = logging.getLogger("trio_lanes.durable.events"), Trips()
    before = events.level
    events.setLevel(logging.INFO)
    events.addFilter(trips)
    try:
        async with open_durable_lanes(MemoryStore(), {"echo": echo}) as lanes:
            for n in range(2):
                assert await (await lanes.submit("echo", n)).wait() == n
    finally:
        events.setLevel(before)
        events.removeFilter(trips)


class Proxy:
    """As a proxy of a context that is not there."""

    @property
    def __class__(self) -> Any:
        raise RuntimeError("outside of a request")


async def test_jobs_of_the_core_never_disturb_the_worker() -> None:
    async def with_the_meta_of_its_run(payload: Any) -> Any:
        assert lanes.local is not None
        return await lanes.local.run(echo, 5, meta=current_job())

    handlers = {"echo": echo, "inner": with_the_meta_of_its_run}
    async with open_durable_lanes(MemoryStore(), handlers) as lanes:
        assert lanes.local is not None
        assert await lanes.local.run(echo, 5, meta=Proxy()) == 5
        assert await (await lanes.submit("inner")).wait() == 5
        assert await (await lanes.submit("echo", 1)).wait() == 1


async def test_lanes_that_cannot_report_an_end_are_ended_with_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*args: Any) -> None:
        raise MemoryError

    with pytest.RaisesGroup(
        pytest.RaisesExc(RuntimeError, match="the end of a run could not be reported"),
        flatten_subgroups=True,
    ):
        async with open_durable_lanes(MemoryStore(), {"echo": echo}) as lanes:
            monkeypatch.setattr("trio_lanes.durable._runs.worker.Worker._report", broken)
            await lanes.submit("echo")
            await wait_all_tasks_blocked()
            monkeypatch.undo()
            await trio.sleep_forever()


# ---- groups of exceptions, as nurseries raise them


async def raises(error: BaseException) -> None:
    raise error


async def in_nurseries(*errors: Exception) -> None:
    async with trio.open_nursery() as outer:
        async with trio.open_nursery() as nursery:
            for error in errors:
                nursery.start_soon(raises, error)
        outer.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("errors", "retry_on", "state", "after"),
    [
        ([NoRetry("bad request")], Exception, DurableState.FAILED, 0),
        ([Retry(60, counts=False)], Exception, DurableState.SUCCEEDED, 60),
        ([Retry(60), Retry(90)], Exception, DurableState.SUCCEEDED, 90),
        ([Retry(60), KeyError("x")], Exception, DurableState.SUCCEEDED, 60),
        ([Retry(60), NoRetry()], Exception, DurableState.FAILED, 0),
        ([OSError("x")], OSError, DurableState.SUCCEEDED, 10),
        ([OSError("x"), KeyError("x")], OSError, DurableState.FAILED, 0),
        ([OSError("x")], (ValueError, ExceptionGroup), DurableState.SUCCEEDED, 10),
        ([NoRetry()], ExceptionGroup, DurableState.FAILED, 0),
    ],
)
async def test_an_exception_below_a_nursery_decides_as_if_the_handler_had_raised_it(
    errors: list[Exception],
    retry_on: Any,
    state: DurableState,
    after: float,
    autojump_clock: MockClock,
) -> None:
    async def first_raises(payload: Any) -> None:
        run = current_job()
        assert run is not None
        if trio.current_time() == 0:
            await in_nurseries(*errors)

    policy = RetryPolicy(backoff=(10, 10), jitter=0, retry_on=retry_on)
    async with open_durable_lanes(MemoryStore(), {"job": first_raises}, retry=policy) as lanes:
        job = await lanes.submit("job")
        try:
            await job.wait()
        except DurableJobError:
            assert state is DurableState.FAILED
        assert trio.current_time() == after
        status = await job.status()
        counted = not any(isinstance(error, Retry) and not error.counts for error in errors)
        assert (status.state, status.attempt) == (state, 1 + (counted and after > 0))


@pytest.mark.parametrize(
    ("errors", "begins"),
    [
        ([ValueError("the cause")], "ValueError: the cause"),
        ([ValueError("the cause"), KeyError()], "ExceptionGroup: Exceptions from Trio nursery"),
    ],
)
async def test_the_stored_error_of_a_group_names_its_exceptions(
    errors: list[Exception], begins: str, autojump_clock: MockClock
) -> None:
    async def bad(payload: Any) -> None:
        await in_nurseries(*errors)

    once = RetryPolicy(max_attempts=1)
    async with open_durable_lanes(MemoryStore(), {"bad": bad}, retry=once) as lanes:
        job = await lanes.submit("bad")
        with pytest.raises(JobDeadError) as caught:
            await job.wait()
        assert "ValueError: the cause" in caught.value.traceback
        kept = (await job.status()).error or ""
        assert kept.startswith(begins)
        for error in errors:
            assert f"{type(error).__name__}: {str(error) or 'KeyError'}" in kept
