"""`Settings`: the small records of a store, which its tables keep by kind and name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Final

from ... import RateLimit
from .._contract.records import GroupLimit, InstanceInfo, LaneLimit, StoreRules
from .tables import LastStep

SETTING_KINDS: Final = ("group", "instance", "lane", "pause", "quota", "rules", "step", "turn")
_COPIED: Final = frozenset({"lane", "group"})
"""The kinds of which callers keep the mapping that they have got while they put others."""


class Settings(ABC):
    """The part of `Tables` for settings, the same for all tables."""

    _settings: dict[str, dict[str, Any]]  # {kind: {name: setting}}, lanes in order of their names

    @abstractmethod
    def put_last_step(self, instance: str, step: LastStep | None) -> None: ...

    def _of(self, kind: str) -> dict[str, Any]:
        return self._settings[kind]

    def _put(self, kind: str, name: str, value: Any) -> bool:
        """Set a setting, or with None delete it; return whether there is a change to write."""
        of = self._of(kind)
        if value is None and name not in of:
            return False
        if kind in _COPIED:
            of = dict(of)
        if value is None:
            del of[name]
        else:
            of[name] = value
        if kind in _COPIED:
            self._settings[kind] = dict(sorted(of.items()))
        return True

    def rules(self) -> StoreRules | None:
        rules: StoreRules | None = self._of("rules").get("")
        return rules

    def put_rules(self, rules: StoreRules) -> None:
        self._put("rules", "", rules)

    def lanes(self) -> Mapping[str, LaneLimit]:
        return self._of("lane")

    def put_lane(self, name: str, limit: LaneLimit | None) -> None:
        self._put("lane", name, limit)

    def groups(self) -> Mapping[str, GroupLimit]:
        return self._of("group")

    def put_group(self, name: str, group: GroupLimit | None) -> None:
        self._put("group", name, group)

    def quotas(self) -> Mapping[str, tuple[RateLimit, ...]]:
        return self._of("quota")

    def put_quota(self, name: str, limits: tuple[RateLimit, ...]) -> None:
        self._put("quota", name, limits)

    def turns(self) -> Mapping[str, str | int]:
        return self._of("turn")

    def put_turn(self, key: str, value: str | int | None) -> None:
        self._put("turn", key, value)

    def pauses(self) -> Mapping[str, float]:
        return self._of("pause")

    def pause_of(self, session: str) -> float | None:
        until: float | None = self._of("pause").get(session)
        return until

    def put_pause(self, session: str, until: float | None) -> None:
        self._put("pause", session, until)

    def pauses_due(self, now: float) -> list[str]:
        return [session for session, until in self.pauses().items() if until <= now]

    def instances(self) -> list[InstanceInfo]:
        return list(self._of("instance").values())

    def lease_of(self, instance: str) -> float | None:
        info: InstanceInfo | None = self._of("instance").get(instance)
        return None if info is None else info.lease_until

    def put_instance(self, info: InstanceInfo) -> None:
        self._put("instance", info.id, info)

    def drop_instance(self, id: str) -> None:
        self._put("instance", id, None)
        self.put_last_step(id, None)
