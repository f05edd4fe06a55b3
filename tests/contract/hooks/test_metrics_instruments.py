"""`PrometheusInstrument` and `OpenTelemetryInstrument`: figures by lane and outcome, and spans."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Iterator
from typing import Any, Protocol

import pytest
import trio
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry, generate_latest
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_lanes import (
    Job,
    LaneConfig,
    LaneInstrument,
    Lanes,
    RateLimit,
    current_job,
    open_lanes,
)
from trio_lanes.instruments.otel import OpenTelemetryInstrument
from trio_lanes.instruments.prometheus import PrometheusInstrument


class BodyError(Exception):
    pass


async def fail() -> None:
    await trio.sleep(1)
    raise BodyError("nobody knows")


async def stubborn() -> None:
    with trio.CancelScope(shield=True):
        await trio.sleep(20)


class Meter(Protocol):
    """An instrument, and what it has told."""

    instrument: LaneInstrument

    def value(self, name: str, lane: str, outcome: str | None = None) -> float:
        """The value of a figure; of a histogram of seconds, the number of measurements."""

    def seconds(self, name: str, lane: str) -> float:
        """The sum of the measurements."""

    def labels(self) -> set[str]:
        """All values of labels, or of attributes."""

    def causes(self) -> dict[str, tuple[float, float]]:
        """{cause of waits in main: (number, sum)}"""


class Prometheus:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.instrument = PrometheusInstrument(self.registry)

    def _sample(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"trio_lanes_{name}", labels) or 0

    def value(self, name: str, lane: str, outcome: str | None = None) -> float:
        name = name.replace(".", "_")
        if outcome is not None:
            return self._sample(f"{name}_total", lane=lane, outcome=outcome)
        kinds = [f"{name}{end}" for end in ("", "_total", "_seconds_count")]
        return sum(self._sample(kind, lane=lane) for kind in kinds)

    def seconds(self, name: str, lane: str) -> float:
        return self._sample(f"{name.replace('.', '_')}_seconds_sum", lane=lane)

    def labels(self) -> set[str]:
        return {
            label
            for metric in self.registry.collect()
            for sample in metric.samples
            for name, label in sample.labels.items()
            if name != "le"
        }

    def causes(self) -> dict[str, tuple[float, float]]:
        values: dict[str, list[float]] = {}
        for metric in self.registry.collect():
            for sample in metric.samples:
                if sample.name.startswith("trio_lanes_job_wait_cause_seconds_"):
                    end = sample.name.rpartition("_")[2]
                    if end in ("count", "sum"):
                        values.setdefault(sample.labels["cause"], []).append(sample.value)
        return {cause: (found[0], found[1]) for cause, found in values.items()}


class OpenTelemetry:
    def __init__(self) -> None:
        self.reader = InMemoryMetricReader()
        self.instrument = OpenTelemetryInstrument(
            TracerProvider(), MeterProvider(metric_readers=[self.reader])
        )

    def _points(self) -> Iterator[tuple[str, Any]]:
        data = self.reader.get_metrics_data()
        for resource in data.resource_metrics if data is not None else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    for point in metric.data.data_points:
                        yield metric.name, point

    def _point(self, name: str, lane: str, outcome: str | None) -> Any:
        wanted = {"trio_lanes.lane": lane}
        if outcome is not None:
            wanted["trio_lanes.outcome"] = outcome
        for found, point in self._points():
            if found == f"trio_lanes.{name}" and point.attributes == wanted:
                return point
        return None

    def value(self, name: str, lane: str, outcome: str | None = None) -> float:
        point = self._point(name, lane, outcome)
        if point is None:
            return 0
        return float(point.count if isinstance(point, HistogramDataPoint) else point.value)

    def seconds(self, name: str, lane: str) -> float:
        return float(self._point(name, lane, None).sum)

    def labels(self) -> set[str]:
        return {str(label) for _, point in self._points() for label in point.attributes.values()}

    def causes(self) -> dict[str, tuple[float, float]]:
        return {
            point.attributes["trio_lanes.cause"]: (point.count, point.sum)
            for name, point in self._points()
            if name == "trio_lanes.job.wait.cause"
        }


@pytest.fixture(params=[Prometheus, OpenTelemetry])
def meter(request: pytest.FixtureRequest) -> Meter:
    made: Meter = request.param()
    return made


# ---- what both of them tell


async def test_figures_tell_what_waits_runs_and_has_ended_and_how_long_that_took(
    autojump_clock: MockClock, meter: Meter
) -> None:
    async with open_lanes({"main": 1}, instruments=[meter.instrument]) as lanes:
        for _ in range(3):
            lanes.submit_nowait(trio.sleep, 2, session="alice")
        assert meter.value("jobs.submitted", "main") == 3
        assert (meter.value("jobs.waiting", "main"), meter.value("jobs.running", "main")) == (2, 1)
        await trio.sleep(3)
        assert (meter.value("jobs.waiting", "main"), meter.value("jobs.running", "main")) == (1, 1)
        await lanes.wait_idle()
        assert (meter.value("jobs.waiting", "main"), meter.value("jobs.running", "main")) == (0, 0)
    assert meter.value("jobs.finished", "main", "succeeded") == 3
    assert (meter.value("job.wait", "main"), meter.seconds("job.wait", "main")) == (3, 6.0)
    assert (meter.value("job.run", "main"), meter.seconds("job.run", "main")) == (3, 6.0)


async def test_jobs_are_counted_by_how_they_end(autojump_clock: MockClock, meter: Meter) -> None:
    async def fails_as_another_did() -> None:
        await lanes.run(trio.sleep, 9, timeout=1)

    async with open_lanes({"main": 9, "cron": 0}, instruments=[meter.instrument]) as lanes:
        submit = lanes.submit_nowait
        jobs = [
            submit(trio.sleep, 1),
            submit(fail),
            submit(trio.sleep, 9, timeout=1),
            submit(trio.sleep, 9, idle_timeout=1),
            submit(fails_as_another_did),
            submit(trio.sleep, 9, lane="cron", queue_timeout=1),
            submit(trio.sleep, 9, name="cancelled"),
            submit(trio.sleep, 9, name="cancelled", lane="cron"),
        ]
        await trio.sleep(0.5)
        for job in jobs[-2:]:
            job.cancel()
        for job in jobs:
            await job.wait_done()
        submit(trio.sleep, 9, lane="cron")
        lanes.clear("cron")
        submit(trio.sleep, 9)
        lanes.reset("main")
        submit(trio.sleep, 9, lane="cron")
        await lanes.drain(grace=1)
        assert all(job.exception or True for job in jobs)  # they are read
    ends = ["succeeded", "failed", "timeout", "idle_timeout", "cancelled", "reset"]
    assert [meter.value("jobs.finished", "main", end) for end in ends] == [1, 2, 2, 1, 1, 1]
    ends = ["queue_timeout", "cancelled", "cleared", "closed"]
    assert [meter.value("jobs.finished", "cron", end) for end in ends] == [1, 1, 1, 1]
    assert [meter.value("jobs.waiting", lane) for lane in ("main", "cron")] == [0, 0]
    assert [meter.value("jobs.running", lane) for lane in ("main", "cron")] == [0, 0]


async def test_a_wait_is_measured_from_the_end_of_the_delay(
    autojump_clock: MockClock, meter: Meter
) -> None:
    async with open_lanes({"main": 1}, instruments=[meter.instrument]) as lanes:
        lanes.submit_nowait(trio.sleep, 7)
        lanes.submit_nowait(trio.sleep, 1, delay=5)
    assert meter.seconds("job.wait", "main") == 2.0


async def test_events_that_need_attention_are_counted(
    autojump_clock: MockClock, meter: Meter
) -> None:
    rate = RateLimit(2, 10, algorithm="sliding")
    config = LaneConfig(concurrency=9, rate=rate, warn_after=5.0, overdue_after=3.0)
    async with open_lanes({"main": config, "cron": 2}, instruments=[meter.instrument]) as lanes:
        jobs = [lanes.submit_nowait(stubborn) for _ in range(3)]
        await trio.sleep(1)
        jobs[0].cancel()
        await trio.sleep(10)
        assert lanes.reset("main") == 3
        lanes.pause("session:alice")
        lanes.resume("session:alice")
        lanes.pause("cron")
    told = ["jobs.waiting_long", "jobs.overdue", "jobs.abandoned", "lanes.rate_limited"]
    # A body is overdue once: one since its cancel, the two others since the reset
    assert [meter.value(name, "main") for name in told] == [1, 3, 3, 1]
    assert [meter.value("lanes.paused", lane) for lane in ("session:*", "cron")] == [1, 1]


async def test_labels_are_from_a_bounded_set_and_never_the_key_of_a_session(
    autojump_clock: MockClock, meter: Meter
) -> None:
    config = {"main": 2, "tool:*": 1}
    async with open_lanes(config, instruments=[meter.instrument]) as lanes:
        for key in ("alice", "bob"):
            session = lanes.session(key)
            session.submit_nowait(trio.sleep, 9)
            session.submit_nowait(trio.sleep, 9, lane=f"tool:{key}", warn_after=1)
            session.pause()
        await trio.sleep(5)
        lanes.reset("session:alice")
        for key in ("alice", "bob"):
            lanes.resume(f"session:{key}")
    assert meter.labels() == {"main", "tool:*", "session:*", "succeeded", "reset"}


async def test_levels_return_to_0_although_a_lane_gets_a_configuration_of_its_own(
    autojump_clock: MockClock, meter: Meter
) -> None:
    async with open_lanes({"tool:*": 1}, instruments=[meter.instrument]) as lanes:
        for _ in range(2):
            lanes.submit_nowait(trio.sleep, 1, lane="tool:a")
        lanes.configure({"tool:a": 2})
        lanes.submit_nowait(trio.sleep, 1, lane="tool:a")
    for name in ("jobs.waiting", "jobs.running"):
        assert [meter.value(name, lane) for lane in ("tool:*", "tool:a")] == [0, 0]
    done = [meter.value("jobs.finished", lane, "succeeded") for lane in ("tool:*", "tool:a")]
    # Prometheus reads the label when a job settles, OpenTelemetry when it is submitted
    assert done == ([0, 3] if isinstance(meter, Prometheus) else [2, 1])


@pytest.mark.parametrize("hook", ["job_submitted", "job_started"])
async def test_a_job_that_another_instrument_ends_first_is_counted_as_any(
    autojump_clock: MockClock, meter: Meter, hook: str
) -> None:
    class End:
        lanes: Lanes

    def end(self: End, job: Job[Any]) -> None:
        self.lanes.reset() if job.started_at is not None else job.cancel()

    first = type("First", (End,), {hook: end})()
    async with open_lanes({"main": 1}, instruments=[first, meter.instrument]) as lanes:
        first.lanes = lanes
        job = lanes.submit_nowait(trio.sleep, 1)
        assert job.done
        ended = weakref.ref(job)
        del job
        await wait_all_tasks_blocked()
        gc.collect()
        assert ended() is None  # nothing is kept of it
    assert meter.value("jobs.submitted", "main") == 1
    outcome = "cancelled" if hook == "job_submitted" else "reset"
    assert meter.value("jobs.finished", "main", outcome) == 1
    assert (meter.value("jobs.waiting", "main"), meter.value("jobs.running", "main")) == (0, 0)


async def test_one_instrument_adds_up_several_lanes(
    autojump_clock: MockClock, meter: Meter
) -> None:
    instruments = [meter.instrument]
    async with (
        open_lanes({"main": 1}, instruments=instruments) as one,
        open_lanes({"main": 1}, instruments=instruments) as other,
    ):
        for lanes in (one, other):
            lanes.submit_nowait(trio.sleep, 1)
        assert meter.value("jobs.running", "main") == 2
    assert meter.value("jobs.finished", "main", "succeeded") == 2


# ---- Prometheus alone


def test_two_may_share_a_registry_under_names_of_their_own() -> None:
    registry = CollectorRegistry()
    PrometheusInstrument(registry)
    with pytest.raises(ValueError, match="trio_lanes_jobs_waiting"):
        PrometheusInstrument(registry)
    PrometheusInstrument(registry, namespace="bot")
    assert b"# HELP bot_jobs_waiting Jobs that have not started." in generate_latest(registry)


async def test_histograms_have_the_given_buckets(
    autojump_clock: MockClock,
) -> None:
    registry = CollectorRegistry()
    instrument = PrometheusInstrument(registry, buckets=(1, 3))
    async with open_lanes({"main": 1}, instruments=[instrument]) as lanes:
        await lanes.run(trio.sleep, 2)
    found = {
        bound: registry.get_sample_value(
            "trio_lanes_job_run_seconds_bucket", {"lane": "main", "le": bound}
        )
        for bound in ("1.0", "3.0", "+Inf")
    }
    assert found == {"1.0": 0.0, "3.0": 1.0, "+Inf": 1.0}


# ---- spans


class Spans:
    """A provider, and the spans of it that have ended."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("test")

    def of(self, name: str) -> ReadableSpan:
        (span,) = [span for span in self._exporter.get_finished_spans() if span.name == name]
        return span

    def names(self) -> list[str]:
        return sorted(span.name for span in self._exporter.get_finished_spans())


@pytest.fixture
def spans() -> Spans:
    return Spans()


def parent(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def id_of(span: ReadableSpan) -> int:
    context = span.get_span_context()
    assert context is not None
    return context.span_id


SPANS = ("turn", "child", "alone")


async def test_a_job_is_a_span_below_that_in_which_it_was_submitted(
    autojump_clock: MockClock, spans: Spans
) -> None:
    async def child() -> None:
        with spans.tracer.start_as_current_span("in the child"):
            await trio.sleep(1)

    async def turn() -> None:
        await trio.sleep(1)
        with spans.tracer.start_as_current_span("in the turn"):
            await trio.to_thread.run_sync(in_thread)
            await lanes.run(child, lane="cron", name="child")

    def in_thread() -> None:
        spans.tracer.start_span("in a thread").end()

    instrument = OpenTelemetryInstrument(spans.provider)
    async with open_lanes({"main": 1, "cron": 1}, instruments=[instrument]) as lanes:
        with spans.tracer.start_as_current_span("request") as request:
            job = lanes.submit_nowait(turn, name="turn", session="alice", priority=3)
            assert trace.get_current_span() is request  # not that of the job
        await job.wait()
        await lanes.run(trio.sleep, 0, name="alone")
    for name, above in [
        ("turn", "request"),
        ("in the turn", "turn"),
        ("in a thread", "in the turn"),
        ("child", "in the turn"),
        ("in the child", "child"),
    ]:
        assert parent(spans.of(name)) == id_of(spans.of(above)), name
    assert parent(spans.of("alone")) is None
    linked = {name: [link.context.span_id for link in spans.of(name).links] for name in SPANS}
    assert linked == {
        "turn": [id_of(spans.of("request"))],
        "child": [id_of(spans.of("in the turn"))],
        "alone": [],
    }
    assert dict(spans.of("turn").attributes or {}) == {
        "trio_lanes.lane": "main",
        "trio_lanes.job.id": job.id,
        "trio_lanes.job.priority": 3,
        "trio_lanes.job.wait": 0.0,
        "trio_lanes.outcome": "succeeded",
    }
    assert spans.of("turn").status.status_code is trace.StatusCode.UNSET


async def test_a_span_tells_how_its_job_ended_and_retrieves_no_failure(
    autojump_clock: MockClock, spans: Spans, caplog: pytest.LogCaptureFixture
) -> None:
    instrument = OpenTelemetryInstrument(spans.provider)
    config = LaneConfig(concurrency=9, overdue_after=2)
    async with open_lanes({"main": config, "cron": 0}, instruments=[instrument]) as lanes:
        lanes.submit_nowait(fail, name="failed")
        cancelled = lanes.submit_nowait(stubborn, name="cancelled")
        reset = lanes.submit_nowait(stubborn, name="reset", session="alice")
        never = lanes.submit_nowait(trio.sleep, 1, name="never", lane="cron")
        await trio.sleep(0.5)
        cancelled.cancel()
        lanes.reset("session:alice")
        never.cancel()
        await trio.sleep(5)
        assert reset.done
    assert spans.names() == ["cancelled", "failed", "reset"]
    outcomes = {
        name: (spans.of(name).attributes or {})["trio_lanes.outcome"] for name in spans.names()
    }
    assert outcomes == {"cancelled": "succeeded", "failed": "failed", "reset": "reset"}
    failed = spans.of("failed")
    assert failed.status.status_code is trace.StatusCode.ERROR
    assert failed.status.description == "BodyError: nobody knows"
    (event,) = failed.events
    assert (event.attributes or {})["exception.message"] == "nobody knows"
    (overdue,) = spans.of("cancelled").events
    assert (overdue.name, dict(overdue.attributes or {})) == (
        "trio_lanes.overdue",
        {"trio_lanes.since": 2.0},
    )
    assert spans.of("reset").events == ()  # it had ended by then
    assert [record.message for record in caplog.records if "never retrieved" in record.message]


@pytest.mark.parametrize("asked", [False, True])
async def test_a_span_has_the_key_of_its_session_only_if_asked(
    autojump_clock: MockClock, spans: Spans, asked: bool
) -> None:
    instrument = OpenTelemetryInstrument(spans.provider, session_keys=asked)
    async with open_lanes({"main": 1}, instruments=[instrument]) as lanes:
        await lanes.run(trio.sleep, 0, session="alice", name="with")
        await lanes.run(trio.sleep, 0, name="without")
    keys = [
        (spans.of(name).attributes or {}).get("trio_lanes.session") for name in ("with", "without")
    ]
    assert keys == (["alice", None] if asked else [None, None])


async def test_without_providers_jobs_run_and_nothing_fails(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 1}, instruments=[OpenTelemetryInstrument()]) as lanes:
        await lanes.run(trio.sleep, 1)


async def test_no_job_sees_the_span_of_the_job_before_it(
    autojump_clock: MockClock, spans: Spans
) -> None:
    seen: list[int] = []

    async def look() -> None:
        seen.append(trace.get_current_span().get_span_context().span_id)

    instrument = OpenTelemetryInstrument(spans.provider)
    async with open_lanes({"main": 1}, instruments=[instrument]) as lanes:
        for name in "abc":
            lanes.submit_nowait(look, name=name)
        await wait_all_tasks_blocked()
        assert not trace.get_current_span().get_span_context().is_valid
    assert seen == [id_of(spans.of(name)) for name in "abc"]
    assert all(parent(spans.of(name)) is None for name in "abc")


async def test_jobs_that_have_not_settled_when_an_instrument_is_added_are_counted(
    autojump_clock: MockClock,
) -> None:
    registry = CollectorRegistry()
    async with open_lanes({"main": 1}) as lanes:
        await lanes.run(trio.sleep, 1)  # this has settled
        running = lanes.submit_nowait(trio.sleep, 1)
        lanes.submit_nowait(trio.sleep, 1)
        await trio.sleep(0.5)
        lanes.add_instrument(PrometheusInstrument(registry, buckets=[1, math.inf]))
        lanes.submit_nowait(trio.sleep, 1)
        await running.wait()
    counted = registry.get_sample_value("trio_lanes_jobs_submitted_total", {"lane": "main"})
    assert counted == 3
    running_now = registry.get_sample_value("trio_lanes_jobs_running", {"lane": "main"})
    assert running_now == 0
    ran = registry.get_sample_value("trio_lanes_job_run_seconds_count", {"lane": "main"})
    assert ran == 3


async def test_a_wait_is_that_before_the_first_start_of_a_job(autojump_clock: MockClock) -> None:
    async def again() -> None:
        job = current_job()
        assert job is not None
        await trio.sleep(3)
        await job.readmit()

    meter = Prometheus()
    async with open_lanes({"main": 1}, instruments=[meter.instrument]) as lanes:
        lanes.submit_nowait(trio.sleep, 2)
        lanes.submit_nowait(again, delay=1)
        lanes.submit_nowait(trio.sleep, 5)
    assert meter.seconds("job.wait", "main") == 0 + 2 + 6


async def test_a_number_of_submitted_jobs_never_falls(autojump_clock: MockClock) -> None:
    meter = Prometheus()
    for _ in range(2):
        async with open_lanes({"t:*": 1}, instruments=[meter.instrument]) as lanes:
            for number in range(3):
                lanes.submit_nowait(trio.sleep, 1, lane=f"t:{number}")
            assert meter.value("jobs.running", "t:*") == 3
        del lanes
        gc.collect()
    assert meter.value("jobs.submitted", "t:*") == 6
    assert meter.value("jobs.finished", "t:*", "succeeded") == 6
    assert meter.value("jobs.running", "t:*") == 0


async def test_a_number_of_submitted_jobs_never_falls_while_other_jobs_wait(
    autojump_clock: MockClock,
) -> None:
    meter = Prometheus()
    async with open_lanes({"main": 2}, instruments=[meter.instrument]) as lanes:
        for _ in range(3):
            lanes.submit_nowait(trio.sleep, 1)
        assert meter.value("jobs.submitted", "main") == 3
        lanes.remove_instrument(meter.instrument)
        await lanes.wait_idle()  # it hears of none of these ends
        lanes.submit_nowait(trio.sleep, 1)
        lanes.add_instrument(meter.instrument)
        assert meter.value("jobs.submitted", "main") == 3


async def test_lanes_are_listed_with_those_of_templates(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 1, "t:*": 1}) as lanes:
        lanes.submit_nowait(trio.sleep, 1, lane="t:a", delay=4)
        found = {lane.name: (lane.label, lane.waiting, lane.active) for lane in lanes.lanes()}
        assert found == {"main": ("main", 0, 0), "t:a": ("t:*", 1, 0)}
        job = lanes.jobs()[0]
        assert job.delay == 4


async def test_where_waits_went_is_a_histogram_by_cause(
    autojump_clock: MockClock, meter: Meter
) -> None:
    main = LaneConfig(concurrency=1)
    for accounts in (False, True):
        async with open_lanes(
            {"main": main}, instruments=[meter.instrument], wait_accounting=accounts
        ) as lanes:
            lanes.start_soon(trio.sleep, 3)
            for _ in range(2):
                lanes.start_soon(trio.sleep, 1, session="ann")
            await lanes.wait_idle()
        found = meter.causes()
        assert found == ({"slots": (1, 3), "session": (1, 1), "order": (1, 3)} if accounts else {})


def gauges(registry: CollectorRegistry) -> tuple[float | None, float | None]:
    """The overdue bodies of main, and the problems that they are, as a scrape finds them."""
    text = generate_latest(registry).decode()  # one scrape
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    names = ('trio_lanes_bodies_overdue{lane="main"}', 'trio_lanes_problems{kind="overdue"}')
    found = [lines.get(name) for name in names]
    overdue, problems = (None if value is None else float(value) for value in found)
    return overdue, problems


async def test_overdue_bodies_and_what_is_wrong_are_gauges(autojump_clock: MockClock) -> None:
    registry, ends = CollectorRegistry(), trio.Event()

    async def outlives() -> None:
        with trio.CancelScope(shield=True):
            await ends.wait()

    main = LaneConfig(concurrency=1, overdue_after=1)
    async with open_lanes({"main": main}, instruments=[PrometheusInstrument(registry)]) as lanes:
        assert gauges(registry) == (0, None)
        job = lanes.submit_nowait(outlives)
        await trio.sleep(1)
        job.cancel()
        await trio.sleep(2)
        # Another thread cannot read them, and gets those of the scrape before.
        assert await trio.to_thread.run_sync(gauges, registry) == (0, None)
        await trio.sleep(1)
        assert await trio.to_thread.run_sync(gauges, registry) == (1, 1)
        assert gauges(registry) == (1, 1)
        ends.set()
        await job.wait_done()
        assert gauges(registry) == (0, 0)


def test_when_their_trio_run_has_ended_nothing_is_wrong_with_lanes() -> None:
    registry = CollectorRegistry()
    kept: list[Lanes] = []

    async def main() -> None:
        config = {"main": LaneConfig(concurrency=0)}
        instruments = [PrometheusInstrument(registry)]
        async with open_lanes(config, instruments=instruments) as lanes:
            lanes.submit_nowait(stubborn)
            await trio.sleep(20)
            assert "trio_lanes_problems{" in generate_latest(registry).decode()
            kept.append(lanes)
            lanes.clear()

    trio.run(main, clock=MockClock(autojump_threshold=0))
    assert gauges(registry) == (0, None)
    assert 'trio_lanes_problems{kind="concurrency"} 0' in generate_latest(registry).decode()


@pytest.mark.parametrize("buckets", [[], [2, 1], [1, 1]])
def test_buckets_that_do_not_ascend_are_refused(buckets: list[float]) -> None:
    with pytest.raises(ValueError, match="buckets must ascend"):
        PrometheusInstrument(CollectorRegistry(), buckets=buckets)


def test_two_in_one_registry_need_two_namespaces() -> None:
    registry = CollectorRegistry()
    PrometheusInstrument(registry)
    with pytest.raises(ValueError, match="Duplicated"):
        PrometheusInstrument(registry)
