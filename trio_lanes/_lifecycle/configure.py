"""Changing what is configured while it works: checked as a whole, applied as a whole."""

from __future__ import annotations

import math
from collections.abc import Mapping

import attrs

from .._actors.actor import Actor, Pausable
from .._config.check import count
from .._actors.options import LaneConfig, LaneGroup
from .control import pause, resume
from .._actors.group import Group
from .._actors.lane import LaneActor
from .._actors.plan import TEMPLATE_MARK, Plan
from .._flow.scheduler import Scheduler
from .._actors.template import Template


def configure(
    scheduler: Scheduler,
    lanes: Mapping[str, object],
    groups: Mapping[str, LaneGroup] | None = None,
) -> None:
    """Change, add and remove lanes, and replace all groups if some are given; or nothing.

    Raises:
      TypeError, ValueError: for a bad configuration, or a change of what is in use.
    """
    plan = scheduler.plan.changed(lanes, groups)
    for lane in scheduler.lanes.values():
        _check_change(lane, plan)
    with scheduler.transition():
        apply(scheduler, plan)


def _check_change(lane: LaneActor, plan: Plan) -> None:
    label = plan.label_of(lane.name)
    if label is None:
        if lane.waiting or lane.active or lane.entrants:
            raise ValueError(
                f"lane {lane.name!r} cannot be removed: "
                f"{lane.waiting} jobs wait and {lane.active} run that are bound for it"
            )
    elif plan.lanes[label].limiter is not lane.config.limiter and lane.active:
        raise ValueError(
            f"lane {lane.name!r} cannot have another limiter while {lane.active} jobs run in it"
        )


def apply(scheduler: Scheduler, plan: Plan) -> None:
    """Go on as ``plan`` says, which is known to be possible, inside a transition."""
    old, scheduler.plan = scheduler.plan, plan
    switched: list[Pausable] = []  # those that are to pause, or to go on
    for name, lane in list(scheduler.lanes.items()):
        label = plan.label_of(name)
        if label is None:
            del scheduler.lanes[name]
        else:
            if lane.watched:  # as one of a template, which it may not be any more
                scheduler.watches.look_at(lane)
            config, former = plan.lanes[label], old.lanes.get(lane.label)
            lane.label, lane.from_template = label, label != name
            # Compared with the former plan: a template's lane may have a concurrency of its own,
            # which stays unless its template is named.
            if config is former:
                scheduler.touch(lane)
            else:
                switched += _change(scheduler, lane, config)
    for name in scheduler.templates.keys() - plan.lanes.keys():
        resume(scheduler, (scheduler.templates.pop(name),))
    for name, config in plan.lanes.items():
        if not name.endswith(TEMPLATE_MARK):
            if name not in scheduler.lanes:
                scheduler.lanes[name] = LaneActor(scheduler, name, name, config)
        elif name not in scheduler.templates:
            scheduler.templates[name] = Template(scheduler, name, config)
        else:
            template = scheduler.templates[name]
            if config.paused is not template.config.paused:
                switched.append(template)
            template.config = config
    configs = [*plan.sessions.values(), plan.others]
    scheduler.bounded_sessions = any(config.max_waiting != math.inf for config in configs)
    for key, session in scheduler.sessions.items():
        switched += _change(scheduler, session, plan.of_session(key))
    _regroup(scheduler)
    for actor in switched:  # last: hooks are told of it, and may use all that is configured
        (pause if actor.config.paused else resume)(scheduler, (actor,))


def _change(scheduler: Scheduler, actor: Actor, config: LaneConfig) -> list[Actor]:
    """Have ``actor`` go on with ``config``; itself, if that says to pause or to go on."""
    old = actor.config
    scheduler.touch(actor)
    if config == old:
        return []
    actor.set_config(config)
    return [] if config.paused is old.paused else [actor]


def _regroup(scheduler: Scheduler) -> None:
    """Make the groups of the plan, and put every lane into its own."""
    old = dict(scheduler.groups)
    for group in old.values():
        group.dissolve()
    scheduler.groups.clear()
    for name, config in scheduler.plan.groups.items():
        if name in old:
            old[name].set_config(config)
        scheduler.groups[name] = old.get(name) or Group(scheduler, name, config)
    for lane in scheduler.lanes.values():
        scheduler.join_group(lane)
        if lane.group is not None:
            lane.group.used[lane.label] += lane.slots
        scheduler.touch(lane)


def set_concurrency(scheduler: Scheduler, lane: LaneActor, value: int | float) -> None:
    """Change how many jobs of ``lane`` run at once; what can start then starts."""
    value = count("concurrency", value)
    if lane.config.limiter is None and lane.name in scheduler.plan.lanes:
        configure(scheduler, {lane.name: value})
        return
    with scheduler.transition():
        if lane.config.limiter is None:  # of a template: only this one of its lanes
            lane.set_config(attrs.evolve(lane.config, concurrency=value))
        else:
            lane.limiter.total_tokens = value
        scheduler.touch(lane)
