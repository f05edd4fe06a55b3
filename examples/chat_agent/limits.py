"""The limits: jobs at once and usage per minute, with defaults and a file that changes them.

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

MODEL: Final = "model"  # the group of the lanes that call the model
MAX_WAITING: Final = 1_000  # waiting turns, over all sessions; more are refused


class LimitsError(ValueError):
    """The file is not valid; the text is the reason, in one line. Nothing has changed."""


@attrs.frozen
class Limits:
    """The jobs at once, by lane, and the usage per minute of all calls of the model, by unit."""

    at_once: Mapping[str, int] = attrs.field(factory=lambda: {TURNS: 4, TOOLS: 8, SUBAGENTS: 8})
    per_minute: Mapping[str, float] = attrs.field(
        factory=lambda: {"requests": 6_000, "tokens": 6_000_000}
    )

    def lanes(self, warn_after: float = 30.0) -> dict[str, LaneConfig]:
        """Return the lanes to open."""
        return {
            name: LaneConfig(
                concurrency=number,
                max_waiting=MAX_WAITING if name == TURNS else float("inf"),
                warn_after=warn_after,
            )
            for name, number in self.at_once.items()
        }

    def groups(self) -> dict[str, LaneGroup]:
        """Return the groups of the lanes."""
        rates = [
            RateLimit(limit, unit=unit, algorithm="sliding")
            for unit, limit in self.per_minute.items()
        ]
        return {MODEL: LaneGroup((TURNS, SUBAGENTS), rate=rates)}

    def with_turns(self, number: int) -> Self:
        """Return these limits with another maximum of turns at once."""
        return attrs.evolve(self, at_once={**self.at_once, TURNS: number})

    def read(self, path: Path) -> Self:
        """Return these limits with the changes of the TOML file at `path`.

        Raises:
          LimitsError: if the file is missing, or has a value that is not a limit.
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
            limits.groups()  # checks the rest
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise LimitsError(f"limits: {' '.join(str(error).split())}") from None
        return limits


def reload(lanes: Lanes, read: Callable[[], Limits]) -> str:
    """Configure the lanes with the limits that `read` returns. Return a line for the user.

    Running and waiting jobs are not touched, and rate limits keep their history.
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
            raise ValueError(f"unknown name {prefix + name!r}; the names are {', '.join(known)}")
