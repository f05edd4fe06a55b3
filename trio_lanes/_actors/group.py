"""Global lanes that share a budget: which member's head starts next.

Theory of operation
-------------------
A lane of a group does not start jobs by itself. It offers its head, unless the lane itself stops
that head, and the group starts the best head of all members (`Group.next_start`). So a freed slot
goes to the best head of the group, not to the member that freed it.

The best head is found as the head of one lane is. Between priorities the group compares, at the
time of the decision, ``priority + waited / aging``: each member has its own aging, and ``waited``
is the longest wait in the head's priority in its lane. For a member without aging that is the
priority. Heads of one priority are served by their arrival in their lanes, so that sessions take
turns here too.

Members of different aging overtake each other as time goes by, so the group keeps no rank for them.
Lanes of one label have one aging: their order changes only with their heads, and is kept in a
`FairLine`. A decision compares the best lane of each label, in exact numbers.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from fractions import Fraction
from typing import Final, TypeAlias, final

from .._limits.rate import Rates, rate_limits
from .._queue.fair import FairLine
from .._queue.timers import Timer
from .actor import Served, Turns
from .job import AnyJob
from .lane import LaneActor
from .options import LaneGroup

_Offer: TypeAlias = tuple[int, int, float | Fraction]
"""A head's priority and arrival, and when the longest wait in its priority began."""


@final
class Group(Served):
    """The budget, the reservations and the rates that some lanes share.

    A member is known by its label: the name of its lane, or of the template of its lane. A group
    that is configured again stays the same object, so a job can keep the group that charged it.
    """

    def __init__(
        self, name: str, config: LaneGroup, turns: Turns, lanes: Mapping[str, LaneActor]
    ) -> None:
        self.name = name
        self.rates = Rates.of(config.rate)
        self.turns = turns  # where it stands while it is touched
        self.touched = False  # whether the loop is to serve it
        self.wake_at = math.inf  # when it is to be served although no act touches it
        self.timer: Timer | None = None  # set for that
        self.rate_until = self.announced_until = -math.inf
        self.limited: LaneActor | None = None  # whose head waits for the rates
        self._lanes: Final = lanes  # {name: global lane that is alive}, of this group or not
        self._offers: Final[dict[str, FairLine[LaneActor]]] = {}  # {label: lanes by their heads}
        self._offered: Final[dict[LaneActor, _Offer]] = {}
        self._requesting: Final[dict[LaneActor, None]] = {}  # lanes whose jobs want slots back
        self._set_members(config)

    def _set_members(self, config: LaneGroup) -> None:
        self.config = config
        self.used = dict.fromkeys(config.members, 0)  # {label: tokens in use}

    def set_config(self, config: LaneGroup, now: float) -> None:
        """Continue with another configuration and the same past; its lanes join anew."""
        self.rates = self.rates.reconfigured(rate_limits(config.rate), now)
        self._set_members(config)

    def dissolve(self) -> None:
        """Start no job any more: the lanes have no group, or join one anew."""
        self._offers.clear()
        self._offered.clear()
        self._requesting.clear()
        self.wake_at = math.inf
        self.touch()

    @property
    def lanes(self) -> list[LaneActor]:
        """The lanes in it that are alive."""
        return [lane for lane in self._lanes.values() if lane.group is self]

    # ---- the budget

    @property
    def has_budget(self) -> bool:
        """Whether a token is left."""
        return sum(self.used.values()) < self.config.concurrency

    def take_tokens(self, label: str, tokens: int = 1) -> None:
        """Count ``tokens`` more in use by the lanes of ``label``."""
        self.used[label] += tokens

    def give_token_back(self, label: str) -> None:
        """Count one token less in use by the lanes of ``label``."""
        self.used[label] -= 1
        self.touch()

    @property
    def is_tight(self) -> bool:
        """Whether a job of any label may have to wait until a token comes back."""
        reserve = self.config.reserve
        taken = sum(max(tokens, reserve.get(label, 0)) for label, tokens in self.used.items())
        return taken >= self.config.concurrency

    def admits(self, label: str) -> bool:
        """Whether a token is left for a lane of that label, beside all reservations."""
        return self.has_budget and not self.reserved(label)

    def reserved(self, label: str) -> bool:
        """Whether all tokens that are left are reserved for siblings of ``label``."""
        kept = sum(
            max(0, tokens - self.used[member])
            for member, tokens in self.config.reserve.items()
            if member != label
        )
        return self.config.concurrency - sum(self.used.values()) - kept < 1

    def leaves_none(self, label: str) -> bool:
        """Whether all tokens that there are, if any, are reserved for siblings of ``label``."""
        kept = sum(n for member, n in self.config.reserve.items() if member != label)
        return 0 < self.config.concurrency <= kept

    # ---- which job starts next

    def offer(self, lane: LaneActor, now: float) -> None:
        """Note the offer of ``lane``, which has taken its step: its head, or nothing."""
        if lane.slot_requests:
            self._requesting[lane] = None
        else:
            self._requesting.pop(lane, None)
        head = lane.head(now)
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

    def next_start(self, now: float) -> AnyJob | None:
        """Take out the job that may have a slot now. The loop asks until the answer is None.

        Jobs that want their slots back go first. No head overtakes a head that waits for its
        charge.
        """
        self.wake_at = math.inf
        for requesting in self._requesting:
            job = requesting.next_start(now)
            if job is not None:
                return job
        while (lane := self._best(now)) is not None:
            head = lane.line.best()
            when = self.rates.ready_at(head._costs, now)
            if when > now:
                self.rate_until = when
                # before that, a head that costs less may come before it by its aging
                self.wake_at = min(self.rates.look_at(when, now), self._order_changes_at(now))
                self.limited = lane
                return None
            job = lane.next_start(now)
            if job is not None:
                return job
            self._take_back(lane)  # it lacks a token of a shared limiter
        return None

    def _best(self, now: float) -> LaneActor | None:
        """The lane whose head is served next."""
        admitted = self._admitted_offers()
        if len(admitted) <= 1:
            return admitted[0].best() if admitted else None
        return min(_first_of_all(admitted, now), key=lambda lane: self._offered[lane][1])

    def _order_changes_at(self, now: float) -> float:
        """When the best of all heads may be another one, only as time goes by: after ``now``.

        The most urgent line gives the priority that is served, and in that the arrivals decide. So
        a line of the same priority changes nothing by overtaking it, and may have done so before.
        """
        admitted = self._admitted_offers()
        first = max(admitted, key=lambda line: line.urgency(now))
        _, priority = first.urgency(now)
        return min(
            (
                line.overtakes_at(first, now)
                for line in admitted
                if line.urgency(now)[1] != priority
            ),
            default=math.inf,
        )

    def _admitted_offers(self) -> list[FairLine[LaneActor]]:
        """The offers of each label that has any, and for which a token is left."""
        return [offers for label, offers in self._offers.items() if offers and self.admits(label)]

    # ---- the order of the heads

    def waits_for_charge(self, now: float) -> AnyJob | None:
        """The head that waits for the rate of the group; no other head overtakes it."""
        lane = self._best(now)
        if lane is None or not lane.line:  # its last job is just being started
            return None
        head = lane.line.best()
        return head if self.rates.ready_at(head._costs, now) > now else None

    def head_before(
        self,
        lane: LaneActor,
        job: AnyJob,
        since: float | Fraction,
        leave: Collection[AnyJob],
        now: float,
    ) -> AnyJob | None:
        """The head of another lane that goes before ``job``, if ``job`` were the head of ``lane``.

        The jobs of ``leave`` would not stand in the lines of their lanes any more. Between two acts
        the head of a lane may be another job than the one that it offered, or none.
        """
        heads = {lane: job}
        own = FairLine[LaneActor](lane.config.aging)
        own.add(lane, priority=job._priority, arrival=job._arrival, since=since)
        offers = {lane.label: own}
        for other in self._offered:
            if other is lane or not self.admits(other.label):
                continue
            line = other.line
            while line and (head := line.best()) in leave:
                line = line.copy()  # a question changes nothing
                line.remove(head)
            if line:
                head = heads[other] = line.best()
                offers.setdefault(other.label, FairLine(other.config.aging)).add(
                    other, priority=head._priority, arrival=head._arrival, since=line.since()
                )
        first = _first_of_all([*offers.values()], now)
        best = heads[min(first, key=lambda other: heads[other]._arrival)]
        return None if best is job else best

    def has_before(self, priority: int, now: float) -> bool:
        """Whether a head that a lane offers goes before a job of ``priority`` that comes now."""
        return any(
            offers.urgency(now) >= (priority, priority) for offers in self._admitted_offers()
        )


def _first_of_all(offers: list[FairLine[LaneActor]], now: float) -> list[LaneActor]:
    """The lanes that are first by urgency; the earliest arrival among their heads decides."""
    _, priority = max(line.urgency(now) for line in offers)
    return [lane for line in offers if (lane := line.first_of(priority)) is not None]
