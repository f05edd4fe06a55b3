"""The verbs that act on lanes as they are: clear, reset, pause, and waiting for them.

Each takes the actors that a name means; None means every global lane, which is every job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Final

import attrs
import trio

from ._actor import Actor
from ._check import count, seconds
from ._config import LaneConfig, lane_config, lane_names
from ._current import job_here
from ._errors import LaneClearedError, LaneResetError, UnknownLaneError
from ._job import AnyJob
from ._lane import LaneActor
from ._names import SESSION_PREFIX, resolve_global_lane, session_key
from ._scheduler import Scheduler
from ._state import RUNNING
from ._watch import Watch

ANY_OWNER: Final = ...


def named(scheduler: Scheduler, name: str | None) -> Sequence[Actor]:
    """The lanes that ``name`` means: of a session that is not alive, none.

    Raises:
      UnknownLaneError: if it is a global lane that does not exist.
    """
    if name is None:
        return [*scheduler.lanes.values()]
    name = resolve_global_lane(name)
    if name.startswith(SESSION_PREFIX):
        session = scheduler.sessions.get(session_key(name))
        return () if session is None else (session,)
    try:
        return (scheduler.lanes[name],)
    except KeyError:
        raise UnknownLaneError(name, scheduler.lanes) from None


def alive(scheduler: Scheduler, name: str | None) -> Sequence[Actor]:
    """As `named`, but a session that was not alive is now, until its next step at least."""
    actors = named(scheduler, name)
    if not actors and name is not None:
        return (scheduler.awake(session_key(name)),)
    return actors


def clear(scheduler: Scheduler, actors: Iterable[Actor], owner: object, reason: str | None) -> int:
    """Cancel what waits in ``actors``, of ``owner`` only if one is given; how many."""
    outermost = scheduler.begin()
    cleared = 0
    for actor in actors:
        name = actor.name
        jobs = actor.waiting_jobs()
        if owner is not ANY_OWNER:
            jobs = [job for job in jobs if job.owner == owner]
        withdrawn = scheduler.withdraw_all(jobs, _cleared(name, reason))
        cleared += withdrawn
        if scheduler.hooks.lane_cleared:
            scheduler.hooks.call(
                scheduler.hooks.lane_cleared, scheduler.view(actor), withdrawn, reason
            )
    if outermost:
        scheduler.serve()
    return cleared


def _cleared(name: str, reason: str | None) -> Callable[[AnyJob], LaneClearedError]:
    return lambda job: LaneClearedError(name, reason)


def reset(scheduler: Scheduler, actors: Iterable[Actor]) -> int:
    """Give up what runs in ``actors``; how many jobs that were."""
    outermost = scheduler.begin()
    total = 0
    for actor in actors:
        actor.generation += 1
        given_up = give_up(scheduler, actor.running_jobs(), actor.name)
        total += given_up
        if scheduler.hooks.lane_reset:
            scheduler.hooks.call(scheduler.hooks.lane_reset, scheduler.view(actor), given_up)
    if outermost:
        scheduler.serve()
    return total


def give_up(scheduler: Scheduler, jobs: Iterable[AnyJob], name: str | None = None) -> int:
    """Settle those of ``jobs`` that run, whatever their bodies still do; how many there were."""
    outermost = scheduler.begin()
    given_up = 0
    for job in jobs:
        if job._state is RUNNING:
            scheduler.abandon(job, LaneResetError(job.lane if name is None else name))
            given_up += 1
    if outermost:
        scheduler.serve()
    return given_up


def pause(scheduler: Scheduler, actors: Iterable[Actor]) -> None:
    """Have ``actors`` start nothing until they are resumed."""
    _set_paused(scheduler, actors, paused=True)


def resume(scheduler: Scheduler, actors: Iterable[Actor]) -> None:
    """Have ``actors`` start jobs again."""
    _set_paused(scheduler, actors, paused=False)


def _set_paused(scheduler: Scheduler, actors: Iterable[Actor], *, paused: bool) -> None:
    outermost = scheduler.begin()
    hooks = scheduler.hooks.lane_paused if paused else scheduler.hooks.lane_resumed
    for actor in actors:
        scheduler.touch(actor)  # a session that is not paused may go
        if actor.paused is not paused:
            actor.paused = paused
            if hooks:
                scheduler.hooks.call(hooks, scheduler.view(actor))
    if outermost:
        scheduler.serve()


def set_concurrency(scheduler: Scheduler, actor: LaneActor, value: int | float) -> None:
    """Change how many jobs of ``actor`` run at once; what can start then starts."""
    value = count("concurrency", value)
    outermost = scheduler.begin()
    actor.set_config(attrs.evolve(actor.config, concurrency=value))
    if outermost:
        scheduler.serve()


def configure(scheduler: Scheduler, lanes: Mapping[str, object]) -> None:
    """Change, add and remove global lanes, all of it or nothing.

    Raises:
      TypeError, ValueError: for a bad configuration, or when a lane is to be removed for which
        a job is bound or that runs one.
    """
    changes: dict[str, LaneConfig | None] = {}
    for name, value in lane_names(lanes).items():
        actor = scheduler.lanes.get(name)
        if value is None:
            _check_removable(scheduler, name, actor)
            changes[name] = None
        elif actor is not None and not isinstance(value, LaneConfig):
            concurrency = lane_config(name, value).concurrency
            changes[name] = attrs.evolve(actor.config, concurrency=concurrency)
        else:
            changes[name] = lane_config(name, value)
    outermost = scheduler.begin()
    for name, config in changes.items():
        actor = scheduler.lanes.get(name)
        if config is None:
            del scheduler.lanes[name]
        elif actor is None:
            scheduler.lanes[name] = LaneActor(scheduler, name, config)
        else:
            was_paused = actor.config.paused
            actor.set_config(config)
            if config.paused is not was_paused:
                _set_paused(scheduler, (actor,), paused=config.paused)
            scheduler.touch(actor)
    if outermost:
        scheduler.serve()


def _check_removable(scheduler: Scheduler, name: str, actor: LaneActor | None) -> None:
    if actor is None:
        raise UnknownLaneError(name, scheduler.lanes)
    if actor.waiting or actor.active or actor.entrants:
        raise ValueError(
            f"lane {name!r} cannot be removed: "
            f"{actor.waiting} jobs wait and {actor.active} run that are bound for it"
        )


# ---- waiting


def onlookers(scheduler: Scheduler, job: AnyJob | None) -> set[AnyJob]:
    """``job``, and those that wait for it, directly or not: they cannot end before it."""
    found: set[AnyJob] = set()
    unseen = [job]
    while unseen:
        job = unseen.pop()
        if job is not None and job not in found:
            found.add(job)
            unseen += [waiter.job for waiter in (job._waiters or {}).values()]
            unseen += scheduler.watches.waiting_for(job)
    return found


def _belongs(job: AnyJob, actors: Iterable[Actor]) -> bool:
    """Whether ``job`` is one of any of ``actors``."""
    return any(actor is job._lane or actor is job._session_lane for actor in actors)


async def wait_active(scheduler: Scheduler, actors: Iterable[Actor], timeout: float) -> bool:
    """Wait for the end of the jobs that run in ``actors`` now; whether they ended in time."""
    seconds("timeout", timeout)
    running = [job for actor in actors for job in actor.running_jobs()]
    inside = job_here(scheduler.running)
    if inside is None:
        await trio.lowlevel.checkpoint()
        with trio.move_on_after(timeout):
            for job in running:
                if not job.done:
                    await job.wait_done()
        return all(job.done for job in running)

    def ended() -> bool:
        left_out = onlookers(scheduler, inside)
        return all(job.done or job in left_out for job in running)

    with trio.move_on_after(timeout):
        await scheduler.watches.wait(object(), Watch(ended, inside, set(running).__contains__))
    return ended()


async def wait_until(
    scheduler: Scheduler,
    name: str | None,
    *,
    fewer_than: float = 1,
    idle: bool = False,
) -> None:
    """Wait until fewer jobs than that wait where ``name`` says, and, if ``idle``, none runs."""
    named(scheduler, name)  # raises, if there is no such lane
    inside = job_here(scheduler.running) if idle else None

    def actors() -> Sequence[Actor]:
        try:
            return named(scheduler, name)
        except UnknownLaneError:  # removed since; only an idle lane is
            return ()

    def reached() -> bool:
        if fewer_than == 1:  # the usual case, looked at after each transition
            if any(actor.waiting for actor in actors()):
                return False
        elif sum(actor.waiting for actor in actors()) >= fewer_than:
            return False
        if not idle:
            return True
        if inside is None:
            return not any(actor.active for actor in actors())
        left_out = [job for job in onlookers(scheduler, inside) if job._state is RUNNING]
        return not any(
            actor.active > sum(_belongs(job, (actor,)) for job in left_out) for actor in actors()
        )

    def awaits(job: AnyJob) -> bool:
        return _belongs(job, actors())

    await scheduler.watches.wait((name, fewer_than, idle, inside), Watch(reached, inside, awaits))


def check_room(n: object) -> float:
    """``n`` as the argument of ``wait_room``."""
    if count("n", n) < 1:
        raise ValueError(f"n must be at least 1, got {n!r}")
    return float(n)  # type: ignore[arg-type]  # count() has looked at it


def all_jobs(scheduler: Scheduler) -> list[AnyJob]:
    """Every job that waits or runs, in the order of submission."""
    jobs = chain.from_iterable(
        chain(lane.waiting_jobs(), lane.running_jobs()) for lane in scheduler.lanes.values()
    )
    return sorted(jobs, key=lambda job: job.id)
