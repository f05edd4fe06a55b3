"""The verbs that act on lanes: clear, reset, pause, resume, and the waits for lanes.

A verb acts on the actors that a name means. None means all global lanes, and so all jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Final

import trio

from .._actors.actor import Actor, Pausable
from .._actors.job import AnyJob
from .._config.check import finite_seconds, seconds
from .._config.errors import LaneClearedError, LaneResetError, UnknownLaneError
from .._config.names import SESSION_PREFIX, resolve_global_lane, session_key
from .._flow.loop import Scheduler
from .._flow.pausing import pause_until, update_pause
from .._waiting.current import jobs_here
from .._waiting.watch import Watch

ANY_OWNER: Final = ...


def named(scheduler: Scheduler, name: str | None) -> Sequence[Actor]:
    """Return the lanes that ``name`` means; empty if it is a lane that is not alive.

    A template means its lanes that are alive.

    Raises:
      UnknownLaneError: if it is a global lane that does not exist.
    """
    if name is None:
        return [*scheduler.lanes.values()]
    name = resolve_global_lane(name)
    if name.startswith(SESSION_PREFIX):
        session = scheduler.sessions.get(session_key(name))
        return () if session is None else (session,)
    lane = scheduler.lanes.get(name)
    if lane is not None:
        return (lane,)
    if name in scheduler.registry.plan.lanes:
        return [lane for lane in scheduler.lanes.values() if lane.label == name]
    if scheduler.registry.plan.label_of(name) is None:
        raise UnknownLaneError(name, scheduler.registry.plan.lanes)
    return ()


def resolve_or_create(scheduler: Scheduler, name: str | None) -> Sequence[Pausable]:
    """As `named`, but bring a single lane to life, until it is served at least.

    The result includes the template that ``name`` means, and without a name all templates: a pause
    holds for lanes of a template that come to life later, too.
    """
    scheduler.check_thread()
    scheduler.closing.check_not_ended()
    actors = named(scheduler, name)
    if name is None:
        return [*actors, *scheduler.registry.templates.values()]
    name = resolve_global_lane(name)
    if name in scheduler.registry.templates:
        return [*actors, scheduler.registry.templates[name]]
    if actors:
        return actors
    if name.startswith(SESSION_PREFIX):
        return (scheduler.registry.revive_session(session_key(name)),)
    lane = scheduler.registry.find_or_make_lane(name)
    assert lane is not None
    return (scheduler.bring_to_life(lane),)


def clear(scheduler: Scheduler, name: str | None, owner: object, reason: str | None) -> int:
    """Cancel the waiting jobs of these lanes, of ``owner`` alone if given; return how many."""
    actors = named(scheduler, name)
    with scheduler.batch():
        cleared = 0
        for actor in actors:
            jobs = actor.waiting_jobs()
            if owner is not ANY_OWNER:
                jobs = [job for job in jobs if job.owner == owner]
            withdrawn = scheduler.withdraw_all(jobs, _cleared(actor.name, reason))
            cleared += withdrawn
            scheduler.announcer.tell_of_lane(scheduler.hooks.lane_cleared, actor, withdrawn, reason)
    return cleared


def _cleared(name: str, reason: str | None) -> Callable[[AnyJob], LaneClearedError]:
    return lambda job: LaneClearedError(name, reason)


def reset(scheduler: Scheduler, name: str | None) -> int:
    """Give up the jobs that run in these lanes; return how many."""
    actors = named(scheduler, name)
    with scheduler.batch():
        total = 0
        for actor in actors:
            actor.count_reset()
            given_up = abandon_all(scheduler, actor.running_jobs(), actor.name)
            total += given_up
            scheduler.announcer.tell_of_lane(scheduler.hooks.lane_reset, actor, given_up)
    return total


def abandon_all(scheduler: Scheduler, jobs: Iterable[AnyJob], name: str | None = None) -> int:
    """Settle ``jobs``, which run, even if their bodies go on; return how many they are."""
    with scheduler.batch():
        running = list(jobs)
        for job in running:
            scheduler.abandon(job, LaneResetError(job.lane if name is None else name))
    return len(running)


def pause(scheduler: Scheduler, name: str | None) -> None:
    """Pause these lanes until they are resumed."""
    actors = resolve_or_create(scheduler, name)
    with scheduler.batch():
        for actor in actors:
            actor.pause_by_hand()
            update_pause(scheduler, actor)


def pause_for(scheduler: Scheduler, name: str | None, delay: float) -> None:
    """Pause the lanes that ``name`` means for ``delay`` seconds, at least."""
    finite_seconds("seconds", delay)  # before a lane is brought to life for it
    actors = resolve_or_create(scheduler, name)
    with scheduler.batch():
        until = scheduler.now + delay
        for actor in actors:
            if actor.paused_until is None or actor.paused_until < until:
                pause_until(scheduler, actor, until)
            update_pause(scheduler, actor)


def resume(scheduler: Scheduler, name: str | None) -> None:
    """Let these lanes start jobs again."""
    resume_actors(scheduler, resolve_or_create(scheduler, name))


def resume_actors(scheduler: Scheduler, actors: Iterable[Pausable]) -> None:
    """Let ``actors`` start jobs again."""
    with scheduler.batch():
        for actor in actors:
            actor.resume()
            update_pause(scheduler, actor)


# ---- waiting


async def wait_active(scheduler: Scheduler, name: str | None, timeout: float) -> bool:
    """Wait for the end of the jobs that run there now; return whether it came in time."""
    actors = named(scheduler, name)
    seconds("timeout", timeout)
    scheduler.check_thread()
    running = [job for actor in actors for job in actor.running_jobs()]
    inside = tuple(jobs_here(scheduler.running))
    if not inside:
        await trio.lowlevel.checkpoint()
        with trio.move_on_after(timeout):
            for job in running:
                if not job.done:
                    await job.wait_done()
        return all(job.done for job in running)
    words = "the end of jobs that ran in lanes"
    watch = Watch(words, inside, scheduler.watches.left_out, ended=frozenset(running))
    with trio.move_on_after(timeout):
        await scheduler.watches.wait(object(), watch)
    return not watch.obstacle()


async def wait_until(
    scheduler: Scheduler,
    name: str | None,
    *,
    fewer_than: float = 1,
    idle: bool = False,
) -> None:
    """Wait until fewer than ``fewer_than`` jobs wait there and, if ``idle``, no job runs there."""
    named(scheduler, name)  # raises, if there is no such lane
    scheduler.check_thread()

    def actors() -> Sequence[Actor]:
        try:
            return named(scheduler, name)
        except UnknownLaneError:  # removed since then; only an idle lane can be removed
            return ()

    what = "idle" if idle else "empty" if fewer_than == 1 else f"below {fewer_than} waiting jobs"
    words = f"{'all lanes' if name is None else f'lane {name!r}'} to be {what}"
    inside = tuple(jobs_here(scheduler.running))
    watch = Watch(words, inside, scheduler.watches.left_out, actors, fewer_than, idle)
    await scheduler.watches.wait((name, fewer_than, idle, inside), watch)


def jobs_in(scheduler: Scheduler, name: str | None = None) -> list[AnyJob]:
    """Return the jobs that wait or run in these lanes, in the order of submission."""
    jobs = chain.from_iterable(
        chain(actor.waiting_jobs(), actor.running_jobs()) for actor in named(scheduler, name)
    )
    return sorted(jobs, key=lambda job: job.id)
