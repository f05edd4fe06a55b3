"""What is done to lanes where two rare features meet, and how a history of it is drawn.

A history keeps to one theme: a few features, a few kinds of acts, a few kinds of bodies. Two rare
features meet in most histories of their theme, and in hardly any history of all features.

Each act is read from two plain numbers, digit by digit; 0 takes the first option everywhere, so
that Hypothesis shrinks a history towards few and simple acts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, NamedTuple

import hypothesis.strategies as st

from tests.model.digits import Digits
from trio_lanes import LaneConfig, LaneGroup, RateLimit


class Act(NamedTuple):
    """One thing that a body does, or that is done to the lanes from outside."""

    verb: str
    values: tuple[Any, ...] = ()

    def __repr__(self) -> str:
        return f"{self.verb}({', '.join(map(repr, self.values))})"


class Spec(NamedTuple):
    """A job: where it goes, and what its body does."""

    lane: str
    session: str | None
    priority: int
    cost: float
    acts: tuple[Act, ...]


class Setting(NamedTuple):
    """What lanes are opened with."""

    lanes: Mapping[str, LaneConfig]
    sessions: LaneConfig = LaneConfig()
    groups: Mapping[str, LaneGroup] = {}


class Plan(NamedTuple):
    """Lanes, and what is done to them."""

    setting: Setting
    acts: list[Act]

    def __repr__(self) -> str:
        settings = [f"{name}={value!r}" for name, value in self.setting._asdict().items()]
        return "\n  ".join(["", *settings, *map(repr, self.acts)])


class Mood(NamedTuple):
    """What of its theme a history has: all of it, or little, but that often."""

    acts: Sequence[str]
    bodies: Sequence[str]
    rests: int
    """How often time passes, to three jobs."""


class Theme:
    """Features that meet: their lanes, their acts, and the bodies of their jobs."""

    lanes: Sequence[str] = ("main",)
    sessions: Sequence[str | None] = (None,)
    priorities: Sequence[int] = (0,)
    costs: Sequence[float] = (1,)
    bodies: Sequence[str] = ("sleep",)
    acts: Sequence[str] = ()
    length: Sequence[int] = (1, 1, 2)
    """How many things a body does."""

    def setting(self, digits: Digits) -> Setting:
        raise NotImplementedError

    def act(self, mood: Mood, digits: Digits, body: Digits) -> Act:
        verb = digits.pick([*["submit"] * 3, *["sleep"] * mood.rests, *mood.acts])
        match verb:
            case "submit" | "enter":
                return Act(verb, (self.spec(mood, digits, body),))
            case "sleep":
                return Act(verb, (digits.pick([1.0, 0.0, 0.5, 2.0, 4.0]),))
            case "cancel":
                return Act(verb, (digits.pick(range(3)),))
            case "prioritize":
                return Act(verb, (digits.pick(range(8)), digits.pick(self.priorities)))
            case "pause" | "resume":
                return Act(verb, (digits.pick(self.pausable()),))
            case "pause_for":
                return Act(verb, (digits.pick(self.pausable()), digits.pick([2.0, 1.0])))
            case "clear":
                return Act(verb, (digits.pick(self.pausable()),))
            case "concurrency" | "configure":
                return Act(verb, (digits.pick(self.resizable()), digits.pick([1, 2, 0, 3])))
            case "regroup":
                return Act(verb, (digits.pick(self.regroupings()),))
        raise AssertionError(verb)

    def pausable(self) -> Sequence[str | None]:
        return [*self.lanes, None, *(f"session:{key}" for key in self.sessions if key)]

    def resizable(self) -> Sequence[str]:
        return self.lanes

    def regroupings(self) -> Sequence[tuple[str, LaneGroup] | None]:
        raise NotImplementedError

    def spec(self, mood: Mood, digits: Digits, body: Digits) -> Spec:
        return Spec(
            digits.pick(self.lanes),
            digits.pick(self.sessions),
            digits.pick(self.priorities),
            digits.pick(self.costs),
            tuple(self.of_body(mood, body) for _ in range(body.pick(self.length))),
        )

    def of_body(self, mood: Mood, digits: Digits) -> Act:
        """What a body does."""
        verb = digits.pick(mood.bodies)
        seconds = [1.0, 2.0, 0.5, 8.0]
        match verb:
            case "lend_both" | "lend_and_sleep":
                return Act(verb, (digits.pick(seconds), digits.pick(seconds)))
            case "wait_job":
                return Act(verb, (digits.pick(range(3)),))
            case "wait_idle":
                return Act(verb, (digits.pick(self.pausable()),))
            case "run":
                child = Spec("sub", None, 0, 1, (Act("sleep", (digits.pick(seconds),)),))
                return Act(verb, (child, digits.pick([True, False])))
            case "run_here":
                child = Spec(
                    digits.pick(self.lanes), digits.pick(self.sessions), 0, 1, (Act("sleep", (1,)),)
                )
                return Act("run", (child, digits.pick([True, False])))
            case "charge":
                return Act(verb, (digits.pick([0, 1]),))
            case "drain" | "readmit":
                return Act(verb)
            case _:
                return Act(verb, (digits.pick(seconds),))

    def plan(self, number: int, start: int, numbers: list[tuple[int, int]]) -> Plan:
        digits = Digits(number)
        setting, mood = self.setting(digits), self.mood(digits)
        digits = Digits(start)
        openings = self.openings([digits.pick([1.0, 2.0, 0.5, 4.0]) for _ in range(4)])
        opening = digits.pick([[], *openings])
        acts = [self.act(mood, Digits(act), Digits(body)) for act, body in numbers]
        return Plan(setting, [*opening, *acts])

    def openings(self, seconds: list[float]) -> Sequence[list[Act]]:
        """How its features meet most often: what some histories begin with."""
        return []

    def mood(self, digits: Digits) -> Mood:
        acts = digits.pick([self.acts, (), [digits.pick(self.acts)]])
        bodies = digits.pick([self.bodies, [digits.pick(self.bodies) for _ in range(2)]])
        return Mood(acts, bodies, digits.pick([2, 4]))

    def plans(self) -> st.SearchStrategy[Plan]:
        numbers = st.integers(0, 2**24 - 1)
        acts = st.tuples(numbers, numbers)
        # Hypothesis makes short lists unless asked for long ones.
        lists = st.integers(0, 15).flatmap(lambda n: st.lists(acts, min_size=n, max_size=40))
        return st.builds(self.plan, numbers, numbers, lists)


def submit(
    lane: str, *acts: Act, cost: float = 1, session: str | None = None, priority: int = 0
) -> Act:
    return Act("submit", (Spec(lane, session, priority, cost, acts),))


def sleep(seconds: float) -> Act:
    return Act("sleep", (seconds,))


def rate(limit: float, per: float) -> RateLimit:
    return RateLimit(limit, per, algorithm="sliding")


class LendingAndCancellation(Theme):
    """Jobs that lend once, twice, from two tasks and while they clean up; limits of 0."""

    bodies = (
        "lend_twice_in_cleanup",
        "wait_job",
        "lend",
        "map",
        "lend_in_cleanup",
        "sleep",
        "run",
        "lend_both",
    )
    acts = ("cancel", "cancel", "concurrency")

    def setting(self, digits: Digits) -> Setting:
        width = digits.pick([1, 1, 2])
        return Setting({"main": LaneConfig(concurrency=width), "sub": LaneConfig()})

    def openings(self, seconds: list[float]) -> Sequence[list[Act]]:
        one, other, *_ = seconds
        lender = submit("main", Act("lend_twice_in_cleanup", (one,)))
        waiter = submit("main", Act("wait_job", (0,)))
        closed = [sleep(0.5), Act("concurrency", ("main", 0)), Act("cancel", (0,)), sleep(other)]
        return [[lender, Act("cancel", (0,)), waiter, sleep(other)], [lender, *closed]]


class LendingInGroups(Theme):
    """Slots that come back through a group: its budget, its reservation, its pauses."""

    lanes = ("main", "cron")
    bodies = ("lend_and_sleep", "sleep", "lend_both")
    acts = ("cancel", "pause", "resume", "concurrency")

    def setting(self, digits: Digits) -> Setting:
        main, cron = digits.pick([2, 3]), digits.pick([2, 3])
        budget, kept = digits.pick([(2, 0), (3, 0), (2, 0), (3, 1)])
        group = LaneGroup(self.lanes, concurrency=budget, reserve={"cron": kept})
        lanes = {"main": LaneConfig(concurrency=main), "cron": LaneConfig(concurrency=cron)}
        return Setting(lanes, groups={"g": group})

    def openings(self, seconds: list[float]) -> Sequence[list[Act]]:
        lends, one, other, rests = seconds
        return [
            [
                submit("main", Act("lend_and_sleep", (lends, 8.0))),
                submit("cron", sleep(one)),
                submit("cron", sleep(other)),
                submit("main", sleep(1)),
                *[sleep(rests)] * 3,
            ]
        ]


class GroupsAndAging(Theme):
    """Members whose jobs age, under one budget; pauses of one member and of all."""

    lanes = ("main", "cron")
    priorities = (0, 1, 5)
    acts = ("pause_for", "pause_for", "resume", "prioritize")
    length = (1,)

    def setting(self, digits: Digits) -> Setting:
        aging = digits.pick([inf, 1.0, 0.5])
        budget, kept = digits.pick([(1, 0), (2, 0), (2, 1), (inf, 0)])
        limits = digits.pick([(), (), (rate(2, 4),)])
        group = LaneGroup(self.lanes, concurrency=budget, reserve={"cron": kept}, rate=limits)
        return Setting({name: LaneConfig(aging=aging) for name in self.lanes}, groups={"g": group})

    def openings(self, seconds: list[float]) -> Sequence[list[Act]]:
        first, one, other, rests = seconds
        aged = [submit("main", sleep(first)), submit("main", sleep(1)), sleep(rests)]
        stream = [submit("cron", sleep(each), priority=1) for each in (one, other)]
        paused = [Act("pause_for", (None, first)), submit("main", sleep(1))]
        return [[*aged, *stream], [*paused, submit("cron", sleep(1), priority=5), sleep(rests)]]


class GroupsAndRoom(Theme):
    """Bounded members of a group with a rate; jobs that wait for room, and jobs that do not."""

    lanes = ("main", "cron")
    costs = (1, 2, 3, 0)
    acts = ("enter", "enter", "pause", "resume", "cancel")
    sessions = (None, None, "a")
    length = (1,)

    def setting(self, digits: Digits) -> Setting:
        bounds = digits.pick([inf, 0, 1]), digits.pick([0, 1])
        budget = digits.pick([inf, 2])
        width = digits.pick([5, 1])
        group = LaneGroup(
            self.lanes, concurrency=budget, rate=digits.pick([(rate(3, 4),), (rate(4, 8),)])
        )
        lanes = {
            name: LaneConfig(concurrency=width, max_waiting=bound)
            for name, bound in zip(self.lanes, bounds, strict=True)
        }
        return Setting(lanes, groups={"g": group})


class Readmission(Theme):
    """Jobs that are started again: in rated and paused sessions and lanes, in groups; cancelled."""

    lanes = ("main", "cron")
    sessions = (None, "a", "a", "b")
    priorities = (0, 0, 1)
    costs = (1, 0)
    bodies = ("readmit", "sleep", "lend")
    acts = ("cancel", "pause", "resume")
    length = (2, 1, 3)

    def setting(self, digits: Digits) -> Setting:
        lane_rate = digits.pick([(), (rate(1, 16),), (rate(2, 4),)])
        session_rate = digits.pick([(), (rate(9, 1),), (rate(2, 4),)])
        lanes = {
            "main": LaneConfig(concurrency=digits.pick([1, 2]), rate=lane_rate),
            "cron": LaneConfig(concurrency=digits.pick([1, 2])),
        }
        sessions = LaneConfig(concurrency=digits.pick([1, 2]), rate=session_rate)
        group = digits.pick([None, (1, ()), (2, ()), (2, (rate(2, 4),))])
        if group is None:
            return Setting(lanes, sessions)
        budget, limits = group
        return Setting(
            lanes, sessions, {"g": LaneGroup(self.lanes, concurrency=budget, rate=limits)}
        )

    def openings(self, seconds: list[float]) -> Sequence[list[Act]]:
        first, one, other, rests = seconds
        again = [sleep(first), Act("readmit")]
        return [
            [
                submit("main", *again),
                submit("main", sleep(one), cost=0),
                sleep(rests),
                Act("cancel", (1,)),
                sleep(other),
            ],
            [
                submit("cron", *again, session="a"),
                Act("pause", ("cron",)),
                sleep(rests),
                submit("main", sleep(one), session="a"),
                sleep(other),
            ],
        ]


class TemplatesAndConfigure(Theme):
    """Lanes of a template: they come and go, are resized live, paused, and configured by name."""

    lanes = ("sub:1", "sub:2", "main")
    bodies = ("sleep", "lend", "readmit")
    acts = ("concurrency", "concurrency", "configure", "configure", "pause", "resume")

    def setting(self, digits: Digits) -> Setting:
        limits = digits.pick([(), (rate(2, 4),)])
        budget = digits.pick([None, 1, 2])
        groups = {} if budget is None else {"g": LaneGroup(("main", "sub:*"), concurrency=budget)}
        lanes = {"main": LaneConfig(), "sub:*": LaneConfig(concurrency=2, rate=limits)}
        return Setting(lanes, groups=groups)

    def pausable(self) -> Sequence[str | None]:
        return self.lanes

    def act(self, mood: Mood, digits: Digits, body: Digits) -> Act:
        act = super().act(mood, digits, body)
        if act.verb == "configure":
            return Act(act.verb, (digits.pick(["main", "sub:*"]), act.values[1]))
        return act


class RegroupingAndCharge(Theme):
    """Groups that come, change and go while jobs run, which then say what they really took."""

    lanes = ("main", "cron")
    costs = (2, 1, 3)
    bodies = ("sleep", "charge", "lend", "readmit")
    acts = ("regroup", "regroup")
    length = (2, 1, 3)

    def setting(self, digits: Digits) -> Setting:
        # A lane's own rate makes "requests" a unit that is known, whatever the groups are.
        lanes = {name: LaneConfig(concurrency=3, rate=rate(30, 4)) for name in self.lanes}
        group = digits.pick(self.regroupings())
        return Setting(lanes, groups=dict([group]) if group else {})

    def regroupings(self) -> Sequence[tuple[str, LaneGroup] | None]:
        limit = rate(3, 16)
        return [
            None,
            ("g", LaneGroup(("main",), rate=limit)),
            ("h", LaneGroup(("main", "cron"), rate=limit)),
            ("g", LaneGroup(("main", "cron"), concurrency=2, rate=limit)),
        ]

    def openings(self, seconds: list[float]) -> Sequence[list[Act]]:
        first, one, other, rests = seconds
        return [
            [
                submit("main", sleep(first), Act("charge", (0,)), cost=3),
                Act("regroup", (self.regroupings()[1],)),
                submit("main", sleep(one), cost=3),
                submit("main", sleep(other), cost=3),
                sleep(rests),
            ]
        ]


class WaitingInsideJobs(Theme):
    """Jobs that drain, wait for idleness and run others, with others waiting for what they hold."""

    sessions = ("a", None, "b")
    bodies = ("wait_idle", "drain", "sleep", "run_here", "wait_job", "lend")
    acts = ("cancel",)

    def setting(self, digits: Digits) -> Setting:
        width, session_width = digits.pick([2, 1, 4]), digits.pick([1, 2])
        return Setting(
            {"main": LaneConfig(concurrency=width)}, LaneConfig(concurrency=session_width)
        )


THEMES: Sequence[Theme] = (
    LendingAndCancellation(),
    LendingInGroups(),
    GroupsAndAging(),
    GroupsAndRoom(),
    Readmission(),
    TemplatesAndConfigure(),
    RegroupingAndCharge(),
    WaitingInsideJobs(),
)
