"""A whole configuration: lanes, templates, sessions and groups, checked against each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import attrs

from .._config.errors import UnknownLaneError
from .._config.names import (
    SESSION_PREFIX,
    is_template,
    resolve_global_lane,
    session_key,
    template_of,
)
from .options import LaneConfig, LaneGroup, lane_config, session_config


@final
@attrs.frozen
class Plan:
    """The whole configuration. A change makes a new plan, so a rejected change changes nothing.

    For the lanes that a change did not name, the new plan has the same objects as the old plan;
    for the lanes that it named, it has new objects, even if these are equal.
    """

    lanes: Mapping[str, LaneConfig] = attrs.field(factory=dict)
    """Global lanes, and templates of such: their names end with ``*``."""
    sessions: Mapping[str, LaneConfig] = attrs.field(factory=dict)
    """By key, or by template of keys: sessions with a configuration of their own."""
    others: LaneConfig = LaneConfig()
    """The configuration of all other sessions."""
    groups: Mapping[str, LaneGroup] = attrs.field(factory=dict)

    @groups.validator
    def _check_groups(self, attribute: object, groups: Mapping[str, LaneGroup]) -> None:
        if not isinstance(groups, Mapping):
            raise TypeError(f"groups must be a mapping of names to LaneGroups, not {groups!r}")
        group_of: dict[str, str] = {}
        for name, group in groups.items():
            if not isinstance(name, str):
                raise TypeError(f"a group name must be a string, not {name!r}")
            if not isinstance(group, LaneGroup):
                raise TypeError(f"group {name!r} must be a LaneGroup, not {group!r}")
            for member in group.members:
                if member not in self.lanes:
                    raise ValueError(f"group {name!r} has the member {member!r}, which is no lane")
                if member in group_of:
                    raise ValueError(
                        f"lane {member!r} is in two groups: {group_of[member]!r}, {name!r}"
                    )
                group_of[member] = name

    def changed(
        self,
        lanes: Mapping[str, object],
        groups: Mapping[str, LaneGroup] | None = None,
        sessions: LaneConfig | None = None,
        *,
        opening: bool = False,
    ) -> Plan:
        """This plan with other lanes, and with other groups and sessions if these are given.

        Args:
          sessions: the configuration of all sessions that have none of their own.
          opening: whether there is no lane yet that None could remove.

        Raises:
          TypeError, ValueError: for a bad configuration.
        """
        if not isinstance(lanes, Mapping):
            raise TypeError(f"lanes must be a mapping of names to limits, not {lanes!r}")
        others = self.others if sessions is None else session_config(sessions)
        new_lanes, new_sessions = dict(self.lanes), dict(self.sessions)
        seen: set[str] = set()
        for given, value in lanes.items():
            name = _lane_name(given)
            if name in seen:  # two spellings of one name, as "main" and " main"
                raise ValueError(f"lane {name!r} is named twice")
            seen.add(name)
            if name.startswith(SESSION_PREFIX):
                key = session_key(name)
                base = attrs.evolve(self, others=others).of_session(key)
                _change(new_sessions, key, name, value, opening=opening, base=base)
                if key in new_sessions:
                    session_config(new_sessions[key], f"lane {name!r}")
            else:
                _change(new_lanes, name, name, value, opening=opening)
        new_groups = self.groups if groups is None else groups
        return Plan(new_lanes, new_sessions, others, new_groups)

    def label_of(self, name: str) -> str | None:
        """Return the configured name, or the longest template, that ``name`` matches, if any."""
        if name in self.lanes:
            return None if is_template(name) else name
        return template_of(name, self.lanes)

    def of_session(self, key: str) -> LaneConfig:
        """Return the configuration of the session ``key``."""
        if not self.sessions:
            return self.others
        label = key if key in self.sessions else template_of(key, self.sessions)
        return self.others if label is None else self.sessions[label]

    def group_of(self, label: str) -> str | None:
        """The name of the group that the lanes of ``label`` are in, if any."""
        return next((name for name, group in self.groups.items() if label in group.members), None)


def _lane_name(given: Any) -> str:
    if not isinstance(given, str):
        raise TypeError(f"a lane name must be a string, not {given!r}")
    if not given.strip():
        raise ValueError(f"a lane name must not be blank, got {given!r}")
    name = resolve_global_lane(given)
    return SESSION_PREFIX + session_key(name) if name.startswith(SESSION_PREFIX) else name


def _change(
    configs: dict[str, LaneConfig],
    key: str,
    name: str,
    value: Any,
    *,
    opening: bool,
    base: LaneConfig | None = None,
) -> None:
    """Set ``configs[key]`` as ``configure`` does: a number changes only the concurrency.

    Args:
      base: its configuration as long as none is set.
    """
    if value is None and not opening:
        if key not in configs:
            prefix = name.removesuffix(key)  # of sessions, which are here without it
            raise UnknownLaneError(name, [prefix + known for known in configs])
        del configs[key]
        return
    config = lane_config(name, value)
    old = configs.get(key, base)
    if old is not None and not isinstance(value, LaneConfig):
        if old.limiter is not None:
            raise ValueError(f"lane {name!r} has a shared limiter; replace its LaneConfig instead")
        config = attrs.evolve(old, concurrency=config.concurrency)
    configs[key] = attrs.evolve(config)  # a new object: it shows that this lane was named
