"""An instrument that traces and measures by the OpenTelemetry API. It needs ``trio-lanes[otel]``.

::

    from trio_lanes.instruments.otel import OpenTelemetryInstrument

    async with open_lanes({"main": 4}, instruments=[OpenTelemetryInstrument()]) as lanes: ...

Each job that starts is a span, named like the job, from its start until it settles. Its parent is
the span inside which the job was submitted; it is the current one in the job, also in the tasks
and threads of it. It has these attributes:

=============================  =====================================================================
``trio_lanes.lane``            a name or a template from the configuration of the lanes
``trio_lanes.job.id``,         the job's
``trio_lanes.job.priority``
``trio_lanes.job.wait``        seconds from when it took its place in line to its start
``trio_lanes.outcome``         ``succeeded``, ``failed``, ``timeout``, ``idle_timeout``, ``reset``
                               or ``cancelled``
``trio_lanes.session``         its session's key, only if asked for
=============================  =====================================================================

A failure is recorded, and is the status of the span. A body that outlives its cancellation is an
event, ``trio_lanes.overdue``.

The metrics are ``trio_lanes.jobs.waiting`` and ``.running`` (up-down counters),
``trio_lanes.jobs.submitted``, ``.finished``, ``.waiting_long``, ``.overdue`` and ``.abandoned``,
``trio_lanes.lanes.paused`` and ``.rate_limited`` (counters), ``trio_lanes.job.wait`` and ``.run``
(histograms, in seconds). Their attributes are ``trio_lanes.lane``, which may be ``session:*`` here,
and, of ``finished``, ``trio_lanes.outcome``, with ``queue_timeout``, ``cleared`` and ``closed``
besides. Never the key of a session.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, final

from opentelemetry import context, metrics, trace

from trio_lanes import Job, JobState

from ._figures import FIGURES, Figure, LaneFigures, error_of, outcome_label

_NAME: Final = "trio_lanes"
_LANE: Final = "trio_lanes.lane"
_OUTCOME: Final = "trio_lanes.outcome"


@final
class OpenTelemetryInstrument(LaneFigures):
    """Traces and measures. One may be given to several `open_lanes`, which it then adds up.

    It does not count as looking at a failure.

    Args:
      tracer_provider: whose spans; the global one's unless given.
      meter_provider: whose metrics; the global one's unless given.
      session_keys: whether spans have the key of the session. No metric has.
    """

    def __init__(
        self,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
        *,
        session_keys: bool = False,
    ) -> None:
        super().__init__()
        self._tracer: Final = trace.get_tracer(_NAME, tracer_provider=tracer_provider)
        meter = metrics.get_meter(_NAME, meter_provider=meter_provider)
        self._told: Final = {figure: _measure(meter, figure) for figure in FIGURES}
        self._session_keys: Final = session_keys
        self._spans: Final[dict[Job[Any], trace.Span]] = {}  # of the jobs that run

    def _tell(self, figure: Figure, amount: float, lane: str, outcome: str | None = None) -> None:
        attributes = {_LANE: lane} if outcome is None else {_LANE: lane, _OUTCOME: outcome}
        self._told[figure](amount, attributes)

    def job_started(self, job: Job[Any]) -> None:
        """A hook; see `LaneInstrument`."""
        super().job_started(job)
        if job.done:  # another instrument has reset it
            return
        assert job.started_at is not None
        assert job.waiting_since is not None
        attributes: dict[str, str | int | float] = {
            _LANE: job.lane_label,
            "trio_lanes.job.id": job.id,
            "trio_lanes.job.priority": job.priority,
            "trio_lanes.job.wait": job.started_at - job.waiting_since,
        }
        if self._session_keys and job.session is not None:
            attributes["trio_lanes.session"] = job.session
        span = self._spans[job] = self._tracer.start_span(job.name, attributes=attributes)
        # In the job's own context, which is gone with it: nobody has to detach it.
        context.attach(trace.set_span_in_context(span))

    def job_overdue(self, job: Job[Any], since: float) -> None:
        """A hook; see `LaneInstrument`."""
        super().job_overdue(job, since)
        span = self._spans.get(job)
        if span is not None:  # else it was reset, and its span has ended
            span.add_event("trio_lanes.overdue", {"trio_lanes.since": since})

    def job_finished(self, job: Job[Any]) -> None:
        """A hook; see `LaneInstrument`."""
        super().job_finished(job)
        span = self._spans.pop(job, None)
        if span is None:
            return
        span.set_attribute(_OUTCOME, outcome_label(job))
        error = error_of(job)
        if job.state is JobState.FAILED and error is not None:
            span.record_exception(error)
            span.set_status(trace.StatusCode.ERROR, f"{type(error).__name__}: {error}")
        span.end()


def _measure(meter: metrics.Meter, figure: Figure) -> Callable[[float, dict[str, str]], None]:
    """What takes an amount of ``figure``, and its attributes."""
    name = f"{_NAME}.{figure.name}"
    if figure.kind == "seconds":
        return meter.create_histogram(name, "s", figure.says).record
    if figure.kind == "level":
        return meter.create_up_down_counter(name, "{job}", figure.says).add
    return meter.create_counter(name, "1", figure.says).add
