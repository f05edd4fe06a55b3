"""Limits and rules: from the arguments that users give to the records that a store keeps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Final

from ... import Adaptive, LaneConfig, LaneGroup, RateLimit, open_lanes, resolve_global_lane
from ..._config.names import SESSION_PREFIX
from .._contract.records import GroupLimit, LaneLimit
from .names import checked_name
from .submission import checked_amount

_NOT_DURABLE: Final[Mapping[str, object]] = {
    "limiter": None,
    "timeout": math.inf,
    "queue_timeout": math.inf,
    "idle_timeout": math.inf,
    "log_failures": True,
}
"""Fields of a `LaneConfig` that durable lanes do not know: only these values are accepted."""


def lane_configs(
    lanes: Mapping[str, int | float | LaneConfig], groups: Mapping[str, LaneGroup] | None = None
) -> Mapping[str, LaneConfig]:
    """Return the configurations of lanes and templates, by full name.

    Raises:
      TypeError, ValueError: for a bad lane, or a bad group of these lanes.
    """
    open_lanes(lanes, groups={} if groups is None else groups)  # raises for a bad configuration
    configs: dict[str, LaneConfig] = {}
    for given, value in lanes.items():
        name = checked_name("a lane's name", resolve_global_lane(given))
        if name.startswith(SESSION_PREFIX):
            raise ValueError(f"the limits of a durable lane are not for sessions, got {name!r}")
        configs[name] = value if isinstance(value, LaneConfig) else LaneConfig(concurrency=value)
    return configs


def as_config(value: int | float | LaneConfig | LaneLimit) -> int | float | LaneConfig:
    """Return the configuration that has the limits of a `LaneLimit`; else the value itself."""
    if not isinstance(value, LaneLimit):
        return value
    return LaneConfig(
        concurrency=value.concurrency,
        max_waiting=value.max_waiting,
        rate=value.rates,
        fair=value.fair,
        weights=value.weights,
        aging=value.aging,
    )


def lane_limit(name: str, config: LaneConfig) -> LaneLimit:
    """Return the record of a lane's limits.

    Raises:
      ValueError: for a field that durable lanes do not have.
    """
    for field, neutral in _NOT_DURABLE.items():
        if getattr(config, field) != neutral:
            raise ValueError(f"lane {name!r}: durable lanes have no {field}")
    if isinstance(config.concurrency, Adaptive):
        raise ValueError(
            f"lane {name!r}: the concurrency of a durable lane is a number, since each instance"
            f" would learn another, got {config.concurrency!r}"
        )
    paused_until = math.inf if config.paused else None
    for owner in config.weights:
        checked_name("an owner of weights", owner)
    return LaneLimit(
        config.concurrency,
        config.max_waiting,
        paused_until,
        checked_rates(config.rate),
        fair=config.fair,
        weights=config.weights,
        aging=config.aging,
    )


def group_limit(name: str, group: object) -> GroupLimit:
    """Return the record of a group's limits.

    Raises:
      TypeError: if ``group`` is not a `LaneGroup`.
      ValueError: for a name that a store cannot keep.
    """
    checked_name("a group's name", name)
    if not isinstance(group, LaneGroup):
        raise TypeError(f"group {name!r} must be a LaneGroup, not {group!r}")
    rates = checked_rates(group.rate)
    for member in group.members:
        checked_name(f"a lane of group {name!r}", member)
    return GroupLimit(tuple(group.members), group.concurrency, dict(group.reserve), rates)


def checked_rates(given: RateLimit | Sequence[RateLimit]) -> tuple[RateLimit, ...]:
    """Return one rate or several as a tuple; raise an error for a unit that no store can keep."""
    rates = (given,) if isinstance(given, RateLimit) else tuple(given)
    for rate in rates:
        checked_name("unit", rate.unit)
        if isinstance(rate.limit, Decimal):
            checked_amount("limit", rate.limit)
    return rates


def checked_hold(on_dead: str) -> bool:
    """Return whether a dead job holds its session."""
    if on_dead not in ("continue", "hold"):
        raise ValueError(f"on_dead must be 'continue' or 'hold', not {on_dead!r}")
    return on_dead == "hold"
