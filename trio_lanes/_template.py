"""A template of global lanes: the pause that its lanes come to life with.

``pause`` and ``pause_for`` with the name of a template, or without a name, hold for the lanes of
the template that come to life later, too. The template remembers that, so a lane whose pause is the
same as that of its template can be forgotten. A lane whose pause differs is kept: one that was
paused or resumed by its own name, while its template was not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from ._actor import Actor, Floor

if TYPE_CHECKING:
    from ._config import LaneConfig
    from ._job import AnyJob


@final
class Template(Actor):
    """What can be paused and resumed under the name of a template. It has no jobs."""

    __slots__ = ("_name",)

    def __init__(self, floor: Floor, name: str, config: LaneConfig) -> None:
        super().__init__(floor, floor.lane_turns, config)
        self._name = name

    @property
    def name(self) -> str:
        return self._name

    def waiting_jobs(self) -> tuple[AnyJob, ...]:
        return ()

    def running_jobs(self) -> list[AnyJob]:
        return []

    def step(self) -> None:
        """Have its lanes look whether they can be forgotten: they are compared with it."""
        for lane in self.floor.lanes.values():
            if lane.label == self._name:
                self.floor.touch(lane)
