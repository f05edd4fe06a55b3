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
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, final
from weakref import ref

import attrs
import trio

from trio_lanes import Job, JobState, Lanes, context_free

from .._config.extras import needs_extra
from ._figures import (
    ABANDONED,
    BODIES_OVERDUE,
    FINISHED,
    JOBS_RUNNING,
    JOBS_WAITING,
    OVERDUE,
    PAUSED,
    PROBLEMS,
    RATE_LIMITED,
    RUN,
    SUBMITTED,
    WAIT,
    WAIT_BY_CAUSE,
    WAITING_LONG,
    Figure,
    RareFigures,
    outcome_label,
)

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
        self._lanes: Final[list[_Watched]] = []  # those that are open, and some that were
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
        known = [one for one in self._lanes if one.lanes() is not None]
        self._lanes[:] = [*known, _Watched(ref(lanes), trio.lowlevel.current_trio_token())]

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
            for cause, seconds in job.waits.items():
                figures.add_cause(cause, seconds, bounds)
            figures.ran += ran
            figures.runs[bisect_left(bounds, ran) if ran > shortest else 0] += 1
        if job.state is _SUCCEEDED:
            figures.succeeded += 1
        else:
            figures.otherwise[outcome_label(job)] += 1

    def _tell(self, figure: Figure, amount: float, lane: str, label: str | None = None) -> None:
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


def _summed(known: Iterable[str], amounts: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Return the sums of ``amounts``, and 0 for what is ``known`` and has none."""
    sums = dict.fromkeys(known, 0)
    for name, amount in amounts:
        sums[name] = sums.get(name, 0) + amount
    return sums


@final
@attrs.define(eq=False)
class _Watched:
    """Lanes, and what only the thread of their Trio run can read of them."""

    lanes: ref[Lanes]
    token: trio.lowlevel.TrioToken
    overdue: dict[str, int] = attrs.field(factory=dict)  # bodies, by label
    problems: dict[str, int] = attrs.field(factory=dict)  # by kind; 0: there was one

    def look(self) -> None:
        lanes = self.lanes()
        if lanes is not None:
            each = [(lane.label, lane.statistics().overdue) for lane in lanes.lanes()]
            self.overdue = _summed(self.overdue, each)
            self.problems = _summed(self.problems, [(one.kind, 1) for one in lanes.health()])

    def look_if_here(self) -> None:
        """Look, at once in that thread, and else as soon as it can."""
        if trio.lowlevel.in_trio_run() and trio.lowlevel.current_trio_token() is self.token:
            self.look()
        else:
            try:
                self.token.run_sync_soon(self.look, idempotent=True)
            except trio.RunFinishedError:
                self.overdue, self.problems = _summed(self.overdue, []), _summed(self.problems, [])


@final
class _Scrape(Collector):
    """Makes the metrics when they are scraped, maybe in another thread."""

    def __init__(
        self,
        of: Callable[[str], _Figures],
        by_label: dict[str, _Figures],
        lanes: list[_Watched],
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
        for watched in [*self._lanes]:
            watched.look_if_here()
            lanes = watched.lanes()
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
        by_cause = self._histogram(WAIT_BY_CAUSE, "cause")
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
            for cause, spent in [*figures.spent.items()]:
                buckets = self._cumulated([*figures.causes[cause]])
                by_cause.add_metric([label, cause], buckets, spent)
            for metric, counts, total in (
                (wait, [*figures.waits], figures.waited),
                (run, [*figures.runs], figures.ran),
            ):
                if any(counts):
                    metric.add_metric([label], self._cumulated(counts), total)
        watched = [*self._lanes]
        overdue = self._gauge(BODIES_OVERDUE)
        amounts = [amount for one in watched for amount in one.overdue.items()]
        for label, count in _summed((), amounts).items():
            overdue.add_metric([label], count)
        name = self._named(PROBLEMS)
        problems = GaugeMetricFamily(name, PROBLEMS.says, labels=["kind"])
        amounts = [amount for one in watched for amount in one.problems.items()]
        for kind, count in _summed((), amounts).items():
            problems.add_metric([kind], count)
        return [
            waiting,
            running,
            submitted,
            finished,
            wait,
            by_cause,
            run,
            *events.values(),
            overdue,
            problems,
        ]

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

    def _histogram(self, figure: Figure, *more: str) -> HistogramMetricFamily:
        name = f"{self._named(figure)}_seconds"
        return HistogramMetricFamily(name, figure.says, labels=["lane", *more])
