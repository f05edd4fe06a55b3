"""What one fresh process measures, and what it says when it ends.

A process reads a `Run` from its command line and answers with a `Sample`, one line of JSON on
its standard output. A result that is not right is no sample: the process fails instead, so that
no figure of a run that lost, doubled or misordered a job can reach the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs


@attrs.frozen
class Run:
    contender: str
    """Who: ``lanes``, or ``side.name`` with a side of ``trio``, ``asyncio`` or ``node``."""
    workload: str
    """What: a name in `benchmarks.workloads`, or of the same meaning in ``node/bench.mjs``."""
    n: int
    """How many jobs."""


@attrs.frozen
class Sample:
    value: float
    """In the row's unit: microseconds a job, bytes a job, or milliseconds."""
    seconds: float = 0.0
    """Wall-clock time of the measured part."""
    cpu: float = 0.0
    """Processor time of it; far less than `seconds` means that the machine was busy elsewhere."""
    verified: tuple[str, ...] = ()
    """What was checked after the clock had stopped, and found right."""
    figures: Mapping[str, float] = attrs.field(factory=dict)
    """What else the process saw."""


@attrs.frozen
class Missing:
    """Why there is no sample: a peer that is not installed, or a process that failed."""

    reason: str


def sample_from_json(answer: Mapping[str, Any]) -> Sample:
    return Sample(
        value=float(answer["value"]),
        seconds=float(answer["seconds"]),
        cpu=float(answer["cpu"]),
        verified=tuple(answer["verified"]),
        figures={str(name): float(value) for name, value in answer["figures"].items()},
    )
