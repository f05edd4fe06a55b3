"""The main function of a fresh process: measure one workload of one Python contender.

    python -m benchmarks.worker trio.locks burst 100000

prints the sample as one line of JSON. A process of its own for every measurement, so that no
heap, no collector's state and no interpreter that has warmed up is handed from one to the next.
"""

from __future__ import annotations

import functools
import importlib
import json
import sys

import attrs

from benchmarks import workloads
from benchmarks.sample import Run, Sample

SIDES = {
    "aio": "aio_side",
    "lanes": "lanes_side",
    "seen": "seen_side",
    "trio": "trio_peers",
    "asyncio": "asyncio_peers",
    "durable": "durable_side",
    "huey": "huey_side",
    "procrastinate": "procrastinate_side",
    "streaq": "streaq_side",
    "taskiq": "taskiq_side",
}


def measure(run: Run) -> Sample:
    side, _, name = run.contender.partition(".")
    module = importlib.import_module(f"benchmarks.{SIDES[side]}")
    if side in ("lanes", "seen"):
        name = run.contender
    for table, functions in (
        ("SESSIONS", workloads.SESSION_WORKLOADS),
        ("CALLERS", workloads.CALLER_WORKLOADS),
        ("LINES", workloads.LINE_WORKLOADS),
        ("WAITERS", workloads.WAITER_WORKLOADS),
        ("WAITERS", workloads.FRAME_WORKLOADS),
        ("CYCLES", workloads.CYCLE_WORKLOADS),
    ):
        kind = getattr(module, table, {})
        if run.workload in functions and name in kind:
            workload = functions[run.workload]
            loop: workloads.Loop = module.LOOP
            return loop.run(functools.partial(workload, loop, kind[name](), run.n))
    raise LookupError(f"{run.contender} has no workload {run.workload}")


def main() -> None:
    contender, workload, n = sys.argv[1:]
    print(json.dumps(attrs.asdict(measure(Run(contender, workload, int(n))))))


if __name__ == "__main__":
    main()
