"""What may be done to lanes with everything switched on, and how a history of it is drawn.

From plain numbers, as in ``model_plans``. Here a step has so many parts that its number is the
seed of them; 0 always takes the first option, so Hypothesis makes zeros of what does not matter.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from math import inf
from typing import Any, NamedTuple, TypeVar

import hypothesis.strategies as st

T = TypeVar("T")

SESSIONS = ("a", "b", "vip")
LANES = ("main", "cron", "shared", "fair", "sub:1", "sub:2")
CONFIGURED = ("main", "cron", "shared", "fair", "sub:*")


class Act(NamedTuple):
    """One thing that a body does, or that is done from outside."""

    verb: str
    values: tuple[Any, ...] = ()


class Spec(NamedTuple):
    """A job: its options, and what its body does, one thing after the other."""

    options: dict[str, Any]
    acts: list[Act]


class Plan(NamedTuple):
    """Lanes, and what is done to them."""

    main: int
    session_width: int
    session_rate: bool
    rates: Sequence[str]
    """Which of the lanes have rate limits; ``"group"`` is among them."""
    group: tuple[float, int] | None
    """The budget of the group, and what is kept of it for the lane "cron"."""
    bound: float
    session_bound: float
    aging: float
    acts: list[Act]
    end: tuple[float, float, str]
    """How it is drained: grace, cancel_grace, and what becomes of what waits."""
    crash: bool

    @property
    def may_block_later(self) -> bool:
        """Whether limits are lowered, so that jobs may come to wait for each other for ever."""
        return any(act.verb in ("configure", "concurrency", "regroup") for act in self.acts)


class Dice:
    """Choices that come from a number; 0 always takes the first option."""

    def __init__(self, number: int) -> None:
        self._random = random.Random(number) if number else None

    def pick(self, options: Sequence[T]) -> T:
        return options[self._random.randrange(len(options)) if self._random else 0]

    def name(self) -> str | None:
        return self.pick([None, *LANES, "sub:*", *(f"session:{key}" for key in SESSIONS)])

    def seconds(self) -> float:
        return self.pick([0.5, 0.0, 0.25, 1.0, 3.0])

    def spec(self, depth: int = 0) -> Spec:
        options: dict[str, Any] = {
            "session": self.pick([None, *SESSIONS]),
            "lane": self.pick(LANES),
            "cost": self.pick([1, 1, 0, 2, {"tokens": 2}, {"tokens": 3, "requests": 0}]),
        }
        rare: list[tuple[str, Sequence[Any]]] = [
            ("priority", [1, -1]),
            ("owner", ["x", "y"]),
            ("delay", [0.25, 1.0]),
            ("timeout", [0.0, 0.5, 1.0]),
            ("idle_timeout", [0.5, 1.0]),
            ("queue_timeout", [0.0, 0.5, 2.0]),
        ]
        for option, values in rare:
            if self.pick([False, False, False, False, True]):
                options[option] = self.pick(values)
        return Spec(options, [self.of_body(depth) for _ in range(self.pick([1, 0, 1, 2, 3]))])

    def of_body(self, depth: int) -> Act:
        """What a body does."""
        verbs = ["sleep", "sleep", "shielded", "lend", "two_lend", "readmit", "wait_and_readmit"]
        verbs += ["charge", "progress", "fail", "clean_up", "cancel_itself", "wait_lane", "reset"]
        if depth < 2:
            verbs += ["run", "run", "run", "lend_and_run", "submit", "wait_for", "two_run", "map"]
        verb = self.pick(verbs)
        match verb:
            case "two_lend":
                return Act(verb, (self.seconds(), self.seconds(), self.pick([False, True])))
            case "readmit":
                return Act(verb, (self.pick([None, 0, 1, 2]),))
            case "wait_and_readmit" | "wait_lane":
                return Act(verb, (self.pick(LANES), self.seconds()))
            case "charge":
                return Act(verb, (self.pick([{"requests": 0}, {"requests": 1}, {"tokens": 1}]),))
            case "run" | "lend_and_run" | "submit" | "wait_for":
                return Act(verb, (self.spec(depth + 1),))
            case "two_run":
                return Act(verb, (self.spec(depth + 1), self.spec(depth + 1)))
            case "map":
                return Act(verb, (self.pick(LANES), self.pick([False, True])))
            case "reset":
                return Act(verb, (self.name(),) if self.pick([False, False, True]) else ())
            case _:
                return Act(verb, (self.seconds(),))

    def from_outside(self, calm: bool) -> Act:
        """What is done to lanes; ``calm`` is without what may cost a waiting job its slots."""
        verbs = ["submit", "submit", "submit", "submit", "submit", "sleep", "sleep", "pass"]
        verbs += ["run", "enter", "cancel", "clear", "set_priority", "put_off"]
        verbs += ["pause", "resume"]
        verbs += ["pause_for", "borrow"]
        if not calm:
            verbs += ["reset", "configure", "configure", "concurrency", "regroup"]
        verb = self.pick(verbs)
        match verb:
            case "submit":
                return Act(verb, (self.spec(),))
            case "run" | "enter":
                return Act(verb, (self.spec(), self.pick([inf, 0.0, 0.5, 2.0])))
            case "pass":
                return Act(verb, (self.pick([1, 2, 5]),))
            case "cancel":
                return Act(verb, (self.pick(range(60)),))
            case "set_priority":
                return Act(verb, (self.pick(range(60)), self.pick([0, 1, -1])))
            case "put_off":
                return Act(verb, (self.pick(range(60)), self.seconds()))
            case "clear":
                return Act(verb, (self.name(), self.pick([..., ..., "x", "a", None])))
            case "pause" | "resume" | "reset":
                return Act(verb, (self.name(),))
            case "pause_for":
                return Act(verb, (self.name(), self.seconds()))
            case "configure":
                lanes = {
                    self.pick(CONFIGURED): self.pick([0, 1, 2, 3]) for _ in range(self.pick([1, 2]))
                }
                return Act(verb, (lanes, self.pick([inf, 1, 2, 0]), self.pick([False, True])))
            case "concurrency":
                return Act(verb, (self.pick(LANES), self.pick([0, 1, 2, 3])))
            case "regroup":
                members = self.pick(
                    [("main", "cron"), ("main", "cron", "sub:*"), ("cron",), ("shared", "cron"), ()]
                )
                return Act(verb, (members, self.pick([1, 2, 3, inf]), self.pick([0, 1])))
            case _:
                return Act(verb, (self.seconds(),))


def plan_from(number: int, numbers: list[int]) -> Plan:
    dice = Dice(number)
    calm = dice.pick([True, False])
    return Plan(
        main=dice.pick([1, 2]),
        session_width=dice.pick([1, 1, 2]),
        session_rate=dice.pick([False, False, True]),
        rates=dice.pick(
            [(), (), ("main",), ("group", "sub:*"), ("main", "fair", "group"), ("shared", "group")]
        ),
        group=dice.pick([None, (2, 0), (2, 1), (3, 1), (inf, 1)]),
        bound=dice.pick([inf, inf, 3, 1, 0]),
        session_bound=dice.pick([inf, inf, inf, 2, 1, 0]),
        aging=dice.pick([inf, inf, 1.0]),
        acts=[Dice(one).from_outside(calm) for one in numbers],
        end=(dice.pick([inf, inf, 1.0]), dice.pick([inf, 1.0]), dice.pick(["finish", "cancel"])),
        crash=dice.pick([False, False, False, True]),
    )


numbers = st.integers(0, 2**24 - 1)
plans = st.builds(
    plan_from,
    numbers,
    st.integers(0, 20).flatmap(lambda n: st.lists(numbers, min_size=n, max_size=50)),
)
