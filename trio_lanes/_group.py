"""Global lanes that share a budget: whose head starts next, over all of them.

A lane of a group does not start jobs by itself. It offers its head, as long as nothing of its own
stops that, and the group takes the best of what is offered: by priority, and among equals by
arrival in its lane, so that sessions take turns here too. So freed capacity goes to the best head
of all members, not to the member that freed it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Protocol, final

from ._backlog import Backlog, rank
from ._config import LaneGroup
from ._rate import Rates
from ._timers import Timer

if TYPE_CHECKING:
    from ._actor import Turns
    from ._job import AnyJob
    from ._lane import LaneActor


class GroupFloor(Protocol):
    """What a group may ask for."""

    @property
    def now(self) -> float: ...
    @property
    def lanes(self) -> Mapping[str, LaneActor]: ...
    @property
    def session_turns(self) -> Turns: ...
    @property
    def group_turns(self) -> Turns: ...
    def touch(self, actor: Group, /) -> None: ...
    def touch_at(self, when: float, actor: Group, timer: Timer | None) -> Timer: ...
    def rate_limited(self, actor: LaneActor, until: float, /) -> None: ...


@final
class Group:
    """The budget, the reservations and the rates that some lanes share.

    A member is known by its label: the name of its lane, or the template of that.
    """

    def __init__(self, floor: GroupFloor, name: str, config: LaneGroup) -> None:
        self._floor = floor
        self.name = name
        self.config = config
        self.rates = Rates.of(config.rate)
        self.touched = False  # whether it is in line for a step
        self.turns: Final = floor.group_turns  # the line for that
        self.used = dict.fromkeys(config.members, 0)  # {label: tokens in use}
        self.returning: dict[LaneActor, None] = {}  # lanes with jobs that want their slots back
        self._offers: dict[str, Backlog[LaneActor]] = {
            member: Backlog() for member in config.members
        }  # {label: lanes, by the ranks of their heads}
        self._offered: dict[LaneActor, int] = {}  # {lane: the rank under which it is offered}
        self._timer: Timer | None = None

    @property
    def lanes(self) -> list[LaneActor]:
        """The lanes in it that are alive."""
        return [lane for lane in self._floor.lanes.values() if lane.group is self]

    @property
    def has_budget(self) -> bool:
        """Whether any token is left."""
        return sum(self.used.values()) < self.config.concurrency

    def admits(self, label: str) -> bool:
        """Whether a token is left for a lane of that label, reservations being kept."""
        return self.has_budget and not self.reserved(label)

    def reserved(self, label: str) -> bool:
        """Whether all that is left is reserved for siblings of ``label``."""
        kept = sum(
            max(0, tokens - self.used[member])
            for member, tokens in self.config.reserve.items()
            if member != label
        )
        return self.config.concurrency - sum(self.used.values()) - kept < 1

    def waits_for_charge(self, now: float) -> AnyJob | None:
        """The head that waits for the rate of the group, and that nobody overtakes."""
        lane = self._best()
        if lane is None or not lane.line:  # its last one is just being started
            return None
        head = lane.line.best()
        return head if self.rates.ready_at(head._costs, now) > now else None

    def offer(self, lane: LaneActor) -> None:
        """Know what ``lane`` has to offer now: its head, or nothing."""
        old = self._offered.pop(lane, None)
        if old is not None:
            self._offers[lane.label].remove(old)
        head = lane.ready_head()
        if head is not None:
            offer = self._offered[lane] = rank(head._priority, head._arrival)
            self._offers[lane.label].add(offer, lane)

    def dissolve(self) -> None:
        """Start nothing any more: its lanes have other groups."""
        self._offers.clear()
        self.returning.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _best(self) -> LaneActor | None:
        best: tuple[int, LaneActor] | None = None
        for label, offers in self._offers.items():
            if offers.items and self.admits(label):
                offer = offers.best_rank()
                if best is None or offer < best[0]:
                    best = offer, offers.best()
        return None if best is None else best[1]

    def step(self) -> None:
        """Start the best heads, as far as the budget and the rates go."""
        for returning in list(self.returning):
            returning.give_slots_back()
        while (lane := self._best()) is not None:
            head = lane.ready_head()  # looked at anew: time may have passed since the offer
            if head is not None:
                if self._floor.session_turns:  # a hook has changed one, which may take this back
                    self._floor.touch(self)
                    return
                when = self.rates.ready_at(head._costs, self._floor.now)
                if when > self._floor.now:  # nobody overtakes a head that waits for its charge
                    known = self._timer is not None and self._timer.when == when
                    self._timer = self._floor.touch_at(when, self, self._timer)
                    if not known:
                        self._floor.rate_limited(lane, when)
                    return
                if not lane.start_head(head):  # it lacks a token of a shared limiter
                    self._offers[lane.label].remove(self._offered.pop(lane))
                    continue
            if lane.group is not self:  # a hook has configured other groups
                return
            self.offer(lane)
