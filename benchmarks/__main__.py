"""Measure lanes beside their peers: a table on standard output; table, JSON and SVG in a folder.

python -m benchmarks                        # everything, half an hour
python -m benchmarks --rows a,h --rounds 9  # two rows, with more rounds
python -m benchmarks --quick                # does it run at all? about two minutes
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from benchmarks import machine, plot, report, valkey
from benchmarks.measure import ROOT, Bench, measure
from benchmarks.rows import GROWTH, ROWS

LETTERS = tuple(dict.fromkeys([*(row.id[0] for row in ROWS), *(one.id[0] for one in GROWTH)]))


def _letters(text: str) -> frozenset[str]:
    letters = frozenset(part.strip() for part in text.split(","))
    if not letters <= set(LETTERS):
        raise argparse.ArgumentTypeError(f"{text!r}: rows are {', '.join(LETTERS)}")
    return letters


def _rounds(text: str) -> int:
    rounds = int(text)
    if rounds < 1:
        raise argparse.ArgumentTypeError(f"{rounds}: at least one round")
    return rounds


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--rows", type=_letters, default=frozenset(LETTERS), metavar="a,h")
    parser.add_argument("--rounds", type=_rounds, help="for every row that has more than one")
    parser.add_argument(
        "--apart", action="store_true", help="rows j: give the Valkey server a core of its own"
    )
    parser.add_argument("--quick", action="store_true", help="small numbers, one round")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "out")
    parser.add_argument(
        "--table", type=Path, help="write the table there as well: benchmarks/results/all.md"
    )
    options = parser.parse_args()
    if options.apart and len(valkey.cores()) < 2:
        parser.error("--apart needs two cores, and a system on which a process can choose its own")

    def progress(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    described = machine.describe(apart=options.apart)
    bench = Bench(
        rounds=options.rounds, quick=options.quick, progress=progress, apart=options.apart
    )
    rows, growth, seconds = measure(options.rows, bench)

    options.out.mkdir(parents=True, exist_ok=True)
    text = report.table(described, rows, growth, quick=options.quick)
    answer = report.as_json(described, rows, growth, quick=options.quick, seconds=seconds)
    (options.out / "results.md").write_text(text)
    if options.table is not None:
        options.table.write_text(text)
    (options.out / "results.json").write_text(json.dumps(answer, indent=2) + "\n")
    print(text)
    try:
        plot.draw(rows, growth, options.out / "results.svg")
    except ImportError as error:
        print(f"No plot: {error}. Run `make bench`, which installs it.")
    print(f"{seconds:.0f} s; written to {options.out}")


if __name__ == "__main__":
    main()
