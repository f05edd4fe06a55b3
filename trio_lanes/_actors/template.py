"""A template of global lanes: the pause that its lanes come to life with.

``pause`` and ``pause_for`` with the name of a template, or without a name, hold for the lanes of
the template that come to life later, too. The template remembers that, so a lane whose pause is the
same as the pause of its template can be forgotten. A lane whose pause differs is kept: it was
paused or resumed by its own name, while its template was not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, final

from .actor import Pausable
from .lane import LaneActor
from .options import LaneConfig


@final
class Template(Pausable):
    """The pause of a template. It has no jobs."""

    __slots__ = ("_lanes", "name")

    def __init__(self, name: str, config: LaneConfig, lanes: Mapping[str, LaneActor]) -> None:
        super().__init__(config)
        self.name: Final = name
        self._lanes: Final = lanes  # {name: global lane that is alive}

    def set_config(self, config: LaneConfig) -> None:
        self.config = config

    def touch(self) -> None:
        for lane in self._lanes.values():  # they may be forgotten by now
            if lane.label == self.name:
                lane.touch()
