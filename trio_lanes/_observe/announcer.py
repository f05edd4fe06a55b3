"""Which hooks of instruments are called when, and with what: always between two acts.

Two kinds hang on the joints of the loop: the hooks of jobs, as long as there is an instrument, and
those of lanes that become empty or idle, as long as an instrument has one of the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, final

from .._actors.actor import Actor
from .._actors.job import AnyJob
from .hooks import Hook, Hooks
from .joints import Joints


@final
class Announcer:
    """Has hooks called when the present act is complete."""

    def __init__(
        self,
        hooks: Hooks,
        joints: Joints,
        after_act: Callable[..., None],
        actors: Callable[[], Iterable[Actor]],
    ) -> None:
        """``after_act`` calls a function when the act is complete; ``actors`` gives all lanes."""
        self._hooks: Final = hooks
        self._joints: Final = joints
        self._after_act: Final = after_act
        self._actors: Final = actors
        self.view: Callable[[Actor], object] = lambda actor: actor  # makes the argument of hooks
        self._of_jobs: Final = _HooksOfJobs(hooks, after_act)
        self._of_quiet_lanes: Final = _HooksOfQuietLanes(self, hooks)

    def hooks_changed(self) -> None:
        """An instrument was added or removed."""
        hooks, joints, quiet = self._hooks, self._joints, self._of_quiet_lanes
        if hooks.instruments:
            joints.add(self._of_jobs)
        else:
            joints.remove(self._of_jobs)
        if not (hooks.lane_empty or hooks.lane_idle):
            joints.remove(quiet)
            quiet.changed.clear()
        elif quiet.on_batch_end not in joints.on_batch_end:
            joints.add(quiet)
            # what became empty or idle before is not told
            for actor in self._actors():
                actor.announce()

    def tell(self, hooks: list[Hook], *args: object) -> None:
        """Call ``hooks`` with ``args``, of which none is a lane."""
        if hooks:
            self._after_act(self._hooks.call, hooks, *args)

    def tell_of_lane(self, hooks: list[Hook], actor: Actor, *args: object) -> None:
        """Call ``hooks`` with the ``view`` of ``actor``, and ``args``."""
        if hooks:
            self._after_act(self._call_with_view, hooks, actor, args)

    def tell_if_idle(self, actor: Actor) -> None:
        """Call the hooks of idle lanes, if ``actor`` is still idle when the act is complete."""
        if self._hooks.lane_idle:
            self._after_act(self._call_if_idle, actor)

    def _call_with_view(self, hooks: list[Hook], actor: Actor, args: tuple[Any, ...]) -> None:
        self._hooks.call(hooks, self.view(actor), *args)

    def _call_if_idle(self, actor: Actor) -> None:
        if not (actor.waiting or actor.active):  # a hook may have submitted
            self._hooks.call(self._hooks.lane_idle, self.view(actor))


@final
class _HooksOfJobs:
    """The hooks of each job's way."""

    def __init__(self, hooks: Hooks, after_act: Callable[..., None]) -> None:
        self._hooks: Final = hooks
        self._after_act: Final = after_act

    def on_placed(self, job: AnyJob) -> None:
        session = job._session_lane
        is_forwarded = session is not None and job._place in session.forwarded
        hooks = self._hooks.job_forwarded if is_forwarded else self._hooks.job_submitted
        if hooks:
            self._after_act(self._hooks.call, hooks, job)

    def on_started(self, job: AnyJob) -> None:
        if self._hooks.job_started:
            hooks = self._hooks.job_started
            self._after_act(self._hooks.call_in_context, hooks, job, job._context)

    def on_settled(self, job: AnyJob) -> None:
        if self._hooks.job_finished:
            hooks = self._hooks.job_finished
            self._after_act(self._hooks.call_in_context, hooks, job, job._context)


@final
class _HooksOfQuietLanes:
    """The hooks of lanes in which no job waits any more, or no job waits or runs."""

    def __init__(self, announcer: Announcer, hooks: Hooks) -> None:
        self._announcer: Final = announcer
        self._hooks: Final = hooks
        self.changed: Final[dict[Actor, None]] = {}
        """Lanes that may have become empty or idle."""

    def on_placed(self, job: AnyJob) -> None:
        """Note that the numbers of waiting or running jobs have changed in the lanes of ``job``."""
        self.changed[job._lane] = None
        if job._session_lane is not None:
            self.changed[job._session_lane] = None

    on_started = on_settled = on_placed

    def on_batch_end(self, now: float) -> None:
        """Tell of the lanes that are quiet now, and of none that was so only between two acts."""
        hooks = self._hooks
        while self.changed:
            actor = next(iter(self.changed))
            del self.changed[actor]
            became_empty, became_idle = actor.announce()
            if became_empty:
                self._announcer.tell_of_lane(hooks.lane_empty, actor)
            if became_idle:
                self._announcer.tell_if_idle(actor)
            if (became_empty and hooks.lane_empty) or (became_idle and hooks.lane_idle):
                return  # first these: a hook may submit to the other lanes
