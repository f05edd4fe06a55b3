"""Schedules: which times are due, what is made up, and what is refused."""

import logging
import sys
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import attrs
import pytest
import trio
from trio.testing import MockClock

from trio_lanes import UnknownLaneError
from trio_lanes.durable import (
    DurableLanes,
    DurableSchedule,
    DurableState,
    MemoryStore,
    PayloadError,
    RetryPolicy,
    SqliteStore,
    Store,
    StoreUnavailableError,
    SubmittedJob,
    UnknownHandlerError,
    open_durable_lanes,
)
from trio_lanes.durable.acts.schedules import FireSchedule, PutSchedule, SchedulesOf
from trio_lanes.durable.testing import Faults, open_cluster

HOUR = 3600.0
DAY = 24 * HOUR


class Ran:
    """Handlers that note when they ran."""

    def __init__(self) -> None:
        self.at: list[float] = []

    async def note(self, payload: Any) -> None:
        self.at.append(trio.current_time())

    async def long(self, payload: Any) -> None:
        self.at.append(trio.current_time())
        await trio.sleep(0.9 * HOUR)


@pytest.fixture
def ran() -> Ran:
    return Ran()


@asynccontextmanager
async def opened(
    ran: Ran, store: Store | None = None, **options: Any
) -> AsyncIterator[DurableLanes]:
    handlers = {"note": ran.note, "long": ran.long}
    options = {"lease_ttl": 1e9, **options}  # what sets the clock ahead is not what ends it
    async with open_durable_lanes(store or MemoryStore(), handlers, **options) as lanes:
        yield lanes


def a_schedule(**options: Any) -> DurableSchedule:
    return DurableSchedule(name="s", job=SubmittedJob(name="note"), **options)


# ---- due times

BERLIN, NEW_YORK, LORD_HOWE = "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"


@pytest.mark.parametrize(
    ("cron", "zone", "after", "due"),
    [
        # an ordinary day
        ("30 4 * * *", BERLIN, "2026-06-01 00:00", ["01 04:30+02:00", "02 04:30+02:00"]),
        ("0 3 * * 1-5", BERLIN, "2026-06-05 02:00", ["05 03:00+02:00", "08 03:00+02:00"]),
        # 2:00 becomes 3:00: a fixed time that is left out comes right after the change
        ("30 2 * * *", BERLIN, "2026-03-28 12:00", ["29 03:00+02:00", "30 02:30+02:00"]),
        ("0 2 * * *", BERLIN, "2026-03-28 12:00", ["29 03:00+02:00", "30 02:00+02:00"]),
        ("0 3 * * *", BERLIN, "2026-03-28 12:00", ["29 03:00+02:00", "30 03:00+02:00"]),
        ("30 2 * * *", NEW_YORK, "2026-03-07 12:00", ["08 03:00-04:00", "09 02:30-04:00"]),
        # a minute or an hour with a star follows the clock
        ("30 * * * *", BERLIN, "2026-03-29 01:00", ["29 01:30+01:00", "29 03:30+02:00"]),
        ("*/30 2 * * *", BERLIN, "2026-03-28 12:00", ["30 02:00+02:00", "30 02:30+02:00"]),
        # 3:00 becomes 2:00: a fixed time comes once, at the first
        ("30 2 * * *", BERLIN, "2026-10-24 12:00", ["25 02:30+02:00", "26 02:30+01:00"]),
        ("0 1 * * *", NEW_YORK, "2026-10-31 12:00", ["01 01:00-04:00", "02 01:00-05:00"]),
        ("30 * * * *", BERLIN, "2026-10-25 02:00", ["25 02:30+02:00", "25 02:30+01:00"]),
        ("*/30 2 * * 0", BERLIN, "2026-10-25 02:00", ["25 02:30+02:00", "25 02:00+01:00"]),
        # a change of half an hour
        ("10 2 * * *", LORD_HOWE, "2026-10-03 12:00", ["04 02:30+11:00", "05 02:10+11:00"]),
        ("45 1 * * *", LORD_HOWE, "2026-04-04 12:00", ["05 01:45+11:00", "06 01:45+10:30"]),
    ],
)
def test_days_on_which_the_clock_changes_are_as_debians_cron_has_them(
    cron: str, zone: str, after: str, due: Iterable[str]
) -> None:
    moment = datetime.fromisoformat(after).replace(tzinfo=ZoneInfo(zone)).timestamp()
    schedule = a_schedule(cron=cron, timezone=zone)
    for expected in due:
        moment = schedule.after(moment)
        found = datetime.fromtimestamp(moment, ZoneInfo(zone))
        assert found.isoformat(" ", "minutes")[8:] == expected


def test_due_times_of_every_are_its_multiples() -> None:
    assert a_schedule(every=3600, next=7200.0).upcoming() == [7200, 10800, 14400, 18000, 21600]
    assert a_schedule(every=0.1).after(1.7e9) == 1.7e9 + 0.1
    assert a_schedule(every=1e-6).after(5.0) == 5.000001
    thirds = a_schedule(every=1 / 3, next=0.333333)
    assert thirds.upcoming(3) == [0.333333, 0.666666, 0.999999]
    assert a_schedule(every=5).upcoming() == []  # it is paused


# ---- jobs


async def test_each_due_time_is_one_job_and_a_pause_skips_them(
    ran: Ran, autojump_clock: MockClock
) -> None:
    async with opened(ran) as lanes:
        await lanes.schedule("tick", "note", {"a": 1}, every=10, session="s", priority=1)
        await trio.sleep(35)
        await lanes.pause("schedule:tick")
        await trio.sleep(50)
        assert [one.paused for one in await lanes.schedules()] == [True]
        await lanes.resume("schedule:tick")
        await trio.sleep(10)
        assert ran.at == [10, 20, 30, 90]
        jobs = await lanes.jobs()
        assert [(job.key, job.session) for job in jobs][::3] == [
            ("tick@1970-01-01T00:00:10Z", "s"),
            ("tick@1970-01-01T00:01:30Z", "s"),
        ]
        await lanes.schedule("tick", "note", {"a": 2}, every=40)  # it has no session now
        await trio.sleep(40)
        assert await lanes.unschedule("tick")
        assert not await lanes.unschedule("tick")
        await trio.sleep(100)
        assert ran.at == [10, 20, 30, 90, 120]


async def test_a_cron_line_follows_its_time_zone(ran: Ran, autojump_clock: MockClock) -> None:
    async with opened(ran) as lanes:
        await lanes.schedule("n", "note", cron="30 3 * * *", timezone="Asia/Tokyo")
        await lanes.schedule("u", "note", cron="0 12 * * *")
        await trio.sleep(DAY)
        assert ran.at == [12 * HOUR, 18.5 * HOUR]
        assert [one.times for one in await lanes.schedules()] == [
            ("30 3 * * *", None, "Asia/Tokyo"),
            ("0 12 * * *", None, "UTC"),
        ]


@pytest.mark.parametrize(
    ("overlap", "runs", "skipped"),
    [("skip", [0.5, 1.5, 2.5, 3.5, 4.5], 5), ("queue", [0.5, 1.4, 2.3, 3.2, 4.1, 5.0], 0)],
)
async def test_a_due_time_whose_predecessor_runs_is_skipped_or_queued(
    ran: Ran, autojump_clock: MockClock, overlap: Any, runs: list[float], skipped: int
) -> None:
    async with opened(ran, grace=0) as lanes:
        await lanes.schedule("s", "long", every=HOUR / 2, overlap=overlap, session="s")
        await trio.sleep(5.2 * HOUR)
        (one,) = await lanes.schedules()
        assert [at / HOUR for at in ran.at] == pytest.approx(runs)
        assert one.skipped == skipped


async def test_the_next_job_cancels_the_one_before(ran: Ran, autojump_clock: MockClock) -> None:
    async with opened(ran, grace=0) as lanes:
        await lanes.schedule("s", "long", every=HOUR / 2, overlap="cancel")
        await trio.sleep(1.9 * HOUR)
        assert ran.at == [HOUR / 2, HOUR, 1.5 * HOUR]
        states = [job.state.value for job in await lanes.jobs()]
        assert states == ["cancelled", "cancelled", "running"]


@pytest.mark.parametrize(
    ("options", "runs", "skipped"),
    [
        ({"every": 60.0}, 1, 1439),
        ({"every": 60.0, "catch_up": 0}, 1, 1439),  # one of them is due now
        ({"every": 60.0, "catch_up": 3, "overlap": "queue"}, 4, 1436),
        ({"cron": "* * * * *", "catch_up": 3, "overlap": "queue"}, 4, 1436),
        ({"cron": "0 * * * *", "catch_up": 0, "overlap": "queue"}, 1, 23),
        ({"every": 1.0, "catch_up": 500, "overlap": "queue"}, 560, 85840),
    ],
)
async def test_after_a_jump_of_the_clock_the_last_due_times_are_made_up(
    ran: Ran, mock_clock: MockClock, options: Any, runs: int, skipped: int
) -> None:
    store = MemoryStore()
    async with opened(ran, store) as lanes:
        await lanes.schedule("s", "note", **options)
        mock_clock.autojump_threshold = 0
        store.jump(DAY + 0.5)  # so no worker was there
        lanes._worker.request_step()  # type: ignore[union-attr]
        await trio.sleep(0.3)
        (one,) = await lanes.schedules()
        assert (len(ran.at), one.skipped) == (runs, skipped)
        await lanes.unschedule("s")


def jitter(hour: int) -> float:
    return 60 * zlib.crc32(f"s@1970-01-01T0{hour}:00:00Z".encode()) / 2**32


async def test_the_jitter_of_a_job_follows_from_its_key(
    ran: Ran, autojump_clock: MockClock
) -> None:
    async with opened(ran) as lanes:
        await lanes.schedule("s", "note", every=HOUR, jitter=60)
        await trio.sleep(3.5 * HOUR)
        late = [at % HOUR for at in ran.at]
        assert late == pytest.approx([jitter(1), jitter(2), jitter(3)], abs=1e-5)


async def test_a_schedule_that_is_set_at_each_start_keeps_its_due_time(
    ran: Ran, autojump_clock: MockClock
) -> None:
    store = MemoryStore()
    for start in range(6):
        async with opened(ran, store.another()) as lanes:
            await lanes.schedule("s", "note", start, every=HOUR)
            await trio.sleep(0.7 * HOUR)
    assert [at / HOUR for at in ran.at] == pytest.approx([1, 2, 3, 4])
    async with opened(ran, store.another()) as lanes:
        await lanes.schedule("s", "note", every=50)
        assert (await lanes.schedules())[0].upcoming(1) == [4.2 * HOUR + 30]


async def test_a_clock_that_was_set_back_brings_no_due_time_again(
    ran: Ran, autojump_clock: MockClock
) -> None:
    store = MemoryStore()
    async with opened(ran, store) as lanes:
        await lanes.schedule("s", "note", every=HOUR)
        await trio.sleep(1.5 * HOUR)
        store.jump(-HOUR)
        await lanes.schedule("s", "note", every=HOUR / 2)  # the next is after the last
        assert (await lanes.schedules())[0].next == 1.5 * HOUR
        given = (await lanes.schedules())[0]
        again = attrs.evolve(given, next=HOUR, every=HOUR / 4)
        await store.do(PutSchedule(again), "a race with another instance")
        await trio.sleep(0.9 * HOUR)
        assert ran.at == [HOUR, 2.25 * HOUR]


async def test_due_times_are_unix_times_where_the_time_of_a_file_is_ahead_of_them(
    ran: Ran, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wall = 1_000 * DAY
    monkeypatch.setattr("time.time", lambda: wall)
    async with opened(ran, SqliteStore(tmp_path / "jobs.db")) as lanes:
        await (await lanes.submit("note")).wait()
    wall -= 10 * DAY  # it was set back; the time of the file was not
    async with opened(ran, SqliteStore(tmp_path / "jobs.db")) as lanes:
        await lanes.schedule("s", "note", every=DAY)
        assert (await lanes.schedules())[0].next == wall + DAY


async def test_two_instances_fire_each_due_time_once(ran: Ran, autojump_clock: MockClock) -> None:
    store = MemoryStore()
    async with opened(ran, store), opened(ran, store.another()) as lanes:
        for n in range(5):
            await lanes.schedule(f"s{n}", "note", every=10 + n)
        await trio.sleep(100)
        assert len(ran.at) in (40, 41)  # at 100 there may be one more
        jobs = await lanes.jobs(limit=1000)
        assert len({job.key for job in jobs}) == len(jobs)


async def test_who_only_asks_sets_schedules_and_fires_none(
    ran: Ran, autojump_clock: MockClock
) -> None:
    store = MemoryStore()
    async with opened(ran, store.another(), worker=False) as asking:
        await asking.schedule("s", "note", every=10)
        await trio.sleep(100)
        assert ran.at == []
        async with opened(ran, store):
            await trio.sleep(15)
        assert ran.at[0] == pytest.approx(100)
        assert len(ran.at) == 2


async def test_lanes_that_are_closed_fire_nothing_more(ran: Ran, autojump_clock: MockClock) -> None:
    store = MemoryStore()
    async with opened(ran, store) as lanes:
        await lanes.schedule("s", "long", every=HOUR)
        await trio.sleep(1.5 * HOUR)
        lanes.close()
        await trio.sleep(5 * HOUR)
    assert ran.at == [HOUR]


TICK = 7.0


async def again(ask: Callable[[], Awaitable[Any]]) -> Any:
    """Ask a store that may be away until it answers."""
    while True:
        try:
            return await ask()
        except StoreUnavailableError:
            await trio.sleep(0.5)


@pytest.mark.many_seeds(6)
async def test_each_due_time_is_submitted_once_or_counted_while_things_go_wrong(
    ran: Ran, autojump_clock: MockClock, request: pytest.FixtureRequest
) -> None:
    seed = sum(map(ord, request.node.name))
    options: Any = {"retry": RetryPolicy(), "max_crashes": 1000, "result_ttl": 1e6, "grace": 0}
    handlers = {"note": ran.note}
    async with open_cluster(
        handlers, {"main": 3}, instances=3, seed=seed, faults=Faults(), **options
    ) as cluster:
        lanes = cluster.lanes
        await again(lambda: lanes.schedule("tick", "note", every=TICK, overlap="queue"))
        (first,) = await again(lanes.schedules)
        await trio.sleep(120)
        cluster.end_faults()
        await again(lambda: lanes.pause("schedule:tick"))
        (one,) = await again(lanes.schedules)
        await trio.sleep(300)
        jobs = await lanes.jobs(limit=-1)
        assert {job.state for job in jobs} == {DurableState.SUCCEEDED}
        assert len({job.key for job in jobs}) == len(jobs) > 5
        assert first.next is not None
        assert one.last is not None
        assert round((one.last - first.next) / TICK) + 1 == len(jobs) + one.skipped
        assert (await lanes.check()).problems == ()


class Counted:
    """A store that counts its calls, and is away for some of its questions."""

    def __init__(self, store: Any) -> None:
        self._inner = store
        self.calls = 0
        self.away = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("_inner", "calls", "away"):
            object.__setattr__(self, name, value)
        else:
            setattr(self._inner, name, value)

    async def do(self, act: Any, ticket: str) -> Any:
        self.calls += 1
        self.check(isinstance(act, FireSchedule))
        return await self._inner.do(act, ticket)

    def check(self, fires: bool) -> None:
        """Be away, if this is a call that fires a schedule."""
        if self.away and fires:
            self.away -= 1
            raise StoreUnavailableError("it is away")

    async def step(self, *args: Any) -> Any:
        self.calls += 1
        return await self._inner.step(*args)

    async def look(self, question: Any) -> Any:
        self.calls += 1
        self.check(self.away != 1 and question == SchedulesOf(None, None))
        return await self._inner.look(question)


async def test_many_schedules_of_which_none_is_due_cost_nothing(
    ran: Ran, autojump_clock: MockClock
) -> None:
    calls = []
    for number in (1, 500):
        store: Any = Counted(MemoryStore())
        async with opened(ran, store) as lanes:
            for n in range(number):
                await lanes.schedule(f"s{n}", "note", every=1e9)
            await trio.sleep(100)
            before = store.calls
            await trio.sleep(80_000)
            calls.append(store.calls - before)
    assert calls[0] == calls[1] == 0


async def test_a_store_that_was_away_is_asked_again(ran: Ran, autojump_clock: MockClock) -> None:
    store: Any = Counted(MemoryStore())
    async with opened(ran, store) as lanes:
        await lanes.schedule("s", "note", every=10)
        store.away = 3
        await trio.sleep(15)
        assert ran.at == [pytest.approx(11.5, abs=1.5)]


async def test_a_due_time_whose_job_is_refused_is_skipped_and_said(
    ran: Ran, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(ran, lanes={"main": 1, "cron": 1}) as lanes:
        await lanes.schedule("s", "note", every=10, lane="cron")
        await lanes.configure({"cron": None})
        await trio.sleep(25)
        (one,) = await lanes.schedules()
        assert (ran.at, one.skipped, one.last) == ([], 2, None)
    assert "1 due times of schedule 's' are skipped" in caplog.text
    assert "'cron'" in caplog.text


# ---- what is missing and what is refused


async def test_an_instance_without_the_extra_says_so_and_leaves_the_schedule_to_others(
    ran: Ran,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with opened(ran) as lanes:
        await lanes.schedule("c", "note", cron="* * * * *")
        with monkeypatch.context() as lacking:
            lacking.setitem(sys.modules, "cronsim", None)
            with pytest.raises(ImportError, match=r"cron needs cronsim: .*trio-lanes\[cron\]"):
                await lanes.schedule("d", "note", cron="* * * * *")
            await lanes.schedule("e", "note", every=100)
            await trio.sleep(110)
            assert ran.at == [pytest.approx(100, abs=1)]
            said = [one for one in caplog.records if one.levelno == logging.ERROR]
            assert [one.getMessage()[:45] for one in said] == [
                "schedule 'c' is left to other instances: a sc"
            ]
        await trio.sleep(20)
        assert len(ran.at) == 3


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({}, ValueError, "one of cron and every, got cron=None, every=None"),
        ({"cron": "* * * * *", "every": 3}, ValueError, "one of cron and every"),
        ({"every": 0}, ValueError, "every must be from 1e-06 to .* got 0"),
        ({"every": 1e11}, ValueError, "every must be from .* got 1000"),
        ({"every": -1}, ValueError, "every must be .* got -1"),
        ({"every": float("inf")}, ValueError, "every must be finite"),
        ({"every": "1"}, TypeError, "every must be"),
        ({"every": 5, "timezone": BERLIN}, ValueError, "timezone is for cron, got 'Europe/Berlin'"),
        ({"cron": 5}, TypeError, "cron must be"),
        ({"cron": "* * * *"}, ValueError, "cron must have five fields, got '"),
        ({"cron": "0 0 * * * *"}, ValueError, "cron must have five fields"),
        ({"cron": "61 * * * *"}, ValueError, "cron cannot be read: Bad minute; got '61"),
        ({"cron": "0 0 30 2 *"}, ValueError, "cron cannot be read: Bad day-of-month"),
        ({"cron": "0 0 */30 4 1#5"}, ValueError, "cron must come at some time, got '0 0 "),
        ({"cron": "0 0 * * *", "timezone": "Mars/Base"}, ValueError, "timezone .* 'Mars/Base'"),
        ({"cron": "0 0 * * *", "timezone": "/etc"}, ValueError, "timezone must be"),
        ({"cron": "0 0 * * *", "timezone": 3}, TypeError, "timezone must be"),
        ({"every": 5, "overlap": "twice"}, ValueError, "overlap must be .* not 'twice'"),
        ({"every": 5, "catch_up": -1}, ValueError, "catch_up must not be negative, got -1"),
        ({"every": 5, "catch_up": 501}, ValueError, "catch_up must be at most 500, got 501"),
        ({"every": 5, "jitter": -0.1}, ValueError, "jitter must be .* got -0.1"),
        ({"every": 5, "jitter": 9, "expires": 9}, ValueError, "longer than the jitter of 9 s"),
        ({"every": 5, "key": "k"}, TypeError, "key is not an option of schedules, got 'k'"),
        ({"every": 5, "delay": 3}, TypeError, "delay is not an option"),
        ({"every": 5, "colour": 3}, TypeError, "colour"),
        ({"every": 5, "priority": 7}, ValueError, "priority"),
        ({"every": 5, "payload": object()}, PayloadError, "payload"),
        ({"every": 5, "handler": "none"}, UnknownHandlerError, "none"),
        ({"every": 5, "lane": "none"}, UnknownLaneError, "none"),
        ({"every": 5, "name": ""}, ValueError, "name must not be empty"),
        ({"every": 5, "name": "x" * 1000}, ValueError, "name with a time"),
    ],
)
async def test_bad_input_is_refused_at_the_call(
    ran: Ran, options: Any, error: type[Exception], words: str
) -> None:
    async with opened(ran) as lanes:
        with pytest.raises(error, match=words):
            await lanes.schedule(**{"name": "s", "handler": "note", **options})
        assert await lanes.schedules() == []


@pytest.mark.parametrize("verb", ["pause", "resume"])
async def test_a_pause_of_a_schedule_that_does_not_exist_is_refused(ran: Ran, verb: str) -> None:
    async with opened(ran) as lanes:
        with pytest.raises(LookupError, match="no schedule 's'"):
            await getattr(lanes, verb)("schedule:s")
        with pytest.raises(ValueError, match="name must not be empty"):
            await getattr(lanes, verb)("schedule:")


# ---- a file
