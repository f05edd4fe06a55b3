"""`Lanes.configure`: change the configuration of running lanes, as a whole or not at all."""

from __future__ import annotations

import math
from collections.abc import Mapping

from .._actors.actor import Actor, Pausable
from .._actors.lane import LaneActor
from .._actors.options import LaneConfig, LaneGroup
from .._actors.plan import Plan
from .._config.check import count
from .._config.names import is_template
from .._flow.loop import Scheduler
from .._flow.pausing import update_pause
from .._limits.adaptive import Adaptive
from .control import resume_actors


def configure(
    scheduler: Scheduler,
    lanes: Mapping[str, object],
    groups: Mapping[str, LaneGroup] | None = None,
    sessions: LaneConfig | None = None,
) -> None:
    """Change, add and remove lanes, and replace groups and sessions if given; all or nothing.

    Raises:
      TypeError, ValueError: for a bad configuration, or the removal of a lane in use.
    """
    scheduler.closing.check_not_ended()
    plan = scheduler.registry.plan.changed(lanes, groups, sessions)
    for lane in scheduler.lanes.values():
        _check_change(lane, plan)
    closed = _closed(scheduler)
    hooks, registry = scheduler.hooks.lane_configured, scheduler.registry
    before = {actor: actor.config for actor in registry.actors} if hooks else {}
    with scheduler.batch():
        apply(scheduler, plan)
        for actor in registry.actors if hooks else ():
            if before.get(actor) is not actor.config:
                scheduler.announcer.tell_of_lane(hooks, actor)
    # A limit of 0 is no part of the search for deadlocks.
    scheduler.waits.limits_changed(ends_waits=bool(closed - _closed(scheduler)))


def _closed(scheduler: Scheduler) -> set[object]:
    """Return the lanes, groups and sessions that admit nothing, as their limit is 0."""
    closed: set[object] = {
        lane for lane in scheduler.lanes.values() if not lane.limiter.total_tokens
    }
    closed |= {
        group for group in scheduler.registry.groups.values() if not group.config.concurrency
    }
    return closed | {session for session in scheduler.sessions.values() if not session.concurrency}


def _check_change(lane: LaneActor, plan: Plan) -> None:
    label = plan.label_of(lane.name)
    if label is None:
        if lane.waiting or lane.active or lane.room_requests:
            raise ValueError(
                f"lane {lane.name!r} cannot be removed: "
                f"{lane.waiting} jobs wait and {lane.active} run that are bound for it"
            )
    elif plan.lanes[label].limiter is not lane.config.limiter and lane.active:
        raise ValueError(
            f"lane {lane.name!r} cannot have another limiter while {lane.active} jobs run in it"
        )


def apply(scheduler: Scheduler, plan: Plan) -> None:
    """Apply ``plan``, which was checked, inside a batch."""
    registry = scheduler.registry
    old, registry.plan = registry.plan, plan
    switched: list[Pausable] = []  # lanes and templates to be paused, or to be resumed
    for name, lane in list(scheduler.lanes.items()):
        label = plan.label_of(name)
        if label is None:
            registry.forget(lane)
        else:
            if lane.watched:  # as a lane of a template, which it may not be any more
                scheduler.watches.look_at(lane)
            config, former = plan.lanes[label], old.lanes.get(lane.label)
            lane.relabel(label)
            # Compared with the old plan: a template's lane may have a concurrency of its own,
            # which stays unless its template is named.
            if config is former:
                lane.touch()
            else:
                switched += _change(scheduler, lane, config)
    for name in registry.templates.keys() - plan.lanes.keys():
        resume_actors(scheduler, (registry.templates.pop(name),))
    for name, config in plan.lanes.items():
        if not is_template(name):
            if name not in scheduler.lanes:
                registry.revive_lane(registry.make_lane(name, name))
        elif name not in registry.templates:
            registry.templates[name] = registry.make_template(name)
        else:
            template = registry.templates[name]
            if config.paused is not template.config.paused:
                switched.append(template)
            template.set_config(config)
    for lane in scheduler.lanes.values():
        lane.set_template(registry.templates.get(lane.label))
    configs = [*plan.sessions.values(), plan.others]
    registry.bounded_sessions = any(config.max_waiting != math.inf for config in configs)
    scheduler.workers.wraps = any(config.wrap for config in (*configs, *plan.lanes.values()))
    scheduler.joints.remove(scheduler.tuning)
    if any(isinstance(config.concurrency, Adaptive) for config in plan.lanes.values()):
        scheduler.joints.add(scheduler.tuning)
    for key, session in scheduler.sessions.items():
        switched += _change(scheduler, session, plan.of_session(key))
    registry.resize_session_limiters()
    _regroup(scheduler)
    for actor in switched:  # last: hooks are called, and may use the whole new configuration
        actor.pause_by_config()
        update_pause(scheduler, actor)  # pauses by calls stay


def _change(scheduler: Scheduler, actor: Actor, config: LaneConfig) -> list[Actor]:
    """Give ``actor`` the configuration ``config``; return it if it is to be paused or resumed."""
    old = actor.config
    actor.touch()
    learns = isinstance(actor, LaneActor) and actor.tuner is not None
    if config == old and not learns:  # a number replaces the same number that was learned
        return []
    actor.set_config(config, scheduler.now)
    return [] if config.paused is old.paused else [actor]


def _regroup(scheduler: Scheduler) -> None:
    """Make the groups of the plan, and put every lane into its group."""
    registry = scheduler.registry
    groups = registry.groups
    old = dict(groups)
    for group in old.values():
        group.dissolve()
    groups.clear()
    for name, config in registry.plan.groups.items():
        if name in old:
            old[name].set_config(config, scheduler.now)
        groups[name] = old.get(name) or registry.make_group(name)
    for lane in scheduler.lanes.values():
        registry.join_group(lane)
        lane.touch()


def set_concurrency(scheduler: Scheduler, lane: LaneActor, value: int | float) -> None:
    """Change how many jobs of ``lane`` run at once; jobs that can start then start."""
    value = count("concurrency", value)
    scheduler.closing.check_not_ended()
    if lane.config.limiter is None and lane.name in scheduler.registry.plan.lanes:
        configure(scheduler, {lane.name: value})
        return
    was_closed = not lane.limiter.total_tokens
    with scheduler.batch():
        if lane.config.limiter is None:  # of a template: only this one of its lanes
            scheduler.tuning.set_concurrency(lane, value)
        else:
            lane.limiter.total_tokens = value
            lane.touch()
            scheduler.announcer.tell_of_lane(scheduler.hooks.lane_configured, lane)
    scheduler.waits.limits_changed(ends_waits=was_closed)
