"""Global lanes that share a budget: which member's head starts next.

A lane of a group does not start jobs by itself. It offers its head, unless the lane itself stops
that head, and the group starts the best head of all members. So a freed slot goes to the best head
of the group, not to the member that freed it.

The best head is found as the head of one lane is. Between priorities the group compares, at the
time of the decision, ``priority + waited / aging``: each member has its own aging, and ``waited``
is the longest wait in the head's priority in its lane. For a member without aging that is the
priority. Heads of one priority are served by their arrival in their lanes, so that sessions take
turns here too.

Members of different aging overtake each other as time goes by, so no rank of theirs can be kept.
Lanes of one label have one aging: their order changes only with their heads, and is kept in a
`FairLine`. A decision compares the best lane of each label, in exact numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, final

from .options import LaneGroup
from .._queue.fair import FairLine
from .._limits.rate import Rates, rate_limits
from .._queue.timers import Timer

if TYPE_CHECKING:
    from .actor import Turns
    from .job import AnyJob
    from .lane import LaneActor

_Offer: TypeAlias = tuple[int, int, float | Fraction]
"""A head's priority and arrival, and when the longest wait in its priority began."""


class GroupFloor(Protocol):
    """What a group may ask for."""

    @property
    def now(self) -> float: ...
    @property
    def lanes(self) -> Mapping[str, LaneActor]: ...
    @property
    def session_turns(self) -> Turns: ...
    @property
    def lane_turns(self) -> Turns: ...
    @property
    def group_turns(self) -> Turns: ...
    def touch(self, actor: Group | LaneActor, /) -> None: ...
    def touch_at(self, when: float, actor: Group, timer: Timer | None) -> Timer: ...
    def rate_limited(self, actor: LaneActor, until: float, /) -> None: ...


@final
class Group:
    """The budget, the reservations and the rates that some lanes share.

    A member is known by its label: the name of its lane, or the template of that. A group that is
    configured again stays the same object, so a job can hold on to the group that charged it.
    """

    def __init__(self, floor: GroupFloor, name: str, config: LaneGroup) -> None:
        self._floor = floor
        self.name = name
        self.rates = Rates.of(config.rate)
        self.touched = False  # whether it is in line for a step
        self.turns: Final = floor.group_turns  # the line for that
        self.returning: dict[LaneActor, None] = {}  # lanes with jobs that want their slots back
        self._offers: dict[str, FairLine[LaneActor]] = {}  # {label: lanes, by their heads}
        self._offered: dict[LaneActor, _Offer] = {}
        self._timer: Timer | None = None
        self._set_members(config)

    def _set_members(self, config: LaneGroup) -> None:
        self.config = config
        self.used = dict.fromkeys(config.members, 0)  # {label: tokens in use}

    def set_config(self, config: LaneGroup) -> None:
        """Continue with another configuration and the same past; its lanes join anew."""
        self.rates = self.rates.reconfigured(rate_limits(config.rate), self._floor.now)
        self._set_members(config)

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
        """Return the head that waits for the rate of the group; no other head overtakes it."""
        lane = self._best(now)
        if lane is None or not lane.line:  # its last one is just being started
            return None
        head = lane.line.best()
        return head if self.rates.ready_at(head._costs, now) > now else None

    def has_before(self, priority: int, now: float) -> bool:
        """Whether a head that a lane offers goes before a job of ``priority`` that comes now."""
        return any(
            offers.urgency(now) >= (priority, priority) for offers in self._admitted_offers()
        )

    def offer(self, lane: LaneActor) -> None:
        """Know what ``lane`` has to offer now: its head, or nothing."""
        head = lane.ready_head()
        offer = None if head is None else (head._priority, head._arrival, lane.line.since())
        if offer == self._offered.get(lane):
            return
        self._take_back(lane)
        if offer is not None:
            priority, arrival, since = self._offered[lane] = offer
            offers = self._offers.get(lane.label)
            if offers is None:
                offers = self._offers[lane.label] = FairLine(lane.config.aging)
            offers.add(lane, priority=priority, arrival=arrival, since=since)

    def _take_back(self, lane: LaneActor) -> None:
        if self._offered.pop(lane, None) is not None:
            self._offers[lane.label].remove(lane)

    def dissolve(self) -> None:
        """Start nothing any more: its lanes have other groups."""
        self._offers.clear()
        self._offered.clear()
        self.returning.clear()
        self._rest()

    def _rest(self) -> None:
        """Wait for no charge: there is no head for it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _admitted_offers(self) -> list[FairLine[LaneActor]]:
        """Return the offers of each label that has any, and for which a token is left."""
        return [offers for label, offers in self._offers.items() if offers and self.admits(label)]

    def _best(self, now: float) -> LaneActor | None:
        """Return the lane whose head is served next."""
        admitted = self._admitted_offers()
        if len(admitted) <= 1:
            return admitted[0].best() if admitted else None
        _, priority = max(offers.urgency(now) for offers in admitted)
        equals = [lane for offers in admitted if (lane := offers.first_of(priority)) is not None]
        return min(equals, key=lambda lane: self._offered[lane][1])

    def step(self) -> None:
        """Start the best heads, as far as the budget and the rates go."""
        floor = self._floor
        for returning in list(self.returning):
            returning.give_slots_back()
            if returning not in self.returning:
                floor.touch(returning)  # it has a head to offer again
        while (lane := self._best(floor.now)) is not None:
            if floor.session_turns or floor.lane_turns:  # a step of theirs may change the best
                floor.touch(self)
                return
            head = lane.ready_head()
            assert head is not None  # a change in a lane has it take a step, and offer anew
            when = self.rates.ready_at(head._costs, floor.now)
            if when > floor.now:  # no other head overtakes it
                known = self._timer is not None and self._timer.when == when
                self._timer = floor.touch_at(when, self, self._timer)
                if not known:
                    floor.rate_limited(lane, when)
                return
            if not lane.start_head(head):  # it lacks a token of a shared limiter
                self._take_back(lane)
            elif lane.group is not self:  # a hook has configured other groups
                return
            else:
                self.offer(lane)
        self._rest()
