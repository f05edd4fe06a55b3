"""The table as a picture: bars from nought with their spread, one panel for each row."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.measure import GrowthResult, RowResult
from benchmarks.rows import NAMES

OURS, THEIRS = "#1f6f8b", "#c9ced3"
CURVES = ("#8a9299", "#c77f3b")


def draw(rows: Sequence[RowResult], growth: Sequence[GrowthResult], path: Path) -> None:
    """Write an SVG. Needs matplotlib; raises `ImportError` where there is none."""
    import matplotlib
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    def bars(axes: Axes, result: RowResult) -> None:
        lines = [line for line in result.lines if line.value is not None]
        spreads = [line.value for line in lines if line.value is not None]
        axes.set_title(f"({result.row.id}) {result.row.title}", fontsize=8, loc="left")
        if not spreads:
            axes.text(0.5, 0.5, "not measured", ha="center")
            return
        medians = [spread.median for spread in spreads]
        below = [spread.median - spread.least for spread in spreads]
        above = [spread.most - spread.median for spread in spreads]
        colors = [OURS if line.contender.startswith("lanes") else THEIRS for line in lines]
        places = range(len(lines))
        axes.barh(places, medians, color=colors, xerr=[below, above], ecolor="#555555")
        axes.set_yticks(places, [line.name for line in lines], fontsize=7)
        axes.invert_yaxis()
        axes.tick_params(axis="x", labelsize=7)
        axes.set_xlim(0, 1.05 * max(spread.most for spread in spreads) if any(medians) else 1)
        axes.set_xlabel(f"{result.row.unit}, n = {result.n:,}", fontsize=7)

    def curves(axes: Axes, result: GrowthResult) -> None:
        for i, line in enumerate(result.lines):
            sizes = sorted(line.values)
            axes.loglog(
                sizes,
                [line.values[n] for n in sizes],
                "o-",
                color=OURS if i == 0 else CURVES[i - 1],
                label=NAMES[line.contender],
            )
        values = [value for line in result.lines for value in line.values.values()]
        axes.set_ylim(min(values, default=1) / 3, max(values, default=1) * 3)
        axes.legend(fontsize=7)
        axes.set_title(f"({result.growth.id}) {result.growth.title}", fontsize=8, loc="left")
        axes.set_xlabel("jobs", fontsize=7)
        axes.set_ylabel("µs/job", fontsize=7)

    panels = len(rows) + len(growth)
    columns = min(2, panels)
    height = -(-panels // columns)
    # The same figures give the same file, so that it can be kept under version control.
    with matplotlib.rc_context({"svg.hashsalt": "trio-lanes", "svg.fonttype": "none"}):
        figure = Figure(figsize=(6.5 * columns, 3.2 * height), layout="constrained")
        for i, row in enumerate(rows):
            bars(figure.add_subplot(height, columns, i + 1), row)
        for i, grown in enumerate(growth, len(rows)):
            curves(figure.add_subplot(height, columns, i + 1), grown)
        figure.savefig(path, metadata={"Date": None})
