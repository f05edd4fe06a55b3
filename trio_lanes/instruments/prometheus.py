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
``job_wait_cause_seconds``       histogram  `Job.waits` by ``cause``, with ``wait_accounting``
``job_run_seconds``              histogram  from the start of a job until it settled
``jobs_waiting_long_total``      counter    jobs that waited for longer than their ``warn_after``
``jobs_overdue_total``           counter    bodies that outlived their cancellation
``bodies_overdue``               gauge      bodies that outlive their cancellation or timeout now
``problems``                     gauge      what `Lanes.health` finds wrong now, by ``kind``
``jobs_abandoned_total``         counter    running jobs that a reset abandoned
``lanes_paused_total``           counter    how often a lane was paused
``lanes_rate_limited_total``     counter    how often the head of a lane waited for a rate limit
===============================  =========  ========================================================

The label ``lane`` is a name or a template from the configuration, or ``session:*``; never the key
of a session. ``outcome`` is ``succeeded``, ``failed``, ``timeout``, ``idle_timeout``,
``queue_timeout``, ``cleared``, ``reset``, ``closed`` or ``cancelled``.

A job pays for one hook, when it has settled: it is counted there, with its wait and its run. The
levels, and with them the number of submitted jobs, are read from the lanes when they are scraped,
which may be in another thread. Problems and overdue bodies are read in the thread of the lanes: for
a scrape in another thread they are those of the scrape before.

A job has the label of its lane at that time: the label of a template's lane changes if the lane
gets a configuration of its own.

`StoreCollector` has the metrics of a store of durable lanes, which begin with ``store_``:

=================================  =======  ========================================================
metric                             kind     meaning
=================================  =======  ========================================================
``store_waiting``                  gauge    jobs that are queued and do not run
``store_oldest_wait_seconds``      gauge    for how long the first of them has waited
``store_running``                  gauge    jobs that run, on all instances
``store_slots``                    gauge    how many may run at once
``store_parked``                   gauge    jobs that are delayed or back off
``store_due``                      gauge    parked jobs and schedules whose time has come
``store_dead``                     gauge    dead letters, until they are requeued or purged
``store_ended_total``              counter  jobs that have ended, ever, by ``outcome``
``store_unhandled``                gauge    jobs whose handler no live instance has
``store_instances``                gauge    instances that live and run jobs
``store_oldest_beat_seconds``      gauge    for how long one of these has been silent, at most
``store_read_age_seconds``         gauge    how long ago all of these figures were read
``store_quota_left_ratio``         gauge    what is left of a ``quota``, from 0 to 1
``store_schedule_skipped_total``   counter  due times of a ``schedule`` that submitted no job
``store_problems``                 gauge    what ``health`` of the lanes finds wrong, by ``kind``
=================================  =======  ========================================================

The first eight have the label ``lane``: a name or a template of the store; ``store_slots`` of a
template has those of its lanes that have jobs, and a lane without a limit has none. ``outcome`` is
the state in which a job ended. A quota of a template has the template's name, and what is left of
its scarcest; the first 100 quotas in use are read. The 200 oldest schedules have their names, all
others are ``other``. The longest wait is that among the first ten jobs of each of the 100 lanes
with most, and of the store.

Each process that has a `StoreCollector` exports the figures of the same store. In PromQL take
``max without (instance, pod) (...)`` of them; a sum would count each job once for each process.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final, final
from weakref import ref

import attrs
import trio

from trio_lanes import Job, JobState, Lanes, context_free

from .._config.extras import needs_extra
from ..durable import DurableLanes
from ._figures import (
    BODIES_OVERDUE,
    FIGURES,
    FINISHED,
    JOBS_RUNNING,
    JOBS_WAITING,
    PROBLEMS,
    RUN,
    SUBMITTED,
    WAIT,
    WAIT_BY_CAUSE,
    Figure,
    RareFigures,
    outcome_label,
)
from ._store import READ_EVERY, STORE_FIGURES, StoreReads

with needs_extra(__name__, "prometheus"):
    from prometheus_client import REGISTRY, CollectorRegistry
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )
    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import Collector
    from prometheus_client.utils import floatToGoString

_SUCCEEDED: Final = JobState.SUCCEEDED  # looking it up in the class is dear
_BUCKETS: Final = (0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)
_SCRAPED: Final = (*FIGURES, BODIES_OVERDUE, PROBLEMS)
_FAMILIES: Final[Mapping[str, Any]] = {
    "level": GaugeMetricFamily,
    "count": CounterMetricFamily,
    "seconds": HistogramMetricFamily,
}


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
        metrics = _Metrics(bounds, namespace)
        self._bounds: Final = bounds
        self._lanes: Final = metrics.lanes
        self._by_label: Final = metrics.by_label
        registry.register(metrics)

    def lanes_opened(self, lanes: Lanes) -> None:
        """A hook; see `LaneInstrument`."""
        known = [one for one in self._lanes if one.lanes() is not None]
        self._lanes[:] = [*known, _Watched(ref(lanes), trio.lowlevel.current_trio_token())]

    @context_free
    def job_finished(self, job: Job[Any]) -> None:
        """A hook; see `LaneInstrument`."""
        # The only code that each job pays for: it is written for few instructions.
        figures = self._by_label[job.lane_label]
        started = job.started_at
        if started is not None:
            bounds = self._bounds
            shortest = bounds[0]  # most jobs are in the first buckets: a comparison spares a call
            # Not `waiting_since`: a job that is readmitted begins to wait anew.
            waited = started - (job.submitted_at + job.delay)
            ran = job.finished_at - started  # type: ignore[operator]
            figures.waited += waited
            figures.waits[bisect_left(bounds, waited) if waited > shortest else 0] += 1
            for cause, seconds in job.waits.items():
                figures.add_cause(cause, seconds, bounds)
            figures.ran += ran
            figures.runs[bisect_left(bounds, ran) if ran > shortest else 0] += 1
        if job.state is _SUCCEEDED:
            figures.succeeded += 1
        else:
            figures.otherwise[outcome_label(job)] += 1

    def _tell(self, figure: Figure, amount: float, *labels: str) -> None:
        (lane,) = labels
        self._by_label[lane].events[figure] += int(amount)


@final
@attrs.define(eq=False)
class _Figures:
    """The figures of one label."""

    waits: list[int]  # jobs, by bucket
    runs: list[int]
    succeeded: int = 0
    otherwise: Counter[str] = attrs.field(factory=Counter)  # jobs that did not succeed, by outcome
    events: Counter[Figure] = attrs.field(factory=Counter)
    causes: dict[str, list[int]] = attrs.field(factory=dict)  # {cause of waits: jobs, by bucket}
    spent: dict[str, float] = attrs.field(factory=dict)  # {cause: seconds of all jobs}
    waited: float = 0.0  # seconds of all jobs
    ran: float = 0.0
    submitted: int = 0  # as it was scraped last

    def add_cause(self, cause: str, seconds: float, bounds: list[float]) -> None:
        counts = self.causes.setdefault(cause, [0] * len(bounds))
        counts[bisect_left(bounds, seconds)] += 1
        self.spent[cause] = self.spent.get(cause, 0.0) + seconds  # last, as a scrape reads it first

    @property
    def by_outcome(self) -> dict[str, int]:
        succeeded = {"succeeded": self.succeeded} if self.succeeded else {}
        return succeeded | dict(self.otherwise)


@final
@attrs.define(eq=False)
class _Watched:
    """Lanes, and what only the thread of their Trio run can read of them."""

    lanes: ref[Lanes]
    token: trio.lowlevel.TrioToken
    seen: Counter[tuple[Figure, str]] = attrs.field(factory=Counter)
    """{(figure, label): number}; 0: there was one."""

    def look(self) -> None:
        found = Counter(dict.fromkeys(self.seen, 0))
        lanes = self.lanes()
        if lanes is not None:
            for lane in lanes.lanes():
                found[BODIES_OVERDUE, lane.label] += lane.statistics().overdue
            found.update((PROBLEMS, one.kind) for one in lanes.health())
        self.seen = found

    def look_if_here(self) -> None:
        """Look, at once in that thread, and else as soon as it can."""
        if trio.lowlevel.in_trio_run() and trio.lowlevel.current_trio_token() is self.token:
            self.look()
        else:
            try:
                self.token.run_sync_soon(self.look, idempotent=True)
            except trio.RunFinishedError:
                self.seen = Counter(dict.fromkeys(self.seen, 0))


@final
class _Metrics(Collector):
    """Keeps the figures, and makes metrics of them when they are scraped, maybe in a thread."""

    def __init__(self, bounds: Sequence[float], namespace: str) -> None:
        self._bounds: Final = [str(floatToGoString(bound)) for bound in bounds]  # type: ignore[no-untyped-call]
        self._namespace: Final = namespace
        self.lanes: Final[list[_Watched]] = []  # those that are open, and some that were
        self.by_label: Final = defaultdict[str, _Figures](
            lambda: _Figures([0] * len(bounds), [0] * len(bounds))
        )

    def describe(self) -> Iterable[Metric]:
        return [self._family(figure) for figure in _SCRAPED]

    def collect(self) -> Iterable[Metric]:
        # What is counted is read before the levels: a job that settles in between is then missing
        # in the number of submitted jobs until the next scrape, and never counted twice.
        settled = {label: sum(f.by_outcome.values()) for label, f in [*self.by_label.items()]}
        waiting, running = Counter[str](), Counter[str]()
        seen = Counter[tuple[Figure, str]]()
        for watched in [*self.lanes]:
            watched.look_if_here()
            seen.update(watched.seen)
            lanes = watched.lanes()
            for lane in () if lanes is None else lanes.lanes():
                waiting[lane.label] += lane.waiting
                running[lane.label] += lane.active
        for label in dict.fromkeys((*settled, *waiting)):
            figures = self.by_label[label]
            submitted = settled.get(label, 0) + waiting[label] + running[label]
            figures.submitted = max(figures.submitted, submitted)
        metrics = {figure: self._family(figure) for figure in _SCRAPED}
        for label, figures in [*self.by_label.items()]:
            if figures.submitted:
                metrics[JOBS_WAITING].add_metric([label], waiting[label])
                metrics[JOBS_RUNNING].add_metric([label], running[label])
                metrics[SUBMITTED].add_metric([label], figures.submitted)
            for outcome, count in sorted(figures.by_outcome.items()):
                metrics[FINISHED].add_metric([label, outcome], count)
            for figure, count in dict(figures.events).items():
                metrics[figure].add_metric([label], count)
            for cause, spent in [*figures.spent.items()]:
                buckets = self._cumulated(figures.causes[cause])
                metrics[WAIT_BY_CAUSE].add_metric([label, cause], buckets, spent)
            for figure, counts, total in (
                (WAIT, figures.waits, figures.waited),
                (RUN, figures.runs, figures.ran),
            ):
                if any(counts):
                    metrics[figure].add_metric([label], self._cumulated(counts), total)
        for (figure, label), number in seen.items():
            metrics[figure].add_metric([label], number)
        return metrics.values()

    def _cumulated(self, counts: Sequence[int]) -> list[tuple[str, int]]:
        return [*zip(self._bounds, accumulate(counts), strict=True)]

    def _family(self, figure: Figure) -> Any:
        return _family(self._namespace, figure)


@final
class StoreCollector(Collector):
    """Metrics of the store of durable lanes in ``registry``, until the lanes are left.

    A task of the lanes reads the store, at once and every ``every`` seconds; a scrape reads
    nothing. What cannot be read keeps its figures, and ``store_read_age_seconds`` grows. Lanes with
    ``worker=False`` have the same figures, and so have those of `trio_lanes.aio`. Not a checkpoint.

    Args:
      lanes: durable lanes that are open.
      registry: the registry of the metrics, the global one unless one is given; the collectors of
        two stores need two.
      every: seconds between two reads. Each takes the store some calls, and one for each of the 100
        lanes with most waiting jobs.

    Raises:
      TypeError, ValueError: for a bad argument, or if the registry has metrics of these names.
      RuntimeError: if the lanes were left.
    """

    def __init__(
        self,
        lanes: DurableLanes,
        *,
        registry: CollectorRegistry | None = None,
        every: float = READ_EVERY,
    ) -> None:
        self._reads: Final = StoreReads(lanes, every)
        self._registry: Final = REGISTRY if registry is None else registry
        self._registry.register(self)
        try:
            lanes._beside(self._keep)
        except RuntimeError:
            self._registry.unregister(self)
            raise

    async def _keep(self, lanes: DurableLanes) -> None:
        try:
            await self._reads.keep(lanes)
        finally:
            self._registry.unregister(self)

    def describe(self) -> Iterable[Metric]:
        """Return the metrics without their figures."""
        return [_family("trio_lanes", figure) for figure in STORE_FIGURES]

    def collect(self) -> Iterable[Metric]:
        """Return the metrics with what was read last; in any thread."""
        for figure in STORE_FIGURES:
            metric = _family("trio_lanes", figure)
            for labels, value in self._reads.samples(figure).items():
                metric.add_metric(labels, value)
            yield metric


def _family(namespace: str, figure: Figure) -> Any:
    name = f"{namespace}_{figure.name.replace('.', '_')}"
    if figure.kind == "seconds" or figure.unit == "s":
        name += "_seconds"
    elif figure.unit == "1":
        name += "_ratio"
    return _FAMILIES[figure.kind](name, figure.says, labels=figure.labels)
