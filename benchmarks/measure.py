"""A fresh process for every sample, contenders taking turns: A B A B, not A A B B.

What slows the machine down for a while then slows neighbours of one round, and a ratio is taken
inside a round. Its median is the figure, least and most are the spread.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path

import attrs

from benchmarks import node_peers, postgres, valkey
from benchmarks.checks import WrongResult
from benchmarks.rows import GROWTH, NAMES, QUICK_SIZES, ROWS, Growth, Row
from benchmarks.sample import Missing, Run, Sample, sample_from_json
from benchmarks.workloads import IN_FLIGHT, OUT

ROOT = Path(__file__).parent.parent
PATIENCE = 300.0
"""Seconds after which a process is taken to hang."""


@attrs.frozen
class Spread:
    median: float
    least: float
    most: float
    count: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread | None:
        some = list(values)
        return cls(statistics.median(some), min(some), max(some), len(some)) if some else None


@attrs.frozen
class Line:
    """One contender in a row."""

    contender: str
    workload: str
    name: str
    n: int
    value: Spread | None
    verified: tuple[str, ...]
    figures: dict[str, float]
    missing: str | None
    busy: float
    """Wall-clock time divided by processor time: how much the machine did elsewhere."""
    samples: list[Sample | None]
    """By round; None: it was not measured."""

    def over(self, other: Line) -> Spread | None:
        """Return this one divided by another, in the same round."""
        return Spread.of(
            mine.value / theirs.value
            for mine, theirs in zip(self.samples, other.samples, strict=True)
            if mine is not None and theirs is not None and theirs.value
        )


@attrs.frozen
class RowResult:
    row: Row
    n: int
    lines: list[Line]

    def ratio(self, line: Line) -> Spread | None:
        """Return the first contender divided by another, in the same round."""
        return None if line is self.lines[0] else self.lines[0].over(line)


@attrs.frozen
class GrowthLine:
    contender: str
    values: dict[int, float]
    missing: str | None

    @property
    def exponent(self) -> float | None:
        """x in "time for all jobs ~ n^x"."""
        if len(self.values) < 2:
            return None
        (small, first), *_, (large, last) = sorted(self.values.items())
        return 1 + math.log(last / first) / math.log(large / small)


@attrs.frozen
class GrowthResult:
    growth: Growth
    lines: list[GrowthLine]


class Bench:
    """All samples of one call of the program."""

    def __init__(
        self,
        *,
        rounds: int | None,
        quick: bool,
        progress: Callable[[str], None],
        apart: bool = False,
    ) -> None:
        self.rounds = rounds
        self.quick = quick
        self.apart = apart
        self.progress = progress
        self._samples: defaultdict[Run, list[Sample | Missing]] = defaultdict(list)

    def row(self, row: Row) -> RowResult:
        n = row.quick_n if self.quick else row.n
        names = {Run(who, row.workload, n): NAMES[who] for who in row.contenders}
        for who, workload, different in row.also:
            names[Run(who, workload, n)] = f"{NAMES[who]} ({different})"
        # Figures in bytes do not waver, and what has one round has it for its length.
        rounds = 1 if self.quick or row.rounds == 1 else self.rounds or row.rounds
        for round_number in range(rounds):
            for run in names:
                self._take(run, f"{row.id} {round_number + 1}/{rounds}", row.unit)
        # Another row may have measured the same run before: these are the last samples.
        lines = [self._line(run, name, self._samples[run][-rounds:]) for run, name in names.items()]
        return RowResult(row, n, lines)

    def growth(self, growth: Growth) -> GrowthResult:
        lines = []
        for contender, sizes in growth.contenders:
            values: dict[int, float] = {}
            missing = None
            for n in QUICK_SIZES if self.quick else sizes:
                run = Run(contender, growth.workload, n)
                if not self._samples[run]:  # another row may have measured it
                    self._take(run, growth.id, "µs/job")
                taken = [s.value for s in self._samples[run] if isinstance(s, Sample)]
                if taken:
                    values[n] = statistics.median(taken)
                missing = missing or _reason(self._samples[run])
            lines.append(GrowthLine(contender, values, missing))
        return GrowthResult(growth, lines)

    def _take(self, run: Run, label: str, unit: str) -> None:
        samples = self._samples[run]
        if samples and isinstance(samples[-1], Missing):
            samples.append(samples[-1])  # what failed once is not tried again
            return
        sample = take(run, apart=self.apart)
        samples.append(sample)
        said = sample.reason if isinstance(sample, Missing) else f"{sample.value:.1f} {unit}"
        self.progress(f"{label:12} n={run.n:<9,} {NAMES[run.contender]}: {said}")

    def _line(self, run: Run, name: str, samples: list[Sample | Missing]) -> Line:
        taken = [sample for sample in samples if isinstance(sample, Sample)]
        cpu = sum(sample.cpu for sample in taken)
        return Line(
            contender=run.contender,
            workload=run.workload,
            name=name,
            n=run.n,
            value=Spread.of(sample.value for sample in taken),
            verified=taken[0].verified if taken else (),
            figures={
                key: statistics.median(sample.figures[key] for sample in taken)
                for key in (taken[0].figures if taken else ())
            },
            missing=_reason(samples),
            busy=sum(sample.seconds for sample in taken) / cpu if cpu else 1.0,
            samples=[sample if isinstance(sample, Sample) else None for sample in samples],
        )


def _reason(samples: list[Sample | Missing]) -> str | None:
    return next((sample.reason for sample in samples if isinstance(sample, Missing)), None)


def take(run: Run, *, apart: bool = False) -> Sample | Missing:
    """Measure a contender in a fresh process.

    Args:
      apart: whether the Valkey server gets a core that the contender may not use.
    """
    on_node = run.contender.startswith("node.")
    if not on_node:
        missing = _missing_package(run)
        if missing is None and _on_postgres(run):
            found = postgres.programs()
            missing = found if isinstance(found, Missing) else None
        elif missing is None and _on_valkey(run):
            server = valkey.binary()
            missing = server if isinstance(server, Missing) else None
    elif run.workload not in IN_FLIGHT:
        missing = node_peers.prepare()
    elif isinstance(server := valkey.binary(), Missing):
        missing = server
    else:
        missing = node_peers.prepare(node_peers.DURABLE)
    if missing is not None:
        return missing
    command = (
        node_peers.command(run)
        if on_node
        else [sys.executable, "-m", "benchmarks.worker", run.contender, run.workload, str(run.n)]
    )
    try:
        done = _run(run, command, apart)
    except subprocess.TimeoutExpired:
        return Missing(f"did not end in {PATIENCE:.0f} s")
    if done.returncode != 0:
        return Missing(f"failed: {_last_line(done.stderr)}")
    try:
        if on_node:
            return node_peers.sample(run, done.stdout)
        return sample_from_json(json.loads(done.stdout))
    except (ValueError, WrongResult) as error:
        return Missing(f"failed: {error!r}")


def _on_postgres(run: Run) -> bool:
    return "postgres" in run.contender


def _on_valkey(run: Run) -> bool:
    return "valkey" in run.contender


def _on_server(run: Run) -> bool:
    of_node = run.contender.startswith("node.") and run.workload in IN_FLIGHT
    return of_node or _on_postgres(run) or _on_valkey(run)


def _run(run: Run, command: list[str], apart: bool) -> subprocess.CompletedProcess[str]:
    """Run it to its end; with a server's socket as last argument, or a server in its environment.

    Only the contenders that need a server have it.
    """
    environment = dict(os.environ)
    with ExitStack() as stack:
        if _on_server(run):
            OUT.mkdir(exist_ok=True)
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=OUT)))
            if _on_postgres(run):
                programs = postgres.programs()
                assert isinstance(programs, Path)
                dsn = stack.enter_context(postgres.serving(programs, folder))
                environment["BENCHMARK_POSTGRES"] = dsn
            else:
                program = valkey.binary()
                assert isinstance(program, str)
                socket = stack.enter_context(valkey.serving(program, folder, apart=apart))
                environment["BENCHMARK_VALKEY"] = socket
                if not _on_valkey(run):
                    command = [*command, socket]
        return subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, env=environment
        )


def _missing_package(run: Run) -> Missing | None:
    package = {
        "aio": "trio_lanes",
        "lanes": "trio_lanes",
        "seen": "starlette",
        "trio": "trio",
        "asyncio": "aiojobs",
        "asyncio.aiolimiter": "aiolimiter",
        "durable": "trio_lanes",
        "huey": "huey",
        "procrastinate": "procrastinate",
        "streaq": "streaq",
        "taskiq": "taskiq_redis",
    }
    needed = package.get(run.contender, package[run.contender.partition(".")[0]])
    if importlib.util.find_spec(needed) is None:
        return Missing(f"{needed} is not installed")
    return None


def _last_line(text: str) -> str:
    """The error itself, also where it ends in the frame that is drawn around a group's."""
    lines = [line.strip(" |+-") for line in text.splitlines()]
    return next((line for line in reversed(lines) if line), "it said nothing")[:200]


def measure(
    letters: frozenset[str], bench: Bench
) -> tuple[list[RowResult], list[GrowthResult], float]:
    started = time.perf_counter()
    rows = [bench.row(row) for row in ROWS if row.id[0] in letters]
    growth = [bench.growth(growth) for growth in GROWTH if growth.id[0] in letters]
    return rows, growth, time.perf_counter() - started
