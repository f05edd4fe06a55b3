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
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from ._figures import FIGURES, Figure, LaneFigures

_BUCKETS: Final = (0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)


@final
class PrometheusInstrument(LaneFigures):
    """An instrument with metrics in ``registry``.

    One object may be an instrument of several `open_lanes`; it adds up their figures.

    Args:
      registry: the registry of the metrics; two instruments in a registry need two namespaces.
      namespace: the prefix of the names of the metrics.
      buckets: the upper bounds of the histograms, in seconds.
    """

    def __init__(
        self,
        registry: CollectorRegistry = REGISTRY,
        *,
        namespace: str = "trio_lanes",
        buckets: Sequence[float] = _BUCKETS,
    ) -> None:
        super().__init__()

        def metric(figure: Figure) -> Counter | Gauge | Histogram:
            name = figure.name.replace(".", "_")
            labels = ("lane", "outcome") if figure.by_outcome else ("lane",)
            if figure.kind == "seconds":
                return Histogram(
                    f"{name}_seconds",
                    figure.says,
                    labels,
                    namespace=namespace,
                    registry=registry,
                    buckets=buckets,
                )
            kind = Gauge if figure.kind == "level" else Counter
            return kind(name, figure.says, labels, namespace=namespace, registry=registry)

        self._metrics: Final = {figure: metric(figure) for figure in FIGURES}

    def _tell(self, figure: Figure, amount: float, lane: str, outcome: str | None = None) -> None:
        child = self._metrics[figure].labels(*((lane,) if outcome is None else (lane, outcome)))
        if isinstance(child, Histogram):
            child.observe(amount)
        else:
            child.inc(amount)
