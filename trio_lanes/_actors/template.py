"""A template of global lanes: the pause that its lanes come to life with.

``pause`` and ``pause_for`` with the name of a template, or without a name, hold for the lanes of
the template that come to life later, too. The template remembers that, so a lane whose pause is the
same as that of its template can be forgotten. A lane whose pause differs is kept: one that was
paused or resumed by its own name, while its template was not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from .actor import Floor, Pausable

if TYPE_CHECKING:
    from .options import LaneConfig


@final
class Template(Pausable):
    """What can be paused and resumed under the name of a template. It has no jobs."""

    __slots__ = ("name",)

    def __init__(self, floor: Floor, name: str, config: LaneConfig) -> None:
        self.name: Final = name
        self.floor = floor
        self.config = config
        self.paused = self.paused_by_hand = config.paused
        self.paused_until = None
        self.pause_timer = None
        self.touched = False
        self.turns = floor.lane_turns

    def step(self) -> None:
        """Have its lanes look whether they can be forgotten: they are compared with it."""
        for lane in self.floor.lanes.values():
            if lane.label == self.name:
                self.floor.touch(lane)
