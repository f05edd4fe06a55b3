"""How much at once, and how much a minute: what the lanes begin with, and a file that changes it.

Turns and sub-agents call the same model with the same key, so their lanes are one group, whose rate
limits count the calls of both.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Self

import attrs

from trio_lanes import LaneConfig, LaneGroup, Lanes, RateLimit

from .agent import SUBAGENTS, TOOLS, TURNS
from .commands import MAX_LIMIT

MODEL: Final = "model"  # the group of those that call it
MAX_WAITING: Final = 1_000  # turns, over all sessions; more are refused


class LimitsError(ValueError):
    """The file cannot be used; the text says why, in one line, and nothing has changed."""


@attrs.frozen
class Limits:
    """Jobs at once, by lane, and what all calls of the model together may use, by unit."""

    at_once: Mapping[str, int] = attrs.field(factory=lambda: {TURNS: 4, TOOLS: 8, SUBAGENTS: 8})
    per_minute: Mapping[str, float] = attrs.field(
        factory=lambda: {"requests": 6_000, "tokens": 6_000_000}
    )

    def lanes(self, warn_after: float = 30.0) -> dict[str, LaneConfig]:
        """The lanes to open."""
        return {
            name: LaneConfig(
                concurrency=number,
                max_waiting=MAX_WAITING if name == TURNS else float("inf"),
                warn_after=warn_after,
            )
            for name, number in self.at_once.items()
        }

    def groups(self) -> dict[str, LaneGroup]:
        """The group to open them with."""
        rates = [
            RateLimit(limit, unit=unit, algorithm="sliding")
            for unit, limit in self.per_minute.items()
        ]
        return {MODEL: LaneGroup((TURNS, SUBAGENTS), rate=rates)}

    def with_turns(self, number: int) -> Self:
        """These, with so many turns at once."""
        return attrs.evolve(self, at_once={**self.at_once, TURNS: number})

    def read(self, path: Path) -> Self:
        """These, with what the TOML file at `path` says instead.

        Raises:
          LimitsError: the file is not there, or says something that is no limit.
        """
        try:
            said = tomllib.loads(path.read_text(encoding="utf-8"))
            _check_names("", said, ("at_once", "per_minute"))
            limits = attrs.evolve(
                self,
                at_once=_merged(self.at_once, said, "at_once"),
                per_minute=_merged(self.per_minute, said, "per_minute"),
            )
            for name, number in limits.at_once.items():
                if type(number) is not int or not 1 <= number <= MAX_LIMIT:
                    raise ValueError(f"{name} must be a whole number from 1 to {MAX_LIMIT:,}")
            limits.groups()  # looks at the rest
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise LimitsError(f"limits: {' '.join(str(error).split())}") from None
        return limits


def reload(lanes: Lanes, read: Callable[[], Limits]) -> str:
    """Have the lanes go on with what `read` returns. Returns what there is to say about it.

    Jobs that run or wait are not touched, and what the rate limits remember stays.
    """
    try:
        limits = read()
    except LimitsError as error:
        return f"! {error}; nothing has changed"
    lanes.configure(limits.at_once, limits.groups())
    numbers = {**limits.at_once, **limits.per_minute}
    return "limits: " + ", ".join(f"{name} {number:,}" for name, number in numbers.items())


def _merged(known: Mapping[str, Any], said: Mapping[str, Any], name: str) -> dict[str, Any]:
    table = said.get(name, {})
    if not isinstance(table, dict):
        raise TypeError(f"{name} must be a table")
    _check_names(f"{name}.", table, known)
    return {**known, **table}


def _check_names(prefix: str, said: Mapping[str, Any], known: Iterable[str]) -> None:
    for name in said:
        if name not in known:
            raise ValueError(f"there is no {prefix + name!r}; there are {', '.join(known)}")
