"""Which combinations to try where all would be too many: each pair of values comes up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import combinations, product
from typing import TypeVar

T = TypeVar("T", bound=Hashable)
Row = tuple[T, ...]
Pair = frozenset[tuple[int, T]]


def pairs(row: Sequence[T]) -> set[Pair[T]]:
    """The pairs of values in ``row``, each with its column."""
    return {frozenset(pair) for pair in combinations(enumerate(row), 2)}


def covering(
    begun: Iterable[Row[T]], rest: Sequence[Sequence[T]], possible: Callable[[Row[T]], bool]
) -> list[Row[T]]:
    """Complete each of ``begun`` by a value of each of ``rest``, so that all possible pairs are
    there, and none of these completions is much more frequent than another.

    A row may come twice, completed otherwise, for a pair that is left; a row that nothing
    completes is left out. The same arguments give the same rows.
    """
    ends = [*product(*rest)]
    choices = [[row for end in ends if possible(row := (*start, *end))] for start in begun]
    missing = {pair for rows in choices for row in rows for pair in pairs(row)}
    used: Counter[Row[T]] = Counter()
    taken: list[Row[T]] = []

    def take(rows: list[Row[T]]) -> None:
        width = len(rest)
        row = min(rows, key=lambda row: (-len(missing & pairs(row)), used[row[-width:]]))
        missing.difference_update(pairs(row))
        used[row[-width:]] += 1
        taken.append(row)

    for rows in choices:
        if rows:
            take(rows)
    while missing:
        take([row for rows in choices for row in rows])
    return taken
