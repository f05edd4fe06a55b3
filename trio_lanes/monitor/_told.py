"""What an operator reads right below the verdict, as parts of a frame."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from .._config.reasons import in_words
from .._config.told import Told
from ._notes import Note
from ._shown import Frame, clipped

OWNERS_READ: Final = 1_000
"""Of how many waiting jobs of a lane the owners are counted, at most."""
_LATELY: Final = 300.0
"""Seconds for which an error that was noticed is told of."""


def shown_told(told: Told, *, stored: bool) -> Frame:
    """Return for the page what is told.

    Args:
      stored: whether the job that it names is one of a store.
    """
    return {
        "text": clipped(told.text, 450),
        "advice": None if told.advice is None else clipped(told.advice, 300),
        "job": told.job,
        "stored": stored,
    }


def of_errors(notes: Iterable[Note], now: float) -> list[Told]:
    """Return what is told of the last error that was noticed lately.

    Args:
      notes: the last of them, the newest last.
    """
    errors = [one for one in notes if one["level"] == "error" and now - one["at"] < _LATELY]
    if not errors:
        return []
    last = errors[-1]
    times = f" ({last['count']} times)" if last["count"] > 1 else ""
    said = " ".join(last["text"].split())
    text = f"noticed {in_words(now - last['at'])} ago: {said}{times}"
    return [Told(text, job=last["job"])]
