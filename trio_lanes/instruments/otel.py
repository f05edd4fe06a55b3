"""An instrument for traces and metrics with OpenTelemetry. It needs ``trio-lanes[otel]``.

::

    from trio_lanes.instruments.otel import OpenTelemetryInstrument

    async with open_lanes({"main": 4}, instruments=[OpenTelemetryInstrument()]) as lanes: ...

Each started job has a span with the name of the job, from its start until it settles. The parent is
the span inside which the job was submitted. The span has a link to it as well, since it may have
ended long before the job starts. The span of the job is the current span in the job, and in the
tasks and threads of the job.

Each run of a durable job, and so each turn of a durable inbox, has a span with the name of the
handler. It has no parent: it begins a trace, with a link to the span inside which the job was
submitted, in any process, if the lanes there have this instrument too. For this a W3C
``traceparent`` is kept with the job.

A span has these attributes:

===============================  ===================================================================
``trio_lanes.lane``              a name or a template from the configuration of the lanes
``trio_lanes.job.id``,           the id and the priority of the job
``trio_lanes.job.priority``
``trio_lanes.job.wait``          seconds from the time when it joined its queue until its start
``trio_lanes.job.wait.session``  and ``.slots``, ``.rate`` and the other causes of `Job.waits`, with
                                 ``wait_accounting``: seconds
``trio_lanes.outcome``           ``succeeded``, ``failed``, ``timeout``, ``idle_timeout``, ``reset``
                                 or ``cancelled``
``trio_lanes.durable.id``,       of a run of a durable job: number of the job, and of the attempt
``trio_lanes.durable.attempt``
``trio_lanes.session``           the key of its session, only with ``session_keys=True``
===============================  ===================================================================

The span of a failed job has the exception and the status ERROR. A body that outlives its
cancellation adds the event ``trio_lanes.overdue``.

The metrics are ``trio_lanes.jobs.waiting`` and ``.running`` (up-down counters),
``trio_lanes.jobs.submitted``, ``.finished``, ``.waiting_long``, ``.overdue`` and ``.abandoned``,
``trio_lanes.lanes.paused`` and ``.rate_limited`` (counters), ``trio_lanes.job.wait``,
``.wait.cause`` and ``.run`` (histograms, in seconds; the second by ``trio_lanes.cause``, with
``wait_accounting``). Their attribute is ``trio_lanes.lane``, which may also be ``session:*``.
``finished`` has ``trio_lanes.outcome`` too, which may also be ``queue_timeout``, ``cleared`` or
``closed``. No metric has the key of a session.

`observe_store` has the metrics of a store of durable lanes: those of
`trio_lanes.instruments.prometheus.StoreCollector`, named as ``trio_lanes.store.waiting`` and
``trio_lanes.store.oldest_wait`` (in ``s``), with the attributes ``trio_lanes.lane``,
``.outcome``, ``.quota``, ``.schedule`` and ``.kind``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, final
from weakref import WeakKeyDictionary

from trio_lanes import Job, JobState
from trio_lanes.durable import DurableLanes, DurableRun

from .._config.extras import needs_extra
from ._figures import (
    FIGURES,
    FINISHED,
    JOBS_RUNNING,
    JOBS_WAITING,
    RUN,
    SUBMITTED,
    WAIT,
    WAIT_BY_CAUSE,
    Figure,
    RareFigures,
    error_of,
    outcome_label,
)
from ._store import STORE_FIGURES, StoreReads

with needs_extra(__name__, "otel"):
    from opentelemetry import context, metrics, trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

_NAME: Final = "trio_lanes"
_W3C: Final = TraceContextTextMapPropagator()


@final
class OpenTelemetryInstrument(RareFigures):
    """An instrument that reports spans and metrics.

    One object may be an instrument of several `open_lanes`; it adds up their figures. It does not
    count as retrieving a failure.

    Args:
      tracer_provider: the provider of the tracer; the global provider unless one is given.
      meter_provider: the provider of the meter; the global provider unless one is given.
      session_keys: whether spans have the key of the session. No metric has it.
    """

    def __init__(
        self,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
        *,
        session_keys: bool = False,
    ) -> None:
        self._tracer: Final = trace.get_tracer(_NAME, tracer_provider=tracer_provider)
        meter = metrics.get_meter(_NAME, meter_provider=meter_provider)
        self._told: Final = {figure: _measure(meter, figure) for figure in FIGURES}
        self._session_keys: Final = session_keys
        self._spans: Final[dict[Job[Any], trace.Span]] = {}  # of the running jobs
        # The label at submission, kept until the job has settled: the label of a lane changes if
        # the lane gets a configuration of its own, but the level that a job has raised must fall
        # again under the same label.
        self._labels: Final[dict[Job[Any], str]] = {}

    def _tell(self, figure: Figure, amount: float, *labels: str) -> None:
        self._told[figure](amount, _attributes(figure, labels))

    def _label(self, job: Job[Any]) -> str:
        lane = self._labels.pop(job, None) or job.lane_label
        if not job.done:  # an earlier instrument may have settled it before this hook
            self._labels[job] = lane
        return lane

    def job_headers(self) -> Mapping[str, str]:
        """Return the context of the current span, for a durable job that is being submitted."""
        headers: dict[str, str] = {}
        _W3C.inject(headers)
        return headers

    def job_submitted(self, job: Job[Any]) -> None:
        """A hook; see `LaneInstrument`."""
        lane = self._label(job)
        self._tell(SUBMITTED, 1, lane)
        self._tell(JOBS_WAITING, 1, lane)

    def job_started(self, job: Job[Any]) -> None:
        """A hook; see `LaneInstrument`."""
        assert job.started_at is not None
        assert job.waiting_since is not None
        lane, waited = self._label(job), job.started_at - job.waiting_since
        self._tell(JOBS_WAITING, -1, lane)
        self._tell(JOBS_RUNNING, 1, lane)
        self._tell(WAIT, waited, lane)
        for cause, seconds in job.waits.items():
            self._tell(WAIT_BY_CAUSE, seconds, lane, cause)
        if job.done:  # another instrument has reset it
            return
        attributes: dict[str, str | int | float] = {
            "trio_lanes.lane": job.lane_label,
            "trio_lanes.job.id": job.id,
            "trio_lanes.job.priority": job.priority,
            "trio_lanes.job.wait": waited,
        }
        for cause, seconds in job.waits.items():
            attributes[f"trio_lanes.job.wait.{cause}"] = seconds
        if self._session_keys and job.session is not None:
            attributes["trio_lanes.session"] = job.session
        # The context of the job is a copy of its submitter's.
        name, run, parent, linked = job.name, job.meta, None, context.get_current()
        if type(run) is DurableRun:  # not `isinstance`, which asks a proxy of a user for its class
            # The core's job has the number in its name, and its submitter is the worker.
            name, parent = run.name, context.Context()
            linked = _W3C.extract(run.headers, parent)
            attributes["trio_lanes.durable.id"] = run.id
            attributes["trio_lanes.durable.attempt"] = run.attempt
        submitter = trace.get_current_span(linked).get_span_context()
        links = [trace.Link(submitter)] if submitter.is_valid else None
        span = self._spans[job] = self._tracer.start_span(
            name, parent, links=links, attributes=attributes
        )
        # This hook runs in the context of the job, which ends with the job: no detach is needed.
        context.attach(trace.set_span_in_context(span))

    def job_overdue(self, job: Job[Any], since: float) -> None:
        """A hook; see `LaneInstrument`."""
        super().job_overdue(job, since)
        span = self._spans.get(job)
        if span is not None:  # otherwise the job was reset, and its span has ended
            span.add_event("trio_lanes.overdue", {"trio_lanes.since": since})

    def job_finished(self, job: Job[Any]) -> None:
        """A hook; see `LaneInstrument`."""
        lane = self._label(job)
        if job.started_at is None:
            self._tell(JOBS_WAITING, -1, lane)
        else:
            assert job.finished_at is not None
            self._tell(JOBS_RUNNING, -1, lane)
            self._tell(RUN, job.finished_at - job.started_at, lane)
        self._tell(FINISHED, 1, lane, outcome_label(job))
        span = self._spans.pop(job, None)
        if span is None:
            return
        span.set_attribute("trio_lanes.outcome", outcome_label(job))
        error = error_of(job)
        if job.state is JobState.FAILED and error is not None:
            span.record_exception(error)
            span.set_status(trace.StatusCode.ERROR, f"{type(error).__name__}: {error}")
        span.end()


def _measure(meter: metrics.Meter, figure: Figure) -> Callable[[float, dict[str, str]], None]:
    """Return the function that reports an amount of ``figure`` with attributes."""
    name = f"{_NAME}.{figure.name}"
    if figure.kind == "seconds":
        return meter.create_histogram(name, "s", figure.says).record
    if figure.kind == "level":
        return meter.create_up_down_counter(name, "{job}", figure.says).add
    return meter.create_counter(name, "1", figure.says).add


def _attributes(figure: Figure, labels: Iterable[str]) -> dict[str, str]:
    names = [f"{_NAME}.{label}" for label in figure.labels]
    return dict(zip(names, labels, strict=True))


def observe_store(lanes: DurableLanes, meter: metrics.Meter | None = None) -> None:
    """Report metrics of the store of durable lanes, until the lanes are left.

    A task of the lanes reads the store every 15 seconds; a collection of the metrics reads nothing.
    All else is as for `trio_lanes.instruments.prometheus.StoreCollector`: each process that calls
    this reports the figures of the same store. Not a checkpoint.

    Args:
      lanes: durable lanes that are open, of `trio_lanes.aio` too.
      meter: the meter of the instruments; one of the global provider unless one is given. The
        metrics of two stores need two.

    Raises:
      TypeError: if ``lanes`` are no durable lanes.
      RuntimeError: if the lanes were left.
    """
    reads = StoreReads(lanes)
    meter = metrics.get_meter(_NAME) if meter is None else meter
    observed = _OBSERVED.get(meter)
    if observed is None:
        observed = _OBSERVED[meter] = []
        for figure in STORE_FIGURES:
            make = (
                meter.create_observable_counter
                if figure.kind == "count"
                else meter.create_observable_gauge
            )
            seen: Any = partial(_samples, observed, figure)
            make(f"{_NAME}.{figure.name}", [seen], figure.unit, figure.says)
    lanes._beside(partial(_keep, observed, reads))


_OBSERVED: Final = WeakKeyDictionary[metrics.Meter, list[StoreReads]]()
"""By meter, what is reported: a meter makes an instrument of one name only once."""


async def _keep(observed: list[StoreReads], reads: StoreReads, lanes: DurableLanes) -> None:
    observed.append(reads)
    try:
        await reads.keep(lanes)
    finally:
        observed.remove(reads)


def _samples(
    observed: list[StoreReads], figure: Figure, options: object
) -> list[metrics.Observation]:
    return [
        metrics.Observation(value, _attributes(figure, labels))
        for reads in [*observed]
        for labels, value in reads.samples(figure).items()
    ]
