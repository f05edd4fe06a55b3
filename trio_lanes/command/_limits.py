"""Limits of a store: how `status` shows them, and the commands that change them.

Of two persons who change the limits of one lane, or any groups, at the same time, the later one
wins: the present values are read before the new ones are written.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import attrs

from .. import LaneGroup, RateLimit, UnknownLaneError, resolve_global_lane
from .._config.names import GROUP_PREFIX
from ..durable import (
    DurableLanes,
    GroupLimit,
    InstanceInfo,
    LaneLimit,
    LineRequest,
    LockStatistics,
    QuotaStatistics,
)
from ._answer import Answer, Table, moment, number, rate_text
from ._exits import DONE, NO, CommandError


def of(count: float, most: float) -> str:
    """Format a count, and its limit if there is one."""
    return number(count) if most == math.inf else f"{number(count)} of {number(most)}"


def notes(first: str, rates: Sequence[RateLimit]) -> str:
    """Format what is to be said of limits, rates at the end."""
    return ", ".join(filter(None, (first, *(f"rate {rate_text(one)}" for one in rates))))


def template(name: str, limit: LaneLimit) -> str:
    """Describe a template of lanes."""
    most = "" if limit.max_waiting == math.inf else f", {number(limit.max_waiting)} may wait"
    first = f"{name}: each lane runs {number(limit.concurrency)}{most}"
    return notes(", ".join(filter(None, (first, fairness(limit)))), limit.rates)


def fairness(limit: LaneLimit) -> str:
    """Describe whether owners take turns in a lane, their weights, and aging; "" if neither."""
    weights = ", ".join(f"{owner} {weight:g}" for owner, weight in limit.weights.items())
    turns = f"fair ({weights})" if weights else "fair" if limit.fair else ""
    aging = "" if limit.aging == math.inf else f"aging {limit.aging:g} s"
    return ", ".join(filter(None, (turns, aging)))


def groups_table(groups: Mapping[str, GroupLimit]) -> Table:
    """Show groups."""
    return Table(
        ("group", "limit", "lanes", ""),
        [
            (
                name,
                number(group.concurrency),
                ", ".join(group.members),
                notes(
                    ", ".join(f"reserves {n} for {lane}" for lane, n in group.reserve.items()),
                    group.rates,
                ),
            )
            for name, group in groups.items()
        ],
        frozenset({"limit"}),
    )


def locks_table(locks: Sequence[LockStatistics], instances: Sequence[InstanceInfo]) -> Table:
    """Show locks, with who has them and who waits."""
    where = _where(instances)
    return Table(
        ("lock", "has it", "waiting", ""),
        [
            (
                lock.key,
                _requests(lock.holders, lock.holding, where),
                number(lock.waiting),
                _requests(lock.waiters, lock.waiting, where),
            )
            for lock in locks
        ],
        frozenset({"waiting"}),
    )


def quotas_table(quotas: Sequence[QuotaStatistics], instances: Sequence[InstanceInfo]) -> Table:
    """Show the levels of quotas, and who waits."""
    where = _where(instances)
    return Table(
        ("quota", "rate", "in use", "left", "replenished", "waiting", ""),
        [
            (
                quota.name,
                rate_text(level.limit),
                number(level.used),
                number(level.left),
                "" if level.full_at is None else moment(level.full_at),
                number(quota.waiting),
                _requests(quota.waiters, quota.waiting, where),
            )
            for quota in quotas
            for level in quota.levels
        ],
        frozenset({"in use", "left", "waiting"}),
    )


def _where(instances: Sequence[InstanceInfo]) -> dict[str, str]:
    return {one.id: f"{one.pid} on {one.host}" for one in instances}


def _requests(requests: Sequence[LineRequest], count: int, where: Mapping[str, str]) -> str:
    shown = [
        (where.get(one.instance, one.instance) if one.job is None else f"job {one.job}")
        + f" since {moment(one.since)}"
        for one in requests
    ]
    more = [] if count == len(requests) else [f"{count - len(requests):,} more"]
    return ", ".join([*shown, *more])


async def limit(
    lanes: DurableLanes,
    name: str,
    concurrency: float | None,
    new: bool,
    remove: bool,
    rates: Sequence[RateLimit],
    no_rate: bool,
    max_waiting: float | None,
    members: Sequence[str],
    reserve: Sequence[tuple[str, int]],
    fair: bool | None,
    weights: Sequence[tuple[str, float]],
    aging: float | None,
) -> Answer:
    """Set limits of a lane, or of the group group:NAME, on all workers together."""
    is_group = name.startswith(GROUP_PREFIX)
    values: dict[str, Any] = {
        "concurrency": concurrency,
        "rate" if is_group else "rates": tuple(rates) if rates or no_rate else None,
        "max_waiting": max_waiting,
        "aging": aging,
        "members": tuple(members) or None,
        "reserve": {lane: slots for lane, slots in reserve if slots} if reserve else None,
    }
    if fair is not None or weights:
        if is_group or (weights and fair is False):
            raise CommandError("--fair and --weight are for lanes, --weight for fair lanes")
        values |= {"fair": fair is not False, "weights": dict(weights)}
    changes = {field: value for field, value in values.items() if value is not None}
    if bool(changes) == remove or (new and remove):
        raise CommandError("say how many may run at once, another limit, or --remove")
    if rates and no_rate:
        raise CommandError("--rate and --no-rate exclude each other")
    try:
        if is_group:
            if max_waiting is not None or aging is not None:
                raise CommandError("--max-waiting and --aging are for lanes")
            name = name.removeprefix(GROUP_PREFIX)
            return await _limit_group(lanes, name, new, remove, changes)
        if members or reserve:
            raise CommandError(f"--member and --reserve are for groups: {GROUP_PREFIX}NAME")
        return await _limit_lane(lanes, resolve_global_lane(name), new, remove, changes)
    except ValueError as error:  # a bad limit, or a lane that has jobs
        raise CommandError(str(error)) from error


async def _limit_lane(
    lanes: DurableLanes, name: str, new: bool, remove: bool, changes: dict[str, Any]
) -> Answer:
    known = await lanes.limits()
    if new and name in known:
        raise CommandError(f"there is a lane {name!r} already")
    if not new and name not in known:
        raise CommandError(f"{UnknownLaneError(name, known)}; --new makes one")
    if remove:
        await lanes.configure({name: None})
        return Answer({"lane": name, "removed": True}, [f"removed {name}"])
    before = known.get(name)
    if before is None and "concurrency" not in changes:
        raise CommandError("say how many may run at once in the new lane")
    if changes.keys() == {"concurrency"}:
        await lanes.configure({name: changes["concurrency"]})
    else:
        await lanes.configure({name: attrs.evolve(before or LaneLimit(0), **changes)})
    now = (await lanes.limits())[name]
    line = f"{name} runs {number(now.concurrency)} at once"
    if before is not None and before.concurrency != now.concurrency:
        line += f", not {number(before.concurrency)}"
    if "max_waiting" in changes:
        line += f", {number(now.max_waiting)} may wait"
    if "rates" in changes:
        line += ", " + (notes("", now.rates) or "no rate")
    if changes.keys() & {"fair", "aging"}:
        line += f", {fairness(now) or ('not fair' if 'fair' in changes else 'no aging')}"
    document = {
        "lane": name,
        "concurrency": now.concurrency,
        "before": None if before is None else before.concurrency,
        "max_waiting": now.max_waiting,
        "rates": now.rates,
        "fair": now.fair,
        "weights": now.weights,
        "aging": now.aging,
    }
    return Answer(document, [line])


async def _limit_group(
    lanes: DurableLanes, name: str, new: bool, remove: bool, changes: dict[str, Any]
) -> Answer:
    groups = {
        known: LaneGroup(one.members, one.concurrency, reserve=one.reserve, rate=one.rates)
        for known, one in (await lanes.groups()).items()
    }
    if new == (name in groups):
        known = ", ".join(map(repr, groups)) or "none"
        raise CommandError(
            f"there is a group {name!r} already"
            if new
            else f"there is no group {name!r}; the groups are: {known}; --new makes one"
        )
    if remove:
        del groups[name]
        await lanes.configure({}, groups)
        return Answer({"group": name, "removed": True}, [f"removed the group {name}"])
    if new and "members" not in changes:
        raise CommandError("say which lanes the new group has: --member")
    before = LaneGroup(changes["members"]) if new else groups[name]
    groups[name] = attrs.evolve(before, **changes)
    await lanes.configure({}, groups)
    now = (await lanes.groups())[name]
    return Answer({"group": name, **attrs.asdict(now, recurse=False)}, [groups_table({name: now})])


async def quota(
    lanes: DurableLanes,
    name: str | None,
    reset: bool,
    grants: Sequence[tuple[str, int | Decimal]],
    by: str | None,
) -> Answer:
    """Show the levels of quotas; reset one, or grant it more."""
    if name is None or (reset and grants):
        if reset or grants:
            raise CommandError("say which: NAME --reset, or NAME --grant UNIT=N")
    elif reset:
        known = await lanes.reset_quota(name)
    elif grants:
        try:
            await lanes.grant(name, by=by, **dict(grants))
        except (LookupError, ValueError) as error:
            raise CommandError(str(error)) from error
    found = (await lanes.statistics(quota=name)).quotas
    if reset:
        line = f"reset {name}" if known else f"nothing was ever spent from {name!r}"
        return Answer({"reset": known, "quotas": found}, [line], DONE if known else NO)
    table = quotas_table(found, await lanes.instances())
    shown = [table] if found else ["nothing was ever spent"]
    return Answer(found, shown, DONE if found or name is None else NO)
