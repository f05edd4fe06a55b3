"""The table, for people, and the same as JSON, for programs.

The table is Markdown that also reads well in a terminal. It shows everything that was asked
for: a peer that could not be measured has a line that says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from benchmarks.measure import GrowthResult, RowResult, Spread
from benchmarks.rows import LINEAR, NAMES, Target

BUSY = 1.15


@attrs.frozen
class Verdict:
    row: str
    text: str
    value: float | None
    limit: float
    met: bool | None
    """None: could not be measured."""
    certain: bool
    """False where single rounds say otherwise than their median."""


def verdicts(rows: Sequence[RowResult], growth: Sequence[GrowthResult]) -> list[Verdict]:
    found = [_verdict(result, target) for result in rows for target in result.row.targets]
    for grown in growth:
        exponent = grown.lines[0].exponent
        met = None if exponent is None else exponent <= LINEAR
        text = f"linear or n log n (exponent at most {LINEAR})"
        found.append(Verdict(grown.growth.id, text, exponent, LINEAR, met, certain=True))
    return found


def _verdict(result: RowResult, target: Target) -> Verdict:
    lines = {(line.contender, line.workload): line for line in result.lines}
    subject = lines[target.subject, target.workload or result.row.workload]
    measured = subject.value
    if target.against is not None:
        measured = subject.over(lines[target.against, result.row.workload])
    if measured is None:
        return Verdict(result.row.id, target.text, None, target.limit, None, certain=True)
    met = measured.median <= target.limit
    certain = (measured.most <= target.limit) if met else (measured.least > target.limit)
    return Verdict(result.row.id, target.text, measured.median, target.limit, met, certain)


def table(
    machine: Mapping[str, object],
    rows: Sequence[RowResult],
    growth: Sequence[GrowthResult],
    *,
    quick: bool,
) -> str:
    parts = [_head(machine, quick=quick)]
    parts += [_row(result) for result in rows]
    parts += [_growth(result) for result in growth]
    parts.append(_targets(verdicts(rows, growth)))
    return "\n\n".join(part for part in parts if part) + "\n"


def _head(machine: Mapping[str, object], *, quick: bool) -> str:
    said = []
    for key, value in machine.items():
        if isinstance(value, Mapping):
            value = ", ".join(f"{name} {version}" for name, version in value.items())
        said.append(f"- {key}: {value}")
    warning = "\n\n**A quick run: small numbers, one round. Not for quoting.**" if quick else ""
    return "# trio-lanes beside its peers\n\n" + "\n".join(said) + warning


def _row(result: RowResult) -> str:
    row = result.row
    rounds = max((line.value.count for line in result.lines if line.value), default=0)
    title = f"## ({row.id}) {row.title}\n\nn = {result.n:,}, {rounds} round(s), {row.unit}"
    cells = [["", "median", "min-max", "lanes / it", "min-max", "found right"]]
    notes = list(row.notes)
    for line in result.lines:
        if line.value is None:
            cells.append([line.name, "-", "-", "-", "-", f"not measured: {line.missing}"])
            continue
        ratio = result.ratio(line)
        cells.append(
            [
                line.name,
                _number(line.value.median),
                f"{_number(line.value.least)}-{_number(line.value.most)}",
                *(("", "") if ratio is None else _ratio_cells(ratio)),
                ", ".join(line.verified),
            ]
        )
        if line.missing is not None:
            notes.append(f"{line.name}: only {line.value.count} round(s), then {line.missing}")
        if line.busy > BUSY:
            notes.append(f"{line.name} had the processor for {1 / line.busy:.0%} of its time.")
        notes += [
            f"{line.name}: {_figure(key, value)}"
            for key, value in line.figures.items()
            if key != "reading_us" or value >= 0.1  # where results lie in a list, it is nothing
        ]
    return "\n\n".join([title, _grid(cells), *(["\n".join(f"- {n}" for n in notes)] * bool(notes))])


def _as_dict(spread: Spread | None) -> dict[str, object] | None:
    return None if spread is None else attrs.asdict(spread)


def _ratio_cells(ratio: Spread) -> tuple[str, str]:
    return f"{ratio.median:.2f}", f"{ratio.least:.2f}-{ratio.most:.2f}"


def _figure(key: str, value: float) -> str:
    return {
        "reading_us": f"{value:.2f} µs more to read a job's result afterwards",
        "cycles_per_second": f"{value:,.0f} cycles a second",
        "memory_growth_mb": f"the process grew by {value:.0f} MB at its peak",
        "first_wave_bytes": f"{value:.0f} bytes a session stay of the first wave (tables, pools)",
    }[key]


def _growth(result: GrowthResult) -> str:
    sizes = sorted({n for line in result.lines for n in line.values})
    cells = [["µs/job", *(f"n = {n:,}" for n in sizes), "time ~ n^x"]]
    for line in result.lines:
        exponent = line.exponent
        last = "-" if exponent is None else f"x = {exponent:.2f}"
        if line.missing is not None:
            last += f" (not measured: {line.missing})"
        values = (_number(line.values[n]) if n in line.values else "-" for n in sizes)
        cells.append([NAMES[line.contender], *values, last])
    return f"## ({result.growth.id}) {result.growth.title}\n\n{_grid(cells)}"


def _targets(found: Sequence[Verdict]) -> str:
    if not found:
        return ""
    cells = [["row", "target", "measured", "limit", ""]]
    for verdict in found:
        said = {True: "met", False: "NOT MET", None: "not measured"}[verdict.met]
        if not verdict.certain:
            said += " (but not in every round)"
        value = "-" if verdict.value is None else f"{verdict.value:.2f}"
        cells.append([f"({verdict.row})", verdict.text, value, f"{verdict.limit:.2f}", said])
    return f"## Targets\n\n{_grid(cells)}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}"


def _grid(cells: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in cells
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])


def as_json(
    machine: Mapping[str, object],
    rows: Sequence[RowResult],
    growth: Sequence[GrowthResult],
    *,
    quick: bool,
    seconds: float,
) -> dict[str, object]:
    return {
        "machine": machine,
        "quick": quick,
        "seconds": round(seconds, 1),
        "rows": [
            {
                "id": result.row.id,
                "title": result.row.title,
                "n": result.n,
                "unit": result.row.unit,
                "lines": [
                    attrs.asdict(line) | {"ratio": _as_dict(result.ratio(line))}
                    for line in result.lines
                ],
            }
            for result in rows
        ],
        "growth": [
            {
                "id": result.growth.id,
                "title": result.growth.title,
                "lines": [
                    attrs.asdict(line) | {"exponent": line.exponent} for line in result.lines
                ],
            }
            for result in growth
        ],
        "targets": [attrs.asdict(verdict) for verdict in verdicts(rows, growth)],
    }
