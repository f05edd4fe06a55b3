"""An instrument for Prometheus metrics. It needs ``trio-lanes[prometheus]``.

::

    from trio_lanes.instruments.prometheus import PrometheusInstrument

    async with open_lanes({"main": 4}, instruments=[PrometheusInstrument()]) as lanes: ...

===============================  =========  ========================================================
metric                           kind       meaning
===============================  =========  ========================================================
``jobs_waiting``                 gauge      jobs that have not started
``jobs_running``                 gauge      running jobs
``jobs_submitted_total``         counter    jobs that were submitted
``jobs_finished_total``          counter    jobs that have settled, by ``outcome``
``job_wait_seconds``             histogram  from the time when a job joined its queue to its start
``job_run_seconds``              histogram  from the start of a job until it settled
``jobs_waiting_long_total``      counter    jobs that waited for longer than their ``warn_after``
``jobs_overdue_total``           counter    bodies that outlived their cancellation
``jobs_abandoned_total``         counter    running jobs that a reset abandoned
``lanes_paused_total``           counter    how often a lane was paused
``lanes_rate_limited_total``     counter    how often the head of a lane waited for a rate limit
===============================  =========  ========================================================

The label ``lane`` is a name or a template from the configuration, or ``session:*``; never the key
of a session. ``outcome`` is ``succeeded``, ``failed``, ``timeout``, ``idle_timeout``,
``queue_timeout``, ``cleared``, ``reset``, ``closed`` or ``cancelled``.

The hooks count in plain numbers, and the metrics are made when they are scraped: a job pays little
for them. A scrape may come from another thread.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final, final

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from trio_lanes import Job, JobState, Lane, LaneInstrument, SessionLane, context_free

from ._figures import (
    ABANDONED,
    FINISHED,
    OVERDUE,
    PAUSED,
    RATE_LIMITED,
    RUN,
    RUNNING,
    SUBMITTED,
    WAIT,
    WAITING,
    WAITING_LONG,
    Figure,
    outcome_label,
)
from ._labels import lane_label

_SUCCEEDED: Final = JobState.SUCCEEDED  # looking it up in the class is dear
_BUCKETS: Final = (0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)


@final
class PrometheusInstrument(LaneInstrument):
    """An instrument with metrics in ``registry``.

    One object may be an instrument of several `open_lanes`; it adds up their figures. Of an
    instrument that is added to open lanes, jobs that were submitted before are not counted.

    Args:
      registry: the registry of the metrics; two instruments in a registry need two namespaces.
      namespace: the prefix of the names of the metrics.
      buckets: the upper bounds of the histograms, in seconds.

    Raises:
      ValueError: if the registry has metrics of these names, or there are no buckets, or buckets
        that do not ascend.
    """

    def __init__(
        self,
        registry: CollectorRegistry = REGISTRY,
        *,
        namespace: str = "trio_lanes",
        buckets: Sequence[float] = _BUCKETS,
    ) -> None:
        bounds = [float(bound) for bound in buckets]
        if not bounds or bounds != sorted(set(bounds)):
            raise ValueError(f"buckets must ascend, got {buckets!r}")
        if bounds[-1] != math.inf:
            bounds.append(math.inf)
        self._by_label: Final[dict[str, _Figures]] = {}
        # Kept until the job has settled: the label of a lane changes if the lane gets a
        # configuration of its own, but the level that a job has raised must fall again.
        self._of_job: Final[dict[Job[Any], _Figures]] = {}
        self._bounds: Final = bounds
        registry.register(_Scrape(self._by_label, bounds, namespace))

    def _of(self, label: str) -> _Figures:
        found = self._by_label.get(label)
        if found is None:
            found = self._by_label[label] = _Figures(self._bounds)
        return found

    def job_submitted(self, job: Job[Any]) -> None:
        """A hook; see `LaneInstrument`."""
        figures = self._of_job[job] = self._of(job.lane_label)
        figures.submitted += 1

    @context_free
    def job_started(self, job: Job[Any]) -> None:
        """A hook; see `LaneInstrument`."""
        figures = self._of_job.get(job)
        if figures is not None:
            figures.started += 1
            # It is set: the job has started.
            figures.waits.add(job.started_at - job.waiting_since)  # type: ignore[operator]

    @context_free
    def job_finished(self, job: Job[Any]) -> None:
        """A hook; see `LaneInstrument`."""
        figures = self._of_job.pop(job, None)
        if figures is not None:
            if job.started_at is None:
                figures.withdrawn += 1
            else:
                figures.ended += 1
                figures.runs.add(job.finished_at - job.started_at)  # type: ignore[operator]
            if job.state is _SUCCEEDED:
                figures.succeeded += 1
            else:
                figures.otherwise[outcome_label(job)] += 1

    def job_waiting_long(self, job: Job[Any], waited: float) -> None:
        """A hook; see `LaneInstrument`."""
        self._of(job.lane_label).events[WAITING_LONG] += 1

    def job_overdue(self, job: Job[Any], since: float) -> None:
        """A hook; see `LaneInstrument`."""
        self._of(job.lane_label).events[OVERDUE] += 1

    def lane_reset(self, lane: Lane | SessionLane, abandoned: int) -> None:
        """A hook; see `LaneInstrument`."""
        self._of(lane_label(lane)).events[ABANDONED] += abandoned

    def lane_paused(self, lane: Lane | SessionLane) -> None:
        """A hook; see `LaneInstrument`."""
        self._of(lane_label(lane)).events[PAUSED] += 1

    def lane_rate_limited(self, lane: Lane | SessionLane, until: float) -> None:
        """A hook; see `LaneInstrument`."""
        self._of(lane_label(lane)).events[RATE_LIMITED] += 1


@final
class _Durations:
    """A histogram."""

    __slots__ = ("_bounds", "counts", "total")

    def __init__(self, bounds: list[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * len(bounds)
        self.total = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(self._bounds, seconds)] += 1
        self.total += seconds


@final
class _Figures:
    """The figures of one label."""

    __slots__ = (
        "ended",
        "events",
        "otherwise",
        "runs",
        "started",
        "submitted",
        "succeeded",
        "waits",
        "withdrawn",
    )

    def __init__(self, bounds: list[float]) -> None:
        self.submitted = self.started = self.ended = self.withdrawn = self.succeeded = 0
        self.otherwise: Counter[str] = Counter()  # jobs that did not succeed, by outcome
        self.events: Counter[Figure] = Counter()
        self.waits = _Durations(bounds)
        self.runs = _Durations(bounds)

    @property
    def by_outcome(self) -> dict[str, int]:
        succeeded = {"succeeded": self.succeeded} if self.succeeded else {}
        return succeeded | dict(self.otherwise)


@final
class _Scrape(Collector):
    """Makes the metrics when they are scraped, maybe in another thread."""

    def __init__(self, by_label: dict[str, _Figures], bounds: list[float], namespace: str) -> None:
        self._by_label: Final = by_label
        self._bounds: Final = [str(floatToGoString(bound)) for bound in bounds]  # type: ignore[no-untyped-call]
        self._namespace: Final = namespace

    def describe(self) -> Iterable[Metric]:
        return self._metrics([])

    def collect(self) -> Iterable[Metric]:
        return self._metrics([*self._by_label.items()])  # a copy in one step of the interpreter

    def _metrics(self, each: list[tuple[str, _Figures]]) -> Iterable[Metric]:
        waiting, running = self._gauge(WAITING), self._gauge(RUNNING)
        submitted, finished = self._counter(SUBMITTED), self._counter(FINISHED, "outcome")
        wait, run = self._histogram(WAIT), self._histogram(RUN)
        events = {
            figure: self._counter(figure)
            for figure in (WAITING_LONG, OVERDUE, ABANDONED, PAUSED, RATE_LIMITED)
        }
        for label, figures in each:
            # In this order, no job can make a level negative that changes in between.
            ended, started = figures.ended, figures.started
            withdrawn, came = figures.withdrawn, figures.submitted
            if came:
                waiting.add_metric([label], came - started - withdrawn)
                running.add_metric([label], started - ended)
                submitted.add_metric([label], came)
            for outcome, count in sorted(figures.by_outcome.items()):
                finished.add_metric([label, outcome], count)
            for figure, count in dict(figures.events).items():
                events[figure].add_metric([label], count)
            for metric, durations in ((wait, figures.waits), (run, figures.runs)):
                counts = [*durations.counts]
                if any(counts):
                    metric.add_metric([label], self._cumulated(counts), durations.total)
        return [waiting, running, submitted, finished, wait, run, *events.values()]

    def _cumulated(self, counts: list[int]) -> list[tuple[str, float]]:
        below = 0
        found: list[tuple[str, float]] = []
        for bound, count in zip(self._bounds, counts, strict=True):
            below += count
            found.append((bound, below))
        return found

    def _named(self, figure: Figure) -> str:
        return f"{self._namespace}_{figure.name.replace('.', '_')}"

    def _gauge(self, figure: Figure) -> GaugeMetricFamily:
        return GaugeMetricFamily(self._named(figure), figure.says, labels=["lane"])

    def _counter(self, figure: Figure, *more: str) -> CounterMetricFamily:
        return CounterMetricFamily(self._named(figure), figure.says, labels=["lane", *more])

    def _histogram(self, figure: Figure) -> HistogramMetricFamily:
        name = f"{self._named(figure)}_seconds"
        return HistogramMetricFamily(name, figure.says, labels=["lane"])
