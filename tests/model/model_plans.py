"""What may be done to lanes, step by step, and how a history of such steps is drawn.

From plain numbers: Hypothesis draws and shrinks them ten times as fast as it does steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import NamedTuple, TypeAlias

import hypothesis.strategies as st

from tests.model.digits import Digits
from tests.model.model_jobs import Body
from tests.model.model_lanes import Setting

SESSIONS = ("a", "b", "c")
LANES = ("main", "cron", "extra")  # the last one is there only if it is added
GROUPS: Sequence[tuple[float, int]] = [
    (1, 0),
    (2, 1),
    (2, 0),
    (inf, 1),
]  # budgets, and what is kept


class Submit(NamedTuple):
    session: str | None
    lane: str
    priority: int
    owner: str | None
    timeout: float
    queue_timeout: float
    body: Body


class Cancel(NamedTuple):
    job: int  # here and below: its number, modulo how many there are


class SetPriority(NamedTuple):
    job: int
    priority: int


class Clear(NamedTuple):
    name: str | None
    owner: str | None


class Reset(NamedTuple):
    name: str | None


class Pause(NamedTuple):
    name: str | None


class Resume(NamedTuple):
    name: str | None


class Configure(NamedTuple):
    changes: dict[str, int | tuple[int, float] | None]


class Regroup(NamedTuple):
    limits: tuple[float, int] | None
    """The budget of the group of "main" and "cron", and what of it is kept for "cron"."""


class Sleep(NamedTuple):
    """Time passes, and every task does its work that is due by then."""

    seconds: float


class Yield(NamedTuple):
    """A few passes of the scheduler, and no time."""

    passes: int


Step: TypeAlias = (
    Submit
    | Cancel
    | SetPriority
    | Clear
    | Reset
    | Pause
    | Resume
    | Configure
    | Regroup
    | Sleep
    | Yield
)


class Plan(NamedTuple):
    """Lanes, and what is done to them."""

    setting: Setting
    steps: list[Step]
    crash: bool  # whether the block is left by an exception


class Mood:
    """Which steps a plan takes, with which sessions and lanes.

    What takes several jobs in the right order to show is rare where anything may happen to
    anything, so each plan keeps to a few of them.
    """

    def __init__(self, digits: Digits) -> None:
        self.sessions = digits.pick([SESSIONS[:1], SESSIONS[:2], SESSIONS])
        self.lanes = digits.pick([LANES[:2], LANES[:1], LANES])
        limits: list[Sequence[float]] = [[inf], [inf, inf, 0.0, 0.25, 1.0]]
        self.timeouts = digits.pick(limits)
        self.queue_timeouts = digits.pick(limits)
        self.owners: Sequence[str | None] = digits.pick([[None], [None, "x", "y"]])
        self.nested = digits.pick([False, True])
        kinds: list[Callable[[Digits], Step]] = [
            self.raise_or_lower,
            self.cancel,
            self.clear,
            self.reset,
            self.pause_or_resume,
            self.configure,
            self.regroup,
        ]
        chosen = [digits.pick(kinds) for _ in range(digits.pick([1, 2, 3]))]
        self.kinds = [self.sleep, self.submit, self.submit, self.submit, *chosen]

    def step(self, number: int) -> Step:
        digits = Digits(number)
        return digits.pick(self.kinds)(digits)

    def name(self, digits: Digits) -> str | None:
        keys = [f"session:{key}" for key in self.sessions]
        return digits.pick([None, *self.lanes, *keys, *(["sub"] if self.nested else [])])

    def submit(self, digits: Digits) -> Step:
        body = Body(
            seconds=digits.pick([0.0, 0.25, 0.5, 1.0, 2.0]),
            shielded=digits.pick([False, False, True]),
            cleanup=digits.pick([0.0, 0.0, 0.5]),
            fails=digits.pick([False, False, True]),
        )
        lane = digits.pick(self.lanes)
        if self.nested and body.seconds and digits.pick([True, False]):
            lends = lane == "main" and digits.pick([True, False])
            body = Body(body.seconds, child=body, lends=lends)
        return Submit(
            session=digits.pick([None, *self.sessions, *self.sessions]),
            lane=lane,
            priority=digits.pick([0, 0, 1, -1]),
            owner=digits.pick(self.owners),
            timeout=digits.pick(self.timeouts),
            queue_timeout=digits.pick(self.queue_timeouts),
            body=body,
        )

    def sleep(self, digits: Digits) -> Step:
        rests: list[Step] = [Yield(1), Yield(2), Sleep(0), Sleep(0.25), Sleep(0.5), Sleep(2)]
        return digits.pick(rests)

    def cancel(self, digits: Digits) -> Step:
        return Cancel(digits.pick(range(30)))

    def raise_or_lower(self, digits: Digits) -> Step:
        return SetPriority(digits.pick(range(30)), digits.pick([0, 1, -1]))

    def clear(self, digits: Digits) -> Step:
        return Clear(self.name(digits), digits.pick([None, None, *self.sessions]))

    def reset(self, digits: Digits) -> Step:
        return Reset(self.name(digits))

    def pause_or_resume(self, digits: Digits) -> Step:
        kinds: list[type[Pause] | type[Resume]] = [Pause, Resume]
        return digits.pick(kinds)(self.name(digits))

    def configure(self, digits: Digits) -> Step:
        return Configure(dict(self.change(digits) for _ in range(digits.pick([1, 1, 2]))))

    def change(self, digits: Digits) -> tuple[str, int | tuple[int, float] | None]:
        lane = digits.pick(self.lanes)
        number, bound = digits.pick([1, 2, 0]), digits.pick([inf, 0, 1, 3])
        change = digits.pick([0, 1, 2, 3, None, (number, bound)])
        if not self.nested:
            return lane, change
        if digits.pick([False, False, True]):
            return "sub", number
        if lane != "main":
            return lane, change
        # What has lent its slot there would clean up without one if there were to be none.
        if change == 0:
            change = 1
        return lane, (1, bound) if isinstance(change, tuple) else change

    def regroup(self, digits: Digits) -> Step:
        return Regroup(digits.pick([*GROUPS, None]))


def plan_from(number: int, numbers: list[int]) -> Plan:
    digits = Digits(number)
    setting = Setting(
        main=digits.pick([1, 2]),
        cron=digits.pick([1, 0]),
        sub=digits.pick([1, 2]),
        session_width=digits.pick([1, 2]),
        session_bound=digits.pick([inf, inf, 2]),
        fair=digits.pick([False, True]),
        rate=digits.pick([inf, inf, 1, 2]),
        group=digits.pick([None, *GROUPS]),
        group_rate=digits.pick([inf, inf, 1, 3]),
    )
    crash = digits.pick([False, False, False, True])
    mood = Mood(digits)
    return Plan(setting, [mood.step(number) for number in numbers], crash)


# Hypothesis makes short lists unless asked for long ones, and small numbers from a larger range.
numbers = st.integers(0, 2**24 - 1)
plans = st.builds(
    plan_from,
    numbers,
    st.integers(0, 25).flatmap(lambda n: st.lists(numbers, min_size=n, max_size=60)),
)
