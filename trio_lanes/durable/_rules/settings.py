"""`Settings`: the small records of a store, which its tables keep by kind and name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

from .tables import GROUPS, INSTANCES, LIMITS, Kind

T = TypeVar("T")

_COPIED: Final = (LIMITS.name, GROUPS.name, INSTANCES.name)
"""The kinds of which callers keep the mapping that they have got while they put others."""


class Settings:
    """The part of `Tables` for settings, the same for all tables."""

    _settings: dict[str, dict[str, Any]]  # {kind: {name: setting}}, lanes in order of their names
    fair = True  # whether a lane may be fair

    def of(self, kind: Kind[T]) -> Mapping[str, T]:
        return self._settings[kind.name]

    def put(self, kind: Kind[T], name: str, value: T | None) -> None:
        if name not in self.of(kind) and value is None:
            return
        self._set(kind.name, name, value)
        self._put_text(kind.name, name, value)

    def _set(self, kind: str, name: str, value: Any) -> None:
        of = self._settings[kind]
        if kind in _COPIED:
            of = dict(of)
        if value is None:
            of.pop(name, None)
        else:
            of[name] = value
        if kind in _COPIED:
            self._settings[kind] = dict(sorted(of.items()))
            self._look_for_fair_lanes()

    def _look_for_fair_lanes(self) -> None:
        self.fair = any(limit.fair for limit in self._settings[LIMITS.name].values())

    def _put_text(self, kind: str, name: str, value: Any) -> None:
        """Write a setting that has changed, if the tables are not in memory."""
