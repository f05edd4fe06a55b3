"""What an operator is told besides problems: why something waits, although that is no problem."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, final

import attrs

from .problems import PROBLEM_AFTER
from .reasons import Cause, in_words

LONG_WAIT: Final = PROBLEM_AFTER
"""Seconds from which on a wait is told of."""
MANY: Final = 20
"""From how many jobs on it is told of whom they are, or that they back off."""


@final
@attrs.frozen
class Told:
    """A line, and what would help; `str` is both."""

    text: str
    advice: str | None = None
    job: int | None = None
    """The id of the job that it is about."""

    def __str__(self) -> str:
        return self.text if self.advice is None else f"{self.text}: {self.advice}"


def of_wait(seconds: float, lane: str, job: int, cause: Cause | None) -> Told:
    """Return what is told of the longest wait: its cause."""
    text = f"the oldest wait is of {in_words(seconds)}, in {lane!r}"
    text += "" if cause is None else f": {cause}"
    return Told(text, None if cause is None else cause.advice, job)


def of_owners(lane: str, waiting: int, owners: Sequence[str | None], *, fair: bool) -> list[Told]:
    """Return what is told of the owner of most of what waits in a lane, if there is one.

    Args:
      waiting: how many jobs wait there.
      owners: those of the first of them.
    """
    ((owner, count),) = Counter(owners).most_common(1) or ((None, 0),)
    if owner is None or count < MANY or count * 2 <= len(owners):
        return []
    which = "" if waiting <= len(owners) else f"first {len(owners):,} of the "
    text = f"of the {which}{waiting:,} that wait in {lane!r}, {count:,} are of the owner {owner!r}"
    return [Told(text, None if fair else f"make {lane!r} fair, so that owners take turns")]
