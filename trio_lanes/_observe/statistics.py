"""Statistics of lanes: frozen objects, counted without a scan of the jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import attrs

from .._actors.actor import Actor
from .._actors.group import Group
from .._actors.lane import LaneActor
from .._actors.session import SessionActor
from .._limits.rate import RateLimit, Rates


@final
@attrs.frozen
class RateStatistics:
    """A rate limit of a lane or of a group at one moment."""

    limit: RateLimit
    """The limit, as it was configured."""
    left: float
    """How much of its unit may start at once now: up to ``limit.limit``, or up to the burst of a
    ``"gcra"`` limit. Below 0, it is a debt."""
    full_at: float | None
    """When all of it may be used again if nothing starts, on Trio's clock; None if it may now."""


@final
@attrs.frozen
class LaneStatistics:
    """A global lane at one moment."""

    waiting: int
    """Jobs bound for it that have not started, in both layers."""
    waiting_in_lane: int
    """Of these: jobs that stand in its own line."""
    waiting_in_sessions: int
    """Of these: all other jobs, which are still in their sessions, or not due yet."""
    active: int
    """Running jobs, also jobs that have lent their slots."""
    concurrency: int | float
    """How many may run at once."""
    paused: bool
    """Whether it starts nothing now."""
    paused_until: float | None
    """When a pause ends by itself, on Trio's clock; None if it does not, or there is none."""
    oldest_wait: float
    """Seconds that the job which has waited longest has waited; 0 if none waits."""
    started: int
    """Jobs that have started, ever."""
    finished: int
    """Jobs that have started and settled, ever."""
    slots: int
    """Slots in use: running jobs that have not lent theirs."""
    lent: int
    """Running jobs without a slot: they lend it, want it back, or are readmitted."""
    cancelling: int
    """Running jobs that were asked to stop: cancelled, or by their caller; not by a deadline."""
    overdue: int
    """Of the running jobs: those whose bodies have outlived their timeout or their cancellation by
    the lane's ``overdue_after``."""
    abandoned: int
    """Bodies of it that were given up by a reset, and have not ended."""
    succeeded: int
    """Jobs that have succeeded, ever."""
    failed: int
    """Jobs that have failed, ever."""
    cancelled: int
    """Jobs that were cancelled, ever, whether they had started or not."""
    rates: tuple[RateStatistics, ...]
    """Its rate limits."""
    rate_until: float | None
    """Until when the head of its line waits for a rate, on Trio's clock; None if it does not."""


@final
@attrs.frozen
class GroupStatistics:
    """A group of lanes at one moment."""

    members: tuple[str, ...]
    """The names of its lanes, and of their templates."""
    slots: int
    """Slots in use in its lanes."""
    concurrency: int | float
    """How many may be in use."""
    rates: tuple[RateStatistics, ...]
    """Its rate limits."""
    rate_until: float | None
    """Until when the best head waits for a rate of it, on Trio's clock; None if it does not."""


@final
@attrs.frozen
class LanesStatistics:
    """All lanes at one moment."""

    waiting: int
    """Jobs that have not started."""
    active: int
    """Running jobs, also jobs that have lent their slots."""
    abandoned: int
    """Bodies that were given up by a reset, and have not ended."""
    sessions: int
    """Session lanes that are alive."""
    oldest_wait: float
    """Seconds that the job which has waited longest has waited; 0 if none waits."""
    lanes: Mapping[str, LaneStatistics]
    """Each global lane, by name."""
    groups: Mapping[str, GroupStatistics]
    """Each group, by name."""


@final
@attrs.frozen
class SessionStatistics:
    """A session lane at one moment."""

    waiting: int
    """Jobs of it that have not started."""
    forwarded: int
    """Of these: jobs that stand in the lines of their global lanes."""
    active: int
    """Jobs of it that run."""
    concurrency: int | float
    """How many may run at once."""
    paused: bool
    """Whether it starts nothing now."""
    paused_until: float | None
    """When a pause ends by itself, on Trio's clock; None if it does not, or there is none."""


def session_statistics(session: SessionActor) -> SessionStatistics:
    """Return the statistics of ``session`` now."""
    return SessionStatistics(
        waiting=session.waiting,
        forwarded=len(session.forwarded),
        active=session.active,
        concurrency=session.concurrency,
        paused=session.paused,
        paused_until=None if session.paused_for_ever else session.paused_until,
    )


def lane_statistics(lane: LaneActor, now: float) -> LaneStatistics:
    """Return the statistics of ``lane`` at ``now``, which is now."""
    in_lane = len(lane.line) + lane.mailbox.count - lane.readmitting
    oldest = lane.oldest
    return LaneStatistics(
        waiting=lane.waiting,
        waiting_in_lane=in_lane,
        waiting_in_sessions=lane.waiting - in_lane,
        active=lane.active,
        concurrency=lane.limiter.total_tokens,
        paused=lane.paused,
        paused_until=None if lane.paused_for_ever else lane.paused_until,
        oldest_wait=0.0 if oldest is None else now - oldest._waiting_since,
        started=lane.finished + lane.active,
        finished=lane.finished,
        slots=lane.slots,
        lent=len(lane.without_slot),
        cancelling=len(lane.cancelling),
        overdue=len(lane.overdue),
        abandoned=lane.abandoned,
        succeeded=lane.finished - lane.failed - lane.cancelled + lane.withdrawn,
        failed=lane.failed,
        cancelled=lane.cancelled,
        rates=_rates(lane.rates, now),
        rate_until=lane.rate_until if lane.rate_until > now and in_lane else None,
    )


def _rates(rates: Rates, now: float) -> tuple[RateStatistics, ...]:
    return tuple(
        RateStatistics(limit, left, full_at if full_at > now else None)
        for limit, left, full_at in rates.left(now)
    )


def _group_statistics(group: Group, now: float) -> GroupStatistics:
    return GroupStatistics(
        members=tuple(group.used),
        slots=sum(group.used.values()),
        concurrency=group.config.concurrency,
        rates=_rates(group.rates, now),
        rate_until=group.rate_until if group.rate_until > now else None,
    )


def lanes_statistics(
    actors: Mapping[str, LaneActor],
    groups: Mapping[str, Group],
    now: float,
    *,
    sessions: int,
    abandoned: int,
) -> LanesStatistics:
    """Return the statistics of all lanes now: global lanes by name, and the number of sessions."""
    lanes = {name: lane_statistics(lane, now) for name, lane in actors.items()}
    return LanesStatistics(
        waiting=sum(lane.waiting for lane in lanes.values()),
        active=sum(lane.active for lane in lanes.values()),
        abandoned=abandoned,
        sessions=sessions,
        oldest_wait=max((lane.oldest_wait for lane in lanes.values()), default=0.0),
        lanes=lanes,
        groups={name: _group_statistics(group, now) for name, group in groups.items()},
    )


def describe(kind: str, actor: Actor) -> str:
    """Return the repr of a lane, with its state."""
    paused = ", paused" if actor.paused else ""
    limit = actor.concurrency if actor.limiter is None else actor.limiter.total_tokens
    return (
        f"<trio_lanes.{kind} {actor.name!r}, {actor.active}/{limit} active, "
        f"{actor.waiting} waiting{paused}>"
    )
