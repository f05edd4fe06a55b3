"""`StoreCollector` and `observe_store`: the figures of a store, read beside the lanes."""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Thread
from typing import Any, Protocol

import pytest
import trio
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest
from trio.testing import MockClock

from trio_lanes import RateLimit, aio
from trio_lanes.durable import (
    DurableLanes,
    MemoryStore,
    RetryPolicy,
    SqliteStore,
    StoreUnavailableError,
    open_durable_lanes,
)
from trio_lanes.instruments.otel import observe_store
from trio_lanes.instruments.prometheus import StoreCollector

LANES = ("waiting", "oldest_wait", "running", "slots", "parked", "due", "dead")
UNITS = {"oldest_wait": "seconds", "oldest_beat": "seconds", "read_age": "seconds"}
UNITS |= {"quota_left": "ratio", "ended": "total", "schedule_skipped": "total"}


class Meter(Protocol):
    """What reports the figures of a store, and what it has reported."""

    def watch(self, lanes: DurableLanes) -> None: ...
    def all(self, name: str) -> Mapping[tuple[str, ...], float]:
        """The values of a figure by its labels, in the order of the names of these."""


class Prometheus:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()

    def watch(self, lanes: DurableLanes) -> None:
        StoreCollector(lanes, registry=self.registry)

    def all(self, name: str) -> Mapping[tuple[str, ...], float]:
        full = f"trio_lanes_store_{name}_{UNITS.get(name, '')}".rstrip("_")
        return {
            tuple(sample.labels[label] for label in sorted(sample.labels)): sample.value
            for metric in self.registry.collect()
            for sample in metric.samples
            if sample.name == full
        }


class OpenTelemetry:
    def __init__(self) -> None:
        self.reader = InMemoryMetricReader()
        self.meter = MeterProvider(metric_readers=[self.reader]).get_meter("test")

    def watch(self, lanes: DurableLanes) -> None:
        observe_store(lanes, self.meter)

    def all(self, name: str) -> Mapping[tuple[str, ...], float]:
        return {
            tuple(str(value) for _, value in sorted(point.attributes.items())): point.value
            for found, point in self._points()
            if found == f"trio_lanes.store.{name}"
        }

    def _points(self) -> Iterator[tuple[str, Any]]:
        data = self.reader.get_metrics_data()
        for resource in data.resource_metrics if data is not None else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    for point in metric.data.data_points:
                        yield metric.name, point


@pytest.fixture(params=[Prometheus, OpenTelemetry])
def meter(request: pytest.FixtureRequest) -> Meter:
    made: Meter = request.param()
    return made


async def fail(payload: object) -> None:
    raise ValueError(payload)


HANDLERS: Mapping[str, Callable[[Any], Awaitable[None]]] = {"sleep": trio.sleep, "fail": fail}


@asynccontextmanager
async def opened(
    store: MemoryStore, lanes: Any = None, **options: Any
) -> AsyncIterator[DurableLanes]:
    options = {"retry": RetryPolicy(max_attempts=1), "grace": 0, "lease_ttl": 40.0, **options}
    limits = {"main": 1, "tenant:*": 2} if lanes is None else lanes
    handlers = HANDLERS if options.get("worker", True) else {}
    async with open_durable_lanes(store.another(), handlers, limits, **options) as lanes_open:
        yield lanes_open


async def test_figures_of_lanes_have_the_names_and_templates_of_the_store(
    autojump_clock: MockClock, meter: Meter
) -> None:
    store = MemoryStore()
    async with opened(store) as lanes, opened(store, worker=False) as asking:
        meter.watch(asking)
        await lanes.submit("sleep", 1000)
        await lanes.submit("sleep", 1, delay=5)
        await lanes.submit("sleep", 1, delay=500, session="alice")
        for tenant in "abc":
            await lanes.submit("fail", 1, lane=f"tenant:{tenant}")
            await lanes.submit("sleep", 1000, lane=f"tenant:{tenant}")
        await asking.submit("another", 1, lane="tenant:a")
        await trio.sleep(15.5)
        found = {name: meter.all(name) for name in LANES}
        assert found == {
            "waiting": {("main",): 1, ("tenant:*",): 1},
            "oldest_wait": {("main",): 10, ("tenant:*",): 15},
            "running": {("main",): 1, ("tenant:*",): 3},
            "slots": {("main",): 1, ("tenant:*",): 6},
            "parked": {("main",): 1, ("tenant:*",): 0},
            "due": {("main",): 0, ("tenant:*",): 0},
            "dead": {("main",): 0, ("tenant:*",): 3},
        }
        ended = meter.all("ended")  # what has not ended yet is 0, so that the first is an increase
        assert {labels: number for labels, number in ended.items() if number} == {
            ("tenant:*", "dead"): 3
        }
        assert {outcome for lane, outcome in ended if lane == "main"} == {
            *("succeeded", "failed", "dead", "cancelled", "expired")
        }
        assert meter.all("unhandled") == {(): 1}
        assert meter.all("instances") == {(): 1}
        assert meter.all("oldest_beat")[()] < 20
        problems = Counter((problem.kind,) for problem in await asking.health())
        assert meter.all("problems") == problems
        assert problems["handler",] == 1


async def test_an_unlimited_lane_has_no_number_of_slots(
    autojump_clock: MockClock, meter: Meter
) -> None:
    async with opened(MemoryStore(), {"main": math.inf}) as lanes:
        meter.watch(lanes)
        await trio.sleep(1)
        assert meter.all("slots") == {}
        assert meter.all("waiting") == {("main",): 0}


async def test_what_falls_due_while_no_instance_lives_is_seen(
    autojump_clock: MockClock, meter: Meter
) -> None:
    store = MemoryStore()
    async with opened(store, worker=False) as asking:
        async with opened(store) as lanes:
            await lanes.schedule("nightly", "sleep", 1, every=3600, lane="main")
            await lanes.submit("sleep", 1, delay=20, lane="tenant:a")
        meter.watch(asking)
        await trio.sleep(1)
        assert meter.all("due") == {("main",): 0, ("tenant:*",): 0}
        assert meter.all("instances") == {(): 0}
        assert meter.all("oldest_beat") == {}
        await trio.sleep(3700)
        assert meter.all("due") == {("main",): 1, ("tenant:*",): 1}
        now = await asking.statistics()
        assert (now.due, now.lanes["main"].due) == (2, 1)


async def test_the_scarcest_quota_of_a_template_is_told(
    autojump_clock: MockClock, meter: Meter
) -> None:
    day = RateLimit(100, per="day", unit="usd", timezone="UTC")
    quotas: Any = {
        "tenant:*": [day],
        "provider": [day, RateLimit(10, per=3600.0, algorithm="sliding")],
        "shut": [day],
    }
    async with opened(MemoryStore(), quotas=quotas) as lanes:
        meter.watch(lanes)
        await lanes.quota("tenant:a").spend(usd=25)
        await lanes.quota("tenant:b").spend(usd=60)
        for _ in range(3):
            await lanes.quota("provider").spend(usd=1)
        await lanes.quota("shut").spend(usd=100)
        await trio.sleep(16)
        found = {label: round(left, 2) for (label,), left in meter.all("quota_left").items()}
        assert found == {"tenant:*": 0.4, "provider": 0.7, "shut": 0.0}


async def test_skips_are_told_by_schedule_and_all_but_the_oldest_200_together(
    autojump_clock: MockClock, meter: Meter
) -> None:
    async with opened(MemoryStore(), {"main": math.inf}) as lanes:
        for number in range(203):
            await lanes.schedule(f"s{number:03}", "sleep", 1e6, every=60.0)
        meter.watch(lanes)
        await trio.sleep(200)  # the first job of each still runs
        found = meter.all("schedule_skipped")
        assert len(found) == 201
        assert (found[("s000",)], found[("s199",)], found[("other",)]) == (2, 2, 6)
        await lanes.unschedule("s000")
        await trio.sleep(16)
        found = meter.all("schedule_skipped")
        assert (found[("s200",)], found[("other",)]) == (2, 6)  # a counter does not fall


async def test_a_problem_that_is_over_is_none(autojump_clock: MockClock, meter: Meter) -> None:
    async with opened(MemoryStore()) as lanes:
        meter.watch(lanes)
        await lanes.pause("main")
        await lanes.submit("sleep", 1)
        await trio.sleep(31)
        assert meter.all("problems") == {("pause",): 1}
        await lanes.resume("main")
        await trio.sleep(15)
        assert meter.all("problems") == {("pause",): 0}


@pytest.mark.parametrize("error", [StoreUnavailableError("away"), ZeroDivisionError("a slip")])
async def test_what_cannot_be_read_keeps_its_figures_and_their_age_is_told(
    autojump_clock: MockClock,
    meter: Meter,
    error: Exception,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: list[Exception] = []

    async def look(store: MemoryStore, question: Any) -> Any:
        if found:
            raise found[0]
        return await before(store, question)

    before = MemoryStore.look
    monkeypatch.setattr(MemoryStore, "look", look)
    async with opened(MemoryStore(), {"main": 1}) as lanes:
        meter.watch(lanes)
        await lanes.submit("sleep", 1e6)
        await trio.sleep(16)
        assert (meter.all("running"), meter.all("read_age")) == ({("main",): 1}, {(): 1})
        found.append(error)
        await trio.sleep(60)
        assert (meter.all("running"), meter.all("read_age")) == ({("main",): 1}, {(): 61})
        (record,) = [one for one in caplog.records if "could not be read" in one.message]
        assert (record.name, record.levelno) == ("trio_lanes", logging.WARNING)
        assert (record.exc_info is None) is isinstance(error, StoreUnavailableError)
        found.clear()
        await trio.sleep(15)
        assert meter.all("read_age")[()] < 15


async def test_a_scrape_reads_nothing_of_the_store(
    autojump_clock: MockClock, meter: Meter, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    seen: list[Any] = []

    async def look(store: MemoryStore, question: Any) -> Any:
        asked.append(question)
        return await before(store, question)

    before = MemoryStore.look
    monkeypatch.setattr(MemoryStore, "look", look)
    async with opened(MemoryStore(), worker=False) as lanes:
        meter.watch(lanes)
        await trio.sleep(1)
        asked.clear()
        for _ in range(9):
            assert meter.all("waiting")
            thread = Thread(target=lambda: seen.append(meter.all("read_age")))
            thread.start()
            thread.join()
            assert seen.pop() == {(): 1}
        assert asked == []


async def test_the_figures_end_with_the_lanes(autojump_clock: MockClock, meter: Meter) -> None:
    for _ in range(2):  # lanes of a second opening have the same names
        async with opened(MemoryStore()) as lanes:
            meter.watch(lanes)
            await trio.sleep(1)
            assert meter.all("waiting") == {("main",): 0, ("tenant:*",): 0}
        assert (meter.all("waiting"), meter.all("read_age")) == ({}, {})
    with pytest.raises(RuntimeError):
        meter.watch(lanes)
    assert meter.all("waiting") == {}


async def test_two_processes_tell_the_same_figures(autojump_clock: MockClock, meter: Meter) -> None:
    store, other = MemoryStore(), type(meter)()
    async with opened(store) as one, opened(store) as two:
        meter.watch(one)
        other.watch(two)
        await one.submit("sleep", 1e6)
        await two.submit("fail", 1, lane="tenant:a")
        await trio.sleep(20)
        for name in (*LANES, "ended", "unhandled", "instances"):
            assert meter.all(name) == other.all(name), name
        assert meter.all("instances") == {(): 2}


@pytest.mark.asyncio_only
async def test_lanes_of_asyncio_are_read_too(meter: Meter, tmp_path: Path) -> None:
    async def work(payload: object) -> None:
        await asyncio.sleep(0)

    async with aio.open_durable_lanes(SqliteStore(tmp_path / "s.db"), {"work": work}) as lanes:
        meter.watch(lanes)
        while not meter.all("waiting"):  # noqa: ASYNC110  # a metric tells nobody
            await asyncio.sleep(0.01)
        assert meter.all("waiting") == {("main",): 0, ("cron",): 0, ("subagent",): 0}
        assert meter.all("instances") == {(): 1}


async def test_the_names_for_prometheus_are_those_that_dashboards_use(
    autojump_clock: MockClock,
) -> None:
    async with opened(MemoryStore()) as lanes:
        registry = CollectorRegistry()
        StoreCollector(lanes, registry=registry)
        await trio.sleep(1)
        text = generate_latest(registry).decode()
    names = re.findall(r"^# TYPE trio_lanes_store_(\w+) (\w+)$", text, re.M)
    assert {name for name, kind in names if kind == "counter"} == {
        *("ended_total", "schedule_skipped_total")
    }
    assert {name for name, kind in names if kind == "gauge"} == {
        *("waiting", "oldest_wait_seconds", "running", "slots", "parked", "due", "dead"),
        *("unhandled", "instances", "oldest_beat_seconds", "read_age_seconds"),
        *("quota_left_ratio", "problems"),
    }


async def test_bad_arguments_of_a_collector_are_refused(autojump_clock: MockClock) -> None:
    registry = CollectorRegistry()
    async with opened(MemoryStore()) as lanes:
        bad: Any
        for bad in (lanes.local, None):
            with pytest.raises(TypeError, match="lanes must be DurableLanes"):
                StoreCollector(bad, registry=registry)
            with pytest.raises(TypeError, match="lanes must be DurableLanes"):
                observe_store(bad)
        with pytest.raises(ValueError, match="every must be above 0"):
            StoreCollector(lanes, registry=registry, every=0)
        StoreCollector(lanes, registry=registry)
        with pytest.raises(ValueError, match="Duplicated"):
            StoreCollector(lanes, registry=registry)
