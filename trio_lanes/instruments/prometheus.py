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

A job pays for one hook, when it has settled: it is counted there, with its wait and its run. The
levels, and with them the number of submitted jobs, are read from the lanes when they are scraped,
which may be in another thread. A job has the label of its lane at that time: the label of a
template's lane changes if the lane gets a configuration of its own.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, final
from weakref import ref

import attrs
from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from trio_lanes import Job, JobState, Lanes, context_free

from ._figures import (
    ABANDONED,
    FINISHED,
    JOBS_RUNNING,
    JOBS_WAITING,
    OVERDUE,
    PAUSED,
    RATE_LIMITED,
    RUN,
    SUBMITTED,
    WAIT,
    WAITING_LONG,
    Figure,
    RareFigures,
    outcome_label,
)

_SUCCEEDED: Final = JobState.SUCCEEDED  # looking it up in the class is dear
_BUCKETS: Final = (0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)


@final
class PrometheusInstrument(RareFigures):
    """An instrument with metrics in ``registry``.

    One object may be an instrument of several `open_lanes`; it adds up their figures. Of lanes to
    which it is added while they are open, jobs that have settled before are not counted.

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
        self._lanes: Final[list[ref[Lanes]]] = []  # those that are open, and some that were
        self._bounds: Final = bounds
        registry.register(_Scrape(self._of, self._by_label, self._lanes, bounds, namespace))

    def _of(self, label: str) -> _Figures:
        found = self._by_label.get(label)
        if found is None:
            found = self._by_label[label] = _Figures(
                [0] * len(self._bounds), [0] * len(self._bounds)
            )
        return found

    def lanes_opened(self, lanes: Lanes) -> None:
        """A hook; see `LaneInstrument`."""
        self._lanes[:] = [*(known for known in self._lanes if known() is not None), ref(lanes)]

    @context_free
    def job_finished(self, job: Job[Any]) -> None:
        """A hook; see `LaneInstrument`."""
        # The only code that each job pays for: it is written for few instructions.
        try:
            figures = self._by_label[job.lane_label]
        except KeyError:
            figures = self._of(job.lane_label)
        started = job.started_at
        if started is not None:
            bounds = self._bounds
            shortest = bounds[0]  # most jobs are in the first buckets: a comparison spares a call
            # Not `waiting_since`: a job that is readmitted begins to wait anew.
            waited = started - (job.submitted_at + job.delay)
            ran = job.finished_at - started  # type: ignore[operator]
            figures.waited += waited
            figures.waits[bisect_left(bounds, waited) if waited > shortest else 0] += 1
            figures.ran += ran
            figures.runs[bisect_left(bounds, ran) if ran > shortest else 0] += 1
        if job.state is _SUCCEEDED:
            figures.succeeded += 1
        else:
            figures.otherwise[outcome_label(job)] += 1

    def _tell(self, figure: Figure, amount: float, lane: str, outcome: str | None = None) -> None:
        self._of(lane).events[figure] += int(amount)


@final
@attrs.define(eq=False)
class _Figures:
    """The figures of one label."""

    waits: list[int]  # jobs, by bucket
    runs: list[int]
    succeeded: int = 0
    otherwise: Counter[str] = attrs.field(factory=Counter)  # jobs that did not succeed, by outcome
    events: Counter[Figure] = attrs.field(factory=Counter)
    waited: float = 0.0  # seconds of all jobs
    ran: float = 0.0
    submitted: int = 0  # as it was scraped last

    @property
    def by_outcome(self) -> dict[str, int]:
        succeeded = {"succeeded": self.succeeded} if self.succeeded else {}
        return succeeded | dict(self.otherwise)


@final
class _Scrape(Collector):
    """Makes the metrics when they are scraped, maybe in another thread."""

    def __init__(
        self,
        of: Callable[[str], _Figures],
        by_label: dict[str, _Figures],
        lanes: list[ref[Lanes]],
        bounds: list[float],
        namespace: str,
    ) -> None:
        self._of: Final = of
        self._by_label: Final = by_label
        self._lanes: Final = lanes
        self._bounds: Final = [str(floatToGoString(bound)) for bound in bounds]  # type: ignore[no-untyped-call]
        self._namespace: Final = namespace

    def describe(self) -> Iterable[Metric]:
        return self._metrics([], {})

    def collect(self) -> Iterable[Metric]:
        # What is counted is read before the levels: a job that settles in between is then missing
        # in the number of submitted jobs until the next scrape, and never counted twice.
        settled = {label: sum(f.by_outcome.values()) for label, f in [*self._by_label.items()]}
        levels: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
        for lanes in [known() for known in [*self._lanes]]:
            for lane in () if lanes is None else lanes.lanes():
                level = levels[lane.label]
                level[0] += lane.waiting
                level[1] += lane.active
        for label, level in levels.items():
            figures = self._of(label)
            figures.submitted = max(figures.submitted, settled.get(label, 0) + sum(level))
        for label in settled.keys() - levels.keys():
            figures = self._of(label)
            figures.submitted = max(figures.submitted, settled[label])
        return self._metrics([*self._by_label.items()], levels)

    def _metrics(
        self, each: list[tuple[str, _Figures]], levels: Mapping[str, list[int]]
    ) -> Iterable[Metric]:
        waiting, running = self._gauge(JOBS_WAITING), self._gauge(JOBS_RUNNING)
        submitted, finished = self._counter(SUBMITTED), self._counter(FINISHED, "outcome")
        wait, run = self._histogram(WAIT), self._histogram(RUN)
        events = {
            figure: self._counter(figure)
            for figure in (WAITING_LONG, OVERDUE, ABANDONED, PAUSED, RATE_LIMITED)
        }
        for label, figures in each:
            if figures.submitted:
                waits, runs = levels.get(label, (0, 0))
                waiting.add_metric([label], waits)
                running.add_metric([label], runs)
                submitted.add_metric([label], figures.submitted)
            for outcome, count in sorted(figures.by_outcome.items()):
                finished.add_metric([label, outcome], count)
            for figure, count in dict(figures.events).items():
                events[figure].add_metric([label], count)
            for metric, counts, total in (
                (wait, [*figures.waits], figures.waited),
                (run, [*figures.runs], figures.ran),
            ):
                if any(counts):
                    metric.add_metric([label], self._cumulated(counts), total)
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
